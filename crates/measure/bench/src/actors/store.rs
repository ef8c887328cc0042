//! Experiment 22, in part: the replicated store behind inco's switch, and memcached and redis beside it in one run. All
//! have the same clients with the same keys and values, which speak the protocol of each; what is compared is requests
//! per second of CPU time of the processes that serve.

use std::net::{IpAddr, SocketAddr};
use std::process::Stdio;
use std::time::Duration;

use actor_load::caches::{Cache, Protocol};
use actor_load::store::{Settings, Store};
use actor_load::{Heard, Load, Pace, Times, Workload};
use anyhow::{Context as _, Result, bail, ensure};
use images::EngineName;
use model::{ActorSide, Random};
use testbed::actors::{Application, Applications, Kind};
use testbed::network::Namespace;
use testbed::{Environment, Interrupt, SwitchName};

use super::{Outcome, Row};
use crate::contestant::{KilledOnDrop, median, process_ns};

const NOTE: &str = "Keys of 16 bytes drawn by Zipf 0.99 from 1 M, of which the 10,000 most frequent ones were written before; \
    values of 100 bytes; 64 clients. The CPU time of the store is that of the side with its actors. Its network is inco's \
    switch over memif; a row has its CPU time and that of the other side, which is idle, too. memcached and redis have the \
    kernel's sockets, which are in their CPU time. \
    Times count from the intended sending (open loop). The store writes to a log with replicas and to disk; memcached and \
    redis keep memory only.";

const KEYS: u64 = 1_000_000;
const WRITTEN: u64 = 10_000;
const VALUE_BYTES: usize = 100;
const CLIENTS: usize = 64;
const ROUNDS: usize = 3;
/// Of a closed loop.
const TURN: Duration = Duration::from_millis(700);
/// Of an open loop.
const OPEN: Duration = Duration::from_secs(2);
const MIX: f64 = 0.95;
const BEGIN_LIMIT: Duration = Duration::from_secs(20);
/// How long the first keys may take to be written.
const FILL_LIMIT: Duration = Duration::from_secs(20);
/// Reads of the store ÷ memcached's, per CPU time.
const LIMIT: f64 = 0.5;
const SERVER: &str = "10.79.0.1";
const SERVER_NET: &str = "10.79.0.1/24";
const CLIENT_NET: &str = "10.79.0.2/24";
const MEMCACHED_PORT: u16 = 11_211;
const REDIS_PORT: u16 = 6_379;
/// What a store is called in rows.
const ONE: &str = "store, one replica";
const THREE: &str = "store, three replicas";

/// What clients of a contestant ask.
enum Asks {
    Store(Store),
    Cache(Cache),
}

impl Asks {
    fn set_reads(&mut self, reads: f64) {
        match self {
            Asks::Store(of) => of.set_reads(reads),
            Asks::Cache(of) => of.set_reads(reads),
        }
    }
}

impl Workload for Asks {
    fn request(&mut self, place: usize, number: u64, id: u64, random: &mut Random) -> Result<Vec<u8>> {
        match self {
            Asks::Store(of) => of.request(place, number, id, random),
            Asks::Cache(of) => of.request(place, number, id, random),
        }
    }

    fn whole(&self, bytes: &[u8]) -> Option<usize> {
        match self {
            Asks::Store(of) => of.whole(bytes),
            Asks::Cache(of) => of.whole(bytes),
        }
    }

    fn hear(&self, asked: u64, body: &[u8]) -> Option<(u64, Heard)> {
        match self {
            Asks::Store(of) => of.hear(asked, body),
            Asks::Cache(of) => of.hear(asked, body),
        }
    }

    fn ended(&mut self, place: usize, begin: u64, end: u64, body: &[u8]) -> Result<()> {
        match self {
            Asks::Store(of) => of.ended(place, begin, end, body),
            Asks::Cache(of) => of.ended(place, begin, end, body),
        }
    }
}

/// Who serves.
struct Contestant {
    name: &'static str,
    load: Load<Asks>,
    pids: Vec<u32>,
    /// Of a store: inco, whose switch is the network of the sides, and the side that has no actor.
    others: Vec<u32>,
    /// Of each round: reads per second of CPU time, without that of the others and with it.
    reads: Vec<f64>,
    reads_with_others: Vec<f64>,
    /// The same of the mix.
    mixed: Vec<f64>,
    /// Requests of the mix in a second of wall time.
    offered: Vec<f64>,
}

