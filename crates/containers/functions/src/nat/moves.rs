//! Tests of mappings that move to another instance with their external endpoints.

use std::collections::HashMap;
use std::net::IpAddr;

use packet::TcpFlags;
use proptest::prelude::*;
use state_moves::STATE_BYTES_LIMIT;

use super::tests::{all, end, external, metric, one, source_of, tcp, udp};
use super::*;
use crate::burst::Verdict;

const HOST: &str = "10.0.0.1:4000";
const REMOTE: &str = "198.51.100.1:53";
const NOW: Nanos = Nanos::from_secs(1000);

fn block(number: u16) -> PortBlock {
    PortBlock {
        address: [192, 0, 2, 1].into(),
        first: 1024 + number * 1008,
        last: 1024 + number * 1008 + 1007,
    }
}

/// An instance to which inco has given a block.
fn instance(number: u16, more: &str) -> Nat {
    let setup = Setup {
        instance: number.into(),
        ports: 2,
        seed: number.into(),
        external: Some(block(number)),
    };
    let text = format!("inside = [\"10.0.0.0/8\"]\n{more}");
    Nat::new(Nat::compile(&text, &setup).unwrap(), &setup)
}

fn flow(source: &str, destination: SocketAddrV4) -> Tuple {
    let source = end(source);
    Tuple {
        src: IpAddr::V4(*source.ip()),
        dst: IpAddr::V4(*destination.ip()),
        src_port: source.port(),
        dst_port: destination.port(),
        protocol: protocol::UDP,
        vlan: 0,
    }
}

/// Hands all mappings over, and gives how many messages that took.
fn hand_over(from: &mut Nat, to: &mut Nat, now: Nanos) -> Result<usize, NotMoved> {
    let mut room = [0; STATE_BYTES_LIMIT];
    let (mut at, mut messages, mut taken) = (0, 0, Ok(()));
    loop {
        let (length, next) = from.hand_over(at, &mut room, now).unwrap();
        messages += 1;
        taken = taken.and(to.take_over(&room[..length], now));
        let Some(next) = next else {
            return taken.map(|()| messages);
        };
        assert!(next > at);
        at = next;
    }
}

#[test]
fn a_flow_moves_with_its_mapping_which_both_instances_have() {
    let [mut from, mut to] = [0, 1].map(|number| instance(number, "block_ports = 1\nblocks_per_host = 1\n"));
    let outside = external(&mut from, HOST);
    let mut state = [0; STATE_BYTES_LIMIT];
    let of = flow(HOST, end(REMOTE));
    let length = from.export(&of, &mut state, NOW).unwrap();
    assert_eq!(
        to.import(&of, &state[..length - 1], NOW),
        Err(NotMoved::Malformed)
    );
    assert_eq!(
        one(&mut to, 1, udp(end(REMOTE), outside)).0,
        Verdict::Drop(NO_REALM)
    );
    // Twice: the second time it is the same mapping.
    for _ in 0..2 {
        to.import(&of, &state[..length], NOW).unwrap();
    }
    for nat in [&mut from, &mut to] {
        assert_eq!(
            one(nat, 1, udp(end(REMOTE), outside)).1,
            udp(end(REMOTE), end(HOST))
        );
        assert_eq!(
            one(nat, 0, udp(end(HOST), end(REMOTE))).1,
            udp(outside, end(REMOTE))
        );
    }
    assert_eq!(
        (metric(&to, "mappings_imported"), metric(&to, "mappings_begun")),
        (1, 0)
    );
    assert_eq!(
        (to.mappings_in(&block(0), NOW), to.mappings_in(&block(1), NOW)),
        (Some(1), Some(0))
    );
    // A flow that is not translated has nothing.
    assert_eq!(
        from.export(&flow("10.0.0.9:1", end(REMOTE)), &mut state, NOW),
        Ok(0)
    );
    external(&mut from, "10.0.0.2:4000");
    // The port is given to nobody here when the mapping has ended, because it stands for the host there.
    let idle = Nanos::from_secs(2000);
    from.tick(&mut Burst::new(), idle);
    assert_eq!((from.summary().flows, metric(&from, "ports_lent")), (0, 2));
    let dropped = all(&mut from, 0, &[udp(end("10.0.0.1:4001"), end(REMOTE))], 2000);
    assert_eq!(dropped[0].0, Verdict::Drop(HOST_LIMIT));
    // There they end, too, and are not counted any more.
    to.tick(&mut Burst::new(), idle);
    assert_eq!(
        (to.mappings_in(&block(0), idle), metric(&to, "ports_lent")),
        (Some(0), 0)
    );
}

