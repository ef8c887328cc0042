//! The router with whole packets.

use std::net::{IpAddr, SocketAddr};

use packet::build::{self, Frame, Network, Tag};

use super::*;

const SETUP: Setup = Setup {
    instance: 1,
    ports: 2,
    seed: 7,
    external: None,
};

const ROUTES: &str = "mac = \"02:00:00:00:00:09\"\naddress = \"192.0.2.1\"\naddress_v6 = \"2001:db8:ffff::1\"\n\
                      icmp_errors_per_s = 10\n\
                      [[next_hop]]\nname = \"a\"\nmac = \"02:00:00:00:00:0a\"\nport = 1\n\
                      [[next_hop]]\nname = \"b\"\nmac = \"02:00:00:00:00:0b\"\nport = 0\n\
                      [[route]]\nprefix = \"10.0.0.0/8\"\nnext_hop = \"a\"\n\
                      [[route]]\nprefix = \"10.1.0.0/16\"\nnext_hop = \"b\"\n\
                      [[route]]\nprefix = \"10.2.0.0/16\"\nnext_hop = \"blackhole\"\n\
                      [[route]]\nprefix = \"10.3.0.0/16\"\nnext_hop = \"unreachable\"\n\
                      [[route]]\nprefix = \"2001:db8::/32\"\nnext_hop = \"a\"\n";

fn router() -> Router {
    Router::new(Router::compile(ROUTES, &SETUP).unwrap(), &SETUP)
}

fn udp(src: &str, dst: &str, hops: u8) -> Vec<u8> {
    let ends = [src, dst].map(|text| SocketAddr::new(text.parse().unwrap(), 7));
    let mut frame = Frame::udp(ends[0], ends[1], b"payload").unwrap();
    match &mut frame.network {
        Network::V4 { ttl, .. } => *ttl = hops,
        Network::V6 { hop_limit, .. } => *hop_limit = hops,
    }
    frame.src_mac = [2, 0, 0, 0, 0, 1];
    frame.dst_mac = [2, 0, 0, 0, 0, 9];
    frame.to_vec().unwrap()
}

/// The verdict of one frame, and the frame.
fn one(router: &mut Router, frame: &[u8], now: Nanos) -> (Verdict, Vec<u8>, Burst) {
    let mut burst = Burst::new();
    burst.begin(0, 1);
    assert!(burst.push(frame));
    router.process(&mut burst, now);
    let packet = burst.packets().next().unwrap();
    let result = (packet.verdict(), packet.frame().to_vec());
    (result.0, result.1, burst)
}

/// The packet that a burst's function has originated.
fn originated(burst: &mut Burst) -> Option<Vec<u8>> {
    let packet = burst.packet(1)?;
    assert_eq!(packet.verdict(), Verdict::Answer);
    Some(packet.frame().to_vec())
}

#[test]
fn a_packet_goes_to_the_next_hop_of_its_longest_prefix() {
    let mut router = router();
    for (dst, port, mac) in [
        ("10.9.0.1", 1, 0x0a),
        ("10.1.2.3", 0, 0x0b),
        ("2001:db8::5", 1, 0x0a),
    ] {
        let src = if dst.contains(':') {
            "2001:db8:1::1"
        } else {
            "172.16.0.1"
        };
        for hops in [2, 3, 64, 255] {
            let (verdict, frame, _) = one(&mut router, &udp(src, dst, hops), Nanos::ZERO);
            assert_eq!(verdict, Verdict::Forward(port), "{dst}");
            // As another sender would have built it, with another checksum.
            let mut expected = udp(src, dst, hops - 1);
            expected[..12].copy_from_slice(&[2, 0, 0, 0, 0, mac, 2, 0, 0, 0, 0, 9]);
            assert_eq!(frame, expected, "{dst} with {hops} hops");
        }
    }
    assert_eq!(router.ways.routed, [8, 4]);
}

#[test]
fn a_checksum_that_was_left_to_hardware_is_computed() {
    let mut frame = udp("172.16.0.1", "10.9.0.1", 9);
    frame[24..26].copy_from_slice(&[0, 0]);
    let (_, frame, _) = one(&mut router(), &frame, Nanos::ZERO);
    assert_eq!(frame[14..], udp("172.16.0.1", "10.9.0.1", 8)[14..]);
}

#[test]
fn packets_without_a_way_are_dropped_with_their_reason() {
    let mut router = router();
    for (dst, reason) in [
        ("11.0.0.1", NO_ROUTE_TO),
        ("10.2.0.1", BLACKHOLE),
        ("10.3.0.1", UNREACHABLE),
        ("224.0.0.1", NOT_UNICAST),
        ("255.255.255.255", NOT_UNICAST),
        ("127.0.0.1", NOT_UNICAST),
    ] {
        let (verdict, ..) = one(&mut router, &udp("172.16.0.1", dst, 64), Nanos::ZERO);
        assert_eq!(verdict, Verdict::Drop(reason), "{dst}");
    }
    for (dst, reason) in [
        ("2001:db9::1", NO_ROUTE_TO),
        ("ff02::1", NOT_UNICAST),
        ("fe80::1", NOT_UNICAST),
    ] {
        let (verdict, ..) = one(&mut router, &udp("2001:db8::1", dst, 64), Nanos::ZERO);
        assert_eq!(verdict, Verdict::Drop(reason), "{dst}");
    }
    let (verdict, ..) = one(&mut router, &udp("172.16.0.1", "10.9.0.1", 1), Nanos::ZERO);
    assert_eq!(verdict, Verdict::Drop(EXPIRED));
    let mut group = udp("172.16.0.1", "10.9.0.1", 64);
    group[0] |= 1;
    assert_eq!(
        one(&mut router, &group, Nanos::ZERO).0,
        Verdict::Drop(NOT_UNICAST)
    );
    let mut arp = vec![0; 60];
    arp[12..14].copy_from_slice(&[8, 6]);
    assert_eq!(one(&mut router, &arp, Nanos::ZERO).0, Verdict::Forward(1));
}

