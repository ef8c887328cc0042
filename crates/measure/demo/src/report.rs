//! The report: one self-contained HTML page for screens and phones, light or dark.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use model::{EventKind, InstanceId, InstanceState};

use super::experiment::{Experiment, FLOWS, INSTANCES};
use super::full::{Figures, Step};
use super::measure::{Recording, Sample};
use super::overload;
use super::summary::Summary;
use display::chart::{Chart, NEUTRAL, Series, Style, escape};
use display::event::event_sentence;
use display::page::{self, section, table};
use display::table::short;

/// Maximum number of events of a run on the page.
const EVENTS_LIMIT: usize = 400;

/// The page as HTML.
pub(super) fn html(summary: &Summary, experiment: &Experiment, runs: &[(String, Recording)]) -> String {
    let mut page = page::begin("inco demo");
    introduction(&mut page, summary, experiment);
    table(&mut page, &summary.rows());
    section(
        &mut page,
        "Flows and load of each instance",
        "Figure 8 of SmartINCO's paper: returned packet rate and flows of each instance. Round-robin gives older \
         instances more flows, because they were active when the first flows arrived. Best-fit fills one instance \
         before it uses the next. Worst-fit balances the load as far as it can without moving flows. As in the \
         paper there is no slow start (inco's default is 1 s), and a full instance has its turn like any other (no \
         spill).",
        runs.iter()
            .flat_map(|(name, recording)| per_instance(name, recording, experiment))
            .collect(),
    );
    section(
        &mut page,
        "Throughput, loss and instances",
        "Figure 9 of the paper: all instances together. The offered load is the same in each run.",
        together(runs),
    );
    if let Some(full) = &summary.full {
        figures(&mut page, full);
    }
    if let Some(overload) = &summary.overload {
        let _ = write!(page, "<h2>{}</h2>", escape(overload::TITLE));
        table(&mut page, &overload.rows());
        let _ = write!(page, "<p>{}</p>", escape(overload::NOTE));
    }
    page.push_str("<h2>Events</h2>");
    for (name, recording) in runs {
        events(&mut page, name, recording);
    }
    if !summary.skipped.is_empty() {
        page.push_str("<h2>Not done</h2>");
        for skipped in &summary.skipped {
            let _ = write!(page, "<p>{}</p>", escape(skipped));
        }
    }
    page::end(page)
}

fn introduction(page: &mut String, summary: &Summary, experiment: &Experiment) {
    let (min, max, _) = INSTANCES;
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let top = short(summary.rate_per_flow_pps * f64::from(FLOWS));
    let _ = write!(
        page,
        "<h1>inco demo</h1><p>SmartINCO's experiment on this machine ({cpus} CPUs), with real containers. Packets \
         come in on an uplink, each new flow is given to one of several containers and stays there, every packet is \
         counted, containers come and go as the load moves, and the packets go back out.</p><p>One instance of \
         <code>{}</code> with a tenth of a CPU sustained {} packets/s; {} count as its capacity. {FLOWS} flows \
         of {} packets/s each came one by one, {} s apart, on {min} to {max} instances{}</p>",
        experiment.function_word(),
        short(summary.sustained_pps),
        short(summary.capacity_pps),
        short(summary.rate_per_flow_pps),
        experiment.interval.as_secs_f64(),
        match experiment.overload {
            true => format!(
                ". Together they offered {top} packets/s, where {max} instances can process {}: 150/42, as in the \
                 paper. What is too much is lost.",
                short(experiment.total_capacity_pps())
            ),
            false => format!(
                "; then all but a few ended. At the top they offered {top} packets/s, less than {max} instances can \
                 take, so that no packet need be lost, and more than they should have by the autoscaler's target, so \
                 that all {max} were wanted."
            ),
        }
    );
}

/// Rate and flows of each instance over time.
fn per_instance(name: &str, recording: &Recording, experiment: &Experiment) -> Vec<Chart> {
    let ids: BTreeSet<InstanceId> = recording
        .samples
        .iter()
        .flat_map(|sample| &sample.instances)
        .filter(|instance| instance.flows > 0 || instance.state == InstanceState::Active)
        .map(|instance| instance.id)
        .collect();
    // Stacked areas need a value for every instance at every time; lines need only existing values.
    let series = |pick: fn(&super::measure::InstanceNow) -> f64, absent: Option<f64>| -> Vec<Series> {
        let of = |id: InstanceId, sample: &Sample| {
            sample.instances.iter().find(|i| i.id == id).map(pick).or(absent)
        };
        let points = |id: InstanceId| {
            let samples = recording.samples.iter();
            samples
                .filter_map(|sample| Some((sample.at_s, of(id, sample)?)))
                .collect()
        };
        ids.iter()
            .enumerate()
            .map(|(place, id)| Series::new(id.0.to_string(), place, points(*id)))
            .collect()
    };
    let end = recording.samples.last().map_or(0.0, |sample| sample.at_s);
    let mut rates = series(|instance| instance.back_pps, None);
    let limit = vec![(0.0, experiment.capacity_pps), (end, experiment.capacity_pps)];
    rates.push(Series::new("capacity", NEUTRAL, limit).dashed());
    vec![
        Chart {
            title: format!("{name}: packets/s of each instance"),
            x: "s",
            y: "packets/s",
            style: Style::Line,
            series: rates,
        },
        Chart {
            title: format!("{name}: flows of each instance, stacked"),
            x: "s",
            y: "flows",
            style: Style::Stack,
            series: series(|instance| instance.flows as f64, Some(0.0)),
        },
    ]
}

