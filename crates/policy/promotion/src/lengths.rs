//! How long flows of a kind are, and which threshold would have cost least.
//!
//! A length is the CPU time that the fast path would have saved for all packets of the flow in its first window, in which it has
//! to have saved the threshold. With the threshold `k`, a flow of length `v > k` saves `v − k` and costs a rule; a shorter one
//! saves and costs nothing. The sum over all flows is the gain of `k`.

/// Thresholds, in rules. The greatest one bounds what can be lost by flows that end just above it.
const THRESHOLDS: [f64; 12] = [0.0, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 16.0, 32.0];
/// The threshold before enough is known, in rules.
const UNKNOWN: f64 = 4.0;
/// Flows from which on a threshold is chosen.
const KNOWN: u32 = 16;
/// Flows after which all of them count half: so newer ones count more.
const HALVED_AT: u32 = 4096;
/// How many flows there are between two choices.
const CHOICE: u32 = 8;

#[derive(Clone, Debug)]
pub(crate) struct Lengths {
    rule_ns: f64,
    /// Of the flows above each threshold, and not above the next one: how many, and their lengths together.
    flows: [f64; THRESHOLDS.len()],
    sums: [f64; THRESHOLDS.len()],
    seen: u32,
    is_known: bool,
    threshold: f64,
}

impl Lengths {
    pub(crate) fn new(rule_ns: f64) -> Lengths {
        Lengths {
            rule_ns,
            flows: [0.0; THRESHOLDS.len()],
            sums: [0.0; THRESHOLDS.len()],
            seen: 0,
            is_known: false,
            threshold: UNKNOWN * rule_ns,
        }
    }

    /// A flow was counted.
    pub(crate) fn add(&mut self, saved_ns: f64) {
        let length = saved_ns.max(0.0);
        let above = THRESHOLDS.iter().rposition(|rules| length > rules * self.rule_ns);
        let at = above.unwrap_or(0);
        if let (Some(flows), Some(sum)) = (self.flows.get_mut(at), self.sums.get_mut(at)) {
            *flows += 1.0;
            *sum += length;
        }
        self.seen += 1;
        self.is_known |= self.seen >= KNOWN;
        if self.seen >= HALVED_AT {
            self.seen /= 2;
            for value in self.flows.iter_mut().chain(&mut self.sums) {
                *value /= 2.0;
            }
        }
        if self.is_known && self.seen.is_multiple_of(CHOICE) {
            self.threshold = self.best();
        }
    }

    /// What a flow has to have saved before it is promoted, in nanoseconds.
    pub(crate) fn threshold_ns(&self) -> f64 {
        self.threshold
    }

    /// The threshold with the greatest gain; the greatest one where none has a gain.
    fn best(&self) -> f64 {
        let (mut flows, mut sum) = (0.0, 0.0);
        let (mut best, mut best_gain) = (THRESHOLDS.len() - 1, 0.0);
        for (at, rules) in THRESHOLDS.iter().enumerate().rev() {
            flows += self.flows.get(at).copied().unwrap_or_default();
            sum += self.sums.get(at).copied().unwrap_or_default();
            let gain = sum - flows * (rules + 1.0) * self.rule_ns;
            if gain > best_gain {
                (best, best_gain) = (at, gain);
            }
        }
        THRESHOLDS.get(best).copied().unwrap_or(UNKNOWN) * self.rule_ns
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn learned(lengths: &[(f64, u32)]) -> f64 {
        let mut all = Lengths::new(1.0);
        for _ in 0..200 {
            for (length, times) in lengths {
                (0..*times).for_each(|_| all.add(*length));
            }
        }
        all.threshold_ns()
    }

    #[test]
    fn the_threshold_follows_the_lengths() {
        assert_eq!(Lengths::new(10.0).threshold_ns(), 40.0);
        // All are worth a rule, or none is.
        assert_eq!(learned(&[(2.0, 1)]), 0.0);
        assert_eq!(learned(&[(0.9, 1)]), 32.0);
        // Some are: it lies above the others.
        assert_eq!(learned(&[(0.4, 100), (50.0, 1)]), 0.5);
        assert_eq!(learned(&[(0.9, 100), (1000.0, 1)]), 1.0);
        // Those that are not worth it cost less than to wait.
        assert_eq!(learned(&[(0.9, 1), (3.0, 10)]), 0.0);
    }

    #[test]
    fn what_was_is_forgotten() {
        let mut lengths = Lengths::new(1.0);
        (0..100_000).for_each(|_| lengths.add(0.5));
        assert_eq!(lengths.threshold_ns(), 32.0);
        (0..20_000).for_each(|_| lengths.add(5.0));
        assert_eq!(lengths.threshold_ns(), 0.0);
    }

    proptest! {
        /// Against the sum over the flows themselves: no threshold of those that there are would have cost less.
        #[test]
        fn the_best_threshold_has_the_greatest_gain(
            lengths in proptest::collection::vec(0.0..100.0_f64, 64..500)
        ) {
            let gain = |k: f64| {
                let above = lengths.iter().filter(|length| **length > k);
                above.map(|length| length - k - 1.0).sum::<f64>()
            };
            let mut all = Lengths::new(1.0);
            lengths.iter().for_each(|length| all.add(*length));
            let best = THRESHOLDS.iter().map(|k| gain(*k)).fold(0.0, f64::max);
            prop_assert!(gain(all.best()).max(0.0) >= best - 1e-6);
        }
    }
}
