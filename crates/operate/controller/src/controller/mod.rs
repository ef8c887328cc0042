//! The controller: state, step and shared functions. Events, decisions and the instances' own transitions are in the
//! files beside this one.

mod back_ends;
mod blocks;
mod commands;
mod decisions;
mod hand_over;
mod health;
mod inputs;
mod lifecycle;
mod places;
mod rollout;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use autoscaling::Autoscaler;
use collector::Collector;
use engine::{CpuQuota, Request, Ticket};
use model::{
    Event, EventKind, Generation, InstanceId, InstanceState, InstanceStep, Nanos, Observation, PortKind,
    Rollout, RolloutState, ServiceId, Slot, StandbyMode,
};
use placement::PlaceId;
use switch::{Plan, Resumed, ServicePlan};

use crate::backoff::BackOff;
use crate::blocks::Blocks;
use crate::fitness::Fitness;
use crate::instance::{Container, Instance, Op, Port, Rung};
use crate::message::{CommandError, Inputs, Outputs};
use crate::reaction::Reactions;
pub(crate) use hand_over::Heir;
pub use places::{PlaceStatus, goal_of};
use rollout::RolloutPlan;

use crate::settings::{
    LABEL_CORE, LABEL_EXTERNAL, LABEL_INSTANCE, LABEL_PORT, LABEL_SERVICE, LABEL_SLOT, ServiceSettings,
    Settings,
};

/// The controller's state of one service.
#[derive(Debug)]
struct Service {
    id: ServiceId,
    settings: ServiceSettings,
    observation: Observation,
    wanted: u32,
    manual: bool,
    /// The limits in the file. A range that an operator has set lies within them.
    limits: (u32, u32),
    range: Option<(u32, u32)>,
    /// CPUs of each instance, where an operator has set them.
    cpus: Option<f64>,
    /// The autoscaler's reason for its last change.
    reason: String,
    /// The last count that a restricted autoscaler would have set.
    shadow: Option<u32>,
    held_back: HeldBack,
    capacity_pps: f64,
    /// Mean bytes of its packets, without what Ethernet adds; 0 while none have come.
    frame_bytes: f64,
    back_off: BackOff,
    /// Consecutive failures of creates and young instances, with the last reason.
    failures: Option<(u32, String)>,
    overloaded_since: Option<Nanos>,
    overloaded_at: Nanos,
    overcommitted_told: u64,
    overcommitted_at: Option<Nanos>,
    no_slot_told: bool,
    no_room_told: bool,
    /// The blocks of its external ports, where it has such.
    blocks: Option<Blocks>,
    no_block_told: bool,
    /// Since when too few of its instances pass their checks, so that all are used.
    panics: Option<Nanos>,
    checks: Checks,
    /// The rollout in progress, or the last one.
    rollout: Option<RolloutPlan>,
    /// Where others say which instances there are: that, or an instance of it, has changed.
    back_ends_changed: bool,
    no_place_told: bool,
}

impl Service {
    fn new(id: ServiceId, mut settings: ServiceSettings) -> Service {
        settings.plan.id = id;
        let external = settings.plan.external.as_ref();
        Service {
            blocks: external.map(|external| Blocks::new(external, settings.mapping_lifetime)),
            no_block_told: false,
            id,
            observation: Observation {
                service: id,
                at: Nanos::ZERO,
                counter_age: Nanos::ZERO,
                min: settings.min,
                max: settings.max,
                wanted: settings.min,
                offered_fast_pps: 0.0,
                offered_stable_pps: 0.0,
                unserved_fast_pps: 0.0,
                hot: false,
                places: Vec::new(),
                instances: Vec::new(),
            },
            wanted: settings.min,
            manual: false,
            limits: (settings.min, settings.max),
            range: None,
            cpus: None,
            reason: String::new(),
            shadow: None,
            held_back: HeldBack::default(),
            capacity_pps: settings.capacity_pps.unwrap_or(0.0),
            frame_bytes: 0.0,
            back_off: BackOff::default(),
            failures: None,
            overloaded_since: None,
            overloaded_at: Nanos::ZERO,
            overcommitted_told: 0,
            overcommitted_at: None,
            no_slot_told: false,
            no_room_told: false,
            panics: None,
            checks: Checks::default(),
            rollout: None,
            back_ends_changed: true,
            no_place_told: false,
            settings,
        }
    }
}

