//! From the configuration to what switch, controller and engine are made of.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use configuration::{
    Affinity, ApiTcp, Capacity, Configuration, Device, EngineDriver, FlowSetup, OpenFlow, PortKind, Service,
    SwitchDriver, Uplink,
};
use controller::{Matching, PortPlace, ServiceSettings};
use engine::image::Store;
use engine::launcher::Launcher;
use engine::{ContainerSpec, CpuQuota, DockerEngine, Engine, NoEngine, OciConfig, OciEngine};
use flow_table::{Ownership, TableConfig};
use model::{Nanos, ServiceId};
use openflow_switch::{OpenFlowSwitch, OpenFlowSwitchConfig, PortDevice, Setup};
use openvswitch::{Endpoint, Keys};
use soft_switch::{HeapMemory, Polling, SoftSwitch, SoftSwitchConfig, UplinkConfig, UplinkDevice};
use switch::{Capabilities, PortSpec, ServicePlan, Switch};

use crate::machine::docker_config;
use api::run_dir::{api_socket, in_run_dir};
use api::{Tcp, longest_path};

/// The socket of a bridge's monitor port, in the run directory.
const MONITOR_SOCKET: &str = "monitor.sock";
/// Where a container sees its socket directory.
pub(super) const SOCKET_DIR: &str = "/run/inco";
/// The memif socket in that directory.
pub(super) const PORT_SOCKET: &str = "port.sock";
/// The socket over which a function is handed the page for its counters.
pub(super) const PAGE_SOCKET: &str = "page.sock";

/// Frames in the pool for each worker: two full rings and what is under way between workers.
pub(super) const FRAMES_PER_WORKER: usize = 8192;
/// How often the counters of rules are read: some thousands take the switch some ten milliseconds.
const RULE_STATISTICS_EVERY: Nanos = Nanos::from_millis(200);
/// Room in a frame beyond the longest one that an uplink carries: VLAN tags that a function adds.
const FRAME_SPARE: usize = 64;

/// What a switch knows of the services, in the order in which their matches are tried.
fn service_plans(configuration: &Configuration) -> Vec<ServicePlan> {
    let in_order = configuration.match_order().into_iter();
    in_order
        .filter_map(|index| Some((ServiceId(index as u16), configuration.services.get(index)?)))
        .map(|(id, service)| service_plan(id, service))
        .collect()
}

/// What a switch knows of a service.
fn service_plan(id: ServiceId, service: &Service) -> ServicePlan {
    ServicePlan {
        id,
        matches: service.matches.clone(),
        symmetric: service.symmetric,
        uplinks: service.uplinks.clone(),
        scheduler: service.scheduler.clone(),
        limit: service.limit.map(|limit| limit as f32),
        fit: service.fit as f32,
        table_full: service.table_full,
        return_counters: service.flow_counters,
        relaxed: service.affinity == Affinity::Relaxed,
    }
}

/// Which packets are tried for which service first, and what becomes of the others.
pub(super) fn matching(configuration: &Configuration) -> Matching {
    let order = configuration.match_order().into_iter();
    Matching {
        order: order.map(|index| ServiceId(index as u16)).collect(),
        unmatched: configuration.switch.unmatched,
        other: configuration.switch.other,
    }
}

/// The data ports of a service's instances, of a kind that the switch connects.
fn port(service: &Service, capabilities: &Capabilities) -> PortSpec {
    let kind = match service.port {
        PortKind::Null => switch::PortKind::NULL,
        PortKind::Memif if capabilities.connects(switch::PortKind::MEMIF) => switch::PortKind::MEMIF,
        PortKind::Memif | PortKind::Device => switch::PortKind::PREPARED,
    };
    PortSpec {
        data_ports: service.uplinks.len() as u8,
        queues: u16::from(service.queues),
        ring_slots: service.ring.slots,
        buffer_bytes: service.ring.buffer_bytes,
        ..PortSpec::new(kind, PORT_SOCKET)
    }
}

/// A switch that forwards, and, where it has made the ports for instances already, the places of each service's.
pub(super) struct Started {
    pub(super) switch: Box<dyn Switch>,
    pub(super) places: Option<Vec<Vec<PortPlace>>>,
}

