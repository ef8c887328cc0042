//! Checks of services whose instances others run.

use model::{PortKind, Probe, Ready, Vip, VipMode};

use crate::read::Reader;
use crate::types::*;
use crate::units::ValueError;

/// Keys about containers, which such a service has not.
pub(super) const OF_CONTAINERS: [&str; 20] = [
    "image",
    "command",
    "args",
    "env",
    "mounts",
    "devices",
    "memory",
    "processes",
    "cpuset",
    "cpus",
    "hugepages",
    "user_namespace",
    "capabilities",
    "placement",
    "stop_grace",
    "ring",
    "queues",
    "egress",
    "swarm",
    "kubernetes",
];

pub(super) fn check(reader: &mut Reader, configuration: &Configuration) {
    for service in &configuration.services {
        check_service(reader, configuration, service);
    }
}

fn check_service(reader: &mut Reader, configuration: &Configuration, service: &Service) {
    let key = |name: &str| format!("service.{}.{name}", service.name);
    if !service.instances.are_others() {
        let engines = configuration.engines_of(service);
        let is_placed = engines.iter().any(Engine::is_orchestrator);
        if service.port == PortKind::Routed && !is_placed {
            let what = "routes lead to servers that others run, and none is listed";
            let write = "write instances = { from = [\"10.0.0.5:80\"] }, or another port, or driver = \"swarm\" or \"kubernetes\" in \
                         [engine]";
            reader.report(&key("port"), ValueError::new(what, write));
        }
        return;
    }
    let mut wrong = |name: &str, what: String, write: &str| {
        reader.report(&key(name), ValueError::new(what, write));
    };
    if service.port == PortKind::Tunnel {
        return;
    }
    if service.port != PortKind::Routed {
        let what = "routes or tunnels lead to the servers of `instances.from`, and to no other port";
        wrong("port", what.to_owned(), "remove it");
        return;
    }
    match &service.vip {
        Some(vip) => check_vip(&mut wrong, vip, service),
        None => {
            let what =
                "servers that others run need an address of the service, which is translated to theirs";
            let write = "write vip = { address = \"10.0.0.100\", ports = 80, mode = \"dnat\" }";
            wrong("vip", what.to_owned(), write);
        }
    }
    if let Some(health) = &service.health
        && matches!(health.probe, Probe::Command(_))
    {
        let what = "inco cannot run a command where others run the server".to_owned();
        wrong("health", what, "write tcp, http or dns in its place");
    }
    if service.instances.kubernetes().len() > 1 && !service.scheduler.goes_by_weights() {
        let what = "the Services of `instances.from` have weights, and this scheduler has none".to_owned();
        wrong(
            "scheduler",
            what,
            "write \"maglev\", \"least-connections\" or \"weighted\"",
        );
    }
    if service.ready != Ready::Connected {
        let what =
            "a server that others run is ready when a route leads to it, and its first check has passed";
        wrong("ready", what.to_owned(), "remove it");
    }
    for name in OF_CONTAINERS {
        if reader.positions.has(&key(name)) {
            let what = "it is about containers, and others run the servers of `instances.from`";
            reader.report(&key(name), ValueError::new(what, format!("remove {name}")));
        }
    }
}

fn check_vip(wrong: &mut impl FnMut(&str, String, &str), vip: &Vip, service: &Service) {
    if vip.mode != VipMode::Dnat {
        let what = "servers that others run do not have the address of the service".to_owned();
        wrong("vip.mode", what, "write mode = \"dnat\"");
    }
    if vip.target_port.is_some() {
        let what = "each server of `instances.from` has its own port".to_owned();
        wrong("vip.target_port", what, "remove it");
    }
    if vip.ports.iter().map(|range| range.len()).sum::<usize>() != 1 {
        let what = "a server of `instances.from` has one port".to_owned();
        wrong(
            "vip.ports",
            what,
            "write one port, and a service for each other one",
        );
    }
    let has = |v4: bool| vip.addresses.iter().any(|of| of.is_ipv4() == v4);
    if let Some(of) = service.instances.kubernetes().first()
        && has(true)
        && has(false)
    {
        let what = format!("the endpoints of {of} would have both IP versions");
        wrong("vip.address", what, "write a service for each IP version");
    }
    for at in service.instances.addresses() {
        if vip.addresses.contains(&at.ip()) {
            let what = format!("{at} has the address of the service itself");
            wrong("instances.from", what, "write the server's own address");
        } else if vip.addresses.iter().any(|of| of.is_ipv4() != at.is_ipv4()) {
            let what = format!("the service and its server {at} have not the same IP version");
            wrong("instances.from", what, "write a service for each IP version");
        }
    }
}
