//! What the writer of rules tells the control plane: troubles, how many promotions were refused, and of a flow why it has a rule
//! or none.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use model::{Direction, FlowKey, Nanos, protocol};
use promotion::Stay;
use switch::SwitchEvent;

/// Flows of which it is known why they have no rule; twice as many at most.
const REMEMBERED: usize = 2048;
/// For how long nothing may be refused until the trouble is over.
const CALM: Nanos = Nanos::from_secs(10);
/// Events that wait for the control plane at most: it takes them each millisecond.
const EVENTS: usize = 256;
/// What is told of where all rules are in use.
const BUDGET: &str = "rules of the fast path";

/// Why a flow had no rule when it was drawn last, and what it had to have saved.
#[derive(Clone, Copy, Debug)]
struct Stays {
    at: Nanos,
    why: Stay,
    threshold_ns: f64,
}

#[derive(Debug, Default)]
struct Known {
    events: Vec<SwitchEvent>,
    /// What does not work, since when.
    troubles: BTreeMap<String, Nanos>,
    refused_at: Nanos,
    /// Flows with a rule: since when, and what the flow had brought by then.
    ruled: BTreeMap<FlowKey, (Nanos, u64)>,
    /// Flows that were drawn and have none; those of `before` are forgotten when there are too many.
    stays: BTreeMap<FlowKey, Stays>,
    before: BTreeMap<FlowKey, Stays>,
}

impl Known {
    fn push(&mut self, event: SwitchEvent) {
        if self.events.len() < EVENTS {
            self.events.push(event);
        }
    }

    fn fails(&mut self, now: Nanos, what: &str, reason: impl FnOnce() -> String) {
        if !self.troubles.contains_key(what) {
            self.troubles.insert(what.to_owned(), now);
            let reason = reason();
            self.push(SwitchEvent::Trouble {
                what: what.to_owned(),
                reason,
            });
        }
    }

    fn works(&mut self, now: Nanos, what: &str) {
        if let Some(since) = self.troubles.remove(what) {
            self.push(SwitchEvent::Recovered {
                what: what.to_owned(),
                after: now.since(since),
            });
        }
    }
}

/// What is known, for both threads.
#[derive(Debug)]
pub(super) struct Told {
    known: Mutex<Known>,
    /// Rules at a time, at most.
    limit: u64,
    refused: AtomicU64,
}

