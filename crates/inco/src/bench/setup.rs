//! Setting flows up: every packet is the first of its flow.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use eswitch::{
    Arrived, AttachSpec, Device, Frame, FrameMemory, OpenDevice, Polling, SoftSwitch, SoftSwitchConfig,
    Switch, SwitchEvent, SwitchReading, Unsendable, UplinkConfig, UplinkDevice,
};
use flow_table::{Line, TableConfig, TimeoutPolicy};
use model::{Slot, UplinkId};
use serde::Serialize;

use super::contestant::{median, on_cpu_ns};
use super::facts::facts;
use super::raw::Raw;
use super::steer::cpus;
use super::steering::{now, plan};
use super::traffic::{Ip, frame};
use crate::cli::SetupArgs;
use crate::output;
use crate::table::{Table, grouped, short};

/// Shares of the table in use at which it is measured, in percent.
const FILLS: [u32; 4] = [10, 50, 90, 95];
/// The same as what is measured on either side of it.
const HALF_WINDOW: f64 = 2.5;
/// How often the counters are read.
const STEP: Duration = Duration::from_micros(500);
/// How long one filling may take.
const PATIENCE: Duration = Duration::from_secs(120);
/// Instances: sinks of inco's own.
const INSTANCES: u16 = 4;
/// Bytes of a frame.
const SIZE: usize = 64;

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
        "One core, a table for {} IPv4 flows, {} MiB. Every measurement: {}",
        grouped(args.flows as u64),
        bytes >> 20,
        args.csv.display()
    ))
}

/// Fills a table from nothing: flows set up around each share, and the time of the worker's thread that it took.
fn fill_up(config: &TableConfig) -> Result<Vec<(f64, f64)>> {
    let (_, cpu) = cpus()?;
    let mut switch = SoftSwitch::start(
        &SoftSwitchConfig {
            workers: vec![Some(cpu)],
            polling: Polling::Busy,
            table: *config,
            timeouts: TimeoutPolicy::default(),
            uplinks: vec![UplinkConfig {
                name: "source".to_owned(),
                device: UplinkDevice::Device,
                max_frame: usize::MAX,
            }],
            hash_key: crate::orchestrator::secret()?,
        },
        vec![Frames],
        Vec::new(),
    )?;
    for instance in 0..INSTANCES {
        switch.attach(Slot(instance), AttachSpec::Null)?;
    }
    let generation = switch.publish(plan(INSTANCES, vec![UplinkId(0)])?);
    let mut reading = SwitchReading::new(1, 1, 1);
    let (mut attached, mut events) = (0, Vec::new());
    let started = Instant::now();
    while attached < INSTANCES || reading.acknowledged < generation {
        switch.poll(now(), &mut events);
        attached += events
            .drain(..)
            .filter(|e| matches!(e, SwitchEvent::Attached { .. }))
            .count() as u16;
        switch.read(&mut reading);
        if started.elapsed() > PATIENCE {
            bail!(
                "{attached} of {INSTANCES} instances are attached after {} s",
                PATIENCE.as_secs()
            );
        }
        std::thread::sleep(STEP);
    }
    let source = OpenDevice {
        queues: vec![NewFlows::new(Ip::V4)?],
        watch: None,
    };
    switch.attach_uplink_device(UplinkId(0), source)?;
    let mut samples = Vec::new();
    loop {
        switch.read(&mut reading);
        let flows: u64 = reading.counters.slots.iter().map(|slot| slot.new_flows).sum();
        samples.push((flows as f64, on_cpu_ns("inco-worker-0")? as f64 / 1e9));
        if flows as f64 >= config.ipv4_flows as f64 * 0.985 {
            break;
        }
        if started.elapsed() > PATIENCE {
            bail!("only {flows} flows are set up after {} s", PATIENCE.as_secs());
        }
        std::thread::sleep(STEP);
    }
    switch.stop();
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
            let ((flows, time), (flows_after, time_after)) =
                from.zip(to).context("the table was filled too fast")?;
            Ok((flows_after - flows, (time_after - time).max(1e-6)))
        })
        .collect()
}