/// While flows move, a host's new flow can be at the other instance already.
#[test]
fn a_flow_keeps_its_external_endpoint_where_its_host_has_got_another_one() {
    let [mut from, mut to, mut next] = [0, 1, 2].map(|number| instance(number, ""));
    let outside = external(&mut from, HOST);
    let other = end("198.51.100.2:53");
    let new = source_of(&one(&mut to, 0, udp(end(HOST), other)).1);
    let mut state = [0; STATE_BYTES_LIMIT];
    let of = flow(HOST, end(REMOTE));
    let length = from.export(&of, &mut state, NOW).unwrap();
    to.import(&of, &state[..length], NOW).unwrap();
    hand_over(&mut from, &mut to, NOW).unwrap();
    for _ in 0..2 {
        for (remote, external) in [(end(REMOTE), outside), (other, new)] {
            assert_eq!(source_of(&one(&mut to, 0, udp(end(HOST), remote)).1), external);
        }
        for external in [outside, new] {
            assert_eq!(one(&mut to, 1, udp(other, external)).1, udp(other, end(HOST)));
        }
        // And so it is at a third one.
        for of in [of, flow(HOST, other)] {
            let length = to.export(&of, &mut state, NOW).unwrap();
            next.import(&of, &state[..length], NOW).unwrap();
        }
        hand_over(&mut to, &mut next, NOW).unwrap();
        std::mem::swap(&mut to, &mut next);
        (from, next) = (next, instance(3, ""));
    }
    assert_eq!(from.summary().flows, 2);
    // Both end.
    assert_eq!(to.mappings_in(&block(0), NOW), Some(1));
    to.tick(&mut Burst::new(), Nanos::from_secs(2000));
    assert_eq!(to.summary().flows, 0);
    let again = all(&mut to, 0, &[udp(end(HOST), end(REMOTE))], 2000);
    assert_eq!(again[0].0, Verdict::Forward(1));
    assert_ne!(source_of(&again[0].1), outside);
}

/// The client's port was used again, for another connection to the same server by way of the heir, before the mapping of
/// the first one has ended.
#[test]
fn a_connection_of_the_heir_does_not_get_the_external_endpoint_of_an_earlier_one() {
    let [mut from, mut to] = [0, 1].map(|number| instance(number, ""));
    let outside = external(&mut from, HOST);
    let new = external(&mut to, HOST);
    let mut state = [0; STATE_BYTES_LIMIT];
    let back = Tuple {
        src: IpAddr::V4(*end(REMOTE).ip()),
        dst: IpAddr::V4(*outside.ip()),
        src_port: end(REMOTE).port(),
        dst_port: outside.port(),
        ..flow(HOST, end(REMOTE))
    };
    let length = from.export(&back, &mut state, NOW).unwrap();
    to.import(&back, &state[..length], NOW).unwrap();
    hand_over(&mut from, &mut to, NOW).unwrap();
    assert_eq!(source_of(&one(&mut to, 0, udp(end(HOST), end(REMOTE))).1), new);
    for external in [outside, new] {
        let answer = one(&mut to, 1, udp(end(REMOTE), external)).1;
        assert_eq!(answer, udp(end(REMOTE), end(HOST)));
    }
    // The flow itself moves: what it was given last is what it keeps.
    let of = flow(HOST, end(REMOTE));
    let length = from.export(&of, &mut state, NOW).unwrap();
    to.import(&of, &state[..length], NOW).unwrap();
    assert_eq!(
        source_of(&one(&mut to, 0, udp(end(HOST), end(REMOTE))).1),
        outside
    );
}

