//! The edge before other machines: what a packet into a tunnel costs its worker, beside one that only gets another MAC
//! address.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};

use model::{DropReason, InstanceState, Match, Slot, UplinkId, Vip, VipMode};
use packet::build::Frame;
use packet_socket::PacketSocket;
use real_parts::{Namespace, is_full_length};
use soft_switch::{KernelPlace, KernelPorts, TunnelEnd, UplinkConfig, UplinkDevice};
use switch::{PortKind, PortSpec, ServicePlan, Switch as _, SwitchEvent};

use crate::bed::{self, Bed};
use crate::kernel::{self, PREFIX, VIP, World, available};
use crate::kernel_contract::{send_all, tap};

/// The service whose instance is a machine behind a tunnel.
const FAR_VIP: &str = "10.0.0.101";
const FAR: &str = "10.0.0.11";
/// Packets of a burst, each of another flow: as many as fit into the ring of an uplink, and more than a turn takes.
const BURST: u16 = 512;
const ROUNDS: usize = 5;
/// The part of a packet behind its UDP header, in bytes.
const PAYLOAD: usize = 200;
/// Packets for a CPU second with the edit of a tunnel ÷ with that of a MAC address: at least.
const LEAST: f64 = 0.8;

fn service(id: u16, vip: &str) -> ServicePlan {
    ServicePlan {
        vip: Some(Vip {
            addresses: vec![vip.parse().unwrap()],
            ports: vec![80..=80],
            mode: VipMode::L2,
            target_port: None,
        }),
        // By the other uplink than that of tunnels.
        ..bed::service(id, &[1], Match::default())
    }
}

pub(crate) fn uplink(name: &str, interface: &str, max_frame: usize) -> UplinkConfig {
    UplinkConfig {
        name: name.to_owned(),
        device: UplinkDevice::Kernel {
            interface: interface.to_owned(),
        },
        max_frame,
        waits: false,
    }
}

/// A packet of each flow to that address.
fn burst(vip: &str) -> Vec<Vec<u8>> {
    let to = SocketAddr::new(vip.parse().unwrap(), 80);
    let from = |flow| SocketAddr::from(([10, 0, 2, 1], 1_024 + flow));
    (0..BURST)
        .map(|flow| {
            Frame::udp(from(flow), to, &[0; PAYLOAD])
                .unwrap()
                .to_vec()
                .unwrap()
        })
        .collect()
}

/// Sends bursts for a service, one after the other, and gives the worker's time for a packet, in nanoseconds.
fn cost(bed: &mut Bed, client: &mut PacketSocket, (service, vip): (usize, &str), bursts: usize) -> f64 {
    let frames = burst(vip);
    let figures = |bed: &Bed| {
        let offered = bed.reading.services[service].offered_packets;
        (offered, bed.reading.workers[0].busy_ns)
    };
    bed.until("the counters are read", |_| true);
    let (offered, busy) = figures(bed);
    let all = u64::from(BURST) * bursts as u64;
    for number in 1..=bursts as u64 {
        send_all(client, frames.iter().cloned());
        bed.until("the burst is offered", |bed| {
            figures(bed).0 == offered + number * u64::from(BURST)
        });
    }
    (figures(bed).1 - busy) as f64 / all as f64
}

#[test]
fn a_packet_into_a_tunnel_costs_little_more_than_one_with_another_mac_address() {
    if !available() {
        return;
    }
    let mut world = World::new();
    world.net.ip(&format!("addr add {FAR}/32 dev net0"));
    let clients = Namespace::new("clients");
    world.host.ip(&format!(
        "link add name up1 type veth peer name net1 netns {}",
        clients.name
    ));
    world.host.ip("link set up1 up");
    clients.ip("link set net1 up");
    let mut bed = Bed::with(1, 0, vec![service(0, VIP), service(1, FAR_VIP)], |config| {
        config.uplinks = vec![uplink("machines", "up0", 1522), uplink("clients", "up1", 1522)];
        config.tunnel = Some(TunnelEnd {
            uplink: UplinkId(0),
            address: Ipv4Addr::new(10, 0, 0, 2),
            network: 7,
            from: Vec::new(),
            edges_key: None,
        });
        config.kernel_ports = KernelPorts {
            prefix: PREFIX.to_owned(),
            mtu: 1500,
            places: vec![KernelPlace {
                slot: Slot(0),
                own: Vec::new(),
                egress: true,
            }],
            frames: Default::default(),
        };
    });
    world.start_instance(0, &[&format!("{VIP}/32")]);
    kernel::attach(&mut bed, 0);
    bed.set_state(1, 1, InstanceState::Standby);
    bed.publish();
    bed.ask(bed::attach(
        1,
        1,
        PortSpec {
            back_end: Some(SocketAddr::new(FAR.parse().unwrap(), 4789)),
            ..PortSpec::new(PortKind::Tunnel, "")
        },
    ));
    bed.until("the machine is attached", |bed| {
        bed.saw(|e| matches!(e, SwitchEvent::Attached { slot, .. } if slot.0 == 1))
    });
    for slot in 0..2 {
        bed.set_state(slot, slot, InstanceState::Active);
    }
    bed.publish();
    // At both ends a socket takes what comes, and nobody reads it.
    let _sinks = [
        world.instances[&0].within(|| UdpSocket::bind((VIP, 80)).unwrap()),
        world.net.within(|| UdpSocket::bind((FAR, 4789)).unwrap()),
    ];
    let mut client = tap(&clients, "net1");
    let bursts = if is_full_length() { 400 } else { 20 };
    let (to_mac, into_tunnel) = ((0, VIP), (1, FAR_VIP));
    // The flows begin.
    for to in [to_mac, into_tunnel] {
        cost(&mut bed, &mut client, to, 2);
    }
    let mut ratios: Vec<[f64; 3]> = (0..ROUNDS)
        .map(|_| {
            let mac = cost(&mut bed, &mut client, to_mac, bursts);
            let tunnel = cost(&mut bed, &mut client, into_tunnel, bursts);
            [mac / tunnel, mac, tunnel]
        })
        .collect();
    ratios.sort_by(|a, b| a[0].total_cmp(&b[0]));
    let [ratio, mac, tunnel] = ratios[ROUNDS / 2];
    eprintln!(
        "the worker's time for a packet: {mac:.0} ns with another MAC address, {tunnel:.0} ns into a tunnel; packets in the \
         same time: {ratio:.2} ({:.2} to {:.2})",
        ratios[0][0],
        ratios[ROUNDS - 1][0]
    );
    let sent = u64::from(BURST) * (2 + ROUNDS * bursts) as u64;
    bed.until("all has left", |bed| bed.reading.uplinks[0].sent_packets >= sent);
    let slots = &bed.reading.slots;
    assert_eq!([slots[0].to_packets, slots[1].to_packets], [sent; 2]);
    // What kernels send by themselves is of no service.
    let of_none = [DropReason::Unmatched, DropReason::Other].map(|of| bed.reading.drops[of.index()]);
    assert_eq!(bed.reading.dropped(), of_none.iter().sum::<u64>());
    assert!(!is_full_length() || ratio >= LEAST, "{ratios:?}");
    bed.switch.stop();
}
