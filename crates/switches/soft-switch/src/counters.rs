//! Counters that a worker writes and the control plane reads.
//!
//! Each counter has one writer, its worker, so adding is a load and a store, not a locked instruction. A reader sees
//! each counter at some moment of the last few hundred nanoseconds; two counters of one packet may be seen apart.

use std::sync::atomic::{AtomicU64, Ordering};

use model::{DropReason, ServiceId};

use crate::id_map::{ServiceMap, SlotMap, UplinkMap};

/// A counter with one writer.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds. Only the counter's worker may call it.
    #[inline]
    pub fn add(&self, n: u64) {
        self.0
            .store(self.0.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    /// Replaces the value: for gauges.
    #[inline]
    pub fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    /// Raises the value to `value` where it is lower.
    #[inline]
    pub fn raise(&self, value: u64) {
        if value > self.0.load(Ordering::Relaxed) {
            self.0.store(value, Ordering::Relaxed);
        }
    }

    /// The value.
    #[inline]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// The value, which starts again at 0. A maximum that the worker raises at that moment may be lost.
    pub fn reset(&self) -> u64 {
        self.0.swap(0, Ordering::Relaxed)
    }
}

macro_rules! block {
    ($(#[$doc:meta])* $name:ident, sums into $sums:ty { $($(#[$field_doc:meta])* $field:ident,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Default)]
        #[repr(align(64))]
        pub struct $name { $($(#[$field_doc])* pub $field: Counter,)* }

        impl $name {
            /// Adds these figures to a sum over workers.
            pub fn add_to(&self, sum: &mut $sums) {
                $(sum.$field = sum.$field.wrapping_add(self.$field.get());)*
            }
        }
    };
}

block! {
    /// What one worker did for one instance.
    SlotCounters, sums into switch::SlotCounters {
        /// Packets put into the instance's ring.
        to_packets,
        /// Their bytes.
        to_bytes,
        /// Packets taken out of the instance's ring.
        back_packets,
        /// Their bytes.
        back_bytes,
        /// Packets for the instance that found its ring full.
        ring_drops,
        /// Packets that did not fit the port's buffers.
        too_large,
        /// Packets lost with the instance when it failed.
        lost,
        /// Packets that the instance took and never gave back, known when it left in good order.
        kept,
        /// Packets that came back while none was outstanding: the function made them.
        originated,
        /// Packets back whose 5-tuple is of no flow of the instance, where returns are counted per flow.
        return_unmatched,
        /// Flows pinned to it.
        new_flows,
        /// Flows pinned to it because the instance that they had before failed, or left the plan before they ended.
        expected_moves,
        /// Flows pinned to it now.
        live_flows,
        /// Descriptors in the ring towards it now.
        ring_used,
        /// Descriptors that this ring has.
        ring_slots,
        /// Packets in the ring back from it now.
        back_used,
        /// Its position as a consumer: descriptors taken out of the ring towards it since it was attached.
        consumed,
        /// Ends of a burst at which the ring was at least a quarter full twice in a row, or full.
        hot,
    }
}

block! {
    /// What one worker did for one service.
    ServiceCounters, sums into switch::ServiceCounters {
        /// Packets of its flows, served or dropped.
        offered_packets,
        /// Their bytes.
        offered_bytes,
        /// Packets dropped because no instance takes flows.
        unserved,
        /// Packets sent by hash without a pin because the flow table was full.
        unpinned,
        /// New flows given to an instance although none fitted.
        overcommitted,
    }
}

block! {
    /// What one worker did at one uplink.
    UplinkCounters, sums into switch::UplinkCounters {
        /// Packets received.
        received_packets,
        /// Their bytes.
        received_bytes,
        /// Packets sent.
        sent_packets,
        /// Their bytes.
        sent_bytes,
        /// Packets for it that found its queue full, or it down.
        dropped,
    }
}

block! {
    /// How one worker fares.
    WorkerFigures, sums into switch::WorkerTotals {
        /// The newest snapshot that it works by.
        generation,
        /// Packets received from uplinks.
        received,
        /// Turns of its loop.
        turns,
        /// Turns that moved a packet.
        busy_turns,
        /// Nanoseconds that it did not sleep.
        awake_ns,
        /// Nanoseconds of turns that moved a packet.
        busy_ns,
        /// The longest time between two turns without a sleep, in nanoseconds.
        longest_gap_ns,
        /// Packets that are no flow of a service and were passed to an uplink.
        passed,
        /// Packets handed to another worker.
        handed_off,
        /// Packets taken from other workers.
        taken_over,
        /// Flows in its table.
        live_flows,
        /// Flows that its table can hold, IPv4 and IPv6 together.
        flow_limit,
        /// Packets of flows that found no place in the table.
        table_full,
        /// Moves of flows whose packets were held meanwhile, in services that allow it.
        held_moves,
        /// Those of them that went on before all that they had sent was back: a limit was reached.
        early_moves,
        /// Fragments waiting for their first one.
        fragments_waiting,
        /// Events that found no room on their way to the control plane. Always 0 unless there is a bug.
        events_lost,
        /// Packets between its stages: fragments and packets of moving flows that wait, frames in hand-off rings towards it.
        held,
    }
}

/// All counters of one worker.
#[derive(Debug)]
pub struct WorkerCounters {
    /// Per slot.
    pub slots: SlotMap<SlotCounters>,
    /// Per service.
    pub services: ServiceMap<ServiceCounters>,
    /// Per uplink.
    pub uplinks: UplinkMap<UplinkCounters>,
    /// Per reason.
    pub drops: [Counter; DropReason::COUNT],
    /// The worker itself.
    pub figures: WorkerFigures,
}

impl Default for WorkerCounters {
    fn default() -> Self {
        WorkerCounters {
            slots: SlotMap::default(),
            services: ServiceMap::default(),
            uplinks: UplinkMap::default(),
            drops: std::array::from_fn(|_| Counter::default()),
            figures: WorkerFigures::default(),
        }
    }
}

impl WorkerCounters {
    /// Counts `n` packets dropped.
    #[inline]
    pub fn drop_packets(&self, reason: DropReason, n: u64) {
        if let Some(counter) = self.drops.get(reason.index()) {
            counter.add(n);
        }
    }

    /// Counts packets, so many bytes in all, as offered to a service: once each, when they leave the worker for an instance's
    /// ring or are dropped.
    #[inline]
    pub(crate) fn offer(&self, service: ServiceId, packets: u64, bytes: u64) {
        let counters = &self.services[service];
        counters.offered_packets.add(packets);
        counters.offered_bytes.add(bytes);
    }
}
