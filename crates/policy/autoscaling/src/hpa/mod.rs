//! Kubernetes' Horizontal Pod Autoscaler, exactly. [`calculator`] computes replicas from metrics; [`limits`]
//! applies stabilisation windows, rate policies and limits. One [`Case`] in, one [`Outcome`] out. The live
//! policy ([`Hpa`]) builds a case from its observations and calls the same function.
//!
//! Source: `replica_calculator.go` and `horizontal.go` of Kubernetes' pod autoscaler, with tolerances per
//! direction (KEP-4951). Counts have 32 bits, as there.

mod calculator;
mod case;
mod group;
#[cfg(test)]
mod kubernetes_tests;
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
/// Returns [`Failure`] with HPA's own reason: no metric could be read, or one could not and the others would scale
/// down.
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
    // Outside the limits metrics do not matter.
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
