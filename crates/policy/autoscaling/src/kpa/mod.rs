//! Knative's Pod Autoscaler, exactly: a stable and a panic window, limits on how fast it may go, and a delay before it
//! goes down. [`Decider`] is one revision's autoscaler; the live policy ([`Kpa`]) feeds it.
//!
//! Source: `autoscaler.go` of Knative Serving; the limits `min` and `max` are what its reconciler applies after.

mod decider;
#[cfg(test)]
mod knative;
mod live;
mod window;

pub use decider::{Decider, Reading, Spec, State, Verdict};
pub use live::Kpa;
pub use window::Aggregation;
