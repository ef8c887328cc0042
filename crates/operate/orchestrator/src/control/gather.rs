//! Gather: once a turn, reads the switch's counters, the functions' pages and the containers' cgroups, and keeps the
//! values for the other parts.

use std::collections::HashMap;
use std::path::Path;

use clock::{monotonic, thread_cpu};
use collector::Collector;
use configuration::Configuration;
use controller::Controller;
use model::{Event, EventKind, Nanos, ServiceId, Slot};
use switch::{SlotCounters, Switch, SwitchEvent, SwitchReading};

use super::functions::{FunctionEvent, FunctionPages};
use super::journal::new_event;
use super::stays::Stays;
use super::uplink_events::UplinkEvents;
use super::usage::{Usages, Watched};
use super::watts::Meter;
use super::{ControlLoop, wiring};

/// Span of a worker's longest gap; a report covers one to two spans. It shows the present, not the start a week ago.
const GAP_SPAN: Nanos = Nanos::from_secs(2);

/// In one of so many turns it is measured what observing costs: the clock of a thread's CPU time is a system call, four of
/// which would be a part of that. No period of what is read is a multiple of it.
const MEASURED_OF: u64 = 7;

/// The state of this part.
pub(super) struct Gather {
    pub(super) collector: Collector,
    pub(super) reading: SwitchReading,
    pub(super) baselines: Baselines,
    stays: Stays,
    pub(super) gaps: Gaps,
    pub(super) uplinks: Vec<UplinkState>,
    pub(super) pages: FunctionPages,
    usages: Usages,
    pub(super) meter: Meter,
    /// CPU time that observing took: counters, pages, control groups, the meter. Of the turns that were measured, and as
    /// much for each of the others.
    pub(super) observing_cpu: Nanos,
    turns: u64,
    /// The switch's packet count when it last changed, and the time of that change.
    moved: (u64, Nanos),
}

impl Gather {
    /// The state before the first measurement.
    pub(super) fn new(configuration: &Configuration, now: Nanos) -> Gather {
        let workers = configuration.switch.worker_count();
        let mut collector = Collector::new();
        for service in &configuration.services {
            collector.add_service(service.autoscaler.stable_window());
        }
        Gather {
            collector,
            reading: SwitchReading::new(configuration.services.len(), configuration.uplinks.len(), workers),
            baselines: Baselines::default(),
            stays: Stays::default(),
            gaps: Gaps::new(workers, now),
            uplinks: configuration.uplinks.iter().map(UplinkState::of).collect(),
            pages: FunctionPages::default(),
            usages: Usages::default(),
            observing_cpu: Nanos::ZERO,
            turns: 0,
            meter: Meter::find(Path::new("/sys"), Path::new("/proc")),
            moved: (0, now),
        }
    }

    /// Reads all counters and passes them to the collector.
    fn sample(&mut self, switch: &mut dyn Switch, now: Nanos) {
        self.turns += 1;
        let (began, cpu) = (monotonic(), self.measure());
        switch.read(&mut self.reading);
        self.pages.read(&mut self.reading.slots, now);
        self.collector.sample(&self.reading);
        self.collector.record_cost(monotonic().since(began).0);
        self.measured(cpu);
    }

    /// Begins to measure what observing costs, in the turns in which it is measured.
    fn measure(&self) -> Option<Nanos> {
        self.turns.is_multiple_of(MEASURED_OF).then(thread_cpu)
    }

    /// Ends that.
    fn measured(&mut self, began: Option<Nanos>) {
        if let Some(began) = began {
            let took = thread_cpu().since(began);
            self.observing_cpu = self.observing_cpu + Nanos(took.0 * MEASURED_OF);
        }
    }

    /// Updates slots and uplinks from an event of the switch.
    fn note(&mut self, event: &SwitchEvent) {
        match event {
            SwitchEvent::Detached { slot, .. } => {
                self.usages.forget(*slot);
                if let Some(counters) = self.reading.slots.get_mut(slot.index()) {
                    counters.container_memory_bytes = None;
                }
            }
            SwitchEvent::UplinkUp { uplink, peer } => {
                if let Some(state) = self.uplinks.get_mut(uplink.index()) {
                    state.change(true, peer);
                }
            }
            SwitchEvent::UplinkDown { uplink, reason } => {
                if let Some(state) = self.uplinks.get_mut(uplink.index()) {
                    state.change(false, reason);
                }
            }
            _ => {}
        }
    }

    /// How long no packet has come, as of the last reading.
    pub(super) fn quiet_for(&mut self, now: Nanos) -> Nanos {
        let moved = self.packets_moved();
        if moved != self.moved.0 {
            self.moved = (moved, now);
        }
        now.since(self.moved.1)
    }

    /// Whether a packet has come since [`Gather::quiet_for`] was called.
    pub(super) fn has_moved(&self) -> bool {
        self.packets_moved() != self.moved.0
    }

    /// A number that changes with each packet. Slots without an instance originate none, and are many.
    fn packets_moved(&self) -> u64 {
        let slots = self.collector.assigned().iter();
        let originated = slots.filter_map(|slot| Some(self.reading.slots.get(slot.index())?.originated));
        self.reading.offered() + originated.sum::<u64>()
    }

