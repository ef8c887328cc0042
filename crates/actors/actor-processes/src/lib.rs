//! Native actors in processes of their own, by group: what iPipe's cards do with paging and timers (section 3.4). A
//! supervisor holds each actor's region and the messages that have not ended. A fault or an endless loop ends the process
//! of its group only. The actor that ran then is stopped; the others of the group start again in a new process, from
//! their regions, and get again what had not ended.
//!
//! Key types: [`Group`] (the supervisor's side), [`Member`] (an actor of it), [`Event`] (what happened), [`serve`] (the
//! process).
//!
//! 1. [`Group::start`] starts a process and gives it the regions of its actors.
//! 2. [`Group::deliver`] takes a message for an actor; [`Group::turn`] passes messages on, takes what actors have sent,
//!    and looks after the process. It never blocks.
//! 3. In the process, [`serve`] runs the actors one at a time, and notes in a shared page who runs.
//!
//! What holds:
//! - No process but its own group's has an actor's region mapped. The supervisor has none mapped.
//! - An actor that uses more CPU time than its budget for a message, or waits, is stopped. So is one that ran when the process ended.
//! - State changes once for each message. What an actor has sent leaves when its message ends, or not at all. If the
//!   process is killed from outside between a message's end and that, what it sent is lost, and counted
//!   ([`Counts::answers_lost`]).
//! - A mailbox that is full refuses, and counts: here, so that a process that hangs holds back nobody.
//!
//! What does not hold: actors of one group can write to each other's regions. Those that do not trust each other belong
//! in different groups.

mod group;
pub mod offence;
mod page;
mod process;
mod wire;

use actor_objects::RegionError;

pub use group::{Counts, Event, Group, LIMITS, Member, Why};
pub use process::{Make, Served, serve};

/// Actors of a group, at most: a region of each goes with the first packet, which has room for 253.
pub const ACTORS_LIMIT: usize = 64;

/// What went wrong.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A call of the kernel.
    #[error("cannot {doing}")]
    System {
        /// What was done.
        doing: &'static str,
        /// The kernel's answer.
        #[source]
        source: std::io::Error,
    },
    /// More actors than [`ACTORS_LIMIT`], or two with one number.
    #[error("a group has at most {ACTORS_LIMIT} actors, each with its own number")]
    Members,
    /// What the supervisor said is not the first packet of one.
    #[error("not started by a supervisor of actors")]
    NotStarted,
    /// The program knows no such actor.
    #[error("no actors of the kind {0:?} here")]
    UnknownKind(String),
    /// A region of objects cannot be made, or is not as its last process left it behind a completed message.
    #[error("a region of objects: {0}")]
    Region(#[from] RegionError),
    /// See [`actor_runtime::Error`].
    #[error(transparent)]
    Runtime(#[from] actor_runtime::Error),
}

impl Error {
    fn system(doing: &'static str) -> impl Fn(rustix::io::Errno) -> Error {
        move |source| Error::System {
            doing,
            source: source.into(),
        }
    }
}
