//! Multipart requests and replies (section 7.3.5 of the specification).

use crate::action::Instruction;
use crate::field::Match;
use crate::stats::{Counted, duration, put_duration};
use crate::wire::{DecodeError, Reader, Result, Write};
use crate::{ALL_TABLES, ANY_GROUP, Version, port};

const DESCRIPTION: u16 = 0;
const FLOW: u16 = 1;
const AGGREGATE: u16 = 2;
const TABLE: u16 = 3;
const PORT_STATS: u16 = 4;
const PORT_DESCRIPTION: u16 = 13;
/// Field lengths of the switch description.
const TEXT: usize = 256;
const SERIAL: usize = 32;
const PORT_NAME: usize = 16;

/// A multipart request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MultipartRequest {
    /// The switch description.
    Description,
    /// Rules with counters.
    Flows(FlowFilter),
    /// The sum over rules.
    Aggregate(FlowFilter),
    /// Table statistics.
    Tables,
    /// Counters of a port, or of all ([`port::ANY`]).
    Ports(u32),
    /// Port descriptions.
    PortDescriptions,
}

/// Selects rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowFilter {
    /// In this table; [`ALL_TABLES`].
    pub table: u8,
    /// With output to this port; [`port::ANY`].
    pub out_port: u32,
    /// With this cookie.
    pub cookie: u64,
    /// The cookie bits to match.
    pub cookie_mask: u64,
    /// Covered by this match.
    pub matches: Match,
}

impl Default for FlowFilter {
    fn default() -> Self {
        FlowFilter {
            table: ALL_TABLES,
            out_port: port::ANY,
            cookie: 0,
            cookie_mask: 0,
            matches: Match::default(),
        }
    }
}

/// A multipart reply, or a part of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MultipartReply {
    /// The switch description.
    Description(Box<SwitchDescription>),
    /// Rules with counters.
    Flows(Vec<FlowStats>),
    /// The sum over rules.
    Aggregate(Aggregate),
    /// Table statistics.
    Tables(Vec<TableStats>),
    /// Port counters.
    Ports(Vec<PortStats>),
    /// Port descriptions.
    PortDescriptions(Vec<PortDescription>),
    /// An unknown reply.
    Other {
        /// Its type.
        kind: u16,
        /// Its body.
        body: Vec<u8>,
    },
}

/// A switch description.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SwitchDescription {
    /// Manufacturer.
    pub manufacturer: String,
    /// Hardware.
    pub hardware: String,
    /// Software and version.
    pub software: String,
    /// Serial number.
    pub serial: String,
    /// The bridge.
    pub datapath: String,
}

/// A rule with its counters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FlowStats {
    /// Its table.
    pub table: u8,
    /// Its age, in nanoseconds.
    pub duration_ns: u64,
    /// Its priority.
    pub priority: u16,
    /// Seconds without packets until it expires; 0: never.
    pub idle_timeout_s: u16,
    /// Seconds until it expires; 0: never.
    pub hard_timeout_s: u16,
    /// Its flags.
    pub flags: u16,
    /// Its importance (1.5).
    pub importance: u16,
    /// Its cookie.
    pub cookie: u64,
    /// Matched packets.
    pub packets: u64,
    /// Matched bytes.
    pub bytes: u64,
    /// Its match.
    pub matches: Match,
    /// Its instructions.
    pub instructions: Vec<Instruction>,
}

/// The sum over rules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Aggregate {
    /// Matched packets.
    pub packets: u64,
    /// Matched bytes.
    pub bytes: u64,
    /// Number of rules.
    pub flows: u32,
}

/// Statistics of a table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableStats {
    /// The table.
    pub table: u8,
    /// Rules in it.
    pub active: u32,
    /// Lookups.
    pub lookups: u64,
    /// Lookups that matched a rule.
    pub matched: u64,
}

/// Counters of a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortStats {
    /// The port.
    pub port: u32,
    /// Packets received.
    pub received_packets: u64,
    /// Packets sent.
    pub sent_packets: u64,
    /// Bytes received.
    pub received_bytes: u64,
    /// Bytes sent.
    pub sent_bytes: u64,
    /// Received packets dropped.
    pub received_dropped: u64,
    /// Packets dropped before sending.
    pub sent_dropped: u64,
    /// Receive errors.
    pub received_errors: u64,
    /// Transmit errors.
    pub sent_errors: u64,
    /// Its age, in nanoseconds.
    pub duration_ns: u64,
}

