//! Actions (section 7.2.6 of the specification) and instructions (7.2.5) of rules.

use crate::field::Field;
use crate::wire::{DecodeError, Reader, Result, Write};

const OUTPUT: u16 = 0;
const PUSH_VLAN: u16 = 17;
const POP_VLAN: u16 = 18;
const GROUP: u16 = 22;
const SET_FIELD: u16 = 25;
const EXPERIMENTER: u16 = 0xffff;
/// Nicira's experimenter id; Open vSwitch implements its extensions.
const NICIRA: u32 = 0x0000_2320;
const NICIRA_CT: u16 = 35;
const NICIRA_MULTIPATH: u16 = 10;
/// The `multipath` parameters: the hashed fields (`symmetric_l3l4+udp`), the algorithm (`modulo_n`, Open
/// vSwitch's first), and the destination, all 32 bits of the first register, as its header in a match.
const ADDRESSES_AND_PORTS: u16 = 3;
const MODULO: u16 = 0;
const WHOLE_REGISTER: u16 = 31;
const REGISTER_0: u32 = 0x0001_0004;
/// Connection tracking without a continuation table.
const NO_TABLE: u8 = 0xff;
const CT_COMMIT: u16 = 1;
/// Actions per list.
const ACTION_LIMIT: usize = 256;
/// Maximum nesting depth of actions.
const DEPTH_LIMIT: u8 = 2;

/// An action on a packet.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Output to a port; to the controller at most `max_bytes`.
    Output {
        /// The port, see [`crate::port`].
        port: u32,
        /// Maximum bytes to the controller.
        max_bytes: u16,
    },
    /// Process by a group.
    Group(u32),
    /// Set a field.
    SetField(Field),
    /// Push a VLAN tag with that EtherType.
    PushVlan(u16),
    /// Pop the outer VLAN tag.
    PopVlan,
    /// Track the connection (Open vSwitch).
    ConnectionTracking(ConnectionTracking),
    /// Hash addresses, protocol and ports into the first register, as a number from 0 to `highest` (Open
    /// vSwitch).
    Multipath {
        /// The highest number.
        highest: u16,
    },
    /// An unknown action, without its type and length.
    Other {
        /// Its type.
        kind: u16,
        /// Its body.
        body: Vec<u8>,
    },
}

/// Open vSwitch's `ct(...)`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ConnectionTracking {
    /// Whether to commit the connection to the connection table.
    pub commit: bool,
    /// The connection-tracking zone.
    pub zone: u16,
    /// The table where a copy of the packet continues, with the connection state set.
    pub table: Option<u8>,
    /// Actions on the connection, such as setting its mark.
    pub actions: Vec<Action>,
}

impl Action {
    /// Output to a port, or the whole packet to the controller.
    pub fn output(port: u32) -> Action {
        Action::Output {
            port,
            max_bytes: crate::WHOLE_PACKET,
        }
    }

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        let start = out.len();
        let head = |out: &mut Vec<u8>, kind: u16| {
            out.put_u16(kind);
            out.put_u16(0);
        };
        match self {
            Action::Output { port, max_bytes } => {
                head(out, OUTPUT);
                out.put_u32(*port);
                out.put_u16(*max_bytes);
                out.pad(6);
            }
            Action::Group(group) => {
                head(out, GROUP);
                out.put_u32(*group);
            }
            Action::SetField(field) => {
                head(out, SET_FIELD);
                field.encode(out);
                out.pad_to_8(start);
            }
            Action::PushVlan(eth_type) => {
                head(out, PUSH_VLAN);
                out.put_u16(*eth_type);
                out.pad(2);
            }
            Action::PopVlan => {
                head(out, POP_VLAN);
                out.pad(4);
            }
            Action::ConnectionTracking(of) => {
                head(out, EXPERIMENTER);
                out.put_u32(NICIRA);
                out.put_u16(NICIRA_CT);
                out.put_u16(if of.commit { CT_COMMIT } else { 0 });
                // The zone is an immediate value, not a field.
                out.put_u32(0);
                out.put_u16(of.zone);
                out.put_u8(of.table.unwrap_or(NO_TABLE));
                out.pad(5);
                of.actions.iter().for_each(|action| action.encode(out));
            }
            Action::Multipath { highest } => {
                head(out, EXPERIMENTER);
                out.put_u32(NICIRA);
                out.put_u16(NICIRA_MULTIPATH);
                out.put_u16(ADDRESSES_AND_PORTS);
                // The hash has no extra input.
                out.put_u16(0);
                out.pad(2);
                out.put_u16(MODULO);
                out.put_u16(*highest);
                out.pad(6);
                out.put_u16(WHOLE_REGISTER);
                out.put_u32(REGISTER_0);
            }
            Action::Other { kind, body } => {
                head(out, *kind);
                out.put(body);
            }
        }
        out.set_length(start, 2);
    }

    fn decode(reader: &mut Reader<'_>, depth: u8) -> Result<Action> {
        let kind = reader.u16()?;
        let length = usize::from(reader.u16()?);
        let wrong = DecodeError::Length {
            what: "an action",
            length,
        };
        if length < 8 || length % 8 != 0 {
            return Err(wrong);
        }
        let mut body = reader.part(length - 4, "an action")?;
        let whole = body;
        Ok(match kind {
            OUTPUT => Action::Output {
                port: body.u32()?,
                max_bytes: body.u16()?,
            },
            GROUP => Action::Group(body.u32()?),
            SET_FIELD => Action::SetField(Field::decode(&mut body)?),
            PUSH_VLAN => Action::PushVlan(body.u16()?),
            POP_VLAN => Action::PopVlan,
            EXPERIMENTER if length >= 24 => {
                let known = match (body.u32()?, body.u16()?) {
                    (NICIRA, NICIRA_CT) => {
                        connection_tracking(&mut body, depth)?.map(Action::ConnectionTracking)
                    }
                    (NICIRA, NICIRA_MULTIPATH) => multipath(&mut body)?,
                    _ => None,
                };
                known.unwrap_or_else(|| other(kind, whole))
            }
            _ => other(kind, whole),
        })
    }

    /// Decodes actions up to the end of the reader.
    pub(crate) fn decode_all(reader: &mut Reader<'_>) -> Result<Vec<Action>> {
        list(reader, 0)
    }

    pub(crate) fn encode_all(actions: &[Action], out: &mut Vec<u8>) {
        actions.iter().for_each(|action| action.encode(out));
    }
}

