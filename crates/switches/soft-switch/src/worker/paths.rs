//! The worker's part of a fast path (`path-change`): it opens and shuts rules, counts what they took, and finds out up to
//! which packet its own part is done. The flow table alone says where a flow goes: a rule is a copy of a pin, is opened
//! here after a look at that, and shut here before the pin goes.
//!
//! Nothing here makes a system call. Rules are written by another thread (`soft/paths.rs`), which is told by a ring.
//! Markers leave through the ring of an uplink, behind the packets of the turn.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use flow_table::{FlowTable, TcpState};
use model::{Direction, FlowKey, Nanos, Slot, UplinkId, protocol};
use packet::TcpFlags;
use path_change::{FastPath, Want, Watermark};
use rtrb::{Consumer, Producer};

use crate::frame::FrameMemory;
use crate::port::Port;
use crate::table_memory::TableMemory;
use crate::worker::context::Ports;
use crate::worker::egress::Egress;
use crate::worker::new_flows::{Begun, Look, NewFlows};
use crate::worker::rules::{
    ByFlow, Drawn, Note, Order, PathContext, Rule, entrances, is_pinned, passages_of,
};

/// Interval at which rules are counted.
const PERIOD: Nanos = Nanos::from_millis(1);
/// Rules that are counted then: about 10 µs.
pub(crate) const RULES_PER_PERIOD: usize = 128;
/// Orders that are carried out in a turn.
const ORDERS_PER_TURN: usize = 32;
/// New flows that are looked at in a turn, and flows that are counted: about 2 µs.
const NEW_PER_TURN: usize = 16;
/// How often a marker may need a system call of its own.
const MARKER_INTERVAL: Nanos = Nanos::from_micros(100);

/// What a worker needs of a fast path.
pub(crate) struct PathParts {
    pub(crate) fast: Arc<dyn FastPath>,
    /// Flows with a rule at a time, at most.
    pub(crate) rules: usize,
    /// From how many half-open connections of a service on there is a flood.
    pub(crate) flood: u32,
    /// After which time a new flow is counted, so that the writer learns what flows bring.
    pub(crate) window: Nanos,
    /// Whether the writer is to be asked about new flows.
    pub(crate) wants_new: Arc<AtomicBool>,
    pub(crate) orders: Consumer<Order>,
    pub(crate) notes: Producer<Note>,
}

struct Held {
    rule: Rule,
    counted: [(u64, u64); 2],
    is_on: bool,
    /// Whether the writer of rules knows that it is shut.
    is_told: bool,
    /// Its place among those that are there.
    place: u16,
}

/// How far an entrance's packets are done.
#[derive(Debug)]
struct Mark {
    watermark: Watermark,
    /// Rules of packets that come by there.
    rules: u32,
    /// Done when what was committed in this turn has left.
    committed: Option<u64>,
    /// To be told by a marker.
    ready: Option<u64>,
}

/// The worker's part.
pub(crate) struct Paths {
    parts: PathParts,
    held: Vec<Option<Held>>,
    /// Pairs that are there.
    there: Vec<u16>,
    by_flow: ByFlow,
    new_flows: NewFlows,
    marks: Vec<Mark>,
    /// Entrances with rules.
    marked: Vec<u32>,
    due: Nanos,
    cursor: usize,
    marker_due: Nanos,
    /// Rules that are on.
    on: u64,
}

impl Paths {
    /// Everything is allocated here.
    pub(crate) fn new(parts: PathParts) -> Paths {
        let rules = parts.rules.min(parts.fast.passages() as usize / 2);
        let cpus = parts.fast.cpus();
        let mark = || Mark {
            watermark: Watermark::new(cpus),
            rules: 0,
            committed: None,
            ready: None,
        };
        let entrances = UplinkId::LIMIT + Slot::LIMIT;
        Paths {
            held: (0..rules).map(|_| None).collect(),
            there: Vec::with_capacity(rules),
            by_flow: ByFlow::new(rules),
            new_flows: NewFlows::new(parts.window),
            marks: (0..entrances).map(|_| mark()).collect(),
            marked: Vec::with_capacity(entrances),
            due: Nanos::ZERO,
            cursor: 0,
            marker_due: Nanos::ZERO,
            on: 0,
            parts,
        }
    }

