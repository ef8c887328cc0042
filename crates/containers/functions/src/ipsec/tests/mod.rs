//! Two gateways that face each other.

mod moves;
mod sizes;

use std::net::IpAddr;

use model::Nanos;
use packet::build::{Extension, Frame, Network, Tag, Transport};
use packet::{Parsed, parse};
use proptest::prelude::*;

use super::*;
use crate::burst::Verdict;

const SETUP: Setup = Setup {
    instance: 1,
    ports: 2,
    seed: 1,
    external: None,
};
const SUITES: [&str; 3] = ["aes-128-gcm", "aes-256-gcm", "aes-256-ctr-hmac-sha1-96"];

/// How two gateways are connected.
#[derive(Clone, Copy, Debug)]
struct Tunnel {
    suite: &'static str,
    is_v6: bool,
    udp: bool,
    extended: bool,
}

const PLAIN: Tunnel = Tunnel {
    suite: "aes-256-gcm",
    is_v6: false,
    udp: false,
    extended: false,
};

fn keys(suite: &str, byte: u8) -> String {
    let hex = |count: usize| format!("{byte:02x}").repeat(count);
    let (key, authentication) = match suite {
        "aes-128-gcm" => (16, 0),
        "aes-256-gcm" => (32, 0),
        _ => (32, 20),
    };
    format!(
        "suite = {suite:?}\nkey = {:?}\nsalt = {:?}\nauthentication_key = {:?}\n",
        hex(key),
        hex(4),
        hex(authentication)
    )
}

/// The configuration of one end: `side` is 1 or 2.
fn text(tunnel: Tunnel, side: u8, more: &str) -> String {
    let other = 3 - side;
    let address = |side| match tunnel.is_v6 {
        true => format!("2001:db8::{side}"),
        false => format!("192.0.2.{side}"),
    };
    let udp = if tunnel.udp {
        "udp_destination_port = 4500\n"
    } else {
        ""
    };
    let extended = tunnel.extended;
    format!(
        "mtu = 1500\n{more}\n\
         [[outbound]]\nname = \"out\"\nspi = {}\n{}source = {:?}\ndestination = {:?}\n{udp}\
         extended_sequence_numbers = {extended}\n\
         [[inbound]]\nname = \"in\"\nspi = {}\n{}destination = {:?}\nextended_sequence_numbers = {extended}\n\
         [[policy]]\nsource = [\"10.{side}.0.0/16\", \"fd0{side}::/16\"]\n\
         destination = [\"10.{other}.0.0/16\", \"fd0{other}::/16\"]\n\
         action = \"protect\"\noutbound = \"out\"\ninbound = [\"in\"]\n",
        1000 + u32::from(side),
        keys(tunnel.suite, side),
        address(side),
        address(other),
        1000 + u32::from(other),
        keys(tunnel.suite, other),
        address(side),
    )
}

fn make(text: &str, seed: u64) -> Ipsec {
    let setup = Setup { seed, ..SETUP };
    Ipsec::new(Ipsec::compile(text, &setup).unwrap(), &setup)
}

fn gateway(tunnel: Tunnel, side: u8) -> Ipsec {
    make(&text(tunnel, side, ""), side.into())
}

/// What becomes of frames, each with its verdict; those that are made follow.
fn run(of: &mut Ipsec, frames: &[Vec<u8>], now: Nanos) -> Vec<(Verdict, Vec<u8>)> {
    let mut burst = Burst::new();
    burst.begin(0, 1);
    frames.iter().for_each(|frame| assert!(burst.push(frame)));
    of.process(&mut burst, now);
    let mut all = Vec::new();
    while let Some(packet) = burst.packet(all.len()) {
        all.push((packet.verdict(), packet.frame().to_vec()));
    }
    all
}

fn one(of: &mut Ipsec, frame: &[u8]) -> (Verdict, Vec<u8>) {
    let mut all = run(of, &[frame.to_vec()], Nanos::ZERO);
    assert_eq!(all.len(), 1);
    all.remove(0)
}

