//! Addresses and ports that are translated: real connections, and what ICMP errors quote.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use model::{Slot, VipMode};
use real_parts::{Namespace, fetch, serve};
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
    let instance = in_instance(&bed);
    for address in own(Slot(0)) {
        let address = if address.contains(':') {
            format!("[{address}]")
        } else {
            address
        };
        serve(&instance, &format!("{address}:8080"));
    }
    // A client behind a router with a narrow link.
    let far = Namespace::new("far");
    let net = &bed.world.net;
    net.ip(&format!(
        "link add far0 type veth peer name far1 netns {}",
        far.name
    ));
    net.set("ipv4/ip_forward", "1");
    net.set("ipv6/conf/all/forwarding", "1");
    for (namespace, interface, v4, v6) in [
        (net, "far0", "10.9.0.1/24", "2001:db8:9::1/64"),
        (&far, "far1", "10.9.0.2/24", "2001:db8:9::2/64"),
    ] {
        // The ends would say a smaller segment size if they knew it.
        namespace.ip(&format!("addr add {v4} dev {interface}"));
        namespace.ip(&format!("addr add {v6} dev {interface} nodad"));
        namespace.ip(&format!("link set {interface} up"));
    }
    net.ip("link set far0 mtu 1300");
    far.ip("route add default via 10.9.0.1");
    far.ip("-6 route add default via 2001:db8:9::1");
    for address in [format!("{VIP}:80"), format!("[{VIP6}]:80")] {
        let got = far.within(|| fetch(&address, 4 << 20));
        assert_eq!(got, Ok(()), "{address}");
    }
    for (version, to) in [("-4", "10.9.0.2"), ("-6", "2001:db8:9::2")] {
        let known = instance
            .command("ip")
            .args([version, "route", "get", to])
            .output()
            .unwrap();
        let known = String::from_utf8(known.stdout).unwrap();
        assert!(
            known.contains("mtu 1300"),
            "the instance does not know it: {known}"
        );
    }
    drop(bed);
}

/// Addresses are translated on while the next run takes over, before it has a plan.
#[test]
fn a_take_over_translates_on() {
    if !available() {
        return;
    }
    let mut bed = bed(translated());
    let (client, server) = ("198.51.100.7:4000", "10.0.0.100:80");
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
        let error = bed.world.net.within(|| {
            let socket = UdpSocket::bind(client).unwrap();
            socket.connect(&server).unwrap();
            socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
            socket.send(b"question").unwrap();
            socket.recv(&mut [0; 64]).unwrap_err().kind()
        });
        assert_eq!(error, std::io::ErrorKind::ConnectionRefused, "{server}");
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
    let echo = |address: &str| {
        let socket = instance.within(|| UdpSocket::bind(address).unwrap());
        std::thread::spawn(move || {
            let mut buffer = vec![0; 9000];
            while let Ok((length, from)) = socket.recv_from(&mut buffer) {
                socket.send_to(&buffer[..length], from).unwrap();
            }
        });
    };
    let [v4, v6] = own(Slot(0));
    echo(&format!("{v4}:8080"));
    echo(&format!("[{v6}]:8080"));
    for (client, server) in [
        ("10.0.0.1:0", format!("{VIP}:80")),
        ("[2001:db8::1]:0", format!("[{VIP6}]:80")),
    ] {
        let sent: Vec<u8> = (0..5000_u16).map(|at| (at % 251) as u8).collect();
        let got = bed.world.net.within(|| {
            let socket = UdpSocket::bind(client).unwrap();
            socket.connect(&server).unwrap();
            socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
            socket.send(&sent).unwrap();
            let mut got = vec![0; 9000];
            let length = socket.recv(&mut got).unwrap();
            got.truncate(length);
            got
        });
        assert_eq!(got, sent, "{server}");
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
            let listener = bed.world.net.within(|| TcpListener::bind(listen).unwrap());
            let asked = std::thread::spawn(move || {
                let (mut stream, from) = listener.accept().unwrap();
                let mut text = String::new();
                stream.read_to_string(&mut text).unwrap();
                (text, from)
            });
            let here = instance.within(|| {
                let mut stream = TcpStream::connect(listen).unwrap();
                stream.write_all(b"its own").unwrap();
                stream.local_addr().unwrap()
            });
            let (text, from) = asked.join().unwrap();
            assert_eq!((text.as_str(), from), ("its own", here));
        }
        drop(bed);
    }
}
