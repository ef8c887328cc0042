//! A configuration that was checked: what the rest of inco is given.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use autoscaling::Autoscaler;
use model::{
    Capabilities, Fallback, FlowSetup, Match, Mount, Nanos, NetFunction, Polling, PortKind, Ready, ServiceId,
    StandbyMode, TableFull, Timeouts, UplinkId,
};
use scheduling::Scheduler;

use crate::problem::Places;
use crate::read::KeptValue;

/// The whole configuration, checked. Services and uplinks are in the order of the file, so that
/// [`ServiceId`] and [`UplinkId`] are their indices.
#[derive(Clone, Debug)]
pub struct Configuration {
    /// The file's name as it was given, for messages.
    pub file: String,
    /// What forwards.
    pub switch: Switch,
    /// Ports towards the network; at least one.
    pub uplinks: Vec<Uplink>,
    /// Network functions; at least one.
    pub services: Vec<Service>,
    /// What runs containers.
    pub engine: Engine,
    /// How inco is asked.
    pub api: Api,
    /// What becomes of events.
    pub event_log: EventLog,
    /// Where each key stands in the file.
    pub(crate) places: Places,
    /// The value of each key, written or not.
    pub(crate) values: BTreeMap<String, KeptValue>,
}

/// What forwards packets.
#[derive(Clone, Debug, PartialEq)]
pub struct Switch {
    /// Which implementation.
    pub driver: SwitchDriver,
    /// What that can do.
    pub can: Capabilities,
    /// The CPU that each worker is pinned to. Empty: one worker that is not pinned.
    pub workers: Vec<u16>,
    /// What a worker does when no packet comes.
    pub poll: Polling,
    /// IPv4 flows that each worker's table holds.
    pub flows: u64,
    /// IPv6 flows that each worker's table holds.
    pub flows_ipv6: u64,
    /// When a flow ends without saying so.
    pub timeouts: Timeouts,
    /// IP packets that are of no service.
    pub unmatched: Fallback,
    /// Packets that are not IP.
    pub other: Fallback,
    /// Memory for DPDK's buffers.
    pub hugepages: Hugepages,
    /// Arguments for DPDK's environment layer, after inco's own.
    pub dpdk_args: Vec<String>,
    /// What only the `openflow` driver needs.
    pub openflow: OpenFlow,
}

impl Switch {
    /// Workers that there are, pinned or not.
    pub fn worker_count(&self) -> usize {
        let limit = self.can.worker_limit.map_or(usize::MAX, usize::from);
        self.workers.len().clamp(1, limit.max(1))
    }
}

/// What each driver can do, for whoever reads a configuration: the drivers say it.
pub type Drivers = fn(SwitchDriver) -> Capabilities;

model::words! {
    /// Which switch forwards.
    pub enum SwitchDriver {
        /// Ours.
        Soft = "soft",
        /// A bridge of Open vSwitch.
        OpenFlow = "openflow",
    }

    /// Where a bridge's packets are forwarded.
    pub enum Datapath {
        /// In Open vSwitch itself.
        Netdev = "netdev",
        /// In the kernel, and in a card to which the kernel hands its work.
        System = "system",
    }

    /// Where memory comes from.
    pub enum Hugepages {
        /// From hugepages where enough are free, else from plain pages.
        Auto = "auto",
        /// From hugepages, or inco does not start.
        On = "on",
        /// From plain pages.
        Off = "off",
    }

    /// Whether a pinned flow may be moved while its instance is well.
    pub enum Affinity {
        /// Never.
        Strict = "strict",
        /// When its instance is drained or purged, in order: the function keeps no state per flow, or shares it.
        Relaxed = "relaxed",
    }

    /// Which engine runs containers.
    pub enum EngineDriver {
        /// Embedded: containers without a daemon.
        Oci = "oci",
        /// Docker's or Podman's API.
        Docker = "docker",
    }
}

