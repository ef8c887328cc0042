//! The engine `docker`: containers by the API of Docker or Podman, on this machine or, over TLS, on another one.
//!
//! A container with kernel ports finds them set up: see [`holder`].
//!
//! On this machine slow API calls are replaced: a pidfd tells the end of a program, and CPU quotas are written to the
//! control group. Containers run on while `dockerd` is stopped only with `live-restore`.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::File;
use std::future::Future;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bollard::Docker;
use bollard::errors::Error;
use bollard::exec::{CreateExecOptions, StartExecResults};
use bollard::models::{
    ContainerCreateBody, ContainerInspectResponse, ContainerSummary, ContainerSummaryStateEnum,
    ContainerUpdateBody, DeviceMapping, HostConfig, HostConfigLogConfig, Mount as DockerMount,
    MountBindOptions, MountBindOptionsPropagationEnum, MountType, ResourcesUlimits,
};
use bollard::query_parameters::{
    CreateContainerOptions, CreateImageOptions, InspectContainerOptions, KillContainerOptions,
    ListContainersOptions, LogsOptions, RemoveContainerOptions, StartContainerOptions, WaitContainerOptions,
};
use clock::{monotonic, unix_ms};
use futures_util::StreamExt;
use model::{InterfaceSetup, Nanos};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::{mpsc, watch};
use tokio::task::LocalSet;
use tokio::time::{sleep, timeout};

use crate::bundle::{MASKED_PATHS, READ_ONLY_PATHS, open_files};
use crate::cgroup::{Cgroup, Hierarchy, UsageReader};
use crate::container::{check_command, signal_number, stop_signal};
use crate::docker_config::DockerConfig;
use crate::fate::exit_of;
use crate::front::{Command, Front, LIST_LIMIT, shorten_slice};
use crate::image::{Image, Store};
use crate::link::{ClientError, Link};
use crate::seccomp::Calls;
use crate::{
    Container, ContainerSpec, ContainerState, CpuQuota, Engine, EngineError, EngineEvent, Executed,
    Execution, Exit, Given, ImageRef, Label, MAX_COMMAND_OUTPUT_BYTES, MAX_OUTPUT_BYTES, Owner, Request, SYS,
    Ticket, Usage, exchange, holder, host_files, port, seccomp,
};

/// How long the engine may take for anything but a create.
const ANSWER: Duration = Duration::from_secs(10);
/// How long it may take to say that it is there.
const PING_LIMIT: Duration = Duration::from_secs(2);
/// The same at first, when it may have to be woken: Podman's first answer takes about 2 s.
pub(crate) const CONNECT_LIMIT: Duration = Duration::from_secs(5);
/// How often it is asked.
const PING_EVERY: Duration = Duration::from_secs(1);
/// Time limit for the exit status of a container that was stopped on request; callers wait for it.
const STOPPED_STATUS_LIMIT: Duration = Duration::from_secs(2);
/// How long a killed program may take to be gone.
const KILL_LIMIT: Duration = Duration::from_secs(10);
/// On images that were imported from our store: which build of it they are.
const CREATED_LABEL: &str = "inco.created-unix-ms";
/// On containers: the directory on the host in which one meets inco.
const EXCHANGE_LABEL: &str = "inco.exchange";
/// How many files of output Docker keeps of a container, and their size. One full file holds as much as [`Logs`]
/// keeps.
///
/// [`Logs`]: crate::logs::Logs
const LOG_FILES: (&str, &str) = ("2", "1m");
/// For how long Docker may be wrong about whether a container is paused. Its own events of a pause and of a resume come
/// after its answers, and each sets what it believes back for a moment.
const STALE_LIMIT: Duration = Duration::from_secs(1);
/// How much of a container's output is read at once, in bytes.
const READ_BYTES: usize = 64 * 1024;
/// The time between two such reads: Docker drops what a container writes faster than that.
const READ_EVERY: Duration = Duration::from_millis(10);

type Groups = Arc<Mutex<HashMap<String, Cgroup>>>;

/// Docker or Podman. See the [module](self).
#[derive(Debug)]
pub struct DockerEngine {
    front: Front,
    groups: Groups,
    usages: UsageReader,
    is_local: bool,
}

impl DockerEngine {
    /// Connects, and starts the engine's thread. Blocks for up to 10 s.
    ///
    /// # Errors
    /// [`EngineError::Unavailable`] where nothing answers there; [`EngineError::BadSpec`] for a host that cannot be.
    pub fn start(config: DockerConfig) -> Result<DockerEngine, EngineError> {
        let is_local = config.host.starts_with("unix://");
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| EngineError::io("start", Path::new("engine thread"), &error))?;
        let (docker, is_podman) = runtime.block_on(connect(&config))?;
        let hierarchy = if is_local {
            Some(Hierarchy::at(&config.cgroup_root)?)
        } else {
            None
        };
        let (commands, mut received) = mpsc::unbounded_channel();
        let (told, events) = std::sync::mpsc::channel();
        let groups = Groups::default();
        let shared = Arc::clone(&groups);
        let run = move || {
            let service = Rc::new(Service {
                config,
                docker,
                is_podman,
                hierarchy,
                link: Link::new(told),
                groups: shared,
                entries: RefCell::default(),
                exchanges: RefCell::default(),
                imported: RefCell::default(),
                holders: RefCell::default(),
                tellers: RefCell::default(),
                queues: RefCell::default(),
            });
            let tasks = LocalSet::new();
            tasks.spawn_local(Rc::clone(&service).keep_asking());
            tasks.block_on(&runtime, async move {
                while let Some(command) = received.recv().await {
                    match command {
                        Command::Request {
                            ticket,
                            request,
                            since,
                        } => service.take(ticket, request, since),
                        Command::Execute { execution, .. } => {
                            let service = Rc::clone(&service);
                            tokio::task::spawn_local(async move {
                                let Execution {
                                    name,
                                    command,
                                    limit,
                                    answer,
                                } = execution;
                                answer(service.execute(&name, command, limit).await);
                            });
                        }
                        Command::List { label, answer } => {
                            let service = Rc::clone(&service);
                            tokio::task::spawn_local(async move {
                                let listed = service.list(&label).await;
                                let _ = answer.send(listed);
                            });
                        }
                        Command::Quit => return,
                    }
                }
            });
        };
        let post = move |command| commands.send(command).is_ok();
        Ok(DockerEngine {
            front: Front::start(Box::new(post), events, run)?,
            groups,
            usages: UsageReader::default(),
            is_local,
        })
    }
}

/// Gives an image of ours to Docker. Blocks for as long as that takes.
///
/// # Errors
/// [`EngineError::ImageMissing`] where the store has no such image; [`EngineError::Unavailable`].
pub fn import_into_docker(config: &DockerConfig, store: &Store, name: &ImageRef) -> Result<(), EngineError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| EngineError::io("start", Path::new("a runtime"), &error))?;
    runtime.block_on(async {
        let (docker, _) = connect(config).await?;
        import(&docker, store, name).await
    })
}

