//! Functions that die, hang or attack; uplinks that go away; frames that are no packets.

use std::collections::HashMap;
use std::sync::atomic::Ordering;

use model::{DropReason, Match, Slot};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use switch::{SwitchEvent, SwitchRequest};

use crate::bed::{Bed, Function, PATIENCE, echo, service, stamp, udp_flows, udp_packet, unstamped};
use crate::load::{Load, Shape};
use crate::raw;

fn is_down(event: &SwitchEvent, slot: u16) -> bool {
    matches!(event, SwitchEvent::PortDown { slot: s, .. } if s.0 == slot)
}

/// What the control plane does with an instance that failed.
fn fail(bed: &mut Bed, slot: u16) -> u64 {
    bed.ask(SwitchRequest::Fail(Slot(slot)));
    bed.remove(slot)
}

#[test]
fn flows_of_a_killed_function_move_and_everything_is_accounted_for() {
    for workers in [1, 2] {
        let mut bed = Bed::new(workers, 1, vec![service(0, &[0], Match::default())]);
        for slot in 0..3 {
            bed.add(slot, 0, 1, echo);
        }
        let load = Load::start(
            &mut bed,
            Shape {
                lossy: true,
                flows: 30,
                ..Shape::default()
            },
        );
        load.wait_for(&mut bed, 3000);
        bed.events.clear();
        bed.functions[0].kill();
        bed.until("its death is told", |bed| bed.saw(|e| is_down(e, 0)));
        let flows = bed.slot(0).live_flows;
        assert_eq!(flows, 10);
        let held = fail(&mut bed, 0);
        load.wait_for(&mut bed, 3000);
        let outcome = load.finish(&mut bed);
        assert_eq!((outcome.late, outcome.wrong_uplink), (0, 0));
        assert_eq!(
            outcome.moves, 10,
            "only the flows of the dead one move, each once"
        );
        assert!(outcome.instance_of.values().all(|n| *n != 0));
        bed.assert_accounts_close();
        assert_eq!(
            outcome.sent - outcome.received,
            held,
            "what is missing is what it held"
        );
        assert_eq!(
            (bed.slot(0).lost, bed.drops(DropReason::InstanceLost)),
            (held, bed.reading.dropped())
        );
        assert_eq!(bed.slot(1).expected_moves + bed.slot(2).expected_moves, flows);
        bed.finish();
    }
}

#[test]
fn a_function_that_takes_nothing_fills_its_ring_and_harms_no_other() {
    let mut bed = Bed::new(1, 1, vec![service(0, &[0], Match::default())]);
    bed.add(0, 0, 1, echo);
    bed.add(1, 0, 1, echo);
    let frames = udp_flows(2);
    bed.send(0, frames.iter().map(Vec::as_slice));
    let hung: Vec<u8> = bed
        .take_all(0, 2)
        .into_iter()
        .find(|f| stamp(f) == 0)
        .map(|f| {
            frames
                .iter()
                .find(|g| unstamped(g) == unstamped(&f))
                .unwrap()
                .clone()
        })
        .unwrap();
    let other = frames.iter().find(|f| **f != hung).unwrap().clone();
    bed.functions[0].hangs.store(true, Ordering::Relaxed);
    let before = bed.slot(0).hot;
    for _ in 0..30 {
        bed.send(0, std::iter::repeat_n(hung.as_slice(), 50));
        bed.send(0, [other.as_slice()]);
        assert_eq!(stamp(&bed.take_all(0, 1)[0]), 1);
    }
    bed.until("its ring is full", |bed| {
        bed.drops(DropReason::InstanceRingFull) == 30 * 50 - 1024
    });
    let counters = bed.slot(0);
    assert_eq!(
        (counters.ring_drops, counters.ring_used, counters.ring_slots),
        (476, 1024, 1024)
    );
    assert!(counters.hot > before);
    assert_eq!(bed.slot(1).hot + bed.slot(1).ring_drops, 0);
    // It goes on, and what waited comes back in good order.
    bed.functions[0].hangs.store(false, Ordering::Relaxed);
    bed.take_all(0, 1024);
    bed.assert_accounts_close();
    assert_eq!(bed.reading.dropped(), 476);
    bed.finish();
}

