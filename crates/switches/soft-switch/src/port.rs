//! Ports: where a worker's frames come in and go out. One worker owns one queue of a port.
//!
//! Life of a port: made by the control plane, given to its worker in a command, polled with [`Port::receive`],
//! filled with [`Port::send`], made visible with [`Port::flush`] once per turn, given back in an event, dropped by the
//! control plane.

use std::ops::AddAssign;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::frame::{Device, Frame, FrameMemory, Sizes};

/// One queue of a port.
#[expect(clippy::large_enum_variant, reason = "nearly every port is the largest one")]
pub enum Port<M: FrameMemory> {
    /// A pair of rings shared with another process.
    Memif(MemifPort),
    /// A sink: takes everything, gives nothing. For measuring the switch alone.
    Null(Pending),
    /// A device whose frames are already in the worker's memory.
    Device(DevicePort<M>),
}

/// What was put into a port since its last flush.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pending {
    /// Packets that the port took.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Packets that found it full.
    pub full: u64,
    /// Packets of a length that it does not carry.
    pub too_large: u64,
}

impl AddAssign for Pending {
    #[inline(always)]
    fn add_assign(&mut self, other: Pending) {
        self.packets += other.packets;
        self.bytes += other.bytes;
        self.full += other.full;
        self.too_large += other.too_large;
    }
}

/// What was taken out of a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Received {
    /// Packets received.
    pub packets: usize,
    /// Their bytes, where they went from ring to ring: who receives frames sees these for himself.
    pub bytes: u64,
    /// Packets that the peer announced with a descriptor that cannot be true.
    pub bad: u64,
    /// Packets larger than a frame, or than the port carries.
    pub too_large: u64,
}

impl AddAssign for Received {
    fn add_assign(&mut self, other: Received) {
        self.packets += other.packets;
        self.bytes += other.bytes;
        self.bad += other.bad;
        self.too_large += other.too_large;
    }
}

/// How full a port's rings are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Occupancy {
    /// Descriptors in the ring towards the peer that it has not taken.
    pub used: u32,
    /// Descriptors that this ring has; 0 where it cannot be seen.
    pub slots: u32,
    /// Packets in the ring back that we have not taken.
    pub back: u32,
    /// Descriptors that the peer has taken since the port was attached.
    pub consumed: u64,
}

/// One queue pair of a memif link.
pub struct MemifPort {
    queues: memif::QueuePair,
    pending: Pending,
    /// The longest frame that it carries, in bytes.
    frame_limit: usize,
}

/// One queue of a device, and the frames that wait for its next burst.
pub struct DevicePort<M: FrameMemory> {
    device: M::Device,
    staged: Vec<M::Frame>,
    pending: Pending,
    frame_limit: usize,
    /// While false, nothing is received from it.
    is_open: Arc<AtomicBool>,
}

/// Frames that a device port stages before it sends them: one burst.
const STAGED_FRAMES: usize = 64;

impl<M: FrameMemory> Port<M> {
    /// A port on one queue pair of a memif link.
    pub fn memif(queues: memif::QueuePair) -> Port<M> {
        Port::Memif(MemifPort {
            queues,
            pending: Pending::default(),
            frame_limit: usize::MAX,
        })
    }

    /// A sink.
    pub fn null() -> Port<M> {
        Port::Null(Pending::default())
    }

    /// A port on one queue of a device. Nothing is received from it before `is_open` says so.
    pub fn device(device: M::Device, is_open: Arc<AtomicBool>) -> Port<M> {
        Port::Device(DevicePort {
            device,
            staged: Vec::with_capacity(STAGED_FRAMES),
            pending: Pending::default(),
            frame_limit: usize::MAX,
            is_open,
        })
    }

    /// The same port for frames of at most `bytes` bytes, in both directions.
    #[must_use]
    pub fn for_frames(mut self, bytes: usize) -> Port<M> {
        match &mut self {
            Port::Memif(port) => port.frame_limit = bytes,
            Port::Device(port) => port.frame_limit = bytes,
            Port::Null(_) => {}
        }
        self
    }

    /// Appends at most `limit` received frames. Stops early where the memory has no frame left: the packets then
    /// stay in the ring. Of a device's frames it is still to be seen whether they are [valid](Port::are_valid).
    pub fn receive(&mut self, memory: &mut M, into: &mut Vec<M::Frame>, limit: usize) -> Received {
        match self {
            Port::Memif(port) => port.receive(memory, into, limit),
            Port::Null(_) => Received::default(),
            Port::Device(port) => port.receive(into, limit),
        }
    }

