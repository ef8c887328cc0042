//! OpenFlow 1.3 and 1.5 as far as inco speaks it: messages to bytes and back, and the session between a controller and
//! a switch. There is no input or output here: whoever has a connection gives what it read to [`Session::receive`] and
//! writes what [`Session::output`] gives.
//!
//! Key types: [`Message`] with [`encode`] and [`decode`], [`Match`], [`Action`], [`Instruction`], [`FlowMod`], and
//! [`Session`]. Both directions of every message are there, since a switch for tests needs the other half.
//!
//! What comes from the other side is hostile: every length is checked, nothing is allocated by a length that was not
//! received, and a message that cannot be understood is an error of that message alone. Actions, instructions and
//! fields that are not known here are kept as bytes, so that rules of others can be told from ours.
//!
//! Sources: OpenFlow Switch Specification 1.3.5 (ONF TS-023) and 1.5.1 (ONF TS-025); bundles in 1.3 by ONF's extension
//! 230; connection tracking by the extensions that Open vSwitch documents in `ovs-actions(7)` and `ovs-fields(7)`.
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

/// A version of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Version {
    /// 1.3, on the wire 4.
    V13,
    /// 1.5, on the wire 6.
    V15,
}

impl Version {
    /// Both, the oldest first.
    pub const ALL: [Version; 2] = [Version::V13, Version::V15];

    /// Its number on the wire.
    pub const fn number(self) -> u8 {
        match self {
            Version::V13 => 4,
            Version::V15 => 6,
        }
    }

    /// The version of that number on the wire.
    pub const fn from_number(number: u8) -> Option<Version> {
        match number {
            4 => Some(Version::V13),
            6 => Some(Version::V15),
            _ => None,
        }
    }
}

/// Ports with a meaning of their own.
pub mod port {
    /// The highest number of a real port.
    pub const MAX: u32 = 0xffff_ff00;
    /// Out of the port that the packet came in by.
    pub const IN_PORT: u32 = 0xffff_fff8;
    /// Through the flow tables, in a packet-out.
    pub const TABLE: u32 = 0xffff_fff9;
    /// To the controller.
    pub const CONTROLLER: u32 = 0xffff_fffd;
    /// The switch's own port.
    pub const LOCAL: u32 = 0xffff_fffe;
    /// None, or any.
    pub const ANY: u32 = 0xffff_ffff;
}

/// The packet is in the message and not in a buffer of the switch.
pub const NO_BUFFER: u32 = 0xffff_ffff;
/// Every table, or every group.
pub const ANY_GROUP: u32 = 0xffff_ffff;
/// Every table, in deletions and requests.
pub const ALL_TABLES: u8 = 0xff;
/// A packet to the controller goes whole.
pub const WHOLE_PACKET: u16 = 0xffff;
