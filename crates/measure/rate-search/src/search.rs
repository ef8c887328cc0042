//! Which rate is measured next.

use std::collections::BTreeMap;
use std::time::Duration;

use super::target::{Class, Taken, Target};
use super::{Config, Counted, Error, Goal, Trial};

/// What is next.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Measure this, and tell [`Search::record`].
    Measure(Trial),
    /// All goals have their bounds, or the time is over: a result for each goal, in their order.
    Done(Vec<Found>),
}

/// The result of a goal.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Found {
    /// The goal.
    pub goal: Goal,
    /// The highest rate below `upper_pps` that reaches the goal; none if even the lowest rate loses too much.
    pub lower_pps: Option<u64>,
    /// The lowest rate that does not; none if even the highest rate reaches the goal.
    pub upper_pps: Option<u64>,
    /// The packets that came through at `lower_pps`, per second: the draft's conditional throughput.
    pub throughput_pps: Option<f64>,
    /// Whether the bounds are as close as the goal asks for, or a rate at the end of the range is the answer. Otherwise
    /// the time was over before.
    pub complete: bool,
}

/// A search.
#[derive(Clone, Debug)]
pub struct Search {
    config: Config,
    /// Trials by rate.
    trials: BTreeMap<u64, Vec<Taken>>,
    /// The target that is searched for, and its goal.
    target: u32,
    goal: usize,
    /// Steps away from the only bound that the current target has.
    expansions: u32,
    spent: Duration,
    asked: Option<Trial>,
}

/// The bounds of a target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Bounds {
    lower: Option<u64>,
    upper: Option<u64>,
}

impl Search {
    /// A search without a trial.
    ///
    /// # Errors
    /// Something in the configuration is out of its range.
    pub fn new(config: Config) -> Result<Search, Error> {
        config.check()?;
        Ok(Search {
            config,
            trials: BTreeMap::new(),
            target: 0,
            goal: 0,
            expansions: 0,
            spent: Duration::ZERO,
            asked: None,
        })
    }

    /// Trials so far.
    #[must_use]
    pub fn trials(&self) -> usize {
        self.trials.values().map(Vec::len).sum()
    }

    /// What is next. Repeats a trial until its result is recorded.
    pub fn step(&mut self) -> Step {
        if let Some(asked) = self.asked {
            return Step::Measure(asked);
        }
        while let Some(goal) = self.config.goals.get(self.goal).copied() {
            if self.spent >= self.config.duration_limit {
                break;
            }
            // A goal with fewer targets than others is at its last one early.
            let target = Target::of(&goal, self.target);
            if let Some(pps) = self.choose(&target, &goal) {
                let trial = Trial {
                    pps,
                    duration: Duration::from_secs_f64(target.trial_s),
                };
                self.asked = Some(trial);
                return Step::Measure(trial);
            }
            self.advance();
        }
        Step::Done(self.found())
    }

    /// Takes the result of the trial that [`Search::step`] named.
    ///
    /// # Errors
    /// It named none.
    pub fn record(&mut self, counted: Counted) -> Result<(), Error> {
        let trial = self.asked.take().ok_or(Error::NoTrial)?;
        self.spent = self.spent.saturating_add(trial.duration);
        self.trials.entry(trial.pps).or_default().push(Taken {
            duration_s: trial.duration.as_secs_f64(),
            counted,
        });
        Ok(())
    }

    /// Goes on with the next goal, or with the next target of all goals.
    fn advance(&mut self) {
        self.expansions = 0;
        let last = self.config.goals.iter().map(|goal| goal.preceding_targets).max();
        if self.goal + 1 < self.config.goals.len() {
            self.goal += 1;
        } else if self.target < last.unwrap_or(0) {
            (self.goal, self.target) = (0, self.target + 1);
        } else {
            self.goal = self.config.goals.len();
        }
    }

    fn class(&self, target: &Target, pps: u64) -> Class {
        let trials = self.trials.get(&pps).map_or(&[][..], Vec::as_slice);
        target.classify(trials)
    }

    /// The lowest upper bound, and the highest lower bound below it.
    fn bounds(&self, target: &Target) -> Bounds {
        let mut bounds = Bounds::default();
        for pps in self.trials.keys() {
            match self.class(target, *pps) {
                Class::Lower => bounds.lower = Some(*pps),
                Class::Upper => {
                    bounds.upper = Some(*pps);
                    break;
                }
                Class::Undecided => {}
            }
        }
        bounds
    }

