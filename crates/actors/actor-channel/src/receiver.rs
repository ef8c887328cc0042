//! The half of an end that receives.

use std::sync::atomic::Ordering;

use zerocopy::IntoBytes;

use crate::checksum::{Head, checksum};
use crate::layout::Ring;

/// Why a channel cannot be used any longer: the other side sent, with a right checksum, what it never may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReceiveError {
    /// It says to have read what was not sent, or less than before.
    #[error("the other side says that it has read up to word {0}, which cannot be")]
    Credit(u64),
    /// The message that says how far it has read has another length.
    #[error("a message of {0} bytes that says how far the other side has read; it has 8")]
    CreditBytes(u32),
}

/// A message that is whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// Its bytes.
    Message(usize),
    /// The other side has read all before this position.
    Credit(u64),
}

#[derive(Debug)]
pub(crate) struct Receiver {
    ring: Ring,
    key: u32,
    message_bytes: u32,
    /// The position of the next message.
    position: u64,
    /// The position that the other side was told last.
    told: u64,
    /// A copy of the message: what is checked is what is given.
    copy: Vec<u64>,
    /// Times that a message was there in part.
    pub(crate) not_whole: u64,
    #[cfg(test)]
    pub(crate) weakness: Weakness,
}

/// A receiver with a fault, to see that a test finds it.
#[cfg(test)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Weakness {
    #[default]
    None,
    /// It does not compare the checksum.
    Trusts,
    /// It takes a message of the lap before, too.
    ForgetsTheLap,
}

impl Receiver {
    pub(crate) fn new(ring: Ring, key: u32, message_bytes: u32) -> Receiver {
        let words = 1 + (message_bytes.max(8) as usize).div_ceil(8);
        Receiver {
            ring,
            key,
            message_bytes,
            position: 0,
            told: 0,
            copy: vec![0; words],
            not_whole: 0,
            #[cfg(test)]
            weakness: Weakness::None,
        }
    }

    /// Copies the next message if it is whole.
    #[inline]
    pub(crate) fn take(&mut self) -> Result<Option<Taken>, ReceiveError> {
        let words = self.ring.words();
        let first = self.ring.index(self.position);
        let word = words[first].load(Ordering::Relaxed);
        let Some((head, sum)) = Head::of(word) else {
            return Ok(None);
        };
        // Until its checksum was compared, the length is whatever lies there.
        if head.length > self.message_bytes.max(8) {
            self.not_whole += 1;
            return Ok(None);
        }
        let count = head.words() as usize;
        self.copy[0] = word;
        let until_end = count.min(words.len() - first);
        let loads = words[first..first + until_end]
            .iter()
            .chain(&words[..count - until_end]);
        for (copy, word) in self.copy[..count].iter_mut().zip(loads).skip(1) {
            *copy = word.load(Ordering::Relaxed);
        }
        let bytes = &self.copy[..count].as_bytes()[4..8 + head.length as usize];
        if checksum(self.key, self.position, [bytes, &[]]) != sum && !self.is_weak(bytes, sum) {
            self.not_whole += 1;
            return Ok(None);
        }
        let taken = if head.is_credit {
            if head.length != 8 {
                return Err(ReceiveError::CreditBytes(head.length));
            }
            Taken::Credit(self.copy[1])
        } else {
            Taken::Message(head.length as usize)
        };
        self.position += head.words();
        Ok(Some(taken))
    }

    #[cfg(not(test))]
    #[inline(always)]
    fn is_weak(&self, _bytes: &[u8], _sum: u32) -> bool {
        false
    }

    #[cfg(test)]
    fn is_weak(&self, bytes: &[u8], sum: u32) -> bool {
        let lap_before = self.position.wrapping_sub(self.ring.len());
        match self.weakness {
            Weakness::None => false,
            Weakness::Trusts => true,
            Weakness::ForgetsTheLap => checksum(self.key, lap_before, [bytes, &[]]) == sum,
        }
    }

    /// The bytes of the message that was taken last.
    #[inline(always)]
    pub(crate) fn message(&self, bytes: usize) -> &[u8] {
        &self.copy.as_bytes()[8..8 + bytes]
    }

    /// The position that the other side should be told: half a ring was read since.
    #[inline(always)]
    pub(crate) fn to_tell(&self) -> Option<u64> {
        (self.position - self.told >= self.ring.len() / 2).then_some(self.position)
    }

    /// The other side was told.
    pub(crate) fn told(&mut self, position: u64) {
        self.told = position;
    }
}
