//! A switch for tests and models: workers that learn of plans late, one after the other, instances that connect after
//! a while, rings that fill. It forwards in no time when it is told to, reads no clock, and equal seeds do the same.

mod packets;

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::hash::{Hash, Hasher as _};
use std::sync::Arc;

use model::{Capabilities, DropReason, FlowKey, Generation, Nanos, PortKind, Random, ServiceId, Slot, Tuple};
use scheduling::Scheduler;

use crate::{Change, Plan, PortSpec, Switch, SwitchError, SwitchEvent, SwitchReading, SwitchRequest};
use packets::Flow;

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

/// How long something takes: `base`, and at random up to `jitter` more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Delay {
    /// The least.
    pub base: Nanos,
    /// What may come on top.
    pub jitter: Nanos,
}

impl Delay {
    /// Always as long.
    pub const fn always(base: Nanos) -> Delay {
        let jitter = Nanos::ZERO;
        Delay { base, jitter }
    }
}

/// How long the switch takes for what it is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delays {
    /// To connect an instance.
    pub connect: Delay,
    /// Of a worker, to load a plan.
    pub load: Delay,
    /// To detach an instance.
    pub leave: Delay,
}

impl Delays {
    /// It takes no time: it is done by the next time that time passes.
    pub const NONE: Delays = Delays {
        connect: Delay::always(Nanos::ZERO),
        load: Delay::always(Nanos::ZERO),
        leave: Delay::always(Nanos::ZERO),
    };
}

