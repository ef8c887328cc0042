//! A function as the one instance of a service, beside the same container alone: what a service takes from a function
//! that is the bottleneck, and what the switch costs.
//!
//! Both containers are of the engine `oci`, with the same image, command and quota. Frames go round in a closed loop
//! by the same rings. So the rate follows the function, and nothing is lost.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use display::output::{self, WrongUsage};
use display::table::{Table, grouped};
use engine::cgroup::{Cgroup, Hierarchy, ROOT};
use engine::launcher::{Launcher, LauncherCommand};
use engine::{
    ContainerSpec, CpuQuota, Engine as _, EngineEvent, Exchange, OciConfig, OciEngine, Request, Ticket,
};
use images::EngineName;
use model::Mount;
use rustix::mount::{UnmountFlags, unmount};
use testbed::{Environment, FORWARD_IMAGE, Interrupt, Session, SwitchName};
use traffic::MemifPort;

use super::Subject;
use super::pump::Pump;
use super::session::{Row, ServiceCost};
use crate::args::FunctionArgs;
use crate::cleanup::Cleanup;
use crate::contestant::{median, process_ns};
use crate::facts::facts;
use crate::raw::Raw;

/// The quota of both containers.
const CPUS: f64 = 0.2;
/// Pairs of containers, one after the other. Where a container's memory lies makes it faster or slower for as long as it
/// lives: by up to a third, with tables that fill the second-level cache.
const PAIRS: u32 = 3;
/// Turns of each side in a round: short and many, so that changes of the machine's speed affect both sides alike.
const TURNS: usize = 4;
/// Part of a turn before what is measured.
const WARM_UP: Duration = Duration::from_millis(50);
/// Slots of the rings of the function, as those of the port that sends.
const RING_SLOTS: u32 = 4_096;
/// Memory of a container, for tables.
const MEMORY_MIB: u64 = 1_024;
/// Where a container finds the function's configuration.
const CONFIGURATION: &str = "/nf.toml";
/// A container's directory of its socket.
const SOCKETS: &str = "/run/inco";
/// How long the engine, or a function that reads its configuration, may take.
const LIMIT: Duration = Duration::from_secs(20);
const POLL_INTERVAL: Duration = Duration::from_millis(2);
/// The peer in the result.
const ALONE: &str = "alone";
/// In there: the directory of its socket, a file system of its own.
const ALONE_PORT: &str = "port";
/// Bytes of the check sequence, which is on the wire only.
const CHECK: usize = 4;

/// What a function gets as the instance of a service.
pub(super) struct Served {
    /// Its configuration.
    pub(super) configuration: String,
    /// Rules, routes, flows, buckets, records, keys or requests.
    pub(super) entries: usize,
    /// What comes before all else, once.
    pub(super) first: Vec<Vec<u8>>,
    /// What comes again and again. Each frame has one in return.
    pub(super) frames: Vec<Vec<u8>>,
}

/// Makes it.
pub(super) type MakeServed = fn() -> Result<Served>;

impl Served {
    pub(super) fn of(configuration: impl Into<String>, entries: usize, frames: Vec<Vec<u8>>) -> Served {
        Served {
            configuration: configuration.into(),
            entries,
            first: Vec::new(),
            frames,
        }
    }

    /// Bytes of a packet on the wire, on average.
    fn size(&self) -> usize {
        let bytes: usize = self.frames.iter().map(|frame| frame.len() + CHECK).sum();
        bytes / self.frames.len().max(1)
    }
}

/// Measures the functions.
///
/// # Errors
/// One of them cannot be the instance of a service, or a container, a packet or inco fails.
pub(super) fn run(args: &FunctionArgs, chosen: &[&Subject]) -> Result<()> {
    let served: Vec<(&str, MakeServed)> = chosen
        .iter()
        .filter_map(|subject| Some((subject.name, subject.served?)))
        .collect();
    if served.is_empty() {
        return Err(WrongUsage("table3 is a table of several functions, and no service".to_owned()).into());
    }
    let columns = [
        "function",
        "size",
        "round",
        "side",
        "packets",
        "seconds",
        "function_cpu_ns",
        "switch_cpu_ns",
    ];
    let mut raw = Raw::new(&facts(false), &columns);
    let mut rows = Vec::new();
    for (name, served) in served {
        output::complain(&format!("{name}: as the instance of a service, and alone …"));
        rows.push(measure(args, name, &served()?, &mut raw)?);
        raw.write(&args.csv)?;
    }
    if args.json {
        return output::json(&rows, output::is_terminal());
    }
    output::text(&table(&rows))?;
    output::line(format!(
        "Millions of packets per second of wall time, of a container with {CPUS} CPUs: in a service with one instance, \
         and alone. ns: CPU time of the function for a packet, in both. switch: CPU time of all of inco for a packet \
         there and back. Medians of {} rounds, with {PAIRS} pairs of containers. All rounds: {}",
        args.rounds * PAIRS,
        args.csv.display()
    ))
}

