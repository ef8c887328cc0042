//! The commands that ask a running inco.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use api::types::{
    Action, FlowExplanation, FlowFilter, FlowPage, InstanceRow, Outcome, PolicyChoice, PortPool, Refusal,
    ServiceRow, Status,
};
use api::{ApiError, Client};
use model::{Event, InstanceId, KeyChange, RolloutState};
use serde::Serialize;

use crate::cli::{
    Act, EventsArgs, ExplainFlowArgs, FlowsArgs, HoldBackArgs, InstanceArgs, InstancesArgs, MoveArgs,
    PolicyArgs, PurgeArgs, ReloadArgs, RolloutArgs, ScaleArgs, ServicesArgs, Show, StatusArgs, StopArgs,
    UndrainArgs, Where,
};
use crate::wait;
use api::run_dir;
use display::event::{clock, event_text};
use display::output::{self, WrongUsage};
use display::table::{Table, grouped, or_dash, percent, short, span_ms};
use orchestrator::leftovers;

/// How long `inco stop` waits: draining is not part of it, but 8 programs that ignore SIGTERM are.
const STOP_TIME: Duration = Duration::from_secs(60);
/// How often it looks.
const STOP_LOOK: Duration = Duration::from_millis(20);

pub(crate) fn connect(place: &Where) -> anyhow::Result<Client> {
    Ok(Client::connect(&run_dir::api_socket(place.socket.as_deref()))?)
}

