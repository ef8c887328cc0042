//! Instances with kernel ports whose service's address is translated: real connections in both versions of IP.

use std::net::IpAddr;

use model::{DropReason, InstanceState, Slot, UplinkId, VipMode};
use real_parts::{Namespace, echo, echoes, fetch, finds_a_narrow_path, opens_its_own, refuses, serve};
use soft_switch::Keep;
use switch::{FlowFilter, SwitchRequest};

use crate::bed::Bed;
use crate::kept::Kept;
use crate::kernel::{VIP, VIP_V6, World, attach, available, is_accounted_for, service, switch_with};

fn own(slot: u16) -> [String; 2] {
    let number = slot + 1;
    [format!("10.0.1.{number}"), format!("2001:db8:1::{number}")]
}

/// A service at port 80, which instances serve at 8080 of their own addresses, or at the port itself.
fn translating(workers: usize, places: u16, target_port: Option<u16>, keep: Option<Keep>) -> (World, Bed) {
    let mut service = service();
    if let Some(vip) = &mut service.vip {
        vip.mode = VipMode::Dnat;
        vip.target_port = target_port;
    }
    let world = World::new();
    // Instances' own addresses are next to it.
    world.net.ip("addr add 10.0.1.254/24 dev net0");
    world.net.ip("addr add 2001:db8:1::254/64 dev net0 nodad");
    let addresses = |slot: u16| own(slot).map(|of| of.parse::<IpAddr>().unwrap()).to_vec();
    let bed = switch_with(workers, places, service, keep, addresses);
    (world, bed)
}

/// Starts an instance, and gives it flows. Its own addresses, as `[address]:port`.
fn start(world: &mut World, bed: &mut Bed, slot: u16, port: u16) -> [String; 2] {
    let [v4, v6] = own(slot);
    world.start_instance(slot, &[&format!("{v4}/32"), &format!("{v6}/128")]);
    attach(bed, slot);
    bed.set_state(slot, 0, InstanceState::Active);
    bed.publish();
    [format!("{v4}:{port}"), format!("[{v6}]:{port}")]
}

fn at_the_service() -> [String; 2] {
    [format!("{VIP}:80"), format!("[{VIP_V6}]:80")]
}

const CLIENTS: [&str; 2] = ["10.0.0.1:0", "[2001:db8::1]:0"];

#[test]
fn connections_are_translated_in_both_versions_of_ip() {
    if !available() {
        return;
    }
    for (workers, target_port) in [(1, Some(8080)), (2, None), (3, Some(8080))] {
        let (mut world, mut bed) = translating(workers, 2, target_port, None);
        for slot in 0..2 {
            for address in start(&mut world, &mut bed, slot, target_port.unwrap_or(80)) {
                serve(&world.instances[&slot], &address);
            }
        }
        for address in at_the_service() {
            world.net.within(|| fetch(&address, 24 << 20)).unwrap();
            for _ in 0..20 {
                world.net.within(|| fetch(&address, 1000)).unwrap();
            }
        }
        is_accounted_for(&mut bed);
        let slots = &bed.reading.slots[..2];
        let new_flows: Vec<u64> = slots.iter().map(|of| of.new_flows).collect();
        assert_eq!(new_flows.iter().sum::<u64>(), 42, "{new_flows:?}");
        assert!(slots.iter().all(|of| of.return_unmatched == 0), "{slots:#?}");
        assert_eq!(bed.reading.drops[DropReason::Spoofed.index()], 0);
        bed.until("no flow is left", |bed| {
            bed.reading.slots.iter().all(|of| of.live_flows == 0)
        });
    }
}

#[test]
fn flows_are_known_by_the_services_address_and_errors_quote_it() {
    if !available() {
        return;
    }
    let (mut world, mut bed) = translating(2, 1, Some(8080), None);
    let addresses = start(&mut world, &mut bed, 0, 8080);
    // Nobody is at the port: the instance's kernel says so.
    for (client, server) in CLIENTS.iter().zip(at_the_service()) {
        assert!(refuses(&world.net, client, &server), "{server}");
    }
    let (flows, _) = bed.flows(FlowFilter::default(), 10);
    let ports: Vec<u16> = flows
        .iter()
        .map(|row| row.key.tuple(row.opener).dst_port)
        .collect();
    assert_eq!(ports, [80, 80]);
    for address in &addresses {
        serve(&world.instances[&0], address);
    }
    finds_a_narrow_path(&world.net, &world.instances[&0], &at_the_service());
}

#[test]
fn long_datagrams_come_back_in_fragments() {
    if !available() {
        return;
    }
    for workers in [1, 2] {
        let (mut world, mut bed) = translating(workers, 1, Some(8080), None);
        for address in start(&mut world, &mut bed, 0, 8080) {
            echo(&world.instances[&0], &address);
        }
        for bytes in [10, 5000, 8000] {
            for (client, server) in CLIENTS.iter().zip(at_the_service()) {
                assert!(echoes(&world.net, client, &server, bytes), "{server}");
            }
        }
        is_accounted_for(&mut bed);
    }
}