fn forwarded(of: &mut Ipsec, frame: &[u8]) -> Vec<u8> {
    let (verdict, frame) = one(of, frame);
    assert_eq!(verdict, Verdict::Forward(1), "{:?}", why(verdict));
    frame
}

fn why(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Drop(Reason(at)) => REASONS[usize::from(at)].name,
        _ => "",
    }
}

fn udp(src: &str, dst: &str, payload: &[u8]) -> Vec<u8> {
    let end = |address: &str| (address.parse::<IpAddr>().unwrap(), 1000).into();
    Frame::udp(end(src), end(dst), payload).unwrap().to_vec().unwrap()
}

fn inner(payload: &[u8]) -> Vec<u8> {
    udp("10.1.0.5", "10.2.0.6", payload)
}

fn value(of: &Ipsec, name: &str) -> u64 {
    let mut values = vec![0; METRICS.len()];
    of.metrics(&mut values);
    values[METRICS.iter().position(|metric| metric.name == name).unwrap()]
}

fn tunnels() -> impl Strategy<Value = Tunnel> {
    (0..SUITES.len(), any::<[bool; 3]>()).prop_map(|(suite, [is_v6, udp, extended])| Tunnel {
        suite: SUITES[suite],
        is_v6,
        udp,
        extended,
    })
}

