use model::{InstanceState, Nanos, Observation};
use serde::{Deserialize, Serialize};

use crate::{
    Decision, Parameter, Policy, Quota, Reason, finite, mean_capacity_pps, share, span, vertical,
    within_limits, work,
};

/// SmartLB's and InReal's rule: one step up above a high threshold, one step down below a low one. A step
/// changes CPU quotas within their limits, and the count by one instance beyond them.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Threshold {
    /// Utilisation above which it steps up.
    pub high: f64,
    /// Utilisation below which it steps down.
    pub low: f64,
    /// Busy share of instances' time above which it steps up, too; unset, busy time has no effect.
    #[serde(deserialize_with = "share::positive_or_unset")]
    pub busy_high: Option<f64>,
    /// Busy share of time below which it may step down, where `busy_high` is set.
    #[serde(deserialize_with = "share::positive")]
    pub busy_low: f64,
    /// Averaging window of the rate.
    #[serde(serialize_with = "span::serialize", deserialize_with = "span::positive")]
    pub window: Nanos,
    /// The time between two steps.
    #[serde(with = "span")]
    pub period: Nanos,
    /// Maximum CPUs per instance; unset keeps the quotas.
    pub cpus_max: Option<f64>,
    /// Minimum CPUs per instance; unset, its quota when first seen.
    pub cpus_min: Option<f64>,
    /// The size of a quota step, as a share of the quota.
    pub cpus_step: f64,

    #[serde(skip)]
    state: State,
}

/// The state of [`Threshold`].
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct State {
    next: Nanos,
    capacity_pps: f64,
    base_cpus: Option<f64>,
    /// The mean busy share of time, and when it was taken.
    #[serde(default)]
    busy: Option<f64>,
    #[serde(default)]
    noted: Option<Nanos>,
}

impl Default for Threshold {
    fn default() -> Self {
        Threshold {
            // The papers give no values.
            high: 0.8,
            low: 0.3,
            busy_high: None,
            busy_low: 0.5,
            window: Nanos::from_secs(1),
            period: Nanos::from_secs(1),
            cpus_max: None,
            cpus_min: None,
            cpus_step: 0.25,
            state: State::default(),
        }
    }
}

impl Threshold {
    /// The load as a share of the wanted instances' capacity.
    fn utilisation(&self, observation: &Observation) -> Option<f64> {
        let capacity = self.state.capacity_pps * f64::from(observation.wanted);
        (capacity > 0.0).then(|| finite(observation.offered_stable_pps) / capacity)
    }

    /// The mean busy share of the Active instances' time over `window`, where that has an effect and is told.
    fn busy(&self) -> Option<f64> {
        self.busy_high.and(self.state.busy)
    }

    /// The same quota step for every Active instance that is within the limits.
    fn resized(&self, observation: &Observation, up: bool) -> Vec<Quota> {
        let Some(most) = self.cpus_max else {
            return Vec::new();
        };
        let least = self.cpus_min.or(self.state.base_cpus);
        let active = observation
            .instances
            .iter()
            .filter(|i| i.state == InstanceState::Active);
        let step = |has: f64| {
            let cpus = if up {
                (has * (1.0 + self.cpus_step)).min(most)
            } else {
                (has / (1.0 + self.cpus_step)).max(least.unwrap_or(has)).min(has)
            };
            ((cpus - has).abs() > vertical::SAME * has).then_some(cpus)
        };
        let quotas = active.filter_map(|i| {
            Some(Quota {
                instance: i.id,
                cpus: step(i.cpu_quota?)?,
            })
        });
        quotas.collect()
    }
}

impl Policy for Threshold {
    const NAME: &'static str = "threshold";
    const PARAMETERS: &'static [Parameter] = &[
        Parameter::new("high", "utilisation, above 0", "0.8", "Above it, one step up."),
        Parameter::new("low", "utilisation, 0 or more", "0.3", "Below it, one step down."),
        work::HIGH,
        work::LOW,
        Parameter::new(
            "window",
            "duration above 0",
            "1s",
            "Averaging window of the rate.",
        ),
        Parameter::new("period", "duration", "1s", "The time between two steps."),
        Parameter::new(
            "cpus_max",
            "CPUs",
            "quotas stay unchanged",
            "Maximum CPUs per instance; quota steps come before count steps.",
        ),
        Parameter::new(
            "cpus_min",
            "CPUs",
            "its current CPUs",
            "Minimum CPUs per instance.",
        ),
        Parameter::new("cpus_step", "share, above 0", "0.25", "The size of a quota step."),
    ];

    crate::keeps_state!(window);

    fn note(&mut self, observation: &Observation, now: Nanos) {
        let busy = work::busy_instances(observation);
        let active = observation.count(InstanceState::Active).max(1) as f64;
        self.state.busy = work::mean(
            self.state.busy.zip(self.state.noted),
            busy.map(|busy| busy / active),
            (now, self.window),
        );
        self.state.noted = Some(now);
        if let Some(capacity_pps) = mean_capacity_pps(observation) {
            self.state.capacity_pps = capacity_pps;
        }
        if self.state.base_cpus.is_none() {
            self.state.base_cpus = vertical::least_quota(observation);
        }
    }

    fn judge(&self, observation: &Observation, now: Nanos) -> Decision {
        let current = within_limits(observation.wanted, observation);
        let utilisation = self.utilisation(observation);
        let busy = self.busy();
        let mut reason = Reason::new("between_thresholds");
        if let Some(utilisation) = utilisation {
            reason = reason
                .with("utilisation", utilisation)
                .with("high", self.high)
                .with("low", self.low);
        }
        if let (Some(busy), Some(high)) = (busy, self.busy_high) {
            reason = reason
                .with("busy", busy)
                .with("busy_high", high)
                .with("busy_low", self.busy_low.min(high));
        }
        let is_busy = busy.zip(self.busy_high).is_some_and(|(busy, high)| busy > high);
        let Some(utilisation) = utilisation.or(is_busy.then_some(0.0)) else {
            return Decision::count(current, Reason::new("capacity_unknown"));
        };
        let up = utilisation > self.high || is_busy;
        let may_shrink = busy
            .zip(self.busy_high)
            .is_none_or(|(busy, high)| busy < self.busy_low.min(high));
        if !up && (utilisation >= self.low || !may_shrink) {
            return Decision::count(current, reason);
        }
        if now < self.state.next {
            return Decision::count(current, reason.named("between_steps"));
        }
        // Vertical before horizontal.
        let quotas = self.resized(observation, up);
        if !quotas.is_empty() {
            let rule = if up { "above_high_quota" } else { "below_low_quota" };
            return Decision {
                quotas,
                ..Decision::count(current, reason.named(rule))
            };
        }
        let (desired, rule, limit) = if up {
            let rule = if utilisation > self.high {
                "above_high"
            } else {
                "above_busy_high"
            };
            (current.saturating_add(1), rule, "at_max")
        } else {
            (current.saturating_sub(1), "below_low", "at_min")
        };
        let desired = within_limits(desired, observation);
        let rule = if desired == current { limit } else { rule };
        Decision::count(desired, reason.named(rule))
    }

    fn commit(&mut self, observation: &Observation, decision: &Decision, now: Nanos) {
        if decision.changes(observation) {
            self.state.next = now + self.period;
        }
    }
}
