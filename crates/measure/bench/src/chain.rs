//! A complete chain over memif: generator, switch, a function in a process of its own, switch, generator. Compared
//! with OVS-DPDK on the same kind of ports.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::AddAssign;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use serde::Serialize;
use traffic::{Control, Generator, Interval, MemifPort, Phase, Profile, Rate, Report, Size, Span, Verify};

use super::contestant::{Clock, Contestant, KilledOnDrop, command_line, median, pin_to_cpu, resume, suspend};
use super::facts::facts;
use super::memory::Memory;
use super::ovs::{self, Ovs, wait_until};
use super::raw::Raw;
use super::steer::{Folder, cpus};
use super::steering::{MEMIF_LOG2_SLOTS, SCHEDULER, Spec, Steering, Way};
use crate::args::ChainArgs;
use display::output;
use display::table::Table;
use images::find_inco_nf;

/// Measured time of a contestant's turn. Turns are short and many, so that changes of CPU speed or placement affect
/// all contestants alike.
pub(super) const TURN: Duration = Duration::from_millis(100);
/// Time under load before the measurement in each turn, to warm caches and branch predictors.
pub(super) const WARM_UP: Duration = Duration::from_millis(50);
/// Turns of each contestant in a round.
const TURNS: usize = 7;
/// Turns of each contestant per window size while the best one is searched.
const TRIAL_TURNS: usize = 2;
/// Window sizes that are tried: packets in flight, fewer than a ring's slots. The one with the highest rate per CPU
/// time is used.
const WINDOWS: [u32; 3] = [1_024, 2_048, 3_072];
/// A rate beyond any generator's capacity, in packets per second: the window limits the load.
pub(super) const RATE: f64 = 1e9;
/// Latency is recorded for one in this many packets; for every packet it would dominate the generator's cost.
const LATENCY_OF_ONE_IN: u32 = 64;
/// Duration of a test whether packets return.
const PROBE_TIME: Duration = Duration::from_millis(20);
/// Settling time at the end of a run.
const SETTLE_TIME: Span = Span::from_millis(20);
/// Maximum time for a link to connect.
pub(super) const TIMEOUT: Duration = Duration::from_secs(30);
/// Capacity of inco's flow table beyond the bench's flows.
pub(super) const SPARE_FLOWS: usize = 10_000;
/// Source and destination port of all flows.
const PORTS: (u16, u16) = (1024, 9);
/// Source address of the first flow, and destination address of all.
const ENDS: (Ipv4Addr, Ipv4Addr) = (Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 128, 0, 1));

/// One row of the result.
#[derive(Clone, Debug, Serialize)]
struct Row {
    contestant: &'static str,
    flows: u32,
    size: u16,
    /// Whether the switch counts returned packets per flow.
    return_counters: bool,
    /// Millions of round trips per second of CPU time of the switching thread.
    mpps: f64,
    /// Millions of returned packets per second of wall time. Generator and function share a CPU, which may be the
    /// limit.
    returned_mpps: f64,
    lost_percent: f64,
    ratio_to_ovs: Option<f64>,
}

/// One chain: a switch, its function's process, and the generator's port.
struct Chain {
    name: &'static str,
    return_counters: bool,
    switch: Box<dyn Contestant>,
    port: [MemifPort; 1],
    /// The window with the highest rate per CPU time, in packets.
    window: u32,
    /// The result of each window in the search.
    trials: [Sum; WINDOWS.len()],
    rounds: Vec<Sum>,
    _function: KilledOnDrop,
}

/// The sum of several turns of a chain.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sum {
    /// Round trips while measuring.
    pub(super) packets: u64,
    /// CPU time of the switching thread while measuring, in seconds.
    pub(super) cpu_seconds: f64,
    /// Wall time while measuring, in seconds.
    pub(super) seconds: f64,
    /// Packets sent, including the warm-up.
    pub(super) offered: u64,
    /// Sent packets that did not return.
    pub(super) lost: u64,
}

impl Sum {
    /// Millions of round trips per second of CPU time.
    pub(super) fn mpps(&self) -> f64 {
        self.packets as f64 / self.cpu_seconds.max(1e-9) / 1e6
    }

    /// Millions of round trips per second of wall time.
    pub(super) fn returned_mpps(&self) -> f64 {
        self.packets as f64 / self.seconds.max(1e-9) / 1e6
    }

    fn lost_percent(&self) -> f64 {
        100.0 * self.lost as f64 / self.offered.max(1) as f64
    }
}

impl AddAssign for Sum {
    fn add_assign(&mut self, other: Sum) {
        self.packets += other.packets;
        self.cpu_seconds += other.cpu_seconds;
        self.seconds += other.seconds;
        self.offered += other.offered;
        self.lost += other.lost;
    }
}

