//! A switch for tests: workers that learn of plans late, one after the other, instances that connect after a while, rings that
//! fill. It forwards in no time when it is told to, reads no clock, and equal seeds do the same.

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, VecDeque};
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use flow_table::TcpState;
use model::{Direction, DropReason, FlowKey, InstanceState, Nanos, ServiceId, Slot, Tuple, UplinkId};
use scheduling::{Candidate, Candidates, NewFlow, PRIORITIES, Scheduler, Terms};

use crate::{
    Capabilities, Change, FlowRow, Plan, PortKind, PortSpec, Switch, SwitchError, SwitchEvent, SwitchReading,
    SwitchRequest,
};

/// What goes wrong, each as a probability for each time that it could.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// Of a port: it never connects, however often that is tried.
    pub never_connects: f64,
    /// Of a worker that is given a plan: it takes a hundred times as long to load it.
    pub loads_late: f64,
    /// Of a request to detach: the switch cannot take it now.
    pub detach_refused: f64,
}

/// What a fake switch is made of.
#[derive(Clone, Debug)]
pub struct FakeConfig {
    /// Where its randomness begins.
    pub seed: u64,
    /// Workers.
    pub workers: usize,
    /// Services, and uplinks, that it counts for.
    pub services: usize,
    /// See `services`.
    pub uplinks: usize,
    /// Packets that the ring of an instance holds.
    pub ring_slots: usize,
    /// What goes wrong.
    pub faults: Faults,
}

