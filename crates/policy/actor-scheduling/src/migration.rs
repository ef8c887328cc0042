//! Which actor of a service moves to the other side: iPipe's push and pull migration (Liu and others, SIGCOMM 2019,
//! section 3.2.5) over two sides, as one pure step. Times and figures are arguments, so a decision can be made again.
//!
//! - **Push**, card to host: the card's messages take longer than [`Settings::overload_us`] on average, or its cores are
//!   busy for more than [`Settings::busy`] of their time, for [`Settings::patience`]. The actor with the highest load
//!   goes.
//! - **Push of a long mailbox** (iPipe's algorithm 2): more than [`Settings::backlog`] messages wait for an actor of the card,
//!   for [`Settings::patience`]. The actor with the most waiting messages goes, also from a card that is not overloaded.
//! - **Pull**, host to card: on average over half of [`Settings::settle`], the card's messages take less with a margin, and the
//!   card would be busy for at most [`Settings::spare`] of its time with the actor of the lowest load. Once this holds for
//!   [`Settings::settle`], that actor comes back. Between two steps there may be few messages, of which one that waited for a
//!   CPU says nothing: hence the average. An actor whose mailbox is not below [`Settings::backlog`] with the same margin stays.
//!
//! Actors of a [`group`](ActorLoad::group) count as one: they move together. After each move nothing is decided for
//! [`Settings::pause`], so that its effect shows first.

use std::collections::BTreeMap;

use model::{ActorSide, Nanos};
use serde::{Deserialize, Serialize};

/// When actors move.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// The mean response time of the card's messages above which it is overloaded, in microseconds.
    pub overload_us: f64,
    /// The share of its cores' time above which it is overloaded, too.
    pub busy: f64,
    /// The number of messages that wait for an actor of the card above which it goes: iPipe's Q_thresh. Absent, as in cases
    /// of before it was a setting: any number may wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backlog: Option<u64>,
    /// The share of the card's time up to which it takes actors back.
    pub spare: f64,
    /// The margin below `overload_us` and `backlog` at which actors come back, as a share of them: iPipe's α.
    pub hysteresis: f64,
    /// How long the card must be overloaded, or a mailbox be long.
    pub patience: Nanos,
    /// How long it must have room.
    pub settle: Nanos,
    /// From one move to the next decision.
    pub pause: Nanos,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            overload_us: 1_000.0,
            busy: 0.9,
            // Half of what a mailbox holds by default: its actor goes before messages are refused.
            backlog: Some(512),
            spare: 0.5,
            hysteresis: 0.2,
            patience: Nanos::from_millis(200),
            settle: Nanos::from_secs(2),
            pause: Nanos::from_millis(500),
        }
    }
}

/// What is remembered between two steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Memory {
    /// Since when the card is overloaded.
    pub over_since: Option<Nanos>,
    /// Since when a mailbox of the card is too long.
    pub long_since: Option<Nanos>,
    /// Since when it has room.
    pub room_since: Option<Nanos>,
    /// When the last move was decided.
    pub moved: Option<Nanos>,
    /// What the card is like on average.
    pub usual: Option<Usual>,
}

/// The card, exponentially averaged over half of [`Settings::settle`]. Whole numbers, which are written and read as they are.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Usual {
    /// The time of the last step in it.
    pub at: Nanos,
    /// Mean response time of its messages, in nanoseconds.
    pub mean_ns: u64,
    /// Share of its time for which it would be busy with the actor of the lowest load on the host, in millionths.
    pub share_ppm: u64,
}

impl Usual {
    /// With a step later than those in `before`.
    fn with(before: Option<Usual>, now: Usual, settle: Nanos) -> Usual {
        let Some(before) = before else { return now };
        let half = (settle.as_secs_f64() / 2.0).max(f64::MIN_POSITIVE);
        let weight = 1.0 - (-now.at.since(before.at).as_secs_f64() / half).exp();
        let average = |before: u64, now: u64| (before as f64 + weight * (now as f64 - before as f64)) as u64;
        Usual {
            at: now.at,
            mean_ns: average(before.mean_ns, now.mean_ns),
            share_ppm: average(before.share_ppm, now.share_ppm),
        }
    }

