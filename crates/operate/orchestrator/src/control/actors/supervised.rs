//! The thread of a service of actors.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use actor_control::{Group, Happening, Phase, What, Why};
use actor_scheduling::Decision;
use actor_scheduling::groups::Decided;
use actor_scheduling::migration::{Case, Memory, Move, Observation};
use actor_supervisor::{DeclaredActor, Error, EventKind as Heard, Row, Runs, Supervisor, Wish, entry_names};
use api::types::{ActorRow, ActorSideRow, ActorsRow, Outcome, Refusal};
use clock::{monotonic, unix_ms};
use configuration::{ActorMember, Actors, Moves, Sides};
use keeper::{Entry, Keeper};
use model::{Action, ActorChange, ActorSide, EventKind, Nanos, SideChange};

use super::look::{DECISIONS_A_SECOND, HAPPENINGS_A_SECOND, Looks, Told, control_side, side_of};
use super::{Order, Shared, lock};
use crate::control::journal::new_event;
use crate::control::request::Asked;

/// Between two turns while both sides run: they report as often.
const TURN: Duration = Duration::from_millis(10);
/// The same while one of them begins.
const TURN_BEGINNING: Duration = Duration::from_millis(1);
/// Between two decisions about moves.
const DECIDES: Nanos = Nanos::from_millis(100);
/// Events that the control loop has not taken, at most: then new ones are left out.
const EVENTS_LIMIT: usize = 4_096;

/// A move that has begun.
#[derive(Debug, Default)]
struct Moving {
    /// When each phase began, in ns of the side's clock.
    phases: Vec<(Phase, u64)>,
}

impl Moving {
    /// A phase has begun: each does so once, whatever a side says.
    fn note(&mut self, phase: Phase, at_ns: u64) {
        if self.phases.iter().all(|(of, _)| *of != phase) {
            self.phases.push((phase, at_ns));
        }
    }
}

/// Why an actor is to move.
#[derive(Clone, Debug)]
struct Because {
    reason: String,
    case: Option<Box<serde_json::Value>>,
}

/// What an operator waits for.
struct Waiting {
    asked: Asked,
    /// Answers of the sides that are to come.
    left: usize,
    error: Option<String>,
    done: String,
    /// What is told of the actors once it is done.
    change: Option<(ActorChange, Vec<(u32, ActorSide)>)>,
}

/// What an operator wants, as the sides were told.
struct Begun {
    /// The commands, each with its actor.
    ids: Vec<(u64, u32)>,
    /// What is said when they are done.
    done: String,
    /// What is told of the actors then.
    change: Option<(ActorChange, Vec<(u32, ActorSide)>)>,
}

/// A service of actors: the supervisor of its sides, and what is decided about its actors.
pub(super) struct Supervised {
    service: String,
    actors: Arc<Actors>,
    sides: Sides,
    supervisor: Supervisor,
    keeper: Option<Arc<Keeper>>,
    /// What the keeper has: see [`Supervisor::changes`].
    kept: Option<u64>,
    shared: Shared,
    looks: Looks,
    /// What is remembered for the next decision.
    memory: Memory,
    decided: Nanos,
    moving: BTreeMap<u32, Moving>,
    because: BTreeMap<u32, Because>,
    moved: BTreeMap<u32, (u64, String)>,
    /// By side: how many decisions about groups may be told.
    decisions: [Told; 2],
    /// By side: how much of what happens to actors.
    happenings: [Told; 2],
    /// Actors that have ended: they end again where their side begins again.
    stopped: BTreeSet<u32>,
    /// Those of a side that has begun again.
    to_stop: BTreeSet<u32>,
    /// Actors whose message has run for too long, so that their side ends.
    looped: BTreeSet<u32>,
    starts: [u64; 2],
    ended_told: [bool; 2],
    waiting: HashMap<u64, u64>,
    wishes: HashMap<u64, Waiting>,
    next_wish: u64,
}

fn runs(sides: &Sides, side: ActorSide) -> Runs {
    Runs {
        policy: sides.policy,
        cores: sides.cores[side.index()],
        queues: sides.queues[side.index()],
        quantum: sides.quantum,
        tail_threshold: sides.tail_threshold,
        hysteresis_thousandths: (sides.hysteresis * 1_000.0) as u32,
        rest: sides.rest,
    }
}