fn table(rows: &[Row]) -> String {
    let mut table = Table::new(&[
        "function", ">entries", ">bytes", ">Mpps", ">alone", ">ratio", ">ns", ">alone", ">ratio", ">switch",
    ]);
    for row in rows {
        let Some(cost) = row.service else { continue };
        table.row([
            row.function.to_owned(),
            grouped(row.entries),
            row.size.to_string(),
            format!("{:.3}", row.mpps),
            format!("{:.3}", row.peer_rate.unwrap_or_default()),
            format!("{:.3}", row.ratio_to_peer.unwrap_or_default()),
            format!("{:.1}", row.cpu_ns_per_packet),
            format!("{:.1}", cost.peer_cpu_ns_per_packet),
            format!("{:.3}", cost.cpu_ratio_to_peer),
            format!("{:.1}", cost.switch_cpu_ns_per_packet),
        ]);
    }
    table.text()
}

fn measure(args: &FunctionArgs, name: &'static str, served: &Served, raw: &mut Raw) -> Result<Row> {
    testbed::make_image(EngineName::Oci)?;
    let mut rounds = Rounds::default();
    for _ in 0..PAIRS {
        measure_pair(args, name, served, &mut rounds, raw)?;
    }
    Ok(rounds.row(name, served))
}

/// Adds the rounds of two new containers.
fn measure_pair(
    args: &FunctionArgs,
    name: &'static str,
    served: &Served,
    rounds: &mut Rounds,
    raw: &mut Raw,
) -> Result<()> {
    let ground = Environment::new(EngineName::Oci, SwitchName::Soft, false, Interrupt::default())?;
    let directory = ground.directory().to_owned();
    // If the bench is interrupted; what runs ends with this process, but a mount stays.
    let removed = directory.clone();
    let _removed = Cleanup::by(move || {
        let _unmounted = unmount(removed.join(ALONE).join(ALONE_PORT), UnmountFlags::DETACH);
        let _gone = std::fs::remove_dir_all(removed);
    });
    let file = directory.join("nf.toml");
    std::fs::write(&file, &served.configuration)
        .with_context(|| format!("cannot write {}", file.display()))?;
    let groups = Hierarchy::at(ROOT)?;

    // Before there are threads.
    let container = Alone::start(&directory.join(ALONE), name, &file)?;
    let mut alone = Side::new(container.connect()?, &groups, container.pid, None)?;
    let session = Session::start(&ground, name, &configuration(name, &file), 1)?;
    let instances = session.client()?.instances()?;
    let pid = instances
        .iter()
        .find_map(|row| row.pid)
        .context("the instance has no process")?;
    let switch = session.client()?.status()?.pid;
    let mut service = Side::new(session.uplink()?, &groups, pid, Some(switch))?;

    let time = Duration::from_millis(args.milliseconds).div_f64(CPUS);
    for side in [&mut service, &mut alone] {
        side.pump.once(&served.first)?;
        side.pump.once(&served.frames)?;
    }
    for _ in 0..args.rounds {
        let round = rounds.0.len() + 1;
        let mut of_round = [Taken::default(); 2];
        for _ in 0..TURNS {
            for (side, taken) in [&mut service, &mut alone].into_iter().zip(&mut of_round) {
                taken.add(side.turn(&served.frames, time)?);
            }
        }
        for (side, taken) in ["service", ALONE].into_iter().zip(of_round) {
            if taken.packets == 0 || taken.cpu_ns == 0 {
                bail!("{name}: no packet came back in round {round}; the machine may be too busy");
            }
            raw.row(&[
                name.to_owned(),
                served.size().to_string(),
                round.to_string(),
                side.to_owned(),
                taken.packets.to_string(),
                format!("{:.6}", taken.seconds),
                taken.cpu_ns.to_string(),
                taken.switch_ns.to_string(),
            ]);
        }
        rounds.add(of_round);
    }
    drop((service, alone));
    drop(container);
    let left = session.stop()?;
    if !left.is_empty() {
        bail!("inco left behind: {}", left.join(", "));
    }
    Ok(())
}

/// inco's configuration: one service with one instance.
fn configuration(name: &str, file: &Path) -> String {
    let limit = LIMIT.as_secs();
    format!(
        r#"# Written by `inco bench function --service`.
[engine]
driver = "oci"

[[uplink]]
name = "wan"
device = "memif:wan.sock"

[service.function]
image = {FORWARD_IMAGE:?}
command = {:?}
mounts = ["{}:{CONFIGURATION}:ro"]
cpus = {CPUS}
memory = "{MEMORY_MIB}MiB"
ring = {{ slots = {RING_SLOTS} }}
ready_deadline = "{limit}s"
# Other programs may keep the CPUs busy.
stall_after = "{limit}s"
instances = 1
"#,
        command(name),
        file.display(),
    )
}

