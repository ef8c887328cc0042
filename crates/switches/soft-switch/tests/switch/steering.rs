//! Which packets go where.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use model::{DropReason, Fallback, InstanceState, Match, Prefix, UplinkId};
use packet::TcpFlags;
use packet::build::{Extension, Frame, Network, Tag, Transport};
use scheduling::Scheduler;
use switch::{FlowFilter, ServicePlan, SwitchRequest};

use crate::bed::{Bed, cross, echo, service, stamp, udp_flows, udp_packet, unstamped};

fn slices(frames: &[Vec<u8>]) -> impl Iterator<Item = &[u8]> {
    frames.iter().map(Vec::as_slice)
}

#[test]
fn each_flow_goes_to_one_instance_and_comes_back() {
    let mut bed = Bed::new(1, 1, vec![service(0, &[0], Match::default())]);
    for slot in 0..3 {
        bed.add(slot, 0, 1, echo);
    }
    let frames = udp_flows(100);
    let mut instance_of: HashMap<Vec<u8>, u8> = HashMap::new();
    let mut total = 0;
    for _ in 0..20 {
        let sent = bed.send(0, slices(&frames)) as usize;
        for frame in bed.take_all(0, sent) {
            let pinned = *instance_of.entry(unstamped(&frame)).or_insert(stamp(&frame));
            assert_eq!(
                stamp(&frame),
                pinned,
                "a packet of a pinned flow was on another instance"
            );
        }
        total += sent as u64;
    }
    let sent: Vec<_> = frames.iter().map(|f| unstamped(f)).collect();
    assert!(
        instance_of.keys().all(|f| sent.contains(f)),
        "a packet came back changed"
    );
    assert_eq!(instance_of.len(), 100);
    for slot in 0..3u8 {
        let flows = instance_of.values().filter(|i| **i == slot).count();
        assert!(
            (33..=34).contains(&flows),
            "round-robin gave {flows} of 100 flows to {slot}"
        );
    }
    assert_eq!(bed.reading.offered(), total);
    bed.assert_accounts_close();
    assert_eq!(bed.reading.dropped(), 0);
    bed.finish();
}

#[test]
fn packets_wait_in_the_ring_of_an_uplink_that_is_not_open() {
    let mut bed = Bed::with(1, 2, vec![service(0, &[0, 1], Match::default())], |config| {
        config.uplinks[1].waits = true;
    });
    bed.add(0, 0, 2, cross);
    let early = udp_flows(50);
    bed.send(1, slices(&early));
    // What came later on the other one has been there and back.
    let other = udp_flows(10);
    bed.send(0, slices(&other));
    bed.until("the other uplink's packets were forwarded", |bed| {
        bed.reading.uplinks[0].received_packets == 10
    });
    assert_eq!(bed.reading.uplinks[1].received_packets, 0);
    bed.ask(SwitchRequest::OpenUplink(UplinkId(1)));
    assert_eq!(bed.take_all(0, 50).len(), 50);
    bed.assert_accounts_close();
    // The other uplink's packets may have come back before theirs was open.
    let dropped = bed.reading.dropped();
    assert!(dropped <= other.len() as u64, "{dropped}");
    bed.finish();
}

#[test]
fn frames_longer_than_an_uplink_carries_are_dropped_in_both_directions() {
    let mut bed = Bed::with(1, 2, vec![service(0, &[0, 1], Match::default())], |config| {
        config.uplinks[1].max_frame = 400;
    });
    bed.add(0, 0, 2, cross);
    for (from, to, dropped) in [(0, 1, 2), (1, 0, 4)] {
        // 42 bytes of headers: two that fit, two that do not.
        let frames = [60, 358, 359, 700].map(|bytes| udp_packet(from as u32, &vec![7; bytes]));
        bed.send(from, slices(&frames));
        let came: Vec<usize> = bed.take_all(to, 2).iter().map(Vec::len).collect();
        assert_eq!(came, [102, 400]);
        bed.assert_accounts_close();
        assert_eq!(bed.drops(DropReason::TooLarge), dropped);
    }
    let uplinks = &bed.reading.uplinks;
    assert_eq!(
        (uplinks[1].received_packets, uplinks[1].dropped),
        (4, 2),
        "{uplinks:#?}"
    );
    bed.finish();
}

