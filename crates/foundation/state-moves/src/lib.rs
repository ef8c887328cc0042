//! Moves of flows from one instance to another with the state that their function keeps: the messages between a worker
//! of the switch and a function, and the steps of one move. It must never read a clock, allocate for a message, or trust
//! what an instance says: a container can write any bytes into its ring.
//!
//! Key types: [`Message`] (what a frame says), [`NotMoved`] (why a function gives or takes no state), [`Transfer`] (the
//! steps of one move), [`Input`] and [`Step`] (what it learns, and what is to be done then).
//!
//! 1. The worker holds the packets of the flow, and sends [`Message::Pass`] to each data port of the source. The source
//!    answers by each of its ports, behind all that it has made of earlier packets ([`Message::Passed`]). So nothing of
//!    the flow is under way any more, also where the function drops packets.
//! 2. [`Message::Export`]: the source answers with a copy of the flow's state ([`Message::Exported`]).
//! 3. [`Message::Import`]: the destination takes it over, and acknowledges that ([`Message::Imported`]).
//! 4. The worker pins the flow to the destination, sends it the held packets, and tells the source to drop its copy
//!    ([`Message::Forget`]).
//!
//! Until the acknowledgement the flow is pinned to the source, which has its whole state: whatever ends the move before,
//! the held packets go there, in order. A destination that may have imported meanwhile is told to forget.
//!
//! An instance that translates addresses has more than flows: mappings, some of them without a flow, and external ports.
//! When its flows have moved, it hands its mappings over ([`Message::HandOver`], [`Message::HandedOver`]) to the same
//! destination ([`Message::TakeOver`]), which has its ports then. No packet waits for that: both translate alike.
//! [`Message::Count`] asks the destination whether such mappings are left.
#![forbid(unsafe_code)]

mod message;
mod transfer;

pub use message::{FRAME_BYTES_LIMIT, Message, NotMoved, STATE_BYTES_LIMIT, is_message};
pub use transfer::{Cancelled, End, Goes, HELD_LIMIT, Input, Party, Request, Step, TIME_LIMIT, Transfer};
