//! What one side knows about where an actor is: the steps of both roles in a move.

use std::collections::VecDeque;

use crate::message::Message;
use crate::record::{Record, Verdict, who_runs};

/// What a side learns. `R`: a request to the actor.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Input<R> {
    /// A request came to this side, from the network or from an actor here.
    Request(R),
    /// The other side says something.
    Received(Message<R>),
    /// The actor shall move to the other side. Without effect if it is not here, or already moves.
    Move,
    /// The move takes too long: the actor goes on here, if it still can.
    Cancel,
    /// The actor has finished all that it had, after [`Effect::Stop`].
    Quiet,
    /// There is an empty region for the objects, after [`Effect::TakeRegion`]; or there is none.
    Region(bool),
    /// All objects were sent, after [`Effect::SendObjects`].
    ObjectsSent,
    /// All objects are here and right, after [`Effect::FinishImport`]; or they are not.
    Imported(bool),
    /// The other side's process has ended. With what it has noted beside the objects, if they are still there and it was not
    /// in the middle of a message.
    PeerEnded(Option<Record>),
}

/// What is to be done, in this order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Effect<R> {
    /// The request goes to the actor's mailbox.
    Deliver(R),
    /// The request was held during a move: it goes to the actor's mailbox, however full that is. The number of such requests
    /// has its own limit.
    DeliverHeld(R),
    /// The other side is to be told, behind all that it was told before.
    Send(Message<R>),
    /// The actor finishes what is in its mailbox; then [`Input::Quiet`].
    Stop,
    /// The actor goes on after [`Effect::Stop`].
    GoOn,
    /// An empty region for the objects is needed; then [`Input::Region`].
    TakeRegion,
    /// The objects go to the other side, as [`Message::Objects`]; then [`Input::ObjectsSent`].
    SendObjects(u32),
    /// No objects are sent any longer.
    StopSending,
    /// The objects that came are checked as a whole; then [`Input::Imported`].
    FinishImport,
    /// What came of the objects is dropped.
    DropImport,
    /// To be written beside the objects before anything that follows.
    Note(Record),
    /// The actor starts here, with the objects that came.
    Start,
    /// The objects here are of no use any longer.
    FreeObjects,
    /// The request cannot be held: too many are, or the actor is lost.
    Refuse(R),
    /// How a move, or the actor, has ended here.
    Report(Outcome),
}

/// How a move has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// The actor is on the other side.
    Moved,
    /// The actor came from the other side.
    Came,
    /// The actor is where it was.
    Stayed(Stayed),
    /// The actor runs nowhere: its state is lost.
    Lost,
}

/// Why an actor stayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stayed {
    /// The target had no region for it.
    Refused,
    /// The target could not take its objects.
    Failed,
    /// It took too long.
    Cancelled,
    /// The other side's process has ended.
    PeerEnded,
}

/// The phases of a move, at its source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Phase {
    /// The target gets ready; requests are held.
    Prepare,
    /// The actor finishes what it has.
    Ready,
    /// The objects go.
    Gone,
    /// What was held is forwarded.
    Clean,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum State {
    Here,
    /// The source in its first three phases.
    Leaving(Phase),
    /// The source in its last phase.
    Left,
    Away,
    /// The target before it has a region.
    Invited,
    /// The target while objects come, and while they are checked.
    Receiving,
    /// The target with all objects.
    Complete,
    /// The target that runs the actor, while held requests come from the source.
    Draining,
    Lost,
}

/// What one side knows about where an actor is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Residence<R> {
    state: State,
    /// What this side has noted last.
    record: Record,
    /// The number of the last attempt.
    attempt: u32,
    held: VecDeque<R>,
    held_limit: usize,
}

impl<R> Residence<R> {
    /// The actor starts here, or on the other side. `held_limit`: requests that are held during a move, at most.
    pub fn new(is_here: bool, held_limit: usize) -> Residence<R> {
        Residence {
            state: if is_here { State::Here } else { State::Away },
            record: if is_here { Record::Here } else { Record::Away },
            attempt: 0,
            held: VecDeque::new(),
            held_limit,
        }
    }

    /// After a restart of this side, by what it and the other side have noted. The other one was told before, and has
    /// done all that followed. Of a side that has ended the record counts only if its region is there and it was not in the
    /// middle of a message; of one that lives it counts in any case.
    pub fn restart(
        own: Option<Record>,
        peer: Option<Record>,
        held_limit: usize,
        effects: &mut Vec<Effect<R>>,
    ) -> Residence<R> {
        let mut residence = Residence::new(false, held_limit);
        residence.record = own.unwrap_or_default();
        match who_runs(own, peer) {
            Verdict::First => {
                residence.note(Record::Here, effects);
                effects.push(Effect::Start);
                residence.state = State::Here;
            }
            Verdict::Second => {}
            Verdict::Lost => residence.lose(effects),
        }
        residence
    }

