//! Which back end each connection has.

use crate::keyed::Keyed;

/// Connections in a cache line.
const WAYS: usize = 4;
/// The tag of no connection.
const EMPTY: u64 = 0;

#[derive(Clone, Copy, Debug)]
struct Connection {
    /// The hash of its flow. Among a million flows, two have the same one with a probability of 3 in 10^8.
    tag: u64,
    /// When its last packet came, in units of the caller.
    seen: u32,
    back_end: u16,
}

#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Line([Connection; WAYS]);

const _: () = assert!(size_of::<Line>() == 64);

/// Each connection has two lines. Where both are full, the one without packets for the longest time gives way.
#[derive(Debug)]
pub(super) struct Connections {
    lines: Box<[Line]>,
    mask: usize,
    limit: usize,
    taken: usize,
    /// How long a connection may have no packets, in the same units.
    idle: u32,
    /// Connections that gave way, and were not idle.
    pub(super) evicted: u64,
}

impl Connections {
    /// With places for twice as many connections, 16 bytes each: then about one of 10^5 finds both lines full.
    pub(super) fn new(limit: usize, idle: u32) -> Connections {
        let lines = (limit.max(WAYS) * 2).div_ceil(WAYS).next_power_of_two();
        let empty = Connection {
            tag: EMPTY,
            seen: 0,
            back_end: 0,
        };
        Connections {
            lines: vec![Line([empty; WAYS]); lines].into(),
            mask: lines - 1,
            limit,
            taken: 0,
            idle,
            evicted: 0,
        }
    }

    pub(super) fn limit(&self) -> usize {
        self.limit
    }

    /// Places that connections have, idle ones among them.
    pub(super) fn taken(&self) -> usize {
        self.taken
    }

    pub(super) fn set_idle(&mut self, idle: u32) {
        self.idle = idle;
    }

    #[inline(always)]
    pub(super) fn tag<const N: usize>(keyed: &Keyed, words: [u64; N]) -> u64 {
        keyed.hash(words).max(EMPTY + 1)
    }

    #[inline(always)]
    fn lines_of(&self, tag: u64) -> [usize; 2] {
        [tag as usize & self.mask, (tag >> 32) as usize & self.mask]
    }

    #[inline(always)]
    pub(super) fn prefetch(&self, tag: u64) {
        simd::prefetch_at(&self.lines, self.lines_of(tag)[0]);
    }

    /// The back end of a connection that has a packet now.
    #[inline]
    pub(super) fn get(&mut self, tag: u64, now: u32) -> Option<u16> {
        let idle = self.idle;
        for at in self.lines_of(tag) {
            for of in &mut self.lines[at].0 {
                if of.tag == tag && now.saturating_sub(of.seen) <= idle {
                    of.seen = now;
                    return Some(of.back_end);
                }
            }
        }
        None
    }

    /// Gives a connection a back end, also one that has another.
    pub(super) fn set(&mut self, tag: u64, back_end: u16, now: u32) {
        let [first, second] = self.lines_of(tag);
        let rank = |of: &Connection| match of.tag {
            of if of == tag => (0, 0),
            EMPTY => (1, 0),
            _ => (2, of.seen),
        };
        let places = [first, second]
            .into_iter()
            .flat_map(|at| (0..WAYS).map(move |way| (at, way)));
        let Some((at, way)) = places.min_by_key(|(at, way)| rank(&self.lines[*at].0[*way])) else {
            return;
        };
        let place = &mut self.lines[at].0[way];
        self.taken += usize::from(place.tag == EMPTY);
        let gives_way = place.tag != EMPTY && place.tag != tag;
        self.evicted += u64::from(gives_way && now.saturating_sub(place.seen) <= self.idle);
        *place = Connection {
            tag,
            seen: now,
            back_end,
        };
    }
}
