use std::collections::VecDeque;

#[cfg(feature = "forecasting")]
use augurs::ets::AutoETS;
#[cfg(feature = "forecasting")]
use augurs::mstl::MSTLModel;
#[cfg(feature = "forecasting")]
use augurs::{Fit as _, Predict as _};
use model::{Nanos, Observation};
use serde::{Deserialize, Serialize};

use crate::highest::Highest;
use crate::holt::{Holt, Record};
use crate::{Decision, Parameter, Policy, Reason, finite, mean_capacity_pps, share, span, within_limits};

/// Below this step no model is fitted: the damped Holt forecasts alone.
const SHORTEST_FIT: Nanos = Nanos::from_secs(1);
/// Values in the history without a season; with one, three seasons.
const HISTORY: usize = 240;
/// Fewest values for a fit.
const FIRST_FIT: usize = 20;
/// Longest season in steps: a fit's time and memory grow with it.
const SEASON_LIMIT: u64 = 1_440;
/// Steps between two fits.
const REFIT: u32 = 30;
/// Steps in the accuracy record.
const RECORD_STEPS: u32 = 60;

/// As many instances as keep the stable rate, or the rate forecast for when a new instance would be ready, at
/// `target` of the capacity. The forecast only adds instances (AWS' rule), and only while it beats the naive
/// forecast (no change).
///
/// With a step of a second or more the `augurs` crate forecasts: exponential smoothing (ETS), within MSTL if
/// there is a `season`. Below that, and until the first [`Fit`] is ready, a damped Holt does.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Predictive {
    /// Target utilisation.
    #[serde(deserialize_with = "share::positive")]
    pub target: f64,
    /// Permitted deviation from the target, as a share of it.
    pub tolerance: f64,
    /// Averaging window of the stable rate.
    #[serde(serialize_with = "span::serialize", deserialize_with = "span::positive")]
    pub window: Nanos,
    /// The time step of the series.
    #[serde(serialize_with = "span::serialize", deserialize_with = "span::positive")]
    pub step: Nanos,
    /// The forecast horizon: an instance's start time.
    #[serde(serialize_with = "span::serialize", deserialize_with = "span::positive")]
    pub lead: Nanos,
    /// The season; 0 for none.
    #[serde(with = "span")]
    pub season: Nanos,
    /// How long fewer instances must have sufficed before scaling down.
    #[serde(with = "span")]
    pub scale_down_window: Nanos,
    /// Whether it only reports what its forecast would have done.
    pub shadow: bool,

    #[serde(skip)]
    state: State,
}

/// The state of [`Predictive`].
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct State {
    noted: Option<Nanos>,
    capacity_pps: f64,
    /// The value being accumulated: packets, seconds.
    gathered: (f64, f64),
    next: Nanos,
    values: VecDeque<f64>,
    holt: Holt,
    /// The last fit's forecast by step, and the steps elapsed since.
    path: Vec<f64>,
    passed: u32,
    /// Whether a fit is due and not taken, when the running one was taken, and the steps elapsed since.
    fit_due: bool,
    fit_taken: Option<Nanos>,
    since_fit: Option<u32>,
    record: Record,
    /// The highest wanted count within the scale-down window.
    recent: Highest<u32>,
}

/// A model to fit to the history. That takes milliseconds, or 0.1 s with a long season, so it runs off the
/// loop: the caller takes it ([`Autoscaler::take_fit`](crate::Autoscaler::take_fit)), runs it on any thread
/// and returns the result ([`Autoscaler::give`](crate::Autoscaler::give)). Until then the previous forecast
/// applies.
#[derive(Clone, Debug, PartialEq)]
pub struct Fit {
    taken: Nanos,
    values: Vec<f64>,
    /// Steps of a season; below 2 there is none.
    season: usize,
    /// Steps to forecast.
    steps: usize,
}

/// The result of a [`Fit`].
#[derive(Clone, Debug, PartialEq)]
pub struct Fitted {
    taken: Nanos,
    /// The forecast by step; empty if no model could be fitted.
    path: Vec<f64>,
}

impl Fit {
    /// Fits the model and forecasts with it.
    pub fn run(self) -> Fitted {
        Fitted {
            taken: self.taken,
            path: self.path().unwrap_or_default(),
        }
    }

    /// Without the forecasting libraries there is no model.
    #[cfg(not(feature = "forecasting"))]
    fn path(&self) -> Option<Vec<f64>> {
        None
    }