impl Default for Delays {
    fn default() -> Self {
        let delay = |base, jitter| Delay {
            base: Nanos::from_micros(base),
            jitter: Nanos::from_micros(jitter),
        };
        Delays {
            connect: delay(1_000, 5_000),
            load: delay(10, 2_000),
            leave: delay(0, 3_000),
        }
    }
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
    /// How long it takes for what it is asked.
    pub delays: Delays,
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
            delays: Delays::default(),
            faults: Faults::default(),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Connecting,
    Up,
    Leaving,
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

#[derive(Debug)]
struct Worker {
    plan: Arc<Plan>,
    schedulers: BTreeMap<ServiceId, Scheduler>,
}

/// What comes of a request after a while.
#[derive(Debug)]
enum Due {
    Connected(Slot),
    Loaded { worker: usize, plan: Arc<Plan> },
    Left(Slot),
}

/// The switch. [`FakeSwitch::advance`] lets time pass.
#[derive(Debug)]
pub struct FakeSwitch {
    config: FakeConfig,
    random: Random,
    now: Nanos,
    attachments: BTreeMap<Slot, Attachment>,
    workers: Vec<Worker>,
    /// By when it is, and in the order of the requests.
    due: BTreeMap<(Nanos, u64), Due>,
    order: u64,
    /// Failed since the last plan: the next one moves their flows.
    failing: Vec<Slot>,
    flows: BTreeMap<FlowKey, Flow>,
    /// Flows whose instance failed: their next packet opens them again.
    moved: BTreeSet<FlowKey>,
    loads: BTreeMap<Slot, f32>,
    sent: Vec<Tuple>,
    reading: SwitchReading,
    /// Slots that have had an instance are below it.
    slots_used: usize,
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
            random: Random::new(config.seed),
            now: Nanos::ZERO,
            attachments: BTreeMap::new(),
            workers: (0..config.workers).map(|_| worker()).collect(),
            due: BTreeMap::new(),
            order: 0,
            failing: Vec::new(),
            flows: BTreeMap::new(),
            moved: BTreeSet::new(),
            loads: BTreeMap::new(),
            sent: Vec::new(),
            reading: SwitchReading::new(config.services, config.uplinks, config.workers),
            slots_used: 0,
            events: Vec::new(),
            config,
        }
    }

    /// From now on other things go wrong.
    pub fn set_faults(&mut self, faults: Faults) {
        self.config.faults = faults;
    }

    /// How long it takes for what it is asked from now on.
    pub fn delays(&mut self) -> &mut Delays {
        &mut self.config.delays
    }

    /// The newest plan by which every worker works.
    pub fn acknowledged(&self) -> Generation {
        self.reading.acknowledged
    }

    /// When the next thing comes of what it was asked.
    pub fn next_at(&self) -> Option<Nanos> {
        self.due.first_key_value().map(|((at, _), _)| *at)
    }

    /// Time passes until `now`: ports connect where `listens` says that there is a listener, workers load plans,
    /// instances leave. Whether anything of that happened.
    pub fn advance(&mut self, now: Nanos, listens: impl Fn(&PortSpec) -> bool) -> bool {
        self.now = now;
        let mut happened = false;
        while let Some(entry) = self.due.first_entry()
            && entry.key().0 <= now
        {
            happened = true;
            match entry.remove() {
                Due::Connected(slot) => self.connected(slot, &listens),
                Due::Loaded { worker, plan } => self.loaded(worker, plan),
                Due::Left(slot) => self.left(slot),
            }
        }
        happened
    }

    /// Whether a fault of that probability happens. An impossible one takes no random number.
    fn happens(&mut self, probability: f64) -> bool {
        probability > 0.0 && self.random.happens(probability)
    }

    fn after(&mut self, delay: Delay, due: Due) {
        self.order += 1;
        let at = self.now + delay.base + Nanos(self.random.below(delay.jitter.0));
        self.due.insert((at, self.order), due);
    }

    fn connected(&mut self, slot: Slot, listens: impl Fn(&PortSpec) -> bool) {
        let Some(attachment) = self.attachments.get_mut(&slot) else {
            return;
        };
        if attachment.phase != Phase::Connecting {
            return;
        }
        if listens(&attachment.port) && !self.config.never_connects(&attachment.port) {
            attachment.phase = Phase::Up;
            let peer = "an instance".to_owned();
            self.events.push(SwitchEvent::Attached { slot, peer });
        } else {
            self.attachments.remove(&slot);
            let reason = "no listener".to_owned();
            self.events.push(SwitchEvent::AttachFailed { slot, reason });
        }
    }

    fn loaded(&mut self, worker: usize, plan: Arc<Plan>) {
        if let Some(worker) = self.workers.get_mut(worker)
            && worker.plan.generation < plan.generation
        {
            worker.plan = plan;
        }
        let known = self.workers.iter().map(|worker| worker.plan.generation).min();
        self.reading.acknowledged = known.unwrap_or_default();
    }

    fn left(&mut self, slot: Slot) {
        let Some(attachment) = self.attachments.remove(&slot) else {
            return;
        };
        let outstanding = attachment.ring.len() as u64 + attachment.taken;
        let counters = &mut self.reading.slots[slot.index()];
        counters.ring_used = 0;
        let reason = if attachment.failed {
            counters.lost += outstanding;
            DropReason::InstanceLost
        } else {
            counters.kept += outstanding;
            DropReason::Function
        };
        self.reading.drops[reason.index()] += outstanding;
        self.flows.retain(|_, flow| flow.slot != slot);
        self.events.push(SwitchEvent::Detached { slot, outstanding });
    }

    /// The instance in that slot closes its port.
    pub fn close_port(&mut self, slot: Slot) {
        let reason = "it closed its port".to_owned();
        if self.attachments.contains_key(&slot) {
            self.events.push(SwitchEvent::PortDown { slot, reason });
        }
    }

    /// Slots with an instance that is attached, on its way in or on its way out.
    pub fn slots(&self) -> impl Iterator<Item = Slot> {
        self.attachments.keys().copied()
    }

    /// Whether an instance is attached in that slot, and of which service it then is.
    pub fn attached(&self, slot: Slot) -> Option<ServiceId> {
        let attachment = self.attachments.get(&slot);
        attachment.filter(|of| of.phase == Phase::Up).map(|of| of.service)
    }

    /// The plans by which workers steer, or will.
    pub fn plans(&self) -> impl Iterator<Item = &Plan> {
        // A worker that has a later one loads none before it.
        let is_later = |worker: usize, plan: &Plan| {
            (self.workers.get(worker)).is_some_and(|worker| worker.plan.generation < plan.generation)
        };
        let coming = self.due.values().filter_map(move |due| match due {
            Due::Loaded { worker, plan } if is_later(*worker, plan) => Some(&**plan),
            _ => None,
        });
        self.workers.iter().map(|worker| &*worker.plan).chain(coming)
    }

    fn publish_at(&mut self, plan: &Arc<Plan>) {
        for slot in std::mem::take(&mut self.failing) {
            let flows = self.flows.iter().filter(|(_, flow)| flow.slot == slot);
            self.moved.extend(flows.map(|(key, _)| *key));
            self.flows.retain(|_, flow| flow.slot != slot);
        }
        for worker in 0..self.workers.len() {
            let late = self.happens(self.config.faults.loads_late);
            let Delay { base, jitter } = self.config.delays.load;
            let times = if late { 100 } else { 1 };
            let delay = Delay {
                base: base + Nanos(self.random.below(jitter.0) * times),
                jitter: Nanos::ZERO,
            };
            let plan = Arc::clone(plan);
            self.after(delay, Due::Loaded { worker, plan });
        }
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
        self.slots_used = self.slots_used.max(slot.index() + 1);
        self.attachments.insert(
            slot,
            Attachment {
                service,
                port,
                phase: Phase::Connecting,
                failed: false,
                ring: VecDeque::new(),
                taken: 0,
                probes: 0,
            },
        );
        self.after(self.config.delays.connect, Due::Connected(slot));
        Ok(())
    }

    fn detach(&mut self, slot: Slot) -> Result<(), SwitchError> {
        if self.happens(self.config.faults.detach_refused) {
            return Err(SwitchError::WorkerStuck {
                worker: 0,
                pending: 1,
            });
        }
        match self.attachments.get_mut(&slot) {
            // It is on its way out already.
            Some(attachment) if attachment.phase == Phase::Leaving => return Ok(()),
            Some(attachment) => attachment.phase = Phase::Leaving,
            None => {
                self.events.push(SwitchEvent::Detached { slot, outstanding: 0 });
                return Ok(());
            }
        }
        self.after(self.config.delays.leave, Due::Left(slot));
        Ok(())
    }
}

