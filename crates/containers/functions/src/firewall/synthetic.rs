//! Rules and headers out of a seed, for tests and benches: what ClassBench's seeds look like, where its own rules are
//! too few.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::lpm::Prefix;

use super::{Address, Fields, Header};

/// The kind of a rule set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// An access list: sources and destinations are networks within networks, destination ports are given.
    AccessList,
    /// A firewall: every other rule has a wildcard at one end.
    Firewall,
}

/// A sequence of numbers that a seed determines (Steele, Lea, Flood, "Fast Splittable Pseudorandom Number Generators",
/// OOPSLA 2014).
#[derive(Clone, Debug)]
pub struct Sequence(u64);

impl Sequence {
    /// Starts a sequence.
    pub const fn new(seed: u64) -> Sequence {
        Sequence(seed)
    }

    /// The next number.
    pub fn next_number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// A number below a limit.
    pub fn below(&mut self, limit: u64) -> u64 {
        ((u128::from(self.next_number()) * u128::from(limit)) >> 64) as u64
    }

    fn between(&mut self, (first, last): (u16, u16)) -> u16 {
        first + self.below(u64::from(last - first) + 1) as u16
    }

    fn address(&mut self) -> u128 {
        u128::from(self.next_number()) << 64 | u128::from(self.next_number())
    }
}

/// Destination ports of common services, and ranges of them.
const PORTS: [(u16, u16); 20] = [
    (20, 21),
    (22, 22),
    (23, 23),
    (25, 25),
    (53, 53),
    (80, 80),
    (110, 110),
    (123, 123),
    (135, 139),
    (161, 162),
    (443, 443),
    (1024, 65535),
    (1433, 1434),
    (1521, 1521),
    (1550, 1550),
    (3306, 3306),
    (5060, 5061),
    (6000, 6063),
    (8000, 8999),
    (27400, 27400),
];

/// `count` distinct rules of IPv4, or of IPv6.
pub fn rules(kind: Kind, is_v6: bool, count: usize, seed: u64) -> Vec<Fields> {
    let mut numbers = Sequence::new(seed);
    let sites: Vec<u128> = (0..count / 8 + 8).map(|_| numbers.address()).collect();
    let mut rules = Vec::with_capacity(count);
    let mut known = std::collections::HashSet::new();
    while rules.len() < count {
        let fields = rule(kind, is_v6, &sites, &mut numbers);
        if known.insert((
            fields.src,
            fields.dst,
            fields.src_ports,
            fields.dst_ports,
            fields.protocol,
        )) {
            rules.push(fields);
        }
    }
    // The more special first, as people write them: else the general ones hide most.
    rules.sort_by_key(|fields| std::cmp::Reverse(u32::from(fields.src.len()) + u32::from(fields.dst.len())));
    rules
}

fn rule(kind: Kind, is_v6: bool, sites: &[u128], numbers: &mut Sequence) -> Fields {
    let mut end = |wildcards: u64| {
        // A host or a network of a site; sites share their first bits with others.
        let site = sites[numbers.below(sites.len() as u64) as usize];
        let bits = site ^ numbers.address() >> if is_v6 { 48 } else { 22 };
        let len = match numbers.below(100) {
            n if n < wildcards => numbers.below(3) as u8,
            n if n < wildcards + (100 - wildcards) / 2 => 32,
            n if n < wildcards + (100 - wildcards) * 3 / 4 => 28 + numbers.below(4) as u8,
            _ => 20 + numbers.below(8) as u8,
        };
        if is_v6 {
            Prefix::of(
                IpAddr::V6(Ipv6Addr::from(bits)),
                if len == 32 { 128 } else { len * 2 },
            )
        } else {
            Prefix::of(IpAddr::V4(Ipv4Addr::from((bits >> 96) as u32)), len)
        }
    };
    let (src, dst) = match kind {
        Kind::AccessList => (end(2), end(2)),
        Kind::Firewall => (end(45), end(20)),
    };
    const ALL: (u16, u16) = (0, u16::MAX);
    let protocol = match numbers.below(20) {
        0..12 => Some(6),
        12..17 => Some(17),
        17 => Some(1),
        _ => None,
    };
    let has_ports = matches!(protocol, Some(6 | 17));
    Fields {
        src,
        dst,
        src_ports: match numbers.below(10) {
            0 if has_ports && kind == Kind::Firewall => PORTS[numbers.below(20) as usize],
            _ => ALL,
        },
        dst_ports: match numbers.below(10) {
            0..8 if has_ports => PORTS[numbers.below(20) as usize],
            _ => ALL,
        },
        protocol,
        icmp_type: None,
    }
}

/// `count` distinct headers, each somewhere in a rule.
pub fn headers<A: Address>(rules: &[Fields], count: usize, seed: u64) -> Vec<Header<A>> {
    let mut numbers = Sequence::new(seed);
    let mut known = std::collections::HashSet::with_capacity(count);
    let mut headers = Vec::with_capacity(count);
    while headers.len() < count {
        let fields = &rules[numbers.below(rules.len() as u64) as usize];
        let mut address = |prefix: Prefix| {
            A::from_left_aligned(prefix.first_bits() | numbers.address() & prefix.host_bits())
        };
        let (src, dst) = (address(fields.src), address(fields.dst));
        let protocol = fields
            .protocol
            .unwrap_or(if numbers.below(2) == 0 { 6 } else { 17 });
        let (src_port, dst_port) = match protocol {
            6 | 17 => (
                numbers.between(fields.src_ports),
                numbers.between(fields.dst_ports),
            ),
            _ => (0, 0),
        };
        if known.insert((src.to_ip(), dst.to_ip(), src_port, dst_port, protocol)) {
            headers.push(Header::new(src, dst, src_port, dst_port, protocol, 0));
        }
    }
    headers
}
