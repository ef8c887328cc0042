//! Numbers that look random and are the same for the same seed.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};

/// SplitMix64 (Steele, Lea, Flood, OOPSLA 2014), by its state.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chance(pub(super) u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `limit`; 0 where that is 0, without a draw.
    pub(super) fn below(&mut self, limit: u64) -> u64 {
        if limit == 0 { 0 } else { self.next() % limit }
    }

    /// Whether something of that probability happens.
    pub(super) fn happens(&mut self, probability: f64) -> bool {
        probability > 0.0 && ((self.next() >> 11) as f64) < probability * (1_u64 << 53) as f64
    }
}

/// The same in every run.
pub(super) fn hash_of(of: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    of.hash(&mut hasher);
    hasher.finish()
}
