//! Sets the endpoints of an IPv4 packet that has been parsed, its checksums, and the packet that an ICMP error quotes.
//! Checksums are updated by what changes, so that one that was wrong stays wrong.

use std::net::SocketAddrV4;

use model::protocol;

use crate::answer::put16;
use crate::checksum;
use crate::headers::be16;
use crate::parse::{Family, PacketInfo};
use crate::translate::{self, ADDRESSES_V4, ICMP_LEN, ICMP_SUM, IPV4_SUM, PORTS};

/// Where an ICMP echo has its identifier.
const ICMP_IDENTIFIER: usize = 4;

/// The endpoints that a packet gets. The port of an ICMP echo is its identifier.
///
/// An ICMP error is about a packet that went the other way: `source` takes the place of the error's source address
/// and of the quoted destination, `destination` that of the error's destination address and of the quoted source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rewrite {
    /// [`None`]: as it is.
    pub source: Option<SocketAddrV4>,
    /// [`None`]: as it is.
    pub destination: Option<SocketAddrV4>,
}

/// Which part of a datagram a packet is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// All of it, or its first fragment: it has the transport header.
    Headed,
    /// A later fragment: it has no ports.
    Later,
}

impl Rewrite {
    /// Rewrites the IPv4 packet that [`crate::parse()`] has described. Whether the frame is the one described; one
    /// that is not may be changed in part, and must be dropped.
    ///
    /// - An IPv4 header checksum that the sender left to hardware (0) is filled in.
    /// - A UDP checksum of 0 stays: the sender has said that there is none.
    /// - A transport without ports, or one that is not TCP, UDP or ICMP, gets addresses only.
    #[inline]
    pub fn apply(&self, frame: &mut [u8], info: &PacketInfo, part: Part) -> bool {
        self.packet(frame, info, part).is_some()
    }

    #[inline(always)]
    fn packet(&self, frame: &mut [u8], info: &PacketInfo, part: Part) -> Option<()> {
        let begin = usize::from(info.l3_offset);
        let packet = frame.get_mut(begin..begin + info.l3_len as usize)?;
        let by = self.addresses(packet, ADDRESSES_V4)?;
        match be16(packet, IPV4_SUM)? {
            0 => {
                let length = usize::from(packet.first()? & 0x0f) * 4;
                let sum = checksum::internet(packet.get(..length)?);
                put16(packet, IPV4_SUM, sum);
            }
            sum => put16(packet, IPV4_SUM, checksum::update(sum, by)),
        }
        if part == Part::Later {
            return Some(());
        }
        let message = packet.get_mut(usize::from(info.l4_offset.checked_sub(info.l3_offset)?)..)?;
        match info.protocol {
            protocol::TCP | protocol::UDP => {
                let sum = translate::sum_of(info.protocol)?;
                let by = checksum::add(by, self.ports(message, PORTS)?);
                translate::update(message, sum, by, info.protocol == protocol::UDP)?;
            }
            protocol::ICMP if info.is_icmp_error => {
                let by = self.swapped().quoted(message.get_mut(ICMP_LEN..)?)?;
                translate::update(message, ICMP_SUM, by, false)?;
            }
            protocol::ICMP if is_echo(message) => {
                let by = self.identifier(message)?;
                translate::update(message, ICMP_SUM, by, false)?;
            }
            _ => {}
        }
        Some(())
    }

    /// The same for the packet that an error quotes, as far as it quotes it. What a sum over it changes by.
    fn quoted(&self, packet: &mut [u8]) -> Option<u16> {
        let of = translate::layout_v4(packet)?;
        let address = self.addresses(packet, ADDRESSES_V4)?;
        let by = checksum::add(address, translate::update(packet, IPV4_SUM, address, false)?);
        let Some(header) = of.transport.and_then(|at| packet.get_mut(at..)) else {
            return Some(by);
        };
        let (changed, covered, sum) = match of.protocol {
            protocol::ICMP if is_echo(header) => {
                let identifier = self.identifier(header)?;
                (identifier, identifier, ICMP_SUM)
            }
            of => match translate::sum_of(of) {
                Some(sum) => {
                    let ports = self.ports(header, PORTS)?;
                    (ports, checksum::add(ports, address), sum)
                }
                None => return Some(by),
            },
        };
        // A router quotes 8 bytes at least, and TCP has its checksum behind them.
        let sum = translate::update(header, sum, covered, of.protocol == protocol::UDP).unwrap_or(0);
        Some(checksum::add(checksum::add(by, changed), sum))
    }

