//! The command line as its users meet it: the built program, its words and its exit status.

#![allow(clippy::panic, clippy::unwrap_used, reason = "a test fails by it")]

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;

use api::types::{
    ActorRow, ActorSideRow, ActorsRow, CommandEnd, FlowExplanation, FlowPage, InstanceRow, LogPiece, LogRow,
    Outcome, Policies, Refusal, ServiceRow, Snapshot, Status,
};
use api::{ControlRequest, EventLog, Server, ServerSettings, request_queue};
use model::{
    Action, ActorSide, Event, EventKind, InstanceId, InstanceState, Nanos, Rollout, RolloutState, Setting,
};

fn inco(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_inco"));
    command.args(arguments).stdin(Stdio::null());
    // Whatever the machine runs is not what is tested.
    command
        .env("INCO_RUN_DIR", "/nonexistent/inco")
        .env_remove("INCO_LOG")
        .env_remove("INCO_NF");
    command
}

fn run(arguments: &[&str]) -> Output {
    inco(arguments).output().unwrap()
}

fn out(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn err(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn example(name: &str) -> String {
    format!("{}/../../../examples/{name}", env!("CARGO_MANIFEST_DIR"))
}

/// A file with that text.
fn file(directory: &Path, text: &str) -> String {
    let path = directory.join("inco.toml");
    std::fs::write(&path, text).unwrap();
    path.display().to_string()
}

/// The names under `Commands:` in a help text.
fn commands(help: &str) -> Vec<String> {
    let listed = help
        .lines()
        .skip_while(|line| *line != "Commands:")
        .skip(1)
        .take_while(|line| !line.is_empty());
    let names = listed.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    names
        .filter_map(|line| line.split_whitespace().next())
        .map(str::to_owned)
        .filter(|name| name != "help")
        .collect()
}

#[test]
fn the_help_of_every_command_has_an_example() {
    let help = out(&run(&["--help"]));
    let names = commands(&help);
    for expected in [
        "demo",
        "run",
        "check",
        "doctor",
        "status",
        "services",
        "instances",
        "flows",
        "events",
        "top",
        "scale",
        "policy",
        "explain",
        "drain",
        "undrain",
        "purge",
        "stop",
        "traffic",
        "image",
        "completions",
    ] {
        assert!(
            names.iter().any(|name| name == expected),
            "no {expected} in {names:?}"
        );
    }
    assert!(!help.contains("launcher"), "the launcher is for inco itself");
    let images = commands(&out(&run(&["image", "--help"])));
    assert_eq!(images, ["build", "pull", "import", "list", "remove"]);
    let all = names
        .iter()
        .map(|name| vec![name.as_str()])
        .chain(images.iter().map(|name| vec!["image", name.as_str()]));
    for mut words in all {
        words.push("--help");
        let output = run(&words);
        assert!(output.status.success(), "{words:?}");
        assert!(out(&output).contains("Example"), "{words:?} has no example");
    }
}

#[test]
fn wrong_usage_is_status_2_with_a_suggestion() {
    for (arguments, said) in [
        (&["instance"][..], "instances"),
        (&["scale", "web"], "required"),
        (&["scale", "web", "3", "--auto"], "cannot be used with"),
        (&["purge"], "required"),
        (
            &["purge", "--flow", "tcp 1.2.3.4"],
            "tcp 10.0.0.1:1000 > 10.0.0.2:80",
        ),
        (&["drain"], "required"),
        (&["drain", "three"], "an instance's id is a number"),
        (&["demo", "--scheduler", "bestfit"], "did you mean best-fit?"),
        (&["demo", "--quick", "--full"], "cannot be used with"),
        (&["status", "--watch", "0"], "write 0.1 to 86400 seconds"),
        (&["flows", "--limit", "0"], "1..=100000"),
        (
            &["traffic", "-f", "a.toml", "--uplink", "wan.sock"],
            "write memif:SOCKET",
        ),
        (&["image", "build", "forwad"], "did you mean forward?"),
        (&["image", "import", "ids"], "name a tar archive or a directory"),
        (
            &["sim", "run", "/nonexistent/x.toml"],
            "/nonexistent/x.toml: cannot read it (No such file or directory (os error 2)); give the file of a \
             scenario",
        ),
        (
            &["image", "import", "ids", "/tmp"],
            "which program it runs is not said",
        ),
    ] {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", err(&output));
        assert!(
            err(&output).contains(said),
            "{arguments:?}: {} has no {said}",
            err(&output)
        );
    }
}

#[test]
fn a_wrong_configuration_is_status_2_and_names_file_line_key_and_what_to_write() {
    let directory = tempfile::tempdir().unwrap();
    let text = "[[uplink]]\nname = \"wan\"\ndevice = \"memif:wan.sock\"\n[service.web]\nimage = \"inco/forward\"\n\
                instance = 3\ninstances = { min = 5, max = 3 }\n";
    let name = file(directory.path(), text);
    for command in [
        &["check", "-f", &name][..],
        &["run", "-f", &name],
        &["run", "--dry-run", "-f", &name],
    ] {
        let output = run(command);
        // Of `run` only what it says is looked at: it may check more at once.
        assert_eq!(output.status.code(), Some(2), "{command:?}: {}", err(&output));
        let expected = format!(
            "{name}:6: service.web.instance: unknown key; write \"instances\"\n\
             {name}:7: service.web.instances.min: 5 is more than max (3); write a min of at most 3\n"
        );
        assert_eq!(err(&output), expected);
        assert_eq!(out(&output), "");
    }
    let output = run(&["check", "-f", "/nonexistent/inco.toml"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        err(&output).starts_with("/nonexistent/inco.toml: the file does not exist; name one with -f"),
        "{}",
        err(&output)
    );
}

#[test]
fn missing_parts_of_the_machine_are_reported_with_their_line() {
    let directory = tempfile::tempdir().unwrap();
    let text = "[[uplink]]\nname = \"wan\"\ndevice = \"memif:wan.sock\"\n[service.web]\nimage = \"nobody/has-this\"\n\
                mounts = [\"/nonexistent/rules:/rules:ro\"]\n[switch]\nworkers = [8000]\n[engine]\n\
                driver = \"docker\"\nhost = \"unix:///nonexistent/docker.sock\"\n";
    let name = file(directory.path(), text);
    let output = inco(&["check", "-f", &name])
        .env("INCO_RUN_DIR", directory.path())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2), "{}", err(&output));
    let said = err(&output);
    assert!(
        said.contains(&format!(
            "{name}:8: switch.workers[0]: inco is not permitted to use CPU 8000; write one of"
        )),
        "{said}"
    );
    assert!(
        said.contains(&format!(
            "{name}:6: service.web.mounts[0]: /nonexistent/rules does not exist;"
        )),
        "{said}"
    );
    assert!(
        said.contains(&format!(
            "{name}:11: engine.host: no engine answers at unix:///nonexistent/docker.sock"
        )),
        "{said}"
    );
    let output = run(&["check", "--offline", "-f", &name]);
    assert!(output.status.success(), "{}", err(&output));
}

#[test]
fn a_socket_in_use_is_reported() {
    let directory = tempfile::tempdir().unwrap();
    let _uplink = std::os::unix::net::UnixListener::bind(directory.path().join("wan.sock")).unwrap();
    let _api = std::os::unix::net::UnixListener::bind(directory.path().join("api.sock")).unwrap();
    let name = file(
        directory.path(),
        "[[uplink]]\nname = \"wan\"\ndevice = \"memif:wan.sock\"\n[service.a]\nport = \"null\"\n",
    );
    let output = inco(&["check", "-f", &name])
        .env("INCO_RUN_DIR", directory.path())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    let said = err(&output);
    assert!(
        said.contains("api.socket: another inco listens on ") && said.contains("stop it with `inco stop`"),
        "{said}"
    );
    assert!(
        said.contains(":3: uplink[0].device: another program listens on "),
        "{said}"
    );
}

#[test]
fn examples_are_right_and_say_what_they_would_do() {
    for name in [
        "forward.toml",
        "two-arm.toml",
        "chain.toml",
        "testpmd.toml",
        "edge.toml",
        "machine.toml",
    ] {
        let output = run(&["check", "--offline", "-f", &example(name)]);
        assert!(output.status.success(), "{}", err(&output));
        assert!(
            out(&output).contains("is valid.") && out(&output).contains("MiB"),
            "{}",
            out(&output)
        );
    }
    let output = run(&["check", "--offline", "--json", "-f", &example("forward.toml")]);
    let plan: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(plan["services"][0]["max"], 8);
    assert_eq!(plan["services"][0]["match"], "all IP");
    assert!(plan["memory"]["flow_tables_bytes"].as_u64().unwrap() > 1 << 20);
}

#[test]
fn a_closed_output_is_no_failure() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = inco(&["check", "--offline", "-f", &example("forward.toml")])
        .stdout(writer)
        .output()
        .unwrap();
    assert_eq!((output.status.code(), err(&output).as_str()), (Some(0), ""));
}