    /// Whether a marker waits to be sent.
    pub(crate) fn has_work(&self) -> bool {
        self.marked.iter().any(|at| {
            let mark = self.marks.get(*at as usize);
            mark.is_some_and(|of| of.committed.is_some() || of.ready.is_some())
        })
    }

    // ---- opening and shutting ----------------------------------------------------------------------------------

    /// A packet of a burst was drawn, which came in on that uplink.
    pub(crate) fn draw<M: FrameMemory>(
        &mut self,
        (key, hash): (&FlowKey, u64),
        uplink: UplinkId,
        table: &FlowTable<TableMemory>,
        cx: &PathContext<'_, M>,
    ) {
        if self.has_room() && self.by_flow.find(key, hash).is_none() && is_plain(key) {
            self.ask((key, hash), uplink, table, cx, false);
        }
    }

    /// A flow has begun with a packet that came in on that uplink.
    #[cold]
    pub(crate) fn begins(&mut self, key: &FlowKey, hash: u64, uplink: UplinkId, now: Nanos) {
        if is_plain(key) {
            let begun = Begun {
                key: *key,
                hash,
                uplink,
                at: now,
            };
            let is_wanted = self.parts.wants_new.load(Ordering::Relaxed);
            self.new_flows.begins(begun, is_wanted);
        }
    }

    /// Whether a flow may be asked about: shut rules and closed pairs have room in any case.
    fn has_room(&self) -> bool {
        self.parts.notes.slots() > 2 * self.held.len()
    }

    /// Asks the writer about a flow, if it may have a rule.
    fn ask<M: FrameMemory>(
        &mut self,
        (key, hash): (&FlowKey, u64),
        uplink: UplinkId,
        table: &FlowTable<TableMemory>,
        cx: &PathContext<'_, M>,
        is_new: bool,
    ) {
        let Some(row) = table.get(key, cx.now) else { return };
        let slot = row.pins[0];
        let inward = row.opener;
        // What an instance has opened itself goes the other way round.
        let inward = if cx.is_of_slot(slot, &key.tuple(inward).src) {
            inward.flipped()
        } else {
            inward
        };
        let Some(instance) = cx.eligible(slot, uplink) else {
            return;
        };
        let is_open = match row.tcp {
            TcpState::None => row.packets.iter().all(|packets| *packets > 0),
            TcpState::Established => true,
            _ => return,
        };
        if row.pins[1] != slot {
            return;
        }
        let drawn = Drawn {
            key: *key,
            hash,
            inward,
            slot,
            instance,
            uplink,
            packets: row.packets.iter().sum(),
            bytes: row.bytes.iter().sum(),
            is_new,
            is_open,
            is_flooded: table.half_open_of_service(row.service) >= self.parts.flood,
        };
        let _full = self.parts.notes.push(Note::Drawn(drawn));
    }

    /// Asks about flows that have just begun, and tells what earlier ones have brought.
    fn look_at_new<M: FrameMemory>(&mut self, table: &FlowTable<TableMemory>, cx: &PathContext<'_, M>) {
        for _ in 0..NEW_PER_TURN.min(self.new_flows.waiting()) {
            let Some(of) = self.new_flows.next() else { break };
            let Begun {
                key, hash, uplink, ..
            } = of.begun;
            let look = Look::at(table.get(&key, cx.now).as_ref());
            let asks = self.new_flows.looked(of, look, cx.now);
            if asks && self.has_room() && self.by_flow.find(&key, hash).is_none() {
                self.ask((&key, hash), uplink, table, cx, true);
            }
        }
        for _ in 0..NEW_PER_TURN {
            let Some(of) = self.new_flows.due(cx.now) else {
                break;
            };
            let Some(row) = table.get(&of.key, cx.now) else {
                continue;
            };
            // What was never answered is no flow to learn from, and neither is one that can have no rule.
            let is_one = row.tcp != TcpState::Handshake && cx.eligible(row.pins[0], of.uplink).is_some();
            if is_one && self.has_room() {
                let (packets, bytes) = (row.packets.iter().sum(), row.bytes.iter().sum());
                let brought = Note::Brought {
                    uplink: of.uplink,
                    packets,
                    bytes,
                };
                let _full = self.parts.notes.push(brought);
            }
        }
    }

