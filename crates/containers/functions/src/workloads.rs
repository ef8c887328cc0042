//! The workloads of Table 3 of iPipe (Liu and others, "Offloading Distributed Applications onto SmartNICs using iPipe",
//! SIGCOMM 2019, appendix A), as functions of this library with their configurations and requests. What times them is
//! elsewhere: `inco bench function table3`.

use std::fmt::Write as _;
use std::net::SocketAddr;

use model::Random;
use packet::build::Frame;

use crate::function::Setup;

/// Bytes of a request in the table: the frame without its check sequence.
pub const REQUEST_BYTES: usize = 1024;

/// A row of the table.
#[derive(Clone, Copy, Debug)]
pub struct Workload {
    /// As the paper calls it.
    pub application: &'static str,
    /// What it computes, and in which data structure, in the paper's words.
    pub computation: &'static str,
    /// The function of this library.
    pub function: &'static str,
    /// The time of a request of 1 KB on a core of a LiquidIOII CN2350 (cnMIPS, 1.2 GHz), in microseconds.
    pub paper_us: f64,
    configuration: fn() -> String,
    request: fn(&mut Random, usize) -> Option<Vec<u8>>,
}

impl Workload {
    /// The text of the function's configuration.
    pub fn configuration(&self) -> String {
        (self.configuration)()
    }

    /// So many requests of that many bytes, at least 128. A seed gives the same ones each time.
    pub fn requests(&self, count: usize, bytes: usize, seed: u64) -> Vec<Vec<u8>> {
        let mut random = Random::new(seed);
        let all = std::iter::repeat_with(|| (self.request)(&mut random, bytes.max(128)));
        all.take(count).flatten().collect()
    }
}

/// The instance in which they run.
pub const SETUP: Setup = Setup {
    instance: 1,
    ports: 1,
    seed: 28,
    external: None,
};

/// The rows of the table, as it has them.
pub const TABLE: &[Workload] = &[
    Workload {
        application: "baseline (echo)",
        computation: "none",
        function: "forward",
        paper_us: 1.87,
        configuration: String::new,
        request: datagram,
    },
    Workload {
        application: "flow monitor",
        computation: "count-min sketch, 2-D array",
        function: "monitor",
        paper_us: 3.2,
        configuration: String::new,
        request: datagram,
    },
    Workload {
        application: "top ranker",
        computation: "quick sort, 1-D array",
        function: "ranker",
        paper_us: 34.0,
        configuration: || format!("keys_limit = {KEYS}\ntop = 10\n"),
        request: tuples,
    },
    Workload {
        application: "rate limiter",
        computation: "leaky bucket, FIFO",
        function: "limiter",
        paper_us: 8.2,
        configuration: || "[[rule]]\nkey = \"flow\"\nrate = \"10Gbit/s\"\nburst_bytes = 1000000\n".to_owned(),
        request: datagram,
    },
    Workload {
        application: "firewall",
        computation: "wildcard match, TCAM",
        function: "firewall",
        paper_us: 3.7,
        configuration: rules,
        request: datagram,
    },
    Workload {
        application: "router",
        computation: "longest prefix match, trie",
        function: "router",
        paper_us: 2.2,
        configuration: routes,
        request: datagram,
    },
    Workload {
        application: "load balancer",
        computation: "Maglev, permutation table",
        function: "maglev",
        paper_us: 2.0,
        configuration: back_ends,
        request: datagram,
    },
    Workload {
        application: "packet scheduler",
        computation: "pFabric, binary search tree",
        function: "pfabric",
        paper_us: 12.6,
        // The queue stays full: a request of 1 KB takes 20 us of the link.
        configuration: || "rate = \"400Mbit/s\"\npackets = 4096\n".to_owned(),
        request: remaining,
    },
    Workload {
        application: "flow classifier",
        computation: "naive Bayes, 2-D array",
        function: "classifier",
        paper_us: 71.0,
        configuration: classes,
        request: features,
    },
    Workload {
        application: "packet replication",
        computation: "chain replication, linked list",
        function: "replica",
        paper_us: 1.9,
        configuration: head,
        request: write,
    },
];

