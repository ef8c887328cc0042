use model::{Nanos, Slot, mix, span};
use serde::{Deserialize, Serialize};

use crate::{Candidates, NewFlow, Parameter, Policy, State, Weighing};

/// The sum of all weights, and the number of values that a draw has.
pub const TOTAL_WEIGHT: u16 = 256;

/// SmartLB's weights (LB §3.A): the less an instance was assigned in the last period, the more new flows it
/// gets in the next,
///
/// ```text
/// w(i) = 256 · (total − count(i)) / (total · (n − 1))
/// ```
///
/// where `count` is the load assigned to the instance in the period, in the service's metric, `total` the sum
/// and `n` the number of instances. A new flow draws one of 256 numbers, which the weights partition.
///
/// Beyond the paper: a single instance gets all 256; if nothing was assigned (total = 0) all weights are
/// equal; fractions go to the largest remainders, so that the sum is always 256. Weights are recomputed at
/// the end of each period, and at once when an instance arrives (LB §3.B: rebalance all; its count is 0) or
/// leaves (its weight becomes 0). They are multiplied by the instances' own weights and a fresh instance's
/// [ramp](Candidates::ramp). The draw is the flow's hash, so that a decision can be reproduced.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Weighted {
    /// The lifetime of a set of weights.
    #[serde(with = "span")]
    period: Nanos,
    /// When loads were last summed, and when the period began.
    #[serde(skip)]
    added_at: Option<Nanos>,
    #[serde(skip)]
    began_at: Nanos,
    /// By slot, the load assigned in this period so far, and in the last one.
    #[serde(skip)]
    counts: Box<[f64]>,
    #[serde(skip)]
    last_counts: Box<[f64]>,
    /// The candidate list of the weights.
    #[serde(skip)]
    shape: u64,
    /// The candidate of each number that can be drawn.
    #[serde(skip)]
    intervals: Box<[u16]>,
    /// How often weights were computed, and the weights by candidate.
    #[serde(skip)]
    weighings: u64,
    #[serde(skip)]
    shares: Vec<Share>,
}

/// A candidate's share of the whole.
#[derive(Clone, Copy, Debug)]
struct Share {
    exact: f64,
    given: u16,
    index: u16,
}

/// SmartLB updates its weights every second.
const PERIOD: Nanos = Nanos::from_secs(1);

impl Default for Weighted {
    fn default() -> Self {
        let zeros = || vec![0.0; Slot::LIMIT].into_boxed_slice();
        Weighted {
            period: PERIOD,
            added_at: None,
            began_at: Nanos::ZERO,
            counts: zeros(),
            last_counts: zeros(),
            shape: 0,
            intervals: vec![0; usize::from(TOTAL_WEIGHT)].into_boxed_slice(),
            weighings: 0,
            shares: vec![
                Share {
                    exact: 0.0,
                    given: 0,
                    index: 0
                };
                Slot::LIMIT
            ],
        }
    }
}

impl Weighted {
    /// The current weights by candidate; their sum is 256.
    pub fn weights(&self, candidates: &Candidates) -> Vec<u16> {
        let mut weights = vec![0; candidates.len()];
        for index in &self.intervals {
            if let Some(weight) = weights.get_mut(usize::from(*index)) {
                *weight += 1;
            }
        }
        weights
    }

    /// Adds the load assigned since the last call.
    fn add_up(&mut self, candidates: &Candidates, seconds: f64) {
        for row in candidates.rows() {
            if let Some(count) = self.counts.get_mut(row.slot.index())
                && row.load > 0.0
                && row.load.is_finite()
            {
                *count += f64::from(row.load) * seconds;
            }
        }
    }

    fn end_period(&mut self, now: Nanos) {
        std::mem::swap(&mut self.counts, &mut self.last_counts);
        self.counts.fill(0.0);
        self.began_at = now;
    }

