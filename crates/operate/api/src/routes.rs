//! What may be asked, and how it is answered.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::rejection::{JsonRejection, PathRejection, QueryRejection};
use axum::extract::{DefaultBodyLimit, Extension, Json, Path, Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use model::{Action, FlowKey, InstanceId, Setting};
use serde::Deserialize;
use serde_json::Value;
use utoipa::openapi::OpenApi;
use utoipa::{IntoParams, OpenApi as _};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::capture::{CaptureQuery, file};
use crate::connections::{ConnectionPermit, keep};
use crate::control_request::{Answer, ControlRequest, RequestSender};
use crate::counters::Counters;
use crate::event_log::EventLog;
use crate::figures::Figures;
use crate::history::POINTS;
use crate::problem::{PROBLEM_JSON, Problem};
use crate::stream::{Snapshots, follow, lines, live};
use crate::tuple::parse_tuple;
use crate::types::{
    ActorsRow, FlowExplanation, FlowFilter, FlowPage, History, InstanceRow, LogPiece, LogRow, Outcome,
    Policies, Problem as ProblemBody, ServiceRow, Snapshot, Status,
};
use crate::{Caller, metrics, page};

/// Time limit for an answer of the control loop. A dump of 16 million flows takes 4 s.
pub const ANSWER_TIME: Duration = Duration::from_secs(10);
/// Bytes of a request's body: an action is a line.
const BODY_LIMIT: usize = 64 * 1024;
/// Events in one answer, and in one piece of a stream.
pub(crate) const EVENT_PAGE: usize = 1000;

/// Events among which those about a flow are looked for.
const EVENTS_SEARCHED: usize = 10_000;

/// State shared by all handlers.
#[derive(Clone)]
pub(crate) struct Shared {
    pub(crate) asker: RequestSender,
    pub(crate) events: EventLog,
    pub(crate) snapshots: Arc<Snapshots>,
    pub(crate) figures: Arc<Figures>,
}

#[derive(utoipa::OpenApi)]
#[openapi(
    info(
        title = "inco",
        description = "State and actions of a running inco. Requests on the unix socket need no token. Requests \
                       over TCP (TLS only) need `Authorization: Bearer TOKEN`; a token with the role `read` cannot \
                       POST. Rates are in packets per second; names of times end in their unit.",
        license(name = "Apache-2.0", identifier = "Apache-2.0")
    ),
    servers((url = "/")),
    modifiers(&Bearer)
)]
struct Description;

struct Bearer;

impl utoipa::Modify for Bearer {
    fn modify(&self, openapi: &mut OpenApi) {
        use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
        let scheme = HttpBuilder::new()
            .scheme(HttpAuthScheme::Bearer)
            .description(Some("A token of the file in `[api] tokens`; TCP only."))
            .build();
        let components = openapi.components.get_or_insert_with(Default::default);
        components
            .security_schemes
            .insert("token".to_owned(), SecurityScheme::Http(scheme).into());
    }
}

/// Declares that actions have no other fields; the derived description does not.
fn close_actions(openapi: &mut OpenApi) {
    use utoipa::openapi::RefOr;
    use utoipa::openapi::schema::{AdditionalProperties, Schema};
    let schemas = openapi
        .components
        .as_mut()
        .map(|components| &mut components.schemas);
    let action = schemas.and_then(|schemas| schemas.get_mut("Action"));
    if let Some(RefOr::T(Schema::OneOf(actions))) = action {
        for action in &mut actions.items {
            if let RefOr::T(Schema::Object(action)) = action {
                action.additional_properties = Some(Box::new(AdditionalProperties::FreeForm(false)));
            }
        }
    }
}

fn documented() -> (Router<Shared>, OpenApi) {
    let (router, mut openapi) = OpenApiRouter::with_openapi(Description::openapi())
        .routes(routes!(status))
        .routes(routes!(snapshot))
        .routes(routes!(history))
        .routes(routes!(services))
        .routes(routes!(service))
        .routes(routes!(settings))
        .routes(routes!(logs))
        .routes(routes!(log))
        .routes(routes!(instances))
        .routes(routes!(instance))
        .routes(routes!(actors))
        .routes(routes!(flows))
        .routes(routes!(explain_flow))
        .routes(routes!(policies))
        .routes(routes!(counters))
        .routes(routes!(events))
        .routes(routes!(stream))
        .routes(routes!(capture))
        .routes(routes!(act))
        .routes(routes!(description))
        .routes(routes!(scrape))
        .routes(routes!(healthz))
        .routes(routes!(readyz))
        .split_for_parts();
    close_actions(&mut openapi);
    (router, openapi)
}

