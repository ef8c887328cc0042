//! What is said over the API. Field names are stable: rates are packets per second, times say their unit.

use std::collections::BTreeMap;

use model::{ActorSide, DropReason, Event, InstanceId, InstanceState, KeyChange, PolicyChoice, Rollout};
use serde::{Deserialize, Serialize};
use thiserror::Error;
use utoipa::{IntoParams, ToSchema};

use crate::counters::ResumedCounters;

/// State of inco as a whole.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Status {
    /// inco's version.
    pub version: String,
    /// Its process id.
    pub pid: u32,
    /// The configuration file in use.
    pub file: String,
    /// Time since its start, in seconds.
    pub uptime_s: f64,
    /// The container engine and whether it answers.
    pub engine: EngineStatus,
    /// The places where instances run, in the order of the configuration; absent without `[[place]]`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub places: Vec<PlaceRow>,
    /// Data plane workers.
    pub workers: Vec<WorkerRow>,
    /// Uplinks, in the order of the configuration.
    pub uplinks: Vec<UplinkRow>,
    /// The ports that the switch created for instances in advance; absent if it creates none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ports: Option<PortPool>,
    /// Packets dropped, by reason; reasons without packets are omitted.
    pub drops: BTreeMap<String, u64>,
    /// The packet accounting.
    pub accounting: Accounting,
    /// Cost of the collector.
    pub collector: CollectorStatus,
    /// What was taken over from an earlier run, at the start; absent if there was nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resumed: Option<ResumedCounters>,
    /// Services whose instances fail, each with the number of failures and the last reason.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub failing: BTreeMap<String, String>,
    /// Reaction times of the control loop.
    #[serde(default)]
    pub reactions: ReactionStatus,
    /// Load reports between machines and edges; absent without `[reports]`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reports: Option<ReportStatus>,
    /// Flows in all tables.
    pub live_flows: u64,
    /// Capacity of all tables, in flows.
    pub flow_limit: u64,
    /// Events so far.
    pub events: u64,
    /// Events that are missing in the files of the event log; absent if none is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unwritten_events: Option<UnwrittenEvents>,
}

/// Events that are missing in the files of the event log.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct UnwrittenEvents {
    /// Their number.
    pub events: u64,
    /// The directory, and why nothing can be written there; absent if events are written again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// A place where instances run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PlaceRow {
    /// Its name.
    pub name: String,
    /// What makes its containers, and whether that answers.
    pub engine: EngineStatus,
    /// The CPUs of its containers, as `0-3,7`; absent for all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus: Option<String>,
    /// Instances there, without those that leave.
    pub instances: u32,
    /// Most instances; absent without a limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance_limit: Option<u32>,
    /// Packets per second that these can process together, or that they get if that is more.
    pub pps: f64,
    /// Most packets per second; absent without a limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pps_limit: Option<f64>,
}

/// Load reports that are sent, or taken.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ReportStatus {
    /// Of a machine: the edges that it reports to.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub edges: Vec<EdgeRow>,
    /// Of an edge: the machines that report to it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub machines: Vec<MachineRow>,
    /// Datagrams that an edge refused, by reason; reasons without any are omitted.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub refused: BTreeMap<String, u64>,
}

/// An edge that load reports are sent to.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct EdgeRow {
    /// Where it takes reports.
    pub edge: String,
    /// Whether it has said for which run of it reports are: those before it cannot accept.
    pub known: bool,
    /// Reports sent.
    pub sent: u64,
    /// Reports that could not be sent.
    pub failed: u64,
}

/// A machine that reports its load.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct MachineRow {
    /// Its number.
    pub number: u16,
    /// Its address for tunnels.
    pub address: String,
    /// Reports accepted.
    pub accepted: u64,
    /// Age of the last one, in milliseconds; absent before the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub age_ms: Option<u64>,
}

/// What a machine behind a tunnel reports of a service.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ReportRow {
    /// Whether it takes flows: `serving`, `draining` or `leaving`.
    pub state: String,
    /// The used share of its capacity, 0 to 1, with what this edge gave it since. A machine that does not know its
    /// capacity is full.
    pub utilisation: f64,
    /// Its active instances.
    pub instances: u16,
    /// Flows that are pinned to them, whoever gave them.
    pub live_flows: u32,
    /// Age of the report, in milliseconds.
    pub age_ms: u64,
    /// How far it is believed, 0 to 1: the chance that a pick goes by it.
    pub trust: f64,
}

