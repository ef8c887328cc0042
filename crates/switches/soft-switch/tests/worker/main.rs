//! One worker, driven turn by turn: it allocates nothing in the steady state, and a late frame finds no wrong
//! instance.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "what goes wrong here fails the test"
)]

mod alone;
mod moves;
mod state_moves;
mod turns;