/// The description of the API, OpenAPI 3.1, as JSON.
pub fn openapi() -> String {
    // Texts and numbers: there is nothing in it that JSON could not say.
    documented().1.to_pretty_json().unwrap_or_default()
}

pub(crate) fn routes(shared: Shared) -> Router {
    documented()
        .0
        .merge(page::routes())
        .fallback(unknown_path)
        .method_not_allowed_fallback(unsupported_method)
        .layer(DefaultBodyLimit::max(BODY_LIMIT))
        .with_state(shared)
}

/// Asks the control loop, with a time limit.
async fn ask<T>(
    shared: &Shared,
    control_request: impl FnOnce(Answer<T>) -> ControlRequest,
) -> Result<T, Problem> {
    match tokio::time::timeout(ANSWER_TIME, shared.asker.ask(control_request)).await {
        Ok(answer) => Ok(answer?),
        Err(_) => Err(Problem::new(
            StatusCode::GATEWAY_TIMEOUT,
            format!(
                "the control loop did not answer within {} s",
                ANSWER_TIME.as_secs()
            ),
            "see inco's log",
        )),
    }
}

/// State of inco as a whole.
#[utoipa::path(get, path = "/v1/status", tag = "read", responses(
    (status = OK, body = Status),
    (status = "default", description = "Error", body = ProblemBody, content_type = PROBLEM_JSON),
))]
async fn status(State(shared): State<Shared>) -> Result<Json<Status>, Problem> {
    ask(&shared, ControlRequest::Status).await.map(Json)
}

/// Status, services and instances at one moment.
#[utoipa::path(get, path = "/v1/snapshot", tag = "read", responses(
    (status = OK, body = Snapshot),
    (status = "default", description = "Error", body = ProblemBody, content_type = PROBLEM_JSON),
))]
async fn snapshot(State(shared): State<Shared>) -> Result<Json<Snapshot>, Problem> {
    ask(&shared, ControlRequest::Snapshot).await.map(Json)
}

/// Length of the history.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct HistoryQuery {
    /// The last seconds of the history; the default and maximum is 900.
    #[param(format = "uint32", minimum = 1, maximum = 900)]
    seconds: Option<u32>,
}

/// Rates, instances and flows of the last 15 minutes, one point a second.
#[utoipa::path(get, path = "/v1/history", tag = "read", params(HistoryQuery), responses(
    (status = OK, body = History),
    (status = BAD_REQUEST, description = "The number of seconds is not from 1 to 900", body = ProblemBody,
        content_type = PROBLEM_JSON),
))]
async fn history(
    State(shared): State<Shared>,
    query: Result<Query<HistoryQuery>, QueryRejection>,
) -> Result<Json<History>, Problem> {
    let Query(HistoryQuery { seconds }) = query?;
    let seconds = seconds.unwrap_or(POINTS);
    if !(1..=POINTS).contains(&seconds) {
        return Err(Problem::new(
            StatusCode::BAD_REQUEST,
            format!("seconds = {seconds} is not between 1 and {POINTS}"),
            "omit it for the whole history",
        ));
    }
    Ok(Json(shared.snapshots.history(seconds)))
}

/// Liveness probe: the control loop answers.
#[utoipa::path(get, path = "/healthz", tag = "read", responses(
    (status = OK, description = "The control loop answers", body = String, content_type = "text/plain"),
    (status = "default", description = "The control loop does not answer",
     body = ProblemBody, content_type = PROBLEM_JSON),
))]
async fn healthz(State(shared): State<Shared>) -> Result<&'static str, Problem> {
    ask(&shared, ControlRequest::Services).await.map(|_| "ok\n")
}

