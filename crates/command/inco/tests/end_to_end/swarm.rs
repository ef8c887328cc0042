//! Instances that a swarm of Docker's places on its nodes: three daemons in network namespaces behind a bridge of inco's
//! machine, and real nginx in their containers. The first node manages, and runs no instance.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use api::types::InstanceRow;
use model::{Action, EventKind, InstanceState};
use real_parts::{Swarm, has_swarm, is_full_length};
use testbed::http::Connection;

use crate::back_ends::{CLIENTS, SERVICE, all_are_answered, are_here, network};
use crate::support::{Inco, Load, Network, PATIENCE, Place, eventually, text};

/// How long an orchestrator may take for something: its nodes are processes of one machine.
pub(crate) const SWARM_PATIENCE: Duration = Duration::from_secs(60);
/// How long the manager is away.
const AWAY: Duration = Duration::from_secs(30);

/// It says in which container it runs.
pub(crate) const NGINX: &str = "daemon off;\nmaster_process off;\nuser root;\nerror_log stderr warn;\npid /tmp/nginx.pid;\nevents { \
                     worker_connections 1024; }\nhttp {\n  access_log off;\n  client_body_temp_path /tmp/b;\n  \
                     proxy_temp_path /tmp/p;\n  fastcgi_temp_path /tmp/f;\n  uwsgi_temp_path /tmp/u;\n  scgi_temp_path \
                     /tmp/s;\n  keepalive_timeout 1h;\n  keepalive_requests 1000000;\n  server {\n    listen 8080;\n    \
                     location / { return 200 $hostname; }\n  }\n}\n";

/// The swarm, with nginx at each node.
fn swarm(network: &Network, place: &Place) -> Swarm {
    let folder = place.path("swarm");
    let swarm = network.as_machine(|| Swarm::start(&folder, 3, Some("lan")));
    for node in 1..=3 {
        let host = swarm.host(node);
        place.must(&["image", "import", "nginx", "--engine", "docker", "--host", &host]);
    }
    let site = place.file("site.conf", NGINX);
    swarm.docker(1, &["config", "create", "site", &site.display().to_string()]);
    let manager = swarm.docker(1, &["info", "--format", "{{.Swarm.NodeID}}"]);
    swarm.docker(1, &["node", "update", "--availability", "drain", manager.trim()]);
    swarm
}

fn configuration(swarm: &Swarm) -> String {
    format!(
        r#"
[switch]
driver = "ebpf"
timeouts = {{ tcp_linger = "100ms" }}

[[uplink]]
name = "wan"
device = "kernel:eth1"

[[uplink]]
name = "lan"
device = "kernel:lan"

[engine]
driver = "swarm"
host = "{}"

[service.web]
uplinks = ["wan"]
port = "routed"
image = "nginx"
command = ["/usr/sbin/nginx", "-c", "/etc/site.conf"]
vip = {{ address = "10.0.0.100", ports = 80, mode = "dnat", target_port = 8080 }}
instances = {{ min = 1, max = 3, standby = 0 }}
health = {{ http = "/", every = "100ms", fall = 3, rise = 1 }}
swarm = {{ configs = ["site:/etc/site.conf"], constraints = ["node.role == worker"] }}
scheduler = {{ policy = "round-robin", slow_start = "0s" }}
autoscaler = "fixed"
drain_deadline = "30s"
"#,
        swarm.host(1)
    )
}

/// As [`Inco::settled`], within the time of an orchestrator.
pub(crate) fn settled(inco: &Inco, active: usize) -> Vec<InstanceRow> {
    let mut last = Vec::new();
    let settled = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        eventually("instances are active", SWARM_PATIENCE, || {
            last = inco.instances();
            let is_active = |row: &InstanceRow| row.state == InstanceState::Active && row.address.is_some();
            (last.len() == active && last.iter().all(is_active)).then_some(())
        });
    }));
    assert!(
        settled.is_ok(),
        "{active} active: {last:#?}\n{}\n{}",
        inco.told(),
        inco.log()
    );
    last
}

