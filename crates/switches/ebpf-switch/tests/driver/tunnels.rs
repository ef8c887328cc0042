//! Tunnels to and from other machines: what leaves the edge, what a machine takes out, and what both refuse and count.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use ebpf_switch::TunnelEnd;
use model::{DropReason, InstanceState, ServiceId, Slot, UplinkId};
use packet::vxlan::{self, Mark, Tunnel};
use switch::{PortKind, PortSpec, Switch, SwitchEvent, SwitchRequest};

use crate::bed::{Bed, World, available};
use crate::frames::{ACK, CLIENT, SYN, UPLINK, fix_ip_checksum, tagged, tcp, udp};
use crate::steering::service;

pub(crate) const EDGE: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
pub(crate) const MACHINES: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 0, 0, 11), Ipv4Addr::new(10, 0, 0, 12)];
pub(crate) const VIP: &str = "10.0.0.100:80";
const CLIENTS: [&str; 2] = ["198.51.100.7", "[2001:db8:1::7]"];
const VIPS: [&str; 2] = [VIP, "[2001:db8::100]:80"];
const NETWORK: u32 = 7;

fn mac_of(machine: Ipv4Addr) -> [u8; 6] {
    [2, 0, 0, 0, 1, machine.octets()[3]]
}

pub(crate) fn end(address: Ipv4Addr, from: &[Ipv4Addr]) -> TunnelEnd {
    TunnelEnd {
        uplink: UplinkId(0),
        max_frame: 1572,
        address,
        network: NETWORK,
        from: from.to_vec(),
    }
}

/// The frame of a tunnel.
fn wrapped(macs: [[u8; 6]; 2], ends: [Ipv4Addr; 2], frame: &[u8]) -> Vec<u8> {
    let tunnel = Tunnel {
        macs,
        ends,
        network: NETWORK,
        mark: Mark::NONE,
    };
    let mut header = [0; vxlan::OVERHEAD];
    tunnel
        .put(&mut header, frame.len(), vxlan::flow_hash(frame))
        .unwrap();
    [&header, frame].concat()
}

/// As the edge sends it to a machine.
fn sent_to(machine: Ipv4Addr, frame: &[u8]) -> Vec<u8> {
    wrapped([UPLINK, mac_of(machine)], [EDGE, machine], frame)
}

/// As a machine of these tests gets it from the edge.
fn from_edge(frame: &[u8]) -> Vec<u8> {
    wrapped([CLIENT, UPLINK], [EDGE, MACHINES[0]], frame)
}

fn arp(kind: u8, mac: [u8; 6], from: Ipv4Addr, asked: Ipv4Addr) -> Vec<u8> {
    let head = [8, 6, 0, 1, 8, 0, 6, 4, 0, kind];
    let (to, from, asked) = (UPLINK, from.octets(), asked.octets());
    [&to[..], &mac, &head, &mac, &from, &to, &asked].concat()
}

impl Bed {
    /// An edge before these machines, which answer questions for their MAC addresses.
    fn edge(change: impl FnOnce(&mut World, &mut switch::ServicePlan)) -> Bed {
        let mut world = World::new(2);
        let mut service = service();
        world.host.ip("link set up0 mtu 1600");
        world.net.ip("link set net0 mtu 1600");
        world.config.tunnel = Some(end(EDGE, &[]));
        for port in &mut world.config.ports {
            port.kind = PortKind::Tunnel;
        }
        change(&mut world, &mut service);
        let mut bed = Bed::new(world, service);
        for slot in [Slot(0), Slot(1)] {
            bed.attach_machine(slot, &MACHINES);
            bed.set_state(slot, Some(InstanceState::Active));
        }
        bed.received();
        bed
    }