    /// Puts a frame into the port; it is sent with the next [`Port::flush`] at the latest.
    pub fn send(&mut self, frame: M::Frame, memory: &mut M) {
        match self {
            Port::Memif(port) => {
                port.send(frame.bytes());
                memory.give(frame);
            }
            Port::Null(pending) => {
                pending.packets += 1;
                pending.bytes += frame.len() as u64;
                memory.give(frame);
            }
            Port::Device(port) => {
                port.staged.push(frame);
                if port.staged.len() == STAGED_FRAMES {
                    port.send_staged(memory);
                }
            }
        }
    }

    /// Puts frames into the port as [`Port::send`] does, and leaves the list empty.
    pub fn put_all(&mut self, frames: &mut Vec<M::Frame>, memory: &mut M) {
        match self {
            Port::Memif(port) => port.put_all(frames, memory),
            Port::Null(_) | Port::Device(_) => {
                for frame in frames.drain(..) {
                    self.send(frame, memory);
                }
            }
        }
    }

    /// Whether frames that it gave, the longest of so many bytes and in so many segments, are all such as it carries, and of one
    /// segment.
    #[inline]
    pub fn are_valid(&self, longest: usize, segments: u16) -> bool {
        match self {
            Port::Device(port) => segments <= 1 && longest <= port.frame_limit,
            Port::Memif(_) | Port::Null(_) => true,
        }
    }

    /// Makes frames that it gave one segment each, and drops those that cannot be, or are longer than it carries; gives how many.
    #[cold]
    pub fn linearize_or_drop(&self, frames: &mut Vec<M::Frame>, memory: &mut M) -> u64 {
        let mut too_large = 0;
        let is_invalid = |frame: &mut M::Frame| {
            frame.linearize();
            !self.are_valid(frame.len(), frame.segments())
        };
        for frame in frames.extract_if(.., is_invalid) {
            too_large += 1;
            memory.give(frame);
        }
        too_large
    }

    /// Moves packets straight into another port, where both are rings, as far as that has room and carries them; they are sent with
    /// its next flush. What stays is to be received and sent as from any port.
    pub fn pass_on(&mut self, to: &mut Port<M>, limit: usize) -> Received {
        match (self, to) {
            (Port::Memif(from), Port::Memif(to)) => from.pass_on(to, limit),
            _ => Received::default(),
        }
    }

    /// Sends frames, `bytes` in all and each of these sizes, after those put before, and leaves the list empty. Makes
    /// everything visible to the peer, and says what came of it since the last flush.
    #[inline(always)]
    pub fn send_all(
        &mut self,
        frames: &mut Vec<M::Frame>,
        bytes: u64,
        sizes: Sizes,
        memory: &mut M,
    ) -> Pending {
        match self {
            Port::Memif(port) => port.send_all(frames, memory),
            Port::Null(pending) => {
                let mut all = Pending {
                    packets: frames.len() as u64,
                    bytes,
                    ..Pending::default()
                };
                memory.give_all(frames);
                if pending.packets > 0 {
                    all += std::mem::take(pending);
                }
                all
            }
            Port::Device(port) => port.send_all(frames, bytes, sizes, memory),
        }
    }

    /// Makes everything sent so far visible to the peer, and says what came of it since the last flush.
    pub fn flush(&mut self, memory: &mut M) -> Pending {
        match self {
            Port::Memif(port) => {
                port.queues.tx.flush();
                std::mem::take(&mut port.pending)
            }
            Port::Null(pending) => std::mem::take(pending),
            Port::Device(port) => {
                port.send_staged(memory);
                std::mem::take(&mut port.pending)
            }
        }
    }

    /// Descriptors in the ring towards the peer that it has not taken, and how many there are, where that can be seen.
    #[inline(always)]
    pub fn fill(&mut self) -> Option<(u32, u32)> {
        match self {
            Port::Memif(port) => Some((port.queues.tx.occupancy(), port.queues.tx.slots())),
            Port::Null(_) | Port::Device(_) => None,
        }
    }

    /// How full its rings are now.
    pub fn occupancy(&mut self) -> Occupancy {
        match self {
            Port::Memif(port) => Occupancy {
                used: port.queues.tx.occupancy(),
                slots: port.queues.tx.slots(),
                back: port.queues.rx.occupancy(),
                consumed: port.queues.tx.consumed(),
            },
            Port::Null(_) | Port::Device(_) => Occupancy::default(),
        }
    }

