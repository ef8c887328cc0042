//! The second look: several edges with one address give flows to the same machines. A packet of a flow that this edge does
//! not know may be of one that another edge gave to a machine. The machine knows it, and nobody else does.
//!
//! All edges compute the same hash of a flow, and each gives it to one of a few machines that come from it
//! ([`SharedMachines`]). So an edge asks these, one after the other, with the packet itself: a machine that knows the flow
//! serves it, another one sends it back (as in Beamer, Olteanu and others, NSDI 2018, where servers pass it on). While a
//! flow is looked for it has no pin here: an edge pins it where no packet has come back for [`FOUND_AFTER`], or to the machine
//! whose reply it sees.
//!
//! What begins a connection of TCP is not looked for. Other flows do not say when they begin. They go by their hash alone, to
//! the first of their machines that takes new flows. They are looked for only at those that come before it and take none,
//! or at all of them while that has changed within [`SETTLES`].

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::sync::Arc;

use edge_steering::SEQUENCE;
use flow_table::{FlowHasher, FlowTable};
use model::{Direction, DropReason, Nanos, ServiceId, Slot, UplinkId, WorkerId, protocol};
use packet::vxlan::Mark;
use packet::{PacketInfo, Parsed};
use scheduling::{Candidates, Machines};
use switch::{Plan, ServicePlan, SharedMachines};

use crate::frame::{Frame as _, FrameMemory};
use crate::message::Destination;
use crate::port::Port;
use crate::table_memory::TableMemory;
use crate::tunnels::{Known, Tunnels};
use crate::worker::context::{Context, View};
use crate::worker::egress::{Decision, refuse};
use crate::worker::ingress::Exception;
use crate::worker::lookup::Missed;
use crate::worker::set_up::ServiceState;
use crate::worker::unknown::TcpPart;
use crate::worker::{Worker, chain};

/// A flow is where its packets do not come back from for so long: the way there and back, with a machine that is busy.
const FOUND_AFTER: Nanos = Nanos::from_millis(250);
/// A flow of another protocol than TCP that was there before a change of who takes new flows has ended by then, or has been
/// known here since.
const SETTLES: Nanos = Nanos::from_secs(120);
/// Reports of a machine that are believed so far come, or have just stopped.
const HEARD: f32 = 0.5;
/// Flows that are looked for and remembered. Beyond it, the longest known ones are asked for anew.
const DOUBTS: usize = 1 << 15;
/// How long one is remembered without a packet, at least; twice as long at most.
const REMEMBERED: Nanos = Nanos::from_secs(1);
/// Packets that ask machines, in [`ASKED_IN`]: who sends packets of connections that are not there cannot have more than that
/// go to each of their machines. Those beyond it are dropped.
const ASKED_LIMIT: u32 = 2_000;
const ASKED_IN: Nanos = Nanos::from_millis(10);
/// And where so many packets have asked.
const FOUND_PACKETS: u32 = 2;
/// Machines that one packet asks at most: each of its sequence, twice where that changes meanwhile.
const ASKED_BY_ONE: u8 = 2 * SUSPECTS as u8;

/// Machines that a flow can be at, at most: those of its sequence, and two that are no members any more.
const SUSPECTS: usize = SEQUENCE + 2;

/// The machines of a flow, the likeliest first.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sequence {
    slots: [Slot; SUSPECTS],
    count: usize,
}

impl Sequence {
    pub(super) const NONE: Sequence = Sequence {
        slots: [Slot::NONE; SUSPECTS],
        count: 0,
    };

    pub(super) fn slots(&self) -> &[Slot] {
        self.slots.get(..self.count).unwrap_or_default()
    }

    fn push(&mut self, slot: Slot) {
        if let Some(place) = self.slots.get_mut(self.count) {
            *place = slot;
            self.count += 1;
        }
    }

