//! The results of a run, as JSON and as a table.

use std::fmt;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// Latency percentiles in microseconds, from the due time to reception. All 0 if nothing returned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LatencyUs {
    /// Median.
    pub p50: f64,
    /// 99 % of the packets are faster.
    pub p99: f64,
    /// 99.9 % of the packets are faster.
    pub p999: f64,
    /// The maximum.
    pub max: f64,
}

impl LatencyUs {
    pub(crate) fn of<C: hdrhistogram::Counter>(histogram: &Histogram<C>) -> LatencyUs {
        if histogram.is_empty() {
            return LatencyUs::default();
        }
        let at = |quantile| histogram.value_at_quantile(quantile) as f64 / 1000.0;
        LatencyUs {
            p50: at(0.5),
            p99: at(0.99),
            p999: at(0.999),
            max: histogram.max() as f64 / 1000.0,
        }
    }
}

/// Counts of a run so far. `offered = returned + lost` always holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Due packets, including those lost at the uplink.
    pub offered_packets: u64,
    /// Bytes of `offered_packets`, without frame check sequence.
    pub offered_bytes: u64,
    /// Distinct packets that returned.
    pub returned_packets: u64,
    /// Bytes of `returned_packets`.
    pub returned_bytes: u64,
    /// Packets never sent: the uplink's ring was full, or its peer away. Part of the loss.
    pub lost_at_uplink: u64,
    /// Packets lost because the uplink's peer ended: those in flight, and those due before the next peer
    /// connected. Part of the loss, which only the generator can count.
    pub lost_in_restarts: u64,
    /// Repeated returns of a packet, not counting the first.
    pub duplicated: u64,
    /// Packets that returned after a later one of their flow and direction, of the same connection.
    pub reordered: u64,
    /// Packets that returned so late, in a flow with losses, that they may be duplicates ([`crate::WINDOW`]
    /// packets behind). Not part of the returned ones.
    pub beyond_window: u64,
    /// Packets that went to an instance other than their flow's.
    pub mis_steered: u64,
    /// Flows that moved as allowed, because their instance was declared failed or purged.
    pub expected_moves: u64,
    /// Packets that returned without an instance stamp.
    pub unstamped: u64,
    /// Packets that returned with altered bytes.
    pub altered: u64,
    /// Packets of `altered` in which only addresses, ports and their checksums differ: a function rewrote them.
    #[serde(default)]
    pub addresses_rewritten: u64,
    /// Packets that returned from the wrong uplink.
    pub wrong_uplink: u64,
    /// Returned packets that are not of this run.
    pub foreign: u64,
}

impl Counts {
    /// Packets that have not returned.
    pub fn missing(&self) -> u64 {
        self.offered_packets.saturating_sub(self.returned_packets)
    }
}

/// The generator's own shortfalls in this run. A large `late_packets` means that the machine was too slow or
/// too busy for the load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GeneratorLimits {
    /// The largest lateness of a packet for which the uplink had room, in microseconds.
    pub max_lateness_us: f64,
    /// Packets sent more than 100 us late although the uplink had room.
    pub late_packets: u64,
    /// By how much the schedule was moved because the generator was later than `catch_up`, in microseconds.
    #[serde(default)]
    pub moved_us: f64,
    /// Due packets per second, while sending.
    pub intended_pps: f64,
    /// Packets per second that entered the uplinks, over the same time.
    pub achieved_pps: f64,
    /// Packets not sent because the uplink's ring was full for longer than `uplink_wait`; counted as lost at
    /// the uplink.
    pub uplink_full: u64,
    /// CPU share of the generator itself, from 0 to 1.
    pub cpu_share: f64,
}

