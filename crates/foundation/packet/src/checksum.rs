//! The internet checksum (RFC 1071), its incremental update (RFC 1624), and SCTP's CRC32c (RFC 9260).

use simd::{Kernel, Level, Words};

/// The 16-bit one's complement sum of the bytes, not complemented. A trailing odd byte is the high half of a
/// word.
///
/// Words are added as most processors load them, and only the sum is turned round (RFC 1071, section 2 (B)): the vector
/// code of baselines turns no words round cheaply.
pub fn sum(bytes: &[u8]) -> u16 {
    added(bytes)
}

/// As [`sum`], with the vectors of a level: worth its call for what is longer than a header.
pub fn sum_with(level: Level, bytes: &[u8]) -> u16 {
    level.run(Sum(bytes))
}

struct Sum<'b>(&'b [u8]);

impl Kernel for Sum<'_> {
    type Output = u16;

    #[inline(always)]
    fn run<W: Words>(self) -> u16 {
        added(self.0)
    }
}

#[inline(always)]
fn added(bytes: &[u8]) -> u16 {
    let mut total: u64 = 0;
    let (words, rest) = bytes.as_chunks::<4>();
    for word in words {
        total += u64::from(u32::from_le_bytes(*word));
    }
    let mut last = [0; 4];
    for (to, from) in last.iter_mut().zip(rest) {
        *to = *from;
    }
    fold(total + u64::from(u32::from_le_bytes(last))).swap_bytes()
}

/// As [`sum`], of words as the numbers that they stand for.
#[inline]
pub fn sum_of_words<const N: usize>(words: [u32; N]) -> u16 {
    fold(words.iter().map(|word| u64::from(*word)).sum())
}

/// The internet checksum of the bytes, as stored in a header.
pub fn internet(bytes: &[u8]) -> u16 {
    !sum(bytes)
}

/// Adds two one's complement sums.
pub const fn add(a: u16, b: u16) -> u16 {
    let (sum, carry) = a.overflowing_add(b);
    sum + carry as u16
}

/// What replacing bytes adds to a sum that covers them (RFC 1624). Both begin at a whole word of it.
pub fn difference(before: &[u8], after: &[u8]) -> u16 {
    add(!sum(before), sum(after))
}

/// A checksum after what it covers has changed by that difference.
pub const fn update(checksum: u16, difference: u16) -> u16 {
    !add(!checksum, difference)
}

/// The sum over the pseudo header of a transport over IPv4.
pub fn pseudo_v4(src: [u8; 4], dst: [u8; 4], protocol: u8, len: usize) -> u16 {
    add(
        add(sum(&src), sum(&dst)),
        add(u16::from(protocol), fold(len as u64)),
    )
}

/// The sum over the pseudo header of a transport over IPv6.
pub fn pseudo_v6(src: [u8; 16], dst: [u8; 16], protocol: u8, len: usize) -> u16 {
    add(
        add(sum(&src), sum(&dst)),
        add(u16::from(protocol), fold(len as u64)),
    )
}

/// SCTP's CRC32c of a packet given in parts, with zeros in its checksum field. In the byte order of the
/// field.
pub fn crc32c(parts: &[&[u8]]) -> [u8; 4] {
    let mut crc = !0u32;
    for &byte in parts.iter().copied().flatten() {
        crc = CRC32C[usize::from(crc as u8 ^ byte)] ^ (crc >> 8);
    }
    (!crc).to_le_bytes()
}

/// CRC of each byte value, for the reflected Castagnoli polynomial.
const CRC32C: [u32; 256] = {
    let mut table = [0; 256];
    let mut value = 0;
    while value < 256 {
        let mut crc = value as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 == 1 {
                crc >> 1 ^ 0x82f6_3b78
            } else {
                crc >> 1
            };
            bit += 1;
        }
        table[value] = crc;
        value += 1;
    }
    table
};

#[inline]
const fn fold(mut total: u64) -> u16 {
    total = (total >> 32) + (total & 0xffff_ffff);
    total = (total >> 16) + (total & 0xffff);
    total = (total >> 16) + (total & 0xffff);
    total = (total >> 16) + (total & 0xffff);
    total as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_example_of_rfc_1071() {
        assert_eq!(sum(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]), 0xddf2);
    }

    #[test]
    fn crc32c_has_the_published_check_value() {
        assert_eq!(u32::from_le_bytes(crc32c(&[b"12345", b"6789"])), 0xe306_9283);
    }

    proptest! {
        #[test]
        fn an_updated_checksum_is_that_of_the_new_bytes(
            bytes in proptest::collection::vec(any::<u8>(), 8..60), at in 0..28_usize, new: [u8; 4],
        ) {
            let at = 2 * (at % (bytes.len() / 2 - 1));
            let mut after = bytes.clone();
            after[at..at + 4].copy_from_slice(&new);
            let updated = update(internet(&bytes), difference(&bytes[at..at + 4], &new));
            // Both forms of zero are the same sum.
            prop_assert_eq!(updated % 0xffff, internet(&after) % 0xffff);
        }

        #[test]
        fn the_sum_equals_adding_word_by_word(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let slow = bytes.chunks(2).fold(0, |s, w| {
                add(s, u16::from_be_bytes([w[0], w.get(1).copied().unwrap_or(0)]))
            });
            prop_assert_eq!(sum(&bytes), slow);
            prop_assert_eq!(sum_with(Level::detect(), &bytes), slow);
            prop_assert_eq!(sum_with(Level::Every, &bytes), slow);
            let words: Vec<u32> = bytes.chunks_exact(4).map(|w| u32::from_be_bytes(w.try_into().unwrap())).collect();
            if let Some(words) = words.first_chunk::<5>() {
                prop_assert_eq!(sum_of_words(*words), sum(&bytes[..20]));
            }
        }
    }
}