/// CPU time of processes, in seconds.
fn cpu_s(pids: &[u32]) -> Result<f64> {
    let ns: u64 = pids.iter().map(|pid| process_ns(*pid)).sum::<Result<u64>>()?;
    Ok(ns as f64 / 1e9)
}

impl Contestant {
    fn new(name: &'static str, load: Load<Asks>, pids: Vec<u32>, others: Vec<u32>) -> Result<Contestant> {
        let mut contestant = Contestant {
            name,
            load,
            pids,
            others,
            reads: Vec::new(),
            reads_with_others: Vec::new(),
            mixed: Vec::new(),
            offered: Vec::new(),
        };
        contestant.fill()?;
        Ok(contestant)
    }

    /// Has the first keys written.
    fn fill(&mut self) -> Result<()> {
        let name = self.name;
        ensure!(self.load.wait(BEGIN_LIMIT)?, "{name} does not answer");
        let began = std::time::Instant::now();
        while self.load.counts().requests < WRITTEN {
            let lasts = Duration::from_millis(20);
            self.load.run(Pace { rate: None, lasts }, || true)?;
            if began.elapsed() > FILL_LIMIT {
                bail!(
                    "{name} has not taken {WRITTEN} keys in {} s",
                    FILL_LIMIT.as_secs()
                );
            }
        }
        Ok(())
    }

    /// A closed loop: requests per second of CPU time without that of others and with it, and in a second of wall time.
    fn turn(&mut self, reads: f64) -> Result<(f64, f64, f64)> {
        self.load.workload_mut().set_reads(reads);
        let (own, other) = (cpu_s(&self.pids)?, cpu_s(&self.others)?);
        let pace = Pace {
            rate: None,
            lasts: TURN,
        };
        let times = self.load.run(pace, || true)?;
        let own = (cpu_s(&self.pids)? - own).max(1e-9);
        let other = cpu_s(&self.others)? - other;
        let count = times.count() as f64;
        Ok((count / own, count / (own + other), times.per_second()))
    }

    fn round(&mut self) -> Result<()> {
        let (reads, with_others, _) = self.turn(1.0)?;
        let (mixed, _, offered) = self.turn(MIX)?;
        self.reads.push(reads);
        self.reads_with_others.push(with_others);
        self.mixed.push(mixed);
        self.offered.push(offered);
        Ok(())
    }

    /// An open loop.
    fn open(&mut self, rate: f64) -> Result<Times> {
        self.load.workload_mut().set_reads(MIX);
        let pace = Pace {
            rate: Some(rate),
            lasts: OPEN,
        };
        let times = self.load.run(pace, || true)?;
        self.load.settle()?;
        let lost = self.load.counts().lost;
        ensure!(lost == 0, "{}: {lost} requests have no answer", self.name);
        Ok(times)
    }
}

/// Measures it.
pub(super) fn measure() -> Result<Outcome> {
    let interrupt = Interrupt::listen()?;
    let ground = Environment::new(EngineName::Oci, SwitchName::Soft, false, interrupt.clone())?;
    let store = |name, address, port, replicas| Application {
        name,
        address,
        port,
        kind: Kind::Store { replicas },
        sides: "moves = \"manual\"\n".to_owned(),
    };
    let stores = [
        (ONE, store("one", "10.78.0.100", 7000, 1)),
        (THREE, store("three", "10.78.0.101", 7000, 3)),
    ];
    let applications = stores.clone().map(|(_, application)| application);
    let inco = Applications::start(&ground, "store", 1.0, &applications)?;
    let servers = Servers::new(inco.clients())?;
    let mut all = Vec::new();
    for (name, application) in &stores {
        all.push(store_of(&inco, name, application, &interrupt)?);
    }
    let mut note = NOTE.to_owned();
    let peers = [
        ("memcached over UDP", "memcached", Protocol::MemcachedUdp),
        ("memcached over TCP", "memcached", Protocol::Memcached),
        ("redis over TCP", "redis-server", Protocol::Redis),
    ];
    for (name, program, protocol) in peers {
        match servers.pid(program) {
            Some(pid) => all.push(peer_of(inco.clients(), name, protocol, pid)?),
            None => note.push_str(&format!(
                "\n{name} was left out: {program} is not installed (scripts/setup.sh bench)."
            )),
        }
    }
    for _ in 0..ROUNDS {
        for of in &mut all {
            interrupt.check()?;
            of.round()?;
        }
    }
    let slowest = all.iter().map(|of| median(of.offered.clone()));
    let rate = 0.5 * slowest.fold(f64::INFINITY, f64::min);
    let mut rows = Vec::new();
    for of in &mut all {
        interrupt.check()?;
        let times = of.open(rate)?;
        let unit = "requests per CPU-second";
        rows.push(Row::plain(
            format!("{}: reads", of.name),
            median(of.reads.clone()),
            unit,
        ));
        rows.push(Row::plain(
            format!("{}: 95 % reads", of.name),
            median(of.mixed.clone()),
            unit,
        ));
        for (what, share) in [("p50", 0.5), ("p99", 0.99)] {
            let case = format!("{}: {what} at {rate:.0} requests/s", of.name);
            rows.push(Row::plain(case, times.percentile_ms(share), "ms"));
        }
    }
    rows.extend(ratios(&all));
    // The load has ended; so may the servers.
    drop(all);
    drop(servers);
    inco.stop()?;
    Ok(Outcome {
        rows,
        note: note.into(),
    })
}

