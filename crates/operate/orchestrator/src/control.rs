//! The control loop: one turn a millisecond; one in twenty while nothing comes and nothing is under way; five where more packets
//! come than usual.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use api::types::{Action, FlowExplanation, FlowPage, FlowRow, Outcome, PolicyChoice, Refusal};
use api::{Answer, Caller, EventLog, Inbox, Question};
use autoscaling::Autoscaler;
use collector::Collector;
use configuration::Configuration;
use controller::{Command, CommandError, CommandId, Controller, HoldBack, Settings, Shell};
use engine::launcher::Launcher;
use model::{
    Event, EventKind, FlowKey, Histogram, InstanceId, InstanceState, Nanos, ServiceId, Slot, UplinkId,
};
use switch::{
    Change, FlowFilter, PickRecord, Switch, SwitchError, SwitchEvent, SwitchReading, SwitchRequest, WakeUp,
};

use crate::case::Case;
use api::run_dir::in_run_dir;
use scheduling::Scheduler;

use super::answers::unix_ms;
use super::drivers::{Started, driver};
use super::event_files::EventFiles;
use super::functions::FunctionPages;
use super::pace::Pace;
use super::reload::FileReader;
use super::uplink_events::UplinkEvents;
use super::{Place, StopRequest, wiring};

/// How often an instance's own control group is read while its ring is not empty: often enough to tell a throttled
/// function from one that hangs.
const USAGE_PERIOD: Nanos = Nanos::from_millis(20);
/// How often otherwise.
const USAGE_PERIOD_IDLE: Nanos = Nanos::from_secs(1);
/// Over which span the CPU time of an instance is told: many periods of a quota.
const CPU_SPAN: Nanos = Nanos::from_secs(1);
/// Without a packet for this long, and with nothing under way, the loop dozes: every rate is as good as zero by then.
const QUIET: Nanos = Nanos::from_secs(1);
/// How often it turns while it dozes: timers and the ends of containers are not later than that.
const DOZE: Nanos = Nanos::from_millis(20);
/// For how long a worker's longest gap is told, once to twice: a status tells of now, not of the start a week ago.
const GAP_SPAN: Nanos = Nanos::from_secs(2);
/// How long packets wait for containers that are being taken over, while their functions connect again; then uplinks
/// are opened as they are.
const TAKE_OVER_WAIT: Nanos = Nanos::from_secs(1);
/// How long a shutdown may take before what is left is given up.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(60);

/// What a run came to.
#[derive(Clone, Debug)]
pub(crate) struct Summary {
    /// Every counter, at the end.
    pub(crate) reading: SwitchReading,
    /// What could not be removed in time, a line each: empty if all is well.
    pub(crate) left: Vec<String>,
    /// Whether the containers were to go on running.
    pub(crate) kept: bool,
}

