//! The figures of a run.

use std::collections::BTreeMap;

use flow_table::{Line, TableConfig};
use maglev::ENTRIES;

use crate::outcome::Point;

/// Bytes of the entries of a machine table: the active ones, those that are built, and those of the members before.
const HASH_BYTES: f64 = 3.0 * 2.0 * ENTRIES as f64;
/// A load that is 0 would make the ratio of the largest to the smallest infinite.
const RATIO_LIMIT: f64 = 1e3;

/// Counts after the warm-up.
#[derive(Clone, Debug, Default)]
pub(super) struct Counts {
    pub(super) new_flows: u64,
    /// A machine without the flow's state got it, while the one with its state was there.
    pub(super) broken: u64,
    /// Flows of machines that failed, or that packets did not reach.
    pub(super) failed_over: u64,
    /// Flows that ended at a machine that had failed before anybody noticed.
    pub(super) ended_unnoticed: u64,
    /// Flows that a machine still had at its deadline.
    pub(super) drain_moved: u64,
    /// Flows that routers gave to another edge.
    pub(super) edge_moved: u64,
    /// Of these, flows of which that edge had no pin.
    pub(super) looked_up: u64,
    /// Packets that reached a machine or an edge that had to pass them on.
    pub(super) extra_hops: f64,
    /// Of these, packets in the middle of a flow that reached a machine without its pin.
    pub(super) misdirected: f64,
    /// What the agreement between edges sent, beside packets.
    pub(super) messages: f64,
    pub(super) bytes: f64,
    pub(super) offered: f64,
    pub(super) lost: f64,
}

/// How evenly values are spread.
#[derive(Clone, Copy, Debug, Default)]
struct Spread {
    jain: f64,
    max_min: f64,
    max: f64,
    samples: f64,
}

impl Spread {
    fn add(&mut self, values: impl Iterator<Item = f64>) {
        let (mut sum, mut squares, mut count) = (0.0, 0.0, 0.0);
        let (mut low, mut high) = (f64::INFINITY, 0.0_f64);
        for value in values {
            sum += value;
            squares += value * value;
            count += 1.0;
            (low, high) = (low.min(value), high.max(value));
        }
        if sum > 0.0 {
            self.jain += sum * sum / (squares * count);
            self.max_min += (high / low.max(high / RATIO_LIMIT)).min(RATIO_LIMIT);
            self.max = self.max.max(high);
            self.samples += 1.0;
        }
    }

    fn mean(&self, of: f64) -> f64 {
        if self.samples > 0.0 {
            of / self.samples
        } else {
            1.0
        }
    }
}

/// What is measured at times.
#[derive(Clone, Debug, Default)]
pub(super) struct Measure {
    pub(super) counts: Counts,
    machines: Spread,
    instances: Spread,
    pub(super) drains_s: Vec<f64>,
    pub(super) series: Vec<Point>,
}

impl Measure {
    /// Adds a sample: utilisations of the machines that serve, and loads of their instances.
    pub(super) fn sample(
        &mut self,
        machines: impl Iterator<Item = f64>,
        instances: impl Iterator<Item = f64>,
    ) {
        self.machines.add(machines);
        self.instances.add(instances);
    }

    pub(super) fn metrics(&self) -> BTreeMap<String, f64> {
        let counts = &self.counts;
        let new_flows = (counts.new_flows as f64).max(1.0);
        let drains = &self.drains_s;
        let figures = [
            ("new_flows", counts.new_flows as f64),
            ("broken_flows", counts.broken as f64),
            ("failed_over_flows", counts.failed_over as f64),
            ("ended_unnoticed_flows", counts.ended_unnoticed as f64),
            ("drain_moved_flows", counts.drain_moved as f64),
            ("edge_moved_flows", counts.edge_moved as f64),
            ("looked_up_flows", counts.looked_up as f64),
            ("misdirected_packets", counts.misdirected),
            ("extra_hops", counts.extra_hops),
            ("extra_hops_per_flow", counts.extra_hops / new_flows),
            ("agreement_messages_per_flow", counts.messages / new_flows),
            ("agreement_bytes_per_flow", counts.bytes / new_flows),
            ("cluster_offered_packets", counts.offered),
            ("cluster_lost_packets", counts.lost),
            ("machine_jain_mean", self.machines.mean(self.machines.jain)),
            ("machine_max_min_mean", self.machines.mean(self.machines.max_min)),
            ("machine_utilisation_max", self.machines.max),
            ("instance_jain_mean", self.instances.mean(self.instances.jain)),
            (
                "instance_max_min_mean",
                self.instances.mean(self.instances.max_min),
            ),
            ("instance_utilisation_max", self.instances.max),
            ("drains", drains.len() as f64),
            ("drain_s_max", drains.iter().copied().fold(0.0, f64::max)),
            (
                "drain_s_mean",
                drains.iter().sum::<f64>() / (drains.len() as f64).max(1.0),
            ),
        ];
        figures
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value))
            .collect()
    }
}

/// Bytes of an edge with so many pins at a time: its flow table for them, as `inco run` has it, and its table of machines.
/// And those of the flow table for one of them.
pub(super) fn edge_bytes(pins: u64) -> (f64, f64) {
    let config = TableConfig {
        ipv4_flows: (pins as usize).min(TableConfig::LIMIT),
        ipv6_flows: 0,
        return_counters: false,
        pin_times: true,
    };
    // Within the limit, so there is no error.
    let lines = config.lines_needed().unwrap_or(0);
    let table = (lines * Line::BYTES) as f64;
    (table + HASH_BYTES, table / (pins as f64).max(1.0))
}
