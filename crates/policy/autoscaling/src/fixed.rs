use model::{Nanos, Observation};
use serde::{Deserialize, Serialize};

use crate::{Decision, Parameter, Policy, Reason, within_limits};

/// A fixed number of instances: the parameter `count`, or the previously wanted number. Serves manual
/// scaling, and as the baseline for experiments.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Fixed {
    /// Wanted Active instances; unset keeps the previous number.
    pub count: Option<u32>,
}

impl Policy for Fixed {
    const NAME: &'static str = "fixed";
    const PARAMETERS: &'static [Parameter] = &[Parameter::new(
        "count",
        "instances",
        "the previous number",
        "Wanted Active instances.",
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
