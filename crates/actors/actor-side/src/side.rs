//! One side: the runtime's outside, which has the channel, and what the caller asks for.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use actor_channel::{End, SendError, Side};
use actor_migration::{Effect, Input, Message as Move, Outcome, Phase, Record, Residence, decode, encode};
use actor_objects::Objects;
use actor_runtime::{
    Actor, ActorId, Address, MAILBOX_LIMIT, Message, Outside, Registration, Runtime, Settings,
};
use model::Nanos;

use crate::resident::{Resident, Sending};
use crate::wire::{self, NETWORK};

/// The bit of numbers that belong to the host's network.
pub const HOST_NETWORK: u64 = 1 << 63;

/// Messages that are taken from the channel before something else is done.
const TAKEN: usize = 64;
/// Pieces of objects that are sent before something else is done.
const PIECES: usize = 4;
/// Messages that wait for room in the channel, at most. What a move says and forwards is not refused: its own limit is
/// [`Member::held_limit`].
const OUTBOX_LIMIT: usize = 1 << 16;

/// Events that nobody has taken, at most: the oldest go.
const EVENTS_LIMIT: usize = 1_024;

/// Makes an actor of a kind, with that number. Its state is in its objects. Nothing for an unknown kind.
pub type Make = Box<dyn Fn(&str, ActorId) -> Option<Box<dyn Actor>> + Send>;

/// An actor that both sides know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its number.
    pub actor: ActorId,
    /// What it is made from.
    pub kind: String,
    /// Messages that wait for it, at most.
    pub mailbox_limit: usize,
    /// Messages that are held while it moves, at most.
    pub held_limit: usize,
}

impl Member {
    /// With the default limits: 1,024 messages wait, 65,536 are held.
    pub fn new(actor: ActorId, kind: &str) -> Member {
        Member {
            actor,
            kind: kind.to_owned(),
            mailbox_limit: MAILBOX_LIMIT,
            held_limit: 1 << 16,
        }
    }
}

/// How an actor begins on a side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begin {
    /// It is new, and runs here.
    Here,
    /// It is new, and runs on the other side.
    Away,
    /// This side's process had ended. What both have noted beside the objects: `own` is [`None`] where the region is lost
    /// or a message was under way in it; then the region that is given is a new one. The other side has
    /// [heard](ActorSide::peer_ended) of the end before.
    Again {
        /// What this side had noted.
        own: Option<Record>,
        /// What the other side has noted.
        peer: Option<Record>,
    },
}

/// Why a side cannot do something.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The runtime refused it.
    #[error(transparent)]
    Runtime(#[from] actor_runtime::Error),
    /// Nobody makes actors of this kind, or not with these options.
    #[error(
        "no actor of kind `{0}` can be made: correct the kind, an option or a file of it; `inco logs` has more"
    )]
    UnknownKind(String),
    /// No actor has this number.
    #[error("{0} is not known here")]
    Unknown(ActorId),
    /// The actor has that number already.
    #[error("{0} is known already")]
    Known(ActorId),
    /// The actor is on the other side, moves, or is lost.
    #[error("{0} is not here, or moves already")]
    NotHere(ActorId),
    /// The channel takes shorter messages than actors may send.
    #[error("messages of {0} bytes in the channel; actors need {needed}", needed = wire::LONGEST)]
    ShortMessages(u32),
}

/// What happened to an actor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// The actor.
    pub actor: ActorId,
    /// When, on the runtime's clock.
    pub at: Nanos,
    /// What.
    pub kind: EventKind,
}

/// The kind of an [`Event`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// A phase of its move away from here begins.
    Phase(Phase),
    /// A move, or the actor, has ended here.
    Ended(Outcome),
}

/// An actor and where it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The actor.
    pub actor: ActorId,
    /// What it was made from.
    pub kind: String,
    /// Whether it is here.
    pub is_here: bool,
    /// Whether its state is lost: it runs nowhere.
    pub is_lost: bool,
    /// The phase of its move away from here.
    pub phase: Option<Phase>,
    /// Messages that are held for it.
    pub held: usize,
    /// What this side has noted last.
    pub record: Record,
}

/// What was counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Messages for actors that were refused: a mailbox, what is held, or what waits for the channel was full; or the actor
    /// is lost.
    pub refused: u64,
    /// Messages from the other side that say nothing.
    pub nonsense: u64,
    /// Times that the channel could not be used any longer.
    pub channels_lost: u64,
}