    /// The next rate of a target; none if its bounds are close enough.
    fn choose(&mut self, target: &Target, goal: &Goal) -> Option<u64> {
        let Config { min_pps, max_pps, .. } = self.config;
        let bounds = self.bounds(target);
        if is_reached(bounds, target, min_pps, max_pps) {
            return None;
        }
        if let Some(pps) = self.begun(target, bounds) {
            return Some(pps);
        }
        // What the target before found.
        let before = match self.target.checked_sub(1) {
            Some(number) => self.bounds(&Target::of(goal, number)),
            None => Bounds::default(),
        };
        let pps = match (bounds.lower, bounds.upper) {
            (Some(lower), Some(upper)) => middle(lower, upper),
            (None, None) => match (self.target, before.lower) {
                (0, _) => max_pps,
                (_, lower) => lower.unwrap_or(min_pps),
            },
            (Some(lower), None) => match before.upper.filter(|upper| *upper > lower) {
                Some(upper) => upper,
                None => (lower as f64 / self.expand(target)).ceil() as u64,
            }
            .max(lower + 1),
            (None, Some(upper)) => match before.lower.filter(|lower| *lower < upper) {
                Some(lower) => lower,
                None => self.below(target, goal, upper),
            }
            .min(upper - 1),
        };
        Some(pps.clamp(min_pps, max_pps))
    }

    /// A rate between the bounds whose trials of the target's length have not decided yet.
    fn begun(&self, target: &Target, bounds: Bounds) -> Option<u64> {
        let after = bounds.lower.map_or(0, |lower| lower + 1);
        let between = self.trials.range(after..bounds.upper.unwrap_or(u64::MAX));
        let is_begun = |trials: &[Taken]| {
            target.classify(trials) == Class::Undecided && trials.iter().any(|of| target.is_full(of))
        };
        between
            .filter(|(_, trials)| is_begun(trials))
            .map(|(pps, _)| *pps)
            .next()
    }

    /// By which factor below 1 the next step away from the only bound goes: twice as far as the last one.
    fn expand(&mut self, target: &Target) -> f64 {
        let doublings = 2_f64.powi(self.expansions.min(30).cast_signed());
        self.expansions = self.expansions.saturating_add(1);
        (1.0 - target.relative_width).powf(doublings)
    }

    /// A rate below the only bound: first what came through there, then in steps that grow.
    fn below(&mut self, target: &Target, goal: &Goal, upper: u64) -> u64 {
        if self.target == 0 && self.expansions == 0 {
            let trials = self.trials.get(&upper).map_or(&[][..], Vec::as_slice);
            let losses = trials.iter().map(|of| of.counted.loss_ratio());
            let least = losses.fold(1.0, f64::min);
            let through = upper as f64 * (1.0 - least) / (1.0 - goal.loss_ratio);
            if through < upper as f64 * (1.0 - target.relative_width) {
                // The steps begin behind it.
                return through as u64;
            }
        }
        (upper as f64 * self.expand(target)).floor() as u64
    }

    fn found(&self) -> Vec<Found> {
        let found = self.config.goals.iter().map(|goal| {
            let target = Target::of(goal, goal.preceding_targets);
            let bounds = self.bounds(&target);
            let throughput = bounds.lower.map(|pps| {
                let trials = self.trials.get(&pps).map_or(&[][..], Vec::as_slice);
                pps as f64 * (1.0 - target.deciding_loss(trials))
            });
            Found {
                goal: *goal,
                lower_pps: bounds.lower,
                upper_pps: bounds.upper,
                throughput_pps: throughput,
                complete: is_reached(bounds, &target, self.config.min_pps, self.config.max_pps),
            }
        });
        found.collect()
    }
}

/// Whether a target's bounds are close enough, or its answer is an end of the range.
fn is_reached(bounds: Bounds, target: &Target, min_pps: u64, max_pps: u64) -> bool {
    match (bounds.lower, bounds.upper) {
        (Some(lower), Some(upper)) => {
            let width = (upper - lower) as f64 / upper as f64;
            upper - lower <= 1 || width <= target.relative_width
        }
        (Some(lower), None) => lower >= max_pps,
        (None, Some(upper)) => upper <= min_pps,
        (None, None) => false,
    }
}

/// The rate that is as many times above the lower bound as the upper one is above it.
fn middle(lower: u64, upper: u64) -> u64 {
    let middle = (lower as f64 * upper as f64).sqrt().round() as u64;
    middle.clamp(lower + 1, upper - 1)
}
