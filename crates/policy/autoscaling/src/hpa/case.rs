use serde::{Deserialize, Deserializer, Serialize};
use thiserror::Error;

/// Everything that HPA looks at in one decision.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    /// Replicas wanted so far.
    pub replicas: i32,
    /// What the user wrote.
    #[serde(default)]
    pub spec: Spec,
    /// A count to put through windows, rates and limits alone, instead of what the metrics ask for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub desired: Option<i32>,
    /// The pods. Unset: as many ready ones as there are replicas, without samples, which is enough for metrics that
    /// are not the instances' own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instances: Option<Vec<Instance>>,
    /// What went before.
    #[serde(default)]
    pub history: History,
}

/// What the user asks of HPA.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Spec {
    /// Replicas at least; with 0 it may scale to zero.
    pub min: i32,
    /// Replicas at most.
    pub max: i32,
    /// Ratios of usage to target within which nothing is done.
    pub tolerance: Tolerance,
    /// What is measured; the highest proposal counts.
    pub metrics: Vec<Metric>,
    /// How fast it may go. `null`: as fast as it likes, without windows. Unset: Kubernetes' defaults.
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

/// Shares of the target by which usage may be off before anything is done.
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

/// One thing that is measured, and its target.
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
    /// One figure for all of them (object and external metrics).
    Value {
        /// What it is.
        value: i64,
        /// What it should be, 1 or more.
        target: i64,
    },
    /// One figure that is shared by all of them (object and external metrics per pod).
    AverageValue {
        /// What it is, in all.
        value: i64,
        /// What each should have, 1 or more.
        target_average: i64,
    },
    /// A metric that could not be read.
    Error {
        /// Why.
        message: String,
    },
}

/// A metric as it is written. Read field by field and only then by its kind, so that what is wrong with one is said of it.
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

/// How fast replicas may come and go, and for how long proposals are remembered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Behavior {
    /// More.
    #[serde(deserialize_with = "rules_up")]
    pub up: Rules,
    /// Fewer.
    #[serde(deserialize_with = "rules_down")]
    pub down: Rules,
    /// Instead of the rules what applied before Kubernetes had them: up to max(2 × replicas, 4) at once, down to the
    /// highest proposal of the window of `down`.
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
    /// Proposals of so many seconds are looked at: the lowest when going up, the highest when going down.
    pub window_s: u32,
    /// Which of the policies counts.
    pub select: Select,
    /// How many replicas may come or go in which time.
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

/// Rules as they are written: what is unset is as in the direction's default.
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

/// Which of several rate policies counts.
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

/// How many replicas may come or go within a period.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RatePolicy {
    /// What `value` counts.
    #[serde(rename = "type")]
    pub kind: RateType,
    /// Replicas, or percent of those at the period's start.
    pub value: i32,
    /// The period in seconds.
    pub period_s: u32,
}

impl RatePolicy {
    /// So many per period.
    pub const fn new(kind: RateType, value: i32, period_s: u32) -> RatePolicy {
        RatePolicy {
            kind,
            value,
            period_s,
        }
    }
}

/// What a rate policy counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RateType {
    /// Replicas.
    #[serde(alias = "Pods")]
    Pods,
    /// Percent of the replicas that there were when the period began.
    #[serde(alias = "Percent")]
    Percent,
}

/// One pod.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Instance {
    /// How it counts.
    pub state: State,
    /// Its sample, where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<i64>,
    /// What it requests, in the same unit; only utilisation needs it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<i64>,
}

/// How a pod counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Running and ready.
    Ready,
    /// Running and not ready, or ready for too short a time for a whole sample. Utilisation alone looks at that.
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

/// What went before.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct History {
    /// Earlier proposals, as they were before windows and limits.
    pub recommendations: Vec<Recommendation>,
    /// Earlier changes of the count.
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
    /// Replicas added; below 0 where they were removed.
    pub change: i32,
    /// How long ago, in seconds.
    pub age_s: f64,
}

/// What HPA decided.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Outcome {
    /// Replicas wanted.
    pub replicas: i32,
    /// What the metrics alone asked for.
    pub proposal: i32,
    /// Usage as a percentage of the requests, of the pods that count, where that is what is measured.
    pub utilization_percent: Option<i64>,
    /// HPA's own name of what limited it, or `DesiredWithinRange`.
    pub reason: &'static str,
}

/// HPA did not decide: the count stays.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Error)]
#[error("{reason}: {message}")]
pub struct Failure {
    /// HPA's own name of what failed.
    #[serde(rename = "error")]
    pub reason: &'static str,
    /// What exactly.
    pub message: String,
}

/// What came of a case.
pub type Result<T = Outcome> = std::result::Result<T, Failure>;