/// Ports that were created for instances before there was traffic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PortPool {
    /// Instances for which there are ports.
    pub made: u32,
    /// Instances that use their ports, including those that start, drain or stop.
    pub taken: u32,
}

/// The engine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct EngineStatus {
    /// `oci` or `docker`.
    pub driver: String,
    /// Whether it answers.
    pub up: bool,
    /// Time since it last answered, in milliseconds; 0 if it answers.
    pub down_ms: u64,
}

/// Declares a row of which some fields are counters of a switch: `field: type = counter`. `of` takes these over.
macro_rules! counted_row {
    ($(#[$outer:meta])* $row:ident of $counters:ty {
        $($(#[doc = $doc:tt])* $field:ident: $type:ty $(= $counter:ident)?,)*
    }) => {
        $(#[$outer])*
        #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
        pub struct $row {
            $($(#[doc = $doc])* pub $field: $type,)*
        }

        impl $row {
            /// The switch's counters. The other fields are empty.
            pub fn of(counters: &$counters) -> $row {
                $row {
                    $($($field: counters.$counter,)?)*
                    ..$row::default()
                }
            }
        }
    };
}

counted_row! {
    /// A data plane worker.
    WorkerRow of switch::WorkerTotals {
        /// Number, from 0.
        worker: u8,
        /// The CPU to which it is pinned, if it is.
        cpu: Option<u16>,
        /// Share of the time in which it processed packets, 0 to 1.
        busy: f64,
        /// Share of the time in which it did not sleep, 0 to 1.
        awake: f64,
        /// The longest time between two turns without a sleep, in microseconds, of the last two to four seconds.
        longest_gap_us: f64,
        /// Packets received from uplinks.
        received_packets: u64 = received,
        /// Packets handed off to other workers.
        handed_off_packets: u64 = handed_off,
        /// Moves of flows whose packets were held until earlier packets had returned (services of relaxed affinity).
        held_moves: u64 = held_moves,
        /// Those of them that reached a limit and released the packets early.
        early_moves: u64 = early_moves,
        /// Flows that moved with the state of their function.
        state_moves: u64 = state_moves,
        /// Such moves that were cancelled because they took too long, or too many packets had to be held.
        state_moves_at_limit: u64 = state_moves_at_limit,
        /// Such moves that were cancelled because a function refused.
        state_moves_refused: u64 = state_moves_refused,
        /// Such moves that were cancelled because a ring or the memory of frames had no room for a message.
        state_moves_without_room: u64 = state_moves_without_room,
        /// Such moves that ended with an instance or with the flow.
        state_moves_gone: u64 = state_moves_gone,
        /// Copies of flows' states that an instance was not told to drop, because too many had to be told.
        state_forgets_lost: u64 = state_forgets_lost,
        /// Flows that have a rule of a faster path.
        fast_rules: u64 = fast_rules,
        /// Rules of a faster path at a time, at most; 0 without such a path.
        fast_rules_limit: u64 = fast_rules_limit,
        /// Flows that got a rule of a faster path.
        promotions: u64 = promotions,
        /// Flows that lost it again.
        demotions: u64 = demotions,
        /// Packets that asked a machine behind a tunnel for a flow which another edge may have given to it.
        looks: u64 = looks,
        /// Packets that a machine sent back because it does not know their flow: at the edge and at the machine.
        looks_returned: u64 = looks_returned,
        /// How often a flow that was worth a rule of a faster path got none.
        refused_promotions: u64 = refused_promotions,
        /// Packets of both directions that rules of a faster path have taken.
        fast_packets: u64 = fast_packets,
        /// Flows in its table.
        live_flows: u64 = live_flows,
    }
}

counted_row! {
    /// An uplink.
    UplinkRow of switch::UplinkCounters {
        /// Its name.
        name: String,
        /// Its device, as in the configuration.
        device: String,
        /// Whether it has a peer or a link.
        up: bool,
        /// Packets received.
        received_packets: u64 = received_packets,
        /// Bytes received.
        received_bytes: u64 = received_bytes,
        /// Packets sent.
        sent_packets: u64 = sent_packets,
        /// Bytes sent.
        sent_bytes: u64 = sent_bytes,
        /// Packets to it that were dropped.
        dropped_packets: u64 = dropped,
        /// Packets that its device dropped before the switch received them; not part of the accounting. The device's
        /// own counter, at most 100 ms old.
        missed_packets: u64 = missed_packets,
        /// Sent packets that its device could not transmit; the device's own counter, too.
        failed_packets: u64 = failed_packets,
        /// Current packets received per second.
        received_pps: f64,
        /// Current packets sent per second.
        sent_pps: f64,
    }
}

impl UplinkRow {
    /// Its state as text: `up`, `waiting for peer` if a peer has to connect to it, else `down`.
    pub fn state(&self) -> &'static str {
        match self.up {
            true => "up",
            false if self.device.starts_with("memif:") => "waiting for peer",
            false => "down",
        }
    }
}

/// The packet accounting: offered + originated = returned + delivered + dropped + in flight + gap.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Accounting {
    /// Packets received from uplinks.
    pub offered: u64,
    /// Packets sent to uplinks.
    pub returned: u64,
    /// Packets that went into the network of instances which end connections.
    #[serde(default)]
    pub delivered: u64,
    /// Packets that functions originated.
    pub originated: u64,
    /// Packets dropped, for all reasons.
    pub dropped: u64,
    /// Packets in rings, in functions and held by the switch.
    pub in_flight: u64,
    /// Flows that moved because their instance failed or its drain deadline passed.
    pub expected_moves: u64,
}

impl Accounting {
    /// Packets without a counter: 0 at rest. Under traffic it varies by the packets that move between two readings.
    pub fn gap(&self) -> i64 {
        let signed = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
        signed(self.offered)
            .saturating_add(signed(self.originated))
            .saturating_sub(signed(self.returned))
            .saturating_sub(signed(self.delivered))
            .saturating_sub(signed(self.dropped))
            .saturating_sub(signed(self.in_flight))
    }
}

/// Cost of the collector.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CollectorStatus {
    /// Time between two samples, in microseconds.
    pub period_us: u64,
    /// Samples so far.
    pub samples: u64,
    /// Mean duration of a sample, in microseconds.
    pub mean_us: f64,
    /// Longest duration of a sample, in microseconds.
    pub longest_us: f64,
    /// Share of one CPU, 0 to 1.
    pub cpu: f64,
}

/// Reaction times of the control loop, by kind.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ReactionStatus {
    /// From the first observation above the target to the decision to scale out.
    pub detect: ReactionTimes,
    /// From that decision until every worker gives new flows to the instance, for an instance whose drain was
    /// cancelled.
    pub undrain: ReactionTimes,
    /// The same for a warm standby.
    pub activate: ReactionTimes,
    /// The same for a paused standby.
    pub resume: ReactionTimes,
    /// The same for an instance that had to be created.
    pub create_and_activate: ReactionTimes,
    /// From the request to create an instance until it was ready.
    pub create: ReactionTimes,
    /// From the start of a drain until the instance had no flow left.
    pub drain: ReactionTimes,
}

/// The times of one kind of reaction.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ReactionTimes {
    /// Number of reactions.
    pub count: u64,
    /// Median of the latest reactions, in milliseconds.
    pub p50_ms: Option<f64>,
    /// 99th percentile of the latest reactions, in milliseconds.
    pub p99_ms: Option<f64>,
    /// Longest reaction, in milliseconds.
    pub max_ms: Option<f64>,
}

