//! Round-trip packet rate to another process: this crate on both ends, this crate with DPDK's driver in both
//! roles, and two DPDK drivers doing the same work.
//!
//! ```text
//! cargo run --release -p memif --example round_trip -- [PAIR…] [--seconds S] [--bytes B] [--log2-slots N] [--rounds R]
//! ```
//! `PAIR` is `ours`, `ours-back` (the generator is the server), `testpmd-server`, `testpmd-client` or
//! `pmd-pair`; by default all of them in turn, each round. `--realtime` runs the two busy threads at
//! real-time priority, so that other load does not count (needs the privilege, and `chrt`). Generator and
//! forwarder have a CPU each. The generator keeps the ring full and counts returned packets.

use std::error::Error;
use std::hint::black_box;
use std::io::{Write, stdout};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use memif::{Client, ClientConfig, Link, Listener, ServerConfig};
use rustix::thread::{CpuSet, sched_setaffinity};

#[path = "../tests/testpmd/mod.rs"]
mod testpmd;

use testpmd::{Options, Testpmd};

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Packets pushed between two reads of the returned ones.
const BURST: usize = 64;

struct Settings {
    pairs: Vec<String>,
    seconds: f64,
    bytes: usize,
    log2_slots: u8,
    rounds: usize,
    realtime: bool,
    socket: Option<String>,
}

fn main() -> Outcome<()> {
    let mut settings = Settings {
        pairs: Vec::new(),
        seconds: 1.0,
        bytes: 64,
        log2_slots: 10,
        rounds: 3,
        realtime: false,
        socket: None,
    };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or(format!("{argument} needs a value"));
        match argument.as_str() {
            "--seconds" => settings.seconds = value()?.parse()?,
            "--bytes" => settings.bytes = value()?.parse()?,
            "--log2-slots" => settings.log2_slots = value()?.parse()?,
            "--rounds" => settings.rounds = value()?.parse()?,
            "--realtime" => settings.realtime = true,
            "--socket" => settings.socket = Some(value()?),
            pair => settings.pairs.push(pair.to_owned()),
        }
    }
    match (settings.pairs.first().map(String::as_str), &settings.socket) {
        (Some("forward-server"), Some(socket)) => {
            pin(1)?;
            let mut listener = Listener::bind(socket, ServerConfig::new("forwarder"))?;
            return forward(accept(&mut listener)?);
        }
        (Some("forward-client"), Some(socket)) => {
            pin(1)?;
            return forward(connect(Path::new(socket), &settings)?);
        }
        _ => {}
    }
    if settings.pairs.is_empty() {
        settings.pairs = [
            "ours",
            "ours-back",
            "testpmd-server",
            "testpmd-client",
            "pmd-pair",
        ]
        .map(str::to_owned)
        .into();
    }
    let mut out = stdout().lock();
    for round in 0..settings.rounds {
        for pair in &settings.pairs {
            // On a thread of its own: its CPU and priority must not be inherited by the next pair.
            let rate = std::thread::scope(|scope| {
                let measured = std::thread::Builder::new()
                    .name("pair-worker".to_owned())
                    .spawn_scoped(scope, || {
                        measure(pair, &settings).map_err(|error| error.to_string())
                    })?;
                measured
                    .join()
                    .map_err(|_| "a measurement panicked".to_owned())
                    .flatten()
                    .map_err(Box::<dyn Error>::from)
            })?;
            writeln!(out, "round {round} {pair:15} {:7.2} Mpps", rate / 1e6)?;
        }
    }
    Ok(())
}

fn measure(pair: &str, settings: &Settings) -> Outcome<f64> {
    let directory = tempfile::tempdir()?;
    let socket = directory.path().join("memif.sock");
    let mut options = Options::new("server", &socket);
    options.log2_slots = settings.log2_slots;
    match pair {
        "ours" => {
            let forwarder = spawn("forward-server", &socket, settings)?;
            pin(0)?;
            generate(connect(&socket, settings)?, settings, forwarder.0.id())
        }
        "ours-back" => {
            let mut listener = Listener::bind(&socket, ServerConfig::new("generator"))?;
            let forwarder = spawn("forward-client", &socket, settings)?;
            pin(0)?;
            generate(accept(&mut listener)?, settings, forwarder.0.id())
        }
        "testpmd-server" => {
            let forwarder = Testpmd::start(&options)?;
            pin(0)?;
            generate(connect(&socket, settings)?, settings, forwarder.id())
        }
        "testpmd-client" => {
            let mut listener = Listener::bind(&socket, ServerConfig::new("generator"))?;
            options.role = "client";
            let forwarder = Testpmd::start(&options)?;
            pin(0)?;
            generate(accept(&mut listener)?, settings, forwarder.id())
        }
        "pmd-pair" => pmd_pair(options, settings),
        other => Err(format!("unknown pair {other}").into()),
    }
}