/// Flows of the workloads that do not answer requests.
const FLOWS: u64 = 65_536;
/// Rules of the firewall: those of the paper's section 5.7.
const RULES: u64 = 8_192;
/// Routes of the router.
const ROUTES: u64 = 65_536;
/// Keys of the ranker. The paper's time, clock and instructions per cycle make 69,000 instructions, as quick sort of 500 to
/// 800 keys takes.
const KEYS: u64 = 512;
/// The classifier's model: 8 MB of logarithms.
const CLASSES: usize = 8;
const FEATURES: usize = 900;

fn frame(from: SocketAddr, port: u16, payload: &[u8]) -> Option<Vec<u8>> {
    let to = SocketAddr::from(([192, 0, 2, 1], port));
    Frame::udp(from, to, payload).ok()?.to_vec().ok()
}

/// Bytes of the payload in a frame of that many.
const fn payload_bytes(bytes: usize) -> usize {
    bytes - 42
}

/// One of the flows: 65536 sources.
fn datagram(random: &mut Random, bytes: usize) -> Option<Vec<u8>> {
    let [_, _, _, _, _, _, a, b] = random.below(FLOWS).to_be_bytes();
    let payload = vec![0; payload_bytes(bytes)];
    frame(SocketAddr::from(([10, 0, a, b], 1_000)), 9, &payload)
}

/// As many tuples as fit, whose answer has the top keys. Some keys come more often than others.
fn tuples(random: &mut Random, bytes: usize) -> Option<Vec<u8>> {
    let count = (payload_bytes(bytes) - 4) / 12;
    let mut payload = vec![3, 0];
    payload.extend((count as u16).to_be_bytes());
    for _ in 0..count {
        let limit = random.below(KEYS) + 1;
        payload.extend(random.below(limit).to_be_bytes());
        payload.extend(1_u32.to_be_bytes());
    }
    payload.resize(payload_bytes(bytes), 0);
    frame(SocketAddr::from(([10, 0, 0, 1], 1_000)), 9_102, &payload)
}

fn features(random: &mut Random, bytes: usize) -> Option<Vec<u8>> {
    let mut payload = vec![1, 0];
    payload.extend((0..FEATURES).map(|_| random.below(256) as u8));
    payload.resize(payload_bytes(bytes).max(payload.len()), 0);
    frame(SocketAddr::from(([10, 0, 0, 1], 1_000)), 9_103, &payload)
}

fn classes() -> String {
    let mut random = Random::new(1);
    let mut text = format!("features = {FEATURES}\nvalues = 256\nclasses = [");
    for class in 0..CLASSES {
        let _ = write!(text, "\"{class}\", ");
    }
    text.push_str("]\n");
    for class in 0..CLASSES {
        let features: Vec<u64> = (0..FEATURES).map(|_| random.below(256)).collect();
        let _ = writeln!(text, "[[sample]]\nclass = \"{class}\"\nfeatures = {features:?}");
    }
    text
}

/// A datagram with the bytes that remain of its flow: as many flows are short as in a web search (pFabric, figure 4).
fn remaining(random: &mut Random, bytes: usize) -> Option<Vec<u8>> {
    let [_, _, _, _, _, _, a, b] = random.below(FLOWS).to_be_bytes();
    let mut payload = vec![0; payload_bytes(bytes)];
    let remaining = 1_u32 << (10 + random.below(15) as u32);
    payload[..4].copy_from_slice(&remaining.to_be_bytes());
    frame(SocketAddr::from(([10, 0, a, b], 1_000)), 9, &payload)
}

/// A chain of one replica, which takes a write and answers: what passes between replicas is another request.
fn head() -> String {
    "address = \"192.0.2.1:9105\"\nmac = \"02:00:00:00:00:01\"\nvalue_bytes = 1024\nkeys_limit = 16384\n"
        .to_owned()
}

/// A write of as long a value as fits.
fn write(random: &mut Random, bytes: usize) -> Option<Vec<u8>> {
    let mut payload = vec![0; payload_bytes(bytes)];
    let len = (payload.len() - 48) as u16;
    payload[0] = 1;
    payload[2..4].copy_from_slice(&len.to_be_bytes());
    payload[8..16].copy_from_slice(&random.below(16_384).to_be_bytes());
    frame(SocketAddr::from(([10, 0, 0, 1], 1_000)), 9_105, &payload)
}

