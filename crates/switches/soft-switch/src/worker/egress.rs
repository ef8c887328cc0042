//! Egress: packets leave for an instance, an uplink or another worker. Nothing that enters this stage goes back to an
//! earlier one.

use std::sync::Arc;

use flow_table::Lanes;
use model::{DropReason, Fallback, InstanceId, ServiceId, Slot, UplinkId};
use packet::vxlan;
use rtrb::Producer;

use crate::BURST_FRAMES;
use crate::frame::{Frame as _, FrameMemory};
use crate::id_map::UplinkMap;
use crate::idle::Waker;
use crate::instance::PORT_LIMIT;
use crate::message::{Destination, HandOff};
use crate::port::Queue as _;
use crate::worker::commit::{self, CommitPage};
use crate::worker::context::{Context, Ports};
use crate::worker::outbox::{Outboxes, lane_of};
use crate::worker::tap::Seen;

/// The destination of a packet after lookup and, for a new flow, set-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    /// To that instance, of that service.
    Instance { slot: Slot, service: ServiceId },
    /// Dropped: it was offered to that service, which cannot take it.
    Refused { service: ServiceId, reason: DropReason },
    /// It belongs to no service.
    Fallback(Fallback),
}

/// The instance that is the destination of a frame.
#[derive(Clone, Copy)]
pub(crate) struct Addressee {
    pub(crate) slot: Slot,
    /// Which instance had the slot when the frame was steered.
    pub(crate) instance: InstanceId,
    pub(crate) service: ServiceId,
    /// Which of its data ports.
    pub(crate) port: u8,
}

/// The last stage of a packet.
pub(crate) struct Egress<M: FrameMemory> {
    pub(crate) outboxes: Outboxes<M::Frame>,
    /// By uplink: the outbox of each slot to which packets of established flows go without another check.
    pub(crate) lanes: UplinkMap<Lanes>,
    /// Whether the lanes are outdated.
    pub(crate) lanes_are_stale: bool,
    uplinks_touched: [bool; UplinkId::LIMIT],
    to_peers: HandOffs<M::Frame>,
    page: Option<CommitPage>,
    /// Room for one message to an instance.
    message: Vec<M::Frame>,
}

impl<M: FrameMemory> Egress<M> {
    pub(crate) fn new(to_peers: HandOffs<M::Frame>, page: Option<CommitPage>) -> Egress<M> {
        Egress {
            outboxes: Outboxes::new(),
            lanes: UplinkMap::default(),
            lanes_are_stale: true,
            uplinks_touched: [false; UplinkId::LIMIT],
            to_peers,
            page,
            message: Vec::with_capacity(1),
        }
    }

    /// Lists the slots that packets of established flows reach on the fast path: instances that serve and whose home
    /// worker this is.
    #[cold]
    pub(crate) fn draw_lanes(&mut self, cx: &Context<M>, is_usable: impl Fn(Slot) -> bool) {
        self.lanes_are_stale = false;
        for (uplink, lanes) in (0..).map(UplinkId).zip(self.lanes.iter_mut()) {
            lanes.clear();
            for &slot in &cx.ports.attached {
                let (route, Some(instance)) = (&cx.view.routes[slot], &cx.ports.instances[slot]) else {
                    continue;
                };
                let port = route.port_of(uplink);
                let is_direct = route.serves
                    && route.home == cx.id
                    && instance.id == Some(route.instance)
                    && instance.has(port)
                    && is_usable(slot);
                if is_direct {
                    lanes.set(slot, lane_of(slot, port));
                }
            }
        }
    }

    /// Sends a packet that came in on that uplink to its destination.
    #[inline(always)]
    pub(crate) fn send(
        &mut self,
        frame: M::Frame,
        decision: Decision,
        uplink: UplinkId,
        cx: &mut Context<M>,
    ) {
        match decision {
            Decision::Instance { slot, service } => self.send_to_instance(frame, slot, service, uplink, cx),
            Decision::Refused { service, reason } => refuse(frame, service, reason, cx),
            Decision::Fallback(fallback) => {
                self.fall_back(frame, uplink, (fallback, DropReason::Unmatched), cx);
            }
        }
    }

