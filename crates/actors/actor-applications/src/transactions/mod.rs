//! Transactions over several machines, after iPipe section 4: optimistic concurrency control with two-phase commit.
//!
//! ```text
//! clients ↔ Coordinator ↔ Participant, Participant, …
//!               └──→ Journal (full segments of the log, on disk)
//! ```
//!
//! A transaction reads a set of keys and writes another one. Both are known when it begins.
//!
//! 1. Read and lock. The [`Coordinator`] has each [`Participant`] read its keys of the read set and lock those of the
//!    write set. If a key of either set is locked, the transaction aborts. Nobody waits for a lock, so there is no
//!    deadlock.
//! 2. Validate. The participants check that no key that was read is locked by another transaction or has another version.
//! 3. Log. The coordinator writes keys, values and versions to its log. With the end of this message the transaction is
//!    committed.
//! 4. Commit. The participants take the values and unlock the keys. When all have said so, the client gets its answer.
//!
//! All reads were valid together between the last read and the first validation, while all written keys were locked. So
//! committed transactions are serialisable, in an order that real time permits.
//!
//! Messages may be lost, come twice or in another order. The coordinator repeats with each tick what has no answer. A
//! participant remembers the last [`ACTIVE_LIMIT`] transactions, so a late message of one that has ended changes nothing.
//!
//! # Messages of clients
//! Numbers are little-endian.
//!
//! | kind | body |
//! | --- | --- |
//! | [`TRANSACTION`] | client (8), id (8), keys that are read (1), keys that are written (1); for each read its key (1 and bytes); for each write key (1 and bytes) and value (2 and bytes) |
//! | [`OUTCOME`] | id (8), status (1); if committed, for each read in order: version (8), value (2 and bytes) |
//!
//! | status | meaning |
//! | --- | --- |
//! | 0 | committed. Version 0: the key has no value |
//! | 1 | aborted: nothing was written |
//! | 2 | as many transactions are under way as may, or as many clients known: ask later |
//! | 3 | refused: the request has another form |
//!
//! A client is a number that it draws at random, whatever address its messages come from. Its ids grow, and it has one
//! transaction at a time. It repeats it until it has an outcome, which goes to where the message came from. The last outcome of each client is kept, so a repeated transaction is not executed again.
//!
//! # Limits
//! Keys of 1 to [`KEY_BYTES`] bytes, values of up to [`VALUE_BYTES`], [`KEYS_LIMIT`] keys in each set, each once;
//! [`ACTIVE_LIMIT`] transactions at a time; 1 to [`PARTICIPANTS_LIMIT`] participants. There is no replication. A
//! coordinator or participant that has lost its region does not come back by itself: the log says what was committed
//! ([`read_segment`]).

mod client;
mod coordinator;
mod hash_table;
mod journal;
mod message;
mod participant;
mod running;

pub use client::{Outcome, Read, Transaction};
pub use coordinator::{Coordinator, CoordinatorSettings};
pub use journal::{Committed, Journal, read_log, read_segment};
pub use participant::{Participant, participant_of};

/// Kind of a client's transaction.
pub const TRANSACTION: u32 = 0x300;
/// Kind of its outcome.
pub const OUTCOME: u32 = 0x301;
/// Kind of a message that says that time has passed; to the coordinator, without a body.
pub const TICK: u32 = 0x302;

/// Bytes of a key, at most.
pub const KEY_BYTES: usize = 64;
/// Bytes of a value, at most.
pub const VALUE_BYTES: usize = 512;
/// Keys that a transaction reads, and that it writes, at most.
pub const KEYS_LIMIT: usize = 8;
/// Transactions under way, at most.
pub const ACTIVE_LIMIT: u64 = 64;
/// Participants, at most.
pub const PARTICIPANTS_LIMIT: usize = 16;

/// Between coordinator and journal: number of a segment (8), its records.
const CHECKPOINT: u32 = 0x310;
/// The number of a segment that is on disk (8).
const CHECKPOINTED: u32 = 0x311;
