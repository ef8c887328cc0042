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

use crate::counters::Counters;
use crate::event_log::EventLog;
use crate::figures::Figures;
use crate::history::POINTS;
use crate::problem::{PROBLEM_JSON, Problem};
use crate::question::{Answer, Asker, Question};
use crate::seats::{Seat, keep};
use crate::stream::{Snapshots, follow, lines, live};
use crate::tuple::parse_tuple;
use crate::types::{
    FlowExplanation, FlowFilter, FlowPage, History, InstanceRow, LogPiece, LogRow, Outcome, Policies,
    Problem as ProblemBody, ServiceRow, Snapshot, Status,
};
use crate::{Caller, metrics, page};

/// How long the control loop may take for an answer. A dump of 16 million flows takes 4 s.
pub const ANSWER_TIME: Duration = Duration::from_secs(10);
/// Bytes of a request's body: an action is a line.
const BODY_LIMIT: usize = 64 * 1024;
/// Events in one answer, and in one piece of a stream.
pub(crate) const EVENT_PAGE: usize = 1000;

/// Events among which those about a flow are looked for.
const EVENTS_SEARCHED: usize = 10_000;

/// What every handler is given.
#[derive(Clone)]
pub(crate) struct Shared {
    pub(crate) asker: Asker,
    pub(crate) events: EventLog,
    pub(crate) snapshots: Arc<Snapshots>,
    pub(crate) figures: Arc<Figures>,
}

#[derive(utoipa::OpenApi)]
#[openapi(
    info(
        title = "inco",
        description = "What a running inco tells and does. Over the unix socket nobody is asked for a token; over TCP \
                       (TLS only) each request carries `Authorization: Bearer TOKEN`, and a read-only token may not \
                       POST. Rates are packets per second; times say their unit.",
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
            .description(Some("From the file that `[api] tokens` names; TCP only."))
            .build();
        let components = openapi.components.get_or_insert_with(Default::default);
        components
            .security_schemes
            .insert("token".to_owned(), SecurityScheme::Http(scheme).into());
    }
}

/// Says of every action that it has no other fields, which the derived description leaves open.
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
        .routes(routes!(flows))
        .routes(routes!(explain_flow))
        .routes(routes!(policies))
        .routes(routes!(counters))
        .routes(routes!(events))
        .routes(routes!(stream))
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
        .fallback(nowhere)
        .method_not_allowed_fallback(wrong_method)
        .layer(DefaultBodyLimit::max(BODY_LIMIT))
        .with_state(shared)
}

/// Asks the control loop, for so long.
async fn ask<T>(shared: &Shared, question: impl FnOnce(Answer<T>) -> Question) -> Result<T, Problem> {
    match tokio::time::timeout(ANSWER_TIME, shared.asker.ask(question)).await {
        Ok(answer) => Ok(answer?),
        Err(_) => Err(Problem::new(
            StatusCode::GATEWAY_TIMEOUT,
            format!(
                "the control loop did not answer within {} s",
                ANSWER_TIME.as_secs()
            ),
            "see what inco logs",
        )),
    }
}

/// How inco fares as a whole.
#[utoipa::path(get, path = "/v1/status", tag = "look", responses(
    (status = OK, body = Status),
    (status = "default", description = "Not answered", body = ProblemBody, content_type = PROBLEM_JSON),
))]
async fn status(State(shared): State<Shared>) -> Result<Json<Status>, Problem> {
    ask(&shared, Question::Status).await.map(Json)
}

/// Status, services and instances of one moment.
#[utoipa::path(get, path = "/v1/snapshot", tag = "look", responses(
    (status = OK, body = Snapshot),
    (status = "default", description = "Not answered", body = ProblemBody, content_type = PROBLEM_JSON),
))]
async fn snapshot(State(shared): State<Shared>) -> Result<Json<Snapshot>, Problem> {
    ask(&shared, Question::Snapshot).await.map(Json)
}

/// How much of the history is wanted.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct HistoryQuery {
    /// The newest so many seconds; 900 without it, which is all that is kept.
    #[param(format = "uint32", minimum = 1, maximum = 900)]
    seconds: Option<u32>,
}