/// A port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortDescription {
    /// Its number.
    pub port: u32,
    /// Its MAC address.
    pub address: [u8; 6],
    /// Its name, at most 15 bytes.
    pub name: String,
    /// Its configuration: bit 0 is "administratively down".
    pub config: u32,
    /// Its state: bit 0 is "no link".
    pub state: u32,
}

impl MultipartRequest {
    pub(crate) fn encode(&self, version: Version, out: &mut Vec<u8>) {
        let kind = match self {
            MultipartRequest::Description => DESCRIPTION,
            MultipartRequest::Flows(_) => FLOW,
            MultipartRequest::Aggregate(_) => AGGREGATE,
            MultipartRequest::Tables => TABLE,
            MultipartRequest::Ports(_) => PORT_STATS,
            MultipartRequest::PortDescriptions => PORT_DESCRIPTION,
        };
        out.put_u16(kind);
        // The request has a single part.
        out.put_u16(0);
        out.pad(4);
        match self {
            MultipartRequest::Flows(filter) | MultipartRequest::Aggregate(filter) => {
                out.put_u8(filter.table);
                out.pad(3);
                out.put_u32(filter.out_port);
                out.put_u32(ANY_GROUP);
                out.pad(4);
                out.put_u64(filter.cookie);
                out.put_u64(filter.cookie_mask);
                filter.matches.encode(out);
            }
            MultipartRequest::Ports(port) => {
                out.put_u32(*port);
                out.pad(4);
            }
            // 1.5 can ask for a single port.
            MultipartRequest::PortDescriptions if version == Version::V15 => {
                out.put_u32(port::ANY);
                out.pad(4);
            }
            MultipartRequest::PortDescriptions | MultipartRequest::Description | MultipartRequest::Tables => {
            }
        }
    }

    pub(crate) fn decode(version: Version, reader: &mut Reader<'_>) -> Result<MultipartRequest> {
        let kind = reader.u16()?;
        reader.skip(6)?;
        Ok(match kind {
            DESCRIPTION => MultipartRequest::Description,
            FLOW => MultipartRequest::Flows(flow_filter(reader)?),
            AGGREGATE => MultipartRequest::Aggregate(flow_filter(reader)?),
            TABLE => MultipartRequest::Tables,
            PORT_STATS => MultipartRequest::Ports(reader.u32()?),
            PORT_DESCRIPTION => {
                if version == Version::V15 {
                    reader.skip(8)?;
                }
                MultipartRequest::PortDescriptions
            }
            _ => {
                return Err(DecodeError::Value {
                    what: "the type of a multipart request",
                    value: kind.into(),
                });
            }
        })
    }
}

fn flow_filter(reader: &mut Reader<'_>) -> Result<FlowFilter> {
    let table = reader.u8()?;
    reader.skip(3)?;
    let out_port = reader.u32()?;
    reader.skip(8)?;
    Ok(FlowFilter {
        table,
        out_port,
        cookie: reader.u64()?,
        cookie_mask: reader.u64()?,
        matches: Match::decode(reader)?,
    })
}

impl MultipartReply {
    pub(crate) fn encode(&self, version: Version, more: bool, out: &mut Vec<u8>) {
        let kind = match self {
            MultipartReply::Description(_) => DESCRIPTION,
            MultipartReply::Flows(_) => FLOW,
            MultipartReply::Aggregate(_) => AGGREGATE,
            MultipartReply::Tables(_) => TABLE,
            MultipartReply::Ports(_) => PORT_STATS,
            MultipartReply::PortDescriptions(_) => PORT_DESCRIPTION,
            MultipartReply::Other { kind, .. } => *kind,
        };
        out.put_u16(kind);
        out.put_u16(u16::from(more));
        out.pad(4);
        match self {
            MultipartReply::Description(of) => {
                out.put_text(&of.manufacturer, TEXT);
                out.put_text(&of.hardware, TEXT);
                out.put_text(&of.software, TEXT);
                out.put_text(&of.serial, SERIAL);
                out.put_text(&of.datapath, TEXT);
            }
            MultipartReply::Flows(flows) => flows.iter().for_each(|flow| flow.encode(version, out)),
            MultipartReply::Aggregate(of) => of.encode(version, out),
            MultipartReply::Tables(tables) => {
                for table in tables {
                    out.put_u8(table.table);
                    out.pad(3);
                    out.put_u32(table.active);
                    out.put_u64(table.lookups);
                    out.put_u64(table.matched);
                }
            }
            MultipartReply::Ports(ports) => ports.iter().for_each(|port| port.encode(version, out)),
            MultipartReply::PortDescriptions(ports) => {
                ports.iter().for_each(|port| port.encode(version, out));
            }
            MultipartReply::Other { body, .. } => out.put(body),
        }
    }

