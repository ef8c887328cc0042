//! The engine `swarm`: each container is the one task of a service of Docker's Swarm, because a service that shrinks
//! chooses itself which of its tasks ends. The swarm chooses the node, gets the image there and keeps limits; nothing
//! here does.
//!
//! A task is not started again by the swarm (restart condition `none`): an end is told to the caller, who has another
//! one made. Were it started again, flows that are pinned to it would find a program that knows nothing of them, maybe
//! at another address.
//!
//! What becomes of tasks is read from the manager's list of them. Containers on other machines have neither a process
//! nor a control group here, so they are not paused, given another quota or looked into: [`Abilities`].

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use bollard::Docker;
use bollard::auth::DockerCredentials;
use bollard::errors::Error;
use bollard::models::{
    EndpointPortConfig, EndpointPortConfigProtocolEnum, EndpointPortConfigPublishModeEnum, EndpointSpec,
    EndpointSpecModeEnum, Limit, Mount as DockerMount, MountType, NetworkAttachmentConfig, Node, NodeState,
    ResourceObject, ServiceSpec, ServiceSpecMode, ServiceSpecModeReplicated, Task as SwarmTask, TaskSpec,
    TaskSpecContainerSpec, TaskSpecContainerSpecConfigs, TaskSpecContainerSpecFile,
    TaskSpecContainerSpecFile1, TaskSpecContainerSpecSecrets, TaskSpecPlacement,
    TaskSpecPlacementPreferences, TaskSpecPlacementSpread, TaskSpecResources, TaskSpecRestartPolicy,
    TaskSpecRestartPolicyConditionEnum, TaskState,
};
use bollard::query_parameters::{
    InspectServiceOptions, ListConfigsOptions, ListNodesOptions, ListSecretsOptions, ListServicesOptions,
    ListTasksOptions, UpdateServiceOptions,
};
use clock::monotonic;
use model::{CAPABILITIES, Nanos, TaskFile, TaskNetwork, TaskOptions, TaskProtocol};
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::LocalSet;
use tokio::time::{sleep, timeout};

use crate::container::{Task, TaskAsk};
use crate::docker::{CONNECT_LIMIT, connect, is_throttled, silent, unavailable};
use crate::docker_config::DockerConfig;
use crate::fate::{Fate, exit_of};
use crate::front::{Command, Front, LIST_LIMIT};
use crate::link::{Link, Turns, late};
use crate::{
    Abilities, Container, ContainerSpec, ContainerState, Engine, EngineError, EngineEvent, Execution, Exit,
    Label, Request, Ticket, Usage,
};

/// The driver's name.
const DRIVER: &str = "swarm";
/// The longest name of a service that a swarm takes, in bytes.
const NAME_LIMIT: usize = 63;
/// How long a manager may take for an answer.
const ANSWER: Duration = Duration::from_secs(10);
/// How long it may take for its list of tasks before it counts as away.
const LOOK_LIMIT: Duration = Duration::from_secs(5);
/// How often it is asked for its tasks while one is to begin or to end.
const LOOK_SOON: Duration = Duration::from_millis(25);
/// How often it is asked otherwise.
const LOOK: Duration = Duration::from_millis(250);
/// How long it is left alone at most where it says that it is asked too often, or does not answer.
const LOOK_LATE: Duration = Duration::from_secs(8);
/// How long a node may take to end a task beyond its grace, and to remove it.
const END_LIMIT: Duration = Duration::from_secs(30);
/// Nanoseconds of CPU time in a second, as the swarm counts CPUs.
const NANO_CPUS: f64 = 1e9;

/// A manager of a swarm. See the [module](self).
#[derive(Debug)]
pub struct SwarmEngine {
    front: Front,
}

impl SwarmEngine {
    /// Connects, and starts the engine's thread. Blocks for up to 15 s.
    ///
    /// # Errors
    /// [`EngineError::Unavailable`] where nothing answers there, or no manager of a swarm; [`EngineError::BadSpec`] for
    /// a host that cannot be.
    pub fn start(config: DockerConfig) -> Result<SwarmEngine, EngineError> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| EngineError::io("start", Path::new("engine thread"), &error))?;
        let docker = runtime.block_on(async {
            let (docker, _) = connect(&config).await?;
            must_manage(&docker).await?;
            Ok(docker)
        })?;
        let (commands, mut received) = mpsc::unbounded_channel();
        let (told, events) = std::sync::mpsc::channel();
        let run = move || {
            let swarm = Rc::new(Swarm {
                config,
                docker,
                link: Link::new(told),
                known: RefCell::default(),
                nodes: RefCell::default(),
                turns: Turns::default(),
                hurries: Cell::new(0),
                hurry: Notify::new(),
            });
            let tasks = LocalSet::new();
            tasks.spawn_local(Rc::clone(&swarm).keep_looking());
            tasks.block_on(&runtime, async move {
                while let Some(command) = received.recv().await {
                    match command {
                        Command::Request {
                            ticket,
                            request,
                            since,
                        } => swarm.take(ticket, request, since),
                        Command::Execute { execution, .. } => {
                            let Execution { name, answer, .. } = execution;
                            answer(Err(lacks("run a command in", &name)));
                        }
                        Command::List { label, answer } => {
                            let swarm = Rc::clone(&swarm);
                            tokio::task::spawn_local(async move {
                                let _ = answer.send(swarm.list(&label).await);
                            });
                        }
                        Command::Quit => return,
                    }
                }
            });
        };
        let post = move |command| commands.send(command).is_ok();
        Ok(SwarmEngine {
            front: Front::start(Box::new(post), events, run)?,
        })
    }
}

