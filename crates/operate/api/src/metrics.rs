//! `/metrics`: the counters as Prometheus and OpenMetrics have them. A scrape asks the control loop once for the figures
//! that it has anyway; no worker notices. Labels are names of the configuration, ids of instances that there are, and
//! words of a fixed list: never a flow.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode as encode_registry;
use prometheus_client::encoding::{DescriptorEncoder, EncodeCounterValue, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};

use crate::counters::{Counters, SpanCounts};

/// The text formats of metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Prometheus' own, version 0.0.4.
    Prometheus,
    /// OpenMetrics 1.0.
    OpenMetrics,
}

impl Format {
    /// The one that an `Accept` header asks for.
    pub(crate) fn of(accept: &str) -> Format {
        if accept.contains("application/openmetrics-text") {
            Format::OpenMetrics
        } else {
            Format::Prometheus
        }
    }

    pub(crate) const fn content_type(self) -> &'static str {
        match self {
            Format::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
            Format::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// The counters as text.
pub fn encode(counters: Counters, format: Format) -> String {
    let mut registry = Registry::with_prefix("inco");
    registry.register_collector(Box::new(Families(counters)));
    let mut text = String::new();
    // Writing into a text does not fail.
    let _ = encode_registry(&mut text, &registry);
    match format {
        Format::OpenMetrics => text,
        Format::Prometheus => as_prometheus(&text),
    }
}

/// OpenMetrics as Prometheus' older format: there a counter's and an info's metadata carry the name of the sample, and
/// units and the end are not marked.
fn as_prometheus(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut help = "";
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            help = rest;
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap_or((rest, ""));
            let (suffix, kind) = match kind {
                "counter" => ("_total", "counter"),
                "info" => ("_info", "gauge"),
                other => ("", other),
            };
            let help = help.split_once(' ').map_or("", |(_, help)| help);
            out.push_str(&format!(
                "# HELP {name}{suffix} {help}\n# TYPE {name}{suffix} {kind}\n"
            ));
        } else if !line.starts_with("# ") {
            out.push_str(line);
            out.push('\n');
        }
    }
    out
}

#[derive(Debug)]
struct Families(Counters);

type Labels<'a> = Vec<(&'static str, &'a str)>;

/// Writes families, one after the other.
struct Writer<'a>(DescriptorEncoder<'a>);

impl Writer<'_> {
    fn family<'r, T>(
        &mut self,
        (name, unit, help): (&str, Option<Unit>, &str),
        kind: MetricType,
        rows: impl IntoIterator<Item = (Labels<'r>, T)>,
        write: impl Fn(&mut MetricEncoder<'_>, T) -> fmt::Result,
    ) -> fmt::Result {
        let mut rows = rows.into_iter().peekable();
        // A family without a sample says nothing.
        if rows.peek().is_none() {
            return Ok(());
        }
        let mut encoder = self.0.encode_descriptor(name, help, unit.as_ref(), kind)?;
        for (labels, value) in rows {
            if labels.is_empty() {
                write(&mut encoder, value)?;
            } else {
                write(&mut encoder.encode_family(&labels)?, value)?;
            }
        }
        Ok(())
    }

    fn counter<'r, N: EncodeCounterValue>(
        &mut self,
        name: &str,
        help: &str,
        rows: impl IntoIterator<Item = (Labels<'r>, N)>,
    ) -> fmt::Result {
        let (name, unit) = split_unit(name);
        self.family((name, unit, help), MetricType::Counter, rows, |encoder, value| {
            encoder.encode_counter::<NoLabelSet, _, u64>(&value, None)
        })
    }

    fn gauge<'r>(
        &mut self,
        name: &str,
        help: &str,
        rows: impl IntoIterator<Item = (Labels<'r>, f64)>,
    ) -> fmt::Result {
        let (name, unit) = split_unit(name);
        self.family((name, unit, help), MetricType::Gauge, rows, |encoder, value| {
            encoder.encode_gauge(&value)
        })
    }

    fn histogram<'r>(
        &mut self,
        name: &str,
        help: &str,
        rows: impl IntoIterator<Item = (Labels<'r>, &'r SpanCounts)>,
    ) -> fmt::Result {
        let (name, unit) = split_unit(name);
        self.family(
            (name, unit, help),
            MetricType::Histogram,
            rows,
            |encoder, value| {
                let mut buckets = value.buckets.clone();
                buckets.push((f64::INFINITY, value.above));
                encoder.encode_histogram::<NoLabelSet>(value.sum_s, value.count(), &buckets, None)
            },
        )
    }
}