/// Two testpmd processes; one injects 1,024 packets, which then circulate.
fn pmd_pair(server: Options<'_>, settings: &Settings) -> Outcome<f64> {
    let size = format!("--txpkts={}", settings.bytes);
    let forwarder = Testpmd::start(&server)?;
    wait_for(server.socket)?;
    let arguments = ["--forward-mode=io", &size];
    let mut client = Testpmd::start(&Options {
        role: "client",
        cpu: 0,
        arguments: &arguments,
        interactive: true,
        ..server
    })?;
    for testpmd in [&forwarder, &client] {
        wait_until(|| testpmd.output().contains("Connected."))?;
    }
    // The first packets are lost if the other end does not forward yet.
    let mut reports = 0;
    for _ in 0..10 {
        client.command("start tx_first 32")?;
        std::thread::sleep(Duration::from_millis(300));
        client.command("show port stats 0")?;
        wait_until(|| counts(&client.output()).len() > reports)?;
        if counts(&client.output())[reports] > 2048.0 {
            break;
        }
        client.command("stop")?;
        // "stop" reports the same figures per port and in total.
        std::thread::sleep(Duration::from_millis(300));
        reports = counts(&client.output()).len();
    }
    if settings.realtime {
        set_realtime(forwarder.id())?;
        set_realtime(client.id())?;
    }
    let mut received = [0.0; 2];
    let mut at = [Instant::now(); 2];
    for sample in 0..2 {
        reports = counts(&client.output()).len();
        client.command("show port stats 0")?;
        wait_until(|| counts(&client.output()).len() > reports)?;
        at[sample] = Instant::now();
        received[sample] = counts(&client.output())[reports];
        if sample == 0 {
            std::thread::sleep(Duration::from_secs_f64(settings.seconds));
        }
    }
    Ok((received[1] - received[0]) / (at[1] - at[0]).as_secs_f64())
}

/// The packet counts in the lines "RX-packets: N …" of testpmd's reports.
fn counts(output: &str) -> Vec<f64> {
    let count = |line: &str| -> Option<f64> {
        line.trim()
            .strip_prefix("RX-packets:")?
            .split_whitespace()
            .next()?
            .parse()
            .ok()
    };
    output.lines().filter_map(count).collect()
}

/// Waits up to ten seconds.
fn wait_until(condition: impl Fn() -> bool) -> Outcome<()> {
    for _ in 0..2000 {
        if condition() {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Err("testpmd was not ready within ten seconds".into())
}

fn spawn(role: &str, socket: &Path, settings: &Settings) -> Outcome<Killed> {
    let child = Command::new(std::env::current_exe()?)
        .args([role, "--log2-slots", &settings.log2_slots.to_string(), "--socket"])
        .arg(socket)
        .stdin(Stdio::null())
        .spawn()?;
    Ok(Killed(child))
}

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn wait_for(socket: &Path) -> Outcome<()> {
    wait_until(|| socket.exists())
}

fn connect(socket: &Path, settings: &Settings) -> Outcome<Link> {
    let mut config = ClientConfig::new(socket, 0);
    config.ring.log2_slots = settings.log2_slots;
    Ok(Client::connect_when_ready(&config, Duration::from_secs(10))?)
}

fn accept(listener: &mut Listener) -> Outcome<Link> {
    Ok(listener
        .accept(Duration::from_secs(10))?
        .ok_or("no client connected")?)
}

/// Gives the busy thread of a process real-time priority: its only one, or testpmd's forwarding thread.
fn set_realtime(process: u32) -> Outcome<()> {
    let tasks: Vec<_> = std::fs::read_dir(format!("/proc/{process}/task"))?.collect::<Result<_, _>>()?;
    for task in &tasks {
        let name = std::fs::read_to_string(task.path().join("comm"))?;
        if tasks.len() == 1 || name.contains("-worker") {
            Command::new("chrt")
                .args(["--fifo", "--pid", "10"])
                .arg(task.file_name())
                .status()?;
        }
    }
    Ok(())
}

fn pin(cpu: usize) -> Outcome<()> {
    let cpus = std::thread::available_parallelism()?.get().max(2);
    let mut set = CpuSet::new();
    set.set(cpu % cpus);
    Ok(sched_setaffinity(None, &set)?)
}

fn forward(mut link: Link) -> Outcome<()> {
    let queue = &mut link.queues[0];
    let mut idle = 0_u32;
    loop {
        if queue.rx.forward_to(&mut queue.tx, 256) > 0 {
            queue.tx.flush();
            idle = 0;
        } else {
            idle += 1;
            if idle.is_multiple_of(65_536) && link.control.poll()? != memif::ControlEvent::None {
                return Ok(());
            }
            std::hint::spin_loop();
        }
    }
}

fn generate(mut link: Link, settings: &Settings, forwarder: u32) -> Outcome<f64> {
    let queue = &mut link.queues[0];
    let mut frame = vec![0_u8; settings.bytes];
    frame[12..14].copy_from_slice(&[0x08, 0x00]);
    let mut buffer = vec![0_u8; 2048];
    let mut returned = 0_u64;
    let mut begin = Instant::now();
    let mut hurried = false;
    let warm = Duration::from_millis(300);
    let mut from = None;
    loop {
        for _ in 0..32 {
            for _ in 0..BURST {
                if queue.tx.push(&frame).is_err() {
                    break;
                }
            }
            queue.tx.flush();
            for _ in 0..2 * BURST {
                match queue.rx.pop(&mut buffer) {
                    Some(Ok(length)) => {
                        assert_eq!(length, settings.bytes, "a packet returned with another length");
                        returned += 1;
                    }
                    Some(Err(error)) => return Err(error.into()),
                    None => break,
                }
                black_box(&mut buffer);
            }
            queue.rx.release();
        }
        if !hurried {
            // Start at the first packet: before it, testpmd handles CONNECTED on a thread without priority.
            if returned > 0 {
                hurried = true;
                if settings.realtime {
                    set_realtime(forwarder)?;
                    set_realtime(std::process::id())?;
                }
                begin = Instant::now();
            } else if begin.elapsed() > Duration::from_secs(10) {
                return Err("no packet returned".into());
            }
            continue;
        }
        let now = begin.elapsed();
        match from {
            None if now > warm => from = Some((now, returned)),
            Some((since, before)) if (now - since).as_secs_f64() >= settings.seconds => {
                return Ok((returned - before) as f64 / (now - since).as_secs_f64());
            }
            _ => {}
        }
    }
}
