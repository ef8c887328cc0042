//! Parses frames into flows: Ethernet, VLAN and QinQ, IPv4, IPv6, TCP, UDP, SCTP, ICMP, and fragments of
//! them. Works on borrowed bytes; never touches a port, a clock or a flow table, and never allocates on the
//! packet path.
//!
//! Key types: [`Parsed`] (the kind of a frame), [`PacketInfo`] (its flow and lengths), [`Fragment`] and
//! [`FragmentTracker`] (finds the flow of fragments without ports), [`parse_content`] (the flow of what a packet
//! carries). For generators and tests: [`build`]
//! (frames with valid checksums), [`checksum`] and [`capture`] (classic pcap files as byte slices). For ports towards
//! the kernel: [`offload`] (checksums and divisions that senders leave to cards), [`answer()`] (ARP, neighbours, ping), [`icmp_error`],
//! [`Translation`] (addresses and ports that stand for others), [`Rewrite`] (the endpoints that a packet gets), [`vxlan`] (tunnels
//! between machines).
//!
//! The life of a frame:
//! 1. [`parse`] returns [`Parsed::Flow`] for a packet that is forwarded by its key, or [`Parsed::Other`] or
//!    [`Parsed::Invalid`] for one that is passed on or dropped as configured.
//! 2. For [`Parsed::Fragment`], the worker that owns `fragment.info.key` (addresses and VLAN, not ports)
//!    calls its [`FragmentTracker::offer`].
//! 3. [`Offer::Resolved`] is a packet like any other. [`FragmentTracker::release`] then returns the fragments
//!    that waited for it, in order of arrival.
//! 4. [`FragmentTracker::expire`], called once per burst, returns fragments that have waited too long.
#![forbid(unsafe_code)]

mod answer;
pub mod build;
mod burst;
pub mod capture;
pub mod checksum;
mod columns;
mod content;
mod error;
mod fragments;
mod headers;
pub mod offload;
mod parse;
mod rewrite;
mod siphash;
mod translate;
pub mod vxlan;

pub use answer::{answer, is_discovery};
pub use burst::{HeaderBurst, HeaderBytes};
pub use columns::{BURST, Lengths, PacketColumns};
pub use content::{as_association, association_key, association_of, header_ends, parse_content};
pub use error::{ICMP_ERROR_LIMIT, IcmpError, icmp_error, may_be_answered, too_big};
pub use fragments::{
    DATAGRAM_LIFETIME, DATAGRAM_LIMIT, FragmentCounters, FragmentTracker, GAP_LIMIT, Offer, WAITING_LIMIT,
    WAITING_LIMIT_PER_DATAGRAM, WAITING_TIME,
};
pub use headers::{MAX_EXTENSION_HEADERS, MAX_VLAN_TAGS, ethertype};
pub use parse::{
    FastPacket, FastPacketV6, Fragment, PacketInfo, Parsed, TcpFlags, parse, parse_fast, parse_fast_v6,
};

pub use rewrite::{Part, Rewrite};
pub use translate::{Translation, Way};

/// What is wrong with a capture file or with a frame to be built. A bad received frame is not an error but a
/// [`model::DropReason`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The file does not start with a classic pcap header.
    #[error("not a pcap file: it starts with {magic:#010x} (pcapng must be converted: `editcap -F pcap`)")]
    NotACapture {
        /// Its first four bytes, as a big-endian number.
        magic: u32,
    },
    /// The file's frames are not Ethernet.
    #[error("the capture's link type is {link_type}; only Ethernet (1) is supported")]
    LinkType {
        /// The number in the file's header.
        link_type: u32,
    },
    /// The file ends within a header or a frame.
    #[error("the capture is truncated in the record at byte {offset}")]
    Truncated {
        /// Start of the incomplete record.
        offset: usize,
    },
    /// A record declares a frame longer than any can be: the file is damaged.
    #[error("the record at byte {offset} declares a frame of {length} bytes")]
    FrameLength {
        /// Where the record starts.
        offset: usize,
        /// The declared length.
        length: u32,
    },
    /// The buffer is too small for the frame.
    #[error("the frame needs {needed} bytes, the buffer has {available}")]
    BufferTooSmall {
        /// Bytes of the frame.
        needed: usize,
        /// Bytes of the buffer.
        available: usize,
    },
    /// A length does not fit its header field: options not in whole words, or a packet over 65,535 bytes.
    #[error("{what} does not fit its header field")]
    Length {
        /// The field.
        what: &'static str,
    },
    /// Addresses of two families, or a transport that the network header cannot carry.
    #[error("source, destination and transport are not of one address family")]
    Family,
    /// Only an unfragmented IP packet with room for at least 8 bytes per fragment can be fragmented.
    #[error("this frame cannot be fragmented to {mtu} bytes")]
    Unfragmentable {
        /// The largest layer-3 length, in bytes.
        mtu: usize,
    },
}
