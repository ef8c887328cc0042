//! The rows: medians of turns, with their ranges.

use std::collections::BTreeMap;

use anyhow::Result;
use display::table::{Table, or_dash, short};
use path_costs::{Cost, Costs, Figure};
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::mixes::{self, Comparison};
use crate::args::{PathName, PathScope, PathWork};

/// What a turn measured; what does not apply is absent.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Figures {
    pub(super) gbps: Option<f64>,
    pub(super) cpu_s_per_gbit: Option<f64>,
    pub(super) retransmits: Option<f64>,
    pub(super) requests_per_s: Option<f64>,
    pub(super) cpu_us_per_request: Option<f64>,
    pub(super) ndr_pps: Option<f64>,
    pub(super) pdr_pps: Option<f64>,
    /// What arrives where twice the PDR is offered.
    pub(super) overload_pps: Option<f64>,
    pub(super) cpu_ns_per_packet: Option<f64>,
    pub(super) p50_us: Option<f64>,
    pub(super) p99_us: Option<f64>,
}

/// What was measured: a path, where its ends are, the work, connections or flows at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    pub(super) path: PathName,
    pub(super) scope: PathScope,
    pub(super) work: PathWork,
    pub(super) streams: u32,
}

/// A turn of a key.
#[derive(Clone, Copy, Debug)]
pub(super) struct Turn {
    pub(super) key: Key,
    pub(super) round: u32,
    pub(super) figures: Figures,
}

/// What cannot be measured here, with the reason.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Missing {
    pub(super) path: PathName,
    pub(super) scope: PathScope,
    /// The work; none if it is the path itself.
    pub(super) work: Option<PathWork>,
    pub(super) reason: String,
}

/// All turns of a run.
#[derive(Clone, Debug, Default)]
pub(super) struct Outcome {
    pub(super) turns: Vec<Turn>,
    pub(super) missing: Vec<Missing>,
    /// Whether virtual interfaces were measured in place of a card's.
    pub(super) card_is_stand_in: bool,
}

impl Turn {
    /// The columns of the file of all turns.
    pub(super) const COLUMNS: [&'static str; 16] = [
        "path",
        "scope",
        "work",
        "streams",
        "round",
        "gbps",
        "cpu_s_per_gbit",
        "retransmits",
        "requests_per_s",
        "cpu_us_per_request",
        "ndr_pps",
        "pdr_pps",
        "overload_pps",
        "cpu_ns_per_packet",
        "p50_us",
        "p99_us",
    ];

    /// By column.
    pub(super) fn cells(&self) -> [String; 16] {
        let Turn { key, round, figures } = self;
        let cell = |value: Option<f64>| value.map_or(String::new(), |value| format!("{value:.6}"));
        [
            key.path.name().to_owned(),
            key.scope.name().to_owned(),
            key.work.name().to_owned(),
            key.streams.to_string(),
            round.to_string(),
            cell(figures.gbps),
            cell(figures.cpu_s_per_gbit),
            cell(figures.retransmits),
            cell(figures.requests_per_s),
            cell(figures.cpu_us_per_request),
            cell(figures.ndr_pps),
            cell(figures.pdr_pps),
            cell(figures.overload_pps),
            cell(figures.cpu_ns_per_packet),
            cell(figures.p50_us),
            cell(figures.p99_us),
        ]
    }

    /// In a line, while the bench runs.
    pub(super) fn line(&self) -> String {
        let of = &self.figures;
        let mut text = format!(
            "round {}: {}, {}, {}, {} at a time:",
            self.round,
            self.key.path.name(),
            self.key.scope.name(),
            self.key.work.name(),
            self.key.streams
        );
        let parts = [
            (of.gbps, "Gbit/s", 2),
            (of.cpu_s_per_gbit, "CPU s/Gbit", 4),
            (of.requests_per_s, "requests/s", 0),
            (of.ndr_pps, "pps NDR", 0),
            (of.pdr_pps, "pps PDR", 0),
            (of.overload_pps, "pps at twice that", 0),
            (of.cpu_ns_per_packet, "CPU ns/packet", 0),
        ];
        for (value, unit, digits) in parts {
            if let Some(value) = value {
                text.push_str(&format!(" {value:.digits$} {unit},"));
            }
        }
        text.trim_end_matches(',').to_owned()
    }
}