    #[inline(always)]
    fn send_to_instance(
        &mut self,
        frame: M::Frame,
        slot: Slot,
        service: ServiceId,
        uplink: UplinkId,
        cx: &mut Context<M>,
    ) {
        match self.lanes[uplink].of(slot) {
            Some(lane) if !self.lanes_are_stale => self.outboxes.put(lane, frame, cx),
            _ => self.send_to_routed_instance(frame, slot, service, uplink, cx),
        }
    }

    fn send_to_routed_instance(
        &mut self,
        frame: M::Frame,
        slot: Slot,
        service: ServiceId,
        uplink: UplinkId,
        cx: &mut Context<M>,
    ) {
        let route = cx.view.routes[slot];
        if !route.serves {
            return refuse(frame, service, DropReason::NoInstance, cx);
        }
        let to = Addressee {
            slot,
            instance: route.instance,
            service,
            port: route.port_of(uplink),
        };
        if route.home == cx.id {
            self.send_to_own_instance(frame, to, cx);
        } else {
            let Addressee {
                slot, instance, port, ..
            } = to;
            let to = Destination::Instance {
                slot,
                instance,
                service,
                port,
            };
            self.hand_off(route.home.index(), frame, to, cx);
        }
    }

    /// Sends a frame to an instance whose home worker this is.
    #[inline]
    pub(crate) fn send_to_own_instance(&mut self, frame: M::Frame, to: Addressee, cx: &mut Context<M>) {
        let Some(instance) = &mut cx.ports.instances[to.slot] else {
            // Its ports are closed; its pins will be removed.
            return refuse(frame, to.service, DropReason::InstanceLost, cx);
        };
        if instance.id != Some(to.instance) {
            // The sender may have a newer plan than this turn's. Or the slot got another instance while the frame
            // was in a ring.
            let plan = cx.view.published();
            match plan.slot(to.slot) {
                Some(slot_plan) if slot_plan.instance == to.instance && instance.id.is_none() => {
                    instance.note(slot_plan, plan);
                    self.lanes_are_stale = true;
                }
                _ => return refuse(frame, to.service, DropReason::InstanceLost, cx),
            }
        }
        if !instance.has(to.port) {
            return refuse(frame, to.service, DropReason::NoInstance, cx);
        }
        self.outboxes.put(lane_of(to.slot, to.port), frame, cx);
    }

    /// Puts a message into the ring of an instance whose home worker this is, behind all packets for it. Whether it had
    /// room.
    pub(crate) fn tell(&mut self, frame: M::Frame, slot: Slot, port: u8, cx: &mut Context<M>) -> bool {
        self.outboxes.flush(cx);
        let port = usize::from(port) % PORT_LIMIT;
        let Some(instance) = &mut cx.ports.instances[slot] else {
            cx.memory.give(frame);
            return false;
        };
        let has_room = instance.tell(port, frame, &mut self.message, &mut cx.memory);
        if !std::mem::replace(&mut instance.got[port], true) {
            cx.ports.sent_to.push((slot, port));
        }
        has_room
    }

    /// Sends a packet of no service, which came in on that uplink, where the plan says, or drops it. One that asks for
    /// an address of a service is answered.
    pub(crate) fn fall_back(
        &mut self,
        mut frame: M::Frame,
        uplink: UplinkId,
        (fallback, reason): (Fallback, DropReason),
        cx: &mut Context<M>,
    ) {
        cx.ends.tunnels().hear(uplink, frame.bytes(), cx.now);
        if cx.ends.answer(&mut frame, uplink, &cx.view.plan) {
            return self.send_to_uplink(frame, uplink, cx);
        }
        match fallback.exit(uplink) {
            None => cx.discard(frame, reason),
            Some(uplink) => {
                cx.counters.figures.passed.add(1);
                cx.see_leaving(frame.bytes(), uplink, None);
                self.send_to_uplink(frame, uplink, cx);
            }
        }
    }

    /// Whether an uplink has packets to flush.
    pub(crate) fn is_touched(&self, uplink: UplinkId) -> bool {
        self.uplinks_touched[uplink.index() % UplinkId::LIMIT]
    }

