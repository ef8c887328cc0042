//! `/metrics`: the counters in the formats of Prometheus and OpenMetrics. A scrape sends one request to the control
//! loop, which already has the counters; workers are not involved. Labels are names of the configuration, ids of
//! existing instances, and words of fixed lists, never flows.

use std::collections::BTreeMap;
use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode as encode_registry;
use prometheus_client::encoding::{
    CounterValueEncoder, DescriptorEncoder, EncodeCounterValue, MetricEncoder, NoLabelSet,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};

use crate::counters::{Counters, FunctionCounters, InstanceCounters, Kind, Level, Number, SpanCounts};

/// The text formats of metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// The text format of Prometheus, version 0.0.4.
    Prometheus,
    /// OpenMetrics 1.0.
    OpenMetrics,
}

impl Format {
    /// The format that an `Accept` header requests.
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
    // Writing into a string does not fail.
    let _ = encode_registry(&mut text, &registry);
    match format {
        Format::OpenMetrics => text,
        Format::Prometheus => as_prometheus(&text),
    }
}

/// Converts OpenMetrics to the older format of Prometheus: metadata of counters and infos have the name of the
/// sample, and units and the end are not marked.
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
        // A family without samples is omitted.
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

    /// Writes the metrics of a level.
    fn level<'r, T: Level>(
        &mut self,
        kind: Kind,
        rows: impl IntoIterator<Item = (Labels<'r>, &'r T)> + Clone,
    ) -> fmt::Result {
        for metric in T::METRICS.iter().filter(|metric| metric.kind == kind) {
            let rows = rows.clone().into_iter();
            let rows = rows.filter_map(|(labels, of)| Some((labels, (metric.value)(of)?)));
            match kind {
                Kind::Counter | Kind::Seconds => self.counter(metric.name, metric.help, rows)?,
                Kind::Gauge => {
                    let rows = rows.map(|(labels, value)| (labels, value.as_f64()));
                    self.gauge(metric.name, metric.help, rows)?;
                }
            }
        }
        Ok(())
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

impl Number {
    fn as_f64(self) -> f64 {
        match self {
            Number::Whole(number) => number as f64,
            Number::Real(number) => number,
        }
    }
}

impl EncodeCounterValue for Number {
    fn encode(&self, encoder: &mut CounterValueEncoder<'_>) -> fmt::Result {
        match self {
            Number::Whole(number) => number.encode(encoder),
            Number::Real(number) => number.encode(encoder),
        }
    }
}

/// Splits a name into the part before its base unit and the unit. Ratios have no unit: OpenMetrics uses another word
/// than these names.
fn split_unit(name: &str) -> (&str, Option<Unit>) {
    if let Some(rest) = name.strip_suffix("_seconds") {
        (rest, Some(Unit::Seconds))
    } else if let Some(rest) = name.strip_suffix("_bytes") {
        (rest, Some(Unit::Bytes))
    } else {
        (name, None)
    }
}

/// Counts by a label's values.
fn counted<'r>(label: &'static str, all: &'r BTreeMap<String, u64>) -> Vec<(Labels<'r>, u64)> {
    let rows = all.iter();
    rows.map(|(value, n)| (vec![(label, value.as_str())], *n))
        .collect()
}

/// Rows with their kind as the label.
fn by_kind(counts: &BTreeMap<String, u64>) -> impl Iterator<Item = (Labels<'_>, f64)> {
    let counts = counts.iter();
    counts.map(|(kind, n)| (vec![("kind", kind.as_str())], *n as f64))
}

/// A boolean as the value of a gauge.
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
        self.functions(&mut out)?;
        self.actors(&mut out)?;
        self.workers(&mut out)?;
        self.control(&mut out)
    }
}

/// Which instance it is, and where it runs if there are places.
fn instance_labels<'a>(id: &'a str, of: &'a InstanceCounters) -> Labels<'a> {
    let own = [("service", of.service.as_str()), ("instance_id", id)];
    let place = of.place.as_deref().map(|place| ("place", place));
    own.into_iter().chain(place).collect()
}

