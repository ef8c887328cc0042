//! What is known of the actors over time: totals that go on over restarts and moves, and rates.

use std::collections::BTreeMap;

use actor_control::Line;
use actor_scheduling::migration::ActorLoad;
use actor_supervisor::Row;
use model::{ActorSide, Nanos};

use configuration::ActorMember;

/// Time over which rates are shown.
const WINDOW: Nanos = Nanos::from_secs(1);
/// Decisions of a side about groups that become events, at most, in a second: each has all that it depends on.
pub(super) const DECISIONS_A_SECOND: u32 = 32;
/// What happens to actors that becomes an event, at most, in a second of a side: each of them may have moved away and back.
pub(super) const HAPPENINGS_A_SECOND: u32 = 2 * actor_control::ACTORS_LIMIT;

/// How much of what a side says may still become events.
#[derive(Clone, Copy, Debug)]
pub(super) struct Told {
    a_second: u32,
    since: Nanos,
    told: u32,
    left_out: u64,
}

impl Told {
    /// So much in a second.
    pub(super) fn new(a_second: u32) -> Told {
        Told {
            a_second,
            since: Nanos::ZERO,
            told: 0,
            left_out: 0,
        }
    }

    /// Whether one more may: then how many were left out before it, that nobody was told of.
    pub(super) fn next(&mut self, now: Nanos) -> Option<u64> {
        if now.since(self.since) >= Nanos::from_secs(1) {
            (self.since, self.told) = (now, 0);
        }
        if self.told >= self.a_second {
            self.left_out += 1;
            return None;
        }
        self.told += 1;
        Some(std::mem::take(&mut self.left_out))
    }
}

/// One actor over time. A side counts anew when the actor comes to it, or its process begins.
#[derive(Clone, Debug, Default)]
struct Track {
    last: Option<(ActorSide, u64, u64)>,
    /// Messages that it has handled, and its run time in ns, in all.
    served: u64,
    ran_ns: u64,
    /// The totals at the last look, and at the beginning of the window.
    looked: (u64, u64),
    window: (u64, u64),
    rate: f64,
    load: f64,
}

impl Track {
    fn take(&mut self, side: ActorSide, line: &Line) {
        let before = self
            .last
            .filter(|(of, served, ran)| *of == side && *served <= line.served && *ran <= line.ran_ns);
        let (_, served, ran) = before.unwrap_or((side, 0, 0));
        // A side may say anything.
        self.served = self.served.saturating_add(line.served - served);
        self.ran_ns = self.ran_ns.saturating_add(line.ran_ns - ran);
        self.last = Some((side, line.served, line.ran_ns));
    }
}

/// Messages and cores, by `seconds`, since totals were these.
fn rates(now: (u64, u64), before: (u64, u64), span: Nanos) -> (f64, f64) {
    let seconds = span.0.max(1) as f64 / 1e9;
    let served = now.0.saturating_sub(before.0) as f64;
    let ran = now.1.saturating_sub(before.1) as f64 / 1e9;
    (served / seconds, ran / seconds)
}

/// What is shown of an actor beside what its side says.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Shown {
    pub(super) served: u64,
    pub(super) run_s: f64,
    pub(super) rate: f64,
    pub(super) load: f64,
}

/// All actors of a service.
#[derive(Debug, Default)]
pub(super) struct Looks {
    tracks: BTreeMap<u32, Track>,
    window_began: Nanos,
    looked: Nanos,
}

/// The side in inco's words.
pub(super) fn side_of(side: actor_control::Side) -> ActorSide {
    match side {
        actor_control::Side::Card => ActorSide::Card,
        actor_control::Side::Host => ActorSide::Host,
    }
}

/// The side in the words of the two processes.
pub(super) fn control_side(side: ActorSide) -> actor_control::Side {
    match side {
        ActorSide::Card => actor_control::Side::Card,
        ActorSide::Host => actor_control::Side::Host,
    }
}

