//! Which instance gets the flows that are not picked by load: those that share one, the middle of a connection, errors
//! about what is not known.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::AsFd as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use model::{AffinityKey, FlowKey, InstanceState, Slot};
use scheduling::{NewFlow, RSS_ENTRIES, Scheduler};
use switch::{ServicePlan, Switch};

use crate::bed::{Bed, World, available};
use crate::frames::{ACK, SYN, icmp_error, tcp, tuple, udp};
use crate::steering::service;

/// Three instances behind the address.
fn bed(change: impl FnOnce(&mut World, &mut ServicePlan)) -> Bed {
    let (mut world, mut service) = (World::new(3), service());
    world.config.shares = true;
    change(&mut world, &mut service);
    let mut bed = Bed::new(world, service);
    bed.add(0..3, &[]);
    bed.received();
    bed
}

#[test]
fn flows_of_one_client_share_an_instance() {
    if !available() {
        return;
    }
    for key in [AffinityKey::Source, AffinityKey::Addresses] {
        let mut bed = bed(|_, service| service.affinity_key = key);
        let mut used = BTreeSet::new();
        let mut slot_of = BTreeMap::new();
        for client in 1..=9 {
            for (port, server) in [
                (4000, "10.0.0.100:80"),
                (4001, "10.0.0.100:443"),
                (4002, "10.0.0.100:80"),
            ] {
                let client_end = format!("198.51.100.{client}:{port}");
                let (slot, _) = bed.sent(&udp(&client_end, server, b"x"));
                assert_eq!(
                    *slot_of.entry(client).or_insert(slot),
                    slot,
                    "{key:?}, client {client}"
                );
                used.insert(slot);
            }
        }
        // The scheduler has picked for clients, in turn.
        assert_eq!(used.len(), 3);
        let counts: Vec<_> = used
            .iter()
            .map(|slot| slot_of.values().filter(|of| *of == slot).count())
            .collect();
        assert_eq!(counts, [3, 3, 3]);
        assert_eq!(bed.flows().len(), 27);
        // While one drains, its flows stay and its clients' new ones go elsewhere, together.
        let first = slot_of[&1];
        bed.set_state(first, Some(InstanceState::Draining));
        assert_eq!(
            bed.sent(&udp("198.51.100.1:4000", "10.0.0.100:80", b"x")).0,
            first
        );
        let (next, _) = bed.sent(&udp("198.51.100.1:5000", "10.0.0.100:80", b"x"));
        assert_ne!(next, first);
        for port in 5001..5006 {
            let client = format!("198.51.100.1:{port}");
            assert_eq!(bed.sent(&udp(&client, "10.0.0.100:443", b"x")).0, next);
        }
        bed.switch.stop();
    }
}

#[test]
fn without_a_common_key_flows_of_one_client_are_spread() {
    if !available() {
        return;
    }
    let mut bed = bed(|_, _| {});
    let slots: BTreeSet<Slot> = (4000..4006)
        .map(|port| {
            bed.sent(&udp(&format!("198.51.100.1:{port}"), "10.0.0.100:80", b"x"))
                .0
        })
        .collect();
    assert_eq!(slots.len(), 3);
    bed.switch.stop();
}

/// Where the middle of each of 64 connections goes, and how many were counted.
fn recovered(policy: &str, secret: u64) -> (Vec<Slot>, u64) {
    let mut bed = bed(|world, service| {
        service.scheduler = Scheduler::from_name(policy).unwrap();
        world.config.hash_key = [secret, !secret];
    });
    let server = "10.0.0.100:80";
    let mut slots = Vec::new();
    for port in 4000..4064 {
        let client = format!("198.51.100.7:{port}");
        // An error that comes first makes no flow, and goes where the connection is.
        let (told, _) = bed.sent(&icmp_error(
            "203.0.113.1",
            "10.0.0.100",
            &tcp(server, &client, ACK),
        ));
        let (slot, _) = bed.sent(&tcp(&client, server, ACK));
        assert_eq!(told, slot, "{client}");
        slots.push(slot);
    }
    bed.turn();
    assert_eq!(bed.flows().len(), 64);
    let counted = bed.reading.services[0].recovered;
    // What begins is the scheduler's.
    bed.sent(&tcp("198.51.100.7:5000", server, SYN));
    bed.turn();
    assert_eq!(bed.reading.services[0].recovered, counted);
    bed.switch.stop();
    (slots, counted)
}

/// `rss` picks as a card does: the Toeplitz hash's entry of a table that is dealt in turn.
#[test]
fn receive_side_scaling_is_that_of_cards() {
    if !available() {
        return;
    }
    let rss = || Scheduler::from_name("rss").unwrap();
    let mut bed = bed(|_, service| service.scheduler = rss());
    let mut used = BTreeSet::new();
    for port in 4000..4024 {
        for (client, server) in [
            ("198.51.100.7", "10.0.0.100:80"),
            ("[2001:db8:1::7]", "[2001:db8::100]:443"),
        ] {
            let frame = udp(&format!("{client}:{port}"), server, b"x");
            let (slot, _) = bed.sent(&frame);
            let (key, direction) = FlowKey::new(&tuple(&frame).unwrap());
            let flow = NewFlow {
                key: &key,
                direction,
                hash: 0,
                expected: 0.0,
                dscp: 0,
                among: &[],
            };
            let entry = rss().hash(&flow).unwrap() % RSS_ENTRIES as u64;
            assert_eq!(u64::from(slot.0), entry % 3, "{client}:{port}");
            used.insert(slot);
        }
    }
    assert_eq!(used.len(), 3);
    bed.switch.stop();
}

