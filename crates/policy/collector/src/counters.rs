use model::{DropReason, Nanos, Slot};
use serde::{Deserialize, Serialize};

/// What a function that runs our runner publishes about itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FunctionCounters {
    /// Packets that it processed.
    pub packets: u64,
    /// Packets that it dropped on purpose.
    pub dropped: u64,
    /// Nanoseconds in which it was busy.
    pub busy_ns: u64,
    /// Bytes of memory that it has.
    pub memory_bytes: u64,
}

/// One instance's counters, summed over all workers. All count up for as long as the slot is used, except for those
/// called a gauge. One that falls is taken to have begun again at 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlotCounters {
    /// Packets put into the instance's ring.
    pub to_packets: u64,
    /// Their bytes.
    pub to_bytes: u64,
    /// Packets back from it.
    pub back_packets: u64,
    /// Their bytes.
    pub back_bytes: u64,
    /// Packets that found its ring full.
    pub ring_drops: u64,
    /// Packets that did not fit its port's buffers.
    pub too_large: u64,
    /// Packets lost with it when it failed.
    pub lost: u64,
    /// Packets that it took and never gave back, known when it left in good order.
    pub kept: u64,
    /// Packets that it made itself.
    pub originated: u64,
    /// Packets back that are of no flow of it.
    pub return_unmatched: u64,
    /// Flows pinned to it.
    pub new_flows: u64,
    /// Those of them whose instance had failed.
    pub expected_moves: u64,
    /// Gauge: flows pinned to it now.
    pub live_flows: u64,
    /// Gauge: descriptors in the ring towards it.
    pub ring_used: u64,
    /// Gauge: descriptors that this ring has; 0 where there is no ring.
    pub ring_slots: u64,
    /// Gauge: packets in the ring back from it.
    pub back_used: u64,
    /// Descriptors that it took out of the ring towards it.
    pub consumed: u64,
    /// Times that a worker saw its ring full, or a quarter full twice in a row.
    pub hot: u64,
    /// Nanoseconds in which its quota held it up; 0 where nobody tells.
    pub throttled_ns: u64,
    /// What the function says of itself, where it does.
    pub function: Option<FunctionCounters>,
}

/// One service's counters, summed over all workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceCounters {
    /// Packets of its flows, served or dropped.
    pub offered_packets: u64,
    /// Their bytes.
    pub offered_bytes: u64,
    /// Packets dropped because no instance takes flows.
    pub unserved: u64,
    /// Packets sent by hash without a pin because the flow table was full.
    pub unpinned: u64,
    /// New flows given to an instance although none fitted.
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
    /// Packets for it that were dropped.
    pub dropped: u64,
    /// Packets that its device dropped before the switch could take them, as the device counts them.
    pub missed_packets: u64,
    /// Packets that its device took from the switch and could not send, as the device counts them.
    pub failed_packets: u64,
}

/// One worker's counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerCounters {
    /// Turns of its loop.
    pub turns: u64,
    /// Nanoseconds in which it did not sleep.
    pub awake_ns: u64,
    /// Nanoseconds of turns that moved a packet.
    pub busy_ns: u64,
    /// The longest time between two turns without a sleep, in nanoseconds.
    pub longest_gap_ns: u64,
}

/// One reading of all counters. The caller keeps it and fills it again each time.
#[derive(Clone, Debug, PartialEq)]
pub struct RawCounters {
    /// When they were read.
    pub at: Nanos,
    /// How old they were then: 0 for the soft switch.
    pub age: Nanos,
    /// By slot, [`Slot::LIMIT`] of them; only those of assigned slots need be filled.
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
    /// All zero, with places for that many services, uplinks and workers.
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
