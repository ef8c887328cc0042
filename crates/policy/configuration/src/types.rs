//! The types of a checked configuration.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use autoscaling::Autoscaler;
use model::{
    AffinityKey, AgentCheck, Association, Capabilities, External, Fallback, FlowSetup, HealthCheck, Match,
    Mount, Nanos, NetFunction, PodOptions, Polling, PortKind, Prefix, Ready, ServiceId, StandbyMode,
    TableFull, TaskOptions, Timeouts, UplinkId, UplinkKind, Vip,
};
use placement::{GUARD, PlaceId, Placement};
use scheduling::Scheduler;

use crate::actors::ActorsPart;
use crate::key::KeptValue;
use crate::problem::Positions;
use crate::variants::AtPlace;

/// A checked configuration. Services and uplinks are in the order of the file; [`ServiceId`] and [`UplinkId`] are
/// their indices.
#[derive(Clone, Debug)]
pub struct Configuration {
    /// The file's name as given, for messages.
    pub file: String,
    /// The switch.
    pub switch: Switch,
    /// Ports towards the network; at least one.
    pub uplinks: Vec<Uplink>,
    /// Network functions; at least one.
    pub services: Vec<Service>,
    /// Where instances run, in the order of the file; empty: on this machine, by [`engine`](Self::engine).
    pub places: Vec<Place>,
    /// The container engine.
    pub engine: Engine,
    /// The Kubernetes cluster, for services whose instances are its endpoints.
    pub kubernetes: Kubernetes,
    /// Load reports between machines and edges.
    pub reports: Reports,
    /// The API.
    pub api: Api,
    /// The event log.
    pub event_log: EventLog,
    /// The position of each key in the file.
    pub(crate) positions: Positions,
    /// The value of each key, written or default.
    pub(crate) values: BTreeMap<String, KeptValue>,
}

/// The switch.
#[derive(Clone, Debug, PartialEq)]
pub struct Switch {
    /// Its driver.
    pub driver: SwitchDriver,
    /// The driver's capabilities.
    pub can: Capabilities,
    /// The CPU of each worker. Empty: one worker that is not pinned.
    pub workers: Vec<u16>,
    /// What an idle worker does.
    pub poll: Polling,
    /// Capacity of each worker's IPv4 flow table.
    pub flows: u64,
    /// Capacity of each worker's IPv6 flow table.
    pub flows_ipv6: u64,
    /// Idle timeouts of flows.
    pub timeouts: Timeouts,
    /// Fallback for IP packets that match no service.
    pub unmatched: Fallback,
    /// Fallback for packets that are not IP.
    pub other: Fallback,
    /// Whether DPDK's buffers are in hugepages.
    pub hugepages: Hugepages,
    /// Arguments for DPDK's EAL, appended to inco's own.
    pub dpdk_args: Vec<String>,
    /// Settings of the `openflow` driver.
    pub openflow: OpenFlow,
    /// Settings of the `ebpf` driver.
    pub ebpf: Ebpf,
    /// Settings of the `hybrid` driver.
    pub hybrid: Hybrid,
}

/// Which flows the driver `hybrid` gives to the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hybrid {
    /// Flows with a rule at a time, at most.
    pub rules: u32,
    /// Promotions in a second, at most.
    pub promotions_per_second: u32,
    /// The span in which a flow has to be worth a rule, and after which each rule is looked at again.
    pub window: Nanos,
    /// The file of `inco bench paths` with what both paths cost.
    pub costs: Option<PathBuf>,
}

impl Switch {
    /// Number of workers, pinned to a CPU or not.
    pub fn worker_count(&self) -> usize {
        let limit = self.can.worker_limit.map_or(usize::MAX, usize::from);
        self.workers.len().clamp(1, limit.max(1))
    }

