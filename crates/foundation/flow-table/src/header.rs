//! The first two lines of the storage: the table's layout and its hash key.

use crate::{FlowHasher, Line, TableConfig, TableError};

/// "incoflow" in the writer's byte order, so that a table of another byte order is not accepted.
const MAGIC: u64 = u64::from_be_bytes(*b"incoflow");

/// The layout version. Raised with every change to the meaning of a byte, including the hash function.
pub const LAYOUT_VERSION: u64 = 1;

pub(crate) const LINES: usize = 2;

const RETURN_COUNTERS: u64 = 1;
const PIN_TIMES: u64 = 2;
const HIGH_WATER_AT: usize = 4;

pub(crate) struct Header {
    pub(crate) config: TableConfig,
    pub(crate) hasher: FlowHasher,
    pub(crate) high_water: [u64; 2],
}

/// Detects a torn or overwritten header. It does not protect against a writer with access to the storage.
fn checksum(words: &[u64]) -> u64 {
    words.iter().fold(0x9e37_79b9_7f4a_7c15_u64, |sum, &word| {
        (sum ^ word).wrapping_mul(0xd1b5_4a32_d192_ed03).rotate_left(29) ^ sum >> 32
    })
}

fn checked(first: &Line, key: [u64; 4]) -> u64 {
    let [w0, w1, w2, w3, w4, w5, w6, _] = first.0;
    let [k0, k1, k2, k3] = key;
    checksum(&[w0, w1, w2, w3, w4, w5, w6, k0, k1, k2, k3])
}

pub(crate) fn write(lines: &mut [Line], config: &TableConfig, lines_needed: usize, hasher: &FlowHasher) {
    let [k0, k1, k2, k3] = hasher.key();
    let flag = |is_set: bool, flag: u64| if is_set { flag } else { 0 };
    let flags = flag(config.return_counters, RETURN_COUNTERS) | flag(config.pin_times, PIN_TIMES);
    let mut first = Line([
        MAGIC,
        LAYOUT_VERSION,
        config.ipv4_flows as u64,
        config.ipv6_flows as u64,
        flags,
        lines_needed as u64,
        0,
        0,
    ]);
    first.0[7] = checked(&first, hasher.key());
    lines[0] = first;
    lines[1] = Line([k0, k1, k2, k3, 0, 0, 0, 0]);
}

/// Stores how many entries of a family were ever used.
#[inline(always)]
pub(crate) fn set_high_water(lines: &mut [Line], family: usize, high_water: u32) {
    lines[1].0[HIGH_WATER_AT + (family & 1)] = u64::from(high_water);
}

pub(crate) fn read(lines: &[Line]) -> Result<Header, TableError> {
    let [first, second, ..] = lines else {
        return Err(TableError::StorageTooSmall {
            needed: LINES,
            given: lines.len(),
        });
    };
    let [
        magic,
        version,
        ipv4_flows,
        ipv6_flows,
        flags,
        lines_needed,
        _,
        sum,
    ] = first.0;
    if magic != MAGIC {
        return Err(TableError::NotATable);
    }
    if version != LAYOUT_VERSION {
        return Err(TableError::LayoutVersion {
            found: version,
            supported: LAYOUT_VERSION,
        });
    }
    let [k0, k1, k2, k3, v4, v6, ..] = second.0;
    let key = [k0, k1, k2, k3];
    if sum != checked(first, key) || flags & !(RETURN_COUNTERS | PIN_TIMES) != 0 {
        return Err(TableError::HeaderDamaged);
    }
    let flows = |n: u64| usize::try_from(n).map_err(|_| TableError::HeaderDamaged);
    let config = TableConfig {
        ipv4_flows: flows(ipv4_flows)?,
        ipv6_flows: flows(ipv6_flows)?,
        return_counters: flags & RETURN_COUNTERS != 0,
        pin_times: flags & PIN_TIMES != 0,
    };
    let needed = config.lines_needed()?;
    if needed as u64 != lines_needed {
        return Err(TableError::HeaderDamaged);
    }
    if lines.len() < needed {
        return Err(TableError::StorageTooSmall {
            needed,
            given: lines.len(),
        });
    }
    for (found, limit) in [(v4, ipv4_flows), (v6, ipv6_flows)] {
        if found > limit {
            return Err(TableError::HighWater { found, limit });
        }
    }
    Ok(Header {
        config,
        hasher: FlowHasher::new(key),
        high_water: [v4, v6],
    })
}
