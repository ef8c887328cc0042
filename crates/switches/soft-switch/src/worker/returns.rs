//! Returns: a packet from an instance leaves by the uplink of its data port, whatever the packet is; in a chain of
//! services it goes on to the next one.

use flow_table::EntryIndex;
use model::{CapturePoint, DropReason, FlowKey, Nanos, Slot};
use packet::Parsed;
use rtrb::Producer;

use crate::BURST_FRAMES;
use crate::counters::WorkerCounters;
use crate::frame::{Frame, FrameMemory, Sizes};
use crate::id_map::SlotMap;
use crate::instance::{PORT_LIMIT, ReturnWay, is_probe};
use crate::message::{Destination, FlowOf, Passed, Returned, WorkerEvent};
use crate::port::{Queue as _, Received};
use crate::worker::DRAIN_BURSTS;
use crate::worker::context::{Context, MESSAGES_LIMIT};
use crate::worker::egress::Egress;
use crate::worker::ingress::Ingress;
use crate::worker::lookup::Lookup;
use crate::worker::parse::Parser;
use crate::worker::replies::ByEdge;
use crate::worker::set_up::SetUp;
use crate::worker::{chain, ends, translated};

/// The stage for returned packets.
pub(crate) struct Returns<M: FrameMemory> {
    /// Slots whose ports are polled, in the order of their attachment.
    pollable: Vec<Slot>,
    /// Received frames of the current burst.
    frames: Vec<M::Frame>,
    /// When the last signal of each instance was taken.
    signals_at: SlotMap<Nanos>,
}

/// The stages after this one, and what a burst is parsed with.
pub(crate) struct Onward<'a, M: FrameMemory> {
    pub(crate) parser: &'a mut Parser,
    pub(crate) ingress: &'a mut Ingress<M>,
    pub(crate) lookup: &'a mut Lookup,
    pub(crate) set_up: &'a mut SetUp,
    pub(crate) egress: &'a mut Egress<M>,
    pub(crate) cx: &'a mut Context<M>,
}

impl<M: FrameMemory> Returns<M> {
    pub(crate) fn new() -> Returns<M> {
        Returns {
            pollable: Vec::with_capacity(Slot::LIMIT),
            frames: Vec::with_capacity(BURST_FRAMES),
            signals_at: SlotMap::default(),
        }
    }

    /// Starts or stops polling the ports of an instance.
    pub(crate) fn set_pollable(&mut self, slot: Slot, is_pollable: bool) {
        self.pollable.retain(|s| *s != slot);
        if is_pollable {
            self.pollable.push(slot);
        }
    }

    /// Passes on returned packets: at most a burst from each port of each instance that is due.
    pub(crate) fn poll(&mut self, to: &mut Onward<'_, M>) -> usize {
        let mut moved = 0;
        for place in 0..self.pollable.len() {
            let slot = self.pollable[place];
            let instance = &mut to.cx.ports.instances[slot];
            if !instance.as_mut().is_some_and(|instance| instance.is_due()) {
                continue;
            }
            let packets = self.poll_instance(slot, to);
            if let Some(instance) = &mut to.cx.ports.instances[slot] {
                instance.polled(packets);
            }
            moved += packets;
        }
        moved
    }

    fn poll_instance(&mut self, slot: Slot, to: &mut Onward<'_, M>) -> usize {
        (0..PORT_LIMIT).map(|port| self.poll_port(slot, port, to)).sum()
    }

    /// Passes on the packets that an instance returned before its removal: they are not lost.
    pub(crate) fn take_back(&mut self, slot: Slot, to: &mut Onward<'_, M>) {
        if to.cx.ports.instances[slot].is_none() {
            return;
        }
        to.egress.outboxes.flush_instance(slot, to.cx);
        for _ in 0..DRAIN_BURSTS {
            if self.poll_instance(slot, to) == 0 {
                break;
            }
        }
    }

