//! Frames for the instances whose home worker this is, until the next flush. Each data port of an
//! instance has an outbox; its number is the lane of packets that go there.

use std::vec::Drain;

use flow_table::{Burst, FlowTable, Lanes};
use model::{CapturePoint, DropReason, Nanos, ServiceId, Slot, UplinkId};
use simd::{Kernel, Words};

use crate::BURST_FRAMES;
use crate::counters::{SlotCounters, WorkerCounters};
use crate::ends::Ends;
use crate::frame::{Frame, FrameMemory, Sizes};
use crate::id_map::UplinkMap;
use crate::instance::{PORT_LIMIT, ReturnWay};
use crate::port::{Port, Queue as _};
use crate::table_memory::TableMemory;
use crate::worker::BURSTS_PER_TURN;
use crate::worker::context::Context;
use crate::worker::tap::Seen;

/// Frames that may wait before all outboxes are flushed: those of a turn. They exceed a core's first-level cache, but
/// a flush costs as much per instance as many frames, and half the limit would double the flushes with 64 instances.
pub(crate) const OUTBOX_FRAMES: usize = BURSTS_PER_TURN * BURST_FRAMES;
/// With more instances than this in outboxes, a new burst flushes all of them: if nearly each frame is for another
/// instance, waiting saves nothing.
const LANES_AT_ONCE: usize = BURST_FRAMES;
/// Outboxes of all instances.
const OUTBOXES: usize = Slot::LIMIT * PORT_LIMIT;

/// The outbox of a data port.
#[inline(always)]
pub(crate) fn lane_of(slot: Slot, port: u8) -> u16 {
    (usize::from(port) % PORT_LIMIT * Slot::LIMIT + slot.index() % Slot::LIMIT) as u16
}

/// The instance and the data port of an outbox.
#[inline(always)]
fn port_of(lane: u16) -> (Slot, usize) {
    let lane = usize::from(lane) % OUTBOXES;
    (Slot((lane % Slot::LIMIT) as u16), lane / Slot::LIMIT)
}

/// Frames for one data port of an instance. One cache line, because with many instances it is not in the cache.
#[repr(align(64))]
struct Outbox<F> {
    frames: Vec<F>,
    bytes: u64,
}

impl<F> Outbox<F> {
    const EMPTY: Outbox<F> = Outbox {
        frames: Vec::new(),
        bytes: 0,
    };

    /// Adds a frame. Whether it is the first one.
    #[inline(always)]
    fn put(&mut self, frame: F, bytes: u64) -> bool {
        self.bytes += bytes;
        if self.frames.len() < self.frames.capacity() {
            self.frames.push(frame);
        } else {
            self.put_beyond(frame);
        }
        self.frames.len() == 1
    }

    /// A function of its own, so that a loop over frames has no other call. An instance brings room for all frames.
    #[cold]
    #[inline(never)]
    fn put_beyond(&mut self, frame: F) {
        self.frames.push(frame);
    }
}

/// The outboxes with frames, in the order of their first one.
struct Touched {
    lanes: [u16; OUTBOX_FRAMES],
    /// At most as many as frames in outboxes.
    count: usize,
}

impl Default for Touched {
    fn default() -> Touched {
        Touched {
            lanes: [0; OUTBOX_FRAMES],
            count: 0,
        }
    }
}

impl Touched {
    #[inline(always)]
    fn push(&mut self, lane: u16) {
        debug_assert!(self.count < OUTBOX_FRAMES, "more frames wait than may");
        self.lanes[self.count % OUTBOX_FRAMES] = lane;
        self.count += 1;
    }

    fn lanes(&self) -> &[u16] {
        self.lanes.get(..self.count).unwrap_or(&self.lanes)
    }

    /// Retains the lanes of which `is_kept` is true.
    fn retain(&mut self, mut is_kept: impl FnMut(u16) -> bool) {
        let mut kept = 0;
        for at in 0..self.lanes().len() {
            let lane = self.lanes[at];
            if is_kept(lane) {
                self.lanes[kept] = lane;
                kept += 1;
            }
        }
        self.count = kept;
    }
}

/// All outboxes of a worker.
pub(crate) struct Outboxes<F> {
    boxes: Box<[Outbox<F>; OUTBOXES]>,
    touched: Box<Touched>,
    /// Frames in all of them.
    waiting: usize,
    /// Their sizes.
    sizes: Sizes,
    /// The sizes of the current burst's frames.
    burst_sizes: Sizes,
}

/// Adds a frame of `bytes` bytes to an outbox: the only way into it.
#[inline(always)]
fn put<F>(boxes: &mut [Outbox<F>; OUTBOXES], touched: &mut Touched, lane: u16, frame: F, bytes: u64) {
    let outbox = &mut boxes[usize::from(lane) % OUTBOXES];
    if outbox.put(frame, bytes) {
        touched.push(lane);
    }
}

impl<F: Frame> Outboxes<F> {
    pub(crate) fn new() -> Outboxes<F> {
        Outboxes {
            boxes: Box::new([const { Outbox::EMPTY }; OUTBOXES]),
            touched: Box::default(),
            waiting: 0,
            sizes: Sizes::NONE,
            burst_sizes: Sizes::NONE,
        }
    }