#[test]
fn both_directions_of_a_two_arm_flow_are_on_one_instance() {
    let mut bed = Bed::new(1, 2, vec![service(0, &[0, 1], Match::default())]);
    for slot in 0..3 {
        bed.add(slot, 0, 2, cross);
    }
    let there = udp_flows(30);
    bed.send(0, slices(&there));
    let out = bed.take_all(1, 30);
    let instance_of: HashMap<_, _> = out.iter().map(|f| (f[26..38].to_vec(), stamp(f))).collect();
    assert_eq!(instance_of.len(), 30);
    let back: Vec<_> = there.iter().map(|f| reversed(f)).collect();
    bed.send(1, slices(&back));
    for frame in bed.take_all(0, 30) {
        assert!(
            back.iter().any(|b| unstamped(b) == unstamped(&frame)),
            "changed on its way"
        );
        let forward = reversed(&frame)[26..38].to_vec();
        assert_eq!(stamp(&frame), instance_of[&forward]);
    }
    bed.until("30 flows are counted", |bed| {
        bed.reading.workers[0].live_flows == 30
    });
    bed.assert_accounts_close();
    assert_eq!(bed.reading.dropped(), 0);
    bed.finish();
}

/// The UDP packet with its ends exchanged: the checksums do not change.
fn reversed(frame: &[u8]) -> Vec<u8> {
    let mut back = frame.to_vec();
    back[26..30].copy_from_slice(&frame[30..34]);
    back[30..34].copy_from_slice(&frame[26..30]);
    back[34..36].copy_from_slice(&frame[36..38]);
    back[36..38].copy_from_slice(&frame[34..36]);
    back
}

#[test]
fn an_asymmetric_service_pins_each_direction_on_its_own() {
    let mut of = service(0, &[0], Match::default());
    of.symmetric = false;
    let mut bed = Bed::new(1, 1, vec![of]);
    bed.add(0, 0, 1, echo);
    bed.add(1, 0, 1, echo);
    let there = udp_packet(1, b"eighteen bytes fit");
    let back = reversed(&there);
    for _ in 0..5 {
        bed.send(0, [there.as_slice(), back.as_slice()]);
        let out = bed.take_all(0, 2);
        // Round-robin gave the second direction, which is pinned on its own, to the next instance.
        for frame in out {
            let expected = u8::from(unstamped(&frame) == unstamped(&back));
            assert_eq!(stamp(&frame), expected);
        }
    }
    bed.until("the flow counts once with each instance", |bed| {
        bed.slot(0).live_flows == 1 && bed.slot(1).live_flows == 1 && bed.reading.workers[0].live_flows == 1
    });
    bed.finish();
}

