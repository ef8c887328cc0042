//! Translates the address and port of a service to those of its instance, and back: in a packet, its checksums, and the
//! packet that an ICMP error quotes. Checksums are updated by what changes, so that one that was wrong stays wrong.

use std::net::IpAddr;

use model::{Tuple, protocol};

use crate::answer::put16;
use crate::checksum;
use crate::headers::{self, IPV6_LEN, be16, ethertype};
use crate::parse::Family;

/// Bytes of an ICMP error before the packet that it quotes.
pub(crate) const ICMP_LEN: usize = 8;
/// Where the checksum of an IPv4 header is, and that of an ICMP message.
pub(crate) const IPV4_SUM: usize = 10;
pub(crate) const ICMP_SUM: usize = 2;
/// Where the source address is, and where the destination.
pub(crate) const ADDRESSES_V4: [usize; 2] = [12, 16];
const ADDRESSES_V6: [usize; 2] = [8, 24];
/// Where the ports are in a transport header.
pub(crate) const PORTS: [usize; 2] = [0, 2];
const SOURCE: usize = 0;
const DESTINATION: usize = 1;

/// Which way a packet goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// To the instance: the service's address becomes the instance's.
    In,
    /// From the instance: back.
    Out,
}

/// What stands for what: of the service, and of the instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Pair<T> {
    service: T,
    instance: T,
}

impl<T: Copy> Pair<T> {
    /// What is replaced, and by what.
    fn along(&self, way: Way) -> (T, T) {
        match way {
            Way::In => (self.service, self.instance),
            Way::Out => (self.instance, self.service),
        }
    }
}

/// The translation of an instance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Translation {
    v4: Option<Pair<[u8; 4]>>,
    v6: Option<Pair<[u8; 16]>>,
    /// [`None`]: ports stay as they are.
    port: Option<Pair<u16>>,
}

/// Where things are in an IP packet.
pub(crate) struct Layout {
    pub(crate) protocol: u8,
    /// Where the transport header begins; [`None`]: another fragment has it, or it was cut off.
    pub(crate) transport: Option<usize>,
}

impl Translation {
    /// Between the addresses of a service and those of an instance, of the same IP versions, and between their ports,
    /// where those differ.
    pub fn new(service: &[IpAddr], instance: &[IpAddr], ports: Option<(u16, u16)>) -> Translation {
        let mut translation = Translation {
            port: ports.map(|(service, instance)| Pair { service, instance }),
            ..Translation::default()
        };
        for (service, instance) in service
            .iter()
            .flat_map(|of| instance.iter().map(move |own| (of, own)))
        {
            match (service, instance) {
                (IpAddr::V4(service), IpAddr::V4(instance)) => {
                    let (service, instance) = (service.octets(), instance.octets());
                    translation.v4 = Some(Pair { service, instance });
                }
                (IpAddr::V6(service), IpAddr::V6(instance)) => {
                    let (service, instance) = (service.octets(), instance.octets());
                    translation.v6 = Some(Pair { service, instance });
                }
                _ => {}
            }
        }
        translation
    }

    /// The service's address in the place of one of the instance.
    pub fn service_address(&self, of: IpAddr) -> Option<IpAddr> {
        match of {
            IpAddr::V4(of) => {
                let pair = self.v4.filter(|pair| pair.instance == of.octets())?;
                Some(IpAddr::from(pair.service))
            }
            IpAddr::V6(of) => {
                let pair = self.v6.filter(|pair| pair.instance == of.octets())?;
                Some(IpAddr::from(pair.service))
            }
        }
    }

    /// As what a packet from the instance is known, if it may be one of the service.
    pub fn of_service(&self, sent: &Tuple) -> Option<Tuple> {
        let is_of_service = [protocol::TCP, protocol::UDP].contains(&sent.protocol);
        let src = self.service_address(sent.src).filter(|_| is_of_service)?;
        let src_port = match self.port {
            None => sent.src_port,
            Some(port) if port.instance == sent.src_port => port.service,
            Some(_) => return None,
        };
        Some(Tuple {
            src,
            src_port,
            ..*sent
        })
    }

