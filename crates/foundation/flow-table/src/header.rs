//! The first lines of the storage: what the table is, whose it is, and what changes as it is used.
//!
//! ```text
//! line 0   magic │ layout version │ byte order │ geometry │ IPv4 flows │ IPv6 flows │ flags │ lines
//! line 1   hash key (4 words) │ clock │ worker 16, workers 16 │ configuration │ made at
//! line 2   boot id (2 words) │ 5 zero words │ checksum of the words before
//! line 3   state │ times attached │ entries used (IPv4, IPv6) │ time │ 3 zero words
//! line 4   the journal
//! line 5   closed slots, a bit each: lines 5 and 6; of those the failed ones: lines 7 and 8
//! ```
//! Lines 0 to 2 never change. They are written before the magic.

use model::{Nanos, Slot};

use crate::{
    FlowHasher, Holder, Identity, Line, Ownership, TableConfig, TableError, layout, store, timeout::tick,
};

/// "incoflow" in the writer's byte order.
const MAGIC: u64 = u64::from_be_bytes(*b"incoflow");
const BYTE_ORDER: u64 = 0x0102_0304_0506_0708;
/// The clock of all times: Linux's number for `CLOCK_MONOTONIC`.
const CLOCK_MONOTONIC: u64 = 1;

pub(crate) const LINES: usize = 9;

const RETURN_COUNTERS: u64 = 1;
const PIN_TIMES: u64 = 2;
const CARD_OWNERSHIP: u64 = 4;
const FLAGS: u64 = RETURN_COUNTERS | PIN_TIMES | CARD_OWNERSHIP;

const BOOT: usize = 2;
const CHECKSUM_AT: usize = 7;
/// The line of words that change.
const LIVE: usize = 3;
const STATE_AT: usize = 0;
const ATTACHED_AT: usize = 1;
const HIGH_WATER_AT: usize = 2;
const TICK_AT: usize = 4;
const CLOSED: usize = 5;
const FAILED: usize = 7;

/// What [`inspect`] found in storage: the table's sizes, secrets and owner, without its flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// The sizes it was made with.
    pub config: TableConfig,
    /// Its hash key and how owners are determined.
    pub hasher: FlowHasher,
    /// Whose it is.
    pub identity: Identity,
    /// Who held it last, and how that ended.
    pub holder: Holder,
    /// How often it has been attached since it was made.
    pub attached: u64,
    /// When it was made.
    pub made_at: Nanos,
    pub(crate) high_water: [u32; 2],
    /// The latest tick passed to `expire`.
    pub(crate) tick: u64,
}

/// Reads the header of a table, and changes nothing. Use it before [`FlowTable::attach`](crate::FlowTable::attach)
/// to learn the table's sizes and hash key, or why it cannot be attached.
///
/// # Errors
/// The storage is unusable as a whole: no table, another layout version or byte order, a damaged header, or sizes
/// that it does not have room for.
pub fn inspect(lines: &[Line]) -> Result<Found, TableError> {
    read(lines)
}

/// Detects a torn or overwritten header. It does not protect against a writer with access to the storage.
fn checksum(lines: &[Line]) -> u64 {
    let words = lines[..=BOOT].iter().flat_map(|line| line.0);
    words
        .take(BOOT * 8 + CHECKSUM_AT)
        .fold(0x9e37_79b9_7f4a_7c15_u64, |sum, word| {
            (sum ^ word).wrapping_mul(0xd1b5_4a32_d192_ed03).rotate_left(29) ^ sum >> 32
        })
}

/// Makes the storage no table, before it is formatted.
pub(crate) fn erase(lines: &mut [Line]) {
    store::last(&mut lines[0].0[0], 0);
}

pub(crate) fn write(
    lines: &mut [Line],
    config: &TableConfig,
    lines_needed: usize,
    hasher: &FlowHasher,
    identity: &Identity,
    now: Nanos,
) {
    let flag = |is_set: bool, flag: u64| if is_set { flag } else { 0 };
    let flags = flag(config.return_counters, RETURN_COUNTERS)
        | flag(config.pin_times, PIN_TIMES)
        | flag(hasher.ownership() == Ownership::Card, CARD_OWNERSHIP);
    let [k0, k1, k2, k3] = hasher.key();
    let [b0, b1] = identity.boot_words();
    let mut fixed = [
        Line([
            MAGIC,
            layout::VERSION,
            BYTE_ORDER,
            layout::GEOMETRY,
            config.ipv4_flows as u64,
            config.ipv6_flows as u64,
            flags,
            lines_needed as u64,
        ]),
        Line([
            k0,
            k1,
            k2,
            k3,
            CLOCK_MONOTONIC,
            u64::from(identity.worker) | u64::from(identity.workers) << 16,
            identity.configuration,
            now.0,
        ]),
        Line([b0, b1, 0, 0, 0, 0, 0, 0]),
    ];
    fixed[BOOT].0[CHECKSUM_AT] = checksum(&fixed);
    // The magic comes last: a header of which a part is missing is none.
    fixed[0].0[0] = 0;
    lines[..LIVE].copy_from_slice(&fixed);
    lines[LIVE..LINES].fill(Line::ZERO);
    lines[LIVE].0[TICK_AT] = tick(now);
    lines[LIVE].0[STATE_AT] = Holder::Running.word();
    store::last(&mut lines[0].0[0], MAGIC);
}

