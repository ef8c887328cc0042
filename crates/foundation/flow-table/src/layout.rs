//! The versions of the storage's layout.

use model::Slot;

use crate::timeout::TICK_SHIFT;
use crate::{Line, bucket, header, region};

/// The layout version. Raised with every change to the place or the meaning of a byte, the hash functions included.
pub const VERSION: u64 = 1;

/// Sizes that an index or an entry is read by, a byte each.
pub(crate) const GEOMETRY: u64 = u64::from_le_bytes([
    Line::BYTES as u8,
    region::V4_ENTRY_BYTES as u8,
    region::V6_ENTRY_BYTES as u8,
    bucket::PLACES as u8,
    region::FLOWS_PER_BUCKET as u8,
    TICK_SHIFT as u8,
    Slot::LIMIT.ilog2() as u8,
    header::LINES as u8,
]);
