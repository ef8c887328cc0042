//! The firewall with whole packets.

use std::net::{IpAddr, SocketAddr};

use packet::build::Frame;
use packet::{TcpFlags, build};

use super::*;
use crate::burst::Verdict;

const SETUP: Setup = Setup {
    instance: 1,
    ports: 2,
    seed: 7,
    external: None,
};

fn firewall(text: &str) -> Firewall {
    Firewall::new(Firewall::compile(text, &SETUP).unwrap(), &SETUP)
}

fn end(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn udp(src: &str, dst: &str) -> Vec<u8> {
    Frame::udp(end(src), end(dst), b"payload")
        .unwrap()
        .to_vec()
        .unwrap()
}

fn tcp(src: &str, dst: &str, flags: u8) -> Vec<u8> {
    Frame::tcp(end(src), end(dst), TcpFlags(flags), b"")
        .unwrap()
        .to_vec()
        .unwrap()
}

/// The reason for which each frame of a burst is dropped, if it is.
fn run(firewall: &mut Firewall, frames: &[Vec<u8>], now: Nanos) -> Vec<Option<Reason>> {
    let mut burst = Burst::new();
    burst.begin(0, 1);
    for frame in frames {
        assert!(burst.push(frame));
    }
    firewall.process(&mut burst, now);
    burst
        .packets()
        .map(|packet| match packet.verdict() {
            Verdict::Forward(1) => None,
            Verdict::Drop(reason) => Some(reason),
            other => panic!("{other:?}"),
        })
        .collect()
}

fn one(firewall: &mut Firewall, frame: Vec<u8>, now: Nanos) -> Option<Reason> {
    run(firewall, &[frame], now)[0]
}

const WEB: &str = "[[rule]]\nname = \"web\"\naction = \"allow\"\nprotocol = \"tcp\"\ndestination_ports = [80, 443]\n\
                   [[rule]]\nname = \"names\"\naction = \"allow\"\nprotocol = \"udp\"\ndestination_ports = 53\n\
                   [[rule]]\nname = \"ping\"\naction = \"allow\"\nprotocol = \"icmp\"\n\
                   [[rule]]\nname = \"bad\"\naction = \"deny\"\nsource = \"192.0.2.0/24\"\n";

const SYN: u8 = TcpFlags::SYN;
const ACK: u8 = TcpFlags::ACK;
const FIN: u8 = TcpFlags::FIN;

#[test]
fn without_rules_everything_is_denied() {
    let mut firewall = firewall("");
    assert_eq!(
        one(&mut firewall, udp("10.0.0.1:1", "10.0.0.2:2"), Nanos::ZERO),
        Some(UNMATCHED)
    );
    assert_eq!(
        one(&mut firewall, udp("[::1]:1", "[::2]:2"), Nanos::ZERO),
        Some(UNMATCHED)
    );
    // Except what is not IP: without ARP nothing works.
    let mut arp = vec![0; 60];
    arp[12..14].copy_from_slice(&[0x08, 0x06]);
    assert_eq!(one(&mut firewall, arp.clone(), Nanos::ZERO), None);
    let mut strict = super::tests::firewall("other = \"deny\"");
    assert_eq!(one(&mut strict, arp, Nanos::ZERO), Some(OTHER));
}

#[test]
fn a_rule_counts_a_connection_once_however_many_of_its_packets_come_in_one_burst() {
    let mut firewall = firewall(WEB);
    let frames = [
        udp("[2001:db8::1]:5", "[2001:db8::2]:53"),
        udp("[2001:db8::1]:5", "[2001:db8::2]:53"),
        udp("[2001:db8::1]:6", "[2001:db8::2]:53"),
    ];
    assert_eq!(run(&mut firewall, &frames, Nanos::ZERO), [None; 3]);
    let counted: u64 = firewall.rules().map(|(_, count)| count.packets).sum();
    assert_eq!(counted, 2);
}

#[test]
fn stateless_rules_decide_on_each_packet() {
    let mut firewall = firewall(&format!("connections = 0\n{WEB}"));
    let now = Nanos::ZERO;
    let frames = [
        tcp("10.0.0.1:1000", "10.0.0.2:80", SYN),
        tcp("10.0.0.2:80", "10.0.0.1:1000", SYN | ACK),
        udp("[2001:db8::1]:5", "[2001:db8::2]:53"),
        udp("192.0.2.1:5", "10.0.0.2:54"),
        vec![0x45; 20],
    ];
    let expected = [None, Some(UNMATCHED), None, Some(DENIED)];
    let found = run(&mut firewall, &frames[..4], now);
    assert_eq!(found, expected);
    let counts: Vec<u64> = firewall.rules().map(|(_, count)| count.packets).collect();
    assert_eq!(counts, [1, 1, 0, 1]);
    let (rule, count) = firewall.rules().next().unwrap();
    assert_eq!((rule.name.as_str(), count.bytes), ("web", frames[0].len() as u64));
}

#[test]
fn answers_pass_and_what_belongs_to_no_connection_does_not() {
    let mut firewall = firewall(WEB);
    let now = Nanos::from_secs(1_000_000);
    let (client, server) = ("10.0.0.1:1000", "10.0.0.2:80");
    // An answer before the question, and a packet in the middle.
    assert_eq!(
        one(&mut firewall, tcp(server, client, SYN | ACK), now),
        Some(NO_CONNECTION)
    );
    assert_eq!(
        one(&mut firewall, tcp(client, server, ACK), now),
        Some(NO_CONNECTION)
    );
    let exchange = [
        tcp(client, server, SYN),
        tcp(server, client, SYN | ACK),
        tcp(client, server, ACK),
        tcp(client, server, FIN | ACK),
        tcp(server, client, FIN | ACK),
        tcp(client, server, ACK),
    ];
    // In one burst or in several.
    assert_eq!(run(&mut firewall, &exchange[..3], now), [None; 3]);
    assert_eq!(run(&mut firewall, &exchange[3..], now), [None; 3]);
    assert_eq!((firewall.opened, firewall.passed.established.packets), (1, 5));
    let mut burst = Burst::new();
    // It lingers, and is gone then.
    let later = now + Nanos::from_secs(11);
    for step in 0..2_200 {
        firewall.tick(&mut burst, now + Nanos::from_millis(5 * step));
    }
    assert_eq!(firewall.summary().flows, 0);
    assert_eq!(
        one(&mut firewall, tcp(server, client, ACK), later),
        Some(NO_CONNECTION)
    );
    // The server does not open connections to the client, who has no service.
    assert_eq!(
        one(&mut firewall, tcp(server, client, SYN), later),
        Some(UNMATCHED)
    );
}

#[test]
fn a_connection_in_the_place_of_an_ended_one_is_judged_again() {
    let mut firewall = firewall(WEB);
    let now = Nanos::from_secs(5);
    let (client, server) = ("10.0.0.1:1000", "10.0.0.2:80");
    assert_eq!(one(&mut firewall, tcp(client, server, SYN), now), None);
    assert_eq!(one(&mut firewall, tcp(client, server, TcpFlags::RST), now), None);
    assert_eq!(one(&mut firewall, tcp(client, server, SYN), now), None);
    assert_eq!(firewall.opened, 2);
    assert_eq!(one(&mut firewall, tcp(client, server, TcpFlags::RST), now), None);
    let old = firewall.reload(Firewall::compile("", &SETUP).unwrap());
    drop(old);
    let frames = [tcp(client, server, SYN), tcp(client, server, ACK)];
    assert_eq!(
        run(&mut firewall, &frames, now),
        [Some(UNMATCHED), Some(NO_CONNECTION)]
    );
}

#[test]
fn a_reload_keeps_connections_and_changes_rules() {
    let mut firewall = firewall(WEB);
    let now = Nanos::from_secs(5);
    assert_eq!(one(&mut firewall, udp("10.0.0.1:9", "10.0.0.2:53"), now), None);
    firewall.reload(Firewall::compile("default = \"deny\"\nconnections = 1000\n", &SETUP).unwrap());
    assert_eq!(one(&mut firewall, udp("10.0.0.2:53", "10.0.0.1:9"), now), None);
    assert_eq!(
        one(&mut firewall, udp("10.0.0.1:8", "10.0.0.2:53"), now),
        Some(UNMATCHED)
    );
    // Without connections rules decide alone, and with them again none is known.
    firewall.reload(Firewall::compile("connections = 0\n", &SETUP).unwrap());
    assert_eq!(
        one(&mut firewall, udp("10.0.0.1:9", "10.0.0.2:53"), now),
        Some(UNMATCHED)
    );
    assert_eq!(firewall.due(), None);
    firewall.reload(Firewall::compile(WEB, &SETUP).unwrap());
    assert_eq!(firewall.summary().flows, 0);
    assert!(Firewall::compile("rules = 1", &SETUP).is_err());
}

#[test]
fn a_flood_fills_the_table_and_ends_no_connection() {
    let mut firewall = firewall(&format!("connections = 1000\n{WEB}"));
    let now = Nanos::from_secs(5);
    let (client, server) = ("10.0.0.1:1000", "10.0.0.2:80");
    for frame in [
        tcp(client, server, SYN),
        tcp(server, client, SYN | ACK),
        tcp(client, server, ACK),
    ] {
        assert_eq!(one(&mut firewall, frame, now), None);
    }
    let mut full = 0;
    for n in 0..3000_u32 {
        let src = format!("10.1.{}.{}:7", n >> 8, n & 255);
        full += usize::from(one(&mut firewall, tcp(&src, server, SYN), now) == Some(CONNECTIONS_FULL));
    }
    assert!((2001..2100).contains(&full), "{full} refused");
    assert!(firewall.summary().flows <= 1000);
    assert_eq!(one(&mut firewall, tcp(server, client, ACK), now), None);
    // The handshakes end long before the connection.
    let mut burst = Burst::new();
    for step in 0..3000 {
        firewall.tick(&mut burst, now + Nanos::from_millis(5 * step));
    }
    assert_eq!(firewall.summary().flows, 1);
}

#[test]
fn errors_pass_if_they_are_about_a_connection() {
    let mut firewall = firewall(WEB);
    let now = Nanos::from_secs(5);
    let question = udp("10.0.0.1:9", "10.0.0.2:53");
    // Port unreachable, from a router on the way, which quotes the packet.
    let quoted = &question[14..14 + 28];
    let mut message = vec![3, 3, 0, 0, 0, 0, 0, 0];
    message.extend_from_slice(quoted);
    let (router, client): (IpAddr, IpAddr) = ("10.9.9.9".parse().unwrap(), "10.0.0.1".parse().unwrap());
    let error = Frame::icmp(router, client, 3, 3, [0; 4], &message[8..])
        .unwrap()
        .to_vec()
        .unwrap();
    assert_eq!(one(&mut firewall, error.clone(), now), Some(NO_CONNECTION));
    assert_eq!(one(&mut firewall, question, now), None);
    assert_eq!(one(&mut firewall, error, now), None);
    assert_eq!(firewall.passed.related, 1);
}

#[test]
fn a_ping_is_answered_and_an_answer_alone_is_not_passed() {
    let mut firewall = firewall(WEB);
    let now = Nanos::from_secs(5);
    let (a, b): (IpAddr, IpAddr) = ("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap());
    let echo = |src, dst, kind| {
        Frame::icmp(src, dst, kind, 0, [0, 7, 0, 1], b"x")
            .unwrap()
            .to_vec()
            .unwrap()
    };
    assert_eq!(one(&mut firewall, echo(b, a, 0), now), Some(NO_CONNECTION));
    assert_eq!(one(&mut firewall, echo(a, b, 8), now), None);
    assert_eq!(one(&mut firewall, echo(b, a, 0), now), None);
}

#[test]
fn later_fragments_follow_the_first() {
    for text in [WEB.to_owned(), format!("connections = 0\n{WEB}")] {
        let mut firewall = firewall(&text);
        let now = Nanos::from_secs(5);
        let whole = |dst: &str| {
            let frame = Frame::udp(end("10.0.0.1:9"), end(dst), &[7; 3000])
                .unwrap()
                .to_vec()
                .unwrap();
            build::fragment(&frame, 1500, 77).unwrap()
        };
        let (good, bad) = (whole("10.0.0.2:53"), whole("10.0.0.3:54"));
        assert_eq!(run(&mut firewall, &good, now), vec![None; good.len()]);
        assert_eq!(run(&mut firewall, &bad, now), vec![Some(UNMATCHED); bad.len()]);
        // Before the first one nothing says where it goes.
        let late = whole("10.0.0.4:53");
        assert_eq!(one(&mut firewall, late[1].clone(), now), Some(FRAGMENT));
        assert_eq!(one(&mut firewall, late[0].clone(), now), None);
    }
}

#[test]
fn hostile_frames_are_dropped_or_passed_and_never_panic() {
    let mut firewall = firewall(&format!("default = \"allow\"\n{WEB}"));
    let mut numbers = synthetic::Sequence::new(1);
    let good = [
        tcp("10.0.0.1:1", "10.0.0.2:80", SYN),
        udp("[2001:db8::1]:5", "[2001:db8::2]:53"),
        udp("10.0.0.1:1", "10.0.0.2:53"),
    ];
    for round in 0..5_000_u64 {
        let mut frame = good[(round % 3) as usize].clone();
        for _ in 0..numbers.below(6) {
            let at = numbers.below(frame.len() as u64) as usize;
            frame[at] = numbers.next_number() as u8;
        }
        frame.truncate(1 + numbers.below(frame.len() as u64) as usize);
        run(&mut firewall, &[frame], Nanos::from_millis(round));
    }
    assert!(firewall.summary().flows <= firewall.summary().flows_limit);
}

/// A connection in each state of TCP, and one of UDP, goes on in another instance as it would here.
#[test]
fn a_connection_moves_with_its_state() {
    const TEXT: &str = "default = \"deny\"\nconnections = 64\n[[rule]]\naction = \"allow\"\nprotocol = \"tcp\"\n\
                        [[rule]]\naction = \"allow\"\nprotocol = \"udp\"\n";
    let (client, server) = ("10.0.0.1:4000", "192.0.2.1:80");
    let there = |flags| tcp(client, server, flags);
    let back = |flags| tcp(server, client, flags);
    let (syn, ack) = (TcpFlags::SYN, TcpFlags::ACK);
    let opened = [there(syn), back(syn | ack), there(ack)];
    let histories = [
        opened[..1].to_vec(),
        opened.to_vec(),
        [&opened[..], &[there(TcpFlags::FIN | ack)]].concat(),
        [&opened[..], &[back(TcpFlags::FIN | ack)]].concat(),
    ];
    let flow = Tuple {
        src: [10, 0, 0, 1].into(),
        dst: [192, 0, 2, 1].into(),
        src_port: 4000,
        dst_port: 80,
        protocol: 6,
        vlan: 0,
    };
    let now = Nanos::from_secs(1);
    for history in histories {
        let (mut from, mut to) = (firewall(TEXT), firewall(TEXT));
        for frame in history {
            assert_eq!(one(&mut from, frame, now), None);
        }
        assert_eq!(one(&mut to, back(ack), now), Some(NO_CONNECTION));
        let mut state = [0; 16];
        let length = from.export(&flow, &mut state, now).unwrap();
        assert_eq!(to.import(&flow, &state[..length], now), Ok(()));
        let mut again = [0; 16];
        assert_eq!(to.export(&flow, &mut again, now), Ok(length));
        assert_eq!(again, state, "the same state");
        assert_eq!(one(&mut to, back(ack), now), None);
        from.forget(&flow, now);
        assert_eq!(one(&mut from, back(ack), now), Some(NO_CONNECTION));
        // Bytes that are none change nothing.
        for bad in [
            &[2, 0, 1][..],
            &[1, 2, 1],
            &[1, 0, 0],
            &[1, 0, 9],
            &[1, 0],
            &[1, 0, 1, 0],
        ] {
            assert_eq!(to.import(&flow, bad, now), Err(NotMoved::Malformed), "{bad:?}");
        }
        assert_eq!(one(&mut to, back(ack), now), None);
        // A flow of which the source knows nothing is unknown here, too.
        assert_eq!(from.export(&flow, &mut state, now), Ok(0));
        assert_eq!(to.import(&flow, &[], now), Ok(()));
        assert_eq!(one(&mut to, back(ack), now), Some(NO_CONNECTION));
    }
    let mut without = firewall("default = \"allow\"\nconnections = 0\n");
    assert_eq!(without.import(&flow, &[1, 0, 2], now), Err(NotMoved::Conflict));
}

proptest::proptest! {
    /// Whatever a container says a connection's state is, it is refused or can be given on.
    #[test]
    fn any_state_is_refused_or_a_state(state in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..5), protocol: u8) {
        let mut firewall = firewall("default = \"deny\"\nconnections = 4\n");
        let flow = Tuple {
            src: [10, 0, 0, 1].into(),
            dst: [192, 0, 2, 1].into(),
            src_port: 1,
            dst_port: 2,
            protocol,
            vlan: 0,
        };
        let now = Nanos::from_secs(1);
        let taken = firewall.import(&flow, &state, now);
        let mut room = [0; 8];
        let length = firewall.export(&flow, &mut room, now).unwrap();
        proptest::prop_assert_eq!(length > 0, taken.is_ok() && !state.is_empty());
    }
}

/// The records that there are, without their times.
fn records(firewall: &mut Firewall) -> Vec<String> {
    let mut next = || {
        let mut line = String::new();
        Function::record(firewall, Nanos::from_secs(1_000), &mut line).then_some(line)
    };
    std::iter::from_fn(&mut next).collect()
}

#[test]
fn each_rule_has_its_counts_in_records() {
    let text = "connections = 0\ncount_interval_s = 10\n\
                [[rule]]\nname = \"web\"\naction = \"allow\"\nprotocol = \"udp\"\ndestination_ports = 80\n\
                [[rule]]\naction = \"deny\"\nprotocol = \"udp\"\ndestination_ports = 53\n\
                [[rule]]\nname = \"never\"\naction = \"deny\"\nprotocol = \"udp\"\ndestination_ports = 99\n";
    let mut firewall = firewall(text);
    let mut burst = Burst::new();
    let frames = [
        udp("10.0.0.1:1", "10.0.0.2:80"),
        udp("10.0.0.1:1", "10.0.0.2:80"),
        udp("10.0.0.1:1", "10.0.0.2:53"),
    ];
    let bytes = frames[0].len();
    run(&mut firewall, &frames, Nanos::ZERO);
    assert!(records(&mut firewall).is_empty(), "it is not time yet");
    assert_eq!(firewall.due(), Some(Nanos::ZERO));
    firewall.tick(&mut burst, Nanos::from_secs(1));
    let expected = [
        format!("1001.000 rule allow 2 packets {} bytes \"web\"", 2 * bytes),
        format!("1001.000 rule deny 1 packets {bytes} bytes \"2\""),
    ];
    assert_eq!(records(&mut firewall), expected);
    assert_eq!(firewall.due(), Some(Nanos::from_secs(11)));
    // Only what has changed; counts are totals.
    run(&mut firewall, &frames[2..], Nanos::from_secs(2));
    firewall.tick(&mut burst, Nanos::from_secs(11));
    let expected = format!("1011.000 rule deny 2 packets {} bytes \"2\"", 2 * bytes);
    assert_eq!(records(&mut firewall), [expected]);
    firewall.tick(&mut burst, Nanos::from_secs(21));
    assert!(records(&mut firewall).is_empty());
    // Without the key there are none.
    let without = Firewall::compile(&text.replace("count_interval_s = 10", ""), &SETUP).unwrap();
    firewall.reload(without);
    run(&mut firewall, &frames, Nanos::from_secs(22));
    assert_eq!(firewall.due(), None);
    assert!(records(&mut firewall).is_empty());
}
