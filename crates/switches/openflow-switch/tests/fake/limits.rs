//! More flows than rules.

use model::{FlowSetup, Nanos, Slot, Timeouts};
use openflow_switch::{RuleState, Settings};

use crate::world::{INSTANCES, STEP, World, assert_none_astray, full_length, lagging, long_flows, quick};

#[test]
fn a_full_table_leaves_flows_on_their_buckets_and_the_heaviest_get_rules() {
    let settings = Settings {
        rule_limit: 100,
        idle: Timeouts::all(Nanos::from_millis(300)),
        ..quick(FlowSetup::Proactive)
    };
    let mut world = World::new(lagging(1_000, 100, 30), settings, false, 3);
    world.ready(4);
    long_flows(&mut world, 0..400, 2, STEP);
    world.scale(1, 4);
    long_flows(&mut world, 0..400, 3, STEP);
    let pinned = world
        .joined
        .steering
        .flows()
        .filter(|flow| flow.state == RuleState::Installed)
        .count();
    assert!((90..=100).contains(&pinned), "{pinned}");
    assert!(world.joined.steering.figures().rules <= 100 && world.joined.steering.figures().rule_waits > 0);
    // Some go on: when the others have ended, those get the rules, and buckets can move.
    long_flows(&mut world, 300..340, 250, STEP);
    let pinned = world
        .joined
        .steering
        .flows()
        .filter(|flow| flow.state == RuleState::Installed)
        .count();
    assert_eq!(
        (pinned, world.joined.steering.flows().count()),
        (40, 40),
        "{:?}",
        world.joined.steering.figures()
    );
    assert_none_astray(&mut world);
    world.until("the others have no buckets", |world| {
        (1..4).all(|slot| !world.joined.steering.may_get_flows(Slot(slot)))
    });
}

#[test]
fn ten_times_more_flows_than_rules_send_nothing_astray() {
    let (rules, flows) = if full_length() {
        (1_000, 10_000)
    } else {
        (100, 1_000)
    };
    let settings = Settings {
        rule_limit: rules,
        ..quick(FlowSetup::Proactive)
    };
    let mut world = World::new(lagging(1_000, 100, 30), settings, false, 10);
    world.ready(8);
    for active in [8, 3, 8, 3] {
        world.scale(active, INSTANCES);
        long_flows(&mut world, 0..flows, 2, STEP);
        assert!(world.joined.steering.figures().rules <= rules as u64);
    }
    assert_none_astray(&mut world);
}

#[test]
fn an_evicted_rule_is_written_again_and_its_absence_seen() {
    let mut world = World::new(lagging(1_000, 100, 30), quick(FlowSetup::Proactive), false, 9);
    world.ready(2);
    long_flows(&mut world, 0..40, 10, STEP);
    world.scale(1, 2);
    long_flows(&mut world, 0..40, 60, STEP);
    world.until("buckets have moved", |world| {
        !world.joined.steering.may_get_flows(Slot(1))
    });
    assert_none_astray(&mut world);
    let before = world.joined.nic.cookies();
    for cookie in &before {
        world.joined.nic.evict(*cookie);
    }
    // Everything is gone, and pins come back by themselves.
    long_flows(&mut world, 0..40, 10, STEP);
    let figures = world.joined.steering.figures();
    assert_eq!(figures.evicted, 40, "{figures:?}");
    assert_eq!(figures.rules, 40);
}