/// A name without the base unit that it ends in, and that unit. Ratios have none: OpenMetrics' word for it is not the one
/// that names end in.
fn split_unit(name: &str) -> (&str, Option<Unit>) {
    if let Some(rest) = name.strip_suffix("_seconds") {
        (rest, Some(Unit::Seconds))
    } else if let Some(rest) = name.strip_suffix("_bytes") {
        (rest, Some(Unit::Bytes))
    } else {
        (name, None)
    }
}

/// A truth value as a gauge has it.
fn flag(value: bool) -> f64 {
    f64::from(u8::from(value))
}

impl Collector for Families {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut out = Writer(encoder);
        self.process(&mut out)?;
        self.uplinks(&mut out)?;
        self.services(&mut out)?;
        self.instances(&mut out)?;
        self.workers(&mut out)?;
        self.control(&mut out)
    }
}

impl Families {
    fn process(&self, out: &mut Writer<'_>) -> fmt::Result {
        let of = &self.0;
        let version = [(Vec::new(), of.version.as_str())];
        out.family(
            ("build", None, "The version that runs"),
            MetricType::Info,
            version,
            |encoder, version| encoder.encode_info(&[("version", version)]),
        )?;
        out.gauge(
            "start_time_seconds",
            "When inco started, since 1970",
            [(vec![], of.start_unix_s)],
        )?;
        out.counter(
            "dropped_packets",
            "Packets dropped, by reason",
            of.drops
                .iter()
                .map(|(reason, n)| (vec![("reason", reason.as_str())], *n)),
        )?;
        out.counter(
            "originated_packets",
            "Packets that functions made themselves",
            [(vec![], of.originated_packets)],
        )?;
        out.gauge(
            "in_flight_packets",
            "Packets in rings, in functions and waiting",
            [(vec![], of.in_flight_packets as f64)],
        )
    }

    fn uplinks(&self, out: &mut Writer<'_>) -> fmt::Result {
        let all = &self.0.uplinks;
        macro_rules! counters {
            ($($name:literal $help:literal $field:ident,)*) => {$(
                out.counter($name, $help, all.iter().map(|u| (vec![("uplink", u.name.as_str())], u.$field)))?;
            )*};
        }
        out.gauge(
            "uplink_up",
            "Whether the uplink has a peer or a link",
            all.iter()
                .map(|u| (vec![("uplink", u.name.as_str())], flag(u.up))),
        )?;
        counters! {
            "uplink_received_packets" "Packets received from the uplink" received_packets,
            "uplink_received_bytes" "Bytes received from the uplink" received_bytes,
            "uplink_sent_packets" "Packets sent to the uplink" sent_packets,
            "uplink_sent_bytes" "Bytes sent to the uplink" sent_bytes,
            "uplink_dropped_packets" "Packets for the uplink that were dropped" dropped_packets,
            "uplink_missed_packets" "Packets that the device dropped before the switch could take them" missed_packets,
            "uplink_failed_packets" "Packets that the device took and could not send" failed_packets,
        }
        Ok(())
    }

