//! Moves between two instances in any order of steps, with limits, full rings and crashes in between. Rings, functions
//! and the worker are models; the messages and the steps of a move are the real ones.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "what goes wrong here fails the test"
)]

use std::collections::VecDeque;

use model::Tuple;
use proptest::prelude::*;
use state_moves::{
    End, FRAME_BYTES_LIMIT, Goes, HELD_LIMIT, Input, Message, NotMoved, Party, Request, Step, Transfer,
};

/// What lies in a ring.
#[derive(Clone, Debug)]
enum Item {
    /// A packet: its direction (the port by which it enters), and its number there.
    Packet(usize, u64),
    Frame(Vec<u8>),
}

/// An instance with a function that counts the packets of the flow: its state.
struct Instance {
    /// By port.
    inward: [VecDeque<Item>; 2],
    outward: [VecDeque<Item>; 2],
    counts: Option<[u64; 2]>,
}

impl Instance {
    fn new(counts: Option<[u64; 2]>) -> Instance {
        Instance {
            inward: Default::default(),
            outward: Default::default(),
            counts,
        }
    }
}

/// A step of the model.
#[derive(Clone, Copy, Debug)]
enum Do {
    /// A packet arrives.
    Arrive(usize),
    /// A move to the other instance begins.
    Begin,
    /// An instance takes one item from a port.
    Run(usize, usize),
    /// The worker takes one item from a port.
    Poll(usize, usize),
    /// The move reaches a limit.
    Limit,
    /// The next message finds no room.
    FillRing,
    /// The next state is refused.
    Refuse,
    /// An instance dies, and another one takes its place.
    Kill(usize),
    /// inco dies, and its next run takes table and rings over.
    KillWorker,
}

struct World {
    ports: usize,
    instances: [Instance; 2],
    /// Where the flow is pinned.
    pin: usize,
    moving: Option<(u64, Transfer, usize, usize)>,
    number: u64,
    held: VecDeque<Item>,
    has_no_room: bool,
    refuses: bool,
    /// By direction: packets that arrived, that were processed, and that left.
    arrived: [u64; 2],
    processed: [u64; 2],
    left: [Vec<u64>; 2],
    /// Packets lost by a death.
    lost: u64,
    /// The instance with the state died: the next one begins anew.
    state_is_lost: bool,
    /// The instance that has just died: no flow begins anew there.
    dead: Option<usize>,
    moved: u64,
}

const FLOW: Tuple = Tuple {
    src: std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST),
    dst: std::net::IpAddr::V4(std::net::Ipv4Addr::BROADCAST),
    src_port: 1,
    dst_port: 2,
    protocol: 17,
    vlan: 0,
};

impl World {
    fn new(ports: usize) -> World {
        World {
            ports,
            instances: [Instance::new(Some([0; 2])), Instance::new(None)],
            pin: 0,
            moving: None,
            number: 0,
            held: VecDeque::new(),
            has_no_room: false,
            refuses: false,
            arrived: [0; 2],
            processed: [0; 2],
            left: [Vec::new(), Vec::new()],
            lost: 0,
            state_is_lost: false,
            dead: None,
            moved: 0,
        }
    }

    /// The port of a direction.
    fn port(&self, direction: usize) -> usize {
        direction % self.ports
    }

    fn give(&mut self, to: usize, item: Item) {
        let port = match item {
            Item::Packet(direction, _) => self.port(direction),
            Item::Frame(_) => 0,
        };
        self.instances[to].inward[port].push_back(item);
    }

    /// Whether there was room.
    fn tell(&mut self, to: usize, port: usize, number: u64, message: &Message<'_>) -> bool {
        if std::mem::take(&mut self.has_no_room) {
            return false;
        }
        let mut room = [0; FRAME_BYTES_LIMIT];
        let length = message.write(number, &mut room).unwrap();
        self.instances[to].inward[port].push_back(Item::Frame(room[..length].to_vec()));
        true
    }

    fn act(&mut self, what: Do) {
        match what {
            Do::Arrive(direction) => {
                let item = Item::Packet(direction, self.arrived[direction]);
                self.arrived[direction] += 1;
                if self.moving.is_some() {
                    self.held.push_back(item);
                    if self.held.len() >= HELD_LIMIT {
                        self.step(Input::AtLimit, &[]);
                    }
                } else {
                    self.give(self.pin, item);
                }
            }
            Do::Begin if self.moving.is_none() => {
                self.number += 1;
                let (from, to) = (self.pin, 1 - self.pin);
                self.moving = Some((self.number, Transfer::new(self.ports as u8), from, to));
                for port in 0..self.ports {
                    let asked = self.tell(from, port, self.number, &Message::Pass { port: port as u8 });
                    if !asked {
                        return self.step(Input::NoRoom, &[]);
                    }
                }
            }
            Do::Begin => {}
            Do::Run(at, port) => self.run(at, port % self.ports),
            Do::Poll(at, port) => self.poll(at, port % self.ports),
            Do::Limit => self.step(Input::AtLimit, &[]),
            Do::FillRing => self.has_no_room = true,
            Do::Refuse => self.refuses = true,
            Do::Kill(at) => self.kill(at),
            Do::KillWorker => {
                // What it held is lost; the pin, the rings and the instances stay.
                self.moving = None;
                self.lost += self.held.len() as u64;
                self.held.clear();
            }
        }
    }

