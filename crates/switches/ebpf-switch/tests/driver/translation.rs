//! Addresses and ports that are translated: real connections, and what ICMP errors quote.

use std::net::UdpSocket;

use model::{Slot, VipMode};
use real_parts::{Namespace, echo, echoes, fetch, finds_a_narrow_path, opens_its_own, refuses, serve};
use switch::{ServicePlan, Switch};

use crate::bed::{Bed, World, available};
use crate::frames::{SYN, tcp, udp};
use crate::steering::service;

const VIP: &str = "10.0.0.100";
const VIP6: &str = "2001:db8::100";

fn own(slot: Slot) -> [String; 2] {
    [
        format!("10.0.1.{}", slot.0 + 1),
        format!("2001:db8:1::{}", slot.0 + 1),
    ]
}

fn translated() -> ServicePlan {
    let mut service = service();
    if let Some(vip) = &mut service.vip {
        vip.mode = VipMode::Dnat;
        vip.ports = vec![80..=80];
        vip.target_port = Some(8080);
    }
    service
}

/// A client's network, and one instance with addresses of its own alone. Instances may open connections.
fn bed(service: ServicePlan) -> Bed {
    let mut world = World::new(2);
    for port in &mut world.config.ports {
        port.egress = true;
        port.own = own(port.slot).iter().map(|of| of.parse().unwrap()).collect();
    }
    for (namespace, interface) in [(&world.net, "net0"), (&world.host, "up0")] {
        namespace.set("ipv6/conf/all/disable_ipv6", "0");
        namespace.set(&format!("ipv6/conf/{interface}/disable_ipv6"), "0");
    }
    for address in ["10.0.0.1/24", "10.0.1.254/24"] {
        world.net.ip(&format!("addr add {address} dev net0"));
    }
    for address in ["2001:db8::1/64", "2001:db8:1::254/64"] {
        world.net.ip(&format!("addr add {address} dev net0 nodad"));
    }
    // By which the kernel asks for neighbours.
    world.host.ip("addr add 10.0.0.2/24 dev up0");
    world.host.ip("addr add 2001:db8::2/64 dev up0 nodad");
    let mut bed = Bed::new(world, service);
    let [v4, v6] = own(Slot(0));
    bed.world
        .start_instance(Slot(0), &[&format!("{v4}/32"), &format!("{v6}/128")]);
    bed.activate(Slot(0));
    bed
}

fn in_instance(bed: &Bed) -> Namespace {
    Namespace::clone_of(&bed.world.instances[&Slot(0)].namespace)
}

/// The checksums of a frame of IP: whether each is what it says.
fn is_sound(frame: &[u8]) -> bool {
    let is_v4 = frame[12..14] == [8, 0];
    let (l4, protocol) = if is_v4 { (34, frame[23]) } else { (54, frame[20]) };
    if is_v4 && crate::frames::sum(&frame[14..34]) != 0 {
        return false;
    }
    let end = if is_v4 {
        14 + usize::from(u16::from_be_bytes([frame[16], frame[17]]))
    } else {
        54 + usize::from(u16::from_be_bytes([frame[18], frame[19]]))
    };
    let mut covered = if is_v4 {
        frame[26..34].to_vec()
    } else {
        frame[22..54].to_vec()
    };
    covered.extend_from_slice(&[0, protocol]);
    covered.extend_from_slice(&((end - l4) as u16).to_be_bytes());
    if is_v4 && protocol == 1 {
        covered.clear();
    }
    covered.extend_from_slice(&frame[l4..end]);
    crate::frames::sum(&covered) == 0
}

#[test]
fn connections_are_translated_in_both_versions() {
    if !available() {
        return;
    }
    let mut bed = bed(translated());
    let instance = in_instance(&bed);
    for address in own(Slot(0)) {
        let address = if address.contains(':') {
            format!("[{address}]")
        } else {
            address
        };
        serve(&instance, &format!("{address}:8080"));
    }
    for address in [format!("{VIP}:80"), format!("[{VIP6}]:80")] {
        let got = bed.world.net.within(|| fetch(&address, 24 << 20));
        assert_eq!(got, Ok(()), "{address}");
    }
    bed.turn();
    let back = bed.reading.slots[0].back_packets;
    assert!(back < 2 * (24 << 20) / 1448, "segments are cut: {back} packets");
    assert_eq!(bed.reading.slots[0].new_flows, 2);
    // The client sees the service's port; the flow is known by it.
    let ports: Vec<u16> = bed
        .flows()
        .iter()
        .map(|row| row.key.tuple(row.opener).dst_port)
        .collect();
    assert_eq!(ports, [80, 80]);
    bed.switch.stop();
}