/// Checks that a daemon of Docker's manages a swarm.
async fn must_manage(docker: &Docker) -> Result<(), EngineError> {
    let info = timeout(CONNECT_LIMIT, docker.info()).await;
    let info = info
        .map_err(|_| silent(CONNECT_LIMIT))?
        .map_err(|error| unavailable(&error))?;
    if info.swarm.and_then(|swarm| swarm.control_available) == Some(true) {
        return Ok(());
    }
    let reason =
        "this Docker manages no swarm: run `docker swarm init` there, or `docker node promote` at a manager";
    Err(EngineError::Unavailable {
        reason: reason.to_owned(),
    })
}

/// What it cannot do with a task.
fn lacks(verb: &'static str, name: &str) -> EngineError {
    EngineError::Unsupported {
        driver: DRIVER,
        verb,
        name: name.to_owned(),
    }
}

impl Engine for SwarmEngine {
    fn driver(&self) -> &'static str {
        DRIVER
    }

    fn is_local(&self) -> bool {
        false
    }

    fn abilities(&self) -> Abilities {
        Abilities {
            pause: false,
            quota: false,
            commands: false,
            usage: false,
        }
    }

    fn submit(&mut self, ticket: Ticket, request: Request) {
        self.front.submit(ticket, request);
    }

    fn execute(&mut self, execution: Execution) {
        self.front.execute(execution);
    }

    fn poll(&mut self, events: &mut Vec<EngineEvent>) {
        self.front.poll(events);
    }

    fn list(&mut self, label: &Label) -> Result<Vec<Container>, EngineError> {
        self.front.list(label)
    }

    fn usage(&self, name: &str) -> Result<Usage, EngineError> {
        Err(lacks("read the use of", name))
    }
}

/// A service of ours.
struct Known {
    id: String,
    fate: watch::Sender<Fate>,
    /// The container's own port.
    port: u16,
    network: TaskNetwork,
    /// Whether its creation was told, so that its end is to be told, too.
    is_told: bool,
}

/// What the manager says of a node.
struct NodeSeen {
    address: Option<IpAddr>,
    is_down: bool,
}

struct Swarm {
    config: DockerConfig,
    docker: Docker,
    link: Link,
    /// By names of containers.
    known: RefCell<BTreeMap<String, Known>>,
    /// By their ids.
    nodes: RefCell<HashMap<String, NodeSeen>>,
    turns: Turns,
    /// Requests that wait for a task to begin or to end.
    hurries: Cell<usize>,
    hurry: Notify,
}

impl Swarm {
    /// Requests for one container one after the other, those for several at once.
    fn take(self: &Rc<Self>, ticket: Ticket, request: Request, since: Nanos) {
        let swarm = Rc::clone(self);
        let name = request.name().to_owned();
        let turn = self.turns.of(&name);
        tokio::task::spawn_local(async move {
            // In the order of submission: a mutex of tokio is fair, and tasks begin in the order of their making.
            let held = turn.lock().await;
            swarm.serve(ticket, request, since).await;
            drop(held);
            swarm.turns.give_back(&name, turn);
        });
    }

    async fn serve(&self, ticket: Ticket, request: Request, since: Nanos) {
        let served = match request {
            Request::Create(spec) => match self.create(&spec).await {
                Ok(address) => {
                    let at = monotonic();
                    let name = spec.name.clone();
                    self.link.tell(EngineEvent::Created {
                        ticket,
                        name: name.clone(),
                        pid: 0,
                        address,
                        at,
                        took: at.since(since),
                    });
                    self.watch(&name);
                    return;
                }
                Err(error) => Err(error),
            },
            Request::Stop { name, .. } => self.stop(&name).await,
            Request::Remove { name } => self.remove(&name).await,
            Request::Pause { name } => Err(lacks("pause", &name)),
            Request::Resume { name } => Err(lacks("resume", &name)),
            Request::SetQuota { name, .. } => Err(lacks("set the CPU quota of", &name)),
            Request::Exec { name, .. } => Err(lacks("run a command in", &name)),
        };
        self.link.answer(ticket, since, served);
    }

    // ---- What becomes of tasks.

    /// Looks at the tasks again and again, often while a request waits for one. A manager that does not answer, or says
    /// that it is asked too often, is asked less and less often.
    async fn keep_looking(self: Rc<Self>) {
        let mut failures = 0_u32;
        loop {
            let wait = match (failures, self.hurries.get()) {
                (0, 0) => LOOK,
                (0, _) => LOOK_SOON,
                (failures, _) => (LOOK * (1 << failures.min(6))).min(LOOK_LATE),
            };
            if failures == 0 {
                // Whoever begins to wait need not wait for a slow look.
                let _ = timeout(wait, self.hurry.notified()).await;
            } else {
                sleep(wait).await;
            }
            match self.look().await {
                Ok(()) => {
                    failures = 0;
                    self.link.up();
                }
                Err(LookError::Throttled) => failures += 1,
                Err(LookError::Away(reason)) => {
                    failures += 1;
                    self.link.down(&reason);
                }
            }
        }
    }

