use model::Slot;
use serde::{Deserialize, Serialize};

use crate::candidates::PRIORITIES;
use crate::{Candidates, NewFlow, Parameter, Policy};

/// Joins the bounded shortest queue, with priorities (RingLeader, NSDI 2023; SmartINCO's equation 2.2): the instance with
/// the lowest rank among those whose queue is below its bound,
///
/// ```text
/// rank(A, c) = Σ over priorities ≥ A's of queue(c) + λ · Σ over priorities < A's of queue(c)
/// ```
///
/// so that a flow of high priority goes where little of its own or a higher priority is, and cares less (λ) about the
/// rest. A priority is the class selector of the flow's DSCP. A queue is the load that flows of that priority bring, in
/// the service's metric and as a share of the capacity: what is under way in an instance is in proportion to it. The
/// bound is capacity × `fit`, and `bound` flows where that is set. Where every queue has reached its bound, the lowest
/// rank of all: a packet cannot wait outside, as requests do in RingLeader. Among equals the first.
///
/// A fresh instance counts as smaller than it is while it [ramps](Candidates::ramp) up.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Jbsq {
    /// How much load of lower priority counts, 0 to 1.
    #[serde(deserialize_with = "share")]
    lambda: f32,
    /// Flows that an instance may have; 0 for no such bound.
    bound: u32,
    /// Ranks by priority, then by candidate; those of full queues are higher by [`FULL`].
    #[serde(skip)]
    ranks: Box<[f32]>,
}

/// Functions take packets as they come, whatever their priority: load of lower priority delays as any other. It counts
/// for less because its flows bear the delay better.
const LAMBDA: f32 = 0.5;
/// More than any rank of a queue that is not full, and still with room for differences above it.
const FULL: f32 = 1e6;

fn share<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<f32, D::Error> {
    let share = f32::deserialize(deserializer)?;
    if (0.0..=1.0).contains(&share) {
        Ok(share)
    } else {
        let wrong = serde::de::Unexpected::Float(f64::from(share));
        Err(serde::de::Error::invalid_value(wrong, &"a number from 0 to 1"))
    }
}

impl Default for Jbsq {
    fn default() -> Self {
        Jbsq {
            lambda: LAMBDA,
            bound: 0,
            ranks: vec![0.0; PRIORITIES * Slot::LIMIT].into_boxed_slice(),
        }
    }
}

impl Jbsq {
    /// The rank of a candidate for a flow of that priority: equation 2.2 as a share of its capacity.
    pub fn rank(&self, candidates: &Candidates, index: usize, priority: usize) -> f32 {
        let ranks = self.ranks_of(candidates, index);
        ranks.get(priority).copied().unwrap_or(f32::INFINITY)
    }

    #[inline]
    fn ranks_of(&self, candidates: &Candidates, index: usize) -> [f32; PRIORITIES] {
        let mut ranks = [0.0; PRIORITIES];
        let Some(row) = candidates.get(index) else {
            return ranks;
        };
        let size = row.size() * candidates.ramp(index);
        let total: f32 = row.queues.iter().sum();
        let mut at_least = 0.0;
        for (rank, queue) in ranks.iter_mut().zip(&row.queues).rev() {
            at_least += queue;
            *rank = (at_least + self.lambda * (total - at_least).max(0.0)) / size;
        }
        ranks
    }

    #[inline]
    fn note(&mut self, candidates: &Candidates, index: usize) {
        let flows = candidates.get(index).map_or(0, |row| row.live_flows);
        let is_open = candidates.fits(index) && (self.bound == 0 || flows < self.bound);
        let ranks = self.ranks_of(candidates, index);
        for (of_priority, rank) in self.ranks.chunks_exact_mut(Slot::LIMIT).zip(ranks) {
            if let Some(place) = of_priority.get_mut(index) {
                // Not a number is the highest rank of all.
                let rank = if rank < FULL { rank } else { f32::MAX };
                *place = if is_open { rank } else { rank + FULL };
            }
        }
    }
}

impl Policy for Jbsq {
    const NAME: &'static str = "jbsq";
    const PARAMETERS: &'static [Parameter] = &[
        Parameter {
            name: "lambda",
            kind: "number from 0 to 1",
            default: "0.5",
            meaning: "how much load of lower priority than the flow's counts",
        },
        Parameter {
            name: "bound",
            kind: "number of flows",
            default: "0",
            meaning: "flows that an instance may have before others are preferred, 0 for no bound but capacity × `fit`",
        },
    ];

    fn refill(&mut self, candidates: &Candidates) {
        (0..candidates.len()).for_each(|index| self.note(candidates, index));
    }

    #[inline]
    fn pinned(&mut self, candidates: &Candidates, index: usize) {
        self.note(candidates, index);
    }

    #[inline]
    fn choose(&mut self, flow: &NewFlow<'_>, candidates: &Candidates) -> usize {
        let begin = flow.priority() * Slot::LIMIT;
        let ranks = self
            .ranks
            .get(begin..begin + candidates.len())
            .unwrap_or_default();
        first_lowest(ranks)
    }
}

/// The index of the lowest number, the first of equals; 0 where there is none. In chunks, so that compilers make vector
/// instructions of it.
#[inline]
fn first_lowest(numbers: &[f32]) -> usize {
    const LANES: usize = 8;
    let (chunks, rest) = numbers.as_chunks::<LANES>();
    let mut lowest = [f32::INFINITY; LANES];
    for chunk in chunks {
        for (lowest, number) in lowest.iter_mut().zip(chunk) {
            *lowest = if *number < *lowest { *number } else { *lowest };
        }
    }
    let lowest = lowest.iter().chain(rest).copied().fold(f32::INFINITY, f32::min);
    let is_in = |chunk: &[f32; LANES]| {
        chunk
            .iter()
            .fold(false, |found, number| found | (*number == lowest))
    };
    let begin = chunks.iter().position(is_in).unwrap_or(chunks.len()) * LANES;
    let end = numbers.get(begin..).unwrap_or_default();
    begin + end.iter().position(|number| *number == lowest).unwrap_or(0)
}