#[test]
fn instances_may_fail_faster_than_workers_answer() {
    let mut bed = Bed::new(2, 1, vec![service(0, &[0], Match::default())]);
    for slot in 0..4 {
        bed.add(slot, 0, 1, echo);
    }
    let frames = udp_flows(40);
    bed.send(0, frames.iter().map(Vec::as_slice));
    bed.take_all(0, 40);
    for slot in 0..3 {
        // No answer is looked at before the last of them.
        bed.ask(SwitchRequest::Fail(Slot(slot)));
        bed.plan.slots[usize::from(slot)] = None;
        bed.begin_publish();
    }
    bed.publish();
    bed.send(0, frames.iter().map(Vec::as_slice));
    assert!(bed.take_all(0, 40).iter().all(|f| stamp(f) == 3));
    for slot in 0..3 {
        assert_eq!(bed.remove(slot), 0);
    }
    bed.assert_accounts_close();
    bed.finish();
}

#[test]
fn nothing_comes_out_of_a_failed_function_that_comes_back_to_life() {
    for workers in [1, 2] {
        let mut bed = Bed::new(workers, 1, vec![service(0, &[0], Match::default())]);
        bed.add(0, 0, 1, echo);
        bed.add(1, 0, 1, echo);
        let frames = udp_flows(20);
        let send = |bed: &mut Bed| {
            bed.send(0, frames.iter().map(Vec::as_slice));
        };
        send(&mut bed);
        let its = bed.take_all(0, 20).iter().filter(|f| stamp(f) == 0).count();
        assert!(its > 0, "it has flows");
        bed.functions[0].hangs.store(true, Ordering::Relaxed);
        send(&mut bed);
        // Those of the other one. What the one that hangs was given stays in its ring.
        assert!(bed.take_all(0, 20 - its).iter().all(|f| stamp(f) == 1));
        let seen = bed.functions[0].seen.load(Ordering::Relaxed);
        bed.ask(SwitchRequest::Fail(Slot(0)));
        bed.unplan(0);
        send(&mut bed);
        assert!(bed.take_all(0, 20).iter().all(|f| stamp(f) == 1));
        bed.functions[0].hangs.store(false, Ordering::Relaxed);
        bed.until("it gives back what it had", |bed| {
            bed.functions[0].seen.load(Ordering::Relaxed) == seen + its as u64
        });
        send(&mut bed);
        assert!(bed.take_all(0, 20).iter().all(|f| stamp(f) == 1));
        let its = its as u64;
        assert_eq!(bed.remove(0), its);
        assert_eq!(
            (bed.slot(0).lost, bed.drops(DropReason::InstanceLost)),
            (its, its)
        );
        assert_eq!(bed.slot(1).expected_moves, its);
        bed.assert_accounts_close();
        bed.finish();
    }
}

#[test]
fn an_uplink_that_is_down_drops_and_its_next_peer_is_served() {
    let mut bed = Bed::new(2, 2, vec![service(0, &[0, 1], Match::default())]);
    bed.add(0, 0, 2, crate::bed::cross);
    let frames = udp_flows(50);
    bed.send(0, frames.iter().map(Vec::as_slice));
    bed.take_all(1, 50);
    bed.events.clear();
    drop(bed.uplinks.remove(1));
    bed.until("it is told", |bed| {
        bed.saw(|e| matches!(e, SwitchEvent::UplinkDown { .. }))
    });
    let mut sent = 50;
    bed.until("the workers have let go of it", |bed| {
        sent += bed.send(0, [frames[0].as_slice()]);
        bed.drops(DropReason::UplinkDown) > 0
    });
    bed.until("all are received", |bed| bed.reading.offered() == sent);
    bed.assert_accounts_close();
    let before = (bed.drops(DropReason::UplinkDown), bed.reading.uplinks[1].dropped);
    bed.send(0, frames.iter().map(Vec::as_slice));
    bed.until("all are dropped", |bed| {
        bed.drops(DropReason::UplinkDown) == before.0 + 50
    });
    assert_eq!(bed.reading.uplinks[1].dropped, before.1 + 50);
    bed.assert_accounts_close();
    // The next peers, one coming so soon that the switch may not have seen the last one go.
    for _ in 0..5 {
        bed.events.clear();
        let socket = bed.directory.path().join("uplink-1.sock");
        let link = memif::Client::connect_when_ready(&memif::ClientConfig::new(socket, 0), PATIENCE).unwrap();
        bed.uplinks.push(link);
        bed.until("it is up", |bed| {
            bed.saw(|e| matches!(e, SwitchEvent::UplinkUp { .. }))
        });
        bed.send(0, frames.iter().map(Vec::as_slice));
        let out = bed.take_all(1, 50);
        let instance_of: HashMap<_, _> = out.iter().map(|f| (unstamped(f), stamp(f))).collect();
        assert_eq!(instance_of.len(), 50);
        drop(bed.uplinks.remove(1));
    }
    bed.assert_accounts_close();
    bed.finish();
}