impl Default for FakeConfig {
    fn default() -> Self {
        FakeConfig {
            seed: 1,
            workers: 2,
            services: 1,
            uplinks: 1,
            ring_slots: 64,
            faults: Faults::default(),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Connecting(Nanos),
    Up,
    Leaving(Nanos),
}

#[derive(Debug)]
struct Attachment {
    service: ServiceId,
    port: PortSpec,
    phase: Phase,
    failed: bool,
    ring: VecDeque<Tuple>,
    /// What it took and has not given back.
    taken: u64,
    probes: u64,
}

#[derive(Clone, Copy, Debug)]
struct Flow {
    service: ServiceId,
    slot: Slot,
    opener: Direction,
    pinned_at: Nanos,
    packets: [u64; 2],
    seen: Nanos,
}

#[derive(Debug)]
struct Worker {
    plan: Arc<Plan>,
    schedulers: BTreeMap<ServiceId, Scheduler>,
}

/// The switch. [`FakeSwitch::advance`] lets time pass.
#[derive(Debug)]
pub struct FakeSwitch {
    config: FakeConfig,
    chance: u64,
    now: Nanos,
    attachments: BTreeMap<Slot, Attachment>,
    /// Published plans, and when each worker loads them.
    plans: VecDeque<(Arc<Plan>, Vec<Nanos>)>,
    workers: Vec<Worker>,
    /// Failed since the last plan: the next one moves their flows.
    failing: Vec<Slot>,
    flows: BTreeMap<FlowKey, Flow>,
    /// Flows whose instance failed: their next packet opens them again.
    moved: Vec<FlowKey>,
    loads: BTreeMap<Slot, f32>,
    sent: Vec<Tuple>,
    reading: SwitchReading,
    events: Vec<SwitchEvent>,
}

impl FakeSwitch {
    /// A switch without instances, at time zero.
    pub fn new(config: FakeConfig) -> FakeSwitch {
        let worker = || Worker {
            plan: Arc::default(),
            schedulers: BTreeMap::new(),
        };
        FakeSwitch {
            chance: config.seed,
            now: Nanos::ZERO,
            attachments: BTreeMap::new(),
            plans: VecDeque::new(),
            workers: (0..config.workers).map(|_| worker()).collect(),
            failing: Vec::new(),
            flows: BTreeMap::new(),
            moved: Vec::new(),
            loads: BTreeMap::new(),
            sent: Vec::new(),
            reading: SwitchReading::new(config.services, config.uplinks, config.workers),
            events: Vec::new(),
            config,
        }
    }

    /// Time passes until `now`: ports connect where `listens` says that somebody is there, workers load plans, instances leave.
    pub fn advance(&mut self, now: Nanos, listens: impl Fn(&PortSpec) -> bool) {
        self.now = now;
        for (plan, at) in &self.plans {
            for (worker, at) in self.workers.iter_mut().zip(at) {
                if *at <= now && worker.plan.generation < plan.generation {
                    worker.plan = Arc::clone(plan);
                }
            }
        }
        let known = self.workers.iter().map(|worker| worker.plan.generation).min();
        self.reading.acknowledged = known.unwrap_or_default();
        let acknowledged = self.reading.acknowledged;
        self.plans.retain(|(plan, _)| plan.generation > acknowledged);
        let mut gone = Vec::new();
        for (slot, attachment) in &mut self.attachments {
            match attachment.phase {
                Phase::Connecting(at) if at <= now => {
                    if listens(&attachment.port) && !self.config.never_connects(&attachment.port) {
                        attachment.phase = Phase::Up;
                        self.events.push(SwitchEvent::Attached {
                            slot: *slot,
                            peer: "an instance".to_owned(),
                        });
                    } else {
                        gone.push(*slot);
                        self.events.push(SwitchEvent::AttachFailed {
                            slot: *slot,
                            reason: "nobody listens".to_owned(),
                        });
                    }
                }
                Phase::Leaving(at) if at <= now => {
                    gone.push(*slot);
                    let outstanding = attachment.ring.len() as u64 + attachment.taken;
                    if let Some(counters) = self.reading.slots.get_mut(slot.index()) {
                        *if attachment.failed {
                            &mut counters.lost
                        } else {
                            &mut counters.kept
                        } += outstanding;
                        (counters.live_flows, counters.ring_used) = (0, 0);
                    }
                    let reason = match attachment.failed {
                        true => DropReason::InstanceLost,
                        false => DropReason::Function,
                    };
                    self.reading.drops[reason.index()] += outstanding;
                    self.events.push(SwitchEvent::Detached {
                        slot: *slot,
                        outstanding,
                    });
                }
                _ => {}
            }
        }
        for slot in gone {
            self.attachments.remove(&slot);
            self.flows.retain(|_, flow| flow.slot != slot);
        }
    }

    /// A packet comes in by that uplink.
    pub fn offer(&mut self, uplink: UplinkId, tuple: &Tuple) {
        let (key, direction) = FlowKey::new(tuple);
        if let Some(counters) = self.reading.uplinks.get_mut(uplink.index()) {
            counters.received_packets += 1;
        }
        if !self.flows.contains_key(&key) && !self.open(uplink, tuple, key, direction) {
            return;
        }
        let Some(flow) = self.flows.get_mut(&key) else {
            return;
        };
        flow.packets[direction.index()] += 1;
        flow.seen = self.now;
        let (slot, service) = (flow.slot, flow.service);
        self.reading.services[service.index()].offered_packets += 1;
        let counters = &mut self.reading.slots[slot.index()];
        let room = self.config.ring_slots;
        let attachment = self.attachments.get_mut(&slot);
        match attachment.filter(|attachment| attachment.ring.len() < room) {
            Some(attachment) => {
                attachment.ring.push_back(*tuple);
                counters.to_packets += 1;
                counters.ring_used = attachment.ring.len() as u64;
                counters.ring_slots = room as u64;
            }
            None => {
                counters.ring_drops += 1;
                self.reading.drops[DropReason::InstanceRingFull.index()] += 1;
            }
        }
    }

    /// Pins a new flow by the plan of the worker that owns it. Whether an instance took it.
    fn open(&mut self, uplink: UplinkId, tuple: &Tuple, key: FlowKey, direction: Direction) -> bool {
        let hash = hash_of(&key);
        let place = hash as usize % self.workers.len();
        let Some(worker) = self.workers.get_mut(place) else {
            return false;
        };
        let plan = Arc::clone(&worker.plan);
        let Some(service) = plan
            .classify(|| *tuple, uplink)
            .and_then(|at| plan.services.get(at))
        else {
            self.reading.drops[DropReason::Unmatched.index()] += 1;
            return false;
        };
        let mut candidates = Candidates::new();
        candidates.begin(Terms {
            at: self.now,
            fit: service.fit,
            ..Terms::default()
        });
        for (slot, row) in plan.instances() {
            let is_up = |of: &Attachment| of.phase == Phase::Up && !of.failed;
            if row.service == service.id
                && row.state.takes_new_flows()
                && self.attachments.get(&slot).is_some_and(is_up)
            {
                let live = self.flows.values().filter(|flow| flow.slot == slot).count();
                candidates.push(Candidate {
                    slot,
                    capacity: plan.capacity(row),
                    load: self.loads.get(&slot).copied().unwrap_or_default(),
                    weight: row.weight,
                    live_flows: live as u32,
                    active_for: self.now.since(row.active_since),
                    queues: [0.0; PRIORITIES],
                });
            }
        }
        let scheduler = worker
            .schedulers
            .entry(service.id)
            .or_insert_with(|| service.scheduler.clone());
        let flow = NewFlow {
            key: &key,
            direction,
            hash,
            expected: 0.0,
            dscp: 0,
        };
        let pick = scheduler.pick(&flow, &candidates);
        let Some(picked) = pick.index().and_then(|index| candidates.get(index)) else {
            let counters = &mut self.reading.services[service.id.index()];
            counters.offered_packets += 1;
            counters.unserved += 1;
            self.reading.drops[DropReason::NoInstance.index()] += 1;
            return false;
        };
        let moves = self.moved.iter().position(|moved| *moved == key);
        if let Some(place) = moves {
            self.moved.swap_remove(place);
            self.reading.slots[picked.slot.index()].expected_moves += 1;
        }
        let slot = picked.slot;
        self.pin(key, service.id, slot);
        if let Some(flow) = self.flows.get_mut(&key) {
            flow.opener = direction;
        }
        true
    }

    /// Pins a flow to an instance, whatever a scheduler would say.
    pub fn pin(&mut self, key: FlowKey, service: ServiceId, slot: Slot) {
        self.reading.slots[slot.index()].new_flows += 1;
        self.flows.insert(
            key,
            Flow {
                service,
                slot,
                opener: Direction::Forward,
                pinned_at: self.now,
                packets: [0; 2],
                seen: self.now,
            },
        );
    }

    /// A flow ends.
    pub fn end(&mut self, key: &FlowKey) {
        self.flows.remove(key);
    }

    /// The flows in the table, and where they are pinned.
    pub fn pins(&self) -> impl Iterator<Item = (FlowKey, Slot)> {
        self.flows.iter().map(|(key, flow)| (*key, flow.slot))
    }

    /// The instance takes at most so many packets out of its ring; a probe is one that it keeps.
    pub fn take(&mut self, slot: Slot, limit: usize) -> Vec<Tuple> {
        let Some(attachment) = self.attachments.get_mut(&slot) else {
            return Vec::new();
        };
        let taken: Vec<Tuple> = attachment
            .ring
            .drain(..attachment.ring.len().min(limit))
            .collect();
        let counters = &mut self.reading.slots[slot.index()];
        counters.consumed += taken.len() as u64 + std::mem::take(&mut attachment.probes);
        counters.ring_used = attachment.ring.len() as u64;
        attachment.taken += taken.len() as u64;
        taken
    }

    /// The instance gives packets back.
    pub fn give_back(&mut self, slot: Slot, packets: &[Tuple]) {
        let Some(attachment) = self.attachments.get_mut(&slot) else {
            return;
        };
        if attachment.failed || attachment.phase != Phase::Up {
            return;
        }
        let count = packets.len() as u64;
        let counters = &mut self.reading.slots[slot.index()];
        counters.back_packets += count;
        counters.originated += count.saturating_sub(attachment.taken);
        attachment.taken = attachment.taken.saturating_sub(count);
        if let Some(uplink) = self.reading.uplinks.first_mut() {
            uplink.sent_packets += count;
        }
        self.sent.extend_from_slice(packets);
    }

    /// What has left by the first uplink since the last call.
    pub fn take_sent(&mut self) -> Vec<Tuple> {
        std::mem::take(&mut self.sent)
    }

    /// The instance in that slot closes its port.
    pub fn close_port(&mut self, slot: Slot) {
        let reason = "it closed its port".to_owned();
        if self.attachments.contains_key(&slot) {
            self.events.push(SwitchEvent::PortDown { slot, reason });
        }
    }

    fn happens(&mut self, probability: f64) -> bool {
        (next(&mut self.chance) >> 11) as f64 / (1_u64 << 53) as f64 <= probability && probability > 0.0
    }

    fn below_us(&mut self, limit: u64) -> Nanos {
        Nanos::from_micros(next(&mut self.chance) % limit)
    }

    fn publish_at(&mut self, plan: Arc<Plan>) {
        for slot in std::mem::take(&mut self.failing) {
            let flows = self.flows.iter().filter(|(_, flow)| flow.slot == slot);
            self.moved.extend(flows.map(|(key, _)| *key));
            self.flows.retain(|_, flow| flow.slot != slot);
        }
        let mut at = Vec::new();
        for _ in 0..self.workers.len() {
            let times = if self.happens(self.config.faults.loads_late) {
                100
            } else {
                1
            };
            let after = self.below_us(2_000);
            at.push(self.now + Nanos::from_micros(10 + after.0 / 1_000 * times));
        }
        self.plans.push_back((plan, at));
    }

    fn attach(&mut self, slot: Slot, service: ServiceId, port: PortSpec) -> Result<(), SwitchError> {
        if slot.index() >= Slot::LIMIT {
            return Err(SwitchError::Limit {
                what: "slots",
                asked: slot.index() + 1,
                limit: Slot::LIMIT,
            });
        }
        if !self.capabilities().connects(port.kind) {
            return Err(SwitchError::Unsupported {
                what: "connect ports of that kind",
            });
        }
        if self.attachments.contains_key(&slot) {
            return Err(SwitchError::SlotInUse { slot });
        }
        let at = self.now + Nanos::from_millis(1) + self.below_us(5_000);
        self.attachments.insert(
            slot,
            Attachment {
                service,
                port,
                phase: Phase::Connecting(at),
                failed: false,
                ring: VecDeque::new(),
                taken: 0,
                probes: 0,
            },
        );
        Ok(())
    }

    fn detach(&mut self, slot: Slot) -> Result<(), SwitchError> {
        if self.happens(self.config.faults.detach_refused) {
            return Err(SwitchError::WorkerStuck {
                worker: 0,
                pending: 1,
            });
        }
        let at = self.now + self.below_us(3_000);
        match self.attachments.get_mut(&slot) {
            Some(attachment) => attachment.phase = Phase::Leaving(at),
            None => self.events.push(SwitchEvent::Detached { slot, outstanding: 0 }),
        }
        Ok(())
    }

    fn list(&self, id: u64, filter: &crate::FlowFilter, limit: usize) -> SwitchEvent {
        let rows = self.flows.iter().map(|(key, flow)| FlowRow {
            key: *key,
            opener: flow.opener,
            service: flow.service,
            pins: [flow.slot; 2],
            pinned_at: [Some(flow.pinned_at); 2],
            packets: flow.packets,
            bytes: [0; 2],
            idle: self.now.since(flow.seen),
            tcp: TcpState::None,
            returned: None,
            dropped: None,
        });
        let mut rows: Vec<FlowRow> = rows.filter(|row| filter.matches(row)).collect();
        let complete = rows.len() <= limit;
        rows.truncate(limit);
        SwitchEvent::Flows {
            id,
            rows,
            rules: Vec::new(),
            complete,
        }
    }
}

impl FakeConfig {
    /// The same port always has the same luck.
    fn never_connects(&self, port: &PortSpec) -> bool {
        let mut luck = self.seed ^ hash_of(&port.address);
        let drawn = (next(&mut luck) >> 11) as f64 / (1_u64 << 53) as f64;
        drawn < self.faults.never_connects
    }
}

fn hash_of(of: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    of.hash(&mut hasher);
    hasher.finish()
}

/// SplitMix64.
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Switch for FakeSwitch {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            ports: &[PortKind::Memif, PortKind::Null],
            worker_limit: None,
            sees_openers: true,
            flow_counters: true,
            ring_occupancy: true,
            service_changes: true,
            ..Capabilities::NONE
        }
    }

