//! What every scheduler promises, and what each one adds.

use model::{FlowKey, FlowKeyV4, Slot};
use proptest::prelude::*;
use scheduling::{Candidate, NewFlow, Pick, Scheduler};

fn candidate(slot: u16, capacity_pps: f32, load_pps: f32) -> Candidate {
    Candidate {
        slot: Slot(slot),
        capacity_pps,
        load_pps,
        weight: 256,
        live_flows: 0,
    }
}

fn pick(scheduler: &mut Scheduler, candidates: &[Candidate], fit: f32) -> Pick {
    let key = FlowKey::V4(FlowKeyV4::default());
    scheduler.pick(
        &NewFlow {
            key: &key,
            hash: 7,
            expected_pps: 1.0,
            dscp: 0,
        },
        candidates,
        fit,
    )
}

fn candidates() -> impl Strategy<Value = Vec<Candidate>> {
    // Few distinct values, so that ties come up.
    let one = (1u16..5, 0u32..12, 0u32..3);
    proptest::collection::vec(one, 0..20).prop_map(|list| {
        let mut slot = 0;
        list.into_iter()
            .map(|(gap, load, live_flows)| {
                slot += gap;
                Candidate {
                    slot: Slot(slot),
                    capacity_pps: if load % 5 == 4 { 500.0 } else { 1_000.0 },
                    load_pps: load as f32 * 100.0,
                    weight: 256,
                    live_flows,
                }
            })
            .collect()
    })
}

proptest! {
    #[test]
    fn a_pick_names_a_candidate_and_says_truly_whether_it_fits(candidates in candidates(), fit in 0.1f32..1.2) {
        for name in Scheduler::NAMES {
            let mut scheduler = Scheduler::from_name(name).unwrap();
            match pick(&mut scheduler, &candidates, fit) {
                Pick::Fits(i) => prop_assert!(candidates[i].fits(fit)),
                Pick::Overcommitted(i) => prop_assert!(!candidates[i].fits(fit)),
                Pick::None => prop_assert!(candidates.is_empty()),
            }
        }
    }

    #[test]
    fn the_same_calls_give_the_same_picks(candidates in candidates(), calls in 1usize..40) {
        for name in Scheduler::NAMES {
            let mut one = Scheduler::from_name(name).unwrap();
            let mut two = one.clone();
            for _ in 0..calls {
                prop_assert_eq!(pick(&mut one, &candidates, 0.9), pick(&mut two, &candidates, 0.9));
            }
        }
    }

    #[test]
    fn best_fit_takes_the_most_utilised_that_fits(candidates in candidates(), fit in 0.1f32..1.2) {
        match pick(&mut Scheduler::from_name("best-fit").unwrap(), &candidates, fit) {
            Pick::Fits(i) => for (j, other) in candidates.iter().enumerate().filter(|(_, c)| c.fits(fit)) {
                let (chosen, other) = (candidates[i].utilisation(), other.utilisation());
                prop_assert!(other < chosen || (other == chosen && i <= j));
            },
            Pick::Overcommitted(i) => for other in &candidates {
                prop_assert!(!other.fits(fit) && other.utilisation() >= candidates[i].utilisation());
            },
            Pick::None => prop_assert!(candidates.is_empty()),
        }
    }

    #[test]
    fn worst_fit_takes_the_least_utilised(candidates in candidates(), fit in 0.1f32..1.2) {
        let picked = pick(&mut Scheduler::from_name("worst-fit").unwrap(), &candidates, fit);
        if let Some(i) = picked.index() {
            for other in &candidates {
                prop_assert!(other.utilisation() >= candidates[i].utilisation());
            }
        }
        // Overcommitted means what it means for best-fit: nobody fits.
        prop_assert_eq!(matches!(picked, Pick::Fits(_)), candidates.iter().any(|c| c.fits(fit)));
    }

    #[test]
    fn round_robin_gives_everyone_one_turn_before_anyone_two(candidates in candidates(), start in 0usize..50) {
        prop_assume!(!candidates.is_empty());
        let mut scheduler = Scheduler::from_name("round-robin").unwrap();
        for _ in 0..start {
            pick(&mut scheduler, &candidates, 0.9);
        }
        let mut turns = vec![0; candidates.len()];
        for _ in 0..candidates.len() * 3 {
            turns[pick(&mut scheduler, &candidates, 0.9).index().unwrap()] += 1;
        }
        prop_assert!(turns.iter().all(|t| *t == 3), "{:?}", turns);
    }

    #[test]
    fn round_robin_goes_on_where_it_was_when_others_come_and_go(
        before in proptest::collection::btree_set(0u16..40, 1..20),
        after in proptest::collection::btree_set(0u16..40, 1..20),
        flows in 1usize..30,
    ) {
        let list = |slots: &std::collections::BTreeSet<u16>| -> Vec<Candidate> {
            slots.iter().map(|s| candidate(*s, 10.0, 0.0)).collect()
        };
        let (before, after) = (list(&before), list(&after));
        let mut scheduler = Scheduler::from_name("round-robin").unwrap();
        let mut last = Slot(0);
        for _ in 0..flows {
            last = before[pick(&mut scheduler, &before, 0.9).index().unwrap()].slot;
        }
        let next = after[pick(&mut scheduler, &after, 0.9).index().unwrap()].slot;
        let expected = after.iter().map(|c| c.slot).find(|s| *s > last).unwrap_or(after[0].slot);
        prop_assert_eq!(next, expected);
    }

    #[test]
    fn a_burst_of_new_flows_overcommits_nobody_before_everybody_is_full(
        count in 1usize..10, flows in 1usize..200, each in 1u32..30,
    ) {
        for name in ["best-fit", "worst-fit"] {
            let mut scheduler = Scheduler::from_name(name).unwrap();
            let mut list: Vec<Candidate> = (0..count).map(|s| candidate(s as u16, 100.0, 0.0)).collect();
            for _ in 0..flows {
                let picked = pick(&mut scheduler, &list, 0.9);
                if let Pick::Overcommitted(_) = picked {
                    prop_assert!(list.iter().all(|c| !c.fits(0.9)));
                }
                list[picked.index().unwrap()].load_pps += each as f32;
            }
            let (low, high) = list.iter().fold((f32::MAX, 0f32), |(l, h), c| (l.min(c.load_pps), h.max(c.load_pps)));
            if name == "worst-fit" {
                prop_assert!(high - low <= each as f32);
            } else {
                // Every instance but one is either untouched or as full as `fit` lets it be.
                let between = list.iter().filter(|c| c.load_pps > 0.0 && c.fits(0.9)).count();
                prop_assert!(between <= 1, "{:?}", list);
            }
        }
    }
}

#[test]
fn smartincos_round_robin_resets_after_the_last() {
    let list: Vec<Candidate> = (0..3).map(|s| candidate(s, 10.0, 0.0)).collect();
    let mut scheduler = Scheduler::from_name("round-robin").unwrap();
    let turns: Vec<usize> = (0..7)
        .map(|_| pick(&mut scheduler, &list, 0.9).index().unwrap())
        .collect();
    assert_eq!(turns, [0, 1, 2, 0, 1, 2, 0]);
}
