//! One frame of every kind that the parser accepts, with the expected result.

use std::net::{IpAddr, SocketAddr};

use model::{Direction, DropReason, FlowKey, Tuple, protocol};
use packet::build::{self, Extension, Frame, Network, Tag, Transport};
use packet::{Parsed, TcpFlags, ethertype, parse};

use crate::oracle::{self, Kind};

pub(crate) const A: &str = "10.1.0.1:4000";
pub(crate) const B: &str = "10.2.0.2:80";
pub(crate) const A6: &str = "[2001:db8::1]:4000";
pub(crate) const B6: &str = "[2001:db8::2]:80";

pub(crate) fn at(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn ip(text: &str) -> IpAddr {
    at(text).ip()
}

fn udp() -> Frame<'static> {
    Frame::udp(at(A), at(B), b"0123456789abcdefghijklmnopqrstuv").unwrap()
}

fn udp6() -> Frame<'static> {
    Frame::udp(at(A6), at(B6), b"0123456789abcdefghijklmnopqrstuv").unwrap()
}

fn tcp() -> Frame<'static> {
    Frame::tcp(at(A), at(B), TcpFlags(TcpFlags::SYN), b"0123456789").unwrap()
}

pub(crate) fn with_options(frame: Frame<'static>) -> Frame<'static> {
    let Network::V4 {
        src,
        dst,
        dscp,
        ttl,
        identification,
        ..
    } = frame.network
    else {
        panic!("not IPv4");
    };
    Frame {
        network: Network::V4 {
            src,
            dst,
            dscp,
            ttl,
            identification,
            options: &[0x94, 4, 0, 0, 1, 1, 1, 0],
        },
        ..frame
    }
}

pub(crate) fn with_extensions(
    frame: Frame<'static>,
    extensions: &'static [Extension<'static>],
) -> Frame<'static> {
    let Network::V6 {
        src,
        dst,
        dscp,
        hop_limit,
        ..
    } = frame.network
    else {
        panic!("not IPv6");
    };
    Frame {
        network: Network::V6 {
            src,
            dst,
            dscp,
            hop_limit,
            extensions,
        },
        ..frame
    }
}

const PAD: [u8; 6] = [1, 4, 0, 0, 0, 0];
const ALL_EXTENSIONS: &[Extension<'static>] = &[
    Extension {
        number: 0,
        body: &PAD,
    },
    Extension {
        number: 60,
        body: &PAD,
    },
    Extension {
        number: 43,
        body: &[4, 0, 0, 0, 0, 0],
    },
    Extension {
        number: 44,
        body: &[0, 0, 0, 0, 0, 7],
    },
    Extension {
        number: 51,
        body: &[0; 14],
    },
    Extension {
        number: 60,
        body: &PAD,
    },
];

/// An ICMP error of the same family about `frame`, sent by a router and quoting `len` bytes of its IP packet.
pub(crate) fn error_about(frame: &[u8], kind: u8, len: usize) -> Vec<u8> {
    let packet = &frame[14..];
    let (router, sender): (IpAddr, IpAddr) = if packet[0] >> 4 == 4 {
        let sender: [u8; 4] = packet[12..16].try_into().unwrap();
        ("192.0.2.1".parse().unwrap(), sender.into())
    } else {
        let sender: [u8; 16] = packet[8..24].try_into().unwrap();
        ("2001:db8:ffff::1".parse().unwrap(), sender.into())
    };
    Frame::icmp(
        router,
        sender,
        kind,
        0,
        [0, 0, 5, 220],
        &packet[..len.min(packet.len())],
    )
    .unwrap()
    .to_vec()
    .unwrap()
}

