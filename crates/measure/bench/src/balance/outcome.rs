//! What is measured of each balancer, and what SmartLB's paper says that it should be.

use display::table::{Table, grouped};
use serde::Serialize;
use testbed::wrk::Load;

use super::bed::Function;
use super::web::{Downloads, HEAVY, LIGHT};
use crate::args::Balancer;
use crate::contestant::median;

/// What a function has taken: counters, or their differences.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(super) struct Taken {
    pub(super) instance: u32,
    pub(super) packets: u64,
    pub(super) bytes: u64,
    pub(super) flows: u64,
    /// Dropped on the way to it, nearly all because its ring was full.
    pub(super) dropped_packets: u64,
    pub(super) busy_s: f64,
}

/// The counters of all functions at a moment.
#[derive(Clone, Debug)]
pub(super) struct Reading(pub(super) Vec<Taken>);

impl Reading {
    /// What each has taken since.
    pub(super) fn since(&self, before: &Reading) -> Vec<Taken> {
        let pairs = self.0.iter().zip(&before.0);
        pairs
            .map(|(now, before)| Taken {
                instance: now.instance,
                packets: now.packets.saturating_sub(before.packets),
                bytes: now.bytes.saturating_sub(before.bytes),
                flows: now.flows.saturating_sub(before.flows),
                dropped_packets: now.dropped_packets.saturating_sub(before.dropped_packets),
                busy_s: now.busy_s - before.busy_s,
            })
            .collect()
    }
}

/// The throughput of the functions in each period of a turn, as the paper reads it.
#[derive(Debug, Default)]
pub(super) struct Windows {
    last: Option<Reading>,
    max_min: Vec<f64>,
    jain: Vec<f64>,
}

impl Windows {
    /// Ends a period with this reading.
    pub(super) fn add(&mut self, now: &Reading) {
        if let Some(last) = self.last.replace(now.clone()) {
            let bytes: Vec<u64> = now.since(&last).iter().map(|of| of.bytes).collect();
            self.max_min.push(max_min(&bytes));
            self.jain.push(jain(&bytes));
        }
    }
}

/// The most that one took ÷ the least. One that took nothing counts as if it had taken one byte.
fn max_min(bytes: &[u64]) -> f64 {
    let most = bytes.iter().copied().max().unwrap_or(0);
    let least = bytes.iter().copied().min().unwrap_or(0);
    most.max(1) as f64 / least.max(1) as f64
}

/// Jain's index; 1 if none took anything.
fn jain(bytes: &[u64]) -> f64 {
    let sum: f64 = bytes.iter().map(|of| *of as f64).sum();
    let squares: f64 = bytes.iter().map(|of| (*of as f64).powi(2)).sum();
    match squares > 0.0 {
        true => sum * sum / (squares * bytes.len() as f64),
        false => 1.0,
    }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// The figures of a turn, and of all turns of a balancer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(super) struct Figures {
    /// The throughput of the function that took the most ÷ that of the one that took the least: the mean of all
    /// periods.
    max_min: f64,
    /// Jain's index of the throughputs: the mean of all periods.
    jain: f64,
    heavy_finished: u64,
    light_finished: u64,
    failed_requests: u64,
    light_p50_ms: f64,
    light_p90_ms: f64,
    light_p99_ms: f64,
}

/// The turn of a balancer.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Run {
    #[serde(skip)]
    function: &'static str,
    #[serde(skip)]
    balancer: Balancer,
    #[serde(skip)]
    scheduler: Option<String>,
    round: u32,
    #[serde(flatten)]
    figures: Figures,
    /// By function.
    instances: Vec<Taken>,
}

impl Run {
    pub(super) const COLUMNS: [&'static str; 15] = [
        "function",
        "balancer",
        "scheduler",
        "round",
        "max_min",
        "jain",
        "heavy_finished",
        "light_finished",
        "failed_requests",
        "light_p50_ms",
        "light_p90_ms",
        "light_p99_ms",
        "bytes",
        "dropped_packets",
        "busy_s",
    ];

    pub(super) fn of(
        function: &Function,
        balancer: Balancer,
        scheduler: Option<String>,
        round: u32,
        windows: &Windows,
        instances: Vec<Taken>,
        (heavy, light): (Load, Load),
    ) -> Run {
        let figures = Figures {
            max_min: mean(&windows.max_min),
            jain: mean(&windows.jain),
            heavy_finished: heavy.requests,
            light_finished: light.requests,
            failed_requests: heavy.failed + light.failed,
            light_p50_ms: light.p50_ms,
            light_p90_ms: light.p90_ms,
            light_p99_ms: light.p99_ms,
        };
        Run {
            function: function.name,
            balancer,
            scheduler,
            round,
            figures,
            instances,
        }
    }

    /// A line that tells of progress.
    pub(super) fn line(&self) -> String {
        let of = &self.figures;
        format!(
            "{}, round {}, {}: Max/Min {:.2}, Jain {:.3}, {} heavy and {} light requests, p99 of light ones {:.0} ms, {} \
             failed",
            self.function,
            self.round,
            self.balancer.name(),
            of.max_min,
            of.jain,
            of.heavy_finished,
            grouped(of.light_finished),
            of.light_p99_ms,
            of.failed_requests,
        )
    }

