//! Flows that move from a draining instance to another one with the state of their function, in services that say so
//! (`move_state`). The steps of one move are those of the crate `state-moves`.
//!
//! Until the destination has acknowledged the state, the flow stays pinned to the source, also in the kept table: a run
//! that begins after a crash finds it where its state is. A slot from which flows move has no lane, so that its packets
//! take the slow path, where those of moving flows are held; nor has one to which held packets are on their way.

use std::collections::VecDeque;

use model::{DropReason, FlowKey, InstanceState, Nanos, Slot, Tuple, key_bits};
use state_moves::{Cancelled, End, HELD_LIMIT, Input, Message, Party, Request, Step, TIME_LIMIT, Transfer};
use switch::{MappingsEvent, Plan};

use crate::frame::{Frame as _, FrameMemory};
use crate::message::{Destination, WorkerEvent};
use crate::worker::context::Context;
use crate::worker::egress::refuse;
use crate::worker::emptying::{Emptying, Place};
use crate::worker::hand_over::Job;
use crate::worker::moves::Held;
use crate::worker::{BURST_FRAMES, Worker};

/// Flows that a worker moves with their state at the same time.
const MOVES_LIMIT: usize = 256;
/// Copies that instances have not been told to drop yet, at most.
const FORGETS_LIMIT: usize = 4 * MOVES_LIMIT;
/// Packets held beyond the limit of moves, while those before them wait for room in the ring of the source.
const RELEASED_LIMIT: usize = 1024;
/// In the number of a move: its worker is above these bits.
const WORKER_SHIFT: u32 = 56;

struct Move {
    number: u64,
    key: FlowKey,
    /// The same, in the direction of its first packet.
    flow: Tuple,
    since: Nanos,
    from: Place,
    to: Place,
    /// Its pins, some of them to the source.
    pins: [Slot; 2],
    transfer: Transfer,
    /// Packets held.
    held: u32,
    /// Whether the flow is pinned to its destination.
    has_moved: bool,
}

/// A copy that an instance is to drop.
struct Forget {
    place: Place,
    number: u64,
    flow: Tuple,
}

/// The flows that a worker moves with their state, and their held packets. All memory is allocated at the start.
pub(crate) struct StateMoves<F> {
    frames: VecDeque<Held<F>>,
    moves: Vec<Move>,
    /// The hashes of `moves`, at the same indices.
    hashes: Vec<u64>,
    forgets: Vec<Forget>,
    emptying: Vec<Emptying>,
    /// Flows found for the next moves.
    found: Vec<FlowKey>,
    /// Mappings that are handed over or counted.
    pub(super) jobs: Vec<Job>,
    next: u64,
}

impl<F> StateMoves<F> {
    pub(crate) fn new() -> StateMoves<F> {
        StateMoves {
            frames: VecDeque::with_capacity(HELD_LIMIT + RELEASED_LIMIT),
            moves: Vec::with_capacity(MOVES_LIMIT),
            hashes: Vec::with_capacity(MOVES_LIMIT),
            forgets: Vec::with_capacity(FORGETS_LIMIT),
            emptying: Vec::with_capacity(Slot::LIMIT),
            found: Vec::with_capacity(MOVES_LIMIT),
            jobs: Vec::new(),
            next: 0,
        }
    }

    /// Number of held packets.
    pub(crate) fn len(&self) -> usize {
        self.frames.len()
    }

    /// Whether there is something to do.
    pub(crate) fn is_active(&self) -> bool {
        let searches = || self.emptying.iter().any(|of| of.cursor.is_some());
        !self.moves.is_empty() || !self.forgets.is_empty() || !self.jobs.is_empty() || searches()
    }

    /// Whether flows that could not move are to be tried again now.
    pub(crate) fn is_due(&self, now: Nanos) -> bool {
        self.emptying.iter().any(|of| of.is_due(now))
    }

    /// Has the flows of a slot tried again after a while. Where an instance has an heir, the control plane does that.
    fn try_again(&mut self, from: Place, now: Nanos) {
        if let Some(of) = self.emptying.iter_mut().find(|of| of.place == from) {
            of.try_again(now);
        }
    }

    /// Events that it may send, at most, for what is under way.
    pub(crate) fn events(&self) -> usize {
        self.emptying.len() + self.jobs.len()
    }

    /// The number of the next move, above all numbers of earlier runs.
    pub(super) fn next_number<M: FrameMemory>(&mut self, cx: &Context<M>) -> u64 {
        self.next = self.next.max(cx.now.0) + 1;
        u64::from(cx.id.0) << WORKER_SHIFT | self.next & ((1 << WORKER_SHIFT) - 1)
    }

