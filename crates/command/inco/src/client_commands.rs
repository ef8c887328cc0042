//! The commands that query or control a running inco.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use api::counters::{FunctionCounters, ResumedCounters};
use api::types::{
    FlowExplanation, FlowFilter, FlowPage, InstanceRow, PlaceRow, PortPool, Refusal, ReportRow, ReportStatus,
    ServiceRow, Status, UnwrittenEvents, WorkerRow,
};
use api::{ApiError, Client, run_dir};
use display::event::{event_text, moment};
use display::output;
use display::table::{Table, grouped, or_dash, percent, short, span_ms};
use model::{Event, InstanceId, RolloutState};
use orchestrator::leftovers::Ended;
use serde::Serialize;

use crate::cli::{
    ConnectionArgs, EventsArgs, ExplainFlowArgs, FlowsArgs, InstancesArgs, Names, NamesArgs, OutputArgs,
    ServicesArgs, StatusArgs,
};

/// Maximum width of a text table, in columns, without `--wide`.
const WIDTH: usize = 100;

pub(crate) fn connect(connection: &ConnectionArgs) -> anyhow::Result<Client> {
    Client::connect_to(connection.endpoint()?).map_err(|error| {
        let ended = match &error {
            ApiError::NotRunning { socket } => {
                Ended::of(&run_dir::run_dir()).filter(|of| of.socket == *socket)
            }
            _ => None,
        };
        match ended {
            Some(of) => anyhow::anyhow!("inco is not running: {}; {}", of.what(), of.remedy()),
            None => error.into(),
        }
    })
}

/// Queries and prints, once or repeatedly.
pub(crate) fn show<T: Serialize>(
    args: &OutputArgs,
    ask: impl Fn(&Client) -> Result<T, ApiError>,
    table: impl Fn(&T) -> String,
) -> anyhow::Result<()> {
    let client = connect(&args.connection)?;
    loop {
        let answer = ask(&client)?;
        if args.json {
            output::json(&answer, args.watch.is_none())?;
        } else if args.watch.is_some() && output::is_terminal() {
            // Cursor home and clear, in one write, so that the screen does not flicker.
            output::text(&format!("\x1b[H\x1b[2J{}", table(&answer)))?;
        } else {
            output::text(&table(&answer))?;
        }
        match args.watch {
            None => return Ok(()),
            Some(pause) => std::thread::sleep(pause),
        }
    }
}

pub(crate) fn status(args: &StatusArgs) -> anyhow::Result<()> {
    show(&args.output, Client::status, status_text)
}

/// How many events are missing in the files of the event log, and why.
fn unwritten_text(of: &UnwrittenEvents) -> String {
    let events = grouped(of.events);
    match &of.error {
        Some(error) => format!(
            "events cannot be written, {events} so far: {}",
            output::plain(error)
        ),
        None => format!("{events} events could not be written; now they are"),
    }
}

/// What was taken over from an earlier run: a line, and another one for each part that could not be.
fn resumed_text(of: &ResumedCounters) -> String {
    let mut text = format!(
        "taken over from an earlier run: flows {}; instances {}; uplinks {}",
        grouped(of.flows),
        grouped(of.instances),
        grouped(of.uplinks),
    );
    if of.converted_tables > 0 {
        let _ = write!(text, "; tables converted {}", of.converted_tables);
    }
    for (what, kinds) in [("repaired", &of.repaired), ("rejected", &of.rejected)] {
        let some = kinds.iter().filter(|(_, count)| **count > 0);
        let some: Vec<String> = some
            .map(|(kind, count)| format!("{kind} {}", grouped(*count)))
            .collect();
        if !some.is_empty() {
            let _ = write!(text, "; entries {what}: {}", some.join(", "));
        }
    }
    text.push('\n');
    for part in &of.unusable {
        let _ = writeln!(text, "not taken over: {part}");
    }
    text
}

