//! Many patterns are searched for at once, whatever the case. A table of bits says for the bytes at a place of a payload
//! whether they may be a window of a pattern. It fits into the first cache, and no pattern makes the search slower (Choi
//! et al., "DFC: Accelerating String Pattern Matching for Network Applications", NSDI 2016).
//!
//! Of a pattern of eight bytes or more, each of the four windows of five bytes in eight of its bytes is in the table. One
//! of them begins at a multiple of four, wherever the pattern lies: only each fourth place is looked at (Wu and Manber, "A
//! Fast Algorithm for Multi-Pattern Searching", 1994, skip places for the same reason). Of shorter patterns one window of
//! four bytes is in the table of a search that looks at every place.
//!
//! A second table, larger and with another hash, takes out most of what the first one let through by chance. What is left
//! is compared.

use simd::{Kernel, Level, Words};

/// Bytes of the words that a window is read as. A second one begins one byte behind the first.
const WORD: usize = 4;
/// Sets the bit in which the letters of both cases differ. Other bytes become alike, too: what is found is compared.
const FOLD: u8 = 0x20;
/// Odd numbers whose bits have no pattern: 2³² over the golden ratio, and over π.
const MIX: [u32; 2] = [0x9e37_79b9, 0x517c_c1b7];
/// Another one, for the second table: 2³² over e.
const MIX_AGAIN: u32 = 0x5e2d_58d9;
/// Bits of the first hash.
const HASH_BITS: u32 = 18;
/// Words of 32 bits in the first table: 32 KiB.
const FILTER_WORDS: usize = 1 << (HASH_BITS - 5);
/// Bits of the second table for each window: so one in 16 or fewer gets through by chance.
const SECOND_BITS: usize = 16;
/// Places that are looked at by one instruction, a word from each to the next.
const PLACES: usize = 8;
/// Bytes that they take.
const PART: usize = PLACES * WORD;
/// Bytes of the payload that are looked at together: a bit of a word for each place.
const BLOCK: usize = 64 * WORD;
/// Bytes that the windows there have.
const BLOCK_ROOM: usize = BLOCK + WORD;

#[derive(Debug)]
struct Pattern {
    bytes: Vec<u8>,
    rule: u32,
}

/// A window of a pattern.
#[derive(Clone, Copy, Debug)]
struct Entry {
    /// The bytes of the pattern that all its windows are of.
    span: u64,
    pattern: u32,
    /// Where they are in the pattern.
    offset: u16,
    /// Where the window is in them.
    shift: u16,
}

/// A set of patterns, with windows that are read as `N` words: one or two.
#[derive(Debug)]
pub(super) struct Windows<const N: usize> {
    level: Level,
    filter: Box<[u32; FILTER_WORDS]>,
    second: Vec<u32>,
    second_shift: u32,
    patterns: Vec<Pattern>,
    /// By bucket.
    entries: Vec<Entry>,
    /// Where each bucket begins in `entries`, and the end of the last one.
    buckets: Vec<u32>,
    bucket_shift: u32,
}

#[inline(always)]
fn hash<const N: usize>(words: [u32; N]) -> u32 {
    let mut all = 0;
    let mut number = 0;
    // Neither closures nor iterators: they are compiled for the baseline.
    while number < N {
        all ^= words[number].wrapping_mul(MIX[number]);
        number += 1;
    }
    all
}

