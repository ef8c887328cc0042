use crate::{Candidate, NewFlow, Pick, Policy, least_utilised};

/// The most utilised instance that still fits the flow (SmartINCO §3.2): it fills one instance before it opens the
/// next, so that few do the work. Where none fits, the least utilised one, as [`Pick::Overcommitted`]. Among equals
/// the first, which is the one with the lowest slot.
#[derive(Clone, Copy, Debug, Default)]
pub struct BestFit;

impl Policy for BestFit {
    const NAME: &'static str = "best-fit";

    #[inline]
    fn pick(&mut self, _flow: &NewFlow<'_>, candidates: &[Candidate], fit: f32) -> Pick {
        let mut best = None;
        let mut highest = f32::NEG_INFINITY;
        for (index, candidate) in candidates.iter().enumerate() {
            if candidate.fits(fit) {
                let utilisation = candidate.utilisation();
                if utilisation > highest || best.is_none() {
                    (best, highest) = (Some(index), utilisation);
                }
            }
        }
        match best {
            Some(index) => Pick::Fits(index),
            None => least_utilised(candidates).map_or(Pick::None, Pick::Overcommitted),
        }
    }
}
