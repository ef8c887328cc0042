//! The decisions, and which flows have a rule.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use model::Nanos;

use crate::candidates::{Brought, Candidates};
use crate::lengths::Lengths;
use crate::prices::{KINDS, Kind, Prices};

/// Over which span promotions may come at once, as far as their rate permits.
const BURST: Nanos = Nanos::from_millis(100);

/// What is decided by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// Rules at a time, at most.
    pub rules: usize,
    /// Promotions in a second, at most; up to a tenth of them at once.
    pub promotions_per_second: u32,
    /// The span in which a flow has to have saved the threshold, and after which each rule is looked at again.
    pub window: Nanos,
    /// A rule stays while it saves so many times its own cost in a window.
    pub keep_at: f64,
    /// How many times as much as the least worthy rule a flow has to save, to take its place.
    pub displace_at: f64,
    /// Flows without a rule that are watched at a time; rounded up to a power of two.
    pub candidates: usize,
}

impl Default for Settings {
    /// 16,384 rules, 20,000 promotions in a second (with 10 µs for a rule, a fifth of a CPU), a window of a second, a quarter of
    /// a rule's cost to stay, twice the worth to replace another one, 4,096 candidates.
    fn default() -> Settings {
        Settings {
            rules: 16_384,
            promotions_per_second: 20_000,
            window: Nanos::from_secs(1),
            keep_at: 0.25,
            displace_at: 2.0,
            candidates: 4_096,
        }
    }
}

/// A flow of the slow path, with its counters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Seen<F> {
    /// Which one.
    pub flow: F,
    /// A number that is even over all flows.
    pub hash: u64,
    /// Its kind.
    pub kind: Kind,
    /// Packets of both directions, ever.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// It has just begun.
    pub is_new: bool,
    /// Both ends have sent what belongs to an open flow: a connection is acknowledged, an answer has come.
    pub is_open: bool,
}

/// Why a flow stays on the slow path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stay {
    /// The fast path cannot do it, or costs more.
    NothingSaved,
    /// It has not brought enough yet.
    BelowThreshold,
    /// In a flood, only open flows are promoted.
    Flooded,
    /// As many promotions as may be have been made.
    Rate,
    /// All rules are in use, by flows that are worth as much.
    Budget,
    /// It has a rule.
    HasRule,
}

/// What becomes of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict<F> {
    /// It stays on the slow path.
    Stay(Stay),
    /// It gets a rule.
    Promote,
    /// It gets the rule of another flow, which is demoted first.
    Replace(F),
}

/// Why a flow loses its rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// No packet came in the whole window.
    Idle,
    /// It saves too little.
    NotWorth,
}

#[derive(Clone, Copy, Debug)]
struct Rule {
    kind: Kind,
    since: Nanos,
    looked_at: Nanos,
    packets: u64,
    bytes: u64,
    /// What it saves: nanoseconds of CPU time in a second. [`None`] before the first look at it.
    worth: Option<u64>,
    /// Which entry of the queue is its own.
    serial: u64,
}

/// The decisions about flows of one switch. `F` names a flow.
#[derive(Clone, Debug)]
pub struct Promotion<F> {
    settings: Settings,
    prices: Prices,
    candidates: Candidates<F>,
    lengths: [Lengths; KINDS],
    rules: BTreeMap<F, Rule>,
    /// Rules that were looked at, the least worthy first.
    by_worth: BTreeSet<(u64, F)>,
    /// Rules by when they are looked at next. An entry with another serial than its rule's is void.
    queue: VecDeque<(Nanos, F, u64)>,
    serial: u64,
    /// Time for promotions: each takes as much as their rate says.
    credit: Nanos,
    credited: Nanos,
}

impl<F: Copy + Ord> Promotion<F> {
    /// Without rules.
    #[must_use]
    pub fn new(settings: Settings, prices: Prices) -> Promotion<F> {
        let lengths = Lengths::new(prices.rule_ns);
        Promotion {
            candidates: Candidates::new(settings.candidates),
            lengths: [(); KINDS].map(|()| lengths.clone()),
            rules: BTreeMap::new(),
            by_worth: BTreeSet::new(),
            queue: VecDeque::new(),
            serial: 0,
            credit: BURST,
            credited: Nanos::ZERO,
            settings,
            prices,
        }
    }

