//! Counters that a worker writes and the control plane reads: the groups `workers` of `counter_table.rs` in `model`.
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

    /// Returns the value and resets it to 0. A maximum that the worker raises at that moment may be lost.
    pub fn reset(&self) -> u64 {
        self.0.swap(0, Ordering::Relaxed)
    }
}

macro_rules! block {
    (
        { $(#[$outer:meta])* $level:ident, sums into $sums:ty }
        workers { $(
            #[doc = $help:tt] $field:ident: $kind:ident
            $(=> $api:ident: $type:ident $($metric:literal)?)? $(, drop $reason:literal)?;
        )* }
        others $others:tt
        $(of_instances $of_instances:tt)?
    ) => {
        $(#[$outer])*
        #[derive(Debug, Default)]
        #[repr(align(64))]
        pub struct $level { $(#[doc = $help] pub $field: Counter,)* }

        impl $level {
            /// Begins a sum over workers with these figures, whatever it was.
            pub fn begin(&self, sum: &mut $sums) {
                $(sum.$field = self.$field.get();)*
            }

            /// Adds these figures to a sum over workers.
            pub fn add_to(&self, sum: &mut $sums) {
                $(sum.$field = sum.$field.wrapping_add(self.$field.get());)*
            }
        }
    };
}

model::slot_counters! { block! {
    /// One worker's counters of one instance.
    SlotCounters, sums into switch::SlotCounters
} }

model::service_counters! { block! {
    /// One worker's counters of one service.
    ServiceCounters, sums into switch::ServiceCounters
} }

model::uplink_counters! { block! {
    /// One worker's counters of one uplink.
    UplinkCounters, sums into switch::UplinkCounters
} }

model::worker_counters! { block! {
    /// Counters of the worker itself.
    WorkerFigures, sums into switch::WorkerTotals
} }

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

    /// Counts packets with `bytes` bytes in all as offered to a service: once each, when they leave the worker for
    /// an instance's ring or are dropped.
    #[inline]
    pub(crate) fn offer(&self, service: ServiceId, packets: u64, bytes: u64) {
        let counters = &self.services[service];
        counters.offered_packets.add(packets);
        counters.offered_bytes.add(bytes);
    }
}
