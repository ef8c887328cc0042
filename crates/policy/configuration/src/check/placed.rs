//! Checks of services whose instances an orchestrator places on its machines: a swarm, or Kubernetes.

use model::{PortKind, Probe, Ready, StandbyMode, TaskNetwork, TaskOptions, TaskProtocol, VipMode};

use crate::read::Reader;
use crate::types::*;
use crate::units::ValueError;

/// Keys about what no orchestrator gives a container, and why.
const NOT_THERE: [(&str, &str); 6] = [
    ("cpuset", "it does not choose the CPUs of a container"),
    ("hugepages", "it gives no hugepages"),
    ("devices", "the function of a card is on this machine"),
    ("ring", "an instance on another machine has no rings"),
    ("queues", "an instance on another machine has no rings"),
    (
        "egress",
        "inco is not the next hop of an instance on another machine",
    ),
];
/// The same of a swarm alone.
const NOT_IN_SWARM: [(&str, &str); 3] = [
    ("user_namespace", "that is a setting of each node's Docker"),
    (
        "autoscaler.cpus_max",
        "a task of a swarm keeps its limits while it runs",
    ),
    (
        "autoscaler.cpus_total",
        "a task of a swarm keeps its limits while it runs",
    ),
];
/// The same of Kubernetes alone.
const NOT_IN_KUBERNETES: [(&str, &str); 3] = [
    ("user_namespace", "Pods have those of their nodes"),
    (
        "processes",
        "how many processes a Pod may have is a setting of each node's kubelet",
    ),
    (
        "mounts",
        "a Pod may be on any node: `configs` and `secrets` of `kubernetes` are files in it",
    ),
];

/// Who places the instances of a service.
enum Placer {
    Swarm(TaskOptions),
    Kubernetes,
}

impl Placer {
    fn of(driver: EngineDriver, service: &Service) -> Option<Placer> {
        match driver {
            EngineDriver::Swarm => Some(Placer::Swarm(service.swarm.clone().unwrap_or_default())),
            EngineDriver::Kubernetes => Some(Placer::Kubernetes),
            EngineDriver::Oci | EngineDriver::Docker => None,
        }
    }

    /// What it is called in messages.
    fn name(&self) -> &'static str {
        match self {
            Placer::Swarm(_) => "a swarm",
            Placer::Kubernetes => "Kubernetes",
        }
    }

    /// Whether an instance is reached at all of its ports, and not only at one of its node.
    fn has_all_ports(&self) -> bool {
        match self {
            Placer::Swarm(options) => options.network == TaskNetwork::Host,
            Placer::Kubernetes => true,
        }
    }
}

pub(super) fn check(reader: &mut Reader, configuration: &Configuration) {
    for (place, engine) in configuration.engines() {
        if let Some(place) = place.filter(|_| engine.is_orchestrator()) {
            let key = format!("place[{}].engine", place.0);
            let has_own = reader.positions.has(&key);
            let key = if has_own { key } else { "engine.driver".to_owned() };
            let driver = engine.driver.name();
            let what = format!("{driver} places instances itself, and is no place among others");
            let write = format!("write driver = {driver:?} in [engine] without [[place]], or another engine");
            reader.report(&key, ValueError::new(what, write));
        }
    }
    for service in &configuration.services {
        if service.instances.are_others() {
            continue;
        }
        let engines = configuration.engines_of(service);
        let mut drivers = engines.iter().map(|engine| engine.driver);
        let placer = drivers.find_map(|driver| Placer::of(driver, service));
        for (key, is_there, driver, who) in [
            ("swarm", service.swarm.is_some(), EngineDriver::Swarm, "a swarm"),
            (
                "kubernetes",
                service.pods.is_some(),
                EngineDriver::Kubernetes,
                "Kubernetes",
            ),
        ] {
            if is_there && engines.iter().all(|engine| engine.driver != driver) {
                reader.report(
                    &format!("service.{}.{key}", service.name),
                    ValueError::new(
                        format!("only {who} is asked that"),
                        format!("remove it, or write driver = {:?} in [engine]", driver.name()),
                    ),
                );
            }
        }
        if let Some(placer) = placer {
            check_service(reader, service, &placer);
        }
    }
}

