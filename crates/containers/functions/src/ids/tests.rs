//! Rules against payloads, streams and captures.

use std::net::SocketAddr;

use packet::TcpFlags;
use packet::build::{Frame, Network, Tag, Transport};
use packet::capture::CaptureReader;
use proptest::prelude::*;

use super::matcher::{self, Buffer, Found};
use super::rule::{Content, Part};
use super::*;
use crate::burst::Verdict;

const SETUP: Setup = Setup {
    instance: 1,
    ports: 2,
    seed: 3,
    external: None,
};

fn make(rules: &str) -> Ids {
    make_with("flows = 16", rules)
}

fn make_with(keys: &str, rules: &str) -> Ids {
    let text =
        format!("{keys}\nrules = '''\n{rules}\n'''\n[variables]\nHOME = \"[10.0.0.0/8,!10.9.0.0/16]\"\n");
    Ids::new(Ids::compile(&text, &SETUP).unwrap(), &SETUP)
}

fn error(rules: &str) -> String {
    Ids::compile(&format!("rules = '''\n{rules}\n'''"), &SETUP)
        .unwrap_err()
        .to_string()
}

/// Gives it a frame; whether the frame goes on.
fn give(ids: &mut Ids, frame: &[u8]) -> bool {
    give_at(ids, frame, Nanos::ZERO)
}

fn give_at(ids: &mut Ids, frame: &[u8], now: Nanos) -> bool {
    thread_local! {
        static BURST: std::cell::RefCell<Burst> = std::cell::RefCell::new(Burst::new());
    }
    BURST.with_borrow_mut(|burst| {
        burst.begin(0, 1);
        assert!(burst.push(frame));
        ids.process(burst, now);
        burst.packet(0).unwrap().verdict() == Verdict::Forward(1)
    })
}

fn sids(ids: &mut Ids) -> Vec<u32> {
    std::iter::from_fn(|| ids.next_alert())
        .map(|alert| alert.sid())
        .collect()
}

fn value(of: &Ids, name: &str) -> u64 {
    let mut values = vec![0; METRICS.len()];
    of.metrics(&mut values);
    values[METRICS.iter().position(|metric| metric.name == name).unwrap()]
}

fn ends() -> [SocketAddr; 2] {
    ["10.0.0.1:1234".parse().unwrap(), "192.0.2.7:80".parse().unwrap()]
}

fn udp(payload: &[u8]) -> Vec<u8> {
    let [src, dst] = ends();
    Frame::udp(src, dst, payload).unwrap().to_vec().unwrap()
}

/// A segment of the client, or of the server.
fn tcp(of_client: bool, sequence: u32, flags: u8, payload: &[u8]) -> Vec<u8> {
    let [client, server] = ends();
    let (src, dst) = if of_client {
        (client, server)
    } else {
        (server, client)
    };
    let network = Network::between(src.ip(), dst.ip()).unwrap();
    let transport = Transport::Tcp {
        src_port: src.port(),
        dst_port: dst.port(),
        sequence,
        acknowledgement: 1,
        flags: TcpFlags(flags),
        options: &[],
    };
    Frame::new(network, transport, payload).to_vec().unwrap()
}

/// A connection whose next bytes have the sequence numbers 101 and 501.
fn connect(ids: &mut Ids) {
    give(ids, &tcp(true, 100, TcpFlags::SYN, b""));
    give(ids, &tcp(false, 500, TcpFlags::SYN | TcpFlags::ACK, b""));
    give(ids, &tcp(true, 101, TcpFlags::ACK, b""));
}

/// The sids of rules that a payload in one UDP packet matches.
fn found(options: &str, payload: &[u8]) -> bool {
    let mut ids = make(&format!("alert udp any any -> any any ({options}; sid:1;)"));
    give(&mut ids, &udp(payload));
    !sids(&mut ids).is_empty()
}