    fn request(&mut self, request: SwitchRequest) -> Result<(), SwitchError> {
        match request {
            SwitchRequest::Publish(plan) => {
                plan.validate(&self.capabilities())?;
                self.publish_at(plan);
            }
            SwitchRequest::Attach { slot, service, port } => return self.attach(slot, service, port),
            SwitchRequest::Detach(slot) => return self.detach(slot),
            SwitchRequest::Fail(slot) => {
                if let Some(attachment) = self.attachments.get_mut(&slot) {
                    attachment.failed = true;
                }
                self.failing.push(slot);
            }
            SwitchRequest::Probe(slot) => {
                if let Some(attachment) = self.attachments.get_mut(&slot) {
                    attachment.probes += 1;
                }
            }
            SwitchRequest::PurgeSlot(slot) => self.flows.retain(|_, flow| flow.slot != slot),
            SwitchRequest::OpenUplink(_) => {}
            SwitchRequest::Change(Change::PurgeFlow(key)) => self.end(&key),
            SwitchRequest::Change(Change::SetScheduler { service, scheduler }) => {
                for worker in &mut self.workers {
                    worker.schedulers.insert(service, scheduler.clone());
                }
            }
            SwitchRequest::Flows { id, filter, limit } => {
                let listed = self.list(id, &filter, limit);
                self.events.push(listed);
            }
            SwitchRequest::HeavyFlows { id, .. } => {
                let rows = Vec::new();
                self.events.push(SwitchEvent::HeavyFlows { id, rows });
            }
            SwitchRequest::Change(Change::MoveFlow { .. }) => {
                return Err(SwitchError::Unsupported { what: "move a flow" });
            }
            SwitchRequest::Record { .. } => {
                return Err(SwitchError::Unsupported {
                    what: "write a decision down",
                });
            }
        }
        Ok(())
    }