/// Valid frames and the expected result of both parsers.
pub(crate) fn frames() -> Vec<(&'static str, Vec<u8>, Kind)> {
    let vec = |frame: Frame<'_>| frame.to_vec().unwrap();
    let long = Frame {
        payload: &[7; 3000],
        ..udp()
    };
    let long6 = Frame {
        payload: &[7; 3000],
        ..with_extensions(
            udp6(),
            &[
                Extension {
                    number: 0,
                    body: &PAD,
                },
                Extension {
                    number: 60,
                    body: &PAD,
                },
            ],
        )
    };
    let mut frames = vec![
        ("udp", vec(udp()), Kind::Flow),
        (
            "udp, reverse",
            vec(Frame::udp(at(B), at(A), &[0; 32]).unwrap()),
            Kind::Flow,
        ),
        (
            "udp without payload",
            vec(Frame {
                payload: &[],
                ..udp()
            }),
            Kind::Flow,
        ),
        ("tcp", vec(tcp()), Kind::Flow),
        (
            "sctp",
            vec(Frame::sctp(at(A), at(B), &[0, 0, 0, 4]).unwrap()),
            Kind::Flow,
        ),
        ("udp over ipv6", vec(udp6()), Kind::Flow),
        (
            "tcp over ipv6",
            vec(Frame::tcp(at(A6), at(B6), TcpFlags(TcpFlags::ACK), b"x").unwrap()),
            Kind::Flow,
        ),
        (
            "sctp over ipv6",
            vec(Frame::sctp(at(A6), at(B6), &[0, 0, 0, 4]).unwrap()),
            Kind::Flow,
        ),
        ("ipv4 options", vec(with_options(tcp())), Kind::Flow),
        (
            "vlan",
            vec(Frame {
                tags: &[Tag::vlan(42)],
                ..tcp()
            }),
            Kind::Flow,
        ),
        (
            "qinq",
            vec(Frame {
                tags: &[Tag::service(7), Tag::vlan(42)],
                ..udp6()
            }),
            Kind::Flow,
        ),
        (
            "old qinq",
            vec(Frame {
                tags: &[
                    Tag {
                        ethertype: ethertype::QINQ,
                        control: 0xe007,
                    },
                    Tag::vlan(42),
                ],
                ..udp()
            }),
            Kind::Flow,
        ),
        (
            "priority tag",
            vec(Frame {
                tags: &[Tag {
                    ethertype: ethertype::VLAN,
                    control: 0xa000,
                }],
                ..udp()
            }),
            Kind::Flow,
        ),
        (
            "every extension header",
            vec(with_extensions(udp6(), ALL_EXTENSIONS)),
            Kind::Flow,
        ),
        (
            "no next header",
            vec(Frame {
                transport: Transport::Raw { protocol: 59 },
                payload: &[],
                ..with_extensions(
                    udp6(),
                    &[Extension {
                        number: 60,
                        body: &PAD,
                    }],
                )
            }),
            Kind::Flow,
        ),
        (
            "gre",
            vec(Frame {
                transport: Transport::Raw { protocol: 47 },
                ..udp()
            }),
            Kind::Flow,
        ),
        (
            "esp over ipv6",
            vec(Frame {
                transport: Transport::Raw { protocol: 50 },
                ..udp6()
            }),
            Kind::Flow,
        ),
        (
            "echo request",
            vec(Frame::icmp(ip(A), ip(B), 8, 0, [0x12, 0x34, 0, 1], b"ping").unwrap()),
            Kind::Flow,
        ),
        (
            "echo reply",
            vec(Frame::icmp(ip(B), ip(A), 0, 0, [0x12, 0x34, 0, 1], b"ping").unwrap()),
            Kind::Flow,
        ),
        (
            "echo request over ipv6",
            vec(Frame::icmp(ip(A6), ip(B6), 128, 0, [0x12, 0x34, 0, 1], b"ping").unwrap()),
            Kind::Flow,
        ),
        (
            "neighbour solicitation",
            vec(Frame::icmp(ip(A6), ip(B6), 135, 0, [0; 4], &[0; 16]).unwrap()),
            Kind::Flow,
        ),
        (
            "padded",
            [
                vec(Frame {
                    payload: b"x",
                    ..udp()
                }),
                vec![0; 20],
            ]
            .concat(),
            Kind::Flow,
        ),
        ("arp", arp(), Kind::Other),
        (
            "802.3",
            [&[0x01; 12][..], &[0, 38], &[0x42; 46]].concat(),
            Kind::Other,
        ),
        (
            "pppoe",
            [&[0x02; 12][..], &[0x88, 0x64], &[0x11; 46]].concat(),
            Kind::Other,
        ),
        (
            "lldp",
            [&[0x02; 12][..], &[0x88, 0xcc], &[0x02; 46]].concat(),
            Kind::Other,
        ),
    ];
    for kind in [3, 4, 5, 11, 12] {
        frames.push(("icmp error", error_about(&vec(udp()), kind, 28), Kind::IcmpError));
    }
    for kind in 1..=4 {
        let about = vec(with_extensions(udp6(), ALL_EXTENSIONS));
        frames.push(("icmpv6 error", error_about(&about, kind, 1232), Kind::IcmpError));
    }
    frames.push((
        "icmp error about tcp",
        error_about(&vec(with_options(tcp())), 3, 36),
        Kind::IcmpError,
    ));
    let echo = Frame::icmp(ip(A), ip(B), 8, 0, [0x12, 0x34, 0, 1], b"ping").unwrap();
    frames.push((
        "icmp error about echo",
        error_about(&vec(echo), 11, 28),
        Kind::IcmpError,
    ));
    for (name, frame) in [("fragment", vec(long)), ("ipv6 fragment", vec(long6))] {
        for (i, fragment) in build::fragment(&frame, 1400, 0x1_beef)
            .unwrap()
            .into_iter()
            .enumerate()
        {
            let kind = if i == 0 {
                Kind::FirstFragment
            } else {
                Kind::LaterFragment
            };
            frames.push((name, fragment, kind));
        }
    }
    let ah = Frame {
        transport: Transport::Raw { protocol: 51 },
        payload: &[
            17, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x0f, 0xa0, 0, 80, 0, 10, 0, 0, 1, 2,
        ],
        ..udp()
    };
    frames.push(("authentication header over ipv4", vec(ah), Kind::Flow));
    frames
}

