//! Packets lost, and time without forwarding, when instances are added and removed under load.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use flow_table::TableConfig;
use model::{InstanceState, ServiceId, Slot, UplinkId};
use scheduling::Scheduler;
use serde::Serialize;
use switch::{Change, Plan, Switch as _, SwitchEvent, SwitchRequest};

use super::facts::facts;
use super::raw::Raw;
use super::steering::plan;
use super::synthetic::{Moment, Source, SourceRate, Synthetic};
use crate::args::BlockedArgs;
use display::output;
use display::table::{Table, grouped};

/// Instances besides the one that is added and removed: `null` ports.
const INSTANCES: u16 = 4;
/// The slot of that instance.
const CHANGED_SLOT: Slot = Slot(INSTANCES);
/// Established flows, and their packets per second of CPU time: half of a worker's capacity.
const FLOWS: u32 = 10_000;
const KNOWN_PER_S: u64 = 5_000_000;
/// New flows per second of CPU time.
const NEW_PER_S: u64 = 200_000;
/// CPU time of the worker after each change that is included.
const MEASURED_AFTER_CHANGE: Duration = Duration::from_millis(10);
/// Capacity of the flow table: all new flows of a run, which do not end.
const TABLE_FLOWS: usize = 4_000_000;

/// The result of one kind of change under one scheduler.
#[derive(Clone, Debug, Serialize)]
struct Row {
    scheduler: &'static str,
    /// `activate`: from attached to taking flows; `drain`: to taking none; `remove`: together with its flows.
    change: &'static str,
    changes: u32,
    offered: u64,
    /// Packets dropped by the switch, for any reason.
    dropped: u64,
    /// `dropped`, plus the packets that the sources' full rings dropped.
    lost: u64,
    /// Lost packets ÷ packets offered per millisecond: total time without forwarding, in milliseconds.
    blocked_ms: f64,
}

/// Runs the bench.
pub(super) fn run(args: &BlockedArgs) -> Result<()> {
    let columns = [
        "scheduler",
        "change",
        "changes",
        "offered",
        "dropped",
        "lost",
        "blocked_ms",
    ];
    let mut raw = Raw::new(&facts(false), &columns);
    let mut rows = Vec::new();
    let names: Vec<&'static str> = Scheduler::NAMES
        .iter()
        .copied()
        .filter(|name| args.scheduler.is_empty() || args.scheduler.iter().any(|wanted| wanted == name))
        .collect();
    if names.is_empty() {
        bail!(output::WrongUsage(format!(
            "unknown scheduler; write one of {}",
            Scheduler::NAMES.join(", ")
        )));
    }
    for name in names {
        for row in measure(name, args.changes)? {
            raw.row(&[
                row.scheduler.to_owned(),
                row.change.to_owned(),
                row.changes.to_string(),
                row.offered.to_string(),
                row.dropped.to_string(),
                row.lost.to_string(),
                format!("{:.6}", row.blocked_ms),
            ]);
            rows.push(row);
        }
    }
    raw.write(&args.csv)?;
    if args.json {
        return output::json(&rows, output::is_terminal());
    }
    let mut table = Table::new(&[
        "scheduler",
        "change",
        ">changes",
        ">offered",
        ">dropped",
        ">lost",
        ">blocked",
    ]);
    for row in &rows {
        table.row([
            row.scheduler.to_owned(),
            row.change.to_owned(),
            row.changes.to_string(),
            grouped(row.offered),
            grouped(row.dropped),
            grouped(row.lost),
            format!("{:.3} ms", row.blocked_ms),
        ]);
    }
    output::text(&table.text())
}

/// The plan with that instance in the given state; [`None`] for without it.
fn with_changed_instance(scheduler: &str, state: Option<InstanceState>) -> Result<Plan> {
    let mut plan = plan(INSTANCES + 1, vec![UplinkId(0), UplinkId(1)])?;
    for service in &mut plan.services {
        service.scheduler = Scheduler::from_name(scheduler)?;
    }
    let fifth = plan
        .slots
        .get_mut(CHANGED_SLOT.index())
        .context("a plan has its slots")?;
    match (state, fifth.as_mut()) {
        (Some(state), Some(slot)) => slot.state = state,
        _ => *fifth = None,
    }
    Ok(plan)
}

