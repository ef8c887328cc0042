//! Times the firewall's rules beside DPDK's `rte_acl` with the same rules and headers, in one run.
//!
//! `cargo run --release -p functions --features dpdk --example firewall_rate [--hugepages]`. For each rule set once with
//! headers that are all distinct, and once with 100,000 flows of which few have most of the packets (Zipf's law). Both
//! sides take turns on one thread, in bursts of 32; processor time, the median of rounds. Headers are prepared in the
//! form that each side reads. Rules of ClassBench come from the folder that `INCO_DATA` names, if they are there.

#![allow(clippy::unwrap_used, reason = "a bench")]

use std::io::Write;
use std::net::{IpAddr, Ipv4Addr};

use dpdk::{Acl, AclKey, AclRule, Eal, EalConfig};
use functions::firewall::synthetic::{self, Kind, Sequence};
use functions::firewall::{Classifier, Fields, Header, NO_RULE, Verdicts, classbench};
use functions::lpm::Prefix;

const RULES: usize = 8192;
const HEADERS: usize = 1 << 20;
const FLOWS: usize = 100_000;
const BURST: usize = 32;
const ROUNDS: usize = 7;

fn main() {
    let mut config = EalConfig::new(format!("inco-firewall-rate-{}", std::process::id()));
    config.memory_mib = 1024;
    config.hugepages = std::env::args().any(|arg| arg == "--hugepages");
    let eal = Eal::init(&config.args()).unwrap();
    let mut out = std::io::stdout();
    writeln!(
        out,
        "{:<28} {:>6} {:>9} {:>12} {:>8} {:>6}",
        "rules", "count", "headers", "inco Mpps", "rte_acl", "ratio"
    )
    .unwrap();
    for (name, rules) in rule_sets() {
        let distinct = synthetic::headers::<u32>(&rules, HEADERS, 1);
        let classifier = Classifier::new(&rules).unwrap();
        let acl = Acl::new(&eal, &rules.iter().map(rule).collect::<Vec<_>>()).unwrap();
        for (case, headers) in [("distinct", distinct.clone()), ("zipf", zipf(&distinct[..FLOWS]))] {
            let [ours, peer] = rates(&classifier, &acl, &headers);
            writeln!(
                out,
                "{name:<28} {:>6} {case:>9} {ours:>12.1} {peer:>8.1} {:>6.2}   {} groups, {:.1} MB",
                rules.len(),
                ours / peer,
                classifier.groups(),
                classifier.bytes() as f64 / 1e6
            )
            .unwrap();
        }
    }
}

fn rule_sets() -> Vec<(String, Vec<Fields>)> {
    let mut sets = Vec::new();
    for file in ["fw1_10k", "acl1_1k"] {
        let path = real_parts::data_folder().join("classbench").join(file);
        if let Ok(text) = std::fs::read_to_string(path) {
            let mut rules = classbench::read(&text).unwrap();
            rules.truncate(RULES);
            sets.push((format!("ClassBench {file}"), rules));
        }
    }
    for (name, kind) in [
        ("like a firewall", Kind::Firewall),
        ("like an access list", Kind::AccessList),
    ] {
        sets.push((
            format!("synthetic, {name}"),
            synthetic::rules(kind, false, RULES, 7),
        ));
    }
    sets
}

/// As many headers as before, of which flow n comes with a frequency of 1/n.
fn zipf(flows: &[Header<u32>]) -> Vec<Header<u32>> {
    let mut sums = Vec::with_capacity(flows.len());
    let mut sum = 0.0;
    for n in 1..=flows.len() {
        sum += 1.0 / n as f64;
        sums.push(sum);
    }
    let mut numbers = Sequence::new(3);
    (0..HEADERS)
        .map(|_| {
            let at = numbers.below(1 << 53) as f64 / (1_u64 << 53) as f64 * sum;
            flows[sums.partition_point(|&sum| sum <= at).min(flows.len() - 1)]
        })
        .collect()
}

fn rule(fields: &Fields) -> AclRule {
    let end = |prefix: Prefix| match prefix.address() {
        IpAddr::V4(address) => (address, prefix.len()),
        IpAddr::V6(_) => unreachable!("rules of IPv4"),
    };
    AclRule {
        src: end(fields.src),
        dst: end(fields.dst),
        src_ports: fields.src_ports,
        dst_ports: fields.dst_ports,
        protocol: fields.protocol,
    }
}

/// Millions of headers a second of processor time, ours and DPDK's.
fn rates(classifier: &Classifier<u32>, acl: &Acl, headers: &[Header<u32>]) -> [f64; 2] {
    let keys: Vec<AclKey> = headers
        .iter()
        .map(|h| {
            AclKey::new(
                Ipv4Addr::from(h.src),
                Ipv4Addr::from(h.dst),
                h.src_port(),
                h.dst_port(),
                h.protocol(),
            )
        })
        .collect();
    let mut verdicts = Verdicts::default();
    let mut ours = vec![NO_RULE; headers.len()];
    let mut theirs = vec![0; headers.len()];
    let mut seconds = [Vec::new(), Vec::new()];
    for _ in 0..ROUNDS {
        seconds[0].push(timed(|| {
            for (headers, rules) in headers.chunks(BURST).zip(ours.chunks_mut(BURST)) {
                verdicts.classify(classifier, headers, rules);
            }
        }));
        seconds[1].push(timed(|| {
            for (keys, rules) in keys.chunks(BURST).zip(theirs.chunks_mut(BURST)) {
                acl.classify(keys, rules).unwrap();
            }
        }));
    }
    for (at, (&ours, &theirs)) in ours.iter().zip(&theirs).enumerate() {
        assert_eq!(ours.wrapping_add(1), theirs, "{:?}", headers[at]);
    }
    seconds.map(|mut rounds| {
        rounds.sort_by(f64::total_cmp);
        headers.len() as f64 / rounds[ROUNDS / 2] / 1e6
    })
}

fn timed(step: impl FnOnce()) -> f64 {
    let start = clock::thread_cpu();
    step();
    (clock::thread_cpu().0 - start.0) as f64 / 1e9
}
