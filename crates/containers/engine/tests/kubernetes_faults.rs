//! The engine `kubernetes` at a server that says what a real one says rarely: it throttles, repeats itself, is late, and
//! drops watches.
//!
//! The server is a FAKE: what a real one does is in `conformance.rs`.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "what goes wrong here fails the test"
)]

mod support;

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use engine::{
    ContainerSpec, EngineError, EngineEvent, KubernetesConfig, KubernetesEngine, Request, Task, TaskAsk,
};
use kubernetes::Cluster;
use model::{Nanos, PodOptions};
use serde_json::{Value, json};
use support::Told;

/// What the fake says.
#[derive(Default)]
struct Said {
    /// The Pods of a list.
    pods: Vec<Value>,
    /// How many creates and lists are still refused, as asked too often.
    throttled_creates: u32,
    throttled_lists: u32,
    lists: u32,
    /// The open watch.
    watch: Option<Sender<Value>>,
}

type Shared = Arc<Mutex<Said>>;

fn serve(shared: &Shared) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let shared = Arc::clone(shared);
    std::thread::spawn(move || {
        for connection in listener.incoming() {
            let shared = Arc::clone(&shared);
            std::thread::spawn(move || give(connection.unwrap(), &shared));
        }
    });
    url
}

fn give(mut connection: TcpStream, shared: &Shared) {
    let mut reader = BufReader::new(connection.try_clone().unwrap());
    let mut request = String::new();
    reader.read_line(&mut request).unwrap();
    let mut length = 0;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        if line.trim().is_empty() {
            break;
        }
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    let (status, answer, events) = answer(&request, &body, shared);
    let head = format!("HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n");
    let _ = write!(connection, "{head}{answer}");
    let _ = connection.flush();
    for event in events.iter().flatten() {
        if writeln!(connection, "{event}").is_err() {
            return;
        }
    }
}

fn answer(request: &str, body: &[u8], shared: &Shared) -> (u16, String, Option<Receiver<Value>>) {
    let often = json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "too many requests",
        "reason": "TooManyRequests", "code": 429, "details": { "retryAfterSeconds": 1 } });
    let mut said = shared.lock().unwrap();
    if request.starts_with("GET /version") {
        let version = json!({ "major": "1", "minor": "34", "gitVersion": "", "gitCommit": "", "gitTreeState": "",
            "buildDate": "", "goVersion": "", "compiler": "", "platform": "" });
        return (200, version.to_string(), None);
    }
    if request.starts_with("POST") {
        if said.throttled_creates > 0 {
            said.throttled_creates -= 1;
            return (429, often.to_string(), None);
        }
        let mut pod: Value = serde_json::from_slice(body).unwrap();
        pod["metadata"]["uid"] = json!("uid-1");
        said.pods = vec![pod.clone()];
        return (201, pod.to_string(), None);
    }
    if request.starts_with("DELETE") {
        let none = json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404 });
        return (404, none.to_string(), None);
    }
    if request.contains("watch=") {
        let (events, sent) = channel();
        said.watch = Some(events);
        return (200, String::new(), Some(sent));
    }
    said.lists += 1;
    if said.throttled_lists > 0 {
        said.throttled_lists -= 1;
        return (429, often.to_string(), None);
    }
    let list = json!({ "kind": "PodList", "apiVersion": "v1", "metadata": { "resourceVersion": "1" }, "items": said.pods });
    (200, list.to_string(), None)
}

fn with(pod: &Value, state: Value, phase: &str) -> Value {
    let mut pod = pod.clone();
    pod["status"] = json!({ "phase": phase, "podIP": "10.1.0.5", "containerStatuses": [{ "name": "instance", "image": "",
        "imageID": "", "ready": true, "restartCount": 0, "state": state }] });
    pod
}