fn status_text(status: &Status) -> String {
    let mut text = String::new();
    let engine = if status.engine.up {
        format!("{} answers", status.engine.driver)
    } else {
        format!(
            "{} has not answered for {}",
            status.engine.driver,
            span_ms(status.engine.down_ms)
        )
    };
    let uptime_ms = (status.uptime_s * 1000.0) as u64;
    let told = |of: PortPool| format!("; ports for instances {} of {}", of.taken, of.made);
    let ports = status.ports.map(told).unwrap_or_default();
    let _ = writeln!(
        text,
        "inco {} has run {} for {} (process {}); engine {engine}\nflows {} of {}{}; events {}\n",
        status.version,
        status.file,
        span_ms(uptime_ms),
        status.pid,
        grouped(status.live_flows),
        grouped(status.flow_limit),
        ports,
        grouped(status.events),
    );
    for (service, how) in &status.failing {
        let _ = writeln!(text, "service {service}: {}", output::plain(how));
    }
    if let Some(of) = &status.unwritten_events {
        let _ = writeln!(text, "event log: {}", unwritten_text(of));
    }
    if !status.failing.is_empty() || status.unwritten_events.is_some() {
        text.push('\n');
    }
    if let Some(of) = &status.resumed {
        let _ = writeln!(text, "{}", resumed_text(of));
    }
    if !status.places.is_empty() {
        text.push_str(&places_text(&status.places));
    }
    let mut uplinks = Table::new(&[
        "uplink",
        "device",
        "state",
        ">rx pps",
        ">tx pps",
        ">rx pkts",
        ">tx pkts",
        ">dropped",
        ">rx_missed",
        ">tx_errors",
    ]);
    for uplink in &status.uplinks {
        uplinks.row([
            uplink.name.clone(),
            uplink.device.clone(),
            uplink.state().to_owned(),
            short(uplink.received_pps),
            short(uplink.sent_pps),
            grouped(uplink.received_packets),
            grouped(uplink.sent_packets),
            grouped(uplink.dropped_packets),
            grouped(uplink.missed_packets),
            grouped(uplink.failed_packets),
        ]);
    }
    text.push_str(&uplinks.text());
    text.push('\n');
    let mut workers = Table::new(&[
        "worker",
        ">cpu",
        ">busy",
        ">awake",
        ">longest gap",
        ">received",
        ">handed off",
        ">flows",
    ]);
    for worker in &status.workers {
        workers.row([
            worker.worker.to_string(),
            or_dash(worker.cpu, |cpu| cpu.to_string()),
            percent(worker.busy),
            percent(worker.awake),
            format!("{:.0} us", worker.longest_gap_us),
            grouped(worker.received_packets),
            grouped(worker.handed_off_packets),
            grouped(worker.live_flows),
        ]);
    }
    text.push_str(&workers.text());
    let accounting = &status.accounting;
    let _ = writeln!(
        text,
        "\noffered {} + originated {} = returned {} + delivered {} + dropped {} + in flight {} (gap {})",
        grouped(accounting.offered),
        grouped(accounting.originated),
        grouped(accounting.returned),
        grouped(accounting.delivered),
        grouped(accounting.dropped),
        grouped(accounting.in_flight),
        accounting.gap(),
    );
    let held: u64 = status.workers.iter().map(|w| w.held_moves).sum();
    if held > 0 {
        let early: u64 = status.workers.iter().map(|w| w.early_moves).sum();
        let _ = writeln!(
            text,
            "moved flows with held packets: {} ({} released early)",
            grouped(held),
            grouped(early)
        );
    }
    let sum = |of: fn(&WorkerRow) -> u64| status.workers.iter().map(of).sum::<u64>();
    let (looks, returned) = (sum(|w| w.looks), sum(|w| w.looks_returned));
    if looks > 0 {
        let _ = writeln!(
            text,
            "flows of other edges: {} packets asked machines for theirs, {} came back",
            grouped(looks),
            grouped(returned)
        );
    } else if returned > 0 {
        let _ = writeln!(
            text,
            "flows of other machines: {} packets went back to edges",
            grouped(returned)
        );
    }
    let (moved, at_limit, refused) = (
        sum(|w| w.state_moves),
        sum(|w| w.state_moves_at_limit),
        sum(|w| w.state_moves_refused),
    );
    let others = sum(|w| w.state_moves_without_room + w.state_moves_gone);
    if moved + at_limit + refused + others > 0 {
        let _ = writeln!(
            text,
            "moved flows with state: {} (cancelled: {} at a limit, {} refused, {} others)",
            grouped(moved),
            grouped(at_limit),
            grouped(refused),
            grouped(others)
        );
    }
    let limit = sum(|w| w.fast_rules_limit);
    if limit > 0 {
        let _ = writeln!(
            text,
            "fast path: {} of {} rules in use; promoted {}, demoted {}, refused {}; {} packets",
            grouped(sum(|w| w.fast_rules)),
            grouped(limit),
            grouped(sum(|w| w.promotions)),
            grouped(sum(|w| w.demotions)),
            grouped(sum(|w| w.refused_promotions)),
            grouped(sum(|w| w.fast_packets)),
        );
    }
    if let Some(of) = &status.reports {
        text.push_str(&reports_text(of));
    }
    if accounting.expected_moves > 0 {
        let _ = writeln!(
            text,
            "moved flows: {} (their instance failed)",
            grouped(accounting.expected_moves)
        );
    }
    for (reason, packets) in &status.drops {
        let _ = writeln!(text, "dropped {reason}: {}", grouped(*packets));
    }
    let collector = &status.collector;
    let _ = writeln!(
        text,
        "collector: every {} us, {:.1} us each ({:.1} us at most), {} of a CPU",
        collector.period_us,
        collector.mean_us,
        collector.longest_us,
        percent(collector.cpu),
    );
    text
}

