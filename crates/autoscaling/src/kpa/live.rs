use std::collections::VecDeque;

use model::{InstanceState, Nanos, Observation};
use serde::{Deserialize, Serialize};

use super::decider::{self, Decider, Reading, Spec};
use crate::{Decision, Parameter, Policy, Reason, finite, mean_capacity_pps, share, span, within_limits};

/// One place of the windows: Knative's scrape interval.
const BUCKET: Nanos = Nanos::from_secs(1);
/// Means are rounded down to parts of this size of a packet per second, so that nothing is left of a rate that has ended.
const ROUNDING: f64 = 1e6;
/// A gap between two observations that is longer is a time without data.
const GAP: Nanos = Nanos::from_secs(1);

/// Knative's KPA on what inco observes: the metric is packets per second, the target of an instance its capacity times
/// `target_utilization`. It decides every `period` on the means of whole seconds.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Kpa {
    /// The share of its capacity that an instance should be used to. Knative's default is 0.7.
    #[serde(deserialize_with = "share::positive")]
    pub target_utilization: f64,
    /// The stable window, 6 s to 1 h.
    #[serde(serialize_with = "span::serialize", deserialize_with = "stable_window")]
    pub stable_window: Nanos,
    /// The panic window as a percentage of the stable one, 1 to 100.
    #[serde(deserialize_with = "panic_percentage")]
    pub panic_window_percentage: f64,
    /// It panics when the panic window asks for this percentage of the ready instances, 110 or more.
    #[serde(deserialize_with = "panic_threshold")]
    pub panic_threshold_percentage: f64,
    /// At most so many times the ready instances at once, above 1.
    #[serde(deserialize_with = "rate")]
    pub max_scale_up_rate: f64,
    /// At most down to the ready instances divided by this at once, above 1.
    #[serde(deserialize_with = "rate")]
    pub max_scale_down_rate: f64,
    /// The highest count of this span holds.
    #[serde(with = "span")]
    pub scale_down_delay: Nanos,
    /// Where anything is wanted at all, at least so many.
    pub activation_scale: u32,
    /// Burst that should fit beside what is there, in packets per second; it is reported and scales nothing.
    pub target_burst_capacity: f64,
    /// The time between two decisions. Knative's is 2 s.
    #[serde(serialize_with = "span::serialize", deserialize_with = "span::positive")]
    pub period: Nanos,

    #[serde(skip)]
    state: State,
}

