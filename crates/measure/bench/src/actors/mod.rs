//! `inco bench actors`: the parts under iPipe's actors, beside the paper's figures.
//!
//! Key types: [`Row`] (one figure with its limit), [`Outcome`] (the rows of an experiment, and what they cannot show).
//!
//! A new experiment gets a file here with a function `measure`, a word in [`ActorsExperiment`], and a line in [`run`].

mod characterisation;
mod cores;
mod crash;
mod dispatch;
mod isolation;
mod migrate;
#[cfg(feature = "wasm")]
mod modules;
mod neighbours;
mod overhead;
mod ring;
mod scheduler;
mod store;
mod table3;

use std::borrow::Cow;

use anyhow::Result;
use display::output;
use display::table::Table;
use serde::Serialize;

use crate::args::{ActorsArgs, ActorsExperiment};
use crate::contestant::median;

/// A figure of an experiment.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Row {
    experiment: &'static str,
    /// What was measured, in words.
    case: String,
    value: f64,
    unit: &'static str,
    /// What the value must reach, or stay below; absent for a figure that nothing is promised of.
    limit: Option<f64>,
    /// Whether it does.
    met: Option<bool>,
    /// The least and the greatest value of all rounds; the value is their median. The table has it, JSON does not.
    #[serde(skip)]
    range: Option<[f64; 2]>,
    /// The figure of the paper, in words.
    #[serde(skip)]
    paper: Cow<'static, str>,
}

impl Row {
    /// A figure that nothing is promised of.
    fn plain(case: impl Into<String>, value: f64, unit: &'static str) -> Row {
        Row {
            experiment: "",
            case: case.into(),
            value,
            unit,
            limit: None,
            met: None,
            range: None,
            paper: Cow::Borrowed(""),
        }
    }

    /// The median of these rounds.
    fn rounds(case: impl Into<String>, rounds: &[f64], unit: &'static str) -> Row {
        let least = rounds.iter().copied().fold(f64::INFINITY, f64::min);
        let greatest = rounds.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        Row {
            range: Some([least, greatest]),
            ..Row::plain(case, median(rounds.iter().copied()), unit)
        }
    }

    /// Its value must be at least that.
    fn at_least(self, limit: f64) -> Row {
        let met = self.value >= limit;
        self.judged(limit, met)
    }

    /// Its value must be at most that.
    fn at_most(self, limit: f64) -> Row {
        let met = self.value <= limit;
        self.judged(limit, met)
    }

    /// Its value must be below that.
    fn below(self, limit: f64) -> Row {
        let met = self.value < limit;
        self.judged(limit, met)
    }

    fn judged(self, limit: f64, met: bool) -> Row {
        Row {
            limit: Some(limit),
            met: Some(met),
            ..self
        }
    }

    /// What the paper says of it.
    fn paper(self, paper: impl Into<Cow<'static, str>>) -> Row {
        Row {
            paper: paper.into(),
            ..self
        }
    }
}

/// What an experiment found.
struct Outcome {
    rows: Vec<Row>,
    /// What a stand-in for a card cannot show, and what is a model.
    note: Cow<'static, str>,
}

pub(super) use isolation::serve as serve_group;

/// Runs the bench.
pub(super) fn run(args: &ActorsArgs) -> Result<()> {
    let (name, outcome) = match args.experiment {
        ActorsExperiment::Migrate => ("migrate", migrate::measure()?),
        ActorsExperiment::Ring => ("ring", ring::measure()?),
        ActorsExperiment::Scheduler => ("scheduler", scheduler::measure()?),
        ActorsExperiment::Dispatch => ("dispatch", dispatch::measure()?),
        ActorsExperiment::Isolation => ("isolation", isolation::measure()?),
        ActorsExperiment::Overhead => ("overhead", overhead::measure()?),
        ActorsExperiment::Store => ("store", store::measure()?),
        ActorsExperiment::Crash => ("crash", crash::measure()?),
        ActorsExperiment::Cores => ("cores", cores::measure()?),
        ActorsExperiment::Table3 => ("table3", table3::measure()?),
        ActorsExperiment::Characterisation => ("characterisation", characterisation::measure()),
    };
    let mut rows = outcome.rows;
    for row in &mut rows {
        row.experiment = name;
    }
    if args.json {
        return output::json(&rows, output::is_terminal());
    }
    output::text(&table(&rows).text())?;
    output::line(outcome.note)
}

fn table(rows: &[Row]) -> Table {
    let mut table = Table::new(&["case", ">value", ">range", "unit", ">limit", "met", "paper"]);
    for row in rows {
        table.row([
            row.case.clone(),
            number(row.value),
            row.range.map_or("-".to_owned(), |[least, greatest]| {
                format!("{} to {}", number(least), number(greatest))
            }),
            row.unit.to_owned(),
            row.limit.map_or("-".to_owned(), number),
            match row.met {
                None => "-",
                Some(true) => "yes",
                Some(false) => "no",
            }
            .to_owned(),
            if row.paper.is_empty() { "-" } else { &row.paper }.to_owned(),
        ]);
    }
    table
}

/// Waits a little for the other thread: it polls, and leaves the CPU to others only if nothing comes for long.
#[derive(Default)]
struct Patience {
    idle: u32,
}

impl Patience {
    /// Polls before it leaves the CPU: about a tenth of a millisecond.
    const POLLS: u32 = 2_000;

    /// Something came.
    fn reset(&mut self) {
        self.idle = 0;
    }

    /// Nothing came.
    fn wait(&mut self) {
        self.idle += 1;
        if self.idle < Patience::POLLS {
            std::hint::spin_loop();
        } else {
            self.idle = 0;
            std::thread::yield_now();
        }
    }
}

/// A key that no one else knows.
fn random_key() -> Result<u32> {
    let mut key = [0; 4];
    rustix::rand::getrandom(&mut key, rustix::rand::GetRandomFlags::empty())?;
    Ok(u32::from_ne_bytes(key))
}

/// A number with as many digits as say something.
fn number(value: f64) -> String {
    if value == 0.0 || (value.fract() == 0.0 && value.abs() < 1e6) {
        format!("{value:.0}")
    } else if value.abs() < 1e-3 {
        format!("{value:.2e}")
    } else if value.abs() < 1e6 {
        format!("{value:.2}")
    } else {
        display::table::short(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_of_rounds_has_their_median_and_range() {
        let row = Row::rounds("ratio", &[3.0, 1.0, 2.0], "ratio").below(2.5);
        assert_eq!(
            (row.value, row.range, row.met),
            (2.0, Some([1.0, 3.0]), Some(true))
        );
        assert!(table(std::slice::from_ref(&row)).text().contains("1 to 3"));
        // In JSON all rows have the same keys.
        assert_eq!(
            serde_json::to_string(&row).unwrap(),
            r#"{"experiment":"","case":"ratio","value":2.0,"unit":"ratio","limit":2.5,"met":true}"#
        );
    }

    #[test]
    fn a_row_without_a_limit_has_null_for_it() {
        let row = Row::plain("messages", 3.0, "1/s").paper("none");
        assert_eq!(
            serde_json::to_string(&row).unwrap(),
            r#"{"experiment":"","case":"messages","value":3.0,"unit":"1/s","limit":null,"met":null}"#
        );
    }
}