/// A hash for the second table and for buckets. Windows that the first one takes for equal are few.
#[inline(always)]
fn hash_again(hash: u32) -> u32 {
    (hash ^ hash >> 15).wrapping_mul(MIX_AGAIN)
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
    /// From a place that is looked at to the next one.
    const STRIDE: usize = if N == 1 { 1 } else { WORD };
    /// Bytes of a window.
    const WINDOW: usize = WORD + N - 1;
    /// Bytes of a pattern at least: those of its windows.
    pub(super) const SPAN: usize = Self::WINDOW + Self::STRIDE - 1;

    /// Of patterns with the rules that they belong to. Patterns that are shorter than [`Windows::SPAN`] are never found.
    pub(super) fn new(of: Vec<(&[u8], u32)>) -> Windows<N> {
        let windows = (of.len() * Self::STRIDE).max(1);
        let bucket_shift = u32::BITS - (2 * windows).next_power_of_two().ilog2();
        let second_bits = (SECOND_BITS * windows).next_power_of_two().max(32).ilog2();
        let second_shift = u32::BITS - second_bits;
        let mut filter = Box::new([0_u32; FILTER_WORDS]);
        let mut second = vec![0; 1 << (second_bits - 5)];
        let set = |table: &mut [u32], bit: u32| {
            if let Some(word) = table.get_mut((bit >> 5) as usize) {
                *word |= 1 << (bit & 31);
            }
        };
        let mut patterns = Vec::new();
        let mut entries: Vec<(u32, Entry)> = Vec::new();
        for (bytes, rule) in of {
            let rarest = (0..)
                .zip(bytes.windows(Self::SPAN))
                .min_by_key(|(_, span)| span.iter().map(|byte| frequency(*byte)).sum::<u32>());
            let Some((offset, there)) = rarest else {
                continue;
            };
            for (shift, window) in (0..).zip(there.windows(Self::WINDOW)) {
                let words = std::array::from_fn(|number| {
                    let word = window.get(number..).and_then(|bytes| bytes.first_chunk::<WORD>());
                    u32::from_le_bytes(word.copied().unwrap_or_default().map(|byte| byte | FOLD))
                });
                let hash = hash::<N>(words);
                set(filter.as_mut_slice(), hash >> (u32::BITS - HASH_BITS));
                set(&mut second, hash_again(hash) >> second_shift);
                let entry = Entry {
                    span: folded(there),
                    pattern: patterns.len() as u32,
                    offset,
                    shift,
                };
                entries.push((hash_again(hash) >> bucket_shift, entry));
            }
            patterns.push(Pattern {
                bytes: bytes.to_vec(),
                rule,
            });
        }
        entries.sort_by_key(|(bucket, _)| *bucket);
        let begins = |at: u32| entries.partition_point(|(bucket, _)| *bucket < at) as u32;
        let buckets = (0..=1 << (u32::BITS - bucket_shift)).map(begins).collect();
        Windows {
            level: Level::detect(),
            filter,
            second,
            second_shift,
            patterns,
            entries: entries.into_iter().map(|(_, entry)| entry).collect(),
            buckets,
            bucket_shift,
        }
    }

    /// Calls `found` with the rule of each pattern in the payload, as often as it is there.
    #[inline]
    pub(super) fn search(&self, payload: &[u8], found: impl FnMut(u32)) {
        if !self.patterns.is_empty() && payload.len() >= Self::SPAN {
            self.level.run(Search {
                of: self,
                payload,
                found,
            });
        }
    }

    /// Compares the patterns that may have a window with that hash there.
    #[inline(never)]
    fn compare(&self, payload: &[u8], at: usize, hash: u32, found: &mut impl FnMut(u32)) {
        let bucket = (hash_again(hash) >> self.bucket_shift) as usize;
        let (Some(&from), Some(&to)) = (self.buckets.get(bucket), self.buckets.get(bucket + 1)) else {
            return;
        };
        for entry in self.entries.get(from as usize..to as usize).unwrap_or_default() {
            let begin = at.checked_sub(usize::from(entry.shift));
            let there = begin.and_then(|at| payload.get(at..at + Self::SPAN));
            if there.is_none_or(|there| folded(there) != entry.span) {
                continue;
            }
            let Some(pattern) = self.patterns.get(entry.pattern as usize) else {
                continue;
            };
            let begin = begin.and_then(|at| at.checked_sub(usize::from(entry.offset)));
            let there = begin.and_then(|at| payload.get(at..at + pattern.bytes.len()));
            if there.is_some_and(|there| there.eq_ignore_ascii_case(&pattern.bytes)) {
                found(pattern.rule);
            }
        }
    }
}

