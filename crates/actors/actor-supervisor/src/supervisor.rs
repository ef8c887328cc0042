//! The two sides, how far each is, and what follows.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;

use actor_control::{
    ACTORS_LIMIT, Begin, Command, Counts, FromSide, Happening, InOfInco, Line, Noted, Received, Settings,
    Side, ToSide, VERSION, What,
};
use actor_migration::Record;
use actor_scheduling::Decision;
use actor_scheduling::groups::Decided;
use keeper::Entry;
use model::Nanos;

use crate::kept;
use crate::service::{Owned, Service};

/// How long a side may take for an answer, or to listen.
pub const PATIENCE: Nanos = Nanos::from_secs(10);
/// Messages of a side that are heard in a turn; others wait in the socket.
const HEARD: usize = 64;
/// Messages that wait until a side reads, at most, beside those of a begin.
const QUEUE_LIMIT: usize = 256;
/// Commands without an answer, at most.
const COMMANDS_LIMIT: usize = 256;
/// Events and answers that nobody has taken, at most: the oldest go.
const KEPT_LIMIT: usize = 4_096;

/// Why something cannot be done.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No actor, too many, or a number twice.
    #[error("a service has 1 to {ACTORS_LIMIT} actors with numbers below that, and its entry is one of them")]
    Actors,
    /// No actor has this number.
    #[error("actor {0} is not known")]
    Unknown(u32),
    /// The actor is there already.
    #[error("actor {0} is on the {1}")]
    There(u32, Side),
    /// It moves, is lost, or has not begun.
    #[error("actor {0} is on neither side now")]
    Nowhere(u32),
    /// That side cannot take it now.
    #[error("the {0} does not run")]
    NotRunning(Side),
    /// More commands wait than may.
    #[error("{COMMANDS_LIMIT} commands wait for an answer")]
    Busy,
    /// The kernel refused it.
    #[error(transparent)]
    System(#[from] rustix::io::Errno),
    /// There is no memory for objects.
    #[error(transparent)]
    Region(#[from] actor_objects::RegionError),
    /// What a keeper has is not what this service needs.
    #[error("what was kept of the actors cannot be used: {0}")]
    Kept(&'static str),
    /// There is no memory for a channel.
    #[error(transparent)]
    Channel(#[from] actor_channel::AttachError),
}

/// What somebody wants with an actor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// It is to run on this side.
    Move(Side),
    /// It is to start no message.
    Pause,
    /// It is to go on.
    Resume,
    /// It is to end, with the messages that wait for it.
    Stop,
}

/// What became of a wish.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The number that [`Supervisor::command`] gave.
    pub id: u64,
    /// Why it was not begun. A move that was begun ends with an event.
    pub error: Option<String>,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// On this side.
    pub side: Side,
    /// What.
    pub kind: EventKind,
}

/// The kind of an [`Event`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// Its actors run. `again`: it is not the first process of this side.
    Started {
        /// See above.
        again: bool,
    },
    /// Its process has ended. It had messages under way in these actors, or has damaged their regions: what they had
    /// here is lost.
    Ended {
        /// See above.
        interrupted: Vec<u32>,
    },
    /// It has broken the rules, or does not answer.
    Broken {
        /// How.
        reason: String,
    },
    /// Something of an actor, by the word of the side.
    Actor(Happening),
    /// The side has changed groups of actors or cores.
    Decided(Box<Decided>),
}

/// An actor and how things stand, by the word of both sides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Its number.
    pub actor: u32,
    /// Its kind.
    pub kind: String,
    /// Where it is; nothing while it moves, is lost, or has not begun.
    pub side: Option<Side>,
    /// What the side says on which it is, else all 0.
    pub line: Line,
    /// Messages that both sides hold for it.
    pub held: u64,
    /// Whether it is lost.
    pub is_lost: bool,
    /// Moves that have ended on the other side.
    pub moves: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// No process.
    Gone,
    /// It has not accepted a connection.
    Expected,
    /// It has not said hello.
    Connected,
    /// It can be told to begin.
    Waiting,
    /// It prepares.
    Beginning,
    /// It has prepared.
    Ready,
    Running,
    /// Its process is to be ended.
    Broken,
}

