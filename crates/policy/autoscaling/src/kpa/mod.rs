//! Knative's Pod Autoscaler, exactly: a stable and a panic window, rate limits, and a scale-down delay.
//! [`Decider`] is the autoscaler of one revision; the live policy ([`Kpa`]) feeds it.
//!
//! Source: `autoscaler.go` of Knative Serving. Its reconciler applies `min` and `max` afterwards.

mod decider;
#[cfg(test)]
mod knative_tests;
mod live;
mod window;

pub use decider::{Decider, Reading, Spec, State, Verdict};
pub use live::Kpa;
pub use window::Aggregation;
