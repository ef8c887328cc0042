//! A whole chain: generator, switch, a function in a process of its own, switch, generator; all over memif. Beside OVS-DPDK on
//! the same ports.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use serde::Serialize;
use traffic::{Control, Generator, MemifPort, Phase, Profile, Rate, Report, Size, Span, Verify};

use super::contestant::{Clock, Contestant, Killed, Measured, go_to, median, resume, shown, suspend};
use super::facts::facts;
use super::memory::Memory;
use super::ovs::{self, Ovs, until};
use super::raw::Raw;
use super::steer::{Folder, cpus};
use super::steering::{Spec, Steering, Way};
use crate::cli::ChainArgs;
use crate::image::find_inco_nf;
use crate::output;
use crate::table::Table;

/// How long each contestant is sent packets in each round.
const WINDOW: Duration = Duration::from_millis(700);
/// The same where the best rate for it is looked for, and before each round: caches and branch predictors.
const TRIAL: Duration = Duration::from_millis(250);
/// Offered rates that are tried, in packets per second; the one at which a contestant does most for its time counts.
const RATES: [f64; 5] = [250e3, 500e3, 1e6, 2e6, 4e6];
/// The same where it is only tried whether packets come back.
const LEAST: Duration = Duration::from_millis(20);
/// How long the last packets of a run are waited for.
const SETTLE: Span = Span::from_millis(20);
/// How long a link may take until it stands.
const PATIENCE: Duration = Duration::from_secs(30);
/// Room of inco's flow table beside the flows of the bench.
const SPARE_FLOWS: usize = 10_000;
/// Ports of all flows.
const PORTS: (u16, u16) = (1024, 9);
/// The first flow's source address, and the destination of all.
const ENDS: (Ipv4Addr, Ipv4Addr) = (Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 128, 0, 1));

/// One row of the result.
#[derive(Clone, Debug, Serialize)]
struct Row {
    contestant: &'static str,
    flows: u32,
    size: u16,
    /// Whether packets that come back are counted for each flow.
    return_counters: bool,
    /// Millions of packets, there and back, per second of processor time of the switching thread.
    mpps: f64,
    /// Millions of packets that came back per second: generator and function share a CPU, which may be the limit.
    returned_mpps: f64,
    lost_percent: f64,
    ratio_to_ovs: Option<f64>,
}

/// One of the chains: a switch, its function's process, and the generator's port.
struct Chain {
    name: &'static str,
    return_counters: bool,
    switch: Box<dyn Contestant>,
    port: [MemifPort; 1],
    rate: f64,
    rounds: Vec<(Measured, Report)>,
    _function: Killed,
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
        "Mpps there and back by the switching thread's processor time. Every measurement: {}",
        args.csv.display()
    ))
}

fn measure(args: &ChainArgs) -> Result<Vec<Row>> {
    let folder = Folder::new()?;
    let with_ovs = !args.no_ovs && ovs::is_there();
    let memory = match with_ovs {
        true => Memory::reserve(0, 0, true),
        false => Memory::none(),
    };
    let columns = [
        "flows",
        "size",
        "round",
        "contestant",
        "offered_pps",
        "offered",
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
            // What the others do is worth knowing without it.
            Err(error) => {
                output::complain(&format!("inco: without OVS, which does not take part: {error:#}"));
            }
        }
    }
    for chain in &mut chains {
        chain.wait_until_it_forwards(args)?;
        suspend(chain.switch.as_ref())?;
    }
    for chain in &mut chains {
        chain.find_rate(args, &mut raw)?;
    }
    for round in 1..=args.rounds {
        for chain in &mut chains {
            let done = chain.send(args, chain.rate, WINDOW)?;
            chain.note(&mut raw, args, &round.to_string(), &done);
            chain.rounds.push(done);
        }
        raw.write(&args.csv)?;
    }
    for chain in &chains {
        chain.check()?;
    }
    let ovs: Vec<f64> = chains
        .iter()
        .filter(|chain| chain.name == OVS)
        .flat_map(|chain| chain.rounds.iter().map(|(measured, _)| measured.mpps()))
        .collect();
    Ok(chains.iter().map(|chain| chain.row(args, &ovs)).collect())
}

/// The peer's name in the result.
const OVS: &str = "ovs-exact";

impl Chain {
    /// Sends a few packets until some come back.
    fn wait_until_it_forwards(&mut self, args: &ChainArgs) -> Result<()> {
        until("the way through a function and back", || {
            let sent = generate(&mut self.port, profile(args, RATES[0], LEAST));
            sent.is_ok_and(|report| report.counts.returned_packets > 0)
        })
        .with_context(|| self.switch.commands().join(" && "))
    }

    /// Looks for the rate at which the switch does most for its time.
    fn find_rate(&mut self, args: &ChainArgs, raw: &mut Raw) -> Result<()> {
        let mut best = 0.0;
        for rate in RATES {
            let done = self.send(args, rate, TRIAL)?;
            self.note(raw, args, "trial", &done);
            if done.0.mpps() > best {
                (best, self.rate) = (done.0.mpps(), rate);
            }
        }
        Ok(())
    }

    /// Sends packets through at that rate, and lets the switch rest again.
    fn send(&mut self, args: &ChainArgs, rate: f64, time: Duration) -> Result<(Measured, Report)> {
        resume(self.switch.as_ref())?;
        generate(&mut self.port, profile(args, rate, TRIAL))?;
        let clock = Clock::start(self.switch.as_ref())?;
        let report = generate(&mut self.port, profile(args, rate, time))?;
        let measured = clock.stop(self.switch.as_ref(), report.counts.returned_packets)?;
        suspend(self.switch.as_ref())?;
        Ok((measured, report))
    }