impl Stage {
    /// Whether the side has regions that its process may change.
    fn has_begun(self) -> bool {
        matches!(self, Stage::Beginning | Stage::Ready | Stage::Running)
    }
}

#[derive(Debug)]
struct Process {
    stage: Stage,
    path: PathBuf,
    /// When it is broken if nothing has come until then.
    deadline: Option<Nanos>,
    connection: Option<InOfInco>,
    queue: VecDeque<(ToSide, Option<Arc<OwnedFd>>)>,
    /// Processes of this side that have begun.
    incarnations: u32,
    /// It has not been told that the other side has ended.
    is_untold: bool,
    /// What the process before it had noted was read.
    is_end_noted: bool,
    /// The number of its channel, where it came to this inco with one.
    channel: Option<u64>,
    /// What it has noted after it was told.
    heard: Option<Vec<Noted>>,
    lines: BTreeMap<u32, Line>,
    counts: Counts,
}

impl Process {
    fn new() -> Process {
        Process {
            stage: Stage::Gone,
            path: PathBuf::new(),
            deadline: None,
            connection: None,
            queue: VecDeque::new(),
            incarnations: 0,
            is_untold: false,
            is_end_noted: false,
            channel: None,
            heard: None,
            lines: BTreeMap::new(),
            counts: Counts::default(),
        }
    }

    /// Has nothing to do with it any more.
    fn hang_up(&mut self) {
        self.stage = Stage::Broken;
        self.connection = None;
        self.deadline = None;
        self.queue.clear();
    }

    fn say(&mut self, said: ToSide, file: Option<Arc<OwnedFd>>) {
        self.queue.push_back((said, file));
    }
}

/// Whether a service can be.
fn check(service: &Service) -> Result<(), Error> {
    let mut numbers: Vec<u32> = service.actors.iter().map(|of| of.declaration.actor).collect();
    numbers.sort_unstable();
    let is_right = numbers.windows(2).all(|pair| pair[0] < pair[1])
        && numbers.last().is_some_and(|last| *last < ACTORS_LIMIT)
        && numbers.contains(&service.entry);
    is_right.then_some(()).ok_or(Error::Actors)
}

fn push<T>(into: &mut VecDeque<T>, what: T) {
    if into.len() >= KEPT_LIMIT {
        into.pop_front();
    }
    into.push_back(what);
}

/// A service of actors: see the crate's text.
#[derive(Debug)]
pub struct Supervisor {
    service: Service,
    owned: Vec<Owned>,
    processes: [Process; 2],
    /// Both sides have started once: from then on the regions say where actors are.
    has_started: bool,
    /// The number of the last channel.
    channel: u64,
    changes: u64,
    next_command: u64,
    commands: BTreeMap<u64, Side>,
    moves: BTreeMap<u32, u64>,
    answers: VecDeque<Answer>,
    events: VecDeque<Event>,
}

impl Supervisor {
    /// Makes the memory of a service.
    ///
    /// # Errors
    /// [`Error::Actors`]; [`Error::Region`], if there is no memory.
    pub fn new(service: Service) -> Result<Supervisor, Error> {
        check(&service)?;
        let owned = service.actors.iter().cloned().map(Owned::new);
        let owned = owned.collect::<Result<_, _>>()?;
        Ok(Supervisor::of(service, owned))
    }