    /// Ports of each service for draining instances, where the driver makes ports in advance.
    pub fn spare_ports(&self) -> u32 {
        match self.driver {
            SwitchDriver::Ebpf | SwitchDriver::Soft | SwitchDriver::Hybrid => self.ebpf.spare_ports,
            SwitchDriver::OpenFlow => self.openflow.spare_ports,
        }
    }
}

/// Returns the capabilities of each driver. The drivers supply it to the parser.
pub type Drivers = fn(SwitchDriver) -> Capabilities;

model::words! {
    /// The implementation of the switch.
    pub enum SwitchDriver {
        /// inco's own switch.
        Soft = "soft",
        /// A bridge of Open vSwitch.
        OpenFlow = "openflow",
        /// Programs in this machine's kernel.
        Ebpf = "ebpf",
        /// inco's own switch, with programs in this machine's kernel for flows that are worth it.
        Hybrid = "hybrid",
    }

    /// Where a bridge forwards packets.
    pub enum Datapath {
        /// In Open vSwitch's user space.
        Netdev = "netdev",
        /// In the kernel, which may offload to a network card.
        System = "system",
    }

    /// Whether memory comes from hugepages.
    pub enum Hugepages {
        /// From hugepages if enough are free, else from ordinary pages.
        Auto = "auto",
        /// From hugepages; without them inco does not start.
        On = "on",
        /// From ordinary pages.
        Off = "off",
    }

    /// Whether a pinned flow may move while its instance works.
    pub enum Affinity {
        /// Never.
        Strict = "strict",
        /// When its instance is drained or purged, in order. For functions that keep no state per flow, or share it.
        Relaxed = "relaxed",
    }

    /// How what instances answer returns to clients that come through an edge.
    pub enum Replies {
        /// By the machine's own uplink.
        Direct = "direct",
        /// Through the tunnel to the edge, and by the edge's uplink.
        Edge = "edge",
    }

    /// The container engine.
    pub enum EngineDriver {
        /// Embedded: containers without a daemon.
        Oci = "oci",
        /// Docker's or Podman's API.
        Docker = "docker",
        /// A manager of a swarm of Docker's, which places containers on several machines.
        Swarm = "swarm",
        /// The API server of Kubernetes, which places Pods on several machines.
        Kubernetes = "kubernetes",
    }

    /// When an image comes from its registry.
    pub enum Pull {
        /// When it is not on this machine.
        Missing = "missing",
        /// When an operator pulls it.
        Never = "never",
    }
}

/// The Open vSwitch bridge that forwards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenFlow {
    /// The bridge's name.
    pub bridge: String,
    /// Where it forwards packets.
    pub datapath: Datapath,
    /// The endpoint of Open vSwitch's database, in its notation.
    pub database: String,
    /// The bridge's OpenFlow endpoint, in the same notation. `None`: the socket that Open vSwitch creates beside the
    /// database's.
    pub control: Option<String>,
    /// The directory with `ca.pem`, `cert.pem` and `key.pem`, if an endpoint uses TLS.
    pub tls: Option<PathBuf>,
    /// How new flows are set up.
    pub setup: FlowSetup,
    /// Maximum of exact rules.
    pub rules: u32,
    /// Buckets for each service's new flows; a power of two.
    pub buckets: u16,
    /// Ports of each service for draining instances, in addition to those for `max` and standby.
    pub spare_ports: u32,
}

/// The settings of programs in the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ebpf {
    /// Addresses of instances: of IPv4, of IPv6, or of both. Empty: instances have their service's only.
    pub instance_addresses: Vec<Prefix>,
    /// Ports of each service for draining instances, in addition to those for `max` and standby.
    pub spare_ports: u32,
    /// Connections of a service that are half open before its SYN packets are no longer pinned. `None`: a quarter of
    /// the table.
    pub half_open: Option<u32>,
}

impl OpenFlow {
    /// The bridge's OpenFlow endpoint. `None` if it must be written, because the database is on another machine.
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
    /// The device that it is attached to.
    pub device: Device,
    /// Number of receive queues, and of transmit queues.
    pub queues: u8,
    /// The longest frame in bytes, from the destination address to the end of the payload.
    pub max_frame: u16,
    /// The near end of tunnels there.
    pub tunnel: Option<UplinkTunnel>,
}

