//! The messages (section 7.3 of the specification) and their codec.

use crate::action::{Action, Instruction};
use crate::field::{Field, FieldKind, Match};
use crate::multipart::{MultipartReply, MultipartRequest, PortDescription};
use crate::stats::{Counted, duration, put_duration};
use crate::wire::{DecodeError, Reader, Result, Write};
use crate::{ANY_GROUP, NO_BUFFER, Version, port};

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

/// Encodes a message and appends it to `out`.
///
/// # Errors
/// [`DecodeError::Length`] if it exceeds 65,535 bytes; nothing is appended then.
pub fn encode(version: Version, xid: u32, message: &Message, out: &mut Vec<u8>) -> Result<()> {
    let start = out.len();
    out.put_u8(version.number());
    out.put_u8(0);
    out.put_u16(0);
    out.put_u32(xid);
    let kind = body(version, message, out)?;
    let length = out.len() - start;
    if length > usize::from(u16::MAX) {
        out.truncate(start);
        return Err(DecodeError::Length {
            what: "a message",
            length,
        });
    }
    if let Some(place) = out.get_mut(start + 1) {
        *place = kind;
    }
    out.set_length(start, 2);
    Ok(())
}

/// Writes the body and returns the message's type.
fn body(version: Version, message: &Message, out: &mut Vec<u8>) -> Result<u8> {
    Ok(match message {
        Message::Hello { versions } => {
            hello(versions, out);
            HELLO
        }
        Message::Error(error) => {
            out.put_u16(error.kind);
            out.put_u16(error.code);
            out.put(&error.data);
            ERROR
        }
        Message::EchoRequest(data) => {
            out.put(data);
            ECHO_REQUEST
        }
        Message::EchoReply(data) => {
            out.put(data);
            ECHO_REPLY
        }
        Message::FeaturesRequest => FEATURES_REQUEST,
        Message::FeaturesReply(features) => {
            out.put_u64(features.datapath);
            out.put_u32(features.buffers);
            out.put_u8(features.tables);
            out.put_u8(features.auxiliary);
            out.pad(2);
            out.put_u32(features.capabilities);
            out.pad(4);
            FEATURES_REPLY
        }
        Message::SetConfig {
            flags,
            miss_send_bytes,
        } => {
            out.put_u16(*flags);
            out.put_u16(*miss_send_bytes);
            SET_CONFIG
        }
        Message::PacketIn(packet) => {
            out.put_u32(NO_BUFFER);
            out.put_u16(packet.total_bytes);
            out.put_u8(packet.reason.number());
            out.put_u8(packet.table);
            out.put_u64(packet.cookie);
            packet.context.encode(out);
            out.pad(2);
            out.put(&packet.data);
            PACKET_IN
        }
        Message::FlowRemoved(removed) => {
            flow_removed(version, removed, out);
            FLOW_REMOVED
        }
        Message::PortStatus { reason, port } => {
            out.put_u8(*reason as u8);
            out.pad(7);
            port.encode(version, out);
            PORT_STATUS
        }
        Message::PacketOut(packet) => {
            packet_out(version, packet, out);
            PACKET_OUT
        }
        Message::FlowMod(flow) => {
            flow_mod(flow, out);
            FLOW_MOD
        }
        Message::MultipartRequest(request) => {
            request.encode(version, out);
            MULTIPART_REQUEST
        }
        Message::MultipartReply { more, reply } => {
            reply.encode(version, *more, out);
            MULTIPART_REPLY
        }
        Message::BarrierRequest => BARRIER_REQUEST,
        Message::BarrierReply => BARRIER_REPLY,
        Message::RoleRequest { role, generation } => {
            put_role(*role, *generation, out);
            ROLE_REQUEST
        }
        Message::RoleReply { role, generation } => {
            put_role(*role, *generation, out);
            ROLE_REPLY
        }
        Message::BundleControl(control) => {
            let kind = bundle_head(version, ONF_BUNDLE_CONTROL, BUNDLE_CONTROL, out);
            out.put_u32(control.bundle);
            out.put_u16(index_of(&BundleStep::ALL, &control.step) as u16);
            out.put_u16(control.flags);
            kind
        }
        Message::BundleAdd {
            bundle,
            flags,
            xid,
            message,
        } => {
            let kind = bundle_head(version, ONF_BUNDLE_ADD, BUNDLE_ADD, out);
            out.put_u32(*bundle);
            out.pad(2);
            out.put_u16(*flags);
            encode(version, *xid, message, out)?;
            kind
        }
        Message::Other { kind, body } => {
            out.put(body);
            *kind
        }
    })
}

