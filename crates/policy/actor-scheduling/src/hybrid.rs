//! iPipe's scheduler (section 3.2): actors with low dispersion are served first come, first served, the others by
//! deficit round-robin, on cores of their own.
//!
//! Text and pseudo-code of the paper differ in which actor changes its group. This is the text: the one with the highest
//! dispersion goes, the one with the lowest returns. Three things are added:
//!
//! - An actor goes only if its messages' run times stand out, and returns only if they would not. Where all are alike
//!   the line is long because of its load, and to divide the cores makes it longer.
//! - Cores follow the load of the groups' actors, which goes with an actor at once. The time that a group's cores are
//!   busy says nothing of what waits.
//! - A core of the round helps with the line ([`Scheduler::serves`](crate::Scheduler::serves)), so that the round also
//!   gets a core that the line alone could not spare.
//!
//! Here is what the policy sees. What it decides on that is [`groups`](crate::groups).

use model::Nanos;

use crate::groups::{Case, Seen};
use crate::statistics::Moments;
use crate::{ActorId, Group, Policy, Served, View};

/// Between two looks at the groups.
const WINDOW: Nanos = Nanos::from_millis(10);
/// Weight of a window in an actor's load; the first ones weigh more.
const LOAD_WEIGHT: f64 = 0.1;

/// Messages that count in the line's tail, about: a burst of some is no reason to move an actor, since it would not soon
/// return.
const LINE_SAMPLES: u32 = 1_000;

#[derive(Debug)]
pub(crate) struct Hybrid {
    /// Response times of the line.
    line: Moments,
    /// By actor: run time since the last look, in nanoseconds.
    worked: Vec<u64>,
    /// By actor: how many cores its messages need.
    loads: Vec<f64>,
    windows: u64,
    looked: Nanos,
}

impl Default for Hybrid {
    fn default() -> Self {
        Hybrid {
            line: Moments::of_last(LINE_SAMPLES),
            worked: Vec::new(),
            loads: Vec::new(),
            windows: 0,
            looked: Nanos::ZERO,
        }
    }
}

impl Policy for Hybrid {
    fn initial(&self) -> Group {
        Group::Fcfs
    }

    fn step(&mut self, view: &View<'_>, served: &Served, now: Nanos) -> Option<Case> {
        self.worked.resize(view.actors.len(), 0);
        self.worked[served.actor.index()] += served.ran.0;
        if let (Group::Fcfs, Some(ended)) = (served.from, &served.ended) {
            self.line.add(ended.response.0 as f64);
        }
        let window = now.since(self.looked);
        if window < WINDOW {
            return None;
        }
        self.looked = now;
        self.windows += 1;
        let weight = LOAD_WEIGHT.max(1.0 / self.windows as f64);
        self.loads.resize(view.actors.len(), 0.0);
        for (load, worked) in self.loads.iter_mut().zip(&mut self.worked) {
            *load += weight * (std::mem::take(worked) as f64 / window.0 as f64 - *load);
        }
        Some(self.case(view))
    }
}

impl Hybrid {
    /// What there is to decide on.
    fn case(&self, view: &View<'_>) -> Case {
        let threshold = view.settings.tail_threshold.0;
        let of = (0..)
            .map(ActorId)
            .zip(view.actors.iter().zip(view.actor_groups))
            .zip(&self.loads);
        let seen = of.map(|((actor, (statistics, group)), load)| Seen {
            actor,
            name: None,
            group: *group,
            samples: statistics.response().samples(),
            response_tail_ns: statistics.response().tail() as u64,
            service_tail_ns: statistics.service().tail() as u64,
            load_ppm: (load * 1e6) as u64,
        });
        Case {
            tail_threshold_ns: threshold,
            returns_below_ns: ((1.0 - view.settings.hysteresis) * threshold as f64) as u64,
            line_tail_ns: self.line.tail() as u64,
            cores: view.core_groups.len() as u16,
            round_cores: view.cores(Group::Drr) as u16,
            actors: seen
                .filter(|of| of.group == Group::Drr || of.samples > 0 || of.load_ppm > 0)
                .collect(),
        }
    }
}
