//! Requests to one registry: TLS, redirects, authentication, and limits of what is read.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use base64::Engine as _;
use http_auth::ChallengeRef;
use http_body_util::{BodyExt as _, Empty};
use hyper::body::{Bytes, Incoming};
use hyper::header::{
    ACCEPT, AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, HeaderValue, LOCATION, RANGE, USER_AGENT,
};
use hyper::{Request, Response, StatusCode};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client as HyperClient;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, RootCertStore};
use serde::Deserialize;
use tokio::time::{Instant, timeout, timeout_at};
use url::Url;

use crate::credentials::{self, Login};
use crate::{Options, Reference, RegistryError};

/// How long a connection may take to be there.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// How long a server may send nothing.
pub(crate) const SILENCE_LIMIT: Duration = Duration::from_secs(30);
/// How long a document may take.
const DOCUMENT_LIMIT: Duration = Duration::from_secs(60);
/// Bytes per second that a download must have on average, beside [`DOCUMENT_LIMIT`]: less than the slowest links.
const MIN_BYTES_PER_S: u64 = 4 << 10;
/// How often a request may be redirected.
const MAX_REDIRECTS: usize = 5;
/// Bytes that are read of an error's text, and of a token's answer.
const MAX_TEXT_BYTES: u64 = 64 << 10;
/// Letters of a server that an error shows.
const MAX_SHOWN: usize = 300;
/// Certificates that a directory of a registry may hold.
const MAX_CERTIFICATE_FILES: usize = 64;

type Hyper = HyperClient<HttpsConnector<HttpConnector>, Empty<Bytes>>;

/// A client of the registry of one image.
pub(crate) struct Client {
    hyper: Hyper,
    reference: Reference,
    base: Url,
    login: Option<Login>,
    config: PathBuf,
    /// What the registry has asked for, and got.
    authorization: Mutex<Option<HeaderValue>>,
}

/// An answer with status 200 or 206.
pub(crate) struct Answer {
    pub(crate) host: String,
    pub(crate) response: Response<Incoming>,
    /// When it must have ended.
    until: Instant,
}

#[derive(Deserialize)]
struct Token {
    token: Option<String>,
    access_token: Option<String>,
}

#[derive(Deserialize)]
struct Errors {
    #[serde(default)]
    errors: Vec<ErrorEntry>,
}

#[derive(Deserialize)]
struct ErrorEntry {
    #[serde(default)]
    code: String,
    #[serde(default)]
    message: String,
}

impl Client {
    pub(crate) fn new(reference: &Reference, options: &Options) -> Result<Client, RegistryError> {
        let registry = reference.registry();
        let host = reference.host();
        let unusable = |reason: String| RegistryError::Unreachable {
            host: host.to_owned(),
            reason,
        };
        let own_certificates = own_certificates(&options.certificates.join(registry))?;
        let is_listed = options.plain_http.iter().any(|name| name == registry);
        let is_plain = is_listed || reference.is_loopback() && own_certificates.is_empty();
        let mut roots = RootCertStore::empty();
        if !is_plain {
            // One that cannot be read is one fewer; none at all shows in the error of the connection.
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
        roots.add_parsable_certificates(own_certificates);
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| unusable(error.to_string()))?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let mut http = HttpConnector::new();
        http.enforce_http(false);
        http.set_connect_timeout(Some(CONNECT_LIMIT));
        let builder = HttpsConnectorBuilder::new().with_tls_config(tls);
        let connector = if is_plain {
            builder.https_or_http().enable_http1().wrap_connector(http)
        } else {
            builder.https_only().enable_http1().wrap_connector(http)
        };
        let scheme = if is_plain { "http" } else { "https" };
        let base = Url::parse(&format!("{scheme}://{host}/v2/{}/", reference.repository()))
            .map_err(|error| unusable(error.to_string()))?;
        Ok(Client {
            hyper: HyperClient::builder(TokioExecutor::new()).build(connector),
            login: credentials::find(&options.docker_config, registry)?,
            reference: reference.clone(),
            base,
            config: options.docker_config.clone(),
            authorization: Mutex::new(None),
        })
    }

    pub(crate) fn image(&self) -> String {
        self.reference.to_string()
    }