    /// Whether packets of flows of that slot are held, or may have to be: flows move from it, or have moved to it and their
    /// held packets are not all there yet.
    pub(crate) fn holds_for(&self, slot: Slot) -> bool {
        self.emptying
            .iter()
            .any(|of| of.place.slot == slot && of.cursor.is_some())
            || self
                .moves
                .iter()
                .any(|of| of.from.slot == slot || of.has_moved && of.to.slot == slot)
    }

    fn place(&self, key: &FlowKey, hash: u64) -> Option<usize> {
        let same = |place: &usize| self.moves.get(*place).is_some_and(|of| of.key == *key);
        let mut places = self.hashes.iter().enumerate();
        places.find_map(|(place, h)| (*h == hash && same(&place)).then_some(place))
    }

    /// Whether packets of the flow are held.
    #[inline]
    pub(crate) fn holds(&self, key: &FlowKey, hash: u64) -> bool {
        !self.moves.is_empty() && self.place(key, hash).is_some()
    }

    /// Forgets slots that are not drained any more: another drain of them begins anew.
    pub(crate) fn follow(&mut self, plan: &Plan) {
        self.emptying.retain(|of| {
            plan.slot(of.place.slot).is_some_and(|slot| {
                slot.instance == of.place.instance && slot.state == InstanceState::Draining
            })
        });
    }

    /// Takes out all held packets, at the end of the worker.
    pub(crate) fn drain(&mut self) -> Option<F> {
        self.frames.pop_front().map(|held| held.frame)
    }
}

impl<M: FrameMemory> Worker<M> {
    /// Begins to move the flows of a draining slot with their state. False if its service does not do that, or all were
    /// tried already: what is left is to lose its pins. Where the instance has an heir, they are tried again.
    pub(super) fn begin_to_empty(&mut self, slot: Slot) -> bool {
        let place = Place::of(slot, &self.cx.view);
        let plan = &self.cx.view.plan;
        let has_heir = plan.mappings.heir(slot).is_some();
        let is_drained = plan.slot(slot).is_some_and(|of| {
            let moves = |of: &switch::ServicePlan| of.moves_state && (of.external.is_none() || has_heir);
            of.state == InstanceState::Draining && plan.service(of.service).is_some_and(moves)
        });
        let emptying = &mut self.state_moves.emptying;
        let known = emptying.iter().position(|of| of.place == place);
        if !is_drained || known.is_some() && !has_heir || emptying.len() >= Slot::LIMIT {
            return false;
        }
        let begun = Emptying::new(place, has_heir);
        match known.and_then(|at| emptying.get_mut(at)) {
            Some(of) => *of = begun,
            None => emptying.push(begun),
        }
        self.egress.lanes_are_stale = true;
        true
    }