/// A connection, and whether it leads to Podman.
pub(crate) async fn connect(config: &DockerConfig) -> Result<(Docker, bool), EngineError> {
    let seconds = ANSWER.as_secs().max(config.create_timeout.0 / 1_000_000_000);
    let version = bollard::API_DEFAULT_VERSION;
    let host = config.host.as_str();
    let bad = |reason: String| EngineError::BadSpec {
        what: "this engine host",
        reason,
    };
    let docker = if let Some(path) = host.strip_prefix("unix://") {
        if !Path::new(path).exists() {
            let reason = format!("there is no {path}: start Docker, or take engine \"oci\"");
            return Err(EngineError::Unavailable { reason });
        }
        Docker::connect_with_unix(path, seconds, version).map_err(|e| unavailable(&e))?
    } else if host.starts_with("tcp://") {
        let Some(dir) = &config.certificates else {
            let reason = "a connection to another machine needs certificates (cert.pem, key.pem, ca.pem)";
            return Err(bad(format!("{host}: {reason}")));
        };
        connect_tls(host, dir, seconds)?
    } else {
        return Err(bad(format!("{host}: it begins with unix:// or tcp://")));
    };
    let asked = timeout(CONNECT_LIMIT, docker.negotiate_version()).await;
    let docker = asked
        .map_err(|_| silent(CONNECT_LIMIT))?
        .map_err(|e| unavailable(&e))?;
    let version = timeout(CONNECT_LIMIT, docker.version()).await;
    let version = version
        .map_err(|_| silent(CONNECT_LIMIT))?
        .map_err(|e| unavailable(&e))?;
    let is_podman = version
        .components
        .iter()
        .flatten()
        .any(|component| component.name.contains("Podman"));
    Ok((docker, is_podman))
}

/// As with Docker's own client, the machine's usual authorities are trusted beside `ca.pem`.
fn connect_tls(host: &str, dir: &Path, seconds: u64) -> Result<Docker, EngineError> {
    let [key, certificate, authority] = ["key.pem", "cert.pem", "ca.pem"].map(|file| dir.join(file));
    Docker::connect_with_ssl(
        host,
        &key,
        &certificate,
        &authority,
        seconds,
        bollard::API_DEFAULT_VERSION,
    )
    .map_err(|error| EngineError::BadSpec {
        what: "this engine host",
        reason: error.to_string(),
    })
}

pub(crate) fn silent(after: Duration) -> EngineError {
    EngineError::Unavailable {
        reason: format!("it did not answer within {} s", after.as_secs()),
    }
}

pub(crate) fn unavailable(error: &Error) -> EngineError {
    // The library's own words name its parts. The innermost cause is what the system said.
    let mut cause: &dyn std::error::Error = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    EngineError::Unavailable {
        reason: cause.to_string(),
    }
}

/// Whether the engine, or what stands before it, wants to be asked less often.
pub(crate) fn is_throttled(error: &Error) -> bool {
    matches!(error, Error::DockerResponseServerError { status_code: 429, .. })
}

/// Whether the managers of a swarm have no leader at the moment.
fn is_leaderless(error: &Error) -> bool {
    match error {
        Error::DockerResponseServerError {
            status_code: 500 | 503,
            message,
        } => message.contains("leader"),
        _ => false,
    }
}

impl ClientError for Error {
    fn is_connection(&self) -> bool {
        !matches!(
            self,
            Error::DockerResponseServerError { .. }
                | Error::JsonDataError { .. }
                | Error::JsonSerdeError { .. }
                | Error::DockerStreamError { .. }
                | Error::DockerContainerWaitError { .. }
        )
    }

    fn is_passing(&self) -> bool {
        is_throttled(self) || is_leaderless(self)
    }

    fn refused(self, verb: &'static str, name: &str) -> EngineError {
        refused(verb, name, self)
    }
}

async fn import(docker: &Docker, store: &Store, name: &ImageRef) -> Result<(), EngineError> {
    let mut archive = Vec::new();
    let image = store.write_tar(name, &mut archive)?;
    load(docker, &name.with_tag(), changes(&image), archive).await
}

/// Has Docker make an image of these files.
async fn load(
    docker: &Docker,
    full: &str,
    changes: Vec<String>,
    archive: Vec<u8>,
) -> Result<(), EngineError> {
    let (repository, tag) = full.rsplit_once(':').unwrap_or((full, "latest"));
    let options = CreateImageOptions {
        from_src: Some("-".to_owned()),
        repo: Some(repository.to_owned()),
        tag: Some(tag.to_owned()),
        changes,
        ..CreateImageOptions::default()
    };
    let body = bollard::body_full(archive.into());
    let mut progress = std::pin::pin!(docker.create_image(Some(options), Some(body), None));
    while let Some(step) = progress.next().await {
        step.map_err(|error| refused("import image", full, error))?;
    }
    Ok(())
}

/// What Docker is to note down with an image, as lines of a Dockerfile.
fn changes(image: &Image) -> Vec<String> {
    // By it a later build is told from this one.
    let mut changes = vec![format!("LABEL {CREATED_LABEL}={}", image.created_unix_ms)];
    let command = image.command(&[]);
    if !command.is_empty() {
        let words = serde_json::to_string(&command).unwrap_or_default();
        // Not ENTRYPOINT: a container's command would be appended to it.
        changes.push(format!("CMD {words}"));
    }
    let quoted = |value: &str| {
        value
            .replace('\\', "\\\\")
            .replace('"', "\\\"")
            .replace('$', "\\$")
    };
    changes.extend(
        image
            .env
            .iter()
            .map(|(key, value)| format!("ENV {key}=\"{}\"", quoted(value))),
    );
    changes
}

/// Asks again while the engine refuses for a reason that is not so any more, within [`STALE_LIMIT`].
async fn past_stale<T, F: Future<Output = Result<T, EngineError>>>(
    is_stale: impl Fn(&str) -> bool,
    ask: impl Fn() -> F,
) -> Result<T, EngineError> {
    let deadline = monotonic() + Nanos(STALE_LIMIT.as_nanos() as u64);
    loop {
        match ask().await {
            Err(EngineError::Refused { reason, .. }) if is_stale(&reason) && monotonic() < deadline => {
                sleep(Duration::from_millis(5)).await;
            }
            answer => return answer,
        }
    }
}

/// The engine's answer as an error of ours.
fn refused(verb: &'static str, name: &str, error: Error) -> EngineError {
    let name = name.to_owned();
    match error {
        Error::DockerResponseServerError {
            status_code: 404,
            message,
        } if message.contains("o such image") => EngineError::NotInDocker {
            image: message.rsplit(": ").next().unwrap_or_default().to_owned(),
        },
        Error::DockerResponseServerError { status_code: 404, .. } => EngineError::NotFound { name },
        Error::DockerResponseServerError {
            status_code: 409,
            message,
        } if message.contains("already in use") => EngineError::NameTaken { name },
        Error::DockerResponseServerError {
            status_code: 409,
            message,
        } if message.contains("is not running") => EngineError::NotRunning { name },
        Error::DockerResponseServerError { message, .. } | Error::DockerStreamError { error: message } => {
            EngineError::Refused {
                verb,
                name,
                reason: message,
            }
        }
        error if error.is_connection() => unavailable(&error),
        error => EngineError::Refused {
            verb,
            name,
            reason: error.to_string(),
        },
    }
}

