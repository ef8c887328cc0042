use serde::{Deserialize, Deserializer, Serialize};
use thiserror::Error;

/// All inputs of one HPA decision.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    /// Currently wanted replicas.
    pub replicas: i32,
    /// The user's specification.
    #[serde(default)]
    pub spec: Spec,
    /// A proposal to apply windows, rates and limits to, instead of one computed from metrics.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub desired: Option<i32>,
    /// The pods. Unset: as many ready pods as replicas, without samples. That is enough for metrics not
    /// measured per instance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instances: Option<Vec<Instance>>,
    /// Earlier proposals and changes.
    #[serde(default)]
    pub history: History,
}

/// The user's HPA specification.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Spec {
    /// Minimum replicas; 0 allows scaling to zero.
    pub min: i32,
    /// Maximum replicas.
    pub max: i32,
    /// No change while the ratio of usage to target is within this tolerance.
    pub tolerance: Tolerance,
    /// The metrics; the highest proposal wins.
    pub metrics: Vec<Metric>,
    /// Rate limits and windows. `null`: neither. Unset: Kubernetes' defaults.
    pub behavior: Option<Behavior>,
}

impl Default for Spec {
    fn default() -> Self {
        Spec {
            min: 1,
            max: i32::MAX,
            tolerance: Tolerance::default(),
            metrics: Vec::new(),
            behavior: Some(Behavior::default()),
        }
    }
}

/// Permitted deviation from the target, as a share of it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Tolerance {
    /// Above the target.
    pub up: f64,
    /// Below it.
    pub down: f64,
}

impl Default for Tolerance {
    fn default() -> Self {
        Tolerance { up: 0.1, down: 0.1 }
    }
}

impl Tolerance {
    pub(super) fn is_valid(self) -> bool {
        [self.up, self.down]
            .iter()
            .all(|share| share.is_finite() && *share >= 0.0)
    }

    pub(super) fn holds(self, ratio: f64) -> bool {
        (1.0 - self.down) <= ratio && ratio <= (1.0 + self.up)
    }
}

/// A metric and its target.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", try_from = "WrittenMetric")]
pub enum Metric {
    /// The instances' usage as a percentage of their requests (Kubernetes' resource metrics).
    Utilization {
        /// Percent, 1 or more.
        target_percent: i64,
    },
    /// The instances' mean usage (pods metrics, and resource metrics with a plain value).
    InstancesAverage {
        /// In the unit of the usage, 1 or more.
        target_average: i64,
    },
    /// One value for all instances (object and external metrics).
    Value {
        /// The measured value.
        value: i64,
        /// The target, 1 or more.
        target: i64,
    },
    /// One value shared by all instances (object and external metrics per pod).
    AverageValue {
        /// The measured total.
        value: i64,
        /// The target per instance, 1 or more.
        target_average: i64,
    },
    /// The reason.
    Error {
        /// Why.
        message: String,
    },
}

/// A metric's serialised form. Fields are parsed before the kind is checked, so that errors name the field.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenMetric {
    kind: Kind,
    target_percent: Option<i64>,
    target_average: Option<i64>,
    value: Option<i64>,
    target: Option<i64>,
    message: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Kind {
    Utilization,
    InstancesAverage,
    Value,
    AverageValue,
    Error,
}

impl TryFrom<WrittenMetric> for Metric {
    type Error = String;

    fn try_from(mut written: WrittenMetric) -> std::result::Result<Metric, String> {
        fn take<T>(name: &str, field: &mut Option<T>) -> std::result::Result<T, String> {
            field.take().ok_or_else(|| format!("missing field `{name}`"))
        }
        let metric = match written.kind {
            Kind::Utilization => Metric::Utilization {
                target_percent: take("target_percent", &mut written.target_percent)?,
            },
            Kind::InstancesAverage => Metric::InstancesAverage {
                target_average: take("target_average", &mut written.target_average)?,
            },
            Kind::Value => Metric::Value {
                value: take("value", &mut written.value)?,
                target: take("target", &mut written.target)?,
            },
            Kind::AverageValue => Metric::AverageValue {
                value: take("value", &mut written.value)?,
                target_average: take("target_average", &mut written.target_average)?,
            },
            Kind::Error => Metric::Error {
                message: take("message", &mut written.message)?,
            },
        };
        let left = [
            ("target_percent", written.target_percent.is_some()),
            ("target_average", written.target_average.is_some()),
            ("value", written.value.is_some()),
            ("target", written.target.is_some()),
            ("message", written.message.is_some()),
        ];
        match left.into_iter().find(|(_, is_there)| *is_there) {
            Some((name, _)) => Err(format!("this kind has no field `{name}`")),
            None => Ok(metric),
        }
    }
}

