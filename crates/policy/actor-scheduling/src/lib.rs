//! Which core runs which actor next: the scheduler of iPipe (Liu and others, SIGCOMM 2019, section 3.2 and algorithms
//! 1 and 2) and its peers, as pure code. It reads no clock and holds no message: the time and what happened are
//! arguments.
//!
//! Actors receive messages. Actors of the group [`Group::Fcfs`] share a line, first come, first served; the cores
//! of that group serve it. It is one for all of them, or one for each, between which they steal ([`Line`]). Each actor of the group [`Group::Drr`] has a mailbox; the cores of that group share one
//! round of these mailboxes ([`Round`], deficit round-robin). A policy decides which actors and cores are in which
//! group.
//!
//! Use, by a runtime or a simulator:
//! 1. A free core asks [`Scheduler::serves`] what it may serve. It takes a message of the line, or of the mailbox
//!    that [`Round::next`] names. If [`Scheduler::slice`] returns a time, the message runs for that time at most.
//! 2. When the message has run, the core calls [`Scheduler::step`], which returns decisions: an actor changes its
//!    group, together with its waiting messages, or a core changes its group. [`Scheduler::case`] has what they depend
//!    on.
//!
//! Which actor moves to the other side of a service is a step of its own: [`migration`].
//!
//! To add a policy: one file with a type that implements [`Policy`], its `mod`, and a line in [`PolicyName`] and in
//! [`PolicyName::policy`].
#![forbid(unsafe_code)]

mod drr;
mod fcfs;
pub mod groups;
mod hybrid;
mod line;
pub mod migration;
mod preemptive;
mod round;
mod statistics;

use std::fmt;

use model::Nanos;
use serde::{Deserialize, Serialize};

use groups::Case;
pub use line::{Line, Queues, Source};
pub use round::{Round, Turn};
pub use statistics::{ActorStatistics, Moments};

/// An actor: its place in the scheduler's list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ActorId(pub u32);

impl ActorId {
    /// The place as an index.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for ActorId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "actor {}", self.0)
    }
}

/// A core of the scheduler, counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct CoreId(pub u16);

impl CoreId {
    /// The number as an index.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// How messages are served: of actors and of cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Group {
    /// First come, first served, from the [`Line`].
    Fcfs,
    /// Deficit round-robin over mailboxes (Shreedhar and Varghese, SIGCOMM 1995).
    Drr,
}

/// The name of a policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PolicyName {
    /// First come, first served, by any free core.
    #[default]
    Fcfs,
    /// Deficit round-robin over all actors.
    Drr,
    /// iPipe's: first come, first served for actors with low dispersion, deficit round-robin for the others.
    Hybrid,
    /// Deficit round-robin that interrupts a message when its slice has ended.
    Preemptive,
}

impl PolicyName {
    /// All of them.
    pub const ALL: [PolicyName; 4] = [
        PolicyName::Fcfs,
        PolicyName::Drr,
        PolicyName::Hybrid,
        PolicyName::Preemptive,
    ];

    fn policy(self) -> Box<dyn Policy + Send> {
        match self {
            PolicyName::Fcfs => Box::new(fcfs::Fcfs),
            PolicyName::Drr => Box::new(drr::Drr),
            PolicyName::Hybrid => Box::new(hybrid::Hybrid::default()),
            PolicyName::Preemptive => Box::new(preemptive::Preemptive),
        }
    }
}

/// What a scheduler is made with.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The policy.
    pub policy: PolicyName,
    /// Cores; at least 1.
    pub cores: u16,
    /// Actors.
    pub actors: u32,
    /// What an actor may run in each round. iPipe takes the computing headroom of the card for the actor's mean request
    /// (`cores × (size + 20) × 8 ÷ bandwidth`). With [`PolicyName::Preemptive`] also the slice. More than 0.
    pub quantum: Nanos,
    /// The tail of response times (mean + 3 standard deviations) above which the group first come, first served loses
    /// an actor.
    pub tail_threshold: Nanos,
    /// Margin below the threshold at which an actor returns, as a share of it: iPipe's α.
    pub hysteresis: f64,
}

/// What a core has just done.
#[derive(Clone, Copy, Debug)]
pub struct Served {
    /// The core.
    pub core: CoreId,
    /// The group whose message it was: a core of the round may have helped with the line.
    pub from: Group,
    /// The actor.
    pub actor: ActorId,
    /// How long it ran.
    pub ran: Nanos,
    /// Where the message has ended: its response time, from its arrival, and its whole run time.
    pub ended: Option<Ended>,
}

/// What a message took.
#[derive(Clone, Copy, Debug)]
pub struct Ended {
    /// From its arrival to its end.
    pub response: Nanos,
    /// Its run time in all slices.
    pub service: Nanos,
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Decision {
    /// The actor's messages go to this group from now on, also those that wait.
    Actor(ActorId, Group),
    /// The core serves this group from now on.
    Core(CoreId, Group),
}

/// A policy: how cores and actors are divided.
trait Policy: fmt::Debug {
    /// The group in which all actors and cores start.
    fn initial(&self) -> Group;