impl Engine for DockerEngine {
    fn driver(&self) -> &'static str {
        "docker"
    }

    fn is_local(&self) -> bool {
        self.is_local
    }

    fn submit(&mut self, ticket: Ticket, request: Request) {
        self.front.submit(ticket, request);
    }

    fn execute(&mut self, execution: Execution) {
        self.front.execute(execution);
    }

    fn poll(&mut self, events: &mut Vec<EngineEvent>) {
        let before = events.len();
        self.front.poll(events);
        self.usages.close_ended(&events[before..]);
    }

    fn list(&mut self, label: &Label) -> Result<Vec<Container>, EngineError> {
        self.front.list(label)
    }

    fn usage(&self, name: &str) -> Result<Usage, EngineError> {
        let missing = || EngineError::NotFound {
            name: name.to_owned(),
        };
        let group = self
            .groups
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(name)
            .cloned();
        self.usages.usage(name, || group.ok_or_else(missing))
    }
}

/// A container whose program was started.
#[derive(Clone)]
struct Entry {
    /// 0 where it runs on another machine.
    pid: u32,
    pidfd: Option<Rc<OwnedFd>>,
    group: Option<Cgroup>,
    started_unix_ms: u64,
    /// What asks it to end.
    stop_signal: Signal,
    /// Whether its end has been told.
    ended: watch::Receiver<bool>,
    /// Whether it was killed from here, so that its exit status is known without a request.
    killed: Rc<Cell<bool>>,
    /// Whether it was asked to end.
    stopping: Rc<Cell<bool>>,
}

/// Where requests for one container wait for each other.
type Queue = mpsc::UnboundedSender<(Ticket, Request, Nanos)>;

struct Service {
    config: DockerConfig,
    docker: Docker,
    is_podman: bool,
    /// Where the containers run on this machine.
    hierarchy: Option<Hierarchy>,
    link: Link,
    groups: Groups,
    entries: RefCell<BTreeMap<String, Entry>>,
    /// Where containers meet inco, by their names.
    exchanges: RefCell<HashMap<String, PathBuf>>,
    /// Images that Docker has as our store has them, with the build.
    imported: RefCell<HashMap<String, u64>>,
    /// Holders that creates under way have.
    holders: RefCell<HashSet<String>>,
    /// Reports the end of containers that have no watcher yet.
    tellers: RefCell<HashMap<String, watch::Sender<bool>>>,
    queues: RefCell<HashMap<String, (Queue, usize)>>,
}

impl Service {
    /// Requests for one container one after the other, those for several at once.
    fn take(self: &Rc<Self>, ticket: Ticket, request: Request, since: Nanos) {
        if matches!(request, Request::Exec { .. }) {
            let service = Rc::clone(self);
            tokio::task::spawn_local(async move { service.serve(ticket, request, since).await });
            return;
        }
        let name = request.name().to_owned();
        let mut queues = self.queues.borrow_mut();
        let (queue, waiting) = queues.entry(name.clone()).or_insert_with(|| {
            let (queue, mut requests) = mpsc::unbounded_channel();
            let service = Rc::clone(self);
            let name = name.clone();
            tokio::task::spawn_local(async move {
                while let Some((ticket, request, since)) = requests.recv().await {
                    service.serve(ticket, request, since).await;
                    let mut queues = service.queues.borrow_mut();
                    if let Some((_, waiting)) = queues.get_mut(&name) {
                        *waiting -= 1;
                        if *waiting == 0 {
                            queues.remove(&name);
                        }
                    }
                }
            });
            (queue, 0)
        });
        *waiting += 1;
        let _ = queue.send((ticket, request, since));
    }

    async fn serve(self: &Rc<Self>, ticket: Ticket, request: Request, since: Nanos) {
        let served = match request {
            Request::Create(spec) => {
                let (name, labels) = (spec.name.clone(), spec.labels.clone());
                match self.create(*spec).await {
                    Ok((pid, at)) => {
                        shorten_slice(pid);
                        let took = at.since(since);
                        self.link.tell(EngineEvent::Created {
                            ticket,
                            name: name.clone(),
                            pid,
                            address: None,
                            at,
                            took,
                        });
                        // Only now: its end must not be told before.
                        self.watch(&name, &labels);
                        return;
                    }
                    Err(error) => Err(error),
                }
            }
            Request::Pause { name } => self.pause(&name, true).await,
            Request::Resume { name } => self.pause(&name, false).await,
            Request::SetQuota { name, quota } => self.set_quota(&name, quota).await,
            Request::Stop { name, grace } => self.stop(&name, grace).await,
            Request::Remove { name } => self.remove(&name).await,
            Request::Exec { name, command, limit } => {
                let executed = self.execute(&name, command, limit).await;
                executed.and_then(|executed| executed.verdict(&name))
            }
        };
        self.link.answer(ticket, since, served);
    }

    async fn keep_asking(self: Rc<Self>) {
        loop {
            sleep(PING_EVERY).await;
            match timeout(PING_LIMIT, self.docker.ping()).await {
                Ok(Ok(_)) => self.link.up(),
                Ok(Err(error)) => self.link.down(&error.to_string()),
                Err(_) => self
                    .link
                    .down(&format!("it did not answer within {} s", PING_LIMIT.as_secs())),
            }
        }
    }

    fn running(&self, name: &str) -> Result<Entry, EngineError> {
        match self.entries.borrow().get(name) {
            Some(entry) if !*entry.ended.borrow() => Ok(entry.clone()),
            Some(_) => Err(EngineError::NotRunning {
                name: name.to_owned(),
            }),
            None => Err(EngineError::NotFound {
                name: name.to_owned(),
            }),
        }
    }

    // ---- Requests.

    async fn create(self: &Rc<Self>, spec: ContainerSpec) -> Result<(u32, Nanos), EngineError> {
        spec.check()?;
        let given = Given::find(&spec.functions, Path::new(SYS))?;
        if let Some(name) = given.interfaces.first() {
            return Err(EngineError::NoFunction {
                what: format!("Docker moves no interface of the machine into a container, as {name}"),
                write: "give its function to vfio-pci, or take the engine oci".to_owned(),
            });
        }
        for mount in &spec.mounts {
            if self.hierarchy.is_some() {
                std::fs::metadata(&mount.source)
                    .map_err(|error| EngineError::io("mount", &mount.source, &error))?;
            }
        }
        let limit = Duration::from_nanos(self.config.create_timeout.0);
        let name = spec.name.clone();
        let image = self.ensure_image(&spec.image, limit).await?;
        if let Some(of) = &spec.exchange {
            if self.entries.borrow().contains_key(&name) {
                return Err(EngineError::NameTaken { name });
            }
            // Docker's ids are the host's.
            exchange::make(&of.source, image.as_ref().map_or(Owner::ROOT, |image| image.user))?;
            self.exchanges
                .borrow_mut()
                .insert(name.clone(), of.source.clone());
        }
        let made = if given.set_up().is_empty() {
            self.make_and_start(&spec, &given, image.as_ref(), limit, "none".to_owned())
                .await
        } else {
            self.make_with_ports(&spec, &given, image.as_ref(), limit).await
        };
        if made.is_err() {
            // Remaining files do no harm.
            let _ = self.remove_exchange(&name);
        }
        made
    }

    fn remove_exchange(&self, name: &str) -> Result<(), EngineError> {
        let of = self.exchanges.borrow_mut().remove(name);
        of.map_or(Ok(()), |dir| exchange::remove(&dir))
    }