    fn mean_us(self) -> f64 {
        self.mean_ns as f64 / 1e3
    }

    fn share(self) -> f64 {
        self.share_ppm as f64 / 1e6
    }
}

/// An actor since the step before.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ActorLoad {
    /// Its name.
    pub actor: String,
    /// Actors with the same one move together; absent: it moves alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Where it is.
    pub side: ActorSide,
    /// Whether it can move now: it runs, is not paused and does not move.
    pub can_move: bool,
    /// Run time ÷ time: how many cores its messages need.
    pub load: f64,
    /// Messages per second.
    pub rate: f64,
    /// Mean of its response times, in microseconds.
    pub mean_us: f64,
    /// Their mean and three deviations, in microseconds.
    pub tail_us: f64,
    /// Messages that wait.
    pub waiting: u64,
}

/// What a step is given.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Observation {
    /// The time.
    pub now: Nanos,
    /// Whether both sides run.
    pub both_run: bool,
    /// Cores of the card.
    pub card_cores: u16,
    /// All actors.
    pub actors: Vec<ActorLoad>,
}

/// A move.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Move {
    /// Who moves, in the order of the observation.
    pub actors: Vec<String>,
    /// To which side.
    pub to: ActorSide,
    /// The rule that decided, with its figures.
    pub reason: String,
}

/// All that a decision depends on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    /// When actors move.
    pub settings: Settings,
    /// What was remembered.
    pub memory: Memory,
    /// What was seen.
    pub observation: Observation,
}

impl Case {
    /// Decides on it.
    pub fn decide(&self) -> (Memory, Option<Move>) {
        step(&self.settings, self.memory, &self.observation)
    }
}

/// Actors that move together.
struct Unit<'a> {
    actors: Vec<&'a ActorLoad>,
    load: f64,
    /// Messages in its longest mailbox.
    waiting: u64,
}

impl Unit<'_> {
    fn names(&self) -> Vec<String> {
        self.actors.iter().map(|actor| actor.actor.clone()).collect()
    }
}

/// The units on a side that can move as a whole.
fn units(of: &Observation, side: ActorSide) -> Vec<Unit<'_>> {
    let mut groups: BTreeMap<(&str, &str), Vec<&ActorLoad>> = BTreeMap::new();
    for actor in &of.actors {
        let key = match &actor.group {
            Some(group) => (group.as_str(), ""),
            None => ("", actor.actor.as_str()),
        };
        groups.entry(key).or_default().push(actor);
    }
    // Those of a group that are on the other side do not matter.
    let here = groups.into_values().map(|mut actors| {
        actors.retain(|actor| actor.side == side);
        actors
    });
    here.filter(|actors| !actors.is_empty() && actors.iter().all(|actor| actor.can_move))
        .map(|actors| Unit {
            load: actors.iter().map(|actor| actor.load).sum(),
            waiting: actors.iter().map(|actor| actor.waiting).max().unwrap_or(0),
            actors,
        })
        .collect()
}