/// The near end of tunnels (VXLAN) at an uplink.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UplinkTunnel {
    /// Its address.
    pub address: Ipv4Addr,
    /// The network's number (VNI).
    pub network: u32,
    /// Far ends whose packets are taken out of the tunnel.
    pub from: Vec<Ipv4Addr>,
    /// The file of the key that other edges have, too, which give flows to the same machines.
    pub edges_key: Option<PathBuf>,
}

/// The device of an uplink.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Device {
    /// A memif link: inco listens on this unix socket, and the peer is the network. A relative path is in the run
    /// directory.
    Memif(PathBuf),
    /// A network interface of this machine, through AF_PACKET.
    Veth(String),
    /// Frames of a capture file.
    Pcap(Capture),
    /// A DPDK device string: a PCI address or `net_...`.
    Dpdk(String),
    /// A network interface of this machine that stays with the kernel.
    Kernel(String),
}

/// A capture file as an uplink.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Capture {
    /// The file that is received from.
    pub file: PathBuf,
    /// The file that transmitted frames are written to; `None` discards them.
    pub tx: Option<PathBuf>,
    /// Whether it restarts at its end, forever.
    pub repeats: bool,
}

/// An empty device, for an uplink whose device is invalid.
impl Default for Device {
    fn default() -> Self {
        Device::Dpdk(String::new())
    }
}

impl Device {
    /// Whether DPDK has it.
    pub fn is_of_dpdk(&self) -> bool {
        match self {
            Device::Veth(_) | Device::Pcap(_) | Device::Dpdk(_) => true,
            Device::Memif(_) | Device::Kernel(_) => false,
        }
    }

    /// The socket that a peer connects to, if it waits for one; [`None`] if it is up once it is opened.
    pub fn socket(&self) -> Option<&Path> {
        match self {
            Device::Memif(socket) => Some(socket),
            Device::Veth(_) | Device::Pcap(_) | Device::Dpdk(_) | Device::Kernel(_) => None,
        }
    }

    /// What it is.
    pub const fn kind(&self) -> UplinkKind {
        match self {
            Device::Memif(_) => UplinkKind::Memif,
            Device::Veth(_) => UplinkKind::Veth,
            Device::Pcap(_) => UplinkKind::Pcap,
            Device::Dpdk(_) => UplinkKind::Dpdk,
            Device::Kernel(_) => UplinkKind::Kernel,
        }
    }

    /// Capture files that it reads: its own, or those named in a DPDK device string.
    pub fn captures_read(&self) -> Vec<&Path> {
        match self {
            Device::Pcap(capture) => vec![&capture.file],
            Device::Dpdk(_) => self.parameters("rx_pcap").map(Path::new).collect(),
            Device::Memif(_) | Device::Veth(_) | Device::Kernel(_) => Vec::new(),
        }
    }

    /// Capture files that it writes, likewise.
    pub fn captures_written(&self) -> Vec<&Path> {
        match self {
            Device::Pcap(capture) => capture.tx.iter().map(PathBuf::as_path).collect(),
            Device::Dpdk(_) => self.parameters("tx_pcap").map(Path::new).collect(),
            Device::Memif(_) | Device::Veth(_) | Device::Kernel(_) => Vec::new(),
        }
    }

    /// The values of a parameter in a DPDK device string, such as `rx_pcap` in `net_pcap0,rx_pcap=a.pcap`.
    pub fn parameters<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        let text = match self {
            Device::Dpdk(text) => text.as_str(),
            Device::Memif(_) | Device::Veth(_) | Device::Pcap(_) | Device::Kernel(_) => "",
        };
        let parts = text.split(',').skip(1);
        parts.filter_map(move |part| {
            part.split_once('=')
                .filter(|(key, _)| *key == name)
                .map(|(_, value)| value)
        })
    }
}

