//! What is said over the API. Field names are stable: rates are packets per second, times say their unit.

use std::collections::BTreeMap;

use model::{DropReason, Event, InstanceId, InstanceState, KeyChange, PolicyChoice, Rollout};
use serde::{Deserialize, Serialize};
use thiserror::Error;
use utoipa::{IntoParams, ToSchema};

/// How inco fares as a whole.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Status {
    /// inco's version.
    pub version: String,
    /// Its process.
    pub pid: u32,
    /// The configuration file that it runs.
    pub file: String,
    /// Since it started, in seconds.
    pub uptime_s: f64,
    /// The engine that runs containers, and whether it answers.
    pub engine: EngineStatus,
    /// Data plane workers.
    pub workers: Vec<WorkerRow>,
    /// Uplinks, in the order of the configuration.
    pub uplinks: Vec<UplinkRow>,
    /// The ports that the switch has made for instances beforehand; absent where it makes none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ports: Option<PortPool>,
    /// Packets dropped, by reason; reasons without a packet are left out.
    pub drops: BTreeMap<String, u64>,
    /// Where all packets are.
    pub accounting: Accounting,
    /// What collecting costs.
    pub collector: CollectorStatus,
    /// Services whose instances fail, each with how often and why.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub failing: BTreeMap<String, String>,
    /// How fast the loop reacts.
    #[serde(default)]
    pub reactions: ReactionStatus,
    /// Flows in all tables.
    pub live_flows: u64,
    /// Flows that all tables can hold.
    pub flow_limit: u64,
    /// Events so far.
    pub events: u64,
}

/// Ports that were made for instances before there was traffic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PortPool {
    /// Instances that there are ports for.
    pub made: u32,
    /// Instances that have theirs, those that are made, drain or end included.
    pub taken: u32,
}

/// The engine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct EngineStatus {
    /// `oci` or `docker`.
    pub driver: String,
    /// Whether it answers.
    pub up: bool,
    /// For how long it has not answered, in milliseconds; 0 where it does.
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
            /// What the switch has counted. The other fields are empty.
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
        /// Counted from 0.
        worker: u8,
        /// The CPU that it is pinned to, where it is.
        cpu: Option<u16>,
        /// Share of the time in which it moved packets, 0 to 1.
        busy: f64,
        /// Share of the time in which it did not sleep, 0 to 1.
        awake: f64,
        /// The longest time between two turns without a sleep, in microseconds, of the last two to four seconds.
        longest_gap_us: f64,
        /// Packets received from uplinks.
        received_packets: u64 = received,
        /// Packets handed to other workers.
        handed_off_packets: u64 = handed_off,
        /// Moves of flows whose packets were held until those before were back (services of relaxed affinity).
        held_moves: u64 = held_moves,
        /// Those of them that went on before, since a limit was reached.
        early_moves: u64 = early_moves,
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
        /// Packets for it that were dropped.
        dropped_packets: u64 = dropped,
        /// Packets that its device dropped before the switch could take them: no part of the accounting. The device's
        /// own counter, at most 100 ms old.
        missed_packets: u64 = missed_packets,
        /// Packets among those sent that its device then could not send, likewise.
        failed_packets: u64 = failed_packets,
        /// Packets received per second, now.
        received_pps: f64,
        /// Packets sent per second, now.
        sent_pps: f64,
    }
}

impl UplinkRow {
    /// Its state for people: `up`, `waiting for peer` where a peer connects to it, else `down`.
    pub fn state(&self) -> &'static str {
        match self.up {
            true => "up",
            false if self.device.starts_with("memif:") => "waiting for peer",
            false => "down",
        }
    }
}

/// Where all packets are: offered = returned + dropped + in flight (what functions made themselves apart).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Accounting {
    /// Packets received from uplinks.
    pub offered: u64,
    /// Packets sent to uplinks.
    pub returned: u64,
    /// Packets that functions made themselves.
    pub originated: u64,
    /// Packets dropped, for whatever reason.
    pub dropped: u64,
    /// Packets in rings, in functions and waiting.
    pub in_flight: u64,
    /// Flows that moved because their instance failed or its drain ran out of time.
    pub expected_moves: u64,
}

impl Accounting {
    /// What no counter saw: 0 at rest. While packets move it is off by those that moved between two readings.
    pub fn gap(&self) -> i64 {
        let signed = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
        signed(self.offered)
            .saturating_add(signed(self.originated))
            .saturating_sub(signed(self.returned))
            .saturating_sub(signed(self.dropped))
            .saturating_sub(signed(self.in_flight))
    }
}

/// What collecting costs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CollectorStatus {
    /// Time between two samples, in microseconds.
    pub period_us: u64,
    /// Samples so far.
    pub samples: u64,
    /// Time that one takes on average, in microseconds.
    pub mean_us: f64,
    /// The longest one, in microseconds.
    pub longest_us: f64,
    /// Share of one CPU, 0 to 1.
    pub cpu: f64,
}

