//! Every counter of a running inco: what `/v1/counters` tells and what `/metrics` is made of. All count up from 0 for as
//! long as what they are about is there, except for those called a gauge.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// How a metric counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Up, in things.
    Counter,
    /// Up, in seconds.
    Seconds,
    /// Up and down.
    Gauge,
}

/// A figure of a metric.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Number {
    Whole(u64),
    Real(f64),
}

/// The metric that a field of `T` is.
pub(crate) struct Metric<T> {
    pub(crate) kind: Kind,
    /// Without the prefix `inco_` and a counter's `_total`.
    pub(crate) name: &'static str,
    pub(crate) help: &'static str,
    /// `None` where it is not known.
    pub(crate) value: fn(&T) -> Option<Number>,
}

/// What counters are about: an uplink, a service, an instance, a worker.
pub(crate) trait Level: Sized + 'static {
    /// Fields that are metrics, in their order.
    const METRICS: &'static [Metric<Self>];
}

/// A field that can be a metric.
trait Figure {
    fn number(&self) -> Option<Number>;
}

macro_rules! figures {
    ($($type:ty: |$value:ident| $number:expr;)*) => {$(
        impl Figure for $type {
            fn number(&self) -> Option<Number> {
                let $value = *self;
                $number
            }
        }
    )*};
}

figures! {
    u64: |n| Some(Number::Whole(n));
    u32: |n| Some(Number::Whole(u64::from(n)));
    bool: |is_so| Some(Number::Whole(u64::from(is_so)));
    f64: |n| Some(Number::Real(n));
    Option<u64>: |n| n.map(Number::Whole);
    Option<f64>: |n| n.map(Number::Real);
}

