//! External metrics (`external.metrics.k8s.io/v1beta1`): what the statuses of `NetworkFunction`s say of all nodes, for an
//! HPA or KEDA. Nobody has to act by them: inco's own loop does, in milliseconds.
//!
//! The operator serves them and not inco, because an inco knows its own node, and the statuses have all. The API server
//! has checked who asks; so only its certificate is taken here.

use std::convert::Infallible;
use std::net::{SocketAddr, TcpListener as StdTcpListener};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, oneshot};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig, crypto};

use crate::Error;
use crate::cluster::now;
use crate::status::Figures;

const GROUP_VERSION: &str = "external.metrics.k8s.io/v1beta1";
/// The label of each value: the name of the object.
const LABEL: &str = "networkfunction";
/// Most connections. The API server keeps a few open.
const CONNECTIONS: usize = 64;
/// How long a handshake may take.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// How long the head of a request may take, and the pause before it.
const HEAD: Duration = Duration::from_secs(60);
/// How often the certificates are read again: they may have been replaced.
const RENEW: Duration = Duration::from_secs(60);
/// After how long without a list from the API server nothing is told any more.
const STALE: Duration = Duration::from_secs(60);
/// Longest selector in bytes.
const SELECTOR_LIMIT: usize = 1024;

/// A metric: its name, and its value as a quantity of Kubernetes.
type Metric = (&'static str, fn(&Figures) -> String);

/// All metrics.
pub const METRICS: &[Metric] = &[
    ("inco_load", |of| {
        format!("{}m", of.load_percent.saturating_mul(10))
    }),
    ("inco_offered_pps", |of| of.offered_pps.to_string()),
    ("inco_queueing_delay_seconds", |of| format!("{}u", of.queueing_us)),
    ("inco_instances", |of| of.active.to_string()),
    ("inco_desired_instances", |of| of.desired.to_string()),
    ("inco_flows", |of| of.flows.to_string()),
];

/// Where to listen, and the files of certificates.
#[derive(Clone, Debug)]
pub struct Listen {
    /// The address and port.
    pub address: SocketAddr,
    /// The certificate and its chain, as PEM.
    pub certificate: PathBuf,
    /// Its private key, as PEM.
    pub key: PathBuf,
    /// The authority of the API server's own certificate, as PEM.
    pub client_ca: PathBuf,
}

/// What the status of a function says of all nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The figures.
    pub figures: Figures,
}

/// What was listed last, and when.
type Listed = Option<(Vec<Row>, Instant)>;

/// What is known of functions: the loop writes it, the server reads it.
#[derive(Clone, Debug, Default)]
pub struct Board(Arc<Mutex<Listed>>);

impl Board {
    /// Shows these from now on.
    pub fn show(&self, rows: Vec<Row>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((rows, Instant::now()));
    }

    fn rows(&self) -> Option<Vec<Row>> {
        let shown = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let fresh = shown.as_ref().filter(|(_, at)| at.elapsed() < STALE);
        fresh.map(|(rows, _)| rows.clone())
    }
}

/// A requirement on the values of a label.
#[derive(Debug, PartialEq, Eq)]
enum Rule {
    In(Vec<String>),
    NotIn(Vec<String>),
    Exists,
    Absent,
}

impl Rule {
    fn holds(&self, value: Option<&str>) -> bool {
        let is_one = |of: &[String]| value.is_some_and(|value| of.iter().any(|it| it == value));
        match self {
            Rule::In(of) => is_one(of),
            Rule::NotIn(of) => !is_one(of),
            Rule::Exists => value.is_some(),
            Rule::Absent => value.is_none(),
        }
    }
}

/// Reads a selector of labels: `a=b,c in (d,e),!f`.
fn selector(text: &str) -> Result<Vec<(String, Rule)>, String> {
    if text.len() > SELECTOR_LIMIT {
        return Err(format!("labelSelector: write at most {SELECTOR_LIMIT} bytes"));
    }
    let mut depth = 0_usize;
    let parts = text.split(|c: char| {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        c == ',' && depth == 0
    });
    parts
        .map(str::trim)
        .filter(|of| !of.is_empty())
        .map(rule)
        .collect()
}

