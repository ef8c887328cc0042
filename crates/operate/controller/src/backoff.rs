use model::Nanos;

use crate::settings::{BACK_OFF_FIRST, BACK_OFF_LONGEST};

/// Exponential back-off: the wait doubles with each consecutive failure, from 1 s to 60 s.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct BackOff {
    failures: u32,
    failed_at: Nanos,
    until: Nanos,
}

impl BackOff {
    /// Records a failure and returns the wait until the next try. Failures during a wait belong to earlier tries and
    /// count as one.
    pub(crate) fn failed(&mut self, now: Nanos) -> Nanos {
        self.failed_at = now;
        if self.failures > 0 && now < self.until {
            return self.until.since(now);
        }
        let doubled = BACK_OFF_FIRST
            .0
            .saturating_mul(1u64.checked_shl(self.failures).unwrap_or(u64::MAX));
        let wait = Nanos(doubled.min(BACK_OFF_LONGEST.0));
        self.failures = self.failures.saturating_add(1);
        self.until = now + wait;
        wait
    }

    /// Records that a try begun at `since` has worked for long enough. Resets the back-off unless a failure came
    /// after `since`.
    pub(crate) fn worked_since(&mut self, since: Nanos) {
        if since > self.failed_at {
            self.worked();
        }
    }

    /// Whether the last try failed.
    pub(crate) fn has_failed(&self) -> bool {
        self.failures > 0
    }

    /// When the next try is permitted.
    pub(crate) fn until(&self) -> Nanos {
        self.until
    }

    /// Resets the back-off.
    pub(crate) fn worked(&mut self) {
        *self = BackOff::default();
    }

    /// Ends the wait and keeps the failure count. Used when the obstacle is gone but success is not yet certain.
    pub(crate) fn retry_now(&mut self) {
        self.until = Nanos::ZERO;
    }

    /// Whether a try is permitted now.
    pub(crate) fn is_over(&self, now: Nanos) -> bool {
        now >= self.until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_doubles_from_one_second_to_sixty_and_begins_again() {
        let mut back_off = BackOff::default();
        let mut now = Nanos::from_secs(100);
        assert!(back_off.is_over(now));
        for expected in [1, 2, 4, 8, 16, 32, 60, 60] {
            let wait = back_off.failed(now);
            assert_eq!(wait, Nanos::from_secs(expected));
            assert!(!back_off.is_over(now + wait - Nanos(1)) && back_off.is_over(now + wait));
            // Four tries begun together fail together and count as one failure.
            let half = Nanos(wait.0 / 2);
            assert_eq!(back_off.failed(now + half), wait - half);
            now = now + wait;
        }
        back_off.worked();
        assert_eq!(back_off.failed(now), Nanos::from_secs(1));
    }

    #[test]
    fn what_has_worked_since_before_a_failure_does_not_end_the_wait() {
        let mut back_off = BackOff::default();
        let now = Nanos::from_secs(100);
        back_off.failed(now);
        back_off.worked_since(Nanos::from_secs(50));
        assert!(!back_off.is_over(now));
        back_off.worked_since(Nanos::from_secs(101));
        assert!(back_off.is_over(now));
    }
}