    /// How long a message may run before it is interrupted.
    fn slice(&self, settings: &Settings) -> Option<Nanos> {
        let _ = settings;
        None
    }

    /// Hears what a core has done. Gives what is to be decided on, from time to time.
    fn step(&mut self, view: &View<'_>, served: &Served, now: Nanos) -> Option<Case> {
        let _ = (view, served, now);
        None
    }
}

/// What a policy sees.
struct View<'a> {
    settings: &'a Settings,
    actors: &'a [ActorStatistics],
    actor_groups: &'a [Group],
    core_groups: &'a [Group],
}

impl View<'_> {
    fn cores(&self, group: Group) -> usize {
        self.core_groups.iter().filter(|of| **of == group).count()
    }
}

/// The scheduler of one side.
#[derive(Debug)]
pub struct Scheduler {
    settings: Settings,
    policy: Box<dyn Policy + Send>,
    actors: Vec<ActorStatistics>,
    actor_groups: Vec<Group>,
    core_groups: Vec<Group>,
    /// By core: how long it helps with the line before it serves the round again, in nanoseconds.
    owed: Vec<u64>,
    decisions: Vec<Decision>,
    /// On what they were decided.
    case: Option<Case>,
}

impl Scheduler {
    /// A scheduler whose actors have no message yet.
    pub fn new(settings: Settings) -> Scheduler {
        let policy = settings.policy.policy();
        let initial = policy.initial();
        Scheduler {
            actors: vec![ActorStatistics::default(); settings.actors as usize],
            actor_groups: vec![initial; settings.actors as usize],
            core_groups: vec![initial; usize::from(settings.cores)],
            owed: vec![0; usize::from(settings.cores)],
            decisions: Vec::new(),
            case: None,
            policy,
            settings,
        }
    }

    /// The group of an actor; that of a stranger is [`Group::Fcfs`].
    pub fn group_of(&self, actor: ActorId) -> Group {
        self.actor_groups
            .get(actor.index())
            .copied()
            .unwrap_or(Group::Fcfs)
    }

    /// What a free core may serve, in this order. A core of the round helps with the line: when no mailbox has a message,
    /// so that none idles, and after each message of the round for as long as that ran, since messages of the line are
    /// short and wait for it. The line's cores do not help with the round, where long messages are.
    pub fn serves(&self, core: CoreId) -> &'static [Group] {
        match self.core_groups.get(core.index()) {
            Some(Group::Drr) if self.owed[core.index()] > 0 => &[Group::Fcfs, Group::Drr],
            Some(Group::Drr) => &[Group::Drr, Group::Fcfs],
            _ => &[Group::Fcfs],
        }
    }

    /// The cores of the group first come, first served.
    pub fn line_cores(&self) -> impl Iterator<Item = CoreId> {
        let cores = (0..).map(CoreId).zip(&self.core_groups);
        cores.filter_map(|(core, group)| (*group == Group::Fcfs).then_some(core))
    }

    /// How long a message may run before it is interrupted; its rest then waits for its actor's next turn. An actor that
    /// serves its messages in order, as in the runtime, goes on with it; otherwise it waits behind the other messages of
    /// the mailbox, as in the simulator.
    pub fn slice(&self) -> Option<Nanos> {
        self.policy.slice(&self.settings)
    }

    /// What the round needs to know of an actor.
    pub fn turn(&self, actor: ActorId) -> Turn {
        let service = (self.actors.get(actor.index())).map_or(0.0, |actor| actor.service().mean());
        let longest = self.slice().unwrap_or(Nanos::MAX);
        Turn {
            quantum: self.settings.quantum,
            cost: Nanos(service as u64).min(longest),
        }
    }

    /// The statistics of an actor.
    pub fn statistics(&self, actor: ActorId) -> Option<&ActorStatistics> {
        self.actors.get(actor.index())
    }

    /// What the decisions of the last step depend on; nothing if there were none.
    pub fn case(&self) -> Option<&Case> {
        self.case.as_ref()
    }

    /// Hears what a core has done; returns what follows from it, in order.
    pub fn step(&mut self, served: &Served, now: Nanos) -> &[Decision] {
        self.decisions.clear();
        self.case = None;
        let Some(actor) = self.actors.get_mut(served.actor.index()) else {
            return &[];
        };
        if let Some(ended) = &served.ended {
            actor.count(ended);
        }
        if let Some(owed) = self.owed.get_mut(served.core.index()) {
            *owed = match served.from {
                Group::Drr => served.ran.0,
                Group::Fcfs => owed.saturating_sub(served.ran.0),
            };
        }
        let view = View {
            settings: &self.settings,
            actors: &self.actors,
            actor_groups: &self.actor_groups,
            core_groups: &self.core_groups,
        };
        let Some(case) = self.policy.step(&view, served, now) else {
            return &[];
        };
        self.decisions = case.decide();
        if !self.decisions.is_empty() {
            self.case = Some(case);
        }
        for decision in &self.decisions {
            match *decision {
                Decision::Actor(actor, group) => self.actor_groups[actor.index()] = group,
                Decision::Core(core, group) => self.core_groups[core.index()] = group,
            }
        }
        &self.decisions
    }
}
