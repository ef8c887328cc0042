//! Applies windows, rates and limits to a proposal.

use super::case::{Behavior, Case, RateType, Rules, Select};

/// The count, and HPA's name of the limit that applied.
pub(super) fn apply(case: &Case, proposal: i32) -> (i32, &'static str) {
    let (min, max) = (case.spec.min, case.spec.max);
    let Some(behavior) = &case.spec.behavior else {
        return match proposal {
            proposal if proposal > max => (max, "TooManyReplicas"),
            proposal if proposal < min => (min, "TooFewReplicas"),
            proposal => (proposal, "DesiredWithinRange"),
        };
    };
    let (stabilized, limited) = if behavior.legacy {
        let stabilized = stabilize_legacy(case, behavior, proposal);
        (stabilized, limit_legacy(case.replicas, stabilized, min, max))
    } else {
        let stabilized = stabilize(case, behavior, proposal);
        (stabilized, limit(case, behavior, stabilized))
    };
    match limited {
        (replicas, "DesiredWithinRange") if stabilized != proposal => {
            let went_up = proposal >= case.replicas && !behavior.legacy;
            (
                replicas,
                if went_up {
                    "ScaleUpStabilized"
                } else {
                    "ScaleDownStabilized"
                },
            )
        }
        limited => limited,
    }
}

/// The current count, moved into the range that both windows' proposals allow.
pub(super) fn stabilize(case: &Case, behavior: &Behavior, proposal: i32) -> i32 {
    let within = |rules: &Rules| {
        let window_s = f64::from(rules.window_s);
        let recent = case.history.recommendations.iter();
        recent.filter(move |r| r.age_s < window_s).map(|r| r.value)
    };
    let up = within(&behavior.up)
        .min()
        .map_or(proposal, |low| low.min(proposal));
    let down = within(&behavior.down)
        .max()
        .map_or(proposal, |high| high.max(proposal));
    case.replicas.max(up).min(down)
}

/// The highest proposal of the window.
pub(super) fn stabilize_legacy(case: &Case, behavior: &Behavior, proposal: i32) -> i32 {
    let window_s = f64::from(behavior.down.window_s);
    let recent = case.history.recommendations.iter();
    recent
        .filter(|r| r.age_s <= window_s)
        .map(|r| r.value)
        .fold(proposal, i32::max)
}

/// Applies rate policies and limits.
pub(super) fn limit(case: &Case, behavior: &Behavior, desired: i32) -> (i32, &'static str) {
    let current = case.replicas;
    if desired > current {
        let rate = scale_up_limit(case, &behavior.up).max(current);
        let (most, reason) = if case.spec.max > rate {
            (rate, "ScaleUpLimit")
        } else {
            (case.spec.max, "TooManyReplicas")
        };
        if desired > most {
            return (most, reason);
        }
    } else if desired < current {
        let rate = scale_down_limit(case, &behavior.down).min(current);
        let (least, reason) = if case.spec.min < rate {
            (rate, "ScaleDownLimit")
        } else {
            (case.spec.min, "TooFewReplicas")
        };
        if desired < least {
            return (least, reason);
        }
    }
    (desired, "DesiredWithinRange")
}

pub(super) fn scale_up_limit(case: &Case, rules: &Rules) -> i32 {
    let allowed = rules.policies.iter().map(|policy| {
        let start = at_period_start(case, policy.period_s);
        match policy.kind {
            RateType::Pods => start.saturating_add(policy.value),
            // Rounded up, or a small count could never grow.
            RateType::Percent => (f64::from(start) * (1.0 + f64::from(policy.value) / 100.0)).ceil() as i32,
        }
    });
    match rules.select {
        Select::Disabled => case.replicas,
        Select::Min => allowed.min().unwrap_or(i32::MAX),
        Select::Max => allowed.max().unwrap_or(i32::MIN),
    }
}

pub(super) fn scale_down_limit(case: &Case, rules: &Rules) -> i32 {
    let allowed = rules.policies.iter().map(|policy| {
        let start = at_period_start(case, policy.period_s);
        match policy.kind {
            RateType::Pods => start.saturating_sub(policy.value),
            RateType::Percent => (f64::from(start) * (1.0 - f64::from(policy.value) / 100.0)) as i32,
        }
    });
    match rules.select {
        Select::Disabled => case.replicas,
        // The smallest change keeps the most replicas.
        Select::Min => allowed.max().unwrap_or(i32::MIN),
        Select::Max => allowed.min().unwrap_or(i32::MAX),
    }
}

/// The count at the start of the period.
fn at_period_start(case: &Case, period_s: u32) -> i32 {
    let period_s = f64::from(period_s);
    let changes = case.history.changes.iter();
    let changed = changes
        .filter(|c| c.age_s < period_s)
        .map(|c| i64::from(c.change));
    let start = i64::from(case.replicas) - changed.sum::<i64>();
    i32::try_from(start).unwrap_or(if start < 0 { i32::MIN } else { i32::MAX })
}

/// The limits without rules.
pub(super) fn limit_legacy(current: i32, desired: i32, min: i32, max: i32) -> (i32, &'static str) {
    let rate = current.saturating_mul(2).max(4);
    let (most, reason) = if max > rate {
        (rate, "ScaleUpLimit")
    } else {
        (max, "TooManyReplicas")
    };
    if desired < min {
        (min, "TooFewReplicas")
    } else if desired > most {
        (most, reason)
    } else {
        (desired, "DesiredWithinRange")
    }
}