/// A row: the figures of a key.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) key: Key,
    pub(super) cost: Cost,
    pub(super) retransmits: Option<Figure>,
    pub(super) overload_pps: Option<Figure>,
}

impl Outcome {
    /// What was measured, in the order of the report.
    pub(super) fn rows(&self) -> Vec<Row> {
        let mut by_key: BTreeMap<Key, Vec<Figures>> = BTreeMap::new();
        for turn in &self.turns {
            by_key.entry(turn.key).or_default().push(turn.figures);
        }
        let mut rows: Vec<Row> = by_key.iter().map(|(key, turns)| Row::of(*key, turns)).collect();
        rows.sort_by_key(|row| {
            let Key {
                path,
                scope,
                work,
                streams,
            } = row.key;
            let place = PathName::ALL.iter().position(|of| *of == path);
            (work, scope, streams, place)
        });
        rows
    }

    /// A figure of one key ÷ that of another: the median of the rounds' ratios.
    pub(super) fn ratio(&self, of: Key, to: Key, figure: fn(&Figures) -> Option<f64>) -> Option<f64> {
        Figure::of(&self.ratios(of, to, figure)).map(|ratio| ratio.median)
    }

    /// A figure of one key ÷ that of another, in each round that has both.
    pub(super) fn ratios(&self, of: Key, to: Key, figure: fn(&Figures) -> Option<f64>) -> Vec<f64> {
        let value = |key: Key, round: u32| {
            let turn = self
                .turns
                .iter()
                .find(|turn| turn.key == key && turn.round == round)?;
            figure(&turn.figures)
        };
        let rounds = self
            .turns
            .iter()
            .filter(|turn| turn.key == of)
            .map(|turn| turn.round);
        rounds
            .filter_map(|round| Some(value(of, round)? / value(to, round).filter(|of| *of > 0.0)?))
            .collect()
    }

    /// The median of a figure.
    pub(super) fn median(&self, key: Key, figure: fn(&Figures) -> Option<f64>) -> Option<f64> {
        let turns = self.turns.iter().filter(|turn| turn.key == key);
        let values: Vec<f64> = turns.filter_map(|turn| figure(&turn.figures)).collect();
        Figure::of(&values).map(|of| of.median)
    }

    /// The document: a list of rows, and of what is missing.
    pub(super) fn json(&self) -> Value {
        let rows = self.rows();
        let comparisons = mixes::comparisons(self);
        let measured = rows.iter().map(|row| {
            let mut of = row.json();
            of.insert("stand_in".to_owned(), json!(self.stands_in(row.key.path)));
            let is_it = |of: &&Comparison| {
                (PathName::Hybrid, of.scope, of.work) == (row.key.path, row.key.scope, row.key.work)
            };
            if let Some(found) = comparisons.iter().find(is_it) {
                of.insert("best_static".to_owned(), json!(found.best.name()));
                of.insert("of_best_static".to_owned(), json!(found.ratio));
                of.insert("of_best_static_lower".to_owned(), json!(found.lower));
            }
            Value::Object(of)
        });
        let missing = self.missing.iter().map(|missing| {
            let mut row = empty();
            row.insert("path".to_owned(), json!(missing.path.name()));
            row.insert("scope".to_owned(), json!(missing.scope.name()));
            row.insert("work".to_owned(), json!(missing.work.map(PathWork::name)));
            row.insert("unavailable".to_owned(), json!(missing.reason));
            Value::Object(row)
        });
        measured.chain(missing).collect()
    }

    /// Whether figures of that path are those of a stand-in for a card.
    fn stands_in(&self, path: PathName) -> bool {
        self.card_is_stand_in && path.is_of_card()
    }