/// Everything that the loop turns.
pub(super) struct ControlLoop {
    pub(super) configuration: Configuration,
    pub(super) switch: Box<dyn Switch>,
    pub(super) shell: Shell,
    pub(super) collector: Collector,
    pub(super) reading: SwitchReading,
    pub(super) events: EventLog,
    pub(super) started: Instant,
    pub(super) uplinks_up: Vec<bool>,
    uplink_events: Vec<UplinkEvents>,
    /// Each worker's longest gap in the span before this one, and in this one.
    pub(super) longest_gaps: Vec<[Nanos; 2]>,
    gaps_since: Nanos,
    pub(super) usage: HashMap<Slot, UsageNote>,
    pub(super) engine_driver: &'static str,
    /// Counters of a slot when its present instance got it, and whose that is: slots are used again, their counters go on.
    pub(super) baselines: HashMap<Slot, (ServiceId, switch::SlotCounters)>,
    /// By service, what instances counted whose slots others have got since.
    pub(super) retired: HashMap<ServiceId, switch::SlotCounters>,
    pub(super) event_files: EventFiles,
    /// Events so far, by kind.
    pub(super) event_counts: BTreeMap<&'static str, u64>,
    /// Actions so far, and whether they were refused.
    pub(super) action_counts: BTreeMap<(&'static str, bool), u64>,
    /// Decisions of autoscalers so far, by service.
    pub(super) decisions: BTreeMap<(String, &'static str), u64>,
    /// How late turns began.
    pub(super) lag: Histogram,
    /// Changed configurations that were applied, and refused.
    pub(super) reloads: (u64, u64),
    pub(super) file_reader: FileReader,
    /// Changed configurations that go into the next step, and what is told of them then.
    pub(super) applied: Vec<(Asked, Outcome)>,
    /// Uplinks that are not open yet, and when they are opened at the latest.
    waiting_uplinks: Vec<(UplinkId, Nanos)>,
    inbox: Inbox,
    stop: Arc<StopRequest>,
    stopping: bool,
    pages: FunctionPages,
    /// Rung by the first packet after a quiet time.
    alarm: Option<Arc<dyn WakeUp>>,
    /// Packets that the switch has moved, and since when there are no more of them.
    moved: (u64, Nanos),
    /// What the switch has told since the last step.
    switch_events: Vec<SwitchEvent>,
    commands: Vec<(CommandId, Command)>,
    answers: HashMap<CommandId, Asked>,
    /// Moves whose flows are being looked for.
    moves: HashMap<u64, Asked>,
    explanations: HashMap<u64, (String, Answer<Result<FlowExplanation, Refusal>>)>,
    dumps: HashMap<u64, Answer<Result<FlowPage, Refusal>>>,
    heavy_dumps: HashMap<u64, (u32, Answer<Result<FlowPage, Refusal>>)>,
    /// Scheduling decisions that are still to be recorded, by service.
    records: HashMap<ServiceId, u32>,
    next_number: u64,
    loads: Vec<(Slot, f32)>,
    expected: Vec<(ServiceId, f32)>,
    sequence: u64,
}

/// An action that somebody waits for.
pub(super) struct Asked {
    pub(super) action: Action,
    pub(super) caller: Caller,
    pub(super) answer: Answer<Result<Outcome, Refusal>>,
}

/// What the engine says of an instance's control group.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct UsageNote {
    pub(super) read_at: Nanos,
    pub(super) memory_bytes: u64,
    /// Time in which it could not run: throttled, or waiting for a CPU that others had.
    held_up_ns: u64,
    /// The same, of the wait that goes on, before the engine tells how much of it was throttling.
    held_up_so_far_ns: u64,
    throttled_ns: u64,
    pub(super) cpu_ns: u64,
    /// CPUs that it used, on average over the last span of [`CPU_SPAN`].
    pub(super) cpus: Option<f64>,
    /// When the span began that is under way, and what was used until then.
    cpu_since: Option<(Nanos, u64)>,
}

impl UsageNote {
    /// Takes what the engine says now. `could_run` is whether it had something to do: it is only asked where it used no CPU.
    fn note(&mut self, usage: &engine::Usage, could_run: impl FnOnce() -> bool, now: Nanos) {
        let passed = now.since(self.read_at).0;
        let throttled = usage.throttled_ns.saturating_sub(self.throttled_ns);
        if usage.cpu_ns == self.cpu_ns && could_run() {
            self.held_up_ns += passed;
            self.held_up_so_far_ns += passed;
        } else {
            // The kernel tells of throttling when it is over: most of it is in there already.
            self.held_up_ns += throttled.saturating_sub(self.held_up_so_far_ns);
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
        self.memory_bytes = usage.memory_bytes;
    }
}

/// Whether a thread of that process wants a CPU.
fn is_runnable(pid: u32) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task"));
    threads.into_iter().flatten().flatten().any(|thread| {
        let stat = std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        // The state comes after the name, which may hold anything.
        stat.rsplit_once(") ")
            .is_some_and(|(_, rest)| rest.starts_with('R'))
    })
}

/// Monotonic time, as the switch has it.
pub(super) fn monotonic() -> Nanos {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Nanos(
        (now.tv_sec as u64)
            .saturating_mul(1_000_000_000)
            .saturating_add(now.tv_nsec as u64),
    )
}

impl ControlLoop {
    pub(super) fn start(
        configuration: Configuration,
        place: &Place,
        launcher: Option<Launcher>,
        inbox: Inbox,
        events: EventLog,
        stop: Arc<StopRequest>,
    ) -> Result<ControlLoop> {
        let secret = secret()?;
        let Started { switch, places } = driver(&configuration).start(&configuration, secret)?;
        let alarm = switch.wake_up();
        let engine = wiring::engine(&configuration, &place.run_dir, launcher)?;
        let engine_driver = engine.driver();
        inbox.wake_this_thread();
        let mut collector = Collector::new();
        for service in &configuration.services {
            collector.add_service(service.autoscaler.stable_window());
        }
        let now = monotonic();
        let settings = Settings {
            run_dir: place.run_dir.clone(),
            unix_ms_at_zero: unix_ms().saturating_sub(now.as_millis()),
            matching: wiring::matching(&configuration),
            ..Settings::default()
        };
        let mut services = configuration
            .services
            .iter()
            .map(|service| wiring::service_settings(service, &configuration.engine))
            .collect::<Result<Vec<_>>>()?;
        for (settings, places) in services.iter_mut().zip(places.into_iter().flatten()) {
            settings.places = Some(places);
        }
        let shell = Shell::new(Controller::new(settings, services), engine, now)
            .context("the engine does not say what runs already")?;
        let has_adopted = shell.controller().instances().iter().any(|i| i.is_adopted());
        let open_others_at = if has_adopted {
            Nanos(now.0.saturating_add(TAKE_OVER_WAIT.0))
        } else {
            now
        };
        let workers = configuration.switch.worker_count();
        let reading = SwitchReading::new(configuration.services.len(), configuration.uplinks.len(), workers);
        let of = &configuration.event_log;
        let directory = in_run_dir(of.directory.as_deref().unwrap_or(Path::new("events")));
        let event_files = EventFiles::start(&directory, of.file_bytes, of.files)?;
        match raise_priority() {
            // What it starts later, a fit or a link's handshake, may take long.
            Ok(()) => {
                if let Err(error) = cpu_slice::keep_priority_to_this_thread() {
                    tracing::warn!(%error, "threads of the control loop run in real time as it does");
                }
            }
            Err(error) => tracing::debug!(?error, "no real-time priority for the control loop"),
        }
        Ok(ControlLoop {
            retired: HashMap::new(),
            event_files,
            event_counts: BTreeMap::new(),
            action_counts: BTreeMap::new(),
            decisions: BTreeMap::new(),
            lag: Histogram::default(),
            reloads: (0, 0),
            file_reader: FileReader::default(),
            applied: Vec::new(),
            explanations: HashMap::new(),
            moves: HashMap::new(),
            waiting_uplinks: (0u8..)
                .map(UplinkId)
                .zip(&configuration.uplinks)
                .map(|(id, uplink)| {
                    // What a capture holds comes at once, and only once.
                    let reads_capture = !uplink.device.captures_read().is_empty();
                    (
                        id,
                        if reads_capture {
                            Nanos(u64::MAX)
                        } else {
                            open_others_at
                        },
                    )
                })
                .collect(),
            uplink_events: configuration
                .uplinks
                .iter()
                .map(|_| UplinkEvents::default())
                .collect(),
            // A device is there once it is opened; a memif uplink once somebody connects.
            uplinks_up: configuration
                .uplinks
                .iter()
                .map(|uplink| !matches!(uplink.device, configuration::Device::Memif(_)))
                .collect(),
            longest_gaps: vec![[Nanos::ZERO; 2]; workers],
            gaps_since: monotonic(),
            configuration,
            switch,
            shell,
            collector,
            reading,
            events,
            started: Instant::now(),
            usage: HashMap::new(),
            engine_driver,
            baselines: HashMap::new(),
            inbox,
            stop,
            stopping: false,
            pages: FunctionPages::default(),
            alarm,
            moved: (0, now),
            switch_events: Vec::new(),
            commands: Vec::new(),
            answers: HashMap::new(),
            dumps: HashMap::new(),
            heavy_dumps: HashMap::new(),
            records: HashMap::new(),
            next_number: 1,
            loads: Vec::new(),
            expected: Vec::new(),
            sequence: 0,
        })
    }

    /// Turns until everything is stopped.
    pub(super) fn run(&mut self) -> Result<Summary> {
        let mut pace = Pace::new(monotonic());
        let mut stopping_since = None;
        let mut left = Vec::new();
        loop {
            self.lag.note(pace.begin(monotonic()));
            self.turn(pace.is_hasty());
            self.stop.note_turn();
            if self.stopping {
                let since = *stopping_since.get_or_insert_with(Instant::now);
                if self.shell.controller().is_finished() {
                    break;
                }
                if since.elapsed() > SHUTDOWN_LIMIT {
                    left = self.left_behind();
                    break;
                }
            }
            if let Some(alarm) = self.alarm.clone()
                && self.is_quiet()
            {
                self.doze(alarm.as_ref());
                pace = Pace::new(monotonic());
                continue;
            }
            let now = monotonic();
            pace.end(now);
            self.rest(&mut pace, now);
        }
        self.switch.read(&mut self.reading);
        self.switch.stop();
        self.switch.read(&mut self.reading);
        Ok(Summary {
            reading: self.reading.clone(),
            left,
            kept: self.stop.asked() == Some(true),
        })
    }

