//! Instances from a Kubernetes Service: a real API server with its store, real nginx behind it, `EndpointSlice`s by hand.

use std::process::Command;
use std::time::{Duration, Instant};

use model::{EventKind, InstanceState, VipMode};
use real_parts::{ApiServer, has_kubernetes};

use crate::back_ends::{
    CLIENTS, HEALTH, SERVICE, Server, all_are_answered, are_here, is_active, network, row,
};
use crate::support::{Inco, Load, Namespace, Network, PATIENCE, Place, eventually, text};

const FIRST: &str = "10.1.0.11:8080";
const SECOND: &str = "10.1.0.12:8080";
const THIRD: &str = "10.1.0.13:8080";
const SLICES: &str = "/apis/discovery.k8s.io/v1/namespaces/shop/endpointslices";

/// The API server, on a machine behind the bridge of inco's machine.
struct Cluster {
    server: ApiServer,
    _host: Namespace,
}

impl Cluster {
    fn new(network: &Network, place: &Place) -> Cluster {
        let host = Namespace::new();
        network.machine_ip(&format!(
            "link add to-api type veth peer name eth0 netns {}\nlink set to-api up master lan",
            host.pid()
        ));
        host.ip("link set lo up\naddress add 10.1.0.20/24 dev eth0\nlink set eth0 up");
        let namespace = format!("--net=/proc/{}/ns/net", host.pid());
        let start = move |program: &str| {
            let mut command = Command::new("nsenter");
            command.args([&namespace, program]);
            command
        };
        let folder = place.path("cluster");
        let server = ApiServer::start_at(&folder, "10.1.0.20", (6443, 2379), Box::new(start));
        let shop = r#"{ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": "shop" } }"#;
        server.put("/api/v1/namespaces", "shop", shop);
        Cluster { server, _host: host }
    }

    /// A slice of the Service with these endpoints, each with its state in a word.
    fn put(&self, name: &str, endpoints: &[(&str, &str)]) {
        let endpoints: Vec<String> = endpoints
            .iter()
            .map(|(address, state)| {
                let ip = address.split(':').next().unwrap();
                let (ready, terminating) = (*state == "ready", *state == "terminating");
                format!(
                    r#"{{ "addresses": ["{ip}"], "conditions": {{ "ready": {ready}, "serving": {}, "terminating": {terminating} }},
                    "targetRef": {{ "kind": "Pod", "namespace": "shop", "name": "{}", "uid": "uid-{ip}" }} }}"#,
                    ready || terminating,
                    pod(address)
                )
            })
            .collect();
        let slice = format!(
            r#"{{ "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": {{ "name": "{name}", "labels": {{ "kubernetes.io/service-name": "web" }} }},
            "ports": [{{ "name": "http", "port": 8080, "protocol": "TCP" }}, {{ "name": "metrics", "port": 9090 }}],
            "endpoints": [{}] }}"#,
            endpoints.join(",")
        );
        self.server.put(SLICES, name, &slice);
    }

    fn configuration(&self, more: &str) -> String {
        format!(
            "[switch]\ndriver = \"ebpf\"\ntimeouts = {{ tcp_linger = \"100ms\" }}\n[[uplink]]\nname = \"wan\"\ndevice = \
             \"kernel:eth1\"\n[[uplink]]\nname = \"lan\"\ndevice = \"kernel:lan\"\n[service.web]\nuplinks = [\"wan\"]\nvip = {{ \
             address = \"10.0.0.100\", ports = 80, mode = \"{}\" }}\ninstances = {{ from = \"kubernetes:shop/web\", port = \
             \"http\", max = 4 }}\nscheduler = {{ policy = \"round-robin\", slow_start = \"0s\" }}\ndrain_deadline = \
             \"30s\"\n{more}[kubernetes]\nkubeconfig = \"{}\"\n",
            VipMode::Dnat.name(),
            self.server.kubeconfig().display()
        )
    }
}

