//! Instances as Pods: a real cluster with a kubelet on inco's machine, real nginx in the Pods, reached over the node's bridge.

use std::net::SocketAddr;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use api::types::InstanceRow;
use real_parts::{ApiServer, has_kubernetes_node};
use serde_json::{Value, json};

use crate::back_ends::{CLIENTS, SERVICE, all_are_answered, are_here};
use crate::support::{Engine, Inco, Load, Network, Outcome, PATIENCE, Place, bridge, eventually, text};
use crate::swarm::{NGINX, SWARM_PATIENCE, failures, is_soon, settled, warm_standby_answers};

/// How long the API server is away.
fn away() -> Duration {
    Duration::from_secs(if real_parts::is_full_length() { 300 } else { 30 })
}

const PODS: &str = "/api/v1/namespaces/default/pods";
const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const IMAGE: &str = "nginx:latest";

/// The cluster, with nginx at its node.
fn cluster(network: &Network, place: &Place) -> ApiServer {
    // As the node's plugin would make it for its first Pod: inco begins before that.
    network.machine_ip(&format!(
        "{}\naddress add 10.88.0.1/16 dev pods0\nlink set pods0 up",
        bridge("pods0")
    ));
    let namespace = format!("--net=/proc/{}/ns/net", network.machine_pid());
    let start = move |program: &str| {
        let mut command = Command::new("nsenter");
        command.args([&namespace, program]);
        command
    };
    let server = ApiServer::start_with_node(&place.path("cluster"), Box::new(start));
    place.must(&["image", "import", "nginx", "--engine", "docker"]);
    server.give_image(IMAGE);
    let site = serde_json::json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "site" }, "data": { "nginx.conf": NGINX } });
    server.put(MAPS, "site", &site.to_string());
    server
}

fn configuration(server: &ApiServer) -> String {
    format!(
        r#"
[switch]
driver = "ebpf"
timeouts = {{ tcp_linger = "100ms" }}

[[uplink]]
name = "wan"
device = "kernel:eth1"

[[uplink]]
name = "pods"
device = "kernel:pods0"

[engine]
driver = "kubernetes"
pull = "never"

[kubernetes]
kubeconfig = "{}"

[service.web]
uplinks = ["wan"]
port = "routed"
image = "nginx"
command = ["/usr/sbin/nginx", "-c", "/etc/site/nginx.conf"]
vip = {{ address = "10.0.0.100", ports = 80, mode = "dnat", target_port = 8080 }}
instances = {{ min = 1, max = 3, standby = 0 }}
health = {{ http = "/", every = "50ms", fall = 4, rise = 1 }}
kubernetes = {{ configs = ["site:/etc/site"], reserved_cpus = 0.05 }}
scheduler = {{ policy = "round-robin", slow_start = "0s" }}
autoscaler = "fixed"
drain_deadline = "30s"
"#,
        server.kubeconfig().display()
    )
}

/// The Pods of inco, by their names.
fn pods(server: &ApiServer) -> Vec<String> {
    let path = format!("{PODS}?labelSelector=app.kubernetes.io%2Fmanaged-by%3Dinco");
    let listed: serde_json::Value = serde_json::from_str(&server.ask("GET", &path, "").unwrap()).unwrap();
    let name = |pod: &serde_json::Value| pod["metadata"]["name"].as_str().unwrap().to_owned();
    let mut names: Vec<String> = listed["items"].as_array().unwrap().iter().map(name).collect();
    names.sort();
    names
}

fn names(rows: &[InstanceRow]) -> Vec<String> {
    let mut names: Vec<String> = rows.iter().filter_map(|row| row.container.clone()).collect();
    names.sort();
    names
}

/// Waits until the cluster has the instances of inco, and nothing else.
fn both_agree(inco: &Inco, server: &ApiServer) {
    eventually("the cluster has what inco has", SWARM_PATIENCE, || {
        (pods(server) == names(&inco.instances())).then_some(())
    });
}

fn ends_clean(inco: Inco, place: &Place, server: ApiServer) {
    drop(inco.stop_with(place, &[]));
    assert_eq!(pods(&server), Vec::<String>::new());
    drop(server);
    place.is_left_clean();
}