impl Families {
    fn process(&self, out: &mut Writer<'_>) -> fmt::Result {
        let of = &self.0;
        let version = [(Vec::new(), of.version.as_str())];
        out.family(
            ("build", None, "Version of inco"),
            MetricType::Info,
            version,
            |encoder, version| encoder.encode_info(&[("version", version)]),
        )?;
        out.gauge(
            "start_time_seconds",
            "Start time of inco, in seconds since 1970",
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
            "Packets that functions originated",
            [(vec![], of.originated_packets)],
        )?;
        out.gauge(
            "in_flight_packets",
            "Packets in rings, in functions and held by the switch",
            [(vec![], of.in_flight_packets as f64)],
        )
    }

    fn actors(&self, out: &mut Writer<'_>) -> fmt::Result {
        let actors = self.0.actors.iter();
        let actors = actors.map(|of| {
            (
                vec![("service", of.service.as_str()), ("actor", of.actor.as_str())],
                of,
            )
        });
        out.level(Kind::Counter, actors.clone())?;
        out.level(Kind::Gauge, actors)?;
        let sides = self.0.actor_sides.iter();
        let sides = sides.map(|of| {
            (
                vec![("service", of.service.as_str()), ("side", of.side.as_str())],
                of,
            )
        });
        out.level(Kind::Counter, sides.clone())?;
        out.level(Kind::Gauge, sides)
    }

    fn uplinks(&self, out: &mut Writer<'_>) -> fmt::Result {
        let all = self.0.uplinks.iter();
        let all = all.map(|uplink| (vec![("uplink", uplink.name.as_str())], uplink));
        out.level(Kind::Gauge, all.clone())?;
        out.level(Kind::Counter, all)
    }

