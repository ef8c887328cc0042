//! Tests of packets through the function. `compared.rs` compares its rules with a simple model.

use std::net::{IpAddr, SocketAddr};

use packet::TcpFlags;
use packet::build::{self, Frame};
use proptest::prelude::*;

use super::*;
use crate::burst::Verdict;

const SETUP: Setup = Setup {
    instance: 1,
    ports: 2,
    seed: 7,
    external: None,
};
const TEXT: &str = "inside = [\"10.0.0.0/8\"]\nexternal = [\"192.0.2.1:1024-65535\"]\nlog = \"mappings\"\n";
const HOST: &str = "10.0.0.1:4000";
const OTHER_HOST: &str = "10.0.0.2:4000";
const REMOTE: &str = "198.51.100.1:53";

pub(super) fn end(text: &str) -> SocketAddrV4 {
    text.parse().unwrap()
}

fn nat(more: &str) -> Nat {
    let text = format!("{TEXT}{more}");
    Nat::new(Nat::compile(&text, &SETUP).unwrap(), &SETUP)
}

pub(super) fn udp(source: SocketAddrV4, destination: SocketAddrV4) -> Vec<u8> {
    let (source, destination) = (SocketAddr::V4(source), SocketAddr::V4(destination));
    Frame::udp(source, destination, b"what is said")
        .unwrap()
        .to_vec()
        .unwrap()
}

pub(super) fn tcp(source: SocketAddrV4, destination: SocketAddrV4, flags: u8) -> Vec<u8> {
    let (source, destination) = (SocketAddr::V4(source), SocketAddr::V4(destination));
    Frame::tcp(source, destination, TcpFlags(flags), b"")
        .unwrap()
        .to_vec()
        .unwrap()
}

fn icmp(source: &str, destination: IpAddr, kind: u8, word: [u8; 4], body: &[u8]) -> Vec<u8> {
    let source = source.parse().unwrap();
    Frame::icmp(source, destination, kind, 0, word, body)
        .unwrap()
        .to_vec()
        .unwrap()
}

/// What becomes of frames that come from a port in one burst: verdicts and frames, also of those that it makes.
pub(super) fn all(nat: &mut Nat, port: u8, frames: &[Vec<u8>], now_s: u64) -> Vec<(Verdict, Vec<u8>)> {
    let mut burst = Burst::new();
    burst.begin(port, 1 - port);
    for frame in frames {
        assert!(burst.push(frame));
    }
    nat.process(&mut burst, Nanos::from_secs(now_s));
    let mut results = Vec::new();
    let mut index = 0;
    while let Some(packet) = burst.packet(index) {
        results.push((packet.verdict(), packet.frame().to_vec()));
        index += 1;
    }
    results
}

pub(super) fn one(nat: &mut Nat, port: u8, frame: Vec<u8>) -> (Verdict, Vec<u8>) {
    let results = all(nat, port, &[frame], 1000);
    assert_eq!(results.len(), 1);
    results.into_iter().next().unwrap()
}

fn reason(nat: &mut Nat, port: u8, frame: Vec<u8>) -> &'static str {
    match one(nat, port, frame).0 {
        Verdict::Drop(reason) => REASONS[usize::from(reason.0)].name,
        other => panic!("{other:?}"),
    }
}

pub(super) fn metric(nat: &Nat, name: &str) -> u64 {
    let mut values = vec![0; METRICS.len()];
    nat.metrics(&mut values);
    values[METRICS.iter().position(|metric| metric.name == name).unwrap()]
}

/// The source of a packet that leaves.
pub(super) fn source_of(frame: &[u8]) -> SocketAddrV4 {
    let Parsed::Flow(info) = parse(frame) else {
        panic!()
    };
    match Subject::seen(info, frame, Part::Headed) {
        Seen::Subject(subject) => subject.source,
        other => panic!("{other:?}"),
    }
}