/// Totals of all runs over time.
fn together(runs: &[(String, Recording)]) -> Vec<Chart> {
    let series = |pick: fn(&Sample) -> f64| -> Vec<Series> {
        runs.iter()
            .enumerate()
            .map(|(place, (name, recording))| {
                Series::new(
                    name,
                    place,
                    recording.samples.iter().map(|s| (s.at_s, pick(s))).collect(),
                )
            })
            .collect()
    };
    let mut throughput = series(|sample| sample.returned_pps);
    if let Some((_, recording)) = runs.first() {
        let offered = recording
            .samples
            .iter()
            .map(|s| (s.at_s, s.offered_pps))
            .collect();
        throughput.push(Series::new("offered", NEUTRAL, offered).dashed());
    }
    let lost = runs
        .iter()
        .enumerate()
        .map(|(place, (name, recording))| Series::new(name, place, lost_per_second(recording)))
        .collect();
    let chart = |title: &str, y, style, series| Chart {
        title: title.to_owned(),
        x: "s",
        y,
        style,
        series,
    };
    vec![
        chart("Returned packets/s", "packets/s", Style::Line, throughput),
        chart("Lost packets/s", "packets/s", Style::Line, lost),
        chart(
            "Active instances",
            "instances",
            Style::Step,
            series(|sample| f64::from(sample.active)),
        ),
        chart(
            "Target number of instances",
            "instances",
            Style::Step,
            series(|sample| f64::from(sample.wanted)),
        ),
        chart(
            "Latency, 99th percentile",
            "ms",
            Style::Line,
            series(|sample| sample.latency_us.p99 / 1e3),
        ),
    ]
}

/// Packets dropped per second: the switch's drops plus the packets lost at the uplink.
fn lost_per_second(recording: &Recording) -> Vec<(f64, f64)> {
    let total = |sample: &Sample| sample.drops.values().sum::<u64>() + sample.lost_at_uplink;
    let mut points = Vec::new();
    for pair in recording.samples.windows(2) {
        let [before, now] = pair else { continue };
        let passed = now.at_s - before.at_s;
        if passed > 0.0 {
            points.push((now.at_s, total(now).saturating_sub(total(before)) as f64 / passed));
        }
    }
    points
}

fn figures(page: &mut String, full: &Figures) {
    let points = |steps: &[Step], x: fn(&Step) -> f64, y: fn(&Step) -> f64| -> Vec<(f64, f64)> {
        steps.iter().map(|step| (x(step), y(step))).collect()
    };
    let lines = |title: &str, x, y, series| Chart {
        title: title.to_owned(),
        x,
        y,
        style: Style::Points,
        series,
    };
    let offered = |step: &Step| step.offered_pps;
    let returned = |step: &Step| step.returned_pps;
    let instances = |step: &Step| f64::from(step.instances);
    let size = |step: &Step| f64::from(step.size_bytes);
    let charts = vec![
        lines(
            "One instance (figure 6)",
            "offered packets/s",
            "packets/s",
            vec![
                Series::new("returned", 0, points(&full.saturation, offered, returned)),
                Series::new(
                    "lost",
                    1,
                    points(&full.saturation, offered, |step| step.loss * step.offered_pps),
                ),
            ],
        ),
        lines(
            "Increasing number of instances (figure 7)",
            "instances",
            "packets/s",
            vec![
                Series::new("together", 0, points(&full.instances, instances, returned)),
                Series::new(
                    "each",
                    2,
                    points(&full.instances, instances, |step| {
                        step.returned_pps / f64::from(step.instances.max(1))
                    }),
                ),
            ],
        ),
        lines(
            "Packet sizes, saturated (figure 10)",
            "bytes",
            "bit/s on the wire",
            vec![Series::new(
                "returned",
                0,
                points(&full.sizes, size, |step| step.returned_bps),
            )],
        ),
        lines(
            "Packet sizes, constant bit rate (figure 10)",
            "bytes",
            "instances",
            vec![Series::new(
                "instances",
                0,
                points(&full.sizes_scaled, size, instances),
            )],
        ),
    ];
    section(
        page,
        "Limits",
        "Saturation of one instance, scaling over several instances, and the effect of packet size. A function's \
         work is per packet, so large packets need fewer instances at the same bit rate.",
        charts,
    );
    for (title, rows) in full.tables() {
        let _ = write!(page, "<h3>{}</h3>", escape(title));
        table(page, &rows);
    }
}