fn rule(part: &str) -> Result<(String, Rule), String> {
    let wrong =
        || format!("labelSelector: {part:?} is no requirement; write KEY=VALUE or KEY in (VALUE,VALUE)");
    let one = |of: &str| vec![of.trim().to_owned()];
    let (key, rule) = if let Some(key) = part.strip_prefix('!') {
        (key, Rule::Absent)
    } else if let Some((key, value)) = part.split_once("!=") {
        (key, Rule::NotIn(one(value)))
    } else if let Some((key, value)) = part.split_once('=') {
        (key, Rule::In(one(value.strip_prefix('=').unwrap_or(value))))
    } else if let Some((head, values)) = part.split_once('(') {
        let values = values.strip_suffix(')').ok_or_else(wrong)?;
        let values = values.split(',').map(|of| of.trim().to_owned()).collect();
        let (key, word) = head.trim().rsplit_once(' ').ok_or_else(wrong)?;
        match word {
            "in" => (key, Rule::In(values)),
            "notin" => (key, Rule::NotIn(values)),
            _ => return Err(wrong()),
        }
    } else {
        (part, Rule::Exists)
    };
    let key = key.trim();
    if key.is_empty() || key.contains([' ', '(', ')']) {
        return Err(wrong());
    }
    Ok((key.to_owned(), rule))
}

/// A part of a query without its escapes.
fn plain(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut plain = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        let hex = text.get(at + 1..at + 3).filter(|_| *byte == b'%');
        match hex.and_then(|of| u8::from_str_radix(of, 16).ok()) {
            Some(of) => {
                plain.push(of);
                at += 3;
            }
            None => {
                plain.push(if *byte == b'+' { b' ' } else { *byte });
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&plain).into_owned()
}

fn failure(code: u16, reason: &str, message: &str) -> (u16, Value) {
    let body = json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "reason": reason,
        "message": message, "code": code });
    (code, body)
}

/// The code and the body of an answer. `rows`: [`None`] where nothing is known.
pub fn answer(path: &str, query: &str, rows: Option<&[Row]>, now: &str) -> (u16, Value) {
    let at = format!("/apis/{GROUP_VERSION}");
    let Some(rest) = path.strip_prefix(&at) else {
        return failure(404, "NotFound", "there are external metrics only");
    };
    let parts: Vec<&str> = rest.split('/').filter(|of| !of.is_empty()).collect();
    match parts.as_slice() {
        [] => (200, resources()),
        ["namespaces", namespace, metric] => {
            let Some((name, value)) = METRICS.iter().find(|(name, _)| name == metric) else {
                return failure(404, "NotFound", "there is no such metric; see those of the group");
            };
            let Some(rows) = rows else {
                let said = "the API server has not listed functions for a minute; see the operator's log";
                return failure(503, "ServiceUnavailable", said);
            };
            let asked = query.split('&').find_map(|of| of.strip_prefix("labelSelector="));
            match selector(&plain(asked.unwrap_or_default())) {
                Err(wrong) => failure(400, "BadRequest", &wrong),
                Ok(rules) => {
                    let own = rows.iter().filter(|of| of.namespace == *namespace);
                    let own = own.filter(|of| {
                        let value = |key: &str| (key == LABEL).then_some(of.name.as_str());
                        rules.iter().all(|(key, rule)| rule.holds(value(key)))
                    });
                    let item = |of: &Row| {
                        json!({ "metricName": name, "metricLabels": { LABEL: of.name }, "timestamp": now,
                            "value": value(&of.figures) })
                    };
                    let items: Vec<Value> = own.map(item).collect();
                    let list = json!({ "kind": "ExternalMetricValueList", "apiVersion": GROUP_VERSION, "metadata": {},
                        "items": items });
                    (200, list)
                }
            }
        }
        _ => failure(404, "NotFound", "write namespaces/NAMESPACE/METRIC"),
    }
}

/// What the API server asks for to find a group.
fn resources() -> Value {
    let each = METRICS.iter().map(|(name, _)| {
        json!({ "name": name, "singularName": "", "namespaced": true, "kind": "ExternalMetricValueList", "verbs": ["get"] })
    });
    json!({ "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": GROUP_VERSION,
        "resources": each.collect::<Vec<_>>() })
}

