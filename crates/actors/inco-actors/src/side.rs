//! The side that inco has declared: made from what it says, and told to inco.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd as _, OwnedFd};
use std::time::Duration;

use actor_channel::{Declared, End, Order};
use actor_control::{
    Begin, Command, Counts, Declaration, EVENTS_LIMIT, FromSide, Group, Happening, Line, Noted, ROWS_LIMIT,
    RUNNING_TOLD_NS, Settings, Side, What, Why, reason,
};
use actor_migration::{Outcome, Phase, Stayed};
use actor_objects::Objects;
use actor_runtime::{ActorId, Address, DECIDED_LIMIT, Decided, Idle, Message, Threads};
use actor_side::{ActorSide, EventKind, Member};
use anyhow::{Context as _, Result, anyhow, bail};
use model::Nanos;

use crate::Make;
use crate::isolated::Isolated;
use crate::kinds::{self, TICKS};
use crate::network::Network;
use crate::options::Options;

/// Events that inco has not taken, at most: the oldest go.
const EVENTS_KEPT: usize = 1_024;
/// How long a move may take, from its first phase until the objects are there: then it is cancelled.
const MOVE_LIMIT: Nanos = Nanos::from_secs(10);

/// What inco has declared so far.
pub(crate) struct Declarations {
    settings: Settings,
    actors: Vec<(Declaration, Begin, OwnedFd)>,
    end: Option<End>,
}

/// The end of a channel.
pub(crate) fn end(file: &OwnedFd, side: Side, latency_ns: u64, bytes_per_second: u64) -> Result<End> {
    let order = Order::Declared(Declared {
        latency: Nanos(latency_ns),
        bytes_per_second,
    });
    let side = match side {
        Side::Card => actor_channel::Side::Card,
        Side::Host => actor_channel::Side::Host,
    };
    Ok(End::attach(file.as_fd(), side, order)?)
}

impl Declarations {
    pub(crate) fn new(settings: Settings) -> Declarations {
        Declarations {
            settings,
            actors: Vec::new(),
            end: None,
        }
    }

    pub(crate) fn add(&mut self, declaration: Declaration, begin: Begin, region: OwnedFd) {
        self.actors.push((declaration, begin, region));
    }

    pub(crate) fn attach(&mut self, end: End) {
        self.end = Some(end);
    }

    /// Prepares all of it. No actor handles a message yet.
    pub(crate) fn begin(self, side: Side, network: &Network, make: Make) -> Result<Running> {
        let settings = &self.settings;
        let limit = self.actors.iter().map(|(of, ..)| of.actor + 1).max();
        let runtime = actor_runtime::Settings {
            policy: settings.policy,
            cores: settings.cores,
            queues: settings.queues,
            actors_limit: limit.ok_or_else(|| anyhow!("no actors were declared"))?,
            quantum: Nanos(settings.quantum_ns.max(1)),
            tail_threshold: Nanos(settings.tail_threshold_ns),
            hysteresis: f64::from(settings.hysteresis_thousandths) / 1_000.0,
            idle: match settings.rest_ns {
                0 => Idle::Poll,
                ns => Idle::Sleep(Duration::from_nanos(ns)),
            },
        };
        let entry = self.actors.iter().find(|(of, ..)| of.actor == settings.entry);
        let takes_frames = entry.is_some_and(|(of, ..)| kinds::takes_frames(&of.kind));
        network.begin(
            ActorId(settings.entry),
            &settings.routes,
            settings.incarnation,
            takes_frames,
        );
        let isolated = Isolated::new(make);
        let of_side = isolated.clone();
        let made = move |kind: &str, actor: ActorId| of_side.make(kind, actor);
        let channel_side = match side {
            Side::Card => actor_channel::Side::Card,
            Side::Host => actor_channel::Side::Host,
        };
        let actors = ActorSide::new(channel_side, &runtime, Box::new(network.clone()), Box::new(made));
        let mut ticks = Vec::new();
        for (of, begin, region) in self.actors {
            let (_, options) =
                Options::of(&of.kind).ok_or_else(|| anyhow!("no kind is written `{}`", of.kind))?;
            if let Some(every) = options.number::<u64>("tick") {
                ticks.push(Tick {
                    actor: ActorId(of.actor),
                    every: Nanos::from_millis(every.max(1)),
                    due: Nanos::ZERO,
                });
            }
            isolated.region(&of.kind, ActorId(of.actor), &region)?;
            let objects =
                Objects::open(region.as_fd()).with_context(|| format!("actor {}: its region", of.actor))?;
            let member = Member {
                actor: ActorId(of.actor),
                kind: of.kind,
                mailbox_limit: of.mailbox_limit as usize,
                held_limit: of.held_limit as usize,
            };
            let begin = match begin {
                Begin::Here => actor_side::Begin::Here,
                Begin::Away => actor_side::Begin::Away,
                Begin::Again { own, peer } => actor_side::Begin::Again { own, peer },
            };
            actors.add(member, objects, begin)?;
        }
        if let Some(end) = self.end {
            actors.attach(end)?;
        }
        Ok(Running {
            actors,
            ticks,
            threads: None,
            told: BTreeMap::new(),
            told_counts: Counts::default(),
            events: VecDeque::new(),
            decided: VecDeque::new(),
            has_told_decision: false,
            moves: BTreeMap::new(),
            next: 0,
        })
    }
}

