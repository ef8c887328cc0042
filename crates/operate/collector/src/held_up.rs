//! The share of time in which an instance could not run.

use model::Nanos;

use crate::HELD_WINDOW;

/// From how long on without a report an instance was not held up. Reports of one that takes packets are 200 ms apart.
const REPORTED_WITHIN: Nanos = Nanos(2 * HELD_WINDOW.0);

/// A mean over [`HELD_WINDOW`]. A report is of the time since the report before: it may be of many samples.
#[derive(Debug, Default)]
pub(crate) struct HeldUp {
    share: f64,
    reported_at: Nanos,
}

impl HeldUp {
    /// Whether nothing changes while nothing is reported.
    pub(crate) fn is_zero(&self) -> bool {
        self.share == 0.0
    }

    /// Takes a report: for how long the instance could not run. Returns the mean share.
    pub(crate) fn report(&mut self, held_up: Nanos, now: Nanos, dt: Nanos) -> f64 {
        let since = now.since(self.reported_at).min(HELD_WINDOW).max(dt);
        self.reported_at = now;
        self.turn(held_up.0 as f64 / since.0.max(1) as f64, since)
    }

    /// A sample without a report. Returns the mean share.
    pub(crate) fn none(&mut self, now: Nanos, dt: Nanos) -> f64 {
        match now.since(self.reported_at) > REPORTED_WITHIN {
            true => self.turn(0.0, dt),
            false => self.share,
        }
    }

    fn turn(&mut self, share: f64, span: Nanos) -> f64 {
        let weight = -(-span.as_secs_f64() / HELD_WINDOW.as_secs_f64()).exp_m1();
        self.share += weight * (share.min(1.0) - self.share);
        if self.share < 1e-6 {
            self.share = 0.0;
        }
        self.share
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The share after a second in which an instance is held up for eight of ten milliseconds and that is reported
    /// every so many milliseconds; the lowest and the highest within the next one.
    fn reported_every(ms: u64) -> [f64; 2] {
        let mut held_up = HeldUp::default();
        let mut seen = [1.0_f64, 0.0];
        for now in 1..=3_000 {
            let at = Nanos::from_millis(now);
            let dt = Nanos::from_millis(1);
            let share = match now % ms == 0 {
                true => held_up.report(Nanos::from_micros(ms * 800), at, dt),
                false => held_up.none(at, dt),
            };
            if now > 2_000 {
                seen = [seen[0].min(share), seen[1].max(share)];
            }
        }
        seen
    }

    #[test]
    fn the_share_does_not_depend_on_how_often_it_is_reported() {
        for ms in [10, 20, 100, 200] {
            let [low, high] = reported_every(ms);
            assert!(low > 0.79 && high < 0.81, "every {ms} ms: {low} to {high}");
        }
    }

    #[test]
    fn it_ends_when_nothing_is_reported() {
        let mut held_up = HeldUp::default();
        let dt = Nanos::from_millis(1);
        for now in 1..=10 {
            held_up.report(Nanos::from_millis(100), Nanos::from_millis(now * 100), dt);
        }
        for ms in 1_001..=1_500 {
            assert!(
                held_up.none(Nanos::from_millis(ms), dt) > 0.95,
                "the next report may be on its way"
            );
        }
        for ms in 1_501..3_000 {
            held_up.none(Nanos::from_millis(ms), dt);
        }
        assert!((1e-6..0.01).contains(&held_up.share), "{held_up:?}");
        for ms in 3_000..6_000 {
            held_up.none(Nanos::from_millis(ms), dt);
        }
        assert!(held_up.is_zero());
    }

    #[test]
    fn a_report_after_a_long_time_counts_at_once() {
        let mut held_up = HeldUp::default();
        let share = held_up.report(
            Nanos::from_millis(250),
            Nanos::from_secs(60),
            Nanos::from_millis(1),
        );
        assert!(share > 0.6, "{share}");
    }
}