type Watch = Box<dyn FnMut(ActorId, &Effect<Message>) + Send>;

struct State {
    side: Side,
    /// Nothing once the side is gone: the runtime has this state.
    runtime: Option<Runtime>,
    end: Option<End>,
    residents: BTreeMap<ActorId, Resident>,
    make: Make,
    network: Box<dyn Outside>,
    outbox: VecDeque<(u32, Move<Message>)>,
    /// What leaves by this side's network.
    leaving: Vec<Message>,
    diverted: Vec<Message>,
    events: VecDeque<Event>,
    counts: Counts,
    watch: Option<Watch>,
    now: Nanos,
}

/// The actors of one side: see the crate's text. Dropped, its cores end with their threads; what they have in hand ends
/// first.
pub struct ActorSide {
    runtime: Runtime,
    state: Arc<Mutex<State>>,
}

impl fmt::Debug for ActorSide {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ActorSide").finish_non_exhaustive()
    }
}

/// What the runtime calls.
struct Door(Arc<Mutex<State>>);

/// A lock whose holder panicked: the program ends by that panic.
fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Outside for Door {
    fn poll(&mut self, now: Nanos, into: &mut Vec<Message>) {
        let mut state = lock(&self.0);
        state.now = now;
        state.turn();
        state.network.poll(now, into);
    }

    fn send(&mut self, messages: &mut Vec<Message>) {
        lock(&self.0).send_out(messages);
    }
}

impl ActorSide {
    /// A side without actors and without a channel. `network` is what comes and leaves here.
    pub fn new(side: Side, settings: &Settings, network: Box<dyn Outside>, make: Make) -> ActorSide {
        let state = Arc::new(Mutex::new(State {
            side,
            runtime: None,
            end: None,
            residents: BTreeMap::new(),
            make,
            network,
            outbox: VecDeque::new(),
            leaving: Vec::new(),
            diverted: Vec::new(),
            events: VecDeque::new(),
            counts: Counts::default(),
            watch: None,
            now: Nanos::ZERO,
        }));
        let runtime = Runtime::new(settings, Box::new(Door(Arc::clone(&state))));
        lock(&state).runtime = Some(runtime.clone());
        ActorSide { runtime, state }
    }

    /// The runtime of this side: its cores must serve.
    pub fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// Gives it its end of the channel. What waits for the other side goes there.
    ///
    /// # Errors
    /// The channel takes too short messages.
    pub fn attach(&self, end: End) -> Result<(), Error> {
        let longest = end.limits().message_bytes;
        if (longest as usize) < wire::LONGEST {
            return Err(Error::ShortMessages(longest));
        }
        lock(&self.state).end = Some(end);
        Ok(())
    }

    /// Adds an actor that both sides know, with its region on this side: an empty one, unless the side begins again.
    ///
    /// # Errors
    /// The number is known or above the runtime's limit, the kind is unknown, the actor cannot prepare its state.
    pub fn add(&self, member: Member, mut objects: Objects, begin: Begin) -> Result<(), Error> {
        let actor = member.actor;
        let mut state = lock(&self.state);
        if state.residents.contains_key(&actor) {
            return Err(Error::Known(actor));
        }
        let made =
            (state.make)(&member.kind, actor).ok_or_else(|| Error::UnknownKind(member.kind.clone()))?;
        let mut effects = Vec::new();
        let (limit, mut kept) = (member.held_limit, None);
        let residence = match begin {
            Begin::Here => {
                objects.set_mark(Record::Here.to_bits());
                let registration = Registration::new(&member.kind, made)
                    .mailbox_limit(member.mailbox_limit)
                    .objects(objects);
                self.runtime.register(actor, registration)?;
                Residence::new(true, limit)
            }
            Begin::Away => {
                self.runtime.divert(actor)?;
                objects.set_mark(Record::Away.to_bits());
                kept = Some(objects);
                Residence::new(false, limit)
            }
            Begin::Again { own, peer } => {
                self.runtime.divert(actor)?;
                kept = Some(objects);
                Residence::restart(own, peer, limit, &mut effects)
            }
        };
        let resident = Resident {
            member,
            residence,
            objects: kept,
            import: None,
            is_broken: false,
            registration: None,
            stops: false,
            sending: None,
        };
        state.residents.insert(actor, resident);
        let runs = effects.contains(&Effect::Start);
        state.perform_all(actor, effects);
        if runs {
            self.runtime.stop_diverting(actor);
        }
        Ok(())
    }

