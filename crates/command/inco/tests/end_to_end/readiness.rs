//! A command in the container says when an instance is ready.

use model::{InstanceState, InstanceStep};

use crate::support::{Engine, Inco, PATIENCE, Place, assert_clean, changes, eventually};

/// The image: the function, and a program of this machine with its libraries.
const IMAGE: &str = "inco-test/ready";

fn service(name: &str, port: u16, instances: u32, command: &str, more: &str) -> String {
    format!(
        r#"
[service.{name}]
match = {{ proto = "udp", dst_port = {port} }}
image = "{IMAGE}"
cpus = 0.5
memory = "64MiB"
capacity = "50kpps"
instances = {instances}
autoscaler = "fixed"
stop_grace = "200ms"
ring = {{ slots = 8192 }}
ready = {{ exec = ["/bin/grep", {command}] }}
{more}
"#
    )
}

fn of(inco: &Inco, service: &str) -> Vec<api::types::InstanceRow> {
    let rows = inco.instances().into_iter();
    rows.filter(|row| row.service == service).collect()
}

const LOAD: &str = r#"
tick = "500us"
uplink_wait = "5s"
settle = "2s"
[[phase]]
duration = "300ms"
flows = 8
dst_port = 53
rate_per_flow = "200pps"
"#;

fn a_command_decides_when_an_instance_is_ready(engine: Engine) {
    if !engine.is_here() {
        return;
    }
    let place = Place::new();
    place.import_image(IMAGE, &["grep"]);
    let flag = place.path("flag");
    std::fs::create_dir(&flag).unwrap();
    // The readiness command has no rights that the container lacks.
    let confined = concat!(
        r"'-qzP', 'CapEff:\t0{16}\nCapBnd:\t0{16}\nCapAmb:\t0{16}\n",
        r"NoNewPrivs:\t1\nSeccomp:\t2\n', '/proc/self/status'"
    );
    let text = [
        "[[uplink]]\nname = \"wan\"\ndevice = \"memif:wan.sock\"\n".to_owned(),
        service(
            "waits",
            53,
            2,
            r#""yes", "/run/flag/ready""#,
            &format!(
                "mounts = [\"{}:/run/flag:ro\"]\nready_deadline = \"60s\"",
                flag.display()
            ),
        ),
        service("confined", 80, 1, confined, ""),
        service(
            "never",
            123,
            1,
            r#""-q", "no-such-line", "/proc/self/status""#,
            "ready_deadline = \"1s\"",
        ),
        engine.toml(),
    ];
    let inco = place.run(&text.concat());
    eventually("a command that passes makes it ready", PATIENCE, || {
        let rows = of(&inco, "confined");
        (rows.len() == 1 && rows[0].state == InstanceState::Active).then_some(())
    });
    eventually(
        "one that fails is asked again, and what it said is shown",
        PATIENCE,
        || {
            let rows = of(&inco, "waits");
            let said = "its readiness command exited with 2; its last output: /bin/grep: /run/flag/ready: No such \
                        file or directory";
            (rows.len() == 2
                && rows
                    .iter()
                    .all(|row| row.state == InstanceState::Starting && row.reason == said))
            .then_some(())
        },
    );
    std::fs::write(flag.join("ready"), "yes\n").unwrap();
    let rows = eventually("then it passes", PATIENCE, || {
        let rows = of(&inco, "waits");
        rows.iter()
            .all(|row| row.state == InstanceState::Active)
            .then_some(rows)
    });
    let events = inco.events();
    for row in rows {
        let ready = changes(&events, row.id)
            .into_iter()
            .find(|(_, to, _)| InstanceState::Starting.step(InstanceStep::Ready) == Ok(*to));
        let (_, _, reason) = ready.unwrap();
        assert_eq!(reason, "its readiness command exited with 0");
    }
    assert_clean(&place.traffic(LOAD).report());
    let told = eventually(
        "one that never passes has failed at its deadline",
        PATIENCE,
        || {
            let told = inco.told();
            told.contains("it was not ready within 1 s").then_some(told)
        },
    );
    let expected = "it was not ready within 1 s: its readiness command exited with 1";
    assert!(told.contains(expected), "{told}");
    inco.stop(&place);
}

#[test]
fn a_command_decides_when_an_instance_is_ready_oci() {
    a_command_decides_when_an_instance_is_ready(Engine::Oci);
}

#[test]
fn a_command_decides_when_an_instance_is_ready_docker() {
    a_command_decides_when_an_instance_is_ready(Engine::Docker);
}

