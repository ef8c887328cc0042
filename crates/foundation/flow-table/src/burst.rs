//! The fast path of established flows through the flow table. Each step processes a whole burst, in columns, so that
//! the compiler can vectorize it and memory accesses overlap.
#![allow(
    clippy::manual_memcpy,
    clippy::needless_range_loop,
    reason = "iterators over columns side by side keep a loop from becoming vector instructions"
)]

use model::{Direction, Slot, protocol};
use packet::{BURST, FastPacketV6, PacketColumns, TcpFlags};
use simd::Words;
use zerocopy::transmute_mut;

use crate::entry::{KeyWords, PORTS_MASK, State, half, protocol_of};
use crate::{FlowHasher, Line};

/// Marks a candidate as an entry of an IPv6 flow. Entry numbers have 24 bits.
pub(crate) const V6: u32 = 1 << 31;
/// Marks a packet that the fast path cannot take. The bit is in the upper byte of the packet's ports word; no entry
/// sets it.
const EXCEPTION: u64 = 1 << 63;
/// Set beside [`EXCEPTION`] if the only reason is that the packet opens a TCP connection.
const OPENING: u64 = 1 << 62;
/// The upper byte of an established flow's entry (see `State::is_established`). The fast path takes no other entry.
const ESTABLISHED: u64 = 1 << 56;
/// The bits of an entry's first word that must be as expected.
const EXPECTED: u64 = PORTS_MASK | 0b101 << 56 | EXCEPTION;

/// Packets that are put into place at once.
const GROUP: usize = 8;

/// Packets of a burst on their way through [`FlowTable::prefetch_buckets`](crate::FlowTable::prefetch_buckets),
/// [`FlowTable::resolve_candidates`](crate::FlowTable::resolve_candidates) and
/// [`FlowTable::hit_burst`](crate::FlowTable::hit_burst).
#[derive(Clone, Debug)]
#[repr(align(64))]
pub struct Burst {
    /// Each packet in the layout of its flow's entry: ports and state, the increments of the forward and of the
    /// reverse word (one of them 0), the addresses.
    pub(crate) packets: [[u64; 4]; BURST],
    pub(crate) hashes: [u64; BURST],
    /// The direction: all bits 0 for forward, all bits 1 for reverse.
    pub(crate) directions: [u32; BURST],
    /// The candidate entry of each packet; `u32::MAX` if there is none.
    pub(crate) candidates: [u32; BURST],
    pub(crate) len: usize,
    /// Tags of the flow cache, if it was probed.
    pub(crate) marks: [u32; BURST],
    /// Fast-path packets that missed the flow cache, a bit each. Only these have a hash.
    pub(crate) missed: u64,
    /// Packets that [`Burst::mark_exception`] took off the fast path, a bit each.
    pub(crate) marked_exceptions: u64,
    /// The remaining address words of IPv6 packets.
    pub(crate) rest: [[u64; 4]; BURST],
    /// Fast-path eligible IPv6 packets, a bit each.
    pub(crate) v6: u64,
    /// Columns before they become rows of `packets`: upper halves of word 0, lower halves of words 1 and 2.
    columns: [[u32; BURST]; 3],
}

/// The result of [`FlowTable::lookup_in_burst`](crate::FlowTable::lookup_in_burst) for a packet that the fast path
/// did not take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LookupOutcome {
    /// The flow is in the table. The caller may try the fast path again.
    Hit,
    /// The flow is not in the table.
    Miss,
    /// The packet needs the slow path: it is an exception that does not open a flow, its flow is not established, its
    /// flow's instance has no lane, or a counter of the entry carries.
    Exception,
}

impl Default for Burst {
    fn default() -> Burst {
        Burst {
            packets: [[0; 4]; BURST],
            hashes: [0; BURST],
            directions: [0; BURST],
            candidates: [u32::MAX; BURST],
            len: 0,
            marks: [0; BURST],
            missed: 0,
            marked_exceptions: 0,
            rest: [[0; 4]; BURST],
            v6: 0,
            columns: [[0; BURST]; 3],
        }
    }
}

