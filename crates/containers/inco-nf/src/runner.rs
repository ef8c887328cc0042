//! The function `forward`: returns every packet, and sleeps when idle.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use memif::{Client, ClientConfig, ControlEvent, Link, Listener, RingConfig, RxQueue, ServerConfig};
use nf_page::{NfCounters, PageListener, PageWriter, PortCounters};

use crate::interface::Interface;
use crate::options::{Forward, Role};
use crate::pace::Pacer;

/// Packets per queue before the next queue and the pacer have their turn.
const BURST: usize = 32;
/// Free slots that an output ring needs before a packet is taken: enough for the longest packet in buffers of 2 KiB.
const SLOTS_FREE_MIN: u32 = 32;
/// Smallest expected buffer, in bytes: bounds the slots of a packet.
const BUFFER_BYTES_MIN: u32 = 1024;
/// Queue pairs per port.
const QUEUES_LIMIT: u16 = 4;
/// Default time that rings are polled after the last packet, in ns: about the cost of a sleep and a wake-up.
const SPIN_NS: u64 = 20_000;
/// Housekeeping interval (connections, page, clock) under load, in ns.
const HOUSEKEEPING_NS: u64 = 5_000_000;
/// Longest sleep while the host reads the page: its heartbeat.
const HEARTBEAT: Duration = Duration::from_millis(100);
/// Retry interval while the switch does not listen, and the longest sleep meanwhile.
const CONNECT_AGAIN: Duration = Duration::from_millis(10);
/// Handshake timeout of a listening switch. Generous, because DPDK 22.11 crashes if its peer leaves before
/// HELLO.
const HANDSHAKE: Duration = Duration::from_secs(30);
/// Longest sleep otherwise.
const SLEEP_LIMIT: Duration = Duration::from_secs(5);
/// Default rest of a paced function, in us.
const REST_PACED_US: u64 = 200;
/// Pause while an output ring is full.
const FULL_REST: Duration = Duration::from_micros(100);
/// Update interval of resident memory, in ns.
const MEMORY_NS: u64 = 1_000_000_000;
/// Longest packet, in bytes.
const PACKET_BYTES_LIMIT: usize = memif::MAX_PACKET_BYTES;

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
    /// Packets were forwarded.
    Moved,
    /// All rings were empty.
    Dry,
    /// Packets are waiting, but an output ring is full.
    Full,
    /// The pacer requests a pause, in ns.
    Pause(u64),
}

