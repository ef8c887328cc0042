//! What the hybrid policy decides about groups, and all that such a decision depends on. All figures are whole numbers,
//! which are written and read as they are: a case decides the same wherever and whenever it is decided again.

use model::Nanos;
use serde::{Deserialize, Serialize};

use crate::{ActorId, CoreId, Decision, Group};

/// Messages of an actor before its dispersion counts.
const SAMPLES_ENOUGH: u64 = 50;
/// How many times as long as the line's mean the tail of an actor's run times must be.
const STANDS_OUT: f64 = 1.5;
/// The share of its cores' time from which on a group is nearly used up (section 3.2.4).
const FULL: f64 = 0.95;
/// What the line's cores may have to do, as a share of their time, after one has gone: the round helps.
const HELPED: f64 = 1.1;

/// What was seen of an actor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seen {
    /// The actor.
    pub actor: ActorId,
    /// Its name, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Where its messages waited.
    pub group: Group,
    /// Messages that its figures are of.
    pub samples: u64,
    /// Mean and three deviations of its response times, in ns.
    pub response_tail_ns: u64,
    /// The same of its run times.
    pub service_tail_ns: u64,
    /// How many cores its messages need, in millionths.
    pub load_ppm: u64,
}

/// All that a decision depends on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Case {
    /// The tail of the line's response times above which it loses an actor, in ns.
    pub tail_threshold_ns: u64,
    /// The tail of an actor's response times below which it may return, in ns.
    pub returns_below_ns: u64,
    /// The tail of the line's response times, in ns.
    pub line_tail_ns: u64,
    /// All cores.
    pub cores: u16,
    /// Those that serve the round: the last ones.
    pub round_cores: u16,
    /// The actors; without those of the line that have had no message.
    pub actors: Vec<Seen>,
}

/// A decision that was taken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decided {
    /// When.
    pub at: Nanos,
    /// On what.
    pub case: Case,
    /// What follows, in order.
    pub decisions: Vec<Decision>,
}

/// What the actors of a group need.
#[derive(Clone, Copy, Debug, Default)]
struct Needs {
    actors: usize,
    cores: f64,
}

impl Needs {
    /// As a share of the time of so many cores.
    fn share(self, cores: usize) -> f64 {
        self.cores / cores as f64
    }
}

impl Case {
    /// Decides on it: an actor at most, and then cores.
    pub fn decide(&self) -> Vec<Decision> {
        let change = self.change_of_actor();
        let mut decisions: Vec<Decision> = change
            .map(|(actor, group)| Decision::Actor(actor, group))
            .into_iter()
            .collect();
        self.change_cores(change, &mut decisions);
        decisions
    }

    /// What an actor is called.
    pub fn name_of(&self, actor: ActorId) -> String {
        let seen = self.actors.iter().find(|of| of.actor == actor);
        let name = seen.and_then(|of| of.name.clone());
        name.unwrap_or_else(|| actor.to_string())
    }

    /// Why it decides so, with the figures.
    pub fn reason(&self, decision: Decision) -> String {
        let us = |ns: u64| ns as f64 / 1e3;
        match decision {
            Decision::Actor(actor, group) => {
                let seen = self.actors.iter().find(|of| of.actor == actor);
                let (response, service) = seen.map_or((0, 0), |of| (of.response_tail_ns, of.service_tail_ns));
                let mean = self.mean_of_line() / 1e3;
                match group {
                    Group::Drr => format!(
                        "response times of the line have a tail of {:.0} µs (threshold {:.0}); run times of this one stand \
                         out, with a tail of {:.0} µs (of the line on average {mean:.0}), and of those that do its response \
                         times have the longest tail, {:.0} µs",
                        us(self.line_tail_ns),
                        us(self.tail_threshold_ns),
                        us(service),
                        us(response),
                    ),
                    Group::Fcfs => format!(
                        "its response times have a tail of {:.0} µs (limit {:.0}), and its run times do not stand out, with \
                         a tail of {:.0} µs (of the line on average {mean:.0})",
                        us(response),
                        us(self.returns_below_ns),
                        us(service),
                    ),
                }
            }
            Decision::Core(core, group) => {
                let (line, round) = self.needs(self.change_of_actor());
                format!(
                    "core {} serves {}: the {} actors served in turns need {:.2} cores and had {}, the others {:.2} of {} in all",
                    core.0,
                    match group {
                        Group::Drr => "in turns",
                        Group::Fcfs => "first come, first served",
                    },
                    round.actors,
                    round.cores,
                    self.round_cores,
                    line.cores,
                    self.cores,
                )
            }
        }
    }

