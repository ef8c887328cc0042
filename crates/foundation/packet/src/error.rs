//! ICMP errors to the sender of a packet that goes no further.

use std::net::IpAddr;

use model::protocol;

use crate::PacketInfo;
use crate::build::Frame;
use crate::headers::ETHERNET_LEN;
use crate::parse::{Parsed, parse};

/// Bytes of a frame with an ICMP error, at most.
pub const ICMP_ERROR_LIMIT: usize = LINK_LIMIT + BYTES_LIMIT_V6;

/// Bytes of Ethernet's header with as many tags as the parser takes, at most.
const LINK_LIMIT: usize = 32;
/// Bytes of an ICMP error over IPv4 with its header, at most (RFC 1812, 4.3.2.3).
const BYTES_LIMIT_V4: usize = 576;
/// Over IPv6: the smallest link (RFC 4443, 2.4).
const BYTES_LIMIT_V6: usize = 1280;
/// Bytes of IPv4, IPv6 and ICMP headers.
const HEADER_V4: usize = 20;
const HEADER_V6: usize = 40;
const ICMP: usize = 8;
/// "Don't fragment", in the seventh byte of an IPv4 header.
const DONT_FRAGMENT: u8 = 0x40;

/// What an ICMP error says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IcmpError {
    /// Type and code, of ICMP or of ICMPv6.
    pub kind: (u8, u8),
    /// The four bytes behind the checksum.
    pub word: [u8; 4],
}

/// Whether a packet may be answered with an error (RFC 1122, 3.2.2; RFC 4443, 2.4 e): it is no error itself, and on a link
/// with Ethernet's header and tags. Later fragments may not, either: the caller asks only about others.
pub fn may_be_answered(info: &PacketInfo, frame: &[u8]) -> bool {
    let message = frame.get(usize::from(info.l4_offset)).copied().unwrap_or(0);
    let is_error = match info.protocol {
        // Unreachable, quench, redirect, exceeded, parameter.
        protocol::ICMP => matches!(message, 3 | 4 | 5 | 11 | 12),
        // Below 128 are errors; 137 is a redirect.
        protocol::ICMPV6 => message < 128 || message == 137,
        _ => false,
    };
    !info.is_icmp_error && !is_error && usize::from(info.l3_offset) <= LINK_LIMIT
}

/// Writes an ICMP error about a packet into `out`, and gives its length. It goes from `src` to the packet's sender, over the
/// same link with the same tags, from `mac` or the address that the packet went to. [`None`] for a frame that is cut off.
pub fn icmp_error(
    frame: &[u8],
    info: &PacketInfo,
    src: IpAddr,
    error: IcmpError,
    mac: Option<[u8; 6]>,
    out: &mut [u8; ICMP_ERROR_LIMIT],
) -> Option<usize> {
    let link_len = usize::from(info.l3_offset);
    let (link, packet) = frame.split_at_checked(link_len)?;
    let (dst, room) = match src {
        IpAddr::V4(_) => (address(packet, 12, false)?, BYTES_LIMIT_V4 - HEADER_V4 - ICMP),
        IpAddr::V6(_) => (address(packet, 8, true)?, BYTES_LIMIT_V6 - HEADER_V6 - ICMP),
    };
    let quoted = packet.get(..packet.len().min(info.l3_len as usize).min(room))?;
    let (kind, code) = error.kind;
    let message = Frame::icmp(src, dst, kind, code, error.word, quoted).ok()?;
    // Behind the same tags, whatever they are: the header that is written first goes.
    let extra = link_len.checked_sub(ETHERNET_LEN)?;
    let len = message.write(out.get_mut(extra..)?).ok()?;
    let head = out.get_mut(..link_len)?;
    head.copy_from_slice(link);
    head.get_mut(..6)?.copy_from_slice(link.get(6..12)?);
    head.get_mut(6..12)?
        .copy_from_slice(mac.as_ref().map_or(link.get(..6)?, |mac| mac));
    Some(extra + len)
}