    fn kill(&mut self, at: usize) {
        let of = std::mem::replace(&mut self.instances[at], Instance::new(None));
        let rings = of.inward.iter().chain(&of.outward).flatten();
        self.lost += rings.filter(|item| matches!(item, Item::Packet(..))).count() as u64;
        let party = self.moving.as_ref().map(|(.., from, _)| match *from == at {
            true => Party::Source,
            false => Party::Destination,
        });
        // The destination of an acknowledged move has the state; before that the source has.
        if self.pin == at {
            self.state_is_lost = true;
        }
        if let Some(party) = party {
            self.dead = Some(at);
            self.step(Input::Gone(party), &[]);
            self.dead = None;
        }
        if self.pin == at && self.moving.is_none() {
            self.pin = 1 - at;
        }
    }

    fn run(&mut self, at: usize, port: usize) {
        let crossed = self.ports - 1 - port;
        let of = &mut self.instances[at];
        let Some(item) = of.inward[port].pop_front() else {
            return;
        };
        match item {
            Item::Packet(direction, number) => {
                let counts = of.counts.get_or_insert([0; 2]);
                if std::mem::take(&mut self.state_is_lost) {
                    // It begins anew, or with what an earlier move has left.
                    *counts = self.processed;
                }
                assert_eq!(*counts, self.processed, "packet {number} meets a wrong state");
                counts[direction] += 1;
                self.processed[direction] += 1;
                of.outward[crossed].push_back(Item::Packet(direction, number));
            }
            Item::Frame(frame) => {
                let (number, message) = Message::read(&frame).unwrap();
                let mut answer = |port: usize, message: Message<'_>| {
                    let mut room = [0; FRAME_BYTES_LIMIT];
                    let length = message.write(number, &mut room).unwrap();
                    of.outward[port].push_back(Item::Frame(room[..length].to_vec()));
                };
                match message {
                    Message::Pass { port: asked } => {
                        assert_eq!(usize::from(asked), port);
                        for by in 0..self.ports {
                            let (of, by_port) = (asked, by as u8);
                            answer(by, Message::Passed { of, by: by_port });
                        }
                    }
                    Message::Export(_) | Message::Import(..) if std::mem::take(&mut self.refuses) => {
                        answer(port, Message::Refused(NotMoved::Full));
                    }
                    Message::Export(_) => {
                        let bytes = of.counts.map(|of| of.map(u64::to_be_bytes).concat());
                        answer(port, Message::Exported(&bytes.unwrap_or_default()));
                    }
                    Message::Import(_, state) => {
                        of.counts = state.first_chunk::<16>().map(|of| {
                            let (a, b) = of.split_first_chunk::<8>().unwrap();
                            [u64::from_be_bytes(*a), u64::from_be_bytes(b.try_into().unwrap())]
                        });
                        answer(port, Message::Imported);
                    }
                    Message::Forget(_) => of.counts = None,
                    other => panic!("{other:?}"),
                }
            }
        }
    }

    fn poll(&mut self, at: usize, port: usize) {
        match self.instances[at].outward[port].pop_front() {
            Some(Item::Packet(direction, number)) => self.left[direction].push(number),
            Some(Item::Frame(frame)) => {
                let (number, message) = Message::read(&frame).unwrap();
                let Some((current, _, from, _)) = &self.moving else {
                    return;
                };
                if *current != number {
                    return;
                }
                let party = if *from == at {
                    Party::Source
                } else {
                    Party::Destination
                };
                let state = match message {
                    Message::Exported(state) => state.to_vec(),
                    _ => Vec::new(),
                };
                if let Some(input) = Input::of(&message, party) {
                    self.step(input, &state);
                }
            }
            None => {}
        }
    }

    fn step(&mut self, input: Input, state: &[u8]) {
        let Some((number, transfer, from, to)) = &mut self.moving else {
            return;
        };
        let (number, from, to) = (*number, *from, *to);
        let was_told = match transfer.step(input) {
            Step::Wait => true,
            Step::Send(Request::Export) => self.tell(from, 0, number, &Message::Export(FLOW)),
            Step::Send(Request::Import) => self.tell(to, 0, number, &Message::Import(FLOW, state)),
            Step::End(end) => return self.end(end, number, from, to),
        };
        if !was_told {
            self.step(Input::NoRoom, &[]);
        }
    }

    fn end(&mut self, end: End, number: u64, from: usize, to: usize) {
        self.moving = None;
        if end.cancelled.is_none() {
            self.pin = to;
            self.moved += 1;
        }
        self.pin = match end.goes {
            Goes::To(Party::Source) => from,
            Goes::Anew if self.dead == Some(to) => from,
            Goes::To(Party::Destination) | Goes::Anew => to,
        };
        if let Some(party) = end.forgets {
            let at = if party == Party::Source { from } else { to };
            // One that finds no room is told later; until then no packet of the flow goes there.
            self.has_no_room = false;
            self.tell(at, 0, number, &Message::Forget(FLOW));
        }
        while let Some(item) = self.held.pop_front() {
            self.give(self.pin, item);
        }
    }

    fn settle(&mut self) {
        for _ in 0..100_000 {
            let rings = self
                .instances
                .iter()
                .flat_map(|of| of.inward.iter().chain(&of.outward));
            if rings.map(VecDeque::len).sum::<usize>() == 0 {
                if self.moving.is_none() {
                    return;
                }
                self.act(Do::Limit);
            }
            for (at, port) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
                self.act(Do::Run(at, port));
                self.act(Do::Poll(at, port));
            }
        }
        panic!("it does not come to rest");
    }

    fn check(&self) {
        let left: u64 = self.left.iter().map(|of| of.len() as u64).sum();
        assert_eq!(self.arrived.iter().sum::<u64>(), left + self.lost);
        for of in &self.left {
            assert!(of.is_sorted_by(|a, b| a < b), "{of:?}");
        }
    }
}