/// The nodes on which instances are, by their addresses.
fn nodes(rows: &[InstanceRow]) -> BTreeSet<String> {
    let node = |row: &InstanceRow| Some(row.address.as_ref()?.rsplit_once(':')?.0.to_owned());
    rows.iter().filter_map(node).collect()
}

/// The services of the swarm, each with how many tasks it has.
fn services(swarm: &Swarm) -> Vec<String> {
    let listed = swarm.docker(1, &["service", "ls", "--format", "{{.Name}} {{.Replicas}}"]);
    let mut services: Vec<String> = listed.lines().map(str::to_owned).collect();
    services.sort();
    services
}

/// Waits until the swarm has the instances of inco, a task each, and nothing else.
fn both_agree(inco: &Inco, swarm: &Swarm) {
    let mut wanted: Vec<String> = inco
        .instances()
        .iter()
        .map(|row| format!("{} 1/1", row.container.as_deref().unwrap_or_default()))
        .collect();
    wanted.sort();
    let mut there = Vec::new();
    eventually("the swarm has what inco has", SWARM_PATIENCE, || {
        there = services(swarm);
        (there == wanted).then_some(())
    });
}

fn ends_clean(inco: Inco, place: &Place, swarm: &Swarm) {
    drop(inco.stop_with(place, &[]));
    assert_eq!(services(swarm), Vec::<String>::new());
    for node in 1..=3 {
        eventually("no container is left", SWARM_PATIENCE, || {
            swarm
                .docker(node, &["ps", "--all", "--quiet"])
                .is_empty()
                .then_some(())
        });
    }
}

pub(crate) fn failures(inco: &Inco, is: &str) -> usize {
    let events = inco.events();
    let of = |kind: &EventKind| matches!(kind, EventKind::Failure { what, .. } if what == is);
    events.iter().filter(|event| of(&event.kind)).count()
}

/// Says how long it took from the command to the first answer. What the limit is for a machine that does nothing else, tests of
/// full length ask.
pub(crate) fn is_soon(whose: &str, took: Duration, limit: Duration) {
    eprintln!("from the command to the first answer of {whose}: {took:?}, limit {limit:?}");
    assert!(!is_full_length() || took <= limit, "{took:?}");
}

/// An orchestrator's standby answers soon after the command: it runs, and steering is all that is left. One is active, and
/// connections are opened one after the other.
pub(crate) fn warm_standby_answers(inco: &Inco, network: &Network) {
    eventually("a standby is ready", SWARM_PATIENCE, || {
        let rows = inco.instances();
        let is_ready = |row: &InstanceRow| row.state == InstanceState::Standby && row.address.is_some();
        (rows.len() == 2 && rows.iter().any(is_ready)).then_some(())
    });
    let ask = || {
        let answer = Connection::open(SERVICE.parse().unwrap()).and_then(|mut of| of.get("/", true));
        answer.unwrap()
    };
    let known = network.as_client(ask);
    let two = Action::Scale {
        service: "web".to_owned(),
        instances: Some(2),
    };
    let asked = Instant::now();
    inco.client().act(&two).unwrap();
    network.as_client(|| while ask() == known && asked.elapsed() < PATIENCE {});
    let took = asked.elapsed();
    assert!(took < PATIENCE, "the standby does not answer");
    is_soon("a warm standby", took, Duration::from_millis(20));
}

