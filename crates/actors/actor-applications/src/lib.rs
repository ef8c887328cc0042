//! Applications made of actors, after iPipe (Liu and others, SIGCOMM 2019, section 4). They never read a clock or open a
//! socket: time is a message, and what arrives and leaves are messages of `actor-runtime`. Only tables of the store
//! and full segments of a log are files, behind a trait.
//!
//! - [`analytics`]: the most frequent keys of a sliding window, exactly.
//! - [`store`]: a key-value store with replicas: Multi-Paxos, and a log-structured merge tree.
//! - [`transactions`]: over several machines: optimistic concurrency control, two-phase commit.
//!
//! What holds for all: the Rust value of an actor has its settings only, and its state is in its objects. So an actor
//! can move to another side at any message, and goes on after a crash between two messages with the state behind the
//! last one. Everything is bounded; an actor whose region has no room fails, and its runtime stops it.
#![forbid(unsafe_code)]

pub mod analytics;
mod codec;
mod state;
mod storage;
pub mod store;
pub mod transactions;

pub use storage::{Folder, Storage, StorageError};
