//! What a driver counts, as the control plane reads it.

use model::{DropReason, Generation, Nanos, Slot};
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

/// How one worker fares, as read by the control plane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkerTotals {
    /// The newest snapshot that it works by.
    pub generation: u64,
    /// Packets received from uplinks.
    pub received: u64,
    /// Turns of its loop.
    pub turns: u64,
    /// Turns that moved a packet.
    pub busy_turns: u64,
    /// Nanoseconds that it did not sleep.
    pub awake_ns: u64,
    /// Duration of turns that moved packets, in nanoseconds.
    pub busy_ns: u64,
    /// The longest time between two turns without sleep, in nanoseconds.
    pub longest_gap_ns: u64,
    /// Packets that are no flow of a service and were passed to an uplink.
    pub passed: u64,
    /// Packets handed to another worker.
    pub handed_off: u64,
    /// Packets taken from other workers.
    pub taken_over: u64,
    /// Flows in its table.
    pub live_flows: u64,
    /// Flows that its table can hold, IPv4 and IPv6 together.
    pub flow_limit: u64,
    /// Packets of flows that found no place in the table.
    pub table_full: u64,
    /// Moves of flows whose packets were held meanwhile, in services that allow it.
    pub held_moves: u64,
    /// Those of them that went on before all that they had sent was back: a limit was reached.
    pub early_moves: u64,
    /// Fragments waiting for their first one.
    pub fragments_waiting: u64,
    /// Events that found no room on their way to the control plane. Always 0 unless there is a bug.
    pub events_lost: u64,
    /// Packets between its stages: fragments and packets of moving flows that wait, frames in hand-off rings towards it.
    pub held: u64,
}

/// Every counter of a switch at about one moment, summed over workers. The caller keeps one and has it filled again each
/// time.
#[derive(Clone, Debug, PartialEq)]
pub struct SwitchReading {
    /// When they were read.
    pub at: Nanos,
    /// How old they were then: 0 where the switch counts in this process.
    pub age: Nanos,
    /// The newest plan by which every worker works. What was pinned by older ones is in the counters.
    pub acknowledged: Generation,
    /// By slot, [`Slot::LIMIT`] of them; only those that have had an instance need be filled.
    pub slots: Box<[SlotCounters]>,
    /// By service.
    pub services: Vec<ServiceCounters>,
    /// By uplink.
    pub uplinks: Vec<UplinkCounters>,
    /// By worker.
    pub workers: Vec<WorkerTotals>,
    /// By reason.
    pub drops: [u64; DropReason::COUNT],
}

impl SwitchReading {
    /// All zero, for a switch with that many services, uplinks and workers.
    pub fn new(services: usize, uplinks: usize, workers: usize) -> SwitchReading {
        SwitchReading {
            at: Nanos::ZERO,
            age: Nanos::ZERO,
            acknowledged: Generation(0),
            slots: vec![SlotCounters::default(); Slot::LIMIT].into_boxed_slice(),
            services: vec![ServiceCounters::default(); services],
            uplinks: vec![UplinkCounters::default(); uplinks],
            workers: vec![WorkerTotals::default(); workers],
            drops: [0; DropReason::COUNT],
        }
    }

    /// Packets received on all uplinks.
    pub fn offered(&self) -> u64 {
        self.uplinks.iter().map(|u| u.received_packets).sum()
    }

    /// Packets sent on all uplinks: returned by instances, or passed.
    pub fn sent(&self) -> u64 {
        self.uplinks.iter().map(|u| u.sent_packets).sum()
    }

    /// Packets dropped, for whatever reason.
    pub fn dropped(&self) -> u64 {
        self.drops.iter().sum()
    }

    /// Packets that functions made themselves.
    pub fn originated(&self) -> u64 {
        self.slots.iter().map(|s| s.originated).sum()
    }

    /// Packets inside: in rings, in functions, waiting for a first fragment, or between workers. At rest,
    /// offered + originated = sent + dropped + in flight.
    pub fn in_flight(&self) -> u64 {
        let in_instances: u64 = self
            .slots
            .iter()
            .map(|s| (s.to_packets + s.originated).saturating_sub(s.back_packets + s.lost + s.kept))
            .sum();
        in_instances + self.workers.iter().map(|w| w.held).sum::<u64>()
    }
}