/// Rates, instances and flows of the last 15 minutes, one point a second.
#[utoipa::path(get, path = "/v1/history", tag = "look", params(HistoryQuery), responses(
    (status = OK, body = History),
    (status = BAD_REQUEST, description = "Not a number of seconds from 1 to 900", body = ProblemBody,
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
            "leave it out for all that is kept",
        ));
    }
    Ok(Json(shared.snapshots.history(seconds)))
}

/// Whether inco is well: its control loop answers. For liveness probes.
#[utoipa::path(get, path = "/healthz", tag = "look", responses(
    (status = OK, description = "It answers", body = String, content_type = "text/plain"),
    (status = "default", description = "It does not", body = ProblemBody, content_type = PROBLEM_JSON),
))]
async fn healthz(State(shared): State<Shared>) -> Result<&'static str, Problem> {
    ask(&shared, Question::Services).await.map(|_| "ok\n")
}

/// Whether every service has as many active instances as it must have at least. For readiness probes.
#[utoipa::path(get, path = "/readyz", tag = "look", responses(
    (status = OK, description = "They have", body = String, content_type = "text/plain"),
    (status = SERVICE_UNAVAILABLE, description = "Services that do not, and why", body = ProblemBody,
        content_type = PROBLEM_JSON),
    (status = "default", description = "Not answered", body = ProblemBody, content_type = PROBLEM_JSON),
))]
async fn readyz(State(shared): State<Shared>) -> Result<&'static str, Problem> {
    let services = ask(&shared, Question::Services).await?;
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

/// Every service, in the order of the configuration.
#[utoipa::path(get, path = "/v1/services", tag = "look", responses(
    (status = OK, body = Vec<ServiceRow>),
    (status = "default", description = "Not answered", body = ProblemBody, content_type = PROBLEM_JSON),
))]
async fn services(State(shared): State<Shared>) -> Result<Json<Vec<ServiceRow>>, Problem> {
    ask(&shared, Question::Services).await.map(Json)
}

/// One service.
#[utoipa::path(get, path = "/v1/services/{name}", tag = "look", params(("name" = String, Path, description = "Its name")),
    responses(
        (status = OK, body = ServiceRow),
        (status = NOT_FOUND, description = "There is no such service", body = ProblemBody, content_type = PROBLEM_JSON),
        (status = "default", description = "Not answered", body = ProblemBody, content_type = PROBLEM_JSON),
    ))]
async fn service(
    State(shared): State<Shared>,
    name: Result<Path<String>, PathRejection>,
) -> Result<Json<ServiceRow>, Problem> {
    let Path(name) = name?;
    let services = ask(&shared, Question::Services).await?;
    let known: Vec<String> = services.iter().map(|service| service.name.clone()).collect();
    let found = services.into_iter().find(|service| service.name == name);
    found.map(Json).ok_or_else(|| {
        let hint = format!("there are: {}", known.join(", "));
        Problem::new(
            StatusCode::NOT_FOUND,
            format!("there is no service {name:?}"),
            hint,
        )
    })
}

/// Every key of a service as it holds now, written in the file or not. Of `env` the names alone.
#[utoipa::path(get, path = "/v1/services/{name}/settings", tag = "look", params(("name" = String, Path, description = "Its name")),
    responses(
        (status = OK, body = Vec<Setting>),
        (status = NOT_FOUND, description = "There is no such service", body = ProblemBody, content_type = PROBLEM_JSON),
        (status = "default", description = "Not answered", body = ProblemBody, content_type = PROBLEM_JSON),
    ))]
async fn settings(
    State(shared): State<Shared>,
    name: Result<Path<String>, PathRejection>,
) -> Result<Json<Vec<Setting>>, Problem> {
    let Path(name) = name?;
    let answer = ask(&shared, |answer| Question::Settings(name, answer)).await?;
    answer.map(Json).map_err(Problem::missing)
}