    /// Frames in all of them.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting
    }

    /// The buffers for frames of a data port: an instance brings them, and takes them back.
    pub(crate) fn room(&mut self, slot: Slot, port: usize) -> &mut Vec<F> {
        &mut self.boxes[usize::from(lane_of(slot, port as u8))].frames
    }

    /// Begins a burst of `frames` frames of these sizes, and flushes if it would exceed the limit.
    #[inline(always)]
    pub(crate) fn begin_burst<M: FrameMemory<Frame = F>>(
        &mut self,
        frames: usize,
        sizes: Sizes,
        cx: &mut Context<M>,
    ) {
        self.burst_sizes = sizes;
        if self.waiting + frames > OUTBOX_FRAMES || self.touched.count > LANES_AT_ONCE {
            self.flush(cx);
        }
        self.sizes = self.sizes.and(sizes);
    }

    /// Counts the packets of established flows from place `from` of a burst on, up to the first that needs more, and
    /// puts their frames, the next ones of `frames`, into the outboxes of their lanes. Gives the place of that first
    /// one, and the other frames.
    #[inline(always)]
    pub(crate) fn put_hits<'a, 'f, M: FrameMemory<Frame = F>>(
        &'a mut self,
        hits: Hits<'a>,
        bytes: &'a [u32; BURST_FRAMES],
        frames: Drain<'f, F>,
        cx: &Context<M>,
    ) -> (usize, Drain<'f, F>) {
        let from = hits.from;
        let (until, frames) = cx.level.run(PutHits {
            hits,
            frames,
            bytes,
            boxes: &mut self.boxes,
            touched: &mut self.touched,
        });
        self.waiting += until - from;
        (until, frames)
    }

    /// Puts one frame into the outbox of a lane.
    #[inline(always)]
    pub(crate) fn put<M: FrameMemory<Frame = F>>(&mut self, lane: u16, frame: F, cx: &mut Context<M>) {
        let bytes = frame.len();
        self.sizes.note(bytes);
        put(&mut self.boxes, &mut self.touched, lane, frame, bytes as u64);
        self.waiting += 1;
        if self.waiting >= OUTBOX_FRAMES {
            self.flush(cx);
        }
    }

    /// Puts what waits for instances into their rings. They see it when the turn is committed.
    pub(crate) fn flush<M: FrameMemory<Frame = F>>(&mut self, cx: &mut Context<M>) {
        let mut flush = Flush::new(&mut self.boxes, self.sizes, cx);
        for &lane in self.touched.lanes() {
            flush.empty(lane);
        }
        flush.offered.count(&flush.cx.counters);
        self.touched.count = 0;
        self.waiting = 0;
        // More frames of the current burst may follow.
        self.sizes = self.burst_sizes;
    }

    /// Sends the waiting frames of one instance.
    pub(crate) fn flush_instance<M: FrameMemory<Frame = F>>(&mut self, slot: Slot, cx: &mut Context<M>) {
        let mut flush = Flush::new(&mut self.boxes, self.sizes, cx);
        let mut sent = 0;
        self.touched.retain(|lane| {
            let is_its = port_of(lane).0 == slot;
            if is_its {
                sent += flush.empty(lane);
            }
            !is_its
        });
        flush.offered.count(&flush.cx.counters);
        self.waiting -= sent;
        if let Some(instance) = &mut cx.ports.instances[slot] {
            (0..PORT_LIMIT).for_each(|port| instance.publish(port));
        }
    }
}

/// Packets of a burst, from a place on, that may be hits.
pub(crate) struct Hits<'a> {
    pub(crate) table: &'a mut FlowTable<TableMemory>,
    pub(crate) burst: &'a Burst,
    pub(crate) from: usize,
    pub(crate) now: Nanos,
    /// The outbox of each slot that has one.
    pub(crate) lanes: &'a Lanes,
}

struct PutHits<'a, 'f, F> {
    hits: Hits<'a>,
    /// The remaining frames, the next one first. By value, so that a loop keeps its position in a register.
    frames: Drain<'f, F>,
    bytes: &'a [u32; BURST_FRAMES],
    boxes: &'a mut [Outbox<F>; OUTBOXES],
    touched: &'a mut Touched,
}

impl<'f, F> Kernel for PutHits<'_, 'f, F> {
    type Output = (usize, Drain<'f, F>);

    #[inline(always)]
    fn run<W: Words>(self) -> Self::Output {
        // Two loops with few registers each are cheaper than one with many.
        let mut lanes = [0; BURST_FRAMES];
        let Hits {
            table,
            burst,
            from,
            now,
            lanes: of_slots,
        } = self.hits;
        let until = table.hit_burst::<W>(burst, from, now, of_slots, &mut lanes);
        let mut frames = self.frames;
        let bytes = self.bytes.get(from..).unwrap_or_default();
        for (&lane, &bytes) in lanes.get(from..until).unwrap_or_default().iter().zip(bytes) {
            let Some(frame) = frames.next() else { break };
            put(self.boxes, self.touched, lane, frame, bytes.into());
        }
        (until, frames)
    }
}