    fn note(&self, raw: &mut Raw, args: &ChainArgs, round: &str, (measured, report): &(Measured, Report)) {
        raw.row(&[
            args.flows.to_string(),
            args.size.to_string(),
            round.to_owned(),
            self.name.to_owned(),
            format!("{:.0}", report.generator.intended_pps),
            report.counts.offered_packets.to_string(),
            report.counts.returned_packets.to_string(),
            format!("{:.6}", report.sending_s),
            format!("{:.6}", measured.seconds),
            format!("{:.4}", measured.mpps()),
            self.switch.commands().join(" && "),
        ]);
    }

    /// What no run may show, however fast it is.
    fn check(&self) -> Result<()> {
        for (_, report) in &self.rounds {
            let counts = &report.counts;
            if counts.reordered + counts.duplicated + counts.altered + counts.foreign > 0 {
                bail!(
                    "{}: {} packets came back out of order, {} twice, {} changed and {} that nobody sent",
                    self.name,
                    counts.reordered,
                    counts.duplicated,
                    counts.altered,
                    counts.foreign
                );
            }
        }
        Ok(())
    }

    fn row(&self, args: &ChainArgs, ovs: &[f64]) -> Row {
        let mpps = self.rounds.iter().map(|(measured, _)| measured.mpps());
        let ratios = mpps.clone().zip(ovs).map(|(ours, theirs)| ours / theirs);
        let of_reports = |of: fn(&Report) -> f64| median(self.rounds.iter().map(|(_, report)| of(report)));
        Row {
            contestant: self.name,
            flows: args.flows,
            size: args.size,
            return_counters: self.return_counters,
            mpps: median(mpps),
            returned_mpps: of_reports(|report| report.returned_pps / 1e6),
            lost_percent: of_reports(|report| 100.0 * report.loss_ratio()),
            ratio_to_ovs: (self.name != OVS && !ovs.is_empty()).then(|| median(ratios)),
        }
    }
}

/// What the generator sends: all flows at once, together at that rate.
fn profile(args: &ChainArgs, rate: f64, duration: Duration) -> Profile {
    Profile {
        settle: SETTLE,
        // Checked by what the tests of the switch send; here the generator's time is the function's.
        verify: Verify::Off,
        phases: vec![Phase {
            duration: Span(duration),
            flows: args.flows,
            rate: Some(Rate(rate)),
            size: Size::Fixed(args.size),
            src: IpAddr::V4(ENDS.0),
            dst: IpAddr::V4(ENDS.1),
            src_port: PORTS.0,
            dst_port: PORTS.1,
            ..Phase::default()
        }],
        ..Profile::default()
    }
}

/// The ends of the generator's flows.
fn flows(count: u32) -> impl Iterator<Item = (SocketAddr, SocketAddr)> {
    let first = u32::from(ENDS.0);
    (0..count).map(move |flow| {
        (
            SocketAddr::from((Ipv4Addr::from(first + flow), PORTS.0)),
            SocketAddr::from((ENDS.1, PORTS.1)),
        )
    })
}

/// Runs the generator, on the CPU for everything else.
fn generate(port: &mut [MemifPort; 1], profile: Profile) -> Result<Report> {
    let generator = Generator::new(profile)?;
    let (control, _) = cpus()?;
    on_cpu(control, || Ok(generator.run(port, &Control::new(), |_| {})?))
}

/// Does something in a thread on that CPU, which what it starts inherits.
fn on_cpu<T: Send>(cpu: usize, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            go_to(cpu)?;
            work()
        });
        thread
            .join()
            .map_err(|_| anyhow!("a thread of the bench ended with a panic"))?
    })
}

/// Starts the function on the CPU for everything else: gives it and where it listens.
fn start_function(folder: &Path) -> Result<(Killed, PathBuf)> {
    std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let socket = folder.join("function.sock");
    let mut command = Command::new(find_inco_nf()?);
    command.arg("forward").arg("--socket").arg(&socket);
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let (control, _) = cpus()?;
    let child = on_cpu(control, || {
        command
            .spawn()
            .with_context(|| format!("cannot start {}", shown(&command)))
    })?;
    let function = Killed::when_done(child);
    until("the function's socket", || socket.exists())?;
    Ok((function, socket))
}

fn start_inco(folder: &Path, args: &ChainArgs, return_counters: bool) -> Result<Chain> {
    let (function, socket) = start_function(folder)?;
    let uplink = folder.join("uplink.sock");
    let (control, cpu) = cpus()?;
    let switch = Steering::start(&Spec {
        way: Way::Chain(uplink.clone()),
        instances: 1,
        active: 1,
        sockets: vec![socket],
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
        port: [MemifPort::connect(&uplink, 0, PATIENCE)?],
        rate: 0.0,
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
        port: [MemifPort::connect(&uplink, 0, PATIENCE)?],
        rate: 0.0,
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
        let generator = Generator::new(profile(&args(3), 1e3, Duration::from_millis(20))).unwrap();
        let mut port = [traffic::LoopbackPort::new(64)];
        let report = generator.run(&mut port, &Control::new(), |_| {}).unwrap();
        let sent: Vec<&str> = report.flows.iter().map(|flow| flow.name.as_str()).collect();
        let ends: Vec<String> = flows(3).map(|(src, dst)| format!("udp {src} > {dst}")).collect();
        assert_eq!(sent, ends);
    }
}
