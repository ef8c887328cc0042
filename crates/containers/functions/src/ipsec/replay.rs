//! The anti-replay window: which sequence numbers have come (RFC 4303, section 3.4.3, and appendix A for extended
//! ones). The bits lie in a ring of blocks, so that no bit moves when the window does (RFC 6479).

/// Sequence numbers of the smallest window: RFC 4303 asks for 32 at least and recommends 64.
pub const WINDOW_MIN: u32 = 64;
/// Sequence numbers of the largest window.
pub const WINDOW_LIMIT: u32 = 1024;
/// Blocks of the ring: one more than the largest window needs, rounded up to a power of two.
pub(super) const BLOCKS: usize = 32;
const BLOCK_BITS: u64 = 64;

/// Why a sequence number is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// A packet with this number has come already.
    Duplicate,
    /// It lies before the window: nobody knows whether it has come.
    Old,
}

/// A window over sequence numbers from 1 on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Window {
    size: u64,
    /// The highest sequence number that has come, 0 before the first.
    highest: u64,
    bits: [u64; BLOCKS],
}

impl Window {
    /// An empty window over `size` numbers.
    pub(super) fn new(size: u32) -> Window {
        Window {
            size: u64::from(size.clamp(WINDOW_MIN, WINDOW_LIMIT)),
            highest: 0,
            bits: [0; BLOCKS],
        }
    }

    /// The whole number of which a packet carries the lower half (RFC 4303, appendix A2.2). [`None`] if it would lie
    /// before the first one.
    #[inline]
    pub(super) fn extend(&self, low: u32) -> Option<u64> {
        let (top_high, top_low) = ((self.highest >> 32) as u32, self.highest as u32);
        let size = self.size as u32;
        let bottom = top_low.wrapping_sub(size - 1);
        let high = if top_low >= size - 1 {
            // The window lies in one subspace.
            if low >= bottom {
                top_high
            } else {
                top_high.checked_add(1)?
            }
        } else if low >= bottom {
            top_high.checked_sub(1)?
        } else {
            top_high
        };
        Some(u64::from(high) << 32 | u64::from(low))
    }

    /// Whether a packet with that number may come now.
    #[inline]
    pub(super) fn check(&self, sequence: u64) -> Result<(), Refused> {
        if sequence > self.highest {
            return Ok(());
        }
        if sequence == 0 || sequence + self.size <= self.highest {
            return Err(Refused::Old);
        }
        let (block, bit) = place(sequence);
        match self.bits[block] & bit {
            0 => Ok(()),
            _ => Err(Refused::Duplicate),
        }
    }

    /// Notes that the packet with that number, which [`Window::check`] has let pass, is authentic.
    #[inline]
    pub(super) fn accept(&mut self, sequence: u64) {
        let (block, bit) = place(sequence);
        if sequence > self.highest {
            let passed = (sequence / BLOCK_BITS - self.highest / BLOCK_BITS).min(BLOCKS as u64);
            for ahead in 1..=passed {
                let at = (self.highest / BLOCK_BITS + ahead) as usize % BLOCKS;
                self.bits[at] = 0;
            }
            self.highest = sequence;
        }
        self.bits[block] |= bit;
    }

    /// Goes on where another window is; the size stays.
    pub(super) fn take(&mut self, other: &Window) {
        self.highest = other.highest;
        self.bits = other.bits;
    }

    /// The highest number that has come, and the ring's blocks.
    pub(super) fn parts(&self) -> (u64, &[u64; BLOCKS]) {
        (self.highest, &self.bits)
    }

    /// Learns what another window knows of the same packets. A number that either knows as come stays so; what lies
    /// before the higher of both counts as come where only the lower one could know better.
    pub(super) fn merge(&mut self, highest: u64, bits: &[u64; BLOCKS]) {
        if highest == 0 {
            return;
        }
        let other = Window {
            size: self.size,
            highest,
            bits: *bits,
        };
        let top = self.highest.max(highest);
        let mut merged = Window::new(self.size as u32);
        merged.size = self.size;
        merged.accept(top);
        // Neither knows of more than the ring holds.
        let span = BLOCK_BITS * (BLOCKS as u64 - 1);
        for sequence in top.saturating_sub(span).max(1)..=top {
            if self.knows(sequence) || other.knows(sequence) {
                let (block, bit) = place(sequence);
                merged.bits[block] |= bit;
            }
        }
        *self = merged;
    }

