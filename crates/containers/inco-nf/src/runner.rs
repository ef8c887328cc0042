//! The loop that gives packets to functions, and sleeps when there are none.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};
use functions::{Burst, Chain, RECEIVED_LIMIT};
use model::{Nanos, RecentTimes};
use nf_page::{NfCounters, PageWriter};

use crate::options::Run;
use crate::pace::Pacer;
use crate::page::{self, Pages};
use crate::ports::{Ports, Received};
use crate::records::Records;
use crate::reload::{self, Reloads};

/// Default time that rings are polled after the last packet, in ns: about the cost of a sleep and a wake-up.
const SPIN_NS: u64 = 20_000;
/// Housekeeping interval (connections, page, clock) under load, in ns.
const HOUSEKEEPING_NS: u64 = 5_000_000;
/// Longest sleep while the host reads the page: its heartbeat.
const HEARTBEAT: Duration = Duration::from_millis(100);
/// Retry interval while the switch does not listen, and the longest sleep meanwhile.
const CONNECT_AGAIN: Duration = Duration::from_millis(10);
/// Longest sleep while functions may have more records.
const MORE_RECORDS: Duration = Duration::from_millis(1);
/// Longest sleep otherwise.
const SLEEP_LIMIT: Duration = Duration::from_secs(5);
/// Default rest of a paced function, in us.
const REST_PACED_US: u64 = 200;
/// Pause while an output ring is full.
const FULL_REST: Duration = Duration::from_micros(100);
/// Update interval of resident memory, in ns.
const MEMORY_NS: u64 = 1_000_000_000;

fn now_ns() -> u64 {
    clock::monotonic().0
}

fn cpu_ns() -> u64 {
    clock::process_cpu().0
}

/// Resident memory in bytes, from `/proc` if mounted, else the kernel's peak value.
fn resident_bytes() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm")
        .ok()
        .and_then(|text| text.split_whitespace().nth(1)?.parse::<u64>().ok());
    match pages {
        Some(pages) => pages * rustix::param::page_size() as u64,
        None => 0,
    }
}

/// The result of a round over all rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Round {
    /// Packets were processed.
    Moved,
    /// All rings were empty.
    Dry,
    /// Packets are waiting, but an output ring is full.
    Full,
    /// The pacer requests a pause, in ns.
    Pause(u64),
}

/// Runs until SIGTERM or SIGINT.
pub(crate) fn run(run: &Run) -> Result<()> {
    let options = &run.options;
    let stop = stop_signal().context("cannot watch for signals")?;
    // Makes sleeps exact to a few us instead of 50 us; if refused they are just longer.
    let _ = rustix::thread::set_current_timer_slack(std::num::NonZero::new(1));
    let setup = options.setup(seed()?);
    // Before the configurations are read: what changes meanwhile is read again.
    let reloads = Reloads::start(&run.stages, setup).context("cannot watch the configurations")?;
    let stages = run.stages.iter().map(|of| {
        let text = reload::read(&of.configuration)?;
        let stage = of.entry.make(&text, &setup);
        stage.with_context(|| match &of.configuration {
            crate::options::Configuration::File(path) => path.display().to_string(),
            crate::options::Configuration::Text(_) => of.entry.about().name.to_owned(),
        })
    });
    let chain = Chain::new(stages.collect::<Result<Vec<_>>>()?)?;
    let ports = Ports::open(options)?;
    let pages = match &options.page {
        Some(path) => Some(Pages::bind(path)?),
        None => None,
    };
    let signals = match &options.signals {
        Some(path) => {
            Some(signal_socket(path).with_context(|| format!("cannot listen on {}", path.display()))?)
        }
        None => None,
    };
    let mut runner = Runner {
        ports,
        chain,
        burst: Burst::new(),
        reloads,
        records: Records::start(options.records.as_ref())?,
        pages,
        signals,
        stop,
        busy_ns: 0,
        times: RecentTimes::new(Nanos(now_ns())),
        pacer: options.pace_cpus.map(|cpus| Pacer::new(cpus, now_ns(), cpu_ns())),
        rest_us: options.rest_us,
        instance: options.instance_id,
        memory: (0, 0),
        next_chores: 0,
        stopped: false,
    };
    runner.work_until_stopped()?;
    runner.records.end(&mut runner.chain);
    Ok(())
}