    /// Imports the image from our store into Docker if Docker has none or an earlier build. An image of that name
    /// from another source is not replaced. Returns the image's description if our store has it.
    async fn ensure_image(&self, name: &ImageRef, limit: Duration) -> Result<Option<Image>, EngineError> {
        let Some(store) = &self.config.images else {
            return Ok(None);
        };
        let Ok((_, image)) = store.resolve(name) else {
            return Ok(None);
        };
        if self.imported.borrow().get(&image.name) == Some(&image.created_unix_ms) {
            return Ok(Some(image));
        }
        let asked = self.docker.inspect_image(&image.name);
        let current = match self.link.ask("inspect image", &image.name, ANSWER, asked).await {
            Ok(theirs) => {
                let labels = theirs.config.and_then(|config| config.labels).unwrap_or_default();
                let build = labels.get(CREATED_LABEL);
                build.is_none_or(|build| *build == image.created_unix_ms.to_string())
            }
            Err(EngineError::NotFound { .. } | EngineError::NotInDocker { .. }) => false,
            Err(error) => return Err(error),
        };
        if !current {
            timeout(limit, import(&self.docker, store, name))
                .await
                .map_err(|_| silent(limit))??;
        }
        self.imported
            .borrow_mut()
            .insert(image.name.clone(), image.created_unix_ms);
        Ok(Some(image))
    }

    /// Makes a container in that network, and starts it. Nothing is left of one that does not start.
    async fn make_and_start(
        &self,
        spec: &ContainerSpec,
        given: &Given,
        image: Option<&Image>,
        limit: Duration,
        network: String,
    ) -> Result<(u32, Nanos), EngineError> {
        let body = body(spec, given, image, self.is_podman, network);
        match self.make(&spec.name, body, limit).await {
            Err(EngineError::NotInDocker { .. }) => {
                return Err(EngineError::NotInDocker {
                    image: spec.image.with_tag(),
                });
            }
            other => other?,
        }
        match self.start(spec, limit).await {
            Ok(started) => Ok(started),
            Err(error) => {
                self.discard(&spec.name).await;
                Err(error)
            }
        }
    }

    async fn make(&self, name: &str, body: ContainerCreateBody, limit: Duration) -> Result<(), EngineError> {
        let options = CreateContainerOptions {
            name: Some(name.to_owned()),
            ..CreateContainerOptions::default()
        };
        let asked = self.docker.create_container(Some(options), body);
        match self.link.ask("create", name, limit, asked).await {
            Ok(_) => Ok(()),
            Err(error @ EngineError::Timeout { .. }) => {
                self.discard(name).await;
                Err(error)
            }
            Err(error) => Err(error),
        }
    }

    /// The same for a container with kernel ports: a holder has its network before it starts.
    async fn make_with_ports(
        &self,
        spec: &ContainerSpec,
        given: &Given,
        image: Option<&Image>,
        limit: Duration,
    ) -> Result<(u32, Nanos), EngineError> {
        if self.hierarchy.is_none() || self.is_podman {
            let ports: Vec<String> = given.set_up().into_iter().map(|port| port.host).collect();
            return Err(EngineError::NoFunction {
                what: format!(
                    "Podman, and an engine on another machine, take no port of this one, as {}",
                    ports.join(", ")
                ),
                write: "take Docker on this machine, or the engine oci".to_owned(),
            });
        }
        let holder = holder::name(&spec.name);
        self.holders.borrow_mut().insert(holder.clone());
        let made = match self.hold(&holder, spec, given, limit).await {
            Ok(()) => {
                self.make_and_start(spec, given, image, limit, format!("container:{holder}"))
                    .await
            }
            Err(error) => Err(error),
        };
        // The network stays with the program.
        self.discard(&holder).await;
        self.holders.borrow_mut().remove(&holder);
        made
    }

    /// Starts a holder with the ports of a container in its network.
    async fn hold(
        &self,
        holder: &str,
        spec: &ContainerSpec,
        given: &Given,
        limit: Duration,
    ) -> Result<(), EngineError> {
        self.ensure_holder_image(limit).await?;
        let body = || holder_body(spec, &given.set_up());
        match self.make(holder, body(), limit).await {
            Err(EngineError::NameTaken { .. }) => {
                // A run that was killed left it.
                self.discard(holder).await;
                self.make(holder, body(), limit).await?;
            }
            other => other?,
        }
        let asked = self.docker.start_container(holder, None::<StartContainerOptions>);
        self.link.ask("start", holder, limit, asked).await?;
        let asked = self
            .docker
            .inspect_container(holder, None::<InspectContainerOptions>);
        let inspected = self.link.ask("inspect", holder, ANSWER, asked).await?;
        let pid = inspected.state.and_then(|state| state.pid).unwrap_or_default();
        let ports = given.set_up();
        // The kernel takes milliseconds for it.
        let given = tokio::task::spawn_blocking(move || {
            let path = format!("/proc/{pid}/ns/net");
            let network = File::open(&path).map_err(|error| format!("{path}: {error}"))?;
            port::give(network.as_fd(), &ports)
        });
        let given = given.await.unwrap_or_else(|error| Err(error.to_string()));
        given.map_err(|reason| EngineError::Start {
            name: spec.name.clone(),
            reason,
        })
    }

    async fn ensure_holder_image(&self, limit: Duration) -> Result<(), EngineError> {
        let asked = self.docker.inspect_image(holder::IMAGE);
        match self.link.ask("inspect image", holder::IMAGE, ANSWER, asked).await {
            Err(EngineError::NotFound { .. } | EngineError::NotInDocker { .. }) => {}
            other => return other.map(drop),
        }
        let loaded = load(&self.docker, holder::IMAGE, Vec::new(), holder::archive()?);
        timeout(limit, loaded).await.map_err(|_| silent(limit))?
    }

    /// Removes the holders that a run which was killed left of containers with this label.
    async fn remove_left_holders(&self, label: &Label) -> Result<(), EngineError> {
        let key = format!("{}.{}", holder::LABEL, label.key);
        let label = Label {
            key,
            value: label.value.clone(),
        };
        for name in self.summaries(&label).await?.iter().filter_map(name_of) {
            if !self.holders.borrow().contains(&name) {
                self.discard(&name).await;
            }
        }
        Ok(())
    }

    async fn start(&self, spec: &ContainerSpec, limit: Duration) -> Result<(u32, Nanos), EngineError> {
        let name = &spec.name;
        let asked = self.docker.start_container(name, None::<StartContainerOptions>);
        self.link
            .ask("start", name, limit, asked)
            .await
            .map_err(|error| match error {
                EngineError::Refused { name, reason, .. } => EngineError::Start { name, reason },
                other => other,
            })?;
        let at = monotonic();
        let asked = self
            .docker
            .inspect_container(name, None::<InspectContainerOptions>);
        let inspected = self.link.ask("inspect", name, ANSWER, asked).await?;
        let (entry, told) = self.entry(&inspected);
        if let Some(quota) = spec.cpu {
            match &entry.group {
                // One that has ended already has none.
                Some(group) => match group.set_quota(Some(quota)) {
                    Err(error) if group.exists() => return Err(error),
                    _ => {}
                },
                None => self.ask_for_quota(name, Some(quota)).await?,
            }
        }
        let pid = entry.pid;
        self.insert(name, entry, told);
        Ok((pid, at))
    }

