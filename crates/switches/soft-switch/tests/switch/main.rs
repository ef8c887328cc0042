//! The soft switch between a network and functions, over real memif links.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "what goes wrong here fails the test"
)]

mod announcements;
mod bed;
mod blocks;
mod captures;
mod chains;
mod changes;
mod content;
mod contract;
mod edges;
mod failures;
mod fast;
mod fast_flood;
mod flood;
mod fragments;
#[path = "../kept/mod.rs"]
mod kept;
mod kernel;
mod kernel_contract;
mod load;
mod many;
#[path = "../../../../ports/memif/tests/raw/mod.rs"]
mod raw;
mod relaxed;
mod replies;
mod restart;
mod sharing;
mod signals;
mod state_moves;
mod steering;
mod strangers;
mod table;
mod trail;
mod translation;
mod tunnels;
mod workers;
