//! The state of associations as bytes: sequence numbers and windows, for an instance that goes on with them.
//!
//! Layout, numbers in big-endian order: the version (4 bytes), then for each association 1 byte for its direction
//! (0 outbound, 1 inbound), its identity (32 bytes), its sequence number (8 bytes) and, if inbound, the blocks of its
//! window (256 bytes). No key is in it.

use thiserror::Error;

use super::replay::BLOCKS;
use super::tunnel::{Inbound, Outbound};

const VERSION: [u8; 4] = *b"esp1";
const OUTBOUND: u8 = 0;
const INBOUND: u8 = 1;

/// The bytes are no state of associations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "byte {at} of the exported associations is wrong; they were written by another version, or are damaged"
)]
pub struct BadState {
    /// Where what is wrong begins.
    pub at: usize,
}

pub(super) fn write<'a>(
    outbound: impl IntoIterator<Item = &'a Outbound>,
    inbound: impl IntoIterator<Item = &'a Inbound>,
    into: &mut Vec<u8>,
) {
    into.extend(VERSION);
    for of in outbound {
        into.push(OUTBOUND);
        into.extend(of.identity);
        into.extend(of.sequence.to_be_bytes());
    }
    for of in inbound {
        let (highest, bits) = of.window.parts();
        into.push(INBOUND);
        into.extend(of.identity);
        into.extend(highest.to_be_bytes());
        into.extend(bits.iter().flat_map(|block| block.to_be_bytes()));
    }
}

/// An association's state.
enum Record {
    Outbound([u8; 32], u64),
    Inbound([u8; 32], u64, Box<[u64; BLOCKS]>),
}

fn read(bytes: &[u8]) -> Result<Vec<Record>, BadState> {
    let mut rest = bytes.strip_prefix(&VERSION).ok_or(BadState { at: 0 })?;
    let mut records = Vec::new();
    while !rest.is_empty() {
        let wrong = BadState {
            at: bytes.len() - rest.len(),
        };
        let (record, after) = record(rest).ok_or(wrong)?;
        records.push(record);
        rest = after;
    }
    Ok(records)
}

fn record(bytes: &[u8]) -> Option<(Record, &[u8])> {
    let (direction, rest) = bytes.split_first()?;
    let (identity, rest) = rest.split_first_chunk::<32>()?;
    let (sequence, rest) = rest.split_first_chunk::<8>()?;
    let sequence = u64::from_be_bytes(*sequence);
    match *direction {
        OUTBOUND => Some((Record::Outbound(*identity, sequence), rest)),
        INBOUND => {
            let (blocks, rest) = rest.split_at_checked(BLOCKS * 8)?;
            let mut bits = Box::new([0; BLOCKS]);
            for (to, from) in bits.iter_mut().zip(blocks.as_chunks::<8>().0) {
                *to = u64::from_be_bytes(*from);
            }
            Some((Record::Inbound(*identity, sequence, bits), rest))
        }
        _ => None,
    }
}

/// Whether the bytes are an export that says of no association but those that `has` knows, by direction and identity.
///
/// # Errors
/// The bytes are no export.
pub(super) fn is_only_of(bytes: &[u8], has: impl Fn(bool, &[u8; 32]) -> bool) -> Result<bool, BadState> {
    let records = read(bytes)?;
    Ok(records.iter().all(|record| match record {
        Record::Outbound(identity, _) => has(true, identity),
        Record::Inbound(identity, ..) => has(false, identity),
    }))
}

/// Takes over what an export says of associations that are here too. Sequence numbers only rise, and no number that
/// has come is taken again. Returns how many associations were found; nothing changes if the bytes are wrong.
pub(super) fn take(
    outbound: &mut [Outbound],
    inbound: &mut [Inbound],
    bytes: &[u8],
) -> Result<usize, BadState> {
    let mut found = 0;
    for record in read(bytes)? {
        match record {
            Record::Outbound(identity, sequence) => {
                for of in outbound.iter_mut().filter(|of| of.identity == identity) {
                    of.sequence = of.sequence.max(sequence.min(of.last_sequence()));
                    found += 1;
                }
            }
            Record::Inbound(identity, highest, bits) => {
                for of in inbound.iter_mut().filter(|of| of.identity == identity) {
                    of.window.merge(highest, &bits);
                    found += 1;
                }
            }
        }
    }
    Ok(found)
}
