//! Access control: bearer tokens for TCP, and limits of requests.

use std::fmt;
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use axum::extract::{Extension, Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};
use subtle::ConstantTimeEq as _;

use crate::connections::ConnectionPermit;
use crate::figures::Figures;
use crate::problem::Problem;
use crate::{ApiError, Caller, Limits, page};

use std::sync::Arc;

/// Maximum number of tokens in a file: one per client program.
pub const TOKEN_LIMIT: usize = 256;
/// Minimum length of a token, in characters: 128 bits in hexadecimal.
pub const TOKEN_LENGTH: usize = 32;
/// Maximum size of the file, in bytes.
const FILE_LIMIT: u64 = 64 * 1024;

/// A token and its rights.
struct Token {
    name: String,
    may_act: bool,
    secret: Vec<u8>,
}

/// The tokens that are accepted over TCP.
pub(crate) struct Tokens(Vec<Token>);

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list()
            .entries(self.0.iter().map(|token| &token.name))
            .finish()
    }
}

impl Tokens {
    /// Reads the file. Each line has a role (`admin` or `read`), a name for the event log, and the token, separated
    /// by spaces. `#` begins a comment.
    ///
    /// # Errors
    /// [`ApiError::Tokens`] if the file cannot be read, if users other than its owner and group can read it, or if a
    /// line is invalid.
    pub(crate) fn read(file: &Path) -> Result<Tokens, ApiError> {
        let wrong = |reason: String| ApiError::Tokens {
            file: file.to_owned(),
            reason,
        };
        let about = std::fs::metadata(file).map_err(|error| wrong(error.to_string()))?;
        if about.permissions().mode() & 0o007 != 0 {
            return Err(wrong("every user can read it: run chmod 0600".to_owned()));
        }
        if about.len() > FILE_LIMIT {
            return Err(wrong(format!("it is longer than {FILE_LIMIT} bytes")));
        }
        let text = std::fs::read_to_string(file).map_err(|error| wrong(error.to_string()))?;
        Tokens::parse(&text).map_err(wrong)
    }

    fn parse(text: &str) -> Result<Tokens, String> {
        let mut tokens: Vec<Token> = Vec::new();
        for (number, line) in (1..).zip(text.lines()) {
            let line = line.split('#').next().unwrap_or_default();
            let words: Vec<&str> = line.split_whitespace().collect();
            let (role, name, secret) = match words.as_slice() {
                [] => continue,
                [role, name, secret] => (*role, *name, *secret),
                _ => {
                    return Err(format!(
                        "line {number}: write a role, a name and a token, for example: admin ops 6f1c..."
                    ));
                }
            };
            let may_act = match role {
                "admin" => true,
                "read" => false,
                other => {
                    return Err(format!(
                        "line {number}: unknown role {other:?}: write admin or read"
                    ));
                }
            };
            if secret.len() < TOKEN_LENGTH {
                return Err(format!(
                    "line {number}: the token of {name:?} is shorter than {TOKEN_LENGTH} characters: make one with \
                     `openssl rand -hex 32`"
                ));
            }
            if tokens.iter().any(|token| token.name == name) {
                return Err(format!(
                    "line {number}: the name {name:?} is used twice: write another name"
                ));
            }
            if tokens.len() == TOKEN_LIMIT {
                return Err(format!(
                    "line {number}: more than {TOKEN_LIMIT} tokens: remove some"
                ));
            }
            tokens.push(Token {
                name: name.to_owned(),
                may_act,
                secret: secret.as_bytes().to_vec(),
            });
        }
        if tokens.is_empty() {
            return Err("it has no token: add a line such as: admin ops 6f1c...".to_owned());
        }
        Ok(Tokens(tokens))
    }

    /// The caller with this token. It compares all tokens, each in constant time, so that the duration reveals
    /// nothing about a token.
    fn caller(&self, given: &[u8]) -> Option<Caller> {
        let mut found = None;
        for token in &self.0 {
            if bool::from(token.secret.ct_eq(given)) {
                found = Some(token);
            }
        }
        found.map(|token| Caller {
            name: format!("token {}", token.name),
            may_act: token.may_act,
            is_root: false,
        })
    }
}

/// The origin of a request.
#[derive(Clone, Debug)]
pub(crate) enum Peer {
    /// The unix socket. Its mode controls access.
    Local(Caller),
    /// TCP. The token identifies the caller.
    Remote,
}

