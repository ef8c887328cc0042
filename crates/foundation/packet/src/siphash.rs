//! SipHash-1-3 over whole words: without the key a sender cannot target a bucket
//! (Aumasson and Bernstein, "SipHash: a fast short-input PRF", 2012).

/// The hash of `words` under `key`.
pub(crate) fn hash(key: [u64; 2], words: &[u64]) -> u64 {
    let mut v = [
        key[0] ^ 0x736f_6d65_7073_6575,
        key[1] ^ 0x646f_7261_6e64_6f6d,
        key[0] ^ 0x6c79_6765_6e65_7261,
        key[1] ^ 0x7465_6462_7974_6573,
    ];
    let length = (words.len() as u64 * 8) << 56;
    for &word in words.iter().chain([&length]) {
        v[3] ^= word;
        round(&mut v);
        v[0] ^= word;
    }
    v[2] ^= 0xff;
    round(&mut v);
    round(&mut v);
    round(&mut v);
    v[0] ^ v[1] ^ v[2] ^ v[3]
}

fn round(v: &mut [u64; 4]) {
    v[0] = v[0].wrapping_add(v[1]);
    v[2] = v[2].wrapping_add(v[3]);
    v[1] = v[1].rotate_left(13) ^ v[0];
    v[3] = v[3].rotate_left(16) ^ v[2];
    v[0] = v[0].rotate_left(32);
    v[2] = v[2].wrapping_add(v[1]);
    v[0] = v[0].wrapping_add(v[3]);
    v[1] = v[1].rotate_left(17) ^ v[2];
    v[3] = v[3].rotate_left(21) ^ v[0];
    v[2] = v[2].rotate_left(32);
}

#[cfg(test)]
mod tests {
    use std::hash::{DefaultHasher, Hasher};

    proptest::proptest! {
        /// The standard library's hasher is SipHash-1-3 with an all-zero key.
        #[test]
        fn equals_the_standard_librarys_hash(words in proptest::collection::vec(proptest::num::u64::ANY, 0..8)) {
            let mut theirs = DefaultHasher::new();
            for word in &words {
                theirs.write(&word.to_le_bytes());
            }
            proptest::prop_assert_eq!(super::hash([0, 0], &words), theirs.finish());
        }
    }

    #[test]
    fn depends_on_the_key() {
        assert_ne!(super::hash([0, 0], &[1]), super::hash([0, 1], &[1]));
        assert_ne!(super::hash([0, 0], &[1]), super::hash([1, 0], &[1]));
    }
}
