//! What holds for all traffic, settings and prices.
#![allow(clippy::unwrap_used, reason = "what goes wrong here fails the test")]

use std::collections::{BTreeMap, BTreeSet};

use model::Nanos;
use promotion::{Curve, Kind, Paths, Prices, Promotion, Seen, Settings, Verdict};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Step {
    /// Packets of a flow, of which one is drawn.
    Packets(u8, u64),
    /// A new flow under a name that is free.
    New(u8),
    Ends(u8),
    /// The rule goes with the flow's instance.
    Withdraw(u8),
    /// Milliseconds.
    Wait(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        8 => (0..12_u8, 1..400_u64).prop_map(|(flow, packets)| Step::Packets(flow, packets)),
        2 => (0..12_u8).prop_map(Step::New),
        2 => (0..12_u8).prop_map(Step::Ends),
        1 => (0..12_u8).prop_map(Step::Withdraw),
        4 => (1..700_u64).prop_map(Step::Wait),
    ];
    proptest::collection::vec(step, 1..600)
}

fn prices() -> impl Strategy<Value = Prices> {
    let flat = |ns| Curve {
        small_ns: ns,
        large_ns: ns,
    };
    let paths = (100.0..5_000.0_f64, proptest::option::of(100.0..5_000.0_f64));
    let paths = paths.prop_map(move |(slow, fast)| Paths {
        slow: flat(slow),
        fast: fast.map(flat),
    });
    (proptest::array::uniform4(paths), 100.0..50_000.0_f64)
        .prop_map(|(paths, rule_ns)| Prices { paths, rule_ns })
}

/// A flow's kind, by its name.
fn kind(flow: u8) -> Kind {
    Kind::ALL[usize::from(flow) % Kind::ALL.len()]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]
    #[test]
    fn rules_are_few_and_each_was_earned(
        steps in steps(), prices in prices(), budget in 0..6_usize, rate in 1..50_u32
    ) {
        let settings = Settings {
            rules: budget,
            promotions_per_second: rate,
            candidates: 8,
            ..Settings::default()
        };
        let mut policy = Promotion::new(settings, prices.clone());
        let mut flows = BTreeMap::<u8, u64>::new();
        let mut rules = BTreeSet::new();
        let mut promoted_at = Vec::new();
        let mut now = Nanos::from_secs(100);
        for step in steps {
            let mut asked = None;
            match step {
                Step::Packets(name, packets) => {
                    if let Some(counted) = flows.get_mut(&name) {
                        *counted += packets;
                        asked = (!rules.contains(&name)).then_some((name, false));
                    }
                }
                Step::New(name) => {
                    if let std::collections::btree_map::Entry::Vacant(place) = flows.entry(name) {
                        place.insert(1);
                        asked = policy.wants_new(kind(name)).then_some((name, true));
                    }
                }
                Step::Ends(name) => {
                    if let Some(packets) = flows.remove(&name) {
                        prop_assert_eq!(policy.withdraw(name), rules.remove(&name));
                        policy.brought(kind(name), packets, packets * 100);
                    }
                }
                Step::Withdraw(name) => prop_assert_eq!(policy.withdraw(name), rules.remove(&name)),
                Step::Wait(ms) => {
                    now = now + Nanos::from_millis(ms);
                    let mut due = Vec::new();
                    policy.due(now, 3, &mut due);
                    for name in due {
                        prop_assert!(rules.contains(&name), "{} has no rule", name);
                        let packets = flows[&name];
                        if policy.review(now, name, packets, packets * 100).is_some() {
                            rules.remove(&name);
                        }
                    }
                }
            }
            if let Some((name, is_new)) = asked {
                let packets = flows[&name];
                let seen = Seen {
                    flow: name,
                    hash: u64::from(name),
                    kind: kind(name),
                    packets,
                    bytes: packets * 100,
                    is_new,
                    is_open: !is_new,
                };
                let is_flooded = now.0.is_multiple_of(3);
                let verdict = policy.note(now, &seen, is_flooded);
                if let Verdict::Replace(other) = verdict {
                    prop_assert!(rules.remove(&other), "{} had no rule", other);
                    prop_assert_eq!(rules.len() + 1, budget, "the budget is not used up");
                }
                if !matches!(verdict, Verdict::Stay(_)) {
                    prop_assert!(rules.insert(name));
                    prop_assert!(prices.of(kind(name)).saved_ns(packets, packets * 100) > 0.0, "nothing is saved");
                    prop_assert!(seen.is_open || !is_flooded, "a flow of a flood has a rule");
                    promoted_at.push(now);
                }
            }
            prop_assert!(rules.len() <= budget);
            prop_assert_eq!(policy.rules(), rules.len());
            prop_assert!(rules.iter().all(|name| policy.has(*name)));
        }
        // In no second more than their rate says, and a tenth of it at once.
        for (at, first) in promoted_at.iter().enumerate() {
            let within = promoted_at[at..].iter().filter(|then| then.since(*first) < Nanos::from_secs(1)).count();
            prop_assert!(within as u64 <= u64::from(rate) + u64::from(rate) / 10 + 2, "{within} in a second");
        }
    }

    /// However many flows there are that come once or twice, none gets a rule, and a heavy one does.
    #[test]
    fn a_flood_gets_no_rules_and_hides_no_heavy_flow(flood in 1_000..20_000_u32, seed in any::<u64>()) {
        let mut policy = Promotion::new(Settings::default(), Prices::default());
        let kind = Kind::ALL[0];
        let mut random = seed | 1;
        let mut promoted = 0;
        let now = |step: u32| Nanos::from_secs(100) + Nanos::from_micros(u64::from(step) * 50);
        for step in 0..flood {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            for (flow, packets) in [(step + 1, 1 + random % 2), (0, 10 + u64::from(step))] {
                // A tenth of the packets is the heavy flow's.
                if flow == 0 && !step.is_multiple_of(10) {
                    continue;
                }
                let hash = u64::from(flow).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(31);
                let is_open = flow == 0;
                let seen = Seen { flow, hash, kind, packets, bytes: packets * 64, is_new: false, is_open };
                if policy.note(now(step), &seen, false) != Verdict::Stay(promotion::Stay::BelowThreshold)
                    && policy.has(flow)
                {
                    prop_assert!(flow == 0, "a packet of the flood has a rule");
                    promoted += 1;
                }
            }
            if step > 0 && step.is_multiple_of(10) {
                policy.brought(kind, 1, 64);
            }
        }
        prop_assert!(promoted >= 1, "the heavy flow has no rule");
    }
}
