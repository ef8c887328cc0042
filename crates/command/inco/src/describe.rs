//! `inco describe`: all information about a service or an instance on one page.

use std::fmt::Write as _;

use api::counters::{FunctionCounters, InstanceCounters, ServiceCounters};
use api::types::{
    FlowFilter, FlowPage, InstanceRow, PercentilesUs, Refusal, ReportRow, ServicePolicies, ServiceRow,
    Snapshot,
};
use api::{ApiError, Client, EVENT_LIMIT};
use display::event::event_text;
use display::output;
use display::table::{grouped, micros, or_dash, percent, short, span_ms};
use model::{Event, EventKind, InstanceId, InstanceState, Setting};
use serde::Serialize;

use crate::cli::DescribeArgs;
use crate::client_commands::{
    address_text, connect, functions_text, heavy_flows_text, instances_text, report_text, restrictions,
    unknown_service,
};
use crate::target::Target;

/// Maximum number of flows.
const FLOWS: u32 = 5;
/// Maximum number of events of each kind: decisions, failures, others.
const EVENTS: usize = 10;

/// Everything about a service.
#[derive(Debug, Serialize)]
struct OfService {
    service: ServiceRow,
    settings: Vec<Setting>,
    policies: Option<ServicePolicies>,
    counters: Option<ServiceCounters>,
    instances: Vec<InstanceRow>,
    heaviest_flows: FlowPage,
    #[serde(flatten)]
    past: Past,
}

/// Everything about an instance.
#[derive(Debug, Serialize)]
struct OfInstance {
    instance: InstanceRow,
    counters: Option<InstanceCounters>,
    functions: Vec<FunctionCounters>,
    heaviest_flows: FlowPage,
    #[serde(flatten)]
    past: Past,
}

/// The latest events, oldest first.
#[derive(Debug, Default, Serialize)]
struct Past {
    decisions: Vec<Event>,
    failures: Vec<Event>,
    events: Vec<Event>,
}

impl Past {
    /// The newest events of each kind.
    fn of(events: impl IntoIterator<Item = Event>) -> Past {
        let mut past = Past::default();
        for event in events {
            let kind = match &event.kind {
                EventKind::Scaled { .. }
                | EventKind::Shadowed { .. }
                | EventKind::Resized { .. }
                | EventKind::Relocated { .. }
                | EventKind::Picked { .. } => &mut past.decisions,
                EventKind::State {
                    to: InstanceState::Failed,
                    ..
                }
                | EventKind::Failure { .. }
                | EventKind::Health { takes: false, .. }
                | EventKind::Hot { .. }
                | EventKind::Overcommitted { .. }
                | EventKind::Stayed { .. } => &mut past.failures,
                _ => &mut past.events,
            };
            kind.push(event);
        }
        for kind in [&mut past.decisions, &mut past.failures, &mut past.events] {
            kind.drain(..kind.len().saturating_sub(EVENTS));
        }
        past
    }

    fn text(&self) -> String {
        let mut text = String::new();
        for (heading, events) in [
            ("Decisions", &self.decisions),
            ("Failures", &self.failures),
            ("Events", &self.events),
        ] {
            let _ = writeln!(text, "\n{heading}");
            if events.is_empty() {
                text.push_str("  none\n");
            }
            for event in events {
                let _ = writeln!(text, "  {}", event_text(event, clock::unix_ms()));
            }
        }
        text
    }
}

pub(crate) fn run(args: &DescribeArgs) -> anyhow::Result<()> {
    let client = connect(&args.common.connection)?;
    let target = Target::of(&args.target);
    let snapshot = client.snapshot()?;
    match target.instance {
        Some(id) => {
            let of = of_instance(&client, &snapshot, id, target.service)?;
            show(args, &of, instance_text)
        }
        None => {
            let of = of_service(&client, snapshot, target.service.unwrap_or_default())?;
            show(args, &of, |of| service_text(of, args.all))
        }
    }
}

fn show<T: Serialize>(args: &DescribeArgs, of: &T, text: impl Fn(&T) -> String) -> anyhow::Result<()> {
    if args.common.json {
        output::json(of, true)
    } else {
        output::text(&text(of))
    }
}

