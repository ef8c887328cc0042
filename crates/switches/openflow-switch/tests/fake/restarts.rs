//! Connections that are cut, switches that are started again, and those who steer after others.

use model::{FlowSetup, Nanos, Slot, Timeouts};
use openflow_switch::{Faults, RuleState, Settings};

use crate::world::{
    INSTANCES, SERVICE, STEP, World, assert_none_astray, lagging, long_flows, quick, traffic_while_scaling,
};

#[test]
fn a_cut_connection_is_not_noticed_by_flows() {
    let mut world = World::new(lagging(1_000, 100, 30), quick(FlowSetup::Proactive), false, 6);
    world.ready(4);
    long_flows(&mut world, 0..50, 10, STEP);
    let rules = world.joined.nic.cookies();
    world.cut();
    // 30 s, in which new flows come too: they go by their buckets.
    long_flows(&mut world, 0..60, 500, Nanos::from_millis(1));
    assert_none_astray(&mut world);
    assert_eq!(world.joined.nic.cookies(), rules);
    world.connect();
    world.until("new flows have rules", |world| {
        world.joined.steering.figures().rules == 60
    });
    let figures = world.joined.steering.figures();
    let marker = 1;
    assert_eq!(figures.agreed_rules, rules.len() as u64 - marker, "{figures:?}");
    long_flows(&mut world, 0..60, 10, STEP);
    assert_none_astray(&mut world);
}

#[test]
fn a_switch_that_was_restarted_gets_its_pins_before_its_buckets() {
    let mut world = World::new(lagging(1_000, 100, 30), quick(FlowSetup::Proactive), false, 8);
    world.ready(4);
    long_flows(&mut world, 0..200, 5, STEP);
    // Buckets have moved since: only pins keep flows where they are.
    world.scale(1, 4);
    long_flows(&mut world, 0..200, 30, STEP);
    world.until("buckets have moved", |world| {
        (1..4).all(|slot| !world.joined.steering.may_get_flows(Slot(slot)))
    });
    assert_none_astray(&mut world);
    world.cut();
    world.joined.nic.restart(world.now);
    world.connect();
    long_flows(&mut world, 0..200, 30, STEP);
    world.run(Nanos::from_millis(50));
    let (outcome, dropped) = (world.outcome(), world.joined.nic.dropped());
    assert_eq!((outcome.duplicated, outcome.mis_steered), (0, 0), "{outcome:?}");
    assert!(
        dropped > 0 && outcome.lost == dropped,
        "what is lost is counted: {dropped} {outcome:?}"
    );
}

/// Its rules count from 0 again: a count below the last one does not say that nothing came.
#[test]
fn flows_of_a_switch_that_was_restarted_do_not_end() {
    let settings = Settings {
        idle: Timeouts::all(Nanos::from_millis(300)),
        ..quick(FlowSetup::Proactive)
    };
    let mut world = World::new(lagging(1_000, 100, 30), settings, false, 9);
    world.ready(4);
    long_flows(&mut world, 0..20, 400, STEP);
    world.cut();
    world.joined.nic.restart(world.now);
    world.connect();
    // For three times the idle time, with fewer packets than before.
    long_flows(&mut world, 0..20, 100, Nanos::from_micros(500));
    assert_eq!(world.joined.steering.figures().ended_flows, 0);
    assert_eq!(world.joined.steering.flows().count(), 20);
    let outcome = world.outcome();
    assert_eq!((outcome.duplicated, outcome.mis_steered), (0, 0), "{outcome:?}");
}

/// Also the rules that no flow can do without, from the beginning.
#[test]
fn rules_that_were_refused_are_written_again() {
    let faults = Faults {
        refuse_one_in: 3,
        ..lagging(1_000, 100, 30)
    };
    let mut world = World::new(faults, quick(FlowSetup::Proactive), true, 11);
    world.ready(4);
    world.until("all that was refused is there", |world| {
        let is_in_force = |slot| world.joined.steering.is_in_force(Slot(slot));
        let cookies = world.joined.nic.cookies();
        // One per uplink and two tables for each of 16 buckets; two to, one from and one for probes of each instance,
        // and one for marks on each uplink; the marker's.
        cookies.len() > 2 * 2 * 16 + 4 * 6 && (0..4).all(is_in_force)
    });
    long_flows(&mut world, 0..40, 20, STEP);
    assert_none_astray(&mut world);
    assert!(world.joined.steering.figures().errors > 0);
}

