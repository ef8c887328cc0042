//! Set-up: a new flow, or one that lost its instance, is classified, scheduled and pinned.

use std::sync::{Arc, OnceLock};

use flow_table::{FlowTable, Full};
use interfaces::is_checker;
use model::{Direction, DropReason, FlowKey, Nanos, ServiceId, Slot, TableFull, UplinkId, protocol};
use packet::PacketInfo;
use scheduling::{Candidate, Candidates, Metric, NewFlow, PRIORITIES, Pick, Scheduler, Terms};
use switch::{PickRecord, Plan, ServicePlan, SlotPlan};

use crate::counters::WorkerCounters;
use crate::frame::FrameMemory;
use crate::id_map::SlotMap;
use crate::plan::LoadBoard;
use crate::shares::Shares;
use crate::table_memory::TableMemory;
use crate::tunnels::Tunnels;
use crate::worker::choice::Choice;
use crate::worker::context::Context;
use crate::worker::egress::Decision;
use crate::worker::looks::MachineSlots;
use crate::worker::lookup::{Lookup, Missed};
use crate::worker::unknown::{HalfOpen, TcpPart};

/// Maximum number of flows with a chosen destination that have sent no packet since. Beyond it, the scheduler decides
/// for one of them.
const DESTINATIONS: usize = 64;

/// A service on this worker: its scheduler and the instances that take new flows.
pub(super) struct ServiceState {
    pub(super) id: ServiceId,
    pub(super) scheduler: Scheduler,
    /// Whether that goes by a hash alone.
    pub(super) goes_by_hash: bool,
    pub(super) candidates: Candidates,
    /// Expected rate of a new flow, in the service's metric.
    pub(super) expected: f32,
    /// A requested record of the next decision.
    pub(super) record: Option<Box<PickRecord>>,
    /// Who picks by the hash alone where the service's scheduler does not.
    by_hash: Scheduler,
    /// Its machines, if other edges give flows to them, too.
    pub(super) machines: MachineSlots,
    /// Until when the middle of unknown connections goes by the hash, because their first packets have.
    pub(super) by_hash_until: Nanos,
    /// Which of the scheduler's weights the counters show.
    shown: u64,
}

impl ServiceState {
    /// Picks the instance of a flow of which nothing is known but its hash.
    #[cold]
    pub(super) fn pick_by_hash(&mut self, flow: &NewFlow<'_>) -> Pick {
        if self.goes_by_hash {
            return self.scheduler.pick(flow, &self.candidates);
        }
        let mut among = flow.among.iter();
        if let Some(index) = among.find_map(|slot| self.candidates.index_of(*slot)) {
            return Pick::Fits(index);
        }
        // Once per change of the candidates: some tens of microseconds. A table of the candidates before would give
        // flows to an instance that is not theirs.
        self.by_hash.settle(&self.candidates);
        self.by_hash.pick(flow, &self.candidates)
    }

    /// The picked candidate: its place among them, and its slot.
    #[inline(always)]
    pub(super) fn picked(&self, pick: Pick) -> Option<(usize, Slot)> {
        let index = pick.index()?;
        Some((index, self.candidates.get(index)?.slot))
    }

    /// Shows the scheduler's weights in the counters, where it has new ones.
    fn show_weights(&mut self, plan: &Plan, counters: &WorkerCounters) {
        if self.scheduler.has_weights() {
            self.scheduler.follow(&self.candidates);
        }
        let made = self.scheduler.weighings();
        if made == self.shown {
            return;
        }
        self.shown = made;
        for slot in (0..Slot::LIMIT as u16).map(Slot) {
            if plan.slot(slot).is_some_and(|of| of.service != self.id) {
                continue;
            }
            let mut rows = self.candidates.rows().iter();
            let weighing = rows
                .position(|row| row.slot == slot)
                .and_then(|index| self.scheduler.weighing(&self.candidates, index));
            let counters = &counters.slots[slot];
            counters.weight.set(weighing.map_or(0, |of| u64::from(of.weight)));
            counters
                .period_load
                .set(weighing.map_or(0, |of| of.counted as u64));
        }
    }
}