/// Readiness probe: every service has its minimum number of active instances.
#[utoipa::path(get, path = "/readyz", tag = "read", responses(
    (status = OK, description = "Every service has its minimum", body = String, content_type = "text/plain"),
    (status = SERVICE_UNAVAILABLE, description = "The services below their minimum, with reasons", body = ProblemBody,
        content_type = PROBLEM_JSON),
    (status = "default", description = "Error", body = ProblemBody, content_type = PROBLEM_JSON),
))]
async fn readyz(State(shared): State<Shared>) -> Result<&'static str, Problem> {
    let services = ask(&shared, ControlRequest::Services).await?;
    let lacking = services.iter().filter(|of| of.active < of.min).map(|of| {
        let ServiceRow {
            name, active, min, ..
        } = of;
        let failing = of
            .failing
            .as_ref()
            .map_or_else(String::new, |how| format!(": {how}"));
        format!("{name} has {active} active instances of at least {min}{failing}")
    });
    let lacking: Vec<String> = lacking.collect();
    if lacking.is_empty() {
        return Ok("ok\n");
    }
    Err(Problem::new(
        StatusCode::SERVICE_UNAVAILABLE,
        lacking.join("; "),
        "see `inco services` and `inco events`",
    ))
}

/// All services, in the order of the configuration.
#[utoipa::path(get, path = "/v1/services", tag = "read", responses(
    (status = OK, body = Vec<ServiceRow>),
    (status = "default", description = "Error", body = ProblemBody, content_type = PROBLEM_JSON),
))]
async fn services(State(shared): State<Shared>) -> Result<Json<Vec<ServiceRow>>, Problem> {
    ask(&shared, ControlRequest::Services).await.map(Json)
}

/// One service.
#[utoipa::path(get, path = "/v1/services/{name}", tag = "read",
    params(("name" = String, Path, description = "Name of the service")),
    responses(
        (status = OK, body = ServiceRow),
        (status = NOT_FOUND, description = "Unknown service", body = ProblemBody, content_type = PROBLEM_JSON),
        (status = "default", description = "Error", body = ProblemBody, content_type = PROBLEM_JSON),
    ))]
async fn service(
    State(shared): State<Shared>,
    name: Result<Path<String>, PathRejection>,
) -> Result<Json<ServiceRow>, Problem> {
    let Path(name) = name?;
    let services = ask(&shared, ControlRequest::Services).await?;
    let known: Vec<String> = services.iter().map(|service| service.name.clone()).collect();
    let found = services.into_iter().find(|service| service.name == name);
    found.map(Json).ok_or_else(|| {
        let hint = format!("known services: {}", known.join(", "));
        Problem::new(StatusCode::NOT_FOUND, format!("unknown service {name:?}"), hint)
    })
}

/// The settings of a service in force, defaults included. Of `env`, only the names.
#[utoipa::path(get, path = "/v1/services/{name}/settings", tag = "read",
    params(("name" = String, Path, description = "Name of the service")),
    responses(
        (status = OK, body = Vec<Setting>),
        (status = NOT_FOUND, description = "Unknown service", body = ProblemBody, content_type = PROBLEM_JSON),
        (status = "default", description = "Error", body = ProblemBody, content_type = PROBLEM_JSON),
    ))]
async fn settings(
    State(shared): State<Shared>,
    name: Result<Path<String>, PathRejection>,
) -> Result<Json<Vec<Setting>>, Problem> {
    let Path(name) = name?;
    let answer = ask(&shared, |answer| ControlRequest::Settings(name, answer)).await?;
    answer.map(Json).map_err(Problem::missing)
}

/// The containers of a service whose output is stored: running ones and the last ended ones.
#[utoipa::path(get, path = "/v1/services/{name}/logs", tag = "read",
    params(("name" = String, Path, description = "Name of the service")),
    responses(
        (status = OK, body = Vec<LogRow>),
        (status = NOT_FOUND, description = "Unknown service", body = ProblemBody, content_type = PROBLEM_JSON),
        (status = "default", description = "Error", body = ProblemBody, content_type = PROBLEM_JSON),
    ))]
async fn logs(
    State(shared): State<Shared>,
    name: Result<Path<String>, PathRejection>,
) -> Result<Json<Vec<LogRow>>, Problem> {
    let Path(name) = name?;
    let answer = ask(&shared, |answer| ControlRequest::Logs(name, answer)).await?;
    answer.map(Json).map_err(Problem::missing)
}

/// Start of the requested output.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct LogQuery {
    /// A position, such as `next` of the previous piece; default: the oldest stored byte.
    #[param(format = "uint64")]
    #[serde(default)]
    from: u64,
}