/// The external endpoint that a packet of the host gets.
pub(super) fn external(nat: &mut Nat, host: &str) -> SocketAddrV4 {
    let (verdict, frame) = one(nat, 0, udp(end(host), end(REMOTE)));
    assert_eq!(verdict, Verdict::Forward(1));
    source_of(&frame)
}

#[test]
fn a_packet_and_its_reply_are_as_their_receivers_expect_them() {
    let mut nat = nat("");
    let (host, remote) = (end(HOST), end(REMOTE));
    let outside = external(&mut nat, HOST);
    assert_eq!(*outside.ip(), end("192.0.2.1:1").ip().to_owned());
    let (_, sent) = one(&mut nat, 0, udp(host, remote));
    assert_eq!(sent, udp(outside, remote));
    let (verdict, back) = one(&mut nat, 1, udp(remote, outside));
    assert_eq!((verdict, back), (Verdict::Forward(0), udp(remote, host)));
    let (_, syn) = one(&mut nat, 0, tcp(host, remote, TcpFlags::SYN));
    let of_tcp = source_of(&syn);
    assert_eq!(syn, tcp(of_tcp, remote, TcpFlags::SYN));
    let (_, back) = one(&mut nat, 1, tcp(remote, of_tcp, TcpFlags::SYN | TcpFlags::ACK));
    assert_eq!(back, tcp(remote, host, TcpFlags::SYN | TcpFlags::ACK));
}

#[test]
fn an_echo_keeps_its_identifier_at_its_ends() {
    let mut nat = nat("");
    let remote = IpAddr::from([198, 51, 100, 1]);
    let (_, out) = one(
        &mut nat,
        0,
        icmp("10.0.0.1", remote, 8, [0x12, 0x34, 0, 1], b"ping"),
    );
    let outside = source_of(&out);
    let [high, low] = outside.port().to_be_bytes();
    assert_eq!(out, icmp("192.0.2.1", remote, 8, [high, low, 0, 1], b"ping"));
    let reply = icmp(
        "198.51.100.1",
        (*outside.ip()).into(),
        0,
        [high, low, 0, 1],
        b"ping",
    );
    let (verdict, back) = one(&mut nat, 1, reply);
    let expected = icmp(
        "198.51.100.1",
        [10, 0, 0, 1].into(),
        0,
        [0x12, 0x34, 0, 1],
        b"ping",
    );
    assert_eq!((verdict, back), (Verdict::Forward(0), expected));
}

#[test]
fn mapping_and_filtering_do_not_depend_on_the_remote_endpoint() {
    let mut nat = nat("");
    let outside = external(&mut nat, HOST);
    let stranger = end("203.0.113.77:7777");
    let (_, to_stranger) = one(&mut nat, 0, udp(end(HOST), stranger));
    assert_eq!(source_of(&to_stranger), outside);
    let other = end("203.0.113.78:7778");
    assert_eq!(one(&mut nat, 1, udp(other, outside)).1, udp(other, end(HOST)));
}

#[test]
fn a_host_reaches_another_ones_external_endpoint() {
    let mut nat = nat("");
    let (first, second) = (external(&mut nat, HOST), external(&mut nat, OTHER_HOST));
    let mut sent = udp(end(HOST), second);
    let (verdict, got) = one(&mut nat, 0, sent.clone());
    let mut expected = udp(first, end(OTHER_HOST));
    // Back to who sent it.
    expected[..6].copy_from_slice(&sent[6..12]);
    expected[6..12].copy_from_slice(&sent[..6]);
    assert_eq!((verdict, got), (Verdict::Answer, expected));
    assert_eq!(metric(&nat, "hairpinned"), 1);
    // The other one says that nobody listens; its error comes back translated.
    sent = udp(first, end(OTHER_HOST));
    let error = icmp("10.0.0.2", (*first.ip()).into(), 3, [0; 4], &sent[14..]);
    let (verdict, got) = one(&mut nat, 0, error);
    assert_eq!(verdict, Verdict::Answer);
    let quoted = udp(end(HOST), second);
    let expected = icmp("192.0.2.1", [10, 0, 0, 1].into(), 3, [0; 4], &quoted[14..]);
    assert_eq!(got[14..], expected[14..]);
    let nobody = SocketAddrV4::new(*second.ip(), second.port() ^ 1);
    assert_eq!(reason(&mut nat, 0, udp(end(HOST), nobody)), "no_mapping");
}

