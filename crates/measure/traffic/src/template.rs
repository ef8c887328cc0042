//! Generated frames: one template per size. A packet changes only a few words and the checksums.

use std::net::{IpAddr, SocketAddr};

use packet::build::{Frame, Tag};
use packet::{TcpFlags, checksum};
use stamp::{FCS_LEN, Form, GENERATED_MAC, Ip, LEN, Stamp, Transport};

use crate::Error;
use crate::profile::Phase;

const SYN: u8 = 0x02;
const ACK: u8 = 0x10;
const FIN: u8 = 0x01;

/// A packet's position in its flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ends {
    pub(crate) first: bool,
    pub(crate) last: bool,
}

/// A frame of one phase and size, without the parts that differ between packets.
#[derive(Clone, Debug)]
pub(crate) struct Template {
    bytes: Vec<u8>,
    form: Form,
    /// The lower 32 bits of the first flow's source address.
    source: u32,
    /// Their offset.
    source_at: usize,
    ip_at: usize,
    transport_at: usize,
    /// Sum over the IPv4 header, without the source's lower bits.
    ip_sum: u16,
    /// Sum over pseudo header, transport header and payload, without the changing parts.
    transport_sum: u16,
    /// Payload bytes: the advance of TCP sequence numbers.
    payload_bytes: u32,
}

impl Template {
    /// The phase's frame of `wire_bytes` on the wire. The phase has been validated.
    pub(crate) fn new(phase: &Phase, wire_bytes: u16) -> Result<Template, Error> {
        let form = phase.form();
        let header = form.header_bytes();
        let len = usize::from(wire_bytes).saturating_sub(FCS_LEN).max(header + LEN);
        // The bytes after the stamp count up, so that shifted or truncated payloads are detected.
        let mut payload = vec![0u8; len - header];
        for (byte, value) in payload[LEN..].iter_mut().zip((0..=255u8).cycle()) {
            *byte = value;
        }
        let tags: Vec<Tag> = match phase.vlan[..] {
            [outer, inner] => vec![Tag::service(outer), Tag::vlan(inner)],
            _ => phase.vlan.iter().map(|id| Tag::vlan(*id)).collect(),
        };
        let (src, dst) = (
            SocketAddr::new(phase.src, phase.src_port),
            SocketAddr::new(phase.dst, phase.dst_port),
        );
        let frame = match form.transport {
            Transport::Udp => Frame::udp(src, dst, &payload),
            Transport::Tcp => Frame::tcp(src, dst, TcpFlags(ACK), &payload),
        };
        let not_built = |_| Error::Profile {
            key: "size".into(),
            write: "this packet cannot be built",
        };
        let frame = Frame {
            src_mac: GENERATED_MAC,
            tags: &tags,
            ..frame.map_err(not_built)?
        };
        let mut bytes = frame.to_vec().map_err(not_built)?;

        let ip_at = 14 + 4 * usize::from(form.tags);
        let (source, source_at, transport_at) = match phase.src {
            IpAddr::V4(a) => (u32::from(a), ip_at + 12, ip_at + 20),
            IpAddr::V6(a) => (u128::from(a) as u32, ip_at + 20, ip_at + 40),
        };
        // All changing fields are 0 in the template, and so in its sums.
        bytes[source_at..source_at + 4].fill(0);
        let changing: &[(usize, usize)] = match form.transport {
            Transport::Udp => &[(6, 8)],
            Transport::Tcp => &[(4, 8), (13, 14), (16, 18)],
        };
        for (from, to) in changing {
            bytes[transport_at + from..transport_at + to].fill(0);
        }
        let mut ip_sum = 0;
        let pseudo_addresses = match form.ip {
            Ip::V4 => {
                bytes[ip_at + 10..ip_at + 12].fill(0);
                ip_sum = checksum::sum(&bytes[ip_at..transport_at]);
                &bytes[ip_at + 12..ip_at + 20]
            }
            Ip::V6 => &bytes[ip_at + 8..ip_at + 40],
        };
        let protocol = match form.transport {
            Transport::Udp => 17,
            Transport::Tcp => 6,
        };
        let segment = &bytes[transport_at..];
        let transport_sum = [checksum::sum(pseudo_addresses), protocol, segment.len() as u16]
            .into_iter()
            .fold(checksum::sum(segment), checksum::add);
        Ok(Template {
            form,
            source,
            source_at,
            ip_at,
            transport_at,
            ip_sum,
            transport_sum,
            payload_bytes: payload.len() as u32,
            bytes,
        })
    }

