//! A side of a service of actors, as the program in a container: it has the actors of its side, a network, and does
//! what inco says. It never decides where an actor runs.
//!
//! Key types: [`main`] (the program, with the kinds of actors that it makes), [`kinds`] (those that come with inco).
//!
//! 1. It listens for inco (`--control`), and for the switch where it has a memif port (`--socket`). Instead it may have
//!    interfaces of the kernel (`--interfaces`), which the switch has the other ends of.
//! 2. inco connects, and hands over settings, actors with their regions, and the channel (`actor-control`).
//! 3. Actors run on the runtime's cores. A free one looks after the network and the channel. The main thread hears
//!    inco, reports, and makes links to the switch.
//! 4. If inco goes, all goes on; the next run of inco connects again. On SIGTERM the process ends after what its
//!    cores have in hand.
//!
//! **Processes.** An actor whose kind has the option `process=NAME` runs in a process of its own, with those of the same
//! name: this program once more.
//!
//! **The network.** The payload of a UDP packet is the body of a message, of the kind 0, for the service's entry actor.
//! What an actor sends to a client leaves as a packet with addresses and ports swapped. Clients are known by numbers,
//! up to 65,536 at a time; a number means nobody else later, also after a restart. Where the entry actor is a function,
//! whole frames are its messages, and its clients are the ports of the network.
#![forbid(unsafe_code)]

mod clients;
mod function;
mod isolated;
pub mod kinds;
mod network;
mod options;
mod program;
mod side;
mod wires;

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use actor_control::Side;
use actor_runtime::Actor;
use clap::Parser;

/// Makes an actor of a kind, with that number; nothing for a kind that it does not know.
pub type Make = fn(&str, u32) -> Option<Box<dyn Actor>>;

/// One side of a service of actors. inco starts it in a container, and tells it what to run.
#[derive(Debug, Parser)]
#[command(name = "inco-actors", version)]
struct Options {
    /// The side: card or host.
    #[arg(long, env = "INCO_SIDE")]
    side: Side,
    /// The socket on which it listens for inco.
    #[arg(
        long,
        env = "INCO_CONTROL",
        default_value = "/run/inco/actors.sock",
        value_name = "PATH"
    )]
    control: PathBuf,
    /// The socket on which it listens for the switch (memif): packets of clients come and leave there.
    #[arg(long, env = "INCO_SOCKET", value_name = "PATH", conflicts_with = "udp")]
    socket: Option<PathBuf>,
    /// Network interfaces as data ports, one or two, separated by commas, instead of a memif socket. Needs CAP_NET_RAW.
    #[arg(
        long,
        env = "INCO_INTERFACES",
        value_delimiter = ',',
        num_args = 1,
        value_name = "NAMES"
    )]
    interfaces: Vec<String>,
    /// With interfaces: slots of each ring.
    #[arg(long, env = "INCO_RING_SLOTS", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=65536), value_name = "SLOTS")]
    ring_slots: u32,
    /// The address of a UDP socket of the kernel, instead.
    #[arg(long, env = "INCO_UDP", value_name = "ADDRESS:PORT")]
    udp: Option<SocketAddr>,
}

/// The program `inco-actors` with these kinds of actors, from the arguments of this process to its exit status: 0, 1
/// if something failed, 2 if its usage is wrong.
pub fn main(make: Make) -> ExitCode {
    run(make, std::env::args_os()).into()
}

/// The same, with the arguments given, of which the first one is the program's name.
pub fn run(make: Make, arguments: impl IntoIterator<Item = OsString>) -> u8 {
    if let Some(status) = isolated::serve(make) {
        return status;
    }
    let options = match Options::try_parse_from(arguments) {
        Ok(options) => options,
        Err(error) => {
            let _ = error.print();
            return error.exit_code() as u8;
        }
    };
    match program::run(&options, make) {
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
    let _ = writeln!(std::io::stderr(), "inco-actors: {what}");
}
