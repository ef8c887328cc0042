//! From bytes to messages.

use super::{
    BARRIER_REPLY, BARRIER_REQUEST, BUNDLE_ADD, BUNDLE_CONTROL, BundleControl, BundleStep, ECHO_REPLY,
    ECHO_REQUEST, ERROR, EXPERIMENTER, ErrorMessage, FEATURES_REPLY, FEATURES_REQUEST, FLOW_MOD,
    FLOW_REMOVED, Features, FlowCommand, FlowFlags, FlowMod, FlowRemoved, FlowRemovedReason, HELLO,
    MULTIPART_REPLY, MULTIPART_REQUEST, Message, ONF, ONF_BUNDLE_ADD, ONF_BUNDLE_CONTROL, PACKET_IN,
    PACKET_OUT, PORT_STATUS, PacketIn, PacketInReason, PacketOut, PortReason, ROLE_REPLY, ROLE_REQUEST, Role,
    SET_CONFIG, VERSION_BITMAP, decode_enum, frame_length,
};
use crate::action::{Action, Instruction};
use crate::field::{Field, FieldKind, Match};
use crate::multipart::{MultipartReply, MultipartRequest, PortDescription};
use crate::stats::{Counted, duration};
use crate::wire::{DecodeError, Reader, Result};
use crate::{Version, port};

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
