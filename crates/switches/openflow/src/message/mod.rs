//! The messages (section 7.3 of the specification) and their codec.

mod decode;
mod encode;

use crate::action::{Action, Instruction};
use crate::field::{FieldKind, Match};
use crate::multipart::{MultipartReply, MultipartRequest, PortDescription};
use crate::port;
use crate::wire::{DecodeError, Result};
pub use decode::decode;
pub use encode::encode;

/// Bytes of a message header: version, type, length, transaction id.
pub const HEADER_BYTES: usize = 8;
/// The hello element with the supported versions (`OFPHET_VERSIONBITMAP`).
const VERSION_BITMAP: u16 = 1;
/// The Open Networking Foundation's experimenter id, used for bundles in 1.3.
const ONF: u32 = 0x4f4e_4600;
const ONF_BUNDLE_CONTROL: u32 = 2300;
const ONF_BUNDLE_ADD: u32 = 2301;

const HELLO: u8 = 0;
const ERROR: u8 = 1;
const ECHO_REQUEST: u8 = 2;
const ECHO_REPLY: u8 = 3;
const EXPERIMENTER: u8 = 4;
const FEATURES_REQUEST: u8 = 5;
const FEATURES_REPLY: u8 = 6;
const SET_CONFIG: u8 = 9;
const PACKET_IN: u8 = 10;
const FLOW_REMOVED: u8 = 11;
const PORT_STATUS: u8 = 12;
const PACKET_OUT: u8 = 13;
const FLOW_MOD: u8 = 14;
const MULTIPART_REQUEST: u8 = 18;
const MULTIPART_REPLY: u8 = 19;
const BARRIER_REQUEST: u8 = 20;
const BARRIER_REPLY: u8 = 21;
const ROLE_REQUEST: u8 = 24;
const ROLE_REPLY: u8 = 25;
const BUNDLE_CONTROL: u8 = 33;
const BUNDLE_ADD: u8 = 34;

/// A message, without its transaction id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// Hello: the wire numbers of the sender's versions. Empty if not listed: then all versions up to that in
    /// the message's header.
    Hello {
        /// Numbers of versions.
        versions: Vec<u8>,
    },
    /// An error report.
    Error(ErrorMessage),
    /// Echo request.
    EchoRequest(Vec<u8>),
    /// Echo reply, with the request's data.
    EchoReply(Vec<u8>),
    /// Features request.
    FeaturesRequest,
    /// Features reply.
    FeaturesReply(Features),
    /// Sets how much of a packet goes to the controller.
    SetConfig {
        /// Fragment handling; 0: normal.
        flags: u16,
        /// Bytes.
        miss_send_bytes: u16,
    },
    /// A packet for the controller.
    PacketIn(PacketIn),
    /// A rule was removed.
    FlowRemoved(FlowRemoved),
    /// A port was added, removed or changed.
    PortStatus {
        /// The change.
        reason: PortReason,
        /// The port.
        port: PortDescription,
    },
    /// A packet from the controller.
    PacketOut(PacketOut),
    /// Add, modify or delete rules.
    FlowMod(FlowMod),
    /// A request whose reply may have several parts.
    MultipartRequest(MultipartRequest),
    /// A part of the reply.
    MultipartReply {
        /// Whether another part follows.
        more: bool,
        /// The part.
        reply: MultipartReply,
    },
    /// Barrier request: reply when all earlier messages are processed.
    BarrierRequest,
    /// Barrier reply.
    BarrierReply,
    /// Requests a role for this controller.
    RoleRequest {
        /// The role.
        role: Role,
        /// A request with an older generation is refused.
        generation: u64,
    },
    /// Role reply.
    RoleReply {
        /// The role.
        role: Role,
        /// Its generation.
        generation: u64,
    },
    /// Opens, closes, commits or discards a bundle.
    BundleControl(BundleControl),
    /// Adds a message to a bundle; it takes effect at the commit.
    BundleAdd {
        /// The bundle.
        bundle: u32,
        /// The flags of the bundle's open message.
        flags: u16,
        /// The transaction id of the contained message; same as the outer one.
        xid: u32,
        /// The message.
        message: Box<Message>,
    },
    /// An unknown message.
    Other {
        /// Its type.
        kind: u8,
        /// The bytes after the header.
        body: Vec<u8>,
    },
}

/// An error report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ErrorMessage {
    /// The error type (`ofp_error_type`).
    pub kind: u16,
    /// The code within that type.
    pub code: u16,
    /// At least the first 64 bytes of the offending message.
    pub data: Vec<u8>,
}