/// The bridge of Open vSwitch that forwards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenFlow {
    /// The bridge's name.
    pub bridge: String,
    /// Where its packets are forwarded.
    pub datapath: Datapath,
    /// Where Open vSwitch's database listens, as Open vSwitch writes it.
    pub database: String,
    /// Where the bridge listens for OpenFlow, likewise; `None`: at the socket that Open vSwitch makes beside the database's.
    pub control: Option<String>,
    /// The directory with `ca.pem`, `cert.pem` and `key.pem`, where one of them is to be had over TLS.
    pub tls: Option<PathBuf>,
    /// How new flows are set up.
    pub setup: FlowSetup,
    /// Exact rules at most.
    pub rules: u32,
    /// Buckets of each service's new flows: a power of two.
    pub buckets: u16,
    /// Ports of each service beside those for `max` and standby, for instances that drain.
    pub spare_ports: u32,
}

impl OpenFlow {
    /// Where the bridge listens for OpenFlow. `None` where that must be written, because the database is on another machine.
    pub fn control(&self) -> Option<String> {
        let beside = || {
            let socket = Path::new(self.database.strip_prefix("unix:")?);
            let control = socket.parent()?.join(format!("{}.mgmt", self.bridge));
            Some(format!("unix:{}", control.display()))
        };
        self.control.clone().or_else(beside)
    }
}

/// A port towards the network.
#[derive(Clone, Debug, PartialEq)]
pub struct Uplink {
    /// Its name.
    pub name: String,
    /// What it is attached to.
    pub device: Device,
    /// Receive and transmit queues of the device, each.
    pub queues: u8,
    /// The longest frame that it carries, in bytes, from the destination address to the end of the payload.
    pub max_frame: u16,
}

/// What an uplink is attached to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Device {
    /// A memif link: inco listens on this unix socket, and whoever connects is the network. A relative path is one in
    /// the run directory.
    Memif(PathBuf),
    /// A network interface of this machine, by AF_PACKET.
    Veth(String),
    /// Frames of a capture file.
    Pcap(Capture),
    /// A DPDK device string: a PCI address or `net_...`.
    Dpdk(String),
}

/// A capture file as an uplink.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Capture {
    /// What is received from it.
    pub file: PathBuf,
    /// Where what leaves by it is written; `None`: nowhere.
    pub tx: Option<PathBuf>,
    /// Whether it begins again at its end, for ever.
    pub repeats: bool,
}

/// None: for an uplink whose device could not be read.
impl Default for Device {
    fn default() -> Self {
        Device::Dpdk(String::new())
    }
}

impl Device {
    /// Captures that it reads: its own one, or those that a DPDK device string names.
    pub fn captures_read(&self) -> Vec<&Path> {
        match self {
            Device::Pcap(capture) => vec![&capture.file],
            Device::Dpdk(_) => self.parameters("rx_pcap").map(Path::new).collect(),
            Device::Memif(_) | Device::Veth(_) => Vec::new(),
        }
    }

    /// Captures that it writes, likewise.
    pub fn captures_written(&self) -> Vec<&Path> {
        match self {
            Device::Pcap(capture) => capture.tx.iter().map(PathBuf::as_path).collect(),
            Device::Dpdk(_) => self.parameters("tx_pcap").map(Path::new).collect(),
            Device::Memif(_) | Device::Veth(_) => Vec::new(),
        }
    }

    /// The values of a parameter in a DPDK device string, as `rx_pcap` in `net_pcap0,rx_pcap=a.pcap`.
    pub fn parameters<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        let text = match self {
            Device::Dpdk(text) => text.as_str(),
            Device::Memif(_) | Device::Veth(_) | Device::Pcap(_) => "",
        };
        let parts = text.split(',').skip(1);
        parts.filter_map(move |part| {
            part.split_once('=')
                .filter(|(key, _)| *key == name)
                .map(|(_, value)| value)
        })
    }
}

/// As it is written in a configuration.
impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Device::Memif(socket) => write!(f, "memif:{}", socket.display()),
            Device::Veth(interface) => write!(f, "veth:{interface}"),
            Device::Pcap(Capture { file, tx, repeats }) => {
                write!(f, "pcap:{}", file.display())?;
                if *repeats {
                    f.write_str(",loop")?;
                }
                tx.iter().try_for_each(|tx| write!(f, ",tx={}", tx.display()))
            }
            Device::Dpdk(device) => f.write_str(device),
        }
    }
}

