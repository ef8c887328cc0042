//! Requests to all workers whose answers are merged: lists of flows.

use switch::{FlowFilter, FlowRow, HeavyFlow, SwitchError, SwitchEvent};

use super::workers::Workers;
use crate::dump::{FlowDump, HeavyDump};
use crate::frame::FrameMemory;
use crate::message::Command;

/// Rows that a request for flows gets at most, 130 MB of them.
const FLOW_ROWS_LIMIT: usize = 1 << 20;

/// The requests that some worker has not answered yet.
#[derive(Default)]
pub(super) struct Questions {
    flows: Vec<PendingFlows>,
    heavy: Vec<PendingHeavy>,
}

struct PendingFlows {
    id: u64,
    /// Answers to come.
    waiting_for: usize,
    rows: Vec<FlowRow>,
    limit: usize,
    complete: bool,
}

struct PendingHeavy {
    id: u64,
    /// Answers to come.
    waiting_for: usize,
    rows: Vec<HeavyFlow>,
}

impl Questions {
    pub(super) fn ask_flows<M: FrameMemory>(
        &mut self,
        id: u64,
        filter: &FlowFilter,
        limit: usize,
        workers: &mut Workers<M>,
    ) -> Result<(), SwitchError> {
        let limit = limit.min(FLOW_ROWS_LIMIT);
        workers.broadcast(|| Command::Dump(Box::new(FlowDump::new(id, filter.clone(), limit))))?;
        self.flows.push(PendingFlows {
            id,
            waiting_for: workers.len(),
            rows: Vec::new(),
            limit,
            complete: true,
        });
        Ok(())
    }

    pub(super) fn ask_heavy_flows<M: FrameMemory>(
        &mut self,
        id: u64,
        filter: &FlowFilter,
        workers: &mut Workers<M>,
    ) -> Result<(), SwitchError> {
        workers.broadcast(|| Command::DumpHeavy(Box::new(HeavyDump::new(id, filter.clone()))))?;
        self.heavy.push(PendingHeavy {
            id,
            waiting_for: workers.len(),
            rows: Vec::new(),
        });
        Ok(())
    }

    /// Adds a worker's answer. Returns the event after the last one.
    pub(super) fn flows_answered(&mut self, answer: FlowDump) -> Option<SwitchEvent> {
        let place = self.flows.iter().position(|of| of.id == answer.id)?;
        let pending = self.flows.get_mut(place)?;
        pending.complete &= answer.complete;
        pending.rows.extend(answer.rows);
        pending.waiting_for -= 1;
        if pending.waiting_for > 0 {
            return None;
        }
        let mut done = self.flows.swap_remove(place);
        done.complete &= done.rows.len() <= done.limit;
        done.rows.truncate(done.limit);
        Some(SwitchEvent::Flows {
            id: done.id,
            rules: Vec::new(),
            rows: done.rows,
            complete: done.complete,
        })
    }

    /// Adds a worker's answer. Returns the event after the last one.
    pub(super) fn heavy_flows_answered(&mut self, answer: HeavyDump) -> Option<SwitchEvent> {
        let place = self.heavy.iter().position(|of| of.id == answer.id)?;
        let pending = self.heavy.get_mut(place)?;
        pending.rows.extend(answer.rows);
        pending.waiting_for -= 1;
        if pending.waiting_for > 0 {
            return None;
        }
        let PendingHeavy { id, mut rows, .. } = self.heavy.swap_remove(place);
        rows.sort_by(|a, b| b.pps.total_cmp(&a.pps));
        Some(SwitchEvent::HeavyFlows { id, rows })
    }
}
