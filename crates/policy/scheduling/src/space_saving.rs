//! Which of very many are the heaviest, in a fixed room.

/// One that is heavy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heavy<K> {
    /// Which one.
    pub key: K,
    /// What was counted for it; never less than what it brought.
    pub count: u64,
    /// How much of `count` may be others': it brought at least `count` − `error`.
    pub error: u64,
}

/// The Space-Saving algorithm (Metwally, Agrawal, El Abbadi, ICDT 2005): `N` counters find everyone who brings more
/// than 1/N of the whole, and tell how far each count may be off. A key without a counter takes over the smallest.
///
/// Ours and not a library's, because a worker counts with it: nothing is allocated after it is made, and 64 counters
/// are found by their hashes, side by side in eight cache lines, in fewer steps than a map and a heap would take.
#[derive(Clone, Debug)]
pub struct SpaceSaving<K, const N: usize> {
    hashes: [u64; N],
    heavy: [Heavy<K>; N],
    used: usize,
}

impl<K: Copy + Eq, const N: usize> SpaceSaving<K, N> {
    /// Nothing counted. `nobody` is any key: it fills counters that are not in use.
    pub fn new(nobody: K) -> Self {
        let unused = Heavy {
            key: nobody,
            count: 0,
            error: 0,
        };
        SpaceSaving {
            hashes: [0; N],
            heavy: [unused; N],
            used: 0,
        }
    }

    /// Counts `weight` more for `key`. `hash` is the key's, the same each time.
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

    /// Those that have counters, in no order.
    pub fn heavy(&self) -> &[Heavy<K>] {
        self.heavy.get(..self.used).unwrap_or_default()
    }

    /// What is counted for a key; [`None`] where it has no counter.
    pub fn of(&self, key: &K, hash: u64) -> Option<&Heavy<K>> {
        self.heavy.get(self.place_of(key, hash)?)
    }

    /// Forgets everything.
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
        /// The paper's guarantees, against exact counts: a count is never too low and too high by at most `error`; the
        /// smallest is at most 1/N of the whole; whoever brings more than that has a counter.
        #[test]
        fn counts_are_within_their_errors(keys in proptest::collection::vec((0u8..40, 1u64..50), 1..400)) {
            let mut heavy = SpaceSaving::<u8, 8>::new(0);
            let mut exact = BTreeMap::new();
            for (key, weight) in &keys {
                // Half of the keys share a hash with another.
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
    fn nothing_is_known_after_it_was_cleared() {
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
