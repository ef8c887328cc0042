use model::Slot;
use serde::{Deserialize, Serialize};

use crate::candidates::PRIORITIES;
use crate::{Candidates, NewFlow, Parameter, Policy};

/// Joins the bounded shortest queue, with priorities (RingLeader, NSDI 2023; SmartINCO's equation 2.2): picks
/// the instance with the lowest rank among those whose queue is below its bound,
///
/// ```text
/// rank(A, c) = Σ over priorities ≥ A's of queue(c) + λ · Σ over priorities < A's of queue(c)
/// ```
///
/// A high-priority flow thus prefers instances with little load of its own or a higher priority;
/// lower-priority load counts λ times. The priority is the class selector of the flow's DSCP. A queue is the
/// load of flows of that priority as a share of the capacity, in the service's metric: an instance's backlog
/// is proportional to it. The bound is capacity × `fit`, and `bound` flows if set. If every queue is at its
/// bound, the lowest rank of all wins, because a packet cannot wait outside, as RingLeader's requests do.
/// Ties go to the first.
///
/// A fresh instance counts as smaller during its [ramp](Candidates::ramp).
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Jbsq {
    /// Weight of lower-priority load, 0 to 1.
    #[serde(deserialize_with = "share")]
    lambda: f32,
    /// Flows per instance; 0 for no such bound.
    bound: u32,
    #[serde(skip)]
    lowest: Lowest,
}

/// Functions process packets in order of arrival, so lower-priority load delays like any other. It counts
/// less because its flows tolerate delay better.
const LAMBDA: f32 = 0.5;
/// Above every rank of a queue that is not full, with room to distinguish ranks above it.
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
            lowest: Lowest::default(),
        }
    }
}

/// Equation 2.2 for a candidate, for each priority, as a share of its capacity.
#[inline]
fn ranks_of(lambda: f32, candidates: &Candidates, index: usize) -> Ranks {
    let Some(row) = candidates.get(index) else {
        return [0.0; PRIORITIES];
    };
    let size = row.size() * candidates.ramp(index);
    // Suffix sums over priorities: sums of two, four and eight, so that they do not depend on each other in
    // sequence.
    let at_least = with_next::<4>(with_next::<2>(with_next::<1>(row.queues)));
    let total = at_least[0];
    at_least.map(|queue| (queue + lambda * (total - queue).max(0.0)) / size)
}

/// The ranks for comparison, none negative: those of full queues are [`FULL`] higher.
#[inline]
fn compared(lambda: f32, bound: u32, candidates: &Candidates, index: usize) -> Ranks {
    let flows = candidates.get(index).map_or(0, |row| row.live_flows);
    let is_open = candidates.fits(index) && (bound == 0 || flows < bound);
    let more = if is_open { 0.0 } else { FULL };
    ranks_of(lambda, candidates, index).map(|rank| {
        let above = if rank > 0.0 { rank } else { 0.0 };
        // Not-a-number becomes the highest rank. A sum, because eight conditionals would be eight branches.
        above + more + if rank < FULL { 0.0 } else { f32::INFINITY }
    })
}

impl Policy for Jbsq {
    const NAME: &'static str = "jbsq";
    const RULE: &'static str = "the lowest rank among queues below their bound";
    const PARAMETERS: &'static [Parameter] = &[
        Parameter {
            name: "lambda",
            kind: "number from 0 to 1",
            default: "0.5",
            meaning: "weight of load with a lower priority than the flow's",
        },
        Parameter {
            name: "bound",
            kind: "number of flows",
            default: "0",
            meaning: "flows per instance before others are preferred; 0 leaves only the bound capacity × `fit`",
        },
    ];

    fn refill(&mut self, candidates: &Candidates) {
        let (lambda, bound) = (self.lambda, self.bound);
        self.lowest.refill(candidates.len(), |index| {
            compared(lambda, bound, candidates, index)
        });
    }

    #[inline]
    fn pinned(&mut self, candidates: &Candidates, index: usize) {
        let ranks = compared(self.lambda, self.bound, candidates, index);
        self.lowest.update(index, ranks);
    }

    #[inline]
    fn choose(&mut self, flow: &NewFlow<'_>, _candidates: &Candidates) -> usize {
        self.lowest.index(flow.priority())
    }

    /// Equation 2.2 as a share of the candidate's capacity.
    fn rank(&self, flow: &NewFlow<'_>, candidates: &Candidates, index: usize) -> Option<f32> {
        let ranks = ranks_of(self.lambda, candidates, index);
        ranks.get(flow.priority()).copied()
    }
}

/// Each value and the one `STEP` indices later, added.
#[inline]
fn with_next<const STEP: usize>(queues: [f32; PRIORITIES]) -> [f32; PRIORITIES] {
    std::array::from_fn(|priority| queues[priority] + queues.get(priority + STEP).copied().unwrap_or(0.0))
}

