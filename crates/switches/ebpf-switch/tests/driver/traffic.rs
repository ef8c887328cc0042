//! Real TCP connections through the switch, between kernels.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use model::{DropReason, InstanceState, Slot};
use real_parts::{Namespace, fetch, serve};
use switch::{Switch, SwitchEvent, SwitchRequest};

use crate::bed::{Bed, World, available};
use crate::frames::{tuple, udp};
use crate::namespaces::Tap;
use crate::steering::service;
/// A client's network, and instances that serve.
fn bed(slots: u16) -> Bed {
    let mut world = World::new(slots);
    // Some thousand connections a second linger for 2 s each.
    world.config.flows = [1 << 17; 2];
    for (namespace, interface) in [(&world.net, "net0"), (&world.host, "up0")] {
        namespace.set("ipv6/conf/all/disable_ipv6", "0");
        namespace.set(&format!("ipv6/conf/{interface}/disable_ipv6"), "0");
    }
    world.net.ip("addr add 10.0.0.1/24 dev net0");
    world.net.ip("addr add 2001:db8::1/64 dev net0 nodad");
    Bed::new(world, service())
}

impl Bed {
    fn add_server(&mut self, slot: Slot) {
        self.world
            .start_instance(slot, &["10.0.0.100/32", "2001:db8::100/128"]);
        for address in ["10.0.0.100:80", "[2001:db8::100]:80"] {
            serve(&self.world.instances[&slot].namespace, address);
        }
        self.activate(slot);
    }
}

#[test]
fn downloads_are_exact_in_both_versions() {
    if !available() {
        return;
    }
    let mut bed = bed(2);
    bed.add_server(Slot(0));
    bed.add_server(Slot(1));
    let bytes = if real_parts::is_full_length() {
        1 << 30
    } else {
        24 << 20
    };
    for address in ["10.0.0.100:80", "[2001:db8::100]:80"] {
        let got = bed.world.net.within(|| fetch(address, bytes));
        assert_eq!(got, Ok(()), "{address}");
    }
    bed.turn();
    let to: Vec<_> = bed.reading.slots[..2].iter().map(|of| of.new_flows).collect();
    assert_eq!(to, [1, 1]);
    // Segments stay whole: far fewer packets than an MTU would need.
    let back: u64 = bed.reading.slots.iter().map(|of| of.back_packets).sum();
    assert!(back < bytes / 1448, "{back} packets for {bytes} bytes");
    // Instances' housekeeping of IPv6 goes nowhere; nothing else was dropped.
    let housekeeping = [DropReason::Other, DropReason::InstanceLost].map(|of| bed.reading.drops[of.index()]);
    assert_eq!(
        bed.reading.dropped(),
        housekeeping.iter().sum::<u64>(),
        "{:?}",
        bed.reading.drops
    );
    let (offered, originated) = (bed.reading.offered(), bed.reading.originated());
    assert_eq!(
        offered + originated,
        bed.reading.sent() + bed.reading.delivered() + bed.reading.dropped()
    );
    bed.switch.stop();
}

