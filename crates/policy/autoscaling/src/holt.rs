//! A damped Holt forecast of an equally spaced series, and its accuracy record.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

/// Smoothing factor of the level.
const ALPHA: f64 = 0.3;
/// Smoothing factor of the trend.
const BETA: f64 = 0.1;
/// Damping of the trend per step.
const PHI: f64 = 0.9;

/// The forecaster's state.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Holt {
    level: f64,
    trend: f64,
    values: u64,
}

impl Holt {
    /// Adds the next value.
    pub(crate) fn add(&mut self, value: f64) {
        if self.values == 0 {
            self.level = value;
        } else {
            let before = self.level;
            self.level = ALPHA * value + (1.0 - ALPHA) * (before + PHI * self.trend);
            self.trend = BETA * (self.level - before) + (1.0 - BETA) * PHI * self.trend;
        }
        self.values += 1;
    }

    /// The forecast `steps` ahead; never below 0.
    pub(crate) fn ahead(&self, steps: u32) -> f64 {
        // The geometric sum PHI + PHI² + … over the steps.
        let damped = PHI * (1.0 - PHI.powi(steps.min(1_000) as i32)) / (1.0 - PHI);
        (self.level + damped * self.trend).max(0.0)
    }
}

/// A larger relative error makes the forecast useless, whatever the naive forecast's error.
const LARGEST_ERROR: f64 = 0.2;

/// The forecast's accuracy compared with the naive forecast (no change), weighted towards the last minute.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Record {
    /// Pending forecasts: steps left, forecast, and the value at the time.
    waiting: VecDeque<(u32, f64, f64)>,
    error: f64,
    naive_error: f64,
    weight: f64,
}

impl Record {
    /// Scores the forecasts that are now due against `value`, and records a new one for `steps` ahead.
    /// `memory` is the number of steps that count.
    pub(crate) fn note(&mut self, value: f64, forecast: f64, steps: u32, memory: u32) {
        for waiting in &mut self.waiting {
            waiting.0 = waiting.0.saturating_sub(1);
        }
        while let Some((0, expected, naive)) = self.waiting.front().copied() {
            self.waiting.pop_front();
            // The symmetric relative error: 0 to 2.
            let relative = |guess: f64| {
                let scale = guess.abs() + value.abs();
                if scale > 0.0 {
                    2.0 * (guess - value).abs() / scale
                } else {
                    0.0
                }
            };
            let keep = 1.0 - 1.0 / f64::from(memory.max(1));
            self.error = keep * self.error + (1.0 - keep) * relative(expected);
            self.naive_error = keep * self.naive_error + (1.0 - keep) * relative(naive);
            self.weight = keep * self.weight + (1.0 - keep);
        }
        self.waiting.push_back((steps.max(1), forecast, value));
    }

    /// Whether it has beaten the naive forecast and is accurate enough.
    pub(crate) fn is_trusted(&self) -> bool {
        // Requires a tenth of the memory first.
        self.weight >= 0.1 && self.error < self.naive_error && self.error <= LARGEST_ERROR * self.weight
    }

    /// The lower bound of a forecast, given its past errors.
    pub(crate) fn sure_of(&self, forecast: f64) -> f64 {
        forecast * (1.0 - self.errors().0).max(0.0)
    }

    /// The mean relative errors: its own, and the naive forecast's.
    pub(crate) fn errors(&self) -> (f64, f64) {
        if self.weight > 0.0 {
            (self.error / self.weight, self.naive_error / self.weight)
        } else {
            (0.0, 0.0)
        }
    }

    /// Reserves space for `steps` pending forecasts.
    pub(crate) fn reserve(&mut self, steps: u32) {
        let missing = (steps as usize + 2).saturating_sub(self.waiting.capacity());
        self.waiting.reserve(missing);
    }
}
