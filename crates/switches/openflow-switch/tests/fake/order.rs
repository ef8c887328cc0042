//! No packet is lost, doubled, overtaken or sent elsewhere while buckets move.

use model::{FlowSetup, Nanos};
use openflow_switch::Faults;
use proptest::prelude::*;

use crate::world::{
    Chance, INSTANCES, STEP, World, assert_none_astray, full_length, lagging, quick, traffic_while_scaling,
};

fn none_astray_while_scaling(faults: Faults, symmetric: bool, seed: u64, scales: &[u16]) {
    let mut world = World::new(faults, quick(FlowSetup::Proactive), symmetric, seed);
    world.ready(INSTANCES);
    traffic_while_scaling(&mut world, seed, symmetric, scales, Nanos::from_millis(120));
    world.until("buckets have stopped moving", |world| {
        !world.joined.steering.is_moving()
    });
    assert_none_astray(&mut world);
}

/// The switch refuses one new rule in `refuse_one_in`, has room for `rule_limit` rules of flows, and answers with bytes
/// that mean nothing.
fn none_astray_beside_refusals(seed: u64, refuse_one_in: u64, rule_limit: usize, scales: &[u16]) {
    let faults = lagging(1_000, 200, 30);
    let mut world = World::new(faults, quick(FlowSetup::Proactive), true, seed);
    world.ready(INSTANCES);
    let places = world.joined.nic.cookies().len() + rule_limit;
    world.joined.nic.set_faults(Faults {
        refuse_one_in,
        rule_limit: places,
        garbage_one_in: 5,
        packet_in_flood: 3,
        ..faults
    });
    traffic_while_scaling(&mut world, seed, true, scales, Nanos::from_millis(60));
    assert_none_astray(&mut world);
    let figures = world.joined.steering.figures();
    assert!(figures.refused > 0, "{figures:?}");
    assert!(world.queued < 5_000, "{}", world.queued);
    assert!(world.joined.nic.cookies().len() <= places);
}

/// The rules of the two come into force one after the other, and in any order. Both ends send from the beginning on.
#[test]
fn both_directions_of_a_new_connection_have_one_instance() {
    for seed in 0..2 {
        let faults = Faults {
            reorders: true,
            ..lagging(1_000, 3_000, 30)
        };
        let mut world = World::new(faults, quick(FlowSetup::Proactive), true, seed);
        world.ready(4);
        let mut next = 0..;
        for active in [1, 4] {
            world.scale(active, 4);
            for flow in next.by_ref().take(750) {
                world.send(flow, flow % 2 == 0);
                world.send(flow, flow % 2 != 0);
                world.run(Nanos(4 * STEP.0));
            }
        }
        world.until("buckets have stopped moving", |world| {
            !world.joined.steering.is_moving()
        });
        assert!(world.joined.steering.figures().moved_buckets >= 8);
        assert_none_astray(&mut world);
    }
}

/// The rules of a flow's two sides were refused one after the other, and in between all rules were compared: the second
/// was written again, while the first was lacking.
#[test]
fn a_flow_that_lacks_one_of_its_two_rules_is_on_its_bucket() {
    none_astray_beside_refusals(4_783_717_136_869_606_997, 4, 308, &[2, 8]);
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 4, max_shrink_iters: 0, failure_persistence: None, ..ProptestConfig::default()
    })]

    #[test]
    fn no_packet_is_lost_doubled_or_sent_elsewhere(
        seed: u64,
        symmetric: bool,
        round_us in 300_u64..12_000,
        control_us in 10_u64..2_000,
        port_us in 5_u64..200,
        reorders: bool,
        rule_us in 0_u64..100,
        scales in prop::collection::vec(1_u16..=INSTANCES, 2..4),
    ) {
        let faults = Faults {
            reorders,
            rule_time: Nanos::from_micros(rule_us),
            ..lagging(round_us, control_us, port_us)
        };
        none_astray_while_scaling(faults, symmetric, seed, &scales);
    }

    #[test]
    fn a_switch_that_refuses_and_talks_nonsense_sends_nothing_astray(
        seed: u64,
        refuse_one_in in 1_u64..5,
        rule_limit in 150_usize..400,
        scales in prop::collection::vec(1_u16..=INSTANCES, 2..3),
    ) {
        none_astray_beside_refusals(seed, refuse_one_in, rule_limit, &scales);
    }
}

/// 1,000 new flows a second, each a burst of 64 packets.
fn bursts_while_scaling(world: &mut World, seed: u64, scales: &[u16], span: Nanos) {
    let mut chance = Chance(seed);
    let mut live: Vec<(u32, u32)> = Vec::new();
    let mut next = world.packets.flows.len() as u32;
    for active in scales {
        world.scale(*active, INSTANCES);
        for _ in 0..span.0 / STEP.0 {
            if chance.below(Nanos::from_millis(1).0 / STEP.0) == 0 {
                live.push((next, 64));
                next += 1;
            }
            for (flow, left) in &mut live {
                // Four in a step: the burst lasts 640 µs.
                for _ in 0..4 {
                    world.send(*flow, false);
                }
                *left -= 4;
            }
            live.retain(|(_, left)| *left > 0);
            world.step();
        }
    }
}

#[test]
fn bursts_keep_their_order_too() {
    let mut world = World::new(lagging(5_000, 300, 30), quick(FlowSetup::Proactive), false, 7);
    world.ready(INSTANCES);
    let span = Nanos::from_millis(if full_length() { 20_000 } else { 400 });
    bursts_while_scaling(&mut world, 7, &[3, 8, 3], span);
    world.until("buckets have stopped moving", |world| {
        !world.joined.steering.is_moving()
    });
    assert_none_astray(&mut world);
    let figures = world.joined.steering.figures();
    assert!(
        figures.moved_buckets > 20 && world.packets.flows.len() > 1_000,
        "{figures:?}"
    );
    println!(
        "proactive: {} flows, nothing astray, {} buckets moved",
        world.packets.flows.len(),
        figures.moved_buckets
    );
}

#[test]
fn the_reactive_way_loses_the_order_and_no_flow() {
    let mut world = World::new(lagging(5_000, 300, 30), quick(FlowSetup::Reactive), false, 7);
    world.ready(INSTANCES);
    bursts_while_scaling(&mut world, 7, &[3, 8, 3], Nanos::from_millis(150));
    let outcome = world.outcome();
    assert_eq!(outcome.mis_steered, 0);
    // A packet that comes after the rule overtakes those that are still with the controller: this can be seen.
    assert!(outcome.reordered > 0, "{outcome:?}");
    println!("reactive: {} flows, {outcome:?}", world.packets.flows.len());
}
