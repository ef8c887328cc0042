//! The real controller, autoscalers and collector over the fake engine and the fake switch, with faults of named
//! probabilities, for many seeds. A seed that fails is printed; `INCO_SEED=n` runs that one alone.

#![expect(
    clippy::expect_used,
    reason = "a failed expectation fails the test, in its helpers too"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};

use autoscaling::Autoscaler;
use collector::Collector;
use controller::{
    Command, CommandId, Controller, Inputs, Outputs, Report, ReportKind, ReservedBlock, ServiceSettings,
    Settings,
};
use engine::{
    ContainerSpec, ContainerState, Engine, EngineEvent, FakeConfig, FakeEngine, Faults, Label, Request,
};
use model::{
    Action, AgentCheck, AgentReport, AgentState, EventKind, External, FlowKey, Generation, HealthCheck,
    InstanceId, InstanceState, Match, Nanos, PortBlock, Prefix, Probe, Random, Ready, RolloutState,
    ServiceId, Slot, StandbyMode, Tuple, UplinkId, protocol,
};
use scheduling::Scheduler;
use switch::{
    Delay, FakeSwitch, PortKind, PortSpec, Resumed, SlotPlan, Switch as _, SwitchEvent, SwitchReading,
    SwitchRequest,
};

const WORKERS: usize = 2;
/// Packets per millisecond that an instance consumes.
const CAPACITY_PER_MS: u64 = 10;
/// How long a mapping of the gateway may live.
const LIFETIME: Nanos = Nanos::from_secs(20);
/// Packets per second of a flow.
const FLOW_PPS: u64 = 400;

/// Probabilities of faults, each per occasion.
#[derive(Clone, Copy, Debug, Default)]
struct Probabilities {
    /// Of an instance: its port never connects.
    port_never_connects: f64,
    /// Of an acknowledgement: it takes 100 times as long.
    acknowledged_late: f64,
    /// Per second and service: a container is killed.
    container_killed: f64,
    /// Per second and service: a container hangs.
    container_hangs: f64,
    /// Per second and service: a port goes down.
    port_down: f64,
    /// Per second: the engine is away for 30 s.
    engine_down: f64,
    /// Per second: an operator sends a command.
    command: f64,
    /// Per second and service: the load changes.
    load_changes: f64,
    /// Of a detach: the switch cannot take it now.
    detach_refused: f64,
    /// Of a step: it comes late, by up to 20 ms.
    step_late: f64,
}

/// A flow of a sender.
#[derive(Clone, Copy, Debug)]
struct Flow {
    service: ServiceId,
    tuple: Tuple,
    ends: Nanos,
}

/// The port of an instance.
#[derive(Debug)]
struct PortSim {
    instance: InstanceId,
    name: String,
    hung: bool,
    /// Its flows were moved on purpose, by a failure, purge or deadline.
    moved: bool,
}

struct Simulation {
    seed: u64,
    settings: Vec<ServiceSettings>,
    chance: Random,
    probabilities: Probabilities,
    now: Nanos,
    engine: FakeEngine,
    controller: Controller,
    collector: Collector,
    raw: SwitchReading,
    switch: FakeSwitch,
    told: Vec<SwitchEvent>,
    ports: BTreeMap<Slot, PortSim>,
    published: Generation,
    /// Failed since the last plan.
    failing: Vec<Slot>,
    flows: BTreeMap<FlowKey, Flow>,
    flows_begun: u32,
    flows_served: u64,
    drained_clean: u64,
    outputs: Outputs,
    events: Vec<EngineEvent>,
    containers: Option<Vec<engine::Container>>,
    commands: Vec<(CommandId, Command)>,
    /// What is found out about instances by the next step.
    reports: Vec<Report>,
    /// Every event but changes of state, in words.
    told_events: Vec<(Option<InstanceId>, EventKind)>,
    engine_up_at: Option<Nanos>,
    flows_wanted: [usize; 2],
    states: BTreeMap<InstanceId, InstanceState>,
    seen: BTreeSet<String>,
    last_sequence: u64,
    ids_used: BTreeSet<InstanceId>,
    most_at_once: usize,
    /// The external ports of each instance, and whether it has served.
    owners: BTreeMap<InstanceId, (PortBlock, bool)>,
    /// Those of instances that have failed, and until when nobody may have them.
    left: BTreeMap<PortBlock, Nanos>,
    failed: BTreeSet<InstanceId>,
}

impl Drop for Simulation {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!(
                "seed {} fails at {} ms: INCO_SEED={}",
                self.seed,
                self.now.as_millis(),
                self.seed
            );
        }
    }
}

/// The names of [`services`].
const NAMES: [&str; 2] = ["firewall", "gateway"];