/// A service.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ServiceRow {
    /// Its name.
    pub name: String,
    /// Its image.
    pub image: Option<String>,
    /// The service that gets what its instances return. Absent where that leaves by an uplink.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// Its scheduler.
    pub scheduler: String,
    /// The scheduler's load metric: packets, bytes, flows or busy.
    #[serde(default)]
    pub metric: String,
    /// Its autoscaler.
    pub autoscaler: String,
    /// Instances that take new flows.
    pub active: u32,
    /// These by place; absent without `[[place]]`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub places: BTreeMap<String, u32>,
    /// Target number of active instances.
    pub desired: u32,
    /// Whether `desired` was set manually.
    pub fixed: bool,
    /// Minimum number of active instances.
    pub min: u32,
    /// Maximum number of active instances.
    pub max: u32,
    /// Standby instances that are ready.
    pub standby: u32,
    /// Instances that are starting.
    pub starting: u32,
    /// Draining instances: they serve their flows and take no new ones.
    pub draining: u32,
    /// Flows pinned to its instances.
    pub live_flows: u64,
    /// Packets of its flows, in total.
    pub offered_packets: u64,
    /// Packets dropped because no instance took flows or because its ring was full.
    pub dropped_packets: u64,
    /// Current packets per second of its flows.
    pub offered_pps: f64,
    /// Current packets per second returned from its instances.
    pub returned_pps: f64,
    /// Current new flows per second.
    pub new_flows_per_s: f64,
    /// Offered rate ÷ capacity of the active instances, if known.
    pub utilisation: Option<f64>,
    /// The highest load of an active instance: its offered rate ÷ its capacity, if known.
    #[serde(default)]
    pub highest_utilisation: Option<f64>,
    /// The instance with that load.
    #[serde(default)]
    pub highest_instance: Option<InstanceId>,
    /// The autoscaler's last reason.
    pub reason: String,
    /// If its instances fail: the number of consecutive failures and the last reason. Absent otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failing: Option<String>,
    /// The current or the last rollout.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollout: Option<Rollout>,
    /// Whether scale-in is disabled.
    #[serde(default)]
    pub pause_in: bool,
    /// Whether scale-out is disabled.
    #[serde(default)]
    pub pause_out: bool,
    /// Whether the autoscaler is in a dry run: it decides, and nothing is done.
    #[serde(default)]
    pub dry_run: bool,
    /// Number of active instances that the autoscaler would set without disabled scaling or dry run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub would: Option<u32>,
    /// Jain's index of the active instances' packet rates over the last second: 1 if all are equal, 1 ÷ their number
    /// if one has everything. Absent without packets.
    #[serde(default)]
    pub jain: Option<f64>,
    /// The highest of these rates ÷ the lowest. Absent if the lowest is 0.
    #[serde(default)]
    pub max_min: Option<f64>,
    /// The weights of the scheduler `weighted`. Absent with another scheduler.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weights: Option<Weights>,
}