/// The restrictions of a service's autoscaler.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeldBack {
    /// It must not decrease the count.
    pub pause_in: bool,
    /// It must not increase the count.
    pub pause_out: bool,
    /// It changes nothing.
    pub dry_run: bool,
}

impl HeldBack {
    /// The permitted count, given the autoscaler's `desired` and the present `wanted`.
    fn allowed(self, desired: u32, wanted: u32) -> u32 {
        let held = self.dry_run || self.pause_in && desired < wanted || self.pause_out && desired > wanted;
        if held { wanted } else { desired }
    }
}

/// A container with our label that belongs to no instance.
#[derive(Debug)]
struct Orphan {
    name: String,
    place: PlaceId,
    core: Option<u16>,
    removing: bool,
    retry: BackOff,
}

#[derive(Clone, Debug)]
enum Target {
    Instance(InstanceId, Op),
    /// The instance's readiness command.
    Check(InstanceId),
    Orphan(String),
}

/// One service's state, for status queries.
#[derive(Clone, Debug)]
pub struct ServiceStatus<'a> {
    /// Its id.
    pub id: ServiceId,
    /// Its name.
    pub name: &'a str,
    /// Number of active instances wanted.
    pub wanted: u32,
    /// Whether an operator set that number.
    pub manual: bool,
    /// The autoscaler's last reason.
    pub reason: &'a str,
    /// Minimum of active instances.
    pub min: u32,
    /// Maximum of active instances.
    pub max: u32,
    /// Standby instances kept in the pool.
    pub standby: u32,
    /// The autoscaler.
    pub autoscaler: &'a Autoscaler,
    /// Its restrictions.
    pub held_back: HeldBack,
    /// The count that a restricted autoscaler would set, if different.
    pub would: Option<u32>,
    /// Capacity of an instance in packets per second; 0 while unknown.
    pub capacity_pps: f64,
    /// The autoscaler's last observation.
    pub observation: &'a Observation,
    /// Its match and how flows are scheduled to instances.
    pub plan: &'a ServicePlan,
    /// Present if its instances fail.
    pub failing: Option<Failing<'a>>,
    /// Its checks.
    pub checks: Checks,
    /// The rollout in progress, or the last one.
    pub rollout: Option<&'a Rollout>,
}

/// The checks of a service's instances, counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checks {
    /// Health checks.
    pub all: u64,
    /// Those that did not pass.
    pub failed: u64,
    /// Questions to agents of which nothing came.
    pub silent_agents: u64,
}

/// A service whose instances fail soon after their start, or cannot be created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failing<'a> {
    /// Failures since an instance was last well for 10 s.
    pub failures: u32,
    /// Reason of the last failure.
    pub last: &'a str,
    /// Earliest time of the next create.
    pub next_try: Nanos,
}

/// The controller: the state of every instance and the pending work. See the crate documentation.
#[derive(Debug)]
pub struct Controller {
    settings: Settings,
    services: Vec<Service>,
    /// In ascending order of id.
    instances: Vec<Instance>,
    orphans: Vec<Orphan>,
    slot_used: Box<[bool]>,
    /// Where others run instances that had flows in an earlier run.
    resumed_back_ends: BTreeMap<Slot, SocketAddr>,
    next_id: u32,
    next_ticket: u64,
    outstanding: BTreeMap<Ticket, Target>,
    /// By place, since when its engine has not answered.
    engines_down: Vec<Option<Nanos>>,
    /// When the engine was asked to list its containers for a comparison.
    listing_since: Option<Nanos>,
    /// The newest plan that was published.
    plan: Arc<Plan>,
    acknowledged: Generation,
    plan_changed: bool,
    /// The newest plan, if the switch refused it. The previous plan stays in force, and this one is published again
    /// later.
    plan_refused: Option<Generation>,
    plan_back_off: BackOff,
    /// Slots whose flows must move after the plan is published.
    fail_slots: Vec<Slot>,
    sampled_at: Nanos,
    /// When mappings in inherited blocks were counted last.
    counted: Nanos,
    shutdown: Option<bool>,
    reactions: Reactions,
    sequence: u64,
    now: Nanos,
    out: Outputs,
}

