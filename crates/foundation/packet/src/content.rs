//! Flows by what packets carry: the packet inside a tunnel (GTP-U, VXLAN, IP in IP), or the number of a security
//! association (ESP, ESP in UDP).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use model::{AffinityKey, Direction, FlowKey, Tuple, key_bits, protocol};

use crate::headers::{self, IPV6_LEN, LinkHeader, be16, ethertype};
use crate::parse::{PacketInfo, Parsed, TcpFlags, UDP_LEN, parse_ip};

/// The UDP port of GTP-U (3GPP TS 29.281).
const GTP_U: u16 = 2152;
/// The UDP port of VXLAN (RFC 7348).
const VXLAN: u16 = 4789;
/// The UDP port of ESP in UDP, and of the key exchange beside it (RFC 3948).
const ESP_IN_UDP: u16 = 4500;
/// IPv4 in IP (RFC 2003).
const IPV4_IN_IP: u8 = 4;
/// IPv6 in IP (RFC 2473, RFC 4213).
const IPV6_IN_IP: u8 = 41;
/// Extension headers of GTP-U that are followed. A user packet has one or two.
const GTP_EXTENSIONS: usize = 4;
/// The message of GTP-U that carries a user packet.
const GTP_USER_PACKET: u8 = 255;

/// A packet as a service knows it whose flows have keys of that kind: with the flow of what it carries, and all other
/// fields but the lengths of the frame as of the packet inside. `frame` is the frame, and `info` what
/// [`parse`](crate::parse) or a [`FragmentTracker`](crate::FragmentTracker) says of it.
///
/// - [`AffinityKey::Inner`]: the packet in GTP-U, VXLAN, or IP in IP; one level. It may be a fragment of a datagram, which
///   belongs to a [`FragmentTracker`](crate::FragmentTracker) then. Where GTP-U carries no IP packet that can be parsed,
///   its tunnel endpoint identifier and the destination are the flow.
/// - [`AffinityKey::Spi`]: the security association of ESP, by its index and the destination. It is the same alone and in
///   UDP.
/// - Every other packet keeps its own flow: also a fragment of a tunnel's packet, of which only the first one shows what
///   is inside, an ICMP error, a key exchange.
///
/// The keys have [`key_bits::OF_CONTENT`], and so differ from those of other services' flows. The packet's VLAN is in
/// the key, but for VXLAN, whose network is.
#[must_use]
pub fn parse_content(frame: &[u8], info: &PacketInfo, key: AffinityKey) -> Parsed {
    let found = match key {
        _ if info.is_icmp_error || is_fragment(frame, info) => None,
        AffinityKey::Inner => inner(frame, info),
        AffinityKey::Spi => association(frame, info),
        AffinityKey::Flow | AffinityKey::Addresses | AffinityKey::Source => return Parsed::Flow(*info),
    };
    found.unwrap_or_else(|| Parsed::Flow(own(info)))
}

/// The packet with its own flow, among those by content.
fn own(info: &PacketInfo) -> PacketInfo {
    let mut own = *info;
    match &mut own.key {
        FlowKey::V4(key) => key.vlan |= key_bits::OF_CONTENT,
        FlowKey::V6(key) => key.vlan |= key_bits::OF_CONTENT,
    }
    own
}

/// Whether the packet is a fragment: what is in its place for a header may be data.
fn is_fragment(frame: &[u8], info: &PacketInfo) -> bool {
    let l3 = usize::from(info.l3_offset);
    let Some(packet) = frame.get(l3..) else {
        return true;
    };
    match packet.first().map(|byte| byte >> 4) {
        Some(4) => be16(packet, 6).is_none_or(|word| word & 0x3fff != 0),
        Some(6) if usize::from(info.l4_offset) == l3 + IPV6_LEN => false,
        Some(6) => {
            let chain = packet.get(6).zip(packet.get(IPV6_LEN..));
            let chain = chain.and_then(|(next, rest)| headers::chain_v6(rest, *next).ok());
            chain.is_none_or(|chain| chain.fragment.is_some_and(|of| !of.is_whole()))
        }
        _ => true,
    }
}

