//! The demo's results: figures for programs and a table for people.

use std::fmt::Write as _;

use api::types::ReactionTimes;
use model::InstanceState;
use serde::Serialize;

use super::experiment::{Calibration, Experiment, FLOWS};
use super::full::Figures;
use super::loss::Lost;
use super::measure::{Recording, Sample};
use super::overload::{self, Overload};
use display::table::{grouped, percent, short};

/// The whole result; the JSON of `inco demo --json`.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Summary {
    pub(super) runs: Vec<RunSummary>,
    /// Measured sustained rate of one instance, in packets per second.
    pub(super) sustained_pps: f64,
    /// Capacity of an instance used in the runs, in packets per second.
    pub(super) capacity_pps: f64,
    /// Rate of each flow, in packets per second.
    pub(super) rate_per_flow_pps: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) full: Option<Figures>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) overload: Option<Overload>,
    /// Skipped parts, with the reason.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) skipped: Vec<String>,
}

/// The result of one run.
#[derive(Clone, Debug, Serialize)]
pub(super) struct RunSummary {
    pub(super) scheduler: String,
    pub(super) engine: &'static str,
    pub(super) instance: &'static str,
    /// Forwarding mode, for programs with several modes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) mode: Option<&'static str>,
    pub(super) offered_packets: u64,
    pub(super) returned_packets: u64,
    /// With `--function`: packets that the function was given, by its own account.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) function_packets: Option<u64>,
    pub(super) lost: Lost,
    pub(super) mis_steered: u64,
    pub(super) expected_moves: u64,
    pub(super) duplicated: u64,
    pub(super) reordered: u64,
    pub(super) latency_us: Latency,
    pub(super) instances: Instances,
    /// Flows per instance at the peak, in the order of instance ids.
    pub(super) flows_per_instance: Vec<u64>,
    /// Median reaction times.
    pub(super) reaction_ms: ReactionMs,
    /// Maximum reaction times.
    pub(super) reaction_max_ms: ReactionMs,
    /// Returned packets per second: mean over the run, and maximum.
    pub(super) throughput_pps: Throughput,
    /// Packets that returned with unexpected changes.
    pub(super) altered: u64,
    /// Packets in flight at the end.
    pub(super) in_flight: u64,
    /// Control groups, processes and sockets that remained after the end.
    pub(super) left_behind: Vec<String>,
    /// The generator's own shortfalls.
    pub(super) generator: traffic::GeneratorLimits,
}

/// Latency in microseconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct Latency {
    pub(super) p50: f64,
    pub(super) p99: f64,
    pub(super) p999: f64,
}

/// Active instances.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct Instances {
    pub(super) start: u32,
    pub(super) peak: u32,
    pub(super) end: u32,
}

/// Reaction times of the control loop in milliseconds; absent if there was nothing to react to.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct ReactionMs {
    pub(super) detect: Option<f64>,
    pub(super) activate: Option<f64>,
    pub(super) create: Option<f64>,
}

/// Packets per second.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct Throughput {
    pub(super) mean: f64,
    pub(super) highest: f64,
}

impl RunSummary {
    pub(super) fn of(
        recording: &Recording,
        scheduler: &str,
        engine: &'static str,
        instance: &'static str,
    ) -> RunSummary {
        let counts = &recording.report.counts;
        let latency = recording.report.latency_us;
        let samples = &recording.samples;
        let active = |sample: Option<&Sample>| sample.map_or(0, |sample| sample.active);
        let reactions = &recording.status.reactions;
        let of = |pick: fn(&ReactionTimes) -> Option<f64>| ReactionMs {
            detect: pick(&reactions.detect),
            activate: pick(&reactions.activate),
            create: pick(&reactions.create),
        };
        RunSummary {
            scheduler: scheduler.to_owned(),
            engine,
            instance,
            mode: None,
            offered_packets: counts.offered_packets,
            returned_packets: counts.returned_packets,
            function_packets: recording.function_packets,
            lost: Lost::of(recording),
            mis_steered: recording.pins_moved.unwrap_or(counts.mis_steered),
            expected_moves: recording
                .status
                .accounting
                .expected_moves
                .max(counts.expected_moves),
            duplicated: counts.duplicated,
            reordered: counts.reordered,
            latency_us: Latency {
                p50: latency.p50,
                p99: latency.p99,
                p999: latency.p999,
            },
            instances: Instances {
                start: active(samples.first()),
                peak: samples
                    .iter()
                    .map(|sample| sample.active)
                    .max()
                    .unwrap_or_default(),
                end: active(samples.last()),
            },
            flows_per_instance: flows_at_peak(samples),
            reaction_ms: of(|times| times.p50_ms),
            reaction_max_ms: of(|times| times.max_ms),
            throughput_pps: Throughput {
                mean: recording.report.returned_pps,
                highest: samples
                    .iter()
                    .map(|sample| sample.returned_pps)
                    .fold(0.0, f64::max),
            },
            altered: counts.altered + counts.wrong_uplink + counts.foreign,
            in_flight: recording.status.accounting.in_flight,
            left_behind: recording.left.clone(),
            generator: recording.report.generator,
        }
    }