/// Standard output and error of an instance's container, in pieces of 64 KiB. The last MiB is stored.
#[utoipa::path(get, path = "/v1/services/{name}/logs/{instance}", tag = "read",
    params(("name" = String, Path, description = "Name of the service"),
           ("instance" = u32, Path, description = "Id of the instance"), LogQuery),
    responses(
        (status = OK, body = LogPiece),
        (status = BAD_REQUEST, description = "The position is not a number",
         body = ProblemBody, content_type = PROBLEM_JSON),
        (status = NOT_FOUND, description = "Unknown container", body = ProblemBody, content_type = PROBLEM_JSON),
        (status = "default", description = "Error", body = ProblemBody, content_type = PROBLEM_JSON),
    ))]
async fn log(
    State(shared): State<Shared>,
    place: Result<Path<(String, u32)>, PathRejection>,
    query: Result<Query<LogQuery>, QueryRejection>,
) -> Result<Json<LogPiece>, Problem> {
    let Path((name, instance)) = place?;
    let Query(LogQuery { from }) = query?;
    let asked = |answer| ControlRequest::Log(name, InstanceId(instance), from, answer);
    let answer = ask(&shared, asked).await?;
    answer.map(Json).map_err(Problem::missing)
}

/// All instances, in the order of ids.
#[utoipa::path(get, path = "/v1/instances", tag = "read", responses(
    (status = OK, body = Vec<InstanceRow>),
    (status = "default", description = "Error", body = ProblemBody, content_type = PROBLEM_JSON),
))]
async fn instances(State(shared): State<Shared>) -> Result<Json<Vec<InstanceRow>>, Problem> {
    ask(&shared, ControlRequest::Instances).await.map(Json)
}

/// One instance.
#[utoipa::path(get, path = "/v1/instances/{id}", tag = "read",
    params(("id" = u32, Path, description = "Id of the instance")),
    responses(
        (status = OK, body = InstanceRow),
        (status = NOT_FOUND, description = "Unknown instance", body = ProblemBody, content_type = PROBLEM_JSON),
        (status = "default", description = "Error", body = ProblemBody, content_type = PROBLEM_JSON),
    ))]
async fn instance(
    State(shared): State<Shared>,
    id: Result<Path<u32>, PathRejection>,
) -> Result<Json<InstanceRow>, Problem> {
    let Path(id) = id?;
    let instances = ask(&shared, ControlRequest::Instances).await?;
    let found = instances
        .into_iter()
        .find(|instance| instance.id == InstanceId(id));
    found.map(Json).ok_or_else(|| {
        let hint = "GET /v1/instances lists the instances";
        Problem::new(StatusCode::NOT_FOUND, format!("unknown instance {id}"), hint)
    })
}

/// Flows: all, those that match a filter, or the heaviest.
#[utoipa::path(get, path = "/v1/flows", tag = "read", params(FlowFilter), responses(
    (status = OK, body = FlowPage),
    (status = BAD_REQUEST, description = "Invalid filter", body = ProblemBody, content_type = PROBLEM_JSON),
    (status = CONFLICT, description = "Unknown service or instance", body = ProblemBody, content_type = PROBLEM_JSON),
    (status = "default", description = "Error", body = ProblemBody, content_type = PROBLEM_JSON),
))]
async fn flows(
    State(shared): State<Shared>,
    filter: Result<Query<FlowFilter>, QueryRejection>,
) -> Result<Json<FlowPage>, Problem> {
    let Query(filter) = filter?;
    check_flow(filter.flow.as_deref())?;
    let answer = ask(&shared, |answer| ControlRequest::Flows(filter, answer)).await?;
    answer.map(Json).map_err(Problem::conflict)
}

/// Services of actors: their sides, and each actor with its side, mode, mailbox, times, objects and moves.
#[utoipa::path(get, path = "/v1/actors", tag = "read", responses(
    (status = OK, body = Vec<ActorsRow>),
    (status = "default", description = "Error", body = ProblemBody, content_type = PROBLEM_JSON),
))]
async fn actors(State(shared): State<Shared>) -> Result<Json<Vec<ActorsRow>>, Problem> {
    ask(&shared, ControlRequest::Actors).await.map(Json)
}

/// The flow.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct FlowQuery {
    /// The flow, in either direction: `tcp 10.0.0.1:1000 > 10.0.0.2:80`.
    #[param(format = "flow")]
    flow: String,
}

