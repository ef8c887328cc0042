//! Housekeeping, a part per turn: flows expire, pins are removed, dumps are filled, gauges are set and broken ports
//! reported.

use flow_table::{FlowTable, Progress};
use model::{DropReason, Nanos, Slot, UplinkId};

use crate::dump::{DUMP_ENTRIES_PER_STEP, FlowDump};
use crate::frame::FrameMemory;
use crate::message::WorkerEvent;
use crate::port::Queue as _;
use crate::table_memory::TableMemory;
use crate::worker::context::Context;
use crate::worker::ingress::Ingress;
use crate::worker::lookup::Lookup;
use crate::worker::set_up::SetUp;
use crate::worker::{BURST_FRAMES, BURSTS_PER_TURN};

/// Table entries that a worker reads per turn while pins are removed: about 10 µs.
const SWEEP_ENTRIES_PER_TURN: usize = 2048;
/// Expired flows removed per turn: as many as a turn's bursts can set up, so that this keeps up with any rate of it.
const EXPIRIES_PER_TURN: usize = BURSTS_PER_TURN * BURST_FRAMES;
/// Interval at which gauges of rings are refreshed and dumps continue when no packets come.
const PERIOD: Nanos = Nanos::from_millis(1);
/// Interval at which a worker looks which machines at the far ends of tunnels are to be asked.
const ASKING_PERIOD: Nanos = Nanos::from_millis(10);

/// Interval at which flows of listed associations count as used: a quarter of the shortest timeout that a configuration with
/// such a list may have, so that none expires. At most 256 lookups then: about 10 µs.
const ASSOCIATIONS_PERIOD: Nanos = Nanos::from_millis(250);

/// A slot whose pins are being removed.
pub(crate) struct Sweep {
    pub(crate) slot: Slot,
    pub(crate) failed: bool,
    /// The event to send when it is done.
    pub(crate) then: Option<Removal>,
}

/// A removal whose answer waits for the end of its sweep.
pub(crate) struct Removal {
    /// Packets that the instance held here.
    pub(crate) outstanding: u64,
}

/// The housekeeping of a worker.
pub(crate) struct Housekeeping {
    due: Nanos,
    /// When listed associations are kept again.
    associations_due: Nanos,
    /// When machines at the far ends of tunnels are looked at again.
    asking_due: Nanos,
    /// Uplinks whose broken port has been reported, a bit each.
    broken_uplinks: u32,
    /// Slots whose pins are being removed, a part per turn.
    sweeps: Vec<Sweep>,
    pub(crate) dump: Option<Box<FlowDump>>,
    /// Whether flows have expired that are still in the table.
    expiry_is_behind: bool,
}

impl Housekeeping {
    pub(crate) fn new() -> Housekeeping {
        Housekeeping {
            due: Nanos::ZERO,
            associations_due: Nanos::ZERO,
            asking_due: Nanos::ZERO,
            broken_uplinks: 0,
            sweeps: Vec::with_capacity(Slot::LIMIT),
            dump: None,
            expiry_is_behind: false,
        }
    }

    /// Whether machines at the far ends of tunnels are to be looked at.
    #[inline]
    pub(crate) fn is_asking(&mut self, now: Nanos) -> bool {
        let is_due = now >= self.asking_due;
        if is_due {
            self.asking_due = now + ASKING_PERIOD;
        }
        is_due
    }

    /// Whether work remains for the next turn, so that the worker must not sleep.
    pub(crate) fn is_behind(&self) -> bool {
        self.expiry_is_behind || !self.sweeps.is_empty()
    }

    /// Number of slots whose pins are being removed: each may be answered.
    pub(crate) fn sweeps(&self) -> usize {
        self.sweeps.len()
    }

    /// Removes expired flows, and fragments that waited too long.
    pub(crate) fn expire<M: FrameMemory>(
        &mut self,
        lookup: &mut Lookup,
        ingress: &mut Ingress<M>,
        set_up: &SetUp,
        cx: &mut Context<M>,
    ) {
        if cx.view.has_associations && cx.now >= self.associations_due {
            self.associations_due = cx.now + ASSOCIATIONS_PERIOD;
            keep_associations(&mut lookup.table, cx);
        }
        let (now, plan) = (cx.now, &cx.view.plan);
        let expiry = lookup
            .table
            .expire_and_visit(now, EXPIRIES_PER_TURN, |service, flow| {
                set_up.go_on_sharing(plan, service, flow, now);
            });
        self.expiry_is_behind = expiry.behind;
        while let Some((frame, _)) = ingress.fragments.expire(cx.now) {
            cx.discard(frame, DropReason::FragmentTimeout);
        }
    }

