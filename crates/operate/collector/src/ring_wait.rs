//! How long packets wait in the ring of an instance, by one packet at a time.

use model::{Nanos, Percentiles, RecentTimes};

/// An instance's ring at a sample.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Queue {
    /// Descriptors that the instance has consumed.
    pub(crate) consumed: u64,
    /// How many of them since the sample before.
    pub(crate) taken: u64,
    /// Descriptors that wait.
    pub(crate) used: u64,
}

/// Follows the last packet in the ring until the instance has consumed it, then the one that is last by then. When within a
/// step it was consumed is interpolated: the instance consumed at one rate during the step.
#[derive(Debug)]
pub(crate) struct RingWait {
    /// The descriptors that are consumed once the followed packet is, and when it was the last one.
    followed: Option<(u64, Nanos)>,
    /// Samples at which what had come was consumed already.
    without_wait: u32,
    times: RecentTimes,
}

impl RingWait {
    /// Without a sample so far.
    pub(crate) fn new() -> RingWait {
        RingWait {
            followed: None,
            without_wait: 0,
            times: RecentTimes::new(Nanos::ZERO),
        }
    }

    /// Begins a second.
    pub(crate) fn start(&mut self, now: Nanos) {
        self.times.turn(now);
    }

    /// Whether a packet is followed.
    #[inline]
    pub(crate) fn follows(&self) -> bool {
        self.followed.is_some()
    }

    /// Takes a sample with an empty ring, while no packet is followed. `arrived`: whether packets came before it.
    #[inline]
    pub(crate) fn none_waits(&mut self, arrived: bool) {
        self.without_wait += u32::from(arrived);
    }

    /// Takes a sample with packets in the ring, or while one is followed, `step` after the sample before.
    pub(crate) fn sample(&mut self, queue: Queue, now: Nanos, step: Nanos) {
        if let Some((position, since)) = self.followed {
            if queue.consumed < position {
                return;
            }
            let before = queue.consumed.saturating_sub(queue.taken);
            let share = position.saturating_sub(before) as f64 / queue.taken.max(1) as f64;
            let consumed_at = (now - step) + Nanos((step.0 as f64 * share) as u64);
            // It stands for the packets that were the last ones at the samples meanwhile, so that long waits count as often
            // as short ones.
            let stands_for = now.since(since).0 / step.0.max(1);
            self.times
                .count(consumed_at.since(since), stands_for.clamp(1, 1 << 20) as u32);
        }
        self.followed = (queue.used > 0).then(|| (queue.consumed.wrapping_add(queue.used), now));
    }

    /// Whether the second is over.
    #[inline]
    pub(crate) fn is_due(&self, now: Nanos) -> bool {
        self.times.is_due(now)
    }

    /// Ends the second, at a sample. Gives how long packets waited in it; none if none came.
    #[cold]
    pub(crate) fn turn(&mut self, now: Nanos, step: Nanos) -> Option<Percentiles> {
        // One that waits for long counts while it does.
        if let Some((_, since)) = self.followed
            && now.since(since) >= RecentTimes::PERIOD
        {
            let samples = RecentTimes::PERIOD.0 / step.0.max(1);
            self.times
                .count(now.since(since), samples.clamp(1, 1 << 20) as u32);
        }
        if self.without_wait > 0 {
            self.times
                .count(Nanos::ZERO, std::mem::take(&mut self.without_wait));
        }
        self.times.turn(now);
        self.times.last()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: Nanos = Nanos::from_millis(1);

    /// Takes samples; gives what is known after the last whole second.
    fn waits(steps: impl IntoIterator<Item = (u64, u64)>) -> Option<Percentiles> {
        let mut wait = RingWait::new();
        let (mut now, mut consumed, mut last) = (Nanos::from_secs(1), 0, None);
        wait.start(now);
        for (used, taken) in steps {
            now = now + STEP;
            consumed += taken;
            if used > 0 || wait.follows() {
                wait.sample(
                    Queue {
                        consumed,
                        taken,
                        used,
                    },
                    now,
                    STEP,
                );
            } else {
                wait.none_waits(taken > 0);
            }
            if wait.is_due(now) {
                last = wait.turn(now, STEP);
            }
        }
        last
    }

    /// Packets that wait, and packets that are consumed each millisecond, for two seconds.
    fn steadily(used: u64, taken: u64) -> Option<Percentiles> {
        waits(std::iter::repeat_n((used, taken), 2_000))
    }

    #[test]
    fn a_packet_waits_for_those_before_it() {
        // 300 packets wait; 60 are consumed each millisecond.
        let waits = steadily(300, 60).unwrap();
        for time in [waits.p50, waits.p99] {
            assert!((4_900..5_400).contains(&(time.0 / 1_000)), "{waits:?}");
        }
    }

    #[test]
    fn long_waits_count_as_often_as_short_ones() {
        // Less than half of a second without a queue; then nothing is consumed, and at last all at once.
        let steps = (1..=1_000).map(|step| match step {
            ..400 => (0, 10),
            400..1_000 => (100, 0),
            _ => (0, 100),
        });
        let last = waits(steps).unwrap();
        assert!(last.p50 >= Nanos::from_millis(590), "{last:?}");
        assert!(last.p99 >= Nanos::from_millis(590), "{last:?}");
    }

    #[test]
    fn a_wait_within_a_step_is_interpolated() {
        let waits = steadily(25, 100).unwrap();
        assert!((240..280).contains(&(waits.p50.0 / 1_000)), "{waits:?}");
    }

    #[test]
    fn an_empty_ring_is_no_wait() {
        assert!(steadily(0, 100).unwrap().p99 <= Nanos(2));
        assert_eq!(steadily(0, 0), None);
    }

    #[test]
    fn an_instance_that_consumes_nothing_has_its_oldest_wait() {
        let waits = steadily(10, 0).unwrap();
        assert!(waits.p50 >= Nanos::from_millis(999), "{waits:?}");
    }
}