fn services() -> Vec<ServiceSettings> {
    let scaler = |json: &str| {
        Autoscaler::with_parameters("smartinco", &mut serde_json::Deserializer::from_str(json))
            .expect("parameters")
    };
    let mut warm = ServiceSettings::new(
        NAMES[0],
        Some(ContainerSpec::new("inco-x", "inco/forward")),
        scaler(r#"{"window":"100ms","scale_down_window":"500ms"}"#),
    );
    (warm.min, warm.max, warm.standby) = (2, 6, 1);
    warm.port = PortSpec::new(PortKind::Memif, "port.sock");
    warm.plan.scheduler = Scheduler::from_name("round-robin").expect("a policy");
    warm.plan.matches = matches_of(ServiceId(0));
    warm.capacity_pps = Some((CAPACITY_PER_MS * 1_000) as f64);
    (warm.ready_deadline, warm.drain_deadline) = (Nanos::from_secs(2), Nanos::from_secs(3));
    let mut paused = warm.clone();
    paused.name = NAMES[1].to_owned();
    paused.plan.matches = matches_of(ServiceId(1));
    (paused.min, paused.max, paused.standby) = (1, 4, 2);
    paused.standby_mode = StandbyMode::Paused;
    paused.ready = Ready::Consumes;
    paused.plan.external = Some(external("203.0.113.0/24"));
    paused.mapping_lifetime = LIFETIME;
    vec![warm, paused]
}

/// Blocks of 4,032 ports of these addresses.
fn external(prefix: &str) -> External {
    let (address, bits) = prefix.split_once('/').expect("a prefix");
    let prefix = Prefix {
        address: address.parse().expect("an address"),
        bits: bits.parse().expect("a number"),
    };
    External::new(&[prefix], 4032).expect("external addresses")
}

/// The match of a service: one UDP or TCP port of its own.
fn matches_of(service: ServiceId) -> Match {
    let port = port_of(service);
    Match {
        protocol: Some(protocol::UDP),
        dst_port: Some(port..=port),
        ..Match::default()
    }
}

fn port_of(service: ServiceId) -> u16 {
    80 + service.0
}

/// The container of a port: the socket's directory has the same name.
fn container_of(port: &PortSpec) -> &str {
    let directory = port.address.parent().and_then(|directory| directory.file_name());
    directory.and_then(|name| name.to_str()).expect("a name")
}

impl Simulation {
    fn new(seed: u64, probabilities: Probabilities, faults: Faults) -> Simulation {
        let engine = FakeEngine::new(FakeConfig {
            seed,
            faults,
            ..FakeConfig::default()
        });
        Simulation::over(seed, probabilities, engine, Nanos::ZERO)
    }

    /// A new run of the controller over an engine that may have containers of an earlier one.
    fn over(seed: u64, probabilities: Probabilities, engine: FakeEngine, now: Nanos) -> Simulation {
        Simulation::with(services(), seed, probabilities, engine, now)
    }

    fn with(
        services: Vec<ServiceSettings>,
        seed: u64,
        probabilities: Probabilities,
        mut engine: FakeEngine,
        now: Nanos,
    ) -> Simulation {
        let settings = services.clone();
        let mut collector = Collector::new();
        for service in &services {
            collector.add_service(service.autoscaler.stable_window());
        }
        let mut controller = Controller::new(Settings::default(), services);
        let found = engine
            .list(&Label::any(controller::LABEL_SERVICE))
            .expect("the engine answers");
        controller.adopt(&found, &Resumed::default(), now);
        Simulation {
            seed,
            settings,
            chance: Random::new(seed ^ 0x5eed),
            probabilities,
            now,
            engine,
            controller,
            collector,
            raw: SwitchReading::new(2, 1, WORKERS),
            switch: FakeSwitch::new(switch::FakeConfig {
                seed,
                workers: WORKERS,
                services: 2,
                ..switch::FakeConfig::default()
            }),
            told: Vec::new(),
            ports: BTreeMap::new(),
            published: Generation(0),
            failing: Vec::new(),
            flows: BTreeMap::new(),
            flows_begun: 0,
            flows_served: 0,
            drained_clean: 0,
            outputs: Outputs::default(),
            events: Vec::new(),
            containers: None,
            commands: Vec::new(),
            reports: Vec::new(),
            told_events: Vec::new(),
            engine_up_at: None,
            flows_wanted: [4, 2],
            states: BTreeMap::new(),
            seen: BTreeSet::new(),
            last_sequence: 0,
            ids_used: BTreeSet::new(),
            most_at_once: 0,
            owners: BTreeMap::new(),
            left: BTreeMap::new(),
            failed: BTreeSet::new(),
        }
    }

    fn step(&mut self, dt: Nanos) {
        let late = if self.chance.happens(self.probabilities.step_late) {
            self.chance.below(20)
        } else {
            0
        };
        self.now = self.now + dt + Nanos::from_millis(late);
        let ms = dt.as_millis().max(1) + late;
        self.break_things(ms);
        self.engine.advance(self.now);
        self.events.clear();
        Engine::poll(&mut self.engine, &mut self.events);
        self.run_switch(ms);
        self.switch.read(&mut self.raw);
        self.collector.sample(&self.raw);
        self.switch.poll(self.now, &mut self.told);
        let told = std::mem::take(&mut self.told);
        let containers = self.containers.take();
        let inputs = Inputs {
            engine: &self.events,
            containers: containers.as_deref(),
            switch: &told,
            acknowledged: self.raw.acknowledged,
            commands: &self.commands,
            fitted: &[],
            reports: &self.reports,
        };
        self.controller
            .step(inputs, &mut self.collector, self.now, &mut self.outputs);
        self.commands.clear();
        self.reports.clear();
        let mut outputs = std::mem::take(&mut self.outputs);
        for (ticket, request) in outputs.engine.drain(..) {
            self.engine.submit(ticket, request);
        }
        for request in outputs.switch.drain(..) {
            self.switch_request(request);
        }
        if outputs.list_containers {
            self.containers = self.engine.list(&Label::any(controller::LABEL_SERVICE)).ok();
        }
        self.check_events(&outputs);
        self.outputs = outputs;
        self.check();
        self.check_blocks();
    }

    fn run(&mut self, steps: u64, dt: Nanos) {
        for _ in 0..steps {
            self.step(dt);
        }
    }

    fn break_things(&mut self, ms: u64) {
        let p = self.probabilities;
        let per_step = |per_second: f64| per_second * ms as f64 / 1_000.0;
        for service in [ServiceId(0), ServiceId(1)] {
            let running: Vec<(String, Slot)> = self
                .controller
                .instances()
                .iter()
                .filter(|i| i.service() == service && i.container() == controller::Container::Running)
                .map(|i| (i.name().to_owned(), i.slot()))
                .collect();
            if running.is_empty() {
                continue;
            }
            let (name, slot) = running[self.chance.below(running.len() as u64) as usize].clone();
            if self.chance.happens(per_step(p.container_killed)) {
                self.engine.kill(&name, 9);
                self.seen.insert("killed".into());
            }
            if self.chance.happens(per_step(p.container_hangs)) {
                self.engine.hang(&name);
                self.hang(slot);
            }
            if self.chance.happens(per_step(p.port_down)) {
                self.switch.close_port(slot);
            }
            if self.chance.happens(per_step(p.load_changes)) {
                self.flows_wanted[service.index()] =
                    self.chance.below(if service.0 == 0 { 120 } else { 60 }) as usize;
            }
        }
        if self.engine_up_at.is_none() && self.chance.happens(per_step(p.engine_down)) {
            self.engine.set_down(true);
            self.engine_up_at = Some(self.now + Nanos::from_secs(30));
        }
        if self.engine_up_at.is_some_and(|at| self.now >= at) {
            self.engine_up();
        }
        if self.chance.happens(per_step(p.command)) {
            let ids: Vec<InstanceId> = self.controller.instances().iter().map(|i| i.id()).collect();
            let instance = if ids.is_empty() {
                InstanceId(0)
            } else {
                ids[self.chance.below(ids.len() as u64) as usize]
            };
            let service = ["firewall", "gateway", "unknown"][self.chance.below(3) as usize].to_owned();
            let action = match self.chance.below(9) {
                8 => Action::Resize {
                    service,
                    cpus: self
                        .chance
                        .happens(0.7)
                        .then(|| self.chance.below(8) as f64 / 4.0),
                },
                7 => Action::Range {
                    service,
                    min: self.chance.happens(0.5).then(|| self.chance.below(8) as u32),
                    max: self.chance.happens(0.5).then(|| self.chance.below(8) as u32),
                },
                6 => Action::Rollout {
                    service,
                    cancel: self.chance.happens(0.2),
                },
                0 => Action::Scale {
                    service,
                    instances: Some(self.chance.below(8) as u32),
                },
                1 | 2 => Action::Scale {
                    service,
                    instances: None,
                },
                3 => Action::Drain { instance },
                4 => Action::Undrain { instance },
                _ => Action::Purge {
                    instance: Some(instance),
                    flow: None,
                },
            };
            self.commands.push((CommandId(self.now.0), action.into()));
        }
    }

    fn engine_up(&mut self) {
        self.engine_up_at = None;
        self.engine.set_down(false);
    }

    /// The instance in that slot consumes nothing from now on.
    fn hang(&mut self, slot: Slot) {
        if let Some(port) = self.ports.get_mut(&slot) {
            port.hung = true;
        }
    }

    fn switch_request(&mut self, request: SwitchRequest) {
        let is_attached = |slot: &Slot| self.switch.attached(*slot).is_some();
        match &request {
            SwitchRequest::Attach { slot, port, .. } => {
                assert_eq!(port.data_ports, 1);
                assert!(self.switch.slots().all(|used| used != *slot), "{slot} is in use");
                let instance = self.controller.instances().iter().find(|i| i.slot() == *slot);
                let port = PortSim {
                    instance: instance.expect("it is an instance's").id(),
                    name: container_of(port).to_owned(),
                    hung: false,
                    moved: false,
                };
                self.ports.insert(*slot, port);
            }
            SwitchRequest::Publish(plan) => {
                assert_eq!(plan.generation.0, self.published.0 + 1);
                self.published = plan.generation;
                for slot in std::mem::take(&mut self.failing) {
                    assert!(plan.slot(slot).is_none(), "{slot} has failed");
                    self.ports.get_mut(&slot).expect("it is attached").moved = true;
                }
                for (slot, row) in plan.instances() {
                    assert!(is_attached(&slot), "only what is attached is in the plan");
                    assert_eq!(self.ports[&slot].instance, row.instance);
                    assert!(matches!(
                        row.state,
                        InstanceState::Active | InstanceState::Draining | InstanceState::Standby
                    ));
                }
            }
            SwitchRequest::Probe(slot) => assert!(is_attached(slot)),
            SwitchRequest::Fail(slot) => {
                assert!(is_attached(slot));
                self.failing.push(*slot);
            }
            SwitchRequest::PurgeSlot(slot) => {
                assert!(is_attached(slot));
                self.ports.get_mut(slot).expect("it is attached").moved = true;
            }
            SwitchRequest::Detach(slot) => {
                let mut plans = self.switch.plans();
                assert!(
                    plans.all(|plan| plan.slot(*slot).is_none()),
                    "{slot} is still in a worker's plan"
                );
                drop(plans);
                let instances = self.controller.instances().iter();
                let stops = |i: &controller::Instance| i.slot() == *slot && i.reason().contains("inco stops");
                if is_attached(slot) && !self.ports[slot].moved && !instances.clone().any(stops) {
                    // It stops in good order, so none of its packets may be lost.
                    assert!(
                        self.switch.pins().all(|(_, at)| at != *slot),
                        "{slot} still has flows"
                    );
                    let left = self.raw.slots[slot.index()].ring_used;
                    assert_eq!(left, 0, "{slot} still has packets");
                    self.drained_clean += 1;
                }
            }
            other => unreachable!("the controller asks for no {other:?}"),
        }
        self.switch.submit(request, &mut self.told);
    }

    fn run_switch(&mut self, ms: u64) {
        let now = self.now;
        let running: BTreeSet<String> = self
            .engine
            .containers()
            .into_iter()
            .filter(|c| c.state == ContainerState::Running)
            .map(|c| c.name)
            .collect();
        self.switch.set_faults(switch::Faults {
            never_connects: self.probabilities.port_never_connects,
            loads_late: self.probabilities.acknowledged_late,
            detach_refused: self.probabilities.detach_refused,
        });
        self.switch
            .advance(now, |port| running.contains(container_of(port)));

        // Flows end, begin where a worker's own plan says, and send.
        let switch = &mut self.switch;
        self.flows.retain(|key, flow| {
            if flow.ends <= now {
                switch.end(key);
            }
            flow.ends > now
        });
        for service in [ServiceId(0), ServiceId(1)] {
            let here = self.flows.values().filter(|flow| flow.service == service).count();
            let missing = self.flows_wanted[service.index()].saturating_sub(here);
            for _ in 0..missing.min(5 * ms as usize) {
                let tuple = self.new_tuple(service);
                let key = FlowKey::new(&tuple).0;
                self.switch.offer(UplinkId(0), &tuple);
                let Some(slot) = self.switch.pin_of(&key) else {
                    continue;
                };
                let name = &self.ports[&slot].name;
                let containers = self.engine.containers();
                let is_frozen = |c: &engine::Container| c.name == *name && c.state == ContainerState::Paused;
                assert!(
                    !containers.iter().any(is_frozen),
                    "a new flow went to a frozen instance"
                );
                let ends = now + Nanos::from_millis(20 + self.chance.below(800));
                self.flows.insert(key, Flow { service, tuple, ends });
                self.flows_served += 1;
            }
        }
        for flow in self.flows.values() {
            let one_more = self.chance.below(1_000) < FLOW_PPS * ms % 1_000;
            for _ in 0..FLOW_PPS * ms / 1_000 + u64::from(one_more) {
                self.switch.offer(UplinkId(0), &flow.tuple);
            }
        }
        for (slot, port) in &self.ports {
            if !port.hung && running.contains(&port.name) {
                let taken = self.switch.take(*slot, (CAPACITY_PER_MS * ms) as usize);
                self.switch.give_back(*slot, &taken);
            }
        }
        self.switch.take_sent();
    }

    /// The addresses of a new flow.
    fn new_tuple(&mut self, service: ServiceId) -> Tuple {
        self.flows_begun += 1;
        Tuple {
            src: IpAddr::V4(Ipv4Addr::from((10 << 24) + self.flows_begun)),
            dst: IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)),
            src_port: 1000,
            dst_port: port_of(service),
            protocol: protocol::UDP,
            vlan: 0,
        }
    }

    /// Flows of the first service that are pinned to that instance for a minute.
    fn pin_flows(&mut self, slot: Slot, count: usize) -> Vec<FlowKey> {
        let ends = self.now + Nanos::from_secs(60);
        let service = ServiceId(0);
        let keys: Vec<FlowKey> = (0..count)
            .map(|_| {
                let tuple = self.new_tuple(service);
                let key = FlowKey::new(&tuple).0;
                self.switch.pin(key, service, slot);
                self.flows.insert(key, Flow { service, tuple, ends });
                key
            })
            .collect();
        keys
    }

    /// Flows pinned to that instance.
    fn pinned(&self, slot: Slot) -> usize {
        self.switch.pins().filter(|(_, at)| *at == slot).count()
    }

    fn check_events(&mut self, outputs: &Outputs) {
        for event in &outputs.events {
            assert_eq!(event.sequence, self.last_sequence + 1, "events are without gaps");
            self.last_sequence = event.sequence;
            match &event.kind {
                EventKind::State { from, to, reason } => {
                    let id = event.instance.expect("a state has an instance");
                    let before = self.states.insert(id, *to);
                    match before {
                        Some(before) => assert_eq!(before, *from, "instance {id}: {reason}"),
                        None => assert!(self.ids_used.insert(id), "id {id} was used twice"),
                    }
                    assert!(!reason.is_empty());
                    self.seen.insert(format!("{}→{}", from.name(), to.name()));
                    if reason.contains("last flow has ended") {
                        let slot = self.slot_of(id.0);
                        assert_eq!(self.pinned(slot), 0, "{id} still has flows");
                        let takes =
                            |(_, row): (Slot, &SlotPlan)| row.instance == id && row.state.takes_new_flows();
                        let mut plans = self.switch.plans();
                        assert!(
                            !plans.any(|plan| plan.instances().any(takes)),
                            "{id} may get flows"
                        );
                        self.drained_clean += 1;
                    }
                    if reason.contains("stalled") {
                        self.seen.insert("stalled".into());
                    }
                    if reason.contains("not ready within") {
                        self.seen.insert("not ready".into());
                    }
                    if reason.contains("deadline passed") {
                        self.seen.insert("drain deadline".into());
                    }
                }
                EventKind::Failure { what, reason }
                    if what == "engine" && reason.contains("packets are still steered") =>
                {
                    self.seen.insert("engine down".into());
                }
                EventKind::Recovered { .. } => {
                    self.seen.insert("engine up".into());
                }
                EventKind::Scaled {
                    from,
                    to,
                    policy,
                    reason,
                    case,
                } => {
                    assert_ne!(from, to);
                    assert!(!reason.is_empty());
                    self.seen.insert(policy.clone());
                    // Nobody has computed those.
                    let is_set = ["manual", "limits"].contains(&policy.as_str());
                    assert_eq!(case.is_some(), !is_set);
                    if let Some(case) = case {
                        assert_eq!(explained(&case.to_string()), u64::from(*to), "{case}");
                        let event = serde_json::to_string(event).expect("an event is JSON");
                        assert_eq!(
                            explained(&event),
                            u64::from(*to),
                            "the event as it is logged: {event}"
                        );
                    }
                }
                _ => {}
            }
            if !matches!(event.kind, EventKind::State { .. }) {
                self.told_events.push((event.instance, event.kind.clone()));
            }
        }
    }

    fn check(&mut self) {
        let settings = &self.settings;
        let instances = self.controller.instances();
        assert!(instances.is_sorted_by_key(|i| i.id()));
        let slots: BTreeSet<Slot> = instances.iter().map(|i| i.slot()).collect();
        assert_eq!(slots.len(), instances.len(), "a slot belongs to two instances");
        // The lowest free slot is taken, so slots in use never exceed the instances that existed at once.
        self.most_at_once = self.most_at_once.max(instances.len());
        let most = self.most_at_once;
        assert!(
            slots.iter().all(|slot| slot.index() < most + 4),
            "slots are not used again: {slots:?}"
        );
        let creating = instances
            .iter()
            .filter(|i| i.state() == InstanceState::Creating)
            .count();
        assert!(creating <= 4, "{creating} creates at once");
        for (index, service) in settings.iter().enumerate() {
            let of_it = || instances.iter().filter(|i| i.service().index() == index);
            let active = of_it().filter(|i| i.state() == InstanceState::Active).count();
            // A replaced instance may be active beside its replacement.
            let status = self.controller.services().nth(index).expect("the service");
            let rolls = status
                .rollout
                .is_some_and(|rollout| rollout.state == RolloutState::Running);
            // Others come in the place of those that take no new flows.
            let unfit = of_it().filter(|i| !i.fitness().takes()).count();
            assert!(
                active <= service.max as usize + usize::from(rolls) + unfit,
                "{active} active of at most {}",
                service.max
            );
            // Instances on their way, active and in the pool are bounded; only those that leave come on top.
            let staying = of_it()
                .filter(|i| {
                    !matches!(
                        i.state(),
                        InstanceState::Draining | InstanceState::Stopping | InstanceState::Failed
                    )
                })
                .count();
            let limit = service.max as usize + service.standby as usize + 1 + usize::from(rolls) + unfit;
            assert!(staying <= limit, "{staying} of {}", service.name);
        }
    }

    /// Each instance of the gateway has external ports of its own, which nobody had in the lifetime of mappings.
    fn check_blocks(&mut self) {
        let now = self.now;
        let instances = self.controller.instances();
        let gone: Vec<InstanceId> = self
            .owners
            .keys()
            .filter(|id| instances.iter().all(|i| i.id() != **id))
            .copied()
            .collect();
        for id in gone {
            if let Some((ports, true)) = self.owners.remove(&id)
                && self.failed.contains(&id)
            {
                self.left.insert(ports, now + LIFETIME);
            }
        }
        for instance in instances {
            if instance.state() == InstanceState::Failed {
                self.failed.insert(instance.id());
            }
            let ports = self.controller.external_ports(instance);
            assert_eq!(ports.is_some(), instance.service().index() == 1);
            let Some(ports) = ports else { continue };
            let is_new = !self.owners.contains_key(&instance.id());
            let (own, serves) = self.owners.entry(instance.id()).or_insert((ports, false));
            assert_eq!(*own, ports, "an instance keeps its ports");
            *serves |= instance.state().serves();
            if is_new {
                let left = self.left.get(&ports);
                assert!(left.is_none_or(|until| *until <= now), "{ports} at {now:?}");
            }
        }
        let all: BTreeSet<PortBlock> = self.owners.values().map(|(ports, _)| *ports).collect();
        assert_eq!(all.len(), self.owners.len(), "two instances have the same ports");
    }

    /// Without faults, each service reaches its wanted state after a while.
    fn settle(&mut self) {
        self.probabilities = Probabilities::default();
        self.engine.set_faults(Faults::default());
        if self.engine_up_at.is_some() {
            self.engine_up();
        }
        for name in NAMES {
            self.commands.push((CommandId(1), scale(name, None).into()));
        }
        self.run(7_500, Nanos::from_millis(10));
        for slot in self.switch.slots() {
            assert!(!self.ports[&slot].hung, "a hung instance is still there");
        }
        let services: Vec<_> = self
            .controller
            .services()
            .map(|s| (s.id, s.min, s.wanted, s.standby))
            .collect();
        for (id, min, wanted, standby) in services {
            let count = |state: InstanceState| {
                self.controller
                    .instances()
                    .iter()
                    .filter(|i| i.service() == id && i.state() == state)
                    .count() as u32
            };
            assert!(wanted >= min);
            let around: Vec<_> = self
                .controller
                .instances()
                .iter()
                .map(|i| (i.id(), i.state()))
                .collect();
            assert_eq!(count(InstanceState::Active), wanted, "{id}: {around:?}");
            assert!(count(InstanceState::Standby) >= standby, "{id}: {around:?}");
        }
        // Every container of the engine belongs to an instance of the controller.
        let known: BTreeSet<&str> = self.controller.instances().iter().map(|i| i.name()).collect();
        for container in self.engine.containers() {
            assert!(
                known.contains(container.name.as_str()),
                "{} belongs to no instance",
                container.name
            );
        }
    }

    fn shut_down(&mut self, keep: bool) {
        self.commands.push((CommandId(9), Action::Stop { keep }.into()));
        for _ in 0..20_000 {
            self.step(Nanos::from_millis(5));
            if self.controller.is_finished() {
                break;
            }
        }
        assert!(self.controller.is_finished(), "{:?}", self.controller.instances());
        assert_eq!(self.switch.slots().count(), 0);
        assert!(self.collector.assigned().is_empty());
        if !keep {
            assert_eq!(self.engine.containers(), vec![]);
        }
    }
}

