//! Which instance a new flow is given to. A scheduler looks at the candidates of one service and names one of them;
//! it never pins, forwards, allocates or reads a clock, and it is never asked about a flow that is pinned already.
//!
//! Key types: [`Scheduler`] (one of the policies, dispatched by enum), [`Candidate`] (an Active instance as the
//! worker sees it), [`NewFlow`] (what is known of the flow) and [`Pick`] (the answer).
//!
//! How a worker uses it:
//! 1. It makes one [`Scheduler`] per service with [`Scheduler::from_name`].
//! 2. When a snapshot of instances is published, it fills one slice of [`Candidate`]s per service, **in ascending
//!    order of slot**, of the Active instances alone.
//! 3. For each new flow it calls [`Scheduler::pick`], pins the flow to the candidate picked, and adds
//!    [`NewFlow::expected_pps`] to that candidate's [`load_pps`](Candidate::load_pps) and 1 to its
//!    [`live_flows`](Candidate::live_flows), so that a burst of new flows does not land on one instance.
//!
//! A policy is one file with a type that implements [`Policy`], its `mod` and its line in the list below.
#![forbid(unsafe_code)]

mod best_fit;
mod round_robin;
mod worst_fit;

use std::fmt;

use model::{FlowKey, Slot};
use serde::{Deserialize, Serialize};
use thiserror::Error;

pub use best_fit::BestFit;
pub use round_robin::RoundRobin;
pub use worst_fit::WorstFit;

/// An instance that takes new flows, as one worker sees it. Only Active instances are candidates.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Candidate {
    /// Its place in the data plane. Candidates are in ascending order of it.
    pub slot: Slot,
    /// Packets per second that it can process; 0 or less means that it fits nothing.
    pub capacity_pps: f32,
    /// Packets per second that it is given: the fast-window rate, and the estimate of the flows pinned since that
    /// window began.
    pub load_pps: f32,
    /// Its share among the candidates for policies that use weights, out of 256.
    pub weight: u16,
    /// Flows pinned to it.
    pub live_flows: u32,
}

impl Candidate {
    /// Whether one more flow fits: load < capacity × `fit`, before the flow is added. A load or capacity that is
    /// not a number fits nothing.
    #[inline]
    pub fn fits(&self, fit: f32) -> bool {
        self.load_pps < self.capacity_pps * fit
    }

    /// Load as a share of the capacity; infinite where the capacity is not above 0 or either is not a number.
    #[inline]
    pub fn utilisation(&self) -> f32 {
        let share = self.load_pps / self.capacity_pps;
        // Written so that NaN fails both comparisons.
        if self.capacity_pps > 0.0 && share > f32::NEG_INFINITY {
            share
        } else {
            f32::INFINITY
        }
    }
}

/// A flow that is not pinned yet.
#[derive(Clone, Copy, Debug)]
pub struct NewFlow<'a> {
    /// Its key, the same for both directions.
    pub key: &'a FlowKey,
    /// The key's hash, as the flow table uses it.
    pub hash: u64,
    /// Packets per second that it will probably bring.
    pub expected_pps: f32,
    /// Its DSCP, 0 to 63.
    pub dscp: u8,
}

/// What a scheduler answers: an index into the candidates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pick {
    /// The flow fits this candidate.
    Fits(usize),
    /// The flow goes to this candidate although it does not fit there: best-fit and worst-fit answer so when it
    /// fits nowhere (and give the least loaded one), round-robin when it is that candidate's turn.
    Overcommitted(usize),
    /// There is no candidate.
    None,
}

impl Pick {
    /// The candidate's index, where there is one.
    #[inline]
    pub const fn index(self) -> Option<usize> {
        match self {
            Pick::Fits(index) | Pick::Overcommitted(index) => Some(index),
            Pick::None => None,
        }
    }

    /// The pick of `index`, by whether the flow fits there.
    #[inline]
    fn of(index: usize, candidates: &[Candidate], fit: f32) -> Pick {
        match candidates.get(index) {
            Some(candidate) if candidate.fits(fit) => Pick::Fits(index),
            Some(_) => Pick::Overcommitted(index),
            None => Pick::None,
        }
    }
}