    /// Whether no packet has come for a while and nothing is under way that goes on by itself.
    fn is_quiet(&mut self) -> bool {
        let now = monotonic();
        let moved = self.packets_moved();
        if moved != self.moved.0 {
            self.moved = (moved, now);
        }
        now.since(self.moved.1) >= QUIET
            && self.reading.in_flight() == 0
            && !self.stopping
            && self.shell.controller().is_settled()
            && self.waiting_uplinks.is_empty()
            && !self.file_reader.is_busy()
            && self.answers.is_empty()
            && self.moves.is_empty()
            && self.explanations.is_empty()
            && self.dumps.is_empty()
            && self.heavy_dumps.is_empty()
    }

    fn packets_moved(&self) -> u64 {
        self.reading.offered() + self.reading.originated()
    }

    /// Sleeps until a packet comes, somebody asks something, or a while has passed.
    fn doze(&mut self, alarm: &dyn WakeUp) {
        alarm.set();
        // What came before it was set rings no more.
        self.switch.read(&mut self.reading);
        if self.packets_moved() == self.moved.0 {
            std::thread::park_timeout(Duration::from_nanos(DOZE.0));
        }
        alarm.clear();
    }

    /// Sleeps until the next turn is due, which it is at once where a worker tells that more packets come than usual.
    fn rest(&self, pace: &mut Pace, mut now: Nanos) {
        while let Some(rest) = pace.rest(now) {
            match &self.alarm {
                // A question ends it, too, and is answered when the turn is due.
                Some(_) => std::thread::park_timeout(Duration::from_nanos(rest.0)),
                None => std::thread::sleep(Duration::from_nanos(rest.0)),
            }
            now = monotonic();
            if self.alarm.as_ref().is_some_and(|alarm| alarm.take_rise()) {
                pace.hurry(now);
            }
        }
    }

    /// What a shutdown waits for, and what for, a line each.
    fn left_behind(&self) -> Vec<String> {
        let controller = self.shell.controller();
        let mut left: Vec<String> = controller
            .instances()
            .iter()
            .map(|of| {
                tracing::error!(instance = ?of, acknowledged = ?self.reading.acknowledged, newest = ?controller.plan().generation, "left behind");
                format!("{} ({}: {})", of.name(), of.state().name(), of.reason())
            })
            .collect();
        if let Some(since) = controller.engine_down_since() {
            let seconds = monotonic().since(since).as_secs_f64();
            left.push(format!("the engine, which has not answered for {seconds:.0} s"));
        }
        left
    }

    /// One step. `is_hasty` is whether the next one follows sooner than usual.
    fn turn(&mut self, is_hasty: bool) {
        let now = monotonic();
        self.take_switch_events(now);
        let began = Instant::now();
        self.switch.read(&mut self.reading);
        self.pages.read(&mut self.reading.slots, now);
        self.collector.sample(&self.reading);
        self.collector.record_cost(began.elapsed().as_nanos() as u64);
        self.tell_of_uplinks(now);
        self.take_questions(now);
        self.take_reload(now);
        if let Some(keep) = self.stop.asked()
            && !self.stopping
        {
            self.stopping = true;
            self.commands.push((CommandId(0), Command::Shutdown { keep }));
        }
        self.step(now);
        self.publish_loads();
        // Files are read: after what packets wait for, in time for the next sample, and not while the next turn is due at once.
        if !is_hasty {
            self.read_usage(now);
        }
        self.open_uplinks(now);
        if now.since(self.gaps_since) >= GAP_SPAN {
            self.note_gaps(now);
        }
    }

    /// Opens uplinks once each of their services serves with as many instances as it should have at least, or once their
    /// time has come.
    fn open_uplinks(&mut self, now: Nanos) {
        if self.waiting_uplinks.is_empty() {
            return;
        }
        // Only by a plan that every worker knows.
        let controller = self.shell.controller();
        let is_known = controller.plan().generation == controller.acknowledged();
        let instances = controller.instances();
        let services = &self.configuration.services;
        let serves = |(id, service): (usize, &configuration::Service)| {
            let is_active = |i: &&controller::Instance| {
                i.service().index() == id && i.state() == model::InstanceState::Active
            };
            instances.iter().filter(is_active).count() >= service.instances.min as usize
        };
        let (switch, refused) = (&mut self.switch, &mut self.switch_events);
        self.waiting_uplinks.retain(|(uplink, latest)| {
            let mut of_uplink = services
                .iter()
                .enumerate()
                .filter(|(_, s)| s.uplinks.contains(uplink));
            let opens = *latest <= now || (is_known && of_uplink.all(serves));
            if opens {
                switch.submit(SwitchRequest::OpenUplink(*uplink), refused);
            }
            !opens
        });
    }

    // ---- the switch -------------------------------------------------------------------------------------------

    fn take_switch_events(&mut self, now: Nanos) {
        let mut events = std::mem::take(&mut self.switch_events);
        self.switch.poll(now, &mut events);
        for event in &events {
            self.note_switch_event(event, now);
        }
        self.switch_events = events;
    }