/// What the supervisor is told of a service.
fn declared(actors: &Actors) -> actor_supervisor::Service {
    let plain = actor_objects::Limits { bytes: 0, objects: 1 };
    let mut service = actor_supervisor::Service::new([], plain);
    service.runs = ActorSide::BOTH.map(|side| runs(&actors.sides, side));
    service.entry = actors.entry() as u32;
    let numbered = || (0..).zip(&actors.members);
    let ports = numbered().flat_map(|(number, of)| of.ports.iter().map(move |port| (*port, number)));
    service.routes = ports.collect();
    let declare = |(actor, of): (u32, &ActorMember)| DeclaredActor {
        declaration: actor_control::Declaration {
            actor,
            kind: actors.kind_of(of),
            mailbox_limit: of.mailbox,
            held_limit: of.held,
        },
        side: control_side(of.side),
        region: actor_objects::Limits {
            bytes: of.region_bytes,
            objects: of.objects,
        },
    };
    service.actors = numbered().map(declare).collect();
    service
}

/// What an earlier run has kept of a service.
fn kept(keeper: &Keeper, service: &str, actors: usize) -> Vec<Entry> {
    let entries = entry_names(service, actors).map(|name| keeper.take_one(&name));
    // One that is missing shows when they are used.
    entries.filter_map(|entry| entry.ok().flatten()).collect()
}

impl Supervised {
    /// A service that begins, or goes on if an earlier run has kept it.
    ///
    /// # Errors
    /// There is no memory for the regions.
    pub(super) fn new(
        service: &str,
        actors: Arc<Actors>,
        keeper: Option<Arc<Keeper>>,
        shared: Shared,
    ) -> Result<Supervised, Error> {
        let entries = keeper
            .as_ref()
            .map(|keeper| kept(keeper, service, actors.members.len()));
        let entries = entries.filter(|entries| !entries.is_empty());
        let supervisor = match entries.map(|entries| Supervisor::resume(declared(&actors), entries)) {
            Some(Ok(supervisor)) => supervisor,
            Some(Err(error @ Error::Kept(_))) => {
                tracing::warn!(service, %error, "the actors of the run before are lost; the service begins anew");
                Supervisor::new(declared(&actors))?
            }
            Some(Err(error)) => return Err(error),
            None => Supervisor::new(declared(&actors))?,
        };
        let supervised = Supervised {
            service: service.to_owned(),
            sides: actors.sides.clone(),
            actors,
            supervisor,
            keeper,
            kept: None,
            shared,
            looks: Looks::default(),
            memory: Memory::default(),
            decided: Nanos::ZERO,
            moving: BTreeMap::new(),
            because: BTreeMap::new(),
            moved: BTreeMap::new(),
            decisions: [Told::new(DECISIONS_A_SECOND); 2],
            happenings: [Told::new(HAPPENINGS_A_SECOND); 2],
            stopped: BTreeSet::new(),
            to_stop: BTreeSet::new(),
            looped: BTreeSet::new(),
            starts: [0; 2],
            ended_told: [true; 2],
            waiting: HashMap::new(),
            wishes: HashMap::new(),
            next_wish: 0,
        };
        lock(&supervised.shared).row = supervised.row(&supervised.supervisor.rows());
        Ok(supervised)
    }

    /// Runs until the control loop has no more orders.
    pub(super) fn run(mut self, inbox: &Receiver<Order>) {
        loop {
            let rest = match self.both_run() {
                true => TURN,
                false => TURN_BEGINNING,
            };
            let mut next = match inbox.recv_timeout(rest) {
                Ok(order) => Some(order),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => return self.keep(),
            };
            while let Some(order) = next {
                self.take(order);
                next = inbox.try_recv().ok();
            }
            self.turn();
        }
    }

    fn both_run(&self) -> bool {
        actor_control::Side::BOTH
            .iter()
            .all(|side| self.supervisor.is_running(*side))
    }

    fn take(&mut self, order: Order) {
        match order {
            Order::Began(side, path) => {
                self.ended_told[side.index()] = false;
                self.supervisor.began(control_side(side), path, monotonic());
            }
            Order::Ended(side) => {
                if let Err(error) = self.supervisor.ended(control_side(side)) {
                    self.fail(&error);
                }
            }
            Order::Act(asked) => self.act(asked),
            Order::Sides(sides) => self.sides = *sides,
        }
    }

