//! The input of workers: the plan with the queues of each instance's ports, and the loads.
//!
//! A published plan is kept until every worker has acknowledged a newer one, so that a worker never frees memory.
//! Loads change every millisecond and lie beside it in a [`LoadBoard`] of plain atomics: a plan a millisecond would
//! be a thousand allocations a second for figures that need no consistency among themselves.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use model::{ServiceId, Slot, WorkerId};
use switch::{BlockOwners, Plan};

/// A plan, and how many queues instances have. Workers read its pointer once per turn.
#[derive(Clone, Debug, Default)]
pub struct WorkerPlan {
    plan: Plan,
    /// Queue pairs of each data port, by slot; 1 beyond its end.
    queues: Vec<u16>,
    /// Who owns the blocks of external ports.
    pub(crate) blocks: BlockOwners,
}

impl WorkerPlan {
    /// The plan, with the number of queue pairs of each instance by slot; 1 beyond the end of `queues`.
    pub fn new(plan: Plan, queues: Vec<u16>) -> WorkerPlan {
        let blocks = BlockOwners::of(&plan);
        WorkerPlan { plan, queues, blocks }
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

impl DerefMut for WorkerPlan {
    fn deref_mut(&mut self) -> &mut Plan {
        &mut self.plan
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
    expected: Box<[AtomicU32]>,
}

impl Default for LoadBoard {
    fn default() -> Self {
        LoadBoard {
            epoch: AtomicU64::new(0),
            loads: (0..Slot::LIMIT).map(|_| AtomicU32::new(0)).collect(),
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

    /// What a new flow of the service is expected to bring.
    pub fn expected(&self, service: ServiceId) -> f32 {
        self.expected
            .get(service.index())
            .map_or(0.0, |l| f32::from_bits(l.load(Ordering::Relaxed)))
    }
}