fn measure(scheduler: &'static str, changes: u32) -> Result<Vec<Row>> {
    let pace = [Arc::new(SourceRate::default()), Arc::new(SourceRate::default())];
    let sources = vec![
        Source::of_known_flows(FLOWS, &pace[0])?,
        Source::of_new_flows(&pace[1])?,
    ];
    let table = TableConfig {
        ipv4_flows: TABLE_FLOWS,
        ipv6_flows: 0,
        return_counters: false,
        pin_times: true,
    };
    let mut switch = Synthetic::start(
        with_changed_instance(scheduler, Some(InstanceState::Active))?,
        table,
        sources,
    )?;
    switch
        .switch
        .request(SwitchRequest::Change(Change::SetScheduler {
            service: ServiceId(0),
            scheduler: Scheduler::from_name(scheduler)?,
        }))?;
    let missed = || pace.iter().map(|pace| pace.missed()).sum::<u64>();
    let loads: Vec<(Slot, f32)> = (0..=INSTANCES).map(|slot| (Slot(slot), 0.0)).collect();
    switch.switch.set_loads(&loads, &[(ServiceId(0), 1.0)]);
    let mut rows = ["activate", "drain", "remove"].map(|change| Row {
        scheduler,
        change,
        changes,
        offered: 0,
        dropped: 0,
        lost: 0,
        blocked_ms: 0.0,
    });
    let mut seconds = [0.0; 3];
    remove(&mut switch, scheduler)?;
    pace[0].set(KNOWN_PER_S);
    pace[1].set(NEW_PER_S);
    switch.run_for(MEASURED_AFTER_CHANGE)?;
    for _ in 0..changes {
        switch.publish(with_changed_instance(scheduler, Some(InstanceState::Standby))?)?;
        switch.attach(CHANGED_SLOT)?;
        for (place, row) in rows.iter_mut().enumerate() {
            let (before, missed_before) = (switch.read()?, missed());
            match row.change {
                "activate" => {
                    switch.publish(with_changed_instance(scheduler, Some(InstanceState::Active))?)?
                }
                "drain" => {
                    switch.publish(with_changed_instance(scheduler, Some(InstanceState::Draining))?)?
                }
                _ => remove(&mut switch, scheduler)?,
            }
            let (_, after) = switch.run_for(MEASURED_AFTER_CHANGE)?;
            let missed = missed() - missed_before;
            row.offered += received(&after) - received(&before) + missed;
            row.dropped += after.dropped - before.dropped;
            row.lost += after.dropped - before.dropped + missed;
            if let Some(seconds) = seconds.get_mut(place) {
                *seconds += after.seconds - before.seconds;
            }
        }
    }
    for (row, seconds) in rows.iter_mut().zip(seconds) {
        row.blocked_ms = row.lost as f64 / (row.offered as f64 / (seconds * 1e3)).max(1e-9);
    }
    Ok(rows.to_vec())
}

/// Removes the instance together with its flows.
fn remove(switch: &mut Synthetic, scheduler: &str) -> Result<()> {
    switch.publish(with_changed_instance(scheduler, None)?)?;
    switch.switch.request(SwitchRequest::Detach(CHANGED_SLOT))?;
    switch
        .wait_until("an instance is removed", |event| {
            matches!(event, SwitchEvent::Detached { .. })
        })
        .map(drop)
}

fn received(at: &Moment) -> u64 {
    at.counters
        .uplinks
        .iter()
        .map(|uplink| uplink.received_packets)
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_packet_is_dropped_when_an_instance_comes_or_goes() {
        if super::super::steer::cpus().is_err() {
            return;
        }
        let rows = measure("best-fit", 2).unwrap();
        assert_eq!(rows.len(), 3);
        for row in rows {
            // Timeliness is not asserted: a test's machine may be busy.
            assert!(row.offered > 10_000 && row.dropped == 0, "{row:?}");
        }
    }
}