impl Controller {
    /// A controller without instances. Its services are [`ServiceId`] 0, 1, … in the given order. The collector must
    /// have the same services, each with its autoscaler's [`stable_window`](Autoscaler::stable_window).
    pub fn new(settings: Settings, services: Vec<ServiceSettings>) -> Controller {
        let services = (0..)
            .map(ServiceId)
            .zip(services)
            .map(|(id, settings)| Service::new(id, settings))
            .collect();
        Controller {
            engines_down: vec![None; settings.places.len().max(1)],
            settings,
            services,
            instances: Vec::new(),
            orphans: Vec::new(),
            slot_used: vec![false; Slot::LIMIT].into_boxed_slice(),
            resumed_back_ends: BTreeMap::new(),
            next_id: 1,
            next_ticket: 1,
            outstanding: BTreeMap::new(),
            listing_since: None,
            plan: Arc::default(),
            acknowledged: Generation(0),
            // The first plan may have no instances, but workers wait for a plan.
            plan_changed: true,
            plan_refused: None,
            plan_back_off: BackOff::default(),
            fail_slots: Vec::new(),
            sampled_at: Nanos::ZERO,
            counted: Nanos::ZERO,
            shutdown: None,
            reactions: Reactions::default(),
            sequence: 0,
            now: Nanos::ZERO,
            out: Outputs::default(),
        }
    }