/// The weights of the scheduler `weighted`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Weights {
    /// How often they are computed, in milliseconds.
    pub period_ms: u64,
    /// By active instance.
    pub instances: Vec<WeightRow>,
}

/// The weight of an instance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct WeightRow {
    /// The instance.
    pub instance: InstanceId,
    /// The sum of its weights of all workers. Those of a worker's instances sum up to 256.
    pub weight: u64,
    /// Its share of the next new flows, 0 to 1.
    pub share: f64,
    /// The load that it was given in the last period: the scheduler's metric times seconds.
    pub period_load: u64,
}

/// The time within which half of something, and 99 % of it, has ended, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PercentilesUs {
    /// Half of it.
    pub p50: f64,
    /// 99 % of it.
    pub p99: f64,
}

impl From<model::Percentiles> for PercentilesUs {
    fn from(of: model::Percentiles) -> PercentilesUs {
        let us = |time: model::Nanos| time.0 as f64 / 1e3;
        PercentilesUs {
            p50: us(of.p50),
            p99: us(of.p99),
        }
    }
}

/// Where watts come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum WattsSource {
    /// The instance's part of what RAPL counts, by its CPU time.
    Rapl,
    /// The same of a power meter of the machine.
    Hwmon,
    /// MODEL: what a busy core of its place takes, times the CPUs that it uses. Not measured.
    Model,
}

impl WattsSource {
    /// Its name in tables.
    pub const fn word(self) -> &'static str {
        match self {
            WattsSource::Rapl => "RAPL",
            WattsSource::Hwmon => "hwmon",
            WattsSource::Model => "MODEL",
        }
    }
}

/// Watts of an instance, with the band of a model.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Watts {
    /// Expected.
    pub expected: f64,
    /// Least; as expected where it is metered.
    pub low: f64,
    /// Most.
    pub high: f64,
    /// Where they come from.
    pub source: WattsSource,
}