    /// What an event of the switch means beside the controller.
    fn note_switch_event(&mut self, event: &SwitchEvent, now: Nanos) {
        match event {
            SwitchEvent::Attached { .. }
            | SwitchEvent::AttachFailed { .. }
            | SwitchEvent::PlanRefused { .. }
            | SwitchEvent::DetachFailed { .. }
            | SwitchEvent::Stalled { .. } => {}
            SwitchEvent::PortDown { slot, reason } => tracing::warn!(%slot, reason, "a port went down"),
            SwitchEvent::Detached { slot, .. } => {
                self.pages.remove(*slot);
                self.usage.remove(slot);
            }
            SwitchEvent::UplinkUp { uplink, peer } => self.uplink_event(uplink.index(), true, peer, now),
            SwitchEvent::UplinkDown { uplink, reason } => {
                self.uplink_event(uplink.index(), false, reason, now);
            }
            SwitchEvent::Trouble { what, reason } => {
                tracing::warn!(what, reason, "the switch is in trouble");
                self.event(EventKind::Failure {
                    what: what.clone(),
                    reason: reason.clone(),
                });
            }
            SwitchEvent::Recovered { what, after } => self.event(EventKind::Recovered {
                what: what.clone(),
                after_ms: after.as_millis(),
            }),
            SwitchEvent::HeavyFlows { id, rows } => {
                if let Some((top, answer)) = self.heavy_dumps.remove(id) {
                    let heaviest = rows.iter().take(top as usize);
                    let flows = heaviest.map(|heavy| self.heavy_row(heavy)).collect();
                    answer.give(Ok(FlowPage {
                        flows,
                        complete: true,
                    }));
                }
            }
            SwitchEvent::Recorded(record) => self.note_record(record),
            SwitchEvent::Flows {
                id,
                rows,
                rules,
                complete,
            } => {
                if let Some((flow, answer)) = self.explanations.remove(id) {
                    answer.give(Ok(self.explain_flow(flow, rows.first())));
                } else if let Some(asked) = self.moves.remove(id) {
                    let result = self.move_flow(&asked.action, rows.first());
                    self.conclude(asked, result);
                } else if let Some(answer) = self.dumps.remove(id) {
                    let mut rules = rules.iter();
                    let flows = rows.iter().map(|row| FlowRow {
                        rule: rules.next().cloned(),
                        ..self.flow_row(row)
                    });
                    let (flows, complete) = (flows.collect(), *complete);
                    answer.give(Ok(FlowPage { flows, complete }));
                }
            }
        }
    }

    fn uplink_event(&mut self, uplink: usize, up: bool, what: &str, now: Nanos) {
        if let Some(place) = self.uplinks_up.get_mut(uplink) {
            *place = up;
        }
        if let Some(events) = self.uplink_events.get_mut(uplink) {
            events.change(up, what);
        }
        self.tell_of_uplinks(now);
    }

    /// Makes events of those changes of uplinks that are due.
    fn tell_of_uplinks(&mut self, now: Nanos) {
        for index in 0..self.uplink_events.len() {
            if let Some((up, detail)) = self.uplink_events[index].due(now) {
                let uplink = self.configuration.uplinks.get(index);
                let uplink = uplink.map(|u| u.name.clone()).unwrap_or_default();
                self.event(EventKind::Uplink { uplink, up, detail });
            }
        }
    }

    /// Hands the switch a request of the controller's.
    fn carry_out(&mut self, request: SwitchRequest, now: Nanos) {
        if let SwitchRequest::Attach { slot, service, .. } = &request {
            self.note_new_instance(*slot, *service, now);
        }
        self.switch.submit(request, &mut self.switch_events);
    }

    /// Another instance has that slot from now on: its counters begin anew, and it may publish figures of its own.
    fn note_new_instance(&mut self, slot: Slot, service: ServiceId, now: Nanos) {
        let before = self.reading.slots.get(slot.index()).copied().unwrap_or_default();
        if let Some((owner, since)) = self.baselines.insert(slot, (service, before)) {
            // Its counters stand still since it was removed.
            let counted = grown(&before, &since);
            add(self.retired.entry(owner).or_default(), &counted);
        }
        let of = self.configuration.services.get(service.index());
        if of.is_some_and(configuration::Service::has_containers) && self.shell.engine().is_local() {
            let mut instances = self.shell.controller().instances().iter();
            if let Some(instance) = instances.find(|i| i.slot() == slot) {
                let socket = instance.socket_dir().join(wiring::PAGE_SOCKET);
                self.pages.add(slot, &socket, now);
            }
        }
    }

    fn publish_loads(&mut self) {
        self.loads.clear();
        self.expected.clear();
        let controller = self.shell.controller();
        let known: Vec<_> = controller
            .services()
            .map(|of| {
                let metric = of.plan.scheduler.settings().metric;
                let mut instances = controller.plan().instances();
                let capacity_pps = instances
                    .find(|(_, row)| row.service == of.id)
                    .map_or(0.0, |(_, row)| f64::from(row.capacity_pps));
                (metric, self.collector.service(of.id), capacity_pps)
            })
            .collect();
        for slot in self.collector.assigned() {
            if let Some(rates) = self.collector.slot(*slot)
                && let Some((metric, service, capacity_pps)) = known.get(rates.service.index())
            {
                let load = rates.load(*metric, service, *capacity_pps);
                self.loads.push((*slot, load as f32));
            }
        }
        for (index, (metric, service, capacity_pps)) in known.iter().enumerate() {
            let expected = service.expected(*metric, *capacity_pps);
            self.expected.push((ServiceId(index as u16), expected as f32));
        }
        self.switch.set_loads(&self.loads, &self.expected);
    }

    // ---- the controller ---------------------------------------------------------------------------------------

    fn step(&mut self, now: Nanos) {
        let told = (&self.switch_events[..], self.reading.acknowledged);
        let outputs = self.shell.turn(told, &self.commands, &mut self.collector, now);
        self.switch_events.clear();
        self.commands.clear();
        if outputs.is_empty() {
            self.shell.carry_out(now);
            self.conclude_applied(None);
            return;
        }
        let requests = outputs.switch.clone();
        let events = outputs.events.clone();
        let answers = outputs.answers.clone();
        // First what packets wait for.
        for request in requests {
            self.carry_out(request, now);
        }
        self.shell.carry_out(now);
        for event in events {
            self.push_event(event);
        }
        let refused = plan_refusal(&self.switch_events);
        for (id, result) in answers {
            self.answer_command(id, result, refused.as_ref());
        }
        self.conclude_applied(refused.as_ref());
    }

    /// Tells those whose changed configuration went into this step what came of it.
    fn conclude_applied(&mut self, refused: Option<&Refusal>) {
        for (asked, outcome) in std::mem::take(&mut self.applied) {
            let result = refused.map_or(Ok(outcome), |refused| Err(refused.clone()));
            self.note_reload(result.is_ok());
            self.conclude(asked, result);
        }
    }

    fn read_usage(&mut self, now: Nanos) {
        for instance in self.shell.controller().instances() {
            let slot = instance.slot();
            let Some(counters) = self.reading.slots.get_mut(slot.index()) else {
                continue;
            };
            if !instance.is_in_plan() || instance.container() == controller::Container::Absent {
                continue;
            }
            let note = self.usage.entry(slot).or_default();
            let period = if counters.ring_used > 0 {
                USAGE_PERIOD
            } else {
                USAGE_PERIOD_IDLE
            };
            if now.since(note.read_at) >= period {
                match self.shell.engine().usage(instance.name()) {
                    Ok(usage) => note.note(&usage, || instance.pid().is_some_and(is_runnable), now),
                    Err(_) => note.read_at = now,
                }
            }
            counters.throttled_ns = note.held_up_ns;
        }
    }

