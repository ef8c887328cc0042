//! When the control loop turns.

use collector::SAMPLE_PERIOD;
use model::Nanos;

/// How often it turns while more packets come than usual: a mean of 10 ms shows a rise soon enough to be worth a look.
pub(super) const HASTE: Nanos = Nanos::from_micros(200);
/// For how long after a worker has told of a rise: until an autoscaler has seen it, or it was a single train.
const HASTE_SPAN: Nanos = Nanos::from_millis(3);

/// When the next turn is due: a millisecond after the one before was, or [`HASTE`] after it began while packets rise.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// When the last turn began, and when the next one is due.
    began: Nanos,
    next: Nanos,
    hasty_until: Nanos,
}

impl Pace {
    /// The first turn is due at `now`.
    pub(super) fn new(now: Nanos) -> Pace {
        Pace {
            began: Nanos::ZERO,
            next: now,
            hasty_until: Nanos::ZERO,
        }
    }

    /// A turn begins. Gives how late it is.
    pub(super) fn begin(&mut self, now: Nanos) -> Nanos {
        let late = now.since(self.next);
        self.began = now;
        late
    }

    /// Whether packets have risen lately: the next turn follows soon after this one.
    pub(super) fn is_hasty(&self) -> bool {
        self.began < self.hasty_until
    }

    /// The turn has ended.
    pub(super) fn end(&mut self, now: Nanos) {
        self.next = if self.is_hasty() {
            self.began + HASTE
        } else {
            self.next + SAMPLE_PERIOD
        };
        // Late: the collector counts the time that has really passed, and nothing is made up for.
        self.next = self.next.max(now);
    }

    /// More packets come than usual: the next turn is due at once, but not before [`HASTE`] has passed since the last one.
    pub(super) fn hurry(&mut self, now: Nanos) {
        self.hasty_until = now + HASTE_SPAN;
        self.next = self.next.min((self.began + HASTE).max(now));
    }

    /// How long to rest; [`None`] once the next turn is due.
    pub(super) fn rest(&self, now: Nanos) -> Option<Nanos> {
        (self.next > now).then(|| self.next.since(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: fn(u64) -> Nanos = Nanos::from_micros;

    /// The times at which turns of 20 us begin until `end`, where a worker tells of a rise at these times.
    fn turns(rises: &[u64], end: u64) -> Vec<u64> {
        let mut pace = Pace::new(US(0));
        let (mut turns, mut busy_until) = (Vec::new(), 0);
        for us in 0..end {
            if us < busy_until {
                continue;
            }
            if us == busy_until && us > 0 {
                pace.end(US(us));
            }
            if rises.contains(&us) {
                pace.hurry(US(us));
            }
            if pace.rest(US(us)).is_none() {
                pace.begin(US(us));
                turns.push(us);
                busy_until = us + 20;
            }
        }
        turns
    }

    #[test]
    fn it_turns_every_millisecond_while_nothing_rises() {
        assert_eq!(turns(&[], 4_500), [0, 1_000, 2_000, 3_000, 4_000]);
    }

    #[test]
    fn a_rise_brings_turns_forward_for_a_while() {
        let turned = turns(&[2_500], 20_000);
        assert_eq!(turned[..6], [0, 1_000, 2_000, 2_500, 2_700, 2_900]);
        let hasty = turned.iter().filter(|us| (2_500..5_600).contains(*us)).count();
        assert_eq!(hasty, 16, "{turned:?}");
        let after: Vec<u64> = turned.iter().skip_while(|us| **us < 6_000).copied().collect();
        assert!(after.windows(2).all(|of| of[1] - of[0] == 1_000), "{after:?}");
    }

    #[test]
    fn however_often_workers_ring_turns_keep_their_distance() {
        let rises: Vec<u64> = (0..50_000).collect();
        let turned = turns(&rises, 50_000);
        assert!(
            turned.windows(2).all(|of| of[1] - of[0] >= HASTE.0 / 1000),
            "{turned:?}"
        );
        assert!(turned.len() > 200, "it turns all the same: {}", turned.len());
    }

    #[test]
    fn a_turn_that_took_long_is_not_made_up_for() {
        let mut pace = Pace::new(US(0));
        assert_eq!(pace.begin(US(300)), US(300));
        pace.end(US(5_300));
        assert_eq!(pace.rest(US(5_300)), None);
        assert_eq!(pace.begin(US(5_300)), Nanos::ZERO);
        pace.end(US(5_310));
        assert_eq!(pace.rest(US(5_310)), Some(US(990)));
    }
}