    /// The part, and whether another follows.
    pub(crate) fn decode(version: Version, reader: &mut Reader<'_>) -> Result<(MultipartReply, bool)> {
        let kind = reader.u16()?;
        let more = reader.u16()? & 1 == 1;
        reader.skip(4)?;
        let reply = match kind {
            DESCRIPTION => MultipartReply::Description(Box::new(SwitchDescription {
                manufacturer: reader.text(TEXT)?,
                hardware: reader.text(TEXT)?,
                software: reader.text(TEXT)?,
                serial: reader.text(SERIAL)?,
                datapath: reader.text(TEXT)?,
            })),
            FLOW => MultipartReply::Flows(all(reader, |reader| FlowStats::decode(version, reader))?),
            AGGREGATE => MultipartReply::Aggregate(Aggregate::decode(version, reader)?),
            TABLE => MultipartReply::Tables(all(reader, |reader| {
                let table = reader.u8()?;
                reader.skip(3)?;
                Ok(TableStats {
                    table,
                    active: reader.u32()?,
                    lookups: reader.u64()?,
                    matched: reader.u64()?,
                })
            })?),
            PORT_STATS => MultipartReply::Ports(all(reader, |reader| PortStats::decode(version, reader))?),
            PORT_DESCRIPTION => MultipartReply::PortDescriptions(all(reader, |reader| {
                PortDescription::decode(version, reader)
            })?),
            _ => MultipartReply::Other {
                kind,
                body: reader.rest().to_vec(),
            },
        };
        Ok((reply, more))
    }
}

fn all<T>(reader: &mut Reader<'_>, one: impl Fn(&mut Reader<'_>) -> Result<T>) -> Result<Vec<T>> {
    let mut items = Vec::new();
    while !reader.is_empty() {
        items.push(one(reader)?);
    }
    Ok(items)
}

/// The bytes after a two-byte length field that includes itself.
fn sized<'a>(reader: &mut Reader<'a>, before: usize, what: &'static str) -> Result<Reader<'a>> {
    let length = usize::from(reader.u16()?);
    let rest = length
        .checked_sub(before + 2)
        .ok_or(DecodeError::Length { what, length })?;
    reader.part(rest, what)
}

impl FlowStats {
    fn encode(&self, version: Version, out: &mut Vec<u8>) {
        let start = out.len();
        out.put_u16(0);
        match version {
            Version::V13 => {
                out.put_u8(self.table);
                out.pad(1);
                put_duration(out, self.duration_ns);
            }
            Version::V15 => {
                out.pad(2);
                out.put_u8(self.table);
                out.pad(1);
            }
        }
        for value in [
            self.priority,
            self.idle_timeout_s,
            self.hard_timeout_s,
            self.flags,
            self.importance,
        ] {
            out.put_u16(value);
        }
        match version {
            Version::V13 => {
                out.pad(2);
                out.put_u64(self.cookie);
                out.put_u64(self.packets);
                out.put_u64(self.bytes);
                self.matches.encode(out);
            }
            Version::V15 => {
                out.put_u64(self.cookie);
                self.matches.encode(out);
                Counted {
                    duration_ns: self.duration_ns,
                    packets: self.packets,
                    bytes: self.bytes,
                    flows: 0,
                }
                .encode(out);
            }
        }
        Instruction::encode_all(&self.instructions, out);
        out.set_length(start, 0);
    }

    fn decode(version: Version, reader: &mut Reader<'_>) -> Result<FlowStats> {
        let mut of = sized(reader, 0, "a flow's entry")?;
        let mut flow = FlowStats::default();
        match version {
            Version::V13 => {
                flow.table = of.u8()?;
                of.skip(1)?;
                flow.duration_ns = duration(&mut of)?;
            }
            Version::V15 => {
                of.skip(2)?;
                flow.table = of.u8()?;
                of.skip(1)?;
            }
        }
        flow.priority = of.u16()?;
        flow.idle_timeout_s = of.u16()?;
        flow.hard_timeout_s = of.u16()?;
        flow.flags = of.u16()?;
        flow.importance = of.u16()?;
        match version {
            Version::V13 => {
                of.skip(2)?;
                flow.cookie = of.u64()?;
                flow.packets = of.u64()?;
                flow.bytes = of.u64()?;
                flow.matches = Match::decode(&mut of)?;
            }
            Version::V15 => {
                flow.cookie = of.u64()?;
                flow.matches = Match::decode(&mut of)?;
                let counted = Counted::decode(&mut of)?;
                flow.duration_ns = counted.duration_ns;
                flow.packets = counted.packets;
                flow.bytes = counted.bytes;
            }
        }
        flow.instructions = Instruction::decode_all(&mut of)?;
        Ok(flow)
    }
}

