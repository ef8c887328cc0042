//! All counters of a running inco, for `/v1/counters` and `/metrics`. A counter starts at 0 and increases while its
//! subject exists. Gauges are marked as such.

use std::collections::BTreeMap;

use model::ActorSide;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::types::ActorsRow;

/// How a metric counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A count.
    Counter,
    /// A sum of seconds.
    Seconds,
    /// A gauge.
    Gauge,
}

/// A value of a metric.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Number {
    Whole(u64),
    Real(f64),
}

/// The metric of a field of `T`.
pub(crate) struct Metric<T> {
    pub(crate) kind: Kind,
    /// Without the prefix `inco_` and a counter's `_total`.
    pub(crate) name: &'static str,
    pub(crate) help: &'static str,
    /// `None` if unknown.
    pub(crate) value: fn(&T) -> Option<Number>,
}

/// The subject of counters: an uplink, a service, an instance, a worker.
pub(crate) trait Level: Sized + 'static {
    /// The fields that are metrics, in order.
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

/// A counter of the switch in the form of the API.
trait Shown {
    fn shown(counted: u64) -> Self;
}

impl Shown for u64 {
    fn shown(counted: u64) -> u64 {
        counted
    }
}

/// Nanoseconds, in seconds.
impl Shown for f64 {
    fn shown(counted: u64) -> f64 {
        counted as f64 / 1e9
    }
}

