//! Times the lookup of routes beside DPDK's tables with the same routes and addresses, in one run.
//!
//! `cargo run --release -p functions --features dpdk --example route_rate [--hugepages]`. A million routes of each
//! family, with the lengths that the Internet's have. Addresses are in random routes, each once, or those of 100,000
//! hosts of which few have most of the packets (Zipf's law). All take turns on one thread, in bursts of 32; processor
//! time, the median of rounds.

#![allow(clippy::unwrap_used, reason = "a bench")]

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use dpdk::{Eal, EalConfig, Routes, RoutesKind};
use functions::firewall::synthetic::Sequence;
use functions::lpm::{NO_ROUTE, Prefix, Routes4, Routes6, flatten};

const ROUTES: usize = 1_000_000;
const ADDRESSES: usize = 1 << 20;
const HOSTS: usize = 100_000;
const NEXT_HOPS: u64 = 64;
const BURST: usize = 32;
const ROUNDS: usize = 7;

fn main() {
    let mut config = EalConfig::new(format!("inco-route-rate-{}", std::process::id()));
    config.memory_mib = 2048;
    config.hugepages = std::env::args().any(|arg| arg == "--hugepages");
    let eal = Eal::init(&config.args()).unwrap();
    let mut numbers = Sequence::new(1);

    let routes = routes_v4(&mut numbers);
    let ours = Routes4::new(&flatten(
        routes.iter().map(|(&prefix, &value)| (prefix, value)),
        NO_ROUTE,
    ));
    report_header(ours.bytes());
    let distinct: Vec<u32> = in_routes(&routes, ADDRESSES, &mut numbers)
        .iter()
        .map(|bits| (bits >> 96) as u32)
        .collect();
    for kind in [RoutesKind::Lpm, RoutesKind::Fib] {
        let peer = Routes::new(&eal, kind, &rows(&routes), 1 << 15).unwrap();
        for (case, addresses) in [
            ("distinct", distinct.clone()),
            ("zipf", zipf(&distinct, &mut numbers)),
        ] {
            let rates = rates(
                &addresses,
                |addresses, values| ours.lookup(addresses, values),
                &addresses,
                |addresses, values| peer.lookup4(addresses, values).unwrap(),
            );
            report(kind, case, rates);
        }
    }

    let routes = routes_v6(&mut numbers);
    let ours = Routes6::new(&flatten(
        routes.iter().map(|(&prefix, &value)| (prefix, value)),
        NO_ROUTE,
    ));
    report_header(ours.bytes());
    let distinct = in_routes(&routes, ADDRESSES, &mut numbers);
    for kind in [RoutesKind::Lpm6, RoutesKind::Fib6] {
        let peer = match Routes::new(&eal, kind, &rows(&routes), 1 << 20) {
            Ok(peer) => peer,
            Err(error) => {
                println!("{kind:?}: {error}");
                continue;
            }
        };
        for (case, addresses) in [
            ("distinct", distinct.clone()),
            ("zipf", zipf(&distinct, &mut numbers)),
        ] {
            let bytes: Vec<[u8; 16]> = addresses.iter().map(|address| address.to_be_bytes()).collect();
            let rates = rates(
                &addresses,
                |addresses, values| ours.lookup(addresses, values),
                &bytes,
                |addresses, values| peer.lookup6(addresses, values).unwrap(),
            );
            report(kind, case, rates);
        }
    }
}

fn report_header(bytes: usize) {
    println!("{ROUTES} routes in {:.1} MB", bytes as f64 / 1e6);
    println!(
        "{:<8} {:>9} {:>12} {:>12} {:>6}",
        "peer", "addresses", "inco Mpps", "peer Mpps", "ratio"
    );
}

fn report(kind: RoutesKind, case: &str, [ours, peer]: [f64; 2]) {
    let kind = format!("{kind:?}");
    println!(
        "{kind:<8} {case:>9} {ours:>12.1} {peer:>12.1} {:>6.2}",
        ours / peer
    );
}

/// Lengths with the shares that they have among the routes of the Internet, in percent.
fn routes_v4(numbers: &mut Sequence) -> BTreeMap<Prefix, u32> {
    const LENGTHS: [(u8, u64); 10] = [
        (24, 60),
        (23, 10),
        (22, 11),
        (21, 5),
        (20, 5),
        (19, 3),
        (18, 2),
        (16, 2),
        (12, 1),
        (28, 1),
    ];
    let mut routes = BTreeMap::new();
    while routes.len() < ROUTES {
        // Unicast addresses.
        let address = (1 + numbers.below(223)) << 24 | numbers.below(1 << 24);
        let prefix = Prefix::of(
            IpAddr::V4(Ipv4Addr::from(address as u32)),
            length(&LENGTHS, numbers),
        );
        routes.insert(prefix, numbers.below(NEXT_HOPS) as u32);
    }
    routes
}