#[test]
fn connections_that_instances_open_are_left_alone() {
    if !available() {
        return;
    }
    for (workers, target_port) in [(1, Some(8080)), (2, Some(8080)), (2, None)] {
        let (mut world, mut bed) = translating(workers, 1, target_port, None);
        let port = target_port.unwrap_or(80);
        let own = start(&mut world, &mut bed, 0, port);
        let instance = Namespace::clone_of(&world.instances[&0]);
        for address in &own {
            serve(&instance, address);
        }
        // The network is known once it has asked for something.
        for address in at_the_service() {
            world.net.within(|| fetch(&address, 1000)).unwrap();
        }
        for (number, listen) in ["10.0.0.1:9000", "[2001:db8::1]:9000"].into_iter().enumerate() {
            assert!(opens_its_own(&world.net, &instance, None, listen), "{listen}");
            let there = listen.replace("9000", "9001");
            // From the port that it serves, where that is free.
            let from = own[number].replace("8080", "8081");
            if target_port.is_some() {
                assert!(
                    opens_its_own(&world.net, &instance, Some(&from), &there),
                    "{there}"
                );
            }
        }
        assert_eq!(bed.reading.drops[DropReason::Spoofed.index()], 0);
    }
}

/// Its packets are looked up as the service's first, and then as its own, also on two workers.
#[test]
fn a_connection_from_the_port_of_the_service_is_the_instances_own() {
    if !available() {
        return;
    }
    for workers in [1, 2, 3] {
        let (mut world, mut bed) = translating(workers, 1, Some(8080), None);
        let own = start(&mut world, &mut bed, 0, 8080);
        let instance = Namespace::clone_of(&world.instances[&0]);
        // The network is known once it has asked for something.
        assert!(refuses(&world.net, CLIENTS[0], &at_the_service()[0]));
        assert!(refuses(&world.net, CLIENTS[1], &at_the_service()[1]));
        for (from, listen) in own.iter().zip(["10.0.0.1:9000", "[2001:db8::1]:9000"]) {
            assert!(
                opens_its_own(&world.net, &instance, Some(from), listen),
                "{listen}"
            );
        }
        let of_tcp = |bed: &mut Bed| {
            let (flows, _) = bed.flows(FlowFilter::default(), 10);
            flows.iter().filter(|row| row.key.protocol() == 6).count()
        };
        assert_eq!(of_tcp(&mut bed), 2, "each connection has one entry");
        assert_eq!(bed.reading.drops[DropReason::Spoofed.index()], 0);
    }
}

/// Connections go on in the next run of the switch.
#[test]
fn a_take_over_translates_on() {
    if !available() {
        return;
    }
    let kept = Kept::start();
    let (mut world, mut bed) = translating(1, 1, Some(8080), kept.run());
    for address in start(&mut world, &mut bed, 0, 8080) {
        serve(&world.instances[&0], &address);
    }
    let downloads = at_the_service().map(|address| {
        let net = Namespace::clone_of(&world.net);
        std::thread::spawn(move || net.within(|| fetch(&address, 200 << 20)))
    });
    bed.until("the downloads have begun", |bed| {
        bed.reading.slots[0].back_packets > 2000
    });
    bed.run_again(|config| config.keep = kept.run());
    bed.events.clear();
    attach(&mut bed, 0);
    bed.set_state(0, 0, InstanceState::Active);
    bed.publish();
    bed.ask(SwitchRequest::OpenUplink(UplinkId(0)));
    assert_eq!(bed.reading.slots[Slot(0).index()].live_flows, 2);
    for download in downloads {
        download.join().unwrap().unwrap();
    }
    assert_eq!(bed.reading.drops[DropReason::Spoofed.index()], 0);
}

/// What answers a health check goes to the checker alone, and nobody in the network has its address.
#[test]
fn checks_are_no_traffic() {
    if !available() {
        return;
    }
    let (mut world, mut bed) = translating(1, 1, Some(8080), None);
    let [address, _] = start(&mut world, &mut bed, 0, 8080);
    serve(&world.instances[&0], &address);
    world.net.within(|| fetch(&at_the_service()[0], 1000)).unwrap();
    is_accounted_for(&mut bed);
    // Beside what its kernel says to its link.
    let sent = |bed: &Bed| {
        let others = bed.reading.drops[DropReason::Other.index()];
        bed.reading.slots[0].back_packets - others
    };
    let before = sent(&bed);
    // The instance speaks to that address, as when it answers.
    let instance = &world.instances[&0];
    let pings = |at: &Namespace, from: &str, to: &str| {
        let ping = at
            .command("ping")
            .args(["-c2", "-W1", "-q", "-I", from, to])
            .output();
        ping.unwrap().status.success()
    };
    assert!(!pings(instance, &own(0)[0], "169.254.1.2"));
    bed.until("all is read", |_| true);
    assert_eq!(sent(&bed), before);
    assert_eq!(bed.reading.drops[DropReason::Spoofed.index()], 0);
    // From another address than its own it is no answer.
    instance.ip("addr add 10.0.0.66/32 dev eth0");
    assert!(!pings(instance, "10.0.0.66", "169.254.1.2"));
    bed.until("it is counted", |bed| {
        bed.reading.drops[DropReason::Spoofed.index()] == 2
    });
    // And no client has that address.
    world.net.ip("addr add 169.254.1.2/32 dev net0");
    let asked = world.net.within(|| {
        let socket = std::net::UdpSocket::bind("169.254.1.2:0").unwrap();
        socket.send_to(b"x", &at_the_service()[0])
    });
    assert_eq!(asked.unwrap(), 1);
    bed.until("it is refused", |bed| {
        bed.reading.drops[DropReason::Spoofed.index()] == 3
    });
}
