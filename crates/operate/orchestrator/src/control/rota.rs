//! Who of many is due in a turn, where each is due once in a period: some of them in each turn, never all at once.

use std::ops::Range;

use model::Nanos;

/// Goes round over places from 0 on. The time between two turns may differ.
#[derive(Debug)]
pub(super) struct Rota {
    period: Nanos,
    next: usize,
    /// Up to when all that were due were given.
    given: Nanos,
}

impl Rota {
    /// Each place is due once in `period`.
    pub(super) fn new(period: Nanos) -> Rota {
        Rota {
            period,
            next: 0,
            given: Nanos::ZERO,
        }
    }

    /// The places that are due by now, of so many: each once at most, however long the last turn was ago. After the last
    /// place, the first one is due in the next turn.
    pub(super) fn due(&mut self, count: usize, now: Nanos) -> Range<usize> {
        let each = (self.period.0 / count.max(1) as u64).max(1);
        // A late turn is not made up for.
        self.given = self.given.max(now - self.period);
        let from = if self.next < count { self.next } else { 0 };
        let due = now.since(self.given).0 / each;
        let due = due.min((count - from) as u64);
        self.given = self.given + Nanos(each * due);
        self.next = from + due as usize;
        from..self.next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How often each place is given in a second of turns that are so far apart, and how many at once at most.
    fn given(count: usize, period_ms: u64, turn_us: u64) -> (Vec<usize>, usize) {
        let mut rota = Rota::new(Nanos::from_millis(period_ms));
        let (mut given, mut most) = (vec![0; count], 0);
        // The first turn has a whole period behind it.
        let mut now = Nanos::from_secs(1);
        rota.due(count, now);
        while now < Nanos::from_secs(2) {
            now = now + Nanos::from_micros(turn_us);
            let due = rota.due(count, now);
            most = most.max(due.len());
            due.for_each(|place| given[place] += 1);
        }
        (given, most)
    }

    #[test]
    fn each_place_is_due_once_in_a_period() {
        for (count, most) in [(1, 1), (3, 1), (50, 1), (64, 3), (256, 11)] {
            let (given, at_once) = given(count, 50, 1_000);
            assert!(
                given.iter().all(|of| (19..=21).contains(of)),
                "{count}: {given:?}"
            );
            assert!(at_once <= most, "{at_once} of {count} at once");
        }
    }

    #[test]
    fn a_place_is_due_once_in_a_late_turn() {
        let (given, at_once) = given(64, 5, 20_000);
        assert!(given.iter().all(|of| *of == 50), "{given:?}");
        assert_eq!(at_once, 64);
    }

    #[test]
    fn places_come_and_go() {
        let mut rota = Rota::new(Nanos::from_millis(50));
        assert_eq!(rota.due(0, Nanos::from_secs(1)), 0..0);
        // One that comes later waits for a period at most.
        assert_eq!(rota.due(1, Nanos::from_millis(1_050)), 0..1);
        assert_eq!(rota.due(64, Nanos::from_millis(1_075)).len(), 32);
        // The place that was next is gone.
        assert_eq!(rota.due(10, Nanos::from_millis(1_080)), 0..1);
    }
}