    fn fail(&self, error: &Error) {
        self.tell(EventKind::Failure {
            what: "actors".to_owned(),
            reason: format!("{error}; it is tried again"),
        });
    }

    fn tell(&self, kind: EventKind) {
        let mut said = lock(&self.shared);
        if said.events.len() < EVENTS_LIMIT {
            said.events.push(new_event(Some(self.service.clone()), kind));
        }
    }

    fn name(&self, actor: u32) -> String {
        let member = self.actors.members.get(actor as usize);
        member.map_or_else(|| actor.to_string(), |of| of.name.clone())
    }

    fn tell_of(
        &self,
        actor: u32,
        side: ActorSide,
        change: ActorChange,
        because: Because,
        took_us: Option<u64>,
    ) {
        self.tell(EventKind::Actor {
            actor: self.name(actor),
            side,
            change,
            reason: because.reason,
            took_us,
            lost: None,
            case: because.case,
        });
    }

    /// Keeps what is to outlive this process, if that has changed.
    fn keep(&mut self) {
        let Some(keeper) = &self.keeper else { return };
        let changes = self.supervisor.changes();
        if self.kept == Some(changes) {
            return;
        }
        let entries = match self.supervisor.entries(&self.service) {
            Ok(entries) => entries,
            Err(error) => return tracing::warn!(%error, "actors are not kept for the next run"),
        };
        for entry in &entries {
            let files: Vec<BorrowedFd<'_>> = entry.files.iter().map(|file| file.as_fd()).collect();
            if let Err(error) = keeper.keep(&entry.name, &entry.note, &files) {
                return tracing::warn!(%error, "actors are not kept for the next run");
            }
        }
        self.kept = Some(changes);
    }

    fn turn(&mut self) {
        let now = monotonic();
        self.keep();
        if let Err(error) = self.supervisor.turn(now) {
            self.fail(&error);
        }
        for event in self.supervisor.take_events() {
            self.hear(side_of(event.side), event.kind);
        }
        for answer in self.supervisor.take_answers() {
            self.take_answer(answer.id, answer.error);
        }
        let rows = self.supervisor.rows();
        self.looks.take(&rows, now);
        self.stop_again(&rows);
        self.look_for_loops(&rows);
        self.decide(&rows, now);
        let row = self.row(&rows);
        let broken = ActorSide::BOTH.map(|side| self.supervisor.broken(control_side(side)));
        let mut said = lock(&self.shared);
        for (to_end, is_broken) in said.to_end.iter_mut().zip(broken) {
            *to_end |= is_broken;
        }
        // The control loop knows which instances there are.
        let known: Vec<_> = said
            .row
            .sides
            .iter()
            .map(|of| (of.instance, of.place.clone()))
            .collect();
        said.row = row;
        for (side, (instance, place)) in said.row.sides.iter_mut().zip(known) {
            (side.instance, side.place) = (instance, place);
        }
    }

    /// Hears what the supervisor says.
    fn hear(&mut self, side: ActorSide, kind: Heard) {
        let at = side.index();
        match kind {
            Heard::Started { again } => {
                self.starts[at] += 1;
                self.to_stop.extend(&self.stopped);
                let actors = self.supervisor.rows();
                let here = actors.iter().filter(|of| of.side == Some(control_side(side)));
                let reason = match again {
                    true => format!("its process was replaced; {} actors go on there", here.count()),
                    false => "its first process".to_owned(),
                };
                self.tell_side(side, SideChange::Started, reason);
            }
            Heard::Ended { interrupted } => {
                self.looped.clear();
                // A side whose process never began is replaced by the engine, which says so.
                if std::mem::replace(&mut self.ended_told[at], true) {
                    return;
                }
                let names: Vec<String> = interrupted.iter().map(|actor| self.name(*actor)).collect();
                let reason = match names.is_empty() {
                    true => "no message was under way; inco starts another process".to_owned(),
                    false => format!(
                        "a message was under way in {}; inco starts another process",
                        names.join(", ")
                    ),
                };
                self.tell_side(side, SideChange::Ended, reason);
            }
            Heard::Broken { reason } => self.tell_side(side, SideChange::Broken, reason),
            Heard::Actor(happening) => self.hear_of_actor(side, happening),
            Heard::Decided(decided) => self.hear_of_groups(side, *decided),
        }
    }