    /// The first ones, as long as `is_so`.
    fn while_so(mut self, is_so: impl Fn(Slot) -> bool) -> Sequence {
        let first_other = self.slots().iter().position(|slot| !is_so(*slot));
        self.count = first_other.unwrap_or(self.count);
        self
    }

    /// The same, those of which that is so before the others.
    fn first_where(mut self, is_so: impl Fn(Slot) -> bool) -> Sequence {
        if let Some(slots) = self.slots.get_mut(..self.count) {
            // A stable sort.
            slots.sort_by_key(|slot| !is_so(*slot));
        }
        self
    }

    /// The one behind that one; the first one where that is none of them.
    fn after(&self, slot: Slot) -> Option<Slot> {
        let place = self.slots().iter().position(|of| *of == slot);
        self.slots().get(place.map_or(0, |place| place + 1)).copied()
    }
}

/// The machines of a service that other edges give flows to, too, as one worker sees them.
#[derive(Debug, Default)]
pub(super) struct MachineSlots {
    /// In the order of addresses.
    slots: Vec<(Ipv4Addr, Slot)>,
    /// Those that are no members any more, and drain.
    leaving: Vec<Slot>,
    /// Who takes new flows, as a hash of it, and until when that counts as having just changed.
    takers: u64,
    unsettled_until: Nanos,
}

impl MachineSlots {
    /// Takes over which slots are which machines.
    pub(super) fn follow(&mut self, service: &ServicePlan, plan: &Plan, tunnels: &Tunnels) {
        self.slots.clear();
        self.leaving.clear();
        let Some(machines) = &service.machines else {
            return;
        };
        let its = plan
            .instances()
            .filter(|(_, row)| row.service == service.id && row.state.serves());
        self.slots
            .extend(its.filter_map(|(slot, _)| Some((tunnels.address(slot)?, slot))));
        self.slots.sort_unstable();
        let others = self
            .slots
            .iter()
            .filter(|(of, _)| !machines.addresses().contains(of));
        self.leaving.extend(others.map(|(_, slot)| *slot));
    }

    /// Notes who takes new flows.
    pub(super) fn note_takers(&mut self, candidates: &Candidates, now: Nanos) {
        if self.slots.is_empty() {
            return;
        }
        let takers = candidates.rows().iter().filter(|row| Machines::takes_flows(row));
        let takers = takers.fold(1, |hash, row| model::mix(hash ^ u64::from(row.slot.0)));
        if takers != self.takers {
            (self.takers, self.unsettled_until) = (takers, now + SETTLES);
        }
    }

    /// The machines of a flow that are there.
    pub(super) fn of(&self, machines: &SharedMachines, hash: u64) -> Sequence {
        let mut sequence = Sequence::NONE;
        for address in machines.of(hash) {
            if let Ok(place) = self.slots.binary_search_by_key(&address, |(of, _)| *of)
                && let Some((_, slot)) = self.slots.get(place)
            {
                sequence.push(*slot);
            }
        }
        self.leaving.iter().for_each(|slot| sequence.push(*slot));
        sequence
    }
}

impl ServiceState {
    /// Whether an instance takes new flows.
    pub(super) fn takes(&self, slot: Slot) -> bool {
        let index = self.candidates.index_of(slot);
        let row = index.and_then(|index| self.candidates.get(index));
        row.is_some_and(Machines::takes_flows)
    }

    /// The first of these that takes new flows.
    pub(super) fn first_taker(&self, of: &Sequence) -> Option<Slot> {
        of.slots().iter().copied().find(|slot| self.takes(*slot))
    }

    /// Those of a flow's machines that can have it although this edge does not know it.
    fn suspects(&self, machines: &SharedMachines, hash: u64, info: &PacketInfo, now: Nanos) -> Sequence {
        let all = self.machines.of(machines, hash);
        let suspects = if info.key.protocol() == protocol::TCP || now < self.machines.unsettled_until {
            all
        } else {
            all.while_so(|slot| !self.takes(slot))
        };
        // One that is dead sends nothing back, and would seem to know each flow: its reports stop first.
        suspects.first_where(|slot| self.is_heard(slot))
    }