    /// Attaches the machine of a slot, while those of `answering` answer.
    pub(crate) fn attach_machine(&mut self, slot: Slot, answering: &[Ipv4Addr]) {
        let (service, mut port) = (ServiceId(0), PortSpec::new(PortKind::Tunnel, ""));
        port.back_end = Some(SocketAddr::new(MACHINES[slot.index()].into(), vxlan::PORT));
        self.ask(SwitchRequest::Attach { slot, service, port });
        self.until("the machine is known", |bed| {
            bed.answer(answering);
            let is_it = |e: &SwitchEvent| matches!(e, SwitchEvent::Attached { slot: s, .. } if *s == slot);
            bed.events.iter().any(is_it)
        });
        self.events.clear();
    }

    /// Answers the edge's questions for these machines.
    fn answer(&mut self, answering: &[Ipv4Addr]) {
        for frame in self.received() {
            let is_question = frame.len() >= 42 && frame[12..14] == [8, 6] && frame[21] == 1;
            let asked = answering
                .iter()
                .find(|of| is_question && frame[38..42] == of.octets());
            if let Some(machine) = asked {
                assert_eq!(frame[28..32], EDGE.octets());
                let reply = arp(2, mac_of(*machine), *machine, EDGE);
                self.world.wire.send(&reply);
            }
        }
    }

    /// Frames of IP that came to the network within a moment: at least so many.
    fn arrived(&mut self, count: usize) -> Vec<Vec<u8>> {
        let mut all = Vec::new();
        self.until("the frames arrive", |bed| {
            let frames = bed.received().into_iter();
            all.extend(frames.filter(|frame| frame[12..14] != [8, 6]));
            all.len() >= count
        });
        all
    }

    /// A machine with two instances, which takes packets from the edge.
    fn machine(vlan: Option<u16>) -> Bed {
        let mut bed = Bed::with_two(|world, service| {
            service.matches.vlan = vlan;
            world.config.tunnel = Some(end(MACHINES[0], &[EDGE]));
            world.host.ip("link set up0 mtu 1600");
            world.net.ip("link set net0 mtu 1600");
        });
        bed.turn();
        bed
    }
}

#[test]
fn frames_have_outer_headers_and_flows_stay_at_their_machine() {
    if !available() {
        return;
    }
    let mut bed = Bed::edge(|_, _| {});
    let mut places = Vec::new();
    for round in 0..2 {
        for flow in 0..20 {
            let at = flow % 2;
            let frame = udp(
                &format!("{}:{}", CLIENTS[at], 4000 + flow),
                VIPS[at],
                &[round; 100],
            );
            bed.world.wire.send(&frame);
            let got = bed.arrived(1);
            let machine = MACHINES
                .iter()
                .position(|machine| got == [sent_to(*machine, &frame)]);
            let machine = machine.unwrap_or_else(|| panic!("{got:02x?} of {frame:02x?}"));
            match round {
                0 => places.push(machine),
                _ => assert_eq!(places[flow], machine, "flow {flow} has moved"),
            }
        }
    }
    assert!(places.contains(&0) && places.contains(&1));
    bed.turn();
    let to: Vec<u64> = bed.reading.slots[..2].iter().map(|of| of.to_packets).collect();
    let at_first = 2 * places.iter().filter(|at| **at == 0).count() as u64;
    assert_eq!(to, [at_first, 40 - at_first]);
    assert_eq!(bed.reading.uplinks[0].sent_packets, 40);
    assert_eq!(
        (
            bed.reading.offered(),
            bed.reading.sent(),
            bed.reading.delivered(),
            bed.reading.dropped()
        ),
        (40, 40, 0, 0)
    );
    let back: Vec<u64> = bed.reading.slots[..2].iter().map(|of| of.back_packets).collect();
    assert_eq!(back, to);
    bed.switch.stop();
}