    /// For the packet that was sent in the other direction.
    fn swapped(&self) -> Rewrite {
        Rewrite {
            source: self.destination,
            destination: self.source,
        }
    }

    #[inline(always)]
    fn addresses(&self, packet: &mut [u8], [source, destination]: [usize; 2]) -> Option<u16> {
        let mut by = 0;
        if let Some(to) = self.source {
            by = set(packet, source, to.ip().octets())?;
        }
        if let Some(to) = self.destination {
            by = checksum::add(by, set(packet, destination, to.ip().octets())?);
        }
        Some(by)
    }

    #[inline(always)]
    fn ports(&self, header: &mut [u8], [source, destination]: [usize; 2]) -> Option<u16> {
        let mut by = 0;
        if let Some(to) = self.source {
            by = set(header, source, to.port().to_be_bytes())?;
        }
        if let Some(to) = self.destination {
            by = checksum::add(by, set(header, destination, to.port().to_be_bytes())?);
        }
        Some(by)
    }

    /// An echo has one identifier for both ends: the destination's, where both are set.
    fn identifier(&self, message: &mut [u8]) -> Option<u16> {
        match self.destination.or(self.source) {
            Some(to) => set(message, ICMP_IDENTIFIER, to.port().to_be_bytes()),
            None => Some(0),
        }
    }
}

fn is_echo(message: &[u8]) -> bool {
    message.first().is_some_and(|kind| u32::ECHO.contains(kind))
}