/// The results of one flow (for a capture, of one direction).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FlowReport {
    /// Number of the flow in its phase, or of the stream in its capture.
    pub index: u32,
    /// Index of its phase or capture, phases first.
    pub source: u16,
    /// Its addresses.
    pub name: String,
    /// Due packets.
    pub offered_packets: u64,
    /// Distinct packets that returned.
    pub returned_packets: u64,
    /// The others.
    pub lost: u64,
    /// See [`Counts::duplicated`].
    pub duplicated: u64,
    /// See [`Counts::reordered`].
    pub reordered: u64,
    /// See [`Counts::mis_steered`].
    pub mis_steered: u64,
    /// See [`Counts::expected_moves`].
    pub expected_moves: u64,
    /// See [`Counts::altered`].
    pub altered: u64,
    /// Its instance, as stamped; 0 if unknown.
    pub instance: u32,
    /// Latency; `None` in runs of more than [`crate::FLOW_LATENCIES_LIMIT`] flows.
    pub latency_us: Option<LatencyUs>,
}

/// The results of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The profile's seed.
    pub seed: u64,
    /// Seconds from the first to the last sent packet.
    pub sending_s: f64,
    /// All counts.
    #[serde(flatten)]
    pub counts: Counts,
    /// `offered_packets - returned_packets`.
    pub lost: u64,
    /// Returned packets per second, while sending.
    pub returned_pps: f64,
    /// Latency of all returned packets.
    pub latency_us: LatencyUs,
    /// The generator's own limits.
    pub generator: GeneratorLimits,
    /// Number of flows.
    pub flow_count: usize,
    /// Each flow; empty in runs of more than [`crate::FLOWS_REPORTED_LIMIT`] flows.
    pub flows: Vec<FlowReport>,
    /// Frames of captures that were too short to be sent (below 14 bytes).
    pub skipped_frames: u64,
    /// Whether the run was stopped before its end.
    pub stopped_early: bool,
}

impl Report {
    /// Whether nothing was lost, duplicated, reordered, altered, mis-steered or misdirected.
    pub fn is_clean(&self) -> bool {
        let c = &self.counts;
        self.lost == 0
            && [
                c.duplicated,
                c.reordered,
                c.beyond_window,
                c.mis_steered,
                c.altered,
                c.wrong_uplink,
                c.foreign,
            ]
            .iter()
            .all(|n| *n == 0)
    }

    /// Lost packets per offered packet, from 0 to 1.
    pub fn loss_ratio(&self) -> f64 {
        self.lost as f64 / (self.counts.offered_packets.max(1)) as f64
    }

    /// The report as text; `flows` adds a line for each flow.
    pub fn table(&self, flows: bool) -> impl fmt::Display + '_ {
        Table { report: self, flows }
    }
}

struct Table<'a> {
    report: &'a Report,
    flows: bool,
}

