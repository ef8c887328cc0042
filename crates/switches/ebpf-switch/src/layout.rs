//! What inco and the programs share, as `bpf/layout.h` lays it out. Every field that one side writes while the other
//! reads is an atomic.

use std::sync::atomic::{AtomicI32, AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering::Relaxed};

use model::{AffinityKey, DropReason, UplinkId};

/// Changes with any of these structures, with the meaning of a field, and with the hashes: see `release`.
pub(crate) const LAYOUT: u64 = 4;
pub(crate) const SLOTS: usize = 1024;
pub(crate) const SERVICES: usize = 64;
pub(crate) const UPLINKS: usize = 8;
pub(crate) const RULES: usize = 256;
pub(crate) const BANKS: usize = 4;
pub(crate) const PICKS: usize = 1024;
pub(crate) const ENTRIES: usize = 4096;
pub(crate) const EPOCHS: usize = 4;
const REASONS: usize = 16;

const _: () =
    assert!(SLOTS == model::Slot::LIMIT && SERVICES == model::ServiceId::LIMIT && UPLINKS == UplinkId::LIMIT);

/// The state of a slot.
pub(crate) mod slot_state {
    pub(crate) const FREE: u8 = 0;
    pub(crate) const ACTIVE: u8 = 1;
    pub(crate) const SERVING: u8 = 2;
    pub(crate) const FAILED: u8 = 3;
}

/// Its instance may open connections.
pub(crate) const SLOT_EGRESS: u8 = 1;
/// The service's address is translated to the instance's own.
pub(crate) const SLOT_DNAT: u8 = 2;

/// Others run it: routes lead there.
pub(crate) const SLOT_ROUTED: u8 = 4;
/// It is a machine at the other end of a tunnel.
pub(crate) const SLOT_TUNNEL: u8 = 8;

/// The state of a connection that is opened and not acknowledged yet.
pub(crate) const TCP_HANDSHAKE: u32 = 1;

/// What flows have in common that share an instance.
pub(crate) const fn shared_by(key: AffinityKey) -> u32 {
    match key {
        // The programs read no content: no plan has the last two.
        AffinityKey::Flow | AffinityKey::Inner | AffinityKey::Spi => 0,
        AffinityKey::Addresses => 1,
        AffinityKey::Source => 2,
    }
}

/// How a service picks.
pub(crate) mod by {
    pub(crate) const PREPARED: u32 = 0;
    pub(crate) const FLOW: u32 = 1;
    pub(crate) const SOURCE: u32 = 2;
    pub(crate) const RSS: u32 = 3;
    pub(crate) const RSS_WITHOUT_PORTS: u32 = 4;
}

/// What happens to packets of no service.
pub(crate) mod fallback {
    pub(crate) const HOST: u32 = 0;
    pub(crate) const DROP: u32 = 1;
    pub(crate) const PASS: u32 = 2;
}

/// The reasons of drops, in the order of the programs' counters.
pub(crate) const DROPS: [DropReason; 14] = [
    DropReason::Malformed,
    DropReason::HeaderLimit,
    DropReason::FragmentTimeout,
    DropReason::Unmatched,
    DropReason::Other,
    DropReason::TableFull,
    DropReason::NoInstance,
    DropReason::Spoofed,
    DropReason::UplinkDown,
    DropReason::InstanceLost,
    DropReason::Signal,
    DropReason::SignalRate,
    DropReason::Tunnel,
    DropReason::TooLarge,
];

#[repr(C)]
pub(crate) struct SlotRow {
    pub(crate) epoch: AtomicU32,
    pub(crate) state: AtomicU8,
    pub(crate) flags: AtomicU8,
    pub(crate) service: AtomicU16,
    pub(crate) ifindex: AtomicU32,
    pub(crate) mac: [AtomicU8; 6],
    pub(crate) port: AtomicU16,
    pub(crate) target_port: AtomicU16,
    zero: u16,
    pub(crate) vip4: AtomicU32,
    pub(crate) own4: AtomicU32,
    pub(crate) vip6: [AtomicU64; 2],
    pub(crate) own6: [AtomicU64; 2],
}

