//! A scenario's result, or a sweep's, as a page with plots.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use model::InstanceId;
use simulation::{Point, ScenarioResult, SweepPoint, VariantResult};

use super::show;
use display::chart::{Chart, NEUTRAL, Series, Style, escape};
use display::page;

/// Maximum number of instances in a plot: those with the lowest ids.
const INSTANCES_SHOWN: usize = 16;
/// Maximum number of decisions of a variant on the page.
const DECISIONS_SHOWN: usize = 200;

/// The page of a scenario's result.
pub(super) fn of_run(result: &ScenarioResult) -> String {
    let mut page = page::begin(&format!("{}, simulated", result.name));
    let _ = write!(
        page,
        "<h1>{}, simulated</h1><p>{}</p><p>{}</p><p>Every figure and plot on this page is simulated, not measured: \
         the policies, windows and the controller are those of inco, flows and instances are modelled. Plots show \
         the first seed.</p>",
        escape(&result.name),
        escape(&show::one_line(&result.about)),
        escape(&result.source),
    );
    page::table(&mut page, &show::rows(result));
    if !result.expected.is_empty() {
        let _ = write!(
            page,
            "<h2>Expected</h2><p>{}</p><p>{}</p><ul>",
            escape(&show::one_line(&result.expected)),
            if result.is_met() {
                "The expectation is met."
            } else {
                "The expectation is not met."
            }
        );
        for check in &result.checks {
            let met = if check.met { "met" } else { "not met" };
            let kind = if check.calibration { "calibration: " } else { "" };
            let _ = write!(page, "<li>{kind}{}: {met}</li>", escape(&check.check));
        }
        page.push_str("</ul>");
    }
    let words = "Served, lost and instances over time, simulated; what is offered is the same for all.";
    page::section(&mut page, "All variants", words, together(result));
    let each = result.variants.iter().flat_map(per_instance).collect();
    let words = "Flows pinned to each instance and what it processes, simulated.";
    page::section(&mut page, "Instances", words, each);
    page.push_str("<h2>Decisions</h2>");
    for variant in &result.variants {
        decisions(&mut page, variant);
    }
    page::end(page)
}

/// The page of two scenarios: the figures and plots of each pair of variants.
pub(super) fn of_compared(a: &ScenarioResult, b: &ScenarioResult) -> String {
    let title = format!("{} and {}, simulated", a.name, b.name);
    let mut page = page::begin(&title);
    let _ = write!(
        page,
        "<h1>{}</h1><p>a: {}</p><p>b: {}</p><p>Every figure and plot on this page is simulated, not measured. Plots \
         show the first seed.</p>",
        escape(&title),
        escape(&show::one_line(&a.about)),
        escape(&show::one_line(&b.about)),
    );
    for (one, other) in show::pairs(a, b) {
        let names = [
            format!("a: {}", show::label(a, one)),
            format!("b: {}", show::label(b, other)),
        ];
        let _ = write!(page, "<h2>{}</h2>", escape(&names.join(", ")));
        page::table(&mut page, &show::differences(one, other).cells());
        let [one_name, other_name] = &names;
        let charts = over_time(&[(one_name, one), (other_name, other)]);
        page::section(
            &mut page,
            "Over time",
            "Served, lost and instances over time, simulated.",
            charts,
        );
    }
    page::end(page)
}

fn together(result: &ScenarioResult) -> Vec<Chart> {
    let variants: Vec<_> = result
        .variants
        .iter()
        .map(|variant| (name(variant), variant))
        .collect();
    let mut charts = over_time(&variants);
    if let (Some(served), Some(first)) = (charts.first_mut(), result.variants.first()) {
        let offered = first
            .first
            .series
            .iter()
            .map(|point| (point.at_s, point.offered_pps));
        served
            .series
            .push(Series::new("offered", NEUTRAL, offered.collect()).dashed());
    }
    charts
}

/// Plots over time: served, lost, active and target, with one line per variant.
fn over_time(variants: &[(&str, &VariantResult)]) -> Vec<Chart> {
    let series = |pick: fn(&Point) -> f64| -> Vec<Series> {
        let of = |(place, (name, variant)): (usize, &(&str, &VariantResult))| {
            let points = variant.first.series.iter().map(|point| (point.at_s, pick(point)));
            Series::new(*name, place, points.collect())
        };
        variants.iter().enumerate().map(of).collect()
    };
    let chart = |title: &str, y, style, series| Chart {
        title: title.to_owned(),
        x: "s",
        y,
        style,
        series,
    };
    vec![
        chart(
            "Served (simulated)",
            "packets/s",
            Style::Line,
            series(|point| point.served_pps),
        ),
        chart(
            "Lost (simulated)",
            "packets/s",
            Style::Line,
            series(|point| point.lost_pps),
        ),
        chart(
            "Active instances (simulated)",
            "instances",
            Style::Step,
            series(|point| f64::from(point.active)),
        ),
        chart(
            "Instances wanted (simulated)",
            "instances",
            Style::Step,
            series(|point| f64::from(point.wanted)),
        ),
    ]
}

