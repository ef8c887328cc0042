//! The guarantees of every scheduler, and the particular ones of each.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::BTreeSet;

use model::{Direction, FlowKey, Nanos, PlaceId, Slot, Tuple, mix, protocol};
use proptest::prelude::*;
use scheduling::{
    Candidate, Candidates, Machines, NewFlow, PRIORITIES, Pick, Renewed, Scheduler, Settings, State,
    TOTAL_WEIGHT, Terms, rss_hash,
};

const FIT: f32 = 0.9;
const OLD: Nanos = Nanos::from_secs(100);

fn candidate(slot: u16, capacity: f32, load: f32) -> Candidate {
    Candidate {
        slot: Slot(slot),
        place: PlaceId::default(),
        capacity,
        load,
        trust: 1.0,
        weight: 256,
        live_flows: u32::from(load > 0.0),
        active_for: OLD,
        queues: [0.0; PRIORITIES],
    }
}

fn terms(at_ms: u64, fit: f32) -> Terms {
    Terms {
        at: Nanos::from_millis(at_ms),
        fit,
        slow_start: Nanos::from_secs(1),
    }
}

fn listed(rows: &[Candidate], terms: Terms) -> Candidates {
    let mut candidates = Candidates::new();
    relist(&mut candidates, rows, terms);
    candidates
}

fn relist(candidates: &mut Candidates, rows: &[Candidate], terms: Terms) {
    candidates.begin(terms);
    rows.iter().for_each(|row| candidates.push(*row));
}

fn named(name: &str) -> Scheduler {
    Scheduler::from_name(name).unwrap()
}

fn with(name: &str, settings: Settings, parameters: &str) -> Scheduler {
    let mut parameters = serde_json::Deserializer::from_str(parameters);
    Scheduler::with_parameters(name, settings, &mut parameters).unwrap()
}

/// The n-th of many flows with different addresses, hashes and priorities.
struct Flow {
    key: FlowKey,
    direction: Direction,
    hash: u64,
    dscp: u8,
}

impl Flow {
    fn number(n: u32) -> Flow {
        let tuple = Tuple {
            src: std::net::Ipv4Addr::from(0x0a00_0000 | n & 0x00ff_ffff).into(),
            dst: "10.128.0.1".parse().unwrap(),
            src_port: 1024 + (n % 50_000) as u16,
            dst_port: 80,
            protocol: protocol::TCP,
            vlan: 0,
        };
        let (key, direction) = FlowKey::new(&tuple);
        Flow {
            key,
            direction,
            // Uniform bits, like the flow table's hash.
            hash: u64::from(n)
                .wrapping_add(1)
                .wrapping_mul(0x9e37_79b9_7f4a_7c15)
                .rotate_left(23)
                .wrapping_mul(0xd6e8_feb8_6659_fd93),
            dscp: (n % 64) as u8,
        }
    }

    fn new_flow(&self, expected: f32) -> NewFlow<'_> {
        NewFlow {
            key: &self.key,
            direction: self.direction,
            hash: self.hash,
            expected,
            dscp: self.dscp,
            among: &[],
        }
    }
}

fn pick(scheduler: &mut Scheduler, candidates: &Candidates, n: u32) -> Pick {
    scheduler.pick(&Flow::number(n).new_flow(1.0), candidates)
}

/// Picks and pins, as a worker does.
fn place(scheduler: &mut Scheduler, candidates: &mut Candidates, n: u32, expected: f32) -> usize {
    let flow = Flow::number(n);
    let flow = flow.new_flow(expected);
    let index = scheduler.pick(&flow, candidates).index().unwrap();
    candidates.pin(index, &flow);
    index
}

/// Flows that differ only in key, hash and direction, with any expected load and priority.
#[test]
fn is_by_flow_is_true_if_picks_depend_on_the_flow() {
    for name in Scheduler::NAMES {
        let picks = |first: u32| -> Vec<usize> {
            let mut scheduler = named(name);
            let rows: Vec<Candidate> = (0..8).map(|slot| candidate(slot, 1_000.0, 0.0)).collect();
            let mut candidates = listed(&rows, terms(0, FIT));
            scheduler.settle(&candidates);
            let numbers = (first..first + 512).step_by(64);
            numbers
                .map(|n| place(&mut scheduler, &mut candidates, n, 150.0))
                .collect()
        };
        assert_eq!(picks(0) != picks(6_400), named(name).is_by_flow(), "{name}");
    }
}

fn rows() -> impl Strategy<Value = Vec<Candidate>> {
    // Few distinct values, so that ties occur; some fresh instances, some without weight.
    let one = (1u16..5, 0u32..12, 0u32..3, 0u64..8, 0u16..4);
    proptest::collection::vec(one, 0..80).prop_map(|list| {
        let mut slot = 0;
        list.into_iter()
            .map(|(gap, load, live_flows, age, weight)| {
                slot += gap;
                Candidate {
                    slot: Slot(slot),
                    place: PlaceId::default(),
                    capacity: if load % 5 == 4 { 500.0 } else { 1_000.0 },
                    load: load as f32 * 100.0,
                    trust: 1.0,
                    weight: weight * 128,
                    live_flows,
                    active_for: Nanos::from_millis(age * 250),
                    queues: [0.0; PRIORITIES],
                }
            })
            .collect()
    })
}