/// The containers of a service whose output is kept: those that run, and those that ended last.
#[utoipa::path(get, path = "/v1/services/{name}/logs", tag = "look", params(("name" = String, Path, description = "Its name")),
    responses(
        (status = OK, body = Vec<LogRow>),
        (status = NOT_FOUND, description = "There is no such service", body = ProblemBody, content_type = PROBLEM_JSON),
        (status = "default", description = "Not answered", body = ProblemBody, content_type = PROBLEM_JSON),
    ))]
async fn logs(
    State(shared): State<Shared>,
    name: Result<Path<String>, PathRejection>,
) -> Result<Json<Vec<LogRow>>, Problem> {
    let Path(name) = name?;
    let answer = ask(&shared, |answer| Question::Logs(name, answer)).await?;
    answer.map(Json).map_err(Problem::missing)
}

/// From where on output is wanted.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct LogQuery {
    /// A position in it, as `next` of the piece before; the oldest that is kept without it.
    #[param(format = "uint64")]
    #[serde(default)]
    from: u64,
}

/// What an instance's container wrote to its standard output and error: the newest MiB is kept, in pieces of 64 KiB.
#[utoipa::path(get, path = "/v1/services/{name}/logs/{instance}", tag = "look",
    params(("name" = String, Path, description = "The service"), ("instance" = u32, Path, description = "The instance's id"), LogQuery),
    responses(
        (status = OK, body = LogPiece),
        (status = BAD_REQUEST, description = "Not a position", body = ProblemBody, content_type = PROBLEM_JSON),
        (status = NOT_FOUND, description = "Nothing is known of such a container", body = ProblemBody, content_type = PROBLEM_JSON),
        (status = "default", description = "Not answered", body = ProblemBody, content_type = PROBLEM_JSON),
    ))]
async fn log(
    State(shared): State<Shared>,
    place: Result<Path<(String, u32)>, PathRejection>,
    query: Result<Query<LogQuery>, QueryRejection>,
) -> Result<Json<LogPiece>, Problem> {
    let Path((name, instance)) = place?;
    let Query(LogQuery { from }) = query?;
    let asked = |answer| Question::Log(name, InstanceId(instance), from, answer);
    let answer = ask(&shared, asked).await?;
    answer.map(Json).map_err(Problem::missing)
}

/// Every instance, in the order of ids.
#[utoipa::path(get, path = "/v1/instances", tag = "look", responses(
    (status = OK, body = Vec<InstanceRow>),
    (status = "default", description = "Not answered", body = ProblemBody, content_type = PROBLEM_JSON),
))]
async fn instances(State(shared): State<Shared>) -> Result<Json<Vec<InstanceRow>>, Problem> {
    ask(&shared, Question::Instances).await.map(Json)
}

/// One instance.
#[utoipa::path(get, path = "/v1/instances/{id}", tag = "look", params(("id" = u32, Path, description = "Its id")),
    responses(
        (status = OK, body = InstanceRow),
        (status = NOT_FOUND, description = "There is no such instance", body = ProblemBody, content_type = PROBLEM_JSON),
        (status = "default", description = "Not answered", body = ProblemBody, content_type = PROBLEM_JSON),
    ))]
async fn instance(
    State(shared): State<Shared>,
    id: Result<Path<u32>, PathRejection>,
) -> Result<Json<InstanceRow>, Problem> {
    let Path(id) = id?;
    let instances = ask(&shared, Question::Instances).await?;
    let found = instances
        .into_iter()
        .find(|instance| instance.id == InstanceId(id));
    found.map(Json).ok_or_else(|| {
        let hint = "GET /v1/instances shows those that there are";
        Problem::new(StatusCode::NOT_FOUND, format!("there is no instance {id}"), hint)
    })
}

