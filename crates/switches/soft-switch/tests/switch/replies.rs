//! Replies that return through the edge. At a machine, they go into the tunnel to the edge that sent the flow's last packet; at
//! an edge, they come out of it and go on to the client. The other end of each tunnel is a socket here.

use std::net::{SocketAddr, UdpSocket};
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use model::{DropReason, InstanceState};
use packet::build::Frame;
use packet::{Parsed, TcpFlags, vxlan};
use packet_socket::PacketSocket;
use real_parts::Namespace;
use soft_switch::KernelPorts;
use switch::{FlowFilter, PortKind, PortSpec, ServicePlan, Switch as _, SwitchEvent};

use crate::bed::{self, Bed};
use crate::edges::{HEADER, LOOKING, MACHINES, OWN, OWN_MAC, datagram, packet, tunnel};
use crate::kernel::{self, PREFIX, VIP, World, available, is_accounted_for};
use crate::kernel_contract::{send_all, tap};
use crate::tunnels::uplink;

const EDGES: [&str; 2] = ["10.0.0.1", "10.0.0.3"];
/// The MAC address from which the frames of a machine come, and that of services at the uplink of clients.
const MACHINE_MAC: [u8; 6] = [0x42, 0, 0, 0, 0, 11];
const CLIENTS_MAC: [u8; 6] = [0x42, 0, 0, 0, 0, 3];
/// The longest inner frame of a machine whose uplink takes frames of 1,522 bytes: 50 bytes and two tags less.
const LONGEST: usize = 1_464;

fn service() -> ServicePlan {
    ServicePlan {
        replies_by_edge: true,
        ..kernel::service()
    }
}

fn socket(world: &World, address: &str) -> UdpSocket {
    let socket = world
        .net
        .within(|| UdpSocket::bind((address, vxlan::PORT)).unwrap());
    socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    socket
}

pub(crate) fn into_tunnel(by: &UdpSocket, mark: u8, inner: &[u8]) {
    let mut bytes = HEADER.to_vec();
    bytes[7] = mark;
    bytes.extend_from_slice(inner);
    by.send_to(&bytes, OWN).unwrap();
}

/// The next such frame that comes out of a tunnel at a socket. Kernels repeat others.
fn out_of_tunnel(at: &UdpSocket, is_it: impl Fn(&[u8]) -> bool) -> Vec<u8> {
    let mut bytes = [0; 2048];
    loop {
        let len = at.recv(&mut bytes).unwrap();
        assert_eq!(bytes[..8], HEADER);
        if is_it(&bytes[8..len]) {
            return bytes[8..len].to_vec();
        }
    }
}

/// Nothing comes, for a while.
fn nothing_comes(at: &UdpSocket) {
    at.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    assert!(at.recv(&mut [0; 2048]).is_err());
    at.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
}

/// Whether a frame answers the packet of a client with these bytes, to where that came from.
fn answers(asked: &[u8]) -> impl Fn(&[u8]) -> bool {
    move |frame| {
        let (Parsed::Flow(there), Parsed::Flow(back)) = (packet::parse(asked), packet::parse(frame)) else {
            panic!("{frame:02x?}")
        };
        assert_eq!((&frame[..6], &frame[6..12]), (&asked[6..12], &OWN_MAC[..]));
        back.key.tuple(back.direction) == there.key.tuple(there.direction).reversed()
    }
}

