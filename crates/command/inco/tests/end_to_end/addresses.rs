//! Services with an address: ordinary programs with the kernel's network. When they are ready, how they are checked,
//! and what happens to those that stall.

use std::path::Path;

use model::{Event, EventKind, InstanceId, InstanceState};
use rustix::process::Signal;

use crate::support::{Engine, Network, PATIENCE, Place, available, changes, eventually, example, kill};

/// What an image of this machine needs for a program that listens when it is told to.
const PROGRAMS: [&str; 3] = ["sh", "sleep", "nc"];

pub(crate) fn are_here(engine: Engine, programs: &[&str]) -> bool {
    let lacks = |program: &&str| {
        let paths = ["/usr/bin", "/usr/sbin", "/sbin", "/bin"];
        (!paths.iter().any(|path| Path::new(path).join(program).exists()))
            .then(|| format!("{program} is not installed"))
    };
    let missing = programs.iter().find_map(lacks);
    available("servers", missing) && engine.is_here()
}

/// A service with an address on a machine with `eth1`; other keys of the service follow.
pub(crate) fn service(engine: Engine, name: &str, ports: &str) -> String {
    format!(
        "{}[switch]\ndriver = \"ebpf\"\n[[uplink]]\nname = \"wan\"\ndevice = \"kernel:eth1\"\n[service.{name}]\nvip = \
         {{ address = \"10.0.0.100\", ports = \"{ports}\" }}\nmemory = \"64MiB\"\n",
        engine.toml()
    )
}

fn an_instance_is_ready_when_its_program_listens(engine: Engine) {
    if !are_here(engine, &PROGRAMS) {
        return;
    }
    let (place, network) = (Place::new(), Network::new());
    let image = "inco-test/late";
    place.import_image(image, &PROGRAMS);
    let flag = place.path("flag");
    std::fs::create_dir(&flag).unwrap();
    let listens = |port: u16| format!("nc -lk{} {port}", if port == 53 { "u" } else { "" });
    let script = format!(
        "while ! [ -e /run/flag/ready ]; do sleep 0.01; done; {} & {} & exec {}",
        listens(80),
        listens(53),
        listens(8042)
    );
    let text = format!(
        "{}image = \"{image}\"\ncommand = [\"/bin/sh\", \"-c\", \"{script}\"]\ninstances = 2\nautoscaler = \"fixed\"\n\
         mounts = [\"{}:/run/flag:ro\"]\nready_deadline = \"60s\"\nstop_grace = \"100ms\"\n",
        service(engine, "late", "80,53,8000-8099"),
        flag.display()
    );
    let inco = network.run(&place, &text);
    eventually("what is missing is shown", PATIENCE, || {
        let rows = inco.instances();
        let waits = |row: &api::types::InstanceRow| {
            row.state == InstanceState::Starting && row.reason == "its program does not listen on port 80 yet"
        };
        (rows.len() == 2 && rows.iter().all(waits)).then_some(())
    });
    std::fs::write(flag.join("ready"), "yes\n").unwrap();
    let rows = inco.settled(2, 0);
    let events = inco.events();
    for row in rows {
        let reasons: Vec<String> = changes(&events, row.id)
            .into_iter()
            .map(|(_, _, why)| why)
            .collect();
        assert!(reasons.contains(&"its program listens".to_owned()), "{reasons:?}");
    }
    inco.stop(&place);
}

#[test]
fn an_instance_is_ready_when_its_program_listens_oci() {
    an_instance_is_ready_when_its_program_listens(Engine::Oci);
}

#[test]
fn an_instance_is_ready_when_its_program_listens_docker() {
    an_instance_is_ready_when_its_program_listens(Engine::Docker);
}

#[test]
fn the_nginx_example_runs_as_it_is() {
    let engine = Engine::Oci;
    if !are_here(engine, &["nginx", "curl"]) {
        return;
    }
    let (place, network) = (Place::new(), Network::new());
    place.must(&["image", "import", "nginx"]);
    let text = std::fs::read_to_string(example("nginx.toml")).unwrap();
    let inco = network.run(&place, &text);
    inco.settled(1, 1);
    // Each is served as soon as it takes connections, which is before it is known to do so.
    for count in ["4", "1"] {
        place.must(&["scale", "web", count]);
        eventually(count, PATIENCE, || {
            for _ in 0..8 {
                let body = network.get("http://10.0.0.100/").unwrap();
                assert!(body.contains("nginx"), "{body}");
            }
            let active = inco.count(InstanceState::Active).to_string();
            (active == count).then_some(())
        });
    }
    inco.stop(&place);
}

