//! Machines whose runtime is turned by hand, so that a seed decides what happens and in which order.
#![allow(dead_code, reason = "each test uses a part")]

use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::{Arc, Mutex};

use actor_objects::{Import, Limits, Objects};
use actor_runtime::{
    Actor, ActorId, Address, Core, CoreId, Idle, Message, Outside, PolicyName, Registration, Runtime,
    Settings,
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
pub struct Member {
    pub name: &'static str,
    /// Bytes and number of objects; none for an actor without a state.
    pub limits: Option<Limits>,
    pub make: Box<dyn Fn() -> Box<dyn Actor>>,
}

impl Member {
    pub fn new<A: Actor + 'static>(
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
pub struct Machine {
    members: Vec<Member>,
    /// The regions outlive the runtime, as they outlive a process.
    regions: Vec<Option<OwnedFd>>,
    runtime: Runtime,
    core: Core,
    wire: Wire,
    /// Whether its process runs.
    pub is_up: bool,
}

fn runtime(actors: usize, wire: &Wire) -> Runtime {
    let settings = Settings {
        policy: PolicyName::Fcfs,
        cores: 1,
        actors_limit: actors as u32,
        quantum: Nanos::from_micros(50),
        tail_threshold: Nanos::MAX,
        hysteresis: 0.1,
        idle: Idle::Poll,
    };
    Runtime::new(&settings, Box::new(wire.clone()))
}

fn number(place: usize) -> ActorId {
    ActorId(place as u32)
}

impl Machine {
    pub fn new(members: Vec<Member>) -> Machine {
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
        }
    }

    pub fn actors(&self) -> usize {
        self.members.len()
    }

    /// A message from outside for an actor. It is lost if the machine is down.
    pub fn deliver(&self, actor: usize, from: Address, kind: u32, body: Vec<u8>) {
        if self.is_up {
            let to = Address::Actor(number(actor));
            let message = Message::new(to, from, kind, body, Nanos::ZERO);
            self.runtime.deliver(message).unwrap();
        }
    }

    /// Has one actor handle what waits for it. The others are paused, so that the order does not depend on how long
    /// messages take.
    pub fn serve(&mut self, actor: usize) -> usize {
        if !self.is_up {
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
    pub fn settle(&mut self, random: &mut Random) {
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
    pub fn take_sent(&self) -> Vec<Message> {
        std::mem::take(&mut self.wire.0.lock().unwrap())
    }

    /// Moves an actor to another region, as to another side: its objects as a stream of bytes, and a new Rust value.
    pub fn move_away_and_in(&mut self, actor: usize, random: &mut Random) {
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

    /// Ends the process between two messages: what waits in mailboxes is lost.
    pub fn crash(&mut self) {
        self.wire = Wire::default();
        self.runtime = runtime(self.actors(), &self.wire);
        self.core = self.runtime.core(CoreId(0));
        self.is_up = false;
    }

    /// Starts the process again with the regions.
    pub fn restart(&mut self) {
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
