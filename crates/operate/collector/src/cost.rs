use serde::{Deserialize, Serialize};

use crate::SAMPLE_PERIOD;

/// The cost of sampling and the regularity of its period.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cost {
    /// Total nanoseconds of all samples, including reading the counters.
    pub samples: u64,
    /// Nanoseconds of the last one.
    pub total_ns: u64,
    /// Nanoseconds of the slowest one.
    pub last_ns: u64,
    /// Samples more than one period late.
    pub max_ns: u64,
    /// Samples that came more than one period late.
    pub late: u64,
    /// The longest time between two samples, in nanoseconds.
    pub longest_gap_ns: u64,
}

impl Cost {
    /// Mean nanoseconds per sample, 0 before the first.
    pub const fn mean_ns(&self) -> u64 {
        match self.samples {
            0 => 0,
            samples => self.total_ns / samples,
        }
    }

    pub(crate) fn sampled(&mut self, gap_ns: u64) {
        self.samples += 1;
        self.longest_gap_ns = self.longest_gap_ns.max(gap_ns);
        if gap_ns > 2 * SAMPLE_PERIOD.0 {
            self.late += 1;
        }
    }

    pub(crate) fn record(&mut self, ns: u64) {
        self.last_ns = ns;
        self.total_ns = self.total_ns.saturating_add(ns);
        self.max_ns = self.max_ns.max(ns);
    }
}