/// What [`Kpa`] remembers.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct State {
    decider: Option<decider::State>,
    /// Packets of whole seconds: the second, and what was offered in it.
    buckets: VecDeque<(u64, f64)>,
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
    /// The mean of the last whole seconds, of as many as the window has.
    fn mean_pps(&self, window_s: f64, now: Nanos) -> Option<f64> {
        let last = (now.0 / BUCKET.0).checked_sub(1)?;
        window_mean(&self.state.buckets, window_s.ceil().max(1.0) as u64, last)
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
        let stable_s = self.stable_window.as_secs_f64();
        let stable = self.mean_pps(stable_s, now);
        let panic = self.mean_pps(stable_s * self.panic_window_percentage / 100.0, now);
        Reading {
            at_s: now.as_secs_f64(),
            ready: u32::try_from(observation.count(InstanceState::Active)).ok(),
            stable,
            // Nothing within the shorter window alone is a zero.
            panic: panic.or(stable.map(|_| 0.0)),
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
            "The share of its capacity that an instance should be used to.",
        ),
        Parameter::new(
            "stable_window",
            "span of time, 6s to 1h",
            "60s",
            "The window that decides in calm times.",
        ),
        Parameter::new(
            "panic_window_percentage",
            "percent, 1 to 100",
            "10",
            "The panic window, as a percentage of the stable one.",
        ),
        Parameter::new(
            "panic_threshold_percentage",
            "percent, 110 or more",
            "200",
            "It panics when the panic window asks for this percentage of the ready instances.",
        ),
        Parameter::new(
            "max_scale_up_rate",
            "number above 1",
            "1000",
            "At most so many times the ready instances at once.",
        ),
        Parameter::new(
            "max_scale_down_rate",
            "number above 1",
            "2",
            "At most down to the ready instances divided by this at once.",
        ),
        Parameter::new(
            "scale_down_delay",
            "span of time",
            "0s",
            "The highest count of this span holds.",
        ),
        Parameter::new(
            "activation_scale",
            "instances",
            "1",
            "Where anything is wanted at all, at least so many.",
        ),
        Parameter::new(
            "target_burst_capacity",
            "packets per second",
            "211",
            "Burst that should fit beside what is there; it is reported and scales nothing.",
        ),
        Parameter::new(
            "period",
            "span of time above 0",
            "2s",
            "The time between two decisions.",
        ),
    ];

    type State = State;

    fn state(&self) -> &State {
        &self.state
    }

    fn restore(&mut self, state: State) {
        self.state = state;
    }

    fn note(&mut self, observation: &Observation, now: Nanos) {
        if let Some(capacity_pps) = mean_capacity_pps(observation) {
            self.state.capacity_pps = capacity_pps;
        }
        let longest = self.stable_window.0.div_ceil(BUCKET.0) + 1;
        let state = &mut self.state;
        if state.decider.is_none() {
            let ready = u32::try_from(observation.count(InstanceState::Active)).unwrap_or(u32::MAX);
            // Room for all of them, so that none is made later.
            state.buckets.reserve(longest as usize + 2);
            state.decider = Some(decider::State::starting(ready, now.as_secs_f64()));
        }
        let second = now.0 / BUCKET.0;
        if let Some(before) = state.noted
            && now.since(before) <= GAP
        {
            let packets = finite(observation.offered_fast_pps) * now.since(before).as_secs_f64();
            match state.buckets.back_mut() {
                Some((at, sum)) if *at == second => *sum += packets,
                _ => state.buckets.push_back((second, packets)),
            }
        }
        state.noted = Some(now);
        while state
            .buckets
            .front()
            .is_some_and(|(at, _)| *at + longest < second)
        {
            state.buckets.pop_front();
        }
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

/// The mean of the `window` seconds that end with second `last`, as Knative's buckets give it. Seconds before the first of
/// which anything is known do not count, nor do those after the last; one in between of which nothing is known is a zero.
/// What was before a whole window of nothing is forgotten. [`None`] where the window and one second more are empty.
fn window_mean(buckets: &VecDeque<(u64, f64)>, window: u64, last: u64) -> Option<f64> {
    let mut known = buckets.iter().rev().skip_while(|(at, _)| *at > last);
    let (newest, mut sum) = *known.next()?;
    let missing = last - newest;
    if missing >= window {
        return (missing == window).then_some(0.0);
    }
    let mut first = newest;
    for (at, packets) in known {
        if first - at >= window {
            break;
        }
        first = *at;
        if last - at < window {
            sum += packets;
        }
    }
    let count = (newest - first + 1).min(window - missing);
    Some((sum / count as f64 * ROUNDING).floor() / ROUNDING)
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
    within(deserializer, |v| v >= 110.0, "a percentage of 110 or more")
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

#[cfg(test)]
mod tests {
    use super::*;

    fn record(buckets: &mut VecDeque<(u64, f64)>, at: u64, value: f64) {
        buckets.push_back((at, value));
    }

    /// What Knative's `bucketing_test.go` states of a window of five seconds. Values of times that have passed cannot come
    /// here, and neither can a time that is before the last value.
    #[test]
    fn windows_are_knatives() {
        let mut buckets = VecDeque::new();
        record(&mut buckets, 100, 1.0);
        assert_eq!(
            window_mean(&buckets, 5, 100),
            Some(1.0),
            "from the first value on"
        );
        for at in 1..5 {
            record(&mut buckets, 100 + at, (at + 1) as f64);
        }
        assert_eq!(window_mean(&buckets, 5, 104), Some(3.0));
        assert_eq!(
            window_mean(&buckets, 5, 106),
            Some(4.0),
            "two seconds without a value"
        );
        assert_eq!(window_mean(&buckets, 5, 109), Some(0.0));
        assert_eq!(
            window_mean(&buckets, 5, 110),
            None,
            "nothing for longer than the window"
        );
        record(&mut buckets, 106, 91.0);
        assert_eq!(
            window_mean(&buckets, 5, 106),
            Some((15.0 - 1.0 - 2.0 + 91.0) / 5.0),
            "a hole is a zero"
        );
        record(&mut buckets, 160, 1984.0);
        assert_eq!(window_mean(&buckets, 5, 160), Some(1984.0), "a fresh beginning");
        record(&mut buckets, 163, 4.0);
        assert_eq!(window_mean(&buckets, 5, 163), Some((1984.0 + 4.0) / 4.0));
        record(&mut buckets, 164, 5.0);
        assert_eq!(window_mean(&buckets, 5, 164), Some((1984.0 + 4.0 + 5.0) / 5.0));

        let mut holes: VecDeque<_> = (0..5).map(|at| (at, (at + 1) as f64)).collect();
        assert_eq!(window_mean(&holes, 5, 4), Some(3.0));
        record(&mut holes, 8, 2.0);
        assert_eq!(window_mean(&holes, 5, 8), Some(7.0 / 5.0), "5, three zeros, 2");

        // A window of another length at once, over the same values.
        let six: VecDeque<_> = (0..6).map(|at| (at, (at + 1) as f64)).collect();
        assert_eq!(window_mean(&six, 5, 5), Some(20.0 / 5.0));
        let seven: VecDeque<_> = (1..7).map(|at| (at, (at + 1) as f64)).collect();
        assert_eq!(
            window_mean(&seven, 10, 6),
            Some(27.0 / 6.0),
            "as many as there are"
        );
        assert_eq!(window_mean(&seven, 4, 6), Some(22.0 / 4.0));

        for (value, rounded) in [(3.6e-17, 0.0), (12_345.0, 12_345.0), (1.234_567_8, 1.234_567)] {
            assert_eq!(window_mean(&VecDeque::from([(7, value)]), 5, 7), Some(rounded));
        }
        assert_eq!(window_mean(&VecDeque::new(), 5, 7), None);
    }
}
