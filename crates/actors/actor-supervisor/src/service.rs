//! What a service of actors consists of, and the memory that belongs to it.

use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;

use actor_channel::{Declared, End, Order};
use actor_control::{Declaration, Side};
use actor_migration::Record;
use actor_objects::Objects;
use actor_scheduling::{PolicyName, Queues};
use model::Nanos;
use rustix::rand::GetRandomFlags;

use crate::supervisor::Error;

/// How a side runs its actors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Runs {
    /// Which core runs which actor next.
    pub policy: PolicyName,
    /// Cores.
    pub cores: u16,
    /// As in `actor-scheduling`.
    pub queues: Queues,
    /// As in `actor-scheduling`.
    pub quantum: Nanos,
    /// As in `actor-scheduling`.
    pub tail_threshold: Nanos,
    /// As in `actor-scheduling`, in thousandths.
    pub hysteresis_thousandths: u32,
    /// How long a core without a message sleeps; 0: it polls.
    pub rest: Nanos,
}

impl Default for Runs {
    /// One core with the policy `hybrid` and a line of its own, a quantum of 50 µs, a tail threshold of 1 ms, and rests of 0.1 ms.
    fn default() -> Runs {
        Runs {
            policy: PolicyName::Hybrid,
            cores: 1,
            queues: Queues::PerCore,
            quantum: Nanos::from_micros(50),
            tail_threshold: Nanos::from_millis(1),
            hysteresis_thousandths: 100,
            rest: Nanos::from_micros(100),
        }
    }
}

/// An actor of a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeclaredActor {
    /// What both sides know of it.
    pub declaration: Declaration,
    /// Where it begins.
    pub side: Side,
    /// The size of its region, on each side.
    pub region: actor_objects::Limits,
}

/// What a service consists of.
#[derive(Clone, Debug)]
pub struct Service {
    /// How card and host run their actors.
    pub runs: [Runs; 2],
    /// The actor that gets what comes from the network to no port of another one.
    pub entry: u32,
    /// Ports whose packets are messages of an actor: each with its number.
    pub routes: Vec<(u16, u32)>,
    /// The actors: at least one, each number once.
    pub actors: Vec<DeclaredActor>,
    /// The size of the channel.
    pub channel: actor_channel::Limits,
    /// The declared DMA engine of the card and of the host.
    pub engine: [Declared; 2],
}

impl Service {
    /// A service with the default settings. `actors` begin on the card, have regions of this size and the default
    /// limits of their mailboxes. The first one is the entry.
    pub fn new<'k>(kinds: impl IntoIterator<Item = &'k str>, region: actor_objects::Limits) -> Service {
        let actors = (0..).zip(kinds).map(|(actor, kind)| DeclaredActor {
            declaration: Declaration {
                actor,
                kind: kind.to_owned(),
                mailbox_limit: 1_024,
                held_limit: 1 << 16,
            },
            side: Side::Card,
            region,
        });
        Service {
            runs: [Runs::default(); 2],
            entry: 0,
            routes: Vec::new(),
            actors: actors.collect(),
            channel: actor_channel::Limits::default(),
            engine: [Declared::CARD_TO_HOST, Declared::HOST_TO_CARD],
        }
    }

    /// A new channel: its memory.
    pub(crate) fn new_channel(&self) -> Result<Arc<OwnedFd>, Error> {
        let mut key = [0; 4];
        let got = rustix::rand::getrandom(&mut key[..], GetRandomFlags::empty())?;
        if got != key.len() {
            return Err(Error::System(rustix::io::Errno::AGAIN));
        }
        let order = Order::Declared(self.engine[0]);
        let made = End::create(
            self.channel,
            actor_channel::Side::Card,
            order,
            u32::from_ne_bytes(key),
        )?;
        Ok(Arc::new(made.0))
    }
}

/// What belongs to an actor, by side.
#[derive(Debug)]
pub(crate) struct Owned {
    pub(crate) of: DeclaredActor,
    pub(crate) regions: [Arc<OwnedFd>; 2],
    /// What a side whose process has ended had noted.
    pub(crate) records: [Option<Record>; 2],
}

fn region(limits: actor_objects::Limits) -> Result<Arc<OwnedFd>, Error> {
    Ok(Arc::new(Objects::create(limits)?.0))
}

impl Owned {
    pub(crate) fn new(of: DeclaredActor) -> Result<Owned, Error> {
        Ok(Owned {
            regions: [region(of.region)?, region(of.region)?],
            records: [None; 2],
            of,
        })
    }

    /// New regions on both sides.
    pub(crate) fn begin_anew(&mut self) -> Result<(), Error> {
        *self = Owned::new(self.of.clone())?;
        Ok(())
    }

    /// Reads what a side had noted, whose process has ended. A region that cannot be used any more is replaced.
    pub(crate) fn read_record(&mut self, side: Side) -> Result<(), Error> {
        let file = &mut self.regions[side.index()];
        let objects = Objects::open(file.as_fd()).ok();
        let record = objects.and_then(|objects| Record::from_bits(objects.mark()));
        if record.is_none() {
            *file = region(self.of.region)?;
        }
        self.records[side.index()] = record;
        Ok(())
    }
}