/// Frames of 64 bytes that are nobody's: made where they are received, gone where they are sent.
struct Frames;

/// One of them.
struct ShortFrame {
    bytes: [u8; SIZE],
    len: usize,
}

impl Frame for ShortFrame {
    fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[..self.len]
    }
    fn room(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
    fn set_len(&mut self, len: usize) {
        self.len = len.min(SIZE);
    }
}

impl FrameMemory for Frames {
    type Frame = ShortFrame;
    type Device = NewFlows;
    type Registration = ();
    fn register_thread() {}
    fn take(&mut self) -> Option<ShortFrame> {
        Some(ShortFrame {
            bytes: [0; SIZE],
            len: 0,
        })
    }
    fn give(&mut self, _frame: ShortFrame) {}
    fn frame_limit(&self) -> usize {
        SIZE
    }
}

/// A source in which every packet is of another flow.
struct NewFlows {
    template: [u8; SIZE],
    /// The one's complement sum of the header without source and checksum.
    sum: u32,
    next: u32,
}

impl NewFlows {
    const CHECKSUM: usize = 24;
    const SOURCE: usize = 26;

    fn new(ip: Ip) -> Result<NewFlows> {
        let mut template = [0; SIZE];
        template.copy_from_slice(frame(ip, 0, SIZE)?.get(..SIZE).context("a frame of 64 bytes")?);
        template[NewFlows::CHECKSUM..NewFlows::SOURCE + 4].fill(0);
        let header = template[14..34].as_chunks::<2>().0;
        let sum = header
            .iter()
            .map(|&word| u32::from(u16::from_be_bytes(word)))
            .sum();
        Ok(NewFlows {
            template,
            sum,
            next: 0,
        })
    }
}

impl Device<ShortFrame> for NewFlows {
    fn receive(&mut self, into: &mut Vec<ShortFrame>, limit: usize) -> Arrived {
        for _ in 0..limit {
            let mut bytes = self.template;
            // Each number once, in no order.
            let source = self.next.wrapping_mul(0x9e37_79b1);
            self.next = self.next.wrapping_add(1);
            bytes[NewFlows::SOURCE..NewFlows::SOURCE + 4].copy_from_slice(&source.to_be_bytes());
            let sum = self.sum + (source >> 16) + (source & 0xffff);
            let sum = (sum & 0xffff) + (sum >> 16);
            let checksum = !((sum & 0xffff) + (sum >> 16)) as u16;
            bytes[NewFlows::CHECKSUM..NewFlows::SOURCE].copy_from_slice(&checksum.to_be_bytes());
            into.push(ShortFrame { bytes, len: SIZE });
        }
        Arrived {
            bytes: (limit * SIZE) as u64,
            longest: SIZE,
        }
    }

    fn send(&mut self, frames: &mut Vec<ShortFrame>, _longest: usize) -> Unsendable {
        frames.clear();
        Unsendable::default()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_packet_is_right_and_of_another_flow() {
        let mut source = NewFlows::new(Ip::V4).unwrap();
        let mut frames = Vec::new();
        source.receive(&mut frames, 10_000);
        let keys: HashSet<_> = frames
            .iter()
            .map(|frame| packet::plain(frame.bytes()).unwrap().key)
            .collect();
        assert_eq!(keys.len(), 10_000);
    }

    #[test]
    fn a_small_table_is_filled() {
        if cpus().is_err() {
            return;
        }
        let config = TableConfig {
            ipv4_flows: 1_000_000,
            ipv6_flows: 0,
            return_counters: false,
        };
        let filled = fill_up(&config).unwrap();
        assert_eq!(filled.len(), FILLS.len());
        assert!(filled.iter().all(|(flows, _)| *flows > 10_000.0), "{filled:?}");
    }
}