    /// Flows that have a rule.
    #[must_use]
    pub fn rules(&self) -> usize {
        self.rules.len()
    }

    /// Whether a flow has a rule.
    #[must_use]
    pub fn has(&self, flow: F) -> bool {
        self.rules.contains_key(&flow)
    }

    /// What a flow of a kind has to have saved before it is promoted, in nanoseconds of CPU time.
    #[must_use]
    pub fn threshold_ns(&self, kind: Kind) -> f64 {
        let lengths = self.lengths.get(kind.index());
        lengths.map_or(f64::INFINITY, Lengths::threshold_ns)
    }

    /// Whether flows of a kind are worth a rule from their first packet on and there is one, so that new flows are to be noted
    /// before they are drawn.
    #[must_use]
    pub fn wants_new(&self, kind: Kind) -> bool {
        self.threshold_ns(kind) <= 0.0
            && self.rules.len() < self.settings.rules
            && self.prices.of(kind).saved_ns(1, 64) > 0.0
    }

    /// A flow was drawn on the slow path, or is new. With [`Verdict::Promote`] and [`Verdict::Replace`] it has a rule from now
    /// on.
    pub fn note(&mut self, now: Nanos, seen: &Seen<F>, is_flooded: bool) -> Verdict<F> {
        if self.rules.contains_key(&seen.flow) {
            return Verdict::Stay(Stay::HasRule);
        }
        let counted = (seen.packets, seen.bytes);
        let paths = *self.prices.of(seen.kind);
        if paths.saved_ns(seen.packets.max(1), seen.bytes.max(1)) <= 0.0 {
            return Verdict::Stay(Stay::NothingSaved);
        }
        if is_flooded && !seen.is_open {
            return Verdict::Stay(Stay::Flooded);
        }
        let brought = match seen.is_new {
            // All of its packets count, and it needs no place among the candidates.
            true => Some(Brought {
                packets: seen.packets,
                bytes: seen.bytes,
                span: Nanos::ZERO,
            }),
            false => self.candidates.draw(seen.flow, seen.hash, now, counted),
        };
        let Some(brought) = brought else {
            return Verdict::Stay(Stay::BelowThreshold);
        };
        let window = self.settings.window;
        let part = window.0 as f64 / brought.span.max(window).0.max(1) as f64;
        let saved = paths.saved_ns(brought.packets, brought.bytes);
        if saved <= 0.0 || saved * part < self.threshold_ns(seen.kind) {
            if brought.span >= window {
                self.candidates.restart(seen.flow, seen.hash, now, counted);
            }
            return Verdict::Stay(Stay::BelowThreshold);
        }
        let cost = self.promotion_cost();
        self.renew_credit(now);
        if self.credit < cost {
            return Verdict::Stay(Stay::Rate);
        }
        // A burst of some packets says little about a rate.
        let span = brought.span.max(Nanos(window.0 / 10)).max(Nanos(1));
        let worth = worth_of(saved, span);
        let displaced = if self.rules.len() < self.settings.rules {
            None
        } else {
            match self.by_worth.first() {
                Some((least, flow)) if worth as f64 >= self.settings.displace_at * (*least).max(1) as f64 => {
                    Some(*flow)
                }
                _ => return Verdict::Stay(Stay::Budget),
            }
        };
        if let Some(flow) = displaced {
            self.withdraw(flow);
        }
        self.credit = self.credit - cost;
        self.candidates.remove(seen.flow, seen.hash);
        self.serial += 1;
        self.queue.push_back((now + window, seen.flow, self.serial));
        let rule = Rule {
            kind: seen.kind,
            since: now,
            looked_at: now,
            packets: seen.packets,
            bytes: seen.bytes,
            worth: None,
            serial: self.serial,
        };
        self.rules.insert(seen.flow, rule);
        displaced.map_or(Verdict::Promote, Verdict::Replace)
    }