/// The access checks of a listener.
pub(crate) struct Guard {
    tokens: Option<Tokens>,
    requests: DefaultDirectRateLimiter,
    failures: DefaultDirectRateLimiter,
    figures: Arc<Figures>,
    limits: Limits,
}

fn per_second(rate: u32) -> DefaultDirectRateLimiter {
    RateLimiter::direct(Quota::per_second(
        NonZeroU32::new(rate).unwrap_or(NonZeroU32::MIN),
    ))
}

impl Guard {
    pub(crate) fn new(tokens: Option<Tokens>, limits: &Limits, figures: Arc<Figures>) -> Guard {
        Guard {
            tokens,
            requests: per_second(limits.requests_per_s),
            failures: per_second(limits.failed_tokens_per_s),
            figures,
            limits: limits.clone(),
        }
    }

    /// Checks access to a path. The page needs no token.
    fn admit(&self, request: &mut Request) -> Result<bool, Problem> {
        let caller = match request.extensions().get::<Peer>() {
            Some(Peer::Local(caller)) => {
                is_asked_for_by_name(request.headers())?;
                caller.clone()
            }
            Some(Peer::Remote) => match self.of_token(request.uri().path(), request.headers())? {
                Some(caller) => caller,
                None => return Ok(false),
            },
            None => {
                return Err(Problem::new(
                    StatusCode::FORBIDDEN,
                    "the requester is unknown",
                    "",
                ));
            }
        };
        let reads = matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS);
        if !reads && !caller.may_act {
            return Err(Problem::new(
                StatusCode::FORBIDDEN,
                format!("{} has read-only access", caller.name),
                "use a token with the role admin",
            ));
        }
        if self.requests.check().is_err() {
            return Err(too_many(self.limits.requests_per_s, "requests"));
        }
        request.extensions_mut().insert(caller);
        Ok(true)
    }

    /// The caller with the token of a request; [`None`] if the path needs no token.
    fn of_token(&self, path: &str, headers: &HeaderMap) -> Result<Option<Caller>, Problem> {
        let given = headers.get(header::AUTHORIZATION).map(HeaderValue::as_bytes);
        let given = given.and_then(|value| {
            let (scheme, token) = value.split_at_checked(7)?;
            scheme
                .eq_ignore_ascii_case(b"bearer ")
                .then_some(token.trim_ascii())
        });
        let known = given
            .zip(self.tokens.as_ref())
            .and_then(|(given, tokens)| tokens.caller(given));
        if known.is_some() {
            return Ok(known);
        }
        // The page has no data. It asks the user for a token and then requests the data.
        if page::FILES.contains(&path) && given.is_none() {
            return Ok(None);
        }
        if self.failures.check().is_err() {
            return Err(too_many(
                self.limits.failed_tokens_per_s,
                "requests without a valid token",
            ));
        }
        Err(Problem::new(
            StatusCode::UNAUTHORIZED,
            if given.is_some() {
                "unknown token"
            } else {
                "the request has no token"
            },
            "send Authorization: Bearer TOKEN with a token of the file in `[api] tokens`",
        ))
    }
}

/// Whether the host name of a request is permitted on the unix socket. A browser reaches the socket through a
/// forwarded port. With DNS rebinding, a foreign page could reach it in the same way, but with its own host name,
/// which has a dot.
fn is_asked_for_by_name(headers: &HeaderMap) -> Result<(), Problem> {
    let Some(host) = headers.get(header::HOST) else {
        return Ok(());
    };
    let host = host.to_str().unwrap_or(".");
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    let address = name.trim_start_matches('[').trim_end_matches(']');
    if address.parse::<IpAddr>().is_ok() || !name.contains('.') {
        return Ok(());
    }
    Err(Problem::new(
        StatusCode::MISDIRECTED_REQUEST,
        "the request has the name of another host",
        "open it as http://localhost:PORT/ or http://127.0.0.1:PORT/",
    ))
}

fn too_many(rate: u32, what: &str) -> Problem {
    Problem::new(
        StatusCode::TOO_MANY_REQUESTS,
        format!("more than {rate} {what} per second"),
        "send fewer requests: /v1/stream sends changes, /v1/snapshot has everything in one answer",
    )
}

