//! `inco operator` beside `inco run`: a real API server, real containers, and NetworkFunctions.

use std::process::{Child, Stdio};

use model::{EventKind, InstanceState, RolloutState};
use real_parts::{ApiServer, has_kubernetes};
use serde_json::{Value, json};

use crate::rollout::TRAFFIC;
use crate::support::{Engine, IMAGE, Inco, PATIENCE, Place, assert_clean, eventually, kill};

const FUNCTIONS: &str = "/apis/inco.dev/v1alpha1/namespaces/edge/networkfunctions";
const BASE: &str = r#"
[[uplink]]
name = "wan"
device = "memif:wan.sock"

[service.none]
port = "null"
match = { proto = "udp", dst = "192.0.2.1/32", dst_port = 9 }
instances = 1
"#;

/// A running `inco operator`.
struct Operator(Child);

impl Operator {
    fn start(place: &Place, server: &ApiServer) -> Operator {
        let log = std::fs::File::create(place.path("operator.log")).unwrap();
        let mut command = place.inco(&["operator", "--node", "n1"]);
        command
            .arg("--base")
            .arg(place.path("base.toml"))
            .arg("--file")
            .arg(place.path("inco.toml"))
            .arg("--kubeconfig")
            .arg(server.kubeconfig_of("inco", "inco-operator"))
            .env("INCO_LOG", "info")
            .stderr(Stdio::from(log));
        Operator(command.spawn().unwrap())
    }

    fn ends(&mut self) {
        kill(self.0.id(), rustix::process::Signal::TERM);
        assert!(self.0.wait().unwrap().success());
    }
}