/// An actor that is told that time has passed.
struct Tick {
    actor: ActorId,
    every: Nanos,
    due: Nanos,
}

/// The side.
pub(crate) struct Running {
    actors: ActorSide,
    ticks: Vec<Tick>,
    threads: Option<Threads>,
    /// What inco was told last.
    told: BTreeMap<u32, Line>,
    told_counts: Counts,
    events: VecDeque<Happening>,
    /// Decisions that inco has not been told, oldest first, and whether the last report had one.
    decided: VecDeque<Decided>,
    has_told_decision: bool,
    /// Moves away from here that can be cancelled, and since when they take.
    moves: BTreeMap<ActorId, Nanos>,
    /// The actor with which the next report begins, if all do not fit into one.
    next: u32,
}

impl Running {
    /// The cores begin.
    pub(crate) fn start(&mut self) -> Result<()> {
        if self.threads.is_none() {
            self.threads = Some(self.actors.runtime().start(|_| ())?);
        }
        Ok(())
    }

    pub(crate) fn attach(&self, end: End) -> Result<()> {
        Ok(self.actors.attach(end)?)
    }

    /// The other side has ended; gives what this side has noted after that.
    pub(crate) fn peer_ended(&self, records: &[Noted]) -> FromSide {
        let noted = |actor: ActorId| records.iter().find(|of| of.actor == actor.0)?.record;
        self.actors.peer_ended(noted);
        let rows = self.actors.rows().into_iter();
        FromSide::Heard {
            records: rows
                .map(|row| Noted {
                    actor: row.actor.0,
                    record: Some(row.record),
                })
                .collect(),
        }
    }

    /// Does what inco wants with an actor.
    pub(crate) fn command(&self, actor: u32, what: Command) -> Result<()> {
        let actor = ActorId(actor);
        let runtime = self.actors.runtime();
        let rows = self.actors.rows();
        let row = rows.iter().find(|row| row.actor == actor);
        let row = row.ok_or_else(|| anyhow!("{actor} is not known here"))?;
        if !row.is_here || row.phase.is_some() {
            bail!("{actor} is not here, or moves");
        }
        let is_paused = runtime
            .actors()
            .iter()
            .any(|row| row.actor == actor && row.is_paused);
        match what {
            Command::Move if is_paused => bail!("{actor} is paused: it would never finish what it has"),
            Command::Move => self.actors.move_away(actor)?,
            Command::Pause => runtime.pause(actor)?,
            Command::Resume => runtime.resume(actor)?,
            Command::Stop => runtime.stop(actor, "an operator has stopped it")?,
        }
        Ok(())
    }

