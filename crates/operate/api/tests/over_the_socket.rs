//! Server and client over a real socket, with a control loop that is a fake.

#![allow(clippy::panic, clippy::unwrap_used, reason = "a test fails by it")]

use std::io::{Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use api::counters::Counters;
use api::types::{
    FlowExplanation, FlowFilter, FlowPage, FlowRow, InstanceRow, LogPiece, LogRow, Outcome, Policies,
    Problem, Refusal, ServiceRow, Snapshot, Status,
};
use api::{ApiError, Client, ControlRequest, EventLog, Limits, Server, ServerSettings, request_queue};
use model::{Action, Event, EventKind, InstanceId, InstanceState, Nanos, Setting};

fn logs(service: &str) -> Result<Vec<LogRow>, Refusal> {
    match service {
        "web" => Ok(vec![LogRow {
            instance: InstanceId(3),
            next: 8,
            ..LogRow::default()
        }]),
        _ => Err(Refusal::new(format!("unknown service {service:?}"), "")),
    }
}

fn log(service: &str, instance: InstanceId, from: u64) -> Result<LogPiece, Refusal> {
    logs(service)?;
    Ok(LogPiece {
        from,
        next: 8,
        text: format!("{service} {instance}"),
        end: true,
    })
}

/// A server whose control loop says what is known here.
struct Fake {
    server: Option<Server>,
    events: EventLog,
    /// What was asked for, in order.
    asked: mpsc::Receiver<String>,
    control: Option<JoinHandle<()>>,
    directory: tempfile::TempDir,
}

impl Fake {
    fn start() -> Fake {
        let directory = tempfile::tempdir().unwrap();
        let (asker, mut inbox) = request_queue();
        let (note, asked) = mpsc::channel();
        let control = std::thread::spawn(move || {
            while let Some(control_request) = inbox.wait() {
                match control_request {
                    ControlRequest::Status(answer) => answer.give(Status {
                        version: "0.1.0".to_owned(),
                        ..Status::default()
                    }),
                    ControlRequest::Services(answer) => {
                        answer.give(vec![ServiceRow {
                            name: "web".to_owned(),
                            ..ServiceRow::default()
                        }]);
                    }
                    ControlRequest::Settings(service, answer) => answer.give(match service.as_str() {
                        "web" => Ok(vec![Setting {
                            key: "fit".to_owned(),
                            value: "0.8".to_owned(),
                            is_written: true,
                        }]),
                        _ => Err(Refusal::new(format!("unknown service {service:?}"), "")),
                    }),
                    ControlRequest::Logs(service, answer) => answer.give(logs(&service)),
                    ControlRequest::Log(service, instance, from, answer) => {
                        answer.give(log(&service, instance, from));
                    }
                    ControlRequest::Instances(answer) => answer.give(vec![instance(3), instance(4)]),
                    ControlRequest::Actors(answer) => answer.give(Vec::new()),
                    ControlRequest::Flows(filter, answer) => {
                        let _ = note.send(format!("{filter:?}"));
                        answer.give(if filter.service.as_deref() == Some("none") {
                            Err(Refusal::new("unknown service \"none\"", "see `inco services`"))
                        } else {
                            Ok(FlowPage {
                                flows: vec![flow(); filter.limit() as usize],
                                complete: false,
                            })
                        });
                    }
                    ControlRequest::Snapshot(answer) => answer.give(Snapshot {
                        unix_ms: 7,
                        instances: vec![instance(3)],
                        ..Snapshot::default()
                    }),
                    ControlRequest::Explain(flow, answer) => answer.give(Ok(FlowExplanation {
                        flow,
                        why: vec!["because".to_owned()],
                        ..FlowExplanation::default()
                    })),
                    ControlRequest::Policies(answer) => answer.give(Policies::default()),
                    ControlRequest::Counters(answer) => answer.give(Box::new(Counters {
                        version: "0.1.0".to_owned(),
                        ..Counters::default()
                    })),
                    ControlRequest::Capture(_, _, answer) => {
                        answer.give(Err(Refusal::new(
                            "this switch cannot capture packets",
                            "use tcpdump",
                        )));
                    }
                    ControlRequest::Act(action, caller, answer) => {
                        let _ = note.send(format!("{action:?} by {}", caller.name));
                        match action {
                            // A loop that goes away without an answer.
                            Action::Undrain { .. } => drop(answer),
                            Action::Drain {
                                instance: InstanceId(99),
                            } => {
                                answer.give(Err(Refusal::new("unknown instance 99", "see `inco instances`")));
                            }
                            _ => answer.give(Ok(Outcome::new(action.name().to_owned()))),
                        }
                    }
                }
            }
        });
        let events = EventLog::default();
        let server = Server::start(
            ServerSettings::on(directory.path().join("run/api.sock")),
            asker,
            events.clone(),
        )
        .unwrap();
        Fake {
            server: Some(server),
            events,
            asked,
            control: Some(control),
            directory,
        }
    }

    fn socket(&self) -> PathBuf {
        self.directory.path().join("run/api.sock")
    }

    fn client(&self) -> Client {
        Client::connect(&self.socket()).unwrap()
    }

    /// Sends a request as it is and gives what comes back.
    fn raw(&self, request: &str) -> String {
        let mut stream = UnixStream::connect(self.socket()).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        drop(self.server.take());
        if let Some(control) = self.control.take() {
            control.join().unwrap();
        }
    }
}

fn instance(id: u32) -> InstanceRow {
    InstanceRow {
        id: InstanceId(id),
        service: "web".to_owned(),
        place: None,
        core: None,
        state: InstanceState::Active,
        state_ms: 10,
        slot: Some(1),
        container: Some("inco-web-3".to_owned()),
        address: None,
        name: None,
        pid: Some(17),
        adopted: false,
        to_pps: 1.0,
        back_pps: 1.0,
        to_packets: 1,
        back_packets: 1,
        live_flows: 1,
        ring_occupancy: 0.5,
        dropped_packets: 0,
        capacity_pps: None,
        cpu_quota: Some(0.1),
        cpu: Some(0.53),
        busy: None,
        gap_us: None,
        ring_wait_us: None,
        function_us: None,
        held_up: 0.0,
        watts: None,
        memory_bytes: None,
        report: None,
        reason: "ready".to_owned(),
    }
}

fn flow() -> FlowRow {
    FlowRow {
        pps: None,
        error_pps: None,
        rule: None,
        flow: "tcp 10.0.0.1:1 > 10.0.0.2:80".to_owned(),
        service: "web".to_owned(),
        forward: Some(InstanceId(3)),
        reverse: Some(InstanceId(3)),
        since_unix_ms: [Some(1_700_000_000_000); 2],
        packets: [1, 2],
        bytes: [3, 4],
        idle_ms: 5,
        state: "established".to_owned(),
    }
}

fn event(sequence: u64) -> Event {
    Event {
        sequence,
        at: Nanos(sequence),
        unix_ms: 1,
        service: Some("web".to_owned()),
        instance: Some(InstanceId(3)),
        kind: EventKind::State {
            from: InstanceState::Standby,
            to: InstanceState::Active,
            reason: "scaled out".to_owned(),
        },
    }
}

#[test]
fn each_request_gets_its_answer() {
    let fake = Fake::start();
    let client = fake.client();
    assert_eq!(client.status().unwrap().version, "0.1.0");
    assert_eq!(client.services().unwrap()[0].name, "web");
    assert_eq!(client.instances().unwrap(), [instance(3), instance(4)]);
    let filter = FlowFilter {
        service: Some("w b&c".to_owned()),
        instance: Some(InstanceId(3)),
        address: Some("2001:db8::1".parse().unwrap()),
        flow: Some("tcp 10.0.0.1:1 > 10.0.0.2:80".to_owned()),
        top: None,
        limit: Some(2),
    };
    let page = client.flows(&filter).unwrap();
    assert_eq!((page.flows, page.complete), (vec![flow(), flow()], false));
    assert_eq!(fake.asked.recv().unwrap(), format!("{filter:?}"));
    let action = Action::Scale {
        service: "web".to_owned(),
        instances: Some(5),
    };
    assert_eq!(client.act(&action).unwrap().result, "scale");
    let uid = std::fs::metadata("/proc/self").unwrap().uid();
    assert_eq!(fake.asked.recv().unwrap(), format!("{action:?} by uid {uid}"));
    assert_eq!(client.snapshot().unwrap().instances, [instance(3)]);
    assert_eq!(client.policies().unwrap(), Policies::default());
    // The first snapshot is taken by a thread of the server.
    let since = Instant::now();
    let history = loop {
        let history = client.history(900).unwrap();
        if !history.unix_ms.is_empty() {
            break history;
        }
        assert!(since.elapsed() < Duration::from_secs(20), "no snapshot");
        std::thread::yield_now();
    };
    assert_eq!(history.unix_ms.first(), Some(&7));
    assert_eq!(history.instances[0].id, InstanceId(3));
    let refused = client.history(901).unwrap_err().to_string();
    assert!(refused.contains("901 is not between 1 and 900"), "{refused}");
    assert_eq!(client.counters().unwrap().version, "0.1.0");
}

#[test]
fn a_flow_is_explained_with_what_happened_to_it() {
    let fake = Fake::start();
    let action = |sequence, flow: &str| Event {
        kind: EventKind::Action {
            action: "purge".to_owned(),
            request: serde_json::json!({"action": "purge", "flow": flow}),
            by: "uid 0".to_owned(),
            refused: false,
            result: String::new(),
        },
        ..event(sequence)
    };
    fake.events.push(action(1, "tcp 10.0.0.1:1 > 10.0.0.2:80"));
    fake.events.push(action(2, "tcp 10.0.0.1:1 > 10.0.0.2:81"));
    fake.events.push(action(3, "tcp 10.0.0.2:80 > 10.0.0.1:1"));
    let client = fake.client();
    let explanation = client.explain_flow("tcp 10.0.0.1:1 > 10.0.0.2:80").unwrap();
    assert_eq!(explanation.why, ["because"]);
    let numbers: Vec<u64> = explanation.events.iter().map(|event| event.sequence).collect();
    assert_eq!(numbers, [1, 3], "both directions are the same flow");
    assert!(
        client
            .explain_flow("tcp")
            .unwrap_err()
            .to_string()
            .contains("is not a flow")
    );
}

#[test]
fn one_of_many_is_found_by_its_name() {
    let fake = Fake::start();
    let get = |path: &str| {
        fake.raw(&format!(
            "GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
        ))
    };
    assert!(get("/v1/services/web").contains("\"name\":\"web\""));
    assert!(get("/v1/instances/4").contains("\"id\":4"));
    for (path, status, said) in [
        ("/v1/services/none", 404, "known services: web"),
        ("/v1/instances/5", 404, "unknown instance 5"),
        ("/v1/instances/x", 400, "correct the path"),
    ] {
        let answer = get(path);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
        assert!(
            answer.contains("content-type: application/problem+json"),
            "{answer}"
        );
        assert!(answer.contains(said), "{answer}");
    }
}

#[test]
fn the_output_of_containers_is_returned_from_a_position_on() {
    let fake = Fake::start();
    let client = fake.client();
    let rows = client.logs("web").unwrap();
    assert_eq!(
        (rows.len(), rows[0].instance, rows[0].next),
        (1, InstanceId(3), 8)
    );
    let piece = client.log("w b&c", InstanceId(3), 5);
    assert!(
        matches!(piece, Err(ApiError::Refused(_))),
        "there is no such service"
    );
    let piece = client.log("web", InstanceId(3), 5).unwrap();
    assert_eq!((piece.from, piece.next, piece.text.as_str()), (5, 8, "web 3"));
    for (path, status) in [
        ("/v1/services/none/logs", "404"),
        ("/v1/services/none/logs/3", "404"),
        ("/v1/services/web/logs/three", "400"),
        ("/v1/services/web/logs/3?from=-1", "400"),
    ] {
        let head = fake.raw(&format!(
            "GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
        ));
        assert!(head.starts_with(&format!("HTTP/1.1 {status}")), "{path}: {head}");
    }
}

#[test]
fn a_stream_sends_snapshots_and_events_and_resumes_at_its_position() {
    let fake = Fake::start();
    (1..=3).for_each(|sequence| fake.events.push(event(sequence)));
    let mut stream = UnixStream::connect(fake.socket()).unwrap();
    stream
        .write_all(b"GET /v1/stream?last=3 HTTP/1.1\r\nhost: x\r\nlast-event-id: 1\r\n\r\n")
        .unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let mut heard = String::new();
    let mut hear = |until: &str| {
        let mut buffer = [0; 4096];
        while !heard.contains(until) {
            let count = stream.read(&mut buffer).unwrap();
            assert!(count > 0, "the stream ended: {heard}");
            heard.push_str(std::str::from_utf8(&buffer[..count]).unwrap());
        }
        heard.clone()
    };
    let first = hear("id: 3");
    assert!(first.contains("content-type: text/event-stream"), "{first}");
    assert!(
        first.contains("event: happened") && first.contains("id: 2"),
        "{first}"
    );
    assert!(!first.contains("id: 1\n"), "{first}");
    hear("event: snapshot\ndata: {\"unix_ms\":7");
    fake.events.push(event(4));
    assert!(hear("id: 4").contains("\"sequence\":4"));
}

#[test]
fn a_client_that_reads_nothing_is_closed_and_delays_no_other() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("api.sock");
    let (asker, mut inbox) = request_queue();
    let limits = Limits {
        write_time: Duration::from_millis(300),
        head_time: Duration::from_millis(300),
        connections: 2,
        ..Limits::default()
    };
    let events = EventLog::default();
    let _server = Server::start(
        ServerSettings {
            limits,
            ..ServerSettings::on(&socket)
        },
        asker,
        events.clone(),
    )
    .unwrap();
    let long = Event {
        kind: EventKind::Failure {
            what: "x".repeat(10_000),
            reason: String::new(),
        },
        ..event(1)
    };
    (1..=1000).for_each(|sequence| {
        events.push(Event {
            sequence,
            ..long.clone()
        })
    });
    // One takes nothing of ten megabytes, one says nothing: both have the only two places.
    let mut deaf = UnixStream::connect(&socket).unwrap();
    deaf.write_all(b"GET /v1/stream?last=1000 HTTP/1.1\r\nhost: x\r\n\r\n")
        .unwrap();
    let mut mute = UnixStream::connect(&socket).unwrap();
    mute.write_all(b"GET /v1/sta").unwrap();
    let late = std::thread::spawn({
        let socket = socket.clone();
        move || Client::connect(&socket).unwrap().status().unwrap().version
    });
    loop {
        match inbox.wait() {
            Some(ControlRequest::Status(answer)) => {
                answer.give(Status {
                    version: "late".to_owned(),
                    ..Status::default()
                });
                break;
            }
            Some(ControlRequest::Snapshot(answer)) => answer.give(Snapshot::default()),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(late.join().unwrap(), "late");
}

#[test]
fn too_many_requests_are_refused_and_counted() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("api.sock");
    let (asker, mut inbox) = request_queue();
    let limits = Limits {
        requests_per_s: 1,
        ..Limits::default()
    };
    let _server = Server::start(
        ServerSettings {
            limits,
            ..ServerSettings::on(&socket)
        },
        asker,
        EventLog::default(),
    )
    .unwrap();
    std::thread::spawn(move || {
        while let Some(control_request) = inbox.wait() {
            if let ControlRequest::Counters(answer) = control_request {
                answer.give(Box::default());
            }
        }
    });
    let get = |path: &str| {
        let mut stream = UnixStream::connect(&socket).unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    let answers: Vec<String> = (0..10).map(|_| get("/v1/openapi.json")).collect();
    let refused = answers
        .iter()
        .find(|answer| answer.starts_with("HTTP/1.1 429 "))
        .unwrap();
    assert!(refused.contains("retry-after: 1"), "{refused}");
    assert!(refused.contains("send fewer requests"), "{refused}");
    let deadline = Instant::now() + Duration::from_secs(20);
    let counted = loop {
        let answer = get("/metrics");
        if answer.starts_with("HTTP/1.1 200 ") {
            break answer;
        }
        assert!(Instant::now() < deadline, "{answer}");
    };
    assert!(
        counted.contains("inco_api_requests_total{status=\"429\"}"),
        "{counted}"
    );
    assert!(
        counted.contains("inco_api_connections{listener=\"unix\"} 1"),
        "{counted}"
    );
}

#[test]
fn a_refusal_contains_the_remedy() {
    let fake = Fake::start();
    let client = fake.client();
    let refused = |result: Result<Outcome, ApiError>| match result {
        Err(ApiError::Refused(refusal)) => refusal.to_string(),
        other => panic!("{other:?}"),
    };
    assert_eq!(
        refused(client.act(&Action::Drain {
            instance: InstanceId(99)
        })),
        "unknown instance 99; see `inco instances`"
    );
    assert!(
        refused(client.act(&Action::Purge {
            instance: None,
            flow: None
        }))
        .contains("send exactly one of them")
    );
    let bad = Action::Purge {
        instance: None,
        flow: Some("tcp".to_owned()),
    };
    assert!(refused(client.act(&bad)).contains("\"tcp\" is not a flow"));
    assert_eq!(
        refused(client.act(&Action::Undrain {
            instance: InstanceId(3)
        })),
        "inco is stopping; start it with `inco run -f inco.toml`"
    );
    let none = FlowFilter {
        service: Some("none".to_owned()),
        ..FlowFilter::default()
    };
    assert!(
        client
            .flows(&none)
            .unwrap_err()
            .to_string()
            .contains("unknown service \"none\"")
    );
}

#[test]
fn events_are_listed_and_followed() {
    let fake = Fake::start();
    (1..=3).for_each(|sequence| fake.events.push(event(sequence)));
    let client = fake.client();
    assert_eq!(client.events(2).unwrap(), [event(2), event(3)]);
    let mut stream = client.follow_events(1).unwrap();
    assert_eq!(stream.next().unwrap().unwrap(), event(3));
    fake.events.push(event(4));
    assert_eq!(stream.next().unwrap().unwrap(), event(4));
    let events = fake.events.clone();
    let later = std::thread::spawn(move || events.push(event(5)));
    assert_eq!(stream.next().unwrap().unwrap(), event(5));
    later.join().unwrap();
}

#[test]
fn a_follower_without_a_position_starts_with_new_events() {
    let fake = Fake::start();
    fake.events.push(event(1));
    let client = fake.client();
    let mut stream = client.follow_events(0).unwrap();
    fake.events.push(event(2));
    assert_eq!(stream.next().unwrap().unwrap(), event(2));
}

#[test]
fn a_follower_gets_the_end() {
    let mut fake = Fake::start();
    let client = fake.client();
    let mut stream = client.follow_events(0).unwrap();
    drop(fake.server.take());
    assert!(stream.next().is_none());
}

#[test]
fn errors_are_json_whatever_is_sent() {
    let fake = Fake::start();
    let get = |path: &str| {
        fake.raw(&format!(
            "GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
        ))
    };
    let post = |body: &str| {
        let length = body.len();
        fake.raw(&format!(
            "POST /v1/actions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\n\
             content-length: {length}\r\n\r\n{body}"
        ))
    };
    let cases = [
        (get("/nothing"), 404, "unknown path"),
        (get("/v1/actions"), 405, "POST /v1/actions for actions"),
        (get("/v1/flows?colour=red"), 400, "unknown field"),
        (get("/v1/flows?instance=three"), 400, "correct the query"),
        (get("/v1/events?follow=maybe"), 400, "correct the query"),
        (post("{"), 400, "send JSON such as"),
        (post("{\"action\":\"explode\"}"), 422, "unknown variant"),
        (
            post("{\"action\":\"drain\",\"instance\":3,\"now\":true}"),
            422,
            "unknown field",
        ),
        (
            post("{\"action\":\"drain\",\"instance\":3.5}"),
            422,
            "floating point",
        ),
        (post(&"x".repeat(70_000)), 413, "send JSON such as"),
    ];
    for (answer, status, said) in cases {
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
        let body = answer.split("\r\n\r\n").nth(1).unwrap();
        let problem: Problem = serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {answer}"));
        assert_eq!((problem.status, problem.kind.as_str()), (status, "about:blank"));
        let refusal = Refusal::from(problem);
        assert!(refusal.to_string().contains(said), "{refusal} has no {said}");
    }
    // An integer of JSON Schema.
    let done = post("{\"action\":\"drain\",\"instance\":3.0}");
    assert!(done.starts_with("HTTP/1.1 200 "), "{done}");
}

#[test]
fn the_socket_is_for_its_owner_and_group_and_goes_with_the_server() {
    let fake = Fake::start();
    let socket = fake.socket();
    let mode = std::fs::metadata(&socket).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o660);
    let (asker, _inbox) = request_queue();
    match Server::start(ServerSettings::on(&socket), asker, EventLog::default()) {
        Err(error @ ApiError::InUse { .. }) => {
            assert!(error.to_string().contains("stop it with `inco stop`"))
        }
        other => panic!("{other:?}"),
    }
    let names: Vec<_> = std::fs::read_dir(socket.parent().unwrap())
        .unwrap()
        .map(|e| e.unwrap().file_name())
        .collect();
    assert_eq!(names, ["api.sock"]);
    drop(fake);
    assert!(!socket.exists());
}

#[test]
fn a_file_where_the_socket_should_be_is_kept() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("notes");
    std::fs::write(&file, "a").unwrap();
    let (asker, _inbox) = request_queue();
    let refused = Server::start(ServerSettings::on(&file), asker, EventLog::default());
    assert!(matches!(refused, Err(ApiError::NotASocket { .. })), "{refused:?}");
    assert_eq!(std::fs::read(&file).unwrap(), b"a");
}