    fn services(&self, out: &mut Writer<'_>) -> fmt::Result {
        let all = &self.0.services;
        macro_rules! counters {
            ($($name:literal $help:literal $field:ident,)*) => {$(
                out.counter($name, $help, all.iter().map(|s| (vec![("service", s.name.as_str())], s.$field)))?;
            )*};
        }
        macro_rules! gauges {
            ($($name:literal $help:literal |$of:ident| $value:expr,)*) => {$(
                out.gauge($name, $help, all.iter().filter_map(|$of| {
                    let value: Option<f64> = $value;
                    Some((vec![("service", $of.name.as_str())], value?))
                }))?;
            )*};
        }
        counters! {
            "service_offered_packets" "Packets of the service's flows, served or dropped" offered_packets,
            "service_offered_bytes" "Bytes of the service's flows, served or dropped" offered_bytes,
            "service_returned_packets" "Packets back from the service's instances" returned_packets,
            "service_returned_bytes" "Bytes back from the service's instances" returned_bytes,
            "service_unpinned_packets" "Packets sent by hash without a pin because the flow table was full" unpinned_packets,
            "service_new_flows" "New flows given to the service's instances" new_flows,
            "service_expected_moves" "Flows given to another instance because theirs had failed" expected_moves,
            "service_overcommitted_flows" "New flows given to an instance although none fitted" overcommitted_flows,
        }
        out.counter(
            "service_dropped_packets",
            "Packets of the service's flows that were dropped, by reason",
            all.iter().flat_map(|s| {
                let by = |reason, packets| (vec![("service", s.name.as_str()), ("reason", reason)], packets);
                [
                    by("no_instance", s.unserved_packets),
                    by("instance_ring_full", s.ring_full_packets),
                ]
            }),
        )?;
        out.counter(
            "service_decisions",
            "Decisions of the autoscaler, by what they did",
            all.iter().flat_map(|s| {
                s.decisions.iter().map(|(decision, n)| {
                    (
                        vec![("service", s.name.as_str()), ("decision", decision.as_str())],
                        *n,
                    )
                })
            }),
        )?;
        gauges! {
            "service_live_flows" "Flows pinned to the service's instances" |s| Some(s.live_flows as f64),
            "service_desired_instances" "Active instances wanted" |s| Some(f64::from(s.desired)),
            "service_min_instances" "Active instances at least" |s| Some(f64::from(s.min)),
            "service_max_instances" "Active instances at most" |s| Some(f64::from(s.max)),
            "service_utilisation_ratio" "Offered rate by the capacity of the active instances" |s| s.utilisation,
            "service_instance_capacity_pps" "Packets per second that one instance processes" |s| s.capacity_pps,
        }
        out.gauge(
            "service_instances",
            "Instances of the service, by state",
            all.iter().flat_map(|s| {
                s.states.iter().map(|(state, n)| {
                    (
                        vec![("service", s.name.as_str()), ("state", state.as_str())],
                        f64::from(*n),
                    )
                })
            }),
        )?;
        out.gauge(
            "service_held_back",
            "Whether somebody holds the autoscaler back, by how",
            all.iter().flat_map(|s| {
                s.held_back.iter().map(|(how, on)| {
                    (
                        vec![("service", s.name.as_str()), ("how", how.as_str())],
                        flag(*on),
                    )
                })
            }),
        )?;
        out.family(
            ("service", None, "The policies of the service"),
            MetricType::Info,
            all.iter().map(|s| (Vec::new(), s)),
            |encoder, s| {
                encoder.encode_info(&[
                    ("service", s.name.as_str()),
                    ("scheduler", s.scheduler.as_str()),
                    ("autoscaler", s.autoscaler.as_str()),
                ])
            },
        )
    }

