//! Captured packets pass functions that keep state: each gets a verdict, checksums stay right, and tables stay within
//! their limits. Also without an allocation, once all is warm.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

use std::path::PathBuf;

use counting_allocator::allocations;
use functions::firewall::Firewall;
use functions::ids::Ids;
use functions::ipsec::Ipsec;
use functions::router::Router;
use functions::{
    Burst, Cache, Classifier, Dns, Function, Limiter, Maglev, Monitor, Nat, Pfabric, Ranker, Replica, Setup,
    Verdict,
};
use model::{Nanos, protocol};
use packet::capture::CaptureReader;
use packet::{Parsed, checksum, parse};

#[global_allocator]
static ALLOCATOR: counting_allocator::Counting = counting_allocator::Counting;

const SETUP: Setup = Setup {
    instance: 1,
    ports: 1,
    seed: 5,
    external: None,
};
/// Half of all addresses are inside; the other half is outside.
const NAT: &str = "inside = [\"0.0.0.0/1\"]\nexternal = [\"198.51.100.1:1024-65535\"]\nmappings_limit = 300\n\
                   log = \"mappings\"\nlog_records_limit = 100\n";
const LIMITER: &str =
    "buckets_limit = 100\n[[rule]]\nkey = \"flow\"\nrate = \"1Mbit/s\"\nburst_bytes = 10000\n";
const MONITOR: &str = "flows_limit = 100\nheavy_limit = 50\nsketch_width = 1000\n[export]\n\
                       collector = \"192.0.2.9:4739\"\nsource = \"192.0.2.1:4739\"\n\
                       collector_mac = \"02:00:00:00:00:01\"\nsource_mac = \"02:00:00:00:00:02\"\n";

/// Servers that look at each datagram to ports that captures have.
const DNS: &str =
    "port = 53\nothers = \"pass\"\nzones = '''\n$ORIGIN com.\n$TTL 60\n@ SOA ns h 1 2 3 4 5\n@ NS ns\n'''\n";
const CACHE: &str = "memory_mib = 1\nothers = \"pass\"\n";
const PFABRIC: &str = "rate = \"100Mbit/s\"\npackets = 50\nframe_bytes = 2048";
/// Requests are what the captures have for DNS.
const RANKER: &str = "port = 53\nkeys_limit = 20";
const CLASSIFIER: &str = "port = 53\nfeatures = 4\nvalues = 256\nclasses = [\"a\", \"b\"]\ntraining = true";
const MAGLEV: &str = "addresses = [\"192.0.2.1\"]\n[[back_end]]\nname = \"a\"\nmac = \"02:00:00:00:00:01\"";

const FIREWALL: &str = "connections = 100\nmidstream = true\n[[rule]]\naction = \"deny\"\nprotocol = \"udp\"\n\
                        destination_ports = \"1-1023\"\n[[rule]]\naction = \"allow\"\n";
const IDS: &str = "flows = 50\nwindow = 256\nwaiting = 2048\nmemory_mib = 1\nverify_checksums = false\nrules = \'\'\'\n\
                   alert tcp any any -> any any (content:\"HTTP/1.\"; pcre:\"/[a-z]+\\.com/\"; sid:1;)\n\
                   drop udp any any -> any any (content:\"|00 00 01|\"; sid:2;)\n\'\'\'\n";
/// What is not for its addresses enters a tunnel, and is longer then.
const IPSEC: &str = "mtu = 9000\n[[outbound]]\nname = \"out\"\nspi = 1001\nsuite = \"aes-128-gcm\"\n\
                     key = \"01010101010101010101010101010101\"\nsalt = \"01010101\"\nsource = \"192.0.2.1\"\n\
                     destination = \"192.0.2.2\"\n[[inbound]]\nname = \"in\"\nspi = 1002\nsuite = \"aes-128-gcm\"\n\
                     key = \"02020202020202020202020202020202\"\nsalt = \"02020202\"\ndestination = \"192.0.2.1\"\n\
                     [[policy]]\nsource = [\"0.0.0.0/1\", \"::/0\"]\ndestination = [\"0.0.0.0/0\", \"::/0\"]\n\
                     action = \"protect\"\noutbound = \"out\"\ninbound = [\"in\"]\n";