fn of_service(client: &Client, snapshot: Snapshot, name: &str) -> anyhow::Result<OfService> {
    let Some(service) = snapshot.services.iter().find(|row| row.name == name).cloned() else {
        let hint = unknown_service(name, &snapshot.services);
        return Err(Refusal::new(format!("unknown service {name:?}"), hint).into());
    };
    let filter = FlowFilter {
        service: Some(name.to_owned()),
        top: Some(FLOWS),
        ..FlowFilter::default()
    };
    let counters = client.counters()?.services.into_iter();
    let policies = client.policies()?.services.into_iter();
    let events = client.events(EVENT_LIMIT)?.into_iter();
    Ok(OfService {
        settings: client.settings(name)?,
        policies: policies.into_iter().find(|of| of.service == name),
        counters: counters.into_iter().find(|of| of.name == name),
        instances: snapshot
            .instances
            .into_iter()
            .filter(|row| row.service == name)
            .collect(),
        heaviest_flows: heaviest(client, &filter)?,
        past: Past::of(events.filter(|event| event.service.as_deref() == Some(name))),
        service,
    })
}

fn of_instance(
    client: &Client,
    snapshot: &Snapshot,
    id: InstanceId,
    service: Option<&str>,
) -> anyhow::Result<OfInstance> {
    let is_it = |row: &&InstanceRow| row.id == id && service.is_none_or(|service| row.service == service);
    let Some(instance) = snapshot.instances.iter().find(is_it).cloned() else {
        let whose = service.map_or_else(String::new, |service| format!(" of {service}"));
        let hint = "see `inco instances`, and `inco events` for earlier ones";
        return Err(Refusal::new(format!("unknown instance {id}{whose}"), hint).into());
    };
    let filter = FlowFilter {
        instance: Some(id),
        top: Some(FLOWS),
        ..FlowFilter::default()
    };
    let mut all = client.counters()?;
    all.functions.retain(|of| of.instance == id.0);
    let counters = all.instances.into_iter();
    let events = client.events(EVENT_LIMIT)?.into_iter();
    Ok(OfInstance {
        counters: counters.into_iter().find(|of| of.id == id.0),
        functions: all.functions,
        heaviest_flows: heaviest(client, &filter)?,
        past: Past::of(events.filter(|event| event.instance == Some(id))),
        instance,
    })
}

/// The heaviest flows, if the switch reports them.
fn heaviest(client: &Client, filter: &FlowFilter) -> Result<FlowPage, ApiError> {
    match client.flows(filter) {
        Err(ApiError::Refused(_)) => Ok(FlowPage::default()),
        answer => answer,
    }
}

/// Names on the left, values on the right.
fn pairs<'a>(rows: impl IntoIterator<Item = (&'a str, String)>) -> String {
    let rows: Vec<_> = rows.into_iter().filter(|(_, value)| !value.is_empty()).collect();
    let width = rows.iter().map(|(name, _)| name.len()).max().unwrap_or_default();
    let line = |(name, value): (&str, String)| format!("{name:<width$}  {}\n", output::plain(&value));
    rows.into_iter().map(line).collect()
}

fn policy(of: &model::PolicyChoice) -> String {
    // A parameter that is null is not in use.
    let used = of.parameters.iter().filter(|(_, value)| !value.is_null());
    let parameters: Vec<String> = used.map(|(name, value)| format!("{name} = {value}")).collect();
    if parameters.is_empty() {
        return of.policy.clone();
    }
    format!("{} ({})", of.policy, parameters.join(", "))
}

