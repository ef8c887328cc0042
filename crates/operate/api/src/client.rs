//! The client: one connection per request; calls block.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::{Method, Request, Response, header};
use hyper_util::rt::TokioIo;
use model::{Action, Event, InstanceId, Setting};
use serde::de::DeserializeOwned;
use tokio::runtime::Runtime;
use tokio::sync::watch;

use crate::ApiError;
use crate::Endpoint;
use crate::capture::CaptureQuery;
use crate::counters::Counters;
use crate::types::{
    ActorsRow, FlowExplanation, FlowFilter, FlowPage, History, InstanceRow, LogPiece, LogRow, Outcome,
    Policies, Problem, Refusal, ServiceRow, Snapshot, Status,
};

/// Time limit of an answer: slightly longer than the server waits for the control loop.
const TIMEOUT: Duration = Duration::from_secs(15);
/// Maximum size of an answer, in bytes: 100,000 flows are about 30 MB.
const ANSWER_LIMIT: usize = 256 << 20;

/// A client of a running inco. Calls block.
#[derive(Debug)]
pub struct Client {
    endpoint: Endpoint,
    runtime: Runtime,
}

impl Client {
    /// A client of the inco on this socket.
    ///
    /// # Errors
    /// [`ApiError::NotRunning`] if no inco listens; [`ApiError::Permission`]; [`ApiError::System`].
    pub fn connect(socket: &Path) -> Result<Client, ApiError> {
        Client::connect_to(Endpoint::Socket(socket.to_owned()))
    }

