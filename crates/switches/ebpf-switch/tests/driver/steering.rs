//! What the programs do with packets of all kinds.

use std::collections::BTreeMap;

use model::{DropReason, FlowKey, InstanceState, Slot, TableFull, Timeouts, Tuple, Vip, VipMode};
use model::{Nanos, ServiceId};
use scheduling::Scheduler;
use switch::{Change, FlowFilter, FlowRow, ServicePlan, Switch, SwitchEvent, SwitchRequest};

use crate::bed::{Bed, World, available};
use crate::frames::{ACK, CLIENT, FIN, RST, SYN, UPLINK, fragment, is_from, tagged, tcp, tuple, udp};

const VIP: &str = "10.0.0.100";
const VIP6: &str = "2001:db8::100";

/// A service at an address, ports 80 and 443.
pub(crate) fn service() -> ServicePlan {
    ServicePlan {
        vip: Some(Vip {
            addresses: vec![VIP.parse().unwrap(), VIP6.parse().unwrap()],
            ports: vec![80..=80, 443..=443],
            mode: VipMode::L2,
            target_port: None,
        }),
        ..ServicePlan::of_all(ServiceId(0), Scheduler::from_name("round-robin").unwrap())
    }
}

impl Bed {
    /// Two instances behind the address. They answer nothing by themselves: they have no address.
    pub(crate) fn with_two(change: impl FnOnce(&mut World, &mut ServicePlan)) -> Bed {
        let (mut world, mut service) = (World::new(3), service());
        change(&mut world, &mut service);
        let mut bed = Bed::new(world, service);
        bed.add(0..2, &[]);
        // The announcements of its addresses.
        bed.received();
        bed
    }

    /// What each instance has received since the last call.
    pub(crate) fn taken(&mut self) -> BTreeMap<Slot, Vec<Vec<u8>>> {
        // Those to a group are this kernel's own: it tells of the addresses of the pair's other end.
        let is_unicast = |frame: &Vec<u8>| frame.first().is_some_and(|first| first & 1 == 0);
        let frames = |of: &crate::bed::Instance| {
            let all = std::iter::from_fn(|| of.tap.receive());
            all.filter(is_unicast).collect::<Vec<_>>()
        };
        let all = self.world.instances.iter().map(|(slot, of)| (*slot, frames(of)));
        all.filter(|(_, frames)| !frames.is_empty()).collect()
    }

    /// Sends a frame, and waits for the instance that gets it.
    pub(crate) fn sent(&mut self, frame: &[u8]) -> (Slot, Vec<u8>) {
        self.world.wire.send(frame);
        let mut got = None;
        self.until("an instance gets the frame", |bed| {
            got = got.take().or_else(|| {
                let (slot, frames) = bed.taken().pop_first()?;
                Some((slot, frames.into_iter().next()?))
            });
            got.is_some()
        });
        got.unwrap()
    }

    /// The frames that have come to the network.
    pub(crate) fn received(&mut self) -> Vec<Vec<u8>> {
        std::iter::from_fn(|| self.world.wire.receive()).collect()
    }

    pub(crate) fn dropped(&mut self, reason: DropReason, count: u64) {
        self.until("the drop is counted", |bed| {
            bed.reading.drops[reason.index()] >= count
        });
        assert_eq!(self.reading.drops[reason.index()], count);
    }

    pub(crate) fn flows(&mut self) -> Vec<FlowRow> {
        self.ask(SwitchRequest::Flows {
            id: 1,
            filter: FlowFilter::default(),
            limit: 100_000,
        });
        let mut found = None;
        self.until("the flows are listed", |bed| {
            let at = bed
                .events
                .iter()
                .position(|e| matches!(e, SwitchEvent::Flows { .. }));
            if let Some(SwitchEvent::Flows { rows, .. }) = at.map(|at| bed.events.remove(at)) {
                found = Some(rows);
            }
            found.is_some()
        });
        found.unwrap()
    }
}

