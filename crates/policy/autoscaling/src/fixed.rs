use model::{Nanos, Observation};
use serde::{Deserialize, Serialize};

use crate::{Decision, Parameter, Policy, Reason, within_limits};

/// As many instances as somebody says: the parameter `count`, or what was wanted so far. It is what a count that was
/// set by hand amounts to, and the baseline for experiments.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Fixed {
    /// Active instances wanted; unset, those wanted so far.
    pub count: Option<u32>,
}

impl Policy for Fixed {
    const NAME: &'static str = "fixed";
    const PARAMETERS: &'static [Parameter] = &[Parameter::new(
        "count",
        "instances",
        "as many as were wanted",
        "Active instances wanted.",
    )];

    type State = ();

    fn state(&self) -> &() {
        &()
    }

    fn restore(&mut self, (): ()) {}

    fn judge(&self, observation: &Observation, _now: Nanos) -> Decision {
        let count = self.count.unwrap_or(observation.wanted);
        let reason = Reason::new("fixed").with("count", f64::from(count));
        Decision::count(within_limits(count, observation), reason)
    }
}
