//! Who runs which messages next, and what becomes of them: mailboxes, the line, the round, and the scheduler's decisions
//! carried out. Pure: time is an argument. One lock holds it, which no core has while an actor runs.
//!
//! All messages of an actor wait in its mailbox, in order. The line has a token for each message that waits for a core
//! first come, first served. So an actor that changes its group leaves its messages where they are, and a core that steals
//! a token takes the actor's first message, whatever message the token came with. A message's sender says in which core's
//! line its token waits. An actor without a free instance (it runs, or is paused) has its tokens set aside; they return to
//! the front of the line.

use std::collections::VecDeque;

use actor_scheduling::groups::Decided;
use actor_scheduling::{
    ActorId, ActorStatistics, CoreId, Decision, Ended, Group, Line, Queues, Round, Scheduler, Served, Source,
};
use model::Nanos;

use crate::error::Error;
use crate::message::{Address, BODY_BYTES_LIMIT, Message, Refusal};
use crate::registration::{Instance, Registration};

/// Messages that a core takes at a time, at most.
pub const BATCH_MESSAGES: usize = 32;

/// What the messages that a core takes at a time are expected to run, at most: a message that waits behind others of a
/// batch cannot be served by a free core. Shinjuku's quantum (Kaffes and others, NSDI 2019).
pub const BATCH_TIME: Nanos = Nanos::from_micros(5);

/// Messages for actors that are elsewhere, which nobody has fetched yet, at most.
pub const DIVERTED_LIMIT: usize = 1 << 16;

/// Decisions about groups that nobody has taken, at most: the oldest go.
pub const DECIDED_LIMIT: usize = 64;

/// Runs of an actor before what they took counts.
const RUNS_ENOUGH: u64 = 8;

/// What was counted of an actor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Messages that its mailbox took.
    pub accepted: u64,
    /// Messages refused because its mailbox was full.
    pub mailbox_full: u64,
    /// Messages that have ended.
    pub served: u64,
    /// Times that a message yielded.
    pub yielded: u64,
    /// Messages that it sent.
    pub sent: u64,
    /// Run time.
    pub ran: Nanos,
}

/// An actor and how things stand.
#[derive(Clone, Debug)]
pub struct Row {
    /// The actor.
    pub actor: ActorId,
    /// Its name.
    pub name: String,
    /// Where its messages wait.
    pub group: Group,
    /// Messages that wait.
    pub waiting: usize,
    /// Whether it is paused.
    pub is_paused: bool,
    /// Its objects, as its last run left them, and their bytes.
    pub objects: (u64, u64),
    /// Response and run times.
    pub statistics: ActorStatistics,
    /// What was counted.
    pub counts: Counts,
}

/// An actor that has failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stopped {
    /// The actor.
    pub actor: ActorId,
    /// Its name.
    pub name: String,
    /// Why it could not go on.
    pub reason: String,
    /// Messages that had not ended: the one that it ran, and those that waited.
    pub lost: u64,
}

/// An actor's messages that a core runs one after the other.
pub(crate) struct Run {
    pub(crate) actor: ActorId,
    pub(crate) from: Group,
    pub(crate) instance: Box<Instance>,
    pub(crate) messages: Vec<Message>,
    /// How many of them have ended.
    pub(crate) ended: usize,
    /// When the run ended, and how long it took.
    pub(crate) at: Nanos,
    pub(crate) ran: Nanos,
    /// Messages that it sent.
    pub(crate) sent: u64,
    /// Why the actor cannot go on.
    pub(crate) failure: Option<String>,
}

/// What a core has taken.
#[derive(Default)]
pub(crate) struct Batch {
    pub(crate) runs: Vec<Run>,
    /// Whether it is of another core's line.
    pub(crate) is_stolen: bool,
    /// Empty vectors with room, for the next runs.
    spare: Vec<Vec<Message>>,
}

struct Seat {
    name: String,
    #[expect(clippy::vec_box, reason = "a core takes one out while it runs")]
    instances: Vec<Box<Instance>>,
    /// Instances that run.
    running: usize,
    mailbox: VecDeque<Message>,
    mailbox_limit: usize,
    /// Tokens that are set aside.
    held: usize,
    is_in_round: bool,
    is_paused: bool,
    /// Why it is to be stopped, and how many messages its last run left.
    failed: Option<(String, u64)>,
    /// Objects and their bytes, where no instance runs.
    objects: (u64, u64),
    counts: Counts,
    /// What a message of it typically runs, and from how many runs that is known.
    typical: Nanos,
    runs: u64,
}