#[repr(C)]
pub(crate) struct ServiceRow {
    pub(crate) by: AtomicU32,
    pub(crate) drops_when_full: AtomicU32,
    pub(crate) actives: AtomicU32,
    pub(crate) vlan: AtomicU32,
    pub(crate) uplink: AtomicU32,
    pub(crate) filled: AtomicU32,
    pub(crate) shared_by: AtomicU32,
    pub(crate) half_open_limit: AtomicI32,
    pub(crate) refill_at: AtomicU32,
    zero: [u32; 7],
    pub(crate) moving: ServiceState,
    pub(crate) picks: [AtomicU16; PICKS],
    pub(crate) table: [AtomicU16; ENTRIES],
    pub(crate) active: [AtomicU16; SLOTS],
}

/// What the programs change of a service.
#[repr(C)]
pub(crate) struct ServiceState {
    pub(crate) taken: AtomicU32,
    pub(crate) half_open: AtomicI32,
    zero: [u32; 14],
}

#[repr(C)]
pub(crate) struct RuleRow {
    pub(crate) src: [AtomicU64; 2],
    pub(crate) src_mask: [AtomicU64; 2],
    pub(crate) dst: [AtomicU64; 2],
    pub(crate) dst_mask: [AtomicU64; 2],
    pub(crate) src_port: [AtomicU16; 2],
    pub(crate) dst_port: [AtomicU16; 2],
    pub(crate) service: AtomicU16,
    pub(crate) vlan: AtomicU16,
    pub(crate) protocol: AtomicU8,
    pub(crate) family: AtomicU8,
    pub(crate) uplinks: AtomicU8,
    zero: u8,
}

#[repr(C)]
pub(crate) struct UplinkRow {
    pub(crate) ifindex: AtomicU32,
    pub(crate) mac: [AtomicU8; 6],
    pub(crate) is_peer: AtomicU8,
    pub(crate) is_up: AtomicU8,
    pub(crate) unmatched_to: AtomicU32,
    pub(crate) other_to: AtomicU32,
}

#[repr(C)]
pub(crate) struct SettingsRow {
    pub(crate) layout: AtomicU64,
    pub(crate) by_hash: AtomicU64,
    pub(crate) generation: AtomicU64,
    pub(crate) hash_key: [AtomicU64; 2],
    pub(crate) timeouts: [AtomicU64; 8],
    pub(crate) rules: AtomicU32,
    more_zero: u32,
    pub(crate) unmatched: AtomicU32,
    pub(crate) other: AtomicU32,
    pub(crate) gateway_mac: [AtomicU8; 6],
    zero: [u8; 2],
    pub(crate) sweep_row: AtomicU32,
    pub(crate) back_ends: AtomicU32,
    pub(crate) shared_ns: AtomicU64,
    zeros: [u64; 6],
}

/// The order in which the flows of a table are looked at.
#[repr(C)]
pub(crate) struct OrderRow {
    pub(crate) head: AtomicU64,
    pub(crate) tail: AtomicU64,
    pub(crate) places: AtomicU32,
    is_walked: u32,
    walk_after: u64,
    zero: [u64; 4],
}

/// What inco writes and the programs read.
#[repr(C)]
pub(crate) struct World {
    pub(crate) settings: SettingsRow,
    pub(crate) order: [OrderRow; 2],
    pub(crate) uplinks: [UplinkRow; UPLINKS],
    pub(crate) slots: [SlotRow; SLOTS],
    pub(crate) rules: [[RuleRow; RULES]; BANKS],
    pub(crate) services: [ServiceRow; SERVICES],
}

#[repr(C)]
pub(crate) struct SlotCounts {
    pub(crate) to_packets: AtomicU64,
    pub(crate) to_bytes: AtomicU64,
    pub(crate) back_packets: AtomicU64,
    pub(crate) back_bytes: AtomicU64,
    pub(crate) new_flows: AtomicU64,
    pub(crate) expected_moves: AtomicU64,
    pub(crate) opened: AtomicU64,
    pub(crate) spoofed: AtomicU64,
    pub(crate) started: [AtomicU64; EPOCHS],
    pub(crate) ended: [AtomicU64; EPOCHS],
}

#[repr(C)]
pub(crate) struct ServiceCounts {
    pub(crate) offered_packets: AtomicU64,
    pub(crate) offered_bytes: AtomicU64,
    pub(crate) unserved: AtomicU64,
    pub(crate) unpinned: AtomicU64,
    pub(crate) ran_out: AtomicU64,
    pub(crate) recovered: AtomicU64,
    pub(crate) skipped: AtomicU64,
    pub(crate) flooded: AtomicU64,
}

