//! Converts the configuration into the settings of switch, controller and engine.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use configuration::{
    Affinity, ApiTcp, Capacity, Configuration, Device, EngineDriver, Origin, PlaceId, Pull, Replies, Service,
};
use controller::{AtPlace, Matching, ServiceSettings};
use engine::image::Store;
use engine::launcher::Launcher;
use engine::logs::Logs;
use engine::{
    AttendedLauncher, ContainerSpec, CpuQuota, DockerConfig, DockerEngine, Engine, KubernetesConfig,
    KubernetesEngine, NoEngine, OciConfig, OciEngine, PlacesEngine, SwarmEngine, Task, TaskAsk,
};
use model::{BackEnd, Nanos, PortKind, ServiceId, Vip, VipMode};
use soft_switch::Numbering;
use switch::{PortSpec, ServicePlan, SharedMachines};

use api::Tcp;

use crate::host;
use crate::machine::cluster;

/// A container's path of its socket directory.
pub(super) const SOCKET_DIR: &str = "/run/inco";
/// The memif socket in that directory.
pub(super) const PORT_SOCKET: &str = "port.sock";
/// The socket over which a function receives its counter page.
pub(super) const PAGE_SOCKET: &str = "page.sock";
/// The socket over which a function receives signals to send through its port.
pub(super) const SIGNAL_SOCKET: &str = "signal.sock";

/// The plans of all services, in the order in which their matches are tried.
pub(super) fn service_plans(configuration: &Configuration) -> Vec<ServicePlan> {
    let in_order = configuration.match_order().into_iter();
    in_order
        .filter_map(|index| Some((ServiceId(index as u16), configuration.services.get(index)?)))
        .map(|(id, service)| service_plan(id, service, configuration))
        .collect()
}

/// The plan of a service.
fn service_plan(id: ServiceId, service: &Service, configuration: &Configuration) -> ServicePlan {
    ServicePlan {
        id,
        matches: service.matches.clone(),
        vip: vip(service),
        external: service.external.as_ref().map(|of| of.external.clone()),
        symmetric: service.symmetric,
        affinity_key: service.affinity_key,
        associations: service.associations.as_slice().into(),
        uplinks: service.uplinks.clone(),
        scheduler: service.scheduler.clone(),
        machines: shared_machines(service, configuration),
        replies_by_edge: service.replies == Replies::Edge,
        limit: service.limit.map(|limit| limit as f32),
        fit: service.fit as f32,
        table_full: service.table_full,
        return_counters: service.flow_counters,
        recovers: service.vip.is_some(),
        // Flows of external ports move to the heir of their instance only.
        relaxed: service.affinity == Affinity::Relaxed && service.external.is_none(),
        moves_state: service.move_state,
        stall_after: stall_after(service),
        signals: service.signals,
        // In `matching`.
        next: None,
    }
}

/// The machines of a service behind tunnels, if other edges give its flows to them, too.
fn shared_machines(service: &Service, configuration: &Configuration) -> Option<Arc<SharedMachines>> {
    let mut tunnels = configuration.uplinks.iter().filter_map(|of| of.tunnel.as_ref());
    let has_edges = tunnels.any(|of| of.edges_key.is_some());
    let Origin::Addresses(all) = &service.instances.from else {
        return None;
    };
    let is_shared = has_edges && service.port == PortKind::Tunnel;
    is_shared.then(|| {
        let addresses = all.iter().filter_map(|at| match at.ip() {
            IpAddr::V4(address) => Some(address),
            IpAddr::V6(_) => None,
        });
        Arc::new(SharedMachines::new(addresses))
    })
}

/// The address of a service. That of the host's side of a service of actors is none at all: no packet is to it.
fn vip(service: &Service) -> Option<Vip> {
    if service.takes_packets() {
        return service.vip.clone();
    }
    Some(Vip {
        addresses: Vec::new(),
        ports: Vec::new(),
        mode: VipMode::L2,
        target_port: None,
    })
}

/// Which packets services get: the order of matches, the fallbacks, and chains.
pub(super) fn matching(configuration: &Configuration) -> Matching {
    let next = configuration.services.iter().map(|service| {
        let (id, _) = configuration.service(service.next.as_ref()?)?;
        Some(id)
    });
    let order = configuration.match_order().into_iter();
    Matching {
        order: order.map(|index| ServiceId(index as u16)).collect(),
        unmatched: configuration.switch.unmatched,
        other: configuration.switch.other,
        next: next.collect(),
    }
}

