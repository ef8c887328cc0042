//! Steering by programs in the kernel: a program at each uplink pins new flows and redirects packets into the network
//! namespaces of instances, and a program at each instance's interface sends what comes back out. Packets never pass
//! through this process, and none of its threads polls.
//!
//! Key types: [`EbpfSwitch`] (the driver), [`EbpfSwitchConfig`] (what it is made of), [`PreparedPort`] (the port of an
//! instance that may come), [`TunnelEnd`] (where tunnels from or to other machines end), [`Release`] (the programs, and what they can take over), [`EbpfError`].
//!
//! The programs (`bpf/`) and inco share memory: what inco writes (`World`), what each CPU counts (`Counts`), and the
//! flow tables, whose entries the programs make, and remove when they are over. All of it is pinned in the kernel and works
//! on when this process ends, however it ends; [`EbpfSwitch::start`] takes it over.

mod back_ends;
mod bpf;
mod config;
mod error;
mod events;
mod instances;
mod kernel;
mod layout;
mod picks;
mod ports;
mod readings;
#[cfg(test)]
mod reference;
mod release;
mod rules;
mod signals;
mod statistics;
mod switch;
mod table;
mod takeover;
mod tunnels;
mod uplinks;

pub use config::{CAPABILITIES, EbpfSwitchConfig};
pub use error::{EbpfError, MINIMUM};
pub use ports::PreparedPort;
pub use release::{Before, Entry, Release};
pub use statistics::{Cost, Statistics};
pub use switch::{EbpfSwitch, check, remove_all};
pub use tunnels::TunnelEnd;