pub(crate) fn services(args: &ServicesArgs) -> anyhow::Result<()> {
    let table = if args.wide {
        services_text_wide
    } else {
        services_text
    };
    show(&args.output, Client::services, |rows| table(rows))
}

/// The table within [`WIDTH`] columns. Failures of services are shown in full below it.
fn services_text(rows: &[ServiceRow]) -> String {
    let mut table = Table::new(&[
        "service", ">active", ">min-max", ">in pps", ">out pps", ">load", ">flows", ">dropped", "reason",
    ]);
    let mut failing = String::new();
    for row in rows {
        let reason = match &row.failing {
            None => service_reason(row),
            Some(how) => {
                let _ = writeln!(failing, "{}: {}", row.name, output::plain(how));
                "failing, see below".to_owned()
            }
        };
        table.row([
            row.name.clone(),
            format!("{}/{}", row.active, row.desired),
            format!("{}-{}", row.min, row.max),
            short(row.offered_pps),
            short(row.returned_pps),
            or_dash(row.highest_utilisation, percent),
            short(row.live_flows as f64),
            short(row.dropped_packets as f64),
            reason,
        ]);
    }
    table.text_within(WIDTH)
        + &failing
        + &services_places_text(rows)
        + &chains_text(rows)
        + &weights_text(rows)
}

/// Where the active instances of each service run.
fn services_places_text(rows: &[ServiceRow]) -> String {
    let mut text = String::new();
    for row in rows.iter().filter(|row| !row.places.is_empty()) {
        let places = row
            .places
            .iter()
            .map(|(place, active)| format!("{active} at {place}"));
        let _ = writeln!(text, "{}: {}", row.name, places.collect::<Vec<_>>().join(", "));
    }
    text
}

/// What is at each place.
fn places_text(rows: &[PlaceRow]) -> String {
    let mut table = Table::new(&["place", "engine", "cpus", ">instances", ">capacity pps", "state"]);
    for row in rows {
        let of = |limit: Option<String>| limit.map(|limit| format!(" of {limit}")).unwrap_or_default();
        let state = match row.engine.up {
            true => "answers".to_owned(),
            false => format!("has not answered for {}", span_ms(row.engine.down_ms)),
        };
        table.row([
            row.name.clone(),
            row.engine.driver.clone(),
            row.cpus.clone().unwrap_or_else(|| "all".to_owned()),
            format!(
                "{}{}",
                row.instances,
                of(row.instance_limit.map(|limit| limit.to_string()))
            ),
            format!("{}{}", short(row.pps), of(row.pps_limit.map(short))),
            state,
        ]);
    }
    table.text() + "\n"
}

/// Load reports: a line for each edge or machine, and one for those that were refused.
fn reports_text(of: &ReportStatus) -> String {
    let mut text = String::new();
    for edge in &of.edges {
        let known = if edge.known {
            ""
        } else {
            " (it has not answered yet)"
        };
        let (sent, failed) = (grouped(edge.sent), grouped(edge.failed));
        let _ = writeln!(
            text,
            "reports to {}: {sent} sent, {failed} failed{known}",
            edge.edge
        );
    }
    for machine in &of.machines {
        let age = machine.age_ms.map_or_else(
            || "none yet".to_owned(),
            |ms| format!("the last {} ago", span_ms(ms)),
        );
        let (number, accepted) = (machine.number, grouped(machine.accepted));
        let _ = writeln!(
            text,
            "reports of machine {number} ({}): {accepted}, {age}",
            machine.address
        );
    }
    let refused = of.refused.iter();
    let refused: Vec<String> = refused
        .map(|(reason, count)| format!("{} {reason}", grouped(*count)))
        .collect();
    if !refused.is_empty() {
        let _ = writeln!(text, "reports refused: {}", refused.join(", "));
    }
    text
}

