use model::{DropReason, Nanos, Slot};
use serde::{Deserialize, Serialize};

/// The counters that a function publishes through its page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FunctionCounters {
    /// Packets processed.
    pub packets: u64,
    /// Packets dropped on purpose.
    pub dropped: u64,
    /// Busy time in nanoseconds.
    pub busy_ns: u64,
    /// Resident memory in bytes.
    pub memory_bytes: u64,
}

/// One instance's counters, summed over all workers. All increase while the slot is in use, except gauges. A
/// counter that falls has restarted from 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlotCounters {
    /// Packets put into the instance's ring.
    pub to_packets: u64,
    /// Their bytes.
    pub to_bytes: u64,
    /// Packets returned from it.
    pub back_packets: u64,
    /// Bytes of `back_packets`.
    pub back_bytes: u64,
    /// Packets dropped because its ring was full.
    pub ring_drops: u64,
    /// Packets too large for its port's buffers.
    pub too_large: u64,
    /// Packets in its rings when it failed.
    pub lost: u64,
    /// Packets it took and did not return, known when it shut down in order.
    pub kept: u64,
    /// Packets it created itself.
    pub originated: u64,
    /// Returned packets of no flow of it.
    pub return_unmatched: u64,
    /// Flows pinned to it.
    pub new_flows: u64,
    /// Those of them re-pinned after their instance failed.
    pub expected_moves: u64,
    /// Gauge: flows currently pinned to it.
    pub live_flows: u64,
    /// Gauge: descriptors in the ring towards it.
    pub ring_used: u64,
    /// Gauge: size of that ring in descriptors; 0 without a ring.
    pub ring_slots: u64,
    /// Gauge: packets in the return ring.
    pub back_used: u64,
    /// Descriptors it has consumed.
    pub consumed: u64,
    /// How often a worker saw its ring full, or a quarter full twice in a row.
    pub hot: u64,
    /// Time throttled by its quota, in nanoseconds; 0 if unknown.
    pub throttled_ns: u64,
    /// The function's own counters, if published.
    pub function: Option<FunctionCounters>,
}

/// One service's counters, summed over all workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceCounters {
    /// Packets of its flows, forwarded or dropped.
    pub offered_packets: u64,
    /// Their bytes.
    pub offered_bytes: u64,
    /// Packets dropped because no instance is Active.
    pub unserved: u64,
    /// Packets forwarded by hash without a pin because the flow table was full.
    pub unpinned: u64,
    /// New flows scheduled to an instance that they did not fit.
    pub overcommitted: u64,
}

/// One uplink's counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UplinkCounters {
    /// Packets received.
    pub received_packets: u64,
    /// Their bytes.
    pub received_bytes: u64,
    /// Packets sent.
    pub sent_packets: u64,
    /// Their bytes.
    pub sent_bytes: u64,
    /// Packets dropped on the way out.
    pub dropped: u64,
    /// Packets that its device dropped before the switch received them, as counted by the device.
    pub missed_packets: u64,
    /// Packets that the switch gave to its device and the device did not send, as counted by the device.
    pub failed_packets: u64,
}

/// One worker's counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerCounters {
    /// Iterations of its loop.
    pub turns: u64,
    /// Time not asleep, in nanoseconds.
    pub awake_ns: u64,
    /// Duration of turns that moved packets, in nanoseconds.
    pub busy_ns: u64,
    /// The longest time between two turns without sleep, in nanoseconds.
    pub longest_gap_ns: u64,
}

/// One reading of all counters. The caller reuses it for every sample.
#[derive(Clone, Debug, PartialEq)]
pub struct RawCounters {
    /// Time of the reading.
    pub at: Nanos,
    /// The counters' age at that time: 0 for the soft switch.
    pub age: Nanos,
    /// By slot, [`Slot::LIMIT`] of them; only assigned slots need to be filled.
    pub slots: Box<[SlotCounters]>,
    /// By service.
    pub services: Vec<ServiceCounters>,
    /// By uplink.
    pub uplinks: Vec<UplinkCounters>,
    /// By worker.
    pub workers: Vec<WorkerCounters>,
    /// By reason.
    pub drops: [u64; DropReason::COUNT],
}

impl RawCounters {
    /// All zero, for that many services, uplinks and workers.
    pub fn new(services: usize, uplinks: usize, workers: usize) -> RawCounters {
        RawCounters {
            at: Nanos::ZERO,
            age: Nanos::ZERO,
            slots: vec![SlotCounters::default(); Slot::LIMIT].into_boxed_slice(),
            services: vec![ServiceCounters::default(); services],
            uplinks: vec![UplinkCounters::default(); uplinks],
            workers: vec![WorkerCounters::default(); workers],
            drops: [0; DropReason::COUNT],
        }
    }
}
