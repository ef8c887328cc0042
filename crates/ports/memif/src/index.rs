//! Who may use which slot of a ring: the arithmetic and the memory orders of the two shared indices, and nothing else.
//!
//! A ring has `slots` (a power of two) slots and two free-running 16-bit indices. The client writes `head` and the server
//! writes `tail`, in both directions; what they mean depends on the direction:
//!
//! ```text
//!   client to server: head = filled up to here          tail = emptied up to here
//!   server to client: head = empty buffers posted up to here   tail = filled up to here
//! ```
//!
//! So a producer owns one index, which says how far it has filled, and reads the consumer's, which says how far it may
//! go after adding [`Producer::bias`]: `slots` where the consumer reports what it emptied, 0 where it posts buffers. A
//! [`Consumer`] mirrors that. Everything else is one code path.
//!
//! **Contract.** One thread drives a [`Producer`], one the [`Consumer`], and each index has one writer. An index is stored
//! with release after the slots that it hands over were written (or read), and loaded with acquire before they are used.
//! The other side is not trusted: an index that goes back, or further than the slots that it was lent, marks this end
//! `dead`, and it then offers no slot any more. Loom runs this very code through every interleaving
//! (`tests/index_interleavings.rs` includes the file).

use core::sync::atomic::{AtomicU16, Ordering};

/// An index in shared memory. Implemented by the processor's atomics and, in the loom test, by loom's.
pub(crate) trait SharedIndex {
    /// Loads it so that what the other side did before storing it is visible.
    fn load_acquire(&self) -> u16;
    /// Stores it so that what this side did before is visible to who loads it.
    fn store_release(&self, value: u16);
}

impl SharedIndex for AtomicU16 {
    #[inline(always)]
    fn load_acquire(&self) -> u16 {
        self.load(Ordering::Acquire)
    }

    #[inline(always)]
    fn store_release(&self, value: u16) {
        self.store(value, Ordering::Release);
    }
}

/// The filling side of a ring.
#[derive(Debug)]
pub(crate) struct Producer {
    slots: u16,
    /// Added to the consumer's index to get the first slot that must not be filled yet.
    bias: u16,
    /// The next slot to fill (free-running).
    next: u16,
    /// What the consumer was last told.
    published: u16,
    /// The first slot that must not be filled, as far as known (free-running).
    limit: u16,
    /// `next` and `limit` without wrapping: positions since the ring began.
    pushed: u64,
    limit_position: u64,
    dead: bool,
}

impl Producer {
    /// A producer whose consumer reports what it has emptied (client to server).
    pub(crate) fn of_emptied(slots: u16) -> Producer {
        Producer {
            slots,
            bias: slots,
            next: 0,
            published: 0,
            limit: slots,
            pushed: 0,
            limit_position: u64::from(slots),
            dead: false,
        }
    }

    /// A producer whose consumer posts empty buffers (server to client). It has none until the client posts some.
    pub(crate) fn of_posted(slots: u16) -> Producer {
        Producer {
            slots,
            bias: 0,
            next: 0,
            published: 0,
            limit: 0,
            pushed: 0,
            limit_position: 0,
            dead: false,
        }
    }

    /// Slots known to be free, without looking at the consumer.
    #[inline(always)]
    pub(crate) fn known_free(&self) -> u16 {
        self.limit.wrapping_sub(self.next)
    }

    /// The next slot to fill, free-running.
    #[inline(always)]
    pub(crate) fn next(&self) -> u16 {
        self.next
    }

    /// Looks at the consumer's index and returns the free slots.
    #[inline]
    pub(crate) fn refresh(&mut self, consumer: &impl SharedIndex) -> u16 {
        let limit = consumer.load_acquire().wrapping_add(self.bias);
        let advance = limit.wrapping_sub(self.limit);
        if advance == 0 || self.dead {
            return self.known_free();
        }
        // The consumer may go as far as what was published; then everything is free.
        let most = self.slots.wrapping_sub(self.limit.wrapping_sub(self.published));
        if advance > most {
            self.dead = true;
            self.limit = self.next;
            return 0;
        }
        self.limit = limit;
        self.limit_position += u64::from(advance);
        self.known_free()
    }

