//! Instances come and go while traffic runs.

use std::sync::atomic::Ordering;
use std::time::Instant;

use model::{DropReason, InstanceState, Match, Slot};
use switch::{PortKind, PortSpec, Switch as _, SwitchError, SwitchEvent, SwitchRequest};

use crate::bed::{Bed, Function, PATIENCE, echo, service, stamp, udp_flows};
use crate::load::{Load, Shape};

#[test]
fn instances_come_and_go_under_load_and_no_packet_notices() {
    let mut bed = Bed::new(1, 1, vec![service(0, &[0], Match::default())]);
    bed.add(0, 0, 1, echo);
    let shape = Shape {
        fresh_every: 20,
        ..Shape::default()
    };
    let load = Load::start(&mut bed, shape);
    load.wait_for(&mut bed, 2000);
    bed.add(1, 0, 1, echo);
    bed.add(2, 0, 1, echo);
    load.wait_for(&mut bed, 2000);
    // A drain, taken back.
    bed.set_state(0, 0, InstanceState::Draining);
    bed.publish();
    let new_flows = bed.slot(0).new_flows;
    load.wait_for(&mut bed, 2000);
    assert_eq!(
        bed.slot(0).new_flows,
        new_flows,
        "a draining instance was given a new flow"
    );
    bed.set_state(0, 0, InstanceState::Active);
    bed.publish();
    load.wait_for(&mut bed, 2000);
    bed.until("it takes flows again", |bed| bed.slot(0).new_flows > new_flows);
    // A drain to the end: the flows of this load end by being sent no more, so they are purged instead of waited for.
    bed.set_state(1, 0, InstanceState::Draining);
    bed.publish();
    load.wait_for(&mut bed, 32 * 20 + 1000);
    // None of its flows is sent any more, so it ends by having given all back.
    bed.until("it has given all back", |bed| bed.is_empty(1));
    assert_eq!(bed.remove(1), 0);
    load.wait_for(&mut bed, 2000);
    // Its slot is used again at once, by another instance.
    bed.add_function(1, 101, 0, 1, 1, echo);
    load.wait_for(&mut bed, 2000);
    let outcome = load.finish(&mut bed);
    outcome.assert_perfect();
    for number in [0, 1, 2, 101] {
        assert!(
            outcome.instance_of.values().any(|n| *n == number),
            "{number} got no flow"
        );
    }
    bed.assert_accounts_close();
    assert_eq!(bed.reading.dropped(), 0);
    assert_eq!(bed.slot(0).expected_moves + bed.slot(2).expected_moves, 0);
    bed.finish();
}

#[test]
fn two_workers_lose_nothing_while_instances_come_and_go() {
    let mut bed = Bed::new(2, 2, vec![service(0, &[0, 1], Match::default())]);
    bed.add(0, 0, 2, crate::bed::cross);
    let shape = Shape {
        fresh_every: 20,
        two_arm: true,
        ..Shape::default()
    };
    let load = Load::start(&mut bed, shape);
    for round in 1..6 {
        bed.add_function(1, round, 0, 2, 1, crate::bed::cross);
        load.wait_for(&mut bed, 1500);
        bed.set_state(1, 0, InstanceState::Draining);
        bed.publish();
        load.wait_for(&mut bed, 32 * 20 + 1000);
        bed.until("it has given all back", |bed| bed.is_empty(1));
        assert_eq!(bed.remove(1), 0);
    }
    let outcome = load.finish(&mut bed);
    outcome.assert_perfect();
    for number in 0..6 {
        assert!(
            outcome.instance_of.values().any(|n| *n == number),
            "{number} got no flow"
        );
    }
    bed.assert_accounts_close();
    assert_eq!(bed.reading.dropped(), 0);
    assert!(
        bed.reading
            .workers
            .iter()
            .all(|w| w.handed_off > 0 && w.taken_over > 0)
    );
    bed.finish();
}

#[test]
fn no_flow_of_the_old_instance_lands_on_the_new_one_in_its_slot() {
    let mut bed = Bed::new(2, 1, vec![service(0, &[0], Match::default())]);
    bed.add(0, 0, 1, echo);
    bed.add(1, 0, 1, echo);
    let frames = udp_flows(40);
    bed.send(0, frames.iter().map(Vec::as_slice));
    bed.take_all(0, 40);
    // Removed with flows pinned to it; the new one in its slot takes no new flows yet.
    bed.remove(0);
    bed.until("its flows are gone", |bed| bed.slot(0).live_flows == 0);
    let function = Function::start(bed.directory.path(), 77, 1, echo);
    let socket = function.socket.clone();
    bed.functions.push(function);
    bed.attach(0, 0, socket, 1, 1);
    for _ in 0..3 {
        bed.send(0, frames.iter().map(Vec::as_slice));
        for frame in bed.take_all(0, 40) {
            assert_eq!(stamp(&frame), 1, "an old pin led to the new instance");
        }
    }
    assert_eq!(bed.functions[2].seen.load(Ordering::Relaxed), 0);
    bed.assert_accounts_close();
    bed.finish();
}

