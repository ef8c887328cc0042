//! The thread that follows Services.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use futures_util::{StreamExt as _, pin_mut};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{Api, ListParams, WatchEvent, WatchParams};
use model::BackEnd;
use tokio::sync::watch;

use crate::cluster::said;
use crate::service::{Error, News, Wanted};
use crate::slices::Slices;

/// The label of slices that names their Service.
const SERVICE_LABEL: &str = "kubernetes.io/service-name";
/// Slices per page of a list; client-go has the same.
const PAGE: u32 = 500;
/// Most slices of a Service. Each has at most 1000 endpoints, usually 100.
const SLICES_LIMIT: usize = 1000;
/// For how long the API server is asked to let a watch live, in seconds. A partition is seen soon after, because
/// nothing comes then.
const WATCH_SECONDS: u32 = 60;
/// How much later than that a watch counts as dead.
const WATCH_GRACE: Duration = Duration::from_secs(10);
/// How long a list, or the beginning of a watch, may take.
const ANSWER_LIMIT: Duration = Duration::from_secs(15);
/// The first pause after a failure. It doubles each time.
const PAUSE_FIRST: Duration = Duration::from_millis(500);
/// The longest pause.
const PAUSE_LONGEST: Duration = Duration::from_secs(10);
/// The longest pause that an API server can ask for (`Retry-After`).
const PAUSE_ASKED_LIMIT: Duration = Duration::from_secs(60);
/// The code of a watch that begins too far back.
const GONE: u16 = 410;

/// What is known of a Service, and what of it nobody has taken yet.
#[derive(Debug, Default)]
struct Known {
    list: Option<(Vec<BackEnd>, Option<String>)>,
    is_list_new: bool,
    away: Option<(Instant, String)>,
    /// Whether somebody was told that it is away.
    is_away_told: bool,
    back: Option<Duration>,
}

#[derive(Debug, Default)]
struct Shared {
    known: Mutex<Known>,
    has_news: AtomicBool,
}

impl Shared {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, slices: &Slices) {
        let list = (slices.list().to_vec(), slices.problem().map(str::to_owned));
        let mut known = self.known();
        // What comes twice is no news.
        if known.list.as_ref() != Some(&list) {
            known.list = Some(list);
            known.is_list_new = true;
            self.has_news.store(true, Ordering::Release);
        }
    }

    fn away(&self, reason: String) {
        let mut known = self.known();
        match &mut known.away {
            Some((_, said)) => *said = reason,
            None => known.away = Some((Instant::now(), reason)),
        }
        self.has_news.store(true, Ordering::Release);
    }

    fn answers(&self) {
        let mut known = self.known();
        if let Some((since, _)) = known.away.take()
            && std::mem::take(&mut known.is_away_told)
        {
            known.back = Some(since.elapsed());
            self.has_news.store(true, Ordering::Release);
        }
    }

    fn take<K: Clone>(&self, name: &K, news: &mut Vec<(K, News)>) {
        if !self.has_news.swap(false, Ordering::Acquire) {
            return;
        }
        let mut known = self.known();
        let mut add = |of: News| news.push((name.clone(), of));
        if let Some(after) = known.back.take() {
            add(News::Back(after));
        }
        if !known.is_away_told
            && let Some((_, reason)) = &known.away
        {
            add(News::Away(reason.clone()));
            known.is_away_told = true;
        }
        if std::mem::take(&mut known.is_list_new)
            && let Some((list, problem)) = &known.list
        {
            add(News::List(list.clone(), problem.clone()));
        }
    }
}

/// What is to be followed, each with the place for what is found.
type Targets = Vec<(Wanted, Arc<Shared>)>;

/// Those who follow Services: a thread with a runtime of its own, and a task for each Service, which has a name of the
/// type `K` here.
#[derive(Debug)]
pub struct Followers<K> {
    services: BTreeMap<K, (Wanted, Arc<Shared>)>,
    thread: Option<Thread>,
}

impl<K> Default for Followers<K> {
    fn default() -> Self {
        Followers {
            services: BTreeMap::new(),
            thread: None,
        }
    }
}

