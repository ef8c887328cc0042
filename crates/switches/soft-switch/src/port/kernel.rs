//! A network interface of the kernel, through a packet socket: frames are copied out of its ring and into it. And how
//! the control plane opens one.
//!
//! Senders on this machine leave checksums and divisions to a card. Both are done here, so that everything behind this
//! port sees whole packets that fit into a frame.

use std::net::IpAddr;
use std::ops::ControlFlow;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use interfaces::{Link, Links, announce};
use packet_socket::{Config, Dividing, Monitor, PacketSocket, SendError};
use switch::{PortSpec, SwitchError};

use crate::frame::{Frame as _, FrameMemory, Sizes};
use crate::keep::{Forgotten, Keep, KeptAs};
use crate::port::{Capabilities, Connection, Control, Listener, Losses, Pending, Port, Queue, Received};
use crate::worker::tap::PortTap;

/// Slots of the rings of an uplink: more than a worker takes in a turn, for the time in which it does not run.
const UPLINK_SLOTS: u32 = 2048;
/// How long to wait between two looks at an interface that is not up yet.
const LOOK_PAUSE: Duration = Duration::from_millis(1);

/// An interface of the kernel.
pub struct KernelPort {
    socket: PacketSocket,
    pending: Pending,
    /// The longest frame that it carries, in bytes.
    frame_limit: usize,
    dividing: Dividing,
    /// Nothing is received before this is true.
    gate: Option<Arc<AtomicBool>>,
    /// What sees the frames that find no room.
    tap: Option<PortTap>,
    /// Frames that were ever taken from the ring.
    taken: u64,
}

impl KernelPort {
    /// A port on a packet socket.
    pub(crate) fn new(socket: PacketSocket) -> KernelPort {
        KernelPort {
            socket,
            pending: Pending::default(),
            frame_limit: usize::MAX,
            dividing: Dividing::default(),
            gate: None,
            tap: None,
            taken: 0,
        }
    }

    /// Frames that were ever taken from its ring.
    pub(crate) fn taken(&self) -> u64 {
        self.taken
    }

    /// Frames that wait in its ring.
    pub(crate) fn waiting(&mut self) -> u64 {
        let (ring, _) = self.socket.rings();
        ring.available(usize::MAX >> 1) as u64
    }

    /// Whether the worker has all of what was taken from the ring.
    pub(crate) fn is_whole(&self) -> bool {
        self.dividing.is_over()
    }

    /// Whether the kernel has not taken all that it was given to send.
    pub(crate) fn is_busy(&mut self) -> bool {
        let (_, sender) = self.socket.rings();
        sender.is_dirty()
    }

    /// Puts a marker behind what was put into its ring, uncounted. Whether there is room.
    pub(crate) fn mark(&mut self, marker: &[u8]) -> bool {
        let (_, sender) = self.socket.rings();
        sender.put(marker).is_ok()
    }

    /// Whether packets may be received.
    fn is_open(&mut self) -> bool {
        // Acquire: the plan that was published before it was opened is then seen.
        if self
            .gate
            .as_ref()
            .is_some_and(|gate| !gate.load(Ordering::Acquire))
        {
            return false;
        }
        self.gate = None;
        true
    }

    /// The same port, from which nothing is received before `is_open` says so.
    #[must_use]
    pub(crate) fn behind(mut self, is_open: &Arc<AtomicBool>) -> KernelPort {
        self.gate = Some(Arc::clone(is_open));
        self
    }

