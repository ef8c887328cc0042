//! Generates traffic against a port and measures what comes back: loss, order, duplicates, latency, changed bytes and
//! mis-steers. It does not adapt to what it measures: the load is the profile's, however slow the system is, unless a caller asks
//! for a closed loop ([`Generator::in_closed_loop`]).
//!
//! Key types: [`Profile`] (what to send), [`Generator`] (sends it), [`Port`] with [`MemifPort`] (where), [`Control`]
//! (what another thread may say meanwhile), [`Interval`] (how it stands) and [`Report`] (what came of it).
//!
//! 1. [`Profile::load`] or [`Profile::parse`].
//! 2. [`Generator::new`] reads captures and makes all frames and flow state; nothing is allocated per packet later, but
//!    512 B for a flow when it first loses a packet.
//! 3. [`MemifPort::connect`] to a switch's uplink, or straight to an instance.
//! 4. [`Generator::run`] sends, takes back, calls the observer, waits for the last packets, and reports.
//!
//! # How things are counted
//! - A packet is *offered* when it is due, whether it could be sent or not. `offered = returned + lost`.
//! - Latency is from the time when the packet was due, so that a stall costs all packets that were due in it.
//! - Order and duplicates are those of a flow (of a replayed flow: of each of its directions).
//! - A flow's home is the instance that stamped the first packet that came back. Every packet of the flow that went
//!   elsewhere is mis-steered, unless the flow may move: after `idle_timeout` without packets, or after
//!   [`Control::expect_moves_from`].
//! - What the generator itself could not do is in [`GeneratorLimits`].
#![forbid(unsafe_code)]

mod capacity;
mod error;
mod generator;
mod lengths;
mod measurement;
mod memif_port;
mod order;
mod pin;
mod port;
mod profile;
mod random;
mod replay;
mod report;
mod schedule;
mod template;
#[cfg(test)]
mod testing;
mod units;

pub use capacity::highest_rate;
pub use error::Error;
pub use generator::{Control, Generator};
pub use lengths::{LENGTH_LIMIT, Lengths, Mixture, MixtureProblem};
pub use memif_port::MemifPort;
pub use order::{Arrival, OrderTracker, WINDOW};
pub use pin::{PinTracker, Steer};
pub use port::{LoopbackPort, Port};
pub use profile::{
    Capture, FLOWS_LIMIT, LengthSource, NamedSize, Phase, Profile, Protocol, SOURCES_LIMIT, Size, Timing,
    Verify, WIRE_BYTES_LIMIT,
};
pub use random::Random;
pub use report::{Counts, FlowNow, FlowReport, GeneratorLimits, Interval, LatencyUs, Report};
pub use units::{Rate, Span};

/// Runs of up to this many flows keep a latency histogram for each (15 kB) and show each in an [`Interval`].
pub const FLOW_LATENCIES_LIMIT: usize = 1024;
/// Reports of runs of up to this many flows have a line for each.
pub const FLOWS_REPORTED_LIMIT: usize = 10_000;