fn seeds(count: u64) -> Vec<u64> {
    match std::env::var("INCO_SEED").ok().and_then(|seed| seed.parse().ok()) {
        Some(seed) => vec![seed],
        None => (1..=count).collect(),
    }
}

#[test]
fn whatever_goes_wrong_the_promises_hold_and_it_recovers() {
    let mut seen = BTreeSet::new();
    let (mut flows, mut drained) = (0, 0);
    for seed in seeds(16) {
        // Each seed has its own mix of faults, from none to nearly all.
        let mut mix = Random::new(seed);
        let mut up_to = |most: f64| most * mix.below(4) as f64 / 3.0;
        let probabilities = Probabilities {
            port_never_connects: up_to(0.2),
            acknowledged_late: up_to(0.1),
            container_killed: up_to(0.5),
            container_hangs: up_to(0.3),
            port_down: up_to(0.3),
            engine_down: up_to(0.05),
            command: up_to(4.0),
            load_changes: 1.0,
            detach_refused: up_to(0.3),
            step_late: up_to(0.05),
        };
        let faults = Faults {
            create_fails: up_to(0.3),
            create_is_slow: up_to(0.1),
            dies_at_start: up_to(0.2),
            pause_fails: up_to(0.2),
            quota_fails: up_to(0.2),
            remove_fails: up_to(0.3),
        };
        let mut simulation = Simulation::new(seed, probabilities, faults);
        simulation.run(20_000, Nanos::from_millis(1));
        simulation.settle();
        simulation.shut_down(false);
        seen.extend(simulation.seen.iter().cloned());
        flows += simulation.flows_served;
        drained += simulation.drained_clean;
    }
    if std::env::var("INCO_SEED").is_err() {
        // All faults occurred, and every transition of the state machine was taken.
        for what in [
            "killed",
            "stalled",
            "not ready",
            "engine down",
            "engine up",
            "smartinco",
            "manual",
            "creating→starting",
            "starting→standby",
            "standby→active",
            "active→draining",
            "draining→active",
            "draining→standby",
            "draining→stopping",
            "creating→failed",
            "starting→failed",
            "active→failed",
            "draining→failed",
            "standby→failed",
            "standby→stopping",
            "failed→gone",
            "stopping→gone",
        ] {
            assert!(seen.contains(what), "{what} never happened: {seen:?}");
        }
        assert!(
            flows > 100_000 && drained > 100,
            "{flows} flows, {drained} drained"
        );
    }
}

