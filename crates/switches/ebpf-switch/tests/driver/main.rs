//! The driver in network namespaces, with real packets. Needs root.
#![expect(unsafe_code, reason = "packet sockets")]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "what goes wrong here fails a test"
)]

mod alarm;
mod announcements;
mod back_ends;
mod bed;
mod contract;
mod errors;
mod flood;
mod frames;
mod hostile;
mod layouts;
mod many;
mod namespaces;
mod pairs;
mod restart;
mod sharing;
mod signals;
mod steering;
mod strangers;
mod traffic;
mod translation;
mod tunnel_costs;
mod tunnels;