    /// Takes what has happened, and ends moves that take too long.
    pub(crate) fn turn(&mut self, now: Nanos) {
        self.tick(now);
        for event in self.actors.take_events() {
            match event.kind {
                EventKind::Phase(Phase::Prepare) => {
                    self.moves.insert(event.actor, now);
                }
                EventKind::Phase(Phase::Clean) | EventKind::Ended(_) => {
                    self.moves.remove(&event.actor);
                }
                EventKind::Phase(_) => {}
            }
            let what = match event.kind {
                EventKind::Phase(phase) => What::Phase(phase.into()),
                EventKind::Ended(Outcome::Moved) => What::Moved,
                EventKind::Ended(Outcome::Came) => What::Came,
                EventKind::Ended(Outcome::Lost) => What::Lost,
                EventKind::Ended(Outcome::Stayed(why)) => What::Stayed(match why {
                    Stayed::Refused => Why::Refused,
                    Stayed::Failed => Why::Failed,
                    Stayed::Cancelled => Why::Cancelled,
                    Stayed::PeerEnded => Why::PeerEnded,
                }),
            };
            self.note(event.actor.0, event.at, what);
        }
        for stopped in self.actors.runtime().take_stopped() {
            let what = What::Failed {
                reason: reason(&stopped.reason),
                lost: stopped.lost,
            };
            self.note(stopped.actor.0, now, what);
        }
        self.decided.extend(self.actors.runtime().take_decided());
        let too_many = self.decided.len().saturating_sub(DECIDED_LIMIT);
        self.decided.drain(..too_many);
        let is_over = |since: &Nanos| now.since(*since) > MOVE_LIMIT;
        let late: Vec<ActorId> = (self.moves.iter().filter(|(_, since)| is_over(since)))
            .map(|(actor, _)| *actor)
            .collect();
        for actor in late {
            self.moves.remove(&actor);
            self.actors.cancel(actor);
        }
    }

    /// Tells actors that are here that time has passed.
    fn tick(&mut self, now: Nanos) {
        if self.threads.is_none() || self.ticks.iter().all(|of| now < of.due) {
            return;
        }
        let rows = self.actors.rows();
        for of in self.ticks.iter_mut().filter(|of| now >= of.due) {
            of.due = now + of.every;
            let is_here = rows
                .iter()
                .any(|row| row.actor == of.actor && row.is_here && row.phase.is_none());
            if is_here {
                let nobody = Address::Outside(u64::MAX);
                let message = Message::new(Address::Actor(of.actor), nobody, TICKS, Vec::new(), now);
                // A full mailbox has enough to do, and counts it.
                let _refused = self.actors.runtime().deliver(message);
            }
        }
    }

    fn note(&mut self, actor: u32, at: Nanos, what: What) {
        if self.events.len() >= EVENTS_KEPT {
            self.events.pop_front();
        }
        let at_ns = at.0;
        self.events.push_back(Happening { actor, at_ns, what });
    }

    /// Has the next reports say everything: a new run of inco knows nothing.
    pub(crate) fn forget_told(&mut self) {
        self.told.clear();
        self.told_counts = Counts::default();
    }

    fn counts(&self, network: &Network) -> Counts {
        let (own, of) = (self.actors.counts(), network.counts());
        Counts {
            requests: of.requests,
            answers: of.answers,
            malformed: of.malformed,
            unknown_clients: of.unknown_clients,
            unsent: of.unsent,
            refused: own.refused + self.actors.runtime().undeliverable(),
            nonsense: own.nonsense,
            channels_lost: own.channels_lost,
        }
    }

    /// All actors as they are now.
    fn lines(&self) -> BTreeMap<u32, Line> {
        let now = clock::monotonic();
        let running = self.actors.runtime().running();
        // Where actors are is read before what runs here: one that comes in between would seem to be stopped else, and inco
        // would stop it when a side begins again. None leaves in between: moves away begin on this thread.
        let rows = self.actors.rows().into_iter();
        let runs = self.actors.runtime().actors();
        let runs: BTreeMap<ActorId, _> = runs.iter().map(|row| (row.actor, row)).collect();
        rows.map(|row| {
            let mut line = Line {
                actor: row.actor.0,
                is_here: row.is_here,
                is_lost: row.is_lost,
                phase: row.phase.map(Into::into),
                held: row.held as u64,
                ..Line::default()
            };
            // One that moves is not registered either.
            line.is_stopped = row.is_here && row.phase.is_none() && !runs.contains_key(&row.actor);
            let longest = (running.iter().filter(|of| of.actor == row.actor))
                .map(|of| now.since(of.since).0)
                .max();
            line.running_ns = longest.filter(|ran| *ran > RUNNING_TOLD_NS).unwrap_or(0);
            if let Some(of) = runs.get(&row.actor) {
                let response = of.statistics.response();
                line.is_paused = of.is_paused;
                line.group = match of.group {
                    actor_runtime::Group::Fcfs => Group::Fcfs,
                    actor_runtime::Group::Drr => Group::Drr,
                };
                line.waiting = of.waiting as u64;
                line.served = of.counts.served;
                line.refused = of.counts.mailbox_full;
                (line.objects, line.object_bytes) = of.objects;
                line.ran_ns = of.counts.ran.0;
                line.mean_ns = response.mean() as u64;
                line.tail_ns = response.tail() as u64;
            }
            (line.actor, line)
        })
        .collect()
    }