#[test]
fn a_machine_returns_replies_to_the_edge_that_sent_the_last_packet() {
    if !available() {
        return;
    }
    const FLOWS: u16 = 16;
    for workers in [1, 2] {
        let mut world = World::new();
        world.net.ip("addr add 10.0.0.3/32 dev net0");
        world.net.ip("addr add 10.0.0.9/32 dev net0");
        let mut bed = kernel::switch_changed(workers, 1, service(), |config| {
            config.tunnel = Some(tunnel(&EDGES, None));
        });
        world.add_server(&mut bed, 0);
        let edges = EDGES.map(|address| socket(&world, address));
        for flow in 0..FLOWS {
            // The server answers a repeated SYN again.
            for edge in [usize::from(flow % 2), 1 - usize::from(flow % 2)] {
                let asked = packet(flow, TcpFlags::SYN);
                into_tunnel(&edges[edge], 0, &asked);
                out_of_tunnel(&edges[edge], answers(&asked));
            }
        }
        // Each flow has the edge that it came by last, whoever was heard since.
        let server = world.instances[&0].within(|| UdpSocket::bind((VIP, 80)).unwrap());
        server.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let mut clients = Vec::new();
        for (flow, last) in (0..FLOWS).map(|flow| (flow, usize::from(flow % 4 < 2))) {
            for edge in [usize::from(flow % 2), last] {
                into_tunnel(&edges[edge], 0, &datagram(flow));
                let (_, client) = server.recv_from(&mut [0; 64]).unwrap();
                clients.push((flow, client, last));
            }
        }
        for (flow, client, edge) in clients {
            server.send_to(b"reply", client).unwrap();
            out_of_tunnel(&edges[edge], answers(&datagram(flow)));
        }
        // A stranger is heard by nobody.
        let stranger = socket(&world, "10.0.0.9");
        let before = bed.drops(DropReason::Tunnel);
        into_tunnel(&stranger, 0, &packet(7, TcpFlags::SYN));
        bed.until("it is refused", |bed| bed.drops(DropReason::Tunnel) == before + 1);
        nothing_comes(&stranger);

        // What is no reply of the service leaves directly.
        let mut network = tap(&world.net, "net0");
        let own = world.instances[&0].within(|| UdpSocket::bind((VIP, 5_000)).unwrap());
        own.send_to(b"its own", "10.1.0.1:7").unwrap();
        sees(&mut bed, &mut network, |frame| {
            frame.ends_with(b"its own") && frame.len() == 14 + 28 + 7
        });
        let replies = bed.slot(0).replies;
        assert!(
            (4 * u64::from(FLOWS)..bed.slot(0).back_packets).contains(&replies),
            "{replies}"
        );
        is_accounted_for(&mut bed);
        bed.switch.stop();
    }
}

/// Waits for such a frame on the network.
fn sees(bed: &mut Bed, network: &mut PacketSocket, is_it: impl Fn(&[u8]) -> bool) -> Vec<u8> {
    let mut seen = None;
    bed.until("the frame is on the network", |_| {
        let (receiver, _) = network.rings();
        receiver.take(usize::MAX, |frame| {
            if is_it(frame.bytes) {
                seen = Some(frame.bytes.to_vec());
            }
            ControlFlow::Continue(())
        });
        receiver.release();
        seen.is_some()
    });
    seen.unwrap()
}

/// A reply that is too long for the tunnel is dropped, and its sender, the instance, divides the next one.
#[test]
fn an_instance_is_told_how_long_a_reply_through_the_edge_may_be() {
    if !available() {
        return;
    }
    let mut world = World::new();
    let mut bed = kernel::switch_changed(1, 1, service(), |config| {
        config.tunnel = Some(tunnel(&EDGES[..1], None));
    });
    world.add_server(&mut bed, 0);
    let edge = socket(&world, EDGES[0]);
    let server = world.instances[&0].within(|| UdpSocket::bind((VIP, 80)).unwrap());
    into_tunnel(&edge, 0, &datagram(7));
    let (_, client) = server.recv_from(&mut [0; 64]).unwrap();
    let reply = [0x5a; 1_472];
    server.send_to(&reply, client).unwrap();
    bed.until("it is too long", |bed| bed.drops(DropReason::TooLarge) == 1);
    nothing_comes(&edge);
    bed.until("the instance is told", |bed| bed.slot(0).to_packets == 2);
    // Its kernel takes the error in some time after the switch has given it, and nothing shows when.
    std::thread::sleep(Duration::from_millis(50));
    server.send_to(&reply, client).unwrap();
    let mut data = 0;
    while data < reply.len() {
        let frame = out_of_tunnel(&edge, |_| true);
        assert!(frame.len() <= LONGEST, "{}", frame.len());
        let Parsed::Fragment(fragment) = packet::parse(&frame) else {
            panic!("{frame:02x?}")
        };
        data += usize::from(fragment.len) - if fragment.is_first() { 8 } else { 0 };
    }
    // The errors are of nobody, and the instance has them.
    bed.until("all is read", |_| true);
    assert_eq!(bed.slot(0).return_unmatched, 0);
    is_accounted_for(&mut bed);
    bed.switch.stop();
}