/// Writes into `out` that a packet is too big for a way that takes frames of `longest` bytes (RFC 1191, RFC 8201), and gives the
/// length. It comes from the packet's destination, which is somewhere on that way, and from `mac`. [`None`] where nobody is to
/// be told: a packet that others may divide, a later fragment, an error, a sender that is none.
pub fn too_big(
    frame: &[u8],
    longest: usize,
    mac: [u8; 6],
    out: &mut [u8; ICMP_ERROR_LIMIT],
) -> Option<usize> {
    let info = match parse(frame) {
        Parsed::Flow(info) => info,
        Parsed::Fragment(fragment) if fragment.is_first() => fragment.info,
        _ => return None,
    };
    let packet = frame.get(usize::from(info.l3_offset)..)?;
    let is_v6 = packet.first()? >> 4 == 6;
    let is_whole = is_v6 || packet.get(6)? & DONT_FRAGMENT != 0;
    let [from, to] = match is_v6 {
        false => [address(packet, 12, false)?, address(packet, 16, false)?],
        true => [address(packet, 8, true)?, address(packet, 24, true)?],
    };
    let is_one = |of: IpAddr| {
        !of.is_unspecified() && !of.is_multicast() && !of.is_loopback() && of != IpAddr::from([255; 4])
    };
    let is_sender = frame.get(6)? & 1 == 0 && is_one(from) && is_one(to);
    if !is_whole || !is_sender || !may_be_answered(&info, frame) {
        return None;
    }
    let mtu = u16::try_from(longest.checked_sub(usize::from(info.l3_offset))?).unwrap_or(u16::MAX);
    let [high, low] = mtu.to_be_bytes();
    let error = IcmpError {
        kind: if is_v6 { (2, 0) } else { (3, 4) },
        word: [0, 0, high, low],
    };
    icmp_error(frame, &info, to, error, Some(mac), out)
}

fn address(packet: &[u8], at: usize, is_v6: bool) -> Option<IpAddr> {
    let bytes = packet.get(at..)?;
    if is_v6 {
        bytes.first_chunk::<16>().map(|of| IpAddr::from(*of))
    } else {
        bytes.first_chunk::<4>().map(|of| IpAddr::from(*of))
    }
}

#[cfg(test)]
mod tests {
    use etherparse::{Icmpv4Type, Icmpv6Type, NetSlice, SlicedPacket, TransportSlice, icmpv4};
    use proptest::prelude::*;

    use super::*;

    const MAC: [u8; 6] = [2, 0, 0, 0, 0, 7];

    fn udp(ends: [&str; 2], bytes: usize) -> Vec<u8> {
        let [src, dst] = ends.map(|end| end.parse().unwrap());
        let payload = vec![0x55; bytes];
        let mut frame = Frame::udp(src, dst, &payload).unwrap().to_vec().unwrap();
        if src.is_ipv4() {
            forbid_fragments(&mut frame, 14);
        }
        frame
    }

    /// Sets the bit and the checksum.
    fn forbid_fragments(frame: &mut [u8], at: usize) {
        frame[at + 6] |= DONT_FRAGMENT;
        frame[at + 10..at + 12].fill(0);
        let sum = crate::checksum::internet(&frame[at..at + 20]);
        frame[at + 10..at + 12].copy_from_slice(&sum.to_be_bytes());
    }

    fn answer(frame: &[u8], longest: usize) -> Option<Vec<u8>> {
        let mut out = [0; ICMP_ERROR_LIMIT];
        let len = too_big(frame, longest, MAC, &mut out)?;
        Some(out[..len].to_vec())
    }

    #[test]
    fn the_sender_is_told_how_big_a_packet_may_be() {
        let frame = udp(["10.0.0.9:1000", "10.0.0.100:80"], 1_472);
        assert_eq!(frame.len(), 1_514);
        let told = answer(&frame, 1_464).unwrap();
        assert_eq!((&told[..6], &told[6..12]), (&frame[6..12], &MAC[..]));
        let sliced = SlicedPacket::from_ethernet(&told).unwrap();
        let Some(NetSlice::Ipv4(ip)) = &sliced.net else {
            panic!("{sliced:?}")
        };
        assert_eq!(ip.header().source(), [10, 0, 0, 100]);
        assert_eq!(ip.header().destination(), [10, 0, 0, 9]);
        assert_eq!(usize::from(ip.header().total_len()), BYTES_LIMIT_V4);
        assert_eq!(
            ip.header().header_checksum(),
            ip.header().to_header().calc_header_checksum()
        );
        let Some(TransportSlice::Icmpv4(icmp)) = &sliced.transport else {
            panic!("{sliced:?}")
        };
        let expected = icmpv4::DestUnreachableHeader::FragmentationNeeded { next_hop_mtu: 1_450 };
        assert_eq!(icmp.icmp_type(), Icmpv4Type::DestinationUnreachable(expected));
        assert_eq!(crate::checksum::internet(&told[34..]), 0);
        assert_eq!(icmp.payload(), &frame[14..14 + BYTES_LIMIT_V4 - 28]);
    }

