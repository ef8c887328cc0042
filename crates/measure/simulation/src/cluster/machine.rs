//! A machine: its instances, and the scheduler that picks one of them.

use edge_steering::{DATAGRAM_LIMIT, Head, MachineId, ServiceLoad, Serving};
use model::{Direction, Nanos, PlaceId, Slot, mix};
use scheduling::{Candidate, Candidates, Metric, NewFlow, PRIORITIES, Renewed, Scheduler, Terms};
use signal::Key;

use crate::Error;
use crate::control::scheduler_of;
use crate::load::key_of;
use crate::scenario::Scenario;

/// The number of the only service.
pub(super) const SERVICE: u32 = 1;
/// How old instances are: their slow start is over.
const OLD: Nanos = Nanos::from_secs(3_600);

/// What a machine does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Phase {
    Serving,
    Draining {
        since: Nanos,
    },
    /// Its deadline has passed; its flows move.
    Leaving {
        since: Nanos,
    },
    /// It has ended in order.
    Down {
        until: Nanos,
    },
    /// It died.
    Failed {
        at: Nanos,
        until: Nanos,
    },
}

pub(super) struct Machine {
    pub(super) id: MachineId,
    pub(super) phase: Phase,
    /// Whether it is no member after its drain.
    pub(super) leaves_for_good: bool,
    pub(super) key: Key,
    scheduler: Scheduler,
    candidates: Candidates,
    terms: Terms,
    capacity_pps: f64,
    /// By slot: thousandths of packets per second of its flows. Integers, so that ended flows leave no rounding error.
    pub(super) milli_pps: Vec<u64>,
    flows: Vec<u32>,
    used_milli_pps: u64,
    pub(super) live: u32,
    incarnation: u64,
    counter: u64,
    /// New flows beyond the capacity of every instance.
    pub(super) overcommitted: u64,
}

impl Machine {
    pub(super) fn new(id: MachineId, scenario: &Scenario) -> Result<Machine, Error> {
        let (scheduler, _) = scheduler_of(scenario)?;
        if scheduler.settings().metric != Metric::Packets {
            return Err(Error::value(
                "service.scheduler.metric",
                "a cluster's loads are packets: leave metric out",
            ));
        }
        let instances = scenario.service.max as usize;
        let capacity_pps = scenario.instances.capacity_pps.of(1);
        let terms = Terms {
            at: Nanos::ZERO,
            fit: scenario.service.fit,
            slow_start: Nanos::ZERO,
        };
        let mut candidates = Candidates::new();
        candidates.begin(terms);
        for slot in 0..instances {
            candidates.push(Candidate {
                slot: Slot(slot as u16),
                place: PlaceId::default(),
                capacity: capacity_pps as f32,
                load: 0.0,
                trust: 1.0,
                weight: 256,
                live_flows: 0,
                active_for: OLD,
                queues: [0.0; PRIORITIES],
            });
        }
        let mut secret = [0; 24];
        for (nth, bytes) in secret.chunks_exact_mut(8).enumerate() {
            bytes.copy_from_slice(&mix(u64::from(id.0) << 8 | nth as u64).to_be_bytes());
        }
        Ok(Machine {
            id,
            phase: Phase::Serving,
            leaves_for_good: false,
            key: Key::of_random(secret),
            scheduler,
            candidates,
            terms,
            capacity_pps,
            milli_pps: vec![0; instances],
            flows: vec![0; instances],
            used_milli_pps: 0,
            live: 0,
            incarnation: 1,
            counter: 0,
            overcommitted: 0,
        })
    }

    /// Whether packets are processed.
    pub(super) fn is_up(&self) -> bool {
        !matches!(self.phase, Phase::Down { .. } | Phase::Failed { .. })
    }

    /// Its load as a share of its capacity.
    pub(super) fn utilisation(&self) -> f64 {
        self.used_milli_pps as f64 / 1e3 / (self.capacity_pps * self.milli_pps.len() as f64)
    }

