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
use super::watts::Meter;
use super::{ControlLoop, wiring};

/// Interval of reading an instance's cgroup while packets wait in its ring and it takes none: short enough to tell a
/// throttled function from one that hangs.
const USAGE_PERIOD_WAITING: Nanos = Nanos::from_millis(20);
/// The same, while it takes packets from its ring. Throttled time is then as the kernel reports it.
const USAGE_PERIOD: Nanos = Nanos::from_millis(200);
/// The same, while its ring is empty.
const USAGE_PERIOD_IDLE: Nanos = Nanos::from_secs(1);
/// From how long on an instance that takes no packets is observed closely. Others had its CPU for so long, often.
const WAIT: Nanos = Nanos::from_millis(10);
/// For how long a program is excused that waits for a disk: its code may have to be read again. Then it hangs there.
const DISK_LIMIT: Nanos = Nanos::from_secs(1);
/// Averaging span of an instance's CPU time: many quota periods.
const CPU_SPAN: Nanos = Nanos::from_secs(1);
/// Span of a worker's longest gap; a report covers one to two spans. It shows the present, not the start a week ago.
const GAP_SPAN: Nanos = Nanos::from_secs(2);

/// The state of this part.
pub(super) struct Gather {
    pub(super) collector: Collector,
    pub(super) reading: SwitchReading,
    pub(super) baselines: Baselines,
    stays: Stays,
    pub(super) gaps: Gaps,
    pub(super) uplinks: Vec<UplinkState>,
    pub(super) pages: FunctionPages,
    usage: HashMap<Slot, UsageNote>,
    pub(super) meter: Meter,
    /// CPU time that observing took: counters, pages, control groups, the meter.
    pub(super) observing_cpu: Nanos,
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
            usage: HashMap::new(),
            observing_cpu: Nanos::ZERO,
            meter: Meter::find(Path::new("/sys"), Path::new("/proc")),
            moved: (0, now),
        }
    }

    /// Reads all counters and passes them to the collector.
    fn sample(&mut self, switch: &mut dyn Switch, now: Nanos) {
        let (began, cpu) = (monotonic(), thread_cpu());
        switch.read(&mut self.reading);
        self.pages.read(&mut self.reading.slots, now);
        self.collector.sample(&self.reading);
        self.collector.record_cost(monotonic().since(began).0);
        self.observing_cpu = self.observing_cpu + thread_cpu().since(cpu);
    }

    /// Updates slots and uplinks from an event of the switch.
    fn note(&mut self, event: &SwitchEvent) {
        match event {
            SwitchEvent::Detached { slot, .. } => {
                self.usage.remove(slot);
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

    fn packets_moved(&self) -> u64 {
        self.reading.offered() + self.reading.originated()
    }

    /// The increase of a slot's counters since its present instance got it.
    pub(super) fn since_baseline(&self, slot: Slot) -> SlotCounters {
        self.baselines.grown(slot, &self.reading)
    }

    /// CPU time that a slot's instance uses, as a share of its quota, or of one CPU without a quota.
    pub(super) fn cpu_share(&self, slot: Slot, quota: Option<f64>) -> Option<f64> {
        let used = self.usage.get(&slot)?.cpus?;
        Some(used / quota.filter(|cpus| *cpus > 0.0).unwrap_or(1.0))
    }

    /// CPUs that a slot's instance uses.
    pub(super) fn cpus(&self, slot: Slot) -> Option<f64> {
        self.usage.get(&slot)?.cpus
    }

    /// CPU time that a slot's instance has used, in seconds.
    pub(super) fn cpu_time(&self, slot: Slot) -> Option<f64> {
        self.usage.get(&slot).map(|note| note.cpu_ns as f64 / 1e9)
    }

    /// Reads the cgroups that are due, and adds each instance's memory and its throttled and waiting time to the reading.
    fn read_usage(&mut self, controller: &Controller, engine: &dyn engine::Engine, now: Nanos) {
        for instance in controller.instances() {
            let slot = instance.slot();
            let Some(counters) = self.reading.slots.get_mut(slot.index()) else {
                continue;
            };
            if !instance.is_in_plan() || instance.container() == controller::Container::Absent {
                continue;
            }
            let note = self.usage.entry(slot).or_default();
            if now.since(note.read_at) >= note.period(counters, now) {
                match engine.usage(instance.name()) {
                    Ok(usage) => note.note(
                        &usage,
                        || instance.pid().map(Threads::of).unwrap_or_default(),
                        now,
                    ),
                    Err(_) => note.read_at = now,
                }
            }
            counters.throttled_ns = note.held_up_ns;
            counters.container_memory_bytes = note.memory_bytes;
        }
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

/// The usage of an instance's cgroup, as the engine reports it.
#[derive(Clone, Copy, Debug, Default)]
struct UsageNote {
    read_at: Nanos,
    /// What the instance had taken from its ring at the last look, and since when packets wait there untouched.
    consumed: u64,
    waits_since: Option<Nanos>,
    memory_bytes: Option<u64>,
    /// Nanoseconds in which it could not run: throttled, or waiting for a busy CPU.
    held_up_ns: u64,
    /// The part of that from the present wait, of which the kernel has not told yet.
    held_up_so_far_ns: u64,
    /// For how long its threads had waited for a CPU, while packets wait untouched.
    run_delay_ns: Option<u64>,
    throttled_ns: u64,
    cpu_ns: u64,
    /// CPUs used, averaged over the last [`CPU_SPAN`].
    cpus: Option<f64>,
    /// Start of the present span, and the CPU time used until then.
    cpu_since: Option<(Nanos, u64)>,
}

impl UsageNote {
    /// After which time the cgroup is due again.
    fn period(&mut self, counters: &SlotCounters, now: Nanos) -> Nanos {
        let takes = std::mem::replace(&mut self.consumed, counters.consumed) != counters.consumed;
        if counters.ring_used == 0 {
            self.waits_since = None;
            return USAGE_PERIOD_IDLE;
        }
        if takes {
            self.waits_since = None;
        }
        match now.since(*self.waits_since.get_or_insert(now)) >= WAIT {
            true => USAGE_PERIOD_WAITING,
            false => USAGE_PERIOD,
        }
    }

    /// Processes a new report of the engine. `threads` tells what the threads of the program wait for; it is asked only
    /// while packets wait untouched.
    fn note(&mut self, usage: &engine::Usage, threads: impl FnOnce() -> Threads, now: Nanos) {
        // Before, it may have had nothing to do.
        let passed = now.since(self.read_at.max(self.waits_since.unwrap_or(now))).0;
        let threads = (passed > 0).then(threads);
        let throttled = usage.throttled_ns.saturating_sub(self.throttled_ns);
        let before = std::mem::replace(&mut self.run_delay_ns, threads.as_ref().map(|of| of.run_delay_ns));
        let delayed = match (before, self.run_delay_ns) {
            (Some(before), Some(now)) => now.saturating_sub(before),
            _ => 0,
        };
        let state = threads.map_or(ThreadState::Sleeps, |of| of.state);
        let cannot_run = usage.cpu_ns == self.cpu_ns && state != ThreadState::Sleeps;
        if cannot_run {
            let excused = match state {
                ThreadState::WantsDisk => passed.min(DISK_LIMIT.0.saturating_sub(self.held_up_so_far_ns)),
                _ => passed,
            };
            self.held_up_ns += excused;
            self.held_up_so_far_ns += excused;
        } else {
            // The kernel tells of throttling and of a wait for a CPU when they end. Most was already counted.
            let told = throttled + delayed.min(passed + self.held_up_so_far_ns);
            self.held_up_ns += told.saturating_sub(self.held_up_so_far_ns);
            self.held_up_so_far_ns = 0;
        }
        self.read_at = now;
        self.throttled_ns = usage.throttled_ns;
        self.cpu_ns = usage.cpu_ns;
        let (since, before) = *self.cpu_since.get_or_insert((now, usage.cpu_ns));
        let span = now.since(since);
        if span >= CPU_SPAN {
            self.cpus = Some(usage.cpu_ns.saturating_sub(before) as f64 / span.0 as f64);
            self.cpu_since = Some((now, usage.cpu_ns));
        }
        self.memory_bytes = (usage.memory_bytes > 0).then_some(usage.memory_bytes);
    }
}

/// What keeps a program from running, at this moment: that of its threads which is nearest to running.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum ThreadState {
    /// All sleep: they want nothing.
    #[default]
    Sleeps,
    /// One waits for a disk, or for its memory.
    WantsDisk,
    /// One runs, or waits for a CPU.
    WantsCpu,
}

/// What the threads of a program wait for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Threads {
    state: ThreadState,
    /// For how long they have waited for a CPU since they began, together. What goes on is not in it.
    run_delay_ns: u64,
}

impl Threads {
    /// Those of a process; none if there is no such process.
    fn of(pid: u32) -> Threads {
        let mut threads = Threads::default();
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task"));
        for task in tasks.into_iter().flatten().flatten() {
            let read = |file| std::fs::read_to_string(task.path().join(file)).unwrap_or_default();
            let stat = read("stat");
            // The state follows the name, which may contain any character.
            let state = match stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next()) {
                Some('R') => ThreadState::WantsCpu,
                Some('D') => ThreadState::WantsDisk,
                _ => ThreadState::Sleeps,
            };
            threads.state = threads.state.max(state);
            let delay = read("schedstat");
            threads.run_delay_ns += delay
                .split_whitespace()
                .nth(1)
                .and_then(|word| word.parse::<u64>().ok())
                .unwrap_or(0);
        }
        threads
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
                    let ended = self.gather.pages.remove(*slot);
                    self.report_functions(ended);
                    self.close_gate(*slot);
                }
                _ => {}
            }
        }
        self.decide.switch_events = events;
        self.gather.sample(self.publish.switch.as_mut(), now);
        let reloads = self.gather.pages.reloads(now);
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

    /// Reads the cgroups. These are files, and packets do not wait for them.
    pub(super) fn gather_usage(&mut self, now: Nanos) {
        let shell = &self.decide.shell;
        let cpu = thread_cpu();
        self.gather.read_usage(shell.controller(), shell.engine(), now);
        self.gather.meter.read(now);
        self.gather.observing_cpu = self.gather.observing_cpu + thread_cpu().since(cpu);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_is_averaged_over_whole_seconds() {
        let mut note = UsageNote::default();
        let mut at = |ms: u64, cpu_ms: u64| {
            let usage = engine::Usage {
                cpu_ns: cpu_ms * 1_000_000,
                ..engine::Usage::default()
            };
            note.note(&usage, || SLEEPS, Nanos::from_millis(ms));
            note.cpus
        };
        // Usage before the first reading does not count.
        assert_eq!(at(5_000, 700), None);
        assert_eq!(at(5_900, 790), None);
        assert_eq!(at(6_000, 800), Some(0.1));
        assert_eq!(at(6_999, 1_700), Some(0.1));
        assert_eq!(at(8_000, 1_800), Some(0.5));
    }

    const WANTS_CPU: Threads = Threads {
        state: ThreadState::WantsCpu,
        run_delay_ns: 0,
    };
    const SLEEPS: Threads = Threads {
        state: ThreadState::Sleeps,
        run_delay_ns: 0,
    };

    /// A note of an instance whose packets wait from the start; reports and what follows from them, in milliseconds.
    fn waiting() -> impl FnMut(u64, u64, u64, Threads) -> u64 {
        let mut note = UsageNote {
            waits_since: Some(Nanos::ZERO),
            ..UsageNote::default()
        };
        move |ms, cpu_ns, throttled_ms, threads| {
            let usage = engine::Usage {
                cpu_ns,
                throttled_ns: throttled_ms * 1_000_000,
                ..engine::Usage::default()
            };
            note.note(&usage, || threads, Nanos::from_millis(ms));
            note.held_up_ns / 1_000_000
        }
    }

    #[test]
    fn time_without_a_cpu_is_counted_once() {
        let mut at = waiting();
        assert_eq!(at(20, 5, 0, WANTS_CPU), 0, "it ran");
        assert_eq!(at(40, 5, 0, WANTS_CPU), 20, "others had the CPU");
        assert_eq!(at(60, 5, 0, SLEEPS), 20, "it wanted none: it hangs");
        assert_eq!(at(80, 5, 0, WANTS_CPU), 40);
        assert_eq!(
            at(100, 6, 15, WANTS_CPU),
            40,
            "most of the wait was throttling, told at its end"
        );
        assert_eq!(at(120, 7, 45, WANTS_CPU), 70);
    }

    #[test]
    fn a_wait_for_a_cpu_between_two_looks_is_counted_once() {
        let delayed = |ms: u64| Threads {
            run_delay_ns: ms * 1_000_000,
            ..WANTS_CPU
        };
        let mut at = waiting();
        assert_eq!(at(20, 1, 0, delayed(500)), 0, "what was before does not count");
        assert_eq!(
            at(40, 2, 0, delayed(515)),
            15,
            "it had the CPU for a quarter of the time"
        );
        assert_eq!(at(60, 2, 0, delayed(515)), 35, "none at all");
        assert_eq!(at(80, 2, 0, delayed(515)), 55);
        assert_eq!(at(100, 3, 0, delayed(570)), 70, "which is told at its end");
        assert_eq!(
            at(120, 4, 0, delayed(700)),
            90,
            "several threads wait no longer than one"
        );
    }

    #[test]
    fn a_program_that_waits_for_a_disk_is_excused_for_a_second() {
        let mut at = waiting();
        let disk = Threads {
            state: ThreadState::WantsDisk,
            run_delay_ns: 0,
        };
        for ms in 1..=100 {
            at(ms * 20, 0, 0, disk);
        }
        assert_eq!(at(2_020, 0, 0, disk), 1_000);
    }

    #[test]
    fn an_instance_that_takes_no_packets_is_observed_closely() {
        let mut note = UsageNote::default();
        let mut at = |ms: u64, ring_used: u64, consumed: u64| {
            let counters = SlotCounters {
                ring_used,
                consumed,
                ..SlotCounters::default()
            };
            note.period(&counters, Nanos::from_millis(ms))
        };
        assert_eq!(at(1, 0, 0), USAGE_PERIOD_IDLE);
        assert_eq!(at(2, 3, 5), USAGE_PERIOD, "it takes some");
        assert_eq!(at(11, 3, 5), USAGE_PERIOD, "it has not for 9 ms");
        assert_eq!(at(12, 3, 5), USAGE_PERIOD_WAITING);
        assert_eq!(at(13, 3, 6), USAGE_PERIOD, "it goes on");
        assert_eq!(at(23, 3, 6), USAGE_PERIOD_WAITING);
        assert_eq!(at(24, 0, 6), USAGE_PERIOD_IDLE);
    }

    #[test]
    fn time_with_nothing_to_do_is_not_waited() {
        let mut note = UsageNote::default();
        let usage = engine::Usage::default();
        note.note(&usage, || WANTS_CPU, Nanos::from_secs(1));
        assert_eq!(note.held_up_ns, 0);
        note.waits_since = Some(Nanos::from_millis(1_990));
        note.note(&usage, || WANTS_CPU, Nanos::from_secs(2));
        assert_eq!(
            note.held_up_ns, 10_000_000,
            "packets wait for 10 ms of this second"
        );
    }

    #[test]
    fn a_thread_that_works_is_runnable_and_one_that_sleeps_is_not() {
        // The kernel ends its list of threads early where one of them exits meanwhile, as those of other tests do.
        let is_seen = (0..1_000).any(|_| Threads::of(std::process::id()).state == ThreadState::WantsCpu);
        assert!(is_seen, "this very thread");
        assert_eq!(Threads::of(u32::MAX), Threads::default());
    }
}