/// Where the only instance drains and no other is ready yet, it takes new flows, for longer than a drain may take.
#[test]
fn the_only_instance_serves_while_it_drains() {
    if !Engine::Oci.is_here() {
        return;
    }
    let place = Place::new();
    place.import_image(IMAGE, &["grep"]);
    let flag = place.path("flag");
    std::fs::create_dir(&flag).unwrap();
    let ready = flag.join("ready");
    std::fs::write(&ready, "yes\n").unwrap();
    let text = [
        "[[uplink]]\nname = \"wan\"\ndevice = \"memif:wan.sock\"\n[switch.timeouts]\nudp = \"1s\"\n"
            .to_owned(),
        service(
            "waits",
            53,
            1,
            r#""-q", "yes", "/run/flag/ready""#,
            &format!(
                "command = [\"/inco-nf\", \"forward\", \"--stamp\"]\nmounts = [\"{}:/run/flag:ro\"]\nready_deadline = \
                 \"60s\"\ndrain_deadline = \"2s\"",
                flag.display()
            ),
        ),
    ];
    let inco = place.run(&text.concat());
    let old = inco.settled(1, 0)[0].id;
    std::fs::remove_file(&ready).unwrap();
    place.must(&["drain", &old.0.to_string()]);
    eventually("it drains", PATIENCE, || {
        (inco.count(InstanceState::Draining) == 1 && inco.count(InstanceState::Starting) == 1).then_some(())
    });
    let all_at = |id| {
        let report = place.traffic(LOAD).report();
        assert_clean(&report);
        assert!(
            report.flows.iter().all(|flow| flow.instance == id),
            "{:?}",
            report.flows
        );
    };
    let began = std::time::Instant::now();
    while began.elapsed() < std::time::Duration::from_secs(3) {
        all_at(old.0);
    }
    std::fs::write(&ready, "yes\n").unwrap();
    let new = inco.settled(1, 0)[0].id;
    assert_ne!(new, old);
    all_at(new.0);
    let reasons: Vec<String> = changes(&inco.events(), old)
        .into_iter()
        .map(|(_, _, why)| why)
        .collect();
    assert!(
        reasons.contains(&"its last flow has ended".to_owned()),
        "{reasons:?}"
    );
    inco.stop(&place);
}

/// Every view of a service whose instances never become ready shows the failure and its reason.
#[test]
fn a_failing_service_shows_its_failure_in_every_view() {
    use std::io::{Read as _, Write as _};
    /// Of its own: tests beside this one import the other with other programs.
    const IMAGE: &str = "inco-test/failing";
    if !Engine::Oci.is_here() {
        return;
    }
    let place = Place::new();
    place.import_image(IMAGE, &["sh", "sleep"]);
    let failing = |name: &str, port: u16, command: &str| {
        format!(
            "[service.{name}]\nmatch = {{ proto = \"udp\", dst_port = {port} }}\nimage = \"{IMAGE}\"\n\
             command = {command}\ninstances = 1\nautoscaler = \"fixed\"\nready_deadline = \"500ms\"\n\
             stop_grace = \"1ms\"\n"
        )
    };
    let text = [
        "[[uplink]]\nname = \"wan\"\ndevice = \"memif:wan.sock\"\n".to_owned(),
        failing("exits", 53, r#"["/bin/sh", "-c", "echo no rules; exit 3"]"#),
        failing("deaf", 80, r#"["/bin/sleep", "1000"]"#),
        Engine::Oci.toml(),
    ];
    let inco = place.run(&text.concat());
    let why = |name: &str| {
        let rows = inco.client().services().unwrap().into_iter();
        rows.filter(|row| row.name == name).find_map(|row| row.failing)
    };
    let exits = eventually("it is known to fail again and again", PATIENCE, || {
        why("exits").filter(|why| why.starts_with("crash loop ("))
    });
    assert!(
        exits.contains("exited with 3") && exits.contains("no rules"),
        "{exits}"
    );
    let deaf = eventually("one that does not listen", PATIENCE, || why("deaf"));
    assert!(deaf.contains("nothing answers on /run/inco/port.sock"), "{deaf}");
    let status = place.must(&["status"]);
    assert!(status.contains("service exits: crash loop ("), "{status}");
    assert!(place.must(&["services"]).contains("crash loop ("));
    assert!(inco.log().contains("an instance failed"), "{}", inco.log());
    let mut stream = std::os::unix::net::UnixStream::connect(place.run_dir().join("api.sock")).unwrap();
    stream
        .write_all(b"GET /readyz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(
        answer.starts_with("HTTP/1.1 503") && answer.contains("exits has 0 active instances of at least 1"),
        "{answer}"
    );
    // Between two tries there may be no container that a look at the end would see.
    let (_said, traces) = inco.stop_with(&place, &[]);
    eventually("nothing of inco is left", PATIENCE, || {
        traces.left().is_empty().then_some(())
    });
}