    /// A service whose processes may have gone on since a run before. `entries`: what that run has kept of it. Of
    /// each process the caller then says where it listens, or that it has ended.
    ///
    /// # Errors
    /// [`Error::Kept`], if the service has other actors than it had; [`Error::Region`], if there is no memory.
    pub fn resume(service: Service, entries: Vec<Entry>) -> Result<Supervisor, Error> {
        check(&service)?;
        let (mut owned, note) = kept::owned(&service, entries)?;
        if !note.has_started {
            // Nothing was handled, but a side may have begun in them.
            owned.iter_mut().try_for_each(Owned::begin_anew)?;
        }
        let mut supervisor = Supervisor::of(service, owned);
        supervisor.has_started = note.has_started;
        supervisor.channel = note.channel + 1;
        for (process, incarnations) in supervisor.processes.iter_mut().zip(note.incarnations) {
            // One may have begun that is not noted.
            process.incarnations = incarnations + 1;
        }
        Ok(supervisor)
    }

    fn of(service: Service, owned: Vec<Owned>) -> Supervisor {
        Supervisor {
            service,
            owned,
            processes: [Process::new(), Process::new()],
            has_started: false,
            channel: 0,
            changes: 0,
            next_command: 0,
            commands: BTreeMap::new(),
            moves: BTreeMap::new(),
            answers: VecDeque::new(),
            events: VecDeque::new(),
        }
    }

    /// What a keeper is to have of the service of this name.
    ///
    /// # Errors
    /// [`Error::Kept`], if no descriptor is free.
    pub fn entries(&self, service: &str) -> Result<Vec<Entry>, Error> {
        let incarnations = [0, 1].map(|side: usize| self.processes[side].incarnations);
        kept::entries(service, &self.owned, self.has_started, incarnations, self.channel)
    }

    /// How often [`entries`](Supervisor::entries) has changed. If it has, the caller keeps them before the next
    /// [`turn`](Supervisor::turn).
    pub fn changes(&self) -> u64 {
        self.changes
    }

    fn process(&self, side: Side) -> &Process {
        &self.processes[side.index()]
    }

    fn process_mut(&mut self, side: Side) -> &mut Process {
        &mut self.processes[side.index()]
    }

    /// A process of this side has been started, and will listen there.
    pub fn began(&mut self, side: Side, path: PathBuf, now: Nanos) {
        let before = self.process(side).incarnations;
        *self.process_mut(side) = Process {
            stage: Stage::Expected,
            path,
            deadline: Some(now + PATIENCE),
            incarnations: before,
            is_untold: self.process(side).is_untold,
            is_end_noted: self.process(side).is_end_noted,
            ..Process::new()
        };
    }

    /// The process of this side has ended, and all that it had started: nobody has its regions any more.
    ///
    /// # Errors
    /// There is no memory for a new region in the place of one that cannot be used.
    pub fn ended(&mut self, side: Side) -> Result<(), Error> {
        // What it said before still counts.
        self.hear(side);
        let had_begun = self.process(side).incarnations > 0;
        let incarnations = self.process(side).incarnations;
        *self.process_mut(side) = Process {
            incarnations,
            ..Process::new()
        };
        let of_side: Vec<u64> = (self.commands.iter().filter(|(_, of)| **of == side))
            .map(|(id, _)| *id)
            .collect();
        for id in of_side {
            self.commands.remove(&id);
            let error = Some(format!("the process of the {side} has ended"));
            push(&mut self.answers, Answer { id, error });
        }
        let mut interrupted = Vec::new();
        self.changes += 1;
        if self.has_started {
            interrupted = self.note_end(side)?;
        } else if had_begun {
            self.owned.iter_mut().try_for_each(Owned::begin_anew)?;
            if self.process(side.other()).stage.has_begun() {
                self.break_side(side.other(), "the other side has ended before both had started");
            }
        }
        push(
            &mut self.events,
            Event {
                side,
                kind: EventKind::Ended { interrupted },
            },
        );
        Ok(())
    }

