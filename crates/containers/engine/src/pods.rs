//! The engine `kubernetes`: each container is the only one of a Pod of its own, because what owns several Pods chooses
//! itself which of them ends. Kubernetes chooses the node, gets the image there and keeps limits; nothing here does.
//!
//! A Pod is not started again (`restartPolicy: Never`): its end is told to the caller, who has another one made.
//!
//! Pods are listed, and watched from there on. What a watch repeats, or says late, changes nothing: Pods are told from each
//! other by their `uid`, and an end is final. A watch that breaks is followed by another list. No time of another machine
//! is compared with one of this machine. Where the API server does not answer, Pods are what they were.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::net::SocketAddr;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use futures_util::StreamExt as _;
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::api::{
    Api, DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions, WatchEvent, WatchParams,
};
use kube::{Client, Resource as _};
use kubernetes::said;
use model::Nanos;
use tokio::sync::{mpsc, watch};
use tokio::task::LocalSet;
use tokio::time::{Instant, sleep, timeout};

use clock::monotonic;

use crate::fate::Fate;
use crate::front::{Command, Front, LIST_LIMIT};
use crate::kubernetes_config::KubernetesConfig;
use crate::link::{ClientError, Link, Turns, late};
use crate::pod::{self, MANAGED_BY, MANAGER, NO_IMAGE};
use crate::{
    Abilities, Container, ContainerSpec, ContainerState, CpuQuota, Engine, EngineError, EngineEvent,
    Execution, Label, Request, Ticket, Usage,
};

/// The driver's name.
const DRIVER: &str = "kubernetes";
/// How long the API server may take for an answer.
const ANSWER: Duration = Duration::from_secs(10);
/// How long it may take at first.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// How long a node may take to end a Pod beyond its grace, and to remove it.
const END_LIMIT: Duration = Duration::from_secs(30);
/// How long a node may take to give a Pod another limit.
const RESIZE_LIMIT: Duration = Duration::from_secs(5);
/// How often is looked whether it has.
const RESIZE_LOOK: Duration = Duration::from_millis(10);
/// How often is looked whether the node of a Pod that is to go has been lost meanwhile.
const LOST_LOOK: Duration = Duration::from_millis(250);
/// For how long after an API server's return its word that a node is lost is not taken. Nodes could not report to it either,
/// and do so every 10 s; then they correct what is said of their Pods, every 10 s as well.
const SETTLES_FOR: Duration = Duration::from_secs(60);
/// For how long the API server is asked to let a watch live, in seconds. A partition is seen soon after.
const WATCH_SECONDS: u32 = 60;
/// How much later than that a watch counts as dead.
const WATCH_GRACE: Duration = Duration::from_secs(10);
/// Pods per page of a list; client-go has the same.
const PAGE: u32 = 500;
/// The first pause after a failure. It doubles each time.
const PAUSE_FIRST: Duration = Duration::from_millis(100);
/// The longest pause, unless the API server asks for more.
const PAUSE_LONGEST: Duration = Duration::from_secs(8);
/// The longest pause that it can ask for.
const PAUSE_ASKED_LIMIT: Duration = Duration::from_secs(60);
/// The first minor version of Kubernetes 1 where limits of a Pod change while it runs.
const RESIZES_SINCE: u32 = 33;

/// An API server of Kubernetes. See the [module](self).
#[derive(Debug)]
pub struct KubernetesEngine {
    front: Front,
    can_resize: bool,
}

