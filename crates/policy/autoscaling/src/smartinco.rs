use model::{Nanos, Observation};
use serde::{Deserialize, Serialize};

use crate::highest::Highest;
use crate::{Decision, Parameter, Policy, Reason, finite, mean_capacity_pps, share, span, within_limits};

/// SmartINCO's autoscaler (§3.2): keeps the instances at a target share of their capacity, by the equation of
/// Kubernetes' HPA, `desired = ceil(current × utilisation / target)`, with no change within a tolerance of
/// the target (§2.2.2, equation 2.1 and table 1).
///
/// - Utilisation is the service's offered rate over `window`, divided by the capacity of all wanted
///   instances, including those not ready yet. They count as idle (HPA's rule for unready pods), so that a
///   slow start is not requested twice.
/// - If a ring is hot it does not wait for the window to fill: the higher of stable and fast rate counts.
/// - It scales down to the highest count wanted within `scale_down_window`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SmartInco {
    /// Target utilisation, above 0 and at most 1. The paper's default is 0.5.
    #[serde(deserialize_with = "share::positive")]
    pub target: f64,
    /// Permitted deviation from the target, as a share of it. HPA's default is 0.1.
    #[serde(deserialize_with = "share::any")]
    pub tolerance: f64,
    /// Averaging window of the stable rate. The paper states none.
    #[serde(with = "span")]
    pub window: Nanos,
    /// How long fewer instances must have sufficed before scaling down.
    #[serde(with = "span")]
    pub scale_down_window: Nanos,

    #[serde(skip)]
    state: State,
}

/// The state of [`SmartInco`].
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct State {
    /// The highest wanted count within the scale-down window.
    recent: Highest<u32>,
    /// An instance's last known capacity, for when there is no instance.
    capacity_pps: f64,
    /// Whether there was an observation.
    started: bool,
}

impl Default for SmartInco {
    fn default() -> Self {
        SmartInco {
            target: 0.5,
            tolerance: 0.1,
            window: Nanos::from_secs(1),
            // Ten windows. HPA has twenty of its periods (300 s of 15 s), but here a drain can be cancelled
            // at no cost.
            scale_down_window: Nanos::from_secs(10),
            state: State::default(),
        }
    }
}

impl SmartInco {
    /// The HPA equation for one observation, without windows and limits.
    fn proposal(&self, observation: &Observation, current: u32) -> (u32, Reason) {
        let stable = finite(observation.offered_stable_pps);
        let fast = finite(observation.offered_fast_pps);
        let hot = observation.hot && fast > stable;
        let load_pps = if hot { fast } else { stable };
        let reason = Reason::new("at_target")
            .with("load_pps", load_pps)
            .with("capacity_pps", self.state.capacity_pps);
        if self.state.capacity_pps <= 0.0 {
            return (current, reason.named("capacity_unknown"));
        }
        let needed = load_pps / (self.state.capacity_pps * self.target);
        let reason = reason
            .with("target", self.target)
            .with("current", f64::from(current));
        // From zero HPA has no ratio: round the need up.
        let ratio = if current == 0 {
            f64::INFINITY
        } else {
            needed / f64::from(current)
        };
        let reason = if current == 0 {
            reason
        } else {
            reason.with("utilisation", ratio * self.target)
        };
        if (ratio - 1.0).abs() <= self.tolerance + share::ROUNDING {
            return (current, reason.named("within_tolerance"));
        }
        let proposal = share::whole(needed);
        let rule = match (proposal.cmp(&current), hot) {
            (std::cmp::Ordering::Greater, true) => "above_target_hot",
            (std::cmp::Ordering::Greater, false) => "above_target",
            (std::cmp::Ordering::Less, _) => "below_target",
            (std::cmp::Ordering::Equal, _) => "at_target",
        };
        (proposal, reason.named(rule))
    }
}

impl Policy for SmartInco {
    const NAME: &'static str = "smartinco";
    const PARAMETERS: &'static [Parameter] = &[
        Parameter::new(
            "target",
            "share, above 0 and at most 1",
            "0.5",
            "Target utilisation.",
        ),
        Parameter::new(
            "tolerance",
            "share, 0 to 1",
            "0.1",
            "Permitted deviation from the target, as a share of it.",
        ),
        Parameter::new("window", "duration", "1s", "Averaging window of the stable rate."),
        Parameter::new(
            "scale_down_window",
            "duration",
            "10s",
            "How long fewer instances must have sufficed before scaling down.",
        ),
    ];

    crate::keeps_state!(window);

    fn note(&mut self, observation: &Observation, now: Nanos) {
        if let Some(capacity_pps) = mean_capacity_pps(observation) {
            self.state.capacity_pps = capacity_pps;
        }
        let recent = &mut self.state.recent;
        if !std::mem::replace(&mut self.state.started, true) {
            // As after a restart: existing instances were wanted and stay for a whole window.
            recent.add(now, within_limits(observation.wanted, observation));
        }
        recent.forget(now, self.scale_down_window);
    }

    fn judge(&self, observation: &Observation, _now: Nanos) -> Decision {
        let current = within_limits(observation.wanted, observation);
        let (proposal, reason) = self.proposal(observation, current);
        let proposal_within = within_limits(proposal, observation);
        let highest = self.state.recent.get().unwrap_or(0);
        let highest = within_limits(highest.max(proposal_within), observation);
        let reason = reason.with("proposal", f64::from(proposal));
        let (desired, reason) = if proposal_within > current {
            let limited = proposal_within < proposal;
            (
                proposal_within,
                if limited {
                    reason.named("limited_to_max")
                } else {
                    reason
                },
            )
        } else if proposal_within < current {
            match highest.min(current) {
                held if held == current => (current, reason.named("scale_down_held")),
                held if held > proposal_within => (held, reason.named("scale_down_held_in_part")),
                held if proposal < held => (held, reason.named("limited_to_min")),
                held => (held, reason),
            }
        } else if proposal > current {
            (current, reason.named("at_max"))
        } else if proposal < current {
            (current, reason.named("at_min"))
        } else {
            (current, reason)
        };
        Decision::count(desired, reason)
    }

    fn commit(&mut self, observation: &Observation, _decision: &Decision, now: Nanos) {
        let current = within_limits(observation.wanted, observation);
        let proposal = within_limits(self.proposal(observation, current).0, observation);
        self.state.recent.add(now, proposal);
    }

    fn is_overloaded(&self, observation: &Observation) -> bool {
        let fast = finite(observation.offered_fast_pps);
        let enough =
            f64::from(observation.wanted) * self.state.capacity_pps * self.target * (1.0 + self.tolerance);
        observation.hot
            || observation.unserved_fast_pps > 0.0
            || (self.state.capacity_pps > 0.0 && fast > enough)
    }
}
