//! Real-time analytics, after iPipe section 4: the `n` most frequent keys of a sliding window, exactly.
//!
//! ```text
//! source → Filter → Counter → Ranker ─┐
//!              └──→ Counter → Ranker ─┴→ Aggregator → sink
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
mod ranker;
mod window;

pub use aggregator::{Aggregator, WINDOWS_LIMIT};
pub use counter::{Counter, CounterSettings};
pub use filter::{Filter, Topology, Tuple, encode_tuples};
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

/// Bytes of a key, at most.
pub const KEY_BYTES: usize = 47;