    fn make_weights(&mut self, candidates: &Candidates) {
        let count = |row: &crate::Candidate| self.last_counts.get(row.slot.index()).copied().unwrap_or(0.0);
        let rows = candidates.rows();
        let total: f64 = rows.iter().map(count).sum();
        self.shares.clear();
        for (index, row) in rows.iter().enumerate() {
            let exact = if rows.len() == 1 || total <= 0.0 {
                1.0
            } else {
                (total - count(row)).max(0.0) / total
            };
            self.shares.push(Share {
                exact: exact * f64::from(row.weight) * f64::from(candidates.ramp(index)),
                given: 0,
                index: index as u16,
            });
        }
        let sum: f64 = self.shares.iter().map(|share| share.exact).sum();
        if sum <= 0.0 {
            self.shares.iter_mut().for_each(|share| share.exact = 1.0);
        }
        let sum = if sum > 0.0 { sum } else { rows.len() as f64 };
        let mut left = TOTAL_WEIGHT;
        for share in &mut self.shares {
            share.exact *= f64::from(TOTAL_WEIGHT) / sum;
            // Rounding must not assign more than is left.
            share.given = (share.exact as u16).min(left);
            left -= share.given;
        }
        // Largest remainder first; ties go to the first candidate.
        self.shares.sort_unstable_by(|a, b| {
            let remainder = |share: &Share| share.exact - f64::from(share.given);
            remainder(b).total_cmp(&remainder(a)).then(a.index.cmp(&b.index))
        });
        for share in self.shares.iter_mut().take(usize::from(left)) {
            share.given += 1;
        }
        self.shares.sort_unstable_by_key(|share| share.index);
        self.weighings += 1;
        let each = self
            .shares
            .iter()
            .flat_map(|share| std::iter::repeat_n(share.index, usize::from(share.given)));
        for (place, index) in self.intervals.iter_mut().zip(each) {
            *place = index;
        }
    }
}

impl Policy for Weighted {
    const NAME: &'static str = "weighted";
    const RULE: &'static str = "the draw is in its interval";
    const BY_FLOW: bool = true;
    const PARAMETERS: &'static [Parameter] = &[Parameter {
        name: "period",
        kind: "duration",
        default: "\"1s\"",
        meaning: "how often weights are recomputed from the load each instance was given",
    }];

    fn refill(&mut self, candidates: &Candidates) {
        let now = candidates.terms().at;
        let mut is_due = candidates.shape() != self.shape;
        match self.added_at {
            // At first only the current rates are known.
            None => {
                self.add_up(candidates, 1.0);
                self.end_period(now);
                is_due = true;
            }
            Some(before) => {
                self.add_up(candidates, now.since(before).as_secs_f64());
                if now.since(self.began_at) >= self.period {
                    self.end_period(now);
                    is_due = true;
                }
            }
        }
        self.added_at = Some(now);
        if is_due && !candidates.is_empty() {
            self.shape = candidates.shape();
            self.make_weights(candidates);
        }
    }

    #[inline]
    fn choose(&mut self, flow: &NewFlow<'_>, _candidates: &Candidates) -> usize {
        let draw = mix(flow.hash) as usize % usize::from(TOTAL_WEIGHT);
        self.intervals.get(draw).copied().map_or(0, usize::from)
    }

    fn shares(&self, candidates: &Candidates) -> Option<Vec<f64>> {
        let weights = self.weights(candidates);
        Some(
            weights
                .iter()
                .map(|weight| f64::from(*weight) / f64::from(TOTAL_WEIGHT))
                .collect(),
        )
    }

    fn weighings(&self) -> u64 {
        self.weighings
    }

    fn weighing(&self, candidates: &Candidates, index: usize) -> Option<Weighing> {
        let slot = candidates.get(index)?.slot;
        Some(Weighing {
            weight: self.shares.get(index)?.given,
            counted: self.last_counts.get(slot.index()).copied().unwrap_or(0.0),
        })
    }

    fn save(&self, state: &mut State) {
        state.counts.clear();
        state.counts.extend_from_slice(&self.last_counts);
    }

    fn restore(&mut self, state: &State) {
        for (place, count) in self.last_counts.iter_mut().zip(&state.counts) {
            *place = *count;
        }
        self.added_at = Some(Nanos::ZERO);
    }
}
