//! The scalar twins: the reference implementation of each function.
#![allow(
    clippy::needless_range_loop,
    reason = "zipped iterators over columns prevent vectorization"
)]

/// As [`match_bytes`](crate::match_bytes).
#[inline]
pub fn match_bytes(bytes: &[u8; 16], needle: u8) -> u16 {
    let mut mask = 0;
    for (position, &byte) in bytes.iter().enumerate() {
        mask |= u16::from(byte == needle) << position;
    }
    mask
}

/// As [`last_not_above`](crate::last_not_above).
#[inline]
pub fn last_not_above(bytes: &[u8; 16], value: u8) -> usize {
    let mut above = 0;
    for &byte in bytes {
        above += usize::from(byte > value);
    }
    (bytes.len() - above).saturating_sub(1)
}

/// As [`reached`](crate::reached).
#[inline]
pub fn reached(bounds: &[[u16; 8]; 4], values: &[u16; 8]) -> u8 {
    let mut mask = 0;
    for (row, bounds) in bounds.iter().enumerate() {
        let is_reached = bounds.iter().zip(values).all(|(bound, value)| value >= bound);
        mask |= u8::from(is_reached) << row;
    }
    mask
}

/// Four [`Words`](crate::Words) in general-purpose registers.
#[derive(Clone, Copy, Debug)]
pub struct Words([u64; 4]);

impl crate::Words for Words {
    #[inline(always)]
    fn load(words: &[u64; 4]) -> Words {
        Words(*words)
    }
    #[inline(always)]
    fn store(self, words: &mut [u64; 4]) {
        *words = self.0;
    }
    #[inline(always)]
    fn plus(mut self, other: Words) -> Words {
        for i in 0..4 {
            self.0[i] = self.0[i].wrapping_add(other.0[i]);
        }
        self
    }
    #[inline(always)]
    fn and(mut self, other: Words) -> Words {
        for i in 0..4 {
            self.0[i] &= other.0[i];
        }
        self
    }
    #[inline(always)]
    fn or(mut self, other: Words) -> Words {
        for i in 0..4 {
            self.0[i] |= other.0[i];
        }
        self
    }
    #[inline(always)]
    fn xor(mut self, other: Words) -> Words {
        for i in 0..4 {
            self.0[i] ^= other.0[i];
        }
        self
    }
    #[inline(always)]
    fn are_zero(self) -> bool {
        self.0[0] | self.0[1] | self.0[2] | self.0[3] == 0
    }
    #[inline(always)]
    fn columns(rows: &[&[u8; 16]; 8], columns: [&mut [u32; 8]; 4]) {
        for (i, column) in columns.into_iter().enumerate() {
            for j in 0..8 {
                let at = 4 * i;
                column[j] =
                    u32::from_le_bytes([rows[j][at], rows[j][at + 1], rows[j][at + 2], rows[j][at + 3]]);
            }
        }
    }
    #[inline(always)]
    fn rows(columns: [&[u32; 8]; 8], rows: &mut [[u32; 8]; 8]) {
        for (i, row) in rows.iter_mut().enumerate() {
            for j in 0..8 {
                row[j] = columns[j][i];
            }
        }
    }
    #[inline(always)]
    fn bits<const N: usize>(table: &[u32; N], at: &[u32; 8]) -> u8 {
        const { assert!(N.is_power_of_two() && N <= 1 << 27) };
        let mut bits = 0;
        for (i, at) in at.iter().enumerate() {
            let word = table[(at >> 5) as usize & (N - 1)];
            bits |= ((word >> (at & 31) & 1) as u8) << i;
        }
        bits
    }
}

/// As [`prefetch`](crate::prefetch): does nothing.
#[inline]
pub fn prefetch<T>(_place: &T) {}