/// The name of the Pod at an address.
fn pod(address: &str) -> String {
    let ip = address.split(':').next().unwrap();
    format!("web-{}", ip.rsplit('.').next().unwrap())
}

fn is_gone(inco: &Inco, address: &str) {
    eventually(&format!("{address} has gone"), PATIENCE, || {
        row(inco, address).is_none().then_some(())
    });
}

/// What events say of the API server: how often it was away, and how often back.
fn away_and_back(inco: &Inco) -> (usize, usize) {
    let events = inco.events();
    let count = |is: &dyn Fn(&EventKind) -> bool| events.iter().filter(|event| is(&event.kind)).count();
    (
        count(&|kind| matches!(kind, EventKind::Failure { what, .. } if what == "kubernetes")),
        count(&|kind| matches!(kind, EventKind::Recovered { what, .. } if what == "kubernetes")),
    )
}

fn more_requests(load: &Load, count: u64) {
    let asked = load.requests();
    eventually("more requests are answered", PATIENCE, || {
        (load.requests() > asked + count).then_some(())
    });
}

/// Endpoints come, drain and go, and the API server is killed for 20 s: no request fails but by a killed endpoint.
#[test]
fn endpoints_come_drain_and_go_and_the_api_server_is_away() {
    if !has_kubernetes() || !are_here() {
        return;
    }
    let (place, network) = (Place::with_a_cpu(), network());
    let mut first = Server::new(&network, &place, 1, FIRST);
    let mut second = Server::new(&network, &place, 2, SECOND);
    let _third = Server::new(&network, &place, 3, THIRD);
    let cluster = Cluster::new(&network, &place);
    cluster.put("web-a", &[(FIRST, "ready"), (SECOND, "ready")]);
    let file = place.file("kubernetes.toml", &cluster.configuration(HEALTH));
    let said = network.as_machine(|| {
        text(
            &place
                .output(&["doctor", "-f", &file.display().to_string()])
                .stdout,
        )
    });
    assert!(said.contains("inco may follow Services in shop"), "{said}");
    let inco = network.run_file(&place, &file);
    is_active(&inco, FIRST);
    is_active(&inco, SECOND);
    let shown = place.must(&["instances"]);
    assert!(shown.contains(&format!("{FIRST} {}", pod(FIRST))), "{shown}");
    let refused = text(&place.output(&["scale", "web", "1"]).stderr);
    assert!(refused.contains("servers that others run"), "{refused}");

    let load = Load::start(&network, SERVICE.parse().unwrap(), CLIENTS);
    eventually("both answer", PATIENCE, || {
        (load.first_answers().len() == 2).then_some(())
    });
    let ids = [FIRST, SECOND].map(|at| row(&inco, at).unwrap().id);
    // One comes, in a slice of its own.
    cluster.put("web-b", &[(THIRD, "ready")]);
    eventually("the new one answers, too", PATIENCE, || {
        (load.first_answers().len() == 3).then_some(())
    });
    // One ends: it keeps its flows until they have ended, and then may go.
    cluster.put("web-a", &[(FIRST, "terminating"), (SECOND, "ready")]);
    is_gone(&inco, FIRST);
    first.kill();
    more_requests(&load, 300);
    cluster.put("web-a", &[(SECOND, "ready")]);
    // One is not ready: it keeps its flows, and gets no new ones.
    cluster.put("web-b", &[(THIRD, "not ready")]);
    eventually("the third one is not ready", PATIENCE, || {
        row(&inco, THIRD).filter(|row| row.reason.contains("not ready") && row.live_flows == 0)
    });
    let before = row(&inco, THIRD).unwrap();
    more_requests(&load, 300);
    let after = row(&inco, THIRD).unwrap();
    assert_eq!((after.id, after.to_packets), (before.id, before.to_packets));
    cluster.put("web-b", &[(THIRD, "ready")]);
    eventually("it gets flows again", PATIENCE, || {
        row(&inco, THIRD).filter(|row| row.to_packets > after.to_packets)
    });

    // The API server is away: all goes on, and what has changed meanwhile is taken over when it is back.
    assert_eq!(away_and_back(&inco), (0, 0), "{}", inco.told());
    cluster.server.kill();
    let since = Instant::now();
    eventually("inco says that it is away", PATIENCE, || {
        (away_and_back(&inco) == (1, 0)).then_some(())
    });
    while since.elapsed() < Duration::from_secs(20) {
        more_requests(&load, 100);
    }
    assert_eq!(row(&inco, SECOND).unwrap().id, ids[1]);
    cluster.server.up();
    eventually("inco says that it is back", PATIENCE, || {
        (away_and_back(&inco) == (1, 1)).then_some(())
    });
    first.start();
    cluster.put("web-a", &[(FIRST, "ready"), (SECOND, "ready")]);
    is_active(&inco, FIRST);
    more_requests(&load, 300);
    let outcome = load.end();
    assert!(
        outcome.failures == 0 && outcome.servers == 3,
        "{outcome:#?}\n{}\n{:#?}",
        inco.told(),
        inco.status().drops
    );
    let rested = inco.at_rest();
    assert_eq!(rested.accounting.expected_moves, 0);
    assert_ne!(
        row(&inco, FIRST).unwrap().id,
        ids[0],
        "it came as another instance"
    );
    assert_eq!(row(&inco, SECOND).unwrap().id, ids[1]);

    // One is killed, and the API says that it is gone: it leaves at once.
    second.kill();
    cluster.put("web-a", &[(FIRST, "ready")]);
    is_gone(&inco, SECOND);
    all_are_answered(&network, &inco, 2);
    let rows = inco.instances();
    assert!(
        rows.len() == 2 && rows.iter().all(|row| row.state == InstanceState::Active),
        "{rows:#?}"
    );
    let status = inco.at_rest();
    assert_eq!(status.accounting.in_flight, 0, "{status:#?}");
    drop(inco.stop_with(&place, &[]));
    drop(cluster);
    place.is_left_clean();
}

