//! Several edges give flows to the same machines: an edge asks machines for flows that it does not know, and a machine sends
//! back what it does not know either. The other end of each tunnel is a socket here.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};

use model::{DropReason, InstanceState, UplinkId};
use packet::build::Frame;
use packet::{TcpFlags, vxlan};
use packet_socket::PacketSocket;
use real_parts::is_full_length;
use scheduling::Scheduler;
use soft_switch::{KernelPorts, TunnelEnd};
use switch::{PortKind, PortSpec, ServicePlan, SharedMachines, Switch as _, SwitchEvent};

use crate::bed::{self, Bed};
use crate::kernel::{self, PREFIX, VIP, World, available};
use crate::kernel_contract::{send_all, tap};
use crate::replies::{into_tunnel, reply};

/// The address for tunnels of what is tested, and the MAC address by which its uplink is known.
pub(crate) const OWN: (&str, u16) = ("10.0.0.2", vxlan::PORT);
pub(crate) const OWN_MAC: [u8; 6] = [0x42, 0, 0, 0, 0, 2];
pub(crate) const MACHINES: [&str; 2] = ["10.0.0.11", "10.0.0.12"];
/// The header of a packet of network 7, and marks in its last byte.
pub(crate) const HEADER: [u8; 8] = [8, 0, 0, 0, 0, 0, 7, 0];
pub(crate) const LOOKING: u8 = 0x80;
const CAME_BACK: u8 = 0x40;
/// Packets of a burst, each of another flow.
const BURST: u16 = 250;
/// What a packet that asks costs beside one that begins a connection, at most.
const MOST: f64 = 4.0;
/// Longer than a flow is looked for whose packets do not come back.
const FOUND: Duration = Duration::from_millis(300);

pub(crate) fn packet(flow: u16, flags: u8) -> Vec<u8> {
    let from = SocketAddr::from(([10, 1, 0, flow as u8], 1_024 + flow));
    let to = SocketAddr::new(VIP.parse().unwrap(), 80);
    to_uplink(Frame::tcp(from, to, TcpFlags(flags), b"data").unwrap())
}

pub(crate) fn datagram(flow: u16) -> Vec<u8> {
    let from = SocketAddr::from(([10, 1, 0, flow as u8], 1_024 + flow));
    let to = SocketAddr::new(VIP.parse().unwrap(), 80);
    to_uplink(Frame::udp(from, to, b"data").unwrap())
}

fn to_uplink(frame: Frame<'_>) -> Vec<u8> {
    let mut bytes = frame.to_vec().unwrap();
    bytes[..6].copy_from_slice(&OWN_MAC);
    bytes
}

pub(crate) fn tunnel(from: &[&str], edges_key: Option<[u64; 4]>) -> TunnelEnd {
    TunnelEnd {
        uplink: UplinkId(0),
        address: Ipv4Addr::new(10, 0, 0, 2),
        network: 7,
        from: from.iter().map(|of| of.parse().unwrap()).collect(),
        edges_key,
    }
}

/// An edge, its client, and sockets in place of its machines.
struct Edge {
    bed: Bed,
    client: PacketSocket,
    machines: [UdpSocket; 2],
}

impl Edge {
    fn new(world: &World, workers: usize) -> Edge {
        Edge::with(world, workers, false)
    }