#[derive(Debug)]
struct Thread {
    /// What is to be followed; [`None`]: the end.
    wanted: watch::Sender<Option<Targets>>,
    handle: Option<JoinHandle<()>>,
}

impl<K: Clone + Ord> Followers<K> {
    /// Follows these Services from now on, each under a name, and no others. One that stays the same goes on.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn follow(&mut self, wanted: impl IntoIterator<Item = (K, Wanted)>) -> Result<(), Error> {
        let mut before = std::mem::take(&mut self.services);
        let mut is_changed = false;
        for (name, wanted) in wanted {
            let kept = before.remove(&name).filter(|(of, _)| *of == wanted);
            is_changed |= kept.is_none();
            self.services
                .insert(name, kept.unwrap_or_else(|| (wanted, Arc::default())));
        }
        if !is_changed && before.is_empty() {
            return Ok(());
        }
        if self.thread.is_none() {
            self.thread = Some(Thread::start()?);
        }
        if let Some(thread) = &self.thread {
            let all = self.services.values().cloned().collect();
            thread.wanted.send_replace(Some(all));
        }
        Ok(())
    }

    /// What is new, with the names of the Services. Makes no system call.
    pub fn news(&self) -> Vec<(K, News)> {
        let mut news = Vec::new();
        for (name, (_, shared)) in &self.services {
            shared.take(name, &mut news);
        }
        news
    }
}

impl Thread {
    fn start() -> Result<Thread, Error> {
        let (wanted, changes) = watch::channel(None);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let thread = std::thread::Builder::new().name("inco-kubernetes".to_owned());
        let handle = thread.spawn(move || {
            runtime.block_on(run(changes));
            // A look-up of a name may take long yet.
            runtime.shutdown_background();
        })?;
        Ok(Thread {
            wanted,
            handle: Some(handle),
        })
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        self.wanted.send_replace(None);
        if let Some(handle) = self.handle.take() {
            // The runtime only waits for tasks at their next await, which is at once.
            let _ = handle.join();
        }
    }
}

/// Keeps a task for each Service that is to be followed.
async fn run(mut changes: watch::Receiver<Option<Targets>>) {
    let mut tasks: Vec<(Arc<Shared>, tokio::task::JoinHandle<()>)> = Vec::new();
    // The sender says so before it is dropped.
    while changes.changed().await.is_ok() {
        let Some(wanted) = changes.borrow_and_update().clone() else {
            break;
        };
        tasks.retain(|(shared, task)| {
            let stays = wanted.iter().any(|(_, of)| Arc::ptr_eq(of, shared));
            if !stays {
                task.abort();
            }
            stays
        });
        for (wanted, shared) in wanted {
            if !tasks.iter().any(|(of, _)| Arc::ptr_eq(of, &shared)) {
                let task = tokio::spawn(follow(wanted, Arc::clone(&shared)));
                tasks.push((shared, task));
            }
        }
    }
}

/// Why a step did not succeed.
enum Failure {
    /// The watch began too far back, or ended before its time: the slices are listed again after a short pause.
    Stale,
    /// After a pause, which the server may have asked for.
    Failed(String, Option<Duration>),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::Failed(error.to_string(), None)
    }
}

impl From<kube::Error> for Failure {
    fn from(error: kube::Error) -> Failure {
        let status = match &error {
            kube::Error::Api(status) if status.code == GONE => return Failure::Stale,
            kube::Error::Api(status) => Some(status),
            _ => None,
        };
        let asked = status
            .and_then(|of| of.details.as_ref())
            .map(|of| Duration::from_secs(of.retry_after_seconds.into()))
            .filter(|asked| !asked.is_zero());
        Failure::Failed(said(&error).to_string(), asked)
    }
}