    /// By column. What is about each function is divided by blanks.
    pub(super) fn cells(&self) -> [String; 15] {
        let of = &self.figures;
        let of_each = |text: fn(&Taken) -> String| {
            let texts: Vec<String> = self.instances.iter().map(text).collect();
            texts.join(" ")
        };
        [
            self.function.to_owned(),
            self.balancer.name().to_owned(),
            self.scheduler.clone().unwrap_or_default(),
            self.round.to_string(),
            format!("{:.4}", of.max_min),
            format!("{:.4}", of.jain),
            of.heavy_finished.to_string(),
            of.light_finished.to_string(),
            of.failed_requests.to_string(),
            format!("{:.2}", of.light_p50_ms),
            format!("{:.2}", of.light_p90_ms),
            format!("{:.2}", of.light_p99_ms),
            of_each(|taken| taken.bytes.to_string()),
            of_each(|taken| taken.dropped_packets.to_string()),
            of_each(|taken| format!("{:.3}", taken.busy_s)),
        ]
    }
}

/// A balancer with a function.
#[derive(Clone, Debug, Serialize)]
struct Row {
    function: &'static str,
    cost: String,
    balancer: &'static str,
    /// The scheduler of inco, where inco balances.
    #[serde(skip_serializing_if = "Option::is_none")]
    scheduler: Option<String>,
    /// Of all rounds: sums of requests, and the medians of the other figures.
    #[serde(flatten)]
    figures: Figures,
    rounds: Vec<Run>,
}

/// How a ratio has to be.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Aim {
    AtMost(f64),
    Above(f64),
    AtLeast(f64),
}

impl Aim {
    fn is_met(self, ratio: f64) -> bool {
        match self {
            Aim::AtMost(limit) => ratio <= limit,
            Aim::Above(limit) => ratio > limit,
            Aim::AtLeast(limit) => ratio >= limit,
        }
    }

    fn text(self) -> String {
        match self {
            Aim::AtMost(limit) => format!("at most {limit}"),
            Aim::Above(limit) => format!("above {limit}"),
            Aim::AtLeast(limit) => format!("at least {limit}"),
        }
    }
}

/// A figure of a row, by its name in JSON.
type Named = (&'static str, Aim, fn(&Figures) -> f64);

/// What is compared with RSS, and what the paper found: Max/Min 13 to 20 % lower, Jain's index higher, 10 % more heavy
/// requests, a tail latency at least 15 % lower.
const AIMS: [Named; 4] = [
    ("max_min", Aim::AtMost(0.9), |of| of.max_min),
    ("jain", Aim::Above(1.0), |of| of.jain),
    ("heavy_finished", Aim::AtLeast(1.1), |of| of.heavy_finished as f64),
    ("light_p99_ms", Aim::AtMost(0.85), |of| of.light_p99_ms),
];

/// A figure of one of inco's schedulers beside that of a peer.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Criterion {
    function: &'static str,
    balancer: &'static str,
    peer: &'static str,
    figure: &'static str,
    /// The balancer's figure ÷ the peer's; none if the peer's is 0.
    ratio: Option<f64>,
    aim: Aim,
    met: bool,
}

/// The document.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Outcome {
    seconds: u64,
    load: [Downloads; 2],
    rows: Vec<Row>,
    criteria: Vec<Criterion>,
}

impl Outcome {
    pub(super) fn of(
        seconds: u64,
        balancers: &[Balancer],
        functions: &[Function],
        runs: Vec<Run>,
    ) -> Outcome {
        let mut rows = Vec::new();
        let mut criteria = Vec::new();
        for function in functions {
            let of_function: Vec<(Balancer, Row)> = balancers
                .iter()
                .map(|balancer| (*balancer, Row::of(function, *balancer, &runs)))
                .collect();
            for (ours, row) in of_function.iter().filter(|(balancer, _)| !balancer.is_peer()) {
                for (peer, beside) in of_function.iter().filter(|(balancer, _)| balancer.is_peer()) {
                    let names = (function.name, ours.name(), peer.name());
                    criteria.extend(compare(names, &row.figures, &beside.figures));
                }
            }
            rows.extend(of_function.into_iter().map(|(_, row)| row));
        }
        Outcome {
            seconds,
            load: [HEAVY, LIGHT],
            rows,
            criteria,
        }
    }

