//! Schedules flows to instances, as a worker of the switch does.

use collector::ServiceRates;
use model::{Direction, FlowKey, Generation, Nanos, Slot};
use scheduling::{Candidate, Candidates, Metric, NewFlow, PRIORITIES, Pick, Renewed, Scheduler, Terms};

use crate::Error;
use crate::control::{ControlLoop, SERVICE, scheduler_of};
use crate::load::{key_of, nearest};
use crate::scenario::Scenario;

/// The scheduler and its candidates.
pub(crate) struct Steering {
    scheduler: Scheduler,
    /// An instance's capacity in the scheduler's metric; `None` if the metric is packets.
    limit: Option<f64>,
    fit: f32,
    candidates: Candidates,
    /// The generation of the plan of the candidates, if they can be updated in place.
    plan: Option<Generation>,
    /// When each candidate entered its state.
    since: Vec<Nanos>,
    /// Whether the scheduler uses the flow's key.
    pub(crate) is_by_flow: bool,
    /// Key and hash of the current flow, or of any flow if unused.
    flow: (FlowKey, u64),
    /// A new flow's expected load, in the unit of the scheduler's metric.
    expected: f32,
    /// New flows beyond the capacity of every instance, since last read.
    pub(crate) overcommitted: f64,
}

impl Steering {
    pub(crate) fn new(scenario: &Scenario) -> Result<Steering, Error> {
        let (scheduler, limit) = scheduler_of(scenario)?;
        Ok(Steering {
            is_by_flow: scheduler.is_by_flow(),
            scheduler,
            limit,
            fit: scenario.service.fit,
            candidates: Candidates::new(),
            plan: None,
            since: Vec::new(),
            flow: key_of(0),
            expected: 0.0,
            overcommitted: 0.0,
        })
    }

    /// Rebuilds the candidates with the collector's loads and the current pins.
    pub(crate) fn relist(&mut self, control: &ControlLoop, live: impl Fn(Slot) -> f64) {
        let terms = Terms {
            at: control.now,
            fit: self.fit,
            slow_start: self.scheduler.settings().slow_start,
        };
        let metric = self.scheduler.settings().metric;
        let service = control.collector.service(SERVICE);
        if self.plan == Some(control.plan.generation) {
            let since = &self.since;
            self.candidates.renew(terms, |index, row| {
                let flows = live(row.slot);
                let since = since.get(index).copied().unwrap_or(control.now);
                Renewed {
                    load: load(
                        control,
                        metric,
                        &service,
                        row.slot,
                        f64::from(row.capacity),
                        flows,
                    ),
                    live_flows: count_of(flows),
                    active_for: control.now.since(since),
                }
            });
        } else {
            self.candidates.begin(terms);
            self.since.clear();
            for (slot, row) in control.plan.instances() {
                if !row.state.takes_new_flows() {
                    continue;
                }
                let flows = live(slot);
                let capacity_pps = f64::from(row.capacity_pps);
                self.candidates.push(Candidate {
                    slot,
                    place: row.place,
                    capacity: self.limit.map_or(row.capacity_pps, |limit| limit as f32),
                    load: load(control, metric, &service, slot, capacity_pps, flows),
                    trust: 1.0,
                    weight: row.weight,
                    live_flows: count_of(flows),
                    active_for: control.now.since(row.active_since),
                    queues: [0.0; PRIORITIES],
                });
                self.since.push(row.active_since);
            }
            // If a candidate was left out, or its capacity is not in packets, candidates and rows do not correspond.
            let is_known = self.limit.is_none() && self.since.len() == self.candidates.len();
            self.plan = is_known.then_some(control.plan.generation);
        }
        let capacity_pps = control
            .plan
            .instances()
            .next()
            .map_or(0.0, |(_, row)| f64::from(row.capacity_pps));
        self.expected = service.expected(metric, capacity_pps) as f32;
    }

    /// Whether no instance takes new flows.
    pub(crate) fn is_empty(&self) -> bool {
        self.candidates.is_empty()
    }

    /// A new flow's slot; [`Slot::NONE`] if no instance takes any. Its key follows from `number`.
    pub(crate) fn pick(&mut self, number: u64, flows: f64, dscp: u8) -> Slot {
        self.pick_one(number, flows, dscp)
    }

    /// `times` picks, each for `flows` flows with the same pin. `number` returns each pick's flow number; it is
    /// called only if the scheduler uses keys.
    pub(crate) fn pick_often(
        &mut self,
        times: u64,
        flows: f64,
        mut number: impl FnMut() -> u64,
        mut picked: impl FnMut(Slot),
    ) {
        for _ in 0..times {
            let number = if self.is_by_flow { number() } else { 0 };
            picked(self.pick_one(number, flows, 0));
        }
    }

    #[inline(always)]
    fn pick_one(&mut self, number: u64, flows: f64, dscp: u8) -> Slot {
        if self.is_by_flow {
            self.flow = key_of(number);
        }
        let (key, hash) = (&self.flow.0, self.flow.1);
        let flow = NewFlow {
            key,
            // The lower address is the client's.
            direction: Direction::Forward,
            hash,
            expected: self.expected,
            dscp,
            among: &[],
        };
        let pick = self.scheduler.pick(&flow, &self.candidates);
        let Some(index) = pick.index() else {
            return Slot::NONE;
        };
        // Like the switch: an instance without a learned capacity cannot be overcommitted.
        let is_known = self.candidates.get(index).is_some_and(|row| row.capacity > 0.0);
        if is_known && matches!(pick, Pick::Overcommitted(_)) {
            self.overcommitted += flows;
        }
        self.candidates.pin_many(index, &flow, flows as f32);
        self.candidates.get(index).map_or(Slot::NONE, |row| row.slot)
    }
}

/// An instance's load in the scheduler's metric.
#[inline]
fn load(
    control: &ControlLoop,
    metric: Metric,
    service: &ServiceRates,
    slot: Slot,
    capacity_pps: f64,
    flows: f64,
) -> f32 {
    let load = match (metric, control.collector.slot(slot)) {
        // A worker counts its flows itself.
        (Metric::Flows, _) => flows,
        (_, Some(rates)) => rates.load(metric, service, capacity_pps),
        (_, None) => 0.0,
    };
    load as f32
}

/// Flows as a candidate's count.
#[inline]
fn count_of(flows: f64) -> u32 {
    nearest(flows).min(u64::from(u32::MAX)) as u32
}
