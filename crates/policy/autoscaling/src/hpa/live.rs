use std::collections::VecDeque;

use model::{InstanceId, InstanceState, Nanos, Observation};
use serde::{Deserialize, Serialize};

use super::case::{Behavior, Case, Change, History, Instance, Metric, Recommendation, Spec, Tolerance};
use super::decide;
use super::group::{Pod, Readiness, Sample, Timing, group};
use crate::{Decision, Parameter, Policy, Reason, finite, span, within_limits};

/// Stored recommendations and changes; 17 hours at the default period.
const HISTORY_LIMIT: usize = 4_096;

/// Kubernetes' HPA on inco's observations. Each Active instance is a pod whose usage is its packet rate and
/// whose request is its capacity. One being created is pending, a draining one terminating. It decides every
/// `period` on rates over `window`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Hpa {
    /// Target utilisation in percent, 1 or more. Kubernetes' default is 80.
    #[serde(deserialize_with = "percent")]
    pub target_percent: u32,
    /// Permitted deviation from the target, as a share of it.
    #[serde(deserialize_with = "tolerance")]
    pub tolerance: Tolerance,
    /// Decision period. Kubernetes' default is 15 s.
    #[serde(serialize_with = "span::serialize", deserialize_with = "span::positive")]
    pub period: Nanos,
    /// Averaging window of the rates, as in a metrics server.
    #[serde(serialize_with = "span::serialize", deserialize_with = "span::positive")]
    pub window: Nanos,
    /// Rate limits and windows; see [`Behavior`].
    pub behavior: Behavior,
    /// A younger instance counts only if its whole sample is from after it became ready.
    #[serde(with = "span")]
    pub initialization: Nanos,
    /// An instance whose last transition to unready was within this of its start has never been ready.
    #[serde(with = "span")]
    pub readiness_delay: Nanos,

    #[serde(skip)]
    state: State,
}

/// The state of [`Hpa`].
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct State {
    next: Nanos,
    started: bool,
    /// Proposals before windows and limits, with their times.
    recommendations: VecDeque<(Nanos, i32)>,
    changes: VecDeque<(Nanos, i32)>,
    seen: Vec<Seen>,
}

/// When an instance appeared, and when it became Active.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Seen {
    id: InstanceId,
    first: Nanos,
    active: Option<Nanos>,
}

impl Default for Hpa {
    fn default() -> Self {
        Hpa {
            target_percent: 80,
            tolerance: Tolerance::default(),
            period: Nanos::from_secs(15),
            window: Nanos::from_secs(15),
            behavior: Behavior::default(),
            initialization: Nanos::from_secs(300),
            readiness_delay: Nanos::from_secs(30),
            state: State::default(),
        }
    }
}

impl Hpa {
    fn is_due(&self, now: Nanos) -> bool {
        now >= self.state.next
    }

    /// The case of this moment.
    fn case_at(&self, observation: &Observation, now: Nanos) -> Case {
        let whole = |rate: f64| finite(rate).round().min(i64::MAX as f64) as i64;
        let timing = Timing {
            initialization_s: self.initialization.as_secs_f64(),
            readiness_delay_s: self.readiness_delay.as_secs_f64(),
        };
        let age_s = |at: Nanos| now.since(at).as_secs_f64();
        let instances = observation.instances.iter().filter_map(|instance| {
            // Standby instances are not replicas.
            if instance.state == InstanceState::Standby {
                return None;
            }
            let seen = self.state.seen.iter().find(|seen| seen.id == instance.id);
            let is_active = instance.state == InstanceState::Active;
            let pod = Pod {
                terminating: matches!(instance.state, InstanceState::Draining | InstanceState::Stopping),
                failed: matches!(instance.state, InstanceState::Failed | InstanceState::Gone),
                pending: matches!(instance.state, InstanceState::Creating | InstanceState::Starting),
                started_s: seen.map(|seen| age_s(seen.first)),
                readiness: seen.and_then(|seen| seen.active).map(|active| Readiness {
                    ready: is_active,
                    since_s: age_s(active),
                }),
                sample: is_active.then_some(Sample {
                    age_s: 0.0,
                    window_s: self.window.as_secs_f64(),
                }),
            };
            Some(Instance {
                state: group(&pod, true, timing),
                usage: is_active.then(|| whole(instance.arrivals_stable_pps)),
                request: (finite(instance.capacity_pps) > 0.0).then(|| whole(instance.capacity_pps).max(1)),
            })
        });
        let count = |count: u32| i32::try_from(count).unwrap_or(i32::MAX);
        Case {
            replicas: count(observation.wanted),
            spec: Spec {
                min: count(observation.min.min(observation.max)),
                max: count(observation.max),
                tolerance: self.tolerance,
                metrics: vec![Metric::Utilization {
                    target_percent: i64::from(self.target_percent),
                }],
                behavior: Some(self.behavior.clone()),
            },
            desired: None,
            instances: Some(instances.collect()),
            history: History {
                recommendations: self
                    .state
                    .recommendations
                    .iter()
                    .map(|(at, value)| Recommendation {
                        value: *value,
                        age_s: age_s(*at),
                    })
                    .collect(),
                changes: self
                    .state
                    .changes
                    .iter()
                    .map(|(at, change)| Change {
                        change: *change,
                        age_s: age_s(*at),
                    })
                    .collect(),
            },
        }
    }
}