/// From 1 to 3 and back while clients ask: none fails. The API server is killed for a while: steering goes on, nothing is
/// doubled or orphaned. At last, a standby becomes active.
#[test]
fn pods_scale_and_the_api_server_is_away() {
    if !has_kubernetes_node() || !are_here() || !Engine::Docker.is_here() {
        return;
    }
    let (place, network) = (Place::quiet(), Network::new());
    let server = cluster(&network, &place);
    let file = place.file("pods.toml", &configuration(&server));
    let said = network.as_machine(|| {
        text(
            &place
                .output(&["doctor", "-f", &file.display().to_string()])
                .stdout,
        )
    });
    assert!(said.contains("inco may run Pods in default"), "{said}");
    let inco = network.run_file(&place, &file);
    settled(&inco, 1);
    let load = Load::start(&network, SERVICE.parse().unwrap(), CLIENTS);
    eventually("the first one answers", PATIENCE, || {
        (load.first_answers().len() == 1).then_some(())
    });
    for count in [2, 3] {
        let asked = Instant::now();
        place.must(&["scale", "web", &count.to_string()]);
        eventually("one more answers", SWARM_PATIENCE, || {
            (load.first_answers().len() == count).then_some(())
        });
        let served = load.first_answers()[count - 1].duration_since(asked);
        is_soon("a Pod", served, Duration::from_millis(1500));
    }
    settled(&inco, 3);
    both_agree(&inco, &server);

    // The API server is away. What it is asked meanwhile waits.
    server.kill();
    let since = Instant::now();
    eventually("inco says that it is away", PATIENCE, || {
        (failures(&inco, "engine") > 0).then_some(())
    });
    place.must(&["scale", "web", "2"]);
    while since.elapsed() < away() {
        let answered = load.requests();
        eventually("requests are answered", PATIENCE, || {
            (load.requests() > answered + 100).then_some(())
        });
    }
    server.up();
    settled(&inco, 2);
    both_agree(&inco, &server);
    place.must(&["scale", "web", "1"]);
    settled(&inco, 1);
    both_agree(&inco, &server);
    let outcome = load.end();
    assert!(
        outcome.failures == 0 && outcome.servers == 3,
        "{outcome:#?}\n{}\n{:#?}",
        inco.told(),
        inco.status().drops
    );
    assert_eq!(inco.at_rest().accounting.expected_moves, 0);

    let with_standby = configuration(&server).replace("standby = 0", "standby = 1");
    std::fs::write(&file, with_standby).unwrap();
    network.as_machine(|| place.must(&["reload"]));
    warm_standby_answers(&inco, &network);
    ends_clean(inco, &place, server);
}

/// After `kill -9` the next inco goes on with the Pods that there are. A Pod whose program is killed, and one that others
/// delete, are replaced by others. A rollout of inco breaks no connection, beside that of a Deployment.
#[test]
fn a_killed_or_deleted_pod_is_replaced_and_pods_are_adopted() {
    if !has_kubernetes_node() || !are_here() || !Engine::Docker.is_here() {
        return;
    }
    let (place, network) = (Place::quiet(), Network::new());
    let server = cluster(&network, &place);
    let text = configuration(&server);
    let inco = network.run(&place, &text);
    settled(&inco, 1);
    place.must(&["scale", "web", "2"]);
    let before = settled(&inco, 2);
    let of =
        |rows: &[InstanceRow]| -> Vec<_> { rows.iter().map(|row| (row.id, row.address.clone())).collect() };
    drop(inco.kill());
    let inco = network.run(&place, &text);
    let after = settled(&inco, 2);
    assert_eq!(of(&after), of(&before));
    both_agree(&inco, &server);
    all_are_answered(&network, &inco, 2);

    let first = names(&after)[0].clone();
    server.kill_container(&first, "instance");
    eventually("it was replaced", SWARM_PATIENCE, || {
        (!names(&inco.instances()).contains(&first)).then_some(())
    });
    settled(&inco, 2);
    both_agree(&inco, &server);
    all_are_answered(&network, &inco, 2);

    let second = names(&inco.instances())[0].clone();
    server.delete(PODS, &second);
    eventually("it was replaced as well", SWARM_PATIENCE, || {
        (!names(&inco.instances()).contains(&second)).then_some(())
    });
    settled(&inco, 2);
    both_agree(&inco, &server);
    all_are_answered(&network, &inco, 2);

    // All Pods are replaced, once by inco and once by a Deployment.
    let load = Load::start(&network, SERVICE.parse().unwrap(), CLIENTS);
    eventually("both answer", PATIENCE, || {
        (load.first_answers().len() == 2).then_some(())
    });
    place.must(&["rollout", "web", "--wait", "--timeout", "60"]);
    eventually("both new ones answer", PATIENCE, || {
        (load.first_answers().len() == 4).then_some(())
    });
    let by_inco = load.end();
    let by_deployment = rollout_of_a_deployment(&network, &server);
    eprintln!("while all Pods are replaced: {by_inco:?} by inco, {by_deployment:?} by a Deployment");
    assert!(by_inco.failures == 0, "{by_inco:#?}\n{}", inco.told());
    ends_clean(inco, &place, server);
}