    #[cfg(feature = "forecasting")]
    fn path(&self) -> Option<Vec<f64>> {
        // Additive errors and an optional, possibly damped trend: multiplicative models fail on a silent
        // service.
        let ets = AutoETS::new(1, "AZN").ok()?;
        let point = if self.season >= 2 && self.values.len() >= 2 * self.season {
            let fitted = MSTLModel::new(vec![self.season], ets.into_trend_model())
                .fit(&self.values)
                .ok()?;
            fitted.predict(self.steps, None).ok()?.point
        } else {
            ets.fit(&self.values).ok()?.predict(self.steps, None).ok()?.point
        };
        point.iter().all(|value| value.is_finite()).then_some(point)
    }
}

impl Default for Predictive {
    fn default() -> Self {
        Predictive {
            target: 0.7,
            tolerance: 0.1,
            window: Nanos::from_secs(1),
            step: Nanos::from_secs(1),
            lead: Nanos::from_secs(2),
            season: Nanos::ZERO,
            scale_down_window: Nanos::from_secs(30),
            shadow: false,
            state: State::default(),
        }
    }
}

impl Predictive {
    fn lead_steps(&self) -> u32 {
        u32::try_from(self.lead.0.div_ceil(self.step.0.max(1)))
            .unwrap_or(u32::MAX)
            .clamp(1, 600)
    }

    fn season_steps(&self) -> usize {
        (self.season.0 / self.step.0.max(1)).min(SEASON_LIMIT) as usize
    }

    fn history(&self) -> usize {
        HISTORY.max(3 * self.season_steps())
    }

    /// The rate forecast `lead` ahead.
    fn expected_pps(&self) -> f64 {
        let lead = self.lead_steps();
        let at = self.state.passed as usize + lead as usize;
        match self.state.path.get(at.saturating_sub(1)) {
            Some(expected) => finite(*expected),
            None => self.state.holt.ahead(lead),
        }
    }

    /// Adds the next value of the series.
    fn add(&mut self, value: f64) {
        let (history, lead) = (self.history(), self.lead_steps());
        let state = &mut self.state;
        while state.values.len() >= history {
            state.values.pop_front();
        }
        state.values.push_back(value);
        state.holt.add(value);
        state.passed = state.passed.saturating_add(1);
        state.since_fit = state.since_fit.map(|steps| steps.saturating_add(1));
        if self.step >= SHORTEST_FIT
            && state.values.len() >= FIRST_FIT
            && state.since_fit.is_none_or(|steps| steps >= REFIT)
        {
            state.fit_due = true;
        }
        let expected = self.expected_pps();
        self.state.record.note(value, expected, lead, RECORD_STEPS);
    }

    /// Instances needed for that rate at the target; `current` if within the tolerance.
    fn count_for(&self, pps: f64, current: u32) -> u32 {
        let capacity = self.state.capacity_pps * self.target;
        let needed = pps / capacity;
        if current > 0 && (needed / f64::from(current) - 1.0).abs() <= self.tolerance {
            return current;
        }
        share::whole(needed)
    }

    /// The counts wanted by the load and by the forecast.
    fn counts(&self, observation: &Observation) -> (u32, u32) {
        let current = within_limits(observation.wanted, observation);
        let stable = finite(observation.offered_stable_pps);
        let fast = finite(observation.offered_fast_pps);
        let load = if observation.hot { stable.max(fast) } else { stable };
        let now = within_limits(self.count_for(load, current), observation);
        let trusted = self.state.record.is_trusted();
        let forecast = if trusted {
            self.count_for(self.state.record.sure_of(self.expected_pps()), current)
        } else {
            0
        };
        (now, within_limits(forecast, observation).max(now))
    }
}