    /// Reads what a process had noted that has ended. The other side is to hear of it. Gives the actors whose regions
    /// cannot be used.
    fn note_end(&mut self, side: Side) -> Result<Vec<u32>, Error> {
        let mut unusable = Vec::new();
        for owned in &mut self.owned {
            owned.read_record(side)?;
            if owned.records[side.index()].is_none() {
                unusable.push(owned.of.declaration.actor);
            }
        }
        self.process_mut(side).is_end_noted = true;
        let other = self.process_mut(side.other());
        other.is_untold = true;
        other.heard = None;
        Ok(unusable)
    }

    /// Whether the caller is to end this side's process: it has broken the rules, does not answer, or has closed its
    /// connection.
    pub fn broken(&self, side: Side) -> bool {
        self.process(side).stage == Stage::Broken
    }

    /// Whether this side's actors run.
    pub fn is_running(&self, side: Side) -> bool {
        self.process(side).stage == Stage::Running
    }

    fn break_side(&mut self, side: Side, reason: &str) {
        self.process_mut(side).hang_up();
        let kind = EventKind::Broken {
            reason: actor_control::reason(reason),
        };
        push(&mut self.events, Event { side, kind });
    }

    /// Does what can be done now, without waiting.
    ///
    /// # Errors
    /// There is no memory for a channel.
    pub fn turn(&mut self, now: Nanos) -> Result<(), Error> {
        for side in Side::BOTH {
            self.connect(side, now);
            self.hear(side);
        }
        self.begin(now)?;
        for side in Side::BOTH {
            self.tell(side);
            let is_late = |deadline: Nanos| now >= deadline;
            if self.process(side).deadline.is_some_and(is_late) {
                self.break_side(side, "it does not answer");
            }
        }
        Ok(())
    }

    fn connect(&mut self, side: Side, now: Nanos) {
        let process = self.process_mut(side);
        if process.stage == Stage::Expected
            && let Ok(connection) = InOfInco::connect(&process.path)
        {
            process.connection = Some(connection);
            process.stage = Stage::Connected;
            process.deadline = Some(now + PATIENCE);
        }
    }

    fn hear(&mut self, side: Side) {
        for _ in 0..HEARD {
            let Some(connection) = &mut self.process_mut(side).connection else {
                return;
            };
            match connection.receive() {
                Received::Message(said, _) => self.take(side, said),
                Received::Nothing => return,
                Received::Nonsense(error) => {
                    return self.break_side(side, &format!("it says what it must not: {error}"));
                }
                // Mostly its process has ended, and the caller says so.
                Received::Ended => return self.process_mut(side).hang_up(),
            }
        }
    }

    fn take(&mut self, side: Side, said: FromSide) {
        let stage = self.process(side).stage;
        match (stage, said) {
            (
                Stage::Connected,
                FromSide::Hello {
                    version,
                    side: of,
                    has_begun,
                    channel,
                },
            ) => {
                if version != VERSION {
                    let reason = format!("it speaks version {version}, inco version {VERSION}");
                    self.break_side(side, &reason);
                } else if of != side {
                    self.break_side(side, &format!("it is the {of}"));
                } else if has_begun && !self.has_started {
                    self.break_side(side, "it has begun what no inco has started");
                } else if has_begun && self.process(side).is_end_noted {
                    self.break_side(side, "it has begun, and has ended");
                } else if has_begun {
                    self.go_on(side, channel);
                } else {
                    let process = self.process_mut(side);
                    process.stage = Stage::Waiting;
                    process.deadline = None;
                }
            }
            (Stage::Beginning, FromSide::Ready) => {
                let process = self.process_mut(side);
                process.stage = Stage::Ready;
                process.deadline = None;
            }
            (Stage::Beginning, FromSide::Refused { reason }) => {
                self.break_side(side, &format!("it cannot begin: {reason}"));
            }
            (Stage::Running, FromSide::Heard { records }) if self.process(side).deadline.is_some() => {
                let process = self.process_mut(side);
                process.heard = Some(records);
                process.deadline = None;
            }
            (Stage::Running, FromSide::Answer { id, error }) if self.commands.get(&id) == Some(&side) => {
                self.commands.remove(&id);
                push(&mut self.answers, Answer { id, error });
            }
            (
                Stage::Ready | Stage::Running,
                FromSide::Report {
                    rows,
                    events,
                    counts,
                    decided,
                },
            ) => {
                self.report(side, rows, events, counts);
                if let Some(decided) = decided {
                    self.hear_decision(side, decided);
                }
            }
            // A side that is ended says what it likes.
            (Stage::Broken | Stage::Gone, _) => {}
            _ => self.break_side(side, "it says something that nobody has asked"),
        }
    }