    /// Asks for the machines at the far ends of tunnels that are to be asked now, where this worker has the uplink.
    #[cold]
    pub(crate) fn ask_neighbours(&mut self, cx: &mut Context<M>) {
        let ends = Arc::clone(&cx.ends);
        ends.tunnels().questions(cx.now, |end, slot, asked| {
            let (Some(mac), Some(mut frame)) = (ends.mac(end.uplink), cx.memory.take()) else {
                return;
            };
            // Nobody offered it, and it leaves by the uplink.
            let counters = &cx.counters.slots[slot];
            counters.originated.add(1);
            counters.back_packets.add(1);
            if let Some(room) = frame.room().first_chunk_mut::<{ vxlan::ARP_FRAME }>() {
                vxlan::ask(room, mac, end.address, asked);
                frame.set_len(vxlan::ARP_FRAME);
            }
            self.send_to_own_uplink(frame, end.uplink, cx);
        });
    }

    /// Marks an uplink as one with packets to flush.
    pub(crate) fn touch(&mut self, uplink: UplinkId) {
        self.uplinks_touched[uplink.index() % UplinkId::LIMIT] = true;
    }

    /// Sends frames out of an uplink, and leaves the list empty.
    pub(crate) fn all_to_uplink(
        &mut self,
        frames: &mut Vec<M::Frame>,
        uplink: UplinkId,
        cx: &mut Context<M>,
    ) {
        if let Some(port) = &mut cx.ports.uplinks[uplink] {
            port.send_burst(frames, None, &mut cx.memory);
            return self.touch(uplink);
        }
        for frame in frames.drain(..) {
            self.send_to_uplink(frame, uplink, cx);
        }
    }

    /// Sends a frame out of an uplink, by the worker that has a queue of it.
    #[inline]
    pub(crate) fn send_to_uplink(&mut self, frame: M::Frame, uplink: UplinkId, cx: &mut Context<M>) {
        // An uplink with fewer queues than there are workers has a home worker.
        let home = uplink.index() % cx.workers;
        if home == cx.id.index() || cx.ports.uplinks[uplink].is_some() {
            self.send_to_own_uplink(frame, uplink, cx);
        } else {
            self.hand_off(home, frame, Destination::Uplink(uplink), cx);
        }
    }

    /// Sends a frame out of an uplink here, where this worker has a queue of it.
    pub(crate) fn send_to_own_uplink(&mut self, frame: M::Frame, uplink: UplinkId, cx: &mut Context<M>) {
        match &mut cx.ports.uplinks[uplink] {
            Some(port) => {
                port.send(frame, &mut cx.memory);
                self.touch(uplink);
            }
            None => {
                cx.counters.uplinks[uplink].dropped.add(1);
                cx.discard(frame, DropReason::UplinkDown);
            }
        }
    }

    /// Hands a frame to another worker.
    #[inline]
    pub(crate) fn hand_off(&mut self, worker: usize, frame: M::Frame, to: Destination, cx: &mut Context<M>) {
        self.to_peers.put(worker, HandOff { frame, to }, cx);
    }

    /// Hands packets of tunnels, and errors about such, to the worker that has their uplink.
    #[cold]
    fn send_away(&mut self, cx: &mut Context<M>) {
        // The list is taken out and put back, so that its memory is used again.
        let mut away = std::mem::take(&mut cx.ports.away);
        for (uplink, frame) in away.drain(..) {
            self.send_to_uplink(frame, uplink, cx);
        }
        cx.ports.away = away;
    }

    /// Commits the turn: makes everything that was sent visible, and gives the places of what was received back.
    pub(crate) fn flush(&mut self, cx: &mut Context<M>) {
        if self.outboxes.waiting() > 0 {
            self.outboxes.flush(cx);
        }
        if let Some(uplink) = cx.ports.tunnelled.take() {
            self.touch(uplink);
        }
        if !cx.ports.away.is_empty() {
            self.send_away(cx);
        }
        let Ports {
            sent_to,
            received_from,
            uplinks_gave,
            ..
        } = &cx.ports;
        let is_idle = sent_to.is_empty() && received_from.is_empty() && !uplinks_gave;
        if is_idle && self.uplinks_touched == [false; UplinkId::LIMIT] {
            // No ring has moved: there is nothing to note or to store.
            return self.to_peers.flush(cx);
        }
        commit::publish(&mut self.page, cx);
        for (uplink, touched) in (0..).map(UplinkId).zip(&mut self.uplinks_touched) {
            if !std::mem::take(touched) {
                continue;
            }
            let Some(port) = &mut cx.ports.uplinks[uplink] else {
                continue;
            };
            let sent = port.flush(&mut cx.memory);
            let counters = &cx.counters.uplinks[uplink];
            counters.sent_packets.add(sent.packets);
            counters.sent_bytes.add(sent.bytes);
            counters.dropped.add(sent.full + sent.too_large);
            cx.counters.drop_packets(DropReason::UplinkRingFull, sent.full);
            cx.counters.drop_packets(DropReason::TooLarge, sent.too_large);
        }
        self.to_peers.flush(cx);
        commit::release(&self.page, cx);
    }
}

