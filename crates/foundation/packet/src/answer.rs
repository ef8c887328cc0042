//! Answers for an address that this machine serves and no network stack has: to ARP requests, neighbour solicitations
//! and echo requests. A frame becomes its own answer. Also which frames would answer so for somebody else.

use std::net::IpAddr;
use std::ops::RangeInclusive;

use model::protocol;

use crate::checksum;
use crate::headers::{ETHERNET_LEN, IPV4_LEN, IPV6_LEN, TAG_LEN, ethertype};
use crate::parse::Parsed;

/// Bytes of an ARP packet, and of a neighbour message with one option.
const ARP: usize = 28;
const NEIGHBOUR: usize = 32;
/// An ARP header for IPv4 over Ethernet, up to the operation.
const ARP_HEADER: [u8; 6] = [0, 1, 8, 0, 6, 4];
const ARP_REQUEST: u16 = 1;
const ARP_REPLY: u16 = 2;
/// Types of ICMP and of ICMPv6 messages.
const ECHO_REPLY: u8 = 0;
const ECHO_REQUEST: u8 = 8;
const ECHO_REQUEST_V6: u8 = 128;
const ECHO_REPLY_V6: u8 = 129;
/// Solicitations and advertisements of routers and neighbours, and redirects: RFC 4861, section 4.
const DISCOVERY: RangeInclusive<u8> = 133..=137;
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
/// The flags of an advertisement.
const SOLICITED: u8 = 0x40;
const OVERRIDE: u8 = 0x20;
/// The hop limit that says that a neighbour message has crossed no router.
const NEIGHBOUR_HOPS: u8 = 255;
/// Hops of an answer to an echo request.
const HOPS: u8 = 64;
/// All nodes on the link.
const ALL_NODES: [u8; 16] = [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];

/// Makes a frame the answer to itself, where it asks for an address that `is_ours`. `room` has the frame in its first
/// `len` bytes. Gives the length of the answer. It comes from `mac`, and goes out where the frame came in.
pub fn answer(room: &mut [u8], len: usize, mac: [u8; 6], is_ours: impl Fn(IpAddr) -> bool) -> Option<usize> {
    let frame = room.get(..len)?;
    let mut at = ETHERNET_LEN;
    let mut kind = be16(frame, at - 2)?;
    if kind == ethertype::VLAN {
        at += TAG_LEN;
        kind = be16(frame, at - 2)?;
    }
    let asker = *frame.get(6..)?.first_chunk::<6>()?;
    let (head, packet) = room.split_at_mut_checked(at)?;
    let len = len.checked_sub(at)?;
    let version = packet.first().map(|first| first >> 4);
    let len = match (kind, version) {
        (ethertype::ARP, _) => arp(packet, len, mac, is_ours),
        (ethertype::IPV4, Some(4)) => echo(packet, len, is_ours),
        (ethertype::IPV6, Some(6)) if packet.get(6) == Some(&protocol::ICMPV6) => {
            match packet.get(IPV6_LEN) {
                Some(&SOLICITATION) => solicitation(packet, len, mac, is_ours),
                Some(&ECHO_REQUEST_V6) => echo_v6(packet, len, is_ours),
                _ => None,
            }
        }
        _ => None,
    }?;
    head.get_mut(..6)?.copy_from_slice(&asker);
    head.get_mut(6..12)?.copy_from_slice(&mac);
    Some(at + len)
}

/// Whether a frame is a message by which IPv6 discovers neighbours and routers, also behind extension headers or as the
/// first fragment. Who sends it may speak for any address, whatever its source is.
pub fn is_discovery(frame: &[u8]) -> bool {
    let info = match crate::parse(frame) {
        Parsed::Flow(info) => info,
        Parsed::Fragment(fragment) if fragment.is_first() => fragment.info,
        _ => return false,
    };
    let kind = frame.get(usize::from(info.l4_offset));
    info.protocol == protocol::ICMPV6 && kind.is_some_and(|kind| DISCOVERY.contains(kind))
}

fn arp(packet: &mut [u8], len: usize, mac: [u8; 6], is_ours: impl Fn(IpAddr) -> bool) -> Option<usize> {
    let of = packet.first_chunk_mut::<ARP>().filter(|_| len >= ARP)?;
    let sender = *of.get(8..)?.first_chunk::<10>()?;
    let target = *of.get(24..)?.first_chunk::<4>()?;
    let is_asked = of.starts_with(&ARP_HEADER) && be16(of, 6)? == ARP_REQUEST;
    // One that asks from the address itself says that it has it.
    if !is_asked || !is_ours(IpAddr::from(target)) || sender.get(6..)? == target {
        return None;
    }
    put16(of, 6, ARP_REPLY);
    of.get_mut(8..14)?.copy_from_slice(&mac);
    of.get_mut(14..18)?.copy_from_slice(&target);
    of.get_mut(18..)?.copy_from_slice(&sender);
    Some(len)
}