fn arp() -> Vec<u8> {
    let body = [
        0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 1, 10, 0, 0, 1, 0, 0, 0, 0, 0, 0, 10, 0, 0, 2,
    ];
    [&[0xff; 12][..], &[8, 6], &body, &[0; 18]].concat()
}

fn flow(frame: &[u8]) -> packet::PacketInfo {
    match parse(frame) {
        Parsed::Flow(info) => info,
        other => panic!("{other:?}"),
    }
}

fn tuple(src: SocketAddr, dst: SocketAddr, protocol: u8, vlan: u16) -> Tuple {
    Tuple {
        src: src.ip(),
        dst: dst.ip(),
        src_port: src.port(),
        dst_port: dst.port(),
        protocol,
        vlan,
    }
}

#[test]
fn both_parsers_classify_every_golden_frame() {
    for (name, frame, kind) in frames() {
        match oracle::compare(&frame) {
            Ok(found) => assert_eq!(found, kind, "{name}"),
            Err(why) => panic!("{name}: {why}"),
        }
    }
}

#[test]
fn keys_equal_the_tuple() {
    for (frame, tuple) in [
        (udp(), tuple(at(A), at(B), protocol::UDP, 0)),
        (with_options(tcp()), tuple(at(A), at(B), protocol::TCP, 0)),
        (
            with_extensions(udp6(), ALL_EXTENSIONS),
            tuple(at(A6), at(B6), protocol::UDP, 0),
        ),
        (
            Frame {
                tags: &[Tag::service(7), Tag::vlan(42)],
                ..tcp()
            },
            tuple(at(A), at(B), protocol::TCP, 7),
        ),
    ] {
        let info = flow(&frame.to_vec().unwrap());
        assert_eq!((info.key, info.direction), FlowKey::new(&tuple));
        assert_eq!(info.l3_offset as usize, frame.l3_offset());
        assert_eq!(info.l4_offset as usize, frame.l4_offset());
        assert_eq!(info.frame_len as usize, frame.len());
        assert_eq!(info.l3_len as usize, frame.len() - frame.l3_offset());
    }
}

