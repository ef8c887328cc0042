//! A node: a FAKE inco with the real server of its API, and an operator.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use api::types::{Outcome, Refusal, ServiceRow, Snapshot, Status};
use api::{ControlRequest, Endpoint, EventLog, Server, ServerSettings, request_queue};
use model::{Action, Event, EventKind, KeyChange, Nanos, Rollout, RolloutState};
use operator::plan::Fault;
use operator::{Files, Settings};
use toml::{Table, Value};

use crate::cluster;

const BASE: &str = "[service.own]\nport = \"null\"\n";

/// A line with which inco takes no file, whatever its services are.
const UNUSABLE: &str = "# without a device";

type Services = std::collections::BTreeMap<String, Value>;

#[derive(Default)]
struct Known {
    services: Mutex<Services>,
    loads: AtomicU32,
    starts: AtomicU32,
    rollouts: Mutex<Rollouts>,
}

/// What inco replaces, and has replaced.
#[derive(Default)]
struct Rollouts {
    of: std::collections::BTreeMap<String, Rollout>,
    begun: u32,
    cancelled: u32,
    /// Whether none begins.
    are_refused: bool,
}

pub(crate) struct Node {
    folder: tempfile::TempDir,
    known: Arc<Known>,
    _server: Server,
    stop: Arc<AtomicBool>,
    operator: Option<JoinHandle<()>>,
}

fn services(text: &str) -> Services {
    let mut all: Table = toml::from_str(text).unwrap();
    let Some(Value::Table(of)) = all.remove("service") else {
        return Services::new();
    };
    of.into_iter().collect()
}

/// A rule of a checker: a configuration has a service.
fn check(text: &str) -> Vec<Fault> {
    let fault = |key: &str, text: String| Fault {
        key: key.to_owned(),
        text,
    };
    match toml::from_str::<Table>(text) {
        Err(error) => vec![fault("", error.to_string())],
        Ok(all) if all.contains_key("service") => Vec::new(),
        Ok(_) => vec![fault("service", "there is none; write one".to_owned())],
    }
}

fn changes(before: &Services, after: &Services) -> Vec<KeyChange> {
    let mut names: Vec<&String> = before.keys().chain(after.keys()).collect();
    names.sort();
    names.dedup();
    let changed = names
        .into_iter()
        .filter(|name| before.get(*name) != after.get(*name));
    let change = |name: &String| KeyChange {
        key: format!("service.{name}"),
        old: before.get(name).map(ToString::to_string),
        new: after.get(name).map(ToString::to_string),
        needs_restart: !after.contains_key(name),
    };
    changed.map(change).collect()
}

/// The services of which another image makes other instances.
fn differ(before: &str, after: &str) -> Vec<String> {
    let (before, after) = (services(before), services(after));
    let is_other = |(name, of): &(&String, &Value)| {
        before
            .get(*name)
            .is_some_and(|it| it.get("image") != of.get("image"))
    };
    let others = after.iter().filter(is_other);
    others.map(|(name, _)| name.clone()).collect()
}

fn event(events: &EventLog, service: Option<String>, kind: EventKind) {
    events.push(Event {
        sequence: events.newest() + 1,
        at: Nanos(1),
        unix_ms: 1,
        service,
        instance: None,
        kind,
    });
}

fn roll_out(known: &Known, events: &EventLog, service: &str, cancel: bool) -> Result<Outcome, Refusal> {
    let mut rollouts = known.rollouts.lock().unwrap();
    if rollouts.are_refused {
        return Err(Refusal::new("not now", "try again"));
    }
    let there = rollouts.of.get(service);
    let is_running = there.is_some_and(|of| of.state == RolloutState::Running);
    if is_running && !cancel {
        return Err(Refusal::new("a rollout goes on", "wait"));
    }
    let (state, reason) = match cancel {
        true => (RolloutState::Aborted, "canceled"),
        false => (RolloutState::Running, "started"),
    };
    match cancel {
        true => rollouts.cancelled += 1,
        false => rollouts.begun += 1,
    }
    let of = Rollout {
        state,
        replaced: 0,
        total: 2,
        reason: reason.to_owned(),
    };
    rollouts.of.insert(service.to_owned(), of);
    let kind = EventKind::Rollout {
        state,
        replaced: 0,
        total: 2,
        reason: reason.to_owned(),
    };
    event(events, Some(service.to_owned()), kind);
    Ok(Outcome {
        result: "done".to_owned(),
        changes: Vec::new(),
        command: None,
    })
}

