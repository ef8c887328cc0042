//! Counts of all keys in little memory (Cormode and Muthukrishnan, "An improved data stream summary: the count-min sketch
//! and its applications", 2005).

/// Rows of counters, at most.
pub(super) const DEPTH_LIMIT: usize = 8;

/// A count-min sketch: `depth` rows of `width` counters. An estimate is never below the count, and with a probability of
/// at least 1 - e^-depth at most e / width of the total above it.
#[derive(Debug)]
pub(super) struct Sketch {
    counters: Box<[u64]>,
    width: usize,
    total: u64,
}

impl Sketch {
    /// `width` is rounded up to a power of two.
    pub(super) fn new(width: usize, depth: usize) -> Sketch {
        let width = width.next_power_of_two();
        Sketch {
            counters: vec![0; width * depth.clamp(1, DEPTH_LIMIT)].into(),
            width,
            total: 0,
        }
    }

    /// The place in each row. Two independent halves of a hash give as many as are needed (Kirsch and Mitzenmacher,
    /// "Less hashing, same performance", 2006).
    #[inline(always)]
    fn places(&self, hash: u64) -> impl Iterator<Item = usize> + use<> {
        let (first, step) = (hash as usize, (hash >> 32) as usize | 1);
        let (width, rows) = (self.width, self.counters.len() / self.width);
        (0..rows).map(move |row| row * width + (first.wrapping_add(row.wrapping_mul(step)) & (width - 1)))
    }

    #[inline(always)]
    pub(super) fn prefetch(&self, hash: u64) {
        for place in self.places(hash) {
            simd::prefetch_at(&self.counters, place);
        }
    }

    /// Adds to the count of a key. Its estimate.
    #[inline(always)]
    pub(super) fn add(&mut self, hash: u64, amount: u64) -> u64 {
        self.total = self.total.saturating_add(amount);
        let mut least = u64::MAX;
        for place in self.places(hash) {
            let counter = &mut self.counters[place];
            *counter = counter.saturating_add(amount);
            least = least.min(*counter);
        }
        least
    }

    /// The estimate of a key.
    pub(super) fn estimate(&self, hash: u64) -> u64 {
        self.places(hash)
            .map(|place| self.counters[place])
            .min()
            .unwrap_or(0)
    }

    /// Of all keys.
    pub(super) fn total(&self) -> u64 {
        self.total
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;
    use crate::keyed::Keyed;

    proptest! {
        #[test]
        fn an_estimate_is_the_count_and_a_little(
            packets in prop::collection::vec((0..2000_u64, 1..1500_u64), 1..3000), secret: u64, depth in 1..6_usize,
        ) {
            let keyed = Keyed::new(secret);
            let mut sketch = Sketch::new(1024, depth);
            let mut exact: HashMap<u64, u64> = HashMap::new();
            for (key, bytes) in packets {
                // Some keys have much more than others.
                let key = key * key / 2000;
                *exact.entry(key).or_default() += bytes;
                sketch.add(keyed.hash([key]), bytes);
            }
            let total: u64 = exact.values().sum();
            prop_assert_eq!(sketch.total(), total);
            let bound = std::f64::consts::E / 1024.0 * total as f64;
            let mut over = 0;
            for (key, count) in &exact {
                let estimate = sketch.estimate(keyed.hash([*key]));
                prop_assert!(estimate >= *count);
                over += usize::from((estimate - count) as f64 > bound);
            }
            let may = (-(depth as f64)).exp() * exact.len() as f64;
            prop_assert!(over as f64 <= may * 2.0 + 10.0, "{} of {} are over the bound", over, exact.len());
        }
    }
}