/// The packet that opens a flow.
pub(crate) struct Opening<'a> {
    pub(crate) key: &'a FlowKey,
    pub(crate) direction: Direction,
    pub(crate) hash: u64,
    pub(crate) dscp: u8,
    /// The uplink that received it.
    pub(crate) uplink: UplinkId,
    /// Whether it is an ICMP error that quotes the flow.
    pub(crate) is_icmp_error: bool,
    /// What it is of a TCP connection without an entry.
    pub(crate) part: TcpPart,
    /// The place of its service in the plan, where its key does not say that.
    pub(crate) of: Option<usize>,
}

/// The pins of a flow whose instance was picked.
pub(crate) struct Place {
    /// The slot in both directions of a symmetric service, else in the packet's direction.
    pub(crate) pins: [Slot; 2],
    pub(crate) slot: Slot,
    pub(crate) service: ServiceId,
    pub(crate) is_symmetric: bool,
}

/// The set-up stage.
pub(crate) struct SetUp {
    pub(super) services: Vec<ServiceState>,
    loads: Arc<LoadBoard>,
    /// Epoch of the loads in use; `u64::MAX` if the candidates must be listed anew.
    load_epoch: u64,
    /// Expected load of flows pinned since then, by slot, in the service's metric.
    pub(super) pinned: SlotMap<f32>,
    /// The pins that flows share.
    pub(super) shares: Arc<OnceLock<Shares>>,
    pub(super) half_open: HalfOpen,
    /// Chosen slots of flows that lost their pin, in place of the scheduler's.
    pub(super) destinations: Vec<(FlowKey, Slot)>,
    /// Number of packets so far for whose flow an instance was picked.
    pub(crate) count: u64,
}

impl SetUp {
    pub(crate) fn new(loads: Arc<LoadBoard>, shares: Arc<OnceLock<Shares>>, half_open: HalfOpen) -> SetUp {
        SetUp {
            services: Vec::with_capacity(ServiceId::LIMIT),
            loads,
            shares,
            half_open,
            load_epoch: u64::MAX,
            pinned: SlotMap::default(),
            destinations: Vec::with_capacity(DESTINATIONS),
            count: 0,
        }
    }

    // ---- candidates -------------------------------------------------------------------------------------------

    /// Number of services.
    pub(crate) fn services(&self) -> usize {
        self.services.len()
    }

    /// Whether loads were published since they were taken over.
    #[inline]
    pub(crate) fn is_outdated(&self) -> bool {
        self.loads.epoch() != self.load_epoch
    }

    /// Makes the next turn list the candidates anew.
    pub(crate) fn relist(&mut self) {
        self.load_epoch = u64::MAX;
    }

    /// Whether the middle of unknown connections of the service at that place of the plan goes by a hash, because their
    /// first packets have.
    pub(crate) fn goes_by_hash(&self, index: usize, now: Nanos) -> bool {
        self.services.get(index).is_some_and(|of| now < of.by_hash_until)
    }

    /// No new flow goes to that slot until the candidates are listed anew.
    pub(crate) fn leave_out(&mut self, slot: Slot) {
        for service in &mut self.services {
            service.candidates.remove(slot);
        }
    }

    /// Takes over the services of a plan.
    pub(crate) fn follow(&mut self, plan: &Plan, tunnels: &Tunnels) {
        self.services
            .retain(|s| plan.services.iter().any(|p| p.id == s.id));
        for service in &plan.services {
            if !self.services.iter().any(|s| s.id == service.id) {
                // The only allocation of a plan, once per new service.
                self.services.push(ServiceState {
                    id: service.id,
                    goes_by_hash: service.scheduler.is_by_hash(),
                    scheduler: service.scheduler.clone(),
                    candidates: Candidates::new(),
                    expected: 0.0,
                    record: None,
                    by_hash: Scheduler::by_hash_alone(),
                    machines: MachineSlots::default(),
                    by_hash_until: Nanos::ZERO,
                    shown: 0,
                });
            }
        }
        // In the order of the plan: a service has the same place in both.
        self.services
            .sort_unstable_by_key(|s| plan.services.iter().position(|p| p.id == s.id));
        for (state, service) in self.services.iter_mut().zip(&plan.services) {
            state.machines.follow(service, plan, tunnels);
        }
    }