    /// Reads nodes and tasks from the manager, and tells what has ended.
    async fn look(&self) -> Result<(), LookError> {
        let nodes = self.docker.list_nodes(None::<ListNodesOptions>);
        let nodes = looked(nodes).await?;
        let options = ListTasksOptions {
            // Names of services of containers begin so.
            filters: Some(HashMap::from([("name".to_owned(), vec!["inco-".to_owned()])])),
        };
        // A service that comes after this has no task in the list, and is not gone.
        let before: Vec<String> = self.known.borrow().keys().cloned().collect();
        let tasks = looked(self.docker.list_tasks(Some(options))).await?;
        *self.nodes.borrow_mut() = nodes.iter().filter_map(node_seen).collect();
        let nodes = self.nodes.borrow();
        let mut ended = Vec::new();
        let mut all = self.known.borrow_mut();
        for name in before {
            let Some(known) = all.get_mut(&name) else { continue };
            let mut own = tasks
                .iter()
                .filter(|task| task.service_id.as_ref() == Some(&known.id));
            let was = known.fate.borrow().clone();
            let fate = match own.next_back() {
                Some(task) => fate(task, &nodes, known.network, known.port),
                // The swarm makes its task in a moment.
                None if matches!(was, Fate::Begins(_)) => continue,
                None if matches!(was, Fate::Runs(_)) => {
                    Fate::Ended(Exit::default(), "its task was removed".to_owned())
                }
                None => continue,
            };
            let Some(fate) = was.after(fate) else { continue };
            if let (Fate::Ended(exit, reason), true) = (&fate, known.is_told) {
                ended.push((name.clone(), *exit, reason.clone()));
            }
            known.fate.send_replace(fate);
        }
        drop((nodes, all));
        for (name, exit, output) in ended {
            self.link.tell_end(name, exit, output);
        }
        Ok(())
    }

    /// Tells the end of a container from now on.
    fn watch(&self, name: &str) {
        let ended = {
            let mut all = self.known.borrow_mut();
            let Some(known) = all.get_mut(name) else { return };
            known.is_told = true;
            let fate = known.fate.borrow().clone();
            match fate {
                Fate::Ended(exit, reason) => Some((exit, reason)),
                _ => None,
            }
        };
        if let Some((exit, reason)) = ended {
            self.link.tell_end(name.to_owned(), exit, reason);
        }
    }

    /// Waits until the fate of a container is so; [`None`] if it was forgotten, or did not become so within the limit.
    async fn until(&self, name: &str, limit: Duration, is_so: impl Fn(&Fate) -> bool) -> Option<Fate> {
        let mut fate = self.known.borrow().get(name)?.fate.subscribe();
        let _hurry = Hurry::of(self);
        let waited = timeout(limit, fate.wait_for(|fate| is_so(fate))).await;
        waited.ok()?.ok().map(|fate| fate.clone())
    }

    // ---- Requests.

    async fn create(&self, spec: &ContainerSpec) -> Result<Option<SocketAddr>, EngineError> {
        spec.check()?;
        let (task, options) = check(spec)?;
        let name = &spec.name;
        if self.known.borrow().contains_key(name) {
            return Err(EngineError::NameTaken { name: name.clone() });
        }
        let secrets = self.secrets(name, &options.secrets).await?;
        let configs = self.configs(name, &options.configs).await?;
        let login = login(spec).await?;
        let limit = Duration::from_nanos(self.config.create_timeout.0);
        let asked = self
            .docker
            .create_service(service(spec, task, options, secrets, configs), login);
        let id = match self.link.ask("create", name, limit, asked).await {
            Ok(made) => made.id.unwrap_or_default(),
            Err(EngineError::Refused { reason, .. }) if reason.contains("already exists") => {
                return Err(EngineError::NameTaken { name: name.clone() });
            }
            Err(error @ (EngineError::Timeout { .. } | EngineError::Unavailable { .. })) => {
                // It may have been made all the same.
                let _ = timeout(ANSWER, self.docker.delete_service(name)).await;
                return Err(error);
            }
            Err(error) => return Err(error),
        };
        let (fate, _) = watch::channel(Fate::Begins("the swarm has not placed it yet".to_owned()));
        let known = Known {
            id,
            fate,
            port: task.port,
            network: options.network,
            is_told: false,
        };
        self.known.borrow_mut().insert(name.clone(), known);
        let is_known = |fate: &Fate| !matches!(fate, Fate::Begins(_));
        let error = match self.until(name, limit, is_known).await {
            Some(Fate::Runs(address)) => return Ok(Some(address)),
            Some(Fate::Ended(..)) => return Ok(None),
            Some(Fate::NeverRan(reason)) if reason.contains("o such image") => EngineError::NotAtNodes {
                image: spec.image.with_tag(),
                reason,
            },
            Some(Fate::NeverRan(reason)) => EngineError::Start {
                name: name.clone(),
                reason,
            },
            _ => {
                let why = match self.known.borrow().get(name).map(|of| of.fate.borrow().clone()) {
                    Some(Fate::Begins(reason)) => reason,
                    _ => "it did not begin".to_owned(),
                };
                EngineError::Start {
                    name: name.clone(),
                    reason: format!("{why}, for {} s", limit.as_secs()),
                }
            }
        };
        // The next inco finds what cannot be removed now.
        let _ = self.remove(name).await;
        self.known.borrow_mut().remove(name);
        Err(error)
    }

    /// The ids of secrets, by their names.
    async fn secrets(
        &self,
        container: &str,
        files: &[TaskFile],
    ) -> Result<Vec<TaskSpecContainerSpecSecrets>, EngineError> {
        if files.is_empty() {
            return Ok(Vec::new());
        }
        let options = ListSecretsOptions {
            filters: Some(names_of(files)),
        };
        let asked = self.docker.list_secrets(Some(options));
        let known = self
            .link
            .ask("list the secrets of", container, ANSWER, asked)
            .await?;
        let id_of = |name: &str| {
            let named = |of: &&bollard::models::Secret| {
                of.spec.as_ref().and_then(|spec| spec.name.as_deref()) == Some(name)
            };
            known.iter().find(named).and_then(|of| of.id.clone())
        };
        files
            .iter()
            .map(|file| {
                let id = id_of(&file.name).ok_or_else(|| missing("secret", &file.name))?;
                let target = file.target.as_ref().map(|path| path.display().to_string());
                Ok(TaskSpecContainerSpecSecrets {
                    secret_id: Some(id),
                    secret_name: Some(file.name.clone()),
                    file: Some(TaskSpecContainerSpecFile {
                        name: Some(target.unwrap_or_else(|| file.name.clone())),
                        uid: Some("0".to_owned()),
                        gid: Some("0".to_owned()),
                        mode: Some(0o444),
                    }),
                })
            })
            .collect()
    }