// ---- one thing at a time

fn quiet(seed: u64) -> Simulation {
    Simulation::new(seed, Probabilities::default(), Faults::default())
}

impl Simulation {
    /// Runs a steady load until all instances that it requires are Active.
    fn steady(&mut self, firewall: usize, gateway: usize, seconds: u64) {
        for _ in 0..seconds * 1_000 {
            self.flows_wanted = [firewall, gateway];
            self.step(Nanos::from_millis(1));
        }
    }

    fn ids(&self, service: u16, state: InstanceState) -> Vec<u32> {
        let of_it = self
            .controller
            .instances()
            .iter()
            .filter(|i| i.service() == ServiceId(service));
        of_it.filter(|i| i.state() == state).map(|i| i.id().0).collect()
    }

    fn slot_of(&self, id: u32) -> Slot {
        let found = self
            .controller
            .instances()
            .iter()
            .find(|i| i.id() == InstanceId(id));
        found.map_or(Slot::NONE, |i| i.slot())
    }

    fn ask(&mut self, command: impl Into<Command>) -> Result<String, controller::CommandError> {
        self.commands.push((CommandId(77), command.into()));
        // Settled loads hardly change within a step.
        self.flows_wanted = [0, 0];
        self.step(Nanos::from_millis(1));
        let answers = &self.outputs.answers;
        assert_eq!(answers.len(), 1);
        answers[0].1.clone()
    }

    fn scale(&mut self, service: u16, count: u32) {
        let name = NAMES[usize::from(service)];
        assert!(self.ask(scale(name, Some(count))).is_ok());
    }
}

#[test]
fn a_run_starts_with_the_least_and_a_full_pool() {
    let mut sim = quiet(1);
    sim.steady(0, 0, 1);
    assert_eq!(sim.ids(0, InstanceState::Active).len(), 2);
    assert_eq!(sim.ids(0, InstanceState::Standby).len(), 1);
    assert_eq!(sim.ids(1, InstanceState::Active).len(), 1);
    assert_eq!(sim.ids(1, InstanceState::Standby).len(), 2);
    let paused = sim
        .engine
        .containers()
        .iter()
        .filter(|c| c.state == ContainerState::Paused)
        .count();
    assert_eq!(paused, 2, "the gateway's pool is frozen");
    assert_eq!(sim.controller.reactions().create.count, 6);
    sim.shut_down(false);
}

#[test]
fn more_come_from_a_drain_first_then_from_the_pool_and_last_from_the_engine() {
    let mut sim = quiet(2);
    sim.steady(20, 0, 1);
    let pool = sim.ids(0, InstanceState::Standby);
    sim.scale(0, 4);
    // The warm standby is Active and published within the step that decided it.
    assert!(sim.ids(0, InstanceState::Active).contains(&pool[0]), "{pool:?}");
    assert_eq!(
        sim.ids(0, InstanceState::Creating).len(),
        2,
        "one for the count, one for the pool"
    );
    sim.steady(40, 0, 1);
    let before = sim.ids(0, InstanceState::Active);
    assert_eq!(before.len(), 4);
    sim.scale(0, 3);
    let draining = sim.ids(0, InstanceState::Draining);
    assert_eq!(draining.len(), 1);
    let flows = sim.flows.len();
    sim.scale(0, 4);
    assert_eq!(
        sim.ids(0, InstanceState::Active),
        before,
        "the drain is taken back"
    );
    assert!(sim.flows.len() + 5 >= flows, "and moved no flow");
    assert_eq!(
        sim.controller.reactions().undrain.count,
        0,
        "not yet known to the workers"
    );
    sim.steady(40, 0, 1);
    let reactions = sim.controller.reactions();
    assert_eq!((reactions.undrain.count, reactions.activate.count), (1, 1));
    assert!(
        reactions.undrain.longest <= Nanos::from_millis(4),
        "{reactions:?}"
    );
    assert!(
        reactions.activate.longest <= Nanos::from_millis(4),
        "{reactions:?}"
    );
    assert!(reactions.create_and_activate.count >= 4);
}

#[test]
fn a_paused_standby_is_resumed_before_it_is_given_flows() {
    let mut sim = quiet(3);
    sim.steady(0, 4, 1);
    let pool = sim.ids(1, InstanceState::Standby);
    sim.scale(1, 2);
    assert_eq!(sim.ids(1, InstanceState::Active).len(), 1, "it is still frozen");
    sim.steady(0, 20, 1);
    assert!(sim.ids(1, InstanceState::Active).contains(&pool[0]));
    assert_eq!(sim.controller.reactions().resume.count, 1);
    assert_eq!(
        sim.ids(1, InstanceState::Standby).len(),
        2,
        "the pool is full again"
    );
}

#[test]
fn the_one_with_the_fewest_flows_goes_and_among_equals_the_youngest() {
    let mut sim = quiet(4);
    sim.scale(0, 4);
    sim.steady(0, 0, 3);
    let active = sim.ids(0, InstanceState::Active);
    sim.scale(0, 3);
    assert_eq!(
        sim.ids(0, InstanceState::Draining),
        [active[3]],
        "none has flows: the youngest"
    );
    sim.steady(0, 0, 1);
    // Pin flows by hand; the second instance has the fewest.
    for (id, count) in [(active[0], 5), (active[1], 2), (active[2], 4)] {
        let slot = sim.slot_of(id);
        sim.pin_flows(slot, count);
    }
    sim.step(Nanos::from_millis(1));
    sim.scale(0, 2);
    assert_eq!(sim.ids(0, InstanceState::Draining), [active[1]]);
}

#[test]
fn a_drain_ends_after_the_last_flow_and_the_last_acknowledgement() {
    let mut sim = quiet(5);
    sim.scale(0, 3);
    sim.steady(0, 0, 2);
    sim.probabilities.acknowledged_late = 1.0;
    sim.scale(0, 2);
    let draining = sim.ids(0, InstanceState::Draining);
    assert_eq!(draining.len(), 1);
    // It has no flow, but workers acknowledge the drain only after up to 200 ms.
    while sim.switch.acknowledged() < sim.published {
        assert_eq!(sim.ids(0, InstanceState::Draining), draining);
        sim.step(Nanos::from_millis(1));
    }
    sim.run(3, Nanos::from_millis(1));
    assert_eq!(sim.ids(0, InstanceState::Draining), Vec::<u32>::new());
}

#[test]
fn a_drain_waits_for_what_is_in_the_rings() {
    let mut sim = quiet(5);
    sim.scale(0, 3);
    sim.steady(0, 0, 2);
    // The instance that will be drained is slow for a while, less than a stall, with packets in its ring.
    let youngest = sim.ids(0, InstanceState::Active)[2];
    let slot = sim.slot_of(youngest);
    sim.hang(slot);
    let key = sim.pin_flows(slot, 1)[0];
    let flow = sim.flows.remove(&key).unwrap();
    for _ in 0..5 {
        sim.switch.offer(UplinkId(0), &flow.tuple);
    }
    sim.switch.end(&key);
    sim.step(Nanos::from_millis(1));
    sim.scale(0, 2);
    sim.run(50, Nanos::from_millis(1));
    assert_eq!(sim.ids(0, InstanceState::Draining), [youngest]);
    sim.ports.get_mut(&slot).unwrap().hung = false;
    sim.run(5, Nanos::from_millis(1));
    assert_eq!(sim.ids(0, InstanceState::Draining), Vec::<u32>::new());
    assert!(!sim.seen.contains("stalled"));
}

#[test]
fn a_drain_ends_at_its_deadline_with_an_event() {
    let mut sim = quiet(6);
    sim.scale(0, 3);
    sim.steady(0, 0, 2);
    for id in sim.ids(0, InstanceState::Active) {
        let slot = sim.slot_of(id);
        sim.pin_flows(slot, 1);
    }
    sim.step(Nanos::from_millis(1));
    sim.scale(0, 2);
    sim.run(2_900, Nanos::from_millis(1));
    let draining = sim.ids(0, InstanceState::Draining);
    assert_eq!(draining.len(), 1);
    let slot = sim.slot_of(draining[0]);
    assert_eq!(sim.pinned(slot), 1);
    assert!(!sim.seen.contains("drain deadline"));
    sim.run(200, Nanos::from_millis(1));
    assert!(sim.seen.contains("drain deadline"));
    assert_eq!(sim.pinned(slot), 0, "its flow was given away");
    assert_eq!(sim.switch.pins().count(), 3, "to another one");
}