    /// Lists the instances that take new flows, with their newest loads.
    pub(crate) fn list_candidates(
        &mut self,
        plan: &Plan,
        table: &FlowTable<TableMemory>,
        counters: &WorkerCounters,
        now: Nanos,
    ) {
        let epoch = self.loads.epoch();
        if epoch != self.load_epoch {
            // After a sweep the epoch is as it was, and so are the estimates.
            if self.load_epoch != u64::MAX {
                self.pinned.iter_mut().for_each(|pinned| *pinned = 0.0);
            }
            self.load_epoch = epoch;
        }
        for state in &mut self.services {
            state.candidates.begin(Terms {
                at: now,
                fit: plan.service(state.id).map_or(1.0, |service| service.fit),
                slow_start: state.scheduler.settings().slow_start,
            });
            state.expected = self.loads.expected(state.id);
        }
        for (slot, slot_plan) in (0..).map(Slot).zip(plan.slots.iter().take(Slot::LIMIT)) {
            let Some(slot_plan) = slot_plan else { continue };
            if !slot_plan.state.takes_new_flows() || !table.is_slot_usable(slot) {
                continue;
            }
            if let Some(state) = self.services.iter_mut().find(|s| s.id == slot_plan.service) {
                state.candidates.push(Candidate {
                    slot,
                    place: slot_plan.place,
                    capacity: plan.capacity(slot_plan),
                    load: self.loads.load(slot) + self.pinned[slot],
                    trust: self.loads.trust(slot),
                    weight: slot_plan.weight,
                    live_flows: table.live(slot),
                    active_for: now.since(slot_plan.active_since),
                    queues: [0.0; PRIORITIES],
                });
            }
        }
        for state in &mut self.services {
            state.show_weights(plan, counters);
            state.machines.note_takers(&state.candidates, now);
        }
    }

    /// Replaces the scheduler of a service. The candidates are listed anew, on its terms.
    pub(crate) fn set_scheduler(&mut self, service: ServiceId, scheduler: Scheduler) {
        if let Some(state) = self.services.iter_mut().find(|s| s.id == service) {
            state.goes_by_hash = scheduler.is_by_hash();
            state.scheduler = scheduler;
        }
        self.relist();
    }

    /// Requests a record of a service's next decision. Returns the request that this one replaces, or this one if the
    /// service does not exist.
    pub(crate) fn record(&mut self, record: Box<PickRecord>) -> Option<Box<PickRecord>> {
        match self.services.iter_mut().find(|s| s.id == record.service) {
            Some(state) => state.record.replace(record),
            None => Some(record),
        }
    }

    /// Sends a flow to that slot when it is set up again.
    pub(crate) fn send_to(&mut self, key: FlowKey, slot: Slot) {
        if self.destinations.len() == DESTINATIONS {
            self.destinations.swap_remove(0);
        }
        self.destinations.push((key, slot));
    }

    // ---- new flows --------------------------------------------------------------------------------------------

