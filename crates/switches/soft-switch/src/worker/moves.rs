//! Flows on their way from one instance to another, in services that allow it (`affinity = "relaxed"`).
//!
//! Such a flow lost its pin to an instance that is well. Its packets are held until all that it sent before is back,
//! so that none overtakes another, and go to the new instance then, in their order. Never for long and never many:
//! what would exceed a limit goes on at once, and the worker counts the move as early.

use std::collections::VecDeque;

use flow_table::FlowRow;
use model::{FlowKey, Nanos, UplinkId};
use packet::PacketInfo;

use crate::frame::FrameMemory;
use crate::worker::context::Context;
use crate::worker::lookup::{Lookup, Missed};

/// How long a flow's packets are held at most.
pub(crate) const HOLD_LIMIT: Nanos = Nanos::from_millis(1);
/// Packets of one flow that are held at most.
const FLOW_FRAMES: u32 = 256;
/// Packets that a worker holds at most.
const HELD_FRAMES: usize = 1024;
/// Flows that a worker moves at the same time at most.
const MOVING_FLOWS: usize = 256;

/// A packet that waits.
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
    /// Whether its packets go on now.
    goes_on: bool,
}

/// The flows that a worker moves, and their packets. Everything is allocated when it is made.
pub(crate) struct Moves<F> {
    frames: VecDeque<Held<F>>,
    flows: Vec<Moving>,
    /// The hashes of `flows`, in the same places: looked through for every packet without a pin.
    hashes: Vec<u64>,
    /// Frames that the release under way has not looked at.
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

    /// Packets that wait.
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

    /// Whether packets of the flow wait.
    fn holds(&self, key: &FlowKey, hash: u64) -> bool {
        self.place(key, hash).is_some()
    }

    /// Holds a packet behind those of its flow. Given back where that would exceed a limit: what stands in the way is
    /// then marked to go on, which [`Moves::next`] does.
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

    /// Whether a packet, counted already, of a flow without an instance has to wait for those before it.
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
            // What was out with an instance that failed does not come back.
            return false;
        }
        if self.holds(&info.key, hash) {
            return true;
        }
        // The first packet of a direction that goes by itself has none before it.
        let is_first = |row: &FlowRow| !service.symmetric && row.packets[info.direction.index()] <= 1;
        table
            .get(&info.key, cx.now)
            .is_some_and(|row| !is_first(&row) && packets_out(&row) > 1)
    }

    /// Marks the flows that go on: those of which nothing is out any more, and those whose time is over. Counts those
    /// that were marked, now or by a limit, and have packets out.
    pub(crate) fn settle<M: FrameMemory>(&mut self, lookup: &Lookup, cx: &Context<M>) {
        let mut early = 0;
        for flow in &mut self.flows {
            // Packets of the flow, those held here among them, that are not back.
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

    /// The next packet that goes on; `None` when all that were marked have gone, and their flows are forgotten.
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

    /// Takes out whatever waits, at the end of the worker.
    pub(crate) fn drain(&mut self) -> Option<F> {
        self.frames.pop_front().map(|held| held.frame)
    }
}

/// Packets of a flow that were counted and are neither back nor dropped.
fn packets_out(row: &FlowRow) -> u64 {
    /// The table counts packets modulo this.
    const MODULUS: u64 = 1 << 40;
    let sent = row.packets[0].wrapping_add(row.packets[1]);
    let back = row.returned.unwrap_or(sent);
    let out = sent.wrapping_sub(back).wrapping_sub(row.dropped.unwrap_or(0)) % MODULUS;
    // Where more came back than was sent, the function makes packets of its own.
    if out < MODULUS / 2 { out } else { 0 }
}