#[test]
fn both_ip_versions_are_pinned_and_answered() {
    if !available() {
        return;
    }
    let mut bed = Bed::with_two(|_, _| {});
    for (client, server) in [
        ("198.51.100.7:4000", "10.0.0.100:80"),
        ("[2001:db8:1::7]:4000", "[2001:db8::100]:443"),
    ] {
        let (slot, frame) = bed.sent(&udp(client, server, b"question"));
        // The addresses of the machine's own end, and nothing of the network's.
        assert_eq!(&frame[..6], interfaces::instance_mac(slot));
        assert_eq!(&frame[6..12], interfaces::GATEWAY_MAC);
        for _ in 0..3 {
            assert_eq!(
                bed.sent(&udp(client, server, b"again")).0,
                slot,
                "the flow has moved"
            );
        }
        bed.world.instances[&slot]
            .tap
            .send(&udp(server, client, b"answer"));
        let mut came = Vec::new();
        bed.until("the answer comes", |bed| {
            came.extend(bed.received());
            !came.is_empty()
        });
        assert_eq!((&came[0][..6], &came[0][6..12]), (&CLIENT[..], &UPLINK[..]));
        assert!(came[0].ends_with(b"answer"));
    }
    let rows = bed.flows();
    assert_eq!(rows.len(), 2);
    assert!(
        rows.iter().all(|row| {
            let mut packets = row.packets;
            packets.sort_unstable();
            packets == [1, 4]
        }),
        "{rows:?}"
    );
    bed.switch.stop();
}

#[test]
fn other_packets_are_left_to_the_machine() {
    if !available() {
        return;
    }
    let mut bed = Bed::with_two(|_, _| {});
    bed.world
        .wire
        .send(&udp("198.51.100.7:4000", "10.0.0.100:81", b"another port"));
    bed.world
        .wire
        .send(&udp("198.51.100.7:4000", "10.0.0.101:80", b"another address"));
    // It comes after them.
    bed.sent(&udp("198.51.100.7:4000", "10.0.0.100:80", b"ours"));
    bed.turn();
    assert_eq!(bed.reading.offered(), 1);
    bed.plan.unmatched = model::Fallback::Drop;
    bed.publish();
    bed.world
        .wire
        .send(&udp("198.51.100.7:4000", "10.0.0.100:81", b"another port"));
    bed.dropped(DropReason::Unmatched, 1);
    bed.switch.stop();
}

#[test]
fn tagged_packets_come_and_go_with_their_tag() {
    if !available() {
        return;
    }
    let mut bed = Bed::with_two(|_, service| service.matches.vlan = Some(42));
    let (client, server) = ("198.51.100.7:4000", "10.0.0.100:80");
    let (slot, frame) = bed.sent(&tagged(udp(client, server, b"question"), 42));
    assert_eq!(&frame[12..14], [8, 0], "the instance sees the tag");
    bed.world.instances[&slot]
        .tap
        .send(&udp(server, client, b"answer"));
    let mut came = Vec::new();
    bed.until("the answer comes", |bed| {
        came.extend(bed.received());
        !came.is_empty()
    });
    // The kernel keeps the tag beside the frame, where a packet socket does not see it: the flow's key has it.
    assert!(came[0].ends_with(b"answer"));
    assert_eq!(bed.flows()[0].key.tuple(model::Direction::Forward).vlan, 42);
    bed.world.wire.send(&udp(client, server, b"without a tag"));
    bed.world
        .wire
        .send(&tagged(udp(client, server, b"another tag"), 43));
    let (_, frame) = bed.sent(&tagged(udp(client, server, b"ours"), 42));
    assert!(frame.ends_with(b"ours"));
    bed.switch.stop();
}

#[test]
fn fragments_follow_their_datagram() {
    if !available() {
        return;
    }
    let mut bed = Bed::with_two(|_, _| {});
    let (client, server) = ("198.51.100.7:4000", "10.0.0.100:80");
    for id in 0..8 {
        let client = format!("198.51.100.7:{}", 4000 + id);
        let (slot, _) = bed.sent(&fragment(&client, server, id, 0, true, &[1; 16]));
        let (other, frame) = bed.sent(&fragment(&client, server, id, 24, false, &[2; 8]));
        assert_eq!(other, slot);
        assert!(frame.ends_with(&[2; 8]));
    }
    bed.world
        .wire
        .send(&fragment(client, server, 77, 24, false, &[2; 8]));
    bed.dropped(DropReason::FragmentTimeout, 1);
    bed.switch.stop();
}