    /// The queue to wait on while the worker sleeps, where the port has one.
    pub fn waits_on(&mut self) -> Option<&mut memif::RxQueue> {
        match self {
            Port::Memif(port) => Some(&mut port.queues.rx),
            Port::Null(_) | Port::Device(_) => None,
        }
    }

    /// Whether the peer broke the protocol of its rings: nothing goes through any more.
    pub fn is_broken(&self) -> bool {
        match self {
            Port::Memif(port) => port.queues.rx.is_violated() || port.queues.tx.is_violated(),
            Port::Null(_) | Port::Device(_) => false,
        }
    }

    /// Whether packets can come out of it.
    pub fn gives(&self) -> bool {
        !matches!(self, Port::Null(_))
    }

    /// Whether the worker must look at it to know of new packets: nothing wakes it.
    pub fn must_be_polled(&self) -> bool {
        matches!(self, Port::Device(_))
    }
}

impl MemifPort {
    fn receive<M: FrameMemory>(
        &mut self,
        memory: &mut M,
        into: &mut Vec<M::Frame>,
        limit: usize,
    ) -> Received {
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

    fn put_all<M: FrameMemory>(&mut self, frames: &mut Vec<M::Frame>, memory: &mut M) {
        let mut left = frames.as_slice();
        loop {
            let sent = self.queues.tx.push_burst(left, M::Frame::bytes, self.frame_limit);
            self.pending.packets += sent.packets as u64;
            self.pending.bytes += sent.bytes;
            let Some((unusual, others)) = left.get(sent.packets..).and_then(<[_]>::split_first) else {
                break;
            };
            self.send(unusual.bytes());
            left = others;
        }
        memory.give_all(frames);
    }

    fn send_all<M: FrameMemory>(&mut self, frames: &mut Vec<M::Frame>, memory: &mut M) -> Pending {
        self.put_all(frames, memory);
        self.queues.tx.flush();
        std::mem::take(&mut self.pending)
    }

    fn pass_on(&mut self, to: &mut MemifPort, limit: usize) -> Received {
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

    #[inline]
    fn send(&mut self, bytes: &[u8]) {
        if bytes.len() > self.frame_limit {
            self.pending.too_large += 1;
            return;
        }
        match self.queues.tx.push(bytes) {
            Ok(()) => {
                self.pending.packets += 1;
                self.pending.bytes += bytes.len() as u64;
            }
            Err(memif::TxError::TooLarge) => self.pending.too_large += 1,
            Err(_) => self.pending.full += 1,
        }
    }
}

impl<M: FrameMemory> DevicePort<M> {
    fn receive(&mut self, into: &mut Vec<M::Frame>, limit: usize) -> Received {
        // Acquire: what was published before it was opened is seen by whoever looks from here on.
        if !self.is_open.load(Ordering::Acquire) {
            return Received::default();
        }
        let first = into.len();
        self.device.receive(into, limit);
        Received {
            packets: into.len() - first,
            ..Received::default()
        }
    }

    fn send_all(&mut self, frames: &mut Vec<M::Frame>, bytes: u64, sizes: Sizes, memory: &mut M) -> Pending {
        self.send_staged(memory);
        self.send_now(frames, bytes, Some(sizes), memory);
        std::mem::take(&mut self.pending)
    }

    fn send_staged(&mut self, memory: &mut M) {
        if self.staged.is_empty() {
            return;
        }
        let mut staged = std::mem::take(&mut self.staged);
        let bytes = staged.iter().map(|f| f.len() as u64).sum();
        self.send_now(&mut staged, bytes, None, memory);
        self.staged = staged;
    }

    fn send_now(&mut self, frames: &mut Vec<M::Frame>, bytes: u64, known: Option<Sizes>, memory: &mut M) {
        let offered = frames.len() as u64;
        let unsendable = self.device.send(frames, self.frame_limit, known);
        let left = frames.len() as u64;
        let left_bytes: u64 = frames.iter().map(|f| f.len() as u64).sum();
        self.pending.packets += offered - unsendable.packets - left;
        self.pending.bytes += bytes - unsendable.bytes - left_bytes;
        self.pending.too_large += unsendable.packets;
        self.pending.full += left;
        memory.give_all(frames);
    }
}
