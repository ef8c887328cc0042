//! Optional capabilities of a switch: a driver declares them, a configuration is checked against them, and no other
//! code depends on the driver.

use serde::Deserialize;

use crate::service::{AffinityKey, VipMode};

crate::words! {
    /// How new flows are set up in a switch of rules.
    #[derive(Default, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum FlowSetup {
        /// Rules for buckets of header bits are there before any packet.
        #[default]
        Proactive = "proactive",
        /// The first packets of a flow go to the controller, which sends them on and writes the rule. Packets that
        /// arrive meanwhile may be lost or reordered: they take two paths.
        Reactive = "reactive",
    }

    /// What a worker does when no packet comes.
    #[derive(Default)]
    pub enum Polling {
        /// It sleeps between small bursts, and on its file descriptors when nothing comes.
        #[default]
        Adaptive = "adaptive",
        /// It never sleeps: lowest latency, one whole CPU each.
        Busy = "busy",
    }

    /// How an instance is attached to the switch.
    #[derive(Hash)]
    pub enum PortKind {
        /// Rings of shared memory, and a socket to agree on them.
        Memif = "memif",
        /// A function of a card, or another network interface, whose other end the switch has.
        Device = "device",
        /// An interface in the instance's network namespace, which inco makes: the program uses the kernel's network.
        Kernel = "kernel",
        /// Interfaces in the instance's network namespace without an address, one for each uplink, which inco makes: the
        /// program takes whole frames from them, by packet sockets.
        Frames = "frames",
        /// An address in the network, where others run a server: this machine's routes lead there.
        Routed = "routed",
        /// The end of a tunnel on another machine, where another inco takes packets out of it.
        Tunnel = "tunnel",
        /// A sink without a container, for benches.
        Null = "null",
    }

    /// What an uplink is attached to.
    pub enum UplinkKind {
        /// A memif link.
        Memif = "memif:SOCKET",
        /// A network interface of this machine, whose packets the switch receives.
        Veth = "veth:INTERFACE",
        /// A capture.
        Pcap = "pcap:FILE",
        /// A device of DPDK.
        Dpdk = "a DPDK device",
        /// A network interface of this machine that stays with the kernel.
        Kernel = "kernel:INTERFACE",
    }

    /// Where a capture copies packets.
    pub enum CapturePoint {
        /// At an uplink, as they come and as they leave.
        Uplink = "uplink",
        /// On their way into an instance, as it gets them.
        Before = "before",
        /// As an instance gave them back.
        After = "after",
        /// Where the switch dropped them.
        Dropped = "dropped",
    }

    /// A kind of changes of a packet.
    pub enum EditKind {
        /// Of its MAC addresses.
        Mac = "MAC addresses",
        /// Of the address and port of the service's end.
        Translate = "address translation",
        /// Into a tunnel, or out of it.
        Tunnel = "a tunnel",
    }
}

impl PortKind {
    /// Whether a container is at the other end.
    pub const fn has_container(self) -> bool {
        match self {
            PortKind::Memif | PortKind::Device | PortKind::Kernel | PortKind::Frames => true,
            PortKind::Routed | PortKind::Tunnel | PortKind::Null => false,
        }
    }

    /// Whether the two ends agree over a socket.
    pub const fn has_socket(self) -> bool {
        match self {
            PortKind::Memif => true,
            PortKind::Device
            | PortKind::Kernel
            | PortKind::Frames
            | PortKind::Routed
            | PortKind::Tunnel
            | PortKind::Null => false,
        }
    }

    /// Whether the configuration lists the ports, because the machine has them already.
    pub const fn is_listed(self) -> bool {
        match self {
            PortKind::Device => true,
            PortKind::Memif
            | PortKind::Kernel
            | PortKind::Frames
            | PortKind::Routed
            | PortKind::Tunnel
            | PortKind::Null => false,
        }
    }
}

