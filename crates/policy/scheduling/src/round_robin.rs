use model::Slot;
use serde::{Deserialize, Serialize};

use crate::{Candidates, NewFlow, Parameter, Policy, State};

/// Flow i goes to instance i, wrapping after the last (SmartINCO §3.2). A full instance's turn goes to the
/// next that the flow fits, unless `spill` is off, as in the paper.
///
/// The position is the last picked slot, not a count: the next candidate is the one with the next higher
/// slot. So arrivals and departures never skip an instance or give it two turns in a row. A fresh instance
/// skips turns by its [ramp](Candidates::ramp).
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RoundRobin {
    #[serde(skip)]
    last: Option<Slot>,
    /// By slot, the fraction of a turn that a fresh instance has accumulated.
    #[serde(skip)]
    saved: Box<[f32]>,
}

impl Default for RoundRobin {
    fn default() -> Self {
        RoundRobin {
            last: None,
            saved: vec![0.0; Slot::LIMIT].into_boxed_slice(),
        }
    }
}

impl Policy for RoundRobin {
    const NAME: &'static str = "round-robin";
    const RULE: &'static str = "it is its turn";
    const PARAMETERS: &'static [Parameter] = &[];

    #[inline]
    fn choose(&mut self, _flow: &NewFlow<'_>, candidates: &Candidates) -> usize {
        let rows = candidates.rows();
        let mut index = match self.last {
            None => 0,
            Some(last) => match candidates.index_of(last) {
                Some(index) => index + 1,
                // It has left: continue with the next higher slot.
                None => rows.partition_point(|row| row.slot < last),
            },
        };
        // Ends within a round: one of them has a ramp of 1.
        for _ in 0..rows.len() {
            if index >= rows.len() {
                index = 0;
            }
            let ramp = candidates.ramp(index);
            let slot = rows.get(index).map_or(Slot::NONE, |row| row.slot);
            self.last = Some(slot);
            if ramp >= 1.0 {
                break;
            }
            if let Some(saved) = self.saved.get_mut(slot.index()) {
                *saved += ramp;
                if *saved >= 1.0 {
                    *saved -= 1.0;
                    break;
                }
            }
            index += 1;
        }
        index
    }

    #[inline]
    fn spilled(&mut self, slot: Slot) {
        self.last = Some(slot);
    }

    fn save(&self, state: &mut State) {
        state.last = self.last;
    }

    fn restore(&mut self, state: &State) {
        self.last = state.last;
    }
}
