//! The API over the network: real TLS with a certificate made for the test, and tokens.

#![allow(clippy::panic, clippy::unwrap_used, reason = "a test fails by it")]

use model::Action;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use api::types::{Outcome, Status};
use api::{
    ApiError, Client, ControlRequest, Endpoint, EventLog, Limits, Server, ServerSettings, Tcp, request_queue,
};
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned, crypto};

const ADMIN: &str = "0123456789abcdef0123456789abcdef";
const READ: &str = "fedcba9876543210fedcba9876543210";

struct Remote {
    server: Server,
    trusted: CertificateDer<'static>,
    /// Who acted, in order.
    acted: mpsc::Receiver<String>,
    directory: tempfile::TempDir,
}

fn files(directory: &std::path::Path) -> (Tcp, CertificateDer<'static>) {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let write = |name: &str, text: &str| {
        let path = directory.join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        path
    };
    let tcp = Tcp {
        address: SocketAddr::from(([127, 0, 0, 1], 0)),
        certificate: write("api.pem", &made.cert.pem()),
        key: write("api.key", &made.signing_key.serialize_pem()),
        tokens: write("tokens", &format!("admin ops {ADMIN}\nread prometheus {READ}\n")),
    };
    (tcp, made.cert.der().clone())
}

impl Remote {
    fn start(limits: &Limits) -> Remote {
        let directory = tempfile::tempdir().unwrap();
        let (tcp, trusted) = files(directory.path());
        let (asker, mut inbox) = request_queue();
        let (note, acted) = mpsc::channel();
        let socket = directory.path().join("api.sock");
        let settings = ServerSettings {
            tcp: Some(tcp),
            limits: limits.clone(),
            ..ServerSettings::on(&socket)
        };
        let server = Server::start(settings, asker, EventLog::default()).unwrap();
        std::thread::spawn(move || {
            while let Some(control_request) = inbox.wait() {
                match control_request {
                    ControlRequest::Status(answer) => answer.give(Status::default()),
                    ControlRequest::Act(_, caller, answer) => {
                        let _ = note.send(caller.name);
                        answer.give(Ok(Outcome::new("done".to_owned())));
                    }
                    _ => {}
                }
            }
        });
        Remote {
            server,
            trusted,
            acted,
            directory,
        }
    }