/// The program of both containers.
fn command(name: &str) -> [&str; 4] {
    ["/inco-nf", name, "--config", CONFIGURATION]
}

/// What was measured in a turn or in several.
#[derive(Clone, Copy, Debug, Default)]
struct Taken {
    packets: u64,
    /// Wall time.
    seconds: f64,
    /// CPU time of the function.
    cpu_ns: u64,
    /// CPU time of inco.
    switch_ns: u64,
}

impl Taken {
    fn add(&mut self, other: Taken) {
        self.packets += other.packets;
        self.seconds += other.seconds;
        self.cpu_ns += other.cpu_ns;
        self.switch_ns += other.switch_ns;
    }

    fn mpps(&self) -> f64 {
        self.packets as f64 / self.seconds.max(1e-9) / 1e6
    }

    fn cpu_ns_per_packet(&self) -> f64 {
        self.cpu_ns as f64 / self.packets.max(1) as f64
    }

    fn switch_ns_per_packet(&self) -> f64 {
        self.switch_ns as f64 / self.packets.max(1) as f64
    }
}

/// Each round: in the service, and alone.
#[derive(Default)]
struct Rounds(Vec<[Taken; 2]>);

impl Rounds {
    fn add(&mut self, round: [Taken; 2]) {
        self.0.push(round);
    }

    fn median(&self, of: impl Fn(&[Taken; 2]) -> f64) -> f64 {
        median(self.0.iter().map(of))
    }

    fn row(&self, function: &'static str, served: &Served) -> Row {
        let mpps = self.median(|[service, _]| service.mpps());
        Row {
            function,
            case: "service".to_owned(),
            entries: served.entries as u64,
            size: served.size(),
            mpps,
            gbps: mpps * served.size() as f64 * 8.0 / 1e3,
            cpu_ns_per_packet: self.median(|[service, _]| service.cpu_ns_per_packet()),
            latency_p50_us: None,
            latency_p99_us: None,
            peer: Some(ALONE),
            peer_rate: Some(self.median(|[_, alone]| alone.mpps())),
            ratio_to_peer: Some(self.median(|[service, alone]| service.mpps() / alone.mpps())),
            service: Some(ServiceCost {
                cpus: CPUS,
                peer_cpu_ns_per_packet: self.median(|[_, alone]| alone.cpu_ns_per_packet()),
                cpu_ratio_to_peer: self
                    .median(|[service, alone]| service.cpu_ns_per_packet() / alone.cpu_ns_per_packet()),
                switch_cpu_ns_per_packet: self.median(|[service, _]| service.switch_ns_per_packet()),
            }),
        }
    }
}

/// A function with what sends to it.
struct Side {
    pump: Pump<MemifPort>,
    function: Cgroup,
    /// The process of inco, if it is between the two.
    switch: Option<u32>,
}

impl Side {
    fn new(port: MemifPort, groups: &Hierarchy, pid: u32, switch: Option<u32>) -> Result<Side> {
        let path = format!("/proc/{pid}/cgroup");
        let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
        let function = groups.group_of(&text);
        Ok(Side {
            pump: Pump::new(port),
            function: function.with_context(|| format!("{path} names no control group of a container"))?,
            switch,
        })
    }

    /// Sends for a while, of which the part behind the warm-up is measured.
    fn turn(&mut self, frames: &[Vec<u8>], time: Duration) -> Result<Taken> {
        self.pump.send(frames, WARM_UP)?;
        let (began, before) = (Instant::now(), self.taken()?);
        self.pump.send(frames, time)?;
        let (seconds, after) = (began.elapsed().as_secs_f64(), self.taken()?);
        self.pump.empty()?;
        Ok(Taken {
            packets: after.packets - before.packets,
            seconds,
            cpu_ns: after.cpu_ns.saturating_sub(before.cpu_ns),
            switch_ns: after.switch_ns.saturating_sub(before.switch_ns),
        })
    }

    /// The counters since the start.
    fn taken(&self) -> Result<Taken> {
        Ok(Taken {
            packets: self.pump.taken(),
            seconds: 0.0,
            cpu_ns: self.function.usage()?.cpu_ns,
            switch_ns: self.switch.map(process_ns).transpose()?.unwrap_or_default(),
        })
    }
}

/// A container of the function that no switch knows.
struct Alone {
    engine: OciEngine,
    name: String,
    socket: PathBuf,
    pid: u32,
    tickets: u64,
}

