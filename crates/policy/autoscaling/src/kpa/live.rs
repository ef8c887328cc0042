use model::{InstanceState, Nanos, Observation};
use serde::{Deserialize, Serialize};

use super::decider::{self, Decider, Reading, Spec};
use super::window::{Aggregation, Window};
use crate::{Decision, Parameter, Policy, Reason, finite, mean_capacity_pps, share, span, within_limits};

/// The bucket size: Knative's scrape interval.
const BUCKET: Nanos = Nanos::from_secs(1);
/// A longer gap between two observations counts as missing data.
const GAP: Nanos = Nanos::from_secs(1);

/// Knative's KPA on inco's observations: the metric is packets per second, an instance's target is its
/// capacity times `target_utilization`. It decides every `period` on means over whole seconds.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Kpa {
    /// Target utilisation of an instance. Knative's default is 0.7.
    #[serde(deserialize_with = "share::positive")]
    pub target_utilization: f64,
    /// The stable window, 6 s to 1 h.
    #[serde(serialize_with = "span::serialize", deserialize_with = "stable_window")]
    pub stable_window: Nanos,
    /// The panic window as a percentage of the stable one, 1 to 100.
    #[serde(deserialize_with = "panic_percentage")]
    pub panic_window_percentage: f64,
    /// Panic if the panic window wants this percentage of the ready instances, 110 to 1000.
    #[serde(deserialize_with = "panic_threshold")]
    pub panic_threshold_percentage: f64,
    /// How the seconds of a window are aggregated.
    pub aggregation_algorithm: Aggregation,
    /// Largest multiple of the ready instances in one step, above 1.
    #[serde(deserialize_with = "rate")]
    pub max_scale_up_rate: f64,
    /// Largest divisor of the ready instances in one step down, above 1.
    #[serde(deserialize_with = "rate")]
    pub max_scale_down_rate: f64,
    /// The highest count of this duration applies.
    #[serde(with = "span")]
    pub scale_down_delay: Nanos,
    /// The minimum if any instance is wanted.
    pub activation_scale: u32,
    /// Burst to keep capacity for, in packets per second; reported only.
    pub target_burst_capacity: f64,
    /// Decision period. Knative's is 2 s.
    #[serde(serialize_with = "span::serialize", deserialize_with = "span::positive")]
    pub period: Nanos,

    #[serde(skip)]
    state: State,
}

/// The state of [`Kpa`].
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct State {
    decider: Option<decider::State>,
    /// Packets per whole second, for the stable window.
    stable: Window,
    /// The same for the panic window.
    panic: Window,
    /// The current second and its packets so far.
    filling: Option<(u64, f64)>,
    noted: Option<Nanos>,
    next: Nanos,
    capacity_pps: f64,
}

impl Default for Kpa {
    fn default() -> Self {
        Kpa {
            target_utilization: 0.7,
            stable_window: Nanos::from_secs(60),
            panic_window_percentage: 10.0,
            panic_threshold_percentage: 200.0,
            aggregation_algorithm: Aggregation::Linear,
            max_scale_up_rate: 1_000.0,
            max_scale_down_rate: 2.0,
            scale_down_delay: Nanos::ZERO,
            activation_scale: 1,
            target_burst_capacity: 211.0,
            period: Nanos::from_secs(2),
            state: State::default(),
        }
    }
}

impl Kpa {
    /// The lengths of the stable and the panic window in seconds.
    fn lengths(&self) -> [u64; 2] {
        let stable_s = self.stable_window.as_secs_f64();
        [stable_s, stable_s * self.panic_window_percentage / 100.0]
            .map(|span_s| span_s.ceil().max(1.0) as u64)
    }

    fn spec(&self, observation: &Observation) -> Spec {
        let count = |count: u32| i32::try_from(count).unwrap_or(i32::MAX);
        Spec {
            target: self.state.capacity_pps * self.target_utilization,
            total: self.state.capacity_pps,
            target_burst_capacity: self.target_burst_capacity,
            panic_threshold: self.panic_threshold_percentage / 100.0,
            max_scale_up_rate: self.max_scale_up_rate,
            max_scale_down_rate: self.max_scale_down_rate,
            stable_window_s: self.stable_window.as_secs_f64(),
            scale_down_delay_s: self.scale_down_delay.as_secs_f64(),
            activation_scale: count(self.activation_scale),
            reachable: true,
            min: count(observation.min.min(observation.max)),
            max: count(observation.max),
        }
    }

    fn reading(&self, observation: &Observation, now: Nanos) -> Reading {
        let [stable, panic] = self.lengths();
        let state = &self.state;
        let known = (now.0 / BUCKET.0)
            .checked_sub(1)
            .filter(|last| !state.stable.is_empty(*last, stable));
        let value = |window: &Window, length| {
            known.map(|last| window.value(last, length, self.aggregation_algorithm))
        };
        Reading {
            at_s: now.as_secs_f64(),
            ready: u32::try_from(observation.count(InstanceState::Active)).ok(),
            stable: value(&state.stable, stable),
            panic: value(&state.panic, panic),
        }
    }

    fn decider(&self, observation: &Observation) -> Decider {
        Decider {
            spec: self.spec(observation),
            state: self.state.decider.clone().unwrap_or_default(),
        }
    }

    fn is_due(&self, now: Nanos) -> bool {
        now >= self.state.next && self.state.capacity_pps > 0.0
    }
}