    /// Whether the reports of a machine come, if it takes new flows.
    fn is_heard(&self, slot: Slot) -> bool {
        let index = self.candidates.index_of(slot);
        let row = index.and_then(|index| self.candidates.get(index));
        row.is_none_or(|row| row.trust >= HEARD)
    }
}

/// Where a flow is looked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Doubt {
    slot: Slot,
    since: Nanos,
    /// Packets that have asked there: one alone may have been lost.
    packets: u32,
}

/// What a worker of an edge knows of flows that it looks for.
pub(super) struct Looks {
    /// By the flow's hash: those with a packet since `began`, and those with one in the time before.
    doubts: [HashMap<u64, Doubt>; 2],
    began: Nanos,
    /// Packets that have asked since then.
    asked: u32,
    asked_since: Nanos,
}

impl Looks {
    pub(super) fn new(are_there: bool) -> Looks {
        let map = || HashMap::with_capacity(if are_there { DOUBTS } else { 0 });
        Looks {
            doubts: [map(), map()],
            began: Nanos::ZERO,
            asked: 0,
            asked_since: Nanos::ZERO,
        }
    }

    /// Where a flow is looked for, if it is.
    pub(super) fn find(&self, hash: u64) -> Option<Doubt> {
        let [young, old] = &self.doubts;
        young.get(&hash).or_else(|| old.get(&hash)).copied()
    }

    fn note(&mut self, hash: u64, doubt: Doubt, now: Nanos) {
        if self.doubts[0].len() >= DOUBTS || now.since(self.began) >= REMEMBERED {
            self.doubts.swap(0, 1);
            self.doubts[0].clear();
            self.began = now;
        }
        // Within its capacity.
        self.doubts[0].insert(hash, doubt);
    }

    pub(super) fn forget(&mut self, hash: u64) {
        for map in &mut self.doubts {
            map.remove(&hash);
        }
    }

    fn may_ask(&mut self, now: Nanos) -> bool {
        if now.since(self.asked_since) >= ASKED_IN {
            (self.asked, self.asked_since) = (0, now);
        }
        self.asked += 1;
        self.asked <= ASKED_LIMIT
    }
}

impl<M: FrameMemory> Worker<M> {
    /// Asks the machines for the flow of a packet that is not known here, or pins it where it was found. Gives the packet back
    /// if no machine can have it.
    #[cold]
    pub(super) fn look(&mut self, frame: M::Frame, info: &PacketInfo, uplink: UplinkId) -> Option<M::Frame> {
        let Some((of, hash)) = self.shared_service(info, uplink) else {
            return Some(frame);
        };
        if begins(info) {
            self.looks.forget(hash);
            return Some(frame);
        }
        let now = self.cx.now;
        let suspects = self.suspects(of, hash, info);
        let doubt = self.looks.find(hash);
        match doubt {
            Some(doubt)
                if now.since(doubt.since) >= FOUND_AFTER
                    && doubt.packets >= FOUND_PACKETS
                    && !info.is_icmp_error =>
            {
                self.looks.forget(hash);
                self.pin_found(frame, info, doubt.slot, (of, uplink));
                None
            }
            Some(doubt) => {
                self.ask_machine(frame, (hash, doubt, 0), (of, uplink));
                None
            }
            None => {
                let Some(&slot) = suspects.slots().first() else {
                    return Some(frame);
                };
                let doubt = Doubt {
                    slot,
                    since: now,
                    packets: 0,
                };
                self.ask_machine(frame, (hash, doubt, 0), (of, uplink));
                None
            }
        }
    }

