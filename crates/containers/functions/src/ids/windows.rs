//! Many patterns are searched for at once, whatever the case. Each pattern has one window of four or eight bytes; a table of
//! bits says for the bytes at each place of a payload whether they may be one. So most places of a payload cost one look
//! into a table that fits into the first cache, and no pattern makes that slower (Choi et al., "DFC:
//! Accelerating String Pattern Matching for Network Applications", NSDI 2016; Wu and Manber, "A Fast Algorithm for
//! Multi-Pattern Searching", 1994).

use simd::{Kernel, Level, Words};

/// Bytes of the words that a window consists of.
pub(super) const WORD: usize = 4;
/// Words of a window at most.
const WORDS_LIMIT: usize = 2;
/// Sets the bit in which the letters of both cases differ. Other bytes become alike, too: what is found is compared.
const FOLD: u32 = 0x2020_2020;
/// Odd numbers whose bits have no pattern: 2³² over the golden ratio, and over π.
const MIX: [u32; WORDS_LIMIT] = [0x9e37_79b9, 0x517c_c1b7];
/// Bits of a hash.
const HASH_BITS: u32 = 18;
/// Words of 32 bits in the table: 32 KiB.
const FILTER_WORDS: usize = 1 << (HASH_BITS - 5);
/// Places that are looked at together.
const BLOCK: usize = 64;
/// Bytes that the windows at these places have.
const BLOCK_ROOM: usize = BLOCK + WORDS_LIMIT * WORD - 1;

#[derive(Debug)]
struct Pattern {
    bytes: Vec<u8>,
    rule: u32,
}

/// The window of a pattern.
#[derive(Clone, Copy, Debug)]
struct Entry<const N: usize> {
    window: [u32; N],
    pattern: u32,
    /// Where the window is in the pattern.
    offset: u32,
}

/// A set of patterns, with windows of `N` words: one or two.
#[derive(Debug)]
pub(super) struct Windows<const N: usize> {
    level: Level,
    filter: Box<[u32; FILTER_WORDS]>,
    patterns: Vec<Pattern>,
    /// By bucket.
    entries: Vec<Entry<N>>,
    /// Where each bucket begins in `entries`, and the end of the last one.
    buckets: Vec<u32>,
    bucket_shift: u32,
}

/// The window at the beginning of these bytes, which has zeros behind their end.
fn window<const N: usize>(bytes: &[u8]) -> [u32; N] {
    std::array::from_fn(|number| {
        let word = bytes.get(WORD * number..).and_then(|bytes| bytes.first_chunk());
        word.map_or(0, |word| u32::from_le_bytes(*word) | FOLD)
    })
}

#[inline(always)]
fn hash<const N: usize>(window: [u32; N]) -> u32 {
    let mut all = 0;
    let mut number = 0;
    // Neither closures nor iterators: they are compiled for the baseline.
    while number < N {
        all ^= window[number].wrapping_mul(MIX[number]);
        number += 1;
    }
    all
}

/// How often a byte is in payloads, roughly: what is rare there makes a better window.
fn frequency(byte: u8) -> u32 {
    match byte {
        0 | b' ' | 0xff => 6,
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => 3,
        b'\r' | b'\n' | b'/' | b'.' | b':' | b'=' | b'-' => 3,
        _ => 1,
    }
}