impl Listen {
    fn tls(&self) -> Result<Arc<ServerConfig>, Error> {
        let wrong = |file: &Path, why: String| Error::File(format!("{}: {why}", file.display()));
        let certificates = |file: &Path| -> Result<Vec<CertificateDer<'static>>, Error> {
            CertificateDer::pem_file_iter(file)
                .and_then(Iterator::collect::<Result<Vec<_>, _>>)
                .map_err(|error| wrong(file, error.to_string()))
        };
        let mut roots = RootCertStore::empty();
        for of in certificates(&self.client_ca)? {
            roots
                .add(of)
                .map_err(|error| wrong(&self.client_ca, error.to_string()))?;
        }
        let provider = Arc::new(crypto::ring::default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
            .build()
            .map_err(|error| wrong(&self.client_ca, error.to_string()))?;
        let key =
            PrivateKeyDer::from_pem_file(&self.key).map_err(|error| wrong(&self.key, error.to_string()))?;
        let own = certificates(&self.certificate)?;
        ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .and_then(|of| of.with_client_cert_verifier(verifier).with_single_cert(own, key))
            .map(Arc::new)
            .map_err(|error| wrong(&self.certificate, error.to_string()))
    }
}

/// The running server. Dropping it ends it.
#[derive(Debug)]
pub struct Server {
    /// Where it listens.
    pub address: SocketAddr,
    _end: oneshot::Sender<()>,
}

/// Serves what the board shows, on a thread of its own.
///
/// # Errors
/// It cannot listen there, or a file is not what it has to be.
pub fn serve(listen: &Listen, board: &Board) -> Result<Server, Error> {
    let cannot = |error: std::io::Error| {
        let at = listen.address;
        Error::File(format!(
            "cannot listen at {at} for metrics: {error}; write another address"
        ))
    };
    let config = listen.tls()?;
    let listener = StdTcpListener::bind(listen.address).map_err(cannot)?;
    listener.set_nonblocking(true).map_err(cannot)?;
    let address = listener.local_addr().map_err(cannot)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(Error::Start)?;
    let (end, ended) = oneshot::channel();
    let (listen, board) = (listen.clone(), board.clone());
    let each = move || {
        runtime.block_on(async {
            tokio::select! {
                _ = ended => {}
                () = accept(listener, &listen, config, &board) => {}
            }
        });
    };
    let thread = std::thread::Builder::new().name("inco-metrics".to_owned());
    thread.spawn(each).map_err(Error::Start)?;
    Ok(Server { address, _end: end })
}

async fn accept(listener: StdTcpListener, listen: &Listen, config: Arc<ServerConfig>, board: &Board) {
    let listener = match TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => return tracing::warn!(%error, "metrics cannot be served"),
    };
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    let (mut config, mut read_at) = (config, Instant::now());
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else {
            return;
        };
        let Ok((stream, _)) = listener.accept().await else {
            // As for lack of descriptors, which others have to give back.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        if read_at.elapsed() >= RENEW {
            read_at = Instant::now();
            match listen.tls() {
                Ok(new) => config = new,
                Err(error) => tracing::warn!(%error, "the certificates of before stay"),
            }
        }
        let (acceptor, board) = (TlsAcceptor::from(Arc::clone(&config)), board.clone());
        tokio::spawn(async move {
            talk(stream, &acceptor, board).await;
            drop(place);
        });
    }
}

async fn talk(stream: TcpStream, acceptor: &TlsAcceptor, board: Board) {
    let Ok(Ok(stream)) = tokio::time::timeout(HANDSHAKE, acceptor.accept(stream)).await else {
        return;
    };
    let answered = service_fn(move |request: Request<Incoming>| {
        let (code, body) = match *request.method() {
            Method::GET => {
                let (uri, rows) = (request.uri(), board.rows());
                answer(
                    uri.path(),
                    uri.query().unwrap_or_default(),
                    rows.as_deref(),
                    &now(),
                )
            }
            _ => failure(405, "MethodNotAllowed", "metrics can be read only"),
        };
        let mut response = Response::new(Full::new(Bytes::from(body.to_string())));
        *response.status_mut() = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let json = hyper::header::HeaderValue::from_static("application/json");
        response.headers_mut().insert(hyper::header::CONTENT_TYPE, json);
        async move { Ok::<_, Infallible>(response) }
    });
    let ended = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .serve_connection(TokioIo::new(stream), answered)
        .await;
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection for metrics has ended");
    }
}

#[cfg(test)]
#[path = "metrics_tests.rs"]
mod tests;