/// An edge, its client, and sockets in place of its machines. Clients are on the machines' segment, or on one of their own.
struct Edge {
    world: World,
    bed: Bed,
    client: PacketSocket,
    machines: [UdpSocket; 2],
    mac: [u8; 6],
    _clients: Option<Namespace>,
}

impl Edge {
    fn new(workers: usize, is_apart: bool, replies_by_edge: bool) -> Edge {
        let world = World::new();
        for machine in MACHINES {
            world.net.ip(&format!("addr add {machine}/32 dev net0"));
        }
        let clients = is_apart.then(|| {
            let clients = Namespace::new("clients");
            world.host.ip(&format!(
                "link add name up1 address 02:00:00:00:00:03 type veth peer name net1 netns {}",
                clients.name
            ));
            world.host.ip("link set up1 up");
            clients.ip("link set net1 up");
            clients
        });
        let service = ServicePlan {
            uplinks: vec![model::UplinkId(u8::from(is_apart))],
            replies_by_edge,
            return_counters: true,
            ..kernel::service()
        };
        let mut bed = kernel::switch_changed(workers, 0, service, |config| {
            config.tunnel = Some(tunnel(&[], None));
            config.table.return_counters = true;
            if is_apart {
                config.uplinks.push(uplink("clients", "up1", 1522));
            }
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
        let machines = MACHINES.map(|at| socket(&world, at));
        let (network, interface) = match &clients {
            Some(clients) => (clients, "net1"),
            None => (&world.net, "net0"),
        };
        Edge {
            client: tap(network, interface),
            machines,
            mac: if is_apart { CLIENTS_MAC } else { OWN_MAC },
            _clients: clients,
            world,
            bed,
        }
    }

    /// Sends a packet of the client, and gives the machine that it comes to.
    fn machine_of(&mut self, frame: &[u8]) -> usize {
        send_all(&mut self.client, [frame.to_vec()].into_iter());
        let ends = Instant::now() + bed::PATIENCE;
        let mut bytes = [0; 2048];
        loop {
            for (machine, socket) in self.machines.iter().enumerate() {
                socket.set_nonblocking(true).unwrap();
                let received = socket.recv(&mut bytes);
                socket.set_nonblocking(false).unwrap();
                if let Ok(len) = received {
                    assert_eq!(&bytes[8..len], frame);
                    return machine;
                }
            }
            assert!(Instant::now() < ends, "no packet comes to a machine");
        }
    }

    fn dropped(&mut self, what: &str, reason: DropReason, send: impl FnOnce(&Edge)) {
        self.bed.until("the counters are read", |_| true);
        let before = self.bed.drops(reason);
        send(self);
        self.bed.until(what, |bed| bed.drops(reason) > before);
    }
}

/// A reply of a flow's machine from that port of the service.
pub(crate) fn reply(flow: u16, port: u16) -> Vec<u8> {
    let to = SocketAddr::from(([10, 1, 0, flow as u8], 1_024 + flow));
    let from = SocketAddr::new(VIP.parse().unwrap(), port);
    let payload = flow.to_be_bytes();
    let mut frame = Frame::tcp(from, to, TcpFlags(TcpFlags::SYN | TcpFlags::ACK), &payload).unwrap();
    frame.dst_mac = packet(flow, 0)[6..12].try_into().unwrap();
    frame.src_mac = MACHINE_MAC;
    frame.to_vec().unwrap()
}

#[test]
fn an_edge_sends_replies_of_a_flows_machine_on() {
    if !available() {
        return;
    }
    for (workers, is_apart) in [(1, false), (2, true)] {
        an_edge_sends_replies_on(workers, is_apart);
    }
}

fn an_edge_sends_replies_on(workers: usize, is_apart: bool) {
    const FLOWS: u16 = 16;
    let mut edge = Edge::new(workers, is_apart, true);
    let mut by_machine = [0, 0];
    let expect = |edge: &mut Edge, flow: u16| {
        let mut expected = reply(flow, 80);
        expected[6..12].copy_from_slice(&edge.mac);
        sees(&mut edge.bed, &mut edge.client, |frame| frame == expected);
    };
    for flow in 0..FLOWS {
        let machine = edge.machine_of(&packet(flow, TcpFlags::SYN));
        into_tunnel(&edge.machines[machine], 0, &reply(flow, 80));
        expect(&mut edge, flow);
        by_machine[machine] += 1;
        // The other machine has nothing to say in it.
        edge.dropped("another machine's flow", DropReason::Tunnel, |edge| {
            into_tunnel(&edge.machines[1 - machine], 0, &reply(flow, 80));
        });
    }
    assert!(by_machine[0] > 0 && by_machine[1] > 0, "{by_machine:?}");
    edge.bed.until("each machine's are counted", |bed| {
        [0, 1].map(|slot| bed.slot(slot).replies) == by_machine
    });
    assert_eq!([0, 1].map(|slot| edge.bed.slot(slot).return_unmatched), [0, 0]);
    let (flows, _) = edge.bed.flows(FlowFilter::default(), usize::from(FLOWS));
    assert_eq!(flows.len(), usize::from(FLOWS));
    for flow in flows {
        assert_eq!((flow.packets, flow.returned), ([1, 1], Some(1)), "{flow:?}");
    }

    // Another edge pinned the flow.
    into_tunnel(&edge.machines[1], 0, &reply(500, 80));
    expect(&mut edge, 500);
    edge.bed
        .until("it is counted as such", |bed| bed.slot(1).return_unmatched == 1);
    assert_eq!(edge.bed.slot(1).replies, by_machine[1] + 1);

    // Nobody else speaks for the service, and a machine for nothing else.
    let stranger = socket(&edge.world, "10.0.0.1");
    edge.dropped("a stranger", DropReason::Tunnel, |_| {
        into_tunnel(&stranger, 0, &reply(0, 80))
    });
    edge.dropped("another port", DropReason::Tunnel, |edge| {
        into_tunnel(&edge.machines[0], 0, &reply(501, 81));
    });
    edge.dropped("to the service itself", DropReason::Tunnel, |edge| {
        into_tunnel(&edge.machines[0], 0, &packet(502, TcpFlags::SYN));
    });
    edge.dropped("to a group", DropReason::Tunnel, |edge| {
        let mut to_all = reply(503, 80);
        to_all[0] |= 1;
        into_tunnel(&edge.machines[0], 0, &to_all);
    });
    edge.dropped("no reply", DropReason::Tunnel, |edge| {
        into_tunnel(&edge.machines[0], LOOKING, &reply(504, 80));
    });
    edge.dropped("another network", DropReason::Tunnel, |edge| {
        let mut bytes = HEADER.to_vec();
        bytes[6] = 8;
        bytes.extend_from_slice(&reply(505, 80));
        edge.machines[0].send_to(&bytes, OWN).unwrap();
    });
    edge.bed.assert_accounts_close();
    edge.bed.switch.stop();
}

/// Where replies return directly, an edge takes nothing out of tunnels.
#[test]
fn an_edge_without_replies_takes_none_out() {
    if !available() {
        return;
    }
    let mut edge = Edge::new(1, false, false);
    let machine = edge.machine_of(&packet(1, TcpFlags::SYN));
    edge.dropped("a reply in its tunnel", DropReason::Unmatched, |edge| {
        into_tunnel(&edge.machines[machine], 0, &reply(1, 80));
    });
    assert_eq!(edge.bed.slot(machine as u16).replies, 0);
    edge.bed.switch.stop();
}

/// A client behind another uplink than that of the tunnels is told, too, how long its packets may be.
#[test]
fn a_client_behind_another_uplink_is_told_how_long_packets_may_be() {
    if !available() {
        return;
    }
    let mut edge = Edge::new(1, true, true);
    let to = SocketAddr::new(kernel::VIP_V6.parse().unwrap(), 80);
    let long = Frame::udp("[2001:db8:1::1]:5".parse().unwrap(), to, &[0; 1_440]).unwrap();
    let sent = long.to_vec().unwrap();
    send_all(&mut edge.client, [sent.clone()].into_iter());
    let error = sees(&mut edge.bed, &mut edge.client, |frame| {
        frame.get(20) == Some(&58) && frame.get(54..56) == Some(&[2, 0])
    });
    assert_eq!(error[..6], sent[6..12]);
    assert_eq!(error[6..12], CLIENTS_MAC);
    assert_eq!(error[58..62], (LONGEST as u32 - 14).to_be_bytes());
    edge.bed.assert_accounts_close();
    edge.bed.switch.stop();
}