    /// Carries orders out, and counts what rules have taken.
    pub(crate) fn turn<M: FrameMemory>(
        &mut self,
        table: &mut FlowTable<TableMemory>,
        cx: &PathContext<'_, M>,
    ) {
        for _ in 0..ORDERS_PER_TURN {
            let Ok(order) = self.parts.orders.pop() else { break };
            match order {
                Order::Open(rule) => self.open(rule, table, cx),
                Order::Shut(pair) => self.shut(pair, cx),
                Order::Close(pair) => self.close(pair, table, cx),
            }
        }
        self.look_at_new(table, cx);
        if cx.now < self.due || self.there.is_empty() {
            return;
        }
        self.due = cx.now + PERIOD;
        for _ in 0..RULES_PER_PERIOD.min(self.there.len()) {
            self.cursor = (self.cursor + 1) % self.there.len();
            let Some(pair) = self.there.get(self.cursor).copied() else {
                return;
            };
            self.count(pair, table, cx);
            let Some(Some(held)) = self.held.get_mut(usize::from(pair)) else {
                continue;
            };
            if held.is_on {
                let rule = held.rule;
                if !is_pinned(&rule, table, cx) {
                    self.shut(pair, cx);
                }
            } else if !held.is_told {
                held.is_told = self.parts.notes.push(Note::Shut(pair)).is_ok();
            }
        }
    }

    fn open<M: FrameMemory>(
        &mut self,
        rule: Rule,
        table: &mut FlowTable<TableMemory>,
        cx: &PathContext<'_, M>,
    ) {
        let pair = rule.pair;
        let fast = Arc::clone(&self.parts.fast);
        let Some(place) = self.held.get_mut(usize::from(pair)) else {
            return;
        };
        *place = Some(Held {
            rule,
            counted: passages_of(pair).map(|passage| fast.counted(passage)),
            is_on: true,
            is_told: false,
            place: self.there.len() as u16,
        });
        self.there.push(pair);
        self.by_flow.put(pair, &rule.key, rule.hash);
        for entrance in entrances(&rule) {
            if let Some(mark) = self.marks.get_mut(entrance as usize) {
                if mark.rules == 0 {
                    self.marked.push(entrance);
                }
                mark.rules += 1;
            }
        }
        self.on += 1;
        cx.counters.figures.promotions.add(1);
        self.show(cx, rule.slot, 1);
        // Since it was drawn, its instance may have begun to drain, or the flow may have another one.
        if !is_pinned(&rule, table, cx) {
            return self.shut(pair, cx);
        }
        for (passage, entrance) in passages_of(pair).into_iter().zip(entrances(&rule)) {
            fast.open(passage, entrance);
        }
    }

    fn show<M: FrameMemory>(&self, cx: &PathContext<'_, M>, slot: Slot, change: i64) {
        cx.counters.figures.fast_rules.set(self.on);
        let of_slot = &cx.counters.slots[slot].fast_rules;
        of_slot.set(of_slot.get().saturating_add_signed(change));
    }

    /// Shuts a rule: the flow's next packet comes to the worker.
    fn shut<M: FrameMemory>(&mut self, pair: u16, cx: &PathContext<'_, M>) {
        let Some(Some(held)) = self.held.get_mut(usize::from(pair)) else {
            return;
        };
        if !held.is_on {
            return;
        }
        held.is_on = false;
        for passage in passages_of(pair) {
            self.parts.fast.shut(passage);
        }
        held.is_told = self.parts.notes.push(Note::Shut(pair)).is_ok();
        let slot = held.rule.slot;
        self.on -= 1;
        cx.counters.figures.demotions.add(1);
        self.show(cx, slot, -1);
    }

