//! Generated frames of every kind: both parsers read back what was written.

use std::net::{IpAddr, SocketAddr};

use model::{FlowKey, Tuple};
use packet::build::{self, Extension, Frame, Network, Tag, Transport};
use packet::{Parsed, TcpFlags, ethertype, parse};
use proptest::prelude::*;

use crate::oracle::{self, Kind};

#[derive(Clone, Debug)]
struct Plan {
    v6: bool,
    hosts: (u8, u8),
    ports: (u16, u16),
    tags: Vec<Tag>,
    dscp: u8,
    options: Vec<u8>,
    extensions: Vec<(u8, Vec<u8>)>,
    transport: u8,
    flags: u8,
    payload: Vec<u8>,
    padding: usize,
}

fn plans() -> impl Strategy<Value = Plan> {
    let tag = (
        prop_oneof![
            Just(ethertype::VLAN),
            Just(ethertype::SERVICE_VLAN),
            Just(ethertype::QINQ)
        ],
        any::<u16>(),
    )
        .prop_map(|(ethertype, control)| Tag { ethertype, control });
    let extension = prop_oneof![
        (prop_oneof![Just(60u8), Just(43u8)], 0usize..4)
            .prop_map(|(number, words)| (number, vec![0; 6 + 8 * words])),
        (1usize..4).prop_map(|words| (51u8, vec![0; 6 + 8 * words])),
    ];
    (
        any::<bool>(),
        (0u8..4, 0u8..4),
        (0u16..4, prop_oneof![0u16..4, any::<u16>()]),
        prop::collection::vec(tag, 0..3),
        0u8..64,
        (0usize..10).prop_map(|words| vec![1; 4 * words]),
        (any::<bool>(), prop::collection::vec(extension, 0..4)),
        (0u8..6, any::<u8>()),
        prop::collection::vec(any::<u8>(), 8..200),
        prop_oneof![Just(0usize), 0usize..40],
    )
        .prop_map(
            |(
                v6,
                hosts,
                ports,
                tags,
                dscp,
                options,
                (hop_by_hop, mut extensions),
                (transport, flags),
                payload,
                padding,
            )| {
                if hop_by_hop {
                    extensions.insert(0, (0, vec![0; 6]));
                }
                Plan {
                    v6,
                    hosts,
                    ports,
                    tags,
                    dscp,
                    options,
                    extensions,
                    transport,
                    flags,
                    payload,
                    padding,
                }
            },
        )
}

impl Plan {
    fn address(&self, host: u8) -> IpAddr {
        // Near and far addresses, so that byte order matters.
        if self.v6 {
            [[0x20, host, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, !host]][0].into()
        } else {
            [10, host, 0, !host].into()
        }
    }