pub(crate) fn read(lines: &[Line]) -> Result<Found, TableError> {
    if lines.len() < LINES {
        return Err(TableError::StorageTooSmall {
            needed: LINES,
            given: lines.len(),
        });
    }
    let [magic, version, order, geometry, v4_flows, v6_flows, flags, needed] = lines[0].0;
    if magic == MAGIC.swap_bytes() {
        return Err(TableError::ByteOrder);
    }
    if magic != MAGIC {
        return Err(TableError::NotATable);
    }
    if version != layout::VERSION {
        return Err(TableError::LayoutVersion {
            found: version,
            supported: layout::VERSION,
        });
    }
    let [k0, k1, k2, k3, clock, workers, configuration, made_at] = lines[1].0;
    let [b0, b1, .., sum] = lines[BOOT].0;
    let expected = [BYTE_ORDER, layout::GEOMETRY, CLOCK_MONOTONIC];
    if sum != checksum(lines) || [order, geometry, clock] != expected || flags & !FLAGS != 0 {
        return Err(TableError::HeaderDamaged);
    }
    let flows = |n: u64| usize::try_from(n).map_err(|_| TableError::HeaderDamaged);
    let config = TableConfig {
        ipv4_flows: flows(v4_flows)?,
        ipv6_flows: flows(v6_flows)?,
        return_counters: flags & RETURN_COUNTERS != 0,
        pin_times: flags & PIN_TIMES != 0,
    };
    let lines_needed = config.lines_needed()?;
    if lines_needed as u64 != needed || workers >> 32 != 0 {
        return Err(TableError::HeaderDamaged);
    }
    if lines.len() < lines_needed {
        return Err(TableError::StorageTooSmall {
            needed: lines_needed,
            given: lines.len(),
        });
    }
    let live = &lines[LIVE].0;
    let mut high_water = [0; 2];
    let limits = [config.ipv4_flows, config.ipv6_flows];
    for ((used, &found), limit) in high_water.iter_mut().zip(&live[HIGH_WATER_AT..]).zip(limits) {
        *used = u32::try_from(found)
            .ok()
            .filter(|&used| used as usize <= limit)
            .ok_or(TableError::HighWater {
                found,
                limit: limit as u64,
            })?;
    }
    let ownership = if flags & CARD_OWNERSHIP == 0 {
        Ownership::Keyed
    } else {
        Ownership::Card
    };
    Ok(Found {
        config,
        hasher: FlowHasher::new([k0, k1, k2, k3]).owning(ownership),
        identity: Identity {
            boot: Identity::boot_of([b0, b1]),
            configuration,
            worker: workers as u16,
            workers: (workers >> 16) as u16,
        },
        holder: Holder::of(live[STATE_AT]),
        attached: live[ATTACHED_AT],
        made_at: Nanos(made_at),
        high_water,
        tick: live[TICK_AT],
    })
}

// What changes.

/// Stores how many entries of a family were ever used, after the newest of them is complete.
#[inline(always)]
pub(crate) fn set_high_water(lines: &mut [Line], family: usize, high_water: u32) {
    lines[LIVE].0[HIGH_WATER_AT + (family & 1)] = u64::from(high_water);
}

/// Stores the latest tick passed to `expire`.
#[inline(always)]
pub(crate) fn set_tick(lines: &mut [Line], tick: u64) {
    lines[LIVE].0[TICK_AT] = tick;
}

pub(crate) fn set_holder(lines: &mut [Line], holder: Holder) {
    store::last(&mut lines[LIVE].0[STATE_AT], holder.word());
}

pub(crate) fn count_attach(lines: &mut [Line]) {
    let count = &mut lines[LIVE].0[ATTACHED_AT];
    *count = count.wrapping_add(1);
}

// Closed slots. A bit in `FAILED` means nothing without the one in `CLOSED`.

fn slot_bit(first: usize, slot: Slot) -> Option<(usize, usize, u64)> {
    let i = slot.index();
    (i < Slot::LIMIT).then_some((first + i / 512, i / 64 % 8, 1 << (i % 64)))
}

/// Stores that a slot is closed, before a pin to it is removed.
pub(crate) fn close_slot(lines: &mut [Line], slot: Slot, failed: bool) {
    for (first, is_set) in [(FAILED, failed), (CLOSED, true)] {
        if let Some((line, word, bit)) = slot_bit(first, slot)
            && is_set
        {
            let word = &mut lines[line].0[word];
            store::last(word, *word | bit);
        }
    }
}

/// Stores that a slot is open again, after the last pin to it has been removed.
pub(crate) fn open_slot(lines: &mut [Line], slot: Slot) {
    for first in [CLOSED, FAILED] {
        if let Some((line, word, bit)) = slot_bit(first, slot) {
            let word = &mut lines[line].0[word];
            store::last(word, *word & !bit);
        }
    }
}

/// Whether any slot is closed.
pub(crate) fn any_closed_slot(lines: &[Line]) -> bool {
    lines[CLOSED..FAILED].iter().any(|line| *line != Line::ZERO)
}

/// Whether a slot is closed, and whether because its instance failed.
pub(crate) fn closed_slot(lines: &[Line], slot: Slot) -> Option<bool> {
    let is_set = |first| {
        slot_bit(first, slot)
            .is_some_and(|(line, word, bit): (usize, usize, u64)| lines[line].0[word] & bit != 0)
    };
    is_set(CLOSED).then(|| is_set(FAILED))
}