    /// Has an actor move to the other side. It goes on meanwhile, until it has finished what it has.
    ///
    /// # Errors
    /// The actor is unknown, or not here.
    pub fn move_away(&self, actor: ActorId) -> Result<(), Error> {
        let mut state = lock(&self.state);
        let resident = state.residents.get(&actor).ok_or(Error::Unknown(actor))?;
        if !resident.residence.is_here() || resident.residence.phase().is_some() {
            return Err(Error::NotHere(actor));
        }
        self.runtime.divert(actor)?;
        state.step(actor, Input::Move);
        // An actor whose last messages come from the other side does not move back before it has them all.
        if state
            .residents
            .get(&actor)
            .is_some_and(|of| of.residence.phase().is_none())
        {
            return Err(Error::NotHere(actor));
        }
        Ok(())
    }

    /// Ends a move that takes too long: the actor goes on here, if it still can. Without a move it does nothing.
    pub fn cancel(&self, actor: ActorId) {
        lock(&self.state).step(actor, Input::Cancel);
    }

    /// The process of the other side has ended. `record` is what it has noted of an actor, where its region is there and no
    /// message was under way in it. What waits for the other side goes there when it is [back](ActorSide::attach).
    pub fn peer_ended(&self, record: impl Fn(ActorId) -> Option<Record>) {
        let mut state = lock(&self.state);
        state.end = None;
        // What moves said is void. What they forwarded comes to the actor as new.
        state.outbox = std::mem::take(&mut state.outbox)
            .into_iter()
            .filter_map(|(actor, said)| match said {
                Move::Request(message) | Move::Forward(_, message) => Some((actor, Move::Request(message))),
                _ => None,
            })
            .collect();
        let actors: Vec<ActorId> = state.residents.keys().copied().collect();
        for actor in actors {
            state.step(actor, Input::PeerEnded(record(actor)));
        }
    }

    /// The actors, and where they are.
    pub fn rows(&self) -> Vec<Row> {
        let state = lock(&self.state);
        let rows = state.residents.iter().map(|(actor, of)| Row {
            actor: *actor,
            kind: of.member.kind.clone(),
            is_here: of.residence.is_here(),
            is_lost: of.residence.is_lost(),
            phase: of.residence.phase(),
            held: of.residence.held(),
            record: of.residence.record(),
        });
        rows.collect()
    }

    /// What happened since the last call, oldest first: the last 1,024.
    pub fn take_events(&self) -> Vec<Event> {
        lock(&self.state).events.drain(..).collect()
    }

    /// What was counted.
    pub fn counts(&self) -> Counts {
        lock(&self.state).counts
    }

    /// Calls this before each effect of a move: to trace it, or to end the process there.
    pub fn watch(&self, watch: impl FnMut(ActorId, &Effect<Message>) + Send + 'static) {
        lock(&self.state).watch = Some(Box::new(watch));
    }
}

impl Drop for ActorSide {
    fn drop(&mut self) {
        lock(&self.state).runtime = None;
    }
}

impl State {
    /// What came from the other side, what goes there, and moves.
    fn turn(&mut self) {
        self.receive();
        self.take_diverted();
        self.look_whether_quiet();
        self.send();
        if let Some(end) = &mut self.end {
            end.flush(self.now);
        }
        if !self.leaving.is_empty() {
            self.network.send(&mut self.leaving);
            self.leaving.clear();
        }
    }

    fn lose_channel(&mut self) {
        self.end = None;
        self.counts.channels_lost += 1;
    }

    fn receive(&mut self) {
        for _ in 0..TAKEN {
            let Some(end) = &mut self.end else { return };
            let bytes = match end.receive() {
                Ok(Some(bytes)) => bytes,
                Ok(None) => return,
                Err(_) => return self.lose_channel(),
            };
            let Ok((actor, said)) = decode(bytes) else {
                self.counts.nonsense += 1;
                continue;
            };
            let of = ActorId(actor);
            if let Move::Objects(attempt, part) = said {
                if let Some(resident) = self.residents.get_mut(&of)
                    && resident.residence.expects_objects(attempt)
                {
                    resident.push(part);
                }
                continue;
            }
            match owned(actor, said, self.now) {
                Some(Move::Request(message)) if actor == NETWORK => self.leaving.push(message),
                Some(said) if self.residents.contains_key(&of) => self.step(of, Input::Received(said)),
                _ => self.counts.nonsense += 1,
            }
        }
    }

