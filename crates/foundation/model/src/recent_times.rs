//! Percentiles of the times of a second.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::Nanos;

/// Longer times count as this one.
const LONGEST: Nanos = Nanos::from_secs(60);

/// The time within which half of something, and 99 % of it, has ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Percentiles {
    /// Half of it.
    pub p50: Nanos,
    /// 99 % of it.
    pub p99: Nanos,
}

/// Counts times, and gives the percentiles of the last second that is over. A percentile is at most 7 % above the time that
/// was counted. It takes some kilobytes, and allocates nothing after it was made.
#[derive(Clone, Debug)]
pub struct RecentTimes {
    /// One significant figure. There is always one: the bounds are valid.
    counted: Option<Histogram<u32>>,
    since: Nanos,
    last: Option<Percentiles>,
}

impl RecentTimes {
    /// How long times are counted before they are looked at.
    pub const PERIOD: Nanos = Nanos::from_secs(1);

    /// No time so far.
    pub fn new(now: Nanos) -> RecentTimes {
        RecentTimes {
            counted: Histogram::new_with_bounds(1, LONGEST.0, 1).ok(),
            since: now,
            last: None,
        }
    }

    /// Counts a time, so many times.
    #[inline]
    pub fn count(&mut self, time: Nanos, times: u32) {
        if let Some(counted) = &mut self.counted {
            counted.saturating_record_n(time.0.max(1), times);
        }
    }

    /// Whether the second is over: then [`RecentTimes::turn`] is due.
    #[inline]
    pub fn is_due(&self, now: Nanos) -> bool {
        now.since(self.since) >= RecentTimes::PERIOD
    }

    /// Ends the second. The next one begins without a time.
    pub fn turn(&mut self, now: Nanos) {
        self.since = now;
        if let Some(counted) = &mut self.counted {
            let at = |share| Nanos(counted.value_at_quantile(share));
            self.last = (!counted.is_empty()).then(|| Percentiles {
                p50: at(0.5),
                p99: at(0.99),
            });
            counted.reset();
        }
    }

    /// Of the last second that is over; none if nothing was counted in it.
    pub fn last(&self) -> Option<Percentiles> {
        self.last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_those_of_the_last_second_that_is_over() {
        let start = Nanos::from_secs(5);
        let mut times = RecentTimes::new(start);
        assert!(!times.is_due(start + Nanos::from_millis(999)));
        times.count(Nanos::from_micros(10), 98);
        times.count(Nanos::from_millis(3), 2);
        assert_eq!(times.last(), None);
        assert!(times.is_due(start + RecentTimes::PERIOD));
        times.turn(start + RecentTimes::PERIOD);
        let last = times.last().unwrap();
        let near = |is: Nanos, want: Nanos| (want.0..want.0 + want.0 * 7 / 100).contains(&is.0);
        assert!(near(last.p50, Nanos::from_micros(10)), "{last:?}");
        assert!(near(last.p99, Nanos::from_millis(3)), "{last:?}");
        times.turn(start + Nanos::from_secs(2));
        assert_eq!(times.last(), None);
    }

    #[test]
    fn no_time_is_too_short_or_too_long() {
        let mut times = RecentTimes::new(Nanos::ZERO);
        times.count(Nanos::ZERO, 1);
        times.count(Nanos::MAX, 1_000_000);
        times.turn(Nanos::from_secs(1));
        let last = times.last().unwrap();
        assert!(last.p99 >= LONGEST, "{last:?}");
    }
}