/// One candidate's ranks, by priority.
type Ranks = [f32; PRIORITIES];

/// Bits of a [`Keys`] element that hold the candidate's index.
const INDEX_BITS: u32 = Slot::LIMIT.trailing_zeros();
/// The exponent bits that make a key a number between 1 and 2.
const ONE: u64 = 1.0f64.to_bits();

/// One candidate's ranks with its index in the low bits, by priority: the smaller number is the lower rank;
/// ties go to the lower index. Floating-point, because vector instructions take minima of floats, not of
/// 64-bit integers.
type Keys = [f64; PRIORITIES];

/// Above every key.
const NONE: Keys = [f64::MAX; PRIORITIES];

/// Nodes of a tree for [`Slot::LIMIT`] candidates.
const NODES: usize = 2 * Slot::LIMIT;

/// The keys of a candidate. Ranks are non-negative numbers.
#[inline]
fn keys(ranks: Ranks, index: usize) -> Keys {
    // The bits of non-negative floats sort like the floats.
    ranks.map(|rank| f64::from_bits(ONE | u64::from(rank.to_bits()) << INDEX_BITS | index as u64))
}

/// The candidate of the lowest rank for each priority: a tournament tree whose nodes hold the minima of all
/// priorities. A pick is one read. A pinned flow changes all ranks of a candidate and costs a few vector
/// minima per level.
#[derive(Clone, Debug)]
struct Lowest {
    /// The root is at 1, the leaves start at `leaves`; each inner node is the minimum of its children.
    nodes: Box<[Keys; NODES]>,
    leaves: usize,
}

impl Default for Lowest {
    fn default() -> Self {
        Lowest {
            nodes: Box::new([NONE; NODES]),
            leaves: 1,
        }
    }
}

impl Lowest {
    /// Takes over a new list.
    fn refill(&mut self, candidates: usize, ranks: impl Fn(usize) -> Ranks) {
        let count = candidates.min(Slot::LIMIT);
        self.leaves = count.next_power_of_two();
        let leaves = self.nodes.iter_mut().skip(self.leaves).take(self.leaves);
        for (index, leaf) in leaves.enumerate() {
            *leaf = if index < count {
                keys(ranks(index), index)
            } else {
                NONE
            };
        }
        for node in (1..self.leaves).rev() {
            self.nodes[node % NODES] =
                lower(&self.nodes[2 * node % NODES], &self.nodes[(2 * node + 1) % NODES]);
        }
    }

    /// Changes the ranks of one candidate.
    #[inline]
    fn update(&mut self, index: usize, ranks: Ranks) {
        let mut node = self.leaves + index;
        let mut lowest = keys(ranks, index);
        self.nodes[node % NODES] = lowest;
        while node > 1 {
            // The sibling.
            lowest = lower(&lowest, &self.nodes[(node ^ 1) % NODES]);
            node /= 2;
            self.nodes[node % NODES] = lowest;
        }
    }

    /// The index of the candidate with the lowest rank for that priority.
    #[inline]
    fn index(&self, priority: usize) -> usize {
        let root = self.nodes.get(1).and_then(|root| root.get(priority));
        root.map_or(0, |key| (key.to_bits() & ((1 << INDEX_BITS) - 1)) as usize)
    }
}

/// The lower of two keys for each priority.
#[inline]
fn lower(a: &Keys, b: &Keys) -> Keys {
    let mut lower = *a;
    for (lower, b) in lower.iter_mut().zip(b) {
        // Neither is not-a-number, so this is one instruction for two elements; `min` would check.
        *lower = if *b < *lower { *b } else { *lower };
    }
    lower
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn ties_go_to_the_first_candidate(
            count in 1..=Slot::LIMIT,
            changes in prop::collection::vec((0..Slot::LIMIT, 0u8..20), 0..40),
        ) {
            let ranks = |index: usize, level: u8| -> Ranks {
                std::array::from_fn(|priority| f32::from((index * (priority + 3) % 7) as u8 + level))
            };
            let mut all: Vec<Ranks> = (0..count).map(|index| ranks(index, 5)).collect();
            let mut lowest = Lowest::default();
            // Earlier contents must not matter.
            lowest.refill(Slot::LIMIT, |_| [0.0; PRIORITIES]);
            lowest.refill(count, |index| all[index]);
            for (index, level) in [(0, 5)].into_iter().chain(changes) {
                let index = index % count;
                all[index] = ranks(index, level);
                lowest.update(index, all[index]);
                for priority in 0..PRIORITIES {
                    let least = all.iter().map(|ranks| ranks[priority]).fold(f32::INFINITY, f32::min);
                    let first = all.iter().position(|ranks| ranks[priority] == least);
                    prop_assert_eq!(Some(lowest.index(priority)), first);
                }
            }
        }
    }
}
