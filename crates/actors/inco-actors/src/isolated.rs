//! Native actors of a side in processes of their own, by group (`actor-processes`): option `process=NAME`.
//!
//! The actor that the runtime has is a stand-in. It gives each message to the group's process and waits until it has
//! ended, so order, moves and statistics are those of any actor, and a core is busy meanwhile. The region is the one that
//! inco has made. A process that is ended takes the actor with it that ran; the others of the group begin again in
//! another process, with their objects.
//!
//! A process has the actors of its group that are on this side now. If one comes or leaves, another process begins with
//! the next message.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use actor_processes::{Event, Group, LIMITS, Member, Placed, Why};
use actor_runtime::{Actor, ActorId, Address, Context, Message, Progress};
use model::Nanos;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::Make;
use crate::options::Options;

/// Says to this program that it is the process of a group, whose supervisor is at its standard input.
const PROCESS: &str = "INCO_ACTORS_PROCESS";
/// Between two looks at a process that says nothing: whether its actor is over its budget.
const LOOKS: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 1_000_000,
};
/// What an actor may use for a message, unless `budget_ms` says otherwise.
const BUDGET_MS: u64 = 100;

/// Serves a group, if that is what this process is for: gives its exit status then.
pub(crate) fn serve(make: Make) -> Option<u8> {
    std::env::var_os(PROCESS)?;
    let served = actor_processes::serve(&|kind, actor| make(kind, actor.0));
    Some(match served {
        Ok(_) => 0,
        Err(error) => {
            crate::say(error);
            1
        }
    })
}

/// This program once more, for a group.
fn command() -> Command {
    let program = std::env::current_exe().unwrap_or_else(|_| "/proc/self/exe".into());
    let mut command = Command::new(program);
    command.args(std::env::args_os().skip(1)).env(PROCESS, "1");
    command
}

/// The actors of a side that have `process=NAME`, by group.
#[derive(Clone)]
pub(crate) struct Isolated {
    make: Make,
    regions: Arc<Mutex<BTreeMap<ActorId, OwnedFd>>>,
    groups: Arc<Mutex<BTreeMap<String, Arc<Mutex<Hosted>>>>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Isolated {
    pub(crate) fn new(make: Make) -> Isolated {
        Isolated {
            make,
            regions: Arc::default(),
            groups: Arc::default(),
        }
    }

    /// Notes the region of an actor, if it has a process.
    pub(crate) fn region(&self, kind: &str, actor: ActorId, region: &OwnedFd) -> std::io::Result<()> {
        let has_process = Options::of(kind).is_some_and(|(_, options)| options.text("process").is_some());
        if has_process {
            lock(&self.regions).insert(actor, region.try_clone()?);
        }
        Ok(())
    }

    /// Makes an actor of a kind: itself, or a stand-in for one in a process.
    pub(crate) fn make(&self, kind: &str, actor: ActorId) -> Option<Box<dyn Actor>> {
        let made = (self.make)(kind, actor.0)?;
        let (_, options) = Options::of(kind)?;
        let Some(name) = options.text("process") else {
            return Some(made);
        };
        let budget = Nanos::from_millis(options.number_or("budget_ms", BUDGET_MS)?.max(1));
        let region = lock(&self.regions).get(&actor)?.try_clone().ok()?;
        let hosted = Arc::clone(lock(&self.groups).entry(name.to_owned()).or_default());
        let number = {
            let mut hosted = lock(&hosted);
            hosted.made += 1;
            hosted.budget = budget.max(hosted.budget);
            hosted.group = None;
            hosted.stopped.remove(&actor);
            let number = hosted.made;
            let member = Resident {
                number,
                kind: kind.to_owned(),
                region,
                is_prepared: true,
            };
            hosted.members.insert(actor, member);
            number
        };
        Some(Box::new(StandIn {
            hosted,
            actor,
            number,
        }))
    }
}

/// An actor of a group that is on this side.
struct Resident {
    /// Of its stand-in.
    number: u64,
    kind: String,
    region: OwnedFd,
    /// Whether its state is in the region.
    is_prepared: bool,
}

/// A group on this side.
#[derive(Default)]
struct Hosted {
    /// Stand-ins that were made.
    made: u64,
    budget: Nanos,
    members: BTreeMap<ActorId, Resident>,
    /// None, until the next message, after an actor has come or left.
    group: Option<Group>,
    /// Why actors were stopped whose stand-in has not heard it.
    stopped: BTreeMap<ActorId, String>,
    /// What actors have sent that did not run for a stand-in: while they prepared their state.
    sent: Vec<Message>,
}

fn reason(why: Why) -> String {
    match why {
        Why::Budget(used) => format!(
            "it used {:.1} ms for a message, more than its budget; its process was ended",
            used.0 as f64 / 1e6
        ),
        Why::Signal(signal) => format!("its process ended with signal {signal} while it ran"),
        Why::Exit(code) => format!("its process ended with status {code} while it ran"),
        Why::Nonsense => "its process said what no process of a group says while it ran".to_owned(),
    }
}

impl Hosted {
    /// The group at work: another one, if who is in it has changed.
    fn group(&mut self) -> Result<&mut Group, String> {
        if self.group.is_none() {
            let mut placed = Vec::new();
            for (actor, of) in &self.members {
                placed.push(Placed {
                    member: Member {
                        limits: LIMITS,
                        ..Member::new(*actor, &of.kind)
                    },
                    region: of.region.try_clone().map_err(|error| error.to_string())?,
                    is_prepared: of.is_prepared,
                });
            }
            let group = Group::start_placed(command, self.budget, placed);
            self.group = Some(group.map_err(|error| error.to_string())?);
        }
        self.group
            .as_mut()
            .ok_or_else(|| "there is no process".to_owned())
    }

