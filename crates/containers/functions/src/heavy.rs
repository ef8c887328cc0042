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
    hash: u64,
}

/// The counts of `limit` keys: a heap with the smallest first, and where each key is in it. Each key whose count is more
/// than the total divided by the limit is there.
#[derive(Debug)]
pub(crate) struct HeavyHitters<K> {
    heap: Vec<Heavy<K>>,
    /// By hash of the key: 64 bits tell keys apart.
    places: Keys,
    limit: usize,
}

impl<K: Copy> HeavyHitters<K> {
    pub(crate) fn new(limit: usize, secret: u64) -> HeavyHitters<K> {
        HeavyHitters {
            heap: Vec::with_capacity(limit),
            places: Keys::new(limit, secret),
            limit,
        }
    }

    #[inline(always)]
    pub(crate) fn prefetch(&self, hash: u64) {
        self.places.prefetch(hash);
    }

    /// Adds to the count of a key with that hash.
    #[inline]
    pub(crate) fn add(&mut self, hash: u64, key: K, amount: u64) {
        if let Some(place) = self.places.get(hash) {
            let place = place as usize;
            self.heap[place].count = self.heap[place].count.saturating_add(amount);
            self.sink(place);
        } else if self.heap.len() < self.limit {
            let count = amount;
            let place = self.heap.len();
            self.heap.push(Heavy {
                key,
                count,
                error: 0,
                hash,
            });
            let _ = self.places.insert(hash, place as u32);
            self.rise(place);
        } else if let Some(least) = self.heap.first_mut() {
            let error = least.count;
            let before = least.hash;
            let count = error.saturating_add(amount);
            *least = Heavy {
                key,
                count,
                error,
                hash,
            };
            self.places.remove(before);
            let _ = self.places.insert(hash, 0);
            self.sink(0);
        }
    }

    /// The keys that are counted, in no order.
    pub(crate) fn all(&self) -> &[Heavy<K>] {
        &self.heap
    }

    fn swap(&mut self, a: usize, b: usize) {
        self.heap.swap(a, b);
        self.places.set(self.heap[a].hash, a as u32);
        self.places.set(self.heap[b].hash, b as u32);
    }

    fn sink(&mut self, mut place: usize) {
        loop {
            let children = [2 * place + 1, 2 * place + 2]
                .into_iter()
                .filter(|&child| child < self.heap.len());
            let Some(least) = children.min_by_key(|&child| self.heap[child].count) else {
                return;
            };
            if self.heap[place].count <= self.heap[least].count {
                return;
            }
            self.swap(place, least);
            place = least;
        }
    }

    fn rise(&mut self, mut place: usize) {
        while place > 0 {
            let parent = (place - 1) / 2;
            if self.heap[parent].count <= self.heap[place].count {
                return;
            }
            self.swap(place, parent);
            place = parent;
        }
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
                prop_assert!(hitters.heap.len() <= limit);
            }
            let total: u64 = exact.values().sum();
            prop_assert_eq!(hitters.all().iter().map(|of| of.count).sum::<u64>(), total);
            for of in hitters.all() {
                let count = exact[&of.key];
                prop_assert!(of.count - of.error <= count && count <= of.count);
            }
            for (key, count) in exact {
                let is_heavy = count > total / limit as u64;
                prop_assert!(!is_heavy || hitters.all().iter().any(|of| of.key == key));
            }
            for (at, of) in hitters.heap.iter().enumerate() {
                prop_assert!(at == 0 || hitters.heap[(at - 1) / 2].count <= of.count);
                prop_assert_eq!(hitters.places.get(of.hash), Some(at as u32));
            }
        }
    }
}
