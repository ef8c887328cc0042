use proptest::prelude::*;

use super::*;
use crate::report::{ServiceLoad, Serving};

const INTERVAL: Nanos = Nanos::from_millis(10);

fn members(count: u16) -> Vec<Member> {
    (0..count).map(member).collect()
}

fn member(id: u16) -> Member {
    Member {
        id: MachineId(id),
        name: mix(u64::from(id)),
        weight: 1.0,
    }
}

fn of(members: &[Member]) -> Machines {
    let mut machines = Machines::new(Settings::default());
    machines.set_members(members);
    machines
}

/// A load of `flows` flows of 1, with a capacity of 1,000.
fn load(flows: u32, state: Serving) -> ServiceLoad {
    ServiceLoad {
        service: 1,
        state,
        instances: 10,
        capacity: 1_000,
        capacity_left: 1_000_u64.saturating_sub(u64::from(flows)),
        live_flows: flows,
    }
}

fn at(intervals: u64) -> Nanos {
    Nanos(INTERVAL.0 * intervals)
}

/// All machines report these flows at this time.
fn all_report(machines: &mut Machines, flows: &[u32], now: Nanos) {
    for (id, flows) in (0..).zip(flows) {
        machines.reported(MachineId(id), &load(*flows, Serving::Serving), now);
    }
    machines.renew(now);
}

fn hash(n: u64) -> u64 {
    mix(n ^ 0xabcd)
}

#[test]
fn a_burst_between_two_reports_is_spread() {
    let mut machines = of(&members(50));
    all_report(&mut machines, &[100; 50], at(1));
    let mut got = [0; 50];
    for n in 0..5_000 {
        got[machines.pick(hash(n)).unwrap().machine.index()] += 1;
    }
    // By hash alone the fullest has 128 or so.
    let (low, high) = (got.iter().min().unwrap(), got.iter().max().unwrap());
    assert!(*high <= 110 && *low >= 85, "{low} to {high}");
    assert_eq!(machines.counts().less_loaded, 5_000);
}

#[test]
fn the_less_loaded_of_two_gets_the_flow() {
    let mut machines = of(&members(20));
    let flows: Vec<u32> = (0..20).map(|id| id * 40).collect();
    all_report(&mut machines, &flows, at(1));
    for n in 0..1_000 {
        let look = machines.look(hash(n));
        let [a, b, ..] = look.machines() else {
            panic!("{look:?}")
        };
        let least = if machines.estimate(*b) < machines.estimate(*a) {
            b
        } else {
            a
        };
        assert_eq!(machines.pick(hash(n)).unwrap().machine, *least);
    }
}

#[test]
fn an_old_report_loses_its_effect_and_a_silent_machine_its_new_flows() {
    let mut machines = of(&members(10));
    let mut flows = [500; 10];
    flows[0] = 0;
    all_report(&mut machines, &flows, at(0));
    let mut before = 10_000;
    for now in 0..=Settings::default().lost {
        for id in 1..10 {
            machines.reported(MachineId(id), &load(450, Serving::Serving), at(u64::from(now)));
        }
        machines.renew(at(u64::from(now)));
        let expected = match now {
            0..=3 => Standing::Fresh,
            4..=19 => Standing::Stale,
            20..=99 => Standing::Silent,
            _ => Standing::Failed,
        };
        assert_eq!(machines.standing(MachineId(0)), expected, "{now}");
        // It said that it is idle: it gets each flow that may choose it, less and less often, then none.
        let mut fresh = machines.clone();
        let got = (0..2_000)
            .filter(|n| fresh.pick(hash(*n)).unwrap().machine == MachineId(0))
            .count();
        match now {
            0..=3 => assert!((300..500).contains(&got), "{now}: {got}"),
            4..=19 => assert!(got <= before && got > 200, "{now}: {got} after {before}"),
            _ => assert_eq!(got, 0, "{now}"),
        }
        before = got;
    }
    assert!(machines.must_move(MachineId(0)));
    // It comes back.
    all_report(&mut machines, &[450; 10], at(101));
    assert_eq!(machines.standing(MachineId(0)), Standing::Fresh);
    assert!(!machines.must_move(MachineId(0)));
}