    fn close<M: FrameMemory>(
        &mut self,
        pair: u16,
        table: &mut FlowTable<TableMemory>,
        cx: &PathContext<'_, M>,
    ) {
        self.shut(pair, cx);
        self.count(pair, table, cx);
        let Some(held) = self.held.get(usize::from(pair)).and_then(Option::as_ref) else {
            return;
        };
        let (rule, place) = (held.rule, usize::from(held.place));
        self.by_flow.take_out(pair, rule.hash);
        self.held[usize::from(pair)] = None;
        self.there.swap_remove(place);
        if let Some(moved) = self.there.get(place)
            && let Some(Some(held)) = self.held.get_mut(usize::from(*moved))
        {
            held.place = place as u16;
        }
        for entrance in entrances(&rule) {
            if let Some(mark) = self.marks.get_mut(entrance as usize) {
                mark.rules -= 1;
                if mark.rules == 0 {
                    self.marked.retain(|at| *at != entrance);
                }
            }
        }
        // There is room: a pair is closed once for each time that it was drawn.
        let _room = self.parts.notes.push(Note::Closed(pair));
    }

    /// Shuts the rule of a flow, which is about to get an instance.
    #[cold]
    pub(crate) fn forget<M: FrameMemory>(&mut self, key: &FlowKey, hash: u64, cx: &PathContext<'_, M>) {
        if let Some(pair) = self.by_flow.find(key, hash) {
            self.shut(pair, cx);
        }
    }

    /// Whether there is any.
    #[inline(always)]
    pub(crate) fn has_rules(&self) -> bool {
        self.on > 0
    }

    /// Shuts all rules that are not wanted.
    #[cold]
    pub(crate) fn shut_all<M: FrameMemory>(
        &mut self,
        cx: &PathContext<'_, M>,
        is_wanted: impl Fn(&Rule) -> bool,
    ) {
        for place in 0..self.there.len() {
            let Some(pair) = self.there.get(place).copied() else {
                return;
            };
            let held = self.held.get(usize::from(pair)).and_then(Option::as_ref);
            if held.is_some_and(|held| !is_wanted(&held.rule)) {
                self.shut(pair, cx);
            }
        }
    }

    /// Another socket has an entrance.
    #[cold]
    pub(crate) fn restart(&mut self, entrance: u32) {
        if let Some(mark) = self.marks.get_mut(entrance as usize) {
            mark.watermark.restart();
            (mark.committed, mark.ready) = (None, None);
        }
    }

    // ---- counting ----------------------------------------------------------------------------------------------

    /// Adds what a rule has taken since, as if the worker had forwarded it.
    fn count<M: FrameMemory>(
        &mut self,
        pair: u16,
        table: &mut FlowTable<TableMemory>,
        cx: &PathContext<'_, M>,
    ) {
        let fast = &self.parts.fast;
        let Some(Some(held)) = self.held.get_mut(usize::from(pair)) else {
            return;
        };
        let now = passages_of(pair).map(|passage| fast.counted(passage));
        if now == held.counted {
            return;
        }
        let [to, back] = [0, 1].map(|at| {
            (
                now[at].0.wrapping_sub(held.counted[at].0),
                now[at].1.wrapping_sub(held.counted[at].1),
            )
        });
        held.counted = now;
        let rule = held.rule;
        let tuple = rule.key.tuple(rule.inward);
        let tag = if tuple.vlan == 0 { 0 } else { 4 };
        let (to, back) = ((to.0, to.1 + tag * to.0), (back.0, back.1 + tag * back.0));
        let uplink = &cx.counters.uplinks[rule.uplink];
        let slot = &cx.counters.slots[rule.slot];
        uplink.received_packets.add(to.0);
        uplink.received_bytes.add(to.1);
        cx.counters.figures.received.add(to.0);
        if let Some(service) = cx.service_of(rule.slot) {
            cx.counters.offer(service.id, to.0, to.1);
        }
        slot.to_packets.add(to.0);
        slot.to_bytes.add(to.1);
        slot.delivered.add(to.0);
        slot.back_packets.add(back.0);
        slot.back_bytes.add(back.1);
        slot.originated.add(back.0);
        slot.fast_packets.add(to.0 + back.0);
        cx.counters.figures.fast_packets.add(to.0 + back.0);
        uplink.sent_packets.add(back.0);
        uplink.sent_bytes.add(back.1);
        let flags = if tuple.protocol == protocol::TCP {
            TcpFlags::ACK
        } else {
            0
        };
        if let Some(entry) = table.lookup(&rule.key, rule.hash) {
            for ((packets, bytes), direction) in [(to, rule.inward), (back, rule.inward.flipped())] {
                if packets > 0 {
                    table.hit(entry, direction, packets as u32, bytes, cx.now, flags);
                }
            }
        }
    }