/// Runs the bench.
pub(super) fn run(args: &ChainArgs) -> Result<()> {
    let rows = measure(args)?;
    if args.json {
        return output::json(&rows, output::is_terminal());
    }
    let mut table = Table::new(&[
        "switch",
        ">flows",
        ">size",
        ">Mpps",
        ">returned",
        ">lost",
        ">÷ ovs",
    ]);
    for row in &rows {
        table.row([
            row.contestant.to_owned(),
            row.flows.to_string(),
            row.size.to_string(),
            format!("{:.2}", row.mpps),
            format!("{:.2}", row.returned_mpps),
            format!("{:.2} %", row.lost_percent),
            row.ratio_to_ovs
                .map_or("-".to_owned(), |ratio| format!("{ratio:.2}")),
        ]);
    }
    output::text(&table.text())?;
    output::line(format!(
        "Round-trip Mpps per CPU second of the switching thread. All measurements: {}",
        args.csv.display()
    ))
}

fn measure(args: &ChainArgs) -> Result<Vec<Row>> {
    let folder = Folder::new()?;
    let with_ovs = !args.no_ovs && ovs::is_there();
    let memory = match with_ovs {
        true => Memory::reserve(0, 0, 0, true),
        false => Memory::none(),
    };
    let columns = [
        "flows",
        "size",
        "round",
        "contestant",
        "window",
        "offered",
        "lost",
        "returned",
        "seconds",
        "cpu_seconds",
        "mpps",
        "command",
    ];
    let mut raw = Raw::new(&facts(memory.is_huge()), &columns);
    let mut chains = vec![
        start_inco(&folder.path.join("plain"), args, false)?,
        start_inco(&folder.path.join("counting"), args, true)?,
    ];
    if with_ovs {
        match start_ovs(&folder.path.join("ovs"), args, &memory) {
            Ok(chain) => chains.push(chain),
            // The other results are still useful.
            Err(error) => {
                output::complain(&format!("inco: OVS is left out: {error:#}"));
            }
        }
    }
    for chain in &mut chains {
        chain.wait_until_it_forwards(args)?;
        suspend(chain.switch.as_ref())?;
    }
    for _ in 0..TRIAL_TURNS {
        for (trial, window) in WINDOWS.into_iter().enumerate() {
            for chain in &mut chains {
                let sum = chain.send(args, window)?;
                chain.trials[trial] += sum;
            }
        }
    }
    for chain in &mut chains {
        chain.choose_window(args, &mut raw);
    }
    for round in 1..=args.rounds {
        let mut sums = vec![Sum::default(); chains.len()];
        for _ in 0..TURNS {
            for (chain, sum) in chains.iter_mut().zip(&mut sums) {
                *sum += chain.send(args, chain.window)?;
            }
        }
        for (chain, sum) in chains.iter_mut().zip(sums) {
            if sum.packets == 0 || sum.cpu_seconds == 0.0 {
                bail!(
                    "{}: no packet returned in round {round}; the machine may be too busy (started by: {})",
                    chain.name,
                    chain.switch.commands().join(" && ")
                );
            }
            chain.note(&mut raw, args, &round.to_string(), chain.window, &sum);
            chain.rounds.push(sum);
        }
        raw.write(&args.csv)?;
    }
    let ovs: Vec<f64> = chains
        .iter()
        .filter(|chain| chain.name == OVS)
        .flat_map(|chain| chain.rounds.iter().map(Sum::mpps))
        .collect();
    Ok(chains.iter().map(|chain| chain.row(args, &ovs)).collect())
}

/// The peer's name in the result.
const OVS: &str = "ovs-exact";

impl Chain {
    /// Sends a few packets at a time until some return.
    fn wait_until_it_forwards(&mut self, args: &ChainArgs) -> Result<()> {
        wait_until("the path through the function", || {
            let sent = generate(
                &mut self.port,
                profile(args, PROBE_TIME, PROBE_TIME),
                Some(WINDOWS[0]),
                |_| {},
            );
            sent.is_ok_and(|report| report.counts.returned_packets > 0)
        })
        .with_context(|| self.switch.commands().join(" && "))
    }

    /// Selects the window with the highest rate per CPU time.
    fn choose_window(&mut self, args: &ChainArgs, raw: &mut Raw) {
        let mut best = 0.0;
        for (window, sum) in WINDOWS.into_iter().zip(self.trials) {
            self.note(raw, args, "trial", window, &sum);
            if sum.mpps() > best {
                (best, self.window) = (sum.mpps(), window);
            }
        }
    }

