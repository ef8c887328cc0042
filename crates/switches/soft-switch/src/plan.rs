//! The snapshot that workers steer by: services, instances and what happens to the rest.
//!
//! The control plane builds a [`Plan`], publishes it with one atomic store, and keeps each published plan until every
//! worker has acknowledged a newer one, so that a worker never frees memory. Loads change every millisecond and lie
//! beside the plan in a [`LoadBoard`] of plain atomics: a plan a millisecond would be a thousand allocations a second
//! for figures that need no consistency among themselves.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use model::{
    Fallback, Generation, InstanceId, InstanceState, Match, Nanos, ServiceId, Slot, TableFull, Tuple,
    UplinkId, WorkerId,
};
use scheduling::Scheduler;

use crate::counters::SERVICE_LIMIT;
use crate::edit::{Edits, PlanError};

/// What a worker knows of a service.
#[derive(Clone, Debug)]
pub struct ServicePlan {
    /// Which service. Its place in [`Plan::services`] is the order in which matches are tried.
    pub id: ServiceId,
    /// Its packets.
    pub matches: Match,
    /// Whether both directions of a flow go to one instance.
    pub symmetric: bool,
    /// Its uplinks: data port k of an instance belongs to the k-th one. One or two.
    pub uplinks: Vec<UplinkId>,
    /// The scheduler that each worker starts with.
    pub scheduler: Scheduler,
    /// Share of an instance's capacity that scheduling may use, 0 to 1.
    pub fit: f32,
    /// What happens when the flow table is full.
    pub table_full: TableFull,
    /// Whether returned packets are counted per flow.
    pub return_counters: bool,
    /// Whether its flows may be moved while their instance is well: a flow whose pin is taken away then has its packets
    /// held until those before are back, for at most a millisecond. Needs returned packets counted per flow.
    pub relaxed: bool,
}

/// What a worker knows of an instance.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SlotPlan {
    /// Which instance has the slot.
    pub instance: InstanceId,
    /// Of which service.
    pub service: ServiceId,
    /// Whether it takes new flows, serves those it has, or neither.
    pub state: InstanceState,
    /// What it can process, in the unit of the service's metric.
    pub capacity: f32,
    /// Since when it has taken new flows, where it does.
    pub active_since: Nanos,
    /// Share of new flows, out of 256, for schedulers that go by weight.
    pub weight: u16,
    /// Queue pairs of each of its data ports; as many as there are workers for a sink.
    pub queues: u16,
    /// What the switch changes in its packets.
    pub edits: Edits,
}

/// The immutable snapshot. Workers read its pointer once per turn.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// Counts the plans published.
    pub generation: Generation,
    /// Services in the order in which their matches are tried.
    pub services: Vec<ServicePlan>,
    /// Instances by slot.
    pub slots: Vec<Option<SlotPlan>>,
    /// What happens to IP packets of no service.
    pub unmatched: Fallback,
    /// What happens to packets that are not IP.
    pub other: Fallback,
}

impl Plan {
    /// The instance in that slot.
    #[inline]
    pub fn slot(&self, slot: Slot) -> Option<&SlotPlan> {
        self.slots.get(slot.index())?.as_ref()
    }

    /// Whether the soft switch can carry it out.
    ///
    /// # Errors
    /// [`PlanError`]: what it cannot.
    pub fn validate(&self) -> Result<(), PlanError> {
        for (slot, slot_plan) in (0..).map(Slot).zip(&self.slots) {
            let edits = slot_plan.as_ref().map(|of| of.edits).unwrap_or_default();
            for edit in [edits.to_instance, edits.to_uplink] {
                if let Some(what) = edit.unsupported() {
                    return Err(PlanError::Edit { slot, what });
                }
            }
        }
        Ok(())
    }

    /// The worker that is at home to the queue by which `worker` reaches the instance in that slot.
    #[inline]
    pub fn home(&self, slot: Slot, worker: WorkerId, workers: usize) -> WorkerId {
        let queues = self.slot(slot).map_or(1, |p| usize::from(p.queues.max(1)));
        WorkerId(home(slot, worker.index() % queues, queues, workers) as u8)
    }

    /// The service of that id.
    pub fn service(&self, id: ServiceId) -> Option<&ServicePlan> {
        self.services.iter().find(|s| s.id == id)
    }

    /// The service that a packet with these addresses, received on that uplink, belongs to, by its place.
    /// A symmetric service also takes the packets of the opposite direction.
    #[inline]
    pub fn classify(&self, tuple: impl Fn() -> Tuple, uplink: UplinkId) -> Option<usize> {
        self.services.iter().position(|service| {
            service.uplinks.contains(&uplink) && (service.matches.is_any() || service.takes(&tuple))
        })
    }
}

