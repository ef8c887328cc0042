//! The classifier beside a linear scan.
#![allow(clippy::unwrap_used, reason = "what goes wrong here fails the test")]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use functions::firewall::classifier::{HEADERS_LIMIT, first_match};
use functions::firewall::synthetic::{self, Kind, Sequence};
use functions::firewall::{Address, Classifier, Fields, Header, NO_RULE, TooComplex, classbench};
use functions::lpm::Prefix;
use proptest::prelude::*;

/// Rules in a small space, so that they overlap.
fn fields(is_v6: bool) -> impl Strategy<Value = Fields> {
    let prefix = (any::<u16>(), 0_u8..=32).prop_map(move |(bits, len)| {
        // Long prefixes differ in the last bits, short ones in the first.
        let bits = u32::from(bits & 3) << 30 | u32::from(bits >> 2 & 7) << 14 | u32::from(bits >> 5 & 15);
        if is_v6 {
            let bits = u128::from(bits >> 16) << 112 | u128::from(bits & 0xffff);
            Prefix::of(
                IpAddr::V6(Ipv6Addr::from(bits)),
                if len > 16 { 96 + len } else { len },
            )
        } else {
            Prefix::of(IpAddr::V4(Ipv4Addr::from(bits)), len)
        }
    });
    let ports = prop_oneof![
        Just((0, u16::MAX)),
        (0_u16..8, 0_u16..8).prop_map(|(a, b)| (a.min(b), a.max(b))),
        (65530_u16.., 65530_u16..).prop_map(|(a, b)| (a.min(b), a.max(b))),
    ];
    let protocol = prop_oneof![
        Just((None, None)),
        Just((Some(6), None)),
        Just((Some(17), None)),
        (0_u8..4).prop_map(|icmp_type| (Some(1), Some(icmp_type))),
    ];
    (prefix.clone(), prefix, ports.clone(), ports, protocol).prop_map(
        |(src, dst, src_ports, dst_ports, (protocol, icmp_type))| Fields {
            src,
            dst,
            src_ports,
            dst_ports,
            protocol,
            icmp_type,
        },
    )
}

fn header<A: Address>(near: &[Fields], numbers: &mut Sequence) -> Header<A> {
    let mut end = |prefix: Prefix| {
        let bits = match prefix.address() {
            IpAddr::V4(address) => u128::from(u32::from(address)) << 96,
            IpAddr::V6(address) => u128::from(address),
        };
        let noise = u128::from(numbers.next_number()) << 64 | u128::from(numbers.next_number());
        // In the prefix, or near one of its ends.
        match numbers.below(4) {
            0 => bits,
            1 => bits.wrapping_sub(1),
            2 => bits ^ noise.checked_shr(u32::from(prefix.len())).unwrap_or(0),
            _ => bits ^ 1 << (127 - numbers.below(32)),
        }
    };
    let (src, dst) = match near {
        [] => (0, 0),
        [fields, ..] => (end(fields.src), end(fields.dst)),
    };
    let mut port = || match numbers.below(3) {
        0 => 65530 + numbers.below(6) as u16,
        _ => numbers.below(9) as u16,
    };
    let (src_port, dst_port) = (port(), port());
    let (protocol, icmp_type) =
        [(6, 0), (17, 0), (47, 0), (1, numbers.below(5) as u8)][numbers.below(4) as usize];
    Header::new(
        A::from_left_aligned(src),
        A::from_left_aligned(dst),
        src_port,
        dst_port,
        protocol,
        icmp_type,
    )
}

fn agrees<A: Address>(rules: &[Fields], seed: u64) {
    let classifier = Classifier::<A>::new(rules).unwrap();
    let mut numbers = Sequence::new(seed);
    let headers: Vec<Header<A>> = (0..200)
        .map(|_| {
            let at = numbers.below(rules.len() as u64 + 1) as usize;
            header(&rules[at.min(rules.len().saturating_sub(1))..], &mut numbers)
        })
        .collect();
    let mut found = [0; HEADERS_LIMIT];
    for headers in headers.chunks(HEADERS_LIMIT) {
        classifier.classify(headers, &mut found[..headers.len()]);
        for (header, &found) in headers.iter().zip(&found) {
            assert_eq!(found, first_match(rules, header));
        }
    }
}