/// Admits or refuses a request, applies the time limit, and counts it. A refusal closes a connection without a valid
/// token.
pub(crate) async fn guard(
    State(guard): State<Arc<Guard>>,
    Extension(permit): Extension<Arc<ConnectionPermit>>,
    mut request: Request,
    next: Next,
) -> Response {
    let mut response = match guard.admit(&mut request) {
        Err(problem) => problem.into_response(),
        Ok(is_authenticated) => {
            let answer = async {
                if is_authenticated {
                    permit.admit().await;
                }
                next.run(request).await
            };
            match tokio::time::timeout(guard.limits.request_time, answer).await {
                Ok(response) => response,
                Err(_) => Problem::new(
                    StatusCode::REQUEST_TIMEOUT,
                    format!(
                        "the request took longer than {} s",
                        guard.limits.request_time.as_secs()
                    ),
                    "send the body without pauses",
                )
                .into_response(),
            }
        }
    };
    if !response.status().is_success() && !permit.is_authenticated() {
        let close = HeaderValue::from_static("close");
        response.headers_mut().insert(header::CONNECTION, close);
    }
    match response.status() {
        StatusCode::UNAUTHORIZED => {
            let scheme = HeaderValue::from_static("Bearer");
            response.headers_mut().insert(header::WWW_AUTHENTICATE, scheme);
        }
        StatusCode::TOO_MANY_REQUESTS => {
            response
                .headers_mut()
                .insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        _ => {}
    }
    let nosniff = HeaderValue::from_static("nosniff");
    response
        .headers_mut()
        .insert(header::X_CONTENT_TYPE_OPTIONS, nosniff);
    guard.figures.answered(response.status());
    response
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const A: &str = "0123456789abcdef0123456789abcdef";
    const B: &str = "fedcba9876543210fedcba9876543210";

    #[test]
    fn each_line_is_a_token() {
        let text = format!("# who may what\nadmin ops {A} # Anna\n\n  read\tprometheus {B}\n");
        let tokens = Tokens::parse(&text).unwrap();
        let caller = |token: &str| tokens.caller(token.as_bytes()).map(|c| (c.name, c.may_act));
        assert_eq!(caller(A), Some(("token ops".to_owned(), true)));
        assert_eq!(caller(B), Some(("token prometheus".to_owned(), false)));
        for wrong in ["", &A[1..], &format!("{A}0"), "Anna"] {
            assert_eq!(caller(wrong), None, "{wrong}");
        }
        assert!(!format!("{tokens:?}").contains(A), "a token is shown");
    }

    #[test]
    fn pages_of_other_hosts_are_refused_on_the_socket() {
        let asked = |host: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::HOST, HeaderValue::from_str(host).unwrap());
            is_asked_for_by_name(&headers).is_ok()
        };
        for ours in [
            "inco",
            "localhost",
            "localhost:8080",
            "127.0.0.1:8080",
            "[::1]:8080",
            "10.0.0.1",
        ] {
            assert!(asked(ours), "{ours}");
        }
        for other in [
            "evil.example",
            "evil.example:8080",
            "127.0.0.1.evil.example",
            "localhost.:8080",
            ".",
            "",
        ] {
            assert_eq!(asked(other), other.is_empty(), "{other}");
        }
        assert!(is_asked_for_by_name(&HeaderMap::new()).is_ok());
    }

    #[test]
    fn a_wrong_line_is_named() {
        for (text, said) in [
            ("", "has no token"),
            ("admin ops", "line 1: write a role"),
            (
                "\nroot ops 0123456789abcdef0123456789abcdef",
                "line 2: unknown role \"root\"",
            ),
            ("read x short", "shorter than 32"),
            (
                "read x 0123456789abcdef0123456789abcdef\nread x 0123456789abcdef0123456789abcdee",
                "line 2: the name \"x\" is used twice",
            ),
        ] {
            let error = Tokens::parse(text).unwrap_err();
            assert!(error.contains(said), "{error}");
            assert!(!error.contains(A), "an error tells a token: {error}");
        }
        let many: String = (0..=TOKEN_LIMIT)
            .map(|n| format!("read n{n} {n:032}\n"))
            .collect();
        assert!(Tokens::parse(&many).unwrap_err().contains("more than 256"));
    }

    #[test]
    fn a_file_that_everybody_may_read_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("tokens");
        std::fs::write(&file, format!("admin ops {A}\n")).unwrap();
        let set = |mode| std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
        set(0o644);
        assert!(
            Tokens::read(&file)
                .unwrap_err()
                .to_string()
                .contains("chmod 0600")
        );
        set(0o640);
        assert_eq!(Tokens::read(&file).unwrap().0.len(), 1);
        assert!(Tokens::read(&directory.path().join("none")).is_err());
    }

    proptest! {
        #[test]
        fn no_file_panics(text in "\\PC{0,80}") {
            let _ = Tokens::parse(&text);
        }
    }
}
