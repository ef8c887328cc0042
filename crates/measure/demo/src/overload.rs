//! `--overload`: SmartINCO's experiment of §4.4, figures 8 and 9, on this machine. More is offered than all instances can
//! process, one more flow each second, for each scheduler.

use std::collections::{BTreeMap, BTreeSet};

use model::{InstanceId, InstanceState};
use serde::Serialize;

use super::experiment::{Experiment, FLOWS};
use super::measure::{Recording, Sample};
use display::table::{percent, short};

/// The heading of the figures.
pub(super) const TITLE: &str = "Overload, beside SmartINCO's figures 8 and 9 (\u{a7}4.4)";
/// What has to be known to compare them.
pub(super) const NOTE: &str = "The paper offers 150 Mpps and processes 42, so that 108 are lost; the 22 Mpps that it \
     counts as dropped are those of its rules alone. 9 flows of 150/32 Mpps are its 42 Mpps.";
/// Loss has started with the first number of flows of whose packets this share is lost. Fewer are lost for a moment when
/// an instance starts.
const LOSS_SHARE: f64 = 0.02;
/// Share of the time with all flows that is not measured, at its start and at its end.
const MARGIN_SHARE: f64 = 0.2;

/// The figures of all runs.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Overload {
    /// What all instances can process together, in packets per second: eight times one alone.
    capacity_pps: f64,
    /// Offered packets ÷ that.
    offered_share: f64,
    /// The first number of flows that they cannot process together.
    flows_predicted: u32,
    runs: Vec<Run>,
    paper: Paper,
}

/// The figures of one scheduler.
#[derive(Clone, Debug, Serialize)]
struct Run {
    scheduler: String,
    /// Returned packets per second with all flows.
    plateau_pps: f64,
    /// That ÷ what all instances can process.
    plateau_share: f64,
    /// Share of the offered packets that is lost with all flows.
    lost_share: f64,
    /// The number of flows at which loss starts.
    flows_at_loss: Option<u32>,
    /// Flows of an instance with all flows, in the mean: of those that were active at the start, and of the others.
    early_flows: f64,
    later_flows: f64,
    /// The highest load of an instance that was active at the start, as a share of its capacity, while all instances
    /// together could have processed all flows.
    early_load: f64,
    /// Active instances with all flows.
    instances: u32,
}

/// The paper's figures, in Mpps. Its flows come 10 s apart.
#[derive(Clone, Debug, Serialize)]
struct Paper {
    source: &'static str,
    offered_mpps: f64,
    plateau_mpps: f64,
    plateau_best_fit_mpps: f64,
    flows_at_loss: u32,
    dropped_by_rules_mpps: f64,
}

const PAPER: Paper = Paper {
    source: "SmartINCO \u{a7}4.4, figures 8 and 9",
    offered_mpps: 150.0,
    plateau_mpps: 42.0,
    plateau_best_fit_mpps: 43.5,
    flows_at_loss: 9,
    dropped_by_rules_mpps: 22.0,
};

impl Overload {
    /// The figures of these runs of the experiment.
    pub(super) fn of(experiment: &Experiment, runs: &[(String, Recording)]) -> Overload {
        let capacity_pps = experiment.total_capacity_pps();
        Overload {
            capacity_pps: capacity_pps.round(),
            offered_share: experiment.rate_per_flow * f64::from(FLOWS) / capacity_pps,
            flows_predicted: experiment.flows_at_loss(),
            runs: runs
                .iter()
                .map(|(scheduler, recording)| Run::of(experiment, scheduler, recording))
                .collect(),
            paper: PAPER,
        }
    }

    /// A table: a column for each scheduler, and one for the paper.
    pub(super) fn rows(&self) -> Vec<Vec<String>> {
        let row = |name: &str, cell: &dyn Fn(&Run) -> String, paper: &str| {
            let cells = self.runs.iter().map(cell);
            [name.to_owned()]
                .into_iter()
                .chain(cells)
                .chain([paper.to_owned()])
                .collect::<Vec<_>>()
        };
        let rate = |pps: f64| format!("{}/s", short(pps));
        vec![
            row("", &|run| run.scheduler.clone(), "paper"),
            row(
                "offered with all flows, by capacity",
                &|_| format!("{:.2}", self.offered_share),
                "150/42",
            ),
            row(
                "capacity of all instances",
                &|_| rate(self.capacity_pps),
                "42 Mpps",
            ),
            row("plateau", &|run| rate(run.plateau_pps), "42 Mpps; best-fit 43.5"),
            row("plateau, by capacity", &|run| percent(run.plateau_share), "100%"),
            row("lost with all flows", &|run| percent(run.lost_share), "72%"),
            row(
                "loss starts with flow",
                &|run| {
                    run.flows_at_loss
                        .map_or_else(|| "-".to_owned(), |n| n.to_string())
                },
                "9",
            ),
            row(
                "  predicted by capacity",
                &|_| self.flows_predicted.to_string(),
                "9",
            ),
            row(
                "flows of an early instance",
                &|run| format!("{:.1}", run.early_flows),
                "round-robin: more",
            ),
            row(
                "flows of a later one",
                &|run| format!("{:.1}", run.later_flows),
                "",
            ),
            row(
                "early instance's load before that",
                &|run| percent(run.early_load),
                "round-robin: overload",
            ),
            row("instances", &|run| run.instances.to_string(), "8; best-fit fewer"),
        ]
    }
}

/// Whether an instance gets packets.
fn serves(state: InstanceState) -> bool {
    matches!(state, InstanceState::Active | InstanceState::Draining)
}

fn dropped(sample: &Sample) -> u64 {
    sample.drops.values().sum::<u64>() + sample.lost_at_uplink
}