fn echo(packet: &mut [u8], len: usize, is_ours: impl Fn(IpAddr) -> bool) -> Option<usize> {
    let header = usize::from(packet.first()? & 0x0f) * 4;
    let total = usize::from(be16(packet, 2)?);
    let is_whole = be16(packet, 6)? & 0x3fff == 0;
    let src = *packet.get(12..)?.first_chunk::<4>()?;
    let dst = *packet.get(16..)?.first_chunk::<4>()?;
    let fits = header >= IPV4_LEN && total >= header + 8 && total <= len;
    if !fits || !is_whole || packet.get(9) != Some(&protocol::ICMP) || !is_ours(IpAddr::from(dst)) {
        return None;
    }
    let (ip, message) = packet.get_mut(..total)?.split_at_mut_checked(header)?;
    if *message.first()? != ECHO_REQUEST || is_ours(IpAddr::from(src)) {
        return None;
    }
    ip.get_mut(12..16)?.copy_from_slice(&dst);
    ip.get_mut(16..20)?.copy_from_slice(&src);
    *ip.get_mut(8)? = HOPS;
    put16(ip, 10, 0);
    put16(ip, 10, checksum::internet(ip));
    *message.first_mut()? = ECHO_REPLY;
    put16(message, 2, 0);
    put16(message, 2, checksum::internet(message));
    Some(len)
}

fn echo_v6(packet: &mut [u8], len: usize, is_ours: impl Fn(IpAddr) -> bool) -> Option<usize> {
    let (src, dst) = ends_v6(packet)?;
    let total = IPV6_LEN + usize::from(be16(packet, 4)?);
    let is_asked = total <= len && total >= IPV6_LEN + 8 && is_ours(IpAddr::from(dst));
    if !is_asked || is_ours(IpAddr::from(src)) {
        return None;
    }
    let packet = packet.get_mut(..total)?;
    *packet.get_mut(IPV6_LEN)? = ECHO_REPLY_V6;
    send_v6(packet, dst, src, HOPS);
    Some(len)
}

fn solicitation(
    packet: &mut [u8],
    len: usize,
    mac: [u8; 6],
    is_ours: impl Fn(IpAddr) -> bool,
) -> Option<usize> {
    let (src, _) = ends_v6(packet)?;
    let target = *packet.get(IPV6_LEN + 8..)?.first_chunk::<16>()?;
    let is_near = packet.get(7) == Some(&NEIGHBOUR_HOPS) && len >= IPV6_LEN + 24;
    if !is_near || !is_ours(IpAddr::from(target)) {
        return None;
    }
    let packet = packet.get_mut(..IPV6_LEN + NEIGHBOUR)?;
    put16(packet, 4, NEIGHBOUR as u16);
    let message = packet.get_mut(IPV6_LEN..)?;
    // Whoever has no address yet asks whether it may have this one.
    let (to, flags) = if src == [0; 16] {
        (ALL_NODES, OVERRIDE)
    } else {
        (src, SOLICITED | OVERRIDE)
    };
    message
        .get_mut(..8)?
        .copy_from_slice(&[ADVERTISEMENT, 0, 0, 0, flags, 0, 0, 0]);
    // An option with the MAC address, in units of 8 bytes.
    message.get_mut(24..26)?.copy_from_slice(&[2, 1]);
    message.get_mut(26..)?.copy_from_slice(&mac);
    send_v6(packet, target, to, NEIGHBOUR_HOPS);
    Some(IPV6_LEN + NEIGHBOUR)
}

fn ends_v6(packet: &[u8]) -> Option<([u8; 16], [u8; 16])> {
    let address = |at: usize| packet.get(at..)?.first_chunk::<16>().copied();
    Some((address(8)?, address(24)?))
}

/// Sets addresses, hop limit and checksum of an ICMPv6 message.
fn send_v6(packet: &mut [u8], src: [u8; 16], dst: [u8; 16], hops: u8) {
    let len = packet.len().saturating_sub(IPV6_LEN);
    if let Some(place) = packet.get_mut(7) {
        *place = hops;
    }
    for (at, address) in [(8, src), (24, dst)] {
        if let Some(place) = packet.get_mut(at..).and_then(<[u8]>::first_chunk_mut) {
            *place = address;
        }
    }
    put16(packet, IPV6_LEN + 2, 0);
    let pseudo = checksum::pseudo_v6(src, dst, protocol::ICMPV6, len);
    let message = packet.get(IPV6_LEN..).map_or(0, checksum::sum);
    put16(packet, IPV6_LEN + 2, !checksum::add(pseudo, message));
}

