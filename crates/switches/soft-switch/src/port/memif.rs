//! A pair of memif rings, shared with another process: frames are copied out of it and into it. And how the control
//! plane connects to that process, or waits for it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ::memif::{Client, ClientConfig, ControlEvent, Link, QueuePair, RingConfig, ServerConfig, TxError};
use switch::{PortSpec, SwitchError};

use crate::frame::{Frame as _, FrameMemory, Sizes};
use crate::keep::{Forgotten, Keep, KeptAs, ListenerNote};
use crate::port::{Capabilities, Connection, Control, Listener, Occupancy, Pending, Port, Queue, Received};
use crate::worker::tap::PortTap;

/// Slots of the largest ring.
pub(crate) const MAX_RING_SLOTS: usize = 1 << ::memif::MAX_LOG2_SLOTS;
/// The name of inco in handshakes.
const NAME: &str = "inco";
/// Access rights of an uplink's socket, whatever the umask: a client of it acts as the network.
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
    /// Nothing is received before this is true.
    gate: Option<Arc<AtomicBool>>,
    /// What sees the frames that find no room.
    tap: Option<PortTap>,
}

impl MemifPort {
    /// A port on one queue pair.
    pub fn new(mut queues: QueuePair) -> MemifPort {
        // What was received is released when the turn is committed.
        queues.rx.hold_slots();
        MemifPort {
            queues,
            pending: Pending::default(),
            frame_limit: usize::MAX,
            gate: None,
            tap: None,
        }
    }

    /// The same port, from which nothing is received before `is_open` says so.
    #[must_use]
    pub(crate) fn behind(mut self, is_open: &Arc<AtomicBool>) -> MemifPort {
        self.gate = Some(Arc::clone(is_open));
        self
    }

    #[inline]
    fn push(&mut self, bytes: &[u8]) {
        if bytes.len() > self.frame_limit {
            self.pending.too_large += 1;
            return self.see_too_large(bytes);
        }
        match self.queues.tx.push(bytes) {
            Ok(()) => {
                self.pending.packets += 1;
                self.pending.bytes += bytes.len() as u64;
            }
            Err(TxError::TooLarge) => {
                self.pending.too_large += 1;
                self.see_too_large(bytes);
            }
            Err(_) => {
                self.pending.full += 1;
                if let Some(tap) = &self.tap {
                    tap.see_full(bytes);
                }
            }
        }
    }

