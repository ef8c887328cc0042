//! Frames of a network interface, through rings that this process shares with the kernel (`AF_PACKET`, `TPACKET_V2`;
//! the kernel's `Documentation/networking/packet_mmap.rst`). Frames that fit into a slot are received without a system
//! call. One call sends all frames that were put into the ring.
//!
//! Key types: [`PacketSocket`] (an interface's socket), [`Receiver`] and [`Sender`] (its rings), [`Received`] (a frame
//! in its slot), [`Dividing`] (packets that are too long for a link), [`Interface`] (all of that as a data port of a
//! program).
//!
//! The next process can take a socket over, with what is in its rings: [`PacketSocket::keep`], [`PacketSocket::resume`].
//!
//! A socket sees the frames that arrive at the interface, and not those that this machine sends by it. The kernel's own
//! network sees each frame as well: it ignores those whose destination is another MAC address than the interface's.
//!
//! Senders on this machine leave work to the card, and no card is on the way. [`Received::offload`] says what is left:
//! a checksum to complete, or a packet of up to 64 KiB to divide. Such a packet is longer than a slot, and is fetched
//! with a system call. A frame that nobody has room for is counted and left out. [`Received::copy_to`] and [`Dividing`]
//! do what is left, so that their callers see whole frames.

// UNSAFETY: the rings are memory that the kernel writes too, and rustix has no options of packet sockets.

mod interface;
mod positions;
mod ring;
mod socket;
mod whole;

use std::io;

use thiserror::Error;

pub use interface::{Interface, InterfaceError};
pub use ring::{Received, Receiver, SendError, Sender, Tag, Taken};
pub use socket::{Config, Kept, Monitor, PacketSocket, Statistics, mtu};
pub use whole::Dividing;

/// Why there is no packet socket.
#[derive(Debug, Error)]
#[error("interface {interface:?}: {what}: {source}")]
pub struct Error {
    /// The interface's name.
    pub interface: String,
    /// What was tried.
    pub what: &'static str,
    /// The kernel's answer.
    #[source]
    pub source: io::Error,
}