#[test]
fn what_a_peer_sent_before_it_went_is_still_taken() {
    let mut bed = Bed::new(1, 2, vec![service(0, &[0, 1], Match::default())]);
    bed.add(0, 0, 2, crate::bed::cross);
    let frames = udp_flows(500);
    bed.send(0, frames.iter().map(Vec::as_slice));
    drop(bed.uplinks.remove(0));
    let mut out = Vec::new();
    bed.until("all come out", |bed| {
        let rx = &mut bed.uplinks[0].queues[0].rx;
        let mut buffer = [0; 2048];
        while let Some(Ok(len)) = rx.pop(&mut buffer) {
            out.push(buffer[..len].to_vec());
        }
        out.len() == 500
    });
    assert_eq!(bed.reading.offered(), 500);
    bed.finish();
}

/// A function by hand: whatever it writes into the rings it does on purpose.
fn attach_raw(bed: &mut Bed, slot: u16, number: usize) -> raw::Served {
    let socket = bed.directory.path().join(format!("raw-{number}.sock"));
    let listener = raw::RawSocket::listen(&socket);
    bed.begin_attach(slot, 0, socket, 1, 1);
    let served = raw::serve(&listener);
    bed.until("the instance is attached", |bed| {
        bed.saw(|e| matches!(e, SwitchEvent::Attached { slot: s, .. } if s.0 == slot))
    });
    bed.set_state(slot, 0, model::InstanceState::Active);
    bed.publish();
    served
}

#[test]
fn a_function_that_scribbles_over_its_rings_is_cut_off_and_harms_no_other() {
    type Attack = fn(&raw::Served);
    let attacks: [(&str, Attack); 4] = [
        ("a length beyond its buffer", |s| {
            s.memory
                .set_descriptor(s.to_client, 0, raw::descriptor(0, 0, 5000, 0));
            s.memory.set_tail(s.to_client, 1);
        }),
        ("an endless chain", |s| {
            for slot in 0..1024 {
                s.memory
                    .set_descriptor(s.to_client, slot, raw::descriptor(1, 0, 2048, 0));
            }
            s.memory.set_tail(s.to_client, 1024);
        }),
        ("more packets than the ring has slots", |s| {
            s.memory.set_tail(s.to_client, 60_000)
        }),
        ("packets taken that were never sent", |s| {
            s.memory.set_tail(s.to_server, 60_000)
        }),
    ];
    let mut bed = Bed::new(1, 1, vec![service(0, &[0], Match::default())]);
    bed.add(0, 0, 1, echo);
    let frames = udp_flows(20);
    bed.send(0, frames.iter().map(Vec::as_slice));
    bed.take_all(0, 20);
    for (number, (what, attack)) in attacks.into_iter().enumerate() {
        let served = attach_raw(&mut bed, 1, number);
        attack(&served);
        bed.until(what, |bed| {
            // Pinned flows stay where they are.
            bed.send(0, frames.iter().map(Vec::as_slice));
            for frame in bed.take(0) {
                assert_eq!(stamp(&frame), 0);
            }
            bed.saw(|e| is_down(e, 1))
        });
        fail(&mut bed, 1);
    }
    bed.assert_accounts_close();
    bed.take(0);
    bed.send(0, frames.iter().map(Vec::as_slice));
    bed.take_all(0, 20);
    bed.finish();
}

#[test]
fn an_uplink_peer_that_breaks_the_protocol_is_cut_off() {
    let mut bed = Bed::new(1, 1, vec![service(0, &[0], Match::default())]);
    bed.add(0, 0, 1, echo);
    drop(bed.uplinks.remove(0));
    bed.until("it is down", |bed| {
        bed.saw(|e| matches!(e, SwitchEvent::UplinkDown { .. }))
    });
    bed.events.clear();
    let socket = bed.directory.path().join("uplink-0.sock");
    let peer = raw::connect(&socket, 0);
    bed.until("it is up", |bed| {
        bed.saw(|e| matches!(e, SwitchEvent::UplinkUp { .. }))
    });
    peer.memory.set_head(peer.to_server, 60_000);
    bed.until("it is cut off", |bed| {
        bed.saw(|e| matches!(e, SwitchEvent::UplinkDown { .. }))
    });
    bed.events.clear();
    drop(peer);
    let link = memif::Client::connect_when_ready(&memif::ClientConfig::new(socket, 0), PATIENCE).unwrap();
    bed.uplinks.push(link);
    bed.until("the next is up", |bed| {
        bed.saw(|e| matches!(e, SwitchEvent::UplinkUp { .. }))
    });
    bed.send(0, udp_flows(20).iter().map(Vec::as_slice));
    bed.take_all(0, 20);
    bed.finish();
}

