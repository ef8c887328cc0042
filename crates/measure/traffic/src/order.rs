//! Tracks the returned packets of one flow: in order, late, duplicate or missing.

/// How far behind the newest packet late and duplicate packets are distinguished, in packets. A flow with
/// loss keeps this many bits (512 B). Four rings of 1024 slots.
pub const WINDOW: u64 = 4096;
const WORDS: usize = (WINDOW / 64) as usize;

/// The classification of an arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// After all earlier arrivals.
    InOrder,
    /// New, but sent before one that has already arrived.
    Reordered,
    /// Arrived before.
    Duplicate,
    /// More than [`WINDOW`] packets behind, in a flow with losses: late or duplicate, indistinguishable.
    BeyondWindow,
}

/// The returned packets of a flow. Exact without loss; with loss, exact within [`WINDOW`] packets.
#[derive(Clone, Debug, Default)]
pub struct OrderTracker {
    /// The highest sequence number that arrived, plus one.
    next: u64,
    /// Numbers below `next` that have not arrived.
    holes: u64,
    /// Which of the last `WINDOW` numbers arrived; allocated at the first hole.
    came: Option<Box<[u64; WORDS]>>,
}

impl OrderTracker {
    /// Records the arrival of a sequence number.
    pub fn arrive(&mut self, sequence: u64) -> Arrival {
        if sequence >= self.next {
            let skipped = sequence - self.next;
            if skipped > 0 {
                self.skip(sequence);
            }
            self.next = sequence + 1;
            if let Some(came) = &mut self.came {
                set(came, sequence);
            }
            return Arrival::InOrder;
        }
        if self.holes == 0 {
            return Arrival::Duplicate;
        }
        if self.next - sequence > WINDOW {
            return Arrival::BeyondWindow;
        }
        match &mut self.came {
            Some(came) if !is_set(came, sequence) => {
                set(came, sequence);
                self.holes -= 1;
                Arrival::Reordered
            }
            _ => Arrival::Duplicate,
        }
    }

    /// Marks the numbers from `next` up to, but excluding, `to` as missing.
    fn skip(&mut self, to: u64) {
        // Without a window every earlier number has arrived.
        let came = self.came.get_or_insert_with(|| Box::new([u64::MAX; WORDS]));
        let missing = to - self.next;
        self.holes += missing;
        if missing >= WINDOW {
            came.fill(0);
        } else {
            for sequence in self.next..to {
                clear(came, sequence);
            }
        }
    }

    /// Missing numbers below the newest: lost, as far as order can tell.
    pub fn holes(&self) -> u64 {
        self.holes
    }

    /// The highest number that arrived, plus one: later ones are in flight or lost.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Distinct numbers that arrived.
    pub fn received(&self) -> u64 {
        self.next - self.holes
    }
}

const fn place(sequence: u64) -> (usize, u64) {
    let bit = sequence % WINDOW;
    ((bit / 64) as usize, 1 << (bit % 64))
}

fn set(came: &mut [u64; WORDS], sequence: u64) {
    let (word, bit) = place(sequence);
    came[word] |= bit;
}

fn clear(came: &mut [u64; WORDS], sequence: u64) {
    let (word, bit) = place(sequence);
    came[word] &= !bit;
}

fn is_set(came: &[u64; WORDS], sequence: u64) -> bool {
    let (word, bit) = place(sequence);
    came[word] & bit != 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    /// Remembers every number.
    #[derive(Default)]
    struct Naive {
        came: BTreeSet<u64>,
    }

    impl Naive {
        fn arrive(&mut self, sequence: u64) -> Arrival {
            let highest = self.came.last().copied();
            if !self.came.insert(sequence) {
                Arrival::Duplicate
            } else if highest.is_some_and(|highest| sequence < highest) {
                Arrival::Reordered
            } else {
                Arrival::InOrder
            }
        }

        fn holes(&self) -> u64 {
            self.came.last().map_or(0, |last| last + 1) - self.came.len() as u64
        }
    }

    /// Steps forward and back in the stream, mostly small, some as large as the window.
    fn arrivals() -> impl Strategy<Value = Vec<i64>> {
        prop::collection::vec(
            prop_oneof![
                6 => Just(1i64),
                2 => -20i64..20,
                1 => -(WINDOW as i64) + 1..WINDOW as i64,
                1 => 0i64..3 * WINDOW as i64,
            ],
            1..400,
        )
    }

    proptest! {
        #[test]
        fn matches_a_tracker_without_a_window(steps in arrivals()) {
            let (mut ours, mut naive) = (OrderTracker::default(), Naive::default());
            let mut at = 0i64;
            for step in steps {
                at = (at + step).max(0);
                let sequence = at as u64;
                let newest = naive.came.last().map_or(0, |n| n + 1);
                let exact = sequence >= newest || newest - sequence <= WINDOW || naive.holes() == 0;
                let got = ours.arrive(sequence);
                if exact {
                    prop_assert_eq!(got, naive.arrive(sequence));
                } else {
                    prop_assert_eq!(got, Arrival::BeyondWindow);
                }
                prop_assert_eq!(ours.holes(), naive.holes());
                prop_assert_eq!(ours.received(), naive.came.len() as u64);
            }
        }
    }

    #[test]
    fn without_loss_duplicates_are_detected_at_any_distance() {
        let mut t = OrderTracker::default();
        for s in 0..3 * WINDOW {
            assert_eq!(t.arrive(s), Arrival::InOrder);
        }
        assert_eq!(t.arrive(0), Arrival::Duplicate);
        assert!(t.came.is_none(), "no memory without loss");
    }
}