    /// A client of the inco at this endpoint.
    ///
    /// # Errors
    /// As [`Client::connect`]; [`ApiError::NoAnswer`] if a remote inco does not answer.
    pub fn connect_to(endpoint: Endpoint) -> Result<Client, ApiError> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|source| ApiError::System {
                what: "start the runtime for",
                path: endpoint.place(),
                source,
            })?;
        let client = Client { endpoint, runtime };
        // Reports a missing inco before the first request.
        drop(client.runtime.block_on(client.open())?);
        Ok(client)
    }

    /// The socket, if it is on this machine.
    pub fn socket(&self) -> Option<&Path> {
        match &self.endpoint {
            Endpoint::Socket(path) => Some(path),
            Endpoint::Remote(_) => None,
        }
    }

    /// A new client of the same endpoint; inco may have been restarted.
    ///
    /// # Errors
    /// As [`Client::connect_to`].
    pub fn again(&self) -> Result<Client, ApiError> {
        Client::connect_to(self.endpoint.clone())
    }

    /// The status.
    ///
    /// # Errors
    /// [`ApiError::Refused`], [`ApiError::NoAnswer`], [`ApiError::NotUnderstood`] and those of [`Client::connect`].
    pub fn status(&self) -> Result<Status, ApiError> {
        self.get("/v1/status")
    }

    /// All services, in the order of the configuration.
    ///
    /// # Errors
    /// As [`Client::status`].
    pub fn services(&self) -> Result<Vec<ServiceRow>, ApiError> {
        self.get("/v1/services")
    }

    /// The settings of a service in force, defaults included.
    ///
    /// # Errors
    /// As [`Client::status`].
    pub fn settings(&self, service: &str) -> Result<Vec<Setting>, ApiError> {
        self.get(&format!("/v1/services/{}/settings", escaped(service)))
    }

    /// The containers of a service whose output is stored, by instance.
    ///
    /// # Errors
    /// As [`Client::status`].
    pub fn logs(&self, service: &str) -> Result<Vec<LogRow>, ApiError> {
        self.get(&format!("/v1/services/{}/logs", escaped(service)))
    }

    /// The output of an instance's container, from a position on.
    ///
    /// # Errors
    /// As [`Client::status`].
    pub fn log(&self, service: &str, instance: InstanceId, from: u64) -> Result<LogPiece, ApiError> {
        let service = escaped(service);
        self.get(&format!("/v1/services/{service}/logs/{instance}?from={from}"))
    }

    /// All instances, in the order of ids.
    ///
    /// # Errors
    /// As [`Client::status`].
    pub fn instances(&self) -> Result<Vec<InstanceRow>, ApiError> {
        self.get("/v1/instances")
    }

    /// All services of actors.
    ///
    /// # Errors
    /// As [`Client::status`].
    pub fn actors(&self) -> Result<Vec<ActorsRow>, ApiError> {
        self.get("/v1/actors")
    }

    /// Flows.
    ///
    /// # Errors
    /// As [`Client::status`].
    pub fn flows(&self, filter: &FlowFilter) -> Result<FlowPage, ApiError> {
        let mut query = Query::new("/v1/flows");
        query.add("service", filter.service.as_deref());
        query.add("instance", filter.instance.map(|id| id.0.to_string()).as_deref());
        query.add(
            "address",
            filter.address.map(|address| address.to_string()).as_deref(),
        );
        query.add("flow", filter.flow.as_deref());
        query.add("top", filter.top.map(|top| top.to_string()).as_deref());
        query.add("limit", filter.limit.map(|limit| limit.to_string()).as_deref());
        self.get(&query.path)
    }

    /// The instance of a flow, since when, and why.
    ///
    /// # Errors
    /// As [`Client::status`].
    pub fn explain_flow(&self, flow: &str) -> Result<FlowExplanation, ApiError> {
        let mut query = Query::new("/v1/flows/explain");
        query.add("flow", Some(flow));
        self.get(&query.path)
    }

    /// Status, services and instances at one moment.
    ///
    /// # Errors
    /// As [`Client::status`].
    pub fn snapshot(&self) -> Result<Snapshot, ApiError> {
        self.get("/v1/snapshot")
    }

    /// The newest `seconds` of the history, 1 to 900, one point a second.
    ///
    /// # Errors
    /// As [`Client::status`].
    pub fn history(&self, seconds: u32) -> Result<History, ApiError> {
        self.get(&format!("/v1/history?seconds={seconds}"))
    }

    /// All policies, and those of each service.
    ///
    /// # Errors
    /// As [`Client::status`].
    pub fn policies(&self) -> Result<Policies, ApiError> {
        self.get("/v1/policies")
    }

    /// All counters.
    ///
    /// # Errors
    /// As [`Client::status`].
    pub fn counters(&self) -> Result<Counters, ApiError> {
        self.get("/v1/counters")
    }

    /// The newest events, at most `last`, oldest first.
    ///
    /// # Errors
    /// As [`Client::status`].
    pub fn events(&self, last: usize) -> Result<Vec<Event>, ApiError> {
        let body = self.runtime.block_on(async {
            let response = self
                .send(Method::GET, &format!("/v1/events?last={last}"), None)
                .await?;
            self.whole(response).await
        })?;
        body.split(|byte| *byte == b'\n')
            .filter(|line| !line.is_empty())
            .map(understand)
            .collect()
    }

    /// The newest events, at most `last`, followed by new events as they occur.
    ///
    /// # Errors
    /// As [`Client::status`].
    pub fn follow_events(&self, last: usize) -> Result<EventStream<'_>, ApiError> {
        let path = format!("/v1/events?last={last}&follow=true");
        let response = self.runtime.block_on(self.send(Method::GET, &path, None))?;
        Ok(EventStream {
            client: self,
            body: response,
            pending: Vec::new(),
        })
    }

    /// Captures packets: a pcapng file, in pieces, as they come.
    ///
    /// # Errors
    /// As [`Client::status`].
    pub fn capture(&self, query: &CaptureQuery) -> Result<CaptureStream<'_>, ApiError> {
        let mut path = Query::new("/v1/capture");
        let number = |of: Option<u32>| of.map(|number| number.to_string());
        path.add("service", query.service.as_deref());
        path.add("instance", number(query.instance.map(|id| id.0)).as_deref());
        path.add("flow", query.flow.as_deref());
        path.add("point", query.point.as_deref());
        path.add("reason", query.reason.as_deref());
        path.add("packets", number(query.packets).as_deref());
        path.add("seconds", number(query.seconds).as_deref());
        path.add("snaplen", number(query.snaplen).as_deref());
        path.add("bytes", number(query.bytes).as_deref());
        let body = self.runtime.block_on(self.send(Method::GET, &path.path, None))?;
        let ender = CaptureEnder(Arc::new(watch::Sender::new(false)));
        Ok(CaptureStream {
            client: self,
            body,
            ender,
        })
    }

    /// Sends an action.
    ///
    /// # Errors
    /// As [`Client::status`].
    pub fn act(&self, action: &Action) -> Result<Outcome, ApiError> {
        let not = |error: serde_json::Error| ApiError::NotUnderstood {
            reason: error.to_string(),
        };
        let body = serde_json::to_vec(action).map_err(not)?;
        let body = self.runtime.block_on(async {
            let response = self.send(Method::POST, "/v1/actions", Some(body)).await?;
            self.whole(response).await
        })?;
        understand(&body)
    }

    fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ApiError> {
        let body = self.runtime.block_on(async {
            let response = self.send(Method::GET, path, None).await?;
            self.whole(response).await
        })?;
        understand(&body)
    }

    async fn open(&self) -> Result<SendRequest<Full<Bytes>>, ApiError> {
        let connecting = tokio::time::timeout(TIMEOUT, self.endpoint.connect());
        let connected = connecting.await.map_err(|error| self.no_answer(&error))?;
        let stream = connected.map_err(|error| match (&self.endpoint, error.kind()) {
            (Endpoint::Socket(socket), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => {
                ApiError::NotRunning {
                    socket: socket.clone(),
                }
            }
            (Endpoint::Socket(socket), io::ErrorKind::PermissionDenied) => ApiError::Permission {
                socket: socket.clone(),
            },
            _ => self.no_answer(&error),
        })?;
        let (sender, connection) = http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|e| self.no_answer(&e))?;
        tokio::spawn(async move {
            // The request that fails reports the connection's error.
            let _ = connection.await;
        });
        Ok(sender)
    }

    fn no_answer(&self, error: &dyn std::error::Error) -> ApiError {
        ApiError::NoAnswer {
            socket: self.endpoint.place(),
            reason: error.to_string(),
        }
    }

    /// Sends a request and returns the answer, unless it is a refusal.
    async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<Vec<u8>>,
    ) -> Result<Response<Incoming>, ApiError> {
        let asking = async {
            let mut sender = self.open().await?;
            let mut request = Request::builder()
                .method(method)
                .uri(path)
                // HTTP/1.1 requires one; inco does not read it.
                .header(header::HOST, "inco")
                .header(header::CONTENT_TYPE, "application/json");
            if let Some(authorization) = self.endpoint.authorization() {
                request = request.header(header::AUTHORIZATION, authorization);
            }
            let request = request
                .body(Full::new(Bytes::from(body.unwrap_or_default())))
                .map_err(|error| self.no_answer(&error))?;
            sender
                .send_request(request)
                .await
                .map_err(|error| self.no_answer(&error))
        };
        let response = tokio::time::timeout(TIMEOUT, asking)
            .await
            .map_err(|error| self.no_answer(&error))??;
        if response.status().is_success() {
            return Ok(response);
        }
        let status = response.status();
        let body = self.whole(response).await?;
        Err(match serde_json::from_slice::<Problem>(&body) {
            Ok(problem) => ApiError::Refused(Refusal::from(problem)),
            Err(_) => ApiError::NotUnderstood {
                reason: format!("status {status}"),
            },
        })
    }

    async fn whole(&self, response: Response<Incoming>) -> Result<Vec<u8>, ApiError> {
        let body = http_body_util::Limited::new(response.into_body(), ANSWER_LIMIT);
        let collecting = tokio::time::timeout(TIMEOUT, body.collect());
        let collected = collecting.await.map_err(|error| self.no_answer(&error))?;
        let collected = collected.map_err(|error| self.no_answer(&*error))?;
        Ok(collected.to_bytes().to_vec())
    }
}

