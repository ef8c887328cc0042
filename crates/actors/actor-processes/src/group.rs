//! The supervisor of a group.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};

use actor_objects::{Limits, Objects};
use actor_runtime::{ActorId, Address, BODY_BYTES_LIMIT, MAILBOX_LIMIT, Message, Refusal};
use model::Nanos;
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions};

use crate::page::Page;
use crate::wire::{self, PACKET_BYTES, Packet, Start, StartActor};
use crate::{ACTORS_LIMIT, Error};

/// Messages of an actor that the process has and that have not ended, at most: enough that it does not wait.
const WINDOW: usize = 32;
/// Messages that an actor sends while it handles one, at most.
const SENT_LIMIT: usize = 1_024;
/// The size of a region, unless a member says otherwise.
pub const LIMITS: Limits = Limits {
    bytes: 64 << 10,
    objects: 1_024,
};

/// Ends of the process that were no actor's, at most, before the group is given up.
const RESTARTS_LIMIT: u32 = 8;
/// Times its budget that an actor may run by the clock: longer only if it waits, which it must not.
const WAITS: u64 = 10;
/// Packets read in a turn, at most: others wait for theirs.
const PACKETS_IN_A_TURN: usize = 1_024;

/// An actor of a group.
#[derive(Clone, Debug)]
pub struct Member {
    /// Its number.
    pub actor: ActorId,
    /// What the program makes it from.
    pub kind: String,
    /// The size of its region of objects.
    pub limits: Limits,
    /// Messages that wait for it, at most.
    pub mailbox_limit: usize,
}

impl Member {
    /// A member with a region of [`LIMITS`] and the default limit of its mailbox.
    pub fn new(actor: ActorId, kind: &str) -> Member {
        Member {
            actor,
            kind: kind.to_owned(),
            limits: LIMITS,
            mailbox_limit: MAILBOX_LIMIT,
        }
    }
}

/// A member whose region somebody else has made.
#[derive(Debug)]
pub struct Placed {
    /// The member; its limits are those of the region.
    pub member: Member,
    /// The region. No other process changes it from now on.
    pub region: OwnedFd,
    /// Whether its state is there already: then the actor is not asked to prepare it.
    pub is_prepared: bool,
}

/// Why an actor was stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// It ran for longer than its budget: so much CPU time, or a tenth of the time by the clock.
    Budget(Nanos),
    /// The process ended with this signal while it ran.
    Signal(i32),
    /// The process ended with this code while it ran.
    Exit(i32),
    /// The process sent what no process of a group sends while it ran.
    Nonsense,
}

/// What happened to a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// An actor was stopped; so many messages that waited for it are lost, with the one that it ran.
    Stopped(ActorId, Why, u64),
    /// The process ended while no actor ran.
    Ended(Why),
    /// The other actors run in a new process.
    Restarted,
    /// The process ended too often: the group is no more.
    GivenUp,
}

/// What was counted of an actor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Messages that its mailbox took.
    pub accepted: u64,
    /// Messages refused because its mailbox was full.
    pub mailbox_full: u64,
    /// Messages that have ended.
    pub ended: u64,
    /// Messages that have ended, but what they sent was lost with the process.
    pub answers_lost: u64,
}

struct Held {
    member: Member,
    slot: usize,
    region: OwnedFd,
    /// Messages that have not ended, in order; the first ones are with the process.
    waiting: VecDeque<Message>,
    given: usize,
    counts: Counts,
}

/// A group of actors and its process. Dropped, the process is killed.
pub struct Group {
    command: Box<dyn Fn() -> Command + Send>,
    budget: Nanos,
    actors: Vec<Held>,
    page: (OwnedFd, Page),
    process: Option<(Child, OwnedFd)>,
    /// What the running actor has sent.
    sent: Vec<Message>,
    /// Ends of the process that were no actor's.
    ends: u32,
    starts: u32,
    buffer: Vec<u8>,
    packet: Vec<u8>,
}

impl std::fmt::Debug for Group {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let actors: Vec<ActorId> = self.actors.iter().map(|held| held.member.actor).collect();
        f.debug_struct("Group")
            .field("actors", &actors)
            .finish_non_exhaustive()
    }
}

