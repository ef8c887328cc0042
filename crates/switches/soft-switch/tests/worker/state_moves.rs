//! Flows that move with the state of a function, held by a clock of the test, which plays the instances.

use model::{InstanceState, Slot};
use soft_switch::{Command, MemifPort, Port};
use state_moves::{FRAME_BYTES_LIMIT, HELD_LIMIT, Message, NotMoved};

use crate::alone::{Alone, alone_with, link, packet_of};

/// A worker with two instances, of a service whose drains move flows with their state.
struct Moving {
    alone: Alone,
    instances: Vec<memif::Link>,
    _controls: Vec<memif::Control>,
    /// Where the flow is, and the other one.
    source: usize,
    destination: usize,
}

/// What an instance was given.
#[derive(Debug, PartialEq, Eq)]
enum Given {
    Packet(u16),
    Message(u64, Vec<u8>),
}

fn moving() -> Moving {
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
            service.moves_state = true;
        }),
        instances,
        _controls: controls,
        source: 0,
        destination: 1,
    };
    moving.alone.turn();
    moving.send(0..3);
    if moving.taken(0).is_empty() {
        (moving.source, moving.destination) = (1, 0);
        assert_eq!(moving.packets(1), [0, 1, 2]);
    }
    moving
}

impl Moving {
    fn send(&mut self, numbers: std::ops::Range<u16>) {
        for number in numbers {
            self.alone.network.queues[0].tx.push(&numbered(number)).unwrap();
        }
        self.alone.network.queues[0].tx.flush();
        while self.alone.turn() > 0 {}
    }

    fn taken(&mut self, instance: usize) -> Vec<Given> {
        let mut buffer = [0; 2048];
        let mut given = Vec::new();
        let rx = &mut self.instances[instance].queues[0].rx;
        while let Some(Ok(length)) = rx.pop(&mut buffer) {
            given.push(match Message::read(&buffer[..length]) {
                Some((number, _)) => Given::Message(number, buffer[..length].to_vec()),
                None => Given::Packet(u16::from_be_bytes([buffer[42], buffer[43]])),
            });
        }
        rx.release();
        given
    }

    fn packets(&mut self, instance: usize) -> Vec<u16> {
        let taken = self.taken(instance).into_iter();
        taken
            .map(|of| match of {
                Given::Packet(number) => number,
                Given::Message(..) => panic!("{of:?}"),
            })
            .collect()
    }

    /// The only thing that an instance was given: a message.
    fn message(&mut self, instance: usize) -> (u64, Vec<u8>) {
        match self.taken(instance).pop() {
            Some(Given::Message(number, frame)) => (number, frame),
            other => panic!("{other:?}"),
        }
    }

    fn says(&mut self, instance: usize, number: u64, message: Message<'_>) {
        let mut room = [0; FRAME_BYTES_LIMIT];
        let length = message.write(number, &mut room).unwrap();
        let tx = &mut self.instances[instance].queues[0].tx;
        tx.push(&room[..length]).unwrap();
        tx.flush();
        self.alone.turn();
        self.alone.turn();
    }

    fn gives_back(&mut self, instance: usize, numbers: std::ops::Range<u16>) {
        let tx = &mut self.instances[instance].queues[0].tx;
        for number in numbers {
            tx.push(&numbered(number)).unwrap();
        }
        tx.flush();
        self.alone.turn();
    }

    /// Drains the source.
    fn drain(&mut self) {
        self.alone
            .replan(|plan| plan.slots[self.source].as_mut().unwrap().state = InstanceState::Draining);
        self.alone.turn();
        self.purge();
    }

    fn purge(&mut self) {
        let slot = Slot(self.source as u16);
        let command = Command::PurgeSlot { slot, failed: false };
        assert!(self.alone.commands.push(command).is_ok());
        self.alone.turn();
    }

