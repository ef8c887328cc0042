//! Every interleaving of a producer and a consumer on the two shared indices, by loom. The code under test is
//! the crate's own file with loom's atomics. Slots are loom cells, so that an access that the indices do not
//! order is an error.

#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "../src/index.rs"]
#[allow(
    dead_code,
    unreachable_pub,
    reason = "the file is the crate's own; this uses a part"
)]
mod index;

use index::{Consumer, Producer, SharedIndex};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU16, AtomicU32, Ordering, fence};
use loom::thread;

impl SharedIndex for AtomicU16 {
    fn load_acquire(&self) -> u16 {
        self.load(Ordering::Acquire)
    }

    fn store_release(&self, value: u16) {
        self.store(value, Ordering::Release);
    }
}

const SLOTS: u16 = 2;
/// More than the ring holds, so that slots are reused.
const PACKETS: u32 = 3;

struct Ring {
    head: AtomicU16,
    tail: AtomicU16,
    slots: [UnsafeCell<u32>; SLOTS as usize],
}

// SAFETY: the protocol under test orders the accesses; loom fails the test where it does not.
#[expect(unsafe_code, reason = "loom's cells are shared between threads on purpose")]
unsafe impl Sync for Ring {}

impl Ring {
    fn new() -> Arc<Ring> {
        Arc::new(Ring {
            head: AtomicU16::new(0),
            tail: AtomicU16::new(0),
            slots: [UnsafeCell::new(0), UnsafeCell::new(0)],
        })
    }

    #[expect(unsafe_code, reason = "as above")]
    fn write(&self, index: u16, value: u32) {
        // SAFETY: as above.
        self.slots[usize::from(index % SLOTS)].with_mut(|slot| unsafe { *slot = value });
    }

    #[expect(unsafe_code, reason = "as above")]
    fn read(&self, index: u16) -> u32 {
        // SAFETY: as above.
        self.slots[usize::from(index % SLOTS)].with(|slot| unsafe { *slot })
    }
}

fn exchange(posted: bool) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(move || {
        let ring = Ring::new();
        let there = Arc::clone(&ring);
        let consumer = thread::spawn(move || {
            let (produced, consumed) = if posted {
                (&there.tail, &there.head)
            } else {
                (&there.head, &there.tail)
            };
            let mut consumer = if posted {
                Consumer::posting_buffers(SLOTS)
            } else {
                Consumer::reporting_emptied(SLOTS)
            };
            if posted {
                consumer.post_all(consumed);
            }
            let mut expected = 0;
            while expected < PACKETS {
                if consumer.known_filled() == 0 && consumer.refresh(produced) == 0 {
                    thread::yield_now();
                    continue;
                }
                assert_eq!(
                    there.read(consumer.next()),
                    expected,
                    "packets in order, each once"
                );
                // A client restores the buffer before it releases it.
                if posted {
                    there.write(consumer.next(), u32::MAX);
                }
                consumer.empty(1);
                expected += 1;
                consumer.release(consumed);
            }
            assert!(!consumer.is_dead());
        });
        let (produced, consumed) = if posted {
            (&ring.tail, &ring.head)
        } else {
            (&ring.head, &ring.tail)
        };
        let mut producer = if posted {
            Producer::of_posted(SLOTS)
        } else {
            Producer::of_emptied(SLOTS)
        };
        let mut next = 0;
        while next < PACKETS {
            if producer.known_free() == 0 && producer.refresh(consumed) == 0 {
                thread::yield_now();
                continue;
            }
            ring.write(producer.next(), next);
            producer.fill(1);
            next += 1;
            producer.publish(produced);
        }
        consumer.join().unwrap();
        assert!(!producer.is_dead());
        producer.refresh(consumed);
        assert_eq!(producer.consumed(), u64::from(PACKETS));
    });
}

#[test]
fn client_to_server_is_ordered() {
    exchange(false);
}

#[test]
fn server_to_client_is_ordered() {
    exchange(true);
}

/// The protocol of `wait` and `flush`: unmask, fence, check again, sleep; publish, fence, check the mask,
/// wake. The consumer never sleeps on a filled ring without a pending wake-up.
#[test]
fn no_wake_up_is_lost() {
    loom::model(|| {
        let ring = Ring::new();
        let masked = Arc::new(AtomicU16::new(1));
        let raised = Arc::new(AtomicU32::new(0));
        let (ring2, masked2, raised2) = (Arc::clone(&ring), Arc::clone(&masked), Arc::clone(&raised));
        let producer = thread::spawn(move || {
            let mut producer = Producer::of_emptied(SLOTS);
            ring2.write(producer.next(), 1);
            producer.fill(1);
            producer.publish(&ring2.head);
            fence(Ordering::SeqCst);
            if masked2.load(Ordering::Relaxed) == 0 {
                raised2.fetch_add(1, Ordering::SeqCst);
            }
        });
        let mut consumer = Consumer::reporting_emptied(SLOTS);
        masked.store(0, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let sleeps = consumer.refresh(&ring.head) == 0;
        producer.join().unwrap();
        if sleeps {
            assert_eq!(
                raised.load(Ordering::SeqCst),
                1,
                "asleep on a filled ring without a pending wake-up"
            );
        }
    });
}