    fn poll_port(&mut self, slot: Slot, port: usize, to: &mut Onward<'_, M>) -> usize {
        let cx = &mut *to.cx;
        let Some(instance) = &mut cx.ports.instances[slot] else {
            return 0;
        };
        if instance.is_waiting() {
            return 0;
        }
        let straight_to = instance.straight_to(port);
        let Some(Some(ring)) = instance.ports.get_mut(port) else {
            return 0;
        };
        let way = instance.ways.get(port).copied().flatten();
        let mut received = Received::default();
        // Packets that need no step of the worker go from ring to ring.
        if let Some(uplink) = straight_to
            && !cx.tap.is_on()
            && let Some(out) = &mut cx.ports.uplinks[uplink]
        {
            received = ring.pass_on(out, BURST_FRAMES);
            if received.packets > 0 {
                to.egress.touch(uplink);
            }
        }
        let passed = (received.packets as u64, received.bytes);
        let taken = passed.0 + received.bad + received.too_large;
        let left = BURST_FRAMES.saturating_sub(taken as usize);
        received += ring.receive(&mut cx.memory, &mut self.frames, left);
        let are_valid = self
            .frames
            .iter()
            .all(|frame| ring.are_valid(frame.len(), frame.segments()));
        if !are_valid {
            received.too_large += ring.linearize_or_drop(&mut self.frames, &mut cx.memory);
        }
        let bad = received.bad + received.too_large;
        if received.packets == 0 && bad == 0 {
            return 0;
        }
        if instance.is_probed {
            for frame in self.frames.extract_if(.., |frame| is_probe(frame.bytes())) {
                cx.memory.give(frame);
            }
        }
        if let Some(end) = &instance.end {
            for frame in self
                .frames
                .extract_if(.., |frame| end.answers_check(frame.bytes()))
            {
                cx.memory.give(frame);
            }
        }
        if way.is_some_and(|way| way.state_moves) {
            for frame in self
                .frames
                .extract_if(.., |frame| state_moves::is_message(frame.bytes()))
            {
                if cx.said.len() < MESSAGES_LIMIT {
                    cx.said.push((slot, frame));
                } else {
                    cx.counters.figures.state_messages_refused.add(1);
                    cx.memory.give(frame);
                }
            }
        }
        let packets = passed.0 + self.frames.len() as u64;
        let bytes = passed.1 + self.frames.iter().map(|f| f.len() as u64).sum::<u64>();
        instance.returned(packets + bad, bytes, &cx.counters.slots[slot]);
        if !std::mem::replace(&mut instance.gave[port % PORT_LIMIT], true) {
            cx.ports.received_from.push((slot, port));
        }
        cx.counters.drop_packets(DropReason::BadDescriptor, received.bad);
        cx.counters.drop_packets(DropReason::TooLarge, received.too_large);
        instance.broken.is_it |= received.bad > 0;
        // The port of an instance that no plan has had is looked at, too: it may ask to be woken.
        if way.is_none_or(|way| way.signals) {
            self.take_signals(slot, cx.now, (&mut cx.events, &mut cx.memory), &cx.counters);
        }
        let of = instance.seen(slot);
        let bytes_of = self.frames.iter().map(M::Frame::bytes);
        cx.tap.see_instance((CapturePoint::After, cx.now), of, bytes_of);
        let (is_end, service) = (instance.end.is_some(), instance.service);
        if let Some(end) = &instance.end {
            // Those that are not to leave go; the others are readied.
            for frame in &mut self.frames {
                if let Err(reason) = end.leave(frame) {
                    cx.counters.drop_packets(reason, 1);
                    cx.tap.see_dropped(cx.now, of, reason, frame.bytes());
                    frame.set_len(0);
                }
            }
            for gone in self.frames.extract_if(.., |frame| frame.is_empty()) {
                cx.memory.give(gone);
            }
        }
        if let Some(way) = &way {
            // Each packet is tested again when it is sent.
            let _known = way.edit.apply(&mut self.frames, (bytes, Sizes::NONE));
        }
        match way {
            Some(ReturnWay {
                uplink, is_in_chain, ..
            }) if is_in_chain => {
                for frame in self.frames.drain(..) {
                    chain::pass_on(
                        frame,
                        Passed {
                            slot,
                            service,
                            uplink,
                        },
                        to,
                    );
                }
            }
            Some(ReturnWay {
                uplink,
                counted,
                by_edge: true,
                ..
            }) => {
                let flow = FlowOf::Unknown;
                let of = Returned { slot, uplink, flow };
                for frame in self.frames.drain(..) {
                    if counted {
                        send_counted::<ByEdge, M>(frame, of, to);
                    } else {
                        ByEdge::leave(frame, of, to);
                    }
                }
            }
            Some(ReturnWay { uplink, counted, .. }) if !counted || cx.workers == 1 && !is_end => {
                if counted {
                    self.count_all(slot, to);
                }
                if to.cx.tap.is_on() {
                    let frames = self.frames.iter().map(M::Frame::bytes);
                    to.cx.see_all_leaving(frames, uplink, Some(slot));
                }
                to.egress.all_to_uplink(&mut self.frames, uplink, to.cx);
            }
            Some(ReturnWay { uplink, .. }) => {
                let flow = FlowOf::Unknown;
                for frame in self.frames.drain(..) {
                    send_counted::<ByUplink, M>(frame, Returned { slot, uplink, flow }, to);
                }
            }
            None => {
                for frame in self.frames.drain(..) {
                    to.cx.discard_of(frame, of, DropReason::NoInstance);
                }
            }
        }
        received.packets
    }