/// Packets that are still to be counted as offered to a service.
struct Offered {
    service: ServiceId,
    packets: u64,
    bytes: u64,
}

impl Offered {
    #[inline]
    fn count(&mut self, counters: &WorkerCounters) {
        counters.offer(
            self.service,
            std::mem::take(&mut self.packets),
            std::mem::take(&mut self.bytes),
        );
    }
}

/// Sends packets of tunnels out of their uplink, or keeps them for the worker that has it; leaves the list empty.
#[inline(never)]
fn leave<M: FrameMemory>(
    uplink: UplinkId,
    frames: &mut Vec<M::Frame>,
    ports: &mut UplinkMap<Option<Box<Port<M>>>>,
    away: &mut Vec<(UplinkId, M::Frame)>,
    memory: &mut M,
) {
    match &mut ports[uplink] {
        Some(port) => port.send_burst(frames, None, memory),
        None => away.extend(frames.drain(..).map(|frame| (uplink, frame))),
    }
}

/// Keeps errors for senders of packets that did not fit into a tunnel for the worker that has the uplink of the senders;
/// leaves the list empty. Nobody offered them.
#[cold]
fn tell_senders<F: Frame>(
    errors: &mut Vec<F>,
    way: Option<ReturnWay>,
    counters: &SlotCounters,
    (ends, away): (&Ends, &mut Vec<(UplinkId, F)>),
) {
    counters.originated.add(errors.len() as u64);
    counters.back_packets.add(errors.len() as u64);
    let uplink = way.map_or(UplinkId(0), |way| way.uplink);
    let mac = ends.mac(uplink);
    for mut error in errors.drain(..) {
        if let (Some(mac), Some(source)) = (mac, error.bytes_mut().get_mut(6..12)) {
            source.copy_from_slice(&mac);
        }
        away.push((uplink, error));
    }
}

/// Outboxes being emptied.
struct Flush<'a, M: FrameMemory> {
    boxes: &'a mut [Outbox<M::Frame>; OUTBOXES],
    sizes: Sizes,
    cx: &'a mut Context<M>,
    offered: Offered,
}

impl<'a, M: FrameMemory> Flush<'a, M> {
    #[inline(always)]
    fn new(
        boxes: &'a mut [Outbox<M::Frame>; OUTBOXES],
        sizes: Sizes,
        cx: &'a mut Context<M>,
    ) -> Flush<'a, M> {
        let offered = Offered {
            service: ServiceId(u16::MAX),
            packets: 0,
            bytes: 0,
        };
        Flush {
            boxes,
            sizes,
            cx,
            offered,
        }
    }

    /// Sends the frames of an outbox and records them as offered. Returns their number.
    #[inline(always)]
    fn empty(&mut self, lane: u16) -> usize {
        let (slot, port) = port_of(lane);
        let cx = &mut *self.cx;
        let Some(instance) = &mut cx.ports.instances[slot] else {
            return 0;
        };
        let outbox = &mut self.boxes[usize::from(lane) % OUTBOXES];
        let packets = outbox.frames.len();
        let bytes = std::mem::take(&mut outbox.bytes);
        if self.offered.service != instance.service {
            self.offered.count(&cx.counters);
            self.offered.service = instance.service;
        }
        self.offered.packets += packets as u64;
        self.offered.bytes += bytes;
        if !std::mem::replace(&mut instance.got[port % PORT_LIMIT], true) {
            cx.ports.sent_to.push((slot, port));
        }
        let sent = instance.send_all(
            port,
            &mut outbox.frames,
            (bytes, self.sizes),
            &mut cx.memory,
            &cx.counters.slots[slot],
            |(instance, service), frames| {
                if cx.tap.is_on() {
                    let of = Seen {
                        slot: Some(slot),
                        instance,
                        service: Some(service),
                        ..Seen::default()
                    };
                    let at = (CapturePoint::Before, cx.now);
                    cx.tap.see_instance(at, of, frames.iter().map(Frame::bytes));
                }
            },
        );
        if let Some(Some(Port::Tunnel(tunnel))) = instance.ports.get_mut(port) {
            if !tunnel.errors().is_empty() {
                let way = instance.ways.get(port).copied().flatten();
                let counters = &cx.counters.slots[slot];
                tell_senders(tunnel.errors(), way, counters, (&cx.ends, &mut cx.ports.away));
            }
            let (uplink, frames) = tunnel.leaving();
            let (ports, away) = (&mut cx.ports.uplinks, &mut cx.ports.away);
            leave(uplink, frames, ports, away, &mut cx.memory);
            cx.ports.tunnelled = Some(uplink);
        }
        if sent.full + sent.too_large > 0 {
            cx.counters.drop_packets(DropReason::InstanceRingFull, sent.full);
            cx.counters.drop_packets(DropReason::TooLarge, sent.too_large);
        }
        packets
    }
}