/// Decides whether actors move, by what was seen since the step before. Returns what is to be remembered.
pub fn step(settings: &Settings, memory: Memory, of: &Observation) -> (Memory, Option<Move>) {
    let mut next = memory;
    let on_card = || of.actors.iter().filter(|actor| actor.side == ActorSide::Card);
    let rate: f64 = on_card().map(|actor| actor.rate).sum();
    let spent: f64 = on_card().map(|actor| actor.rate * actor.mean_us).sum();
    let mean_us = if rate > 0.0 { spent / rate } else { 0.0 };
    let cores = f64::from(of.card_cores.max(1));
    let load: f64 = on_card().map(|actor| actor.load).sum();
    let busy = load / cores;
    let is_over = mean_us > settings.overload_us || busy > settings.busy;
    next.over_since = is_over.then(|| memory.over_since.unwrap_or(of.now));
    let pushable = units(of, ActorSide::Card);
    let longest = pushable.iter().max_by_key(|unit| unit.waiting);
    let long = settings
        .backlog
        .and_then(|limit| longest.filter(|unit| unit.waiting > limit).zip(Some(limit)));
    next.long_since = long.is_some().then(|| memory.long_since.unwrap_or(of.now));
    let is_short = |unit: &Unit<'_>| {
        let below = |limit: u64| (unit.waiting as f64) < (1.0 - settings.hysteresis) * limit as f64;
        unit.waiting == 0 || settings.backlog.is_none_or(below)
    };
    let lightest = units(of, ActorSide::Host)
        .into_iter()
        .filter(is_short)
        .min_by(|a, b| a.load.total_cmp(&b.load));
    next.usual = lightest.as_ref().map(|unit| {
        let now = Usual {
            at: of.now,
            mean_ns: (mean_us * 1e3) as u64,
            share_ppm: ((load + unit.load) / cores * 1e6) as u64,
        };
        Usual::with(memory.usual, now, settings.settle)
    });
    let has_room = next.usual.is_some_and(|usual| {
        usual.mean_us() < (1.0 - settings.hysteresis) * settings.overload_us
            && usual.share() <= settings.spare
    });
    next.room_since = has_room.then(|| memory.room_since.unwrap_or(of.now));
    let pauses = memory.moved.is_some_and(|at| of.now.since(at) < settings.pause);
    if !of.both_run || pauses {
        return (next, None);
    }
    let lasts = |since: Option<Nanos>, least: Nanos| since.is_some_and(|at| of.now.since(at) >= least);
    let decided = if let Some((unit, limit)) = long.filter(|_| lasts(next.long_since, settings.patience)) {
        Some(Move {
            actors: unit.names(),
            to: ActorSide::Host,
            reason: format!(
                "push: {} messages wait for this one, the most of the card's actors (limit {limit})",
                unit.waiting,
            ),
        })
    } else if lasts(next.over_since, settings.patience) {
        let heaviest = pushable.iter().max_by(|a, b| a.load.total_cmp(&b.load));
        heaviest.map(|unit| Move {
            actors: unit.names(),
            to: ActorSide::Host,
            reason: format!(
                "push: the card's messages take {mean_us:.0} µs on average (limit {:.0}) and its cores are busy for \
                 {:.0} % (limit {:.0}); the load of this one is the highest, {:.2} cores",
                settings.overload_us,
                100.0 * busy,
                100.0 * settings.busy,
                unit.load,
            ),
        })
    } else if lasts(next.room_since, settings.settle) {
        lightest.zip(next.usual).map(|(unit, usual)| Move {
            actors: unit.names(),
            to: ActorSide::Card,
            reason: format!(
                "pull: the card's messages take {:.0} µs on average (limit {:.0}), and with this one of {:.2} \
                 cores, the lowest load on the host, its cores would be busy for {:.0} % (limit {:.0})",
                usual.mean_us(),
                (1.0 - settings.hysteresis) * settings.overload_us,
                unit.load,
                100.0 * usual.share(),
                100.0 * settings.spare,
            ),
        })
    } else {
        None
    };
    if decided.is_some() {
        next = Memory {
            moved: Some(of.now),
            ..Memory::default()
        };
    }
    (next, decided)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn actor(name: &str, side: ActorSide, load: f64, mean_us: f64) -> ActorLoad {
        ActorLoad {
            actor: name.to_owned(),
            group: None,
            side,
            can_move: true,
            load,
            rate: 1_000.0,
            mean_us,
            tail_us: 3.0 * mean_us,
            waiting: 0,
        }
    }

    fn run(actors: &[ActorLoad], from: u64, to: u64, memory: &mut Memory) -> Option<(u64, Move)> {
        for ms in (from..=to).step_by(50) {
            let of = Observation {
                now: Nanos::from_millis(ms),
                both_run: true,
                card_cores: 1,
                actors: actors.to_vec(),
            };
            let case = Case {
                settings: Settings::default(),
                memory: *memory,
                observation: of,
            };
            // A case decides the same after it was written and read.
            let read: Case = serde_json::from_str(&serde_json::to_string(&case).unwrap()).unwrap();
            assert_eq!(case.decide(), read.decide());
            let (next, decided) = case.decide();
            *memory = next;
            if let Some(of) = decided {
                return Some((ms, of));
            }
        }
        None
    }

    #[test]
    fn the_heaviest_goes_and_the_lightest_comes_back() {
        let mut memory = Memory::default();
        let mut all = [
            actor("a", ActorSide::Card, 0.3, 5_000.0),
            actor("b", ActorSide::Card, 0.6, 5_000.0),
        ];
        let (at, of) = run(&all, 1_000, 5_000, &mut memory).unwrap();
        assert_eq!(
            (at, of.to, of.actors),
            (1_200, ActorSide::Host, vec!["b".to_owned()])
        );
        // It goes on being overloaded: the other one follows, after a pause.
        all[1].side = ActorSide::Host;
        let (at, of) = run(&all, 1_250, 5_000, &mut memory).unwrap();
        assert_eq!((at, of.actors), (1_700, vec!["a".to_owned()]));
        all[0].side = ActorSide::Host;
        for of in &mut all {
            of.mean_us = 20.0;
        }
        // 0.3 cores fit into half of one, 0.6 do not.
        let (at, of) = run(&all, 1_750, 10_000, &mut memory).unwrap();
        assert_eq!(
            (at, of.to, of.actors),
            (3_750, ActorSide::Card, vec!["a".to_owned()])
        );
        all[0].side = ActorSide::Card;
        assert_eq!(run(&all, 3_800, 20_000, &mut memory), None);
        all[1].load = 0.1;
        let (_, of) = run(&all, 20_000, 30_000, &mut memory).unwrap();
        assert_eq!((of.to, of.actors), (ActorSide::Card, vec!["b".to_owned()]));
    }

    #[test]
    fn a_busy_card_pushes_and_a_short_peak_does_not() {
        let mut memory = Memory::default();
        let busy = [actor("a", ActorSide::Card, 0.95, 10.0)];
        let calm = [actor("a", ActorSide::Card, 0.1, 10.0)];
        assert_eq!(run(&busy, 0, 150, &mut memory), None);
        assert_eq!(run(&calm, 200, 200, &mut memory), None);
        assert_eq!(run(&busy, 250, 400, &mut memory), None);
        assert!(run(&busy, 450, 600, &mut memory).is_some());
    }

    #[test]
    fn a_long_mailbox_pushes_its_actor_and_keeps_it_on_the_host() {
        let mut memory = Memory::default();
        let mut all = [
            actor("a", ActorSide::Card, 0.3, 10.0),
            actor("b", ActorSide::Card, 0.1, 10.0),
        ];
        // As many as may wait; then a peak that is too short.
        all[1].waiting = 512;
        assert_eq!(run(&all, 0, 1_000, &mut memory), None);
        all[1].waiting = 513;
        assert_eq!(run(&all, 1_050, 1_200, &mut memory), None);
        all[1].waiting = 0;
        assert_eq!(run(&all, 1_250, 1_250, &mut memory), None);
        // Not the one with the highest load.
        all[1].waiting = 513;
        let (at, of) = run(&all, 1_300, 2_000, &mut memory).unwrap();
        assert_eq!(
            (at, of.to, of.actors),
            (1_500, ActorSide::Host, vec!["b".to_owned()])
        );
        assert!(of.reason.starts_with("push: 513 messages wait"), "{}", of.reason);
        // It returns when its mailbox is shorter by the margin: below 409.6.
        all[1].side = ActorSide::Host;
        all[1].waiting = 410;
        assert_eq!(run(&all, 1_550, 9_000, &mut memory), None);
        all[1].waiting = 409;
        let (at, of) = run(&all, 9_050, 20_000, &mut memory).unwrap();
        assert_eq!(
            (at, of.to, of.actors),
            (11_050, ActorSide::Card, vec!["b".to_owned()])
        );
        // One that is paused does not go.
        all[1].side = ActorSide::Card;
        all[1].waiting = 900;
        all[1].can_move = false;
        assert_eq!(run(&all, 20_000, 30_000, &mut memory), None);
    }

    /// A line of an event log of before the limit was a setting.
    #[test]
    fn a_case_without_a_limit_of_mailboxes_is_read_and_has_none() {
        let mut long = actor("a", ActorSide::Card, 0.1, 10.0);
        long.waiting = 1 << 40;
        let case = Case {
            settings: Settings {
                backlog: None,
                ..Settings::default()
            },
            memory: Memory {
                long_since: Some(Nanos(1)),
                ..Memory::default()
            },
            observation: Observation {
                now: Nanos::from_secs(9),
                both_run: true,
                card_cores: 1,
                actors: vec![long],
            },
        };
        let text = serde_json::to_string(&case).unwrap();
        assert!(!text.contains("backlog"), "{text}");
        let read: Case = serde_json::from_str(&text.replace("\"long_since\":1,", "")).unwrap();
        assert_eq!(read.settings, case.settings);
        assert_eq!(read.memory, Memory::default());
        assert_eq!((read.decide().1, case.decide().1), (None, None));
        let limited = Case {
            settings: Settings::default(),
            ..case
        };
        assert!(limited.decide().1.is_some());
    }

    /// One message in a while waits for a CPU: with few messages, it is the mean of its step.
    #[test]
    fn a_slow_message_now_and_then_does_not_keep_an_actor_on_the_host() {
        let mut memory = Memory::default();
        let mut all = [
            actor("a", ActorSide::Card, 0.1, 200.0),
            actor("b", ActorSide::Host, 0.1, 200.0),
        ];
        let mut came = None;
        for ms in (1_000..8_000).step_by(50) {
            // Each half second, three times the limit, and a step in which the card is busy.
            let is_slow = ms % 500 == 0;
            all[0].mean_us = if is_slow { 3_000.0 } else { 200.0 };
            all[0].load = if is_slow { 1.0 } else { 0.1 };
            came = came.or(run(&all, ms, ms, &mut memory).map(|(at, _)| at));
        }
        assert!(came.is_some_and(|at| at <= 6_000), "{came:?}");
        // A card that is slow half of the time gets none.
        let mut memory = Memory::default();
        for ms in (1_000..60_000).step_by(50) {
            all[0].mean_us = if ms % 100 == 0 { 3_000.0 } else { 200.0 };
            all[0].load = 0.1;
            assert_eq!(run(&all, ms, ms, &mut memory), None, "at {ms}");
        }
    }

    #[test]
    fn a_group_moves_together_and_what_cannot_move_stays() {
        let mut all = [
            actor("a", ActorSide::Card, 0.3, 5_000.0),
            actor("b", ActorSide::Card, 0.5, 5_000.0),
            actor("c", ActorSide::Card, 0.3, 5_000.0),
        ];
        all[0].group = Some("g".to_owned());
        all[2].group = Some("g".to_owned());
        let (_, of) = run(&all, 0, 1_000, &mut Memory::default()).unwrap();
        assert_eq!(of.actors, ["a", "c"]);
        all[2].can_move = false;
        let (_, of) = run(&all, 0, 1_000, &mut Memory::default()).unwrap();
        assert_eq!(of.actors, ["b"]);
        let of = Observation {
            now: Nanos::from_secs(9),
            both_run: false,
            card_cores: 1,
            actors: all.to_vec(),
        };
        let memory = Memory {
            over_since: Some(Nanos(1)),
            ..Memory::default()
        };
        assert_eq!(step(&Settings::default(), memory, &of).1, None);
    }
}
