//! A run of the switch ends in the middle of a turn, and the next one goes on with what a keeper has: every packet
//! passes once and in order, and no flow moves.
#![cfg(target_os = "linux")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "what goes wrong here fails the test"
)]

mod at_any_store;
mod at_any_time;
#[path = "../switch/bed.rs"]
mod bed;
#[path = "../kept/mod.rs"]
mod kept;
mod peers;
mod run;
