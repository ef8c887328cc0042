use std::net::SocketAddr;

use packet::build::Frame;
use packet::{Parsed, checksum, parse};
use proptest::prelude::*;

use super::*;
use crate::burst::{CAPACITY, RECEIVED_LIMIT};
use crate::chain::Chain;
use crate::library::{LIBRARY, find};

const SETUP: Setup = Setup {
    instance: 1,
    ports: 1,
    seed: 7,
    external: None,
};
const SECOND: u64 = 1_000_000_000;

fn cache(text: &str) -> Cache {
    Cache::new(Cache::compile(text, &SETUP).unwrap(), &SETUP)
}

fn chain(text: &str) -> Chain {
    Chain::new(vec![find(LIBRARY, "cache").unwrap().make(text, &SETUP).unwrap()]).unwrap()
}

/// What a cache answers to a request, a second after the one before it at the latest.
fn ask_at(cache: &mut Cache, request: &str, now: u64) -> String {
    if !cache.respond(request.as_bytes(), now) {
        return String::new();
    }
    String::from_utf8(cache.out.bytes[HEADER..cache.out.len].to_vec()).unwrap()
}

fn ask(cache: &mut Cache, request: &str) -> String {
    ask_at(cache, request, SECOND)
}

#[test]
fn requests_are_answered_as_by_memcached() {
    let mut cache = cache("");
    for (request, answer) in [
        ("get a\r\n", "END\r\n"),
        ("set a 5 0 3\r\nabc\r\n", "STORED\r\n"),
        ("get a\r\n", "VALUE a 5 3\r\nabc\r\nEND\r\n"),
        (
            "get b a  c a\n",
            "VALUE a 5 3\r\nabc\r\nVALUE a 5 3\r\nabc\r\nEND\r\n",
        ),
        ("gets a\r\n", "VALUE a 5 3 1\r\nabc\r\nEND\r\n"),
        ("add a 0 0 1\r\nx\r\n", "NOT_STORED\r\n"),
        ("add b 0 0 0\r\n\r\n", "STORED\r\n"),
        ("get b\r\n", "VALUE b 0 0\r\n\r\nEND\r\n"),
        ("replace c 0 0 1\r\nx\r\n", "NOT_STORED\r\n"),
        ("replace b 1 0 1\r\nx\r\n", "STORED\r\n"),
        ("append b 9 0 2\r\nyz\r\n", "STORED\r\n"),
        ("prepend b 9 0 2\r\nvw\r\n", "STORED\r\n"),
        ("get b\r\n", "VALUE b 1 5\r\nvwxyz\r\nEND\r\n"),
        ("append c 0 0 1\r\nx\r\n", "NOT_STORED\r\n"),
        ("cas a 0 0 1 2\r\nx\r\n", "EXISTS\r\n"),
        ("cas a 0 0 1 1\r\nx\r\n", "STORED\r\n"),
        ("cas c 0 0 1 1\r\nx\r\n", "NOT_FOUND\r\n"),
        (
            "incr a 1\r\n",
            "CLIENT_ERROR cannot increment or decrement non-numeric value\r\n",
        ),
        ("set n 0 0 2\r\n10\r\n", "STORED\r\n"),
        ("decr n 1\r\n", "9\r\n"),
        ("get n\r\n", "VALUE n 0 2\r\n9 \r\nEND\r\n"),
        ("incr n 18446744073709551615\r\n", "8\r\n"),
        ("decr n 100\r\n", "0\r\n"),
        ("incr n x\r\n", "CLIENT_ERROR invalid numeric delta argument\r\n"),
        ("incr m 1\r\n", "NOT_FOUND\r\n"),
        ("touch n 100\r\n", "TOUCHED\r\n"),
        ("touch m 100\r\n", "NOT_FOUND\r\n"),
        ("delete n\r\n", "DELETED\r\n"),
        ("delete n 0\r\n", "NOT_FOUND\r\n"),
        (
            "delete n 1\r\n",
            "CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]\r\n",
        ),
        ("set n 0 0 1 noreply\r\n1\r\n", ""),
        ("incr n 1 noreply\r\n", ""),
        ("get n\r\n", "VALUE n 0 1\r\n2\r\nEND\r\n"),
        ("flush_all noreply\r\n", ""),
        ("get n a b\r\n", "END\r\n"),
        ("get\r\n", "ERROR\r\n"),
        ("GET a\r\n", "ERROR\r\n"),
        ("", "ERROR\r\n"),
        ("set a 0 0 3\r\nabcd\r\n", "CLIENT_ERROR bad data chunk\r\n"),
        ("set a 0 0 -1\r\n\r\n", "CLIENT_ERROR bad command line format\r\n"),
        (
            "set a -1 0 1\r\nx\r\n",
            "CLIENT_ERROR bad command line format\r\n",
        ),
        (
            "set a 4294967296 0 1\r\nx\r\n",
            "CLIENT_ERROR bad command line format\r\n",
        ),
        ("set a 0 0\r\n", "ERROR\r\n"),
        ("set a 0 0 1 2 3\r\nx\r\n", "ERROR\r\n"),
    ] {
        assert_eq!(ask(&mut cache, request), answer, "{request:?}");
    }
    let key = "k".repeat(250);
    assert_eq!(
        ask(&mut cache, &format!("set {key} 0 0 1\r\nx\r\n")),
        "STORED\r\n"
    );
    assert_eq!(
        ask(&mut cache, &format!("get {key}\r\n")),
        format!("VALUE {key} 0 1\r\nx\r\nEND\r\n")
    );
    for request in [format!("get k{key}\r\n"), format!("set k{key} 0 0 1\r\nx\r\n")] {
        assert_eq!(
            ask(&mut cache, &request),
            "CLIENT_ERROR bad command line format\r\n"
        );
    }
    assert!(ask(&mut cache, "version\r\n").starts_with("VERSION "));
    let stats = ask(&mut cache, "stats\r\n");
    assert!(
        stats.starts_with("STAT curr_items ") && stats.ends_with("\r\nEND\r\n"),
        "{stats}"
    );
}

