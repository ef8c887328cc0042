//! The flow cache: a direct-mapped cache of the entries of recent IPv4 flows. A hit needs neither the keyed
//! hash nor the index. A cached entry is only a guess: the caller compares it with the packet. So nothing is
//! invalidated when a flow ends, and an attacker who makes flows collide only loses the cache's benefit.
//!
//! Open vSwitch's exact-match cache serves the same purpose (Pfaff et al., "The design and implementation of
//! Open vSwitch", 2015); this one has four bytes per flow and no key.
#![allow(
    clippy::needless_range_loop,
    reason = "zipped iterators over columns prevent vectorization"
)]

use packet::{BURST, PacketColumns};

use crate::FlowHasher;

/// Cache slots, of four bytes each: 256 KiB, a quarter of a 1 MiB second-level cache.
const PLACES: usize = 1 << 16;
/// The bits of a slot that hold an entry number. The bits above are the flow's tag.
const ENTRY: u32 = (1 << 24) - 1;
/// Packets whose tags are computed together.
const GROUP: usize = 8;
/// Packets between two evaluations of the hit rate.
const PERIOD_PACKETS: u32 = 1 << 16;
/// Periods for which the cache is bypassed after one with a miss rate above one half.
const BYPASS_PERIODS: u32 = 32;

/// A direct-mapped cache from flow to entry number.
#[derive(Clone, Debug)]
pub(crate) struct FlowCache {
    places: Box<[u32; PLACES]>,
    /// Odd secret multipliers.
    key: [u32; 4],
    state: State,
    /// Packets until the next evaluation.
    left: u32,
    /// Misses in this period.
    missed: u32,
}

/// Whether the cache pays off. It does not if more flows are active than it has slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// It is filled; misses do not count.
    Warming,
    /// It is used and evaluated.
    Active,
    /// It is bypassed.
    Bypassed,
}

impl FlowCache {
    pub(crate) fn new(hasher: &FlowHasher) -> FlowCache {
        let secrets = hasher.flow_cache_key();
        FlowCache {
            places: Box::new([u32::MAX; PLACES]),
            key: secrets.map(|secret| secret | 1),
            state: State::Warming,
            left: PERIOD_PACKETS,
            missed: 0,
        }
    }

    /// Counts the next `packets` (at most a burst), and returns whether to probe the cache for them.
    #[inline(always)]
    pub(crate) fn should_probe(&mut self, packets: u32) -> bool {
        self.left = match self.left.checked_sub(packets) {
            Some(left) => left,
            None => self.next_state(),
        };
        self.is_active()
    }

    /// Whether the last burst probed the cache.
    #[inline(always)]
    pub(crate) fn is_active(&self) -> bool {
        self.state != State::Bypassed
    }

    #[cold]
    fn next_state(&mut self) -> u32 {
        let missed = std::mem::take(&mut self.missed);
        self.state = match self.state {
            State::Active if missed > PERIOD_PACKETS / 2 => State::Bypassed,
            State::Active | State::Warming => State::Active,
            State::Bypassed => State::Warming,
        };
        match self.state {
            State::Bypassed => BYPASS_PERIODS * PERIOD_PACKETS,
            State::Active | State::Warming => PERIOD_PACKETS,
        }
    }

    /// Looks up the `fast` packets of a burst and returns the mask of misses. `marks` receives the tags for
    /// [`FlowCache::note`]. `prefetch` is called with every candidate entry, misses included.
    #[inline(always)]
    pub(crate) fn find(
        &mut self,
        packets: &PacketColumns,
        fast: u64,
        marks: &mut [u32; BURST],
        entries: &mut [u32; BURST],
        prefetch: impl Fn(u32),
    ) -> u64 {
        let [k0, k1, k2, k3] = self.key;
        let len = packets.len.min(BURST);
        // Round up to whole groups, so that the loops have no remainder.
        let n = (len + GROUP - 1) & !(GROUP - 1) & (2 * BURST - 1);
        let (a, b, ports) = (&packets.a[..n], &packets.b[..n], &packets.ports[..n]);
        let (marks, entries) = (&mut marks[..n], &mut entries[..n]);
        for i in 0..n {
            let mixed = a[i].wrapping_mul(k0) ^ b[i].wrapping_mul(k1) ^ ports[i].wrapping_mul(k2);
            let mixed = (mixed ^ mixed >> 15).wrapping_mul(k3);
            marks[i] = mixed ^ mixed >> 16;
        }
        for at in 0..len.min(n) {
            let place = self.places[(marks[at] >> 16) as usize % PLACES];
            prefetch(place & ENTRY);
            entries[at] = place;
        }
        let mut is_other = [0; BURST];
        let is_other = &mut is_other[..n];
        for i in 0..n {
            is_other[i] = (entries[i] ^ marks[i] << 24) & !ENTRY;
            entries[i] &= ENTRY;
        }
        let is_any = is_other[..len.min(n)].iter().fold(0, |any, is| any | is);
        if is_any == 0 {
            return 0;
        }
        let mut missed = 0;
        for at in 0..len.min(n) {
            missed |= u64::from(is_other[at] != 0) << at;
        }
        missed &= fast;
        self.missed += missed.count_ones();
        missed
    }

