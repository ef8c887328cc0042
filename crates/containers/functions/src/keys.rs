//! A bounded hash table from 64-bit keys to 32-bit places, with a secret in its hash.

use model::mix;

/// No place: an empty entry.
const EMPTY: u32 = u32::MAX;

/// An entry, in a quarter of a cache line.
#[derive(Clone, Copy, Debug)]
struct Entry {
    key: u64,
    place: u32,
}

/// Linear probing, at most half full: two probes for a hit on average. The hash is keyed, so that no sender can make
/// its keys collide.
#[derive(Debug)]
pub(crate) struct Keys {
    entries: Box<[Entry]>,
    mask: usize,
    secret: [u64; 2],
    len: usize,
    limit: usize,
}

impl Keys {
    /// An empty table for at most `limit` keys.
    pub(crate) fn new(limit: usize, secret: u64) -> Keys {
        let size = (limit.max(1) * 2).next_power_of_two();
        let empty = Entry { key: 0, place: EMPTY };
        Keys {
            entries: vec![empty; size].into_boxed_slice(),
            mask: size - 1,
            secret: [mix(secret), mix(mix(secret))],
            len: 0,
            limit,
        }
    }

    #[inline(always)]
    fn home(&self, key: u64) -> usize {
        // A folded multiply, as in wyhash.
        let product = u128::from(key ^ self.secret[0]) * u128::from(self.secret[1] | 1);
        ((product >> 64) as u64 ^ product as u64) as usize & self.mask
    }

    /// Brings the entry of a key into the cache.
    #[inline(always)]
    pub(crate) fn prefetch(&self, key: u64) {
        simd::prefetch_at(&self.entries, self.home(key));
    }

    /// The place of a key.
    #[inline]
    pub(crate) fn get(&self, key: u64) -> Option<u32> {
        let mut at = self.home(key);
        loop {
            let entry = self.entries.get(at)?;
            if entry.place == EMPTY {
                return None;
            }
            if entry.key == key {
                return Some(entry.place);
            }
            at = (at + 1) & self.mask;
        }
    }

    /// Adds a key that is not there. False, and no change, if the table is full.
    #[must_use]
    pub(crate) fn insert(&mut self, key: u64, place: u32) -> bool {
        if self.len >= self.limit {
            return false;
        }
        let mut at = self.home(key);
        while self.entries[at].place != EMPTY {
            at = (at + 1) & self.mask;
        }
        self.entries[at] = Entry { key, place };
        self.len += 1;
        true
    }

    /// Removes a key, if it is there.
    pub(crate) fn remove(&mut self, key: u64) {
        let mut at = self.home(key);
        while self.entries[at].key != key || self.entries[at].place == EMPTY {
            if self.entries[at].place == EMPTY {
                return;
            }
            at = (at + 1) & self.mask;
        }
        self.len -= 1;
        // Entries behind it move up, as far as their homes allow: no gap within a run, and no tombstones.
        let mut gap = at;
        loop {
            at = (at + 1) & self.mask;
            let entry = self.entries[at];
            if entry.place == EMPTY {
                break;
            }
            let from_home = at.wrapping_sub(self.home(entry.key)) & self.mask;
            let from_gap = at.wrapping_sub(gap) & self.mask;
            if from_home >= from_gap {
                self.entries[gap] = entry;
                gap = at;
            }
        }
        self.entries[gap].place = EMPTY;
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_is_a_map_up_to_its_limit(steps in prop::collection::vec((any::<bool>(), 0..60_u64), 0..400), secret: u64) {
            let mut model = HashMap::new();
            let mut keys = Keys::new(32, secret);
            for (at, (adds, key)) in steps.into_iter().enumerate() {
                if !adds {
                    model.remove(&key);
                    keys.remove(key);
                } else if !model.contains_key(&key) {
                    let fits = model.len() < 32;
                    prop_assert_eq!(keys.insert(key, at as u32), fits);
                    if fits {
                        model.insert(key, at as u32);
                    }
                }
                prop_assert_eq!(keys.len(), model.len());
                for key in 0..60 {
                    prop_assert_eq!(keys.get(key), model.get(&key).copied());
                }
            }
        }
    }
}