    fn tell_side(&self, side: ActorSide, change: SideChange, reason: String) {
        self.tell(EventKind::ActorSide {
            side,
            change,
            reason,
            case: None,
        });
    }

    /// Tells what a side says of an actor. One that says it again and again does not fill the event log.
    fn tell_heard(
        &mut self,
        actor: u32,
        side: ActorSide,
        change: ActorChange,
        because: Because,
        took_us: Option<u64>,
    ) {
        self.tell_lost(actor, side, change, (because, None), took_us);
    }

    /// The same, with how many messages were lost.
    fn tell_lost(
        &mut self,
        actor: u32,
        side: ActorSide,
        change: ActorChange,
        (because, lost): (Because, Option<u64>),
        took_us: Option<u64>,
    ) {
        let Some(left_out) = self.happenings[side.index()].next(monotonic()) else {
            return;
        };
        let Because { mut reason, case } = because;
        if left_out > 0 {
            reason.push_str(&format!("; {left_out} events before this one were not told"));
        }
        self.tell(EventKind::Actor {
            actor: self.name(actor),
            side,
            change,
            reason,
            took_us,
            lost,
            case,
        });
    }

    fn hear_of_actor(&mut self, side: ActorSide, of: Happening) {
        let Happening { actor, at_ns, what } = of;
        let plain = |reason: String| Because { reason, case: None };
        match what {
            What::Phase(phase) => {
                if phase == Phase::Prepare {
                    self.moving.insert(actor, Moving::default());
                    let because = self.because.get(&actor).cloned();
                    let because = because.unwrap_or_else(|| plain("by the word of the side".to_owned()));
                    self.tell_heard(actor, side, ActorChange::MoveBegun, because, None);
                }
                self.moving.entry(actor).or_default().note(phase, at_ns);
            }
            What::Moved => {
                let (phases, took_us) = self.phases_of(actor, at_ns);
                let because = self
                    .because
                    .remove(&actor)
                    .map_or_else(String::new, |of| of.reason);
                self.moved.insert(actor, (unix_ms(), because));
                self.tell_heard(actor, side, ActorChange::MoveEnded, plain(phases), Some(took_us));
            }
            What::Stayed(why) => {
                let (phases, took_us) = self.phases_of(actor, at_ns);
                self.because.remove(&actor);
                let why = match why {
                    Why::Refused => "the other side has no region for it",
                    Why::Failed => "the other side could not take its objects",
                    Why::Cancelled => "it took too long",
                    Why::PeerEnded => "the process of the other side has ended",
                };
                let reason = format!("{why}; {phases}");
                self.tell_heard(actor, side, ActorChange::MoveFailed, plain(reason), Some(took_us));
            }
            What::Came => {}
            What::Lost => {
                let reason =
                    "its process ended with a message under way, or its region cannot be used".to_owned();
                self.tell_heard(actor, side, ActorChange::Lost, plain(reason), None);
            }
            What::Failed { reason, lost } => {
                self.stopped.insert(actor);
                let lost = (lost > 0).then_some(lost);
                self.tell_lost(actor, side, ActorChange::Stopped, (plain(reason), lost), None);
            }
        }
    }

    /// How long each phase of a move took that has ended then, and all of them, in microseconds.
    fn phases_of(&mut self, actor: u32, ended_ns: u64) -> (String, u64) {
        let phases = self.moving.remove(&actor).unwrap_or_default().phases;
        let ends = phases.iter().skip(1).map(|(_, at)| *at).chain([ended_ns]);
        let texts: Vec<String> = (phases.iter().zip(ends))
            .map(|((phase, began), end)| {
                let name = match phase {
                    Phase::Prepare => "prepare",
                    Phase::Ready => "ready",
                    Phase::Gone => "gone",
                    Phase::Clean => "clean",
                };
                format!("{name} {:.2} ms", end.saturating_sub(*began) as f64 / 1e6)
            })
            .collect();
        let began = phases.first().map_or(ended_ns, |(_, at)| *at);
        (texts.join(", "), ended_ns.saturating_sub(began) / 1_000)
    }