proptest! {
    #[test]
    fn finds_what_a_linear_scan_finds(
        v4 in prop::collection::vec(fields(false), 0..120),
        v6 in prop::collection::vec(fields(true), 0..120),
        seed in any::<u64>(),
    ) {
        agrees::<u32>(&v4, seed);
        agrees::<u128>(&v6, seed);
        // Of rules of both families in one list, each takes its own.
        let both: Vec<Fields> = v4.iter().zip(&v6).flat_map(|(a, b)| [*a, *b]).collect();
        agrees::<u32>(&both, seed);
        agrees::<u128>(&both, seed);
    }
}

/// A linear scan over columns: a million headers take seconds with it.
struct Scan {
    rules: Vec<[u32; 10]>,
}

impl Scan {
    fn new(rules: &[Fields]) -> Scan {
        let bits = |prefix: Prefix| match prefix.address() {
            IpAddr::V4(address) => u32::from(address),
            IpAddr::V6(_) => unreachable!(),
        };
        let mask = |prefix: Prefix| !u32::MAX.checked_shr(u32::from(prefix.len())).unwrap_or(0);
        let row = |fields: &Fields| {
            let (protocol, protocol_mask) = fields
                .protocol
                .map_or((0, 0), |protocol| (u32::from(protocol), 0xff));
            [
                bits(fields.src),
                mask(fields.src),
                bits(fields.dst),
                mask(fields.dst),
                u32::from(fields.src_ports.0),
                u32::from(fields.src_ports.1 - fields.src_ports.0),
                u32::from(fields.dst_ports.0),
                u32::from(fields.dst_ports.1 - fields.dst_ports.0),
                protocol,
                protocol_mask,
            ]
        };
        Scan {
            rules: rules.iter().map(row).collect(),
        }
    }

    fn first(&self, header: &Header<u32>) -> u32 {
        let (src_port, dst_port) = (u32::from(header.src_port()), u32::from(header.dst_port()));
        let protocol = u32::from(header.protocol());
        self.rules
            .iter()
            .position(|rule| {
                (header.src ^ rule[0]) & rule[1] == 0
                    && (header.dst ^ rule[2]) & rule[3] == 0
                    && src_port.wrapping_sub(rule[4]) <= rule[5]
                    && dst_port.wrapping_sub(rule[6]) <= rule[7]
                    && (protocol ^ rule[8]) & rule[9] == 0
            })
            .map_or(NO_RULE, |at| at as u32)
    }
}

/// Half of the headers in rules, half with another field of another header, which fewer rules match.
fn agrees_on_many(rules: &[Fields], count: usize) {
    let classifier = Classifier::<u32>::new(rules).unwrap();
    let scan = Scan::new(rules);
    let mut headers = synthetic::headers::<u32>(rules, count, 1);
    let mut numbers = Sequence::new(2);
    for at in 0..count / 2 {
        let (own, other) = (headers[at], headers[numbers.below(count as u64) as usize]);
        let choose = |bit: u64| numbers_bit(own.src, own.dst, bit);
        headers[at] = Header::new(
            own.src,
            if choose(0) { other.dst } else { own.dst },
            own.src_port(),
            if choose(1) {
                other.dst_port()
            } else {
                own.dst_port()
            },
            if choose(2) {
                other.protocol()
            } else {
                own.protocol()
            },
            0,
        );
    }
    let mut found = [0; HEADERS_LIMIT];
    let mut matched = 0;
    for headers in headers.chunks(HEADERS_LIMIT) {
        classifier.classify(headers, &mut found[..headers.len()]);
        for (header, &found) in headers.iter().zip(&found) {
            assert_eq!(found, scan.first(header), "{header:?}");
            matched += usize::from(found != NO_RULE);
        }
    }
    assert!(
        matched >= count / 2,
        "only {matched} of {count} headers match a rule"
    );
}