/// Requests are what the captures have for that server of DNS.
const REPLICA: &str = "address = \"ADDRESS:53\"\nmac = \"02:00:00:00:00:01\"\nkeys_limit = 4\npending_limit = 4\n\
                       [successor]\naddress = \"192.0.2.9:53\"\nmac = \"02:00:00:00:00:02\"\n";
const ROUTER: &str =
    "address = \"192.0.2.1\"\nroutes = \'\'\'\n0.0.0.0/1 a\n::/0 a\n\'\'\'\n[[next_hop]]\nname = \"a\"\n";

/// The captures that there are.
fn captures() -> Vec<PathBuf> {
    let Some(data) = real_parts::data() else {
        return Vec::new();
    };
    let trex = std::fs::read_dir(data.join("trex"))
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let mut all: Vec<_> = trex
        .filter(|path| path.extension().is_some_and(|of| of == "pcap"))
        .collect();
    all.push(data.join("opennetvm_64B_download.pcap"));
    all.sort();
    assert!(all.len() > 20);
    all
}

fn frames(capture: &[u8]) -> Vec<&[u8]> {
    // A capture that is damaged at its end has the frames before.
    CaptureReader::new(capture)
        .unwrap()
        .map_while(Result::ok)
        .map(|of| of.frame)
        .filter(|of| !of.is_empty())
        .collect()
}

/// Whether the checksums of an IPv4 packet with TCP or UDP are right; [`None`] for others.
fn is_sound(frame: &[u8]) -> Option<bool> {
    let Parsed::Flow(info) = parse(frame) else {
        return None;
    };
    let (l3, l4) = (usize::from(info.l3_offset), usize::from(info.l4_offset));
    let end = l3 + info.l3_len as usize;
    let header = frame.get(l3..l4).filter(|header| header[0] >> 4 == 4)?;
    let payload = frame.get(l4..end)?;
    let has_sum = match info.protocol {
        protocol::TCP => true,
        protocol::UDP => payload[6..8] != [0, 0],
        _ => return None,
    };
    let address = |at: usize| *header[at..].first_chunk::<4>().unwrap();
    let sum = checksum::pseudo_v4(address(12), address(16), info.protocol, payload.len());
    let is_sound = checksum::add(sum, checksum::sum(payload)).is_multiple_of(0xffff);
    Some(checksum::sum(header) == 0xffff && (is_sound || !has_sum))
}

/// What became of the packets of all captures.
#[derive(Debug, Default)]
struct Totals {
    packets: usize,
    left: usize,
    dropped: usize,
    kept: usize,
    translated: usize,
}

/// Passes all captures, at the pace of a packet in 10 us, and ticks. Nothing is allocated.
fn pass<F: Function>(function: &mut F, captures: &[Vec<u8>]) -> Totals {
    pass_and(function, captures, false)
}

/// The same with a function that may allocate, in the limits of its configuration.
fn pass_and<F: Function>(function: &mut F, captures: &[Vec<u8>], may_allocate: bool) -> Totals {
    // What enters a tunnel has another protocol.
    let is_tunnel = F::about().name == "ipsec";
    let mut totals = Totals::default();
    let mut burst = Burst::new();
    let mut now = Nanos::from_secs(1);
    for capture in captures {
        for frames in frames(capture).chunks(functions::RECEIVED_LIMIT) {
            burst.begin(0, 0);
            for frame in frames {
                assert!(burst.push(frame));
            }
            now = now + Nanos::from_micros(10 * frames.len() as u64);
            let before = allocations();
            function.process(&mut burst, now);
            assert!(allocations() == before || may_allocate, "a burst allocates");
            totals.packets += frames.len();
            for (packet, frame) in burst.packets().zip(frames) {
                match packet.verdict() {
                    Verdict::Forward(0) | Verdict::Answer => {
                        totals.left += 1;
                        totals.translated += usize::from(packet.frame() != *frame);
                        let [before, after] = [frame, packet.frame()].map(is_sound);
                        assert!(
                            before != Some(true) || after == before || is_tunnel && after.is_none(),
                            "{frame:02x?} became {:02x?}",
                            packet.frame()
                        );
                    }
                    Verdict::Drop(_) => totals.dropped += 1,
                    Verdict::Consume => totals.kept += 1,
                    other => panic!("{other:?}"),
                }
            }
            if function.due().is_some_and(|due| due <= now) {
                burst.begin(0, 0);
                let before = allocations();
                function.tick(&mut burst, now);
                assert!(allocations() == before || may_allocate, "a tick allocates");
            }
            let summary = function.summary();
            assert!(summary.flows <= 2 * summary.flows_limit, "{summary:?}");
        }
    }
    assert_eq!(totals.packets, totals.left + totals.dropped + totals.kept);
    totals
}

