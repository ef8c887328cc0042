//! inco's part of a service of actors. It has what outlives the processes of the two sides: the regions of objects
//! and the channel. It begins the sides, begins one again whose process has ended, and passes on what they report. It
//! never trusts a side, and decides neither when an actor moves nor whether a process has ended: the caller does. It
//! starts and ends no process.
//!
//! Key types: [`Supervisor`] (a service), [`Service`] (what it consists of), [`Wish`] (what is to be done with an
//! actor), [`Event`] (what happened).
//!
//! 1. [`Supervisor::new`] makes the regions: two for each actor, one on each side.
//! 2. The caller starts a process for each side, and says where it listens ([`Supervisor::began`]).
//! 3. [`Supervisor::turn`], again and again: it connects, declares the actors, and has both sides start once both are
//!    ready.
//! 4. A process has ended, with all that it had started: [`Supervisor::ended`]. Another one begins with the same
//!    regions and a new channel, after the other side has heard of it. Where an actor runs then is up to what both
//!    sides have noted beside its objects.
//! 5. A side that breaks the rules, or is silent for [`PATIENCE`], is [broken](Supervisor::broken): the caller ends
//!    its process, and says so.
//!
//! **inco may go** and come again: a keeper has the regions meanwhile ([`Supervisor::entries`]), and the sides go on.
//! The next run takes them over ([`Supervisor::resume`]), and says where the processes listen. The entries are kept
//! anew before the next turn whenever [`Supervisor::changes`] says something else.
//!
//! **Before both sides have started** nothing has been handled. If one of them ends then, both begin with new
//! regions.
//!
//! **Cost.** A new channel and the check of regions take milliseconds, so [`Supervisor::turn`] and
//! [`Supervisor::ended`] do not belong on a thread that must be on time.
#![forbid(unsafe_code)]

mod kept;
mod service;
mod supervisor;

pub use kept::entry_names;
pub use service::{DeclaredActor, Runs, Service};
pub use supervisor::{Answer, Error, Event, EventKind, PATIENCE, Row, Supervisor, Wish};