fn check_service(reader: &mut Reader, service: &Service, placer: &Placer) {
    let key = |name: &str| format!("service.{}.{name}", service.name);
    let who = placer.name();
    let mut wrong = |name: &str, what: &str, write: &str| {
        reader.report(&key(name), ValueError::new(what, write));
    };
    if service.port != PortKind::Routed {
        let what =
            format!("{who} runs instances on other machines, where such a port of this one does not reach");
        let write = "write port = \"routed\", with vip = { mode = \"dnat\", ... } and [switch] driver = \"ebpf\"; or another \
                     engine";
        wrong("port", &what, write);
        return;
    }
    match &service.vip {
        None => {
            let what =
                "instances on other machines need an address of the service, which is translated to theirs";
            wrong(
                "vip",
                what,
                "write vip = { address = \"10.0.0.100\", ports = 80, mode = \"dnat\" }",
            );
        }
        Some(vip) => {
            if vip.mode != VipMode::Dnat {
                let what = "instances on other machines do not have the address of the service";
                wrong("vip.mode", what, "write mode = \"dnat\"");
            }
            if vip.ports.iter().map(|range| range.len()).sum::<usize>() != 1 {
                let what = "an instance on another machine is reached at one port";
                wrong(
                    "vip.ports",
                    what,
                    "write one port, and a service for each other one",
                );
            }
            let has = |v4: bool| vip.addresses.iter().any(|of| of.is_ipv4() == v4);
            if has(true) && has(false) {
                let what = "an instance on another machine has one address";
                wrong("vip.address", what, "write a service for each IP version");
            }
        }
    }
    let has_all_ports = placer.has_all_ports();
    let has_port = |port: u16| port != 0 && !has_all_ports;
    let probe = service.health.as_ref().map(|of| &of.probe);
    // A swarm has to be told.
    let protocol = match placer {
        Placer::Swarm(options) => Some(options.protocol),
        Placer::Kubernetes => None,
    };
    match (probe, protocol) {
        (None, protocol) => {
            let write = match protocol.unwrap_or_default() {
                TaskProtocol::Tcp => "write health = { http = \"/\", every = \"200ms\" }",
                TaskProtocol::Udp => "write health = { dns = \"example.com\", every = \"200ms\" }",
            };
            wrong(
                "health",
                "by its check alone it is known that an instance on another machine serves",
                write,
            );
        }
        (Some(Probe::Command(_)), _) => {
            wrong(
                "health",
                &format!("{who} runs no command in an instance"),
                "write http or dns in its place",
            );
        }
        (Some(Probe::Tcp(_)), _) if !has_all_ports => {
            let what = "a node accepts connections at a published port before the instance does";
            wrong(
                "health",
                what,
                "write http in its place, or swarm = { network = \"host\" }",
            );
        }
        (Some(Probe::Http(port, _) | Probe::Dns(port, _)), _) if has_port(*port) => {
            let what = "the node publishes the port of the service alone";
            wrong(
                "health.port",
                what,
                "remove it, or write swarm = { network = \"host\" }",
            );
        }
        (Some(Probe::Http(..)), Some(TaskProtocol::Udp))
        | (Some(Probe::Dns(..)), Some(TaskProtocol::Tcp)) => {
            let what = "the check speaks another protocol than the port";
            wrong(
                "health",
                what,
                "write dns with protocol = \"udp\" in swarm, and http with \"tcp\"",
            );
        }
        _ => {}
    }
    if service.agent.is_some() && !has_all_ports {
        let what = "the node publishes the port of the service alone, and the agent has another one";
        wrong(
            "agent",
            what,
            "remove it, or write swarm = { network = \"host\" }",
        );
    }
    if service.ready != Ready::Connected {
        let what = "an instance on another machine is ready when its first check has passed";
        wrong("ready", what, "remove it");
    }
    if service.instances.standby_mode == StandbyMode::Paused {
        wrong(
            "instances.standby_mode",
            &format!("{who} pauses no instance"),
            "write \"warm\"",
        );
    }
    if service.exclusive {
        wrong(
            "cpus",
            &format!("{who} does not choose the CPUs of a container"),
            "write a number",
        );
    }
    let own = match placer {
        Placer::Swarm(_) => NOT_IN_SWARM,
        Placer::Kubernetes => NOT_IN_KUBERNETES,
    };
    for (name, what) in NOT_THERE.into_iter().chain(own) {
        if reader.positions.has(&key(name)) {
            reader.report(
                &key(name),
                ValueError::new(what, format!("remove {name}, or take another engine")),
            );
        }
    }
}