    fn put(&mut self, bytes: &[u8]) {
        if bytes.len() > self.frame_limit {
            self.pending.too_large += 1;
            return self.see_too_large(bytes);
        }
        let (_, sender) = self.socket.rings();
        match sender.put(bytes) {
            Ok(()) => {
                self.pending.packets += 1;
                self.pending.bytes += bytes.len() as u64;
            }
            Err(SendError::TooLarge) => {
                self.pending.too_large += 1;
                self.see_too_large(bytes);
            }
            Err(SendError::Full) => {
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

    /// Sends what was put into the ring. An interface that is down says so to the control plane.
    #[inline]
    fn kick(&mut self) {
        let (_, sender) = self.socket.rings();
        let _down = sender.send();
    }
}

/// Appends packets of a division, at most `limit`, none longer than `longest` bytes.
fn divide<M: FrameMemory>(
    dividing: &mut Dividing,
    memory: &mut M,
    into: &mut Vec<M::Frame>,
    limit: usize,
    longest: usize,
) -> Received {
    let mut received = Received::default();
    while received.packets < limit
        && let Some(len) = dividing.next_len()
    {
        if len > longest {
            dividing.end();
            received.too_large += 1;
            break;
        }
        let Some(mut frame) = memory.take() else { break };
        match dividing.next(frame.room()) {
            Some(len) => {
                frame.set_len(len);
                into.push(frame);
                received.packets += 1;
            }
            None => {
                memory.give(frame);
                received.too_large += 1;
            }
        }
    }
    received
}

/// Copies a received frame. Whether it fits.
fn copy<F: crate::frame::Frame>(from: &packet_socket::Received<'_>, frame: &mut F, longest: usize) -> bool {
    if from.whole_len() > longest {
        return false;
    }
    let Some(len) = from.copy_to(frame.room()) else {
        return false;
    };
    frame.set_len(len);
    true
}

impl<M: FrameMemory> Queue<M> for KernelPort {
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
        if !self.is_open() {
            return Received::default();
        }
        let longest = self.frame_limit.min(memory.frame_limit());
        let mut received = divide(&mut self.dividing, memory, into, limit, longest);
        let (ring, _) = self.socket.rings();
        while self.dividing.is_over() && received.packets < limit {
            let there = ring.available(limit - received.packets);
            if there == 0 {
                break;
            }
            let first = into.len();
            memory.take_some(into, there);
            let mut empty = into.get_mut(first..).unwrap_or_default().iter_mut();
            let room = empty.len();
            let (mut copied, mut too_large) = (0, 0);
            let mut frame = empty.next();
            let dividing = &mut self.dividing;
            let taken = ring.take(room, |packet| {
                if packet.offload.divide.is_some() {
                    if dividing.begin(&packet) {
                        return ControlFlow::Break(());
                    }
                    too_large += 1;
                } else if frame
                    .as_deref_mut()
                    .is_some_and(|frame| copy(&packet, frame, longest))
                {
                    copied += 1;
                    frame = empty.next();
                } else {
                    too_large += 1;
                }
                ControlFlow::Continue(())
            });
            received.packets += copied;
            received.too_large += too_large + u64::from(taken.too_large);
            self.taken += u64::from(taken.frames + taken.too_large);
            for unused in into.drain(first + copied..) {
                memory.give(unused);
            }
            if room == 0 {
                break;
            }
            let left = limit.saturating_sub(received.packets);
            received += divide(&mut self.dividing, memory, into, left, longest);
        }
        received
    }

    fn send(&mut self, frame: M::Frame, memory: &mut M) {
        self.put(frame.bytes());
        memory.give(frame);
    }

    fn send_burst(&mut self, frames: &mut Vec<M::Frame>, _known: Option<(u64, Sizes)>, memory: &mut M) {
        for frame in frames.iter() {
            self.put(frame.bytes());
        }
        memory.give_all(frames);
    }

    #[inline(always)]
    fn flush(&mut self, _memory: &mut M) -> Pending {
        self.kick();
        std::mem::take(&mut self.pending)
    }

    #[inline(always)]
    fn send_all(&mut self, frames: &mut Vec<M::Frame>, bytes: u64, sizes: Sizes, memory: &mut M) -> Pending {
        self.send_burst(frames, Some((bytes, sizes)), memory);
        std::mem::take(&mut self.pending)
    }

    #[inline(always)]
    fn publish(&mut self) {
        self.kick();
    }

    #[inline(always)]
    fn release(&mut self) {
        let (ring, _) = self.socket.rings();
        ring.release();
    }

    #[inline(always)]
    fn intend(&mut self, turn: u64) -> Option<[u16; 2]> {
        let (ring, sender) = self.socket.rings();
        ring.intend(turn);
        sender.intend(turn);
        // It is noted beside the rings.
        None
    }

    fn tap(&mut self, tap: Option<PortTap>) {
        self.tap = tap;
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.as_fd())
    }

    fn set_wakeups(&mut self, _on: bool) -> bool {
        let (ring, _) = self.socket.rings();
        !self.dividing.is_over() || ring.has_frames()
    }
}

/// The control plane's handle of an interface.
struct InterfaceControl {
    interface: String,
    monitor: Monitor,
    links: Links,
    /// Frames that the interface had dropped when it was last asked.
    dropped: Option<u64>,
    /// Whether the interface is in use: cleared when this ends.
    in_use: Arc<AtomicBool>,
    /// The socket is kept as long as this goes on.
    _kept: Forgotten,
}

impl Control for InterfaceControl {
    fn fd(&self) -> BorrowedFd<'_> {
        self.monitor.as_fd()
    }