    /// Bytes in memory.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Writes the packet of flow `index` of the phase into the first [`Template::len`] bytes of `out`.
    pub(crate) fn render(&self, out: &mut [u8], index: u32, stamp: &Stamp, ends: Ends) {
        let out = &mut out[..self.bytes.len()];
        out.copy_from_slice(&self.bytes);
        let source = self.source.wrapping_add(index);
        out[self.source_at..self.source_at + 4].copy_from_slice(&source.to_be_bytes());
        let mut changed = words32(source);
        if self.form.ip == Ip::V4 {
            let sum = !fold(u32::from(self.ip_sum) + changed);
            out[self.ip_at + 10..self.ip_at + 12].copy_from_slice(&sum.to_be_bytes());
        }
        let transport = &mut out[self.transport_at..];
        let (payload_at, checksum_at) = match self.form.transport {
            Transport::Udp => (8, 6),
            Transport::Tcp => {
                let number = stamp.sequence.wrapping_mul(self.payload_bytes);
                transport[4..8].copy_from_slice(&number.to_be_bytes());
                let flags = match ends {
                    Ends { first: true, .. } => SYN,
                    Ends { last: true, .. } => FIN | ACK,
                    _ => ACK,
                };
                transport[13] = flags;
                changed += words32(number) + u32::from(flags);
                (20, 16)
            }
        };
        let field = stamp.to_bytes();
        for word in field.chunks_exact(2) {
            changed += u32::from(u16::from_be_bytes([word[0], word[1]]));
        }
        transport[payload_at..payload_at + LEN].copy_from_slice(&field);
        let mut sum = !fold(u32::from(self.transport_sum) + changed);
        if sum == 0 && self.form.transport == Transport::Udp {
            sum = 0xffff;
        }
        transport[checksum_at..checksum_at + 2].copy_from_slice(&sum.to_be_bytes());
    }
}

fn words32(value: u32) -> u32 {
    (value >> 16) + (value & 0xffff)
}

fn fold(mut sum: u32) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::{Protocol, Size};
    use etherparse::{NetSlice, SlicedPacket, TransportSlice};
    use proptest::prelude::*;

    /// Checks lengths and checksums with etherparse; returns source address and port.
    fn check(frame: &[u8]) -> (IpAddr, u16) {
        let packet = SlicedPacket::from_ethernet(frame).unwrap();
        let (source, v4) = match packet.net.as_ref().unwrap() {
            NetSlice::Ipv4(ip) => {
                let header = ip.header().to_header();
                assert_eq!(header.header_checksum, header.calc_header_checksum());
                (IpAddr::V4(ip.header().source_addr()), Some(header))
            }
            NetSlice::Ipv6(ip) => (IpAddr::V6(ip.header().source_addr()), None),
            NetSlice::Arp(_) => panic!("ARP"),
        };
        let NetSlice::Ipv6(_) = packet.net.as_ref().unwrap() else {
            let header = v4.unwrap();
            return match packet.transport.unwrap() {
                TransportSlice::Udp(udp) => {
                    let right = udp
                        .to_header()
                        .calc_checksum_ipv4(&header, udp.payload())
                        .unwrap();
                    assert_eq!(udp.checksum(), right);
                    (source, udp.source_port())
                }
                TransportSlice::Tcp(tcp) => {
                    assert_eq!(
                        tcp.checksum(),
                        tcp.calc_checksum_ipv4(header.source, header.destination).unwrap()
                    );
                    (source, tcp.source_port())
                }
                _ => panic!(),
            };
        };
        let Some(NetSlice::Ipv6(ip)) = packet.net else {
            panic!()
        };
        let header = ip.header().to_header();
        match packet.transport.unwrap() {
            TransportSlice::Udp(udp) => {
                assert_eq!(
                    udp.checksum(),
                    udp.to_header()
                        .calc_checksum_ipv6(&header, udp.payload())
                        .unwrap()
                );
                (source, udp.source_port())
            }
            TransportSlice::Tcp(tcp) => {
                assert_eq!(
                    tcp.checksum(),
                    tcp.calc_checksum_ipv6(header.source, header.destination).unwrap()
                );
                (source, tcp.source_port())
            }
            _ => panic!(),
        }
    }

    proptest! {
        #[test]
        fn frames_are_valid_by_an_independent_parser(
            v6: bool, tcp: bool, vlan in prop::collection::vec(0u16..4096, 0..3), extra in 0u16..1500,
            index in 0u32..1 << 20,
            sequence: u32, sent in 0u64..1 << 40, instance in 0u32..1 << 24, first: bool, last: bool,
        ) {
            let mut phase = Phase { vlan, src_port: 777, ..Phase::default() };
            if v6 {
                phase.src = "fd00::ffff:fff0".parse().unwrap();
                phase.dst = "fd01::1".parse().unwrap();
            }
            if tcp {
                phase.protocol = Protocol::Tcp;
            }
            let size = phase.form().minimum_wire_bytes() as u16 + extra;
            phase.size = Size::Fixed(size);
            let template = Template::new(&phase, size).unwrap();
            prop_assert_eq!(template.len(), usize::from(size) - FCS_LEN);
            let mut frame = vec![0xee; template.len()];
            let stamp = Stamp { flow: index, sequence, sent, instance: 0 };
            template.render(&mut frame, index, &stamp, Ends { first, last });
            let (source, port) = check(&frame);
            prop_assert_eq!(port, 777);
            match (phase.src, source) {
                (IpAddr::V4(base), IpAddr::V4(got)) => prop_assert_eq!(u32::from(base) + index, u32::from(got)),
                (IpAddr::V6(base), IpAddr::V6(got)) => {
                    prop_assert_eq!((u128::from(base) as u32).wrapping_add(index), u128::from(got) as u32);
                }
                _ => prop_assert!(false),
            }
            prop_assert_eq!(stamp::read(&frame), Some(stamp));
            // A function's stamp changes the frame into the one rendered with that instance.
            prop_assert!(stamp::stamp_instance(&mut frame, instance));
            let mut again = vec![0; template.len()];
            let stamp = Stamp { instance: stamp::instance_mark(instance), ..stamp };
            template.render(&mut again, index, &stamp, Ends { first, last });
            prop_assert_eq!(frame, again);
        }
    }
}