/// Declares counters, each in one row: the field in the API with its documentation and, where it is a metric by itself,
/// how that counts, its name and its help. To add one, add a row, and give it a value in the orchestrator's `figures.rs`.
macro_rules! levels {
    ($(
        $(#[$outer:meta])*
        $level:ident {
            $($(#[$doc:meta])* $field:ident: $type:ty $(= $kind:ident $name:literal $help:literal)?,)*
        }
    )*) => {$(
        $(#[$outer])*
        #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
        pub struct $level {
            $($(#[$doc])* pub $field: $type,)*
        }

        impl Level for $level {
            const METRICS: &'static [Metric<$level>] = &[$($(Metric {
                kind: Kind::$kind,
                name: $name,
                help: $help,
                value: |of| of.$field.number(),
            },)?)*];
        }
    )*};
}

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

levels! {
    /// One uplink.
    UplinkCounters {
        /// Its name.
        name: String,
        /// Gauge: whether it has a peer or a link.
        up: bool = Gauge "uplink_up" "Whether the uplink has a peer or a link",
        /// Packets received.
        received_packets: u64 = Counter "uplink_received_packets" "Packets received from the uplink",
        /// Their bytes.
        received_bytes: u64 = Counter "uplink_received_bytes" "Bytes received from the uplink",
        /// Packets sent.
        sent_packets: u64 = Counter "uplink_sent_packets" "Packets sent to the uplink",
        /// Their bytes.
        sent_bytes: u64 = Counter "uplink_sent_bytes" "Bytes sent to the uplink",
        /// Packets for it that were dropped.
        dropped_packets: u64 = Counter "uplink_dropped_packets" "Packets for the uplink that were dropped",
        /// Packets that its device dropped before the switch could take them.
        missed_packets: u64
            = Counter "uplink_missed_packets" "Packets that the device dropped before the switch could take them",
        /// Packets among those sent that its device then could not send.
        failed_packets: u64 = Counter "uplink_failed_packets" "Packets that the device took and could not send",
    }

    /// One service.
    ServiceCounters {
        /// Its name.
        name: String,
        /// Packets of its flows, served or dropped.
        offered_packets: u64 = Counter "service_offered_packets" "Packets of the service's flows, served or dropped",
        /// Their bytes.
        offered_bytes: u64 = Counter "service_offered_bytes" "Bytes of the service's flows, served or dropped",
        /// Packets back from its instances, those that are gone included.
        returned_packets: u64 = Counter "service_returned_packets" "Packets back from the service's instances",
        /// Their bytes.
        returned_bytes: u64 = Counter "service_returned_bytes" "Bytes back from the service's instances",
        /// Packets dropped because no instance takes flows.
        unserved_packets: u64,
        /// Packets dropped at full rings of its instances, those that are gone included.
        ring_full_packets: u64,
        /// Packets sent by hash without a pin because the flow table was full.
        unpinned_packets: u64
            = Counter "service_unpinned_packets" "Packets sent by hash without a pin because the flow table was full",
        /// New flows given to its instances, those that are gone included.
        new_flows: u64 = Counter "service_new_flows" "New flows given to the service's instances",
        /// Flows given to another instance because theirs had failed.
        expected_moves: u64
            = Counter "service_expected_moves" "Flows given to another instance because theirs had failed",
        /// New flows given to an instance although none fitted.
        overcommitted_flows: u64
            = Counter "service_overcommitted_flows" "New flows given to an instance although none fitted",
        /// Gauge: flows pinned to its instances.
        live_flows: u64 = Gauge "service_live_flows" "Flows pinned to the service's instances",
        /// Gauge: instances by state; every state but `gone`.
        states: BTreeMap<String, u32>,
        /// Gauge: active instances wanted.
        desired: u32 = Gauge "service_desired_instances" "Active instances wanted",
        /// Gauge: active instances at least.
        min: u32 = Gauge "service_min_instances" "Active instances at least",
        /// Gauge: active instances at most.
        max: u32 = Gauge "service_max_instances" "Active instances at most",
        /// Gauge: offered rate ÷ capacity of the active instances, where that is known.
        utilisation: Option<f64>
            = Gauge "service_utilisation_ratio" "Offered rate by the capacity of the active instances",
        /// Gauge: packets per second that one instance processes, where that is known.
        capacity_pps: Option<f64>
            = Gauge "service_instance_capacity_pps" "Packets per second that one instance processes",
        /// Gauge: whether the autoscaler is held back: `pause_in`, `pause_out`, `dry_run`.
        held_back: BTreeMap<String, bool>,
        /// Decisions by what they did: `out`, `in`, `resize`.
        decisions: BTreeMap<String, u64>,
        /// Its scheduler.
        scheduler: String,
        /// Its autoscaler.
        autoscaler: String,
    }

    /// One instance.
    InstanceCounters {
        /// Which one.
        id: u32,
        /// Its service.
        service: String,
        /// Its state.
        state: String,
        /// Packets put into its ring.
        to_packets: u64 = Counter "instance_to_packets" "Packets put into the instance's ring",
        /// Their bytes.
        to_bytes: u64 = Counter "instance_to_bytes" "Bytes put into the instance's ring",
        /// Packets back from it.
        back_packets: u64 = Counter "instance_back_packets" "Packets back from the instance",
        /// Their bytes.
        back_bytes: u64 = Counter "instance_back_bytes" "Bytes back from the instance",
        /// Packets dropped on the way to it or in it, by reason: `ring_full`, `too_large`, `lost`, `function`.
        drops: BTreeMap<String, u64>,
        /// Packets that it made itself.
        originated_packets: u64 = Counter "instance_originated_packets" "Packets that the instance made itself",
        /// Packets back that are of no flow of it.
        return_unmatched_packets: u64
            = Counter "instance_return_unmatched_packets" "Packets back that are of no flow of the instance",
        /// Flows given to it.
        new_flows: u64 = Counter "instance_new_flows" "Flows given to the instance",
        /// Gauge: flows pinned to it.
        live_flows: u64 = Gauge "instance_live_flows" "Flows pinned to the instance",
        /// Gauge: descriptors in the ring towards it.
        ring_used: u64 = Gauge "instance_ring_used_descriptors" "Descriptors in the ring towards the instance",
        /// Gauge: descriptors that this ring has.
        ring_slots: u64 = Gauge "instance_ring_descriptors" "Descriptors that the ring towards the instance has",
        /// Times that its ring was seen full, or a quarter full twice in a row.
        hot: u64 = Counter "instance_hot" "Times that its ring was seen full, or a quarter full twice in a row",
        /// Seconds in which it could not run: throttled by its quota, or waiting for a CPU.
        held_up_s: f64
            = Seconds "instance_held_up_seconds" "Time in which the instance could not run: throttled by its quota, or waiting for a CPU",
        /// Seconds of CPU time that it used, by the kernel's account.
        cpu_s: Option<f64>
            = Seconds "instance_cpu_seconds" "CPU time that the instance used, by the kernel's account",
        /// Seconds in which its function was busy, where it tells.
        busy_s: Option<f64> = Seconds "instance_busy_seconds" "Time in which the function was busy, where it tells",
        /// Gauge: memory in use, in bytes, where it is known.
        memory_bytes: Option<u64> = Gauge "instance_memory_bytes" "Memory in use",
        /// Gauge: CPUs that it may use, where that is limited.
        cpu_quota: Option<f64> = Gauge "instance_quota_cpus" "CPUs that the instance may use, where that is limited",
        /// Gauge: rate given to it ÷ its capacity, where that is known.
        utilisation: Option<f64> = Gauge "instance_utilisation_ratio" "Rate given to the instance by its capacity",
    }

    /// One data plane worker.
    WorkerCounters {
        /// Counted from 0.
        worker: u8,
        /// Packets received from uplinks.
        received_packets: u64 = Counter "worker_received_packets" "Packets that the worker received from uplinks",
        /// Packets handed to other workers.
        handed_off_packets: u64 = Counter "worker_handed_off_packets" "Packets that the worker handed to others",
        /// Packets of no service that were passed to an uplink.
        passed_packets: u64
            = Counter "worker_passed_packets" "Packets of no service that the worker passed to an uplink",
        /// Turns of its loop.
        turns: u64 = Counter "worker_turns" "Turns of the worker's loop",
        /// Seconds in which it did not sleep.
        awake_s: f64 = Seconds "worker_awake_seconds" "Time in which the worker did not sleep",
        /// Seconds in which it moved packets.
        busy_s: f64 = Seconds "worker_busy_seconds" "Time in which the worker moved packets",
        /// Gauge: the longest time between two turns without a sleep, in seconds.
        longest_gap_s: f64 = Gauge "worker_longest_gap_seconds" "The longest time between two turns without a sleep",
        /// Gauge: flows in its table.
        live_flows: u64 = Gauge "worker_flows" "Flows in the worker's table",
        /// Gauge: flows that its table can hold.
        flow_limit: u64 = Gauge "worker_flow_limit" "Flows that the worker's table can hold",
        /// Packets of flows that found no place in the table.
        table_full_packets: u64
            = Counter "worker_table_full_packets" "Packets of flows that found no place in the worker's flow table",
        /// Gauge: fragments that wait for their first one.
        fragments_waiting: u64 = Gauge "worker_waiting_fragments" "Fragments that wait for their first one",
        /// Events that found no room on their way to the control plane.
        events_lost: u64 = Counter "worker_lost_events" "Events that found no room on their way to the control plane",
    }
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

levels! {
    /// What collects and decides.
    ControlCounters {
        /// Samples of all counters.
        samples: u64 = Counter "collector_samples" "Samples of all counters",
        /// Seconds that they took together.
        sampling_s: f64 = Seconds "collector_sampling_seconds" "Time that sampling took",
        /// Gauge: the longest one, in seconds.
        longest_sample_s: f64 = Gauge "collector_longest_sample_seconds" "The longest sample",
        /// How late each turn of the loop began.
        lag: SpanCounts,
        /// Gauge: the newest plan that workers were given.
        plan_generation: u64 = Gauge "plan_generation" "The newest plan that workers were given",
        /// Gauge: the newest plan that every worker steers by.
        plan_acknowledged: u64 = Gauge "plan_acknowledged_generation" "The newest plan that every worker steers by",
        /// Times that a changed configuration was applied.
        reloads: u64,
        /// Times that one was refused.
        reloads_refused: u64,
    }
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

levels! {
    /// The files of the event log.
    EventLogCounters {
        /// Events written.
        written_events: u64 = Counter "event_log_written_events" "Events written to the event log's files",
        /// Bytes written.
        written_bytes: u64 = Counter "event_log_written_bytes" "Bytes written to the event log's files",
        /// Events that were not written: the disk was full, too slow, or refused.
        lost_events: u64
            = Counter "event_log_lost_events" "Events that could not be written: the disk was full, too slow, or refused",
    }
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
