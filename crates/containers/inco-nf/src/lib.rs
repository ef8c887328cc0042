//! The runner that works inside a container: it takes packets from the switch, gives them to network functions, and
//! sends back what they decide. It needs only the directory with its socket: no network, no privileges, no other files.
//!
//! Key type: [`main`], the program with the functions of a list. A program with functions of its own is a `main.rs`
//! that calls it with [`functions::LIBRARY`] and theirs. The crate `inco-nf-c` does so for functions in C.
//!
//! 1. It listens on its socket, and the switch connects and owns the ring memory. Or the switch listens, as
//!    Open vSwitch does, and it connects. Or it uses network interfaces without a switch.
//! 2. It gives each burst of packets to its chain of functions, and sleeps when its rings are empty.
//! 3. When the file of a configuration changes, or on SIGHUP, another thread reads and compiles it; the loop puts it
//!    in place between two bursts.
//! 4. When the switch leaves (restart, crash) it waits for the next one and keeps its counters.
//! 5. Records of functions, such as alerts, are written by another thread.
//! 6. On SIGTERM it exits with status 0 and removes its sockets.
//!
//! On the host, the same program is the manager of SmartLB: it watches how busy functions are, and sends signals through
//! their ports (`manager.rs`, `sender.rs`).
#![forbid(unsafe_code)]

mod manager;
mod moves;
mod options;
mod pace;
mod page;
mod ports;
mod records;
mod reload;
mod runner;
mod sender;

use std::ffi::OsString;
use std::process::ExitCode;

use functions::Entry;
use options::Command;

/// The program `inco-nf` with these functions, from the arguments of this process to its exit status: 0, 1 if
/// something failed, 2 if its usage is wrong.
pub fn main(library: &'static [Entry]) -> ExitCode {
    run(library, std::env::args_os()).into()
}

/// The same, with the arguments given, of which the first one is the program's name.
pub fn run(library: &'static [Entry], arguments: impl IntoIterator<Item = OsString>) -> u8 {
    let command = match options::parse(library, arguments) {
        Ok(command) => command,
        Err(error) => {
            let _ = error.print();
            return error.exit_code() as u8;
        }
    };
    let done = match &command {
        Command::Run(run) => runner::run(run),
        Command::Manager(options) => manager::run(options),
        Command::Signal(options) => sender::send_one(options),
    };
    match done {
        Ok(()) => 0,
        Err(error) => {
            say(format_args!("{error:#}"));
            1
        }
    }
}

/// Writes a line for the operator.
fn say(what: impl std::fmt::Display) {
    use std::io::Write as _;
    let _ = writeln!(std::io::stderr(), "inco-nf: {what}");
}
