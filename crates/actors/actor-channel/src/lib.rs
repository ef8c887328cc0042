//! Messages between two sides, a card and its host, through rings in shared memory that a DMA engine writes. It must
//! never give a message that was not sent, give one twice, or give them in another order.
//!
//! Key types: [`End`] (one side's end: send, flush, receive), [`Limits`] (the size of the rings and of a message),
//! [`Declared`] (latency and bandwidth of the DMA engine, a model), [`Order`] (the order in which it writes).
//!
//! 1. One side makes the memory ([`End::create`]) and gives its descriptor to the other one ([`End::attach`]).
//! 2. [`End::send`] puts a message into the sender's own memory. [`End::flush`] gives all such messages to the DMA
//!    engine as one transfer. The engine writes them into the ring of the other side later, its words in any order.
//! 3. [`End::receive`] polls the place where the next message begins. It copies the message, and accepts it only if
//!    its checksum is correct. Otherwise the message is not complete yet.
//! 4. After half a ring the receiver tells the sender, in a message of its own, how far it has read. Until then the
//!    sender does not reuse the places. No other word is shared.
//!
//! # Layout of a message
//! A message takes whole words of 8 bytes, also around the end of the ring, without a gap. The engine writes a word
//! at once.
//!
//! | word | bits | meaning |
//! | --- | --- | --- |
//! | 0 | 0..32 | checksum |
//! | 0 | 32..56 | length in bytes |
//! | 0 | 62 | set if the message tells how far its sender has read |
//! | 0 | 63 | always set |
//! | 1.. | | the message, padded with zeros |
//!
//! # What the checksum promises
//! It is CRC-32 over length, marks and message. Its initial value is the position of the message, in words since the
//! start, combined with a random key of the channel.
//! - A whole message of an earlier lap in the same place is never accepted: two positions in the same place of a ring
//!   differ in their low 32 bits, and so do the checksums of the same bytes.
//! - A message of which some words are missing is accepted with probability 2^-32 at each check, if the bytes in
//!   their place are not related to it. If the two differ within at most 32 consecutive bits, it is never accepted.
//! - Bytes of a client that lie in the ring from an earlier lap pass for a message with probability 2^-32, because
//!   the client does not know the key.
#![forbid(unsafe_code)]

mod checksum;
mod declared;
mod dma;
mod end;
mod layout;
mod receiver;
mod sender;

pub use declared::Declared;
pub use dma::Order;
pub use end::{Counters, End};
pub use layout::{AttachError, Limits, Side};
pub use receiver::ReceiveError;
pub use sender::SendError;
