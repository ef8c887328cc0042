//! The bounded flow table of one worker: flow → instance, with counters, on storage that the caller gives. It must never
//! allocate after it is made, evict a flow to make room for another, or do work that no limit bounds.
//!
//! Key types: [`FlowTable`], [`FlowHasher`] (the keyed hash, and which worker owns a flow), [`EntryIndex`] (a flow's place
//! while it lives), [`TimeoutPolicy`], [`Counters`]. The table reads no clock: every call that needs the time is given it.
//! One thread owns a table; nothing in it is shared.
//!
//! # Life of a flow
//!
//! 1. A [`Burst`] of IPv4 packets is filled. The table looks where it found their flows last, hashes the others and asks for their
//!    buckets ([`FlowTable::prefetch_buckets`]), then for the entries that may be theirs ([`FlowTable::resolve_candidates`]), and then counts them
//!    ([`FlowTable::hit_burst`]) up to the first one that needs more. What one packet waits for comes meanwhile.
//! 2. That one is looked up alone ([`FlowTable::lookup_in_burst`], or [`FlowTable::lookup`] by its key). Of a flow that is not there the
//!    caller picks an instance, and [`FlowTable::insert`] enters the flow with a pin for each direction; or it says [`Full`],
//!    and the caller applies the service's policy.
//! 3. [`FlowTable::hit`] counts each packet, the first one too, and gives the pin of its direction. A direction without a pin
//!    (never pinned, or its instance is gone) is pinned by [`FlowTable::set_pin`].
//! 4. The flow ends: by FIN both ways or RST and a linger, by its timeout ([`FlowTable::expire`], called in every round of the
//!    poll loop), or by [`FlowTable::purge`]. When an instance leaves, [`FlowTable::purge_slot`] takes its pins away; when it
//!    fails, [`FlowTable::fail_slot`] does, and the flows' new places count as expected moves.
//!
//! The live flows of each slot and service are right after every call.
//!
#![doc = include_str!("../../../../docs/flow-table.md")]
#![forbid(unsafe_code)]

mod bucket;
mod burst;
mod entry;
mod flow_cache;
mod hash;
mod header;
mod line;
mod region;
mod report;
mod slots;
mod table;
mod timeout;

pub use burst::{Burst, Lanes, LookupOutcome};
pub use hash::{FlowHasher, Ownership, RSS_BUCKETS, RSS_KEY, rss_queue};
pub use header::LAYOUT_VERSION;
pub use line::Line;
pub use report::{
    Counters, DumpCursor, Expiry, FlowChange, FlowRow, Full, Hit, Progress, TableError, TcpState, tcp_flag,
};
pub use table::{EntryIndex, FlowTable, TableConfig};
pub use timeout::{TimeoutClass, TimeoutPolicy};