    /// Publishes the loads of its instances, once an interval.
    pub(super) fn renew(&mut self, now: Nanos) {
        self.terms.at = now;
        let (milli_pps, flows) = (&self.milli_pps, &self.flows);
        self.candidates.renew(self.terms, |index, _| Renewed {
            load: milli_pps[index] as f32 / 1e3,
            live_flows: flows[index],
            active_for: OLD,
        });
    }

    /// Its report for the run of an edge; [`None`] if it is not up.
    pub(super) fn report<'a>(&self, audience: u64, into: &'a mut [u8; DATAGRAM_LIMIT]) -> Option<&'a [u8]> {
        let state = match self.phase {
            Phase::Serving => Serving::Serving,
            Phase::Draining { .. } => Serving::Draining,
            Phase::Leaving { .. } => Serving::Leaving,
            Phase::Down { .. } | Phase::Failed { .. } => return None,
        };
        let head = Head {
            machine: self.id,
            audience,
            incarnation: self.incarnation,
            counter: self.counter,
        };
        let capacity = (self.capacity_pps * self.milli_pps.len() as f64) as u64;
        let load = ServiceLoad {
            service: SERVICE,
            state,
            instances: self.milli_pps.len() as u16,
            capacity,
            capacity_left: capacity.saturating_sub(self.used_milli_pps / 1_000),
            live_flows: self.live,
        };
        edge_steering::write(&head, &[load], &self.key, into).ok()
    }

    /// The reports of an interval are sent.
    pub(super) fn count_report(&mut self) {
        self.counter += 1;
    }

    /// Picks the instance of a new flow, and pins it. [`Slot::NONE`] if the machine is not up.
    pub(super) fn accept(&mut self, hash: u64, milli_pps: u32) -> Slot {
        if !self.is_up() {
            return Slot::NONE;
        }
        let key = if self.scheduler.is_by_flow() { hash } else { 0 };
        let flow = NewFlow {
            key: &key_of(key).0,
            direction: Direction::Forward,
            hash,
            expected: self.used_milli_pps as f32 / 1e3 / self.live.max(1) as f32,
            dscp: 0,
            among: &[],
        };
        let pick = self.scheduler.pick(&flow, &self.candidates);
        let Some(index) = pick.index() else {
            return Slot::NONE;
        };
        self.overcommitted += u64::from(matches!(pick, scheduling::Pick::Overcommitted(_)));
        self.candidates.pin(index, &flow);
        self.milli_pps[index] += u64::from(milli_pps);
        self.flows[index] += 1;
        self.used_milli_pps += u64::from(milli_pps);
        self.live += 1;
        Slot(index as u16)
    }

    /// A flow ended, or left.
    pub(super) fn release(&mut self, slot: Slot, milli_pps: u32) {
        let index = slot.index();
        if let (Some(load), Some(flows)) = (self.milli_pps.get_mut(index), self.flows.get_mut(index)) {
            *load -= u64::from(milli_pps);
            *flows -= 1;
            self.used_milli_pps -= u64::from(milli_pps);
            self.live -= 1;
        }
    }

    /// It serves again: a new run, without a flow.
    pub(super) fn begin_anew(&mut self) {
        self.phase = Phase::Serving;
        self.incarnation += 1;
        self.counter = 0;
        self.milli_pps.fill(0);
        self.flows.fill(0);
        self.used_milli_pps = 0;
        self.live = 0;
    }
}

impl Machine {
    /// Thousandths of packets per second of all its flows.
    pub(super) fn offered_milli_pps(&self) -> u64 {
        self.used_milli_pps
    }

    /// By instance, the load as a share of the capacity.
    pub(super) fn instance_utilisations(&self) -> impl Iterator<Item = f64> + '_ {
        let capacity = self.capacity_pps;
        self.milli_pps
            .iter()
            .map(move |load| *load as f64 / 1e3 / capacity)
    }
}
