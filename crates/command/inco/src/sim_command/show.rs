//! A scenario's result as text and as JSON.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::Serialize;
use serde_json::{Value, json};
use simulation::{Checked, Decision, Figure, Point, ScenarioResult, SweepPoint, VariantResult};

use display::table::{Table, short};

/// The columns of a table: metric and heading. The models of events and of clusters have their own.
const COLUMNS: [(&str, &str); 25] = [
    ("offered_packets", ">offered"),
    ("lost_packets", ">lost"),
    ("lost_share", ">loss ratio"),
    ("throughput_pps_max", ">most pps"),
    ("throughput_pps_end", ">pps at end"),
    ("instance_s", ">instance-s"),
    ("active_mean", ">active"),
    ("active_max", ">most"),
    ("changes", ">changes"),
    ("changes_per_min_max", ">/min"),
    ("jain_mean", ">jain"),
    ("latency_us_mean", ">mean us"),
    ("latency_us_p50", ">p50 us"),
    ("latency_us_p99", ">p99 us"),
    ("new_flows", ">new flows"),
    ("broken_flows", ">broken"),
    ("failed_over_flows", ">failed over"),
    ("drain_moved_flows", ">by deadline"),
    ("looked_up_flows", ">looked up"),
    ("extra_hops_per_flow", ">hops/flow"),
    ("agreement_bytes_per_flow", ">bytes/flow"),
    ("machine_max_min_mean", ">max/min"),
    ("machine_utilisation_max", ">fullest"),
    ("drain_s_max", ">drain s"),
    ("cluster_lost_packets", ">packets lost"),
];

/// A figure with its confidence interval, if there is one.
pub(super) fn figure(name: &str, figure: &Figure) -> String {
    let one = |value: f64| match name {
        "lost_share" if value == 0.0 => "0".to_owned(),
        "lost_share" => format!("{:.4}%", value * 100.0),
        "jain_mean" | "extra_hops_per_flow" | "machine_max_min_mean" | "machine_utilisation_max" => {
            format!("{value:.3}")
        }
        _ => short(value),
    };
    if figure.half_width > 0.0 {
        format!("{} ±{}", one(figure.mean), one(figure.half_width))
    } else {
        one(figure.mean)
    }
}

/// The table and the result of the expectation.
pub(super) fn text(result: &ScenarioResult) -> String {
    let mut text = format!(
        "{}: simulated, {} s, {}\n",
        result.name,
        short(result.duration_s),
        seeds(result.seeds)
    );
    text.push_str(&table(result).text());
    if !result.expected.is_empty() {
        let _ = write!(text, "\nExpected: {}\n", one_line(&result.expected));
        for (nth, check) in result.checks.iter().enumerate() {
            if check.calibration && (nth == 0 || !result.checks[nth - 1].calibration) {
                text.push_str("Calibration, which follows from the scenario's own input:\n");
            }
            let _ = writeln!(
                text,
                "  {} {} ({} and {})",
                if check.met { "met    " } else { "NOT MET" },
                check.check,
                exact(check.left),
                exact(check.right)
            );
        }
    }
    text
}

/// One line per variant.
fn table(result: &ScenarioResult) -> Table {
    let columns: Vec<(&str, &'static str)> = COLUMNS
        .into_iter()
        .filter(|(metric, _)| {
            result
                .variants
                .iter()
                .any(|variant| variant.metrics.contains_key(*metric))
        })
        .collect();
    let mut headings = vec!["variant"];
    headings.extend(columns.iter().map(|(_, heading)| *heading));
    let mut table = Table::new(&headings);
    for variant in &result.variants {
        let name = label(result, variant);
        let cells = columns.iter().map(|(metric, _)| {
            variant
                .metrics
                .get(*metric)
                .map_or_else(|| "-".to_owned(), |of| figure(metric, of))
        });
        table.row(std::iter::once(name).chain(cells));
    }
    table
}

/// The table's cells, headings first.
pub(super) fn rows(result: &ScenarioResult) -> Vec<Vec<String>> {
    table(result).cells()
}

/// One variant in JSON. The series are serialised without a copy: an hour with 64 instances has some hundred thousand
/// figures, which would take 40 MB as JSON values.
#[derive(Serialize)]
struct WrittenVariant<'a> {
    name: &'a str,
    metrics: &'a BTreeMap<String, Figure>,
    decisions: &'a [Decision],
    series: &'a [Point],
}

#[derive(Serialize)]
struct WrittenExpectation<'a> {
    met: bool,
    what: String,
    checks: &'a [Checked],
}

/// The whole result in JSON.
#[derive(Serialize)]
pub(super) struct Written<'a> {
    simulated: bool,
    scenario: &'a str,
    about: String,
    source: &'a str,
    duration_s: f64,
    seeds: u64,
    variants: Vec<WrittenVariant<'a>>,
    expectation: WrittenExpectation<'a>,
}

