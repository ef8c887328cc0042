//! Packets that are too long for a tunnel.

use packet::build::Frame;
use packet::{Parsed, parse};

use super::*;

/// A frame of so many bytes of layer 3 that must not be fragmented.
fn of_length(len: usize, is_v6: bool) -> Vec<u8> {
    if is_v6 {
        return udp("fd01::5", "fd02::6", &vec![1; len - 48]);
    }
    let mut frame = inner(&vec![1; len - 28]);
    frame[20] |= 0x40;
    let sum = checksum_of(&frame[14..34]);
    frame[24..26].copy_from_slice(&sum);
    frame
}

fn checksum_of(header: &[u8]) -> [u8; 2] {
    let mut header = header.to_vec();
    header[10..12].fill(0);
    packet::checksum::internet(&header).to_be_bytes()
}

#[test]
fn packets_that_are_too_big_are_answered() {
    for tunnel_v6 in [false, true] {
        for (suite, udp) in SUITES
            .into_iter()
            .flat_map(|suite| [(suite, false), (suite, true)])
        {
            let tunnel = Tunnel {
                suite,
                udp,
                is_v6: tunnel_v6,
                ..PLAIN
            };
            let mut here = gateway(tunnel, 1);
            let limit = here.configuration.outbound[0].payload_limit(1500);
            for is_v6 in [false, true] {
                let covered = forwarded(&mut here, &of_length(limit, is_v6));
                assert!((1497..=1500).contains(&(covered.len() - 14)), "{}", covered.len());
                let asked = of_length(limit + 1, is_v6);
                let (verdict, answer) = one(&mut here, &asked);
                assert_eq!(verdict, Verdict::Answer);
                assert_eq!((&answer[..6], &answer[6..12]), (&asked[6..12], &asked[..6]));
                let sliced = etherparse::SlicedPacket::from_ethernet(&answer).unwrap();
                match sliced.transport.unwrap() {
                    etherparse::TransportSlice::Icmpv4(icmp) => {
                        assert_eq!(icmp.type_u8(), 3);
                        let mtu = u16::from_be_bytes([icmp.bytes5to8()[2], icmp.bytes5to8()[3]]);
                        assert_eq!(usize::from(mtu), limit);
                        assert_eq!(packet::checksum::sum(icmp.slice()), 0xffff);
                    }
                    etherparse::TransportSlice::Icmpv6(icmp) => {
                        assert_eq!(icmp.type_u8(), 2);
                        assert_eq!(u32::from_be_bytes(icmp.bytes5to8()), limit as u32);
                        let Content::Ip(ip) = headers::frame(&answer) else {
                            panic!()
                        };
                        assert!(icmp.is_checksum_valid(ip.src.to_be_bytes(), ip.dst.to_be_bytes()));
                    }
                    other => panic!("{other:?}"),
                }
                // It belongs to the flow of the packet.
                let (Parsed::Flow(of_answer), Parsed::Flow(of_asked)) = (parse(&answer), parse(&asked))
                else {
                    panic!()
                };
                assert!(of_answer.is_icmp_error);
                assert_eq!(of_answer.key, of_asked.key);
            }
        }
    }
}

#[test]
fn answers_have_a_limit_and_do_not_answer_answers() {
    let mut here = gateway(PLAIN, 1);
    let big = of_length(1500, false);
    let answered = (0..4 * ANSWERS_PER_S)
        .filter(|_| one(&mut here, &big).0 == Verdict::Answer)
        .count();
    assert_eq!(answered as u64, ANSWERS_PER_S);
    assert_eq!(value(&here, "answers_over_limit"), 3 * ANSWERS_PER_S);
    let later = run(&mut here, &[big], Nanos::from_secs(1));
    assert_eq!(later[0].0, Verdict::Answer);
    let error = Frame::icmp(
        "10.1.0.5".parse().unwrap(),
        "10.2.0.6".parse().unwrap(),
        3,
        1,
        [0; 4],
        &[0; 1480],
    );
    let mut error = error.unwrap().to_vec().unwrap();
    error[20] |= 0x40;
    let later = run(&mut here, &[error], Nanos::from_secs(2));
    assert_eq!(why(later[0].0), "too_big");
}

#[test]
fn packets_that_may_be_divided_are() {
    let (mut here, mut there) = (gateway(PLAIN, 1), gateway(PLAIN, 2));
    let payload: Vec<u8> = (0..4000_u32).map(|at| at as u8).collect();
    let whole = inner(&payload);
    let covered = run(&mut here, std::slice::from_ref(&whole), Nanos::ZERO);
    assert_eq!(covered[0].0, Verdict::Consume);
    let mut data = Vec::new();
    let mut next = 0;
    for (verdict, frame) in &covered[1..] {
        assert_eq!(*verdict, Verdict::Forward(1));
        assert!(frame.len() <= 1514);
        let out = forwarded(&mut there, frame);
        let Parsed::Fragment(fragment) = parse(&out) else {
            panic!()
        };
        assert_eq!(usize::from(fragment.offset) * 8, next);
        next += usize::from(fragment.len);
        data.extend_from_slice(&out[34..]);
        assert_eq!(fragment.more, next < 4008);
    }
    assert_eq!(data, whole[34..]);
    assert_eq!((value(&here, "divided"), value(&here, "entered")), (1, 3));
}