#[test]
fn tcp_flags_are_read() {
    let syn = flow(&tcp().to_vec().unwrap()).tcp_flags;
    assert!(syn.syn() && !syn.fin() && !syn.rst() && !syn.ack());
    let info = flow(
        &Frame::tcp(at(A), at(B), TcpFlags(TcpFlags::FIN | TcpFlags::ACK), b"")
            .unwrap()
            .to_vec()
            .unwrap(),
    );
    assert!(info.tcp_flags.fin() && info.tcp_flags.ack());
    assert_eq!(flow(&udp().to_vec().unwrap()).tcp_flags, TcpFlags::default());
}

#[test]
fn an_icmp_error_has_the_opposite_direction() {
    for (frame, kind, len) in [(udp(), 3, 28), (tcp(), 11, 28), (udp6(), 1, 48)] {
        let frame = frame.to_vec().unwrap();
        let about = flow(&frame);
        let error = flow(&error_about(&frame, kind, len));
        assert!(error.is_icmp_error);
        assert_eq!(error.key, about.key);
        assert_eq!(error.direction, about.direction.flipped());
        assert_eq!(error.tcp_flags, TcpFlags::default());
    }
}

#[test]
fn an_icmp_error_about_a_later_fragment_has_no_ports() {
    let long = Frame {
        payload: &[7; 3000],
        ..udp()
    };
    let later = &build::fragment(&long.to_vec().unwrap(), 1400, 9).unwrap()[1];
    let error = flow(&error_about(later, 3, 28));
    let expected = Tuple {
        src_port: 0,
        dst_port: 0,
        ..tuple(at(A), at(B), protocol::UDP, 0)
    };
    assert_eq!(error.key, FlowKey::new(&expected).0);
    assert!(error.is_icmp_error);
}

#[test]
fn echo_request_and_reply_are_one_flow() {
    let request = flow(
        &Frame::icmp(ip(A), ip(B), 8, 0, [9, 9, 0, 1], b"")
            .unwrap()
            .to_vec()
            .unwrap(),
    );
    let reply = flow(
        &Frame::icmp(ip(B), ip(A), 0, 0, [9, 9, 0, 1], b"")
            .unwrap()
            .to_vec()
            .unwrap(),
    );
    let other = flow(
        &Frame::icmp(ip(A), ip(B), 8, 0, [9, 8, 0, 1], b"")
            .unwrap()
            .to_vec()
            .unwrap(),
    );
    assert_eq!(request.key, reply.key);
    assert_eq!(
        (request.direction, reply.direction),
        (Direction::Forward, Direction::Reverse)
    );
    assert_ne!(request.key, other.key);
}

#[test]
fn a_fragment_has_the_addresses_of_its_flow() {
    let long = Frame {
        payload: &[7; 3000],
        ..udp()
    };
    let fragments = build::fragment(&long.to_vec().unwrap(), 1400, 0x1_beef).unwrap();
    assert_eq!(fragments.len(), 3);
    for (i, frame) in fragments.iter().enumerate() {
        let Parsed::Fragment(fragment) = parse(frame) else {
            panic!()
        };
        let FlowKey::V4(key) = fragment.info.key else {
            panic!()
        };
        assert_eq!((key.a, key.b), ([10, 1, 0, 1], [10, 2, 0, 2]));
        assert_eq!((key.a_port, key.b_port), if i == 0 { (4000, 80) } else { (0, 0) });
        assert_eq!(
            (fragment.identification, fragment.protocol),
            (0xbeef, protocol::UDP)
        );
        assert_eq!(fragment.offset as usize, i * 172);
        assert_eq!(fragment.more, i < 2);
    }
}