    /// The increase of a slot's counters since its present instance got it.
    pub(super) fn since_baseline(&self, slot: Slot) -> SlotCounters {
        self.baselines.grown(slot, &self.reading)
    }

    /// CPU time that a slot's instance uses, as a share of its quota, or of one CPU without a quota.
    pub(super) fn cpu_share(&self, slot: Slot, quota: Option<f64>) -> Option<f64> {
        let used = self.usages.cpus(slot)?;
        Some(used / quota.filter(|cpus| *cpus > 0.0).unwrap_or(1.0))
    }

    /// CPUs that a slot's instance uses.
    pub(super) fn cpus(&self, slot: Slot) -> Option<f64> {
        self.usages.cpus(slot)
    }

    /// CPU time that a slot's instance has used, in seconds.
    pub(super) fn cpu_time(&self, slot: Slot) -> Option<f64> {
        self.usages.cpu_time(slot)
    }

    /// Reads the control groups that are due, and adds what they say to the reading.
    fn read_usage(&mut self, controller: &Controller, engine: &dyn engine::Engine, now: Nanos) {
        let instances = controller.instances();
        let watched = |at: usize| {
            let of = instances.get(at)?;
            let has_container = of.is_in_plan() && of.container() != controller::Container::Absent;
            has_container.then(|| Watched {
                slot: of.slot(),
                name: of.name(),
                pid: of.pid(),
            })
        };
        let usage = |name: &str| engine.usage(name).ok();
        let slots = &mut self.reading.slots;
        self.usages.look((instances.len(), watched), slots, usage, now);
    }
}

/// Each slot's counters at the time its present instance got it. Slots are reused and their counters continue.
#[derive(Default)]
pub(super) struct Baselines {
    /// The service of each slot, and the slot's counters at the assignment.
    of_slots: HashMap<Slot, (ServiceId, SlotCounters)>,
    /// Totals by service of instances that have lost their slots.
    retired: HashMap<ServiceId, SlotCounters>,
}

impl Baselines {
    /// Assigns the slot to a new instance.
    fn begin(&mut self, slot: Slot, service: ServiceId, reading: &SwitchReading) {
        let now = of_slot(reading, slot);
        if let Some((owner, before)) = self.of_slots.insert(slot, (service, now)) {
            // The counters have not changed since the previous instance was removed.
            let retired = self.retired.entry(owner).or_default();
            retired.add(&now.grown_since(&before));
        }
    }

    fn grown(&self, slot: Slot, reading: &SwitchReading) -> SlotCounters {
        let before = self.of_slots.get(&slot).map(|(_, before)| *before);
        of_slot(reading, slot).grown_since(&before.unwrap_or_default())
    }

    /// Totals of all instances that a service has had.
    pub(super) fn of_service(&self, service: ServiceId, reading: &SwitchReading) -> SlotCounters {
        let mut sum = self.retired.get(&service).copied().unwrap_or_default();
        for slot in self.of_slots.iter().filter(|(_, (owner, _))| *owner == service) {
            sum.add(&self.grown(*slot.0, reading));
        }
        sum
    }
}

fn of_slot(reading: &SwitchReading, slot: Slot) -> SlotCounters {
    reading.slots.get(slot.index()).copied().unwrap_or_default()
}

/// Each worker's longest gap between two turns without a sleep.
pub(super) struct Gaps {
    /// By worker: in the previous span and in the present one.
    longest: Vec<[Nanos; 2]>,
    since: Nanos,
}

impl Gaps {
    fn new(workers: usize, now: Nanos) -> Gaps {
        Gaps {
            longest: vec![[Nanos::ZERO; 2]; workers],
            since: now,
        }
    }

    /// Whether the present span has ended.
    pub(super) fn is_over(&self, now: Nanos) -> bool {
        now.since(self.since) >= GAP_SPAN
    }

    /// Records the longest gaps since the last call and drops those before the previous span.
    fn note(&mut self, gaps: Vec<Nanos>, now: Nanos) {
        let is_over = self.is_over(now);
        for ([before, longest], gap) in self.longest.iter_mut().zip(gaps) {
            *longest = (*longest).max(gap);
            if is_over {
                *before = std::mem::take(longest);
            }
        }
        if is_over {
            self.since = now;
        }
    }

    /// The longest gap of a worker in the last two to four seconds.
    pub(super) fn longest(&self, worker: usize) -> Nanos {
        let gaps = self.longest.get(worker).copied().unwrap_or_default();
        gaps.into_iter().max().unwrap_or_default()
    }
}

/// Whether an uplink has a peer, and its changes that are not yet events.
pub(super) struct UplinkState {
    pub(super) is_up: bool,
    events: UplinkEvents,
}

impl UplinkState {
    fn of(uplink: &configuration::Uplink) -> UplinkState {
        UplinkState {
            // A device is up once it is opened, a memif uplink once a peer connects.
            is_up: uplink.device.socket().is_none(),
            events: UplinkEvents::default(),
        }
    }