/// Rate limits and stabilisation windows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Behavior {
    /// Scaling up.
    #[serde(deserialize_with = "rules_up")]
    pub up: Rules,
    /// Scaling down.
    #[serde(deserialize_with = "rules_down")]
    pub down: Rules,
    /// Instead of the rules, the behaviour before Kubernetes had them: up to max(2 × replicas, 4) at once,
    /// down to the highest proposal within the window of `down`.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub legacy: bool,
}

impl Default for Behavior {
    fn default() -> Self {
        Behavior {
            up: Rules::default_up(),
            down: Rules::default_down(),
            legacy: false,
        }
    }
}

/// The rules of one direction.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Rules {
    /// The stabilisation window in seconds: its lowest proposal limits scaling up, its highest scaling down.
    pub window_s: u32,
    /// Which policy applies.
    pub select: Select,
    /// Changes permitted per period.
    pub policies: Vec<RatePolicy>,
}

impl Rules {
    fn default_up() -> Rules {
        Rules {
            window_s: 0,
            select: Select::Max,
            policies: vec![
                RatePolicy::new(RateType::Pods, 4, 15),
                RatePolicy::new(RateType::Percent, 100, 15),
            ],
        }
    }

    fn default_down() -> Rules {
        Rules {
            window_s: 300,
            select: Select::Max,
            policies: vec![RatePolicy::new(RateType::Percent, 100, 15)],
        }
    }
}

/// The serialised form of rules; unset fields take the direction's defaults.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RulesWritten {
    window_s: Option<u32>,
    select: Option<Select>,
    policies: Option<Vec<RatePolicy>>,
}

impl RulesWritten {
    fn over(written: Option<RulesWritten>, default: Rules) -> Rules {
        let Some(written) = written else { return default };
        Rules {
            window_s: written.window_s.unwrap_or(default.window_s),
            select: written.select.unwrap_or(default.select),
            policies: written.policies.unwrap_or(default.policies),
        }
    }
}

fn rules_up<'de, D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Rules, D::Error> {
    Option::deserialize(deserializer).map(|written| RulesWritten::over(written, Rules::default_up()))
}

fn rules_down<'de, D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Rules, D::Error> {
    Option::deserialize(deserializer).map(|written| RulesWritten::over(written, Rules::default_down()))
}

/// Which of several rate policies applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Select {
    /// The one that allows the largest change.
    #[serde(alias = "Max")]
    Max,
    /// The one that allows the smallest.
    #[serde(alias = "Min")]
    Min,
    /// No change in this direction.
    #[serde(alias = "Disabled")]
    Disabled,
}

/// Replicas that may be added or removed per period.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RatePolicy {
    /// The unit of `value`.
    #[serde(rename = "type")]
    pub kind: RateType,
    /// Replicas, or percent of those at the period's start.
    pub value: i32,
    /// The period in seconds.
    pub period_s: u32,
}

impl RatePolicy {
    /// A policy of `value` per period.
    pub const fn new(kind: RateType, value: i32, period_s: u32) -> RatePolicy {
        RatePolicy {
            kind,
            value,
            period_s,
        }
    }
}

/// The unit of a rate policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RateType {
    /// Replicas.
    #[serde(alias = "Pods")]
    Pods,
    /// Percent of the replicas at the start of the period.
    #[serde(alias = "Percent")]
    Percent,
}

/// One pod.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Instance {
    /// Its group.
    pub state: State,
    /// Its sample, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<i64>,
    /// Its request, in the same unit; only utilisation needs it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<i64>,
}

/// A pod's group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Running and ready.
    Ready,
    /// Running but not ready, or ready for less than a whole sample. Only utilisation distinguishes it.
    Unready,
    /// Not running yet.
    Pending,
    /// Running, without a sample.
    Missing,
    /// Being deleted.
    Terminating,
    /// Ended with an error.
    Failed,
}

/// Earlier proposals and changes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct History {
    /// Proposals before windows and limits.
    pub recommendations: Vec<Recommendation>,
    /// Changes of the count.
    pub changes: Vec<Change>,
}

/// An earlier proposal.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recommendation {
    /// Replicas.
    pub value: i32,
    /// How long ago, in seconds.
    pub age_s: f64,
}

/// An earlier change.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Change {
    /// Replicas added; negative if removed.
    pub change: i32,
    /// How long ago, in seconds.
    pub age_s: f64,
}

/// HPA's decision.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Outcome {
    /// Wanted replicas.
    pub replicas: i32,
    /// The proposal of the metrics alone.
    pub proposal: i32,
    /// Usage of the counted pods as a percentage of their requests, for utilisation metrics.
    pub utilization_percent: Option<i64>,
    /// HPA's name of the limit that applied, or `DesiredWithinRange`.
    pub reason: &'static str,
}

/// HPA did not decide: the count stays.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Error)]
#[error("{reason}: {message}")]
pub struct Failure {
    /// HPA's name of the failure.
    #[serde(rename = "error")]
    pub reason: &'static str,
    /// The details.
    pub message: String,
}

/// The result of a case.
pub type Result<T = Outcome> = std::result::Result<T, Failure>;
