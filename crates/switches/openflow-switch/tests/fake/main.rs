//! The core against a switch that lags its rules: every packet is numbered and looked at where it arrives.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "what goes wrong here fails the test"
)]

mod batches;
mod counters;
mod instances;
mod limits;
mod order;
mod restarts;
#[path = "../tracked/mod.rs"]
mod tracked;
mod world;