#[test]
fn what_an_instance_still_has_when_it_leaves_the_plan_comes_out() {
    let mut bed = Bed::new(1, 1, vec![service(0, &[0], Match::default())]);
    bed.add(0, 0, 1, echo);
    bed.functions[0].hangs.store(true, Ordering::Relaxed);
    bed.send(0, udp_flows(30).iter().map(Vec::as_slice));
    bed.until("all are in its ring", |bed| bed.slot(0).to_packets == 30);
    bed.unplan(0);
    bed.functions[0].hangs.store(false, Ordering::Relaxed);
    bed.take_all(0, 30);
    assert_eq!(bed.remove(0), 0);
    bed.assert_accounts_close();
    assert_eq!(bed.reading.dropped(), 0);
    bed.finish();
}

#[test]
fn what_an_instance_keeps_is_counted_when_it_leaves() {
    let mut bed = Bed::new(1, 1, vec![service(0, &[0], Match::default())]);
    bed.add(0, 0, 1, |_, _, _| None);
    bed.send(0, udp_flows(30).iter().map(Vec::as_slice));
    bed.until("it has taken all", |bed| bed.slot(0).consumed == 30);
    assert_eq!(bed.reading.in_flight(), 30);
    assert_eq!(bed.remove(0), 30);
    bed.assert_accounts_close();
    assert_eq!((bed.drops(DropReason::Function), bed.slot(0).kept), (30, 30));
    bed.finish();
}

/// A function by hand, on slot 1.
fn by_hand(bed: &mut Bed) -> memif::Link {
    let socket = bed.directory.path().join("by-hand.sock");
    let mut listener = memif::Listener::bind(&socket, memif::ServerConfig::new("by-hand")).unwrap();
    bed.begin_attach(1, 0, socket, 1, 1);
    let mut link = None;
    bed.until("the instance is attached", |bed| {
        link = link
            .take()
            .or(listener.accept(std::time::Duration::ZERO).unwrap());
        bed.saw(|e| matches!(e, SwitchEvent::Attached { slot, .. } if slot.0 == 1))
    });
    link.unwrap()
}

#[test]
fn returns_to_a_full_uplink_are_dropped_and_the_function_continues() {
    /// Slots of the uplink's ring.
    const ROOM: usize = 1024;
    let mut bed = Bed::new(1, 1, vec![service(0, &[0], Match::default())]);
    let mut link = by_hand(&mut bed);
    let frames = udp_flows(2000);
    let ends = std::time::Instant::now() + crate::bed::PATIENCE;
    for frame in &frames {
        while link.queues[0].tx.push(frame).is_err() {
            link.queues[0].tx.flush();
            assert!(std::time::Instant::now() < ends, "the switch takes nothing");
        }
    }
    link.queues[0].tx.flush();
    let dropped = (frames.len() - ROOM) as u64;
    bed.until("what has no room is dropped", |bed| {
        bed.drops(DropReason::UplinkRingFull) == dropped
    });
    assert_eq!(bed.slot(1).back_packets, frames.len() as u64);
    let bytes: usize = frames.iter().map(Vec::len).sum();
    assert_eq!(bed.slot(1).back_bytes, bytes as u64);
    assert_eq!(bed.take_all(0, ROOM), frames[..ROOM]);
    bed.assert_accounts_close();
    bed.finish();
}

#[test]
fn what_comes_back_longer_than_the_uplink_carries_is_dropped_and_the_rest_keeps_its_order() {
    let mut bed = Bed::with(1, 1, vec![service(0, &[0], Match::default())], |config| {
        config.uplinks[0].max_frame = 300;
    });
    let mut link = by_hand(&mut bed);
    let mut frames = udp_flows(30);
    for (n, frame) in frames.iter_mut().enumerate() {
        // One in three too long, some of them for one buffer.
        let len = [frame.len(), 300, [301, 5000][n % 2]][n % 3];
        frame.resize(len, 7);
    }
    for frame in &frames {
        link.queues[0].tx.push(frame).unwrap();
    }
    link.queues[0].tx.flush();
    bed.until("the long ones are dropped", |bed| {
        bed.drops(DropReason::TooLarge) == 10
    });
    frames.retain(|frame| frame.len() <= 300);
    assert_eq!(bed.take_all(0, 20), frames);
    bed.assert_accounts_close();
    bed.finish();
}

#[test]
fn what_a_function_makes_itself_is_counted_as_originated() {
    let mut bed = Bed::new(1, 1, vec![service(0, &[0], Match::default())]);
    bed.add(0, 0, 1, |_, _, _| None);
    // It sends three packets of its own.
    let mut link = by_hand(&mut bed);
    let frames = udp_flows(3);
    for frame in &frames {
        link.queues[0].tx.push(frame).unwrap();
    }
    link.queues[0].tx.flush();
    assert_eq!(bed.take_all(0, 3), frames);
    bed.assert_accounts_close();
    assert_eq!(bed.slot(1).originated, 3);
    bed.finish();
}