    /// Asks for `manifests/…` or `blobs/…` of the repository, from byte `from` on.
    pub(crate) async fn get(&self, path: &str, accept: &str, from: u64) -> Result<Answer, RegistryError> {
        let start = self
            .base
            .join(path)
            .map_err(|error| self.wrong(path, error.to_string()))?;
        let mut has_asked = false;
        loop {
            let sent = self.authorization();
            let (url, response) = self.follow(&start, path, accept, from, sent.as_ref()).await?;
            let host = host_of(&url);
            let status = response.status();
            match status {
                StatusCode::OK | StatusCode::PARTIAL_CONTENT => return Ok(Answer::of(host, response)),
                // A token may also have expired.
                StatusCode::UNAUTHORIZED if !has_asked && same_origin(&url, &self.base) => {
                    has_asked = true;
                    let authorization = self.authenticate(&response, path).await?;
                    *self.authorization.lock().unwrap_or_else(PoisonError::into_inner) = Some(authorization);
                }
                _ => {
                    let said = said(response).await;
                    return Err(self.refusal(host, status, said, path));
                }
            }
        }
    }

    fn authorization(&self) -> Option<HeaderValue> {
        self.authorization
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Sends a request, and follows redirects. Another server gets no credentials.
    async fn follow(
        &self,
        start: &Url,
        what: &str,
        accept: &str,
        from: u64,
        authorization: Option<&HeaderValue>,
    ) -> Result<(Url, Response<Incoming>), RegistryError> {
        let mut url = start.clone();
        for _ in 0..=MAX_REDIRECTS {
            let mut request = Request::get(url.as_str()).header(ACCEPT, accept);
            if from > 0 {
                request = request.header(RANGE, format!("bytes={from}-"));
            }
            if let Some(value) = authorization.filter(|_| same_origin(&url, &self.base)) {
                request = request.header(AUTHORIZATION, value);
            }
            let response = self.send(&url, request).await?;
            if !response.status().is_redirection() {
                return Ok((url, response));
            }
            let wrong = |reason: String| RegistryError::BadAnswer {
                host: host_of(&url),
                what: what.to_owned(),
                reason,
            };
            let location = response
                .headers()
                .get(LOCATION)
                .and_then(|value| value.to_str().ok());
            let location = location.ok_or_else(|| wrong("it redirects to nowhere".to_owned()))?;
            let next = url.join(location).map_err(|error| {
                wrong(format!(
                    "it redirects to {}: {error}",
                    printable(location.as_bytes())
                ))
            })?;
            let is_allowed =
                next.scheme() == "https" || next.scheme() == "http" && self.base.scheme() == "http";
            if !is_allowed {
                return Err(wrong(format!("it redirects to {}, without TLS", host_of(&next))));
            }
            url = next;
        }
        Err(self.wrong(what, format!("it redirects more than {MAX_REDIRECTS} times")))
    }

    async fn send(
        &self,
        url: &Url,
        request: hyper::http::request::Builder,
    ) -> Result<Response<Incoming>, RegistryError> {
        let host = host_of(url);
        let unreachable = |reason: String| RegistryError::Unreachable {
            host: host.clone(),
            reason,
        };
        let request = request
            .header(USER_AGENT, concat!("inco/", env!("CARGO_PKG_VERSION")))
            .body(Empty::new())
            .map_err(|error| unreachable(error.to_string()))?;
        let asked = timeout(SILENCE_LIMIT, self.hyper.request(request)).await;
        asked
            .map_err(|_| silent(&host))?
            .map_err(|error| unreachable(self.cause(&error)))
    }

    /// The innermost cause, and what to do where that is known.
    fn cause(&self, error: &dyn std::error::Error) -> String {
        let mut cause = error;
        while let Some(inner) = cause.source() {
            cause = inner;
        }
        let registry = self.reference.registry();
        let text = cause.to_string();
        if text.contains("CaUsedAsEndEntity") {
            return format!(
                "{text}: it shows the certificate of an authority; give it one that this authority signed, or one \
                 made with `openssl req -x509 -addext basicConstraints=critical,CA:FALSE`"
            );
        }
        if text.contains("invalid peer certificate") {
            return format!(
                "{text}; put the certificate of its authority into /etc/docker/certs.d/{registry}/ca.crt"
            );
        }
        if text.contains("InvalidContentType") || text.contains("corrupt message") {
            return format!(
                "it does not speak TLS; if it may be asked without: `inco image pull --plain-http`, or \
                 plain_http = [{registry:?}] in [engine]"
            );
        }
        text
    }

    /// What the registry asks for in a refusal: a token, or the login itself.
    async fn authenticate(
        &self,
        refusal: &Response<Incoming>,
        what: &str,
    ) -> Result<HeaderValue, RegistryError> {
        let headers = refusal.headers().get_all("www-authenticate");
        let texts: Vec<&str> = headers.iter().filter_map(|value| value.to_str().ok()).collect();
        let challenges: Vec<ChallengeRef<'_>> = texts
            .iter()
            .flat_map(|text| http_auth::parse_challenges(text).unwrap_or_default())
            .collect();
        let of = |scheme: &str| {
            challenges
                .iter()
                .find(|of| of.scheme.eq_ignore_ascii_case(scheme))
        };
        if let Some(bearer) = of("bearer") {
            return self.token(bearer, what).await;
        }
        if of("basic").is_some() {
            let login = self.login.as_ref().ok_or_else(|| self.denied(None))?;
            return basic(login).ok_or_else(|| self.denied(None));
        }
        Err(self.wrong(what, "it asks for a way to log in that is not known".to_owned()))
    }

    async fn token(&self, bearer: &ChallengeRef<'_>, what: &str) -> Result<HeaderValue, RegistryError> {
        let parameter = |name: &str| {
            let found = bearer
                .params
                .iter()
                .find(|(key, _)| key.eq_ignore_ascii_case(name));
            found.map(|(_, value)| value.to_unescaped())
        };
        let realm = parameter("realm").unwrap_or_default();
        let mut url = Url::parse(&realm)
            .map_err(|_| self.wrong(what, format!("its tokens are at {}", printable(realm.as_bytes()))))?;
        let is_allowed = url.scheme() == "https" || url.scheme() == "http" && self.base.scheme() == "http";
        if !is_allowed {
            let host = host_of(&url);
            return Err(self.wrong(what, format!("its tokens are at {host}, without TLS")));
        }
        let scope = format!("repository:{}:pull", self.reference.repository());
        if let Some(service) = parameter("service") {
            url.query_pairs_mut().append_pair("service", &service);
        }
        url.query_pairs_mut().append_pair("scope", &scope);
        let mut request = Request::get(url.as_str());
        if let Some(value) = self.login.as_ref().and_then(basic) {
            request = request.header(AUTHORIZATION, value);
        }
        let response = self.send(&url, request).await?;
        let (host, status) = (host_of(&url), response.status());
        if status != StatusCode::OK {
            let said = said(response).await;
            return Err(self.refusal(host, status, said, "a token"));
        }
        let bad = |reason: &str| RegistryError::BadAnswer {
            host: host.clone(),
            what: "a token".to_owned(),
            reason: reason.to_owned(),
        };
        let answer = Answer::of(host.clone(), response);
        let text = answer.read("a token", &self.image(), MAX_TEXT_BYTES).await?;
        let token: Token = serde_json::from_slice(&text).map_err(|_| bad("there is none in its answer"))?;
        let token = token.token.or(token.access_token).unwrap_or_default();
        if token.is_empty() {
            return Err(bad("there is none in its answer"));
        }
        secret(&format!("Bearer {token}")).ok_or_else(|| bad("it cannot be sent"))
    }

    fn refusal(&self, host: String, status: StatusCode, said: Option<String>, what: &str) -> RegistryError {
        match status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => self.denied(said),
            StatusCode::NOT_FOUND => RegistryError::Missing {
                host,
                image: self.image(),
            },
            StatusCode::TOO_MANY_REQUESTS => RegistryError::TooManyRequests { host, said },
            status if status.is_server_error() => RegistryError::Unreachable {
                host,
                reason: with_words(format!("it answers {status}"), said.as_deref()),
            },
            status => RegistryError::BadAnswer {
                host,
                what: what.to_owned(),
                reason: with_words(format!("it answers {status}"), said.as_deref()),
            },
        }
    }