/// There is a place for one rule of the flow's two. That one is written again after a restart, which does not say that
/// the flow has both.
#[test]
fn a_flow_that_lacks_a_rule_holds_its_bucket_when_the_other_one_is_written_again() {
    let faults = lagging(1_000, 100, 30);
    let mut world = World::new(faults, quick(FlowSetup::Proactive), true, 14);
    world.ready(2);
    let rule_limit = world.joined.nic.cookies().len() + 1;
    world.joined.nic.set_faults(Faults { rule_limit, ..faults });
    world.send(0, false);
    world.run(Nanos::from_millis(10));
    let row = |world: &World| world.joined.steering.flows().next().unwrap();
    let slot = row(&world).slot;
    assert!(matches!(row(&world).state, RuleState::Refused { .. }));
    world.cut();
    world.joined.nic.restart(world.now);
    world.connect();
    world.run(Nanos::from_millis(30));
    assert!(matches!(row(&world).state, RuleState::Refused { .. }));
    world.turn_to(Slot(1 - slot.0), 2);
    for _ in 0..2_000 {
        world.send(0, false);
        world.send(0, true);
        world.step();
    }
    assert_eq!(world.joined.steering.figures().rules, 1);
    assert_none_astray(&mut world);
    // There is room: the flow gets its other rule, and the bucket goes on.
    world.joined.nic.set_faults(faults);
    world.until("its bucket has moved", |world| {
        !world.joined.steering.may_get_flows(slot)
    });
    for _ in 0..100 {
        world.send(0, false);
        world.send(0, true);
        world.step();
    }
    assert_eq!(row(&world).state, RuleState::Installed);
    assert_none_astray(&mut world);
}

#[test]
fn a_new_run_finds_every_flow_and_changes_no_rule() {
    let settings = Settings {
        idle: Timeouts::all(Nanos::from_millis(300)),
        ..quick(FlowSetup::Proactive)
    };
    let mut world = World::new(lagging(2_000, 100, 30), settings.clone(), true, 12);
    world.ready(4);
    long_flows(&mut world, 0..60, 20, STEP);
    world.scale(2, 4);
    for _ in 0..20 {
        long_flows(&mut world, 0..60, 10, STEP);
    }
    assert!(
        !world.joined.steering.may_get_flows(Slot(3)),
        "its buckets have moved"
    );
    // Flows begin while no inco runs.
    world.cut();
    long_flows(&mut world, 0..90, 10, STEP);
    let pins = |world: &World| -> Vec<u64> {
        let cookies = world.joined.nic.cookies().into_iter();
        // The third byte says what a rule is for.
        cookies.filter(|cookie| (cookie >> 40) & 0xff == 3).collect()
    };
    let before = pins(&world);
    assert_eq!(before.len(), 120, "60 flows, both ways");
    let buckets = world.joined.steering.buckets(SERVICE);
    world.steer_anew(settings, true, 4);
    assert_eq!(world.joined.steering.flows().count(), 60);
    assert_eq!(world.joined.steering.buckets(SERVICE), buckets);
    assert_eq!(pins(&world), before);
    // Another plan, at once: no bucket may move before unknown flows have sent a packet or ended.
    world.scale(4, 4);
    for _ in 0..40 {
        long_flows(&mut world, 0..90, 10, STEP);
    }
    assert_eq!(world.joined.steering.flows().count(), 90);
    world.until("buckets move again", |world| {
        world.joined.steering.may_get_flows(Slot(3))
    });
    for _ in 0..20 {
        long_flows(&mut world, 0..90, 10, STEP);
    }
    assert_none_astray(&mut world);
    assert_eq!(world.joined.steering.figures().evicted, 0);
}

/// Wherever it was, also in the middle of moves.
#[test]
fn a_new_run_continues_where_the_previous_one_stopped() {
    for seed in 0..10 {
        let settings = quick(FlowSetup::Proactive);
        let mut world = World::new(lagging(3_000, 300, 50), settings.clone(), false, seed);
        world.ready(INSTANCES);
        for (round, scale) in [2, 7, 3].into_iter().enumerate() {
            let at = seed.wrapping_mul(7_919) % 23 + 3 * round as u64;
            traffic_while_scaling(&mut world, seed, false, &[scale], Nanos::from_millis(2 * at + 1));
            world.steer_anew(settings.clone(), false, INSTANCES);
            traffic_while_scaling(&mut world, seed, false, &[scale], Nanos::from_millis(60));
        }
        assert_none_astray(&mut world);
    }
}

#[test]
fn an_instance_that_is_not_found_again_is_gone() {
    let settings = quick(FlowSetup::Proactive);
    let mut world = World::new(lagging(1_000, 100, 30), settings.clone(), false, 13);
    world.ready(3);
    long_flows(&mut world, 0..60, 10, STEP);
    let of_it = |world: &World| {
        world
            .joined
            .steering
            .flows()
            .filter(|row| row.slot == Slot(2))
            .count()
    };
    assert!(of_it(&world) > 0);
    world.steer_anew(settings, false, 2);
    world.scale(2, 2);
    assert!(of_it(&world) > 0, "it may come back");
    world.until("it is gone", |world| of_it(world) == 0);
    world.run(Nanos::from_millis(20));
    assert!(!world.joined.steering.buckets(SERVICE).contains(&Some(Slot(2))));
}