    /// Translates a frame. What is not the service's, or the instance's, stays as it is. Whether the frame is sound.
    pub fn apply(&self, frame: &mut [u8], way: Way) -> bool {
        let Ok(link) = headers::link(frame) else {
            return false;
        };
        let Some(packet) = frame.get_mut(link.offset..) else {
            return false;
        };
        let done = match link.ethertype {
            ethertype::IPV4 => self.packet_v4(packet, way),
            ethertype::IPV6 => self.packet_v6(packet, way),
            _ => Some(()),
        };
        done.is_some()
    }

    fn packet_v4(&self, packet: &mut [u8], way: Way) -> Option<()> {
        let Some(pair) = self.v4 else { return Some(()) };
        let total = usize::from(be16(packet, 2)?);
        let packet = packet.get_mut(..total)?;
        let layout = layout_v4(packet)?;
        let by = replace(packet, ADDRESSES_V4[changed(way)], pair.along(way));
        // It was verified, or the sender has left it to a card.
        let header = usize::from(packet.first()? & 0x0f) * 4;
        put16(packet, IPV4_SUM, 0);
        let sum = checksum::internet(packet.get(..header)?);
        put16(packet, IPV4_SUM, sum);
        // An ICMP message does not cover the addresses of its packet.
        match layout.transport {
            Some(at) if layout.protocol == protocol::ICMP => {
                let message = packet.get_mut(at..)?;
                if u32::is_icmp_error(*message.first()?) {
                    let by = self.quoted(message.get_mut(ICMP_LEN..)?, way, layout_v4, ADDRESSES_V4, pair)?;
                    update(message, ICMP_SUM, by, false)?;
                }
            }
            Some(at) => self.transport(packet.get_mut(at..)?, layout.protocol, by, way)?,
            None => {}
        }
        Some(())
    }

    fn packet_v6(&self, packet: &mut [u8], way: Way) -> Option<()> {
        let Some(pair) = self.v6 else { return Some(()) };
        let total = IPV6_LEN + usize::from(be16(packet, 4)?);
        let packet = packet.get_mut(..total)?;
        let layout = layout_v6(packet)?;
        let by = replace(packet, ADDRESSES_V6[changed(way)], pair.along(way));
        match layout.transport {
            Some(at) if layout.protocol == protocol::ICMPV6 => {
                let message = packet.get_mut(at..)?;
                let mut by = by.unwrap_or(0);
                if <[u8; 16]>::is_icmp_error(*message.first()?) {
                    let quoted = message.get_mut(ICMP_LEN..)?;
                    by = checksum::add(by, self.quoted(quoted, way, layout_v6, ADDRESSES_V6, pair)?);
                }
                update(message, ICMP_SUM, by, false)?;
            }
            Some(at) => self.transport(packet.get_mut(at..)?, layout.protocol, by, way)?,
            None => {}
        }
        Some(())
    }

    /// The port and the checksum of a transport header, whose pseudo header changed by that. A port belongs to its
    /// address: with another one, both stay.
    fn transport(&self, header: &mut [u8], protocol: u8, by: Option<u16>, way: Way) -> Option<()> {
        let (Some(by), Some(sum)) = (by, sum_of(protocol)) else {
            return Some(());
        };
        let by = checksum::add(by, self.translate_port(header, PORTS[changed(way)], way));
        update(header, sum, by, protocol == protocol::UDP).map(drop)
    }

    /// The packet that an error quotes, as far as it quotes it: it went the other way. What a sum over it changes by.
    fn quoted<T: AsRef<[u8]> + Copy>(
        &self,
        packet: &mut [u8],
        way: Way,
        layout: impl Fn(&[u8]) -> Option<Layout>,
        addresses: [usize; 2],
        pair: Pair<T>,
    ) -> Option<u16> {
        let of = layout(packet)?;
        let other = 1 - changed(way);
        let Some(address) = replace(packet, addresses[other], pair.along(way)) else {
            return Some(0);
        };
        let mut by = address;
        if addresses == ADDRESSES_V4 {
            by = checksum::add(by, update(packet, IPV4_SUM, address, false)?);
        }
        let header = of.transport.and_then(|at| packet.get_mut(at..));
        let Some(header) = header else { return Some(by) };
        if addresses == ADDRESSES_V6 && of.protocol == protocol::ICMPV6 {
            let sum = update(header, ICMP_SUM, address, false).unwrap_or(0);
            return Some(checksum::add(by, sum));
        }
        let Some(sum) = sum_of(of.protocol) else {
            return Some(by);
        };
        let port = self.translate_port(header, PORTS[other], way);
        let covered = checksum::add(address, port);
        // A router quotes 8 bytes at least, and TCP has its checksum behind them.
        let sum = update(header, sum, covered, of.protocol == protocol::UDP).unwrap_or(0);
        Some(checksum::add(checksum::add(by, port), sum))
    }