    fn instances(&self, out: &mut Writer<'_>) -> fmt::Result {
        let ids: Vec<String> = self.0.instances.iter().map(|i| i.id.to_string()).collect();
        let all = || ids.iter().map(String::as_str).zip(&self.0.instances);
        // "instance" is what Prometheus calls the target that it scrapes.
        macro_rules! rows {
            ($kind:ident: $($name:literal $help:literal |$of:ident| $value:expr,)*) => {$(
                out.$kind($name, $help, all().filter_map(|(id, $of)| {
                    Some((vec![("service", $of.service.as_str()), ("instance_id", id)], $value?))
                }))?;
            )*};
        }
        rows! { counter:
            "instance_to_packets" "Packets put into the instance's ring" |i| Some(i.to_packets),
            "instance_to_bytes" "Bytes put into the instance's ring" |i| Some(i.to_bytes),
            "instance_back_packets" "Packets back from the instance" |i| Some(i.back_packets),
            "instance_back_bytes" "Bytes back from the instance" |i| Some(i.back_bytes),
            "instance_originated_packets" "Packets that the instance made itself" |i| Some(i.originated_packets),
            "instance_return_unmatched_packets" "Packets back that are of no flow of the instance" |i| Some(i.return_unmatched_packets),
            "instance_new_flows" "Flows given to the instance" |i| Some(i.new_flows),
            "instance_hot" "Times that its ring was seen full, or a quarter full twice in a row" |i| Some(i.hot),
        }
        out.counter(
            "instance_dropped_packets",
            "Packets dropped on the way to the instance or in it, by reason",
            all().flat_map(|(id, i)| {
                i.drops.iter().map(move |(reason, n)| {
                    let labels = vec![
                        ("service", i.service.as_str()),
                        ("instance_id", id),
                        ("reason", reason.as_str()),
                    ];
                    (labels, *n)
                })
            }),
        )?;
        rows! { counter:
            "instance_held_up_seconds" "Time in which the instance could not run: throttled by its quota, or waiting for a CPU" |i| Some(i.held_up_s),
            "instance_busy_seconds" "Time in which the function was busy, where it tells" |i| i.busy_s,
        }
        rows! { gauge:
            "instance_live_flows" "Flows pinned to the instance" |i| Some(i.live_flows as f64),
            "instance_ring_used_descriptors" "Descriptors in the ring towards the instance" |i| Some(i.ring_used as f64),
            "instance_ring_descriptors" "Descriptors that the ring towards the instance has" |i| Some(i.ring_slots as f64),
            "instance_memory_bytes" "Memory in use" |i| i.memory_bytes.map(|bytes| bytes as f64),
            "instance_quota_cpus" "CPUs that the instance may use, where that is limited" |i| i.cpu_quota,
            "instance_utilisation_ratio" "Rate given to the instance by its capacity" |i| i.utilisation,
        }
        out.gauge(
            "instance_state",
            "1 for the state that the instance is in",
            all().map(|(id, i)| {
                let labels = vec![
                    ("service", i.service.as_str()),
                    ("instance_id", id),
                    ("state", i.state.as_str()),
                ];
                (labels, 1.0)
            }),
        )
    }

    fn workers(&self, out: &mut Writer<'_>) -> fmt::Result {
        let ids: Vec<String> = self.0.workers.iter().map(|w| w.worker.to_string()).collect();
        let all = || ids.iter().map(String::as_str).zip(&self.0.workers);
        macro_rules! rows {
            ($kind:ident: $($name:literal $help:literal |$of:ident| $value:expr,)*) => {$(
                out.$kind($name, $help, all().map(|(id, $of)| (vec![("worker", id)], $value)))?;
            )*};
        }
        rows! { counter:
            "worker_received_packets" "Packets that the worker received from uplinks" |w| w.received_packets,
            "worker_handed_off_packets" "Packets that the worker handed to others" |w| w.handed_off_packets,
            "worker_passed_packets" "Packets of no service that the worker passed to an uplink" |w| w.passed_packets,
            "worker_turns" "Turns of the worker's loop" |w| w.turns,
            "worker_table_full_packets" "Packets of flows that found no place in the worker's flow table" |w| w.table_full_packets,
            "worker_lost_events" "Events that found no room on their way to the control plane" |w| w.events_lost,
        }
        rows! { counter:
            "worker_awake_seconds" "Time in which the worker did not sleep" |w| w.awake_s,
            "worker_busy_seconds" "Time in which the worker moved packets" |w| w.busy_s,
        }
        rows! { gauge:
            "worker_longest_gap_seconds" "The longest time between two turns without a sleep" |w| w.longest_gap_s,
            "worker_flows" "Flows in the worker's table" |w| w.live_flows as f64,
            "worker_flow_limit" "Flows that the worker's table can hold" |w| w.flow_limit as f64,
            "worker_waiting_fragments" "Fragments that wait for their first one" |w| w.fragments_waiting as f64,
        }
        Ok(())
    }