#[test]
fn a_socket_that_a_dead_inco_left_is_replaced() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("api.sock");
    drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
    assert!(matches!(
        Client::connect(&socket),
        Err(ApiError::NotRunning { .. })
    ));
    let (asker, _inbox) = request_queue();
    let server = Server::start(ServerSettings::on(&socket), asker, EventLog::default()).unwrap();
    Client::connect(&socket).unwrap();
    assert_eq!(server.socket(), socket);
}

#[test]
fn without_inco_the_client_names_the_command_that_starts_it() {
    let error = Client::connect(std::path::Path::new("/nonexistent/api.sock")).unwrap_err();
    assert_eq!(
        error.to_string(),
        "inco is not running (nothing listens on /nonexistent/api.sock): start it with `inco run -f inco.toml`"
    );
}

/// Well is a loop that answers; ready is a loop whose services have their instances.
#[test]
fn probes_report_health_and_readiness() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("api.sock");
    let (asker, mut inbox) = request_queue();
    let _server = Server::start(ServerSettings::on(&socket), asker, EventLog::default()).unwrap();
    let row = |name: &str, active, failing: Option<&str>| ServiceRow {
        name: name.to_owned(),
        active,
        min: 2,
        failing: failing.map(str::to_owned),
        ..ServiceRow::default()
    };
    let mut ask = |path: &str, rows: Vec<ServiceRow>| {
        let mut stream = UnixStream::connect(&socket).unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        // The history asks for snapshots beside it.
        let answer = loop {
            match inbox.wait() {
                Some(ControlRequest::Services(answer)) => break answer,
                Some(_) => {}
                None => panic!("no question"),
            }
        };
        answer.give(rows);
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    let lacks = || {
        vec![
            row("web", 2, None),
            row("dns", 1, Some("crash loop (3 failures, last: exit 3)")),
        ]
    };
    let well = ask("/healthz", lacks());
    assert!(
        well.starts_with("HTTP/1.1 200") && well.ends_with("\r\nok\n"),
        "{well}"
    );
    let lacking = ask("/readyz", lacks());
    assert!(lacking.starts_with("HTTP/1.1 503"), "{lacking}");
    assert!(
        lacking.contains("dns has 1 active instances of at least 2: crash loop (3 failures, last: exit 3)")
            && !lacking.contains("web"),
        "{lacking}"
    );
    let ready = ask("/readyz", vec![row("web", 2, None), row("dns", 3, None)]);
    assert!(ready.starts_with("HTTP/1.1 200"), "{ready}");
}