    /// The phase of a move that this side is the source of.
    pub fn phase(&self) -> Option<Phase> {
        match self.state {
            State::Leaving(phase) => Some(phase),
            State::Left => Some(Phase::Clean),
            _ => None,
        }
    }

    /// Whether this side has the actor: it runs here, or leaves and may still stay.
    pub fn is_here(&self) -> bool {
        matches!(self.state, State::Here | State::Leaving(_) | State::Draining)
    }

    /// What this side has noted last.
    pub fn record(&self) -> Record {
        self.record
    }

    /// Whether the actor is lost.
    pub fn is_lost(&self) -> bool {
        self.state == State::Lost
    }

    /// Whether a part of the objects of this attempt is expected.
    pub fn expects_objects(&self, attempt: u32) -> bool {
        self.state == State::Receiving && attempt == self.attempt
    }

    /// Requests held.
    pub fn held(&self) -> usize {
        self.held.len()
    }

    /// Takes what this side learns, and adds what is to be done. What comes at a time when it means nothing has no effect.
    pub fn step(&mut self, input: Input<R>, effects: &mut Vec<Effect<R>>) {
        match input {
            Input::Request(request) | Input::Received(Message::Request(request)) => {
                self.request(request, effects)
            }
            Input::Received(message) => self.received(message, effects),
            Input::Move => {
                if self.state == State::Here {
                    self.attempt = self.attempt.wrapping_add(1);
                    self.state = State::Leaving(Phase::Prepare);
                    effects.push(Effect::Send(Message::Prepare(self.attempt)));
                }
            }
            Input::Cancel => {
                if let State::Leaving(phase) = self.state {
                    effects.push(Effect::Send(Message::Abort(self.attempt)));
                    self.stay(phase, Stayed::Cancelled, effects);
                }
            }
            Input::Quiet => {
                if self.state == State::Leaving(Phase::Ready) {
                    self.state = State::Leaving(Phase::Gone);
                    effects.push(Effect::SendObjects(self.attempt));
                }
            }
            Input::Region(is_there) => {
                if self.state == State::Invited {
                    if is_there {
                        self.state = State::Receiving;
                        effects.push(Effect::Send(Message::Prepared(self.attempt)));
                    } else {
                        effects.push(Effect::Send(Message::Refused(self.attempt)));
                        self.stay_away(effects);
                    }
                }
            }
            Input::ObjectsSent => {
                if self.state == State::Leaving(Phase::Gone) {
                    effects.push(Effect::Send(Message::ObjectsEnd(self.attempt)));
                }
            }
            Input::Imported(is_right) => {
                if self.state == State::Receiving {
                    if is_right {
                        self.state = State::Complete;
                        self.note(Record::Complete, effects);
                        effects.push(Effect::Send(Message::Complete(self.attempt)));
                    } else {
                        effects.push(Effect::Send(Message::Failed(self.attempt)));
                        self.drop_import(effects);
                        self.stay_away(effects);
                    }
                }
            }
            Input::PeerEnded(record) => self.peer_ended(record, effects),
        }
    }

    fn request(&mut self, request: R, effects: &mut Vec<Effect<R>>) {
        match self.state {
            State::Here => effects.push(Effect::Deliver(request)),
            State::Left | State::Away => effects.push(Effect::Send(Message::Request(request))),
            State::Lost => effects.push(Effect::Refuse(request)),
            _ if self.held.len() >= self.held_limit => effects.push(Effect::Refuse(request)),
            _ => self.held.push_back(request),
        }
    }