    /// The same for configs.
    async fn configs(
        &self,
        container: &str,
        files: &[TaskFile],
    ) -> Result<Vec<TaskSpecContainerSpecConfigs>, EngineError> {
        if files.is_empty() {
            return Ok(Vec::new());
        }
        let options = ListConfigsOptions {
            filters: Some(names_of(files)),
        };
        let asked = self.docker.list_configs(Some(options));
        let known = self
            .link
            .ask("list the configs of", container, ANSWER, asked)
            .await?;
        let id_of = |name: &str| {
            let named = |of: &&bollard::models::Config| {
                of.spec.as_ref().and_then(|spec| spec.name.as_deref()) == Some(name)
            };
            known.iter().find(named).and_then(|of| of.id.clone())
        };
        files
            .iter()
            .map(|file| {
                let id = id_of(&file.name).ok_or_else(|| missing("config", &file.name))?;
                let target = file.target.as_ref().map(|path| path.display().to_string());
                Ok(TaskSpecContainerSpecConfigs {
                    config_id: Some(id),
                    config_name: Some(file.name.clone()),
                    file: Some(TaskSpecContainerSpecFile1 {
                        name: Some(target.unwrap_or_else(|| format!("/{}", file.name))),
                        uid: Some("0".to_owned()),
                        gid: Some("0".to_owned()),
                        mode: Some(0o444),
                    }),
                    runtime: None,
                })
            })
            .collect()
    }

    /// Has the swarm end the task, and keeps its service.
    async fn stop(&self, name: &str) -> Result<(), EngineError> {
        let fate = self.known.borrow().get(name).map(|of| of.fate.borrow().clone());
        match fate {
            None => {
                return Err(EngineError::NotFound {
                    name: name.to_owned(),
                });
            }
            Some(Fate::Ended(..) | Fate::NeverRan(_)) => return Ok(()),
            Some(Fate::Begins(_) | Fate::Runs(_)) => {}
        }
        let asked = self.docker.inspect_service(name, None::<InspectServiceOptions>);
        let there = self.link.ask("stop", name, ANSWER, asked).await?;
        let mut spec = there.spec.unwrap_or_default();
        let grace = spec.task_template.as_ref().and_then(|task| {
            let grace = task.container_spec.as_ref()?.stop_grace_period?;
            u64::try_from(grace).ok().map(Duration::from_nanos)
        });
        spec.mode = Some(replicas(0));
        let version = there.version.and_then(|of| of.index).unwrap_or_default();
        let options = UpdateServiceOptions {
            version: i32::try_from(version).unwrap_or_default(),
            registry_auth_from: "spec".to_owned(),
            rollback: None,
        };
        let asked = self.docker.update_service(name, spec, options, None);
        self.link.ask("stop", name, ANSWER, asked).await?;
        let limit = END_LIMIT + grace.unwrap_or_default();
        match self.until(name, limit, Fate::is_over).await {
            Some(_) => Ok(()),
            None => Err(late("stop", name, limit)),
        }
    }

    /// Removes the service, and waits until no node that answers has its task any more.
    async fn remove(&self, name: &str) -> Result<(), EngineError> {
        // One that was never listed is removed as well.
        let id = self.known.borrow().get(name).map(|of| of.id.clone());
        let asked = self.docker.delete_service(name);
        match self.link.ask("remove", name, ANSWER, asked).await {
            Ok(()) | Err(EngineError::NotFound { .. }) => {}
            Err(error) => return Err(error),
        }
        if let Some(id) = id {
            let _hurry = Hurry::of(self);
            let began = monotonic();
            while self.has_task(name, &id).await? {
                if monotonic().since(began) > Nanos(END_LIMIT.as_nanos() as u64) {
                    return Err(late("remove", name, END_LIMIT));
                }
                sleep(LOOK_SOON).await;
            }
        }
        let known = self.known.borrow_mut().remove(name);
        if let Some(known) = known.filter(|known| known.is_told) {
            let was = known.fate.borrow().clone();
            if let Fate::Runs(_) = was {
                self.link
                    .tell_end(name.to_owned(), Exit::default(), String::new());
            }
        }
        Ok(())
    }

    /// Whether a node that answers still has the task of a service.
    async fn has_task(&self, name: &str, service: &str) -> Result<bool, EngineError> {
        let options = ListTasksOptions {
            filters: Some(HashMap::from([("name".to_owned(), vec![format!("{name}.")])])),
        };
        let asked = self.docker.list_tasks(Some(options));
        let tasks = self.link.ask("remove", name, ANSWER, asked).await?;
        let nodes = self.nodes.borrow();
        let is_there = |task: &SwarmTask| {
            let node = task.node_id.as_ref().and_then(|id| nodes.get(id));
            task.service_id.as_deref() == Some(service) && node.is_none_or(|node| !node.is_down)
        };
        Ok(tasks.iter().any(is_there))
    }

