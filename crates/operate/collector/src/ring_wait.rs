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
    times: RecentTimes,
}

impl RingWait {
    /// Without a sample so far.
    pub(crate) fn new() -> RingWait {
        RingWait {
            followed: None,
            times: RecentTimes::new(Nanos::ZERO),
        }
    }

    /// Begins a second.
    pub(crate) fn start(&mut self, now: Nanos) {
        self.times.turn(now);
    }

    /// Takes a sample, `step` after the one before. `arrived`: whether packets came meanwhile.
    #[inline]
    pub(crate) fn sample(&mut self, queue: Queue, arrived: bool, now: Nanos, step: Nanos) {
        let times = &mut self.times;
        if let Some((position, since)) = self.followed
            && queue.consumed >= position
        {
            let before = queue.consumed.saturating_sub(queue.taken);
            let share = position.saturating_sub(before) as f64 / queue.taken.max(1) as f64;
            let consumed_at = (now - step) + Nanos((step.0 as f64 * share) as u64);
            // It stands for the packets that were the last ones at the samples meanwhile, so that long waits count as often
            // as short ones.
            let stands_for = now.since(since).0 / step.0.max(1);
            times.count(consumed_at.since(since), stands_for.clamp(1, 1 << 20) as u32);
            self.followed = None;
        }
        if self.followed.is_none() && queue.used > 0 {
            self.followed = Some((queue.consumed.wrapping_add(queue.used), now));
        } else if queue.used == 0 && arrived {
            // It has consumed at once what came.
            times.count(Nanos::ZERO, 1);
        }
        if times.is_due(now) {
            // One that waits for long counts while it does.
            if let Some((_, since)) = self.followed
                && now.since(since) >= RecentTimes::PERIOD
            {
                let samples = RecentTimes::PERIOD.0 / step.0.max(1);
                times.count(now.since(since), samples.clamp(1, 1 << 20) as u32);
            }
            times.turn(now);
        }
    }

    /// Of the last second that is over.
    pub(crate) fn last(&self) -> Option<Percentiles> {
        self.times.last()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: Nanos = Nanos::from_millis(1);

    /// Samples of an instance whose ring has so many packets, and which consumes so many a step, for two seconds.
    fn waits(used: u64, taken: u64) -> Option<Percentiles> {
        let mut wait = RingWait::new();
        let mut now = Nanos::from_secs(1);
        wait.start(now);
        for step in 1..=2_000 {
            now = now + STEP;
            let consumed = step * taken;
            wait.sample(
                Queue {
                    consumed,
                    taken,
                    used,
                },
                taken > 0 || used > 0,
                now,
                STEP,
            );
        }
        wait.last()
    }

    #[test]
    fn a_packet_waits_for_those_before_it() {
        // 300 packets wait; 60 are consumed each millisecond.
        let waits = waits(300, 60).unwrap();
        for time in [waits.p50, waits.p99] {
            assert!((4_900..5_400).contains(&(time.0 / 1_000)), "{waits:?}");
        }
    }

    #[test]
    fn long_waits_count_as_often_as_short_ones() {
        let mut wait = RingWait::new();
        let mut now = Nanos::from_secs(1);
        wait.start(now);
        // Half of a second without a queue, then half of a second in which it consumes nothing, and then all at once.
        for step in 1..=1_000_u64 {
            now = now + STEP;
            let (used, taken) = match step {
                ..500 => (0, 10),
                500..1_000 => (100, 0),
                _ => (0, 100),
            };
            let consumed = 10 * step.min(499) + if step == 1_000 { 100 } else { 0 };
            wait.sample(
                Queue {
                    consumed,
                    taken,
                    used,
                },
                true,
                now,
                STEP,
            );
        }
        let last = wait.last().unwrap();
        assert!(
            last.p50 >= Nanos::from_millis(490) || last.p50 <= Nanos(2),
            "{last:?}"
        );
        assert!(last.p99 >= Nanos::from_millis(490), "{last:?}");
    }

    #[test]
    fn a_wait_within_a_step_is_interpolated() {
        let waits = waits(25, 100).unwrap();
        assert!((240..280).contains(&(waits.p50.0 / 1_000)), "{waits:?}");
    }

    #[test]
    fn an_empty_ring_is_no_wait() {
        assert!(waits(0, 100).unwrap().p99 <= Nanos(2));
        assert_eq!(waits(0, 0), None);
    }

    #[test]
    fn an_instance_that_consumes_nothing_has_its_oldest_wait() {
        let waits = waits(10, 0).unwrap();
        assert!(waits.p50 >= Nanos::from_millis(999), "{waits:?}");
    }
}
