//! One side's end of a channel.

use std::os::fd::{BorrowedFd, OwnedFd};

use model::Nanos;

use crate::dma::Order;
use crate::layout::{AttachError, Limits, Parts, Side};
use crate::receiver::{ReceiveError, Receiver, Taken};
use crate::sender::{SendError, Sender};

/// What an end has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Messages sent.
    pub sent: u64,
    /// Their bytes.
    pub sent_bytes: u64,
    /// Messages received.
    pub received: u64,
    /// Their bytes.
    pub received_bytes: u64,
    /// Messages that found the ring full.
    pub full: u64,
    /// Times that this side said how far it has read.
    pub told: u64,
    /// Polls that found a message in part, or the bytes of an earlier one.
    pub not_whole: u64,
}

/// One side's end of a channel. One thread uses it.
#[derive(Debug)]
pub struct End {
    sender: Sender,
    receiver: Receiver,
    limits: Limits,
    counters: Counters,
}

impl End {
    /// Makes the memory of a channel, and the end of `side`. `key` must be random, and nobody but the two ends may know
    /// it. `order`: how the DMA engine writes what this end sends.
    ///
    /// # Errors
    /// [`AttachError`], for limits that cannot be, and if there is no memory.
    pub fn create(limits: Limits, side: Side, order: Order, key: u32) -> Result<(OwnedFd, End), AttachError> {
        let (file, parts) = Parts::create(limits, key)?;
        Ok((file, End::new(&parts, side, order)))
    }

    /// The other end. A channel has one end for each side, and each is made once: after a failure the sides make a new
    /// channel.
    ///
    /// # Errors
    /// [`AttachError`], if the memory is no channel.
    pub fn attach(file: BorrowedFd<'_>, side: Side, order: Order) -> Result<End, AttachError> {
        Ok(End::new(&Parts::attach(file)?, side, order))
    }

    fn new(parts: &Parts, side: Side, order: Order) -> End {
        let (out, back) = match side {
            Side::Card => (&parts.from_card, &parts.from_host),
            Side::Host => (&parts.from_host, &parts.from_card),
        };
        let limit = parts.limits.message_bytes;
        End {
            sender: Sender::new(out.clone(), parts.key, limit, order),
            receiver: Receiver::new(back.clone(), parts.key, limit),
            limits: parts.limits,
            counters: Counters::default(),
        }
    }

    /// The channel's limits.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// What it has done.
    pub fn counters(&self) -> Counters {
        Counters {
            not_whole: self.receiver.not_whole,
            ..self.counters
        }
    }

    /// Puts a message of these parts, one behind the other, into the next transfer.
    ///
    /// # Errors
    /// [`SendError::Full`], and then nothing was sent; [`SendError::TooLong`].
    #[inline]
    pub fn send(&mut self, parts: &[&[u8]]) -> Result<(), SendError> {
        match self.sender.send(parts) {
            Ok(()) => {
                self.counters.sent += 1;
                self.counters.sent_bytes += parts.iter().map(|part| part.len() as u64).sum::<u64>();
                Ok(())
            }
            Err(error) => {
                self.counters.full += u64::from(error == SendError::Full);
                Err(error)
            }
        }
    }

    /// Gives what was put since to the DMA engine, as one transfer, and has it write what is due. To be called again
    /// and again: without it nothing gets to the other side.
    #[inline]
    pub fn flush(&mut self, now: Nanos) {
        self.tell();
        self.sender.flush(now);
    }

    /// The next message, if it is whole. It is valid until the next call.
    ///
    /// # Errors
    /// [`ReceiveError`]; the channel cannot be used any longer.
    #[inline]
    pub fn receive(&mut self) -> Result<Option<&[u8]>, ReceiveError> {
        loop {
            let taken = self.receiver.take()?;
            self.tell();
            match taken {
                None => return Ok(None),
                Some(Taken::Credit(position)) => {
                    if !self.sender.credit(position) {
                        return Err(ReceiveError::Credit(position));
                    }
                }
                Some(Taken::Message(bytes)) => {
                    self.counters.received += 1;
                    self.counters.received_bytes += bytes as u64;
                    return Ok(Some(self.receiver.message(bytes)));
                }
            }
        }
    }

    /// Says how far this side has read, if it is half a ring. Where the ring has no room it says so later.
    #[inline(always)]
    fn tell(&mut self) {
        if let Some(position) = self.receiver.to_tell()
            && self.sender.send_credit(position).is_ok()
        {
            self.receiver.told(position);
            self.counters.told += 1;
        }
    }

    /// Whether all that was sent is in the other side's ring.
    pub fn is_written(&self) -> bool {
        self.sender.is_written()
    }

    /// Bytes of the ring that the other side has not reported as read.
    pub fn bytes_under_way(&self) -> u64 {
        self.sender.words_under_way() * 8
    }
}

#[cfg(test)]
mod tests;