/// Instances come and go while connections are made all the time: none fails.
#[test]
fn scaling_breaks_no_connection() {
    if !available() {
        return;
    }
    let mut bed = bed(4);
    bed.add_server(Slot(0));
    let rounds = if real_parts::is_full_length() { 100 } else { 6 };
    let (stop, done) = (AtomicBool::new(false), AtomicU64::new(0));
    let net = Namespace::clone_of(&bed.world.net);
    /// Ends the clients, also where the test fails.
    struct Stop<'a>(&'a AtomicBool);
    impl Drop for Stop<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    std::thread::scope(|scope| {
        let end = Stop(&stop);
        let clients: Vec<_> = (0..4)
            .map(|client| {
                let (stop, done, net) = (&stop, &done, &net);
                scope.spawn(move || {
                    net.enter();
                    let mut failed = Vec::new();
                    let address = if client % 2 == 0 {
                        "10.0.0.100:80"
                    } else {
                        "[2001:db8::100]:80"
                    };
                    while !stop.load(Ordering::Relaxed) {
                        if let Err(error) = fetch(address, 20_000) {
                            failed.push(error);
                        }
                        done.fetch_add(1, Ordering::Relaxed);
                    }
                    failed
                })
            })
            .collect();
        let pause = |bed: &mut Bed, count: u64| {
            let from = done.load(Ordering::Relaxed);
            bed.until("connections are made", |_| {
                done.load(Ordering::Relaxed) >= from + count
            });
        };
        for _ in 0..rounds {
            bed.add_server(Slot(1));
            pause(&mut bed, 40);
            assert!(bed.reading.slots[1].new_flows > 0);
            bed.set_state(Slot(1), Some(InstanceState::Draining));
            // The end of a drain: what has closed lingers for 2 s.
            bed.until("it has no flow", |bed| bed.reading.slots[1].live_flows == 0);
            bed.set_state(Slot(1), None);
            bed.ask(SwitchRequest::Detach(Slot(1)));
            bed.until("it is detached", |bed| {
                bed.events
                    .iter()
                    .any(|e| matches!(e, SwitchEvent::Detached { .. }))
            });
            bed.events.clear();
            bed.world.instances.remove(&Slot(1));
        }
        drop(end);
        let failed: Vec<String> = clients
            .into_iter()
            .flat_map(|client| client.join().unwrap())
            .collect();
        assert_eq!(
            failed,
            Vec::<String>::new(),
            "of {}",
            done.load(Ordering::Relaxed)
        );
    });
    assert_eq!(
        bed.reading.slots.iter().map(|of| of.expected_moves).sum::<u64>(),
        0
    );
    assert_eq!(bed.reading.workers[0].table_full, 0);
    bed.switch.stop();
}

/// How far prepared picks lag behind: an instance that came gets its share of the very next flows, and one that drains
/// gets none.
#[test]
fn picks_follow_a_change_at_once() {
    if !available() {
        return;
    }
    let mut bed = bed(3);
    bed.add_server(Slot(0));
    bed.add_server(Slot(1));
    let get = |bed: &mut Bed, count: u64| {
        for _ in 0..count {
            let got = bed.world.net.within(|| fetch("10.0.0.100:80", 100));
            assert_eq!(got, Ok(()));
        }
        bed.turn();
        [0, 1, 2].map(|slot| bed.reading.slots[slot].new_flows)
    };
    assert_eq!(get(&mut bed, 10), [5, 5, 0]);
    bed.add_server(Slot(2));
    let after = get(&mut bed, 9);
    assert_eq!(after.iter().sum::<u64>(), 19);
    assert_eq!(after[2], 3, "{after:?}");
    bed.set_state(Slot(0), Some(InstanceState::Draining));
    let last = get(&mut bed, 10);
    assert_eq!(last[0], after[0], "an instance that drains got a flow: {last:?}");
    assert_eq!(bed.reading.services[0].unprepared, 0);
    bed.switch.stop();
}

/// A burst beyond the prepared picks goes by its hash to the active instances, and that is counted. A flow that was
/// picked so is pinned as any other one.
#[test]
fn when_picks_run_out_flows_go_by_their_hash() {
    /// Prepared where few picks were used.
    const PREPARED: u64 = 128;
    const FLOWS: u16 = 1500;
    if !available() {
        return;
    }
    let mut bed = Bed::with_two(|_, _| {});
    bed.add(2..3, &[]);
    bed.set_state(Slot(0), Some(InstanceState::Draining));
    bed.turn();
    // Nobody prepares any more meanwhile.
    let packet = |port: u16| udp(&format!("198.51.100.7:{}", 2000 + port), "10.0.0.100:443", b"x");
    (0..FLOWS).for_each(|port| bed.world.wire.send(&packet(port)));
    bed.until("all are counted", |bed| {
        bed.reading.workers[0].live_flows == u64::from(FLOWS)
    });
    assert_eq!(bed.reading.services[0].unprepared, u64::from(FLOWS) - PREPARED);
    let new_flows = [0, 1, 2].map(|slot| bed.reading.slots[slot].new_flows);
    assert_eq!(new_flows[0], 0, "an instance that drains got a flow");
    let fair = u64::from(FLOWS) / 2;
    assert!(
        new_flows[1..].iter().all(|of| of.abs_diff(fair) < fair / 4),
        "{new_flows:?}"
    );
    let at = |bed: &mut Bed| -> BTreeMap<u16, Slot> {
        let taken = bed.taken().into_iter();
        let ports = taken.flat_map(|(slot, frames)| {
            frames
                .into_iter()
                .map(move |frame| (tuple(&frame).unwrap().src_port, slot))
        });
        ports.collect()
    };
    let first = at(&mut bed);
    assert_eq!(first.len(), usize::from(FLOWS));
    bed.set_state(Slot(0), Some(InstanceState::Active));
    (0..FLOWS).for_each(|port| bed.world.wire.send(&packet(port)));
    let mut again = BTreeMap::new();
    bed.until("all have come again", |bed| {
        again.extend(at(bed));
        again.len() == usize::from(FLOWS)
    });
    assert!(again == first, "a flow has moved");
    bed.switch.stop();
}