/// The store's reads ÷ those of the faster memcached, round by round.
fn ratios(all: &[Contestant]) -> Vec<Row> {
    let is_memcached = |of: &&Contestant| of.name.starts_with("memcached");
    let peers: Vec<&Contestant> = all.iter().filter(is_memcached).collect();
    if peers.is_empty() {
        return Vec::new();
    }
    let best = |round: usize| {
        let rates = peers.iter().filter_map(|of| of.reads.get(round));
        rates.copied().fold(0.0, f64::max)
    };
    let ratio = |rates: &[f64]| {
        let ratios = rates.iter().enumerate();
        median(
            ratios
                .map(|(round, rate)| rate / best(round))
                .collect::<Vec<f64>>(),
        )
    };
    let mut rows = Vec::new();
    for of in all.iter().filter(|of| !of.others.is_empty()) {
        let row = Row::plain(
            format!("{}: reads / those of the faster memcached", of.name),
            ratio(&of.reads),
            "ratio of rates",
        );
        rows.push(if of.name == ONE { row.at_least(LIMIT) } else { row });
        rows.push(Row::plain(
            format!(
                "{}: the same with inco's switch and the other side in its CPU time",
                of.name
            ),
            ratio(&of.reads_with_others),
            "ratio of rates",
        ));
    }
    rows
}

fn settings() -> Settings {
    Settings {
        keys: KEYS,
        reads: MIX,
        written: WRITTEN,
        value_bytes: VALUE_BYTES,
        records: false,
    }
}

/// A store, once both of its sides run.
fn store_of(
    inco: &Applications<'_>,
    name: &'static str,
    application: &Application,
    interrupt: &Interrupt,
) -> Result<Contestant> {
    let pids = sides(inco, application.name, interrupt)?;
    let (card, host) = pids.split_at(1);
    let addresses = application.addresses()?;
    let load = inco.clients().within(|| {
        let store = Store::new(settings())?;
        Load::new(Asks::Store(store), CLIENTS, &addresses)
    })?;
    let others = [host, &[inco.session().pid()]].concat();
    Contestant::new(name, load, card.to_vec(), others)
}