    /// The promises that the run broke, as sentences.
    pub(super) fn failed_checks(&self) -> Vec<String> {
        let counts = [
            ("packets mis-steered", self.mis_steered),
            // Nothing fails in the demo.
            ("flows moved", self.expected_moves),
            ("duplicated", self.duplicated),
            ("reordered", self.reordered),
            ("altered", self.altered),
            ("lost without a counter", self.lost.other.unsigned_abs()),
            ("still in flight", self.in_flight),
            ("left behind", self.left_behind.len() as u64),
            (
                "returned without passing the function",
                self.function_packets
                    .map_or(0, |packets| self.returned_packets.saturating_sub(packets)),
            ),
        ];
        let broken = counts.iter().filter(|(_, count)| *count > 0);
        broken
            .map(|(what, count)| format!("{} ({}): {count} {what}", self.instance, self.scheduler))
            .collect()
    }
}

/// Flows of each instance in the last sample with the maximum number of flows.
fn flows_at_peak(samples: &[Sample]) -> Vec<u64> {
    let most = samples
        .iter()
        .map(|sample| sample.flows)
        .max()
        .unwrap_or_default()
        .min(FLOWS as usize);
    let Some(peak) = samples
        .iter()
        .rev()
        .find(|sample| sample.flows >= most && most > 0)
    else {
        return Vec::new();
    };
    let serving = |state: InstanceState| matches!(state, InstanceState::Active | InstanceState::Draining);
    peak.instances
        .iter()
        .filter(|i| serving(i.state))
        .map(|i| i.flows)
        .collect()
}

impl Summary {
    pub(super) fn new(calibration: &Calibration, experiment: &Experiment) -> Summary {
        Summary {
            runs: Vec::new(),
            sustained_pps: calibration.sustained_pps.round(),
            capacity_pps: calibration.capacity_pps.round(),
            rate_per_flow_pps: experiment.rate_per_flow.round(),
            full: None,
            overload: None,
            skipped: Vec::new(),
        }
    }

    /// The promises that any run broke, as sentences.
    pub(super) fn failed_checks(&self) -> Vec<String> {
        let runs = self.runs.iter().flat_map(RunSummary::failed_checks);
        let figures = self
            .full
            .iter()
            .flat_map(|figures| figures.broken.iter().cloned());
        runs.chain(figures).collect()
    }

