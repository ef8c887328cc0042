//! The client: one question, one connection, and it blocks.

use std::io;
use std::path::Path;
use std::time::Duration;

use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::{Method, Request, Response, header};
use hyper_util::rt::TokioIo;
use model::{Action, Event, InstanceId, Setting};
use serde::de::DeserializeOwned;
use tokio::runtime::Runtime;

use crate::ApiError;
use crate::Endpoint;
use crate::counters::Counters;
use crate::types::{
    FlowExplanation, FlowFilter, FlowPage, History, InstanceRow, LogPiece, LogRow, Outcome, Policies,
    Problem, Refusal, ServiceRow, Snapshot, Status,
};

/// How long an answer may take: a little longer than the server waits for the control loop.
const PATIENCE: Duration = Duration::from_secs(15);
/// Bytes of an answer: 100,000 flows are about 30 MB.
const ANSWER_LIMIT: usize = 256 << 20;

/// Asks a running inco. Every call blocks.
#[derive(Debug)]
pub struct Client {
    endpoint: Endpoint,
    runtime: Runtime,
}

impl Client {
    /// A client for the inco on that socket.
    ///
    /// # Errors
    /// [`ApiError::NotRunning`] where nobody listens; [`ApiError::Permission`]; [`ApiError::System`].
    pub fn connect(socket: &Path) -> Result<Client, ApiError> {
        Client::connect_to(Endpoint::Socket(socket.to_owned()))
    }

    /// A client for the inco there.
    ///
    /// # Errors
    /// As [`Client::connect`]; [`ApiError::NoAnswer`] where a remote one does not answer.
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
        // So that the absence of inco is told before anything is asked.
        drop(client.runtime.block_on(client.open())?);
        Ok(client)
    }

    /// The socket that it asks on, where it is one of this machine.
    pub fn socket(&self) -> Option<&Path> {
        match &self.endpoint {
            Endpoint::Socket(path) => Some(path),
            Endpoint::Remote(_) => None,
        }
    }

    /// Another client for the inco at the same place, which may have been started again.
    ///
    /// # Errors
    /// As [`Client::connect_to`].
    pub fn again(&self) -> Result<Client, ApiError> {
        Client::connect_to(self.endpoint.clone())
    }

    /// How everything is.
    ///
    /// # Errors
    /// As all questions: [`ApiError::Refused`], [`ApiError::NoAnswer`], [`ApiError::NotUnderstood`] and those of
    /// [`Client::connect`].
    pub fn status(&self) -> Result<Status, ApiError> {
        self.get("/v1/status")
    }

    /// Every service, in the order of the configuration.
    ///
    /// # Errors
    /// As [`Client::status`].
    pub fn services(&self) -> Result<Vec<ServiceRow>, ApiError> {
        self.get("/v1/services")
    }

    /// Every key of that service as it holds now.
    ///
    /// # Errors
    /// As [`Client::status`].
    pub fn settings(&self, service: &str) -> Result<Vec<Setting>, ApiError> {
        self.get(&format!("/v1/services/{}/settings", escaped(service)))
    }

    /// The containers of that service whose output is kept, by instance.
    ///
    /// # Errors
    /// As [`Client::status`].
    pub fn logs(&self, service: &str) -> Result<Vec<LogRow>, ApiError> {
        self.get(&format!("/v1/services/{}/logs", escaped(service)))
    }

    /// What the container of that service's instance wrote, from a position on.
    ///
    /// # Errors
    /// As [`Client::status`].
    pub fn log(&self, service: &str, instance: InstanceId, from: u64) -> Result<LogPiece, ApiError> {
        let service = escaped(service);
        self.get(&format!("/v1/services/{service}/logs/{instance}?from={from}"))
    }

    /// Every instance, in the order of ids.
    ///
    /// # Errors
    /// As [`Client::status`].
    pub fn instances(&self) -> Result<Vec<InstanceRow>, ApiError> {
        self.get("/v1/instances")
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

    /// Where a flow is, since when, and why there.
    ///
    /// # Errors
    /// As [`Client::status`].
    pub fn explain_flow(&self, flow: &str) -> Result<FlowExplanation, ApiError> {
        let mut query = Query::new("/v1/flows/explain");
        query.add("flow", Some(flow));
        self.get(&query.path)
    }

    /// Status, services and instances of one moment.
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

    /// The policies that there are, and what each service uses.
    ///
    /// # Errors
    /// As [`Client::status`].
    pub fn policies(&self) -> Result<Policies, ApiError> {
        self.get("/v1/policies")
    }

    /// Every counter.
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

    /// The newest events, at most `last`, and then those that come.
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

    /// Does something.
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
        let connecting = tokio::time::timeout(PATIENCE, self.endpoint.connect());
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
            // What goes wrong with it is told by the request that it breaks.
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

    /// Sends a request; what comes back was not refused.
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
                // HTTP/1.1 wants one; inco does not read it.
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
        let response = tokio::time::timeout(PATIENCE, asking)
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
        let collecting = tokio::time::timeout(PATIENCE, body.collect());
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

/// Events as they come.
#[derive(Debug)]
pub struct EventStream<'a> {
    client: &'a Client,
    body: Response<Incoming>,
    /// What came and is not yet a whole line.
    pending: Vec<u8>,
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

    /// The next event, once there is one; [`None`] when inco has ended.
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
                // inco ended in the middle of it: there is nothing more to tell.
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
