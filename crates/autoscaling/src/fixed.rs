use model::{Nanos, Observation};
use serde::Deserialize;

use crate::{Decision, Policy, Reason, within_limits};

/// As many instances as somebody says: the parameter `count`, or what was wanted so far. It is what a count that was
/// set by hand amounts to, and the baseline for experiments.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Fixed {
    /// Active instances wanted; unset, those wanted so far.
    pub count: Option<u32>,
}

impl Policy for Fixed {
    const NAME: &'static str = "fixed";
    const PARAMETERS: &'static [&'static str] = &["count"];

    fn step(&mut self, observation: &Observation, _now: Nanos) -> Decision {
        let count = self.count.unwrap_or(observation.wanted);
        Decision {
            desired: within_limits(count, observation),
            quotas: Vec::new(),
            reason: Reason::new("fixed").with("count", f64::from(count)),
        }
    }
}