impl Run {
    fn of(experiment: &Experiment, scheduler: &str, recording: &Recording) -> Run {
        let samples = &recording.samples;
        let begin = experiment.keep_from.as_secs_f64();
        let margin = MARGIN_SHARE * (experiment.duration - experiment.keep_from).as_secs_f64();
        let end = experiment.duration.as_secs_f64() - margin;
        let is_full = |sample: &&Sample| sample.at_s >= begin + margin && sample.at_s <= end;
        let full: Vec<&Sample> = samples.iter().filter(is_full).collect();
        let mean = |pick: &dyn Fn(&Sample) -> f64| {
            full.iter().map(|sample| pick(sample)).sum::<f64>() / full.len().max(1) as f64
        };
        let (plateau_pps, offered_pps) = (mean(&|s| s.returned_pps), mean(&|s| s.offered_pps));
        let early: BTreeSet<InstanceId> = samples
            .first()
            .into_iter()
            .flat_map(|sample| &sample.instances)
            .filter(|instance| instance.state == InstanceState::Active)
            .map(|instance| instance.id)
            .collect();
        let flows_of = |is_early: bool| {
            let last = full.last().into_iter().flat_map(|sample| &sample.instances);
            let flows: Vec<u64> = last
                .filter(|i| serves(i.state) && early.contains(&i.id) == is_early)
                .map(|i| i.flows)
                .collect();
            flows.iter().sum::<u64>() as f64 / flows.len().max(1) as f64
        };
        let fits = experiment.flows_at_loss() as usize;
        let most = samples
            .iter()
            .filter(|sample| sample.flows < fits)
            .flat_map(|sample| &sample.instances)
            .filter(|instance| early.contains(&instance.id))
            .map(|instance| instance.flows)
            .max();
        Run {
            scheduler: scheduler.to_owned(),
            plateau_pps: plateau_pps.round(),
            plateau_share: plateau_pps / experiment.total_capacity_pps(),
            lost_share: 1.0 - plateau_pps / offered_pps.max(1.0),
            flows_at_loss: flows_at_loss(samples),
            early_flows: flows_of(true),
            later_flows: flows_of(false),
            early_load: most.unwrap_or_default() as f64 * experiment.rate_per_flow / experiment.capacity_pps,
            instances: full.last().map_or(0, |sample| sample.active),
        }
    }
}

/// The first number of flows of whose packets a noticeable share was lost.
fn flows_at_loss(samples: &[Sample]) -> Option<u32> {
    let mut by_flows: BTreeMap<usize, (f64, f64)> = BTreeMap::new();
    for pair in samples.windows(2) {
        let [before, now] = pair else { continue };
        let (offered, lost) = by_flows.entry(now.flows).or_default();
        *offered += now.offered_pps * (now.at_s - before.at_s);
        *lost += dropped(now).saturating_sub(dropped(before)) as f64;
    }
    let first = by_flows
        .into_iter()
        .find(|(flows, (offered, lost))| *flows > 0 && *lost > LOSS_SHARE * offered);
    first.and_then(|(flows, _)| u32::try_from(flows).ok())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::measure::InstanceNow;
    use super::*;

    /// 10 k packets/s of capacity in all, 1 k more offered each second, and what is too much dropped.
    fn recording() -> Recording {
        let mut recording = Recording::default();
        let mut drops = 0;
        for second in 0..=40_u32 {
            let flows = second.min(FLOWS);
            let offered_pps = 1000.0 * f64::from(flows);
            let returned_pps = offered_pps.min(10_000.0);
            drops += (offered_pps - returned_pps) as u64;
            recording.samples.push(Sample {
                at_s: f64::from(second),
                flows: flows as usize,
                active: 8,
                offered_pps,
                returned_pps,
                drops: [("instance_ring_full".to_owned(), drops)].into(),
                instances: (1..=if second < 5 { 3 } else { 8 })
                    .map(|id| InstanceNow {
                        id: InstanceId(id),
                        state: InstanceState::Active,
                        back_pps: 0.0,
                        flows: u64::from(if id <= 3 { flows / 4 } else { flows / 20 }),
                        ring_occupancy: 0.0,
                    })
                    .collect(),
                ..Sample::default()
            });
        }
        recording
    }

    fn experiment() -> Experiment {
        Experiment {
            schedulers: vec!["round-robin".to_owned()],
            capacity_pps: 1250.0,
            rate_per_flow: 1000.0,
            overload: true,
            interval: Duration::from_secs(1),
            keep_from: Duration::from_secs(32),
            duration: Duration::from_secs(40),
            function: None,
        }
    }

    #[test]
    fn the_figures_are_those_of_the_samples() {
        let overload = Overload::of(&experiment(), &[("round-robin".to_owned(), recording())]);
        assert_eq!((overload.flows_predicted, overload.capacity_pps), (11, 10_000.0));
        let run = &overload.runs[0];
        assert_eq!((run.plateau_pps, run.plateau_share), (10_000.0, 1.0));
        assert_eq!(run.flows_at_loss, Some(11), "10 flows of 1 k fit into 10 k");
        assert!((run.lost_share - 22.0 / 32.0).abs() < 1e-9, "{run:?}");
        assert_eq!((run.early_flows, run.later_flows), (8.0, 1.0));
        assert!((run.early_load - 2.0 * 1000.0 / 1250.0).abs() < 1e-9, "{run:?}");
        let rows = overload.rows();
        assert!(rows.iter().all(|row| row.len() == 3), "{rows:?}");
        assert!(
            rows.iter()
                .any(|row| row[0] == "loss starts with flow" && row[1..] == ["11", "9"])
        );
    }

    #[test]
    fn a_run_without_loss_has_no_start_of_it() {
        let mut recording = recording();
        recording.samples.truncate(11);
        assert_eq!(flows_at_loss(&recording.samples), None);
    }
}