    fn see_too_large(&self, bytes: &[u8]) {
        if let Some(tap) = &self.tap {
            tap.see_too_large(bytes);
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
        if let Some(gate) = &self.gate {
            // Acquire: the plan that was published before it was opened is then seen.
            if !gate.load(Ordering::Acquire) {
                return received;
            }
            self.gate = None;
        }
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

    #[inline(always)]
    fn send_all(&mut self, frames: &mut Vec<M::Frame>, bytes: u64, sizes: Sizes, memory: &mut M) -> Pending {
        self.send_burst(frames, Some((bytes, sizes)), memory);
        std::mem::take(&mut self.pending)
    }

    #[inline(always)]
    fn publish(&mut self) {
        self.queues.tx.flush();
    }

    #[inline(always)]
    fn release(&mut self) {
        self.queues.rx.release();
    }

    #[inline(always)]
    fn intend(&mut self, turn: u64) -> Option<[u16; 2]> {
        self.queues.tx.intend(turn);
        self.queues.rx.intend(turn);
        Some([self.queues.tx.position(), self.queues.rx.position()])
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

    fn tap(&mut self, tap: Option<PortTap>) {
        self.tap = tap;
    }

    fn is_broken(&self) -> bool {
        self.queues.rx.is_violated() || self.queues.tx.is_violated()
    }
}

/// The control socket of a link, which is kept as long as the link goes on.
struct LinkControl {
    control: ::memif::Control,
    /// Of the first of the links that are kept together.
    _kept: Option<Forgotten>,
}

/// Links as connections. What they are kept as is forgotten when the first of them ends.
pub(crate) fn connections<M: FrameMemory>(links: Vec<Link>, kept: KeptAs) -> Vec<Connection<M>> {
    let mut kept = Some(kept.until_dropped());
    let connections = links.into_iter().map(|link| {
        let queues = link
            .queues
            .into_iter()
            .map(|pair| Port::Memif(MemifPort::new(pair)));
        let control = LinkControl {
            control: link.control,
            _kept: kept.take(),
        };
        Connection {
            queues: queues.collect(),
            control: Some(Box::new(control)),
            peer: link.peer_name,
            interface: None,
            mac: None,
        }
    });
    connections.collect()
}

impl Control for LinkControl {
    fn fd(&self) -> BorrowedFd<'_> {
        self.control.as_fd()
    }

    fn end(&mut self) -> Option<String> {
        match self.control.poll() {
            Ok(ControlEvent::None) => None,
            Ok(ControlEvent::Disconnected { reason }) => Some(reason),
            Err(error) => Some(error.to_string()),
        }
    }
}

/// Connects an instance's ports; tries again until the deadline while there is no listener.
pub(crate) fn connect<M: FrameMemory>(
    port: &PortSpec,
    workers: usize,
    abandoned: &AtomicBool,
    kept: &KeptAs,
) -> Result<Vec<Connection<M>>, SwitchError> {
    let ends = Instant::now() + Duration::from_nanos(port.deadline.0);
    let mut links = Vec::new();
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
                    links.push(link);
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
    kept.keep(&port.address, &links);
    Ok(connections(links, kept.clone()))
}

/// Whether the peer gave the handshake up because it took too long: one that has little of a CPU, or of a busy one.
fn is_peer_slow(error: &::memif::Error) -> bool {
    matches!(error, ::memif::Error::Disconnected { reason } if reason.contains("timed out"))
}

/// Where the peers of an uplink connect, each with at most so many queue pairs.
pub(crate) struct UplinkListener {
    socket: PathBuf,
    server: ServerConfig,
    keep: Option<Keep>,
    name: String,
    /// How many peers there were, in all runs.
    serial: u64,
    listener: Option<::memif::Listener>,
}

impl UplinkListener {
    /// At that socket.
    pub(crate) fn new(socket: &Path, queues: u16, keep: Option<&Keep>, name: &str) -> UplinkListener {
        UplinkListener {
            socket: socket.to_owned(),
            server: ServerConfig {
                max_queues: queues,
                mode: Some(UPLINK_SOCKET_MODE),
                ..ServerConfig::new(NAME)
            },
            keep: keep.cloned(),
            name: name.to_owned(),
            serial: 0,
            listener: None,
        }
    }

    /// Begins to listen: on the socket of an earlier run, where its last peer may still be connected, or on a new
    /// one.
    pub(crate) fn begin<M: FrameMemory>(
        mut self,
        before: Option<OwnedFd>,
        peer: Option<(u64, &Link)>,
    ) -> Result<Box<dyn Listener<M>>, SwitchError> {
        let again = before.and_then(|file| {
            let again = ::memif::Listener::resume(file, &self.socket, self.server.clone());
            again
                .inspect_err(|error| {
                    tracing::warn!(uplink = self.name, %error, "its socket is opened anew: peers connect again");
                    if let Some(keep) = &self.keep {
                        keep.keeper().forget(&format!("listener/{}", self.name));
                        // After an answer it is closed there.
                        let _counted = keep.keeper().entries();
                    }
                })
                .ok()
        });
        let mut listener = match again {
            Some(listener) => listener,
            None => ::memif::Listener::bind(&self.socket, self.server.clone())
                .map_err(|source| unusable(&self.socket, &source))?,
        };
        if let Some((serial, link)) = peer {
            self.serial = serial;
            listener.remember(link);
        }
        if let Some(keep) = &self.keep {
            let path = self.socket.clone();
            let name = format!("listener/{}", self.name);
            keep.keep(&name, &ListenerNote { path }, &[listener.file()]);
        }
        self.listener = Some(listener);
        Ok(Box::new(self))
    }
}

impl<M: FrameMemory> Listener<M> for UplinkListener {
    fn accept(&mut self, limit: Duration) -> Result<Option<Connection<M>>, SwitchError> {
        let Some(listener) = &mut self.listener else {
            return Ok(None);
        };
        match listener.accept(limit) {
            Ok(Some(link)) => {
                self.serial += 1;
                let kept = KeptAs::uplink(self.keep.as_ref(), &self.name, self.serial);
                let links = vec![link];
                kept.keep(&self.socket, &links);
                Ok(connections(links, kept).pop())
            }
            Ok(None) => Ok(None),
            Err(source) => Err(unusable(&self.socket, &source)),
        }
    }
}

impl Drop for UplinkListener {
    fn drop(&mut self) {
        if let (Some(keep), Some(listener)) = (&self.keep, &mut self.listener)
            && keep.is_leaving()
        {
            listener.leave();
        }
    }
}

/// A memif socket is closed.
fn unusable(socket: &Path, source: &::memif::Error) -> SwitchError {
    SwitchError::Port {
        reason: format!("memif socket {}: {source}", socket.display()),
    }
}
