//! The data ports of one instance, on its home worker.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use model::{InstanceId, ServiceId, Slot, UplinkId};
use switch::{Plan, SlotPlan};

use crate::counters::SlotCounters;
use crate::edit::Rewrite;
use crate::ends::End;
use crate::frame::{Frame, FrameMemory, Sizes};
use crate::port::{Pending, Port, Queue as _};
use crate::worker::OUTBOX_FRAMES;
use crate::worker::tap::Seen;

/// An instance has a data port per uplink of its service.
pub(crate) const PORT_LIMIT: usize = 2;

/// The probe frame, which tests whether an instance takes packets. Its EtherType is one that IEEE 802 reserves for
/// local experiments (0x88b5). It never leaves the switch, whatever the function does with its addresses.
/// Nothing else of this EtherType reaches an instance, because it is not IP.
pub(crate) const PROBE: [u8; 60] = {
    let mut frame = [0; 60];
    frame[0] = 0x02;
    frame[6] = 0x02;
    frame[12] = 0x88;
    frame[13] = 0xb5;
    let text = b"inco probe";
    let mut i = 0;
    while i < text.len() {
        frame[14 + i] = text[i];
        i += 1;
    }
    frame
};

/// Whether the frame is a returned probe: equal to the sent one in all but the addresses.
pub(crate) fn is_probe(bytes: &[u8]) -> bool {
    const MARK: std::ops::Range<usize> = 12..24;
    bytes.get(MARK) == PROBE.get(MARK)
}

/// The destination of packets that a data port returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReturnWay {
    /// Out of this uplink.
    pub(crate) uplink: UplinkId,
    /// Counted with its flow first.
    pub(crate) counted: bool,
    /// Replies of its service return through the edge.
    pub(crate) by_edge: bool,
    /// Its service is in a chain: they may go on to another one in place of that.
    pub(crate) is_in_chain: bool,
    /// Signals are taken out.
    pub(crate) signals: bool,
    /// Messages about moves with state are taken out.
    pub(crate) state_moves: bool,
    /// Edited before that.
    pub(crate) edit: Rewrite,
}

impl ReturnWay {
    /// Whether packets may go from ring to ring, without a copy in the worker.
    #[inline(always)]
    fn is_straight(&self) -> bool {
        let is_looked_at = self.counted || self.is_in_chain || self.signals || self.state_moves;
        !is_looked_at && !self.by_edge && self.edit.is_none()
    }
}

/// Turns without packets after which a port is polled less often.
const QUIET_TURNS: u32 = 64;
/// How often a quiet port is polled: every this many turns.
const QUIET_STRIDE: u32 = 8;

/// The data ports of one instance and their state between two turns. The fields of a flush come first: with many
/// instances they are not in the processor's cache.
#[repr(C, align(64))]
pub struct InstancePorts<M: FrameMemory> {
    /// Packets sent to it, minus packets returned, plus packets that it originated. They are lost when it fails.
    pub outstanding: u64,
    quiet: u32,
    /// Its service, as soon as a plan names it.
    pub(crate) service: ServiceId,
    /// The edit of packets towards it.
    edit: Rewrite,
    /// The ports, in the order of the service's uplinks.
    pub(crate) ports: [Option<Port<M>>; PORT_LIMIT],
    /// How full the ports' rings were at their last flush.
    fills: [Fill; PORT_LIMIT],
    /// Whether the peer gave an invalid descriptor, and whether that has been reported.
    pub(crate) broken: Broken,
    /// Its part in connections, where it is their end.
    pub(crate) end: Option<Box<End>>,
    /// Whether it was ever probed, so that probes may come back.
    pub(crate) is_probed: bool,
    /// Ports that got packets in this turn.
    pub(crate) got: [bool; PORT_LIMIT],
    /// Ports that gave packets in this turn.
    pub(crate) gave: [bool; PORT_LIMIT],
    /// What it waits for, where it goes on from an earlier run.
    waits: Option<Waits>,
    /// Its instance id, as soon as a plan names it.
    pub(crate) id: Option<InstanceId>,
    /// Where returned packets go, by port: as the newest plan with this instance says. It holds after the instance
    /// has left the plan, so that what it still has comes out.
    pub(crate) ways: [Option<ReturnWay>; PORT_LIMIT],
    /// Room for the frames that wait for a flush, by port; the worker has it while the instance is attached.
    pub(crate) rooms: [Vec<M::Frame>; PORT_LIMIT],
}