/// What the machine of an instance reports.
pub(crate) fn report_text(of: &ReportRow) -> String {
    let state = match of.state.as_str() {
        "serving" => String::new(),
        other => format!("{other}, "),
    };
    let age = span_ms(of.age_ms);
    let believed = if of.trust < 1.0 {
        format!(", believed to {}", percent(of.trust))
    } else {
        String::new()
    };
    format!("{state}{} used, {age} ago{believed}", percent(of.utilisation))
}

/// The services of each chain, in order: what one returns goes on to the next.
fn chains_text(rows: &[ServiceRow]) -> String {
    let mut text = String::new();
    let is_behind = |row: &ServiceRow| rows.iter().any(|of| of.next.as_ref() == Some(&row.name));
    for first in rows.iter().filter(|row| row.next.is_some() && !is_behind(row)) {
        let next = |of: &&ServiceRow| rows.iter().find(|row| of.next.as_ref() == Some(&row.name));
        let names = std::iter::successors(Some(first), next).map(|row| row.name.as_str());
        let names: Vec<&str> = names.take(rows.len()).collect();
        let _ = writeln!(text, "chain: {}", names.join(" > "));
    }
    text
}

/// The weights of services whose scheduler has any, and how even the load of their instances is.
fn weights_text(rows: &[ServiceRow]) -> String {
    let mut text = String::new();
    for row in rows {
        let Some(weights) = &row.weights else { continue };
        let mut table = Table::new(&["instance", ">weight", ">share", ">load in the last period"]);
        for of in &weights.instances {
            table.row([
                of.instance.to_string(),
                of.weight.to_string(),
                percent(of.share),
                format!("{} {}", grouped(of.period_load), row.metric),
            ]);
        }
        let _ = writeln!(
            text,
            "\n{}: weights, computed every {}; Jain's index {}, max/min {}\n{}",
            row.name,
            span_ms(weights.period_ms),
            or_dash(row.jain, |index| format!("{index:.3}")),
            or_dash(row.max_min, |ratio| format!("{ratio:.2}")),
            table.text().trim_end()
        );
    }
    text
}

fn services_text_wide(rows: &[ServiceRow]) -> String {
    let mut table = Table::new(&[
        "service",
        ">active",
        ">desired",
        ">min-max",
        ">standby",
        ">starting",
        ">draining",
        ">flows",
        ">in pps",
        ">out pps",
        ">load",
        ">dropped",
        "scheduler",
        "autoscaler",
        "reason",
    ]);
    for row in rows {
        table.row([
            row.name.clone(),
            row.active.to_string(),
            row.desired.to_string(),
            format!("{}-{}", row.min, row.max),
            row.standby.to_string(),
            row.starting.to_string(),
            row.draining.to_string(),
            grouped(row.live_flows),
            short(row.offered_pps),
            short(row.returned_pps),
            or_dash(row.highest_utilisation, percent),
            grouped(row.dropped_packets),
            row.scheduler.clone(),
            row.autoscaler.clone(),
            service_reason(row),
        ]);
    }
    table.text() + &services_places_text(rows) + &chains_text(rows) + &weights_text(rows)
}

/// The autoscaler's last reason, and its restrictions.
fn service_reason(row: &ServiceRow) -> String {
    let reason = row.failing.as_ref().unwrap_or(&row.reason);
    let rollout = row
        .rollout
        .as_ref()
        .filter(|of| of.state == RolloutState::Running);
    let marks = [
        row.fixed.then(|| "manual".to_owned()),
        rollout.map(|of| format!("rollout {}/{}", of.replaced, of.total)),
        restrictions(row),
    ];
    let marks: Vec<String> = marks.into_iter().flatten().collect();
    if marks.is_empty() {
        return reason.clone();
    }
    format!("[{}] {reason}", marks.join(", "))
}

/// The restrictions of the autoscaler, and the count that it would set without them.
pub(crate) fn restrictions(row: &ServiceRow) -> Option<String> {
    let held = [
        ("scale-in disabled", row.pause_in),
        ("scale-out disabled", row.pause_out),
        ("dry-run", row.dry_run),
    ];
    let held: Vec<&str> = held.iter().filter(|(_, on)| *on).map(|(how, _)| *how).collect();
    let would = row
        .would
        .map_or_else(String::new, |would| format!(", would want {would}"));
    (!held.is_empty()).then(|| format!("{}{would}", held.join(", ")))
}