    /// Schedules the flow of a single packet, or its direction without an instance. `of`: see [`Opening::of`].
    #[cold]
    pub(crate) fn place<M: FrameMemory>(
        &mut self,
        info: &PacketInfo,
        hash: u64,
        missed: Missed,
        (uplink, of): (UplinkId, Option<usize>),
        lookup: &mut Lookup,
        cx: &mut Context<M>,
    ) -> Decision {
        let is_unknown_tcp = missed.entry.is_none() && info.key.protocol() == protocol::TCP;
        let opening = Opening {
            key: &info.key,
            direction: info.direction,
            hash,
            dscp: info.dscp,
            uplink,
            is_icmp_error: info.is_icmp_error,
            part: if is_unknown_tcp {
                TcpPart::of(info.tcp_flags)
            } else {
                TcpPart::None
            },
            of,
        };
        // The rate of a flow that lost its instance is known if it is an elephant.
        let rate = missed.entry.and_then(|_| lookup.elephants.rate(&info.key, hash));
        let now = cx.now;
        let table = &mut lookup.table;
        self.open(&opening, rate.map(|(pps, _)| pps), table, cx, |table, to| {
            let moved = match missed.entry {
                // This packet was counted as a hit already.
                Some(entry) if to.is_symmetric => table.set_pins(entry, to.pins, now),
                Some(entry) => table.set_pin(entry, info.direction, to.slot, now),
                None => {
                    let entry = table.insert(&info.key, hash, info.direction, to.pins, to.service, now)?;
                    let bytes = u64::from(info.frame_len);
                    table.hit(entry, info.direction, 1, bytes, now, info.tcp_flags.0);
                    false
                }
            };
            // A pin that was not removed yet has moved, too.
            Ok(moved | missed.lost.is_some())
        })
    }

    /// The only way to schedule a flow. `enter` writes its pins into the flow table, and returns whether it moved
    /// from an instance that is gone. `rate` is its known rate in packets per second.
    #[inline(always)]
    pub(crate) fn open<M: FrameMemory>(
        &mut self,
        opening: &Opening<'_>,
        rate: Option<f32>,
        table: &mut FlowTable<TableMemory>,
        cx: &mut Context<M>,
        enter: impl FnOnce(&mut FlowTable<TableMemory>, Place) -> Result<bool, Full>,
    ) -> Decision {
        self.count += 1;
        cx.shut_path(opening.key, opening.hash);
        let plan = &*cx.view.plan;
        let &Opening {
            key, direction, hash, ..
        } = opening;
        if !plan.blocks.is_empty()
            && let Some(packet) = plan.blocks.find(&key.tuple(direction), opening.uplink)
        {
            return self.open_by_block(opening, packet, table, cx, enter);
        }
        let by_key = || plan.classify(|| key.tuple(direction), opening.uplink);
        let of = opening.of.or_else(by_key);
        let found = of.and_then(|of| Some((of, plan.services.get(of)?, self.services.get_mut(of)?)));
        let Some((place, service, state)) = found else {
            return Decision::Fallback(plan.unmatched);
        };
        let (service_id, counters) = (service.id, &cx.counters);
        if state.candidates.is_empty()
            && let Some(slot) = being_purged(plan, service_id, hash)
        {
            // The pins to all instances are just being removed. They still get packets, without a pin until that is
            // done.
            counters.services[service_id].unpinned.add(1);
            return Decision::Instance {
                slot,
                service: service_id,
            };
        }
        if service.vip.is_some() && is_checker(key.tuple(direction).src) {
            // Nobody in the network has that address: the answers to health checks would go there.
            return Decision::Refused {
                service: service_id,
                reason: DropReason::Spoofed,
            };
        }
        let half_open = || table.half_open_of_service(service_id);
        let makes_entry = match opening.part {
            _ if opening.is_icmp_error => false,
            TcpPart::Opens => !self.half_open.is_reached(key, half_open()),
            TcpPart::Answers => cx.now >= state.by_hash_until,
            TcpPart::None | TcpPart::Middle => true,
        };
        if !makes_entry {
            return self.pass_on(opening, place, cx);
        }
        let expected = match rate {
            Some(pps) if state.scheduler.settings().metric == Metric::Packets => pps.max(state.expected),
            _ => state.expected,
        };
        let mut flow = NewFlow {
            key,
            direction,
            hash,
            expected,
            dscp: opening.dscp,
            among: &[],
        };
        let is_ordinary = opening.part != TcpPart::Middle
            && !state.goes_by_hash
            && service.machines.is_none()
            && state.record.is_none()
            && !service.affinity_key.shares_addresses()
            && self.destinations.is_empty();
        let choice = if is_ordinary {
            let pick = state.scheduler.pick(&flow, &state.candidates);
            state.picked(pick).map(|(index, slot)| Choice {
                index,
                slot,
                is_overcommitted: matches!(pick, Pick::Overcommitted(_)),
                is_recovered: false,
                is_shared: false,
            })
        } else {
            self.choose_with_care(place, opening, &mut flow, cx)
        };
        let plan = &*cx.view.plan;
        let Some((service, state)) = plan.services.get(place).zip(self.services.get_mut(place)) else {
            return Decision::Fallback(plan.unmatched);
        };
        let counters = &cx.counters;
        let Some(Choice {
            index,
            slot,
            is_overcommitted,
            is_recovered,
            is_shared,
        }) = choice
        else {
            counters.services[service_id].unserved.add(1);
            return Decision::Refused {
                service: service_id,
                reason: DropReason::NoInstance,
            };
        };
        // Packets that come back to a chain enter another service of it.
        let is_symmetric = service.symmetric && service.next.is_none();
        // In registers: a load of an array of which one half was just written would stall.
        let pins = match direction {
            _ if is_symmetric => [slot; 2],
            Direction::Forward => [slot, Slot::NONE],
            Direction::Reverse => [Slot::NONE, slot],
        };
        let entered = enter(
            table,
            Place {
                pins,
                slot,
                service: service_id,
                is_symmetric,
            },
        );
        let Ok(moved) = entered else {
            return without_entry(
                service,
                (&state.candidates, is_shared.then_some(slot)),
                hash,
                counters,
            );
        };
        // A capacity that is not learnt yet cannot be exceeded.
        let is_over = is_overcommitted && state.candidates.get(index).is_some_and(|row| row.capacity > 0.0);
        state.candidates.pin(index, &flow);
        self.pinned[slot] += flow.expected;
        counters.slots[slot].new_flows.add(1);
        if is_recovered {
            counters.services[service_id].recovered.add(1);
        }
        if moved {
            counters.slots[slot].expected_moves.add(1);
        } else if let Some(paths) = cx.paths.as_deref_mut() {
            paths.begins(key, hash, opening.uplink, cx.now);
        }
        if is_over {
            counters.services[service_id].overcommitted.add(1);
        }
        Decision::Instance {
            slot,
            service: service_id,
        }
    }
}

