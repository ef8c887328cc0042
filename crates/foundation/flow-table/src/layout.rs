//! The versions of the storage's layout, and how flows of an older one are carried over.
//!
//! # Changing the layout
//! A table may be attached by a newer program than the one that made it. So a change to the place or the meaning of a
//! byte takes these steps. `tests/layout.rs` fails without them.
//!
//! 1. Raise [`VERSION`].
//! 2. Keep the reader of the version before in a file of this module: the parts of `header`, `region` and `journal`
//!    by which [`read`] finds entries, as they were. It gives each entry in the words of the new layout, a [`Record`].
//!    `read` calls it for that version, and calls the reader of no version older than that.
//! 3. Write the new reference: `INCO_WRITE_REFERENCE=1 cargo test -p flow-table --test layout`. The file of the
//!    version before stays, and the test takes its flows over.
//!
//! [`FlowTable::convert`](crate::FlowTable::convert) then moves no flow in an upgrade by one release.

use model::Slot;

use crate::entry::State;
use crate::journal::{Change, More};
use crate::region::Region;
use crate::timeout::TICK_SHIFT;
use crate::{Found, Line, TableError, bucket, header, region};

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

/// A used entry of a table of any layout, in the words of this one. Nothing in it has been checked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Record {
    /// 0 for IPv4, 1 for IPv6.
    pub(crate) family: usize,
    /// The entry's words; those of an IPv4 flow are the first four.
    pub(crate) words: [u64; 8],
    pub(crate) service: u16,
    pub(crate) carries: [u64; 2],
    /// Returned and dropped packets, if the table counts them.
    pub(crate) returns: [u64; 2],
    /// When each direction was pinned, if the table stores it.
    pub(crate) pinned: u64,
}

/// Passes the used entries of a table to `visit`: of this layout, or of one that can be converted. A change that was
/// under way is complete in them. The storage is not changed.
///
/// # Errors
/// As [`inspect`](crate::inspect).
pub(crate) fn read(lines: &[Line], mut visit: impl FnMut(&Found, Record)) -> Result<Found, TableError> {
    // An older version has its own reader here, chosen by the header's second word.
    let found = header::read(lines)?;
    let mut regions = found.config.regions()?;
    for (region, &high_water) in regions.iter_mut().zip(&found.high_water) {
        region.set_high_water(high_water);
    }
    let change = Change::under_way(lines, &regions);
    for (family, region) in regions.iter().enumerate() {
        for entry in 0..region.high_water() {
            if State::of(region.head(lines, entry)[0]).0 == 0 {
                continue;
            }
            let mut record = record(region, lines, family, entry);
            if let Some(change) = change
                && (change.family, change.entry) == (family, entry)
            {
                record.words[..4].copy_from_slice(&change.head);
                match change.more {
                    More::Pinned(pinned) => record.pinned = pinned,
                    More::Carries(carries) => record.carries = carries,
                    More::Restarted => record.returns = [0; 2],
                }
            }
            visit(&found, record);
        }
    }
    Ok(found)
}

#[inline(always)]
fn record(region: &Region, lines: &[Line], family: usize, entry: u32) -> Record {
    let returns = region.returns(lines, entry).and_then(<[u64]>::first_chunk);
    Record {
        family,
        words: region.words(lines, entry),
        service: region.service(lines, entry),
        carries: region.carries(lines, entry),
        returns: returns.copied().unwrap_or_default(),
        pinned: region.pinned_with(lines, entry, [false; 2], 0),
    }
}