pub(crate) fn instances(args: &InstancesArgs) -> anyhow::Result<()> {
    let ask = |client: &Client| {
        let mut rows = client.instances()?;
        if let Some(service) = &args.service {
            let services = client.services()?;
            if !services.iter().any(|row| row.name == *service) {
                return Err(ApiError::Refused(Refusal::new(
                    format!("unknown service {service:?}"),
                    unknown_service(service, &services),
                )));
            }
            rows.retain(|row| row.service == *service);
        }
        if let Some(selector) = &args.selector {
            rows.retain(|row| selector.selects(row));
        }
        Ok(rows)
    };
    if !args.functions {
        return show(&args.output, ask, |rows| instances_text(rows));
    }
    let ask_functions = |client: &Client| {
        let rows = ask(client)?;
        let mut functions = client.counters()?.functions;
        functions.retain(|of| rows.iter().any(|row| row.id.0 == of.instance));
        Ok(functions)
    };
    show(&args.output, ask_functions, |functions| functions_text(functions))
}

/// What functions say of themselves: a row for each, and below it what it counts besides.
pub(crate) fn functions_text(functions: &[FunctionCounters]) -> String {
    let mut table = Table::new(&[
        ">id",
        "service",
        "function",
        ">packets",
        ">forwarded",
        ">answered",
        ">made",
        ">dropped",
        ">flows",
        "counters",
    ]);
    for of in functions {
        let named = |from: &BTreeMap<String, u64>| {
            let shown = from.iter().filter(|(_, value)| **value > 0);
            shown
                .map(|(name, value)| format!("{name} {}", grouped(*value)))
                .collect::<Vec<_>>()
        };
        let besides = [&of.drops, &of.totals, &of.gauges].map(named).concat();
        table.row([
            of.instance.to_string(),
            of.service.clone(),
            of.name.clone(),
            grouped(of.packets),
            grouped(of.forwarded),
            grouped(of.answered),
            grouped(of.originated),
            grouped(of.drops.values().fold(0, |sum: u64, n| sum.saturating_add(*n))),
            grouped(of.flows),
            besides.join(", "),
        ]);
    }
    table.text()
}

/// Names for completions, one per line.
pub(crate) fn names(args: &NamesArgs) -> anyhow::Result<()> {
    let client = connect(&args.connection)?;
    let mut names: Vec<String> = Vec::new();
    if args.names != Names::Instances {
        names.extend(client.services()?.into_iter().map(|row| row.name));
    }
    if args.names != Names::Services {
        let name = |row: InstanceRow| match args.names {
            Names::Targets => format!("{}/{}", row.service, row.id.0),
            _ => row.id.0.to_string(),
        };
        names.extend(client.instances()?.into_iter().map(name));
    }
    names.iter().try_for_each(output::line)
}

pub(crate) fn unknown_service(service: &str, services: &[ServiceRow]) -> String {
    match configuration::nearest(service, services.iter().map(|row| row.name.as_str())) {
        Some(near) => format!("did you mean {near}?"),
        None => "see `inco services`".to_owned(),
    }
}

pub(crate) fn instances_text(rows: &[InstanceRow]) -> String {
    let has_places = rows.iter().any(|row| row.place.is_some());
    let are_others = rows.iter().any(|row| row.address.is_some());
    let report = rows.iter().any(|row| row.report.is_some());
    let mut heading = vec![">id", "service"];
    heading.extend(has_places.then_some("place"));
    heading.extend(are_others.then_some("address"));
    heading.extend(report.then_some("report"));
    heading.extend([
        "state",
        ">for",
        ">in pps",
        ">out pps",
        ">flows",
        ">ring",
        ">cpu",
        ">limit",
        ">capacity",
        ">dropped",
        ">pid",
        "reason",
    ]);
    let mut table = Table::new(&heading);
    for row in rows {
        let mut cells = vec![row.id.to_string(), row.service.clone()];
        cells.extend(has_places.then(|| or_dash(row.place.as_ref(), String::clone)));
        cells.extend(are_others.then(|| or_dash(address_text(row), |text| text)));
        cells.extend(report.then(|| or_dash(row.report.as_ref(), report_text)));
        cells.extend([
            row.state.name().to_owned(),
            span_ms(row.state_ms),
            short(row.to_pps),
            short(row.back_pps),
            grouped(row.live_flows),
            percent(row.ring_occupancy),
            or_dash(row.cpu, percent),
            match row.core {
                Some(cpu) => format!("core {cpu}"),
                None => or_dash(row.cpu_quota, |cpus| format!("{cpus:.2}")),
            },
            or_dash(row.capacity_pps, short),
            grouped(row.dropped_packets),
            or_dash(row.pid, |pid| pid.to_string()),
            row.reason.clone(),
        ]);
        table.row(cells);
    }
    table.text()
}