    fn services(&self, out: &mut Writer<'_>) -> fmt::Result {
        let all = &self.0.services;
        let labelled = all
            .iter()
            .map(|service| (vec![("service", service.name.as_str())], service));
        out.level(Kind::Counter, labelled.clone())?;
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
            "Decisions of the autoscaler, by kind",
            all.iter().flat_map(|s| {
                s.decisions.iter().map(|(decision, n)| {
                    (
                        vec![("service", s.name.as_str()), ("decision", decision.as_str())],
                        *n,
                    )
                })
            }),
        )?;
        out.level(Kind::Gauge, labelled)?;
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
            "Whether scale-in or scale-out is disabled, or a dry run is active",
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
        // Prometheus uses "instance" for the scraped target.
        let labelled = all().map(|(id, i)| (instance_labels(id, i), i));
        out.level(Kind::Counter, labelled.clone())?;
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
        out.level(Kind::Seconds, labelled.clone())?;
        out.level(Kind::Gauge, labelled)?;
        out.gauge(
            "instance_state",
            "1 for the current state of the instance",
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

    fn functions(&self, out: &mut Writer<'_>) -> fmt::Result {
        let all = &self.0.functions;
        let numbers: Vec<[String; 2]> = all
            .iter()
            .map(|of| [of.instance.to_string(), of.stage.to_string()])
            .collect();
        let labelled = || {
            all.iter().zip(&numbers).map(|(of, [instance, stage])| {
                let labels: Labels<'_> = vec![
                    ("service", of.service.as_str()),
                    ("instance_id", instance.as_str()),
                    ("stage", stage.as_str()),
                    ("function", of.name.as_str()),
                ];
                (labels, of)
            })
        };
        for kind in [Kind::Counter, Kind::Gauge] {
            out.level(kind, labelled().collect::<Vec<_>>())?;
        }
        // Names that functions choose are values of a label, and no names of metrics.
        let by = |label: &'static str, of: fn(&FunctionCounters) -> &BTreeMap<String, u64>| {
            labelled().flat_map(move |(labels, counters)| {
                of(counters).iter().map(move |(name, n)| {
                    let mut labels = labels.clone();
                    labels.push((label, name.as_str()));
                    (labels, *n)
                })
            })
        };
        out.counter(
            "function_dropped_packets",
            "Packets that the function dropped, by reason",
            by("reason", |of| &of.drops),
        )?;
        out.counter(
            "function_counted",
            "The function's own totals, by name",
            by("name", |of| &of.totals),
        )?;
        let gauges = by("name", |of| &of.gauges);
        out.gauge(
            "function_value",
            "The function's own gauges, by name",
            gauges.map(|(labels, n)| (labels, n as f64)),
        )
    }

    fn workers(&self, out: &mut Writer<'_>) -> fmt::Result {
        let ids: Vec<String> = self.0.workers.iter().map(|w| w.worker.to_string()).collect();
        let all = ids.iter().zip(&self.0.workers);
        let all = all.map(|(id, worker)| (vec![("worker", id.as_str())], worker));
        out.level(Kind::Counter, all.clone())?;
        out.level(Kind::Seconds, all.clone())?;
        out.level(Kind::Gauge, all)
    }

    fn resumed(&self, out: &mut Writer<'_>) -> fmt::Result {
        let of = &self.0.resumed;
        out.level(Kind::Gauge, [(vec![], of)])?;
        out.gauge(
            "resumed_repaired_entries",
            "Entries of an earlier run's flow tables that were repaired, by kind",
            by_kind(&of.repaired),
        )?;
        out.gauge(
            "resumed_rejected_entries",
            "Entries of an earlier run's flow tables that were rejected, by kind",
            by_kind(&of.rejected),
        )?;
        out.gauge(
            "resumed_unusable_parts",
            "Other parts of an earlier run that could not be taken over",
            [(vec![], of.unusable.len() as f64)],
        )
    }

    fn reports(&self, out: &mut Writer<'_>) -> fmt::Result {
        let of = &self.0.reports;
        out.counter(
            "sent_reports",
            "Load reports sent, by edge",
            counted("edge", &of.sent),
        )?;
        out.counter(
            "failed_reports",
            "Load reports that could not be sent, by edge",
            counted("edge", &of.failed),
        )?;
        out.counter(
            "accepted_reports",
            "Load reports accepted, by the number of their machine",
            counted("machine", &of.accepted),
        )?;
        out.counter(
            "refused_reports",
            "Datagrams that are no report to accept, by reason",
            counted("reason", &of.refused),
        )?;
        out.counter(
            "answered_reports",
            "First reports of machines that did not know this run of the edge",
            [(vec![], of.answered)],
        )?;
        let ages = of.age_s.iter();
        out.gauge(
            "report_age_seconds",
            "Age of a machine's last load report, by its number",
            ages.map(|(machine, age)| (vec![("machine", machine.as_str())], *age)),
        )
    }

    fn control(&self, out: &mut Writer<'_>) -> fmt::Result {
        let of = &self.0;
        out.histogram(
            "reaction_seconds",
            "Duration of reactions, by kind",
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
            "Duration of calls to the engine",
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
            "Delay of each turn of the control loop",
            [(vec![], &control.lag)],
        )?;
        for kind in [Kind::Counter, Kind::Seconds, Kind::Gauge] {
            out.level(kind, [(vec![], control)])?;
        }
        let accepted = of.signals.accepted.iter();
        out.counter(
            "signals",
            "Signals of the host's manager that were carried out, by wish",
            accepted.map(|(wish, n)| (vec![("wish", wish.as_str())], *n)),
        )?;
        let refused = of.signals.refused.iter();
        out.counter(
            "refused_signals",
            "Signals of the host's manager that were refused, by reason",
            refused.map(|(reason, n)| (vec![("reason", reason.as_str())], *n)),
        )?;
        self.reports(out)?;
        out.counter(
            "reloads",
            "Reloads of the configuration, by result",
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
            "Requested actions, by result",
            of.actions.iter().map(|a| {
                let result = if a.refused { "refused" } else { "done" };
                (vec![("action", a.action.as_str()), ("result", result)], a.count)
            }),
        )?;
        out.level(Kind::Counter, [(vec![], &of.event_log)])?;
        self.resumed(out)?;
        let statuses: Vec<(String, u64)> = of
            .api
            .requests
            .iter()
            .map(|(status, n)| (status.to_string(), *n))
            .collect();
        out.counter(
            "api_requests",
            "Requests to the API, by status of the answer",
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
            "Connections to the API closed because they were idle, stuck or not TLS",
            [(vec![], of.api.dropped_connections)],
        )
    }
}