/// Asks and shows, once or again and again.
fn show<T: Serialize>(
    args: &Show,
    ask: impl Fn(&Client) -> Result<T, ApiError>,
    table: impl Fn(&T) -> String,
) -> anyhow::Result<()> {
    let client = connect(&args.place)?;
    loop {
        let answer = ask(&client)?;
        if args.json {
            output::json(&answer, args.watch.is_none())?;
        } else if args.watch.is_some() && output::is_terminal() {
            // To the corner, and nothing of what was there: one write, so that it does not flicker.
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
    show(&args.show, Client::status, status_text)
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
        let _ = writeln!(text, "service {service}: {how}");
    }
    if !status.failing.is_empty() {
        text.push('\n');
    }
    let mut uplinks = Table::new(&[
        "uplink",
        "device",
        "up",
        ">received/s",
        ">sent/s",
        ">received",
        ">sent",
        ">dropped",
        ">missed",
        ">failed",
    ]);
    for uplink in &status.uplinks {
        uplinks.row([
            uplink.name.clone(),
            uplink.device.clone(),
            if uplink.up { "up" } else { "down" }.to_owned(),
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
        "\noffered {} = returned {} + dropped {} + in flight {} - originated {} (gap {})",
        grouped(accounting.offered),
        grouped(accounting.returned),
        grouped(accounting.dropped),
        grouped(accounting.in_flight),
        grouped(accounting.originated),
        accounting.gap(),
    );
    let held: u64 = status.workers.iter().map(|w| w.held_moves).sum();
    if held > 0 {
        let early: u64 = status.workers.iter().map(|w| w.early_moves).sum();
        let _ = writeln!(
            text,
            "flows held while they moved: {} ({} went on before all was back)",
            grouped(held),
            grouped(early)
        );
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
    show(&args.show, Client::services, |rows| services_text(rows))
}

fn services_text(rows: &[ServiceRow]) -> String {
    let mut table = Table::new(&[
        "service",
        ">active",
        ">wanted",
        ">min-max",
        ">standby",
        ">starting",
        ">draining",
        ">flows",
        ">offered/s",
        ">returned/s",
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
            format!("{}{}", row.desired, if row.fixed { " (by hand)" } else { "" }),
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
    table.text()
}

/// Why there are as many instances as there are, and what holds the autoscaler back.
fn service_reason(row: &ServiceRow) -> String {
    let reason = row.failing.as_ref().unwrap_or(&row.reason);
    let rollout = row
        .rollout
        .as_ref()
        .filter(|of| of.state == RolloutState::Running);
    let marks = [
        rollout.map(|of| format!("rollout {}/{}", of.replaced, of.total)),
        held_back(row),
    ];
    let marks: Vec<String> = marks.into_iter().flatten().collect();
    if marks.is_empty() {
        return reason.clone();
    }
    format!("[{}] {reason}", marks.join(", "))
}

/// What holds the autoscaler back, and what it would want without.
pub(crate) fn held_back(row: &ServiceRow) -> Option<String> {
    let held = [
        ("pause-in", row.pause_in),
        ("pause-out", row.pause_out),
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
                    format!("there is no service {service:?}"),
                    unknown_service(service, &services),
                )));
            }
            rows.retain(|row| row.service == *service);
        }
        Ok(rows)
    };
    show(&args.show, ask, |rows| instances_text(rows))
}

pub(crate) fn unknown_service(service: &str, services: &[ServiceRow]) -> String {
    match configuration::nearest(service, services.iter().map(|row| row.name.as_str())) {
        Some(near) => format!("did you mean {near}?"),
        None => "see `inco services`".to_owned(),
    }
}

pub(crate) fn instances_text(rows: &[InstanceRow]) -> String {
    let mut table = Table::new(&[
        ">id",
        "service",
        "state",
        ">for",
        ">to/s",
        ">back/s",
        ">flows",
        ">ring",
        ">cpu",
        ">limit",
        ">capacity",
        ">dropped",
        ">pid",
        "reason",
    ]);
    for row in rows {
        table.row([
            row.id.to_string(),
            row.service.clone(),
            row.state.name().to_owned(),
            span_ms(row.state_ms),
            short(row.to_pps),
            short(row.back_pps),
            grouped(row.live_flows),
            percent(row.ring_occupancy),
            or_dash(row.cpu, percent),
            or_dash(row.cpu_quota, |cpus| format!("{cpus:.2}")),
            or_dash(row.capacity_pps, short),
            grouped(row.dropped_packets),
            or_dash(row.pid, |pid| pid.to_string()),
            row.reason.clone(),
        ]);
    }
    table.text()
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
    show(&args.show, |client| client.flows(&filter), text)
}

/// The heaviest flows: what they bring comes first.
pub(crate) fn heavy_flows_text(page: &FlowPage) -> String {
    let mut table = Table::new(&[
        "flow",
        "service",
        ">there",
        ">packets/s",
        ">+-",
        ">packets",
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
    // Only a switch that forwards by rules has any.
    let has_rules = page.flows.iter().any(|row| row.rule.is_some());
    let mut heads = vec![
        "flow", "service", ">there", ">back", ">packets", ">back", ">bytes", ">back", ">idle", "state",
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
            "({} flows shown; there are more: see --limit)",
            page.flows.len()
        );
    }
    text
}

pub(crate) fn events(args: &EventsArgs) -> anyhow::Result<()> {
    let client = connect(&args.place)?;
    let tell = |event: &Event| {
        if args.service.is_some() && event.service != args.service {
            return Ok(());
        }
        if args.json {
            output::json(event, false)
        } else {
            output::line(event_text(event))
        }
    };
    let last = usize::try_from(args.last)?;
    if !args.follow {
        return client.events(last)?.iter().try_for_each(tell);
    }
    for event in client.follow_events(last)? {
        tell(&event?)?;
    }
    output::complain("inco: it has ended");
    Ok(())
}

/// Does something and says what came of it. Gives the client, for what comes after.
fn act(args: &Act, action: &Action) -> anyhow::Result<Client> {
    let client = connect(&args.place)?;
    let outcome = client
        .act(action)
        .with_context(|| format!("cannot {}", action.name()))?;
    say(args, &outcome)?;
    Ok(client)
}

pub(crate) fn scale(args: &ScaleArgs) -> anyhow::Result<()> {
    let instances = if args.auto { None } else { args.instances };
    let client = act(
        &args.act,
        &Action::Scale {
            service: args.service.clone(),
            instances,
        },
    )?;
    let services = std::slice::from_ref(&args.service);
    wait::until(&args.wait, &client, |snapshot| {
        wait::for_active(snapshot, services)
    })
}

pub(crate) fn rollout(args: &RolloutArgs) -> anyhow::Result<()> {
    if args.status {
        return rollout_status(args);
    }
    let (service, cancel) = (args.service.clone(), args.cancel);
    let client = act(&args.act, &Action::Rollout { service, cancel })?;
    wait::until(&args.wait, &client, |snapshot| {
        wait::for_rollout(snapshot, &args.service)
    })
}

/// How far a rollout is.
fn rollout_status(args: &RolloutArgs) -> anyhow::Result<()> {
    let services = connect(&args.act.place)?.services()?;
    let name = &args.service;
    let Some(row) = services.iter().find(|row| row.name == *name) else {
        let hint = unknown_service(name, &services);
        return Err(Refusal::new(format!("there is no service {name:?}"), hint).into());
    };
    if args.act.json {
        output::json(&row.rollout, true)?;
    }
    match &row.rollout {
        _ if args.act.json => {}
        None => output::line(format!("{name} had no rollout since inco started"))?,
        Some(of) => output::line(format!(
            "{name}: {}, {} of {} replaced: {}",
            of.state.name(),
            of.replaced,
            of.total,
            of.reason
        ))?,
    }
    match &row.rollout {
        Some(of) if of.state == RolloutState::Aborted => anyhow::bail!("the rollout of {name} was aborted"),
        _ => Ok(()),
    }
}

pub(crate) fn policy(args: &PolicyArgs) -> anyhow::Result<()> {
    let service = args.service.clone();
    let choice = |name: &Option<String>| {
        name.as_ref().map(|policy| PolicyChoice {
            policy: policy.clone(),
            parameters: args.set.iter().cloned().collect(),
        })
    };
    let action = match args.record {
        Some(decisions) => Action::Record { service, decisions },
        None => Action::Policy {
            service,
            scheduler: choice(&args.scheduler),
            autoscaler: choice(&args.autoscaler),
        },
    };
    act(&args.act, &action).map(drop)
}

/// The same action for several instances; all are tried.
fn act_on_each(args: &Act, instances: &[u32], action: impl Fn(InstanceId) -> Action) -> anyhow::Result<()> {
    let mut failed = 0;
    let mut last = None;
    for instance in instances {
        if let Err(error) = act(args, &action(InstanceId(*instance))) {
            if error.downcast_ref::<output::OutputClosed>().is_some() || instances.len() == 1 {
                return Err(error);
            }
            failed += 1;
            output::complain(&format!("inco: {}", output::explain(&error)));
            last = Some(error);
        }
    }
    match last {
        None => Ok(()),
        Some(_) => anyhow::bail!("{failed} of {} failed", instances.len()),
    }
}

pub(crate) fn drain(args: &InstanceArgs) -> anyhow::Result<()> {
    act_on_each(&args.act, &args.instances, |instance| Action::Drain { instance })?;
    let instances: Vec<InstanceId> = args.instances.iter().copied().map(InstanceId).collect();
    let client = connect(&args.act.place)?;
    wait::until(&args.wait, &client, |snapshot| {
        Ok(wait::for_drained(snapshot, &instances))
    })
}

pub(crate) fn undrain(args: &UndrainArgs) -> anyhow::Result<()> {
    act_on_each(&args.act, &args.instances, |instance| Action::Undrain {
        instance,
    })
}

pub(crate) fn purge(args: &PurgeArgs) -> anyhow::Result<()> {
    let action = match (args.instance, &args.flow) {
        (Some(instance), None) => Action::Purge {
            instance: Some(InstanceId(instance)),
            flow: None,
        },
        (None, Some(flow)) => Action::Purge {
            instance: None,
            flow: Some(flow.clone()),
        },
        _ => {
            return Err(
                WrongUsage("what to purge is not said: write an instance's id or --flow".to_owned()).into(),
            );
        }
    };
    // By its own clock, before anything is unpinned.
    let before = match args.wait.wait {
        true => connect(&args.act.place)?.snapshot()?.unix_ms,
        false => 0,
    };
    let client = act(&args.act, &action)?;
    let instance = InstanceId(args.instance.unwrap_or_default());
    wait::until(&args.wait, &client, |_| {
        wait::for_unpinned(&client, instance, before)
    })
}

pub(crate) fn move_flow(args: &MoveArgs) -> anyhow::Result<()> {
    act(
        &args.act,
        &Action::Move {
            flow: args.flow.clone(),
            instance: InstanceId(args.instance),
        },
    )
    .map(drop)
}

pub(crate) fn pause_in(args: &HoldBackArgs) -> anyhow::Result<()> {
    let (service, on) = (args.service.clone(), !args.off);
    act(&args.act, &Action::PauseIn { service, on }).map(drop)
}

pub(crate) fn pause_out(args: &HoldBackArgs) -> anyhow::Result<()> {
    let (service, on) = (args.service.clone(), !args.off);
    act(&args.act, &Action::PauseOut { service, on }).map(drop)
}

pub(crate) fn dry_run(args: &HoldBackArgs) -> anyhow::Result<()> {
    let (service, on) = (args.service.clone(), !args.off);
    act(&args.act, &Action::DryRun { service, on }).map(drop)
}

pub(crate) fn reload(args: &ReloadArgs) -> anyhow::Result<()> {
    let action = Action::Reload { check: args.check };
    let client = connect(&args.act.place)?;
    let outcome = client.act(&action).context("cannot reload")?;
    let is_refused = args.check && outcome.changes.iter().any(|change| change.needs_restart);
    if args.act.json {
        output::json(&outcome, true)?;
    } else {
        if args.diff {
            output::text(&changes_text(&outcome.changes))?;
        }
        if !is_refused {
            output::line(&outcome.result)?;
        }
    }
    if is_refused {
        anyhow::bail!(outcome.result);
    }
    let services = changed_services(&outcome.changes);
    wait::until(&args.wait, &client, |snapshot| {
        wait::for_active(snapshot, &services)
    })
}

/// The services that changed, each once.
fn changed_services(changes: &[KeyChange]) -> Vec<String> {
    let name = |change: &KeyChange| {
        let key = change.key.strip_prefix("service.")?;
        key.split('.').next().map(str::to_owned)
    };
    let mut services: Vec<String> = changes.iter().filter_map(name).collect();
    services.dedup();
    services
}

/// A line for each key: from which value to which.
fn changes_text(changes: &[KeyChange]) -> String {
    let line = |change: &KeyChange| {
        let restart = if change.needs_restart {
            " (needs a restart)"
        } else {
            ""
        };
        // What a file holds must not move the cursor.
        let text = change.to_string().replace(|c: char| c.is_control(), "?");
        format!("{text}{restart}\n")
    };
    changes.iter().map(line).collect()
}

/// Where a flow is, since when, and why there.
pub(crate) fn explain_flow(args: &ExplainFlowArgs) -> anyhow::Result<()> {
    let explanation = connect(&args.act.place)?.explain_flow(&args.flow)?;
    if args.act.json {
        output::json(&explanation, true)
    } else {
        output::text(&explanation_text(&explanation))
    }
}

fn explanation_text(of: &FlowExplanation) -> String {
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
            .map(|at| at.map_or_else(String::new, |ms| format!(" since {}", clock(ms))));
        let _ = writeln!(
            text,
            "forward on instance {} ({state}){forward}, opposite on {}{opposite}\n{} packets forward, {} opposite; {} since the last one; {}",
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
        let _ = writeln!(text, "{}", event_text(event));
    }
    text
}

pub(crate) fn stop(args: &StopArgs) -> anyhow::Result<()> {
    let client = match connect(&args.act.place) {
        Ok(client) => client,
        Err(error) => return stop_what_is_left(args, error),
    };
    let outcome = client
        .act(&Action::Stop { keep: args.keep })
        .context("cannot stop")?;
    if !args.no_wait {
        let started = Instant::now();
        let mut told = false;
        while Client::connect(client.socket()).is_ok() {
            if started.elapsed() > STOP_TIME {
                anyhow::bail!(
                    "inco still runs after {} s: see what it logs",
                    STOP_TIME.as_secs()
                );
            }
            if !told && started.elapsed() > Duration::from_secs(1) {
                told = true;
                output::complain("inco: waiting for its containers to end");
            }
            std::thread::sleep(STOP_LOOK);
        }
    }
    say(&args.act, &outcome)
}

/// Where no inco answers: removes what one has left that was killed, or was told to keep its containers.
fn stop_what_is_left(args: &StopArgs, error: anyhow::Error) -> anyhow::Result<()> {
    let is_not_running = matches!(error.downcast_ref(), Some(ApiError::NotRunning { .. }));
    if !is_not_running || args.keep {
        return Err(error);
    }
    let Some(containers) = leftovers::remove(&run_dir::run_dir())? else {
        return Err(error);
    };
    let containers = match containers {
        1 => "1 container".to_owned(),
        count => format!("{count} containers"),
    };
    let result = format!("inco was not running any more; {containers} that it had left are removed");
    say(&args.act, &Outcome::new(result))
}

fn say(args: &Act, outcome: &Outcome) -> anyhow::Result<()> {
    if args.json {
        output::json(outcome, true)
    } else {
        output::line(&outcome.result)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use api::types::{EngineStatus, FlowRow, UplinkRow, WorkerRow};

    use super::*;

    #[test]
    fn a_status_says_where_all_packets_are() {
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
            "offered 2,000 = returned 700 + dropped 1,234 + in flight 66 - originated 0 (gap 0)",
            "dropped unmatched: 1,234",
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
            text.contains("1,000") && text.contains("12ms") && text.contains("there are more: see --limit"),
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
    fn empty_tables_have_headings() {
        assert!(services_text(&[]).starts_with("SERVICE"));
        assert!(instances_text(&[]).starts_with("ID"));
    }
}
