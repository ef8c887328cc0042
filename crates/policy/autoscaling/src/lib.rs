//! Decides how many instances a service has and how large they are: an observation in, a decision out. An
//! autoscaler never executes a decision, reads a clock or uses data beyond its observations, so the same code
//! decides live, in simulation and in explanations.
//!
//! Key types: [`Autoscaler`] (one of the policies, dispatched by enum), [`Decision`] (its result), [`Reason`]
//! (the rule that decided, with its figures) and [`explain`] (one policy on a recorded situation).
//!
//! Use:
//! 1. Make one [`Autoscaler`] per service with [`Autoscaler::from_name`] or [`Autoscaler::with_parameters`].
//! 2. Step it with each observation, usually every millisecond. A step that changes nothing does not
//!    allocate.
//! 3. Put [`Decision::desired`] into the next observation's [`wanted`](model::Observation::wanted). `wanted`
//!    includes requested instances that are not ready yet, so that they are not requested twice.
//! 4. Long computations run off the loop: [`Autoscaler::take_fit`] returns a [`Fit`], the caller runs it on
//!    any thread and passes the result to [`Autoscaler::give`].
//! 5. A step that changes something carries its [`case`](Decision::case): all its inputs, as [`explain`]
//!    takes them.
//!
//! To add a policy: one file with a type that implements [`Policy`], its `mod`, and a line in the list below.
//! A step has three parts, so that a decision can be reproduced: [`Policy::note`] records the observation,
//! [`Policy::judge`] decides without changing state, [`Policy::commit`] records the decision.
#![forbid(unsafe_code)]

pub mod explain;
mod fixed;
mod highest;
mod holt;
pub mod hpa;
mod inreal;
pub mod kpa;
mod ladder;
mod predictive;
mod reason;
mod relocation;
mod rise;
mod share;
mod smartinco;
mod threshold;
mod vertical;
mod work;

use std::fmt;

use model::{InstanceId, Nanos, Observation, span};
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use thiserror::Error;

pub use fixed::Fixed;
pub use hpa::Hpa;
pub use inreal::{Goal, InReal};
pub use kpa::Kpa;
pub use ladder::Ladder;
pub use model::Parameter;
pub use predictive::{Fit, Fitted, Predictive};
pub use reason::{FIGURE_LIMIT, Figure, Reason};
pub use smartinco::SmartInco;
pub use threshold::Threshold;

/// A wanted CPU quota.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Quota {
    /// The instance.
    pub instance: InstanceId,
    /// CPUs; 1.0 is one whole CPU.
    pub cpus: f64,
}

/// An instance that is wanted at another place: one there is to replace it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Relocation {
    /// The instance.
    pub instance: InstanceId,
    /// The place: a position in [`Observation::places`].
    pub to_place: u8,
    /// The rule that decided.
    pub reason: Reason,
}

/// An autoscaler's result.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Decision {
    /// Wanted Active instances, including those still starting. Always within the observation's limits.
    pub desired: u32,
    /// Quotas to change; empty if the policy changes none.
    pub quotas: Vec<Quota>,
    /// An instance that is wanted at another place, at most one in a step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub relocation: Option<Relocation>,
    /// The rule that decided.
    pub reason: Reason,
    /// In shadow mode, the number it would want.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shadow: Option<u32>,
    /// If the decision changes something: its inputs, as [`explain`] takes them.
    #[serde(skip)]
    pub case: Option<Box<serde_json::Value>>,
}

impl Decision {
    /// A count without quota changes.
    pub const fn count(desired: u32, reason: Reason) -> Decision {
        Decision {
            desired,
            quotas: Vec::new(),
            relocation: None,
            reason,
            shadow: None,
            case: None,
        }
    }

    /// Whether it asks for a change.
    pub fn changes(&self, observation: &Observation) -> bool {
        self.desired != observation.wanted || !self.quotas.is_empty() || self.relocation.is_some()
    }
}