#[test]
fn a_full_table_sends_by_hash_or_drops() {
    if !available() {
        return;
    }
    for full in [TableFull::Hash, TableFull::Drop] {
        let mut bed = Bed::with_two(|world, service| {
            world.config.flows = [64, 64];
            service.table_full = full;
        });
        const FLOWS: u16 = 500;
        for port in 0..FLOWS {
            let client = format!("198.51.100.7:{}", 1000 + port);
            bed.world.wire.send(&udp(&client, "10.0.0.100:80", b"x"));
        }
        bed.until("all are counted", |bed| bed.reading.offered() == u64::from(FLOWS));
        let kept = bed.flows().len() as u64;
        let beyond = u64::from(FLOWS) - kept;
        assert!(kept >= 64 && beyond > 0, "{kept}");
        let worker = &bed.reading.workers[0];
        assert_eq!((worker.live_flows, worker.table_full), (kept, beyond));
        match full {
            TableFull::Hash => {
                assert_eq!(bed.reading.services[0].unpinned, beyond);
                assert_eq!(bed.reading.delivered(), u64::from(FLOWS));
                // The packets of one go to one instance, whose answers leave.
                let last = format!("198.51.100.7:{}", 1000 + FLOWS - 1);
                bed.taken();
                let (slot, _) = bed.sent(&udp(&last, "10.0.0.100:80", b"again"));
                assert_eq!(bed.sent(&udp(&last, "10.0.0.100:80", b"again")).0, slot);
            }
            TableFull::Drop => {
                assert_eq!(bed.reading.drops[DropReason::TableFull.index()], beyond);
                assert_eq!(bed.reading.delivered(), kept);
            }
        }
        bed.switch.stop();
    }
}

#[test]
fn purged_flows_are_pinned_again() {
    if !available() {
        return;
    }
    let mut bed = Bed::with_two(|_, _| {});
    let (client, server) = ("198.51.100.7:4000", "10.0.0.100:80");
    let (slot, _) = bed.sent(&udp(client, server, b"x"));
    bed.set_state(slot, Some(InstanceState::Draining));
    assert_eq!(bed.sent(&udp(client, server, b"x")).0, slot);
    let (key, _) = FlowKey::new(&tuple(&udp(client, server, b"x")).unwrap());
    bed.ask(SwitchRequest::Change(Change::PurgeFlow(key)));
    bed.until("it has no flow", |bed| {
        bed.reading.slots[slot.index()].live_flows == 0
    });
    assert_eq!(bed.flows().len(), 0);
    let other = Slot(1 - slot.0);
    assert_eq!(bed.sent(&udp(client, server, b"x")).0, other);
    // Many epochs, with flows of each left in the table: the count of live ones stays exact.
    bed.set_state(slot, Some(InstanceState::Active));
    for round in 0..9_u16 {
        for port in 0..20 {
            let client = format!("198.51.100.7:{}", 5000 + 100 * round + port);
            bed.sent(&udp(&client, server, b"x"));
        }
        bed.turn();
        let live = bed.reading.slots[slot.index()].live_flows;
        assert!((5..=15).contains(&live), "round {round}: {live}");
        bed.ask(SwitchRequest::PurgeSlot(slot));
        bed.turn();
        assert_eq!(bed.reading.slots[slot.index()].live_flows, 0, "round {round}");
    }
    bed.switch.stop();
}

/// The state of the one flow there is.
fn state(bed: &mut Bed) -> &'static str {
    let rows = bed.flows();
    assert_eq!(rows.len(), 1, "{rows:?}");
    rows[0].tcp.name()
}

