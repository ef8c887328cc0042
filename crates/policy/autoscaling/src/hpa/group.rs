//! How a pod counts, by what is known of it.

use super::State;

/// What is known of one pod. Spans are ages, in seconds.
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
    /// Whether it is ready, where it says so.
    pub readiness: Option<Readiness>,
    /// Its sample, where there is one.
    pub sample: Option<Sample>,
}

/// What a pod says of its readiness.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Readiness {
    /// Whether it is ready.
    pub ready: bool,
    /// Since when.
    pub since_s: f64,
}

/// When a sample was taken.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// How long ago it ended.
    pub age_s: f64,
    /// The span that it is the mean of.
    pub window_s: f64,
}

/// From when on a pod is taken at its word.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Timing {
    /// A pod that started later ago than this counts even where it is not ready.
    pub initialization_s: f64,
    /// A pod that was last not ready within this of its start has never been ready.
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

/// How a pod counts; `is_cpu` is whether the metric is the one for which readiness matters.
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
        // Its sample must be of a time in which it was ready.
        !readiness.ready || sample.age_s > readiness.since_s - sample.window_s
    } else {
        // It has never been ready.
        !readiness.ready && started_s - timing.readiness_delay_s < readiness.since_s
    };
    if unready { State::Unready } else { State::Ready }
}