/// nginx as one process, so that a signal stops all of it: it serves files of `/srv`.
const NGINX: &str = "daemon off;\nmaster_process off;\nuser root;\nerror_log stderr warn;\npid /tmp/nginx.pid;\nevents \
                     {}\nhttp { access_log off; client_body_temp_path /tmp/b; proxy_temp_path /tmp/p; \
                     fastcgi_temp_path /tmp/f; uwsgi_temp_path /tmp/u; scgi_temp_path /tmp/s; sendfile on; server { \
                     listen 80; root /srv; } }\n";

/// A service of such servers. `/srv` is the folder `srv` of the place.
fn nginx(place: &Place, engine: Engine, more: &str) -> String {
    place.must(&["image", "import", "nginx"]);
    let configuration = place.file("nginx.conf", NGINX);
    let srv = place.path("srv");
    if !srv.exists() {
        std::fs::create_dir(&srv).unwrap();
        std::fs::write(srv.join("index.html"), "served\n").unwrap();
    }
    format!(
        "{}image = \"nginx\"\ncommand = [\"/usr/sbin/nginx\", \"-c\", \"/etc/web.conf\"]\nmounts = \
         [\"{}:/etc/web.conf:ro\", \"{}:/srv:ro\"]\nautoscaler = \"fixed\"\nstop_grace = \"1s\"\n{more}",
        service(engine, "web", "80"),
        configuration.display(),
        srv.display()
    )
}

fn health_events(inco: &crate::support::Inco, id: InstanceId) -> Vec<(bool, String)> {
    let of = |event: Event| match event.kind {
        EventKind::Health { takes, reason, .. } if event.instance == Some(id) => Some((takes, reason)),
        _ => None,
    };
    inco.events().into_iter().filter_map(of).collect()
}

fn a_stalled_instance_gets_no_new_flows_and_is_replaced(engine: Engine) {
    if !are_here(engine, &["nginx", "curl"]) {
        return;
    }
    let (place, network) = (Place::new(), Network::new());
    let text = nginx(
        &place,
        engine,
        "instances = { min = 2, max = 3, standby = 0 }\ndrain_deadline = \"60s\"\nscheduler = { policy = \
         \"round-robin\", slow_start = \"0s\" }\nhealth = { http = \"/\", every = \"200ms\", timeout = \"150ms\" }\n",
    );
    let inco = network.run(&place, &text);
    let rows = inco.settled(2, 0);
    let all_are_served = |count: usize| {
        for _ in 0..count {
            assert_eq!(network.get("http://10.0.0.100/").unwrap(), "served\n");
        }
    };
    all_are_served(4);
    let stalled = &rows[0];
    kill(stalled.pid.unwrap(), Signal::STOP);
    let said = eventually("the stall is seen", PATIENCE, || {
        let (takes, why) = health_events(&inco, stalled.id).pop()?;
        (!takes).then_some(why)
    });
    assert_eq!(
        said,
        "3 checks in a row did not pass: port 80 does not answer in time"
    );
    // Another one comes in its place; it stays, with the flows that it has.
    eventually("it is replaced", PATIENCE, || {
        (inco.count(InstanceState::Active) == 3).then_some(())
    });
    all_are_served(12);
    assert!(
        place
            .must(&["instances"])
            .contains("failing: port 80 does not answer in time")
    );
    assert!(
        place
            .must(&["services"])
            .contains("1 of 3 active instances take no new flows")
    );
    kill(stalled.pid.unwrap(), Signal::CONT);
    eventually("it is back", PATIENCE, || {
        let (takes, why) = health_events(&inco, stalled.id).pop()?;
        (takes && why == "2 checks in a row passed").then_some(())
    });
    // One is too many now.
    inco.settled(2, 0);
    all_are_served(8);
    let status = inco.at_rest();
    assert_eq!(
        status.drops.get("spoofed").copied().unwrap_or(0),
        0,
        "{:?}",
        status.drops
    );
    inco.stop(&place);
}

#[test]
fn a_stalled_instance_gets_no_new_flows_and_is_replaced_oci() {
    a_stalled_instance_gets_no_new_flows_and_is_replaced(Engine::Oci);
}