    /// Lets the group work until something is so, or the actor cannot go on.
    fn until(&mut self, actor: ActorId, is_so: impl Fn(&Group) -> bool) -> Result<(), String> {
        loop {
            let mut sent = Vec::new();
            let events = self.group()?.turn(clock::monotonic(), &mut sent);
            self.sent.append(&mut sent);
            for event in events.map_err(|error| error.to_string())? {
                self.note(event);
            }
            if let Some(reason) = self.stopped.get(&actor) {
                return Err(reason.clone());
            }
            let group = self.group()?;
            if is_so(group) {
                return Ok(());
            }
            if let Some(socket) = group.socket() {
                let mut sockets = [PollFd::from_borrowed_fd(socket, PollFlags::IN)];
                // One that says nothing is looked at in the next turn.
                let _ready = poll(&mut sockets, Some(&LOOKS));
            }
        }
    }

    fn note(&mut self, event: Event) {
        match event {
            Event::Stopped(of, why, _) => {
                crate::say(format_args!("{of}: {}", reason(why)));
                self.stopped.insert(of, reason(why));
                self.members.remove(&of);
            }
            Event::Ended(why) => {
                crate::say(format_args!(
                    "the process of a group has ended while no actor ran: {why:?}"
                ));
            }
            Event::GivenUp => {
                let all = std::mem::take(&mut self.members).into_keys();
                let why = "the process of its group ended too often";
                self.stopped.extend(all.map(|of| (of, why.to_owned())));
            }
            Event::Restarted => {}
        }
    }

    /// What an actor has sent so far.
    fn sent_by(&mut self, actor: ActorId) -> impl Iterator<Item = Message> {
        let (its, others) = std::mem::take(&mut self.sent)
            .into_iter()
            .partition(|of: &Message| of.from == Address::Actor(actor));
        self.sent = others;
        let its: Vec<Message> = its;
        its.into_iter()
    }
}

/// What the runtime has of an actor in a process.
struct StandIn {
    hosted: Arc<Mutex<Hosted>>,
    actor: ActorId,
    number: u64,
}

impl StandIn {
    /// Has the actor handle messages; gives how many have ended.
    fn handle(&self, messages: &[Message], context: &mut Context<'_>) -> (usize, Result<(), String>) {
        let mut hosted = lock(&self.hosted);
        let actor = self.actor;
        let ended = |group: &Group| group.counts(actor).map_or(0, |of| of.ended);
        let before = match hosted
            .until(actor, |_| true)
            .and_then(|()| hosted.group().map(|of| ended(of)))
        {
            Ok(before) => before,
            Err(reason) => return (0, Err(reason)),
        };
        let all = messages.len() as u64;
        for message in messages {
            let given = hosted.group().map(|group| group.deliver(message.clone()));
            if let Err(reason) = given.and_then(|given| given.map_err(|error| error.to_string())) {
                return (0, Err(reason));
            }
        }
        let mut last = 0;
        let result = {
            let done = std::cell::Cell::new(0);
            let result = hosted.until(actor, |group| {
                done.set(ended(group).saturating_sub(before).max(done.get()));
                done.get() >= all
            });
            last += done.get();
            result
        };
        for message in hosted.sent_by(actor) {
            context.send(message.to, message.kind, message.body);
        }
        let result = result.and_then(|()| {
            let objects = context.objects().ok_or("an actor in a process needs objects")?;
            objects.refresh().map_err(|error| error.to_string())
        });
        (last as usize, result)
    }
}

impl Actor for StandIn {
    fn init(&mut self, context: &mut Context<'_>) {
        let mut hosted = lock(&self.hosted);
        let actor = self.actor;
        if let Some(of) = hosted.members.get_mut(&actor) {
            of.is_prepared = false;
        }
        let mut prepared = hosted.until(actor, |group| group.is_prepared(actor) == Some(true));
        if let Some(of) = hosted.members.get_mut(&actor) {
            of.is_prepared = true;
        }
        if prepared.is_ok()
            && let Some(objects) = context.objects()
        {
            prepared = objects.refresh().map_err(|error| error.to_string());
        }
        if let Err(reason) = prepared {
            context.fail(reason);
        }
    }

    fn exec(&mut self, message: &mut Message, context: &mut Context<'_>) -> Progress {
        if let (_, Err(reason)) = self.handle(std::slice::from_ref(message), context) {
            context.fail(reason);
        }
        Progress::Done
    }

    /// The process says itself where each message begins and ends.
    fn exec_all(&mut self, messages: &mut [Message], context: &mut Context<'_>) -> usize {
        let (ended, result) = self.handle(messages, context);
        if let Err(reason) = result {
            context.fail(reason);
        }
        ended
    }
}

impl Drop for StandIn {
    fn drop(&mut self) {
        let mut hosted = lock(&self.hosted);
        // One that was made and not used takes nothing from the next.
        if hosted
            .members
            .get(&self.actor)
            .is_none_or(|of| of.number != self.number)
        {
            return;
        }
        hosted.members.remove(&self.actor);
        // It must not have the region any more. No message is under way: who runs one has the lock.
        hosted.group = None;
    }
}
