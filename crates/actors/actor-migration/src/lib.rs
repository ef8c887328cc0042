//! How an actor moves between two sides with its objects, in the four phases of iPipe (SIGCOMM 2019, section 3.2.5).
//! Whichever side crashes at whatever time, the actor then runs on exactly one side with the state after its last
//! completed message, or is reported lost. It never runs on both sides. This crate never reads a clock. It never
//! sends or starts anything itself: the caller does, as an [`Effect`] says.
//!
//! Key types: [`Residence`] (what one side knows about where an actor is; each side has one), [`Input`] and
//! [`Effect`], [`Message`] (between the sides, in order), [`Record`] (a word beside the objects that outlives the
//! process).
//!
//! 1. *Prepare*: the source holds new requests from now on. The target takes a region for the objects, holds requests
//!    that reach it, and answers after all that it forwarded before.
//! 2. *Ready*: the actor handles the requests that it already has.
//! 3. *Gone*: the objects go to the target. The target checks them, notes [`Record::Complete`] and tells the source.
//! 4. *Clean*: the source notes [`Record::Gone`]. From here on it never runs the actor again. It tells the target to
//!    start, and forwards the requests that it held. The target handles those first, then the ones that it held
//!    itself.
//!
//! Until the source notes [`Record::Gone`], whatever goes wrong leaves the actor at the source. After a crash,
//! [`who_runs`] decides by the records of both sides alone. Whoever restarts a crashed side must first tell the other
//! side ([`Input::PeerEnded`]), then wait until that side has done all effects, then restart with
//! [`Residence::restart`].
#![forbid(unsafe_code)]

mod message;
mod record;
mod residence;

pub use message::{HEAD_BYTES, Message, WireError, decode, encode};
pub use record::{Record, Verdict, who_runs};
pub use residence::{Effect, Input, Outcome, Phase, Residence, Stayed};
