//! The flow cache: where the IPv4 flows of the last packets were found, so that most of those that follow need neither the
//! keyed hash nor the index. What it says is a guess: whoever takes it compares the entry with the packet. So nothing has to
//! be removed from it when a flow ends, and whoever aims flows at one place of it gains what there was without it.
//!
//! Open vSwitch has a cache of exact matches in cache of its tables for the same reason (Pfaff et al., "The design and
//! implementation of Open vSwitch", 2015); this one has four bytes for a flow, no key.
#![allow(
    clippy::needless_range_loop,
    reason = "iterators over columns side by side keep a loop from becoming vector instructions"
)]

use packet::{BURST, PacketColumns};

use crate::FlowHasher;

/// Places, of four bytes each: 256 KiB, a quarter of the second cache of processors that have 1 MiB of it.
const PLACES: usize = 1 << 16;
/// The bits of a place that are an entry's number. Those above are a tag of the flow.
const ENTRY: u32 = (1 << 24) - 1;
/// Packets whose marks are made at once.
const GROUP: usize = 8;
/// Packets after which it is asked whether the cache is worth it.
const PERIOD_PACKETS: u32 = 1 << 16;
/// Periods for which it is left alone where more than half of them did not find their flow there.
const BYPASS_PERIODS: u32 = 32;

/// Where flows were found last.
#[derive(Clone, Debug)]
pub(crate) struct FlowCache {
    places: Box<[u32; PLACES]>,
    /// Odd numbers that nobody outside knows.
    key: [u32; 4],
    state: State,
    /// Packets until the next look at that.
    left: u32,
    /// Packets of this period that did not find their flow.
    missed: u32,
}

/// Whether the cache is worth its cost. It is not where more flows than it has places take turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// It is filled, whatever is found.
    Warming,
    /// It is in use, and judged.
    Active,
    /// It is left alone.
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

    /// Whether it is to be asked for the next `packets`, at most a burst.
    #[inline(always)]
    pub(crate) fn should_probe(&mut self, packets: u32) -> bool {
        self.left = match self.left.checked_sub(packets) {
            Some(left) => left,
            None => self.next_state(),
        };
        self.is_active()
    }

    /// Whether it was asked for the last burst.
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

    /// Finds the entries of as many flows of `fast` packets of a burst as it has: gives the others of these, a bit each.
    /// `marks` become what [`FlowCache::note`] is told a flow by; `prefetch` is called with each entry, also of flows that are not
    /// found.
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
        // Whole groups, whatever the rest holds: the loops then need no remainder.
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

    /// Notes where a flow is.
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

    /// Sends a burst through: what is not found, as the caller finds it, is noted. Gives how many were not found.
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
                // Another flow's entry, where the tag is the same.
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
    fn a_flow_is_found_where_it_was_noted() {
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
        // The largest number of an entry, and one flow among others that are not there.
        cache.find(&packets(5..6), 1, &mut marks, &mut entries, |_| {});
        cache.note(marks[0], ENTRY - 1);
        let but_last = u64::MAX >> 1;
        let missed = cache.find(&packets(0..64), but_last, &mut marks, &mut entries, |_| {});
        assert_eq!(missed, but_last & !(1 << 5), "the last one is not asked for");
        assert_eq!(entries[5], ENTRY - 1);
    }

    /// Flows as alike as they can be find a place for nearly each.
    #[test]
    fn most_of_ten_thousand_flows_are_found() {
        let mut cache = cache();
        assert!(send_all(&mut cache, 10_000) > 9_000);
        let missed = send_all(&mut cache, 10_000);
        // With even odds 14 of 100 share their place with another; both then take turns in it.
        assert!((1_000..2_000).contains(&missed), "{missed}");
    }

    #[test]
    fn it_rests_where_too_many_flows_take_turns() {
        const FLOWS: u32 = 4 * PLACES as u32;
        let mut cache = cache();
        // A period to fill it, one to judge it.
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
        assert_ne!(noted, cache.places, "it is filled again once it is asked");
        // With few flows it is found worth it, and stays in use.
        for _ in 0..100_000 {
            send(&mut cache, 0..64);
        }
        assert!(cache.is_active());
        assert_eq!(send(&mut cache, 0..64), 0);
    }
}