/// Two bytes as a number.
pub(crate) fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|two| u16::from_be_bytes(*two))
}

/// Writes a number into two bytes, where they are.
pub(crate) fn put16(bytes: &mut [u8], at: usize, value: u16) {
    if let Some(place) = bytes.get_mut(at..).and_then(<[u8]>::first_chunk_mut::<2>) {
        *place = value.to_be_bytes();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
    const ASKER: [u8; 6] = [2, 0, 0, 0, 0, 9];
    const OURS: [u8; 4] = [10, 0, 0, 100];
    const OURS_V6: [u8; 16] = [0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];

    fn is_ours(address: IpAddr) -> bool {
        address == IpAddr::from(OURS) || address == IpAddr::from(OURS_V6)
    }

    /// A frame of a type from the asker, tagged or not, and the answer to it.
    fn ask(kind: u16, is_tagged: bool, packet: &[u8]) -> Option<Vec<u8>> {
        let mut frame = [[0xff; 6], ASKER].concat();
        if is_tagged {
            frame.extend_from_slice(&[0x81, 0, 0, 7]);
        }
        let at = frame.len() + 2;
        frame.extend_from_slice(&kind.to_be_bytes());
        frame.extend_from_slice(packet);
        let len = frame.len();
        frame.resize(2048, 0xee);
        let answered = answer(&mut frame, len, MAC, is_ours)?;
        assert_eq!((&frame[..6], &frame[6..12]), (&ASKER[..], &MAC[..]));
        assert_eq!(is_tagged, frame[12..16] == [0x81, 0, 0, 7]);
        Some(frame[at..answered].to_vec())
    }

    fn arp_request(sender: [u8; 4], target: [u8; 4]) -> Vec<u8> {
        let mut packet = [&ARP_HEADER[..], &[0, 1], &ASKER, &sender, &[0; 6], &target].concat();
        packet.resize(46, 0);
        packet
    }

    #[test]
    fn who_asks_for_an_address_is_told_the_mac() {
        for is_tagged in [false, true] {
            let reply = ask(0x0806, is_tagged, &arp_request([10, 0, 0, 9], OURS)).unwrap();
            let expected = [&ARP_HEADER[..], &[0, 2], &MAC, &OURS, &ASKER, &[10, 0, 0, 9]].concat();
            assert_eq!((&reply[..28], reply.len()), (&expected[..], 46));
        }
        assert_eq!(
            ask(0x0806, false, &arp_request([10, 0, 0, 9], [10, 0, 0, 101])),
            None
        );
        assert_eq!(
            ask(0x0806, false, &arp_request(OURS, OURS)),
            None,
            "it has it itself"
        );
    }

    fn v6(hops: u8, src: [u8; 16], dst: [u8; 16], message: &[u8]) -> Vec<u8> {
        let mut packet = [
            &[0x60, 0, 0, 0][..],
            &(message.len() as u16).to_be_bytes(),
            &[58, hops],
        ]
        .concat();
        packet.extend_from_slice(&src);
        packet.extend_from_slice(&dst);
        packet.extend_from_slice(message);
        packet
    }

    fn is_whole_v6(packet: &[u8]) -> bool {
        let (src, dst) = ends_v6(packet).unwrap();
        let pseudo = checksum::pseudo_v6(src, dst, 58, packet.len() - 40);
        checksum::add(pseudo, checksum::sum(&packet[40..])) == 0xffff
    }

    #[test]
    fn who_solicits_an_address_is_told_the_mac() {
        let mut asker = OURS_V6;
        asker[15] = 9;
        let group = [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, 0, 0, 1];
        let bare = [&[135, 0, 0, 0, 0, 0, 0, 0][..], &OURS_V6].concat();
        let with_option = [&bare[..], &[1, 1], &ASKER].concat();
        for message in [&bare, &with_option] {
            let told = ask(0x86dd, false, &v6(255, asker, group, message)).unwrap();
            assert!(is_whole_v6(&told));
            assert_eq!(ends_v6(&told).unwrap(), (OURS_V6, asker));
            assert_eq!((told.len(), told[7], told[4..6].to_vec()), (72, 255, vec![0, 32]));
            assert_eq!(told[40..42], [136, 0]);
            assert_eq!(told[44..48], [0x60, 0, 0, 0]);
            assert_eq!(told[48..64], OURS_V6);
            assert_eq!(told[64..], [&[2, 1][..], &MAC].concat());
        }
        assert_eq!(
            ask(0x86dd, false, &v6(254, asker, group, &bare)),
            None,
            "it crossed a router"
        );
        let told = ask(0x86dd, false, &v6(255, [0; 16], group, &bare)).unwrap();
        assert_eq!((ends_v6(&told).unwrap().1, told[44]), (ALL_NODES, 0x20));
        assert!(is_whole_v6(&told));
    }

    #[test]
    fn what_discovers_neighbours_is_known_wherever_it_stands() {
        let (us, them) = (OURS_V6, [0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9]);
        let mut frame = vec![2; 12];
        frame.extend_from_slice(&[0x86, 0xdd]);
        let at = frame.len();
        for (kind, expected) in [
            (1, false),
            (128, false),
            (132, false),
            (133, true),
            (136, true),
            (137, true),
            (138, false),
        ] {
            // An error quotes a packet.
            let message = [&[kind, 0, 0, 0, 0, 0, 0, 0][..], &v6(64, them, us, &[0; 8])].concat();
            frame.truncate(at);
            frame.extend_from_slice(&v6(255, us, them, &message));
            assert_eq!(is_discovery(&frame), expected, "{kind}");
            // Behind options for the receiver, and as the first of two fragments.
            for header in [[60, 0, 1, 4, 0, 0, 0, 0], [44, 0, 0, 1, 0, 0, 0, 7]] {
                let mut frame = frame.clone();
                let next = std::mem::replace(&mut frame[at + 6], header[0]);
                frame.splice(at + 40..at + 40, [&[next][..], &header[1..]].concat());
                let payload = (message.len() + 8) as u16;
                frame[at + 4..at + 6].copy_from_slice(&payload.to_be_bytes());
                assert_eq!(is_discovery(&frame), expected, "{kind} behind {}", header[0]);
                // A later fragment begins with anything.
                frame[at + 43] |= 8;
                assert_eq!(is_discovery(&frame), expected && header[0] == 60, "{kind}");
            }
        }
        assert!(!is_discovery(&[]));
    }

    #[test]
    fn a_ping_is_answered() {
        let mut ip = [
            &[0x45, 0, 0, 31, 1, 2, 0x40, 0, 3, 1, 0, 0][..],
            &[10, 0, 0, 9],
            &OURS,
        ]
        .concat();
        ip.extend_from_slice(&[8, 0, 0, 0, 1, 2, 3, 4, b'a', b'b', b'c']);
        let reply = ask(0x0800, false, &ip).unwrap();
        assert_eq!(checksum::sum(&reply[..20]), 0xffff);
        assert_eq!(checksum::sum(&reply[20..]), 0xffff);
        assert_eq!(reply[12..20], [&OURS[..], &[10, 0, 0, 9]].concat());
        assert_eq!((reply[20], &reply[24..]), (0, &ip[24..]));
        ip[6] = 0x20;
        assert_eq!(ask(0x0800, false, &ip), None, "a fragment");
        (ip[6], ip[0]) = (0, 0x55);
        assert_eq!(ask(0x0800, false, &ip), None, "another version");
        let mut asker = OURS_V6;
        asker[15] = 9;
        let reply = ask(
            0x86dd,
            true,
            &v6(7, asker, OURS_V6, &[128, 0, 0, 0, 1, 2, 3, 4, b'a']),
        )
        .unwrap();
        assert!(is_whole_v6(&reply));
        assert_eq!(ends_v6(&reply).unwrap(), (OURS_V6, asker));
        assert_eq!((reply[40], &reply[44..]), (129, &[1, 2, 3, 4, b'a'][..]));
        let mut other = v6(7, asker, OURS_V6, &[128, 0, 0, 0, 1, 2, 3, 4, b'a']);
        other[0] = 0x40;
        assert_eq!(ask(0x86dd, true, &other), None, "another version");
    }

    proptest! {
        #[test]
        fn foreign_bytes_are_read_within_their_bounds(
            kind in prop_oneof![Just(0x0806_u16), Just(0x0800), Just(0x86dd), any::<u16>()],
            is_tagged: bool, packet in prop::collection::vec(any::<u8>(), 0..100), cut in 0..100_usize,
        ) {
            let _answered = ask(kind, is_tagged, &packet);
            let mut frame = packet.clone();
            let len = frame.len().min(cut);
            let _answered = answer(&mut frame, len, MAC, |_| true);
            frame.truncate(cut);
            let _answered = answer(&mut frame, cut, MAC, |_| true);
        }
    }
}