/// The inside sends by way of the heir already, and answers still come to the instance that gives.
#[test]
fn a_mapping_that_goes_on_elsewhere_does_not_end_where_it_was_given() {
    let [mut from, mut to] = [0, 1].map(|number| instance(number, "udp_timeout_s = 2\n"));
    let outside = external(&mut from, HOST);
    let mut state = [0; STATE_BYTES_LIMIT];
    let of = flow(HOST, end(REMOTE));
    let length = from.export(&of, &mut state, NOW).unwrap();
    to.import(&of, &state[..length], NOW).unwrap();
    let comes_back = |nat: &mut Nat, now| all(nat, 1, &[udp(end(REMOTE), outside)], now)[0].0;
    assert_eq!(comes_back(&mut from, 1009), Verdict::Forward(0));
    // And what was used in that time lives no shorter than otherwise.
    assert_eq!(comes_back(&mut from, 1012), Verdict::Forward(0));
    assert_eq!(comes_back(&mut from, 1015), Verdict::Drop(NO_MAPPING));
    assert_eq!(comes_back(&mut to, 1009), Verdict::Drop(NO_REALM));
}

#[test]
fn ports_that_inco_has_not_given_stay_where_they_are() {
    let setup = Setup {
        instance: 1,
        ports: 2,
        seed: 7,
        external: None,
    };
    let text = "inside = [\"10.0.0.0/8\"]\nexternal = [\"192.0.2.1:1024-65535\"]\n";
    let mut nat = Nat::new(Nat::compile(text, &setup).unwrap(), &setup);
    external(&mut nat, HOST);
    let mut state = [0; STATE_BYTES_LIMIT];
    let of = flow(HOST, end(REMOTE));
    assert_eq!(nat.export(&of, &mut state, NOW), Err(NotMoved::Unsupported));
    assert_eq!(nat.hand_over(0, &mut state, NOW), Err(NotMoved::Unsupported));
    assert_eq!(nat.take_over(&[], NOW), Err(NotMoved::Unsupported));
    assert_eq!(nat.import(&of, &[], NOW), Ok(()));
}

#[test]
fn all_mappings_are_handed_over_in_messages_and_as_many_as_there_is_room_for() {
    let mut from = instance(0, "mappings_limit = 8192\nblock_ports = 1\nblocks_per_host = 1\n");
    let hosts: Vec<String> = (0..500)
        .map(|host| format!("10.0.{}.{}:7", host / 250, host % 250))
        .collect();
    let outside: Vec<SocketAddrV4> = hosts.iter().map(|host| external(&mut from, host)).collect();
    let mut to = instance(1, "");
    let messages = hand_over(&mut from, &mut to, NOW).unwrap();
    assert!((500 / 39..500 / 39 + 8).contains(&messages), "{messages}");
    for (host, outside) in hosts.iter().zip(&outside) {
        assert_eq!(
            one(&mut to, 1, udp(end(REMOTE), *outside)).1,
            udp(end(REMOTE), end(host))
        );
    }
    assert_eq!(to.mappings_in(&block(0), NOW), Some(500));
    // What is handed on to a third one has the ports of the first.
    let mut third = instance(2, "");
    external(&mut third, "10.9.9.9:7");
    hand_over(&mut to, &mut third, NOW).unwrap();
    assert_eq!(third.mappings_in(&block(0), NOW), Some(500));
    let mut small = instance(3, "mappings_limit = 100\n");
    assert_eq!(hand_over(&mut to, &mut small, NOW), Err(NotMoved::Full));
    assert_eq!(small.summary().flows, 100);
}