    /// Takes `slots` slots, which the caller has filled.
    #[inline(always)]
    pub(crate) fn fill(&mut self, slots: u16) {
        debug_assert!(slots <= self.known_free());
        self.next = self.next.wrapping_add(slots);
        self.pushed += u64::from(slots);
    }

    /// Hands all filled slots to the consumer; false when there was nothing to hand over.
    #[inline(always)]
    pub(crate) fn publish(&mut self, own: &impl SharedIndex) -> bool {
        if self.published == self.next || self.dead {
            return false;
        }
        self.published = self.next;
        own.store_release(self.next);
        true
    }

    /// Slots filled since the ring began.
    #[inline(always)]
    pub(crate) fn pushed(&self) -> u64 {
        self.pushed
    }

    /// Slots emptied since the ring began, as last seen.
    #[inline(always)]
    pub(crate) fn consumed(&self) -> u64 {
        self.limit_position.saturating_sub(u64::from(self.slots))
    }

    /// Whether the consumer broke the rules; nothing is free any more then.
    #[inline(always)]
    pub(crate) fn is_dead(&self) -> bool {
        self.dead
    }

    /// Stops using the ring, because of what its descriptors hold.
    #[cold]
    pub(crate) fn kill(&mut self) {
        self.dead = true;
        self.limit = self.next;
    }
}

/// The emptying side of a ring.
#[derive(Debug)]
pub(crate) struct Consumer {
    slots: u16,
    /// Added to the position to get the own index.
    bias: u16,
    /// The next slot to empty (free-running).
    next: u16,
    /// What the producer was last told (without the bias).
    released: u16,
    /// The first slot not filled, as far as known (free-running).
    filled: u16,
    popped: u64,
    dead: bool,
}

impl Consumer {
    /// A consumer that reports what it has emptied (client to server).
    pub(crate) fn reporting_emptied(slots: u16) -> Consumer {
        Consumer {
            slots,
            bias: 0,
            next: 0,
            released: 0,
            filled: 0,
            popped: 0,
            dead: false,
        }
    }

    /// A consumer that posts empty buffers (server to client); [`Consumer::post_all`] begins.
    pub(crate) fn posting_buffers(slots: u16) -> Consumer {
        Consumer {
            slots,
            bias: slots,
            next: 0,
            released: 0,
            filled: 0,
            popped: 0,
            dead: false,
        }
    }

    /// Posts the whole ring of empty buffers, once, when the connection stands.
    pub(crate) fn post_all(&self, own: &impl SharedIndex) {
        own.store_release(self.next.wrapping_add(self.bias));
    }

    /// Filled slots, without looking at the producer.
    #[inline(always)]
    pub(crate) fn known_filled(&self) -> u16 {
        self.filled.wrapping_sub(self.next)
    }

    /// The next slot to empty, free-running.
    #[inline(always)]
    pub(crate) fn next(&self) -> u16 {
        self.next
    }

    /// Looks at the producer's index and returns the filled slots.
    #[inline]
    pub(crate) fn refresh(&mut self, producer: &impl SharedIndex) -> u16 {
        let filled = producer.load_acquire();
        let advance = filled.wrapping_sub(self.filled);
        if advance == 0 || self.dead {
            return self.known_filled();
        }
        // The producer may fill what was released to it, no more.
        let most = self.slots.wrapping_sub(self.filled.wrapping_sub(self.released));
        if advance > most {
            self.dead = true;
            self.filled = self.next;
            return 0;
        }
        self.filled = filled;
        self.known_filled()
    }

    /// Takes `slots` slots, which the caller has emptied.
    #[inline(always)]
    pub(crate) fn empty(&mut self, slots: u16) {
        debug_assert!(slots <= self.known_filled());
        self.next = self.next.wrapping_add(slots);
        self.popped += u64::from(slots);
    }

    /// Gives all emptied slots back to the producer.
    #[inline(always)]
    pub(crate) fn release(&mut self, own: &impl SharedIndex) {
        if self.released != self.next && !self.dead {
            self.released = self.next;
            own.store_release(self.next.wrapping_add(self.bias));
        }
    }

    /// Slots emptied since the ring began.
    #[inline(always)]
    pub(crate) fn popped(&self) -> u64 {
        self.popped
    }