impl Group {
    /// Starts the process of a group: `command`, whose standard input is the supervisor's socket, and which calls
    /// [`serve`](crate::serve). `budget` is how much CPU time an actor may use for a message; by the clock it may take ten
    /// times as long.
    ///
    /// # Errors
    /// Too many actors; the kernel's.
    pub fn start(
        command: impl Fn() -> Command + Send + 'static,
        budget: Nanos,
        members: Vec<Member>,
    ) -> Result<Group, Error> {
        let placed = (members.into_iter())
            .map(|member| {
                // Only the file is kept: the supervisor does not map it.
                let (region, _) = Objects::create(member.limits)?;
                Ok(Placed {
                    member,
                    region,
                    is_prepared: false,
                })
            })
            .collect::<Result<_, Error>>()?;
        Group::start_placed(command, budget, placed)
    }

    /// The same with actors whose regions somebody else has made, and has.
    ///
    /// # Errors
    /// Too many actors; the kernel's.
    pub fn start_placed(
        command: impl Fn() -> Command + Send + 'static,
        budget: Nanos,
        members: Vec<Placed>,
    ) -> Result<Group, Error> {
        let mut numbers: Vec<ActorId> = members.iter().map(|of| of.member.actor).collect();
        numbers.sort_unstable();
        numbers.dedup();
        if members.len() > ACTORS_LIMIT || numbers.len() != members.len() {
            return Err(Error::Members);
        }
        let page = Page::create().map_err(Error::system("make the page"))?;
        let mut actors = Vec::with_capacity(members.len());
        for (slot, placed) in members.into_iter().enumerate() {
            if placed.is_prepared {
                page.1.prepared(slot);
            }
            actors.push(Held {
                member: placed.member,
                slot,
                region: placed.region,
                waiting: VecDeque::new(),
                given: 0,
                counts: Counts::default(),
            });
        }
        let mut group = Group {
            command: Box::new(command),
            budget,
            actors,
            page,
            process: None,
            sent: Vec::new(),
            ends: 0,
            starts: 0,
            buffer: vec![0; PACKET_BYTES],
            packet: Vec::new(),
        };
        group.start_process()?;
        Ok(group)
    }

    fn start_process(&mut self) -> Result<(), Error> {
        let flags = SocketFlags::CLOEXEC;
        let (ours, theirs) = rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
            .map_err(Error::system("make a socket"))?;
        let start = Start {
            actors: (self.actors.iter())
                .map(|held| StartActor {
                    id: held.member.actor.0,
                    kind: held.member.kind.clone(),
                    mailbox_limit: WINDOW,
                    slot: held.slot,
                    ended: held.counts.ended,
                })
                .collect(),
        };
        let start = serde_json::to_vec(&start).map_err(|error| Error::System {
            doing: "say what is to be served",
            source: error.into(),
        })?;
        let regions = self.actors.iter().map(|held| held.region.as_fd());
        let descriptors: Vec<BorrowedFd<'_>> = std::iter::once(self.page.0.as_fd()).chain(regions).collect();
        wire::send_start(ours.as_fd(), &start, &descriptors)
            .map_err(Error::system("say what is to be served"))?;
        let child = (self.command)()
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            .spawn()
            .map_err(|source| Error::System {
                doing: "start the process of a group",
                source,
            })?;
        self.page.1.clear();
        self.starts += 1;
        for held in &mut self.actors {
            held.given = 0;
        }
        self.process = Some((child, ours));
        Ok(())
    }

    /// Puts a message into the mailbox of an actor of this group.
    ///
    /// # Errors
    /// The mailbox is full, which is counted; the actor is not of this group, or was stopped; the body is too long.
    pub fn deliver(&mut self, message: Message) -> Result<(), Refusal> {
        let held = self.actors.iter_mut();
        let held = held
            .into_iter()
            .find(|held| message.to == Address::Actor(held.member.actor));
        let held = held.ok_or(Refusal::NoSuchActor)?;
        if message.body.len() > BODY_BYTES_LIMIT {
            return Err(Refusal::TooLong);
        }
        if held.waiting.len() >= held.member.mailbox_limit {
            held.counts.mailbox_full += 1;
            return Err(Refusal::MailboxFull);
        }
        held.counts.accepted += 1;
        held.waiting.push_back(message);
        Ok(())
    }