    /// A flow of a kind has brought so much in its first [`Settings::window`], on both paths: the threshold is learned from that.
    /// Told of flows with and without a rule alike, and of as few as one likes.
    pub fn brought(&mut self, kind: Kind, packets: u64, bytes: u64) {
        if self.prices.of(kind).saved_ns(1, 64) <= 0.0 && self.prices.of(kind).saved_ns(packets, bytes) <= 0.0
        {
            return;
        }
        // Its first packet is on the slow path in any case.
        let rest = packets.saturating_sub(1) as f64 / packets.max(1) as f64;
        let saved_ns = self.prices.of(kind).saved_ns(packets, bytes) * rest;
        if let Some(lengths) = self.lengths.get_mut(kind.index()) {
            lengths.add(saved_ns);
        }
    }

    /// The rule of a flow is gone, for a reason that has nothing to do with its worth. Whether there was one.
    pub fn withdraw(&mut self, flow: F) -> bool {
        let Some(rule) = self.rules.remove(&flow) else {
            return false;
        };
        if let Some(worth) = rule.worth {
            self.by_worth.remove(&(worth, flow));
        }
        true
    }

    /// Appends flows whose rules are to be looked at now, at most so many. Each is given once: [`Promotion::review`] has it
    /// given again after a window.
    pub fn due(&mut self, now: Nanos, limit: usize, into: &mut Vec<F>) {
        let end = into.len().saturating_add(limit);
        while into.len() < end
            && let Some((at, flow, serial)) = self.queue.front().copied()
            && at <= now
        {
            self.queue.pop_front();
            if self.rules.get(&flow).is_some_and(|rule| rule.serial == serial) {
                into.push(flow);
            }
        }
    }

    /// Looks at the rule of a flow with the counters of both paths. If the flow is to lose it, why: then it has none from now
    /// on.
    pub fn review(&mut self, now: Nanos, flow: F, packets: u64, bytes: u64) -> Option<Why> {
        let rule = self.rules.get_mut(&flow)?;
        let came = packets.saturating_sub(rule.packets);
        let saved = self
            .prices
            .of(rule.kind)
            .saved_ns(came, bytes.saturating_sub(rule.bytes));
        let span = now.since(rule.looked_at).max(Nanos(1));
        let in_window = saved * self.settings.window.0 as f64 / span.0 as f64;
        let why = match came {
            0 => Some(Why::Idle),
            _ if in_window < self.settings.keep_at * self.prices.rule_ns => Some(Why::NotWorth),
            _ => None,
        };
        let before = rule.worth;
        if why.is_some() {
            self.withdraw(flow);
            return why;
        }
        self.serial += 1;
        let worth = worth_of(saved, span);
        (rule.packets, rule.bytes, rule.looked_at) = (packets, bytes, now);
        (rule.worth, rule.serial) = (Some(worth), self.serial);
        self.queue
            .push_back((now + self.settings.window, flow, self.serial));
        if let Some(before) = before {
            self.by_worth.remove(&(before, flow));
        }
        self.by_worth.insert((worth, flow));
        None
    }

    /// How long a flow has had its rule.
    #[must_use]
    pub fn age(&self, now: Nanos, flow: F) -> Option<Nanos> {
        self.rules.get(&flow).map(|rule| now.since(rule.since))
    }

    fn promotion_cost(&self) -> Nanos {
        Nanos(1_000_000_000 / u64::from(self.settings.promotions_per_second.max(1)))
    }

    fn renew_credit(&mut self, now: Nanos) {
        let came = now.since(self.credited);
        self.credited = self.credited.max(now);
        self.credit = (self.credit + came).min(BURST.max(self.promotion_cost()));
    }
}

