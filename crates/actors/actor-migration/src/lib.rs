//! How an actor moves between two sides with its objects, in the four phases of iPipe (SIGCOMM 2019, section 3.2.5).
//! Whichever side crashes, and when: the actor then runs on exactly one side with the state behind its last completed
//! message, or is reported lost. It never runs on both. This crate never reads a clock, and never sends or starts
//! anything itself: all that is an [`Effect`].
//!
//! Key types: [`Residence`] (what one side knows about where an actor is; each side has one), [`Input`] and [`Effect`],
//! [`Message`] (between the sides, in order), [`Record`] (a word beside the objects that outlives the process).
//!
//! 1. *Prepare*: the source holds requests that come from now on. The target takes a region for the objects, holds what
//!    comes to it, and answers behind all that it forwarded before.
//! 2. *Ready*: the actor finishes what it has.
//! 3. *Gone*: the objects go to the target. It checks them, notes [`Record::Complete`] and says so.
//! 4. *Clean*: the source notes [`Record::Gone`]: from here on it never runs the actor again. Then it tells the target to
//!    start, and forwards what it held. The target handles that first, then what it held itself.
//!
//! Until step 4 whatever goes wrong leaves the actor at the source. [`who_runs`] says what holds after a crash: it looks at
//! the records of both sides alone. Who restarts a crashed side must do it in this order: tell the other one
//! ([`Input::PeerEnded`]) and wait until it has done all effects, then restart with [`Residence::restart`].
#![forbid(unsafe_code)]

mod message;
mod record;
mod residence;

pub use message::{HEAD_BYTES, Message, WireError, decode, encode};
pub use record::{Record, Verdict, who_runs};
pub use residence::{Effect, Input, Outcome, Phase, Residence, Stayed};
