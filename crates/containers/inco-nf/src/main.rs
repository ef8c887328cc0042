//! What runs inside a container: a built-in network function that the switch reaches over memif. It needs nothing but
//! the directory with its socket: no network, no privileges, no files.
//!
//! 1. It listens on its socket; the switch connects, and owns the memory of the rings. Or the switch listens, as Open vSwitch
//!    does, and it connects. Or it has network interfaces, and no switch beside it.
//! 2. It works, and sleeps when its rings are empty.
//! 3. When the switch goes (a restart, a crash) it waits for the next one, with its counters.
//! 4. SIGTERM ends it with status 0, and its sockets go.
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
        return complain(2, mistake);
    }
    match forward::run(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => complain(1, format!("{error:#}")),
    }
}

fn complain(status: u8, what: impl std::fmt::Display) -> ExitCode {
    use std::io::Write;
    let _ = writeln!(std::io::stderr(), "inco-nf: {what}");
    ExitCode::from(status)
}