#[test]
fn contents_are_where_their_modifiers_say() {
    for (options, payload, expected) in [
        ("content:\"abc\"", "xxabcxx", true),
        ("content:\"abc\"", "xxABCxx", false),
        ("content:\"aBc\"; nocase", "xxAbCxx", true),
        ("content:!\"abc\"", "xxabcxx", false),
        ("content:!\"abc\"", "xxabxx", true),
        ("content:\"a|62 63|\"", "abc", true),
        ("content:\"a\\\"b\\;c\"", "a\"b;c", true),
        ("content:\"abc\"; offset:2", "xxabc", true),
        ("content:\"abc\"; offset:3", "xxabc", false),
        ("content:\"abc\"; depth:5", "xxabc", true),
        ("content:\"abc\"; depth:4", "xxabc", false),
        ("content:\"abc\"; offset:2; depth:3", "xxabc", true),
        ("content:\"abc\"; startswith", "abcx", true),
        ("content:\"abc\"; startswith", "xabc", false),
        ("content:\"abc\"; endswith", "abcabc", true),
        ("content:\"abc\"; endswith", "abcx", false),
        ("content:\"a\"; content:\"b\"; distance:0", "ba", false),
        ("content:\"a\"; content:\"b\"; distance:1", "ab", false),
        ("content:\"a\"; content:\"b\"; distance:1", "abb", true),
        ("content:\"a\"; content:\"b\"; within:2", "axb", true),
        ("content:\"a\"; content:\"b\"; within:2", "axxb", false),
        ("content:\"a\"; content:\"b\"; distance:-2; within:2", "ba", true),
        // The first a is too far away, the second is not.
        ("content:\"a\"; content:\"b\"; within:1", "axab", true),
        ("content:\"a\"; content:!\"b\"; within:1", "ab", false),
        ("content:\"a\"; content:!\"b\"; within:1", "abac", true),
        ("pcre:\"/a[0-9]+b/\"", "xa123b", true),
        ("pcre:\"/a[0-9]+b/\"", "xA123B", false),
        ("pcre:\"/a[0-9]+b/i\"", "xA123B", true),
        ("content:\"x\"; pcre:\"/^a/R\"", "xa", true),
        ("content:\"x\"; pcre:\"/^a/R\"", "axb", false),
        ("pcre:!\"/a/\"", "b", true),
        ("pcre:\"/\\/a\\;/\"", "/a;", true),
        ("dsize:3", "abc", true),
        ("dsize:>3", "abc", false),
        ("dsize:1<>4", "abc", true),
        ("dsize:<3", "abc", false),
    ] {
        assert_eq!(
            found(options, payload.as_bytes()),
            expected,
            "{options} in {payload}"
        );
    }
}

/// Whether contents fit, by trying all places of all of them.
fn naive(contents: &[Content], payload: &[u8], cursor: usize) -> bool {
    let Some((of, rest)) = contents.split_first() else {
        return true;
    };
    let same = |at: usize| {
        let bytes = &payload[at..at + of.bytes.len()];
        if of.any_case {
            bytes.eq_ignore_ascii_case(&of.bytes)
        } else {
            bytes == of.bytes
        }
    };
    let fits = |at: usize| {
        let (at, end) = (at as i64, (at + of.bytes.len()) as i64);
        let cursor = cursor as i64;
        if of.is_relative() {
            let start = cursor + of.distance.unwrap_or(0);
            at >= start && of.within.is_none_or(|within| end <= start + within as i64)
        } else {
            let start = of.offset.unwrap_or(0) as i64;
            at >= start && of.depth.is_none_or(|depth| end <= start + depth as i64)
        }
    };
    let mut places =
        (0..(payload.len() + 1).saturating_sub(of.bytes.len())).filter(|at| same(*at) && fits(*at));
    if of.is_negated {
        return places.next().is_none() && naive(rest, payload, cursor);
    }
    places.any(|at| naive(rest, payload, at + of.bytes.len()))
}

fn contents() -> impl Strategy<Value = Vec<Content>> {
    let bytes = proptest::collection::vec(prop_oneof![Just(b'a'), Just(b'b'), Just(b'A')], 1..4);
    let part = (
        bytes,
        any::<[bool; 6]>(),
        0_usize..8,
        0_usize..8,
        -4_i64..6,
        0_usize..8,
    );
    let part = part.prop_map(
        |(
            mut bytes,
            [is_negated, any_case, relative, start, most, negate_too],
            offset,
            depth,
            distance,
            within,
        )| {
            if any_case {
                bytes.make_ascii_lowercase();
            }
            let len = bytes.len();
            Content {
                bytes,
                is_negated: is_negated && negate_too,
                any_case,
                offset: (!relative && start).then_some(offset),
                depth: (!relative && most).then_some(depth + len),
                distance: (relative && start).then_some(distance),
                within: (relative && most).then_some(within + len),
                at_end: false,
                is_fast_pattern: false,
            }
        },
    );
    proptest::collection::vec(part, 1..5)
}