#[test]
fn all_instances_may_be_drained_and_the_service_keeps_its_minimum() {
    let mut sim = quiet(7);
    sim.scale(0, 2);
    sim.steady(0, 0, 1);
    let pool = sim.ids(0, InstanceState::Standby);
    let victims = sim.ids(0, InstanceState::Active);
    // One standby takes over at once; the other failure needs a create.
    for victim in &victims {
        assert!(
            sim.ask(Action::Drain {
                instance: InstanceId(*victim)
            })
            .is_ok()
        );
    }
    for _ in 0..100 {
        assert!(sim.ids(0, InstanceState::Active).len() >= 2);
        sim.step(Nanos::from_millis(1));
    }
    let active = sim.ids(0, InstanceState::Active);
    assert!(active.len() == 2 && active.contains(&pool[0]), "{active:?}");
    assert!(
        !victims.iter().any(|victim| active.contains(victim)),
        "{active:?}"
    );
    assert!(
        sim.ask(Action::Drain {
            instance: InstanceId(9_999)
        })
        .is_err()
    );
    assert!(
        sim.ask(scale(NAMES[0], Some(7)))
            .unwrap_err()
            .to_string()
            .contains("range for firewall: 2 to 6")
    );
}

fn scale(service: &str, instances: Option<u32>) -> Action {
    Action::Scale {
        service: service.to_owned(),
        instances,
    }
}

/// The rollout of the firewall.
fn rollout(sim: &Simulation) -> model::Rollout {
    let service = sim.controller.services().next().expect("the firewall");
    service.rollout.expect("a rollout").clone()
}

#[test]
fn a_rollout_replaces_one_after_the_other_and_never_has_fewer() {
    let mut sim = quiet(21);
    for count in [3, 6] {
        sim.scale(0, count);
        sim.steady(40, 0, 2);
        let old = [InstanceState::Active, InstanceState::Standby].map(|state| sim.ids(0, state));
        assert_eq!((old[0].len(), old[1].len()), (count as usize, 1));
        let newest = old.iter().flatten().max().copied().expect("instances");
        let service = || NAMES[0].to_owned();
        let said = sim.ask(Action::Rollout {
            service: service(),
            cancel: false,
        });
        assert_eq!(
            said,
            Ok(format!(
                "firewall: the rollout of {} instances has begun",
                count + 1
            ))
        );
        let refused = sim.ask(Action::Rollout {
            service: service(),
            cancel: false,
        });
        assert!(
            matches!(refused, Err(controller::CommandError::RollsOut { .. })),
            "{refused:?}"
        );
        let mut steps = 0;
        while rollout(&sim).state == RolloutState::Running {
            sim.flows_wanted = [40, 0];
            sim.step(Nanos::from_millis(1));
            let active = sim.ids(0, InstanceState::Active);
            assert!(
                active.len() >= count as usize,
                "{} of {count}: {active:?}",
                active.len()
            );
            let coming_or_going =
                sim.ids(0, InstanceState::Draining).len() + sim.ids(0, InstanceState::Creating).len();
            assert!(coming_or_going <= 2, "more than one at a time");
            steps += 1;
            assert!(steps < 120_000, "{:?}", rollout(&sim));
        }
        assert_eq!(rollout(&sim).state, RolloutState::Finished, "{:?}", rollout(&sim));
        assert_eq!(
            (rollout(&sim).replaced, rollout(&sim).total),
            (count + 1, count + 1)
        );
        sim.steady(40, 0, 1);
        for state in [InstanceState::Active, InstanceState::Standby] {
            assert!(
                sim.ids(0, state).iter().all(|id| *id > newest),
                "{:?}",
                sim.ids(0, state)
            );
        }
        assert_eq!(sim.ids(0, InstanceState::Active).len(), count as usize);
        assert_eq!(sim.ids(0, InstanceState::Standby).len(), 1, "the pool is full");
    }
    // No flow moved: each drain waited for its flows.
    assert!(!sim.seen.contains("unpinned"));
    sim.shut_down(false);
}

#[test]
fn a_rollout_ends_where_a_replacement_fails_and_the_old_ones_stay() {
    let mut sim = quiet(22);
    sim.scale(0, 3);
    sim.steady(40, 0, 2);
    let active = sim.ids(0, InstanceState::Active);
    sim.engine.set_faults(Faults {
        create_fails: 1.0,
        ..Faults::default()
    });
    let service = || NAMES[0].to_owned();
    assert!(
        sim.ask(Action::Rollout {
            service: service(),
            cancel: false
        })
        .is_ok()
    );
    sim.steady(40, 0, 2);
    let ended = rollout(&sim);
    assert_eq!(ended.state, RolloutState::Aborted, "{ended:?}");
    assert!(
        ended.reason.contains("replacement") && ended.reason.contains("could not be created"),
        "{ended:?}"
    );
    assert_eq!(sim.ids(0, InstanceState::Active), active);
    // Among the active ones: the instance that was being replaced takes flows again.
    sim.engine.set_faults(Faults::default());
    sim.steady(40, 0, 40);
    assert!(
        sim.ask(Action::Rollout {
            service: service(),
            cancel: false
        })
        .is_ok()
    );
    while sim.ids(0, InstanceState::Active) == active {
        sim.flows_wanted = [40, 0];
        sim.step(Nanos::from_millis(1));
    }
    let made = *sim.ids(0, InstanceState::Active).last().expect("a replacement");
    let slot = sim.slot_of(made);
    sim.switch.close_port(slot);
    sim.steady(40, 0, 2);
    let ended = rollout(&sim);
    assert_eq!(ended.state, RolloutState::Aborted, "{ended:?}");
    assert_eq!(
        ended.reason,
        format!("replacement {made} failed: its data port went down")
    );
    assert_eq!(sim.ids(0, InstanceState::Active).len(), 3);
    assert!(sim.ids(0, InstanceState::Active).contains(&active[1]));
    // An operator may cancel a rollout, too.
    assert!(
        sim.ask(Action::Rollout {
            service: service(),
            cancel: false
        })
        .is_ok()
    );
    assert!(
        sim.ask(Action::Rollout {
            service: service(),
            cancel: true
        })
        .is_ok()
    );
    assert_eq!(rollout(&sim).state, RolloutState::Aborted);
    sim.shut_down(false);
}

#[test]
fn a_killed_instance_is_noticed_served_by_others_and_replaced() {
    let mut sim = quiet(8);
    sim.steady(60, 0, 15);
    let before = sim.ids(0, InstanceState::Active);
    let victim = before[0];
    let slot = sim.slot_of(victim);
    assert!(sim.pinned(slot) > 0);
    let pool = sim.ids(0, InstanceState::Standby)[0];
    sim.engine.kill(&format!("inco-firewall-{victim}"), 9);
    for _ in 0..3 {
        sim.flows_wanted = [60, 0];
        sim.step(Nanos::from_millis(1));
    }
    assert!(!sim.ids(0, InstanceState::Active).contains(&victim));
    assert!(
        sim.ids(0, InstanceState::Active).contains(&pool),
        "the standby stands in"
    );
    assert_eq!(sim.pinned(slot), 0);
    sim.steady(60, 0, 1);
    assert_eq!(sim.ids(0, InstanceState::Active).len(), before.len());
    assert_eq!(
        sim.ids(0, InstanceState::Standby).len(),
        1,
        "and the pool is full again, without any wait"
    );
}

#[test]
fn a_hung_instance_is_failed_after_the_stall_time() {
    let mut sim = quiet(9);
    sim.steady(60, 0, 12);
    let victim = sim.ids(0, InstanceState::Active)[0];
    let slot = sim.slot_of(victim);
    sim.hang(slot);
    let since = sim.now;
    while sim.ids(0, InstanceState::Active).contains(&victim) {
        sim.flows_wanted = [60, 0];
        sim.step(Nanos::from_millis(1));
        assert!(sim.now.since(since) <= Nanos::from_millis(120), "not noticed");
    }
    assert!(sim.seen.contains("stalled"));
}

#[test]
fn without_an_engine_steering_continues_and_scaling_waits_with_one_event() {
    let mut sim = quiet(10);
    sim.steady(20, 0, 2);
    let before = sim.ids(0, InstanceState::Active).len();
    sim.engine.set_down(true);
    let told = sim.last_sequence;
    let flows = sim.flows_served;
    let mut failures = 0;
    for _ in 0..30_000 {
        sim.flows_wanted = [120, 0];
        sim.step(Nanos::from_millis(1));
        let is_failure = |e: &&model::Event| matches!(e.kind, EventKind::Failure { .. });
        failures += sim.outputs.events.iter().filter(is_failure).count();
    }
    assert_eq!(failures, 1, "said once, in {} events", sim.last_sequence - told);
    assert!(sim.flows_served > flows + 1_000);
    assert_eq!(
        sim.ids(0, InstanceState::Active).len(),
        before + 1,
        "the standby needs no engine"
    );
    let wanted = sim.controller.services().next().map(|s| s.wanted);
    assert_eq!(wanted, Some(6));
    sim.engine.set_down(false);
    sim.steady(120, 0, 1);
    assert_eq!(
        sim.ids(0, InstanceState::Active).len(),
        6,
        "within a second of its return"
    );
    assert!(sim.seen.contains("engine up"));
}

