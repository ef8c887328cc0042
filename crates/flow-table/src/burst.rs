//! The short way of known IPv4 flows through the table: a burst of packets, side by side, step by step.

use model::{FlowKeyV4, Slot};

use crate::FlowHasher;
use crate::entry::{KeyWords, PORTS_MASK};

/// Packets that a burst has at most: DPDK's customary burst, twice.
pub const BURST: usize = 64;

/// A packet that needs more than the short way: set in the upper byte of its ports word, where no entry has it.
const ODD: u64 = 1 << 63;
/// What the upper byte of a steady entry has (see `State::is_steady`), beside which the short way must not pass.
const STEADY: u64 = 1 << 56;
/// The bits of an entry's first word that must be as expected.
const EXPECTED: u64 = PORTS_MASK | 0b101 << 56 | ODD;

/// The direction of a packet, in its `lengths` word.
const REVERSE_SHIFT: u32 = 31;

/// Packets of a burst on their way through [`FlowTable::ask`](crate::FlowTable::ask),
/// [`FlowTable::choose`](crate::FlowTable::choose) and [`FlowTable::hit_burst`](crate::FlowTable::hit_burst).
#[derive(Clone, Debug)]
pub struct Burst {
    pub(crate) len: usize,
    pub(crate) addresses: [u64; BURST],
    pub(crate) ports: [u64; BURST],
    pub(crate) hashes: [u64; BURST],
    /// Length in bytes, and the direction in the uppermost bit.
    pub(crate) lengths: [u32; BURST],
    /// The entry that may be the packet's; `u32::MAX` where there is none.
    pub(crate) candidates: [u32; BURST],
}

/// What the table needs of an IPv4 packet.
#[derive(Clone, Copy, Debug)]
pub struct BurstPacket {
    /// Its flow.
    pub key: FlowKeyV4,
    /// 0 where it travels forward, 1 where in reverse.
    pub direction: u32,
    /// Its length, below 2^31.
    pub bytes: u32,
    /// Whether it may change more than its flow's counters, such as one with SYN, FIN or RST.
    pub is_odd: bool,
}

impl Default for Burst {
    fn default() -> Burst {
        Burst {
            len: 0,
            addresses: [0; BURST],
            ports: [0; BURST],
            hashes: [0; BURST],
            lengths: [0; BURST],
            candidates: [u32::MAX; BURST],
        }
    }
}

impl Burst {
    /// Packets in it.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Replaces what it holds: at most [`BURST`] packets, `None` for one that has no short way.
    #[inline(always)]
    pub fn fill(&mut self, hasher: &FlowHasher, packets: impl Iterator<Item = Option<BurstPacket>>) {
        let places = self
            .addresses
            .iter_mut()
            .zip(&mut self.ports)
            .zip(&mut self.hashes)
            .zip(&mut self.lengths);
        let mut len = 0;
        for (packet, (((addresses, ports), hash), length)) in packets.zip(places) {
            len += 1;
            match packet {
                Some(packet) => {
                    let words = KeyWords::v4(&packet.key);
                    *addresses = words.addresses[0];
                    *ports = words.ports | STEADY | u64::from(packet.is_odd) << 63;
                    *hash = hasher.hash_words(words);
                    *length = packet.bytes | packet.direction << REVERSE_SHIFT;
                }
                None => {
                    *addresses = 0;
                    *ports = ODD;
                    *hash = 0;
                    *length = 0;
                }
            }
        }
        self.len = len;
    }

    /// The worker that owns a packet's flow, as [`FlowHasher::owner`] says; meaningless for one that was pushed as odd.
    #[inline]
    pub fn owner(&self, at: usize, hasher: &FlowHasher, workers: usize) -> usize {
        hasher.owner(&self.key(at).key(), workers)
    }

    /// Makes a packet odd after all.
    #[inline]
    pub fn make_odd(&mut self, at: usize) {
        if let Some(ports) = self.ports.get_mut(at) {
            *ports |= ODD;
        }
    }

    pub(crate) fn is_odd(&self, at: usize) -> bool {
        self.ports[at] & ODD != 0
    }

    #[inline(always)]
    pub(crate) fn key(&self, at: usize) -> KeyWords<1> {
        KeyWords {
            ports: self.ports[at] & PORTS_MASK,
            addresses: [self.addresses[at]],
        }
    }
}

/// Whether an entry, by its first words, is another flow's than a packet's, or not steady, or the packet is odd.
#[inline(always)]
pub(crate) fn is_other(head: &[u64; 4], ports: u64, addresses: u64) -> bool {
    (head[0] ^ ports) & EXPECTED | (head[3] ^ addresses) != 0
}

/// Bytes and direction of a length word.
#[inline(always)]
pub(crate) fn length(word: u32) -> (u32, usize) {
    (word & !(1 << REVERSE_SHIFT), (word >> REVERSE_SHIFT) as usize & 1)
}

/// Numbers by which pins are told: the caller's own, for each slot, and none for a slot to which no packet goes the
/// short way.
#[derive(Clone, Debug)]
pub struct Lanes(pub(crate) Box<[u16; 1 << 11]>);

impl Default for Lanes {
    fn default() -> Lanes {
        Lanes(Box::new([Lanes::NONE; 1 << 11]))
    }
}

impl Lanes {
    pub(crate) const NONE: u16 = u16::MAX;

    /// Forgets all numbers.
    pub fn clear(&mut self) {
        self.0.fill(Lanes::NONE);
    }

    /// Gives a slot a number below `u16::MAX`; one that cannot be stays without.
    pub fn set(&mut self, slot: Slot, lane: u16) {
        if slot.index() < Slot::LIMIT
            && let Some(place) = self.0.get_mut(slot.index())
        {
            *place = lane;
        }
    }
}