    // ---- questions --------------------------------------------------------------------------------------------

    fn take_questions(&mut self, now: Nanos) {
        while let Some(question) = self.inbox.take() {
            match question {
                Question::Status(answer) => {
                    self.note_gaps(now);
                    answer.give(self.status(now));
                }
                Question::Services(answer) => answer.give(self.service_rows(now)),
                Question::Settings(service, answer) => answer.give(self.settings(&service)),
                Question::Instances(answer) => answer.give(self.instance_rows(now)),
                Question::Flows(filter, answer) => self.ask_flows(&filter, answer),
                Question::Snapshot(answer) => {
                    self.note_gaps(now);
                    answer.give(self.snapshot(now));
                }
                Question::Explain(flow, answer) => self.ask_explanation(flow, answer),
                Question::Policies(answer) => answer.give(self.policies()),
                Question::Counters(answer) => {
                    self.note_gaps(now);
                    answer.give(Box::new(self.counters()));
                }
                Question::Act(action, caller, answer) => {
                    let asked = Asked {
                        action,
                        caller,
                        answer,
                    };
                    self.act(asked, now);
                }
            }
        }
    }

    /// Takes the workers' longest gaps, and forgets those of the span before the last one.
    fn note_gaps(&mut self, now: Nanos) {
        let is_over = now.since(self.gaps_since) >= GAP_SPAN;
        for ([before, longest], gap) in self.longest_gaps.iter_mut().zip(self.switch.take_longest_gaps()) {
            *longest = (*longest).max(gap);
            if is_over {
                *before = std::mem::take(longest);
            }
        }
        if is_over {
            self.gaps_since = now;
        }
    }

    fn ask_flows(&mut self, filter: &api::types::FlowFilter, answer: Answer<Result<FlowPage, Refusal>>) {
        match self.flow_filter(filter) {
            Ok(wanted) if filter.top.is_some() => {
                let id = self.number();
                let top = filter.top.unwrap_or_default();
                let filter = wanted;
                match self.switch.request(SwitchRequest::HeavyFlows { id, filter }) {
                    Ok(()) => {
                        self.heavy_dumps.insert(id, (top, answer));
                    }
                    Err(error) => answer.give(Err(Refusal::new(error.to_string(), "try again"))),
                }
            }
            Ok(wanted) => {
                let id = self.number();
                let limit = filter.limit() as usize;
                let filter = wanted;
                match self.switch.request(SwitchRequest::Flows { id, filter, limit }) {
                    Ok(()) => {
                        self.dumps.insert(id, answer);
                    }
                    Err(error) => answer.give(Err(Refusal::new(error.to_string(), "try again"))),
                }
            }
            Err(refusal) => answer.give(Err(refusal)),
        }
    }

    fn flow_filter(&self, filter: &api::types::FlowFilter) -> Result<FlowFilter, Refusal> {
        let service = match &filter.service {
            Some(name) => Some(self.service_id(name)?),
            None => None,
        };
        let slot = match filter.instance {
            Some(id) => Some(self.slot_of(id)?),
            None => None,
        };
        Ok(FlowFilter {
            service,
            slot,
            address: filter.address,
            key: self.flow_key(filter.flow.as_deref())?,
        })
    }

    fn flow_key(&self, flow: Option<&str>) -> Result<Option<FlowKey>, Refusal> {
        match flow.map(api::parse_tuple) {
            Some(Ok(tuple)) => Ok(Some(FlowKey::new(&tuple).0)),
            Some(Err(error)) => Err(Refusal::new(
                error.to_string(),
                "write it as `inco flows` shows it",
            )),
            None => Ok(None),
        }
    }

    pub(super) fn service_id(&self, name: &str) -> Result<ServiceId, Refusal> {
        let known = || {
            self.configuration
                .services
                .iter()
                .map(|s| s.name.as_str())
                .collect::<Vec<_>>()
                .join(", ")
        };
        self.configuration.service(name).map(|(id, _)| id).ok_or_else(|| {
            Refusal::new(
                format!("there is no service {name:?}"),
                format!("there are: {}", known()),
            )
        })
    }

    fn slot_of(&self, id: InstanceId) -> Result<Slot, Refusal> {
        let instances = self.shell.controller().instances();
        instances
            .iter()
            .find(|i| i.id() == id)
            .map(|i| i.slot())
            .ok_or_else(|| {
                Refusal::new(
                    format!("there is no instance {id}"),
                    "`inco instances` shows those that there are",
                )
            })
    }

    /// Asks where a flow is.
    fn ask_explanation(&mut self, flow: String, answer: Answer<Result<FlowExplanation, Refusal>>) {
        let key = match self.flow_key(Some(&flow)) {
            Ok(key) => key,
            Err(refusal) => return answer.give(Err(refusal)),
        };
        let id = self.number();
        let filter = FlowFilter {
            key,
            ..FlowFilter::default()
        };
        let limit = 1;
        match self.switch.request(SwitchRequest::Flows { id, filter, limit }) {
            Ok(()) => {
                self.explanations.insert(id, (flow, answer));
            }
            Err(error) => answer.give(Err(Refusal::new(error.to_string(), "try again"))),
        }
    }

    fn act(&mut self, asked: Asked, now: Nanos) {
        match &asked.action {
            Action::Reload { .. } => return self.begin_reload(asked, now),
            Action::Move { .. } => return self.begin_move(asked),
            _ => {}
        }
        match self.command_of(&asked.action) {
            Ok(Some(command)) => {
                if let Command::Shutdown { keep } = command {
                    self.stop.ask(keep);
                    self.stopping = true;
                }
                let id = self.order(command);
                self.answers.insert(id, asked);
            }
            Ok(None) => {
                let result = self.act_on_switch(&asked.action);
                self.conclude(asked, result);
            }
            Err(refusal) => self.conclude(asked, Err(refusal)),
        }
    }

