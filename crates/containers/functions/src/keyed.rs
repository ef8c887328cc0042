//! A hash with a secret, for tables whose keys senders choose.

use model::mix;

/// Words that keep a weak secret from cancelling out: fractions of the square roots of 2 and 3.
const SALT: [u64; 2] = [0x6a09_e667_f3bc_c908, 0xbb67_ae85_84ca_a73b];

/// The secret of a table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Keyed([u64; 2]);

#[inline(always)]
const fn fold(a: u64, b: u64) -> u64 {
    let product = a as u128 * b as u128;
    product as u64 ^ (product >> 64) as u64
}

impl Keyed {
    pub(crate) const fn new(secret: u64) -> Keyed {
        Keyed([mix(secret), mix(mix(secret))])
    }

    /// The hash of some words: a folded multiply for each (as in wyhash), and one at the end.
    #[inline(always)]
    pub(crate) fn hash<const N: usize>(&self, words: [u64; N]) -> u64 {
        let [first, second] = self.0;
        let mut state = second ^ N as u64;
        for word in words {
            state = fold(word ^ first ^ SALT[0], state ^ SALT[1]);
        }
        fold(state ^ second, first ^ SALT[1])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_bit_of_each_word_and_of_the_secret_matters() {
        let hash = |words, secret| Keyed::new(secret).hash::<3>(words);
        let words = [1, 2, 3];
        let of = hash(words, 4);
        assert_eq!(of, hash(words, 4));
        for bit in 0..64 {
            for at in 0..3 {
                let mut other = words;
                other[at] ^= 1 << bit;
                let differs = (of ^ hash(other, 4)).count_ones();
                assert!(
                    (10..54).contains(&differs),
                    "bit {bit} of word {at} changes {differs} bits"
                );
            }
            assert_ne!(of, hash(words, 4 ^ 1 << bit));
        }
    }
}
