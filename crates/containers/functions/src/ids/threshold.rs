//! How many records a rule writes about one address.

use std::collections::HashMap;
use std::net::IpAddr;

use model::Nanos;

use super::flows::Keyed;
use super::rule::{Threshold, ThresholdKind};

/// Pairs of a rule and an address that are counted, at most. Matches of others are recorded without a limit.
pub const THRESHOLDS_LIMIT: usize = 16_384;

/// The counters of an interval.
#[derive(Clone, Copy, Debug)]
struct Interval {
    ends: Nanos,
    count: u32,
}

/// Matches by rule and address.
#[derive(Debug)]
pub(super) struct Thresholds {
    intervals: HashMap<(u32, IpAddr), Interval, Keyed>,
    /// Matches that found no room here.
    pub(super) over_limit: u64,
    next_sweep: Nanos,
}

impl Thresholds {
    pub(super) fn new(seed: u64) -> Thresholds {
        Thresholds {
            intervals: HashMap::with_hasher(Keyed::new(seed)),
            over_limit: 0,
            next_sweep: Nanos::ZERO,
        }
    }

    /// Counts a match of the rule with that number; whether it is to be recorded.
    pub(super) fn count(&mut self, sid: u32, of: Threshold, address: IpAddr, now: Nanos) -> bool {
        let new = Interval {
            ends: now + Nanos::from_secs(of.seconds.into()),
            count: 0,
        };
        if self.intervals.len() >= THRESHOLDS_LIMIT && !self.intervals.contains_key(&(sid, address)) {
            self.over_limit += 1;
            return true;
        }
        let interval = self.intervals.entry((sid, address)).or_insert(new);
        if interval.ends <= now {
            *interval = new;
        }
        interval.count = interval.count.saturating_add(1);
        match of.kind {
            ThresholdKind::Limit => interval.count <= of.count,
            ThresholdKind::Threshold => interval.count.is_multiple_of(of.count),
            ThresholdKind::Both => interval.count == of.count,
        }
    }

    /// Forgets intervals that have ended, once a second.
    pub(super) fn sweep(&mut self, now: Nanos) {
        if now < self.next_sweep {
            return;
        }
        self.next_sweep = now + Nanos::from_secs(1);
        self.intervals.retain(|_, interval| interval.ends > now);
    }
}