fn make<F: Function>(text: &str) -> F {
    F::new(F::compile(text, &SETUP).unwrap(), &SETUP)
}

#[test]
fn captured_packets_pass() {
    let captures: Vec<Vec<u8>> = captures()
        .iter()
        .map(|path| std::fs::read(path).unwrap())
        .collect();
    if captures.is_empty() {
        return;
    }
    let mut nat: Nat = make(NAT);
    let totals = pass(&mut nat, &captures);
    assert!(totals.translated > 100 && totals.dropped > 0, "{totals:?}");
    assert!(nat.summary().flows <= 300);
    let totals = pass(&mut make::<Limiter>(LIMITER), &captures);
    assert!(
        totals.translated == 0 && totals.left > 0 && totals.dropped > 0,
        "{totals:?}"
    );
    let totals = pass(&mut make::<Monitor>(MONITOR), &captures);
    assert_eq!((totals.translated, totals.left), (0, totals.packets));
    for totals in [
        pass(&mut make::<Dns>(DNS), &captures),
        pass(&mut make::<Cache>(CACHE), &captures),
    ] {
        assert!(totals.left > 0 && totals.translated <= totals.left, "{totals:?}");
    }
    let totals = pass(&mut make::<Pfabric>(PFABRIC), &captures);
    assert!(
        totals.left == 0 && totals.kept > 0 && totals.dropped > 0,
        "{totals:?}"
    );
    let totals = pass(&mut make::<Ranker>(RANKER), &captures);
    assert!(totals.left > 0 && totals.dropped > 0, "{totals:?}");
    let totals = pass(&mut make::<Classifier>(CLASSIFIER), &captures);
    assert!(totals.left > 0 && totals.dropped > 0, "{totals:?}");
    let totals = pass(&mut make::<Maglev>(MAGLEV), &captures);
    assert!(totals.translated == 0 && totals.left > 0, "{totals:?}");
    let totals = pass(&mut make::<Firewall>(FIREWALL), &captures);
    assert!(
        totals.translated == 0 && totals.left > 0 && totals.dropped > 0,
        "{totals:?}"
    );
    // Its streams take memory as they come, up to a limit of all.
    let mut ids: Ids = make(IDS);
    let totals = pass_and(&mut ids, &captures, true);
    assert!(
        totals.translated == 0 && totals.left > 0 && totals.dropped > 0,
        "{totals:?}"
    );
    assert!(ids.next_alert().is_some() && metric(&ids, "stream_bytes") <= 1 << 20);
    let totals = pass(&mut make::<Ipsec>(IPSEC), &captures);
    assert!(totals.translated > 100 && totals.dropped > 0, "{totals:?}");
    let totals = pass(&mut make::<Router>(ROUTER), &captures);
    assert!(totals.translated > 100 && totals.dropped > 0, "{totals:?}");
    let replica = REPLICA.replace("ADDRESS", &server_of_dns(&captures));
    let totals = pass(&mut make::<Replica>(&replica), &captures);
    assert!(totals.left > 0 && totals.dropped > 0, "{totals:?}");
}

/// The value of a metric now.
fn metric<F: Function>(function: &F, name: &str) -> u64 {
    let metrics = F::about().metrics;
    let mut values = vec![0; metrics.len()];
    function.metrics(&mut values);
    values[metrics.iter().position(|of| of.name == name).unwrap()]
}

/// The address to which most datagrams of DNS go.
fn server_of_dns(captures: &[Vec<u8>]) -> String {
    let mut seen = std::collections::BTreeMap::<_, usize>::new();
    for frame in captures.iter().flat_map(|capture| frames(capture)) {
        if let Parsed::Flow(info) = parse(frame) {
            let tuple = info.key.tuple(info.direction);
            if tuple.protocol == protocol::UDP && tuple.dst_port == 53 && tuple.dst.is_ipv4() {
                *seen.entry(tuple.dst).or_default() += 1;
            }
        }
    }
    let (address, _) = seen.into_iter().max_by_key(|of| of.1).unwrap();
    address.to_string()
}
