//! Flows keep their instances, and a switch that was killed has its rules again.

use std::time::{Duration, Instant};

use model::{FlowSetup, Nanos, Slot};

use crate::ovs::{FIRST_INSTANCE, FLOWS_EACH, INSTANCES, LIMIT};
use crate::tracked::Outcome;
use crate::world::World;

#[test]
fn flows_keep_their_instance_while_buckets_move() {
    let Some(mut world) = World::start(FlowSetup::Proactive, 500) else {
        return;
    };
    world.flows_while_scaling(&[4, 1, 4, 2], FLOWS_EACH);
    world.until("buckets have stopped moving", |world| !world.steering.is_moving());
    let outcome = world.outcome();
    let flows = 4 * u64::from(FLOWS_EACH);
    let figures = world.steering.figures();
    println!("{outcome:?} {figures:?}");
    assert_eq!(outcome, Outcome::default(), "{figures:?}");
    assert!(
        figures.moved_buckets >= 12 && figures.mis_steered == 0 && figures.rules == flows,
        "{figures:?}"
    );
    // Open vSwitch gives what a flow had until its rules changed to the rules that it has then: packets of which a
    // copy came here may be counted by the exact rule too, and none is missing.
    let sum = |world: &World| -> u64 {
        let slots = (0..INSTANCES).map(|slot| world.steering.slot_figures(Slot(slot)).packets);
        slots.sum()
    };
    world.until("all is counted", |world| sum(world) >= flows * 5);
    assert!(sum(&world) < 2 * flows * 5, "{}", sum(&world));
}

/// An instance that was taken for dead goes on to give back packets: none of those that it gives after another
/// instance was given one of its flows leaves.
#[test]
fn what_a_failed_instance_sends_later_goes_nowhere() {
    let Some(mut world) = World::start(FlowSetup::Proactive, 500) else {
        return;
    };
    world.flows_while_scaling(&[4], 40);
    world.until("flows have rules", |world| world.steering.figures().rules == 40);
    let port = FIRST_INSTANCE + 1;
    let lost: Vec<u32> = (world.packets.flows.iter())
        .filter(|(_, sent)| sent.instance == Some(port))
        .map(|(flow, _)| *flow)
        .collect();
    assert!(!lost.is_empty());
    // Until then what it gives leaves.
    let frame = world.packets.next(lost[0], false);
    world.wan.send(&frame);
    world.instances[1].send(&frame);
    let since = Instant::now();
    while world.wan.receive().is_none() {
        assert!(since.elapsed() < LIMIT, "nothing that an instance gives leaves");
        world.run(Duration::from_micros(500));
    }
    for flow in &lost {
        world.packets.flows.get_mut(flow).unwrap().instance = None;
    }
    world.steering.fail(Slot(1));
    let now = Nanos(world.began.elapsed().as_nanos() as u64);
    world.steering.remove(Slot(1), now);
    let is_elsewhere = |world: &World| {
        let mut flows = lost.iter().filter_map(|flow| world.packets.flows.get(flow));
        flows.any(|sent| sent.instance.is_some_and(|of| of != port))
    };
    let (mut sent, mut moved_at) = (0_u32, None);
    let since = Instant::now();
    while moved_at.is_none_or(|at| sent < at + 500) {
        assert!(
            since.elapsed() < LIMIT,
            "its flows stay: {:?}",
            world.steering.figures()
        );
        // What the failed one still gives has its number at the end.
        let mut frame = world.packets.next(lost[sent as usize % lost.len()], false);
        world.wan.send(&frame);
        let end = frame.len() - 4;
        frame[end..].copy_from_slice(&sent.to_be_bytes());
        world.instances[1].send(&frame);
        sent += 1;
        world.run(Duration::from_micros(500));
        while let Some(frame) = world.wan.receive() {
            let number = u32::from_be_bytes(*frame.last_chunk().unwrap());
            assert!(
                moved_at.is_none_or(|at| number < at),
                "{number} left after {moved_at:?}"
            );
        }
        // Where it was given one before it failed, a packet may reach it late, when it has no instance.
        for flow in &lost {
            let sent = world.packets.flows.get_mut(flow).unwrap();
            sent.instance = sent.instance.filter(|of| *of != port);
        }
        if moved_at.is_none() && is_elsewhere(&world) {
            moved_at = Some(sent);
        }
    }
    assert_eq!(world.steering.figures().failed_flows, lost.len() as u64);
}

#[test]
fn counters_are_as_late_as_configured_in_the_switch() {
    for lag_ms in [100, 500] {
        let Some(mut world) = World::start(FlowSetup::Proactive, lag_ms) else {
            return;
        };
        let frame = world.packets.next(1, false);
        world.wan.send(&frame);
        world.until("it has a rule", |world| world.steering.figures().rules == 1);
        world.run(Duration::from_millis(1200));
        let counted = |world: &World| world.steering.flows().next().map_or(0, |flow| flow.packets);
        let mut ages = Vec::new();
        for _ in 0..8 {
            let before = counted(&world);
            let frame = world.packets.next(1, false);
            world.wan.send(&frame);
            let since = Instant::now();
            world.until("it is counted", |world| counted(world) > before);
            ages.push(since.elapsed().as_millis());
            // Not in step with the switch.
            world.run(Duration::from_millis(13));
        }
        ages.sort_unstable();
        println!("max-revalidator {lag_ms} ms: counted after {ages:?} ms, read every 50 ms");
        assert!(ages[7] < 3000, "{ages:?}");
    }
}

#[test]
fn the_reactive_way_keeps_instances() {
    let Some(mut world) = World::start(FlowSetup::Reactive, 500) else {
        return;
    };
    world.flows_while_scaling(&[4, 1], 50);
    let outcome = world.outcome();
    println!("{outcome:?} {:?}", world.steering.figures());
    assert_eq!(outcome.mis_steered, 0, "{outcome:?}");
    assert_eq!(world.steering.flows().count(), 100);
}

#[test]
fn a_killed_switch_gets_its_pins_back_before_its_buckets() {
    let Some(mut world) = World::start(FlowSetup::Proactive, 500) else {
        return;
    };
    world.flows_while_scaling(&[4, 1], FLOWS_EACH);
    world.until("buckets have moved", |world| {
        (1..INSTANCES).all(|slot| !world.steering.may_get_flows(Slot(slot)))
    });
    let outcome = world.outcome();
    assert_eq!((outcome.lost, outcome.mis_steered), (0, 0), "{outcome:?}");
    world.ovs.kill_switch();
    world.ovs.start_switch();
    let since = Instant::now();
    (world.wan, world.monitor, world.instances) = world.ovs.lines();
    let has_ports = since.elapsed();
    // Flows go on before it has any rule: what comes too early is lost, and nothing goes astray.
    for round in 0..5 {
        for flow in 0..2 * FLOWS_EACH {
            let frame = world.packets.next(flow, false);
            world.wan.send(&frame);
            world.run(Duration::from_millis(if round == 0 { 2 } else { 1 }));
        }
    }
    world.until("it is settled", |world| world.steering.is_settled());
    let outcome = world.outcome();
    println!(
        "restarted: ports after {has_ports:?}, {outcome:?} {:?}",
        world.steering.figures()
    );
    assert_eq!((outcome.duplicated, outcome.mis_steered), (0, 0), "{outcome:?}");
    // All is as it was.
    let frame = world.packets.next(0, false);
    world.wan.send(&frame);
    let missing = world.packets.missing();
    world.until("it arrives", |world| world.packets.missing() < missing);
}