/// A large transfer passes a link whose MTU is smaller than anybody said: ICMP errors quote translated packets.
#[test]
fn a_narrow_path_is_found() {
    if !available() {
        return;
    }
    let bed = bed(translated());
    let [v4, v6] = own(Slot(0));
    passes_a_narrow_path(&bed, [format!("{v4}:8080"), format!("[{v6}]:8080")]);
}

/// The same where each instance has the service's address: the errors quote packets as they are.
#[test]
fn a_narrow_path_is_found_without_translation() {
    if !available() {
        return;
    }
    let bed = bed(service());
    let instance = in_instance(&bed);
    instance.ip(&format!("addr add {VIP}/32 dev eth0"));
    instance.ip(&format!("addr add {VIP6}/128 dev eth0 nodad"));
    passes_a_narrow_path(&bed, [format!("{VIP}:80"), format!("[{VIP6}]:80")]);
}

/// Downloads from the instance, which serves at these addresses, over a link with a small MTU.
fn passes_a_narrow_path(bed: &Bed, at: [String; 2]) {
    let instance = in_instance(bed);
    for address in at {
        serve(&instance, &address);
    }
    finds_a_narrow_path(
        &bed.world.net,
        &instance,
        &[format!("{VIP}:80"), format!("[{VIP6}]:80")],
    );
}

/// Addresses are translated on while the next run takes over, before it has a plan.
#[test]
fn a_take_over_translates_on() {
    if !available() {
        return;
    }
    let mut bed = bed(translated());
    let (client, server) = ("198.51.100.7:4000", "10.0.0.100:80");
    // Nothing comes back from there.
    let _open = in_instance(&bed).within(|| UdpSocket::bind("10.0.1.1:8080").unwrap());
    let is_translated =
        |frame: &[u8]| (&frame[30..34], &frame[36..38]) == (&[10, 0, 1, 1][..], &8080_u16.to_be_bytes()[..]);
    bed.taken();
    assert!(is_translated(&bed.sent(&udp(client, server, b"before")).1));
    bed.switch.leave();
    bed.switch = bed.world.start_switch();
    assert!(is_translated(
        &bed.sent(&udp(client, server, b"without a plan")).1
    ));
    bed.activate(Slot(0));
    assert!(is_translated(&bed.sent(&udp(client, server, b"with one")).1));
    assert_eq!(bed.flows().len(), 1);
    bed.switch.stop();
}

