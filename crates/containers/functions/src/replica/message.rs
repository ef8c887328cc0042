//! What clients and replicas say to each other: 48 bytes, and a value behind them.

use std::net::{IpAddr, SocketAddr};

/// Bytes before the value.
pub(super) const HEADER: usize = 48;

/// The first byte of a message. That of an answer to a client has [`ANSWER`] besides.
pub(super) const WRITE: u8 = 1;
pub(super) const READ: u8 = 2;
pub(super) const REMOVE: u8 = 3;
/// Between replicas.
pub(super) const UPDATE: u8 = 4;
pub(super) const ACKNOWLEDGE: u8 = 5;
pub(super) const ANSWER: u8 = 0x80;

/// The second byte of an answer; that of an update is [`WRITE`] or [`REMOVE`].
pub(super) const DONE: u8 = 0;
pub(super) const NOT_FOUND: u8 = 1;
pub(super) const BUSY: u8 = 2;
pub(super) const WRONG_REPLICA: u8 = 3;
pub(super) const NO_ROOM: u8 = 4;

/// A message without its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Message {
    pub(super) kind: u8,
    pub(super) detail: u8,
    /// Bytes of the value.
    pub(super) len: u16,
    /// The client's own number.
    pub(super) request: u32,
    pub(super) key: u64,
    /// How many writes and removals the head has taken, with this one.
    pub(super) version: u64,
    /// To whom the tail answers, and the MAC address from which the head has got the request.
    pub(super) client: SocketAddr,
    pub(super) mac: [u8; 6],
}

impl Message {
    /// The message at the start of a payload, and what follows it.
    pub(super) fn read(payload: &[u8]) -> Option<(Message, &[u8])> {
        let (header, rest) = payload.split_first_chunk::<HEADER>()?;
        let &[kind, detail, l0, l1, r0, r1, r2, r3, ref words @ ..] = header;
        let (key, words) = words.split_first_chunk::<8>()?;
        let (version, words) = words.split_first_chunk::<8>()?;
        let (address, words) = words.split_first_chunk::<16>()?;
        let &[p0, p1, ref mac @ ..] = words.first_chunk::<8>()?;
        let message = Message {
            kind,
            detail,
            len: u16::from_be_bytes([l0, l1]),
            request: u32::from_be_bytes([r0, r1, r2, r3]),
            key: u64::from_be_bytes(*key),
            version: u64::from_be_bytes(*version),
            client: SocketAddr::new(
                IpAddr::from(*address).to_canonical(),
                u16::from_be_bytes([p0, p1]),
            ),
            mac: *mac,
        };
        Some((message, rest))
    }

    pub(super) fn bytes(&self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        let address = match self.client.ip() {
            IpAddr::V4(of) => of.to_ipv6_mapped().octets(),
            IpAddr::V6(of) => of.octets(),
        };
        bytes[..2].copy_from_slice(&[self.kind, self.detail]);
        bytes[2..4].copy_from_slice(&self.len.to_be_bytes());
        bytes[4..8].copy_from_slice(&self.request.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.key.to_be_bytes());
        bytes[16..24].copy_from_slice(&self.version.to_be_bytes());
        bytes[24..40].copy_from_slice(&address);
        bytes[40..42].copy_from_slice(&self.client.port().to_be_bytes());
        bytes[42..].copy_from_slice(&self.mac);
        bytes
    }
}