/// Runs until SIGTERM or SIGINT.
pub(crate) fn run(options: &Forward) -> Result<()> {
    let stop = stop_signal().context("cannot watch for signals")?;
    // Makes sleeps exact to a few us instead of 50 us; if refused they are just longer.
    let _ = rustix::thread::set_current_timer_slack(std::num::NonZero::new(1));
    let interfaces = options.interfaces.iter().map(|name| Interface::open(name));
    let interfaces = interfaces.collect::<Result<Vec<_>>>()?;
    let ends = match options.role {
        _ if !interfaces.is_empty() => LinkSource::Interfaces(interfaces),
        Role::Server => {
            let mut config = ServerConfig::new("inco-nf");
            config.interface_ids = Some((0..u32::from(options.ports)).collect());
            config.max_queues = QUEUES_LIMIT;
            let listener = Listener::bind(&options.socket, config)
                .with_context(|| format!("cannot listen on {}", options.socket.display()))?;
            LinkSource::Server(listener)
        }
        Role::Client => LinkSource::Client(ClientConfig {
            ring: RingConfig {
                log2_slots: options.ring_slots.ilog2() as u8,
                buffer_bytes: options.buffer_bytes,
                queues: options.queues,
            },
            name: "inco-nf".to_owned(),
            ..ClientConfig::new(&options.socket, 0)
        }),
    };
    let pages = match &options.page {
        Some(path) => Some(PageListener::bind(path)?),
        None => None,
    };
    let signals = match &options.signals {
        Some(path) => {
            Some(signal_socket(path).with_context(|| format!("cannot listen on {}", path.display()))?)
        }
        None => None,
    };
    let mut runner = Runner {
        ends,
        pages,
        signals,
        stop,
        links: (0..options.ports).map(|_| None).collect(),
        work: Work {
            cross: options.cross,
            stamp: options.stamp.then_some(options.instance_id),
            cost: Cost {
                packet_ns: options.cost_ns,
                byte_ns: options.cost_ns_per_byte,
            },
            ports: [PortCounters::default(); 2],
            busy_ns: 0,
            packet: vec![0; PACKET_BYTES_LIMIT].into_boxed_slice(),
        },
        page: None,
        pacer: options.pace_cpus.map(|cpus| Pacer::new(cpus, now_ns(), cpu_ns())),
        rest_us: options.rest_us,
        instance: options.instance_id,
        memory: (0, 0),
        next_chores: 0,
        stopped: false,
    };
    runner.work_until_stopped()
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

/// How links to the switch are made.
enum LinkSource {
    /// The switch connects.
    Server(Listener),
    /// This process connects, to each interface, with this configuration.
    Client(ClientConfig),
    /// No links: the data ports are network interfaces.
    Interfaces(Vec<Interface>),
}

struct Runner {
    ends: LinkSource,
    pages: Option<PageListener>,
    /// Where signals come from that leave by the first port.
    signals: Option<UnixDatagram>,
    stop: UnixStream,
    /// By port; `None` while the switch is not connected.
    links: Vec<Option<Link>>,
    work: Work,
    page: Option<PageWriter>,
    pacer: Option<Pacer>,
    rest_us: Option<u64>,
    instance: u32,
    /// Time and value of the last reading of resident memory.
    memory: (u64, u64),
    next_chores: u64,
    stopped: bool,
}

/// The packet processing with its counters.
struct Work {
    cross: bool,
    stamp: Option<u32>,
    cost: Cost,
    ports: [PortCounters; 2],
    busy_ns: u64,
    packet: Box<[u8]>,
}

/// The simulated work for a packet, in nanoseconds.
#[derive(Clone, Copy, Debug)]
struct Cost {
    packet_ns: u64,
    byte_ns: f64,
}

impl Cost {
    fn of(self, bytes: usize) -> u64 {
        self.packet_ns + (self.byte_ns * bytes as f64) as u64
    }
}

impl Runner {
    fn work_until_stopped(&mut self) -> Result<()> {
        let mut dry_since = None;
        while !self.stopped {
            let now = now_ns();
            if now >= self.next_chores {
                self.housekeeping(now)?;
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
                        self.sleep()?;
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
        for port in 0..self.links.len() {
            let queues = match &self.ends {
                LinkSource::Interfaces(_) => 1,
                LinkSource::Server(_) | LinkSource::Client(_) => {
                    self.links[port].as_ref().map_or(0, |link| link.queues.len())
                }
            };
            for queue in 0..queues {
                match pause(&mut self.pacer) {
                    0 => {}
                    ns => return Round::Pause(ns),
                }
                let burst = match &self.ends {
                    LinkSource::Interfaces(interfaces) => self.work.interface_burst(interfaces, port),
                    LinkSource::Server(_) | LinkSource::Client(_) => {
                        self.work.burst(&mut self.links, port, queue)
                    }
                };
                match burst {
                    Round::Moved => {
                        let ended = now_ns();
                        self.work.busy_ns += ended - began;
                        began = ended;
                        round = Round::Moved;
                    }
                    Round::Full if round == Round::Dry => round = Round::Full,
                    _ => {}
                }
            }
        }
        round
    }

    /// Pauses for the pacer; a termination signal ends the pause.
    fn pause(&mut self, ns: u64) -> Result<()> {
        self.publish();
        memif::wait(&mut [], &[self.stop.as_fd()], Duration::from_nanos(ns))?;
        Ok(())
    }

    /// Sleeps until there is work.
    fn sleep(&mut self) -> Result<()> {
        self.publish();
        let mut longest = if self.page.is_some() {
            HEARTBEAT
        } else {
            SLEEP_LIMIT
        };
        let mut queues: Vec<&mut RxQueue> = Vec::new();
        let mut others: Vec<BorrowedFd<'_>> = vec![self.stop.as_fd()];
        match &self.ends {
            LinkSource::Server(listener) => others.push(listener.as_fd()),
            LinkSource::Client(_) if self.links.iter().any(Option::is_none) => longest = CONNECT_AGAIN,
            LinkSource::Client(_) => {}
            LinkSource::Interfaces(interfaces) => others.extend(interfaces.iter().map(AsFd::as_fd)),
        }
        others.extend(self.pages.as_ref().map(AsFd::as_fd));
        others.extend(self.signals.as_ref().map(AsFd::as_fd));
        for link in self.links.iter_mut().flatten() {
            others.push(link.control.as_fd());
            queues.extend(link.queues.iter_mut().map(|pair| &mut pair.rx));
        }
        memif::wait(&mut queues, &others, longest)?;
        let packets = queues.iter_mut().any(|queue| queue.available() > 0);
        if !packets {
            // Otherwise another descriptor or the timeout ended it.
            self.next_chores = 0;
        }
        Ok(())
    }

    /// Housekeeping with system calls: links, page, termination.
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
        for slot in &mut self.links {
            let gone = slot.as_mut().is_some_and(|link| {
                !matches!(link.control.poll(), Ok(ControlEvent::None))
                    || link
                        .queues
                        .iter()
                        .any(|pair| pair.tx.is_violated() || pair.rx.is_violated())
            });
            if gone {
                *slot = None;
            }
        }
        self.link()?;
        self.pass_signals();
        if let Some(pages) = &self.pages {
            // An invalid offer is the host's error and no reason to stop forwarding.
            if let Ok(Some(page)) = pages.accept() {
                self.page = Some(page);
            }
        }
        if let Some(limit) = self.page.as_ref().and_then(PageWriter::cpu_limit)
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
        for _ in 0..BURST {
            let Ok(length) = socket.recv(&mut frame) else {
                return;
            };
            let frame = &frame[..length];
            if length != signal::FRAME_BYTES || !signal::is_signal(frame) {
                continue;
            }
            // Without a link there is nobody to tell.
            if let LinkSource::Interfaces(interfaces) = &self.ends {
                let _sent = interfaces.first().map(|port| port.send(frame));
            } else if let Some(Some(link)) = self.links.first_mut()
                && let Some(pair) = link.queues.first_mut()
                && pair.tx.push(frame).is_ok()
            {
                pair.tx.flush();
            }
        }
    }

    /// Makes missing links.
    fn link(&mut self) -> Result<()> {
        match &mut self.ends {
            LinkSource::Server(listener) => {
                while let Some(link) = listener.accept(Duration::ZERO)? {
                    if let Some(slot) = self.links.get_mut(link.interface_id as usize) {
                        *slot = Some(link);
                    }
                }
            }
            LinkSource::Client(config) => {
                for (id, slot) in (0..).zip(&mut self.links).filter(|(_, slot)| slot.is_none()) {
                    config.interface_id = id;
                    match Client::connect(config, HANDSHAKE) {
                        Ok(link) => *slot = Some(link),
                        Err(memif::Error::Configuration(what)) => anyhow::bail!(what),
                        // Not listening yet, or still ending the last link: retry later.
                        Err(_) => return Ok(()),
                    }
                }
            }
            LinkSource::Interfaces(_) => {}
        }
        Ok(())
    }

    fn publish(&mut self) {
        let Some(page) = &self.page else { return };
        let now = now_ns();
        if now - self.memory.0 >= MEMORY_NS {
            self.memory = (now, resident_bytes());
        }
        let mut counters = NfCounters {
            instance: self.instance,
            heartbeat_ns: now,
            busy_ns: self.work.busy_ns,
            cpu_ns: cpu_ns(),
            rss_bytes: self.memory.1,
            port_count: self.links.len(),
            ..NfCounters::default()
        };
        counters.ports[..2].copy_from_slice(&self.work.ports);
        page.publish(&counters);
    }
}

impl Work {
    /// Forwards up to [`BURST`] packets of one queue. If the output ring is full it takes none: they stay
    /// visible to the switch.
    fn burst(&mut self, links: &mut [Option<Link>], port: usize, queue: usize) -> Round {
        let out = if self.cross { 1 - port } else { port };
        // The queue is taken out, so that both ends can be borrowed.
        let (low, high) = links.split_at_mut(1);
        let (from, to) = match (port, out) {
            (0, 1) => (low[0].as_mut(), high[0].as_mut()),
            (1, 0) => (high[0].as_mut(), low[0].as_mut()),
            _ => (
                if port == 0 {
                    low[0].as_mut()
                } else {
                    high[0].as_mut()
                },
                None,
            ),
        };
        let Some(from) = from else { return Round::Dry };
        let (rx, mut tx) = match to {
            Some(to) => {
                let queue_out = queue % to.queues.len();
                (&mut from.queues[queue].rx, Some(&mut to.queues[queue_out].tx))
            }
            None => {
                let pair = &mut from.queues[queue];
                (&mut pair.rx, (out == port).then_some(&mut pair.tx))
            }
        };
        if rx.available() == 0 {
            return Round::Dry;
        }
        let counters = &mut self.ports;
        let mut moved = Round::Dry;
        let mut room = 0;
        for _ in 0..BURST {
            if let Some(tx) = &mut tx {
                let least = SLOTS_FREE_MIN.min(tx.slots() / 2);
                if room < least {
                    room = tx.free();
                }
                if room < least {
                    if moved == Round::Dry {
                        moved = Round::Full;
                    }
                    break;
                }
            }
            let len = match rx.pop(&mut self.packet) {
                None => break,
                Some(Ok(len)) => len,
                Some(Err(_)) => {
                    counters[port].dropped_malformed += 1;
                    moved = Round::Moved;
                    continue;
                }
            };
            moved = Round::Moved;
            counters[port].packets_in += 1;
            counters[port].bytes_in += len as u64;
            room = room.saturating_sub(1 + len as u32 / BUFFER_BYTES_MIN);
            let packet = &mut self.packet[..len];
            if let Some(instance) = self.stamp
                && stamp::stamp_instance(packet, instance)
            {
                counters[port].stamped += 1;
            }
            spin(self.cost.of(packet.len()));
            match tx.as_mut().map(|tx| tx.push(packet)) {
                Some(Ok(())) => {
                    counters[out].packets_out += 1;
                    counters[out].bytes_out += len as u64;
                }
                Some(Err(_)) => counters[port].dropped_ring_full += 1,
                None => counters[port].dropped_unconnected += 1,
            }
        }
        rx.release();
        if let Some(tx) = tx {
            tx.flush();
        }
        moved
    }
}

impl Work {
    /// Forwards up to [`BURST`] packets received by an interface.
    fn interface_burst(&mut self, interfaces: &[Interface], port: usize) -> Round {
        let out = if self.cross { 1 - port } else { port };
        let (Some(from), Some(to)) = (interfaces.get(port), interfaces.get(out)) else {
            return Round::Dry;
        };
        let mut moved = Round::Dry;
        for _ in 0..BURST {
            let Some(len) = from.receive(&mut self.packet) else {
                break;
            };
            moved = Round::Moved;
            self.ports[port].packets_in += 1;
            self.ports[port].bytes_in += len as u64;
            let packet = &mut self.packet[..len];
            if let Some(instance) = self.stamp
                && stamp::stamp_instance(packet, instance)
            {
                self.ports[port].stamped += 1;
            }
            spin(self.cost.of(packet.len()));
            if to.send(packet) {
                self.ports[out].packets_out += 1;
                self.ports[out].bytes_out += len as u64;
            } else {
                self.ports[port].dropped_ring_full += 1;
            }
        }
        moved
    }
}

fn spin(ns: u64) {
    if ns == 0 {
        return;
    }
    let end = now_ns() + ns;
    while now_ns() < end {
        std::hint::spin_loop();
    }
}