impl Seat {
    /// Learns from a run. One that took far longer counts for little: its thread may have lost its CPU meanwhile. An
    /// actor whose messages have become long is known for it after a few.
    fn learn(&mut self, each: Nanos) {
        self.runs += 1;
        let typical = self.typical.0;
        self.typical = Nanos(match self.runs {
            1 => each.0,
            _ => (3 * typical + each.0.min(4 * typical + 100)) / 4,
        });
    }

    fn can_start(&self) -> bool {
        !self.is_paused && self.failed.is_none() && !self.instances.is_empty()
    }
}

/// See the module's text.
pub(crate) struct Dispatch {
    scheduler: Scheduler,
    round: Round,
    /// A token for each message of the line.
    line: Line<ActorId>,
    seats: Vec<Option<Seat>>,
    /// Whether the messages for an actor leave, whoever sends them.
    is_diverted: Vec<bool>,
    /// Those that have not left yet.
    pub(crate) diverted: VecDeque<Message>,
    /// What actors have sent outside and nobody has handed over yet, in the order in which their runs ended.
    pub(crate) leaving: Vec<Message>,
    decisions: Vec<Decision>,
    /// Messages for nobody, too long ones, and diverted ones beyond the limit.
    pub(crate) undeliverable: u64,
    pub(crate) stopped: Vec<Stopped>,
    /// What was decided about groups, oldest first.
    pub(crate) decided: VecDeque<Decided>,
}

impl Dispatch {
    pub(crate) fn new(settings: actor_scheduling::Settings, queues: Queues) -> Dispatch {
        Dispatch {
            round: Round::new(settings.actors),
            seats: (0..settings.actors).map(|_| None).collect(),
            line: Line::new(queues, settings.cores),
            is_diverted: vec![false; settings.actors as usize],
            diverted: VecDeque::new(),
            leaving: Vec::new(),
            decisions: Vec::new(),
            undeliverable: 0,
            stopped: Vec::new(),
            decided: VecDeque::new(),
            scheduler: Scheduler::new(settings),
        }
    }

    fn seat(&mut self, actor: ActorId) -> Option<&mut Seat> {
        self.seats.get_mut(actor.index())?.as_mut()
    }

    /// Registers an actor.
    pub(crate) fn register(&mut self, actor: ActorId, of: Registration) -> Result<(), Error> {
        let limit = self.seats.len() as u32;
        let seat = self
            .seats
            .get_mut(actor.index())
            .ok_or(Error::AboveLimit(actor, limit))?;
        if seat.is_some() {
            return Err(Error::Registered(actor));
        }
        if of.instances.is_empty() {
            return Err(Error::NoInstance(actor));
        }
        let objects = of.instances.iter().find_map(|instance| instance.objects());
        *seat = Some(Seat {
            name: of.name,
            objects: objects.unwrap_or_default(),
            instances: of.instances,
            running: 0,
            mailbox: VecDeque::new(),
            mailbox_limit: of.mailbox_limit,
            held: 0,
            is_in_round: false,
            is_paused: false,
            failed: None,
            counts: Counts::default(),
            typical: Nanos::ZERO,
            runs: 0,
        });
        Ok(())
    }

    /// Has no message of an actor start from now on, or lets them start again. Its mailbox takes messages meanwhile.
    pub(crate) fn pause(&mut self, actor: ActorId, is_paused: bool) -> Result<(), Error> {
        let seat = self.seat(actor).ok_or(Error::NotRegistered(actor))?;
        seat.is_paused = is_paused;
        if is_paused {
            self.leave_round(actor);
        } else {
            self.return_tokens(actor);
        }
        Ok(())
    }

    /// Has an actor end as if it had failed.
    pub(crate) fn stop(&mut self, actor: ActorId, reason: &str) -> Result<(), Error> {
        let seat = self.seat(actor).ok_or(Error::NotRegistered(actor))?;
        seat.failed.get_or_insert_with(|| (reason.to_owned(), 0));
        self.has_stopped(actor);
        Ok(())
    }