/// The same program as a Deployment, whose Pods are replaced as `kubectl rollout restart` has it done. Each connection goes to
/// one of the addresses that are ready, as a proxy of the node's would choose it.
fn rollout_of_a_deployment(network: &Network, server: &ApiServer) -> Outcome {
    let labels = json!({ "app": "plain" });
    let container = json!({ "name": "web", "image": IMAGE, "imagePullPolicy": "Never",
        "command": ["/usr/sbin/nginx", "-c", "/etc/site/nginx.conf"], "volumeMounts": [{ "name": "site", "mountPath": "/etc/site" }],
        "readinessProbe": { "httpGet": { "path": "/", "port": 8080 }, "periodSeconds": 1 } });
    let deployment = json!({ "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": "plain" },
        "spec": { "replicas": 2, "selector": { "matchLabels": labels },
            "strategy": { "rollingUpdate": { "maxSurge": 1, "maxUnavailable": 0 } },
            "template": { "metadata": { "labels": labels },
                "spec": { "containers": [container], "volumes": [{ "name": "site", "configMap": { "name": "site" } }] } } } });
    let service = json!({ "apiVersion": "v1", "kind": "Service", "metadata": { "name": "plain" },
        "spec": { "clusterIP": "None", "selector": labels, "ports": [{ "port": 8080 }] } });
    server.put(
        "/api/v1/namespaces/default/services",
        "plain",
        &service.to_string(),
    );
    server.put(DEPLOYMENTS, "plain", &deployment.to_string());
    let ready: Arc<Mutex<Vec<SocketAddr>>> = Arc::default();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                *ready.lock().unwrap() = endpoints(server);
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        let chosen = Arc::clone(&ready);
        let choose = move |number: usize| {
            let ready = chosen.lock().unwrap();
            ready.get(number % ready.len().max(1)).copied()
        };
        let load = network.as_machine(|| Load::choosing(choose, CLIENTS));
        eventually("both Pods of the Deployment answer", SWARM_PATIENCE, || {
            (load.first_answers().len() == 2).then_some(())
        });
        let path = format!("{DEPLOYMENTS}/plain");
        let mut object = get(server, &path);
        object["spec"]["template"]["metadata"]["annotations"] =
            json!({ "kubectl.kubernetes.io/restartedAt": "2026-01-01T00:00:00Z" });
        object.as_object_mut().unwrap().remove("status");
        object["metadata"]
            .as_object_mut()
            .unwrap()
            .remove("resourceVersion");
        server.ask("PUT", &path, &object.to_string()).unwrap();
        eventually(
            "both new Pods answer, and the others are gone",
            SWARM_PATIENCE,
            || {
                let seen = get(server, &path);
                let number = |key: &str| seen["status"][key].as_u64().unwrap_or_default();
                let are_new = number("updatedReplicas") == 2 && number("replicas") == 2;
                (are_new && load.first_answers().len() == 4).then_some(())
            },
        );
        let outcome = load.end();
        is_over.store(true, Ordering::Relaxed);
        server.delete(DEPLOYMENTS, "plain");
        server.delete("/api/v1/namespaces/default/services", "plain");
        outcome
    })
}

fn get(server: &ApiServer, path: &str) -> Value {
    serde_json::from_str(&server.ask("GET", path, "").unwrap()).unwrap()
}

/// The addresses of the Deployment's Pods that are ready, and do not end.
fn endpoints(server: &ApiServer) -> Vec<SocketAddr> {
    let path = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices?labelSelector=kubernetes.io%2Fservice-name%3Dplain";
    let slices = get(server, path);
    let each = slices["items"].as_array().into_iter().flatten();
    let each = each.flat_map(|of| of["endpoints"].as_array().into_iter().flatten());
    let ready = each.filter(|of| of["conditions"]["ready"] == true);
    let address = |of: &Value| format!("{}:8080", of["addresses"][0].as_str().unwrap());
    ready.map(|of| address(of).parse().unwrap()).collect()
}