#[test]
fn random_bytes_are_all_accounted_for() {
    let mut bed = Bed::new(2, 1, vec![service(0, &[0], Match::default())]);
    bed.plan.other = model::Fallback::Pass(model::UplinkId(0));
    bed.add(0, 0, 1, echo);
    bed.add(1, 0, 1, echo);
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    // Whole nonsense, and good packets with a few bytes changed.
    let nonsense = prop::collection::vec(any::<u8>(), 1..300);
    let damaged = (
        0u32..50,
        prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
    )
        .prop_map(|(flow, changes)| {
            let mut frame = udp_packet(flow, b"eighteen bytes fit");
            for (at, byte) in changes {
                let at = at.index(frame.len());
                frame[at] = byte;
            }
            frame
        });
    let frames = prop::collection::vec(prop_oneof![nonsense, damaged], 3000);
    let frames = frames.new_tree(&mut runner).unwrap().current();
    let mut back = 0;
    for burst in frames.chunks(100) {
        bed.send(0, burst.iter().map(Vec::as_slice));
        bed.until("the burst is done with", |bed| {
            back += bed.take(0).len() as u64;
            bed.reading.in_flight() == 0 && bed.reading.offered() == bed.reading.uplinks[0].received_packets
        });
    }
    bed.until("all have been taken and given back", |bed| {
        back += bed.take(0).len() as u64;
        bed.reading.offered() == 3000 && bed.reading.sent() == back
    });
    bed.assert_accounts_close();
    assert!(back > 1000 && bed.reading.dropped() > 100, "{back} came back");
    bed.finish();
}

#[test]
fn stopping_under_load_counts_what_was_inside() {
    for _ in 0..5 {
        let mut bed = Bed::new(3, 2, vec![service(0, &[0, 1], Match::default())]);
        bed.add(0, 0, 2, crate::bed::cross);
        bed.add(1, 0, 2, |_, _, _| None);
        let frames = udp_flows(60);
        for _ in 0..10 {
            bed.send(0, frames.iter().map(Vec::as_slice));
        }
        // Frames are between workers, in functions and on their way out.
        bed.finish();
    }
}

#[test]
fn a_hung_control_plane_gets_all_events_afterwards() {
    // More commands than a ring holds, and the answers are not taken meanwhile.
    let mut bed = Bed::new(1, 1, vec![service(0, &[0], Match::default())]);
    bed.add(0, 0, 1, echo);
    let mut asked = 0;
    let mut refused = 0;
    for id in 0..20_000 {
        match bed.list_flows(id) {
            Ok(()) => asked += 1,
            Err(switch::SwitchError::WorkerStuck { .. }) => refused += 1,
            Err(other) => panic!("{other}"),
        }
    }
    assert!(refused > 0, "the rings are bounded");
    bed.events.clear();
    bed.until("every request is answered", |bed| {
        bed.events
            .iter()
            .filter(|e| matches!(e, SwitchEvent::Flows { .. }))
            .count()
            == asked
    });
    bed.finish();
}

#[test]
fn stopping_does_not_wait_until_answers_are_taken() {
    let mut bed = Bed::new(1, 1, vec![service(0, &[0], Match::default())]);
    for id in 0..20_000 {
        let _full = bed.list_flows(id);
    }
    bed.finish();
}

#[test]
fn a_function_that_ends_before_it_is_connected_can_be_removed() {
    let mut bed = Bed::new(1, 1, vec![service(0, &[0], Match::default())]);
    let mut function = Function::start(bed.directory.path(), 3, 2, echo);
    // It waits for two ports and gets one.
    let socket = function.socket.clone();
    bed.begin_attach(0, 0, socket, 1, 1);
    bed.until("the instance is attached", |bed| {
        bed.saw(|e| matches!(e, SwitchEvent::Attached { .. }))
    });
    function.kill();
    bed.until("its death is told", |bed| bed.saw(|e| is_down(e, 0)));
    assert_eq!(bed.remove(0), 0);
    bed.finish();
}
