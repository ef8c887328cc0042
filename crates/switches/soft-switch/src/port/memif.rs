//! A pair of memif rings, shared with another process: frames are copied out of it and into it. And how the control
//! plane connects to that process, or waits for it.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ::memif::{Client, ClientConfig, ControlEvent, Link, QueuePair, RingConfig, ServerConfig, TxError};
use switch::{PortSpec, SwitchError};

use crate::frame::{Frame as _, FrameMemory, Sizes};
use crate::port::{Capabilities, Connection, Control, Listener, Occupancy, Pending, Port, Queue, Received};

/// Slots of the largest ring.
pub(crate) const MAX_RING_SLOTS: usize = 1 << ::memif::MAX_LOG2_SLOTS;
/// How inco calls itself to its peers.
const NAME: &str = "inco";
/// Access rights of an uplink's socket, whatever the umask: whoever connects is the network.
const UPLINK_SOCKET_MODE: u32 = 0o660;
/// How long to wait between two attempts to reach an instance that does not listen yet.
const CONNECT_PAUSE: Duration = Duration::from_millis(1);
/// How long one handshake may take.
const HANDSHAKE: Duration = Duration::from_secs(2);

/// One queue pair of a memif link.
pub struct MemifPort {
    queues: QueuePair,
    pending: Pending,
    /// The longest frame that it carries, in bytes.
    frame_limit: usize,
}

impl MemifPort {
    /// A port on one queue pair.
    pub fn new(queues: QueuePair) -> MemifPort {
        MemifPort {
            queues,
            pending: Pending::default(),
            frame_limit: usize::MAX,
        }
    }

    #[inline]
    fn push(&mut self, bytes: &[u8]) {
        if bytes.len() > self.frame_limit {
            self.pending.too_large += 1;
            return;
        }
        match self.queues.tx.push(bytes) {
            Ok(()) => {
                self.pending.packets += 1;
                self.pending.bytes += bytes.len() as u64;
            }
            Err(TxError::TooLarge) => self.pending.too_large += 1,
            Err(_) => self.pending.full += 1,
        }
    }
}

impl<M: FrameMemory> Queue<M> for MemifPort {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            receives: true,
            checksum: false,
            segmentation: false,
            max_frame: self.frame_limit,
        }
    }

    fn limit_frames(&mut self, bytes: usize) {
        self.frame_limit = bytes;
    }

    fn receive(&mut self, memory: &mut M, into: &mut Vec<M::Frame>, limit: usize) -> Received {
        let mut received = Received::default();
        let rx = &mut self.queues.rx;
        let there = rx.available() as usize;
        if there == 0 {
            return received;
        }
        let first = into.len();
        memory.take_some(into, there.min(limit));
        let mut empty = into.get_mut(first..).unwrap_or_default().iter_mut();
        let limit = empty.len();
        let before = rx.counters();
        let mut frame = empty.next();
        rx.take_burst(limit, |packet| {
            let len = packet.len();
            let is_copied = frame.as_deref_mut().is_some_and(|frame| {
                let fits = len <= self.frame_limit && packet.copy_to(frame.room());
                if fits {
                    frame.set_len(len);
                }
                fits
            });
            if is_copied {
                received.packets += 1;
                frame = empty.next();
            } else {
                received.too_large += 1;
            }
        });
        rx.release();
        let after = rx.counters();
        received.bad = after.bad_descriptors - before.bad_descriptors;
        received.too_large += after.too_large - before.too_large;
        for unused in into.drain(first + received.packets..) {
            memory.give(unused);
        }
        received
    }

    fn send(&mut self, frame: M::Frame, memory: &mut M) {
        self.push(frame.bytes());
        memory.give(frame);
    }

    fn send_burst(&mut self, frames: &mut Vec<M::Frame>, _known: Option<(u64, Sizes)>, memory: &mut M) {
        let mut left = frames.as_slice();
        loop {
            let sent = self.queues.tx.push_burst(left, M::Frame::bytes, self.frame_limit);
            self.pending.packets += sent.packets as u64;
            self.pending.bytes += sent.bytes;
            let Some((longest, others)) = left.get(sent.packets..).and_then(<[_]>::split_first) else {
                break;
            };
            self.push(longest.bytes());
            left = others;
        }
        memory.give_all(frames);
    }

    #[inline(always)]
    fn flush(&mut self, _memory: &mut M) -> Pending {
        self.queues.tx.flush();
        std::mem::take(&mut self.pending)
    }

    fn pass_on(&mut self, to: &mut Port<M>, limit: usize) -> Received {
        let Port::Memif(to) = to else {
            return Received::default();
        };
        let rx = &mut self.queues.rx;
        let before = rx.counters();
        let longest = self.frame_limit.min(to.frame_limit);
        let passed = rx.forward_within(&mut to.queues.tx, limit, longest);
        let after = rx.counters();
        to.pending.packets += passed.packets as u64;
        to.pending.bytes += passed.bytes;
        Received {
            packets: passed.packets,
            bytes: passed.bytes,
            bad: after.bad_descriptors - before.bad_descriptors,
            too_large: after.too_large - before.too_large,
        }
    }

    #[inline(always)]
    fn fill(&mut self) -> Option<(u32, u32)> {
        Some((self.queues.tx.occupancy(), self.queues.tx.slots()))
    }

    fn occupancy(&mut self) -> Option<Occupancy> {
        Some(Occupancy {
            used: self.queues.tx.occupancy(),
            slots: self.queues.tx.slots(),
            back: self.queues.rx.occupancy(),
            consumed: self.queues.tx.consumed(),
        })
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.queues.rx.interrupt_fd())
    }

    fn set_wakeups(&mut self, on: bool) -> bool {
        self.queues.rx.set_interrupts(on);
        self.queues.rx.available() > 0
    }

    fn is_broken(&self) -> bool {
        self.queues.rx.is_violated() || self.queues.tx.is_violated()
    }
}

