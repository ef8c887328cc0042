//! The core against a real `ovs-vswitchd` with its userspace datapath: its cache, its revalidators, its counters.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "what goes wrong here fails the test"
)]

mod ovs;
mod path_changes;
mod steering;
#[path = "../tracked/mod.rs"]
mod tracked;
mod tracking;
mod world;
mod writing;