    /// Whether the producer broke the rules; nothing is filled any more then.
    #[inline(always)]
    pub(crate) fn is_dead(&self) -> bool {
        self.dead
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A ring with two indices, driven in one thread.
    struct Ring {
        head: AtomicU16,
        tail: AtomicU16,
    }

    #[derive(Debug, Clone)]
    enum Step {
        Fill(u16),
        Publish,
        Empty(u16),
        Release,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            (0..70_u16).prop_map(Step::Fill),
            Just(Step::Publish),
            (0..70_u16).prop_map(Step::Empty),
            Just(Step::Release),
        ];
        proptest::collection::vec(step, 0..400)
    }

    fn run(posted: bool, slots: u16, steps: &[Step]) -> Result<(), TestCaseError> {
        let ring = Ring {
            head: AtomicU16::new(0),
            tail: AtomicU16::new(0),
        };
        // In client to server the producer owns head; in server to client it owns tail.
        let (produced, consumed) = if posted {
            (&ring.tail, &ring.head)
        } else {
            (&ring.head, &ring.tail)
        };
        let mut producer = if posted {
            Producer::of_posted(slots)
        } else {
            Producer::of_emptied(slots)
        };
        let mut consumer = if posted {
            Consumer::posting_buffers(slots)
        } else {
            Consumer::reporting_emptied(slots)
        };
        if posted {
            prop_assert_eq!(producer.refresh(consumed), 0);
            consumer.post_all(consumed);
        }
        // The model: counts since the beginning.
        let (mut filled, mut published, mut emptied, mut released) = (0_u64, 0_u64, 0_u64, 0_u64);
        for step in steps {
            match step {
                Step::Fill(count) => {
                    let free = producer.refresh(consumed);
                    prop_assert_eq!(u64::from(free), u64::from(slots) - (filled - released));
                    let count = (*count).min(free);
                    producer.fill(count);
                    filled += u64::from(count);
                }
                Step::Publish => {
                    prop_assert_eq!(producer.publish(produced), filled != published);
                    published = filled;
                }
                Step::Empty(count) => {
                    let available = consumer.refresh(produced);
                    prop_assert_eq!(u64::from(available), published - emptied);
                    let count = (*count).min(available);
                    consumer.empty(count);
                    emptied += u64::from(count);
                }
                Step::Release => {
                    consumer.release(consumed);
                    released = emptied;
                }
            }
            producer.refresh(consumed);
            prop_assert_eq!(producer.pushed(), filled);
            prop_assert_eq!(producer.consumed(), released);
            prop_assert_eq!(consumer.popped(), emptied);
            prop_assert!(!producer.is_dead() && !consumer.is_dead());
        }
        Ok(())
    }

    proptest! {
        #[test]
        fn indices_follow_the_model(posted: bool, log2 in 6..15_u32, steps in steps()) {
            run(posted, 1 << log2, &steps)?;
        }

        #[test]
        fn no_index_of_the_peer_makes_more_slots_than_the_ring_has(
            posted: bool,
            log2 in 0..15_u32,
            values in proptest::collection::vec(any::<u16>(), 1..50),
        ) {
            let slots = 1 << log2;
            let mut producer = if posted { Producer::of_posted(slots) } else { Producer::of_emptied(slots) };
            let mut consumer =
                if posted { Consumer::posting_buffers(slots) } else { Consumer::reporting_emptied(slots) };
            let own = AtomicU16::new(0);
            for value in values {
                let peer = AtomicU16::new(value);
                let free = producer.refresh(&peer);
                prop_assert!(free <= slots);
                prop_assert!(!producer.is_dead() || free == 0);
                producer.fill(free);
                producer.publish(&own);
                let available = consumer.refresh(&peer);
                prop_assert!(available <= slots);
                prop_assert!(!consumer.is_dead() || available == 0);
                consumer.empty(available);
                consumer.release(&own);
            }
        }
    }

    #[test]
    fn positions_survive_many_wraps_of_the_index() -> Result<(), TestCaseError> {
        let steps: Vec<Step> = (0..200_000)
            .flat_map(|_| [Step::Fill(64), Step::Publish, Step::Empty(64), Step::Release])
            .collect();
        run(true, 64, &steps)?;
        run(false, 1024, &steps)
    }
}