    /// Adopts the containers of an earlier run, found by [`Settings::label`]; each keeps its id. Removes containers
    /// that have exited, that belong to a service that no longer exists, or whose id is taken. Each keeps its slot
    /// where that is free. `resumed` is what the switch took over: instances that have flows are Active before
    /// others. A service of which no container is adopted has no flows to recover. Call it before the first step.
    pub fn adopt(&mut self, containers: &[engine::Container], resumed: &Resumed, now: Nanos) {
        self.now = now;
        self.resumed_back_ends.clone_from(&resumed.back_ends);
        self.resume_followed();
        let mut adopted = 0;
        for container in containers {
            let label = |key: &str| container.labels.get(key);
            let id = label(LABEL_INSTANCE)
                .and_then(|id| id.parse().ok())
                .map(InstanceId);
            if let Some(id) = id {
                self.next_id = self.next_id.max(id.0.saturating_add(1));
            }
            let service = label(LABEL_SERVICE).and_then(|name| {
                self.services
                    .iter()
                    .find(|s| s.settings.name == *name && s.settings.container.is_some())
            });
            let usable = match (service, id) {
                (Some(service), Some(id)) => (container.state != engine::ContainerState::Exited
                    && container.name == self.settings.container_name(&service.settings.name, id)
                    && self.position(id).is_none())
                .then_some((service.id, id)),
                _ => None,
            };
            let kinds = || PortKind::WORDS.iter();
            let port_kind =
                label(LABEL_PORT).and_then(|name| Some(kinds().find(|(word, _)| word == name)?.1));
            let place = self.place_of(container);
            let slot = usable.and_then(|(service, _)| {
                let slot = label(LABEL_SLOT).and_then(|slot| slot.parse().ok()).map(Slot);
                let usual = || Some(self.services.get(service.index())?.settings.port_at(place));
                let kind = port_kind.or_else(usual)?;
                self.take_slot_again(service, slot, kind)
            });
            let (Some((service, id)), Some(slot)) = (usable, slot) else {
                self.add_orphan(container);
                continue;
            };
            let Ok(block) = self.take_block_again(service, id, label(LABEL_EXTERNAL)) else {
                // It has other ports than its service, or none.
                self.slot_used[slot.index()] = false;
                self.add_orphan(container);
                continue;
            };
            let mut instance = self.new_instance(id, (service, place), slot, true);
            instance.block = block;
            instance.adopted = true;
            instance.core = core_of(container);
            instance.port_kind = port_kind.unwrap_or(instance.port_kind);
            instance.has_served = resumed.live.contains_key(&slot);
            let spec = self.services[service.index()].settings.container.as_ref();
            // The run before may have changed its quota: it gets that of the file.
            let quota = spec.and_then(|spec| spec.cpu);
            instance.wanted_cpus = quota.map(|quota| self.quota_at(instance.place, quota).cpus());
            instance.decided = None;
            instance.pid = (container.pid != 0).then_some(container.pid);
            instance.task_at = container.address;
            instance.started = now;
            instance.container = match container.state {
                engine::ContainerState::Paused => Container::Paused,
                _ => Container::Running,
            };
            // A paused container was in the pool and returns there.
            instance.for_active = instance.container == Container::Running;
            let at = self.instances.partition_point(|i| i.id < id);
            self.instances.insert(at, instance);
            adopted += 1;
            self.transition(
                at,
                InstanceStep::Started,
                "adopted: its container was found running",
            );
        }
        self.reserve_blocks_of_orphans(containers);
        for index in 0..self.services.len() {
            let id = self.services[index].id;
            let running = self
                .instances
                .iter()
                .filter(|i| i.service == id && i.for_active)
                .count() as u32;
            let service = &mut self.services[index];
            if !self.instances.iter().any(|i| i.service == id) {
                service.settings.plan.recovers = service.settings.plan.vip.is_some();
            }
            let settings = &service.settings;
            // A warm pool runs like the active instances: it was full, or is filled first.
            let pool = match settings.standby_mode {
                // Any of them may have been asleep.
                StandbyMode::Warm if settings.sleep => running,
                StandbyMode::Warm => settings.standby,
                StandbyMode::Paused => 0,
            };
            let mut running_ones: Vec<&mut Instance> = self
                .instances
                .iter_mut()
                .filter(|i| i.service == id && i.for_active)
                .collect();
            let with_flows = running_ones.iter().filter(|i| i.has_served).count() as u32;
            // All that have flows serve them. If that is more than the maximum, as in a rollout, the surplus drains.
            let wanted = running
                .saturating_sub(pool)
                .clamp(settings.min, settings.max)
                .max(with_flows);
            service.wanted = wanted;
            running_ones.sort_by_key(|i| (!i.has_served, i.id));
            for (active, instance) in (1..).zip(running_ones) {
                instance.for_active = active <= wanted;
            }
        }
        let counts = &resumed.flows;
        let started = EventKind::Started {
            adopted,
            flows: counts.flows,
            repaired: counts.repaired_entries(),
            rejected: counts.rejected_entries(),
        };
        self.event(None, None, started);
    }