/// What a policy implements. `pick` must not allocate, must answer [`Pick::None`] for no candidates and for nothing
/// else, and must depend on nothing but its arguments and its own state.
pub trait Policy: Default {
    /// The policy's name in configurations, labels and events.
    const NAME: &'static str;

    /// Picks a candidate for one new flow. `fit` is the share of capacity that scheduling may use.
    fn pick(&mut self, flow: &NewFlow<'_>, candidates: &[Candidate], fit: f32) -> Pick;
}

/// A scheduler's name that no policy has.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("there is no scheduler {name:?}; there are {}", Scheduler::NAMES.join(", "))]
pub struct UnknownScheduler {
    /// What was asked for.
    pub name: String,
}

macro_rules! policies {
    ($($policy:ident,)*) => {
        /// One of the scheduling policies, with its state. One per service and worker.
        #[derive(Clone, Debug)]
        pub enum Scheduler { $(#[doc = concat!("[`", stringify!($policy), "`]")] $policy($policy),)* }

        impl Scheduler {
            /// Every policy's name.
            pub const NAMES: &'static [&'static str] = &[$($policy::NAME,)*];

            /// The policy of that name, in its initial state.
            ///
            /// # Errors
            /// [`UnknownScheduler`] where no policy has that name.
            pub fn from_name(name: &str) -> Result<Scheduler, UnknownScheduler> {
                $(if name == $policy::NAME { return Ok(Scheduler::$policy($policy::default())); })*
                Err(UnknownScheduler { name: name.to_owned() })
            }

            /// The policy's name.
            pub const fn name(&self) -> &'static str {
                match self { $(Scheduler::$policy(_) => $policy::NAME,)* }
            }

            /// Picks one of `candidates` (the Active instances of the flow's service in ascending order of slot) for
            /// `flow`. `fit` is the share of capacity that scheduling may use, 0 to 1. Does not allocate.
            #[inline]
            pub fn pick(&mut self, flow: &NewFlow<'_>, candidates: &[Candidate], fit: f32) -> Pick {
                match self { $(Scheduler::$policy(policy) => policy.pick(flow, candidates, fit),)* }
            }
        }
    };
}

policies! {
    RoundRobin,
    BestFit,
    WorstFit,
}

impl fmt::Display for Scheduler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The index of the least utilised candidate; among equals the one with the fewest live flows, then the first.
#[inline]
fn least_utilised(candidates: &[Candidate]) -> Option<usize> {
    let (first, rest) = candidates.split_first()?;
    let (mut best, mut lowest, mut flows) = (0, first.utilisation(), first.live_flows);
    for (index, candidate) in rest.iter().enumerate() {
        let utilisation = candidate.utilisation();
        if utilisation < lowest || (utilisation == lowest && candidate.live_flows < flows) {
            (best, lowest, flows) = (index + 1, utilisation, candidate.live_flows);
        }
    }
    Some(best)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_makes_its_policy() {
        for name in Scheduler::NAMES {
            assert_eq!(Scheduler::from_name(name).unwrap().name(), *name);
        }
        let error = Scheduler::from_name("best").unwrap_err();
        assert_eq!(
            error.to_string(),
            "there is no scheduler \"best\"; there are round-robin, best-fit, worst-fit"
        );
    }

    #[test]
    fn a_load_or_capacity_that_is_no_number_fits_nothing() {
        let candidate = |capacity_pps, load_pps| Candidate {
            slot: Slot(0),
            capacity_pps,
            load_pps,
            weight: 256,
            live_flows: 0,
        };
        for broken in [
            candidate(f32::NAN, 1.0),
            candidate(1.0, f32::NAN),
            candidate(0.0, 0.0),
            candidate(-1.0, 0.0),
        ] {
            assert!(!broken.fits(0.9), "{broken:?}");
            assert_eq!(broken.utilisation(), f32::INFINITY, "{broken:?}");
        }
        assert!(candidate(10.0, 8.9).fits(0.9));
        assert!(!candidate(10.0, 9.0).fits(0.9));
    }
}
