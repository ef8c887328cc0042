use std::net::SocketAddr;

use packet::build::{self, Frame};
use proptest::prelude::*;

use super::*;

const SETUP: Setup = Setup {
    instance: 1,
    ports: 2,
    seed: 3,
    external: None,
};

fn pfabric(text: &str) -> Pfabric {
    Pfabric::new(Pfabric::compile(text, &SETUP).unwrap(), &SETUP)
}

/// A frame of a flow, with the bytes that remain of it and a mark.
fn frame(flow: u8, remaining: u32, mark: u8, bytes: usize) -> Vec<u8> {
    let from = SocketAddr::from(([10, 0, 0, flow], 1000));
    let mut payload = vec![0; bytes - 42];
    payload[..4].copy_from_slice(&remaining.to_be_bytes());
    payload[4] = mark;
    Frame::udp(from, ([192, 0, 2, 1], 80).into(), &payload)
        .unwrap()
        .to_vec()
        .unwrap()
}

/// Gives frames from a port. Returns how many of them wait, by their verdicts, and what left meanwhile.
fn push(pfabric: &mut Pfabric, port: u8, frames: &[Vec<u8>], now: Nanos) -> (Vec<Verdict>, Vec<Vec<u8>>) {
    let mut burst = Burst::new();
    burst.begin(port, 1 - port);
    for frame in frames {
        assert!(burst.push(frame));
    }
    pfabric.process(&mut burst, now);
    let verdicts = burst.packets().map(|packet| packet.verdict()).collect();
    (verdicts, left(&mut burst, frames.len(), 1 - port))
}

/// The packets that were made, from an index on.
fn left(burst: &mut Burst, first: usize, port: u8) -> Vec<Vec<u8>> {
    let made = (first..).map_while(|at| {
        let packet = burst.packet(at)?;
        assert_eq!(packet.verdict(), Verdict::Forward(port));
        Some(packet.frame().to_vec())
    });
    made.collect()
}

fn tick(pfabric: &mut Pfabric, now: Nanos) -> Vec<Vec<u8>> {
    let mut burst = Burst::new();
    burst.begin(0, 1);
    pfabric.tick(&mut burst, now);
    left(&mut burst, 0, 1)
}

fn marks(frames: &[Vec<u8>]) -> Vec<u8> {
    frames.iter().map(|frame| frame[46]).collect()
}

/// A frame of 125 bytes takes 1 us at 1 Gbit/s.
const BYTES: usize = 125;
const START: Nanos = Nanos::from_secs(5);

/// The first frame keeps the link busy. `BEHIND` lets a hundred more follow, so it is a long one.
fn busy(pfabric: &mut Pfabric) {
    let (verdicts, left) = push(pfabric, 0, &[frame(99, 0, 0, 1500)], START);
    assert_eq!((verdicts, left.len()), (vec![Verdict::Consume], 1));
}

#[test]
fn short_flows_leave_first_and_a_flow_keeps_its_order() {
    // A frame of 1500 bytes takes 120 us, longer than the link may be behind.
    let mut pfabric = pfabric("rate = \"100Mbit/s\"");
    busy(&mut pfabric);
    // The last packet of flow 1 has the highest priority: all of that flow leave first, in their order.
    let frames = [
        frame(1, 900, 1, BYTES),
        frame(2, 500, 2, BYTES),
        frame(3, 700, 3, BYTES),
        frame(1, 100, 4, BYTES),
        frame(2, 400, 5, BYTES),
    ];
    let (verdicts, now) = push(&mut pfabric, 0, &frames, START);
    assert_eq!((verdicts, now.len()), (vec![Verdict::Consume; 5], 0));
    assert_eq!(pfabric.due(), Some(START + Nanos::from_micros(20)));
    assert!(tick(&mut pfabric, START + Nanos::from_micros(19)).is_empty());
    assert_eq!(marks(&tick(&mut pfabric, START + Nanos::from_micros(20))), [1]);
    assert_eq!(
        marks(&tick(&mut pfabric, START + Nanos::from_micros(60))),
        [4, 2, 5, 3]
    );
    assert_eq!(pfabric.due(), None);
    let mut values = [0; METRICS.len()];
    pfabric.metrics(&mut values);
    assert_eq!(values, [0, 6, 0, 0]);
}

#[test]
fn a_full_queue_drops_the_lowest_priority() {
    let mut pfabric = pfabric("rate = \"100Mbit/s\"\npackets = 2");
    busy(&mut pfabric);
    let frames = [(1, 50), (2, 90), (3, 90), (4, 60), (5, 10)];
    let frames = frames.map(|(flow, remaining)| frame(flow, remaining, flow, BYTES));
    let (verdicts, _) = push(&mut pfabric, 0, &frames, START);
    let [full, evicted] = [FULL, EVICTED].map(Verdict::Drop);
    assert_eq!(
        verdicts,
        [Verdict::Consume, Verdict::Consume, full, evicted, evicted]
    );
    assert_eq!(pfabric.summary().flows, 2);
    assert_eq!(marks(&tick(&mut pfabric, START + Nanos::from_millis(1))), [5, 1]);
}