#[test]
fn creates_that_fail_are_tried_again_less_and_less_often() {
    let faults = Faults {
        create_fails: 1.0,
        ..Faults::default()
    };
    let mut sim = Simulation::new(11, Probabilities::default(), faults);
    let mut creates_at: Vec<u64> = Vec::new();
    for _ in 0..130_000 {
        sim.flows_wanted = [0, 0];
        sim.step(Nanos::from_millis(1));
        for event in &sim.outputs.events {
            if let EventKind::State {
                to: InstanceState::Failed,
                ..
            } = event.kind
                && event.service.as_deref() == Some("firewall")
            {
                creates_at.push(event.at.as_millis() / 1_000);
            }
        }
    }
    creates_at.dedup();
    // 1, 2, 4, 8, 16, 32 and 60 seconds apart, plus the time of a create.
    let gaps: Vec<u64> = creates_at.windows(2).map(|w| w[1] - w[0]).collect();
    assert_eq!(gaps, [1, 2, 4, 8, 16, 32, 60], "{creates_at:?}");
    // The service reports the failures while they last.
    let failing = |sim: &Simulation| {
        let service = sim.controller.services().next().unwrap();
        service
            .failing
            .map(|of| (of.failures, of.last.to_owned(), of.next_try > sim.now))
    };
    let (failures, last, waits) = failing(&sim).unwrap();
    assert!(failures as usize >= creates_at.len() && waits, "{failures}");
    assert!(!last.is_empty());
    sim.engine.set_faults(Faults::default());
    sim.steady(0, 0, 5);
    assert!(sim.ids(0, InstanceState::Active).is_empty());
    // Settings that change end the pause: they may correct what failed.
    let command = Command::Reconfigure {
        service: ServiceId(0),
        settings: Box::new(sim.settings[0].clone()),
        autoscaler: false,
        scheduler: false,
    };
    assert!(sim.ask(command).is_ok());
    sim.steady(0, 0, 5);
    assert_eq!(sim.ids(0, InstanceState::Active).len(), 2);
    sim.steady(0, 0, 11);
    assert_eq!(failing(&sim), None);
    sim.shut_down(false);
}

#[test]
fn a_new_run_adopts_containers_with_their_ids_and_removes_unknown_ones() {
    let mut sim = quiet(12);
    sim.steady(60, 10, 3);
    let running: BTreeSet<String> = sim.engine.containers().into_iter().map(|c| c.name).collect();
    let active = sim.ids(0, InstanceState::Active);
    let highest = sim.controller.instances().iter().map(|i| i.id().0).max().unwrap();
    // A kill without a shutdown. Meanwhile one container exits, and foreign ones exist.
    let dead = format!("inco-firewall-{}", active[0]);
    let mut engine = sim.engine.clone();
    let now = sim.now;
    drop(sim);
    engine.kill(&dead, 9);
    let strange = |name: &str, service: &str, id: &str| {
        let mut spec = ContainerSpec::new(name, "inco/forward");
        spec.labels
            .insert(controller::LABEL_SERVICE.into(), service.into());
        spec.labels.insert(controller::LABEL_INSTANCE.into(), id.into());
        engine::Request::Create(Box::new(spec))
    };
    let taken = active[1].to_string();
    engine.submit(engine::Ticket(1_000_001), strange("inco-gone-1", "gone", "1"));
    engine.submit(
        engine::Ticket(1_000_002),
        strange("inco-firewall-copy", "firewall", &taken),
    );
    engine.submit(
        engine::Ticket(1_000_003),
        strange("inco-firewall-x", "firewall", "x"),
    );
    engine.submit(engine::Ticket(1_000_004), strange("inco-gone-500", "gone", "500"));
    engine.advance(now + Nanos::from_secs(1));
    Engine::poll(&mut engine, &mut Vec::new());

    let mut sim = Simulation::over(12, Probabilities::default(), engine, now + Nanos::from_secs(1));
    let adopted: BTreeSet<String> = sim
        .controller
        .instances()
        .iter()
        .map(|i| i.name().to_owned())
        .collect();
    let mut expected = running.clone();
    expected.remove(&dead);
    assert_eq!(adopted, expected, "the same ids, none doubled");
    sim.steady(60, 10, 2);
    let after: BTreeSet<String> = sim.engine.containers().into_iter().map(|c| c.name).collect();
    for name in [
        "inco-gone-1",
        "inco-firewall-copy",
        "inco-firewall-x",
        "inco-gone-500",
        dead.as_str(),
    ] {
        assert!(!after.contains(name), "{name} is still there");
    }
    for id in &active[1..] {
        assert!(sim.ids(0, InstanceState::Active).contains(id), "{id} works on");
    }
    assert!(highest < 500);
    sim.scale(0, 6);
    sim.steady(60, 10, 1);
    let new = sim
        .controller
        .instances()
        .iter()
        .filter(|i| !i.is_adopted())
        .map(|i| i.id().0);
    assert!(
        new.clone().count() > 0 && new.clone().all(|id| id > 500),
        "ids go on counting"
    );

    // The same after a stop that keeps the containers.
    let names: BTreeSet<String> = sim.engine.containers().into_iter().map(|c| c.name).collect();
    sim.shut_down(true);
    assert_eq!(
        sim.engine
            .containers()
            .into_iter()
            .map(|c| c.name)
            .collect::<BTreeSet<_>>(),
        names
    );
    let (engine, now) = (sim.engine.clone(), sim.now);
    drop(sim);
    let mut sim = Simulation::over(12, Probabilities::default(), engine, now);
    assert_eq!(sim.controller.instances().len(), names.len());
    sim.steady(60, 10, 1);
    sim.shut_down(false);
}

#[test]
fn external_ports_outlive_a_run_and_those_of_the_dead_are_nobodys() {
    let mut sim = quiet(31);
    sim.scale(1, 3);
    sim.steady(4, 10, 3);
    let owners = sim.owners.clone();
    assert!(owners.len() >= 3, "{owners:?}");
    let (dead, (lost, _)) = owners.iter().next().map(|(id, own)| (*id, *own)).expect("one");
    let mut engine = sim.engine.clone();
    let now = sim.now + Nanos::from_secs(1);
    drop(sim);
    engine.kill(&format!("inco-gateway-{}", dead.0), 9);
    engine.advance(now);
    Engine::poll(&mut engine, &mut Vec::new());
    // What an earlier run had reserved, and what the clock has ended.
    let reserved = |ports: &str, until: Nanos| ReservedBlock {
        owner: None,
        until_unix_ms: until.as_millis(),
        ports: ports.parse().expect("ports"),
        service: NAMES[1].to_owned(),
    };
    let kept = [
        reserved("203.0.113.200:1024-5055", now + LIFETIME + Nanos::from_secs(900)),
        reserved("203.0.113.201:1024-5055", now - Nanos(1)),
    ];
    let mut sim = Simulation::over(31, Probabilities::default(), engine, now);
    sim.controller.reserve_blocks(&kept, now);
    for instance in sim
        .controller
        .instances()
        .iter()
        .filter(|i| i.service() == ServiceId(1))
    {
        let ports = sim.controller.external_ports(instance);
        assert_eq!(ports, owners.get(&instance.id()).map(|(ports, _)| *ports));
    }
    sim.step(Nanos::from_millis(1));
    let told = sim.outputs.reserved.take().expect("reservations are told");
    let mut told: Vec<(String, u64)> = told
        .into_iter()
        .map(|of| (of.ports.to_string(), of.until_unix_ms))
        .collect();
    told.sort_unstable();
    let until = (now + LIFETIME).as_millis();
    let mut expected = vec![
        (lost.to_string(), until),
        ("203.0.113.200:1024-5055".to_owned(), until),
    ];
    expected.sort_unstable();
    assert_eq!(told, expected);
    sim.steady(4, 10, 2);
    assert!(sim.owners.values().all(|(ports, _)| *ports != lost));
    sim.shut_down(false);
}

#[test]
fn without_a_free_block_a_new_instance_waits_and_that_is_told_once() {
    let mut settings = services();
    // 16 blocks, and 14 that are reserved.
    settings[1].plan.external = Some(external("203.0.113.9/32"));
    let engine = FakeEngine::new(FakeConfig::default());
    let mut sim = Simulation::with(settings, 32, Probabilities::default(), engine, Nanos::ZERO);
    let reserved: Vec<ReservedBlock> = (0..14)
        .map(|block| ReservedBlock {
            owner: None,
            until_unix_ms: 15_000,
            ports: external("203.0.113.9/32").ports_of(block).expect("a block"),
            service: NAMES[1].to_owned(),
        })
        .collect();
    sim.controller.reserve_blocks(&reserved, Nanos::ZERO);
    let waits = |sim: &Simulation| {
        let is_it = |kind: &EventKind| matches!(kind, EventKind::Failure { what, .. } if what == "external");
        sim.told_events.iter().filter(|(_, kind)| is_it(kind)).count()
    };
    // One is active and two are on standby, by the limits.
    sim.run(1_000, Nanos::from_millis(10));
    assert_eq!((sim.owners.len(), waits(&sim)), (2, 1));
    sim.run(1_000, Nanos::from_millis(10));
    assert_eq!((sim.owners.len(), waits(&sim)), (3, 1));
    sim.shut_down(false);
}

/// A switch that completes each request by the next step.
fn at_once() -> FakeSwitch {
    FakeSwitch::new(switch::FakeConfig {
        delays: switch::Delays::NONE,
        ..switch::FakeConfig::default()
    })
}

