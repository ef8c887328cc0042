//! The scalar twins: what each function of this crate means, in plain Rust.

/// As [`match_bytes`](crate::match_bytes).
#[inline]
pub fn match_bytes(bytes: &[u8; 16], needle: u8) -> u16 {
    let mut mask = 0;
    for (position, &byte) in bytes.iter().enumerate() {
        mask |= u16::from(byte == needle) << position;
    }
    mask
}

/// As [`transposed`](crate::transposed).
#[inline]
pub fn transposed(rows: &[[u32; 8]; 8]) -> [[u32; 8]; 8] {
    let mut columns = [[0; 8]; 8];
    for (j, row) in rows.iter().enumerate() {
        for (column, &word) in columns.iter_mut().zip(row) {
            column[j] = word;
        }
    }
    columns
}

/// As [`prefetch`](crate::prefetch): does nothing.
#[inline]
pub fn prefetch<T>(_place: &T) {}