/// In a [`Policy`]: its state is the field `state`, and where it is said, its stable window a field, too.
macro_rules! keeps_state {
    ($($window:ident)?) => {
        type State = State;

        fn state(&self) -> &State {
            &self.state
        }

        fn restore(&mut self, state: State) {
            self.state = state;
        }

        $(fn stable_window(&self) -> Nanos {
            self.$window
        })?
    };
}
pub(crate) use keeps_state;

/// The interface of a policy. Its parameters are its serialised form: unknown ones are rejected, missing ones
/// have defaults.
pub trait Policy: Default + Clone + Serialize + for<'de> Deserialize<'de> {
    /// The policy's name in configurations, labels and events.
    const NAME: &'static str;
    /// Its parameters.
    const PARAMETERS: &'static [Parameter];
    /// Whether it may want instances at other places, and so takes [`Observation::places`].
    const RELOCATES: bool = false;

    /// Its state between steps.
    type State: Serialize + DeserializeOwned;

    /// Its state.
    fn state(&self) -> &Self::State;

    /// What its sizes and places are for.
    fn goal(&self) -> Goal {
        Goal::Performance
    }

    /// Restores its state.
    fn restore(&mut self, state: Self::State);

    /// The averaging window for stable rates.
    fn stable_window(&self) -> Nanos {
        Nanos::from_secs(1)
    }

    /// Records an observation. Idempotent for the same observation and time.
    fn note(&mut self, _observation: &Observation, _now: Nanos) {}

    /// Decides without changing state. Does not allocate if nothing changes.
    fn judge(&self, observation: &Observation, now: Nanos) -> Decision;

    /// Records the decision.
    fn commit(&mut self, _observation: &Observation, _decision: &Decision, _now: Nanos) {}

    /// A long computation that is due, for the caller to run off the loop.
    fn take_fit(&mut self) -> Option<Fit> {
        None
    }

    /// Accepts the result of such a computation.
    fn give(&mut self, _fitted: Fitted) {}

    /// The inputs of [`judge`](Policy::judge), as [`explain`] takes them.
    fn case(&self, observation: &Observation, now: Nanos) -> serde_json::Value {
        explain::observed_case(self, observation, now)
    }

    /// Decides. `now` never goes backwards.
    fn step(&mut self, observation: &Observation, now: Nanos) -> Decision {
        self.note(observation, now);
        let mut decision = self.judge(observation, now);
        if decision.changes(observation) {
            decision.case = Some(Box::new(self.case(observation, now)));
        }
        self.commit(observation, &decision, now);
        decision
    }

    /// Whether this observation alone, without any window, needs more instances: the start of reaction-time
    /// measurements.
    fn is_overloaded(&self, observation: &Observation) -> bool {
        observation.hot || observation.unserved_fast_pps > 0.0
    }
}

/// An unknown autoscaler name.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("unknown autoscaler {name:?}; write one of {}{LEFT_OUT}", Autoscaler::NAMES.join(", "))]
pub struct UnknownAutoscaler {
    /// The requested name.
    pub name: String,
}

/// Names the policies that a build without forecasting lacks.
const LEFT_OUT: &str = if cfg!(feature = "forecasting") {
    ""
} else {
    " (this inco was built without predictive; `make build` makes one with it)"
};

