//! Messages between two sides, a card and its host, through rings in shared memory that a DMA engine writes. It must
//! never give a message that was not sent, give one twice, or give them in another order.
//!
//! Key types: [`End`] (one side's end: send, flush, receive), [`Limits`] (the size of the rings and of a message),
//! [`Declared`] (latency and bandwidth of the DMA engine, a model), [`Order`] (the order in which it writes).
//!
//! 1. One side makes the memory ([`End::create`]) and gives its descriptor to the other one ([`End::attach`]).
//! 2. [`End::send`] puts a message into the sender's own memory. [`End::flush`] gives all of them to the DMA engine as
//!    one transfer. The engine writes them into the ring of the other side later, in any order of words.
//! 3. [`End::receive`] polls the place where the next message begins. It copies the message, and takes it only if the
//!    checksum over all of it is right. Else the message is not whole yet.
//! 4. After half a ring the receiver says how far it has read, in a message of its own. Until then the sender does not
//!    reuse the places. No other word is shared.
//!
//! # Layout of a message
//! Whole words of 8 bytes, without a gap, around the end of the ring. The engine writes a word at once.
//!
//! | word | bits | meaning |
//! | --- | --- | --- |
//! | 0 | 0..32 | checksum |
//! | 0 | 32..56 | length in bytes |
//! | 0 | 62 | it says how far its sender has read |
//! | 0 | 63 | set |
//! | 1.. | | the message, filled up with zeros |
//!
//! # What the checksum promises
//! It is CRC-32 over length, marks and message. Its first state is the position of the message, in words since the
//! start, combined with a random key of the channel.
//! - A whole message of an earlier lap in the same place is never taken: two positions in the same place of a ring differ in
//!   their low 32 bits, and so do the checksums of the same bytes.
//! - A message of which some words are missing is taken with probability 2^-32 for each time that it is looked at, if what
//!   lies there instead is not related to it. If it differs in no more than 32 bits in a row, it is never taken.
//! - What a client of an actor sends cannot pass for a message while its bytes lie in the ring from an earlier lap:
//!   the client does not know the key, so that each attempt succeeds with probability 2^-32.
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
