//! What an operator sees of containers: their output, and that of commands beside their programs.

use std::os::unix::fs::PermissionsExt as _;
use std::process::Stdio;

use api::types::InstanceRow;
use model::{Event, EventKind, InstanceId, InstanceState};

use crate::support::{Engine, IMAGE, Inco, PATIENCE, Place, eventually, text};

const CONFIGURATION: &str = r#"
[[uplink]]
name = "wan"
device = "memif:wan.sock"

[service.forward]
image = "IMAGE"
command = ["/inco-nf", "forward"]
match = { proto = "tcp" }
memory = "64MiB"
instances = { min = 1, max = 1 }

[service.broken]
image = "IMAGE"
command = ["/inco-nf", "forward", "--wrong"]
match = { proto = "udp" }
memory = "64MiB"
instances = { min = 1, max = 1 }
"#;

/// The instance that serves, once it does.
fn active_of(inco: &Inco) -> InstanceId {
    eventually("an instance is active", PATIENCE, || {
        let mut instances = inco.instances().into_iter();
        let is_it = |row: &InstanceRow| row.service == "forward" && row.state == InstanceState::Active;
        instances.find(is_it).map(|row| row.id)
    })
}

fn output_is_shown_and_commands_run(engine: Engine) {
    if !engine.is_here() {
        return;
    }
    let place = Place::new();
    let inco = place.run(&(engine.toml() + &CONFIGURATION.replace("IMAGE", IMAGE)));
    // Of a program that has ended, and of a container that is gone.
    let said = "unexpected argument '--wrong' found";
    let failed = eventually("two instances have failed", PATIENCE, || {
        let rows = inco.client().logs("broken").unwrap();
        let mut ended = rows
            .iter()
            .filter(|row| row.ended_unix_ms.is_some() && row.next > 0);
        ended.next().zip(ended.next()).map(|(first, _)| first.instance)
    });
    assert!(place.must(&["logs", &format!("broken/{failed}")]).contains(said));
    let last = place.must(&["logs", "broken", "--tail", "1"]);
    let first_mark = format!("{failed}: For more information, try '--help'.");
    assert_eq!(last.lines().next(), Some(first_mark.as_str()), "{last}");

    // A command beside the program of an instance.
    let instance = active_of(&inco);
    let target = format!("forward/{instance}");
    let exec = |command: &[&str]| place.output(&[&["exec", &target, "--"], command].concat());
    let output = exec(&["/inco-nf", "--version"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stdout).starts_with("inco-nf "));
    assert_eq!(exec(&["/inco-nf", "--wrong"]).status.code(), Some(2));
    let missing = exec(&["/nonexistent"]);
    assert!(!missing.status.success());
    // What it writes is not the program's output.
    assert!(!place.must(&["logs", &target]).contains("inco-nf "));
    let is_exec = |event: &Event| match &event.kind {
        EventKind::Action {
            action, by, request, ..
        } => {
            let words = request["command"].as_array().map_or(0, Vec::len);
            action == "exec" && by == "uid 0" && words > 0 && event.instance == Some(instance)
        }
        _ => false,
    };
    assert_eq!(inco.events().iter().filter(|event| is_exec(event)).count(), 3);

    // It follows a container to its end.
    let follower = place
        .inco(&["logs", &target, "--follow"])
        .stdout(Stdio::piped())
        .spawn();
    let pid = inco.instance(instance).unwrap().pid.unwrap();
    crate::support::kill(pid, rustix::process::Signal::KILL);
    assert!(follower.unwrap().wait_with_output().unwrap().status.success());
    inco.stop(&place);
}

#[test]
fn output_is_shown_and_commands_run_with_oci() {
    output_is_shown_and_commands_run(Engine::Oci);
}

#[test]
fn output_is_shown_and_commands_run_with_docker() {
    output_is_shown_and_commands_run(Engine::Docker);
}

#[test]
fn a_command_in_a_container_is_for_root_alone() {
    let engine = Engine::Oci;
    if !engine.is_here() {
        return;
    }
    let place = Place::new();
    place.allow_other_users();
    let inco = place.run(&(engine.toml() + &CONFIGURATION.replace("IMAGE", IMAGE)));
    // Who may ask is who may use the socket.
    let open = std::fs::Permissions::from_mode(0o666);
    std::fs::set_permissions(place.run_dir().join("api.sock"), open).unwrap();
    let id = active_of(&inco).to_string();
    let asked = place
        .inco_unprivileged(&["exec", &id, "--", "/inco-nf", "--version"])
        .output()
        .unwrap();
    assert_eq!(asked.status.code(), Some(1));
    let said = text(&asked.stderr);
    assert!(
        said.contains("uid 65534 is not permitted to run commands in containers"),
        "{said}"
    );
    let is_refused = |event: &Event| {
        let kind = &event.kind;
        matches!(kind, EventKind::Action { action, refused: true, .. } if action == "exec")
    };
    assert!(inco.events().iter().any(is_refused));
    inco.stop(&place);
}