/// Of each uplink: whether packets may come from it.
pub(crate) type Gates = Arc<[Arc<AtomicBool>]>;

/// What comes before packets are taken from an instance of an earlier run.
#[derive(Debug)]
struct Waits {
    /// A plan, which says where they go.
    for_plan: bool,
    /// In a chain, the uplinks: these open once the instances are there to which the packets go.
    for_gates: Gates,
}

/// Whether a peer breaks the protocol of its rings.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Broken {
    pub(crate) is_it: bool,
    is_told: bool,
}

/// Occupancy of a port's ring.
#[derive(Clone, Copy, Debug, Default)]
struct Fill {
    /// Descriptors in use at the last flush.
    used: u32,
    /// Flushes in a row that found at least a quarter of them in use.
    crowded: u8,
}

impl<M: FrameMemory> InstancePorts<M> {
    /// An instance with these ports, at most [`PORT_LIMIT`].
    pub fn new(ports: Vec<Port<M>>) -> InstancePorts<M> {
        let mut ports = ports.into_iter();
        InstancePorts {
            ports: std::array::from_fn(|_| ports.next()),
            outstanding: 0,
            rooms: std::array::from_fn(|_| Vec::with_capacity(OUTBOX_FRAMES)),
            id: None,
            service: ServiceId(u16::MAX),
            edit: Rewrite::None,
            ways: [None; PORT_LIMIT],
            broken: Broken::default(),
            end: None,
            is_probed: false,
            got: [false; PORT_LIMIT],
            gave: [false; PORT_LIMIT],
            waits: None,
            fills: [Fill::default(); PORT_LIMIT],
            quiet: 0,
        }
    }

    /// The same, as an earlier run left it.
    #[must_use]
    pub(crate) fn of_earlier_run(mut self, gates: Gates) -> InstancePorts<M> {
        self.waits = Some(Waits {
            for_plan: true,
            for_gates: gates,
        });
        self
    }

    /// Whether no packet is to be taken from it yet.
    #[inline]
    pub(crate) fn is_waiting(&mut self) -> bool {
        let Some(waits) = &self.waits else { return false };
        // Acquire: the plan that was published before an uplink was opened is then seen.
        let is_closed = |way: &ReturnWay| {
            let gate = waits.for_gates.get(way.uplink.index());
            way.is_in_chain && gate.is_some_and(|is_open| !is_open.load(Ordering::Acquire))
        };
        if waits.for_plan || self.ways.iter().flatten().any(is_closed) {
            return true;
        }
        self.waits = None;
        false
    }

    /// The same, as the end of connections.
    #[must_use]
    pub(crate) fn ending(mut self, end: End) -> InstancePorts<M> {
        self.end = Some(Box::new(end));
        self
    }

    /// Whose its packets are, with the slot that it has.
    pub(crate) fn seen(&self, slot: Slot) -> Seen {
        Seen {
            slot: Some(slot),
            instance: self.id,
            service: Some(self.service),
            ..Seen::default()
        }
    }

    /// Its ports.
    pub fn ports(&mut self) -> impl Iterator<Item = &mut Port<M>> {
        self.ports.iter_mut().flatten()
    }

    /// Makes visible to it what it was sent on that port.
    #[inline(always)]
    pub(crate) fn publish(&mut self, port: usize) {
        if let (Some(got), Some(Some(port))) = (self.got.get_mut(port), self.ports.get_mut(port)) {
            *got = false;
            port.publish();
        }
    }

    /// Gives it the places back of what was received from that port.
    #[inline(always)]
    pub(crate) fn release(&mut self, port: usize) {
        if let (Some(gave), Some(Some(port))) = (self.gave.get_mut(port), self.ports.get_mut(port)) {
            *gave = false;
            port.release();
        }
    }