fn hello(versions: &[u8], out: &mut Vec<u8>) {
    if versions.is_empty() {
        return;
    }
    let start = out.len();
    let bits = versions.iter().fold(0_u32, |bits, version| {
        bits | 1_u32.unbounded_shl(u32::from(*version))
    });
    out.put_u16(VERSION_BITMAP);
    out.put_u16(0);
    out.put_u32(bits);
    out.set_length(start, 2);
}

fn flow_removed(version: Version, removed: &FlowRemoved, out: &mut Vec<u8>) {
    match version {
        Version::V13 => {
            out.put_u64(removed.cookie);
            out.put_u16(removed.priority);
            out.put_u8(removed.reason.number());
            out.put_u8(removed.table);
            put_duration(out, removed.duration_ns);
            out.put_u16(removed.idle_timeout_s);
            out.put_u16(removed.hard_timeout_s);
            out.put_u64(removed.packets);
            out.put_u64(removed.bytes);
            removed.matches.encode(out);
        }
        Version::V15 => {
            out.put_u8(removed.table);
            out.put_u8(removed.reason.number());
            out.put_u16(removed.priority);
            out.put_u16(removed.idle_timeout_s);
            out.put_u16(removed.hard_timeout_s);
            out.put_u64(removed.cookie);
            removed.matches.encode(out);
            Counted {
                duration_ns: removed.duration_ns,
                flows: 0,
                packets: removed.packets,
                bytes: removed.bytes,
            }
            .encode(out);
        }
    }
}

fn packet_out(version: Version, packet: &PacketOut, out: &mut Vec<u8>) {
    out.put_u32(NO_BUFFER);
    if version == Version::V13 {
        out.put_u32(packet.in_port);
    }
    let length_at = out.len();
    out.put_u16(0);
    match version {
        Version::V13 => out.pad(6),
        Version::V15 => {
            out.pad(2);
            Match::new([Field::in_port(packet.in_port)]).encode(out);
        }
    }
    let start = out.len();
    Action::encode_all(&packet.actions, out);
    let length = u16::try_from(out.len() - start).unwrap_or(u16::MAX);
    out.set_u16(length_at, length);
    out.put(&packet.data);
}

fn flow_mod(flow: &FlowMod, out: &mut Vec<u8>) {
    out.put_u64(flow.cookie);
    out.put_u64(flow.cookie_mask);
    out.put_u8(flow.table);
    out.put_u8(index_of(&FlowCommand::ALL, &flow.command) as u8);
    out.put_u16(flow.idle_timeout_s);
    out.put_u16(flow.hard_timeout_s);
    out.put_u16(flow.priority);
    out.put_u32(NO_BUFFER);
    out.put_u32(flow.out_port);
    out.put_u32(ANY_GROUP);
    out.put_u16(flow.flags.0);
    // Unused in 1.3.
    out.put_u16(flow.importance);
    flow.matches.encode(out);
    Instruction::encode_all(&flow.instructions, out);
}

fn put_role(role: Role, generation: u64, out: &mut Vec<u8>) {
    out.put_u32(index_of(&Role::ALL, &role) as u32);
    out.pad(4);
    out.put_u64(generation);
}

/// In 1.3 bundle messages are an extension.
fn bundle_head(version: Version, extension: u32, own: u8, out: &mut Vec<u8>) -> u8 {
    match version {
        Version::V13 => {
            out.put_u32(ONF);
            out.put_u32(extension);
            EXPERIMENTER
        }
        Version::V15 => own,
    }
}

/// Decodes a whole message into transaction id and message. `version` is the negotiated one; a hello may have
/// any.
///
/// # Errors
/// [`DecodeError`] for an invalid message. Later messages can still be decoded.
pub fn decode(version: Version, bytes: &[u8]) -> Result<(u32, Message)> {
    one(version, bytes, true)
}