/// The instance of a flow, since when, and why.
#[utoipa::path(get, path = "/v1/flows/explain", tag = "read", params(FlowQuery), responses(
    (status = OK, body = FlowExplanation),
    (status = BAD_REQUEST, description = "Missing or invalid flow", body = ProblemBody, content_type = PROBLEM_JSON),
    (status = "default", description = "Error", body = ProblemBody, content_type = PROBLEM_JSON),
))]
async fn explain_flow(
    State(shared): State<Shared>,
    query: Result<Query<FlowQuery>, QueryRejection>,
) -> Result<Json<FlowExplanation>, Problem> {
    let Query(FlowQuery { flow }) = query?;
    check_flow(Some(&flow))?;
    let answer = ask(&shared, |answer| ControlRequest::Explain(flow, answer)).await?;
    let mut explanation = answer.map_err(Problem::conflict)?;
    explanation.events = events_about(&shared.events, &explanation.flow);
    Ok(Json(explanation))
}

/// The newest events about a flow that is known by its text, in either direction.
fn events_about(events: &EventLog, flow: &str) -> Vec<model::Event> {
    let key = |text: &str| parse_tuple(text).ok().map(|tuple| FlowKey::new(&tuple).0);
    let wanted = key(flow);
    let is_it = |text: &str| wanted.is_some() && key(text) == wanted;
    let about = |event: &model::Event| match &event.kind {
        model::EventKind::Picked { flow, .. } => is_it(flow),
        model::EventKind::Action { request, .. } => {
            request.get("flow").and_then(Value::as_str).is_some_and(is_it)
        }
        _ => false,
    };
    let newest = events.last(EVENTS_SEARCHED).events;
    newest
        .iter()
        .filter(|event| about(event))
        .map(|event| (**event).clone())
        .collect()
}

fn check_flow(flow: Option<&str>) -> Result<(), Problem> {
    match flow.map(parse_tuple) {
        Some(Err(error)) => Err(Problem::new(StatusCode::BAD_REQUEST, error.to_string(), "")),
        _ => Ok(()),
    }
}

/// All policies with their parameters, and the policies of each service.
#[utoipa::path(get, path = "/v1/policies", tag = "read", responses(
    (status = OK, body = Policies),
    (status = "default", description = "Error", body = ProblemBody, content_type = PROBLEM_JSON),
))]
async fn policies(State(shared): State<Shared>) -> Result<Json<Policies>, Problem> {
    ask(&shared, ControlRequest::Policies).await.map(Json)
}

/// All counters.
#[utoipa::path(get, path = "/v1/counters", tag = "read", responses(
    (status = OK, body = Counters),
    (status = "default", description = "Error", body = ProblemBody, content_type = PROBLEM_JSON),
))]
async fn counters(State(shared): State<Shared>) -> Result<Json<Counters>, Problem> {
    all_counters(&shared).await.map(Json)
}

async fn all_counters(shared: &Shared) -> Result<Counters, Problem> {
    let mut counters = *ask(shared, ControlRequest::Counters).await?;
    counters.api = shared.figures.read();
    Ok(counters)
}

/// The counters in the text format of Prometheus, or of OpenMetrics if `Accept` requests it.
#[utoipa::path(get, path = "/metrics", tag = "read", responses(
    (status = OK, description = "Metrics", body = String, content_type = "text/plain"),
    (status = "default", description = "Error", body = ProblemBody, content_type = PROBLEM_JSON),
))]
async fn scrape(State(shared): State<Shared>, headers: HeaderMap) -> Result<Response, Problem> {
    let counters = all_counters(&shared).await?;
    let accepts = headers
        .get(header::ACCEPT)
        .and_then(|accept| accept.to_str().ok());
    let format = metrics::Format::of(accepts.unwrap_or_default());
    let text = metrics::encode(counters, format);
    Ok(([(header::CONTENT_TYPE, format.content_type())], text).into_response())
}

/// Which events are wanted. The number of an event, within `int64` of the description.
fn event_number<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    let number = i64::deserialize(deserializer)?;
    let number = u64::try_from(number).map_err(|_| serde::de::Error::custom("events are numbered from 1"))?;
    Ok(Some(number))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct EventQuery {
    /// Events after this number.
    #[serde(default, deserialize_with = "event_number")]
    since: Option<u64>,
    /// The number of newest events instead.
    #[param(format = "uint32", maximum = 4_294_967_295_u32)]
    last: Option<u32>,
    /// Maximum number of events.
    #[param(format = "uint32", maximum = 4_294_967_295_u32)]
    limit: Option<u32>,
    /// Continue with new events as they occur.
    #[serde(default)]
    follow: bool,
}

