//! A damped Holt forecast of a series of equal steps, and a record of whether it has been of use.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

/// Weight of a new value in the level.
const ALPHA: f64 = 0.3;
/// Weight of a new slope in the trend.
const BETA: f64 = 0.1;
/// What is left of the trend after each step.
const PHI: f64 = 0.9;

/// The forecast and its record.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Holt {
    level: f64,
    trend: f64,
    values: u64,
}

impl Holt {
    /// Takes in the next value.
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

    /// What it expects `steps` steps on; never below 0.
    pub(crate) fn ahead(&self, steps: u32) -> f64 {
        // The sum of PHI, PHI², … of so many steps.
        let damped = PHI * (1.0 - PHI.powi(steps.min(1_000) as i32)) / (1.0 - PHI);
        (self.level + damped * self.trend).max(0.0)
    }
}

/// Errors beyond this share of the value are no use whatever the naive forecast does.
const LARGEST_ERROR: f64 = 0.2;

/// How good forecasts have been, against the naive one (that nothing changes), weighted towards the last minute.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Record {
    /// Forecasts that wait for their time: steps left, forecast, and the value when it was made.
    waiting: VecDeque<(u32, f64, f64)>,
    error: f64,
    naive_error: f64,
    weight: f64,
}

impl Record {
    /// Compares the forecasts whose time has come with `value`, and notes a new one for `steps` steps on. `memory` is
    /// how many steps count.
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

    /// Whether it has been better than the naive forecast, and good enough.
    pub(crate) fn is_trusted(&self) -> bool {
        // A tenth of the memory has to be behind it.
        self.weight >= 0.1 && self.error < self.naive_error && self.error <= LARGEST_ERROR * self.weight
    }

    /// What is left of a forecast when it is as wrong as forecasts have been.
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

    /// Room for so many waiting forecasts.
    pub(crate) fn reserve(&mut self, steps: u32) {
        let missing = (steps as usize + 2).saturating_sub(self.waiting.capacity());
        self.waiting.reserve(missing);
    }
}