#[test]
fn a_machine_that_answers_has_not_failed_without_its_reports() {
    let mut machines = of(&members(10));
    all_report(&mut machines, &[1; 10], at(0));
    for now in 1..300 {
        for id in 1..10 {
            machines.reported(MachineId(id), &load(1, Serving::Serving), at(now));
        }
        machines.heard(MachineId(0), at(now));
        machines.renew(at(now));
    }
    // It gets its share by hash.
    assert_eq!(machines.standing(MachineId(0)), Standing::Stale);
    let got = (0..10_000)
        .filter(|n| machines.pick(hash(*n)).unwrap().machine == MachineId(0))
        .count();
    assert!((850..1_150).contains(&got), "{got}");
    machines.fail(MachineId(0));
    assert_eq!(machines.standing(MachineId(0)), Standing::Failed);
    machines.renew(at(300));
    assert!(machines.must_move(MachineId(0)));
}

#[test]
fn an_edge_without_reports_goes_by_hash_and_moves_nothing() {
    let mut machines = of(&members(10));
    assert_eq!(machines.pick(1).unwrap().rule, Rule::Hashed);
    all_report(&mut machines, &[1; 10], at(0));
    machines.renew(at(3_000));
    assert!(machines.is_blind());
    let mut got = [0; 10];
    for n in 0..10_000 {
        let picked = machines.pick(hash(n)).unwrap();
        assert_eq!(picked.rule, Rule::Hashed);
        assert_eq!(Some(picked.machine), machines.by_hash(hash(n)));
        got[picked.machine.index()] += 1;
    }
    assert!(got.iter().all(|got| (850..1_150).contains(got)), "{got:?}");
    assert!((0..10).all(|id| !machines.must_move(MachineId(id))));
}

#[test]
fn who_drains_gets_nothing_new_and_keeps_its_pins() {
    let mut machines = of(&members(10));
    all_report(&mut machines, &[1; 10], at(0));
    machines.reported(MachineId(3), &load(1, Serving::Draining), at(1));
    machines.reported(MachineId(4), &load(1, Serving::Leaving), at(1));
    machines.renew(at(1));
    let mut picks = (0..5_000).map(|n| machines.pick(hash(n)).unwrap().machine.0);
    assert!(picks.all(|id| id != 3 && id != 4));
    assert!(!machines.must_move(MachineId(3)) && machines.must_move(MachineId(4)));
    // If all drain, there is nobody.
    for id in 0..10 {
        machines.reported(MachineId(id), &load(1, Serving::Draining), at(2));
    }
    machines.renew(at(2));
    assert_eq!(machines.pick(1), None);
    assert_eq!(Machines::new(Settings::default()).pick(1), None);
    assert!(machines.must_move(MachineId(10)), "it is no member");
    assert!(machines.must_move(MachineId(u16::MAX)));
}

#[test]
fn few_flows_have_no_choice_while_a_fifth_drains() {
    let mut machines = of(&members(100));
    all_report(&mut machines, &[1; 100], at(0));
    for id in 0..20 {
        machines.reported(MachineId(id), &load(1, Serving::Draining), at(1));
    }
    machines.renew(at(1));
    for n in 0..100_000 {
        assert!(machines.pick(hash(n)).unwrap().machine.0 >= 20);
    }
    let counts = machines.counts();
    assert!(counts.beyond < 50, "{counts:?}");
    assert!(counts.only_choice < 400, "{counts:?}");
}