    /// Messages for actors that are not here, or move.
    fn take_diverted(&mut self) {
        let mut diverted = std::mem::take(&mut self.diverted);
        if let Some(runtime) = &self.runtime {
            runtime.take_diverted(&mut diverted);
        }
        for message in diverted.drain(..) {
            if let Address::Actor(actor) = message.to {
                self.step(actor, Input::Request(message));
            }
        }
        self.diverted = diverted;
    }

    /// Actors that are to leave, and have finished what they had.
    fn look_whether_quiet(&mut self) {
        let Some(runtime) = self.runtime.clone() else {
            return;
        };
        let stops = |(actor, of): (&ActorId, &Resident)| of.stops.then_some(*actor);
        let stopping: Vec<ActorId> = self.residents.iter().filter_map(stops).collect();
        for actor in stopping {
            if !runtime.is_quiet(actor) {
                continue;
            }
            // One that has failed is not registered any more; its objects are gone with it.
            let Ok((mut registration, _)) = runtime.remove(actor) else {
                self.step(actor, Input::Cancel);
                continue;
            };
            if let Some(resident) = self.residents.get_mut(&actor) {
                resident.stops = false;
                resident.objects = registration.take_objects();
                resident.registration = Some(registration);
            }
            self.step(actor, Input::Quiet);
        }
    }

    /// Sends what waits, then objects, as far as there is room.
    fn send(&mut self) {
        while let (Some(end), Some((actor, said))) = (&mut self.end, self.outbox.front()) {
            let head = encode(*actor, said);
            let sent = match said {
                Move::Request(message) | Move::Forward(_, message) => {
                    end.send(&[&head, &wire::head_of(message), &message.body])
                }
                _ => end.send(&[&head]),
            };
            match sent {
                Err(SendError::Full) => return,
                Ok(()) => {}
                // The channel was checked, and bodies are.
                Err(SendError::TooLong { .. }) => self.counts.refused += 1,
            }
            self.outbox.pop_front();
        }
        let sends = |(actor, of): (&ActorId, &Resident)| of.sending.is_some().then_some(*actor);
        let sending: Vec<ActorId> = self.residents.iter().filter_map(sends).collect();
        for actor in sending {
            self.send_objects(actor);
        }
    }

    fn send_objects(&mut self, actor: ActorId) {
        for _ in 0..PIECES {
            let (Some(end), Some(resident)) = (&mut self.end, self.residents.get_mut(&actor)) else {
                return;
            };
            let (Some(sending), Some(objects)) = (&mut resident.sending, &resident.objects) else {
                return;
            };
            let head = encode(actor.0, &Move::Objects(sending.attempt, ()));
            match sending.next(objects, &head, |parts| end.send(parts).is_ok()) {
                Some(true) => {}
                Some(false) => return,
                None => {
                    resident.sending = None;
                    return self.step(actor, Input::ObjectsSent);
                }
            }
        }
    }

    /// What actors send to the networks.
    fn send_out(&mut self, messages: &mut Vec<Message>) {
        let is_own = |message: &Message| {
            let Address::Outside(number) = message.to else {
                return true;
            };
            (number & HOST_NETWORK != 0) == (self.side == Side::Host)
        };
        if messages.iter().all(is_own) {
            return self.network.send(messages);
        }
        let (mut own, others): (Vec<Message>, Vec<Message>) = messages.drain(..).partition(is_own);
        self.network.send(&mut own);
        for message in others {
            self.put(NETWORK, Move::Request(message));
        }
    }

    fn put(&mut self, actor: u32, said: Move<Message>) {
        if self.outbox.len() >= OUTBOX_LIMIT && matches!(said, Move::Request(_)) {
            self.counts.refused += 1;
        } else {
            self.outbox.push_back((actor, said));
        }
    }

    /// Takes an input, and does what follows.
    fn step(&mut self, actor: ActorId, input: Input<Message>) {
        let Some(resident) = self.residents.get_mut(&actor) else {
            return;
        };
        let before = resident.residence.phase();
        let mut effects = Vec::new();
        resident.residence.step(input, &mut effects);
        if let Some(phase) = resident.residence.phase()
            && before != Some(phase)
        {
            self.note(actor, EventKind::Phase(phase));
        }
        self.perform_all(actor, effects);
    }

