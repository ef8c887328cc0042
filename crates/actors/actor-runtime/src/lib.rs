//! Runs the actors of one side on threads, called cores. An actor is a receiver of messages with private state, after
//! iPipe (Liu and others, SIGCOMM 2019, section 3). The runtime carries out what `actor-scheduling` decides, with
//! real threads and clocks. It never opens a socket or a file: the caller gives an [`Outside`] for what arrives and
//! leaves.
//!
//! Key types: [`Actor`] (what an author implements), [`Context`] (what an actor sees), [`Message`], [`Registration`]
//! (an actor, as the runtime takes it), [`Runtime`] (the actors of a side), [`Core`] (what a thread calls).
//!
//! 1. Call [`Runtime::new`], and [`Runtime::register`] for each actor.
//! 2. [`Runtime::start`] starts a thread for each core. Instead, threads of the caller can call [`Core::turn`].
//! 3. In a turn a free core delivers what has arrived from outside. It takes up to [`BATCH_MESSAGES`] messages and
//!    runs their actors. It holds no lock while an actor runs.
//! 4. [`Runtime::actors`] lists the actors with their counts. An actor leaves for another side by [`Runtime::divert`],
//!    [`Runtime::is_quiet`] and [`Runtime::remove`]. [`Runtime::take_stopped`] returns the actors that have failed.
//!
//! What holds: an actor with one instance runs on one core at a time, and its messages end in the order in which its
//! mailbox took them. What it sends outside leaves in the order in which it sent it. A full mailbox refuses messages and
//! counts them. Each message that a mailbox took ends once, or is returned by [`Runtime::remove`], or is counted as lost
//! with an actor that has failed.
#![forbid(unsafe_code)]

mod actor;
mod dispatch;
mod error;
mod message;
mod registration;
mod runtime;

pub use actor::{Actor, Context, Progress};
pub use actor_scheduling::groups::Decided;
pub use actor_scheduling::{ActorId, CoreId, Group, PolicyName, Queues};
pub use dispatch::{BATCH_MESSAGES, BATCH_TIME, Counts, DECIDED_LIMIT, DIVERTED_LIMIT, Row, Stopped};
pub use error::Error;
pub use message::{Address, BODY_BYTES_LIMIT, Message, Refusal};
pub use registration::{MAILBOX_LIMIT, Registration};
pub use runtime::{Core, CoreCounts, Idle, Outside, Running, Runtime, Settings, Threads};
