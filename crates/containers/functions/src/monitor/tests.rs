use std::collections::HashMap;
use std::net::SocketAddr;

use packet::build::{self, Frame};
use proptest::prelude::*;

use super::ipfix::collector::Collector;
use super::*;

const SETUP: Setup = Setup {
    instance: 1,
    ports: 2,
    seed: 7,
    external: None,
};
const EXPORT: &str = "[export]\ncollector = \"192.0.2.9:4739\"\nsource = \"192.0.2.1:4739\"\nport = 1\n\
                      collector_mac = \"02:00:00:00:00:01\"\nsource_mac = \"02:00:00:00:00:02\"\n";

fn monitor(text: &str) -> Monitor {
    Monitor::new(Monitor::compile(text, &SETUP).unwrap(), &SETUP)
}

fn frame(host: u8, bytes: usize) -> Vec<u8> {
    let source = SocketAddr::from(([10, 0, 0, host], 1000));
    let destination = SocketAddr::from(([192, 0, 2, 1], 53));
    Frame::udp(source, destination, &vec![0; bytes])
        .unwrap()
        .to_vec()
        .unwrap()
}

fn id(host: u8) -> FlowId {
    FlowId {
        source: [10, 0, 0, host].into(),
        destination: [192, 0, 2, 1].into(),
        source_port: 1000,
        destination_port: 53,
        protocol: 17,
        vlan: 0,
    }
}

fn count(monitor: &mut Monitor, frames: &[Vec<u8>], now: Nanos) {
    for frames in frames.chunks(RECEIVED_LIMIT) {
        let mut burst = Burst::new();
        burst.begin(0, 1);
        for frame in frames {
            assert!(burst.push(frame));
        }
        monitor.process(&mut burst, now);
        for (packet, frame) in burst.packets().zip(frames) {
            assert_eq!(
                (packet.verdict(), packet.frame()),
                (Verdict::Forward(1), &frame[..])
            );
        }
    }
}

/// Lets time pass until then, and gives the collector what is sent.
fn pass(monitor: &mut Monitor, until: Nanos, collector: &mut Collector) {
    while let Some(due) = monitor.due().filter(|due| *due <= until) {
        let mut burst = Burst::new();
        burst.begin(0, 1);
        monitor.tick(&mut burst, due);
        let mut index = 0;
        while let Some(packet) = burst.packet(index) {
            assert_eq!(packet.verdict(), Verdict::Forward(1));
            let frame = packet.frame();
            let Parsed::Flow(info) = parse(frame) else {
                panic!()
            };
            assert_eq!(&frame[..12], &[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2]);
            let sum = packet::checksum::pseudo_v4([192, 0, 2, 1], [192, 0, 2, 9], 17, frame.len() - 34);
            assert_eq!(
                packet::checksum::add(sum, packet::checksum::sum(&frame[34..])),
                0xffff
            );
            collector.take(&frame[usize::from(info.l4_offset) + 8..]);
            index += 1;
        }
    }
}

#[test]
fn a_collector_learns_of_each_flow_what_was_counted() {
    let mut monitor = monitor(EXPORT);
    let mut collector = Collector::default();
    let start = Nanos::from_secs(100);
    for round in 0..3 {
        let frames: Vec<_> = (1..=200).map(|host| frame(host, host.into())).collect();
        count(&mut monitor, &frames, start + Nanos::from_secs(round));
    }
    assert_eq!(monitor.summary().flows, 200);
    pass(&mut monitor, start + Nanos::from_secs(16), &mut collector);
    assert!(collector.records.is_empty(), "no flow is idle for 15 s");
    pass(&mut monitor, start + Nanos::from_secs(19), &mut collector);
    assert_eq!(
        (collector.records.len(), monitor.summary().flows, monitor.due()),
        (200, 0, None)
    );
    let mut hosts = Vec::new();
    for record in &collector.records {
        let host = record[&8] - 0x0a00_0000;
        assert_eq!((record[&2], record[&1]), (3, 3 * (host + 28)));
        assert_eq!((record[&152], record[&153], record[&136]), (100_000, 102_000, 1));
        hosts.push(host);
    }
    hosts.sort_unstable();
    assert_eq!(hosts, (1..=200).collect::<Vec<_>>());
    // A later flow finds a collector that knows the templates; after a minute it gets them anew.
    count(&mut monitor, &[frame(9, 9)], start + Nanos::from_secs(200));
    pass(&mut monitor, start + Nanos::from_secs(220), &mut collector);
    assert_eq!(
        (collector.records.len(), monitor.messages),
        (201, collector.messages.into())
    );
}