#[test]
fn errors_quote_what_their_receiver_sent() {
    let mut nat = nat("");
    let outside = external(&mut nat, HOST);
    let (host, remote) = (end(HOST), end(REMOTE));
    // From a router outside, about a packet that went out.
    let about = udp(outside, remote);
    let error = icmp("203.0.113.254", (*outside.ip()).into(), 11, [0; 4], &about[14..]);
    let (verdict, got) = one(&mut nat, 1, error);
    let expected = icmp(
        "203.0.113.254",
        (*host.ip()).into(),
        11,
        [0; 4],
        &udp(host, remote)[14..],
    );
    assert_eq!((verdict, got), (Verdict::Forward(0), expected));
    // From a router inside, about a packet that came in: it must not show its own address.
    let about = udp(remote, host);
    let error = icmp("10.9.9.9", (*remote.ip()).into(), 11, [0; 4], &about[14..]);
    let (verdict, got) = one(&mut nat, 0, error);
    let expected = icmp(
        "192.0.2.1",
        (*remote.ip()).into(),
        11,
        [0; 4],
        &udp(remote, outside)[14..],
    );
    assert_eq!((verdict, got), (Verdict::Forward(1), expected));
    // About no mapping, or to another address than that which has sent the quoted packet.
    let unknown = udp(SocketAddrV4::new(*outside.ip(), outside.port() ^ 1), remote);
    let error = icmp(
        "203.0.113.254",
        (*outside.ip()).into(),
        11,
        [0; 4],
        &unknown[14..],
    );
    assert_eq!(reason(&mut nat, 1, error), "unrelated");
    let about = udp(outside, remote);
    let error = icmp("203.0.113.254", [192, 0, 2, 99].into(), 11, [0; 4], &about[14..]);
    assert_eq!(reason(&mut nat, 1, error), "unrelated");
}

#[test]
fn fragments_in_any_order_are_those_of_the_translated_datagram() {
    let mut nat = nat("");
    let outside = external(&mut nat, HOST);
    let payload = vec![7; 4000];
    let fragments = |source: SocketAddrV4| {
        let frame = Frame::udp(source.into(), end(REMOTE).into(), &payload).unwrap();
        build::fragment(&frame.to_vec().unwrap(), 1280, 7).unwrap()
    };
    let (mut sent, mut expected) = (fragments(end(HOST)), fragments(outside));
    assert_eq!(sent.len(), 4);
    sent.rotate_left(1);
    let results = all(&mut nat, 0, &sent, 1000);
    let verdicts: Vec<_> = results.iter().map(|(verdict, _)| *verdict).collect();
    let (kept, left) = ([Verdict::Consume; 3], [Verdict::Forward(1); 4]);
    assert_eq!(verdicts, [&kept[..], &left].concat());
    let got: Vec<_> = results.into_iter().skip(3).map(|(_, frame)| frame).collect();
    assert_eq!(got, expected);
    // In order none has to wait.
    sent.rotate_right(1);
    for frame in sent.iter_mut().chain(&mut expected) {
        // Another identification, with its checksum.
        let Parsed::Fragment(_) = parse(frame) else {
            panic!()
        };
        frame[19] = 8;
        let sum = !packet::checksum::sum(&[&frame[14..24], &frame[26..34]].concat());
        frame[24..26].copy_from_slice(&sum.to_be_bytes());
    }
    let got: Vec<_> = all(&mut nat, 0, &sent, 1000)
        .into_iter()
        .map(|(_, frame)| frame)
        .collect();
    assert_eq!(got, expected);
    // One that waits in vain.
    sent[1][19] = 9;
    sent[1][24..26].copy_from_slice(&[0, 0]);
    assert_eq!(one(&mut nat, 0, sent[1].clone()).0, Verdict::Consume);
    assert_eq!(metric(&nat, "fragments_waiting"), 1);
    let due = nat.due().unwrap();
    assert!(due <= Nanos::from_secs(1000) + packet::WAITING_TIME);
    nat.tick(&mut Burst::new(), due);
    assert_eq!(
        (metric(&nat, "fragments_waiting"), metric(&nat, "fragments_lost")),
        (0, 1)
    );
}