/// Contents as options of a rule.
fn written(contents: &[Content]) -> String {
    let mut text = String::new();
    for of in contents {
        let not = if of.is_negated { "!" } else { "" };
        text += &format!("content:{not}\"{}\";", String::from_utf8_lossy(&of.bytes));
        let number =
            |name: &str, value: Option<i64>| value.map_or(String::new(), |value| format!("{name}:{value};"));
        text += if of.any_case { "nocase;" } else { "" };
        text += &number("offset", of.offset.map(|of| of as i64));
        text += &number("depth", of.depth.map(|of| of as i64));
        text += &number("distance", of.distance);
        text += &number("within", of.within.map(|of| of as i64));
    }
    text
}

fn payloads() -> impl Strategy<Value = Vec<u8>> {
    proptest::collection::vec(
        prop_oneof![Just(b'a'), Just(b'b'), Just(b'A'), Just(b'B'), Just(b'x')],
        0..30,
    )
}

proptest! {
    #[test]
    fn a_rule_matches_as_all_places_say(contents in contents(), payload in payloads()) {
        let parts: Vec<Part> = contents.iter().cloned().map(Part::Content).collect();
        let expected = naive(&contents, &payload, 0);
        prop_assert_eq!(matcher::matches(&parts, Buffer::whole(&payload)) == Found::Yes, expected);
    }

    /// From the text of rules to records, with many rules at once.
    #[test]
    fn each_rule_is_found_by_itself(
        rules in proptest::collection::vec(contents(), 1..12), payload in payloads(), reload: bool,
    ) {
        let text: String = (1..).zip(&rules).map(|(sid, contents)| {
            format!("alert udp any any -> any any (msg:\"m\"; {} sid:{sid};)\n", written(contents))
        }).collect();
        let mut ids = make(&text);
        if reload {
            let old = ids.reload(Ids::compile(&format!("rules = '''{text}'''"), &SETUP).unwrap());
            prop_assert_eq!(old.rules.len(), rules.len());
        }
        give(&mut ids, &udp(&payload));
        let expected: Vec<u32> =
            (1..).zip(&rules).filter(|(_, contents)| naive(contents, &payload, 0)).map(|(sid, _)| sid).collect();
        prop_assert_eq!(sids(&mut ids), expected);
    }

    /// Whatever the segments, their order and their repetition.
    #[test]
    fn a_stream_matches_as_a_whole(
        rules in proptest::collection::vec(contents(), 1..6), payload in payloads(),
        cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..6),
        order in proptest::collection::vec(any::<prop::sample::Index>(), 0..12),
    ) {
        // What is absent now may come later.
        let rules: Vec<Vec<Content>> = rules.into_iter().map(|contents| {
            contents.into_iter().map(|of| Content { is_negated: false, ..of }).collect()
        }).collect();
        let text: String = (1..).zip(&rules).map(|(sid, contents)| {
            format!("alert tcp any any -> any 80 (flow:established,to_server; {} sid:{sid};)\n", written(contents))
        }).collect();
        let mut ids = make(&text);
        connect(&mut ids);
        let mut cuts: Vec<usize> = cuts.iter().map(|at| at.index(payload.len() + 1)).collect();
        cuts.extend([0, payload.len()]);
        cuts.sort_unstable();
        let mut segments: Vec<(usize, usize)> = cuts.windows(2).map(|pair| (pair[0], pair[1])).collect();
        for at in &order {
            let from = at.index(segments.len());
            let segment = segments[from];
            segments.push(segment);
            segments.swap(0, from);
        }
        for (from, to) in segments {
            prop_assert!(give(&mut ids, &tcp(true, 101 + from as u32, TcpFlags::ACK, &payload[from..to])));
        }
        let mut found = sids(&mut ids);
        found.sort_unstable();
        found.dedup();
        let expected: Vec<u32> =
            (1..).zip(&rules).filter(|(_, contents)| naive(contents, &payload, 0)).map(|(sid, _)| sid).collect();
        prop_assert_eq!(found, expected);
    }

    #[test]
    fn no_frame_panics(mut frame in payloads().prop_map(|payload| tcp(true, 7, TcpFlags::ACK, &payload)), changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..8), len: prop::sample::Index) {
        let mut ids = make_with("verify_checksums = false", "alert ip any any -> any any (content:\"a\"; sid:1;)");
        for (at, value) in changes {
            let at = at.index(frame.len());
            frame[at] = value;
        }
        frame.truncate(len.index(frame.len()) + 1);
        give(&mut ids, &frame);
    }

    #[test]
    fn no_text_panics(text in "[a-z:;!\"|\\[\\]$ ()\\\\/,<>0-9-]{0,80}", value in "[a-z:;!\"|$ \\\\/,<>0-9-]{0,20}", name in 0..12_usize) {
        let names = ["content", "pcre", "flow", "flowbits", "threshold", "dsize", "msg", "sid", "depth", "within", "nocase", "metadata"];
        let _ = Configuration::read(&format!("rules = '''{text}'''"));
        let _ = Configuration::read(&format!("rules = '''alert tcp any any -> any any (content:\"x\"; {}:{value}; sid:1;)'''", names[name]));
    }
}