macro_rules! policies {
    ($($(#[$only:meta])* $policy:ident,)*) => {
        /// One of the autoscaling policies, with its state. One per service.
        #[derive(Clone, Debug)]
        pub enum Autoscaler { $($(#[$only])* #[doc = concat!("[`", stringify!($policy), "`]")] $policy($policy),)* }

        impl Autoscaler {
            /// Every policy's name.
            pub const NAMES: &'static [&'static str] = &[$($(#[$only])* $policy::NAME,)*];

            /// The named policy with default parameters.
            ///
            /// # Errors
            /// Returns [`UnknownAutoscaler`] if no policy has that name.
            pub fn from_name(name: &str) -> Result<Autoscaler, UnknownAutoscaler> {
                $($(#[$only])* if name == $policy::NAME { return Ok(Autoscaler::$policy($policy::default())); })*
                Err(UnknownAutoscaler { name: name.to_owned() })
            }

            /// The named policy with `parameters`, a table of what [`Autoscaler::parameters_of`] lists.
            /// Durations are seconds, or text with a unit ("250ms", "1s", "5m").
            ///
            /// # Errors
            /// Returns the deserialiser's error if a name or parameter is unknown or a value is out of range.
            pub fn with_parameters<'de, D>(name: &str, parameters: D) -> Result<Autoscaler, D::Error>
            where
                D: Deserializer<'de>,
            {
                $($(#[$only])* if name == $policy::NAME { return $policy::deserialize(parameters).map(Autoscaler::$policy); })*
                Err(D::Error::custom(UnknownAutoscaler { name: name.to_owned() }))
            }

            /// The parameters of a policy; [`None`] if there is no such policy.
            pub fn parameters_of(name: &str) -> Option<&'static [Parameter]> {
                $($(#[$only])* if name == $policy::NAME { return Some($policy::PARAMETERS); })*
                None
            }

            /// Serialises the policy's own parameters, as [`Autoscaler::with_parameters`] reads them.
            ///
            /// # Errors
            /// Returns the serialiser's error.
            pub fn serialize_parameters<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                match self { $($(#[$only])* Autoscaler::$policy(policy) => policy.serialize(serializer),)* }
            }

            /// The policy's name.
            pub const fn name(&self) -> &'static str {
                match self { $($(#[$only])* Autoscaler::$policy(_) => $policy::NAME,)* }
            }

            /// Whether the policy takes [`Observation::places`].
            pub const fn relocates(&self) -> bool {
                match self { $($(#[$only])* Autoscaler::$policy(_) => $policy::RELOCATES,)* }
            }

            /// What the policy's sizes and places are for.
            pub fn goal(&self) -> Goal {
                match self { $($(#[$only])* Autoscaler::$policy(policy) => policy.goal(),)* }
            }

            /// The policy's averaging window for the observation's stable rates.
            pub fn stable_window(&self) -> Nanos {
                match self { $($(#[$only])* Autoscaler::$policy(policy) => policy.stable_window(),)* }
            }

            /// Decides on one observation. `now` never goes backwards.
            pub fn step(&mut self, observation: &Observation, now: Nanos) -> Decision {
                match self { $($(#[$only])* Autoscaler::$policy(policy) => policy.step(observation, now),)* }
            }

            /// A long computation that became due in a step. Run it off the loop and pass the result to
            /// [`Autoscaler::give`].
            pub fn take_fit(&mut self) -> Option<Fit> {
                match self { $($(#[$only])* Autoscaler::$policy(policy) => policy.take_fit(),)* }
            }

            /// Accepts the result of such a computation. Ignores another policy's.
            pub fn give(&mut self, fitted: Fitted) {
                match self { $($(#[$only])* Autoscaler::$policy(policy) => policy.give(fitted),)* }
            }

            /// Whether this observation alone, without any window, needs more instances: the start of
            /// reaction-time measurements.
            pub fn is_overloaded(&self, observation: &Observation) -> bool {
                match self { $($(#[$only])* Autoscaler::$policy(policy) => policy.is_overloaded(observation),)* }
            }

            /// Runs the named policy on recorded steps: see [`explain`].
            pub(crate) fn explain(name: &str, case: explain::Observed) -> Result<explain::Answer, explain::Wrong> {
                $($(#[$only])* if name == $policy::NAME { return explain::run_observed::<$policy>(case); })*
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
    #[cfg(feature = "forecasting")]
    Predictive,
    Ladder,
    InReal,
}

impl Default for Autoscaler {
    fn default() -> Self {
        Autoscaler::Ladder(Ladder::default())
    }
}

impl fmt::Display for Autoscaler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// `desired` clamped to the observation's limits. `max` wins if `min` is above it.
fn within_limits(desired: u32, observation: &Observation) -> u32 {
    desired.max(observation.min).min(observation.max)
}

/// A usable rate: 0 if negative or not a number.
fn finite(rate: f64) -> f64 {
    if rate.is_finite() { rate.max(0.0) } else { 0.0 }
}

/// The mean capacity of the wanted instances; [`None`] if none is known.
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