    /// One step: processes the inputs and writes all requests to `out`, which it clears first. `now` never decreases.
    /// The collector must have its sample for this step.
    pub fn step(&mut self, inputs: Inputs<'_>, collector: &mut Collector, now: Nanos, out: &mut Outputs) {
        // `self.out` still holds the output of the adoption.
        if !self.out.events.is_empty() {
            out.clear();
            out.events.append(&mut self.out.events);
        } else {
            out.clear();
        }
        std::mem::swap(&mut self.out, out);
        self.now = now;
        for event in inputs.engine {
            self.engine_event(event);
        }
        if let Some(containers) = inputs.containers {
            self.compare_containers(containers);
        }
        for event in inputs.switch {
            self.switch_event(event, collector);
        }
        if inputs.acknowledged > self.acknowledged {
            self.acknowledged = inputs.acknowledged;
            // A counter read before an acknowledgement may be older than the acknowledged plan.
            self.note_acknowledged(now.max(collector.sampled_at()));
        }
        for report in inputs.reports {
            self.take_report(report);
        }
        self.expire_reports();
        self.fail_lost();
        for (id, command) in inputs.commands {
            let answer = self.command(command, collector);
            self.out.answers.push((*id, answer));
        }
        for (id, fitted) in inputs.fitted {
            if let Some(service) = self.services.get_mut(id.index()) {
                service.settings.autoscaler.give(fitted.clone());
            }
        }
        if self.shutdown.is_none() {
            self.follow_changed();
            self.observe(collector);
            for index in 0..self.services.len() {
                self.reconcile(index, collector);
            }
        }
        let mut index = 0;
        while index < self.instances.len() {
            // A removed instance leaves the list; the next one takes its index.
            if self.is_at_rest(&self.instances[index]) || self.advance(index, collector) {
                index += 1;
            }
        }
        self.remove_orphans();
        self.note_panic();
        self.name_heirs();
        self.count_inherited();
        self.tell_reserved();
        self.publish();
        std::mem::swap(&mut self.out, out);
    }

    /// The settings it was created with.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// All instances in ascending order of id.
    pub fn instances(&self) -> &[Instance] {
        &self.instances
    }

