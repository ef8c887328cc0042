//! One line of the index: 15 signatures (0: free slot) in bytes 0–14, byte 15 zero, 15 entry numbers of three
//! bytes in 16–60, and in 61–62 the number of flows whose first bucket this is but which lie in their second
//! one.

use crate::Line;

/// Slots in a bucket.
pub(crate) const PLACES: usize = 15;

const ALL: u16 = (1 << PLACES) - 1;
const ENTRIES_AT: usize = 16;
const OVERFLOW_AT: usize = 61;

#[inline(always)]
fn matches(line: &Line, signature: u8) -> u16 {
    let bytes = line.bytes();
    match bytes.first_chunk() {
        Some(signatures) => simd::match_bytes(signatures, signature) & ALL,
        None => 0,
    }
}

/// A mask of the slots that hold this signature, which is not 0.
#[inline(always)]
pub(crate) fn candidates(line: &Line, signature: u8) -> u16 {
    matches(line, signature)
}

/// A mask of the slots that hold an entry.
#[inline(always)]
pub(crate) fn occupied(line: &Line) -> u16 {
    !matches(line, 0) & ALL
}

/// The lowest free slot.
#[inline(always)]
pub(crate) fn free_place(line: &Line) -> Option<usize> {
    let free = matches(line, 0);
    (free != 0).then_some(free.trailing_zeros() as usize)
}

/// The entry number in a slot below [`PLACES`].
#[inline(always)]
pub(crate) fn entry(line: &Line, place: usize) -> u32 {
    let bytes = line.bytes();
    let at = ENTRIES_AT + 3 * (place & 15);
    // Reads four bytes, the last of which belongs to the next slot. Slot 15 does not exist, and its read
    // would stay within the line.
    match bytes[..].get(at - 1..at + 3).and_then(<[u8]>::first_chunk) {
        Some(bytes) => u32::from_le_bytes(*bytes) >> 8,
        None => 0,
    }
}

#[inline(always)]
pub(crate) fn put(line: &mut Line, place: usize, signature: u8, entry: u32) {
    let bytes = line.bytes_mut();
    let place = if place < PLACES { place } else { 0 };
    bytes[place] = signature;
    let [b0, b1, b2, _] = entry.to_le_bytes();
    let at = ENTRIES_AT + 3 * place;
    bytes[at] = b0;
    bytes[at + 1] = b1;
    bytes[at + 2] = b2;
}

#[inline(always)]
pub(crate) fn clear(line: &mut Line, place: usize) {
    line.bytes_mut()[place & 15] = 0;
}

/// How many flows of this bucket lie in their second bucket. Saturates: lookups then always read a second
/// line, but no flow is lost.
#[inline(always)]
pub(crate) fn overflow(line: &Line) -> u16 {
    let bytes = line.bytes();
    u16::from_le_bytes([bytes[OVERFLOW_AT], bytes[OVERFLOW_AT + 1]])
}

#[inline(always)]
pub(crate) fn overflow_up(line: &mut Line) {
    set_overflow(line, overflow(line).saturating_add(1));
}

#[inline(always)]
pub(crate) fn overflow_down(line: &mut Line) {
    match overflow(line) {
        u16::MAX => {}
        n => set_overflow(line, n.saturating_sub(1)),
    }
}

fn set_overflow(line: &mut Line, n: u16) {
    let [low, high] = n.to_le_bytes();
    let bytes = line.bytes_mut();
    bytes[OVERFLOW_AT] = low;
    bytes[OVERFLOW_AT + 1] = high;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_do_not_overlap() {
        let mut line = Line::ZERO;
        for place in 0..PLACES {
            assert_eq!(free_place(&line), Some(place));
            put(&mut line, place, place as u8 + 1, 0xff_ff00 + place as u32);
        }
        assert_eq!(free_place(&line), None);
        assert_eq!(overflow(&line), 0);
        for _ in 0..300 {
            overflow_up(&mut line);
        }
        assert_eq!(overflow(&line), 300);
        for place in 0..PLACES {
            assert_eq!(candidates(&line, place as u8 + 1), 1 << place);
            assert_eq!(entry(&line, place), 0xff_ff00 + place as u32);
        }
        clear(&mut line, 7);
        assert_eq!(free_place(&line), Some(7));
        assert_eq!(candidates(&line, 8), 0);
        overflow_down(&mut line);
        assert_eq!(overflow(&line), 299);
    }

    #[test]
    fn the_overflow_count_saturates() {
        let mut line = Line::ZERO;
        overflow_down(&mut line);
        assert_eq!(overflow(&line), 0);
        set_overflow(&mut line, u16::MAX - 1);
        overflow_up(&mut line);
        overflow_up(&mut line);
        overflow_down(&mut line);
        assert_eq!(overflow(&line), u16::MAX);
    }
}
