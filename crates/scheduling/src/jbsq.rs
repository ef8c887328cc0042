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
    #[serde(skip)]
    lowest: Lowest,
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
            lowest: Lowest::default(),
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
    fn ranks_of(&self, candidates: &Candidates, index: usize) -> Ranks {
        let Some(row) = candidates.get(index) else {
            return [0.0; PRIORITIES];
        };
        let size = row.size() * candidates.ramp(index);
        // What is of this priority and above: sums of two, of four and of all, so that they need not wait for each other.
        let mut at_least = row.queues;
        for step in [1, 2, 4] {
            for priority in 0..PRIORITIES - step {
                at_least[priority] += at_least[priority + step];
            }
        }
        let total = at_least[0];
        let mut ranks = at_least;
        for rank in &mut ranks {
            *rank = (*rank + self.lambda * (total - *rank).max(0.0)) / size;
        }
        ranks
    }

    /// The ranks that candidates are compared by: those of full queues are higher by [`FULL`].
    #[inline]
    fn compared(&self, candidates: &Candidates, index: usize) -> Ranks {
        let flows = candidates.get(index).map_or(0, |row| row.live_flows);
        let is_open = candidates.fits(index) && (self.bound == 0 || flows < self.bound);
        let more = if is_open { 0.0 } else { FULL };
        let mut ranks = self.ranks_of(candidates, index);
        for rank in &mut ranks {
            // Not a number is the highest rank of all.
            *rank = if *rank < FULL { *rank + more } else { f32::MAX };
        }
        ranks
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
        let mut lowest = std::mem::take(&mut self.lowest);
        lowest.refill(candidates.len(), |index| self.compared(candidates, index));
        self.lowest = lowest;
    }

    #[inline]
    fn pinned(&mut self, candidates: &Candidates, index: usize) {
        let ranks = self.compared(candidates, index);
        self.lowest.update(index, ranks);
    }

    #[inline]
    fn choose(&mut self, flow: &NewFlow<'_>, _candidates: &Candidates) -> usize {
        self.lowest.index(flow.priority())
    }
}

/// One candidate's ranks, by priority.
type Ranks = [f32; PRIORITIES];

/// Children of a node.
const FAN: usize = 8;
/// Where the levels of the tree begin: candidates, then the minima of eight each, of those, and so on.
const LEVELS: [usize; 4] = {
    let first = Slot::LIMIT;
    let second = first + first / FAN;
    [0, first, second, second + first / (FAN * FAN)]
};
const NODES: usize = LEVELS[3] + FAN;
/// The node that is not there.
const NONE: Ranks = [f32::INFINITY; PRIORITIES];

/// The candidate of the lowest rank for each priority, the first of equals: a tree whose nodes hold the minima of eight
/// below for all priorities at once, so that a flow pinned, which changes all ranks of a candidate, costs eight
/// vector minima per level, and finding it a look at eight nodes per level.
#[derive(Clone, Debug)]
struct Lowest {
    nodes: Box<[Ranks]>,
    /// The level of at most [`FAN`] nodes.
    top: usize,
}

impl Default for Lowest {
    fn default() -> Self {
        Lowest {
            nodes: vec![NONE; NODES].into_boxed_slice(),
            top: 0,
        }
    }
}

impl Lowest {
    /// Takes over a new list.
    fn refill(&mut self, candidates: usize, ranks: impl Fn(usize) -> Ranks) {
        let mut count = candidates.min(Slot::LIMIT);
        for (index, node) in self
            .nodes
            .iter_mut()
            .take(count.next_multiple_of(FAN))
            .enumerate()
        {
            *node = if index < count { ranks(index) } else { NONE };
        }
        self.top = 0;
        while count > FAN {
            let above = count.div_ceil(FAN);
            for block in 0..above.next_multiple_of(FAN) {
                let least = if block < above {
                    self.least(self.top, block)
                } else {
                    NONE
                };
                self.put(self.top + 1, block, least);
            }
            self.top += 1;
            count = above;
        }
    }

    /// The ranks of one candidate are others now.
    #[inline]
    fn update(&mut self, index: usize, ranks: Ranks) {
        self.put(0, index, ranks);
        let mut index = index;
        for level in 0..self.top {
            index /= FAN;
            let least = self.least(level, index);
            self.put(level + 1, index, least);
        }
    }

    /// The index of the candidate with the lowest rank for that priority.
    #[inline]
    fn index(&self, priority: usize) -> usize {
        let mut index = 0;
        for level in (0..=self.top).rev() {
            let first = self
                .block(level, index)
                .map_or(0, |block| first_lowest(block, priority));
            index = index * FAN + first;
        }
        index
    }

    #[inline]
    fn block(&self, level: usize, block: usize) -> Option<&[Ranks; FAN]> {
        let begin = LEVELS.get(level)? + block * FAN;
        self.nodes.get(begin..)?.first_chunk()
    }

    #[inline]
    fn put(&mut self, level: usize, index: usize, ranks: Ranks) {
        let place = LEVELS.get(level).map(|begin| begin + index);
        if let Some(node) = place.and_then(|place| self.nodes.get_mut(place)) {
            *node = ranks;
        }
    }

    /// The minima of a block, by priority.
    #[inline]
    fn least(&self, level: usize, block: usize) -> Ranks {
        let Some([a, b, c, d, e, f, g, h]) = self.block(level, block) else {
            return NONE;
        };
        let (left, right) = (
            lower(&lower(a, b), &lower(c, d)),
            lower(&lower(e, f), &lower(g, h)),
        );
        lower(&left, &right)
    }
}

/// The lower of two ranks for each priority.
#[inline]
fn lower(a: &Ranks, b: &Ranks) -> Ranks {
    let mut lower = *a;
    for (lower, b) in lower.iter_mut().zip(b) {
        // None is not a number, so that this is one instruction for all; `min` would look.
        *lower = if *b < *lower { *b } else { *lower };
    }
    lower
}

/// Which of eight has the lowest rank for that priority, the first of equals. Without a branch: nobody could guess it.
#[inline]
fn first_lowest(block: &[Ranks; FAN], priority: usize) -> usize {
    let of = |index: usize| block[index].get(priority).copied().unwrap_or(f32::INFINITY);
    let pair = |a: (f32, usize), b: (f32, usize)| if b.0 < a.0 { b } else { a };
    let two = |index: usize| pair((of(index), index), (of(index + 1), index + 1));
    pair(pair(two(0), two(2)), pair(two(4), two(6))).1
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_is_the_first_of_the_lowest(
            count in 1..=Slot::LIMIT,
            changes in prop::collection::vec((0..Slot::LIMIT, 0u8..20), 0..40),
        ) {
            let ranks = |index: usize, level: u8| -> Ranks {
                std::array::from_fn(|priority| f32::from((index * (priority + 3) % 7) as u8 + level))
            };
            let mut all: Vec<Ranks> = (0..count).map(|index| ranks(index, 5)).collect();
            let mut lowest = Lowest::default();
            // What was there before leaves no trace.
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
