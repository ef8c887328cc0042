//! Groups pods by their status.

use super::State;

/// The status of a pod. Durations are ages, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Pod {
    /// Whether it is being deleted.
    pub terminating: bool,
    /// Whether it ended with an error.
    pub failed: bool,
    /// Whether it does not run yet.
    pub pending: bool,
    /// How long ago it started.
    pub started_s: Option<f64>,
    /// Its readiness, if reported.
    pub readiness: Option<Readiness>,
    /// Its sample, if any.
    pub sample: Option<Sample>,
}

/// A pod's reported readiness.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Readiness {
    /// Whether it is ready.
    pub ready: bool,
    /// Age of the last transition.
    pub since_s: f64,
}

/// The time of a sample.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// Age of its end.
    pub age_s: f64,
    /// The window that it averages.
    pub window_s: f64,
}

/// When a pod's reported readiness is trusted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Timing {
    /// A pod that started earlier than this counts even if not ready.
    pub initialization_s: f64,
    /// A pod whose last transition to unready was within this of its start has never been ready.
    pub readiness_delay_s: f64,
}

impl Default for Timing {
    fn default() -> Self {
        Timing {
            initialization_s: 300.0,
            readiness_delay_s: 30.0,
        }
    }
}

/// The group of a pod. `is_cpu` is true for the metric for which readiness matters.
pub fn group(pod: &Pod, is_cpu: bool, timing: Timing) -> State {
    if pod.terminating {
        return State::Terminating;
    }
    if pod.failed {
        return State::Failed;
    }
    if pod.pending {
        return State::Pending;
    }
    let Some(sample) = pod.sample else {
        return State::Missing;
    };
    if !is_cpu {
        return State::Ready;
    }
    let (Some(readiness), Some(started_s)) = (pod.readiness, pod.started_s) else {
        return State::Unready;
    };
    let unready = if started_s < timing.initialization_s {
        // The sample's window must lie after it became ready.
        !readiness.ready || sample.age_s > readiness.since_s - sample.window_s
    } else {
        // It has never been ready.
        !readiness.ready && started_s - timing.readiness_delay_s < readiness.since_s
    };
    if unready { State::Unready } else { State::Ready }
}