    /// Looks for the flow that is to be moved.
    fn begin_move(&mut self, asked: Asked) {
        let Action::Move { flow, instance } = &asked.action else {
            return;
        };
        let key = self.slot_of(*instance).and_then(|_| self.flow_key(Some(flow)));
        let requested = key.and_then(|key| {
            let id = self.number();
            let filter = FlowFilter {
                key,
                ..FlowFilter::default()
            };
            let stuck = |error: SwitchError| Refusal::new(error.to_string(), "try again");
            let limit = 1;
            let request = SwitchRequest::Flows { id, filter, limit };
            self.switch.request(request).map_err(stuck)?;
            Ok(id)
        });
        match requested {
            Ok(id) => {
                self.moves.insert(id, asked);
            }
            Err(refusal) => self.conclude(asked, Err(refusal)),
        }
    }

    /// Moves the flow that was found.
    fn move_flow(&mut self, action: &Action, row: Option<&switch::FlowRow>) -> Result<Outcome, Refusal> {
        let Action::Move { flow, instance: id } = action else {
            return Err(Refusal::new("this is no move", ""));
        };
        let Some(row) = row else {
            return Err(Refusal::new(
                format!("there is no flow {flow} in the table"),
                "`inco flows` shows those that there are",
            ));
        };
        let service = self.configuration.services.get(row.service.index());
        let name = service.map_or("", |service| service.name.as_str());
        if service.is_some_and(|service| service.affinity == configuration::Affinity::Strict) {
            return Err(Refusal::new(
                format!("{flow} is of {name}, whose flows stay on their instance"),
                "write affinity = \"relaxed\" where its functions keep no state of a flow or share it; `inco purge --flow` \
                 gives the flow to whichever instance the scheduler picks",
            ));
        }
        let instances = self.shell.controller().instances();
        let Some(instance) = instances.iter().find(|i| i.id() == *id) else {
            return Err(Refusal::new(
                format!("there is no instance {id}"),
                "`inco instances` shows those that there are",
            ));
        };
        if instance.service() != row.service || instance.state() != InstanceState::Active {
            let its = self.configuration.services.get(instance.service().index());
            return Err(Refusal::new(
                format!(
                    "instance {id} of {} is {}: {flow} needs an active one of {name}",
                    its.map_or("", |service| service.name.as_str()),
                    instance.state().name()
                ),
                "`inco instances` shows those that there are",
            ));
        }
        if service.is_some_and(|service| !service.symmetric) {
            return Err(Refusal::new(
                format!("{flow} is of {name}, whose flows have an instance for each direction"),
                "`inco purge --flow` gives both directions anew",
            ));
        }
        let slot = instance.slot();
        if row.pins.iter().all(|pin| !pin.is_some() || *pin == slot) {
            return Ok(Outcome::new(format!("{flow} is on instance {id} already")));
        }
        self.switch
            .request(SwitchRequest::Change(Change::MoveFlow {
                key: row.key,
                to: slot,
            }))
            .map_err(|error| Refusal::new(error.to_string(), "try again"))?;
        Ok(Outcome::new(format!(
            "{flow} goes to instance {id} from its next packet on"
        )))
    }

    /// Has the controller do something in its next step.
    pub(super) fn order(&mut self, command: Command) -> CommandId {
        let id = CommandId(self.number());
        self.commands.push((id, command));
        id
    }

    /// Writes down what came of an action, and tells who asked.
    pub(super) fn conclude(&mut self, asked: Asked, result: Result<Outcome, Refusal>) {
        let (service, instance) = match &asked.action {
            Action::Scale { service, .. }
            | Action::Policy { service, .. }
            | Action::Record { service, .. }
            | Action::Rollout { service, .. }
            | Action::PauseIn { service, .. }
            | Action::PauseOut { service, .. }
            | Action::DryRun { service, .. } => (Some(service.clone()), None),
            Action::Drain { instance } | Action::Undrain { instance } | Action::Move { instance, .. } => {
                (None, Some(*instance))
            }
            Action::Purge { instance, .. } => (None, *instance),
            Action::Reload { .. } | Action::Stop { .. } => (None, None),
        };
        let name = asked.action.name();
        *self.action_counts.entry((name, result.is_err())).or_default() += 1;
        let mut event = new_event(
            service,
            EventKind::Action {
                action: name.to_owned(),
                request: serde_json::to_value(&asked.action).unwrap_or_default(),
                by: asked.caller.name,
                refused: result.is_err(),
                result: match &result {
                    Ok(outcome) => outcome.result.clone(),
                    Err(refusal) => refusal.to_string(),
                },
            },
        );
        event.instance = instance;
        self.push_event(event);
        asked.answer.give(result);
    }

    /// What an action asks of the controller; `None` where it is the switch's alone.
    fn command_of(&self, action: &Action) -> Result<Option<Command>, Refusal> {
        Ok(Some(match action {
            Action::Scale { service, instances } => Command::Scale {
                service: self.service_id(service)?,
                count: *instances,
            },
            Action::Policy {
                service,
                scheduler: None,
                autoscaler: Some(choice),
            } => Command::Autoscaler {
                service: self.service_id(service)?,
                autoscaler: Box::new(autoscaler_of(choice)?),
            },
            Action::Policy {
                service,
                scheduler: Some(choice),
                autoscaler: None,
            } => {
                let (scheduler, limit) = scheduler_of(choice)?;
                Command::Scheduler {
                    service: self.service_id(service)?,
                    scheduler: Box::new(scheduler),
                    limit: limit.map(|limit| limit as f32),
                    written: choice_text(choice),
                }
            }
            Action::Policy { .. } | Action::Record { .. } | Action::Move { .. } | Action::Reload { .. } => {
                return Ok(None);
            }
            Action::Rollout { service, cancel } => Command::Rollout {
                service: self.service_id(service)?,
                cancel: *cancel,
            },
            Action::PauseIn { service, on } => self.hold_back(service, HoldBack::In, *on)?,
            Action::PauseOut { service, on } => self.hold_back(service, HoldBack::Out, *on)?,
            Action::DryRun { service, on } => self.hold_back(service, HoldBack::DryRun, *on)?,
            Action::Drain { instance } => Command::Drain { instance: *instance },
            Action::Undrain { instance } => Command::Undrain { instance: *instance },
            Action::Purge {
                instance: Some(instance),
                ..
            } => Command::Purge { instance: *instance },
            Action::Purge { flow: Some(_), .. } => return Ok(None),
            Action::Purge { .. } => {
                return Err(Refusal::new(
                    "it is not said what to purge",
                    "give an instance or a flow",
                ));
            }
            Action::Stop { keep } => Command::Shutdown { keep: *keep },
        }))
    }

