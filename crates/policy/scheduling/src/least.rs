use model::Slot;

use crate::Candidates;

/// Bits of a key that hold the candidate's index.
const INDEX_BITS: u32 = Slot::LIMIT.trailing_zeros();
/// Bits of a key that break ties.
const TIE_BITS: u32 = 63 - 31 - INDEX_BITS;

/// The comparison key, smaller is better: whether a flow fits, then `cost` (non-negative), then `tie`
/// (saturating), then the index.
#[inline]
pub(crate) fn key(fits: bool, cost: f32, tie: u32, index: usize) -> u64 {
    // The bits of non-negative floats sort like the floats.
    let cost = if cost > 0.0 { cost } else { 0.0 };
    let cost = u64::from(cost.to_bits());
    let tie = u64::from(tie.min((1 << TIE_BITS) - 1));
    u64::from(!fits) << 63 | cost << (TIE_BITS + INDEX_BITS) | tie << INDEX_BITS | index as u64
}

/// A policy without parameters that chooses the candidate of the smallest `cost`, a function beside it.
macro_rules! by_least {
    ($policy:ident, $name:literal, $rule:literal) => {
        impl crate::Policy for $policy {
            const NAME: &'static str = $name;
            const RULE: &'static str = $rule;
            const PARAMETERS: &'static [crate::Parameter] = &[];

            fn refill(&mut self, candidates: &Candidates) {
                self.least
                    .refill(candidates, |index| cost(candidates, index));
            }

            #[inline]
            fn pinned(&mut self, candidates: &Candidates, index: usize) {
                self.least.update(index, cost(candidates, index));
            }

            #[inline]
            fn choose(&mut self, _flow: &crate::NewFlow<'_>, _candidates: &Candidates) -> usize {
                self.least.index()
            }
        }
    };
}
pub(crate) use by_least;

/// Nodes of a tree for [`Slot::LIMIT`] candidates.
const NODES: usize = 2 * Slot::LIMIT;

/// The candidate with the smallest key, kept current as flows are pinned: a tournament tree. A pick is one
/// read, a pinned flow one comparison per level, a new list one comparison per candidate.
#[derive(Clone, Debug)]
pub(crate) struct Least {
    /// The root is at 1, the leaves start at `leaves`; each inner node is the minimum of its children.
    nodes: Box<[u64; NODES]>,
    leaves: usize,
}

impl Default for Least {
    fn default() -> Self {
        Least {
            nodes: Box::new([u64::MAX; NODES]),
            leaves: 1,
        }
    }
}

impl Least {
    /// Takes over a new list.
    pub(crate) fn refill(&mut self, candidates: &Candidates, key: impl Fn(usize) -> u64) {
        self.leaves = candidates.len().next_power_of_two().min(Slot::LIMIT);
        let leaves = self.nodes.iter_mut().skip(self.leaves).take(self.leaves);
        for (index, leaf) in leaves.enumerate() {
            *leaf = if index < candidates.len() {
                key(index)
            } else {
                u64::MAX
            };
        }
        for node in (1..self.leaves).rev() {
            self.nodes[node % NODES] = self.nodes[2 * node % NODES].min(self.nodes[(2 * node + 1) % NODES]);
        }
    }

    /// Changes the key of one candidate.
    #[inline]
    pub(crate) fn update(&mut self, index: usize, key: u64) {
        let mut node = (self.leaves + index) % NODES;
        let mut smallest = key;
        self.nodes[node] = smallest;
        while node > 1 {
            // The sibling.
            smallest = smallest.min(self.nodes[(node ^ 1) % NODES]);
            node /= 2;
            self.nodes[node] = smallest;
        }
    }

    /// The index of the candidate with the smallest key.
    #[inline]
    pub(crate) fn index(&self) -> usize {
        (self.nodes[1] & ((1 << INDEX_BITS) - 1)) as usize
    }
}
