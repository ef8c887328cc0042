//! SmartLB's second experiment: a balancer in the switch, against the same balancer in a process of its own behind the
//! switch. Both pick with the scheduler `weighted`, for the same functions.
//!
//! ```text
//! switch    generator - switch with the balancer ------------ functions
//! process   generator - switch - process with the balancer -- functions
//! ```
//! Everything is connected by memif, and each hop is the same code: the switch before the extra process gives all
//! packets to one instance, which is that process. So the difference is the hop.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use memif::ClientConfig;
use serde::Serialize;
use testbed::CpuTime;
use traffic::{MemifPort, Report};

use super::chain::{Load, RATE, SPARE_FLOWS, Sum, TIMEOUT, TURN, WARM_UP, generate, is_over, start_function};
use super::contestant::{Clock, Contestant as _, KilledOnDrop, median, process_ns, resume, suspend};
use super::facts::facts;
use super::ovs::wait_until;
use super::raw::Raw;
use super::steer::{Folder, cpus};
use super::steering::{MEMIF_LOG2_SLOTS, Spec, Steering, Way};
use crate::args::HopArgs;
use display::output;
use display::table::Table;

/// Functions behind the balancer.
const FUNCTIONS: u16 = 2;
/// Packets in flight.
const WINDOW: u32 = 2_048;
/// Turns of each path in a round.
const TURNS: usize = 7;
/// The packet sizes, in bytes on the wire: as fast as possible, and at a declared rate.
const SMALL: u16 = 64;
const LARGE: u16 = 1_500;
/// The declared rate, as a share of what the slower path carries.
const DECLARED: f64 = 0.8;
/// CPUs that other programs may use without being a reason for loss: what this machine does by itself.
const OTHERS: f64 = 0.1;
/// Slots of a ring at the declared rate, as a power of two. Three threads share a CPU and do not sleep; the kernel takes a
/// CPU from such a thread at a tick, each 4 ms. A ring of 4,096 packets is full by then; this one lasts four times as
/// long.
const AT_RATE_LOG2_SLOTS: u8 = 14;
/// Duration of the run at the declared rate.
const AT_RATE: Duration = Duration::from_secs(2);

/// One row of the result.
#[derive(Clone, Debug, Serialize)]
struct Row {
    balancer: &'static str,
    size: u16,
    /// The declared rate in packets per second; absent: as many as it carries.
    #[serde(skip_serializing_if = "Option::is_none")]
    declared_pps: Option<f64>,
    /// Millions of round trips per second of CPU time of all switching threads.
    mpps: f64,
    /// CPU time of all switching threads per round trip, in nanoseconds.
    cpu_ns_per_packet: f64,
    /// Packets per second that came back.
    returned_pps: f64,
    lost: u64,
    /// At a declared rate.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    beside: Option<Beside>,
}

/// What else than the path may lose packets at a declared rate.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct Beside {
    /// CPUs that other programs, and the host of a virtual machine, used meanwhile.
    other_cpus: f64,
    /// How late the generator was at most, in milliseconds. Packets then come close together.
    generator_late_ms: f64,
    /// Why packets were lost; none if all came back.
    #[serde(skip_serializing_if = "Option::is_none")]
    limit: Option<Limit>,
}

/// What lost packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Limit {
    /// Other programs took the CPUs.
    Machine,
    /// It sent more at once than a ring holds.
    Generator,
    /// Neither: the path itself does not carry the rate.
    Path,
}

impl Beside {
    fn of(lost: u64, declared_pps: f64, other_cpus: f64, generator_late_ms: f64) -> Beside {
        let limit = if lost == 0 {
            None
        } else if other_cpus > OTHERS {
            Some(Limit::Machine)
        } else if generator_late_ms / 1e3 * declared_pps > f64::from(1u32 << AT_RATE_LOG2_SLOTS) {
            Some(Limit::Generator)
        } else {
            Some(Limit::Path)
        };
        Beside {
            other_cpus,
            generator_late_ms,
            limit,
        }
    }

    /// A sentence about what was lost.
    fn text(&self, path: &str, lost: u64) -> Option<String> {
        let why = match self.limit? {
            Limit::Machine => format!(
                "the machine was the limit: other programs used {:.2} CPUs meanwhile",
                self.other_cpus
            ),
            Limit::Generator => format!(
                "the generator was the limit: it was up to {:.1} ms late, and then sent more than a ring holds",
                self.generator_late_ms
            ),
            Limit::Path => "neither other programs nor the generator were in the way".to_owned(),
        };
        Some(format!(
            "{path}: {lost} packets lost at the declared rate; {why}."
        ))
    }
}