    /// Translates a port, where it is there. What a sum over it changes by.
    fn translate_port(&self, header: &mut [u8], at: usize, way: Way) -> u16 {
        let pair = self.port.map(|port| port.along(way));
        pair.and_then(|(from, to)| replace(header, at, (from.to_be_bytes(), to.to_be_bytes())))
            .unwrap_or(0)
    }
}

/// Which address and port of a packet change.
const fn changed(way: Way) -> usize {
    match way {
        Way::In => DESTINATION,
        Way::Out => SOURCE,
    }
}

/// Where the checksum of a transport that covers its addresses and ports is.
pub(crate) const fn sum_of(protocol: u8) -> Option<usize> {
    match protocol {
        protocol::TCP => Some(16),
        protocol::UDP => Some(6),
        _ => None,
    }
}

pub(crate) fn layout_v4(packet: &[u8]) -> Option<Layout> {
    let ip = headers::ipv4(packet).ok()?;
    let rest = packet.get(ip.header_len..)?;
    let chain = match ip.fragment.offset {
        0 => headers::chain_v4(rest, ip.protocol).ok(),
        _ => None,
    };
    Some(Layout {
        protocol: chain.map_or(ip.protocol, |chain| chain.protocol),
        transport: chain.map(|chain| ip.header_len + chain.offset),
    })
}

fn layout_v6(packet: &[u8]) -> Option<Layout> {
    let ip = headers::ipv6(packet).ok()?;
    let chain = headers::chain_v6(packet.get(IPV6_LEN..)?, ip.next).ok();
    let chain = chain.filter(|chain| chain.fragment.is_none_or(|fragment| fragment.offset == 0));
    Some(Layout {
        protocol: chain.map_or(ip.next, |chain| chain.protocol),
        transport: chain.map(|chain| IPV6_LEN + chain.offset),
    })
}

/// Replaces bytes, where they are these. What a sum over them changes by; [`None`]: there are others.
fn replace<T: AsRef<[u8]>>(bytes: &mut [u8], at: usize, (from, to): (T, T)) -> Option<u16> {
    let (from, to) = (from.as_ref(), to.as_ref());
    let place = bytes
        .get_mut(at..at + from.len())
        .filter(|place| *place == from)?;
    place.copy_from_slice(to);
    Some(checksum::difference(from, to))
}