    /// A side goes on that has begun for a run of inco before. Perhaps that run could not tell it to start.
    fn go_on(&mut self, side: Side, channel: Option<u64>) {
        let process = self.process_mut(side);
        process.stage = Stage::Running;
        process.deadline = None;
        process.channel = channel;
        process.say(ToSide::Start, None);
        let own = (channel, side);
        let other = self.process(side.other());
        // The run before may have ended after only one of them had got the channel. That one has just begun.
        if other.stage == Stage::Running && other.channel != channel {
            let (_, newer) = own.max((other.channel, side.other()));
            self.break_side(newer, "it has another channel than the other side");
        }
    }

    fn is_known(&self, actor: u32) -> bool {
        self.owned.iter().any(|of| of.of.declaration.actor == actor)
    }

    fn hear_decision(&mut self, side: Side, decided: Box<Decided>) {
        let seen = decided.case.actors.iter().map(|of| of.actor.0);
        let changed = decided.decisions.iter().filter_map(|of| match of {
            Decision::Actor(actor, _) => Some(actor.0),
            Decision::Core(..) => None,
        });
        if !seen.chain(changed).all(|actor| self.is_known(actor)) {
            return self.break_side(side, "it decides about an actor that it does not have");
        }
        let kind = EventKind::Decided(decided);
        push(&mut self.events, Event { side, kind });
    }

    fn report(&mut self, side: Side, rows: Vec<Line>, events: Vec<Happening>, counts: Counts) {
        let mut all = rows.iter().map(|row| row.actor);
        if !all.all(|actor| self.is_known(actor)) || !events.iter().all(|event| self.is_known(event.actor)) {
            return self.break_side(side, "it reports an actor that it does not have");
        }
        let process = self.process_mut(side);
        process.counts = counts;
        process.lines.extend(rows.into_iter().map(|row| (row.actor, row)));
        for event in events {
            if event.what == What::Moved {
                *self.moves.entry(event.actor).or_default() += 1;
            }
            let kind = EventKind::Actor(event);
            push(&mut self.events, Event { side, kind });
        }
    }

    /// Has sides begin, and start.
    fn begin(&mut self, now: Nanos) -> Result<(), Error> {
        if !self.has_started {
            let all = |stage| self.processes.iter().all(|of| of.stage == stage);
            if all(Stage::Waiting) {
                let channel = self.new_channel()?;
                for side in Side::BOTH {
                    self.declare(side, None, Some(&channel), now);
                }
            } else if all(Stage::Ready) {
                // They start in the next turn, when that is kept.
                self.has_started = true;
                self.changes += 1;
            }
            return Ok(());
        }
        for side in Side::BOTH {
            match self.process(side).stage {
                Stage::Ready => self.start(side),
                Stage::Waiting => self.begin_again(side, now)?,
                _ => {}
            }
        }
        // Also if it has no process: what is held for it is let go at once.
        for side in Side::BOTH {
            let process = self.process(side);
            if process.stage == Stage::Running && process.is_untold {
                self.tell_of_end(side, now);
            }
        }
        Ok(())
    }

    fn start(&mut self, side: Side) {
        let process = self.process_mut(side);
        let again = process.incarnations > 1;
        process.stage = Stage::Running;
        process.say(ToSide::Start, None);
        let kind = EventKind::Started { again };
        push(&mut self.events, Event { side, kind });
    }