/// `source-hash` picks by the client's address alone, the same in every run.
#[test]
fn a_hash_of_the_source_leaves_out_its_port() {
    if !available() {
        return;
    }
    let slots = |secret: u64| {
        let mut bed = bed(|world, service| {
            service.scheduler = Scheduler::from_name("source-hash").unwrap();
            world.config.hash_key = [secret, !secret];
        });
        let mut slots = Vec::new();
        for client in 1..=48 {
            for client in [format!("198.51.100.{client}"), format!("[2001:db8:1::{client}]")] {
                let is_v4 = !client.starts_with('[');
                let [http, https] = match is_v4 {
                    true => ["10.0.0.100:80", "10.0.0.100:443"],
                    false => ["[2001:db8::100]:80", "[2001:db8::100]:443"],
                };
                let (first, _) = bed.sent(&udp(&format!("{client}:4000"), http, b"x"));
                let (second, _) = bed.sent(&tcp(&format!("{client}:4001"), https, SYN));
                assert_eq!(first, second, "{client}");
                slots.push(first);
            }
        }
        assert_eq!(bed.reading.services[0].unprepared, 0);
        bed.switch.stop();
        slots
    };
    let one = slots(1);
    assert_eq!(one.iter().collect::<BTreeSet<_>>().len(), 3, "{one:?}");
    assert_eq!(slots(2), one);
}

/// Two machines, or two runs whose secrets differ, agree where the middle of a connection goes.
#[test]
fn the_middle_of_a_connection_goes_the_same_way_everywhere() {
    if !available() {
        return;
    }
    let (one, counted) = recovered("maglev", 1);
    assert_eq!(counted, 64);
    assert_eq!(one.iter().collect::<BTreeSet<_>>().len(), 3, "{one:?}");
    assert_eq!(recovered("maglev", 2), (one.clone(), counted));
    // Whatever picks new flows.
    assert_eq!(recovered("round-robin", 3), (one, counted));
}

/// Where a packet with these flags of each of 64 connections goes.
fn spread(secret: u64, flags: u8, change: impl FnOnce(&mut Bed)) -> Vec<Slot> {
    let mut bed = bed(|world, service| {
        service.scheduler = Scheduler::from_name("maglev").unwrap();
        world.config.hash_key = [secret, !secret];
    });
    change(&mut bed);
    let clients = (4000..4064).map(|port| format!("198.51.100.7:{port}"));
    let slots = clients.map(|client| bed.sent(&tcp(&client, "10.0.0.100:80", flags)).0);
    let slots = slots.collect();
    bed.switch.stop();
    slots
}

/// A connection that one machine has pinned, and whose packets another one gets from now on, goes on where it is.
#[test]
fn two_machines_agree_where_a_connection_is() {
    if !available() {
        return;
    }
    let equal: fn(&mut Bed) = |_| {};
    let weighted: fn(&mut Bed) = |bed| {
        let slots = bed.plan.slots.iter_mut().flatten();
        slots
            .zip([256, 128, 32])
            .for_each(|(slot, weight)| slot.weight = weight);
        bed.publish();
    };
    for change in [equal, weighted] {
        let begun = spread(1, SYN, change);
        assert_eq!(begun.iter().collect::<BTreeSet<_>>().len(), 3, "{begun:?}");
        assert_eq!(spread(2, ACK, change), begun);
    }
    // Once an instance has had its slow start, nothing tells that it had one.
    let grown = |bed: &mut Bed| {
        let mut last = bed.plan.slots[2].take().unwrap();
        bed.publish();
        last.active_since = clock::monotonic();
        bed.plan.slots[2] = Some(last);
        bed.publish();
        let until = Instant::now() + Duration::from_nanos(scheduling::SLOW_START.0 + 200_000_000);
        bed.until("it has grown", |_| Instant::now() >= until);
    };
    assert_eq!(spread(3, SYN, grown), spread(4, ACK, equal));
}

/// What flows share is forgotten when none of them was seen for long enough.
#[test]
fn what_flows_share_is_forgotten() {
    if !available() {
        return;
    }
    let mut bed = bed(|world, service| {
        service.affinity_key = AffinityKey::Source;
        service.scheduler = Scheduler::from_name("round-robin").unwrap();
        world.config.timeouts = model::Timeouts::all(model::Nanos::from_secs(10));
    });
    let mut port = 4000;
    let mut next = |bed: &mut Bed, client: u8| {
        port += 1;
        let client = format!("198.51.100.{client}:{port}");
        bed.sent(&udp(&client, "10.0.0.100:80", b"x")).0
    };
    let first = next(&mut bed, 1);
    assert_eq!(next(&mut bed, 1), first);
    // The longest timeout and a minute: too long for a test, so it is made shorter in the programs' memory.
    const FOR: usize = 136;
    let pin = format!("/sys/fs/bpf/inco/{}/world", bed.world.config.name);
    let map = aya::maps::MapData::from_pin(pin).unwrap();
    let world = shared_memory::Mapping::new(map.fd().as_fd(), shared_memory::PAGE, false).unwrap();
    // SAFETY: the mapping is a page, and the word lies within it, aligned.
    let remembered = unsafe { world.address().add(FOR).cast::<AtomicU64>().as_ref() };
    assert_eq!(
        remembered.load(Ordering::Relaxed),
        70_000_000_000,
        "the layout has changed"
    );
    remembered.store(300_000_000, Ordering::Relaxed);
    // One that goes on to come is remembered for longer than that.
    for _ in 0..5 {
        std::thread::sleep(Duration::from_millis(100));
        assert_eq!(next(&mut bed, 1), first);
    }
    std::thread::sleep(Duration::from_millis(400));
    // The next pick is another instance's.
    assert_ne!(next(&mut bed, 1), first);
    bed.switch.stop();
}