impl std::fmt::Display for Watts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let source = self.source.word();
        match self.source {
            WattsSource::Model => {
                let (low, high) = (self.low, self.high);
                write!(f, "{:.1} W ({source}, {low:.1} to {high:.1})", self.expected)
            }
            WattsSource::Rapl | WattsSource::Hwmon => write!(f, "{:.1} W ({source})", self.expected),
        }
    }
}

/// An instance.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct InstanceRow {
    /// Its id.
    pub id: InstanceId,
    /// Its service.
    pub service: String,
    /// The place where it runs; absent without `[[place]]`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<String>,
    /// Its state.
    pub state: InstanceState,
    /// Time in that state, in milliseconds.
    pub state_ms: u64,
    /// Its slot in the data plane, if it has one.
    pub slot: Option<u16>,
    /// The container's name, if it has one.
    pub container: Option<String>,
    /// The address and port where others run it; absent if inco does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// What those call it who run it, such as the name of a Pod; absent if they have not said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The program's process id, if known.
    pub pid: Option<u32>,
    /// Whether it was adopted from an earlier run of inco.
    pub adopted: bool,
    /// Current packets per second sent to it.
    pub to_pps: f64,
    /// Current packets per second returned from it.
    pub back_pps: f64,
    /// Packets sent to it, in total.
    pub to_packets: u64,
    /// Packets returned from it, in total.
    pub back_packets: u64,
    /// Flows pinned to it.
    pub live_flows: u64,
    /// Share of its ring that is occupied, 0 to 1.
    pub ring_occupancy: f64,
    /// Packets dropped on the way to it or in it, in total.
    pub dropped_packets: u64,
    /// Packets per second that it can process, if known.
    pub capacity_pps: Option<f64>,
    /// Its CPU limit, in CPUs, if there is one.
    pub cpu_quota: Option<f64>,
    /// The CPU that it has to itself; absent if it shares CPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub core: Option<u16>,
    /// CPU time that it uses, as a share of `cpu_quota`, or of one CPU without a quota. As the kernel accounts it,
    /// over the last second.
    #[serde(default)]
    pub cpu: Option<f64>,
    /// Share of the time in which the function was busy, if it reports it.
    pub busy: Option<f64>,
    /// Mean time between two packets for it over the last ten milliseconds, in microseconds; none without packets.
    #[serde(default)]
    pub gap_us: Option<f64>,
    /// Time that packets waited in its ring in the last second, of one packet a millisecond at most; none without packets,
    /// or with a driver that sees no ring.
    #[serde(default)]
    pub ring_wait_us: Option<PercentilesUs>,
    /// Time that packets took in the function in the last second, from ring to ring, if it reports it.
    #[serde(default)]
    pub function_us: Option<PercentilesUs>,
    /// Share of the last quarter of a second in which it could not run: throttled by its quota, or waiting for a CPU.
    #[serde(default)]
    pub held_up: f64,
    /// What it consumes, over the last second or two; none without a meter and without `watts_per_core` of its place.
    #[serde(default)]
    pub watts: Option<Watts>,
    /// Memory in use, in bytes, if known.
    pub memory_bytes: Option<u64>,
    /// What the machine behind a tunnel reports; absent for others, and before its first report.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub report: Option<ReportRow>,
    /// The reason of its state.
    pub reason: String,
}

/// A flow.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FlowRow {
    /// The flow in its forward direction: `tcp 10.0.0.1:1000 > 10.0.0.2:80`.
    #[schema(format = "flow")]
    pub flow: String,
    /// Its service.
    pub service: String,
    /// The instance that serves the forward direction.
    pub forward: Option<InstanceId>,
    /// The instance that serves the opposite direction.
    pub reverse: Option<InstanceId>,
    /// When each direction, forward and opposite, was last pinned to its instance, in milliseconds since 1970, with a
    /// resolution of 3 ms.
    #[serde(default)]
    pub since_unix_ms: [Option<u64>; 2],
    /// Packets, forward and opposite.
    pub packets: [u64; 2],
    /// Bytes, forward and opposite.
    pub bytes: [u64; 2],
    /// Time since its last packet, in milliseconds.
    pub idle_ms: u64,
    /// State of its connection.
    pub state: String,
    /// Packets per second of both directions over the last second, an estimate. Only in an answer with the heaviest
    /// flows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pps: Option<f64>,
    /// Upper bound of the share of other flows in `pps`, in packets per second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_pps: Option<f64>,
    /// State of the flow's rule, with a switch of rules: `queued`, `installed`, `refused` with the reason, `evicted`,
    /// or `on_bucket` (no rule of its own; the rule of its bucket forwards it). `offloaded`, `partly offloaded` or
    /// `not offloaded`: whether a card has the rule, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
}