    /// Begins to move one flow with its state, to that slot or to the one with the fewest flows. False if its service
    /// does not do that; nothing happens where there is no room for another move, or nowhere to go.
    pub(super) fn begin_move(&mut self, key: &FlowKey, to: Option<Slot>) -> bool {
        let hash = self.cx.hasher.hash(key);
        let table = &mut self.lookup.table;
        let Some(entry) = table.lookup(key, hash) else {
            return false;
        };
        let plan = &self.cx.view.plan;
        let Some(service) = plan.service(table.service(entry)).filter(|of| of.moves_state) else {
            return false;
        };
        let pins = table.pins(entry);
        let slot = if pins[0].is_some() { pins[0] } else { pins[1] };
        let from = Place::of(slot, &self.cx.view);
        let (to, is_whole) = if service.external.is_some() {
            let Some(heir) = plan.mappings.heir(slot) else {
                return false;
            };
            // Each direction of what comes from outside has a pin of its own.
            (Some(heir), pins.iter().all(|pin| !pin.is_some() || *pin == slot))
        } else {
            (to, pins == [slot; 2])
        };
        let takes = |at: Slot| {
            let is_its =
                |of: &switch::SlotPlan| of.service == service.id && of.state == InstanceState::Active;
            at != slot && plan.slot(at).is_some_and(is_its) && table.is_slot_usable(at)
        };
        let moves = &self.state_moves;
        let flows = |at: &Slot| {
            let on_their_way = moves.moves.iter().filter(|of| of.to.slot == *at).count();
            table.live(*at) as usize + on_their_way
        };
        let slots = (0..plan.slots.len() as u16).map(Slot);
        let fewest = || slots.filter(|at| takes(*at)).min_by_key(flows);
        let to = match to.filter(|at| takes(*at)) {
            None if service.external.is_none() => fewest(),
            to => to,
        };
        let has_room = moves.moves.len() < MOVES_LIMIT;
        let (true, Some(to), true) = (is_whole && from.serves(&self.cx.view), to, has_room) else {
            return true;
        };
        if moves.place(key, hash).is_some() {
            return true;
        }
        let mut flow = key.tuple(table.opener(entry));
        // A packet that carries nothing has its own flow, as its function sees it.
        if flow.vlan & (key_bits::OF_CONTENT | key_bits::LABEL) == key_bits::OF_CONTENT {
            flow.vlan &= !key_bits::OF_CONTENT;
        }
        let ports = service.uplinks.len() as u8;
        let moves = &mut *self.state_moves;
        let number = moves.next_number(&self.cx);
        let to = Place::of(to, &self.cx.view);
        // It gets the flow now: an earlier copy there is replaced, and this one must not be dropped.
        moves.forgets.retain(|of| of.place != to || of.flow != flow);
        moves.hashes.push(hash);
        moves.moves.push(Move {
            number,
            key: *key,
            flow,
            since: self.cx.now,
            from,
            to,
            pins,
            transfer: Transfer::new(ports),
            held: 0,
            has_moved: false,
        });
        let at = moves.moves.len() - 1;
        self.egress.lanes_are_stale = true;
        let is_told = (0..ports).all(|port| self.tell(from, port, number, &Message::Pass { port }));
        if !is_told {
            self.learn(at, Input::NoRoom, &[]);
        }
        true
    }

    /// Puts a message into the ring of an instance, behind all packets that were sent there. Whether it had room; where
    /// another worker has the ring, that is not known.
    pub(super) fn tell(&mut self, to: Place, port: u8, number: u64, message: &Message<'_>) -> bool {
        if !to.serves(&self.cx.view) {
            return false;
        }
        let Some(mut frame) = self.cx.memory.take() else {
            return false;
        };
        let Some(length) = message.write(number, frame.room()) else {
            self.cx.memory.give(frame);
            return false;
        };
        frame.set_len(length);
        let home = self.cx.view.routes[to.slot].home;
        if home == self.cx.id {
            return self.egress.tell(frame, to.slot, port, &mut self.cx);
        }
        let Place { slot, .. } = to;
        let to = Destination::Message { slot, port };
        self.egress.hand_off(home.index(), frame, to, &mut self.cx);
        true
    }

    /// Holds a packet behind those of its flow.
    #[cold]
    pub(super) fn hold_for_state(&mut self, held: Held<M::Frame>) {
        let Some(at) = self.state_moves.place(&held.info.key, held.hash) else {
            return self.send_held(held);
        };
        if self.state_moves.frames.len() >= HELD_LIMIT {
            self.learn(at, Input::AtLimit, &[]);
        }
        let moves = &mut *self.state_moves;
        let Some(of) = moves.moves.get_mut(at) else { return };
        if moves.frames.len() >= HELD_LIMIT + RELEASED_LIMIT {
            let service = self.cx.view.routes[of.from.slot].service;
            return refuse(held.frame, service, DropReason::InstanceRingFull, &mut self.cx);
        }
        of.held += 1;
        moves.frames.push_back(held);
    }

    /// One step of all moves: what instances have said, limits, new moves, and the packets of those that are over.
    #[cold]
    pub(super) fn advance_state_moves(&mut self) {
        let mut said = std::mem::take(&mut self.cx.said);
        for (slot, frame) in said.drain(..) {
            self.hear(slot, frame);
        }
        self.cx.said = said;
        self.watch();
        self.find_flows();
        self.release_ended(BURST_FRAMES);
        self.remind();
        self.advance_mappings();
        self.tell_moved();
    }

    /// Tells of slots whose flows have all been tried.
    fn tell_moved(&mut self) {
        let moves = &mut *self.state_moves;
        for of in &mut moves.emptying {
            let slot = of.place.slot;
            let is_over = of.cursor.is_none() && moves.moves.iter().all(|of| of.from.slot != slot);
            if of.is_awaited && is_over {
                of.is_awaited = false;
                let event = MappingsEvent::FlowsMoved { slot };
                self.cx.send_event(WorkerEvent::Mappings(event));
            }
        }
    }