#[test]
fn services_take_their_own_packets_and_the_first_match_counts() {
    let prefix = |address: &str, bits| {
        Some(Prefix {
            address: address.parse().unwrap(),
            bits,
        })
    };
    let matches = [
        Match {
            vlan: Some(7),
            ..Match::default()
        },
        Match {
            dst: prefix("192.0.2.128", 25),
            ..Match::default()
        },
        Match {
            dst: prefix("192.0.2.0", 24),
            dst_port: Some(80..=443),
            ..Match::default()
        },
        Match {
            protocol: Some(6),
            ..Match::default()
        },
        Match {
            src: prefix("2001:db8::", 32),
            src_port: Some(1000..=1000),
            ..Match::default()
        },
    ];
    let services = (0..).zip(matches).map(|(id, m)| service(id, &[0], m)).collect();
    let mut bed = Bed::new(1, 1, services);
    for slot in 0..5 {
        bed.add(slot, slot, 1, echo);
    }
    let udp = |src: &str, dst: &str| {
        Frame::udp(src.parse().unwrap(), dst.parse().unwrap(), b"eighteen bytes fit").unwrap()
    };
    let tags = [Tag::vlan(7)];
    let qinq = [Tag::service(7), Tag::vlan(9)];
    let inner = [Tag::service(9), Tag::vlan(7)];
    let cases = [
        // Narrower services come first in the plan, so they win.
        (udp("10.0.0.1:1", "192.0.2.129:80"), Some(1)),
        (udp("10.0.0.1:1", "192.0.2.1:80"), Some(2)),
        (udp("10.0.0.1:1", "192.0.2.1:443"), Some(2)),
        (udp("10.0.0.1:1", "192.0.2.1:444"), None),
        (udp("192.0.2.1:443", "10.9.9.9:5"), Some(2)),
        (
            Frame {
                tags: &tags,
                ..udp("10.0.0.1:1", "192.0.2.1:80")
            },
            Some(0),
        ),
        (
            Frame {
                tags: &qinq,
                ..udp("10.0.0.1:1", "192.0.2.1:80")
            },
            Some(0),
        ),
        (
            Frame {
                tags: &inner,
                ..udp("10.0.0.1:1", "192.0.2.1:80")
            },
            Some(2),
        ),
        (
            Frame::tcp(
                "10.0.0.1:1".parse().unwrap(),
                "198.51.100.1:444".parse().unwrap(),
                TcpFlags(2),
                b"",
            )
            .unwrap(),
            Some(3),
        ),
        (udp("[2001:db8::1]:1000", "[2001:db9::1]:5"), Some(4)),
        (udp("[2001:db8::1]:1001", "[2001:db9::1]:5"), None),
    ];
    for (frame, expected) in cases {
        let bytes = frame.to_vec().unwrap();
        let before = bed.drops(DropReason::Unmatched);
        bed.send(0, [bytes.as_slice()]);
        match expected {
            Some(service) => assert_eq!(stamp(&bed.take_all(0, 1)[0]), service, "{frame:?}"),
            None => bed.until("it is dropped as unmatched", |bed| {
                bed.drops(DropReason::Unmatched) == before + 1
            }),
        }
    }
    bed.until("each service counts its own", |bed| {
        let offered: Vec<_> = bed.reading.services.iter().map(|s| s.offered_packets).collect();
        offered == [2, 1, 4, 1, 1]
    });
    bed.assert_accounts_close();
    bed.finish();
}

#[test]
fn packets_of_no_service_are_dropped_or_passed_by_the_plan() {
    let tcp = Match {
        protocol: Some(6),
        ..Match::default()
    };
    let mut bed = Bed::new(1, 2, vec![service(0, &[0], tcp)]);
    bed.add(0, 0, 1, echo);
    let unmatched = udp_packet(1, b"eighteen bytes fit");
    let mut arp = unmatched.clone();
    arp[12..14].copy_from_slice(&[0x08, 0x06]);
    let mut cut = unmatched.clone();
    cut.truncate(30);
    let all = [unmatched.as_slice(), arp.as_slice(), cut.as_slice()];
    bed.send(0, all);
    bed.until("all are dropped, each for its reason", |bed| {
        let reasons = [DropReason::Unmatched, DropReason::Other, DropReason::Malformed];
        reasons.map(|r| bed.drops(r)) == [1, 1, 1]
    });
    bed.plan.unmatched = Fallback::Pass(UplinkId(1));
    bed.plan.other = Fallback::Pass(UplinkId(0));
    bed.publish();
    bed.send(0, all);
    let both = [arp.clone(), unmatched.clone()];
    assert_eq!(bed.take_all(1, 1), both[1..]);
    assert_eq!(bed.take_all(0, 1), both[..1]);
    bed.assert_accounts_close();
    assert_eq!(bed.reading.workers[0].passed, 2);
    assert_eq!(bed.drops(DropReason::Malformed), 2);
    // In both directions: a question and its answer.
    bed.plan.unmatched = Fallback::Opposite;
    bed.plan.other = Fallback::Opposite;
    bed.publish();
    for (from, to) in [(0, 1), (1, 0)] {
        bed.send(from, both.iter().map(Vec::as_slice));
        assert_eq!(bed.take_all(to, 2), both);
    }
    bed.assert_accounts_close();
    assert_eq!(bed.reading.workers[0].passed, 6);
    bed.finish();
}

