//! Established flows while new ones arrive on another uplink at the maximum rate.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use flow_table::TableConfig;
use model::{FlowKey, ServiceId, Slot, UplinkId};
use serde::Serialize;
use switch::{FlowFilter, Switch as _, SwitchEvent, SwitchRequest};

use super::contestant::median;
use super::facts::facts;
use super::raw::Raw;
use super::steering::plan;
use super::synthetic::{Moment, Source, SourceRate, Synthetic};
use crate::args::FloodArgs;
use display::output;
use display::table::{Table, short};

/// Instances of each of the two services: `null` ports.
const INSTANCES: u16 = 4;
const ESTABLISHED: ServiceId = ServiceId(0);
/// Measured CPU time of the worker in each part of each round.
const WINDOW: Duration = Duration::from_millis(300);
/// CPU time before the measurement, to warm caches and branch predictors.
const WARM_UP: Duration = Duration::from_millis(60);
/// Divisor of the maximum rate for the established flows.
const SHARE: u64 = 4;

/// The result.
#[derive(Clone, Debug, Serialize)]
struct Row {
    established_flows: u32,
    steer_mpps: f64,
    offered_mpps: f64,
    without_flood_mpps: f64,
    with_flood_mpps: f64,
    ratio: f64,
    flood_mpps: f64,
    flood_flows_per_s: f64,
    pins_lost: u64,
}

/// Rates of one part of a round, per second of CPU time.
struct Rates {
    established: f64,
    flood: f64,
    set_ups: f64,
}

/// Runs the bench.
pub(super) fn run(args: &FloodArgs) -> Result<()> {
    let columns = [
        "round",
        "part",
        "established_per_s",
        "flood_per_s",
        "set_ups_per_s",
        "missed",
    ];
    let mut raw = Raw::new(&facts(false), &columns);
    let row = measure(args, &mut raw)?;
    raw.write(&args.csv)?;
    if args.json {
        return output::json(&row, output::is_terminal());
    }
    let mut table = Table::new(&[
        ">established",
        ">offered",
        ">alone",
        ">in the flood",
        ">ratio",
        ">new flows/s",
        ">pins lost",
    ]);
    table.row([
        row.established_flows.to_string(),
        format!("{:.2}", row.offered_mpps),
        format!("{:.2}", row.without_flood_mpps),
        format!("{:.2}", row.with_flood_mpps),
        format!("{:.3}", row.ratio),
        short(row.flood_flows_per_s),
        row.pins_lost.to_string(),
    ]);
    output::text(&table.text())?;
    output::line(format!(
        "Mpps of one core. All measurements: {}",
        args.csv.display()
    ))
}