impl Aggregate {
    fn encode(&self, version: Version, out: &mut Vec<u8>) {
        match version {
            Version::V13 => {
                out.put_u64(self.packets);
                out.put_u64(self.bytes);
                out.put_u32(self.flows);
                out.pad(4);
            }
            Version::V15 => Counted {
                duration_ns: 0,
                flows: self.flows,
                packets: self.packets,
                bytes: self.bytes,
            }
            .encode(out),
        }
    }

    fn decode(version: Version, reader: &mut Reader<'_>) -> Result<Aggregate> {
        match version {
            Version::V13 => Ok(Aggregate {
                packets: reader.u64()?,
                bytes: reader.u64()?,
                flows: reader.u32()?,
            }),
            Version::V15 => Counted::decode(reader).map(|of| Aggregate {
                packets: of.packets,
                bytes: of.bytes,
                flows: of.flows,
            }),
        }
    }
}

impl PortStats {
    fn counters(&self) -> [u64; 8] {
        [
            self.received_packets,
            self.sent_packets,
            self.received_bytes,
            self.sent_bytes,
            self.received_dropped,
            self.sent_dropped,
            self.received_errors,
            self.sent_errors,
        ]
    }

    fn encode(&self, version: Version, out: &mut Vec<u8>) {
        let start = out.len();
        match version {
            Version::V13 => {
                out.put_u32(self.port);
                out.pad(4);
                self.counters().iter().for_each(|counter| out.put_u64(*counter));
                // Ethernet-specific errors.
                out.pad(4 * 8);
                put_duration(out, self.duration_ns);
            }
            Version::V15 => {
                out.put_u16(0);
                out.pad(2);
                out.put_u32(self.port);
                put_duration(out, self.duration_ns);
                self.counters().iter().for_each(|counter| out.put_u64(*counter));
                out.set_length(start, 0);
            }
        }
    }

    fn decode(version: Version, reader: &mut Reader<'_>) -> Result<PortStats> {
        let mut stats = PortStats::default();
        let mut of = match version {
            Version::V13 => reader.part(112, "a port's counters")?,
            Version::V15 => sized(reader, 0, "a port's counters")?,
        };
        if version == Version::V15 {
            of.skip(2)?;
            stats.port = of.u32()?;
            stats.duration_ns = duration(&mut of)?;
        } else {
            stats.port = of.u32()?;
            of.skip(4)?;
        }
        for counter in [
            &mut stats.received_packets,
            &mut stats.sent_packets,
            &mut stats.received_bytes,
            &mut stats.sent_bytes,
            &mut stats.received_dropped,
            &mut stats.sent_dropped,
            &mut stats.received_errors,
            &mut stats.sent_errors,
        ] {
            *counter = of.u64()?;
        }
        if version == Version::V13 {
            of.skip(4 * 8)?;
            stats.duration_ns = duration(&mut of)?;
        }
        Ok(stats)
    }
}

impl PortDescription {
    pub(crate) fn encode(&self, version: Version, out: &mut Vec<u8>) {
        let start = out.len();
        out.put_u32(self.port);
        out.pad(4);
        out.put(&self.address);
        out.pad(2);
        out.put_text(&self.name, PORT_NAME);
        out.put_u32(self.config);
        out.put_u32(self.state);
        match version {
            // Features and speed.
            Version::V13 => out.pad(6 * 4),
            Version::V15 => out.set_length(start, 4),
        }
    }

    pub(crate) fn decode(version: Version, reader: &mut Reader<'_>) -> Result<PortDescription> {
        let port = reader.u32()?;
        let mut of = match version {
            Version::V13 => reader.part(60, "a port")?,
            Version::V15 => sized(reader, 4, "a port")?,
        };
        of.skip(if version == Version::V13 { 4 } else { 2 })?;
        let address = of.array()?;
        of.skip(2)?;
        Ok(PortDescription {
            port,
            address,
            name: of.text(PORT_NAME)?,
            config: of.u32()?,
            state: of.u32()?,
        })
    }
}