#[test]
fn kubernetes_throttles_repeats_itself_and_drops_watches() {
    let shared = Shared::default();
    let url = serve(&shared);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("kubeconfig");
    let kubeconfig = json!({ "apiVersion": "v1", "kind": "Config", "current-context": "x",
        "clusters": [{ "name": "c", "cluster": { "server": url } }], "users": [{ "name": "u", "user": {} }],
        "contexts": [{ "name": "x", "context": { "cluster": "c", "user": "u" } }] });
    std::fs::write(&file, kubeconfig.to_string()).unwrap();
    let cluster = Cluster {
        kubeconfig: Some(file),
        context: None,
    };
    let mut told = Told::new(Box::new(
        KubernetesEngine::start(KubernetesConfig::at(cluster)).unwrap(),
    ));
    let mut spec = ContainerSpec::new("inco-a-1", "a");
    spec.labels.insert("inco.test".to_owned(), "a".to_owned());
    spec.task = Some(Box::new(Task {
        args: Vec::new(),
        port: 80,
        grace: Nanos::from_secs(1),
        ask: TaskAsk::Kubernetes(PodOptions::default()),
    }));
    let create = Request::Create(Box::new(spec));
    // What is refused because too much is asked works later, and is no outage.
    shared.lock().unwrap().throttled_creates = 1;
    let error = told.ask(create.clone()).unwrap_err();
    assert!(
        matches!(error, EngineError::Unavailable { .. }) && error.is_transient(),
        "{error}"
    );
    let ticket = told.submit(create);
    let pod = until(&shared, |said| said.pods.first().cloned());
    let send = |kind: &str, pod: &Value| {
        let event = json!({ "type": kind, "object": pod });
        until(&shared, |said| said.watch.clone()).send(event).unwrap();
    };
    let begins = with(
        &pod,
        json!({ "waiting": { "reason": "ContainerCreating" } }),
        "Pending",
    );
    let runs = with(&pod, json!({ "running": {} }), "Running");
    // An object of that name with another uid is another one.
    let mut other = with(&pod, json!({ "terminated": { "exitCode": 1 } }), "Failed");
    other["metadata"]["uid"] = json!("uid-0");
    for (kind, pod) in [
        ("ADDED", &begins),
        ("DELETED", &other),
        ("MODIFIED", &runs),
        ("MODIFIED", &runs),
        ("MODIFIED", &begins),
    ] {
        send(kind, pod);
    }
    let Ok(EngineEvent::Created { address, .. }) = told.answer(ticket) else {
        panic!("not created");
    };
    assert_eq!(address, Some("10.1.0.5:80".parse().unwrap()));

    // The watch breaks, and lists are refused for a while. What has happened meanwhile is in the list that comes then.
    let ended = with(
        &runs,
        json!({ "terminated": { "exitCode": 3, "message": "last words" } }),
        "Failed",
    );
    let lists = {
        let mut said = shared.lock().unwrap();
        (said.pods, said.throttled_lists, said.watch) = (vec![ended.clone()], 2, None);
        said.lists
    };
    let (exit, output, _) = told.exit_of("inco-a-1");
    assert_eq!((exit.status, output.as_str()), (Some(3), "last words"));
    assert!(shared.lock().unwrap().lists >= lists + 3);
    // An end is final, however late and often something else is said.
    for (kind, pod) in [
        ("MODIFIED", &runs),
        ("MODIFIED", &ended),
        ("DELETED", &ended),
        ("DELETED", &ended),
        ("ADDED", &runs),
    ] {
        send(kind, pod);
    }
    shared.lock().unwrap().pods.clear();
    told.remove("inco-a-1").unwrap();
    // Neither an outage nor a second end was told.
    assert_eq!(told.events, vec![]);
}

/// Waits until something is so.
fn until<T>(shared: &Shared, mut of: impl FnMut(&Said) -> Option<T>) -> T {
    let since = std::time::Instant::now();
    loop {
        if let Some(found) = of(&shared.lock().unwrap()) {
            return found;
        }
        assert!(since.elapsed() < support::PATIENCE);
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}
