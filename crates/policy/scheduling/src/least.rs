use model::Slot;

use crate::Candidates;

/// Bits of a key that hold the candidate's index.
const INDEX_BITS: u32 = Slot::LIMIT.trailing_zeros();
/// Bits of a key that decide among equals.
const TIE_BITS: u32 = 63 - 31 - INDEX_BITS;

/// What candidates are compared by, packed so that the smaller number is the better candidate: whether a flow fits,
/// then `cost` (not negative), then `tie` (saturating), then the index.
#[inline]
pub(crate) fn key(fits: bool, cost: f32, tie: u32, index: usize) -> u64 {
    // Bits of floats that are not negative rise as the floats do.
    let cost = if cost > 0.0 { cost } else { 0.0 };
    let cost = u64::from(cost.to_bits());
    let tie = u64::from(tie.min((1 << TIE_BITS) - 1));
    u64::from(!fits) << 63 | cost << (TIE_BITS + INDEX_BITS) | tie << INDEX_BITS | index as u64
}

/// Nodes of a tree for as many candidates as there can be.
const NODES: usize = 2 * Slot::LIMIT;

/// The candidate with the smallest key, kept up to date as flows are pinned: a tournament tree. Finding it is one look,
/// a pinned flow costs one comparison per level, a new list of candidates one per candidate.
#[derive(Clone, Debug)]
pub(crate) struct Least {
    /// The root is at 1, the leaves begin at `leaves`; each inner node is the smaller of its two children.
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

    /// The key of one candidate is another now.
    #[inline]
    pub(crate) fn update(&mut self, index: usize, key: u64) {
        let mut node = (self.leaves + index) % NODES;
        let mut smallest = key;
        self.nodes[node] = smallest;
        while node > 1 {
            // The other child of the same node.
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
