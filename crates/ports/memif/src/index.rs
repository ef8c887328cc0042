//! Ownership of ring slots: the arithmetic and memory ordering of the two shared indices, and nothing else.
//!
//! A ring has `slots` (a power of two) slots and two free-running 16-bit indices. The client writes `head`
//! and the server writes `tail`, in both directions. Their meaning depends on the direction:
//!
//! ```text
//!   client to server: head = filled up to here          tail = emptied up to here
//!   server to client: head = empty buffers posted up to here   tail = filled up to here
//! ```
//!
//! A producer owns the index that says how far it has filled. It reads the consumer's index, and adding
//! [`Producer::bias`] gives its limit: the bias is `slots` if the consumer reports emptied slots, 0 if it
//! posts buffers. A [`Consumer`] mirrors that. Both directions otherwise share one code path.
//!
//! **Contract.** One thread drives a [`Producer`], one the [`Consumer`], and each index has one writer. An
//! index is stored with release after its slots were written (or read), and loaded with acquire before they
//! are used. The peer is not trusted: an index that moves back, or beyond the slots it was given, marks this
//! end `dead`, and it offers no more slots. Loom runs this code through every interleaving
//! (`tests/index_interleavings.rs` includes the file).

use core::sync::atomic::{AtomicU16, Ordering};

/// An index in shared memory: the processor's atomics, or loom's in the loom test.
pub(crate) trait SharedIndex {
    /// Loads it; everything that the peer did before storing it is visible.
    fn load_acquire(&self) -> u16;
    /// Stores it; everything that this side did before is visible to a peer that loads it.
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
    /// Added to the consumer's index to get the first slot that may not be filled.
    bias: u16,
    /// The next slot to fill (free-running).
    next: u16,
    /// The value last published to the consumer.
    published: u16,
    /// The first slot that may not be filled, as last read (free-running).
    limit: u16,
    /// `next` and `limit` without wrapping: positions since the ring started.
    pushed: u64,
    limit_position: u64,
    dead: bool,
}

impl Producer {
    /// A producer whose consumer reports emptied slots (client to server).
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

    /// A producer whose consumer posts empty buffers (server to client). It has no free slot until the client
    /// posts some.
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

    /// The same, where an earlier run left the ring: its own index and the consumer's. What that run had filled and
    /// not published is to be filled again.
    pub(crate) fn resumed(mut self, own: u16, consumer: u16) -> Producer {
        self.next = own;
        self.published = own;
        self.limit = consumer.wrapping_add(self.bias);
        if self.known_free() > self.slots {
            self.kill();
        }
        self.limit_position = u64::from(self.slots);
        self.pushed = u64::from(self.slots - self.known_free());
        self
    }

    /// Free slots, without reading the consumer's index.
    #[inline(always)]
    pub(crate) fn known_free(&self) -> u16 {
        self.limit.wrapping_sub(self.next)
    }

    /// The next slot to fill, free-running.
    #[inline(always)]
    pub(crate) fn next(&self) -> u16 {
        self.next
    }

    /// Reads the consumer's index and returns the free slots.
    #[inline]
    pub(crate) fn refresh(&mut self, consumer: &impl SharedIndex) -> u16 {
        let limit = consumer.load_acquire().wrapping_add(self.bias);
        let advance = limit.wrapping_sub(self.limit);
        if advance == 0 || self.dead {
            return self.known_free();
        }
        // The consumer may go as far as the published index; then every slot is free.
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

    /// Advances over `slots` slots that the caller has filled.
    #[inline(always)]
    pub(crate) fn fill(&mut self, slots: u16) {
        debug_assert!(slots <= self.known_free());
        self.next = self.next.wrapping_add(slots);
        self.pushed += u64::from(slots);
    }

    /// Publishes all filled slots to the consumer; false if there were none.
    #[inline(always)]
    pub(crate) fn publish(&mut self, own: &impl SharedIndex) -> bool {
        if self.published == self.next || self.dead {
            return false;
        }
        self.published = self.next;
        own.store_release(self.next);
        true
    }

    /// Whether filled slots wait for [`Producer::publish`].
    #[inline(always)]
    pub(crate) fn has_unpublished(&self) -> bool {
        self.published != self.next
    }

    /// Slots filled since the ring started.
    #[inline(always)]
    pub(crate) fn pushed(&self) -> u64 {
        self.pushed
    }

    /// Slots emptied since the ring started, as last read.
    #[inline(always)]
    pub(crate) fn consumed(&self) -> u64 {
        self.limit_position.saturating_sub(u64::from(self.slots))
    }

    /// Whether the consumer violated the protocol; no slot is free then.
    #[inline(always)]
    pub(crate) fn is_dead(&self) -> bool {
        self.dead
    }

    /// Stops using the ring because of a bad descriptor.
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
    /// The value last released to the producer (without the bias).
    released: u16,
    /// The first slot not filled, as last read (free-running).
    filled: u16,
    popped: u64,
    dead: bool,
}

impl Consumer {
    /// A consumer that reports emptied slots (client to server).
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

