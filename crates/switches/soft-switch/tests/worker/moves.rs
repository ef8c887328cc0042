//! Flows that move, held by a clock of the test.

use std::sync::Arc;

use model::{DropReason, InstanceState, Nanos, Slot};
use soft_switch::{Command, Ending, HeapMemory, MemifPort, Port};
use switch::{Change, ServicePlan};

use crate::alone::{Alone, alone_with, link, packet_of};

/// A worker with instances that the test plays, of a service whose flows may be moved.
struct Moving {
    alone: Alone,
    instances: Vec<memif::Link>,
    _controls: Vec<memif::Control>,
}

fn moving(change: impl FnOnce(&mut ServicePlan)) -> Moving {
    let (mut instances, mut ports, mut controls) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..2 {
        let (function, mut switch) = link();
        ports.push(Port::Memif(MemifPort::new(switch.queues.remove(0))));
        controls.push(switch.control);
        instances.push(function);
    }
    let mut moving = Moving {
        alone: alone_with(1, ports, |service| {
            service.relaxed = true;
            service.return_counters = false;
            change(service);
        }),
        instances,
        _controls: controls,
    };
    moving.alone.turn();
    moving
}

impl Moving {
    /// Sends packets of one flow that carry these numbers.
    fn send(&mut self, numbers: std::ops::Range<u16>) {
        for number in numbers {
            let frame = numbered(number);
            self.alone.network.queues[0].tx.push(&frame).unwrap();
        }
        self.alone.network.queues[0].tx.flush();
        while self.alone.turn() > 0 {}
    }

    /// What an instance is given.
    fn taken(&mut self, instance: usize) -> Vec<u16> {
        numbers(&mut self.instances[instance])
    }

    fn gives_back(&mut self, instance: usize, numbers: std::ops::Range<u16>) {
        let tx = &mut self.instances[instance].queues[0].tx;
        for number in numbers {
            tx.push(&numbered(number)).unwrap();
        }
        tx.flush();
        self.alone.turn();
    }

    fn asks(&mut self, command: Command<HeapMemory>) {
        assert!(self.alone.commands.push(command).is_ok());
        self.alone.turn();
    }

    /// Which instance the flow was given to, with packets 0, 1 and 2, and the other one.
    fn first_three(&mut self) -> (usize, usize) {
        self.send(0..3);
        let (a, b) = (self.taken(0), self.taken(1));
        assert_eq!(a.len() + b.len(), 3);
        if b.is_empty() { (0, 1) } else { (1, 0) }
    }

    /// Takes the pins to an instance away and lets it take no new flows, as a drain does.
    fn unpin(&mut self, instance: usize, failed: bool) {
        self.alone
            .replan(|plan| plan.slots[instance].as_mut().unwrap().state = InstanceState::Draining);
        let slot = Slot(instance as u16);
        self.asks(Command::PurgeSlot { slot, failed });
    }

    fn moved(&self) -> (u64, u64) {
        let figures = &self.alone.counters.figures;
        (figures.held_moves.get(), figures.early_moves.get())
    }
}

fn numbered(number: u16) -> Vec<u8> {
    let mut frame = packet_of(1);
    frame[42..44].copy_from_slice(&number.to_be_bytes());
    frame
}

fn numbers(link: &mut memif::Link) -> Vec<u16> {
    let mut buffer = [0; 2048];
    let mut numbers = Vec::new();
    let rx = &mut link.queues[0].rx;
    while let Some(Ok(_)) = rx.pop(&mut buffer) {
        numbers.push(u16::from_be_bytes([buffer[42], buffer[43]]));
    }
    rx.release();
    numbers
}

#[test]
fn what_an_instance_gave_back_before_it_failed_goes_out_and_nothing_later() {
    let mut moving = moving(|service| service.relaxed = false);
    let (first, other) = moving.first_three();
    let back = |moving: &mut Moving, number: u16| {
        let tx = &mut moving.instances[first].queues[0].tx;
        tx.push(&numbered(number)).unwrap();
        tx.flush();
    };
    back(&mut moving, 0);
    let slot = Slot(first as u16);
    moving.asks(Command::FailInstance { slot });
    assert_eq!(numbers(&mut moving.alone.network), [0]);
    back(&mut moving, 1);
    moving.unpin(first, true);
    moving.send(3..4);
    assert_eq!(moving.taken(other), [3]);
    moving.gives_back(other, 3..4);
    for _ in 0..100 {
        moving.alone.turn();
    }
    assert_eq!(numbers(&mut moving.alone.network), [3]);
    moving.asks(Command::RemoveInstance { slot, failed: true });
    assert!(numbers(&mut moving.alone.network).is_empty());
    let counters = &moving.alone.counters.slots[Slot(first as u16)];
    assert_eq!((counters.back_packets.get(), counters.lost.get()), (1, 2));
}