/// Where others run it, and what they call it.
pub(crate) fn address_text(row: &InstanceRow) -> Option<String> {
    let address = row.address.as_ref()?;
    Some(match &row.name {
        Some(name) => format!("{address} {name}"),
        None => address.clone(),
    })
}

pub(crate) fn flows(args: &FlowsArgs) -> anyhow::Result<()> {
    let filter = FlowFilter {
        service: args.service.clone(),
        instance: args.instance.map(InstanceId),
        address: args.address,
        flow: args.flow.clone(),
        top: args.top,
        limit: Some(args.limit),
    };
    let text = if args.top.is_some() {
        heavy_flows_text
    } else {
        flows_text
    };
    show(&args.output, |client| client.flows(&filter), text)
}

/// The heaviest flows, with their rates in the first columns.
pub(crate) fn heavy_flows_text(page: &FlowPage) -> String {
    let mut table = Table::new(&[
        "flow",
        "service",
        ">instance",
        ">pps",
        ">+-",
        ">pkts",
        ">bytes",
        ">idle",
        "state",
    ]);
    for row in &page.flows {
        table.row([
            row.flow.clone(),
            row.service.clone(),
            or_dash(row.forward, |id| id.to_string()),
            or_dash(row.pps, short),
            or_dash(row.error_pps, short),
            grouped(row.packets[0] + row.packets[1]),
            grouped(row.bytes[0] + row.bytes[1]),
            span_ms(row.idle_ms),
            row.state.clone(),
        ]);
    }
    table.text()
}

fn flows_text(page: &FlowPage) -> String {
    // Only a switch of rules has them.
    let has_rules = page.flows.iter().any(|row| row.rule.is_some());
    let mut heads = vec![
        "flow",
        "service",
        ">instance",
        ">reply instance",
        ">tx pkts",
        ">rx pkts",
        ">tx bytes",
        ">rx bytes",
        ">idle",
        "state",
    ];
    heads.extend(has_rules.then_some("rule"));
    let mut table = Table::new(&heads);
    for row in &page.flows {
        let mut cells = vec![
            row.flow.clone(),
            row.service.clone(),
            or_dash(row.forward, |id| id.to_string()),
            or_dash(row.reverse, |id| id.to_string()),
            grouped(row.packets[0]),
            grouped(row.packets[1]),
            grouped(row.bytes[0]),
            grouped(row.bytes[1]),
            span_ms(row.idle_ms),
            row.state.clone(),
        ];
        cells.extend(has_rules.then(|| row.rule.clone().unwrap_or_else(|| "-".to_owned())));
        table.row(cells);
    }
    let mut text = table.text();
    if !page.complete {
        let _ = writeln!(
            text,
            "({} flows shown, more exist: see --limit)",
            page.flows.len()
        );
    }
    text
}

pub(crate) fn events(args: &EventsArgs) -> anyhow::Result<()> {
    let client = connect(&args.connection)?;
    let tell = |event: &Event| {
        if args.service.is_some() && event.service != args.service {
            return Ok(());
        }
        if args.json {
            output::json(event, false)
        } else {
            output::line(event_text(event, clock::unix_ms()))
        }
    };
    let last = usize::try_from(args.last)?;
    if !args.follow {
        return client.events(last)?.iter().try_for_each(tell);
    }
    for event in client.follow_events(last)? {
        tell(&event?)?;
    }
    output::complain("inco: the stream of events has ended: inco stopped");
    Ok(())
}

/// The instance of a flow, since when, and why.
pub(crate) fn explain_flow(args: &ExplainFlowArgs) -> anyhow::Result<()> {
    let explanation = connect(&args.common.connection)?.explain_flow(&args.flow)?;
    if args.common.json {
        output::json(&explanation, true)
    } else {
        output::text(&explanation_text(&explanation))
    }
}