impl Alone {
    fn start(run_dir: &Path, name: &str, file: &Path) -> Result<Alone> {
        let command_of_launcher = LauncherCommand::this_program(["launcher"]).cleaning_up_by("stop");
        let launcher = Launcher::start(command_of_launcher, run_dir)?;
        let sockets = run_dir.join(ALONE_PORT);
        let mut container = Alone {
            engine: OciEngine::start(OciConfig::at(run_dir), launcher)?,
            name: format!("inco-{name}-alone"),
            socket: sockets.join("port.sock"),
            pid: 0,
            tickets: 0,
        };
        let mut spec = ContainerSpec::new(container.name.clone(), FORWARD_IMAGE);
        spec.command = command(name).map(str::to_owned).to_vec();
        spec.env = vec![("INCO_SOCKET".to_owned(), format!("{SOCKETS}/port.sock"))];
        spec.mounts = vec![Mount {
            source: file.to_owned(),
            target: PathBuf::from(CONFIGURATION),
            read_only: true,
        }];
        spec.exchange = Some(Exchange {
            source: sockets,
            target: PathBuf::from(SOCKETS),
        });
        spec.cpu = Some(CpuQuota::of_cpus(CPUS));
        spec.memory_bytes = Some(MEMORY_MIB << 20);
        container.pid = container.request(Request::Create(Box::new(spec)))?;
        Ok(container)
    }

    fn connect(&self) -> Result<MemifPort> {
        MemifPort::connect(&self.socket, 0, LIMIT).context("the container alone does not answer")
    }

    /// Makes a request and waits for its answer. Returns the process id of a new container, else 0.
    fn request(&mut self, request: Request) -> Result<u32> {
        self.tickets += 1;
        let own = Ticket(self.tickets);
        self.engine.submit(own, request);
        let since = Instant::now();
        let mut told = Vec::new();
        loop {
            self.engine.poll(&mut told);
            for event in told.drain(..) {
                match event {
                    EngineEvent::Created { ticket, pid, .. } if ticket == own => return Ok(pid),
                    EngineEvent::Done { ticket, .. } if ticket == own => return Ok(0),
                    EngineEvent::Failed { ticket, error, .. } if ticket == own => return Err(error.into()),
                    _ => {}
                }
            }
            if since.elapsed() > LIMIT {
                bail!("the engine did not answer within {} s", LIMIT.as_secs());
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        let name = self.name.clone();
        // The launcher removes what is left.
        let _ = self.request(Request::Remove { name });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_of_a_service_is_right() {
        let text = configuration("firewall", Path::new("/tmp/a/nf.toml"));
        let read = orchestrator::load::parse(&text, "service.toml").unwrap();
        let of = &read.services[0];
        assert_eq!((of.instances.min, of.instances.max), (1, 1));
        assert_eq!((of.cpus, of.ring.slots), (Some(CPUS), RING_SLOTS));
        assert_eq!(of.command, command("firewall"));
    }

    #[test]
    fn each_function_has_packets_that_leave_it() {
        for subject in super::super::SUBJECTS {
            let Some(served) = subject.served else { continue };
            let Served {
                configuration,
                first,
                frames,
                ..
            } = served().unwrap();
            let chain = super::super::through::chain(subject.name, &configuration).unwrap();
            let filled = match first.is_empty() {
                true => Some(chain),
                false => super::super::through::Through::new(Some(chain), &first)
                    .unwrap()
                    .into_chain(),
            };
            super::super::through::Through::new(filled, &frames).unwrap();
        }
    }

    #[test]
    fn a_row_has_medians_of_ratios_within_rounds() {
        let taken = |packets, cpu_ns, switch_ns| Taken {
            packets,
            seconds: 1.0,
            cpu_ns,
            switch_ns,
        };
        let mut rounds = Rounds::default();
        rounds.add([
            taken(900_000, 90_000_000, 45_000_000),
            taken(1_000_000, 50_000_000, 0),
        ]);
        rounds.add([
            taken(400_000, 40_000_000, 20_000_000),
            taken(500_000, 40_000_000, 0),
        ]);
        rounds.add([
            taken(100_000, 10_000_000, 5_000_000),
            taken(100_000, 10_000_000, 0),
        ]);
        let row = rounds.row("forward", &Served::of("", 7, vec![vec![0; 60]]));
        assert_eq!((row.mpps, row.peer_rate, row.size), (0.4, Some(0.5), 64));
        assert_eq!((row.ratio_to_peer, row.cpu_ns_per_packet), (Some(0.9), 100.0));
        let cost = row.service.unwrap();
        assert_eq!(
            (cost.cpu_ratio_to_peer, cost.switch_cpu_ns_per_packet),
            (1.25, 50.0)
        );
        let json = serde_json::to_value(&row).unwrap();
        assert!(
            json["peer_cpu_ns_per_packet"] == 80.0 && json.get("service").is_none(),
            "{json}"
        );
    }
}
