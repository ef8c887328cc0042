//! What the demo has shown, as text and JSON.

use actor_load::Counts;
use serde::Serialize;

/// What a phase showed of one application.
#[derive(Debug, Serialize)]
pub(super) struct Shown {
    /// Requests (of analytics, tuples) per second that were intended, at the end of the phase.
    pub(super) offered_per_s: f64,
    /// Those per second that were answered; of analytics, counted.
    pub(super) answered_per_s: f64,
    /// Times from the intended sending to the answer, in milliseconds.
    pub(super) p50_ms: f64,
    pub(super) p99_ms: f64,
    /// Actors on the host at its end.
    pub(super) on_host: usize,
}

/// What a phase showed.
#[derive(Debug, Serialize)]
pub(super) struct PhaseResult {
    pub(super) phase: &'static str,
    #[serde(flatten)]
    pub(super) store: Shown,
    pub(super) analytics: Shown,
}

/// A move that has ended.
#[derive(Debug, Serialize)]
pub(super) struct Moved {
    pub(super) at_s: f64,
    pub(super) service: String,
    pub(super) actor: String,
    pub(super) to: &'static str,
    pub(super) took_ms: f64,
}

/// What sources and the reader of analytics have seen.
#[derive(Debug, Default, Serialize)]
pub(super) struct Windows {
    pub(super) tuples: u64,
    /// Tuples that were not counted.
    pub(super) lost: u64,
    /// Windows that are exact: all that lie in the run as a whole, up to the last tuple.
    pub(super) windows: usize,
    /// What is wrong with each of the others.
    pub(super) wrong_windows: Vec<String>,
}

/// The result.
#[derive(Debug, Serialize)]
pub(super) struct Summary {
    phases: Vec<PhaseResult>,
    moves: Vec<Moved>,
    requests: u64,
    lost: u64,
    answered_twice: u64,
    /// Keys of the store whose answers no order of the requests explains.
    wrong_answers: u64,
    /// Requests that were sent again: another replica led, or no answer came in time. Each was executed once.
    asked_again: u64,
    analytics: Windows,
    failed_checks: Vec<String>,
}

/// What is known at the end.
pub(super) struct End {
    pub(super) counts: Counts,
    pub(super) wrong_keys: usize,
    pub(super) analytics: Windows,
    /// The services that have an actor which has not come back.
    pub(super) away: Vec<String>,
}

impl Summary {
    pub(super) fn of(phases: Vec<PhaseResult>, moves: Vec<Moved>, services: &[&str], end: End) -> Summary {
        let (counts, windows) = (end.counts, &end.analytics);
        let mut failed = Vec::new();
        let mut check = |is_kept: bool, what: &str| {
            if !is_kept {
                failed.push(what.to_owned());
            }
        };
        check(counts.lost == 0, "a request was lost");
        check(counts.twice == 0, "a request was answered twice");
        check(end.wrong_keys == 0, "the answers for a key are not linearizable");
        check(windows.lost == 0, "a tuple was lost");
        check(windows.windows > 0, "no window was checked");
        if let Some(what) = windows.wrong_windows.first() {
            check(false, what);
        }
        for service in services {
            let has_moved = |side| moves.iter().any(|of| of.service == *service && of.to == side);
            let what = format!("no actor of {service} moved to the host under load");
            check(has_moved("host"), &what);
            let is_back = !end.away.iter().any(|of| of == service) && has_moved("card");
            check(is_back, &format!("not all actors of {service} came back"));
        }
        Summary {
            failed_checks: failed,
            phases,
            moves,
            requests: counts.requests,
            lost: counts.lost,
            answered_twice: counts.twice,
            wrong_answers: end.wrong_keys as u64,
            asked_again: counts.again,
            analytics: end.analytics,
        }
    }

    pub(super) fn failed_checks(&self) -> &[String] {
        &self.failed_checks
    }

    pub(super) fn text(&self) -> String {
        let mut table = display::table::Table::new(&[
            "phase",
            "application",
            ">offered/s",
            ">answered/s",
            ">p50 ms",
            ">p99 ms",
            ">on host",
        ]);
        for of in &self.phases {
            for (name, shown) in [("store", &of.store), ("analytics", &of.analytics)] {
                table.row([
                    of.phase.to_owned(),
                    name.to_owned(),
                    format!("{:.0}", shown.offered_per_s),
                    format!("{:.0}", shown.answered_per_s),
                    format!("{:.1}", shown.p50_ms),
                    format!("{:.1}", shown.p99_ms),
                    shown.on_host.to_string(),
                ]);
            }
        }
        let mut text = table.text();
        for of in &self.moves {
            text.push_str(&format!(
                "{:5.1} s  {}: {} moved to the {} in {:.1} ms\n",
                of.at_s, of.service, of.actor, of.to, of.took_ms
            ));
        }
        let windows = &self.analytics;
        text.push_str(&format!(
            "\nstore: {} requests, lost {}, answered twice {}, keys with wrong answers {}; sent again {}\nanalytics: {} \
             tuples, lost {}; {} windows exact, {} wrong\nTimes count from the intended sending.\n",
            self.requests,
            self.lost,
            self.answered_twice,
            self.wrong_answers,
            self.asked_again,
            windows.tuples,
            windows.lost,
            windows.windows,
            windows.wrong_windows.len(),
        ));
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SERVICES: [&str; 2] = ["store", "analytics"];

    fn moved(service: &str, to: &'static str) -> Moved {
        Moved {
            at_s: 1.0,
            service: service.to_owned(),
            actor: "actor".to_owned(),
            to,
            took_ms: 2.0,
        }
    }

    fn end() -> End {
        End {
            counts: Counts::default(),
            wrong_keys: 0,
            analytics: Windows {
                windows: 20,
                ..Windows::default()
            },
            away: Vec::new(),
        }
    }

    #[test]
    fn a_broken_promise_fails_the_demo() {
        let all = || {
            let moves = SERVICES.map(|of| ["host", "card"].map(|to| moved(of, to)));
            moves.into_iter().flatten().collect::<Vec<_>>()
        };
        let of = |moves, end| Summary::of(Vec::new(), moves, &SERVICES, end);
        let right = of(all(), end());
        assert!(right.failed_checks.is_empty(), "{right:?}");
        assert!(right.text().contains("lost 0, answered twice 0"));
        let breaks: [fn(&mut End); 7] = [
            |end| end.counts.lost = 1,
            |end| end.counts.twice = 1,
            |end| end.wrong_keys = 1,
            |end| end.analytics.lost = 1,
            |end| end.analytics.windows = 0,
            |end| end.analytics.wrong_windows.push("a window has others".to_owned()),
            |end| end.away.push("analytics".to_owned()),
        ];
        for break_it in breaks {
            let mut end = end();
            break_it(&mut end);
            assert_eq!(of(all(), end).failed_checks.len(), 1);
        }
        for missing in 0..4 {
            let mut moves = all();
            moves.remove(missing);
            assert_eq!(of(moves, end()).failed_checks.len(), 1, "move {missing}");
        }
    }
}