    /// Drains the source up to the import.
    fn drain_until_import(&mut self) -> u64 {
        self.drain();
        let (number, frame) = self.message(self.source);
        assert_eq!(Message::read(&frame).unwrap().1, Message::Pass { port: 0 });
        self.says(self.source, number, Message::Passed { of: 0, by: 0 });
        let (_, frame) = self.message(self.source);
        assert!(matches!(Message::read(&frame).unwrap().1, Message::Export(_)));
        self.says(self.source, number, Message::Exported(b"state"));
        let (_, frame) = self.message(self.destination);
        assert!(matches!(
            Message::read(&frame).unwrap().1,
            Message::Import(_, b"state")
        ));
        number
    }

    /// Moved, at a limit, refused, without room, gone; and messages refused.
    fn counted(&self) -> [u64; 6] {
        let of = &self.alone.counters.figures;
        [
            &of.state_moves,
            &of.state_moves_at_limit,
            &of.state_moves_refused,
            &of.state_moves_without_room,
            &of.state_moves_gone,
            &of.state_messages_refused,
        ]
        .map(soft_switch::Counter::get)
    }

    fn left(&mut self) -> Vec<u16> {
        let mut buffer = [0; 2048];
        let mut numbers = Vec::new();
        let rx = &mut self.alone.network.queues[0].rx;
        while let Some(Ok(length)) = rx.pop(&mut buffer) {
            assert!(Message::read(&buffer[..length]).is_none(), "a message has left");
            numbers.push(u16::from_be_bytes([buffer[42], buffer[43]]));
        }
        rx.release();
        numbers
    }
}

fn numbered(number: u16) -> Vec<u8> {
    let mut frame = packet_of(1);
    frame[42..44].copy_from_slice(&number.to_be_bytes());
    frame
}

#[test]
fn a_drain_moves_a_flow_with_its_state_and_in_order() {
    let mut moving = moving();
    let (source, destination) = (moving.source, moving.destination);
    let number = moving.drain_until_import();
    moving.send(3..5);
    assert_eq!(
        (moving.packets(source), moving.packets(destination)),
        (vec![], vec![])
    );
    // What the source still has of earlier packets leaves before.
    moving.gives_back(source, 0..3);
    moving.says(destination, number, Message::Imported);
    assert_eq!(moving.packets(destination), [3, 4]);
    let (_, frame) = moving.message(source);
    assert!(matches!(Message::read(&frame).unwrap().1, Message::Forget(_)));
    moving.send(5..6);
    assert_eq!(moving.packets(destination), [5]);
    moving.gives_back(destination, 3..6);
    assert_eq!(moving.left(), [0, 1, 2, 3, 4, 5]);
    assert_eq!(moving.counted(), [1, 0, 0, 0, 0, 0]);
    let slots = &moving.alone.counters.slots;
    let sent = [source, destination].map(|at| slots[Slot(at as u16)].to_packets.get());
    assert_eq!(sent, [3, 3], "messages are no packets");
    let originated: u64 = slots.iter().map(|of| of.originated.get()).sum();
    assert_eq!(originated, 0);
}

/// More are held than a turn releases: later ones wait behind them.
#[test]
fn later_packets_do_not_overtake_held_ones() {
    let mut moving = moving();
    let destination = moving.destination;
    let number = moving.drain_until_import();
    moving.send(3..400);
    moving.says(destination, number, Message::Imported);
    let mut next = 400;
    let mut taken = moving.packets(destination);
    assert!(taken.len() < 397, "all were released at once");
    while taken.len() < 397 + 32 {
        assert!(next < 500, "{} have come", taken.len());
        moving.send(next..next + 8);
        next += 8;
        taken.extend(moving.packets(destination));
    }
    assert_eq!(taken, (3..next).collect::<Vec<_>>());
}