#[test]
fn a_flow_that_goes_on_is_exported_again_and_one_that_ends_at_once() {
    let mut monitor = monitor(EXPORT);
    let mut collector = Collector::default();
    for second in 0..130 {
        count(&mut monitor, &[frame(1, 72)], Nanos::from_secs(1000 + second));
        pass(&mut monitor, Nanos::from_secs(1000 + second), &mut collector);
    }
    let reasons: Vec<_> = collector.records.iter().map(|record| record[&136]).collect();
    assert_eq!(reasons, [2, 2]);
    let ends = SocketAddr::from(([10, 0, 0, 1], 1));
    let fin = Frame::tcp(ends, ([10, 0, 0, 2], 2).into(), TcpFlags(TcpFlags::FIN), b"")
        .unwrap()
        .to_vec()
        .unwrap();
    count(&mut monitor, &[fin], Nanos::from_secs(1130));
    pass(&mut monitor, Nanos::from_secs(1132), &mut collector);
    assert_eq!(
        collector
            .records
            .last()
            .map(|record| (record[&136], record[&4], record[&6])),
        Some((3, 6, 1))
    );
    pass(&mut monitor, Nanos::from_secs(1200), &mut collector);
    let packets: u128 = collector.records.iter().map(|record| record[&2]).sum();
    assert_eq!(packets, 131);
}

#[test]
fn heavy_flows_are_found_among_many() {
    let mut monitor = monitor("heavy_limit = 16\nflows_limit = 10\n");
    let mut exact: HashMap<u8, u64> = HashMap::new();
    for round in 0..200_u64 {
        let hosts = [250, 251, 252, (round % 240) as u8, (round * 7 % 240) as u8];
        for (weight, host) in hosts.into_iter().enumerate() {
            let bytes = if host >= 250 { 1000 - weight * 200 } else { 10 };
            *exact.entry(host).or_default() += bytes as u64 + 28;
            count(&mut monitor, &[frame(host, bytes)], Nanos::from_secs(1));
        }
    }
    let heaviest = monitor.heaviest(3);
    assert_eq!(
        heaviest.iter().map(|of| of.id).collect::<Vec<_>>(),
        [250, 251, 252].map(id)
    );
    for (of, host) in heaviest.iter().zip(250..) {
        assert!(of.bytes - of.error <= exact[&host] && exact[&host] <= of.bytes);
        assert!(monitor.bytes(&id(host)) >= exact[&host]);
    }
    let mut values = [0; METRICS.len()];
    monitor.metrics(&mut values);
    assert_eq!((values[0], values[1]), (1000, exact.values().sum()));
    assert!(values[5] > 0, "new flows beyond flows_limit are counted");
    assert_eq!(monitor.summary().flows, 10);
}

#[test]
fn fragments_errors_and_others_are_counted_as_what_they_are() {
    let mut monitor = monitor("");
    let fragments = build::fragment(&frame(1, 4000), 1280, 7).unwrap();
    count(&mut monitor, &fragments, Nanos::ZERO);
    let later = FlowId {
        source_port: 0,
        destination_port: 0,
        ..id(1)
    };
    assert_eq!(monitor.bytes(&id(1)), 1276);
    assert_eq!(monitor.bytes(&later), 4008 + 4 * 20 - 1276);
    let quoted = frame(1, 10);
    let error = Frame::icmp(
        [203, 0, 113, 1].into(),
        [10, 0, 0, 1].into(),
        3,
        3,
        [0; 4],
        &quoted[14..],
    )
    .unwrap();
    count(&mut monitor, &[error.to_vec().unwrap(), vec![0; 60]], Nanos::ZERO);
    let of_router = FlowId {
        source: [203, 0, 113, 1].into(),
        destination: [10, 0, 0, 1].into(),
        protocol: 1,
        ..later
    };
    assert_eq!(monitor.bytes(&of_router), 20 + 8 + 38);
    assert_eq!((monitor.packets, monitor.other), (5, 1));
}

#[test]
fn a_reload_keeps_counts_and_the_sequence_of_messages() {
    let mut monitor = monitor(EXPORT);
    let mut collector = Collector::default();
    count(&mut monitor, &[frame(1, 10), frame(2, 10)], Nanos::from_secs(1));
    pass(&mut monitor, Nanos::from_secs(18), &mut collector);
    count(&mut monitor, &[frame(3, 10)], Nanos::from_secs(20));
    drop(monitor.reload(Monitor::compile(&format!("idle_timeout_s = 1\n{EXPORT}"), &SETUP).unwrap()));
    pass(&mut monitor, Nanos::from_secs(23), &mut collector);
    assert_eq!(collector.records.len(), 3);
    assert_eq!(monitor.bytes(&id(1)), 38);
    drop(monitor.reload(Monitor::compile("sketch_width = 4", &SETUP).unwrap()));
    assert_eq!((monitor.bytes(&id(1)), monitor.heaviest(9).len()), (0, 3));
}

proptest! {
    #[test]
    fn foreign_bytes_are_passed_on(frames in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..120), 1..32)) {
        let mut monitor = monitor("flows_limit = 4\nheavy_limit = 4\nsketch_width = 4\n");
        let frames: Vec<_> = frames.into_iter().enumerate().map(|(at, mut frame)| {
            if frame.len() > 14 {
                let kind = if at % 2 == 0 { [8, 0] } else { [0x86, 0xdd] };
                frame[12..14].copy_from_slice(&kind);
                frame[14] = if at % 2 == 0 { 0x45 } else { 0x60 };
            }
            frame
        }).collect();
        count(&mut monitor, &frames, Nanos::from_secs(1));
        prop_assert_eq!(monitor.packets + monitor.other, frames.len() as u64);
        prop_assert!(monitor.summary().flows <= 4 && monitor.heaviest(9).len() <= 4);
    }
}
