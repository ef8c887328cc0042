//! What a packet into a tunnel costs the edge, beside one to an instance of its own.

use std::net::UdpSocket;
use std::time::Duration;

use ebpf_switch::Statistics;
use model::{InstanceState, Slot};
use rustix::time::{ClockId, clock_gettime};
use switch::{PortKind, Switch as _};

use crate::bed::{Bed, World, available};
use crate::frames::udp;
use crate::namespaces::Tap;
use crate::steering::service;
use crate::tunnels::{EDGE, MACHINES, VIP, end};

/// Flows of each kind, and rounds; each round sends some packets of each flow.
const FLOWS: u16 = 64;
const ROUNDS: usize = 9;
/// The edge's CPU time for a packet into a tunnel ÷ for one to an instance of its own: at most.
const MOST: f64 = 1.25;

/// The time of this thread's CPU for a packet, in nanoseconds: the kernel forwards on the time of who sends.
fn cost(bed: &Bed, first: u16, bursts: usize) -> f64 {
    let frame = |flow| udp(&format!("198.51.100.7:{}", first + flow), VIP, &[0; 200]);
    let frames: Vec<Vec<u8>> = (0..FLOWS).map(frame).collect();
    let now = || {
        let at = clock_gettime(ClockId::ThreadCPUTime);
        at.tv_sec as f64 * 1e9 + at.tv_nsec as f64
    };
    let began = now();
    for _ in 0..bursts {
        frames.iter().for_each(|frame| bed.world.wire.send(frame));
    }
    (now() - began) / (bursts * frames.len()) as f64
}

/// Bursts by which the time of the program at the uplink is measured.
const PROGRAM_BURSTS: usize = 50;

/// The program's own time for a packet, in nanoseconds, while the kernel measures it.
fn program_cost(bed: &Bed, statistics: &Statistics, first: u16) -> f64 {
    let read = || {
        let all = statistics.read().unwrap().into_iter();
        let of = all.filter(|of| of.program.starts_with("inco_uplink"));
        of.fold((0, Duration::ZERO), |sum, of| (sum.0 + of.runs, sum.1 + of.time))
    };
    let before = read();
    cost(bed, first, PROGRAM_BURSTS);
    let after = read();
    (after.1 - before.1).as_nanos() as f64 / (after.0 - before.0) as f64
}

#[test]
fn a_packet_into_a_tunnel_costs_little_more_than_one_to_an_instance() {
    if !available() {
        return;
    }
    let mut world = World::new(2);
    world.host.ip("link set up0 mtu 1600");
    world.net.ip("link set net0 mtu 1600");
    world.config.tunnel = Some(end(EDGE, &[]));
    world.config.ports[1].kind = PortKind::Tunnel;
    let mut bed = Bed::new(world, service());
    bed.add(0..1, &["10.0.0.100/32"]);
    // It takes what comes, and nobody reads it. No other socket looks at frames.
    let instance = bed.world.instances.get_mut(&Slot(0)).unwrap();
    let _sink = instance.namespace.within(|| UdpSocket::bind(VIP).unwrap());
    instance.tap = Tap::open(&bed.world.host, "lo");
    cost(&bed, 1000, 1);
    bed.attach_machine(Slot(1), &MACHINES);
    bed.set_state(Slot(0), Some(InstanceState::Draining));
    bed.set_state(Slot(1), Some(InstanceState::Active));
    cost(&bed, 2000, 1);
    let bursts = if real_parts::is_full_length() { 1000 } else { 10 };
    let mut ratios: Vec<[f64; 3]> = (0..ROUNDS)
        .map(|_| {
            let (own, tunnel) = (cost(&bed, 1000, bursts), cost(&bed, 2000, bursts));
            bed.received();
            [tunnel / own, own, tunnel]
        })
        .collect();
    ratios.sort_by(|a, b| a[0].total_cmp(&b[0]));
    let [ratio, own, tunnel] = ratios[ROUNDS / 2];
    let statistics = Statistics::start(&bed.world.config.name).unwrap();
    let [own_program, tunnel_program] = [1000, 2000].map(|first| program_cost(&bed, &statistics, first));
    drop(statistics);
    eprintln!("of that the program: {own_program:.0} ns and {tunnel_program:.0} ns");
    eprintln!(
        "CPU time for a packet, its sender's included: {own:.0} ns to an instance, {tunnel:.0} ns into a tunnel: {ratio:.2} \
         ({:.2} to {:.2})",
        ratios[0][0],
        ratios[ROUNDS - 1][0]
    );
    bed.turn();
    let sent = u64::from(FLOWS) * (1 + (ROUNDS * bursts + PROGRAM_BURSTS) as u64);
    let slots = &bed.reading.slots;
    assert_eq!([slots[0].to_packets, slots[1].to_packets], [sent; 2]);
    assert!(!real_parts::is_full_length() || ratio <= MOST, "{ratios:?}");
    bed.switch.stop();
}