    /// The file that policies read. It has nothing of a stand-in.
    ///
    /// # Errors
    /// A figure is out of its range.
    pub(super) fn costs(&self) -> Result<String> {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let kernel = rustix::system::uname();
        let rows = self
            .rows()
            .into_iter()
            .filter(|row| !self.stands_in(row.key.path));
        let costs = rows.map(|row| row.cost).collect();
        let file = Costs::new(u32::try_from(cpus)?, kernel.release().to_string_lossy(), costs);
        let text = file.text()?;
        // What is written must be readable.
        Costs::parse(&text)?;
        Ok(text)
    }

    /// The table of one work; none without a row.
    pub(super) fn table(&self, work: PathWork) -> Option<Table> {
        let rows: Vec<Row> = self
            .rows()
            .into_iter()
            .filter(|row| row.key.work == work)
            .collect();
        if rows.is_empty() {
            return None;
        }
        let mut table = match work {
            PathWork::Tcp => Table::new(&[
                "path",
                "scope",
                ">streams",
                ">Gbit/s",
                ">from-to",
                ">CPU s/Gbit",
                ">from-to",
                ">retransmits",
            ]),
            PathWork::Requests | PathWork::Tiers => Table::new(&[
                "path",
                "scope",
                ">streams",
                ">requests/s",
                ">from-to",
                ">CPU us/request",
                ">p50 us",
                ">p99 us",
            ]),
            PathWork::Packets => Table::new(&[
                "path",
                "scope",
                ">flows",
                ">NDR pps",
                ">PDR pps",
                ">from-to",
                ">at 2x PDR",
                ">CPU ns/packet",
                ">p50 us",
                ">p99 us",
            ]),
            PathWork::MixLarge | PathWork::MixHalf | PathWork::MixSmall => Table::new(&[
                "path",
                "scope",
                ">large flows",
                ">CPU ns/packet",
                ">from-to",
                ">p50 us",
                ">p99 us",
            ]),
        };
        for row in rows {
            let of = &row.cost;
            let number = |figure: Option<Figure>, digits: usize| {
                or_dash(figure, |of| format!("{:.digits$}", of.median))
            };
            let range = |figure: Option<Figure>, digits: usize| {
                or_dash(figure, |of| format!("{:.digits$}-{:.digits$}", of.low, of.high))
            };
            let rate = |figure: Option<Figure>| or_dash(figure, |of| short(of.median));
            let rates = |figure: Option<Figure>| {
                or_dash(figure, |of| format!("{}-{}", short(of.low), short(of.high)))
            };
            let mut cells = vec![
                match self.stands_in(row.key.path) {
                    true => format!("{} (STAND-IN)", row.key.path.name()),
                    false => row.key.path.name().to_owned(),
                },
                row.key.scope.name().to_owned(),
                row.key.streams.to_string(),
            ];
            match work {
                PathWork::Tcp => cells.extend([
                    number(of.gbps, 2),
                    range(of.gbps, 2),
                    number(of.cpu_s_per_gbit, 4),
                    range(of.cpu_s_per_gbit, 4),
                    number(row.retransmits, 0),
                ]),
                PathWork::Requests | PathWork::Tiers => cells.extend([
                    rate(of.requests_per_s),
                    rates(of.requests_per_s),
                    number(of.cpu_us_per_request, 1),
                    number(of.p50_us, 0),
                    number(of.p99_us, 0),
                ]),
                PathWork::Packets => cells.extend([
                    rate(of.ndr_pps),
                    rate(of.pdr_pps),
                    rates(of.pdr_pps),
                    rate(row.overload_pps),
                    number(of.cpu_ns_per_packet, 0),
                    number(of.p50_us, 0),
                    number(of.p99_us, 0),
                ]),
                PathWork::MixLarge | PathWork::MixHalf | PathWork::MixSmall => cells.extend([
                    number(of.cpu_ns_per_packet, 0),
                    range(of.cpu_ns_per_packet, 0),
                    number(of.p50_us, 0),
                    number(of.p99_us, 0),
                ]),
            }
            table.row(cells);
        }
        Some(table)
    }

