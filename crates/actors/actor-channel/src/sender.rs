//! The half of an end that sends.

use model::Nanos;
use zerocopy::IntoBytes;

use crate::checksum::{Head, checksum};
use crate::dma::{Dma, Order};
use crate::layout::Ring;

/// Words that only messages about what was read may use: two of them, so that two senders that wait for each other go on.
/// A receiver says at most twice how far it has read before the other side must have read the first of them.
pub(crate) const RESERVED_WORDS: u64 = 4;

/// Why a message was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// The receiver has not said that it has read enough; later there is room again.
    #[error("the ring is full")]
    Full,
    /// Longer than the channel's limit.
    #[error("a message of {bytes} bytes; at most {limit}")]
    TooLong {
        /// Its bytes.
        bytes: usize,
        /// The limit.
        limit: u32,
    },
}

#[derive(Debug)]
pub(crate) struct Sender {
    key: u32,
    message_bytes: u32,
    mask: usize,
    dma: Dma,
    /// The position of the next message.
    head: u64,
    /// The receiver has read all before this position.
    credit: u64,
}

impl Sender {
    pub(crate) fn new(ring: Ring, key: u32, message_bytes: u32, order: Order) -> Sender {
        Sender {
            key,
            message_bytes,
            mask: ring.len() as usize - 1,
            dma: Dma::new(ring, order),
            head: 0,
            credit: 0,
        }
    }

    /// Puts a message of these parts behind the others.
    #[inline]
    pub(crate) fn send(&mut self, parts: &[&[u8]]) -> Result<(), SendError> {
        let bytes: usize = parts.iter().map(|part| part.len()).sum();
        if bytes > self.message_bytes as usize {
            return Err(SendError::TooLong {
                bytes,
                limit: self.message_bytes,
            });
        }
        let head = Head {
            length: bytes as u32,
            is_credit: false,
        };
        self.put(head, parts, RESERVED_WORDS)
    }

    /// Says how far this side has read.
    pub(crate) fn send_credit(&mut self, position: u64) -> Result<(), SendError> {
        let head = Head {
            length: 8,
            is_credit: true,
        };
        self.put(head, &[&position.to_le_bytes()], 0)
    }

    #[inline]
    fn put(&mut self, head: Head, parts: &[&[u8]], reserved: u64) -> Result<(), SendError> {
        // A place is free once it was read, and once the engine has no word left to write there: it could write that
        // word over a later message.
        let free_from = self.credit.min(self.dma.completed());
        let used = self.head - free_from;
        if used + head.words() + reserved > self.mask as u64 + 1 {
            return Err(SendError::Full);
        }
        let last = self.index(self.head + head.words() - 1);
        self.dma.own[last] = 0;
        let first = self.index(self.head);
        self.dma.own[first] = u64::from(head.bits()) << 32;
        let own = self.dma.own.as_mut_bytes();
        let limit = own.len();
        let mut at = (first * 8 + 8) & (limit - 1);
        for part in parts {
            let until_end = part.len().min(limit - at);
            own[at..at + until_end].copy_from_slice(&part[..until_end]);
            own[..part.len() - until_end].copy_from_slice(&part[until_end..]);
            at = (at + part.len()) & (limit - 1);
        }
        let begin = first * 8 + 4;
        let end = begin + 4 + head.length as usize;
        let split = end.min(limit);
        let sum = checksum(self.key, self.head, [&own[begin..split], &own[..end - split]]);
        self.dma.own[first] |= u64::from(sum);
        self.head += head.words();
        Ok(())
    }

    fn index(&self, position: u64) -> usize {
        position as usize & self.mask
    }

    /// Gives the engine what was put, as one transfer, and has it write what is due.
    #[inline]
    pub(crate) fn flush(&mut self, now: Nanos) {
        self.dma.post(self.head, now);
        self.dma.advance(now);
    }

    /// Whether all that was sent is written.
    pub(crate) fn is_written(&self) -> bool {
        self.dma.completed() == self.head
    }

    /// Words that were sent and that the receiver has not reported as read.
    pub(crate) fn words_under_way(&self) -> u64 {
        self.head - self.credit
    }

    /// The receiver has read all before this position. Gives whether that can be: it does not go back, and what it read
    /// was sent.
    pub(crate) fn credit(&mut self, position: u64) -> bool {
        let is_possible = (self.credit..=self.head).contains(&position);
        if is_possible {
            self.credit = position;
        }
        is_possible
    }
}
