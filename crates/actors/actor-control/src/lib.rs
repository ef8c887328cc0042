//! What inco and a side of a service of actors say to each other. A side is a process in a container, and not
//! trusted: each of its messages is bounded and checked here, and says nothing about anything but its own actors.
//! This crate never decides what follows from a message.
//!
//! Key types: [`ToSide`] and [`FromSide`] (the messages), [`Listener`] (where a side waits for inco), [`Connection`]
//! (either end).
//!
//! 1. The side listens on a socket in the directory that it shares with inco ([`Listener::bind`]), as it does for
//!    memif and for the page of counters. So a next run of inco finds it again.
//! 2. inco connects ([`Connection::connect`]: never through a symbolic link), and the side says [`FromSide::Hello`].
//! 3. inco says [`ToSide::Settings`], then [`ToSide::Actor`] for each actor with the descriptor of its region,
//!    perhaps [`ToSide::Attach`] with that of the channel, and [`ToSide::Begin`]. The side prepares all of it, and
//!    says [`FromSide::Ready`]. Nothing runs before [`ToSide::Start`].
//! 4. From then on the side says [`FromSide::Report`] when something has changed, and answers each
//!    [`ToSide::Command`] and [`ToSide::PeerEnded`].
//! 5. If inco goes, the side goes on. It says to the next run that it has begun, and the number of its channel.
//!
//! **A message** is a JSON object in a packet of a `SOCK_SEQPACKET` socket, of at most [`MESSAGE_BYTES`]. Unknown
//! fields are ignored, unknown messages are errors. A change that an older end would misunderstand is a new
//! [`VERSION`].
#![forbid(unsafe_code)]

mod connection;
mod message;

pub use connection::{Connection, Error, InOfInco, InOfSide, Listener, Received};
pub use message::{
    ACTORS_LIMIT, Begin, CORES_LIMIT, Command, Counts, Declaration, EVENTS_LIMIT, FromSide, Group, Happening,
    Line, MESSAGE_BYTES, Nonsense, Noted, Phase, REASON_BYTES, ROUTES_LIMIT, ROWS_LIMIT, RUNNING_TOLD_NS,
    Said, Settings, Side, ToSide, VERSION, WORD_BYTES, What, Why, read, reason, write,
};
