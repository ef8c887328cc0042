//! A target: a goal, or a coarser step towards it, and what it says of a rate's trials.

use super::{Counted, Goal};

/// A trial of some rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Taken {
    pub(super) duration_s: f64,
    pub(super) counted: Counted,
}

/// What a rate is for a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    Lower,
    Upper,
    Undecided,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Target {
    loss_ratio: f64,
    exceed_ratio: f64,
    pub(super) relative_width: f64,
    pub(super) trial_s: f64,
    sum_s: f64,
}

impl Target {
    /// The target `number` of a goal, from 0; `goal.preceding_targets` is the last one. Durations grow and widths
    /// shrink geometrically.
    pub(super) fn of(goal: &Goal, number: u32) -> Target {
        let left = goal.preceding_targets.saturating_sub(number);
        let progress = match goal.preceding_targets {
            0 => 1.0,
            all => f64::from(number.min(all)) / f64::from(all),
        };
        let initial_s = goal.initial_trial.as_secs_f64();
        let between = |last_s: f64| match left {
            0 => last_s,
            _ => initial_s * (last_s / initial_s).powf(progress),
        };
        Target {
            loss_ratio: goal.loss_ratio,
            exceed_ratio: goal.exceed_ratio,
            // Half of the range is a step that halves it: more says nothing.
            relative_width: (goal.relative_width * 2_f64.powf(f64::from(left)))
                .min(0.5)
                .max(goal.relative_width),
            trial_s: between(goal.final_trial.as_secs_f64()),
            sum_s: between(goal.duration_sum.as_secs_f64()),
        }
    }

    /// Whether a trial is long enough to count fully. The caller's durations are rounded to nanoseconds.
    pub(super) fn is_full(&self, taken: &Taken) -> bool {
        taken.duration_s >= self.trial_s * 0.999
    }

    fn is_low(&self, taken: &Taken) -> bool {
        taken.counted.loss_ratio() <= self.loss_ratio
    }

    /// What all trials of a rate say. Short trials with loss count as far as short trials without do not balance them;
    /// then it matters whether the trials that are still missing could change the answer.
    pub(super) fn classify(&self, trials: &[Taken]) -> Class {
        let sum = |is_full: bool, is_low: bool| -> f64 {
            let those = trials
                .iter()
                .filter(|of| self.is_full(of) == is_full && self.is_low(of) == is_low);
            those.map(|of| of.duration_s).sum()
        };
        let balanced_s = sum(false, true) * self.exceed_ratio / (1.0 - self.exceed_ratio);
        let high_s = sum(true, false) + (sum(false, false) - balanced_s).max(0.0);
        let low_s = sum(true, true);
        let whole_s = (low_s + high_s).max(self.sum_s * 0.999);
        let allowed_s = whole_s * self.exceed_ratio;
        match (whole_s - low_s <= allowed_s, high_s <= allowed_s) {
            (true, true) => Class::Lower,
            (false, false) => Class::Upper,
            _ => Class::Undecided,
        }
    }

    /// The loss of the trial that decides: as much of the time as the goal asks for had at most that loss.
    pub(super) fn deciding_loss(&self, trials: &[Taken]) -> f64 {
        let mut full: Vec<(f64, f64)> = trials
            .iter()
            .filter(|of| self.is_full(of))
            .map(|of| (of.counted.loss_ratio(), of.duration_s))
            .collect();
        full.sort_by(|a, b| a.0.total_cmp(&b.0));
        let whole_s: f64 = full.iter().map(|(_, s)| s).sum::<f64>().max(self.sum_s * 0.999);
        let mut missing_s = whole_s * (1.0 - self.exceed_ratio);
        let mut loss = 0.0;
        for (of_trial, duration_s) in full {
            if missing_s <= 0.0 {
                break;
            }
            loss = of_trial;
            missing_s -= duration_s;
        }
        loss
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn taken(duration_s: f64, lost: u64) -> Taken {
        Taken {
            duration_s,
            counted: Counted {
                offered: 1000,
                forwarded: 1000 - lost,
            },
        }
    }

    fn goal() -> Goal {
        Goal {
            duration_sum: Duration::from_secs(3),
            exceed_ratio: 0.5,
            preceding_targets: 2,
            relative_width: 0.01,
            initial_trial: Duration::from_millis(250),
            ..Goal::ndr(Duration::from_secs(1))
        }
    }

    #[test]
    fn a_majority_of_the_time_decides() {
        let target = Target::of(&goal(), 2);
        let class = |trials: &[(f64, u64)]| {
            let trials: Vec<Taken> = trials.iter().map(|(s, lost)| taken(*s, *lost)).collect();
            target.classify(&trials)
        };
        assert_eq!(class(&[]), Class::Undecided);
        assert_eq!(class(&[(1.0, 0)]), Class::Undecided);
        assert_eq!(class(&[(1.0, 0), (1.0, 5), (1.0, 0)]), Class::Lower);
        assert_eq!(class(&[(1.0, 5), (1.0, 5)]), Class::Upper);
        assert_eq!(class(&[(1.0, 0), (1.0, 0)]), Class::Lower);
        // Short trials without loss decide nothing; they balance as many with loss.
        assert_eq!(class(&[(0.5, 0), (0.5, 0), (0.5, 0)]), Class::Undecided);
        assert_eq!(class(&[(0.5, 0), (0.4, 9), (0.4, 9), (1.0, 9)]), Class::Undecided);
        assert_eq!(class(&[(0.5, 9), (0.5, 9), (1.0, 9)]), Class::Upper);
    }

    #[test]
    fn targets_become_longer_and_narrower() {
        let targets = [0, 1, 2].map(|number| Target::of(&goal(), number));
        let durations = targets.map(|of| of.trial_s);
        assert!((durations[0] - 0.25).abs() < 1e-9 && (durations[1] - 0.5).abs() < 1e-9);
        assert!((durations[2] - 1.0).abs() < 1e-9);
        assert!((targets.map(|of| of.relative_width)[0] - 0.04).abs() < 1e-9);
        assert!((targets[0].sum_s - 0.25).abs() < 1e-9 && (targets[2].sum_s - 3.0).abs() < 1e-9);
    }

    #[test]
    fn the_deciding_loss_is_that_of_the_quantile() {
        let target = Target::of(&goal(), 2);
        let trials = [taken(1.0, 30), taken(1.0, 0), taken(1.0, 10), taken(0.5, 900)];
        assert!((target.deciding_loss(&trials) - 0.01).abs() < 1e-9);
        assert!(target.deciding_loss(&trials[1..2]).abs() < 1e-9);
    }
}
