//! Runs one policy on a recorded situation and returns its decision with the reason. The input is JSON:
//!
//! ```json
//! {"policy":"hpa","replicas":3,"spec":{"metrics":[{"kind":"utilization","target_percent":30}]},
//!  "instances":[{"state":"ready","usage":300,"request":1000}]}
//! ```
//! - `hpa`: a [`hpa::Case`]; returns a [`hpa::Outcome`] or a [`hpa::Failure`].
//! - `kpa`: `spec` ([`kpa::Spec`]), `state` ([`kpa::State`]) and `steps` of [`kpa::Reading`]s; returns a
//!   [`kpa::Verdict`] per step.
//! - every other policy: `spec` (its parameters), `state` (its memory; empty if unset) and `steps` with
//!   `now_ns` and an `observation` ([`model::Observation`]); returns a [`StepAnswer`] per step.
//!
//! A decision's [`case`](crate::Decision::case) is such an input, and so is an event that contains one.

use model::written::{self, Written};
use model::{Nanos, Observation};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use thiserror::Error;

use crate::{Autoscaler, Kpa, Policy, Quota, Reason, Relocation, hpa, kpa};

/// An invalid input.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{field}: {why}")]
pub struct Wrong {
    /// The field, as in `spec.metrics[0].target_percent`.
    pub field: String,
    /// Why.
    pub why: String,
}

impl Wrong {
    pub(crate) fn new(field: impl Into<String>, why: impl ToString) -> Wrong {
        Wrong {
            field: field.into(),
            why: why.to_string(),
        }
    }

    fn below(mut self, parent: &str) -> Wrong {
        self.field = match self.field.as_str() {
            "." => parent.to_owned(),
            field if field.starts_with('[') => format!("{parent}{field}"),
            field => format!("{parent}.{field}"),
        };
        self
    }
}

/// A policy's result.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Answer {
    /// HPA's decision.
    Hpa(hpa::Outcome),
    /// HPA's failure to decide.
    HpaFailed(hpa::Failure),
    /// KPA's verdicts, one per step.
    Kpa {
        /// In the order of the input.
        steps: Vec<kpa::Verdict>,
    },
    /// Another policy's decisions, one per step.
    Observed {
        /// In the order of the input.
        steps: Vec<StepAnswer>,
    },
}

/// A policy's decision on one observation.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StepAnswer {
    /// Wanted Active instances.
    pub replicas: u32,
    /// Changed quotas.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub quotas: Vec<Quota>,
    /// An instance that is wanted at another place.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub relocation: Option<Relocation>,
    /// The rule that decided, with its figures.
    pub reason: Reason,
}