    /// Tells a side that the other one has ended.
    fn tell_of_end(&mut self, side: Side, now: Nanos) {
        let other = side.other().index();
        let records = self.owned.iter().map(|of| Noted {
            actor: of.of.declaration.actor,
            record: of.records[other],
        });
        let records = records.collect();
        let process = self.process_mut(side);
        process.is_untold = false;
        process.heard = None;
        process.deadline = Some(now + PATIENCE);
        process.say(ToSide::PeerEnded { records }, None);
    }

    /// Has a side begin whose process had ended, once the other one has heard of that.
    fn begin_again(&mut self, side: Side, now: Nanos) -> Result<(), Error> {
        let other = side.other();
        if !self.process(side).is_end_noted {
            // The process before it has ended while there was no inco.
            self.note_end(side)?;
            self.changes += 1;
            return Ok(());
        }
        let of = &self.processes[other.index()];
        let channel = match of.stage {
            Stage::Running => {
                if of.is_untold {
                    return Ok(());
                }
                let Some(heard) = &of.heard else { return Ok(()) };
                for owned in &mut self.owned {
                    let actor = owned.of.declaration.actor;
                    let noted = heard.iter().find(|noted| noted.actor == actor);
                    owned.records[other.index()] = noted.and_then(|noted| noted.record);
                }
                let channel = self.new_channel()?;
                self.attach(other, &channel);
                Some(channel)
            }
            // What it has noted changes until it runs, or has ended.
            Stage::Beginning | Stage::Ready | Stage::Broken => return Ok(()),
            Stage::Gone | Stage::Expected | Stage::Connected | Stage::Waiting => {
                // It may have gone on while there was no inco.
                if !of.is_end_noted {
                    return Ok(());
                }
                None
            }
        };
        let begin: Vec<(Option<Record>, Option<Record>)> = (self.owned.iter())
            .map(|of| (of.records[side.index()], of.records[other.index()]))
            .collect();
        self.declare(side, Some(&begin), channel.as_ref(), now);
        // The other one begins later: then this one hears of its end.
        self.process_mut(side).is_untold = channel.is_none();
        Ok(())
    }

    fn new_channel(&mut self) -> Result<Arc<OwnedFd>, Error> {
        self.channel += 1;
        self.changes += 1;
        self.service.new_channel()
    }

    fn attach(&mut self, side: Side, channel: &Arc<OwnedFd>) {
        let engine = self.service.engine[side.index()];
        let said = ToSide::Attach {
            number: self.channel,
            latency_ns: engine.latency.0,
            bytes_per_second: engine.bytes_per_second,
        };
        self.process_mut(side).say(said, Some(Arc::clone(channel)));
    }

    /// Tells a side all that it is to prepare. `again`: what both sides have noted of each actor.
    fn declare(
        &mut self,
        side: Side,
        again: Option<&[(Option<Record>, Option<Record>)]>,
        channel: Option<&Arc<OwnedFd>>,
        now: Nanos,
    ) {
        let (at, runs, entry) = (side.index(), self.service.runs[side.index()], self.service.entry);
        let process = &mut self.processes[at];
        process.incarnations += 1;
        process.is_end_noted = false;
        self.changes += 1;
        process.say(
            ToSide::Settings(Settings {
                policy: runs.policy,
                cores: runs.cores,
                queues: runs.queues,
                quantum_ns: runs.quantum.0,
                tail_threshold_ns: runs.tail_threshold.0,
                hysteresis_thousandths: runs.hysteresis_thousandths,
                rest_ns: runs.rest.0,
                entry,
                routes: self.service.routes.clone(),
                incarnation: process.incarnations,
            }),
            None,
        );
        for (index, owned) in self.owned.iter().enumerate() {
            let begin = match again.and_then(|all| all.get(index)) {
                Some((own, peer)) => Begin::Again {
                    own: *own,
                    peer: *peer,
                },
                None if owned.of.side == side => Begin::Here,
                None => Begin::Away,
            };
            let declaration = owned.of.declaration.clone();
            let region = Arc::clone(&owned.regions[at]);
            process.say(ToSide::Actor { declaration, begin }, Some(region));
        }
        if let Some(channel) = channel {
            self.attach(side, channel);
        }
        let process = self.process_mut(side);
        process.say(ToSide::Begin, None);
        process.stage = Stage::Beginning;
        process.deadline = Some(now + PATIENCE);
    }