/// Frames that a policy protects: both versions, with tags, options, extension headers and fragments.
fn frames() -> impl Strategy<Value = Vec<u8>> {
    let payload = proptest::collection::vec(any::<u8>(), 0..1200);
    (payload, 0..5_usize, any::<u8>(), 0..3_usize).prop_map(|(payload, kind, class, tags)| {
        let mut frame = if kind < 3 {
            inner(&payload)
        } else {
            udp("fd01::5", "fd02::6", &payload)
        };
        let (src, dst): (IpAddr, IpAddr) = if kind < 3 {
            ("10.1.0.5".parse().unwrap(), "10.2.0.6".parse().unwrap())
        } else {
            ("fd01::5".parse().unwrap(), "fd02::6".parse().unwrap())
        };
        let mut network = Network::between(src, dst).unwrap();
        let extensions = [Extension {
            number: 60,
            body: &[1, 4, 0, 0, 0, 0],
        }];
        match &mut network {
            Network::V4 { options, .. } if kind == 1 => *options = &[1, 1, 1, 0],
            Network::V6 { extensions: of, .. } if kind == 4 => *of = &extensions,
            _ => {}
        }
        let tags = vec![Tag::vlan(7); tags];
        let mut built = Frame::new(
            network,
            Transport::Udp {
                src_port: 1,
                dst_port: 2,
            },
            &payload,
        );
        built.tags = &tags;
        if kind != 2 {
            frame = built.to_vec().unwrap();
        } else if let Ok(fragments) = packet::build::fragment(&frame, 600, 9) {
            frame = fragments[fragments.len() - 1].clone();
        }
        let at = 14 + if kind == 2 { 0 } else { 4 * tags.len() };
        // Without the mark of congestion, which only packets that know it may carry.
        headers::set_class(&mut frame[at..], kind >= 3, class);
        frame
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_packet_comes_out_as_it_went_in(tunnel in tunnels(), frames in proptest::collection::vec(frames(), 1..20)) {
        let (mut here, mut there) = (gateway(tunnel, 1), gateway(tunnel, 2));
        for frame in frames {
            let covered = forwarded(&mut here, &frame);
            prop_assert_ne!(&covered, &frame);
            match parse(&covered) {
                Parsed::Flow(info) => {
                    prop_assert_eq!(info.protocol, if tunnel.udp { 17 } else { 50 });
                    prop_assert_eq!(usize::from(info.l3_offset) + info.l3_len as usize, covered.len());
                }
                other => prop_assert!(false, "{:?}", other),
            }
            let parsed = etherparse::SlicedPacket::from_ethernet(&covered).unwrap();
            if let Some(etherparse::TransportSlice::Udp(udp)) = &parsed.transport {
                prop_assert_eq!((udp.source_port(), udp.destination_port()), (4500, 4500));
            }
            prop_assert_eq!(forwarded(&mut there, &covered), frame);
        }
    }

    #[test]
    fn no_changed_packet_comes_out(
        tunnel in tunnels(), frame in frames(), at: prop::sample::Index, bit in 0_u8..8,
    ) {
        let (mut here, mut there) = (gateway(tunnel, 1), gateway(tunnel, 2));
        let covered = forwarded(&mut here, &frame);
        let Content::Ip(ip) = headers::frame(&covered) else { panic!() };
        let from = ip.transport + if tunnel.udp { 8 } else { 0 };
        let mut changed = covered.clone();
        changed[from + at.index(covered.len() - from)] ^= 1 << bit;
        let (verdict, _) = one(&mut there, &changed);
        let is_passed_exchange = tunnel.udp && value(&there, "key_exchange") == 1;
        prop_assert!(matches!(verdict, Verdict::Drop(_)) || is_passed_exchange, "{:?}", verdict);
        // The window has not moved.
        prop_assert_eq!(forwarded(&mut there, &covered), frame);
    }

    #[test]
    fn no_frame_panics(tunnel in tunnels(), frame in frames(), cuts in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6), len: prop::sample::Index) {
        let (mut here, mut there) = (gateway(tunnel, 1), gateway(tunnel, 2));
        for mut bytes in [frame.clone(), forwarded(&mut here, &frame)] {
            for (at, value) in &cuts {
                let at = at.index(bytes.len());
                bytes[at] = *value;
            }
            bytes.truncate(len.index(bytes.len()).max(1));
            run(&mut there, &[bytes.clone()], Nanos::ZERO);
            run(&mut here, &[bytes], Nanos::ZERO);
        }
    }

    /// What a peer with the keys sends is foreign input, too.
    #[test]
    fn no_payload_panics(text in proptest::collection::vec(any::<u8>(), 0..120), next in prop_oneof![Just(4_u8), Just(41), Just(59), any::<u8>()], padding: u8) {
        let (here, mut there) = (gateway(PLAIN, 1), gateway(PLAIN, 2));
        let association = &here.configuration.outbound[0];
        let mut esp = vec![0; 16];
        esp[..4].copy_from_slice(&association.spi.to_be_bytes());
        esp[7] = 1;
        esp.extend(&text);
        esp.extend([padding, next]);
        esp.extend([0; 16]);
        assert!(association.keys.seal(&mut esp, None));
        let network = Network::between("192.0.2.1".parse().unwrap(), "192.0.2.2".parse().unwrap()).unwrap();
        let frame = Frame::new(network, Transport::Raw { protocol: 50 }, &esp).to_vec().unwrap();
        let (verdict, _) = one(&mut there, &frame);
        if next == 59 && usize::from(padding) == 0 {
            prop_assert_eq!(verdict, Verdict::Consume);
            prop_assert_eq!(value(&there, "dummies"), 1);
        }
    }
}

#[test]
fn a_packet_is_taken_once() {
    for suite in SUITES {
        let tunnel = Tunnel { suite, ..PLAIN };
        let (mut here, mut there) = (gateway(tunnel, 1), gateway(tunnel, 2));
        let covered: Vec<_> = (0..200).map(|at| forwarded(&mut here, &inner(&[at]))).collect();
        assert_eq!(forwarded(&mut there, &covered[150]), inner(&[150]));
        assert_eq!(why(one(&mut there, &covered[150]).0), "replay");
        assert_eq!(forwarded(&mut there, &covered[23]), inner(&[23]));
        assert_eq!(why(one(&mut there, &covered[22]).0), "too_old");
        assert_eq!(value(&there, "left"), 2);
    }
}

#[test]
fn initialisation_vectors_differ_after_a_restart() {
    let iv = |frame: &[u8]| frame[14 + 20 + 8..][..8].to_vec();
    let first = iv(&forwarded(&mut make(&text(PLAIN, 1, ""), 1), &inner(b"")));
    let second = iv(&forwarded(&mut make(&text(PLAIN, 1, ""), 2), &inner(b"")));
    assert_ne!(first, second);
}

#[test]
fn the_halves_of_long_sequence_numbers_stay_together() {
    let tunnel = Tunnel {
        extended: true,
        ..PLAIN
    };
    for suite in SUITES {
        let tunnel = Tunnel { suite, ..tunnel };
        let (mut here, mut there) = (gateway(tunnel, 1), gateway(tunnel, 2));
        here.configuration.outbound[0].sequence = u64::from(u32::MAX) - 5;
        there.configuration.inbound[0]
            .window
            .accept(u64::from(u32::MAX) - 5);
        let covered: Vec<_> = (0..10).map(|at| forwarded(&mut here, &inner(&[at]))).collect();
        for at in [7, 0, 9, 4, 8, 1] {
            assert_eq!(forwarded(&mut there, &covered[at]), inner(&[at as u8]));
        }
    }
    // Without them, an association ends.
    let mut here = gateway(PLAIN, 1);
    here.configuration.outbound[0].sequence = u64::from(u32::MAX) - 1;
    assert_eq!(value(&here, "sequence_numbers_left"), 1);
    forwarded(&mut here, &inner(b""));
    assert_eq!(why(one(&mut here, &inner(b"")).0), "exhausted");
}

#[test]
fn policies_decide_about_the_rest() {
    let (mut here, mut there) = (gateway(PLAIN, 1), gateway(PLAIN, 2));
    // Of no policy.
    assert_eq!(
        why(one(&mut here, &udp("10.1.0.5", "10.3.0.6", b"")).0),
        "discarded"
    );
    // Of a tunnel, but without its protection.
    assert_eq!(why(one(&mut there, &inner(b"")).0), "unprotected");
    // Out of a tunnel that is not for it.
    let more = "[[policy]]\nsource = [\"10.7.0.0/16\"]\naction = \"protect\"\noutbound = \"out\"\n";
    let mut third = make(&(text(PLAIN, 1, "") + more), 3);
    let covered = forwarded(&mut third, &udp("10.7.0.5", "10.2.0.6", b""));
    assert_eq!(why(one(&mut there, &covered).0), "selector");
    // Of no association.
    let mut unknown = covered;
    unknown[14 + 20] ^= 1;
    assert_eq!(why(one(&mut there, &unknown).0), "unknown_spi");
    // Not IP.
    let arp = [&[0xff; 12][..], &[8, 6], &[0; 46]].concat();
    assert_eq!(forwarded(&mut here, &arp), arp);
    let mut passing = make(&text(PLAIN, 1, "otherwise = \"pass\""), 1);
    let other = udp("10.1.0.5", "10.3.0.6", b"");
    assert_eq!(forwarded(&mut passing, &other), other);
    assert_eq!(value(&passing, "passed"), 1);
}

#[test]
fn classes_and_padding_of_frames() {
    let (mut here, mut there) = (gateway(PLAIN, 1), gateway(PLAIN, 2));
    let mut frame = inner(b"x");
    headers::set_class(&mut frame[14..], false, 46 << 2 | 2);
    let mut padded = frame.clone();
    padded.resize(60, 0);
    let mut covered = forwarded(&mut here, &padded);
    assert_eq!(covered[15], 46 << 2 | 2);
    assert_eq!(covered[20] & 0x40, 0x40);
    // Congestion on the way.
    headers::set_class(&mut covered[14..], false, 46 << 2 | 3);
    let out = forwarded(&mut there, &covered);
    assert_eq!(out[15], 46 << 2 | 3);
    assert!(matches!(parse(&out), Parsed::Flow(_)));
    let mut deaf = forwarded(&mut here, &inner(b"x"));
    headers::set_class(&mut deaf[14..], false, 3);
    assert_eq!(why(one(&mut there, &deaf).0), "congestion");
    // Fragments of ESP.
    let fragments = packet::build::fragment(&forwarded(&mut here, &inner(&[0; 1000])), 600, 1).unwrap();
    for fragment in fragments {
        assert_eq!(why(one(&mut there, &fragment).0), "fragment");
    }
}

#[test]
fn keepalives_are_sent_and_taken() {
    let tunnel = Tunnel { udp: true, ..PLAIN };
    let (mut here, mut there) = (gateway(tunnel, 1), gateway(tunnel, 2));
    let tick = |of: &mut Ipsec, now| {
        let mut burst = Burst::new();
        burst.begin(0, 1);
        of.tick(&mut burst, now);
        (0..)
            .map_while(|at| burst.packet(at).map(|packet| packet.frame().to_vec()))
            .collect::<Vec<_>>()
    };
    let second = Nanos::from_secs(1);
    assert!(tick(&mut here, Nanos::from_secs(20)).is_empty());
    run(&mut here, &[inner(b"")], Nanos::from_secs(30));
    assert!(here.due().unwrap() <= Nanos::from_secs(50));
    assert!(tick(&mut here, Nanos::from_secs(50) - second).is_empty());
    let sent = tick(&mut here, Nanos::from_secs(50));
    assert_eq!(sent.len(), 1);
    assert_eq!(here.due(), Some(Nanos::from_secs(70)));
    assert_eq!(one(&mut there, &sent[0]).0, Verdict::Consume);
    assert_eq!(value(&there, "keepalives_received"), 1);
    // The key exchange passes.
    let end = |address: &str| address.parse().unwrap();
    let exchange = Frame::udp(end("192.0.2.2:4500"), end("192.0.2.1:4500"), &[0, 0, 0, 0, 7]).unwrap();
    let exchange = exchange.to_vec().unwrap();
    assert_eq!(forwarded(&mut here, &exchange), exchange);
    assert_eq!(value(&here, "key_exchange"), 1);
}

#[test]
fn a_new_key_loses_no_packet() {
    let (mut here, mut there) = (gateway(PLAIN, 1), gateway(PLAIN, 2));
    let old = forwarded(&mut here, &inner(b"old"));
    let before = forwarded(&mut here, &inner(b"before"));
    forwarded(&mut there, &before);
    // The receiver learns the new key first, beside the old one.
    let second = format!(
        "[[inbound]]\nname = \"new\"\nspi = 2001\n{}destination = \"192.0.2.2\"\n",
        keys(PLAIN.suite, 9)
    );
    let policies = text(PLAIN, 2, "").replace("inbound = [\"in\"]", "inbound = [\"in\", \"new\"]");
    there.reload(Ipsec::compile(&(policies + &second), &SETUP).unwrap());
    let sender = text(PLAIN, 1, "")
        .replacen(&keys(PLAIN.suite, 1), &keys(PLAIN.suite, 9), 1)
        .replacen("spi = 1001", "spi = 2001", 1);
    here.reload(Ipsec::compile(&sender, &SETUP).unwrap());
    let new = forwarded(&mut here, &inner(b"new"));
    assert_eq!(forwarded(&mut there, &new), inner(b"new"));
    // What was on its way arrives, and nothing arrives twice.
    assert_eq!(forwarded(&mut there, &old), inner(b"old"));
    assert_eq!(why(one(&mut there, &before).0), "replay");
    // An association that stays goes on with its numbers.
    assert_eq!(here.configuration.outbound[0].sequence, 1);
    here.reload(Ipsec::compile(&sender, &SETUP).unwrap());
    assert_eq!(here.configuration.outbound[0].sequence, 1);
    // One that has gone begins with other initialisation vectors if it comes back.
    let mask = here.configuration.outbound[0].mask;
    here.reload(Ipsec::compile("", &SETUP).unwrap());
    here.reload(Ipsec::compile(&sender, &SETUP).unwrap());
    assert_ne!(here.configuration.outbound[0].mask, mask);
}

#[test]
fn another_instance_goes_on() {
    for suite in SUITES {
        let tunnel = Tunnel {
            suite,
            extended: true,
            ..PLAIN
        };
        let (mut here, mut there) = (gateway(tunnel, 1), gateway(tunnel, 2));
        let covered: Vec<_> = (0..300)
            .map(|at| forwarded(&mut here, &inner(&[at as u8])))
            .collect();
        for at in (0..300).filter(|at| at % 2 == 0) {
            forwarded(&mut there, &covered[at]);
        }
        let mut moved = (Vec::new(), Vec::new());
        here.export_all(&mut moved.0);
        there.export_all(&mut moved.1);
        let (mut here, mut there) = (make(&text(tunnel, 1, ""), 11), make(&text(tunnel, 2, ""), 12));
        assert_eq!(here.import_all(&moved.0), Ok(2));
        assert_eq!(there.import_all(&moved.1), Ok(2));
        assert_eq!(why(one(&mut there, &covered[298]).0), "replay");
        assert_eq!(forwarded(&mut there, &covered[297]), inner(&[297_u16 as u8]));
        let next = forwarded(&mut here, &inner(b"next"));
        assert_eq!(forwarded(&mut there, &next), inner(b"next"));
        for len in 0..moved.1.len() {
            let cut = there.import_all(&moved.1[..len]);
            assert!(cut.is_err() || len == 4 || len == 4 + 41, "{len}: {cut:?}");
        }
    }
}

#[test]
fn wrong_configurations_are_refused() {
    let good = text(PLAIN, 1, "");
    assert!(Ipsec::compile(&good, &SETUP).is_ok());
    let key = "01".repeat(32);
    for (from, to, expected) in [
        ("mtu = 1500", "mtu = 1200", "mtu is 1365 to 9600 bytes, not 1200"),
        (
            key.as_str(),
            "0101",
            "outbound \"out\": key of aes-256-gcm is 32 bytes: 64 hexadecimal digits",
        ),
        (
            "spi = 1001",
            "spi = 12",
            "outbound \"out\": spi is 256 or more, not 12",
        ),
        (
            "destination = \"192.0.2.2\"",
            "destination = \"::1\"",
            "of one address family",
        ),
        (
            "10.1.0.0/16",
            "10.1.0.0/36",
            "policy 1: source: \"10.1.0.0/36\" is no prefix",
        ),
        (
            "outbound = \"out\"",
            "outbound = \"off\"",
            "policy 1: there is no outbound association \"off\"",
        ),
        (
            "name = \"in\"",
            "name = \"out\"",
            "two associations have the name \"out\"",
        ),
        (
            "action = \"protect\"",
            "action = \"pass\"",
            "policy 1: an action of protect names associations",
        ),
        ("mtu = 1500", "mtus = 1500", "line 1: unknown field"),
    ] {
        let text = good.replacen(from, to, 1);
        let error = Ipsec::compile(&text, &SETUP).err().unwrap().to_string();
        assert!(error.contains(expected), "{error}");
        assert!(!error.contains(&key[..8]), "{error}");
    }
    let twice = good.clone()
        + &good[good.find("[[outbound]]").unwrap()..good.find("[[inbound]]").unwrap()]
            .replacen("\"out\"", "\"two\"", 1);
    let error = Ipsec::compile(&twice, &SETUP).err().unwrap().to_string();
    assert!(error.contains("one key is for one association"), "{error}");
}
