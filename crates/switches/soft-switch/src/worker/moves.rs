//! Flows that move from one instance to another, in services that allow it (`affinity = "relaxed"`).
//!
//! Such a flow lost its pin to an instance that serves. Its packets are held until all its earlier packets have
//! returned, and are then sent to the new instance in order. Time and number are limited: at a limit the packets are
//! released at once, and the worker counts the move as early.

use std::collections::VecDeque;

use flow_table::FlowRow;
use model::{FlowKey, Nanos, UplinkId};
use packet::PacketInfo;

use crate::frame::FrameMemory;
use crate::worker::context::Context;
use crate::worker::lookup::{Lookup, Missed};

/// Maximum time for which a flow's packets are held.
pub(crate) const HOLD_LIMIT: Nanos = Nanos::from_millis(1);
/// Maximum number of packets held of one flow.
const FLOW_FRAMES: u32 = 256;
/// Maximum number of packets that a worker holds.
const HELD_FRAMES: usize = 1024;
/// Maximum number of flows that a worker moves at the same time.
const MOVING_FLOWS: usize = 256;

/// A held packet.
pub(crate) struct Held<F> {
    pub(crate) frame: F,
    pub(crate) info: PacketInfo,
    pub(crate) hash: u64,
    pub(crate) uplink: UplinkId,
}

struct Moving {
    key: FlowKey,
    since: Nanos,
    held: u32,
    /// Whether its packets are released now.
    goes_on: bool,
}

/// The flows that a worker moves, and their held packets. All memory is allocated at the start.
pub(crate) struct Moves<F> {
    frames: VecDeque<Held<F>>,
    flows: Vec<Moving>,
    /// The hashes of `flows`, at the same indices: searched for every packet without a pin.
    hashes: Vec<u64>,
    /// Frames that the current release has not visited yet.
    unseen: usize,
}

impl<F> Moves<F> {
    pub(crate) fn new() -> Moves<F> {
        Moves {
            frames: VecDeque::with_capacity(HELD_FRAMES),
            flows: Vec::with_capacity(MOVING_FLOWS),
            hashes: Vec::with_capacity(MOVING_FLOWS),
            unseen: 0,
        }
    }

    /// Number of held packets.
    pub(crate) fn len(&self) -> usize {
        self.frames.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    fn place(&self, key: &FlowKey, hash: u64) -> Option<usize> {
        let same = |place: &usize| self.flows.get(*place).is_some_and(|flow| flow.key == *key);
        let mut places = self.hashes.iter().enumerate();
        places.find_map(|(place, h)| (*h == hash && same(&place)).then_some(place))
    }

    /// Whether packets of the flow are held.
    fn holds(&self, key: &FlowKey, hash: u64) -> bool {
        self.place(key, hash).is_some()
    }

    /// Holds a packet behind those of its flow. At a limit it returns the packet and marks flows for release by
    /// [`Moves::next`].
    ///
    /// # Errors
    /// The packet.
    pub(crate) fn hold(&mut self, held: Held<F>, now: Nanos) -> Result<(), Held<F>> {
        let place = self.place(&held.info.key, held.hash);
        let is_crowded =
            self.frames.len() >= HELD_FRAMES || place.is_none() && self.flows.len() >= MOVING_FLOWS;
        if is_crowded {
            self.flows.iter_mut().for_each(|flow| flow.goes_on = true);
            return Err(held);
        }
        match place.and_then(|place| self.flows.get_mut(place)) {
            Some(flow) if flow.held >= FLOW_FRAMES => {
                flow.goes_on = true;
                return Err(held);
            }
            Some(flow) => flow.held += 1,
            None => {
                self.hashes.push(held.hash);
                self.flows.push(Moving {
                    key: held.info.key,
                    since: now,
                    held: 1,
                    goes_on: false,
                });
            }
        }
        self.frames.push_back(held);
        Ok(())
    }

    /// Whether a packet, counted already, of a flow without an instance must wait for earlier packets.
    pub(crate) fn must_wait<M: FrameMemory>(
        &self,
        missed: &Missed,
        info: &PacketInfo,
        hash: u64,
        lookup: &Lookup,
        cx: &Context<M>,
    ) -> bool {
        let Some(entry) = missed.entry else { return false };
        if missed.lost.is_some() || info.is_icmp_error {
            return false;
        }
        let table = &lookup.table;
        let Some(service) = cx.view.plan.service(table.service(entry)) else {
            return false;
        };
        if !service.relaxed || table.has_lost_instance(entry, info.direction) {
            // Packets in a failed instance do not return.
            return false;
        }
        if self.holds(&info.key, hash) {
            return true;
        }
        // The first packet of a direction with a pin of its own has no earlier one.
        let is_first = |row: &FlowRow| !service.symmetric && row.packets[info.direction.index()] <= 1;
        table
            .get(&info.key, cx.now)
            .is_some_and(|row| !is_first(&row) && packets_out(&row) > 1)
    }

    /// Marks flows for release: those without packets in their old instance, and those whose time is over. Counts the
    /// marked flows that still have packets there.
    pub(crate) fn settle<M: FrameMemory>(&mut self, lookup: &Lookup, cx: &Context<M>) {
        let mut early = 0;
        for flow in &mut self.flows {
            // Packets of the flow that have not returned, including those held here.
            let out = lookup
                .table
                .get(&flow.key, cx.now)
                .map_or(0, |row| packets_out(&row));
            let is_out = out > u64::from(flow.held);
            flow.goes_on |= !is_out || cx.now.since(flow.since) >= HOLD_LIMIT;
            early += u64::from(flow.goes_on && is_out);
        }
        self.unseen = self.frames.len();
        cx.counters.figures.early_moves.add(early);
    }

    /// The next released packet; `None` when all marked flows are released, which removes them.
    pub(crate) fn next(&mut self) -> Option<Held<F>> {
        while self.unseen > 0 {
            self.unseen -= 1;
            let held = self.frames.pop_front()?;
            let flow = self.place(&held.info.key, held.hash);
            if flow
                .and_then(|place| self.flows.get(place))
                .is_none_or(|flow| flow.goes_on)
            {
                return Some(held);
            }
            self.frames.push_back(held);
        }
        for place in (0..self.flows.len()).rev() {
            if self.flows.get(place).is_some_and(|flow| flow.goes_on) {
                self.flows.swap_remove(place);
                self.hashes.swap_remove(place);
            }
        }
        None
    }

    /// Takes out all held packets, at the end of the worker.
    pub(crate) fn drain(&mut self) -> Option<F> {
        self.frames.pop_front().map(|held| held.frame)
    }
}

/// Packets of a flow that were counted and neither returned nor dropped.
fn packets_out(row: &FlowRow) -> u64 {
    /// The table counts packets modulo this.
    const MODULUS: u64 = 1 << 40;
    let sent = row.packets[0].wrapping_add(row.packets[1]);
    let back = row.returned.unwrap_or(sent);
    let out = sent.wrapping_sub(back).wrapping_sub(row.dropped.unwrap_or(0)) % MODULUS;
    // If more returned than were sent, the function originates packets.
    if out < MODULUS / 2 { out } else { 0 }
}