impl Burst {
    /// Number of packets.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it holds no packet.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Replaces the packets. Packets that are not eligible for the fast path become exceptions.
    #[inline(always)]
    pub fn fill<W: Words>(&mut self, packets: &PacketColumns) {
        self.len = packets.len.min(BURST);
        self.marked_exceptions = 0;
        self.v6 = 0;
        // Round up to whole groups, so that the loops have no remainder.
        let n = (self.len + GROUP - 1) & !(GROUP - 1) & (2 * BURST - 1);
        let [states, forward, reverse] = &mut self.columns;
        let (states, forward, reverse) = (&mut states[..n], &mut forward[..n], &mut reverse[..n]);
        let directions = &mut self.directions[..n];
        let (protocol, bytes) = (&packets.protocol[..n], &packets.bytes[..n]);
        let (is_fast, has_syn_fin_rst) = (&packets.is_fast[..n], &packets.has_syn_fin_rst[..n]);
        let (is_reverse, is_opening) = (&packets.is_reverse[..n], &packets.is_opening[..n]);
        for i in 0..n {
            // The counters of an entry have no room for a longer packet.
            let is_long = bytes[i] >> 16 != 0;
            let needs_slow_path = !is_fast[i] | if is_long { u32::MAX } else { 0 };
            let is_exception = needs_slow_path | has_syn_fin_rst[i];
            let is_opening = is_opening[i] & !needs_slow_path;
            states[i] = protocol[i]
                | (ESTABLISHED >> 32) as u32
                | is_exception & (EXCEPTION >> 32) as u32
                | is_opening & (OPENING >> 32) as u32;
            let add = 1 | bytes[i] << half::PACKETS_BITS;
            forward[i] = add & !is_reverse[i];
            reverse[i] = add & is_reverse[i];
            directions[i] = is_reverse[i];
        }
        let (ports, a, b) = (
            packets.ports.as_chunks().0,
            packets.a.as_chunks().0,
            packets.b.as_chunks().0,
        );
        let [states, forward, reverse] = &self.columns;
        let (states, forward) = (states.as_chunks().0, forward.as_chunks().0);
        let reverse = reverse.as_chunks().0;
        let rows: &mut [[u32; GROUP]; BURST] = transmute_mut!(&mut self.packets);
        let rows = rows.as_chunks_mut().0;
        for group in 0..n / GROUP {
            let zero = &[0; GROUP];
            let columns = [
                &ports[group],
                &states[group],
                &forward[group],
                zero,
                &reverse[group],
                zero,
                &a[group],
                &b[group],
            ];
            W::rows(columns, &mut rows[group]);
        }
    }

    /// Puts an IPv6 packet of `bytes` bytes on the fast path, in a place that [`Burst::fill`] left as an exception.
    #[inline(always)]
    pub fn put_v6(&mut self, at: usize, packet: &FastPacketV6, bytes: u32) {
        let at = at % BURST;
        let [a0, a1, b0, b1] = packet.addresses;
        let mut ports = u64::from(packet.ports) | u64::from(packet.protocol) << 48 | ESTABLISHED;
        let flags = packet.tcp_flags.0 & TcpFlags::SYN_FIN_RST;
        // The counters of an entry have no room for a longer packet.
        let is_long = bytes >> 16 != 0;
        if is_long || flags != 0 {
            ports |= EXCEPTION;
            if flags == TcpFlags::SYN && !is_long {
                ports |= OPENING;
            }
        }
        let add = u64::from(1 | bytes << half::PACKETS_BITS);
        let reverse = 0_u64.wrapping_sub(packet.is_reverse.into());
        self.packets[at] = [ports, add & !reverse, add & reverse, a0];
        self.rest[at] = [a1, b0, b1, 0];
        self.directions[at] = reverse as u32;
        self.v6 |= 1 << at;
    }

    /// Whether the packet is IPv6 and [on the fast path](Burst::put_v6).
    #[inline(always)]
    pub fn is_v6(&self, at: usize) -> bool {
        self.v6 >> (at % BURST) & 1 != 0
    }

