//! Keeps file descriptors for a program that may die, and gives them to its next run: shared memory, sockets and
//! event descriptors stay alive, and their peers notice nothing.
//!
//! A small process that does nothing else dangerous runs a [`Server`]. The program is a [`Keeper`], its client. An
//! [`Entry`] has a name, a note (text that says what the descriptors are) and descriptors.
//!
//! 1. [`Keeper::connect`], then [`Keeper::take`]: the entries of the run before.
//! 2. [`Keeper::keep`] while the program runs, [`Keeper::forget`] for what has ended.
//! 3. The program dies. The server still has all entries. How long it waits is up to its process:
//!    [`Server::linger`] says what the program asked for.
//!
//! **Trust.** The socket is for root and for the user who runs the server ([`Server::bind`] checks both ends'
//! credentials). All else is bounded: entries, names, notes, descriptors, clients, and the time of an answer.
//!
//! **Versions.** The two ends may come from different releases. A message is a JSON object; unknown fields are
//! ignored, and an unknown request is refused. So a new request needs no new version.
#![forbid(unsafe_code)]

mod client;
mod message;
mod server;
mod store;

use std::os::fd::OwnedFd;

pub use client::Keeper;
pub use server::{Order, Server};

/// The socket's name in a run directory.
pub const SOCKET: &str = "keeper.sock";
/// Entries that are kept at most: one for each slot of a switch, and as many again for all else.
pub const MAX_ENTRIES: usize = 2048;
/// The longest name, in bytes.
pub const MAX_NAME_BYTES: usize = 96;
/// The longest note, in bytes: a port of 32 queue pairs has 7 KiB.
pub const MAX_NOTE_BYTES: usize = 24 * 1024;
/// Descriptors of an entry at most. The kernel takes 253 in a message.
pub const MAX_FILES: usize = 192;
/// Clients that are connected at once at most.
pub const MAX_CLIENTS: usize = 4;
/// Descriptors that the server's process has for itself: those below its limit that no entry takes.
pub const RESERVED_FILES: u64 = 128;

/// What is kept under a name.
#[derive(Debug)]
pub struct Entry {
    /// The name.
    pub name: String,
    /// What the descriptors are, in words of whoever keeps them.
    pub note: String,
    /// At least one.
    pub files: Vec<OwnedFd>,
}

/// Why something could not be kept or taken.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The server does not answer.
    #[error("the keeper does not answer: {source}")]
    Unreachable {
        /// What the kernel said.
        source: std::io::Error,
    },
    /// The server answered, but not with what was asked.
    #[error("the keeper refused: {reason}")]
    Refused {
        /// Its reason.
        reason: String,
    },
    /// The caller's entry exceeds a limit.
    #[error("{what} of {asked}: the limit is {limit}")]
    Limit {
        /// What there is too much of.
        what: &'static str,
        /// How much.
        asked: usize,
        /// The limit.
        limit: usize,
    },
    /// The other end is neither root nor the own user.
    #[error("the other end of the keeper's socket is user {uid}: neither root nor this user")]
    Stranger {
        /// Its user.
        uid: u32,
    },
}

impl Error {
    fn unreachable(errno: rustix::io::Errno) -> Error {
        Error::Unreachable { source: errno.into() }
    }
}