    /// Takes an actor that does not run out of the runtime, with the messages that wait for it.
    pub(crate) fn remove(&mut self, actor: ActorId) -> Result<(Registration, Vec<Message>), Error> {
        let seat = self.seat(actor).ok_or(Error::NotRegistered(actor))?;
        if seat.running > 0 {
            return Err(Error::Runs(actor));
        }
        self.leave_round(actor);
        self.leave_line(actor);
        let seat = self.seats[actor.index()]
            .take()
            .ok_or(Error::NotRegistered(actor))?;
        let registration = Registration {
            name: seat.name,
            instances: seat.instances,
            mailbox_limit: seat.mailbox_limit,
        };
        Ok((registration, seat.mailbox.into()))
    }

    /// Has messages for an actor leave from now on.
    pub(crate) fn divert(&mut self, actor: ActorId) -> Result<(), Error> {
        let limit = self.seats.len() as u32;
        let is_diverted = self.is_diverted.get_mut(actor.index());
        *is_diverted.ok_or(Error::AboveLimit(actor, limit))? = true;
        Ok(())
    }

    /// Has messages for an actor go to its mailbox again; first those that have not left.
    pub(crate) fn stop_diverting(&mut self, actor: ActorId) {
        if let Some(is_diverted) = self.is_diverted.get_mut(actor.index()) {
            *is_diverted = false;
        }
        for message in std::mem::take(&mut self.diverted) {
            if message.to == Address::Actor(actor) {
                // A refusal is counted.
                let _refused = self.accept_held(message);
            } else {
                self.diverted.push_back(message);
            }
        }
    }

    /// Whether an actor neither runs nor has a message that waits, nor one that is to leave.
    pub(crate) fn is_quiet(&self, actor: ActorId) -> bool {
        let seat = self.seats.get(actor.index()).and_then(Option::as_ref);
        let is_its = |message: &Message| message.from == Address::Actor(actor);
        seat.is_none_or(|seat| seat.running == 0 && seat.mailbox.is_empty())
            && !self.leaving.iter().any(is_its)
    }

    /// Delivers what actors have sent; keeps what goes outside.
    pub(crate) fn accept_all(&mut self, sent: &mut Vec<Message>) {
        for message in sent.drain(..) {
            match message.to {
                // A refusal is counted; the sender does not wait for it.
                Address::Actor(_) => {
                    let _refused = self.accept(message);
                }
                Address::Outside(_) => self.leaving.push(message),
            }
        }
    }

    /// Puts a message into its receiver's mailbox, or has it leave.
    pub(crate) fn accept(&mut self, message: Message) -> Result<(), Refusal> {
        if let Address::Actor(actor) = message.to
            && self.is_diverted.get(actor.index()) == Some(&true)
        {
            return self.accept_diverted(message);
        }
        self.accept_here(message)
    }

    fn accept_diverted(&mut self, message: Message) -> Result<(), Refusal> {
        let refusal = if message.body.len() > BODY_BYTES_LIMIT {
            Refusal::TooLong
        } else if self.diverted.len() >= DIVERTED_LIMIT {
            Refusal::MailboxFull
        } else {
            self.diverted.push_back(message);
            return Ok(());
        };
        self.undeliverable += 1;
        Err(refusal)
    }

    /// Puts a message into its receiver's mailbox, also if others leave.
    pub(crate) fn accept_here(&mut self, message: Message) -> Result<(), Refusal> {
        if let Address::Actor(actor) = message.to
            && let Some(Some(seat)) = self.seats.get_mut(actor.index())
            && seat.mailbox.len() >= seat.mailbox_limit
        {
            seat.counts.mailbox_full += 1;
            return Err(Refusal::MailboxFull);
        }
        self.accept_held(message)
    }

    /// Puts a message into its receiver's mailbox, however full that is: it waited elsewhere, where there is a limit.
    pub(crate) fn accept_held(&mut self, message: Message) -> Result<(), Refusal> {
        let Address::Actor(actor) = message.to else {
            self.undeliverable += 1;
            return Err(Refusal::NoSuchActor);
        };
        let group = self.scheduler.group_of(actor);
        let Some(Some(seat)) = self.seats.get_mut(actor.index()) else {
            self.undeliverable += 1;
            return Err(Refusal::NoSuchActor);
        };
        if message.body.len() > BODY_BYTES_LIMIT {
            self.undeliverable += 1;
            return Err(Refusal::TooLong);
        }
        let flow = flow_of(message.from);
        seat.counts.accepted += 1;
        seat.mailbox.push_back(message);
        if group == Group::Fcfs {
            self.line.push(flow, actor);
        } else {
            self.enter_round(actor);
        }
        Ok(())
    }