    fn set_loads(&mut self, loads: &[(Slot, f32)], _expected: &[(ServiceId, f32)]) {
        self.loads.extend(loads.iter().copied());
    }

    fn read(&mut self, into: &mut SwitchReading) {
        for (slot, counters) in (0..).map(Slot).zip(self.reading.slots.iter_mut()) {
            if self.attachments.contains_key(&slot) {
                counters.live_flows = self.flows.values().filter(|flow| flow.slot == slot).count() as u64;
            }
        }
        self.reading.at = self.now;
        into.clone_from(&self.reading);
    }

    fn poll(&mut self, _now: Nanos, events: &mut Vec<SwitchEvent>) {
        events.append(&mut self.events);
    }

    fn take_longest_gaps(&mut self) -> Vec<Nanos> {
        vec![Nanos::ZERO; self.workers.len()]
    }

    fn stop(&mut self) {
        self.attachments.clear();
    }
}

impl FakeSwitch {
    /// Whether an instance is attached in that slot, and of which service it then is.
    pub fn attached(&self, slot: Slot) -> Option<ServiceId> {
        let attachment = self.attachments.get(&slot);
        attachment.filter(|of| of.phase == Phase::Up).map(|of| of.service)
    }

    /// Whether some worker may still give new flows to the instance in that slot.
    pub fn may_get_flows(&self, slot: Slot) -> bool {
        let takes = |worker: &Worker| {
            let row = worker.plan.slot(slot);
            row.is_some_and(|row| row.state == InstanceState::Active)
        };
        self.workers.iter().any(takes)
    }
}
