//! What this switch can do.

use model::{AffinityKey, UplinkKind, VipMode};
use switch::{Capabilities, EditKind, PortKind};

/// The capabilities of the soft switch.
pub const CAPABILITIES: Capabilities = Capabilities {
    ports: &[
        PortKind::Memif,
        PortKind::Kernel,
        PortKind::Frames,
        PortKind::Tunnel,
        PortKind::Null,
    ],
    uplinks: &[
        UplinkKind::Memif,
        UplinkKind::Veth,
        UplinkKind::Pcap,
        UplinkKind::Dpdk,
        UplinkKind::Kernel,
    ],
    waiting_uplinks: true,
    worker_limit: None,
    edits: &[EditKind::Mac],
    sees_openers: true,
    relaxed_moves: true,
    flow_counters: true,
    return_matching: true,
    ring_occupancy: true,
    port_blocks: true,
    signals: true,
    pick_records: true,
    captures: true,
    service_changes: true,
    chains: true,
    asks_machines: true,
    replies_by_edge: true,
    checks: true,
    vips: &[VipMode::L2, VipMode::Dnat],
    affinity_keys: &[
        AffinityKey::Flow,
        AffinityKey::Addresses,
        AffinityKey::Source,
        AffinityKey::Inner,
        AffinityKey::Spi,
    ],
    ..Capabilities::NONE
};

/// The capabilities of the soft switch with a fast path beside it, which knows no tunnels.
pub const FAST_CAPABILITIES: Capabilities = Capabilities {
    ports: &[
        PortKind::Memif,
        PortKind::Kernel,
        PortKind::Frames,
        PortKind::Null,
    ],
    replies_by_edge: false,
    ..CAPABILITIES
};