    /// One turn: resumes the switch, sends with `window` packets in flight, and suspends the switch. The measurement
    /// covers the middle of the turn only, without the generator's start and end and without the first and last
    /// packets.
    fn send(&mut self, args: &ChainArgs, window: u32) -> Result<Sum> {
        resume(self.switch.as_ref())?;
        let pid = self.switch.pid();
        let (mut started, mut ended) = (None, None);
        let observe = |interval: &Interval| {
            let look = (interval.at_s, interval.counts.returned_packets);
            match &started {
                None => started = Some((look, Clock::of(pid))),
                Some((_, Ok(clock))) if ended.is_none() && is_over(interval, TURN) => {
                    ended = Some((look, clock.elapsed_ns()));
                }
                Some(_) => {}
            }
        };
        let report = generate(
            &mut self.port,
            profile(args, WARM_UP, 2 * WARM_UP + TURN),
            Some(window),
            observe,
        )?;
        suspend(self.switch.as_ref())?;
        self.check(&report)?;
        let mut sum = Sum {
            offered: report.counts.offered_packets,
            lost: report.lost,
            ..Sum::default()
        };
        // Without both readings the generator had no CPU in that time; the turn is discarded.
        if let (Some(((from, before), clock)), Some(((to, after), cpu_ns))) = (started, ended) {
            clock?;
            sum.packets = after - before;
            sum.seconds = to - from;
            sum.cpu_seconds = cpu_ns? as f64 / 1e9;
        }
        Ok(sum)
    }

    fn note(&self, raw: &mut Raw, args: &ChainArgs, round: &str, window: u32, sum: &Sum) {
        raw.row(&[
            args.flows.to_string(),
            args.size.to_string(),
            round.to_owned(),
            self.name.to_owned(),
            window.to_string(),
            sum.offered.to_string(),
            sum.lost.to_string(),
            sum.packets.to_string(),
            format!("{:.6}", sum.seconds),
            format!("{:.6}", sum.cpu_seconds),
            format!("{:.4}", sum.mpps()),
            self.switch.commands().join(" && "),
        ]);
    }

    /// Checks conditions that every turn must meet.
    fn check(&self, report: &Report) -> Result<()> {
        let counts = &report.counts;
        if counts.reordered + counts.duplicated + counts.altered + counts.foreign > 0 {
            bail!(
                "{}: {} packets returned out of order, {} duplicated, {} altered and {} unknown",
                self.name,
                counts.reordered,
                counts.duplicated,
                counts.altered,
                counts.foreign
            );
        }
        Ok(())
    }

    fn row(&self, args: &ChainArgs, ovs: &[f64]) -> Row {
        let ratios = self.rounds.iter().map(Sum::mpps).zip(ovs);
        let of_rounds = |of: fn(&Sum) -> f64| median(self.rounds.iter().map(of));
        Row {
            contestant: self.name,
            flows: args.flows,
            size: args.size,
            return_counters: self.return_counters,
            mpps: of_rounds(Sum::mpps),
            returned_mpps: of_rounds(Sum::returned_mpps),
            lost_percent: of_rounds(Sum::lost_percent),
            ratio_to_ovs: (self.name != OVS && !ovs.is_empty())
                .then(|| median(ratios.map(|(ours, theirs)| ours / theirs))),
        }
    }
}

/// What a generator sends.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    flows: u32,
    pub(super) size: u16,
    /// Packets per second.
    pub(super) rate: f64,
}

impl Load {
    pub(super) const fn new(flows: u32, size: u16, rate: f64) -> Load {
        Load { flows, size, rate }
    }

    /// The generator's profile: packets of all flows in turn, with progress every `interval`.
    pub(super) fn profile(self, interval: Duration, duration: Duration) -> Profile {
        Profile {
            settle: SETTLE_TIME,
            interval: Span(interval),
            // The switch's tests check the bytes. Here the generator would take CPU time from the function.
            verify: Verify::Off,
            phases: vec![Phase {
                duration: Span(duration),
                flows: self.flows,
                rate: Some(Rate(self.rate)),
                size: Size::Fixed(self.size),
                src: IpAddr::V4(ENDS.0),
                dst: IpAddr::V4(ENDS.1),
                src_port: PORTS.0,
                dst_port: PORTS.1,
                ..Phase::default()
            }],
            ..Profile::default()
        }
    }
}

/// Whether the measured time of a turn is over.
pub(super) fn is_over(interval: &Interval, turn: Duration) -> bool {
    interval.at_s >= (WARM_UP + turn).as_secs_f64()
}

/// The chain's profile, as fast as possible.
fn profile(args: &ChainArgs, interval: Duration, duration: Duration) -> Profile {
    Load::new(args.flows, args.size, RATE).profile(interval, duration)
}