    /// Gives all moves up: the flows stay where they are.
    pub(super) fn give_state_moves_up(&mut self) {
        self.state_moves.emptying.clear();
        for at in 0..self.state_moves.moves.len() {
            self.learn(at, Input::AtLimit, &[]);
        }
        self.release_ended(usize::MAX);
        self.remind();
    }

    /// Takes a message of the instance in a slot, or hands it to the worker whose move it is about.
    fn hear(&mut self, slot: Slot, frame: M::Frame) {
        let mut is_expected = false;
        if let Some((number, message)) = Message::read(frame.bytes()) {
            let worker = (number >> WORKER_SHIFT) as usize;
            if worker != self.cx.id.index() && worker < self.cx.workers {
                let to = Destination::Said { slot };
                return self.egress.hand_off(worker, frame, to, &mut self.cx);
            }
            let of = Place::of(slot, &self.cx.view);
            let moves = &self.state_moves.moves;
            if let Some(at) = moves.iter().position(|m| m.number == number)
                && let Some(party) = match of {
                    _ if of == moves[at].from => Some(Party::Source),
                    _ if of == moves[at].to => Some(Party::Destination),
                    _ => None,
                }
                && let Some(input) = Input::of(&message, party)
            {
                let state = match message {
                    Message::Exported(state) => state,
                    _ => &[],
                };
                is_expected = true;
                self.learn(at, input, state);
            } else {
                is_expected = self.hear_of_mappings(of, number, &message);
            }
        }
        self.cx.memory.give(frame);
        if !is_expected {
            self.cx.counters.figures.state_messages_refused.add(1);
        }
    }

    /// Ends moves whose time is over, whose instances have gone, or whose flow has ended.
    fn watch(&mut self) {
        for at in 0..self.state_moves.moves.len() {
            let Some(of) = self.state_moves.moves.get(at) else {
                return;
            };
            if of.transfer.is_over() {
                continue;
            }
            let hash = self.state_moves.hashes[at];
            let entry = self.lookup.table.lookup(&of.key, hash);
            let view = &self.cx.view;
            let input = match entry {
                None => Input::FlowEnded,
                _ if !of.to.serves(view) => Input::Gone(Party::Destination),
                Some(entry) if self.lookup.table.pins(entry) != of.pins || !of.from.serves(view) => {
                    Input::Gone(Party::Source)
                }
                _ if self.cx.now.since(of.since) >= TIME_LIMIT => Input::AtLimit,
                _ => continue,
            };
            self.learn(at, input, &[]);
            let is_late = |of: &Move| self.cx.now.since(of.since) >= TIME_LIMIT;
            if self.state_moves.moves.get(at).is_some_and(is_late) {
                // One whose source has gone waits for its destination, but no longer than others.
                self.learn(at, Input::AtLimit, &[]);
            }
        }
    }

    /// Begins moves of flows of slots that are emptied, as many as there is room for.
    fn find_flows(&mut self) {
        for index in 0..self.state_moves.emptying.len() {
            let moves = &mut *self.state_moves;
            let budget = MOVES_LIMIT - moves.moves.len();
            let Some(of) = moves.emptying.get_mut(index) else {
                return;
            };
            of.begin_again(self.cx.now);
            let (Some(cursor), slot) = (of.cursor, of.place.slot) else {
                continue;
            };
            if budget == 0 {
                return;
            }
            let found = &mut moves.found;
            of.cursor = self.lookup.table.dump(cursor, budget, self.cx.now, |row| {
                if row.pins.contains(&slot) {
                    found.push(row.key);
                }
            });
            self.egress.lanes_are_stale = true;
            let mut found = std::mem::take(&mut moves.found);
            for key in found.drain(..) {
                self.begin_move(&key, None);
            }
            self.state_moves.found = found;
        }
    }

    /// Takes a step of a move.
    fn learn(&mut self, at: usize, input: Input, state: &[u8]) {
        let Some(of) = self.state_moves.moves.get_mut(at) else {
            return;
        };
        let (number, flow, from, to) = (of.number, of.flow, of.from, of.to);
        let is_told = match of.transfer.step(input) {
            Step::Wait => true,
            Step::Send(Request::Export) => self.tell(from, 0, number, &Message::Export(flow)),
            Step::Send(Request::Import) => self.tell(to, 0, number, &Message::Import(flow, state)),
            Step::End(end) => {
                self.end(at, end);
                true
            }
        };
        if !is_told {
            self.learn(at, Input::NoRoom, &[]);
        }
    }