    /// Rows of the table: a heading per run, then the compared figures.
    pub(super) fn rows(&self) -> Vec<Vec<String>> {
        let row = |name: &str, cell: &dyn Fn(&RunSummary) -> String| {
            [name.to_owned()]
                .into_iter()
                .chain(self.runs.iter().map(cell))
                .collect::<Vec<_>>()
        };
        let ms = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |ms| format!("{ms:.1} ms"));
        let latency = |us: f64| format!("{:.2} ms", us / 1e3);
        let mut rows = vec![
            row("", &|run| run.scheduler.clone()),
            row("function", &|run| {
                [Some(run.instance), run.mode]
                    .into_iter()
                    .flatten()
                    .collect::<Vec<_>>()
                    .join(" ")
            }),
            row("packets offered", &|run| grouped(run.offered_packets)),
            row("packets returned", &|run| grouped(run.returned_packets)),
        ];
        if self.runs.iter().any(|run| run.function_packets.is_some()) {
            rows.push(row("  given to the function", &|run| {
                run.function_packets.map_or_else(|| "-".to_owned(), grouped)
            }));
        }
        rows.extend([
            row("throughput, mean", &|run| {
                format!("{}/s", short(run.throughput_pps.mean))
            }),
            row("throughput, highest", &|run| {
                format!("{}/s", short(run.throughput_pps.highest))
            }),
            row("lost", &|run| {
                format!(
                    "{} ({})",
                    run.lost.total(),
                    percent(run.lost.total() as f64 / run.offered_packets.max(1) as f64)
                )
            }),
            row("  instance's ring full", &|run| grouped(run.lost.ring)),
            row("  in the function", &|run| grouped(run.lost.function)),
            row("  with an instance", &|run| grouped(run.lost.instance_lost)),
            row("  before the uplink", &|run| grouped(run.lost.uplink)),
        ]);
        let reasons: std::collections::BTreeSet<&String> = self
            .runs
            .iter()
            .flat_map(|run| run.lost.by_reason.keys())
            .collect();
        for reason in reasons {
            let name = format!("  {}", reason.replace('_', " "));
            rows.push(row(&name, &|run| {
                grouped(run.lost.by_reason.get(reason).copied().unwrap_or_default())
            }));
        }
        rows.extend([
            row("  without a counter", &|run| run.lost.other.to_string()),
            row("latency p50", &|run| latency(run.latency_us.p50)),
            row("latency p99", &|run| latency(run.latency_us.p99)),
            row("latency p99.9", &|run| latency(run.latency_us.p999)),
            row("instances, start/peak/end", &|run| {
                format!(
                    "{}/{}/{}",
                    run.instances.start, run.instances.peak, run.instances.end
                )
            }),
            row("flows per instance", &|run| {
                run.flows_per_instance
                    .iter()
                    .map(u64::to_string)
                    .collect::<Vec<_>>()
                    .join(" ")
            }),
            row("mis-steered", &|run| grouped(run.mis_steered)),
            row("expected moves", &|run| grouped(run.expected_moves)),
            row("duplicated", &|run| grouped(run.duplicated)),
            row("reordered", &|run| grouped(run.reordered)),
            row("overload seen after", &|run| ms(run.reaction_ms.detect)),
            row("standby active after", &|run| ms(run.reaction_ms.activate)),
            row("container ready after", &|run| ms(run.reaction_ms.create)),
            row("left behind", &|run| run.left_behind.len().to_string()),
        ]);
        rows
    }

    /// The table, followed by the skipped parts.
    pub(super) fn text(&self) -> String {
        let mut text = String::from("\n");
        text.push_str(&side_by_side(&self.rows()));
        if let Some(full) = &self.full {
            for (title, rows) in full.tables() {
                let _ = write!(text, "\n{title}\n{}", side_by_side(&rows));
            }
        }
        if let Some(overload) = &self.overload {
            let _ = write!(
                text,
                "\n{}\n{}{}\n",
                overload::TITLE,
                side_by_side(&overload.rows()),
                overload::NOTE
            );
        }
        for skipped in &self.skipped {
            let _ = write!(text, "\nNot done: {skipped}\n");
        }
        text
    }
}