fn explanation_text(of: &FlowExplanation) -> String {
    let now = clock::unix_ms();
    let mut text = format!("{}\n", of.flow);
    if let Some(service) = &of.service {
        let by = of.matched_by.as_deref().filter(|by| !by.is_empty());
        let _ = writeln!(
            text,
            "service {service}{}",
            by.map_or_else(String::new, |by| format!(", by its match {by}"))
        );
    }
    if let Some(row) = &of.pinned {
        let id = |id: Option<InstanceId>| or_dash(id, |id| id.to_string());
        let state = of.instance_state.map_or("gone", |state| state.name());
        let [forward, opposite] = row
            .since_unix_ms
            .map(|at| at.map_or_else(String::new, |ms| format!(" since {}", moment(ms, now))));
        let _ = writeln!(
            text,
            "forward on instance {} ({state}){forward}, opposite on {}{opposite}\n\
             {} packets forward, {} opposite; {} since the last one; {}",
            id(row.forward),
            id(row.reverse),
            grouped(row.packets[0]),
            grouped(row.packets[1]),
            span_ms(row.idle_ms),
            row.state,
        );
    }
    for reason in &of.why {
        let _ = writeln!(text, "- {reason}");
    }
    for event in &of.events {
        let _ = writeln!(text, "{}", event_text(event, now));
    }
    text
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use api::types::{EngineStatus, FlowRow, UplinkRow};

    use super::*;

    #[test]
    fn a_status_accounts_for_all_packets() {
        let status = Status {
            version: "0.1.0".to_owned(),
            pid: 7,
            file: "inco.toml".to_owned(),
            uptime_s: 61.5,
            engine: EngineStatus {
                driver: "oci".to_owned(),
                up: false,
                down_ms: 1500,
            },
            workers: vec![WorkerRow {
                cpu: Some(2),
                busy: 0.5,
                longest_gap_us: 123.4,
                fast_rules: 3,
                fast_rules_limit: 4000,
                promotions: 12,
                demotions: 9,
                refused_promotions: 5,
                fast_packets: 6789,
                ..WorkerRow::default()
            }],
            uplinks: vec![UplinkRow {
                name: "wan".to_owned(),
                received_pps: 1.5e6,
                ..UplinkRow::default()
            }],
            drops: BTreeMap::from([("unmatched".to_owned(), 1234)]),
            accounting: api::types::Accounting {
                offered: 2000,
                returned: 700,
                dropped: 1234,
                in_flight: 66,
                ..Default::default()
            },
            ..Status::default()
        };
        let text = status_text(&status);
        for said in [
            "inco 0.1.0 has run inco.toml for 1m01s (process 7); engine oci has not answered for 1.5s",
            "offered 2,000 + originated 0 = returned 700 + delivered 0 + dropped 1,234 + in flight 66 (gap 0)",
            "dropped unmatched: 1,234",
            "fast path: 3 of 4,000 rules in use; promoted 12, demoted 9, refused 5; 6,789 packets",
            "1.50M",
            "123 us",
        ] {
            assert!(text.contains(said), "{text}\nhas no\n{said}");
        }
    }

    #[test]
    fn flows_beyond_the_limit_are_mentioned() {
        let row = FlowRow {
            flow: "tcp 10.0.0.1:1 > 10.0.0.2:80".to_owned(),
            service: "web".to_owned(),
            forward: Some(InstanceId(3)),
            reverse: None,
            since_unix_ms: [Some(1), None],
            packets: [1000, 0],
            bytes: [64_000, 0],
            idle_ms: 12,
            state: "established".to_owned(),
            pps: None,
            error_pps: None,
            rule: None,
        };
        let text = flows_text(&FlowPage {
            flows: vec![row.clone()],
            complete: false,
        });
        assert!(
            text.contains("1,000") && text.contains("12ms") && text.contains("more exist: see --limit"),
            "{text}"
        );
        assert!(!text.contains("RULE"), "{text}");
        let with_rule = FlowRow {
            rule: Some("refused (error 5, 1)".to_owned()),
            ..row.clone()
        };
        let text = flows_text(&FlowPage {
            flows: vec![with_rule],
            complete: true,
        });
        assert!(
            text.contains("RULE") && text.contains("refused (error 5, 1)"),
            "{text}"
        );
        assert!(
            !flows_text(&FlowPage {
                flows: vec![row],
                complete: true
            })
            .contains("more")
        );
    }

    #[test]
    fn places_are_shown_where_there_are_some() {
        let row = |place: Option<&str>, core: Option<u16>| -> InstanceRow {
            let mut row: InstanceRow = serde_json::from_value(serde_json::json!({
                "id": 3, "service": "web", "state": "active", "state_ms": 1, "slot": null, "container": null,
                "pid": null, "adopted": false, "to_pps": 0.0, "back_pps": 0.0, "to_packets": 0, "back_packets": 0,
                "live_flows": 0, "ring_occupancy": 0.0, "dropped_packets": 0, "capacity_pps": null,
                "cpu_quota": 0.5, "busy": null, "memory_bytes": null, "reason": "its program runs",
            }))
            .unwrap();
            (row.place, row.core) = (place.map(str::to_owned), core);
            row
        };
        let without = instances_text(&[row(None, None)]);
        assert!(
            !without.contains("PLACE") && without.contains("0.50"),
            "{without}"
        );
        let with = instances_text(&[row(Some("card"), None), row(Some("host"), Some(7))]);
        assert!(
            with.contains("PLACE") && with.contains("card") && with.contains("core 7"),
            "{with}"
        );
        let mut pod = row(None, None);
        pod.address = Some("10.1.0.11:8080".to_owned());
        pod.name = Some("web-5d4f".to_owned());
        let of_others = instances_text(&[pod, row(None, None)]);
        assert!(
            of_others.contains("ADDRESS") && of_others.contains("10.1.0.11:8080 web-5d4f"),
            "{of_others}"
        );
        let service = |places: &[(&str, u32)]| ServiceRow {
            name: "web".to_owned(),
            places: places
                .iter()
                .map(|(name, active)| ((*name).to_owned(), *active))
                .collect(),
            ..ServiceRow::default()
        };
        assert_eq!(services_places_text(&[service(&[])]), "");
        assert_eq!(
            services_places_text(&[service(&[("card", 2), ("host", 1)])]),
            "web: 2 at card, 1 at host\n"
        );
        let place = PlaceRow {
            name: "card".to_owned(),
            instances: 2,
            instance_limit: Some(4),
            pps: 20e6,
            pps_limit: Some(36e6),
            ..PlaceRow::default()
        };
        let text = places_text(&[place]);
        for words in ["card", "2 of 4", " of 36", "has not answered for"] {
            assert!(text.contains(words), "{words}: {text}");
        }
    }

    #[test]
    fn services_fit_into_a_hundred_columns() {
        let row = |name: &str, failing: Option<&str>| ServiceRow {
            name: name.to_owned(),
            active: 120,
            desired: 128,
            fixed: true,
            min: 100,
            max: 128,
            live_flows: 123_456_789,
            offered_pps: 98_765_432.0,
            highest_utilisation: Some(1.013),
            scheduler: "least-connections".to_owned(),
            reason: "mean utilisation 0.82 over the target of 0.70 for 3 s, and the forecast is higher"
                .to_owned(),
            failing: failing.map(str::to_owned),
            ..ServiceRow::default()
        };
        let how = "crash loop (12 failures, last: its program exited with 3 and said \"no rules\")";
        let forged = services_text(&[row("web", Some("it said: \u{1b}[2J\nfirewall: fine"))]);
        assert_eq!(forged.lines().last(), Some("web: it said:  [2J firewall: fine"));
        let rows = [row("firewall", None), row("web", Some(how))];
        let text = services_text(&rows);
        let table: Vec<&str> = text.lines().take(3).collect();
        assert!(table.iter().all(|line| line.chars().count() <= WIDTH), "{text}");
        assert!(
            table[1].ends_with('~') && table[1].contains("101.3%") && table[1].contains("[manual]"),
            "{text}"
        );
        assert!(
            table[2].ends_with("failing, see below") && text.ends_with(&format!("\nweb: {how}\n")),
            "{text}"
        );
        let chained = |name: &str, next: Option<&str>| ServiceRow {
            next: next.map(str::to_owned),
            ..row(name, None)
        };
        let chain = services_text(&[
            chained("b", Some("c")),
            chained("c", None),
            chained("a", Some("b")),
            chained("d", None),
        ]);
        assert_eq!(chain.lines().last(), Some("chain: a > b > c"), "{chain}");
        // The longest permitted name.
        let long = services_text(&[row("a-name-of-thirty-two-characters-", None)]);
        assert!(long.lines().all(|line| line.chars().count() <= WIDTH), "{long}");
        let wide = services_text_wide(&rows);
        assert!(
            wide.contains("least-connections") && wide.contains("the forecast is higher"),
            "{wide}"
        );
        assert!(wide.contains(how), "{wide}");
    }

    #[test]
    fn the_status_says_that_events_are_not_written() {
        let of = |error: Option<&str>| {
            let unwritten = UnwrittenEvents {
                events: 1_200,
                error: error.map(str::to_owned),
            };
            status_text(&Status {
                unwritten_events: Some(unwritten),
                ..Status::default()
            })
        };
        let text = of(Some("/events: No space left on device (os error 28)"));
        let line = "event log: events cannot be written, 1,200 so far: /events: No space left on device (os error 28)";
        assert!(text.lines().any(|of| of == line), "{text}");
        let line = "event log: 1,200 events could not be written; now they are";
        assert!(of(None).lines().any(|of| of == line));
        assert!(!status_text(&Status::default()).contains("event log"));
    }

    #[test]
    fn empty_tables_have_headings() {
        assert!(services_text(&[]).starts_with("SERVICE"));
        assert!(instances_text(&[]).starts_with("ID"));
    }
}
