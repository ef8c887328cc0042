use crate::{Candidate, NewFlow, Pick, Policy, least_utilised};

/// The least utilised instance (SmartINCO §3.2): usage stays balanced. Among equals the one with the fewest live
/// flows, then the first. Where not even that one fits the flow it is given it all the same, as
/// [`Pick::Overcommitted`].
#[derive(Clone, Copy, Debug, Default)]
pub struct WorstFit;

impl Policy for WorstFit {
    const NAME: &'static str = "worst-fit";

    #[inline]
    fn pick(&mut self, _flow: &NewFlow<'_>, candidates: &[Candidate], fit: f32) -> Pick {
        match least_utilised(candidates) {
            // With different capacities the least utilised one may be so small that another still fits; but by the
            // definition of utilisation, if any fits, this one does.
            Some(index) => Pick::of(index, candidates, fit),
            None => Pick::None,
        }
    }
}