#[test]
fn a_flow_that_moves_waits_for_what_it_sent_before() {
    let mut moving = moving(|_| {});
    let (old, new) = moving.first_three();
    moving.unpin(old, false);
    let before = moving.alone.now;
    let frames: Vec<_> = (3..6).map(numbered).collect();
    for frame in &frames {
        moving.alone.network.queues[0].tx.push(frame).unwrap();
    }
    moving.alone.network.queues[0].tx.flush();
    let allocations = allocation_counter::measure(|| while moving.alone.turn() > 0 {});
    assert_eq!(allocations.count_total, 0, "holding");
    moving.gives_back(old, 0..2);
    assert!(moving.alone.now.since(before) < Nanos::from_millis(1));
    assert_eq!(
        (moving.taken(old), moving.taken(new)),
        (vec![], vec![]),
        "packet 2 is still out"
    );
    moving.gives_back(old, 2..3);
    let allocations = allocation_counter::measure(|| while moving.alone.turn() > 0 {});
    assert_eq!(allocations.count_total, 0, "going on");
    moving.send(6..7);
    assert_eq!((moving.taken(old), moving.taken(new)), (vec![], vec![3, 4, 5, 6]));
    moving.gives_back(new, 3..7);
    assert_eq!(numbers(&mut moving.alone.network), [0, 1, 2, 3, 4, 5, 6]);
    assert_eq!(moving.moved(), (1, 0));
    // Nothing is out now: it moves on without a stop, and back, too.
    moving.unpin(new, false);
    moving
        .alone
        .replan(|plan| plan.slots[old].as_mut().unwrap().state = InstanceState::Active);
    moving.send(7..9);
    assert_eq!((moving.taken(old), moving.taken(new)), (vec![7, 8], vec![]));
    assert_eq!(moving.moved(), (1, 0));
}

#[test]
fn a_held_flow_is_released_after_a_millisecond() {
    let mut moving = moving(|_| {});
    let (old, new) = moving.first_three();
    moving.unpin(old, false);
    moving.send(3..6);
    let before = moving.alone.now;
    let waited = loop {
        moving.alone.turn();
        let taken = moving.taken(new);
        if !taken.is_empty() {
            assert_eq!(taken, [3, 4, 5]);
            break moving.alone.now.since(before);
        }
    };
    assert!((500_000..=1_000_000).contains(&waited.0), "{waited:?}");
    assert_eq!(moving.moved(), (1, 1));
    // What comes late is of no flow of that instance any more.
    moving.gives_back(old, 0..3);
    assert_eq!(
        moving.alone.counters.slots[Slot(old as u16)]
            .return_unmatched
            .get(),
        3
    );
    assert_eq!(numbers(&mut moving.alone.network), [0, 1, 2]);
}

#[test]
fn a_flow_beyond_the_limit_is_released_at_once() {
    let mut moving = moving(|_| {});
    let (old, new) = moving.first_three();
    moving.unpin(old, false);
    // A turn takes 256 frames.
    moving.alone.now = Nanos::from_secs(2);
    for number in 3..260 {
        moving.alone.network.queues[0].tx.push(&numbered(number)).unwrap();
    }
    moving.alone.network.queues[0].tx.flush();
    moving.alone.turn();
    assert!(moving.taken(new).is_empty());
    moving.alone.turn();
    assert_eq!(moving.taken(new), (3..260).collect::<Vec<u16>>());
    assert_eq!(moving.moved(), (1, 1));
}

#[test]
fn one_flow_that_is_purged_waits_likewise() {
    let mut moving = moving(|_| {});
    let (old, _) = moving.first_three();
    let key = model::FlowKey::new(&model::Tuple {
        src: "10.0.0.1".parse().unwrap(),
        dst: "192.0.2.1".parse().unwrap(),
        src_port: 1000,
        dst_port: 80,
        protocol: 17,
        vlan: 0,
    })
    .0;
    moving.asks(Command::Change(Change::PurgeFlow(key)));
    moving.send(3..4);
    assert_eq!((moving.taken(0), moving.taken(1)), (vec![], vec![]));
    moving.gives_back(old, 0..3);
    moving.alone.turn();
    assert_eq!([moving.taken(0), moving.taken(1)].concat(), [3]);
    assert_eq!(moving.moved(), (1, 0));
}

#[test]
fn no_packet_is_held_if_the_instance_failed_or_the_service_is_strict() {
    for (relaxed, failed) in [(true, true), (false, false)] {
        let mut moving = moving(|service| service.relaxed = relaxed);
        let (old, new) = moving.first_three();
        moving.unpin(old, failed);
        moving.send(3..6);
        assert_eq!(moving.taken(new), [3, 4, 5], "relaxed {relaxed}, failed {failed}");
        assert_eq!(moving.moved(), (0, 0));
    }
}

#[test]
fn what_is_held_when_the_worker_ends_is_counted() {
    let mut moving = moving(|_| {});
    let (old, _) = moving.first_three();
    moving.unpin(old, false);
    moving.send(3..6);
    let counters = Arc::clone(&moving.alone.counters);
    assert!(moving.alone.commands.push(Command::Stop(Ending::Drop)).is_ok());
    let now = moving.alone.now;
    moving.alone.worker.run(|| now);
    // Three are held here, three by the instance.
    assert_eq!(counters.drops[DropReason::Shutdown.index()].get(), 6);
}
