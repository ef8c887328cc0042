//! Native actors in groups, each group in a process of its own. iPipe's cards do the same with paging and timers
//! (SIGCOMM 2019, section 3.4). A supervisor holds each actor's region and the messages that have not ended. A fault
//! or an endless loop ends the process of its group only. The actor that ran at that time is stopped. The other
//! actors of the group start again in a new process, with their regions, and get the messages again that had not
//! ended.
//!
//! Key types: [`Group`] (the supervisor's side), [`Member`] (an actor of it), [`Event`] (what happened), [`serve`]
//! (what the process calls).
//!
//! 1. [`Group::start`] starts a process and gives it the regions of its actors.
//! 2. [`Group::deliver`] takes a message for an actor. [`Group::turn`] passes messages to the process, collects what
//!    actors have sent, and supervises the process. It never blocks.
//! 3. In the process, [`serve`] runs the actors one at a time. It notes in a shared page which actor runs.
//!
//! What holds:
//! - Only the process of an actor's group has the actor's region mapped. The supervisor maps no region.
//! - An actor is stopped if it uses more CPU time for a message than its budget, if it takes ten times the budget by
//!   the clock, or if the process ends while it runs.
//! - Each message changes the state once. What an actor sends while it handles a message leaves when the message
//!   ends, or not at all. If the process is killed from outside between the two, these messages are lost and counted
//!   ([`Counts::answers_lost`]).
//! - A full mailbox refuses messages and counts them. Mailboxes are in the supervisor, so a process that hangs delays
//!   no other group.
//! - A group whose process ends more than eight times while no actor runs is given up ([`Event::GivenUp`]).
//!
//! What does not hold: actors of one group can write to each other's regions. Put actors that do not trust each other
//! in different groups.

mod group;
pub mod offence;
mod page;
mod process;
mod wire;

use actor_objects::RegionError;

pub use group::{Counts, Event, Group, LIMITS, Member, Placed, Why};
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
