//! Flows that share an instance, by memif and on several workers.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use model::{AffinityKey, InstanceState, Match};
use packet::TcpFlags;
use packet::build::Frame;
use switch::{ServicePlan, SwitchRequest};

use crate::bed::{Bed, echo, service, stamp};
use crate::kept::Kept;

/// Servers that each client asks: their flows have several owners.
const SERVERS: [&str; 4] = [
    "192.0.2.1:80",
    "192.0.2.2:80",
    "198.51.100.9:443",
    "[2001:db8::1]:80",
];

fn sharing(key: AffinityKey) -> ServicePlan {
    ServicePlan {
        affinity_key: key,
        ..service(0, &[0], Match::default())
    }
}

fn client_of(number: u8, server: &str, port: u16) -> SocketAddr {
    if server.starts_with('[') {
        format!("[2001:db8:1::{number:x}]:{port}").parse().unwrap()
    } else {
        SocketAddr::from(([10, 0, 0, number], port))
    }
}

/// The instances of each client's flows to each server, from these ports.
fn instances(bed: &mut Bed, ports: std::ops::Range<u16>) -> BTreeMap<(u8, &'static str), BTreeSet<u8>> {
    let mut found: BTreeMap<_, BTreeSet<u8>> = BTreeMap::new();
    for number in 1..=12 {
        for server in SERVERS {
            for port in ports.clone() {
                let from = client_of(number, server, port);
                let frame = Frame::udp(from, server.parse().unwrap(), b"a stamp has its place here").unwrap();
                bed.send(0, [frame.to_vec().unwrap().as_slice()]);
                let came = bed.take_all(0, 1);
                found.entry((number, server)).or_default().insert(stamp(&came[0]));
            }
        }
    }
    found
}

#[test]
fn flows_of_one_client_share_an_instance_whoever_owns_them() {
    for workers in [1, 2] {
        let mut bed = Bed::new(workers, 1, vec![sharing(AffinityKey::Source)]);
        for slot in 0..3 {
            bed.add(slot, 0, 1, echo);
        }
        let found = instances(&mut bed, 1000..1003);
        let mut of_clients: BTreeMap<(u8, bool), BTreeSet<u8>> = BTreeMap::new();
        for ((number, server), slots) in &found {
            let is_v6 = server.starts_with('[');
            of_clients.entry((*number, is_v6)).or_default().extend(slots);
        }
        assert!(of_clients.values().all(|slots| slots.len() == 1), "{found:?}");
        let used: BTreeSet<u8> = of_clients.values().flatten().copied().collect();
        assert_eq!(used.len(), 3, "{found:?}");
        // Those of an instance whose flows are taken away get another one, together, or the same.
        bed.ask(SwitchRequest::PurgeSlot(model::Slot(0)));
        bed.set_state(0, 0, InstanceState::Draining);
        bed.publish();
        let later = instances(&mut bed, 1000..1003);
        for (of, slots) in &later {
            assert!(slots.len() == 1 && !slots.contains(&0), "{of:?}: {slots:?}");
            if !found[of].contains(&0) {
                assert_eq!(slots, &found[of], "{of:?}");
            }
        }
        bed.finish();
    }
}

#[test]
fn flows_between_two_addresses_share_an_instance_and_others_do_not() {
    let mut bed = Bed::new(2, 1, vec![sharing(AffinityKey::Addresses)]);
    for slot in 0..3 {
        bed.add(slot, 0, 1, echo);
    }
    let found = instances(&mut bed, 1000..1003);
    assert!(found.values().all(|slots| slots.len() == 1), "{found:?}");
    let of_client = |number: u8| {
        let mut of: Vec<u8> = found
            .iter()
            .filter(|((of, _), _)| *of == number)
            .flat_map(|(_, s)| s)
            .copied()
            .collect();
        of.dedup();
        of.len()
    };
    assert!((1..=12).any(|number| of_client(number) > 1), "{found:?}");
    bed.finish();
}

/// Fragments and ICMP errors of such a flow, and the middle of an unknown connection, go where its client's flows are.
#[test]
fn what_has_no_ports_goes_where_the_clients_flows_are() {
    for workers in [1, 2] {
        let mut bed = Bed::new(
            workers,
            1,
            vec![ServicePlan {
                recovers: true,
                ..sharing(AffinityKey::Source)
            }],
        );
        for slot in 0..3 {
            bed.add(slot, 0, 1, echo);
        }
        let found = instances(&mut bed, 1000..1001);
        for number in 1..=12 {
            for server in &SERVERS[..3] {
                let expected = &found[&(number, *server)];
                let (from, to): (SocketAddr, SocketAddr) =
                    (client_of(number, server, 5000), server.parse().unwrap());
                let middle =
                    Frame::tcp(from, to, TcpFlags(TcpFlags::ACK), b"a stamp has its place here").unwrap();
                let quoted = Frame::tcp(to, from, TcpFlags(TcpFlags::ACK), b"eight bytes").unwrap();
                let (quoted, router) = (quoted.to_vec().unwrap(), "203.0.113.1".parse().unwrap());
                let error = Frame::icmp(router, to.ip(), 3, 4, [0, 0, 5, 0], &quoted[14..]).unwrap();
                for frame in [error, middle] {
                    bed.send(0, [frame.to_vec().unwrap().as_slice()]);
                    let came = bed.take_all(0, 1);
                    assert!(
                        expected.contains(&stamp(&came[0])),
                        "{from} to {to}: {expected:?}"
                    );
                }
            }
        }
        bed.finish();
    }
}

#[test]
fn the_next_run_knows_which_flows_share_an_instance() {
    let kept = Kept::start();
    let mut bed = Bed::with(2, 1, vec![sharing(AffinityKey::Source)], |config| {
        config.keep = kept.run()
    });
    for slot in 0..3 {
        bed.add(slot, 0, 1, echo);
    }
    let found = instances(&mut bed, 1000..1001);
    bed.run_again(|config| config.keep = kept.run());
    for slot in 0..3_u16 {
        let socket = bed.functions[usize::from(slot)].socket.clone();
        bed.attach(slot, 0, socket, 1, 1);
        bed.set_state(slot, 0, InstanceState::Active);
        bed.publish();
    }
    // New flows of the same clients.
    assert_eq!(instances(&mut bed, 2000..2001), found);
    bed.finish();
}
