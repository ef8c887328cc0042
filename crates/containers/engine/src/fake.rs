//! An engine without containers, for the simulation of the controller. It is deterministic: its only clock is
//! [`FakeEngine::advance`], its only source of randomness a seed.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use model::{Nanos, Random};

use crate::container::check_command;
use crate::{
    Container, ContainerSpec, ContainerState, CpuQuota, Engine, EngineError, EngineEvent, Executed,
    Execution, Exit, Label, MAX_REQUESTS, Request, Ticket, Usage,
};

/// How long something takes: at least `base`, up to `jitter` more, evenly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Latency {
    /// The least.
    pub base: Nanos,
    /// The most on top.
    pub jitter: Nanos,
}

impl Latency {
    /// Always exactly this.
    pub const fn exactly(base: Nanos) -> Latency {
        Latency {
            base,
            jitter: Nanos::ZERO,
        }
    }

    /// From `low` to `high` microseconds.
    pub const fn micros(low: u64, high: u64) -> Latency {
        Latency {
            base: Nanos::from_micros(low),
            jitter: Nanos::from_micros(high.saturating_sub(low)),
        }
    }
}

/// What goes wrong, each as a probability from 0 to 1 for each request that could.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Faults {
    /// A create fails.
    pub create_fails: f64,
    /// A create takes 100 times as long.
    pub create_is_slow: f64,
    /// The program ends by SIGSEGV within 10 ms of its start.
    pub dies_at_start: f64,
    /// A pause or resume fails.
    pub pause_fails: f64,
    /// A change of the quota fails.
    pub quota_fails: f64,
    /// A stop or removal fails.
    pub remove_fails: f64,
}

/// How a [`FakeEngine`] behaves.
#[derive(Clone, Debug, PartialEq)]
pub struct FakeConfig {
    /// The seed of its random numbers.
    pub seed: u64,
    /// Creates that are carried out at once; others wait for their turn.
    pub creates_at_once: usize,
    /// From a create's turn until its program runs.
    pub create: Latency,
    /// Until it is frozen.
    pub pause: Latency,
    /// Until it runs again.
    pub resume: Latency,
    /// Until a quota holds.
    pub quota: Latency,
    /// Until a program that was asked to end has ended.
    pub stop: Latency,
    /// Until a container is gone.
    pub remove: Latency,
    /// Until a command that was run in one has ended.
    pub exec: Latency,
    /// From the end of a program until it is noticed.
    pub notice: Latency,
    /// What goes wrong.
    pub faults: Faults,
}

impl Default for FakeConfig {
    /// What the `oci` engine was measured to take, without faults.
    fn default() -> FakeConfig {
        FakeConfig {
            seed: 1,
            creates_at_once: 8,
            create: Latency::micros(7_000, 17_000),
            pause: Latency::micros(200, 3_000),
            resume: Latency::micros(150, 1_000),
            quota: Latency::micros(3, 10),
            stop: Latency::micros(1_000, 4_000),
            remove: Latency::micros(2_000, 5_000),
            exec: Latency::micros(8_000, 20_000),
            notice: Latency::micros(300, 600),
            faults: Faults::default(),
        }
    }
}

/// An engine without containers. Clones are the same engine: one goes to the controller as `Box<dyn Engine>`, the
/// simulation keeps another to move time and to break things. What happens at a time happens in an order that
/// depends on the requests and the seed alone.
#[derive(Clone, Debug)]
pub struct FakeEngine(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    config: FakeConfig,
    random: Random,
    now: Nanos,
    next_order: u64,
    next_pid: u32,
    containers: BTreeMap<String, FakeContainer>,
    /// What is yet to happen, by time and then in the order in which it was decided.
    agenda: BTreeMap<(Nanos, u64), Deed>,
    /// Requests that wait for the one in hand for the same container.
    waiting: BTreeMap<String, VecDeque<(Ticket, Request, Nanos)>>,
    /// Containers for which a request is in hand.
    busy: BTreeSet<String>,
    /// Creates that wait for their turn.
    create_queue: VecDeque<(Ticket, Box<ContainerSpec>, Nanos)>,
    creating: usize,
    in_hand: usize,
    /// `None`: every image exists.
    images: Option<BTreeSet<String>>,
    /// What commands exit with; `None`: they do not end.
    exec_status: Option<i32>,
    down_since: Option<Nanos>,
    events: Vec<EngineEvent>,
}

