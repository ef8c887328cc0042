//! The sequence of faults, from the seed alone.

use model::Random;

/// One step: which fault, in which bed, with which randomness.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    /// Index of the fault.
    pub(crate) fault: usize,
    /// Index of the bed.
    pub(crate) bed: usize,
    /// For all choices of the fault.
    pub(crate) random: Random,
}

/// The steps, without end: all faults in a random order, then all again in another one.
#[derive(Debug)]
pub(crate) struct Plan {
    random: Random,
    /// The beds in which each fault can strike.
    beds: Vec<Vec<usize>>,
    /// Faults of the current round that are still to come.
    deck: Vec<usize>,
}

impl Plan {
    /// The steps of a seed; `beds` lists for each fault the beds in which it can strike.
    pub(crate) fn new(seed: u64, beds: Vec<Vec<usize>>) -> Plan {
        Plan {
            random: Random::new(seed),
            beds,
            deck: Vec::new(),
        }
    }
}

impl Iterator for Plan {
    type Item = Step;

    fn next(&mut self) -> Option<Step> {
        if self.deck.is_empty() {
            self.deck = (0..self.beds.len())
                .filter(|fault| !self.beds[*fault].is_empty())
                .collect();
            for last in (1..self.deck.len()).rev() {
                self.deck.swap(last, below(&mut self.random, last + 1));
            }
        }
        let fault = self.deck.pop()?;
        let beds = &self.beds[fault];
        Some(Step {
            fault,
            bed: beds[below(&mut self.random, beds.len())],
            random: Random::new(self.random.bits()),
        })
    }
}

/// A number below `limit`, which is not 0.
pub(crate) fn below(random: &mut Random, limit: usize) -> usize {
    (random.bits() % limit.max(1) as u64) as usize
}

/// A number of milliseconds of a range, both ends included.
pub(crate) fn milliseconds(random: &mut Random, from: u64, to: u64) -> std::time::Duration {
    std::time::Duration::from_millis(from + random.bits() % (to - from + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_its_sequence_and_every_fault_comes_in_each_round() {
        let beds = || vec![vec![0, 1], vec![1], vec![], vec![0, 1, 2]];
        let steps = |seed| -> Vec<(usize, usize, u64)> {
            Plan::new(seed, beds())
                .take(30)
                .map(|mut step| (step.fault, step.bed, step.random.bits()))
                .collect()
        };
        assert_eq!(steps(7), steps(7));
        assert_ne!(steps(7), steps(8));
        for round in steps(7).chunks(3) {
            let mut faults: Vec<_> = round.iter().map(|step| step.0).collect();
            faults.sort_unstable();
            assert_eq!(faults, [0, 1, 3]);
            assert!(round.iter().all(|(fault, bed, _)| beds()[*fault].contains(bed)));
        }
        assert_eq!(Plan::new(1, vec![vec![]]).count(), 0);
    }
}