/// Removes entries older than `span` or beyond the limit.
fn forget<T>(entries: &mut VecDeque<(Nanos, T)>, span_s: u32, now: Nanos) {
    while entries.len() >= HISTORY_LIMIT
        || entries
            .front()
            .is_some_and(|(at, _)| now.since(*at) > Nanos::from_secs(u64::from(span_s)))
    {
        entries.pop_front();
    }
}

impl Policy for Hpa {
    const NAME: &'static str = "hpa";
    const PARAMETERS: &'static [Parameter] = &[
        Parameter::new(
            "target_percent",
            "percent, 1 or more",
            "80",
            "Target utilisation.",
        ),
        Parameter::new(
            "tolerance",
            "table { up, down } of shares",
            "{ up = 0.1, down = 0.1 }",
            "Permitted deviation from the target, as a share of it.",
        ),
        Parameter::new("period", "duration above 0", "15s", "Decision period."),
        Parameter::new(
            "window",
            "duration above 0",
            "15s",
            "Averaging window of the rates, as in a metrics server.",
        ),
        Parameter::new(
            "behavior",
            "table { up, down } of { window_s, select, policies = [{ type, value, period_s }] }",
            "Kubernetes': up at once by 4 or 100 % in 15 s, down after 300 s",
            "Stabilisation windows in seconds; `select` is `max`, `min` or `disabled`; `type` is `pods` or `percent`.",
        ),
        Parameter::new(
            "initialization",
            "duration",
            "5m",
            "A younger instance counts only if its whole sample is from after it became Active.",
        ),
        Parameter::new(
            "readiness_delay",
            "duration",
            "30s",
            "An instance whose last transition to unready was within this of its start has never been ready.",
        ),
    ];

    crate::keeps_state!(window);

    fn note(&mut self, observation: &Observation, now: Nanos) {
        let state = &mut self.state;
        if !std::mem::replace(&mut state.started, true) {
            // HPA keeps the count that it finds for a whole window.
            let found = i32::try_from(observation.wanted).unwrap_or(i32::MAX);
            state.recommendations.push_back((now, found));
        }
        let instances = &observation.instances;
        state
            .seen
            .retain(|seen| instances.iter().any(|instance| instance.id == seen.id));
        for instance in instances {
            let at = match state.seen.iter().position(|seen| seen.id == instance.id) {
                Some(at) => at,
                None => {
                    state.seen.push(Seen {
                        id: instance.id,
                        first: now,
                        active: None,
                    });
                    state.seen.len() - 1
                }
            };
            if instance.state == InstanceState::Active
                && let Some(seen) = state.seen.get_mut(at)
            {
                seen.active.get_or_insert(now);
            }
        }
    }

    fn judge(&self, observation: &Observation, now: Nanos) -> Decision {
        let current = within_limits(observation.wanted, observation);
        if !self.is_due(now) {
            return Decision::count(current, Reason::new("between_periods"));
        }
        match decide(&self.case_at(observation, now)) {
            Ok(outcome) => {
                let mut reason = Reason::new(outcome.reason).with("proposal", f64::from(outcome.proposal));
                if let Some(percent) = outcome.utilization_percent {
                    reason = reason.with("utilization_percent", percent as f64);
                }
                let desired = u32::try_from(outcome.replicas).unwrap_or(0);
                Decision::count(within_limits(desired, observation), reason)
            }
            Err(failure) => Decision::count(current, Reason::new(failure.reason)),
        }
    }

    fn commit(&mut self, observation: &Observation, decision: &Decision, now: Nanos) {
        if !self.is_due(now) {
            return;
        }
        let proposed = decide(&self.case_at(observation, now)).map(|outcome| outcome.proposal);
        let windows = [&self.behavior.up, &self.behavior.down];
        let longest_window_s = windows.iter().map(|rules| rules.window_s).max().unwrap_or(0);
        let periods = windows.iter().flat_map(|rules| &rules.policies);
        let longest_period_s = periods.map(|policy| policy.period_s).max().unwrap_or(0);
        let state = &mut self.state;
        if let Ok(proposal) = proposed {
            forget(&mut state.recommendations, longest_window_s, now);
            state.recommendations.push_back((now, proposal));
        }
        if decision.desired != observation.wanted {
            let change = i64::from(decision.desired) - i64::from(observation.wanted);
            forget(&mut state.changes, longest_period_s, now);
            state.changes.push_back((now, i32::try_from(change).unwrap_or(0)));
        }
        // A late decision does not shift the next one.
        state.next = now + self.period;
    }

    fn case(&self, observation: &Observation, now: Nanos) -> serde_json::Value {
        crate::explain::tagged(Self::NAME, &self.case_at(observation, now))
    }
}

fn percent<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    match u32::deserialize(deserializer)? {
        0 => Err(serde::de::Error::custom("the percentage must be 1 or more")),
        percent => Ok(percent),
    }
}

fn tolerance<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Tolerance, D::Error> {
    let tolerance = Tolerance::deserialize(deserializer)?;
    if tolerance.is_valid() {
        Ok(tolerance)
    } else {
        Err(serde::de::Error::custom("a tolerance must be 0 or more"))
    }
}
