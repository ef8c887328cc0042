//! inco's shared vocabulary as types. This crate has no behaviour: no clock, no I/O, no policy. Nothing in it
//! allocates on the packet path.
//!
//! Key types: [`FlowKey`] (identifies a flow), [`Slot`] (names an instance in the data plane),
//! [`InstanceState`] (an instance's life cycle), [`Match`] (selects a service's packets), [`DropReason`] (why a
//! packet was dropped), [`Observation`] (an autoscaler's input), [`Action`] (what an operator asks for) and
//! [`Event`] (an entry of the event log).
//! [`slot_counters!`] and its siblings are the tables of counters.
#![forbid(unsafe_code)]

mod action;
mod actor;
mod back_end;
mod change;
mod counter_table;
mod drop_reason;
mod event;
mod flow;
mod health;
mod histogram;
mod ids;
mod instance;
mod observation;
mod port_block;
mod random;
mod recent_times;
mod rollout;
mod service;
pub mod span;
mod switch;
mod task;
mod time;
pub mod written;

pub use action::{Action, PolicyChoice};
pub use actor::{ActorChange, ActorSide, SideChange};
pub use back_end::{BackEnd, BackEndState};
pub use change::{KeyChange, Setting};
pub use drop_reason::DropReason;
pub use event::{Event, EventKind, FunctionChange};
pub use flow::{Direction, FlowKey, FlowKeyV4, FlowKeyV6, Tuple, key_bits, protocol};
pub use health::{AgentCheck, AgentReport, AgentState, HealthCheck, Probe};
pub use histogram::Histogram;
pub use ids::{Generation, InstanceId, PlaceId, ServiceId, Slot, UplinkId, WorkerId};
pub use instance::{IllegalTransition, InstanceState, InstanceStep};
pub use observation::{InstanceObservation, InstanceSignals, Observation, PlaceObservation};
pub use port_block::{External, ExternalError, NoPortBlock, PortBlock, Sought};
pub use random::{Random, mix};
pub use recent_times::{Percentiles, RecentTimes};
pub use rollout::{Rollout, RolloutState};
pub use service::{
    AffinityKey, Association, CAPABILITIES, Fallback, InterfaceSetup, Match, Mount, NetFunction, Parameter,
    Prefix, Ready, Selector, StandbyMode, TableFull, Timeouts, Vip, VipMode,
};
pub use switch::{Capabilities, CapturePoint, EditKind, FlowSetup, Polling, PortKind, UplinkKind};
pub use task::{PodOptions, TaskFile, TaskNetwork, TaskOptions, TaskProtocol};
pub use time::Nanos;
