//! Access lists.

use std::net::Ipv4Addr;

use dpdk::{ACL_KEYS_LIMIT, Acl, AclKey, AclRule};

use super::eal;

const ALL: AclRule = AclRule {
    src: (Ipv4Addr::UNSPECIFIED, 0),
    dst: (Ipv4Addr::UNSPECIFIED, 0),
    src_ports: (0, u16::MAX),
    dst_ports: (0, u16::MAX),
    protocol: None,
};

#[test]
fn the_first_rule_that_matches_is_found() {
    let net = Ipv4Addr::new(10, 1, 0, 0);
    let rules = [
        AclRule {
            src: (net, 16),
            protocol: Some(6),
            dst_ports: (80, 81),
            ..ALL
        },
        AclRule {
            dst: (Ipv4Addr::new(10, 2, 3, 4), 32),
            ..ALL
        },
        AclRule {
            src: (net, 16),
            ..ALL
        },
    ];
    let acl = Acl::new(&eal(), &rules).unwrap();
    let host = Ipv4Addr::new(10, 1, 9, 9);
    let keys = [
        AclKey::new(host, Ipv4Addr::new(10, 2, 3, 4), 5, 81, 6),
        AclKey::new(host, Ipv4Addr::new(10, 2, 3, 4), 5, 82, 6),
        AclKey::new(host, Ipv4Addr::new(10, 2, 3, 5), 5, 80, 17),
        AclKey::new(Ipv4Addr::new(10, 3, 0, 0), Ipv4Addr::new(10, 2, 3, 5), 5, 80, 17),
    ];
    let mut found = [9; 4];
    acl.classify(&keys, &mut found).unwrap();
    assert_eq!(found, [1, 2, 3, 0]);
    let many = [keys[0]; ACL_KEYS_LIMIT + 1];
    assert!(acl.classify(&many, &mut [0; ACL_KEYS_LIMIT + 1]).is_err());
}

#[test]
fn impossible_rules_are_refused() {
    assert!(Acl::new(&eal(), &[]).is_err());
    assert!(
        Acl::new(
            &eal(),
            &[AclRule {
                src: (Ipv4Addr::UNSPECIFIED, 33),
                ..ALL
            }]
        )
        .is_err()
    );
}