impl Policy for Kpa {
    const NAME: &'static str = "kpa";
    const PARAMETERS: &'static [Parameter] = &[
        Parameter::new(
            "target_utilization",
            "share, above 0 and at most 1",
            "0.7",
            "Target utilisation of an instance.",
        ),
        Parameter::new(
            "stable_window",
            "duration, 6s to 1h",
            "60s",
            "The window that decides outside a panic.",
        ),
        Parameter::new(
            "panic_window_percentage",
            "percent, 1 to 100",
            "10",
            "The panic window, as a percentage of the stable one.",
        ),
        Parameter::new(
            "panic_threshold_percentage",
            "percent, 110 to 1000",
            "200",
            "Panic if the panic window wants this percentage of the ready instances.",
        ),
        Parameter::new(
            "aggregation_algorithm",
            "\"linear\" or \"weighted-exponential\"",
            "\"linear\"",
            "How the seconds of a window are aggregated: as a mean, or with more weight on later ones.",
        ),
        Parameter::new(
            "max_scale_up_rate",
            "number above 1",
            "1000",
            "Largest multiple of the ready instances in one step.",
        ),
        Parameter::new(
            "max_scale_down_rate",
            "number above 1",
            "2",
            "Largest divisor of the ready instances in one step down.",
        ),
        Parameter::new(
            "scale_down_delay",
            "duration",
            "0s",
            "The highest count of this duration applies.",
        ),
        Parameter::new(
            "activation_scale",
            "instances",
            "1",
            "The minimum if any instance is wanted.",
        ),
        Parameter::new(
            "target_burst_capacity",
            "packets per second",
            "211",
            "Burst to keep capacity for; reported only.",
        ),
        Parameter::new("period", "duration above 0", "2s", "Decision period."),
    ];

    crate::keeps_state!();

    fn note(&mut self, observation: &Observation, now: Nanos) {
        if let Some(capacity_pps) = mean_capacity_pps(observation) {
            self.state.capacity_pps = capacity_pps;
        }
        let [stable, panic] = self.lengths();
        let state = &mut self.state;
        if state.decider.is_none() {
            let ready = u32::try_from(observation.count(InstanceState::Active)).unwrap_or(u32::MAX);
            // Reserve all space now, so that later steps do not allocate.
            state.stable.reserve(stable);
            state.panic.reserve(panic);
            state.decider = Some(decider::State::starting(ready, now.as_secs_f64()));
        }
        let second = now.0 / BUCKET.0;
        // The windows contain whole seconds only.
        if let Some((at, packets)) = state.filling.take_if(|(at, _)| *at != second) {
            state.stable.record(at, packets, stable);
            state.panic.record(at, packets, panic);
        }
        if let Some(before) = state.noted
            && now.since(before) <= GAP
        {
            let packets = finite(observation.offered_fast_pps) * now.since(before).as_secs_f64();
            state.filling.get_or_insert((second, 0.0)).1 += packets;
        }
        state.noted = Some(now);
    }

    fn judge(&self, observation: &Observation, now: Nanos) -> Decision {
        let current = within_limits(observation.wanted, observation);
        if !self.is_due(now) {
            return Decision::count(current, Reason::new("between_ticks"));
        }
        let reading = self.reading(observation, now);
        let verdict = self.decider(observation).step(&reading);
        let Some(replicas) = verdict.replicas else {
            return Decision::count(current, Reason::new("no_data"));
        };
        let rule = if verdict.panicking { "panic" } else { "stable" };
        let reason = Reason::new(rule)
            .with("stable_pps", reading.stable.unwrap_or_default())
            .with("panic_pps", reading.panic.unwrap_or_default())
            .with("target_pps", self.state.capacity_pps * self.target_utilization)
            .with("ready", f64::from(reading.ready.unwrap_or_default()))
            .with(
                "excess_burst_capacity_pps",
                f64::from(verdict.excess_burst_capacity.unwrap_or_default()),
            );
        let desired = u32::try_from(replicas).unwrap_or(0);
        Decision::count(within_limits(desired, observation), reason)
    }

    fn commit(&mut self, observation: &Observation, _decision: &Decision, now: Nanos) {
        if !self.is_due(now) {
            return;
        }
        let mut decider = self.decider(observation);
        decider.step(&self.reading(observation, now));
        self.state.decider = Some(decider.state);
        self.state.next = now + self.period;
    }

    fn case(&self, observation: &Observation, now: Nanos) -> serde_json::Value {
        let decider = self.decider(observation);
        crate::explain::tagged(
            Self::NAME,
            &serde_json::json!({
                "spec": decider.spec,
                "state": decider.state,
                "steps": [self.reading(observation, now)],
            }),
        )
    }
}

fn within<'de, D: serde::Deserializer<'de>>(
    deserializer: D,
    is_right: impl Fn(f64) -> bool,
    expected: &str,
) -> Result<f64, D::Error> {
    let value = f64::deserialize(deserializer)?;
    if value.is_finite() && is_right(value) {
        Ok(value)
    } else {
        Err(serde::de::Error::custom(format_args!(
            "{value} is not {expected}"
        )))
    }
}

fn panic_percentage<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    within(
        deserializer,
        |v| (1.0..=100.0).contains(&v),
        "a percentage from 1 to 100",
    )
}

fn panic_threshold<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    within(
        deserializer,
        |v| (110.0..=1000.0).contains(&v),
        "a percentage from 110 to 1000",
    )
}

fn rate<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    within(deserializer, |v| v > 1.0, "a number above 1")
}

fn stable_window<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Nanos, D::Error> {
    let span = span::deserialize(deserializer)?;
    if (Nanos::from_secs(6)..=Nanos::from_secs(3_600)).contains(&span) {
        Ok(span)
    } else {
        Err(serde::de::Error::custom("the stable window must be 6 s to 1 h"))
    }
}