/// How fast the loop reacts, by kind of reaction.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ReactionStatus {
    /// From the first observation over the target to the decision for more instances.
    pub detect: ReactionTimes,
    /// From that decision until every worker gives new flows to the instance, where a drain was taken back.
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
    /// How many there were.
    pub count: u64,
    /// Median of the latest ones, in milliseconds.
    pub p50_ms: Option<f64>,
    /// 99 of 100 of the latest ones took no longer, in milliseconds.
    pub p99_ms: Option<f64>,
    /// The longest of all, in milliseconds.
    pub max_ms: Option<f64>,
}

/// A service.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ServiceRow {
    /// Its name.
    pub name: String,
    /// Its image.
    pub image: Option<String>,
    /// Its scheduler.
    pub scheduler: String,
    /// What the scheduler counts: packets, bytes, flows or busy.
    #[serde(default)]
    pub metric: String,
    /// Its autoscaler.
    pub autoscaler: String,
    /// Instances that take new flows.
    pub active: u32,
    /// Active instances wanted.
    pub desired: u32,
    /// Whether somebody set `desired` by hand.
    pub fixed: bool,
    /// Active instances at least.
    pub min: u32,
    /// Active instances at most.
    pub max: u32,
    /// Instances ready beside the active ones.
    pub standby: u32,
    /// Instances that are being made.
    pub starting: u32,
    /// Instances that serve the flows they have, and take no new ones.
    pub draining: u32,
    /// Flows pinned to its instances.
    pub live_flows: u64,
    /// Packets of its flows so far.
    pub offered_packets: u64,
    /// Packets dropped for want of an instance or of room in its ring.
    pub dropped_packets: u64,
    /// Packets of its flows per second, now.
    pub offered_pps: f64,
    /// Packets back from its instances per second, now.
    pub returned_pps: f64,
    /// New flows per second, now.
    pub new_flows_per_s: f64,
    /// Offered rate ÷ capacity of the active instances, where that is known.
    pub utilisation: Option<f64>,
    /// The highest load of an active instance: packets that come for it ÷ its capacity, where that is known.
    #[serde(default)]
    pub highest_utilisation: Option<f64>,
    /// Which instance that is.
    #[serde(default)]
    pub highest_instance: Option<InstanceId>,
    /// Why there are as many as there are: the autoscaler's last reason.
    pub reason: String,
    /// That its instances fail, how often they have in a row, and why: absent where they do not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failing: Option<String>,
    /// The rollout under way, or the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollout: Option<Rollout>,
    /// Whether the autoscaler may not ask for fewer instances.
    #[serde(default)]
    pub pause_in: bool,
    /// Whether the autoscaler may not ask for more instances.
    #[serde(default)]
    pub pause_out: bool,
    /// Whether the autoscaler only says what it would do.
    #[serde(default)]
    pub dry_run: bool,
    /// Active instances that the autoscaler would want if it were not held back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub would: Option<u32>,
}

/// An instance.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct InstanceRow {
    /// Which one.
    pub id: InstanceId,
    /// Its service.
    pub service: String,
    /// Its state.
    pub state: InstanceState,
    /// For how long, in milliseconds.
    pub state_ms: u64,
    /// Its place in the data plane, where it has one.
    pub slot: Option<u16>,
    /// The container's name, where it has one.
    pub container: Option<String>,
    /// The program's process, where it is known.
    pub pid: Option<u32>,
    /// Whether an earlier run of inco made it.
    pub adopted: bool,
    /// Packets per second given to it, now.
    pub to_pps: f64,
    /// Packets per second back from it, now.
    pub back_pps: f64,
    /// Packets given to it so far.
    pub to_packets: u64,
    /// Packets back from it so far.
    pub back_packets: u64,
    /// Flows pinned to it.
    pub live_flows: u64,
    /// Share of its ring that is occupied, 0 to 1.
    pub ring_occupancy: f64,
    /// Packets dropped on the way to it or in it, so far.
    pub dropped_packets: u64,
    /// Packets per second that it can process, where that is known.
    pub capacity_pps: Option<f64>,
    /// CPUs that it may use, where that is limited.
    pub cpu_quota: Option<f64>,
    /// CPU time that it uses, as a share of `cpu_quota`, or of one CPU where there is no quota: by the kernel's
    /// account, over the last second.
    #[serde(default)]
    pub cpu: Option<f64>,
    /// Share of the time in which the function was busy, where it tells.
    pub busy: Option<f64>,
    /// Memory in use, in bytes, where it is known.
    pub memory_bytes: Option<u64>,
    /// Why it is in its state.
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
    /// Since when each is there, forward and opposite: when the flow was pinned to its instance (again, where it was
    /// moved), in milliseconds since 1970 and to 3 ms.
    #[serde(default)]
    pub since_unix_ms: [Option<u64>; 2],
    /// Packets, forward and opposite.
    pub packets: [u64; 2],
    /// Bytes, forward and opposite.
    pub bytes: [u64; 2],
    /// Since its last packet, in milliseconds.
    pub idle_ms: u64,
    /// Where its connection is.
    pub state: String,
    /// Packets per second of both directions over the last second, where the heaviest flows were asked for: an
    /// estimate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pps: Option<f64>,
    /// How much of `pps` may be other flows'.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_pps: Option<f64>,
    /// How the rule of the flow is, where a switch forwards by rules: `queued`, `installed`, `refused` and why,
    /// `evicted`, or `on_bucket`: it has none, and the rule of its bucket forwards it. `offloaded`, `partly
    /// offloaded`, `not offloaded`: what a card has of it, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
}