proptest! {
    #[test]
    fn a_pick_is_a_candidate_and_reports_whether_it_fits(
        rows in rows(), fit in 0.1f32..1.2, n in any::<u32>(), spill in any::<bool>(),
    ) {
        for name in Scheduler::NAMES {
            let mut scheduler = named(name).with_settings(Settings { spill, ..Settings::default() });
            match pick(&mut scheduler, &listed(&rows, terms(0, fit)), n) {
                Pick::Fits(i) => prop_assert!(rows[i].fits(fit)),
                Pick::Overcommitted(i) => prop_assert!(!rows[i].fits(fit)),
                Pick::None => prop_assert!(rows.is_empty()),
            }
        }
    }

    #[test]
    fn capacity_is_respected_if_any_instance_fits(rows in rows(), fit in 0.1f32..1.2, first in any::<u32>(), flows in 1u32..60) {
        for name in Scheduler::NAMES {
            let mut scheduler = named(name);
            let mut candidates = listed(&rows, terms(0, fit));
            for n in 0..flows {
                let any_fits = candidates.rows().iter().any(|row| row.fits(fit));
                let flow = Flow::number(first.wrapping_add(n));
                let flow = flow.new_flow(70.0);
                let picked = scheduler.pick(&flow, &candidates);
                prop_assert_eq!(matches!(picked, Pick::Fits(_)), any_fits, "{} {:?}", name, picked);
                if let Some(index) = picked.index() {
                    candidates.pin(index, &flow);
                }
            }
        }
    }

    #[test]
    fn renewing_equals_rebuilding_the_list(
        rows in rows(),
        lists in proptest::collection::vec(proptest::collection::vec((0u32..12, 0u32..3, 0u64..8), 80), 1..4),
        pins in 0u32..20,
        fit in 0.1f32..1.2,
    ) {
        let (mut again, mut renewed) = (listed(&rows, terms(0, FIT)), listed(&rows, terms(0, FIT)));
        let mut scheduler = named("worst-fit");
        for (n, list) in (1..).zip(lists) {
            for number in 0..pins.min(rows.len() as u32) {
                // Every second list also has flows of other priorities.
                let mut flow = Flow::number(number);
                flow.dscp *= (n % 2) as u8;
                let flow = flow.new_flow(70.0);
                let index = scheduler.pick(&flow, &again).index().unwrap();
                again.pin(index, &flow);
                renewed.pin(index, &flow);
            }
            let of = |(load, live_flows, age): (u32, u32, u64)| Renewed {
                load: load as f32 * 100.0,
                live_flows,
                active_for: Nanos::from_millis(age * 250),
            };
            let fresh: Vec<Candidate> = rows
                .iter()
                .zip(&list)
                .map(|(row, new)| {
                    let Renewed { load, live_flows, active_for } = of(*new);
                    Candidate { load, live_flows, active_for, ..*row }
                })
                .collect();
            relist(&mut again, &fresh, terms(n, fit));
            renewed.renew(terms(n, fit), |index, _| of(list[index]));
            prop_assert_eq!(format!("{again:?}"), format!("{renewed:?}"));
        }
    }

    #[test]
    fn the_same_calls_give_the_same_picks(rows in rows(), calls in 1u32..40) {
        for name in Scheduler::NAMES {
            let mut one = named(name);
            let mut two = one.clone();
            let (mut first, mut second) = (listed(&rows, terms(0, FIT)), listed(&rows, terms(0, FIT)));
            for n in 0..calls {
                let (a, b) = (pick(&mut one, &first, n), pick(&mut two, &second, n));
                prop_assert_eq!(a, b);
                if let Some(index) = a.index() {
                    first.pin(index, &Flow::number(n).new_flow(10.0));
                    second.pin(index, &Flow::number(n).new_flow(10.0));
                }
            }
        }
    }

    /// The incrementally updated state equals the state rebuilt from the same list.
    #[test]
    fn an_updated_scheduler_picks_like_a_new_one(rows in rows(), flows in 1u32..60, removed in any::<prop::sample::Index>()) {
        prop_assume!(!rows.is_empty());
        for name in Scheduler::NAMES {
            // Round-robin depends on its position; tables change in steps.
            let mut old = named(name);
            let mut candidates = listed(&rows, terms(0, FIT));
            for n in 0..flows {
                place(&mut old, &mut candidates, n, 30.0);
            }
            if rows.len() > 1 {
                candidates.remove(rows[removed.index(rows.len())].slot);
            }
            old.settle(&candidates);
            let mut state = State::default();
            old.save(&mut state);
            let mut new = named(name);
            new.restore(&state);
            let copy = listed(candidates.rows(), *candidates.terms());
            new.settle(&copy);
            if *name != "round-robin" {
                for n in 0..20 {
                    prop_assert_eq!(pick(&mut old, &candidates, n), pick(&mut new, &copy, n), "{}", name);
                }
            } else if candidates.rows().iter().all(|row| row.active_for >= Nanos::from_secs(1)) {
                prop_assert_eq!(pick(&mut old, &candidates, 0), pick(&mut new, &copy, 0));
            }
        }
    }

    #[test]
    fn best_fit_takes_the_most_utilised_that_fits(rows in rows(), fit in 0.1f32..1.2) {
        match pick(&mut named("best-fit"), &listed(&rows, terms(0, fit)), 0) {
            Pick::Fits(i) => for (j, other) in rows.iter().enumerate().filter(|(_, c)| c.fits(fit)) {
                let (chosen, other) = (rows[i].utilisation(), other.utilisation());
                prop_assert!(other < chosen || (other == chosen && i <= j));
            },
            Pick::Overcommitted(i) => for (j, other) in rows.iter().enumerate() {
                let candidates = listed(&rows, terms(0, fit));
                let cost = |index: usize| rows[index].utilisation() / candidates.ramp(index);
                prop_assert!(!other.fits(fit) && cost(j) >= cost(i));
            },
            Pick::None => prop_assert!(rows.is_empty()),
        }
    }

    #[test]
    fn worst_fit_takes_the_least_utilised(rows in rows(), fit in 0.1f32..1.2) {
        let rows: Vec<_> = rows.into_iter().map(|row| Candidate { active_for: OLD, ..row }).collect();
        let picked = pick(&mut named("worst-fit"), &listed(&rows, terms(0, fit)), 0);
        if let Some(i) = picked.index() {
            for other in &rows {
                prop_assert!(other.utilisation() >= rows[i].utilisation());
            }
        }
    }

    #[test]
    fn least_connections_takes_the_one_with_the_fewest_flows_for_its_size(rows in rows()) {
        let rows: Vec<_> = rows.into_iter().map(|row| Candidate { active_for: OLD, weight: 256, ..row }).collect();
        if let Pick::Fits(i) = pick(&mut named("least-connections"), &listed(&rows, terms(0, FIT)), 0) {
            let each = |row: &Candidate| row.live_flows as f32 / row.capacity;
            for other in rows.iter().filter(|row| row.fits(FIT)) {
                prop_assert!(each(other) >= each(&rows[i]));
            }
        }
    }

    #[test]
    fn power_of_two_takes_an_idle_one_if_there_is_one(rows in rows(), n in any::<u32>()) {
        let is_idle = |row: &Candidate| row.load == 0.0 && row.live_flows == 0;
        if let Some(i) = pick(&mut named("power-of-two"), &listed(&rows, terms(0, FIT)), n).index()
            && rows.iter().any(is_idle)
        {
            prop_assert!(is_idle(&rows[i]));
        }
    }

    #[test]
    fn weights_sum_up_to_256_and_are_smartlbs(counts in proptest::collection::vec(0u32..2000, 1..40)) {
        let rows: Vec<_> = (0u16..).zip(&counts).map(|(n, count)| candidate(n, 1e6, *count as f32)).collect();
        let candidates = listed(&rows, terms(0, FIT));
        let mut scheduler = named("weighted");
        scheduler.settle(&candidates);
        let shares = scheduler.shares(&candidates).unwrap();
        let weights: Vec<f64> = shares.iter().map(|share| share * f64::from(TOTAL_WEIGHT)).collect();
        prop_assert_eq!(weights.iter().sum::<f64>(), 256.0);
        let (total, n) = (counts.iter().sum::<u32>(), counts.len());
        for (weight, count) in weights.iter().zip(&counts) {
            let exact = match (n, total) {
                (1, _) => 256.0,
                (_, 0) => 256.0 / n as f64,
                _ => 256.0 * f64::from(total - count) / (f64::from(total) * (n - 1) as f64),
            };
            prop_assert!((weight - exact).abs() < 1.0, "{weight} is not {exact}");
        }
        // They are told with what they were computed from, once for each time.
        prop_assert!(scheduler.has_weights() && scheduler.weighings() == 1);
        for (index, (weight, count)) in weights.iter().zip(&counts).enumerate() {
            let told = scheduler.weighing(&candidates, index).unwrap();
            prop_assert_eq!((f64::from(told.weight), told.counted), (*weight, f64::from(*count)));
        }
        prop_assert!(scheduler.weighing(&candidates, n).is_none());
    }

    #[test]
    fn weighted_gives_new_flows_in_proportion(first in any::<u32>()) {
        let rows = [candidate(0, 1e9, 300.0), candidate(1, 1e9, 100.0), candidate(2, 1e9, 0.0)];
        let candidates = listed(&rows, terms(0, FIT));
        let mut scheduler = named("weighted");
        let mut got = [0u32; 3];
        for n in 0..20_000 {
            got[pick(&mut scheduler, &candidates, first.wrapping_add(n)).index().unwrap()] += 1;
        }
        // (400 - count) / 800.
        for (got, share) in got.iter().zip([0.125, 0.375, 0.5]) {
            prop_assert!((f64::from(*got) / 20_000.0 - share).abs() < 0.02, "{got} is not {share} of 20000");
        }
    }

    #[test]
    fn round_robin_gives_each_instance_one_turn_per_round(rows in rows(), start in 0u32..50) {
        prop_assume!(!rows.is_empty());
        let rows: Vec<_> = rows.into_iter().map(|row| Candidate { active_for: OLD, ..row }).collect();
        // As in SmartINCO, a full one keeps its turn.
        let mut scheduler = named("round-robin").with_settings(Settings { spill: false, ..Settings::default() });
        let candidates = listed(&rows, terms(0, FIT));
        for n in 0..start {
            pick(&mut scheduler, &candidates, n);
        }
        let mut turns = vec![0; rows.len()];
        for n in 0..rows.len() as u32 * 3 {
            turns[pick(&mut scheduler, &candidates, n).index().unwrap()] += 1;
        }
        prop_assert!(turns.iter().all(|t| *t == 3), "{:?}", turns);
    }

    #[test]
    fn round_robin_keeps_its_position_when_instances_change(
        before in proptest::collection::btree_set(0u16..40, 1..20),
        after in proptest::collection::btree_set(0u16..40, 1..20),
        flows in 1u32..30,
    ) {
        let list = |slots: &BTreeSet<u16>| -> Vec<Candidate> {
            slots.iter().map(|s| candidate(*s, 10.0, 0.0)).collect()
        };
        let (before, after) = (list(&before), list(&after));
        let mut scheduler = named("round-robin");
        let mut candidates = listed(&before, terms(0, FIT));
        let mut last = Slot(0);
        for n in 0..flows {
            last = before[pick(&mut scheduler, &candidates, n).index().unwrap()].slot;
        }
        relist(&mut candidates, &after, terms(1, FIT));
        let next = after[pick(&mut scheduler, &candidates, 0).index().unwrap()].slot;
        let expected = after.iter().map(|c| c.slot).find(|s| *s > last).unwrap_or(after[0].slot);
        prop_assert_eq!(next, expected);
    }

    #[test]
    fn a_burst_overcommits_no_instance_before_all_are_full(
        count in 1u16..10, flows in 1u32..200, each in 1u32..30,
    ) {
        for name in Scheduler::NAMES {
            let mut scheduler = named(name);
            let rows: Vec<_> = (0..count).map(|s| candidate(s, 100.0, 0.0)).collect();
            let mut candidates = listed(&rows, terms(0, FIT));
            for n in 0..flows {
                let flow = Flow::number(n);
                let flow = flow.new_flow(each as f32);
                let picked = scheduler.pick(&flow, &candidates);
                if let Pick::Overcommitted(_) = picked {
                    prop_assert!(candidates.rows().iter().all(|c| !c.fits(FIT)));
                }
                candidates.pin(picked.index().unwrap(), &flow);
            }
            let rows = candidates.rows();
            let (low, high) = rows.iter().fold((f32::MAX, 0f32), |(l, h), c| (l.min(c.load), h.max(c.load)));
            match *name {
                "worst-fit" | "least-connections" | "round-robin" => prop_assert!(high - low <= each as f32),
                "best-fit" => {
                    // Every instance but one is either unused or filled to `fit`.
                    let between = rows.iter().filter(|c| c.load > 0.0 && c.fits(FIT)).count();
                    prop_assert!(between <= 1, "{:?}", rows);
                }
                _ => {}
            }
        }
    }

    #[test]
    fn maglev_shares_follow_weights(weights in proptest::collection::vec(1u16..5, 2..20)) {
        let rows: Vec<_> = (0u16..).zip(&weights)
            .map(|(n, weight)| Candidate { weight: weight * 64, ..candidate(n * 3, 1e9, 0.0) })
            .collect();
        let candidates = listed(&rows, terms(0, FIT));
        let mut scheduler = named("maglev");
        scheduler.settle(&candidates);
        let total: u16 = weights.iter().sum();
        for (share, weight) in scheduler.shares(&candidates).unwrap().iter().zip(&weights) {
            let exact = f64::from(*weight) / f64::from(total);
            prop_assert!((share - exact).abs() < 0.01 * exact.max(0.1), "{share} is not {exact}");
        }
    }

    #[test]
    fn source_hash_sends_a_source_to_one_instance(rows in rows(), n in any::<u32>(), ports in proptest::collection::vec(any::<u16>(), 1..20)) {
        let rows: Vec<_> = rows.into_iter().map(|row| Candidate { load: 0.0, ..row }).collect();
        prop_assume!(!rows.is_empty());
        let candidates = listed(&rows, terms(0, FIT));
        let mut scheduler = named("source-hash");
        scheduler.settle(&candidates);
        let mut picked = BTreeSet::new();
        for port in ports {
            let tuple = Tuple { src_port: port, ..Flow::number(n).key.tuple(Flow::number(n).direction) };
            let (key, direction) = FlowKey::new(&tuple);
            let flow = NewFlow { key: &key, direction, hash: u64::from(port), expected: 1.0, dscp: 0, among: &[] };
            picked.insert(scheduler.pick(&flow, &candidates).index().unwrap());
        }
        prop_assert_eq!(picked.len(), 1);
    }
}

