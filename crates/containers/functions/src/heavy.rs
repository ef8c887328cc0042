//! The heaviest keys with their counts (Metwally, Agrawal, El Abbadi, "Efficient computation of frequent and top-k elements
//! in data streams", 2005: space-saving).

use crate::keys::Keys;

/// A key that is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Heavy<K> {
    pub(crate) key: K,
    /// At least its true count.
    pub(crate) count: u64,
    /// By how much the count may be too large.
    pub(crate) error: u64,
}

/// A key without its count, which is in the heap.
#[derive(Clone, Copy, Debug)]
struct Slot<K> {
    key: K,
    error: u64,
    hash: u64,
    /// Its place in the heap.
    place: u32,
}

/// An entry of the heap: a count, and whose it is.
#[derive(Clone, Copy, Debug)]
struct Counted {
    count: u64,
    slot: u32,
}

/// The counts of `limit` keys: a heap with the smallest first. Each key whose count is more than the total divided by the
/// limit is there. A key stays in its slot while its count moves in the heap, so that a move hashes nothing.
#[derive(Debug)]
pub(crate) struct HeavyHitters<K> {
    slots: Vec<Slot<K>>,
    heap: Vec<Counted>,
    /// The slot of each key, by hash of the key: 64 bits tell keys apart.
    by_hash: Keys,
    limit: usize,
}

impl<K: Copy> HeavyHitters<K> {
    pub(crate) fn new(limit: usize, secret: u64) -> HeavyHitters<K> {
        HeavyHitters {
            slots: Vec::with_capacity(limit),
            heap: Vec::with_capacity(limit),
            by_hash: Keys::new(limit, secret),
            limit,
        }
    }

    #[inline(always)]
    pub(crate) fn prefetch(&self, hash: u64) {
        self.by_hash.prefetch(hash);
    }

    /// Adds to the count of a key with that hash.
    #[inline]
    pub(crate) fn add(&mut self, hash: u64, key: K, amount: u64) {
        if let Some(slot) = self.by_hash.get(hash) {
            let place = self.slots[slot as usize].place as usize;
            let count = self.heap[place].count.saturating_add(amount);
            self.sink(place, Counted { count, slot });
        } else if self.slots.len() < self.limit {
            let slot = self.slots.len() as u32;
            let counted = Counted { count: amount, slot };
            self.slots.push(Slot {
                key,
                error: 0,
                hash,
                place: slot,
            });
            self.heap.push(counted);
            let _ = self.by_hash.insert(hash, slot);
            self.rise(slot as usize, counted);
        } else if let Some(&Counted { count: error, slot }) = self.heap.first() {
            let of = &mut self.slots[slot as usize];
            let before = of.hash;
            (of.key, of.error, of.hash) = (key, error, hash);
            self.by_hash.remove(before);
            let _ = self.by_hash.insert(hash, slot);
            let count = error.saturating_add(amount);
            self.sink(0, Counted { count, slot });
        }
    }

    /// How many keys are counted.
    pub(crate) fn len(&self) -> usize {
        self.heap.len()
    }

    /// The keys that are counted, in no order.
    pub(crate) fn all(&self) -> impl Iterator<Item = Heavy<K>> {
        self.heap.iter().map(|counted| {
            let slot = &self.slots[counted.slot as usize];
            Heavy {
                key: slot.key,
                count: counted.count,
                error: slot.error,
            }
        })
    }

    fn put(&mut self, place: usize, counted: Counted) {
        self.heap[place] = counted;
        self.slots[counted.slot as usize].place = place as u32;
    }

    /// Puts a count that has grown at this place, or below it.
    fn sink(&mut self, mut place: usize, counted: Counted) {
        loop {
            let children = [2 * place + 1, 2 * place + 2]
                .into_iter()
                .filter(|&child| child < self.heap.len());
            let Some(least) = children.min_by_key(|&child| self.heap[child].count) else {
                break;
            };
            if counted.count <= self.heap[least].count {
                break;
            }
            self.put(place, self.heap[least]);
            place = least;
        }
        self.put(place, counted);
    }

    /// Puts a new count at this place, or above it.
    fn rise(&mut self, mut place: usize, counted: Counted) {
        while place > 0 {
            let parent = (place - 1) / 2;
            if self.heap[parent].count <= counted.count {
                break;
            }
            self.put(place, self.heap[parent]);
            place = parent;
        }
        self.put(place, counted);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_heavy_key_is_there_and_counts_are_within_their_error(
            packets in prop::collection::vec((0..60_u64, 1..1500_u64), 1..1000), limit in 1..30_usize,
        ) {
            let mut hitters = HeavyHitters::new(limit, 7);
            let mut exact: HashMap<u64, u64> = HashMap::new();
            for (key, bytes) in packets {
                let key = key * key / 60;
                *exact.entry(key).or_default() += bytes;
                hitters.add(model::mix(key), key, bytes);
                prop_assert!(hitters.len() <= limit && hitters.slots.len() == hitters.len());
            }
            let total: u64 = exact.values().sum();
            prop_assert_eq!(hitters.all().map(|of| of.count).sum::<u64>(), total);
            for of in hitters.all() {
                let count = exact[&of.key];
                prop_assert!(of.count - of.error <= count && count <= of.count);
            }
            for (key, count) in exact {
                let is_heavy = count > total / limit as u64;
                prop_assert!(!is_heavy || hitters.all().any(|of| of.key == key));
            }
            for (at, of) in hitters.heap.iter().enumerate() {
                prop_assert!(at == 0 || hitters.heap[(at - 1) / 2].count <= of.count);
                let slot = &hitters.slots[of.slot as usize];
                prop_assert_eq!(slot.place, at as u32);
                prop_assert_eq!(hitters.by_hash.get(slot.hash), Some(of.slot));
                prop_assert_eq!(slot.hash, model::mix(slot.key));
            }
        }
    }
}