    /// Actors of a group of which enough is known.
    fn known(&self, group: Group) -> impl Iterator<Item = &Seen> {
        let actors = self.actors.iter();
        actors.filter(move |of| of.group == group && of.samples >= SAMPLES_ENOUGH)
    }

    /// The mean over the line's actors of the tails of their run times, in ns; 0 without any.
    fn mean_of_line(&self) -> f64 {
        let count = self.known(Group::Fcfs).count();
        let sum = self
            .known(Group::Fcfs)
            .map(|of| of.service_tail_ns as f64)
            .sum::<f64>();
        sum / count.max(1) as f64
    }

    /// The actor that changes its group, if one does.
    fn change_of_actor(&self) -> Option<(ActorId, Group)> {
        // A single core cannot be divided.
        if self.cores < 2 {
            return None;
        }
        let mean = self.mean_of_line();
        let stands_out = |of: &Seen| of.service_tail_ns as f64 >= STANDS_OUT * mean;
        if self.line_tail_ns > self.tail_threshold_ns {
            let worst = self
                .known(Group::Fcfs)
                .filter(|of| stands_out(of))
                .max_by_key(|of| of.response_tail_ns)?;
            return Some((worst.actor, Group::Drr));
        }
        // Its own tail must be low. That of the line is, because the actor has left it: it would return at once.
        let best = self
            .known(Group::Drr)
            .filter(|of| of.response_tail_ns < self.returns_below_ns && !stands_out(of))
            .min_by_key(|of| of.response_tail_ns)?;
        Some((best.actor, Group::Fcfs))
    }

    /// What line and round need, once an actor has changed its group.
    fn needs(&self, change: Option<(ActorId, Group)>) -> (Needs, Needs) {
        let (mut line, mut round) = (Needs::default(), Needs::default());
        for seen in &self.actors {
            let group = match change {
                Some((actor, group)) if actor == seen.actor => group,
                _ => seen.group,
            };
            let of = match group {
                Group::Fcfs => &mut line,
                Group::Drr => &mut round,
            };
            of.actors += 1;
            of.cores += seen.load_ppm as f64 / 1e6;
        }
        (line, round)
    }

