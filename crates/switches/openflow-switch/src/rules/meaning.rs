//! What rules say that an earlier run has left in the switch.

use model::{ServiceId, Slot, Tuple};
use openflow::{Action, FieldKind, FlowStats, Instruction, Match};

use super::{
    FIRST_ZONE, HANDOVER_TABLE, PIN_PRIORITY, RETURN_PRIORITY, RuleKind, TABLE, VALUE_MASK, ZONES, cookie,
    pin_number, ports_of,
};

/// What a rule of ours that the switch has says of where things are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Meaning {
    /// What comes by that port goes to an uplink: an instance is there.
    Return { port: u32 },
    /// Connections with that mark are the instance's.
    Mark { slot: Slot, mark: u32 },
    /// A bucket's rule, in the table that packets meet or in [`HANDOVER_TABLE`], and the port that it sends to.
    Bucket {
        service: ServiceId,
        bucket: usize,
        is_handover: bool,
        /// Where the switch remembers connections that meet it, in the table that packets meet.
        zone: Option<u16>,
        to: Option<u32>,
    },
    /// A flow's rule.
    Pin {
        number: u64,
        in_port: u32,
        tuple: Tuple,
        to: u32,
    },
}

/// What a rule says; [`None`] for one of which nothing is to be learnt, or that is not as ours are.
pub(crate) fn meaning(of: &FlowStats) -> Option<Meaning> {
    let actions = match of.instructions.as_slice() {
        [Instruction::ApplyActions(actions)] => actions.as_slice(),
        _ => return None,
    };
    let to = actions.iter().find_map(|action| match action {
        Action::Output { port, .. } => Some(*port),
        _ => None,
    });
    let in_port = u32::try_from(of.matches.get(FieldKind::IN_PORT)?.number()?).ok()?;
    let value = of.cookie & VALUE_MASK;
    let kind = of.cookie & !VALUE_MASK;
    if let Some(number) = pin_number(of.cookie) {
        let tuple = tuple_of(&of.matches)?;
        return Some(Meaning::Pin {
            number,
            in_port,
            tuple,
            to: to?,
        });
    }
    if kind == cookie(RuleKind::Fixed, 0) {
        return match (of.priority, of.table) {
            (RETURN_PRIORITY, TABLE) => Some(Meaning::Return { port: in_port }),
            (PIN_PRIORITY, HANDOVER_TABLE) => {
                let mark = of.matches.get(FieldKind::CT_MARK)?.number()?;
                Some(Meaning::Mark {
                    slot: Slot((value >> 8) as u16),
                    mark: u32::try_from(mark).ok()?,
                })
            }
            _ => None,
        };
    }
    if kind == cookie(RuleKind::Bucket, 0) {
        let asked = actions.iter().find_map(|action| match action {
            Action::ConnectionTracking(of) if !of.commit => Some(of.zone),
            _ => None,
        });
        let zone = match asked {
            Some(zone) => Some(zone.checked_sub(FIRST_ZONE).filter(|zone| *zone < ZONES)?),
            None => None,
        };
        return Some(Meaning::Bucket {
            service: ServiceId((value >> 24) as u8 as u16),
            bucket: (value & 0xffff) as usize,
            is_handover: of.table == HANDOVER_TABLE,
            zone,
            to,
        });
    }
    None
}

/// The addresses that an exact rule matches.
pub(super) fn tuple_of(matches: &Match) -> Option<Tuple> {
    let number = |kind| matches.get(kind)?.number();
    let address = |v4, v6| matches.get(v4).or_else(|| matches.get(v6))?.address();
    let protocol = u8::try_from(number(FieldKind::IP_PROTO)?).ok()?;
    let (src_port, dst_port) = match ports_of(protocol) {
        Some((source, destination)) => (number(source)? as u16, number(destination)? as u16),
        None => (0, 0),
    };
    Some(Tuple {
        src: address(FieldKind::IPV4_SRC, FieldKind::IPV6_SRC)?,
        dst: address(FieldKind::IPV4_DST, FieldKind::IPV6_DST)?,
        src_port,
        dst_port,
        protocol,
        vlan: number(FieldKind::VLAN_VID)? as u16 & 0xfff,
    })
}
