//! Rules that are written together.

use model::{FlowSetup, Nanos, Timeouts};
use openflow_switch::{Faults, RuleState, Settings};

use crate::world::{STEP, World, assert_none_astray, lagging, long_flows, quick};

/// Four instances, and a switch that writes a rule in 0.1 ms.
fn one_by_one(faults: Faults, settings: Settings) -> World {
    let faults = Faults {
        rule_time: Nanos::from_micros(100),
        ..faults
    };
    let mut world = World::new(faults, settings, false, 5);
    world.ready(4);
    assert_eq!(world.joined.steering.figures().batches, 0);
    world
}

/// The first packets of that many flows come at once, and as many rules wait together.
fn begin_together(world: &mut World, flows: std::ops::Range<u32>) {
    let count = flows.len();
    let before = world.joined.steering.flow_count();
    flows.for_each(|flow| world.send(flow, false));
    world.until("all flows are known", |world| {
        world.joined.steering.flow_count() == before + count
    });
}

fn installed(world: &World) -> usize {
    let flows = world.joined.steering.flows();
    flows.filter(|flow| flow.state == RuleState::Installed).count()
}

#[test]
fn rules_that_wait_together_are_written_together() {
    let settings = Settings {
        idle: Timeouts::all(Nanos::from_millis(400)),
        ..quick(FlowSetup::Proactive)
    };
    let mut world = one_by_one(lagging(1_000, 100, 30), settings);
    let before = world.joined.nic.cookies().len();
    begin_together(&mut world, 0..100);
    assert_eq!(
        installed(&world),
        0,
        "before the switch has answered it is not said to have them"
    );
    assert!(world.joined.steering.figures().queued >= 100);
    world.until("all have rules", |world| installed(world) == 100);
    let figures = world.joined.steering.figures();
    assert!((1..20).contains(&figures.batches), "{figures:?}");
    assert_eq!(
        (figures.split_batches, figures.refused, figures.errors),
        (0, 0, 0)
    );
    long_flows(&mut world, 0..100, 3, STEP);
    assert_none_astray(&mut world);
    // Rules of flows that end go together, too.
    world.until("all have ended", |world| world.joined.steering.flow_count() == 0);
    world.until("their rules are gone", |world| {
        world.joined.nic.cookies().len() == before && world.joined.steering.is_settled()
    });
}

#[test]
fn a_refused_rule_takes_no_other_of_its_batch_with_it() {
    let mut world = one_by_one(lagging(1_000, 100, 30), quick(FlowSetup::Proactive));
    let places = world.joined.nic.cookies().len() + 99;
    world.joined.nic.set_faults(Faults {
        rule_limit: places,
        ..lagging(1_000, 100, 30)
    });
    begin_together(&mut world, 0..100);
    world.until("all but one have rules", |world| {
        installed(world) == 99 && world.joined.steering.figures().refused == 1
    });
    let figures = world.joined.steering.figures();
    assert!(figures.split_batches > 0, "{figures:?}");
    let refused: Vec<RuleState> = (world.joined.steering.flows())
        .map(|flow| flow.state)
        .filter(|state| *state != RuleState::Installed)
        .collect();
    assert_eq!(
        refused,
        [RuleState::Refused { kind: 5, code: 1 }],
        "the table is full"
    );
    world.joined.nic.set_faults(lagging(1_000, 100, 30));
    world.until("it has its rule when there is room", |world| {
        installed(world) == 100
    });
    long_flows(&mut world, 0..100, 3, STEP);
    assert_none_astray(&mut world);
}

/// Refusals at random, while buckets move.
#[test]
fn batches_of_which_many_rules_are_refused_send_nothing_astray() {
    let (mut batches, mut split) = (0, 0);
    for seed in 0..4 {
        let faults = Faults {
            refuse_one_in: 100,
            reorders: seed % 2 == 0,
            ..lagging(1_000, 300, 30)
        };
        let mut world = World::new(faults, quick(FlowSetup::Proactive), true, seed);
        world.ready(4);
        for (round, active) in (0..).zip([4, 2, 4, 1]) {
            world.scale(active, 4);
            begin_together(&mut world, round * 60..(round + 1) * 60);
            long_flows(&mut world, 0..(round + 1) * 60, 4, STEP);
        }
        world.until("all have rules", |world| installed(world) == 240);
        let figures = world.joined.steering.figures();
        batches += figures.batches;
        split += figures.split_batches;
        assert_none_astray(&mut world);
    }
    assert!(0 < split && split < batches, "{split} of {batches}");
}

#[test]
fn a_switch_without_bundles_gets_single_rules() {
    let faults = Faults {
        knows_no_bundles: true,
        ..lagging(1_000, 100, 30)
    };
    let mut world = one_by_one(faults, quick(FlowSetup::Proactive));
    for round in 0..3 {
        begin_together(&mut world, round * 100..(round + 1) * 100);
        world.until("all have rules", |world| {
            installed(world) == (round as usize + 1) * 100
        });
    }
    let figures = world.joined.steering.figures();
    assert_eq!(
        (figures.batches, figures.split_batches, figures.refused),
        (1, 1, 0),
        "tried once"
    );
    long_flows(&mut world, 0..300, 3, STEP);
    assert_none_astray(&mut world);
}

/// At every moment of a batch: before it is there, while it is written, and after, when the answer is lost.
#[test]
fn a_connection_that_is_cut_in_a_batch_loses_no_rule() {
    let mut cut_in_a_batch = 0;
    for steps in 0..40 {
        let mut world = one_by_one(lagging(1_000, 100, 30), quick(FlowSetup::Proactive));
        begin_together(&mut world, 0..100);
        world.run(Nanos(steps * 10 * STEP.0));
        cut_in_a_batch += u32::from(installed(&world) < 100);
        world.cut();
        world.run(Nanos::from_millis(2));
        assert_eq!(
            world.joined.steering.figures().queued,
            0,
            "after a cut nothing waits"
        );
        world.connect();
        world.until("all have rules", |world| {
            installed(world) == 100 && world.joined.steering.is_settled()
        });
        let cookies = world.joined.nic.cookies().into_iter();
        // The kind is in bits 40 to 47: 3 is a flow's.
        assert_eq!(cookies.filter(|cookie| cookie >> 40 & 0xff == 3).count(), 100);
        long_flows(&mut world, 0..100, 3, STEP);
        assert_none_astray(&mut world);
    }
    assert!((5..40).contains(&cut_in_a_batch), "{cut_in_a_batch}");
}