/// Some of the flows.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FlowPage {
    /// The flows found.
    pub flows: Vec<FlowRow>,
    /// Whether these are all that the filter means; if not, the limit cut the rest off.
    pub complete: bool,
}

/// Which flows are wanted.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct FlowFilter {
    /// Of this service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    /// Pinned to this instance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[param(value_type = Option<u32>, format = "uint32", maximum = 4_294_967_295_u32)]
    pub instance: Option<InstanceId>,
    /// With this address on either end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[param(value_type = Option<String>, format = "ip")]
    pub address: Option<std::net::IpAddr>,
    /// This flow alone, in either direction: `tcp 10.0.0.1:1000 > 10.0.0.2:80`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[param(format = "flow")]
    pub flow: Option<String>,
    /// Only the so many that bring the most packets now, the heaviest first; at most [`FlowFilter::TOP_LIMIT`]. Flows
    /// that bring less than 1/64 of a worker's packets may be missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[param(format = "uint32", maximum = 4_294_967_295_u32)]
    pub top: Option<u32>,
    /// At most so many; [`FlowFilter::DEFAULT_LIMIT`] where it is not said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[param(format = "uint32", maximum = 4_294_967_295_u32)]
    pub limit: Option<u32>,
}

impl FlowFilter {
    /// Flows that are told where no limit is given: a few screens.
    pub const DEFAULT_LIMIT: u32 = 100;
    /// The most that may be asked for at once: some tens of megabytes of text.
    pub const LIMIT: u32 = 100_000;

    /// The heaviest flows that are known at once.
    pub const TOP_LIMIT: u32 = 64;

    /// How many flows are wanted at most.
    pub fn limit(&self) -> u32 {
        self.limit.unwrap_or(Self::DEFAULT_LIMIT).min(Self::LIMIT)
    }
}

/// What came of an action.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Outcome {
    /// In a sentence.
    pub result: String,
    /// Where the configuration was read again: each key that has changed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<KeyChange>,
    /// Where a command was run: how it ended, and what it wrote.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<CommandEnd>,
}

/// How a command in a container ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CommandEnd {
    /// Its exit status, where it exited.
    pub status: Option<i32>,
    /// The signal that ended it, where one did.
    pub signal: Option<i32>,
    /// What it wrote to its standard output and error, 64 KiB at most.
    pub output: String,
    /// Whether it wrote more than that.
    pub cut: bool,
}

impl Outcome {
    /// What came of an action, in a sentence.
    pub fn new(result: impl Into<String>) -> Outcome {
        Outcome {
            result: result.into(),
            changes: Vec::new(),
            command: None,
        }
    }
}

/// Why something was not done, and what to do instead.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{error}{}{hint}", if hint.is_empty() { "" } else { "; " })]
pub struct Refusal {
    /// What is the matter.
    pub error: String,
    /// What to do.
    pub hint: String,
}

impl Refusal {
    /// What is the matter, and what to do.
    pub fn new(error: impl Into<String>, hint: impl Into<String>) -> Refusal {
        Refusal {
            error: error.into(),
            hint: hint.into(),
        }
    }
}

/// A [`Refusal`] as it is sent: RFC 9457, `application/problem+json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Problem {
    /// Always `about:blank`: `status` says which kind it is.
    #[serde(rename = "type")]
    pub kind: String,
    /// The status in words.
    pub title: String,
    /// The HTTP status.
    pub status: u16,
    /// What is the matter.
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

/// Everything that a screen shows, of one moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Snapshot {
    /// When, in milliseconds since 1970.
    pub unix_ms: u64,
    /// How inco fares as a whole.
    pub status: Status,
    /// Every service, in the order of the configuration.
    pub services: Vec<ServiceRow>,
    /// Every instance, in the order of ids.
    pub instances: Vec<InstanceRow>,
}