    /// The tuple, the frame without padding and the frame with it.
    fn write(&self) -> (Tuple, Vec<u8>) {
        let (src, dst) = (self.address(self.hosts.0), self.address(self.hosts.1));
        let extensions: Vec<Extension<'_>> = self
            .extensions
            .iter()
            .map(|(number, body)| Extension {
                number: *number,
                body,
            })
            .collect();
        let network = match (src, dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => Network::V4 {
                src: src.octets(),
                dst: dst.octets(),
                dscp: self.dscp,
                ttl: 64,
                identification: 0,
                options: &self.options,
            },
            (IpAddr::V6(src), IpAddr::V6(dst)) => Network::V6 {
                src: src.octets(),
                dst: dst.octets(),
                dscp: self.dscp,
                hop_limit: 64,
                extensions: &extensions,
            },
            _ => unreachable!(),
        };
        let (src_port, dst_port) = self.ports;
        let echo = if self.v6 { 128 } else { 8 };
        let (protocol, ports, transport) = match self.transport {
            0 => (17, self.ports, Transport::Udp { src_port, dst_port }),
            1 => (
                6,
                self.ports,
                Transport::Tcp {
                    src_port,
                    dst_port,
                    sequence: 1,
                    acknowledgement: 2,
                    flags: TcpFlags(self.flags),
                    options: &self.options,
                },
            ),
            2 => (
                132,
                self.ports,
                Transport::Sctp {
                    src_port,
                    dst_port,
                    tag: 3,
                },
            ),
            3 => (
                if self.v6 { 58 } else { 1 },
                (src_port, src_port),
                Transport::Icmp {
                    kind: echo + u8::from(self.v6 && self.flags & 1 == 1),
                    code: 0,
                    word: [(src_port >> 8) as u8, src_port as u8, 0, 1],
                },
            ),
            4 => (47, (0, 0), Transport::Raw { protocol: 47 }),
            _ => (50, (0, 0), Transport::Raw { protocol: 50 }),
        };
        let frame = Frame {
            tags: &self.tags,
            ..Frame::new(network, transport, &self.payload)
        };
        let tuple = Tuple {
            src,
            dst,
            src_port: ports.0,
            dst_port: ports.1,
            protocol,
            vlan: self.tags.first().map_or(0, |tag| tag.control & 0xfff),
        };
        (tuple, frame.to_vec().unwrap())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    #[test]
    fn both_parsers_read_back_what_was_written(plan in plans()) {
        let (tuple, mut frame) = plan.write();
        frame.resize(frame.len() + plan.padding, 0);
        prop_assert_eq!(oracle::compare(&frame), Ok(Kind::Flow));
        let Parsed::Flow(info) = parse(&frame) else { unreachable!() };
        prop_assert_eq!((info.key, info.direction), FlowKey::new(&tuple));
        prop_assert_eq!(info.dscp, plan.dscp);
    }

    #[test]
    fn checksums_equal_those_of_etherparse(plan in plans()) {
        let (_, frame) = plan.write();
        let theirs = etherparse::PacketHeaders::from_ethernet_slice(&frame).unwrap();
        let payload = theirs.payload.slice();
        match (&theirs.net, &theirs.transport) {
            (Some(etherparse::NetHeaders::Ipv4(ip, _)), Some(etherparse::TransportHeader::Udp(udp))) => {
                prop_assert_eq!(udp.checksum, udp.calc_checksum_ipv4(ip, payload).unwrap());
            }
            (Some(etherparse::NetHeaders::Ipv6(ip, _)), Some(etherparse::TransportHeader::Udp(udp))) => {
                prop_assert_eq!(udp.checksum, udp.calc_checksum_ipv6(ip, payload).unwrap());
            }
            (Some(etherparse::NetHeaders::Ipv4(ip, _)), Some(etherparse::TransportHeader::Tcp(tcp))) => {
                prop_assert_eq!(tcp.checksum, tcp.calc_checksum_ipv4(ip, payload).unwrap());
            }
            (Some(etherparse::NetHeaders::Ipv6(ip, _)), Some(etherparse::TransportHeader::Tcp(tcp))) => {
                prop_assert_eq!(tcp.checksum, tcp.calc_checksum_ipv6(ip, payload).unwrap());
            }
            (_, Some(etherparse::TransportHeader::Icmpv4(icmp))) => {
                prop_assert_eq!(icmp.checksum, icmp.icmp_type.calc_checksum(payload));
            }
            (Some(etherparse::NetHeaders::Ipv6(ip, _)), Some(etherparse::TransportHeader::Icmpv6(icmp))) => {
                let expected = icmp.icmp_type.calc_checksum(ip.source, ip.destination, payload).unwrap();
                prop_assert_eq!(icmp.checksum, expected);
            }
            _ => {}
        }
    }

    /// etherparse reads the fragments alike; they have the datagram's addresses and together hold its data.
    #[test]
    fn fragments_hold_the_datagram(plan in plans(), mtu in 90usize..250) {
        let (tuple, frame) = plan.write();
        let whole = match parse(&frame) { Parsed::Flow(info) => info, other => panic!("{other:?}") };
        let Ok(fragments) = build::fragment(&frame, mtu, 0x1_2345) else { return Ok(()) };
        if fragments.len() < 2 {
            return Ok(());
        }
        let mut data = Vec::new();
        for (i, fragment) in fragments.iter().enumerate() {
            let l3 = usize::from(whole.l3_offset);
            prop_assert!(fragment.len() - l3 <= mtu);
            let kind = oracle::compare(fragment);
            match parse(fragment) {
                Parsed::Fragment(f) => {
                    prop_assert_eq!(f.info.vlan, tuple.vlan);
                    prop_assert_eq!(usize::from(f.offset) * 8, data.len());
                    prop_assert_eq!(f.more, i + 1 < fragments.len());
                    if i == 0 {
                        prop_assert_eq!(f.info.key, whole.key);
                        prop_assert_eq!(&kind, &Ok(Kind::FirstFragment));
                    }
                    prop_assert!(kind.is_ok(), "{:?}", kind);
                    data.extend(&fragment[fragment.len() - usize::from(f.len)..]);
                }
                Parsed::Flow(info) => {
                    prop_assert!(matches!(tuple.protocol, 47 | 50) && !plan.v6);
                    prop_assert_eq!(info.key, whole.key);
                    data.extend(&fragment[usize::from(info.l4_offset)..]);
                }
                // The header chain did not fit the first one: RFC 7112.
                Parsed::Invalid(model::DropReason::FragmentInvalid) => return Ok(()),
                other => prop_assert!(false, "{:?}", other),
            }
        }
        prop_assert!(frame.ends_with(&data));
    }

    #[test]
    fn both_directions_have_one_key(plan in plans()) {
        let back = Plan {
            hosts: (plan.hosts.1, plan.hosts.0),
            ports: (plan.ports.1, plan.ports.0),
            ..plan.clone()
        };
        prop_assume!(plan.transport != 3);
        let (Parsed::Flow(there), Parsed::Flow(back)) = (parse(&plan.write().1), parse(&back.write().1)) else {
            panic!()
        };
        prop_assert_eq!(there.key, back.key);
        let ports_differ = plan.transport < 3 && plan.ports.0 != plan.ports.1;
        if plan.hosts.0 != plan.hosts.1 || ports_differ {
            prop_assert_eq!(there.direction, back.direction.flipped());
        }
    }

    #[test]
    fn frames_can_be_built_from_socket_addresses(src in any::<SocketAddr>(), dst in any::<SocketAddr>()) {
        match Frame::udp(src, dst, b"x") {
            Ok(frame) => prop_assert_eq!(oracle::compare(&frame.to_vec().unwrap()), Ok(Kind::Flow)),
            Err(e) => {
                prop_assert_eq!(e, packet::Error::Family);
                prop_assert_ne!(src.is_ipv4(), dst.is_ipv4());
            }
        }
    }
}

#[test]
fn oversized_fields_are_rejected() {
    let src: SocketAddr = "10.0.0.1:1".parse().unwrap();
    let big = vec![0; 65_536];
    let frame = Frame::udp(src, src, &big).unwrap();
    assert_eq!(
        frame.to_vec(),
        Err(packet::Error::Length {
            what: "IPv4 total length"
        })
    );
    let frame = Frame::udp(src, src, b"x").unwrap();
    assert_eq!(
        frame.write(&mut [0; 40]),
        Err(packet::Error::BufferTooSmall {
            needed: 43,
            available: 40
        })
    );
    assert_eq!(
        build::fragment(&frame.to_vec().unwrap(), 27, 0),
        Err(packet::Error::Unfragmentable { mtu: 27 })
    );
}