    #[test]
    fn over_ipv6_as_well() {
        let frame = udp(["[2001:db8::9]:1000", "[2001:db8::1]:80"], 1_452);
        let told = answer(&frame, 1_464).unwrap();
        let sliced = SlicedPacket::from_ethernet(&told).unwrap();
        let Some(NetSlice::Ipv6(ip)) = &sliced.net else {
            panic!("{sliced:?}")
        };
        let (src, dst) = (ip.header().source_addr(), ip.header().destination_addr());
        assert_eq!(
            (src.to_string(), dst.to_string()),
            ("2001:db8::1".into(), "2001:db8::9".into())
        );
        assert_eq!(told.len(), 14 + BYTES_LIMIT_V6);
        let Some(TransportSlice::Icmpv6(icmp)) = &sliced.transport else {
            panic!("{sliced:?}")
        };
        assert_eq!(icmp.icmp_type(), Icmpv6Type::PacketTooBig { mtu: 1_450 });
        assert!(icmp.is_checksum_valid(src.octets(), dst.octets()));
        assert_eq!(icmp.payload(), &frame[14..14 + BYTES_LIMIT_V6 - 48]);
    }

    #[test]
    fn tags_stay_and_count() {
        let plain = udp(["10.0.0.9:1000", "10.0.0.100:80"], 1_472);
        let tagged = [&plain[..12], &[0x81, 0, 0, 7], &plain[12..]].concat();
        let told = answer(&tagged, 1_464).unwrap();
        assert_eq!(told[12..18], [0x81, 0, 0, 7, 8, 0]);
        assert_eq!(told[18 + 20 + 6..18 + 20 + 8], 1_446_u16.to_be_bytes());
    }

    #[test]
    fn nobody_is_told_who_is_no_sender_or_may_have_it_divided() {
        let of = |src, dst| udp([src, dst], 1_472);
        let good = of("10.0.0.9:1000", "10.0.0.100:80");
        assert!(answer(&good, 1_464).is_some());
        // A checksum of 0 passes.
        let mut divisible = good.clone();
        (divisible[14 + 6], divisible[14 + 10], divisible[14 + 11]) = (0, 0, 0);
        assert_eq!(answer(&divisible, 1_464), None);
        for (src, dst) in [
            ("0.0.0.0:1", "10.0.0.100:80"),
            ("255.255.255.255:1", "10.0.0.100:80"),
            ("224.0.0.1:1", "10.0.0.100:80"),
            ("10.0.0.9:1", "224.0.0.1:80"),
        ] {
            assert_eq!(answer(&of(src, dst), 1_464), None, "{src} {dst}");
        }
        let mut group = good.clone();
        group[6] |= 1;
        assert_eq!(answer(&group, 1_464), None);
        // An error about an error.
        let told = answer(&good, 1_464).unwrap();
        let mut whole = told;
        forbid_fragments(&mut whole, 14);
        assert_eq!(answer(&whole, 100), None);
        assert_eq!(answer(&good[..20], 10), None);
    }

    proptest! {
        #[test]
        fn an_answer_is_never_longer_than_what_it_is_about(
            mut bytes in prop::collection::vec(any::<u8>(), 14..1_600),
            is_v6: bool,
            longest in 0_usize..3_000,
        ) {
            let (kind, first) = if is_v6 { ([0x86, 0xdd], 0x60) } else { ([8, 0], 0x45) };
            bytes[12..14].copy_from_slice(&kind);
            if let Some(at) = bytes.get_mut(14) {
                *at = first;
            }
            if let Some(told) = answer(&bytes, longest) {
                // Headers of its own are all that it has more.
                prop_assert!(told.len() <= bytes.len() + HEADER_V6 + ICMP);
            }
        }
    }
}
