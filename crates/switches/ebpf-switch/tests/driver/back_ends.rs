//! Servers that others run: real connections through another uplink, in both IP versions.

use std::net::SocketAddr;

use model::{ServiceId, Slot, VipMode};
use real_parts::{Namespace, fetch, refuses, serve};
use switch::{PortKind, PortSpec, ServicePlan, Switch, SwitchEvent, SwitchRequest};

use crate::bed::{Bed, World, available};
use crate::steering::service;

const SERVERS: [&str; 2] = ["10.0.2.5:8080", "[2001:db8:2::5]:8080"];
const VIPS: [&str; 2] = ["10.0.0.100:80", "[2001:db8::100]:80"];

fn translated() -> ServicePlan {
    let mut service = service();
    if let Some(vip) = &mut service.vip {
        vip.mode = VipMode::Dnat;
        vip.ports = vec![80..=80];
    }
    service
}

/// A client's network at one uplink, a server's at the other one, and slots for servers.
fn bed() -> (Bed, Namespace) {
    let mut world = World::new(2);
    let servers = Namespace::new("servers");
    world.host.ip(&format!(
        "link add up1 type veth peer name srv0 netns {}",
        servers.name
    ));
    world.config.uplinks.push("up1".to_owned());
    for port in &mut world.config.ports {
        port.kind = PortKind::Routed;
    }
    for (namespace, interface, v4, v6) in [
        (&world.net, "net0", "10.0.0.1/24", "2001:db8::1/64"),
        (&world.host, "up0", "10.0.0.2/24", "2001:db8::2/64"),
        (&world.host, "up1", "10.0.2.1/24", "2001:db8:2::1/64"),
        (&servers, "srv0", "10.0.2.5/24", "2001:db8:2::5/64"),
    ] {
        namespace.set("ipv6/conf/all/disable_ipv6", "0");
        namespace.set(&format!("ipv6/conf/{interface}/disable_ipv6"), "0");
        namespace.ip(&format!("link set {interface} up"));
        namespace.ip(&format!("addr add {v4} dev {interface}"));
        namespace.ip(&format!("addr add {v6} dev {interface} nodad"));
    }
    servers.ip("route add default via 10.0.2.1");
    servers.ip("-6 route add default via 2001:db8:2::1");
    (Bed::new(world, translated()), servers)
}

/// Asks for the server, and gives what becomes of it.
fn attach(bed: &mut Bed, slot: Slot, at: &str) -> Result<(), String> {
    let (service, mut port) = (ServiceId(0), PortSpec::new(PortKind::Routed, ""));
    port.back_end = Some(at.parse::<SocketAddr>().unwrap());
    bed.ask(SwitchRequest::Attach { slot, service, port });
    let mut told = None;
    bed.until("the server is attached, or not", |of| {
        told = of.events.iter().find_map(|event| match event {
            SwitchEvent::Attached { .. } => Some(Ok(())),
            SwitchEvent::AttachFailed { reason, .. } => Some(Err(reason.clone())),
            _ => None,
        });
        told.is_some()
    });
    bed.events.clear();
    told.unwrap()
}

#[test]
fn connections_reach_a_server_that_others_run() {
    if !available() {
        return;
    }
    let (mut bed, servers) = bed();
    for (at, vip) in SERVERS.iter().zip(VIPS) {
        serve(&servers, at);
        assert_eq!(attach(&mut bed, Slot(0), at), Ok(()));
        bed.set_state(Slot(0), Some(model::InstanceState::Active));
        let got = bed.world.net.within(|| fetch(vip, 4 << 20));
        assert_eq!(got, Ok(()), "{vip}");
        // This machine uses the server, too: that is no traffic of the service.
        let before = bed.reading.slots[0].back_packets;
        let got = bed.world.host.within(|| fetch(at, 1 << 20));
        assert_eq!(got, Ok(()), "{at}");
        // Nobody has the port of UDP: what the server says is the service's word.
        let client = if vip.starts_with('[') {
            "[2001:db8::1]:0"
        } else {
            "10.0.0.1:0"
        };
        assert!(refuses(&bed.world.net, client, vip), "{vip}");
        bed.turn();
        let counted = &bed.reading.slots[0];
        assert!(
            counted.back_packets > 10 && counted.back_packets < before + 1000,
            "{counted:?}"
        );
        assert_eq!(counted.return_unmatched, 0, "{counted:?}");
        bed.set_state(Slot(0), None);
        bed.ask(SwitchRequest::Detach(Slot(0)));
        bed.until("it is detached", |of| {
            let mut events = of.events.iter();
            events.any(|event| matches!(event, SwitchEvent::Detached { .. }))
        });
        bed.events.clear();
        assert_eq!(bed.flows().len(), 0, "no pin is left");
    }
    bed.switch.stop();
}

#[test]
fn the_next_run_has_the_same_servers() {
    if !available() {
        return;
    }
    let (mut bed, servers) = bed();
    serve(&servers, SERVERS[0]);
    assert_eq!(attach(&mut bed, Slot(1), SERVERS[0]), Ok(()));
    bed.set_state(Slot(1), Some(model::InstanceState::Active));
    assert_eq!(bed.world.net.within(|| fetch(VIPS[0], 1 << 20)), Ok(()));
    bed.switch.leave();
    bed.switch = bed.world.start_switch();
    let resumed = bed.switch.resumed().unwrap().back_ends.clone();
    assert_eq!(
        resumed.get(&Slot(1)).map(ToString::to_string).as_deref(),
        Some(SERVERS[0])
    );
    assert_eq!(resumed.len(), 1);
    // Without a plan of this run.
    assert_eq!(bed.world.net.within(|| fetch(VIPS[0], 1 << 20)), Ok(()));
    let live = bed.switch.resumed().unwrap().live.clone();
    assert_eq!(attach(&mut bed, Slot(1), SERVERS[0]), Ok(()));
    bed.set_state(Slot(1), Some(model::InstanceState::Active));
    assert!(
        live.contains_key(&Slot(1)) && bed.flows().len() >= 2,
        "pins stay: {live:?}"
    );
    bed.switch.stop();
}

#[test]
fn a_server_without_a_way_is_not_attached() {
    if !available() {
        return;
    }
    let (mut bed, _servers) = bed();
    bed.world.host.ip("link add other type bridge");
    bed.world.host.ip("link set other up");
    bed.world.host.ip("addr add 10.0.3.1/24 dev other");
    for (at, why) in [
        ("192.0.2.9:80", "no route leads to 192.0.2.9"),
        ("10.0.3.9:80", "device = \"kernel:other\""),
    ] {
        let reason = attach(&mut bed, Slot(0), at).unwrap_err();
        assert!(reason.contains(why), "{reason}");
    }
    bed.switch.stop();
}