/// The help text of a metric: its field's documentation without the full stop and without "A gauge.".
const fn help(documentation: &'static str, kind: Kind) -> &'static str {
    let bytes = documentation.trim_ascii().as_bytes();
    let (text, is_gauge) = match bytes.split_last_chunk() {
        Some((text, b". A gauge.")) => (text, true),
        _ => match bytes {
            [text @ .., b'.'] | text => (text, false),
        },
    };
    assert!(
        is_gauge == matches!(kind, Kind::Gauge),
        "a gauge's documentation ends in \"A gauge.\", and that of nothing else"
    );
    match std::str::from_utf8(text) {
        Ok(text) => text,
        // The text before the full stop is valid UTF-8.
        Err(_) => "",
    }
}

macro_rules! kind {
    (counter) => {
        Kind::Counter
    };
    (nanoseconds) => {
        Kind::Seconds
    };
    (seconds) => {
        Kind::Seconds
    };
    (gauge) => {
        Kind::Gauge
    };
}

/// Declares a level. Each row is a field of the API with its documentation. If the field is also a metric, the row
/// has its kind and its name. A level has its own rows and those of its table in `counter_table.rs` of `model`.
macro_rules! level {
    // A level of a switch: `of` takes the switch's counters.
    (
        { $(#[$outer:meta])* $level:ident of $counters:ty $(, $instances:ty)? { $($own:tt)* } }
        workers { $(
            #[doc = $help:tt] $name:ident: $kind:ident
            $(=> $api:ident: $type:ident $($metric:literal)?)? $(, drop $reason:literal)?;
        )* }
        others { $(
            #[doc = $other_help:tt] $other:ident: $other_kind:ident
            $(=> $other_api:ident: $other_type:ident $($other_metric:literal)?)?;
        )* }
        $(of_instances { $(
            #[doc = $sum_help:tt] $sum:ident: $sum_kind:ident
            => $sum_api:ident: $sum_type:ident $($sum_metric:literal)?;
        )* })?
    ) => {
        level! { $(#[$outer])* $level {
            $($own)*
            $($(#[doc = $help] $api: $type $(= $kind $metric)?,)?)*
            $($(#[doc = $other_help] $other_api: $other_type $(= $other_kind $other_metric)?,)?)*
            $($(#[doc = $sum_help] $sum_api: $sum_type $(= $sum_kind $sum_metric)?,)*)?
        } }

        impl $level {
            /// The switch's counters. The other fields are empty.
            pub fn of(counters: &$counters $(, instances: &$instances)?) -> $level {
                $level {
                    $($($api: Shown::shown(counters.$name),)?)*
                    $($($other_api: Shown::shown(counters.$other),)?)*
                    $($($sum_api: Shown::shown(instances.$sum),)*)?
                    ..$level::default()
                }
            }
        }
    };
    ($(#[$outer:meta])* $level:ident {
        $(#[doc = $help:tt] $field:ident: $type:ty $(= $kind:ident $name:literal)?,)*
    }) => {
        $(#[$outer])*
        #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
        pub struct $level {
            $(#[doc = $help] pub $field: $type,)*
        }

        impl Level for $level {
            const METRICS: &'static [Metric<$level>] = &[$($(Metric {
                kind: kind!($kind),
                name: $name,
                help: const { help($help, kind!($kind)) },
                value: |of| of.$field.number(),
            },)?)*];
        }
    };
}

/// All counters, read at about the same moment. Fields that end in `_s` are in seconds, in `_bytes` in bytes.
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
    /// By instance and function: what functions say of themselves.
    #[serde(default)]
    pub functions: Vec<FunctionCounters>,
    /// By service of actors and actor.
    #[serde(default)]
    pub actors: Vec<ActorCounters>,
    /// By service of actors and side.
    #[serde(default)]
    pub actor_sides: Vec<ActorSideCounters>,
    /// By worker.
    pub workers: Vec<WorkerCounters>,
    /// Packets dropped, by reason; all reasons.
    pub drops: BTreeMap<String, u64>,
    /// Packets that functions originated.
    pub originated_packets: u64,
    /// Packets in rings, in functions and held by the switch. A gauge.
    pub in_flight_packets: u64,
    /// Duration of reactions, by kind.
    pub reactions: BTreeMap<String, SpanCounts>,
    /// The engine.
    pub engine: EngineCounters,
    /// The control loop.
    pub control: ControlCounters,
    /// Signals of the host's manager.
    #[serde(default)]
    pub signals: SignalCounters,
    /// Load reports between machines and edges.
    #[serde(default)]
    pub reports: ReportCounters,
    /// Events, by kind.
    pub events: BTreeMap<String, u64>,
    /// Requested actions.
    pub actions: Vec<ActionCount>,
    /// The files of the event log.
    pub event_log: EventLogCounters,
    /// What was taken over from an earlier run, at the start.
    #[serde(default)]
    pub resumed: ResumedCounters,
    /// Requests to the API.
    pub api: ApiCounters,
}

/// A histogram of durations.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SpanCounts {
    /// The buckets: upper bound in seconds, and the number of durations above the previous bound and up to this one.
    pub buckets: Vec<(f64, u64)>,
    /// Number of durations above all bounds.
    pub above: u64,
    /// Sum of all durations, in seconds.
    pub sum_s: f64,
}

impl SpanCounts {
    /// Number of reactions.
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

model::uplink_counters! { level! {
    /// One uplink.
    UplinkCounters of switch::UplinkCounters {
        /// Its name.
        name: String,
        /// Whether the uplink has a peer or a link. A gauge.
        up: bool = gauge "uplink_up",
    }
} }

model::service_counters! { level! {
    /// One service. Sums over its instances include removed ones.
    ServiceCounters of switch::ServiceCounters, switch::SlotCounters {
        /// Its name.
        name: String,
        /// Flows pinned to the service's instances. A gauge.
        live_flows: u64 = gauge "service_live_flows",
        /// Instances by state, for every state but `gone`. A gauge.
        states: BTreeMap<String, u32>,
        /// Target number of active instances. A gauge.
        desired: u32 = gauge "service_desired_instances",
        /// Active instances that take no new flows, as their checks or their agents say. A gauge.
        unfit: u32 = gauge "service_unfit_instances",
        /// Health checks of its instances.
        checks: u64 = counter "service_checks",
        /// Health checks that did not pass.
        failed_checks: u64 = counter "service_failed_checks",
        /// Questions to agents of its instances of which nothing came.
        silent_agents: u64 = counter "service_silent_agents",
        /// Instances that failed.
        failed_instances: u64 = counter "service_failed_instances",
        /// Failures in a row of new instances: 0 once one has run for ten seconds. A gauge.
        failures_in_a_row: u32 = gauge "service_failures_in_a_row",
        /// Minimum number of active instances. A gauge.
        min: u32 = gauge "service_min_instances",
        /// Maximum number of active instances. A gauge.
        max: u32 = gauge "service_max_instances",
        /// Offered rate divided by the capacity of the active instances, if known. A gauge.
        utilisation: Option<f64> = gauge "service_utilisation_ratio",
        /// Packets per second that one instance can process, if known. A gauge.
        capacity_pps: Option<f64> = gauge "service_instance_capacity_pps",
        /// Jain's index of the active instances' packet rates over the last second: 1 if all are equal. A gauge.
        jain: Option<f64> = gauge "service_jain_index",
        /// The highest packet rate of an active instance divided by the lowest, over the last second. A gauge.
        max_min: Option<f64> = gauge "service_max_min_ratio",
        /// Restrictions of the autoscaler: `pause_in`, `pause_out`, `dry_run`. A gauge.
        held_back: BTreeMap<String, bool>,
        /// Decisions of the autoscaler, by kind: `out`, `in`, `resize`, `relocate`.
        decisions: BTreeMap<String, u64>,
        /// Its scheduler.
        scheduler: String,
        /// Its autoscaler.
        autoscaler: String,
    }
} }

model::slot_counters! { level! {
    /// One instance.
    InstanceCounters of switch::SlotCounters {
        /// Its id.
        id: u32,
        /// Its service.
        service: String,
        /// The place where it runs, if places are configured.
        place: Option<String>,
        /// Its state.
        state: String,
        /// Packets dropped on the way to it or in it, by reason: `ring_full`, `too_large`, `lost`, `function`.
        drops: BTreeMap<String, u64>,
        /// CPU time that the instance used, as the kernel accounts it.
        cpu_s: Option<f64> = seconds "instance_cpu_seconds",
        /// Time in which the function was busy, if it reports it.
        busy_s: Option<f64> = seconds "instance_busy_seconds",
        /// Mean time between two packets for it, over the last ten milliseconds; none without packets. A gauge.
        gap_s: Option<f64> = gauge "instance_packet_gap_seconds",
        /// Time that half of the packets waited in its ring in the last second, by samples. A gauge.
        ring_wait_p50_s: Option<f64> = gauge "instance_ring_wait_p50_seconds",
        /// Time that 99 % of the packets waited in its ring in the last second, by samples. A gauge.
        ring_wait_p99_s: Option<f64> = gauge "instance_ring_wait_p99_seconds",
        /// Time that half of the packets took in the function in the last second, if it reports it. A gauge.
        function_p50_s: Option<f64> = gauge "instance_function_p50_seconds",
        /// Time that 99 % of the packets took in the function in the last second, if it reports it. A gauge.
        function_p99_s: Option<f64> = gauge "instance_function_p99_seconds",
        /// Share of the last quarter of a second in which it was throttled by its quota or waited for a CPU. A gauge.
        held_up: f64 = gauge "instance_held_up_ratio",
        /// Its part of the watts that RAPL or a power meter of the machine says, by its CPU time; none without a meter. A gauge.
        watts: Option<f64> = gauge "instance_watts",
        /// MODEL, not measured: watts that it adds, by `watts_per_core` of its place. Only without a meter. A gauge.
        model_watts: Option<f64> = gauge "instance_model_watts",
        /// MODEL: the least that they may be. A gauge.
        model_watts_low: Option<f64> = gauge "instance_model_watts_low",
        /// MODEL: the most that they may be. A gauge.
        model_watts_high: Option<f64> = gauge "instance_model_watts_high",
        /// Memory in use, if known. A gauge.
        memory_bytes: Option<u64> = gauge "instance_memory_bytes",
        /// CPU limit of the instance, in CPUs, if there is one. A gauge.
        cpu_quota: Option<f64> = gauge "instance_quota_cpus",
        /// Offered rate of the instance divided by its capacity, if known. A gauge.
        utilisation: Option<f64> = gauge "instance_utilisation_ratio",
    }
} }

model::worker_counters! { level! {
    /// One data plane worker.
    WorkerCounters of switch::WorkerTotals {
        /// Number, from 0.
        worker: u8,
        /// The longest time between two turns without a sleep, in the last two to four seconds. A gauge.
        longest_gap_s: f64 = gauge "worker_longest_gap_seconds",
    }
} }

/// The engine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct EngineCounters {
    /// `oci` or `docker`.
    pub driver: String,
    /// Whether it answers. A gauge.
    pub up: bool,
    /// Duration of calls, by call.
    pub calls: BTreeMap<String, SpanCounts>,
    /// Calls that failed, by call.
    pub failures: BTreeMap<String, u64>,
}

level! {
    /// A function of an instance, by its own account. Names consist of lower-case letters, digits and underscores.
    FunctionCounters {
        /// The instance's id.
        instance: u32,
        /// Its service.
        service: String,
        /// Its place in the instance's chain, from 0 on, as packets from the first uplink pass it.
        stage: u32,
        /// Its name.
        name: String,
        /// Packets that the function was given.
        packets: u64 = counter "function_packets",
        /// Packets that went on from the function.
        forwarded: u64 = counter "function_forwarded_packets",
        /// Packets that went back from the function as answers.
        answered: u64 = counter "function_answered_packets",
        /// Packets that were for the function itself.
        consumed: u64 = counter "function_consumed_packets",
        /// Packets that the function made.
        originated: u64 = counter "function_originated_packets",
        /// Packets that the function wanted to make, and that found no room.
        refused: u64 = counter "function_refused_packets",
        /// Packets that it dropped, by reason.
        drops: BTreeMap<String, u64>,
        /// Its own totals, by name.
        totals: BTreeMap<String, u64>,
        /// Its own gauges, by name.
        gauges: BTreeMap<String, u64>,
        /// Configurations that the function has taken since it started.
        reloads: u64 = counter "function_reloads",
        /// Entries of the function's configuration: rules, routes, patterns. A gauge.
        entries: u64 = gauge "function_entries",
        /// Flows that the function holds state of. A gauge.
        flows: u64 = gauge "function_flows",
        /// Flows that the function can hold. A gauge.
        flows_limit: u64 = gauge "function_flows_limit",
    }
}

level! {
    /// An actor of a service of actors, over both of its sides.
    ActorCounters {
        /// Its service.
        service: String,
        /// Its name.
        actor: String,
        /// Where it is: `card`, `host`, or nothing while it is on neither.
        side: String,
        /// Messages that the actor has handled.
        served: u64 = counter "actor_messages",
        /// Moves of the actor that have ended on the other side.
        migrations: u64 = counter "actor_migrations",
        /// Messages that wait in the actor's mailbox. A gauge.
        mailbox: u64 = gauge "actor_mailbox_messages",
        /// Mean of the actor's response times. A gauge.
        mean_s: f64 = gauge "actor_response_mean_seconds",
        /// Tail of the actor's response times: mean and three deviations. A gauge.
        tail_s: f64 = gauge "actor_response_tail_seconds",
        /// Cores that the actor's messages need, over the last second. A gauge.
        load: f64 = gauge "actor_load_cores",
        /// Objects of the actor. A gauge.
        objects: u64 = gauge "actor_objects",
        /// Bytes of the actor's objects. A gauge.
        object_bytes: u64 = gauge "actor_object_bytes",
        /// Whether the actor is on the host. A gauge.
        on_host: bool = gauge "actor_on_host",
        /// Whether the actor runs: it is neither paused, stopped, lost nor on its way. A gauge.
        runs: bool = gauge "actor_runs",
    }
}

level! {
    /// A side of a service of actors.
    ActorSideCounters {
        /// Its service.
        service: String,
        /// The side: `card` or `host`.
        side: String,
        /// Whether the actors of the side run. A gauge.
        runs: bool = gauge "actor_side_runs",
        /// Share of the side's threads' time in which actors ran, over the last second. A gauge.
        busy: f64 = gauge "actor_side_busy_ratio",
        /// Processes of the side that have begun.
        starts: u64 = counter "actor_side_starts",
        /// Messages from the network to the side's process. A gauge.
        requests: u64 = gauge "actor_side_requests",
        /// Messages to the network from the side's process. A gauge.
        answers: u64 = gauge "actor_side_answers",
        /// Messages for actors that the side's process refused. A gauge.
        refused: u64 = gauge "actor_side_refused",
        /// Answers for which the network of the side's process had no room. A gauge.
        unsent: u64 = gauge "actor_side_unsent",
    }
}

impl ActorCounters {
    /// The actors of a service.
    pub fn of(row: &ActorsRow) -> impl Iterator<Item = ActorCounters> + '_ {
        row.actors.iter().map(|of| ActorCounters {
            service: row.service.clone(),
            actor: of.actor.clone(),
            side: of.side.map_or_else(String::new, |side| side.name().to_owned()),
            served: of.served,
            migrations: of.migrations,
            mailbox: of.mailbox,
            mean_s: of.mean_us / 1e6,
            tail_s: of.tail_us / 1e6,
            load: of.load,
            objects: of.objects,
            object_bytes: of.object_bytes,
            on_host: of.side == Some(ActorSide::Host),
            runs: of.state == "runs",
        })
    }
}

impl ActorSideCounters {
    /// The sides of a service.
    pub fn of(row: &ActorsRow) -> impl Iterator<Item = ActorSideCounters> + '_ {
        row.sides.iter().map(|of| ActorSideCounters {
            service: row.service.clone(),
            side: of.side.name().to_owned(),
            runs: of.runs,
            busy: of.busy,
            starts: of.starts,
            requests: of.requests,
            answers: of.answers,
            refused: of.refused,
            unsent: of.unsent,
        })
    }
}

level! {
    /// The control loop.
    ControlCounters {
        /// Samples that the collector took.
        samples: u64 = counter "collector_samples",
        /// Time spent on sampling.
        sampling_s: f64 = seconds "collector_sampling_seconds",
        /// Duration of the longest sample. A gauge.
        longest_sample_s: f64 = gauge "collector_longest_sample_seconds",
        /// CPU time of all that observes instances: counters, pages of functions, control groups, power.
        observing_cpu_s: f64 = seconds "observing_cpu_seconds",
        /// Delay of each turn of the control loop.
        lag: SpanCounts,
        /// Generation of the newest published plan. A gauge.
        plan_generation: u64 = gauge "plan_generation",
        /// Generation of the newest plan that every worker uses. A gauge.
        plan_acknowledged: u64 = gauge "plan_acknowledged_generation",
        /// Reloads that were applied.
        reloads: u64,
        /// Reloads that were refused.
        reloads_refused: u64,
    }
}

/// Signals of the host's manager, which come through the ports of instances.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SignalCounters {
    /// Signals that were carried out: `wake`, `sleep`.
    pub accepted: BTreeMap<String, u64>,
    /// Signals that were refused, by reason.
    pub refused: BTreeMap<String, u64>,
}

/// Load reports between machines and edges.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ReportCounters {
    /// Reports sent, by edge.
    pub sent: BTreeMap<String, u64>,
    /// Reports that could not be sent, by edge.
    pub failed: BTreeMap<String, u64>,
    /// Reports accepted, by the number of their machine.
    pub accepted: BTreeMap<String, u64>,
    /// Age of a machine's last report in seconds, by its number. A gauge.
    pub age_s: BTreeMap<String, f64>,
    /// Datagrams that were refused, by reason.
    pub refused: BTreeMap<String, u64>,
    /// First reports that were answered: their machine did not know this run of the edge.
    pub answered: u64,
}

/// Actions of one kind.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ActionCount {
    /// The action.
    pub action: String,
    /// Whether it was refused.
    pub refused: bool,
    /// Number of requests.
    pub count: u64,
}

level! {
    /// The files of the event log.
    EventLogCounters {
        /// Events written to the event log's files.
        written_events: u64 = counter "event_log_written_events",
        /// Bytes written to the event log's files.
        written_bytes: u64 = counter "event_log_written_bytes",
        /// Events that could not be written: the disk was full, too slow, or refused.
        lost_events: u64 = counter "event_log_lost_events",
    }
}

level! {
    /// What was taken over from an earlier run, at the start.
    ResumedCounters {
        /// Flows taken over from an earlier run at the start. A gauge.
        flows: u64 = gauge "resumed_flows",
        /// Flow tables of an earlier run that were converted: of another size, number of workers or release. A gauge.
        converted_tables: u64 = gauge "resumed_converted_tables",
        /// Instances whose rings were taken over from an earlier run. A gauge.
        instances: u64 = gauge "resumed_instances",
        /// Uplinks whose peer stayed connected since an earlier run. A gauge.
        uplinks: u64 = gauge "resumed_uplinks",
        /// Entries of its flow tables that were repaired, by kind; these flows stay or had not begun. A gauge.
        repaired: BTreeMap<String, u64>,
        /// Entries of its flow tables that were rejected, by kind; these flows are scheduled again. A gauge.
        rejected: BTreeMap<String, u64>,
        /// Other parts that could not be taken over, each with the reason.
        unusable: Vec<String>,
        /// When the launcher had handed everything over: monotonic time, in nanoseconds.
        taken_at_ns: u64,
        /// When flow tables and rings were ready for use: monotonic time, in nanoseconds.
        attached_at_ns: u64,
    }
}

/// Requests to the API.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ApiCounters {
    /// Answered requests, by status.
    #[schema(value_type = BTreeMap<String, u64>)]
    pub requests: BTreeMap<u16, u64>,
    /// Connections over the unix socket and over TCP. A gauge.
    pub connections: BTreeMap<String, u64>,
    /// Connections closed because they were idle or stuck for too long, or did not use TLS.
    pub dropped_connections: u64,
}