    /// How long a message may run before it should yield.
    pub(crate) fn slice(&self) -> Option<Nanos> {
        self.scheduler.slice()
    }

    /// Takes messages for a free core; at least one, if there is one that it may serve. More than one only as long as
    /// they are expected to end within [`BATCH_TIME`].
    pub(crate) fn take(&mut self, core: CoreId, batch: &mut Batch) {
        debug_assert!(batch.runs.is_empty());
        batch.is_stolen = false;
        for &group in self.scheduler.serves(core) {
            match group {
                Group::Fcfs => {
                    // A line may have tokens only of actors that cannot start; these are set aside.
                    while batch.runs.is_empty()
                        && let Some(source) = self.line.source(core)
                    {
                        self.take_of_line(source, batch);
                        batch.is_stolen = source.is_stolen && !batch.runs.is_empty();
                    }
                }
                Group::Drr => self.take_of_round(batch),
            }
            if !batch.runs.is_empty() {
                return;
            }
        }
    }

    /// What a message of an actor is expected to run.
    fn cost(&self, actor: ActorId) -> Nanos {
        match self.seats.get(actor.index()) {
            Some(Some(seat)) if seat.runs >= RUNS_ENOUGH => seat.typical,
            _ => Nanos(BATCH_TIME.0 + 1),
        }
    }

    /// Takes messages of a line, of any actors that can start, as long as they fit.
    fn take_of_line(&mut self, source: Source, batch: &mut Batch) {
        let (mut taken, mut expected) = (0, Nanos::ZERO);
        while taken < BATCH_MESSAGES
            && let Some(&actor) = self.line.first(source)
        {
            let cost = self.cost(actor);
            if taken > 0 && expected + cost > BATCH_TIME {
                return;
            }
            self.line.take(source);
            let Some(Some(seat)) = self.seats.get_mut(actor.index()) else {
                continue;
            };
            // Messages of an actor go on in the run that the batch has of it.
            let run = batch.runs.iter().rposition(|run| run.actor == actor);
            if run.is_none() && !seat.can_start() {
                seat.held += 1;
                continue;
            }
            let Some(message) = seat.mailbox.pop_front() else {
                continue;
            };
            match run {
                Some(run) => batch.runs[run].messages.push(message),
                None => start(seat, actor, Group::Fcfs, message, batch),
            }
            taken += 1;
            expected = expected + cost;
        }
    }

    /// Takes messages of the actor whose turn the round says it is, as long as it can pay and they fit.
    fn take_of_round(&mut self, batch: &mut Batch) {
        let scheduler = &self.scheduler;
        let Some(actor) = self.round.next(|actor| scheduler.turn(actor)) else {
            return;
        };
        let (turn, cost) = (scheduler.turn(actor), self.cost(actor));
        let Some(Some(seat)) = self.seats.get_mut(actor.index()) else {
            return;
        };
        if let Some(message) = seat.mailbox.pop_front() {
            start(seat, actor, Group::Drr, message, batch);
        }
        let mut expected = cost;
        while let Some(run) = batch.runs.last_mut()
            && run.messages.len() < BATCH_MESSAGES
            && expected + cost <= BATCH_TIME
            && !seat.mailbox.is_empty()
            && self.round.again(turn)
        {
            run.messages.extend(seat.mailbox.pop_front());
            expected = expected + cost;
        }
        if seat.mailbox.is_empty() {
            seat.is_in_round = false;
            self.round.emptied(actor);
        } else if !seat.can_start() {
            seat.is_in_round = false;
            self.round.suspend(actor);
        }
    }

    /// Hears what a core has run. Messages that have not ended return to the front of their mailboxes.
    pub(crate) fn finish(&mut self, core: CoreId, batch: &mut Batch) {
        for run in batch.runs.drain(..) {
            let Run {
                actor,
                from,
                instance,
                mut messages,
                ended,
                at,
                ran,
                sent,
                failure,
            } = run;
            let has_yielded = ended < messages.len() && failure.is_none();
            let each = Nanos(ran.0 / (ended + usize::from(has_yielded)).max(1) as u64);
            if let Some(seat) = self.seat(actor) {
                seat.objects = instance.objects().unwrap_or(seat.objects);
                seat.instances.push(instance);
                seat.running -= 1;
                seat.learn(each);
                seat.counts.served += ended as u64;
                seat.counts.sent += sent;
                seat.counts.ran = seat.counts.ran + ran;
                seat.counts.yielded += u64::from(has_yielded);
            }
            for of in messages.drain(..ended) {
                self.step(core, from, actor, each, Some(&of), at);
            }
            if has_yielded {
                messages[0].ran = messages[0].ran + each;
                self.step(core, from, actor, each, None, at);
                self.put_back(actor, &mut messages);
            }
            if let (Some(reason), Some(seat)) = (failure, self.seat(actor)) {
                seat.failed = Some((reason, messages.len() as u64));
            }
            if !self.has_stopped(actor) {
                self.return_tokens(actor);
            }
            messages.clear();
            batch.spare.push(messages);
        }
    }

