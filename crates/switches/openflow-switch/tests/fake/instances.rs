//! Instances that drain, and instances that fail.

use model::{FlowSetup, Nanos, Slot, Timeouts};
use openflow_switch::{InstanceTerms, Settings};

use crate::world::{
    FIRST_INSTANCE, LAN, SERVICE, STEP, WAN, World, assert_none_astray, lagging, long_flows, quick,
};

#[test]
fn draining_ends_with_the_last_flow() {
    let settings = Settings {
        idle: Timeouts::all(Nanos::from_millis(200)),
        ..quick(FlowSetup::Proactive)
    };
    let mut world = World::new(lagging(1_000, 100, 30), settings, true, 4);
    world.ready(2);
    long_flows(&mut world, 0..32, 20, STEP);
    let of = |world: &World, slot| world.joined.steering.slot_figures(Slot(slot)).live_flows;
    assert_eq!(of(&world, 0) + of(&world, 1), 32);
    let left = of(&world, 1);
    assert!(left > 0);
    world.scale(1, 2);
    for _ in 0..20 {
        long_flows(&mut world, 0..32, 10, STEP);
        assert_eq!(of(&world, 1), left, "flows stay until they end");
    }
    assert!(!world.joined.steering.may_get_flows(Slot(1)) && !world.joined.steering.is_drained(Slot(1)));
    assert_none_astray(&mut world);
    world.until("it is drained", |world| world.joined.steering.is_drained(Slot(1)));
    // What the switch counted has come here, with the counters of rules that are gone.
    world.until("all is counted", |world| {
        let sum: u64 = (0..2)
            .map(|slot| world.joined.steering.slot_figures(Slot(slot)).packets)
            .sum();
        sum == world
            .packets
            .flows
            .values()
            .map(|sent| u64::from(sent.packets))
            .sum::<u64>()
    });
    world.joined.steering.remove(Slot(1), world.now);
    world.run(Nanos::from_millis(10));
    assert_eq!(world.joined.steering.figures().failed_flows, 0);
    long_flows(&mut world, 100..132, 3, STEP);
    assert_none_astray(&mut world);
}

#[test]
fn flows_of_an_instance_that_failed_begin_anew_elsewhere() {
    let mut world = World::new(lagging(1_000, 100, 30), quick(FlowSetup::Proactive), false, 5);
    world.ready(3);
    long_flows(&mut world, 0..60, 10, STEP);
    let lost: Vec<u32> = (world.packets.flows.iter())
        .filter(|(_, sent)| sent.instance == Some(FIRST_INSTANCE + 2))
        .map(|(flow, _)| *flow)
        .collect();
    world.joined.steering.remove(Slot(2), world.now);
    world.run(Nanos::from_millis(50));
    assert_eq!(world.joined.steering.figures().failed_flows, lost.len() as u64);
    assert!(!lost.is_empty());
    for flow in lost {
        world.packets.flows.get_mut(&flow).unwrap().instance = None;
    }
    long_flows(&mut world, 0..60, 10, STEP);
    assert_eq!(world.joined.steering.slot_figures(Slot(2)).live_flows, 0);
    assert_none_astray(&mut world);
}

/// An instance that was taken for dead goes on to give back packets that it had: none leaves after the first one of
/// its flow that another instance was given.
#[test]
fn what_a_failed_instance_sends_later_goes_nowhere() {
    for seed in 0..8 {
        let mut world = World::new(lagging(5_000, 200, 30), quick(FlowSetup::Proactive), false, seed);
        world.ready(3);
        long_flows(&mut world, 0..60, 10, STEP);
        world.until("flows have rules", |world| {
            world.joined.steering.figures().rules == 60
        });
        let port = FIRST_INSTANCE + 2;
        let lost: Vec<u32> = (world.packets.flows.iter())
            .filter(|(_, sent)| sent.instance == Some(port))
            .map(|(flow, _)| *flow)
            .collect();
        assert!(!lost.is_empty());
        for flow in &lost {
            world.packets.flows.get_mut(flow).unwrap().instance = None;
        }
        world.joined.steering.fail(Slot(2));
        // Without the table's word: it is not in the table any more.
        world.joined.steering.remove(Slot(2), world.now);
        let mut sent_on = 0;
        let mut served = 0;
        for round in 0..2_500 {
            let flow = lost[round % lost.len()];
            // What the failed one still had, and what the flow sends.
            let frame = world.packets.next(flow, false);
            world.joined.nic.packet(port, &frame, world.now);
            world.joined.nic.packet(WAN, &frame, world.now);
            world.now.0 += STEP.0;
            for delivered in world.joined.turn(world.now) {
                match delivered.port {
                    WAN | LAN if served > 0 => panic!("seed {seed}: sent on after {served} were served"),
                    WAN | LAN => sent_on += 1,
                    to => served += u32::from(to != port),
                }
            }
        }
        assert!(sent_on > 0, "it goes on until the switch has it");
        assert!(served > 1_000, "its flows go on elsewhere: {served}");
    }
}

/// The rates of flows that have ended die away, and never quite. Buckets are not to be given by them, or the next flows
/// all come to the instances that had none before.
#[test]
fn what_is_left_of_the_load_of_ended_flows_moves_no_bucket() {
    let mut world = World::new(lagging(1_000, 100, 30), quick(FlowSetup::Proactive), false, 17);
    world.ready(2);
    let shares = |world: &World| {
        let buckets = world.joined.steering.buckets(SERVICE);
        [0, 1].map(|slot| buckets.iter().filter(|of| **of == Some(Slot(slot))).count())
    };
    let even = shares(&world);
    assert_eq!(even[0], even[1]);
    let load = |world: &mut World, load: f32| {
        for slot in [0, 1] {
            let terms = InstanceTerms {
                takes_flows: true,
                capacity: 1e4,
                weight: 256,
                load: if slot == 0 { load } else { 0.0 },
                ..InstanceTerms::default()
            };
            world.joined.steering.set_terms(Slot(slot), terms);
        }
        world.run(Nanos::from_millis(500));
    };
    world.joined.steering.set_flow_load(SERVICE, 1.0);
    load(&mut world, 1e-6);
    assert_eq!(shares(&world), even);
    // While there is traffic its loads count. Afterwards no bucket is better off elsewhere: at most one too many.
    load(&mut world, 640.0);
    let [loaded, other] = shares(&world);
    assert!(loaded + 2 < other, "{loaded} and {other}");
    load(&mut world, 1e-6);
    let [loaded, other] = shares(&world);
    assert!(loaded.abs_diff(other) <= 2, "{loaded} and {other}");
}