    fn note(&mut self, actor: ActorId, kind: EventKind) {
        if self.events.len() >= EVENTS_LIMIT {
            self.events.pop_front();
        }
        let at = self.now;
        self.events.push_back(Event { actor, at, kind });
    }

    fn perform_all(&mut self, actor: ActorId, effects: Vec<Effect<Message>>) {
        for effect in effects {
            if let Some(watch) = &mut self.watch {
                watch(actor, &effect);
            }
            if let Some(input) = self.perform(actor, effect) {
                self.step(actor, input);
            }
        }
    }

    /// Does something; gives what this side learns by it.
    fn perform(&mut self, actor: ActorId, effect: Effect<Message>) -> Option<Input<Message>> {
        let runtime = self.runtime.clone()?;
        let resident = self.residents.get_mut(&actor)?;
        match effect {
            Effect::Deliver(message) => {
                self.counts.refused += u64::from(runtime.deliver_here(message).is_err());
            }
            Effect::DeliverHeld(message) => {
                self.counts.refused += u64::from(runtime.deliver_held(message).is_err());
            }
            Effect::Send(said) => self.put(actor.0, said),
            Effect::Stop => resident.stops = true,
            Effect::GoOn => {
                resident.stops = false;
                if let (Some(registration), Some(objects)) =
                    (resident.registration.take(), resident.objects.take())
                {
                    // Its number is free: it has just left it.
                    let _adopted = runtime.adopt(actor, registration.objects(objects));
                }
            }
            Effect::TakeRegion => return Some(Input::Region(resident.begin_import())),
            Effect::SendObjects(attempt) => {
                let objects = resident.objects.as_ref();
                resident.sending = objects.map(|objects| Sending::new(attempt, objects));
            }
            Effect::StopSending => resident.sending = None,
            Effect::FinishImport => return Some(Input::Imported(resident.finish_import())),
            Effect::DropImport => resident.drop_import(),
            Effect::Note(record) => {
                if let Some(objects) = &mut resident.objects {
                    objects.set_mark(record.to_bits());
                }
            }
            Effect::Start => {
                let made = (self.make)(&resident.member.kind, actor);
                if let (Some(made), Some(objects)) = (made, resident.objects.take()) {
                    let registration = Registration::new(&resident.member.kind, made)
                        .mailbox_limit(resident.member.mailbox_limit)
                        .objects(objects);
                    // Its number is free: it was on the other side.
                    let _adopted = runtime.adopt(actor, registration);
                }
            }
            Effect::FreeObjects => {
                resident.registration = None;
                resident.free_objects();
            }
            Effect::Refuse(_) => self.counts.refused += 1,
            Effect::Report(outcome) => {
                if matches!(outcome, Outcome::Came | Outcome::Stayed(_)) {
                    runtime.stop_diverting(actor);
                }
                self.note(actor, EventKind::Ended(outcome));
            }
        }
        None
    }
}

/// What the other side says, with its message as the runtime has it; [`None`] for bytes that no side writes.
fn owned(actor: u32, said: Move<&[u8]>, now: Nanos) -> Option<Move<Message>> {
    Some(match said {
        Move::Request(bytes) => Move::Request(wire::read(actor, bytes, now)?),
        Move::Forward(attempt, bytes) => Move::Forward(attempt, wire::read(actor, bytes, now)?),
        Move::Objects(..) => return None,
        Move::Prepare(attempt) => Move::Prepare(attempt),
        Move::Prepared(attempt) => Move::Prepared(attempt),
        Move::Refused(attempt) => Move::Refused(attempt),
        Move::ObjectsEnd(attempt) => Move::ObjectsEnd(attempt),
        Move::Complete(attempt) => Move::Complete(attempt),
        Move::Failed(attempt) => Move::Failed(attempt),
        Move::Start(attempt) => Move::Start(attempt),
        Move::Started(attempt) => Move::Started(attempt),
        Move::ForwardEnd(attempt) => Move::ForwardEnd(attempt),
        Move::Cleaned(attempt) => Move::Cleaned(attempt),
        Move::Abort(attempt) => Move::Abort(attempt),
    })
}
