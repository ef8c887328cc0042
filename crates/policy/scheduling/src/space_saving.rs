//! Finds heavy hitters in fixed space.

/// A heavy hitter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heavy<K> {
    /// Its key.
    pub key: K,
    /// Its count, never below the true one.
    pub count: u64,
    /// The maximum overestimate: the true count is at least `count` − `error`.
    pub error: u64,
}

/// The Space-Saving algorithm (Metwally, Agrawal, El Abbadi, ICDT 2005): `N` counters find every key with
/// more than 1/N of the total and bound each count's error. A key without a counter replaces the smallest
/// one.
///
/// Not a library, because workers use it: no allocation after construction, and 64 hashes in eight adjacent
/// cache lines are searched in fewer steps than a map and a heap need.
#[derive(Clone, Debug)]
pub struct SpaceSaving<K, const N: usize> {
    hashes: [u64; N],
    heavy: [Heavy<K>; N],
    used: usize,
}

impl<K: Copy + Eq, const N: usize> SpaceSaving<K, N> {
    /// An empty sketch. `placeholder` is any key; it fills unused counters.
    pub fn new(placeholder: K) -> Self {
        let unused = Heavy {
            key: placeholder,
            count: 0,
            error: 0,
        };
        SpaceSaving {
            hashes: [0; N],
            heavy: [unused; N],
            used: 0,
        }
    }

    /// Adds `weight` to `key`. `hash` is the key's, the same each time.
    #[inline]
    pub fn count(&mut self, key: &K, hash: u64, weight: u64) {
        if let Some(heavy) = self
            .place_of(key, hash)
            .and_then(|place| self.heavy.get_mut(place))
        {
            heavy.count = heavy.count.saturating_add(weight);
            return;
        }
        let place = if self.used < N {
            self.used += 1;
            self.used - 1
        } else {
            self.smallest()
        };
        if let (Some(heavy), Some(h)) = (self.heavy.get_mut(place), self.hashes.get_mut(place)) {
            *h = hash;
            *heavy = Heavy {
                key: *key,
                count: heavy.count.saturating_add(weight),
                error: heavy.count,
            };
        }
    }

    #[inline]
    fn place_of(&self, key: &K, hash: u64) -> Option<usize> {
        let used = self.hashes.iter().zip(&self.heavy).take(self.used);
        let mut used = used.map(|(h, heavy)| *h == hash && heavy.key == *key);
        used.position(|is_it| is_it)
    }

    fn smallest(&self) -> usize {
        let places = self.heavy.iter().enumerate();
        places
            .min_by_key(|(_, heavy)| heavy.count)
            .map_or(0, |(place, _)| place)
    }

    /// All counted keys, unordered.
    pub fn heavy(&self) -> &[Heavy<K>] {
        self.heavy.get(..self.used).unwrap_or_default()
    }

    /// The counter of a key; [`None`] if it has none.
    pub fn of(&self, key: &K, hash: u64) -> Option<&Heavy<K>> {
        self.heavy.get(self.place_of(key, hash)?)
    }

    /// Clears all counters.
    pub fn clear(&mut self) {
        self.used = 0;
        self.hashes = [0; N];
        self.heavy
            .iter_mut()
            .for_each(|heavy| (heavy.count, heavy.error) = (0, 0));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// The paper's guarantees, against exact counts: a count is never too low, and too high by at most
        /// `error`. The smallest is at most 1/N of the total. Every key above that has a counter.
        #[test]
        fn counts_are_within_their_errors(keys in proptest::collection::vec((0u8..40, 1u64..50), 1..400)) {
            let mut heavy = SpaceSaving::<u8, 8>::new(0);
            let mut exact = BTreeMap::new();
            for (key, weight) in &keys {
                // Half of the keys share their hash with another.
                heavy.count(key, u64::from(key / 2 * 2), *weight);
                *exact.entry(*key).or_insert(0) += weight;
            }
            let total: u64 = exact.values().sum();
            for found in heavy.heavy() {
                prop_assert!(found.error <= total / 8);
                let exact = exact[&found.key];
                prop_assert!(found.count >= exact && found.count - found.error <= exact, "{found:?} {exact}");
            }
            for (key, exact) in exact {
                if exact > total / 8 {
                    prop_assert!(heavy.heavy().iter().any(|found| found.key == key), "{key}");
                }
            }
        }
    }

    #[test]
    fn clearing_removes_all_counters() {
        let mut heavy = SpaceSaving::<u8, 2>::new(0);
        (0..5).for_each(|key| heavy.count(&key, key.into(), 3));
        assert_eq!(heavy.heavy().len(), 2);
        heavy.clear();
        assert_eq!((heavy.heavy(), heavy.of(&4, 4)), (&[][..], None));
        heavy.count(&7, 7, 2);
        assert_eq!(
            heavy.of(&7, 7),
            Some(&Heavy {
                key: 7,
                count: 2,
                error: 0
            })
        );
    }
}
