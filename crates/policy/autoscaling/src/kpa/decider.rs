use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

/// The span of one place of the scale-down window, in seconds: Knative's tick.
pub(super) const TICK_S: f64 = 2.0;

/// What the user asks of KPA.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Spec {
    /// What each instance should have, in the unit of the metric.
    pub target: f64,
    /// What each instance can have, in the same unit: the target before utilisation is taken off.
    pub total: f64,
    /// Burst that must fit beside what is there; 0 for none, below 0 for any.
    pub target_burst_capacity: f64,
    /// It panics when the panic window asks for so many times the ready instances.
    pub panic_threshold: f64,
    /// At most so many times the ready instances at once.
    pub max_scale_up_rate: f64,
    /// At most down to the ready instances divided by this at once.
    pub max_scale_down_rate: f64,
    /// The stable window, which is also how long a panic lasts after its last cause, in seconds.
    pub stable_window_s: f64,
    /// The highest count of so many seconds holds.
    pub scale_down_delay_s: f64,
    /// Where anything is wanted at all, at least so many.
    pub activation_scale: i32,
    /// Whether traffic can reach it; if not it may go down at once.
    pub reachable: bool,
    /// At least so many, where traffic can reach it.
    pub min: i32,
    /// At most so many; 0 for no limit.
    pub max: i32,
}

impl Default for Spec {
    fn default() -> Self {
        // Knative's own defaults.
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

/// What KPA remembers. Times are seconds on the axis of the readings.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct State {
    /// The last cause of the panic that goes on, if one does.
    pub panicking_since_s: Option<f64>,
    /// The highest count of this panic.
    pub max_panic: i32,
    /// Counts of the scale-down delay: tick and count, later ones lower.
    #[serde(skip_serializing_if = "VecDeque::is_empty")]
    pub delayed: VecDeque<(i64, i32)>,
}

impl State {
    /// What it remembers when it starts beside so many ready instances: more than one count as found in a panic, so
    /// that a restart does not scale down before the windows are full.
    pub fn starting(ready: u32, at_s: f64) -> State {
        State {
            panicking_since_s: (ready > 1).then_some(at_s),
            max_panic: i32::try_from(ready).unwrap_or(i32::MAX),
            delayed: VecDeque::new(),
        }
    }
}

/// What is seen at one tick.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reading {
    /// When, in seconds.
    pub at_s: f64,
    /// Ready instances; unset where they could not be counted.
    #[serde(default)]
    pub ready: Option<u32>,
    /// The metric over the stable window; unset without data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stable: Option<f64>,
    /// The metric over the panic window; unset without data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub panic: Option<f64>,
}

/// What KPA decided at one tick.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Verdict {
    /// Instances wanted; unset where there was nothing to decide on.
    pub replicas: Option<i32>,
    /// What fits beside what is there and the burst, in the unit of the metric; below 0 it does not fit.
    pub excess_burst_capacity: Option<i32>,
    /// Whether it panics.
    pub panicking: bool,
}

/// One revision's autoscaler.
#[derive(Clone, Debug, PartialEq)]
pub struct Decider {
    /// What is asked of it.
    pub spec: Spec,
    /// What it remembers.
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
        // Rounded up, or a small rate would never let a small count grow.
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
        // What nobody can reach need not wait.
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

/// Notes a count and gives the highest one of the delay.
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