    /// The services with this label as containers, whose ends are told from now on.
    async fn list(&self, label: &Label) -> Result<Vec<Container>, EngineError> {
        let filter = match &label.value {
            Some(value) => format!("{}={value}", label.key),
            None => label.key.clone(),
        };
        let options = ListServicesOptions {
            filters: Some(HashMap::from([("label".to_owned(), vec![filter])])),
            ..ListServicesOptions::default()
        };
        let asked = self.docker.list_services(Some(options));
        let services = self.link.ask("list", "the services", LIST_LIMIT, asked).await?;
        let mut started = BTreeMap::new();
        for service in services {
            let Some(spec) = service.spec else { continue };
            let (Some(id), Some(name)) = (service.id, spec.name.clone()) else {
                continue;
            };
            let labels = spec.labels.clone().unwrap_or_default().into_iter();
            let is_callers = |(key, _): &(String, String)| key != PORT_LABEL && key != NETWORK_LABEL;
            let labels: BTreeMap<String, String> = labels.filter(is_callers).collect();
            let at = service
                .created_at
                .as_deref()
                .and_then(unix_seconds)
                .unwrap_or_default();
            started.insert(name.clone(), (at, labels));
            let mut known = self.known.borrow_mut();
            known.entry(name).or_insert_with(|| {
                let (network, port) = reached_by(&spec);
                let (fate, _) = watch::channel(Fate::Begins("it was not looked at yet".to_owned()));
                Known {
                    id,
                    fate,
                    port,
                    network,
                    is_told: true,
                }
            });
        }
        self.look().await.map_err(|error| EngineError::Unavailable {
            reason: error.to_string(),
        })?;
        let known = self.known.borrow();
        let containers = started.into_iter().filter_map(|(name, (at, labels))| {
            let fate = known.get(&name)?.fate.borrow().clone();
            let address = match fate {
                Fate::Runs(address) => Some(address),
                _ => None,
            };
            Some(Container {
                name,
                labels,
                pid: 0,
                state: match address {
                    Some(_) => ContainerState::Running,
                    // One that an earlier run asked for and that does not run yet is of no use to this one.
                    None => ContainerState::Exited,
                },
                started_unix_ms: u64::try_from(at).unwrap_or_default() * 1_000,
                address,
            })
        });
        Ok(containers.collect())
    }
}

/// While it is there, tasks are looked at often.
struct Hurry<'s>(&'s Swarm);

impl Hurry<'_> {
    fn of(swarm: &Swarm) -> Hurry<'_> {
        swarm.hurries.set(swarm.hurries.get() + 1);
        swarm.hurry.notify_one();
        Hurry(swarm)
    }
}

impl Drop for Hurry<'_> {
    fn drop(&mut self) {
        self.0.hurries.set(self.0.hurries.get().saturating_sub(1));
    }
}

/// Why tasks were not read.
#[derive(Debug, thiserror::Error)]
enum LookError {
    /// The manager is asked too often.
    #[error("the manager says that it is asked too often")]
    Throttled,
    /// It does not answer, or has no leader.
    #[error("{0}")]
    Away(String),
}

async fn looked<T>(asked: impl Future<Output = Result<T, Error>>) -> Result<T, LookError> {
    match timeout(LOOK_LIMIT, asked).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(error)) if is_throttled(&error) => Err(LookError::Throttled),
        Ok(Err(error)) => Err(LookError::Away(error.to_string())),
        Err(_) => {
            let seconds = LOOK_LIMIT.as_secs();
            Err(LookError::Away(format!("it did not answer within {seconds} s")))
        }
    }
}

fn missing(what: &'static str, name: &str) -> EngineError {
    EngineError::BadSpec {
        what,
        reason: format!("the swarm has no {what} {name:?}: see `docker {what} create`"),
    }
}

fn names_of(files: &[TaskFile]) -> HashMap<String, Vec<String>> {
    let names = files.iter().map(|file| file.name.clone()).collect();
    HashMap::from([("name".to_owned(), names)])
}

/// What is known of a node.
fn node_seen(node: &Node) -> Option<(String, NodeSeen)> {
    let status = node.status.as_ref();
    let is_usable = |ip: &IpAddr| !ip.is_unspecified() && !ip.is_loopback();
    let own = status.and_then(|of| of.addr.as_deref()?.parse().ok());
    // A manager may not know its own address but as that of a manager.
    let as_manager = || {
        let address: SocketAddr = node.manager_status.as_ref()?.addr.as_deref()?.parse().ok()?;
        Some(address.ip())
    };
    let seen = NodeSeen {
        address: own.filter(is_usable).or_else(as_manager),
        is_down: status.and_then(|of| of.state) == Some(NodeState::DOWN),
    };
    Some((node.id.clone()?, seen))
}

/// What has become of a task.
fn fate(task: &SwarmTask, nodes: &HashMap<String, NodeSeen>, network: TaskNetwork, port: u16) -> Fate {
    let Some(status) = &task.status else {
        return Fate::Begins("the swarm says nothing of it".to_owned());
    };
    let said = || {
        let text = status.err.as_deref().or(status.message.as_deref());
        text.unwrap_or_default().to_owned()
    };
    let container = status.container_status.as_ref();
    let has_container = container.is_some_and(|of| of.container_id.as_ref().is_some_and(|id| !id.is_empty()));
    let code = container.and_then(|of| of.exit_code).unwrap_or_default();
    let node = task.node_id.as_ref().and_then(|id| nodes.get(id));
    match status.state {
        Some(TaskState::RUNNING) if node.is_some_and(|node| node.is_down) => {
            Fate::Ended(Exit::default(), "its node is down".to_owned())
        }
        Some(TaskState::RUNNING) => {
            let published = status.port_status.iter().flat_map(|of| of.ports.iter().flatten());
            let mut published = published.filter(|of| of.target_port == Some(i64::from(port)));
            let port = match network {
                TaskNetwork::Host => Some(port),
                TaskNetwork::Published => published
                    .find_map(|of| u16::try_from(of.published_port?).ok())
                    .filter(|port| *port != 0),
            };
            match (node.and_then(|node| node.address), port) {
                (Some(address), Some(port)) => Fate::Runs(SocketAddr::new(address, port)),
                (None, _) => Fate::Begins("the address of its node is not known".to_owned()),
                (_, None) => Fate::Begins("its node has not published its port".to_owned()),
            }
        }
        Some(TaskState::COMPLETE | TaskState::SHUTDOWN) if has_container => {
            Fate::Ended(exit_of(code, false), String::new())
        }
        Some(TaskState::FAILED) if has_container && said().starts_with("task: non-zero exit") => {
            Fate::Ended(exit_of(code, false), String::new())
        }
        Some(
            TaskState::FAILED
            | TaskState::REJECTED
            | TaskState::ORPHANED
            | TaskState::SHUTDOWN
            | TaskState::REMOVE
            | TaskState::COMPLETE,
        ) => Fate::NeverRan(said()),
        _ => Fate::Begins(said()),
    }
}