    /// A consumer that posts empty buffers (server to client). Call [`Consumer::post_all`] first.
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

    /// The same, where an earlier run left the ring: its own index. What that run had emptied and not released is to
    /// be emptied again.
    pub(crate) fn resumed(mut self, own: u16) -> Consumer {
        self.next = own.wrapping_sub(self.bias);
        self.released = self.next;
        self.filled = self.next;
        self
    }

    /// Slots of the ring.
    pub(crate) fn slots(&self) -> u16 {
        self.slots
    }

    /// Advances over slots that an earlier run emptied.
    pub(crate) fn skip(&mut self, slots: u16) {
        self.next = self.next.wrapping_add(slots);
    }

    /// The slots that were emptied and not released: the first, and how many.
    #[inline(always)]
    pub(crate) fn unreleased(&self) -> (u16, u16) {
        (self.released, self.next.wrapping_sub(self.released))
    }

    /// What [`Consumer::release`] would store.
    #[inline(always)]
    pub(crate) fn position(&self) -> u16 {
        self.next.wrapping_add(self.bias)
    }

    /// Posts the whole ring of empty buffers, once, when the link is established.
    pub(crate) fn post_all(&self, own: &impl SharedIndex) {
        own.store_release(self.next.wrapping_add(self.bias));
    }

    /// Filled slots, without reading the producer's index.
    #[inline(always)]
    pub(crate) fn known_filled(&self) -> u16 {
        self.filled.wrapping_sub(self.next)
    }

    /// The next slot to empty, free-running.
    #[inline(always)]
    pub(crate) fn next(&self) -> u16 {
        self.next
    }

    /// Reads the producer's index and returns the filled slots.
    #[inline]
    pub(crate) fn refresh(&mut self, producer: &impl SharedIndex) -> u16 {
        let filled = producer.load_acquire();
        let advance = filled.wrapping_sub(self.filled);
        if advance == 0 || self.dead {
            return self.known_filled();
        }
        // The producer may fill released slots only.
        let most = self.slots.wrapping_sub(self.filled.wrapping_sub(self.released));
        if advance > most {
            self.dead = true;
            self.filled = self.next;
            return 0;
        }
        self.filled = filled;
        self.known_filled()
    }

    /// Advances over `slots` slots that the caller has emptied.
    #[inline(always)]
    pub(crate) fn empty(&mut self, slots: u16) {
        debug_assert!(slots <= self.known_filled());
        self.next = self.next.wrapping_add(slots);
        self.popped += u64::from(slots);
    }

    /// Releases all emptied slots to the producer.
    #[inline(always)]
    pub(crate) fn release(&mut self, own: &impl SharedIndex) {
        if self.released != self.next && !self.dead {
            self.released = self.next;
            own.store_release(self.next.wrapping_add(self.bias));
        }
    }

    /// Slots emptied since the ring started.
    #[inline(always)]
    pub(crate) fn popped(&self) -> u64 {
        self.popped
    }

    /// Whether the producer violated the protocol; no slot is filled then.
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
        // The producer owns head in client to server, and tail in server to client.
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
        // The model: counts since the start.
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
        fn indices_match_the_model(posted: bool, log2 in 6..15_u32, steps in steps()) {
            run(posted, 1 << log2, &steps)?;
        }

        #[test]
        fn a_peers_index_never_yields_more_slots_than_the_ring_has(
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
    fn positions_survive_index_wraps() -> Result<(), TestCaseError> {
        let steps: Vec<Step> = (0..200_000)
            .flat_map(|_| [Step::Fill(64), Step::Publish, Step::Empty(64), Step::Release])
            .collect();
        run(true, 64, &steps)?;
        run(false, 1024, &steps)
    }
}