#[test]
fn headers_of_every_kind_come_back_as_an_independent_parser_reads_them() {
    let mut bed = Bed::new(1, 1, vec![service(0, &[0], Match::default())]);
    bed.add(0, 0, 1, echo);
    bed.add(1, 0, 1, echo);
    let hops = [Extension {
        number: 0,
        body: &[1, 4, 0, 0, 0, 0],
    }];
    let routing = [
        Extension {
            number: 0,
            body: &[1, 4, 0, 0, 0, 0],
        },
        Extension {
            number: 60,
            body: &[1, 4, 0, 0, 0, 0],
        },
    ];
    let v4 = |options: &'static [u8]| Network::V4 {
        src: [10, 1, 2, 3],
        dst: [192, 0, 2, 9],
        dscp: 46,
        ttl: 9,
        identification: 77,
        options,
    };
    let v6 = |extensions| Network::V6 {
        src: [0x20; 16],
        dst: [0x30; 16],
        dscp: 10,
        hop_limit: 3,
        extensions,
    };
    let udp = Transport::Udp {
        src_port: 5,
        dst_port: 6,
    };
    let tcp = Transport::Tcp {
        src_port: 7,
        dst_port: 8,
        sequence: 9,
        acknowledgement: 10,
        flags: TcpFlags(0x12),
        options: &[2, 4, 5, 0xb4],
    };
    let sctp = Transport::Sctp {
        src_port: 9,
        dst_port: 10,
        tag: 11,
    };
    let icmp = Transport::Icmp {
        kind: 8,
        code: 0,
        word: [0, 1, 0, 2],
    };
    let icmp6 = Transport::Icmp {
        kind: 128,
        code: 0,
        word: [0, 1, 0, 2],
    };
    let tags = [Tag::service(100), Tag::vlan(200)];
    let mut frames = Vec::new();
    for (network, transports) in [
        (v4(&[]), [udp, tcp, sctp, icmp]),
        (v4(&[1, 1, 1, 1]), [udp, tcp, sctp, icmp]),
        (v6(&[][..]), [udp, tcp, sctp, icmp6]),
        (v6(&hops[..]), [udp, tcp, sctp, icmp6]),
        (v6(&routing[..]), [udp, tcp, sctp, icmp6]),
    ] {
        for transport in transports {
            let plain = Frame::new(network, transport, b"a payload of some bytes");
            for tags in [&[][..], &tags[..1], &tags[..]] {
                frames.push(Frame { tags, ..plain }.to_vec().unwrap());
            }
        }
    }
    bed.send(0, slices(&frames));
    let out = bed.take_all(0, frames.len());
    let mut left = frames.clone();
    for frame in &out {
        let place = left
            .iter()
            .position(|f| unstamped(f) == unstamped(frame))
            .expect("a frame came back that was not sent");
        let sent = left.remove(place);
        let (sent, got) = (
            etherparse::PacketHeaders::from_ethernet_slice(&sent).unwrap(),
            etherparse::PacketHeaders::from_ethernet_slice(frame).unwrap(),
        );
        assert_eq!(
            (sent.link_exts, sent.net, sent.transport),
            (got.link_exts, got.net, got.transport)
        );
        assert_eq!(sent.payload, got.payload);
    }
    bed.assert_accounts_close();
    assert_eq!(bed.reading.dropped(), 0);
    bed.finish();
}