/// When one of N instances leaves, at most 1 % of the others' flows would move.
#[test]
fn few_flows_of_others_move_when_an_instance_leaves() {
    for name in ["maglev", "source-hash"] {
        for count in [2u16, 3, 4, 8, 16, 32, 64] {
            let rows: Vec<_> = (0..count).map(|n| candidate(n, 1e9, 0.0)).collect();
            let mut candidates = listed(&rows, terms(0, FIT));
            let mut scheduler = named(name);
            scheduler.settle(&candidates);
            let flows = 20_000;
            let before: Vec<Slot> = (0..flows)
                .map(|n| candidates.rows()[pick(&mut scheduler, &candidates, n).index().unwrap()].slot)
                .collect();
            for gone in [0, count / 2, count - 1].map(Slot) {
                let mut scheduler = scheduler.clone();
                let rows: Vec<_> = rows.iter().copied().filter(|row| row.slot != gone).collect();
                relist(&mut candidates, &rows, terms(1, FIT));
                scheduler.settle(&candidates);
                let (mut stayed, mut moved) = (0u32, 0u32);
                for (n, before) in (0..flows).zip(&before) {
                    let now = rows[pick(&mut scheduler, &candidates, n).index().unwrap()].slot;
                    assert_ne!(now, gone);
                    if *before != gone {
                        stayed += 1;
                        moved += u32::from(now != *before);
                    }
                }
                assert!(
                    f64::from(moved) <= 0.01 * f64::from(stayed),
                    "{name}: when {gone} of {count} leaves, {moved} of {stayed} move"
                );
            }
        }
    }
}

