//! The messages, as frames through the data ports of instances.
//!
//! ```text
//! offset  bytes
//!      0     12  destination and source address: not looked at
//!     12      2  EtherType 0x88b6, which IEEE 802 reserves for local experiments
//!     14      1  version: 1
//!     15      1  kind
//!     16      8  number of the move
//!     24      2  bytes of what follows
//!     26         by kind: the flow, the state, both, ports, or a reason
//! ```
//! Numbers are in network byte order. A frame has at least 60 bytes; those behind its content are 0. No other frame of
//! that EtherType reaches an instance, because it is not IP, and none leaves the switch.

use std::net::IpAddr;

use model::{PortBlock, Tuple};
use thiserror::Error;

/// Bytes of one flow's state, at most: those of all functions of an instance fit into one frame.
pub const STATE_BYTES_LIMIT: usize = 1024;
/// Bytes of a flow: family, protocol, VLAN, ports, addresses.
const TUPLE_BYTES: usize = 40;
/// Bytes before the content.
const HEADER_BYTES: usize = 26;
/// Bytes of a frame, at most.
pub const FRAME_BYTES_LIMIT: usize = HEADER_BYTES + TUPLE_BYTES + STATE_BYTES_LIMIT;
/// Bytes of a frame, at least.
const FRAME_BYTES_MIN: usize = 60;
const ETHER_TYPE: [u8; 2] = [0x88, 0xb6];
const VERSION: u8 = 1;
/// Ports of an instance, at most.
const PORTS: u8 = 2;
/// Bytes of a block of external ports: address, first and last port.
const BLOCK_BYTES: usize = 8;
/// In place of where a hand-over goes on: nowhere.
const NO_MORE: u32 = u32::MAX;

/// Why a function gives no state of a flow, or does not take it. Nothing has changed then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
#[repr(u8)]
pub enum NotMoved {
    /// It keeps state that cannot leave the instance.
    #[error("the function keeps state that cannot leave its instance")]
    Unsupported = 1,
    /// The bytes are no state of this function, or of another version.
    #[error("the bytes are no state of this function")]
    Malformed = 2,
    /// It has no room.
    #[error("the function has no room for another flow")]
    Full = 3,
    /// Its configuration, or what it holds already, does not allow it.
    #[error("the function's configuration, or what it holds, does not allow it")]
    Conflict = 4,
    /// The state is longer than [`STATE_BYTES_LIMIT`].
    #[error("the state is longer than {STATE_BYTES_LIMIT} bytes")]
    TooLong = 5,
}

impl NotMoved {
    const ALL: [NotMoved; 5] = [
        NotMoved::Unsupported,
        NotMoved::Malformed,
        NotMoved::Full,
        NotMoved::Conflict,
        NotMoved::TooLong,
    ];
}

