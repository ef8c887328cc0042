//! Flows by what packets carry: tunnels between many ends on several workers, and the plain side of a function.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use model::{AffinityKey, DropReason, Match, protocol};
use packet::TcpFlags;
use packet::build::{Frame, fragment};
use switch::ServicePlan;

use crate::bed::{Bed, cross, echo, service, stamp};

fn by(key: AffinityKey, uplinks: &[u8], matches: Match) -> ServicePlan {
    ServicePlan {
        affinity_key: key,
        ..service(0, uplinks, matches)
    }
}

fn udp(src: SocketAddr, dst: SocketAddr, payload: &[u8]) -> Vec<u8> {
    Frame::udp(src, dst, payload).unwrap().to_vec().unwrap()
}

/// The ends of a user's flow.
fn user(number: u8) -> [SocketAddr; 2] {
    let port = 4000 + u16::from(number);
    [
        ([10, 45, 0, number], port).into(),
        ([198, 51, 100, 1], 443).into(),
    ]
}

/// A frame in a tunnel from that base station, which uses several ports and has its own identifiers.
fn in_tunnel(station: u8, frame: &[u8]) -> Vec<u8> {
    let packet = &frame[14..];
    let mut gtp = vec![0x30, 0xff];
    gtp.extend((packet.len() as u16).to_be_bytes());
    gtp.extend([0, 0, station, packet[15]]);
    gtp.extend(packet);
    let from = ([192, 0, 2, station], 2152 + u16::from(station % 3)).into();
    udp(from, ([192, 0, 2, 200], 2152).into(), &gtp)
}

fn only(of: &BTreeSet<u8>) -> u8 {
    assert_eq!(of.len(), 1, "{of:?}");
    *of.first().unwrap()
}

#[test]
fn a_users_flow_has_one_instance_from_all_stations_and_on_both_sides() {
    for workers in [1, 2, 3] {
        let mut bed = Bed::new(
            workers,
            2,
            vec![by(AffinityKey::Inner, &[0, 1], Match::default())],
        );
        for slot in 0..3 {
            bed.add(slot, 0, 2, cross);
        }
        let mut used = BTreeSet::new();
        for number in 1..=24 {
            let [host, server] = user(number);
            let mut stamps = BTreeSet::new();
            let tcp = |from, to, flags| {
                Frame::tcp(from, to, TcpFlags(flags), b"content")
                    .unwrap()
                    .to_vec()
                    .unwrap()
            };
            for (station, flags) in (1..=5).zip([TcpFlags::SYN, TcpFlags::ACK, TcpFlags::ACK, 0x18, 0x18]) {
                bed.send(0, [in_tunnel(station, &tcp(host, server, flags)).as_slice()]);
                stamps.extend(bed.take_all(1, 1).iter().map(|frame| stamp(frame)));
                // What the server sends comes without a tunnel.
                bed.send(1, [tcp(server, host, 0x12).as_slice()]);
                stamps.extend(bed.take_all(0, 1).iter().map(|frame| stamp(frame)));
            }
            used.insert(only(&stamps));
        }
        assert_eq!(used.len(), 3);
        bed.finish();
    }
}

/// Fragments of a user's datagram go where its flow goes, in any order and through any tunnel.
#[test]
fn fragments_inside_follow_the_users_flow() {
    for workers in [1, 2, 3] {
        let mut bed = Bed::new(workers, 1, vec![by(AffinityKey::Inner, &[0], Match::default())]);
        for slot in 0..3 {
            bed.add(slot, 0, 1, echo);
        }
        for number in 1..=24 {
            let [host, server] = user(number);
            bed.send(0, [in_tunnel(1, &udp(host, server, b"first")).as_slice()]);
            let expected: BTreeSet<u8> = bed.take_all(0, 1).iter().map(|frame| stamp(frame)).collect();
            let mut parts = fragment(&udp(host, server, &[number; 1000]), 400, number.into()).unwrap();
            if number % 2 == 0 {
                parts.reverse();
            }
            let wires: Vec<Vec<u8>> = (2..)
                .zip(&parts)
                .map(|(station, part)| in_tunnel(station, part))
                .collect();
            bed.send(0, wires.iter().map(Vec::as_slice));
            let came = bed.take_all(0, parts.len());
            let stamps: BTreeSet<u8> = came.iter().map(|frame| stamp(frame)).collect();
            assert_eq!(stamps, expected);
        }
        bed.finish();
    }
}