fn list(reader: &mut Reader<'_>, depth: u8) -> Result<Vec<Action>> {
    let mut actions = Vec::new();
    while !reader.is_empty() {
        if actions.len() >= ACTION_LIMIT || depth >= DEPTH_LIMIT {
            return Err(DecodeError::Length {
                what: "a list of actions",
                length: reader.len(),
            });
        }
        actions.push(Action::decode(reader, depth)?);
    }
    Ok(actions)
}

fn other(kind: u16, mut body: Reader<'_>) -> Action {
    Action::Other {
        kind,
        body: body.rest().to_vec(),
    }
}

/// [`None`] for one that [`ConnectionTracking`] cannot represent.
fn connection_tracking(body: &mut Reader<'_>, depth: u8) -> Result<Option<ConnectionTracking>> {
    let flags = body.u16()?;
    let zone_field = body.u32()?;
    let zone = body.u16()?;
    let table = body.u8()?;
    body.skip(3)?;
    let helper = body.u16()?;
    if zone_field != 0 || helper != 0 || flags & !CT_COMMIT != 0 {
        return Ok(None);
    }
    Ok(Some(ConnectionTracking {
        commit: flags & CT_COMMIT != 0,
        zone,
        table: (table != NO_TABLE).then_some(table),
        actions: list(body, depth + 1)?,
    }))
}

/// [`None`] for one that [`Action::Multipath`] cannot represent.
fn multipath(body: &mut Reader<'_>) -> Result<Option<Action>> {
    let (hashed, added) = (body.u16()?, body.u16()?);
    body.skip(2)?;
    let (algorithm, highest) = (body.u16()?, body.u16()?);
    let argument = body.u32()?;
    body.skip(2)?;
    let to = (body.u16()?, body.u32()?);
    let is_ours = (hashed, added, algorithm, argument, to)
        == (ADDRESSES_AND_PORTS, 0, MODULO, 0, (WHOLE_REGISTER, REGISTER_0));
    Ok((is_ours && body.is_empty()).then_some(Action::Multipath { highest }))
}

/// An instruction of a rule.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Instruction {
    /// Continue in a later table.
    GotoTable(u8),
    /// Apply the actions now.
    ApplyActions(Vec<Action>),
    /// Apply the actions at the end of the pipeline.
    WriteActions(Vec<Action>),
    /// Clear the action set.
    ClearActions,
    /// An unknown instruction, without its type and length.
    Other {
        /// Its type.
        kind: u16,
        /// Its body.
        body: Vec<u8>,
    },
}

const GOTO_TABLE: u16 = 1;
const WRITE_ACTIONS: u16 = 3;
const APPLY_ACTIONS: u16 = 4;
const CLEAR_ACTIONS: u16 = 5;

impl Instruction {
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        let start = out.len();
        let (kind, actions): (u16, &[Action]) = match self {
            Instruction::GotoTable(_) => (GOTO_TABLE, &[]),
            Instruction::ApplyActions(actions) => (APPLY_ACTIONS, actions),
            Instruction::WriteActions(actions) => (WRITE_ACTIONS, actions),
            Instruction::ClearActions => (CLEAR_ACTIONS, &[]),
            Instruction::Other { kind, .. } => (*kind, &[]),
        };
        out.put_u16(kind);
        out.put_u16(0);
        match self {
            Instruction::GotoTable(table) => {
                out.put_u8(*table);
                out.pad(3);
            }
            Instruction::Other { body, .. } => out.put(body),
            _ => {
                out.pad(4);
                Action::encode_all(actions, out);
            }
        }
        out.set_length(start, 2);
    }

    fn decode(reader: &mut Reader<'_>) -> Result<Instruction> {
        let kind = reader.u16()?;
        let length = usize::from(reader.u16()?);
        if length < 8 || length % 8 != 0 {
            return Err(DecodeError::Length {
                what: "an instruction",
                length,
            });
        }
        let mut body = reader.part(length - 4, "an instruction")?;
        Ok(match kind {
            GOTO_TABLE => Instruction::GotoTable(body.u8()?),
            APPLY_ACTIONS => {
                body.skip(4)?;
                Instruction::ApplyActions(Action::decode_all(&mut body)?)
            }
            WRITE_ACTIONS => {
                body.skip(4)?;
                Instruction::WriteActions(Action::decode_all(&mut body)?)
            }
            CLEAR_ACTIONS => Instruction::ClearActions,
            _ => Instruction::Other {
                kind,
                body: body.rest().to_vec(),
            },
        })
    }

    /// Decodes instructions up to the end of the reader.
    pub(crate) fn decode_all(reader: &mut Reader<'_>) -> Result<Vec<Instruction>> {
        let mut instructions = Vec::new();
        while !reader.is_empty() {
            instructions.push(Instruction::decode(reader)?);
        }
        Ok(instructions)
    }

    pub(crate) fn encode_all(instructions: &[Instruction], out: &mut Vec<u8>) {
        instructions
            .iter()
            .for_each(|instruction| instruction.encode(out));
    }
}