    fn with(world: &World, workers: usize, replies_by_edge: bool) -> Edge {
        for machine in MACHINES {
            world.net.ip(&format!("addr add {machine}/32 dev net0"));
        }
        let addresses = MACHINES.map(|of| of.parse::<Ipv4Addr>().unwrap());
        let service = ServicePlan {
            machines: Some(Arc::new(SharedMachines::new(addresses))),
            scheduler: Scheduler::from_name("machines").unwrap(),
            replies_by_edge,
            ..kernel::service()
        };
        let mut bed = kernel::switch_changed(workers, 0, service, |config| {
            config.tunnel = Some(tunnel(&[], Some([1, 2, 3, 4])));
            config.kernel_ports = KernelPorts {
                prefix: PREFIX.to_owned(),
                mtu: 1500,
                places: Vec::new(),
                frames: Default::default(),
            };
        });
        for (slot, machine) in (0..).zip(MACHINES) {
            bed.set_state(slot, 0, InstanceState::Standby);
            bed.publish();
            let port = PortSpec {
                back_end: Some(SocketAddr::new(machine.parse().unwrap(), vxlan::PORT)),
                ..PortSpec::new(PortKind::Tunnel, "")
            };
            bed.ask(bed::attach(slot, 0, port));
            bed.until("the machine is attached", |bed| {
                bed.saw(|e| matches!(e, SwitchEvent::Attached { slot: of, .. } if of.0 == slot))
            });
            bed.set_state(slot, 0, InstanceState::Active);
            bed.publish();
        }
        let machines = MACHINES.map(|at| {
            let socket = world.net.within(|| UdpSocket::bind((at, vxlan::PORT)).unwrap());
            socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            socket
        });
        Edge {
            bed,
            client: tap(&world.net, "net0"),
            machines,
        }
    }

    fn send(&mut self, frames: &[Vec<u8>]) {
        send_all(&mut self.client, frames.iter().cloned());
    }