/// Aligns columns to their widest cell: the first column to the left, the others to the right.
fn side_by_side(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or_default();
    let width = |column: usize| {
        rows.iter()
            .filter_map(|row| row.get(column))
            .map(|cell| cell.chars().count())
            .max()
            .unwrap_or_default()
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
            let _ = match column {
                0 => write!(line, "{cell:<width$}"),
                _ => write!(line, "  {cell:>width$}"),
            };
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::measure::InstanceNow;
    use super::*;
    use model::InstanceId;

    /// A run of 1000 packets of which 30 did not return.
    pub(in super::super) fn recording() -> Recording {
        let mut recording = Recording::default();
        recording.report.counts.offered_packets = 1000;
        recording.report.counts.returned_packets = 970;
        recording.report.counts.lost_at_uplink = 2;
        recording.report.lost = 30;
        recording.status.drops = [
            ("instance_ring_full".to_owned(), 20),
            ("instance_lost".to_owned(), 5),
            ("no_instance".to_owned(), 3),
        ]
        .into();
        recording.status.reactions.activate.p50_ms = Some(0.25);
        recording.status.reactions.activate.max_ms = Some(2.5);
        for (at_s, active, flows) in [(0.2, 3, 1), (1.0, 8, 32), (1.2, 8, 32), (2.0, 3, 4)] {
            let instances = (1..=active).map(|id| InstanceNow {
                id: InstanceId(id),
                state: InstanceState::Active,
                back_pps: at_s * 100.0 + f64::from(id),
                flows: u64::from(flows / active + u32::from(id == 1 && at_s > 1.0)),
                ring_occupancy: 0.0,
            });
            recording.samples.push(Sample {
                at_s,
                active,
                wanted: active,
                flows: flows as usize,
                offered_pps: 1000.0,
                returned_pps: 900.0 + at_s,
                instances: instances.collect(),
                ..Sample::default()
            });
        }
        recording
    }

    #[test]
    fn every_lost_packet_has_its_place() {
        let mut recording = recording();
        let lost = Lost::of(&recording);
        assert_eq!(
            (lost.ring, lost.function, lost.instance_lost, lost.uplink),
            (20, 0, 5, 2)
        );
        assert_eq!(lost.by_reason, [("no_instance".to_owned(), 3)].into());
        assert_eq!((lost.other, lost.total()), (0, 30));
        let told = |packets| {
            let mut recording = recording.clone();
            recording.function_packets = packets;
            RunSummary::of(&recording, "best-fit", "oci", "firewall").failed_checks()
        };
        let at_least = told(Some(970));
        assert_eq!(
            (told(None), told(Some(999))),
            (at_least.clone(), at_least.clone())
        );
        assert_eq!(
            told(Some(960)).last().map(String::as_str),
            Some("firewall (best-fit): 10 returned without passing the function")
        );
        recording.report.lost = 33;
        assert_eq!(Lost::of(&recording).other, 3, "three that no counter saw");
        recording.report.lost = 29;
        assert_eq!(Lost::of(&recording).other, -1, "one counted twice");
    }

    #[test]
    fn a_run_is_summed_up_in_the_words_of_the_json() {
        let run = RunSummary::of(&recording(), "best-fit", "oci", "forward");
        let json = serde_json::to_value(&run).unwrap();
        for key in [
            "scheduler",
            "engine",
            "instance",
            "offered_packets",
            "returned_packets",
            "mis_steered",
            "expected_moves",
            "duplicated",
            "reordered",
        ] {
            assert!(!json[key].is_null(), "{key}");
        }
        assert_eq!(json["lost"]["ring"], 20);
        assert_eq!(json["lost"]["other"], 0);
        assert!(json["latency_us"]["p999"].is_number());
        assert_eq!(
            json["instances"],
            serde_json::json!({ "start": 3, "peak": 8, "end": 3 })
        );
        // The last sample with all flows.
        assert_eq!(
            json["flows_per_instance"],
            serde_json::json!([5, 4, 4, 4, 4, 4, 4, 4])
        );
        assert_eq!(
            json["reaction_ms"],
            serde_json::json!({ "detect": null, "activate": 0.25, "create": null })
        );
        assert!(run.failed_checks().is_empty());
    }

    #[test]
    fn a_failed_check_is_reported() {
        let mut recording = recording();
        recording.report.counts.mis_steered = 1;
        recording.report.counts.expected_moves = 4;
        recording.report.lost += 2;
        recording.left = vec!["process 7".to_owned()];
        let broken = RunSummary::of(&recording, "best-fit", "oci", "forward").failed_checks();
        assert_eq!(broken.len(), 4, "{broken:?}");
        assert!(broken[0].contains("1 packets mis-steered") && broken[1].contains("4 flows moved"));
        assert!(broken[2].contains("2 lost without a counter"));
    }

    #[test]
    fn runs_stand_side_by_side() {
        let run = |name: &str| RunSummary::of(&recording(), name, "oci", "forward");
        let summary = Summary {
            runs: vec![run("round-robin"), run("best-fit")],
            sustained_pps: 1.0,
            capacity_pps: 1.0,
            rate_per_flow_pps: 1.0,
            full: None,
            overload: None,
            skipped: vec!["dpdk-testpmd as instance".to_owned()],
        };
        let text = summary.text();
        let heading = text.lines().find(|line| line.contains("round-robin")).unwrap();
        assert!(heading.contains("best-fit"));
        let lost = text.lines().find(|line| line.starts_with("lost ")).unwrap();
        assert_eq!(lost.matches("30 (3.0%)").count(), 2);
        assert!(
            text.contains("no instance") && text.contains("3/8/3") && text.contains("Not done: dpdk-testpmd")
        );
    }
}