#[test]
fn without_a_running_inco_the_commands_say_how_to_start_it() {
    for arguments in [
        &["status"][..],
        &["instances"],
        &["events", "--follow"],
        &["drain", "3"],
    ] {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        let said = err(&output);
        assert!(
            said.contains(
                "inco is not running (nothing listens on /nonexistent/inco/api.sock): start it with `inco run -f \
                           inco.toml`"
            ),
            "{arguments:?}: {said}"
        );
        assert_eq!(said.lines().count(), 1, "{said}");
    }
    let output = run(&["stop"]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(
        err(&output),
        "inco: nothing to stop: no inco runs with the run directory /nonexistent/inco, and none has left containers\n"
    );
}

/// As after a kill: its mark is there, and no process has its number.
#[test]
fn after_a_run_that_was_killed_the_commands_say_how_to_go_on() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("api.sock");
    let mark = serde_json::json!({
        "pid": u32::MAX, "file": "edge.toml", "socket": socket, "uplinks": [], "driver": "oci", "host": "", "tls": null,
    });
    std::fs::write(directory.path().join("run.json"), mark.to_string()).unwrap();
    let ended = "the run of edge.toml (process 4294967295) has ended without removing its containers";
    let output = inco(&["status"])
        .env("INCO_RUN_DIR", directory.path())
        .output()
        .unwrap();
    let said = err(&output);
    assert!(
        said.starts_with("inco is not running: ")
            && said.contains(ended)
            && said.contains("`inco run -f edge.toml`"),
        "{said}"
    );
    let output = inco(&["doctor"])
        .env("INCO_RUN_DIR", directory.path())
        .output()
        .unwrap();
    assert!(
        out(&output).contains(&format!("warn  running          {ended}")),
        "{}",
        out(&output)
    );
}