/// Several CPUs see a new flow at the same moment: they agree on one pin, and it counts once.
#[test]
fn cpus_that_see_a_flow_at_once_agree_on_its_instance() {
    const FLOWS: u32 = 4000;
    if !available() {
        return;
    }
    let all = rustix::thread::sched_getaffinity(None).unwrap();
    let cpus: Vec<usize> = (0..rustix::thread::CpuSet::MAX_CPU)
        .filter(|cpu| all.is_set(*cpu))
        .collect();
    let mut bed = Bed::with_two(|_, _| {});
    // Which of its threads is at which flow.
    let turns: Vec<AtomicU32> = cpus.iter().map(|_| AtomicU32::new(0)).collect();
    let net = &bed.world.net;
    std::thread::scope(|scope| {
        for (own, cpu) in cpus.iter().enumerate() {
            let turns = &turns;
            let tap = Tap::open(net, "net0");
            scope.spawn(move || {
                let mut set = rustix::thread::CpuSet::new();
                set.set(*cpu);
                rustix::thread::sched_setaffinity(None, &set).unwrap();
                for flow in 1..=FLOWS {
                    let [_, a, b, c] = flow.to_be_bytes();
                    let frame = udp(&format!("198.{}.{b}.{c}:4000", 18 + a), "10.0.0.100:80", b"x");
                    turns[own].store(flow, Ordering::SeqCst);
                    // The kernel forwards in the thread that sends. Where others wait for this CPU, it is let go.
                    let mut spins = 0_u32;
                    while turns.iter().any(|of| of.load(Ordering::SeqCst) < flow) {
                        spins += 1;
                        if spins.is_multiple_of(4096) {
                            std::thread::yield_now();
                        }
                        std::hint::spin_loop();
                    }
                    tap.send(&frame);
                }
            });
        }
    });
    let packets = u64::from(FLOWS) * cpus.len() as u64;
    bed.until("all are counted", |bed| bed.reading.offered() == packets);
    let mut at: BTreeMap<std::net::IpAddr, (Slot, usize)> = BTreeMap::new();
    for (slot, frames) in bed.taken() {
        for frame in frames {
            let of = at.entry(tuple(&frame).unwrap().src).or_insert((slot, 0));
            assert_eq!(of.0, slot, "packets of a flow are at two instances");
            of.1 += 1;
        }
    }
    assert_eq!(at.len(), FLOWS as usize);
    assert!(at.values().all(|of| of.1 == cpus.len()));
    assert_eq!(bed.reading.workers[0].live_flows, u64::from(FLOWS));
    let slots = &bed.reading.slots[..2];
    assert_eq!(slots.iter().map(|of| of.new_flows).sum::<u64>(), u64::from(FLOWS));
    assert_eq!(
        slots.iter().map(|of| of.live_flows).sum::<u64>(),
        u64::from(FLOWS)
    );
    let rows = bed.flows();
    let counted = rows.iter().map(|row| row.packets.iter().sum::<u64>());
    assert_eq!(counted.sum::<u64>(), packets);
    bed.switch.stop();
}