impl<const N: usize> Windows<N> {
    /// Bytes of a window.
    pub(super) const BYTES: usize = N * WORD;
    /// Of patterns with the rules that they belong to. Shorter ones than a window are never found.
    pub(super) fn new(of: Vec<(&[u8], u32)>) -> Windows<N> {
        let bucket_bits = (2 * of.len().max(1)).next_power_of_two().ilog2().max(1);
        let bucket_shift = u32::BITS - bucket_bits;
        let mut filter = Box::new([0_u32; FILTER_WORDS]);
        let (mut patterns, mut entries) = (Vec::new(), Vec::new());
        for (bytes, rule) in of {
            let rarest = (0..)
                .zip(bytes.windows(Self::BYTES))
                .min_by_key(|(_, window)| window.iter().map(|byte| frequency(*byte)).sum::<u32>());
            let Some((offset, bytes_there)) = rarest else {
                continue;
            };
            let window = window(bytes_there);
            let bit = hash(window) >> (u32::BITS - HASH_BITS);
            if let Some(word) = filter.get_mut((bit >> 5) as usize) {
                *word |= 1 << (bit & 31);
            }
            entries.push(Entry {
                window,
                pattern: patterns.len() as u32,
                offset,
            });
            patterns.push(Pattern {
                bytes: bytes.to_vec(),
                rule,
            });
        }
        let bucket = |of: &Entry<N>| (hash(of.window) >> bucket_shift) as usize;
        entries.sort_by_key(bucket);
        let begins = |at: usize| entries.partition_point(|of| bucket(of) < at) as u32;
        let buckets = (0..=1 << bucket_bits).map(begins).collect();
        Windows {
            level: Level::detect(),
            filter,
            patterns,
            entries,
            buckets,
            bucket_shift,
        }
    }

    /// Calls `found` with the rule of each pattern in the payload, as often as it is there.
    #[inline]
    pub(super) fn search(&self, payload: &[u8], found: impl FnMut(u32)) {
        if !self.patterns.is_empty() && payload.len() >= Self::BYTES {
            self.level.run(Search {
                of: self,
                payload,
                found,
            });
        }
    }

    /// Compares the patterns that may have their window there.
    #[inline(never)]
    fn compare(&self, payload: &[u8], at: usize, found: &mut impl FnMut(u32)) {
        let window = window(payload.get(at..).unwrap_or_default());
        let bucket = (hash(window) >> self.bucket_shift) as usize;
        let (Some(&from), Some(&to)) = (self.buckets.get(bucket), self.buckets.get(bucket + 1)) else {
            return;
        };
        for entry in self.entries.get(from as usize..to as usize).unwrap_or_default() {
            if entry.window != window {
                continue;
            }
            let Some(pattern) = self.patterns.get(entry.pattern as usize) else {
                continue;
            };
            let there = at.checked_sub(entry.offset as usize);
            let there = there.and_then(|at| payload.get(at..at + pattern.bytes.len()));
            if there.is_some_and(|there| there.eq_ignore_ascii_case(&pattern.bytes)) {
                found(pattern.rule);
            }
        }
    }
}

struct Search<'s, F, const N: usize> {
    of: &'s Windows<N>,
    payload: &'s [u8],
    found: F,
}

/// Eight words, from there on.
#[inline(always)]
fn eight(bytes: &[u8; BLOCK_ROOM], at: usize) -> [u32; 8] {
    let mut words = [0; 8];
    if let Some(bytes) = bytes
        .get(at..)
        .and_then(|bytes| bytes.first_chunk::<{ 8 * WORD }>())
    {
        for (word, bytes) in words.iter_mut().zip(bytes.as_chunks::<WORD>().0) {
            *word = u32::from_le_bytes(*bytes) | FOLD;
        }
    }
    words
}

impl<F: FnMut(u32), const N: usize> Search<'_, F, N> {
    /// Looks at the places of a block, of which so many are left, and which begins there in the payload.
    #[inline(always)]
    fn look<W: Words>(&mut self, bytes: &[u8; BLOCK_ROOM], at: usize, left: usize) {
        for phase in 0..WORD {
            let mut all = 0_u64;
            for part in 0..BLOCK / (8 * WORD) {
                // Eight places, one word from each to the next.
                let from = phase + 8 * WORD * part;
                let mut hashes = [0; 8];
                let mut number = 0;
                while number < N {
                    let words = eight(bytes, from + WORD * number);
                    for (hash, word) in hashes.iter_mut().zip(words) {
                        *hash ^= word.wrapping_mul(MIX[number]);
                    }
                    number += 1;
                }
                for hash in &mut hashes {
                    *hash >>= u32::BITS - HASH_BITS;
                }
                all |= u64::from(W::bits(&self.of.filter, &hashes)) << (8 * part);
            }
            while all != 0 {
                let place = WORD * all.trailing_zeros() as usize + phase;
                all &= all - 1;
                if place < left {
                    self.of.compare(self.payload, at + place, &mut self.found);
                }
            }
        }
    }
}

