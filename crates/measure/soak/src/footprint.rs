//! What a run has of the machine, and what it has more at the end than at the beginning.

use std::ops::AddAssign;
use std::time::Duration;

use serde::Serialize;

/// Memory that may be more at the end, whatever the length of the run, in kB: histories that fill, and fragmentation.
const NOISE_KILOBYTES: u64 = 8 << 10;
/// Growth beyond that which counts as a leak, in kB per hour.
const GROWTH_LIMIT: u64 = 1 << 10;

/// What the beds have at rest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Footprint {
    /// Processes, those in containers included.
    pub(crate) processes: u64,
    /// Control groups of containers.
    pub(crate) cgroups: u64,
    /// Mounts.
    pub(crate) mounts: u64,
    /// Open files of inco and its launcher.
    pub(crate) descriptors: u64,
    /// Private memory of inco and its launcher, in kB.
    pub(crate) kilobytes: u64,
}

impl AddAssign for Footprint {
    fn add_assign(&mut self, other: Footprint) {
        self.processes += other.processes;
        self.cgroups += other.cgroups;
        self.mounts += other.mounts;
        self.descriptors += other.descriptors;
        self.kilobytes += other.kilobytes;
    }
}

/// What is more at the end than after the warm-up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Leaks {
    pub(crate) processes: u64,
    pub(crate) cgroups: u64,
    pub(crate) mounts: u64,
    pub(crate) descriptors: u64,
    pub(crate) kilobytes_per_hour: u64,
}

impl Leaks {
    /// Compares two footprints at rest, `between` them.
    pub(crate) fn between(first: &Footprint, last: &Footprint, between: Duration) -> Leaks {
        let grown = last.kilobytes.saturating_sub(first.kilobytes);
        let hours = between.as_secs_f64() / 3600.0;
        Leaks {
            processes: last.processes.saturating_sub(first.processes),
            cgroups: last.cgroups.saturating_sub(first.cgroups),
            mounts: last.mounts.saturating_sub(first.mounts),
            descriptors: last.descriptors.saturating_sub(first.descriptors),
            kilobytes_per_hour: (grown as f64 / hours.max(1e-6)).round() as u64,
        }
    }

    /// Whether nothing leaks, in a run of this length.
    pub(crate) fn is_none(&self, between: Duration) -> bool {
        let hours = between.as_secs_f64() / 3600.0;
        let allowed = GROWTH_LIMIT as f64 + NOISE_KILOBYTES as f64 / hours.max(1e-6);
        self.processes + self.cgroups + self.mounts + self.descriptors == 0
            && self.kilobytes_per_hour as f64 <= allowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_more_is_a_leak_and_what_is_less_is_not() {
        let first = Footprint {
            processes: 9,
            cgroups: 4,
            mounts: 6,
            descriptors: 50,
            kilobytes: 10_000,
        };
        let minutes = |n: u64| Duration::from_secs(60 * n);
        assert!(Leaks::between(&first, &first, minutes(5)).is_none(minutes(5)));
        let less = Footprint {
            processes: 8,
            descriptors: 40,
            kilobytes: 9_000,
            ..first
        };
        assert_eq!(Leaks::between(&first, &less, minutes(5)), Leaks::default());
        let more = Footprint {
            descriptors: 51,
            ..first
        };
        assert!(!Leaks::between(&first, &more, minutes(5)).is_none(minutes(5)));
        // 5 MB are noise in five minutes, 20 MB in an hour are not.
        let grown = |kilobytes| Footprint {
            kilobytes: first.kilobytes + kilobytes,
            ..first
        };
        let leaks = Leaks::between(&first, &grown(5_000), minutes(5));
        assert_eq!(leaks.kilobytes_per_hour, 60_000);
        assert!(leaks.is_none(minutes(5)));
        assert!(!Leaks::between(&first, &grown(20_000), minutes(60)).is_none(minutes(60)));
    }
}