#[test]
fn returns_are_counted_per_flow_if_the_service_has_return_counters() {
    for workers in [1, 2] {
        let mut of = service(0, &[0], Match::default());
        of.return_counters = true;
        let mut bed = Bed::new(workers, 1, vec![of]);
        bed.add(0, 0, 1, echo);
        // Gives back a packet whose addresses no flow has.
        bed.add(1, 0, 1, |frame, port, number| {
            frame[29] ^= 0xff;
            echo(frame, port, number)
        });
        let frames = udp_flows(10);
        for _ in 0..4 {
            bed.send(0, slices(&frames));
            bed.take_all(0, 10);
        }
        bed.until("the unmatched ones are counted", |bed| {
            bed.slot(1).return_unmatched == bed.slot(1).back_packets && bed.slot(1).back_packets > 0
        });
        assert_eq!(bed.slot(0).return_unmatched, 0);
        let (rows, complete) = bed.flows(FlowFilter::default(), 100);
        assert!(complete && rows.len() == 10);
        for row in rows {
            let expected = if row.pins[0].0 == 0 { 4 } else { 0 };
            assert_eq!(row.returned, Some(expected), "{row:?}");
        }
        bed.assert_accounts_close();
        bed.finish();
    }
}

#[test]
fn without_an_instance_packets_are_dropped_and_counted_with_their_service() {
    let mut bed = Bed::new(1, 1, vec![service(0, &[0], Match::default())]);
    bed.send(0, slices(&udp_flows(5)));
    bed.until("five are unserved", |bed| bed.reading.services[0].unserved == 5);
    assert_eq!(bed.drops(DropReason::NoInstance), 5);
    // One that only stands by is no better.
    bed.add(0, 0, 1, echo);
    bed.set_state(0, 0, InstanceState::Standby);
    bed.publish();
    bed.send(0, slices(&udp_flows(5)));
    bed.until("ten are unserved", |bed| bed.reading.services[0].unserved == 10);
    bed.finish();
}

/// One packet of each of 64 TCP flows.
fn tcp_flows(flags: u8) -> Vec<Vec<u8>> {
    let frame = |flow: u16| {
        let from = std::net::SocketAddr::from(([10, 0, 0, 1], 1000 + flow));
        let to = "198.51.100.1:80".parse().unwrap();
        let frame = Frame::tcp(from, to, TcpFlags(flags), b"a stamp has its place here").unwrap();
        frame.to_vec().unwrap()
    };
    (0..64).map(frame).collect()
}

/// The instance of each of 64 TCP flows, by a packet with these flags, and how many flows were recovered.
fn instances_of_tcp(
    flags: u8,
    workers: usize,
    hash_key: [u64; 4],
    change: impl FnOnce(&mut ServicePlan),
) -> (Vec<u8>, u64) {
    let mut service = service(0, &[0], Match::default());
    change(&mut service);
    let mut bed = Bed::with(workers, 1, vec![service], |config| config.hash_key = hash_key);
    let frames = tcp_flows(flags);
    // What no instance takes is not recovered.
    bed.send(0, [frames[0].as_slice()]);
    bed.until("it is unserved", |bed| bed.reading.services[0].unserved == 1);
    assert_eq!(bed.reading.services[0].recovered, 0);
    for slot in 0..4 {
        bed.add(slot, 0, 1, echo);
    }
    let mut instances = Vec::new();
    for frame in &frames {
        bed.send(0, [frame.as_slice()]);
        instances.push(stamp(&bed.take_all(0, 1)[0]));
    }
    let recovered = bed.reading.services[0].recovered;
    // Each flow is pinned from now on.
    bed.send(0, slices(&frames));
    let again: Vec<u8> = bed.take_all(0, 64).iter().map(|frame| stamp(frame)).collect();
    assert_eq!(again.len(), 64);
    assert_eq!(bed.reading.services[0].recovered, recovered);
    bed.finish();
    (instances, recovered)
}

const SYN: u8 = 2;
const ACK: u8 = 16;

