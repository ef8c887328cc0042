//! The contract of a switch: what the control plane may ask of whatever forwards packets, and what it is told. It
//! forwards nothing itself and reads no clock.
//!
//! Key types: [`Switch`] (the trait), [`SwitchRequest`] and [`SwitchEvent`] (what is asked and told), [`Plan`] (what
//! is steered by), [`PortSpec`] (where an instance's data ports are), [`SwitchReading`] (what is counted),
//! [`Capabilities`] (what a driver need not be able to do), [`FakeSwitch`] (a switch for tests), `conformance` (the
//! suite that every driver passes, a feature).
//!
//! The life of an instance at a switch:
//! 1. [`SwitchRequest::Attach`] connects its data ports; [`SwitchEvent::Attached`] or [`SwitchEvent::AttachFailed`]
//!    follows.
//! 2. [`SwitchRequest::Publish`] a plan in which it is Active: new flows come. Publish it as Draining: no more, once
//!    [`SwitchReading::acknowledged`] has reached that plan's generation.
//! 3. [`SwitchRequest::Publish`] a plan without it, and [`SwitchRequest::Detach`] it once that is acknowledged;
//!    [`SwitchEvent::Detached`] says that nothing refers to the slot any more, and how many packets the instance
//!    still held. Only then may the slot be used again.
#![forbid(unsafe_code)]

mod capture;
mod chain;
#[cfg(feature = "conformance")]
pub mod conformance;
mod contract;
mod edit;
mod external;
mod fake;
mod flows;
mod machines;
mod mappings;
mod plan;
mod ports;
mod reading;
mod record;
mod resumed;
mod usual;

pub use capture::{CAPTURE_SNAPLEN_LIMIT, Capture, CaptureFilter, CaptureLimits, CapturedPacket, Sighting};
pub use chain::CHAIN_LIMIT;
pub use contract::{Change, Switch, SwitchError, SwitchEvent, SwitchRequest, WakeUp};
pub use edit::{Edit, Edits};
pub use external::{BlockOwners, ExternalPacket};
pub use fake::{Delay, Delays, FakeConfig, FakeSwitch, Faults};
pub use flow_table::FlowRow;
pub use flows::{FlowFilter, HEAVY_FLOW_LIMIT, HeavyFlow};
pub use machines::SharedMachines;
pub use mappings::{MappingsEvent, MappingsPlan, MappingsRequest};
pub use model::{Capabilities, EditKind, PortKind};
pub use plan::{Plan, ServicePlan, SlotPlan};
pub use ports::PortSpec;
pub use reading::{
    FunctionCounters, ServiceCounters, SlotCounters, SwitchReading, UplinkCounters, WorkerTotals, grown,
};
pub use record::{PickRecord, RecordedFlow};
pub use resumed::Resumed;
pub use usual::Usual;