#[test]
fn a_tag_stays_inside() {
    if !available() {
        return;
    }
    let mut bed = Bed::edge(|_, service| service.matches.vlan = Some(42));
    let frame = tagged(udp("198.51.100.7:4000", VIP, b"question"), 42);
    bed.world.wire.send(&frame);
    let got = bed.arrived(1);
    assert!(
        MACHINES.iter().any(|machine| got == [sent_to(*machine, &frame)]),
        "{got:02x?}"
    );
    bed.switch.stop();
}

#[test]
fn a_tag_inside_says_which_service_it_is() {
    if !available() {
        return;
    }
    let mut bed = Bed::machine(Some(42));
    for at in 0..2 {
        let frame = udp(&format!("{}:4000", CLIENTS[at]), VIPS[at], b"question");
        let (slot, got) = bed.sent(&from_edge(&tagged(frame.clone(), 42)));
        assert_eq!(got[14..], frame[14..]);
        bed.received();
        let answer = udp(VIPS[at], &format!("{}:4000", CLIENTS[at]), b"answer");
        bed.world.instances[&slot].tap.send(&answer);
        // A packet socket sees a tag beside the frame.
        assert_eq!(bed.arrived(1)[0][14..], answer[14..]);
        // Without the tag it is of no service.
        bed.world.wire.send(&from_edge(&frame));
    }
    for _ in 0..20 {
        bed.turn();
    }
    assert_eq!(bed.taken().len(), 0);
    assert_eq!(bed.reading.dropped(), 0);
    bed.switch.stop();
}

/// Has a packet sent that nobody may divide.
fn whole(mut frame: Vec<u8>) -> Vec<u8> {
    if frame[12..14] == [8, 0] {
        frame[20] = 0x40;
        fix_ip_checksum(&mut frame);
    }
    frame
}

#[test]
fn senders_of_packets_that_are_too_big_are_told_up_to_a_rate() {
    if !available() {
        return;
    }
    let mut bed = Bed::edge(|world, _| {
        world.config.tunnel = Some(TunnelEnd {
            max_frame: 1522,
            ..end(EDGE, &[])
        });
    });
    for (at, header) in [28, 48].into_iter().enumerate() {
        let client = format!("{}:4000", CLIENTS[at]);
        // The longest that fits, and one that does not.
        let fits = whole(udp(&client, VIPS[at], &vec![0; 1450 - header]));
        let large = whole(udp(&client, VIPS[at], &vec![0; 1451 - header]));
        bed.world.wire.send(&fits);
        assert_eq!(bed.arrived(1)[0].len(), 1450 + 14 + vxlan::OVERHEAD);
        bed.world.wire.send(&large);
        let error = bed.arrived(1).remove(0);
        assert_eq!((&error[..6], &error[6..12]), (&CLIENT[..], &UPLINK[..]));
        let (said, mtu) = match at {
            0 => ([3, 4], &error[40..42]),
            _ => ([2, 0], &error[60..62]),
        };
        let icmp = if at == 0 { 34 } else { 54 };
        assert_eq!(
            (&error[icmp..icmp + 2], mtu),
            (&said[..], &1450_u16.to_be_bytes()[..])
        );
        // From the service to the client.
        let addresses = if at == 0 { 26..34 } else { 22..54 };
        let half = addresses.len() / 2;
        let (src, dst) = error[addresses.clone()].split_at(half);
        let (of_client, of_vip) = large[addresses].split_at(half);
        assert_eq!((src, dst), (of_vip, of_client));
        assert_eq!(&error[icmp + 8 + 12..][..4], &large[14 + 12..][..4]);
    }
    bed.dropped(DropReason::TooLarge, 2);
    // A packet that routers may divide: nobody is told.
    bed.world.wire.send(&udp("198.51.100.7:4000", VIP, &[0; 1460]));
    bed.dropped(DropReason::TooLarge, 3);
    let large = whole(udp("198.51.100.7:4000", VIP, &[0; 1460]));
    let began = Instant::now();
    (0..500).for_each(|_| bed.world.wire.send(&large));
    bed.dropped(DropReason::TooLarge, 503);
    let windows = began.elapsed().as_millis() as usize / 10 + 2;
    for _ in 0..100 {
        bed.turn();
    }
    let told = bed.arrived(1).len();
    assert!(told <= 10 * windows, "{told} in {windows} windows");
    assert_eq!(
        bed.reading.slots[..2].iter().map(|of| of.to_packets).sum::<u64>(),
        2
    );
    bed.switch.stop();
}

