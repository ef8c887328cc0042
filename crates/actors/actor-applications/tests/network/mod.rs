//! Machines whose runtime is turned by hand, so that a seed decides what happens and in which order.
#![allow(dead_code, reason = "each test uses a part")]

use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::{Arc, Mutex};

use actor_objects::{Import, Limits, Objects};
use actor_runtime::{
    Actor, ActorId, Address, Core, CoreId, Message, Outside, Registration, Runtime, Settings,
};
use model::{Nanos, Random};

/// What actors of a machine have sent to the outside, in order.
#[derive(Clone, Default)]
struct Wire(Arc<Mutex<Vec<Message>>>);

impl Outside for Wire {
    fn poll(&mut self, _: Nanos, _: &mut Vec<Message>) {}

    fn send(&mut self, messages: &mut Vec<Message>) {
        self.0.lock().unwrap().append(messages);
    }
}

/// An actor of a machine, and how to make its Rust value.
pub(crate) struct Member {
    pub(crate) name: &'static str,
    /// Bytes and number of objects; none for an actor without a state.
    pub(crate) limits: Option<Limits>,
    pub(crate) make: Box<dyn Fn() -> Box<dyn Actor>>,
}

impl Member {
    pub(crate) fn new<A: Actor + 'static>(
        name: &'static str,
        bytes: usize,
        make: impl Fn() -> A + 'static,
    ) -> Member {
        let limits = Limits {
            bytes: u32::try_from(bytes).unwrap(),
            objects: 1 << 14,
        };
        Member {
            name,
            limits: (bytes > 0).then_some(limits),
            make: Box::new(move || Box::new(make())),
        }
    }
}

/// The actors of one machine: their numbers are those of their places.
pub(crate) struct Machine {
    members: Vec<Member>,
    /// The regions outlive the runtime, as they outlive a process.
    regions: Vec<Option<OwnedFd>>,
    runtime: Runtime,
    core: Core,
    wire: Wire,
    /// Whether its process runs.
    pub(crate) is_up: bool,
    /// Actors that handle nothing any more.
    lost: Vec<usize>,
}

fn runtime(actors: usize, wire: &Wire) -> Runtime {
    let settings = Settings::first_come(actors as u32);
    Runtime::new(&settings, Box::new(wire.clone()))
}

fn number(place: usize) -> ActorId {
    ActorId(place as u32)
}

impl Machine {
    pub(crate) fn new(members: Vec<Member>) -> Machine {
        let wire = Wire::default();
        let runtime = runtime(members.len(), &wire);
        let mut regions = Vec::new();
        for (place, member) in members.iter().enumerate() {
            let mut registration = Registration::new(member.name, (member.make)());
            let region = member.limits.map(|limits| {
                let (file, objects) = Objects::create(limits).unwrap();
                (file, objects)
            });
            let mut file = None;
            if let Some((of, objects)) = region {
                registration = registration.objects(objects);
                file = Some(of);
            }
            regions.push(file);
            runtime.register(number(place), registration).unwrap();
            runtime.pause(number(place)).unwrap();
        }
        Machine {
            core: runtime.core(CoreId(0)),
            members,
            regions,
            runtime,
            wire,
            is_up: true,
            lost: Vec::new(),
        }
    }

    pub(crate) fn actors(&self) -> usize {
        self.members.len()
    }

    /// A message from outside for an actor. It is lost if the machine is down.
    pub(crate) fn deliver(&self, actor: usize, from: Address, kind: u32, body: Vec<u8>) {
        if self.is_up {
            let to = Address::Actor(number(actor));
            let message = Message::new(to, from, kind, body, Nanos::ZERO);
            // A full mailbox refuses it, as a network loses it.
            let _refused = self.runtime.deliver(message);
        }
    }

    /// Has one actor handle what waits for it. The others are paused, so that the order does not depend on how long
    /// messages take.
    pub(crate) fn serve(&mut self, actor: usize) -> usize {
        if !self.is_up || self.lost.contains(&actor) {
            return 0;
        }
        self.runtime.resume(number(actor)).unwrap();
        let mut ended = 0;
        loop {
            match self.core.turn() {
                0 => break,
                more => ended += more,
            }
        }
        self.runtime.pause(number(actor)).unwrap();
        let stopped = self.runtime.take_stopped();
        assert!(stopped.is_empty(), "{stopped:?}");
        ended
    }