    /// Ends an actor that has failed, once none of its instances runs; says whether it has failed.
    fn has_stopped(&mut self, actor: ActorId) -> bool {
        let Some(seat) = self.seat(actor) else {
            return true;
        };
        let Some((reason, lost)) = seat.failed.clone() else {
            return false;
        };
        if let Ok((registration, messages)) = self.remove(actor) {
            self.stopped.push(Stopped {
                actor,
                name: registration.name,
                reason,
                lost: lost + messages.len() as u64,
            });
        } else {
            self.leave_round(actor);
        }
        true
    }

    fn put_back(&mut self, actor: ActorId, messages: &mut Vec<Message>) {
        let (count, group) = (messages.len(), self.scheduler.group_of(actor));
        let Some(seat) = self.seat(actor) else { return };
        for message in messages.drain(..).rev() {
            seat.mailbox.push_front(message);
        }
        if group == Group::Fcfs {
            seat.held += count;
        }
    }

    fn step(
        &mut self,
        core: CoreId,
        from: Group,
        actor: ActorId,
        ran: Nanos,
        ended: Option<&Message>,
        at: Nanos,
    ) {
        let served = Served {
            core,
            from,
            actor,
            ran,
            ended: ended.map(|message| Ended {
                response: at.since(message.arrived),
                service: message.ran + ran,
            }),
        };
        let decisions = self.scheduler.step(&served, at);
        if decisions.is_empty() {
            return;
        }
        self.decisions.clear();
        self.decisions.extend_from_slice(decisions);
        if let Some(case) = self.scheduler.case() {
            if self.decided.len() >= DECIDED_LIMIT {
                self.decided.pop_front();
            }
            self.decided.push_back(Decided {
                at,
                case: case.clone(),
                decisions: self.decisions.clone(),
            });
        }
        for place in 0..self.decisions.len() {
            match self.decisions[place] {
                Decision::Actor(actor, group) => self.change_group(actor, group),
                Decision::Core(..) => self.line.serve_by(self.scheduler.line_cores()),
            }
        }
    }

    /// Has the waiting messages of an actor go with it.
    fn change_group(&mut self, actor: ActorId, group: Group) {
        match group {
            Group::Drr => {
                self.leave_line(actor);
                if let Some(seat) = self.seat(actor) {
                    seat.held = 0;
                }
                self.enter_round(actor);
            }
            Group::Fcfs => {
                self.leave_round(actor);
                if let Some(Some(seat)) = self.seats.get(actor.index()) {
                    for message in &seat.mailbox {
                        self.line.push(flow_of(message.from), actor);
                    }
                }
            }
        }
    }

    /// Puts an actor into the round, if it has a message that can start.
    fn enter_round(&mut self, actor: ActorId) {
        if let Some(Some(seat)) = self.seats.get_mut(actor.index())
            && !seat.is_in_round
            && seat.can_start()
            && !seat.mailbox.is_empty()
        {
            seat.is_in_round = true;
            self.round.enter(actor);
        }
    }

    fn leave_line(&mut self, actor: ActorId) {
        let _tokens = self.line.extract(|of| *of == actor);
    }

    fn leave_round(&mut self, actor: ActorId) {
        if let Some(Some(seat)) = self.seats.get_mut(actor.index())
            && std::mem::take(&mut seat.is_in_round)
        {
            self.round.leave(actor);
        }
    }

    /// Has what waited for an instance of the actor compete for cores again: all of it in one line, since one core at a
    /// time may serve an actor with one instance.
    fn return_tokens(&mut self, actor: ActorId) {
        if self.scheduler.group_of(actor) == Group::Drr {
            return self.enter_round(actor);
        }
        let Some(Some(seat)) = self.seats.get_mut(actor.index()) else {
            return;
        };
        if seat.can_start() {
            for _ in 0..std::mem::take(&mut seat.held) {
                self.line.push_front(flow_of(Address::Actor(actor)), actor);
            }
        }
    }