fn understand<T: DeserializeOwned>(body: &[u8]) -> Result<T, ApiError> {
    serde_json::from_slice(body).map_err(|error| ApiError::NotUnderstood {
        reason: error.to_string(),
    })
}

/// A stream of events.
#[derive(Debug)]
pub struct EventStream<'a> {
    client: &'a Client,
    body: Response<Incoming>,
    /// Received bytes of an incomplete line.
    pending: Vec<u8>,
}

/// A capture that runs. Dropping it ends it.
#[derive(Debug)]
pub struct CaptureStream<'a> {
    client: &'a Client,
    body: Response<Incoming>,
    ender: CaptureEnder,
}

impl CaptureStream<'_> {
    /// What ends it from another thread.
    pub fn ender(&self) -> CaptureEnder {
        self.ender.clone()
    }
}

impl Iterator for CaptureStream<'_> {
    type Item = Bytes;

    /// Waits for the next piece; [`None`] when the capture, or inco, has ended, or when it was ended here.
    fn next(&mut self) -> Option<Bytes> {
        let mut ended = self.ender.0.subscribe();
        let body = self.body.body_mut();
        self.client.runtime.block_on(async {
            loop {
                let frame = tokio::select! {
                    _ = ended.wait_for(|has_ended| *has_ended) => return None,
                    frame = body.frame() => frame?,
                };
                if let Ok(data) = frame.ok()?.into_data() {
                    return Some(data);
                }
            }
        })
    }
}