/// The data ports of a service's instances.
fn port(service: &Service) -> PortSpec {
    PortSpec {
        data_ports: service.uplinks.len() as u8,
        queues: u16::from(service.queues),
        ring_slots: service.ring.slots,
        buffer_bytes: service.ring.buffer_bytes,
        ..PortSpec::new(service.port, PORT_SOCKET)
    }
}

/// The TCP settings of the API.
pub(super) fn tcp(of: &ApiTcp) -> Tcp {
    Tcp {
        address: of.listen,
        certificate: of.certificate.clone(),
        key: of.key.clone(),
        tokens: of.tokens.clone(),
    }
}

/// How a Docker engine of the configuration is reached.
pub(super) fn docker_config(engine: &configuration::Engine) -> DockerConfig {
    DockerConfig {
        certificates: engine.tls.clone(),
        ..DockerConfig::at(engine.host.clone())
    }
}

/// How an engine of Kubernetes is reached, and what it may do.
pub(super) fn kubernetes_config(of: &configuration::Kubernetes, pull: Pull) -> KubernetesConfig {
    KubernetesConfig {
        namespace: of.namespace.clone(),
        may_pull: pull == Pull::Missing,
        ..KubernetesConfig::at(cluster(of))
    }
}

/// Starts the engine or connects to it. `launcher` is [`None`] if it was not needed. Gives it back, attended, where the
/// engine has no use for it.
///
/// # Errors
/// Returns the engine's error, with the remedy.
pub(super) fn engine(
    configuration: &Configuration,
    run_dir: &Path,
    launcher: Option<Launcher>,
    logs: Logs,
) -> Result<(Box<dyn Engine>, Option<AttendedLauncher>)> {
    let mut launcher = launcher;
    let mut engines = Vec::new();
    for (_, of) in configuration.engines() {
        let engine: Box<dyn Engine> = match of.driver {
            EngineDriver::Oci => match launcher.take() {
                Some(launcher) => {
                    let mut config = OciConfig::at(run_dir);
                    config.logs = logs.clone();
                    Box::new(OciEngine::start(config, launcher)?)
                }
                None => Box::new(NoEngine::new()),
            },
            EngineDriver::Docker => {
                let mut config = docker_config(&of);
                config.logs = logs.clone();
                Box::new(DockerEngine::start(config)?)
            }
            EngineDriver::Swarm => Box::new(SwarmEngine::start(docker_config(&of))?),
            EngineDriver::Kubernetes => {
                let config = kubernetes_config(&configuration.kubernetes, of.pull);
                Box::new(KubernetesEngine::start(config)?)
            }
        };
        let places = configuration.places_with_ids();
        let own = places.filter(|(place, _)| configuration.engine_at(*place).is_same(&of));
        engines.push((own.map(|(_, place)| place.name.clone()).collect(), engine));
    }
    let launcher = launcher.map(AttendedLauncher::new).transpose()?;
    let engine: Box<dyn Engine> = match engines.pop() {
        Some((_, only)) if engines.is_empty() => only,
        last => Box::new(PlacesEngine::new(engines.into_iter().chain(last))),
    };
    Ok((engine, launcher))
}

/// The cores of a place; their nodes are known on this machine.
fn cores(place: &configuration::Place, is_here: bool) -> Vec<controller::Core> {
    let core = |cpu| controller::Core {
        cpu,
        node: if is_here { host::node_of_cpu(cpu) } else { None },
    };
    place.cpu_list().into_iter().map(core).collect()
}

/// The NUMA node of the first uplink of a service, if it is a device of one.
fn node(service: &Service, configuration: &Configuration) -> Option<u16> {
    let uplink = configuration.uplinks.get(service.uplinks.first()?.index())?;
    match &uplink.device {
        Device::Veth(interface) | Device::Kernel(interface) => host::node_of_interface(interface),
        Device::Dpdk(device) => host::node_of_device(device.split(',').next().unwrap_or_default()),
        Device::Memif(_) | Device::Pcap(_) => None,
    }
}

/// The controller's settings of the places.
pub(super) fn places(configuration: &Configuration) -> Vec<controller::Place> {
    let place = |(id, place): (PlaceId, &configuration::Place)| controller::Place {
        name: place.name.clone(),
        cpuset: place.cpus.clone(),
        share: place.share,
        instances: place.instances,
        capacity_pps: place.limit_pps(),
        core_pps: place.core_pps,
        latency: place.latency,
        link_bytes_per_s: place.bandwidth_bytes_per_s,
        watts_per_core: place.watts_per_core,
        cores: cores(place, configuration.engine_at(id).is_local()),
        lost_after: (!configuration.engine_at(id).is_local()).then_some(place.lost_after),
    };
    configuration.places_with_ids().map(place).collect()
}