/// A network function: a match on traffic, policies, and the containers that do the work.
#[derive(Clone, Debug)]
pub struct Service {
    /// Its name.
    pub name: String,
    /// Which packets are its.
    pub matches: Match,
    /// Data port k of an instance belongs to the k-th one. One or two.
    pub uplinks: Vec<UplinkId>,
    /// What is in a container. `None` only where `port` is [`PortKind::Null`].
    pub image: Option<String>,
    /// How an instance is attached.
    pub port: PortKind,
    /// Where that is [`PortKind::Device`]: the ports of the first instance, one per uplink, then those of the second, and so on.
    pub devices: Vec<InstanceDevice>,
    /// Program and arguments, instead of the image's own. Empty: the image's own.
    pub command: Vec<String>,
    /// Arguments after those of `command`, or after the image's own entry point.
    pub args: Vec<String>,
    /// Environment, in the order of its names.
    pub env: Vec<(String, String)>,
    /// What a container sees of this machine.
    pub mounts: Vec<Mount>,
    /// Memory of one container, in bytes.
    pub memory_bytes: u64,
    /// Processes and threads of one container.
    pub processes: u32,
    /// CPUs that containers may run on, as `0-3,7`; `None` for all.
    pub cpuset: Option<String>,
    /// Whether a container sees the machine's hugepages.
    pub hugepages: bool,
    /// Whether a container's root is nobody on the host.
    pub user_namespace: bool,
    /// When an instance counts as ready.
    pub ready: Ready,
    /// How long an instance may take from its program's start until it is ready.
    pub ready_deadline: Nanos,
    /// How many.
    pub instances: Instances,
    /// CPUs that one container may use, 0.1 for a tenth; `None` for no limit.
    pub cpus: Option<f64>,
    /// What one instance can process.
    pub capacity: Capacity,
    /// Share of the capacity that scheduling may use, above 0 and at most 1.
    pub fit: f64,
    /// The scheduler in its first state: each worker starts with a copy of it.
    pub scheduler: Scheduler,
    /// What one instance takes in the scheduler's metric; `None` where that is packets: then it is `capacity`.
    pub limit: Option<f64>,
    /// The autoscaler in its first state, with the parameters that the file gives.
    pub autoscaler: Autoscaler,
    /// Whether a pinned flow may be moved while its instance is well.
    pub affinity: Affinity,
    /// Whether both directions of a flow go to one instance.
    pub symmetric: bool,
    /// What happens to a new flow that finds the flow table full.
    pub table_full: TableFull,
    /// How long a draining instance may keep flows.
    pub drain_deadline: Nanos,
    /// How long a program may take to end by itself before it is killed.
    pub stop_grace: Nanos,
    /// The rings towards and from an instance.
    pub ring: Ring,
    /// Queue pairs of each of an instance's data ports.
    pub queues: u8,
    /// Whether returned packets are counted per flow, too.
    pub flow_counters: bool,
}

impl Service {
    /// Instances that a switch of rules makes ports for before there is traffic, where it makes so many more for those that drain:
    /// as many as there are devices for.
    pub fn places(&self, spare: u32) -> u32 {
        match self.port {
            PortKind::Device => (self.devices.len() / self.uplinks.len().max(1)) as u32,
            PortKind::Memif | PortKind::Null => self.instance_limit().saturating_add(spare),
        }
    }

    /// Whether its instances are containers.
    pub fn has_containers(&self) -> bool {
        self.port != PortKind::Null
    }

    /// Containers of it that may exist at once, draining ones apart.
    pub fn instance_limit(&self) -> u32 {
        self.instances.max.saturating_add(self.instances.standby)
    }

    /// Whether returned packets are counted per flow: asked for, or needed to move flows in order.
    pub fn counts_flows(&self) -> bool {
        self.flow_counters || self.affinity == Affinity::Relaxed
    }
}