    /// Says what waits, as far as the side reads.
    fn tell(&mut self, side: Side) {
        let most = QUEUE_LIMIT + self.owned.len();
        let process = self.process_mut(side);
        while let (Some(connection), Some((said, file))) = (&process.connection, process.queue.front()) {
            match connection.send(said, file.as_ref().map(|file| file.as_fd())) {
                Ok(true) => {
                    process.queue.pop_front();
                }
                Ok(false) if process.queue.len() > most => {
                    return self.break_side(side, "it does not read what inco says");
                }
                Ok(false) => return,
                Err(actor_control::Error::Ended) => return process.hang_up(),
                Err(error) => return self.break_side(side, &error.to_string()),
            }
        }
    }

    /// Where an actor is, as far as is known.
    pub fn side_of(&self, actor: u32) -> Option<Side> {
        let is_there = |side: &Side| {
            let process = self.process(*side);
            process.stage == Stage::Running && process.lines.get(&actor).is_some_and(|line| line.is_here)
        };
        Side::BOTH.into_iter().find(is_there)
    }

    /// Has something done with an actor. Gives the number of the [answer](Supervisor::take_answers).
    ///
    /// # Errors
    /// [`Error`], if that cannot be now.
    pub fn command(&mut self, actor: u32, wish: Wish) -> Result<u64, Error> {
        if !self.owned.iter().any(|of| of.of.declaration.actor == actor) {
            return Err(Error::Unknown(actor));
        }
        let side = self.side_of(actor).ok_or(Error::Nowhere(actor))?;
        let what = match wish {
            Wish::Move(to) if to == side => return Err(Error::There(actor, side)),
            Wish::Move(to) if !self.is_running(to) => return Err(Error::NotRunning(to)),
            Wish::Move(_) => Command::Move,
            Wish::Pause => Command::Pause,
            Wish::Resume => Command::Resume,
            Wish::Stop => Command::Stop,
        };
        if self.commands.len() >= COMMANDS_LIMIT {
            return Err(Error::Busy);
        }
        self.next_command += 1;
        let id = self.next_command;
        self.commands.insert(id, side);
        self.process_mut(side)
            .say(ToSide::Command { id, actor, what }, None);
        self.tell(side);
        Ok(id)
    }

    /// Answers to commands since the last call.
    pub fn take_answers(&mut self) -> Vec<Answer> {
        self.answers.drain(..).collect()
    }

    /// What happened since the last call, oldest first.
    pub fn take_events(&mut self) -> Vec<Event> {
        self.events.drain(..).collect()
    }

    /// All actors.
    pub fn rows(&self) -> Vec<Row> {
        let rows = self.owned.iter().map(|of| {
            let actor = of.of.declaration.actor;
            let side = self.side_of(actor);
            let lines = || self.processes.iter().filter_map(|of| of.lines.get(&actor));
            Row {
                actor,
                kind: of.of.declaration.kind.clone(),
                side,
                line: side
                    .and_then(|side| self.process(side).lines.get(&actor).copied())
                    .unwrap_or_default(),
                held: lines().map(|line| line.held).fold(0, u64::saturating_add),
                is_lost: lines().any(|line| line.is_lost),
                moves: self.moves.get(&actor).copied().unwrap_or(0),
            }
        });
        rows.collect()
    }

    /// What a side's process has counted since it began.
    pub fn counts(&self, side: Side) -> Counts {
        self.process(side).counts
    }
}