fn service_text(of: &OfService, all: bool) -> String {
    let row = &of.service;
    let counters = of.counters.clone().unwrap_or_default();
    let who = if row.fixed { "manual" } else { &row.autoscaler };
    let rollout = row.rollout.as_ref().map_or_else(String::new, |rollout| {
        let (state, reason) = (rollout.state.name(), &rollout.reason);
        format!(
            "{state}: {} of {} replaced ({reason})",
            rollout.replaced, rollout.total
        )
    });
    let mut text = pairs([
        ("service", row.name.clone()),
        ("image", row.image.clone().unwrap_or_default()),
        ("next", row.next.clone().unwrap_or_default()),
        (
            "instances",
            format!(
                "{} active of {} wanted ({who}), {} to {}; {} standby, {} starting, {} draining",
                row.active, row.desired, row.min, row.max, row.standby, row.starting, row.draining
            ),
        ),
        ("reason", row.reason.clone()),
        ("failing", row.failing.clone().unwrap_or_default()),
        ("rollout", rollout),
        ("restrictions", restrictions(row).unwrap_or_default()),
        (
            "traffic",
            format!(
                "in {} pps, out {} pps, {} new flows/s; load {}{}",
                short(row.offered_pps),
                short(row.returned_pps),
                short(row.new_flows_per_s),
                or_dash(row.utilisation, percent),
                match (row.highest_instance, row.highest_utilisation) {
                    (Some(id), Some(load)) => format!(", {} of instance {id}", percent(load)),
                    _ => String::new(),
                }
            ),
        ),
        (
            "packets",
            format!(
                "{} offered, {} returned; dropped: {} ring full, {} without an instance",
                grouped(counters.offered_packets),
                grouped(counters.returned_packets),
                grouped(counters.ring_full_packets),
                grouped(counters.unserved_packets)
            ),
        ),
        (
            "pins",
            format!(
                "{} flows pinned; {} new flows so far, {} beyond capacity, {} moved after failures, {} recovered by \
                 their hash",
                grouped(row.live_flows),
                grouped(counters.new_flows),
                grouped(counters.overcommitted_flows),
                grouped(counters.expected_moves),
                grouped(counters.recovered_flows)
            ),
        ),
        (
            "capacity",
            counters.capacity_pps.map_or_else(
                || "not known yet".to_owned(),
                |pps| format!("{} pps each", short(pps)),
            ),
        ),
        (
            "scheduler",
            of.policies
                .as_ref()
                .map_or_else(String::new, |of| policy(&of.scheduler)),
        ),
        (
            "autoscaler",
            of.policies
                .as_ref()
                .map_or_else(String::new, |of| policy(&of.autoscaler)),
        ),
    ]);
    text.push_str("\nSettings\n");
    let shown = of.settings.iter().filter(|setting| all || setting.is_written);
    let mark = |is_written| if is_written { "" } else { " (default)" };
    let lines = pairs(shown.map(|of| (of.key.as_str(), format!("{}{}", of.value, mark(of.is_written)))));
    text.extend(lines.lines().map(|line| format!("  {line}\n")));
    let defaults = of.settings.iter().filter(|setting| !setting.is_written).count();
    if !all && defaults > 0 {
        let _ = writeln!(text, "  ({defaults} more have their defaults: see --all)");
    }
    text.push_str("\nInstances\n");
    text.extend(
        instances_text(&of.instances)
            .lines()
            .map(|line| format!("  {line}\n")),
    );
    text.push_str(&flows_text(&of.heaviest_flows));
    text.push_str(&of.past.text());
    text
}

/// What a machine behind a tunnel reports.
fn report_of(of: &ReportRow) -> String {
    let (instances, flows) = (of.instances, grouped(u64::from(of.live_flows)));
    format!("{}; {instances} instances, {flows} flows there", report_text(of))
}