#[test]
fn directions_have_links_of_their_own() {
    let mut pfabric = pfabric("rate = \"100Mbit/s\"");
    busy(&mut pfabric);
    let (_, left) = push(&mut pfabric, 1, &[frame(1, 5, 7, BYTES)], START);
    assert_eq!(marks(&left), [7]);
}

#[test]
fn control_packets_come_first_and_later_fragments_last() {
    let mut pfabric = pfabric("rate = \"100Mbit/s\"\nframe_bytes = 1536");
    busy(&mut pfabric);
    let from = SocketAddr::from(([10, 0, 0, 9], 1000));
    let datagram = Frame::udp(from, ([192, 0, 2, 1], 80).into(), &[0; 3000]).unwrap();
    let fragments = build::fragment(&datagram.to_vec().unwrap(), 1280, 7).unwrap();
    let arp = vec![0; 60];
    let long = frame(3, 1, 1, 1537);
    let waits = frame(1, 5, 8, BYTES);
    let (verdicts, _) = push(
        &mut pfabric,
        0,
        &[fragments[1].clone(), waits.clone(), arp.clone(), long],
        START,
    );
    assert_eq!(verdicts[3], Verdict::Drop(TOO_LONG));
    assert_eq!(
        tick(&mut pfabric, START + Nanos::from_millis(1)),
        [arp, waits, fragments[1].clone()]
    );
    assert_eq!(pfabric.control, 1);
}

#[test]
fn the_code_point_can_be_the_priority() {
    let mut pfabric = pfabric("rate = \"100Mbit/s\"\npriority = \"dscp\"");
    busy(&mut pfabric);
    let frames = [10, 46, 0].map(|dscp| {
        let mut bytes = frame(dscp, 0, dscp, BYTES);
        bytes[15] = dscp << 2;
        bytes[24..26].fill(0);
        bytes
    });
    push(&mut pfabric, 0, &frames, START);
    assert_eq!(
        marks(&tick(&mut pfabric, START + Nanos::from_millis(1))),
        [46, 10, 0]
    );
}

proptest! {
    /// The link never sends more than its rate and `BEHIND` allow, and what waits leaves in time.
    #[test]
    fn the_link_keeps_its_rate(gaps in prop::collection::vec((0..400_u64, 0..8_usize), 1..40)) {
        let mut pfabric = pfabric("rate = \"1Gbit/s\"\npackets = 1000");
        let mut now = START;
        let (mut given, mut sent) = (0, 0);
        for (gap, count) in gaps {
            now = now + Nanos::from_micros(gap);
            let frames: Vec<_> = (0..count as u8).map(|flow| frame(flow, given, flow, BYTES)).collect();
            given += count as u32;
            sent += push(&mut pfabric, 0, &frames, now).1.len() as u64;
            prop_assert!(sent <= now.since(START).0 / 1000 + 101);
        }
        while let Some(due) = pfabric.due() {
            let more = tick(&mut pfabric, due.max(now)).len() as u64;
            prop_assert!(more > 0, "it was due");
            sent += more;
        }
        prop_assert_eq!(sent, u64::from(given));
    }

    #[test]
    fn foreign_bytes_wait_or_are_dropped(frames in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..120), 1..32)) {
        let mut pfabric = pfabric("rate = \"1Gbit/s\"\npackets = 4\nframe_bytes = 64");
        let frames: Vec<_> = frames.into_iter().map(|mut frame| {
            if frame.len() > 34 {
                frame[12..15].copy_from_slice(&[8, 0, 0x45]);
                frame[24..26].fill(0);
            }
            frame
        }).collect();
        let (verdicts, left) = push(&mut pfabric, 0, &frames, START);
        let consumed = verdicts.iter().filter(|verdict| **verdict == Verdict::Consume).count();
        prop_assert_eq!(consumed, left.len() + pfabric.state.links[1].queue.len());
        let settled = |verdict: &Verdict| matches!(verdict, Verdict::Consume | Verdict::Drop(_));
        prop_assert!(verdicts.iter().all(settled));
    }
}

#[test]
fn a_reload_keeps_what_waits_in_a_queue_of_this_size() {
    let mut pfabric = pfabric("rate = \"100Mbit/s\"");
    busy(&mut pfabric);
    push(&mut pfabric, 0, &[frame(1, 5, 7, BYTES)], START);
    drop(pfabric.reload(Pfabric::compile("rate = \"1Gbit/s\"", &SETUP).unwrap()));
    assert_eq!(pfabric.summary().flows, 1);
    drop(pfabric.reload(Pfabric::compile("rate = \"1Gbit/s\"\npackets = 3", &SETUP).unwrap()));
    assert_eq!(
        (pfabric.summary().flows, pfabric.lost, pfabric.due()),
        (0, 1, None)
    );
    for (text, says) in [
        ("", "missing field `rate`"),
        ("rate = \"10kpps\"", "is no rate such as"),
        ("rate = \"1Gbit/s\"\npackets = 0", "packets: 0 packets"),
        (
            "rate = \"1Gbit/s\"\npackets = 65536\nframe_bytes = 16384",
            "packets * frame_bytes",
        ),
        ("rate = \"1Gbit/s\"\npriority = \"size\"", "line 2"),
    ] {
        let error = Pfabric::compile(text, &SETUP).unwrap_err().to_string();
        assert!(error.contains(says), "{text}: {error}");
    }
}