/// The last minutes, by column. Every list of the whole has one value for each of `unix_ms`, the oldest first.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct History {
    /// The process that this is the history of.
    pub pid: u32,
    /// Time between two points, in milliseconds.
    pub period_ms: u32,
    /// When each point was taken, in milliseconds since 1970.
    pub unix_ms: Vec<u64>,
    /// Packets per second received on all uplinks.
    pub offered_pps: Vec<f64>,
    /// Packets per second sent on all uplinks.
    pub returned_pps: Vec<f64>,
    /// Packets per second dropped, for whatever reason.
    pub dropped_pps: Vec<f64>,
    /// Each service of these points.
    pub services: Vec<ServiceHistory>,
    /// Each instance of these points, in the order of ids; also those that are gone.
    pub instances: Vec<InstanceHistory>,
    /// Instances that a point had beyond the 256 that are kept: the most of any point.
    pub omitted_instances: u32,
}

/// What a service was in these minutes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ServiceHistory {
    /// Its name.
    pub name: String,
    /// The index of its first point in `unix_ms`.
    pub first: u32,
    /// Active instances, from that point on.
    pub active: Vec<u32>,
    /// Instances that the autoscaler, or somebody, wanted.
    pub desired: Vec<u32>,
}

/// What an instance did in these minutes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct InstanceHistory {
    /// Which one.
    pub id: InstanceId,
    /// Its service.
    pub service: String,
    /// The index of its first point in `unix_ms`.
    pub first: u32,
    /// Packets per second given to it, from that point on.
    pub to_pps: Vec<f64>,
    /// Packets per second dropped on the way to it or in it.
    pub dropped_pps: Vec<f64>,
    /// Flows pinned to it.
    pub live_flows: Vec<u32>,
    /// Share of its ring that was occupied, 0 to 1.
    pub ring_occupancy: Vec<f64>,
}

/// What is kept of the output of an instance's container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LogRow {
    /// The instance.
    pub instance: InstanceId,
    /// Its container.
    pub container: String,
    /// The position of the oldest byte that is kept: so many were written before.
    pub first: u64,
    /// The position after the newest byte.
    pub next: u64,
    /// From when on its output was read, in milliseconds since 1970.
    pub started_unix_ms: u64,
    /// When it ended, in milliseconds since 1970; absent while it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_unix_ms: Option<u64>,
}

/// A piece of the output of an instance's container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LogPiece {
    /// The position of its first byte; later than what was asked for where the output from there is not kept any
    /// more.
    pub from: u64,
    /// The position after its last byte: where the next piece begins.
    pub next: u64,
    /// What was written, as far as it is UTF-8; 64 KiB at most.
    pub text: String,
    /// Whether the container has ended and this is the last of its output.
    pub end: bool,
}

impl LogPiece {
    /// Bytes of a piece at most.
    pub const LIMIT: usize = 64 << 10;
}

/// Where a flow is, since when, and why there.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FlowExplanation {
    /// The flow that was asked for.
    #[schema(format = "flow")]
    pub flow: String,
    /// The service whose match takes it, where there is one.
    pub service: Option<String>,
    /// That match, as the configuration has it.
    pub matched_by: Option<String>,
    /// The flow as the table has it; absent where no packet of it has come, or it has ended.
    pub pinned: Option<FlowRow>,
    /// The state of the instance of its forward direction.
    pub instance_state: Option<InstanceState>,
    /// When packets of this direction were pinned to their instance (again, where the flow was moved), in
    /// milliseconds since 1970 and to 3 ms.
    pub since_unix_ms: Option<u64>,
    /// The scheduler that gives new flows of its service to instances now.
    pub scheduler: Option<String>,
    /// Why it is where it is, or what would happen to its next packet, in sentences.
    pub why: Vec<String>,
    /// Events about it: recorded decisions, moves and purges.
    pub events: Vec<Event>,
}

/// The policies that there are.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Policies {
    /// What picks an instance for a new flow.
    pub schedulers: Vec<PolicyRow>,
    /// What says how many instances there are.
    pub autoscalers: Vec<PolicyRow>,
    /// What each service uses.
    pub services: Vec<ServicePolicies>,
}

/// A policy.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PolicyRow {
    /// Its name.
    pub name: String,
    /// What can be set.
    pub parameters: Vec<ParameterRow>,
}

/// A parameter of a policy.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ParameterRow {
    /// The key.
    pub name: String,
    /// What may be written, with its unit.
    pub kind: String,
    /// What holds where it is not written.
    pub default: String,
    /// What it does.
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

/// Drops as [`Status::drops`] has them.
pub fn drops_by_reason(counts: &[u64; DropReason::COUNT]) -> BTreeMap<String, u64> {
    let counted = DropReason::ALL
        .iter()
        .zip(counts)
        .filter(|(_, packets)| **packets > 0);
    counted
        .map(|(reason, packets)| (reason.name().to_owned(), *packets))
        .collect()
}