fn act(known: &Known, events: &EventLog, file: &PathBuf, action: &Action) -> Result<Outcome, Refusal> {
    if let Action::Rollout { service, cancel } = action {
        return roll_out(known, events, service, *cancel);
    }
    let text = std::fs::read_to_string(file).unwrap();
    if text.contains(UNUSABLE) {
        return Err(Refusal::new("the device is not there", "nothing has changed"));
    }
    let after = services(&text);
    let is_missing = |of: &Value| of.get("image").and_then(Value::as_str) == Some("missing");
    if let Some((name, _)) = after.iter().find(|(_, of)| is_missing(of)) {
        let said = format!("inco.toml:7: service.{name}.image: there is no image \"missing\"; build it");
        return Err(Refusal::new(said, "nothing has changed"));
    }
    if after
        .values()
        .any(|of| of.get("image").and_then(Value::as_str) == Some("slow"))
    {
        return Err(Refusal::new(
            "an image of the file is still being pulled",
            "reload again",
        ));
    }
    let mut services = known.services.lock().unwrap();
    let changes = changes(&services, &after);
    match action {
        Action::Reload { check: true } => {}
        Action::Reload { check: false } => {
            assert!(changes.iter().all(|of| !of.needs_restart));
            known.loads.fetch_add(1, Ordering::Relaxed);
            *services = after;
        }
        Action::Upgrade { .. } => {
            known.starts.fetch_add(1, Ordering::Relaxed);
            *services = after;
            let kind = EventKind::Upgraded {
                from: "1".to_owned(),
                to: "1".to_owned(),
                pause_ms: 1,
            };
            event(events, None, kind);
        }
        other => panic!("{other:?} was not expected"),
    }
    Ok(Outcome {
        result: "done".to_owned(),
        changes,
        command: None,
    })
}

fn rows(known: &Known) -> Vec<ServiceRow> {
    let services = known.services.lock().unwrap();
    let rollouts = known.rollouts.lock().unwrap();
    let row = |(name, of): (&String, &Value)| {
        let min = of
            .get("instances")
            .and_then(|of| of.get("min"))
            .and_then(Value::as_integer);
        let count = u32::try_from(min.unwrap_or(1)).unwrap();
        ServiceRow {
            name: name.clone(),
            active: count,
            desired: count,
            rollout: rollouts.of.get(name).cloned(),
            ..ServiceRow::default()
        }
    };
    services.iter().map(row).collect()
}

impl Node {
    pub(crate) fn start(cluster: &dyn cluster::Server, name: &str) -> Node {
        let folder = tempfile::tempdir().unwrap();
        let (asker, mut inbox) = request_queue();
        let events = EventLog::with_limit(100);
        let socket = folder.path().join("api.sock");
        let server = Server::start(ServerSettings::on(&socket), asker, events.clone()).unwrap();
        let known = Arc::new(Known::default());
        let (shared, file) = (Arc::clone(&known), folder.path().join("inco.toml"));
        *known.services.lock().unwrap() = services(BASE);
        std::thread::spawn(move || {
            while let Some(request) = inbox.wait() {
                match request {
                    ControlRequest::Status(answer) => answer.give(Status {
                        events: events.newest(),
                        ..Status::default()
                    }),
                    ControlRequest::Services(answer) => answer.give(rows(&shared)),
                    ControlRequest::Snapshot(answer) => answer.give(Snapshot {
                        status: Status {
                            events: events.newest(),
                            ..Status::default()
                        },
                        services: rows(&shared),
                        ..Snapshot::default()
                    }),
                    ControlRequest::Act(action, _, answer) => {
                        answer.give(act(&shared, &events, &file, &action))
                    }
                    other => panic!("{other:?} was not expected"),
                }
            }
        });
        std::fs::write(folder.path().join("base.toml"), BASE).unwrap();
        let mut node = Node {
            folder,
            known,
            _server: server,
            stop: Arc::default(),
            operator: None,
        };
        node.run(cluster, name);
        node
    }