/// CPU time of the machine and of one's own processes, from a moment on.
struct OtherPrograms {
    since: Instant,
    machine: CpuTime,
    own_s: f64,
}

impl OtherPrograms {
    /// From now on; `pids` are this bench's processes.
    fn watch(pids: &[u32]) -> Result<OtherPrograms> {
        Ok(OtherPrograms {
            since: Instant::now(),
            machine: CpuTime::now()?,
            own_s: own_cpu_s(pids)?,
        })
    }

    /// CPUs that others have used since, and the host of a virtual machine.
    fn cpus(&self, pids: &[u32]) -> Result<f64> {
        let machine = CpuTime::now()? - self.machine;
        let own_s = own_cpu_s(pids)? - self.own_s;
        let others_s = (machine.busy_s - own_s).max(0.0) + machine.stolen_s;
        Ok(others_s / self.since.elapsed().as_secs_f64())
    }
}

/// CPU time of this process, with threads that have ended, and of others.
fn own_cpu_s(pids: &[u32]) -> Result<f64> {
    let others: u64 = pids.iter().map(|pid| process_ns(*pid)).sum::<Result<u64>>()?;
    Ok((clock::process_cpu().0 + others) as f64 / 1e9)
}

#[derive(Clone, Debug, Serialize)]
struct Outcome {
    rows: Vec<Row>,
    /// In the switch ÷ in a process, at 64 bytes, per CPU time: the median of the rounds' ratios.
    ratio_small: f64,
    /// The same for packets per second. Generator and functions share the other CPU, which may be the limit.
    ratio_small_returned: f64,
    /// How far the two are apart at the declared rate, as a share.
    apart_at_declared: f64,
}

/// A generator, switches and functions.
struct Hops {
    name: &'static str,
    /// The switch, then the balancer in a process of its own, if there is one.
    switches: Vec<Steering>,
    port: [MemifPort; 1],
    functions: Vec<KilledOnDrop>,
}

/// Runs the bench.
pub(super) fn run(args: &HopArgs) -> Result<()> {
    let outcome = measure(args)?;
    if args.json {
        return output::json(&outcome, output::is_terminal());
    }
    let mut table = Table::new(&[
        "balancer",
        ">size",
        ">declared pps",
        ">Mpps",
        ">CPU ns/packet",
        ">returned pps",
        ">lost",
    ]);
    for row in &outcome.rows {
        table.row([
            row.balancer.to_owned(),
            row.size.to_string(),
            row.declared_pps.map_or("-".to_owned(), |pps| format!("{pps:.0}")),
            format!("{:.2}", row.mpps),
            format!("{:.0}", row.cpu_ns_per_packet),
            format!("{:.0}", row.returned_pps),
            row.lost.to_string(),
        ]);
    }
    output::text(&table.text())?;
    for row in &outcome.rows {
        if let Some(text) = row.beside.and_then(|beside| beside.text(row.balancer, row.lost)) {
            output::line(text)?;
        }
    }
    output::line(format!(
        "Mpps per CPU second of all switching threads. In the switch ÷ in a process at {SMALL} B: {:.2} (packets per \
         second: {:.2}). Apart at the declared rate: {:.1} %. All measurements: {}",
        outcome.ratio_small,
        outcome.ratio_small_returned,
        100.0 * outcome.apart_at_declared,
        args.csv.display()
    ))
}

fn measure(args: &HopArgs) -> Result<Outcome> {
    let folder = Folder::new()?;
    let columns = [
        "balancer",
        "size",
        "declared_pps",
        "round",
        "offered",
        "lost",
        "returned",
        "seconds",
        "cpu_seconds",
    ];
    let mut raw = Raw::new(&facts(false), &columns);
    let mut paths = start_paths(&folder.path.join("closed"), args, MEMIF_LOG2_SLOTS)?;
    let small = Load::new(args.flows, SMALL, RATE);
    let large = Load::new(args.flows, LARGE, RATE);
    let fast = paths_in_turn(&mut paths, small, args, &mut raw)?;
    let most = paths_in_turn(&mut paths, large, args, &mut raw)?;
    let carried = |rounds: &[Sum]| median(rounds.iter().map(|sum| sum.returned_mpps() * 1e6));
    let declared = DECLARED
        * most
            .iter()
            .map(|rounds| carried(rounds))
            .fold(f64::INFINITY, f64::min);
    let mut rows = Vec::new();
    for (path, rounds) in paths.iter().zip(&fast) {
        rows.push(path.row(SMALL, None, rounds));
    }
    for (path, rounds) in paths.iter().zip(&most) {
        rows.push(path.row(LARGE, None, rounds));
    }
    drop(paths);
    let mut paths = start_paths(&folder.path.join("declared"), args, AT_RATE_LOG2_SLOTS)?;
    let at_rate = Load::new(args.flows, LARGE, declared);
    let mut returned = Vec::new();
    for path in &mut paths {
        let pids = path.pids();
        let others = OtherPrograms::watch(&pids)?;
        let (sum, late_ms) = path.send(at_rate, None, AT_RATE)?;
        let beside = Beside::of(sum.lost, declared, others.cpus(&pids)?, late_ms);
        path.note(&mut raw, at_rate, "declared", &sum);
        returned.push(sum.returned_mpps());
        rows.push(Row {
            beside: Some(beside),
            ..path.row(LARGE, Some(declared), &[sum])
        });
    }
    raw.write(&args.csv)?;
    let [in_switch, in_process] = &fast;
    let ratio = |of: fn(&Sum) -> f64| {
        let rounds = in_switch.iter().zip(in_process);
        median(rounds.map(|(ours, theirs)| of(ours) / of(theirs)))
    };
    let highest = returned.iter().copied().fold(0.0, f64::max);
    let lowest = returned.iter().copied().fold(f64::INFINITY, f64::min);
    Ok(Outcome {
        rows,
        ratio_small: ratio(Sum::mpps),
        ratio_small_returned: ratio(Sum::returned_mpps),
        apart_at_declared: 1.0 - lowest / highest.max(1e-9),
    })
}