/// Drops a packet that was offered to a service.
#[cold]
pub(crate) fn refuse<M: FrameMemory>(
    frame: M::Frame,
    service: ServiceId,
    reason: DropReason,
    cx: &mut Context<M>,
) {
    cx.counters.offer(service, 1, frame.len() as u64);
    let of = Seen {
        service: Some(service),
        ..Seen::default()
    };
    cx.discard_of(frame, of, reason);
}

/// Frames for other workers.
pub(crate) struct HandOffs<F> {
    /// By worker, until a burst of them is there or the turn ends.
    leaving: Vec<Vec<HandOff<F>>>,
    /// By worker; `None` at its own place.
    rings: Vec<Option<Producer<HandOff<F>>>>,
    wakers: Vec<Option<Arc<Waker>>>,
    /// Workers that were handed frames in this turn, a bit each.
    handed_to: u64,
}

impl<F: crate::frame::Frame> HandOffs<F> {
    pub(crate) fn new(
        rings: Vec<Option<Producer<HandOff<F>>>>,
        wakers: Vec<Option<Arc<Waker>>>,
    ) -> HandOffs<F> {
        HandOffs {
            leaving: rings.iter().map(|_| Vec::with_capacity(BURST_FRAMES)).collect(),
            rings,
            wakers,
            handed_to: 0,
        }
    }

    #[inline]
    fn put<M: FrameMemory<Frame = F>>(&mut self, worker: usize, handed: HandOff<F>, cx: &mut Context<M>) {
        let Some(leaving) = self.leaving.get_mut(worker) else {
            return drop_handed(handed, DropReason::HandOffFull, cx);
        };
        leaving.push(handed);
        if leaving.len() == BURST_FRAMES {
            self.hand_over(worker, cx);
        }
    }

    /// Hands waiting frames to another worker, as many as its ring has room for.
    fn hand_over<M: FrameMemory<Frame = F>>(&mut self, worker: usize, cx: &mut Context<M>) {
        let Some(leaving) = self.leaving.get_mut(worker) else {
            return;
        };
        let mut all = leaving.drain(..);
        let mut handed = 0;
        if let Some(Some(ring)) = self.rings.get_mut(worker)
            && let Ok(room) = ring.write_chunk_uninit(all.len().min(ring.slots()))
        {
            handed = room.fill_from_iter(&mut all);
        }
        cx.counters.figures.handed_off.add(handed as u64);
        for left in all {
            drop_handed(left, DropReason::HandOffFull, cx);
        }
        if handed > 0 {
            self.handed_to |= 1 << worker.min(63);
        }
    }

    fn flush<M: FrameMemory<Frame = F>>(&mut self, cx: &mut Context<M>) {
        for worker in 0..self.leaving.len() {
            self.hand_over(worker, cx);
        }
        let mut handed_to = std::mem::take(&mut self.handed_to);
        while handed_to != 0 {
            let worker = handed_to.trailing_zeros() as usize;
            handed_to &= handed_to - 1;
            if let Some(Some(waker)) = self.wakers.get(worker) {
                waker.wake();
            }
        }
    }
}

/// Drops a frame between two workers. A frame that was steered already counts as offered to its service.
#[cold]
pub(crate) fn drop_handed<M: FrameMemory>(
    handed: HandOff<M::Frame>,
    reason: DropReason,
    cx: &mut Context<M>,
) {
    match handed.to {
        Destination::Instance { service, .. } => refuse(handed.frame, service, reason, cx),
        // No packet: the move that it is about reaches its limit.
        Destination::Message { .. } | Destination::Said { .. } => cx.memory.give(handed.frame),
        Destination::Steering(_)
        | Destination::Content(_)
        | Destination::Look(_)
        | Destination::CameBack { .. }
        | Destination::Uplink(_)
        | Destination::Return(_)
        | Destination::Reply(_)
        | Destination::OfMachine(_)
        | Destination::Passed(_) => {
            cx.discard(handed.frame, reason);
        }
    }
}