    /// Counts what all rules have taken. None takes anything any more.
    #[cold]
    pub(crate) fn count_all<M: FrameMemory>(
        &mut self,
        table: &mut FlowTable<TableMemory>,
        cx: &PathContext<'_, M>,
    ) {
        for pair in 0..self.held.len() as u16 {
            self.count(pair, table, cx);
        }
    }

    // ---- what is done ------------------------------------------------------------------------------------------

    /// All that was taken in this turn is in the rings of those who get it, and is about to leave. Puts markers behind it
    /// that earlier turns have made possible.
    pub(crate) fn mark<M: FrameMemory>(
        &mut self,
        now: Nanos,
        ports: &mut Ports<M>,
        egress: &mut Egress<M>,
        uplink_of: impl Fn(Slot) -> UplinkId,
    ) {
        let fast = &self.parts.fast;
        let is_due = now >= self.marker_due;
        for &entrance in &self.marked {
            let Some(mark) = self.marks.get_mut(entrance as usize) else {
                continue;
            };
            let slot = (entrance as usize).checked_sub(UplinkId::LIMIT);
            let slot = slot.map(|slot| Slot(slot as u16));
            let uplink = slot.map_or(UplinkId(entrance as u8), &uplink_of);
            if let Some(number) = mark.ready
                && (is_due || egress.is_touched(uplink))
                && let Some(Port::Kernel(port)) = ports.uplinks[uplink].as_deref_mut()
                && port.mark(&fast.marker(entrance, number))
            {
                mark.ready = None;
                egress.touch(uplink);
                self.marker_due = now + MARKER_INTERVAL;
            }
            let port = match slot {
                None => ports.uplinks[uplink].as_deref_mut(),
                Some(slot) => ports.instances[slot]
                    .as_deref_mut()
                    .and_then(|of| of.ports().next()),
            };
            let Some(Port::Kernel(port)) = port else { continue };
            advance(&mut mark.watermark, &**fast, entrance, port);
            if port.is_whole()
                && let Some(number) = mark.watermark.committed(port.taken())
            {
                mark.committed = Some(number);
            }
        }
    }

    /// The turn is committed. What was to leave has left, unless a port is busy.
    pub(crate) fn committed<M: FrameMemory>(&mut self, ports: &mut Ports<M>) {
        let marks = &self.marks;
        let has_committed = |at: &u32| marks.get(*at as usize).is_some_and(|of| of.committed.is_some());
        if !self.marked.iter().any(has_committed) || ports.are_busy() {
            return;
        }
        for &entrance in &self.marked {
            if let Some(mark) = self.marks.get_mut(entrance as usize)
                && let Some(number) = mark.committed.take()
            {
                mark.ready = Some(number);
            }
        }
    }
}

/// Whether a flow may have a rule by its key. No kernel with VLANs has tried the programs: flows with a tag stay here.
fn is_plain(key: &FlowKey) -> bool {
    matches!(key.protocol(), protocol::TCP | protocol::UDP) && key.tuple(Direction::Forward).vlan == 0
}

/// Looks at one number after the other, as far as it goes.
fn advance(mark: &mut Watermark, fast: &dyn FastPath, entrance: u32, port: &mut crate::KernelPort) {
    loop {
        match mark.want() {
            Want::Passed => {
                mark.passed(fast.passed(entrance));
                if mark.want() == Want::Passed {
                    return;
                }
            }
            Want::Begun(cpu) => mark.begun(fast.begun(entrance, cpu)),
            Want::Placed(cpu) => {
                if !mark.placed(fast.placed(entrance, cpu)) {
                    return;
                }
            }
            Want::Waiting => mark.waiting(port.taken(), port.waiting()),
            Want::Nothing => return,
        }
    }
}
