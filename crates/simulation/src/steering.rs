//! The one place where flows are given to instances: as a worker of the switch does it.

use model::{Direction, Slot};
use scheduling::{Candidate, Candidates, NewFlow, PRIORITIES, Pick, Scheduler, Terms};

use crate::Error;
use crate::control::{Control, scheduler_of};
use crate::load::key_of;
use crate::scenario::Scenario;

/// The scheduler and its candidates.
pub(crate) struct Steering {
    scheduler: Scheduler,
    fit: f32,
    candidates: Candidates,
    /// Packets per second that a new flow is expected to bring.
    expected_pps: f32,
    /// New flows that fitted nowhere, since it was last asked.
    pub(crate) overcommitted: f64,
}

impl Steering {
    pub(crate) fn new(scenario: &Scenario) -> Result<Steering, Error> {
        Ok(Steering {
            scheduler: scheduler_of(scenario)?,
            fit: scenario.service.fit,
            candidates: Candidates::new(),
            expected_pps: 0.0,
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
        for (row, since) in control.rows.iter().zip(&control.rows_since) {
            if !row.state.takes_new_flows() {
                continue;
            }
            let load = control
                .collector
                .slot(row.slot)
                .map_or(0.0, |rates| rates.load_pps());
            self.candidates.push(Candidate {
                slot: row.slot,
                capacity: row.capacity_pps,
                load: load as f32,
                weight: row.weight,
                live_flows: live(row.slot).round() as u32,
                active_for: control.now.since(*since),
                queues: [0.0; PRIORITIES],
            });
        }
        self.expected_pps = control.expected_pps();
    }

    /// Whether no instance takes new flows.
    pub(crate) fn is_empty(&self) -> bool {
        self.candidates.is_empty()
    }

    /// Where a new flow goes, or so many of them that go the same way; [`Slot::NONE`] where no instance takes any.
    /// The flow's key follows from `number`.
    pub(crate) fn pick(&mut self, number: u64, flows: f64, dscp: u8) -> Slot {
        let (key, hash) = key_of(number);
        let flow = NewFlow {
            key: &key,
            // The lower address is the client's.
            direction: Direction::Forward,
            hash,
            expected: self.expected_pps,
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