/// Which service has which number. How a service knows its flows belongs to it: a flow has another key then.
pub(super) fn numbering(configuration: &Configuration) -> Numbering {
    let words = |service: &Service| {
        let key = service.affinity_key;
        let key = Some(key.name()).filter(|_| key.reads_content());
        let key = key.map(|key| format!("\n{key}")).unwrap_or_default();
        format!("{}{key}", service.name)
    };
    Numbering::new(configuration.services.iter().map(words))
}

/// The controller's settings of a service.
///
/// # Errors
/// There are arguments, but the image's own program is unknown.
pub(super) fn service_settings(service: &Service, configuration: &Configuration) -> Result<ServiceSettings> {
    // One that may run on another machine shares no directory with this one wherever it runs.
    let runs = Where::of(&configuration.engines_of(service));
    let is_here = runs == Where::Here;
    // All fields by name: the compiler asks where a new key takes effect.
    let Service {
        name,
        instances,
        placement,
        exclusive,
        ready,
        health,
        agent,
        ready_deadline,
        drain_deadline,
        stop_grace,
        capacity,
        autoscaler,
        ring,
        // The addresses in `service_plan`.
        external,
        // In `stall_after`, the CPUs also in `container` below.
        stall_after: _,
        cpus: _,
        // Services of their own.
        subnets: _,
        // In `service_plan`.
        matches: _,
        vip: _,
        symmetric: _,
        scheduler: _,
        limit: _,
        fit: _,
        table_full: _,
        flow_counters: _,
        affinity: _,
        affinity_key: _,
        associations: _,
        move_state: _,
        replies: _,
        signals: _,
        // In `matching`.
        next: _,
        // In `container`, and in `control/actors`.
        part: _,
        // In `variants`.
        at: _,
        // In `port`; the uplinks in all three.
        uplinks: _,
        queues: _,
        // In `container`; the port also in `port`.
        swarm: _,
        pods: _,
        port: _,
        image: _,
        command: _,
        args: _,
        env: _,
        mounts: _,
        memory_bytes: _,
        processes: _,
        cpuset: _,
        hugepages: _,
        user_namespace: _,
        capabilities: _,
        // In `pool.rs` and `drivers`.
        devices: _,
        egress: _,
    } = service;
    let own_container = if service.has_containers() {
        Some(container(service, runs)?)
    } else {
        None
    };
    let variants = service.variants().filter_map(|of| Some((of.at?.place, of)));
    let variants = variants.map(|(place, of)| -> Result<AtPlace> {
        Ok(AtPlace {
            place,
            container: container(&of.service, runs)?,
            port: of.service.port,
            ready: of.service.ready.clone(),
        })
    });
    // All of the servers that others run are used, up to `max` where they come and go.
    let (back_ends, followed, (min, max)) = match &instances.from {
        Origin::Inco => (None, None, (instances.min, instances.max)),
        Origin::Addresses(all) => {
            let count = all.len() as u32;
            (
                Some(all.iter().copied().map(BackEnd::at).collect()),
                None,
                (count, count),
            )
        }
        Origin::Kubernetes(_) => (Some(Vec::new()), Some(instances.max), (0, 0)),
    };
    Ok(ServiceSettings {
        back_ends,
        followed,
        socket_dir_in_container: is_here.then(|| PathBuf::from(SOCKET_DIR)),
        port: port(service),
        at: variants.collect::<Result<_>>()?,
        plan: service_plan(ServiceId(0), service, configuration),
        mapping_lifetime: external.as_ref().map_or(Nanos::ZERO, |of| of.lifetime),
        placement: *placement,
        exclusive: *exclusive,
        node: node(service, configuration),
        min,
        max,
        standby: instances.standby,
        standby_mode: instances.standby_mode,
        sleep: instances.sleep,
        capacity_pps: match *capacity {
            Capacity::Pps(pps) => Some(pps),
            Capacity::Learn => None,
        },
        ready: ready.clone(),
        health: health.clone(),
        agent: agent.clone(),
        ready_deadline: *ready_deadline,
        drain_deadline: *drain_deadline,
        stop_grace: *stop_grace,
        stall_after: stall_after(service),
        ring_slots: ring.slots,
        ..ServiceSettings::new(name.clone(), own_container, autoscaler.clone())
    })
}