    /// Counts the end of a move, and pins the flow to its destination if that has the state.
    fn end(&mut self, at: usize, end: End) {
        let Some(of) = self.state_moves.moves.get_mut(at) else {
            return;
        };
        let (from, to, number, flow) = (of.from, of.to, of.number, of.flow);
        let figures = &self.cx.counters.figures;
        let source = &self.cx.counters.slots[from.slot];
        let cancelled = match end.cancelled {
            None => {
                of.has_moved = true;
                figures.state_moves.add(1);
                let hash = self.state_moves.hashes[at];
                if let Some(entry) = self.lookup.table.lookup(&of.key, hash) {
                    let pins = of.pins.map(|pin| if pin.is_some() { to.slot } else { pin });
                    self.lookup.table.set_pins(entry, pins, self.cx.now);
                }
                None
            }
            Some(Cancelled::Limit) => Some((&figures.state_moves_at_limit, &source.stayed_at_limit)),
            Some(Cancelled::Refused(_)) => Some((&figures.state_moves_refused, &source.stayed_refused)),
            Some(Cancelled::NoRoom) => Some((&figures.state_moves_without_room, &source.stayed_without_room)),
            Some(Cancelled::Gone(_) | Cancelled::FlowEnded) => {
                Some((&figures.state_moves_gone, &source.stayed_gone))
            }
        };
        if let Some((of_worker, of_source)) = cancelled {
            of_worker.add(1);
            of_source.add(1);
        }
        if let Some(party) = end.forgets {
            let place = if party == Party::Source { from } else { to };
            if self.state_moves.forgets.len() < FORGETS_LIMIT {
                self.state_moves.forgets.push(Forget { place, number, flow });
            } else {
                figures.state_forgets_lost.add(1);
            }
        }
        if let Some(Cancelled::Limit | Cancelled::NoRoom | Cancelled::Gone(Party::Destination)) =
            end.cancelled
        {
            self.state_moves.try_again(from, self.cx.now);
        }
    }

    /// Sends held packets of moves that are over to where their flows are now, before any later packet: at most `budget`,
    /// and no faster than instances take them, because more are held than a ring has places.
    fn release_ended(&mut self, budget: usize) {
        let mut ended = [0_u64; MOVES_LIMIT / 64];
        let mut any = false;
        for at in 0..self.state_moves.moves.len() {
            let Some(of) = self.state_moves.moves.get(at) else {
                break;
            };
            if of.transfer.is_over() {
                any = true;
                let slot = if of.has_moved { of.to.slot } else { of.from.slot };
                let instance = self.cx.ports.instances[slot].as_mut();
                if budget == usize::MAX || instance.is_none_or(|of| of.has_room()) {
                    ended[at / 64] |= 1 << (at % 64);
                }
            }
        }
        if !any {
            return;
        }
        let mut left = budget;
        for _ in 0..self.state_moves.frames.len() {
            let Some(held) = self.state_moves.frames.pop_front() else {
                break;
            };
            let place = self.state_moves.place(&held.info.key, held.hash);
            let moves = &mut self.state_moves.moves;
            match place.and_then(|at| moves.get_mut(at)) {
                Some(of) if left > 0 && place.is_some_and(|at| ended[at / 64] & 1 << (at % 64) != 0) => {
                    of.held -= 1;
                    left -= 1;
                    self.send_held(held);
                }
                Some(_) => self.state_moves.frames.push_back(held),
                None => self.send_held(held),
            }
        }
        let moves = &mut *self.state_moves;
        for at in (0..moves.moves.len()).rev() {
            if moves
                .moves
                .get(at)
                .is_some_and(|of| of.transfer.is_over() && of.held == 0)
            {
                moves.moves.swap_remove(at);
                moves.hashes.swap_remove(at);
            }
        }
        self.egress.lanes_are_stale = true;
        // Makes room in the outboxes for the rest of a current burst.
        self.egress.outboxes.flush(&mut self.cx);
    }

    /// Tells instances to drop copies; what finds no room is told later.
    fn remind(&mut self) {
        for at in (0..self.state_moves.forgets.len()).rev() {
            let Some(of) = self.state_moves.forgets.get(at) else {
                return;
            };
            let (place, number, flow) = (of.place, of.number, of.flow);
            if !place.serves(&self.cx.view) || self.tell(place, 0, number, &Message::Forget(flow)) {
                self.state_moves.forgets.swap_remove(at);
            }
        }
    }
}