/// What is behind the IP header and its extensions, without padding; and the end of it in the frame.
fn payload<'f>(frame: &'f [u8], info: &PacketInfo) -> Option<(&'f [u8], usize)> {
    let end = usize::from(info.l3_offset) + info.l3_len as usize;
    Some((frame.get(usize::from(info.l4_offset)..end)?, end))
}

/// The data of a UDP packet, and where they are in the frame.
fn udp_data<'f>(frame: &'f [u8], info: &PacketInfo) -> Option<(&'f [u8], std::ops::Range<usize>)> {
    let (datagram, _) = payload(frame, info)?;
    let start = usize::from(info.l4_offset) + UDP_LEN;
    let end = usize::from(info.l4_offset) + usize::from(be16(datagram, 4)?);
    Some((frame.get(start..end)?, start..end))
}

/// The key of a number that packets to that destination carry, and their direction.
fn label_key(number: u32, dst: IpAddr, protocol: u8, vlan: u16) -> (FlowKey, Direction) {
    let src = match dst {
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::from(number)),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::from(u128::from(number))),
    };
    FlowKey::new(&Tuple {
        src,
        dst,
        src_port: 0,
        dst_port: 0,
        protocol,
        vlan: vlan | key_bits::OF_CONTENT | key_bits::LABEL,
    })
}

/// The flow of a number that packets to the destination carry.
fn label(info: &PacketInfo, number: u32, protocol: u8) -> Parsed {
    let dst = info.key.tuple(info.direction).dst;
    let (key, direction) = label_key(number, dst, protocol, info.vlan);
    Parsed::Flow(PacketInfo {
        key,
        direction,
        ..*info
    })
}

/// The key of the security association with that index and destination, whatever the VLAN of its packets, and their
/// direction.
#[must_use]
pub fn association_key(spi: u32, to: IpAddr) -> (FlowKey, Direction) {
    label_key(spi, to, protocol::ESP, 0)
}

/// The index and the destination of the security association of which that is the flow, as
/// [`parse_content`] or [`association_key`] makes it.
#[must_use]
pub fn association_of(flow: &Tuple) -> Option<(u32, IpAddr)> {
    const BITS: u16 = key_bits::OF_CONTENT | key_bits::LABEL;
    if flow.vlan & BITS != BITS || flow.protocol != protocol::ESP {
        return None;
    }
    let spi = match flow.src {
        IpAddr::V4(number) => u32::from(number),
        IpAddr::V6(number) => u32::try_from(u128::from(number)).ok()?,
    };
    Some((spi, flow.dst))
}

/// The packet as one of that security association. It counts as any packet of it, whatever it is without protection:
/// neither as an ICMP error nor as a part of a TCP connection.
#[must_use]
pub fn as_association(info: &PacketInfo, spi: u32, to: IpAddr) -> PacketInfo {
    let (key, direction) = association_key(spi, to);
    PacketInfo {
        key,
        direction,
        is_icmp_error: false,
        tcp_flags: TcpFlags(0),
        ..*info
    }
}

/// Source, destination and protocol as the packet's own header has them: also those of an ICMP error, whose flow is that
/// of the packet that it quotes. [`None`] if the frame is shorter than that header.
#[must_use]
pub fn header_ends(frame: &[u8], info: &PacketInfo) -> Option<(IpAddr, IpAddr, u8)> {
    let packet = frame.get(usize::from(info.l3_offset)..)?;
    match packet.first()? >> 4 {
        4 => {
            let address = |at: usize| Some(IpAddr::from(*packet.get(at..)?.first_chunk::<4>()?));
            Some((address(12)?, address(16)?, info.protocol))
        }
        _ => {
            let address = |at: usize| Some(IpAddr::from(*packet.get(at..)?.first_chunk::<16>()?));
            Some((address(8)?, address(24)?, info.protocol))
        }
    }
}