    /// IPv6 packets on the fast path, a bit each.
    #[inline]
    pub fn v6(&self) -> u64 {
        self.v6
    }

    /// The hash of a packet's flow after [`FlowTable::lookup_in_burst`](crate::FlowTable::lookup_in_burst); 0 if it
    /// has none.
    #[inline]
    pub fn hash(&self, at: usize) -> u64 {
        self.hashes.get(at).copied().unwrap_or(0)
    }

    /// The worker that owns a packet's flow, see [`FlowHasher::owner`]. Meaningless for packets off the fast path.
    #[inline]
    pub fn owner(&self, at: usize, hasher: &FlowHasher, workers: usize) -> usize {
        if self.is_v6(at) {
            hasher.owner(&self.key_v6(at).key(), workers)
        } else {
            hasher.owner_of_words(self.key(at), workers)
        }
    }

    /// Takes a packet off the fast path.
    #[inline]
    pub fn mark_exception(&mut self, at: usize) {
        if let Some([ports, ..]) = self.packets.get_mut(at) {
            *ports = *ports & !OPENING | EXCEPTION;
            self.marked_exceptions |= 1 << (at % BURST);
        }
    }

    /// Whether [`Burst::mark_exception`] took the packet off the fast path.
    #[inline]
    pub fn is_marked_exception(&self, at: usize) -> bool {
        self.marked_exceptions >> (at % BURST) & 1 != 0
    }

    /// Whether [`FlowTable::open`](crate::FlowTable::open) may open a flow with this packet: it is not TCP, or it
    /// opens a TCP connection. Meaningful for packets with [`LookupOutcome::Miss`].
    #[inline]
    pub fn is_opening(&self, at: usize) -> bool {
        self.packets
            .get(at)
            .is_some_and(|[ports, ..]| ports & OPENING != 0 || protocol_of(*ports) != protocol::TCP)
    }

    /// The entry of a flow that this packet opens at `tick`, with usable pins. The packet is counted in it.
    #[inline(always)]
    pub(crate) fn entry(&self, at: usize, pins: [Slot; 2], tick: u64) -> [u64; 4] {
        let at = at % BURST;
        let [ports, forward, reverse, addresses] = self.packets[at];
        let opener = direction(self.directions[at]);
        let state = State::new(protocol_of(ports), opener);
        let [high, low] = half::seen(tick);
        [
            state.put(ports),
            forward | half::usable_pin(pins[0]) | high,
            reverse | half::usable_pin(pins[1]) | low,
            addresses,
        ]
    }

    #[inline(always)]
    pub(crate) fn is_exception(&self, at: usize) -> bool {
        self.packets[at][0] & EXCEPTION != 0
    }

    /// Whether the packet is an exception for another reason than opening a TCP connection.
    #[inline(always)]
    pub(crate) fn needs_slow_path(&self, at: usize) -> bool {
        self.packets[at][0] & (EXCEPTION | OPENING) == EXCEPTION
    }

    /// Whether the packet has a candidate entry and is no exception.
    #[inline]
    pub fn has_candidate(&self, at: usize) -> bool {
        self.candidates.get(at).is_some_and(|&entry| entry != u32::MAX) && !self.is_exception(at)
    }

    /// Whether `entry` belongs to the packet's flow.
    #[inline(always)]
    pub(crate) fn is_of(&self, at: usize, entry: &[u64; 4]) -> bool {
        let [ports, _, _, addresses] = self.packets[at % BURST];
        (entry[0] ^ ports) & PORTS_MASK == 0 && entry[3] == addresses
    }

    /// Whether the IPv6 `entry` belongs to the packet's flow.
    #[inline(always)]
    pub(crate) fn is_of_v6(&self, at: usize, entry: &Line) -> bool {
        let [a1, b0, b1, _] = *entry.half(1);
        let [rest_a1, rest_b0, rest_b1, _] = self.rest[at % BURST];
        self.is_of(at, entry.half(0)) && [a1, b0, b1] == [rest_a1, rest_b0, rest_b1]
    }