    /// Has all actors handle all, in an order that the draw decides.
    pub(crate) fn settle(&mut self, random: &mut Random) {
        let mut idle = 0;
        while idle < self.actors() {
            let first = random.below(self.actors() as u64) as usize;
            idle = 0;
            for actor in (first..self.actors()).chain(0..first) {
                if self.serve(actor) == 0 {
                    idle += 1;
                }
            }
        }
    }

    /// What has left.
    pub(crate) fn take_sent(&self) -> Vec<Message> {
        std::mem::take(&mut self.wire.0.lock().unwrap())
    }

    /// Moves an actor to another region, as to another side: its objects as a stream of bytes, and a new Rust value.
    pub(crate) fn move_away_and_in(&mut self, actor: usize, random: &mut Random) {
        let Some(limits) = self.members[actor].limits.filter(|_| self.is_up) else {
            return;
        };
        let (mut registration, waiting) = self.runtime.remove(number(actor)).unwrap();
        let source = registration.take_objects().unwrap();
        let (file, target) = Objects::create(limits).unwrap();
        let mut import = Import::new(target).unwrap();
        let (head, mut export) = source.export();
        import.push(&head).unwrap();
        let mut parts = Vec::new();
        while export.next(&source, 1 + random.below(5_000) as usize, 4, &mut parts) > 0 {
            for part in &parts {
                import.push(part).unwrap();
            }
        }
        self.adopt(actor, import.finish().unwrap());
        self.regions[actor] = Some(file);
        for message in waiting {
            self.runtime.deliver_held(message).unwrap();
        }
    }

    fn adopt(&self, actor: usize, objects: Objects) {
        let member = &self.members[actor];
        let registration = Registration::new(member.name, (member.make)()).objects(objects);
        self.runtime.adopt(number(actor), registration).unwrap();
        self.runtime.pause(number(actor)).unwrap();
    }

    /// The objects of an actor, as the process that comes after this one would open them.
    pub(crate) fn with_objects<R>(&self, actor: usize, read: impl FnOnce(&Objects) -> R) -> R {
        let file = self.regions[actor].as_ref().unwrap();
        read(&Objects::open(file.as_fd()).unwrap())
    }

    /// An actor is lost for good: nobody handles its messages from now on.
    pub(crate) fn lose(&mut self, actor: usize) {
        self.lost.push(actor);
    }

    /// Ends the process between two messages: what waits in mailboxes is lost.
    pub(crate) fn crash(&mut self) {
        self.wire = Wire::default();
        self.runtime = runtime(self.actors(), &self.wire);
        self.core = self.runtime.core(CoreId(0));
        self.is_up = false;
    }

    /// Starts the process again with the regions.
    pub(crate) fn restart(&mut self) {
        if self.is_up {
            return;
        }
        for (actor, region) in self.regions.iter().enumerate() {
            match region {
                Some(file) => self.adopt(actor, Objects::open(file.as_fd()).unwrap()),
                None => {
                    let member = &self.members[actor];
                    let registration = Registration::new(member.name, (member.make)());
                    self.runtime.adopt(number(actor), registration).unwrap();
                    self.runtime.pause(number(actor)).unwrap();
                }
            }
        }
        self.is_up = true;
    }
}

/// Addresses of machines begin here, those of clients at 0.
const FIRST_MACHINE: u64 = 1_000;
/// What ticks come from.
pub(crate) const DRIVER: Address = Address::Outside(5_000);

/// The address of a machine: of the actor that talks to others.
pub(crate) fn address(machine: usize) -> Address {
    Address::Outside(FIRST_MACHINE + machine as u64)
}

#[derive(Clone, Debug)]
pub(crate) struct Packet {
    pub(crate) from: Address,
    pub(crate) to: Address,
    pub(crate) kind: u32,
    pub(crate) body: Vec<u8>,
}

