//! `inco bench`: the data plane measured side by side with its peers, on the same work in the same run.
//!
//! Every contestant is a process of its own that polls on one core. Those of a comparison are started together, stopped by
//! a signal, and let run in turn for a second each, several rounds; what counts are the medians over the rounds of the
//! ratios within them. Rates are packets per second of processor time of the polling thread, so that other work on the
//! machine distorts them little.
// Every contestant is built on DPDK: without it there is no bench.
#![cfg(feature = "dpdk")]
#![forbid(unsafe_code)]
// They panic where nobody reads the output: `display::output` does not.
#![warn(clippy::print_stdout, clippy::print_stderr)]

mod args;
mod blocked;
mod chain;
mod contestant;
mod facts;
mod flood;
mod idle;
mod memif_sinks;
mod memory;
mod naive;
mod openflow;
mod ovs;
mod raw;
mod react;
mod setup;
mod steer;
mod steering;
mod synthetic;
mod testpmd;
mod traffic;
mod undo;

use anyhow::{Context as _, Result};

pub use args::{BenchArgs, BenchCommand};

/// Runs a bench.
///
/// # Errors
/// Where a contestant cannot be started or does not do its work.
pub fn run(command: &BenchCommand) -> Result<()> {
    // A contestant ends with whoever started it.
    if !matches!(command, BenchCommand::Contestant(_)) {
        undo::on_signals()?;
    }
    match command {
        BenchCommand::Steer(args) => steer::run(args),
        BenchCommand::Setup(args) => setup::run(args),
        BenchCommand::Flood(args) => flood::run(args),
        BenchCommand::Chain(args) => chain::run(args),
        BenchCommand::React(args) => react::run(args),
        BenchCommand::Blocked(args) => blocked::run(args),
        BenchCommand::Idle(args) => idle::run(args),
        BenchCommand::Openflow(args) => openflow::run(args),
        BenchCommand::Contestant(args) => {
            steering::serve(&serde_json::from_str(&args.spec).context("the contestant's specification")?)
        }
    }
}