/// In the configuration's notation.
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
            Device::Kernel(interface) => write!(f, "kernel:{interface}"),
        }
    }
}

/// A network function: a match on traffic, policies, and containers.
#[derive(Clone, Debug)]
pub struct Service {
    /// Its name.
    pub name: String,
    /// The packets that it receives; with an address, only the VLAN counts.
    pub matches: Match,
    /// Its address; `None` if `match` alone says which packets are its own.
    pub vip: Option<Vip>,
    /// The external addresses to which its instances translate; `None` if they do not.
    pub external: Option<ExternalPorts>,
    /// Whether its instances may open connections.
    pub egress: bool,
    /// Data port k of an instance belongs to uplink k of this list. One or two.
    pub uplinks: Vec<UplinkId>,
    /// The container image. `None` only if `port` is [`PortKind::Null`] or [`PortKind::Routed`].
    pub image: Option<String>,
    /// The kind of an instance's ports.
    pub port: PortKind,
    /// With [`PortKind::Device`]: the ports of the first instance, one per uplink, then those of the second, and so
    /// on.
    pub devices: Vec<InstanceDevice>,
    /// Program and arguments. Empty: the image's own.
    pub command: Vec<String>,
    /// Arguments after those of `command`, or after the image's entry point.
    pub args: Vec<String>,
    /// Environment variables, ordered by name.
    pub env: Vec<(String, String)>,
    /// Host paths in the container.
    pub mounts: Vec<Mount>,
    /// Memory limit of one container in bytes.
    pub memory_bytes: u64,
    /// Limit of processes and threads of one container.
    pub processes: u32,
    /// CPUs that containers may use, as `0-3,7`; `None` for all.
    pub cpuset: Option<String>,
    /// Whether the host's hugepages are mounted in a container.
    pub hugepages: bool,
    /// Whether a container's root is an unprivileged user on the host.
    pub user_namespace: bool,
    /// Capabilities of a container's program; `None` for the usual ones of its kind of port.
    pub capabilities: Option<Vec<String>>,
    /// The readiness condition of an instance.
    pub ready: Ready,
    /// How instances are checked; `None`: they are not.
    pub health: Option<HealthCheck>,
    /// Where their agents are asked; `None`: they are not.
    pub agent: Option<AgentCheck>,
    /// Longest time from the program's start until the instance is ready.
    pub ready_deadline: Nanos,
    /// An instance that takes no packet for this long although some wait has failed.
    pub stall_after: Nanos,
    /// The number of instances.
    pub instances: Instances,
    /// At which of [`Configuration::places`] they run.
    pub placement: Placement,
    /// What those at some places have in the place of its own image, program or port, in the order of places.
    pub at: Vec<AtPlace>,
    /// Destination subnets by place, each for a service of its own. Always empty in a configuration that was read: there are
    /// these services then.
    pub subnets: Vec<(PlaceId, Prefix)>,
    /// CPUs that one container may use, 0.1 for a tenth; `None` for no limit.
    pub cpus: Option<f64>,
    /// Whether an instance has a CPU of its place to itself.
    pub exclusive: bool,
    /// The capacity of one instance.
    pub capacity: Capacity,
    /// Share of the capacity that scheduling may use, above 0 and at most 1.
    pub fit: f64,
    /// The scheduler in its initial state. Each worker starts with a copy.
    pub scheduler: Scheduler,
    /// Capacity of one instance in the scheduler's metric; `None` if the metric is packets and `capacity` applies.
    pub limit: Option<f64>,
    /// The autoscaler in its initial state, with the file's parameters.
    pub autoscaler: Autoscaler,
    /// Whether a pinned flow may move while its instance works.
    pub affinity: Affinity,
    /// Which flows share an instance.
    pub affinity_key: AffinityKey,
    /// Security associations that have one instance for as long as they are listed.
    pub associations: Vec<Association>,
    /// Whether both directions of a flow go to one instance.
    pub symmetric: bool,
    /// What happens to a new flow if the flow table is full.
    pub table_full: TableFull,
    /// Longest time that a draining instance may keep flows.
    pub drain_deadline: Nanos,
    /// Longest time that a program may take to exit before it is killed.
    pub stop_grace: Nanos,
    /// The rings towards and from an instance.
    pub ring: Ring,
    /// Queue pairs of each data port of an instance.
    pub queues: u8,
    /// Whether returned packets are also counted per flow.
    pub flow_counters: bool,
    /// Whether a drain moves flows with the state of their function.
    pub move_state: bool,
    /// How replies return, where an edge sends packets through tunnels.
    pub replies: Replies,
    /// Whether the host's manager may wake instances and send them to sleep.
    pub signals: bool,
    /// The service that gets what its instances return, by its name.
    pub next: Option<String>,
    /// What a swarm is asked about its instances; `None` where the file says nothing of it.
    pub swarm: Option<TaskOptions>,
    /// What Kubernetes is asked about its Pods; `None` where the file says nothing of it.
    pub pods: Option<PodOptions>,
    /// Which side of a service of actors it is; `None` for a service of containers.
    pub part: Option<ActorsPart>,
}