/// A tunnel's packet that was divided on its way follows its outer flow: all fragments are at one instance.
#[test]
fn fragments_outside_stay_together() {
    for workers in [1, 2] {
        let mut bed = Bed::new(workers, 1, vec![by(AffinityKey::Inner, &[0], Match::default())]);
        for slot in 0..3 {
            bed.add(slot, 0, 1, echo);
        }
        for number in 1..=12 {
            let [host, server] = user(number);
            let whole = in_tunnel(number, &udp(host, server, &[number; 1000]));
            let mut parts = fragment(&whole, 500, number.into()).unwrap();
            let first = usize::from(number) % parts.len();
            parts.rotate_left(first);
            bed.send(0, parts.iter().map(Vec::as_slice));
            let came = bed.take_all(0, parts.len());
            only(&came.iter().map(|frame| stamp(frame)).collect());
        }
        bed.finish();
    }
}

/// Who sends into a tunnel cannot name another service's flow, nor end its connection.
#[test]
fn what_is_inside_does_not_touch_the_flows_of_other_services() {
    let gtp = Match {
        protocol: Some(protocol::UDP),
        dst_port: Some(2152..=2152),
        ..Match::default()
    };
    let plain = service(1, &[0], Match::default());
    let mut bed = Bed::new(2, 1, vec![by(AffinityKey::Inner, &[0], gtp), plain]);
    bed.add(0, 0, 1, echo);
    bed.add(1, 1, 1, echo);
    let mut at = BTreeMap::new();
    for number in 1..=24 {
        let [host, server] = user(number);
        for (flags, is_inside) in [
            (TcpFlags::SYN, false),
            (TcpFlags::RST, true),
            (TcpFlags::ACK, false),
        ] {
            let frame = Frame::tcp(host, server, TcpFlags(flags), b"content")
                .unwrap()
                .to_vec()
                .unwrap();
            let frame = if is_inside { in_tunnel(1, &frame) } else { frame };
            bed.send(0, [frame.as_slice()]);
            let came = bed.take_all(0, 1);
            at.entry(is_inside)
                .or_insert_with(BTreeSet::new)
                .insert(stamp(&came[0]));
        }
    }
    assert_eq!(at, BTreeMap::from([(false, [1].into()), (true, [0].into())]));
    bed.finish();
}

/// ESP of an association goes to one instance, alone and in UDP, whatever address its sender has by now.
#[test]
fn an_association_has_one_instance() {
    for workers in [1, 2, 3] {
        let mut bed = Bed::new(workers, 1, vec![by(AffinityKey::Spi, &[0], Match::default())]);
        for slot in 0..3 {
            bed.add(slot, 0, 1, echo);
        }
        let mut used = BTreeSet::new();
        for spi in 1..=24_u8 {
            let mut stamps = BTreeSet::new();
            for sender in 1..=4_u8 {
                let data = [&[0, 0, 0x20, spi][..], &[sender; 40]].concat();
                let from = ([192, 0, 2, sender], 4500 + u16::from(sender)).into();
                let wire = udp(from, ([203, 0, 113, 1], 4500).into(), &data);
                bed.send(0, [wire.as_slice()]);
                stamps.extend(bed.take_all(0, 1).iter().map(|frame| stamp(frame)));
            }
            used.insert(only(&stamps));
        }
        assert_eq!(used.len(), 3);
        // A key exchange is a flow of its own.
        let ike = udp(
            ([192, 0, 2, 1], 4500).into(),
            ([203, 0, 113, 1], 4500).into(),
            &[0; 40],
        );
        for _ in 0..3 {
            bed.send(0, [ike.as_slice()]);
        }
        let came = bed.take_all(0, 3);
        only(&came.iter().map(|frame| stamp(frame)).collect());
        assert_eq!(bed.drops(DropReason::Malformed), 0);
        bed.finish();
    }
}