    fn change(&mut self, is_up: bool, what: &str) {
        self.is_up = is_up;
        self.events.change(is_up, what);
    }
}

impl ControlLoop {
    /// Processes the events of the switch and reads all counters.
    pub(super) fn gather(&mut self, now: Nanos) {
        let mut events = std::mem::take(&mut self.decide.switch_events);
        self.publish.switch.poll(now, &mut events);
        for event in &events {
            self.gather.note(event);
            self.report(event, now);
            self.take_found(event);
            match event {
                SwitchEvent::Signal { slot, frame } => self.take_signal(*slot, frame, now),
                SwitchEvent::Detached { slot, .. } => {
                    let slots = &mut self.gather.reading.slots;
                    let ended = self.gather.pages.remove(*slot, slots);
                    self.report_functions(ended);
                    self.close_gate(*slot);
                }
                _ => {}
            }
        }
        self.decide.switch_events = events;
        self.gather.sample(self.publish.switch.as_mut(), now);
        let cpu = self.gather.measure();
        let reloads = self.gather.pages.reloads(now);
        self.gather.measured(cpu);
        self.report_functions(reloads);
        self.report_uplinks(now);
        self.report_stays(now);
    }

    /// Adds events of instances whose flows were to move with their state, and stay.
    fn report_stays(&mut self, now: Nanos) {
        let controller = self.decide.shell.controller();
        for instance in controller.instances() {
            let Some(counters) = self.gather.reading.slots.get(instance.slot().index()) else {
                continue;
            };
            if let Some(kind) = self.gather.stays.due(instance.slot(), counters, now) {
                let service = self.configuration.services.get(instance.service().index());
                self.journal.push(Event {
                    instance: Some(instance.id()),
                    ..new_event(service.map(|of| of.name.clone()), kind)
                });
            }
        }
    }

    /// Adds events of functions to the journal.
    fn report_functions(&mut self, events: Vec<FunctionEvent>) {
        for (service, instance, kind) in events {
            self.journal.push(Event {
                instance: Some(instance),
                ..new_event(Some(service), kind)
            });
        }
    }

    /// Adds events of the switch to the journal.
    fn report(&mut self, event: &SwitchEvent, now: Nanos) {
        match event {
            SwitchEvent::UplinkUp { .. } | SwitchEvent::UplinkDown { .. } => self.report_uplinks(now),
            SwitchEvent::PortDown { slot, reason } => tracing::warn!(%slot, reason, "a port went down"),
            SwitchEvent::Trouble { what, reason } => {
                tracing::warn!(what, reason, "the switch reports a fault");
                self.journal.add(EventKind::Failure {
                    what: what.clone(),
                    reason: reason.clone(),
                });
            }
            SwitchEvent::Recovered { what, after } => self.journal.add(EventKind::Recovered {
                what: what.clone(),
                after_ms: after.as_millis(),
            }),
            _ => {}
        }
    }

    /// Adds the due changes of uplinks to the journal.
    fn report_uplinks(&mut self, now: Nanos) {
        for (state, uplink) in self.gather.uplinks.iter_mut().zip(&self.configuration.uplinks) {
            if let Some((up, detail)) = state.events.due(now) {
                let uplink = uplink.name.clone();
                self.journal.add(EventKind::Uplink { uplink, up, detail });
            }
        }
    }

    /// Records the workers' longest gaps.
    pub(super) fn note_gaps(&mut self, now: Nanos) {
        let gaps = self.publish.switch.take_longest_gaps();
        self.gather.gaps.note(gaps, now);
    }

    /// The slot has a new instance: its counters restart, and its function may publish a page.
    pub(super) fn note_new_instance(&mut self, slot: Slot, service: ServiceId, now: Nanos) {
        self.gather.baselines.begin(slot, service, &self.gather.reading);
        if let Some(counters) = self.gather.reading.slots.get(slot.index()) {
            self.gather.stays.begin(slot, counters);
        }
        let shell = &self.decide.shell;
        let of = self.configuration.services.get(service.index());
        if of.is_some_and(configuration::Service::has_containers) {
            let is_here = |i: &&controller::Instance| {
                shell.controller().is_here(i.place())
                    && (shell.engine().is_local() || !self.configuration.places.is_empty())
            };
            let mut instances = shell.controller().instances().iter();
            if let Some(instance) = instances.find(|i| i.slot() == slot).filter(is_here) {
                let socket = instance.socket_dir().join(wiring::PAGE_SOCKET);
                let whose = (of.map(|of| of.name.clone()).unwrap_or_default(), instance.id());
                self.gather.pages.add(slot, whose, &socket, now);
            }
        }
    }

    /// Reads the control groups that are due. These are files, and packets do not wait for them.
    pub(super) fn gather_usage(&mut self, now: Nanos) {
        let shell = &self.decide.shell;
        let cpu = self.gather.measure();
        self.gather.read_usage(shell.controller(), shell.engine(), now);
        self.gather.meter.read(now);
        self.gather.measured(cpu);
    }
}