/// Source and destination of the generator's flows.
fn flows(count: u32) -> impl Iterator<Item = (SocketAddr, SocketAddr)> {
    let first = u32::from(ENDS.0);
    (0..count).map(move |flow| {
        (
            SocketAddr::from((Ipv4Addr::from(first + flow), PORTS.0)),
            SocketAddr::from((ENDS.1, PORTS.1)),
        )
    })
}

/// Runs the generator on the CPU for everything else, with at most `window` packets in flight.
pub(super) fn generate(
    port: &mut [MemifPort; 1],
    profile: Profile,
    window: Option<u32>,
    observe: impl FnMut(&Interval) + Send,
) -> Result<Report> {
    let duration = profile.phases.iter().map(|phase| phase.duration).max();
    let mut generator = Generator::new(profile)?;
    if let Some(window) = window {
        generator = generator.in_closed_loop(window, duration.unwrap_or_default());
    }
    let generator = generator.with_latency_of_one_in(LATENCY_OF_ONE_IN);
    let (control, _) = cpus()?;
    on_cpu(control, || Ok(generator.run(port, &Control::new(), observe)?))
}

/// Runs `work` in a thread on that CPU. Processes that it starts inherit the affinity.
fn on_cpu<T: Send>(cpu: usize, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            pin_to_cpu(cpu)?;
            work()
        });
        thread
            .join()
            .map_err(|_| anyhow!("a thread of the bench ended with a panic"))?
    })
}

/// Starts the function on the CPU for everything else; returns its process and its socket.
pub(super) fn start_function(folder: &Path) -> Result<(KilledOnDrop, PathBuf)> {
    std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let socket = folder.join("function.sock");
    let mut command = Command::new(find_inco_nf()?);
    command.arg("forward").arg("--socket").arg(&socket);
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let (control, _) = cpus()?;
    let child = on_cpu(control, || {
        command
            .spawn()
            .with_context(|| format!("cannot start {}", command_line(&command)))
    })?;
    let function = KilledOnDrop::new(child);
    wait_until("the function's socket", || socket.exists())?;
    Ok((function, socket))
}

fn start_inco(folder: &Path, args: &ChainArgs, return_counters: bool) -> Result<Chain> {
    let (function, socket) = start_function(folder)?;
    let uplink = folder.join("uplink.sock");
    let (control, cpu) = cpus()?;
    let switch = Steering::start(&Spec {
        way: Way::Chain(uplink.clone()),
        scheduler: SCHEDULER.to_owned(),
        instances: 1,
        active: 1,
        sockets: vec![socket],
        log2_slots: MEMIF_LOG2_SLOTS,
        cpus: vec![cpu],
        control_cpu: control,
        table_flows: args.flows as usize + SPARE_FLOWS,
        return_counters,
        is_dealt: false,
    })?;
    Ok(Chain {
        name: if return_counters { "inco-counting" } else { "inco" },
        return_counters,
        switch: Box::new(switch),
        port: [MemifPort::connect(&uplink, 0, TIMEOUT)?],
        window: WINDOWS[0],
        trials: Default::default(),
        rounds: Vec::new(),
        _function: function,
    })
}

fn start_ovs(folder: &Path, args: &ChainArgs, memory: &Memory) -> Result<Chain> {
    let (function, socket) = start_function(folder)?;
    let uplink = folder.join("uplink.sock");
    let switch = Ovs::start_chain(folder, &uplink, &[socket], flows(args.flows), memory, cpus()?)?;
    Ok(Chain {
        name: OVS,
        return_counters: false,
        switch: Box::new(switch),
        port: [MemifPort::connect(&uplink, 0, TIMEOUT)?],
        window: WINDOWS[0],
        trials: Default::default(),
        rounds: Vec::new(),
        _function: function,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(flows: u32) -> ChainArgs {
        ChainArgs {
            flows,
            size: 64,
            rounds: 1,
            no_ovs: true,
            csv: PathBuf::new(),
            json: true,
        }
    }

    #[test]
    fn rules_are_about_the_flows_that_are_sent() {
        let generator = Generator::new(profile(&args(3), PROBE_TIME, PROBE_TIME)).unwrap();
        let generator = generator.in_closed_loop(30, Span(PROBE_TIME));
        let mut port = [traffic::LoopbackPort::new(64)];
        let report = generator.run(&mut port, &Control::new(), |_| {}).unwrap();
        let sent: Vec<&str> = report.flows.iter().map(|flow| flow.name.as_str()).collect();
        let ends: Vec<String> = flows(3).map(|(src, dst)| format!("udp {src} > {dst}")).collect();
        assert_eq!(sent, ends);
    }
}