    /// `hybrid` beside the best path for all flows; none without both.
    pub(super) fn comparison_table(&self) -> Option<Table> {
        let comparisons = mixes::comparisons(self);
        if comparisons.is_empty() {
            return None;
        }
        let mut table = Table::new(&[
            "mix",
            "scope",
            "best path for all flows",
            ">hybrid / that",
            ">lower 95 %",
            ">rounds",
            mixes::LIMIT_HEADING,
        ]);
        for of in comparisons {
            table.row([
                of.work.name().to_owned(),
                of.scope.name().to_owned(),
                of.best.name().to_owned(),
                format!("{:.3}", of.ratio),
                or_dash(of.lower, |lower| format!("{lower:.3}")),
                of.rounds.to_string(),
                of.verdict().to_owned(),
            ]);
        }
        Some(table)
    }

    /// What was not measured, each with its reason; the same reason of several is one line.
    pub(super) fn reasons(&self) -> Vec<String> {
        let mut lines: Vec<String> = self
            .missing
            .iter()
            .map(|of| {
                let work = of.work.map_or(String::new(), |work| format!(", {}", work.name()));
                format!("{}, {}{work}: {}", of.path.name(), of.scope.name(), of.reason)
            })
            .collect();
        lines.dedup();
        lines
    }
}

/// A row of JSON in which nothing is known.
fn empty() -> Map<String, Value> {
    let figures = Cost::new("", path_costs::Scope::Local, path_costs::Work::Tcp, 1).figures();
    let names = figures.into_iter().map(|(name, _)| name);
    let all = [
        "path",
        "scope",
        "work",
        "streams",
        "retransmits",
        "overload_pps",
        "best_static",
        "of_best_static",
        "of_best_static_lower",
        "ranges",
        "stand_in",
        "unavailable",
    ];
    all.into_iter()
        .chain(names)
        .map(|name| (name.to_owned(), Value::Null))
        .collect()
}

impl Row {
    fn of(key: Key, turns: &[Figures]) -> Row {
        let figure = |of: fn(&Figures) -> Option<f64>| {
            let values: Vec<f64> = turns.iter().filter_map(of).collect();
            Figure::of(&values)
        };
        Row {
            key,
            cost: Cost {
                gbps: figure(|of| of.gbps),
                cpu_s_per_gbit: figure(|of| of.cpu_s_per_gbit),
                requests_per_s: figure(|of| of.requests_per_s),
                cpu_us_per_request: figure(|of| of.cpu_us_per_request),
                ndr_pps: figure(|of| of.ndr_pps),
                pdr_pps: figure(|of| of.pdr_pps),
                cpu_ns_per_packet: figure(|of| of.cpu_ns_per_packet),
                p50_us: figure(|of| of.p50_us),
                p99_us: figure(|of| of.p99_us),
                ..Cost::new(key.path.name(), key.scope.scope(), key.work.work(), key.streams)
            },
            retransmits: figure(|of| of.retransmits),
            overload_pps: figure(|of| of.overload_pps),
        }
    }

