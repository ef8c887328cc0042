//! Buckets by key. A bucket that is full again is equal to none, so its place is free without anybody clearing it.

use super::gcra::{Limit, Parts};
use crate::keyed::Keyed;

/// Buckets in a cache line.
const WAYS: usize = 4;
/// The tag of no bucket.
const EMPTY: u64 = 0;

#[derive(Clone, Copy, Debug)]
struct Bucket {
    /// The hash of its key. Among a million keys, two have the same one with a probability of 3 in 10^8.
    tag: u64,
    full_at: Parts,
}

#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Line([Bucket; WAYS]);

const _: () = assert!(size_of::<Line>() == 64);

/// What became of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Taken {
    /// It conforms.
    Yes,
    /// It is over its bucket's limit.
    No,
    /// All places of its bucket are taken by others.
    NoPlace,
}

/// Each key has two lines, of which a new bucket takes the emptier one. With twice as many places as buckets, about one
/// of 10^5 buckets finds both lines full.
#[derive(Debug)]
pub(super) struct Buckets {
    lines: Box<[Line]>,
    mask: usize,
    limit: usize,
    begun: u64,
}

impl Buckets {
    /// For `limit` buckets that are in use at once: 32 bytes each.
    pub(super) fn new(limit: usize) -> Buckets {
        let lines = (limit.max(WAYS) * 2).div_ceil(WAYS).next_power_of_two();
        let empty = Bucket {
            tag: EMPTY,
            full_at: 0,
        };
        Buckets {
            lines: vec![Line([empty; WAYS]); lines].into(),
            mask: lines - 1,
            limit,
            begun: 0,
        }
    }

    pub(super) fn limit(&self) -> usize {
        self.limit
    }

    /// Buckets that took a place.
    pub(super) fn begun(&self) -> u64 {
        self.begun
    }

    /// The tag of a key.
    #[inline(always)]
    pub(super) fn tag<const N: usize>(keyed: &Keyed, key: [u64; N]) -> u64 {
        keyed.hash(key).max(EMPTY + 1)
    }

    #[inline(always)]
    fn lines_of(&self, tag: u64) -> [usize; 2] {
        [tag as usize & self.mask, (tag >> 32) as usize & self.mask]
    }

    #[inline(always)]
    pub(super) fn prefetch(&self, tag: u64) {
        simd::prefetch_at(&self.lines, self.lines_of(tag)[0]);
    }

    /// Takes units from the bucket with that tag.
    #[inline]
    pub(super) fn take(&mut self, tag: u64, limit: &Limit, now: Parts, units: u64) -> Taken {
        let Some(bucket) = self.find(tag, now) else {
            return Taken::NoPlace;
        };
        match limit.take(bucket.full_at, now, units) {
            Some(after) => {
                bucket.full_at = after;
                Taken::Yes
            }
            None => Taken::No,
        }
    }

    /// When the bucket with that tag is full again; [`None`] if it is.
    pub(super) fn full_at(&self, tag: u64, now: Parts) -> Option<Parts> {
        let lines = self.lines_of(tag).into_iter().filter_map(|at| self.lines.get(at));
        let mut buckets = lines.flat_map(|line| line.0);
        buckets
            .find(|bucket| bucket.tag == tag && bucket.full_at > now)
            .map(|bucket| bucket.full_at)
    }

    /// Makes the bucket with that tag full.
    pub(super) fn fill(&mut self, tag: u64) {
        for at in self.lines_of(tag) {
            for bucket in &mut self.lines[at].0 {
                if bucket.tag == tag {
                    bucket.tag = EMPTY;
                    bucket.full_at = 0;
                }
            }
        }
    }

    /// The bucket with that tag is not full before `full_at`. False if it has no place.
    pub(super) fn drain(&mut self, tag: u64, full_at: Parts, now: Parts) -> bool {
        match self.find(tag, now) {
            Some(bucket) => {
                bucket.full_at = bucket.full_at.max(full_at);
                true
            }
            None => false,
        }
    }

