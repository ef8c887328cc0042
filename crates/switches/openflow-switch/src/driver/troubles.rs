//! What goes wrong between inco and the switch, as events: each kind at once when it begins, and then at most once in
//! a while with how often it has happened. However much a switch says, what is told of it is bounded.

use model::Nanos;
use switch::SwitchEvent;

/// A kind that goes on happening is told again after so long.
const EVERY: Nanos = Nanos::from_secs(10);

/// What can go wrong so often that it is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Exact rules that the switch refused.
    Refused,
    /// Exact rules that it removed by itself.
    Evicted,
    /// Other things that it refused.
    Errors,
    /// Messages that cannot be decoded.
    Garbled,
    /// Packets that it sent over the connection though nothing tells it to.
    Unasked,
}

impl Kind {
    const ALL: [Kind; 5] = [
        Kind::Refused,
        Kind::Evicted,
        Kind::Errors,
        Kind::Garbled,
        Kind::Unasked,
    ];

    /// How often it has happened since it was told last, and what that means.
    fn reason(self, times: u64) -> String {
        match self {
            Kind::Refused => format!(
                "it refused {times} rules of flows, which stay on their buckets and keep their instances; no bucket of theirs can move \
                 until they have ended (what it said stands with each flow in `inco flows`)"
            ),
            Kind::Evicted => format!(
                "it removed {times} rules of flows by itself; they are written again, and packets that came meanwhile went where \
                 their buckets say"
            ),
            Kind::Errors => {
                format!("it refused {times} requests that were not rules of flows; its log says why")
            }
            Kind::Garbled => {
                format!("it sent {times} messages that are not OpenFlow as we speak it; they are ignored")
            }
            Kind::Unasked => format!(
                "it sent {times} packets over the connection, which no rule of ours does; they are ignored"
            ),
        }
    }
}

/// How often each kind has happened.
pub(super) type Counts = [(Kind, u64); 5];

#[derive(Clone, Copy, Debug, Default)]
struct Told {
    times: u64,
    at: Option<Nanos>,
}

/// What was told.
#[derive(Debug, Default)]
pub(super) struct Troubles {
    told: [Told; Kind::ALL.len()],
    away_since: Option<Nanos>,
}

/// What an event calls the switch.
const WHAT: &str = "switch";

impl Troubles {
    /// There is no connection, and why. Tried again and again, it is told once.
    pub(super) fn away(&mut self, why: &str, now: Nanos) -> Option<SwitchEvent> {
        if self.away_since.is_some() {
            return None;
        }
        self.away_since = Some(now);
        Some(SwitchEvent::Trouble {
            what: WHAT.to_owned(),
            reason: format!(
                "no connection to it: {why}. As long as it runs it goes on by the rules that it has, new flows by their buckets; inco tries \
                 again"
            ),
        })
    }

    /// There is one again.
    pub(super) fn back(&mut self, now: Nanos) -> Option<SwitchEvent> {
        let since = self.away_since.take()?;
        Some(SwitchEvent::Recovered {
            what: WHAT.to_owned(),
            after: now.since(since),
        })
    }

    /// What of these counts is to be told now.
    pub(super) fn look(&mut self, counts: &Counts, now: Nanos, mut tell: impl FnMut(SwitchEvent)) {
        for ((kind, times), told) in counts.iter().zip(&mut self.told) {
            let is_early = told.at.is_some_and(|at| now.since(at) < EVERY);
            if *times > told.times && !is_early {
                tell(SwitchEvent::Trouble {
                    what: WHAT.to_owned(),
                    reason: kind.reason(times - told.times),
                });
                *told = Told {
                    times: *times,
                    at: Some(now),
                };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(of: Kind, times: u64) -> Counts {
        Kind::ALL.map(|kind| (kind, if kind == of { times } else { 0 }))
    }

    #[test]
    fn a_flood_is_reported_at_once_and_then_at_intervals() {
        let mut troubles = Troubles::default();
        let mut told = Vec::new();
        for ms in 0..25_000 {
            // A thousand a millisecond.
            let counts = counts(Kind::Unasked, (ms + 1) * 1_000);
            troubles.look(&counts, Nanos::from_millis(ms), |event| told.push(event));
        }
        let reasons: Vec<String> = told
            .into_iter()
            .map(|event| match event {
                SwitchEvent::Trouble { reason, .. } => reason,
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(reasons.len(), 3, "{reasons:?}");
        assert!(reasons[0].starts_with("it sent 1000 packets"), "{reasons:?}");
        assert!(reasons[1].starts_with("it sent 10000000 packets"), "{reasons:?}");
        // Quiet since: nothing more.
        let counts = counts(Kind::Unasked, 25_000_000);
        let mut told = 0;
        for s in 40..100 {
            troubles.look(&counts, Nanos::from_secs(s), |_| told += 1);
        }
        assert_eq!(told, 1, "what came after the last telling");
    }

    #[test]
    fn a_lost_connection_and_its_end_are_reported_once() {
        let mut troubles = Troubles::default();
        assert!(troubles.back(Nanos::from_secs(1)).is_none(), "it was never away");
        assert!(troubles.away("it was closed", Nanos::from_secs(2)).is_some());
        assert!(troubles.away("no listener", Nanos::from_secs(3)).is_none());
        match troubles.back(Nanos::from_secs(32)) {
            Some(SwitchEvent::Recovered { after, .. }) => assert_eq!(after, Nanos::from_secs(30)),
            other => panic!("{other:?}"),
        }
    }
}