#[test]
fn values_end() {
    let mut cache = cache("boot_unix_s = 1000000000\n");
    let all = "get never then unix past\r\n";
    for (key, time) in [
        ("never", 0),
        ("then", 10),
        ("unix", 1_000_000_020),
        ("past", 999_999_999),
    ] {
        let set = format!("set {key} 0 {time} 1\r\nx\r\n");
        assert_eq!(ask_at(&mut cache, &set, 5 * SECOND), "STORED\r\n");
    }
    ask_at(&mut cache, "set gone 0 -1 1\r\nx\r\n", 5 * SECOND);
    let mut keys = |request: &str, now| {
        let text = ask_at(&mut cache, request, now);
        let values = text.lines().filter_map(|line| line.strip_prefix("VALUE "));
        values
            .map(|line| line[..line.len() - 4].to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(keys("get gone\r\n", 5 * SECOND), Vec::<String>::new());
    assert_eq!(keys(all, 15 * SECOND - 1), ["never", "then", "unix"]);
    assert_eq!(keys(all, 15 * SECOND), ["never", "unix"]);
    assert_eq!(keys(all, 20 * SECOND - 1), ["never", "unix"]);
    keys("touch unix 10\r\n", 20 * SECOND - 1);
    assert_eq!(keys(all, 25 * SECOND), ["never", "unix"]);
    // A flush in the future takes what was stored before it.
    keys("flush_all 10\r\n", 25 * SECOND);
    keys("set late 0 0 1\r\nx\r\n", 30 * SECOND);
    assert_eq!(keys("get never late\r\n", 35 * SECOND - 1), ["never", "late"]);
    assert_eq!(keys("get never late\r\n", 35 * SECOND), Vec::<String>::new());
    keys("set late 0 0 1\r\nx\r\n", 35 * SECOND);
    assert_eq!(keys("get never late\r\n", 36 * SECOND), ["late"]);
    assert_eq!(cache.state.store.counts.evictions, 0);
    let mut without = super::tests::cache("");
    let set = "set a 0 1000000020 1\r\nx\r\n";
    assert!(ask(&mut without, set).starts_with("CLIENT_ERROR times above 30 days"));
}

#[test]
fn memory_is_bounded_and_what_is_used_stays() {
    let mut cache = cache("memory_mib = 1\n");
    let value = "v".repeat(1000);
    for at in 0..20_000 {
        assert_eq!(
            ask(&mut cache, &format!("set key-{at} 0 0 1000\r\n{value}\r\n")),
            "STORED\r\n"
        );
        assert_eq!(ask(&mut cache, "incr hot 1\r\n") == "NOT_FOUND\r\n", at == 0);
        if at == 0 {
            ask(&mut cache, "set hot 0 0 1\r\n0\r\n");
        }
    }
    let summary = cache.summary();
    assert!(summary.flows < 1000 && summary.flows_limit < 7000, "{summary:?}");
    assert!(cache.state.store.counts.evictions > 19_000);
    assert_eq!(
        ask(&mut cache, "get hot key-0\r\n"),
        "VALUE hot 0 5\r\n19999\r\nEND\r\n"
    );
    assert!(cache.state.store.used_bytes() <= 1 << 20);
}

fn datagram(id: u16, request: &str) -> Vec<u8> {
    let [a, b] = id.to_be_bytes();
    [&[a, b, 0, 0, 0, 1, 0, 0], request.as_bytes()].concat()
}

fn frame(payload: &[u8], is_v6: bool) -> Vec<u8> {
    let ends: [SocketAddr; 2] = if is_v6 {
        ["[2001:db8::9]:4000", "[2001:db8::7]:11211"]
    } else {
        ["192.0.2.9:4000", "192.0.2.7:11211"]
    }
    .map(|end| end.parse().unwrap());
    Frame::udp(ends[0], ends[1], payload).unwrap().to_vec().unwrap()
}

/// The payloads of what leaves, after a check of what must hold for each frame.
fn pass(chain: &mut Chain, frames: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let mut left = Vec::new();
    let mut burst = Burst::new();
    for frames in frames.chunks(RECEIVED_LIMIT) {
        burst.begin(0, 0);
        for frame in frames {
            assert!(burst.push(frame));
        }
        chain.process(&mut burst, Nanos::from_secs(1));
        for extent in burst.leaving() {
            let frame = burst.bytes_of(extent);
            let Parsed::Flow(info) = parse(frame) else {
                panic!("{frame:02x?}");
            };
            let (l3, l4) = (usize::from(info.l3_offset), usize::from(info.l4_offset));
            let datagram = &frame[l4..];
            let ends = if frame[l3] >> 4 == 4 {
                l3 + 12..l3 + 20
            } else {
                l3 + 8..l3 + 40
            };
            let pseudo = checksum::add(checksum::sum(&frame[ends]), 17 + datagram.len() as u16);
            assert_eq!(checksum::add(pseudo, checksum::sum(datagram)) % 0xffff, 0);
            assert!(datagram.len() <= 8 + DATAGRAM);
            left.push(datagram[8..].to_vec());
        }
    }
    let totals = chain.stages()[0].totals();
    assert_eq!(
        totals.packets + totals.originated,
        totals.forwarded + totals.answered + totals.consumed + totals.dropped
    );
    left
}

#[test]
fn long_answers_are_in_several_datagrams() {
    for is_v6 in [false, true] {
        let mut chain = chain("");
        let value: String = (0..1200).map(|at| char::from(b'a' + (at % 26) as u8)).collect();
        let mut requests = vec![datagram(1, &format!("set a 0 0 1200\r\n{value}\r\n"))];
        requests.extend((0..4).map(|_| datagram(2, &format!("append a 0 0 1200\r\n{value}\r\n"))));
        requests.push(datagram(3, "get a\r\n"));
        let frames: Vec<_> = requests.iter().map(|request| frame(request, is_v6)).collect();
        let left = pass(&mut chain, &frames);
        assert_eq!(left.len(), 5 + 5);
        let mut text = Vec::new();
        let long: Vec<_> = left.iter().filter(|of| of[1] == 3).collect();
        for (number, datagram) in long.iter().enumerate() {
            assert_eq!(datagram[..8], [0, 3, 0, number as u8, 0, 5, 0, 0]);
            text.extend_from_slice(&datagram[8..]);
        }
        let expected = format!("VALUE a 0 6000\r\n{}\r\nEND\r\n", value.repeat(5));
        assert_eq!(String::from_utf8(text).unwrap(), expected);
        // Of a full burst of such requests, those that find no room are told so.
        let many = vec![frame(&datagram(4, "get a\r\n"), is_v6); RECEIVED_LIMIT];
        let left = pass(&mut chain, &many);
        let whole = (CAPACITY - RECEIVED_LIMIT) / 5;
        assert_eq!(left.len(), 5 * whole + (RECEIVED_LIMIT - whole));
        assert!(left.iter().filter(|of| of[8..] == *TOO_LONG).count() == RECEIVED_LIMIT - whole);
        // What is longer than any answer can be.
        let keys = "a ".repeat(5);
        let left = pass(
            &mut chain,
            &[frame(&datagram(5, &format!("get {keys}\r\n")), is_v6)],
        );
        assert_eq!(left[0][8..], *TOO_LONG);
    }
}

#[test]
fn what_is_no_request_is_dropped_or_refused() {
    let mut chain = chain("");
    let mut pieces = datagram(9, "get a\r\n");
    pieces[5] = 2;
    let left = pass(&mut chain, &[frame(&pieces, false), frame(&pieces[..7], false)]);
    assert_eq!(left, [[&[0, 9, 0, 0, 0, 1, 0, 0], IN_PIECES].concat()]);
    let ends = ["192.0.2.9:11211", "192.0.2.7:11211"].map(|end| end.parse::<SocketAddr>().unwrap());
    let looped = datagram(1, "ERROR\r\n");
    let looped = Frame::udp(ends[0], ends[1], &looped).unwrap().to_vec().unwrap();
    assert_eq!(pass(&mut chain, &[looped, vec![1; 60]]), Vec::<Vec<u8>>::new());
    assert_eq!(chain.stages()[0].dropped(), [0, 1, 0, 0, 1, 1]);
    let quiet = frame(&datagram(1, "set a 0 0 1 noreply\r\nx\r\n"), false);
    assert_eq!(pass(&mut chain, &[quiet]), Vec::<Vec<u8>>::new());
    assert_eq!(chain.stages()[0].totals().consumed, 1);
}

#[test]
fn a_reload_keeps_values_while_the_memory_is_the_same() {
    let mut cache = cache("memory_mib = 1\n");
    ask(&mut cache, "set a 0 0 1\r\nx\r\n");
    cache.reload(Cache::compile("memory_mib = 1\nvalue_bytes_limit = 10\n", &SETUP).unwrap());
    assert_eq!(ask(&mut cache, "get a\r\n"), "VALUE a 0 1\r\nx\r\nEND\r\n");
    let long = ask(&mut cache, "set a 0 0 11\r\nxxxxxxxxxxx\r\n");
    assert!(long.starts_with("SERVER_ERROR object too large"));
    assert_eq!(ask(&mut cache, "get a\r\n"), "END\r\n");
    ask(&mut cache, "set a 0 0 1\r\nx\r\n");
    cache.reload(Cache::compile("memory_mib = 2\n", &SETUP).unwrap());
    assert_eq!(ask(&mut cache, "get a\r\n"), "END\r\n");
}

#[test]
fn the_workload_is_answered() {
    let mut cache = cache("");
    let mut workload = Workload::new(100, 64, 90, 1);
    let mut payload = Vec::new();
    for key in 0..100 {
        workload.fill(key, &mut payload);
        assert!(cache.respond(&payload[HEADER..], SECOND));
    }
    for _ in 0..1000 {
        workload.next(&mut payload);
        assert!(cache.respond(&payload[HEADER..], SECOND));
    }
    assert_eq!(cache.counts.misses, 0);
    assert!((850..950).contains(&cache.counts.hits));
}

proptest! {
    #[test]
    fn foreign_requests_are_no_harm(
        requests in prop::collection::vec((0..12_usize, prop::collection::vec(any::<u8>(), 0..60), any::<[u8; 3]>()), 1..40),
    ) {
        let mut chain = chain("memory_mib = 1\n");
        for (which, bytes, [at, flip, way]) in requests {
            let mut request = match which {
                0 => bytes,
                1 => [&datagram(1, "")[..], &bytes].concat(),
                2 => datagram(1, "get a b c\r\n"),
                3 => datagram(1, "cas a 1 0 3 1\r\nabc\r\n"),
                4 => datagram(1, "incr a 18446744073709551615\r\n"),
                5 => datagram(1, "decr a 1\r\n"),
                6 => datagram(1, "append a 0 0 3\r\n123\r\n"),
                7 => datagram(1, "flush_all 3\r\n"),
                8 => datagram(1, "touch a -1\r\n"),
                9 => datagram(1, "stats\r\n"),
                10 => datagram(1, "delete a noreply\r\n"),
                _ => datagram(1, "set a 0 0 1\r\n1\r\n"),
            };
            if let Some(byte) = request.get_mut(usize::from(at) % 48) {
                *byte ^= flip & 3;
            }
            for answer in pass(&mut chain, &[frame(&request, way & 1 == 1)]) {
                prop_assert_eq!(&answer[..2], &request[..2]);
                prop_assert!(answer.ends_with(b"\r\n"));
            }
        }
    }
}
