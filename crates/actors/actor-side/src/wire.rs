//! The bytes of a message between actors or networks of the two sides, behind the head of `actor-migration`.
//!
//! | bytes | what |
//! | --- | --- |
//! | 0..8 | who gets it, for a network: its number; else 0 |
//! | 8..16 | who sent it: its number |
//! | 16..20 | the message's kind |
//! | 20..24 | 0: an actor sent it; 1: somebody outside |
//! | 24.. | the body |

use actor_runtime::{ActorId, Address, BODY_BYTES_LIMIT, Message};
use model::Nanos;

/// Bytes before the body.
pub(crate) const HEAD_BYTES: usize = 24;
/// The number in place of an actor's for what goes to a network. No actor has it.
pub(crate) const NETWORK: u32 = u32::MAX;
/// Bytes of the longest message on the channel.
pub(crate) const LONGEST: usize = actor_migration::HEAD_BYTES + HEAD_BYTES + BODY_BYTES_LIMIT;

pub(crate) fn head_of(message: &Message) -> [u8; HEAD_BYTES] {
    let to = match message.to {
        Address::Outside(number) => number,
        Address::Actor(_) => 0,
    };
    let (from, is_outside) = match message.from {
        Address::Actor(actor) => (u64::from(actor.0), 0_u32),
        Address::Outside(number) => (number, 1),
    };
    let mut head = [0; HEAD_BYTES];
    head[..8].copy_from_slice(&to.to_le_bytes());
    head[8..16].copy_from_slice(&from.to_le_bytes());
    head[16..20].copy_from_slice(&message.kind.to_le_bytes());
    head[20..].copy_from_slice(&is_outside.to_le_bytes());
    head
}

/// The message that bytes say, for an actor or for a network; [`None`] for bytes that no side writes.
pub(crate) fn read(actor: u32, bytes: &[u8], now: Nanos) -> Option<Message> {
    let (head, body) = bytes.split_first_chunk::<HEAD_BYTES>()?;
    let long = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| head[at + byte]));
    let short = |at: usize| u32::from_le_bytes(std::array::from_fn(|byte| head[at + byte]));
    let to = match (actor, long(0)) {
        (NETWORK, number) => Address::Outside(number),
        (actor, 0) => Address::Actor(ActorId(actor)),
        _ => return None,
    };
    let from = match short(20) {
        0 => Address::Actor(ActorId(u32::try_from(long(8)).ok()?)),
        1 => Address::Outside(long(8)),
        _ => return None,
    };
    let is_short = body.len() <= BODY_BYTES_LIMIT;
    is_short.then(|| Message::new(to, from, short(16), body.to_vec(), now))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_read_is_what_was_written(
            mut bytes in proptest::collection::vec(any::<u8>(), 0..60),
            actor in prop_oneof![Just(NETWORK), 0..4_u32],
            plain in any::<bool>(),
        ) {
            if plain && bytes.len() >= HEAD_BYTES {
                bytes[20..24].fill(0);
                bytes[20] = bytes[0] & 1;
                bytes[12..16].fill(0);
                if actor != NETWORK {
                    bytes[..8].fill(0);
                }
            }
            match read(actor, &bytes, Nanos(7)) {
                Some(message) => {
                    prop_assert_eq!(&head_of(&message)[..], &bytes[..HEAD_BYTES]);
                    prop_assert_eq!(&message.body[..], &bytes[HEAD_BYTES..]);
                }
                None => prop_assert!(!plain || bytes.len() < HEAD_BYTES),
            }
        }
    }
}
