//! The generic cell rate algorithm in 64 bits: one number per bucket says when it is full again.
//!
//! ITU-T I.371, annex A. A bucket is its theoretical arrival time: what has been sent is paid for by then. A bucket
//! whose time has passed is full, and equal to one that was never used.

/// Parts of a nanosecond. A byte at 100 Gbit/s takes 0.08 ns, so nanoseconds alone would be too coarse. 64 bits last for
/// 9 years of a machine's uptime.
const PARTS: u64 = 64;
/// Fractional bits of an interval.
const FRACTION: u32 = 32;

/// A point in time, or a span, in parts of nanoseconds.
pub(super) type Parts = u64;

/// Parts of nanoseconds.
pub(super) const fn parts(ns: u64) -> Parts {
    ns.saturating_mul(PARTS)
}

/// Whole nanoseconds, rounded up.
pub(super) const fn ns(parts: Parts) -> u64 {
    parts.div_ceil(PARTS)
}

/// How much may pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Limit {
    /// The time of one unit (a packet or a byte), in parts, with [`FRACTION`] fractional bits.
    interval: u128,
    /// The time of the whole burst.
    tolerance: Parts,
}

impl Limit {
    /// `amount` units in `per_ns` nanoseconds, and `burst` units at once. Both are above 0.
    pub(super) fn new(amount: u64, per_ns: u64, burst: u64) -> Limit {
        let interval = (u128::from(parts(per_ns)) << FRACTION).div_ceil(u128::from(amount.max(1)));
        Limit {
            interval,
            tolerance: time(interval, burst),
        }
    }

    /// The time until a bucket is full that owes all it can, rounded up to whole nanoseconds.
    pub(super) fn most(&self) -> Parts {
        parts(ns(self.tolerance))
    }

    /// Takes `units` from the bucket `full_at` (the time when it is full again). The new time, or [`None`] if there are
    /// not as many.
    #[inline(always)]
    pub(super) fn take(&self, full_at: Parts, now: Parts, units: u64) -> Option<Parts> {
        let after = full_at.max(now).saturating_add(time(self.interval, units));
        (after - now <= self.tolerance).then_some(after)
    }
}

/// The time of some units, rounded up: a limit is never exceeded by rounding.
#[inline(always)]
fn time(interval: u128, units: u64) -> Parts {
    // An interval is at most 2^67 (one bit in a second, in bytes), and units are less than 2^40.
    let exact = interval.saturating_mul(u128::from(units));
    let parts = (exact >> FRACTION) + u128::from(exact & ((1 << FRACTION) - 1) != 0);
    u64::try_from(parts).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;
    use std::time::Duration;

    use governor::clock::FakeRelativeClock;
    use governor::{Quota, RateLimiter};
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// governor counts in whole nanoseconds, so the rates are divisors of 10^9.
        #[test]
        fn it_decides_as_governor_does(
            zeros in 0..9_u32, fives in 0..3_u32, burst in 1..200_u32,
            packets in prop::collection::vec((0..5_000_000_u64, 1..20_u32), 1..300),
        ) {
            let rate = 10_u32.pow(zeros.min(6)) * 5_u32.pow(fives);
            let clock = FakeRelativeClock::default();
            let quota = Quota::per_second(NonZeroU32::new(rate).unwrap()).allow_burst(NonZeroU32::new(burst).unwrap());
            let theirs = RateLimiter::direct_with_clock(quota, clock.clone());
            let ours = Limit::new(rate.into(), 1_000_000_000, burst.into());
            let (mut now, mut full_at) = (0, 0);
            for (gap, units) in packets {
                now += gap;
                clock.advance(Duration::from_nanos(gap));
                let expected = matches!(theirs.check_n(NonZeroU32::new(units).unwrap()), Ok(Ok(())));
                let after = ours.take(full_at, parts(now), units.into());
                prop_assert_eq!(after.is_some(), expected, "{} units at {} ns", units, now);
                full_at = after.unwrap_or(full_at);
            }
        }

        /// In any span no more passes than the burst and what the rate gives; and a sender who always has packets gets
        /// all of that but a packet and the rounding.
        #[test]
        fn what_passes_is_what_may_pass(
            mbit in 1..100_000_u64, burst in 2000..100_000_u64,
            packets in prop::collection::vec((0..2000_u64, 60..1500_u64), 100..400),
        ) {
            let limit = Limit::new(mbit * 1_000_000, 8_000_000_000, burst);
            let (mut now, mut full_at, mut passed, mut offered) = (0, 0, 0, 0);
            let mut has_refused = false;
            for (gap, bytes) in packets {
                now += gap;
                offered += bytes;
                match limit.take(full_at, parts(now), bytes) {
                    Some(after) => {
                        full_at = after;
                        passed += bytes;
                    }
                    None => has_refused = true,
                }
                let may = burst as f64 + mbit as f64 * 1e6 * now as f64 / 8e9;
                prop_assert!(passed as f64 <= may, "{} of {}", passed, may);
            }
            prop_assert!(has_refused || passed == offered);
        }
    }

    #[test]
    fn a_long_run_gives_the_rate() {
        // 64-byte packets at 10 Gbit/s take 51.2 ns each; offered are twice as many.
        let limit = Limit::new(10_000_000_000, 8_000_000_000, 2000);
        let (mut full_at, mut passed) = (0, 0_u64);
        for packet in 0..1_000_000_u64 {
            if let Some(after) = limit.take(full_at, parts(packet * 256 / 10), 64) {
                full_at = after;
                passed += 1;
            }
        }
        assert!((499_000..=500_040).contains(&passed), "{passed}");
    }

    #[test]
    fn extremes_do_not_overflow() {
        let slow = Limit::new(1, 8_000_000_000, u64::MAX);
        assert!(slow.take(u64::MAX, 1, 65_536).is_some());
        let none = Limit::new(u64::MAX, 1, 1);
        assert!(none.take(0, u64::MAX, u64::MAX).is_none() || none.tolerance > 0);
    }
}