/// A loop that leaves answers nobody after its door is closed and its clients have their answers. A client that connected
/// before gets its answer from this server, a later one from the next.
#[test]
fn a_server_that_is_handed_over_leaves_no_client_without_an_answer() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("api.sock");
    let is_over = AtomicBool::new(false);
    let answered = AtomicU32::new(0);
    std::thread::scope(|scope| {
        let asking = || {
            while !is_over.load(Ordering::Relaxed) {
                let client = Client::connect(&socket).unwrap();
                client.services().unwrap();
                answered.fetch_add(1, Ordering::Relaxed);
            }
        };
        let mut settings = ServerSettings::on(&socket);
        let mut clients = Vec::new();
        for turn in 0..100 {
            let (asker, mut inbox) = request_queue();
            let server = Server::start(settings, asker, EventLog::default()).unwrap();
            if clients.is_empty() {
                clients = (0..4).map(|_| scope.spawn(asking)).collect();
            }
            let door = server.door();
            let mut given = 0;
            loop {
                while let Some(request) = inbox.take() {
                    if let ControlRequest::Services(answer) = request {
                        answer.give(Vec::new());
                        given += 1;
                    }
                }
                if given >= turn % 7 {
                    door.close();
                    if door.is_at_rest() {
                        break;
                    }
                }
            }
            settings = ServerSettings {
                listeners: server.hand_over(),
                ..ServerSettings::on(&socket)
            };
        }
        is_over.store(true, Ordering::Relaxed);
        let (asker, mut inbox) = request_queue();
        let _server = Server::start(settings, asker, EventLog::default()).unwrap();
        while !clients.iter().all(|client| client.is_finished()) {
            while let Some(request) = inbox.take() {
                if let ControlRequest::Services(answer) = request {
                    answer.give(Vec::new());
                }
            }
            std::thread::yield_now();
        }
    });
    assert!(answered.into_inner() > 100);
}