/// A page of flows.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FlowPage {
    /// The flows.
    pub flows: Vec<FlowRow>,
    /// Whether these are all flows that match the filter; if not, the limit was reached.
    pub complete: bool,
}

/// A filter of flows.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct FlowFilter {
    /// Flows of this service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    /// Flows pinned to this instance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[param(value_type = Option<u32>, format = "uint32", maximum = 4_294_967_295_u32)]
    pub instance: Option<InstanceId>,
    /// Flows with this address on either end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[param(value_type = Option<String>, format = "ip")]
    pub address: Option<std::net::IpAddr>,
    /// Only this flow, in either direction: `tcp 10.0.0.1:1000 > 10.0.0.2:80`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[param(format = "flow")]
    pub flow: Option<String>,
    /// Only this number of flows with the highest packet rates, the highest first; at most [`FlowFilter::TOP_LIMIT`].
    /// Flows with less than 1/64 of a worker's packets can be missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[param(format = "uint32", maximum = 4_294_967_295_u32)]
    pub top: Option<u32>,
    /// Maximum number of flows; default [`FlowFilter::DEFAULT_LIMIT`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[param(format = "uint32", maximum = 4_294_967_295_u32)]
    pub limit: Option<u32>,
}

impl FlowFilter {
    /// Default of the maximum: a few screens.
    pub const DEFAULT_LIMIT: u32 = 100;
    /// Highest maximum: some tens of megabytes of text.
    pub const LIMIT: u32 = 100_000;

    /// Number of heaviest flows that are tracked.
    pub const TOP_LIMIT: u32 = 64;

    /// The maximum number of flows.
    pub fn limit(&self) -> u32 {
        self.limit.unwrap_or(Self::DEFAULT_LIMIT).min(Self::LIMIT)
    }
}

/// Result of an action.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Outcome {
    /// The result, in a sentence.
    pub result: String,
    /// After a reload: each changed key.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<KeyChange>,
    /// After a command: its exit status and its output.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<CommandEnd>,
}

/// How a command in a container ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CommandEnd {
    /// Its exit status, if it exited.
    pub status: Option<i32>,
    /// The signal that ended it, if one did.
    pub signal: Option<i32>,
    /// Its standard output and error, at most 64 KiB.
    pub output: String,
    /// Whether it wrote more.
    pub cut: bool,
}

impl Outcome {
    /// Result of an action, in a sentence.
    pub fn new(result: impl Into<String>) -> Outcome {
        Outcome {
            result: result.into(),
            changes: Vec::new(),
            command: None,
        }
    }
}

/// Why a request was refused, and what to do.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{error}{}{hint}", if hint.is_empty() { "" } else { "; " })]
pub struct Refusal {
    /// The problem.
    pub error: String,
    /// What to do.
    pub hint: String,
}

impl Refusal {
    /// The problem and what to do.
    pub fn new(error: impl Into<String>, hint: impl Into<String>) -> Refusal {
        Refusal {
            error: error.into(),
            hint: hint.into(),
        }
    }
}

/// A [`Refusal`] in the form of RFC 9457, `application/problem+json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Problem {
    /// Always `about:blank`: `status` is the kind.
    #[serde(rename = "type")]
    pub kind: String,
    /// The status in words.
    pub title: String,
    /// The HTTP status.
    pub status: u16,
    /// The problem.
    pub detail: String,
    /// What to do.
    #[serde(default)]
    pub hint: String,
}

impl From<Problem> for Refusal {
    fn from(problem: Problem) -> Refusal {
        Refusal::new(problem.detail, problem.hint)
    }
}

