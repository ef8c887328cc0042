//! Followers at a server that says what a real one says rarely: it throttles, forgets old versions, repeats itself.
//!
//! The server is a FAKE: what a real one does is in `api_server.rs`.
#![allow(clippy::unwrap_used, reason = "what goes wrong here fails the test")]

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use kubernetes::{Cluster, Followers, News, PortChoice, Wanted};
use serde_json::{Value, json};

const PATIENCE: Duration = Duration::from_secs(30);

/// What the server answers to one request.
enum Answer {
    /// A status and a body.
    Body(u16, Value),
    /// These lines, and then the end.
    Lines(Vec<Value>),
    /// Nothing more comes, until the test ends.
    Open(Receiver<()>),
}

/// Serves the answers in their order, and says what was asked.
fn serve(answers: Vec<Answer>) -> (String, Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (asked, requests) = channel();
    std::thread::spawn(move || {
        for answer in answers {
            let (connection, _) = listener.accept().unwrap();
            give(connection, answer, &asked);
        }
    });
    (url, requests)
}

fn give(mut connection: TcpStream, answer: Answer, asked: &Sender<String>) {
    let mut lines = BufReader::new(connection.try_clone().unwrap()).lines();
    let request = lines.next().unwrap().unwrap();
    while !lines.next().unwrap().unwrap().is_empty() {}
    // The test may have ended.
    let _ = asked.send(request);
    let head = |status: u16| {
        format!("HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n")
    };
    match answer {
        Answer::Body(status, body) => write!(connection, "{}{body}", head(status)).unwrap(),
        Answer::Lines(all) => {
            write!(connection, "{}", head(200)).unwrap();
            for line in all {
                writeln!(connection, "{line}").unwrap();
            }
        }
        Answer::Open(end) => {
            write!(connection, "{}", head(200)).unwrap();
            connection.flush().unwrap();
            let _ = end.recv();
        }
    }
}

fn slice(version: u32, addresses: &[&str]) -> Value {
    let endpoints: Vec<Value> = addresses.iter().map(|at| json!({ "addresses": [at] })).collect();
    json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": { "name": "web-1", "resourceVersion": version.to_string() },
        "addressType": "IPv4",
        "ports": [{ "name": "", "port": 80 }],
        "endpoints": endpoints,
    })
}

fn list(version: u32, addresses: &[&str]) -> Answer {
    let items = [slice(version, addresses)];
    Answer::Body(
        200,
        json!({ "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSliceList",
            "metadata": { "resourceVersion": version.to_string() }, "items": items }),
    )
}

fn status(code: u16, reason: &str, details: &Value) -> Value {
    json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": reason,
        "reason": reason, "code": code, "details": details })
}

#[test]
fn throttling_old_versions_and_repetitions_change_nothing() {
    let event = |kind: &str, object: Value| json!({ "type": kind, "object": object });
    let (end, is_over) = channel();
    let (url, requests) = serve(vec![
        Answer::Body(
            429,
            status(429, "TooManyRequests", &json!({ "retryAfterSeconds": 2 })),
        ),
        list(10, &["10.1.0.1"]),
        Answer::Lines(vec![
            event("ADDED", slice(10, &["10.1.0.1"])),
            event("MODIFIED", slice(11, &["10.1.0.1", "10.1.0.2"])),
            event("MODIFIED", slice(11, &["10.1.0.1", "10.1.0.2"])),
            event(
                "BOOKMARK",
                json!({ "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": { "resourceVersion": "15" } }),
            ),
        ]),
        list(15, &["10.1.0.1", "10.1.0.2"]),
        Answer::Lines(vec![event("ERROR", status(410, "Expired", &json!({})))]),
        list(20, &["10.1.0.2", "10.1.0.3"]),
        Answer::Open(is_over),
    ]);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("kubeconfig");
    let kubeconfig = json!({ "apiVersion": "v1", "kind": "Config", "current-context": "x",
        "clusters": [{ "name": "c", "cluster": { "server": url } }], "users": [{ "name": "u", "user": {} }],
        "contexts": [{ "name": "x", "context": { "cluster": "c", "user": "u" } }] });
    std::fs::write(&file, kubeconfig.to_string()).unwrap();
    let mut followers = Followers::default();
    let wanted = Wanted {
        cluster: Cluster {
            kubeconfig: Some(file),
            context: None,
        },
        namespace: "shop".to_owned(),
        service: "web".to_owned(),
        port: PortChoice::Only,
        is_ipv4: true,
    };
    let since = Instant::now();
    followers.follow([("web".to_owned(), wanted)]).unwrap();
    let mut said = Vec::new();
    let mut listed = None;
    while said.last().is_none_or(|last| last != "10.1.0.2:80 10.1.0.3:80") {
        assert!(since.elapsed() < PATIENCE, "{said:?}");
        for (_, news) in followers.news() {
            said.push(match news {
                News::List(list, problem) => {
                    assert_eq!(problem, None);
                    listed.get_or_insert_with(|| since.elapsed());
                    let all: Vec<String> = list.iter().map(|of| of.at.to_string()).collect();
                    all.join(" ")
                }
                News::Away(reason) => reason,
                News::Back(_) => "back".to_owned(),
            });
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(
        listed.is_some_and(|after| after >= Duration::from_secs(2)),
        "{listed:?}"
    );
    assert!(said[0].contains("refuses: TooManyRequests (429)"), "{said:?}");
    // A list that is replaced before anybody asks is no news: the first two may be one.
    let is_expected = |of: &&String| {
        ![
            "10.1.0.1:80",
            "10.1.0.1:80 10.1.0.2:80",
            "10.1.0.2:80 10.1.0.3:80",
            "back",
        ]
        .contains(&of.as_str())
    };
    assert_eq!(said[1..].iter().find(is_expected), None, "{said:?}");
    assert_eq!(said.iter().filter(|of| *of == "back").count(), 1, "{said:?}");
    let asked: Vec<String> = std::iter::from_fn(|| requests.recv_timeout(Duration::from_secs(5)).ok())
        .take(7)
        .collect();
    let versions: Vec<Option<&str>> = asked
        .iter()
        .map(|of| {
            let (_, rest) = of.split_once("resourceVersion=")?;
            rest.split(['&', ' ']).next()
        })
        .collect();
    // Lists without a version, and watches from where the list before was.
    assert_eq!(
        versions,
        [None, None, Some("10"), None, Some("15"), None, Some("20")],
        "{asked:#?}"
    );
    let of_service = "labelSelector=kubernetes.io%2Fservice-name%3Dweb";
    assert!(
        asked
            .iter()
            .all(|of| of.contains("/namespaces/shop/endpointslices") && of.contains(of_service)),
        "{asked:#?}"
    );
    drop(end);
}
