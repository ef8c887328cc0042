use serde::{Deserialize, Serialize};

use crate::Candidates;
use crate::least::{Least, by_least, key};

/// The least utilised instance (SmartINCO §3.2), which balances load. Ties go to the one with the fewest live
/// flows, then the first. Instances that fit the flow precede those that do not.
///
/// A fresh instance is the least utilised until it has caught up; it counts as smaller during its
/// [ramp](Candidates::ramp).
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct WorstFit {
    #[serde(skip)]
    least: Least,
}

#[inline]
fn cost(candidates: &Candidates, index: usize) -> u64 {
    let flows = candidates.get(index).map_or(0, |row| row.live_flows);
    let utilisation = candidates.ramped_utilisation(index);
    key(candidates.fits(index), utilisation, flows, index)
}

by_least!(WorstFit, "worst-fit", "the least utilised");
