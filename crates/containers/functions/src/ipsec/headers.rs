//! The IP headers inside and outside of a tunnel.

use std::net::IpAddr;

use packet::{Parsed, checksum};

/// Length of an IPv4 header without options, in bytes.
pub(super) const IPV4: usize = 20;
/// Length of an IPv6 header, in bytes.
pub(super) const IPV6: usize = 40;
/// Length of a UDP header, in bytes.
pub(super) const UDP: usize = 8;
/// Numbers of protocols.
pub(super) const ESP: u8 = 50;
pub(super) const IN_IPV4: u8 = 4;
pub(super) const IN_IPV6: u8 = 41;
/// A packet without content, which hides that there is nothing to send.
pub(super) const DUMMY: u8 = 59;
/// "Congestion experienced", in the two lower bits of the traffic class.
const CE: u8 = 3;
const ECT_1: u8 = 1;
const ECT_0: u8 = 2;
/// The bits of explicit congestion notification.
pub(super) const ECN: u8 = 3;
const DONT_FRAGMENT: u8 = 0x40;

/// An address as a number; of IPv4, its 32 bits.
pub(super) fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(address.to_bits()),
        IpAddr::V6(address) => address.to_bits(),
    }
}

/// An IP packet in a frame.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ip {
    /// Where it begins in the frame: the length of the Ethernet header with its tags.
    pub(super) at: usize,
    /// Its length, without the padding of the frame.
    pub(super) len: usize,
    pub(super) is_v6: bool,
    /// Its transport, and where that begins, behind options and extension headers.
    pub(super) protocol: u8,
    pub(super) transport: usize,
    /// Type of service, or traffic class.
    pub(super) class: u8,
    /// IPv4's flag that it must not be fragmented; always true for IPv6.
    pub(super) dont_fragment: bool,
    /// It is a fragment, or was one before a bad header.
    pub(super) is_fragment: bool,
    pub(super) src: u128,
    pub(super) dst: u128,
}

/// What a frame holds.
pub(super) enum Content {
    Ip(Ip),
    /// Neither IPv4 nor IPv6.
    Other,
    /// An IP packet whose headers are wrong.
    Malformed,
}

/// Reads a frame. It is compiled into its caller: a packet's fields would be written and read again otherwise.
#[inline(always)]
pub(super) fn frame(frame: &[u8]) -> Content {
    let mut at = 14;
    let mut kind = be16(frame, 12);
    let mut tags = 0;
    while matches!(kind, Some(0x8100 | 0x88a8 | 0x9100)) && tags < packet::MAX_VLAN_TAGS {
        kind = be16(frame, at + 2);
        at += 4;
        tags += 1;
    }
    match kind {
        Some(packet::ethertype::IPV4) => match ipv4(frame, at) {
            Some(ip) => Content::Ip(ip),
            None => Content::Malformed,
        },
        Some(packet::ethertype::IPV6) => match ipv6(frame, at) {
            Some(ip) => Content::Ip(ip),
            None => Content::Malformed,
        },
        Some(_) => Content::Other,
        None => Content::Malformed,
    }
}

/// Reads the IPv4 packet that begins at a byte of a frame.
#[inline(always)]
pub(super) fn ipv4(frame: &[u8], at: usize) -> Option<Ip> {
    let packet = frame.get(at..)?;
    let h = packet.first_chunk::<IPV4>()?;
    let header = usize::from(h[0] & 0x0f) * 4;
    let len = usize::from(u16::from_be_bytes([h[2], h[3]]));
    if h[0] >> 4 != 4 || header < IPV4 || header > len || len > packet.len() {
        return None;
    }
    Some(Ip {
        at,
        len,
        is_v6: false,
        protocol: h[9],
        transport: at + header,
        class: h[1],
        dont_fragment: h[6] & DONT_FRAGMENT != 0,
        is_fragment: u16::from_be_bytes([h[6], h[7]]) & 0x3fff != 0,
        src: u128::from(u32::from_be_bytes([h[12], h[13], h[14], h[15]])),
        dst: u128::from(u32::from_be_bytes([h[16], h[17], h[18], h[19]])),
    })
}

