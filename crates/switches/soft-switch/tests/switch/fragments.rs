//! Fragments and ICMP errors go where their flow goes, in its order.

use std::collections::HashMap;
use std::net::IpAddr;

use model::{DropReason, Match};
use packet::build::{Frame, fragment};

use crate::bed::{Bed, echo, ends, service, stamp, udp_packet, unstamped};

/// An ICMP error about the packet: from its destination, or a router, to its source.
fn error_about(frame: &[u8], router: Option<IpAddr>) -> Vec<u8> {
    let packet = &frame[14..];
    let (from, to, kind): (IpAddr, IpAddr, u8) = if packet[0] >> 4 == 4 {
        let at = |i: usize| <[u8; 4]>::try_from(&packet[i..i + 4]).unwrap();
        (at(16).into(), at(12).into(), 3)
    } else {
        let at = |i: usize| <[u8; 16]>::try_from(&packet[i..i + 16]).unwrap();
        (at(24).into(), at(8).into(), 1)
    };
    let body = &packet[..packet.len().min(60)];
    Frame::icmp(router.unwrap_or(from), to, kind, 1, [0; 4], body)
        .unwrap()
        .to_vec()
        .unwrap()
}

fn big(flow: u32) -> Vec<u8> {
    udp_packet(flow, &[flow as u8; 1200])
}

fn v6(flow: u16, payload: &[u8]) -> Vec<u8> {
    let src = format!("[2001:db8::{flow:x}]:{}", 1000 + flow).parse().unwrap();
    Frame::udp(src, "[2001:db8:1::1]:53".parse().unwrap(), payload)
        .unwrap()
        .to_vec()
        .unwrap()
}

#[test]
fn fragments_follow_their_flow_whatever_order_they_come_in() {
    for workers in [1, 2] {
        let mut bed = Bed::new(workers, 1, vec![service(0, &[0], Match::default())]);
        for slot in 0..3 {
            bed.add(slot, 0, 1, echo);
        }
        let mut instance_of = HashMap::new();
        for flow in 0..30u32 {
            let whole = if flow % 2 == 0 {
                big(flow)
            } else {
                v6(flow as u16, &[flow as u8; 1200])
            };
            let pieces = fragment(&whole, 500, 1000 + flow).unwrap();
            assert!(pieces.len() >= 3);
            // In order; last first; the first one in the middle.
            let order: Vec<usize> = match flow % 3 {
                0 => (0..pieces.len()).collect(),
                1 => (0..pieces.len()).rev().collect(),
                _ => std::iter::once(1).chain([0]).chain(2..pieces.len()).collect(),
            };
            let sent: Vec<&[u8]> = order.iter().map(|i| pieces[*i].as_slice()).collect();
            bed.send(0, sent);
            let out = bed.take_all(0, pieces.len());
            let mut stamps: Vec<u8> = out.iter().map(|f| stamp(f)).collect();
            stamps.dedup();
            assert_eq!(
                stamps.len(),
                1,
                "the fragments of one packet were on several instances"
            );
            instance_of.insert(flow, stamps[0]);
            // The first leaves first, then those that waited for it, as they came.
            let first = order.iter().position(|i| *i == 0).unwrap();
            let mut expected = vec![0];
            expected.extend(&order[..first]);
            expected.extend(&order[first + 1..]);
            let expected: Vec<_> = expected.into_iter().map(|i| unstamped(&pieces[i])).collect();
            assert_eq!(out.iter().map(|f| unstamped(f)).collect::<Vec<_>>(), expected);
        }
        // A whole packet of the same flow, and errors about it from its peer and from a router.
        for flow in 0..30u32 {
            let (whole, router) = if flow % 2 == 0 {
                (udp_packet(flow, b"whole"), "198.51.100.9")
            } else {
                (v6(flow as u16, b"whole"), "2001:db8:ffff::9")
            };
            let errors = [
                error_about(&whole, None),
                error_about(&whole, Some(router.parse().unwrap())),
            ];
            bed.send(0, [whole.as_slice(), &errors[0], &errors[1]]);
            for frame in bed.take_all(0, 3) {
                assert_eq!(stamp(&frame), instance_of[&flow], "flow {flow}");
            }
        }
        bed.assert_accounts_close();
        assert_eq!(bed.reading.dropped(), 0);
        let flows: u64 = bed.reading.workers.iter().map(|w| w.live_flows).sum();
        assert_eq!(flows, 30, "an error opened a flow of its own");
        bed.finish();
    }
}

#[test]
fn fragments_whose_first_one_never_comes_time_out() {
    let mut bed = Bed::new(2, 1, vec![service(0, &[0], Match::default())]);
    bed.add(0, 0, 1, echo);
    for flow in 0..20 {
        let pieces = fragment(&big(flow), 500, flow).unwrap();
        bed.send(0, pieces[1..].iter().map(Vec::as_slice));
    }
    bed.until("they wait, and are seen to be inside", |bed| {
        bed.reading
            .workers
            .iter()
            .map(|w| w.fragments_waiting)
            .sum::<u64>()
            == 40
            && bed.reading.in_flight() == 40
    });
    bed.until("they time out", |bed| {
        bed.drops(DropReason::FragmentTimeout) == 40
    });
    bed.assert_accounts_close();
    assert_eq!(bed.reading.sent(), 0);
    bed.finish();
}

#[test]
fn packets_fragments_and_errors_of_a_flow_keep_their_order_with_two_workers() {
    let mut bed = Bed::new(2, 1, vec![service(0, &[0], Match::default())]);
    for slot in 0..3 {
        bed.add(slot, 0, 1, echo);
    }
    // Per flow a series in which whole packets, fragments in order and errors alternate; the flows are interleaved.
    let series: Vec<Vec<Vec<u8>>> = (0..20u32)
        .map(|flow| {
            (0..10u32)
                .flat_map(|round| {
                    let whole = udp_packet(flow, &[round as u8; 20]);
                    let mut frames = fragment(&big(flow), 500, flow * 100 + round).unwrap();
                    frames.push(whole.clone());
                    frames.push(error_about(&whole, None));
                    frames
                })
                .collect()
        })
        .collect();
    let longest = series[0].len();
    let mut out: Vec<Vec<u8>> = Vec::new();
    for step in 0..longest {
        let frames: Vec<_> = series.iter().map(|s| s[step].as_slice()).collect();
        bed.send(0, frames);
        out.extend(bed.take(0));
    }
    bed.until("all are back", |bed| {
        out.extend(bed.take(0));
        out.len() == 20 * longest
    });
    for (flow, sent) in (0..).zip(&series) {
        let (src, _) = ends(flow);
        let IpAddr::V4(src) = src.ip() else { panic!() };
        let mine: Vec<_> = out
            .iter()
            .filter(|f| f[26..30] == src.octets() || f[30..34] == src.octets())
            .collect();
        let sent: Vec<_> = sent.iter().map(|f| unstamped(f)).collect();
        assert_eq!(
            mine.iter().map(|f| unstamped(f)).collect::<Vec<_>>(),
            sent,
            "flow {flow}"
        );
        assert!(mine.iter().all(|f| stamp(f) == stamp(mine[0])));
    }
    bed.assert_accounts_close();
    assert_eq!(bed.reading.dropped(), 0);
    bed.finish();
}