#[test]
fn a_move_that_takes_too_long_leaves_the_flow_where_it_is() {
    let mut moving = moving();
    let (source, destination) = (moving.source, moving.destination);
    let number = moving.drain_until_import();
    moving.send(3..5);
    let before = moving.alone.now;
    let waited = loop {
        moving.alone.turn();
        let taken = moving.packets(source);
        if !taken.is_empty() {
            assert_eq!(taken, [3, 4]);
            break moving.alone.now.since(before);
        }
    };
    assert!((40_000_000..=50_000_000).contains(&waited.0), "{waited:?}");
    let (_, frame) = moving.message(destination);
    assert!(
        matches!(Message::read(&frame).unwrap().1, Message::Forget(_)),
        "it may have the state"
    );
    // Too late.
    moving.says(destination, number, Message::Imported);
    moving.send(5..6);
    assert_eq!(moving.packets(source), [5]);
    assert_eq!(moving.counted(), [0, 1, 0, 0, 0, 1]);
    // The drain's deadline takes the pin away all the same.
    moving.purge();
    moving.send(6..7);
    moving.gives_back(source, 0..6);
    for _ in 0..20 {
        moving.alone.turn();
    }
    assert_eq!(moving.packets(destination), [6]);
}

#[test]
fn a_flow_that_a_function_does_not_give_or_take_stays() {
    for refuses_export in [true, false] {
        let mut moving = moving();
        let source = moving.source;
        let refused = Message::Refused(NotMoved::Unsupported);
        if refuses_export {
            moving.drain();
            let (number, _) = moving.message(source);
            moving.send(3..4);
            moving.says(source, number, Message::Passed { of: 0, by: 0 });
            moving.message(source);
            moving.says(source, number, refused);
        } else {
            let number = moving.drain_until_import();
            moving.send(3..4);
            moving.says(moving.destination, number, refused);
        }
        assert_eq!(moving.packets(source), [3], "{refuses_export}");
        moving.send(4..5);
        assert_eq!(moving.packets(source), [4]);
        assert_eq!(moving.counted(), [0, 0, 1, 0, 0, 0]);
        assert!(moving.packets(moving.destination).is_empty());
    }
}

/// The instance takes so few that its ring is full soon: what is held goes there as it takes packets, and none is lost.
#[test]
fn more_packets_than_may_be_held_go_to_the_source_in_order() {
    let mut moving = moving();
    let source = moving.source;
    moving.drain();
    moving.message(source);
    // A turn of the worker is 0.1 ms here: the time limit is far.
    let mut next = 3;
    while moving.counted()[1] == 0 {
        assert!(usize::from(next) <= HELD_LIMIT + 512, "nothing is released");
        moving.send(next..next + 256);
        next += 256;
    }
    assert_eq!(moving.counted(), [0, 1, 0, 0, 0, 0]);
    let mut taken = Vec::new();
    for _ in 0..200 {
        moving.alone.turn();
        taken.extend(moving.packets(source));
    }
    moving.send(next..next + 1);
    taken.extend(moving.packets(source));
    assert_eq!(taken, (3..=next).collect::<Vec<_>>());
    let dropped: u64 = moving.alone.counters.drops.iter().map(|of| of.get()).sum();
    assert_eq!(dropped, 0);
}

#[test]
fn an_instance_that_says_what_nobody_asked_is_not_heard() {
    let mut moving = moving();
    let (source, destination) = (moving.source, moving.destination);
    moving.says(source, 7, Message::Imported);
    let number = moving.drain_until_import();
    // The source cannot speak for the destination, nor any instance with another number.
    moving.says(source, number, Message::Imported);
    moving.says(destination, number + 1, Message::Imported);
    moving.send(3..4);
    assert!(moving.packets(destination).is_empty());
    assert_eq!(moving.counted(), [0, 0, 0, 0, 0, 3]);
    // Half a message is none.
    let tx = &mut moving.instances[destination].queues[0].tx;
    tx.push(&[&[0; 12][..], &[0x88, 0xb6, 1]].concat()).unwrap();
    tx.flush();
    moving.says(destination, number, Message::Imported);
    assert_eq!(moving.packets(destination), [3]);
    assert_eq!(moving.counted(), [1, 0, 0, 0, 0, 4]);
    assert!(moving.left().is_empty());
}