    /// The bucket with that tag, or a place for it.
    #[inline(always)]
    fn find(&mut self, tag: u64, now: Parts) -> Option<&mut Bucket> {
        let [first, second] = self.lines_of(tag);
        let way = |line: &Line| line.0.iter().position(|bucket| bucket.tag == tag);
        let (line, way) = match way(&self.lines[first]) {
            Some(way) => (first, way),
            None => match way(&self.lines[second]) {
                Some(way) => (second, way),
                None => self.place(tag, [first, second], now)?,
            },
        };
        Some(&mut self.lines[line].0[way])
    }

    /// A place for a new bucket, in the line that has more of them.
    fn place(&mut self, tag: u64, lines: [usize; 2], now: Parts) -> Option<(usize, usize)> {
        let is_free = |bucket: &Bucket| bucket.full_at <= now;
        let free = lines.map(|at| self.lines[at].0.iter().filter(|bucket| is_free(bucket)).count());
        let line = if free[1] > free[0] { lines[1] } else { lines[0] };
        let way = self.lines[line].0.iter().position(is_free)?;
        self.begun += 1;
        self.lines[line].0[way] = Bucket { tag, full_at: 0 };
        Some((line, way))
    }

    /// How many of `lines` lines' buckets are not full, from line `from` on, going round.
    pub(super) fn in_use(&self, from: usize, lines: usize, now: Parts) -> usize {
        let ends = (0..lines.min(self.lines.len())).map(|at| &self.lines[(from + at) & self.mask].0);
        ends.flatten().filter(|bucket| bucket.full_at > now).count()
    }

    pub(super) fn lines(&self) -> usize {
        self.lines.len()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// A key's bucket is its own: a table of all buckets decides the same, except for those that find no place.
        #[test]
        fn it_decides_as_one_bucket_for_each_key(
            packets in prop::collection::vec((0..100_u64, 0..40_u64, 1..5_u64), 0..500), secret: u64,
        ) {
            let keyed = Keyed::new(secret);
            let limit = Limit::new(100_000_000, 1_000_000_000, 10);
            let mut buckets = Buckets::new(16);
            let mut model: HashMap<u64, Parts> = HashMap::new();
            let mut now = 0;
            for (gap, key, units) in packets {
                now += gap * 64;
                let full_at = model.get(&key).copied().unwrap_or(0);
                let after = limit.take(full_at, now, units);
                match buckets.take(Buckets::tag(&keyed, [key]), &limit, now, units) {
                    Taken::NoPlace => {
                        let in_use = model.values().filter(|full_at| **full_at > now).count();
                        prop_assert!(in_use >= WAYS && full_at <= now, "a bucket in use has lost its place");
                    }
                    taken => {
                        prop_assert_eq!(taken == Taken::Yes, after.is_some());
                        model.insert(key, after.unwrap_or(full_at));
                    }
                }
            }
        }
    }

    #[test]
    fn a_million_buckets_have_places() {
        let keyed = Keyed::new(1);
        let limit = Limit::new(1, 1_000_000_000, 1);
        let mut buckets = Buckets::new(1 << 20);
        let taken = |buckets: &mut Buckets, key| buckets.take(Buckets::tag(&keyed, [key]), &limit, 1, 1);
        let without = (0..1 << 20)
            .filter(|&key| taken(&mut buckets, key) == Taken::NoPlace)
            .count();
        assert!(without <= 100, "{without}");
        let again = (0..1 << 20)
            .filter(|&key| taken(&mut buckets, key) == Taken::Yes)
            .count();
        assert_eq!(again, 0, "none is forgotten while it is in use");
        assert_eq!(buckets.in_use(0, usize::MAX, 1), (1 << 20) - without);
        assert_eq!(buckets.in_use(0, usize::MAX, u64::MAX), 0);
    }
}