    /// All services.
    pub fn services(&self) -> impl Iterator<Item = ServiceStatus<'_>> {
        self.services.iter().map(|service| ServiceStatus {
            id: service.id,
            name: &service.settings.name,
            wanted: service.wanted,
            manual: service.manual,
            min: service.settings.min,
            max: service.settings.max,
            standby: service.settings.standby,
            autoscaler: &service.settings.autoscaler,
            held_back: service.held_back,
            would: service.shadow.filter(|would| *would != service.wanted),
            capacity_pps: service.capacity_pps,
            reason: &service.reason,
            observation: &service.observation,
            plan: &service.settings.plan,
            checks: service.checks,
            failing: service.failures.as_ref().map(|(failures, last)| Failing {
                failures: *failures,
                last,
                next_try: service.back_off.until(),
            }),
            rollout: service.rollout.as_ref().map(|rollout| &rollout.status),
        })
    }

    /// Reaction times so far.
    pub fn reactions(&self) -> &Reactions {
        &self.reactions
    }

    /// The newest plan that was published.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The newest plan that every worker uses.
    pub fn acknowledged(&self) -> Generation {
        self.acknowledged
    }

    /// Since when an engine has not answered; [`None`] if all answer.
    pub fn engine_down_since(&self) -> Option<Nanos> {
        self.engines_down.iter().flatten().min().copied()
    }

    /// Whether nothing is in progress: every instance is Standby or Active in the wanted numbers, the engine answers
    /// and has no open requests, and every worker uses the newest plan.
    pub fn is_settled(&self) -> bool {
        let stays = |i: &Instance| {
            matches!(i.state, InstanceState::Standby | InstanceState::Active) && i.op.is_none()
        };
        let has_wanted = |service: &Service| {
            let of_service = self.instances.iter().filter(|i| i.service == service.id);
            let active = of_service.filter(|i| i.state == InstanceState::Active).count() as u32;
            let rolls = service.rollout.as_ref();
            active - self.unfit(service.id) == service.wanted
                && rolls.is_none_or(|rollout| rollout.status.state != RolloutState::Running)
        };
        self.outstanding.is_empty()
            && self.orphans.is_empty()
            && self.engine_down_since().is_none()
            && self.listing_since.is_none()
            && self.shutdown.is_none()
            && self.plan.generation == self.acknowledged
            && self.instances.iter().all(stays)
            && self.services.iter().all(has_wanted)
    }

    /// Whether a requested shutdown is complete.
    pub fn is_finished(&self) -> bool {
        self.shutdown.is_some()
            && self.instances.is_empty()
            && (self.orphans.is_empty() || self.shutdown == Some(true))
    }

    /// Instances with ports made in advance, and the number of such ports; [`None`] if the switch makes none in
    /// advance.
    pub fn made_ports(&self) -> Option<(usize, usize)> {
        let made: usize = self.services.iter().map(|of| of.settings.made_ports.len()).sum();
        let has_one = |i: &&Instance| {
            let service = self.services.get(i.service.index());
            service.is_some_and(|of| of.settings.makes_ports(i.port_kind))
        };
        (made > 0).then(|| (made, self.instances.iter().filter(has_one).count()))
    }

    fn new_instance(
        &self,
        id: InstanceId,
        (service, place): (ServiceId, PlaceId),
        slot: Slot,
        for_active: bool,
    ) -> Instance {
        let of = self.services.get(service.index());
        let name = of.map_or_else(String::new, |s| {
            self.settings.container_name(&s.settings.name, id)
        });
        Instance {
            id,
            service,
            socket_dir: self.settings.run_dir.join("instances").join(&name),
            name,
            slot,
            back_end: None,
            task_at: None,
            back_end_id: None,
            back_end_name: None,
            is_unlisted: false,
            has_lost_flows: false,
            port_kind: of.map_or(PortKind::Null, |s| s.settings.port_at(place)),
            place,
            core: None,
            block: None,
            heir: None,
            has_mappings: true,
            state: InstanceState::Creating,
            since: self.now,
            reason: String::new(),
            container: Container::Absent,
            port: Port::Absent,
            pid: None,
            op: None,
            for_active,
            adopted: false,
            has_served: false,
            requested: self.now,
            started: self.now,
            ready: None,
            again: Nanos::ZERO,
            retry: BackOff::default(),
            check_running: false,
            listens: None,
            probed: None,
            drain: None,
            leaving: false,
            relocates_to: None,
            left_plan: None,
            decided: for_active.then_some((self.now, Rung::Create, None)),
            cpus: None,
            wanted_cpus: None,
            hot_told: None,
            fitness: Fitness::default(),
        }
    }

    fn submit_simple(&mut self, index: usize, op: Op) {
        let instance = &self.instances[index];
        let name = instance.name.clone();
        let grace = self
            .services
            .get(instance.service.index())
            .map_or(Nanos::ZERO, |s| s.settings.stop_grace);
        let request = match op {
            Op::Pause => Request::Pause { name },
            Op::Resume => Request::Resume { name },
            Op::Quota => Request::SetQuota {
                name,
                quota: instance.wanted_cpus.map(|cpus| self.quota_for(index, cpus)),
            },
            Op::Stop => Request::Stop { name, grace },
            // A create carries its specification, so `create` issues it.
            Op::Remove | Op::Create => Request::Remove { name },
        };
        self.submit(index, op, request);
    }

    /// A quota of `cpus` CPUs, with periods short enough that the instance's ring does not overflow at the present
    /// rate.
    fn quota_for(&self, index: usize, cpus: f64) -> CpuQuota {
        let instance = &self.instances[index];
        let Some(service) = self.services.get(instance.service.index()) else {
            return CpuQuota::of_cpus(cpus);
        };
        let seen = service.observation.instances.iter().find(|i| i.id == instance.id);
        let rate_pps = seen.map_or(0.0, |i| i.arrivals_fast_pps.max(i.arrivals_stable_pps));
        CpuQuota::for_ring(cpus, service.settings.ring_slots, rate_pps)
    }

    fn submit(&mut self, index: usize, op: Op, request: Request) {
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        let instance = &mut self.instances[index];
        instance.op = Some(op);
        self.outstanding.insert(ticket, Target::Instance(instance.id, op));
        self.out.engine.push((ticket, request));
    }

    fn add_orphan(&mut self, container: &engine::Container) {
        let (name, place) = (&container.name, self.place_of(container));
        if !self.orphans.iter().any(|orphan| orphan.name == *name) {
            let reason = format!("the container {name} belongs to no instance and is removed");
            self.event(
                None,
                None,
                EventKind::Failure {
                    what: "engine".to_owned(),
                    reason,
                },
            );
            self.orphans.push(Orphan {
                name: name.clone(),
                place,
                core: core_of(container),
                removing: false,
                retry: BackOff::default(),
            });
        }
    }

    /// A slot for a new instance with ports of that kind: the first free one of those made in advance, or any free slot if
    /// none are.
    fn take_slot(&mut self, service: ServiceId, kind: PortKind) -> Option<Slot> {
        let is_free = |slot: &Slot| self.slot_used.get(slot.index()) == Some(&false);
        let settings = &self.services.get(service.index())?.settings;
        let slot = if settings.makes_ports(kind) {
            settings.made_ports_of(kind).map(|port| port.slot).find(is_free)
        } else {
            let all = (0..self.slot_used.len() as u16).map(Slot);
            all.filter(|slot| !self.is_made_port(*slot)).find(is_free)
        }?;
        self.slot_used[slot.index()] = true;
        Some(slot)
    }

    /// Whether a service has a port of its own in that slot.
    fn is_made_port(&self, slot: Slot) -> bool {
        let mut ports = self.services.iter().flat_map(|of| &of.settings.made_ports);
        ports.any(|port| port.slot == slot)
    }

    /// A slot for an instance that had `before`, with ports of that kind: the same slot if its port depends on it.
    fn take_slot_again(&mut self, service: ServiceId, before: Option<Slot>, kind: PortKind) -> Option<Slot> {
        let settings = &self.services.get(service.index())?.settings;
        let is_made = settings.makes_ports(kind);
        let depends_on_slot = is_made || !kind.has_socket();
        let is_there = |slot: &Slot| !is_made || settings.made_ports_of(kind).any(|port| port.slot == *slot);
        if let Some(slot) = before.filter(is_there)
            && let Some(used @ false) = self.slot_used.get_mut(slot.index())
        {
            *used = true;
            return Some(slot);
        }
        if depends_on_slot {
            None
        } else {
            self.take_slot(service, kind)
        }
    }

    fn has_container(&self, service: ServiceId) -> bool {
        self.services
            .get(service.index())
            .is_some_and(|s| s.settings.container.is_some())
    }

    fn service(&self, id: ServiceId) -> Result<&Service, CommandError> {
        self.services
            .get(id.index())
            .ok_or_else(|| CommandError::UnknownService {
                service: id.0.to_string(),
            })
    }

    fn count(&self, service: ServiceId, test: impl Fn(&Instance) -> bool) -> u32 {
        self.instances
            .iter()
            .filter(|i| i.service == service && test(i))
            .count() as u32
    }

    fn position(&self, id: InstanceId) -> Option<usize> {
        self.instances.binary_search_by_key(&id, |i| i.id).ok()
    }

    fn at_slot(&self, slot: Slot) -> Option<usize> {
        self.instances.iter().position(|i| i.slot == slot)
    }

    fn event(&mut self, service: Option<ServiceId>, instance: Option<InstanceId>, kind: EventKind) {
        self.sequence += 1;
        let name = service
            .and_then(|id| self.services.get(id.index()))
            .map(|s| s.settings.name.clone());
        self.out.events.push(Event {
            sequence: self.sequence,
            at: self.now,
            unix_ms: self.settings.unix_ms_at_zero.saturating_add(self.now.as_millis()),
            service: name,
            instance,
            kind,
        });
    }
}

/// The CPU that a container has to itself, by its label.
fn core_of(container: &engine::Container) -> Option<u16> {
    container.labels.get(LABEL_CORE)?.parse().ok()
}

fn scaler_name(autoscaler: &Autoscaler) -> String {
    autoscaler.name().to_owned()
}