/// During a table's rebuild every flow goes to a present instance.
#[test]
fn a_table_follows_a_change_within_some_lists() {
    let rows: Vec<_> = (0..8).map(|n| candidate(n, 1e9, 0.0)).collect();
    let mut candidates = listed(&rows, terms(0, FIT));
    let mut scheduler = named("maglev");
    scheduler.settle(&candidates);
    let newer: Vec<_> = (3..12).map(|n| candidate(n, 1e9, 0.0)).collect();
    for ms in 1..=33 {
        relist(&mut candidates, &newer, terms(ms, FIT));
        for n in 0..100 {
            assert!(pick(&mut scheduler, &candidates, n).index().unwrap() < newer.len());
        }
    }
    let shares = scheduler.shares(&candidates).unwrap();
    assert!(
        shares.iter().all(|share| (share * 9.0 - 1.0).abs() < 0.02),
        "{shares:?}"
    );
}

#[test]
fn round_robin_wraps_after_the_last_instance() {
    let rows: Vec<Candidate> = (0..3).map(|s| candidate(s, 10.0, 0.0)).collect();
    let candidates = listed(&rows, terms(0, FIT));
    let mut scheduler = named("round-robin");
    let turns: Vec<usize> = (0..7)
        .map(|n| pick(&mut scheduler, &candidates, n).index().unwrap())
        .collect();
    assert_eq!(turns, [0, 1, 2, 0, 1, 2, 0]);
}