impl Looks {
    /// Takes what the sides say.
    pub(super) fn take(&mut self, rows: &[Row], now: Nanos) {
        for row in rows {
            let track = self.tracks.entry(row.actor).or_default();
            if let Some(side) = row.side {
                track.take(side_of(side), &row.line);
            }
        }
        let span = now.since(self.window_began);
        if span < WINDOW {
            return;
        }
        for track in self.tracks.values_mut() {
            let totals = (track.served, track.ran_ns);
            (track.rate, track.load) = rates(totals, track.window, span);
            track.window = totals;
        }
        self.window_began = now;
    }

    pub(super) fn shown(&self, actor: u32) -> Shown {
        self.tracks
            .get(&actor)
            .map_or_else(Shown::default, |track| Shown {
                served: track.served,
                run_s: track.ran_ns as f64 / 1e9,
                rate: track.rate,
                load: track.load,
            })
    }

    /// The loads since the call before.
    pub(super) fn loads(&mut self, rows: &[Row], members: &[ActorMember], now: Nanos) -> Vec<ActorLoad> {
        let span = now.since(self.looked);
        self.looked = now;
        let load = |row: &Row| {
            let member = members.get(row.actor as usize)?;
            let track = self.tracks.get_mut(&row.actor)?;
            let totals = (track.served, track.ran_ns);
            let (rate, load) = rates(totals, track.looked, span);
            track.looked = totals;
            let line = &row.line;
            Some(ActorLoad {
                actor: member.name.clone(),
                group: member.group.clone(),
                side: side_of(row.side?),
                can_move: line.phase.is_none() && !line.is_paused && !line.is_stopped && !row.is_lost,
                load,
                rate,
                mean_us: line.mean_ns as f64 / 1e3,
                tail_us: line.tail_ns as f64 / 1e3,
                waiting: line.waiting,
            })
        };
        rows.iter().filter_map(load).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(side: actor_control::Side, served: u64, ran_ns: u64) -> Row {
        Row {
            actor: 0,
            kind: "counter".to_owned(),
            side: Some(side),
            line: Line {
                served,
                ran_ns,
                ..Line::default()
            },
            held: 0,
            is_lost: false,
            moves: 0,
        }
    }

    #[test]
    fn totals_go_on_where_a_side_counts_anew() {
        use actor_control::Side::{Card, Host};
        let mut looks = Looks::default();
        let second = |seconds: u64| Nanos::from_secs(100 + seconds);
        looks.take(&[row(Card, 10, 1_000)], second(0));
        looks.take(&[row(Card, 30, 500_001_000)], second(1));
        let shown = looks.shown(0);
        assert_eq!((shown.served, shown.rate), (30, 20.0));
        assert!((shown.load - 0.5).abs() < 1e-9);
        // It moved, and came back: each side begins at 0.
        looks.take(&[row(Host, 5, 10)], second(2));
        looks.take(&[row(Card, 2, 10)], second(3));
        assert_eq!(looks.shown(0).served, 37);
        // Its process was replaced.
        looks.take(&[row(Card, 1, 5)], second(4));
        assert_eq!((looks.shown(0).served, looks.shown(0).rate), (38, 1.0));
    }

    #[test]
    fn totals_of_a_side_that_says_anything_stay_numbers() {
        let mut looks = Looks::default();
        for (second, served) in [(1, u64::MAX), (2, 3), (3, u64::MAX)] {
            let row = row(actor_control::Side::Card, served, served);
            looks.take(&[row], Nanos::from_secs(second));
            assert!(looks.shown(0).rate.is_finite());
        }
        assert_eq!(looks.shown(0).served, u64::MAX);
    }

    #[test]
    fn decisions_beyond_those_of_a_second_are_counted() {
        let mut decisions = Told::new(DECISIONS_A_SECOND);
        let begins = Nanos::from_secs(5);
        for _ in 0..DECISIONS_A_SECOND {
            assert_eq!(decisions.next(begins), Some(0));
        }
        let soon = begins + Nanos::from_millis(999);
        assert_eq!([decisions.next(soon), decisions.next(soon)], [None, None]);
        let later = begins + Nanos::from_secs(1);
        assert_eq!([decisions.next(later), decisions.next(later)], [Some(2), Some(0)]);
    }
}