fn routes_v6(numbers: &mut Sequence) -> BTreeMap<Prefix, u32> {
    const LENGTHS: [(u8, u64); 8] = [
        (48, 50),
        (32, 12),
        (44, 10),
        (40, 10),
        (36, 8),
        (29, 4),
        (64, 4),
        (56, 2),
    ];
    // What registries have assigned: networks of 32 bits, in few of 12 bits.
    let networks: Vec<u128> = (0..60_000)
        .map(|_| u128::from(0x200 + numbers.below(16) * 3) << 116 | u128::from(numbers.below(1 << 20)) << 96)
        .collect();
    let mut routes = BTreeMap::new();
    while routes.len() < ROUTES {
        let network = networks[numbers.below(networks.len() as u64) as usize];
        let address = network | u128::from(numbers.next_number()) << 32;
        let prefix = Prefix::of(IpAddr::V6(Ipv6Addr::from(address)), length(&LENGTHS, numbers));
        routes.insert(prefix, numbers.below(NEXT_HOPS) as u32);
    }
    routes
}

fn length(lengths: &[(u8, u64)], numbers: &mut Sequence) -> u8 {
    let mut share = numbers.below(100);
    for &(len, of) in lengths {
        if share < of {
            return len;
        }
        share -= of;
    }
    lengths[0].0
}

/// Addresses in random routes, from the highest bit on.
fn in_routes(routes: &BTreeMap<Prefix, u32>, count: usize, numbers: &mut Sequence) -> Vec<u128> {
    let prefixes: Vec<Prefix> = routes.keys().copied().collect();
    (0..count)
        .map(|_| {
            let prefix = prefixes[numbers.below(prefixes.len() as u64) as usize];
            let first = match prefix.address() {
                IpAddr::V4(address) => u128::from(u32::from(address)) << 96,
                IpAddr::V6(address) => u128::from(address),
            };
            let noise = u128::from(numbers.next_number()) << 64 | u128::from(numbers.next_number());
            first | noise.checked_shr(u32::from(prefix.len())).unwrap_or(0)
        })
        .collect()
}

fn rows(routes: &BTreeMap<Prefix, u32>) -> Vec<(IpAddr, u8, u32)> {
    routes
        .iter()
        .map(|(prefix, &value)| (prefix.address(), prefix.len(), value))
        .collect()
}

/// As many addresses, of which the n-th of the first [`HOSTS`] comes with a frequency of 1/n.
fn zipf<T: Copy>(addresses: &[T], numbers: &mut Sequence) -> Vec<T> {
    let mut sum = 0.0;
    let sums: Vec<f64> = (1..=HOSTS)
        .map(|n| {
            sum += 1.0 / n as f64;
            sum
        })
        .collect();
    (0..addresses.len())
        .map(|_| {
            let at = numbers.below(1 << 53) as f64 / (1_u64 << 53) as f64 * sum;
            addresses[sums.partition_point(|&sum| sum <= at).min(HOSTS - 1)]
        })
        .collect()
}

/// Millions of lookups a second of processor time. Both must find the same.
fn rates<A, B>(
    addresses: &[A],
    ours: impl Fn(&[A], &mut [u32]),
    of_peer: &[B],
    peer: impl Fn(&[B], &mut [u32]),
) -> [f64; 2] {
    let (mut found, mut expected) = (vec![0; addresses.len()], vec![0; addresses.len()]);
    let mut seconds = [Vec::new(), Vec::new()];
    for _ in 0..ROUNDS {
        seconds[0].push(timed(|| {
            for (addresses, values) in addresses.chunks(BURST).zip(found.chunks_mut(BURST)) {
                ours(addresses, values);
            }
        }));
        seconds[1].push(timed(|| {
            for (addresses, values) in of_peer.chunks(BURST).zip(expected.chunks_mut(BURST)) {
                peer(addresses, values);
            }
        }));
    }
    assert_eq!(found, expected);
    seconds.map(|mut rounds| {
        rounds.sort_by(f64::total_cmp);
        addresses.len() as f64 / rounds[ROUNDS / 2] / 1e6
    })
}

fn timed(step: impl FnOnce()) -> f64 {
    let start = clock::thread_cpu();
    step();
    (clock::thread_cpu().0 - start.0) as f64 / 1e9
}