#[test]
fn an_open_connection_goes_on_and_closes() {
    let [mut from, mut to] = [0, 1].map(|number| instance(number, "tcp_transitory_timeout_s = 4\n"));
    let (host, server) = (end(HOST), end("198.51.100.1:443"));
    let outside = source_of(&one(&mut from, 0, tcp(host, server, TcpFlags::SYN)).1);
    one(&mut from, 1, tcp(server, outside, TcpFlags::SYN | TcpFlags::ACK));
    one(&mut from, 0, tcp(host, server, TcpFlags::ACK));
    hand_over(&mut from, &mut to, NOW).unwrap();
    // Established: it outlives the shorter timeout.
    let later = |nat: &mut Nat, seconds| {
        nat.tick(&mut Burst::new(), Nanos::from_secs(seconds));
        nat.summary().flows
    };
    assert_eq!(later(&mut to, 1100), 1);
    let answer = all(
        &mut to,
        1,
        &[tcp(server, outside, TcpFlags::FIN | TcpFlags::ACK)],
        1100,
    );
    assert_eq!(answer[0].1, tcp(server, host, TcpFlags::FIN | TcpFlags::ACK));
    all(
        &mut to,
        0,
        &[tcp(host, server, TcpFlags::FIN | TcpFlags::ACK)],
        1100,
    );
    assert_eq!((later(&mut to, 1103), later(&mut to, 1106)), (1, 0));
}

/// A step of the group of instances.
#[derive(Clone, Debug)]
enum Step {
    /// An internal endpoint sends to a remote.
    Out {
        host: u8,
        port: u16,
        remote: u8,
    },
    /// A remote sends to an external endpoint that was seen.
    In {
        which: prop::sample::Index,
        remote: u8,
    },
    /// So many messages of a hand-over of one instance to another one.
    HandOver {
        from: usize,
        to: usize,
        messages: usize,
    },
    Wait(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (1..8_u8, 0..4_u16, 1..4_u8).prop_map(|(host, port, remote)| Step::Out { host, port, remote }),
        4 => (any::<prop::sample::Index>(), 1..4_u8).prop_map(|(which, remote)| Step::In { which, remote }),
        2 => (0..4_usize, 0..4_usize, 0..6_usize)
            .prop_map(|(from, to, messages)| Step::HandOver { from, to, messages }),
        1 => (0..200_u64).prop_map(Step::Wait),
    ];
    prop::collection::vec(step, 0..150)
}