#[test]
fn a_stalled_instance_gets_no_new_flows_and_is_replaced_docker() {
    a_stalled_instance_gets_no_new_flows_and_is_replaced(Engine::Docker);
}

#[test]
fn one_that_stays_stalled_is_removed() {
    let engine = Engine::Oci;
    if !are_here(engine, &["nginx", "curl"]) {
        return;
    }
    let (place, network) = (Place::new(), Network::new());
    let text = nginx(
        &place,
        engine,
        "instances = { min = 1, max = 2, standby = 0 }\ndrain_deadline = \"500ms\"\nhealth = { tcp = 80, every = \
         \"200ms\", timeout = \"150ms\", fall = 2 }\n",
    );
    // A check of a port that nobody serves is wrong for all: nobody is removed.
    let inco = network.run(&place, &text.replace("tcp = 80", "tcp = 81"));
    let rows = inco.settled(1, 0);
    eventually("all are used", PATIENCE, || {
        inco.told().contains("all of them are used").then_some(())
    });
    assert_eq!(network.get("http://10.0.0.100/").unwrap(), "served\n");
    std::thread::sleep(std::time::Duration::from_secs(1));
    assert!(inco.instance(rows[0].id).is_some(), "{}", inco.told());
    inco.stop(&place);

    let text = text.replace("tcp = 80", "http = \"/\"");
    let inco = network.run(&place, &text);
    let rows = inco.settled(1, 0);
    kill(rows[0].pid.unwrap(), Signal::STOP);
    eventually("it is removed", PATIENCE, || {
        let told = inco.told().contains("its checks have not passed for");
        (told && inco.instance(rows[0].id).is_none()).then_some(())
    });
    inco.settled(1, 0);
    assert_eq!(network.get("http://10.0.0.100/").unwrap(), "served\n");
    inco.stop(&place);
}

#[test]
fn an_agent_sets_weight_and_state() {
    let engine = Engine::Oci;
    if !are_here(engine, &["nginx", "curl", "sh", "nc", "cat", "sleep"]) {
        return;
    }
    let (place, network) = (Place::new(), Network::new());
    let image = "inco-test/agent";
    place.import_image(image, &["sh", "nc", "cat", "sleep"]);
    let says = place.path("says");
    std::fs::create_dir(&says).unwrap();
    let say = |id: &str, line: &str| {
        std::fs::write(says.join("new"), line).unwrap();
        std::fs::rename(says.join("new"), says.join(id)).unwrap();
    };
    // What an instance says stands in a file of its id. nc serves one connection at a time.
    let script =
        "nc -lk 80 & while :; do cat /says/$INCO_INSTANCE_ID 2>/dev/null | nc -l -N 8080 >/dev/null; done";
    let text = format!(
        "{}image = \"{image}\"\ncommand = [\"/bin/sh\", \"-c\", \"{script}\"]\nmounts = [\"{}:/says:ro\"]\n\
         autoscaler = \"fixed\"\ninstances = {{ min = 2, max = 3, standby = 0 }}\nstop_grace = \"100ms\"\n\
         scheduler = \"least-connections\"\nagent = {{ port = 8080, every = \"200ms\" }}\n",
        service(engine, "web", "80"),
        says.display()
    );
    let inco = network.run(&place, &text);
    let rows = inco.settled(2, 0);
    let id = rows[0].id;
    let weight = |inco: &crate::support::Inco| {
        let of = |event: &Event| match &event.kind {
            EventKind::Health { takes, weight, .. } if event.instance == Some(id) => Some((*takes, *weight)),
            _ => None,
        };
        inco.events().iter().rev().find_map(of)
    };
    let becomes = |what: &str, expected: (bool, u32)| {
        eventually(what, PATIENCE, || (weight(&inco) == Some(expected)).then_some(()));
    };
    say(&id.0.to_string(), "75%\n");
    becomes("three quarters", (true, 75));
    say(&id.0.to_string(), "drain\n");
    becomes("no new flows", (false, 75));
    eventually("another one comes", PATIENCE, || {
        (inco.count(InstanceState::Active) == 3).then_some(())
    });
    say(&id.0.to_string(), "ready up 50%\n");
    becomes("half", (true, 50));
    // It says nothing more: the report has no effect after a while.
    say(&id.0.to_string(), "");
    becomes("as if it had said nothing", (true, 100));
    inco.stop(&place);
}