/// A number that nobody guesses.
fn seed() -> Result<u64> {
    let mut bytes = [0; 8];
    let got = rustix::rand::getrandom(&mut bytes[..], rustix::rand::GetRandomFlags::empty());
    anyhow::ensure!(
        got.context("no random numbers")? == bytes.len(),
        "no random numbers"
    );
    Ok(u64::from_ne_bytes(bytes))
}

/// The socket of the host's manager, in the place of one that an earlier process left.
fn signal_socket(path: &Path) -> io::Result<UnixDatagram> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let socket = UnixDatagram::bind(path)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// Becomes readable on a termination signal.
fn stop_signal() -> io::Result<UnixStream> {
    let (receiver, sender) = UnixStream::pair()?;
    receiver.set_nonblocking(true)?;
    signal_hook::low_level::pipe::register(signal_hook::consts::SIGTERM, sender.try_clone()?)?;
    signal_hook::low_level::pipe::register(signal_hook::consts::SIGINT, sender)?;
    Ok(receiver)
}

struct Runner {
    ports: Ports,
    chain: Chain,
    burst: Burst,
    reloads: Option<Reloads>,
    records: Records,
    pages: Option<Pages>,
    /// Where signals come from that leave by the first port.
    signals: Option<UnixDatagram>,
    stop: UnixStream,
    busy_ns: u64,
    /// From ring to ring, of each packet.
    times: RecentTimes,
    pacer: Option<Pacer>,
    rest_us: Option<u64>,
    instance: u32,
    /// Time and value of the last reading of resident memory.
    memory: (u64, u64),
    next_chores: u64,
    stopped: bool,
}

impl Runner {
    fn work_until_stopped(&mut self) -> Result<()> {
        let mut dry_since = None;
        while !self.stopped {
            let now = now_ns();
            if now >= self.next_chores {
                self.housekeeping(now)?;
            }
            if self.chain.due().is_some_and(|due| due.0 <= now) {
                self.tick(now);
            }
            match self.round(now) {
                Round::Moved => dry_since = None,
                Round::Full => std::thread::sleep(FULL_REST),
                Round::Pause(ns) => self.pause(ns)?,
                Round::Dry => {
                    let since = *dry_since.get_or_insert(now);
                    let rest_us =
                        self.rest_us
                            .unwrap_or(if self.pacer.is_some() { REST_PACED_US } else { 0 });
                    if rest_us > 0 && since == now {
                        std::thread::sleep(Duration::from_micros(rest_us));
                    } else if rest_us == 0 && now - since < SPIN_NS {
                        std::hint::spin_loop();
                    } else {
                        self.sleep(now)?;
                        dry_since = None;
                    }
                }
            }
        }
        Ok(())
    }

    /// One burst per queue.
    fn round(&mut self, now: u64) -> Round {
        let pause = |pacer: &mut Option<Pacer>| pacer.as_mut().map_or(0, |p| p.pause(now_ns(), cpu_ns()));
        let mut round = Round::Dry;
        let mut began = now;
        for port in 0..self.ports.len() {
            for queue in 0..self.ports.queues(port) {
                match pause(&mut self.pacer) {
                    0 => {}
                    ns => return Round::Pause(ns),
                }
                match self.ports.receive(port, queue, &mut self.burst) {
                    Received::Packets => {
                        let packets = self.burst.len() as u32;
                        self.chain.process(&mut self.burst, Nanos(began));
                        spin(self.burst.spent());
                        self.ports.send(&self.burst, queue);
                        if !self.ports.messages.is_empty() {
                            self.ports.answer(port, queue, &mut self.chain, Nanos(began));
                        }
                        let ended = now_ns();
                        self.busy_ns += ended - began;
                        self.times.count(Nanos(ended - began), packets);
                        began = ended;
                        round = Round::Moved;
                    }
                    Received::Blocked if round == Round::Dry => round = Round::Full,
                    Received::Blocked | Received::Nothing => {}
                }
            }
        }
        round
    }

    /// Lets the functions do what time requires.
    fn tick(&mut self, now: u64) {
        let opposite = self.ports.opposite(0) as u8;
        for stage in 0..self.chain.stages().len() {
            if self.chain.tick(stage, &mut self.burst, opposite, Nanos(now)) {
                spin(self.burst.spent());
                self.ports.send(&self.burst, 0);
            }
        }
        self.busy_ns += now_ns() - now;
    }