#[test]
fn what_is_not_to_be_translated_is_dropped_with_its_reason_or_left_alone() {
    let mut nat = nat("");
    let outside = external(&mut nat, HOST);
    assert_eq!(reason(&mut nat, 1, udp(end(HOST), end(REMOTE))), "spoofed");
    assert_eq!(reason(&mut nat, 0, udp(end(REMOTE), outside)), "no_realm");
    assert_eq!(reason(&mut nat, 0, udp(end(HOST), end(OTHER_HOST))), "no_realm");
    assert_eq!(
        reason(&mut nat, 1, udp(end(REMOTE), end("203.0.113.1:1"))),
        "no_realm"
    );
    assert_eq!(
        reason(&mut nat, 1, tcp(end(REMOTE), outside, TcpFlags::SYN)),
        "no_mapping"
    );
    assert_eq!(
        reason(&mut nat, 0, tcp(end(HOST), end(REMOTE), TcpFlags::RST)),
        "no_mapping"
    );
    let stamp = icmp("10.0.0.1", [198, 51, 100, 1].into(), 13, [0; 4], b"");
    assert_eq!(reason(&mut nat, 0, stamp), "protocol");
    assert_eq!(
        reason(&mut nat, 0, udp(end(HOST), end(REMOTE))[..30].to_vec()),
        "malformed"
    );
    let v6: [SocketAddr; 2] = ["[2001:db8::1]:1", "[2001:db8::2]:2"].map(|end| end.parse().unwrap());
    let v6 = Frame::udp(v6[0], v6[1], b"").unwrap().to_vec().unwrap();
    assert_eq!(one(&mut nat, 0, v6.clone()), (Verdict::Forward(1), v6));
    let mut arp = vec![0; 60];
    arp[12..14].copy_from_slice(&[8, 6]);
    assert_eq!(one(&mut nat, 1, arp.clone()), (Verdict::Forward(0), arp));
    assert_eq!(metric(&nat, "passed"), 2);
}

#[test]
fn limits_hold_and_are_counted() {
    let mut of_host = nat("block_ports = 4\nblocks_per_host = 2\n");
    for port in 0..8 {
        external(&mut of_host, &format!("10.0.0.1:{}", 1000 + port));
    }
    assert_eq!(
        reason(&mut of_host, 0, udp(end("10.0.0.1:2000"), end(REMOTE))),
        "host_limit"
    );
    external(&mut of_host, "10.0.0.2:2000");
    assert_eq!(
        (metric(&of_host, "hosts"), metric(&of_host, "blocks_assigned")),
        (2, 3)
    );
    let mut of_table = nat("mappings_limit = 3\nlog_records_limit = 4\n");
    for host in 1..4 {
        external(&mut of_table, &format!("10.0.0.{host}:1000"));
    }
    assert_eq!(
        reason(&mut of_table, 0, udp(end("10.0.0.9:1"), end(REMOTE))),
        "mapping_limit"
    );
    // A block and a mapping each.
    assert_eq!(
        (
            metric(&of_table, "log_records_waiting"),
            metric(&of_table, "log_records_lost")
        ),
        (4, 2)
    );
    let records: Vec<String> = std::iter::from_fn(|| of_table.take_record())
        .map(|of| of.to_string())
        .collect();
    assert!(
        records[0].starts_with("1000.000 block 10.0.0.1 192.0.2.1:"),
        "{records:?}"
    );
    assert!(
        records[1].starts_with("1000.000 mapping udp 10.0.0.1:1000 192.0.2.1:"),
        "{records:?}"
    );
    let text = "inside = [\"10.0.0.0/8\"]\nexternal = [\"192.0.2.1:1024-1029\"]\nblock_ports = 6\n";
    let mut of_pool = Nat::new(Nat::compile(text, &SETUP).unwrap(), &SETUP);
    external(&mut of_pool, "10.0.0.1:1");
    assert_eq!(
        reason(&mut of_pool, 0, udp(end("10.0.0.2:1"), end(REMOTE))),
        "no_block"
    );
}