impl ServicePlan {
    /// Whether a packet with these addresses is its own: out of the way of services that take all.
    #[inline(never)]
    fn takes(&self, tuple: &impl Fn() -> Tuple) -> bool {
        let tuple = tuple();
        let back = || Tuple {
            src: tuple.dst,
            dst: tuple.src,
            src_port: tuple.dst_port,
            dst_port: tuple.src_port,
            ..tuple
        };
        self.matches.matches(&tuple) || self.symmetric && self.matches.matches(&back())
    }
}

/// The worker at home to a queue of an instance: its own where there is a queue per worker; else instances are dealt
/// out, so that those of one queue do not all burden the first worker.
pub(crate) fn home(slot: Slot, queue: usize, queues: usize, workers: usize) -> usize {
    if queues >= workers {
        queue % workers
    } else {
        (slot.index() + queue) % workers
    }
}

/// Loads that the collector publishes and workers read, each in the unit of its service's metric.
#[derive(Debug)]
pub struct LoadBoard {
    epoch: AtomicU64,
    loads: Box<[AtomicU32]>,
    expected: Box<[AtomicU32]>,
}

impl Default for LoadBoard {
    fn default() -> Self {
        LoadBoard {
            epoch: AtomicU64::new(0),
            loads: (0..Slot::LIMIT).map(|_| AtomicU32::new(0)).collect(),
            expected: (0..SERVICE_LIMIT).map(|_| AtomicU32::new(0)).collect(),
        }
    }
}

impl LoadBoard {
    /// Sets the load of an instance.
    pub fn set_load(&self, slot: Slot, load: f32) {
        if let Some(place) = self.loads.get(slot.index()) {
            place.store(load.to_bits(), Ordering::Relaxed);
        }
    }

    /// Sets what a new flow of the service is expected to bring.
    pub fn set_expected(&self, service: ServiceId, expected: f32) {
        if let Some(place) = self.expected.get(service.index()) {
            place.store(expected.to_bits(), Ordering::Relaxed);
        }
    }

    /// Makes what was set count: workers then forget their estimates for flows pinned before.
    pub fn publish(&self) {
        self.epoch.fetch_add(1, Ordering::Release);
    }

    /// How often loads were published.
    pub fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    /// The load of an instance.
    pub fn load(&self, slot: Slot) -> f32 {
        self.loads
            .get(slot.index())
            .map_or(0.0, |l| f32::from_bits(l.load(Ordering::Relaxed)))
    }

    /// What a new flow of the service is expected to bring.
    pub fn expected(&self, service: ServiceId) -> f32 {
        self.expected
            .get(service.index())
            .map_or(0.0, |l| f32::from_bits(l.load(Ordering::Relaxed)))
    }
}

#[cfg(test)]
mod tests {
    use model::Prefix;

    use super::*;

    fn tuple(src: &str, dst: &str, dst_port: u16) -> Tuple {
        Tuple {
            src: src.parse().unwrap(),
            dst: dst.parse().unwrap(),
            src_port: 1000,
            dst_port,
            protocol: 6,
            vlan: 0,
        }
    }

    #[test]
    fn a_symmetric_service_takes_both_directions_and_only_its_uplinks() {
        let mut plan = Plan::default();
        plan.services.push(ServicePlan {
            id: ServiceId(0),
            matches: Match {
                protocol: Some(6),
                dst: Some(Prefix {
                    address: "10.128.0.0".parse().unwrap(),
                    bits: 16,
                }),
                dst_port: Some(80..=443),
                ..Match::default()
            },
            symmetric: true,
            uplinks: vec![UplinkId(0)],
            scheduler: Scheduler::from_name("round-robin").unwrap(),
            fit: 0.9,
            table_full: TableFull::Hash,
            return_counters: false,
            relaxed: false,
        });
        let there = tuple("192.0.2.1", "10.128.9.9", 443);
        let back = Tuple {
            src: there.dst,
            dst: there.src,
            src_port: there.dst_port,
            dst_port: there.src_port,
            ..there
        };
        assert_eq!(plan.classify(|| there, UplinkId(0)), Some(0));
        assert_eq!(plan.classify(|| back, UplinkId(0)), Some(0));
        assert_eq!(plan.classify(|| there, UplinkId(1)), None);
        assert_eq!(
            plan.classify(|| tuple("192.0.2.1", "10.128.9.9", 444), UplinkId(0)),
            None
        );
        plan.services[0].symmetric = false;
        assert_eq!(plan.classify(|| back, UplinkId(0)), None);
    }
}