/// A fresh instance beside seven that are half full gets a part of the next flows, not all, and finally as
/// much as the others.
#[test]
fn a_fresh_instance_ramps_up_without_a_stampede() {
    const EACH: f32 = 1.0;
    for name in Scheduler::NAMES {
        let mut scheduler = named(name);
        let mut candidates = Candidates::new();
        let mut loads = [500.0, 500.0, 500.0, 500.0, 500.0, 500.0, 500.0, 0.0f32];
        let mut flows = [500, 500, 500, 500, 500, 500, 500, 0u32];
        let (mut n, mut of_first, mut of_second) = (0, 0, 0);
        // One new flow per millisecond for two seconds; the eighth instance becomes Active at 0.
        for ms in 0..2000 {
            let rows: Vec<_> = (0u16..8)
                .map(|slot| Candidate {
                    active_for: if slot == 7 { Nanos::from_millis(ms) } else { OLD },
                    live_flows: flows[usize::from(slot)],
                    ..candidate(slot, 10_000.0, loads[usize::from(slot)])
                })
                .collect();
            relist(&mut candidates, &rows, terms(ms, FIT));
            n += 1;
            let index = place(&mut scheduler, &mut candidates, n, EACH);
            loads[index] += EACH;
            flows[index] += 1;
            let of_part = if ms < 1000 { &mut of_first } else { &mut of_second };
            *of_part += u32::from(index == 7);
            if ms == 62 {
                // In the first sixteenth: 63 would be all flows, 8 an even share.
                let got = flows[7];
                assert!(
                    got <= 40,
                    "{name}: {got} of the first 63 flows went to the fresh one"
                );
            }
        }
        match *name {
            // Fills one instance before opening the next.
            "best-fit" => assert_eq!(of_first + of_second, 0, "{name}"),
            // Based on current load or flows: it catches up.
            "worst-fit" | "least-connections" | "jbsq" => {
                assert!(
                    of_first + of_second > 500,
                    "{name}: {of_first} and {of_second} of 1000 each"
                );
            }
            // The better one whenever it is drawn.
            "power-of-two" => assert!((150..=350).contains(&of_first) && of_second > 150, "{name}"),
            // The same, and it is drawn by its share.
            "machines" => assert!(
                (80..=350).contains(&of_first) && of_second > 150,
                "{name}: {of_first} and {of_second}"
            ),
            // Share-based: about half an even share in its first second, then a whole one.
            _ => {
                assert!(
                    (25..=110).contains(&of_first),
                    "{name}: {of_first} of the first 1000"
                );
                assert!(
                    (80..=330).contains(&of_second),
                    "{name}: {of_second} of the second 1000"
                );
            }
        }
    }
}

