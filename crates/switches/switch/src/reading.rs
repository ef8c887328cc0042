//! What a driver counts, as the control plane reads it. The counters are rows of `counter_table.rs` in `model`.

use model::{DropReason, Generation, Nanos, Percentiles, Slot};
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
    /// Flows, mappings or sessions of which it holds state now, if it says so.
    pub held_flows: Option<u64>,
    /// How long packets took from ring to ring in its last second, if it says so.
    pub took: Option<Percentiles>,
}

macro_rules! reading {
    (
        { $(#[$outer:meta])* $level:ident { $($own:tt)* } }
        workers { $(
            #[doc = $help:tt] $field:ident: $kind:ident
            $(=> $api:ident: $type:ident $($metric:literal)?)? $(, drop $reason:literal)?;
        )* }
        others { $(
            #[doc = $other_help:tt] $other:ident: $other_kind:ident
            $(=> $other_api:ident: $other_type:ident $($other_metric:literal)?)?;
        )* }
        $(of_instances $sums:tt)?
    ) => {
        $(#[$outer])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        pub struct $level {
            $(#[doc = $help] pub $field: u64,)*
            $(#[doc = $other_help] pub $other: u64,)*
            $($own)*
        }
    };
}

model::slot_counters! { reading! {
    /// One instance's counters, summed over all workers. All increase while the slot is in use, except gauges. A
    /// counter that falls has restarted from 0.
    SlotCounters {
        /// The function's own counters, if published.
        pub function: Option<FunctionCounters>,
        /// Memory of the instance's container in bytes, if its engine tells it.
        pub container_memory_bytes: Option<u64>,
    }
} }

model::service_counters! { reading! {
    /// One service's counters, summed over all workers.
    ServiceCounters {}
} }

model::uplink_counters! { reading! {
    /// One uplink's counters.
    UplinkCounters {}
} }

model::worker_counters! { reading! {
    /// One worker's counters.
    WorkerTotals {}
} }

impl SlotCounters {
    /// Memory of the instance in bytes, if it is known: as its function tells it, or else that of its container.
    pub fn memory_bytes(&self) -> Option<u64> {
        let told = self.function.map(|function| function.memory_bytes);
        told.filter(|bytes| *bytes > 0).or(self.container_memory_bytes)
    }
}

/// By how much a counter has grown. One that fell has restarted from 0.
#[inline]
pub fn grown(now: u64, before: u64) -> u64 {
    if now < before { now } else { now - before }
}

macro_rules! slot_arithmetic {
    (
        {}
        workers { $(
            #[doc = $help:tt] $field:ident: $kind:ident
            $(=> $api:ident: $type:ident $($metric:literal)?)? $(, drop $reason:literal)?;
        )* }
        others $others:tt
    ) => {
        impl SlotCounters {
            /// Takes over what the driver counts; what others count stays.
            pub fn set_counted(&mut self, counted: &SlotCounters) {
                $(self.$field = counted.$field;)*
            }

            /// What the driver's counters have grown by since then. Gauges, and what others count of the present
            /// instance, are as they stand.
            pub fn grown_since(&self, before: &SlotCounters) -> SlotCounters {
                SlotCounters { $($field: slot_arithmetic!(grown $kind self.$field, before.$field),)* ..*self }
            }

            /// Adds the driver's counters of another instance. Gauges, and what others count, stay.
            pub fn add(&mut self, other: &SlotCounters) {
                $(slot_arithmetic!(add $kind self.$field, other.$field);)*
            }

            /// Packets dropped on the way to the instance or in it, by reason.
            pub fn drops(&self) -> impl Iterator<Item = (&'static str, u64)> {
                let by_function = self.function.map_or(0, |function| function.dropped);
                [$($(($reason, self.$field),)?)* ("function", by_function)].into_iter()
            }
        }
    };
    (grown gauge $now:expr, $before:expr) => { $now };
    (grown $kind:ident $now:expr, $before:expr) => { grown($now, $before) };
    (add gauge $sum:expr, $of:expr) => {};
    (add $kind:ident $sum:expr, $of:expr) => { $sum = $sum.wrapping_add($of) };
}

model::slot_counters! { slot_arithmetic! {} }

/// Every counter of a switch at about one moment, summed over workers. The caller keeps one and has it filled again
/// each time.
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

    /// Packets that went into the network of instances, and stay there.
    pub fn delivered(&self) -> u64 {
        self.slots.iter().map(|s| s.delivered).sum()
    }

    /// Packets inside: in rings, in functions, waiting for a first fragment, or between workers. At rest,
    /// offered + originated = sent + delivered + dropped + in flight.
    pub fn in_flight(&self) -> u64 {
        let in_instances: u64 = self
            .slots
            .iter()
            .map(|s| {
                (s.to_packets + s.originated).saturating_sub(s.back_packets + s.lost + s.kept + s.delivered)
            })
            .sum();
        in_instances + self.workers.iter().map(|w| w.held).sum::<u64>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_grow_and_add_up_while_gauges_stand() {
        let before = SlotCounters {
            to_packets: 10,
            consumed: 50,
            live_flows: 4,
            throttled_ns: 7,
            ..SlotCounters::default()
        };
        let now = SlotCounters {
            to_packets: 15,
            // Attached anew.
            consumed: 3,
            live_flows: 2,
            throttled_ns: 9,
            ..before
        };
        let grown = now.grown_since(&before);
        let figures = (
            grown.to_packets,
            grown.consumed,
            grown.live_flows,
            grown.throttled_ns,
        );
        assert_eq!(figures, (5, 3, 2, 9));
        let mut sum = before;
        sum.add(&grown);
        let figures = (sum.to_packets, sum.consumed, sum.live_flows, sum.throttled_ns);
        assert_eq!(figures, (15, 53, 4, 7));
        sum.set_counted(&SlotCounters::default());
        let figures = (sum.to_packets, sum.live_flows, sum.throttled_ns);
        assert_eq!(figures, (0, 0, 7));
    }

    #[test]
    fn memory_is_what_the_function_tells_or_its_container_has() {
        let memory = |told: Option<u64>, container_memory_bytes: Option<u64>| {
            let function = told.map(|memory_bytes| FunctionCounters {
                memory_bytes,
                ..FunctionCounters::default()
            });
            let mut counters = SlotCounters {
                function,
                container_memory_bytes,
                ..SlotCounters::default()
            };
            // What a driver counts has nothing to do with it.
            counters.set_counted(&SlotCounters::default());
            counters.grown_since(&SlotCounters::default()).memory_bytes()
        };
        assert_eq!(memory(None, None), None);
        assert_eq!(memory(None, Some(7)), Some(7));
        assert_eq!(memory(Some(5), Some(7)), Some(5));
        assert_eq!(memory(Some(0), Some(7)), Some(7), "it does not tell");
    }

    #[test]
    fn an_instance_has_a_drop_for_each_reason() {
        let counters = SlotCounters {
            ring_drops: 1,
            too_large: 2,
            lost: 3,
            function: Some(FunctionCounters {
                dropped: 4,
                ..FunctionCounters::default()
            }),
            ..SlotCounters::default()
        };
        let drops: Vec<_> = counters.drops().collect();
        assert_eq!(
            drops,
            [("ring_full", 1), ("too_large", 2), ("lost", 3), ("function", 4)]
        );
    }
}
