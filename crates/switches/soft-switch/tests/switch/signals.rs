//! Signals of instances: told once in a while, and never forwarded.

use std::time::Duration;

use model::{DropReason, Match, Slot};
use switch::SwitchEvent;

use crate::bed::{Bed, Function, service, udp_flows, udp_packet};

/// Payload of the packets that the function turns into signals: with the headers, the length of a signal.
const TURNED: [u8; 18] = *b"turn into a signal";
/// One byte less.
const CUT: [u8; 17] = *b"turn into a piece";

/// Sends everything back; of some packets only the addresses are as they were.
fn turn(frame: &mut [u8], port: usize, _number: u32) -> Option<usize> {
    if frame.ends_with(&TURNED) || frame.ends_with(&CUT) {
        frame[12..14].copy_from_slice(&signal::WAKE.to_be_bytes());
    }
    Some(port)
}

fn signals(bed: &Bed) -> Vec<(Slot, signal::Received)> {
    let of = |event: &SwitchEvent| match event {
        SwitchEvent::Signal { slot, frame } => Some((*slot, *frame)),
        _ => None,
    };
    bed.events.iter().filter_map(of).collect()
}

fn bed(takes_signals: bool) -> Bed {
    let mut service = service(0, &[0], Match::default());
    service.signals = takes_signals;
    let mut bed = Bed::new(1, 1, vec![service]);
    bed.add(0, 0, 1, turn);
    bed
}

#[test]
fn signals_are_told_with_their_slot_and_do_not_leave() {
    let mut bed = bed(true);
    let (turned, cut) = (udp_packet(1, &TURNED), udp_packet(1, &CUT));
    assert_eq!(turned.len(), signal::FRAME_BYTES);
    for (frame, known) in [(&turned, 1), (&cut, 2)] {
        std::thread::sleep(Duration::from_millis(2));
        bed.send(0, [&frame[..]]);
        bed.until("the signal is told", |bed| signals(bed).len() == known);
    }
    let told = signals(&bed);
    let mut expected = turned.clone();
    turn(&mut expected, 0, 0);
    assert_eq!(told[0], (Slot(0), signal::Received::new(&expected)));
    // What is cut off has not the length of a signal.
    assert_eq!(told[1], (Slot(0), signal::Received::new(&expected[..59])));
    // Other packets go on as before.
    let others = udp_flows(10);
    bed.send(0, others.iter().map(Vec::as_slice));
    assert_eq!(bed.take_all(0, 10).len(), 10);
    assert_eq!(bed.drops(DropReason::Signal), 2);
    bed.assert_accounts_close();
    bed.finish();
}

#[test]
fn a_flood_of_signals_is_dropped_and_counted() {
    let mut bed = bed(true);
    let turned = udp_packet(1, &TURNED);
    let mut count = 0;
    for _ in 0..25 {
        // Fewer than the function's ring takes.
        count += bed.send(0, std::iter::repeat_n(&turned[..], 200));
        bed.until("all are dropped", |bed| {
            bed.drops(DropReason::Signal) + bed.drops(DropReason::SignalRate) == count
        });
    }
    let told = signals(&bed).len() as u64;
    assert_eq!(bed.drops(DropReason::Signal), told);
    assert!(
        bed.drops(DropReason::SignalRate) > told,
        "{told} of {count} were told"
    );
    assert!(bed.take(0).is_empty());
    bed.assert_accounts_close();
    bed.finish();
}

#[test]
fn without_the_key_such_frames_are_like_others() {
    let mut bed = bed(false);
    let turned = udp_packet(1, &TURNED);
    bed.send(0, [&turned[..]]);
    assert_eq!(bed.take_all(0, 1)[0][12..14], signal::WAKE.to_be_bytes());
    assert!(signals(&bed).is_empty());
    bed.finish();
}

#[test]
fn an_instance_that_takes_no_flows_can_send_a_signal() {
    let mut service = service(0, &[0], Match::default());
    service.signals = true;
    let mut bed = Bed::new(1, 1, vec![service]);
    bed.add(0, 0, 1, turn);
    let function = Function::start(bed.directory.path(), 1, 1, wake);
    let socket = function.socket.clone();
    bed.functions.push(function);
    bed.attach(1, 0, socket, 1, 1);
    bed.ask(switch::SwitchRequest::Probe(Slot(1)));
    bed.until("the signal is told", |bed| !signals(bed).is_empty());
    assert_eq!(signals(&bed)[0].0, Slot(1));
    bed.assert_accounts_close();
    bed.finish();
}

/// Makes a signal of what comes, which is a probe.
fn wake(frame: &mut [u8], port: usize, _number: u32) -> Option<usize> {
    frame[12..14].copy_from_slice(&signal::WAKE.to_be_bytes());
    Some(port)
}
