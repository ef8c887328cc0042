//! The first word of a message, and the checksum over all of it.

use crc32fast::Hasher;

/// A message is there; memory that nobody has written is 0.
const PRESENT: u32 = 1 << 31;
/// The message says how far its sender has read.
const CREDIT: u32 = 1 << 30;
/// Bits of the length.
const LENGTH: u32 = (1 << 24) - 1;

/// What the first word says beside the checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    /// Bytes of the message.
    pub(crate) length: u32,
    pub(crate) is_credit: bool,
}

/// The longest message that the head can say, in bytes.
pub(crate) const LONGEST: u32 = LENGTH;

impl Head {
    /// The upper half of the word.
    pub(crate) fn bits(self) -> u32 {
        PRESENT | if self.is_credit { CREDIT } else { 0 } | (self.length & LENGTH)
    }

    /// What a word says, and its checksum; [`None`] if no message can begin with it.
    pub(crate) fn of(word: u64) -> Option<(Head, u32)> {
        let bits = (word >> 32) as u32;
        let head = Head {
            length: bits & LENGTH,
            is_credit: bits & CREDIT != 0,
        };
        (head.bits() == bits).then_some((head, word as u32))
    }

    /// Words of the message with its head.
    pub(crate) fn words(self) -> u64 {
        1 + u64::from(self.length).div_ceil(8)
    }
}

/// The checksum of a message at a position, in words since the start. `parts`: its bytes with the upper half of the
/// first word before them.
#[inline]
pub(crate) fn checksum(key: u32, position: u64, parts: [&[u8]; 2]) -> u32 {
    // The first state is a bijection of the position's low half. A ring is shorter than that, so what lies in the same
    // place from the lap before has another one.
    let mut hasher = Hasher::new_with_initial(key ^ position as u32);
    for part in parts {
        hasher.update(part);
    }
    hasher.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_nobody_wrote_is_no_message() {
        assert_eq!(Head::of(0), None);
    }

    #[test]
    fn a_head_is_read_as_written() {
        for head in [
            Head {
                length: 0,
                is_credit: false,
            },
            Head {
                length: LONGEST,
                is_credit: true,
            },
        ] {
            let word = u64::from(head.bits()) << 32 | 7;
            assert_eq!(Head::of(word), Some((head, 7)));
            assert_eq!(Head::of(word | 1 << 60), None, "bits without a meaning");
        }
    }

    #[test]
    fn the_same_bytes_in_another_lap_have_another_checksum() {
        let bytes = [0x5a; 64];
        for position in 0..1_000 {
            for ring in [64, 4096, 1 << 31] {
                assert_ne!(
                    checksum(1, position, [&bytes, &[]]),
                    checksum(1, position + ring, [&bytes, &[]])
                );
            }
        }
    }
}
