//! The layout of the memory of neighbours: which MAC address an address of an uplink was last seen at.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};

use model::UplinkId;
use shared_memory::OwnMemory;

/// Neighbours of an uplink that are remembered. Beyond that, and for one that was never seen, the router gets the packet:
/// the MAC address by which several addresses are reached; else the latest new neighbour.
pub(crate) const NEIGHBOURS: usize = 4096;
/// Places that an address may have, all in one cache line.
pub(crate) const WAYS: usize = 4;
pub(crate) const MAC_BITS: u32 = 48;
/// Words of the memory of neighbours: which layout, the key of the places, and for each uplink the router, the
/// latest new neighbour and all of them.
pub(crate) const LAYOUT_AT: usize = 0;
pub(crate) const LAYOUT: u64 = 0x1ac0_2001;
pub(crate) const KEY_AT: usize = 1;
pub(crate) const UPLINKS_AT: usize = 4;
pub(crate) const UPLINK_WORDS: usize = WAYS + NEIGHBOURS;
pub(crate) const BYTES: usize = 8 * (UPLINKS_AT + UplinkId::LIMIT * UPLINK_WORDS);
/// For the places of addresses: odd numbers without a pattern.
pub(crate) const MIX: [u64; 2] = [0x9e37_79b9_7f4a_7c15, 0xd1b5_4a32_d192_ed03];

#[inline]
pub(crate) fn word(memory: &OwnMemory, at: usize) -> &AtomicU64 {
    let words = memory.all_words();
    &words[at % words.len()]
}

/// Where the MAC address of an uplink's router is; 0: none is known.
pub(crate) fn router(uplink: UplinkId) -> usize {
    UPLINKS_AT + uplink.index() % UplinkId::LIMIT * UPLINK_WORDS
}

/// Where the latest new neighbour of an uplink is.
pub(crate) fn latest(uplink: UplinkId) -> usize {
    router(uplink) + 1
}

pub(crate) fn load(memory: &OwnMemory, at: usize) -> u64 {
    word(memory, at).load(Ordering::Relaxed)
}

pub(crate) fn tag_of(entry: u64) -> u64 {
    entry >> MAC_BITS
}

pub(crate) fn mac_of(entry: u64) -> u64 {
    entry & ((1 << MAC_BITS) - 1)
}

/// The place of an address among the neighbours of an uplink, and its tag there.
#[inline]
pub(crate) fn place(memory: &OwnMemory, uplink: UplinkId, of: IpAddr) -> ([usize; WAYS], u64) {
    let [first, second] = [0, 1].map(|at| word(memory, KEY_AT + at).load(Ordering::Relaxed));
    let (high, low) = match of {
        IpAddr::V4(v4) => (0, u64::from(v4.to_bits())),
        IpAddr::V6(v6) => ((v6.to_bits() >> 64) as u64, v6.to_bits() as u64),
    };
    let fold = |a: u64, b: u64| {
        let product = u128::from(a) * u128::from(b);
        product as u64 ^ (product >> 64) as u64
    };
    // No key makes a factor small.
    let mixed = fold(low ^ first ^ MIX[0], high ^ second ^ MIX[1]);
    let mixed = fold(mixed ^ MIX[1], first ^ MIX[0]);
    let set = (mixed >> 32) as usize % (NEIGHBOURS / WAYS);
    let first = router(uplink) + WAYS + set * WAYS;
    (std::array::from_fn(|way| first + way), mixed >> MAC_BITS)
}

pub(crate) fn number(mac: [u8; 6]) -> u64 {
    mac.into_iter()
        .fold(0, |number, byte| number << 8 | u64::from(byte))
}

pub(crate) fn address(mac: u64) -> [u8; 6] {
    let [_, _, bytes @ ..] = mac.to_be_bytes();
    bytes
}