/// Starts the switch.
///
/// # Errors
/// Where an uplink cannot be opened or memory is not to be had.
pub(super) fn switch(configuration: &Configuration, secret: [u64; 4]) -> Result<Started> {
    match configuration.switch.driver {
        SwitchDriver::Soft => Ok(Started {
            switch: soft_switch(configuration, secret)?,
            places: None,
        }),
        SwitchDriver::OpenFlow => openflow_switch(configuration),
    }
}

/// How the API is asked over the network.
pub(super) fn tcp(of: &ApiTcp) -> Tcp {
    Tcp {
        address: of.listen,
        certificate: of.certificate.clone(),
        key: of.key.clone(),
        tokens: of.tokens.clone(),
    }
}

/// Where the database of Open vSwitch is asked.
///
/// # Errors
/// Where that cannot be read.
pub(super) fn ovs_database(of: &OpenFlow) -> Result<Endpoint> {
    let database: Endpoint = of.database.parse().context("switch.openflow.database")?;
    Ok(database.with_keys(ovs_keys(of).as_ref()))
}

fn ovs_keys(of: &OpenFlow) -> Option<Keys> {
    let directory = of.tls.as_ref()?;
    Some(Keys {
        certificate: directory.join("cert.pem"),
        key: directory.join("key.pem"),
        ca: directory.join("ca.pem"),
    })
}

/// The bridge of Open vSwitch that forwards.
fn openflow_switch(configuration: &Configuration) -> Result<Started> {
    let of = &configuration.switch.openflow;
    let mut uplinks = Vec::new();
    for uplink in &configuration.uplinks {
        uplinks.push(match &uplink.device {
            Device::Memif(socket) => {
                let socket = in_run_dir(socket);
                make_parent(uplink, &socket)?;
                PortDevice::Memif(socket)
            }
            Device::Veth(interface) => PortDevice::Interface(interface.clone()),
            Device::Dpdk(device) => PortDevice::Dpdk(device.clone()),
            Device::Pcap(_) => anyhow::bail!("uplink {:?}: Open vSwitch reads no captures", uplink.name),
        });
    }
    let pool = super::pool::ports(configuration);
    for device in pool.iter().flat_map(|of| &of.devices) {
        if let PortDevice::Memif(socket) = device
            && let Some(directory) = socket.parent()
        {
            std::fs::create_dir_all(directory)
                .with_context(|| format!("cannot make {}", directory.display()))?;
        }
    }
    let control = of.control().context("switch.openflow.control is missing")?;
    let control: Endpoint = control.parse().context("switch.openflow.control")?;
    let config = OpenFlowSwitchConfig {
        bridge: of.bridge.clone(),
        datapath: of.datapath.name().to_owned(),
        database: ovs_database(of)?,
        control: control.with_keys(ovs_keys(of).as_ref()),
        monitor_socket: in_run_dir(Path::new(MONITOR_SOCKET)),
        uplinks,
        pool,
        services: service_plans(configuration),
        bucket_bits: of.buckets.ilog2() as u8,
        steering: openflow_switch::Settings {
            setup: match of.setup {
                FlowSetup::Proactive => Setup::Proactive,
                FlowSetup::Reactive => Setup::Reactive,
            },
            rule_limit: of.rules as usize,
            idle: configuration.switch.timeouts,
            statistics_every: RULE_STATISTICS_EVERY,
            ..openflow_switch::Settings::default()
        },
    };
    let switch = OpenFlowSwitch::start(&config)?;
    let places = super::pool::places(configuration, switch.queue_pairs());
    Ok(Started {
        switch: Box::new(switch),
        places: Some(places),
    })
}