#[test]
fn tcp_connections_are_followed() {
    if !available() {
        return;
    }
    let mut bed = Bed::with_two(|_, _| {});
    let (client, server) = ("198.51.100.7:4000", "10.0.0.100:80");
    let (slot, _) = bed.sent(&tcp(client, server, SYN));
    assert_eq!(state(&mut bed), "handshake");
    let answer = |bed: &mut Bed, slot: Slot, flags| {
        bed.world.instances[&slot].tap.send(&tcp(server, client, flags));
        let mut came = Vec::new();
        bed.until("the answer comes", |bed| {
            came.extend(bed.received());
            !came.is_empty()
        });
    };
    answer(&mut bed, slot, SYN | ACK);
    assert_eq!(state(&mut bed), "handshake");
    bed.sent(&tcp(client, server, ACK));
    assert_eq!(state(&mut bed), "established");
    answer(&mut bed, slot, FIN | ACK);
    assert!(state(&mut bed).starts_with("fin_"));
    bed.sent(&tcp(client, server, FIN | ACK));
    assert_eq!(state(&mut bed), "closed");
    // What is late still finds its instance.
    answer(&mut bed, slot, ACK);
    // Another connection in its place is scheduled anew: the next one in turn.
    let (next, _) = bed.sent(&tcp(client, server, SYN));
    assert_ne!(next, slot);
    assert_eq!(state(&mut bed), "handshake");
    assert_eq!(
        bed.reading.slots.iter().map(|of| of.expected_moves).sum::<u64>(),
        0
    );
    bed.sent(&tcp(client, server, RST));
    assert_eq!(state(&mut bed), "closed");
    bed.until("nothing is counted as live any more", |bed| {
        bed.reading.workers[0].live_flows == 0 && bed.reading.slots.iter().all(|of| of.live_flows == 0)
    });
    bed.switch.stop();
}

/// With nobody who looks after the programs: more new flows than there are entries go on to find one.
#[test]
fn the_program_alone_forgets_flows() {
    if !available() {
        return;
    }
    let mut bed = Bed::with_two(|world, service| {
        world.config.flows = [128, 64];
        world.config.timeouts = Timeouts::all(Nanos::from_millis(100));
        service.table_full = TableFull::Drop;
    });
    bed.switch.leave();
    let (mut sent, mut got) = (0, 0);
    for round in 0..10_u16 {
        for port in 0..100 {
            let client = format!("198.51.100.7:{}", 1000 + 100 * round + port);
            bed.world.wire.send(&udp(&client, "10.0.0.100:80", b"x"));
            sent += 1;
        }
        std::thread::sleep(std::time::Duration::from_millis(250));
        got += bed.taken().values().map(Vec::len).sum::<usize>();
    }
    assert_eq!(got, sent, "some found no entry");
    bed.switch.stop();
}

#[test]
fn what_answers_for_an_address_is_answered() {
    if !available() {
        return;
    }
    let mut bed = Bed::with_two(|world, _| {
        for (namespace, interface) in [(&world.net, "net0"), (&world.host, "up0")] {
            namespace.set("ipv6/conf/all/disable_ipv6", "0");
            namespace.set(&format!("ipv6/conf/{interface}/disable_ipv6"), "0");
        }
        world.net.ip("addr add 10.0.0.1/24 dev net0");
        world.net.ip("addr add 2001:db8::1/64 dev net0 nodad");
    });
    for address in [VIP, VIP6] {
        let said = bed
            .world
            .net
            .command("ping")
            .args(["-c2", "-i0.2", "-W5", address])
            .output()
            .unwrap();
        assert!(
            said.status.success(),
            "{address}: {}",
            String::from_utf8_lossy(&said.stdout)
        );
    }
    let neighbours = bed
        .world
        .net
        .command("ip")
        .args(["neigh", "show", "dev", "net0"])
        .output()
        .unwrap();
    let neighbours = String::from_utf8(neighbours.stdout).unwrap();
    for address in [VIP, VIP6] {
        let line = neighbours
            .lines()
            .find(|line| line.starts_with(&format!("{address} ")));
        assert!(
            line.is_some_and(|line| line.contains(crate::bed::UPLINK_MAC)),
            "{neighbours}"
        );
    }
    // No instance has been asked.
    assert_eq!(bed.reading.delivered(), 0);
    // Nobody answers for another address.
    let said = bed
        .world
        .net
        .command("ping")
        .args(["-c1", "-W1", "10.0.0.99"])
        .output()
        .unwrap();
    assert!(!said.status.success());
    bed.switch.stop();
}

