use serde::{Deserialize, Serialize};

use crate::Candidates;
use crate::least::{Least, by_least, key};

/// The instance with the fewest live flows for its size and weight (HAProxy's `leastconn`, IPVS's `wlc`).
/// Suits long, similar flows, and reacts from the first packet, because a flow counts as soon as it is
/// pinned. Ties go to the least utilised one, then the first. Instances that fit the flow precede those that
/// do not.
///
/// Size is the capacity, if known, times the weight, times a fresh instance's [ramp](Candidates::ramp).
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LeastConnections {
    #[serde(skip)]
    least: Least,
}

/// Utilisation only breaks ties: in thousandths.
const TIE_STEPS: f32 = 1000.0;

#[inline]
fn cost(candidates: &Candidates, index: usize) -> u64 {
    let Some(row) = candidates.get(index) else {
        return u64::MAX;
    };
    let size = row.size() * f32::from(row.weight) * candidates.ramp(index);
    // An instance of weight 0 comes last.
    let flows = if size > 0.0 {
        row.live_flows as f32 / size
    } else {
        f32::INFINITY
    };
    let tie = (row.utilisation() * TIE_STEPS) as u32;
    key(candidates.fits(index), flows, tie, index)
}

by_least!(
    LeastConnections,
    "least-connections",
    "the fewest flows for its size"
);
