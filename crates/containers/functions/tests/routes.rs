//! Compiled routes beside a search through all lengths.
#![allow(clippy::unwrap_used, reason = "what goes wrong here fails the test")]

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use functions::firewall::synthetic::Sequence;
use functions::lpm::{LOOKUPS_LIMIT, NO_ROUTE, Prefix, Routes4, Routes6, flatten};
use proptest::prelude::*;

/// A map for each length: the definition of what is found.
struct Oracle(HashMap<Prefix, u32>);

impl Oracle {
    fn value(&self, address: IpAddr) -> u32 {
        let bits = if address.is_ipv6() { 128 } else { 32 };
        let mut lengths = (0..=bits).rev();
        lengths
            .find_map(|len| self.0.get(&Prefix::of(address, len)).copied())
            .unwrap_or(NO_ROUTE)
    }
}

fn agrees(routes: BTreeMap<Prefix, u32>, v4: &[u32], v6: &[u128]) {
    let of_family = |is_v6: bool| {
        let routes = routes.iter().filter(move |(prefix, _)| prefix.is_v6() == is_v6);
        flatten(routes.map(|(&prefix, &value)| (prefix, value)), NO_ROUTE)
    };
    let (routes4, routes6) = (Routes4::new(&of_family(false)), Routes6::new(&of_family(true)));
    let oracle = Oracle(routes.into_iter().collect());
    let mut found = [0; LOOKUPS_LIMIT];
    for addresses in v4.chunks(LOOKUPS_LIMIT) {
        routes4.lookup(addresses, &mut found);
        for (&address, &found) in addresses.iter().zip(&found) {
            let address = IpAddr::V4(Ipv4Addr::from(address));
            assert_eq!(found, oracle.value(address), "{address}");
        }
    }
    for addresses in v6.chunks(LOOKUPS_LIMIT) {
        routes6.lookup(addresses, &mut found);
        for (&address, &found) in addresses.iter().zip(&found) {
            let address = IpAddr::V6(Ipv6Addr::from(address));
            assert_eq!(found, oracle.value(address), "{address}");
        }
    }
}

/// The ends of each prefix and what is beside them.
fn near(routes: &BTreeMap<Prefix, u32>) -> (Vec<u32>, Vec<u128>) {
    let (mut v4, mut v6) = (vec![0, 1, u32::MAX], vec![0, 1, u128::MAX, u128::MAX << 64]);
    for prefix in routes.keys() {
        match prefix.address() {
            IpAddr::V4(address) => {
                let first = u32::from(address);
                let last = first | u32::MAX.checked_shr(prefix.len().into()).unwrap_or(0);
                v4.extend([first, last, first.wrapping_sub(1), last.wrapping_add(1)]);
            }
            IpAddr::V6(address) => {
                let first = u128::from(address);
                let last = first | u128::MAX.checked_shr(prefix.len().into()).unwrap_or(0);
                v6.extend([first, last, first.wrapping_sub(1), last.wrapping_add(1)]);
            }
        }
    }
    (v4, v6)
}

proptest! {
    #[test]
    fn the_longest_prefix_is_found(
        v4 in prop::collection::vec((prop_oneof![any::<u32>(), 0_u32..1024, 0xffff_fe00_u32..], 0_u8..=32), 0..60),
        v6 in prop::collection::vec(
            (prop_oneof![any::<u128>(), 0_u128..64, (0_u128..64).prop_map(|n| n << 60), u128::MAX - 64..], 0_u8..=128),
            0..120,
        ),
    ) {
        let v4 = v4.into_iter().map(|(bits, len)| Prefix::of(Ipv4Addr::from(bits).into(), len));
        let v6 = v6.into_iter().map(|(bits, len)| Prefix::of(Ipv6Addr::from(bits).into(), len));
        let routes: BTreeMap<Prefix, u32> = v4.chain(v6).zip(0..).collect();
        let (v4, v6) = near(&routes);
        agrees(routes, &v4, &v6);
    }
}

#[test]
fn the_longest_prefix_is_found_among_many() {
    let mut numbers = Sequence::new(1);
    let mut routes = BTreeMap::new();
    let mut bits = || u128::from(numbers.next_number()) << 64 | u128::from(numbers.next_number());
    for value in 0..100_000 {
        let len = [8, 16, 20, 22, 23, 24, 24, 24, 24, 28, 32][(bits() % 11) as usize];
        routes.insert(Prefix::of(Ipv4Addr::from(bits() as u32).into(), len), value);
        let len = [29, 32, 36, 40, 44, 48, 48, 48, 56, 64, 65, 128][(bits() % 12) as usize];
        let address = 0x2 << 124 | bits() >> 4;
        routes.insert(Prefix::of(Ipv6Addr::from(address).into(), len), value);
    }
    let (mut v4, mut v6) = near(&routes);
    v4.truncate(100_000);
    v6.truncate(50_000);
    v4.extend((0..100_000).map(|_| bits() as u32));
    agrees(routes, &v4, &v6);
}