    fn hold_back(&self, service: &str, how: HoldBack, on: bool) -> Result<Command, Refusal> {
        let service = self.service_id(service)?;
        Ok(Command::HoldBack { service, how, on })
    }

    /// What the switch does without the controller.
    fn act_on_switch(&mut self, action: &Action) -> Result<Outcome, Refusal> {
        match action {
            Action::Purge { flow: Some(flow), .. } => self.purge_flow(flow),
            Action::Record { service, decisions } => self.record(service, *decisions),
            _ => Err(Refusal::new(
                "it is not said which policy",
                "give a scheduler or an autoscaler, one at a time",
            )),
        }
    }

    /// Asks for the next scheduling decisions of a service.
    fn record(&mut self, service: &str, decisions: u32) -> Result<Outcome, Refusal> {
        let id = self.service_id(service)?;
        if decisions == 0 || decisions > Action::RECORD_LIMIT {
            return Err(Refusal::new(
                format!("{decisions} decisions cannot be recorded"),
                format!("ask for 1 to {}", Action::RECORD_LIMIT),
            ));
        }
        self.request_record(id)?;
        self.records.insert(id, decisions);
        Ok(Outcome::new(format!(
            "the next {decisions} scheduling decisions of {service} are put into the event log: see `inco events`"
        )))
    }

    fn request_record(&mut self, service: ServiceId) -> Result<(), Refusal> {
        let number = self.number();
        self.switch
            .request(SwitchRequest::Record { id: number, service })
            .map_err(|error| Refusal::new(error.to_string(), "try again"))
    }

    /// Puts a scheduling decision into the event log, and asks for the next.
    fn note_record(&mut self, record: &PickRecord) {
        let Some(left) = self.records.get_mut(&record.service) else {
            return;
        };
        *left -= 1;
        let is_last = *left == 0;
        let controller = self.shell.controller();
        let instances = controller.instances();
        let of_slot = |slot: Slot| instances.iter().find(|i| i.slot() == slot).map(|i| i.id());
        let service = controller.services().find(|of| of.id == record.service);
        let known = service.zip(record.flow.as_ref());
        let made = known.and_then(|(service, flow)| {
            let plan = service.plan;
            let case = Case::of(record, flow, &plan.scheduler, of_slot);
            let kind = EventKind::Picked {
                policy: plan.scheduler.name().to_owned(),
                flow: flow.key.tuple(flow.direction).to_string(),
                fits: flow.fits,
                case: Box::new(serde_json::to_value(case).ok()?),
            };
            Some((kind, flow.slot.and_then(of_slot)))
        });
        let service = self
            .configuration
            .services
            .get(record.service.index())
            .map(|service| service.name.clone());
        if let Some((kind, instance)) = made {
            let mut event = new_event(service, kind);
            event.instance = instance;
            self.push_event(event);
        }
        if is_last {
            self.records.remove(&record.service);
        } else if let Err(error) = self.request_record(record.service) {
            tracing::warn!(%error, "no more scheduling decisions are recorded");
            self.records.remove(&record.service);
        }
    }

    fn purge_flow(&mut self, flow: &str) -> Result<Outcome, Refusal> {
        let Some(key) = self.flow_key(Some(flow))? else {
            return Err(Refusal::new("nothing to purge", "give a flow"));
        };
        self.switch
            .request(SwitchRequest::Change(Change::PurgeFlow(key)))
            .map_err(|e| Refusal::new(e.to_string(), "try again"))?;
        Ok(Outcome::new(format!(
            "{flow} has lost its pin, if it had one; its next packet is given anew"
        )))
    }

    /// `refused`: the switch takes no plan in which it is carried out.
    fn answer_command(
        &mut self,
        id: CommandId,
        result: Result<String, CommandError>,
        refused: Option<&Refusal>,
    ) {
        if let Some(asked) = self.answers.remove(&id) {
            let result = match (result, refused) {
                (Err(error), _) => Err(Refusal::new(error.to_string(), hint(&error))),
                (Ok(_), Some(refused)) => Err(refused.clone()),
                (Ok(done), None) => Ok(Outcome::new(done)),
            };
            self.conclude(asked, result);
        }
    }

    fn number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number
    }

    // ---- events -----------------------------------------------------------------------------------------------

    /// Adds something that the controller does not know of.
    fn event(&mut self, kind: EventKind) {
        self.push_event(new_event(None, kind));
    }

    /// Numbers an event, whoever made it, and shows it to whoever looks.
    fn push_event(&mut self, mut event: Event) {
        self.sequence += 1;
        event.sequence = self.sequence;
        *self.event_counts.entry(event.kind.name()).or_default() += 1;
        let decision = match &event.kind {
            EventKind::Scaled { from, to, .. } => Some(if to > from { "out" } else { "in" }),
            EventKind::Resized { .. } => Some("resize"),
            _ => None,
        };
        if let (Some(decision), Some(service)) = (decision, &event.service) {
            *self.decisions.entry((service.clone(), decision)).or_default() += 1;
        }
        if let EventKind::State {
            to: InstanceState::Failed,
            reason,
            ..
        } = &event.kind
        {
            let service = event.service.as_deref().unwrap_or_default();
            let instance = event.instance.map(|id| id.0);
            tracing::warn!(service, instance, reason, "an instance failed");
        }
        let event = Arc::new(event);
        self.event_files.write(Arc::clone(&event));
        self.events.push(event);
    }
}

/// What counters have grown by; gauges are as they stand.
pub(super) fn grown(now: &switch::SlotCounters, before: &switch::SlotCounters) -> switch::SlotCounters {
    switch::SlotCounters {
        to_packets: now.to_packets.wrapping_sub(before.to_packets),
        to_bytes: now.to_bytes.wrapping_sub(before.to_bytes),
        back_packets: now.back_packets.wrapping_sub(before.back_packets),
        back_bytes: now.back_bytes.wrapping_sub(before.back_bytes),
        ring_drops: now.ring_drops.wrapping_sub(before.ring_drops),
        too_large: now.too_large.wrapping_sub(before.too_large),
        lost: now.lost.wrapping_sub(before.lost),
        originated: now.originated.wrapping_sub(before.originated),
        return_unmatched: now.return_unmatched.wrapping_sub(before.return_unmatched),
        new_flows: now.new_flows.wrapping_sub(before.new_flows),
        expected_moves: now.expected_moves.wrapping_sub(before.expected_moves),
        hot: now.hot.wrapping_sub(before.hot),
        ..*now
    }
}

