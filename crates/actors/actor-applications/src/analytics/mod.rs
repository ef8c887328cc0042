//! Real-time analytics, after iPipe section 4: the `n` most frequent keys of a sliding window, exactly.
//!
//! ```text
//! source → Filter → Counter → Ranker ─┐
//!              └──→ Counter → Ranker ─┴→ Aggregator → sink, or readers that ask
//! ```
//!
//! 1. A [`Filter`] drops tuples that have none of its patterns. It sends the key of each other tuple to the counter that
//!    the key's hash chooses ([`Topology`]), so each key is counted in one place.
//! 2. A [`Counter`] counts keys in slots of event time. When a slot ends for all filters, it sends the counts over the
//!    last slots of the window.
//! 3. A [`Ranker`] sorts these counts and keeps the `n` greatest. Ties go to the smaller key.
//! 4. An [`Aggregator`] merges what all rankers send for the same window. Their keys differ, so its result is exact.
//!
//! # Messages
//! Numbers are little-endian. A string is one byte of length and its bytes. A message that has another form is dropped
//! and counted in the root object.
//!
//! | kind | from, to | body |
//! | --- | --- | --- |
//! | [`TUPLES`] | source, filter | number of the source (2), watermark (8), then tuples: time (8), key (string), text (2 and bytes) |
//! | [`KEYS`] | filter, counter | number of the source (2), watermark (8), then time (8), key (string) |
//! | [`COUNTS`], [`TOP`] | counter, ranker, aggregator, sink | end of the window (8), refused keys and late tuples (8), flags (1), then count (8), key (string) |
//!
//! | [`NUMBERED`] | source, filter | session of the source (8), number of the message (8), then as [`TUPLES`] |
//! | [`NUMBERED_KEYS`] | filter, counter | session (8), number (8), the source's address outside (8), index of the counter (2), counters (2), then as [`KEYS`] |
//! | [`TAKEN`] | counter, source | session (8), number of the source (2), index of the counter (2), counters (2), the last message that it has counted (8) |
//! | [`ASK`] | reader, aggregator | the end of the last window that it has (8) |
//!
//! **Over a network that loses messages** a source numbers them from 1 on in each of its sessions, and sends each again until all counters have
//! said that they have counted it ([`TAKEN`]). A counter takes them in order, and each once. A reader asks the aggregator
//! for the next window; it gets [`TOP`], which ends at 0 if there is none yet. The last [`WINDOWS_KEPT`] are kept.
//!
//! A time is a number of any unit, the same for all. A watermark says that the source sends no earlier tuple any more.
//! An earlier one is late: it is counted and dropped if its slot has ended. Flag 1: the last message of the window.
//! Flag 2: the window is not exact, since keys were refused, tuples were late, or a ranker did not answer.
//!
//! # Limits
//! A key has 1 to [`KEY_BYTES`] bytes; other tuples are dropped by the filter. A counter has room for a number of keys
//! ([`CounterSettings::keys`]); others are refused, and the window says so.

mod aggregator;
mod counter;
mod filter;
mod numbered;
mod ranker;
mod window;

pub use aggregator::{Aggregator, WINDOWS_KEPT, WINDOWS_LIMIT};
pub use counter::{Counter, CounterSettings};
pub use filter::{Filter, Topology, Tuple, encode_numbered, encode_tuples};
pub use numbered::Taken;
pub use ranker::Ranker;
pub use window::{Ranked, WindowPart};

/// Kind of a message with tuples.
pub const TUPLES: u32 = 0x100;
/// Kind of a message with keys of tuples that a filter let through.
pub const KEYS: u32 = 0x101;
/// Kind of a message with counts of keys in a window.
pub const COUNTS: u32 = 0x102;
/// Kind of a message with the greatest counts of a window.
pub const TOP: u32 = 0x103;
/// Kind of a message with tuples and a number.
pub const NUMBERED: u32 = 0x104;
/// Kind of a message with keys of such a message.
pub const NUMBERED_KEYS: u32 = 0x105;
/// Kind of a message that says what a counter has counted.
pub const TAKEN: u32 = 0x106;
/// Kind of a message that asks for the next window.
pub const ASK: u32 = 0x107;

/// Bytes of a key, at most.
pub const KEY_BYTES: usize = 47;