    /// What is known of a container that was started.
    fn entry(&self, inspected: &ContainerInspectResponse) -> (Entry, watch::Sender<bool>) {
        let (told, ended) = watch::channel(false);
        let asked = inspected
            .config
            .as_ref()
            .and_then(|config| config.stop_signal.as_deref());
        let pid = inspected
            .state
            .as_ref()
            .and_then(|state| state.pid)
            .and_then(|pid| i32::try_from(pid).ok())
            .and_then(Pid::from_raw);
        let local = self.hierarchy.as_ref().zip(pid);
        let pidfd = local
            .and_then(|(_, pid)| pidfd_open(pid, PidfdFlags::empty()).ok())
            .map(Rc::new);
        let group = local.and_then(|(hierarchy, pid)| {
            let text = std::fs::read_to_string(format!("/proc/{}/cgroup", pid.as_raw_nonzero())).ok()?;
            hierarchy.group_of(&text)
        });
        let pid = local.map_or(0, |(_, pid)| pid.as_raw_nonzero().get() as u32);
        (
            Entry {
                pid,
                pidfd,
                group,
                started_unix_ms: unix_ms(),
                stop_signal: stop_signal(asked.and_then(signal_number)),
                ended,
                killed: Rc::default(),
                stopping: Rc::default(),
            },
            told,
        )
    }

    fn insert(&self, name: &str, entry: Entry, told: watch::Sender<bool>) {
        if let Some(group) = &entry.group {
            let mut groups = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
            groups.insert(name.to_owned(), group.clone());
        }
        self.entries.borrow_mut().insert(name.to_owned(), entry);
        self.tellers.borrow_mut().insert(name.to_owned(), told);
    }

    /// Removes what a failed create left, as far as the engine answers.
    async fn discard(&self, name: &str) {
        let options = RemoveContainerOptions {
            force: true,
            v: true,
            ..RemoveContainerOptions::default()
        };
        let _ = timeout(ANSWER, self.docker.remove_container(name, Some(options))).await;
    }

    async fn pause(&self, name: &str, frozen: bool) -> Result<(), EngineError> {
        let entry = self.running(name)?;
        // So it is already what it is to be.
        let is_so = |reason: &str| reason.contains("already paused") || reason.contains("is not paused");
        let own = entry.group.as_ref();
        let is_stale = |reason: &str| is_so(reason) && own.is_some_and(|own| own.is_frozen() == Ok(!frozen));
        // A process that its quota stops cannot freeze before its next period.
        let group = own.filter(|_| frozen);
        let quota = group.and_then(|group| group.quota().ok().flatten());
        if let Some(group) = group.filter(|_| quota.is_some()) {
            group.set_quota(None)?;
        }
        let asked = if frozen {
            let pause = || {
                self.link
                    .ask("pause", name, ANSWER, self.docker.pause_container(name))
            };
            past_stale(is_stale, pause).await
        } else {
            let resume = || {
                self.link
                    .ask("resume", name, ANSWER, self.docker.unpause_container(name))
            };
            past_stale(is_stale, resume).await
        };
        if let Some((group, quota)) = group.zip(quota) {
            group.set_quota(Some(quota))?;
        }
        match asked {
            Err(EngineError::Refused { reason, .. }) if is_so(&reason) => Ok(()),
            other => other,
        }
    }

    async fn set_quota(&self, name: &str, quota: Option<CpuQuota>) -> Result<(), EngineError> {
        quota.map_or(Ok(()), |quota| quota.check())?;
        match self.running(name)?.group {
            Some(group) => group.set_quota(quota),
            None => self.ask_for_quota(name, quota).await,
        }
    }

    async fn ask_for_quota(&self, name: &str, quota: Option<CpuQuota>) -> Result<(), EngineError> {
        let change = ContainerUpdateBody {
            cpu_quota: Some(quota.map_or(-1, |quota| i64::from(quota.quota_us))),
            cpu_period: quota.map(|quota| i64::from(quota.period_us)),
            ..ContainerUpdateBody::default()
        };
        self.link
            .ask(
                "set the CPU quota of",
                name,
                ANSWER,
                self.docker.update_container(name, change),
            )
            .await
    }

    async fn signal(&self, name: &str, entry: &Entry, signal: Signal) -> Result<(), EngineError> {
        if let Some(pidfd) = &entry.pidfd {
            // One that has ended meanwhile is what was wanted.
            let _ = pidfd_send_signal(&**pidfd, signal);
            return Ok(());
        }
        let options = KillContainerOptions {
            signal: signal.as_raw().to_string(),
        };
        match self
            .link
            .ask(
                "stop",
                name,
                ANSWER,
                self.docker.kill_container(name, Some(options)),
            )
            .await
        {
            Err(EngineError::NotRunning { .. }) => Ok(()),
            other => other,
        }
    }

    async fn stop(&self, name: &str, grace: Nanos) -> Result<(), EngineError> {
        let entry = match self.running(name) {
            Err(EngineError::NotRunning { .. }) => return Ok(()),
            other => other?,
        };
        let mut ended = entry.ended.clone();
        if grace > Nanos::ZERO {
            if let Some(group) = &entry.group {
                group.freeze(false)?;
            } else {
                self.pause(name, false).await?;
            }
            entry.stopping.set(true);
            self.signal(name, &entry, entry.stop_signal).await?;
            if timeout(Duration::from_nanos(grace.0), ended.wait_for(|&ended| ended))
                .await
                .is_ok()
            {
                return Ok(());
            }
        }
        self.kill(name, &entry).await
    }

    /// Kills what runs, and waits until its end has been told.
    async fn kill(&self, name: &str, entry: &Entry) -> Result<(), EngineError> {
        entry.killed.set(true);
        match &entry.group {
            Some(group) => {
                group.kill()?;
            }
            None => self.signal(name, entry, Signal::KILL).await?,
        }
        let mut ended = entry.ended.clone();
        match timeout(KILL_LIMIT, ended.wait_for(|&ended| ended)).await {
            Ok(_) => Ok(()),
            Err(_) => Err(EngineError::Timeout {
                verb: "stop",
                name: name.to_owned(),
                after: Nanos(KILL_LIMIT.as_nanos() as u64),
            }),
        }
    }

    async fn remove(&self, name: &str) -> Result<(), EngineError> {
        if let Ok(entry) = self.running(name) {
            self.kill(name, &entry).await?;
        }
        let options = RemoveContainerOptions {
            force: true,
            v: true,
            ..RemoveContainerOptions::default()
        };
        let deadline = monotonic() + Nanos(KILL_LIMIT.as_nanos() as u64);
        loop {
            let asked = self.docker.remove_container(name, Some(options.clone()));
            match self.link.ask("remove", name, ANSWER, asked).await {
                Ok(()) | Err(EngineError::NotFound { .. }) => break,
                // Docker has not noticed the end yet, or is at it already.
                Err(EngineError::Refused { .. }) if monotonic() < deadline => {
                    sleep(Duration::from_millis(5)).await
                }
                Err(error) => return Err(error),
            }
        }
        self.entries.borrow_mut().remove(name);
        let group = self
            .groups
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(name);
        if let Some(group) = group {
            self.remove_group(&group).await?;
        }
        self.remove_exchange(name)
    }

    /// Docker leaves the control group of a container that it has removed where it was killed meanwhile, or found a
    /// process in it which something else had put there.
    async fn remove_group(&self, group: &Cgroup) -> Result<(), EngineError> {
        let deadline = monotonic() + Nanos(KILL_LIMIT.as_nanos() as u64);
        while !group.remove()? && monotonic() < deadline {
            group.kill()?;
            sleep(Duration::from_millis(5)).await;
        }
        Ok(())
    }