/// What a frame says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message<'a> {
    /// To an instance, on a port: say by each port when all before this was processed.
    Pass {
        /// The port.
        port: u8,
    },
    /// From an instance: what came before [`Message::Pass`] on the port `of` was processed, and what came of it by the
    /// port `by` has left.
    Passed {
        /// Where it was asked.
        of: u8,
        /// By which port it says so.
        by: u8,
    },
    /// To the source: give a copy of the flow's state.
    Export(Tuple),
    /// From the source: the state, empty if it has none.
    Exported(&'a [u8]),
    /// To the destination: take the flow over with that state, in place of what it has of it.
    Import(Tuple, &'a [u8]),
    /// From the destination: it has.
    Imported,
    /// From either, in place of an answer.
    Refused(NotMoved),
    /// To either: drop what there is of the flow.
    Forget(Tuple),
    /// To an instance that translates and is to end: give mappings, from that one on. It begins with 0.
    HandOver(u32),
    /// From it: so many mappings as one message carries.
    HandedOver {
        /// Where it goes on; [`None`] if these were the last.
        next: Option<u32>,
        /// The mappings.
        mappings: &'a [u8],
    },
    /// To another one: take these mappings over, with their external endpoints. It answers [`Message::Imported`].
    TakeOver(&'a [u8]),
    /// To that one: how many mappings with external ports of that block are there?
    Count(PortBlock),
    /// From it: so many.
    Counted(u32),
}

/// Whether a frame is a message, by its EtherType.
#[inline(always)]
pub fn is_message(frame: &[u8]) -> bool {
    frame.get(12..14) == Some(&ETHER_TYPE)
}

fn put_tuple(room: &mut [u8; TUPLE_BYTES], of: &Tuple) -> Option<()> {
    *room = [0; TUPLE_BYTES];
    room[1] = of.protocol;
    room[2..4].copy_from_slice(&of.vlan.to_be_bytes());
    room[4..6].copy_from_slice(&of.src_port.to_be_bytes());
    room[6..8].copy_from_slice(&of.dst_port.to_be_bytes());
    match (of.src, of.dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            room[0] = 4;
            room[8..12].copy_from_slice(&src.octets());
            room[24..28].copy_from_slice(&dst.octets());
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            room[0] = 6;
            room[8..24].copy_from_slice(&src.octets());
            room[24..40].copy_from_slice(&dst.octets());
        }
        _ => return None,
    }
    Some(())
}

fn tuple(bytes: &[u8; TUPLE_BYTES]) -> Option<Tuple> {
    let word = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
    let address = |at: usize| -> Option<IpAddr> {
        let of = bytes.get(at..at + 16)?;
        match bytes[0] {
            4 if of[4..] == [0; 12] => Some(IpAddr::from(*of.first_chunk::<4>()?)),
            6 => Some(IpAddr::from(*of.first_chunk::<16>()?)),
            _ => None,
        }
    };
    Some(Tuple {
        src: address(8)?,
        dst: address(24)?,
        src_port: word(4),
        dst_port: word(6),
        protocol: bytes[1],
        vlan: word(2),
    })
}

impl<'a> Message<'a> {
    const fn kind(&self) -> u8 {
        match self {
            Message::Pass { .. } => 1,
            Message::Passed { .. } => 2,
            Message::Export(_) => 3,
            Message::Exported(_) => 4,
            Message::Import(..) => 5,
            Message::Imported => 6,
            Message::Refused(_) => 7,
            Message::Forget(_) => 8,
            Message::HandOver(_) => 9,
            Message::HandedOver { .. } => 10,
            Message::TakeOver(_) => 11,
            Message::Count(_) => 12,
            Message::Counted(_) => 13,
        }
    }

    /// Writes the frame of a message about the move of that number, and returns its length. [`None`] if the state is
    /// longer than [`STATE_BYTES_LIMIT`], the room is shorter than the frame, or the addresses are of two families.
    pub fn write(&self, number: u64, room: &mut [u8]) -> Option<usize> {
        let mut flow = [0; TUPLE_BYTES];
        let mut block = [0; BLOCK_BYTES];
        let (small, word);
        let (first, second): (&[u8], &[u8]) = match self {
            Message::Pass { port } => {
                small = [*port, 0];
                (&small[..1], &[])
            }
            Message::Passed { of, by } => {
                small = [*of, *by];
                (&small, &[])
            }
            Message::Export(of) | Message::Forget(of) => {
                put_tuple(&mut flow, of)?;
                (&flow, &[])
            }
            Message::Exported(state) => (&[], state),
            Message::Import(of, state) => {
                put_tuple(&mut flow, of)?;
                (&flow, state)
            }
            Message::Imported => (&[], &[]),
            Message::Refused(why) => {
                small = [*why as u8, 0];
                (&small[..1], &[])
            }
            Message::HandOver(number) | Message::Counted(number) => {
                word = number.to_be_bytes();
                (&word, &[])
            }
            Message::HandedOver { next, mappings } => {
                word = next.unwrap_or(NO_MORE).to_be_bytes();
                (&word, mappings)
            }
            Message::TakeOver(mappings) => (&[], mappings),
            Message::Count(ports) => {
                block[..4].copy_from_slice(&ports.address.octets());
                block[4..6].copy_from_slice(&ports.first.to_be_bytes());
                block[6..].copy_from_slice(&ports.last.to_be_bytes());
                (&block, &[])
            }
        };
        if second.len() > STATE_BYTES_LIMIT {
            return None;
        }
        let content = first.len() + second.len();
        let frame = room.get_mut(..(HEADER_BYTES + content).max(FRAME_BYTES_MIN))?;
        frame.fill(0);
        // Locally administered addresses, as the switch's probes have.
        (frame[0], frame[6]) = (0x02, 0x02);
        frame[12..14].copy_from_slice(&ETHER_TYPE);
        (frame[14], frame[15]) = (VERSION, self.kind());
        frame[16..24].copy_from_slice(&number.to_be_bytes());
        frame[24..26].copy_from_slice(&(content as u16).to_be_bytes());
        let (to_first, to_second) = frame[HEADER_BYTES..].split_at_mut(first.len());
        to_first.copy_from_slice(first);
        to_second[..second.len()].copy_from_slice(second);
        Some(frame.len())
    }

    /// The message of a frame, with the number of its move. [`None`] if it is none, or of another version.
    pub fn read(frame: &'a [u8]) -> Option<(u64, Message<'a>)> {
        if !is_message(frame) || frame.get(14) != Some(&VERSION) {
            return None;
        }
        let kind = *frame.get(15)?;
        let number = u64::from_be_bytes(*frame.get(16..)?.first_chunk()?);
        let length = usize::from(u16::from_be_bytes(*frame.get(24..)?.first_chunk()?));
        let content = frame.get(HEADER_BYTES..HEADER_BYTES + length)?;
        let whole = || tuple(content.try_into().ok()?);
        let word = || Some(u32::from_be_bytes(content.try_into().ok()?));
        let message = match (kind, content) {
            (1, [port]) if *port < PORTS => Message::Pass { port: *port },
            (2, [of, by]) if *of < PORTS && *by < PORTS => Message::Passed { of: *of, by: *by },
            (3, _) => Message::Export(whole()?),
            (4, state) if state.len() <= STATE_BYTES_LIMIT => Message::Exported(state),
            (5, _) => {
                let (flow, state) = content.split_first_chunk::<TUPLE_BYTES>()?;
                if state.len() > STATE_BYTES_LIMIT {
                    return None;
                }
                Message::Import(tuple(flow)?, state)
            }
            (6, []) => Message::Imported,
            (7, [why]) => Message::Refused(NotMoved::ALL.into_iter().find(|of| *of as u8 == *why)?),
            (8, _) => Message::Forget(whole()?),
            (9, _) => Message::HandOver(word()?),
            (10, _) => {
                let (next, mappings) = content.split_first_chunk::<4>()?;
                if mappings.len() > STATE_BYTES_LIMIT {
                    return None;
                }
                let next = Some(u32::from_be_bytes(*next)).filter(|next| *next != NO_MORE);
                Message::HandedOver { next, mappings }
            }
            (11, mappings) if mappings.len() <= STATE_BYTES_LIMIT => Message::TakeOver(mappings),
            (12, &[a, b, c, d, e, f, g, h]) => Message::Count(PortBlock {
                address: [a, b, c, d].into(),
                first: u16::from_be_bytes([e, f]),
                last: u16::from_be_bytes([g, h]),
            }),
            (13, _) => Message::Counted(word()?),
            _ => return None,
        };
        Some((number, message))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn flows() -> impl Strategy<Value = Tuple> {
        let addresses = prop_oneof![
            any::<[[u8; 4]; 2]>().prop_map(|of| of.map(IpAddr::from)),
            any::<[[u8; 16]; 2]>().prop_map(|of| of.map(IpAddr::from)),
        ];
        (addresses, any::<(u16, u16, u8, u16)>()).prop_map(
            |([src, dst], (src_port, dst_port, protocol, vlan))| Tuple {
                src,
                dst,
                src_port,
                dst_port,
                protocol,
                vlan,
            },
        )
    }

    proptest! {
        #[test]
        fn a_message_is_read_as_it_was_written(
            flow in flows(), number: u64, kind in 1..=13_u8, ports in (0..2_u8, 0..2_u8), why in 0..5_usize,
            next: u32, block: (u32, u16, u16),
            state in prop::collection::vec(any::<u8>(), 0..=STATE_BYTES_LIMIT),
        ) {
            let message = match kind {
                1 => Message::Pass { port: ports.0 },
                2 => Message::Passed { of: ports.0, by: ports.1 },
                3 => Message::Export(flow),
                4 => Message::Exported(&state),
                5 => Message::Import(flow, &state),
                6 => Message::Imported,
                7 => Message::Refused(NotMoved::ALL[why]),
                8 => Message::Forget(flow),
                9 => Message::HandOver(next),
                10 => Message::HandedOver { next: Some(next).filter(|_| next % 2 == 0), mappings: &state },
                11 => Message::TakeOver(&state),
                12 => {
                    let (address, first, last) = block;
                    Message::Count(PortBlock { address: address.into(), first, last })
                }
                _ => Message::Counted(next),
            };
            let mut room = [0xff; FRAME_BYTES_LIMIT];
            let length = message.write(number, &mut room).unwrap();
            prop_assert!((60..=FRAME_BYTES_LIMIT).contains(&length) && is_message(&room));
            prop_assert_eq!(Message::read(&room[..length]), Some((number, message)));
            // A frame that is cut off is none, unless only its padding is.
            for cut in 0..HEADER_BYTES {
                prop_assert_eq!(Message::read(&room[..cut]), None);
            }
            prop_assert_eq!(message.write(number, &mut [0; 59]), None);
        }

        #[test]
        fn foreign_bytes_are_no_message_or_one_that_is_written_the_same(
            kind in 0..15_u8, length in 0..1100_u16, bytes in prop::collection::vec(any::<u8>(), 0..1200),
        ) {
            let mut frame = vec![0; 12];
            frame.extend([0x88, 0xb6, VERSION, kind, 0, 0, 0, 0, 0, 0, 0, 9]);
            frame.extend(length.to_be_bytes());
            frame.extend(bytes);
            if let Some((number, message)) = Message::read(&frame) {
                let mut room = [0; FRAME_BYTES_LIMIT];
                let written = message.write(number, &mut room).unwrap();
                prop_assert_eq!(Message::read(&room[..written]), Some((9, message)));
            }
        }
    }

    #[test]
    fn what_is_too_long_is_not_written() {
        let state = [0; STATE_BYTES_LIMIT + 1];
        let mut room = [0; 4096];
        assert_eq!(Message::Exported(&state).write(1, &mut room), None);
        assert_eq!(Message::read(&[0; 100]), None);
    }
}