/// Nanoseconds saved in a second.
fn worth_of(saved_ns: f64, span: Nanos) -> u64 {
    (saved_ns.max(0.0) / span.as_secs_f64()) as u64
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by it")]
mod tests {
    use path_costs::Scope;

    use super::*;
    use crate::prices::{Curve, Paths};

    const LOCAL: Kind = Kind::new(Scope::Local, false);
    const ENCRYPTED: Kind = Kind::new(Scope::Local, true);
    const WINDOW: Nanos = Nanos::from_secs(1);

    /// A packet saves 1 µs, a rule costs 10 µs: 40 packets at first, and 2.5 in a window to stay.
    fn policy(rules: usize) -> Promotion<u32> {
        let flat = |ns| Curve {
            small_ns: ns,
            large_ns: ns,
        };
        let pays = Paths {
            slow: flat(2_000.0),
            fast: Some(flat(1_000.0)),
        };
        let dearer = Paths {
            slow: flat(1_000.0),
            fast: Some(flat(2_000.0)),
        };
        let none = Paths {
            slow: flat(1_000.0),
            fast: None,
        };
        let prices = Prices {
            paths: [pays, dearer, none, none],
            rule_ns: 10_000.0,
        };
        let settings = Settings {
            rules,
            ..Settings::default()
        };
        Promotion::new(settings, prices)
    }

    fn seen(flow: u32, packets: u64) -> Seen<u32> {
        Seen {
            flow,
            hash: u64::from(flow),
            kind: LOCAL,
            packets,
            bytes: packets * 100,
            is_new: false,
            is_open: true,
        }
    }

    fn at(ms: u64) -> Nanos {
        Nanos::from_millis(1_000 + ms)
    }

    fn promote(policy: &mut Promotion<u32>, flow: u32, now: Nanos, packets: u64) -> Verdict<u32> {
        policy.note(now, &seen(flow, 0), false);
        policy.note(now + Nanos::from_millis(100), &seen(flow, packets), false)
    }

    #[test]
    fn a_flow_is_promoted_when_it_would_have_saved_enough() {
        let mut policy = policy(9);
        let early = Verdict::Stay(Stay::BelowThreshold);
        assert_eq!(policy.note(at(0), &seen(1, 1_000), false), early);
        assert_eq!(policy.note(at(1), &seen(1, 1_039), false), early);
        assert_eq!(policy.note(at(2), &seen(1, 1_040), false), Verdict::Promote);
        assert_eq!(
            policy.note(at(3), &seen(1, 1_041), false),
            Verdict::Stay(Stay::HasRule)
        );
        assert!(policy.has(1) && policy.rules() == 1);
        assert_eq!(policy.age(at(9), 1), Some(Nanos::from_millis(7)));
    }

    #[test]
    fn a_slow_flow_never_is() {
        let mut policy = policy(9);
        for second in 0..100 {
            let verdict = policy.note(at(second * 1_000), &seen(1, second * 39), false);
            assert_eq!(verdict, Verdict::Stay(Stay::BelowThreshold), "{second}");
        }
    }

    #[test]
    fn what_saves_nothing_never_is() {
        let mut policy = policy(9);
        for kind in &Kind::ALL[1..] {
            for packets in [1, 1_000_000] {
                let seen = Seen {
                    kind: *kind,
                    ..seen(1, packets)
                };
                assert_eq!(
                    policy.note(at(packets), &seen, false),
                    Verdict::Stay(Stay::NothingSaved)
                );
            }
            assert!(!policy.wants_new(*kind));
        }
        (0..10_000).for_each(|_| policy.brought(ENCRYPTED, 9, 900));
        assert!(!policy.wants_new(ENCRYPTED));
    }

    #[test]
    fn a_flood_promotes_open_flows_alone() {
        let mut policy = policy(9);
        let half_open = |packets| Seen {
            is_open: false,
            ..seen(1, packets)
        };
        for packets in [1, 50, 99] {
            let verdict = policy.note(at(packets), &half_open(packets), true);
            assert_eq!(verdict, Verdict::Stay(Stay::Flooded));
        }
        policy.note(at(100), &seen(1, 100), true);
        assert_eq!(policy.note(at(110), &seen(1, 140), true), Verdict::Promote);
    }

    #[test]
    fn short_flows_get_rules_at_once_if_they_are_worth_it() {
        let mut policy = policy(9);
        let new = Seen {
            is_new: true,
            ..seen(1, 1)
        };
        assert_eq!(
            policy.note(at(0), &new, false),
            Verdict::Stay(Stay::BelowThreshold)
        );
        assert!(!policy.wants_new(LOCAL));
        (0..100).for_each(|_| policy.brought(LOCAL, 12, 1_200));
        assert!(policy.wants_new(LOCAL));
        let new = Seen {
            is_new: true,
            ..seen(2, 1)
        };
        assert_eq!(policy.note(at(0), &new, false), Verdict::Promote);
        // Shorter ones are not, and heavy ones still are.
        (0..20_000).for_each(|_| policy.brought(LOCAL, 8, 800));
        assert!(!policy.wants_new(LOCAL));
        assert_eq!(
            promote(&mut policy, 3, at(10), 319),
            Verdict::Stay(Stay::BelowThreshold)
        );
        assert_eq!(promote(&mut policy, 3, at(200), 640), Verdict::Promote);
    }

    #[test]
    fn a_rule_stays_while_it_is_worth_it() {
        let mut policy = policy(9);
        promote(&mut policy, 1, at(0), 100);
        let mut due = Vec::new();
        policy.due(at(1_099), 9, &mut due);
        assert!(due.is_empty());
        policy.due(at(1_100), 9, &mut due);
        assert_eq!(due, [1]);
        assert_eq!(policy.review(at(1_100), 1, 103, 10_300), None);
        policy.due(at(2_099), 9, &mut due);
        assert_eq!(due, [1], "each once in a window");
        assert_eq!(
            policy.review(at(2_100), 1, 105, 10_500),
            Some(Why::NotWorth),
            "two packets"
        );
        assert!(!policy.has(1));
        assert_eq!(policy.review(at(2_100), 1, 105, 10_500), None);
        policy.due(at(9_000), 9, &mut due);
        assert_eq!(due, [1], "it has no rule any more");
        promote(&mut policy, 2, at(9_000), 100);
        assert_eq!(policy.review(at(10_100), 2, 100, 10_000), Some(Why::Idle));
    }

    #[test]
    fn a_flow_that_is_worth_more_takes_the_place_of_another() {
        let mut policy = policy(2);
        assert_eq!(promote(&mut policy, 1, at(0), 100), Verdict::Promote);
        assert_eq!(promote(&mut policy, 2, at(0), 100), Verdict::Promote);
        let budget = Verdict::Stay(Stay::Budget);
        assert_eq!(
            promote(&mut policy, 3, at(0), 100_000),
            budget,
            "nobody was looked at yet"
        );
        assert_eq!(policy.review(at(1_100), 1, 1_100, 110_000), None);
        assert_eq!(policy.review(at(1_100), 2, 600, 60_000), None);
        // 500 packets in a second is the least. In a tenth of a second: 50.
        assert_eq!(promote(&mut policy, 4, at(1_200), 99), budget);
        assert_eq!(promote(&mut policy, 5, at(1_200), 100), Verdict::Replace(2));
        assert!(policy.has(5) && policy.has(1) && !policy.has(2));
        assert_eq!(policy.rules(), 2);
    }

    #[test]
    fn promotions_have_a_rate() {
        let mut policy = policy(100_000);
        policy.settings.promotions_per_second = 100;
        let mut promoted = |from: u32, now| {
            let flows = from..from + 1_000;
            let verdicts = flows.map(|flow| promote(&mut policy, flow, now, 1_000));
            verdicts.filter(|verdict| *verdict == Verdict::Promote).count()
        };
        assert_eq!(promoted(0, at(0)), 10);
        assert_eq!(promoted(1_000, at(50)), 5);
        assert_eq!(promoted(2_000, at(50) + WINDOW), 10);
    }

    #[test]
    fn a_rule_that_is_gone_is_not_looked_at() {
        let mut policy = policy(9);
        promote(&mut policy, 1, at(0), 100);
        assert!(policy.withdraw(1));
        assert!(!policy.withdraw(1));
        promote(&mut policy, 1, at(500), 100);
        let mut due = Vec::new();
        policy.due(at(1_599), 9, &mut due);
        assert!(due.is_empty());
        policy.due(at(1_600), 9, &mut due);
        assert_eq!(due, [1]);
    }
}