    fn control(&self, out: &mut Writer<'_>) -> fmt::Result {
        let of = &self.0;
        out.histogram(
            "reaction_seconds",
            "How long reactions took, by kind",
            of.reactions
                .iter()
                .map(|(kind, times)| (vec![("reaction", kind.as_str())], times)),
        )?;
        out.gauge(
            "engine_up",
            "Whether the engine answers",
            [(vec![("driver", of.engine.driver.as_str())], flag(of.engine.up))],
        )?;
        out.histogram(
            "engine_call_seconds",
            "How long calls to the engine took until they were answered",
            of.engine
                .calls
                .iter()
                .map(|(call, times)| (vec![("call", call.as_str())], times)),
        )?;
        out.counter(
            "engine_call_failures",
            "Calls to the engine that failed",
            of.engine
                .failures
                .iter()
                .map(|(call, n)| (vec![("call", call.as_str())], *n)),
        )?;
        let control = &of.control;
        out.histogram(
            "collector_lag_seconds",
            "How late each turn of the control loop began",
            [(vec![], &control.lag)],
        )?;
        out.counter(
            "collector_samples",
            "Samples of all counters",
            [(vec![], control.samples)],
        )?;
        out.counter(
            "collector_sampling_seconds",
            "Time that sampling took",
            [(vec![], control.sampling_s)],
        )?;
        out.gauge(
            "collector_longest_sample_seconds",
            "The longest sample",
            [(vec![], control.longest_sample_s)],
        )?;
        out.gauge(
            "plan_generation",
            "The newest plan that workers were given",
            [(vec![], control.plan_generation as f64)],
        )?;
        out.gauge(
            "plan_acknowledged_generation",
            "The newest plan that every worker steers by",
            [(vec![], control.plan_acknowledged as f64)],
        )?;
        out.counter(
            "reloads",
            "Changed configurations, applied or refused",
            [
                (vec![("result", "applied")], control.reloads),
                (vec![("result", "refused")], control.reloads_refused),
            ],
        )?;
        out.counter(
            "events",
            "Events, by kind",
            of.events
                .iter()
                .map(|(event, n)| (vec![("event", event.as_str())], *n)),
        )?;
        out.counter(
            "actions",
            "Actions that were asked for, done or refused",
            of.actions.iter().map(|a| {
                let result = if a.refused { "refused" } else { "done" };
                (vec![("action", a.action.as_str()), ("result", result)], a.count)
            }),
        )?;
        let log = &of.event_log;
        out.counter(
            "event_log_written_events",
            "Events written to the event log's files",
            [(vec![], log.written_events)],
        )?;
        out.counter(
            "event_log_written_bytes",
            "Bytes written to the event log's files",
            [(vec![], log.written_bytes)],
        )?;
        out.counter(
            "event_log_lost_events",
            "Events that could not be written: the disk was full, too slow, or refused",
            [(vec![], log.lost_events)],
        )?;
        let statuses: Vec<(String, u64)> = of
            .api
            .requests
            .iter()
            .map(|(status, n)| (status.to_string(), *n))
            .collect();
        out.counter(
            "api_requests",
            "Answered requests to the API, by status",
            statuses
                .iter()
                .map(|(status, n)| (vec![("status", status.as_str())], *n)),
        )?;
        out.gauge(
            "api_connections",
            "Connections to the API",
            of.api
                .connections
                .iter()
                .map(|(listener, n)| (vec![("listener", listener.as_str())], *n as f64)),
        )?;
        out.counter(
            "api_dropped_connections",
            "Connections to the API that were closed for being idle, stuck or no TLS",
            [(vec![], of.api.dropped_connections)],
        )
    }
}