    /// The machine that the only packet on its way comes to, and the mark of that.
    fn machine_asked(&mut self, of: &[u8]) -> (usize, u8) {
        let ends = Instant::now() + Duration::from_secs(20);
        let mut bytes = [0; 2048];
        while Instant::now() < ends {
            for (machine, socket) in self.machines.iter().enumerate() {
                socket.set_nonblocking(true).unwrap();
                let Ok(len) = socket.recv(&mut bytes) else {
                    continue;
                };
                assert_eq!(bytes[..7], HEADER[..7]);
                assert_eq!(&bytes[8..len], of);
                return (machine, bytes[7]);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        self.bed.until("the counters are read", |_| true);
        let of = &self.bed.reading;
        panic!(
            "no packet comes to a machine: {:?}\n{:?}\n{:?}",
            of.drops, of.uplinks, of.workers
        )
    }

    /// A machine sends a packet back, with the mark that it came with.
    fn give_back(&self, machine: usize, mark: u8, inner: &[u8]) {
        let mut bytes = HEADER.to_vec();
        bytes[7] = mark | CAME_BACK;
        bytes.extend_from_slice(inner);
        self.machines[machine].send_to(&bytes, OWN).unwrap();
    }

    fn flows_of(&mut self, slot: u16) -> u64 {
        self.bed.until("the counters are read", |_| true);
        self.bed.reading.slots[usize::from(slot)].new_flows
    }
}

#[test]
fn an_edge_asks_the_machines_of_a_flow_that_it_does_not_know() {
    if !available() {
        return;
    }
    for workers in [1, 2] {
        an_edge_asks(workers);
    }
}

fn an_edge_asks(workers: usize) {
    let world = World::new();
    let mut edge = Edge::new(&world, workers);
    let (mut asked_first, mut pinned) = ([0, 0], 0);
    for flow in 0..8 {
        // What begins a connection goes to a machine at once.
        let begins = packet(100 + flow, TcpFlags::SYN);
        edge.send(std::slice::from_ref(&begins));
        assert_eq!(edge.machine_asked(&begins).1, 0);

        // Nobody knows it: the first one gets it after all.
        let middle = packet(200 + flow, TcpFlags::ACK);
        edge.send(std::slice::from_ref(&middle));
        let (first, mark) = edge.machine_asked(&middle);
        assert_eq!(mark, LOOKING);
        asked_first[first] += 1;
        edge.give_back(first, mark, &middle);
        let (second, mark) = edge.machine_asked(&middle);
        assert_eq!((second, mark), (1 - first, LOOKING | 1));
        edge.give_back(second, mark, &middle);
        assert_eq!(edge.machine_asked(&middle), (first, 0));
        edge.send(std::slice::from_ref(&middle));
        assert_eq!(edge.machine_asked(&middle), (first, 0));
        pinned += 1;

        // The second one knows it.
        let middle = packet(300 + flow, TcpFlags::ACK);
        edge.send(std::slice::from_ref(&middle));
        let (first, mark) = edge.machine_asked(&middle);
        edge.give_back(first, mark, &middle);
        let (second, _) = edge.machine_asked(&middle);
        edge.send(std::slice::from_ref(&middle));
        assert_eq!(edge.machine_asked(&middle), (second, LOOKING));
        std::thread::sleep(FOUND);
        edge.send(std::slice::from_ref(&middle));
        assert_eq!(edge.machine_asked(&middle), (second, 0));
        pinned += 1;
        // One that comes back late from the first one goes where the flow is.
        edge.give_back(first, LOOKING, &middle);
        assert_eq!(edge.machine_asked(&middle), (second, 0));
        // The flow begins anew.
        edge.send(&[packet(300 + flow, TcpFlags::SYN)]);
        edge.machine_asked(&packet(300 + flow, TcpFlags::SYN));
        pinned += 1;
    }
    assert!(asked_first[0] > 0 && asked_first[1] > 0, "{asked_first:?}");
    // A datagram does not say whether it begins a flow.
    let begins = datagram(7);
    edge.send(std::slice::from_ref(&begins));
    let (first, mark) = edge.machine_asked(&begins);
    assert_eq!(mark, LOOKING);
    edge.give_back(first, mark, &begins);
    assert_eq!(edge.machine_asked(&begins), (1 - first, LOOKING | 1));
    let flows = edge.flows_of(0) + edge.flows_of(1);
    assert!(
        (pinned..=pinned + 16).contains(&flows),
        "{flows} and not {pinned}"
    );
    assert_eq!(edge.bed.drops(DropReason::Tunnel), 0);
    let of = &edge.bed.reading.workers;
    assert!(of[..workers].iter().all(|of| of.looks > 0), "{of:?}");

    // Who is no machine says nothing, and a frame for another edge is none of its own.
    let stranger = world
        .net
        .within(|| UdpSocket::bind(("10.0.0.1", vxlan::PORT)).unwrap());
    let mut bytes = HEADER.to_vec();
    bytes[7] = CAME_BACK;
    bytes.extend_from_slice(&begins);
    stranger.send_to(&bytes, OWN).unwrap();
    edge.bed
        .until("it is refused", |bed| bed.drops(DropReason::Tunnel) == 1);
    let before = edge.bed.drops(DropReason::Unmatched);
    let mut of_other = packet(400, TcpFlags::SYN);
    of_other[5] = 9;
    edge.send(&[of_other]);
    edge.bed.until("it is left to the other edge", |bed| {
        bed.drops(DropReason::Unmatched) > before
    });
    edge.bed.assert_accounts_close();
    edge.bed.switch.stop();
}

/// Where replies return through the edge, one says which machine has a flow that is looked for.
#[test]
fn a_reply_says_which_machine_has_a_flow() {
    if !available() {
        return;
    }
    for workers in [1, 2] {
        let world = World::new();
        let mut edge = Edge::with(&world, workers, true);
        for flow in 0..8 {
            let middle = packet(flow, TcpFlags::ACK);
            edge.send(std::slice::from_ref(&middle));
            let (first, mark) = edge.machine_asked(&middle);
            edge.give_back(first, mark, &middle);
            let (second, _) = edge.machine_asked(&middle);
            edge.send(std::slice::from_ref(&middle));
            assert_eq!(edge.machine_asked(&middle), (second, LOOKING));
            let before = edge.bed.slot(second as u16).replies;
            into_tunnel(&edge.machines[second], 0, &reply(flow, 80));
            edge.bed
                .until("the reply passes", |bed| bed.slot(second as u16).replies > before);
            edge.send(std::slice::from_ref(&middle));
            assert_eq!(edge.machine_asked(&middle), (second, 0));
        }
        // Nobody looks for this one: its reply makes no entry.
        let flows = edge.flows_of(0) + edge.flows_of(1);
        let before = edge.bed.slot(0).replies;
        into_tunnel(&edge.machines[0], 0, &reply(500, 80));
        edge.bed
            .until("the reply passes", |bed| bed.slot(0).replies > before);
        assert_eq!((flows, edge.flows_of(0) + edge.flows_of(1)), (8, 8));
        assert_eq!(edge.bed.reading.services[0].recovered, 8);
        edge.bed.switch.stop();
    }
}

/// What a flow costs an edge's worker that it does not know: a packet that asks, beside one that begins a connection.
#[test]
fn a_packet_that_asks_costs_little_more_than_a_new_connection() {
    if !available() {
        return;
    }
    let world = World::new();
    let mut edge = Edge::new(&world, 1);
    let bursts = if is_full_length() { 16 } else { 4 };
    let mut costs = [(TcpFlags::SYN, 0), (TcpFlags::ACK, 30_000)].map(|(flags, first)| {
        let mut busy = Vec::new();
        for burst in 0..bursts {
            let frames: Vec<Vec<u8>> = (0..BURST)
                .map(|flow| packet(first + burst * BURST + flow, flags))
                .collect();
            let figures = |bed: &Bed| {
                (
                    bed.reading.workers[0].busy_ns,
                    bed.reading.services[0].offered_packets,
                )
            };
            edge.bed.until("the counters are read", |_| true);
            let (before, offered) = figures(&edge.bed);
            edge.send(&frames);
            edge.bed.until("the burst is offered", |bed| {
                figures(bed).1 == offered + u64::from(BURST)
            });
            // So many may ask in a while; and the turn has ended.
            std::thread::sleep(Duration::from_millis(15));
            edge.bed.until("the counters are read", |_| true);
            busy.push((figures(&edge.bed).0 - before) as f64 / f64::from(BURST));
        }
        busy.sort_by(f64::total_cmp);
        busy[busy.len() / 2]
    });
    let [begins, asks] = &mut costs;
    eprintln!(
        "the worker's time, median of {bursts} bursts: {begins:.0} ns for a new connection, {asks:.0} ns for a packet that asks"
    );
    let of = &edge.bed.reading;
    assert_eq!(of.workers[0].looks, u64::from(bursts * BURST));
    assert_eq!(of.drops[DropReason::Tunnel.index()], 0);
    assert!(!is_full_length() || *asks < MOST * *begins, "{asks} and {begins}");
    edge.bed.switch.stop();
}

/// Packets of connections that are not there ask machines at a limited rate, and take no entries of the flow table.
#[test]
fn a_flood_of_unknown_packets_is_limited() {
    if !available() {
        return;
    }
    let world = World::new();
    let mut edge = Edge::new(&world, 1);
    let flood: Vec<Vec<u8>> = (0..20_000).map(|flow| packet(flow, TcpFlags::ACK)).collect();
    for part in flood.chunks(500) {
        edge.send(part);
    }
    edge.bed.until("all is offered", |bed| {
        let of = &bed.reading.workers[0];
        of.looks + bed.drops(DropReason::Tunnel) + bed.reading.uplinks[0].missed_packets >= 20_000
    });
    assert_eq!(edge.flows_of(0) + edge.flows_of(1), 0);
    // One packet that does not come back may be lost: the second one asks, too, and nothing is pinned.
    std::thread::sleep(FOUND);
    let looks = edge.bed.reading.workers[0].looks;
    edge.send(&flood[..500]);
    edge.bed
        .until("they ask", |bed| bed.reading.workers[0].looks >= looks + 500);
    assert_eq!(edge.flows_of(0) + edge.flows_of(1), 0);
    // A connection that begins meanwhile is not affected.
    let begins = packet(30_000, TcpFlags::SYN);
    edge.send(&[begins]);
    edge.bed.until("it has a machine", |bed| {
        bed.reading.slots.iter().map(|of| of.new_flows).sum::<u64>() == 1
    });
    edge.bed.switch.stop();
}

/// A machine serves what it knows and what begins, and sends back the rest, whichever of its workers has the flow.
#[test]
fn a_machine_sends_back_what_it_does_not_know() {
    if !available() {
        return;
    }
    const FLOWS: u16 = 32;
    for workers in [1, 2] {
        let mut world = World::new();
        let mut bed = kernel::switch_changed(workers, 1, kernel::service(), |config| {
            config.tunnel = Some(tunnel(&["10.0.0.1"], None));
        });
        world.add_server(&mut bed, 0);
        let edge = world
            .net
            .within(|| UdpSocket::bind(("10.0.0.1", vxlan::PORT)).unwrap());
        edge.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let send = |mark: u8, frame: &[u8]| {
            let mut bytes = HEADER.to_vec();
            bytes[7] = mark;
            bytes.extend_from_slice(frame);
            edge.send_to(&bytes, OWN).unwrap();
        };
        let to = |bed: &Bed| bed.reading.slots[0].to_packets;
        for flow in 0..FLOWS {
            let middle = packet(flow, TcpFlags::ACK);
            send(LOOKING | 3, &middle);
            let mut bytes = [0; 2048];
            let len = edge.recv(&mut bytes).unwrap();
            assert_eq!(bytes[7], LOOKING | CAME_BACK | 3);
            assert_eq!(&bytes[8..len], middle);
        }
        bed.until("the counters are read", |_| true);
        assert_eq!(to(&bed), 0);
        for flow in 0..FLOWS {
            send(LOOKING, &packet(flow, TcpFlags::SYN));
        }
        bed.until("connections begin", |bed| to(bed) == u64::from(FLOWS));
        for flow in 0..FLOWS {
            send(LOOKING, &packet(flow, TcpFlags::ACK));
        }
        bed.until("packets of known connections are served", |bed| {
            to(bed) >= 2 * u64::from(FLOWS)
        });
        bed.until("each worker has flows", |bed| {
            bed.reading.workers[..workers].iter().all(|of| of.live_flows > 0)
        });
        let of = &bed.reading.workers;
        assert_eq!(
            of.iter().map(|of| of.looks_returned).sum::<u64>(),
            u64::from(FLOWS)
        );
        assert_eq!(bed.drops(DropReason::Tunnel), 0);
        // Without the mark it is as good as new here, as from an edge that is the only one.
        send(0, &packet(500, TcpFlags::ACK));
        bed.until("an unknown packet is served", |bed| {
            bed.reading.slots[0].new_flows == u64::from(FLOWS) + 1
        });
        bed.switch.stop();
    }
}

/// What a machine takes out of a tunnel is as if it had been sent to its own MAC address: a function that answers from the
/// address to which a packet was sent does not speak for the edge.
#[test]
fn what_comes_out_of_a_tunnel_is_to_the_machine() {
    if !available() {
        return;
    }
    let world = World::new();
    let mut bed = Bed::with(
        1,
        0,
        vec![bed::service(0, &[0], model::Match::default())],
        |config| {
            config.uplinks = vec![soft_switch::UplinkConfig {
                name: "wan".to_owned(),
                device: soft_switch::UplinkDevice::Kernel {
                    interface: "up0".to_owned(),
                },
                max_frame: 1572,
                waits: false,
            }];
            config.tunnel = Some(tunnel(&["10.0.0.1"], None));
        },
    );
    bed.add(0, 0, 1, bed::echo);
    bed.set_state(0, 0, InstanceState::Active);
    bed.publish();
    let mut network = tap(&world.net, "net0");
    let edge = world
        .net
        .within(|| UdpSocket::bind(("10.0.0.1", vxlan::PORT)).unwrap());
    let mut inner = datagram(1);
    inner[..6].copy_from_slice(&[0x42, 0, 0, 0, 0, 9]);
    let bytes = [&HEADER[..], &inner].concat();
    edge.send_to(&bytes, OWN).unwrap();
    let mut came = None;
    bed.until("it leaves the function", |_| {
        let (receiver, _) = network.rings();
        receiver.take(usize::MAX, |frame| {
            if frame.bytes.get(14..) == Some(&inner[14..]) {
                came = Some(frame.bytes.to_vec());
            }
            std::ops::ControlFlow::Continue(())
        });
        receiver.release();
        came.is_some()
    });
    let came = came.unwrap();
    assert_eq!(came[..6], OWN_MAC);
    assert_eq!(came[6..], inner[6..]);
    bed.switch.stop();
}
