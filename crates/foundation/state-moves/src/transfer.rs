//! The steps of one move, as a state machine without input or output.

use model::Nanos;

use crate::message::{Message, NotMoved};

/// How long a move may last until the destination has acknowledged the state: longer than a function with a small CPU
/// quota waits for its next period, and shorter than a user notices.
pub const TIME_LIMIT: Nanos = Nanos::from_millis(50);
/// Packets that a worker holds for all its moves with state, at most.
pub const HELD_LIMIT: usize = 4096;

/// One of the two instances.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Party {
    /// It has the flow.
    Source,
    /// It is to have it.
    Destination,
}

/// What a move learns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    /// The source says [`Message::Passed`].
    Passed {
        /// Where it was asked.
        of: u8,
        /// By which port it says so.
        by: u8,
    },
    /// The source gives its state.
    Exported,
    /// The destination has it.
    Imported,
    /// That party says [`Message::Refused`].
    Refused(Party, NotMoved),
    /// The time or the number of packets is at its limit.
    AtLimit,
    /// A message found no room in the ring of an instance.
    NoRoom,
    /// That party has failed, or has left.
    Gone(Party),
    /// The flow has ended, or was purged.
    FlowEnded,
}

impl Input {
    /// What a message of that party is for a move; [`None`] if it is none that this party sends.
    pub fn of(message: &Message<'_>, from: Party) -> Option<Input> {
        match (message, from) {
            (&Message::Passed { of, by }, Party::Source) => Some(Input::Passed { of, by }),
            (Message::Exported(_), Party::Source) => Some(Input::Exported),
            (Message::Imported, Party::Destination) => Some(Input::Imported),
            (&Message::Refused(why), from) => Some(Input::Refused(from, why)),
            _ => None,
        }
    }
}

/// A request to an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// [`Message::Export`] to the source.
    Export,
    /// [`Message::Import`] to the destination, with what the source has just given.
    Import,
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing: it waits, or what it learnt does not belong to its phase.
    Wait,
    /// This is to be sent.
    Send(Request),
    /// It is over.
    End(End),
}

/// Why a move has ended without one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cancelled {
    /// A limit was reached.
    Limit,
    /// An instance refused.
    Refused(NotMoved),
    /// A message found no room in the ring of an instance.
    NoRoom,
    /// An instance has failed, or has left.
    Gone(Party),
    /// The flow has ended.
    FlowEnded,
}

/// Where the held packets go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goes {
    /// To that instance.
    To(Party),
    /// Wherever the scheduler sends them: the flow has no instance any more.
    Anew,
}

/// The end of a move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    /// Why the flow did not move; [`None`] if it did, and is to be pinned to the destination.
    pub cancelled: Option<Cancelled>,
    /// Where the held packets go, before any later one.
    pub goes: Goes,
    /// Who is to drop its copy: [`Message::Forget`].
    pub forgets: Option<Party>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Of which ports the source has said by which ports that all has passed: a bit for each pair.
    Passing(u8),
    Exporting,
    Importing,
    Over,
}

/// One move. It begins when [`Message::Pass`] was sent to each data port of the source.
#[derive(Clone, Copy, Debug)]
pub struct Transfer {
    phase: Phase,
    /// Data ports of the source: 1 or 2.
    ports: u8,
    source_is_gone: bool,
}

impl Transfer {
    /// Of a flow whose source has so many data ports: 1 or 2.
    pub fn new(ports: u8) -> Transfer {
        Transfer {
            phase: Phase::Passing(0),
            ports: ports.clamp(1, 2),
            source_is_gone: false,
        }
    }

    /// Whether it is over.
    pub fn is_over(&self) -> bool {
        self.phase == Phase::Over
    }

    fn cancel(&mut self, why: Cancelled, destination_may_have_it: bool) -> Step {
        let goes = match why {
            Cancelled::FlowEnded => Goes::Anew,
            _ if self.source_is_gone => Goes::Anew,
            _ => Goes::To(Party::Source),
        };
        let forgets =
            (self.phase == Phase::Importing && destination_may_have_it).then_some(Party::Destination);
        self.phase = Phase::Over;
        Step::End(End {
            cancelled: Some(why),
            goes,
            forgets,
        })
    }

    /// Takes what was learnt, and says what is to be done.
    pub fn step(&mut self, input: Input) -> Step {
        match (self.phase, input) {
            (Phase::Over, _) => Step::Wait,
            (Phase::Passing(seen), Input::Passed { of, by }) if of < self.ports && by < self.ports => {
                let seen = seen | 1 << (of * 2 + by);
                let all = (0..self.ports).all(|of| (0..self.ports).all(|by| seen & 1 << (of * 2 + by) != 0));
                self.phase = if all {
                    Phase::Exporting
                } else {
                    Phase::Passing(seen)
                };
                if all {
                    Step::Send(Request::Export)
                } else {
                    Step::Wait
                }
            }
            (Phase::Exporting, Input::Exported) => {
                self.phase = Phase::Importing;
                Step::Send(Request::Import)
            }
            (Phase::Importing, Input::Imported) => {
                self.phase = Phase::Over;
                Step::End(End {
                    cancelled: None,
                    goes: Goes::To(Party::Destination),
                    forgets: (!self.source_is_gone).then_some(Party::Source),
                })
            }
            (Phase::Exporting, Input::Refused(Party::Source, why))
            | (Phase::Importing, Input::Refused(Party::Destination, why)) => {
                self.cancel(Cancelled::Refused(why), false)
            }
            (_, Input::AtLimit) => self.cancel(Cancelled::Limit, true),
            // In the phase of the message that was not sent.
            (_, Input::NoRoom) => self.cancel(Cancelled::NoRoom, false),
            (_, Input::Gone(Party::Destination)) => self.cancel(Cancelled::Gone(Party::Destination), false),
            (phase, Input::Gone(Party::Source)) => {
                self.source_is_gone = true;
                // The destination may have the whole state by now, or soon.
                match phase {
                    Phase::Importing => Step::Wait,
                    _ => self.cancel(Cancelled::Gone(Party::Source), false),
                }
            }
            (_, Input::FlowEnded) => self.cancel(Cancelled::FlowEnded, true),
            (_, Input::Passed { .. } | Input::Exported | Input::Imported | Input::Refused(..)) => Step::Wait,
        }
    }
}