#[test]
fn images_are_made_of_static_programs_alone() {
    let directory = tempfile::tempdir().unwrap();
    let with = |arguments: &[&str], nf: &str| {
        inco(arguments)
            .env("INCO_STATE_DIR", directory.path())
            .env("INCO_NF", nf)
            .output()
            .unwrap()
    };
    let output = with(&["image", "list", "--json"], "");
    assert_eq!(out(&output).trim(), "[]");
    assert!(out(&with(&["image", "list"], "")).contains("inco image build forward"));
    let output = with(&["image", "build", "forward"], "/nonexistent/inco-nf");
    assert_eq!(output.status.code(), Some(1));
    assert!(
        err(&output).contains("INCO_NF: /nonexistent/inco-nf cannot be read"),
        "{}",
        err(&output)
    );
    // This program itself is linked to the C library.
    let output = with(&["image", "build", "forward"], env!("CARGO_BIN_EXE_inco"));
    assert_eq!(output.status.code(), Some(1));
    assert!(
        err(&output).contains("is not static; build a static one with `make build`"),
        "{}",
        err(&output)
    );
    // The smallest file with the headers of a static program. The test does not run it.
    let mut elf = vec![0; 64];
    elf[..6].copy_from_slice(b"\x7fELF\x02\x01");
    let nf = directory.path().join("nf");
    std::fs::write(&nf, elf).unwrap();
    let output = with(&["image", "build", "forward"], &nf.display().to_string());
    assert!(output.status.success(), "{}", err(&output));
    assert!(
        out(&output).starts_with("inco/forward:latest: "),
        "{}",
        out(&output)
    );
    let listed: serde_json::Value =
        serde_json::from_slice(&with(&["image", "list", "--json"], "").stdout).unwrap();
    assert_eq!(listed[0]["name"], "inco/forward:latest");
    assert_eq!(
        listed[0]["entrypoint"],
        serde_json::json!(["/inco-nf", "forward"])
    );
    let rootfs = directory.path().join("rootfs");
    std::fs::create_dir_all(rootfs.join("bin")).unwrap();
    std::fs::write(rootfs.join("bin/ids"), "x").unwrap();
    let output = with(
        &[
            "image",
            "import",
            "lab/ids",
            &rootfs.display().to_string(),
            "--",
            "/bin/ids",
            "-v",
        ],
        "",
    );
    assert!(output.status.success(), "{}", err(&output));
    assert!(out(&with(&["image", "list"], "")).contains("/bin/ids -v"));
    assert!(with(&["image", "remove", "lab/ids"], "").status.success());
    let output = with(&["image", "remove", "lab/ids"], "");
    assert_eq!(output.status.code(), Some(1));
    assert!(
        err(&output).contains("there is no image lab/ids:latest"),
        "{}",
        err(&output)
    );
}

/// What a container wrote, in pieces of five bytes.
const WRITTEN: &str = "one\ntwo\u{1b}[2J\nthree\n";

fn logs(service: &str) -> Result<Vec<LogRow>, Refusal> {
    if service != "web" {
        return Err(Refusal::new(format!("unknown service {service:?}"), ""));
    }
    let row = |id: u32, ended_unix_ms| LogRow {
        instance: InstanceId(id),
        container: format!("inco-web-{id}"),
        next: WRITTEN.len() as u64,
        ended_unix_ms,
        ..LogRow::default()
    };
    Ok(vec![row(3, None), row(4, Some(7))])
}

fn log(service: &str, instance: InstanceId, from: u64) -> Result<LogPiece, Refusal> {
    let rows = logs(service)?;
    let Some(row) = rows.iter().find(|row| row.instance == instance) else {
        return Err(Refusal::new(
            format!("no stored output of instance {instance}"),
            "",
        ));
    };
    let next = row.next.min(from + 5);
    Ok(LogPiece {
        from,
        next,
        text: WRITTEN[from as usize..next as usize].to_owned(),
        end: next == row.next && row.ended_unix_ms.is_some(),
    })
}

/// An API whose control loop is a fake.
struct Fake {
    server: Option<Server>,
    events: EventLog,
    /// What was asked for, in order.
    acted: mpsc::Receiver<Action>,
    directory: tempfile::TempDir,
}