    /// Takes signals out of the burst, and tells of one in [`signal::INTERVAL_NS`].
    fn take_signals(
        &mut self,
        slot: Slot,
        now: Nanos,
        (events, memory): (&mut Producer<WorkerEvent<M>>, &mut M),
        counters: &WorkerCounters,
    ) {
        for frame in self
            .frames
            .extract_if(.., |frame| signal::is_signal(frame.bytes()))
        {
            let last = &mut self.signals_at[slot];
            let mut reason = DropReason::SignalRate;
            // Half of the ring is for the answers to commands.
            let has_room = events.slots() > events.buffer().capacity() / 2;
            let is_due = *last == Nanos::ZERO || now.since(*last).0 >= signal::INTERVAL_NS;
            if has_room && is_due {
                *last = now;
                let received = signal::Received::new(frame.bytes());
                let event = WorkerEvent::Signal {
                    slot,
                    frame: received,
                };
                if events.push(event).is_ok() {
                    reason = DropReason::Signal;
                }
            }
            memory.give(frame);
            counters.drop_packets(reason, 1);
        }
    }

    /// Counts the packets of the burst with their flows, all of them this worker's.
    fn count_all(&mut self, slot: Slot, to: &mut Onward<'_, M>) {
        to.parser.parse_own(&self.frames, to.cx, &mut to.lookup.table);
        let mut others = to.lookup.table.count_returned_burst(&to.parser.burst, slot);
        while others != 0 {
            if let Some(frame) = self.frames.get(others.trailing_zeros() as usize) {
                count(frame, slot, to);
            }
            others &= others - 1;
        }
    }
}

/// How a returned packet leaves that is counted with its flow.
pub(crate) trait Exit {
    /// On its way to the worker that owns the flow.
    fn handed(of: Returned) -> Destination;

    /// Sends it out.
    fn leave<M: FrameMemory>(frame: M::Frame, of: Returned, to: &mut Onward<'_, M>);
}

/// By the uplink of its data port.
pub(crate) struct ByUplink;

impl Exit for ByUplink {
    fn handed(of: Returned) -> Destination {
        Destination::Return(of)
    }