    /// The uplink to which what comes back on that port may go from ring to ring.
    #[inline(always)]
    pub(crate) fn straight_to(&self, port: usize) -> Option<UplinkId> {
        let way = self.ways.get(port)?.as_ref()?;
        (way.is_straight() && !self.is_probed).then_some(way.uplink)
    }

    /// Whether it has that one.
    #[inline]
    pub(crate) fn has(&self, port: u8) -> bool {
        self.ports.get(usize::from(port)).is_some_and(Option::is_some)
    }

    /// Whether this turn should poll for returned packets: always while there are some, else now and then.
    pub fn is_due(&mut self) -> bool {
        if self.quiet < QUIET_TURNS {
            return true;
        }
        self.quiet += 1;
        if self.quiet >= QUIET_TURNS + QUIET_STRIDE {
            self.quiet = QUIET_TURNS;
            return true;
        }
        false
    }

    /// Records the number of packets of a poll.
    pub fn polled(&mut self, packets: usize) {
        self.quiet = if packets > 0 {
            0
        } else {
            self.quiet.saturating_add(1)
        };
    }

    /// Takes over the plan's settings of the instance.
    pub(crate) fn note(&mut self, slot_plan: &SlotPlan, plan: &Plan) {
        self.id = Some(slot_plan.instance);
        if let Some(waits) = &mut self.waits {
            waits.for_plan = false;
        }
        self.service = slot_plan.service;
        self.edit = Rewrite::new(&slot_plan.edits.to_instance);
        if let Some(end) = &mut self.end {
            end.note(slot_plan.service, plan);
        }
        let is_end = self.end.is_some();
        if let Some(service) = plan.service(slot_plan.service) {
            // What ends connections returns nothing.
            let is_in_chain = !is_end && (service.next.is_some() || plan.previous(service.id).is_some());
            for (port, way) in self.ways.iter_mut().enumerate() {
                *way = service.uplinks.get(port).map(|uplink| ReturnWay {
                    uplink: *uplink,
                    counted: service.return_counters
                        || service.relaxed && !service.affinity_key.reads_content()
                        || is_end,
                    by_edge: service.replies_by_edge,
                    is_in_chain,
                    signals: service.signals,
                    state_moves: service.moves_state,
                    edit: Rewrite::new(&slot_plan.edits.to_uplink),
                });
            }
        }
    }

    /// Sends a probe on the first port, uncounted; everything else must have been flushed. Nothing happens where no
    /// frame or no room is left: it can be asked again.
    pub fn probe(&mut self, memory: &mut M) {
        let (Some(Some(port)), Some(mut frame)) = (self.ports.first_mut(), memory.take()) else {
            return;
        };
        if let Some(room) = frame.room().get_mut(..PROBE.len()) {
            room.copy_from_slice(&PROBE);
        }
        frame.set_len(PROBE.len());
        port.send(frame, memory);
        port.flush(memory);
        self.is_probed = true;
        self.quiet = 0;
    }

    /// Whether at least half of the rings towards it is free, as far as that is known.
    pub(crate) fn has_room(&mut self) -> bool {
        let fills = self.ports.iter_mut().flatten().map(|port| port.fill());
        fills.flatten().all(|(used, slots)| used * 2 <= slots)
    }

    /// Puts a message into the ring of a port, uncounted, behind what was sent there. It becomes visible with the turn's
    /// commit. `frames` is empty, and stays so. Whether it had room.
    pub(crate) fn tell(
        &mut self,
        port: usize,
        frame: M::Frame,
        frames: &mut Vec<M::Frame>,
        memory: &mut M,
    ) -> bool {
        let Some(Some(ring)) = self.ports.get_mut(port) else {
            memory.give(frame);
            return false;
        };
        self.quiet = 0;
        let mut sizes = Sizes::NONE;
        let bytes = frame.len();
        sizes.note(bytes);
        frames.push(frame);
        ring.send_all(frames, bytes as u64, sizes, memory).packets > 0
    }

