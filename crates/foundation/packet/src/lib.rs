//! Turns frames into flows: Ethernet, VLAN and QinQ, IPv4, IPv6, TCP, UDP, SCTP, ICMP, and fragments of them. It reads
//! bytes that it is given and never touches a port, a clock or a flow table, and never allocates on the packet path.
//!
//! Key types: [`Parsed`] (what a frame is), [`PacketInfo`] (the flow of a packet and what is counted of it),
//! [`Fragment`] and [`FragmentTracker`] (how fragments without ports find their flow). For generators and tests there
//! are [`build`] (frames with right checksums), [`checksum`] and [`capture`] (classic pcap files as byte slices).
//!
//! The life of a frame:
//! 1. [`parse`] says [`Parsed::Flow`], and the packet is steered by its key; or [`Parsed::Other`] or
//!    [`Parsed::Invalid`], and it is passed on or dropped as configured.
//! 2. Where it says [`Parsed::Fragment`], the worker that owns `fragment.info.key` (its addresses and VLAN, not its
//!    ports) gives it to its [`FragmentTracker::offer`].
//! 3. [`Offer::Resolved`] is a packet like any other. After it, [`FragmentTracker::release`] hands out those that
//!    waited for it, in the order of their arrival.
//! 4. [`FragmentTracker::expire`], called once per burst, hands back what waited in vain.
#![forbid(unsafe_code)]

pub mod build;
mod burst;
pub mod capture;
pub mod checksum;
mod columns;
mod fragments;
mod headers;
mod parse;
mod siphash;

pub use burst::{PlainBurst, PlainHeader};
pub use columns::{BURST, Lengths, PacketColumns};
pub use fragments::{
    DATAGRAM_LIFETIME, DATAGRAM_LIMIT, FragmentCounters, FragmentTracker, GAP_LIMIT, Offer, WAITING_LIMIT,
    WAITING_LIMIT_PER_DATAGRAM, WAITING_TIME,
};
pub use headers::{MAX_EXTENSION_HEADERS, MAX_VLAN_TAGS, ethertype};
pub use parse::{Fragment, PacketInfo, Parsed, Plain, TcpFlags, parse, plain};

/// What can be wrong with a capture file or with a frame that is to be built. What is wrong with a received frame is
/// not an error but a [`model::DropReason`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The file does not start as a classic pcap file does.
    #[error("not a pcap file: it starts with {magic:#010x} (pcapng must be converted: `editcap -F pcap`)")]
    NotACapture {
        /// Its first four bytes, as a big-endian number.
        magic: u32,
    },
    /// The file's frames are not Ethernet.
    #[error("the capture's link type is {link_type}, only Ethernet (1) is read")]
    LinkType {
        /// The number in the file's header.
        link_type: u32,
    },
    /// The file ends within a header or a frame.
    #[error("the capture is cut off in the record at byte {offset}")]
    Truncated {
        /// Where the record starts that is not complete.
        offset: usize,
    },
    /// A record announces a frame that is larger than any can be: the file is damaged.
    #[error("the record at byte {offset} announces a frame of {length} bytes")]
    FrameLength {
        /// Where the record starts.
        offset: usize,
        /// The length it announces.
        length: u32,
    },
    /// The buffer is smaller than the frame that is to be written into it.
    #[error("the frame needs {needed} bytes, the buffer has {available}")]
    BufferTooSmall {
        /// Bytes of the frame.
        needed: usize,
        /// Bytes of the buffer.
        available: usize,
    },
    /// A length of the frame does not fit its header field: options not in whole words, or a packet over 65,535 bytes.
    #[error("a length of the frame does not fit its field: {what}")]
    Length {
        /// Which one.
        what: &'static str,
    },
    /// A transport that the network header cannot carry, or addresses of two families.
    #[error("source and destination are not of one family, or the transport is not of it")]
    Family,
    /// Only a whole IP packet with room for at least 8 bytes in each fragment can be cut into fragments.
    #[error("this frame cannot be fragmented to {mtu} bytes")]
    Unfragmentable {
        /// The largest layer-3 length asked for, in bytes.
        mtu: usize,
    },
}
