//! The data ports: memif links or network interfaces. They fill bursts and send what leaves them.

use std::os::fd::{AsFd as _, BorrowedFd};
use std::time::Duration;

use anyhow::{Context as _, Result};
use functions::{Burst, Chain, Extent, RECEIVED_LIMIT};
use memif::{
    Client, ClientConfig, ControlEvent, Link, Listener, QueuePair, RingConfig, RxQueue, ServerConfig, TxQueue,
};
use model::Nanos;
use nf_page::PortCounters;
use packet_socket::Interface;

use crate::moves::Messages;
use crate::options::{Options, Role};

/// Ports of an instance, at most.
const PORTS: usize = 2;
/// Free slots that an output ring needs before a packet is taken: enough for the longest packet in buffers of 2 KiB.
const SLOTS_FREE_MIN: u32 = 32;
/// Smallest expected buffer, in bytes: bounds the slots of a packet.
const BUFFER_BYTES_MIN: u32 = 1024;
/// Queue pairs per port.
const QUEUES_LIMIT: u16 = 4;
/// Handshake timeout of a listening switch. Generous, because DPDK 22.11 crashes if its peer leaves before
/// HELLO.
const HANDSHAKE: Duration = Duration::from_secs(30);

/// How long frames wait that an interface did not take.
const SEND_AGAIN: Duration = Duration::from_millis(1);

/// What a port had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Received {
    /// Packets, or one that was none.
    Packets,
    /// Nothing.
    Nothing,
    /// Packets are waiting, but the output ring is full.
    Blocked,
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

/// The data ports with their counters.
pub(crate) struct Ports {
    source: LinkSource,
    /// By port; `None` while the switch is not connected.
    links: Vec<Option<Link>>,
    counters: [PortCounters; PORTS],
    crossed: bool,
    /// What the last burst had of the switch itself.
    pub(crate) messages: Messages,
}