/// Up to eight bytes as a number, the same for letters of both cases.
#[inline]
fn folded(bytes: &[u8]) -> u64 {
    let fold = u64::from_le_bytes([FOLD; 8]);
    match (bytes.first_chunk::<8>(), bytes.first_chunk::<4>()) {
        (Some(bytes), _) => u64::from_le_bytes(*bytes) | fold,
        (None, Some(bytes)) => u64::from(u32::from_le_bytes(*bytes)) | fold,
        (None, None) => fold,
    }
}

struct Search<'s, F, const N: usize> {
    of: &'s Windows<N>,
    payload: &'s [u8],
    found: F,
}

/// Eight words, from there on.
#[inline(always)]
fn eight(bytes: &[u8; BLOCK_ROOM], at: usize) -> [u32; PLACES] {
    let mut words = [0; PLACES];
    if let Some(bytes) = bytes.get(at..).and_then(|bytes| bytes.first_chunk::<PART>()) {
        for (word, bytes) in words.iter_mut().zip(bytes.as_chunks::<WORD>().0) {
            *word = u32::from_le_bytes(*bytes) | u32::from_le_bytes([FOLD; WORD]);
        }
    }
    words
}

impl<F: FnMut(u32), const N: usize> Search<'_, F, N> {
    /// Looks at the first `left` places of a block, which begins there in the payload.
    #[inline(always)]
    fn look<W: Words>(&mut self, bytes: &[u8; BLOCK_ROOM], at: usize, left: usize) {
        let mut hashes = [[0; PLACES]; BLOCK / PART];
        let mut phase = 0;
        while phase < WORD {
            let mut all = 0_u64;
            let mut part = 0;
            while part < BLOCK / PART && PART * part < left {
                let from = phase + PART * part;
                let hashes = &mut hashes[part];
                *hashes = [0; PLACES];
                let mut number = 0;
                while number < N {
                    let words = eight(bytes, from + number);
                    for (hash, word) in hashes.iter_mut().zip(words) {
                        *hash ^= word.wrapping_mul(MIX[number]);
                    }
                    number += 1;
                }
                let mut bits = *hashes;
                for bit in &mut bits {
                    *bit >>= u32::BITS - HASH_BITS;
                }
                all |= u64::from(W::bits(&self.of.filter, &bits)) << (PLACES * part);
                part += 1;
            }
            while all != 0 {
                let number = all.trailing_zeros() as usize;
                all &= all - 1;
                let hash = hashes[number / PLACES][number % PLACES];
                let bit = hash_again(hash) >> self.of.second_shift;
                let word = self.of.second.get((bit >> 5) as usize);
                let may_be = word.is_some_and(|word| word >> (bit & 31) & 1 == 1);
                let place = WORD * number + phase;
                if may_be && place < left {
                    self.of.compare(self.payload, at + place, hash, &mut self.found);
                }
            }
            phase += Windows::<N>::STRIDE;
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
        while rest.len() >= Windows::<N>::WINDOW {
            let mut bytes = [0; BLOCK_ROOM];
            let len = rest.len().min(BLOCK_ROOM);
            if let (Some(begin), Some(there)) = (bytes.get_mut(..len), rest.get(..len)) {
                begin.copy_from_slice(there);
            }
            self.look::<W>(&bytes, at, (rest.len() + 1 - Windows::<N>::WINDOW).min(BLOCK));
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
            payload in bytes(0..700),
        ) {
            prop_assert_eq!(found::<1>(&patterns, &payload), naive(&patterns, &payload));
            prop_assert_eq!(found::<1>(&longer, &payload), naive(&longer, &payload));
            prop_assert_eq!(found::<2>(&longer, &payload), naive(&longer, &payload));
        }

        #[test]
        fn finds_patterns_at_every_place(before in 0..600_usize, behind in 0..5_usize) {
            let pattern = b"GET /xyz".to_vec();
            let payload = [vec![b'.'; before], pattern.to_ascii_lowercase(), vec![b' '; behind]].concat();
            let pattern = [pattern];
            prop_assert_eq!(found::<1>(&pattern, &payload), [0]);
            prop_assert_eq!(found::<2>(&pattern, &payload), [0]);
        }
    }
}
