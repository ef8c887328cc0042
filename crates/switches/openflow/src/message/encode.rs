//! From messages to bytes.

use super::{
    BARRIER_REPLY, BARRIER_REQUEST, BUNDLE_ADD, BUNDLE_CONTROL, BundleStep, ECHO_REPLY, ECHO_REQUEST, ERROR,
    EXPERIMENTER, FEATURES_REPLY, FEATURES_REQUEST, FLOW_MOD, FLOW_REMOVED, FlowCommand, FlowMod,
    FlowRemoved, HELLO, MULTIPART_REPLY, MULTIPART_REQUEST, Message, ONF, ONF_BUNDLE_ADD, ONF_BUNDLE_CONTROL,
    PACKET_IN, PACKET_OUT, PORT_STATUS, PacketOut, ROLE_REPLY, ROLE_REQUEST, Role, SET_CONFIG,
    VERSION_BITMAP, index_of,
};
use crate::action::{Action, Instruction};
use crate::field::{Field, Match};
use crate::stats::{Counted, put_duration};
use crate::wire::{DecodeError, Result, Write};
use crate::{ANY_GROUP, NO_BUFFER, Version};

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