    /// What became of packets of tunnels that came in with a burst and are not steered with it. Returns how many.
    #[inline]
    pub(super) fn end_looks(&mut self, uplink: UplinkId) -> usize {
        let opened = &self.ingress.opened;
        let count =
            opened.going_back.len() + opened.elsewhere.len() + opened.came_back.len() + opened.replies.len();
        if count > 0 {
            self.end_some_looks(uplink);
        }
        count
    }

    #[cold]
    fn end_some_looks(&mut self, uplink: UplinkId) {
        let figures = &self.cx.counters.figures;
        let opened = &mut self.ingress.opened;
        figures
            .looks_returned
            .add((opened.going_back.len() + opened.came_back.len()) as u64);
        for frame in opened.going_back.drain(..) {
            self.egress.send_to_uplink(frame, uplink, &mut self.cx);
        }
        for (frame, worker) in opened.elsewhere.drain(..) {
            let to = Destination::Look(uplink);
            self.egress.hand_off(worker, frame, to, &mut self.cx);
        }
        // The list is taken out and put back, so that its memory is used again.
        let mut came_back = std::mem::take(&mut self.ingress.opened.came_back);
        for (frame, slot, asked) in came_back.drain(..) {
            self.look_further(frame, (slot, asked), uplink);
        }
        self.ingress.opened.came_back = came_back;
        let mut replies = std::mem::take(&mut self.ingress.opened.replies);
        for (frame, from) in replies.drain(..) {
            self.take_reply(frame, from);
        }
        self.ingress.opened.replies = replies;
    }

    /// A machine has sent a packet back, which does not know its flow: asks the next one.
    pub(super) fn look_further(&mut self, frame: M::Frame, (from, asked): (Slot, u8), uplink: UplinkId) {
        let Parsed::Flow(info) = packet::parse(frame.bytes()) else {
            return self.cx.discard(frame, DropReason::Tunnel);
        };
        if let Some(owner) = self.cx.other_owner(&info.key) {
            let to = Destination::CameBack { uplink, from, asked };
            return self.egress.hand_off(owner, frame, to, &mut self.cx);
        }
        let own_hash = self.cx.hasher.hash(&info.key);
        let found = self.lookup.table.lookup(&info.key, own_hash).is_some();
        let Some((of, hash)) = self.shared_service(&info, uplink).filter(|_| !found) else {
            // It was found meanwhile, or the plan has changed.
            return self.steer_packet(frame, &info, own_hash, uplink);
        };
        let now = self.cx.now;
        let next = match self.looks.find(hash) {
            Some(doubt) if doubt.slot != from => Some(doubt),
            _ => self.suspects(of, hash, &info).after(from).map(|slot| Doubt {
                slot,
                since: now,
                packets: 0,
            }),
        };
        if let Some(doubt) = next.filter(|_| asked < ASKED_BY_ONE) {
            return self.ask_machine(frame, (hash, doubt, asked + 1), (of, uplink));
        }
        // Nobody knows it: it is as good as new.
        self.looks.forget(hash);
        let decision = self.set_up_packet(&info, own_hash, Missed::NEW, (uplink, None));
        self.egress.send(frame, decision, uplink, &mut self.cx);
    }

    /// The place in the plan of a packet's service, if other edges give its flows to machines, too, and the flow's hash.
    fn shared_service(&self, info: &PacketInfo, uplink: UplinkId) -> Option<(usize, u64)> {
        let hasher = self.cx.ends.tunnels().edges()?;
        let plan = &self.cx.view.plan;
        let of = plan.classify(|| info.key.tuple(info.direction), uplink)?;
        plan.services.get(of)?.machines.as_ref()?;
        Some((of, hasher.hash(&info.key)))
    }

    fn suspects(&self, of: usize, hash: u64, info: &PacketInfo) -> Sequence {
        let service = self.cx.view.plan.services.get(of);
        let machines = service.and_then(|of| of.machines.as_deref());
        machines
            .zip(self.set_up.services.get(of))
            .map_or(Sequence::NONE, |(machines, state)| {
                state.suspects(machines, hash, info, self.cx.now)
            })
    }