/// Unread streams have their own limit: requests are answered while that limit is reached.
#[test]
fn unread_streams_delay_no_request() {
    let hour = Duration::from_secs(3600);
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("api.sock");
    let (asker, mut inbox) = request_queue();
    let limits = Limits {
        head_time: hour,
        write_time: hour,
        ..Limits::default()
    };
    let _server = Server::start(
        ServerSettings {
            limits: limits.clone(),
            ..ServerSettings::on(&socket)
        },
        asker,
        EventLog::default(),
    )
    .unwrap();
    std::thread::spawn(move || {
        while let Some(control_request) = inbox.wait() {
            match control_request {
                ControlRequest::Status(answer) => answer.give(Status::default()),
                ControlRequest::Snapshot(answer) => answer.give(Snapshot::default()),
                other => panic!("{other:?}"),
            }
        }
    });
    let ask = |path: &str| {
        let mut stream = UnixStream::connect(&socket).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut head = [0; 12];
        stream.read_exact(&mut head).unwrap();
        (stream, String::from_utf8_lossy(&head[9..]).into_owned())
    };
    let paths = ["/v1/stream", "/v1/events?follow=true"];
    let streams: Vec<_> = (0..200).map(|n| ask(paths[n % 2])).collect();
    let answered = |status: &str| streams.iter().filter(|(_, got)| got == status).count();
    assert_eq!(
        (answered("200"), answered("503")),
        (limits.streams, 200 - limits.streams)
    );
    assert_eq!(ask("/v1/status").1, "200");
    // There is room again when one ends.
    drop(streams);
    let again = (0..1000).any(|_| ask(paths[0]).1 == "200");
    assert!(again, "no stream may begin");
}