/// What a closed port of the instance says reaches the client as if the service said it, and the other way round.
#[test]
fn errors_quote_what_their_receiver_sent() {
    if !available() {
        return;
    }
    let mut bed = bed(translated());
    // The instance's kernel has nobody at the port.
    for (client, server) in [
        ("10.0.0.1:0", format!("{VIP}:80")),
        ("[2001:db8::1]:0", format!("[{VIP6}]:80")),
    ] {
        assert!(refuses(&bed.world.net, client, &server), "{server}");
    }
    bed.received();
    // Time exceeded about an answer, as a router on the way says it.
    let (client, server) = ("198.51.100.7:4000", "10.0.0.100:80");
    bed.taken();
    let (_, question) = bed.sent(&udp(client, server, b"question"));
    assert!(is_sound(&question));
    assert_eq!(
        (&question[30..34], &question[36..38]),
        (&[10, 0, 1, 1][..], &8080_u16.to_be_bytes()[..])
    );
    for quoted in [udp(server, client, b"answer"), tcp(server, client, SYN)] {
        if quoted[23] == 6 {
            bed.taken();
            bed.sent(&tcp(client, server, SYN));
        }
        let mut error = crate::frames::icmp_error("203.0.113.1", VIP, &quoted);
        error[34..36].copy_from_slice(&[11, 0]);
        error[36..38].fill(0);
        let sum = crate::frames::sum(&error[34..]);
        error[36..38].copy_from_slice(&sum.to_be_bytes());
        assert!(is_sound(&error));
        bed.taken();
        let (_, error) = bed.sent(&error);
        assert!(is_sound(&error), "{error:?}");
        assert_eq!(&error[30..34], [10, 0, 1, 1], "to the instance");
        let inner = &error[42..];
        assert_eq!(
            crate::frames::sum(&inner[..20]),
            0,
            "the quoted header's checksum"
        );
        assert_eq!(&inner[12..16], [10, 0, 1, 1], "from the instance");
        assert_eq!(&inner[20..22], 8080_u16.to_be_bytes(), "its port");
        if quoted[23] == 17 {
            // As the instance would have sent it.
            let expected = udp("10.0.1.1:8080", client, b"answer");
            assert_eq!(&inner[20..28], &expected[34..42]);
        }
    }
    let _open = in_instance(&bed).within(|| UdpSocket::bind("[2001:db8:1::1]:8080").unwrap());
    // Packet too big, with as little of the packet as a router must quote.
    let (client, server) = ("[2001:db8:2::7]:4000", "[2001:db8::100]:80");
    let answer = udp(server, client, b"answer");
    let error = crate::frames::icmp6_error("2001:db8:9::1", VIP6, &answer);
    assert!(is_sound(&error));
    bed.taken();
    bed.sent(&udp(client, server, b"question"));
    bed.taken();
    let (_, error) = bed.sent(&error);
    assert!(is_sound(&error), "{error:?}");
    let own: std::net::Ipv6Addr = own(Slot(0))[1].parse().unwrap();
    assert_eq!(&error[38..54], own.octets(), "to the instance");
    let inner = &error[62..];
    assert_eq!(&inner[8..24], own.octets(), "from the instance");
    let expected = udp(&format!("[{own}]:8080"), client, b"answer");
    assert_eq!(&inner[40..48], &expected[54..62], "as it has sent it");
    bed.switch.stop();
}

/// A datagram without a checksum stays without, and its fragments arrive.
#[test]
fn datagrams_without_checksums_and_in_fragments() {
    if !available() {
        return;
    }
    let mut bed = bed(translated());
    let (client, server) = ("198.51.100.7:4000", "10.0.0.100:80");
    let mut bare = udp(client, server, b"without a checksum");
    bare[40..42].fill(0);
    bed.taken();
    let (_, got) = bed.sent(&bare);
    assert_eq!(
        (&got[40..42], &got[36..38]),
        (&[0, 0][..], &8080_u16.to_be_bytes()[..])
    );
    let instance = in_instance(&bed);
    let [v4, v6] = own(Slot(0));
    echo(&instance, &format!("{v4}:8080"));
    echo(&instance, &format!("[{v6}]:8080"));
    for (client, server) in [
        ("10.0.0.1:0", format!("{VIP}:80")),
        ("[2001:db8::1]:0", format!("[{VIP6}]:80")),
    ] {
        assert!(echoes(&bed.world.net, client, &server, 5000), "{server}");
    }
    bed.switch.stop();
}

/// Connections that an instance opens have its own address and port, whichever ports are the service's.
#[test]
fn connections_that_instances_open_are_left_alone() {
    if !available() {
        return;
    }
    for target_port in [Some(8080), None] {
        let mut service = translated();
        service.vip.as_mut().unwrap().target_port = target_port;
        let bed = bed(service);
        let instance = in_instance(&bed);
        for listen in ["10.0.0.1:9000", "[2001:db8::1]:9000"] {
            assert!(opens_its_own(&bed.world.net, &instance, None, listen), "{listen}");
        }
        drop(bed);
    }
}

/// A connection that an instance opens from the port of its service is its own, also once it is there: its packets are
/// looked up as the service's first, and then as its own.
#[test]
fn a_connection_from_the_port_of_the_service_is_the_instances_own() {
    if !available() {
        return;
    }
    let mut bed = bed(translated());
    let instance = in_instance(&bed);
    let own = format!("{}:8080", own(Slot(0))[0]);
    assert!(opens_its_own(
        &bed.world.net,
        &instance,
        Some(&own),
        "10.0.0.1:9000"
    ));
    assert_eq!(bed.flows().len(), 1, "one connection, one entry");
    bed.switch.stop();
}
