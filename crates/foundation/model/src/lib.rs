//! The words of inco as types. This crate holds what every layer speaks of and does nothing: no clock, no I/O, no
//! policy. Nothing here allocates on the packet path.
//!
//! Key types: [`FlowKey`] (what is pinned), [`Slot`] (where it is pinned to), [`InstanceState`] (may it take new
//! flows), [`DropReason`] (why a packet went no further), [`Observation`] (what an autoscaler sees) and
//! [`Event`] (what happened, with its inputs).
#![forbid(unsafe_code)]

mod drop_reason;
mod event;
mod flow;
mod histogram;
mod ids;
mod instance;
mod observation;
pub mod span;
mod time;
pub mod written;

pub use drop_reason::DropReason;
pub use event::{Event, EventKind};
pub use flow::{Direction, FlowKey, FlowKeyV4, FlowKeyV6, Tuple, protocol};
pub use histogram::Histogram;
pub use ids::{Generation, InstanceId, ServiceId, Slot, UplinkId, WorkerId};
pub use instance::{IllegalTransition, InstanceState, InstanceStep};
pub use observation::{InstanceObservation, Observation};
pub use time::Nanos;