    /// The key of an IPv6 packet.
    #[inline(always)]
    pub(crate) fn key_v6(&self, at: usize) -> KeyWords<4> {
        let [ports, _, _, a0] = self.packets[at % BURST];
        let [a1, b0, b1, _] = self.rest[at % BURST];
        KeyWords {
            ports: ports & PORTS_MASK,
            addresses: [a0, a1, b0, b1],
        }
    }

    #[inline(always)]
    pub(crate) fn key(&self, at: usize) -> KeyWords<1> {
        let [ports, _, _, addresses] = self.packets[at];
        KeyWords {
            ports: ports & PORTS_MASK,
            addresses: [addresses],
        }
    }
}

// The layout of half words assumes a little-endian processor.
const _: () = assert!(cfg!(target_endian = "little"));

/// The direction that `bits` encodes: all bits 0 or all bits 1.
#[inline(always)]
fn direction(bits: u32) -> Direction {
    if bits == 0 {
        Direction::Forward
    } else {
        Direction::Reverse
    }
}

/// Counts a packet in its entry. Returns `None` if the entry belongs to another flow, the flow is not established,
/// the packet is an exception, or a counter carries. All four words at once: the first and the last are compared, the
/// two between are added to.
#[inline(always)]
pub(crate) fn counted<W: Words>(entry: &[u64; 4], packet: &[u64; 4]) -> Option<W> {
    const CARRIES: u64 = 1 << half::PACKETS_BITS | 1 << half::COUNTERS_BITS;
    let counters = W::load(&[0, u64::MAX, u64::MAX, 0]);
    let alike = W::load(&[EXPECTED, CARRIES, CARRIES, u64::MAX]);
    let (entry, packet) = (W::load(entry), W::load(packet));
    let sum = entry.plus(packet.and(counters));
    // The carries of the sums, and the differences of the compared words.
    let wrong = sum.xor(packet).xor(entry.and(counters)).and(alike);
    if wrong.are_zero() { Some(sum) } else { None }
}

/// Whether the remaining address words of an IPv6 entry equal the packet's.
#[inline(always)]
pub(crate) fn has_rest<W: Words>(entry: &[u64; 4], rest: &[u64; 4]) -> bool {
    let addresses = W::load(&[u64::MAX, u64::MAX, u64::MAX, 0]);
    W::load(entry).xor(W::load(rest)).and(addresses).are_zero()
}

/// The entry with `tick` as the time last seen.
#[inline(always)]
pub(crate) fn seen<W: Words>(entry: W, tick: u64) -> W {
    let [forward, reverse] = half::seen(tick);
    let below = W::load(&[u64::MAX, half::BELOW_SEEN, half::BELOW_SEEN, u64::MAX]);
    entry.and(below).or(W::load(&[0, forward, reverse, 0]))
}

/// The caller's lane number for each slot. A slot without a lane gets no packet by the fast path.
#[derive(Clone, Debug)]
pub struct Lanes(pub(crate) Box<[u16; 1 << 11]>);

impl Default for Lanes {
    fn default() -> Lanes {
        Lanes(Box::new([Lanes::NONE; 1 << 11]))
    }
}

impl Lanes {
    pub(crate) const NONE: u16 = u16::MAX;

    /// Removes all lanes.
    pub fn clear(&mut self) {
        self.0.fill(Lanes::NONE);
    }

    /// The lane of a slot, if it has one.
    #[inline]
    pub fn of(&self, slot: Slot) -> Option<u16> {
        let lane = self.0.get(slot.index()).copied()?;
        (lane != Lanes::NONE).then_some(lane)
    }

    /// Sets the lane of a slot. A lane of `u16::MAX` or a slot beyond [`Slot::LIMIT`] is ignored.
    pub fn set(&mut self, slot: Slot, lane: u16) {
        if slot.index() < Slot::LIMIT
            && let Some(place) = self.0.get_mut(slot.index())
        {
            *place = lane;
        }
    }
}