    /// A side has changed groups of actors or cores.
    fn hear_of_groups(&mut self, side: ActorSide, mut decided: Decided) {
        for seen in &mut decided.case.actors {
            seen.name = Some(self.name(seen.actor.0));
        }
        let case = serde_json::to_value(&decided.case).ok().map(Box::new);
        for decision in &decided.decisions {
            let Some(left_out) = self.decisions[side.index()].next(monotonic()) else {
                continue;
            };
            let (mut reason, case) = (decided.case.reason(*decision), case.clone());
            if left_out > 0 {
                reason.push_str(&format!("; {left_out} decisions before this one were not told"));
            }
            match decision {
                Decision::Actor(actor, group) => {
                    let change = match group {
                        actor_scheduling::Group::Drr => ActorChange::Downgraded,
                        actor_scheduling::Group::Fcfs => ActorChange::Upgraded,
                    };
                    self.tell_of(actor.0, side, change, Because { reason, case }, None);
                }
                Decision::Core(_, group) => self.tell(EventKind::ActorSide {
                    side,
                    change: match group {
                        actor_scheduling::Group::Drr => SideChange::CoreToRound,
                        actor_scheduling::Group::Fcfs => SideChange::CoreToLine,
                    },
                    reason,
                    case,
                }),
            }
        }
    }

    /// An actor that has ended does not begin again with its side.
    fn stop_again(&mut self, rows: &[Row]) {
        for row in rows.iter().filter(|row| row.side.is_some()) {
            if row.line.is_stopped {
                self.stopped.insert(row.actor);
            } else if self.to_stop.contains(&row.actor)
                && self.supervisor.command(row.actor, Wish::Stop).is_ok()
            {
                self.to_stop.remove(&row.actor);
            }
        }
    }

    /// Ends a side one of whose messages has run for too long: a thread cannot be ended from outside.
    fn look_for_loops(&mut self, rows: &[Row]) {
        for row in rows {
            let Some(side) = row.side.map(side_of) else {
                continue;
            };
            let ran = Nanos(row.line.running_ns);
            if ran <= self.sides.budget || !self.looped.insert(row.actor) {
                continue;
            }
            let reason = format!(
                "a message has run for {:.1} s, and may for {:.1} s; its side begins again without it",
                ran.as_secs_f64(),
                self.sides.budget.as_secs_f64(),
            );
            let because = Because { reason, case: None };
            self.tell_of(row.actor, side, ActorChange::Stopped, because, None);
            lock(&self.shared).to_end[side.index()] = true;
        }
    }

    /// Decides whether actors move.
    fn decide(&mut self, rows: &[Row], now: Nanos) {
        if now.since(self.decided) < DECIDES {
            return;
        }
        self.decided = now;
        let actors = self.looks.loads(rows, &self.actors.members, now);
        if self.sides.moves == Moves::Manual {
            self.memory = Memory::default();
            return;
        }
        let case = Case {
            settings: self.sides.migration,
            memory: self.memory,
            observation: Observation {
                now,
                both_run: self.both_run(),
                card_cores: self.sides.cores[ActorSide::Card.index()],
                actors,
            },
        };
        let (memory, decided) = case.decide();
        self.memory = memory;
        if let Some(decided) = decided {
            self.carry_out(&case, &decided);
        }
    }

    fn carry_out(&mut self, case: &Case, decided: &Move) {
        let because = Because {
            reason: decided.reason.clone(),
            case: serde_json::to_value(case).ok().map(Box::new),
        };
        for name in &decided.actors {
            let Some(actor) = self.actors.number(name).map(|number| number as u32) else {
                continue;
            };
            match self
                .supervisor
                .command(actor, Wish::Move(control_side(decided.to)))
            {
                Ok(_) => {
                    self.because.insert(actor, because.clone());
                }
                Err(error) => {
                    let because = Because {
                        reason: format!("{error}; {}", because.reason),
                        case: because.case.clone(),
                    };
                    let from = decided.to.other();
                    self.tell_of(actor, from, ActorChange::MoveFailed, because, None);
                }
            }
        }
    }

    /// Begins what an operator wants.
    fn act(&mut self, asked: Asked) {
        match self.begin(&asked.action) {
            Ok(Begun { ids, done, change }) => {
                if ids.is_empty() {
                    lock(&self.shared).answers.push((asked, Ok(Outcome::new(done))));
                    return;
                }
                let by = format!("{} wants it", asked.caller.name);
                self.next_wish += 1;
                for (id, actor) in &ids {
                    self.waiting.insert(*id, self.next_wish);
                    if matches!(asked.action, Action::ActorMove { .. }) {
                        let because = Because {
                            reason: by.clone(),
                            case: None,
                        };
                        self.because.insert(*actor, because);
                    }
                }
                let waiting = Waiting {
                    left: ids.len(),
                    asked,
                    error: None,
                    done,
                    change,
                };
                self.wishes.insert(self.next_wish, waiting);
            }
            Err(refusal) => lock(&self.shared).answers.push((asked, Err(refusal))),
        }
    }

