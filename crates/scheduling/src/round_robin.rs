use model::Slot;

use crate::{Candidate, NewFlow, Pick, Policy};

/// The i-th flow goes to the i-th instance; after the last one comes the first (SmartINCO §3.2). It looks at no load,
/// as the paper's does not: a full instance is given its turn too, and the pick says that it was overcommitted.
///
/// Where it stands is remembered as the slot of the last pick, not as a number: the next is the candidate with the
/// next higher slot. So the order goes on undisturbed when instances come and go: nobody is skipped and nobody gets
/// two turns in a row because of someone else's leaving.
#[derive(Clone, Copy, Debug, Default)]
pub struct RoundRobin {
    /// Where in the candidates the last pick was, to find it again without a search.
    index: usize,
    last: Option<Slot>,
}

impl Policy for RoundRobin {
    const NAME: &'static str = "round-robin";

    #[inline]
    fn pick(&mut self, _flow: &NewFlow<'_>, candidates: &[Candidate], fit: f32) -> Pick {
        if candidates.is_empty() {
            return Pick::None;
        }
        let next = match self.last {
            None => 0,
            Some(last) if candidates.get(self.index).is_some_and(|c| c.slot == last) => self.index + 1,
            // The candidates changed since: the first one after the last pick in the order of slots.
            Some(last) => candidates.partition_point(|c| c.slot <= last),
        };
        let index = if next < candidates.len() { next } else { 0 };
        self.index = index;
        self.last = candidates.get(index).map(|c| c.slot);
        Pick::of(index, candidates, fit)
    }
}