/// Steps of a world in which nobody dies.
fn steps_of_the_living() -> impl Strategy<Value = Do> {
    prop_oneof![
        6 => (0..2_usize).prop_map(Do::Arrive),
        2 => Just(Do::Begin),
        8 => (0..2_usize, 0..2_usize).prop_map(|(at, port)| Do::Run(at, port)),
        8 => (0..2_usize, 0..2_usize).prop_map(|(at, port)| Do::Poll(at, port)),
        1 => Just(Do::Limit),
        1 => Just(Do::FillRing),
        1 => Just(Do::Refuse),
    ]
}

fn steps() -> impl Strategy<Value = Do> {
    prop_oneof![
        30 => steps_of_the_living(),
        1 => Just(Do::KillWorker),
        1 => (0..2_usize).prop_map(Do::Kill),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// No packet is lost, reordered or processed with a wrong state, whatever the order of steps.
    #[test]
    fn no_packet_is_lost_or_meets_a_wrong_state(
        ports in 1..=2_usize, steps in prop::collection::vec(steps_of_the_living(), 0..300),
    ) {
        let mut world = World::new(ports);
        for what in steps {
            world.act(what);
        }
        world.settle();
        prop_assert_eq!(world.lost, 0);
        world.check();
    }

    /// Where an instance or inco dies, only what it held is lost, and what is left keeps its order.
    #[test]
    fn a_death_loses_only_what_the_dead_held(
        ports in 1..=2_usize, steps in prop::collection::vec(steps(), 0..300),
    ) {
        let mut world = World::new(ports);
        for what in steps {
            world.act(what);
        }
        world.settle();
        world.check();
    }
}

/// Both die while the state is under way: what was held begins anew on one of the two that come in their place, and all
/// that follows finds it there.
#[test]
fn a_flow_whose_source_and_destination_die_begins_anew() {
    let mut world = World::new(1);
    world.act(Do::Begin);
    for _ in 0..2 {
        world.act(Do::Run(0, 0));
        world.act(Do::Poll(0, 0));
    }
    world.act(Do::Kill(0));
    world.act(Do::Arrive(0));
    assert_eq!(world.held.len(), 1);
    world.act(Do::Kill(1));
    (0..3).for_each(|_| world.act(Do::Arrive(0)));
    world.settle();
    world.check();
    assert_eq!((world.lost, world.processed), (0, [4, 0]));
}

/// A move that nothing disturbs takes place.
#[test]
fn a_flow_moves_to_and_fro() {
    for ports in 1..=2 {
        let mut world = World::new(ports);
        for round in 1..=4 {
            for direction in [0, 1, 0] {
                world.act(Do::Arrive(direction));
            }
            world.act(Do::Begin);
            world.act(Do::Arrive(1));
            assert_eq!(world.held.len(), 1);
            for _ in 0..100 {
                for (at, port) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
                    world.act(Do::Run(at, port));
                    world.act(Do::Poll(at, port));
                }
            }
            assert_eq!((world.moved, world.pin), (round, round as usize % 2));
        }
        world.settle();
        world.check();
        assert!(world.instances[1].counts.is_none(), "its copy is dropped");
    }
}