#[test]
fn a_machine_takes_frames_out_and_answers_the_client() {
    if !available() {
        return;
    }
    let mut bed = Bed::machine(None);
    let before = bed.reading.uplinks[0].received_packets;
    for at in 0..2 {
        let mut frame = udp(&format!("{}:4000", CLIENTS[at]), VIPS[at], b"question");
        frame[..6].copy_from_slice(&[2, 0, 0, 0, 0, 0x77]);
        frame[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 0x99]);
        let (slot, got) = bed.sent(&from_edge(&frame));
        assert_eq!(&got[..6], interfaces::instance_mac(slot));
        assert_eq!(got[14..], frame[14..]);
        let answer = udp(VIPS[at], &format!("{}:4000", CLIENTS[at]), b"answer");
        bed.received();
        bed.world.instances[&slot].tap.send(&answer);
        let got = bed.arrived(1);
        assert_eq!(got[0][..6], [2, 0, 0, 0, 0, 0x99]);
        assert_eq!(got[0][14..], answer[14..]);
        // By another way it is the same flow.
        assert_eq!(bed.sent(&frame_to_uplink(&frame)).0, slot);
    }
    bed.turn();
    assert_eq!(bed.reading.uplinks[0].received_packets, before + 4);
    assert_eq!(bed.reading.dropped(), 0);
    bed.switch.stop();
}

fn frame_to_uplink(frame: &[u8]) -> Vec<u8> {
    [&UPLINK[..], &frame[6..]].concat()
}

#[test]
fn a_machine_refuses_what_is_no_tunnel_of_its_edge() {
    if !available() {
        return;
    }
    let mut bed = Bed::machine(None);
    let inner = udp("198.51.100.7:4000", VIP, b"question");
    let good = from_edge(&inner);
    type Change = fn(&mut Vec<u8>);
    let cases: [(&str, Change); 12] = [
        ("a stranger", |of| of[29] = 9),
        ("another network", |of| of[48] = 8),
        ("no network", |of| of[42] = 0),
        ("a first fragment", |of| of[20] = 0x20),
        ("a later fragment", |of| of[20..22].copy_from_slice(&[0, 10])),
        ("a longer datagram", |of| of[39] += 1),
        ("a shorter datagram", |of| of[39] -= 1),
        ("a packet that is cut off", |of| of.truncate(of.len() - 1)),
        ("nothing inside", |of| {
            of.truncate(50 + 13);
            of[16..18].copy_from_slice(&49_u16.to_be_bytes());
            of[38..40].copy_from_slice(&29_u16.to_be_bytes());
        }),
        ("options", |of| {
            of.splice(34..34, [1; 4]);
            of[14] = 0x46;
        }),
        ("no VXLAN header", |of| {
            of.truncate(44);
            of[16..18].copy_from_slice(&30_u16.to_be_bytes());
            of[38..40].copy_from_slice(&10_u16.to_be_bytes());
        }),
        ("a wrong checksum", |_| {}),
    ];
    for (number, (what, change)) in cases.into_iter().enumerate() {
        let mut bad = good.clone();
        change(&mut bad);
        fix_ip_checksum(&mut bad);
        if what == "a wrong checksum" {
            bad[24] ^= 1;
        }
        bed.world.wire.send(&bad);
        bed.dropped(DropReason::Tunnel, number as u64 + 1);
        assert_eq!(bed.taken().len(), 0, "{what}");
    }
    // What is inside is no packet.
    let mut other = good.clone();
    other[62..64].copy_from_slice(&[8, 6]);
    bed.world.wire.send(&other);
    bed.dropped(DropReason::Other, 1);
    // Neither of these is a packet of a tunnel: they are left to the machine.
    for (at, byte) in [(33, 99), (37, 1)] {
        let mut foreign = good.clone();
        foreign[at] = byte;
        fix_ip_checksum(&mut foreign);
        bed.world.wire.send(&foreign);
    }
    // Padding is no part of the datagram, and the outer sum is not looked at.
    let mut padded = good.clone();
    padded[41] = 1;
    padded.extend_from_slice(&[0; 7]);
    let (_, got) = bed.sent(&padded);
    assert_eq!(got[14..], inner[14..]);
    assert_eq!(bed.reading.drops[DropReason::Tunnel.index()], 12);
    // What comes out is not taken out once more.
    bed.world.wire.send(&from_edge(&good));
    bed.world.wire.send(&good);
    let frames = bed.sent(&good);
    assert_eq!(frames.1[14..], inner[14..]);
    bed.switch.stop();
}

