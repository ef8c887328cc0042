//! A mapping as a value, which moves from one instance to another.

use std::net::SocketAddrV4;

use super::mapping::Class;
use super::tcp::State;

/// Bytes of a moved mapping.
pub(super) const MOVED_BYTES: usize = 26;
/// Of their layout; the first byte.
const VERSION: u8 = 1;

/// A mapping on its way to another instance. The external endpoint stays the same, so that the other instance must get
/// the packets to it from then on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MovedMapping {
    pub(super) class: Class,
    pub(super) internal: SocketAddrV4,
    pub(super) external: SocketAddrV4,
    /// Where the inside has sent last.
    pub(super) remote: SocketAddrV4,
    pub(super) state: State,
    /// How long it has been idle, in seconds.
    pub(super) idle_s: u32,
}

impl MovedMapping {
    /// Version, protocol, state of TCP, 0, idle time, then the internal, external and remote endpoint. Numbers are in
    /// the byte order of networks.
    pub(super) fn to_bytes(self) -> [u8; MOVED_BYTES] {
        let mut bytes = [0; MOVED_BYTES];
        bytes[0] = VERSION;
        bytes[1] = self.class as u8;
        bytes[2] = self.state.byte();
        bytes[4..8].copy_from_slice(&self.idle_s.to_be_bytes());
        for (place, end) in bytes[8..]
            .chunks_exact_mut(6)
            .zip([self.internal, self.external, self.remote])
        {
            place[..4].copy_from_slice(&end.ip().octets());
            place[4..].copy_from_slice(&end.port().to_be_bytes());
        }
        bytes
    }

    /// The mapping that these bytes are; [`None`] if they are none, or of another version.
    pub(super) fn from_bytes(bytes: &[u8]) -> Option<MovedMapping> {
        let bytes: &[u8; MOVED_BYTES] = bytes.try_into().ok()?;
        let [VERSION, class, state, 0, ..] = *bytes else {
            return None;
        };
        let class = [Class::Tcp, Class::Udp, Class::Icmp]
            .into_iter()
            .find(|of| *of as u8 == class)?;
        let end = |at: usize| {
            let ip = bytes.get(at..)?.first_chunk::<4>()?;
            let port = bytes.get(at + 4..)?.first_chunk::<2>()?;
            Some(SocketAddrV4::new((*ip).into(), u16::from_be_bytes(*port)))
        };
        Some(MovedMapping {
            class,
            internal: end(8)?,
            external: end(14)?,
            remote: end(20)?,
            state: State::from_byte(state)?,
            idle_s: u32::from_be_bytes(*bytes.get(4..)?.first_chunk()?),
        })
    }
}
