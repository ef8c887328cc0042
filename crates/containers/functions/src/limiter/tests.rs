use std::net::SocketAddr;

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

fn limiter(text: &str) -> Limiter {
    Limiter::new(Limiter::compile(text, &SETUP).unwrap(), &SETUP)
}

fn end(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn frame(source: &str, destination: &str) -> Vec<u8> {
    Frame::udp(end(source), end(destination), &[0; 58])
        .unwrap()
        .to_vec()
        .unwrap()
}

/// How many of these frames pass.
fn pass(limiter: &mut Limiter, frames: &[Vec<u8>], now: Nanos) -> usize {
    let mut passed = 0;
    for frames in frames.chunks(RECEIVED_LIMIT) {
        let mut burst = Burst::new();
        burst.begin(0, 1);
        for frame in frames {
            assert!(burst.push(frame));
        }
        limiter.process(&mut burst, now);
        passed += burst
            .packets()
            .filter(|packet| packet.verdict() == Verdict::Forward(1))
            .count();
    }
    passed
}

fn times(frame: Vec<u8>, count: usize) -> Vec<Vec<u8>> {
    vec![frame; count]
}

#[test]
fn each_source_has_its_bucket() {
    let mut limiter = limiter("[[rule]]\nrate = \"10pps\"\nburst_packets = 5\n");
    let to = "192.0.2.1:53";
    for source in [
        "10.0.0.1:1",
        "10.0.0.2:1",
        "[2001:db8::1]:1",
        "[2001:db8:0:1::1]:1",
    ] {
        let to = if source.starts_with('[') {
            "[2001:db8:9::]:53"
        } else {
            to
        };
        assert_eq!(
            pass(&mut limiter, &times(frame(source, to), 10), Nanos::from_secs(1)),
            5,
            "{source}"
        );
    }
    // Of IPv6, 64 bits are a source; another port is the same one.
    let same = [
        frame("[2001:db8::2]:1", "[2001:db8:9::]:53"),
        frame("10.0.0.1:2", to),
    ];
    assert_eq!(pass(&mut limiter, &same, Nanos::from_secs(1)), 0);
    assert_eq!(
        pass(
            &mut limiter,
            &times(frame("10.0.0.1:1", to), 10),
            Nanos::from_millis(1250)
        ),
        2
    );
}

#[test]
fn bytes_are_those_of_the_frame() {
    let mut limiter = limiter("[[rule]]\nrate = \"8Mbit/s\"\nburst_bytes = 2000\n");
    let frame = frame("10.0.0.1:1", "192.0.2.1:53");
    assert_eq!(frame.len(), 100);
    assert_eq!(
        pass(&mut limiter, &times(frame.clone(), 30), Nanos::from_secs(1)),
        20
    );
    // A microsecond gives a byte.
    assert_eq!(
        pass(
            &mut limiter,
            &times(frame, 30),
            Nanos::from_secs(1) + Nanos::from_micros(399)
        ),
        3
    );
}

#[test]
fn prefixes_destinations_and_flows_share_or_do_not() {
    let frames = [
        frame("10.0.0.1:1", "192.0.2.1:53"),
        frame("10.0.0.200:1", "192.0.2.1:53"),
        frame("10.0.1.1:1", "192.0.2.1:54"),
        frame("192.0.2.1:53", "10.0.0.1:1"),
    ];
    for (key, passed) in [
        ("key = \"source\"", 4),
        ("key = \"source\"\nprefix_v4 = 24", 3),
        ("key = \"destination\"", 2),
        ("key = \"flow\"", 3),
        ("key = \"source\"\nprefix_v4 = 0", 1),
        ("from = \"10.0.0.128/25\"\nprefix_v4 = 0", 4),
    ] {
        let mut limiter = limiter(&format!("[[rule]]\nrate = \"1pps\"\nburst_packets = 1\n{key}\n"));
        assert_eq!(pass(&mut limiter, &frames, Nanos::from_secs(1)), passed, "{key}");
    }
}

#[test]
fn the_first_rule_that_fits_limits() {
    let text = "[[rule]]\nfrom = \"10.0.0.0/8\"\nrate = \"1pps\"\nburst_packets = 3\n\
                [[rule]]\nfrom = \"0.0.0.0/0\"\nrate = \"1pps\"\nburst_packets = 1\n";
    let mut limiter = limiter(text);
    let now = Nanos::from_secs(1);
    assert_eq!(
        pass(&mut limiter, &times(frame("10.0.0.1:1", "192.0.2.1:53"), 9), now),
        3
    );
    assert_eq!(
        pass(&mut limiter, &times(frame("11.0.0.1:1", "192.0.2.1:53"), 9), now),
        1
    );
    assert_eq!(
        pass(
            &mut limiter,
            &times(frame("[2001:db8::1]:1", "[2001:db8::2]:53"), 9),
            now
        ),
        9
    );
    let mut values = [0; 3];
    limiter.metrics(&mut values);
    assert_eq!(values, [9, 0, 2]);
}

#[test]
fn fragments_and_errors_take_from_who_sent_them() {
    let mut limiter = limiter("[[rule]]\nrate = \"1pps\"\nburst_packets = 4\n");
    let payload = [0; 4000];
    let whole = Frame::udp(end("10.0.0.1:1"), end("192.0.2.1:53"), &payload)
        .unwrap()
        .to_vec()
        .unwrap();
    let mut fragments = build::fragment(&whole, 1280, 7).unwrap();
    fragments.extend(fragments.clone());
    assert_eq!(pass(&mut limiter, &fragments, Nanos::from_secs(1)), 4);
    let quoted = frame("10.0.0.2:1", "192.0.2.1:53");
    let router = "203.0.113.1".parse().unwrap();
    let error = Frame::icmp(router, "10.0.0.2".parse().unwrap(), 3, 3, [0; 4], &quoted[14..]).unwrap();
    assert_eq!(
        pass(
            &mut limiter,
            &times(error.to_vec().unwrap(), 8),
            Nanos::from_secs(1)
        ),
        4
    );
    for victim in ["10.0.0.2:1", "192.0.2.1:53"] {
        let to = if victim.starts_with("10") {
            "192.0.2.1:53"
        } else {
            "10.0.0.2:1"
        };
        assert_eq!(
            pass(&mut limiter, &times(frame(victim, to), 8), Nanos::from_secs(1)),
            4,
            "{victim}"
        );
    }
}

#[test]
fn a_flood_of_sources_takes_no_bucket_away_and_shares_one() {
    let mut limiter = limiter("buckets_limit = 64\n[[rule]]\nrate = \"1pps\"\nburst_packets = 2\n");
    let now = Nanos::from_secs(1);
    let known = frame("10.9.9.9:1", "192.0.2.1:53");
    assert_eq!(pass(&mut limiter, &times(known.clone(), 3), now), 2);
    let flood: Vec<_> = (0..2000)
        .map(|of| frame(&format!("10.0.{}.{}:1", of / 250, of % 250), "192.0.2.1:53"))
        .collect();
    let passed = pass(&mut limiter, &flood, now);
    // At most two for each of 128 places, and two for all others.
    assert!((64..=130).contains(&passed), "{passed}");
    assert_eq!(pass(&mut limiter, &times(known, 3), now), 0);
    assert!(limiter.shared >= 2000 - 130);
    limiter.tick(&mut Burst::new(), now);
    assert!((64..=128).contains(&limiter.summary().flows));
    limiter.tick(&mut Burst::new(), Nanos::from_secs(9));
    assert_eq!(limiter.summary().flows, 0);
}

#[test]
fn what_a_bucket_owes_moves() {
    let text = "[[rule]]\nkey = \"flow\"\nrate = \"1pps\"\nburst_packets = 4\n";
    let (mut from, mut to) = (
        limiter(text),
        Limiter::new(
            Limiter::compile(text, &SETUP).unwrap(),
            &Setup { seed: 8, ..SETUP },
        ),
    );
    let now = Nanos::from_secs(1);
    let packets = times(frame("10.0.0.1:1", "192.0.2.1:53"), 9);
    let tuple = Tuple {
        src: [192, 0, 2, 1].into(),
        dst: [10, 0, 0, 1].into(),
        src_port: 53,
        dst_port: 1,
        protocol: 17,
        vlan: 0,
    };
    let mut state = [0; 64];
    assert_eq!(
        from.export(&tuple, &mut state, now),
        Ok(0),
        "a full bucket owes nothing"
    );
    assert_eq!(pass(&mut from, &packets[..3], now), 3);
    assert_eq!(from.export(&tuple, &mut state, now), Ok(MOVED_BYTES));
    let moved = &state[..MOVED_BYTES];
    assert_eq!(moved, [&[1, 0, 0][..], &3_000_000_000_u64.to_be_bytes()].concat());
    assert_eq!(to.import(&tuple, moved, now), Ok(()));
    assert_eq!(pass(&mut to, &packets, now), 1);
    assert_eq!(pass(&mut from, &packets, now), 1, "it stays here, too");
    from.forget(&tuple, now);
    assert_eq!(pass(&mut from, &packets, now), 4, "the flow is forgotten here");
    assert_eq!(to.import(&tuple, &[], now), Ok(()), "in place of what it knew");
    assert_eq!(pass(&mut to, &packets, now), 4);
    let other = |at: usize, byte: u8| {
        let mut bytes = moved.to_vec();
        bytes[at] = byte;
        bytes
    };
    for (bytes, why) in [
        (other(0, 2), NotMoved::Malformed),
        (other(1, 2), NotMoved::Malformed),
        (other(1, 1), NotMoved::Conflict),
        (other(2, 1), NotMoved::Conflict),
        (other(3, 1), NotMoved::Malformed),
        ([moved, moved].concat(), NotMoved::Malformed),
        (moved[1..].to_vec(), NotMoved::Malformed),
    ] {
        assert_eq!(to.import(&tuple, &bytes, now), Err(why), "{bytes:?}");
    }
}

#[test]
fn a_reload_keeps_what_buckets_owe() {
    let mut limiter = limiter("[[rule]]\nrate = \"1pps\"\nburst_packets = 4\n");
    let now = Nanos::from_secs(1);
    let packets = times(frame("10.0.0.1:1", "192.0.2.1:53"), 9);
    assert_eq!(pass(&mut limiter, &packets, now), 4);
    let compile = |text| Limiter::compile(text, &SETUP).unwrap();
    let old = limiter.reload(compile("[[rule]]\nrate = \"1pps\"\nburst_packets = 6\n"));
    assert_eq!(old.0.settings.rules.len(), 1);
    assert_eq!(pass(&mut limiter, &packets, now), 2);
    limiter.reload(compile(
        "buckets_limit = 9\n[[rule]]\nrate = \"1pps\"\nburst_packets = 6\n",
    ));
    assert_eq!(pass(&mut limiter, &packets, now), 6);
}

proptest! {
    #[test]
    fn foreign_bytes_pass_or_are_dropped(frames in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..120), 1..32)) {
        let mut limiter = limiter("buckets_limit = 4\n[[rule]]\nkey = \"flow\"\nrate = \"1pps\"\nburst_packets = 1\n");
        let frames: Vec<_> = frames.into_iter().enumerate().map(|(at, mut frame)| {
            if frame.len() > 14 {
                let kind = if at % 2 == 0 { [8, 0] } else { [0x86, 0xdd] };
                frame[12..14].copy_from_slice(&kind);
                frame[14] = if at % 2 == 0 { 0x45 } else { 0x60 };
            }
            frame
        }).collect();
        pass(&mut limiter, &frames, Nanos::from_secs(1));
    }
}
