//! The live control loop around modelled instances: the live collector, controller and autoscaler, the fake
//! engine, and the fake switch, whose packets are the model's.

use std::collections::VecDeque;
use std::sync::Arc;

use autoscaling::{Autoscaler, Fitted};
use collector::Collector;
use controller::{Command, CommandId, Controller, Inputs, Outputs, ServiceSettings, Settings};
use engine::{ContainerSpec, CpuQuota, Engine as _, EngineEvent, FakeConfig, FakeEngine, Faults, Latency};
use model::{Event, InstanceState, Nanos, Random, ServiceId, Slot, StandbyMode};
use scheduling::Scheduler;
use switch::{
    Delay, Delays, FakeSwitch, Plan, ServiceCounters, SlotCounters, Switch as _, SwitchEvent, SwitchReading,
    SwitchRequest,
};

use crate::Error;
use crate::scenario::{Action, Counters, Range, Scenario, policy_of};
use crate::site::{PlaceOfSlot, Site, placement_of};
use crate::time::{seconds, whole_ms};

/// The only service.
pub(crate) const SERVICE: ServiceId = ServiceId(0);
/// Its name.
const NAME: &str = "simulated";
/// Limit on the time until the first instances are ready.
const PRELUDE_LIMIT: Nanos = Nanos::from_secs(4 * 3_600);
/// The shortest time between two turns.
const TICK: Nanos = Nanos::from_millis(1);

/// A change of a slot that the model must apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SlotChange {
    /// A new instance has it.
    NewFlows(Slot),
    /// Its flows are unpinned.
    Unpinned(Slot),
    /// Its instance failed: packets in its ring are lost, and its flows are unpinned.
    Failed(Slot),
    /// It is free.
    Gone(Slot),
}

/// The counters at one time.
struct Snapshot {
    at: Nanos,
    slots: Vec<(Slot, SlotCounters)>,
    service: ServiceCounters,
}

/// The control loop.
pub(crate) struct ControlLoop {
    pub(crate) collector: Collector,
    controller: Controller,
    engine: FakeEngine,
    /// The current counters.
    pub(crate) raw: SwitchReading,
    /// The counters as seen by the loop, if they are delayed.
    seen: SwitchReading,
    counters: Counters,
    late: VecDeque<Snapshot>,
    snapshot_at: Option<Nanos>,
    outputs: Outputs,
    engine_events: Vec<EngineEvent>,
    switch: FakeSwitch,
    told: Vec<SwitchEvent>,
    commands: Vec<(CommandId, Command)>,
    /// Results of long computations from the last turn: live, they run off the loop and are ready by the next
    /// turn or later.
    fitted: Vec<(ServiceId, Fitted)>,
    actions: VecDeque<Action>,
    /// What workers steer by.
    pub(crate) plan: Arc<Plan>,
    pub(crate) changes: Vec<SlotChange>,
    pub(crate) events: Vec<Event>,
    /// Active instances, and instances that exist and are not frozen.
    pub(crate) active: u32,
    pub(crate) running: u32,
    /// CPUs of their quotas together, in instances' own CPUs where there is none.
    pub(crate) reserved_cpus: f64,
    /// By place: instances that exist and are not frozen, and CPUs of their quotas.
    pub(crate) at_places: Vec<(u32, f64)>,
    pub(crate) place_of_slot: PlaceOfSlot,
    /// CPUs that an instance can use at most.
    threads: f64,
    ready: Range,
    random: Random,
    /// Scenario time zero.
    pub(crate) zero: Nanos,
    pub(crate) now: Nanos,
    first: bool,
}

/// The scenario's scheduler, and an instance's capacity in its metric unless that is packets.
pub(crate) fn scheduler_of(scenario: &Scenario) -> Result<(Scheduler, Option<f64>), Error> {
    let written = scenario.service.scheduler.to_string();
    configuration::parse_scheduler(&written).map_err(|problems| {
        let first = problems.first();
        let key = first.map_or("scheduler", |problem| problem.key.as_str());
        let what = first.map_or_else(String::new, |problem| {
            format!("{}; {}", problem.what, problem.write)
        });
        Error::value(format!("service.{key}"), what)
    })
}