#[test]
fn a_plan_that_the_switch_refuses_is_published_again_and_the_one_before_stays() {
    let mut sim = quiet(13);
    sim.steady(20, 0, 2);
    let before = sim.switch.acknowledged();
    let mut settings = services().remove(0);
    // The fake switch cannot move flows in order.
    settings.plan.relaxed = true;
    let command = |settings: &ServiceSettings| Command::Reconfigure {
        service: ServiceId(0),
        settings: Box::new(settings.clone()),
        autoscaler: false,
        scheduler: false,
    };
    assert!(sim.ask(command(&settings)).is_ok());
    let refused = |sim: &Simulation| {
        let is_it = |event: &&SwitchEvent| match event {
            SwitchEvent::PlanRefused { generation, reason } => {
                *generation == sim.published && reason.contains("move in order")
            }
            _ => false,
        };
        sim.told.iter().filter(is_it).count()
    };
    assert_eq!(refused(&sim), 1);
    let mut tries = Vec::new();
    for ms in 0..8_000 {
        sim.step(Nanos::from_millis(1));
        if refused(&sim) > 0 {
            tries.push(ms / 1_000);
        }
    }
    assert_eq!(sim.switch.acknowledged(), before, "it goes on by the plan before");
    assert_eq!(tries, [1, 3, 7], "1, 2 and 4 s apart");
    settings.plan.relaxed = false;
    assert!(sim.ask(command(&settings)).is_ok());
    sim.steady(20, 0, 1);
    assert_eq!(sim.switch.acknowledged(), sim.published);
    sim.shut_down(false);
}

#[test]
fn a_readiness_command_is_run_until_it_passes() {
    let mut service = services().remove(0);
    service.ready = Ready::Exec(vec!["/bin/check".into()]);
    (service.min, service.standby) = (1, 0);
    let mut collector = Collector::new();
    collector.add_service(Nanos::from_secs(1));
    let mut engine = FakeEngine::new(FakeConfig::default());
    let mut controller = Controller::new(Settings::default(), vec![service]);
    let mut out = Outputs::default();
    let mut asked = 0;
    let mut switch = at_once();
    let mut told = Vec::new();
    let mut reason = String::new();
    for ms in 1..600 {
        let now = Nanos::from_millis(ms);
        switch.advance(now, |_| true);
        switch.poll(now, &mut told);
        engine.advance(now);
        let mut events = Vec::new();
        Engine::poll(&mut engine, &mut events);
        let inputs = Inputs {
            engine: &events,
            switch: &told,
            acknowledged: switch.acknowledged(),
            ..Inputs::default()
        };
        controller.step(inputs, &mut collector, now, &mut out);
        told.clear();
        for (ticket, request) in out.engine.drain(..) {
            if let Request::Exec { name, command, limit } = &request {
                assert_eq!(
                    (name.as_str(), &command[..]),
                    ("inco-firewall-1", &["/bin/check".to_owned()][..])
                );
                asked += 1;
                // The third one passes.
                engine.set_exec_status(Some(if asked == 3 { 0 } else { 3 }));
                assert_eq!(*limit, controller::CHECK_LIMIT);
            }
            engine.submit(ticket, request);
        }
        for request in out.switch.drain(..) {
            switch.submit(request, &mut told);
        }
        if let Some(instance) = controller.instances().first()
            && instance.state() == InstanceState::Starting
            && instance.reason().contains("readiness")
        {
            instance.reason().clone_into(&mut reason);
        }
    }
    assert_eq!(asked, 3, "100 ms apart");
    assert_eq!(reason, "its readiness command exited with 3");
    assert_eq!(controller.instances()[0].state(), InstanceState::Active);
}

/// What is found missing is told once. The port may come up after that.
#[test]
fn what_a_program_lacks_is_shown_until_it_listens() {
    const MISSING: &str = "its program does not listen on port 80 yet";
    let mut services = services();
    services[0].ready = Ready::Listens;
    (services[0].min, services[0].standby) = (1, 0);
    let engine = FakeEngine::new(FakeConfig::default());
    let mut sim = Simulation::with(services, 37, Probabilities::default(), engine, Nanos::ZERO);
    sim.switch.delays().connect = Delay::always(Nanos::from_millis(50));
    let first = |sim: &Simulation| sim.controller.instances()[0].clone();
    while sim.controller.instances().is_empty() || first(&sim).port() != controller::Port::Attaching {
        sim.step(Nanos::from_millis(1));
    }
    let id = first(&sim).id().0;
    sim.report(id, ReportKind::Listens(Err(MISSING.to_owned())));
    assert_eq!(
        (first(&sim).port(), first(&sim).reason()),
        (controller::Port::Attaching, MISSING)
    );
    while first(&sim).port() != controller::Port::Up {
        sim.step(Nanos::from_millis(1));
    }
    assert_eq!(
        (first(&sim).state(), first(&sim).reason()),
        (InstanceState::Starting, MISSING)
    );
    sim.report(id, ReportKind::Listens(Ok(())));
    assert!(sim.ids(0, InstanceState::Active).contains(&id));
    sim.shut_down(false);
}

#[test]
fn counters_read_before_the_acknowledgement_do_not_end_a_drain() {
    let scaler = Autoscaler::from_name("fixed").expect("a policy");
    let mut service = ServiceSettings::new("sink", None, scaler);
    (service.min, service.max) = (1, 2);
    let mut collector = Collector::new();
    collector.add_service(Nanos::from_secs(1));
    let mut controller = Controller::new(Settings::default(), vec![service]);
    let mut raw = SwitchReading::new(1, 0, 1);
    let mut out = Outputs::default();
    let mut switch = at_once();
    let mut told = Vec::new();
    let scale = |count| scale("sink", Some(count));
    let mut draining_at = Vec::new();
    for ms in 1..100 {
        let now = Nanos::from_millis(ms);
        // Same order as the control loop: the turn's time, then counters, then generations.
        raw.at = now + Nanos::from_micros(100);
        collector.sample(&raw);
        let commands: &[_] = match ms {
            10 => &[(CommandId(1), scale(2).into())],
            30 => &[(CommandId(2), scale(1).into())],
            _ => &[],
        };
        switch.advance(now, |_| true);
        switch.poll(now, &mut told);
        if ms == 30 {
            switch.delays().load = Delay::always(Nanos::from_millis(20));
        }
        let inputs = Inputs {
            switch: &told,
            acknowledged: switch.acknowledged(),
            commands,
            ..Inputs::default()
        };
        controller.step(inputs, &mut collector, now, &mut out);
        told.clear();
        for request in out.switch.drain(..) {
            switch.submit(request, &mut told);
        }
        if controller
            .instances()
            .iter()
            .any(|i| i.state() == InstanceState::Draining)
        {
            draining_at.push(ms);
        }
    }
    // Acknowledged at 50 ms. The counters of that turn may be older than the acknowledgement; the next are newer.
    assert_eq!(draining_at, (30..=50).collect::<Vec<u64>>());
}

/// The count that the policy wants in a recorded case.
fn explained(case: &str) -> u64 {
    let answer = autoscaling::explain::explain(case).expect("a case of the log is an input");
    let answer = serde_json::to_value(answer).expect("an answer is JSON");
    let replicas = answer
        .get("replicas")
        .or_else(|| answer["steps"][0].get("replicas"));
    replicas
        .and_then(serde_json::Value::as_u64)
        .expect("it decides again")
}

/// The firewall with checks, agents and two instances, after a while with these many flows.
fn checked(seed: u64, flows: usize) -> Simulation {
    let mut services = services();
    services[0].autoscaler = Autoscaler::from_name("fixed").expect("a policy");
    services[0].health = Some(HealthCheck {
        probe: Probe::Tcp(80),
        every: Nanos::from_millis(100),
        timeout: Nanos::from_millis(50),
        fall: 3,
        rise: 2,
        panic: 0.5,
    });
    services[0].agent = Some(AgentCheck {
        port: 8080,
        every: Nanos::from_millis(100),
    });
    let engine = FakeEngine::new(FakeConfig {
        seed,
        ..FakeConfig::default()
    });
    let mut sim = Simulation::with(services, seed, Probabilities::default(), engine, Nanos::ZERO);
    sim.steady(flows, 0, 2);
    assert_eq!(sim.ids(0, InstanceState::Active).len(), 2);
    sim
}

impl Simulation {
    /// What is found out about an instance, and a step.
    fn report(&mut self, id: u32, kind: ReportKind) {
        let instance = InstanceId(id);
        self.reports.push(Report { instance, kind });
        self.step(Nanos::from_millis(1));
    }

    fn checks(&mut self, id: u32, count: u32, passes: bool) {
        for _ in 0..count {
            let verdict = if passes {
                Ok(())
            } else {
                Err("port 80 refuses the connection".to_owned())
            };
            self.report(id, ReportKind::Check(verdict));
        }
    }

    fn agent(&mut self, id: u32, state: Option<AgentState>, mode: Option<AgentState>, percent: Option<u32>) {
        self.report(id, ReportKind::Agent(Ok(AgentReport { state, mode, percent })));
    }

    /// The row of an instance in the newest plan.
    fn row(&self, id: u32) -> SlotPlan {
        let plan = self
            .switch
            .plans()
            .max_by_key(|plan| plan.generation)
            .expect("a plan");
        let row = plan.instances().find(|(_, row)| row.instance == InstanceId(id));
        *row.expect("it is in the plan").1
    }

    /// What was told of an instance's health last: whether it takes flows, its weight, and why.
    fn told_of(&self, id: u32) -> Option<(bool, u32, String)> {
        let of = |(instance, kind): &(Option<InstanceId>, EventKind)| match kind {
            EventKind::Health {
                takes,
                weight,
                reason,
            } if *instance == Some(InstanceId(id)) => Some((*takes, *weight, reason.clone())),
            _ => None,
        };
        self.told_events.iter().rev().find_map(of)
    }
}

