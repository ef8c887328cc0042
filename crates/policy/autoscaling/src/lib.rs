//! How many instances a service should have, and how large they should be: an observation in, a decision out. An
//! autoscaler never carries a decision out, reads a clock or keeps a figure that it was not shown, so the same code
//! decides live, in simulation and in an explanation.
//!
//! Key types: [`Autoscaler`] (one of the policies, dispatched by enum), [`Decision`] (what it wants), [`Reason`]
//! (the rule that decided, with its figures) and [`explain`] (one policy on a situation that is written down).
//!
//! How it is used:
//! 1. One [`Autoscaler`] per service, made by [`Autoscaler::from_name`] or [`Autoscaler::with_parameters`].
//! 2. It is stepped with each observation, usually every millisecond. A step that changes nothing allocates nothing.
//! 3. Whoever carries the decision out puts [`Decision::desired`] into the next observation's
//!    [`wanted`](model::Observation::wanted). Instances that were asked for and are not ready yet are part of
//!    `wanted`, so that they are not asked for twice.
//! 4. Work that takes longer than a step may ([`Fit`]) is handed out by [`Autoscaler::take_fit`]; its caller runs it
//!    on any thread and gives back what comes of it.
//! 5. A step that changes something carries its [`case`](Decision::case): all that it rested on, as [`explain`] takes it.
//!
//! A policy is one file with a type that implements [`Policy`], its `mod` and its line in the list below. Its step has
//! three parts, so that a decision can be repeated from what was known at its time: [`Policy::note`] takes in what is
//! seen, [`Policy::judge`] decides and changes nothing, [`Policy::commit`] remembers what was decided.
#![forbid(unsafe_code)]

pub mod explain;
mod fixed;
mod highest;
mod holt;
pub mod hpa;
pub mod kpa;
mod ladder;
mod predictive;
mod reason;
mod share;
mod smartinco;
mod threshold;
mod vertical;

use std::fmt;

use model::{InstanceId, Nanos, Observation, span};
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use thiserror::Error;

pub use fixed::Fixed;
pub use hpa::Hpa;
pub use kpa::Kpa;
pub use ladder::Ladder;
pub use predictive::{Fit, Fitted, Predictive};
pub use reason::{FIGURE_LIMIT, Figure, Reason};
pub use smartinco::SmartInco;
pub use threshold::Threshold;

/// A CPU quota that an instance should have.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Quota {
    /// Which instance.
    pub instance: InstanceId,
    /// CPUs, 1.0 being one whole.
    pub cpus: f64,
}

/// What an autoscaler wants.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Decision {
    /// Active instances wanted, those that have yet to become so included. Always within the observation's limits.
    pub desired: u32,
    /// Quotas to change; empty where the policy leaves them alone.
    pub quotas: Vec<Quota>,
    /// The rule that decided.
    pub reason: Reason,
    /// How many it would want if it were not told only to say so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shadow: Option<u32>,
    /// Where the decision changes something: what it rested on, as [`explain`] takes it.
    #[serde(skip)]
    pub case: Option<Box<serde_json::Value>>,
}

impl Decision {
    /// So many instances and no change of quotas.
    pub const fn count(desired: u32, reason: Reason) -> Decision {
        Decision {
            desired,
            quotas: Vec::new(),
            reason,
            shadow: None,
            case: None,
        }
    }

    /// Whether it asks for anything that is not so already.
    pub fn changes(&self, observation: &Observation) -> bool {
        self.desired != observation.wanted || !self.quotas.is_empty()
    }
}

/// A parameter of a policy, as the reference of the configuration shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// The key.
    pub name: &'static str,
    /// What may be written, with its unit.
    pub kind: &'static str,
    /// What holds where it is not written.
    pub default: &'static str,
    /// What it does.
    pub meaning: &'static str,
}

impl Parameter {
    /// A parameter.
    pub const fn new(
        name: &'static str,
        kind: &'static str,
        default: &'static str,
        meaning: &'static str,
    ) -> Parameter {
        Parameter {
            name,
            kind,
            default,
            meaning,
        }
    }
}

/// What a policy implements. Its parameters are its serialised form: unknown ones are refused, missing ones have a
/// default.
pub trait Policy: Default + Clone + Serialize + for<'de> Deserialize<'de> {
    /// The policy's name in configurations, labels and events.
    const NAME: &'static str;
    /// Its parameters.
    const PARAMETERS: &'static [Parameter];

    /// What it remembers from step to step.
    type State: Serialize + DeserializeOwned;

    /// What it remembers.
    fn state(&self) -> &Self::State;

    /// Puts back what it remembered.
    fn restore(&mut self, state: Self::State);

    /// The span over which stable rates should be taken.
    fn stable_window(&self) -> Nanos {
        Nanos::from_secs(1)
    }

    /// Takes in what is seen. Noting the same observation at the same time twice is the same as once.
    fn note(&mut self, _observation: &Observation, _now: Nanos) {}

    /// Decides on what was noted, and changes nothing. Does not allocate where it decides for what is.
    fn judge(&self, observation: &Observation, now: Nanos) -> Decision;

    /// Remembers what was decided.
    fn commit(&mut self, _observation: &Observation, _decision: &Decision, _now: Nanos) {}

    /// Work that has become due and takes longer than a step may, for its caller to run.
    fn take_fit(&mut self) -> Option<Fit> {
        None
    }

    /// What came of such work.
    fn give(&mut self, _fitted: Fitted) {}

    /// What [`judge`](Policy::judge) goes by, as [`explain`] takes it.
    fn case(&self, observation: &Observation, now: Nanos) -> serde_json::Value {
        explain::observed_case(self, observation, now)
    }

