//! The parts of OpenFlow 1.3 and 1.5 that inco uses: a message codec, and the session between a controller
//! and a switch. No I/O: the owner of a connection passes received bytes to [`Session::receive`] and writes
//! the bytes of [`Session::output`].
//!
//! Key types: [`Message`] with [`encode`] and [`decode`], [`Match`], [`Action`], [`Instruction`],
//! [`FlowMod`], and [`Session`]. Every message can be encoded and decoded, because test switches need the
//! other half.
//!
//! The peer is untrusted: every length is checked, no allocation depends on a length that was not received,
//! and an invalid message is an error of that message only. Unknown actions, instructions and fields are kept
//! as bytes, so that foreign rules can be told from ours.
//!
//! Sources: OpenFlow Switch Specification 1.3.5 (ONF TS-023) and 1.5.1 (ONF TS-025); bundles in 1.3 by ONF's
//! extension 230; connection tracking by the extensions that Open vSwitch documents in `ovs-actions(7)` and
//! `ovs-fields(7)`.
#![forbid(unsafe_code)]

mod action;
mod field;
mod message;
mod multipart;
mod session;
mod stats;
mod wire;

pub use action::{Action, ConnectionTracking, Instruction};
pub use field::{Field, FieldKind, Match};
pub use message::{
    BundleControl, BundleStep, ErrorMessage, Features, FlowCommand, FlowFlags, FlowMod, FlowRemoved,
    FlowRemovedReason, HEADER_BYTES, Message, PacketIn, PacketInReason, PacketOut, PortReason, Role, decode,
    encode, frame_length,
};
pub use multipart::{
    Aggregate, FlowFilter, FlowStats, MultipartReply, MultipartRequest, PortDescription, PortStats,
    SwitchDescription, TableStats,
};
pub use session::{Event, Limits, Session, SessionError, Side};
pub use wire::DecodeError;

/// A protocol version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Version {
    /// 1.3; wire number 4.
    V13,
    /// 1.5; wire number 6.
    V15,
}

impl Version {
    /// Both, oldest first.
    pub const ALL: [Version; 2] = [Version::V13, Version::V15];

    /// Its wire number.
    pub const fn number(self) -> u8 {
        match self {
            Version::V13 => 4,
            Version::V15 => 6,
        }
    }

    /// The version with that wire number.
    pub const fn from_number(number: u8) -> Option<Version> {
        match number {
            4 => Some(Version::V13),
            6 => Some(Version::V15),
            _ => None,
        }
    }
}

/// Reserved ports.
pub mod port {
    /// The highest physical port number.
    pub const MAX: u32 = 0xffff_ff00;
    /// The packet's ingress port.
    pub const IN_PORT: u32 = 0xffff_fff8;
    /// Submit to the flow tables, in a packet-out.
    pub const TABLE: u32 = 0xffff_fff9;
    /// To the controller.
    pub const CONTROLLER: u32 = 0xffff_fffd;
    /// The switch's own port.
    pub const LOCAL: u32 = 0xffff_fffe;
    /// None, or any.
    pub const ANY: u32 = 0xffff_ffff;
}

/// The packet is in the message, not in a switch buffer.
pub const NO_BUFFER: u32 = 0xffff_ffff;
/// Any group.
pub const ANY_GROUP: u32 = 0xffff_ffff;
/// Every table, in deletions and requests.
pub const ALL_TABLES: u8 = 0xff;
/// Send the whole packet to the controller.
pub const WHOLE_PACKET: u16 = 0xffff;