#[test]
fn a_flow_is_found_after_machines_come_and_go() {
    let mut old = of(&members(50));
    all_report(&mut old, &[1; 50], at(0));
    let picks: Vec<MachineId> = (0..20_000).map(|n| old.pick(hash(n)).unwrap().machine).collect();
    for after in [members(49), members(51), members(60)] {
        let mut new = old.clone();
        new.set_members(&after);
        let mut others = 0;
        for (n, machine) in (0..).zip(&picks) {
            if after.iter().all(|member| member.id != *machine) {
                assert!(new.must_move(*machine));
                continue;
            }
            assert!(new.look(hash(n)).machines().contains(machine), "{n}");
            others += 1;
        }
        assert!(others > 19_000);
        new.settle();
        let lost = (0..)
            .zip(&picks)
            .filter(|(n, machine)| !new.look(hash(*n)).machines().contains(machine));
        assert!(lost.count() > 0, "without the members before, some are not found");
    }
}

#[test]
fn members_beyond_the_limit_and_repeated_ones_are_ignored() {
    let mut wrong = members(3);
    wrong.push(member(MACHINES_LIMIT as u16));
    wrong.push(Member { name: 1, ..member(0) });
    let mut machines = of(&wrong);
    machines.reported(MachineId(u16::MAX), &load(1, Serving::Serving), at(1));
    machines.heard(MachineId(u16::MAX), at(1));
    machines.fail(MachineId(u16::MAX));
    all_report(&mut machines, &[1; 3], at(1));
    let mut picks = (0..1_000).map(|n| machines.pick(hash(n)).unwrap().machine.0);
    assert!(picks.all(|id| id < 3));
    machines.set_members(&[]);
    assert_eq!(machines.pick(1), None);
    assert!(machines.look(1).machines().is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Two edges with other reports, which learnt of the machines in another order: each finds what the other picked.
    #[test]
    fn edges_find_each_others_flows(
        states in prop::collection::vec((0..3_u8, 0..1_000_u32, 0..50_u64), 2..40),
        seed: u64,
    ) {
        let of_members = members(states.len() as u16);
        let mut one = of(&of_members);
        let mut reversed = of_members;
        reversed.reverse();
        let mut other = of(&reversed);
        for (id, (state, flows, age)) in (0..).zip(&states) {
            let state = match state { 0 | 1 => Serving::Serving, _ => Serving::Draining };
            one.reported(MachineId(id), &load(*flows, state), at(60 - age));
            other.reported(MachineId(id), &load(1_000 - flows, Serving::Serving), at(60));
        }
        one.renew(at(60));
        other.renew(at(60));
        for n in 0..200 {
            let hash = mix(seed ^ n);
            prop_assert_eq!(one.look(hash), other.look(hash));
            if let Some(picked) = one.pick(hash) {
                prop_assert!(!matches!(one.standing(picked.machine), Standing::Draining | Standing::Failed));
                let is_found = other.look(hash).machines().contains(&picked.machine);
                prop_assert!(is_found || picked.rule == Rule::Beyond);
            }
        }
    }

    /// Whatever is reported, and whenever: estimates are numbers, and a pick is a member.
    #[test]
    fn any_report_leaves_an_order(
        reports in prop::collection::vec((0..12_u16, any::<u64>(), any::<u64>(), any::<u32>(), 0..3_u8, 0..200_u64), 0..60),
        hash: u64,
    ) {
        let mut machines = of(&members(10));
        for (id, a, b, live_flows, state, now) in reports {
            let state = match state { 0 => Serving::Serving, 1 => Serving::Draining, _ => Serving::Leaving };
            let load = ServiceLoad { service: 1, state, instances: 1, capacity: a.max(b), capacity_left: a.min(b), live_flows };
            machines.reported(MachineId(id), &load, at(now));
            machines.renew(at(now));
            for id in 0..10 {
                prop_assert!(machines.estimate(MachineId(id)).is_finite());
            }
            if let Some(picked) = machines.pick(hash) {
                prop_assert!(picked.machine.0 < 10);
                prop_assert!(!machines.must_move(picked.machine));
            }
        }
    }
}
