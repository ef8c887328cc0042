//! `inco bench`: measures the data plane and its peers side by side, with the same work in the same run.
//!
//! Every contestant is a separate process that polls on one core. The contestants of a comparison start together, are
//! stopped by a signal, and run in turn for less than a second each, in several rounds. The result is the median over
//! the rounds of the ratios within a round. Rates are packets per second of CPU time of the polling thread, so that
//! other load on the machine has little effect.
// Every contestant needs DPDK.
#![cfg(feature = "dpdk")]
#![forbid(unsafe_code)]
// The print macros panic if the output is closed; `display::output` does not.
#![warn(clippy::print_stdout, clippy::print_stderr)]

mod actors;
mod args;
mod balance;
mod blocked;
mod bulk;
mod chain;
mod cleanup;
mod contestant;
mod facts;
mod flood;
mod function;
mod hop;
mod idle;
mod memif_sinks;
mod memory;
mod naive;
mod native;
mod observed;
mod openflow;
mod ovs;
mod paths;
mod programs;
mod raw;
mod react;
mod restart;
mod setup;
mod steer;
mod steering;
mod synthetic;
mod testpmd;
mod traffic;
mod wake;

use anyhow::{Context as _, Result};

use args::SteerDriver;
pub use args::{BenchArgs, BenchCommand};

/// Runs a bench.
///
/// # Errors
/// Returns an error if a contestant cannot be started or fails a check.
pub fn run(command: &BenchCommand) -> Result<()> {
    // A contestant ends with its parent; `balance`, `bulk` and `paths` look at signals themselves.
    if !matches!(
        command,
        BenchCommand::Contestant(_)
            | BenchCommand::ActorsGroup
            | BenchCommand::Balance(_)
            | BenchCommand::Bulk(_)
            | BenchCommand::Paths(_)
    ) {
        cleanup::on_signals()?;
    }
    match command {
        BenchCommand::Steer(args) => match args.driver {
            SteerDriver::Soft => steer::run(args),
            SteerDriver::Ebpf => programs::run(args),
        },
        BenchCommand::Setup(args) => setup::run(args),
        BenchCommand::Flood(args) => flood::run(args),
        BenchCommand::Chain(args) => chain::run(args),
        BenchCommand::React(args) => react::run(args),
        BenchCommand::Blocked(args) => blocked::run(args),
        BenchCommand::Idle(args) => idle::run(args),
        BenchCommand::Restart(args) => restart::run(args),
        BenchCommand::Balance(args) => balance::run(args),
        BenchCommand::Bulk(args) => bulk::run(args),
        BenchCommand::Hop(args) => hop::run(args),
        BenchCommand::Wake(args) => wake::run(args),
        BenchCommand::Function(args) => function::run(args),
        BenchCommand::Actors(args) => actors::run(args),
        BenchCommand::ActorsGroup => actors::serve_group(),
        BenchCommand::Openflow(args) => openflow::run(args),
        BenchCommand::Paths(args) => paths::run(args),
        BenchCommand::Contestant(args) => {
            steering::serve(&serde_json::from_str(&args.spec).context("the contestant's specification")?)
        }
    }
}