fn one(version: Version, bytes: &[u8], may_nest: bool) -> Result<(u32, Message)> {
    let mut reader = Reader::new(bytes, "a message");
    let number = reader.u8()?;
    let kind = reader.u8()?;
    let length = usize::from(reader.u16()?);
    if length != bytes.len() {
        return Err(DecodeError::Length {
            what: "a message",
            length,
        });
    }
    let xid = reader.u32()?;
    if number != version.number() && kind != HELLO {
        return Err(DecodeError::Value {
            what: "a message's version",
            value: number.into(),
        });
    }
    let r = &mut reader;
    let message = match kind {
        HELLO => read_hello(r)?,
        ERROR => Message::Error(ErrorMessage {
            kind: r.u16()?,
            code: r.u16()?,
            data: r.rest().to_vec(),
        }),
        ECHO_REQUEST => Message::EchoRequest(r.rest().to_vec()),
        ECHO_REPLY => Message::EchoReply(r.rest().to_vec()),
        FEATURES_REQUEST => Message::FeaturesRequest,
        FEATURES_REPLY => Message::FeaturesReply(features(r)?),
        SET_CONFIG => Message::SetConfig {
            flags: r.u16()?,
            miss_send_bytes: r.u16()?,
        },
        PACKET_IN => Message::PacketIn(read_packet_in(r)?),
        FLOW_REMOVED => Message::FlowRemoved(read_flow_removed(version, r)?),
        PORT_STATUS => {
            let all = [PortReason::Added, PortReason::Deleted, PortReason::Modified];
            let reason = decode_enum(&all, r.u8()?.into(), "a port's change")?;
            r.skip(7)?;
            Message::PortStatus {
                reason,
                port: PortDescription::decode(version, r)?,
            }
        }
        PACKET_OUT => Message::PacketOut(read_packet_out(version, r)?),
        FLOW_MOD => Message::FlowMod(read_flow_mod(version, r)?),
        MULTIPART_REQUEST => Message::MultipartRequest(MultipartRequest::decode(version, r)?),
        MULTIPART_REPLY => {
            let (reply, more) = MultipartReply::decode(version, r)?;
            Message::MultipartReply { more, reply }
        }
        BARRIER_REQUEST => Message::BarrierRequest,
        BARRIER_REPLY => Message::BarrierReply,
        ROLE_REQUEST => {
            let (role, generation) = read_role(r)?;
            Message::RoleRequest { role, generation }
        }
        ROLE_REPLY => {
            let (role, generation) = read_role(r)?;
            Message::RoleReply { role, generation }
        }
        BUNDLE_CONTROL if version == Version::V15 => read_bundle_control(r)?,
        BUNDLE_ADD if version == Version::V15 => read_bundle_add(version, r, may_nest)?,
        EXPERIMENTER if version == Version::V13 => read_extension(version, r, may_nest)?,
        _ => Message::Other {
            kind,
            body: r.rest().to_vec(),
        },
    };
    Ok((xid, message))
}

fn read_hello(reader: &mut Reader<'_>) -> Result<Message> {
    let mut versions = Vec::new();
    while !reader.is_empty() {
        let kind = reader.u16()?;
        let length = usize::from(reader.u16()?);
        let own = length.checked_sub(4).ok_or(DecodeError::Length {
            what: "an element of a hello",
            length,
        })?;
        let mut element = reader.part(own, "an element of a hello")?;
        // The last one may be unpadded.
        let _padding = reader.take((length.next_multiple_of(8) - length).min(reader.len()));
        if kind == VERSION_BITMAP {
            let bits = element.u32()?;
            versions = (0..32).filter(|version| bits & 1 << version != 0).collect();
        }
    }
    Ok(Message::Hello { versions })
}

fn features(reader: &mut Reader<'_>) -> Result<Features> {
    let datapath = reader.u64()?;
    let buffers = reader.u32()?;
    let tables = reader.u8()?;
    let auxiliary = reader.u8()?;
    reader.skip(2)?;
    Ok(Features {
        datapath,
        buffers,
        tables,
        auxiliary,
        capabilities: reader.u32()?,
    })
}

fn read_packet_in(reader: &mut Reader<'_>) -> Result<PacketIn> {
    // The buffer id, which is unused.
    reader.skip(4)?;
    let total_bytes = reader.u16()?;
    let reason = PacketInReason::from_number(reader.u8()?);
    let table = reader.u8()?;
    let cookie = reader.u64()?;
    let context = Match::decode(reader)?;
    reader.skip(2)?;
    Ok(PacketIn {
        total_bytes,
        reason,
        table,
        cookie,
        context,
        data: reader.rest().to_vec(),
    })
}