/// The scenario's autoscaler.
pub(crate) fn autoscaler_of(scenario: &Scenario) -> Result<Autoscaler, Error> {
    let (name, parameters) = policy_of("service.autoscaler", &scenario.service.autoscaler)?;
    Autoscaler::with_parameters(&name, toml::Value::Table(parameters))
        .map_err(|error| Error::value("service.autoscaler", error.to_string().trim_end().to_owned()))
}

fn latency(range: Range) -> Latency {
    let (low, high) = range.bounds();
    let ns = |ms: f64| Nanos((ms * 1e6).round() as u64);
    Latency {
        base: ns(low),
        jitter: ns(high) - ns(low),
    }
}

impl ControlLoop {
    /// Runs the loop until `min` instances are Active and the standbys are ready.
    pub(crate) fn new(scenario: &Scenario, seed: u64) -> Result<ControlLoop, Error> {
        let autoscaler = autoscaler_of(scenario)?;
        let service = &scenario.service;
        let instances = &scenario.instances;
        let mut collector = Collector::new();
        collector.add_service(autoscaler.stable_window());
        let mut container = ContainerSpec::new("inco-simulated", "simulated");
        container.cpu = instances.cpus.map(CpuQuota::of_cpus);
        let mut settings = ServiceSettings::new(NAME, Some(container), autoscaler);
        settings.min = service.min;
        settings.max = service.max;
        settings.standby = service.standby;
        settings.standby_mode = if service.standby_paused {
            StandbyMode::Paused
        } else {
            StandbyMode::Warm
        };
        settings.capacity_pps = service.capacity_pps;
        settings.ready_deadline = Nanos::from_secs(7_200);
        settings.placement = placement_of(scenario)?;
        settings.drain_deadline = seconds(service.drain_deadline_s);
        // A modelled instance never hangs.
        settings.stall_after = Nanos(u64::MAX);
        let of_all = Settings {
            places: scenario.place.iter().map(Site::settings).collect(),
            ..Settings::default()
        };
        let controller = Controller::new(of_all, vec![settings]);
        let engine = FakeEngine::new(FakeConfig {
            seed,
            create: latency(instances.create_ms),
            resume: latency(instances.resume_ms),
            quota: latency(instances.quota_ms),
            faults: Faults::default(),
            ..FakeConfig::default()
        });
        let mut actions: Vec<Action> = scenario.action.clone();
        actions.sort_by(|a, b| a.at_s.total_cmp(&b.at_s));
        let mut control = ControlLoop {
            collector,
            controller,
            engine,
            raw: SwitchReading::new(1, 0, 0),
            seen: SwitchReading::new(1, 0, 0),
            counters: scenario.counters,
            late: VecDeque::new(),
            snapshot_at: None,
            outputs: Outputs::default(),
            engine_events: Vec::new(),
            switch: FakeSwitch::new(switch::FakeConfig {
                seed,
                workers: 1,
                uplinks: 0,
                delays: Delays {
                    connect: Delay::default(),
                    load: Delay::always(TICK),
                    leave: Delay::always(TICK),
                },
                ..switch::FakeConfig::default()
            }),
            told: Vec::new(),
            commands: Vec::new(),
            fitted: Vec::new(),
            actions: VecDeque::new(),
            plan: Arc::default(),
            changes: Vec::new(),
            events: Vec::new(),
            active: 0,
            running: 0,
            reserved_cpus: 0.0,
            at_places: vec![(0, 0.0); scenario.place.len()],
            place_of_slot: PlaceOfSlot::default(),
            threads: instances.threads,
            ready: instances.ready_ms,
            random: Random::new(seed ^ 0x5eed),
            zero: Nanos::ZERO,
            now: Nanos::ZERO,
            first: true,
        };
        let (active, all) = (service.min as usize, (service.min + service.standby) as usize);
        loop {
            control.turn();
            let in_state = |state| {
                control
                    .controller
                    .instances()
                    .iter()
                    .filter(|i| i.state() == state)
                    .count()
            };
            let is_ready = in_state(InstanceState::Active) >= active
                && in_state(InstanceState::Active) + in_state(InstanceState::Standby) >= all;
            if is_ready && control.next_due().is_none() {
                break;
            }
            if control.now > PRELUDE_LIMIT {
                return Err(Error::value(
                    "service.min",
                    format!(
                        "{active} instances were not ready within {} s",
                        PRELUDE_LIMIT.as_secs_f64()
                    ),
                ));
            }
            let step = control.now + Nanos::from_millis(1);
            control.now = control.next_due().map_or(step, |at| whole_ms(at).max(step));
            control.raw.at = control.now;
        }
        control.zero = control.now;
        control.actions = actions.into();
        control.events.clear();
        Ok(control)
    }