    /// Decides. `now` never goes back.
    fn step(&mut self, observation: &Observation, now: Nanos) -> Decision {
        self.note(observation, now);
        let mut decision = self.judge(observation, now);
        if decision.changes(observation) {
            decision.case = Some(Box::new(self.case(observation, now)));
        }
        self.commit(observation, &decision, now);
        decision
    }

    /// Whether this moment, taken by itself and without any window, asks for more instances: where the time that a
    /// decision takes is counted from.
    fn is_overloaded(&self, observation: &Observation) -> bool {
        observation.hot || observation.unserved_fast_pps > 0.0
    }
}

/// An autoscaler's name that no policy has.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("there is no autoscaler {name:?}; there are {}", Autoscaler::NAMES.join(", "))]
pub struct UnknownAutoscaler {
    /// What was asked for.
    pub name: String,
}

macro_rules! policies {
    ($($policy:ident,)*) => {
        /// One of the autoscaling policies, with its state. One per service.
        #[derive(Clone, Debug)]
        pub enum Autoscaler { $(#[doc = concat!("[`", stringify!($policy), "`]")] $policy($policy),)* }

        impl Autoscaler {
            /// Every policy's name.
            pub const NAMES: &'static [&'static str] = &[$($policy::NAME,)*];

            /// The policy of that name with default parameters.
            ///
            /// # Errors
            /// [`UnknownAutoscaler`] where no policy has that name.
            pub fn from_name(name: &str) -> Result<Autoscaler, UnknownAutoscaler> {
                $(if name == $policy::NAME { return Ok(Autoscaler::$policy($policy::default())); })*
                Err(UnknownAutoscaler { name: name.to_owned() })
            }

            /// The policy of that name with the parameters in `parameters`: a table of what
            /// [`Autoscaler::parameters_of`] lists. Spans are seconds, or text with a unit ("250ms", "1s", "5m").
            ///
            /// # Errors
            /// The deserialiser's own, for an unknown name, an unknown parameter and a value out of range.
            pub fn with_parameters<'de, D>(name: &str, parameters: D) -> Result<Autoscaler, D::Error>
            where
                D: Deserializer<'de>,
            {
                $(if name == $policy::NAME { return $policy::deserialize(parameters).map(Autoscaler::$policy); })*
                Err(D::Error::custom(UnknownAutoscaler { name: name.to_owned() }))
            }

            /// The parameters that a policy has, [`None`] where there is no such policy.
            pub fn parameters_of(name: &str) -> Option<&'static [Parameter]> {
                $(if name == $policy::NAME { return Some($policy::PARAMETERS); })*
                None
            }

            /// Writes the policy's own parameters: what [`Autoscaler::with_parameters`] reads.
            ///
            /// # Errors
            /// The serialiser's own.
            pub fn serialize_parameters<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                match self { $(Autoscaler::$policy(policy) => policy.serialize(serializer),)* }
            }

            /// The policy's name.
            pub const fn name(&self) -> &'static str {
                match self { $(Autoscaler::$policy(_) => $policy::NAME,)* }
            }

            /// The span over which the observation's stable rates should be taken for this policy.
            pub fn stable_window(&self) -> Nanos {
                match self { $(Autoscaler::$policy(policy) => policy.stable_window(),)* }
            }

            /// Decides on one observation. `now` never goes back.
            pub fn step(&mut self, observation: &Observation, now: Nanos) -> Decision {
                match self { $(Autoscaler::$policy(policy) => policy.step(observation, now),)* }
            }

            /// Work that became due in a step and takes longer than a step may: to be run where there is time for it,
            /// and what comes of it to be given back.
            pub fn take_fit(&mut self) -> Option<Fit> {
                match self { $(Autoscaler::$policy(policy) => policy.take_fit(),)* }
            }

            /// Takes in what came of such work. What is not this policy's is left out.
            pub fn give(&mut self, fitted: Fitted) {
                match self { $(Autoscaler::$policy(policy) => policy.give(fitted),)* }
            }

            /// Whether this moment, taken by itself and without any window, asks for more instances: where the time
            /// that a decision takes is counted from.
            pub fn is_overloaded(&self, observation: &Observation) -> bool {
                match self { $(Autoscaler::$policy(policy) => policy.is_overloaded(observation),)* }
            }

            /// Runs the policy of that name on steps that were written down: see [`explain`].
            pub(crate) fn explain(name: &str, case: explain::Observed) -> Result<explain::Answer, explain::Wrong> {
                $(if name == $policy::NAME { return explain::run_observed::<$policy>(case); })*
                Err(explain::Wrong::new("policy", UnknownAutoscaler { name: name.to_owned() }))
            }
        }
    };
}

policies! {
    SmartInco,
    Fixed,
    Hpa,
    Kpa,
    Threshold,
    Predictive,
    Ladder,
}

impl fmt::Display for Autoscaler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// `desired` within the observation's limits. Where `min` is above `max`, `max` holds.
fn within_limits(desired: u32, observation: &Observation) -> u32 {
    desired.max(observation.min).min(observation.max)
}

/// A rate that can be reckoned with: what is not a number or below 0 is 0.
fn finite(rate: f64) -> f64 {
    if rate.is_finite() { rate.max(0.0) } else { 0.0 }
}

/// The mean capacity of the instances that work or will, [`None`] where none is known.
fn mean_capacity_pps(observation: &Observation) -> Option<f64> {
    use model::InstanceState::{Failed, Gone, Stopping};
    let (mut sum, mut count) = (0.0, 0u32);
    for instance in &observation.instances {
        let usable = !matches!(instance.state, Failed | Stopping | Gone);
        if usable && instance.capacity_pps.is_finite() && instance.capacity_pps > 0.0 {
            sum += instance.capacity_pps;
            count += 1;
        }
    }
    (count > 0).then(|| sum / f64::from(count))
}