impl Told {
    /// With so many rules at most.
    pub(super) fn new(limit: usize) -> Told {
        Told {
            known: Mutex::default(),
            limit: limit as u64,
            refused: AtomicU64::new(0),
        }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Rules at a time, at most.
    pub(super) fn limit(&self) -> u64 {
        self.limit
    }

    /// How often a flow that was worth a rule got none.
    pub(super) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Something does not work: told once, until it [works](Told::works).
    pub(super) fn fails(&self, now: Nanos, what: &str, reason: impl FnOnce() -> String) {
        self.known().fails(now, what, reason);
    }

    /// It works, again or still.
    pub(super) fn works(&self, now: Nanos, what: &str) {
        self.known().works(now, what);
    }

    /// A drawn flow gets no rule.
    pub(super) fn stays(&self, now: Nanos, flow: FlowKey, why: Stay, threshold_ns: f64) {
        let mut known = self.known();
        if matches!(why, Stay::Budget | Stay::Rate) {
            self.refused.fetch_add(1, Ordering::Relaxed);
        }
        if why == Stay::Budget {
            known.refused_at = now;
            known.fails(now, BUDGET, || {
                format!(
                    "all {} are in use, by flows that are worth as much: others stay in the worker; write a greater \
                     number at `rules` in [switch.hybrid], if programs of the kernel may have more",
                    self.limit
                )
            });
        }
        if known.stays.len() >= REMEMBERED && !known.stays.contains_key(&flow) {
            known.before = std::mem::take(&mut known.stays);
        }
        let stays = Stays {
            at: now,
            why,
            threshold_ns,
        };
        known.stays.insert(flow, stays);
    }

    /// A flow gets a rule, which had brought so many packets.
    pub(super) fn gets_rule(&self, now: Nanos, flow: FlowKey, packets: u64) {
        let mut known = self.known();
        known.ruled.insert(flow, (now, packets));
        known.stays.remove(&flow);
        known.before.remove(&flow);
    }

    /// Its rule is gone.
    pub(super) fn lost_rule(&self, flow: &FlowKey) {
        self.known().ruled.remove(flow);
    }

    /// Appends what happened, and ends the trouble with rules when it is over.
    pub(super) fn take(&self, now: Nanos, into: &mut Vec<SwitchEvent>) {
        let mut known = self.known();
        if now >= known.refused_at + CALM {
            known.works(now, BUDGET);
        }
        into.append(&mut known.events);
    }

    /// Why a flow has a rule, or none.
    pub(super) fn path_of(&self, now: Nanos, flow: &FlowKey) -> String {
        let tuple = flow.tuple(Direction::Forward);
        let known = self.known();
        if let Some((since, packets)) = known.ruled.get(flow) {
            return format!(
                "programs of the kernel forward it: it got its rule {:.1} s ago, after {packets} packets in the worker, for what \
                 that saves",
                now.since(*since).as_secs_f64()
            );
        }
        if let Some(why) = no_rule_by_kind(tuple.protocol, tuple.vlan) {
            return format!("the worker forwards it: {why}");
        }
        let Some(stays) = known.stays.get(flow).or_else(|| known.before.get(flow)) else {
            return "the worker forwards it: it was not drawn yet, as one packet of each burst is, or its service or \
                    instance can have no rules (inco's documentation, hybrid)"
                .to_owned();
        };
        let why = match stays.why {
            Stay::NothingSaved => "a rule would save nothing".to_owned(),
            Stay::BelowThreshold => format!(
                "it would have saved less than {:.0} us of CPU time in a window, from which on a rule pays",
                stays.threshold_ns / 1e3
            ),
            Stay::Flooded => {
                "its service is flooded with half-open connections, and nobody has answered this flow"
                    .to_owned()
            }
            Stay::Rate => "as many rules as may be were written in this second".to_owned(),
            Stay::Budget => format!(
                "all {} rules are in use, by flows that are worth as much",
                self.limit
            ),
            Stay::HasRule => "its rule is being removed".to_owned(),
        };
        format!(
            "the worker forwards it: {why}, when it was drawn {:.1} s ago",
            now.since(stays.at).as_secs_f64()
        )
    }
}

/// Why no flow of that kind has a rule, whatever it brings.
fn no_rule_by_kind(of: u8, vlan: u16) -> Option<&'static str> {
    match of {
        protocol::TCP | protocol::UDP if vlan == 0 => None,
        protocol::TCP | protocol::UDP => Some("flows with a VLAN tag get no rule"),
        _ => Some("only flows of TCP and UDP get a rule"),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by it")]
mod tests {
    use model::Tuple;

    use super::*;

    fn flow(number: u16) -> FlowKey {
        FlowKey::new(&Tuple {
            src: [10, 0, 0, 1].into(),
            dst: [10, 0, 0, 2].into(),
            src_port: number,
            dst_port: 80,
            protocol: protocol::UDP,
            vlan: 0,
        })
        .0
    }

    fn at(ms: u64) -> Nanos {
        Nanos::from_secs(100) + Nanos::from_millis(ms)
    }

    fn events(told: &Told, now: Nanos) -> Vec<SwitchEvent> {
        let mut events = Vec::new();
        told.take(now, &mut events);
        events
    }

    #[test]
    fn a_full_budget_is_told_once_and_ends_when_nothing_is_refused() {
        let told = Told::new(4);
        for ms in [0, 1, 5_000] {
            told.stays(at(ms), flow(ms as u16), Stay::Budget, 0.0);
        }
        told.stays(at(5_000), flow(9), Stay::Rate, 0.0);
        told.stays(at(5_000), flow(9), Stay::BelowThreshold, 40_000.0);
        assert_eq!(told.refused(), 4);
        let first = events(&told, at(5_001));
        assert!(
            matches!(&first[..], [SwitchEvent::Trouble { what, reason }] if what == BUDGET && reason.contains("all 4"))
        );
        assert!(events(&told, at(14_999)).is_empty());
        let last = events(&told, at(15_000));
        assert!(
            matches!(&last[..], [SwitchEvent::Recovered { after, .. }] if *after == Nanos::from_secs(15)),
            "{last:?}"
        );
        assert!(events(&told, at(99_000)).is_empty());
    }

    #[test]
    fn what_fails_and_works_again_is_told_once_each() {
        let told = Told::new(4);
        told.works(at(0), "fast path");
        told.fails(at(1), "fast path", || "gone".to_owned());
        told.fails(at(2), "fast path", || "gone".to_owned());
        told.works(at(9), "fast path");
        told.works(at(10), "fast path");
        assert_eq!(events(&told, at(10)).len(), 2);
    }

    #[test]
    fn of_each_flow_it_says_why() {
        let told = Told::new(4);
        assert!(told.path_of(at(0), &flow(1)).contains("not drawn yet"));
        told.stays(at(0), flow(1), Stay::BelowThreshold, 40_000.0);
        assert!(
            told.path_of(at(500), &flow(1))
                .contains("less than 40 us of CPU time")
        );
        told.gets_rule(at(600), flow(1), 77);
        let said = told.path_of(at(1_600), &flow(1));
        assert!(said.contains("1.0 s ago, after 77 packets"), "{said}");
        told.lost_rule(&flow(1));
        assert!(told.path_of(at(0), &flow(1)).contains("not drawn yet"));
        let of = |protocol, vlan| no_rule_by_kind(protocol, vlan).unwrap_or_default();
        assert!(of(protocol::TCP, 7).contains("VLAN") && of(1, 0).contains("TCP and UDP"));
        assert_eq!(of(protocol::TCP, 0), "");
    }

    #[test]
    fn it_remembers_no_more_than_it_may() {
        let told = Told::new(4);
        for number in 0..3 * REMEMBERED as u16 {
            told.stays(at(0), flow(number), Stay::NothingSaved, 0.0);
        }
        let known = told.known();
        assert!(known.stays.len() + known.before.len() <= 2 * REMEMBERED);
        assert!(known.stays.contains_key(&flow(3 * REMEMBERED as u16 - 1)));
    }
}
