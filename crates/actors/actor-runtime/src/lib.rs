//! Actors at work on the cores of one side: receivers of messages with private state, after iPipe (Liu and others,
//! SIGCOMM 2019, section 3). It carries out what `actor-scheduling` decides, with real threads and clocks. It never
//! opens a socket or a file: what comes from outside and leaves is an [`Outside`] that the caller gives.
//!
//! Key types: [`Actor`] (what an author implements), [`Context`] (what an actor sees), [`Message`], [`Registration`] (an
//! actor as the runtime takes it), [`Runtime`] (a side's actors), [`Core`] (what a thread calls).
//!
//! 1. [`Runtime::new`], and [`Runtime::register`] for each actor.
//! 2. [`Runtime::start`] starts a thread for each core; or a caller's thread calls [`Core::turn`].
//! 3. In a turn a free core delivers what has come from outside. It takes up to [`BATCH_MESSAGES`] messages, runs their
//!    actors, and says what was done. No lock is held while an actor runs.
//! 4. [`Runtime::actors`] says how actors stand. [`Runtime::pause`], [`Runtime::is_running`] and [`Runtime::remove`] are
//!    the steps by which an actor leaves for another side. [`Runtime::take_stopped`] tells of actors that have failed.
//!
//! What holds: an actor with one instance runs on one core at a time, and its messages end in the order in which its
//! mailbox took them. A mailbox that is full refuses, and counts. Each message that was taken ends once, or is given back
//! by [`Runtime::remove`], or is counted as lost with an actor that has failed.
#![forbid(unsafe_code)]

mod actor;
mod dispatch;
mod error;
mod message;
mod registration;
mod runtime;

pub use actor::{Actor, Context, Progress};
pub use actor_scheduling::{ActorId, CoreId, Group, PolicyName};
pub use dispatch::{BATCH_MESSAGES, BATCH_TIME, Counts, Row, Stopped};
pub use error::Error;
pub use message::{Address, BODY_BYTES_LIMIT, Message, Refusal};
pub use registration::{MAILBOX_LIMIT, Registration};
pub use runtime::{Core, CoreCounts, Idle, Outside, Running, Runtime, Settings, Threads};