/// Reads the IPv6 packet that begins at a byte of a frame. Behind extension headers that cannot be followed, the
/// protocol is the first one's number.
#[inline]
pub(super) fn ipv6(frame: &[u8], at: usize) -> Option<Ip> {
    let packet = frame.get(at..)?;
    let h = packet.first_chunk::<IPV6>()?;
    let len = IPV6 + usize::from(u16::from_be_bytes([h[4], h[5]]));
    if h[0] >> 4 != 6 || len > packet.len() {
        return None;
    }
    let mut ip = Ip {
        at,
        len,
        is_v6: true,
        protocol: h[6],
        transport: at + IPV6,
        class: h[0] << 4 | h[1] >> 4,
        dont_fragment: true,
        is_fragment: false,
        src: u128::from_be_bytes(*h.get(8..)?.first_chunk()?),
        dst: u128::from_be_bytes(*h.get(24..)?.first_chunk()?),
    };
    if matches!(h[6], 0 | 43 | 44 | 51 | 60) {
        match packet::parse(frame) {
            Parsed::Flow(info) if usize::from(info.l3_offset) == at => {
                ip.protocol = info.protocol;
                ip.transport = usize::from(info.l4_offset);
            }
            Parsed::Fragment(fragment) if usize::from(fragment.info.l3_offset) == at => {
                ip.protocol = fragment.info.protocol;
                ip.is_fragment = true;
            }
            _ => return None,
        }
    }
    Some(ip)
}

/// The traffic class of an inner packet when it leaves a tunnel (RFC 6040, figure 4). [`None`] if it must be dropped:
/// it met congestion, and its ends would not understand that.
#[inline]
pub(super) fn leave_tunnel(inner: u8, outer: u8) -> Option<u8> {
    match (inner & ECN, outer & ECN) {
        (0, CE) => None,
        (0, _) => Some(inner),
        (_, CE) => Some(inner | CE),
        (ECT_0, ECT_1) => Some(inner & !ECN | ECT_1),
        _ => Some(inner),
    }
}

/// Changes the traffic class of the IP packet at the start of `packet`.
#[inline]
pub(super) fn set_class(packet: &mut [u8], is_v6: bool, class: u8) {
    if is_v6 {
        if let [first, second, ..] = packet {
            *first = *first & 0xf0 | class >> 4;
            *second = *second & 0x0f | class << 4;
        }
    } else if let Some(h) = packet.first_chunk_mut::<IPV4>() {
        let before = [h[0], h[1]];
        h[1] = class;
        let sum = u16::from_be_bytes([h[10], h[11]]);
        let sum = checksum::update(sum, checksum::difference(&before, &[h[0], h[1]]));
        [h[10], h[11]] = sum.to_be_bytes();
    }
}

#[inline]
pub(super) fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    bytes
        .get(at..)?
        .first_chunk::<2>()
        .map(|b| u16::from_be_bytes(*b))
}

#[inline]
pub(super) fn be32(bytes: &[u8], at: usize) -> Option<u32> {
    bytes
        .get(at..)?
        .first_chunk::<4>()
        .map(|b| u32::from_be_bytes(*b))
}

#[cfg(test)]
mod tests {
    use super::*;
    use packet::build::Frame;

    #[test]
    fn congestion_leaves_a_tunnel_as_rfc_6040_says() {
        // Columns: the outer header says not-ECT, ECT(0), ECT(1), CE.
        let table = [
            (0, [Some(0), Some(0), Some(0), None]),
            (ECT_0, [Some(ECT_0), Some(ECT_0), Some(ECT_1), Some(CE)]),
            (ECT_1, [Some(ECT_1), Some(ECT_1), Some(ECT_1), Some(CE)]),
            (CE, [Some(CE), Some(CE), Some(CE), Some(CE)]),
        ];
        for (inner, row) in table {
            for (outer, expected) in [0, ECT_0, ECT_1, CE].into_iter().zip(row) {
                let dscp = 46 << 2;
                let got = leave_tunnel(dscp | inner, outer);
                assert_eq!(got, expected.map(|ecn| dscp | ecn), "{inner} {outer}");
            }
        }
    }

    #[test]
    fn a_changed_class_keeps_the_header_valid() {
        for ends in [["10.0.0.1:5", "10.0.0.2:6"], ["[fd00::1]:5", "[fd00::2]:6"]] {
            let [src, dst] = ends.map(|end| end.parse().unwrap());
            let mut bytes = Frame::udp(src, dst, b"text").unwrap().to_vec().unwrap();
            for class in 0..=255 {
                set_class(&mut bytes[14..], src.is_ipv6(), class);
                let Content::Ip(ip) = frame(&bytes) else { panic!() };
                assert_eq!((ip.class, ip.protocol), (class, 17));
                assert!(matches!(packet::parse(&bytes), Parsed::Flow(info) if info.dscp == class >> 2));
            }
        }
    }
}