#[test]
fn each_end_answers_for_its_own_address_only() {
    if !available() {
        return;
    }
    let asks = |bed: &mut Bed, address: &str| {
        bed.received();
        let question = arp(1, CLIENT, Ipv4Addr::new(10, 0, 0, 2), address.parse().unwrap());
        bed.world.wire.send(&question);
        for _ in 0..20 {
            bed.turn();
        }
        let is_reply = |frame: &Vec<u8>| frame[12..14] == [8, 6] && frame[21] == 2;
        bed.received().iter().any(is_reply)
    };
    let mut edge = Bed::edge(|_, _| {});
    assert!(asks(&mut edge, "10.0.0.1") && asks(&mut edge, "10.0.0.100"));
    edge.switch.stop();
    drop(edge);
    let mut machine = Bed::machine(None);
    assert!(asks(&mut machine, "10.0.0.11") && !asks(&mut machine, "10.0.0.100"));
    machine.switch.stop();
}

#[test]
fn a_machine_that_answers_no_more_is_told_of_unless_none_does() {
    if !available() {
        return;
    }
    let mut bed = Bed::edge(|_, _| {});
    let silent = |bed: &Bed| {
        let down = |e: &SwitchEvent| matches!(e, SwitchEvent::PortDown { slot: Slot(1), .. });
        bed.events.iter().any(down)
    };
    // Nobody is heard.
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(5) {
        bed.turn();
    }
    let is_down = |e: &SwitchEvent| matches!(e, SwitchEvent::PortDown { .. });
    assert!(!bed.events.iter().any(is_down));
    bed.until("one of them is silent", |bed| {
        bed.answer(&MACHINES[..1]);
        silent(bed)
    });
    // It comes back at another address of Ethernet.
    bed.ask(SwitchRequest::Fail(Slot(1)));
    bed.set_state(Slot(1), None);
    bed.ask(SwitchRequest::Detach(Slot(1)));
    bed.attach_machine(Slot(1), &MACHINES);
    bed.switch.stop();
}

#[test]
fn the_next_run_goes_on_with_the_same_machines() {
    if !available() {
        return;
    }
    let mut bed = Bed::edge(|_, _| {});
    let frame = tcp("198.51.100.7:4000", VIP, SYN);
    bed.world.wire.send(&frame);
    let first = bed.arrived(1);
    let at = MACHINES
        .iter()
        .position(|of| first == [sent_to(*of, &frame)])
        .unwrap();
    bed.switch.leave();
    bed.switch = bed.world.start_switch();
    let resumed = bed.switch.resumed().unwrap().back_ends.clone();
    assert_eq!(resumed.len(), 2);
    assert_eq!(resumed[&Slot(1)].ip(), MACHINES[1]);
    // Without a plan of this run, and without an answer of the machine.
    let frame = tcp("198.51.100.7:4000", VIP, ACK);
    bed.received();
    bed.world.wire.send(&frame);
    assert_eq!(bed.arrived(1), [sent_to(MACHINES[at], &frame)]);
    for slot in [Slot(0), Slot(1)] {
        bed.attach_machine(slot, &[]);
        bed.set_state(slot, Some(InstanceState::Active));
    }
    bed.received();
    bed.world.wire.send(&frame);
    assert_eq!(bed.arrived(1), [sent_to(MACHINES[at], &frame)]);
    assert_eq!(bed.flows().len(), 1);
    bed.switch.stop();
}