impl Service {
    /// Number of instances for which a rule-based switch makes ports in advance: with devices as many as these serve,
    /// else the instance limit plus `spare` for draining ones.
    pub fn made_ports(&self, spare: u32) -> u32 {
        if self.port.is_listed() {
            return (self.devices.len() / self.uplinks.len().max(1)) as u32;
        }
        self.instance_limit().saturating_add(spare)
    }

    /// The packets that it receives: those of its match, or to its address.
    pub fn all_matches(&self) -> Vec<Match> {
        match &self.vip {
            _ if !self.takes_packets() => Vec::new(),
            Some(vip) => vip.matches(self.matches.vlan),
            None => vec![self.matches.clone()],
        }
    }

    /// Whether its instances have containers.
    pub fn has_containers(&self) -> bool {
        self.port.has_container() || self.port == PortKind::Routed && !self.instances.are_others()
    }

    /// Most containers that exist at once, except draining ones.
    pub fn instance_limit(&self) -> u32 {
        self.instances.max.saturating_add(self.instances.standby)
    }

    /// Whether returned packets are counted per flow, because it is configured or because moving flows in order needs
    /// it.
    pub fn counts_flows(&self) -> bool {
        self.flow_counters || self.affinity == Affinity::Relaxed
    }
}

/// The external addresses of a service that translates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExternalPorts {
    /// The addresses, divided into blocks of ports.
    pub external: External,
    /// For how long a mapping may live without a packet.
    pub lifetime: Nanos,
}

/// A function of a network card for one data port of an instance, and its representor in the switch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstanceDevice {
    /// The switch's end: a network interface, or a DPDK device such as `0000:03:00.0,representor=vf0`.
    pub representor: String,
    /// The instance's end.
    pub function: NetFunction,
    /// The address that it must have.
    pub mac: Option<MacAddress>,
}

impl InstanceDevice {
    /// Whether the switch's end is a DPDK device instead of an interface.
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

/// The number of instances.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instances {
    /// Who runs them.
    pub from: Origin,
    /// Minimum of active instances.
    pub min: u32,
    /// Maximum of active instances; with `from`, how many there may be without a restart.
    pub max: u32,
    /// Standby instances beside the active ones.
    pub standby: u32,
    /// Whether standby instances run or are paused.
    pub standby_mode: StandbyMode,
    /// Whether all `max` instances run, and those that are not active sleep.
    pub sleep: bool,
}

/// Who runs the instances of a service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Origin {
    /// inco.
    #[default]
    Inco,
    /// Others, at these addresses: all of them, each once.
    Addresses(Vec<SocketAddr>),
    /// Kubernetes: the endpoints of these Services, each once.
    Kubernetes(Vec<KubernetesService>),
}