    /// Stores a flow's entry.
    #[inline(always)]
    pub(crate) fn note(&mut self, mark: u32, entry: u32) {
        self.places[(mark >> 16) as usize % PLACES] = mark << 24 | entry & ENTRY;
    }
}

#[cfg(test)]
mod tests {
    use model::{Direction, FlowKeyV4};
    use packet::TcpFlags;

    use super::*;

    fn cache() -> FlowCache {
        FlowCache::new(&FlowHasher::new([1, 2, 3, 4]))
    }

    /// Packets of the flows with these numbers, which differ in their last bits only.
    fn packets(flows: impl IntoIterator<Item = u32>) -> PacketColumns {
        let mut packets = PacketColumns::default();
        for flow in flows {
            let key = FlowKeyV4 {
                a: (0x0a00_0000 + flow / 16).to_be_bytes(),
                b: [192, 0, 2, 1],
                a_port: 1024 + (flow % 16) as u16,
                b_port: 80,
                protocol: 17,
                ..FlowKeyV4::default()
            };
            packets.push(Some(key), Direction::Forward, TcpFlags(0), 64);
        }
        packets
    }

    /// Sends a burst and stores each miss, as the caller does. Returns the number of misses.
    fn send(cache: &mut FlowCache, flows: std::ops::Range<u32>) -> u32 {
        let (mut marks, mut entries) = ([0; BURST], [0; BURST]);
        let packets = packets(flows.clone());
        if !cache.should_probe(packets.len as u32) {
            return packets.len as u32;
        }
        let missed = cache.find(&packets, u64::MAX, &mut marks, &mut entries, |_| {});
        for (at, flow) in flows.enumerate() {
            if missed >> at & 1 == 1 {
                cache.note(marks[at], flow);
            } else {
                // A tag collision: another flow's entry.
                assert!(entries[at] == flow || entries[at] <= ENTRY);
            }
        }
        missed.count_ones()
    }

    fn send_all(cache: &mut FlowCache, flows: u32) -> u32 {
        (0..flows)
            .step_by(BURST)
            .map(|first| send(cache, first..flows.min(first + BURST as u32)))
            .sum()
    }

    #[test]
    fn stored_flows_are_hits() {
        let mut cache = cache();
        let (mut marks, mut entries) = ([0; BURST], [0; BURST]);
        for len in [0, 1, 7, 8, 9, 63, 64] {
            let packets = packets(0..len);
            let all = 1_u64.checked_shl(len).unwrap_or(0).wrapping_sub(1);
            let asked = std::cell::Cell::new(0);
            let mut cache = cache.clone();
            let missed = cache.find(&packets, all, &mut marks, &mut entries, |_| {
                asked.set(asked.get() + 1)
            });
            assert_eq!((missed, asked.get()), (all, len));
            for at in 0..len {
                cache.note(marks[at as usize], 1000 + at);
            }
            assert_eq!(cache.find(&packets, all, &mut marks, &mut entries, |_| {}), 0);
            assert!((0..len).all(|at| entries[at as usize] == 1000 + at));
        }
        // The largest entry number, and one stored flow among misses.
        cache.find(&packets(5..6), 1, &mut marks, &mut entries, |_| {});
        cache.note(marks[0], ENTRY - 1);
        let but_last = u64::MAX >> 1;
        let missed = cache.find(&packets(0..64), but_last, &mut marks, &mut entries, |_| {});
        assert_eq!(missed, but_last & !(1 << 5), "the last packet is not looked up");
        assert_eq!(entries[5], ENTRY - 1);
    }

    /// Even the most similar flows rarely collide.
    #[test]
    fn most_of_ten_thousand_flows_are_hits() {
        let mut cache = cache();
        assert!(send_all(&mut cache, 10_000) > 9_000);
        let missed = send_all(&mut cache, 10_000);
        // By chance 14 of 100 flows share their slot with another and evict each other.
        assert!((1_000..2_000).contains(&missed), "{missed}");
    }

    #[test]
    fn the_cache_is_bypassed_when_too_many_flows_are_active() {
        const FLOWS: u32 = 4 * PLACES as u32;
        let mut cache = cache();
        // One period to warm up, one to evaluate.
        send_all(&mut cache, FLOWS);
        assert!(!cache.is_active());
        let noted = cache.places.clone();
        let mut rounds = 0;
        while !cache.is_active() {
            send_all(&mut cache, PERIOD_PACKETS);
            rounds += 1;
        }
        assert!(
            (BYPASS_PERIODS - 2..=BYPASS_PERIODS + 2).contains(&rounds),
            "{rounds}"
        );
        assert_ne!(noted, cache.places, "it warms up again after the bypass");
        // With few flows it pays off and stays active.
        for _ in 0..100_000 {
            send(&mut cache, 0..64);
        }
        assert!(cache.is_active());
        assert_eq!(send(&mut cache, 0..64), 0);
    }
}