#[test]
fn fragments_without_ports_need_no_first_fragment() {
    let gre = Frame {
        transport: Transport::Raw { protocol: 47 },
        payload: &[7; 3000],
        ..udp()
    };
    for frame in build::fragment(&gre.to_vec().unwrap(), 1400, 9).unwrap() {
        assert_eq!(flow(&frame).key.protocol(), 47);
    }
}

/// Changes one byte of a frame, fixes the IPv4 checksum, and parses it.
fn changed(frame: Frame<'_>, at: usize, value: u8) -> Parsed {
    let mut bytes = frame.to_vec().unwrap();
    let l3 = frame.l3_offset();
    bytes[at] = value;
    if bytes[l3] >> 4 == 4 {
        let end = l3 + usize::from(bytes[l3] & 15) * 4;
        bytes[l3 + 10..l3 + 12].fill(0);
        let sum = packet::checksum::internet(&bytes[l3..end]);
        bytes[l3 + 10..l3 + 12].copy_from_slice(&sum.to_be_bytes());
    }
    parse(&bytes)
}

#[test]
fn inconsistent_headers_are_malformed() {
    let malformed = Parsed::Invalid(DropReason::Malformed);
    assert_eq!(changed(udp(), 14, 0x65), malformed, "version");
    assert_eq!(changed(udp(), 14, 0x44), malformed, "header length");
    assert_eq!(
        changed(udp(), 17, 0x7f),
        malformed,
        "total length beyond the frame"
    );
    assert_eq!(
        changed(udp(), 17, 19),
        malformed,
        "total length within the header"
    );
    assert_eq!(changed(udp(), 39, 0), malformed, "UDP length 0");
    assert_eq!(changed(udp(), 39, 7), malformed, "UDP length within the header");
    assert_eq!(changed(udp(), 38, 1), malformed, "UDP length beyond the packet");
    assert_eq!(changed(tcp(), 46, 0x40), malformed, "TCP header length too small");
    assert_eq!(
        changed(tcp(), 46, 0xf0),
        malformed,
        "TCP header length beyond the packet"
    );
    assert_eq!(changed(udp6(), 14, 0x40), malformed, "IPv6 version");
    assert_eq!(
        changed(udp6(), 18, 1),
        malformed,
        "payload length beyond the frame"
    );
    assert_eq!(
        changed(udp6(), 19, 0),
        malformed,
        "payload length 0 without the jumbo option"
    );
    assert_eq!(parse(&[0; 13]), malformed);
    assert_eq!(parse(&[]), malformed);
    let frame = udp().to_vec().unwrap();
    let error = error_about(&frame, 3, 27);
    assert_eq!(parse(&error), malformed, "a quote of 7 bytes");
    let late_hop_by_hop = with_extensions(
        udp6(),
        &[
            Extension {
                number: 60,
                body: &PAD,
            },
            Extension {
                number: 0,
                body: &PAD,
            },
        ],
    );
    assert_eq!(parse(&late_hop_by_hop.to_vec().unwrap()), malformed);
}

#[test]
fn every_truncation_is_malformed() {
    for (name, frame, kind) in frames() {
        if matches!(kind, Kind::Other) || name == "padded" {
            continue;
        }
        for len in 0..frame.len() {
            match parse(&frame[..len]) {
                Parsed::Invalid(DropReason::Malformed) => {}
                other => panic!("{name} cut to {len}: {other:?}"),
            }
        }
    }
}