#[test]
fn a_removal_while_it_is_being_attached_ends_it() {
    let mut bed = Bed::new(1, 1, vec![service(0, &[0], Match::default())]);
    let socket = Function::socket(bed.directory.path(), 5);
    bed.begin_attach(0, 0, socket.clone(), 1, 1);
    let again = crate::bed::attach(0, 0, PortSpec::new(PortKind::Null, ""));
    assert!(
        matches!(bed.switch.request(again), Err(SwitchError::SlotInUse { .. })),
        "a slot was attached twice"
    );
    assert_eq!(bed.remove(0), 0);
    // The slot is free, also for another that listens at the same place.
    bed.add_function(0, 5, 0, 1, 1, echo);
    bed.send(0, udp_flows(5).iter().map(Vec::as_slice));
    assert!(bed.take_all(0, 5).iter().all(|f| stamp(f) == 5));
    bed.finish();
}

#[test]
fn a_failed_attachment_is_reported_and_can_be_tried_again() {
    let mut bed = Bed::new(1, 1, vec![service(0, &[0], Match::default())]);
    bed.set_state(0, 0, InstanceState::Standby);
    bed.publish();
    let port = PortSpec {
        deadline: model::Nanos::from_millis(20),
        ..PortSpec::new(PortKind::Memif, bed.directory.path().join("nobody.sock"))
    };
    bed.ask(crate::bed::attach(0, 0, port));
    bed.until("the attachment fails", |bed| {
        bed.saw(|e| matches!(e, SwitchEvent::AttachFailed { .. }))
    });
    bed.add(0, 0, 1, echo);
    bed.send(0, udp_flows(5).iter().map(Vec::as_slice));
    bed.take_all(0, 5);
    bed.finish();
}

#[test]
fn a_probe_is_taken_and_never_leaves() {
    let mut bed = Bed::new(2, 1, vec![service(0, &[0], Match::default())]);
    // One gives it back with another address, one keeps it.
    bed.add_function(0, 9, 0, 1, 1, echo);
    bed.add(1, 0, 1, |_, _, _| None);
    for slot in 0..2 {
        for _ in 0..3 {
            let before = bed.slot(slot).consumed;
            bed.ask(SwitchRequest::Probe(Slot(slot)));
            bed.until("the probe is taken", |bed| bed.slot(slot).consumed == before + 1);
        }
    }
    bed.until("what came back was looked at", |bed| {
        bed.functions[0].seen.load(Ordering::Relaxed) == 3 && bed.slot(0).back_used == 0
    });
    // A packet behind them comes out first.
    bed.set_state(1, 0, InstanceState::Standby);
    bed.publish();
    let frames = udp_flows(1);
    bed.send(0, frames.iter().map(Vec::as_slice));
    let out = bed.take_all(0, 1);
    assert_eq!(out[0][12..], frames[0][12..]);
    bed.until("it alone was sent", |bed| bed.reading.sent() == 1);
    assert_eq!(
        (
            bed.slot(0).to_packets,
            bed.slot(0).back_packets,
            bed.slot(1).to_packets
        ),
        (1, 1, 0)
    );
    bed.assert_accounts_close();
    bed.finish();
}

#[test]
fn a_sink_takes_everything() {
    let mut bed = Bed::new(2, 1, vec![service(0, &[0], Match::default())]);
    bed.set_state(0, 0, InstanceState::Standby);
    bed.publish();
    bed.ask(crate::bed::attach(0, 0, PortSpec::new(PortKind::Null, "")));
    bed.until("the sink is attached", |bed| {
        bed.saw(|e| matches!(e, SwitchEvent::Attached { .. }))
    });
    bed.set_state(0, 0, InstanceState::Active);
    bed.publish();
    bed.send(0, udp_flows(500).iter().map(Vec::as_slice));
    bed.until("the sink has taken all", |bed| bed.slot(0).to_packets == 500);
    assert_eq!(bed.remove(0), 500);
    bed.assert_accounts_close();
    assert_eq!(bed.drops(DropReason::Function), 500);
    bed.finish();
}

/// A rise brings the control loop's turn forward: the worker rings, although the counters are not read meanwhile.
#[test]
fn more_packets_than_usual_ring_the_alarm_and_a_few_do_not() {
    let mut bed = Bed::new(1, 1, vec![service(0, &[0], Match::default())]);
    bed.add(0, 0, 1, echo);
    let alarm = bed.switch.wake_up().unwrap();
    let frames = udp_flows(400);
    bed.switch.read(&mut bed.reading);
    bed.send(0, frames[..16].iter().map(Vec::as_slice));
    bed.take_all(0, 16);
    assert!(!alarm.take_rise(), "16 packets are always usual");
    // Those 16 count as 80 in a millisecond at most, however closely the counters were read: 400 are more.
    bed.send(0, frames.iter().map(Vec::as_slice));
    let began = Instant::now();
    while !alarm.take_rise() {
        assert!(began.elapsed() < PATIENCE, "no worker told of 400 packets");
        std::thread::yield_now();
    }
    bed.take_all(0, 400);
    bed.finish();
}