/// From 1 to 3 and back, over the nodes, while clients ask: none fails. The manager is killed for a while: steering goes
/// on, nothing is doubled or orphaned. At last, a standby becomes active.
#[test]
fn instances_scale_over_the_nodes_of_a_swarm_and_its_manager_is_away() {
    if !has_swarm() || !are_here() {
        return;
    }
    let (place, network) = (Place::with_a_cpu(), network());
    let swarm = swarm(&network, &place);
    // A manager that is back takes a node as lost, and ends its tasks, if the node does not report within three heartbeats.
    // A node waits up to 8 s between two tries.
    swarm.docker(1, &["swarm", "update", "--dispatcher-heartbeat", "15s"]);
    let file = place.file("swarm.toml", &configuration(&swarm));
    let checked = network.as_machine(|| {
        text(
            &place
                .output(&["doctor", "-f", &file.display().to_string()])
                .stdout,
        )
    });
    assert!(checked.contains("a manager of a swarm answers"), "{checked}");
    let inco = network.run_file(&place, &file);
    settled(&inco, 1);
    let load = Load::start(&network, SERVICE.parse().unwrap(), CLIENTS);
    eventually("the first one answers", PATIENCE, || {
        (load.first_answers().len() == 1).then_some(())
    });
    let asked = Instant::now();
    place.must(&["scale", "web", "3"]);
    eventually("all three answer", SWARM_PATIENCE, || {
        (load.first_answers().len() == 3).then_some(())
    });
    let served: Vec<Duration> = load.first_answers()[1..]
        .iter()
        .map(|at| at.duration_since(asked))
        .collect();
    is_soon("an instance in a swarm", served[0], Duration::from_secs(1));
    let rows = settled(&inco, 3);
    assert_eq!(nodes(&rows).len(), 2, "{rows:#?}");
    both_agree(&inco, &swarm);

    // The manager is away. What it is asked meanwhile waits.
    swarm.stop_daemon(1);
    let since = Instant::now();
    eventually("inco says that it is away", PATIENCE, || {
        (failures(&inco, "engine") > 0).then_some(())
    });
    place.must(&["scale", "web", "2"]);
    while since.elapsed() < AWAY {
        let answered = load.requests();
        eventually("requests are answered", PATIENCE, || {
            (load.requests() > answered + 100).then_some(())
        });
    }
    swarm.start_daemon(1);
    settled(&inco, 2);
    both_agree(&inco, &swarm);
    place.must(&["scale", "web", "3"]);
    settled(&inco, 3);
    place.must(&["scale", "web", "1"]);
    settled(&inco, 1);
    both_agree(&inco, &swarm);
    let outcome = load.end();
    assert!(
        outcome.failures == 0,
        "{outcome:#?}\n{}\n{:#?}",
        inco.told(),
        inco.status().drops
    );
    assert_eq!(inco.at_rest().accounting.expected_moves, 0);

    let with_standby = configuration(&swarm).replace("standby = 0", "standby = 1");
    std::fs::write(&file, with_standby).unwrap();
    network.as_machine(|| place.must(&["reload"]));
    warm_standby_answers(&inco, &network);
    ends_clean(inco, &place, &swarm);
    place.is_left_clean();
}

/// A node loses its power: its instances have failed, and others replace them. After `kill -9` the next inco goes on with
/// the instances that there are.
#[test]
fn a_lost_node_of_a_swarm_is_the_failure_of_its_instances() {
    if !has_swarm() || !are_here() {
        return;
    }
    let (place, network) = (Place::with_a_cpu(), network());
    let swarm = swarm(&network, &place);
    let text = configuration(&swarm);
    let inco = network.run(&place, &text);
    settled(&inco, 1);
    place.must(&["scale", "web", "3"]);
    let before = settled(&inco, 3);
    let of =
        |rows: &[InstanceRow]| -> Vec<_> { rows.iter().map(|row| (row.id, row.address.clone())).collect() };
    assert_eq!(nodes(&before).len(), 2, "{before:#?}");
    drop(inco.kill());
    let inco = network.run(&place, &text);
    let after = settled(&inco, 3);
    assert_eq!(of(&after), of(&before));
    both_agree(&inco, &swarm);
    all_are_answered(&network, &inco, 3);

    swarm.kill(3);
    let lost = "10.1.0.13".to_owned();
    eventually("its instances were replaced", SWARM_PATIENCE, || {
        let rows = inco.instances();
        let is_active = |row: &InstanceRow| row.state == InstanceState::Active;
        (rows.len() == 3 && rows.iter().all(is_active) && !nodes(&rows).contains(&lost)).then_some(())
    });
    all_are_answered(&network, &inco, 3);
    both_agree(&inco, &swarm);
    drop(inco.stop_with(&place, &[]));
    eventually("the swarm has no service", SWARM_PATIENCE, || {
        services(&swarm).is_empty().then_some(())
    });
    place.is_left_clean();
}
