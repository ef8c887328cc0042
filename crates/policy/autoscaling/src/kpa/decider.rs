use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

/// The resolution of the scale-down window, in seconds: Knative's tick.
pub(super) const TICK_S: f64 = 2.0;

/// The user's KPA specification.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Spec {
    /// Target per instance, in the unit of the metric.
    pub target: f64,
    /// Capacity per instance, in the same unit: the target before the utilisation factor.
    pub total: f64,
    /// Burst to keep capacity for; 0 for none, negative for any.
    pub target_burst_capacity: f64,
    /// Panic if the panic window wants this multiple of the ready instances.
    pub panic_threshold: f64,
    /// Largest multiple of the ready instances in one step.
    pub max_scale_up_rate: f64,
    /// Largest divisor of the ready instances in one step down.
    pub max_scale_down_rate: f64,
    /// The stable window, and the duration of a panic after its last cause, in seconds.
    pub stable_window_s: f64,
    /// The highest count of this many seconds applies.
    pub scale_down_delay_s: f64,
    /// The minimum if any instance is wanted.
    pub activation_scale: i32,
    /// Whether traffic can reach it; if not, it may scale down at once.
    pub reachable: bool,
    /// The minimum while reachable.
    pub min: i32,
    /// The maximum; 0 for no limit.
    pub max: i32,
}

impl Default for Spec {
    fn default() -> Self {
        // Knative's defaults.
        Spec {
            target: 70.0,
            total: 100.0,
            target_burst_capacity: 211.0,
            panic_threshold: 2.0,
            max_scale_up_rate: 1_000.0,
            max_scale_down_rate: 2.0,
            stable_window_s: 60.0,
            scale_down_delay_s: 0.0,
            activation_scale: 1,
            reachable: true,
            min: 0,
            max: 0,
        }
    }
}

/// The state of KPA. Times are in seconds, on the clock of the readings.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct State {
    /// The time of the current panic's last cause, if it panics.
    pub panicking_since_s: Option<f64>,
    /// The highest count of this panic.
    pub max_panic: i32,
    /// Counts in the scale-down delay: tick and count, decreasing.
    #[serde(skip_serializing_if = "VecDeque::is_empty")]
    pub delayed: VecDeque<(i64, i32)>,
}

impl State {
    /// The state at start beside so many ready instances. More than one count as found in a panic, so that a
    /// restart does not scale down before the windows are full.
    pub fn starting(ready: u32, at_s: f64) -> State {
        State {
            panicking_since_s: (ready > 1).then_some(at_s),
            max_panic: i32::try_from(ready).unwrap_or(i32::MAX),
            delayed: VecDeque::new(),
        }
    }
}

/// The inputs at one tick.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reading {
    /// The time, in seconds.
    pub at_s: f64,
    /// Ready instances; unset if they could not be counted.
    #[serde(default)]
    pub ready: Option<u32>,
    /// The metric over the stable window; unset without data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stable: Option<f64>,
    /// The metric over the panic window; unset without data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub panic: Option<f64>,
}

/// KPA's decision at one tick.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Verdict {
    /// Wanted instances; unset without data.
    pub replicas: Option<i32>,
    /// Spare capacity beyond load and burst, in the unit of the metric; negative if the burst does not fit.
    pub excess_burst_capacity: Option<i32>,
    /// Whether it panics.
    pub panicking: bool,
}

/// The autoscaler of one revision.
#[derive(Clone, Debug, PartialEq)]
pub struct Decider {
    /// Its specification.
    pub spec: Spec,
    /// Its state.
    pub state: State,
}

impl Decider {
    /// Decides on one reading.
    pub fn step(&mut self, reading: &Reading) -> Verdict {
        let (spec, state) = (&self.spec, &mut self.state);
        let (Some(ready), Some(stable), Some(panic)) = (reading.ready, reading.stable, reading.panic) else {
            return Verdict {
                replicas: None,
                excess_burst_capacity: None,
                panicking: state.panicking_since_s.is_some(),
            };
        };
        let at_least_one = f64::from(ready.max(1));
        // Rounded up, or a low rate would never let a small count grow.
        let most = (spec.max_scale_up_rate * at_least_one).ceil();
        let least = if spec.reachable {
            (at_least_one / spec.max_scale_down_rate).floor()
        } else {
            0.0
        };
        let wanted = [stable, panic].map(|value| (value / spec.target).ceil());
        let [for_stable, for_panic] = wanted.map(|raw| {
            let count = raw.max(least).min(most) as i32;
            if spec.activation_scale > 1 && raw > 0.0 {
                count.max(spec.activation_scale)
            } else {
                count
            }
        });
        // Before any limit.
        let over = wanted[1] / at_least_one >= spec.panic_threshold;
        if over {
            state.panicking_since_s = Some(reading.at_s);
        } else if state
            .panicking_since_s
            .is_some_and(|since_s| since_s + spec.stable_window_s < reading.at_s)
        {
            state.panicking_since_s = None;
            state.max_panic = 0;
        }
        let mut replicas = for_stable;
        if state.panicking_since_s.is_some() {
            state.max_panic = state.max_panic.max(for_stable).max(for_panic);
            replicas = state.max_panic;
        }
        // An unreachable revision need not wait.
        if spec.scale_down_delay_s > 0.0 && spec.reachable {
            replicas = highest_delayed(
                &mut state.delayed,
                spec.scale_down_delay_s,
                reading.at_s,
                replicas,
            );
        }
        if spec.reachable {
            replicas = replicas.max(spec.min);
        }
        if spec.max > 0 {
            replicas = replicas.min(spec.max);
        }
        let excess = match spec.target_burst_capacity {
            0.0 => 0.0,
            burst if burst > 0.0 => (f64::from(ready) * spec.total - burst - panic).floor(),
            _ => -1.0,
        };
        Verdict {
            replicas: Some(replicas),
            excess_burst_capacity: Some(excess as i32),
            panicking: state.panicking_since_s.is_some(),
        }
    }
}

/// Adds a count and returns the highest within the delay.
pub(super) fn highest_delayed(window: &mut VecDeque<(i64, i32)>, delay_s: f64, at_s: f64, count: i32) -> i32 {
    let ticks = (delay_s / TICK_S).ceil() as i64;
    let tick = (at_s / TICK_S).floor() as i64;
    while window.front().is_some_and(|(at, _)| *at <= tick - ticks) {
        window.pop_front();
    }
    while window.back().is_some_and(|(_, value)| *value <= count) {
        window.pop_back();
    }
    window.push_back((tick, count));
    window.front().map_or(count, |(_, value)| *value)
}
