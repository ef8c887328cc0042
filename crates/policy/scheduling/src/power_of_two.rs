use serde::{Deserialize, Serialize};

use crate::candidates::{below, mix};
use crate::{Candidates, NewFlow, Parameter, Policy};

/// An idle instance if there is one, else the better of two drawn at random (Horus, NSDI 2024; as SmartINCO §2.5 tells
/// it): nearly as even as looking at all of them, and many workers that decide at once do not all run to the same one.
///
/// Idle is an instance without a flow and, up to a thousandth of its capacity, without load. Among several the draw
/// decides where the search begins. The better one is the less utilised, then the one with fewer flows, then the first
/// drawn; one that fits is better than one that does not. The draw is the flow's hash, so that a decision can be
/// repeated.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PowerOfTwo {}

impl Policy for PowerOfTwo {
    const NAME: &'static str = "power-of-two";
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
        // One of the others.
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
