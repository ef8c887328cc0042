//! Flow setup rate: every packet is the first of its flow.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use flow_table::{Line, TableConfig};
use model::UplinkId;
use serde::Serialize;

use super::contestant::median;
use super::facts::facts;
use super::raw::Raw;
use super::steering::plan;
use super::synthetic::{STEP, Source, SourceRate, Synthetic};
use crate::args::SetupArgs;
use display::output;
use display::table::{Table, grouped, short};

/// Table occupancies at which the rate is measured, in percent.
const FILLS: [u32; 4] = [10, 50, 90, 95];
/// Half the width of the measured range around each occupancy, in percent.
const HALF_WINDOW: f64 = 2.5;
/// Maximum time to fill the table once.
const TIMEOUT: Duration = Duration::from_secs(120);
/// Minimum duration of a measurement, in seconds: several readings of the counters.
const MIN_MEASUREMENT_S: f64 = 2e-3;
/// Instances: `null` ports.
const INSTANCES: u16 = 4;

/// One row of the result.
#[derive(Clone, Debug, Serialize)]
struct Row {
    fill_percent: u32,
    flows_per_s: f64,
    bytes_per_flow: f64,
}

/// Runs the bench.
pub(super) fn run(args: &SetupArgs) -> Result<()> {
    let config = TableConfig {
        ipv4_flows: args.flows,
        ipv6_flows: 0,
        return_counters: false,
        pin_times: false,
    };
    let bytes = config.lines_needed()? * Line::BYTES;
    let mut raw = Raw::new(
        &facts(false),
        &["round", "fill_percent", "flows", "cpu_seconds", "flows_per_s"],
    );
    let mut rounds: Vec<Vec<f64>> = vec![Vec::new(); FILLS.len()];
    for round in 1..=args.rounds {
        for ((fill, rates), (flows, seconds)) in FILLS.iter().zip(&mut rounds).zip(fill_up(&config)?) {
            let rate = flows / seconds;
            raw.row(&[
                round.to_string(),
                fill.to_string(),
                flows.to_string(),
                format!("{seconds:.6}"),
                format!("{rate:.0}"),
            ]);
            rates.push(rate);
        }
    }
    raw.write(&args.csv)?;
    let rows: Vec<Row> = FILLS
        .iter()
        .zip(rounds)
        .map(|(&fill_percent, rates)| Row {
            fill_percent,
            flows_per_s: median(rates),
            bytes_per_flow: bytes as f64 / (args.flows as f64 * f64::from(fill_percent) / 100.0),
        })
        .collect();
    if args.json {
        return output::json(&rows, output::is_terminal());
    }
    let mut table = Table::new(&[">fill", ">set-ups/s", ">B/flow"]);
    for row in &rows {
        table.row([
            format!("{}%", row.fill_percent),
            short(row.flows_per_s),
            format!("{:.1}", row.bytes_per_flow),
        ]);
    }
    output::text(&table.text())?;
    output::line(format!(
        "One core, a table for {} IPv4 flows, {} MiB. All measurements: {}",
        grouped(args.flows as u64),
        bytes >> 20,
        args.csv.display()
    ))
}

/// Fills an empty table; returns the number of flows set up around each occupancy, and the worker's CPU time in
/// seconds.
fn fill_up(config: &TableConfig) -> Result<Vec<(f64, f64)>> {
    let pace = Arc::new(SourceRate::default());
    let source = Source::of_new_flows(&pace)?;
    let mut switch = Synthetic::start(plan(INSTANCES, vec![UplinkId(0)])?, *config, vec![source])?;
    let started = Instant::now();
    pace.set(SourceRate::UNLIMITED);
    let mut samples = Vec::new();
    loop {
        let now = switch.read()?;
        let flows: u64 = now.counters.slots.iter().map(|slot| slot.new_flows).sum();
        samples.push((flows as f64, now.seconds));
        if flows as f64 >= config.ipv4_flows as f64 * 0.985 {
            break;
        }
        if started.elapsed() > TIMEOUT {
            bail!("only {flows} flows were set up within {} s", TIMEOUT.as_secs());
        }
        std::thread::sleep(STEP);
    }
    FILLS
        .iter()
        .map(|&fill| {
            let at = |percent: f64| {
                let wanted = config.ipv4_flows as f64 * percent / 100.0;
                samples.iter().find(|sample| sample.0 >= wanted).copied()
            };
            let (from, to) = (
                at(f64::from(fill) - HALF_WINDOW),
                at(f64::from(fill) + HALF_WINDOW),
            );
            let ((flows, time), (flows_after, time_after)) = from
                .zip(to)
                .context("the table filled too fast to measure: use a larger --flows")?;
            if time_after - time < MIN_MEASUREMENT_S {
                bail!("the table filled too fast to measure: use a larger --flows");
            }
            Ok((flows_after - flows, time_after - time))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::steer::cpus;
    use super::*;

    const TRIES: usize = 20;

    #[test]
    fn a_small_table_is_filled() {
        if cpus().is_err() {
            return;
        }
        let config = TableConfig {
            // So many that this thread looks at each part also where it waits for a CPU.
            ipv4_flows: 16_000_000,
            ipv6_flows: 0,
            return_counters: false,
            pin_times: false,
        };
        // Where this thread gets no CPU at the right moment, nothing is measured.
        let is_unmeasured = |filled: &Result<_>| {
            filled
                .as_ref()
                .is_err_and(|of| of.to_string().contains("too fast"))
        };
        let mut filled = fill_up(&config);
        for _ in 1..TRIES {
            if is_unmeasured(&filled) {
                filled = fill_up(&config);
            }
        }
        let filled = filled.unwrap();
        assert_eq!(filled.len(), FILLS.len());
        assert!(filled.iter().all(|(flows, _)| *flows > 10_000.0), "{filled:?}");
    }
}