impl Drop for Operator {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn cluster(place: &Place) -> ApiServer {
    let server = ApiServer::start(&place.path("cluster"));
    let kinds = [
        (
            "CustomResourceDefinition",
            "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
        ),
        ("Namespace", "/api/v1/namespaces"),
        ("ServiceAccount", "/api/v1/namespaces/inco/serviceaccounts"),
        ("ClusterRole", "/apis/rbac.authorization.k8s.io/v1/clusterroles"),
        (
            "ClusterRoleBinding",
            "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
        ),
        ("ConfigMap", "/api/v1/namespaces/inco/configmaps"),
        ("DaemonSet", "/apis/apps/v1/namespaces/inco/daemonsets"),
    ];
    for manifest in [
        include_str!("../../../../../deploy/kubernetes/chart/crds/networkfunctions.yaml"),
        include_str!("../../../../../deploy/kubernetes/operator.yaml"),
    ] {
        server.apply(manifest, &kinds, false);
    }
    let named = |kind: &str, name: &str| {
        json!({ "apiVersion": "v1", "kind": kind, "metadata": { "name": name } }).to_string()
    };
    server.put("/api/v1/namespaces", "edge", &named("Namespace", "edge"));
    server.put("/api/v1/nodes", "n1", &named("Node", "n1"));
    server
}

fn make(server: &ApiServer, name: &str, spec: &Value) {
    let object = json!({ "apiVersion": "inco.dev/v1alpha1", "kind": "NetworkFunction", "metadata": { "name": name }, "spec": spec });
    server.ask("POST", FUNCTIONS, &object.to_string()).unwrap();
}

fn change(server: &ApiServer, name: &str, key: &str, value: &Value) {
    eventually("the change is taken", PATIENCE, || {
        let mut object = get(server, name)?;
        object["spec"][key] = value.clone();
        server
            .ask("PUT", &format!("{FUNCTIONS}/{name}"), &object.to_string())
            .ok()
    });
}

fn get(server: &ApiServer, name: &str) -> Option<Value> {
    serde_json::from_str(&server.ask("GET", &format!("{FUNCTIONS}/{name}"), "").ok()?).ok()
}

fn condition(object: &Value, kind: &str) -> Option<(String, String)> {
    let all = object.pointer("/status/conditions")?.as_array()?;
    let of = all.iter().find(|of| of["type"] == kind)?;
    Some((
        of["status"].as_str()?.to_owned(),
        of["message"].as_str()?.to_owned(),
    ))
}

/// Waits until the condition of the object is that; its message.
fn becomes(server: &ApiServer, name: &str, kind: &str, status: &str) -> String {
    eventually(&format!("{kind} of {name} is {status}"), PATIENCE, || {
        let (is, message) = condition(&get(server, name)?, kind)?;
        (is == status).then_some(message)
    })
}

fn active(inco: &Inco, service: &str) -> usize {
    let rows = inco.instances();
    let is_it = |row: &&api::types::InstanceRow| row.service == service && row.state == InstanceState::Active;
    rows.iter().filter(is_it).count()
}

fn names(inco: &Inco) -> Vec<String> {
    let services = inco.client().again().and_then(|client| client.services());
    services
        .unwrap_or_default()
        .into_iter()
        .map(|row| row.name)
        .collect()
}

/// An inco with the base file, and an operator beside it.
fn with_operator(place: &Place, server: &ApiServer) -> (Inco, Operator) {
    place.file("base.toml", BASE);
    place.must(&[
        "operator",
        "--prepare",
        "--base",
        place.path("base.toml").to_str().unwrap(),
        "--file",
        place.path("inco.toml").to_str().unwrap(),
    ]);
    let inco = place.run_file(&place.path("inco.toml"));
    let operator = Operator::start(place, server);
    (inco, operator)
}

#[test]
fn network_functions_run_change_are_refused_and_go() {
    if !has_kubernetes() || !Engine::Oci.is_here() {
        return;
    }
    let place = Place::with_a_cpu();
    let server = cluster(&place);
    let (inco, mut operator) = with_operator(&place, &server);

    let spec = json!({ "image": IMAGE, "command": ["/inco-nf", "forward", "--stamp"], "memory": "64MiB", "min": 1, "max": 3,
        "standby": 0, "match": { "proto": "udp", "dst_port": 53 }, "policy": { "autoscaler": "fixed" } });
    make(&server, "forward", &spec);
    becomes(&server, "forward", "Ready", "True");
    assert_eq!(active(&inco, "forward"), 1);
    let before = inco.instances();

    change(&server, "forward", "min", &json!(2));
    eventually("two are active", PATIENCE, || {
        (active(&inco, "forward") == 2).then_some(())
    });
    eventually("the status says so", PATIENCE, || {
        (get(&server, "forward")?["status"]["active"] == 2).then_some(())
    });
    for row in before.iter().filter(|row| row.service == "forward") {
        assert!(inco.instance(row.id).is_some(), "the first one has gone");
    }

    // What the checker refuses, and what this machine refuses.
    make(
        &server,
        "wrong",
        &json!({ "image": IMAGE, "match": { "proto": "udp", "dst_port": "x" } }),
    );
    let said = becomes(&server, "wrong", "Accepted", "False");
    assert!(said.contains("service.wrong.match.dst_port"), "{said}");
    make(
        &server,
        "absent",
        &json!({ "image": "inco-test/absent", "match": { "proto": "udp", "dst_port": 99 } }),
    );
    let said = becomes(&server, "absent", "Accepted", "False");
    assert!(said.contains("inco-test/absent"), "{said}");
    change(
        &server,
        "forward",
        "settings",
        &json!({ "drain_deadline": "soon" }),
    );
    let said = becomes(&server, "forward", "Accepted", "False");
    assert!(
        said.contains("drain_deadline") && said.contains("stays in force"),
        "{said}"
    );
    assert_eq!(active(&inco, "forward"), 2);
    change(&server, "forward", "settings", &json!({}));
    becomes(&server, "forward", "Accepted", "True");

    // The API server is away, and then back.
    server.kill();
    std::thread::sleep(std::time::Duration::from_secs(5));
    assert_eq!(active(&inco, "forward"), 2);
    server.up();
    change(&server, "forward", "min", &json!(3));
    eventually("three are active", PATIENCE, || {
        (active(&inco, "forward") == 3).then_some(())
    });

    // One that goes takes its service with it: inco starts again, and the other one keeps its instances.
    make(
        &server,
        "second",
        &json!({ "image": IMAGE, "command": ["/inco-nf", "forward"], "memory": "64MiB", "min": 1, "max": 1,
        "standby": 0, "match": { "proto": "udp", "dst_port": 54 } }),
    );
    becomes(&server, "second", "Ready", "True");
    let kept: Vec<_> = inco
        .instances()
        .into_iter()
        .filter(|row| row.service == "forward")
        .collect();
    server.delete(FUNCTIONS, "second");
    eventually("the service is gone", PATIENCE, || {
        (names(&inco) == ["none", "forward"] || names(&inco) == ["forward", "none"]).then_some(())
    });
    let events = inco.client().again().unwrap().events(100).unwrap();
    assert!(
        events
            .iter()
            .any(|event| matches!(event.kind, EventKind::Upgraded { .. }))
    );
    let client = inco.client().again().unwrap();
    let after = client.instances().unwrap();
    for row in kept {
        assert!(
            after.iter().any(|of| of.id == row.id),
            "instance {} has gone",
            row.id
        );
    }
    operator.ends();
    drop(server);
    inco.stop(&place);
}

/// Another environment is one of other instances: they come one by one, and no packet is lost.
#[test]
fn a_changed_network_function_gets_new_instances_while_packets_flow() {
    if !has_kubernetes() || !Engine::Oci.is_here() {
        return;
    }
    let place = Place::new();
    let server = cluster(&place);
    let (inco, mut operator) = with_operator(&place, &server);
    let spec = json!({ "image": IMAGE, "command": ["/inco-nf", "forward", "--stamp"], "memory": "64MiB", "min": 2, "max": 2,
        "standby": 1, "policy": { "autoscaler": "fixed", "scheduler": { "policy": "round-robin", "slow_start": "0s" } },
        "settings": { "capacity": "100kpps", "affinity": "relaxed", "ring": { "slots": 8192 } } });
    make(&server, "forward", &spec);
    becomes(&server, "forward", "Ready", "True");
    let ids = || {
        let rows = inco.instances().into_iter();
        let of_function = rows.filter(|row| row.service == "forward" && row.state != InstanceState::Gone);
        of_function.map(|row| row.id).collect::<Vec<_>>()
    };
    let before = ids();
    let traffic = place.traffic(TRAFFIC);
    eventually("all flows", PATIENCE, || {
        (inco.status().live_flows == 12).then_some(())
    });
    change(&server, "forward", "env", &json!({ "VERSION": "2" }));
    becomes(&server, "forward", "Progressing", "True");
    eventually("all instances are others", PATIENCE, || {
        let after = ids();
        (after.len() == 3 && after.iter().all(|id| !before.contains(id))).then_some(())
    });
    becomes(&server, "forward", "Progressing", "False");
    becomes(&server, "forward", "Ready", "True");
    let finished = |event: &&model::Event| matches!(&event.kind, EventKind::Rollout { state, .. } if *state == RolloutState::Finished);
    assert_eq!(inco.events().iter().filter(finished).count(), 1);
    traffic.interrupt();
    let mut report = traffic.report_with_moves();
    // A container that waits for a CPU holds packets for longer than a flow is held; such a move is told.
    if inco.status().workers.iter().any(|of| of.early_moves > 0) {
        report.counts.reordered = 0;
    }
    assert_clean(&report);
    operator.ends();
    drop(server);
    inco.stop(&place);
}