    /// Pauses for the pacer; a termination signal ends the pause.
    fn pause(&mut self, ns: u64) -> Result<()> {
        self.publish();
        memif::wait(&mut [], &[self.stop.as_fd()], Duration::from_nanos(ns))?;
        Ok(())
    }

    /// Sleeps until there is work.
    fn sleep(&mut self, now: u64) -> Result<()> {
        self.publish();
        let mut longest = if self.page().is_some() {
            HEARTBEAT
        } else if self.ports.must_connect() {
            CONNECT_AGAIN
        } else {
            SLEEP_LIMIT
        };
        if self.records.take(&mut self.chain) {
            longest = longest.min(MORE_RECORDS);
        }
        if let Some(due) = self.chain.due() {
            longest = longest.min(Duration::from_nanos(due.since(Nanos(now)).0));
        }
        let mut others: Vec<BorrowedFd<'_>> = vec![self.stop.as_fd()];
        others.extend(self.pages.as_ref().map(|of| of.as_fd()));
        others.extend(self.signals.as_ref().map(|of| of.as_fd()));
        others.extend(self.reloads.as_ref().map(|of| of.as_fd()));
        if !self.ports.wait(&others, longest)? {
            // Another descriptor or the timeout ended it.
            self.next_chores = 0;
        }
        Ok(())
    }

    /// Housekeeping with system calls: links, page, configurations, termination.
    fn housekeeping(&mut self, now: u64) -> Result<()> {
        self.next_chores = now + HOUSEKEEPING_NS;
        let mut byte = [0; 8];
        match io::Read::read(&mut self.stop, &mut byte) {
            Ok(_) => {
                self.stopped = true;
                return Ok(());
            }
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                ) => {}
            Err(error) => return Err(error).context("cannot watch for signals"),
        }
        self.ports.link()?;
        self.pass_signals();
        if let Some(reloads) = &mut self.reloads {
            reloads.apply(&mut self.chain);
        }
        self.records.take(&mut self.chain);
        if let Some(pages) = &mut self.pages {
            pages.accept(&self.chain);
        }
        if let Some(limit) = self.page().and_then(PageWriter::cpu_limit)
            && let Some(pacer) = &mut self.pacer
        {
            pacer.set_cpus(limit);
        }
        self.publish();
        Ok(())
    }

    /// Sends the signals that have come by the first port. Other frames are none of this socket's business.
    fn pass_signals(&mut self) {
        let Some(socket) = &self.signals else { return };
        let mut frame = [0; signal::FRAME_BYTES + 1];
        for _ in 0..RECEIVED_LIMIT {
            let Ok(length) = socket.recv(&mut frame) else {
                return;
            };
            let frame = &frame[..length];
            if length == signal::FRAME_BYTES && signal::is_signal(frame) {
                self.ports.send_signal(frame);
            }
        }
    }

    fn page(&self) -> Option<&PageWriter> {
        self.pages.as_ref().and_then(Pages::page)
    }

    fn publish(&mut self) {
        let now = now_ns();
        if self.page().is_some() && now - self.memory.0 >= MEMORY_NS {
            self.memory = (now, resident_bytes());
        }
        if self.times.is_due(Nanos(now)) {
            self.times.turn(Nanos(now));
        }
        let took = self.times.last();
        let Some(page) = self.page() else { return };
        let ports = self.ports.counters();
        let mut counters = NfCounters {
            instance: self.instance,
            heartbeat_ns: now,
            busy_ns: self.busy_ns,
            cpu_ns: cpu_ns(),
            rss_bytes: self.memory.1,
            port_count: ports.len(),
            reloads_failed: self.reloads.as_ref().map_or(0, |of| of.failed),
            took_ns: took.map(|took| [took.p50.0, took.p99.0]),
            ..NfCounters::default()
        };
        counters.ports[..ports.len()].copy_from_slice(ports);
        page::publish(page, &self.chain, counters);
    }
}

/// Uses that much CPU time. What passes while a quota or another program has the CPU is no work.
fn spin(work: Nanos) {
    if work == Nanos::ZERO {
        return;
    }
    let end = clock::thread_cpu() + work;
    while clock::thread_cpu() < end {
        std::hint::spin_loop();
    }
}