/// The IP packet from `start` to `end` of the frame, if it can be parsed.
fn packet_at(frame: &[u8], info: &PacketInfo, start: usize, end: usize, vlan: u16) -> Option<Parsed> {
    let ethertype = match frame.get(start)? >> 4 {
        4 => ethertype::IPV4,
        6 => ethertype::IPV6,
        _ => return None,
    };
    let link = LinkHeader {
        ethertype,
        offset: start,
        vlan: vlan | key_bits::OF_CONTENT,
    };
    let whole = |of: PacketInfo| PacketInfo {
        vlan: info.vlan,
        frame_len: info.frame_len,
        ..of
    };
    match parse_ip(frame.get(..end)?, link) {
        Parsed::Flow(inner) => Some(Parsed::Flow(whole(inner))),
        Parsed::Fragment(mut fragment) => {
            fragment.info = whole(fragment.info);
            Some(Parsed::Fragment(fragment))
        }
        Parsed::Other { .. } | Parsed::Invalid(_) => None,
    }
}

fn inner(frame: &[u8], info: &PacketInfo) -> Option<Parsed> {
    match info.protocol {
        protocol::UDP => match info.key.tuple(info.direction).dst_port {
            GTP_U => in_gtp_u(frame, info),
            VXLAN => in_vxlan(frame, info),
            _ => None,
        },
        IPV4_IN_IP | IPV6_IN_IP => {
            let (_, end) = payload(frame, info)?;
            packet_at(frame, info, usize::from(info.l4_offset), end, info.vlan)
        }
        _ => None,
    }
}

fn in_gtp_u(frame: &[u8], info: &PacketInfo) -> Option<Parsed> {
    /// Version and protocol type: 1, and GTP rather than GTP'.
    const KIND_MASK: u8 = 0xf0;
    const KIND: u8 = 0x30;
    const EXTENSION: u8 = 0x04;
    /// One of the three fields behind the header is there; then all are.
    const ANY_FIELD: u8 = 0x07;
    const HEADER: usize = 8;
    const FIELDS: usize = 4;
    let (data, at) = udp_data(frame, info)?;
    let header = data.first_chunk::<HEADER>()?;
    if header[0] & KIND_MASK != KIND {
        return None;
    }
    let teid = u32::from_be_bytes([header[4], header[5], header[6], header[7]]);
    let end = HEADER + usize::from(u16::from_be_bytes([header[2], header[3]]));
    let user_packet = || {
        let data = data.get(..end)?;
        let mut start = HEADER;
        if header[0] & ANY_FIELD != 0 {
            start += FIELDS;
            let mut next = *data.get(start - 1)?;
            if header[0] & EXTENSION == 0 {
                next = 0;
            }
            let mut followed = 0;
            while next != 0 {
                // In words of four bytes, of which the last byte says what comes next.
                let len = usize::from(*data.get(start)?) * 4;
                if len == 0 || followed == GTP_EXTENSIONS {
                    return None;
                }
                start += len;
                next = *data.get(start - 1)?;
                followed += 1;
            }
        }
        packet_at(frame, info, at.start + start, at.start + end, info.vlan)
    };
    if header[1] == GTP_USER_PACKET
        && let Some(parsed) = user_packet()
    {
        return Some(parsed);
    }
    // Messages between the two ends have none.
    (teid != 0).then(|| label(info, teid, protocol::UDP))
}

fn in_vxlan(frame: &[u8], info: &PacketInfo) -> Option<Parsed> {
    const HEADER: usize = 8;
    const HAS_NETWORK: u8 = 0x08;
    let (data, at) = udp_data(frame, info)?;
    let (header, ethernet) = data.split_first_chunk::<HEADER>()?;
    if header[0] & HAS_NETWORK == 0 {
        return None;
    }
    let vni = u32::from_be_bytes([0, header[4], header[5], header[6]]);
    let link = headers::link(ethernet).ok()?;
    if !matches!(link.ethertype, ethertype::IPV4 | ethertype::IPV6) {
        return None;
    }
    let start = at.start + HEADER + link.offset;
    packet_at(frame, info, start, at.end, key_bits::network(vni))
}