    /// Tells the sides what an action wants.
    fn begin(&mut self, action: &Action) -> Result<Begun, Refusal> {
        let (name, wish, change) = match action {
            Action::ActorMove { actor, to, .. } => (actor, Wish::Move(control_side(*to)), None),
            Action::ActorPause { actor, .. } => (actor, Wish::Pause, Some(ActorChange::Paused)),
            Action::ActorResume { actor, .. } => (actor, Wish::Resume, Some(ActorChange::Resumed)),
            Action::ActorStop { actor, .. } => (actor, Wish::Stop, None),
            _ => return Err(Refusal::new("this action is not about an actor", "")),
        };
        let members = &self.actors.members;
        let Some(number) = self.actors.number(name) else {
            let known: Vec<&str> = members.iter().map(|of| of.name.as_str()).collect();
            return Err(Refusal::new(
                format!("{} has no actor {name:?}", self.service),
                format!("its actors are {}", known.join(", ")),
            ));
        };
        let refused = |error: Error| Refusal::new(error.to_string(), "`inco actors` shows where actors are");
        let mut ids = Vec::new();
        let mut at = Vec::new();
        let group = members.get(number).and_then(|of| of.group.clone());
        let moves = matches!(wish, Wish::Move(_));
        let meant = |(index, of): &(usize, &ActorMember)| {
            *index == number || moves && group.is_some() && of.group == group
        };
        let mut meant: Vec<u32> = (members.iter().enumerate().filter(meant))
            .map(|(index, _)| index as u32)
            .collect();
        // The named one first: if it may not, none of its group moves.
        meant.sort_by_key(|actor| *actor as usize != number);
        for actor in meant {
            let is_it = actor as usize == number;
            let side = self.supervisor.side_of(actor).map(side_of);
            match self.supervisor.command(actor, wish) {
                Ok(id) => {
                    ids.push((id, actor));
                    at.extend(side.map(|side| (actor, side)));
                }
                // Those of its group may be there.
                Err(Error::There(..)) if !is_it || group.is_some() => {}
                Err(error) if is_it => return Err(refused(error)),
                Err(error) => tracing::debug!(%error, "an actor of a group does not move"),
            }
        }
        let done = match action {
            Action::ActorMove { to, .. } if ids.is_empty() => {
                format!("{name} is on the {} already", to.name())
            }
            Action::ActorMove { to, .. } => format!("{name} moves to the {}", to.name()),
            Action::ActorPause { .. } => format!("{name} is paused"),
            Action::ActorResume { .. } => format!("{name} goes on"),
            _ => format!("{name} is stopped"),
        };
        let change = change.map(|change| (change, at));
        Ok(Begun { ids, done, change })
    }

    /// A side has answered.
    fn take_answer(&mut self, id: u64, error: Option<String>) {
        // Those of moves by load have nobody who waits; a refusal of them is tried again by the next decision.
        let Some(wish) = self.waiting.remove(&id) else {
            return;
        };
        let Some(waiting) = self.wishes.get_mut(&wish) else {
            return;
        };
        waiting.left -= 1;
        waiting.error = error.or(waiting.error.take());
        if waiting.left > 0 {
            return;
        }
        let Some(waiting) = self.wishes.remove(&wish) else {
            return;
        };
        let Waiting {
            asked,
            error,
            done,
            change,
            ..
        } = waiting;
        if let (None, Some((change, actors))) = (&error, change) {
            for (actor, side) in actors {
                let because = Because {
                    reason: format!("{} wants it", asked.caller.name),
                    case: None,
                };
                self.tell_of(actor, side, change, because, None);
            }
        }
        let result = match error {
            None => Ok(Outcome::new(done)),
            Some(error) => Err(Refusal::new(error, "`inco actors` shows the states of actors")),
        };
        lock(&self.shared).answers.push((asked, result));
    }