/// What the swarm is asked beside, if it can have such a container.
fn check(spec: &ContainerSpec) -> Result<(&Task, &TaskOptions), EngineError> {
    let bad = |what: &'static str, reason: &str| {
        Err(EngineError::BadSpec {
            what,
            reason: reason.to_owned(),
        })
    };
    let Some((task, TaskAsk::Swarm(options))) = spec.task.as_ref().map(|task| (task, &task.ask)) else {
        return bad(
            "no port",
            "a task of a swarm is reached over the network, at a port",
        );
    };
    if spec.name.len() > NAME_LIMIT {
        return bad(
            "this name",
            "a service of a swarm has up to 63 characters: take a shorter name of the service",
        );
    }
    if !spec.functions.is_empty() || spec.exchange.is_some() {
        return bad("ports of this machine", "the swarm may place it on another one");
    }
    if spec.cpuset.is_some() || spec.hugepages {
        return bad("CPUs or hugepages of its own", "a swarm knows neither");
    }
    Ok((task, options))
}

/// The login for the registry of an image, as Docker's own client would find it. The manager keeps it for the nodes.
async fn login(spec: &ContainerSpec) -> Result<Option<DockerCredentials>, EngineError> {
    let image = spec.image.with_tag();
    // A helper may be asked, which is a program.
    let found = tokio::task::spawn_blocking(move || registry::login_of_image(&image)).await;
    let login = found.ok().transpose().map_err(|error| EngineError::BadSpec {
        what: "this image",
        reason: error.to_string(),
    })?;
    Ok(login.flatten().map(|(registry, login)| DockerCredentials {
        username: Some(login.user),
        password: Some(login.password),
        serveraddress: Some(registry),
        ..DockerCredentials::default()
    }))
}

fn replicas(count: i64) -> ServiceSpecMode {
    ServiceSpecMode {
        replicated: Some(ServiceSpecModeReplicated {
            replicas: Some(count),
        }),
        ..ServiceSpecMode::default()
    }
}

/// How tasks of a service are reached, and their own port.
fn reached_by(spec: &ServiceSpec) -> (TaskNetwork, u16) {
    let labels = spec.labels.as_ref();
    let label = |key: &str| labels.and_then(|labels| labels.get(key));
    // The swarm gives the id of the network in place of its name.
    let network = match label(NETWORK_LABEL) {
        Some(_) => TaskNetwork::Host,
        None => TaskNetwork::Published,
    };
    let port = label(PORT_LABEL).and_then(|port| port.parse().ok());
    (network, port.unwrap_or_default())
}

/// What Docker calls the network of a node.
const HOST_NETWORK: &str = "host";
/// On services: the port of their containers.
const PORT_LABEL: &str = "inco.task-port";
/// On services whose tasks are in the network of their nodes.
const NETWORK_LABEL: &str = "inco.task-in-host-network";

