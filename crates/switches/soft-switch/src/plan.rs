//! The input of workers: the plan with the queues of each instance's ports, and the loads.
//!
//! A published plan is kept until every worker has acknowledged a newer one, so that a worker never frees memory.
//! Loads change every millisecond and lie beside it in a [`LoadBoard`] of plain atomics: a plan a millisecond would
//! be a thousand allocations a second for figures that need no consistency among themselves.

use std::ops::Deref;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use model::{ServiceId, Slot, Tuple, UplinkId, WorkerId};
use switch::{BlockOwners, Plan, ServicePlan};

/// A plan, and how many queues instances have. Workers read its pointer once per turn.
#[derive(Clone, Debug, Default)]
pub struct WorkerPlan {
    plan: Plan,
    /// Queue pairs of each data port, by slot; 1 beyond its end.
    queues: Vec<u16>,
    /// Who owns the blocks of external ports.
    pub(crate) blocks: BlockOwners,
    /// By uplink, the place of the service that takes all of its packets, where there is one: most new flows need no
    /// look at what services match.
    takes_all: [Option<u8>; UplinkId::LIMIT],
}

impl WorkerPlan {
    /// The plan, with the number of queue pairs of each instance by slot; 1 beyond the end of `queues`.
    pub fn new(plan: Plan, queues: Vec<u16>) -> WorkerPlan {
        let mut takes_all = [None; UplinkId::LIMIT];
        for (uplink, takes_all) in (0..).map(UplinkId).zip(&mut takes_all) {
            let is_its = |of: &ServicePlan| of.uplinks.contains(&uplink) && plan.previous(of.id).is_none();
            let first = plan.services.iter().position(is_its);
            let first = first.filter(|place| plan.services.get(*place).is_some_and(ServicePlan::takes_all));
            *takes_all = first.and_then(|place| u8::try_from(place).ok());
        }
        let blocks = BlockOwners::of(&plan);
        WorkerPlan {
            plan,
            queues,
            blocks,
            takes_all,
        }
    }

    /// [`Plan::classify`].
    #[inline]
    pub fn classify(&self, tuple: impl Fn() -> Tuple, uplink: UplinkId) -> Option<usize> {
        match self.takes_all.get(uplink.index()) {
            Some(Some(place)) => Some(usize::from(*place)),
            _ => self.plan.classify(tuple, uplink),
        }
    }

    /// The home worker of the queue by which `worker` reaches the instance in that slot.
    #[inline]
    pub fn home(&self, slot: Slot, worker: WorkerId, workers: usize) -> WorkerId {
        let queues = self.queues.get(slot.index()).copied().unwrap_or(1).max(1);
        let queues = usize::from(queues);
        WorkerId(home(slot, worker.index() % queues, queues, workers) as u8)
    }
}

impl Deref for WorkerPlan {
    type Target = Plan;

    fn deref(&self) -> &Plan {
        &self.plan
    }
}

/// The home worker of a queue of an instance: each worker has its own queue where there are enough; else the queues
/// are dealt out by slot, so that the first worker does not serve all instances of one queue.
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
    trust: Box<[AtomicU32]>,
    expected: Box<[AtomicU32]>,
}

impl Default for LoadBoard {
    fn default() -> Self {
        LoadBoard {
            epoch: AtomicU64::new(0),
            loads: (0..Slot::LIMIT).map(|_| AtomicU32::new(0)).collect(),
            trust: (0..Slot::LIMIT)
                .map(|_| AtomicU32::new(1.0_f32.to_bits()))
                .collect(),
            expected: (0..ServiceId::LIMIT).map(|_| AtomicU32::new(0)).collect(),
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

    /// Sets how far the load of an instance is believed, 0 to 1.
    pub fn set_trust(&self, slot: Slot, trust: f32) {
        if let Some(place) = self.trust.get(slot.index()) {
            place.store(trust.to_bits(), Ordering::Relaxed);
        }
    }

    /// Sets what a new flow of the service is expected to bring.
    pub fn set_expected(&self, service: ServiceId, expected: f32) {
        if let Some(place) = self.expected.get(service.index()) {
            place.store(expected.to_bits(), Ordering::Relaxed);
        }
    }

    /// Publishes the loads: workers then discard their estimates for flows pinned before.
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

    /// How far the load of an instance is believed, 0 to 1.
    pub fn trust(&self, slot: Slot) -> f32 {
        self.trust
            .get(slot.index())
            .map_or(1.0, |t| f32::from_bits(t.load(Ordering::Relaxed)))
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
    use model::Match;
    use proptest::prelude::*;
    use scheduling::Scheduler;

    use super::*;

    /// A service by its uplinks, what it matches, and which one is next, of three.
    fn service(id: u16, (uplinks, protocol, next): (u8, Option<u8>, Option<u16>)) -> ServicePlan {
        ServicePlan {
            uplinks: (0..2).filter(|of| uplinks >> of & 1 == 1).map(UplinkId).collect(),
            matches: Match {
                protocol,
                ..Match::default()
            },
            next: next.map(ServiceId),
            ..ServicePlan::of_all(ServiceId(id), Scheduler::default())
        }
    }

    proptest! {
        /// What is compiled for the workers changes no choice.
        #[test]
        fn services_are_those_of_the_plan(
            services in proptest::collection::vec(
                (0_u8..4, proptest::option::of(prop_oneof![Just(6_u8), Just(17)]), proptest::option::of(0_u16..3)), 0..4,
            ),
            uplink in 0_u8..3, protocol in prop_oneof![Just(6_u8), Just(17)],
        ) {
            let services = (0..).zip(services).map(|(id, of)| service(id, of)).collect();
            let plan = Plan { services, ..Plan::default() };
            let tuple = || Tuple {
                src: [10, 0, 0, 1].into(),
                dst: [10, 0, 0, 2].into(),
                src_port: 1,
                dst_port: 2,
                protocol,
                vlan: 0,
            };
            let compiled = WorkerPlan::new(plan.clone(), Vec::new());
            prop_assert_eq!(
                compiled.classify(tuple, UplinkId(uplink)),
                plan.classify(tuple, UplinkId(uplink))
            );
        }
    }
}