/// Flows: all, those that a filter means, or the heaviest.
#[utoipa::path(get, path = "/v1/flows", tag = "look", params(FlowFilter), responses(
    (status = OK, body = FlowPage),
    (status = BAD_REQUEST, description = "A filter that cannot be read", body = ProblemBody, content_type = PROBLEM_JSON),
    (status = CONFLICT, description = "A service or instance that there is not", body = ProblemBody, content_type = PROBLEM_JSON),
    (status = "default", description = "Not answered", body = ProblemBody, content_type = PROBLEM_JSON),
))]
async fn flows(
    State(shared): State<Shared>,
    filter: Result<Query<FlowFilter>, QueryRejection>,
) -> Result<Json<FlowPage>, Problem> {
    let Query(filter) = filter?;
    check_flow(filter.flow.as_deref())?;
    let answer = ask(&shared, |answer| Question::Flows(filter, answer)).await?;
    answer.map(Json).map_err(Problem::conflict)
}

/// Which flow is meant.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct FlowQuery {
    /// In either direction: `tcp 10.0.0.1:1000 > 10.0.0.2:80`.
    #[param(format = "flow")]
    flow: String,
}

/// Where a flow is, since when, and why there.
#[utoipa::path(get, path = "/v1/flows/explain", tag = "look", params(FlowQuery), responses(
    (status = OK, body = FlowExplanation),
    (status = BAD_REQUEST, description = "No flow, or one that cannot be read", body = ProblemBody, content_type = PROBLEM_JSON),
    (status = "default", description = "Not answered", body = ProblemBody, content_type = PROBLEM_JSON),
))]
async fn explain_flow(
    State(shared): State<Shared>,
    query: Result<Query<FlowQuery>, QueryRejection>,
) -> Result<Json<FlowExplanation>, Problem> {
    let Query(FlowQuery { flow }) = query?;
    check_flow(Some(&flow))?;
    let answer = ask(&shared, |answer| Question::Explain(flow, answer)).await?;
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

/// The policies that there are, their parameters, and what each service uses.
#[utoipa::path(get, path = "/v1/policies", tag = "look", responses(
    (status = OK, body = Policies),
    (status = "default", description = "Not answered", body = ProblemBody, content_type = PROBLEM_JSON),
))]
async fn policies(State(shared): State<Shared>) -> Result<Json<Policies>, Problem> {
    ask(&shared, Question::Policies).await.map(Json)
}

/// Every counter, as it stands.
#[utoipa::path(get, path = "/v1/counters", tag = "look", responses(
    (status = OK, body = Counters),
    (status = "default", description = "Not answered", body = ProblemBody, content_type = PROBLEM_JSON),
))]
async fn counters(State(shared): State<Shared>) -> Result<Json<Counters>, Problem> {
    all_counters(&shared).await.map(Json)
}

async fn all_counters(shared: &Shared) -> Result<Counters, Problem> {
    let mut counters = *ask(shared, Question::Counters).await?;
    counters.api = shared.figures.read();
    Ok(counters)
}

/// The counters in the text format of Prometheus, or in that of OpenMetrics where `Accept` names it.
#[utoipa::path(get, path = "/metrics", tag = "look", responses(
    (status = OK, description = "Metrics", body = String, content_type = "text/plain"),
    (status = "default", description = "Not answered", body = ProblemBody, content_type = PROBLEM_JSON),
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

/// Which events are wanted.
/// An event's number: one of those that the description's `int64` has.
fn event_number<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    let number = i64::deserialize(deserializer)?;
    let number = u64::try_from(number).map_err(|_| serde::de::Error::custom("events are numbered from 1"))?;
    Ok(Some(number))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct EventQuery {
    /// After the one of this number.
    #[serde(default, deserialize_with = "event_number")]
    since: Option<u64>,
    /// Instead: the newest so many.
    #[param(format = "uint32", maximum = 4_294_967_295_u32)]
    last: Option<u32>,
    /// At most so many.
    #[param(format = "uint32", maximum = 4_294_967_295_u32)]
    limit: Option<u32>,
    /// Go on telling what comes.
    #[serde(default)]
    follow: bool,
}

/// Events as JSON lines, which is what the event log's files hold, too. A line `{"missed":N}` stands where N events
/// were forgotten before they could be told.
#[utoipa::path(get, path = "/v1/events", tag = "look", params(EventQuery), responses(
    (status = OK, description = "An event on each line", body = model::Event, content_type = "application/x-ndjson"),
    (status = BAD_REQUEST, description = "A query that cannot be read", body = ProblemBody, content_type = PROBLEM_JSON),
))]
async fn events(
    State(shared): State<Shared>,
    Extension(seat): Extension<Arc<Seat>>,
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
    without_end(&seat, (kind, body).into_response())
}

