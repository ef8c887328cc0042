//! How fast a service's load rises, less what chance explains: shared by policies that act within milliseconds.

use model::Observation;
use serde::{Deserialize, Serialize};

use crate::finite;

/// The time constant of the collector's fast rates.
pub(crate) const FAST_S: f64 = 0.010;
/// A rate must exceed a limit by this many standard deviations of a Poisson count, so that chance is no load.
const SIGMAS: f64 = 3.0;

/// The last observation's fast rate, with what went before it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Rise {
    /// The fast rate, and arrivals per second since the observation before.
    fast_pps: f64,
    now_pps: f64,
    /// The mean of the fast rate, with the same time constant. The fast rate minus this is its rise within the time
    /// constant.
    smooth_pps: f64,
    /// The time since the observation before; 0 with the first one.
    pub(crate) span_s: f64,
}

impl Rise {
    /// Records an observation: the first one without `span_s`, the time since the one before.
    pub(crate) fn note(&mut self, observation: &Observation, span_s: Option<f64>) {
        let fast = finite(observation.offered_fast_pps);
        match span_s {
            Some(span_s) => {
                self.span_s = span_s;
                let weight = -(-span_s / FAST_S).exp_m1();
                self.now_pps = (self.fast_pps + (fast - self.fast_pps) / weight.max(1e-6)).max(0.0);
                self.smooth_pps += weight * (fast - self.smooth_pps);
            }
            None => self.smooth_pps = fast,
        }
        self.fast_pps = fast;
    }

    /// The current rate, less what chance explains: the fast rate plus its lag during a rise. A 10 ms mean lags behind a
    /// linear rise by 10 ms, and so does the mean of the mean. A single packet train shows in the last step but hardly
    /// here.
    pub(crate) fn rising_at_least(&self, observation: &Observation) -> f64 {
        let fast = fast_at_least(observation.offered_fast_pps);
        let level = fast + (self.fast_pps - self.smooth_pps).max(0.0);
        fast.max(level.min(self.now_at_least()))
    }

    /// Arrivals in the last step, less what chance explains.
    pub(crate) fn now_at_least(&self) -> f64 {
        if self.span_s <= 0.0 {
            return 0.0;
        }
        (self.now_pps - SIGMAS * (self.now_pps / self.span_s).sqrt()).max(0.0)
    }
}

/// A fast rate, less what chance explains.
pub(crate) fn fast_at_least(pps: f64) -> f64 {
    let fast = finite(pps);
    (fast - SIGMAS * (fast / (2.0 * FAST_S)).sqrt()).max(0.0)
}