/// Both paths, suspended, with rings of that size.
fn start_paths(folder: &Path, args: &HopArgs, log2_slots: u8) -> Result<[Hops; 2]> {
    let start = |name: &'static str, is_extra| {
        let mut path = Hops::start(name, &folder.join(name), args, log2_slots, is_extra)?;
        path.wait_until_it_forwards(args)?;
        path.suspend()?;
        anyhow::Ok(path)
    };
    Ok([start("switch", false)?, start("process", true)?])
}

/// Measures both paths in turn, in several rounds.
fn paths_in_turn(paths: &mut [Hops; 2], load: Load, args: &HopArgs, raw: &mut Raw) -> Result<[Vec<Sum>; 2]> {
    let mut rounds = [Vec::new(), Vec::new()];
    for round in 1..=args.rounds {
        let mut sums = [Sum::default(); 2];
        for _ in 0..TURNS {
            for (path, sum) in paths.iter_mut().zip(&mut sums) {
                *sum += path.send(load, Some(WINDOW), TURN)?.0;
            }
        }
        for ((path, sum), rounds) in paths.iter().zip(sums).zip(&mut rounds) {
            if sum.packets == 0 || sum.cpu_seconds == 0.0 {
                bail!(
                    "{}: no packet returned in round {round}; the machine may be too busy",
                    path.name
                );
            }
            path.note(raw, load, &round.to_string(), &sum);
            rounds.push(sum);
        }
        raw.write(&args.csv)?;
    }
    Ok(rounds)
}

impl Hops {
    fn start(
        name: &'static str,
        folder: &Path,
        args: &HopArgs,
        log2_slots: u8,
        is_extra: bool,
    ) -> Result<Hops> {
        let mut functions = Vec::new();
        let mut sockets = Vec::new();
        for number in 0..FUNCTIONS {
            let (function, socket) = start_function(&folder.join(number.to_string()))?;
            functions.push(function);
            sockets.push(socket);
        }
        let balancer = folder.join("balancer.sock");
        let mut switches = vec![switch(&balancer, sockets, args, log2_slots)?];
        let mut uplink = balancer;
        if is_extra {
            let before = folder.join("switch.sock");
            switches.insert(0, switch(&before, vec![uplink], args, log2_slots)?);
            uplink = before;
        }
        Ok(Hops {
            name,
            switches,
            port: [connect(&uplink, log2_slots)?],
            functions,
        })
    }

    fn wait_until_it_forwards(&mut self, args: &HopArgs) -> Result<()> {
        let load = Load::new(args.flows, SMALL, RATE);
        wait_until("the path through the functions", || {
            let time = Duration::from_millis(20);
            let sent = generate(&mut self.port, load.profile(time, time), Some(32), |_| {});
            sent.is_ok_and(|report| report.counts.returned_packets > 0)
        })
        .with_context(|| format!("balancer in {}", self.name))
    }

    fn suspend(&self) -> Result<()> {
        self.switches.iter().try_for_each(|switch| suspend(switch))
    }

    /// Its processes.
    fn pids(&self) -> Vec<u32> {
        let switches = self.switches.iter().map(|switch| switch.pid());
        switches
            .chain(self.functions.iter().map(KilledOnDrop::pid))
            .collect()
    }

