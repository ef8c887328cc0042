//! What a turn costs, acknowledges and takes.

use model::{DropReason, InstanceId, InstanceState, ServiceId, Slot, UplinkId};
use scheduling::Scheduler;
use soft_switch::{Command, Destination, Frame as _, FrameMemory, HandOff};
use switch::Change;

use crate::alone::{Alone, SINKS, alone, packet_of};

#[test]
fn a_turn_allocates_nothing() {
    let mut alone = alone(1);
    // Commands and the first plan allocate; so may the first use of each list.
    alone.send(0..200);
    for _ in 0..20 {
        alone.turn();
    }
    assert_eq!(alone.to_instances(), 200);
    // Known flows, then new ones, loads every millisecond, and the expiry of all.
    for round in 0..20 {
        for flows in [0..200, 1000 + round * 200..1200 + round * 200] {
            alone.send(flows);
            alone.loads.set_load(Slot(1), round as f32);
            alone.loads.publish();
            let allocations = allocation_counter::measure(|| {
                for _ in 0..8 {
                    alone.turn();
                }
            });
            assert_eq!(
                (allocations.count_total, allocations.count_current),
                (0, 0),
                "round {round}"
            );
        }
    }
    assert_eq!(alone.to_instances(), 200 + 20 * 400);
    let new_flows: u64 = alone.counters.slots.iter().map(|s| s.new_flows.get()).sum();
    assert!(new_flows >= 200 + 20 * 200);
    let allocations = allocation_counter::measure(|| {
        for _ in 0..2000 {
            alone.turn();
        }
    });
    assert_eq!(allocations.count_total, 0, "expiry");
    assert_eq!(alone.counters.figures.live_flows.get(), 0);
    while alone.events.pop().is_ok() {}
}

#[test]
fn handing_over_allocates_nothing_either() {
    let mut alone = alone(2);
    for _ in 0..3 {
        alone.turn();
    }
    let mut waiting = Vec::with_capacity(1000);
    for round in 0..10 {
        alone.send(round * 100..round * 100 + 200);
        let allocations = allocation_counter::measure(|| {
            for _ in 0..8 {
                alone.turn();
            }
        });
        assert_eq!(allocations.count_total, 0, "round {round}");
        // What crossed to the other worker comes from it as if it had been received there.
        while let Ok(handed) = alone.handed_over.pop() {
            alone.memory.give(handed.frame);
            let mut frame = alone.memory.take().unwrap();
            let bytes = packet_of(round);
            frame.room()[..bytes.len()].copy_from_slice(&bytes);
            frame.set_len(bytes.len());
            waiting.push(HandOff { frame, to: handed.to });
        }
        assert!(!waiting.is_empty());
        for handed in waiting.drain(..) {
            assert!(alone.to_it.push(handed).is_ok());
        }
        let allocations = allocation_counter::measure(|| {
            for _ in 0..8 {
                alone.turn();
            }
        });
        assert_eq!(allocations.count_total, 0, "round {round}, taken over");
        // Those of the other worker's flows go straight back to it.
        while let Ok(handed) = alone.handed_over.pop() {
            alone.memory.give(handed.frame);
        }
    }
    assert!(alone.counters.figures.handed_off.get() > 0 && alone.counters.figures.taken_over.get() > 0);
}

#[test]
fn a_frame_that_was_on_its_way_to_an_instance_that_is_gone_does_not_reach_its_successor() {
    let mut alone = alone(2);
    alone.turn();
    for instance in [0, 900] {
        let mut frame = alone.memory.take().unwrap();
        let bytes = packet_of(1);
        frame.room()[..bytes.len()].copy_from_slice(&bytes);
        frame.set_len(bytes.len());
        let to = Destination::Instance {
            slot: Slot(0),
            instance: InstanceId(instance),
            service: ServiceId(0),
            port: 0,
        };
        assert!(alone.to_it.push(HandOff { frame, to }).is_ok());
    }
    alone.turn();
    assert_eq!(
        alone.counters.slots[Slot(0)].to_packets.get(),
        1,
        "only the one for the instance that has the slot now"
    );
    assert_eq!(alone.counters.drops[DropReason::InstanceLost.index()].get(), 1);
}

#[test]
fn a_plan_is_acknowledged_after_the_gauges_show_it() {
    let mut alone = alone(1);
    alone.turn();
    assert_eq!(alone.counters.figures.generation.get(), 1);
    // Within a millisecond of the last look at the gauges.
    alone.send(0..50);
    alone.turn();
    let live = |alone: &Alone| {
        alone
            .counters
            .slots
            .iter()
            .map(|s| s.live_flows.get())
            .sum::<u64>()
    };
    alone.replan(|plan| {
        for slot_plan in plan.slots.iter_mut().flatten() {
            slot_plan.state = InstanceState::Draining;
        }
    });
    alone.turn();
    assert_eq!((alone.counters.figures.generation.get(), live(&alone)), (2, 50));
}

#[test]
fn a_plan_that_a_command_has_loaded_is_acknowledged_too() {
    let mut alone = alone(1);
    alone.turn();
    alone.replan(|_| {});
    let uplink = UplinkId(0);
    assert!(alone.commands.push(Command::DetachUplink { uplink }).is_ok());
    alone.turn();
    assert_eq!(alone.counters.figures.generation.get(), 2);
}

#[test]
fn new_flows_do_not_wander_while_a_slot_is_purged() {
    let mut alone = alone(1);
    let scheduler = Scheduler::from_name("round-robin").unwrap();
    let service = ServiceId(0);
    assert!(
        alone
            .commands
            .push(Command::Change(Change::SetScheduler { service, scheduler }))
            .is_ok()
    );
    alone.turn();
    for first in (0..9000).step_by(500) {
        alone.send(first..first + 500);
        while alone.turn() > 0 {}
    }
    let packets = |alone: &Alone| -> Vec<u64> {
        alone
            .counters
            .slots
            .iter()
            .take(SINKS.into())
            .map(|s| s.to_packets.get())
            .collect()
    };
    for slot in 0..SINKS {
        // The sweep of 9000 entries goes on for some turns, in each of which these flows have a packet.
        assert!(
            alone
                .commands
                .push(Command::PurgeSlot {
                    slot: Slot(slot),
                    failed: false
                })
                .is_ok()
        );
        for flow in 0..3 {
            let flow = 20_000 + u32::from(slot) * 10 + flow;
            let before = packets(&alone);
            for _ in 0..7 {
                alone.send(flow..flow + 1);
                alone.turn();
            }
            let after = packets(&alone);
            let on: Vec<u64> = before
                .iter()
                .zip(&after)
                .map(|(b, a)| a - b)
                .filter(|n| *n > 0)
                .collect();
            assert_eq!(on, [7], "the packets of a new flow went to several instances");
        }
    }
    let refused: u64 = alone.counters.services[ServiceId(0)].unpinned.get();
    assert_eq!(refused, 0, "there was another instance to pin to");
}

#[test]
fn what_a_peer_sent_before_it_went_is_taken_before_its_queue_is_given_back() {
    let mut alone = alone(1);
    alone.turn();
    alone.send(0..300);
    let uplink = UplinkId(0);
    assert!(alone.commands.push(Command::DetachUplink { uplink }).is_ok());
    alone.turn();
    assert_eq!(alone.counters.uplinks[UplinkId(0)].received_packets.get(), 300);
    assert_eq!(alone.to_instances(), 300);
}