fn numbers_bit(a: u32, b: u32, bit: u64) -> bool {
    (a ^ b.rotate_left(7)).wrapping_mul(0x9e37_79b9) >> (29 + bit) & 1 == 1
}

#[test]
fn finds_what_a_linear_scan_finds_in_thousands_of_rules() {
    for kind in [Kind::AccessList, Kind::Firewall] {
        agrees_on_many(&synthetic::rules(kind, false, 8192, 7), 400_000);
    }
}

#[test]
fn finds_what_a_linear_scan_finds_in_rules_of_classbench() {
    let Some(data) = real_parts::data() else {
        return;
    };
    for file in ["acl1_1k", "fw1_10k"] {
        let mut rules =
            classbench::read(&std::fs::read_to_string(data.join("classbench").join(file)).unwrap()).unwrap();
        rules.truncate(8192);
        // With one group, classes name rows and columns themselves; with several they do not.
        let groups = Classifier::<u32>::new(&rules).unwrap().groups();
        assert_eq!(groups == 1, file == "acl1_1k", "{groups} groups of {file}");
        agrees_on_many(&rules, 400_000);
    }
}

#[test]
fn finds_what_a_linear_scan_finds_in_rules_of_ipv6() {
    let rules = synthetic::rules(Kind::Firewall, true, 2000, 3);
    let classifier = Classifier::<u128>::new(&rules).unwrap();
    let headers = synthetic::headers::<u128>(&rules, 20_000, 4);
    let mut found = [0; HEADERS_LIMIT];
    for headers in headers.chunks(HEADERS_LIMIT) {
        classifier.classify(headers, &mut found[..headers.len()]);
        for (header, &found) in headers.iter().zip(&found) {
            assert_eq!(found, first_match(&rules, header));
        }
    }
}

const ANY: Fields = Fields {
    src: Prefix::ALL_V4,
    dst: Prefix::ALL_V4,
    src_ports: (0, u16::MAX),
    dst_ports: (0, u16::MAX),
    protocol: None,
    icmp_type: None,
};

#[test]
fn thousands_of_ports_of_one_host_are_divided() {
    let rules: Vec<Fields> = (0..8192)
        .map(|n| Fields {
            dst_ports: (n * 8, n * 8 + 5),
            src_ports: if n % 3 == 0 { (0, 1023) } else { (0, u16::MAX) },
            ..ANY
        })
        .collect();
    let classifier = Classifier::<u32>::new(&rules).unwrap();
    let mut numbers = Sequence::new(5);
    let mut found = [0; 1];
    for _ in 0..10_000 {
        let header = Header::new(
            1,
            2,
            numbers.below(2048) as u16,
            numbers.next_number() as u16,
            17,
            0,
        );
        classifier.classify(&[header], &mut found);
        assert_eq!(found[0], first_match(&rules, &header));
    }
    assert!(classifier.bytes() < 4 << 20, "{} bytes", classifier.bytes());
}

#[test]
fn what_cannot_be_compiled_in_bounds_is_refused() {
    let rules = vec![ANY; Classifier::<u32>::RULES_LIMIT + 1];
    assert!(matches!(
        Classifier::<u32>::new(&rules),
        Err(TooComplex::Rules { rules: 32_769 })
    ));
    // The same rule so often is one rule.
    assert!(Classifier::<u32>::new(&rules[1..]).is_ok());
}

#[test]
fn without_rules_nothing_matches() {
    let classifier = Classifier::<u32>::new(&[]).unwrap();
    let mut found = [0; 1];
    classifier.classify(&[Header::new(1, 2, 3, 4, 6, 0)], &mut found);
    assert_eq!(found[0], NO_RULE);
}
