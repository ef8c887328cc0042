//! Flows, as every switch shows them.

use flow_table::TcpState;
use model::{Direction, Nanos, Slot};
use openvswitch::Offload;
use switch::{FlowFilter, FlowRow, HEAVY_FLOW_LIMIT, HeavyFlow, SwitchEvent};

use super::Worker;
use crate::RuleState;

impl Worker {
    /// A flow, as every switch shows it.
    pub(super) fn row(&self, of: &crate::FlowRow, now: Nanos) -> FlowRow {
        let symmetric =
            (self.wanted.plan.services.iter()).any(|plan| plan.id == of.service && plan.symmetric);
        let opener = of.id.opens();
        let mut pins = [Slot::NONE; 2];
        pins[opener.index()] = of.slot;
        if symmetric {
            pins[opener.flipped().index()] = of.slot;
        }
        let at = |value: u64| match opener {
            Direction::Forward => [value, 0],
            Direction::Reverse => [0, value],
        };
        FlowRow {
            key: of.id.key,
            opener,
            service: of.service,
            pins,
            pinned_at: pins.map(|pin| pin.is_some().then_some(of.pinned_at)),
            packets: at(of.packets),
            bytes: at(of.bytes),
            idle: now.since(of.seen),
            tcp: TcpState::None,
            returned: None,
            dropped: None,
        }
    }

    pub(super) fn tell_flows(&self, id: u64, filter: &FlowFilter, limit: usize, now: Nanos) {
        let mut rows = Vec::new();
        let mut rules = Vec::new();
        let mut complete = true;
        for of in self.steering.flows() {
            let row = self.row(&of, now);
            if !filter.matches(&row) {
                continue;
            }
            if rows.len() >= limit {
                complete = false;
                break;
            }
            rows.push(row);
            let told = of.state.told();
            rules.push(match (of.state, of.offload) {
                (RuleState::Refused { .. }, _) => told.into_owned(),
                (RuleState::Installed, Some(Offload::Full)) => format!("{told}, offloaded"),
                (RuleState::Installed, Some(Offload::Partial)) => format!("{told}, partly offloaded"),
                (RuleState::Installed, Some(Offload::None)) => format!("{told}, not offloaded"),
                _ => told.into_owned(),
            });
        }
        self.tell(SwitchEvent::Flows {
            id,
            rows,
            rules,
            complete,
        });
    }

    pub(super) fn tell_heavy_flows(&self, id: u64, filter: &FlowFilter, now: Nanos) {
        let mut rows: Vec<HeavyFlow> = self
            .steering
            .flows()
            .map(|of| HeavyFlow {
                row: self.row(&of, now),
                pps: of.pps,
                error_pps: 0.0,
            })
            .filter(|heavy| heavy.pps > 0.0 && filter.matches(&heavy.row))
            .collect();
        rows.sort_by(|a, b| b.pps.total_cmp(&a.pps));
        rows.truncate(HEAVY_FLOW_LIMIT);
        self.tell(SwitchEvent::HeavyFlows { id, rows });
    }
}