/// All paths at which this inco, or a switch for it, listens on a unix socket. Containers have theirs under a short path of their
/// own.
pub(super) fn sockets(configuration: &Configuration) -> Vec<PathBuf> {
    let api = api_socket(configuration.api.socket.as_deref());
    let mut sockets = vec![longest_path(&api)];
    sockets.extend(
        configuration
            .uplinks
            .iter()
            .filter_map(|uplink| match &uplink.device {
                Device::Memif(socket) => Some(in_run_dir(socket)),
                Device::Veth(_) | Device::Pcap(_) | Device::Dpdk(_) => None,
            }),
    );
    if configuration.engine.driver == EngineDriver::Oci && configuration.has_containers() {
        sockets.push(in_run_dir(Path::new(engine::launcher::SOCKET)));
    }
    if configuration.switch.driver == SwitchDriver::OpenFlow {
        sockets.push(in_run_dir(Path::new(MONITOR_SOCKET)));
        let devices = super::pool::ports(configuration)
            .into_iter()
            .flat_map(|of| of.devices);
        sockets.extend(devices.filter_map(|device| match device {
            PortDevice::Memif(socket) => Some(socket),
            _ => None,
        }));
    }
    sockets
}

/// The directory of an uplink's socket.
fn make_parent(uplink: &Uplink, socket: &Path) -> Result<()> {
    match socket.parent() {
        Some(directory) => std::fs::create_dir_all(directory)
            .with_context(|| format!("uplink {:?}: cannot make {}", uplink.name, directory.display())),
        None => Ok(()),
    }
}

/// Bytes of a frame in the pool: the longest one that an uplink carries, and room for tags.
fn frame_bytes(configuration: &Configuration) -> usize {
    let longest = configuration.uplinks.iter().map(|uplink| uplink.max_frame).max();
    usize::from(longest.unwrap_or(1518)) + FRAME_SPARE
}

/// What would keep the switch from starting, as far as that can be told without opening a device.
///
/// # Errors
/// Where a device cannot be, or there is not enough memory for what it needs.
pub(super) fn check_devices(configuration: &Configuration) -> Result<()> {
    match configuration.switch.driver {
        SwitchDriver::Soft => super::devices::check(configuration, frame_bytes(configuration)),
        SwitchDriver::OpenFlow => Ok(()),
    }
}

/// Starts inco's own switch.
fn soft_switch(configuration: &Configuration, secret: [u64; 4]) -> Result<Box<dyn Switch>> {
    let of = &configuration.switch;
    let workers: Vec<Option<usize>> = if of.workers.is_empty() {
        vec![None]
    } else {
        of.workers.iter().map(|cpu| Some(usize::from(*cpu))).collect()
    };
    let mut uplinks = Vec::new();
    for uplink in &configuration.uplinks {
        let device = match &uplink.device {
            Device::Memif(socket) => UplinkDevice::Memif {
                socket: in_run_dir(socket),
                queues: u16::from(uplink.queues),
            },
            Device::Veth(_) | Device::Pcap(_) | Device::Dpdk(_) => UplinkDevice::Device,
        };
        if let UplinkDevice::Memif { socket, .. } = &device {
            make_parent(uplink, socket)?;
        }
        uplinks.push(UplinkConfig {
            name: uplink.name.clone(),
            device,
            max_frame: usize::from(uplink.max_frame),
            waits: true,
        });
    }
    let config = SoftSwitchConfig {
        polling: match of.poll {
            configuration::Poll::Adaptive => Polling::Adaptive,
            configuration::Poll::Busy => Polling::Busy,
        },
        table: TableConfig {
            ipv4_flows: of.flows as usize,
            ipv6_flows: of.flows_ipv6 as usize,
            return_counters: configuration.services.iter().any(Service::counts_flows),
            pin_times: true,
        },
        timeouts: of.timeouts,
        uplinks,
        hash_key: secret,
        ownership: Ownership::Keyed,
        workers,
    };
    let count = config.workers.len();
    let frame_bytes = frame_bytes(configuration);
    if config
        .uplinks
        .iter()
        .any(|uplink| matches!(uplink.device, UplinkDevice::Device))
    {
        return super::devices::switch(configuration, config, frame_bytes);
    }
    let memories = HeapMemory::shares(count, count * FRAMES_PER_WORKER, frame_bytes);
    let switch = SoftSwitch::start(&config, memories, Vec::new())?;
    Ok(Box::new(switch))
}