impl fmt::Display for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let r = self.report;
        let c = &r.counts;
        writeln!(
            f,
            "sent for      {:>14.3} s in {} flows, seed {}",
            r.sending_s, r.flow_count, r.seed
        )?;
        writeln!(
            f,
            "offered       {:>14} packets  {:>12.0} pps",
            c.offered_packets, r.generator.intended_pps
        )?;
        writeln!(
            f,
            "returned      {:>14} packets  {:>12.0} pps",
            c.returned_packets, r.returned_pps
        )?;
        writeln!(
            f,
            "lost          {:>14} packets  {:>11.4} %",
            r.lost,
            100.0 * r.loss_ratio()
        )?;
        writeln!(f, "  at uplink   {:>14}", c.lost_at_uplink)?;
        if c.lost_in_restarts > 0 {
            writeln!(f, "  restart     {:>14}", c.lost_in_restarts)?;
        }
        for (name, count) in [
            ("mis-steered", c.mis_steered),
            ("expected moves", c.expected_moves),
            ("duplicated", c.duplicated),
            ("reordered", c.reordered),
            ("altered", c.altered.saturating_sub(c.addresses_rewritten)),
        ] {
            writeln!(f, "{name:<14}{count:>14}")?;
        }
        if c.addresses_rewritten > 0 {
            writeln!(f, "addresses rewritten {:>8}", c.addresses_rewritten)?;
        }
        // Shown only if not 0.
        for (name, count) in [
            ("beyond window", c.beyond_window),
            ("wrong uplink", c.wrong_uplink),
            ("foreign", c.foreign),
        ] {
            if count > 0 {
                writeln!(f, "{name:<14}{count:>14}")?;
            }
        }
        let l = r.latency_us;
        writeln!(
            f,
            "latency       {:>14.1} us p50, {:.1} p99, {:.1} p999, {:.1} max",
            l.p50, l.p99, l.p999, l.max
        )?;
        let g = &r.generator;
        writeln!(
            f,
            "generator: at most {:.1} us late ({} packets more than 100 us), {:.0} of {:.0} pps sent, {} packets not \
             sent because the uplink was full, {:.0} % of a CPU",
            g.max_lateness_us,
            g.late_packets,
            g.achieved_pps,
            g.intended_pps,
            g.uplink_full,
            100.0 * g.cpu_share
        )?;
        if g.moved_us > 0.0 {
            writeln!(
                f,
                "           its schedule was moved by {:.1} ms",
                g.moved_us / 1e3
            )?;
        }
        if self.flows {
            writeln!(
                f,
                "\n{:>6} {:>8} {:>12} {:>12} {:>10} {:>6} {:>9} {:>9} {:>10} {:>10}  flow",
                "index",
                "instance",
                "offered",
                "returned",
                "lost",
                "dup",
                "reordered",
                "mis-steer",
                "p50 us",
                "p99 us"
            )?;
            for flow in &r.flows {
                let latency = flow.latency_us.unwrap_or_default();
                writeln!(
                    f,
                    "{:>6} {:>8} {:>12} {:>12} {:>10} {:>6} {:>9} {:>9} {:>10.1} {:>10.1}  {}",
                    flow.index,
                    flow.instance,
                    flow.offered_packets,
                    flow.returned_packets,
                    flow.lost,
                    flow.duplicated,
                    flow.reordered,
                    flow.mis_steered,
                    latency.p50,
                    latency.p99,
                    flow.name
                )?;
            }
        }
        Ok(())
    }
}

/// The current state of a flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowNow {
    /// Number of the flow in its phase, or of the stream in its capture.
    pub index: u32,
    /// Its phase or capture.
    pub source: u16,
    /// Its instance, as stamped; 0 if unknown.
    pub instance: u32,
    /// Due packets so far.
    pub offered_packets: u64,
    /// Distinct packets that returned so far.
    pub returned_packets: u64,
    /// Whether it was sent in this interval.
    pub is_active: bool,
}

/// The state of a run, passed to the observer each `interval`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// Time since the start of the run, in seconds.
    pub at_s: f64,
    /// Length of this interval, in seconds.
    pub length_s: f64,
    /// Counts since the start of the run.
    pub counts: Counts,
    /// Packets due in this interval.
    pub offered_packets: u64,
    /// Distinct packets that returned in this interval.
    pub returned_packets: u64,
    /// Packets known to be lost: missing although a later one of their flow has returned. Missing packets
    /// after a flow's newest may still be in flight.
    pub lost_so_far: u64,
    /// Latency of this interval's packets.
    pub latency_us: LatencyUs,
    /// Each flow that has started, of the first [`crate::FLOW_LATENCIES_LIMIT`] flows of the profile.
    pub flows: Vec<FlowNow>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_survives_json_and_prints_its_counts() {
        let mut report = Report {
            lost: 2,
            flow_count: 1,
            ..Report::default()
        };
        report.counts.offered_packets = 10;
        report.counts.returned_packets = 8;
        report.flows.push(FlowReport {
            name: "udp a > b".into(),
            ..FlowReport::default()
        });
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["offered_packets"], 10);
        assert_eq!(json["latency_us"]["p999"], 0.0);
        assert_eq!(serde_json::from_value::<Report>(json).unwrap(), report);
        let table = report.table(true).to_string();
        assert!(table.contains("20.0000 %") && table.contains("udp a > b") && table.contains("generator:"));
        assert!(!table.contains("foreign"));
        assert!(!report.is_clean());
    }
}