#[test]
fn connections_that_were_lost_go_to_the_same_instances_in_each_run_and_on_each_machine() {
    let recovers = |service: &mut ServicePlan| service.recovers = true;
    let (first, recovered) = instances_of_tcp(ACK, 1, [1, 2, 3, 4], recovers);
    assert_eq!(recovered, 64);
    assert_eq!(
        instances_of_tcp(ACK, 2, [5, 6, 7, 8], recovers),
        (first.clone(), 64)
    );
    // Whatever picks new flows.
    let by_load = |service: &mut ServicePlan| {
        recovers(service);
        service.scheduler = Scheduler::from_name("worst-fit").unwrap();
    };
    assert_eq!(instances_of_tcp(ACK, 1, [9, 9, 9, 9], by_load).0, first);
    // A new connection, and any where nothing was lost, has the instance that the scheduler picks.
    let is_in_turn = |of: &[u8]| (0..60).all(|at| of[at] == of[at + 4]) && of[..4] != [of[0]; 4];
    let (new, recovered) = instances_of_tcp(SYN, 1, [1, 2, 3, 4], recovers);
    assert!(is_in_turn(&new) && recovered == 0, "{new:?}");
    let (known, recovered) = instances_of_tcp(ACK, 1, [1, 2, 3, 4], |_| {});
    assert!(is_in_turn(&known) && recovered == 0, "{known:?}");
}

/// All packets that waited come at once, as soon as the last instance is there.
#[test]
fn connections_that_were_lost_are_picked_among_the_instances_of_that_moment() {
    let recovering = || ServicePlan {
        recovers: true,
        ..service(0, &[0], Match::default())
    };
    let of_each = |bed: &mut Bed| {
        bed.send(0, slices(&tcp_flows(ACK)));
        let back = bed.take_all(0, 64);
        let of = |frame: &Vec<u8>| (unstamped(frame), stamp(frame));
        back.iter().map(of).collect::<BTreeMap<_, _>>()
    };
    let runs: Vec<_> = (0..4)
        .map(|_| {
            let mut bed = Bed::new(1, 1, vec![recovering()]);
            for slot in 0..4 {
                bed.add(slot, 0, 1, echo);
            }
            let of = of_each(&mut bed);
            bed.finish();
            of
        })
        .collect();
    let used: BTreeSet<u8> = runs[0].values().copied().collect();
    assert!(
        used.len() == 4 && runs.iter().all(|run| *run == runs[0]),
        "{used:?}"
    );
}

/// A connection that one machine has pinned, and whose packets another one gets from now on, goes on where it is.
#[test]
fn two_machines_agree_where_a_connection_is() {
    for recovers in [false, true] {
        let maglev = |service: &mut ServicePlan| {
            service.scheduler = Scheduler::from_name("maglev").unwrap();
            service.recovers = recovers;
        };
        let (begun, _) = instances_of_tcp(SYN, 1, [1, 2, 3, 4], maglev);
        let used: BTreeSet<u8> = begun.iter().copied().collect();
        assert_eq!(used.len(), 4, "{begun:?}");
        assert_eq!(instances_of_tcp(ACK, 2, [5, 6, 7, 8], maglev).0, begun);
    }
}

#[test]
fn the_weights_of_active_instances_are_shown() {
    let weighted = ServicePlan {
        scheduler: Scheduler::from_name("weighted").unwrap(),
        ..service(0, &[0], Match::default())
    };
    let mut bed = Bed::new(1, 1, vec![weighted]);
    for slot in 0..3 {
        bed.add(slot, 0, 1, echo);
    }
    let weights = |bed: &Bed| [0, 1, 2].map(|slot| bed.slot(slot).weight);
    bed.until("all have weights", |bed| {
        let of = weights(bed);
        of.iter().sum::<u64>() == 256 && of.iter().all(|weight| *weight > 0)
    });
    // One that takes no new flows has none.
    bed.set_state(1, 0, InstanceState::Draining);
    bed.publish();
    bed.until("the others have all", |bed| {
        let [first, second, third] = weights(bed);
        second == 0 && first + third == 256
    });
    bed.finish();
}