    fn received(&mut self, message: Message<R>, effects: &mut Vec<Effect<R>>) {
        // The only message of an attempt that this side has not heard of.
        if let Message::Prepare(attempt) = message {
            if self.state == State::Away {
                self.attempt = attempt;
                self.state = State::Invited;
                effects.push(Effect::TakeRegion);
            } else {
                effects.push(Effect::Send(Message::Refused(attempt)));
            }
            return;
        }
        let is_of = |attempt: u32| attempt == self.attempt;
        match (&self.state, message) {
            (State::Leaving(Phase::Prepare), Message::Prepared(attempt)) if is_of(attempt) => {
                self.state = State::Leaving(Phase::Ready);
                effects.push(Effect::Stop);
            }
            (State::Leaving(phase), Message::Refused(attempt)) if is_of(attempt) => {
                self.stay(*phase, Stayed::Refused, effects);
            }
            (State::Leaving(phase), Message::Failed(attempt)) if is_of(attempt) => {
                self.stay(*phase, Stayed::Failed, effects);
            }
            (State::Leaving(Phase::Gone), Message::Complete(attempt)) if is_of(attempt) => {
                self.state = State::Left;
                self.note(Record::Gone, effects);
                effects.push(Effect::Send(Message::Start(attempt)));
                let held = self.held.drain(..);
                effects.extend(held.map(|request| Effect::Send(Message::Forward(attempt, request))));
                effects.push(Effect::Send(Message::ForwardEnd(attempt)));
            }
            (State::Left, Message::Started(attempt)) if is_of(attempt) => effects.push(Effect::FreeObjects),
            (State::Left, Message::Cleaned(attempt)) if is_of(attempt) => {
                self.state = State::Away;
                effects.push(Effect::Report(Outcome::Moved));
            }
            (State::Receiving, Message::ObjectsEnd(attempt)) if is_of(attempt) => {
                effects.push(Effect::FinishImport);
            }
            (State::Complete, Message::Start(attempt)) if is_of(attempt) => {
                self.state = State::Draining;
                self.note(Record::Here, effects);
                effects.push(Effect::Start);
                effects.push(Effect::Send(Message::Started(attempt)));
            }
            (State::Draining, Message::Forward(attempt, request)) if is_of(attempt) => {
                effects.push(Effect::DeliverHeld(request));
            }
            (State::Draining, Message::ForwardEnd(attempt)) if is_of(attempt) => {
                effects.push(Effect::Send(Message::Cleaned(attempt)));
                self.drained(effects);
            }
            (State::Invited | State::Receiving | State::Complete, Message::Abort(attempt))
                if is_of(attempt) =>
            {
                self.drop_import(effects);
                self.stay_away(effects);
            }
            // Of an attempt that has ended.
            _ => {}
        }
    }

    fn note(&mut self, record: Record, effects: &mut Vec<Effect<R>>) {
        self.record = record;
        effects.push(Effect::Note(record));
    }

    /// The source goes on with the actor.
    fn stay(&mut self, phase: Phase, why: Stayed, effects: &mut Vec<Effect<R>>) {
        if phase == Phase::Gone {
            effects.push(Effect::StopSending);
        }
        self.state = State::Here;
        if phase > Phase::Prepare {
            effects.push(Effect::GoOn);
        }
        effects.extend(self.held.drain(..).map(Effect::DeliverHeld));
        effects.push(Effect::Report(Outcome::Stayed(why)));
    }

    /// The target drops what has come. The note is taken back before: what it says must be there.
    fn drop_import(&mut self, effects: &mut Vec<Effect<R>>) {
        if self.state == State::Complete {
            self.note(Record::Away, effects);
        }
        effects.push(Effect::DropImport);
    }

    /// The target gives what it held to the source.
    fn stay_away(&mut self, effects: &mut Vec<Effect<R>>) {
        self.state = State::Away;
        let held = self.held.drain(..);
        effects.extend(held.map(|request| Effect::Send(Message::Request(request))));
    }

    /// The target has all that the source held.
    fn drained(&mut self, effects: &mut Vec<Effect<R>>) {
        self.state = State::Here;
        effects.extend(self.held.drain(..).map(Effect::DeliverHeld));
        effects.push(Effect::Report(Outcome::Came));
    }

    fn lose(&mut self, effects: &mut Vec<Effect<R>>) {
        self.state = State::Lost;
        effects.extend(self.held.drain(..).map(Effect::Refuse));
        effects.push(Effect::Report(Outcome::Lost));
    }

    fn peer_ended(&mut self, peer: Option<Record>, effects: &mut Vec<Effect<R>>) {
        match self.state {
            State::Here | State::Lost => {}
            State::Leaving(phase) => self.stay(phase, Stayed::PeerEnded, effects),
            // What the source had not forwarded is lost with it.
            State::Draining => self.drained(effects),
            State::Left => match who_runs(Some(self.record), peer) {
                Verdict::Second => {
                    self.state = State::Away;
                    effects.push(Effect::FreeObjects);
                    effects.push(Effect::Report(Outcome::Moved));
                }
                _ => self.lose(effects),
            },
            State::Away => {
                if who_runs(Some(self.record), peer) != Verdict::Second {
                    self.lose(effects);
                }
            }
            State::Invited | State::Receiving | State::Complete => match who_runs(Some(self.record), peer) {
                Verdict::First => {
                    self.note(Record::Here, effects);
                    effects.push(Effect::Start);
                    self.drained(effects);
                }
                Verdict::Second => {
                    self.drop_import(effects);
                    self.stay_away(effects);
                }
                Verdict::Lost => {
                    self.drop_import(effects);
                    self.lose(effects);
                }
            },
        }
    }
}