/// Observations for a policy.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Observed {
    #[serde(default)]
    spec: Option<Value>,
    #[serde(default)]
    state: Option<Value>,
    steps: Vec<ObservedStep>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ObservedStep {
    now_ns: Nanos,
    observation: Observation,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct KpaCase {
    #[serde(default)]
    spec: kpa::Spec,
    #[serde(default)]
    state: kpa::State,
    steps: Vec<kpa::Reading>,
}

/// Runs the policy named in the input. An event of the log that contains a case is read as that case.
///
/// # Errors
/// Returns [`Wrong`] with the invalid field and the reason.
pub fn explain(text: &str) -> Result<Answer, Wrong> {
    let input = written::parse(text).map_err(|error| Wrong::new("input", error))?;
    let Value::Object(mut input) = input else {
        return Err(Wrong::new(
            "input",
            "the input must be an object, such as {\"policy\":\"hpa\", ...}",
        ));
    };
    if input.contains_key("event") {
        match input.remove("case") {
            Some(Value::Object(case)) => input = case,
            _ => return Err(Wrong::new("case", "this event contains no case")),
        }
    }
    let policy = match input.remove("policy") {
        Some(Value::String(policy)) => policy,
        Some(_) => return Err(Wrong::new("policy", "it must be a string")),
        None => {
            let known = Autoscaler::NAMES.join(", ");
            return Err(Wrong::new("policy", format!("it is missing; there are {known}")));
        }
    };
    let input = Value::Object(input);
    if policy == hpa::Hpa::NAME {
        let case: hpa::Case = read(input)?;
        check_hpa(&case)?;
        return Ok(match hpa::decide(&case) {
            Ok(outcome) => Answer::Hpa(outcome),
            Err(failure) => Answer::HpaFailed(failure),
        });
    }
    if policy == Kpa::NAME {
        let case: KpaCase = read(input)?;
        check_kpa(&case)?;
        let mut decider = kpa::Decider {
            spec: case.spec,
            state: case.state,
        };
        let steps = case.steps.iter().map(|reading| decider.step(reading)).collect();
        return Ok(Answer::Kpa { steps });
    }
    if Autoscaler::parameters_of(&policy).is_none() {
        return Err(Wrong::new("policy", crate::UnknownAutoscaler { name: policy }));
    }
    Autoscaler::explain(&policy, read(input)?)
}

/// Runs one policy on observations.
pub(crate) fn run_observed<P: Policy>(case: Observed) -> Result<Answer, Wrong> {
    let mut policy: P = match case.spec {
        Some(spec) => read(spec).map_err(|wrong| wrong.below("spec"))?,
        None => P::default(),
    };
    if let Some(state) = case.state {
        policy.restore(read(state).map_err(|wrong| wrong.below("state"))?);
    }
    let mut before = Nanos::ZERO;
    let mut steps = Vec::with_capacity(case.steps.len());
    for (index, step) in case.steps.iter().enumerate() {
        if step.now_ns < before {
            return Err(Wrong::new(
                format!("steps[{index}].now_ns"),
                "time runs backwards here",
            ));
        }
        before = step.now_ns;
        let decision = policy.step(&step.observation, step.now_ns);
        if let Some(fit) = policy.take_fit() {
            policy.give(fit.run());
        }
        steps.push(StepAnswer {
            replicas: decision.desired,
            quotas: decision.quotas,
            relocation: decision.relocation,
            reason: decision.reason,
        });
    }
    Ok(Answer::Observed { steps })
}

/// The case of a policy that decides on an observation.
pub(crate) fn observed_case<P: Policy>(policy: &P, observation: &Observation, now: Nanos) -> Value {
    let step = ObservedStep {
        now_ns: now,
        observation: observation.clone(),
    };
    tagged(
        P::NAME,
        &serde_json::json!({"spec": policy, "state": policy.state(), "steps": [step]}),
    )
}

/// A case tagged with its policy's name.
pub(crate) fn tagged(name: &str, case: &impl Serialize) -> Value {
    let mut value = serde_json::to_value(case).unwrap_or_default();
    if let Value::Object(object) = &mut value {
        object.insert("policy".to_owned(), name.into());
    }
    value
}

fn read<T: DeserializeOwned>(value: Value) -> Result<T, Wrong> {
    serde_path_to_error::deserialize(Written(&value)).map_err(|error| {
        let field = error.path().to_string();
        Wrong::new(field, error.into_inner())
    })
}

fn check_hpa(case: &hpa::Case) -> Result<(), Wrong> {
    let at_least = |field: &str, value: i64, least: i64| {
        if value >= least {
            Ok(())
        } else {
            Err(Wrong::new(field, format!("{value} is below {least}")))
        }
    };
    at_least("replicas", case.replicas.into(), 0)?;
    at_least("spec.min", case.spec.min.into(), 0)?;
    at_least("spec.max", case.spec.max.into(), case.spec.min.into())?;
    for (field, share) in [
        ("spec.tolerance.up", case.spec.tolerance.up),
        ("spec.tolerance.down", case.spec.tolerance.down),
    ] {
        if !(share.is_finite() && share >= 0.0) {
            return Err(Wrong::new(field, format!("{share} is below 0")));
        }
    }
    if let Some(desired) = case.desired {
        at_least("desired", desired.into(), 0)?;
    } else if case.spec.metrics.is_empty() {
        return Err(Wrong::new(
            "spec.metrics",
            "it is empty: give a metric, or `desired` to apply the limits only",
        ));
    }
    for (index, metric) in case.spec.metrics.iter().enumerate() {
        let (key, target) = match metric {
            hpa::Metric::Utilization { target_percent } => ("target_percent", *target_percent),
            hpa::Metric::InstancesAverage { target_average }
            | hpa::Metric::AverageValue { target_average, .. } => ("target_average", *target_average),
            hpa::Metric::Value { target, .. } => ("target", *target),
            hpa::Metric::Error { .. } => continue,
        };
        at_least(&format!("spec.metrics[{index}].{key}"), target, 1)?;
    }
    if let Some(behavior) = &case.spec.behavior {
        for (direction, rules) in [("up", &behavior.up), ("down", &behavior.down)] {
            for (index, policy) in rules.policies.iter().enumerate() {
                let field = format!("spec.behavior.{direction}.policies[{index}]");
                at_least(&format!("{field}.value"), policy.value.into(), 1)?;
                at_least(&format!("{field}.period_s"), policy.period_s.into(), 1)?;
            }
        }
    }
    for (index, instance) in case.instances.iter().flatten().enumerate() {
        for (key, value) in [("usage", instance.usage), ("request", instance.request)] {
            at_least(&format!("instances[{index}].{key}"), value.unwrap_or(0), 0)?;
        }
    }
    let recommendations = case.history.recommendations.iter().map(|r| r.age_s);
    let changes = case.history.changes.iter().map(|c| c.age_s);
    check_ages("history.recommendations", recommendations)?;
    check_ages("history.changes", changes)
}

fn check_ages(list: &str, ages: impl Iterator<Item = f64>) -> Result<(), Wrong> {
    for (index, age_s) in ages.enumerate() {
        if !(age_s.is_finite() && age_s >= 0.0) {
            let field = format!("{list}[{index}].age_s");
            return Err(Wrong::new(field, format!("{age_s} is below 0")));
        }
    }
    Ok(())
}

fn check_kpa(case: &KpaCase) -> Result<(), Wrong> {
    let spec = &case.spec;
    for (field, value) in [
        ("spec.target", spec.target),
        ("spec.total", spec.total),
        ("spec.panic_threshold", spec.panic_threshold),
        ("spec.max_scale_up_rate", spec.max_scale_up_rate),
        ("spec.max_scale_down_rate", spec.max_scale_down_rate),
    ] {
        if !(value.is_finite() && value > 0.0) {
            return Err(Wrong::new(field, format!("{value} must be above 0")));
        }
    }
    for (field, value) in [
        ("spec.stable_window_s", spec.stable_window_s),
        ("spec.scale_down_delay_s", spec.scale_down_delay_s),
    ] {
        if !(value.is_finite() && value >= 0.0) {
            return Err(Wrong::new(field, format!("{value} is below 0")));
        }
    }
    for (field, count) in [
        ("spec.activation_scale", spec.activation_scale),
        ("spec.min", spec.min),
        ("spec.max", spec.max),
        ("state.max_panic", case.state.max_panic),
    ] {
        if count < 0 {
            return Err(Wrong::new(field, format!("{count} is below 0")));
        }
    }
    for (index, step) in case.steps.iter().enumerate() {
        if step.stable.is_some() != step.panic.is_some() {
            let missing = if step.stable.is_some() { "panic" } else { "stable" };
            return Err(Wrong::new(
                format!("steps[{index}].{missing}"),
                "it is missing: a step needs both `stable` and `panic`, or neither",
            ));
        }
        for (key, value) in [("stable", step.stable), ("panic", step.panic)] {
            if value.is_some_and(|value| !(value.is_finite() && value >= 0.0)) {
                let why = format!("{} is below 0", value.unwrap_or_default());
                return Err(Wrong::new(format!("steps[{index}].{key}"), why));
            }
        }
    }
    Ok(())
}