/// Events as JSON lines, the format of the event log's files. A line `{"missed":N}` reports N events that were
/// overwritten before they were sent.
#[utoipa::path(get, path = "/v1/events", tag = "read", params(EventQuery), responses(
    (status = OK, description = "One event per line", body = model::Event, content_type = "application/x-ndjson"),
    (status = BAD_REQUEST, description = "Invalid query", body = ProblemBody, content_type = PROBLEM_JSON),
))]
async fn events(
    State(shared): State<Shared>,
    Extension(permit): Extension<Arc<ConnectionPermit>>,
    query: Result<Query<EventQuery>, QueryRejection>,
) -> Result<Response, Problem> {
    let Query(query) = query?;
    let limit = query.limit.map_or(EVENT_PAGE, |limit| limit as usize);
    let limit = limit.min(crate::EVENT_LIMIT);
    // Before they are read: what comes in between is then still to be told.
    let newest = shared.events.newest();
    let first = match (query.since, query.last) {
        (Some(since), _) => shared.events.since(since, limit),
        (None, Some(last)) => shared.events.last(last as usize),
        (None, None) => shared.events.last(limit),
    };
    let told = first
        .events
        .last()
        .map_or(query.since.unwrap_or(newest), |event| event.sequence);
    let head = lines(&first);
    let kind = [(header::CONTENT_TYPE, "application/x-ndjson")];
    if !query.follow {
        return Ok((kind, head).into_response());
    }
    let body = follow(shared.events.clone(), head, told);
    without_end(&permit, (kind, body).into_response())
}

/// Start of a stream.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct StreamQuery {
    /// Begin after the event with this number. The header `Last-Event-ID` has the same meaning.
    #[serde(default, deserialize_with = "event_number")]
    pub(crate) since: Option<u64>,
    /// Begin with this number of newest events instead.
    #[param(format = "uint32", maximum = 4_294_967_295_u32)]
    pub(crate) last: Option<u32>,
}

/// Live stream of server-sent events: `snapshot` (a `Snapshot`, every second), `happened` (an `Event`, with its
/// number as the id) and `missed`. A slow client misses snapshots. A client that reads nothing for 30 s is
/// disconnected.
#[utoipa::path(get, path = "/v1/stream", tag = "read", params(StreamQuery), responses(
    (status = OK, description = "Server-sent events", body = String, content_type = "text/event-stream"),
    (status = BAD_REQUEST, description = "Invalid query", body = ProblemBody, content_type = PROBLEM_JSON),
))]
async fn stream(
    State(shared): State<Shared>,
    Extension(permit): Extension<Arc<ConnectionPermit>>,
    query: Result<Query<StreamQuery>, QueryRejection>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let Query(mut query) = query?;
    let resumed = headers
        .get("last-event-id")
        .and_then(|id| id.to_str().ok()?.parse().ok());
    query.since = resumed.or(query.since);
    without_end(&permit, live(&shared, &query).into_response())
}

/// Packets as a pcapng file, with one interface for each point. A packet's comment has the reason of its drop, its
/// instance, uplink and flow, as far as they are known. The file ends with the capture, which ends with its limits or
/// with the connection. There is one capture at a time. It shows what users send, so a token needs the role `admin`.
#[utoipa::path(get, path = "/v1/capture", tag = "read", params(CaptureQuery), responses(
    (status = OK, description = "A pcapng file", body = Vec<u8>, content_type = "application/x-pcapng"),
    (status = BAD_REQUEST, description = "Invalid query", body = ProblemBody, content_type = PROBLEM_JSON),
    (status = FORBIDDEN, description = "A token with read-only access", body = ProblemBody,
     content_type = PROBLEM_JSON),
    (status = CONFLICT, description = "Unknown service or instance, a capture that runs, or a switch that cannot",
     body = ProblemBody, content_type = PROBLEM_JSON),
    (status = "default", description = "Error", body = ProblemBody, content_type = PROBLEM_JSON),
))]
async fn capture(
    State(shared): State<Shared>,
    Extension(permit): Extension<Arc<ConnectionPermit>>,
    Extension(caller): Extension<Caller>,
    query: Result<Query<CaptureQuery>, QueryRejection>,
) -> Result<Response, Problem> {
    let Query(query) = query?;
    query.check()?;
    check_flow(query.flow.as_deref())?;
    if !caller.may_act {
        return Err(Problem::new(
            StatusCode::FORBIDDEN,
            format!("{} has read-only access", caller.name),
            "use a token with the role admin",
        ));
    }
    let asked = query.clone();
    let answer = ask(&shared, |answer| ControlRequest::Capture(asked, caller, answer)).await?;
    let body = file(answer.map_err(Problem::conflict)?, &query);
    let kind = [(header::CONTENT_TYPE, "application/x-pcapng")];
    without_end(&permit, (kind, body).into_response())
}