/// An edge and a machine, both by this driver, and a real connection with packets of up to 64 KiB.
#[test]
fn both_ends_pass_undivided_packets_and_count_the_same() {
    if !available() {
        return;
    }
    let mut world = World::new(1);
    let far = World::new(1);
    // One segment: what was the network of the machine is a port of a bridge before the edge.
    far.net
        .ip(&format!("link set net0 netns {} name net1", world.net.name));
    for (namespace, interface) in [(&world.host, "up0"), (&far.host, "up0")] {
        namespace.ip(&format!("link set {interface} mtu 1600"));
    }
    far.host.ip("link set up0 address 02:00:00:00:00:03");
    world.net.ip("link add br0 type bridge");
    for port in ["net0", "net1"] {
        world.net.ip(&format!("link set {port} mtu 1600 master br0"));
        world.net.ip(&format!("link set {port} up"));
    }
    world.net.ip("addr add 10.0.0.2/24 dev br0");
    world.net.ip("link set br0 mtu 1500 up");
    let mut far_world = far;
    far_world.config.tunnel = Some(end(MACHINES[0], &[EDGE]));
    far_world.host.enter();
    let mut machine = Bed::new(far_world, service());
    machine.add(0..1, &["10.0.0.100/32"]);
    world.config.tunnel = Some(end(EDGE, &[]));
    world.config.ports[0].kind = PortKind::Tunnel;
    world.host.enter();
    let mut edge = Bed::new(world, service());
    edge.attach_machine(Slot(0), &[]);
    edge.set_state(Slot(0), Some(InstanceState::Active));
    let instance = &machine.world.instances[&Slot(0)];
    let server = instance.namespace.within(|| TcpListener::bind(VIP).unwrap());
    let server = std::thread::spawn(move || {
        let (mut connection, _) = server.accept().unwrap();
        let mut all = Vec::new();
        connection.read_to_end(&mut all).unwrap();
        connection.write_all(all.len().to_string().as_bytes()).unwrap();
    });
    let mut client = edge.world.net.within(|| TcpStream::connect(VIP).unwrap());
    client.set_write_timeout(Some(crate::bed::PATIENCE)).unwrap();
    client.set_read_timeout(Some(crate::bed::PATIENCE)).unwrap();
    client.write_all(&vec![7; 8 << 20]).unwrap();
    client.shutdown(std::net::Shutdown::Write).unwrap();
    let mut answer = String::new();
    client.read_to_string(&mut answer).unwrap();
    server.join().unwrap();
    assert_eq!(answer, (8 << 20).to_string());
    machine.turn();
    edge.world.host.enter();
    edge.turn();
    let (near, there) = (&edge.reading, &machine.reading);
    let sent = &near.slots[0];
    assert_eq!(
        sent.to_packets, there.uplinks[0].received_packets,
        "{:?}",
        there.drops
    );
    assert_eq!(sent.to_bytes, there.uplinks[0].received_bytes);
    // Packets were passed whole: they are longer than any on a wire.
    assert!(sent.to_bytes / sent.to_packets > 1514, "{sent:?}");
    assert_eq!((near.dropped(), there.drops[DropReason::Tunnel.index()]), (0, 0));
    machine.switch.stop();
    edge.switch.stop();
}