/// Status, services and instances at one moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Snapshot {
    /// The time, in milliseconds since 1970.
    pub unix_ms: u64,
    /// State of inco as a whole.
    pub status: Status,
    /// All services, in the order of the configuration.
    pub services: Vec<ServiceRow>,
    /// All instances, in the order of ids.
    pub instances: Vec<InstanceRow>,
    /// Services of actors; absent without any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub actors: Vec<ActorsRow>,
}

/// A service of actors.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ActorsRow {
    /// The service.
    pub service: String,
    /// Who decides when an actor moves: `auto` or `manual`.
    pub moves: String,
    /// Card and host.
    pub sides: Vec<ActorSideRow>,
    /// Its actors, in the order of the configuration.
    pub actors: Vec<ActorRow>,
}

/// A side of a service of actors.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ActorSideRow {
    /// Which one.
    pub side: ActorSide,
    /// The place where it runs; absent without `[[place]]`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<String>,
    /// The instance whose process it is; absent while there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<InstanceId>,
    /// Whether its actors run.
    pub runs: bool,
    /// Threads that run actors.
    pub cores: u16,
    /// Which core runs which actor next: the policy.
    pub policy: String,
    /// The share of its threads' time in which actors ran, of the last second.
    pub busy: f64,
    /// Processes that have begun.
    pub starts: u64,
    /// Messages from the network, since its process began.
    pub requests: u64,
    /// Messages to the network.
    pub answers: u64,
    /// Packets that were no message.
    pub malformed: u64,
    /// Answers to clients that are not known any more.
    pub unknown_clients: u64,
    /// Answers for which the network had no room.
    pub unsent: u64,
    /// Messages for actors that were refused, except at full mailboxes.
    pub refused: u64,
}

/// An actor.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ActorRow {
    /// Its name.
    pub actor: String,
    /// What it is made from.
    pub kind: String,
    /// Actors with the same group move together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Where it is; absent while it is on neither side.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub side: Option<ActorSide>,
    /// `runs`, `moves`, `paused`, `stopped`, `lost` or `waits` (its side does not run).
    pub state: String,
    /// How its messages are served: `fcfs` or `drr`.
    pub mode: String,
    /// Messages that wait in its mailbox.
    pub mailbox: u64,
    /// Messages that are held for its move.
    pub held: u64,
    /// µ, the mean of its response times, in microseconds.
    pub mean_us: f64,
    /// Their tail, µ + 3σ, in microseconds.
    pub tail_us: f64,
    /// Messages per second, of the last second.
    pub requests_per_s: f64,
    /// Cores that its messages need: run time ÷ time, of the last second.
    pub load: f64,
    /// Messages that it has handled since its service began.
    pub served: u64,
    /// For how long they have run, in seconds.
    #[serde(default)]
    pub run_s: f64,
    /// Messages that found its mailbox full, since it came to its side.
    pub refused: u64,
    /// Its objects.
    pub objects: u64,
    /// Their bytes.
    pub object_bytes: u64,
    /// Moves that have ended on the other side.
    pub migrations: u64,
    /// When it moved last, in milliseconds since 1970; absent if it has not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub moved_unix_ms: Option<u64>,
    /// Why it moved last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub moved_because: Option<String>,
}

/// The last 15 minutes, by column. Every list at this level has one value for each element of `unix_ms`, the oldest
/// first.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct History {
    /// The process id of the inco of this history.
    pub pid: u32,
    /// Time between two points, in milliseconds.
    pub period_ms: u32,
    /// When each point was taken, in milliseconds since 1970.
    pub unix_ms: Vec<u64>,
    /// Packets per second received on all uplinks.
    pub offered_pps: Vec<f64>,
    /// Packets per second sent on all uplinks.
    pub returned_pps: Vec<f64>,
    /// Packets per second dropped, for all reasons.
    pub dropped_pps: Vec<f64>,
    /// The services in these points.
    pub services: Vec<ServiceHistory>,
    /// The instances in these points, in the order of ids, including removed ones.
    pub instances: Vec<InstanceHistory>,
    /// Maximum over all points of the instances beyond the 256 that are recorded.
    pub omitted_instances: u32,
}