#[test]
fn records_have_the_time_of_the_wall_clock() {
    let mut nat = nat("");
    external(&mut nat, "10.0.0.1:1000");
    let mut line = String::new();
    let since_1970 = Nanos::from_secs(1_700_000_000);
    assert!(Function::record(&mut nat, since_1970, &mut line));
    assert!(
        line.starts_with("1700001000.000 block 10.0.0.1 192.0.2.1:"),
        "{line}"
    );
    line.clear();
    assert!(Function::record(&mut nat, since_1970, &mut line));
    assert!(
        line.starts_with("1700001000.000 mapping udp 10.0.0.1:1000 192.0.2.1:"),
        "{line}"
    );
    assert!(!Function::record(&mut nat, since_1970, &mut line));
}

#[test]
fn idle_mappings_end_and_their_ports_come_back() {
    let mut nat = nat("");
    for host in 0..200 {
        external(&mut nat, &format!("10.0.1.{host}:1000"));
    }
    assert_eq!((nat.summary().flows, metric(&nat, "hosts")), (200, 200));
    let mut ticks = 0;
    let mut now = Nanos::ZERO;
    while let Some(due) = nat.due() {
        now = now.max(due);
        nat.tick(&mut Burst::new(), now);
        ticks += 1;
        assert!(ticks < 400, "{now:?}");
    }
    assert!(
        now >= Nanos::from_secs(1300) && now <= Nanos::from_secs(1303),
        "{now:?}"
    );
    assert_eq!(
        (
            nat.summary().flows,
            metric(&nat, "hosts"),
            metric(&nat, "mappings_ended")
        ),
        (0, 0, 200)
    );
}

#[test]
fn a_host_reaches_an_external_endpoint_of_another_instance() {
    let range = |ports| format!("inside = [\"10.0.0.0/8\"]\nexternal = [\"192.0.2.1:{ports}\"]\n");
    let [mut first, mut second] = ["1024-33023", "33024-65535"]
        .map(|ports| Nat::new(Nat::compile(&range(ports), &SETUP).unwrap(), &SETUP));
    let of_second = external(&mut second, OTHER_HOST);
    let of_first = external(&mut first, HOST);
    let (verdict, between) = one(&mut first, 0, udp(end(HOST), of_second));
    assert_eq!(
        (verdict, &between),
        (Verdict::Forward(1), &udp(of_first, of_second))
    );
    let (verdict, got) = one(&mut second, 1, between);
    assert_eq!(
        (verdict, got),
        (Verdict::Forward(0), udp(of_first, end(OTHER_HOST)))
    );
}

fn reload(nat: &mut Nat, text: &str) {
    let configuration = Nat::compile(text, &SETUP).unwrap();
    drop(nat.reload(configuration));
}

