//! What the driver can do, and what a switch is made of.

use model::{AffinityKey, PortKind, Timeouts, UplinkKind, VipMode};
use switch::Capabilities;

use crate::ports::PreparedPort;
use crate::tunnels::TunnelEnd;

/// What the driver can do beyond what every switch does.
pub const CAPABILITIES: Capabilities = Capabilities {
    ports: &[PortKind::Kernel, PortKind::Routed, PortKind::Tunnel],
    uplinks: &[UplinkKind::Kernel],
    prepared_ports: true,
    // The kernel's CPUs forward; what counts as a worker are all of them together.
    worker_limit: Some(1),
    sees_openers: true,
    flow_counters: true,
    returns: false,
    probes: false,
    checks: true,
    passes_to_host: true,
    vips: &[VipMode::L2, VipMode::Dnat],
    affinity_keys: &[AffinityKey::Flow, AffinityKey::Addresses, AffinityKey::Source],
    signals: true,
    ..Capabilities::NONE
};

/// What a switch is made of.
#[derive(Clone, Debug)]
pub struct EbpfSwitchConfig {
    /// The name under which maps are pinned: the same in the next run.
    pub name: String,
    /// What the names of the host's ends begin with, at most 9 bytes.
    pub prefix: String,
    /// The interfaces of the uplinks, in the order of their ids.
    pub uplinks: Vec<String>,
    /// The near end of tunnels, if there are any.
    pub tunnel: Option<TunnelEnd>,
    /// The ports of instances.
    pub ports: Vec<PreparedPort>,
    /// The longest packet that instances' interfaces carry, without the Ethernet header.
    pub mtu: u16,
    /// Entries of the flow tables of IPv4 and of IPv6.
    pub flows: [u32; 2],
    /// Idle timeouts of flows.
    pub timeouts: Timeouts,
    /// Connections of a service that may be half open; [`None`]: a quarter of the smaller table's entries, so that
    /// neither is full of them.
    pub half_open: Option<u32>,
    /// Whether a service has flows that share an instance.
    pub shares: bool,
    /// The key of the programs' hash.
    pub hash_key: [u64; 2],
}