impl Policy for Predictive {
    const NAME: &'static str = "predictive";
    const PARAMETERS: &'static [Parameter] = &[
        Parameter::new(
            "target",
            "share, above 0 and at most 1",
            "0.7",
            "Target utilisation.",
        ),
        Parameter::new(
            "tolerance",
            "share",
            "0.1",
            "Permitted deviation from the target, as a share of it.",
        ),
        Parameter::new(
            "window",
            "duration above 0",
            "1s",
            "Averaging window of the stable rate.",
        ),
        Parameter::new(
            "step",
            "duration above 0",
            "1s",
            "The time step of the series; below 1s a damped Holt forecasts alone.",
        ),
        Parameter::new(
            "lead",
            "duration above 0",
            "2s",
            "The forecast horizon: an instance's start time.",
        ),
        Parameter::new(
            "season",
            "duration",
            "0s",
            "The season, at most 1440 steps; 0 for none.",
        ),
        Parameter::new(
            "scale_down_window",
            "duration",
            "30s",
            "How long fewer instances must have sufficed before scaling down.",
        ),
        Parameter::new(
            "shadow",
            "true or false",
            "false",
            "Whether it only reports, in the event log, what its forecast would have done.",
        ),
    ];

    crate::keeps_state!(window);

    fn take_fit(&mut self) -> Option<Fit> {
        if !std::mem::take(&mut self.state.fit_due) {
            return None;
        }
        self.state.fit_taken = self.state.noted;
        self.state.since_fit = Some(0);
        Some(Fit {
            taken: self.state.noted?,
            values: self.state.values.iter().copied().collect(),
            season: self.season_steps(),
            steps: (self.lead_steps() + REFIT) as usize,
        })
    }

    fn give(&mut self, fitted: Fitted) {
        // A late result, or one requested by a previous policy, is ignored.
        if self.state.fit_taken != Some(fitted.taken) {
            return;
        }
        self.state.fit_taken = None;
        // Without a fitted model, Holt forecasts.
        self.state.path = fitted.path;
        self.state.passed = self.state.since_fit.unwrap_or(0);
    }

    fn note(&mut self, observation: &Observation, now: Nanos) {
        if self.state.noted == Some(now) {
            return;
        }
        if let Some(capacity_pps) = mean_capacity_pps(observation) {
            self.state.capacity_pps = capacity_pps;
        }
        let lead = self.lead_steps();
        match self.state.noted {
            Some(before) => {
                let span_s = now.since(before).as_secs_f64();
                let (packets, seconds) = self.state.gathered;
                let fast = finite(observation.offered_fast_pps);
                self.state.gathered = (packets + fast * span_s, seconds + span_s);
            }
            None => {
                self.state.record.reserve(lead);
                self.state.values.reserve(self.history());
                self.state.next = now + self.step;
                let found = within_limits(observation.wanted, observation);
                self.state.recent.add(now, found);
            }
        }
        self.state.noted = Some(now);
        if now >= self.state.next {
            let (packets, seconds) = std::mem::take(&mut self.state.gathered);
            self.state.next = now + self.step;
            if seconds > 0.0 {
                self.add(packets / seconds);
            }
        }
        self.state.recent.forget(now, self.scale_down_window);
    }

    fn judge(&self, observation: &Observation, _now: Nanos) -> Decision {
        let current = within_limits(observation.wanted, observation);
        if self.state.capacity_pps <= 0.0 {
            return Decision::count(current, Reason::new("capacity_unknown"));
        }
        let (now, with_forecast) = self.counts(observation);
        let (error, naive_error) = self.state.record.errors();
        let reason = Reason::new("load")
            .with("stable_pps", finite(observation.offered_stable_pps))
            .with("expected_pps", self.expected_pps())
            .with("capacity_pps", self.state.capacity_pps)
            .with("error", error)
            .with("naive_error", naive_error);
        let wanted = if self.shadow { now } else { with_forecast };
        let highest = self.state.recent.get().unwrap_or(0);
        let held = |count: u32| count.max(within_limits(highest, observation).min(current));
        let rule = match (held(wanted).cmp(&current), wanted > now) {
            (std::cmp::Ordering::Greater, true) => "forecast",
            (std::cmp::Ordering::Greater, false) => "above_target",
            (std::cmp::Ordering::Less, _) => "below_target",
            (std::cmp::Ordering::Equal, _) if wanted < current => "scale_down_held",
            (std::cmp::Ordering::Equal, _) => "at_target",
        };
        let desired = held(wanted);
        Decision {
            shadow: self.shadow.then(|| held(with_forecast)),
            ..Decision::count(desired, reason.named(rule))
        }
    }

    fn commit(&mut self, observation: &Observation, _decision: &Decision, now: Nanos) {
        if self.state.capacity_pps <= 0.0 {
            return;
        }
        let (load, with_forecast) = self.counts(observation);
        let wanted = if self.shadow { load } else { with_forecast };
        self.state.recent.add(now, wanted);
    }
}