impl Fake {
    fn start() -> Fake {
        let directory = tempfile::tempdir().unwrap();
        let (asker, mut inbox) = request_queue();
        let (note, acted) = mpsc::channel();
        std::thread::spawn(move || {
            while let Some(control_request) = inbox.wait() {
                match control_request {
                    ControlRequest::Status(answer) => answer.give(snapshot().status),
                    ControlRequest::Services(answer) => answer.give(snapshot().services),
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
                    ControlRequest::Instances(answer) => answer.give(snapshot().instances),
                    ControlRequest::Snapshot(answer) => answer.give(snapshot()),
                    ControlRequest::Actors(answer) => answer.give(snapshot().actors),
                    ControlRequest::Flows(_, answer) => answer.give(Ok(FlowPage {
                        flows: Vec::new(),
                        complete: true,
                    })),
                    ControlRequest::Capture(_, _, answer) => {
                        answer.give(Err(Refusal::new(
                            "this switch cannot capture packets",
                            "use tcpdump",
                        )));
                    }
                    ControlRequest::Act(
                        Action::Drain {
                            instance: InstanceId(9),
                        },
                        _,
                        answer,
                    ) => {
                        answer.give(Err(Refusal::new("unknown instance 9", "see `inco instances`")));
                    }
                    ControlRequest::Act(Action::Policy { service, .. }, _, answer) if service == "gone" => {
                        answer.give(Err(Refusal::new(
                            "unknown service \"gone\"",
                            "see `inco services`",
                        )));
                    }
                    ControlRequest::Act(action, _, answer) => {
                        let ended = CommandEnd {
                            status: Some(7),
                            output: "it failed\n".to_owned(),
                            ..CommandEnd::default()
                        };
                        answer.give(Ok(Outcome {
                            command: matches!(action, Action::Exec { .. }).then_some(ended),
                            ..Outcome::new(format!("{action:?}"))
                        }));
                        let _ = note.send(action);
                    }
                    ControlRequest::Explain(flow, answer) => answer.give(Ok(FlowExplanation {
                        flow,
                        why: vec!["no packet of it is in the flow table".to_owned()],
                        ..FlowExplanation::default()
                    })),
                    ControlRequest::Policies(answer) => answer.give(Policies::default()),
                    ControlRequest::Counters(answer) => answer.give(Box::default()),
                }
            }
        });
        let events = EventLog::default();
        let server = Server::start(
            ServerSettings::on(directory.path().join("api.sock")),
            asker,
            events.clone(),
        )
        .unwrap();
        Fake {
            server: Some(server),
            events,
            acted,
            directory,
        }
    }

    fn inco(&self, arguments: &[&str]) -> Command {
        let mut command = inco(arguments);
        command.env("INCO_RUN_DIR", self.directory.path());
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.inco(arguments).output().unwrap()
    }

    fn socket(&self) -> PathBuf {
        self.directory.path().join("api.sock")
    }
}

fn snapshot() -> Snapshot {
    Snapshot {
        unix_ms: 1000,
        status: Status {
            version: "9.9".to_owned(),
            ..Status::default()
        },
        services: vec![ServiceRow {
            name: "web".to_owned(),
            active: 3,
            desired: 3,
            rollout: Some(Rollout {
                state: RolloutState::Aborted,
                replaced: 1,
                total: 3,
                reason: "replacement 7 failed: its program exited with 2".to_owned(),
            }),
            ..ServiceRow::default()
        }],
        instances: vec![instance(3, "web"), instance(4, "dns")],
        actors: vec![ActorsRow {
            service: "kv".to_owned(),
            moves: "auto".to_owned(),
            sides: vec![ActorSideRow {
                runs: true,
                cores: 1,
                policy: "hybrid".to_owned(),
                ..ActorSideRow::default()
            }],
            actors: vec![ActorRow {
                actor: "counter".to_owned(),
                side: Some(ActorSide::Card),
                state: "runs".to_owned(),
                mode: "fcfs".to_owned(),
                ..ActorRow::default()
            }],
        }],
    }
}

