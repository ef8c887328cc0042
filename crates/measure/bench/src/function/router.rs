//! `router` beside DPDK's `rte_fib` and `rte_fib6`, with the same routes and addresses.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use anyhow::{Context as _, Result, anyhow, bail};
use dpdk::{Routes, RoutesKind};
use functions::RECEIVED_LIMIT;
use functions::firewall::synthetic::Sequence;
use functions::lpm::{NO_ROUTE, Prefix, Routes4, Routes6, flatten};

use super::frames::{SIZES, udp, zipf};
use super::service::Served;
use super::session::{Case, Peer, Session, refused};
use super::side::lookups;
use super::through::{Through, chain};

/// What was measured.
pub(super) const NOTE: &str = "`routes`: the lookup alone, beside rte_fib and rte_fib6; both must find the same next hop of \
    each address. `packets`: all of the function. Addresses are distinct, each in a random route, or those of 100,000 hosts \
    by Zipf's law";

/// Routes of each family, with the lengths that the Internet's have.
const ROUTES: usize = 1_000_000;
/// Distinct addresses.
const ADDRESSES: usize = 1 << 19;
/// Hosts of which few have most of the packets.
const HOSTS: usize = 100_000;
/// The same where it is the instance of a service.
const SERVED_ROUTES: usize = 100_000;
const SERVED_HOSTS: usize = 1_000;
const NEXT_HOPS: u64 = 64;
/// Tables for long prefixes that the peers may use.
const GROUPS_V4: u32 = 1 << 15;
const GROUPS_V6: u32 = 1 << 20;
/// The size for which rates of lookups are given in Gbit/s: the shortest packet with addresses of IPv6.
const LOOKUP_SIZE: usize = SIZES[0];
/// The shortest packets of IPv6 here, on the wire.
const SIZE_V6: usize = 128;

type Table = BTreeMap<Prefix, u32>;

/// Measures it.
pub(super) fn measure(session: &mut Session) -> Result<()> {
    let mut numbers = Sequence::new(1);
    let v4 = routes_v4(ROUTES, &mut numbers);
    let distinct: Vec<u32> = in_routes(&v4, ADDRESSES, &mut numbers)
        .iter()
        .map(|bits| (bits >> 96) as u32)
        .collect();
    let skewed = zipf(&distinct[..HOSTS], ADDRESSES, &mut numbers);
    lookups_v4(session, &v4, &distinct, &skewed)?;

    let v6 = routes_v6(ROUTES, &mut numbers);
    let distinct = in_routes(&v6, ADDRESSES, &mut numbers);
    let skewed_v6 = zipf(&distinct[..HOSTS], ADDRESSES, &mut numbers);
    lookups_v6(session, &v6, &distinct, &skewed_v6)?;

    let to_v4: Vec<IpAddr> = skewed[..HOSTS]
        .iter()
        .map(|&address| Ipv4Addr::from(address).into())
        .collect();
    let to_v6: Vec<IpAddr> = skewed_v6[..HOSTS]
        .iter()
        .map(|&address| Ipv6Addr::from(address).into())
        .collect();
    packets(session, "IPv4", &v4, &to_v4, &SIZES)?;
    packets(session, "IPv6", &v6, &to_v6, &[SIZE_V6, 512, 1500])
}

/// As the instance of a service.
pub(super) fn served() -> Result<Served> {
    let mut numbers = Sequence::new(1);
    let routes = routes_v4(SERVED_ROUTES, &mut numbers);
    let from = SocketAddr::from(([192, 0, 2, 1], 1024));
    let hosts = in_routes(&routes, SERVED_HOSTS, &mut numbers);
    let frames = hosts.iter().map(|bits| {
        let to = Ipv4Addr::from((bits >> 96) as u32);
        udp(from, (to, 53).into(), SIZES[0])
    });
    let frames = frames.collect::<Result<_>>()?;
    Ok(Served::of(configuration(&routes), SERVED_ROUTES, frames))
}

fn lookups_v4(session: &mut Session, routes: &Table, distinct: &[u32], skewed: &[u32]) -> Result<()> {
    let ours = Routes4::new(&flatten(
        routes.iter().map(|(&prefix, &value)| (prefix, value)),
        NO_ROUTE,
    ));
    let peer = peer(session, RoutesKind::Fib, routes, GROUPS_V4);
    for (kind, addresses) in [("distinct", distinct), ("zipf", skewed)] {
        let mut our_side = lookups(addresses, |addresses, found| {
            ours.lookup(addresses, found);
            Ok(())
        });
        let peer = match &peer {
            Ok(peer) => {
                agree(
                    addresses,
                    |some, found| ours.lookup(some, found),
                    addresses,
                    |some, found| peer.lookup4(some, found).map_err(refused),
                )?;
                Ok(lookups(addresses, |some, found| {
                    peer.lookup4(some, found).map_err(refused)
                }))
            }
            Err(error) => Err(anyhow!("{error:#}")),
        };
        let case = Case::new(format!("routes: IPv4, {kind}"), ROUTES, LOOKUP_SIZE);
        session.case(&case, &mut our_side, Some(Peer::of("rte_fib", peer)))?;
    }
    Ok(())
}

