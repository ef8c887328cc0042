//! The bounded flow table of one worker: flow → instance, with counters, on storage that the caller gives. It must never
//! allocate after it is made, evict a flow to make room for another, or do work that no limit bounds.
//!
//! Key types: [`FlowTable`], [`FlowHasher`] (the keyed hash, and which worker owns a flow), [`EntryIndex`] (a flow's place
//! while it lives), [`TimeoutPolicy`], [`Counters`]. The table reads no clock: every call that needs the time is given it.
//! One thread owns a table; nothing in it is shared.
//!
//! # Life of a flow
//!
//! 1. A burst is parsed, then hashed, then looked up as one batch ([`FlowTable::lookup_batch`]).
//! 2. A miss is looked up once more (an earlier packet of the burst may have entered it), the caller picks an instance, and
//!    [`FlowTable::insert`] enters the flow with a pin for each direction; or it says [`Full`], and the caller applies the
//!    service's policy.
//! 3. [`FlowTable::hit`] counts each packet, the first one too, and gives the pin of its direction. A direction without a pin
//!    (never pinned, or its instance is gone) is pinned by [`FlowTable::set_pin`].
//! 4. The flow ends: by FIN both ways or RST and a linger, by its timeout ([`FlowTable::expire`], called in every round of the
//!    poll loop), or by [`FlowTable::purge`]. When an instance leaves, [`FlowTable::purge_slot`] takes its pins away; when it
//!    fails, [`FlowTable::fail_slot`] does, and the flows' new places count as expected moves.
//!
//! The live flows of each slot and service are right after every call.
//!
//! # Layout
//!
//! ```text
//! storage: lines of 64 bytes
//! ┌────────┬──────────── IPv4 ─────────────────────────────────────┬── IPv6 ──┐
//! │ header │ index │ entries │ links, wheel │ carries │ (returns)   │ the same │
//! └────────┴───────┴─────────┴──────────────┴─────────┴─────────────┴──────────┘
//! header   magic, layout version, sizes, checksum │ hash key, entries used so far
//!
//! index    a bucket is a line; a flow's first bucket is taken from the upper half of its hash
//!          0               15 16                               61   63
//!          ├ 15 signatures ┼0┼ 15 entry numbers of 3 bytes ─────┼ n ┤   n: flows that belong here first
//!                                                                        but lie in their second bucket
//!
//! entry    half a line (IPv4) or a line (IPv6)
//!          word 0   a port 16 │ b port 16 │ VLAN 16 │ protocol 8 │ state 8
//!          word 1   forward: packets 16 │ bytes 24 │ pin 11 │ last seen, upper half 13
//!          word 2   reverse: packets 16 │ bytes 24 │ pin 11 │ last seen, lower half 13
//!          word 3   addresses (IPv4: this word; IPv6: words 3 to 6)
//!
//! links    a word for each entry, then one for each slot of the timer wheel
//!          previous 24 │ next 24 │ service 16
//! carries  the upper 24 bits of packets and of bytes, for each direction: 12 bytes an entry
//! returns  packets returned and dropped, 16 bytes an entry, where `return_counters` asks for them
//! ```
//!
//! * **Index.** A new flow lies in its first bucket, else in its second one, else one of the 15 flows of the first moves to
//!   its own other bucket. Only the three-byte number moves: entries stay where they are. That is all the work that an
//!   insertion can do, and with 12 flows to a bucket of 15 it is nearly always enough for the last entry
//!   ([`Counters::full_index`] counts when it is not). A bucket that sent no flow elsewhere answers a miss alone.
//! * **Entries** are taken in order and used again last-in-first-out, so that few flows lie close together however large
//!   the table is, and memory that was never needed is never touched.
//! * **Counters.** The lower parts lie beside the key; the carries are touched once in 65,536 packets or 16 MiB, and not at
//!   all by a flow that ends before.
//! * **Time** is in ticks of 2^21 ns (2.1 ms). The wheel has one level of up to 65,536 ticks. A packet only notes the tick;
//!   when a flow's slot comes up, it ends or hangs itself up again for the end of its timeout, so that a flow is looked at
//!   once per timeout or turn (137 s), and nothing is ever scanned. A state with a shorter timeout moves the flow at once.
//! * **Purging a slot** closes it in one step: pins to a closed slot count as none. The entries are then cleaned in
//!   order, as many per call as the caller allows, and the slot opens again.
//!
//! # Cost
//!
//! | what | cache lines touched | bytes per IPv4 flow at 90 % fill |
//! | --- | --- | --- |
//! | packet of a known flow | bucket, entry (97 of 100; else one bucket more) | entries 35.6 |
//! | miss | bucket (one more where flows overflowed, a false signature in 1 of 20) | index 5.9 |
//! | new flow | the same, entry, links | links 8.9, wheel 0.1 |
//! | expiry | bucket, entry, links (16 flows at a time, so that their misses overlap) | |
//! | 65,536 packets or 16 MiB | carries | carries 13.3 |
//!
//! That is 63.8 bytes in all, 64 being the limit. `cargo run --release -p flow-table --example table_bench` measures it.
//!
//! # Storage that outlives the process
//!
//! [`FlowTable::attach`] takes over what [`FlowTable::new`] and its calls left in a mapping: keys, pins, services,
//! counters, times. Index, wheel, free list and live counts are built anew (about 40 ms for a million flows). Purges that were
//! under way must be asked for again. Whatever the storage holds, attaching does not panic.
#![forbid(unsafe_code)]

mod bucket;
mod entry;
mod hash;
mod header;
mod line;
mod region;
mod report;
mod slots;
mod table;
mod timeout;

pub use hash::FlowHasher;
pub use header::LAYOUT_VERSION;
pub use line::Line;
pub use report::{
    Counters, DumpCursor, Expiry, FlowChange, FlowRow, Full, Hit, Progress, TableError, TcpState, tcp_flag,
};
pub use table::{EntryIndex, FlowTable, TableConfig};
pub use timeout::{TimeoutClass, TimeoutPolicy};