/// inco is killed while the API server is away: the next one goes on with what there was, and learns the rest later.
#[test]
fn a_next_run_goes_on_without_the_api_server() {
    if !has_kubernetes() || !are_here() {
        return;
    }
    let (place, network) = (Place::quiet(), network());
    let _servers = [
        Server::new(&network, &place, 1, FIRST),
        Server::new(&network, &place, 2, SECOND),
    ];
    let cluster = Cluster::new(&network, &place);
    cluster.put("web-a", &[(FIRST, "ready"), (SECOND, "ready")]);
    let text = cluster.configuration("");
    let inco = network.run(&place, &text);
    is_active(&inco, FIRST);
    is_active(&inco, SECOND);
    let load = Load::start(&network, SERVICE.parse().unwrap(), CLIENTS);
    eventually("both answer", PATIENCE, || {
        (load.first_answers().len() == 2).then_some(())
    });
    cluster.server.kill();
    drop(inco.kill());
    let inco = network.run(&place, &text);
    is_active(&inco, FIRST);
    is_active(&inco, SECOND);
    more_requests(&load, 300);
    assert!(
        row(&inco, FIRST).unwrap().name.is_none(),
        "nobody has said so yet"
    );
    let ids = [FIRST, SECOND].map(|at| row(&inco, at).unwrap().id);
    cluster.server.up();
    for address in [FIRST, SECOND] {
        eventually("its name is known", PATIENCE, || {
            row(&inco, address).filter(|row| row.name == Some(pod(address)))
        });
    }
    assert_eq!([FIRST, SECOND].map(|at| row(&inco, at).unwrap().id), ids);
    let outcome = load.end();
    assert!(
        outcome.failures == 0 && outcome.servers == 2,
        "{outcome:#?}\n{}",
        inco.told()
    );
    assert_eq!(inco.at_rest().accounting.expected_moves, 0);
    drop(inco.stop_with(&place, &[]));
    drop(cluster);
    place.is_left_clean();
}