    /// Whether a peer has been found to break its rings' protocol since the last call.
    pub(crate) fn is_newly_broken(&mut self) -> bool {
        self.broken.is_it |= self.ports.iter().flatten().any(|port| port.is_broken());
        self.broken.is_it && !std::mem::replace(&mut self.broken.is_told, true)
    }

    /// Edits frames, sends them on a port, and leaves the list empty. Counts the sent and the refused ones, and the
    /// instance as hot if the port's ring was full, or a quarter of it in use at two consecutive flushes. `see` is
    /// shown the frames as the instance will see them.
    #[inline(always)]
    pub(crate) fn send_all(
        &mut self,
        port: usize,
        frames: &mut Vec<M::Frame>,
        known: (u64, Sizes),
        memory: &mut M,
        counters: &SlotCounters,
        see: impl FnOnce((Option<InstanceId>, ServiceId), &[M::Frame]),
    ) -> Pending {
        let (Some(Some(ring)), Some(fill)) = (self.ports.get_mut(port), self.fills.get_mut(port)) else {
            return Pending::default();
        };
        // Packets are being sent, so returns are likely.
        self.quiet = 0;
        if let Some(end) = &self.end {
            end.enter(frames);
        }
        let (bytes, sizes) = self.edit.apply(frames, known);
        see((self.id, self.service), frames);
        let leaves = matches!(ring, Port::Tunnel(_));
        let sent = ring.send_all(frames, bytes, sizes, memory);
        if leaves {
            // By an uplink, at once.
            counters.back_packets.add(sent.packets);
            counters.back_bytes.add(sent.bytes);
        } else if self.end.is_some() {
            counters.delivered.add(sent.packets);
        } else {
            self.outstanding += sent.packets;
        }
        counters.to_packets.add(sent.packets);
        counters.to_bytes.add(sent.bytes);
        let mut is_hot = false;
        if let Some((used, slots)) = ring.fill() {
            fill.used = used;
            fill.crowded = if used * 4 >= slots {
                fill.crowded.saturating_add(1)
            } else {
                0
            };
            is_hot = fill.crowded >= 2;
            let used: u32 = self.fills.iter().map(|fill| fill.used).sum();
            counters.ring_used.set(used.into());
        }
        if sent.full + sent.too_large > 0 {
            counters.ring_drops.add(sent.full);
            counters.too_large.add(sent.too_large);
            is_hot |= sent.full > 0;
        }
        if is_hot {
            counters.hot.add(1);
        }
        sent
    }

    /// Counts packets that came back.
    pub fn returned(&mut self, packets: u64, bytes: u64, counters: &SlotCounters) {
        counters.back_packets.add(packets);
        counters.back_bytes.add(bytes);
        if packets > self.outstanding {
            counters.originated.add(packets - self.outstanding);
        }
        self.outstanding = self.outstanding.saturating_sub(packets);
    }

    /// Counts packets that were lost on their way to it or back. What it has not been given is its own.
    pub(crate) fn lost(&mut self, packets: u64, counters: &SlotCounters) {
        let given = packets.min(self.outstanding);
        self.outstanding -= given;
        counters.kept.add(given);
        counters.back_packets.add(packets - given);
        counters.originated.add(packets - given);
        counters.ring_drops.add(packets);
    }

