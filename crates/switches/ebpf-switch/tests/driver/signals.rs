//! Signals of instances: told once in a while, and never forwarded.

use std::time::Duration;

use model::{DropReason, InstanceState, Slot};
use signal::{FRAME_BYTES, Key, Received, SLEEP, Signal, WAKE, Wish};
use switch::SwitchEvent;

use crate::bed::{Bed, World, available};
use crate::steering::service;

fn signals(bed: &Bed) -> Vec<(Slot, Received)> {
    let of = |event: &SwitchEvent| match event {
        SwitchEvent::Signal { slot, frame } => Some((*slot, *frame)),
        _ => None,
    };
    bed.events.iter().filter_map(of).collect()
}

/// Two instances: one takes flows, the other one sleeps.
fn bed() -> Bed {
    let mut bed = Bed::new(World::new(2), service());
    bed.add(0..1, &[]);
    bed.world.start_instance(Slot(1), &[]);
    bed.attach(Slot(1));
    bed
}

fn drops(bed: &Bed, reason: DropReason) -> u64 {
    bed.reading.drops[reason.index()]
}

fn frame(wish: Wish, counter: u64) -> [u8; FRAME_BYTES] {
    let signal = Signal {
        wish,
        instance: 2,
        counter,
    };
    signal.frame(&Key::of_random([5; 24]), [2; 6], [4; 6])
}

#[test]
fn signals_are_told_with_their_slot_and_do_not_leave() {
    if !available() {
        return;
    }
    let mut bed = bed();
    while bed.world.wire.receive().is_some() {}
    let (wake, sleep) = (frame(Wish::Wake, 1), frame(Wish::Sleep, 2));
    let long: Vec<u8> = wake.iter().copied().chain([0]).collect();
    let sent = [(1, &wake[..]), (0, &sleep[..]), (1, &wake[..40]), (1, &long[..])];
    for (count, (slot, frame)) in (1..).zip(sent) {
        std::thread::sleep(Duration::from_millis(2));
        bed.world.instances[&Slot(slot)].tap.send(frame);
        bed.until("the signal is told", |bed| signals(bed).len() == count);
    }
    let expected = sent.map(|(slot, frame)| (Slot(slot), Received::new(frame)));
    assert_eq!(signals(&bed), expected);
    bed.turn();
    assert_eq!(drops(&bed, DropReason::Signal), sent.len() as u64);
    let left = std::iter::from_fn(|| bed.world.wire.receive());
    let types = left.map(|frame| u16::from_be_bytes([frame[12], frame[13]]));
    assert!(types.into_iter().all(|of| of != WAKE && of != SLEEP));
}

#[test]
fn a_flood_of_signals_is_dropped_and_counted() {
    if !available() {
        return;
    }
    let mut bed = bed();
    let count = 20_000;
    for counter in 0..count {
        bed.world.instances[&Slot(1)]
            .tap
            .send(&frame(Wish::Wake, counter));
    }
    bed.until("all are counted", |bed| {
        drops(bed, DropReason::Signal) + drops(bed, DropReason::SignalRate) == count
    });
    bed.turn();
    let told = signals(&bed).len() as u64;
    assert_eq!(drops(&bed, DropReason::Signal), told);
    assert!(told > 0 && told < count / 4, "{told} of {count} were told");
}

#[test]
fn an_instance_that_has_failed_sends_none() {
    if !available() {
        return;
    }
    let mut bed = bed();
    bed.set_state(Slot(1), Some(InstanceState::Active));
    bed.ask(switch::SwitchRequest::Fail(Slot(1)));
    bed.set_state(Slot(1), None);
    let lost = drops(&bed, DropReason::InstanceLost);
    bed.world.instances[&Slot(1)].tap.send(&frame(Wish::Wake, 1));
    bed.until("it is dropped", |bed| drops(bed, DropReason::InstanceLost) > lost);
    assert!(signals(&bed).is_empty());
}
