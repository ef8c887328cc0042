//! The server: routes, limits, and errors as JSON.

use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::rejection::{JsonRejection, QueryRejection};
use axum::extract::{DefaultBodyLimit, Json, Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use crate::event_log::EventLog;
use crate::question::{Answer, Asker, NoAnswer, Question};
use crate::tuple::parse_tuple;
use crate::types::{Action, FlowFilter, FlowPage, Refusal};
use crate::{ApiError, types};

/// Connections at once; further ones wait. Followers of events keep theirs.
pub const CONNECTION_LIMIT: usize = 128;
/// How long the control loop may take for an answer. A dump of 16 million flows takes 4 s.
pub const ANSWER_TIME: Duration = Duration::from_secs(10);
/// Bytes of a request's body: an action is a line.
const BODY_LIMIT: usize = 64 * 1024;
/// Events in one answer, and in one piece of a stream.
const EVENT_PAGE: usize = 1000;

/// The API on its socket. Dropping it ends it and removes the socket.
#[derive(Debug)]
pub struct Server {
    socket: PathBuf,
    end: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

#[derive(Clone)]
struct Shared {
    asker: Asker,
    events: EventLog,
}

impl Server {
    /// Listens on the socket (mode 0660) and answers on a thread of its own. The directory is made where it is
    /// missing; a socket that nobody listens on is replaced.
    ///
    /// # Errors
    /// [`ApiError::InUse`] where somebody listens; [`ApiError::Permission`] and [`ApiError::System`].
    pub fn start(socket: &Path, asker: Asker, events: EventLog) -> Result<Server, ApiError> {
        let failed = |what, path: &Path| {
            let path = path.to_owned();
            move |source: io::Error| match source.kind() {
                io::ErrorKind::PermissionDenied => ApiError::Permission { socket: path },
                _ => ApiError::System { what, path, source },
            }
        };
        if let Some(directory) = socket.parent() {
            std::fs::create_dir_all(directory).map_err(failed("make directory", directory))?;
        }
        match std::os::unix::net::UnixStream::connect(socket) {
            Ok(_) => {
                return Err(ApiError::InUse {
                    socket: socket.to_owned(),
                });
            }
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                std::fs::remove_file(socket).map_err(failed("remove the old socket", socket))?;
            }
            // Whatever else is the matter is found when it is bound.
            Err(_) => {}
        }
        // Bound under another name, so that nobody can connect before the mode is set.
        let fresh = socket.with_extension(format!("new-{}", std::process::id()));
        let _ = std::fs::remove_file(&fresh);
        let listener = std::os::unix::net::UnixListener::bind(&fresh).map_err(failed("listen on", socket))?;
        let mode = std::fs::Permissions::from_mode(0o660);
        std::fs::set_permissions(&fresh, mode).map_err(failed("set the mode of", &fresh))?;
        std::fs::rename(&fresh, socket).map_err(failed("listen on", socket))?;
        listener
            .set_nonblocking(true)
            .map_err(failed("listen on", socket))?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(failed("start the runtime for", socket))?;
        let (end, ended) = oneshot::channel();
        let routes = routes(Shared { asker, events });
        let thread = std::thread::Builder::new()
            .name("inco-api".to_owned())
            .spawn(move || runtime.block_on(serve(listener, routes, ended)))
            .map_err(failed("start the thread for", socket))?;
        Ok(Server {
            socket: socket.to_owned(),
            end: Some(end),
            thread: Some(thread),
        })
    }

    /// Where it listens.
    pub fn socket(&self) -> &Path {
        &self.socket
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.socket);
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

async fn serve(listener: std::os::unix::net::UnixListener, routes: Router, ended: oneshot::Receiver<()>) {
    let Ok(listener) = UnixListener::from_std(listener) else {
        return;
    };
    let listener = Bounded {
        listener,
        permits: Arc::new(Semaphore::new(CONNECTION_LIMIT)),
    };
    let serving = axum::serve(listener, routes);
    // Answers under way are given up: whoever ends the server has ended the loop that would give them.
    tokio::select! {
        _ = serving => {}
        _ = ended => {
            // What was answered already still leaves.
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

/// Takes at most [`CONNECTION_LIMIT`] connections at once.
struct Bounded {
    listener: UnixListener,
    permits: Arc<Semaphore>,
}

/// A connection that counts while it lives.
struct Counted {
    stream: UnixStream,
    _permit: Option<OwnedSemaphorePermit>,
}

impl axum::serve::Listener for Bounded {
    type Io = Counted;
    type Addr = ();

    async fn accept(&mut self) -> (Counted, ()) {
        let permit = Arc::clone(&self.permits).acquire_owned().await.ok();
        loop {
            match self.listener.accept().await {
                Ok((stream, _)) => {
                    return (
                        Counted {
                            stream,
                            _permit: permit,
                        },
                        (),
                    );
                }
                // Out of file descriptors, most likely: they come back.
                Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        }
    }

    fn local_addr(&self) -> io::Result<()> {
        Ok(())
    }
}

impl AsyncRead for Counted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Counted {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

fn routes(shared: Shared) -> Router {
    Router::new()
        .route("/v1/status", get(status))
        .route("/v1/services", get(services))
        .route("/v1/instances", get(instances))
        .route("/v1/flows", get(flows))
        .route("/v1/events", get(events))
        .route("/v1/actions", post(act))
        .fallback(nowhere)
        .method_not_allowed_fallback(wrong_method)
        .layer(DefaultBodyLimit::max(BODY_LIMIT))
        .with_state(shared)
}

/// A refusal with its status.
struct Problem(StatusCode, Refusal);

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        (self.0, Json(self.1)).into_response()
    }
}

impl From<NoAnswer> for Problem {
    fn from(no: NoAnswer) -> Problem {
        let (error, hint) = match no {
            NoAnswer::Busy => ("inco has too many questions to answer", "try again in a moment"),
            NoAnswer::Ended => ("inco is stopping", "start it with `inco run -f inco.toml`"),
        };
        Problem(StatusCode::SERVICE_UNAVAILABLE, Refusal::new(error, hint))
    }
}

impl From<QueryRejection> for Problem {
    fn from(rejection: QueryRejection) -> Problem {
        Problem(
            StatusCode::BAD_REQUEST,
            Refusal::new(rejection.body_text(), "correct the query"),
        )
    }
}

impl From<JsonRejection> for Problem {
    fn from(rejection: JsonRejection) -> Problem {
        let hint =
            "send JSON such as {\"action\":\"drain\",\"instance\":3} with content-type: application/json";
        Problem(rejection.status(), Refusal::new(rejection.body_text(), hint))
    }
}

/// Asks the control loop, for so long.
async fn ask<T>(shared: &Shared, question: impl FnOnce(Answer<T>) -> Question) -> Result<T, Problem> {
    match tokio::time::timeout(ANSWER_TIME, shared.asker.ask(question)).await {
        Ok(answer) => Ok(answer?),
        Err(_) => {
            let error = format!(
                "the control loop did not answer within {} s",
                ANSWER_TIME.as_secs()
            );
            Err(Problem(
                StatusCode::GATEWAY_TIMEOUT,
                Refusal::new(error, "see what inco logs"),
            ))
        }
    }
}

async fn status(State(shared): State<Shared>) -> Result<Json<types::Status>, Problem> {
    ask(&shared, Question::Status).await.map(Json)
}

async fn services(State(shared): State<Shared>) -> Result<Json<Vec<types::ServiceRow>>, Problem> {
    ask(&shared, Question::Services).await.map(Json)
}

async fn instances(State(shared): State<Shared>) -> Result<Json<Vec<types::InstanceRow>>, Problem> {
    ask(&shared, Question::Instances).await.map(Json)
}

async fn flows(
    State(shared): State<Shared>,
    filter: Result<Query<FlowFilter>, QueryRejection>,
) -> Result<Json<FlowPage>, Problem> {
    let Query(filter) = filter?;
    check_flow(filter.flow.as_deref())?;
    let answer = ask(&shared, |answer| Question::Flows(filter, answer)).await?;
    answer
        .map(Json)
        .map_err(|refusal| Problem(StatusCode::CONFLICT, refusal))
}

fn check_flow(flow: Option<&str>) -> Result<(), Problem> {
    match flow.map(parse_tuple) {
        Some(Err(error)) => Err(Problem(
            StatusCode::BAD_REQUEST,
            Refusal::new(error.to_string(), ""),
        )),
        _ => Ok(()),
    }
}

async fn act(
    State(shared): State<Shared>,
    action: Result<Json<Action>, JsonRejection>,
) -> Result<Json<types::Outcome>, Problem> {
    let Json(action) = action?;
    if let Action::Purge { instance, flow } = &action {
        check_flow(flow.as_deref())?;
        if instance.is_some() == flow.is_some() {
            let refusal = Refusal::new("what to purge is not said", "give an instance or a flow");
            return Err(Problem(StatusCode::BAD_REQUEST, refusal));
        }
    }
    let answer = ask(&shared, |answer| Question::Act(action, answer)).await?;
    answer
        .map(Json)
        .map_err(|refusal| Problem(StatusCode::CONFLICT, refusal))
}

/// Which events are wanted.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct EventQuery {
    /// After the one of this number.
    since: Option<u64>,
    /// Instead: the newest so many.
    last: Option<usize>,
    /// At most so many.
    limit: Option<usize>,
    /// Go on telling what comes.
    #[serde(default)]
    follow: bool,
}

/// A line of the stream of events.
#[derive(Serialize)]
#[serde(untagged)]
enum Line<'a> {
    Event(&'a model::Event),
    /// So many events were forgotten before they could be told.
    Missed {
        missed: u64,
    },
}

/// Events as JSON lines, which is what a log file holds, too.
async fn events(
    State(shared): State<Shared>,
    query: Result<Query<EventQuery>, QueryRejection>,
) -> Result<Response, Problem> {
    let Query(query) = query?;
    let limit = query.limit.unwrap_or(EVENT_PAGE).min(crate::EVENT_LIMIT);
    // Before they are read: what comes in between is then still to be told.
    let newest = shared.events.newest();
    let first = match (query.since, query.last) {
        (Some(since), _) => shared.events.since(since, limit),
        (None, Some(last)) => shared.events.last(last),
        (None, None) => shared.events.last(limit),
    };
    let told = first
        .events
        .last()
        .map_or(query.since.unwrap_or(newest), |event| event.sequence);
    let head = lines(&first);
    let body = if query.follow {
        follow(shared.events.clone(), head, told)
    } else {
        Body::from(head)
    };
    Ok(([(header::CONTENT_TYPE, "application/x-ndjson")], body).into_response())
}

fn lines(events: &crate::Events) -> String {
    let mut text = String::new();
    let missed = (events.missed > 0).then_some(Line::Missed {
        missed: events.missed,
    });
    for line in missed
        .into_iter()
        .chain(events.events.iter().map(|event| Line::Event(event)))
    {
        // Numbers and text: there is nothing in an event that JSON could not say.
        if let Ok(line) = serde_json::to_string(&line) {
            text.push_str(&line);
            text.push('\n');
        }
    }
    text
}

/// The head, then what comes, as it comes.
fn follow(log: EventLog, head: String, told: u64) -> Body {
    Body::new(Follow {
        log,
        told,
        ready: Some(head),
        waiting: None,
    })
}

type Waiting = Pin<Box<dyn Future<Output = ()> + Send>>;

struct Follow {
    log: EventLog,
    told: u64,
    ready: Option<String>,
    waiting: Option<Waiting>,
}

impl axum::body::HttpBody for Follow {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<hyper::body::Frame<Bytes>, Self::Error>>> {
        loop {
            if let Some(text) = self.ready.take().filter(|text| !text.is_empty()) {
                return Poll::Ready(Some(Ok(hyper::body::Frame::data(Bytes::from(text)))));
            }
            if self.waiting.is_none() {
                let (log, told) = (self.log.clone(), self.told);
                self.waiting = Some(Box::pin(async move { log.after(told).await }));
            }
            if let Some(waiting) = &mut self.waiting
                && waiting.as_mut().poll(context).is_pending()
            {
                return Poll::Pending;
            }
            self.waiting = None;
            let events = self.log.since(self.told, EVENT_PAGE);
            self.told = events.events.last().map_or(self.told, |event| event.sequence);
            self.ready = Some(lines(&events));
        }
    }
}

async fn nowhere() -> Problem {
    let hint = "there are /v1/status, /v1/services, /v1/instances, /v1/flows, /v1/events and /v1/actions";
    Problem(StatusCode::NOT_FOUND, Refusal::new("there is nothing here", hint))
}

async fn wrong_method() -> Problem {
    let hint = "GET what is to be seen, POST to /v1/actions what is to be done";
    Problem(
        StatusCode::METHOD_NOT_ALLOWED,
        Refusal::new("this cannot be done here", hint),
    )
}