fn instance(id: u32, service: &str) -> InstanceRow {
    InstanceRow {
        id: InstanceId(id),
        service: service.to_owned(),
        place: None,
        core: None,
        state: InstanceState::Active,
        state_ms: 10,
        slot: Some(1),
        container: None,
        address: None,
        name: None,
        pid: None,
        adopted: false,
        to_pps: 1500.0,
        back_pps: 1500.0,
        to_packets: 1,
        back_packets: 1,
        live_flows: 12,
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

fn event(sequence: u64) -> Event {
    Event {
        sequence,
        at: Nanos(sequence),
        unix_ms: 1000,
        service: Some("web".to_owned()),
        instance: Some(InstanceId(3)),
        kind: EventKind::Hot { occupancy: 0.25 },
    }
}

#[test]
fn answers_of_a_running_inco_are_shown_as_table_and_as_json() {
    let fake = Fake::start();
    let json = |arguments: &[&str]| -> serde_json::Value {
        let output = fake.run(&[arguments, &["--json"]].concat());
        assert!(output.status.success(), "{arguments:?}: {}", err(&output));
        serde_json::from_slice(&output.stdout).unwrap()
    };
    assert_eq!(json(&["status"])["version"], "9.9");
    assert!(out(&fake.run(&["status"])).contains("inco 9.9"));
    assert_eq!(json(&["services"])[0]["active"], 3);
    assert_eq!(json(&["instances"])[1]["service"], "dns");
    let only = json(&["instances", "--selector", "service!=web,state=active"]);
    assert_eq!(
        (only.as_array().unwrap().len(), &only[0]["id"]),
        (1, &serde_json::json!(4))
    );
    let only = json(&["instances", "web"]);
    assert_eq!(
        (only.as_array().unwrap().len(), &only[0]["id"]),
        (1, &serde_json::json!(3))
    );
    let table = out(&fake.run(&["instances"]));
    assert!(
        table.starts_with("ID  SERVICE") && table.contains("1.50k") && table.contains("active"),
        "{table}"
    );
    for (of, names) in [
        ("services", "web\n"),
        ("instances", "3\n4\n"),
        ("targets", "web\nweb/3\ndns/4\n"),
    ] {
        assert_eq!(out(&fake.run(&["names", of])), names);
    }
    assert_eq!(json(&["flows"])["complete"], true);
    let output = fake.run(&["instances", "wed"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        err(&output).contains("unknown service \"wed\"; did you mean web?"),
        "{}",
        err(&output)
    );
}

#[test]
fn a_remote_inco_is_named_by_options_or_the_environment() {
    let fake = Fake::start();
    let output = fake.run(&["status", "--url", "https://edge:8443"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        err(&output).contains("needs --token-file FILE, or $INCO_TOKEN_FILE"),
        "{}",
        err(&output)
    );
    let output = fake
        .inco(&["status"])
        .env("INCO_URL", "https://edge")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    // An option wins over the environment.
    let socket = fake.socket().display().to_string();
    let output = fake
        .inco(&["status", "--socket", &socket])
        .env("INCO_URL", "https://edge")
        .output()
        .unwrap();
    assert!(out(&output).contains("inco 9.9"), "{}", err(&output));
}

#[test]
fn two_scenarios_are_compared_on_a_page() {
    let directory = tempfile::tempdir().unwrap();
    let page = directory.path().join("compared.html");
    let scenario = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../../scenarios/inreal-cliff.toml"
    );
    let page_is = page.display().to_string();
    let output = inco(&["sim", "compare", scenario, scenario, "--report", &page_is])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", err(&output));
    assert!(out(&output).contains("DIFFERENCE"), "{}", out(&output));
    let page = std::fs::read_to_string(page).unwrap();
    for said in ["and inreal-cliff, simulated", "lost_share", "+0.0%", "<svg"] {
        assert!(page.contains(said), "{said}");
    }
}

#[test]
fn actions_say_what_came_of_them() {
    let fake = Fake::start();
    let said = |arguments: &[&str]| out(&fake.run(arguments)).trim().to_owned();
    assert_eq!(
        said(&["scale", "web", "5"]),
        "Scale { service: \"web\", instances: Some(5) }"
    );
    assert_eq!(
        said(&["scale", "web", "--auto"]),
        "Scale { service: \"web\", instances: None }"
    );
    assert_eq!(said(&["undrain", "3"]), "Undrain { instance: InstanceId(3) }");
    assert_eq!(
        said(&["purge", "3"]),
        "Purge { instance: Some(InstanceId(3)), flow: None }"
    );
    assert!(
        said(&["purge", "--flow", "tcp 10.0.0.1:1 > 10.0.0.2:2"]).contains("tcp 10.0.0.1:1 > 10.0.0.2:2")
    );
    let output = fake.run(&["drain", "9"]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(
        err(&output),
        "inco: cannot drain: unknown instance 9; see `inco instances`\n"
    );
    let output = fake.run(&["policy", "gone", "--scheduler", "maglev"]);
    assert_eq!(
        err(&output),
        "inco: cannot set the policy: unknown service \"gone\"; see `inco services`\n"
    );
    // What the configuration does not say is gone after the next start, and the command says so.
    for (arguments, hint) in [
        (
            ["policy", "web", "--scheduler", "maglev"].as_slice(),
            "write the scheduler maglev into [service.web]",
        ),
        (&["scale", "web", "5"], "write instances = 5 into [service.web]"),
        (&["dry-run", "web"], "repeat the command after each start"),
    ] {
        let output = fake.run(arguments);
        assert!(output.status.success());
        let said = err(&output);
        assert!(
            said.contains("lasts until `inco stop`") && said.contains(hint),
            "{said}"
        );
    }
    assert_eq!(err(&fake.run(&["scale", "web", "--auto"])), "");
    // By its old name, too, with a warning.
    let output = fake.run(&["pause-in", "web", "--off"]);
    assert_eq!(out(&output), "PauseIn { service: \"web\", on: false }\n");
    assert!(
        err(&output).contains("`inco pause-in` is renamed to `inco disable-scale-in`"),
        "{}",
        err(&output)
    );
    let output = fake.run(&["disable-scale-in", "web", "--off"]);
    assert_eq!(
        (out(&output).as_str(), err(&output).as_str()),
        ("PauseIn { service: \"web\", on: false }\n", "")
    );
    let output = fake.run(&["drain", "--selector", "service=dns"]);
    assert_eq!(
        out(&output),
        "Drain { instance: InstanceId(4) }\n",
        "{}",
        err(&output)
    );
    let output = fake.run(&["undrain", "--selector", "service=dns"]);
    assert_eq!(
        err(&output),
        "inco: no draining instance is selected; see `inco instances`\n"
    );
    // All are tried, also after one that failed.
    let output = fake.run(&["drain", "9", "4"]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(out(&output), "Drain { instance: InstanceId(4) }\n");
    assert!(
        err(&output).ends_with("inco: 1 of 2 failed\n"),
        "{}",
        err(&output)
    );
    assert_eq!(said(&["stop", "--keep", "--no-wait"]), "Stop { keep: true }");
}

#[test]
fn a_waiting_command_reports_what_is_missing_at_its_timeout() {
    let fake = Fake::start();
    let wait = |arguments: &[&str]| fake.run(&[arguments, &["--wait", "--timeout", "0.3"]].concat());
    assert!(wait(&["scale", "web", "3"]).status.success());
    // No flow is pinned to it.
    assert!(wait(&["purge", "3"]).status.success());
    for (arguments, said) in [
        (
            &["drain", "3"][..],
            "inco: timed out after 0.3 s: instance 3 stays active until a replacement is ready\n",
        ),
        (
            &["scale", "dns", "3"],
            "inco: this lasts until `inco stop`; to keep it, write instances = 3 into [service.dns]\n\
             inco: service \"dns\" is not configured any more\n",
        ),
        (
            &["rollout", "web"],
            "inco: web: the rollout was aborted, 1 of 3 are replaced: replacement 7 failed: its program exited with \
             2\n",
        ),
    ] {
        let output = wait(arguments);
        assert_eq!((output.status.code(), err(&output).as_str()), (Some(1), said));
    }
    let output = fake.run(&["rollout", "web", "--status"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        out(&output).starts_with("web: aborted, 1 of 3 replaced: replacement 7"),
        "{}",
        out(&output)
    );
    // `--timeout` without `--wait`, and `--wait` without an instance, are refused.
    for arguments in [
        &["scale", "web", "3", "--timeout", "1"][..],
        &["scale", "web", "--auto", "--wait"],
        &["reload", "--check", "--wait"],
    ] {
        assert_eq!(fake.run(arguments).status.code(), Some(2), "{arguments:?}");
    }
}

#[test]
fn logs_are_shown_whole_or_by_their_last_lines() {
    let fake = Fake::start();
    // Nothing is changed for a program that reads it.
    assert_eq!(out(&fake.run(&["logs", "web/4"])), WRITTEN);
    assert_eq!(out(&fake.run(&["logs", "4", "--tail", "1"])), "three\n");
    let all = out(&fake.run(&["logs", "web", "--tail", "2"]));
    let two = "\u{1b}[2J".replace('\u{1b}', "two\u{1b}");
    assert_eq!(all, format!("3: {two}\n3: three\n4: {two}\n4: three\n"));
    // It ends with the container.
    assert_eq!(out(&fake.run(&["logs", "web/4", "--follow"])), WRITTEN);
    for (target, said) in [
        ("dns", "unknown service \"dns\""),
        ("web/9", "no stored output of instance 9 of web"),
        ("9", "no stored output of an instance 9"),
    ] {
        let output = fake.run(&["logs", target]);
        assert_eq!(output.status.code(), Some(1));
        assert!(err(&output).contains(said), "{}", err(&output));
    }
}

#[test]
fn a_command_in_a_container_has_its_own_exit_status() {
    let fake = Fake::start();
    let output = fake.run(&["exec", "web/3", "--", "/bin/false", "-v"]);
    assert_eq!(
        (output.status.code(), out(&output).as_str()),
        (Some(7), "it failed\n")
    );
    let command = vec!["/bin/false".to_owned(), "-v".to_owned()];
    let instance = InstanceId(3);
    assert_eq!(fake.acted.recv().unwrap(), Action::Exec { instance, command });
    for (target, status, said) in [
        ("web", 2, "write which instance, as web/3"),
        ("dns/3", 1, "dns has no instance 3"),
    ] {
        let output = fake.run(&["exec", target, "--", "/bin/true"]);
        assert_eq!(output.status.code(), Some(status));
        assert!(err(&output).contains(said), "{}", err(&output));
    }
}

#[test]
fn a_service_and_an_instance_are_described_on_one_page() {
    let fake = Fake::start();
    fake.events.push(event(1));
    let text = out(&fake.run(&["describe", "web"]));
    for said in [
        "service    web\n",
        "instances  3 active of 3 wanted",
        "rollout    aborted: 1 of 3 replaced (replacement 7 failed",
        "\nSettings\n  fit  0.8\n",
        "\nInstances\n  ID",
        "\nHeaviest flows\n",
        "\nDecisions\n  none\n",
        // An event of 1970.
        "d ago 00:00:01.000Z      1 web/3: its ring fills up: 25.0% full when looked at\n",
        "\nEvents\n  none\n",
    ] {
        assert!(text.contains(said), "{text}\nhas no\n{said}");
    }
    let text = out(&fake.run(&["describe", "web/3"]));
    for said in [
        "instance   web/3\n",
        "state      active for 10ms\n",
        "traffic    in 1.50k pps",
        "1 web/3: its ring",
    ] {
        assert!(text.contains(said), "{text}\nhas no\n{said}");
    }
    let output = fake.run(&["describe", "3", "--json"]);
    let described: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (
            &described["instance"]["id"],
            &described["failures"][0]["sequence"]
        ),
        (&3.into(), &1.into())
    );
    for (target, said) in [
        ("wed", "unknown service \"wed\"; did you mean web?"),
        ("web/4", "unknown instance 4 of web; "),
        ("17", "unknown instance 17; "),
    ] {
        let output = fake.run(&["describe", target]);
        assert!(
            output.status.code() == Some(1) && err(&output).contains(said),
            "{}",
            err(&output)
        );
    }
}

#[test]
fn stop_waits_for_the_end() {
    let mut fake = Fake::start();
    let mut child: Child = fake.inco(&["stop"]).stdout(Stdio::piped()).spawn().unwrap();
    assert_eq!(fake.acted.recv().unwrap(), Action::Stop { keep: false });
    // The fake does not end by itself, so the command waits: for longer than another one takes from start to end.
    assert!(fake.run(&["status"]).status.success());
    assert!(child.try_wait().unwrap().is_none());
    drop(fake.server.take());
    assert!(!fake.socket().exists());
    assert!(child.wait().unwrap().success());
}

#[test]
fn events_are_lines_and_can_be_followed() {
    let mut fake = Fake::start();
    fake.events.push(event(1));
    let events = out(&fake.run(&["events"]));
    let line = "d ago 00:00:01.000Z      1 web/3: its ring fills up: 25.0% full when looked at\n";
    assert!(events.lines().count() == 1 && events.ends_with(line), "{events}");
    assert_eq!(out(&fake.run(&["events", "--service", "dns"])), "");
    let mut child = fake
        .inco(&["events", "--follow", "--json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let mut line = || {
        let mut line = Vec::new();
        let mut byte = [0];
        while stdout.read(&mut byte).unwrap() == 1 && byte[0] != b'\n' {
            line.push(byte[0]);
        }
        line
    };
    let first: Event = serde_json::from_slice(&line()).unwrap();
    assert_eq!(first, event(1));
    fake.events.push(event(2));
    let second: Event = serde_json::from_slice(&line()).unwrap();
    assert_eq!(second, event(2));
    drop(fake.server.take());
    assert!(line().is_empty());
    assert!(child.wait().unwrap().success());
}

#[test]
fn the_doctor_prints_findings_and_remedies() {
    let output = inco(&["doctor", "--json"])
        .env("INCO_RUN_DIR", tempfile::tempdir().unwrap().path())
        .output()
        .unwrap();
    let findings: Vec<serde_json::Value> = serde_json::from_slice(&output.stdout).unwrap();
    let failed = findings
        .iter()
        .filter(|finding| finding["health"] == "fail")
        .count();
    assert_eq!(
        output.status.code(),
        Some(i32::from(failed > 0)),
        "{}",
        err(&output)
    );
    for check in [
        "permissions",
        "cpus",
        "hugepages",
        "control groups",
        "docker engine",
        "af_xdp",
    ] {
        let finding = findings.iter().find(|finding| finding["check"] == check).unwrap();
        assert_eq!(
            finding["health"] != "ok",
            finding["change"].is_string(),
            "{finding}"
        );
        assert!(!finding["found"].as_str().unwrap().is_empty());
    }
    // What a configuration names and this machine lacks is a failure.
    let directory = tempfile::tempdir().unwrap();
    let text = "[[uplink]]\nname = \"wan\"\ndevice = \"memif:wan.sock\"\n[service.web]\nport = \"null\"\n[switch]\n\
                workers = [8000]\n";
    let name = file(directory.path(), text);
    let output = inco(&["doctor", "-f", &name])
        .env("INCO_RUN_DIR", directory.path())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = out(&output);
    assert!(
        said.contains("fail  configuration") && said.contains("CPU 8000") && said.contains("-> write one of"),
        "{said}"
    );
}

#[test]
fn shells_can_complete_commands() {
    for (shell, said) in [
        ("bash", "complete -F _inco"),
        ("zsh", "#compdef inco"),
        ("fish", "complete -c inco"),
    ] {
        let output = run(&["completions", shell]);
        assert!(output.status.success() && out(&output).contains(said), "{shell}");
    }
    assert_eq!(run(&["completions", "tcsh"]).status.code(), Some(2));
}

/// What a program writes to a terminal, as it comes.
struct Screen {
    shown: String,
    output: std::process::ChildStdout,
}

impl Screen {
    fn until(&mut self, text: &str) {
        let mut bytes = [0; 4096];
        while !self.shown.contains(text) {
            let count = self.output.read(&mut bytes).unwrap();
            assert!(count > 0, "it ended without {text:?}: {}", self.shown);
            self.shown.push_str(&String::from_utf8_lossy(&bytes[..count]));
        }
    }
}

#[test]
fn top_runs_in_a_terminal_and_restores_it() {
    let output = run(&["top"]);
    assert_eq!(output.status.code(), Some(2), "without a terminal");
    assert!(
        err(&output).contains("inco instances --watch"),
        "{}",
        err(&output)
    );

    let mut fake = Fake::start();
    fake.events.push(event(1));
    // `script` gives it a terminal of its own.
    let top = format!(
        "stty cols 80 rows 24; exec {} top --interval 0.1",
        env!("CARGO_BIN_EXE_inco")
    );
    let mut child = Command::new("script")
        .args(["-qfec", &top, "/dev/null"])
        .env("INCO_RUN_DIR", fake.directory.path())
        .env("TERM", "xterm")
        .env("LC_ALL", "C.UTF-8")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut keys = child.stdin.take().unwrap();
    let mut press = |text: &str| std::io::Write::write_all(&mut keys, text.as_bytes()).unwrap();
    let mut screen = Screen {
        shown: String::new(),
        output: child.stdout.take().unwrap(),
    };
    screen.until("INSTANCE");
    screen.until("web");
    // Down to the first instance, drain it, yes.
    press("jdy");
    let drained = fake
        .acted
        .recv_timeout(std::time::Duration::from_secs(20))
        .unwrap();
    assert_eq!(
        drained,
        Action::Drain {
            instance: InstanceId(3)
        }
    );
    drop(fake.server.take());
    screen.until("NO ANSWER");
    press("q");
    // The terminal's first screen comes back, with its cursor.
    screen.until("\x1b[?1049l");
    assert!(child.wait().unwrap().success());
}

#[test]
fn top_restores_the_terminal_when_it_is_ended() {
    let fake = Fake::start();
    let pid_file = fake.directory.path().join("pid");
    let top = format!(
        "stty cols 80 rows 24; echo $$ > {}; exec {} top",
        pid_file.display(),
        env!("CARGO_BIN_EXE_inco")
    );
    let mut child = Command::new("script")
        .args(["-qfec", &top, "/dev/null"])
        .env("INCO_RUN_DIR", fake.directory.path())
        .env("TERM", "xterm")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut screen = Screen {
        shown: String::new(),
        output: child.stdout.take().unwrap(),
    };
    screen.until("web");
    let pid = std::fs::read_to_string(&pid_file)
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    screen.until("\x1b[?1049l");
    assert!(child.wait().unwrap().success());
}

/// CPU time of a process so far, and whether it has ended.
fn cpu_time(pid: i32) -> Option<std::time::Duration> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
    let is_dead = fields[0] == "Z";
    (!is_dead).then(|| std::time::Duration::from_millis(10 * ticks))
}

/// In a session of its own, so that the kernel sends it no signal: it must see by itself that the terminal is gone.
#[test]
fn top_ends_with_its_terminal() {
    let fake = Fake::start();
    let pid_file = fake.directory.path().join("pid");
    let top = format!(
        "stty cols 80 rows 24; exec setsid --wait sh -c 'echo $$ > {}; exec {} top'",
        pid_file.display(),
        env!("CARGO_BIN_EXE_inco")
    );
    let mut child = Command::new("script")
        .args(["-qfec", &top, "/dev/null"])
        .env("INCO_RUN_DIR", fake.directory.path())
        .env("TERM", "xterm")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut screen = Screen {
        shown: String::new(),
        output: child.stdout.take().unwrap(),
    };
    screen.until("web");
    let pid = std::fs::read_to_string(&pid_file)
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    let before = cpu_time(pid).unwrap();
    // With `script` goes the other end of the terminal.
    child.kill().unwrap();
    child.wait().unwrap();
    let mut spent = before;
    let begin = std::time::Instant::now();
    while let Some(now) = cpu_time(pid) {
        spent = now;
        if begin.elapsed() > std::time::Duration::from_secs(20) {
            let pid = rustix::process::Pid::from_raw(pid).unwrap();
            rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
            panic!("it goes on without a terminal, for {:?} of a CPU", spent - before);
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    assert!(
        spent - before < std::time::Duration::from_secs(1),
        "{:?}",
        spent - before
    );
}

#[test]
fn actors_are_listed_and_moved_by_name() {
    let fake = Fake::start();
    let text = out(&fake.run(&["actors", "kv"]));
    assert!(text.contains("card: runs") && text.contains("counter"), "{text}");
    let json: serde_json::Value = serde_json::from_str(&out(&fake.run(&["actors", "--json"]))).unwrap();
    assert_eq!(
        (&json[0]["actors"][0]["side"], &json[0]["service"]),
        (&"card".into(), &"kv".into())
    );
    for arguments in [
        &["actors", "move", "counter", "host"][..],
        &["actors", "pause", "kv/counter"],
        &["actors", "resume", "counter", "--json"],
        &["actors", "stop", "counter"],
    ] {
        assert_eq!(fake.run(arguments).status.code(), Some(0), "{arguments:?}");
    }
    for (arguments, expected) in [
        (&["actors", "web"][..], "no service of actors; those are kv"),
        (&["actors", "move", "counter", "moon"], "write card or host"),
        (&["actors", "stop", "nobody"], "the actors are counter"),
    ] {
        let output = fake.run(arguments);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(expected), "{said}");
    }
}