/// Replaces bytes. What a sum over them changes by.
#[inline(always)]
fn set<const N: usize>(bytes: &mut [u8], at: usize, to: [u8; N]) -> Option<u16> {
    let place = bytes.get_mut(at..)?.first_chunk_mut::<N>()?;
    let by = checksum::difference(place, &to);
    *place = to;
    Some(by)
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use proptest::prelude::*;

    use super::*;
    use crate::build::{self, Frame, Tag};
    use crate::parse::{Parsed, TcpFlags, parse};

    fn endpoint() -> impl Strategy<Value = SocketAddrV4> {
        (any::<[u8; 4]>(), any::<u16>()).prop_map(|(ip, port)| SocketAddrV4::new(ip.into(), port))
    }

    fn rewrite() -> impl Strategy<Value = Rewrite> {
        let one = || proptest::option::of(endpoint());
        (one(), one()).prop_map(|(source, destination)| Rewrite { source, destination })
    }

    /// A packet between these two, of TCP, UDP or an ICMP echo.
    fn packet(of: u8, [source, destination]: [SocketAddrV4; 2], payload: &[u8], tags: &[Tag]) -> Vec<u8> {
        let (src, dst) = (SocketAddr::V4(source), SocketAddr::V4(destination));
        let identifier = source.port().to_be_bytes();
        let word = [identifier[0], identifier[1], 0, 1];
        let frame = match of {
            protocol::TCP => Frame::tcp(src, dst, TcpFlags(TcpFlags::ACK), payload),
            protocol::UDP => Frame::udp(src, dst, payload),
            _ => Frame::icmp(src.ip(), dst.ip(), 8, 0, word, payload),
        };
        let mut frame = frame.unwrap();
        frame.tags = tags;
        frame.to_vec().unwrap()
    }

    /// The endpoints after a rewrite. An echo keeps its identifier where the source has it.
    fn after(of: u8, [source, destination]: [SocketAddrV4; 2], rewrite: Rewrite) -> [SocketAddrV4; 2] {
        let mut ends = [
            rewrite.source.unwrap_or(source),
            rewrite.destination.unwrap_or(destination),
        ];
        if of == protocol::ICMP {
            let identifier = rewrite.destination.or(rewrite.source).unwrap_or(source).port();
            ends = ends.map(|end| SocketAddrV4::new(*end.ip(), identifier));
        }
        ends
    }

    fn info(frame: &[u8]) -> PacketInfo {
        match parse(frame) {
            Parsed::Flow(info) => info,
            Parsed::Fragment(fragment) => fragment.info,
            other => panic!("{other:?}"),
        }
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

    fn sum_at(of: u8) -> usize {
        translate::sum_of(of).unwrap_or(ICMP_SUM)
    }

    fn protocols() -> impl Strategy<Value = u8> {
        prop_oneof![Just(protocol::TCP), Just(protocol::UDP), Just(protocol::ICMP)]
    }

    proptest! {
        #[test]
        fn a_packet_is_the_one_built_with_the_new_endpoints(
            of in protocols(), source in endpoint(), destination in endpoint(), rewrite in rewrite(),
            payload in prop::collection::vec(any::<u8>(), 0..100), tagged: bool, left_to_hardware: bool,
        ) {
            let tags = if tagged { &[Tag::vlan(7)][..] } else { &[] };
            let ends = [source, destination];
            let mut got = packet(of, ends, &payload, tags);
            let expected = packet(of, after(of, ends, rewrite), &payload, tags);
            let info = info(&got);
            let l3 = usize::from(info.l3_offset);
            if left_to_hardware {
                put16(&mut got, l3 + IPV4_SUM, 0);
            }
            prop_assert!(rewrite.apply(&mut got, &info, Part::Headed));
            assert_same(&got, &expected, &[l3 + IPV4_SUM, usize::from(info.l4_offset) + sum_at(of)]);
        }

        #[test]
        fn an_error_quotes_the_packet_of_the_new_endpoints(
            of in protocols(), source in endpoint(), destination in endpoint(), rewrite in rewrite(),
            payload in prop::collection::vec(any::<u8>(), 0..60), cut in 8..60_usize,
        ) {
            // Half of a checksum cannot be updated.
            prop_assume!(cut != sum_at(of) + 1);
            // What is quoted went from the error's destination to the error's source.
            let about = [destination, source];
            let swapped = Rewrite { source: rewrite.destination, destination: rewrite.source };
            let error = |from: SocketAddrV4, to: SocketAddrV4, about: [SocketAddrV4; 2]| {
                let quoted = packet(of, about, &payload, &[]);
                let quoted = &quoted[14..quoted.len().min(34 + cut)];
                let (from, to) = ((*from.ip()).into(), (*to.ip()).into());
                Frame::icmp(from, to, 3, 3, [0; 4], quoted).unwrap().to_vec().unwrap()
            };
            let mut got = error(source, destination, about);
            let [from, to] = [rewrite.source.unwrap_or(source), rewrite.destination.unwrap_or(destination)];
            let expected = error(from, to, after(of, about, swapped));
            let info = info(&got);
            prop_assert!(info.is_icmp_error);
            prop_assert!(rewrite.apply(&mut got, &info, Part::Headed));
            assert_same(&got, &expected, &[24, 36, 52, 62 + sum_at(of)]);
        }

        #[test]
        fn fragments_are_those_of_the_new_datagram(
            of in protocols(), source in endpoint(), destination in endpoint(), rewrite in rewrite(),
        ) {
            let payload: Vec<u8> = (0..4000_u16).map(|at| at as u8).collect();
            let ends = [source, destination];
            let [sent, expected] = [ends, after(of, ends, rewrite)]
                .map(|ends| build::fragment(&packet(of, ends, &payload, &[]), 1280, 7).unwrap());
            for (at, (mut got, expected)) in sent.into_iter().zip(expected).enumerate() {
                let info = info(&got);
                let (part, sums) = match at {
                    0 => (Part::Headed, vec![24, 34 + sum_at(of)]),
                    _ => (Part::Later, vec![24]),
                };
                prop_assert!(rewrite.apply(&mut got, &info, part));
                assert_same(&got, &expected, &sums);
            }
        }

        #[test]
        fn foreign_bytes_are_read_within_their_bounds(
            rewrite in rewrite(), frame in prop::collection::vec(any::<u8>(), 35..200), protocol in protocols(),
            kind in prop_oneof![Just(3_u8), Just(8), any::<u8>()],
        ) {
            let mut frame = frame;
            frame[12..14].copy_from_slice(&[8, 0]);
            frame[14] = 0x45;
            let len = frame.len();
            put16(&mut frame, 16, (len - 14) as u16);
            frame[23] = protocol;
            // A checksum of 0 passes.
            put16(&mut frame, 24, 0);
            frame[34] = kind;
            match parse(&frame) {
                Parsed::Flow(info) => { rewrite.apply(&mut frame, &info, Part::Headed); }
                Parsed::Fragment(of) => { rewrite.apply(&mut frame, &of.info, Part::Later); }
                _ => {}
            }
            prop_assert_eq!(frame.len(), len);
        }
    }

    #[test]
    fn a_datagram_without_a_checksum_stays_without() {
        let ends = ["192.0.2.1:4000", "198.51.100.1:53"].map(|end| end.parse().unwrap());
        let mut got = packet(protocol::UDP, ends, b"bare", &[]);
        put16(&mut got, 40, 0);
        let info = info(&got);
        let source = Some("203.0.113.9:5000".parse().unwrap());
        let rewrite = Rewrite {
            source,
            destination: None,
        };
        assert!(rewrite.apply(&mut got, &info, Part::Headed));
        assert_eq!((be16(&got, 40), be16(&got, 34)), (Some(0), Some(5000)));
    }
}