    /// Whether there may be a message that this core can start.
    pub(crate) fn has_for(&self, core: CoreId) -> bool {
        self.scheduler.serves(core).iter().any(|group| match group {
            Group::Fcfs => self.line.source(core).is_some(),
            Group::Drr => !self.round.is_empty(),
        })
    }

    /// Whether there may be a message that some core can start.
    pub(crate) fn has_some(&self) -> bool {
        !self.line.is_empty() || !self.round.is_empty()
    }

    /// How all actors stand.
    pub(crate) fn rows(&self) -> Vec<Row> {
        let seats = (0..).map(ActorId).zip(&self.seats);
        seats
            .filter_map(|(actor, seat)| {
                let seat = seat.as_ref()?;
                Some(Row {
                    actor,
                    name: seat.name.clone(),
                    group: self.scheduler.group_of(actor),
                    waiting: seat.mailbox.len(),
                    is_paused: seat.is_paused,
                    objects: seat.objects,
                    statistics: self.scheduler.statistics(actor).copied().unwrap_or_default(),
                    counts: seat.counts,
                })
            })
            .collect()
    }
}

/// The flow of a message: its sender. Steering by it is what a network card does for cores without a shared queue.
fn flow_of(from: Address) -> u64 {
    match from {
        Address::Actor(actor) => u64::from(actor.0),
        Address::Outside(number) => number,
    }
}

/// Begins a run of a batch with its first message; the seat has a free instance.
fn start(seat: &mut Seat, actor: ActorId, from: Group, message: Message, batch: &mut Batch) {
    let Some(instance) = seat.instances.pop() else {
        debug_assert!(false, "{actor} has no free instance");
        return;
    };
    seat.running += 1;
    let mut messages = batch.spare.pop().unwrap_or_default();
    messages.push(message);
    batch.runs.push(Run {
        actor,
        from,
        instance,
        messages,
        ended: 0,
        at: Nanos::ZERO,
        ran: Nanos::ZERO,
        sent: 0,
        failure: None,
    });
}

#[cfg(test)]
mod tests {
    use actor_scheduling::PolicyName;

    use super::*;
    use crate::actor::{Actor, Context, Progress};

    struct Nothing;

    impl Actor for Nothing {
        fn exec(&mut self, _: &mut Message, _: &mut Context<'_>) -> Progress {
            Progress::Done
        }
    }

    const LINE: [u32; 3] = [0, 1, 2];

    fn dispatch(policy: PolicyName, cores: u16) -> Dispatch {
        dispatch_with(policy, Queues::Shared, cores)
    }

    fn dispatch_with(policy: PolicyName, queues: Queues, cores: u16) -> Dispatch {
        let settings = actor_scheduling::Settings {
            policy,
            cores,
            actors: 3,
            quantum: Nanos::from_micros(20),
            tail_threshold: Nanos::from_micros(200),
            hysteresis: 0.1,
        };
        let mut dispatch = Dispatch::new(settings, queues);
        for actor in LINE {
            let of = Registration::new("nothing", Box::new(Nothing));
            dispatch.register(ActorId(actor), of).unwrap();
        }
        dispatch
    }

    fn send(dispatch: &mut Dispatch, actor: u32) {
        send_from(dispatch, 0, actor);
    }

    fn send_from(dispatch: &mut Dispatch, client: u64, actor: u32) {
        let to = Address::Actor(ActorId(actor));
        let kind = client as u32;
        dispatch
            .accept(Message::new(
                to,
                Address::Outside(client),
                kind,
                Vec::new(),
                Nanos::ZERO,
            ))
            .unwrap();
    }

    /// Takes a batch; returns its runs: actors, and how many messages each has.
    fn take(dispatch: &mut Dispatch, core: u16, batch: &mut Batch) -> Vec<(u32, usize)> {
        dispatch.take(CoreId(core), batch);
        let runs = batch.runs.iter();
        runs.map(|run| (run.actor.0, run.messages.len())).collect()
    }

    /// Ends a batch in which each message ran for so long.
    fn end(dispatch: &mut Dispatch, core: u16, batch: &mut Batch, each: Nanos) {
        for run in &mut batch.runs {
            run.ended = run.messages.len();
            run.ran = Nanos(each.0 * run.messages.len() as u64);
            run.at = Nanos::from_millis(1);
        }
        dispatch.finish(CoreId(core), batch);
    }