    fn row(&self, rows: &[Row]) -> ActorsRow {
        let side = |side: ActorSide| {
            let counts = self.supervisor.counts(control_side(side));
            let here = rows.iter().filter(|row| row.side == Some(control_side(side)));
            let load: f64 = here.map(|row| self.looks.shown(row.actor).load).sum();
            let cores = self.sides.cores[side.index()];
            ActorSideRow {
                side,
                place: None,
                instance: None,
                runs: self.supervisor.is_running(control_side(side)),
                cores,
                policy: policy_name(&self.sides).to_owned(),
                // The sum of no loads is -0.0.
                busy: (load.abs() / f64::from(cores.max(1))).min(1.0),
                starts: self.starts[side.index()],
                requests: counts.requests,
                answers: counts.answers,
                malformed: counts.malformed,
                unknown_clients: counts.unknown_clients,
                unsent: counts.unsent,
                refused: counts.refused,
            }
        };
        ActorsRow {
            service: self.service.clone(),
            moves: self.sides.moves.name().to_owned(),
            sides: ActorSide::BOTH.map(side).into(),
            actors: rows.iter().filter_map(|row| self.actor_row(row)).collect(),
        }
    }

    fn actor_row(&self, row: &Row) -> Option<ActorRow> {
        let member = self.actors.members.get(row.actor as usize)?;
        let (line, shown) = (&row.line, self.looks.shown(row.actor));
        let state = if row.is_lost {
            "lost"
        } else if line.is_stopped {
            "stopped"
        } else if line.phase.is_some() || self.moving.contains_key(&row.actor) {
            "moves"
        } else if row.side.is_none() {
            "waits"
        } else if line.is_paused {
            "paused"
        } else {
            "runs"
        };
        let moved = self.moved.get(&row.actor);
        Some(ActorRow {
            actor: member.name.clone(),
            kind: member.kind.clone(),
            group: member.group.clone(),
            side: row.side.map(side_of),
            state: state.to_owned(),
            mode: match line.group {
                Group::Fcfs => "fcfs".to_owned(),
                Group::Drr => "drr".to_owned(),
            },
            mailbox: line.waiting,
            held: row.held,
            mean_us: line.mean_ns as f64 / 1e3,
            tail_us: line.tail_ns as f64 / 1e3,
            requests_per_s: shown.rate,
            load: shown.load,
            served: shown.served,
            run_s: shown.run_s,
            refused: line.refused,
            objects: line.objects,
            object_bytes: line.object_bytes,
            migrations: row.moves,
            moved_unix_ms: moved.map(|(at, _)| *at),
            moved_because: moved
                .map(|(_, because)| because.clone())
                .filter(|of| !of.is_empty()),
        })
    }
}

fn policy_name(sides: &Sides) -> &'static str {
    use actor_scheduling::PolicyName;
    match sides.policy {
        PolicyName::Fcfs => "fcfs",
        PolicyName::Drr => "drr",
        PolicyName::Hybrid => "hybrid",
        PolicyName::Preemptive => "preemptive",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = r#"[[uplink]]
name = "wan"
device = "memif:wan.sock"
[service.kv]
kind = "actors"
match = { proto = "udp", dst = "10.0.0.70" }
memory = "64MiB"
[[service.kv.actors]]
name = "count"
kind = "counter"
ports = "7000"
region = "64KiB"
"#;

    #[test]
    fn a_side_that_says_the_same_all_the_time_does_not_fill_the_event_log() {
        let configuration = crate::load::parse(FILE, "inco.toml").unwrap();
        let part = configuration.services[0].part.as_ref().unwrap();
        let shared = Shared::default();
        let mut of = Supervised::new("kv", Arc::clone(&part.of), None, Arc::clone(&shared)).unwrap();
        for at_ns in 0..3_000 {
            for what in [What::Phase(Phase::Prepare), What::Lost] {
                let actor = 0;
                of.hear_of_actor(ActorSide::Card, Happening { actor, at_ns, what });
            }
        }
        // The test may take more than a second.
        let told = lock(&shared).events.len();
        assert!((512..3_000).contains(&told), "{told}");
    }

    #[test]
    fn a_side_that_repeats_itself_takes_no_memory() {
        let mut moving = Moving::default();
        let all = [Phase::Prepare, Phase::Ready, Phase::Gone, Phase::Clean];
        for at in 0..1_000 {
            moving.note(all[at % 4], at as u64);
        }
        let expected: Vec<(Phase, u64)> = all.into_iter().zip(0..).collect();
        assert_eq!(moving.phases, expected);
    }
}
