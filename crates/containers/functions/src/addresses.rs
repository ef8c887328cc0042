//! The addresses of a packet itself, also where its flow is one that it quotes.

use std::net::IpAddr;

use model::FlowKey;
use packet::PacketInfo;

/// Source and destination of the IP packet that [`packet::parse`] has described.
#[inline(always)]
pub(crate) fn addresses(info: &PacketInfo, frame: &[u8]) -> Option<(IpAddr, IpAddr)> {
    let packet = frame.get(usize::from(info.l3_offset)..)?;
    match info.key {
        FlowKey::V4(_) => {
            let address = |at| Some(IpAddr::from(*packet.get(at..)?.first_chunk::<4>()?));
            Some((address(12)?, address(16)?))
        }
        FlowKey::V6(_) => {
            let address = |at| Some(IpAddr::from(*packet.get(at..)?.first_chunk::<16>()?));
            Some((address(8)?, address(24)?))
        }
    }
}