    /// Sets the gauges of the rings.
    pub fn gauge(&mut self, counters: &SlotCounters) {
        let (mut used, mut slots, mut back, mut consumed) = (0u64, 0u64, 0u64, 0u64);
        for port in self.ports.iter_mut().flatten() {
            let rings = port.occupancy().unwrap_or_default();
            used += u64::from(rings.used);
            slots += u64::from(rings.slots);
            back += u64::from(rings.back);
            consumed = consumed.wrapping_add(rings.consumed);
        }
        counters.ring_used.set(used);
        counters.ring_slots.set(slots);
        counters.back_used.set(back);
        counters.consumed.set(consumed);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use ::memif::{Client, ClientConfig, Link, Listener, ServerConfig};
    use flow_table::FlowHasher;
    use model::{DropReason, Nanos, Slot, WorkerId};
    use simd::Level;

    use super::*;
    use crate::counters::WorkerCounters;
    use crate::frame::{HeapFrame, HeapMemory};
    use crate::port::MemifPort;
    use crate::worker::commit;
    use crate::worker::context::{Context, Ports, View};
    use crate::worker::outbox::{Outboxes, lane_of};
    use crate::worker::tap::Tap;

    const SLOT: Slot = Slot(3);
    const FRAME_BYTES: usize = 1522;
    const HEADER: [u8; 50] = [0xab; 50];

    /// Both ends of a link: ours, and the instance's.
    fn link() -> (Link, Link) {
        let patience = Duration::from_secs(20);
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("link.sock");
        let mut listener = Listener::bind(&socket, ServerConfig::new("headroom")).unwrap();
        let config = ClientConfig::new(&socket, 0);
        let connecting = std::thread::spawn(move || Client::connect(&config, patience).unwrap());
        let accepted = listener.accept(patience).unwrap().unwrap();
        (connecting.join().unwrap(), accepted)
    }

    fn frame(memory: &mut HeapMemory, bytes: &[u8]) -> HeapFrame {
        let mut frame = memory.take().unwrap();
        frame.room()[..bytes.len()].copy_from_slice(bytes);
        frame.set_len(bytes.len());
        frame
    }

    #[test]
    fn an_edit_puts_a_header_before_frames_on_their_way_through_an_outbox_into_a_ring() {
        let (mut ours, mut peer) = link();
        let port = Port::Memif(MemifPort::new(ours.queues.remove(0))).for_frames(FRAME_BYTES + HEADER.len());
        let mut instance = InstancePorts::new(vec![port]);
        instance.edit = Rewrite::Before(&HEADER);
        let (events, _told) = rtrb::RingBuffer::new(8);
        let mut cx = Context {
            id: WorkerId(0),
            workers: 1,
            now: Nanos::ZERO,
            hasher: FlowHasher::new([0; 4]),
            level: Level::detect(),
            memory: HeapMemory::shares(1, 64, FRAME_BYTES).remove(0),
            counters: Arc::new(WorkerCounters::default()),
            ends: Arc::default(),
            ports: Ports::new(),
            view: View::new(&Arc::default()),
            events,
            tap: Tap::new(),
            said: Vec::new(),
            paths: None,
        };
        let mut outboxes = Outboxes::new();
        *outboxes.room(SLOT, 0) = std::mem::take(&mut instance.rooms[0]);
        cx.ports.instances[SLOT] = Some(Box::new(instance));
        let frames = [60, 61, FRAME_BYTES, 1000].map(|len| (0..len).map(|at| at as u8).collect::<Vec<_>>());
        for bytes in &frames {
            let frame = frame(&mut cx.memory, bytes);
            outboxes.put(lane_of(SLOT, 0), frame, &mut cx);
        }
        // A frame without headroom is dropped, not sent without its header.
        let mut full = cx.memory.take().unwrap();
        full.set_len(usize::MAX);
        outboxes.put(lane_of(SLOT, 0), full, &mut cx);
        outboxes.flush(&mut cx);
        commit::publish(&mut None, &mut cx);

        let mut buffer = vec![0; 2048];
        for bytes in &frames {
            let len = peer.queues[0].rx.pop(&mut buffer).unwrap().unwrap();
            assert_eq!(buffer[..HEADER.len()], HEADER);
            assert_eq!(buffer[HEADER.len()..len], bytes[..]);
        }
        assert!(peer.queues[0].rx.pop(&mut buffer).is_none());
        let counters = &cx.counters.slots[SLOT];
        let bytes: usize = frames.iter().map(|bytes| bytes.len() + HEADER.len()).sum();
        assert_eq!(
            (counters.to_packets.get(), counters.to_bytes.get()),
            (4, bytes as u64)
        );
        assert_eq!(cx.counters.drops[DropReason::TooLarge.index()].get(), 1);
        let back: Vec<_> = std::iter::from_fn(|| cx.memory.take()).collect();
        assert_eq!(back.len(), 64, "no frame is lost");
    }
}