    async fn execute(&self, name: &str, command: Vec<String>, limit: Nanos) -> Result<Executed, EngineError> {
        const VERB: &str = "run a command in";
        check_command(&command)?;
        let group = self.running(name)?.group;
        let is_stale = |reason: &str| {
            let thawed = |group: &Cgroup| group.is_frozen() == Ok(false);
            reason.contains("is paused") && group.as_ref().is_some_and(thawed)
        };
        let options = CreateExecOptions {
            attach_stdout: Some(true),
            attach_stderr: Some(true),
            cmd: Some(command),
            ..CreateExecOptions::default()
        };
        let make = || {
            let made = self.docker.create_exec(name, options.clone());
            self.link.ask(VERB, name, ANSWER, made)
        };
        let id = past_stale(is_stale, make).await?.id;
        let start = || {
            self.link
                .ask(VERB, name, ANSWER, self.docker.start_exec(&id, None))
        };
        let started = past_stale(is_stale, start).await?;
        let mut output = Vec::new();
        let ended = async {
            if let StartExecResults::Attached {
                output: mut parts, ..
            } = started
            {
                // Its end is the end of its output.
                while let Some(Ok(part)) = parts.next().await {
                    let room = MAX_COMMAND_OUTPUT_BYTES - output.len();
                    output.extend(part.as_ref().iter().take(room));
                }
            }
            loop {
                let asked = self.docker.inspect_exec(&id);
                let state = self.link.ask(VERB, name, ANSWER, asked).await?;
                if state.running != Some(true) {
                    return Ok(state.exit_code);
                }
                sleep(Duration::from_millis(3)).await;
            }
        };
        match timeout(Duration::from_nanos(limit.0), ended).await {
            Ok(Ok(code)) => {
                let exit = code.map(|code| exit_of(code, false)).unwrap_or_default();
                Ok(Executed { exit, output })
            }
            Ok(Err(error)) => Err(error),
            Err(_) => {
                self.kill_exec(&id, name).await;
                Err(EngineError::Timeout {
                    verb: VERB,
                    name: name.to_owned(),
                    after: limit,
                })
            }
        }
    }

    /// Kills a command in a container. The API has no such call, so on another machine the command runs until its
    /// container ends.
    async fn kill_exec(&self, id: &str, name: &str) {
        if self.hierarchy.is_none() {
            return;
        }
        let asked = self.docker.inspect_exec(id);
        let Ok(state) = self.link.ask("inspect a command in", name, ANSWER, asked).await else {
            return;
        };
        let pid = state
            .pid
            .and_then(|pid| i32::try_from(pid).ok())
            .and_then(Pid::from_raw);
        if state.running == Some(true)
            && let Some(pid) = pid
            && let Ok(pidfd) = pidfd_open(pid, PidfdFlags::empty())
        {
            let _ = pidfd_send_signal(&pidfd, Signal::KILL);
        }
    }

    /// What Docker says of the containers with this label.
    async fn summaries(&self, label: &Label) -> Result<Vec<ContainerSummary>, EngineError> {
        let filter = match &label.value {
            Some(value) => format!("{}={value}", label.key),
            None => label.key.clone(),
        };
        let options = ListContainersOptions {
            all: true,
            filters: Some(HashMap::from([("label".to_owned(), vec![filter])])),
            ..ListContainersOptions::default()
        };
        let listed = self.link.ask(
            "list",
            "the containers",
            LIST_LIMIT,
            self.docker.list_containers(Some(options)),
        );
        listed.await
    }

    async fn list(self: &Rc<Self>, label: &Label) -> Result<Vec<Container>, EngineError> {
        self.remove_left_holders(label).await?;
        let mut containers = Vec::new();
        for summary in self.summaries(label).await? {
            let Some(name) = name_of(&summary) else {
                continue;
            };
            let mut labels: BTreeMap<String, String> =
                summary.labels.unwrap_or_default().into_iter().collect();
            // The image's, which its containers inherit.
            labels.remove(CREATED_LABEL);
            if let Some(dir) = labels.remove(EXCHANGE_LABEL) {
                self.exchanges
                    .borrow_mut()
                    .insert(name.clone(), PathBuf::from(dir));
            }
            let state = match summary.state {
                Some(ContainerSummaryStateEnum::RUNNING) => ContainerState::Running,
                Some(ContainerSummaryStateEnum::PAUSED) => ContainerState::Paused,
                _ => ContainerState::Exited,
            };
            let created_ms = summary.created.unwrap_or_default().max(0) as u64 * 1_000;
            let known = self.entries.borrow().get(&name).cloned();
            let entry = match known {
                Some(entry) => Some(entry),
                None if state == ContainerState::Exited => None,
                None => self.adopt(&name, &labels, created_ms).await?,
            };
            // Docker may be late; the kernel is not.
            let ended = entry.as_ref().is_none_or(|entry| *entry.ended.borrow());
            containers.push(Container {
                pid: entry.as_ref().filter(|_| !ended).map_or(0, |entry| entry.pid),
                started_unix_ms: entry.as_ref().map_or(created_ms, |entry| entry.started_unix_ms),
                state: if ended { ContainerState::Exited } else { state },
                name,
                labels,
                address: None,
            });
        }
        containers.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(containers)
    }

    /// A container of an earlier run: its end is told from now on.
    async fn adopt(
        self: &Rc<Self>,
        name: &str,
        labels: &BTreeMap<String, String>,
        created_ms: u64,
    ) -> Result<Option<Entry>, EngineError> {
        let asked = self
            .docker
            .inspect_container(name, None::<InspectContainerOptions>);
        let inspected = match self.link.ask("inspect", name, ANSWER, asked).await {
            Ok(inspected) => inspected,
            Err(EngineError::NotFound { .. }) => return Ok(None),
            Err(error) => return Err(error),
        };
        if inspected.state.as_ref().and_then(|state| state.running) != Some(true) {
            return Ok(None);
        }
        let (mut entry, told) = self.entry(&inspected);
        entry.started_unix_ms = created_ms;
        self.insert(name, entry.clone(), told);
        self.watch(name, labels);
        Ok(Some(entry))
    }

    // ---- Ends of programs.

    /// Tells the end of a container's program when it comes, and keeps what it writes.
    fn watch(self: &Rc<Self>, name: &str, labels: &BTreeMap<String, String>) {
        let Some(entry) = self.entries.borrow().get(name).cloned() else {
            return;
        };
        let Some(told) = self.tellers.borrow_mut().remove(name) else {
            return;
        };
        self.config.logs.begin(name, labels);
        let service = Rc::clone(self);
        let name = name.to_owned();
        let follower = Rc::clone(self).follow(name.clone(), entry.ended.clone());
        tokio::task::spawn_local(follower);
        tokio::task::spawn_local(async move {
            match &entry.pidfd {
                Some(pidfd) => {
                    // SAFETY: the descriptor stays the same while the `Rc` lives, and the AsyncFd holds the `Rc`.
                    #[expect(unsafe_code)]
                    let readable =
                        unsafe { AsyncFd::register_with_interest(Rc::clone(pidfd), Interest::READABLE) };
                    if let Ok(readable) = readable {
                        let _ = readable.readable().await;
                    }
                }
                // It had ended before it could be looked at, on this machine.
                None if service.hierarchy.is_some() => {}
                None => service.wait_for_end(&name).await,
            }
            let at = monotonic();
            let out_of_memory = entry
                .group
                .as_ref()
                .is_some_and(|group| group.out_of_memory_kills() > 0);
            let by_us = Exit {
                signal: entry.killed.get().then_some(9),
                ..Exit::default()
            };
            let limit = Duration::from_nanos(service.config.status_limit.0);
            let limit = if entry.stopping.get() {
                limit.max(STOPPED_STATUS_LIMIT)
            } else {
                limit
            };
            let known = timeout(limit, service.last_words(&name)).await.ok().flatten();
            let (exit, output) = known.unwrap_or((by_us, String::new()));
            let exit = Exit {
                out_of_memory: exit.out_of_memory || out_of_memory,
                ..exit
            };
            service.config.logs.end(&name);
            service.link.tell(EngineEvent::Exited {
                name,
                exit,
                output,
                at,
            });
            let _ = told.send(true);
        });
    }