fn association(frame: &[u8], info: &PacketInfo) -> Option<Parsed> {
    let first_word = |data: &[u8]| Some(u32::from_be_bytes(*data.first_chunk()?));
    let spi = match info.protocol {
        protocol::ESP => first_word(payload(frame, info)?.0)?,
        protocol::UDP => {
            let tuple = info.key.tuple(info.direction);
            if ![tuple.src_port, tuple.dst_port].contains(&ESP_IN_UDP) {
                return None;
            }
            // A key exchange has 0 in this place; a keepalive is a single byte.
            first_word(udp_data(frame, info)?.0).filter(|spi| *spi != 0)?
        }
        _ => return None,
    };
    Some(label(info, spi, protocol::ESP))
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use model::Direction;
    use proptest::prelude::*;

    use super::*;
    use crate::build::{Frame, fragment};
    use crate::parse::{TcpFlags, parse};

    const UPLINK: (&str, &str) = ("192.0.2.1:2152", "192.0.2.2:2152");

    fn address(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    fn tcp(src: &str, dst: &str, flags: u8) -> Vec<u8> {
        let frame = Frame::tcp(address(src), address(dst), TcpFlags(flags), b"content").unwrap();
        frame.to_vec().unwrap()
    }

    fn udp((src, dst): (&str, &str), payload: &[u8]) -> Vec<u8> {
        let frame = Frame::udp(address(src), address(dst), payload).unwrap();
        frame.to_vec().unwrap()
    }

    fn gtp(teid: u32, kind: u8, fields: &[u8], flags: u8, packet: &[u8]) -> Vec<u8> {
        let length = (fields.len() + packet.len()) as u16;
        let mut gtp = vec![0x30 | flags, kind];
        gtp.extend(length.to_be_bytes());
        gtp.extend(teid.to_be_bytes());
        [gtp.as_slice(), fields, packet].concat()
    }

    fn vxlan(vni: u32, frame: &[u8]) -> Vec<u8> {
        [&[8, 0, 0, 0][..], &(vni << 8).to_be_bytes(), frame].concat()
    }

    /// An IPv4 packet of that protocol.
    fn ip(protocol: u8, data: &[u8]) -> Vec<u8> {
        let mut frame = udp(("192.0.2.1:0", "192.0.2.2:0"), &[0; 64]);
        frame.truncate(34);
        frame[16..18].copy_from_slice(&(20 + data.len() as u16).to_be_bytes());
        frame[23] = protocol;
        frame[24..26].fill(0);
        frame.extend(data);
        frame
    }

    fn content(frame: &[u8], key: AffinityKey) -> PacketInfo {
        match content_of(frame, key) {
            Parsed::Flow(info) => info,
            other => panic!("{other:?}"),
        }
    }

    fn content_of(frame: &[u8], key: AffinityKey) -> Parsed {
        match parse(frame) {
            Parsed::Flow(info) => parse_content(frame, &info, key),
            other => panic!("{other:?}"),
        }
    }

    fn shown(frame: &[u8], key: AffinityKey) -> String {
        let info = content(frame, key);
        info.key.tuple(info.direction).to_string()
    }

    #[test]
    fn a_tunnels_packet_has_the_flow_of_the_packet_inside() {
        let inside = tcp("10.0.0.9:4000", "198.51.100.1:443", TcpFlags::SYN);
        let packet = &inside[14..];
        let expected = "tcp 10.0.0.9:4000 > 198.51.100.1:443 inner";
        // A sequence number; two extension headers, the first one of two words.
        let extended = [&[0, 1, 0, 0x85][..], &[2, 0, 0, 0, 0, 0, 0, 0xc0], &[1, 0, 0, 0]].concat();
        let wires = [
            udp(UPLINK, &gtp(7, 255, &[], 0, packet)),
            udp(("192.0.2.77:999", "192.0.2.2:2152"), &gtp(8, 255, &[], 0, packet)),
            udp(UPLINK, &gtp(7, 255, &[0, 1, 0, 0x85], 2, packet)),
            udp(UPLINK, &gtp(7, 255, &extended, 6, packet)),
            udp(
                ("[2001:db8::1]:9", "[2001:db8::2]:2152"),
                &gtp(7, 255, &[], 0, packet),
            ),
            ip(4, packet),
        ];
        for wire in &wires {
            assert_eq!(shown(wire, AffinityKey::Inner), expected);
            let info = content(wire, AffinityKey::Inner);
            assert_eq!(info.tcp_flags, TcpFlags(TcpFlags::SYN));
            assert_eq!(info.frame_len as usize, wire.len());
            assert_eq!(&wire[usize::from(info.l3_offset)..][..packet.len()], packet);
        }
        // The same flow outside of a tunnel, in both directions: the network's side of the function.
        assert_eq!(shown(&inside, AffinityKey::Inner), expected);
        let back = tcp("198.51.100.1:443", "10.0.0.9:4000", TcpFlags::ACK);
        let (there, back) = (
            content(&inside, AffinityKey::Inner),
            content(&back, AffinityKey::Inner),
        );
        assert_eq!((there.key, there.direction), (back.key, back.direction.flipped()));
        let v6 = tcp("[2001:db8::9]:4000", "[2001:db8:1::1]:443", 0);
        assert_eq!(
            shown(&ip(41, &v6[14..]), AffinityKey::Inner),
            "tcp [2001:db8::9]:4000 > [2001:db8:1::1]:443 inner"
        );
        for vni in [5, 0x1005] {
            let wire = udp(("192.0.2.1:999", "192.0.2.2:4789"), &vxlan(vni, &inside));
            let network = key_bits::network(vni) & key_bits::VLAN;
            let expected = format!("tcp 10.0.0.9:4000 > 198.51.100.1:443 network {network} inner");
            assert_eq!(shown(&wire, AffinityKey::Inner), expected);
        }
        assert_ne!(key_bits::network(5), key_bits::network(0x1005));
    }

    #[test]
    fn what_carries_no_packet_goes_by_its_number_or_by_its_own_flow() {
        let own = "udp 192.0.2.1:2152 > 192.0.2.2:2152 inner";
        let endless = [[0, 0, 0, 0x85].as_slice(), &[1, 0, 0, 0x85].repeat(9)].concat();
        for (payload, expected) in [
            (
                gtp(0x0a00_0007, 255, &[], 0, b"ethernet"),
                "udp 10.0.0.7:0 > 192.0.2.2:0 label",
            ),
            (gtp(7, 255, &[], 0, &[]), "udp 0.0.0.7:0 > 192.0.2.2:0 label"),
            (
                gtp(7, 255, &endless, 4, &[0x45; 40]),
                "udp 0.0.0.7:0 > 192.0.2.2:0 label",
            ),
            // The end of a tunnel's packets; an echo, which is of no tunnel.
            (gtp(7, 254, &[], 0, &[]), "udp 0.0.0.7:0 > 192.0.2.2:0 label"),
            (gtp(0, 1, &[0, 1, 0, 0], 2, &[]), own),
            (b"something else".to_vec(), own),
            (vec![], own),
        ] {
            assert_eq!(shown(&udp(UPLINK, &payload), AffinityKey::Inner), expected);
        }
        // ARP of a VXLAN network.
        let mut arp = tcp("10.0.0.9:4000", "198.51.100.1:443", 0);
        arp[12..14].copy_from_slice(&[8, 6]);
        let wire = udp(("192.0.2.1:999", "192.0.2.2:4789"), &vxlan(5, &arp));
        assert_eq!(
            shown(&wire, AffinityKey::Inner),
            "udp 192.0.2.1:999 > 192.0.2.2:4789 inner"
        );
    }

    #[test]
    fn an_association_is_one_flow_alone_and_in_udp_from_wherever_it_comes() {
        let esp = [&0x1001_u32.to_be_bytes()[..], b"sequence number, data"].concat();
        let expected = "ip-50 0.0.16.1 > 192.0.2.2 label";
        for wire in [
            ip(protocol::ESP, &esp),
            udp(("192.0.2.1:4500", "192.0.2.2:4500"), &esp),
            udp(("198.51.100.7:61000", "192.0.2.2:4500"), &esp),
        ] {
            assert_eq!(shown(&wire, AffinityKey::Spi), expected);
        }
        // A key exchange, a keepalive, and what is something else.
        for (ends, payload) in [
            (
                ("192.0.2.1:4500", "192.0.2.2:4500"),
                &[0, 0, 0, 0, 1, 2, 3, 4][..],
            ),
            (("192.0.2.1:4500", "192.0.2.2:4500"), &[0xff]),
            (("192.0.2.1:500", "192.0.2.2:500"), &esp),
        ] {
            let own = format!("udp {} > {} inner", ends.0, ends.1);
            assert_eq!(shown(&udp(ends, payload), AffinityKey::Spi), own);
        }
        // A fragment of ESP: a later one has data in the place of its header.
        let mut part = ip(protocol::ESP, &esp);
        part[20..22].copy_from_slice(&[0, 2]);
        assert_eq!(
            shown(&part, AffinityKey::Spi),
            "ip-50 192.0.2.1 > 192.0.2.2 inner"
        );
    }

    #[test]
    fn fragments_inside_are_fragments_and_those_outside_keep_their_flow() {
        let whole = udp(("10.0.0.9:4000", "198.51.100.1:53"), &[7; 1000]);
        let inside = fragment(&whole, 500, 99).unwrap();
        for (at, part) in inside.iter().enumerate() {
            let wire = udp(UPLINK, &gtp(7, 255, &[], 0, &part[14..]));
            let Parsed::Fragment(of) = content_of(&wire, AffinityKey::Inner) else {
                panic!("{at}");
            };
            assert_eq!((of.identification, of.is_first()), (99, at == 0));
            let ports = if at == 0 { (4000, 53) } else { (0, 0) };
            let tuple = of.info.key.tuple(of.info.direction);
            assert_eq!((tuple.src_port, tuple.dst_port), ports);
        }
        for ends in [UPLINK, ("[2001:db8::1]:2152", "[2001:db8::2]:2152")] {
            let big = udp(ends, &gtp(7, 255, &[], 0, &whole[14..]));
            let mut tracker = crate::FragmentTracker::new([1, 2]);
            for part in fragment(&big, 600, 5).unwrap() {
                let Parsed::Fragment(of) = parse(&part) else {
                    panic!()
                };
                let crate::Offer::Resolved { info, .. } = tracker.offer(&of, (), model::Nanos::ZERO) else {
                    panic!();
                };
                let Parsed::Flow(own) = parse_content(&part, &info, AffinityKey::Inner) else {
                    panic!()
                };
                let expected = format!("udp {} > {} inner", ends.0, ends.1);
                assert_eq!(own.key.tuple(own.direction).to_string(), expected);
            }
        }
    }

    #[test]
    fn an_error_has_the_ends_of_its_own_header() {
        let sent = udp(("10.1.0.5:1000", "10.2.0.6:2000"), &[7; 64]);
        let Parsed::Flow(info) = parse(&sent) else {
            panic!()
        };
        let ends = |src: &str, dst: &str, protocol| (src.parse().unwrap(), dst.parse().unwrap(), protocol);
        assert_eq!(
            header_ends(&sent, &info),
            Some(ends("10.1.0.5", "10.2.0.6", protocol::UDP))
        );
        // A router on the way says that it is too long.
        let message = [&[3, 4, 0, 0, 0, 0, 5, 0][..], &sent[14..42]].concat();
        let mut error = ip(protocol::ICMP, &message);
        error[26..34].copy_from_slice(&[10, 9, 0, 1, 10, 1, 0, 5]);
        let Parsed::Flow(info) = parse(&error) else {
            panic!()
        };
        assert!(info.is_icmp_error);
        assert_eq!(info.key.tuple(info.direction).src, IpAddr::from([10, 2, 0, 6]));
        assert_eq!(
            header_ends(&error, &info),
            Some(ends("10.9.0.1", "10.1.0.5", protocol::ICMP))
        );
        let of = as_association(&info, 0x1001, IpAddr::from([192, 0, 2, 2]));
        assert!(!of.is_icmp_error);
        assert_eq!(of.frame_len, info.frame_len);
        let v6 = udp(("[fd01::5]:1000", "[fd02::6]:2000"), &[7; 64]);
        let Parsed::Flow(info) = parse(&v6) else { panic!() };
        assert_eq!(
            header_ends(&v6, &info),
            Some(ends("fd01::5", "fd02::6", protocol::UDP))
        );
        assert_eq!(header_ends(&v6[..40], &info), None);
    }

    proptest! {
        #[test]
        fn an_association_is_read_from_its_flow(spi: u32, v4: u32, v6: u128, is_v6: bool, vlan in 0..4095_u16) {
            let to = if is_v6 { IpAddr::V6(v6.into()) } else { IpAddr::V4(v4.into()) };
            let (key, direction) = association_key(spi, to);
            let flow = key.tuple(direction);
            prop_assert_eq!(association_of(&flow), Some((spi, to)));
            let other = Tuple { vlan: flow.vlan & !key_bits::LABEL | vlan, ..flow };
            prop_assert_eq!(association_of(&other), None);
        }
    }

    proptest! {
        #[test]
        fn the_same_packet_inside_is_the_same_flow_whatever_is_outside(
            outside in any::<(u32, u32, u16, u32)>(), sequence in any::<Option<u16>>(), is_v6 in any::<bool>(),
            hosts in any::<(u32, u32)>(), ports in any::<(u16, u16)>(),
        ) {
            let v4 = |of: u32| IpAddr::V4(of.into());
            let src = SocketAddr::new(v4(hosts.0), ports.0);
            let dst = SocketAddr::new(v4(hosts.1), ports.1);
            let inside = Frame::udp(src, dst, b"content").unwrap().to_vec().unwrap();
            let (ends, teid) = ((outside.0, outside.1), outside.3);
            let far = |of: u32| if is_v6 { IpAddr::V6(u128::from(of).into()) } else { v4(of) };
            let fields = sequence.map_or(vec![], |number| [&number.to_be_bytes()[..], &[0, 0]].concat());
            let gtp = gtp(teid, 255, &fields, if fields.is_empty() { 0 } else { 2 }, &inside[14..]);
            let (a, b) = (SocketAddr::new(far(ends.0), outside.2), SocketAddr::new(far(ends.1), GTP_U));
            let wire = Frame::udp(a, b, &gtp).unwrap().to_vec().unwrap();
            let (of, own) = (content(&wire, AffinityKey::Inner), content(&inside, AffinityKey::Inner));
            prop_assert_eq!((of.key, of.direction), (own.key, own.direction));
            prop_assert!(of.direction == Direction::Forward || src > dst);
        }

        #[test]
        fn no_bytes_panic_and_nothing_is_read_beyond_the_packet(
            payload in prop::collection::vec(any::<u8>(), 0..120),
            port in prop::sample::select(&[GTP_U, VXLAN, ESP_IN_UDP][..]),
            kind in prop::sample::select(&[4_u8, 41, 50][..]),
            start in prop::sample::select(&[0x30_u8, 0x34, 0x36, 8, 0x45, 0x60][..]),
            padding in 0_usize..40,
        ) {
            let mut payload = payload;
            if let Some(first) = payload.first_mut() {
                *first = start;
            }
            if let Some(second) = payload.get_mut(1) {
                *second |= 0xf0;
            }
            let ends = format!("192.0.2.2:{port}");
            for mut wire in [udp(("192.0.2.1:9", &ends), &payload), ip(kind, &payload)] {
                let end = wire.len();
                wire.resize(end + padding, 0x45);
                let Parsed::Flow(info) = parse(&wire) else { continue };
                for key in [AffinityKey::Inner, AffinityKey::Spi] {
                    let (Parsed::Flow(of) | Parsed::Fragment(crate::Fragment { info: of, .. })) =
                        parse_content(&wire, &info, key)
                    else {
                        panic!("there is always a flow");
                    };
                    prop_assert!(of.key.tuple(of.direction).vlan & key_bits::OF_CONTENT != 0);
                    prop_assert!(usize::from(of.l3_offset) + of.l3_len as usize <= end);
                }
            }
        }
    }
}
