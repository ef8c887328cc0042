//! The program that runs inside a container: a built-in network function, which the switch reaches over
//! memif. It needs only the directory with its socket: no network, no privileges, no other files.
//!
//! 1. It listens on its socket, and the switch connects and owns the ring memory. Or the switch listens, as
//!    Open vSwitch does, and it connects. Or it uses network interfaces without a switch.
//! 2. It forwards packets, and sleeps when its rings are empty.
//! 3. When the switch leaves (restart, crash) it waits for the next one and keeps its counters.
//! 4. On SIGTERM it exits with status 0 and removes its sockets.
//!
//! On the host, the same program is the manager of SmartLB: it watches how busy functions are, and sends signals through
//! their ports (`manager.rs`, `sender.rs`).
#![forbid(unsafe_code)]

mod forward;
mod interface;
mod manager;
mod options;
mod pace;
mod sender;

use std::process::ExitCode;

use clap::Parser;
use options::{Cli, Function};

fn main() -> ExitCode {
    let function = Cli::parse().function;
    let checked = match &function {
        Function::Forward(options) => options.check(),
        Function::Manager(options) => options.check(),
        Function::Signal(_) => Ok(()),
    };
    if let Err(mistake) = checked {
        return fail(2, mistake);
    }
    let done = match &function {
        Function::Forward(options) => forward::run(options),
        Function::Manager(options) => manager::run(options),
        Function::Signal(options) => sender::send_one(options),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(1, format!("{error:#}")),
    }
}

fn fail(status: u8, what: impl std::fmt::Display) -> ExitCode {
    use std::io::Write;
    let _ = writeln!(std::io::stderr(), "inco-nf: {what}");
    ExitCode::from(status)
}
