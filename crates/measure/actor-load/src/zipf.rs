//! Which key is next: of `n` keys, the one of rank r is drawn with a probability in proportion to 1/r^0.99. The method is
//! that of Gray and others, "Quickly generating billion-record synthetic databases", SIGMOD 1994, which YCSB uses.

use model::Random;

/// The exponent of YCSB and of iPipe.
const EXPONENT: f64 = 0.99;

#[derive(Clone, Debug)]
pub(crate) struct Zipf {
    keys: u64,
    zeta: f64,
    alpha: f64,
    eta: f64,
}

impl Zipf {
    /// Draws from so many keys; at least one. It sums over all keys.
    pub(crate) fn new(keys: u64) -> Zipf {
        let keys = keys.max(1);
        let zeta = |keys: u64| -> f64 { (1..=keys).map(|rank| (rank as f64).powf(-EXPONENT)).sum() };
        let all = zeta(keys);
        Zipf {
            keys,
            zeta: all,
            alpha: 1.0 / (1.0 - EXPONENT),
            eta: (1.0 - (2.0 / keys as f64).powf(1.0 - EXPONENT)) / (1.0 - zeta(2) / all),
        }
    }

    /// The next key, from 0: the lower, the more frequent.
    pub(crate) fn draw(&self, random: &mut Random) -> u64 {
        let unit = 1.0 - random.unit();
        let scaled = unit * self.zeta;
        if scaled < 1.0 || self.keys == 1 {
            return 0;
        }
        if scaled < 1.0 + 0.5_f64.powf(EXPONENT) || self.keys == 2 {
            return 1;
        }
        let rank = self.keys as f64 * (self.eta * unit - self.eta + 1.0).powf(self.alpha);
        (rank as u64).min(self.keys - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_as_frequent_as_their_ranks_say() {
        let (zipf, mut random) = (Zipf::new(1_000), Random::new(1));
        let mut counts = vec![0_u32; 1_000];
        for _ in 0..200_000 {
            counts[zipf.draw(&mut random) as usize] += 1;
        }
        let zeta: f64 = (1..=1_000).map(|rank| f64::from(rank).powf(-EXPONENT)).sum();
        let expected = |rank: f64| 200_000.0 * rank.powf(-EXPONENT) / zeta;
        for rank in [1, 2, 10, 100] {
            let near = counts[rank - 1];
            let ratio = f64::from(near) / expected(rank as f64);
            assert!((0.75..1.35).contains(&ratio), "rank {rank}: {ratio}");
        }
        for keys in 1..4 {
            let zipf = Zipf::new(keys);
            assert!((0..1_000).all(|_| zipf.draw(&mut random) < keys));
        }
    }
}