    /// Has a packet ask a machine for its flow.
    fn ask_machine(
        &mut self,
        frame: M::Frame,
        (hash, doubt, asked): (u64, Doubt, u8),
        (of, uplink): (usize, UplinkId),
    ) {
        let plan = Arc::clone(&self.cx.view.plan);
        let Some(service) = plan.services.get(of) else {
            return self.cx.discard(frame, DropReason::Tunnel);
        };
        let service = service.id;
        let (now, slot) = (self.cx.now, doubt.slot);
        if !self.looks.may_ask(now) {
            // Nobody was asked: it must not seem as if nobody had sent it back.
            self.looks.forget(hash);
            return refuse(frame, service, DropReason::Tunnel, &mut self.cx);
        }
        let packets = doubt.packets + 1;
        self.looks.note(hash, Doubt { packets, ..doubt }, now);
        self.cx.counters.figures.looks.add(1);
        // What waits for the machine goes without the mark.
        self.egress.outboxes.flush(&mut self.cx);
        set_mark(slot, Mark::looking(asked), &mut self.cx);
        let decision = Decision::Instance { slot, service };
        self.egress.send(frame, decision, uplink, &mut self.cx);
        self.egress.outboxes.flush(&mut self.cx);
        set_mark(slot, Mark::NONE, &mut self.cx);
    }

    /// Pins a flow to the machine that knows it.
    fn pin_found(&mut self, frame: M::Frame, info: &PacketInfo, slot: Slot, (of, uplink): (usize, UplinkId)) {
        let Some(service) = self.cx.view.plan.services.get(of).map(|of| of.id) else {
            return self.cx.discard(frame, DropReason::Tunnel);
        };
        self.pin(info, info.direction, (slot, service));
        self.egress
            .send(frame, Decision::Instance { slot, service }, uplink, &mut self.cx);
    }

    /// Pins a flow that was found, whose client sends in that direction.
    pub(super) fn pin(&mut self, info: &PacketInfo, opener: Direction, (slot, service): (Slot, ServiceId)) {
        let (now, table) = (self.cx.now, &mut self.lookup.table);
        let hash = self.cx.hasher.hash(&info.key);
        match table.insert(&info.key, hash, opener, [slot; 2], service, now) {
            Ok(entry) => {
                let bytes = u64::from(info.frame_len);
                table.hit(entry, info.direction, 1, bytes, now, info.tcp_flags.0);
                self.cx.counters.slots[slot].new_flows.add(1);
                self.cx.counters.services[service].recovered.add(1);
            }
            Err(_full) => {
                self.cx.counters.figures.table_full.add(1);
                self.cx.counters.services[service].unpinned.add(1);
            }
        }
    }

    /// Steers a packet of a tunnel that another worker has handed over: an edge looks for its flow, which this one knows if
    /// any does.
    #[cold]
    pub(super) fn steer_handed_look(&mut self, frame: M::Frame, uplink: UplinkId) {
        let mut frames = std::mem::take(&mut self.ingress.frames);
        frames.push(frame);
        self.ingress
            .open(&mut frames, uplink, &mut self.lookup, &mut self.cx);
        for frame in frames.drain(..) {
            let parsed = packet::parse(frame.bytes());
            let hash = match &parsed {
                Parsed::Flow(info) => self.cx.hasher.hash(&info.key),
                _ => 0,
            };
            let place = 0;
            self.steer_exception(frame, Exception { place, parsed, hash }, uplink);
        }
        self.ingress.frames = frames;
        self.end_looks(uplink);
    }
}

/// Whether a packet begins its flow, and says so.
fn begins(info: &PacketInfo) -> bool {
    info.key.protocol() == protocol::TCP
        && !info.is_icmp_error
        && TcpPart::of(info.tcp_flags) == TcpPart::Opens
}