impl<M: FrameMemory> From<Link> for Connection<M> {
    fn from(link: Link) -> Connection<M> {
        let queues = link
            .queues
            .into_iter()
            .map(|pair| Port::Memif(MemifPort::new(pair)));
        Connection {
            queues: queues.collect(),
            control: Some(Box::new(link.control)),
            peer: link.peer_name,
        }
    }
}

impl Control for ::memif::Control {
    fn fd(&self) -> BorrowedFd<'_> {
        self.as_fd()
    }

    fn end(&mut self) -> Option<String> {
        match self.poll() {
            Ok(ControlEvent::None) => None,
            Ok(ControlEvent::Disconnected { reason }) => Some(reason),
            Err(error) => Some(error.to_string()),
        }
    }
}

/// Connects an instance's ports, trying again until the deadline while nobody listens.
pub(crate) fn connect<M: FrameMemory>(
    port: &PortSpec,
    workers: usize,
    abandoned: &AtomicBool,
) -> Result<Vec<Connection<M>>, SwitchError> {
    let ends = Instant::now() + Duration::from_nanos(port.deadline.0);
    let mut ports = Vec::new();
    for interface_id in 0..u32::from(port.data_ports) {
        let config = ClientConfig {
            ring: RingConfig {
                log2_slots: port.ring_slots.max(1).ilog2() as u8,
                buffer_bytes: port.buffer_bytes,
                queues: port.queues.clamp(1, workers as u16),
            },
            name: NAME.to_owned(),
            ..ClientConfig::new(&port.address, interface_id)
        };
        loop {
            match Client::connect(&config, HANDSHAKE) {
                Ok(link) => {
                    ports.push(link.into());
                    break;
                }
                Err(error)
                    if (error.is_worth_retrying() || is_peer_slow(&error))
                        && Instant::now() < ends
                        && !abandoned.load(Ordering::Relaxed) =>
                {
                    std::thread::sleep(CONNECT_PAUSE);
                }
                Err(source) => return Err(unusable(&port.address, &source)),
            }
        }
    }
    Ok(ports)
}

/// Whether the peer gave the handshake up because it took too long: one that has little of a CPU, or of a busy one.
fn is_peer_slow(error: &::memif::Error) -> bool {
    matches!(error, ::memif::Error::Disconnected { reason } if reason.contains("timed out"))
}

/// Listens at a socket for the peers of an uplink, each with at most so many queue pairs.
pub(crate) fn listen<M: FrameMemory>(
    socket: &Path,
    queues: u16,
) -> Result<Box<dyn Listener<M>>, SwitchError> {
    let server = ServerConfig {
        max_queues: queues,
        mode: Some(UPLINK_SOCKET_MODE),
        ..ServerConfig::new(NAME)
    };
    let listener = ::memif::Listener::bind(socket, server).map_err(|source| unusable(socket, &source))?;
    Ok(Box::new(listener))
}

impl<M: FrameMemory> Listener<M> for ::memif::Listener {
    fn accept(&mut self, limit: Duration) -> Result<Option<Connection<M>>, SwitchError> {
        match ::memif::Listener::accept(self, limit) {
            Ok(link) => Ok(link.map(Connection::from)),
            Err(source) => Err(unusable(self.path(), &source)),
        }
    }
}

/// A memif socket is of no use.
fn unusable(socket: &Path, source: &::memif::Error) -> SwitchError {
    SwitchError::Port {
        reason: format!("memif socket {}: {source}", socket.display()),
    }
}