/// The service of a container.
fn service(
    spec: &ContainerSpec,
    task: &Task,
    options: &TaskOptions,
    secrets: Vec<TaskSpecContainerSpecSecrets>,
    configs: Vec<TaskSpecContainerSpecConfigs>,
) -> ServiceSpec {
    // All fields by name: the compiler asks what this engine does with a new one.
    let ContainerSpec {
        name,
        labels,
        image,
        command,
        env,
        mounts,
        cpu,
        memory_bytes,
        pids_limit,
        capabilities,
        // In `check`.
        exchange: _,
        cpuset: _,
        hugepages: _,
        functions: _,
        task: _,
        // It is there already.
        place: _,
        // The nodes' own setting.
        user_namespace: _,
    } = spec;
    let own: HashMap<String, String> = labels.clone().into_iter().collect();
    let mounts = mounts.iter().map(|mount| DockerMount {
        target: Some(mount.target.display().to_string()),
        source: Some(mount.source.display().to_string()),
        typ: Some(MountType::BIND),
        read_only: Some(mount.read_only),
        ..DockerMount::default()
    });
    let usual = || CAPABILITIES.map(str::to_owned).to_vec();
    let container = TaskSpecContainerSpec {
        image: Some(image.with_tag()),
        labels: Some(own.clone()),
        command: (!command.is_empty()).then(|| command.clone()),
        args: (!task.args.is_empty()).then(|| task.args.clone()),
        env: Some(env.iter().map(|(key, value)| format!("{key}={value}")).collect()),
        mounts: Some(mounts.collect()),
        stop_grace_period: Some(i64::try_from(task.grace.0).unwrap_or(i64::MAX)),
        capability_drop: Some(vec!["ALL".to_owned()]),
        capability_add: Some(capabilities.clone().unwrap_or_else(usual)),
        secrets: (!secrets.is_empty()).then_some(secrets),
        configs: (!configs.is_empty()).then_some(configs),
        ..TaskSpecContainerSpec::default()
    };
    let nano = |cpus: f64| (cpus * NANO_CPUS) as i64;
    let bytes = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
    let limits = Limit {
        nano_cpus: cpu.map(|quota| nano(quota.cpus())),
        memory_bytes: memory_bytes.map(bytes),
        pids: Some(i64::from(*pids_limit)),
    };
    let reservations = ResourceObject {
        nano_cpus: options.reserved_cpus.map(nano),
        memory_bytes: options.reserved_memory_bytes.map(bytes),
        generic_resources: None,
    };
    let is_host = options.network == TaskNetwork::Host;
    let spread = |of: &String| TaskSpecPlacementPreferences {
        spread: Some(TaskSpecPlacementSpread {
            spread_descriptor: Some(of.clone()),
        }),
    };
    let template = TaskSpec {
        container_spec: Some(container),
        resources: Some(TaskSpecResources {
            limits: Some(limits),
            reservations: Some(reservations),
            ..TaskSpecResources::default()
        }),
        // The caller decides what follows an end.
        restart_policy: Some(TaskSpecRestartPolicy {
            condition: Some(TaskSpecRestartPolicyConditionEnum::NONE),
            ..TaskSpecRestartPolicy::default()
        }),
        placement: Some(TaskSpecPlacement {
            constraints: (!options.constraints.is_empty()).then(|| options.constraints.clone()),
            preferences: (!options.spread.is_empty()).then(|| options.spread.iter().map(spread).collect()),
            ..TaskSpecPlacement::default()
        }),
        networks: is_host.then(|| {
            vec![NetworkAttachmentConfig {
                target: Some(HOST_NETWORK.to_owned()),
                ..NetworkAttachmentConfig::default()
            }]
        }),
        ..TaskSpec::default()
    };
    let port = EndpointPortConfig {
        protocol: Some(match options.protocol {
            TaskProtocol::Tcp => EndpointPortConfigProtocolEnum::TCP,
            TaskProtocol::Udp => EndpointPortConfigProtocolEnum::UDP,
        }),
        target_port: Some(i64::from(task.port)),
        // In the network of its node it has that port: the swarm looks for a node where no other task has it.
        published_port: is_host.then_some(i64::from(task.port)),
        publish_mode: Some(EndpointPortConfigPublishModeEnum::HOST),
        ..EndpointPortConfig::default()
    };
    let noted = [
        Some((PORT_LABEL, task.port.to_string())),
        is_host.then(|| (NETWORK_LABEL, "true".to_owned())),
    ];
    let noted = noted
        .into_iter()
        .flatten()
        .map(|(key, value)| (key.to_owned(), value));
    ServiceSpec {
        name: Some(name.clone()),
        labels: Some(own.into_iter().chain(noted).collect()),
        task_template: Some(template),
        mode: Some(replicas(1)),
        endpoint_spec: Some(EndpointSpec {
            // The swarm's own balancing has no part in it.
            mode: Some(EndpointSpecModeEnum::DNSRR),
            ports: Some(vec![port]),
        }),
        ..ServiceSpec::default()
    }
}

/// Seconds since 1970 of Docker's time, such as `2026-11-26T23:54:50.123Z`.
fn unix_seconds(time: &str) -> Option<i64> {
    let number = |from: usize, to: usize| time.get(from..to)?.parse::<i64>().ok();
    let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
    let (hours, minutes, seconds) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
    // The year begins in March, so that a leap day is its last one.
    let year = if month < 3 { year - 1 } else { year };
    let days_before = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let days = year * 365 + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400) + days_before;
    /// From March of the year 0 to the beginning of 1970.
    const UNTIL_1970: i64 = 719_468;
    Some(((days - UNTIL_1970) * 24 + hours) * 3_600 + minutes * 60 + seconds)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by it")]
mod tests {
    use super::*;

    fn task(json: serde_json::Value) -> SwarmTask {
        serde_json::from_value(json).unwrap()
    }

    fn nodes(is_down: bool) -> HashMap<String, NodeSeen> {
        let address = Some("10.1.0.12".parse().unwrap());
        HashMap::from([("n2".to_owned(), NodeSeen { address, is_down })])
    }

    fn running(published: u16) -> SwarmTask {
        task(serde_json::json!({
            "NodeID": "n2", "DesiredState": "running",
            "Status": {
                "State": "running", "ContainerStatus": { "ContainerID": "c", "PID": 7 },
                "PortStatus": { "Ports": [
                    { "Protocol": "tcp", "TargetPort": 9000, "PublishedPort": 1 },
                    { "Protocol": "tcp", "TargetPort": 8080, "PublishedPort": published, "PublishMode": "host" },
                ] },
            },
        }))
    }

    #[test]
    fn a_task_is_reached_where_its_node_publishes_it() {
        let at = |text: &str| Fate::Runs(text.parse().unwrap());
        let found = fate(&running(32_768), &nodes(false), TaskNetwork::Published, 8080);
        assert_eq!(found, at("10.1.0.12:32768"));
        let found = fate(&running(32_768), &nodes(false), TaskNetwork::Host, 8080);
        assert_eq!(found, at("10.1.0.12:8080"));
        // What is missing is waited for.
        for (task, nodes) in [(running(0), nodes(false)), (running(5), HashMap::new())] {
            let found = fate(&task, &nodes, TaskNetwork::Published, 8080);
            assert!(
                matches!(found, Fate::Begins(ref why) if !why.is_empty()),
                "{found:?}"
            );
        }
    }

    #[test]
    fn a_lost_node_ends_its_tasks() {
        let found = fate(&running(5), &nodes(true), TaskNetwork::Published, 8080);
        assert_eq!(found, Fate::Ended(Exit::default(), "its node is down".to_owned()));
    }

