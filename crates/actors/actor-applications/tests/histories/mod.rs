//! Checkers of histories.
#![allow(dead_code, reason = "each test uses a part")]

pub(crate) mod linearizability;
pub(crate) mod serialisability;
