//! Messages and who they are for.

use actor_scheduling::ActorId;
use model::Nanos;

/// Where a message goes, or comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// An actor of this runtime.
    Actor(ActorId),
    /// Somebody outside, by a number whose meaning the [`Outside`](crate::Outside) of the runtime knows: a connection, a
    /// peer, the other side.
    Outside(u64),
}

/// A message. Its body belongs to it: no memory is shared between actors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Who gets it.
    pub to: Address,
    /// Who sent it.
    pub from: Address,
    /// What it is; the actors agree on the meaning.
    pub kind: u32,
    /// What it says; at most [`BODY_BYTES_LIMIT`].
    pub body: Vec<u8>,
    /// When it came, on the clock of its runtime. A response time counts from here.
    pub arrived: Nanos,
    /// How long it has run so far, where an actor has yielded.
    pub(crate) ran: Nanos,
}

/// Bytes of a message's body, at most: a longer one is refused.
pub const BODY_BYTES_LIMIT: usize = 64 << 10;

impl Message {
    /// A message that came at this time.
    pub fn new(to: Address, from: Address, kind: u32, body: Vec<u8>, arrived: Nanos) -> Message {
        Message {
            to,
            from,
            kind,
            body,
            arrived,
            ran: Nanos::ZERO,
        }
    }
}

/// Why a message was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// As many of its receiver's messages wait as may.
    #[error("the mailbox is full")]
    MailboxFull,
    /// Nobody has that address here.
    #[error("no such actor")]
    NoSuchActor,
    /// Its body is longer than [`BODY_BYTES_LIMIT`].
    #[error("the message is too long")]
    TooLong,
}