/// Connections that say nothing leave for one that does, the one that has said nothing for the longest time first.
#[test]
fn idle_connections_leave_for_others() {
    let hour = Duration::from_secs(3600);
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("api.sock");
    let (asker, mut inbox) = request_queue();
    let limits = Limits {
        head_time: hour,
        connections: 4,
        ..Limits::default()
    };
    let _server = Server::start(
        ServerSettings {
            limits,
            ..ServerSettings::on(&socket)
        },
        asker,
        EventLog::default(),
    )
    .unwrap();
    std::thread::spawn(move || {
        while let Some(control_request) = inbox.wait() {
            if let ControlRequest::Status(answer) = control_request {
                answer.give(Status::default());
            }
        }
    });
    let mut idle: Vec<UnixStream> = (0..20).map(|_| UnixStream::connect(&socket).unwrap()).collect();
    Client::connect(&socket).unwrap().status().unwrap();
    let first = &mut idle[0];
    first.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    assert_eq!(first.read(&mut [0; 16]).unwrap(), 0, "the first is closed");
}

#[test]
fn connections_beyond_the_limit_wait_for_their_turn() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("api.sock");
    // A control loop that takes nothing.
    let (asker, mut inbox) = request_queue();
    let _server = Server::start(ServerSettings::on(&socket), asker, EventLog::default()).unwrap();
    let ask = "GET /v1/status HTTP/1.1\r\nhost: x\r\n\r\n";
    let limit = Limits::default().connections;
    let mut streams = Vec::new();
    for _ in 0..limit {
        let mut stream = UnixStream::connect(&socket).unwrap();
        stream.write_all(ask.as_bytes()).unwrap();
        streams.push(stream);
    }
    // One more waits for a place, and gets it when another goes.
    let mut late = UnixStream::connect(&socket).unwrap();
    late.write_all(ask.as_bytes()).unwrap();
    let mut answers = 0;
    while answers < limit {
        if let Some(ControlRequest::Status(answer)) = inbox.wait() {
            answer.give(Status::default());
            answers += 1;
        }
    }
    drop(streams);
    let Some(ControlRequest::Status(answer)) = inbox.wait() else {
        panic!("no question")
    };
    answer.give(Status {
        version: "late".to_owned(),
        ..Status::default()
    });
    let mut head = [0; 12];
    late.read_exact(&mut head).unwrap();
    assert_eq!(&head, b"HTTP/1.1 200");
}