/// Adds what is told of services to a sum.
pub(super) fn add(sum: &mut switch::SlotCounters, of: &switch::SlotCounters) {
    sum.back_packets += of.back_packets;
    sum.back_bytes += of.back_bytes;
    sum.ring_drops += of.ring_drops;
    sum.new_flows += of.new_flows;
    sum.expected_moves += of.expected_moves;
}

/// The autoscaler that somebody chose.
fn autoscaler_of(choice: &PolicyChoice) -> Result<Autoscaler, Refusal> {
    let known = Autoscaler::from_name(&choice.policy);
    known.map_err(|error| Refusal::new(error.to_string(), "name one of those"))?;
    let parameters = serde_json::Value::Object(choice.parameters.clone());
    Autoscaler::with_parameters(&choice.policy, parameters).map_err(|error| {
        let names = Autoscaler::parameters_of(&choice.policy).unwrap_or_default();
        let names: Vec<&str> = names.iter().map(|parameter| parameter.name).collect();
        Refusal::new(
            format!("{}: {error}", choice.policy),
            format!("its parameters are {}", names.join(", ")),
        )
    })
}

/// An event of this moment, without a number yet.
fn new_event(service: Option<String>, kind: EventKind) -> Event {
    Event {
        sequence: 0,
        at: monotonic(),
        unix_ms: unix_ms(),
        service,
        instance: None,
        kind,
    }
}

/// A choice as the configuration would have it.
fn choice_text(choice: &PolicyChoice) -> String {
    let mut table = toml::Table::new();
    table.insert("policy".to_owned(), choice.policy.as_str().into());
    for (name, value) in &choice.parameters {
        if let Ok(value) = toml::Value::try_from(value) {
            table.insert(name.clone(), value);
        }
    }
    if table.len() == 1 {
        return choice.policy.clone();
    }
    toml::Value::Table(table).to_string()
}

/// The scheduler that somebody chose, and what one instance takes in its metric.
fn scheduler_of(choice: &PolicyChoice) -> Result<(Scheduler, Option<f64>), Refusal> {
    configuration::parse_scheduler(&choice_text(choice)).map_err(|problems| match problems.first() {
        Some(problem) => Refusal::new(
            format!("{}: {}", problem.key, problem.what),
            problem.write.clone(),
        ),
        None => Refusal::new("this is no scheduler", "name one"),
    })
}

/// That the switch does not take the plan of a step, by what it then told.
fn plan_refusal(told: &[SwitchEvent]) -> Option<Refusal> {
    told.iter().find_map(|event| match event {
        SwitchEvent::PlanRefused { reason, .. } => Some(Refusal::new(
            format!("the switch refused the plan: {reason}"),
            "it goes on by the plan before; take the change back",
        )),
        _ => None,
    })
}

fn hint(error: &CommandError) -> &'static str {
    match error {
        CommandError::UnknownService { .. } => "`inco services` shows those that there are",
        CommandError::UnknownInstance { .. } | CommandError::WrongState { .. } => {
            "`inco instances` shows the instances and their states"
        }
        CommandError::OutOfLimits { .. } => "change `instances` in the configuration",
        CommandError::RollsOut { .. } => "wait for it with --wait, or end it with --cancel",
        CommandError::ShuttingDown => "wait, then start it again",
    }
}

/// The secret of the flow hash: another one each run, so that nobody can aim at a bucket or a worker.
pub fn secret() -> Result<[u64; 4]> {
    let mut bytes = [0u8; 32];
    let mut filled = 0;
    while filled < bytes.len() {
        let rest = bytes.get_mut(filled..).unwrap_or_default();
        filled += rustix::rand::getrandom(rest, rustix::rand::GetRandomFlags::empty())
            .context("the system gives no random bytes")?;
    }
    let mut words = [0; 4];
    for (word, chunk) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
        *word = u64::from_ne_bytes(*chunk);
    }
    Ok(words)
}

/// Asks for a real-time priority, so that this thread wakes in time on a busy machine: 0.04 ms late at the 99th
/// percentile instead of 4.7 ms.
///
/// # Errors
/// Without permission; the thread goes on as it is.
pub fn raise_priority() -> Result<(), thread_priority::Error> {
    use thread_priority::{
        RealtimeThreadSchedulePolicy, ThreadPriority, ThreadSchedulePolicy, set_thread_priority_and_policy,
        thread_native_id,
    };
    let lowest = ThreadPriority::Crossplatform(1u8.try_into().unwrap_or_default());
    let policy = ThreadSchedulePolicy::Realtime(RealtimeThreadSchedulePolicy::Fifo);
    set_thread_priority_and_policy(thread_native_id(), lowest, policy)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_is_told_over_whole_seconds() {
        let mut note = UsageNote::default();
        let mut at = |ms: u64, cpu_ms: u64| {
            let usage = engine::Usage {
                cpu_ns: cpu_ms * 1_000_000,
                ..engine::Usage::default()
            };
            note.note(&usage, || false, Nanos::from_millis(ms));
            note.cpus
        };
        // What it used before it was first looked at is nobody's.
        assert_eq!(at(5_000, 700), None);
        assert_eq!(at(5_900, 790), None);
        assert_eq!(at(6_000, 800), Some(0.1));
        assert_eq!(at(6_999, 1_700), Some(0.1));
        assert_eq!(at(8_000, 1_800), Some(0.5));
    }

    #[test]
    fn time_without_a_cpu_is_counted_once() {
        let mut note = UsageNote::default();
        let mut at = |ms: u64, cpu_ns: u64, throttled_ms: u64, could_run: bool| {
            let usage = engine::Usage {
                cpu_ns,
                throttled_ns: throttled_ms * 1_000_000,
                ..engine::Usage::default()
            };
            note.note(&usage, || could_run, Nanos::from_millis(ms));
            note.held_up_ns / 1_000_000
        };
        assert_eq!(at(20, 5, 0, true), 0, "it ran");
        assert_eq!(at(40, 5, 0, true), 20, "others had the CPU");
        assert_eq!(at(60, 5, 0, false), 20, "it wanted none: it hangs");
        assert_eq!(at(80, 5, 0, true), 40);
        assert_eq!(
            at(100, 6, 15, true),
            40,
            "most of the wait was throttling, told at its end"
        );
        assert_eq!(at(120, 7, 45, true), 70);
    }

    #[test]
    fn a_thread_that_works_is_runnable_and_one_that_sleeps_is_not() {
        assert!(is_runnable(std::process::id()), "this very thread");
        assert!(!is_runnable(u32::MAX));
    }
}