    fn denied(&self, said: Option<String>) -> RegistryError {
        let (registry, config) = (self.reference.registry(), self.config.display());
        let advice = match &self.login {
            Some(login) => format!(
                "check that the user {:?} of {config} may pull it, and its name; `docker login {registry}` writes \
                 another login",
                login.user
            ),
            None => format!(
                "check its name; if it is private, `docker login {registry}` writes a login into {config}, which \
                 has none"
            ),
        };
        RegistryError::Denied {
            host: self.reference.host().to_owned(),
            image: self.image(),
            said,
            advice,
        }
    }

    fn wrong(&self, what: &str, reason: String) -> RegistryError {
        RegistryError::BadAnswer {
            host: self.reference.host().to_owned(),
            what: what.to_owned(),
            reason,
        }
    }
}

impl Answer {
    fn of(host: String, response: Response<Incoming>) -> Answer {
        let until = Instant::now() + DOCUMENT_LIMIT;
        Answer {
            host,
            response,
            until,
        }
    }

    /// Gives it the time that so many bytes may take.
    pub(crate) fn allow(&mut self, bytes: u64) {
        self.until += Duration::from_secs(bytes / MIN_BYTES_PER_S);
    }

    pub(crate) fn content_type(&self) -> Option<&str> {
        self.response.headers().get(CONTENT_TYPE)?.to_str().ok()
    }

    /// The size that the server declares.
    pub(crate) fn declared_bytes(&self) -> Option<u64> {
        self.response
            .headers()
            .get(CONTENT_LENGTH)?
            .to_str()
            .ok()?
            .parse()
            .ok()
    }