fn lookups_v6(session: &mut Session, routes: &Table, distinct: &[u128], skewed: &[u128]) -> Result<()> {
    let ours = Routes6::new(&flatten(
        routes.iter().map(|(&prefix, &value)| (prefix, value)),
        NO_ROUTE,
    ));
    let peer = peer(session, RoutesKind::Fib6, routes, GROUPS_V6);
    for (kind, addresses) in [("distinct", distinct), ("zipf", skewed)] {
        let bytes: Vec<[u8; 16]> = addresses.iter().map(|address| address.to_be_bytes()).collect();
        let mut our_side = lookups(addresses, |addresses, found| {
            ours.lookup(addresses, found);
            Ok(())
        });
        let peer = match &peer {
            Ok(peer) => {
                agree(
                    addresses,
                    |some, found| ours.lookup(some, found),
                    &bytes,
                    |some, found| peer.lookup6(some, found).map_err(refused),
                )?;
                Ok(lookups(&bytes, |some: &[[u8; 16]], found| {
                    peer.lookup6(some, found).map_err(refused)
                }))
            }
            Err(error) => Err(anyhow!("{error:#}")),
        };
        let case = Case::new(format!("routes: IPv6, {kind}"), ROUTES, LOOKUP_SIZE);
        session.case(&case, &mut our_side, Some(Peer::of("rte_fib6", peer)))?;
    }
    Ok(())
}

/// DPDK's table of the same routes.
fn peer(session: &Session, kind: RoutesKind, routes: &Table, groups: u32) -> Result<Routes> {
    let eal = session.eal()?;
    Routes::new(&eal, kind, &rows(routes), groups).context("DPDK refuses the routes")
}

/// Both find the same next hop of each address.
fn agree<A, B>(
    ours: &[A],
    our_lookup: impl Fn(&[A], &mut [u32]),
    theirs: &[B],
    their_lookup: impl Fn(&[B], &mut [u32]) -> Result<()>,
) -> Result<()> {
    let (mut found, mut expected) = ([0; RECEIVED_LIMIT], [0; RECEIVED_LIMIT]);
    for (ours, theirs) in ours.chunks(RECEIVED_LIMIT).zip(theirs.chunks(RECEIVED_LIMIT)) {
        our_lookup(ours, &mut found[..ours.len()]);
        their_lookup(theirs, &mut expected[..theirs.len()])?;
        if found != expected {
            bail!("next hops {found:?}, and {expected:?} by the peer");
        }
    }
    Ok(())
}

/// All of the function: packets to hosts.
fn packets(
    session: &mut Session,
    family: &str,
    routes: &Table,
    hosts: &[IpAddr],
    sizes: &[usize],
) -> Result<()> {
    // A million routes are set up once for all sizes.
    let mut functions = Some(chain("router", &configuration(routes))?);
    for &size in sizes {
        let from: SocketAddr = match family {
            "IPv4" => ([192, 0, 2, 1], 1024).into(),
            _ => ([0x2001, 0xdb8, 0, 0, 0, 0, 0, 1], 1024).into(),
        };
        let frames = hosts
            .iter()
            .map(|&to| udp(from, (to, 53).into(), size))
            .collect::<Result<Vec<_>>>()?;
        let mut ours = Through::new(functions.take(), &frames)?;
        session.case(
            &Case::new(format!("packets: {family}, zipf"), ROUTES, size),
            &mut ours,
            None,
        )?;
        functions = ours.into_chain();
    }
    Ok(())
}

/// The function's configuration.
fn configuration(routes: &Table) -> String {
    let mut text = String::with_capacity(routes.len() * 24);
    text.push_str("routes = '''\n");
    for (prefix, value) in routes {
        // Writing into a string does not fail.
        let _ = writeln!(text, "{}/{} hop{value}", prefix.address(), prefix.len());
    }
    text.push_str("'''\n");
    for hop in 0..NEXT_HOPS {
        let _ = write!(
            text,
            "[[next_hop]]\nname = \"hop{hop}\"\nmac = \"02:00:00:00:01:{hop:02x}\"\n"
        );
    }
    text
}

/// Lengths with the shares that they have among the routes of the Internet, in percent.
fn routes_v4(count: usize, numbers: &mut Sequence) -> Table {
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
    let mut routes = Table::new();
    while routes.len() < count {
        // Unicast addresses, and none of the host itself: the function drops what goes there.
        let network = match 1 + numbers.below(223) {
            127 => 128,
            network => network,
        };
        let address = network << 24 | numbers.below(1 << 24);
        let prefix = Prefix::of(
            IpAddr::V4(Ipv4Addr::from(address as u32)),
            length(&LENGTHS, numbers),
        );
        routes.insert(prefix, numbers.below(NEXT_HOPS) as u32);
    }
    routes
}

fn routes_v6(count: usize, numbers: &mut Sequence) -> Table {
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
    let mut routes = Table::new();
    while routes.len() < count {
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
fn in_routes(routes: &Table, count: usize, numbers: &mut Sequence) -> Vec<u128> {
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

fn rows(routes: &Table) -> Vec<(IpAddr, u8, u32)> {
    routes
        .iter()
        .map(|(prefix, &value)| (prefix.address(), prefix.len(), value))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_to_addresses_in_routes_leave_the_function() {
        let mut numbers = Sequence::new(1);
        let tables = [routes_v4(20_000, &mut numbers), routes_v6(20_000, &mut numbers)];
        for (routes, from) in tables.iter().zip(["192.0.2.1:1", "[2001:db8::1]:1"]) {
            let frames: Vec<Vec<u8>> = in_routes(routes, 8_192, &mut numbers)
                .into_iter()
                .map(|bits| {
                    let to: IpAddr = if from.starts_with('[') {
                        Ipv6Addr::from(bits).into()
                    } else {
                        Ipv4Addr::from((bits >> 96) as u32).into()
                    };
                    udp(from.parse().unwrap(), (to, 53).into(), SIZE_V6).unwrap()
                })
                .collect();
            Through::new(Some(chain("router", &configuration(routes)).unwrap()), &frames).unwrap();
        }
    }
}