#[test]
fn one_that_fails_its_checks_keeps_its_flows_and_gets_no_new_ones() {
    let mut sim = checked(31, 0);
    let victim = sim.ids(0, InstanceState::Active)[0];
    let slot = sim.slot_of(victim);
    sim.pin_flows(slot, 3);
    sim.checks(victim, 2, false);
    sim.checks(victim, 1, true);
    sim.checks(victim, 2, false);
    assert_eq!(sim.told_of(victim), None, "three in a row are needed");
    assert_eq!(sim.row(victim).state, InstanceState::Active);
    sim.checks(victim, 1, false);
    let why = "3 checks in a row did not pass: port 80 refuses the connection".to_owned();
    assert_eq!(sim.told_of(victim), Some((false, 100, why)));
    sim.run(50, Nanos::from_millis(1));
    assert_eq!(sim.row(victim).state, InstanceState::Draining);
    // It stays, and the standby has taken its place.
    let active = sim.ids(0, InstanceState::Active);
    assert!(active.len() == 3 && active.contains(&victim), "{active:?}");
    sim.flows_wanted = [200, 0];
    sim.run(50, Nanos::from_millis(1));
    assert!(sim.flows.len() > 150);
    assert_eq!(sim.pinned(slot), 3, "its own flows, and no other");
    let counted = sim.controller.services().next().map(|of| of.checks);
    let expected = controller::Checks {
        all: 6,
        failed: 5,
        silent_agents: 0,
    };
    assert_eq!(counted, Some(expected));
    sim.flows_wanted = [0, 0];
    sim.run(1_000, Nanos::from_millis(1));
    sim.checks(victim, 1, true);
    assert_eq!(sim.row(victim).state, InstanceState::Draining);
    let back = sim.now;
    sim.checks(victim, 1, true);
    assert_eq!(sim.told_of(victim).map(|told| told.0), Some(true));
    sim.run(10, Nanos::from_millis(1));
    let row = sim.row(victim);
    assert_eq!(row.state, InstanceState::Active);
    assert!(row.active_since >= back, "it begins with a small share again");
    // One is too many now: not the one with flows.
    assert_eq!(sim.ids(0, InstanceState::Active).len(), 2);
    assert!(sim.ids(0, InstanceState::Active).contains(&victim));
    assert_eq!(sim.pinned(slot), 3);
}

#[test]
fn below_the_share_of_healthy_ones_all_are_used_and_none_is_removed() {
    let mut sim = checked(32, 4);
    let both = sim.ids(0, InstanceState::Active);
    for id in &both {
        sim.checks(*id, 3, false);
    }
    sim.run(5, Nanos::from_millis(1));
    // One more has come; of three, one passes: less than half.
    sim.run(2_000, Nanos::from_millis(1));
    for id in &both {
        assert_eq!(sim.row(*id).state, InstanceState::Active);
    }
    let panics = |sim: &Simulation| {
        let of = |(_, kind): &(Option<InstanceId>, EventKind)| match kind {
            EventKind::Failure { what, reason } if what == "health" => Some(reason.clone()),
            EventKind::Recovered { what, .. } if what == "health" => Some("over".to_owned()),
            _ => None,
        };
        sim.told_events.iter().filter_map(of).collect::<Vec<_>>()
    };
    let said = panics(&sim);
    assert!(
        said.len() == 1 && said[0].ends_with("less than 50 %: all of them are used"),
        "{said:?}"
    );
    // Nothing is replaced while the check is likely wrong, however long that lasts.
    sim.run(5_000, Nanos::from_millis(1));
    let active = sim.ids(0, InstanceState::Active);
    assert!(both.iter().all(|id| active.contains(id)), "{active:?}");
    assert!(active.len() <= 3, "{active:?}");
    sim.checks(both[0], 2, true);
    sim.run(5, Nanos::from_millis(1));
    assert_eq!(panics(&sim).last().map(String::as_str), Some("over"));
    assert_eq!(sim.row(both[1]).state, InstanceState::Draining);
}

#[test]
fn a_check_that_there_is_no_more_has_no_effect() {
    let mut sim = checked(36, 0);
    let victim = sim.ids(0, InstanceState::Active)[0];
    sim.checks(victim, 3, false);
    assert_eq!(sim.told_of(victim).map(|told| told.0), Some(false));
    let mut settings = sim.settings[0].clone();
    settings.health = None;
    let command = Command::Reconfigure {
        service: ServiceId(0),
        settings: Box::new(settings),
        autoscaler: false,
        scheduler: false,
    };
    assert!(sim.ask(command).is_ok());
    sim.run(10, Nanos::from_millis(1));
    assert_eq!(
        sim.told_of(victim),
        Some((true, 100, "it is not checked any more".to_owned()))
    );
    assert_eq!(sim.row(victim).state, InstanceState::Active);
}

#[test]
fn one_that_goes_on_failing_is_removed() {
    let mut sim = checked(33, 0);
    let victim = sim.ids(0, InstanceState::Active)[0];
    sim.checks(victim, 3, false);
    // As long as a drain may take.
    sim.run(2_900, Nanos::from_millis(1));
    assert!(sim.ids(0, InstanceState::Active).contains(&victim));
    sim.run(200, Nanos::from_millis(1));
    assert!(!sim.ids(0, InstanceState::Active).contains(&victim));
    assert!(sim.seen.contains("active→failed"), "{:?}", sim.seen);
    sim.steady(0, 0, 1);
    assert_eq!(sim.ids(0, InstanceState::Active).len(), 2);
}

#[test]
fn an_agent_sets_weight_and_state_for_a_while() {
    let mut sim = checked(34, 0);
    let id = sim.ids(0, InstanceState::Active)[0];
    let settle = |sim: &mut Simulation| sim.run(10, Nanos::from_millis(1));
    sim.agent(id, None, None, Some(75));
    settle(&mut sim);
    assert_eq!(
        (sim.row(id).state, sim.row(id).weight),
        (InstanceState::Active, 192)
    );
    for mode in [AgentState::Drain, AgentState::Maintenance] {
        sim.agent(id, None, Some(mode), None);
        settle(&mut sim);
        assert_eq!(sim.row(id).state, InstanceState::Draining, "{mode:?}");
        sim.agent(id, None, Some(AgentState::Ready), None);
        settle(&mut sim);
        assert_eq!(sim.row(id).state, InstanceState::Active, "{mode:?}");
    }
    sim.agent(id, Some(AgentState::Down), None, None);
    settle(&mut sim);
    assert_eq!(sim.row(id).state, InstanceState::Draining);
    // An agent that cannot be asked says nothing new; after three times its interval, the old has no effect.
    sim.report(
        id,
        ReportKind::Agent(Err("port 8080 refuses the connection".to_owned())),
    );
    sim.run(250, Nanos::from_millis(1));
    assert_eq!(sim.row(id).state, InstanceState::Draining);
    sim.run(50, Nanos::from_millis(1));
    assert_eq!(
        (sim.row(id).state, sim.row(id).weight),
        (InstanceState::Active, 256)
    );
    assert_eq!(
        sim.told_of(id),
        Some((true, 100, "its agent has said nothing more".to_owned()))
    );
}

/// Draining instances go on where no other takes flows; else they take none, and end after their last flow.
#[test]
fn where_only_draining_instances_are_left_they_serve() {
    let mut services = services();
    (services[0].min, services[0].max, services[0].standby) = (1, 1, 0);
    let engine = FakeEngine::new(FakeConfig::default());
    let mut sim = Simulation::with(services, 35, Probabilities::default(), engine, Nanos::ZERO);
    sim.steady(0, 0, 1);
    let old = sim.ids(0, InstanceState::Active)[0];
    let slot = sim.slot_of(old);
    sim.pin_flows(slot, 1);
    sim.step(Nanos::from_millis(1));
    // What comes in its place does not connect, for longer than a drain may take.
    sim.probabilities.port_never_connects = 1.0;
    let drain = Action::Drain {
        instance: InstanceId(old),
    };
    assert!(sim.ask(drain).is_ok());
    for _ in 0..8 {
        sim.run(500, Nanos::from_millis(1));
        assert_eq!(sim.ids(0, InstanceState::Draining), [old]);
        assert_eq!(sim.row(old).state, InstanceState::Active, "it takes new flows");
    }
    let (served, pinned) = (sim.flows_served, sim.pinned(slot));
    sim.flows_wanted = [20, 0];
    sim.run(20, Nanos::from_millis(1));
    assert!(
        sim.flows_served > served && sim.pinned(slot) > pinned,
        "it does take some"
    );
    assert!(!sim.seen.contains("drain deadline"));
    // Another one is there at last: from then on, the drain has its whole time.
    sim.probabilities.port_never_connects = 0.0;
    sim.flows_wanted = [0, 0];
    while sim.ids(0, InstanceState::Active).is_empty() {
        sim.run(10, Nanos::from_millis(1));
    }
    sim.run(10, Nanos::from_millis(1));
    assert_eq!(sim.row(old).state, InstanceState::Draining);
    sim.run(1_500, Nanos::from_millis(1));
    assert_eq!(
        sim.pinned(slot),
        1,
        "only the long one is left, and it is not cut"
    );
    assert_eq!(sim.ids(0, InstanceState::Draining), [old]);
    let left: Vec<FlowKey> = sim
        .switch
        .pins()
        .filter(|(_, at)| *at == slot)
        .map(|(key, _)| key)
        .collect();
    for key in left {
        sim.flows.remove(&key);
        sim.switch.end(&key);
    }
    sim.run(20, Nanos::from_millis(1));
    assert_eq!(sim.ids(0, InstanceState::Draining), Vec::<u32>::new());
    assert!(!sim.seen.contains("drain deadline"));
    sim.shut_down(false);
}
