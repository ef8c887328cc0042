use serde::{Deserialize, Serialize};

use crate::least::{Least, key};
use crate::{Candidates, NewFlow, Parameter, Policy};

/// The most utilised instance that still fits the flow (SmartINCO §3.2): it fills one instance before it opens the
/// next, so that few do the work. Where none fits, the least utilised one, as
/// [`Pick::Overcommitted`](crate::Pick::Overcommitted). Among equals the first, which is the one with the lowest slot.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BestFit {
    #[serde(skip)]
    least: Least,
}

/// What an instance is compared by: of those that fit the fullest, of the others the emptiest.
#[inline]
fn cost(candidates: &Candidates, index: usize) -> u64 {
    match candidates.get(index) {
        Some(row) if candidates.fits(index) => {
            // Bits of floats that are not negative rise as the floats do: taken from the largest one's, they fall.
            let highest = f32::MAX.to_bits();
            let left = f32::from_bits(highest - row.utilisation().to_bits().min(highest));
            key(true, left, 0, index)
        }
        Some(row) => key(false, candidates.ramped_utilisation(index), row.live_flows, index),
        None => u64::MAX,
    }
}

impl Policy for BestFit {
    const NAME: &'static str = "best-fit";
    const PARAMETERS: &'static [Parameter] = &[];

    fn refill(&mut self, candidates: &Candidates) {
        self.least.refill(candidates, |index| cost(candidates, index));
    }

    #[inline]
    fn pinned(&mut self, candidates: &Candidates, index: usize) {
        self.least.update(index, cost(candidates, index));
    }

    #[inline]
    fn choose(&mut self, _flow: &NewFlow<'_>, _candidates: &Candidates) -> usize {
        self.least.index()
    }
}