/// No other instance has room: the fresh one takes all flows.
#[test]
fn a_ramp_yields_if_only_the_fresh_instance_fits() {
    for name in Scheduler::NAMES {
        let mut scheduler = named(name);
        let mut rows: Vec<_> = (0..4).map(|slot| candidate(slot, 100.0, 95.0)).collect();
        rows.push(Candidate {
            active_for: Nanos::ZERO,
            ..candidate(4, 100.0, 0.0)
        });
        let mut candidates = listed(&rows, terms(0, FIT));
        for n in 0..90 {
            assert_eq!(place(&mut scheduler, &mut candidates, n, 1.0), 4, "{name}");
        }
    }
}

/// The others are nearly full: load-based policies fill the fresh instance now, not in a second. A flow may
/// bring more than expected and no longer fit the others.
#[test]
fn a_ramp_yields_when_the_others_are_nearly_full() {
    for name in ["worst-fit", "least-connections", "jbsq", "power-of-two"] {
        let fresh = |load: f32| {
            let mut rows: Vec<_> = (0..4)
                .map(|slot| Candidate {
                    live_flows: load as u32,
                    ..candidate(slot, 100.0, load)
                })
                .collect();
            rows.push(Candidate {
                active_for: Nanos::ZERO,
                live_flows: 0,
                ..candidate(4, 100.0, 0.0)
            });
            rows
        };
        let given = |load: f32| {
            let (mut scheduler, mut candidates) = (named(name), listed(&fresh(load), terms(0, FIT)));
            (0..100)
                .filter(|n| place(&mut scheduler, &mut candidates, *n, 0.5) == 4)
                .count()
        };
        let (calm, needed) = (given(20.0), given(80.0));
        assert!(
            calm <= 40,
            "{name}: {calm} of 100 while the others have much room"
        );
        assert!(
            needed >= 70 || name == "power-of-two" && needed > 30,
            "{name}: {needed} of 100"
        );
        // The ramp is visible, and a list without fresh instances has none.
        let candidates = listed(&fresh(80.0), terms(0, FIT));
        assert_eq!(candidates.ramp(4), 14.0 / 16.0, "{name}");
        assert_eq!(candidates.ramp(0), 1.0, "{name}");
    }
}

