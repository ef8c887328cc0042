//! Generates traffic against a port and measures what returns: loss, order, duplicates, latency, altered
//! bytes and mis-steers. It does not adapt to the results: the load follows the profile, however slow the
//! system, unless the caller selects a closed loop ([`Generator::in_closed_loop`]).
//!
//! Key types: [`Profile`] (what to send), [`Generator`] (sends it), [`Port`] with [`MemifPort`] (where),
//! [`Control`] (instructions from another thread), [`Interval`] (progress) and [`Report`] (the results).
//!
//! 1. [`Profile::load`] or [`Profile::parse`].
//! 2. [`Generator::new`] reads captures and allocates all frames and flow state. Later only a flow's first
//!    loss allocates (512 B).
//! 3. [`MemifPort::connect`] to a switch's uplink, or directly to an instance.
//! 4. [`Generator::run`] sends, receives, calls the observer, waits for the last packets, and reports.
//!
//! # Accounting
//! - A packet is *offered* when it is due, whether or not it could be sent. `offered = returned + lost`.
//! - Latency counts from the due time, so a stall affects every packet due during it.
//! - Order and duplicates are per flow (for a replayed flow, per direction).
//! - A flow's home is the instance that stamped its first returned packet. Packets of the flow from another
//!   instance are mis-steered, unless the flow may move: after [`Control::expect_moves_from`] for its home.
//! - A flow begins anew, with another home, after `idle_timeout` without packets, and with a TCP connection (a SYN) after
//!   one that was reset or has begun to end. Packets of the connection before are judged by its own home.
//! - The generator's own shortfalls are in [`GeneratorLimits`].
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
mod replay;
mod report;
mod schedule;
mod template;
mod units;

pub use capacity::highest_rate;
pub use error::Error;
pub use generator::{Control, Generator};
pub use lengths::{FlowLengths, LENGTH_LIMIT, Mixture, MixtureProblem};
pub use memif_port::MemifPort;
pub use order::{Arrival, OrderTracker, WINDOW};
pub use pin::{EARLIER_LIMIT, PinTracker, Steer};
pub use port::{LoopbackPort, Port};
pub use profile::{
    Capture, FLOWS_LIMIT, LengthSource, NamedSize, Phase, Profile, Protocol, SOURCES_LIMIT, Size, Timing,
    Trains, Verify, WIRE_BYTES_LIMIT,
};
pub use report::{Counts, FlowNow, FlowReport, GeneratorLimits, Interval, LatencyUs, Report};
pub use units::{Rate, Span};

/// Runs of up to this many flows keep a latency histogram per flow (15 kB). Each [`Interval`] lists up to this many
/// flows.
pub const FLOW_LATENCIES_LIMIT: usize = 1024;
/// Reports of runs of up to this many flows list each flow.
pub const FLOWS_REPORTED_LIMIT: usize = 10_000;