impl ErrorMessage {
    /// Version negotiation failed.
    pub const HELLO_FAILED: u16 = 0;
    /// A malformed request.
    pub const BAD_REQUEST: u16 = 1;
    /// A flow-mod failed.
    pub const FLOW_MOD_FAILED: u16 = 5;
    /// Code of [`ErrorMessage::FLOW_MOD_FAILED`]: the table is full.
    pub const TABLE_FULL: u16 = 1;
    /// A bundle failed, in 1.5. In 1.3 it is an error of the extension.
    pub const BUNDLE_FAILED: u16 = 17;
}

/// A switch's features.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features {
    /// The datapath id: a MAC address and an implementer-defined number.
    pub datapath: u64,
    /// Packets it can buffer; 0 for Open vSwitch.
    pub buffers: u32,
    /// Number of tables.
    pub tables: u8,
    /// 0: the main connection.
    pub auxiliary: u8,
    /// Supported statistics.
    pub capabilities: u32,
}

/// Why a packet was sent to the controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketInReason {
    /// No rule matched.
    NoMatch,
    /// A rule's output action.
    Action,
    /// Another reason, by number.
    Other(u8),
}

impl PacketInReason {
    const fn from_number(number: u8) -> PacketInReason {
        match number {
            0 => PacketInReason::NoMatch,
            1 => PacketInReason::Action,
            other => PacketInReason::Other(other),
        }
    }
    const fn number(self) -> u8 {
        match self {
            PacketInReason::NoMatch => 0,
            PacketInReason::Action => 1,
            PacketInReason::Other(other) => other,
        }
    }
}

/// A packet for the controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PacketIn {
    /// Its full length; `data` may be shorter.
    pub total_bytes: u16,
    /// The reason.
    pub reason: PacketInReason,
    /// The table of the rule that sent it.
    pub table: u8,
    /// The cookie of the rule that sent it.
    pub cookie: u64,
    /// Its ingress port and metadata.
    pub context: Match,
    /// The packet.
    pub data: Vec<u8>,
}

impl PacketIn {
    /// The ingress port.
    pub fn in_port(&self) -> Option<u32> {
        let number = self.context.get(FieldKind::IN_PORT)?.number()?;
        u32::try_from(number).ok()
    }
}

/// A packet from the controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PacketOut {
    /// The ingress port to assume; [`port::CONTROLLER`] if none.
    pub in_port: u32,
    /// The actions to apply.
    pub actions: Vec<Action>,
    /// The packet.
    pub data: Vec<u8>,
}

/// Why a rule was removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowRemovedReason {
    /// Its idle timeout.
    Idle,
    /// Its hard timeout.
    Hard,
    /// It was deleted.
    Deleted,
    /// Another reason, by number: group or meter deletion, eviction.
    Other(u8),
}

impl FlowRemovedReason {
    const fn from_number(number: u8) -> FlowRemovedReason {
        match number {
            0 => FlowRemovedReason::Idle,
            1 => FlowRemovedReason::Hard,
            2 => FlowRemovedReason::Deleted,
            other => FlowRemovedReason::Other(other),
        }
    }
    const fn number(self) -> u8 {
        match self {
            FlowRemovedReason::Idle => 0,
            FlowRemovedReason::Hard => 1,
            FlowRemovedReason::Deleted => 2,
            FlowRemovedReason::Other(other) => other,
        }
    }
}

/// A removed rule with its counters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowRemoved {
    /// Its cookie.
    pub cookie: u64,
    /// Its priority.
    pub priority: u16,
    /// The reason.
    pub reason: FlowRemovedReason,
    /// Its table.
    pub table: u8,
    /// Its age, in nanoseconds.
    pub duration_ns: u64,
    /// Its idle timeout in seconds.
    pub idle_timeout_s: u16,
    /// Its hard timeout in seconds.
    pub hard_timeout_s: u16,
    /// Matched packets.
    pub packets: u64,
    /// Matched bytes.
    pub bytes: u64,
    /// Its match.
    pub matches: Match,
}

/// A change of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortReason {
    /// It is new.
    Added,
    /// It is gone.
    Deleted,
    /// It has changed.
    Modified,
}

/// An operation on rules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FlowCommand {
    /// Add a rule; replaces a rule with equal match and priority, with its counters.
    #[default]
    Add,
    /// Modify the instructions of all rules covered by this match.
    Modify,
    /// Modify the rule with that match and priority.
    ModifyStrict,
    /// Delete all rules covered by this match.
    Delete,
    /// Delete the rule with that match and priority.
    DeleteStrict,
}

