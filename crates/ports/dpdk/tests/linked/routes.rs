//! Tables of routes.

use std::net::IpAddr;

use dpdk::{ROUTES_ADDRESSES_LIMIT, Routes, RoutesKind};

use super::eal;

#[test]
fn the_longest_prefix_is_found() {
    let route = |text: &str, len, value| (text.parse::<IpAddr>().unwrap(), len, value);
    let v4 = [
        route("10.0.0.0", 8, 1),
        route("10.1.0.0", 16, 2),
        route("10.1.2.3", 32, 3),
    ];
    for kind in [RoutesKind::Lpm, RoutesKind::Fib] {
        let routes = Routes::new(&eal(), kind, &v4, 16).unwrap();
        let mut found = [0; 4];
        routes
            .lookup4(&[0x0a02_0000, 0x0a01_0203, 0x0a01_0204, 0x0b00_0000], &mut found)
            .unwrap();
        assert_eq!(found, [1, 3, 2, u32::MAX], "{kind:?}");
        assert!(routes.lookup6(&[[0; 16]], &mut found).is_err());
        assert!(
            routes
                .lookup4(
                    &[0; ROUTES_ADDRESSES_LIMIT + 1],
                    &mut [0; ROUTES_ADDRESSES_LIMIT + 1]
                )
                .is_err()
        );
    }
    let v6 = [
        route("2001:db8::", 32, 1),
        route("2001:db8:1::", 48, 2),
        route("2001:db8:1::1", 128, 3),
    ];
    for kind in [RoutesKind::Lpm6, RoutesKind::Fib6] {
        let routes = Routes::new(&eal(), kind, &v6, 64).unwrap();
        let addresses = ["2001:db8:2::", "2001:db8:1::1", "2001:db8:1::2", "2001:db9::"];
        let addresses = addresses.map(|text| text.parse::<std::net::Ipv6Addr>().unwrap().octets());
        let mut found = [0; 4];
        routes.lookup6(&addresses, &mut found).unwrap();
        assert_eq!(found, [1, 3, 2, u32::MAX], "{kind:?}");
    }
    assert!(Routes::new(&eal(), RoutesKind::Lpm6, &v4, 16).is_err());
    assert!(Routes::new(&eal(), RoutesKind::Lpm, &[], 16).is_err());
}