    /// Begins or continues to remove the pins to a slot. Returns the sweep when it is complete. The caller must send
    /// no new flow there meanwhile: the table refuses a pin to it.
    pub(crate) fn begin_sweep(&mut self, sweep: Sweep, table: &mut FlowTable<TableMemory>) -> Option<Sweep> {
        let slot = sweep.slot;
        let place = match self.sweeps.iter_mut().position(|s| s.slot == slot) {
            Some(place) => {
                let same = &mut self.sweeps[place];
                same.failed |= sweep.failed;
                same.then = sweep.then.or(same.then.take());
                place
            }
            None => {
                self.sweeps.push(sweep);
                self.sweeps.len() - 1
            }
        };
        self.advance(place, 0, table)
    }

    /// Continues the oldest sweep. Returns it when it is complete.
    pub(crate) fn continue_sweep(&mut self, table: &mut FlowTable<TableMemory>) -> Option<Sweep> {
        self.advance(0, SWEEP_ENTRIES_PER_TURN, table)
    }

    fn advance(&mut self, place: usize, budget: usize, table: &mut FlowTable<TableMemory>) -> Option<Sweep> {
        let sweep = self.sweeps.get(place)?;
        let progress = if sweep.failed {
            table.fail_slot(sweep.slot, budget)
        } else {
            table.purge_slot(sweep.slot, budget)
        };
        (progress == Progress::Done).then(|| self.sweeps.swap_remove(place))
    }

    /// Whether gauges are to be set at that time.
    #[inline]
    pub(crate) fn is_due(&self, now: Nanos) -> bool {
        now >= self.due
    }

    /// Sets the gauges, reports broken ports, and fills the next rows of a dump. `held` are packets between stages.
    pub(crate) fn refresh<M: FrameMemory>(
        &mut self,
        held: usize,
        ingress: &Ingress<M>,
        lookup: &Lookup,
        cx: &mut Context<M>,
    ) {
        self.due = cx.now + PERIOD;
        for place in 0..cx.ports.attached.len() {
            let slot = cx.ports.attached[place];
            let Some(instance) = &mut cx.ports.instances[slot] else {
                continue;
            };
            instance.gauge(&cx.counters.slots[slot]);
            if instance.is_newly_broken() {
                cx.send_event(WorkerEvent::PortBroken { slot });
            }
        }
        for uplink in (0..UplinkId::LIMIT as u8).map(UplinkId) {
            let is_broken = cx.ports.uplinks[uplink]
                .as_ref()
                .is_some_and(|port| port.is_broken());
            if is_broken && self.broken_uplinks & 1 << uplink.0 == 0 {
                self.broken_uplinks |= 1 << uplink.0;
                cx.send_event(WorkerEvent::UplinkBroken { uplink });
            }
        }
        for (slot, slot_plan) in (0..).map(Slot).zip(&cx.view.plan.slots) {
            if slot_plan.is_some() {
                let live = lookup.table.live(slot);
                cx.counters.slots[slot].live_flows.set(live.into());
            }
        }
        let figures = &cx.counters.figures;
        let fragments = ingress.fragments.occupied();
        figures.live_flows.set(lookup.table.flows() as u64);
        figures.fragments_waiting.set(fragments as u64);
        figures.held.set((ingress.in_rings() + fragments + held) as u64);
        self.continue_dump(lookup, cx);
    }

    /// A port that was attached is not known to be broken.
    pub(crate) fn forget_broken(&mut self, uplink: UplinkId) {
        self.broken_uplinks &= !(1_u32.unbounded_shl(uplink.0.into()));
    }

    fn continue_dump<M: FrameMemory>(&mut self, lookup: &Lookup, cx: &mut Context<M>) {
        let Some(mut dump) = self.dump.take() else { return };
        let mut is_cut = false;
        let FlowDump {
            filter,
            rows,
            limit,
            cursor,
            ..
        } = &mut *dump;
        let next = lookup.table.dump(*cursor, DUMP_ENTRIES_PER_STEP, cx.now, |row| {
            if filter.matches(&row) {
                if rows.len() < *limit {
                    rows.push(row);
                } else {
                    is_cut = true;
                }
            }
        });
        dump.complete = next.is_none() && !is_cut;
        dump.cursor = next.unwrap_or_default();
        if next.is_none() || is_cut {
            cx.send_event(WorkerEvent::Dumped(dump));
        } else {
            self.dump = Some(dump);
        }
    }
}

/// Keeps the flows of listed associations. Without packets they would end, and the next packet could go to an instance
/// that does not know the association's numbers.
#[cold]
fn keep_associations<M: FrameMemory>(table: &mut FlowTable<TableMemory>, cx: &Context<M>) {
    let services = cx.view.plan.services.iter();
    for of in services.flat_map(|service| service.associations.iter()) {
        let (key, direction) = packet::association_key(of.spi, of.to);
        if cx.other_owner(&key).is_some() {
            continue;
        }
        if let Some(entry) = table.lookup(&key, cx.hasher.hash(&key)) {
            table.hit(entry, direction, 0, 0, cx.now, 0);
        }
    }
}
