use model::mix;
use serde::{Deserialize, Serialize};

use crate::candidates::below;
use crate::{Candidates, NewFlow, Parameter, Policy};

/// An idle instance if there is one, else the better of two random choices (Horus, NSDI 2024, as described in
/// SmartINCO §2.5). Nearly as even as comparing all, and concurrent workers do not all pick the same one.
///
/// An instance is idle without flows and with a load below a thousandth of its capacity. The draw decides
/// where the search for an idle one starts. Of two, the better fits, then is less utilised, then has fewer
/// flows, then was drawn first. The draw is the flow's hash, so that a decision can be reproduced.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PowerOfTwo {}

impl Policy for PowerOfTwo {
    const NAME: &'static str = "power-of-two";
    const RULE: &'static str = "idle, or the better of two drawn";
    const BY_FLOW: bool = true;
    const PARAMETERS: &'static [Parameter] = &[];

    #[inline]
    fn choose(&mut self, flow: &NewFlow<'_>, candidates: &Candidates) -> usize {
        let draw = mix(flow.hash);
        let count = candidates.len();
        let first = below(draw as u32, count);
        if let Some(idle) = candidates.next_idle(first) {
            return idle;
        }
        // A different one.
        let second = (first + 1 + below((draw >> 32) as u32, count.saturating_sub(1))) % count.max(1);
        let cost = |index: usize| {
            let flows = candidates.get(index).map_or(0, |row| row.live_flows);
            (
                !candidates.fits(index),
                candidates.ramped_utilisation(index),
                flows,
            )
        };
        if cost(second) < cost(first) { second } else { first }
    }
}
