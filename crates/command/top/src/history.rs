//! What instances did in the last minutes.

use std::collections::{BTreeMap, VecDeque};

use api::types::{self, InstanceRow};
use model::InstanceId;

/// Values that are kept of each figure: a wide terminal's worth.
pub(super) const KEPT: usize = 240;

/// The figures of one instance, the newest last.
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
    /// Packets dropped so far, when it was seen last.
    dropped: Option<u64>,
}

impl History {
    /// Packets per second dropped, now.
    pub(super) fn lost_pps(&self) -> f64 {
        self.lost.back().copied().unwrap_or(0.0)
    }

    fn of_past(of: &types::InstanceHistory, step: usize) -> History {
        History {
            rate: thinned(&of.to_pps, step, |value| *value),
            lost: thinned(&of.dropped_pps, step, |value| *value),
            flows: thinned(&of.live_flows, step, |value| f64::from(*value)),
            ring: thinned(&of.ring_occupancy, step, |value| *value),
            // The next row is compared with nothing, as the first one is.
            dropped: None,
        }
    }

    fn note(&mut self, row: &InstanceRow, seconds: f64) {
        let lost = match self.dropped {
            Some(before) if seconds > 0.0 => row.dropped_packets.saturating_sub(before) as f64 / seconds,
            // What it dropped before was not seen to happen.
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

/// The histories of the instances that there are.
#[derive(Clone, Debug, Default)]
pub(super) struct Histories(BTreeMap<InstanceId, History>);

impl Histories {
    /// Of what inco remembers: every `step`th point of each instance, the newest included.
    pub(super) fn of_past(past: &types::History, step: usize) -> Histories {
        let points = past.unix_ms.len();
        // Instances that are gone are not shown.
        let alive = past
            .instances
            .iter()
            .filter(|of| of.first as usize + of.to_pps.len() == points);
        Histories(alive.map(|of| (of.id, History::of_past(of, step))).collect())
    }

    /// Takes what was seen, so many seconds after it was seen last. Instances that are gone are forgotten.
    pub(super) fn note(&mut self, rows: &[InstanceRow], seconds: f64) {
        self.0.retain(|id, _| rows.iter().any(|row| row.id == *id));
        for row in rows {
            self.0.entry(row.id).or_default().note(row, seconds);
        }
    }

    /// Forgets all: it is another inco.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// That of an instance.
    pub(super) fn of(&self, id: InstanceId) -> Option<&History> {
        self.0.get(&id)
    }

    /// The most flows that any instance had at any time that is kept.
    pub(super) fn most_flows(&self) -> f64 {
        let all = self.0.values().flat_map(|history| history.flows.iter());
        all.copied().fold(0.0, f64::max)
    }
}

/// Every `step`th value, the newest included, at most as many as are kept.
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