/// An instance of the service that takes new flows, by the flow's hash, where the pins of all of them are being
/// purged.
#[cold]
fn being_purged(plan: &Plan, service: ServiceId, hash: u64) -> Option<Slot> {
    let takes = |p: &Option<SlotPlan>| {
        p.as_ref()
            .is_some_and(|p| p.service == service && p.state.takes_new_flows())
    };
    let count = plan.slots.iter().filter(|p| takes(p)).count();
    let wanted = ((u128::from(hash) * count as u128) >> 64) as usize;
    let (index, _) = plan
        .slots
        .iter()
        .enumerate()
        .filter(|(_, p)| takes(p))
        .nth(wanted)?;
    Some(Slot(index as u16))
}

/// The destination of a packet for whose flow the table has no room: where those are with which it shares an instance,
/// else by its hash.
#[cold]
fn without_entry(
    service: &ServicePlan,
    (candidates, shared): (&Candidates, Option<Slot>),
    hash: u64,
    counters: &WorkerCounters,
) -> Decision {
    counters.figures.table_full.add(1);
    match service.table_full {
        TableFull::Drop => Decision::Refused {
            service: service.id,
            reason: DropReason::TableFull,
        },
        TableFull::Hash => {
            counters.services[service.id].unpinned.add(1);
            let service = service.id;
            shared.map_or_else(
                || by_hash(candidates, service, hash),
                |slot| Decision::Instance { slot, service },
            )
        }
    }
}

/// An instance by the flow's hash alone, without a pin.
fn by_hash(candidates: &Candidates, service: ServiceId, hash: u64) -> Decision {
    let place = ((u128::from(hash) * candidates.len() as u128) >> 64) as usize;
    match candidates.get(place) {
        Some(candidate) => Decision::Instance {
            slot: candidate.slot,
            service,
        },
        None => Decision::Refused {
            service,
            reason: DropReason::NoInstance,
        },
    }
}
