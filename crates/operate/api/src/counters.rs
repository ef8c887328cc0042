//! Every counter of a running inco: what `/v1/counters` tells and what `/metrics` is made of. All count up from 0 for as
//! long as what they are about is there, except for those called a gauge.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// All counters, as they stood at about one moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Counters {
    /// inco's version.
    pub version: String,
    /// When inco started, in seconds since 1970.
    pub start_unix_s: f64,
    /// By uplink.
    pub uplinks: Vec<UplinkCounters>,
    /// By service.
    pub services: Vec<ServiceCounters>,
    /// By instance.
    pub instances: Vec<InstanceCounters>,
    /// By worker.
    pub workers: Vec<WorkerCounters>,
    /// Packets dropped, by reason; every reason there is.
    pub drops: BTreeMap<String, u64>,
    /// Packets that functions made themselves.
    pub originated_packets: u64,
    /// Gauge: packets in rings, in functions and waiting.
    pub in_flight_packets: u64,
    /// How long reactions took, by kind.
    pub reactions: BTreeMap<String, SpanCounts>,
    /// The engine.
    pub engine: EngineCounters,
    /// What collects and decides.
    pub control: ControlCounters,
    /// Events, by kind.
    pub events: BTreeMap<String, u64>,
    /// Actions that were asked for.
    pub actions: Vec<ActionCount>,
    /// The files of the event log.
    pub event_log: EventLogCounters,
    /// Requests to the API.
    pub api: ApiCounters,
}

/// How often something took how long.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SpanCounts {
    /// How many took at most so long and longer than the bucket before: upper bound in seconds, count.
    pub buckets: Vec<(f64, u64)>,
    /// How many took longer than all bounds.
    pub above: u64,
    /// How long all took together, in seconds.
    pub sum_s: f64,
}

impl SpanCounts {
    /// How many there were.
    pub fn count(&self) -> u64 {
        self.buckets.iter().map(|(_, count)| count).sum::<u64>() + self.above
    }
}

impl From<&model::Histogram> for SpanCounts {
    fn from(of: &model::Histogram) -> SpanCounts {
        let bounds = model::Histogram::BOUNDS.iter().map(|bound| bound.0 as f64 / 1e9);
        SpanCounts {
            buckets: bounds.zip(of.counts().iter().copied()).collect(),
            above: of.counts().last().copied().unwrap_or(0),
            sum_s: of.sum().0 as f64 / 1e9,
        }
    }
}

/// One uplink.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct UplinkCounters {
    /// Its name.
    pub name: String,
    /// Gauge: whether it has a peer or a link.
    pub up: bool,
    /// Packets received.
    pub received_packets: u64,
    /// Their bytes.
    pub received_bytes: u64,
    /// Packets sent.
    pub sent_packets: u64,
    /// Their bytes.
    pub sent_bytes: u64,
    /// Packets for it that were dropped.
    pub dropped_packets: u64,
    /// Packets that its device dropped before the switch could take them.
    pub missed_packets: u64,
    /// Packets among those sent that its device then could not send.
    pub failed_packets: u64,
}

/// One service.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ServiceCounters {
    /// Its name.
    pub name: String,
    /// Packets of its flows, served or dropped.
    pub offered_packets: u64,
    /// Their bytes.
    pub offered_bytes: u64,
    /// Packets back from its instances, those that are gone included.
    pub returned_packets: u64,
    /// Their bytes.
    pub returned_bytes: u64,
    /// Packets dropped because no instance takes flows.
    pub unserved_packets: u64,
    /// Packets dropped at full rings of its instances, those that are gone included.
    pub ring_full_packets: u64,
    /// Packets sent by hash without a pin because the flow table was full.
    pub unpinned_packets: u64,
    /// New flows given to its instances, those that are gone included.
    pub new_flows: u64,
    /// Flows given to another instance because theirs had failed.
    pub expected_moves: u64,
    /// New flows given to an instance although none fitted.
    pub overcommitted_flows: u64,
    /// Gauge: flows pinned to its instances.
    pub live_flows: u64,
    /// Gauge: instances by state; every state but `gone`.
    pub states: BTreeMap<String, u32>,
    /// Gauge: active instances wanted.
    pub desired: u32,
    /// Gauge: active instances at least.
    pub min: u32,
    /// Gauge: active instances at most.
    pub max: u32,
    /// Gauge: offered rate ÷ capacity of the active instances, where that is known.
    pub utilisation: Option<f64>,
    /// Gauge: packets per second that one instance processes, where that is known.
    pub capacity_pps: Option<f64>,
    /// Gauge: whether the autoscaler is held back: `pause_in`, `pause_out`, `dry_run`.
    pub held_back: BTreeMap<String, bool>,
    /// Decisions by what they did: `out`, `in`, `resize`.
    pub decisions: BTreeMap<String, u64>,
    /// Its scheduler.
    pub scheduler: String,
    /// Its autoscaler.
    pub autoscaler: String,
}