/// A stream, if the limit of streams is not reached.
fn without_end(permit: &ConnectionPermit, response: Response) -> Result<Response, Problem> {
    match permit.stream() {
        Some(room) => Ok(keep(response, room)),
        None => Err(Problem::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "the limit of streams is reached",
            "end a stream; /v1/snapshot has everything in one answer",
        )),
    }
}

/// Carries out an action. Actions are idempotent. A refusal has a reason and what to do. Each request is recorded in
/// the event log.
#[utoipa::path(post, path = "/v1/actions", tag = "actions", request_body = Action, responses(
    (status = OK, body = Outcome),
    (status = BAD_REQUEST, description = "The body is not valid JSON",
     body = ProblemBody, content_type = PROBLEM_JSON),
    (status = CONFLICT, description = "Refused", body = ProblemBody, content_type = PROBLEM_JSON),
    (status = PAYLOAD_TOO_LARGE, description = "More than 64 KiB", body = ProblemBody, content_type = PROBLEM_JSON),
    (status = UNSUPPORTED_MEDIA_TYPE, description = "The content type is not application/json",
     body = ProblemBody, content_type = PROBLEM_JSON),
    (status = UNPROCESSABLE_ENTITY, description = "The body is not an action",
     body = ProblemBody, content_type = PROBLEM_JSON),
    (status = "default", description = "Error", body = ProblemBody, content_type = PROBLEM_JSON),
))]
async fn act(
    State(shared): State<Shared>,
    Extension(caller): Extension<Caller>,
    body: Result<Json<Value>, JsonRejection>,
) -> Result<Json<Outcome>, Problem> {
    let Json(mut body) = body?;
    write_integers(&mut body);
    let action: Action = serde_json::from_value(body).map_err(Problem::not_an_action)?;
    match &action {
        Action::Purge { instance, flow } => {
            check_flow(flow.as_deref())?;
            if instance.is_some() == flow.is_some() {
                return Err(Problem::new(
                    StatusCode::CONFLICT,
                    "purge needs either an instance or a flow",
                    "send exactly one of them",
                ));
            }
        }
        Action::Move { flow, .. } => check_flow(Some(flow))?,
        _ => {}
    }
    let answer = ask(&shared, |answer| ControlRequest::Act(action, caller, answer)).await?;
    answer.map(Json).map_err(Problem::conflict)
}

/// Writes each number that has no fraction as an integer, at any depth: `3.0` is an integer of JSON Schema, and
/// clients that know only floating-point numbers send it so.
fn write_integers(value: &mut Value) {
    match value {
        Value::Number(number) => {
            // Every integer up to 2^53 is an `f64`; a larger number with a point stays as it is.
            const EXACT: f64 = 9_007_199_254_740_992.0;
            if let Some(float) = number.as_f64()
                && number.is_f64()
                && float.fract() == 0.0
                && float.abs() <= EXACT
            {
                *number = (float as i64).into();
            }
        }
        Value::Array(values) => values.iter_mut().for_each(write_integers),
        Value::Object(fields) => fields.values_mut().for_each(write_integers),
        Value::Null | Value::Bool(_) | Value::String(_) => {}
    }
}

/// This description.
#[utoipa::path(get, path = "/v1/openapi.json", tag = "read", responses(
    (status = OK, description = "OpenAPI 3.1", body = String, content_type = "application/json"),
))]
async fn description() -> Response {
    ([(header::CONTENT_TYPE, "application/json")], openapi()).into_response()
}

async fn unknown_path() -> Problem {
    let hint = "see GET /v1/openapi.json for all paths";
    Problem::new(StatusCode::NOT_FOUND, "unknown path", hint)
}

async fn unsupported_method() -> Problem {
    let hint = "use GET to read, and POST /v1/actions for actions";
    Problem::new(
        StatusCode::METHOD_NOT_ALLOWED,
        "this path does not support the method",
        hint,
    )
}
