//! Messages between replicas.
//!
//! | kind | body |
//! | --- | --- |
//! | 0x220 prepare | ballot (8), chosen (8) |
//! | 0x221 promise | ballot (8), for each accepted slot behind the chosen ones: slot (8), ballot (8), command (2 and bytes) |
//! | 0x222 accept | ballot (8), chosen (8), slot (8), command (2 and bytes) |
//! | 0x223 accepted | ballot (8), slot (8) |
//! | 0x224 refuse | ballot (8): the one that was promised |
//! | 0x225 heartbeat | ballot (8), chosen (8), round of questions (8) |
//! | 0x226 ask | the first slot that the sender has not (8) |
//! | 0x227 learn | the first slot (8), chosen commands in order (2 and bytes each) |
//! | 0x229 behind | the log does not reach back so far; the last slot that the sender has applied (8) |
//! | 0x22a want | a part of a snapshot: the slot that it is at least of (8; 0: its head), keys behind this one (1 and bytes) |
//! | 0x22b head | the slot of a snapshot (8), the last request of each client there: client (8), id (8) |
//! | 0x22c entries | the slot (8), 1: the last part, behind which key (1 and bytes), until which key (1 and bytes), entries |
//! | 0x22d yield | ballot (8): its leader leads no more, and the replica behind it is to be elected now |
//! | 0x228 follows | ballot (8), the round of the heartbeat (8) |
//!
//! A ballot is a round times 256 plus the index of its replica. Chosen: the last slot up to which the sender knows all.

use crate::codec::{Reader, Write as _};
use crate::store::client::COMMAND_BYTES;

/// A message of a replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Peer<'a> {
    Prepare {
        ballot: u64,
        chosen: u64,
    },
    Promise {
        ballot: u64,
        accepted: Vec<(u64, u64, &'a [u8])>,
    },
    Accept {
        ballot: u64,
        chosen: u64,
        slot: u64,
        command: &'a [u8],
    },
    Accepted {
        ballot: u64,
        slot: u64,
    },
    Refuse {
        ballot: u64,
    },
    Heartbeat {
        ballot: u64,
        chosen: u64,
        round: u64,
    },
    Ask {
        first: u64,
    },
    Learn {
        first: u64,
        commands: Vec<&'a [u8]>,
    },
    Follows {
        ballot: u64,
        round: u64,
    },
    Behind {
        slot: u64,
    },
    Yield {
        ballot: u64,
    },
    Want {
        slot: u64,
        after: &'a [u8],
    },
    Head {
        slot: u64,
        clients: &'a [u8],
    },
    Entries {
        slot: u64,
        part: &'a [u8],
    },
}

const FIRST_KIND: u32 = 0x220;

impl<'a> Peer<'a> {
    /// Kind and body of the message.
    pub(crate) fn encode(&self) -> (u32, Vec<u8>) {
        let mut body = Vec::new();
        let kind = match self {
            Peer::Prepare { ballot, chosen } => {
                body.put_u64(*ballot).put_u64(*chosen);
                0
            }
            Peer::Promise { ballot, accepted } => {
                body.put_u64(*ballot);
                for (slot, ballot, command) in accepted {
                    body.put_u64(*slot).put_u64(*ballot).put_long(command);
                }
                1
            }
            Peer::Accept {
                ballot,
                chosen,
                slot,
                command,
            } => {
                body.put_u64(*ballot)
                    .put_u64(*chosen)
                    .put_u64(*slot)
                    .put_long(command);
                2
            }
            Peer::Accepted { ballot, slot } => {
                body.put_u64(*ballot).put_u64(*slot);
                3
            }
            Peer::Refuse { ballot } => {
                body.put_u64(*ballot);
                4
            }
            Peer::Heartbeat {
                ballot,
                chosen,
                round,
            } => {
                body.put_u64(*ballot).put_u64(*chosen).put_u64(*round);
                5
            }
            Peer::Follows { ballot, round } => {
                body.put_u64(*ballot).put_u64(*round);
                8
            }
            Peer::Behind { slot } => {
                body.put_u64(*slot);
                9
            }
            Peer::Yield { ballot } => {
                body.put_u64(*ballot);
                13
            }
            Peer::Want { slot, after } => {
                body.put_u64(*slot).put_short(after);
                10
            }
            Peer::Head { slot, clients } => {
                body.put_u64(*slot).extend(*clients);
                11
            }
            Peer::Entries { slot, part } => {
                body.put_u64(*slot).extend(*part);
                12
            }
            Peer::Ask { first } => {
                body.put_u64(*first);
                6
            }
            Peer::Learn { first, commands } => {
                body.put_u64(*first);
                for command in commands {
                    body.put_long(command);
                }
                7
            }
        };
        (FIRST_KIND + kind, body)
    }

    /// What a message says; [`None`] for another form.
    pub(crate) fn decode(kind: u32, body: &'a [u8]) -> Option<Peer<'a>> {
        let mut reader = Reader(body);
        let command = |reader: &mut Reader<'a>| reader.long().filter(|bytes| bytes.len() <= COMMAND_BYTES);
        let number = reader.u64()?;
        let peer = match kind.checked_sub(FIRST_KIND)? {
            0 => Peer::Prepare {
                ballot: number,
                chosen: reader.u64()?,
            },
            1 => {
                let mut accepted = Vec::new();
                while !reader.0.is_empty() {
                    accepted.push((reader.u64()?, reader.u64()?, command(&mut reader)?));
                }
                Peer::Promise {
                    ballot: number,
                    accepted,
                }
            }
            2 => Peer::Accept {
                ballot: number,
                chosen: reader.u64()?,
                slot: reader.u64()?,
                command: command(&mut reader)?,
            },
            3 => Peer::Accepted {
                ballot: number,
                slot: reader.u64()?,
            },
            4 => Peer::Refuse { ballot: number },
            5 => Peer::Heartbeat {
                ballot: number,
                chosen: reader.u64()?,
                round: reader.u64()?,
            },
            8 => Peer::Follows {
                ballot: number,
                round: reader.u64()?,
            },
            9 => Peer::Behind { slot: number },
            13 => Peer::Yield { ballot: number },
            10 => Peer::Want {
                slot: number,
                after: reader.short()?,
            },
            // Their receivers read the rest.
            11 | 12 => {
                let rest = std::mem::take(&mut reader.0);
                match kind - FIRST_KIND {
                    11 => Peer::Head {
                        slot: number,
                        clients: rest,
                    },
                    _ => Peer::Entries {
                        slot: number,
                        part: rest,
                    },
                }
            }
            6 => Peer::Ask { first: number },
            7 => {
                let mut commands = Vec::new();
                while !reader.0.is_empty() {
                    commands.push(command(&mut reader)?);
                }
                Peer::Learn {
                    first: number,
                    commands,
                }
            }
            _ => return None,
        };
        reader.end(peer)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_read_is_what_was_written(
            kind in FIRST_KIND..FIRST_KIND + 14,
            body in prop::collection::vec(prop_oneof![3 => Just(0_u8), 1 => any::<u8>()], 0..80),
        ) {
            if let Some(peer) = Peer::decode(kind, &body) {
                prop_assert_eq!(peer.encode(), (kind, body.clone()));
            }
        }
    }
}