impl FlowCommand {
    const ALL: [FlowCommand; 5] = [
        FlowCommand::Add,
        FlowCommand::Modify,
        FlowCommand::ModifyStrict,
        FlowCommand::Delete,
        FlowCommand::DeleteStrict,
    ];
}

/// Flags of a rule, as bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowFlags(pub u16);

impl FlowFlags {
    /// Notify the controller of its removal.
    pub const SEND_REMOVED: FlowFlags = FlowFlags(1);
    /// Refuse it if a rule of equal priority could match the same packet.
    pub const CHECK_OVERLAP: FlowFlags = FlowFlags(1 << 1);
    /// Reset the counters.
    pub const RESET_COUNTS: FlowFlags = FlowFlags(1 << 2);
}

/// Adds, modifies or deletes rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowMod {
    /// The operation.
    pub command: FlowCommand,
    /// The rule's cookie; in deletions, the cookie to match.
    pub cookie: u64,
    /// In modifications and deletions, the cookie bits to match; 0: any cookie.
    pub cookie_mask: u64,
    /// Its table.
    pub table: u8,
    /// The highest matching priority wins.
    pub priority: u16,
    /// Seconds without packets until it expires; 0: never.
    pub idle_timeout_s: u16,
    /// Seconds until it expires; 0: never.
    pub hard_timeout_s: u16,
    /// In deletions, only rules that output to this port; [`port::ANY`].
    pub out_port: u32,
    /// Flags.
    pub flags: FlowFlags,
    /// Rules of lower importance are evicted first (1.5).
    pub importance: u16,
    /// Its match.
    pub matches: Match,
    /// Its instructions. Without any, matched packets are dropped.
    pub instructions: Vec<Instruction>,
}

impl Default for FlowMod {
    fn default() -> Self {
        FlowMod {
            command: FlowCommand::Add,
            cookie: 0,
            cookie_mask: 0,
            table: 0,
            priority: 0,
            idle_timeout_s: 0,
            hard_timeout_s: 0,
            out_port: port::ANY,
            flags: FlowFlags::default(),
            importance: 0,
            matches: Match::default(),
            instructions: Vec::new(),
        }
    }
}

/// A controller's role at a switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Only queries the role.
    NoChange,
    /// The only one with write access.
    Equal,
    /// Read-only.
    Primary,
    /// May only read.
    Secondary,
}

impl Role {
    const ALL: [Role; 4] = [Role::NoChange, Role::Equal, Role::Primary, Role::Secondary];
}

/// A bundle operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BundleStep {
    /// Open.
    Open,
    /// Open reply.
    OpenDone,
    /// Close: no message follows.
    Close,
    /// Close reply.
    CloseDone,
    /// Commit all messages or none.
    Commit,
    /// Commit reply.
    CommitDone,
    /// Discard.
    Discard,
    /// Discard reply.
    DiscardDone,
}

impl BundleStep {
    const ALL: [BundleStep; 8] = [
        BundleStep::Open,
        BundleStep::OpenDone,
        BundleStep::Close,
        BundleStep::CloseDone,
        BundleStep::Commit,
        BundleStep::CommitDone,
        BundleStep::Discard,
        BundleStep::DiscardDone,
    ];
}

/// A bundle control message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BundleControl {
    /// The bundle.
    pub bundle: u32,
    /// The operation.
    pub step: BundleStep,
    /// Bits: atomic (1), ordered (2).
    pub flags: u16,
}

impl BundleControl {
    /// All messages or none.
    pub const ATOMIC: u16 = 1;
    /// In the order of its messages.
    pub const ORDERED: u16 = 2;
}

fn decode_enum<T: Copy>(all: &[T], number: u64, what: &'static str) -> Result<T> {
    usize::try_from(number)
        .ok()
        .and_then(|index| all.get(index))
        .copied()
        .ok_or(DecodeError::Value { what, value: number })
}

fn index_of<T: PartialEq>(all: &[T], one: &T) -> usize {
    all.iter().position(|of| of == one).unwrap_or_default()
}

/// The length declared by the header in these bytes; [`None`] if the header is incomplete.
///
/// # Errors
/// [`DecodeError::Length`] if it is shorter than a header: the stream cannot be resynchronized.
pub fn frame_length(bytes: &[u8]) -> Result<Option<usize>> {
    let Some(header) = bytes.first_chunk::<HEADER_BYTES>() else {
        return Ok(None);
    };
    let length = usize::from(u16::from_be_bytes([header[2], header[3]]));
    if length < HEADER_BYTES {
        return Err(DecodeError::Length {
            what: "a message",
            length,
        });
    }
    Ok(Some(length))
}