    #[inline(always)]
    fn leave<M: FrameMemory>(frame: M::Frame, of: Returned, to: &mut Onward<'_, M>) {
        to.cx.see_leaving(frame.bytes(), of.uplink, Some(of.slot));
        to.egress.send_to_uplink(frame, of.uplink, to.cx);
    }
}

/// Counts a returned packet with its flow, on the worker that owns it, and sends it out.
pub(crate) fn send_counted<X: Exit, M: FrameMemory>(frame: M::Frame, of: Returned, to: &mut Onward<'_, M>) {
    match &*to.cx.ends.translation(of.slot) {
        Some(translation) => translated::send::<X, M>(frame, of, translation, to),
        None => send_as_it_is::<X, M>(frame, of, to),
    }
}

/// The same with a packet that is known by its own addresses.
pub(crate) fn send_as_it_is<X: Exit, M: FrameMemory>(frame: M::Frame, of: Returned, to: &mut Onward<'_, M>) {
    if let Parsed::Flow(info) | Parsed::Fragment(packet::Fragment { info, .. }) = packet::parse(frame.bytes())
        && let Some(owner) = to.cx.other_owner(&info.key)
    {
        return to.egress.hand_off(owner, frame, X::handed(of), to.cx);
    }
    if count(&frame, of.slot, to) {
        X::leave(frame, of, to);
    } else {
        discard_spoofed(frame, of.slot, to.cx);
    }
}

/// Drops a packet that the instance in that slot must not send.
#[cold]
pub(crate) fn discard_spoofed<M: FrameMemory>(frame: M::Frame, slot: Slot, cx: &mut Context<M>) {
    cx.discard_of(frame, cx.seen(slot), DropReason::Spoofed);
}

/// Counts a returned packet with its flow, which is this worker's. Whether it may leave.
fn count<M: FrameMemory>(frame: &M::Frame, slot: Slot, to: &mut Onward<'_, M>) -> bool {
    let (lookup, cx) = (&mut *to.lookup, &*to.cx);
    if let Some(opens) = cx.ends.opens(slot) {
        return match packet::parse(frame.bytes()) {
            Parsed::Flow(info) => ends::count(&info, slot, opens, lookup, cx),
            Parsed::Fragment(of) => {
                // The first one has the ports. The others must be of a datagram whose first one this instance has sent:
                // instances may have one address, and a datagram is made from whatever has its number.
                (!of.is_first() || ends::count(&of.info, slot, opens, lookup, cx))
                    && to
                        .ingress
                        .own_fragments
                        .follow(&of_slot(of, slot), cx.now)
                        .is_ok()
            }
            Parsed::Other { .. } | Parsed::Invalid(_) => false,
        };
    }
    if !is_counted(frame, slot, lookup, cx) {
        cx.counters.slots[slot].return_unmatched.add(1);
    }
    true
}

/// A fragment as of a network that only this instance is in.
fn of_slot(mut of: packet::Fragment, slot: Slot) -> packet::Fragment {
    // No VLAN has such a number.
    let network = 4096 + slot.0;
    match &mut of.info.key {
        FlowKey::V4(key) => key.vlan = network,
        FlowKey::V6(key) => key.vlan = network,
    }
    of
}

fn is_counted<M: FrameMemory>(frame: &M::Frame, slot: Slot, lookup: &mut Lookup, cx: &Context<M>) -> bool {
    let Parsed::Flow(info) = packet::parse(frame.bytes()) else {
        return false;
    };
    if info.is_icmp_error {
        return false;
    }
    let hash = cx.hasher.hash(&info.key);
    let entry = lookup.table.lookup(&info.key, hash);
    let is_its = |entry: &EntryIndex| {
        let pins = lookup.table.pins(*entry);
        // A flow that moves has no pin, and waits for its earlier packets.
        pins.contains(&slot) || pins.contains(&Slot::NONE) && lookup.is_relaxed(*entry, cx)
    };
    let Some(entry) = entry.filter(is_its) else {
        return false;
    };
    lookup.table.count_returned(entry, 1);
    true
}