impl KubernetesEngine {
    /// Connects, and starts the engine's thread. Blocks for up to 10 s.
    ///
    /// # Errors
    /// [`EngineError::Unavailable`] where no API server answers, or it does not permit inco to list Pods.
    pub fn start(config: KubernetesConfig) -> Result<KubernetesEngine, EngineError> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| EngineError::io("start", Path::new("engine thread"), &error))?;
        let (client, namespace, can_resize) = runtime.block_on(async {
            let connected = timeout(CONNECT_LIMIT, connect(&config)).await;
            connected.unwrap_or_else(|_| Err(unavailable(silent(CONNECT_LIMIT))))
        })?;
        let (commands, mut received) = mpsc::unbounded_channel();
        let (told, events) = std::sync::mpsc::channel();
        let run = move || {
            let pods = Rc::new(Pods {
                api: RefCell::new(Api::namespaced(client.clone(), &namespace)),
                client: RefCell::new(client),
                namespace,
                config,
                can_resize,
                link: Link::new(told),
                returned_at: Cell::new(None),
                known: RefCell::default(),
                turns: Turns::default(),
            });
            let tasks = LocalSet::new();
            tasks.spawn_local(Rc::clone(&pods).keep_following());
            tasks.block_on(&runtime, async move {
                while let Some(command) = received.recv().await {
                    match command {
                        Command::Request {
                            ticket,
                            request,
                            since,
                        } => pods.take(ticket, request, since),
                        Command::Execute { execution, .. } => {
                            let Execution { name, answer, .. } = execution;
                            answer(Err(lacks("run a command in", &name)));
                        }
                        Command::List { label, answer } => {
                            let pods = Rc::clone(&pods);
                            tokio::task::spawn_local(async move {
                                let _ = answer.send(pods.list(&label).await);
                            });
                        }
                        Command::Quit => return,
                    }
                }
            });
            // A look-up of a name may take long yet.
            runtime.shutdown_background();
        };
        let post = move |command| commands.send(command).is_ok();
        Ok(KubernetesEngine {
            front: Front::start(Box::new(post), events, run)?,
            can_resize,
        })
    }
}

/// A client, the namespace, and whether limits can change there, once Pods could be listed.
async fn connect(config: &KubernetesConfig) -> Result<(Client, String, bool), EngineError> {
    let client = config
        .cluster
        .client()
        .await
        .map_err(|error| unavailable(error.to_string()))?;
    let own = || client.default_namespace().to_owned();
    let namespace = config.namespace.clone().unwrap_or_else(own);
    let refused = |error: kube::Error| unavailable(said(&error).to_string());
    let version = client.apiserver_version().await.map_err(refused)?;
    let pods: Api<Pod> = Api::namespaced(client.clone(), &namespace);
    pods.list(&ListParams::default().labels(&selector()).limit(1))
        .await
        .map_err(refused)?;
    let minor = version.minor.trim_end_matches('+').parse().unwrap_or(0_u32);
    let can_resize = version.major != "1" || minor >= RESIZES_SINCE;
    Ok((client, namespace, can_resize))
}

/// What all Pods of inco have.
fn selector() -> String {
    format!("{MANAGED_BY}={MANAGER}")
}

fn silent(after: Duration) -> String {
    format!("the API server did not answer within {} s", after.as_secs())
}

fn unavailable(reason: String) -> EngineError {
    EngineError::Unavailable { reason }
}

/// What it cannot do with a Pod.
fn lacks(verb: &'static str, name: &str) -> EngineError {
    EngineError::Unsupported {
        driver: DRIVER,
        verb,
        name: name.to_owned(),
    }
}

impl ClientError for kube::Error {
    fn is_connection(&self) -> bool {
        !matches!(self, kube::Error::Api(_) | kube::Error::SerdeError(_))
    }

    fn is_passing(&self) -> bool {
        // It is asked too often; what stands before it has none at the moment; it has no store at the moment.
        matches!(self, kube::Error::Api(status) if matches!(status.code, 429 | 502..=504)
            || status.code == 500 && status.message.contains("etcd"))
    }

    fn refused(self, verb: &'static str, name: &str) -> EngineError {
        let name = name.to_owned();
        match self {
            kube::Error::Api(status) if status.code == 404 => EngineError::NotFound { name },
            kube::Error::Api(status) if status.code == 409 && status.reason == "AlreadyExists" => {
                EngineError::NameTaken { name }
            }
            kube::Error::Api(status) => EngineError::Refused {
                verb,
                name,
                reason: format!("{} ({})", status.message, status.code),
            },
            error => unavailable(said(&error).to_string()),
        }
    }
}

