use edge_steering::{draws, goes_by_load};
use serde::{Deserialize, Serialize};

use crate::{Candidate, Candidates, Maglev, NewFlow, Parameter, Policy};

/// The less loaded of two machines, by what they report of themselves (power of two choices, as `edge-steering` has it).
/// The two come from the flow's hash and Maglev's table; or they are the first ones of [`NewFlow::among`] that take new
/// flows, where other edges have to find the flow. For instances that are machines behind tunnels: their load is
/// that of all instances there, whoever gave them their flows.
///
/// A report that is late counts less ([`Candidate::trust`](crate::Candidate::trust)): the older of both says how likely
/// it is that a flow goes by loads. Otherwise the flow goes to the first of its two. So machines that do not report get
/// their share by hash, and instances of other kinds are always believed. A machine whose utilisation is
/// [`Machines::WITHDRAWN`] takes no new flows, unless all that were drawn do so.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Machines {
    by_hash: Maglev,
}

impl Machines {
    /// The utilisation that stands for a machine that takes no new flows: a number, so that it can be written.
    pub const WITHDRAWN: f32 = 1e12;

    /// Whether a machine takes new flows, by its report.
    #[inline]
    pub fn takes_flows(machine: &Candidate) -> bool {
        !Self::is_withdrawn(machine.utilisation())
    }

    /// Whether that is meant. Loads are rounded, and a fresh instance's counts as larger.
    #[inline]
    fn is_withdrawn(utilisation: f32) -> bool {
        // Not-a-number is infinite there.
        utilisation >= Self::WITHDRAWN / 2.0
    }
}

impl Policy for Machines {
    const NAME: &'static str = "machines";
    const RULE: &'static str = "the less loaded of two machines by their reports";
    const BY_FLOW: bool = true;
    const PARAMETERS: &'static [Parameter] = Maglev::PARAMETERS;

    fn refill(&mut self, candidates: &Candidates) {
        self.by_hash.refill(candidates);
    }

    fn settle(&mut self, candidates: &Candidates) {
        self.by_hash.settle(candidates);
    }

    #[inline]
    fn choose(&mut self, flow: &NewFlow<'_>, candidates: &Candidates) -> usize {
        let of = |index: usize| {
            let trust = candidates.get(index).map_or(0.0, |row| row.trust);
            (candidates.ramped_utilisation(index), trust)
        };
        let takes = |index: &usize| !Self::is_withdrawn(of(*index).0);
        let named = flow.among.iter().filter_map(|slot| candidates.index_of(*slot));
        let mut named = named.filter(takes);
        let (first, second) = if let Some(first) = named.next() {
            (first, named.next())
        } else {
            let drawn = || draws(flow.hash).map(|hash| self.by_hash.table.index(hash, candidates));
            let mut machines = drawn().filter(takes);
            let Some(first) = machines.next() else {
                // All that were drawn take none.
                return drawn().next().unwrap_or(0);
            };
            (first, machines.find(|index| *index != first))
        };
        let Some(second) = second else { return first };
        let ((load, trust), (other_load, other_trust)) = (of(first), of(second));
        // Not-a-number is not believed.
        let is_believed =
            trust >= 0.0 && other_trust >= 0.0 && goes_by_load(flow.hash, trust.min(other_trust));
        if is_believed && other_load < load {
            second
        } else {
            first
        }
    }
}