/// Where a live stream begins.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct StreamQuery {
    /// With the events after the one of this number. The header `Last-Event-ID` says the same.
    #[serde(default, deserialize_with = "event_number")]
    pub(crate) since: Option<u64>,
    /// Instead: with the newest so many.
    #[param(format = "uint32", maximum = 4_294_967_295_u32)]
    pub(crate) last: Option<u32>,
}

/// What happens, as it happens, and a snapshot every second: server-sent events called `snapshot` (a `Snapshot`),
/// `happened` (an `Event`, its number as the id) and `missed`. Who reads slowly misses snapshots; who takes nothing
/// for 30 s is disconnected.
#[utoipa::path(get, path = "/v1/stream", tag = "look", params(StreamQuery), responses(
    (status = OK, description = "Server-sent events", body = String, content_type = "text/event-stream"),
    (status = BAD_REQUEST, description = "A query that cannot be read", body = ProblemBody, content_type = PROBLEM_JSON),
))]
async fn stream(
    State(shared): State<Shared>,
    Extension(seat): Extension<Arc<Seat>>,
    query: Result<Query<StreamQuery>, QueryRejection>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let Query(mut query) = query?;
    let resumed = headers
        .get("last-event-id")
        .and_then(|id| id.to_str().ok()?.parse().ok());
    query.since = resumed.or(query.since);
    without_end(&seat, live(&shared, &query).into_response())
}

/// An answer without an end, where there is room for one more.
fn without_end(seat: &Seat, response: Response) -> Result<Response, Problem> {
    match seat.stream() {
        Some(room) => Ok(keep(response, room)),
        None => Err(Problem::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "there are as many streams as there may be",
            "end one of them; /v1/snapshot has all in one answer",
        )),
    }
}

/// Does something. Saying it twice is as good as once; what is not done is refused with a reason and what to do
/// instead. Each request is put into the event log.
#[utoipa::path(post, path = "/v1/actions", tag = "act", request_body = Action, responses(
    (status = OK, body = Outcome),
    (status = BAD_REQUEST, description = "No JSON, or not an action's", body = ProblemBody, content_type = PROBLEM_JSON),
    (status = CONFLICT, description = "Refused", body = ProblemBody, content_type = PROBLEM_JSON),
    (status = PAYLOAD_TOO_LARGE, description = "More than 64 KiB", body = ProblemBody, content_type = PROBLEM_JSON),
    (status = UNSUPPORTED_MEDIA_TYPE, description = "Not application/json", body = ProblemBody, content_type = PROBLEM_JSON),
    (status = UNPROCESSABLE_ENTITY, description = "Not an action", body = ProblemBody, content_type = PROBLEM_JSON),
    (status = "default", description = "Not answered", body = ProblemBody, content_type = PROBLEM_JSON),
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
                    "it is not said what to purge, or twice",
                    "give an instance or a flow, not both",
                ));
            }
        }
        Action::Move { flow, .. } => check_flow(Some(flow))?,
        _ => {}
    }
    let answer = ask(&shared, |answer| Question::Act(action, caller, answer)).await?;
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
#[utoipa::path(get, path = "/v1/openapi.json", tag = "look", responses(
    (status = OK, description = "OpenAPI 3.1", body = String, content_type = "application/json"),
))]
async fn description() -> Response {
    ([(header::CONTENT_TYPE, "application/json")], openapi()).into_response()
}

async fn nowhere() -> Problem {
    let hint = "GET /v1/openapi.json says what there is";
    Problem::new(StatusCode::NOT_FOUND, "there is nothing here", hint)
}

async fn wrong_method() -> Problem {
    let hint = "GET what is to be seen, POST to /v1/actions what is to be done";
    Problem::new(StatusCode::METHOD_NOT_ALLOWED, "this cannot be done here", hint)
}