#[repr(C)]
pub(crate) struct UplinkCounts {
    pub(crate) received_packets: AtomicU64,
    pub(crate) received_bytes: AtomicU64,
    pub(crate) sent_packets: AtomicU64,
    pub(crate) sent_bytes: AtomicU64,
    pub(crate) dropped: AtomicU64,
    pub(crate) to_host: AtomicU64,
    pub(crate) answered: AtomicU64,
    pub(crate) passed: AtomicU64,
}

/// What one CPU counts.
#[repr(C)]
pub(crate) struct Counts {
    pub(crate) drops: [AtomicU64; REASONS],
    pub(crate) table_full: AtomicU64,
    pub(crate) started: [AtomicU64; 2],
    pub(crate) ended: [AtomicU64; 2],
    pub(crate) moved: AtomicU64,
    pub(crate) mark: AtomicU64,
    pub(crate) lost_events: AtomicU64,
    pub(crate) fresh: [u64; FLOW_BYTES / 8],
    event: [u32; 2],
    more_zero: [u64; 5],
    pub(crate) uplinks: [UplinkCounts; UPLINKS],
    pub(crate) services: [ServiceCounts; SERVICES],
    pub(crate) slots: [SlotCounts; SLOTS],
}

/// What an event begins with that wakes inco up.
pub(crate) const EVENT_ALARM: u32 = 1;

/// Places that the programs keep free.
pub(crate) const SPARE_PLACES: u32 = 1024;
/// Rows of counters beside those of the CPUs: the sweep's and inco's own.
pub(crate) const OWN_ROWS: usize = 2;
/// Bytes of a key, and of an entry's value, of the two tables.
pub(crate) const KEY_BYTES: [usize; 2] = [16, 40];
/// Bytes of an entry's value.
pub(crate) const FLOW_BYTES: usize = size_of::<Flow>();

/// The value of an entry.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flow {
    pub(crate) pin: u64,
    pub(crate) seen: u64,
    pub(crate) packets: [u64; 2],
    pub(crate) bytes: [u64; 2],
    pub(crate) pinned_at: u64,
    pub(crate) outside: u64,
    pub(crate) place: u64,
    pub(crate) opener: u8,
    pub(crate) inside: u8,
    zero: u16,
    pub(crate) tcp: u32,
}

impl Flow {
    /// The same, if it has the length of one.
    pub(crate) fn of(bytes: &[u8]) -> Option<Flow> {
        bytes.try_into().ok().map(Flow::read)
    }

    /// An entry as the kernel copies it out.
    pub(crate) fn read(bytes: &[u8; FLOW_BYTES]) -> Flow {
        let word = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[8 * at..8 * at + 8]);
            u64::from_ne_bytes(word)
        };
        let last = 9 * 8;
        Flow {
            pin: word(0),
            seen: word(1),
            packets: [word(2), word(3)],
            bytes: [word(4), word(5)],
            pinned_at: word(6),
            outside: word(7),
            place: word(8),
            opener: bytes[last] & 1,
            inside: bytes[last + 1] & 1,
            zero: 0,
            tcp: u32::from_ne_bytes([bytes[last + 4], bytes[last + 5], bytes[last + 6], bytes[last + 7]]),
        }
    }

    pub(crate) const fn slot(&self) -> u16 {
        (self.pin & 0x3ff) as u16
    }

    pub(crate) const fn service(&self) -> u16 {
        (self.pin >> 10 & 0x3f) as u16
    }

    pub(crate) const fn epoch(&self) -> u32 {
        (self.pin >> 32) as u32
    }
}

const _: () = assert!(FLOW_BYTES == 80 && size_of::<SlotRow>() == 64 && size_of::<RuleRow>() == 80);
const _: () = assert!(size_of::<SettingsRow>() == 192 && size_of::<UplinkRow>() == 20);
const _: () = assert!(size_of::<OrderRow>() == 64);

/// Writes bytes that the other side reads one by one.
pub(crate) fn store_bytes<const N: usize>(to: &[AtomicU8; N], from: [u8; N]) {
    for (to, from) in to.iter().zip(from) {
        to.store(from, Relaxed);
    }
}

/// Writes two words.
pub(crate) fn store_words(to: &[AtomicU64; 2], from: [u64; 2]) {
    for (to, from) in to.iter().zip(from) {
        to.store(from, Relaxed);
    }
}