/// The processes of both sides, once they run.
pub(super) fn sides(inco: &Applications<'_>, service: &str, interrupt: &Interrupt) -> Result<Vec<u32>> {
    let began = std::time::Instant::now();
    loop {
        let pids = [ActorSide::Card, ActorSide::Host].map(|side| inco.pid(service, side));
        if let [Ok(Some(card)), Ok(Some(host))] = pids {
            return Ok(vec![card, host]);
        }
        interrupt.check()?;
        if began.elapsed() > BEGIN_LIMIT {
            bail!(
                "the sides of {service} do not run after {} s",
                BEGIN_LIMIT.as_secs()
            );
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn peer_of(clients: &Namespace, name: &'static str, protocol: Protocol, pid: u32) -> Result<Contestant> {
    let port = match protocol {
        Protocol::Redis => REDIS_PORT,
        Protocol::Memcached | Protocol::MemcachedUdp => MEMCACHED_PORT,
    };
    let address: IpAddr = SERVER.parse()?;
    let addresses = [SocketAddr::new(address, port)];
    let load = clients.within(|| {
        let cache = Asks::Cache(Cache::new(protocol, settings())?);
        match protocol {
            Protocol::MemcachedUdp => Load::new(cache, CLIENTS, &addresses),
            Protocol::Memcached | Protocol::Redis => Load::connected(cache, CLIENTS, &addresses),
        }
    })?;
    Contestant::new(name, load, vec![pid], Vec::new())
}

/// The other servers, in a network of their own beside the clients'.
struct Servers {
    running: Vec<(&'static str, KilledOnDrop)>,
    _network: Namespace,
}

impl Servers {
    /// Starts those that are installed.
    fn new(clients: &Namespace) -> Result<Servers> {
        let network = Namespace::new(format!("inco-servers-{}", std::process::id()))?;
        clients.connect("servers", &network, "eth0")?;
        clients.ip(&["address", "add", CLIENT_NET, "dev", "servers"])?;
        clients.ip(&["link", "set", "servers", "up"])?;
        network.ip(&["address", "add", SERVER_NET, "dev", "eth0"])?;
        network.ip(&["link", "set", "eth0", "up"])?;
        let (memcached, redis) = (MEMCACHED_PORT.to_string(), REDIS_PORT.to_string());
        let all: [(&str, Vec<&str>); 2] = [
            (
                "memcached",
                vec![
                    "-u", "root", "-t", "1", "-m", "256", "-l", SERVER, "-p", &memcached, "-U", &memcached,
                ],
            ),
            (
                "redis-server",
                vec![
                    "--bind",
                    SERVER,
                    "--port",
                    &redis,
                    "--save",
                    "",
                    "--appendonly",
                    "no",
                    "--protected-mode",
                    "no",
                ],
            ),
        ];
        let mut running = Vec::new();
        for (program, arguments) in all {
            if !is_installed(program) {
                continue;
            }
            let mut command = network.network().server(program);
            command.args(arguments).stdin(Stdio::null());
            command.stdout(Stdio::null()).stderr(Stdio::null());
            let child = command
                .spawn()
                .with_context(|| format!("cannot start {program}"))?;
            running.push((program, KilledOnDrop::new(child)));
            wait_for(clients, program)?;
        }
        Ok(Servers {
            running,
            _network: network,
        })
    }

    fn pid(&self, program: &str) -> Option<u32> {
        let of = self.running.iter().find(|(name, _)| *name == program);
        of.map(|(_, running)| running.pid())
    }
}

/// Waits until a server listens.
fn wait_for(clients: &Namespace, program: &str) -> Result<()> {
    let port = match program {
        "memcached" => MEMCACHED_PORT,
        _ => REDIS_PORT,
    };
    clients.within(|| {
        let began = std::time::Instant::now();
        while std::net::TcpStream::connect((SERVER, port)).is_err() {
            if began.elapsed() > BEGIN_LIMIT {
                bail!("{program} does not listen after {} s", BEGIN_LIMIT.as_secs());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    })
}

/// Whether a program is in one of the folders of programs.
fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_store_is_judged_by_the_faster_memcached_of_each_round() {
        let of = |name, reads: [f64; 3], others: Vec<u32>| {
            let load = Load::new(
                Asks::Store(Store::new(settings()).unwrap()),
                1,
                &[(SERVER.parse::<IpAddr>().unwrap(), 1).into()],
            );
            Contestant {
                name,
                load: load.unwrap(),
                pids: Vec::new(),
                others,
                reads: reads.to_vec(),
                reads_with_others: reads.map(|of| of / 2.0).to_vec(),
                mixed: Vec::new(),
                offered: Vec::new(),
            }
        };
        let all = [
            of(ONE, [60.0, 60.0, 60.0], vec![1]),
            of("memcached over UDP", [100.0, 50.0, 100.0], Vec::new()),
            of("memcached over TCP", [80.0, 80.0, 200.0], Vec::new()),
            of("redis over TCP", [999.0; 3], Vec::new()),
        ];
        let rows = ratios(&all);
        assert_eq!((rows[0].value, rows[0].met), (0.6, Some(true)));
        assert_eq!((rows[1].value, rows[1].met), (0.3, None));
        assert_eq!(rows.len(), 2);
        assert!(ratios(&all[..1]).is_empty());
    }
}
