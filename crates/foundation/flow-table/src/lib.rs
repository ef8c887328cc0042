//! The bounded flow table of one worker: flow → instance, with counters, in storage given by the caller.
//! After construction it never allocates, never evicts a flow to make room, and never does unbounded work.
//!
//! Key types: [`FlowTable`], [`FlowHasher`] (the keyed hash and the owner), [`EntryIndex`] (handle of a live flow),
//! [`Timeouts`](model::Timeouts), [`Counters`]. The table reads no clock: time is an argument. One thread owns a
//! table; nothing in it is shared.
//!
//! # Life of a flow
//!
//! 1. **Fast path.** The worker fills a [`Burst`] with IPv4 packets. [`FlowTable::prefetch_buckets`] probes
//!    the flow cache, hashes the misses and prefetches their buckets. [`FlowTable::resolve_candidates`]
//!    prefetches the entries that may match. [`FlowTable::hit_burst`] counts packets up to the first that
//!    needs more. Cache misses of a burst overlap.
//! 2. **Slow path.** That packet is looked up alone, by [`FlowTable::lookup_in_burst`], or by key with
//!    [`FlowTable::lookup`]. On a miss the caller picks an instance, and [`FlowTable::insert`] creates the
//!    flow with a pin for each direction. If it returns [`Full`], the caller applies the service's policy.
//! 3. [`FlowTable::hit`] counts each packet, including the first, and returns the pin of its direction.
//!    [`FlowTable::set_pin`] pins a direction without a pin (never pinned, or its instance is gone).
//! 4. **End.** The flow ends by FIN in both directions or RST and a linger, by its timeout
//!    ([`FlowTable::expire`], called in every turn of the poll loop), or by [`FlowTable::purge`]. When an
//!    instance leaves, [`FlowTable::purge_slot`] removes its pins. When it fails, [`FlowTable::fail_slot`]
//!    does, and re-pinning its flows counts as expected moves.
//!
//! The live-flow counts of slots and services are exact after every call.
//!
#![doc = include_str!("../../../../docs/flow-table.md")]
#![forbid(unsafe_code)]

mod adopt;
mod attach;
mod bucket;
mod burst;
mod entry;
mod flow_cache;
mod hash;
mod header;
mod identity;
mod journal;
pub mod layout;
mod line;
mod parallel;
mod region;
mod report;
mod slots;
mod store;
mod table;
mod timeout;

pub use attach::{AttachCounts, Numbers};
pub use burst::{Burst, Lanes, LookupOutcome};
pub use hash::{FlowHasher, Ownership, RSS_BUCKETS, RSS_KEY, rss_queue};
pub use header::{Found, inspect};
pub use identity::{Holder, Identity};
pub use line::Line;
pub use parallel::{InTurn, Parallel};
pub use report::{
    Counters, DumpCursor, Expiry, FlowChange, FlowRow, Full, Hit, Progress, TableError, TcpState, tcp_flag,
};
pub use table::{EntryIndex, FlowTable, TableConfig};
pub use timeout::TimeoutClass;