/// A hash without a random key: the same in every run.
fn hash_of(of: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    of.hash(&mut hasher);
    hasher.finish()
}

impl FakeConfig {
    /// Whether a port never connects; the same in every attempt.
    fn never_connects(&self, port: &PortSpec) -> bool {
        let mut random = Random::new(self.seed ^ hash_of(&port.address));
        random.happens(self.faults.never_connects)
    }
}

impl Switch for FakeSwitch {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            ports: &[PortKind::Memif, PortKind::Null],
            worker_limit: None,
            sees_openers: true,
            flow_counters: true,
            ring_occupancy: true,
            port_blocks: true,
            service_changes: true,
            ..Capabilities::NONE
        }
    }

    fn request(&mut self, request: SwitchRequest) -> Result<(), SwitchError> {
        match request {
            SwitchRequest::Publish(plan) => {
                plan.validate(&self.capabilities())?;
                self.publish_at(&plan);
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
            SwitchRequest::Mappings(_) => {
                return Err(SwitchError::Unsupported {
                    what: "hand mappings over",
                });
            }
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
            SwitchRequest::Capture(_) => {
                return Err(SwitchError::Unsupported {
                    what: "capture packets: it has none",
                });
            }
        }
        Ok(())
    }

    fn set_loads(&mut self, loads: &[(Slot, f32)], _expected: &[(ServiceId, f32)]) {
        self.loads.extend(loads.iter().copied());
    }

    fn read(&mut self, into: &mut SwitchReading) {
        let used = &mut self.reading.slots[..self.slots_used];
        used.iter_mut().for_each(|counters| counters.live_flows = 0);
        for flow in self.flows.values() {
            if let Some(counters) = used.get_mut(flow.slot.index()) {
                counters.live_flows += 1;
            }
        }
        for (sum, counted) in into.slots.iter_mut().zip(used) {
            sum.set_counted(counted);
        }
        into.at = self.now;
        into.age = Nanos::ZERO;
        into.acknowledged = self.reading.acknowledged;
        into.services.clone_from(&self.reading.services);
        into.uplinks.clone_from(&self.reading.uplinks);
        into.workers.clone_from(&self.reading.workers);
        into.drops = self.reading.drops;
    }

    fn poll(&mut self, _now: Nanos, events: &mut Vec<SwitchEvent>) {
        events.append(&mut self.events);
    }

    fn take_longest_gaps(&mut self) -> Vec<Nanos> {
        vec![Nanos::ZERO; self.workers.len()]
    }

    fn stop(&mut self) {
        self.attachments.clear();
        self.due.clear();
    }
}