    /// What inco has not been told, if there is something. `say` gives whether inco takes it.
    pub(crate) fn report(&mut self, network: &Network, say: impl FnOnce(FromSide) -> bool) {
        // In turns with the others, which many decisions would hold up.
        let is_its_turn = !std::mem::take(&mut self.has_told_decision);
        if is_its_turn && let Some(decided) = self.decided.front().cloned() {
            let counts = self.counts(network);
            let report = FromSide::Report {
                rows: Vec::new(),
                events: Vec::new(),
                counts,
                decided: Some(Box::new(decided)),
            };
            if say(report) {
                self.told_counts = counts;
                self.decided.pop_front();
                self.has_told_decision = true;
            }
            return;
        }
        let (lines, counts) = (self.lines(), self.counts(network));
        let is_new = |line: &&Line| self.told.get(&line.actor) != Some(*line);
        // From where the last report ended, around.
        let later = lines.range(self.next..).chain(lines.range(..self.next));
        let rows: Vec<Line> = later
            .map(|(_, line)| line)
            .filter(is_new)
            .take(ROWS_LIMIT)
            .copied()
            .collect();
        if rows.is_empty() && self.events.is_empty() && counts == self.told_counts {
            return;
        }
        let events: Vec<Happening> = self.events.iter().take(EVENTS_LIMIT).cloned().collect();
        let (told, next) = (rows.clone(), rows.last().map_or(0, |last| last.actor + 1));
        let count = events.len();
        let report = FromSide::Report {
            rows,
            events,
            counts,
            decided: None,
        };
        if say(report) {
            self.told.extend(told.into_iter().map(|line| (line.actor, line)));
            self.told_counts = counts;
            self.events.drain(..count);
            self.next = next;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::sync::mpsc;

    use actor_migration::Effect;
    use actor_runtime::PolicyName;

    use super::*;

    /// A side with one actor, whose cores run.
    fn side(side: Side, begin: Begin, end: End) -> Running {
        let network = Network::open(&crate::Options {
            side,
            control: PathBuf::new(),
            socket: None,
            interfaces: Vec::new(),
            ring_slots: 1_024,
            udp: None,
        });
        let mut declarations = Declarations::new(Settings {
            policy: PolicyName::Hybrid,
            cores: 1,
            queues: Default::default(),
            quantum_ns: 50_000,
            tail_threshold_ns: 1_000_000,
            hysteresis_thousandths: 100,
            rest_ns: 100_000,
            entry: 0,
            routes: Vec::new(),
            incarnation: 1,
        });
        let limits = actor_objects::Limits {
            bytes: 1 << 16,
            objects: 64,
        };
        let declaration = Declaration {
            actor: 0,
            kind: "echo".to_owned(),
            mailbox_limit: 1_024,
            held_limit: 1_024,
        };
        declarations.add(declaration, begin, Objects::create(limits).unwrap().0);
        declarations.attach(end);
        let mut running = declarations.begin(side, &network.unwrap(), kinds::make).unwrap();
        running.start().unwrap();
        running
    }

    #[test]
    fn an_actor_that_comes_during_a_look_does_not_seem_to_be_stopped() {
        let order = Order::Declared(Declared::CARD_TO_HOST);
        let limits = actor_channel::Limits::default();
        let (file, of_card) = End::create(limits, actor_channel::Side::Card, order, 7).unwrap();
        let of_host = end(&file, Side::Host, 1_000, 1_000_000_000).unwrap();
        let card = side(Side::Card, Begin::Here, of_card);
        let host = side(Side::Host, Begin::Away, of_host);
        let (says, comes) = mpsc::channel();
        host.actors.watch(move |_, effect| {
            if matches!(effect, Effect::Start) {
                // It is here, and does not run yet. The look begins now, and must wait for what this core holds.
                says.send(()).unwrap();
                std::thread::sleep(Duration::from_millis(200));
            }
        });
        card.command(0, Command::Move).unwrap();
        comes.recv_timeout(Duration::from_secs(60)).unwrap();
        let line = host.lines()[&0];
        assert!(line.is_here && !line.is_stopped, "{line:?}");
    }
}