/// What a driver need not be able to do. What it lacks it refuses, or leaves at 0 where it is a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// The kinds of ports that instances may have.
    pub ports: &'static [PortKind],
    /// It makes the ports of all instances when it starts: each instance gets a place among them.
    pub prepared_ports: bool,
    /// Ports of DPDK that it has at most, one of its own, the uplinks' and those of all places together; [`None`]: no
    /// such limit.
    pub dpdk_port_limit: Option<u16>,
    /// The longest frame that its ports carry, in bytes without the checksum; [`None`]: as long as an uplink may say.
    pub max_frame: Option<u16>,
    /// What uplinks can be attached to.
    pub uplinks: &'static [UplinkKind],
    /// Uplinks can wait until they are opened.
    pub waiting_uplinks: bool,
    /// Workers at most; [`None`]: as many as it is given CPUs.
    pub worker_limit: Option<u16>,
    /// What it can change in packets of an instance.
    pub edits: &'static [EditKind],
    /// It sees which end has begun a flow; else a symmetric service needs a match that one direction has alone.
    pub sees_openers: bool,
    /// Flows of relaxed services move in order: their packets are held until those before them are back.
    pub relaxed_moves: bool,
    /// Packets and bytes are counted for each flow.
    pub flow_counters: bool,
    /// What comes back is matched with the flows of its instance, where a service wants that.
    pub return_matching: bool,
    /// How full the rings of instances are is known.
    pub ring_occupancy: bool,
    /// Instances are functions that packets go through: each is given back, kept or dropped. Else they are the ends of
    /// connections: what they are given stays there, and what they send is their own.
    pub returns: bool,
    /// Probe packets show whether an instance takes packets.
    pub probes: bool,
    /// Instances can be asked over their network, each alone, without that being traffic.
    pub checks: bool,
    /// Packets of no service can go on into this machine's own network.
    pub passes_to_host: bool,
    /// The modes in which a service may have an address.
    pub vips: &'static [VipMode],
    /// What flows that share an instance may have in common, beside all of their key.
    pub affinity_keys: &'static [AffinityKey],
    /// Packets to external addresses of a service go to the instance that owns the block of their port.
    pub port_blocks: bool,
    /// Signals of instances are taken out of what they send, and told.
    pub signals: bool,
    /// Scheduling decisions can be written down.
    pub pick_records: bool,
    /// Packets can be captured: copies of them, where the switch sees them.
    pub captures: bool,
    /// Services may be added, and their matches changed, while it runs.
    pub service_changes: bool,
    /// What the instances of one service return can go on to those of another one.
    pub chains: bool,
    /// At an edge of tunnels: new flows go by what machines report, and flows that other edges have pinned are found.
    pub asks_machines: bool,
    /// What instances behind tunnels answer can return through the edge: at machines and at edges.
    pub replies_by_edge: bool,
}

impl Capabilities {
    /// Nothing beyond what every switch does: a driver declares what it can do besides.
    pub const NONE: Capabilities = Capabilities {
        ports: &[],
        prepared_ports: false,
        dpdk_port_limit: None,
        max_frame: None,
        uplinks: &[UplinkKind::Memif, UplinkKind::Veth, UplinkKind::Dpdk],
        waiting_uplinks: false,
        worker_limit: Some(1),
        edits: &[],
        sees_openers: false,
        relaxed_moves: false,
        flow_counters: false,
        return_matching: false,
        ring_occupancy: false,
        returns: true,
        probes: true,
        checks: false,
        passes_to_host: false,
        vips: &[],
        affinity_keys: &[AffinityKey::Flow],
        port_blocks: false,
        signals: false,
        pick_records: false,
        captures: false,
        service_changes: false,
        chains: false,
        asks_machines: false,
        replies_by_edge: false,
    };

    /// The kind of ports that instances have where nothing else is said.
    pub fn usual_port(&self) -> PortKind {
        self.ports.first().copied().unwrap_or(PortKind::Memif)
    }

    /// Whether instances may have ports of that kind.
    pub fn connects(&self, kind: PortKind) -> bool {
        self.ports.contains(&kind)
    }
}