fn back_ends() -> String {
    let mut text = "addresses = [\"192.0.2.1\"]\n".to_owned();
    for at in 0..64 {
        let _ = write!(
            text,
            "[[back_end]]\nname = \"{at}\"\nmac = \"02:00:00:00:01:{at:02x}\"\n"
        );
    }
    text
}

/// Rules with wildcards that packets do not match, and the default that lets them pass.
fn rules() -> String {
    let mut random = Random::new(2);
    let mut text = "default = \"allow\"\nconnections = 0\n".to_owned();
    for _ in 0..RULES {
        let [_, _, a, b, c, d, e, bits] = random.bits().to_be_bytes();
        let destination = format!("198.{}.{c}.{d}", 18 + e % 2);
        let port = u16::from_be_bytes([a, b]);
        let source = match bits % 3 {
            0 => String::new(),
            1 => format!("source = \"10.{a}.0.0/16\"\n"),
            _ => format!("source = \"10.{a}.{b}.0/24\"\n"),
        };
        let _ = write!(
            text,
            "[[rule]]\naction = \"deny\"\nprotocol = \"udp\"\n{source}destination = \"{destination}\"\ndestination_ports = {port}\n"
        );
    }
    text
}

/// Routes to networks of 16 to 24 bits, and a default one.
fn routes() -> String {
    let mut random = Random::new(3);
    let mut text = "[[next_hop]]\nname = \"a\"\n[[next_hop]]\nname = \"b\"\n".to_owned();
    let mut lines = "0.0.0.0/0 a\n".to_owned();
    let mut seen = std::collections::HashSet::new();
    while (seen.len() as u64) < ROUTES {
        let bits = 16 + random.below(9) as u32;
        let address = random.bits() as u32 & (u32::MAX << (32 - bits));
        if seen.insert((address, bits)) {
            let address = std::net::Ipv4Addr::from(address);
            let _ = writeln!(
                lines,
                "{address}/{bits} {}",
                if bits.is_multiple_of(2) { "a" } else { "b" }
            );
        }
    }
    text.insert_str(0, &format!("routes = \"\"\"\n{lines}\"\"\"\n"));
    text
}

#[cfg(test)]
mod tests {
    use model::Nanos;

    use super::*;
    use crate::burst::{Burst, RECEIVED_LIMIT};
    use crate::chain::Chain;
    use crate::library::{LIBRARY, find};

    #[test]
    fn each_request_of_the_table_is_served() {
        for of in TABLE {
            let stage = find(LIBRARY, of.function)
                .unwrap()
                .make(&of.configuration(), &SETUP)
                .unwrap();
            let mut chain = Chain::new(vec![stage]).unwrap();
            let mut burst = Burst::new();
            let requests = of.requests(1_000, REQUEST_BYTES, 7);
            assert_eq!(requests.len(), 1_000);
            let mut left = 0;
            let mut now = Nanos::from_secs(1);
            for requests in requests.chunks(RECEIVED_LIMIT) {
                burst.begin(0, 0);
                for request in requests {
                    assert_eq!(request.len(), REQUEST_BYTES, "{}", of.application);
                    assert!(burst.push(request));
                }
                now = now + Nanos::from_millis(1);
                chain.process(&mut burst, now);
                left += burst.leaving().len();
            }
            // What waits leaves.
            for _ in 0..2_000 {
                now = now + Nanos::from_micros(20);
                if chain.tick(0, &mut burst, 0, now) {
                    left += burst.leaving().len();
                }
            }
            let totals = chain.stages()[0].totals();
            assert_eq!(
                (totals.packets, totals.dropped, left),
                (1_000, 0, 1_000),
                "{}",
                of.application
            );
        }
    }

    #[test]
    fn requests_depend_on_their_seed_alone() {
        for of in TABLE {
            assert_eq!(of.requests(5, 1024, 1), of.requests(5, 1024, 1));
            assert_ne!(of.requests(5, 1024, 1), of.requests(5, 1024, 2));
        }
    }
}