#[derive(Debug)]
struct FakeContainer {
    labels: BTreeMap<String, String>,
    pid: u32,
    state: ContainerState,
    quota: Option<CpuQuota>,
    /// A program that hangs ignores SIGTERM.
    hangs: bool,
    started_unix_ms: u64,
}

#[derive(Debug)]
enum Deed {
    Finish {
        ticket: Ticket,
        request: Request,
        since: Nanos,
        fails: bool,
    },
    /// A command ends, or is ended.
    Command {
        ticket: Ticket,
        name: String,
        since: Nanos,
        result: Result<(), EngineError>,
    },
    Exit {
        name: String,
        pid: u32,
        exit: Exit,
    },
}

impl FakeEngine {
    /// An engine at time zero, with no containers and every image.
    pub fn new(config: FakeConfig) -> FakeEngine {
        FakeEngine(Arc::new(Mutex::new(State {
            random: Random::new(config.seed),
            config,
            now: Nanos::ZERO,
            next_order: 0,
            next_pid: 1_000,
            containers: BTreeMap::new(),
            agenda: BTreeMap::new(),
            waiting: BTreeMap::new(),
            busy: BTreeSet::new(),
            create_queue: VecDeque::new(),
            creating: 0,
            in_hand: 0,
            images: None,
            exec_status: Some(0),
            down_since: None,
            events: Vec::new(),
        })))
    }

    /// Moves time on: everything due by `now` happens, in order. Time never goes back.
    pub fn advance(&self, now: Nanos) {
        let mut state = self.state();
        while let Some((&(at, order), _)) = state.agenda.first_key_value() {
            if at > now {
                break;
            }
            state.now = state.now.max(at);
            if let Some(deed) = state.agenda.remove(&(at, order)) {
                state.happen(deed);
            }
        }
        state.now = state.now.max(now);
    }

    /// When the next thing happens, if anything is on the way.
    pub fn next_at(&self) -> Option<Nanos> {
        self.state().agenda.first_key_value().map(|((at, _), _)| *at)
    }

