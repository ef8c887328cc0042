//! How many instances a service should have, and how large they should be: an observation in, a decision out. An
//! autoscaler never carries a decision out, reads a clock or keeps a figure that it was not shown, so the same code
//! decides live, in simulation and in an explanation.
//!
//! Key types: [`Autoscaler`] (one of the policies, dispatched by enum), [`Decision`] (what it wants) and [`Reason`]
//! (the rule that decided, with its figures).
//!
//! How it is used:
//! 1. One [`Autoscaler`] per service, made by [`Autoscaler::from_name`] or [`Autoscaler::with_parameters`].
//! 2. It is stepped with each observation, usually every millisecond. A step that changes nothing allocates nothing.
//! 3. Whoever carries the decision out puts [`Decision::desired`] into the next observation's
//!    [`wanted`](model::Observation::wanted). Instances that were asked for and are not ready yet are part of
//!    `wanted`, so that they are not asked for twice.
//!
//! A policy is one file with a type that implements [`Policy`], its `mod` and its line in the list below.
#![forbid(unsafe_code)]

mod fixed;
mod reason;
mod smartinco;
mod span;

use std::fmt;

use model::{InstanceId, Nanos, Observation};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use thiserror::Error;

pub use fixed::Fixed;
pub use reason::{FIGURE_LIMIT, Figure, Reason};
pub use smartinco::SmartInco;

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
}

/// What a policy implements. Its parameters are its serialised form: unknown ones are refused, missing ones have a
/// default.
pub trait Policy: Default + for<'de> Deserialize<'de> {
    /// The policy's name in configurations, labels and events.
    const NAME: &'static str;
    /// The names of its parameters.
    const PARAMETERS: &'static [&'static str];

    /// The span over which stable rates should be taken.
    fn stable_window(&self) -> Nanos {
        Nanos::from_secs(1)
    }

    /// Decides. `now` never goes back.
    fn step(&mut self, observation: &Observation, now: Nanos) -> Decision;

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
            pub fn parameters_of(name: &str) -> Option<&'static [&'static str]> {
                $(if name == $policy::NAME { return Some($policy::PARAMETERS); })*
                None
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

            /// Whether this moment, taken by itself and without any window, asks for more instances: where the time
            /// that a decision takes is counted from.
            pub fn is_overloaded(&self, observation: &Observation) -> bool {
                match self { $(Autoscaler::$policy(policy) => policy.is_overloaded(observation),)* }
            }
        }
    };
}

policies! {
    SmartInco,
    Fixed,
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