/// Starts, or reaches, the engine: none where the launcher of the `oci` engine was not needed.
///
/// # Errors
/// The engine's own, with what to do.
pub(super) fn engine(
    configuration: &Configuration,
    run_dir: &Path,
    launcher: Option<Launcher>,
) -> Result<Box<dyn Engine>> {
    match (configuration.engine.driver, launcher) {
        (EngineDriver::Oci, Some(launcher)) => {
            Ok(Box::new(OciEngine::start(OciConfig::at(run_dir), launcher)?))
        }
        (EngineDriver::Oci, None) => Ok(Box::new(NoEngine::new())),
        (EngineDriver::Docker, _) => Ok(Box::new(DockerEngine::start(docker_config(
            &configuration.engine,
        ))?)),
    }
}

/// What the controller knows of a service.
///
/// # Errors
/// Where arguments are given for a program that is not known.
pub(super) fn service_settings(
    service: &Service,
    engine: &configuration::Engine,
    capabilities: &Capabilities,
) -> Result<ServiceSettings> {
    let container = match service.port {
        PortKind::Memif | PortKind::Device => Some(container(service, engine.is_local())?),
        PortKind::Null => None,
    };
    Ok(ServiceSettings {
        socket_dir_in_container: engine.is_local().then(|| PathBuf::from(SOCKET_DIR)),
        port: port(service, capabilities),
        plan: service_plan(ServiceId(0), service),
        min: service.instances.min,
        max: service.instances.max,
        standby: service.instances.standby,
        standby_mode: service.instances.standby_mode,
        capacity_pps: match service.capacity {
            Capacity::Pps(pps) => Some(pps),
            Capacity::Learn => None,
        },
        ready: service.ready.clone(),
        ready_deadline: service.ready_deadline,
        drain_deadline: service.drain_deadline,
        stop_grace: service.stop_grace,
        stall_after: stall_after(service),
        ring_slots: service.ring.slots,
        ..ServiceSettings::new(service.name.clone(), container, service.autoscaler.clone())
    })
}

/// max(100 ms, three quota periods): a throttled function takes nothing for most of a period.
fn stall_after(service: &Service) -> Nanos {
    let periods = service.cpus.map_or(Nanos::ZERO, |cpus| {
        Nanos::from_micros(3 * u64::from(CpuQuota::of_cpus(cpus).period_us))
    });
    controller::STALL_AFTER.max(periods)
}

/// A container of the service, without a name; `is_here`: it runs on this machine.
///
/// # Errors
/// Where arguments are given for a program that is not known.
pub(super) fn container(service: &Service, is_here: bool) -> Result<ContainerSpec> {
    let image = service.image.clone().unwrap_or_default();
    let mut spec = ContainerSpec::new(String::new(), image.as_str());
    spec.command = service.command.clone();
    if spec.command.is_empty() && !service.args.is_empty() {
        // They come after the image's own program, in the place of its own arguments.
        let (_, known) = Store::at(Store::default_dir())
            .resolve(&spec.image)
            .with_context(|| {
                format!(
                    "service {:?}: `args` alone needs an image that inco knows; write `command` as well",
                    service.name
                )
            })?;
        spec.command = known.command(&service.args);
    } else {
        spec.command.extend(service.args.iter().cloned());
    }
    spec.env = vec![("INCO_PORTS".to_owned(), service.uplinks.len().to_string())];
    if service.port == PortKind::Memif {
        let socket = format!("{SOCKET_DIR}/{PORT_SOCKET}");
        spec.env.push(("INCO_SOCKET".to_owned(), socket));
    }
    if is_here {
        let page = format!("{SOCKET_DIR}/{PAGE_SOCKET}");
        spec.env.push(("INCO_PAGE".to_owned(), page));
    }
    spec.env.extend(service.env.iter().cloned());
    spec.mounts = service.mounts.clone();
    spec.cpu = service.cpus.map(CpuQuota::of_cpus);
    spec.memory_bytes = Some(service.memory_bytes);
    spec.pids_limit = service.processes;
    spec.cpuset = service.cpuset.clone();
    spec.hugepages = service.hugepages;
    spec.user_namespace = service.user_namespace;
    Ok(spec)
}