    /// Whether a packet with that number has come, as far as the ring reaches back.
    fn knows(&self, sequence: u64) -> bool {
        let oldest = (self.highest / BLOCK_BITS).saturating_sub(BLOCKS as u64 - 1);
        let (block, bit) = place(sequence);
        sequence <= self.highest && sequence / BLOCK_BITS >= oldest && self.bits[block] & bit != 0
    }
}

#[inline]
fn place(sequence: u64) -> (usize, u64) {
    (
        (sequence / BLOCK_BITS) as usize % BLOCKS,
        1 << (sequence % BLOCK_BITS),
    )
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use proptest::prelude::*;

    /// Numbers near a moving point, with jumps.
    fn steps() -> impl Strategy<Value = Vec<(i64, bool)>> {
        let step = prop_oneof![6 => -1100_i64..20, 3 => 0_i64..4, 1 => 1_i64..5000];
        proptest::collection::vec((step, any::<bool>()), 1..300)
    }

    proptest! {
        #[test]
        fn it_agrees_with_a_set_of_all_numbers(
            size in 64_u32..=1024, start in prop_oneof![Just(1_u64), (1_u64 << 32) - 600..(1 << 32) + 600], steps in steps(),
        ) {
            let mut window = Window::new(size);
            let mut come = HashSet::new();
            let mut highest = 0;
            let mut at = start as i64;
            for (step, is_authentic) in steps {
                at = (at + step).max(0);
                let sequence = at as u64;
                let expected = if sequence == 0 || (sequence <= highest && highest - sequence >= u64::from(size)) {
                    Err(Refused::Old)
                } else if come.contains(&sequence) {
                    Err(Refused::Duplicate)
                } else {
                    Ok(())
                };
                prop_assert_eq!(window.check(sequence), expected);
                if expected.is_ok() && is_authentic {
                    window.accept(sequence);
                    come.insert(sequence);
                    highest = highest.max(sequence);
                }
            }
        }

        /// A sender that is at most half a subspace ahead, and not more than a window behind, is understood.
        #[test]
        fn the_upper_half_is_found(
            size in 64_u32..=1024, highest in 1_u64..1 << 40, ahead in 0_u64..1 << 31, behind in 0_u64..1024,
        ) {
            let mut window = Window::new(size);
            window.accept(highest);
            let later = highest + ahead;
            prop_assert_eq!(window.extend(later as u32), Some(later));
            let earlier = highest.saturating_sub(behind % u64::from(size)).max(1);
            prop_assert_eq!(window.extend(earlier as u32), Some(earlier));
        }

        #[test]
        fn a_merged_window_takes_nothing_that_either_has_taken(
            first in proptest::collection::vec(1_u64..3000, 0..100),
            second in proptest::collection::vec(1_u64..3000, 0..100),
        ) {
            let take = |numbers: &[u64]| {
                let mut window = Window::new(1024);
                for &number in numbers {
                    if window.check(number).is_ok() {
                        window.accept(number);
                    }
                }
                window
            };
            let (mut one, two) = (take(&first), take(&second));
            let both = one.clone();
            let (highest, bits) = two.parts();
            one.merge(highest, bits);
            for number in 1..3100 {
                let is_new = both.check(number).is_ok() && two.check(number).is_ok();
                // Before the window of the higher one nothing is taken.
                let top = both.parts().0.max(two.parts().0);
                prop_assert_eq!(one.check(number).is_ok(), is_new && (number > top || top - number < 1024));
            }
        }
    }

    #[test]
    fn before_the_first_subspace_there_is_none() {
        let window = Window::new(64);
        assert_eq!(window.extend(u32::MAX), None);
        assert_eq!(window.extend(1), Some(1));
    }
}