#[test]
fn a_bad_ipv4_checksum_is_detected_on_both_paths() {
    for frame in [udp(), with_options(udp())] {
        let mut bytes = frame.to_vec().unwrap();
        bytes[22] ^= 1; // time to live
        assert_eq!(parse(&bytes), Parsed::Invalid(DropReason::BadChecksum));
        bytes[24..26].fill(0); // checksum offload
        assert!(matches!(parse(&bytes), Parsed::Flow(_)));
    }
}

#[test]
fn tag_and_extension_header_limits_are_enforced() {
    let tags = [Tag::vlan(1); packet::MAX_VLAN_TAGS + 1];
    let tagged = |n: usize| {
        parse(
            &Frame {
                tags: &tags[..n],
                ..udp()
            }
            .to_vec()
            .unwrap(),
        )
    };
    assert!(matches!(tagged(packet::MAX_VLAN_TAGS), Parsed::Flow(_)));
    assert_eq!(
        tagged(packet::MAX_VLAN_TAGS + 1),
        Parsed::Invalid(DropReason::HeaderLimit)
    );
    static EXTENSIONS: [Extension<'static>; packet::MAX_EXTENSION_HEADERS + 1] = [Extension {
        number: 60,
        body: &PAD,
    };
        packet::MAX_EXTENSION_HEADERS + 1];
    let extended = |extensions| parse(&with_extensions(udp6(), extensions).to_vec().unwrap());
    assert!(matches!(extended(&EXTENSIONS[1..]), Parsed::Flow(_)));
    assert_eq!(extended(&EXTENSIONS), Parsed::Invalid(DropReason::HeaderLimit));
}

#[test]
fn a_first_fragment_without_its_transport_header_is_invalid() {
    let invalid = Parsed::Invalid(DropReason::FragmentInvalid);
    let tiny = &build::fragment(&tcp().to_vec().unwrap(), 28, 9).unwrap();
    assert_eq!(parse(&tiny[0]), invalid);
    assert_eq!(
        parse(&tiny[1]),
        invalid,
        "the flags of TCP in a fragment of their own"
    );
    let hidden = with_extensions(
        udp6(),
        &[Extension {
            number: 60,
            body: &[1, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        }],
    );
    assert_eq!(
        parse(&build::fragment(&hidden.to_vec().unwrap(), 56, 9).unwrap()[0]),
        invalid
    );
    // 8 bytes at offset 65,528 would end at 65,536.
    let later = Frame {
        payload: &[7; 3000],
        ..udp()
    };
    let mut later = build::fragment(&later.to_vec().unwrap(), 1400, 9)
        .unwrap()
        .remove(2);
    later[20..22].copy_from_slice(&0x1fff_u16.to_be_bytes());
    later[24..26].fill(0);
    let sum = packet::checksum::internet(&later[14..34]);
    later[24..26].copy_from_slice(&sum.to_be_bytes());
    assert_eq!(parse(&later), invalid);
}

#[test]
fn jumbograms_are_parsed() {
    let payload = vec![0; 70_000];
    let jumbo_len = (8 + 8 + payload.len()) as u32;
    let mut frame = with_extensions(
        udp6(),
        &[Extension {
            number: 0,
            body: &[0xc2, 4, 0, 0, 0, 0],
        }],
    )
    .to_vec()
    .unwrap();
    frame.truncate(14 + 40 + 8 + 8);
    frame[18..20].fill(0);
    frame[14 + 40 + 4..14 + 40 + 8].copy_from_slice(&jumbo_len.to_be_bytes());
    frame[14 + 40 + 8 + 4..14 + 40 + 8 + 6].fill(0);
    frame.extend(&payload);
    let info = flow(&frame);
    assert_eq!(info.l3_len, 40 + jumbo_len);
    assert_eq!(info.key, FlowKey::new(&tuple(at(A6), at(B6), protocol::UDP, 0)).0);
    frame.pop();
    assert_eq!(parse(&frame), Parsed::Invalid(DropReason::Malformed));
}
