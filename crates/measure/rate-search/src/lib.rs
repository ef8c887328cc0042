//! The search for the highest rates that a system forwards with given losses: MLRsearch (multiple loss ratio search)
//! of the FD.io project, as the draft `draft-ietf-bmwg-mlrsearch` describes it. It is a state machine: it names the
//! next trial, and the caller records its result. It reads no clock and sends no packet.
//!
//! Key types: [`Config`] with its [`Goal`]s, [`Search`], [`Step`] (the next trial, or the end), [`Found`] (the result
//! of a goal).
//!
//! 1. [`Search::new`] checks the configuration.
//! 2. [`Search::step`] names a [`Trial`]: a rate and a duration. The caller measures it, and passes the numbers of
//!    packets to [`Search::record`].
//! 3. At the end, [`Search::step`] returns the result of each goal.
//!
//! A goal is searched in several targets, one after the other. The first target has short trials and a coarse width,
//! the last one the goal's own durations and width. Trials of one goal count for all goals. For a target, a rate is a
//! lower bound, an upper bound or undecided (section 6 of the draft, here `Target::classify`).
#![forbid(unsafe_code)]

mod search;
mod target;

use std::time::Duration;

use thiserror::Error;

pub use search::{Found, Search, Step};

/// Preceding targets of a goal, at most.
pub const TARGETS_LIMIT: u32 = 16;

/// What is searched for: the highest rate with at most this loss.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Goal {
    /// Share of a trial's packets that may be lost: 0 for the no drop rate (NDR), 0.005 for the partial drop rate (PDR).
    pub loss_ratio: f64,
    /// Share of the time of a rate's trials that may have more loss, from 0 to below 1. 0.5: the median trial decides.
    pub exceed_ratio: f64,
    /// Distance of the bounds in the end, as a share of the upper one.
    pub relative_width: f64,
    /// Duration of the shortest trials.
    pub initial_trial: Duration,
    /// Duration of the trials that count fully.
    pub final_trial: Duration,
    /// Sum of durations of a rate's trials that decides about it.
    pub duration_sum: Duration,
    /// Coarser targets before the last one.
    pub preceding_targets: u32,
}

impl Goal {
    /// No loss, with trials of `trial`, and bounds that are 5 % apart.
    #[must_use]
    pub fn ndr(trial: Duration) -> Goal {
        Goal {
            loss_ratio: 0.0,
            exceed_ratio: 0.5,
            relative_width: 0.05,
            initial_trial: trial,
            final_trial: trial,
            duration_sum: trial,
            preceding_targets: 1,
        }
    }

    /// The same with a loss of at most 0.5 %.
    #[must_use]
    pub fn pdr(trial: Duration) -> Goal {
        Goal {
            loss_ratio: 0.005,
            ..Goal::ndr(trial)
        }
    }

    fn check(&self) -> Result<(), Error> {
        let is_share = |value: f64| (0.0..1.0).contains(&value);
        let wrong = if !is_share(self.loss_ratio) {
            "loss_ratio must be at least 0 and below 1"
        } else if !is_share(self.exceed_ratio) {
            "exceed_ratio must be at least 0 and below 1"
        } else if !is_share(self.relative_width) || self.relative_width == 0.0 {
            "relative_width must be above 0 and below 1"
        } else if self.initial_trial.is_zero() || self.final_trial < self.initial_trial {
            "initial_trial must be above 0 and at most final_trial"
        } else if self.duration_sum < self.final_trial {
            "duration_sum must be at least final_trial"
        } else if self.preceding_targets > TARGETS_LIMIT {
            "preceding_targets must be at most 16"
        } else {
            return Ok(());
        };
        Err(Error::Goal(wrong))
    }
}

/// A search.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// What is searched for, in this order; a stricter goal first saves trials.
    pub goals: Vec<Goal>,
    /// The lowest rate of a trial, in packets per second.
    pub min_pps: u64,
    /// The highest one.
    pub max_pps: u64,
    /// Sum of the durations of all trials, at most.
    pub duration_limit: Duration,
}

impl Config {
    fn check(&self) -> Result<(), Error> {
        if self.goals.is_empty() {
            return Err(Error::NoGoal);
        }
        self.goals.iter().try_for_each(Goal::check)?;
        if self.min_pps == 0 || self.min_pps >= self.max_pps {
            return Err(Error::Rates {
                min: self.min_pps,
                max: self.max_pps,
            });
        }
        Ok(())
    }
}

/// What is to be measured: packets at this rate for this time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trial {
    /// Packets per second.
    pub pps: u64,
    /// Of sending.
    pub duration: Duration,
}

/// What a trial showed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counted {
    /// Packets that were due, those included that could not be sent.
    pub offered: u64,
    /// Those that came through.
    pub forwarded: u64,
}

impl Counted {
    /// Share of the packets that were lost, from 0 to 1. Without a packet, all are.
    #[must_use]
    pub fn loss_ratio(&self) -> f64 {
        match self.offered {
            0 => 1.0,
            offered => (1.0 - self.forwarded as f64 / offered as f64).clamp(0.0, 1.0),
        }
    }
}

/// Why there is no search.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Error {
    /// There is nothing to search for.
    #[error("a search needs a goal")]
    NoGoal,
    /// A goal is wrong.
    #[error("{0}")]
    Goal(&'static str),
    /// The rates are wrong.
    #[error("the lowest rate ({min} pps) must be above 0 and below the highest one ({max} pps)")]
    Rates {
        /// The lowest one.
        min: u64,
        /// The highest one.
        max: u64,
    },
    /// A result came that no trial was named for.
    #[error("no trial is under way")]
    NoTrial,
}