proptest! {
    /// Against a model of the switch: hosts and blocks have an instance, and get that of a hand-over when it is complete.
    /// Until then packets go to the old one, whose mappings the new one has in part. An external endpoint stands for one
    /// internal one over all instances, and what comes back reaches it wherever its mapping is.
    #[test]
    fn an_external_endpoint_stands_for_one_internal_one_through_hand_overs(steps in steps()) {
        const INSTANCES: usize = 4;
        let more = "block_ports = 16\nblocks_per_host = 1\nmappings_limit = 200\n";
        let mut nats: Vec<Nat> = (0..INSTANCES as u16).map(|number| instance(number, more)).collect();
        let mut is_there = [true; INSTANCES];
        let mut of_host: HashMap<u8, usize> = HashMap::new();
        let mut of_block: Vec<usize> = (0..INSTANCES).collect();
        // External endpoints: whom they stand for, and when that was used last.
        let mut seen: Vec<(SocketAddrV4, SocketAddrV4, u64)> = Vec::new();
        let mut now = 1000;
        for step in steps {
            match step {
                Step::Wait(seconds) => now += seconds,
                Step::Out { host, port, remote } => {
                    let internal = SocketAddrV4::new([10, 0, 0, host].into(), port);
                    let to = SocketAddrV4::new([198, 51, 100, remote].into(), 53);
                    let first = (0..INSTANCES).filter(|at| is_there[*at]).min_by_key(|at| (*at + usize::from(host)) % INSTANCES);
                    let at = *of_host.entry(host).or_insert(first.unwrap());
                    let (verdict, frame) = all(&mut nats[at], 0, &[udp(internal, to)], now).remove(0);
                    prop_assert_eq!(verdict, Verdict::Forward(1));
                    let external = source_of(&frame);
                    let live = |&&(_, of, used): &&(SocketAddrV4, SocketAddrV4, u64)| of == internal && now - used <= 300;
                    if let Some((before, ..)) = seen.iter().find(live) {
                        prop_assert_eq!(*before, external, "an internal endpoint has two external ones");
                    }
                    let other = seen.iter().find(|(end, of, used)| *end == external && *of != internal && now - used <= 300);
                    prop_assert_eq!(other, None, "{} stands for {}, too", external, internal);
                    seen.retain(|(end, of, _)| *end != external && *of != internal);
                    seen.push((external, internal, now));
                }
                Step::In { which, remote } if !seen.is_empty() => {
                    let (external, internal, used) = *which.get(&seen);
                    let from = SocketAddrV4::new([198, 51, 100, remote].into(), 53);
                    let owner = of_block[usize::from((external.port() - 1024) / 1008)];
                    let (verdict, frame) = all(&mut nats[owner], 1, &[udp(from, external)], now).remove(0);
                    match verdict {
                        Verdict::Forward(0) => prop_assert_eq!(frame, udp(from, internal)),
                        // A packet of another remote does not refresh it.
                        other => prop_assert!(now - used > 300, "{external} is lost: {other:?}"),
                    }
                }
                Step::In { .. } => {}
                Step::HandOver { from, to, messages } => {
                    if from == to || !is_there[from] || !is_there[to] {
                        continue;
                    }
                    let mut room = [0; 2 * MOVED_BYTES];
                    let mut at = Some(0);
                    for _ in 0..messages {
                        let Some(next) = at else { break };
                        let [source, destination] = nats.get_disjoint_mut([from, to]).unwrap();
                        let given = source.hand_over(next, &mut room, Nanos::from_secs(now)).unwrap();
                        destination.take_over(&room[..given.0], Nanos::from_secs(now)).unwrap();
                        at = given.1;
                    }
                    if at.is_none() {
                        is_there[from] = false;
                        of_host.values_mut().chain(&mut of_block).filter(|at| **at == from).for_each(|at| *at = to);
                    }
                }
            }
        }
    }

    /// Bytes that another container sends are taken whole or refused, and what was taken can be given on.
    #[test]
    fn what_others_hand_over_is_read_with_care(
        mappings in prop::collection::vec(any::<[u8; MOVED_BYTES]>(), 0..12), are_likely: bool, cut in 0..3_usize,
    ) {
        let mut bytes = mappings.concat();
        if are_likely {
            for mapping in bytes.chunks_exact_mut(MOVED_BYTES) {
                (mapping[0], mapping[1], mapping[2], mapping[3]) = (1, mapping[1] % 3, mapping[2] % 3, 0);
                // Idle for less than any timeout.
                (mapping[4], mapping[5], mapping[6], mapping[7]) = (0, 0, 0, mapping[7] % 30);
                (mapping[8], mapping[9]) = (10, 0);
                (mapping[10], mapping[11], mapping[12]) = (0, mapping[11] % 4, 0);
                (mapping[14], mapping[15], mapping[16], mapping[17], mapping[18]) = (192, 0, 2, 1, mapping[18] % 16);
            }
        }
        bytes.truncate(bytes.len().saturating_sub(cut));
        let mut nat = instance(0, "block_ports = 16\nmappings_limit = 200\n");
        let taken = nat.take_over(&bytes, NOW);
        if bytes.len() % MOVED_BYTES != 0 {
            prop_assert_eq!(taken, Err(NotMoved::Malformed));
        }
        prop_assert!(!are_likely || bytes.len() % MOVED_BYTES != 0 || taken != Err(NotMoved::Malformed));
        let mut next = instance(1, "block_ports = 16\nmappings_limit = 200\n");
        prop_assert!(hand_over(&mut nat, &mut next, NOW).is_ok());
        prop_assert_eq!(next.summary().flows, nat.summary().flows);
    }
}
