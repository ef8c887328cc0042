//! The one place where flows are given to instances: as a worker of the switch does it.

use model::{Direction, FlowKey, Slot};
use scheduling::{Candidate, Candidates, Metric, NewFlow, PRIORITIES, Pick, Scheduler, Terms};

use crate::Error;
use crate::control::{Control, SERVICE, scheduler_of};
use crate::load::{key_of, nearest};
use crate::scenario::Scenario;

/// The scheduler and its candidates.
pub(crate) struct Steering {
    scheduler: Scheduler,
    /// What an instance takes in the scheduler's metric, where that is not packets.
    limit: Option<f64>,
    fit: f32,
    candidates: Candidates,
    /// Whether the scheduler looks at which flow it is.
    pub(crate) is_by_flow: bool,
    /// Key and hash of the flow at hand, or of any where nobody looks at them.
    flow: (FlowKey, u64),
    /// What a new flow is expected to bring, in the unit of the scheduler's metric.
    expected: f32,
    /// New flows that fitted nowhere, since it was last asked.
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
            flow: key_of(0),
            expected: 0.0,
            overcommitted: 0.0,
        })
    }

    /// Lists the candidates with their loads as the collector has them and the flows that are pinned now.
    pub(crate) fn relist(&mut self, control: &Control, live: impl Fn(Slot) -> f64) {
        self.candidates.begin(Terms {
            at: control.now,
            fit: self.fit,
            slow_start: self.scheduler.settings().slow_start,
        });
        let metric = self.scheduler.settings().metric;
        let service = control.collector.service(SERVICE);
        for (row, since) in control.rows.iter().zip(&control.rows_since) {
            if !row.state.takes_new_flows() {
                continue;
            }
            let flows = live(row.slot);
            let load = match (metric, control.collector.slot(row.slot)) {
                // A worker knows them without waiting for counters.
                (Metric::Flows, _) => flows,
                (_, Some(rates)) => rates.load(metric, &service, f64::from(row.capacity_pps)),
                (_, None) => 0.0,
            };
            self.candidates.push(Candidate {
                slot: row.slot,
                capacity: self.limit.map_or(row.capacity_pps, |limit| limit as f32),
                load: load as f32,
                weight: row.weight,
                live_flows: nearest(flows).min(u64::from(u32::MAX)) as u32,
                active_for: control.now.since(*since),
                queues: [0.0; PRIORITIES],
            });
        }
        let capacity_pps = control
            .rows
            .first()
            .map_or(0.0, |row| f64::from(row.capacity_pps));
        self.expected = service.expected(metric, capacity_pps) as f32;
    }

    /// Whether no instance takes new flows.
    pub(crate) fn is_empty(&self) -> bool {
        self.candidates.is_empty()
    }

    /// Where a new flow goes, or so many of them that go the same way; [`Slot::NONE`] where no instance takes any.
    /// The flow's key follows from `number`.
    pub(crate) fn pick(&mut self, number: u64, flows: f64, dscp: u8) -> Slot {
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
        };
        let pick = self.scheduler.pick(&flow, &self.candidates);
        if matches!(pick, Pick::Overcommitted(_)) {
            self.overcommitted += flows;
        }
        let Some(index) = pick.index() else {
            return Slot::NONE;
        };
        self.candidates.pin_many(index, &flow, flows as f32);
        self.candidates.get(index).map_or(Slot::NONE, |row| row.slot)
    }
}
