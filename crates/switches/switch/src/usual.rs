//! How many packets are usual, so that more than that can be told at once.

use model::Nanos;

/// The unit of time in which usual numbers of packets are measured: the time between two turns of the control plane.
const A_MOMENT: Nanos = Nanos::from_millis(1);
/// Shorter distances of two turns count as this long, so that a few packets are no high rate.
const SHORTEST_LOOK: Nanos = Nanos::from_micros(200);
/// A number of packets counts as usual for one to two of these spans, so that repeated bursts do not ring.
const USUAL_SPAN: Nanos = Nanos::from_millis(100);
/// This number of packets is always usual: a worker that did not run for a moment finds as many at a low rate.
const RISE_MIN: u64 = 32;

/// The usual packet rate of a worker, and the limit above which more than usual arrive.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usual {
    at: Nanos,
    received: u64,
    /// The most packets in [`A_MOMENT`], in the span before this one and in this one.
    most: [u64; 2],
    span_began: Nanos,
}

impl Usual {
    /// Records that at `now` the worker has `received` this number of packets in all. Returns the total from which on
    /// more than usual have arrived: 1.5 times those of the busiest millisecond of the last 0.1 s, plus [`RISE_MIN`].
    pub fn mark(&mut self, received: u64, now: Nanos) -> u64 {
        let span = now.since(self.at).max(SHORTEST_LOOK);
        let came = received.saturating_sub(self.received);
        let in_a_moment = u128::from(came) * u128::from(A_MOMENT.0) / u128::from(span.0);
        self.at = now;
        self.received = received;
        if now.since(self.span_began) >= USUAL_SPAN {
            self.most = [self.most[1], 0];
            self.span_began = now;
        }
        self.most[1] = self.most[1].max(in_a_moment as u64);
        let usual = self.most[0].max(self.most[1]);
        received
            .saturating_add(usual)
            .saturating_add(usual / 2)
            .saturating_add(RISE_MIN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: [u64; 0] = [];

    /// The times within a second at which `Usual` reports a rise, with a control plane that turns at each report and
    /// each millisecond. `packets` gives the total after a number of microseconds.
    fn rises(packets: impl Fn(u64) -> u64) -> Vec<u64> {
        let (mut usual, mut rises) = (Usual::default(), Vec::new());
        let (mut mark, mut looked_us) = (u64::MAX, 0);
        for us in (0..2_000_000).step_by(50) {
            let received = packets(us);
            let has_risen = received >= mark;
            if has_risen {
                rises.push(us);
            }
            if has_risen || us - looked_us >= 1000 {
                looked_us = us;
                mark = usual.mark(received, Nanos::from_micros(us));
            }
        }
        rises.retain(|us| *us >= 1_000_000);
        rises
    }

    #[test]
    fn a_rise_is_detected_within_a_millisecond_and_a_constant_rate_is_none() {
        for rate_per_ms in [0, 1, 5, 200, 10_000] {
            assert_eq!(rises(|us| us * rate_per_ms / 1000), NONE, "{rate_per_ms} per ms");
        }
        let step = 1_500_000;
        let noticed = rises(|us| us * 5 / 1000 + us.saturating_sub(step) * 200 / 1000);
        assert!((step..step + 250).contains(&noticed[0]), "{noticed:?}");
        assert!(noticed.len() <= 8, "{noticed:?}");
        let small = rises(|us| us + us.saturating_sub(step) / 4);
        assert_eq!(small, NONE, "a quarter more is no rise");
    }

    #[test]
    fn bursts_that_come_again_and_again_become_usual() {
        // 640 packets at once, every 20 ms; the first train after 0.1 s without packets rings, once.
        assert_eq!(rises(|us| us / 20_000 * 640), NONE);
        let rare = rises(|us| us / 500_000 * 640);
        assert!(rare.len() <= 2, "{rare:?}");
    }
}