#[test]
fn headers_and_directions() {
    let rules = "alert udp $HOME any -> any 80 (sid:1;)\n\
                 alert udp !10.0.0.0/8 any -> any any (sid:2;)\n\
                 alert udp any any <> any 1234 (sid:3;)\n\
                 alert udp 192.0.2.0/24 [80,443] -> any [1000:2000,!1500] (sid:4;)\n\
                 alert ip any any -> 192.0.2.7 any (sid:5;)\n\
                 alert tcp any any -> any any (sid:6;)\n";
    let mut ids = make(rules);
    give(&mut ids, &udp(b"x"));
    assert_eq!(sids(&mut ids), [1, 3, 5]);
    let [client, server] = ends();
    let mut answer = Frame::udp(server, client, b"x").unwrap();
    let tags = [Tag::vlan(5)];
    answer.tags = &tags;
    give(&mut ids, &answer.to_vec().unwrap());
    assert_eq!(sids(&mut ids), [2, 3, 4]);
}

#[test]
fn flows_marks_and_drops() {
    let rules = "alert tcp any any -> any 80 (flow:established,to_server; content:\"login\"; flowbits:set,in; flowbits:noalert; sid:1;)\n\
                 drop tcp any 80 -> any any (flow:to_client; flowbits:isset,in; content:\"secret\"; sid:2;)\n\
                 alert tcp any any -> any 80 (flow:not_established; dsize:0; sid:3;)\n\
                 pass tcp any any -> any 80 (content:\"trusted\"; sid:4;)\n";
    let mut ids = make(rules);
    connect(&mut ids);
    assert_eq!(sids(&mut ids), [3]);
    assert!(give(&mut ids, &tcp(false, 501, TcpFlags::ACK, b"secret")));
    assert!(give(&mut ids, &tcp(true, 101, TcpFlags::ACK, b"log")));
    assert!(give(&mut ids, &tcp(true, 104, TcpFlags::ACK, b"in")));
    assert!(give(&mut ids, &tcp(false, 507, TcpFlags::ACK, b"sec")));
    assert!(sids(&mut ids).is_empty());
    assert!(!give(&mut ids, &tcp(false, 510, TcpFlags::ACK, b"ret")));
    // The rest of the flow is dropped, too.
    assert!(!give(&mut ids, &tcp(true, 106, TcpFlags::ACK, b"x")));
    let mut line = String::new();
    let since_1970 = Nanos::from_secs(1_700_000_000);
    assert!(Function::record(&mut ids, since_1970, &mut line));
    let record: serde_json::Value = serde_json::from_str(&line).unwrap();
    assert!(!Function::record(&mut ids, since_1970, &mut line));
    assert_eq!(record["alert"]["action"], "blocked");
    assert_eq!(record["alert"]["signature_id"], 2);
    assert_eq!(
        (&record["src_port"], &record["proto"]),
        (&80.into(), &"TCP".into())
    );
    assert_eq!(record["timestamp"], "2023-11-14T22:13:20.000000+0000");

    let mut ids = make(rules);
    connect(&mut ids);
    give(&mut ids, &tcp(true, 101, TcpFlags::ACK, b"trusted login"));
    give(&mut ids, &tcp(false, 501, TcpFlags::ACK, b"secret"));
    assert_eq!(sids(&mut ids), [3]);
    assert_eq!(value(&ids, "passed"), 1);
}