/// At least three quota periods: a throttled function consumes nothing for most of a period.
fn stall_after(service: &Service) -> Nanos {
    let periods = service.cpus.map_or(Nanos::ZERO, |cpus| {
        Nanos::from_micros(3 * u64::from(CpuQuota::of_cpus(cpus).period_us))
    });
    service.stall_after.max(periods)
}

/// Where the containers of a service run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Where {
    /// On this machine.
    Here,
    /// On another one, or on this one.
    Elsewhere,
    /// Where an orchestrator with this driver places them.
    Placed(EngineDriver),
}

impl Where {
    /// Where containers of these engines run.
    pub(super) fn of(engines: &[configuration::Engine]) -> Where {
        let mut placed = engines.iter().filter(|of| of.is_orchestrator());
        if let Some(of) = placed.next() {
            Where::Placed(of.driver)
        } else if engines.iter().all(configuration::Engine::is_local) {
            Where::Here
        } else {
            Where::Elsewhere
        }
    }
}

/// The task of an instance that an orchestrator places.
fn task(service: &Service, driver: EngineDriver) -> Task {
    let vip = service.vip.as_ref();
    let port = vip.and_then(|vip| Some(*vip.instance_ports().first()?.start()));
    Task {
        args: service.args.clone(),
        port: port.unwrap_or_default(),
        grace: service.stop_grace,
        ask: match driver {
            EngineDriver::Kubernetes => TaskAsk::Kubernetes(service.pods.clone().unwrap_or_default()),
            _ => TaskAsk::Swarm(service.swarm.clone().unwrap_or_default()),
        },
    }
}

/// A container of the service, without a name.
///
/// # Errors
/// There are arguments, but the image's own program is unknown.
pub(super) fn container(service: &Service, runs: Where) -> Result<ContainerSpec> {
    let is_here = runs == Where::Here;
    let image = service.image.clone().unwrap_or_default();
    let mut spec = ContainerSpec::new(String::new(), image.as_str());
    spec.command = service.command.clone();
    if let Where::Placed(driver) = runs {
        // Which program the image has is known at the nodes.
        spec.task = Some(Box::new(task(service, driver)));
    } else if spec.command.is_empty() && !service.args.is_empty() {
        // They follow the image's own program and replace its own arguments.
        let (_, known) = Store::at(Store::default_dir())
            .resolve(&spec.image)
            .with_context(|| {
                format!(
                    "service {:?}: `args` without `command` needs an image with a known command; write `command`, \
                     too",
                    service.name
                )
            })?;
        spec.command = known.command(&service.args);
    } else {
        spec.command.extend(service.args.iter().cloned());
    }
    spec.env = vec![("INCO_PORTS".to_owned(), service.uplinks.len().to_string())];
    if service.port.has_socket() {
        let socket = format!("{SOCKET_DIR}/{PORT_SOCKET}");
        spec.env.push(("INCO_SOCKET".to_owned(), socket));
    }
    // The rings of its interfaces are its own. `env` may say otherwise.
    let slots = "INCO_RING_SLOTS";
    if service.port == PortKind::Frames && !service.env.iter().any(|(key, _)| key == slots) {
        spec.env.push((slots.to_owned(), service.ring.slots.to_string()));
    }
    if is_here {
        let page = format!("{SOCKET_DIR}/{PAGE_SOCKET}");
        spec.env.push(("INCO_PAGE".to_owned(), page));
    }
    if service.signals && service.port.has_socket() {
        let signals = format!("{SOCKET_DIR}/{SIGNAL_SOCKET}");
        spec.env.push(("INCO_SIGNALS".to_owned(), signals));
    }
    if let Some(part) = &service.part {
        spec.env
            .push(("INCO_SIDE".to_owned(), part.side.name().to_owned()));
    }
    spec.env.extend(service.env.iter().cloned());
    spec.mounts = service.mounts.clone();
    spec.cpu = service.cpus.map(CpuQuota::of_cpus);
    spec.memory_bytes = Some(service.memory_bytes);
    spec.pids_limit = service.processes;
    spec.cpuset = service.cpuset.clone();
    spec.hugepages = service.hugepages;
    spec.user_namespace = service.user_namespace;
    spec.capabilities = service.capabilities.clone();
    Ok(spec)
}