    /// One turn: with so many packets in flight, or without such a limit. Gives also how late the generator was at most,
    /// in milliseconds.
    fn send(&mut self, load: Load, window: Option<u32>, turn: Duration) -> Result<(Sum, f64)> {
        self.switches.iter().try_for_each(|switch| resume(switch))?;
        let pids: Vec<u32> = self.switches.iter().map(|switch| switch.pid()).collect();
        let clocks = || pids.iter().map(|pid| Clock::of(*pid)).collect::<Result<Vec<_>>>();
        let (mut started, mut ended) = (None, None);
        let profile = load.profile(WARM_UP, 2 * WARM_UP + turn);
        let report = generate(&mut self.port, profile, window, |interval| {
            let look = (interval.at_s, interval.counts.returned_packets);
            match &started {
                None => started = Some((look, clocks())),
                Some((_, Ok(clocks))) if ended.is_none() && is_over(interval, turn) => {
                    let spent: Result<u64> = clocks.iter().map(Clock::elapsed_ns).sum();
                    ended = Some((look, spent));
                }
                Some(_) => {}
            }
        })?;
        self.suspend()?;
        self.check(&report)?;
        let mut sum = Sum {
            offered: report.counts.offered_packets,
            lost: report.lost,
            ..Sum::default()
        };
        // Without both readings the generator had no CPU in that time; the turn is discarded.
        if let (Some(((from, before), clocks)), Some(((to, after), spent))) = (started, ended) {
            clocks?;
            sum.packets = after - before;
            sum.seconds = to - from;
            sum.cpu_seconds = spent? as f64 / 1e9;
        }
        Ok((sum, report.generator.max_lateness_us / 1e3))
    }

    fn check(&self, report: &Report) -> Result<()> {
        let counts = &report.counts;
        if counts.reordered + counts.duplicated + counts.altered + counts.foreign > 0 {
            bail!("balancer in {}: packets were disturbed: {counts:?}", self.name);
        }
        Ok(())
    }

    fn note(&self, raw: &mut Raw, load: Load, round: &str, sum: &Sum) {
        raw.row(&[
            self.name.to_owned(),
            load.size.to_string(),
            if load.rate == RATE {
                String::new()
            } else {
                format!("{:.0}", load.rate)
            },
            round.to_owned(),
            sum.offered.to_string(),
            sum.lost.to_string(),
            sum.packets.to_string(),
            format!("{:.6}", sum.seconds),
            format!("{:.6}", sum.cpu_seconds),
        ]);
    }

    fn row(&self, size: u16, declared_pps: Option<f64>, rounds: &[Sum]) -> Row {
        let mpps = median(rounds.iter().map(Sum::mpps));
        Row {
            balancer: self.name,
            size,
            declared_pps,
            mpps,
            cpu_ns_per_packet: 1e3 / mpps.max(1e-9),
            returned_pps: median(rounds.iter().map(|sum| sum.returned_mpps() * 1e6)),
            lost: rounds.iter().map(|sum| sum.lost).sum(),
            beside: None,
        }
    }
}

/// The generator's port, with rings of that size.
fn connect(uplink: &Path, log2_slots: u8) -> Result<MemifPort> {
    let mut config = ClientConfig::new(uplink, 0);
    config.ring.log2_slots = log2_slots;
    config.name = "inco bench hop".into();
    Ok(MemifPort::connect_with(config, TIMEOUT)?)
}

/// A switch between an uplink and instances on those sockets.
fn switch(uplink: &Path, sockets: Vec<PathBuf>, args: &HopArgs, log2_slots: u8) -> Result<Steering> {
    let (control, cpu) = cpus()?;
    let instances = sockets.len() as u16;
    Steering::start(&Spec {
        way: Way::Chain(uplink.to_owned()),
        scheduler: "weighted".to_owned(),
        instances,
        active: instances,
        sockets,
        log2_slots,
        cpus: vec![cpu],
        control_cpu: control,
        table_flows: args.flows as usize + SPARE_FLOWS,
        return_counters: false,
        is_dealt: false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loss_is_the_paths_only_if_nothing_else_was_in_the_way() {
        let limit = |lost, other_cpus, late_ms| Beside::of(lost, 1e6, other_cpus, late_ms).limit;
        assert_eq!(limit(0, 1.5, 90.0), None);
        assert_eq!(limit(1, 0.4, 0.0), Some(Limit::Machine));
        // A ring of 16,384 packets is 16.4 ms at that rate.
        assert_eq!(limit(1, 0.05, 16.5), Some(Limit::Generator));
        assert_eq!(limit(1, 0.05, 16.2), Some(Limit::Path));
        let text = Beside::of(7, 1e6, 0.43, 0.0).text("process", 7).unwrap();
        assert!(text.contains("7 packets") && text.contains("0.43 CPUs"), "{text}");
    }
}