fn set_mark<M: FrameMemory>(slot: Slot, mark: Mark, cx: &mut Context<M>) {
    let instance = cx.ports.instances[slot].as_mut();
    if let Some(Some(Port::Tunnel(port))) = instance.and_then(|instance| instance.ports.first_mut()) {
        port.set_mark(mark);
    }
}

/// Who knows the flow of a packet that an edge looks for: asks the table of a worker, one of so many.
pub(super) fn known<'a>(
    table: &'a mut FlowTable<TableMemory>,
    view: &'a View,
    hasher: FlowHasher,
    (id, workers): (WorkerId, usize),
) -> impl FnMut(&[u8]) -> Known + 'a {
    move |frame| {
        // A fragment shows its flow with the others of its datagram, and what is no packet is dropped here.
        let Parsed::Flow(info) = packet::parse(frame) else {
            return Known::Here;
        };
        let owner = if workers > 1 {
            hasher.owner(&info.key, workers)
        } else {
            id.index()
        };
        if owner != id.index() {
            return Known::At(owner);
        }
        let mut has = |key: &model::FlowKey| table.lookup(key, hasher.hash(key)).is_some();
        // Which flow it is by what it carries is not looked for.
        let by_content = || {
            view.plan
                .services
                .iter()
                .any(|of| of.affinity_key.reads_content())
        };
        if begins(&info) || has(&info.key) || chain::knows(&info.key, view, &mut has) || by_content() {
            Known::Here
        } else {
            Known::No
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Nanos = Nanos::from_millis(1);

    fn at(ms: u64) -> Nanos {
        Nanos(MS.0 * ms)
    }

    #[test]
    fn a_sequence_is_asked_to_its_end() {
        let mut sequence = Sequence::NONE;
        [3, 5, 1].iter().for_each(|slot| sequence.push(Slot(*slot)));
        assert_eq!(sequence.after(Slot(3)), Some(Slot(5)));
        assert_eq!(sequence.after(Slot(1)), None);
        assert_eq!(sequence.after(Slot(9)), Some(Slot(3)), "a machine that has left");
        assert_eq!(sequence.while_so(|slot| slot != Slot(5)).slots(), [Slot(3)]);
        let of_odd = sequence.first_where(|slot| slot.0 == 1);
        assert_eq!(of_odd.slots(), [Slot(1), Slot(3), Slot(5)]);
        (0..9).for_each(|slot| sequence.push(Slot(slot)));
        assert_eq!(sequence.slots().len(), SUSPECTS);
    }

    #[test]
    fn doubts_are_remembered_for_a_second_or_two_and_never_grow() {
        let mut looks = Looks::new(true);
        let doubt = |slot| Doubt {
            slot: Slot(slot),
            since: at(0),
            packets: 1,
        };
        looks.note(7, doubt(1), at(0));
        looks.note(8, doubt(2), at(1_500));
        assert_eq!(looks.find(7).map(|of| of.slot), Some(Slot(1)));
        looks.note(9, doubt(3), at(2_600));
        assert!(looks.find(7).is_none() && looks.find(8).is_some());
        looks.forget(8);
        assert!(looks.find(8).is_none());
        let capacity = looks.doubts[0].capacity();
        for hash in 0..4 * DOUBTS as u64 {
            looks.note(hash, doubt(1), at(2_700));
        }
        assert!(
            looks
                .doubts
                .iter()
                .all(|map| map.len() <= DOUBTS && map.capacity() <= capacity)
        );
    }

    #[test]
    fn the_rate_of_questions_has_a_limit() {
        let mut looks = Looks::new(true);
        for time in [20, 40] {
            let asked = (0..3 * ASKED_LIMIT).filter(|_| looks.may_ask(at(time))).count();
            assert_eq!(asked, ASKED_LIMIT as usize);
        }
    }
}