/// A function of a card for a data port of an instance, and what stands for it in the switch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstanceDevice {
    /// The switch's end: a network interface, or a device of DPDK, as `0000:03:00.0,representor=vf0`.
    pub representor: String,
    /// The instance's end.
    pub function: NetFunction,
    /// The address that it should have.
    pub mac: Option<MacAddress>,
}

impl InstanceDevice {
    /// Whether the switch's end is one of DPDK's devices, and no interface.
    pub fn is_of_dpdk(&self) -> bool {
        self.representor.contains([':', ','])
    }
}

/// An Ethernet address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MacAddress(pub [u8; 6]);

impl fmt::Display for MacAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// How many instances there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instances {
    /// Active ones at least.
    pub min: u32,
    /// Active ones at most.
    pub max: u32,
    /// Kept ready beside the active ones.
    pub standby: u32,
    /// How they are kept.
    pub standby_mode: StandbyMode,
}

/// What one instance can process.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Capacity {
    /// Packets per second.
    Pps(f64),
    /// Measured while it works.
    Learn,
}

/// The rings of a data port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ring {
    /// Descriptors in each direction; a power of two.
    pub slots: u32,
    /// Bytes of one buffer; longer frames use several.
    pub buffer_bytes: u32,
}

impl Ring {
    /// Shared memory of one port with that many queue pairs: both directions, in bytes.
    pub fn port_bytes(&self, queues: u8) -> u64 {
        // A memif descriptor is 16 bytes, a ring's header 128.
        let ring = 128 + u64::from(self.slots) * (16 + u64::from(self.buffer_bytes));
        2 * ring * u64::from(queues)
    }
}

/// What runs containers.
#[derive(Clone, Debug, PartialEq)]
pub struct Engine {
    /// Which one.
    pub driver: EngineDriver,
    /// Where Docker or Podman answers: `unix:///...` or `tcp://host:port`. Only for [`EngineDriver::Docker`].
    pub host: String,
    /// The directory with `ca.pem`, `cert.pem` and `key.pem` for a remote engine.
    pub tls: Option<PathBuf>,
}

impl Engine {
    /// Whether its containers run on this machine, so that memory can be shared with them. A TCP address of this machine
    /// may be the end of a tunnel, so only a unix socket counts.
    pub fn is_local(&self) -> bool {
        self.driver == EngineDriver::Oci || self.host.starts_with("unix:")
    }
}

/// How inco is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Api {
    /// The unix socket; `None` for `api.sock` in inco's run directory.
    pub socket: Option<PathBuf>,
    /// Over the network, too.
    pub tcp: Option<ApiTcp>,
}

/// The API over the network: TLS, and a token in each request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiTcp {
    /// The address and port to listen on.
    pub listen: SocketAddr,
    /// The certificate and those that it rests on, as PEM.
    pub certificate: PathBuf,
    /// Its private key, as PEM.
    pub key: PathBuf,
    /// The file of tokens.
    pub tokens: PathBuf,
}

/// The files that events are written to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventLog {
    /// Where they are; `None` for `events` in inco's run directory.
    pub directory: Option<PathBuf>,
    /// Bytes of one file; the next event then begins another one.
    pub file_bytes: u64,
    /// Files that are kept, the one that is written included.
    pub files: u32,
}

impl Configuration {
    /// Whether a service of it has containers.
    pub fn has_containers(&self) -> bool {
        self.services.iter().any(Service::has_containers)
    }

    /// The uplink of that name.
    pub fn uplink(&self, name: &str) -> Option<UplinkId> {
        let index = self.uplinks.iter().position(|uplink| uplink.name == name)?;
        Some(UplinkId(u8::try_from(index).ok()?))
    }

    /// The service of that name.
    pub fn service(&self, name: &str) -> Option<(ServiceId, &Service)> {
        let index = self.services.iter().position(|service| service.name == name)?;
        Some((ServiceId(u16::try_from(index).ok()?), &self.services[index]))
    }

    /// Services with their ids, in the order of the file.
    pub fn services_with_ids(&self) -> impl Iterator<Item = (ServiceId, &Service)> {
        (0u16..).map(ServiceId).zip(&self.services)
    }
}