/// The history of a service.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ServiceHistory {
    /// Its name.
    pub name: String,
    /// The index of its first point in `unix_ms`.
    pub first: u32,
    /// Active instances, from that point on.
    pub active: Vec<u32>,
    /// Target number of active instances.
    pub desired: Vec<u32>,
}

/// The history of an instance.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct InstanceHistory {
    /// Its id.
    pub id: InstanceId,
    /// Its service.
    pub service: String,
    /// The index of its first point in `unix_ms`.
    pub first: u32,
    /// Packets per second sent to it, from that point on.
    pub to_pps: Vec<f64>,
    /// Packets per second dropped on the way to it or in it.
    pub dropped_pps: Vec<f64>,
    /// Flows pinned to it.
    pub live_flows: Vec<u32>,
    /// Share of its ring that was occupied, 0 to 1.
    pub ring_occupancy: Vec<f64>,
}

/// The stored output of an instance's container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LogRow {
    /// The instance.
    pub instance: InstanceId,
    /// Its container.
    pub container: String,
    /// Position of the oldest stored byte: the number of bytes written before it.
    pub first: u64,
    /// Position after the newest byte.
    pub next: u64,
    /// When inco began to read its output, in milliseconds since 1970.
    pub started_unix_ms: u64,
    /// When it ended, in milliseconds since 1970; absent while it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_unix_ms: Option<u64>,
}

/// A piece of the output of an instance's container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LogPiece {
    /// Position of its first byte. It is later than requested if the requested output is not stored any more.
    pub from: u64,
    /// Position after its last byte: the start of the next piece.
    pub next: u64,
    /// The output, with invalid UTF-8 replaced; at most 64 KiB.
    pub text: String,
    /// Whether the container has ended and this is the end of its output.
    pub end: bool,
}

impl LogPiece {
    /// Maximum bytes of a piece.
    pub const LIMIT: usize = 64 << 10;
}

/// The instance of a flow, since when, and why.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FlowExplanation {
    /// The requested flow.
    #[schema(format = "flow")]
    pub flow: String,
    /// The service that matches it, if there is one.
    pub service: Option<String>,
    /// That match, as in the configuration.
    pub matched_by: Option<String>,
    /// The flow's entry in the flow table; absent if no packet has arrived or the flow has ended.
    pub pinned: Option<FlowRow>,
    /// The state of the instance of its forward direction.
    pub instance_state: Option<InstanceState>,
    /// When this direction was last pinned to its instance, in milliseconds since 1970, with a resolution of 3 ms.
    pub since_unix_ms: Option<u64>,
    /// The current scheduler of its service.
    pub scheduler: Option<String>,
    /// Why it is on its instance, or what happens to its next packet, in sentences.
    pub why: Vec<String>,
    /// Events of this flow: recorded decisions, moves and purges.
    pub events: Vec<Event>,
}

/// All policies.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Policies {
    /// The schedulers.
    pub schedulers: Vec<PolicyRow>,
    /// The autoscalers.
    pub autoscalers: Vec<PolicyRow>,
    /// The policies of each service.
    pub services: Vec<ServicePolicies>,
}

/// A policy.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PolicyRow {
    /// Its name.
    pub name: String,
    /// Its parameters.
    pub parameters: Vec<ParameterRow>,
}

/// A parameter of a policy.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ParameterRow {
    /// The key.
    pub name: String,
    /// Permitted values, with their unit.
    pub kind: String,
    /// The default.
    pub default: String,
    /// Its effect.
    pub meaning: String,
}

/// The policies of a service.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ServicePolicies {
    /// Its name.
    pub service: String,
    /// Its scheduler.
    pub scheduler: PolicyChoice,
    /// Its autoscaler.
    pub autoscaler: PolicyChoice,
}

/// Drops in the form of [`Status::drops`].
pub fn drops_by_reason(counts: &[u64; DropReason::COUNT]) -> BTreeMap<String, u64> {
    let counted = DropReason::ALL
        .iter()
        .zip(counts)
        .filter(|(_, packets)| **packets > 0);
    counted
        .map(|(reason, packets)| (reason.name().to_owned(), *packets))
        .collect()
}