#[test]
fn thresholds_hold_records_back() {
    let rule = |kind: &str| {
        format!(
            "alert udp any any -> any any (content:\"x\"; threshold:type {kind}, track by_src, count 3, seconds 10; sid:1;)"
        )
    };
    for (kind, expected) in [("limit", 6), ("threshold", 4), ("both", 2)] {
        let mut ids = make(&rule(kind));
        for second in [1, 20] {
            for _ in 0..7 {
                give_at(&mut ids, &udp(b"x"), Nanos::from_secs(second));
            }
        }
        assert_eq!(sids(&mut ids).len(), expected, "{kind}");
        assert_eq!(value(&ids, "matches"), 14);
        assert_eq!(value(&ids, "alerts_suppressed"), 14 - expected as u64);
    }
}

#[test]
fn state_is_bounded_under_a_flood() {
    let mut ids = make_with(
        "flows = 100\nmemory_mib = 1",
        "alert tcp any any -> any any (content:\"attack\"; sid:1;)",
    );
    let network = Network::between("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap()).unwrap();
    for port in 0..1000 {
        for sequence in [0, 3000, 9000] {
            let transport = Transport::Tcp {
                src_port: port,
                dst_port: 80,
                sequence,
                acknowledgement: 0,
                flags: TcpFlags(TcpFlags::ACK),
                options: &[],
            };
            let payload = [vec![b'.'; 1400], b"attack".to_vec()].concat();
            give(
                &mut ids,
                &Frame::new(network, transport, &payload).to_vec().unwrap(),
            );
        }
    }
    assert_eq!(ids.summary().flows, 100);
    assert!(value(&ids, "stream_bytes") <= 1 << 20);
    assert_eq!(value(&ids, "flows_over_limit"), 2700);
    // What has no state is inspected by itself.
    assert!(sids(&mut ids).len() >= 2700);
    let mut burst = Burst::new();
    for _ in 0..10 {
        ids.tick(&mut burst, Nanos::from_secs(61));
    }
    assert_eq!((ids.summary().flows, value(&ids, "stream_bytes")), (0, 0));
}

#[test]
fn segments_that_no_receiver_takes_are_not_inspected() {
    let rules = "alert tcp any any -> any any (content:\"attack\"; sid:1;)";
    let mut ids = make(rules);
    connect(&mut ids);
    // It would otherwise stand in the place of what the receiver takes.
    let mut decoy = tcp(true, 101, TcpFlags::ACK, b"xxxxxx");
    let last = decoy.len() - 1;
    decoy[last] ^= 1;
    give(&mut ids, &decoy);
    give(&mut ids, &tcp(true, 101, TcpFlags::ACK, b"attack"));
    assert_eq!(sids(&mut ids), [1]);
    assert_eq!(value(&ids, "bad_checksums"), 1);
}

#[test]
fn repetitive_payloads_cost_a_bounded_time() {
    let mut ids = make(
        "alert udp any any -> any any (content:\"a\"; content:\"a\"; distance:0; content:\"a\"; distance:0; content:\"b\"; distance:0; sid:1;)",
    );
    give(&mut ids, &udp(&[b'a'; 1400]));
    assert_eq!((value(&ids, "places_over_limit"), value(&ids, "matches")), (1, 0));
}

#[test]
fn what_is_not_in_the_subset_is_an_error() {
    for (rule, expected) in [
        (
            "alert tcp any any -> any any (content:\"a\"; http_uri; sid:1;)",
            "rules, line 1: http_uri: not in the subset",
        ),
        (
            "\nalert http any any -> any any (sid:1;)",
            "rules, line 2: there is no protocol \"http\"",
        ),
        ("alert tcp any any -> any any (content:\"a\";)", "sid is missing"),
        ("alert tcp any any -> any (sid:1;)", "seven words"),
        (
            "alert tcp $HOM any -> any any (sid:1;)",
            "there is no variable $HOM",
        ),
        (
            "alert tcp ![10.0.0.0/8,!10.1.0.0/16] any -> any any (sid:1;)",
            "no negated entries",
        ),
        (
            "alert tcp 10.0.0.0/40 any -> any any (sid:1;)",
            "no address or prefix",
        ),
        ("alert tcp any 70000 -> any any (sid:1;)", "no port"),
        (
            "alert tcp any any -> any any (pcre:\"/(?=a)/\"; sid:1;)",
            "without lookaround",
        ),
        (
            "alert tcp any any -> any any (pcre:\"/a/U\"; sid:1;)",
            "there is no flag 'U'",
        ),
        (
            "alert tcp any any -> any any (nocase; sid:1;)",
            "it stands behind a content",
        ),
        (
            "alert tcp any any -> any any (content:\"|0|\"; sid:1;)",
            "pairs of hexadecimal digits",
        ),
        (
            "alert tcp any any -> any any (content:\"abc\"; depth:2; sid:1;)",
            "it never matches",
        ),
        (
            "alert tcp any any -> any any (content:\"a\"; depth:2; within:3; sid:1;)",
            "not both",
        ),
        (
            "alert tcp any any -> any any (sid:1;)\nalert udp any any -> any any (sid:1;)",
            "sid 1 is that of line 1",
        ),
    ] {
        // The first line of the text is empty.
        let text = Configuration::read(&format!("rules = '''\n{rule}'''"))
            .unwrap_err()
            .to_string();
        assert!(text.contains(expected), "{rule}: {text}");
    }
    assert!(error("alert tcp any any (sid:1;)").contains("line 1"));
}

/// One capture is from a line with PPPoE, which is not inspected.
fn without_pppoe(frame: &[u8]) -> Vec<u8> {
    const HEADER: usize = 8;
    match frame.get(12..14) {
        Some([0x88, 0x64]) => [&frame[..12], &[8, 0], &frame[14 + HEADER..]].concat(),
        _ => frame.to_vec(),
    }
}

/// What captures of known content hold, by the sid of a rule for it.
#[test]
fn captures_have_their_known_alerts() {
    let Some(data) = real_parts::data() else { return };
    let rules = "alert tcp any any -> any 80 (msg:\"SQL injection\"; flow:established,to_server; content:\"GET\"; depth:3; \
                 content:\"UNION\"; nocase; distance:0; pcre:\"/union[\\s+]+select/i\"; sid:1;)\n\
                 alert tcp any any -> any 80 (flow:to_server; content:\"GET /\"; startswith; content:\"HTTP/1.\"; distance:1; sid:2;)\n\
                 alert tcp any any -> any 25 (flow:established,to_server; content:\"Mail From:\"; nocase; content:\"DATA|0d 0a|\"; distance:0; sid:3;)\n\
                 alert tcp any 80 -> any any (flow:to_client; content:\"HTTP/1.0 200 OK\"; startswith; sid:4;)\n\
                 alert udp any any -> any 53 (content:\"|00 00 00 01|\"; offset:2; depth:4; sid:5;)\n";
    for (name, expected) in [
        ("asa_exploit.pcap", vec![1, 2]),
        ("http_get.pcap", vec![2, 4]),
        ("smtp.pcap", vec![3]),
        ("dns.pcap", vec![5]),
        ("udp_64B.pcap", vec![]),
    ] {
        let bytes = std::fs::read(data.join("trex").join(name)).unwrap();
        // Generators leave checksums to cards.
        let mut ids = make_with("verify_checksums = false", rules);
        for captured in CaptureReader::new(&bytes).unwrap() {
            give(&mut ids, &without_pppoe(captured.unwrap().frame));
        }
        let mut found = sids(&mut ids);
        found.sort_unstable();
        found.dedup();
        assert_eq!(found, expected, "{name}");
    }
}