/// A Service of Kubernetes, whose endpoints are instances.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KubernetesService {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The port of its endpoints; [`None`]: it has one.
    pub port: Option<EndpointPort>,
    /// Its share of new flows against that of the others of the list.
    pub weight: u32,
}

/// A port of a Kubernetes Service's endpoints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EndpointPort {
    /// By its name in the Service.
    Name(String),
    /// By its number at the endpoints, which a Service calls `targetPort`.
    Number(u16),
}

impl fmt::Display for KubernetesService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

impl Instances {
    /// Whether others run them.
    pub fn are_others(&self) -> bool {
        self.from != Origin::Inco
    }

    /// The servers that the file lists.
    pub fn addresses(&self) -> &[SocketAddr] {
        match &self.from {
            Origin::Addresses(all) => all,
            Origin::Inco | Origin::Kubernetes(_) => &[],
        }
    }

    /// The Kubernetes Services whose endpoints they are.
    pub fn kubernetes(&self) -> &[KubernetesService] {
        match &self.from {
            Origin::Kubernetes(services) => services,
            Origin::Inco | Origin::Addresses(_) => &[],
        }
    }
}

/// How the API server of a Kubernetes cluster is reached.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Kubernetes {
    /// The kubeconfig; [`None`]: the account of the Pod in which inco runs, else `$KUBECONFIG`, else `~/.kube/config`.
    pub kubeconfig: Option<PathBuf>,
    /// The context of the kubeconfig; [`None`]: its current one.
    pub context: Option<String>,
    /// Where the engine has its Pods; [`None`]: the namespace of the context, or of the Pod in which inco runs.
    pub namespace: Option<String>,
}

/// The capacity of one instance.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Capacity {
    /// Packets per second.
    Pps(f64),
    /// Measured at run time.
    Learn,
}

/// The rings of a data port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ring {
    /// Descriptors in each direction; a power of two.
    pub slots: u32,
    /// Bytes of one buffer. Longer frames use several.
    pub buffer_bytes: u32,
}

impl Ring {
    /// Shared memory in bytes of one port with `queues` queue pairs, both directions.
    pub fn port_bytes(&self, queues: u8) -> u64 {
        // A memif descriptor has 16 bytes, a ring's header 128.
        let ring = 128 + u64::from(self.slots) * (16 + u64::from(self.buffer_bytes));
        2 * ring * u64::from(queues)
    }
}

/// The container engine.
#[derive(Clone, Debug, PartialEq)]
pub struct Engine {
    /// Its driver.
    pub driver: EngineDriver,
    /// The endpoint of Docker, Podman or a swarm's manager: `unix:///...` or `tcp://host:port`. Not for
    /// [`EngineDriver::Oci`].
    pub host: String,
    /// The directory with `ca.pem`, `cert.pem` and `key.pem`, for a remote engine.
    pub tls: Option<PathBuf>,
    /// The name of this machine, as the file has it.
    pub name: Option<String>,
    /// How long containers and the switch's state wait for the next run after a stop by a service manager.
    pub linger: Nanos,
    /// When images come from their registries.
    pub pull: Pull,
    /// Registries that are asked without TLS: `10.0.0.5:5000`.
    pub plain_http: Vec<String>,
}

impl Engine {
    /// Whether its containers run on this machine and can share memory. True only for a unix socket, because a local
    /// TCP address may be the end of a tunnel. What an orchestrator places may be anywhere.
    pub fn is_local(&self) -> bool {
        match self.driver {
            EngineDriver::Oci => true,
            EngineDriver::Docker => self.answers_here(),
            EngineDriver::Swarm | EngineDriver::Kubernetes => false,
        }
    }

    /// Whether it places containers on machines of its own choice, where they are reached over the network.
    pub fn is_orchestrator(&self) -> bool {
        matches!(self.driver, EngineDriver::Swarm | EngineDriver::Kubernetes)
    }