/// One instance.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct InstanceCounters {
    /// Which one.
    pub id: u32,
    /// Its service.
    pub service: String,
    /// Its state.
    pub state: String,
    /// Packets put into its ring.
    pub to_packets: u64,
    /// Their bytes.
    pub to_bytes: u64,
    /// Packets back from it.
    pub back_packets: u64,
    /// Their bytes.
    pub back_bytes: u64,
    /// Packets dropped on the way to it or in it, by reason: `ring_full`, `too_large`, `lost`, `function`.
    pub drops: BTreeMap<String, u64>,
    /// Packets that it made itself.
    pub originated_packets: u64,
    /// Packets back that are of no flow of it.
    pub return_unmatched_packets: u64,
    /// Flows given to it.
    pub new_flows: u64,
    /// Gauge: flows pinned to it.
    pub live_flows: u64,
    /// Gauge: descriptors in the ring towards it.
    pub ring_used: u64,
    /// Gauge: descriptors that this ring has.
    pub ring_slots: u64,
    /// Times that its ring was seen full, or a quarter full twice in a row.
    pub hot: u64,
    /// Seconds in which it could not run: throttled by its quota, or waiting for a CPU.
    pub held_up_s: f64,
    /// Seconds in which its function was busy, where it tells.
    pub busy_s: Option<f64>,
    /// Gauge: memory in use, in bytes, where it is known.
    pub memory_bytes: Option<u64>,
    /// Gauge: CPUs that it may use, where that is limited.
    pub cpu_quota: Option<f64>,
    /// Gauge: rate given to it ÷ its capacity, where that is known.
    pub utilisation: Option<f64>,
}

/// One data plane worker.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct WorkerCounters {
    /// Counted from 0.
    pub worker: u8,
    /// Packets received from uplinks.
    pub received_packets: u64,
    /// Packets handed to other workers.
    pub handed_off_packets: u64,
    /// Packets of no service that were passed to an uplink.
    pub passed_packets: u64,
    /// Turns of its loop.
    pub turns: u64,
    /// Seconds in which it did not sleep.
    pub awake_s: f64,
    /// Seconds in which it moved packets.
    pub busy_s: f64,
    /// Gauge: the longest time between two turns without a sleep, in seconds.
    pub longest_gap_s: f64,
    /// Gauge: flows in its table.
    pub live_flows: u64,
    /// Gauge: flows that its table can hold.
    pub flow_limit: u64,
    /// Packets of flows that found no place in the table.
    pub table_full_packets: u64,
    /// Gauge: fragments that wait for their first one.
    pub fragments_waiting: u64,
    /// Events that found no room on their way to the control plane.
    pub events_lost: u64,
}

/// The engine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct EngineCounters {
    /// `oci` or `docker`.
    pub driver: String,
    /// Gauge: whether it answers.
    pub up: bool,
    /// How long calls took until they were answered, by call.
    pub calls: BTreeMap<String, SpanCounts>,
    /// Calls that failed, by call.
    pub failures: BTreeMap<String, u64>,
}

/// What collects and decides.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ControlCounters {
    /// Samples of all counters.
    pub samples: u64,
    /// Seconds that they took together.
    pub sampling_s: f64,
    /// Gauge: the longest one, in seconds.
    pub longest_sample_s: f64,
    /// How late each turn of the loop began.
    pub lag: SpanCounts,
    /// Gauge: the newest plan that workers were given.
    pub plan_generation: u64,
    /// Gauge: the newest plan that every worker steers by.
    pub plan_acknowledged: u64,
    /// Times that a changed configuration was applied.
    pub reloads: u64,
    /// Times that one was refused.
    pub reloads_refused: u64,
}

/// Actions of one kind.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ActionCount {
    /// What was asked.
    pub action: String,
    /// Whether it was refused.
    pub refused: bool,
    /// How often.
    pub count: u64,
}

/// The files of the event log.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct EventLogCounters {
    /// Events written.
    pub written_events: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Events that were not written: the disk was full, too slow, or refused.
    pub lost_events: u64,
}

/// Requests to the API.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ApiCounters {
    /// Answered requests, by status.
    #[schema(value_type = BTreeMap<String, u64>)]
    pub requests: BTreeMap<u16, u64>,
    /// Gauge: connections over the unix socket and over TCP.
    pub connections: BTreeMap<String, u64>,
    /// Connections that were closed because they took nothing or sent nothing for too long, or spoke no TLS.
    pub dropped_connections: u64,
}