    /// Keeps what a container writes, through whatever happens to the connection.
    async fn follow(self: Rc<Self>, name: String, ended: watch::Receiver<bool>) {
        // Docker's time of what was read last. It tells everything again, from the oldest that it has.
        let mut last = String::new();
        loop {
            let known = last.clone();
            let options = LogsOptions {
                follow: true,
                stdout: true,
                stderr: true,
                timestamps: true,
                ..LogsOptions::default()
            };
            let mut parts = std::pin::pin!(self.docker.logs(&name, Some(options)));
            let mut read = 0;
            while let Some(Ok(part)) = parts.next().await {
                let part = part.as_ref();
                let Some((time, text)) = stamped(part) else {
                    continue;
                };
                if time > known.as_str() {
                    last = time.to_owned();
                    self.config.logs.write(&name, text);
                }
                read += part.len();
                if read >= READ_BYTES {
                    read = 0;
                    sleep(READ_EVERY).await;
                }
            }
            if *ended.borrow() || !self.entries.borrow().contains_key(&name) {
                return;
            }
            sleep(PING_EVERY).await;
        }
    }

    /// The end of a program on another machine, through whatever happens to the connection.
    async fn wait_for_end(&self, name: &str) {
        loop {
            {
                let options = WaitContainerOptions {
                    condition: "not-running".to_owned(),
                };
                let mut waited = std::pin::pin!(self.docker.wait_container(name, Some(options)));
                while waited.next().await.is_some_and(|step| step.is_ok()) {}
            }
            let inspected = self
                .docker
                .inspect_container(name, None::<InspectContainerOptions>)
                .await;
            match inspected {
                Ok(container)
                    if container
                        .state
                        .as_ref()
                        .is_some_and(|state| state.running == Some(true)) => {}
                Ok(_) => return,
                Err(Error::DockerResponseServerError { status_code: 404, .. }) => return,
                Err(_) => {}
            }
            sleep(PING_EVERY).await;
        }
    }

    /// How it ended and what it wrote, once Docker knows.
    async fn last_words(&self, name: &str) -> Option<(Exit, String)> {
        let state = loop {
            match self
                .docker
                .inspect_container(name, None::<InspectContainerOptions>)
                .await
            {
                Ok(container) => {
                    let state = container.state.unwrap_or_default();
                    if state.running != Some(true) {
                        break state;
                    }
                }
                Err(_) => return None,
            }
            sleep(Duration::from_millis(3)).await;
        };
        let exit = exit_of(
            state.exit_code.unwrap_or_default(),
            state.oom_killed == Some(true),
        );
        let options = LogsOptions {
            stdout: true,
            stderr: true,
            tail: "20".to_owned(),
            ..LogsOptions::default()
        };
        let mut logs = std::pin::pin!(self.docker.logs(name, Some(options)));
        let mut output = String::new();
        while let Some(Ok(part)) = logs.next().await {
            output.push_str(&part.to_string());
        }
        let cut = output.len().saturating_sub(MAX_OUTPUT_BYTES);
        let cut = (cut..=output.len())
            .find(|&at| output.is_char_boundary(at))
            .unwrap_or(cut);
        Some((exit, output.get(cut..).unwrap_or_default().trim_end().to_owned()))
    }
}

fn name_of(summary: &ContainerSummary) -> Option<String> {
    let name = summary.names.as_ref()?.first()?;
    Some(name.trim_start_matches('/').to_owned())
}

/// What Docker puts before each part of an output, its time as RFC 3339 has it, and the part.
fn stamped(part: &[u8]) -> Option<(&str, &[u8])> {
    let end = part.iter().position(|&byte| byte == b' ')?;
    let (time, text) = part.split_at(end);
    Some((std::str::from_utf8(time).ok()?, text.get(1..)?))
}

/// What Docker is asked for: the same as the `oci` engine makes.
/// Limits per user, beside those of the control group.
fn user_limits(is_podman: bool, open_files: i64) -> Vec<ResourcesUlimits> {
    let limit = |name: &str, most: i64| ResourcesUlimits {
        name: Some(name.to_owned()),
        soft: Some(most),
        hard: Some(most),
    };
    let mut limits = vec![limit("nofile", open_files)];
    // Unless told otherwise, Podman asks for more than a host without CAP_SYS_RESOURCE may give. What holds is the
    // control group's limit.
    if is_podman {
        limits.push(limit("nproc", 4_096));
    }
    limits
}

/// A device file, under the same name in the container.
fn device(path: &Path) -> DeviceMapping {
    let path = path.display().to_string();
    DeviceMapping {
        path_on_host: Some(path.clone()),
        path_in_container: Some(path),
        cgroup_permissions: Some("rw".to_owned()),
    }
}