    #[test]
    fn an_end_is_told_from_a_start_that_failed() {
        let ended = |state: &str, err: &str, code: i64, id: &str| {
            fate(
                &task(serde_json::json!({
                    "NodeID": "n2",
                    "Status": { "State": state, "Err": err, "ContainerStatus": { "ContainerID": id, "ExitCode": code } },
                })),
                &nodes(false),
                TaskNetwork::Published,
                8080,
            )
        };
        let exit = |status, signal| Exit {
            status,
            signal,
            out_of_memory: false,
        };
        let is = |exit| Fate::Ended(exit, String::new());
        assert_eq!(ended("complete", "", 0, "c"), is(exit(Some(0), None)));
        assert_eq!(
            ended("failed", "task: non-zero exit (3)", 3, "c"),
            is(exit(Some(3), None))
        );
        assert_eq!(
            ended("failed", "task: non-zero exit (137)", 137, "c"),
            is(exit(None, Some(9)))
        );
        for (state, err, id) in [
            ("rejected", "No such image: a:1", ""),
            ("failed", "starting container failed: no such file", "c"),
        ] {
            assert_eq!(ended(state, err, 0, id), Fate::NeverRan(err.to_owned()));
        }
        assert_eq!(
            ended("pending", "no suitable node", 0, ""),
            Fate::Begins("no suitable node".to_owned())
        );
    }

    #[test]
    fn a_node_has_an_address_that_others_can_reach() {
        let seen = |json: serde_json::Value| {
            let (id, of) = node_seen(&serde_json::from_value(json).unwrap()).unwrap();
            (id, of.address.map(|ip| ip.to_string()), of.is_down)
        };
        let worker = serde_json::json!({ "ID": "a", "Status": { "State": "down", "Addr": "10.1.0.2" } });
        assert_eq!(seen(worker), ("a".to_owned(), Some("10.1.0.2".to_owned()), true));
        for own in ["0.0.0.0", "127.0.0.1", ""] {
            let manager = serde_json::json!({
                "ID": "b", "Status": { "State": "ready", "Addr": own }, "ManagerStatus": { "Addr": "[2001:db8::1]:2377" },
            });
            assert_eq!(
                seen(manager),
                ("b".to_owned(), Some("2001:db8::1".to_owned()), false)
            );
        }
    }

    fn spec() -> ContainerSpec {
        let mut spec = ContainerSpec::new("inco-web-1", "nginx");
        spec.task = Some(Box::new(Task {
            args: vec!["-g".to_owned()],
            port: 8080,
            grace: Nanos::from_secs(2),
            ask: TaskAsk::Swarm(TaskOptions {
                constraints: vec!["node.labels.a == b".to_owned()],
                spread: vec!["node.labels.rack".to_owned()],
                reserved_cpus: Some(0.25),
                ..TaskOptions::default()
            }),
        }));
        spec
    }

    fn made(spec: &ContainerSpec) -> ServiceSpec {
        let (task, options) = check(spec).unwrap();
        service(spec, task, options, Vec::new(), Vec::new())
    }

    #[test]
    fn what_is_asked_of_the_swarm_can_be_read_back() {
        let mut spec = spec();
        let asked = made(&spec);
        assert_eq!(reached_by(&asked), (TaskNetwork::Published, 8080));
        let json = serde_json::to_value(&asked).unwrap();
        assert_eq!(json["EndpointSpec"]["Ports"][0]["PublishMode"], "host");
        assert_eq!(json["EndpointSpec"]["Ports"][0].get("PublishedPort"), None);
        let template = &json["TaskTemplate"];
        assert_eq!(template["RestartPolicy"]["Condition"], "none");
        assert_eq!(template["Placement"]["Constraints"][0], "node.labels.a == b");
        let spread = &template["Placement"]["Preferences"][0]["Spread"];
        assert_eq!(spread["SpreadDescriptor"], "node.labels.rack");
        assert_eq!(template["Resources"]["Reservations"]["NanoCPUs"], 250_000_000);
        assert_eq!(template["ContainerSpec"]["Args"][0], "-g");
        assert_eq!(template["ContainerSpec"].get("Command"), None);
        spec.task.as_mut().unwrap().ask = TaskAsk::Swarm(TaskOptions {
            network: TaskNetwork::Host,
            ..TaskOptions::default()
        });
        let asked = made(&spec);
        assert_eq!(reached_by(&asked), (TaskNetwork::Host, 8080));
        let json = serde_json::to_value(&asked).unwrap();
        assert_eq!(json["EndpointSpec"]["Ports"][0]["PublishedPort"], 8080);
    }

    #[test]
    fn what_a_swarm_does_not_have_is_refused() {
        type Change = fn(&mut ContainerSpec);
        let changes: [(&str, Change); 4] = [
            ("over the network", |spec| spec.task = None),
            ("63 characters", |spec| {
                spec.name = format!("inco-{}", "a".repeat(59))
            }),
            ("knows neither", |spec| spec.cpuset = Some("0".to_owned())),
            ("another one", |spec| {
                spec.exchange = Some(crate::Exchange {
                    source: "/a".into(),
                    target: "/b".into(),
                });
            }),
        ];
        for (said, change) in changes {
            let mut spec = spec();
            change(&mut spec);
            let error = check(&spec).unwrap_err().to_string();
            assert!(error.contains(said), "{said}: {error}");
        }
    }

    #[test]
    fn times_of_docker_are_read() {
        for (time, seconds) in [
            ("1970-01-01T00:00:00Z", Some(0)),
            ("2000-02-29T12:00:00.5Z", Some(951_825_600)),
            ("2026-11-26T23:54:50.123456789Z", Some(1_795_737_290)),
            ("2026", None),
            ("", None),
        ] {
            assert_eq!(unix_seconds(time), seconds, "{time}");
        }
    }
}