fn per_instance(variant: &VariantResult) -> Vec<Chart> {
    let ids: BTreeSet<InstanceId> = variant
        .first
        .series
        .iter()
        .flat_map(|p| &p.instances)
        .map(|i| i.id)
        .collect();
    let series = |pick: fn(&simulation::InstancePoint) -> f64| -> Vec<Series> {
        let of = |(place, id): (usize, &InstanceId)| {
            let points = variant.first.series.iter().map(|point| {
                let instance = point.instances.iter().find(|instance| instance.id == *id);
                (point.at_s, instance.map_or(0.0, pick))
            });
            Series::new(id.0.to_string(), place, points.collect())
        };
        ids.iter().take(INSTANCES_SHOWN).enumerate().map(of).collect()
    };
    let chart = |title: String, y, style, series| Chart {
        title,
        x: "s",
        y,
        style,
        series,
    };
    vec![
        chart(
            format!("{}: flows of each instance, stacked (simulated)", name(variant)),
            "flows",
            Style::Stack,
            series(|instance| instance.flows),
        ),
        chart(
            format!(
                "{}: packets/s that each instance processes (simulated)",
                name(variant)
            ),
            "packets/s",
            Style::Line,
            series(|instance| instance.served_pps),
        ),
    ]
}

fn decisions(page: &mut String, variant: &VariantResult) {
    let decisions = &variant.first.decisions;
    let _ = write!(
        page,
        "<details><summary>{}: {} decisions</summary>",
        escape(name(variant)),
        decisions.len()
    );
    let mut rows = vec![vec![
        "s".to_owned(),
        "from".to_owned(),
        "to".to_owned(),
        "why".to_owned(),
    ]];
    rows.extend(decisions.iter().take(DECISIONS_SHOWN).map(|decision| {
        vec![
            format!("{:.3}", decision.at_s),
            decision.from.to_string(),
            decision.to.to_string(),
            format!("{}: {}", decision.policy, decision.reason),
        ]
    }));
    page::table(page, &rows);
    page.push_str("</details>");
}

fn name(variant: &VariantResult) -> &str {
    if variant.name.is_empty() {
        "it"
    } else {
        &variant.name
    }
}

/// The page of a sweep.
pub(super) fn of_sweep(scenario: &str, points: &[SweepPoint]) -> String {
    let mut page = page::begin("sweep, simulated");
    let _ = write!(
        page,
        "<h1>Sweep of {}, simulated</h1><p>Each point is a combination of parameters. A combination is on the \
         Pareto front if no other one loses fewer packets without more instance-time.</p>",
        escape(scenario)
    );
    let place = |point: &SweepPoint| {
        let (lost, instance_s) = point.costs();
        (instance_s, lost)
    };
    let mut front: Vec<(f64, f64)> = points.iter().filter(|point| point.on_front).map(place).collect();
    front.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut series = vec![Series::new("Pareto front", 0, front)];
    // Each other point is its own series, so that no line connects them.
    for point in points.iter().filter(|point| !point.on_front) {
        series.push(Series::new(show::settings(point), NEUTRAL, vec![place(point)]));
    }
    let chart = Chart {
        title: "Packets lost over instance-seconds (simulated)".to_owned(),
        x: "instance-s",
        y: "packets lost",
        style: Style::Points,
        series,
    };
    let words = "The lower and the further left, the better.";
    page::section(&mut page, "Loss against instance-time", words, vec![chart]);
    let mut rows = vec![
        ["variant", "set", "lost packets", "instance-s", "Pareto front"]
            .map(str::to_owned)
            .to_vec(),
    ];
    rows.extend(points.iter().map(|point| {
        let (lost, instance_s) = point.costs();
        vec![
            point.variant.clone(),
            show::settings(point),
            format!("{lost:.0}"),
            format!("{instance_s:.1}"),
            if point.on_front { "yes" } else { "" }.to_owned(),
        ]
    }));
    page::table(&mut page, &rows);
    page::end(page)
}