    /// Has the run times of all actors known.
    fn learn(dispatch: &mut Dispatch, batch: &mut Batch, each: Nanos) {
        for actor in LINE {
            for _ in 0..RUNS_ENOUGH {
                send(dispatch, actor);
                assert_eq!(take(dispatch, 0, batch), [(actor, 1)], "of unknown length");
                end(dispatch, 0, batch, each);
            }
        }
    }

    #[test]
    fn short_messages_are_taken_together_and_long_ones_alone() {
        for policy in [PolicyName::Fcfs, PolicyName::Drr] {
            for (each, many) in [(100, BATCH_MESSAGES), (1_000, 5), (6_000, 1)] {
                let (mut dispatch, mut batch) = (dispatch(policy, 1), Batch::default());
                learn(&mut dispatch, &mut batch, Nanos(each));
                (0..40).for_each(|_| send(&mut dispatch, 1));
                assert_eq!(
                    take(&mut dispatch, 0, &mut batch),
                    [(1, many)],
                    "{policy:?} {each}"
                );
            }
        }
    }

    #[test]
    fn a_run_that_took_long_once_does_not_end_batches_and_many_do() {
        let (mut dispatch, mut batch) = (dispatch(PolicyName::Fcfs, 1), Batch::default());
        learn(&mut dispatch, &mut batch, Nanos(100));
        (0..200).for_each(|_| send(&mut dispatch, 1));
        let mut sizes = Vec::new();
        for _ in 0..10 {
            sizes.push(take(&mut dispatch, 0, &mut batch)[0].1);
            end(&mut dispatch, 0, &mut batch, Nanos::from_millis(4));
        }
        assert_eq!(sizes[..2], [BATCH_MESSAGES, 25]);
        assert_eq!(sizes[9], 1, "{sizes:?}");
    }

    #[test]
    fn a_batch_of_the_line_has_one_run_of_each_actor() {
        let (mut dispatch, mut batch) = (dispatch(PolicyName::Fcfs, 2), Batch::default());
        learn(&mut dispatch, &mut batch, Nanos(100));
        for _ in 0..4 {
            LINE.iter().for_each(|actor| send(&mut dispatch, *actor));
        }
        assert_eq!(take(&mut dispatch, 0, &mut batch), [(0, 4), (1, 4), (2, 4)]);
        // While they run, another core has nothing to do with them; what came meanwhile is first when they have.
        send(&mut dispatch, 2);
        let mut other = Batch::default();
        assert_eq!(take(&mut dispatch, 1, &mut other), []);
        assert!(!dispatch.has_some());
        end(&mut dispatch, 0, &mut batch, Nanos(100));
        send(&mut dispatch, 0);
        assert_eq!(take(&mut dispatch, 1, &mut other), [(2, 1), (0, 1)]);
    }

    /// Two clients whose messages wait in the lines of the cores 0 and 1.
    fn clients_of_two_cores() -> [u64; 2] {
        let is_of_first = |client: &u64| {
            let mut dispatch = dispatch_with(PolicyName::Fcfs, Queues::PerCore, 2);
            send_from(&mut dispatch, *client, 0);
            dispatch.line.source(CoreId(0)).is_some_and(|of| !of.is_stolen)
        };
        let first = (0..).find(is_of_first).unwrap();
        [first, (0..).find(|client| !is_of_first(client)).unwrap()]
    }

    #[test]
    fn a_core_serves_its_own_clients_and_then_those_of_the_other_one() {
        let clients = clients_of_two_cores();
        let mut dispatch = dispatch_with(PolicyName::Fcfs, Queues::PerCore, 2);
        let (mut batch, mut other) = (Batch::default(), Batch::default());
        send_from(&mut dispatch, clients[0], 0);
        send_from(&mut dispatch, clients[1], 1);
        send_from(&mut dispatch, clients[1], 2);
        assert_eq!(take(&mut dispatch, 1, &mut other), [(1, 1)]);
        assert_eq!(take(&mut dispatch, 0, &mut batch), [(0, 1)]);
        assert!(!other.is_stolen && !batch.is_stolen);
        end(&mut dispatch, 0, &mut batch, Nanos(100));
        // The other core still runs; this one has nothing of its own.
        assert!(dispatch.has_for(CoreId(0)));
        assert_eq!(take(&mut dispatch, 0, &mut batch), [(2, 1)]);
        assert!(batch.is_stolen);
    }