    /// When the engine or the switch has its next result, or an action is due.
    pub(crate) fn next_due(&self) -> Option<Nanos> {
        let engine = self.engine.next_at();
        let switch = self.switch.next_at();
        let action = self
            .actions
            .front()
            .map(|action| self.zero + seconds(action.at_s));
        [engine, switch, action].into_iter().flatten().min()
    }

    /// The instances.
    pub(crate) fn instances(&self) -> &[controller::Instance] {
        self.controller.instances()
    }

    /// How fast the loop decided.
    pub(crate) fn reactions(&self) -> &controller::Reactions {
        self.controller.reactions()
    }

    /// The wanted number of Active instances.
    pub(crate) fn target(&self) -> u32 {
        self.controller
            .services()
            .next()
            .map_or(0, |service| service.wanted)
    }

    /// The quota of the instance in a slot.
    pub(crate) fn quota(&self, slot: Slot) -> Option<CpuQuota> {
        let instance = self.controller.instances().iter().find(|i| i.slot() == slot)?;
        self.engine.quota(instance.name())
    }

    /// One turn at `now`, with the counters in `raw`. Returns whether anything but the windows changed.
    pub(crate) fn turn(&mut self) -> bool {
        let now = self.now;
        self.sample();
        self.engine.advance(now);
        self.engine_events.clear();
        self.engine.poll(&mut self.engine_events);
        let is_answered = self.switch.advance(now, |_| true);
        self.switch.poll(now, &mut self.told);
        self.commands.clear();
        while let Some(action) = self.actions.front()
            && self.zero + seconds(action.at_s) <= now
        {
            let action = *action;
            self.actions.pop_front();
            if let Some(count) = action.scale {
                let scale = model::Action::Scale {
                    service: NAME.to_owned(),
                    instances: Some(count),
                };
                self.commands.push((CommandId(0), scale.into()));
            }
            if let Some(place) = action.kill {
                let active: Vec<&controller::Instance> = self
                    .controller
                    .instances()
                    .iter()
                    .filter(|i| i.state() == InstanceState::Active)
                    .collect();
                if let Some(instance) = active.get(place) {
                    self.engine.kill(instance.name(), 9);
                }
            }
        }
        let inputs = Inputs {
            engine: &self.engine_events,
            containers: None,
            switch: &self.told,
            acknowledged: self.switch.acknowledged(),
            commands: &self.commands,
            fitted: &self.fitted,
            reports: &[],
        };
        self.controller
            .step(inputs, &mut self.collector, now, &mut self.outputs);
        self.told.clear();
        let fits = self.outputs.fits.drain(..);
        self.fitted.clear();
        self.fitted
            .extend(fits.map(|(service, fit)| (service, fit.run())));
        let mut disturbed = !self.outputs.is_empty()
            || !self.engine_events.is_empty()
            || is_answered
            || !self.commands.is_empty();
        let (requests, mut switch) = (
            std::mem::take(&mut self.outputs.engine),
            std::mem::take(&mut self.outputs.switch),
        );
        for (ticket, request) in requests {
            self.engine.submit(ticket, request);
        }
        for request in switch.drain(..) {
            self.carry_out(request);
        }
        self.outputs.switch = switch;
        self.events.append(&mut self.outputs.events);
        disturbed |= std::mem::take(&mut self.first);
        if disturbed {
            (self.active, self.running, self.reserved_cpus) = (0, 0, 0.0);
            self.at_places.fill((0, 0.0));
            for instance in self.controller.instances() {
                self.active += u32::from(instance.state() == InstanceState::Active);
                self.place_of_slot.set(instance.slot(), instance.place());
                if instance.container() != controller::Container::Paused {
                    self.running += 1;
                    let quota = self.engine.quota(instance.name());
                    let cpus = quota.map_or(self.threads, |quota| quota.cpus());
                    self.reserved_cpus += cpus;
                    if let Some((count, sum)) = self.at_places.get_mut(instance.place().index()) {
                        (*count, *sum) = (*count + 1, *sum + cpus);
                    }
                }
            }
        }
        disturbed
    }