/// A connection that an instance opens is pinned to it.
#[test]
fn instances_open_connections_where_they_may() {
    if !available() {
        return;
    }
    let mut bed = Bed::with_two(|world, _| {
        world.host.ip("addr add 10.0.0.2/24 dev up0");
        world.net.ip("addr add 10.0.0.1/24 dev net0");
        for port in &mut world.config.ports {
            port.egress = true;
            port.own = vec![format!("10.0.1.{}", port.slot.0 + 1).parse().unwrap()];
        }
    });
    let far = "10.0.0.1:53";
    for slot in [Slot(0), Slot(1)] {
        let own = format!("10.0.1.{}:5000", slot.0 + 1);
        bed.world.instances[&slot]
            .tap
            .send(&udp(&own, far, b"a question of its own"));
        let mut came = Vec::new();
        bed.until("the question comes", |bed| {
            came.extend(
                bed.received()
                    .into_iter()
                    .filter(|frame| is_from(frame, &own[..own.len() - 5])),
            );
            !came.is_empty()
        });
        let (got, frame) = bed.sent(&udp(far, &own, b"its answer"));
        assert_eq!(got, slot);
        assert!(frame.ends_with(b"its answer"));
    }
    // Others' addresses are not its own.
    bed.world.instances[&Slot(0)]
        .tap
        .send(&udp("10.0.1.2:5001", far, b"as the other one"));
    bed.dropped(DropReason::Spoofed, 1);
    bed.switch.stop();
}

/// A table of a million entries, of which nearly all are free, is walked over in no time.
#[test]
fn a_walk_takes_time_for_the_flows_that_there_are() {
    if !available() {
        return;
    }
    let mut bed = Bed::with_two(|world, _| world.config.flows = [1 << 20, 1 << 16]);
    for port in 0..100 {
        bed.sent(&udp(
            &format!("198.51.100.7:{}", 4000 + port),
            "10.0.0.100:80",
            b"x",
        ));
    }
    // Those of other tests that run meanwhile are as small.
    let spent = || -> u64 {
        let threads = std::fs::read_dir("/proc/self/task").unwrap();
        let of = |path: std::path::PathBuf| {
            let name = std::fs::read_to_string(path.join("comm")).ok()?;
            let spent = std::fs::read_to_string(path.join("schedstat")).ok()?;
            let spent = spent.split(' ').next()?.parse::<u64>().ok()?;
            (name.trim() == "inco-flows").then_some(spent)
        };
        threads.filter_map(|thread| of(thread.ok()?.path())).sum()
    };
    let before = spent();
    std::thread::sleep(std::time::Duration::from_secs(2));
    let spent = spent() - before;
    assert!(spent < 15_000_000, "{spent} ns in two seconds");
    bed.switch.stop();
}

/// Unused in a test of its own: the tuple of a frame is what the suite compares.
#[test]
fn frames_are_what_they_say() {
    let of = |frame: Vec<u8>| tuple(&frame).unwrap();
    let expected: Tuple = of(udp("10.0.0.1:7", "10.0.0.2:8", b"x"));
    assert_eq!(
        (expected.src_port, expected.dst_port, expected.protocol),
        (7, 8, 17)
    );
    assert_eq!(of(tcp("10.0.0.1:7", "10.0.0.2:8", SYN)).protocol, 6);
    assert_eq!(of(tcp("[::1]:7", "[::2]:8", SYN)).protocol, 6);
    assert_eq!(of(tagged(udp("10.0.0.1:7", "10.0.0.2:8", b"x"), 9)).vlan, 9);
}