/// Follows a Service until the task is aborted.
async fn follow(wanted: Wanted, shared: Arc<Shared>) {
    let mut slices = Slices::new(wanted.port.clone(), wanted.is_ipv4);
    let mut pause = PAUSE_FIRST;
    let mut api = None;
    loop {
        let failure = match step(&wanted, &mut api, &mut slices, &shared).await {
            Ok(()) => {
                pause = PAUSE_FIRST;
                continue;
            }
            Err(failure) => failure,
        };
        match failure {
            // Should the server say so again and again, it is not asked without a pause.
            Failure::Stale => tokio::time::sleep(PAUSE_FIRST).await,
            Failure::Failed(reason, asked) => {
                tracing::debug!(
                    service = wanted.service,
                    reason,
                    "the endpoints cannot be followed"
                );
                shared.away(reason);
                // Credentials may have changed.
                api = None;
                let asked = asked.map_or(Duration::ZERO, |of| of.min(PAUSE_ASKED_LIMIT));
                tokio::time::sleep(pause.max(asked)).await;
                pause = (pause * 2).min(PAUSE_LONGEST);
            }
        }
    }
}

/// Lists the slices, and watches them until the watch ends.
///
/// A watch never begins where another one ended: the server may have lost what it had and count anew, so that nothing
/// would come until it has counted as far. And the client does not tell a watch whose time is over from one whose server
/// died.
async fn step(
    wanted: &Wanted,
    api: &mut Option<Api<EndpointSlice>>,
    slices: &mut Slices,
    shared: &Shared,
) -> Result<(), Failure> {
    let api = match api {
        Some(api) => api,
        None => {
            let client = wanted.cluster.client().await?;
            api.insert(Api::namespaced(client, &wanted.namespace))
        }
    };
    let label = format!("{SERVICE_LABEL}={}", wanted.service);
    let (all, from) = in_time(list(api, &label)).await?;
    slices.replace(all);
    shared.set(slices);
    let params = WatchParams::default()
        .labels(&label)
        .timeout(WATCH_SECONDS)
        .disable_bookmarks();
    let began = Instant::now();
    let events = in_time(async { Ok(api.watch(&params, &from).await?) }).await?;
    shared.answers();
    pin_mut!(events);
    let limit = Duration::from_secs(WATCH_SECONDS.into()) + WATCH_GRACE;
    loop {
        let event = match tokio::time::timeout(limit, events.next()).await {
            Ok(Some(Ok(event))) => event,
            // Its time is over.
            Ok(None) if began.elapsed() >= Duration::from_secs(WATCH_SECONDS.into()) => return Ok(()),
            // It broke, or its server died.
            Ok(None | Some(Err(_))) | Err(_) => return Err(Failure::Stale),
        };
        match event {
            WatchEvent::Added(slice) | WatchEvent::Modified(slice) => slices.apply(slice),
            WatchEvent::Deleted(slice) => slices.delete(slice.metadata.name.as_deref().unwrap_or_default()),
            WatchEvent::Bookmark(_) => {}
            WatchEvent::Error(status) => return Err(kube::Error::Api(status.boxed()).into()),
        }
        shared.set(slices);
    }
}

async fn in_time<T>(answer: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let answer = tokio::time::timeout(ANSWER_LIMIT, answer).await;
    answer.unwrap_or_else(|_| {
        let seconds = ANSWER_LIMIT.as_secs();
        let reason = format!("the API server does not answer within {seconds} s");
        Err(Failure::Failed(reason, None))
    })
}

/// All slices, and the version at which they were so.
async fn list(api: &Api<EndpointSlice>, label: &str) -> Result<(Vec<EndpointSlice>, String), Failure> {
    let mut params = ListParams::default().labels(label).limit(PAGE);
    let mut all = Vec::new();
    loop {
        let page = api.list(&params).await?;
        all.extend(page.items);
        let next = page.metadata.continue_.filter(|of| !of.is_empty());
        match next {
            Some(next) if all.len() < SLICES_LIMIT => params = params.continue_token(&next),
            Some(_) => {
                let reason = format!("the Service has more than {SLICES_LIMIT} EndpointSlices");
                return Err(Failure::Failed(reason, None));
            }
            None => return Ok((all, page.metadata.resource_version.unwrap_or_default())),
        }
    }
}