/// `image` is what our store says of it: a network function of one that only Docker has runs as root, in `/`.
fn body(
    spec: &ContainerSpec,
    given: &Given,
    image: Option<&Image>,
    is_podman: bool,
    network: String,
) -> ContainerCreateBody {
    let is_ordinary = spec.is_ordinary();
    // All fields by name: the compiler asks what this engine does with a new one.
    let ContainerSpec {
        image: image_name,
        command,
        env,
        labels,
        mounts,
        exchange,
        memory_bytes,
        pids_limit,
        cpuset,
        hugepages,
        // Asked for beside this: the name in the address, the quota once it runs, devices as `given`.
        name: _,
        cpu: _,
        functions: _,
        // It is there already.
        place: _,
        // With what is usual, in `ContainerSpec::capabilities`.
        capabilities: _,
        // The daemon's own setting.
        user_namespace: _,
        // For an orchestrator.
        task: _,
    } = spec;
    let known = image.map(|image| (image.user, image.directory.display().to_string()));
    // Of an ordinary program Docker knows it, too.
    let known = known.or_else(|| (!is_ordinary).then(|| (Owner::ROOT, "/".to_owned())));
    let (user, directory) = known.unzip();
    let exchange = exchange.iter();
    let mounts = mounts
        .iter()
        .map(|mount| (&mount.source, &mount.target, mount.read_only));
    let exchanged = exchange.clone().map(|of| (&of.source, &of.target, false));
    let mounts = mounts
        .chain(exchanged)
        .map(|(source, target, read_only)| DockerMount {
            target: Some(target.display().to_string()),
            source: Some(source.display().to_string()),
            typ: Some(MountType::BIND),
            read_only: Some(read_only),
            bind_options: Some(MountBindOptions {
                propagation: Some(MountBindOptionsPropagationEnum::RPRIVATE),
                ..MountBindOptions::default()
            }),
            ..DockerMount::default()
        });
    let hugepages = hugepages.then(|| DockerMount {
        target: Some("/dev/hugepages".to_owned()),
        source: Some("/dev/hugepages".to_owned()),
        typ: Some(MountType::BIND),
        ..DockerMount::default()
    });
    let calls = match is_ordinary {
        true => Calls::Ordinary,
        // Whole frames take packet sockets.
        false if given.has_frames() => Calls::Frames,
        false => Calls::Usual,
    };
    let frames = given.has_frames().then_some("NET_RAW");
    let mut security = vec!["no-new-privileges:true".to_owned()];
    if !is_podman {
        // Podman takes the path of a file here; its own profile is close.
        security.push(format!("seccomp={}", seccomp::docker_profile(calls)));
    }
    let exchange_label = exchange.map(|of| (EXCHANGE_LABEL.to_owned(), of.source.display().to_string()));
    let memory = memory_bytes.and_then(|bytes| i64::try_from(bytes).ok());
    let host = HostConfig {
        network_mode: Some(network),
        readonly_rootfs: Some(!is_ordinary),
        cap_drop: Some(vec!["ALL".to_owned()]),
        cap_add: Some(spec.capabilities().chain(frames).map(str::to_owned).collect()),
        security_opt: Some(security),
        pids_limit: Some(i64::from(*pids_limit)),
        memory,
        memory_swap: memory,
        cpuset_cpus: cpuset.clone(),
        ipc_mode: Some("private".to_owned()),
        shm_size: Some(64 << 20),
        masked_paths: Some(MASKED_PATHS.map(str::to_owned).to_vec()),
        readonly_paths: Some(READ_ONLY_PATHS.map(str::to_owned).to_vec()),
        tmpfs: (!is_ordinary).then(|| {
            HashMap::from([
                ("/tmp".to_owned(), "size=16m,mode=1777".to_owned()),
                ("/run".to_owned(), "size=64m,mode=755".to_owned()),
            ])
        }),
        ulimits: Some(user_limits(is_podman, open_files(spec) as i64)),
        devices: Some(given.devices.iter().map(|path| device(path)).collect()),
        mounts: Some(mounts.chain(hugepages).collect()),
        log_config: Some(HostConfigLogConfig {
            typ: Some("json-file".to_owned()),
            config: Some(HashMap::from([
                ("max-file".to_owned(), LOG_FILES.0.to_owned()),
                ("max-size".to_owned(), LOG_FILES.1.to_owned()),
            ])),
        }),
        ..HostConfig::default()
    };
    ContainerCreateBody {
        image: Some(image_name.with_tag()),
        // As the other engine takes it: the command is the whole of it.
        entrypoint: (!command.is_empty()).then(|| command.clone()),
        env: Some(
            given
                .env
                .iter()
                .chain(env)
                .map(|(key, value)| format!("{key}={value}"))
                .collect(),
        ),
        labels: Some(labels.clone().into_iter().chain(exchange_label).collect()),
        user: user.map(|user| format!("{}:{}", user.uid, user.gid)),
        working_dir: directory,
        stop_signal: image.and_then(|image| Some(image.stop_signal?.to_string())),
        host_config: Some(host),
        ..ContainerCreateBody::default()
    }
}

/// The holder of a container with these ports. What names and finds it is Docker's part, as for any container.
fn holder_body(spec: &ContainerSpec, ports: &[InterfaceSetup]) -> ContainerCreateBody {
    let hostname = host_files::hostname(&spec.name);
    let hosts = host_files::own_addresses(ports).map(|address| format!("{hostname}:{address}"));
    let labels = spec.labels.iter();
    let labels = labels.map(|(key, value)| (format!("{}.{key}", holder::LABEL), value.clone()));
    let own = (holder::LABEL.to_owned(), spec.name.clone());
    let host = HostConfig {
        network_mode: Some("none".to_owned()),
        readonly_rootfs: Some(true),
        cap_drop: Some(vec!["ALL".to_owned()]),
        security_opt: Some(vec!["no-new-privileges:true".to_owned()]),
        pids_limit: Some(holder::PIDS_LIMIT),
        memory: Some(holder::MEMORY_BYTES),
        memory_swap: Some(holder::MEMORY_BYTES),
        extra_hosts: Some(hosts.collect()),
        ..HostConfig::default()
    };
    ContainerCreateBody {
        image: Some(holder::IMAGE.to_owned()),
        entrypoint: Some(vec![holder::PROGRAM.to_owned()]),
        labels: Some(labels.chain([own]).collect()),
        hostname: Some(hostname),
        host_config: Some(host),
        ..ContainerCreateBody::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exit_code_above_128_is_a_signal() {
        assert_eq!(
            exit_of(3, false),
            Exit {
                status: Some(3),
                signal: None,
                out_of_memory: false
            }
        );
        assert_eq!(
            exit_of(137, true),
            Exit {
                status: None,
                signal: Some(9),
                out_of_memory: true
            }
        );
        assert_eq!(exit_of(255, false).status, Some(255));
    }

    #[test]
    fn docker_containers_get_the_same_confinement() {
        let spec = ContainerSpec::new("inco-a-1", "a");
        let host = body(&spec, &Given::default(), None, false, "none".into())
            .host_config
            .unwrap();
        assert_eq!(host.network_mode.as_deref(), Some("none"));
        assert_eq!(host.readonly_rootfs, Some(true));
        assert_eq!(host.cap_drop, Some(vec!["ALL".to_owned()]));
        assert_eq!(
            (host.cpu_quota, host.nano_cpus),
            (None, None),
            "a quota in it would slow the create"
        );
        assert!(host.masked_paths.unwrap().contains(&"/proc/slabinfo".to_owned()));
        let security = host.security_opt.unwrap();
        assert_eq!(
            security.first().map(String::as_str),
            Some("no-new-privileges:true")
        );
        let profile = security.last().unwrap().strip_prefix("seccomp=").unwrap();
        let profile: serde_json::Value = serde_json::from_str(profile).unwrap();
        assert_eq!(profile["defaultAction"], "SCMP_ACT_ERRNO");
        let named = |call: &str| {
            profile["syscalls"][0]["names"]
                .as_array()
                .unwrap()
                .iter()
                .any(|name| name == call)
        };
        assert!(named("get_mempolicy") && named("readlinkat") && !named("mount") && !named("clone3"));
    }

    #[test]
    fn values_of_the_environment_are_quoted_for_docker() {
        let image = Image {
            name: "a:1".into(),
            entrypoint: vec!["/a".into()],
            arguments: vec!["b \"c\"".into()],
            directory: "/".into(),
            user: Owner::ROOT,
            env: vec![("X".into(), "a \"b\" $c \\".into())],
            stop_signal: None,
            volumes: Vec::new(),
            digest: None,
            created_unix_ms: 7,
            bytes: 0,
        };
        let expected = [
            "LABEL inco.created-unix-ms=7",
            r#"CMD ["/a","b \"c\""]"#,
            r#"ENV X="a \"b\" \$c \\""#,
        ];
        assert_eq!(changes(&image), expected);
    }

    #[test]
    fn hosts_that_cannot_be_are_refused_with_what_to_write() {
        for (host, word) in [
            ("unix:///nowhere.sock", "/nowhere.sock"),
            ("tcp://10.0.0.1:2376", "certificates"),
            ("http://x", "unix://"),
        ] {
            let error = DockerEngine::start(DockerConfig::at(host))
                .unwrap_err()
                .to_string();
            assert!(error.contains(word), "{host}: {error}");
        }
    }
}