    /// A connection through which nothing was said yet.
    fn connect(&self) -> StreamOwned<ClientConnection, TcpStream> {
        let mut roots = RootCertStore::empty();
        roots.add(self.trusted.clone()).unwrap();
        let config = ClientConfig::builder_with_provider(Arc::new(crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let name = ServerName::try_from("localhost").unwrap();
        let connection = ClientConnection::new(Arc::new(config), name).unwrap();
        let socket = TcpStream::connect(self.server.tcp().unwrap()).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        StreamOwned::new(connection, socket)
    }

    /// What comes back for a request, to its end.
    fn ask(&self, request: &str) -> String {
        let mut stream = self.connect();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = Vec::new();
        let _ended = stream.read_to_end(&mut answer);
        String::from_utf8(answer).unwrap()
    }

    fn get(&self, path: &str, token: Option<&str>) -> String {
        let token = token.map_or_else(String::new, |token| format!("authorization: Bearer {token}\r\n"));
        self.ask(&format!(
            "GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{token}\r\n"
        ))
    }

    fn act(&self, token: &str) -> String {
        let body = "{\"action\":\"reload\"}";
        self.ask(&format!(
            "POST /v1/actions HTTP/1.1\r\nhost: x\r\nconnection: close\r\nauthorization: bearer {token}\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        ))
    }
}

#[test]
fn a_token_grants_its_actions() {
    let remote = Remote::start(&Limits::default());
    let status = |answer: &str| answer.split(' ').nth(1).unwrap_or_default().to_owned();
    assert_eq!(status(&remote.get("/v1/status", Some(READ))), "200");
    assert_eq!(status(&remote.get("/v1/status", Some(ADMIN))), "200");
    assert_eq!(status(&remote.act(ADMIN)), "200");
    assert_eq!(remote.acted.recv().unwrap(), "token ops");

    let refused = remote.act(READ);
    assert_eq!(status(&refused), "403");
    assert!(
        refused.contains("token prometheus has read-only access"),
        "{refused}"
    );
    for token in [None, Some("x"), Some(&ADMIN[1..]), Some("")] {
        let refused = remote.get("/v1/status", token);
        assert_eq!(status(&refused), "401", "{token:?}");
        assert!(refused.contains("www-authenticate: Bearer"), "{refused}");
        assert!(refused.contains("Authorization: Bearer TOKEN"), "{refused}");
    }
    assert!(
        remote.acted.try_recv().is_err(),
        "a refused request had an effect"
    );
}

#[test]
fn a_client_connects_over_tls_with_its_token() {
    let remote = Remote::start(&Limits::default());
    let file = |name: &str, text: &str| {
        let path = remote.directory.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let port = remote.server.tcp().unwrap().port();
    let url = format!("https://localhost:{port}");
    let trusted = remote.directory.path().join("api.pem");
    let of = |url: &str, token: &str, trusted: &std::path::Path| {
        let target = api::Remote::new(url, &file("token", token), trusted)?;
        assert!(!format!("{target:?}").contains(token.trim()), "{target:?}");
        Client::connect_to(Endpoint::Remote(Box::new(target)))
    };
    let client = of(&url, &format!("{ADMIN}\n"), &trusted).unwrap();
    assert_eq!(client.status().unwrap(), Status::default());
    let reload = Action::Reload { check: false };
    assert_eq!(client.act(&reload).unwrap().result, "done");
    assert_eq!(remote.acted.recv().unwrap(), "token ops");
    assert!(client.socket().is_none() && client.again().is_ok());

    let refused = of(&url, READ, &trusted)
        .unwrap()
        .act(&reload)
        .unwrap_err()
        .to_string();
    assert!(refused.contains("has read-only access"), "{refused}");
    let unknown = of(&url, &"0".repeat(32), &trusted).unwrap();
    assert!(matches!(unknown.status(), Err(ApiError::Refused(_))));
    // Another certificate than the one that is trusted.
    let other = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let other = file("other.pem", &other.cert.pem());
    let error = of(&url, ADMIN, &other).unwrap_err();
    assert!(matches!(error, ApiError::NoAnswer { .. }), "{error}");
    assert!(error.to_string().contains(&url), "{error}");
    for (url, token, trusted, told) in [
        ("http://localhost", ADMIN, &trusted, "write https://HOST:PORT"),
        ("https://localhost/v1", ADMIN, &trusted, "write https://HOST:PORT"),
        (
            url.as_str(),
            "admin ops 0123456789abcdef0123456789abcdef",
            &trusted,
            "one token of at least",
        ),
        (
            url.as_str(),
            ADMIN,
            &file("empty.pem", ""),
            "it has no certificate",
        ),
    ] {
        let error = of(url, token, trusted).unwrap_err().to_string();
        assert!(error.contains(told), "{error}");
    }
}

#[test]
fn guessing_tokens_is_slow_and_delays_no_other_client() {
    let limits = Limits {
        failed_tokens_per_s: 2,
        ..Limits::default()
    };
    let remote = Remote::start(&limits);
    let answers: Vec<String> = (0..6)
        .map(|n| remote.get("/v1/status", Some(&format!("guess {n}"))))
        .collect();
    assert!(
        answers.iter().any(|answer| answer.contains(" 429 ")),
        "{answers:?}"
    );
    assert!(remote.get("/v1/status", Some(READ)).contains(" 200 "));
}

/// Limits by which no time decides.
fn patient() -> Limits {
    let hour = Duration::from_secs(3600);
    Limits {
        head_time: hour,
        write_time: hour,
        ..Limits::default()
    }
}

/// The status of an answer on a connection that stays open, and whether it says that it will be closed.
fn answered(stream: &mut impl std::io::Read) -> (String, bool) {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        assert_eq!(stream.read(&mut byte).unwrap(), 1, "no answer: {head:?}");
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).unwrap();
    let status = head.split(' ').nth(1).unwrap_or_default().to_owned();
    (status, head.contains("connection: close"))
}

fn request(token: &str) -> String {
    format!("GET /v1/status HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\n\r\n")
}

/// Those that are refused have no place from then on, however long they stay, and one who has a token has.
#[test]
fn refused_connections_that_stay_open_delay_no_request() {
    let remote = Remote::start(&patient());
    let mut refused = Vec::new();
    for _ in 0..150 {
        let mut stream = remote.connect();
        stream.write_all(request("guess").as_bytes()).unwrap();
        let (status, closes) = answered(&mut stream);
        assert!(matches!(status.as_str(), "401" | "429") && closes, "{status}");
        refused.push(stream);
    }
    for _ in 0..3 {
        assert!(remote.get("/v1/status", Some(READ)).contains(" 200 "));
        assert!(remote.act(ADMIN).contains(" 200 "));
    }
    // The answer was the last that they heard.
    let mut rest = Vec::new();
    let _ended = refused[0].read_to_end(&mut rest);
    assert!(rest.ends_with(b"}"), "the problem itself");
}

/// Those that say nothing, before the handshake or after it, leave for others; those that have shown a token stay.
#[test]
fn idle_unauthenticated_connections_delay_no_request_and_close_no_authenticated_one() {
    let limits = patient();
    let remote = Remote::start(&limits);
    let mut known = remote.connect();
    known.write_all(request(READ).as_bytes()).unwrap();
    assert_eq!(answered(&mut known), ("200".to_owned(), false));
    let mut length = [0; 4096];
    let _body = known.read(&mut length).unwrap();
    let mut idle: Vec<TcpStream> = Vec::new();
    for _ in 0..500 {
        idle.push(TcpStream::connect(remote.server.tcp().unwrap()).unwrap());
    }
    let mut shaken = Vec::new();
    for _ in 0..10 {
        let mut stream = remote.connect();
        stream.conn.complete_io(&mut stream.sock).unwrap();
        shaken.push(stream);
        assert!(remote.act(ADMIN).contains(" 200 "));
    }
    // It was not closed for any of them.
    known.write_all(request(READ).as_bytes()).unwrap();
    assert_eq!(answered(&mut known).0, "200");
    // All but the last few of an address are.
    let open = idle.iter_mut().filter_map(|stream| {
        stream.set_nonblocking(true).unwrap();
        let closed = stream.read(&mut [0; 16]).is_ok_and(|count| count == 0);
        (!closed).then_some(())
    });
    assert!(open.count() <= limits.unauthenticated_per_address);
}

#[test]
fn nothing_is_said_without_tls() {
    let limits = Limits {
        head_time: Duration::from_millis(300),
        ..Limits::default()
    };
    let remote = Remote::start(&limits);
    let address = remote.server.tcp().unwrap();
    let mut plain = TcpStream::connect(address).unwrap();
    plain
        .write_all(b"GET /v1/status HTTP/1.1\r\nhost: x\r\n\r\n")
        .unwrap();
    let mut answer = Vec::new();
    let _ended = plain.read_to_end(&mut answer);
    assert!(!String::from_utf8_lossy(&answer).contains("HTTP"), "{answer:?}");
    // One that says nothing is let go.
    let mut mute = TcpStream::connect(address).unwrap();
    mute.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    assert_eq!(mute.read(&mut [0; 16]).unwrap_or(0), 0);
    assert!(remote.get("/v1/status", Some(READ)).contains(" 200 "));
}

#[test]
fn what_cannot_be_used_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let start = |tcp: &Tcp| {
        let (asker, _inbox) = request_queue();
        let socket = directory.path().join("api.sock");
        let settings = ServerSettings {
            tcp: Some(tcp.clone()),
            ..ServerSettings::on(&socket)
        };
        Server::start(settings, asker, EventLog::default()).map(drop)
    };
    let (good, _) = files(directory.path());
    start(&good).unwrap();
    let missing = directory.path().join("missing");
    let no_tokens = Tcp {
        tokens: missing.clone(),
        ..good.clone()
    };
    assert!(matches!(start(&no_tokens), Err(ApiError::Tokens { .. })));
    let no_certificate = Tcp {
        certificate: missing,
        ..good.clone()
    };
    assert!(matches!(
        start(&no_certificate),
        Err(ApiError::Certificate { .. })
    ));
    let empty = directory.path().join("empty.pem");
    std::fs::write(&empty, "").unwrap();
    let swapped = [
        Tcp {
            key: good.certificate.clone(),
            ..good.clone()
        },
        Tcp {
            certificate: empty,
            ..good.clone()
        },
    ];
    for wrong in swapped {
        assert!(
            matches!(start(&wrong), Err(ApiError::Certificate { .. })),
            "{wrong:?}"
        );
    }
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let in_use = Tcp {
        address: taken.local_addr().unwrap(),
        ..good
    };
    assert!(matches!(start(&in_use), Err(ApiError::System { .. })));
}