/// Updates a checksum, unless the sender has said that there is none. What a sum over it changes by.
pub(crate) fn update(bytes: &mut [u8], at: usize, by: u16, may_be_none: bool) -> Option<u16> {
    let before = be16(bytes, at)?;
    if may_be_none && before == 0 {
        return Some(0);
    }
    let after = match checksum::update(before, by) {
        0 if may_be_none => 0xffff,
        after => after,
    };
    put16(bytes, at, after);
    Some(checksum::add(!before, after))
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use proptest::prelude::*;

    use super::*;
    use crate::build::{self, Extension, Frame, Network, Tag};
    use crate::parse::{Parsed, TcpFlags, parse};

    const SERVICE: [&str; 2] = ["10.0.0.100", "2001:db8::100"];
    const OWN: [&str; 2] = ["10.0.1.1", "2001:db8:1::1"];
    const CLIENT: [&str; 2] = ["198.51.100.7", "2001:db8:2::7"];

    fn translation(ports: Option<(u16, u16)>) -> Translation {
        let all = |of: [&str; 2]| of.map(|text| text.parse::<IpAddr>().unwrap());
        Translation::new(&all(SERVICE), &all(OWN), ports)
    }

    fn at(of: [&str; 2], is_v6: bool, port: u16) -> SocketAddr {
        SocketAddr::new(of[usize::from(is_v6)].parse().unwrap(), port)
    }

    #[derive(Clone, Copy, Debug)]
    struct Kind {
        is_v6: bool,
        is_tcp: bool,
        is_tagged: bool,
        has_more_headers: bool,
    }

    fn kinds() -> impl Strategy<Value = Kind> {
        any::<[bool; 4]>().prop_map(|[is_v6, is_tcp, is_tagged, has_more_headers]| Kind {
            is_v6,
            is_tcp,
            is_tagged,
            has_more_headers,
        })
    }

    fn frame(kind: Kind, src: SocketAddr, dst: SocketAddr, payload: &[u8]) -> Vec<u8> {
        let flags = TcpFlags(TcpFlags::ACK);
        let mut frame = match kind.is_tcp {
            true => Frame::tcp(src, dst, flags, payload).unwrap(),
            false => Frame::udp(src, dst, payload).unwrap(),
        };
        let tags = [Tag::vlan(7)];
        frame.tags = if kind.is_tagged { &tags } else { &[] };
        let extension = [Extension {
            number: headers::next_header::DESTINATION_OPTIONS,
            body: &[1, 4, 0, 0, 0, 0],
        }];
        if kind.has_more_headers {
            match &mut frame.network {
                Network::V4 { options, .. } => *options = &[1, 1, 1, 0],
                Network::V6 { extensions, .. } => *extensions = &extension,
            }
        }
        frame.to_vec().unwrap()
    }

    /// An error of a router about a packet, of which it quotes so many bytes, in a frame without tags.
    fn error(is_v6: bool, to: &str, about: &[u8], quoted: usize) -> Vec<u8> {
        let Parsed::Flow(info) = parse(about) else {
            panic!()
        };
        let packet = &about[usize::from(info.l3_offset)..];
        let router = if is_v6 { "2001:db8:9::1" } else { "203.0.113.1" };
        let mut message = vec![if is_v6 { 1 } else { 3 }, 3, 0, 0, 0, 0, 0, 0];
        message.extend_from_slice(&packet[..quoted.min(packet.len())]);
        let network = Network::between(router.parse().unwrap(), to.parse().unwrap()).unwrap();
        let mut sum = checksum::sum(&message);
        if let Network::V6 { src, dst, .. } = network {
            sum = checksum::add(
                sum,
                checksum::pseudo_v6(src, dst, protocol::ICMPV6, message.len()),
            );
        }
        put16(&mut message, 2, !sum);
        let mut frame = vec![0; 12];
        let length = message.len() as u16;
        if let Network::V4 { src, dst, .. } = network {
            frame.extend_from_slice(&[8, 0, 0x45, 0]);
            frame.extend_from_slice(&(20 + length).to_be_bytes());
            frame.extend_from_slice(&[0, 0, 0, 0, 64, 1, 0, 0]);
            frame.extend_from_slice(&[src, dst].concat());
            let sum = checksum::internet(&frame[14..]);
            put16(&mut frame, 24, sum);
        } else if let Network::V6 { src, dst, .. } = network {
            frame.extend_from_slice(&[0x86, 0xdd, 0x60, 0, 0, 0]);
            frame.extend_from_slice(&length.to_be_bytes());
            frame.extend_from_slice(&[58, 64]);
            frame.extend_from_slice(&[src, dst].concat());
        }
        frame.extend_from_slice(&message);
        frame
    }

    /// Equal but for the two forms of a sum of zero, in the words at these places.
    fn assert_same(got: &[u8], expected: &[u8], sums: &[usize]) {
        let mut got = got.to_vec();
        for &sum in sums {
            let words = [&got[..], expected].map(|of| be16(of, sum));
            if words.contains(&Some(0)) && words.contains(&Some(0xffff)) {
                put16(&mut got, sum, be16(expected, sum).unwrap());
            }
        }
        assert_eq!(got, expected);
    }

    proptest! {
        #[test]
        fn a_packet_is_as_its_receiver_expects_it(
            kind in kinds(), ports in prop::option::of(Just((80_u16, 8080_u16))), client: u16,
            payload in prop::collection::vec(any::<u8>(), 0..100),
        ) {
            let of = translation(ports);
            let (service, own) = ports.unwrap_or((80, 80));
            let (service, own) = (at(SERVICE, kind.is_v6, service), at(OWN, kind.is_v6, own));
            let client = at(CLIENT, kind.is_v6, client);
            for (way, from, to) in [
                (Way::In, (client, service), (client, own)),
                (Way::Out, (own, client), (service, client)),
            ] {
                let mut got = frame(kind, from.0, from.1, &payload);
                let expected = frame(kind, to.0, to.1, &payload);
                prop_assert!(of.apply(&mut got, way));
                let Parsed::Flow(info) = parse(&expected) else { panic!() };
                let sum = usize::from(info.l4_offset) + if kind.is_tcp { 16 } else { 6 };
                assert_same(&got, &expected, &[sum]);
                if way == Way::Out {
                    let sent = Tuple {
                        src: own.ip(), dst: client.ip(), src_port: own.port(), dst_port: client.port(),
                        protocol: 6, vlan: 0,
                    };
                    let known = Tuple { src: service.ip(), src_port: service.port(), ..sent };
                    prop_assert_eq!(of.of_service(&sent), Some(known));
                }
            }
        }

        #[test]
        fn an_error_quotes_what_its_receiver_sent(
            kind in kinds(), ports in prop::option::of(Just((80_u16, 8080_u16))), quoted in 0..80_usize,
            payload in prop::collection::vec(any::<u8>(), 0..20),
        ) {
            let of = translation(ports);
            let is_v6 = kind.is_v6;
            let (service, own) = ports.unwrap_or((80, 80));
            let (service, own) = (at(SERVICE, is_v6, service), at(OWN, is_v6, own));
            let client = at(CLIENT, is_v6, 4000);
            let version = usize::from(is_v6);
            for (way, before, after, receivers) in [
                (Way::In, (service, client), (own, client), [SERVICE[version], OWN[version]]),
                (Way::Out, (client, own), (client, service), [CLIENT[version]; 2]),
            ] {
                let [before, after] = [before, after].map(|(src, dst)| frame(kind, src, dst, &payload));
                let Parsed::Flow(info) = parse(&before) else { panic!() };
                let transport = usize::from(info.l4_offset - info.l3_offset);
                // At least as much as a router must quote; half of a checksum cannot be updated.
                let quoted = transport + 8 + if quoted == 9 { 10 } else { quoted };
                let mut got = error(is_v6, receivers[0], &before, quoted);
                let mut expected = error(is_v6, receivers[1], &after, quoted);
                if way == Way::Out {
                    // The instance itself says that nobody listens.
                    let address = if is_v6 { 22 } else { 26 };
                    for (frame, from) in [(&mut got, OWN[version]), (&mut expected, SERVICE[version])] {
                        match from.parse().unwrap() {
                            IpAddr::V4(from) => frame[address..address + 4].copy_from_slice(&from.octets()),
                            IpAddr::V6(from) => frame[address..address + 16].copy_from_slice(&from.octets()),
                        }
                        if is_v6 {
                            put16(frame, 56, 0);
                            let ends = [22, 38].map(|at| *frame[at..].first_chunk::<16>().unwrap());
                            let sum = checksum::pseudo_v6(ends[0], ends[1], 58, frame.len() - 54);
                            let sum = !checksum::add(sum, checksum::sum(&frame[54..]));
                            put16(frame, 56, sum);
                        } else {
                            put16(frame, 24, 0);
                            let sum = checksum::internet(&frame[14..34]);
                            put16(frame, 24, sum);
                        }
                    }
                }
                prop_assert!(of.apply(&mut got, way));
                let message = if is_v6 { 54 } else { 34 };
                let inner = message + 8;
                let sum = inner + transport + if kind.is_tcp { 16 } else { 6 };
                assert_same(&got, &expected, &[message + 2, inner + 10, sum]);
            }
        }

        #[test]
        fn foreign_bytes_are_read_within_their_bounds(
            is_v6: bool, frame in prop::collection::vec(any::<u8>(), 0..200), first in any::<[u8; 2]>(),
        ) {
            let mut frame = frame;
            if frame.len() > 16 {
                frame[12..14].copy_from_slice(if is_v6 { &[0x86, 0xdd] } else { &[8, 0] });
                frame[14] = if is_v6 { 0x60 } else { 0x45 };
                frame[15..17].copy_from_slice(&first);
            }
            let len = frame.len();
            for way in [Way::In, Way::Out] {
                translation(Some((80, 8080))).apply(&mut frame, way);
            }
            prop_assert_eq!(frame.len(), len);
        }
    }

    #[test]
    fn what_is_not_the_services_stays_as_it_is() {
        let of = translation(Some((80, 8080)));
        let udp = Kind {
            is_v6: false,
            is_tcp: false,
            is_tagged: false,
            has_more_headers: false,
        };
        let reply = frame(
            udp,
            at(CLIENT, false, 80),
            at(OWN, false, 4000),
            b"to its own address",
        );
        let mut got = reply.clone();
        assert!(of.apply(&mut got, Way::In));
        assert_eq!(got, reply);
        // The instance has asked from a port that is the service's as well.
        for (way, from, to) in [
            (Way::In, (CLIENT, 53), (OWN, 80)),
            (Way::Out, (SERVICE, 8080), (CLIENT, 53)),
        ] {
            let other = frame(
                udp,
                at(from.0, false, from.1),
                at(to.0, false, to.1),
                b"not its address",
            );
            let mut got = other.clone();
            assert!(of.apply(&mut got, way));
            assert_eq!(got, other, "a port belongs to its address");
            let answer = frame(udp, at(to.0, false, to.1), at(from.0, false, from.1), b"");
            let quoted = error(false, "203.0.113.9", &answer, 28);
            let mut got = quoted.clone();
            assert!(of.apply(&mut got, way));
            assert_eq!(got, quoted, "also in a quoted packet");
        }
        let sent = Tuple {
            src: OWN[0].parse().unwrap(),
            dst: CLIENT[0].parse().unwrap(),
            src_port: 4000,
            dst_port: 80,
            protocol: 17,
            vlan: 0,
        };
        assert_eq!(of.of_service(&sent), None, "another port");
        let sent = Tuple {
            src_port: 8080,
            ..sent
        };
        assert!(of.of_service(&sent).is_some());
        assert_eq!(of.of_service(&Tuple { protocol: 1, ..sent }), None);
    }

    #[test]
    fn a_ping_that_an_error_quotes_has_the_checksum_of_its_addresses() {
        let of = translation(None);
        let ping = |from: &str| {
            let ends = [from, CLIENT[1]].map(|of| of.parse::<std::net::Ipv6Addr>().unwrap().octets());
            let mut message = [129, 0, 0, 0, 1, 2, 3, 4];
            let sum = checksum::pseudo_v6(ends[0], ends[1], protocol::ICMPV6, message.len());
            let sum = !checksum::add(sum, checksum::sum(&message));
            put16(&mut message, 2, sum);
            let header = [0x60, 0, 0, 0, 0, 8, protocol::ICMPV6, 64];
            [&[0; 12][..], &[0x86, 0xdd], &header, &ends.concat(), &message].concat()
        };
        let [mut got, expected] = [SERVICE[1], OWN[1]].map(|from| error(true, from, &ping(from), 48));
        assert!(of.apply(&mut got, Way::In));
        assert_eq!(got, expected);
    }

    #[test]
    fn a_datagram_without_a_checksum_stays_without_and_fragments_are_put_together() {
        let of = translation(Some((80, 8080)));
        let udp = Kind {
            is_v6: false,
            is_tcp: false,
            is_tagged: false,
            has_more_headers: false,
        };
        let mut bare = frame(udp, at(CLIENT, false, 4000), at(SERVICE, false, 80), b"bare");
        put16(&mut bare, 40, 0);
        assert!(of.apply(&mut bare, Way::In));
        assert_eq!((be16(&bare, 40), be16(&bare, 36)), (Some(0), Some(8080)));
        for is_v6 in [false, true] {
            let kind = Kind { is_v6, ..udp };
            let payload: Vec<u8> = (0..4000_u16).map(|at| at as u8).collect();
            let sent = frame(kind, at(CLIENT, is_v6, 4000), at(SERVICE, is_v6, 80), &payload);
            let expected = frame(kind, at(CLIENT, is_v6, 4000), at(OWN, is_v6, 8080), &payload);
            let [sent, expected] = [sent, expected].map(|of| build::fragment(&of, 1280, 7).unwrap());
            for (mut got, expected) in sent.into_iter().zip(expected) {
                assert!(of.apply(&mut got, Way::In));
                assert_eq!(got, expected);
            }
        }
    }
}