    fn json(&self) -> Map<String, Value> {
        #[derive(Serialize)]
        struct Range(f64, f64);
        let mut row = empty();
        row.insert("path".to_owned(), json!(self.key.path.name()));
        row.insert("scope".to_owned(), json!(self.key.scope.name()));
        row.insert("work".to_owned(), json!(self.key.work.name()));
        row.insert("streams".to_owned(), json!(self.key.streams));
        let mut ranges = Map::new();
        let figures = self.cost.figures().into_iter().chain([
            ("retransmits", self.retransmits),
            ("overload_pps", self.overload_pps),
        ]);
        for (name, figure) in figures {
            if let Some(of) = figure {
                row.insert(name.to_owned(), json!(of.median));
                ranges.insert(name.to_owned(), json!(Range(of.low, of.high)));
            }
        }
        row.insert("ranges".to_owned(), Value::Object(ranges));
        row
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn key(path: PathName, streams: u32) -> Key {
        Key {
            path,
            scope: PathScope::Local,
            work: PathWork::Tcp,
            streams,
        }
    }

    fn outcome() -> Outcome {
        let turn = |path, round, gbps| Turn {
            key: key(path, 4),
            round,
            figures: Figures {
                gbps: Some(gbps),
                cpu_s_per_gbit: Some(1.0 / gbps),
                retransmits: Some(7.0),
                ..Figures::default()
            },
        };
        Outcome {
            turns: vec![
                turn(PathName::Bridge, 1, 10.0),
                turn(PathName::Ebpf, 1, 20.0),
                turn(PathName::Bridge, 2, 40.0),
                turn(PathName::Ebpf, 2, 60.0),
                turn(PathName::Bridge, 3, 20.0),
            ],
            missing: vec![Missing {
                path: PathName::Ovs,
                scope: PathScope::Local,
                work: None,
                reason: "it is not installed".to_owned(),
            }],
            card_is_stand_in: false,
        }
    }

    #[test]
    fn a_stand_in_for_a_card_is_called_so_and_no_policy_reads_of_it() {
        let mut outcome = outcome();
        let device = Turn {
            key: key(PathName::Device, 4),
            ..outcome.turns[0]
        };
        outcome.turns.push(device);
        for is_stand_in in [false, true] {
            outcome.card_is_stand_in = is_stand_in;
            let json = outcome.json();
            let row = json
                .as_array()
                .unwrap()
                .iter()
                .find(|row| row["path"] == "device")
                .unwrap();
            assert_eq!(row["stand_in"], json!(is_stand_in));
            assert_eq!(json[0]["stand_in"], json!(false));
            let table = outcome.table(PathWork::Tcp).unwrap().text();
            assert_eq!(table.contains("device (STAND-IN)"), is_stand_in);
            let costs = Costs::parse(&outcome.costs().unwrap()).unwrap().costs;
            assert_eq!(costs.iter().any(|cost| cost.path == "device"), !is_stand_in);
        }
    }

    #[test]
    fn rows_have_medians_and_ranges_and_what_is_missing_has_a_reason() {
        let json = outcome().json();
        let row = &json[0];
        assert_eq!((&row["path"], &row["streams"]), (&json!("bridge"), &json!(4)));
        assert_eq!(
            (&row["gbps"], &row["ranges"]["gbps"]),
            (&json!(20.0), &json!([10.0, 40.0]))
        );
        assert_eq!(row["retransmits"], json!(7.0));
        for name in ["requests_per_s", "p50_us", "p99_us", "unavailable"] {
            assert!(
                row[name].is_null() && row.as_object().is_some_and(|row| row.contains_key(name)),
                "{name}"
            );
        }
        let missing = &json[2];
        assert_eq!(
            (&missing["path"], &missing["scope"]),
            (&json!("ovs"), &json!("local"))
        );
        assert!(missing["gbps"].is_null() && missing["streams"].is_null());
        assert_eq!(missing["unavailable"], json!("it is not installed"));
        assert!(
            outcome()
                .table(PathWork::Tcp)
                .is_some_and(|table| table.text().contains("10.00-40.00"))
        );
        assert!(outcome().table(PathWork::Packets).is_none());
        assert_eq!(outcome().reasons(), ["ovs, local: it is not installed"]);
    }

    #[test]
    fn ratios_are_of_the_same_round() {
        let (ebpf, bridge) = (key(PathName::Ebpf, 4), key(PathName::Bridge, 4));
        assert_eq!(outcome().ratio(ebpf, bridge, |of| of.gbps), Some(1.75));
        assert_eq!(outcome().ratio(key(PathName::Ovs, 4), bridge, |of| of.gbps), None);
        assert_eq!(outcome().median(bridge, |of| of.gbps), Some(20.0));
    }

    #[test]
    fn the_file_of_costs_is_read_back() {
        let costs = Costs::parse(&outcome().costs().unwrap()).unwrap();
        assert_eq!(costs.costs.len(), 2);
        assert_eq!(
            (costs.costs[0].path.as_str(), costs.costs[0].streams),
            ("bridge", 4)
        );
    }
}