#[test]
fn a_reload_keeps_the_mappings_whose_ports_stay() {
    let two = "inside = [\"10.0.0.0/8\"]\nexternal = [\"192.0.2.1:1024-2047\", \"192.0.2.2:1024-2047\"]\n";
    let mut nat = Nat::new(Nat::compile(two, &SETUP).unwrap(), &SETUP);
    let hosts: Vec<String> = (1..9).map(|host| format!("10.0.0.{host}:1000")).collect();
    let before: Vec<_> = hosts.iter().map(|host| external(&mut nat, host)).collect();
    reload(&mut nat, &format!("{two}udp_timeout_s = 5\n"));
    let after: Vec<_> = hosts.iter().map(|host| external(&mut nat, host)).collect();
    assert_eq!(before, after);
    all(&mut nat, 0, &[], 1005);
    assert_eq!(nat.summary().flows, 8);
    reload(
        &mut nat,
        "inside = [\"10.0.0.0/8\"]\nexternal = [\"192.0.2.2:1024-4000\"]\nblock_ports = 7\n",
    );
    assert_eq!((nat.summary().flows, metric(&nat, "mappings_withdrawn")), (4, 4));
    for (host, before) in hosts
        .iter()
        .zip(before)
        .filter(|(_, of)| of.ip().octets()[3] == 2)
    {
        assert_eq!(external(&mut nat, host), before);
    }
    let (begun, ended, withdrawn) = (
        metric(&nat, "mappings_begun"),
        metric(&nat, "mappings_ended"),
        metric(&nat, "mappings_withdrawn"),
    );
    assert_eq!(begun, ended + withdrawn + nat.summary().flows);
    let assigned = std::iter::from_fn(|| nat.take_record()).fold(0, |sum, record| match record.event {
        Event::Block { assigned: true, .. } => sum + 1,
        Event::Block { assigned: false, .. } => sum - 1,
        Event::Mapping { .. } => sum,
    });
    assert_eq!(assigned, metric(&nat, "blocks_assigned") as i64);
}

#[test]
fn a_shorter_timeout_holds_for_what_is_there() {
    let mut nat = nat("");
    external(&mut nat, HOST);
    reload(&mut nat, &format!("{TEXT}udp_timeout_s = 5\n"));
    all(&mut nat, 0, &[], 1007);
    assert_eq!(nat.summary().flows, 0);
}

proptest! {
    /// Frames of all sorts, whole, cut and with changed bytes: each gets a verdict, and tables stay within their limits.
    #[test]
    fn hostile_frames_are_dropped_or_translated(
        frames in prop::collection::vec(
            (0..6_usize, prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4), any::<u16>(), 0..200_usize),
            1..32,
        ),
        port in 0..2_u8,
    ) {
        let mut nat = nat("mappings_limit = 8\nlog_records_limit = 4\n");
        let outside = external(&mut nat, HOST);
        let (host, remote) = (end(HOST), end(REMOTE));
        let payload = vec![1; 3000];
        let long = Frame::udp(host.into(), remote.into(), &payload).unwrap().to_vec().unwrap();
        let frames: Vec<Vec<u8>> = frames.into_iter().map(|(kind, changes, number, cut)| {
            let mut frame = match kind {
                0 => udp(SocketAddrV4::new(*host.ip(), number), remote),
                1 => tcp(SocketAddrV4::new(*host.ip(), number), remote, number as u8),
                2 => udp(remote, outside),
                3 => icmp("203.0.113.9", (*outside.ip()).into(), 3, [0; 4], &udp(outside, remote)[14..]),
                4 => build::fragment(&long, 1280, number.into()).unwrap().swap_remove(usize::from(number % 3)),
                _ => icmp("10.0.0.1", (*remote.ip()).into(), 8, [1, 2, 3, 4], b"ping"),
            };
            for (at, to) in changes {
                let at = at.index(frame.len());
                frame[at] = to;
                // Let it pass the check of the header's sum.
                if at < 34 && frame.len() > 26 {
                    frame[24..26].copy_from_slice(&[0, 0]);
                }
            }
            if cut < frame.len() && number % 3 == 0 {
                frame.truncate(cut.max(1));
            }
            frame
        }).collect();
        let lengths: Vec<usize> = frames.iter().map(Vec::len).collect();
        for (at, (_, frame)) in all(&mut nat, port, &frames, 1000).iter().enumerate() {
            prop_assert!(lengths.get(at).is_none_or(|len| *len == frame.len()));
        }
        prop_assert!(nat.summary().flows <= 8);
        prop_assert!(metric(&nat, "log_records_waiting") <= 4);
    }
}
