//! The process of a group: its actors, one at a time.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use actor_objects::Objects;
use actor_runtime::{
    Actor, ActorId, Context, CoreId, Idle, Message, Outside, PolicyName, Progress, Queues, Registration,
    Runtime, Settings,
};
use model::Nanos;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

use crate::page::Page;
use crate::wire::{self, PACKET_BYTES, Packet, Start};
use crate::{ACTORS_LIMIT, Error};

/// An actor may run so long in its turn, among those of its group.
const QUANTUM: Nanos = Nanos::from_micros(50);

/// What a process has served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Served {
    /// Messages that have ended.
    pub messages: u64,
}

/// Makes an actor of a kind, with that number. Its state is in its objects. Nothing for an unknown kind.
pub type Make<'a> = &'a dyn Fn(&str, ActorId) -> Option<Box<dyn Actor>>;

/// Serves the group of the supervisor whose socket is the standard input, until that closes.
///
/// # Errors
/// What was said is not from a supervisor; a kind is unknown; the kernel's.
pub fn serve(make: Make<'_>) -> Result<Served, Error> {
    // A loop of an actor must not outlive the supervisor.
    let ends = rustix::process::Signal::KILL;
    rustix::process::set_parent_process_death_signal(Some(ends))
        .map_err(Error::system("end with the parent"))?;
    let stdin = std::io::stdin();
    let socket = stdin
        .as_fd()
        .try_clone_to_owned()
        .map_err(|source| Error::System {
            doing: "use the supervisor's socket",
            source,
        })?;
    let socket = Arc::new(socket);
    let (bytes, descriptors) =
        wire::receive_start(socket.as_fd()).map_err(Error::system("hear the supervisor"))?;
    let start: Start = serde_json::from_slice(&bytes).map_err(|_| Error::NotStarted)?;
    let mut descriptors = descriptors.into_iter();
    let page = descriptors.next().ok_or(Error::NotStarted)?;
    let page = Arc::new(Page::open(page.as_fd()).map_err(Error::system("map the page"))?);
    let settings = Settings {
        policy: PolicyName::Drr,
        queues: Queues::Shared,
        cores: 1,
        actors_limit: start.actors.iter().map(|actor| actor.id + 1).max().unwrap_or(0),
        quantum: QUANTUM,
        tail_threshold: Nanos::MAX,
        hysteresis: 0.1,
        idle: Idle::Sleep(Duration::ZERO),
    };
    let runtime = Runtime::new(&settings, Box::new(Nobody));
    for of in &start.actors {
        let region = descriptors.next().ok_or(Error::NotStarted)?;
        if of.slot >= ACTORS_LIMIT {
            return Err(Error::NotStarted);
        }
        let actor = ActorId(of.id);
        let objects = Objects::open(region.as_fd())?;
        let inner = make(&of.kind, actor).ok_or_else(|| Error::UnknownKind(of.kind.clone()))?;
        let watched = Watched {
            inner,
            slot: of.slot,
            ended: of.ended,
            page: Arc::clone(&page),
            socket: Arc::clone(&socket),
            packet: Vec::new(),
        };
        let registration = Registration::new(&of.kind, Box::new(watched))
            .objects(objects)
            .mailbox_limit(of.mailbox_limit);
        if !page.is_prepared(of.slot) {
            runtime.register(actor, registration)?;
        } else {
            runtime.adopt(actor, registration)?;
        }
    }
    turn_until_closed(&runtime, socket.as_fd())
}

fn turn_until_closed(runtime: &Runtime, socket: BorrowedFd<'_>) -> Result<Served, Error> {
    let mut core = runtime.core(CoreId(0));
    let mut buffer = vec![0; PACKET_BYTES];
    let (mut taken, mut ended) = (0, 0);
    loop {
        // With nothing to do it waits for the supervisor.
        let mut flags = RecvFlags::empty();
        flags.set(RecvFlags::DONTWAIT, taken > ended);
        match wire::receive(socket, &mut buffer, flags) {
            Ok(Some(bytes)) => {
                if let Some(Packet::Message(message)) = Packet::decode(bytes)
                    && runtime.deliver(message).is_ok()
                {
                    taken += 1;
                }
                continue;
            }
            Ok(None) | Err(Errno::CONNRESET) => return Ok(Served { messages: ended }),
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(error) => return Err(Error::system("hear the supervisor")(error)),
        }
        ended += core.turn() as u64;
    }
}

/// What actors send goes to the supervisor before the runtime sees it.
struct Nobody;

impl Outside for Nobody {
    fn poll(&mut self, _: Nanos, _: &mut Vec<Message>) {}

    fn send(&mut self, _: &mut Vec<Message>) {}
}

/// An actor; who runs is noted in the page, and each end is told.
struct Watched {
    inner: Box<dyn Actor>,
    slot: usize,
    ended: u64,
    page: Arc<Page>,
    socket: Arc<OwnedFd>,
    packet: Vec<u8>,
}

impl Watched {
    /// Says what has been sent. Where the supervisor is gone, the next look at the socket ends the process.
    fn say(&mut self, packet: &Packet) {
        packet.encode(&mut self.packet);
        while let Err(Errno::INTR) = wire::send(self.socket.as_fd(), &self.packet, SendFlags::empty()) {}
    }

    fn tell_sent(&mut self, context: &mut Context<'_>) {
        for message in context.take_sent() {
            self.say(&Packet::Message(message));
        }
    }
}

impl Actor for Watched {
    fn init(&mut self, context: &mut Context<'_>) {
        self.page
            .begin(self.slot, clock::monotonic(), clock::process_cpu());
        self.inner.init(context);
        self.page.prepared(self.slot);
        // It belongs to no message: the first one that ends takes it along.
        self.tell_sent(context);
    }

    fn exec(&mut self, message: &mut Message, context: &mut Context<'_>) -> Progress {
        self.page
            .begin(self.slot, clock::monotonic(), clock::process_cpu());
        let progress = self.inner.exec(message, context);
        if progress == Progress::Done {
            self.ended += 1;
            // Before the page says so: the supervisor gives no ended message again.
            context.complete();
        }
        self.page.end(self.slot, self.ended);
        self.tell_sent(context);
        if progress == Progress::Done {
            self.say(&Packet::Ended(context.me()));
        }
        progress
    }
}
