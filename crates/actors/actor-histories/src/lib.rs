//! Checkers of histories: of what clients of an application have seen, they tell whether its promise was kept. They read
//! no clock and know no application; a caller gives times that all differ.
//!
//! - [`linearizability`]: of the history of one key, whether it is that of a register.
//! - [`serialisability`]: of committed transactions, whether there is an order of them that explains what each has read.
#![forbid(unsafe_code)]

pub mod linearizability;
pub mod serialisability;