#[test]
fn jbsq_ranks_by_load_of_the_flows_priority_and_above() {
    let of = |slot, low: f32, high: f32| {
        let mut row = candidate(slot, 1000.0, low + high);
        row.queues[0] = low;
        row.queues[5] = high;
        row
    };
    // The first has much low-priority load, the second less load, but of high priority.
    let rows = [of(0, 400.0, 0.0), of(1, 0.0, 300.0)];
    let candidates = listed(&rows, terms(0, FIT));
    let flow = Flow::number(1);
    let with_dscp = |dscp| NewFlow {
        dscp,
        ..flow.new_flow(1.0)
    };
    let (mut half, mut all) = (
        named("jbsq"),
        with("jbsq", Settings::default(), r#"{"lambda":1}"#),
    );
    // Expedited forwarding: rank 0.5 · 400 against 300.
    assert_eq!(half.pick(&with_dscp(46), &candidates), Pick::Fits(0));
    assert_eq!(half.rank(&with_dscp(46), &candidates, 0), Some(0.2));
    assert_eq!(half.rank(&with_dscp(46), &candidates, 1), Some(0.3));
    // Best effort: 400 against 300, and so for all flows with λ = 1.
    assert_eq!(half.pick(&with_dscp(0), &candidates), Pick::Fits(1));
    assert_eq!(all.pick(&with_dscp(46), &candidates), Pick::Fits(1));
}

#[test]
fn jbsq_prefers_queues_below_their_bound() {
    let rows = [
        Candidate {
            live_flows: 2,
            ..candidate(0, 1000.0, 1.0)
        },
        Candidate {
            live_flows: 1,
            ..candidate(1, 1000.0, 500.0)
        },
    ];
    let candidates = listed(&rows, terms(0, FIT));
    assert_eq!(pick(&mut named("jbsq"), &candidates, 0), Pick::Fits(0));
    let mut bounded = with("jbsq", Settings::default(), r#"{"bound":2}"#);
    assert_eq!(pick(&mut bounded, &candidates, 0), Pick::Fits(1));
}

#[test]
fn queues_default_to_the_pinned_flows_priorities() {
    let rows = [candidate(0, 1000.0, 0.0), candidate(3, 1000.0, 0.0)];
    let mut candidates = listed(&rows, terms(0, FIT));
    let flow = Flow::number(1);
    candidates.pin(
        1,
        &NewFlow {
            dscp: 46,
            ..flow.new_flow(30.0)
        },
    );
    candidates.pin(
        1,
        &NewFlow {
            dscp: 0,
            ..flow.new_flow(10.0)
        },
    );
    // The next load reading is twice as high; another slot came in between.
    let rows = [
        candidate(0, 1000.0, 5.0),
        candidate(2, 1000.0, 7.0),
        candidate(3, 1000.0, 80.0),
    ];
    relist(&mut candidates, &rows, terms(1, FIT));
    let queues: Vec<_> = candidates
        .rows()
        .iter()
        .map(|row| (row.queues[0], row.queues[5]))
        .collect();
    assert_eq!(queues, [(5.0, 0.0), (7.0, 0.0), (20.0, 60.0)]);
}

/// LB-05's period: weights stay until it ends, whatever the loads.
#[test]
fn weights_last_a_period() {
    let mut scheduler = with("weighted", Settings::default(), r#"{"period":"100ms"}"#);
    let mut candidates = Candidates::new();
    let mut shares = |ms, loads: [f32; 2]| {
        let rows = [candidate(0, 1e9, loads[0]), candidate(1, 1e9, loads[1])];
        relist(&mut candidates, &rows, terms(ms, FIT));
        scheduler.follow(&candidates);
        scheduler.shares(&candidates).unwrap()
    };
    assert_eq!(
        shares(0, [0.0, 0.0]),
        [0.5, 0.5],
        "LB-03: at first all weights are equal"
    );
    assert_eq!(shares(50, [300.0, 100.0]), [0.5, 0.5]);
    assert_eq!(shares(100, [300.0, 100.0]), [0.25, 0.75]);
    assert_eq!(shares(150, [0.0, 100.0]), [0.25, 0.75]);
    assert_eq!(shares(200, [0.0, 100.0]), [1.0, 0.0]);
}

/// The test vectors of Microsoft's "Verifying the RSS hash calculation", repeated in Intel's 82599 data
/// sheet.
#[test]
fn rss_matches_the_published_vectors() {
    let vectors = [
        (
            "66.9.149.187",
            2794,
            "161.142.100.80",
            1766,
            0x323e_8fc2,
            0x51cc_c178,
        ),
        (
            "199.92.111.2",
            14230,
            "65.69.140.83",
            4739,
            0xd718_262a,
            0xc626_b0ea,
        ),
        (
            "24.19.198.95",
            12898,
            "12.22.207.184",
            38024,
            0xd2d0_a5de,
            0x5c2b_394a,
        ),
        (
            "38.27.205.30",
            48228,
            "209.142.163.6",
            2217,
            0x8298_9176,
            0xafc7_327f,
        ),
        (
            "153.39.163.191",
            44251,
            "202.188.127.2",
            1303,
            0x5d18_09c5,
            0x10e8_28a2,
        ),
        (
            "3ffe:2501:200:1fff::7",
            2794,
            "3ffe:2501:200:3::1",
            1766,
            0x2cc1_8cd5,
            0x4020_7d3d,
        ),
        (
            "3ffe:501:8::260:97ff:fe40:efab",
            14230,
            "ff02::1",
            4739,
            0x0f0c_461c,
            0xdde5_1bbf,
        ),
        (
            "3ffe:1900:4545:3:200:f8ff:fe21:67cf",
            44251,
            "fe80::200:f8ff:fe21:67cf",
            38024,
            0x4b61_e985,
            0x02d1_feef,
        ),
    ];
    let rows: Vec<_> = (0..5).map(|n| candidate(n, 1e9, 0.0)).collect();
    let candidates = listed(&rows, terms(0, FIT));
    for (src, src_port, dst, dst_port, of_addresses, with_ports) in vectors {
        let tuple = Tuple {
            src: src.parse().unwrap(),
            dst: dst.parse().unwrap(),
            src_port,
            dst_port,
            protocol: protocol::TCP,
            vlan: 0,
        };
        assert_eq!(rss_hash(&tuple, false), of_addresses, "{tuple}");
        assert_eq!(rss_hash(&tuple, true), with_ports, "{tuple}");
        let (key, direction) = FlowKey::new(&tuple);
        let flow = NewFlow {
            key: &key,
            direction,
            hash: 1,
            expected: 1.0,
            dscp: 0,
            among: &[],
        };
        let mut rss = named("rss");
        assert_eq!(rss.hash(&flow), Some(u64::from(with_ports)));
        // Entry = the low seven bits; entries are assigned in turn.
        assert_eq!(
            rss.pick(&flow, &candidates),
            Pick::Fits((with_ports as usize & 127) % 5)
        );
        let addresses = with("rss", Settings::default(), r#"{"ports":false}"#);
        assert_eq!(addresses.hash(&flow), Some(u64::from(of_addresses)));
    }
}

#[test]
fn parameters_are_parsed_validated_and_serialised() {
    for name in Scheduler::NAMES {
        let scheduler = named(name);
        let mut written = Vec::new();
        scheduler
            .serialize_parameters(&mut serde_json::Serializer::new(&mut written))
            .unwrap();
        let written = String::from_utf8(written).unwrap();
        with(name, Settings::default(), &written);
        let value: serde_json::Value = serde_json::from_str(&written).unwrap();
        let names: Vec<_> = value.as_object().unwrap().keys().cloned().collect();
        let mut documented: Vec<_> = Scheduler::parameters_of(name)
            .unwrap()
            .iter()
            .map(|p| p.name)
            .collect();
        documented.sort_unstable();
        assert_eq!(names, documented, "{name}");
    }
    for (name, parameters, said) in [
        ("maglev", r#"{"table":1000}"#, "for example 1009"),
        ("maglev", r#"{"size":1009}"#, "unknown field `size`"),
        ("jbsq", r#"{"lambda":1.5}"#, "a number from 0 to 1"),
        ("weighted", r#"{"period":"fast"}"#, "seconds"),
        ("round-robin", r#"{"weight":1}"#, "unknown field `weight`"),
        ("random", "{}", "unknown scheduler \"random\""),
    ] {
        let mut parameters = serde_json::Deserializer::from_str(parameters);
        let error = Scheduler::with_parameters(name, Settings::default(), &mut parameters).unwrap_err();
        assert!(error.to_string().contains(said), "{error}");
    }
}

#[test]
fn by_a_hash_alone_a_flow_goes_to_the_same_instance_whatever_its_load_and_age() {
    let picks = |rows: &[Candidate]| {
        let candidates = listed(rows, terms(0, 0.8));
        let mut scheduler = Scheduler::by_hash_alone();
        scheduler.settle(&candidates);
        let index = |n| pick(&mut scheduler, &candidates, n).index().unwrap();
        (0..4000).map(index).collect::<Vec<_>>()
    };
    let rows: Vec<Candidate> = (0..4).map(|slot| candidate(slot, 100.0, 10.0)).collect();
    let first = picks(&rows);
    for index in 0..4 {
        let share = first.iter().filter(|of| **of == index).count();
        assert!((900..1100).contains(&share), "{index}: {share}");
    }
    let mut changed = rows.clone();
    changed[1].load = 200.0;
    changed[2].active_for = Nanos::ZERO;
    assert_eq!(picks(&changed), first);
    // Other policies that go by a hash say so.
    let by_hash: Vec<&str> = Scheduler::NAMES
        .iter()
        .copied()
        .filter(|name| named(name).is_by_hash())
        .collect();
    assert_eq!(by_hash, ["maglev", "rss", "source-hash"]);
}

/// Machines with these loads, all believed so far.
fn machines(loads: &[f32], trust: f32) -> Candidates {
    let rows: Vec<Candidate> = (0..)
        .zip(loads)
        .map(|(slot, load)| Candidate {
            trust,
            ..candidate(slot, 0.0, *load)
        })
        .collect();
    listed(&rows, terms(0, FIT))
}

/// How many of so many flows each machine gets, while nothing is known but that.
fn picks_of_machines(candidates: &Candidates, flows: u32) -> Vec<u32> {
    let mut scheduler = named("machines");
    scheduler.settle(candidates);
    let mut counts = vec![0; candidates.len()];
    for n in 0..flows {
        let mut flow = Flow::number(n);
        // The share of a table and the chance of a report come from the same hash.
        flow.hash = mix(flow.hash);
        let picked = scheduler.pick(&flow.new_flow(0.0), candidates);
        counts[picked.index().unwrap()] += 1;
    }
    counts
}

#[test]
fn of_two_machines_the_less_loaded_one_gets_all_flows_while_its_report_is_fresh() {
    assert_eq!(picks_of_machines(&machines(&[0.5, 0.4], 1.0), 1_000), [0, 1_000]);
    // Nobody knows better: by hash.
    for even in [
        machines(&[0.5, 0.5], 1.0),
        machines(&[0.9, 0.1], 0.0),
        machines(&[0.9, 0.1], f32::NAN),
    ] {
        let counts = picks_of_machines(&even, 1_000);
        assert!(counts.iter().all(|count| *count > 400), "{counts:?}");
    }
    // In between, the chance of it: half of those whose first one is the loaded machine.
    let counts = picks_of_machines(&machines(&[0.9, 0.1], 0.5), 1_000);
    assert!((200..300).contains(&counts[0]), "{counts:?}");
}

#[test]
fn a_machine_without_room_for_flows_gets_none_unless_all_are_so() {
    let none = Machines::WITHDRAWN;
    assert_eq!(
        picks_of_machines(&machines(&[none, 0.9, none], 1.0), 100),
        [0, 100, 0]
    );
    let counts = picks_of_machines(&machines(&[none, none], 1.0), 1_000);
    assert!(counts.iter().all(|count| *count > 400), "{counts:?}");
    assert_eq!(picks_of_machines(&machines(&[none], 1.0), 10), [10]);
}

#[test]
fn the_most_loaded_of_several_machines_gets_no_flow() {
    let counts = picks_of_machines(&machines(&[0.3, 0.9, 0.2, 0.5], 1.0), 2_000);
    assert!(
        counts[1] == 0 && counts[2] > counts[0] && counts[0] > counts[3],
        "{counts:?}"
    );
}

/// Where other edges look for a flow at some machines, it goes to the less loaded one of the first two of them that take new
/// flows.
#[test]
fn a_flow_goes_to_one_of_the_machines_at_which_other_edges_look_for_it() {
    let none = Machines::WITHDRAWN;
    let candidates = machines(&[0.1, none, 0.9, 0.5, 0.2], 1.0);
    let mut scheduler = named("machines");
    scheduler.settle(&candidates);
    let mut picked = |among: &[u16], n| {
        let among: Vec<Slot> = among.iter().copied().map(Slot).collect();
        let flow = Flow::number(n);
        let flow = NewFlow {
            among: &among,
            ..flow.new_flow(0.0)
        };
        scheduler.pick(&flow, &candidates).index()
    };
    for n in 0..100 {
        assert_eq!(picked(&[2, 3, 0], n), Some(3));
        assert_eq!(picked(&[1, 2, 4], n), Some(4), "one takes none");
        // Slot 9 has no candidate.
        assert_eq!(picked(&[9, 2], n), Some(2));
        // None of them: one by the hash.
        assert!(picked(&[1, 9], n).is_some_and(|index| index != 1));
    }
}
