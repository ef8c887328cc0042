//! iPipe's scheduler (section 3.2): actors with low dispersion are served first come, first served, the others by
//! deficit round-robin, on cores of their own.
//!
//! Text and pseudo-code of the paper differ in which actor changes its group. This is the text: the one with the highest
//! dispersion goes, the one with the lowest returns. Three things are added:
//!
//! - An actor goes only if its messages' run times stand out ([`STANDS_OUT`]), and returns only if they would not. Where
//!   all are alike the line is long because of its load, and to divide the cores makes it longer.
//! - Cores follow the load of the groups' actors, which goes with an actor at once. The time that a group's cores are
//!   busy says nothing of what waits.
//! - A core of the round helps with the line ([`Scheduler::serves`](crate::Scheduler::serves)), so that the round also
//!   gets a core that the line alone could not spare.

use model::Nanos;

use crate::statistics::Moments;
use crate::{ActorId, ActorStatistics, CoreId, Decision, Group, Policy, Served, View};

/// Between two looks at the groups.
const WINDOW: Nanos = Nanos::from_millis(10);
/// Messages of an actor before its dispersion counts.
const SAMPLES_ENOUGH: u64 = 50;
/// How many times as long as the line's mean the tail of an actor's run times must be.
const STANDS_OUT: f64 = 1.5;
/// Weight of a window in an actor's load; the first ones weigh more.
const LOAD_WEIGHT: f64 = 0.1;
/// The share of its cores' time from which on a group is nearly used up (section 3.2.4).
const FULL: f64 = 0.95;

/// Messages that count in the line's tail, about: a burst of some is no reason to move an actor, since it would not soon
/// return.
const LINE_SAMPLES: u32 = 1_000;

/// What the line's cores may have to do, as a share of their time, after one has gone: the round helps.
const HELPED: f64 = 1.1;

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

    fn step(&mut self, view: &View<'_>, served: &Served, now: Nanos, decisions: &mut Vec<Decision>) {
        self.worked.resize(view.actors.len(), 0);
        self.worked[served.actor.index()] += served.ran.0;
        if let (Group::Fcfs, Some(ended)) = (served.from, &served.ended) {
            self.line.add(ended.response.0 as f64);
        }
        let window = now.since(self.looked);
        if window < WINDOW {
            return;
        }
        self.looked = now;
        self.windows += 1;
        let weight = LOAD_WEIGHT.max(1.0 / self.windows as f64);
        self.loads.resize(view.actors.len(), 0.0);
        for (load, worked) in self.loads.iter_mut().zip(&mut self.worked) {
            *load += weight * (std::mem::take(worked) as f64 / window.0 as f64 - *load);
        }
        let change = change_of_actor(view, self.line.tail());
        decisions.extend(change.map(|(actor, group)| Decision::Actor(actor, group)));
        let group_of = |actor: usize| match change {
            Some((changed, group)) if changed.index() == actor => group,
            _ => view.actor_groups[actor],
        };
        let mut round = Needs::default();
        let mut line = Needs::default();
        for (actor, load) in self.loads.iter().enumerate() {
            let of = if group_of(actor) == Group::Drr {
                &mut round
            } else {
                &mut line
            };
            of.actors += 1;
            of.cores += load;
        }
        change_cores(view, &line, &round, decisions);
    }
}

/// What the actors of a group need.
#[derive(Default)]
struct Needs {
    actors: usize,
    cores: f64,
}

/// The actor that changes its group, if one does.
fn change_of_actor(view: &View<'_>, tail: f64) -> Option<(ActorId, Group)> {
    // A single core cannot be divided.
    if view.core_groups.len() < 2 {
        return None;
    }
    let known = |group| {
        view.actors(group)
            .filter(|(_, actor)| actor.response().samples() >= SAMPLES_ENOUGH)
    };
    let run_time = |actor: &ActorStatistics| actor.service().tail();
    let count = known(Group::Fcfs).count();
    let mean = known(Group::Fcfs).map(|(_, actor)| run_time(actor)).sum::<f64>() / count.max(1) as f64;
    let stands_out = |actor: &ActorStatistics| run_time(actor) >= STANDS_OUT * mean;
    let dispersion = |actor: &ActorStatistics| actor.response().tail();
    let by_dispersion = |a: &(ActorId, &ActorStatistics), b: &(ActorId, &ActorStatistics)| {
        dispersion(a.1).total_cmp(&dispersion(b.1))
    };
    let threshold = view.settings.tail_threshold.0 as f64;
    if tail > threshold {
        let (worst, _) = known(Group::Fcfs)
            .filter(|(_, actor)| stands_out(actor))
            .max_by(by_dispersion)?;
        return Some((worst, Group::Drr));
    }
    // Its own tail must be low. That of the line is, because the actor has left it: it would return at once.
    let low = (1.0 - view.settings.hysteresis) * threshold;
    let (best, _) = known(Group::Drr)
        .filter(|(_, actor)| dispersion(actor) < low && !stands_out(actor))
        .min_by(by_dispersion)?;
    Some((best, Group::Fcfs))
}

/// Divides the cores: a group that is nearly used up gets those that the other can spare. The last cores serve the round.
fn change_cores(view: &View<'_>, line: &Needs, round: &Needs, decisions: &mut Vec<Decision>) {
    let all = view.core_groups.len();
    let now = view.cores(Group::Drr);
    let mut wanted = now;
    if round.actors == 0 {
        wanted = 0;
    } else {
        wanted = wanted.max(1);
        let share = |needs: &Needs, cores: usize| needs.cores / cores as f64;
        while wanted + 1 < all && share(round, wanted) >= FULL && share(line, all - wanted - 1) < HELPED {
            wanted += 1;
        }
        while wanted > 1 && share(line, all - wanted) >= FULL && share(round, wanted - 1) < FULL {
            wanted -= 1;
        }
    }
    let core = |from_end: usize| CoreId((all - from_end) as u16);
    decisions.extend((now + 1..=wanted).map(|place| Decision::Core(core(place), Group::Drr)));
    decisions.extend((wanted + 1..=now).map(|place| Decision::Core(core(place), Group::Fcfs)));
}