    /// Only these images exist from now on.
    pub fn set_images<'a>(&self, names: impl IntoIterator<Item = &'a str>) {
        let names = names
            .into_iter()
            .map(|name| crate::ImageRef::from(name).with_tag())
            .collect();
        self.state().images = Some(names);
    }

    /// Commands that are run in a container exit with this from now on; `None`: they do not end by themselves.
    pub fn set_exec_status(&self, status: Option<i32>) {
        self.state().exec_status = status;
    }

    /// Other faults from now on.
    pub fn set_faults(&self, faults: Faults) {
        self.state().config.faults = faults;
    }

    /// The engine stops answering, or answers again; its containers run on.
    pub fn set_down(&self, down: bool) {
        let mut state = self.state();
        let now = state.now;
        match (down, state.down_since) {
            (true, None) => {
                state.down_since = Some(now);
                let reason = "the fake engine was stopped".to_owned();
                state.events.push(EngineEvent::EngineDown {
                    place: None,
                    reason,
                    at: now,
                });
                // Requests in progress fail, as at the end of a daemon.
                let mut failed: Vec<Ticket> = Vec::new();
                state.agenda.retain(|_, deed| match deed {
                    Deed::Finish { ticket, .. } | Deed::Command { ticket, .. } => {
                        failed.push(*ticket);
                        false
                    }
                    Deed::Exit { .. } => true,
                });
                let creates = std::mem::take(&mut state.create_queue);
                failed.extend(creates.into_iter().map(|(ticket, ..)| ticket));
                let waiting = std::mem::take(&mut state.waiting);
                failed.extend(waiting.into_values().flatten().map(|(ticket, ..)| ticket));
                state.busy.clear();
                state.creating = 0;
                for ticket in failed {
                    state.fail(
                        ticket,
                        EngineError::Unavailable {
                            reason: "the fake engine was stopped".into(),
                        },
                    );
                }
            }
            (false, Some(since)) => {
                state.down_since = None;
                state.events.push(EngineEvent::EngineUp {
                    place: None,
                    at: now,
                    after: now.since(since),
                });
            }
            _ => {}
        }
    }

    /// The container's program ends by this signal, as by `kill`. False where none runs.
    pub fn kill(&self, name: &str, signal: i32) -> bool {
        self.end(
            name,
            Exit {
                signal: Some(signal),
                ..Exit::default()
            },
        )
    }

    /// The container's program exits. False where none runs.
    pub fn exit(&self, name: &str, status: i32) -> bool {
        self.end(
            name,
            Exit {
                status: Some(status),
                ..Exit::default()
            },
        )
    }

    /// The container's program no longer reacts to SIGTERM. False where none runs.
    pub fn hang(&self, name: &str) -> bool {
        let mut state = self.state();
        state
            .running(name)
            .map(|container| container.hangs = true)
            .is_ok()
    }

    /// The quota that a container has now.
    pub fn quota(&self, name: &str) -> Option<CpuQuota> {
        self.state()
            .containers
            .get(name)
            .and_then(|container| container.quota)
    }

    /// Every container that exists, by name.
    pub fn containers(&self) -> Vec<Container> {
        let state = self.state();
        state
            .containers
            .iter()
            .map(|(name, container)| container.record(name))
            .collect()
    }

    fn end(&self, name: &str, exit: Exit) -> bool {
        let mut state = self.state();
        let Ok(pid) = state.running(name).map(|container| container.pid) else {
            return false;
        };
        let delay = state.draw(|config| config.notice);
        state.schedule(
            delay,
            Deed::Exit {
                name: name.to_owned(),
                pid,
                exit,
            },
        );
        true
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl FakeContainer {
    fn record(&self, name: &str) -> Container {
        Container {
            name: name.to_owned(),
            labels: self.labels.clone(),
            pid: if self.state == ContainerState::Exited {
                0
            } else {
                self.pid
            },
            state: self.state,
            started_unix_ms: self.started_unix_ms,
            address: None,
        }
    }
}

impl State {
    fn draw(&mut self, latency: impl Fn(&FakeConfig) -> Latency) -> Nanos {
        let latency = latency(&self.config);
        let extra = self.random.below(latency.jitter.0.saturating_add(1).max(1));
        latency.base + Nanos(extra)
    }

    fn schedule(&mut self, delay: Nanos, deed: Deed) {
        self.next_order += 1;
        self.agenda.insert((self.now + delay, self.next_order), deed);
    }

    fn running(&mut self, name: &str) -> Result<&mut FakeContainer, EngineError> {
        match self.containers.get_mut(name) {
            Some(container) if container.state != ContainerState::Exited => Ok(container),
            Some(_) => Err(EngineError::NotRunning {
                name: name.to_owned(),
            }),
            None => Err(EngineError::NotFound {
                name: name.to_owned(),
            }),
        }
    }

    fn fail(&mut self, ticket: Ticket, error: EngineError) {
        self.in_hand = self.in_hand.saturating_sub(1);
        self.events.push(EngineEvent::Failed {
            ticket,
            error,
            at: self.now,
        });
    }

    fn done(&mut self, ticket: Ticket, since: Nanos) {
        self.in_hand = self.in_hand.saturating_sub(1);
        self.events.push(EngineEvent::Done {
            ticket,
            at: self.now,
            took: self.now.since(since),
        });
    }

    fn take(&mut self, ticket: Ticket, request: Request) {
        self.in_hand += 1;
        if self.in_hand > MAX_REQUESTS {
            return self.fail(ticket, EngineError::Busy { limit: MAX_REQUESTS });
        }
        if self.down_since.is_some() {
            let reason = "the fake engine was stopped".to_owned();
            return self.fail(ticket, EngineError::Unavailable { reason });
        }
        let since = self.now;
        if self.busy.contains(request.name()) && !matches!(request, Request::Exec { .. }) {
            let queue = self.waiting.entry(request.name().to_owned()).or_default();
            queue.push_back((ticket, request, since));
        } else {
            self.begin(ticket, request, since);
        }
    }

    /// What comes of a command, and after which time; at once where it cannot run.
    fn execute(
        &mut self,
        name: &str,
        command: &[String],
        limit: Nanos,
    ) -> Result<(Nanos, Result<Executed, EngineError>), EngineError> {
        check_command(command)?;
        if self.running(name)?.state == ContainerState::Paused {
            return Err(EngineError::NotRunning {
                name: name.to_owned(),
            });
        }
        let took = self.draw(|config| config.exec);
        let Some(status) = self.exec_status.filter(|_| took < limit) else {
            let error = EngineError::Timeout {
                verb: "run a command in",
                name: name.to_owned(),
                after: limit,
            };
            return Ok((limit, Err(error)));
        };
        let exit = Exit {
            status: Some(status),
            ..Exit::default()
        };
        let output = Vec::new();
        Ok((took, Ok(Executed { exit, output })))
    }

    fn run_command(&mut self, ticket: Ticket, name: String, command: &[String], limit: Nanos) {
        let since = self.now;
        let (delay, result) = match self.execute(&name, command, limit) {
            Ok((delay, executed)) => (delay, executed.and_then(|executed| executed.verdict(&name))),
            Err(error) => return self.fail(ticket, error),
        };
        let deed = Deed::Command {
            ticket,
            name,
            since,
            result,
        };
        self.schedule(delay, deed);
    }

    fn begin(&mut self, ticket: Ticket, request: Request, since: Nanos) {
        let faults = self.config.faults;
        let (delay, fails) = match &request {
            Request::Exec { name, command, limit } => {
                return self.run_command(ticket, name.clone(), command, *limit);
            }
            Request::Create(spec) => {
                self.busy.insert(spec.name.clone());
                self.create_queue.push_back((ticket, spec.clone(), since));
                return self.begin_creates();
            }
            Request::Pause { .. } => (self.draw(|c| c.pause), self.random.happens(faults.pause_fails)),
            Request::Resume { .. } => (self.draw(|c| c.resume), self.random.happens(faults.pause_fails)),
            Request::SetQuota { .. } => (self.draw(|c| c.quota), self.random.happens(faults.quota_fails)),
            Request::Stop { name, grace } => {
                let fails = self.random.happens(faults.remove_fails);
                let usual = self.draw(|c| c.stop);
                let hangs = self.containers.get(name).is_some_and(|container| container.hangs);
                (if hangs { *grace + usual } else { usual }, fails)
            }
            Request::Remove { .. } => (self.draw(|c| c.remove), self.random.happens(faults.remove_fails)),
        };
        self.busy.insert(request.name().to_owned());
        self.schedule(
            delay,
            Deed::Finish {
                ticket,
                request,
                since,
                fails,
            },
        );
    }

    fn begin_creates(&mut self) {
        while self.creating < self.config.creates_at_once.max(1) {
            let Some((ticket, spec, since)) = self.create_queue.pop_front() else {
                break;
            };
            self.creating += 1;
            let faults = self.config.faults;
            let mut delay = self.draw(|c| c.create);
            if self.random.happens(faults.create_is_slow) {
                delay = Nanos(delay.0.saturating_mul(100));
            }
            let fails = self.random.happens(faults.create_fails);
            self.schedule(
                delay,
                Deed::Finish {
                    ticket,
                    request: Request::Create(spec),
                    since,
                    fails,
                },
            );
        }
    }

    fn happen(&mut self, deed: Deed) {
        match deed {
            Deed::Exit { name, pid, exit } => {
                // Only if it is still that program: the name may have been used again.
                if self
                    .containers
                    .get(&name)
                    .is_some_and(|container| container.pid == pid)
                {
                    self.exited(&name, exit);
                }
            }
            Deed::Command {
                ticket,
                since,
                result,
                ..
            } => match result {
                Ok(()) => self.done(ticket, since),
                Err(error) => self.fail(ticket, error),
            },
            Deed::Finish {
                ticket,
                request,
                since,
                fails,
            } => {
                let name = request.name().to_owned();
                if matches!(request, Request::Create(_)) {
                    self.creating = self.creating.saturating_sub(1);
                }
                let verb = request.verb();
                if fails {
                    let reason = "the fake engine was told to fail".to_owned();
                    self.fail(
                        ticket,
                        EngineError::Refused {
                            verb,
                            name: name.clone(),
                            reason,
                        },
                    );
                } else if let Err(error) = self.finish(ticket, request, since) {
                    self.fail(ticket, error);
                }
                self.busy.remove(&name);
                if let Some(queue) = self.waiting.get_mut(&name) {
                    let next = queue.pop_front();
                    if queue.is_empty() {
                        self.waiting.remove(&name);
                    }
                    if let Some((ticket, request, since)) = next {
                        self.begin(ticket, request, since);
                    }
                }
                self.begin_creates();
            }
        }
    }

    fn finish(&mut self, ticket: Ticket, request: Request, since: Nanos) -> Result<(), EngineError> {
        match request {
            // It has a deed of its own.
            Request::Exec { .. } => return Ok(()),
            Request::Create(spec) => return self.create(ticket, *spec, since),
            Request::Pause { name } => self.running(&name)?.state = ContainerState::Paused,
            Request::Resume { name } => self.running(&name)?.state = ContainerState::Running,
            Request::SetQuota { name, quota } => {
                quota.map_or(Ok(()), |quota| quota.check())?;
                self.running(&name)?.quota = quota;
            }
            Request::Stop { name, grace } => {
                let container = self
                    .containers
                    .get(&name)
                    .ok_or_else(|| EngineError::NotFound { name: name.clone() })?;
                let signal = if grace == Nanos::ZERO || container.hangs {
                    9
                } else {
                    15
                };
                self.exited(
                    &name,
                    Exit {
                        signal: Some(signal),
                        ..Exit::default()
                    },
                );
            }
            Request::Remove { name } => {
                self.exited(
                    &name,
                    Exit {
                        signal: Some(9),
                        ..Exit::default()
                    },
                );
                self.containers.remove(&name);
            }
        }
        self.done(ticket, since);
        Ok(())
    }

    fn create(&mut self, ticket: Ticket, spec: ContainerSpec, since: Nanos) -> Result<(), EngineError> {
        spec.check()?;
        if self.containers.contains_key(&spec.name) {
            return Err(EngineError::NameTaken { name: spec.name });
        }
        if self
            .images
            .as_ref()
            .is_some_and(|images| !images.contains(&spec.image.with_tag()))
        {
            return Err(EngineError::ImageMissing {
                image: spec.image.with_tag(),
            });
        }
        self.next_pid += 1;
        let pid = self.next_pid;
        let container = FakeContainer {
            labels: spec.labels,
            pid,
            state: ContainerState::Running,
            quota: spec.cpu,
            hangs: false,
            started_unix_ms: self.now.as_millis(),
        };
        self.containers.insert(spec.name.clone(), container);
        self.in_hand = self.in_hand.saturating_sub(1);
        let took = self.now.since(since);
        self.events.push(EngineEvent::Created {
            ticket,
            name: spec.name.clone(),
            pid,
            address: None,
            at: self.now,
            took,
        });
        if self.random.happens(self.config.faults.dies_at_start) {
            let delay = Nanos(self.random.below(Nanos::from_millis(10).0));
            let exit = Exit {
                signal: Some(11),
                ..Exit::default()
            };
            self.schedule(
                delay,
                Deed::Exit {
                    name: spec.name,
                    pid,
                    exit,
                },
            );
        }
        Ok(())
    }

    fn exited(&mut self, name: &str, exit: Exit) {
        let at = self.now;
        // Commands that run in it end with it.
        let killed = Exit {
            signal: Some(9),
            ..Exit::default()
        };
        let mut ended = Vec::new();
        self.agenda.retain(|_, deed| match deed {
            Deed::Command {
                ticket, name: own, ..
            } if own == name => {
                ended.push(*ticket);
                false
            }
            _ => true,
        });
        for ticket in ended {
            self.fail(ticket, killed.failed_command(name, ""));
        }
        if let Ok(container) = self.running(name) {
            container.state = ContainerState::Exited;
            self.events.push(EngineEvent::Exited {
                name: name.to_owned(),
                exit,
                output: String::new(),
                at,
            });
        }
    }
}

impl Engine for FakeEngine {
    fn driver(&self) -> &'static str {
        "fake"
    }

    fn is_local(&self) -> bool {
        true
    }

    fn submit(&mut self, ticket: Ticket, request: Request) {
        self.state().take(ticket, request);
    }

    /// Takes no time: nothing that is simulated waits for it.
    fn execute(&mut self, execution: Execution) {
        let Execution {
            name,
            command,
            limit,
            answer,
        } = execution;
        let executed = self.state().execute(&name, &command, limit);
        answer(executed.and_then(|(_, executed)| executed));
    }

    fn poll(&mut self, events: &mut Vec<EngineEvent>) {
        events.append(&mut self.state().events);
    }

    fn list(&mut self, label: &Label) -> Result<Vec<Container>, EngineError> {
        let state = self.state();
        if state.down_since.is_some() {
            return Err(EngineError::Unavailable {
                reason: "the fake engine was stopped".to_owned(),
            });
        }
        let carrying = state
            .containers
            .iter()
            .filter(|(_, container)| label.is_on(&container.labels));
        Ok(carrying.map(|(name, container)| container.record(name)).collect())
    }

    fn usage(&self, name: &str) -> Result<Usage, EngineError> {
        let state = self.state();
        let container = state.containers.get(name);
        container
            .map(|_| Usage::default())
            .ok_or_else(|| EngineError::NotFound {
                name: name.to_owned(),
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn poll(engine: &mut FakeEngine) -> Vec<EngineEvent> {
        let mut events = Vec::new();
        engine.poll(&mut events);
        events
    }

    fn create(name: &str) -> Request {
        Request::Create(Box::new(ContainerSpec::new(name, "inco/forward")))
    }

    fn config() -> FakeConfig {
        FakeConfig {
            create: Latency::exactly(Nanos::from_millis(10)),
            creates_at_once: 2,
            ..FakeConfig::default()
        }
    }

    #[test]
    fn nothing_happens_before_its_time() {
        let mut engine = FakeEngine::new(config());
        engine.submit(Ticket(1), create("inco-a-1"));
        engine.advance(Nanos::from_micros(9_999));
        assert_eq!(poll(&mut engine), vec![]);
        engine.advance(Nanos::from_millis(10));
        let events = poll(&mut engine);
        assert!(
            matches!(&events[..], [EngineEvent::Created { ticket: Ticket(1), at, took, .. }]
                if *at == Nanos::from_millis(10) && *took == Nanos::from_millis(10)),
            "{events:?}"
        );
    }

    #[test]
    fn creates_beyond_those_at_once_wait_for_their_turn() {
        let mut engine = FakeEngine::new(config());
        for i in 0..5 {
            engine.submit(Ticket(i), create(&format!("inco-a-{i}")));
        }
        engine.advance(Nanos::from_secs(1));
        let at: Vec<u64> = poll(&mut engine)
            .iter()
            .map(|event| match event {
                EngineEvent::Created { at, .. } => at.as_millis(),
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(at, [10, 10, 20, 20, 30]);
    }

    #[test]
    fn requests_for_one_container_keep_their_order() {
        let mut engine = FakeEngine::new(config());
        engine.submit(Ticket(1), create("inco-a-1"));
        engine.submit(
            Ticket(2),
            Request::Pause {
                name: "inco-a-1".into(),
            },
        );
        engine.submit(
            Ticket(3),
            Request::Remove {
                name: "inco-a-1".into(),
            },
        );
        engine.advance(Nanos::from_secs(1));
        let events = poll(&mut engine);
        assert!(
            matches!(
                &events[..],
                [
                    EngineEvent::Created {
                        ticket: Ticket(1),
                        ..
                    },
                    EngineEvent::Done {
                        ticket: Ticket(2),
                        ..
                    },
                    EngineEvent::Exited { .. },
                    EngineEvent::Done {
                        ticket: Ticket(3),
                        ..
                    },
                ]
            ),
            "{events:?}"
        );
        assert!(engine.containers().is_empty());
    }

    #[test]
    fn a_killed_program_is_noticed_after_the_notice_latency() {
        let mut engine = FakeEngine::new(config());
        engine.submit(Ticket(1), create("inco-a-1"));
        engine.advance(Nanos::from_millis(10));
        poll(&mut engine);
        assert!(engine.kill("inco-a-1", 9));
        engine.advance(Nanos::from_millis(11));
        let events = poll(&mut engine);
        assert!(
            matches!(
                &events[..],
                [EngineEvent::Exited {
                    exit: Exit { signal: Some(9), .. },
                    ..
                }]
            ),
            "{events:?}"
        );
        assert!(!engine.kill("inco-a-1", 9));
    }

    #[test]
    fn while_it_is_down_every_request_fails_and_containers_stay() {
        let mut engine = FakeEngine::new(config());
        engine.submit(Ticket(1), create("inco-a-1"));
        engine.advance(Nanos::from_millis(10));
        engine.submit(Ticket(2), create("inco-a-2"));
        engine.set_down(true);
        engine.submit(Ticket(3), create("inco-a-3"));
        engine.advance(Nanos::from_secs(30));
        assert!(engine.list(&Label::any("x")).is_err());
        engine.set_down(false);
        let events = poll(&mut engine);
        let failed: Vec<u64> = events
            .iter()
            .filter_map(|event| match event {
                EngineEvent::Failed { ticket, error, .. } if error.is_transient() => Some(ticket.0),
                _ => None,
            })
            .collect();
        assert_eq!(failed, [2, 3]);
        assert_eq!(
            events
                .iter()
                .filter(|event| matches!(event, EngineEvent::EngineDown { .. }))
                .count(),
            1
        );
        assert_eq!(engine.containers().len(), 1);
        engine.submit(Ticket(4), create("inco-a-4"));
        engine.advance(Nanos::from_secs(31));
        assert!(matches!(
            &poll(&mut engine)[..],
            [EngineEvent::Created {
                ticket: Ticket(4),
                ..
            }]
        ));
    }

    #[test]
    fn one_seed_is_one_course_of_events() {
        let run = |seed| {
            let faults = Faults {
                create_fails: 0.3,
                dies_at_start: 0.3,
                ..Faults::default()
            };
            let mut engine = FakeEngine::new(FakeConfig {
                seed,
                faults,
                ..FakeConfig::default()
            });
            for i in 0..50 {
                engine.submit(Ticket(i), create(&format!("inco-a-{i}")));
            }
            engine.advance(Nanos::from_secs(10));
            poll(&mut engine)
        };
        assert_eq!(run(7), run(7));
        assert_ne!(run(7), run(8));
    }

    #[test]
    fn every_request_has_exactly_one_answer() {
        let all = Faults {
            create_fails: 0.2,
            create_is_slow: 0.1,
            dies_at_start: 0.2,
            pause_fails: 0.2,
            quota_fails: 0.2,
            remove_fails: 0.2,
        };
        for seed in 0..20 {
            let mut engine = FakeEngine::new(FakeConfig {
                seed,
                faults: all,
                ..FakeConfig::default()
            });
            let mut answers = BTreeMap::new();
            let mut asked = 0;
            for step in 0..400_u64 {
                let name = format!("inco-a-{}", step % 7);
                let request = match (step * 31 + seed) % 6 {
                    0 | 1 => create(&name),
                    2 => Request::Pause { name },
                    3 => Request::Resume { name },
                    4 => Request::Stop {
                        name,
                        grace: Nanos::from_millis(5),
                    },
                    _ => Request::Remove { name },
                };
                engine.submit(Ticket(step), request);
                asked += 1;
                if step == 200 {
                    engine.set_down(true);
                }
                if step == 220 {
                    engine.set_down(false);
                }
                engine.advance(Nanos::from_millis(step * 2));
            }
            engine.advance(Nanos::from_secs(100));
            for event in poll(&mut engine) {
                if let EngineEvent::Created { ticket, .. }
                | EngineEvent::Done { ticket, .. }
                | EngineEvent::Failed { ticket, .. } = event
                {
                    *answers.entry(ticket).or_insert(0) += 1;
                }
            }
            assert_eq!(answers.len(), asked, "seed {seed}");
            assert!(answers.values().all(|count| *count == 1), "seed {seed}");
        }
    }
}
