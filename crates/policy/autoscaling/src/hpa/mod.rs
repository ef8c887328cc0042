//! Kubernetes' Horizontal Pod Autoscaler, exactly: how many replicas follow from the metrics ([`calculator`]), and what
//! stabilisation windows, rate policies and limits leave of that ([`limits`]). One [`Case`] in, one [`Outcome`] out;
//! the live policy ([`Hpa`]) fills such a case from what it observes and calls the same function.
//!
//! Source: `replica_calculator.go` and `horizontal.go` of Kubernetes' pod autoscaler, with tolerances per direction
//! (KEP-4951). Counts are 32 bits wide there, so they are here.

mod calculator;
mod case;
mod group;
#[cfg(test)]
mod kubernetes;
mod limits;
mod live;

pub use case::{
    Behavior, Case, Change, Failure, History, Instance, Metric, Outcome, RatePolicy, RateType,
    Recommendation, Result, Rules, Select, Spec, State, Tolerance,
};
pub use group::{Pod, Readiness, Sample, Timing, group};
pub use live::Hpa;

use calculator::Proposal;

/// Decides on one case.
///
/// # Errors
/// [`Failure`], under HPA's own name: no metric could be read, or one could not and the others would scale down.
pub fn decide(case: &Case) -> Result {
    let (min, max) = (case.spec.min, case.spec.max);
    let outcome = |replicas, proposal, utilization_percent, reason| {
        Ok(Outcome {
            replicas,
            proposal,
            utilization_percent,
            reason,
        })
    };
    if case.replicas == 0 && min != 0 {
        return outcome(0, 0, None, "ScalingDisabled");
    }
    // Outside of the limits nobody looks at metrics.
    if case.desired.is_none() && case.replicas > max {
        return outcome(max, max, None, "TooManyReplicas");
    }
    if case.desired.is_none() && case.replicas < min {
        return outcome(min, min, None, "TooFewReplicas");
    }
    let proposal = match case.desired {
        Some(replicas) => Proposal::of(replicas),
        None => calculator::propose(case)?,
    };
    let (replicas, reason) = limits::apply(case, proposal.replicas);
    outcome(replicas, proposal.replicas, proposal.utilization_percent, reason)
}
