//! Schedules the turns of the control loop.

use collector::SAMPLE_PERIOD;
use model::Nanos;

/// Period of turns while the packet rate rises. The fast rates have a time constant of 10 ms, so a rise shows soon
/// enough.
pub(super) const FAST_PERIOD: Nanos = Nanos::from_micros(200);
/// How long this period holds after a worker reports a rise: until an autoscaler has seen it, or it proves to be a
/// single train of packets.
const FAST_SPAN: Nanos = Nanos::from_millis(3);
/// Files are read at least once in this time, however often the packet rate rises: what they say of an instance that
/// has no CPU must be known before it counts as stalled.
const FILES_LIMIT: Nanos = Nanos::from_millis(10);

/// The schedule: the next turn is due one period after the last due time, or [`FAST_PERIOD`] after the last turn
/// began while the packet rate rises.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// When the last turn began, and when the next is due.
    began: Nanos,
    next: Nanos,
    hasty_until: Nanos,
    /// When files were last read.
    read_files: Nanos,
}

impl Pace {
    /// The first turn is due at `now`.
    pub(super) fn new(now: Nanos) -> Pace {
        Pace {
            began: Nanos::ZERO,
            next: now,
            hasty_until: Nanos::ZERO,
            read_files: Nanos::ZERO,
        }
    }

    /// A turn begins. Returns its delay.
    pub(super) fn begin(&mut self, now: Nanos) -> Nanos {
        let late = now.since(self.next);
        self.began = now;
        late
    }

    /// Whether this turn reads files. It does not where the next one is due at once, but for [`FILES_LIMIT`].
    pub(super) fn reads_files(&mut self) -> bool {
        let reads = !self.is_fast() || self.began.since(self.read_files) >= FILES_LIMIT;
        if reads {
            self.read_files = self.began;
        }
        reads
    }

    /// Whether the packet rate has risen recently, so that the next turn follows soon.
    fn is_fast(&self) -> bool {
        self.began < self.hasty_until
    }

    /// The turn has ended.
    pub(super) fn end(&mut self, now: Nanos) {
        self.next = if self.is_fast() {
            self.began + FAST_PERIOD
        } else {
            self.next + SAMPLE_PERIOD
        };
        // A late turn is not made up for: the collector measures the time that has passed.
        self.next = self.next.max(now);
    }

    /// The packet rate rises: the next turn is due at once, but not before [`FAST_PERIOD`] since the last one began.
    pub(super) fn speed_up(&mut self, now: Nanos) {
        self.hasty_until = now + FAST_SPAN;
        self.next = self.next.min((self.began + FAST_PERIOD).max(now));
    }

    /// Time to rest; [`None`] once the next turn is due.
    pub(super) fn rest(&self, now: Nanos) -> Option<Nanos> {
        (self.next > now).then(|| self.next.since(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: fn(u64) -> Nanos = Nanos::from_micros;

    /// Start times of turns of 20 µs until `end`, with reports of a rise at the given times.
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
                pace.speed_up(US(us));
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
            turned.windows(2).all(|of| of[1] - of[0] >= FAST_PERIOD.0 / 1000),
            "{turned:?}"
        );
        assert!(turned.len() > 200, "it turns all the same: {}", turned.len());
    }

    #[test]
    fn however_often_workers_ring_files_are_read() {
        let mut pace = Pace::new(US(0));
        let (mut read, mut now) = (Vec::new(), US(0));
        while now < US(50_000) {
            pace.begin(now);
            if pace.reads_files() {
                read.push(now.0 / 1000);
            }
            pace.speed_up(now);
            pace.end(now);
            now = now + FAST_PERIOD;
        }
        assert_eq!(read, [0, 10_000, 20_000, 30_000, 40_000]);
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