    /// Clients of both cores ask one actor. A core that steals gets what came first, and no other core its later ones.
    #[test]
    fn stealing_keeps_the_order_of_an_actor_and_runs_it_on_one_core() {
        let clients = clients_of_two_cores();
        let mut dispatch = dispatch_with(PolicyName::Fcfs, Queues::PerCore, 2);
        let (mut batch, mut other) = (Batch::default(), Batch::default());
        let came = [1, 0, 0, 1, 0].map(|client| clients[client]);
        came.iter()
            .for_each(|client| send_from(&mut dispatch, *client, 0));
        let mut served = Vec::new();
        for core in [0, 1, 1, 0, 1] {
            assert_eq!(
                take(&mut dispatch, core, &mut batch),
                [(0, 1)],
                "of unknown length"
            );
            served.push(u64::from(batch.runs[0].messages[0].kind));
            assert_eq!(take(&mut dispatch, 1 - core, &mut other), [], "it runs elsewhere");
            assert!(!dispatch.has_some(), "nothing that a core can start");
            end(&mut dispatch, core, &mut batch, Nanos(100));
        }
        assert_eq!(served, came);
        assert!(!dispatch.has_some());
    }

    /// An actor has messages of 2 ms, and later of 20 us, beside others of 20 us.
    #[test]
    fn decisions_are_told_with_what_they_depend_on() {
        let (mut dispatch, mut batch) = (dispatch(PolicyName::Hybrid, 2), Batch::default());
        let mut now = Nanos::from_millis(1);
        let mut serve = |actor: u32, each: Nanos, count: u32| {
            for _ in 0..count {
                let to = Address::Actor(ActorId(actor));
                let message = Message::new(to, Address::Outside(0), 0, Vec::new(), now);
                dispatch.accept(message).unwrap();
                // The last core serves both groups.
                dispatch.take(CoreId(1), &mut batch);
                now = now + each;
                for run in &mut batch.runs {
                    (run.ended, run.ran, run.at) = (run.messages.len(), each, now);
                }
                dispatch.finish(CoreId(1), &mut batch);
            }
            std::mem::take(&mut dispatch.decided)
        };
        let short = Nanos::from_micros(20);
        assert!(serve(1, short, 200).is_empty());
        let goes = serve(0, Nanos::from_millis(2), 500);
        // The line forgets how long those were.
        assert!(serve(2, short, 8_000).is_empty());
        let returns = serve(0, short, 4_000);
        for (decided, group) in [(&goes, Group::Drr), (&returns, Group::Fcfs)] {
            assert_eq!(decided.len(), 1, "{decided:#?}");
            let Decided { case, decisions, .. } = &decided[0];
            assert_eq!(
                decisions,
                &[
                    Decision::Actor(ActorId(0), group),
                    Decision::Core(CoreId(1), group)
                ]
            );
            assert_eq!(&case.decide(), decisions);
            let limits = (case.tail_threshold_ns, case.returns_below_ns, case.cores);
            assert_eq!(limits, (200_000, 180_000, 2));
        }
        let (of_line, of_actor) = (goes[0].case.line_tail_ns, &goes[0].case.actors[0]);
        assert!(
            of_line > 200_000 && of_actor.service_tail_ns >= 2_000_000,
            "{goes:#?}"
        );
        let back = &returns[0].case.actors[0];
        assert!(
            back.response_tail_ns < 180_000 && back.service_tail_ns < 30_000,
            "{returns:#?}"
        );
    }

    #[test]
    fn an_actor_that_runs_leaves_the_round_and_keeps_what_it_saved() {
        let (mut dispatch, mut batch) = (dispatch(PolicyName::Drr, 2), Batch::default());
        learn(&mut dispatch, &mut batch, Nanos::from_micros(6));
        (0..5).for_each(|_| send(&mut dispatch, 0));
        send(&mut dispatch, 1);
        // 20 us pay for three messages of 6.
        let mut other = Batch::default();
        assert_eq!(take(&mut dispatch, 0, &mut batch), [(0, 1)]);
        assert_eq!(take(&mut dispatch, 1, &mut other), [(1, 1)]);
        end(&mut dispatch, 1, &mut other, Nanos::from_micros(6));
        assert_eq!(take(&mut dispatch, 1, &mut other), []);
        end(&mut dispatch, 0, &mut batch, Nanos::from_micros(6));
        assert_eq!(take(&mut dispatch, 1, &mut other), [(0, 1)]);
    }
}