/// The result as JSON.
pub(super) fn json(result: &ScenarioResult) -> Written<'_> {
    let variants = result.variants.iter().map(|variant| WrittenVariant {
        name: &variant.name,
        metrics: &variant.metrics,
        decisions: &variant.first.decisions,
        series: &variant.first.series,
    });
    Written {
        simulated: true,
        scenario: &result.name,
        about: one_line(&result.about),
        source: &result.source,
        duration_s: result.duration_s,
        seeds: result.seeds,
        variants: variants.collect(),
        expectation: WrittenExpectation {
            met: result.is_met(),
            what: one_line(&result.expected),
            checks: &result.checks,
        },
    }
}

/// The pairs of variants with the same name; if each scenario has only one, these two.
pub(super) fn pairs<'a>(
    a: &'a ScenarioResult,
    b: &'a ScenarioResult,
) -> Vec<(&'a VariantResult, &'a VariantResult)> {
    if let ([a], [b]) = (a.variants.as_slice(), b.variants.as_slice()) {
        return vec![(a, b)];
    }
    let of = |name: &str| b.variants.iter().find(|variant| variant.name == name);
    a.variants
        .iter()
        .filter_map(|variant| Some((variant, of(&variant.name)?)))
        .collect()
}

/// The figures of two scenarios side by side.
pub(super) fn compared(a: &ScenarioResult, b: &ScenarioResult) -> String {
    let mut text = format!(
        "{} and {}: simulated, {} and {}\n",
        a.name,
        b.name,
        seeds(a.seeds),
        seeds(b.seeds)
    );
    for (one, other) in pairs(a, b) {
        if !one.name.is_empty() || !other.name.is_empty() {
            let _ = writeln!(text, "\n{} and {}", label(a, one), label(b, other));
        }
        text.push_str(&differences(one, other).text());
    }
    text
}

/// One line per metric that both have and that is not 0 in both.
pub(super) fn differences(one: &VariantResult, other: &VariantResult) -> Table {
    let mut table = Table::new(&["metric", ">a", ">b", ">difference"]);
    for (name, left) in &one.metrics {
        let Some(right) = other.metrics.get(name) else {
            continue;
        };
        if left.mean == 0.0 && right.mean == 0.0 {
            continue;
        }
        let difference = if left.mean == 0.0 {
            "-".to_owned()
        } else {
            format!("{:+.1}%", (right.mean / left.mean - 1.0) * 100.0)
        };
        table.row([name.clone(), figure(name, left), figure(name, right), difference]);
    }
    table
}

/// The same in JSON.
pub(super) fn compared_json(a: &ScenarioResult, b: &ScenarioResult) -> Value {
    let pairs: Vec<Value> = pairs(a, b)
        .into_iter()
        .map(|(one, other)| {
            json!({
                "a": {"scenario": a.name, "variant": one.name, "metrics": one.metrics},
                "b": {"scenario": b.name, "variant": other.name, "metrics": other.metrics},
            })
        })
        .collect();
    json!({"simulated": true, "pairs": pairs})
}

pub(super) fn label(result: &ScenarioResult, variant: &VariantResult) -> String {
    if variant.name.is_empty() {
        result.name.clone()
    } else {
        variant.name.clone()
    }
}

fn seeds(count: u64) -> String {
    if count == 1 {
        "one run of each variant".to_owned()
    } else {
        format!("{count} seeds")
    }
}

/// The combinations of a sweep, in ascending order of loss.
pub(super) fn swept(points: &[SweepPoint]) -> String {
    let mut order: Vec<&SweepPoint> = points.iter().collect();
    order.sort_by(|a, b| {
        let (a, b) = (a.costs(), b.costs());
        a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1))
    });
    let mut table = Table::new(&[
        "",
        "variant",
        "set",
        ">lost",
        ">loss ratio",
        ">instance-s",
        ">changes",
    ]);
    for point in order {
        let of = |name: &str| {
            point
                .metrics
                .get(name)
                .map_or_else(|| "-".to_owned(), |of| figure(name, of))
        };
        table.row([
            if point.on_front { "*" } else { "" }.to_owned(),
            point.variant.clone(),
            settings(point),
            of("lost_packets"),
            of("lost_share"),
            of("instance_s"),
            of("changes"),
        ]);
    }
    format!(
        "simulated; * on the Pareto front: no other one loses fewer packets without more instance-time\n{}",
        table.text()
    )
}

/// The settings of a combination.
pub(super) fn settings(point: &SweepPoint) -> String {
    let set = point.set.iter().map(|(key, value)| format!("{key}={value}"));
    set.collect::<Vec<_>>().join(" ")
}

/// A figure with enough digits for the result of a check.
fn exact(value: f64) -> String {
    let digits = if value.fract() == 0.0 || value.abs() >= 1e6 {
        0
    } else {
        6
    };
    let text = format!("{value:.digits$}");
    if digits == 0 {
        text
    } else {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    }
}

/// Joins lines into one.
pub(super) fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
