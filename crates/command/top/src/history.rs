//! What instances did in the last minutes.

use std::collections::{BTreeMap, VecDeque};

use api::types::InstanceRow;
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
    dropped: u64,
}

impl History {
    /// Packets per second dropped, now.
    pub(super) fn lost_pps(&self) -> f64 {
        self.lost.back().copied().unwrap_or(0.0)
    }

    fn note(&mut self, row: &InstanceRow, seconds: f64) {
        let lost = if seconds > 0.0 {
            row.dropped_packets.saturating_sub(self.dropped) as f64 / seconds
        } else {
            0.0
        };
        self.dropped = row.dropped_packets;
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
    /// Takes what was seen, so many seconds after it was seen last. Instances that are gone are forgotten.
    pub(super) fn note(&mut self, rows: &[InstanceRow], seconds: f64) {
        self.0.retain(|id, _| rows.iter().any(|row| row.id == *id));
        for row in rows {
            match self.0.get_mut(&row.id) {
                Some(history) => history.note(row, seconds),
                // What it dropped before was not seen to happen.
                None => {
                    let mut history = History {
                        dropped: row.dropped_packets,
                        ..History::default()
                    };
                    history.note(row, seconds);
                    self.0.insert(row.id, history);
                }
            }
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
