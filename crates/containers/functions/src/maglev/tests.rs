use std::collections::HashMap;
use std::net::SocketAddr;

use packet::TcpFlags;
use packet::build::{self, Frame};
use proptest::prelude::*;

use super::*;
use crate::burst::Verdict;

const SETUP: Setup = Setup {
    instance: 1,
    ports: 1,
    seed: 3,
    external: None,
};
const SERVICE: [u8; 4] = [192, 0, 2, 10];

/// A balancer over back ends: the number in the name, and the weight.
fn text(back_ends: &[(u8, u16)]) -> String {
    let mut text =
        "addresses = [\"192.0.2.10\", \"2001:db8::10\"]\nconnections = 4096\ntable = 251\n".to_owned();
    for (name, weight) in back_ends {
        text.push_str(&format!(
            "[[back_end]]\nname = \"{name}\"\nmac = \"02:00:00:00:01:{name:02x}\"\nweight = {weight}\n"
        ));
    }
    text
}

fn compile(text: &str) -> Configuration {
    Maglev::compile(text, &SETUP).unwrap()
}

fn maglev(text: &str) -> Maglev {
    Maglev::new(compile(text), &SETUP)
}

fn frame(flow: u16) -> Vec<u8> {
    let [a, b] = flow.to_be_bytes();
    let from = SocketAddr::from(([10, 0, a, b], 1000 + flow));
    Frame::tcp(from, (SERVICE, 80).into(), TcpFlags(TcpFlags::ACK), b"")
        .unwrap()
        .to_vec()
        .unwrap()
}

/// The back end to which the frame goes; [`None`] if it does not go to one.
fn pass(maglev: &mut Maglev, frame: &[u8], second: u64) -> Option<u8> {
    let mut burst = Burst::new();
    burst.begin(0, 0);
    assert!(burst.push(frame));
    maglev.process(&mut burst, Nanos::from_secs(second));
    let packet = burst.packet(0).unwrap();
    assert_eq!(packet.frame()[6..], frame[6..]);
    match packet.verdict() {
        Verdict::Forward(0) if packet.frame()[..5] == [2, 0, 0, 0, 1] => Some(packet.frame()[5]),
        Verdict::Forward(0) => {
            assert_eq!(packet.frame(), frame);
            None
        }
        verdict => {
            assert_eq!(verdict, Verdict::Drop(NO_BACK_END));
            None
        }
    }
}

proptest! {
    /// A connection keeps its back end as long as that is there, whatever the others do; one without a back end gets the
    /// one that a new balancer with this configuration gives it.
    #[test]
    fn connections_stay_with_their_back_ends(
        groups in prop::collection::vec(prop::collection::btree_map(0..12_u8, 0..3_u16, 1..8), 1..6),
        flows in prop::collection::vec(0..300_u16, 1..100),
    ) {
        let mut model: HashMap<u16, u8> = HashMap::new();
        let mut running: Option<Maglev> = None;
        for (round, group) in (1..).zip(groups) {
            let group: Vec<(u8, u16)> = group.into_iter().collect();
            let text = text(&group);
            // One that comes back is a new one.
            model.retain(|_, at| group.iter().any(|of| of.0 == *at));
            match &mut running {
                Some(maglev) => drop(maglev.reload(compile(&text))),
                None => running = Some(maglev(&text)),
            }
            let maglev = running.as_mut().unwrap();
            let mut fresh = self::maglev(&text);
            for flow in &flows {
                let kept = model.get(flow).copied();
                let expected = kept.or_else(|| pass(&mut fresh, &frame(*flow), round));
                prop_assert_eq!(pass(maglev, &frame(*flow), round), expected);
                if let Some(at) = expected {
                    prop_assert!(kept.is_some() || group.contains(&(at, 1)) || group.contains(&(at, 2)));
                    model.insert(*flow, at);
                }
            }
        }
        prop_assert_eq!(running.unwrap().state.connections.evicted, 0);
    }

    #[test]
    fn foreign_bytes_pass(mut bytes in prop::collection::vec(any::<u8>(), 1..90)) {
        if bytes.len() > 34 {
            bytes[12..15].copy_from_slice(&[8, 0, 0x45]);
            bytes[24..26].fill(0);
            bytes[30..34].copy_from_slice(&SERVICE);
        }
        let mut maglev = maglev(&text(&[(1, 1), (2, 1)]));
        let mut burst = Burst::new();
        burst.begin(0, 0);
        burst.push(&bytes);
        maglev.process(&mut burst, Nanos::ZERO);
        let verdict = burst.packet(0).unwrap().verdict();
        prop_assert!(matches!(verdict, Verdict::Forward(0) | Verdict::Drop(MALFORMED)));
    }
}