    fn end(&mut self) -> Option<String> {
        let reason = match self.monitor.trouble() {
            Some(error) => error.to_string(),
            None => match self.links.find(&self.interface) {
                Ok(link) if link.has_carrier => return None,
                Ok(_) => "it is down".to_owned(),
                Err(error) => error.to_string(),
            },
        };
        Some(format!("interface {}: {reason}", self.interface))
    }

    fn take_losses(&mut self) -> Losses {
        let now = self.links.find(&self.interface).ok().map(|link| link.tx_dropped);
        let failed = now
            .zip(self.dropped)
            .map_or(0, |(now, before)| now.saturating_sub(before));
        self.dropped = now.or(self.dropped);
        Losses {
            missed: self
                .monitor
                .take_statistics()
                .map_or(0, |counted| counted.dropped),
            failed,
        }
    }
}

impl Drop for InterfaceControl {
    fn drop(&mut self) {
        self.in_use.store(false, Ordering::Release);
    }
}

/// A connection over the socket of an interface, which an earlier run had opened.
pub(crate) fn connected_again<M: FrameMemory>(
    interface: &str,
    socket: PacketSocket,
    in_use: Arc<AtomicBool>,
    kept: KeptAs,
) -> Result<Connection<M>, String> {
    let found = Links::new().and_then(|mut links| Ok((links.find(interface)?, links)));
    let (link, links) = found.map_err(|error| format!("interface {interface}: {error}"))?;
    Ok(connection(&link, links, socket, in_use, kept))
}

/// A connection over the socket of an interface.
fn connection<M: FrameMemory>(
    link: &Link,
    links: Links,
    socket: PacketSocket,
    in_use: Arc<AtomicBool>,
    kept: KeptAs,
) -> Connection<M> {
    let control = InterfaceControl {
        interface: link.name.clone(),
        monitor: socket.monitor(),
        links,
        dropped: Some(link.tx_dropped),
        in_use,
        _kept: kept.until_dropped(),
    };
    Connection {
        queues: vec![Port::Kernel(KernelPort::new(socket))],
        control: Some(Box::new(control)),
        peer: format!("interface {}", link.name),
        interface: Some(link.name.clone()),
        mac: Some(service_mac(link.mac)),
    }
}

/// Opens the interfaces of an instance as soon as their other ends are up in the container. `port.address` is their
/// names, with commas: one for each data port.
pub(crate) fn connect<M: FrameMemory>(
    port: &PortSpec,
    _workers: usize,
    abandoned: &AtomicBool,
    kept: &KeptAs,
) -> Result<Vec<Connection<M>>, SwitchError> {
    let wrong = |reason: String| SwitchError::Port { reason };
    let ends = Instant::now() + Duration::from_nanos(port.deadline.0);
    let config = Config {
        slots: port.ring_slots,
        frame_bytes: port.buffer_bytes,
    };
    let mut opened = Vec::new();
    for interface in port.address.to_string_lossy().split(',') {
        let mut links = Links::new().map_err(|error| wrong(format!("netlink: {error}")))?;
        let link = loop {
            let link = links
                .find(interface)
                .map_err(|error| wrong(format!("interface {interface}: {error}")))?;
            if link.has_carrier && link.peer_is_away {
                break link;
            }
            if Instant::now() >= ends || abandoned.load(Ordering::Relaxed) {
                let what = "its interface did not come up in the container";
                return Err(wrong(format!("interface {interface}: {what}")));
            }
            std::thread::sleep(LOOK_PAUSE);
        };
        let socket = PacketSocket::open(interface, config).map_err(|error| wrong(error.to_string()))?;
        opened.push((link, links, socket));
    }
    kept.keep_sockets(
        config,
        opened.iter_mut().map(|(link, _, socket)| (&*link.name, socket)),
    );
    let connections = opened.into_iter();
    let connections = connections
        .map(|(link, links, socket)| connection(&link, links, socket, Arc::default(), kept.clone()));
    Ok(connections.collect())
}