    fn sample(&mut self) {
        if self.counters.every_ms == 0 && self.counters.delay_ms == 0 {
            self.raw.at = self.now;
            self.collector.sample(&self.raw);
            return;
        }
        let every = Nanos::from_millis(self.counters.every_ms);
        if self.snapshot_at.is_none_or(|at| self.now.since(at) >= every) {
            self.snapshot_at = Some(self.now);
            let slots = self.collector.assigned().iter();
            let slots = slots.map(|slot| (*slot, self.raw.slots[slot.index()])).collect();
            self.late.push_back(Snapshot {
                at: self.now,
                slots,
                service: self.raw.services[0],
            });
        }
        let delay = Nanos::from_millis(self.counters.delay_ms);
        let mut newest = None;
        while let Some(snapshot) = self.late.front()
            && snapshot.at + delay <= self.now
        {
            newest = self.late.pop_front();
        }
        // Counters are sampled when they change; the loop sees nothing new in between.
        if let Some(newest) = newest {
            for (slot, counters) in newest.slots {
                self.seen.slots[slot.index()] = counters;
            }
            self.seen.services[0] = newest.service;
            self.seen.at = self.now;
            self.seen.age = self.now.since(newest.at);
            self.collector.sample(&self.seen);
        }
    }

    fn carry_out(&mut self, request: SwitchRequest) {
        match &request {
            SwitchRequest::Attach { slot, .. } => {
                let after = Nanos((self.ready.at(self.random.unit()) * 1e6) as u64);
                // At the earliest in the next turn.
                let delay = whole_ms(after).max(TICK);
                self.switch.delays().connect = Delay::always(delay);
                self.changes.push(SlotChange::NewFlows(*slot));
            }
            SwitchRequest::Publish(plan) => self.plan = Arc::clone(plan),
            SwitchRequest::Probe(slot) => self.raw.slots[slot.index()].consumed += 1,
            SwitchRequest::Fail(slot) => self.changes.push(SlotChange::Failed(*slot)),
            SwitchRequest::PurgeSlot(slot) => self.changes.push(SlotChange::Unpinned(*slot)),
            SwitchRequest::Detach(slot) => self.changes.push(SlotChange::Gone(*slot)),
            // Only the controller sends requests here.
            SwitchRequest::OpenUplink(_)
            | SwitchRequest::Mappings(_)
            | SwitchRequest::Change(_)
            | SwitchRequest::Flows { .. }
            | SwitchRequest::HeavyFlows { .. }
            | SwitchRequest::Record { .. }
            | SwitchRequest::Capture(_) => {}
        }
        self.switch.submit(request, &mut self.told);
    }
}