    /// The whole body.
    pub(crate) async fn read(
        mut self,
        what: &str,
        image: &str,
        limit: u64,
    ) -> Result<Vec<u8>, RegistryError> {
        let too_large = |bytes| RegistryError::TooLarge {
            image: image.to_owned(),
            what: what.to_owned(),
            bytes,
            limit,
        };
        let declared = self.declared_bytes();
        if let Some(bytes) = declared.filter(|&bytes| bytes > limit) {
            return Err(too_large(bytes));
        }
        let mut text = Vec::new();
        while let Some(more) = self.next().await.map_err(|silence| {
            silence.unwrap_or_else(|| RegistryError::Truncated {
                host: self.host.clone(),
                what: what.to_owned(),
                got: text.len() as u64,
                bytes: declared.unwrap_or_default(),
            })
        })? {
            text.extend_from_slice(&more);
            if text.len() as u64 > limit {
                return Err(too_large(text.len() as u64));
            }
        }
        Ok(text)
    }

    /// The next bytes of the body; `Err(None)` where the connection broke.
    pub(crate) async fn next(&mut self) -> Result<Option<Bytes>, Option<RegistryError>> {
        loop {
            let until = self.until.min(Instant::now() + SILENCE_LIMIT);
            let frame = timeout_at(until, self.response.body_mut().frame()).await;
            let late = || {
                let host = self.host.clone();
                if until == self.until {
                    RegistryError::Slow { host }
                } else {
                    silent(&host)
                }
            };
            match frame.map_err(|_| Some(late()))? {
                None => return Ok(None),
                Some(Err(_)) => return Err(None),
                Some(Ok(frame)) => {
                    // What is no data are trailers.
                    if let Ok(data) = frame.into_data() {
                        return Ok(Some(data));
                    }
                }
            }
        }
    }
}

fn silent(host: &str) -> RegistryError {
    RegistryError::Silent {
        host: host.to_owned(),
        seconds: SILENCE_LIMIT.as_secs(),
    }
}

fn basic(login: &Login) -> Option<HeaderValue> {
    let both = format!("{}:{}", login.user, login.password);
    let encoded = base64::engine::general_purpose::STANDARD.encode(both);
    secret(&format!("Basic {encoded}"))
}

fn secret(text: &str) -> Option<HeaderValue> {
    let mut value = HeaderValue::from_str(text).ok()?;
    value.set_sensitive(true);
    Some(value)
}

fn same_origin(one: &Url, other: &Url) -> bool {
    let of = |url: &Url| {
        (
            url.scheme().to_owned(),
            url.host_str().map(str::to_owned),
            url.port_or_known_default(),
        )
    };
    of(one) == of(other)
}

fn host_of(url: &Url) -> String {
    let host = url.host_str().unwrap_or_default();
    url.port()
        .map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"))
}

fn with_words(mut text: String, said: Option<&str>) -> String {
    if let Some(said) = said {
        text.push_str(": ");
        text.push_str(said);
    }
    text
}

/// What a registry says of its refusal, if anything.
async fn said(response: Response<Incoming>) -> Option<String> {
    let answer = Answer::of(String::new(), response);
    let text = answer.read("an error", "", MAX_TEXT_BYTES).await.ok()?;
    let errors: Errors = serde_json::from_slice(&text).ok()?;
    let first = errors.errors.into_iter().next()?;
    let text = if first.message.is_empty() {
        first.code
    } else {
        first.message
    };
    let text = printable(text.as_bytes());
    (!text.is_empty()).then_some(text)
}

/// Words of a server or a program, fit for a terminal.
pub(crate) fn printable(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let letters = text
        .trim()
        .chars()
        .map(|letter| if letter.is_control() { ' ' } else { letter });
    letters.take(MAX_SHOWN).collect()
}

/// The certificates that Docker would trust for this registry: `*.crt` in its directory.
fn own_certificates(directory: &Path) -> Result<Vec<CertificateDer<'static>>, RegistryError> {
    let Ok(entries) = std::fs::read_dir(directory) else {
        return Ok(Vec::new());
    };
    let mut files: Vec<PathBuf> = entries
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "crt"))
        .take(MAX_CERTIFICATE_FILES)
        .collect();
    files.sort();
    let mut certificates = Vec::new();
    for file in files {
        let wrong = |reason: String| RegistryError::Io {
            action: "read the certificate",
            path: file.clone(),
            reason,
        };
        let read = CertificateDer::pem_file_iter(&file).map_err(|error| wrong(error.to_string()))?;
        for certificate in read {
            certificates.push(certificate.map_err(|error| wrong(error.to_string()))?);
        }
    }
    Ok(certificates)
}