    fn run(&mut self, cluster: &dyn cluster::Server, name: &str) {
        let settings = Settings {
            files: Files {
                base: self.folder.path().join("base.toml"),
                file: self.folder.path().join("inco.toml"),
            },
            node: name.to_owned(),
            namespace: None,
            cluster: kubernetes::Cluster {
                kubeconfig: Some(cluster.kubeconfig()),
                context: None,
            },
            endpoint: Endpoint::Socket(self.folder.path().join("api.sock")),
            pool: operator::addresses::Pool::parse("10.0.0.100-10.0.0.120").unwrap(),
            metrics: None,
            program: PathBuf::from("/usr/local/bin/inco"),
        };
        self.stop = Arc::default();
        let stop = Arc::clone(&self.stop);
        let run = move || operator::run(&settings, &check, &differ, &stop).unwrap();
        self.operator = Some(std::thread::spawn(run));
    }

    /// Ends the operator, and runs another one.
    pub(crate) fn operator_again(self, cluster: &dyn cluster::Server) -> Node {
        self.operator_after(cluster, |_| ())
    }

    /// The same; meanwhile, without an operator, that happens.
    pub(crate) fn operator_after(
        mut self,
        cluster: &dyn cluster::Server,
        happens: impl FnOnce(&Node),
    ) -> Node {
        self.halt();
        happens(&self);
        self.run(cluster, "n1");
        self
    }

    fn halt(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(operator) = self.operator.take() {
            operator.join().unwrap();
        }
    }

    pub(crate) fn end(mut self) {
        self.halt();
    }

    /// Has inco refuse each file from now on, by a change of the base file.
    pub(crate) fn spoil(&self) {
        let base = format!("{UNUSABLE}\n{BASE}");
        std::fs::write(self.folder.path().join("base.toml"), base).unwrap();
    }

    /// The services that inco has.
    pub(crate) fn services(&self) -> Vec<String> {
        self.known.services.lock().unwrap().keys().cloned().collect()
    }

    /// The file that inco would start with.
    pub(crate) fn text(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("inco.toml")).unwrap()
    }

    /// How often inco has taken the file.
    pub(crate) fn loads(&self) -> u32 {
        self.known.loads.load(Ordering::Relaxed)
    }

    /// How often inco has started again.
    pub(crate) fn starts(&self) -> u32 {
        self.known.starts.load(Ordering::Relaxed)
    }

    /// How many rollouts have begun, and how many were cancelled.
    pub(crate) fn rollouts(&self) -> (u32, u32) {
        let rollouts = self.known.rollouts.lock().unwrap();
        (rollouts.begun, rollouts.cancelled)
    }

    /// Has no rollout begin, or has it begin again.
    pub(crate) fn refuse_rollouts(&self, refuse: bool) {
        self.known.rollouts.lock().unwrap().are_refused = refuse;
    }

    /// Ends all rollouts.
    pub(crate) fn end_rollouts(&self, state: RolloutState) {
        for of in self.known.rollouts.lock().unwrap().of.values_mut() {
            (of.state, of.reason) = (state, "it ended".to_owned());
        }
    }

    /// As when inco starts again: it knows of no rollout.
    pub(crate) fn lose_rollouts(&self) {
        self.known.rollouts.lock().unwrap().of.clear();
    }
}