    /// Passes messages on to the process, adds what actors of ended messages have sent to `sent`, and looks whether the
    /// process lives and its actor runs within its budget. Returns what happened.
    ///
    /// # Errors
    /// The kernel's, for a new process.
    pub fn turn(&mut self, now: Nanos, sent: &mut Vec<Message>) -> Result<Vec<Event>, Error> {
        let mut events = Vec::new();
        let why = match self.read(sent) {
            Heard::Nothing => self.over_budget(now)?,
            Heard::Closed => self.reap()?,
            Heard::Nonsense => {
                self.kill()?;
                Some(Why::Nonsense)
            }
        };
        if let Some(why) = why {
            // What it said before its end counts.
            let _closed = self.read(sent);
            self.process_ended(why, &mut events)?;
        }
        self.feed();
        Ok(events)
    }

    /// What to wait on until the process says something; nothing if there is no process.
    pub fn socket(&self) -> Option<BorrowedFd<'_>> {
        self.process.as_ref().map(|(_, socket)| socket.as_fd())
    }

    /// The process's number.
    pub fn process(&self) -> Option<u32> {
        self.process.as_ref().map(|(child, _)| child.id())
    }

    /// How often a process was started.
    pub fn starts(&self) -> u32 {
        self.starts
    }

    /// The actors that are served.
    pub fn actors(&self) -> impl Iterator<Item = ActorId> {
        self.actors.iter().map(|held| held.member.actor)
    }

    /// Whether an actor has prepared its state; nothing of one that was stopped.
    pub fn is_prepared(&self, actor: ActorId) -> Option<bool> {
        let held = self.actors.iter().find(|held| held.member.actor == actor)?;
        Some(self.page.1.is_prepared(held.slot))
    }

    /// What was counted of an actor; nothing of one that was stopped.
    pub fn counts(&self, actor: ActorId) -> Option<Counts> {
        let held = self.actors.iter().find(|held| held.member.actor == actor)?;
        Some(held.counts)
    }

    /// Messages that wait for an actor, and the one that it runs.
    pub fn waiting(&self, actor: ActorId) -> usize {
        let held = self.actors.iter().find(|held| held.member.actor == actor);
        held.map_or(0, |held| held.waiting.len())
    }

    fn read(&mut self, sent: &mut Vec<Message>) -> Heard {
        let Some((_, socket)) = &self.process else {
            return Heard::Nothing;
        };
        for _ in 0..PACKETS_IN_A_TURN {
            let bytes = match wire::receive(socket.as_fd(), &mut self.buffer, RecvFlags::DONTWAIT) {
                Ok(Some(bytes)) => bytes,
                Err(Errno::AGAIN | Errno::INTR) => return Heard::Nothing,
                Ok(None) | Err(_) => return Heard::Closed,
            };
            match Packet::decode(bytes) {
                Some(Packet::Message(message)) if self.sent.len() < SENT_LIMIT => self.sent.push(message),
                Some(Packet::Ended(actor)) => {
                    let mut actors = self.actors.iter_mut();
                    let Some(held) = actors.find(|held| held.member.actor == actor && held.given > 0) else {
                        return Heard::Nonsense;
                    };
                    held.waiting.pop_front();
                    held.given -= 1;
                    held.counts.ended += 1;
                    sent.append(&mut self.sent);
                }
                _ => return Heard::Nonsense,
            }
        }
        Heard::Nothing
    }

    /// Kills the process if its actor runs for too long.
    fn over_budget(&mut self, now: Nanos) -> Result<Option<Why>, Error> {
        let Some((child, _)) = &self.process else {
            return Ok(None);
        };
        let Some(running) = self.page.1.running() else {
            return Ok(None);
        };
        let wall = now.since(running.since);
        if wall <= self.budget {
            return Ok(None);
        }
        // A process that does not get the CPU is not over its budget.
        let used = used_by(child.id()).since(running.used);
        if used <= self.budget && wall <= Nanos(self.budget.0.saturating_mul(WAITS)) {
            return Ok(None);
        }
        // Stopped first: another actor may run by now, whose state must not be left half changed.
        let Some(pid) = Pid::from_raw(child.id() as i32) else {
            return Ok(None);
        };
        let signal =
            |signal| rustix::process::kill_process(pid, signal).map_err(Error::system("stop a process"));
        signal(Signal::STOP)?;
        // It may have ended before: its status is for who reaps it.
        let changed = WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        rustix::process::waitid(WaitId::Pid(pid), changed).map_err(Error::system("stop a process"))?;
        if self.page.1.running() != Some(running) {
            signal(Signal::CONT)?;
            return Ok(None);
        }
        self.kill()?;
        Ok(Some(Why::Budget(used.max(Nanos(wall.0 / WAITS)))))
    }

    fn kill(&mut self) -> Result<(), Error> {
        if let Some((child, _)) = &mut self.process {
            let failed = |source| Error::System {
                doing: "kill the process of a group",
                source,
            };
            child.kill().map_err(failed)?;
            child.wait().map_err(failed)?;
        }
        Ok(())
    }

    /// Why a process that has closed its socket has ended.
    fn reap(&mut self) -> Result<Option<Why>, Error> {
        let Some((child, _)) = &mut self.process else {
            return Ok(None);
        };
        // A process whose socket is closed serves nobody.
        let failed = |source| Error::System {
            doing: "wait for the process of a group",
            source,
        };
        let status: ExitStatus = child.wait().map_err(failed)?;
        let by_code = || Why::Exit(status.code().unwrap_or(-1));
        Ok(Some(status.signal().map_or_else(by_code, Why::Signal)))
    }

    /// Stops the actor that ran; the others go on in a new process.
    fn process_ended(&mut self, why: Why, events: &mut Vec<Event>) -> Result<(), Error> {
        let ran = self.page.1.running().map(|running| running.slot);
        self.process = None;
        self.sent.clear();
        for held in &mut self.actors {
            // Ended, but the process could not say so. What a hostile process noted is at most what it was given.
            let ended = self.page.1.ended(held.slot).saturating_sub(held.counts.ended);
            for _ in 0..ended.min(held.given as u64) {
                held.waiting.pop_front();
                held.counts.ended += 1;
                held.counts.answers_lost += 1;
            }
        }
        match self.actors.iter().position(|held| Some(held.slot) == ran) {
            Some(place) => {
                let held = self.actors.remove(place);
                events.push(Event::Stopped(held.member.actor, why, held.waiting.len() as u64));
            }
            None => {
                self.ends += 1;
                events.push(Event::Ended(why));
                if self.ends > RESTARTS_LIMIT {
                    self.actors.clear();
                    events.push(Event::GivenUp);
                }
            }
        }
        if !self.actors.is_empty() {
            self.start_process()?;
            events.push(Event::Restarted);
        }
        Ok(())
    }

    /// Gives the process what waits, as far as it has room.
    fn feed(&mut self) {
        let Some((_, socket)) = &self.process else {
            return;
        };
        for held in &mut self.actors {
            while held.given < WINDOW
                && let Some(message) = held.waiting.get(held.given)
            {
                // The body is copied into the packet; the message stays until it has ended.
                Packet::encode_message(message, &mut self.packet);
                // A socket without room has it in a later turn; one that is closed is noticed there, too.
                if wire::send(socket.as_fd(), &self.packet, SendFlags::DONTWAIT).is_err() {
                    return;
                }
                held.given += 1;
            }
        }
    }
}

/// CPU time that the threads of a process have used; 0 if it has ended.
fn used_by(process: u32) -> Nanos {
    let tasks = std::fs::read_dir(format!("/proc/{process}/task"));
    let used = tasks.into_iter().flatten().flatten().filter_map(|task| {
        let text = std::fs::read_to_string(task.path().join("schedstat")).ok()?;
        text.split_whitespace().next()?.parse::<u64>().ok()
    });
    Nanos(used.sum())
}

/// What reading from a process gave.
enum Heard {
    Nothing,
    Closed,
    Nonsense,
}

impl Drop for Group {
    fn drop(&mut self) {
        // It ends either way: by its parent's death.
        let _killed = self.kill();
    }
}