fn instance_text(of: &OfInstance) -> String {
    let row = &of.instance;
    let counters = of.counters.clone().unwrap_or_default();
    let drops: Vec<String> = counters
        .drops
        .iter()
        .filter(|(_, packets)| **packets > 0)
        .map(|(reason, packets)| format!("{} {reason}", grouped(*packets)))
        .collect();
    let mut text = pairs([
        ("instance", format!("{}/{}", row.service, row.id)),
        (
            "state",
            format!("{} for {}", row.state.name(), span_ms(row.state_ms)),
        ),
        ("reason", row.reason.clone()),
        ("place", row.place.clone().unwrap_or_default()),
        ("address", address_text(row).unwrap_or_default()),
        ("report", row.report.as_ref().map(report_of).unwrap_or_default()),
        ("container", or_dash(row.container.clone(), |name| name)),
        (
            "process",
            row.pid.map_or_else(String::new, |pid| {
                let adopted = if row.adopted { ", of an earlier run" } else { "" };
                format!("{pid}{adopted}")
            }),
        ),
        (
            "traffic",
            format!("in {} pps, out {} pps", short(row.to_pps), short(row.back_pps)),
        ),
        (
            "packets",
            format!(
                "{} in, {} out, {} generated by the function{}; dropped: {}",
                grouped(row.to_packets),
                grouped(row.back_packets),
                grouped(counters.originated_packets),
                match counters.reply_packets {
                    0 => String::new(),
                    replies => format!(", {} replies through the edge", grouped(replies)),
                },
                if drops.is_empty() {
                    "0".to_owned()
                } else {
                    drops.join(", ")
                }
            ),
        ),
        (
            "pins",
            format!(
                "{} flows pinned, {} new flows so far",
                grouped(row.live_flows),
                grouped(counters.new_flows)
            ),
        ),
        (
            "ring",
            format!(
                "{} of {} slots used",
                grouped(counters.ring_used),
                grouped(counters.ring_slots)
            ),
        ),
        (
            "capacity",
            row.capacity_pps
                .map_or_else(|| "not known yet".to_owned(), |pps| format!("{} pps", short(pps))),
        ),
        (
            "cpu",
            match row.cpu_quota {
                Some(cpus) => format!("{} of {cpus:.2} CPUs", or_dash(row.cpu, percent)),
                None => format!("{} of a CPU, without a limit", or_dash(row.cpu, percent)),
            },
        ),
        (
            "busy",
            row.busy.map_or_else(String::new, |share| {
                format!("{} of the time, by the function's own account", percent(share))
            }),
        ),
        (
            "held up",
            format!("{} of the time, throttled or without a CPU", percent(row.held_up)),
        ),
        ("watts", row.watts.map_or_else(String::new, |of| of.to_string())),
        (
            "mean gap",
            row.gap_us.map_or_else(
                || "none now".to_owned(),
                |gap| format!("{} on average", micros(gap)),
            ),
        ),
        (
            "in the ring",
            row.ring_wait_us
                .map_or_else(String::new, |of| within(of, "of samples")),
        ),
        (
            "in the function",
            row.function_us.map_or_else(String::new, |of| {
                within(of, "of packets, by the function's own account")
            }),
        ),
        (
            "memory",
            row.memory_bytes
                .map_or_else(String::new, configuration::show_size),
        ),
    ]);
    if !of.functions.is_empty() {
        text.push_str("\nFunctions\n");
        let table = functions_text(&of.functions);
        text.extend(table.lines().map(|line| format!("  {line}\n")));
    }
    text.push_str(&flows_text(&of.heaviest_flows));
    text.push_str(&of.past.text());
    text
}

fn flows_text(page: &FlowPage) -> String {
    let table = heavy_flows_text(page);
    let lines: String = table.lines().map(|line| format!("  {line}\n")).collect();
    format!("\nHeaviest flows\n{lines}")
}

fn within(of: PercentilesUs, whom: &str) -> String {
    format!(
        "half within {}, 99 % within {} ({whom} in the last second)",
        micros(of.p50),
        micros(of.p99)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_a_service_or_an_instance() {
        let of = |text| {
            let Target { service, instance } = Target::of(text);
            (service, instance.map(|id| id.0))
        };
        assert_eq!(of("web"), (Some("web"), None));
        assert_eq!(of("web/3"), (Some("web"), Some(3)));
        assert_eq!(of("3"), (None, Some(3)));
        assert_eq!(of("web/x"), (Some("web"), Some(u32::MAX)));
    }

    #[test]
    fn the_newest_of_each_kind_are_kept() {
        let event = |sequence, kind| Event {
            sequence,
            at: model::Nanos(0),
            unix_ms: 0,
            service: Some("web".to_owned()),
            instance: None,
            kind,
        };
        let events = (0..30).flat_map(|n| {
            [
                event(3 * n, EventKind::Hot { occupancy: 1.0 }),
                event(
                    3 * n + 1,
                    EventKind::Shadowed {
                        wanted: 1,
                        would: 2,
                        policy: "ladder".to_owned(),
                        reason: "r".to_owned(),
                    },
                ),
                event(3 * n + 2, EventKind::Stopping { keep: false }),
            ]
        });
        let past = Past::of(events);
        for (kind, last) in [(&past.failures, 87), (&past.decisions, 88), (&past.events, 89)] {
            assert_eq!((kind.len(), kind.last().unwrap().sequence), (EVENTS, last));
        }
        let text = past.text();
        let place = |what: &str| text.find(what).unwrap();
        assert!(
            place("Decisions") < place("Failures") && place("Failures") < place("Events"),
            "{text}"
        );
    }
}
