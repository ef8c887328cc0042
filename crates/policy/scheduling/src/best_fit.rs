use serde::{Deserialize, Serialize};

use crate::Candidates;
use crate::least::{Least, by_least, key};

/// The most utilised instance that still fits the flow (SmartINCO §3.2): fills one instance before opening
/// the next, so that few instances work. If none fits, the least utilised one, as
/// [`Pick::Overcommitted`](crate::Pick::Overcommitted). Ties go to the lowest slot.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BestFit {
    #[serde(skip)]
    least: Least,
}

/// The sort key: the fullest first among instances that fit, the emptiest first among the others.
#[inline]
fn cost(candidates: &Candidates, index: usize) -> u64 {
    match candidates.get(index) {
        Some(row) if candidates.fits(index) => {
            // The bits of non-negative floats sort like the floats. Subtracted from the largest, they sort in
            // reverse.
            let highest = f32::MAX.to_bits();
            let left = f32::from_bits(highest - row.utilisation().to_bits().min(highest));
            key(true, left, 0, index)
        }
        Some(row) => key(false, candidates.ramped_utilisation(index), row.live_flows, index),
        None => u64::MAX,
    }
}

by_least!(BestFit, "best-fit", "the most utilised that the flow fits");