/// How often things go wrong: of 1,000 packets; the last three of 1,000 steps.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Faults {
    pub(crate) lost: u64,
    pub(crate) duplicated: u64,
    pub(crate) moves: u64,
    pub(crate) crashes: u64,
    pub(crate) divisions: u64,
}

/// Machines and the network between them.
pub(crate) struct World {
    pub(crate) machines: Vec<Machine>,
    pub(crate) packets: Vec<Packet>,
    /// The machine that no other one reaches, nor it them.
    pub(crate) alone: Option<usize>,
    pub(crate) random: Random,
    time: u64,
    /// How often something went wrong.
    pub(crate) happened: Faults,
}

impl World {
    pub(crate) fn new(machines: Vec<Machine>, seed: u64) -> World {
        World {
            machines,
            packets: Vec::new(),
            alone: None,
            random: Random::new(seed),
            time: 0,
            happened: Faults::default(),
        }
    }

    /// A time that no other call gives.
    pub(crate) fn now(&mut self) -> u64 {
        self.time += 1;
        self.time
    }

    /// Any machine.
    pub(crate) fn any(&mut self) -> usize {
        self.random.below(self.machines.len() as u64) as usize
    }

    fn happens(&mut self, of_1000: u64) -> bool {
        self.random.below(1_000) < of_1000
    }

    /// Has one actor of any machine handle what it has, or all of them.
    pub(crate) fn serve(&mut self) {
        let machine = self.any();
        let of = &mut self.machines[machine];
        match self.random.below(2) {
            0 if of.is_up => of.settle(&mut self.random),
            _ => {
                of.serve(self.random.below(of.actors() as u64) as usize);
            }
        }
        self.collect(machine);
    }

    /// What a machine has sent is on its way.
    pub(crate) fn collect(&mut self, machine: usize) {
        for message in self.machines[machine].take_sent() {
            self.packets.push(Packet {
                from: address(machine),
                to: message.to,
                kind: message.kind,
                body: message.body,
            });
        }
    }

    /// Delivers any packet, unless it is lost; one for a client is given back.
    pub(crate) fn deliver(&mut self, faults: Faults) -> Option<Packet> {
        let place = self.random.below(self.packets.len() as u64) as usize;
        if self.packets.is_empty() {
            return None;
        }
        let packet = self.packets.swap_remove(place);
        if self.happens(faults.lost) {
            self.happened.lost += 1;
            return None;
        }
        if self.happens(faults.duplicated) {
            self.happened.duplicated += 1;
            self.packets.push(packet.clone());
        }
        let index = |address| match address {
            Address::Outside(number) => number.checked_sub(FIRST_MACHINE).map(|index| index as usize),
            Address::Actor(_) => panic!("a packet of an actor"),
        };
        match (index(packet.from), index(packet.to)) {
            (Some(from), Some(to)) if [from, to].map(Some).contains(&self.alone) => {}
            (_, Some(to)) => self.machines[to].deliver(0, packet.from, packet.kind, packet.body),
            (_, None) => return Some(packet),
        }
        None
    }

    /// Moves, crashes and divisions, and their ends: they last several elections.
    pub(crate) fn disturb(&mut self, faults: Faults) {
        let machine = self.any();
        if self.happens(faults.moves) {
            self.happened.moves += 1;
            let actor = self.random.below(self.machines[machine].actors() as u64) as usize;
            self.machines[machine].move_away_and_in(actor, &mut self.random);
        }
        if self.happens(faults.crashes) {
            self.happened.crashes += 1;
            self.machines[machine].crash();
        } else if !self.machines[machine].is_up && self.happens(6) {
            self.machines[machine].restart();
        }
        if self.happens(faults.divisions) {
            self.happened.divisions += 1;
            self.alone = Some(machine);
        } else if self.happens(2) {
            self.alone = None;
        }
    }

    /// Everything works again.
    pub(crate) fn heal(&mut self) {
        self.alone = None;
        self.machines.iter_mut().for_each(Machine::restart);
    }

    /// Has all machines handle all that they have.
    pub(crate) fn settle(&mut self) {
        for machine in 0..self.machines.len() {
            if self.machines[machine].is_up {
                self.machines[machine].settle(&mut self.random);
            }
            self.collect(machine);
        }
    }
}
