//! Recent figures of the instances.

use std::collections::{BTreeMap, VecDeque};

use api::types::{self, InstanceRow};
use model::InstanceId;

/// Values kept per figure: the width of a large terminal.
pub(super) const KEPT: usize = 240;

/// The figures of one instance, the oldest first.
#[derive(Clone, Debug, Default)]
pub(super) struct History {
    /// Packets per second given to it.
    pub(super) rate: VecDeque<f64>,
    /// Packets per second dropped on the way to it or in it.
    pub(super) lost: VecDeque<f64>,
    /// Flows pinned to it.
    pub(super) flows: VecDeque<f64>,
    /// Share of its ring that is occupied, 0 to 1.
    pub(super) ring: VecDeque<f64>,
    /// Packets dropped in total at the last update.
    dropped: Option<u64>,
}

impl History {
    /// Packets dropped per second at the last update.
    pub(super) fn lost_pps(&self) -> f64 {
        self.lost.back().copied().unwrap_or(0.0)
    }

    fn of_past(of: &types::InstanceHistory, step: usize) -> History {
        History {
            rate: thinned(&of.to_pps, step, |value| *value),
            lost: thinned(&of.dropped_pps, step, |value| *value),
            flows: thinned(&of.live_flows, step, |value| f64::from(*value)),
            ring: thinned(&of.ring_occupancy, step, |value| *value),
            // The next row is the first one: it has no predecessor.
            dropped: None,
        }
    }

    fn note(&mut self, row: &InstanceRow, seconds: f64) {
        let lost = match self.dropped {
            Some(before) if seconds > 0.0 => row.dropped_packets.saturating_sub(before) as f64 / seconds,
            // The rate is unknown for the first row.
            _ => 0.0,
        };
        self.dropped = Some(row.dropped_packets);
        for (values, value) in [
            (&mut self.rate, row.to_pps),
            (&mut self.lost, lost),
            (&mut self.flows, row.live_flows as f64),
            (&mut self.ring, row.ring_occupancy),
        ] {
            if values.len() == KEPT {
                values.pop_front();
            }
            values.push_back(value);
        }
    }
}

/// The histories of the current instances.
#[derive(Clone, Debug, Default)]
pub(super) struct Histories(BTreeMap<InstanceId, History>);

impl Histories {
    /// From inco's history: every `step`th point of each instance, the newest included.
    pub(super) fn of_past(past: &types::History, step: usize) -> Histories {
        let points = past.unix_ms.len();
        // Only instances that still exist.
        let alive = past
            .instances
            .iter()
            .filter(|of| of.first as usize + of.to_pps.len() == points);
        Histories(alive.map(|of| (of.id, History::of_past(of, step))).collect())
    }

    /// Appends rows that were read `seconds` seconds after the previous ones. Removes instances that no longer exist.
    pub(super) fn note(&mut self, rows: &[InstanceRow], seconds: f64) {
        self.0.retain(|id, _| rows.iter().any(|row| row.id == *id));
        for row in rows {
            self.0.entry(row.id).or_default().note(row, seconds);
        }
    }

    /// Clears all histories, because another inco answers.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// The history of an instance.
    pub(super) fn of(&self, id: InstanceId) -> Option<&History> {
        self.0.get(&id)
    }

    /// The maximum number of flows of any instance in its history.
    pub(super) fn most_flows(&self) -> f64 {
        let all = self.0.values().flat_map(|history| history.flows.iter());
        all.copied().fold(0.0, f64::max)
    }
}

/// Every `step`th value, the newest included, at most [`KEPT`] of them.
fn thinned<T>(values: &[T], step: usize, number: fn(&T) -> f64) -> VecDeque<f64> {
    let newest = values.iter().rev().step_by(step.max(1)).take(KEPT);
    let mut thinned: VecDeque<f64> = newest.map(number).collect();
    thinned.make_contiguous().reverse();
    thinned
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_past_of_living_instances_is_thinned_to_the_interval() {
        let of = |id, first, seconds: std::ops::Range<u32>| types::InstanceHistory {
            id: InstanceId(id),
            service: "web".to_owned(),
            first,
            to_pps: seconds.clone().map(f64::from).collect(),
            dropped_pps: seconds.clone().map(|_| 1.0).collect(),
            live_flows: seconds.clone().collect(),
            ring_occupancy: seconds.map(|_| 0.5).collect(),
        };
        let past = types::History {
            unix_ms: (0..900).collect(),
            instances: vec![of(1, 0, 0..900), of(2, 0, 0..899), of(3, 895, 0..5)],
            ..types::History::default()
        };
        let histories = Histories::of_past(&past, 2);
        let rates = |id| histories.of(InstanceId(id)).map(|of| of.rate.clone());
        let first = rates(1).unwrap();
        assert_eq!(
            (first.len(), first.back(), first.front()),
            (KEPT, Some(&899.0), Some(&421.0))
        );
        assert_eq!(rates(2), None);
        assert_eq!(rates(3).unwrap(), [0.0, 2.0, 4.0]);
    }
}
