//! What a supervisor and the process of a group say to each other: packets over a socket that keeps their bounds.
//! Numbers are little-endian.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};

use actor_runtime::{ActorId, Address, BODY_BYTES_LIMIT, Message};
use model::Nanos;
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};
use serde::{Deserialize, Serialize};

use crate::ACTORS_LIMIT;

/// Bytes of a packet, at most.
pub(crate) const PACKET_BYTES: usize = BODY_BYTES_LIMIT + 64;
/// Descriptors of the first packet: the page, and a region of each actor.
const DESCRIPTORS: usize = ACTORS_LIMIT + 1;

/// The first packet: what the process is to serve. The descriptors of the page and of the regions come with it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Start {
    pub(crate) actors: Vec<StartActor>,
}

/// An actor of the first packet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StartActor {
    pub(crate) id: u32,
    pub(crate) kind: String,
    pub(crate) mailbox_limit: usize,
    /// Its place in the page.
    pub(crate) slot: usize,
    /// Messages of it that have ended.
    pub(crate) ended: u64,
}

/// A later packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Packet {
    /// To the process: a message for an actor of it. From it: a message that the actor which runs has sent.
    Message(Message),
    /// From the process: the actor has ended its next message; the messages before this packet are what it sent.
    Ended(ActorId),
}

impl Packet {
    pub(crate) fn encode(&self, into: &mut Vec<u8>) {
        match self {
            Packet::Message(message) => Packet::encode_message(message, into),
            Packet::Ended(actor) => {
                into.clear();
                into.push(2);
                into.extend(actor.0.to_le_bytes());
            }
        }
    }

    pub(crate) fn encode_message(message: &Message, into: &mut Vec<u8>) {
        into.clear();
        into.push(1);
        address(message.to, into);
        address(message.from, into);
        into.extend(message.kind.to_le_bytes());
        into.extend(message.arrived.0.to_le_bytes());
        into.extend(&message.body);
    }

    /// Nothing for bytes that no [`encode`](Packet::encode) gives.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Packet> {
        let mut rest = bytes;
        match take::<1>(&mut rest)? {
            [1] => {
                let (to, from) = (read_address(&mut rest)?, read_address(&mut rest)?);
                let kind = u32::from_le_bytes(take(&mut rest)?);
                let arrived = Nanos(u64::from_le_bytes(take(&mut rest)?));
                (rest.len() <= BODY_BYTES_LIMIT)
                    .then(|| Packet::Message(Message::new(to, from, kind, rest.to_vec(), arrived)))
            }
            [2] => {
                let actor = ActorId(u32::from_le_bytes(take(&mut rest)?));
                rest.is_empty().then_some(Packet::Ended(actor))
            }
            _ => None,
        }
    }
}

fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (first, others) = rest.split_first_chunk()?;
    *rest = others;
    Some(*first)
}

fn address(address: Address, into: &mut Vec<u8>) {
    let (kind, number) = match address {
        Address::Actor(actor) => (0, u64::from(actor.0)),
        Address::Outside(number) => (1, number),
    };
    into.push(kind);
    into.extend(number.to_le_bytes());
}

fn read_address(rest: &mut &[u8]) -> Option<Address> {
    let [kind] = take(rest)?;
    let number = u64::from_le_bytes(take(rest)?);
    match kind {
        0 => Some(Address::Actor(ActorId(u32::try_from(number).ok()?))),
        1 => Some(Address::Outside(number)),
        _ => None,
    }
}

/// Sends a packet.
pub(crate) fn send(socket: BorrowedFd<'_>, bytes: &[u8], flags: SendFlags) -> Result<(), Errno> {
    rustix::net::send(socket, bytes, flags | SendFlags::NOSIGNAL).map(drop)
}

/// Receives a packet; nothing where the other end has closed.
pub(crate) fn receive<'a>(
    socket: BorrowedFd<'_>,
    buffer: &'a mut [u8],
    flags: RecvFlags,
) -> Result<Option<&'a [u8]>, Errno> {
    let (bytes, _) = rustix::net::recv(socket, &mut *buffer, flags)?;
    Ok((bytes > 0).then(|| &buffer[..bytes]))
}

/// Sends the first packet.
pub(crate) fn send_start(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !ancillary.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(Errno::TOOBIG);
    }
    rustix::net::sendmsg(
        socket,
        &[IoSlice::new(bytes)],
        &mut ancillary,
        SendFlags::NOSIGNAL,
    )
    .map(drop)
}

/// Receives the first packet, and its descriptors.
pub(crate) fn receive_start(socket: BorrowedFd<'_>) -> Result<(Vec<u8>, Vec<OwnedFd>), Errno> {
    let mut bytes = vec![0; PACKET_BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = rustix::net::recvmsg(
        socket,
        &mut [IoSliceMut::new(&mut bytes)],
        &mut ancillary,
        RecvFlags::CMSG_CLOEXEC,
    )?;
    bytes.truncate(received.bytes);
    let mut descriptors = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(of) = message {
            descriptors.extend(of);
        }
    }
    Ok((bytes, descriptors))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn addresses() -> impl Strategy<Value = Address> {
        prop_oneof![
            any::<u32>().prop_map(|actor| Address::Actor(ActorId(actor))),
            any::<u64>().prop_map(Address::Outside),
        ]
    }

    fn packets() -> impl Strategy<Value = Packet> {
        let body = prop::collection::vec(any::<u8>(), 0..100);
        let message = (addresses(), addresses(), any::<u32>(), body, any::<u64>());
        prop_oneof![
            message.prop_map(|(to, from, kind, body, at)| Packet::Message(Message::new(
                to,
                from,
                kind,
                body,
                Nanos(at)
            ))),
            any::<u32>().prop_map(|actor| Packet::Ended(ActorId(actor))),
        ]
    }

    proptest! {
        #[test]
        fn a_packet_is_read_as_it_was_written(packet in packets()) {
            let mut bytes = Vec::new();
            packet.encode(&mut bytes);
            prop_assert_eq!(Packet::decode(&bytes), Some(packet));
        }

        #[test]
        fn bytes_that_are_read_are_written_the_same(bytes in prop::collection::vec(0..3u8, 0..60)) {
            if let Some(packet) = Packet::decode(&bytes) {
                let mut again = Vec::new();
                packet.encode(&mut again);
                prop_assert_eq!(again, bytes);
            }
        }
    }

    #[test]
    fn longer_bodies_than_the_limit_are_refused() {
        let body = vec![0; BODY_BYTES_LIMIT];
        let to = Address::Actor(ActorId(1));
        let mut bytes = Vec::new();
        Packet::Message(Message::new(to, to, 0, body, Nanos(1))).encode(&mut bytes);
        assert!(bytes.len() <= PACKET_BYTES);
        assert!(Packet::decode(&bytes).is_some());
        bytes.push(0);
        assert_eq!(Packet::decode(&bytes), None);
    }
}