impl<F: FnMut(u32), const N: usize> Kernel for Search<'_, F, N> {
    type Output = ();

    #[inline(always)]
    fn run<W: Words>(mut self) {
        let mut at = 0;
        while let Some(bytes) = self.payload.get(at..).and_then(|bytes| bytes.first_chunk()) {
            self.look::<W>(bytes, at, BLOCK);
            at += BLOCK;
        }
        // The rest, with zeros behind it, in which no window begins.
        let mut rest = self.payload.get(at..).unwrap_or_default();
        while rest.len() >= Windows::<N>::BYTES {
            let mut bytes = [0; BLOCK_ROOM];
            let len = rest.len().min(BLOCK_ROOM);
            if let (Some(begin), Some(there)) = (bytes.get_mut(..len), rest.get(..len)) {
                begin.copy_from_slice(there);
            }
            self.look::<W>(&bytes, at, (rest.len() + 1 - Windows::<N>::BYTES).min(BLOCK));
            at += BLOCK;
            rest = self.payload.get(at..).unwrap_or_default();
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn found<const N: usize>(patterns: &[Vec<u8>], payload: &[u8]) -> Vec<u32> {
        let numbered = patterns
            .iter()
            .zip(0..)
            .map(|(bytes, rule)| (bytes.as_slice(), rule));
        let windows = Windows::<N>::new(numbered.collect());
        let mut found = Vec::new();
        windows.search(payload, |rule| found.push(rule));
        found.sort_unstable();
        found
    }

    /// Each place is compared with each pattern.
    fn naive(patterns: &[Vec<u8>], payload: &[u8]) -> Vec<u32> {
        let numbered = patterns.iter().zip(0..);
        let places = |(pattern, rule): (&Vec<u8>, u32)| {
            let hits = payload
                .windows(pattern.len())
                .filter(|there| there.eq_ignore_ascii_case(pattern));
            vec![rule; hits.count()]
        };
        numbered.flat_map(places).collect()
    }

    /// Few letters, so that patterns are found, overlap, and are parts of each other.
    fn bytes(len: std::ops::Range<usize>) -> impl Strategy<Value = Vec<u8>> {
        prop::collection::vec(prop::sample::select(b"abAB@`\0\xff".to_vec()), len)
    }

    proptest! {
        #[test]
        fn finds_what_a_naive_search_finds(
            patterns in prop::collection::vec(bytes(4..9), 0..12),
            longer in prop::collection::vec(bytes(8..11), 0..12),
            payload in bytes(0..300),
        ) {
            prop_assert_eq!(found::<1>(&patterns, &payload), naive(&patterns, &payload));
            prop_assert_eq!(found::<1>(&longer, &payload), naive(&longer, &payload));
            prop_assert_eq!(found::<2>(&longer, &payload), naive(&longer, &payload));
        }

        #[test]
        fn finds_patterns_at_every_place(before in 0..200_usize, behind in 0..5_usize) {
            let pattern = b"GET /xyz".to_vec();
            let payload = [vec![b'.'; before], pattern.to_ascii_lowercase(), vec![b' '; behind]].concat();
            let pattern = [pattern];
            prop_assert_eq!(found::<1>(&pattern, &payload), [0]);
            prop_assert_eq!(found::<2>(&pattern, &payload), [0]);
        }
    }
}
