//! The program that runs inside a container: a built-in network function, which the switch reaches over
//! memif. It needs only the directory with its socket: no network, no privileges, no other files.
//!
//! 1. It listens on its socket, and the switch connects and owns the ring memory. Or the switch listens, as
//!    Open vSwitch does, and it connects. Or it uses network interfaces without a switch.
//! 2. It forwards packets, and sleeps when its rings are empty.
//! 3. When the switch leaves (restart, crash) it waits for the next one and keeps its counters.
//! 4. On SIGTERM it exits with status 0 and removes its sockets.
#![forbid(unsafe_code)]

mod forward;
mod interface;
mod options;
mod pace;

use std::process::ExitCode;

use clap::Parser;
use options::{Cli, Function};

fn main() -> ExitCode {
    let Cli {
        function: Function::Forward(options),
    } = Cli::parse();
    if let Err(mistake) = options.check() {
        return fail(2, mistake);
    }
    match forward::run(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(1, format!("{error:#}")),
    }
}

fn fail(status: u8, what: impl std::fmt::Display) -> ExitCode {
    use std::io::Write;
    let _ = writeln!(std::io::stderr(), "inco-nf: {what}");
    ExitCode::from(status)
}
