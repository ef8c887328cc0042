//! Network functions and what they have in common: the trait [`Function`], the [`Burst`] of packets that it works on,
//! and the [`Chain`] in which one instance runs several. A function never reads a clock, a random source, a file or a
//! socket: time and a seed are arguments, and the runner (`inco-nf`) owns ports, clock and the shared page.
//!
//! Key types: [`Function`] (what an author implements), [`Burst`] and [`Packet`] (what it works on), [`Verdict`] (what
//! becomes of a packet), [`About`] (its name, reasons and metrics), [`Entry`] (a function in the list of a runner),
//! [`Chain`] and [`Stage`] (functions at work, with their totals).
//!
//! 1. A runner looks a name up in [`LIBRARY`] ([`find`]) and makes a [`Stage`] from the text of a configuration.
//! 2. For each burst of a port: [`Burst::begin`], [`Burst::receive`] for each packet, [`Chain::process`],
//!    [`Burst::leaving`]: the packets that leave, each with its port.
//! 3. When [`Chain::due`] says so, [`Chain::tick`] lets a function do what time requires.
//! 4. A configuration changes in two steps. [`Entry::compile`] may take long, and runs on another thread;
//!    [`Chain::reload`] puts its result in place between two bursts. A text that does not compile changes nothing.
//! 5. [`Stage::totals`], [`Stage::metrics`] and [`Stage::summary`] say what was done.
//! 6. A flow moves to another instance with its state: [`Chain::export`] there, [`Chain::import`] here, [`Chain::forget`]
//!    there.
//!
//! # A new function
//! One file or folder here, which implements [`Function`], and one line in [`LIBRARY`]. [`Forward`] is a short one.
//! Test it by itself: put frames into a burst with [`Burst::push`], call `process`, and look at the verdicts. Each
//! packet that a function was given or has made has exactly one verdict; the stage counts them, so that
//! `packets + originated = forwarded + answered + consumed + dropped` holds without code of the author.
//! Measure it with a file in `crates/measure/bench/src/function`, beside who does the same.
#![forbid(unsafe_code)]

mod about;
mod addresses;
mod burst;
pub mod cache;
mod chain;
pub mod classifier;
mod configuration;
pub mod dns;
pub mod firewall;
mod forward;
mod function;
mod heavy;
pub mod ids;
pub mod ipsec;
mod keyed;
mod keys;
mod library;
pub mod limiter;
pub mod lpm;
pub mod maglev;
pub mod monitor;
pub mod nat;
pub mod pfabric;
pub mod ranker;
pub mod replica;
mod requests;
pub mod router;
mod serve;
pub mod workloads;

pub use about::{About, Kind, METRICS_LIMIT, Metric, NAME_BYTES_LIMIT, REASONS_LIMIT, Reason};
pub use burst::{
    Burst, CAPACITY, Extent, FRAME_BYTES_LIMIT, HEADROOM, Packet, Packets, RECEIVED_LIMIT, TAILROOM, Verdict,
};
pub use cache::Cache;
pub use chain::{Chain, STAGES_LIMIT, Stage, Totals};
pub use classifier::Classifier;
pub use configuration::{Error, from_toml};
pub use dns::Dns;
pub use forward::Forward;
pub use function::{Function, Setup, Summary};
pub use library::{Compiled, Entry, LIBRARY, find};
pub use limiter::Limiter;
pub use maglev::Maglev;
pub use monitor::Monitor;
pub use nat::Nat;
pub use pfabric::Pfabric;
pub use ranker::Ranker;
pub use replica::Replica;
pub use state_moves::{NotMoved, STATE_BYTES_LIMIT};
