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

/// As [`prefetch`](crate::prefetch): does nothing.
#[inline]
pub fn prefetch<T>(_place: &T) {}
