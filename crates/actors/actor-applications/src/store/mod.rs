//! A replicated key-value store, after iPipe section 4: Multi-Paxos over replicas, each with a log-structured merge tree.
//!
//! ```text
//! clients ↔ Consensus ↔ Consensus of the other replicas
//!              │ commands in the order of the log
//!           Memtable ──→ Compaction   (a full memtable; merges of tables)
//!              │ misses      │ new tables
//!            Tables ←────────┘
//! ```
//!
//! 1. [`Consensus`] puts requests into the log (Lamport, "Paxos made simple", 2001, section 3). A replica with a majority
//!    of promises is the leader. One round of accept messages chooses a command. Before it answers reads, the leader asks
//!    whether a majority still follows it; so reads need no clock.
//! 2. [`Memtable`] applies the chosen commands in order to a skip list (Pugh, 1990) and answers clients, on the leader
//!    only. It executes each request of a client once: it keeps the last request of each.
//! 3. A memtable that is full is frozen. [`Compaction`] writes it as a table of level 0 (minor compaction), and merges
//!    the tables of a level into the next one (major compaction; O'Neil and others, "The log-structured merge-tree",
//!    1996). [`Tables`] has the list of tables, and serves what the memtable has not.
//!
//! # Messages of clients
//! Numbers are little-endian.
//!
//! | kind | body |
//! | --- | --- |
//! | [`REQUEST`] | client (8), id (8), operation (1: 1 get, 2 put, 3 delete), key (1 and bytes), of a put: value (2 and bytes) |
//! | [`ANSWER`] | id (8), status (1), of a found value: value (2 and bytes), of another leader: its index (1; 255: unknown) |
//!
//! | status | meaning |
//! | --- | --- |
//! | 0, 1, 2 | written; found; not found |
//! | 3 | another replica leads: ask it. The request was not executed because of this message |
//! | 4 | too many commands wait: ask later |
//! | 5 | refused: it has another form, or there are too many clients |
//!
//! A client is a number that it draws at random, whatever address its requests come from. Its ids grow, and it has one
//! request at a time. It repeats a request, with its id and at any replica, until it has an answer; a repeated one is not
//! executed again. A request with a smaller id than its last is ignored. The answer goes to where the request came from.
//!
//! # Limits
//! A key has 1 to [`KEY_BYTES`] bytes, a value up to [`VALUE_BYTES`]. There are 1 to [`REPLICAS_LIMIT`] replicas. The
//! leader has up to [`PROPOSED_LIMIT`] commands under way. A replica that was away for longer than the log of the others
//! reaches back ([`ConsensusSettings::log_slots`]) catches up with a snapshot. One without its region must not come back: it
//! has forgotten what it promised. A store has up to [`CLIENTS_LIMIT`] clients.

mod cache;
mod client;
mod compaction;
mod consensus;
mod entry;
mod log;
mod memtable;
mod peer;
mod reads;
mod settings;
mod skip_list;
mod snapshot;
mod table;
mod tables;

pub use client::{Answer, Operation, Request};
pub use compaction::Compaction;
pub use consensus::Consensus;
pub use memtable::{Memtable, MemtableSettings};
pub use settings::ConsensusSettings;
pub use tables::Tables;

/// Kind of a client's request.
pub const REQUEST: u32 = 0x200;
/// Kind of an answer to a client.
pub const ANSWER: u32 = 0x201;
/// Kind of a message that says that time has passed; to the consensus actor, without a body. It passes it on to memtable and
/// tables, from which it comes back.
pub const TICK: u32 = 0x202;

/// Bytes of a key, at most.
pub const KEY_BYTES: usize = 250;
/// Bytes of a value, at most.
pub const VALUE_BYTES: usize = 1_024;
/// Clients, at most: they are one message of a snapshot.
pub const CLIENTS_LIMIT: u32 = 3_000;
/// Replicas, at most.
pub const REPLICAS_LIMIT: usize = 7;
/// Commands that are proposed and not chosen, at most.
pub const PROPOSED_LIMIT: u64 = 32;

/// Between consensus and memtable: slot (8), whether to answer (1), the command.
const APPLY: u32 = 0x210;
/// The last slot that was applied (8).
const APPLIED: u32 = 0x211;
/// From the memtable: sequence (8), entries.
const FLUSH: u32 = 0x212;
/// A table of level 0 is written: sequence (8), bytes (8).
const WRITTEN: u32 = 0x213;
/// It is served: sequence (8).
const STORED: u32 = 0x214;
/// A key that the memtable has not: address (8), id (8), key.
const READ: u32 = 0x215;
/// From consensus, for another replica: its index (1), the slot (8; 0: the head), the key (1 and bytes). From the memtable to
/// the tables: the same, 1 if its entries are all, and these.
const SNAP: u32 = 0x219;
/// The answer: index of the replica (1), 0: the head, 1: a part; the slot (8), and what follows in the message to it.
const SNAPPED: u32 = 0x21a;
/// A snapshot of another replica: 0: the head, with its slot (8) and clients, to the tables with the slot and the sequence of
/// memtables (8); 1: a part, with the slot (8); 2: how far it has got is to be told.
const INSTALL: u32 = 0x21b;
/// How far it has got.
const INSTALLED: u32 = 0x21c;
/// From consensus: a key to be read: address (8), id (8), key.
const GET: u32 = 0x218;
/// Tables to be merged: number of the new one (8), whether it is the last level (1), numbers of tables (8 each).
const MERGE: u32 = 0x216;
/// They are: number of the new table (8), its bytes (8).
const MERGED: u32 = 0x217;