/// Opens the interface of an uplink, and opens it again when it comes back.
pub(crate) struct InterfaceListener {
    interface: String,
    config: Config,
    in_use: Arc<AtomicBool>,
    keep: Option<Keep>,
    name: String,
    /// How many sockets there were, in all runs.
    serial: u64,
    /// The last error, so that it is told once.
    told: String,
}

impl InterfaceListener {
    /// Of that interface, with the rings of [`uplink_rings`]. The uplink is kept under that name.
    pub(crate) fn new(
        interface: &str,
        max_frame: usize,
        keep: Option<&Keep>,
        name: &str,
    ) -> InterfaceListener {
        InterfaceListener {
            interface: interface.to_owned(),
            config: uplink_rings(max_frame),
            in_use: Arc::default(),
            keep: keep.cloned(),
            name: name.to_owned(),
            serial: 0,
            told: String::new(),
        }
    }

    /// A socket of an earlier run is in use.
    pub(crate) fn after(mut self, serial: u64, in_use: &Arc<AtomicBool>) -> InterfaceListener {
        self.serial = serial;
        self.in_use = Arc::clone(in_use);
        self.in_use.store(true, Ordering::Release);
        self
    }

    fn open<M: FrameMemory>(&mut self) -> Result<Connection<M>, String> {
        let of_interface = |error| format!("interface {}: {error}", self.interface);
        let mut links = Links::new().map_err(of_interface)?;
        let link = links.find(&self.interface).map_err(of_interface)?;
        if !link.has_carrier {
            return Err(format!("interface {}: it is down", self.interface));
        }
        let opened = PacketSocket::open(&self.interface, self.config);
        let mut socket = opened.map_err(|error| error.to_string())?;
        socket
            .also_for(service_mac(link.mac))
            .map_err(|error| error.to_string())?;
        self.in_use.store(true, Ordering::Release);
        self.serial += 1;
        let kept = KeptAs::uplink(self.keep.as_ref(), &self.name, self.serial);
        kept.keep_sockets(self.config, [(&*self.interface, &mut socket)]);
        Ok(connection(&link, links, socket, Arc::clone(&self.in_use), kept))
    }
}

/// The rings of an uplink for frames of at most so many bytes.
pub(crate) fn uplink_rings(max_frame: usize) -> Config {
    Config {
        slots: UPLINK_SLOTS,
        frame_bytes: max_frame as u32,
    }
}

impl<M: FrameMemory> Listener<M> for InterfaceListener {
    fn accept(&mut self, limit: Duration) -> Result<Option<Connection<M>>, SwitchError> {
        if !self.in_use.load(Ordering::Acquire) {
            match self.open() {
                Ok(connection) => {
                    self.told.clear();
                    return Ok(Some(connection));
                }
                Err(error) if error != self.told => {
                    self.told.clone_from(&error);
                    return Err(SwitchError::Port { reason: error });
                }
                Err(_) => {}
            }
        }
        std::thread::sleep(limit);
        Ok(None)
    }
}

/// The MAC address of services' addresses at an interface: another one than its own, so that this machine's own network
/// ignores what is for them. The same in each run.
pub(crate) const fn service_mac(of: [u8; 6]) -> [u8; 6] {
    let [first, second, third, fourth, fifth, sixth] = of;
    [(first | 0x02) ^ 0x40, second, third, fourth, fifth, sixth]
}

/// Tells the network of an interface where these addresses are.
pub(crate) fn tell(interface: &str, addresses: &[IpAddr]) {
    let told = Links::new()
        .and_then(|mut links| links.find(interface))
        .and_then(|link| announce(link.index, service_mac(link.mac), addresses.iter().copied()));
    if let Err(error) = told {
        // Neighbours ask all the same.
        tracing::warn!(interface, %error, "addresses could not be announced");
    }
}