    /// Divides the cores: a group that is nearly used up gets those that the other can spare. The last cores serve the
    /// round.
    fn change_cores(&self, change: Option<(ActorId, Group)>, decisions: &mut Vec<Decision>) {
        let (line, round) = self.needs(change);
        let all = usize::from(self.cores);
        let now = usize::from(self.round_cores).min(all);
        let mut wanted = now;
        if round.actors == 0 {
            wanted = 0;
        } else {
            wanted = wanted.max(1);
            while wanted + 1 < all && round.share(wanted) >= FULL && line.share(all - wanted - 1) < HELPED {
                wanted += 1;
            }
            while wanted > 1
                && line.share(all.saturating_sub(wanted)) >= FULL
                && round.share(wanted - 1) < FULL
            {
                wanted -= 1;
            }
        }
        let core = |from_end: usize| CoreId(all.saturating_sub(from_end) as u16);
        decisions.extend((now + 1..=wanted).map(|place| Decision::Core(core(place), Group::Drr)));
        decisions.extend((wanted + 1..=now).map(|place| Decision::Core(core(place), Group::Fcfs)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(actor: u32, group: Group, tails_us: (u64, u64), load: f64) -> Seen {
        Seen {
            actor: ActorId(actor),
            name: None,
            group,
            samples: SAMPLES_ENOUGH,
            response_tail_ns: tails_us.0 * 1_000,
            service_tail_ns: tails_us.1 * 1_000,
            load_ppm: (load * 1e6) as u64,
        }
    }

    fn case(line_tail_us: u64, round_cores: u16, actors: Vec<Seen>) -> Case {
        Case {
            tail_threshold_ns: 200_000,
            returns_below_ns: 180_000,
            line_tail_ns: line_tail_us * 1_000,
            cores: 4,
            round_cores,
            actors,
        }
    }

    /// What it decides, also after it was written and read, and why.
    fn decided(case: &Case) -> (Vec<Decision>, Vec<String>) {
        let read: Case = serde_json::from_str(&serde_json::to_string(case).unwrap()).unwrap();
        assert_eq!((&read, read.decide()), (case, case.decide()));
        let decisions = case.decide();
        let reasons = decisions.iter().map(|of| case.reason(*of)).collect();
        (decisions, reasons)
    }

    #[test]
    fn what_stands_out_goes_with_a_core_and_comes_back_with_it() {
        let others = || (1..4).map(|actor| seen(actor, Group::Fcfs, (150, 20), 0.2));
        let all = |first| std::iter::once(first).chain(others()).collect::<Vec<_>>();
        let goes = case(900, 0, all(seen(0, Group::Fcfs, (4_000, 2_000), 0.5)));
        let (decisions, reasons) = decided(&goes);
        assert_eq!(
            decisions,
            [
                Decision::Actor(ActorId(0), Group::Drr),
                Decision::Core(CoreId(3), Group::Drr)
            ]
        );
        assert_eq!(
            reasons,
            [
                "response times of the line have a tail of 900 µs (threshold 200); run times of this one stand out, with a \
                 tail of 2000 µs (of the line on average 515), and of those that do its response times have the longest \
                 tail, 4000 µs",
                "core 3 serves in turns: the 1 actors served in turns need 0.50 cores and had 0, the others 0.60 of 4 in all",
            ]
        );
        let stays = case(100, 1, all(seen(0, Group::Drr, (150, 31), 0.1)));
        assert_eq!(decided(&stays).0, []);
        let returns = case(100, 1, all(seen(0, Group::Drr, (150, 29), 0.1)));
        let (decisions, reasons) = decided(&returns);
        assert_eq!(
            decisions,
            [
                Decision::Actor(ActorId(0), Group::Fcfs),
                Decision::Core(CoreId(3), Group::Fcfs)
            ]
        );
        assert!(
            reasons[0].starts_with("its response times have a tail of 150 µs (limit 180)"),
            "{reasons:?}"
        );
    }

    #[test]
    fn cores_follow_the_load_and_one_of_the_line_stays() {
        let of = |load: f64, line: f64| {
            vec![
                seen(0, Group::Drr, (4_000, 2_000), load),
                seen(1, Group::Fcfs, (150, 20), line),
            ]
        };
        let to_round = |core| Decision::Core(CoreId(core), Group::Drr);
        let grows = decided(&case(100, 1, of(2.0, 0.5))).0;
        assert_eq!(grows, [to_round(2), to_round(1)]);
        let shrinks = decided(&case(100, 3, of(0.9, 2.9))).0;
        let to_line = |core| Decision::Core(CoreId(core), Group::Fcfs);
        assert_eq!(shrinks, [to_line(2), to_line(1)]);
        assert_eq!(decided(&case(100, 3, of(9.0, 0.1))).0, []);
        // Nonsense decides something, too.
        let nonsense = Case {
            cores: 0,
            round_cores: 9,
            ..case(100, 1, of(1.0, 1.0))
        };
        decided(&nonsense);
    }
}