fn measure(args: &FloodArgs, raw: &mut Raw) -> Result<Row> {
    let (pace, flood) = (Arc::new(SourceRate::default()), Arc::new(SourceRate::default()));
    let sources = vec![
        Source::of_known_flows(args.flows, &pace)?,
        Source::of_new_flows(&flood)?,
    ];
    let table = TableConfig {
        ipv4_flows: args.table,
        ipv6_flows: 0,
        return_counters: false,
        pin_times: true,
    };
    let mut switch = Synthetic::start(two_services()?, table, sources)?;
    pace.set(SourceRate::UNLIMITED);
    switch.run_for(WARM_UP)?;
    let (before, after) = switch.run_for(WINDOW)?;
    let steer = rates(&before, &after).established;
    let offered = steer as u64 / SHARE;
    let pins = pins(&mut switch, args.flows)?;
    pace.set(offered);
    let (mut alone, mut flooded) = (Vec::new(), Vec::new());
    for round in 1..=args.rounds {
        for (part, rate, all) in [
            ("alone", 0, &mut alone),
            ("flood", SourceRate::UNLIMITED, &mut flooded),
        ] {
            flood.set(rate);
            switch.run_for(WARM_UP)?;
            let missed = pace.missed();
            let (before, after) = switch.run_for(WINDOW)?;
            let rates = rates(&before, &after);
            raw.row(&[
                round.to_string(),
                part.to_owned(),
                format!("{:.0}", rates.established),
                format!("{:.0}", rates.flood),
                format!("{:.0}", rates.set_ups),
                (pace.missed() - missed).to_string(),
            ]);
            all.push(rates);
        }
    }
    flood.set(0);
    let pins_after = self::pins(&mut switch, args.flows)?;
    let lost = pins
        .iter()
        .filter(|(key, slot)| pins_after.get(key) != Some(slot));
    let mpps = |all: &[Rates], of: fn(&Rates) -> f64| median(all.iter().map(of)) / 1e6;
    let pairs = alone.iter().zip(&flooded);
    Ok(Row {
        established_flows: args.flows,
        steer_mpps: steer / 1e6,
        offered_mpps: offered as f64 / 1e6,
        without_flood_mpps: mpps(&alone, |r| r.established),
        with_flood_mpps: mpps(&flooded, |r| r.established),
        ratio: median(pairs.map(|(alone, flooded)| flooded.established / alone.established)),
        flood_mpps: mpps(&flooded, |r| r.flood),
        flood_flows_per_s: mpps(&flooded, |r| r.set_ups) * 1e6,
        pins_lost: lost.count() as u64 + u64::from(args.flows).saturating_sub(pins.len() as u64),
    })
}

/// One service per uplink, each with its own instances.
fn two_services() -> Result<switch::Plan> {
    let mut all = plan(2 * INSTANCES, vec![UplinkId(0)])?;
    let mut second = all.services.first().cloned().context("a plan has a service")?;
    second.id = ServiceId(1);
    second.uplinks = vec![UplinkId(1)];
    all.services.push(second);
    for slot in all.slots.iter_mut().skip(usize::from(INSTANCES)).flatten() {
        slot.service = ServiceId(1);
    }
    Ok(all)
}

fn rates(before: &Moment, after: &Moment) -> Rates {
    let seconds = (after.seconds - before.seconds).max(1e-9);
    let received =
        |at: &Moment, uplink: usize| at.counters.uplinks.get(uplink).map_or(0, |u| u.received_packets);
    let set_up = |at: &Moment| at.counters.slots.iter().map(|slot| slot.new_flows).sum::<u64>();
    Rates {
        established: (received(after, 0) - received(before, 0)) as f64 / seconds,
        flood: (received(after, 1) - received(before, 1)) as f64 / seconds,
        set_ups: (set_up(after) - set_up(before)) as f64 / seconds,
    }
}

/// The pins of the established flows.
fn pins(switch: &mut Synthetic, flows: u32) -> Result<HashMap<FlowKey, [Slot; 2]>> {
    let filter = FlowFilter {
        service: Some(ESTABLISHED),
        ..FlowFilter::default()
    };
    switch.switch.request(SwitchRequest::Flows {
        id: 0,
        filter,
        limit: flows as usize,
    })?;
    let told = switch.wait_until("the flows are listed", |event| {
        matches!(event, SwitchEvent::Flows { .. })
    })?;
    let SwitchEvent::Flows { rows, .. } = told else {
        anyhow::bail!("the flows are not listed");
    };
    Ok(rows.into_iter().map(|row| (row.key, row.pins)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_that_fills_the_table_moves_no_established_flow() {
        if super::super::steer::cpus().is_err() {
            return;
        }
        let args = FloodArgs {
            flows: 1000,
            table: 200_000,
            rounds: 1,
            csv: std::path::PathBuf::new(),
            json: true,
        };
        let row = measure(&args, &mut Raw::new(&[], &[])).unwrap();
        assert_eq!(row.pins_lost, 0, "{row:?}");
        assert!(row.with_flood_mpps > 0.0 && row.flood_mpps > 0.0, "{row:?}");
    }
}