fn read_flow_removed(version: Version, reader: &mut Reader<'_>) -> Result<FlowRemoved> {
    match version {
        Version::V13 => Ok(FlowRemoved {
            cookie: reader.u64()?,
            priority: reader.u16()?,
            reason: FlowRemovedReason::from_number(reader.u8()?),
            table: reader.u8()?,
            duration_ns: duration(reader)?,
            idle_timeout_s: reader.u16()?,
            hard_timeout_s: reader.u16()?,
            packets: reader.u64()?,
            bytes: reader.u64()?,
            matches: Match::decode(reader)?,
        }),
        Version::V15 => {
            let table = reader.u8()?;
            let reason = FlowRemovedReason::from_number(reader.u8()?);
            let priority = reader.u16()?;
            let idle_timeout_s = reader.u16()?;
            let hard_timeout_s = reader.u16()?;
            let cookie = reader.u64()?;
            let matches = Match::decode(reader)?;
            let counted = Counted::decode(reader)?;
            Ok(FlowRemoved {
                cookie,
                priority,
                reason,
                table,
                duration_ns: counted.duration_ns,
                idle_timeout_s,
                hard_timeout_s,
                packets: counted.packets,
                bytes: counted.bytes,
                matches,
            })
        }
    }
}

fn read_packet_out(version: Version, reader: &mut Reader<'_>) -> Result<PacketOut> {
    reader.skip(4)?;
    let (in_port, length) = match version {
        Version::V13 => {
            let in_port = reader.u32()?;
            let length = reader.u16()?;
            reader.skip(6)?;
            (in_port, length)
        }
        Version::V15 => {
            let length = reader.u16()?;
            reader.skip(2)?;
            let context = Match::decode(reader)?;
            let number = context.get(FieldKind::IN_PORT).and_then(Field::number);
            let in_port = number.and_then(|number| u32::try_from(number).ok());
            (in_port.unwrap_or(port::CONTROLLER), length)
        }
    };
    let mut part = reader.part(length.into(), "a packet-out's actions")?;
    Ok(PacketOut {
        in_port,
        actions: Action::decode_all(&mut part)?,
        data: reader.rest().to_vec(),
    })
}

fn read_flow_mod(version: Version, reader: &mut Reader<'_>) -> Result<FlowMod> {
    let cookie = reader.u64()?;
    let cookie_mask = reader.u64()?;
    let table = reader.u8()?;
    let command = decode_enum(&FlowCommand::ALL, reader.u8()?.into(), "a flow-mod's command")?;
    let idle_timeout_s = reader.u16()?;
    let hard_timeout_s = reader.u16()?;
    let priority = reader.u16()?;
    reader.skip(4)?;
    let out_port = reader.u32()?;
    reader.skip(4)?;
    let flags = FlowFlags(reader.u16()?);
    let importance = reader.u16()?;
    Ok(FlowMod {
        command,
        cookie,
        cookie_mask,
        table,
        priority,
        idle_timeout_s,
        hard_timeout_s,
        out_port,
        flags,
        importance: if version == Version::V15 { importance } else { 0 },
        matches: Match::decode(reader)?,
        instructions: Instruction::decode_all(reader)?,
    })
}

fn read_role(reader: &mut Reader<'_>) -> Result<(Role, u64)> {
    let role = decode_enum(&Role::ALL, reader.u32()?.into(), "a role")?;
    reader.skip(4)?;
    Ok((role, reader.u64()?))
}

fn read_bundle_control(reader: &mut Reader<'_>) -> Result<Message> {
    let bundle = reader.u32()?;
    let step = decode_enum(&BundleStep::ALL, reader.u16()?.into(), "a bundle's step")?;
    Ok(Message::BundleControl(BundleControl {
        bundle,
        step,
        flags: reader.u16()?,
    }))
}

fn read_bundle_add(version: Version, reader: &mut Reader<'_>, may_nest: bool) -> Result<Message> {
    let bundle = reader.u32()?;
    reader.skip(2)?;
    let flags = reader.u16()?;
    if !may_nest {
        return Err(DecodeError::Value {
            what: "a bundle within a bundle",
            value: bundle.into(),
        });
    }
    let rest = reader.rest();
    let length = frame_length(rest)?.unwrap_or_default();
    // The rest are properties, none of which is known.
    let own = rest.get(..length).ok_or(DecodeError::Length {
        what: "a bundle's message",
        length,
    })?;
    let (xid, message) = one(version, own, false)?;
    Ok(Message::BundleAdd {
        bundle,
        flags,
        xid,
        message: Box::new(message),
    })
}

fn read_extension(version: Version, reader: &mut Reader<'_>, may_nest: bool) -> Result<Message> {
    let whole = *reader;
    let (owner, kind) = (reader.u32()?, reader.u32()?);
    match (owner, kind) {
        (ONF, ONF_BUNDLE_CONTROL) => read_bundle_control(reader),
        (ONF, ONF_BUNDLE_ADD) => read_bundle_add(version, reader, may_nest),
        _ => {
            *reader = whole;
            Ok(Message::Other {
                kind: EXPERIMENTER,
                body: reader.rest().to_vec(),
            })
        }
    }
}