impl Engine for KubernetesEngine {
    fn driver(&self) -> &'static str {
        DRIVER
    }

    fn is_local(&self) -> bool {
        false
    }

    fn abilities(&self) -> Abilities {
        Abilities {
            pause: false,
            quota: self.can_resize,
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

/// A Pod of ours.
struct Known {
    /// [`None`] while it is being made.
    uid: Option<String>,
    /// What was said of it last.
    seen: Option<Box<Pod>>,
    labels: BTreeMap<String, String>,
    /// The container's own port.
    port: u16,
    fate: watch::Sender<Fate>,
    /// Whether the API server has it no more.
    is_gone: watch::Sender<bool>,
    /// Whether its creation was told, so that its end is to be told, too.
    is_told: bool,
}

impl Known {
    fn new(uid: Option<String>, labels: BTreeMap<String, String>, port: u16, is_told: bool) -> Known {
        Known {
            uid,
            seen: None,
            labels,
            port,
            fate: watch::channel(Fate::Begins("it is not placed yet".to_owned())).0,
            is_gone: watch::channel(false).0,
            is_told,
        }
    }
}

/// Why Pods are not followed any more.
enum Failure {
    /// The watch broke, or began too far back.
    Broke,
    /// The API server is asked too often, and wants to be left alone for so long.
    Throttled(Duration),
    /// It does not answer, or refuses.
    Away(String),
}

impl From<kube::Error> for Failure {
    fn from(error: kube::Error) -> Failure {
        match &error {
            kube::Error::Api(status) if status.code == 410 => Failure::Broke,
            kube::Error::Api(status) if status.code == 429 => {
                let seconds = status.details.as_ref().map_or(0, |of| of.retry_after_seconds);
                Failure::Throttled(Duration::from_secs(seconds.into()))
            }
            _ => Failure::Away(said(&error).to_string()),
        }
    }
}

struct Pods {
    config: KubernetesConfig,
    client: RefCell<Client>,
    api: RefCell<Api<Pod>>,
    namespace: String,
    can_resize: bool,
    link: Link,
    /// When the API server answered again after an outage, until nodes had the time to report.
    returned_at: Cell<Option<Instant>>,
    /// By names of containers.
    known: RefCell<BTreeMap<String, Known>>,
    turns: Turns,
}

impl Pods {
    fn api(&self) -> Api<Pod> {
        self.api.borrow().clone()
    }

    /// Requests for one container one after the other, those for several at once.
    fn take(self: &Rc<Self>, ticket: Ticket, request: Request, since: Nanos) {
        let pods = Rc::clone(self);
        let name = request.name().to_owned();
        let turn = self.turns.of(&name);
        tokio::task::spawn_local(async move {
            // In the order of submission: a mutex of tokio is fair, and tasks begin in the order of their making.
            let held = turn.lock().await;
            pods.serve(ticket, request, since).await;
            drop(held);
            pods.turns.give_back(&name, turn);
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
            Request::Stop { name, grace } => self.stop(&name, grace).await,
            Request::Remove { name } => self.remove(&name).await,
            Request::SetQuota { name, quota } => self.resize(&name, quota).await,
            Request::Pause { name } => Err(lacks("pause", &name)),
            Request::Resume { name } => Err(lacks("resume", &name)),
            Request::Exec { name, .. } => Err(lacks("run a command in", &name)),
        };
        self.link.answer(ticket, since, served);
    }

    // ---- What becomes of Pods.

    async fn keep_following(self: Rc<Self>) {
        let mut pause = PAUSE_FIRST;
        loop {
            let is_listed = Cell::new(false);
            let Err(failure) = self.follow(&is_listed).await else {
                pause = PAUSE_FIRST;
                continue;
            };
            if is_listed.get() {
                pause = PAUSE_FIRST;
            }
            let mut wait = pause;
            match failure {
                Failure::Broke => {}
                Failure::Throttled(asked) => wait = wait.max(asked.min(PAUSE_ASKED_LIMIT)),
                Failure::Away(reason) => {
                    self.link.down(&reason);
                    // Credentials may have changed.
                    if let Ok(client) = self.config.cluster.client().await {
                        self.api.replace(Api::namespaced(client.clone(), &self.namespace));
                        self.client.replace(client);
                    }
                }
            }
            sleep(wait).await;
            pause = (pause * 2).min(PAUSE_LONGEST);
        }
    }

    /// Lists Pods, and watches them until the watch ends.
    async fn follow(&self, is_listed: &Cell<bool>) -> Result<(), Failure> {
        if self.link.is_down() {
            self.returned_at.set(Some(Instant::now()));
        }
        let from = self.look().await?;
        is_listed.set(true);
        self.link.up();
        let params = WatchParams::default()
            .labels(&selector())
            .timeout(WATCH_SECONDS)
            .disable_bookmarks();
        let api = self.api();
        let began = Instant::now();
        let events = in_time(ANSWER, api.watch(&params, &from)).await?;
        let mut events = std::pin::pin!(events);
        let life = Duration::from_secs(WATCH_SECONDS.into());
        loop {
            let settles_in = self.settles_in();
            let is_settling = self.returned_at.get().is_some();
            if is_settling && settles_in.is_none() {
                self.settle();
            }
            match timeout(settles_in.unwrap_or(life + WATCH_GRACE), events.next()).await {
                Err(_) if settles_in.is_some() => {}
                Ok(Some(Ok(WatchEvent::Added(pod) | WatchEvent::Modified(pod)))) => self.apply(pod),
                Ok(Some(Ok(WatchEvent::Deleted(pod)))) => {
                    let (name, uid) = (pod.metadata.name.clone(), pod.metadata.uid.clone());
                    self.apply(pod);
                    self.gone(&name.unwrap_or_default(), uid.as_deref());
                }
                Ok(Some(Ok(WatchEvent::Bookmark(_)))) => {}
                Ok(Some(Ok(WatchEvent::Error(status)))) => {
                    return Err(kube::Error::Api(status.boxed()).into());
                }
                // Its time is over.
                Ok(None) if began.elapsed() >= life => return Ok(()),
                // It broke, or its server died.
                Ok(None | Some(Err(_))) | Err(_) => return Err(Failure::Broke),
            }
        }
    }

    /// Lists all Pods of inco, takes what is said of those known, and gives the version at which it was so.
    async fn look(&self) -> Result<String, Failure> {
        // One that is made after this may lack in the list, and is not gone.
        let made = |(name, of): (&String, &Known)| Some((name.clone(), of.uid.clone()?));
        let before: Vec<(String, String)> = self.known.borrow().iter().filter_map(made).collect();
        let (pods, version) = self.all(ANSWER).await?;
        for (name, uid) in before {
            if !pods.iter().any(|pod| pod.metadata.uid.as_ref() == Some(&uid)) {
                self.gone(&name, Some(&uid));
            }
        }
        pods.into_iter().for_each(|pod| self.apply(pod));
        Ok(version)
    }

    async fn all(&self, limit: Duration) -> Result<(Vec<Pod>, String), Failure> {
        let api = self.api();
        let mut params = ListParams::default().labels(&selector()).limit(PAGE);
        let mut all = Vec::new();
        loop {
            let page = in_time(limit, api.list(&params)).await?;
            all.extend(page.items);
            match page.metadata.continue_.filter(|of| !of.is_empty()) {
                Some(next) => params = params.continue_token(&next),
                None => return Ok((all, page.metadata.resource_version.unwrap_or_default())),
            }
        }
    }

    /// Takes what is said of a Pod.
    fn apply(&self, pod: Pod) {
        let name = pod.metadata.name.clone().unwrap_or_default();
        let mut all = self.known.borrow_mut();
        let Some(known) = all.get_mut(&name) else { return };
        match &known.uid {
            Some(uid) if pod.metadata.uid.as_ref() == Some(uid) => {}
            // Another one of that name.
            Some(_) => return,
            // It may be the one that is being made: that is known in a moment.
            None => {
                known.seen = Some(Box::new(pod));
                return;
            }
        }
        let said = pod::fate(&pod, known.port, self.is_lost(&pod));
        known.seen = Some(Box::new(pod));
        self.is_so(&name, known, said);
    }

    /// Whether the node of a Pod has been lost, as the API server says and could know.
    fn is_lost(&self, pod: &Pod) -> bool {
        pod::is_lost(pod) && self.settles_in().is_none()
    }

    /// How long the API server's word is not taken yet that a node is lost.
    fn settles_in(&self) -> Option<Duration> {
        let left = SETTLES_FOR.checked_sub(self.returned_at.get()?.elapsed());
        left.filter(|left| !left.is_zero())
    }

    /// Nodes have had the time to report: takes what was said of each Pod last.
    fn settle(&self) {
        self.returned_at.set(None);
        let mut all = self.known.borrow_mut();
        for (name, known) in all.iter_mut().filter(|(_, known)| known.uid.is_some()) {
            let Some(pod) = &known.seen else { continue };
            let said = pod::fate(pod, known.port, self.is_lost(pod));
            self.is_so(name, known, said);
        }
    }

    /// The API server has a Pod no more.
    fn gone(&self, name: &str, uid: Option<&str>) {
        let mut all = self.known.borrow_mut();
        let Some(known) = all.get_mut(name).filter(|known| known.uid.as_deref() == uid) else {
            return;
        };
        self.is_so(name, known, Fate::NeverRan("its Pod was deleted".to_owned()));
        known.is_gone.send_replace(true);
    }

    fn is_so(&self, name: &str, known: &mut Known, said: Fate) {
        let after = known.fate.borrow().after(said);
        let Some(fate) = after else { return };
        if let (Fate::Ended(exit, reason), true) = (&fate, known.is_told) {
            self.link.tell_end(name.to_owned(), *exit, reason.clone());
        }
        known.fate.send_replace(fate);
    }

    /// Tells the end of a container from now on.
    fn watch(&self, name: &str) {
        let mut all = self.known.borrow_mut();
        let Some(known) = all.get_mut(name) else { return };
        known.is_told = true;
        if let Fate::Ended(exit, reason) = &*known.fate.borrow() {
            self.link.tell_end(name.to_owned(), *exit, reason.clone());
        }
    }

    fn fate_of(&self, name: &str) -> Option<Fate> {
        self.known
            .borrow()
            .get(name)
            .map(|known| known.fate.borrow().clone())
    }

    /// Waits until the fate of a container is so; [`None`] if it was forgotten, or did not become so within the limit.
    async fn until(&self, name: &str, limit: Duration, is_so: impl Fn(&Fate) -> bool) -> Option<Fate> {
        let mut fate = self.known.borrow().get(name)?.fate.subscribe();
        let waited = timeout(limit, fate.wait_for(|fate| is_so(fate))).await;
        waited.ok()?.ok().map(|fate| fate.clone())
    }

    // ---- Requests.

    async fn create(&self, spec: &ContainerSpec) -> Result<Option<SocketAddr>, EngineError> {
        spec.check()?;
        let (task, options) = pod::check(spec)?;
        let body = pod::pod(spec, task, options, self.config.may_pull)?;
        let name = &spec.name;
        let limit = Duration::from_nanos(self.config.create_timeout.0);
        if self.known.borrow().contains_key(name) {
            return Err(EngineError::NameTaken { name: name.clone() });
        }
        // Before it is made: what is said of it may come before the answer.
        let known = Known::new(None, spec.labels.clone(), task.port, false);
        self.known.borrow_mut().insert(name.clone(), known);
        let made = self.link.ask("create", name, ANSWER, self.make(&body)).await;
        let made = match made {
            Ok(made) => made,
            Err(error) => {
                self.known.borrow_mut().remove(name);
                // No answer came: it may have been made all the same.
                if matches!(error, EngineError::Timeout { .. }) || self.link.is_down() {
                    let _ = timeout(
                        ANSWER,
                        self.api().delete(name, &DeleteParams::default().grace_period(0)),
                    )
                    .await;
                }
                return Err(error);
            }
        };
        let seen = {
            let mut all = self.known.borrow_mut();
            all.get_mut(name).and_then(|known| {
                known.uid = made.metadata.uid.clone();
                known.seen.take()
            })
        };
        self.apply(made);
        if let Some(seen) = seen {
            self.apply(*seen);
        }
        let error = match self
            .until(name, limit, |fate| !matches!(fate, Fate::Begins(_)))
            .await
        {
            Some(Fate::Runs(address)) => return Ok(Some(address)),
            Some(Fate::Ended(..)) => return Ok(None),
            Some(Fate::NeverRan(reason)) => match reason.strip_prefix(NO_IMAGE) {
                Some(reason) => EngineError::NotAtNodes {
                    image: spec.image.with_tag(),
                    reason: reason.to_owned(),
                },
                None => EngineError::Start {
                    name: name.clone(),
                    reason,
                },
            },
            _ => {
                let why = match self.fate_of(name) {
                    Some(Fate::Begins(reason)) => reason,
                    _ => "it did not begin".to_owned(),
                };
                let warned = self
                    .warning(name)
                    .await
                    .map(|of| format!(" ({of})"))
                    .unwrap_or_default();
                EngineError::Start {
                    name: name.clone(),
                    reason: format!("{why}, for {} s{warned}", limit.as_secs()),
                }
            }
        };
        // The next inco finds what cannot be removed now.
        let _ = self.remove(name).await;
        self.known.borrow_mut().remove(name);
        Err(error)
    }

    /// Has the API server make a Pod. It refuses fields that it does not know, which may come from the configuration.
    async fn make(&self, body: &serde_json::Value) -> Result<Pod, kube::Error> {
        let url = Pod::url_path(&(), Some(&self.namespace));
        let body = serde_json::to_vec(body).map_err(kube::Error::SerdeError)?;
        let asked = kube::core::Request::new(url).create(&PostParams::default(), body);
        let mut request = asked.map_err(kube::Error::BuildRequest)?;
        let path = format!("{}?fieldValidation=Strict", request.uri().path());
        if let Ok(uri) = path.parse() {
            *request.uri_mut() = uri;
        }
        let client = self.client.borrow().clone();
        client.request(request).await
    }

    /// What Kubernetes has warned of about a Pod last, where inco may ask for that.
    async fn warning(&self, name: &str) -> Option<String> {
        let uid = self.known.borrow().get(name)?.uid.clone()?;
        let events: Api<Event> = Api::namespaced(self.client.borrow().clone(), &self.namespace);
        let params = ListParams::default().fields(&format!("involvedObject.uid={uid},type=Warning"));
        let listed = timeout(ANSWER, events.list(&params)).await.ok()?.ok()?;
        listed.items.into_iter().next_back()?.message
    }

    /// Asks for the end of a Pod; the answer may be that there is none.
    async fn delete(&self, verb: &'static str, name: &str, seconds: u32) -> Result<(), EngineError> {
        let uid = self.known.borrow().get(name).and_then(|known| known.uid.clone());
        let params = DeleteParams {
            grace_period_seconds: Some(seconds),
            preconditions: uid.clone().map(|uid| Preconditions {
                uid: Some(uid),
                resource_version: None,
            }),
            ..DeleteParams::default()
        };
        let api = self.api();
        let asked = api.delete(name, &params);
        match self.link.ask(verb, name, ANSWER, asked).await {
            Ok(_) => Ok(()),
            // The name is another Pod's by now, or nobody's.
            Err(EngineError::NotFound { .. }) => {
                self.gone(name, uid.as_deref());
                Ok(())
            }
            Err(EngineError::Refused { reason, .. }) if reason.ends_with("(409)") => {
                self.gone(name, uid.as_deref());
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// Has Kubernetes end the program. The Pod goes with it; what was known of it stays until the removal.
    async fn stop(&self, name: &str, grace: Nanos) -> Result<(), EngineError> {
        match self.fate_of(name) {
            None => {
                return Err(EngineError::NotFound {
                    name: name.to_owned(),
                });
            }
            Some(fate) if fate.is_over() => return Ok(()),
            Some(_) => {}
        }
        let seconds = pod::grace_seconds(grace);
        self.delete("stop", name, seconds).await?;
        let limit = END_LIMIT + Duration::from_secs(seconds.into());
        match self.until(name, limit, Fate::is_over).await {
            Some(_) => Ok(()),
            None => Err(late("stop", name, limit)),
        }
    }

    /// Removes the Pod, and waits until its node has removed it; one whose node is lost at once.
    async fn remove(&self, name: &str) -> Result<(), EngineError> {
        let is_lost = || {
            let all = self.known.borrow();
            let seen = all.get(name).and_then(|known| known.seen.as_ref());
            seen.is_some_and(|pod| self.is_lost(pod))
        };
        let gone = self
            .known
            .borrow()
            .get(name)
            .map(|known| known.is_gone.subscribe());
        let is_gone = gone.as_ref().is_some_and(|gone| *gone.borrow());
        if !is_gone {
            let mut was_lost = is_lost();
            // One that was never listed is removed as well.
            self.delete("remove", name, if was_lost { 0 } else { 1 }).await?;
            let began = Instant::now();
            if let Some(mut gone) = gone {
                while timeout(LOST_LOOK, gone.wait_for(|gone| *gone)).await.is_err() {
                    if began.elapsed() > END_LIMIT {
                        return Err(late("remove", name, END_LIMIT));
                    }
                    if is_lost() && !was_lost {
                        was_lost = true;
                        self.delete("remove", name, 0).await?;
                    }
                }
            }
        }
        self.known.borrow_mut().remove(name);
        Ok(())
    }

    /// Gives the container another limit of CPUs while it runs, and waits until its node has done so.
    async fn resize(&self, name: &str, quota: Option<CpuQuota>) -> Result<(), EngineError> {
        const VERB: &str = "set the CPU quota of";
        if !self.can_resize {
            return Err(lacks(VERB, name));
        }
        if let Some(quota) = quota {
            quota.check()?;
        }
        let seen = self.known.borrow().get(name).and_then(|known| known.seen.clone());
        match (self.fate_of(name), seen) {
            (Some(Fate::Begins(_) | Fate::Runs(_)), Some(pod)) => {
                let patch = Patch::Strategic(pod::resize(&pod, quota));
                let api = self.api();
                let params = PatchParams::default();
                let asked = api.patch_resize(name, &params, &patch);
                let pod = self.link.ask(VERB, name, ANSWER, asked).await?;
                self.apply(pod);
            }
            (None, _) => {
                return Err(EngineError::NotFound {
                    name: name.to_owned(),
                });
            }
            _ => {
                return Err(EngineError::NotRunning {
                    name: name.to_owned(),
                });
            }
        }
        let began = Instant::now();
        while began.elapsed() < RESIZE_LIMIT {
            if self.fate_of(name).is_none_or(|fate| fate.is_over()) {
                return Err(EngineError::NotRunning {
                    name: name.to_owned(),
                });
            }
            let seen = self.known.borrow().get(name).and_then(|known| known.seen.clone());
            match seen.map(|pod| pod::is_resized(&pod, quota)) {
                Some(Ok(true)) => return Ok(()),
                Some(Err(reason)) => {
                    return Err(EngineError::Refused {
                        verb: VERB,
                        name: name.to_owned(),
                        reason,
                    });
                }
                _ => sleep(RESIZE_LOOK).await,
            }
        }
        Err(late(VERB, name, RESIZE_LIMIT))
    }

    /// The Pods with this label as containers, whose ends are told from now on.
    async fn list(&self, label: &Label) -> Result<Vec<Container>, EngineError> {
        let listed = self.all(LIST_LIMIT).await.map_err(|failure| match failure {
            Failure::Broke => unavailable("its list broke off".to_owned()),
            Failure::Throttled(_) => unavailable("it says that it is asked too often".to_owned()),
            Failure::Away(reason) => {
                self.link.down(&reason);
                unavailable(reason)
            }
        });
        let (pods, _) = listed?;
        let is_meant = |labels: &BTreeMap<String, String>| {
            let own = labels.get(&label.key);
            own.is_some() && label.value.as_ref().is_none_or(|value| own == Some(value))
        };
        for pod in pods {
            let Some((labels, port)) = pod::read_back(&pod).filter(|(labels, _)| is_meant(labels)) else {
                continue;
            };
            let name = pod.metadata.name.clone().unwrap_or_default();
            let uid = pod.metadata.uid.clone();
            let new = || Known::new(uid, labels, port, true);
            self.known.borrow_mut().entry(name).or_insert_with(new);
            self.apply(pod);
        }
        let known = self.known.borrow();
        let containers = known
            .iter()
            .filter(|(_, known)| is_meant(&known.labels) && known.uid.is_some());
        let containers = containers.map(|(name, known)| {
            let address = match *known.fate.borrow() {
                Fate::Runs(address) => Some(address),
                _ => None,
            };
            let made = known
                .seen
                .as_ref()
                .and_then(|pod| pod.metadata.creation_timestamp.as_ref());
            Container {
                name: name.clone(),
                labels: known.labels.clone(),
                pid: 0,
                state: match address {
                    Some(_) => ContainerState::Running,
                    // One that an earlier run asked for and that does not run yet is of no use to this one.
                    None => ContainerState::Exited,
                },
                started_unix_ms: made
                    .map_or(0, |at| u64::try_from(at.0.as_millisecond()).unwrap_or_default()),
                address,
            }
        });
        Ok(containers.collect())
    }
}

async fn in_time<T>(
    limit: Duration,
    asked: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, Failure> {
    match timeout(limit, asked).await {
        Ok(answer) => Ok(answer?),
        Err(_) => Err(Failure::Away(silent(limit))),
    }
}