#[test]
fn errors_and_fragments_find_their_back_end() {
    let mut maglev = maglev(&text(&[(1, 1), (2, 1), (3, 2), (4, 1)]));
    let back_end = pass(&mut maglev, &frame(7), 1);
    // A router reports a packet from the service to the client.
    let (client, service) = (
        SocketAddr::from(([10, 0, 0, 7], 1007)),
        SocketAddr::from((SERVICE, 80)),
    );
    let sent = Frame::tcp(service, client, TcpFlags(TcpFlags::ACK), b"").unwrap();
    let sent = sent.to_vec().unwrap();
    let error = |quoted: &[u8]| {
        Frame::icmp(
            [203, 0, 113, 1].into(),
            SERVICE.into(),
            3,
            4,
            [0; 4],
            &quoted[14..],
        )
        .unwrap()
        .to_vec()
        .unwrap()
    };
    assert_eq!(pass(&mut maglev, &error(&sent), 1), back_end);
    assert_eq!(maglev.begun, 1);
    let datagram = Frame::udp(client, service, &[0; 3000]).unwrap().to_vec().unwrap();
    let fragments = build::fragment(&datagram, 1280, 7).unwrap();
    let back_ends: Vec<_> = fragments.iter().map(|of| pass(&mut maglev, of, 1)).collect();
    assert!(back_ends.len() > 2 && back_ends.windows(2).all(|pair| pair[0] == pair[1]));
    // What is for others passes.
    let other = Frame::udp(client, ([192, 0, 2, 11], 80).into(), b"").unwrap();
    assert_eq!(pass(&mut maglev, &other.to_vec().unwrap(), 1), None);
    assert_eq!(maglev.other, 1);
    let client = SocketAddr::from((std::net::Ipv6Addr::LOCALHOST, 9));
    let service: SocketAddr = "[2001:db8::10]:80".parse().unwrap();
    let of_v6 = Frame::udp(client, service, b"").unwrap().to_vec().unwrap();
    assert!(pass(&mut maglev, &of_v6, 1).is_some());
}

#[test]
fn idle_connections_end_and_the_oldest_gives_way() {
    let mut maglev = maglev(&format!("idle_s = 10\n{}", text(&[(1, 1)])));
    pass(&mut maglev, &frame(1), 1);
    drop(maglev.reload(compile(&format!("idle_s = 10\n{}", text(&[(1, 0), (2, 1)])))));
    assert_eq!(
        pass(&mut maglev, &frame(1), 11),
        Some(1),
        "it goes on with weight 0"
    );
    assert_eq!(pass(&mut maglev, &frame(1), 22), Some(2));
    let mut connections = Connections::new(1, 100);
    let keyed = Keyed::new(1);
    let tags: Vec<u64> = (0..9).map(|flow| Connections::tag(&keyed, [flow])).collect();
    // Two lines: 8 places, at most.
    for (tag, now) in tags.iter().zip(0..) {
        connections.set(*tag, 5, now);
    }
    let found = tags
        .iter()
        .filter(|tag| connections.get(**tag, 9).is_some())
        .count();
    assert_eq!(
        (found, connections.evicted),
        (connections.taken(), 9 - found as u64)
    );
    assert!(found <= 8 && connections.get(tags[8], 9) == Some(5));
}

#[test]
fn a_balancer_without_weights_keeps_connections_alone() {
    let mut maglev = maglev(&text(&[(1, 1)]));
    pass(&mut maglev, &frame(1), 1);
    drop(maglev.reload(compile(&text(&[(1, 0)]))));
    assert_eq!(
        [1, 2].map(|flow| pass(&mut maglev, &frame(flow), 1)),
        [Some(1), None]
    );
}

#[test]
fn mistakes_are_said() {
    let good = text(&[(1, 1)]);
    for (text, says) in [
        (
            good.replace("251", "250"),
            "table: 250 is no prime from 3 to 1048573; write 251",
        ),
        (good.replace("4096", "0"), "connections: 0 connections"),
        (text(&[(1, 1), (1, 1)]), "back_end: \"1\" is there twice"),
        (text(&[]), "missing field `back_end`"),
        (good.replace("02:00", "2:zz"), "is no MAC address"),
        (format!("mac = \"1\"\n{good}"), "is no MAC address"),
        (
            good.replace("\"192.0.2.10\", \"2001:db8::10\"", ""),
            "addresses: 0 addresses",
        ),
    ] {
        let error = Maglev::compile(&text, &SETUP).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
}
