//! Whether an instance has stopped taking packets, as far as that shows in what it gives back: Open vSwitch does not
//! tell how full the ring of an instance is.
//!
//! One that was given packets and has given none back for a while is asked: it gets probes. A function that keeps
//! packets, and gives probes back, takes them. Only one that has given back a probe before is asked and judged.

use model::Nanos;

/// Without a packet back for so long it is asked.
const ASK_AFTER: Nanos = Nanos::from_millis(200);
/// How often it is asked.
const ASK_EVERY: Nanos = Nanos::from_millis(50);
/// Without anything back for so long it counts as stalled, or longer where the service allows more. A machine that has much to do lets a program wait for tens
/// of milliseconds, and the poller of Open vSwitch beside it.
const STALLED_AFTER: Nanos = Nanos::from_millis(1_000);
/// How much of the time between two readings counts at most: where more passed, the reading thread did not run, and
/// others neither.
const READING_LIMIT: Nanos = Nanos::from_millis(50);

/// What is to be done about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Silence {
    /// Nothing.
    None,
    /// It is to get a probe.
    Ask,
    /// It takes nothing.
    Stalled(Nanos),
}

/// What is known of an instance.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Watch {
    /// When the counters were read last.
    read: Option<Nanos>,
    /// What had been given to it when it was last known to take what it is given, and what has come back of it since.
    given: u64,
    back: u64,
    /// For how long it has had something to give back.
    silent: Nanos,
    /// After how much of that it was asked the last time.
    asked: Nanos,
}

impl Watch {
    /// Takes a reading: packets and probes that were given to it, and those that came back. Where it need not take
    /// any, since it is frozen or about to go, `may_be_silent`. `stall_after`: what its service allows.
    pub(super) fn look(
        &mut self,
        given: u64,
        back: u64,
        may_be_silent: bool,
        stall_after: Nanos,
        now: Nanos,
    ) -> Silence {
        let since = self.read.replace(now).map_or(Nanos::ZERO, |read| now.since(read));
        if may_be_silent || back != self.back {
            *self = Watch {
                read: self.read,
                given,
                back,
                ..Watch::default()
            };
            return Silence::None;
        }
        if given <= self.given {
            return Silence::None;
        }
        self.silent = self.silent + Nanos(since.0.min(READING_LIMIT.0));
        if self.silent >= STALLED_AFTER.max(stall_after) {
            // Told again after as long.
            self.asked = Nanos::ZERO;
            return Silence::Stalled(std::mem::take(&mut self.silent));
        }
        if self.silent >= ASK_AFTER && self.silent.since(self.asked) >= ASK_EVERY {
            self.asked = self.silent;
            return Silence::Ask;
        }
        Silence::None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Readings each 10 ms for that long, of an instance that is given a packet between any two; how often it was
    /// asked, and when it counted as stalled.
    fn watched(ms: u64, stall_after: Nanos, mut back: impl FnMut(u64, u64) -> u64) -> (u64, Option<u64>) {
        let mut watch = Watch::default();
        let (mut asked, mut given) = (0, 0);
        for at in (0..ms).step_by(10) {
            given += 1;
            match watch.look(given, back(at, asked), false, stall_after, Nanos::from_millis(at)) {
                Silence::None => {}
                Silence::Ask => {
                    asked += 1;
                    given += 1;
                }
                Silence::Stalled(_) => return (asked, Some(at)),
            }
        }
        (asked, None)
    }

    /// Of a service that allows no more than anyhow.
    fn look(of: &mut Watch, given: u64, back: u64, may_be_silent: bool, now: Nanos) -> Silence {
        of.look(given, back, may_be_silent, Nanos::ZERO, now)
    }

    #[test]
    fn an_instance_that_returns_packets_gets_no_probe() {
        assert_eq!(watched(10_000, Nanos::ZERO, |at, _| at / 150), (0, None));
    }

    #[test]
    fn one_that_keeps_packets_gives_probes_back() {
        let (asked, stalled) = watched(10_000, Nanos::ZERO, |_, asked| asked);
        assert_eq!(stalled, None);
        assert!((40..=50).contains(&asked), "{asked}");
    }

    #[test]
    fn one_that_gives_nothing_back_has_stalled() {
        let (asked, stalled) = watched(10_000, Nanos::ZERO, |at, _| at.min(3_000));
        assert_eq!((asked, stalled), (16, Some(4_000)));
        // Its service allows more, or less than can be told here.
        let patient = Nanos::from_millis(2_500);
        assert_eq!(watched(10_000, patient, |at, _| at.min(3_000)).1, Some(5_500));
        assert_eq!(
            watched(10_000, Nanos::from_millis(10), |at, _| at.min(3_000)).1,
            Some(4_000)
        );
    }

    #[test]
    fn without_packets_there_is_nothing_to_give_back() {
        let mut watch = Watch::default();
        for at in 0..10_000 {
            assert_eq!(
                look(&mut watch, 7, 7, false, Nanos::from_millis(at)),
                Silence::None
            );
        }
        // Given one while it was frozen.
        assert_eq!(
            look(&mut watch, 8, 7, true, Nanos::from_millis(10_000)),
            Silence::None
        );
        assert_eq!(
            look(&mut watch, 8, 7, false, Nanos::from_millis(20_000)),
            Silence::None
        );
    }

    #[test]
    fn time_without_readings_does_not_count() {
        let mut watch = Watch::default();
        assert_eq!(look(&mut watch, 1, 1, false, Nanos::ZERO), Silence::None);
        for second in 1..20 {
            let said = look(&mut watch, 2, 1, false, Nanos::from_secs(second));
            assert!(!matches!(said, Silence::Stalled(_)), "after {second} s");
        }
        assert!(matches!(
            look(&mut watch, 2, 1, false, Nanos::from_secs(20)),
            Silence::Stalled(_)
        ));
    }
}