#[test]
fn senders_learn_of_errors() {
    for (dst, hops, kind) in [
        ("10.9.0.1", 1, (11, 0)),
        ("11.0.0.1", 64, (3, 0)),
        ("2001:db8::5", 1, (3, 0)),
        ("2001:db9::1", 64, (1, 0)),
    ] {
        let mut router = router();
        let src = if dst.contains(':') {
            "2001:db8:1::1"
        } else {
            "172.16.0.1"
        };
        let frame = udp(src, dst, hops);
        let (_, _, mut burst) = one(&mut router, &frame, Nanos::ZERO);
        let error = originated(&mut burst).unwrap();
        let from: IpAddr = if dst.contains(':') {
            "2001:db8:ffff::1"
        } else {
            "192.0.2.1"
        }
        .parse()
        .unwrap();
        let mut expected =
            Frame::icmp(from, src.parse().unwrap(), kind.0, kind.1, [0; 4], &frame[14..]).unwrap();
        expected.src_mac = [2, 0, 0, 0, 0, 9];
        expected.dst_mac = [2, 0, 0, 0, 0, 1];
        assert_eq!(error, expected.to_vec().unwrap(), "{dst}");
        // It is about the packet's flow, as another parser sees it.
        let Parsed::Flow(info) = packet::parse(&error) else {
            panic!()
        };
        assert!(info.is_icmp_error);
        // An error is not answered with another one.
        let mut expired = error.clone();
        expired[..12].copy_from_slice(&frame[..12]);
        let (_, _, mut burst) = one(&mut router, &expired, Nanos::ZERO);
        assert!(burst.packet(1).is_none());
    }
}

#[test]
fn long_packets_are_quoted_in_part_and_tags_are_kept() {
    let tags = [Tag::vlan(5)];
    for (src, dst, limit) in [
        ("172.16.0.1", "11.0.0.1", 576),
        ("2001:db8:1::1", "2001:db9::1", 1280),
    ] {
        let ends = [src, dst].map(|text| SocketAddr::new(text.parse().unwrap(), 7));
        let payload = [7; 2000];
        let mut frame = Frame::udp(ends[0], ends[1], &payload).unwrap();
        frame.tags = &tags;
        let (_, _, mut burst) = one(&mut router(), &frame.to_vec().unwrap(), Nanos::ZERO);
        let error = originated(&mut burst).unwrap();
        assert_eq!(error.len(), 18 + limit);
        let Parsed::Flow(info) = packet::parse(&error) else {
            panic!()
        };
        assert!(info.is_icmp_error && info.vlan == 5);
    }
}

#[test]
fn only_the_first_fragment_is_answered() {
    let ends = ["172.16.0.1", "11.0.0.1"].map(|text| SocketAddr::new(text.parse().unwrap(), 7));
    let whole = Frame::udp(ends[0], ends[1], &[7; 3000])
        .unwrap()
        .to_vec()
        .unwrap();
    let answered: Vec<bool> = build::fragment(&whole, 1500, 7)
        .unwrap()
        .iter()
        .map(|fragment| originated(&mut one(&mut router(), fragment, Nanos::ZERO).2).is_some())
        .collect();
    assert_eq!(answered, [true, false, false]);
}

#[test]
fn errors_are_limited() {
    let mut router = router();
    let frame = udp("172.16.0.1", "11.0.0.1", 64);
    // Ten a second; of a thousand in one second, one more and those of the tenth before.
    for n in 0..1000 {
        one(&mut router, &frame, Nanos::from_millis(n));
    }
    let [sent, limited] = router.ways.errors.counts();
    assert!((10..=12).contains(&sent), "{sent} sent");
    assert_eq!(sent + limited, 1000);
    // Without an address there are none.
    let mut silent = Router::new(Router::compile("", &SETUP).unwrap(), &SETUP);
    one(&mut silent, &frame, Nanos::ZERO);
    assert_eq!(silent.ways.errors.counts(), [0, 0]);
}

#[test]
fn a_reload_changes_routes_between_two_packets() {
    let mut router = router();
    let frame = udp("172.16.0.1", "10.9.0.1", 64);
    assert_eq!(one(&mut router, &frame, Nanos::ZERO).0, Verdict::Forward(1));
    let text = ROUTES.replace("10.0.0.0/8", "12.0.0.0/8");
    let old = router.reload(Router::compile(&text, &SETUP).unwrap());
    assert_eq!(
        one(&mut router, &frame, Nanos::ZERO).0,
        Verdict::Drop(NO_ROUTE_TO)
    );
    router.reload(old);
    assert_eq!(one(&mut router, &frame, Nanos::ZERO).0, Verdict::Forward(1));
    assert_eq!(router.summary().entries, 5);
}

#[test]
fn hostile_frames_are_dropped_or_passed_and_never_panic() {
    let mut router = router();
    let mut numbers = crate::firewall::synthetic::Sequence::new(1);
    let good = [
        udp("172.16.0.1", "10.9.0.1", 2),
        udp("2001:db8:1::1", "2001:db8::5", 2),
    ];
    for round in 0..5_000_u64 {
        let mut frame = good[(round % 2) as usize].clone();
        for _ in 0..numbers.below(6) {
            let at = numbers.below(frame.len() as u64) as usize;
            frame[at] = numbers.next_number() as u8;
        }
        frame.truncate(1 + numbers.below(frame.len() as u64) as usize);
        one(&mut router, &frame, Nanos::from_millis(round));
    }
}