    /// Two tables.
    pub(super) fn text(&self) -> String {
        let mut table = Table::new(&[
            "function",
            "balancer",
            "scheduler",
            ">Max/Min",
            ">Jain",
            ">heavy",
            ">light",
            ">failed",
            ">p50",
            ">p90",
            ">p99",
        ]);
        for row in &self.rows {
            let of = &row.figures;
            table.row([
                row.function.to_owned(),
                row.balancer.to_owned(),
                row.scheduler.clone().unwrap_or_else(|| "-".to_owned()),
                format!("{:.2}", of.max_min),
                format!("{:.3}", of.jain),
                of.heavy_finished.to_string(),
                grouped(of.light_finished),
                of.failed_requests.to_string(),
                format!("{:.0} ms", of.light_p50_ms),
                format!("{:.0} ms", of.light_p90_ms),
                format!("{:.0} ms", of.light_p99_ms),
            ]);
        }
        let mut text = table.text();
        text.push_str(
            "\nMax/Min and Jain's index: throughput of the functions. Heavy and light: finished requests. p50, p90, p99: \
             light requests.\n\n",
        );
        let mut table = Table::new(&[
            "function", "balancer", "÷ peer", "figure", ">ratio", "aim", "result",
        ]);
        for of in &self.criteria {
            table.row([
                of.function.to_owned(),
                of.balancer.to_owned(),
                of.peer.to_owned(),
                of.figure.to_owned(),
                of.ratio.map_or("-".to_owned(), |ratio| format!("{ratio:.3}")),
                of.aim.text(),
                if of.met { "met" } else { "missed" }.to_owned(),
            ]);
        }
        text.push_str(&table.text());
        text
    }
}

fn compare<'a>(
    (function, balancer, peer): (&'static str, &'static str, &'static str),
    ours: &'a Figures,
    beside: &'a Figures,
) -> impl Iterator<Item = Criterion> + 'a {
    AIMS.into_iter().map(move |(figure, aim, of)| {
        let ratio = (of(beside) > 0.0).then(|| of(ours) / of(beside));
        Criterion {
            function,
            balancer,
            peer,
            figure,
            ratio,
            aim,
            met: ratio.is_some_and(|ratio| aim.is_met(ratio)),
        }
    })
}

impl Row {
    fn of(function: &Function, balancer: Balancer, runs: &[Run]) -> Row {
        let rounds: Vec<Run> = runs
            .iter()
            .filter(|run| (run.function, run.balancer) == (function.name, balancer))
            .cloned()
            .collect();
        let middle = |of: fn(&Figures) -> f64| median(rounds.iter().map(|run| of(&run.figures)));
        let sum = |of: fn(&Figures) -> u64| rounds.iter().map(|run| of(&run.figures)).sum();
        Row {
            function: function.name,
            cost: function.cost.clone(),
            balancer: balancer.name(),
            scheduler: rounds.first().and_then(|run| run.scheduler.clone()),
            figures: Figures {
                max_min: middle(|of| of.max_min),
                jain: middle(|of| of.jain),
                heavy_finished: sum(|of| of.heavy_finished),
                light_finished: sum(|of| of.light_finished),
                failed_requests: sum(|of| of.failed_requests),
                light_p50_ms: middle(|of| of.light_p50_ms),
                light_p90_ms: middle(|of| of.light_p90_ms),
                light_p99_ms: middle(|of| of.light_p99_ms),
            },
            rounds,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn throughput_is_compared_in_each_period() {
        let taken = |bytes| Taken {
            bytes,
            ..Taken::default()
        };
        let reading = |bytes: [u64; 2]| Reading(bytes.map(taken).to_vec());
        let mut windows = Windows::default();
        for bytes in [[100, 500], [400, 800], [400, 800], [410, 1100]] {
            windows.add(&reading(bytes));
        }
        // 300 and 300, nothing, 10 and 300.
        assert_eq!(windows.max_min, [1.0, 1.0, 30.0]);
        assert_eq!(windows.jain[..2], [1.0, 1.0]);
        assert!((windows.jain[2] - 310.0 * 310.0 / (2.0 * 90_100.0)).abs() < 1e-12);
        // One that has nothing at all.
        assert_eq!((max_min(&[0, 800]), jain(&[0, 800])), (800.0, 0.5));
    }

    #[test]
    fn each_criterion_has_its_direction() {
        let peer = Figures {
            max_min: 10.0,
            jain: 0.5,
            heavy_finished: 20,
            light_p99_ms: 100.0,
            ..Figures::default()
        };
        let ratios = |ours: Figures| -> Vec<(Option<f64>, bool)> {
            compare(("forward", "weighted", "rss"), &ours, &peer)
                .map(|of| (of.ratio, of.met))
                .collect()
        };
        let met = Figures {
            max_min: 9.0,
            jain: 0.75,
            heavy_finished: 22,
            light_p99_ms: 85.0,
            ..peer
        };
        let yes = |ratio| (Some(ratio), true);
        assert_eq!(ratios(met), [yes(0.9), yes(1.5), yes(1.1), yes(0.85)]);
        assert!(
            ratios(peer)
                .iter()
                .all(|(ratio, met)| *ratio == Some(1.0) && !met)
        );
        // Without a heavy request of the peer there is nothing to compare.
        let none = Figures::default();
        let compared: Vec<Criterion> = compare(("forward", "weighted", "rss"), &met, &none).collect();
        assert!(compared.iter().all(|of| of.ratio.is_none() && !of.met));
    }
}