/// Ends a [`CaptureStream`] that another thread waits for.
#[derive(Clone, Debug)]
pub struct CaptureEnder(Arc<watch::Sender<bool>>);

impl CaptureEnder {
    /// Ends it. Pieces that have not been taken are left.
    pub fn end(&self) {
        self.0.send_replace(true);
    }

    /// Whether it was ended here.
    pub fn has_ended(&self) -> bool {
        *self.0.borrow()
    }
}

/// A line of the stream.
#[derive(serde::Deserialize)]
#[serde(untagged)]
enum Line {
    Event(Box<Event>),
    Missed {
        #[allow(dead_code, reason = "the field tells the line from an event")]
        missed: u64,
    },
}

impl Iterator for EventStream<'_> {
    type Item = Result<Event, ApiError>;

    /// Waits for the next event; [`None`] when inco has ended.
    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(end) = self.pending.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.pending.drain(..=end).collect();
                match understand::<Line>(&line) {
                    Ok(Line::Event(event)) => return Some(Ok(*event)),
                    // The gap shows in the sequence numbers.
                    Ok(Line::Missed { .. }) => continue,
                    Err(error) => return Some(Err(error)),
                }
            }
            match self.client.runtime.block_on(self.body.body_mut().frame())? {
                Ok(frame) => {
                    if let Ok(data) = frame.into_data() {
                        self.pending.extend_from_slice(&data);
                    }
                }
                // inco ended within a line.
                Err(_) => return None,
            }
        }
    }
}

/// A path with a query, its values escaped.
struct Query {
    path: String,
    any: bool,
}

impl Query {
    fn new(path: &str) -> Query {
        Query {
            path: path.to_owned(),
            any: false,
        }
    }

    fn add(&mut self, name: &str, value: Option<&str>) {
        let Some(value) = value else { return };
        self.path.push(if self.any { '&' } else { '?' });
        self.any = true;
        self.path.push_str(name);
        self.path.push('=');
        self.path.push_str(&escaped(value));
    }
}

/// A value as a part of a path or a query.
fn escaped(value: &str) -> String {
    let mut text = String::new();
    for byte in value.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            text.push(char::from(byte));
        } else {
            text.push_str(&format!("%{byte:02X}"));
        }
    }
    text
}