    /// Whether the engine itself answers at a unix socket of this machine.
    pub fn answers_here(&self) -> bool {
        match self.driver {
            EngineDriver::Oci => true,
            EngineDriver::Docker | EngineDriver::Swarm => self.host.starts_with("unix:"),
            EngineDriver::Kubernetes => false,
        }
    }

    /// Whether both are one engine: the embedded one, or the same endpoint.
    pub fn is_same(&self, other: &Engine) -> bool {
        self.driver == other.driver && (self.driver == EngineDriver::Oci || self.host == other.host)
    }
}

/// A place where instances run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Place {
    /// Its name.
    pub name: String,
    /// The driver of its engine; `None` for that of `[engine]`, with its host.
    pub driver: Option<EngineDriver>,
    /// The endpoint of its engine; `None` for that of `[engine]`.
    pub host: Option<String>,
    /// The directory with `ca.pem`, `cert.pem` and `key.pem`, for an engine on another machine; `None` for that of
    /// `[engine]`.
    pub tls: Option<PathBuf>,
    /// CPUs that its containers may use, as `0-3,7`; `None` for all.
    pub cpus: Option<String>,
    /// The part of a service's `cpus`, and so of its capacity, that an instance has there. Above 0 and at most 1.
    pub share: f64,
    /// Most instances there, without those that leave; `None` for no limit.
    pub instances: Option<u32>,
    /// Most packets per second for which it has instances, as written: see [`Place::limit_pps`].
    pub capacity_pps: Option<f64>,
    /// The load in packets per second beyond which it takes fewer; `None` if that is unknown.
    pub collapse_pps: Option<f64>,
    /// Packets per second of one of its cores; `None` if instances have the capacity of their service.
    pub core_pps: Option<f64>,
    /// The kinds of ports that instances can have there; `None` for all.
    pub ports: Option<Vec<PortKind>>,
    /// Time from the switch to the place, one way.
    pub latency: Nanos,
    /// What the link to it carries in each direction, in bytes per second; `None` for no limit.
    pub bandwidth_bytes_per_s: Option<f64>,
    /// Watts without load, if known.
    pub idle_watts: Option<f64>,
    /// Watts of a busy core, if known.
    pub watts_per_core: Option<f64>,
    /// How long an engine on another machine may be away before its instances have failed.
    pub lost_after: Nanos,
}

impl Place {
    /// Its CPUs in ascending order; empty if it has no list of them.
    pub fn cpu_list(&self) -> Vec<u16> {
        let cpus = self.cpus.as_deref().map(crate::values::cpus_of);
        cpus.and_then(Result::ok).unwrap_or_default()
    }

    /// Most packets per second for which it has instances: its capacity, or [`GUARD`] of the load at which it collapses.
    pub fn limit_pps(&self) -> Option<f64> {
        let guarded = self.collapse_pps.map(|pps| GUARD * pps);
        self.capacity_pps.into_iter().chain(guarded).reduce(f64::min)
    }

    /// Packets per second of an instance of a service with that capacity and that many CPUs.
    pub fn instance_pps(&self, capacity_pps: f64, cpus: f64) -> f64 {
        self.share * self.core_pps.map_or(capacity_pps, |pps| pps * cpus)
    }

    /// Whether instances can have such ports there.
    pub fn has_ports(&self, kind: PortKind) -> bool {
        self.ports.as_ref().is_none_or(|kinds| kinds.contains(&kind))
    }

    /// Whether it takes any number of instances.
    pub fn is_unlimited(&self) -> bool {
        self.instances.is_none() && self.limit_pps().is_none()
    }
}

/// Load reports between machines behind tunnels and their edges.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reports {
    /// Of a machine: what it tells its edges; [`None`]: nothing.
    pub sends: Option<SentReports>,
    /// Of an edge: which reports it takes; [`None`]: none.
    pub takes: Option<TakenReports>,
}