impl Ports {
    /// Opens interfaces or sockets; the links come later.
    pub(crate) fn open(options: &Options) -> Result<Ports> {
        let interfaces = options.interfaces.iter();
        let interfaces = interfaces.map(|name| Interface::open(name, options.ring_slots));
        let interfaces = interfaces.collect::<Result<Vec<_>, _>>()?;
        let source = match options.role {
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
        Ok(Ports {
            source,
            links: (0..options.ports).map(|_| None).collect(),
            counters: [PortCounters::default(); PORTS],
            crossed: options.cross,
            messages: Messages::new(),
        })
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.links.len()
    }

    /// Their counters.
    pub(crate) fn counters(&self) -> &[PortCounters] {
        &self.counters[..self.links.len()]
    }

    /// Queues of a port; none while it is not connected.
    pub(crate) fn queues(&self, port: usize) -> usize {
        match &self.source {
            LinkSource::Interfaces(_) => 1,
            LinkSource::Server(_) | LinkSource::Client(_) => {
                self.links[port].as_ref().map_or(0, |link| link.queues.len())
            }
        }
    }

    /// The port by which packets of a port leave where nothing else is decided.
    pub(crate) fn opposite(&self, port: usize) -> usize {
        if self.crossed { 1 - port } else { port }
    }

    /// Takes up to a burst from a queue. If the output ring is full it takes none: they stay visible to the switch.
    pub(crate) fn receive(&mut self, port: usize, queue: usize, burst: &mut Burst) -> Received {
        let out = self.opposite(port);
        burst.begin(port as u8, out as u8);
        let counters = &mut self.counters[port];
        if let LinkSource::Interfaces(interfaces) = &mut self.source {
            let Some(from) = interfaces.get_mut(port) else {
                return Received::Nothing;
            };
            let malformed = &mut counters.dropped_malformed;
            while let Some(len) = burst.receive(|room| from.receive(room, malformed).unwrap_or(0)) {
                counters.packets_in += 1;
                counters.bytes_in += len as u64;
            }
            return match burst.is_empty() {
                true => Received::Nothing,
                false => Received::Packets,
            };
        }
        // Without a link there, packets are taken and have nowhere to go.
        let (mut room, least) = match output(&mut self.links, out, queue) {
            Some(tx) => (tx.free(), SLOTS_FREE_MIN.min(tx.slots() / 2)),
            None => (u32::MAX, 0),
        };
        let Some(rx) = pair(&mut self.links, port, queue).map(|pair| &mut pair.rx) else {
            return Received::Nothing;
        };
        if rx.available() == 0 {
            return Received::Nothing;
        }
        if room < least {
            return Received::Blocked;
        }
        let invalid = |rx: &RxQueue| rx.counters().bad_descriptors + rx.counters().too_large;
        let before = invalid(rx);
        // A switch connects to its instances; what this process has connected to may be anybody's network.
        let mut messages = matches!(self.source, LinkSource::Server(_)).then_some(&mut self.messages);
        let fits = |len: usize| {
            let fits = room >= least;
            room = room.saturating_sub(1 + len as u32 / BUFFER_BYTES_MIN);
            fits
        };
        rx.take_burst_while(RECEIVED_LIMIT, fits, |found| {
            let copied = burst.receive(|room| {
                let frame = room.get_mut(..found.len()).unwrap_or_default();
                let is_packet = found.copy_to(frame) && !messages.as_mut().is_some_and(|of| of.take(frame));
                if is_packet { found.len() } else { 0 }
            });
            if let Some(len) = copied {
                counters.packets_in += 1;
                counters.bytes_in += len as u64;
            }
        });
        counters.dropped_malformed += invalid(rx) - before;
        Received::Packets
    }

    /// Gives the slots of received packets back, and sends what leaves a burst. Losses count at the port from which the
    /// burst came.
    pub(crate) fn send(&mut self, burst: &Burst, queue: usize) {
        let from = usize::from(burst.port());
        for run in burst.leaving().chunk_by(|a, b| a.port() == b.port()) {
            let out = run.first().map_or(0, |first| usize::from(first.port()));
            if let LinkSource::Interfaces(interfaces) = &mut self.source {
                for of in run {
                    let bytes = burst.bytes_of(of);
                    match interfaces.get_mut(out).map(|to| to.send(bytes)) {
                        Some(true) => self.counters[out].sent(1, bytes.len() as u64),
                        Some(false) => self.counters[from].dropped_ring_full += 1,
                        None => self.counters[from].dropped_unconnected += 1,
                    }
                }
                continue;
            }
            match output(&mut self.links, out, queue) {
                Some(tx) => {
                    let (packets, bytes) = push(tx, burst, run);
                    self.counters[out].sent(packets, bytes);
                    self.counters[from].dropped_ring_full += run.len() as u64 - packets;
                }
                None => self.counters[from].dropped_unconnected += run.len() as u64,
            }
        }
        if let LinkSource::Interfaces(interfaces) = &mut self.source {
            for port in interfaces {
                port.flush();
            }
        }
        if let Some(pair) = pair(&mut self.links, from, queue) {
            pair.rx.release();
        }
        for port in 0..self.links.len() {
            if let Some(tx) = output(&mut self.links, port, queue) {
                tx.flush();
            }
        }
    }

    /// Answers the messages that the last burst of a queue had, behind its packets. An answer that finds no room is not
    /// given: the switch gives the move up then.
    pub(crate) fn answer(&mut self, port: usize, queue: usize, chain: &mut Chain, now: Nanos) {
        let ports = self.links.len();
        let links = &mut self.links;
        self.messages.answer(chain, (port, ports), now, |by, frame| {
            if let Some(tx) = output(links, by, queue)
                && tx.push(frame).is_ok()
            {
                tx.flush();
            }
        });
    }

    /// Sends a frame by the first port, outside of any burst. Without a link there is nobody to tell.
    pub(crate) fn send_signal(&mut self, frame: &[u8]) {
        if let LinkSource::Interfaces(interfaces) = &mut self.source {
            if let Some(port) = interfaces.first_mut() {
                port.send(frame);
                port.flush();
            }
        } else if let Some(tx) = output(&mut self.links, 0, 0)
            && tx.push(frame).is_ok()
        {
            tx.flush();
        }
    }

    /// Ends links whose peer has left or has violated the protocol, and makes missing ones.
    pub(crate) fn link(&mut self) -> Result<()> {
        for slot in &mut self.links {
            let is_gone = slot.as_mut().is_some_and(|link| {
                let is_violated = |pair: &QueuePair| pair.tx.is_violated() || pair.rx.is_violated();
                !matches!(link.control.poll(), Ok(ControlEvent::None)) || link.queues.iter().any(is_violated)
            });
            if is_gone {
                *slot = None;
            }
        }
        match &mut self.source {
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
            LinkSource::Interfaces(interfaces) => {
                // What was sent to this process and found its ring full never came in.
                for (port, counters) in interfaces.iter().zip(&mut self.counters) {
                    counters.dropped_ring_full += port.take_missed();
                }
            }
        }
        Ok(())
    }

    /// Whether this process has to connect by itself, and has not.
    pub(crate) fn must_connect(&self) -> bool {
        matches!(self.source, LinkSource::Client(_)) && self.links.iter().any(Option::is_none)
    }

    /// Sleeps until there are packets, another descriptor is readable, or the time has passed. Returns whether there are
    /// packets in a ring.
    pub(crate) fn wait(&mut self, others: &[BorrowedFd<'_>], mut longest: Duration) -> Result<bool> {
        if let LinkSource::Interfaces(interfaces) = &mut self.source
            && !interfaces.iter_mut().all(Interface::flush)
        {
            longest = longest.min(SEND_AGAIN);
        }
        let mut others = others.to_vec();
        let mut queues: Vec<&mut RxQueue> = Vec::new();
        match &self.source {
            LinkSource::Server(listener) => others.push(listener.as_fd()),
            LinkSource::Client(_) => {}
            LinkSource::Interfaces(interfaces) => others.extend(interfaces.iter().map(Interface::as_fd)),
        }
        for link in self.links.iter_mut().flatten() {
            others.push(link.control.as_fd());
            queues.extend(link.queues.iter_mut().map(|pair| &mut pair.rx));
        }
        memif::wait(&mut queues, &others, longest)?;
        if let LinkSource::Interfaces(interfaces) = &mut self.source {
            return Ok(interfaces.iter_mut().any(Interface::has_frames));
        }
        Ok(queues.iter_mut().any(|queue| queue.available() > 0))
    }
}

/// The queues of a port for a queue: a port with fewer has one for several.
fn pair(links: &mut [Option<Link>], port: usize, queue: usize) -> Option<&mut QueuePair> {
    let link = links.get_mut(port)?.as_mut()?;
    let queue = queue.checked_rem(link.queues.len())?;
    link.queues.get_mut(queue)
}

fn output(links: &mut [Option<Link>], port: usize, queue: usize) -> Option<&mut TxQueue> {
    pair(links, port, queue).map(|pair| &mut pair.tx)
}

/// Copies packets into a ring: how many found room, and their bytes.
fn push(tx: &mut TxQueue, burst: &Burst, mut run: &[Extent]) -> (u64, u64) {
    let (mut packets, mut bytes) = (0, 0);
    while !run.is_empty() {
        let moved = tx.push_burst(run, |of| burst.bytes_of(of), usize::MAX);
        packets += moved.packets as u64;
        bytes += moved.bytes;
        let Some((next, rest)) = run.get(moved.packets..).and_then(<[_]>::split_first) else {
            break;
        };
        // It is longer than a buffer, or the ring is full.
        let frame = burst.bytes_of(next);
        if tx.push(frame).is_ok() {
            packets += 1;
            bytes += frame.len() as u64;
        }
        run = rest;
    }
    (packets, bytes)
}