fn events(page: &mut String, name: &str, recording: &Recording) {
    let all: Vec<_> = recording.events().collect();
    let mut kinds: BTreeMap<&str, usize> = BTreeMap::new();
    for (_, event) in &all {
        let kind = match event.kind {
            EventKind::Scaled { .. } => "scaling decisions",
            EventKind::State { .. } => "state changes",
            EventKind::Hot { .. } => "hot rings",
            EventKind::Failure { .. } => "failures",
            _ => "others",
        };
        *kinds.entry(kind).or_default() += 1;
    }
    let kinds: Vec<String> = kinds
        .iter()
        .map(|(kind, count)| format!("{count} {kind}"))
        .collect();
    let _ = write!(
        page,
        "<details><summary>{}: {}</summary><div class=\"scroll\"><table class=\"events\">",
        escape(name),
        escape(&kinds.join(", "))
    );
    for (at_s, event) in all.iter().take(EVENTS_LIMIT) {
        let _ = write!(
            page,
            "<tr><td>{at_s:.2} s</td><td>{}</td></tr>",
            escape(&event_sentence(event))
        );
    }
    page.push_str("</table></div>");
    if all.len() > EVENTS_LIMIT {
        let _ = write!(page, "<p>and {} more</p>", all.len() - EVENTS_LIMIT);
    }
    page.push_str("</details>");
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::summary::RunSummary;
    use super::super::summary::tests::recording;
    use super::*;

    fn page(full: bool) -> String {
        let names = ["round-robin", "best-fit"];
        let experiment = Experiment {
            schedulers: names.map(str::to_owned).to_vec(),
            capacity_pps: 9000.0,
            rate_per_flow: 1200.0,
            overload: false,
            interval: Duration::from_millis(500),
            keep_from: Duration::from_secs(20),
            duration: Duration::from_secs(30),
            function: None,
        };
        let step = Step {
            instances: 1,
            size_bytes: 64,
            offered_pps: 1e4,
            returned_pps: 9e3,
            ..Step::default()
        };
        let figures = Figures {
            saturation: vec![step.clone(), step.clone()],
            instances: vec![step.clone()],
            sizes: vec![step.clone()],
            sizes_scaled: vec![step],
            broken: Vec::new(),
        };
        let summary = Summary {
            runs: names
                .iter()
                .map(|name| RunSummary::of(&recording(), name, "oci", "forward"))
                .collect(),
            sustained_pps: 1e4,
            capacity_pps: 9e3,
            rate_per_flow_pps: 1200.0,
            full: full.then_some(figures),
            overload: None,
            skipped: vec!["a <thing>".to_owned()],
        };
        let runs: Vec<_> = names.iter().map(|name| (name.to_string(), recording())).collect();
        html(&summary, &experiment, &runs)
    }

    #[test]
    fn the_page_stands_alone_and_is_closed() {
        for full in [false, true] {
            let page = page(full);
            for outside in ["http:", "https:", "<script", "src=", "@import", "url("] {
                assert!(!page.contains(outside), "{outside}");
            }
            for tag in [
                "html", "body", "head", "style", "svg", "figure", "table", "div", "details", "p", "h2", "tr",
            ] {
                let opened =
                    page.matches(&format!("<{tag}>")).count() + page.matches(&format!("<{tag} ")).count();
                assert_eq!(opened, page.matches(&format!("</{tag}>")).count(), "<{tag}>");
            }
            assert!(page.contains("prefers-color-scheme:dark") && page.contains("width=device-width"));
            assert!(page.contains("a &lt;thing&gt;"));
        }
    }

    #[test]
    fn each_run_has_its_plots_and_all_have_common_ones() {
        let short = page(false);
        assert_eq!(short.matches("<svg").count(), 2 * 2 + 5);
        assert!(short.contains("round-robin: packets/s of each instance"));
        assert!(short.contains("best-fit: flows of each instance"));
        assert_eq!(page(true).matches("<svg").count(), 2 * 2 + 5 + 4);
    }

    #[test]
    fn loss_is_reported_per_second() {
        let mut recording = recording();
        recording.samples[1].drops = [("instance_ring_full".to_owned(), 8)].into();
        recording.samples[2].drops = [("instance_ring_full".to_owned(), 8)].into();
        recording.samples[3].drops = [("instance_ring_full".to_owned(), 9)].into();
        let points = lost_per_second(&recording);
        let near = |a: f64, b: f64| (a - b).abs() < 1e-6;
        assert!(
            near(points[0].1, 10.0) && near(points[1].1, 0.0) && near(points[2].1, 1.25),
            "{points:?}"
        );
    }
}