/// The reports of a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SentReports {
    /// The machine's number in the cluster.
    pub machine: u16,
    /// Where its edges take reports.
    pub to: Vec<SocketAddr>,
    /// The file of its key.
    pub key: PathBuf,
}

/// The reports that an edge takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TakenReports {
    /// Where it takes them.
    pub listen: SocketAddr,
    /// Of which machines; at least one.
    pub machines: Vec<ReportingMachine>,
}

/// A machine whose reports an edge takes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReportingMachine {
    /// Its number in the cluster.
    pub number: u16,
    /// Its address for tunnels.
    pub address: Option<Ipv4Addr>,
    /// The file of its key.
    pub key: PathBuf,
}

/// The API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Api {
    /// The unix socket; `None` for `api.sock` in the run directory.
    pub socket: Option<PathBuf>,
    /// TCP access; `None` for none.
    pub tcp: Option<ApiTcp>,
}

/// TCP access to the API, with TLS and a token in each request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiTcp {
    /// The address and port to listen on.
    pub listen: SocketAddr,
    /// The certificate chain, as PEM.
    pub certificate: PathBuf,
    /// The private key, as PEM.
    pub key: PathBuf,
    /// The file of tokens.
    pub tokens: PathBuf,
}

/// The files of the event log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventLog {
    /// Their directory; `None` for `events` in the run directory.
    pub directory: Option<PathBuf>,
    /// Size of one file in bytes, after which the next file begins.
    pub file_bytes: u64,
    /// Files that are kept, including the current one.
    pub files: u32,
}

impl Configuration {
    /// Whether any service has containers.
    pub fn has_containers(&self) -> bool {
        self.services.iter().any(Service::has_containers)
    }

    /// The engine of a place: that of `[engine]`, except for what the place says.
    pub fn engine_at(&self, place: PlaceId) -> Engine {
        let mut engine = self.engine.clone();
        if let Some(place) = self.places.get(place.index()) {
            let names_docker = place.driver.is_none() && (place.host.is_some() || place.tls.is_some());
            engine.driver = match place.driver {
                None if names_docker => EngineDriver::Docker,
                driver => driver.unwrap_or(engine.driver),
            };
            // Certificates belong to a host.
            if let Some(host) = &place.host {
                (engine.host, engine.tls) = (host.clone(), None);
            }
            engine.tls = place.tls.clone().or(engine.tls);
        }
        engine
    }

    /// The places with their ids.
    pub fn places_with_ids(&self) -> impl Iterator<Item = (PlaceId, &Place)> {
        (0..).map(PlaceId).zip(&self.places)
    }

    /// The engines of the places where a service may have instances, each once. Those of equal endpoints are one.
    pub fn engines_of(&self, service: &Service) -> Vec<Engine> {
        self.engines_where(|place| service.placement.permits(place))
    }

    /// The engines of those places, each once; without places, that of `[engine]`.
    pub(crate) fn engines_where(&self, is_wanted: impl Fn(PlaceId) -> bool) -> Vec<Engine> {
        let mut engines: Vec<Engine> = Vec::new();
        let places = self.places_with_ids().map(|(place, _)| place);
        for place in places.filter(|place| is_wanted(*place)) {
            let engine = self.engine_at(place);
            if !engines.iter().any(|known| known.is_same(&engine)) {
                engines.push(engine);
            }
        }
        if self.places.is_empty() {
            engines.push(self.engine.clone());
        }
        engines
    }

    /// The engines of all places, each once, with the first place that it is of; [`None`] for that of `[engine]`
    /// without places.
    pub fn engines(&self) -> Vec<(Option<PlaceId>, Engine)> {
        if self.places.is_empty() {
            return vec![(None, self.engine.clone())];
        }
        let mut engines: Vec<(Option<PlaceId>, Engine)> = Vec::new();
        for (place, _) in self.places_with_ids() {
            let engine = self.engine_at(place);
            if !engines.iter().any(|(_, known)| known.is_same(&engine)) {
                engines.push((Some(place), engine));
            }
        }
        engines
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
