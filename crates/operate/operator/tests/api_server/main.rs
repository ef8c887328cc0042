//! The operator at an API server: a real one, and a FAKE one that is always there. inco is a FAKE in both, with inco's own
//! server of its API: it takes a file, and refuses images that it does not have. What a real inco does is tested with it.
#![allow(clippy::panic, clippy::unwrap_used, reason = "a test fails by it")]

mod cluster;
mod node;
mod rollouts;

use std::time::{Duration, Instant};

use real_parts::{ApiServer, has_kubernetes};
use serde_json::{Value, json};

use cluster::{FakeServer, Server, TOO_LARGE};
use node::Node;

const PATIENCE: Duration = Duration::from_secs(60);
const FUNCTIONS: &str = "/apis/inco.dev/v1alpha1/namespaces/edge/networkfunctions";
const SERVICES: &str = "/api/v1/namespaces/edge/services";
const GATEWAYS: &str = "/apis/gateway.networking.k8s.io/v1/namespaces/edge/gateways";
const GRANTS: &str = "/apis/gateway.networking.k8s.io/v1beta1/namespaces/other/referencegrants";
const TCP_ROUTES: &str = "/apis/gateway.networking.k8s.io/v1alpha2/namespaces/edge/tcproutes";
const UDP_ROUTES: &str = "/apis/gateway.networking.k8s.io/v1alpha2/namespaces/edge/udproutes";

fn eventually<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let since = Instant::now();
    loop {
        if let Some(found) = ask() {
            return found;
        }
        assert!(since.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn function(name: &str, spec: &Value) -> String {
    let all = json!({ "apiVersion": "inco.dev/v1alpha1", "kind": "NetworkFunction", "metadata": { "name": name }, "spec": spec });
    all.to_string()
}

fn condition<'a>(object: &'a Value, kind: &str) -> Option<&'a Value> {
    let all = object.pointer("/status/conditions")?.as_array()?;
    all.iter().find(|of| of["type"] == kind)
}

/// The object, once the condition is that.
fn becomes(server: &dyn Server, path: &str, kind: &str, status: &str) -> Value {
    let mut last = Value::Null;
    eventually(&format!("{kind} of {path} is {status}"), || {
        last = server.get(path)?;
        (condition(&last, kind)?["status"] == status).then(|| last.clone())
    })
}

fn event_is_told(server: &dyn Server, name: &str, reason: &str) {
    eventually(&format!("the event {reason} of {name}"), || {
        let all = server.get("/api/v1/namespaces/edge/events")?;
        let is_it = |of: &Value| of["involvedObject"]["name"] == name && of["reason"] == reason;
        all["items"].as_array()?.iter().any(is_it).then_some(())
    });
}

fn follows_objects(server: &dyn Server) {
    let node = Node::start(server, "n1");
    let at = |name: &str| format!("{FUNCTIONS}/{name}");

    // A function runs, and its status says so.
    let mut firewall = json!({ "image": "a", "min": 2, "max": 4, "nodeSelector": { "edge": "true" } });
    server.make(FUNCTIONS, &function("firewall", &firewall));
    let seen = becomes(server, &at("firewall"), "Ready", "True");
    assert_eq!(condition(&seen, "Accepted").unwrap()["status"], "True");
    assert_eq!(
        (&seen["status"]["active"], &seen["status"]["desired"]),
        (&json!(2), &json!(2))
    );
    assert_eq!(seen["status"]["nodes"][0]["node"], "n1");
    assert_eq!(node.services(), ["firewall", "own"]);
    event_is_told(server, "firewall", "Accepted");
    event_is_told(server, "firewall", "Ready");

    // One for other nodes is none of this one.
    server.make(
        FUNCTIONS,
        &function(
            "elsewhere",
            &json!({ "image": "a", "nodeSelector": { "edge": "false" } }),
        ),
    );
    // A change takes effect.
    server.merge(&at("firewall"), &json!({ "spec": { "min": 3 } }));
    eventually("three instances", || {
        (server.get(&at("firewall"))?["status"]["active"] == 3).then_some(())
    });
    event_is_told(server, "firewall", "Scaled");
    assert!(server.get(&at("elsewhere")).unwrap().get("status").is_none());

    // What inco's checker refuses, and what this node refuses, does not stop the others.
    server.make(
        FUNCTIONS,
        &function(
            "wrong",
            &json!({ "image": "a", "settings": { "mounts": ["/:/host"] } }),
        ),
    );
    server.make(FUNCTIONS, &function("absent", &json!({ "image": "missing" })));
    server.make(FUNCTIONS, &function("later", &json!({ "image": "a" })));
    let seen = becomes(server, &at("wrong"), "Accepted", "False");
    let said = condition(&seen, "Accepted").unwrap()["message"].as_str().unwrap();
    assert!(
        said.starts_with("node n1: spec.settings.mounts: an object of Kubernetes may not"),
        "{said}"
    );
    let seen = becomes(server, &at("absent"), "Accepted", "False");
    let said = condition(&seen, "Accepted").unwrap()["message"].as_str().unwrap();
    assert!(said.contains("there is no image"), "{said}");
    becomes(server, &at("later"), "Ready", "True");
    assert_eq!(node.services(), ["firewall", "later", "own"]);
    event_is_told(server, "absent", "Refused");
    // What was accepted before stays.
    server.merge(&at("firewall"), &json!({ "spec": { "image": "missing" } }));
    let seen = becomes(server, &at("firewall"), "Accepted", "False");
    assert_eq!(seen["status"]["active"], 3);
    assert_eq!(node.services(), ["firewall", "later", "own"]);
    server.merge(&at("firewall"), &json!({ "spec": { "image": "a" } }));
    becomes(server, &at("firewall"), "Accepted", "True");

    // The API server is away: nothing changes. When it is back, what has changed takes effect.
    let loads = node.loads();
    server.kill();
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(
        (node.services(), node.loads()),
        (
            vec!["firewall".to_owned(), "later".to_owned(), "own".to_owned()],
            loads
        )
    );
    server.up();
    server.merge(&at("later"), &json!({ "spec": { "min": 2 } }));
    eventually("it converges", || {
        (server.get(&at("later"))?["status"]["active"] == 2).then_some(())
    });

    // A Service of the class gets an address, and follows its endpoints.
    let service = |name: &str, class: &str| {
        json!({ "apiVersion": "v1", "kind": "Service", "metadata": { "name": name }, "spec": { "type": "LoadBalancer",
            "loadBalancerClass": class, "ports": [{ "name": "http", "port": 80, "protocol": "TCP" }] } })
    };
    server.make(SERVICES, &service("other", "example.org/other").to_string());
    server.make(SERVICES, &service("web", "inco.dev/inco").to_string());
    let path = format!("{SERVICES}/web");
    eventually("the address", || {
        (server.get(&path)?.pointer("/status/loadBalancer/ingress/0/ip")? == "10.0.0.100").then_some(())
    });
    assert_eq!(node.services(), ["firewall", "later", "own", "web"]);
    assert!(
        node.text().contains("from = \"kubernetes:edge/web\""),
        "{}",
        node.text()
    );

    // A deletion removes the service; inco starts again for it.
    server.delete(&at("later"));
    eventually("the service is gone", || {
        (node.services() == ["firewall", "own", "web"]).then_some(())
    });
    assert_eq!(node.starts(), 1);

    // A new operator goes on with what is there, without a change.
    let loads = node.loads();
    let node = node.operator_again(server);
    becomes(server, &at("firewall"), "Ready", "True");
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!((node.loads(), node.starts()), (loads, 1));

    // Where the definition of the objects is gone, and all objects with it, all goes on.
    server.forget_functions();
    std::thread::sleep(Duration::from_secs(12));
    assert_eq!(node.services(), ["firewall", "own", "web"]);
    // Other kinds go on being followed.
    server.make(SERVICES, &service("late", "inco").to_string());
    becomes(server, &format!("{SERVICES}/late"), "inco.dev/Accepted", "True");
    server.delete(&format!("{SERVICES}/late"));
    eventually("the service is gone", || {
        (node.services() == ["firewall", "own", "web"]).then_some(())
    });
    // It is back, and its objects come later.
    server.know_functions();
    firewall["min"] = json!(3);
    std::thread::sleep(Duration::from_secs(15));
    assert_eq!(node.services(), ["firewall", "own", "web"]);
    let loads = node.loads();
    server.make(FUNCTIONS, &function("firewall", &firewall));
    becomes(server, &at("firewall"), "Ready", "True");
    assert_eq!((node.services().len(), node.loads()), (3, loads));
    node.end();
}

/// A Service of the class of inco with two ports has one address, and says which port is refused.
fn follows_several_ports(server: &dyn Server) {
    let node = Node::start(server, "n1");
    let service = json!({ "apiVersion": "v1", "kind": "Service", "metadata": { "name": "web" }, "spec": { "type": "LoadBalancer",
        "loadBalancerClass": "inco", "ports": [{ "name": "http", "port": 80, "protocol": "TCP" },
        { "name": "sip", "port": 5060, "protocol": "UDP" }] } });
    server.make(SERVICES, &service.to_string());
    let path = format!("{SERVICES}/web");
    let seen = becomes(server, &path, "inco.dev/Accepted", "True");
    let ingress = seen.pointer("/status/loadBalancer/ingress/0").unwrap();
    assert_eq!(ingress["ip"], "10.0.0.100");
    let ports = json!([{ "port": 80, "protocol": "TCP" }, { "port": 5060, "protocol": "UDP" }]);
    assert_eq!(ingress["ports"], ports);
    assert_eq!(node.services(), ["own", "web", "web-sip"]);
    // A port that cannot be served is told, and the others go on.
    let long = "a-name-that-is-too-long-for-a-service";
    server.merge(
        &path,
        &json!({ "spec": { "ports": [{ "name": "http", "port": 80, "protocol": "TCP" },
            { "name": long, "port": 81, "protocol": "TCP" }] } }),
    );
    let seen = becomes(server, &path, "inco.dev/Accepted", "False");
    let said = condition(&seen, "inco.dev/Accepted").unwrap()["message"]
        .as_str()
        .unwrap();
    assert!(said.starts_with("node n1: spec.ports[1].name: "), "{said}");
    let ports = seen.pointer("/status/loadBalancer/ingress/0/ports").unwrap();
    assert_eq!(
        (&ports[0]["error"], &ports[1]["error"]),
        (&Value::Null, &json!("inco.dev/Refused"))
    );
    eventually("the port is gone", || {
        (node.services() == ["own", "web"]).then_some(())
    });
    node.end();
}

/// The conditions of the first parent of a route.
fn of_parent(server: &dyn Server, path: &str, kind: &str, status: &str) -> Value {
    let mut last = Value::Null;
    eventually(&format!("{kind} of the parent of {path} is {status}"), || {
        last = server.get(path)?;
        let all = last.pointer("/status/parents/0/conditions")?.as_array()?;
        let it = all.iter().find(|of| of["type"] == kind)?;
        (it["status"] == status).then(|| it.clone())
    })
}

/// Gateways and routes become services, and get conditions.
fn follows_routes(server: &dyn Server) {
    let node = Node::start(server, "n1");
    // Without the kinds of the Gateway API everything else goes on.
    server.make(FUNCTIONS, &function("firewall", &json!({ "image": "a" })));
    becomes(server, &format!("{FUNCTIONS}/firewall"), "Ready", "True");
    server.know_gateways();
    let gateway = json!({ "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway", "metadata": { "name": "gate" },
        "spec": { "gatewayClassName": "inco", "listeners": [{ "name": "web", "port": 80, "protocol": "TCP" },
        { "name": "dns", "port": 53, "protocol": "UDP" }] } });
    server.make(GATEWAYS, &gateway.to_string());
    let path = format!("{GATEWAYS}/gate");
    let seen = becomes(server, &path, "Programmed", "True");
    assert_eq!(
        seen["status"]["addresses"],
        json!([{ "type": "IPAddress", "value": "10.0.0.100" }])
    );
    becomes(
        server,
        "/apis/gateway.networking.k8s.io/v1/gatewayclasses/inco",
        "Accepted",
        "True",
    );

    let route = |kind: &str, name: &str, section: &str, backend: &str, port: u16| {
        let all = json!({ "apiVersion": "gateway.networking.k8s.io/v1alpha2", "kind": kind, "metadata": { "name": name },
            "spec": { "parentRefs": [{ "name": "gate", "sectionName": section }],
            "rules": [{ "backendRefs": [{ "name": backend, "port": port }] }] } });
        all.to_string()
    };
    server.make(TCP_ROUTES, &route("TCPRoute", "site", "web", "shop", 8080));
    server.make(UDP_ROUTES, &route("UDPRoute", "names", "dns", "shop", 53));
    let (site, names) = (format!("{TCP_ROUTES}/site"), format!("{UDP_ROUTES}/names"));
    let said = of_parent(server, &site, "ResolvedRefs", "False");
    assert_eq!(said["reason"], "BackendNotFound");
    of_parent(server, &site, "Accepted", "True");
    assert_eq!(node.services(), ["firewall", "own"]);

    // The Service comes; its own type does not matter.
    let service = json!({ "apiVersion": "v1", "kind": "Service", "metadata": { "name": "shop" }, "spec": {
        "ports": [{ "name": "http", "port": 8080, "protocol": "TCP" }, { "name": "dns", "port": 53, "protocol": "UDP" }] } });
    server.make(SERVICES, &service.to_string());
    of_parent(server, &site, "ResolvedRefs", "True");
    of_parent(server, &names, "ResolvedRefs", "True");
    eventually("both listeners are services", || {
        (node.services() == ["firewall", "gate-dns", "gate-web", "own"]).then_some(())
    });
    let text = node.text();
    assert!(
        text.contains("from = \"kubernetes:edge/shop\"") && text.contains("port = \"dns\""),
        "{text}"
    );
    event_is_told(server, "site", "Accepted");
    eventually("each listener has its route", || {
        let seen = server.get(&path)?;
        let count = |index: usize| seen["status"]["listeners"][index]["attachedRoutes"].as_i64();
        (count(0) == Some(1) && count(1) == Some(1)).then_some(())
    });

    // Two rules are more than inco takes, and what was there stays.
    let backends = |all: &Value| json!({ "spec": { "rules": [{ "backendRefs": all }] } });
    let rule = json!({ "backendRefs": [{ "name": "shop", "port": 8080 }] });
    server.merge(&site, &json!({ "spec": { "rules": [rule, rule] } }));
    assert_eq!(
        of_parent(server, &site, "Accepted", "False")["reason"],
        "UnsupportedValue"
    );
    assert_eq!(node.services(), ["firewall", "gate-dns", "gate-web", "own"]);
    // Of two backends one is in another namespace, which does not permit it; the other one goes on.
    let two = json!([{ "name": "shop", "port": 8080, "weight": 9 }, { "name": "canary", "namespace": "other", "port": 8080 }]);
    server.merge(&site, &backends(&two));
    of_parent(server, &site, "Accepted", "True");
    assert_eq!(
        of_parent(server, &site, "ResolvedRefs", "False")["reason"],
        "RefNotPermitted"
    );
    assert!(!node.text().contains("other/canary"), "{}", node.text());
    // With a grant and the Service it gets its part, until the grant is taken back.
    let canary = json!({ "apiVersion": "v1", "kind": "Service", "metadata": { "name": "canary" }, "spec": {
        "ports": [{ "name": "http", "port": 8080, "protocol": "TCP" }] } });
    server.make("/api/v1/namespaces/other/services", &canary.to_string());
    let grant = json!({ "apiVersion": "gateway.networking.k8s.io/v1beta1", "kind": "ReferenceGrant", "metadata": { "name": "routes" },
        "spec": { "from": [{ "group": "gateway.networking.k8s.io", "kind": "TCPRoute", "namespace": "edge" }],
        "to": [{ "group": "", "kind": "Service" }] } });
    server.make(GRANTS, &grant.to_string());
    of_parent(server, &site, "ResolvedRefs", "True");
    eventually("both backends have their weights", || {
        let text = node.text();
        let has = |of: &str| text.contains(of);
        (has("service = \"edge/shop\"") && has("service = \"other/canary\"") && has("weight = 9"))
            .then_some(())
    });
    server.delete(&format!("{GRANTS}/routes"));
    of_parent(server, &site, "ResolvedRefs", "False");
    eventually("the backend without a grant is gone", || {
        (!node.text().contains("other/canary")).then_some(())
    });
    assert_eq!(node.services(), ["firewall", "gate-dns", "gate-web", "own"]);
    // A route that goes takes its service with it.
    server.delete(&names);
    eventually("its service is gone", || {
        (node.services() == ["firewall", "gate-web", "own"]).then_some(())
    });
    node.end();
}

/// Several nodes say one thing of an object together.
fn merges_nodes(server: &dyn Server) {
    let other = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": "n2", "labels": { "edge": "true" } } });
    server.make("/api/v1/nodes", &other.to_string());
    let (first, second) = (Node::start(server, "n1"), Node::start(server, "n2"));
    let path = format!("{FUNCTIONS}/firewall");
    server.make(
        FUNCTIONS,
        &function("firewall", &json!({ "image": "a", "min": 2, "max": 4 })),
    );
    let of_nodes = |seen: &Value| -> Vec<String> {
        let all = seen["status"]["nodes"].as_array().into_iter().flatten();
        let mut names: Vec<_> = all.map(|of| of["node"].as_str().unwrap().to_owned()).collect();
        names.sort();
        names
    };
    let sums = |active: u64| {
        let since = Instant::now();
        loop {
            let seen = server.get(&path).unwrap();
            if seen["status"]["active"] == active && seen["status"]["desired"] == active {
                return seen;
            }
            assert!(
                since.elapsed() < PATIENCE,
                "not {active} instances within {PATIENCE:?}: {seen:#}"
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    };
    let seen = sums(4);
    assert_eq!(of_nodes(&seen), ["n1", "n2"]);
    let seen = becomes(server, &path, "Ready", "True");
    let said = condition(&seen, "Accepted").unwrap()["message"].as_str().unwrap();
    assert_eq!(said, "2 nodes accept it");
    // Both write a Service, and agree.
    let service = json!({ "apiVersion": "v1", "kind": "Service", "metadata": { "name": "web" }, "spec": { "type": "LoadBalancer",
        "loadBalancerClass": "inco.dev/inco", "ports": [{ "port": 80, "protocol": "TCP" }] } });
    server.make(SERVICES, &service.to_string());
    let service = format!("{SERVICES}/web");
    becomes(server, &service, "inco.dev/Accepted", "True");
    server.know_gateways();
    let gateway = json!({ "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway", "metadata": { "name": "gate" },
        "spec": { "gatewayClassName": "inco", "listeners": [{ "name": "web", "port": 80, "protocol": "TCP" }] } });
    server.make(GATEWAYS, &gateway.to_string());
    let gateway = format!("{GATEWAYS}/gate");
    becomes(server, &gateway, "Programmed", "True");
    // Nobody writes over what another one has written, also when all is listed again.
    let versions = || {
        let of = |path: &String| server.get(path).unwrap()["metadata"]["resourceVersion"].clone();
        [&path, &service, &gateway].map(of)
    };
    eventually("the statuses stay as they are", || {
        let before = versions();
        std::thread::sleep(Duration::from_secs(12));
        (versions() == before).then_some(())
    });
    // A change is one of both.
    server.merge(&path, &json!({ "spec": { "min": 3 } }));
    sums(6);
    // A node that the cluster does not have any more has no part in the sums.
    second.end();
    server.delete("/api/v1/nodes/n2");
    eventually("its entry is gone", || {
        let seen = server.get(&path).unwrap();
        let is_gone = of_nodes(&seen) == ["n1"];
        is_gone.then_some(())
    });
    sums(3);
    first.end();
}

/// Runs with the fake API server, and with the real one where it is built.
fn with_both(what: fn(&dyn Server)) {
    let folder = tempfile::tempdir().unwrap();
    what(&FakeServer::start(folder.path()));
    if has_kubernetes() {
        let folder = tempfile::tempdir().unwrap();
        let server = ApiServer::start(folder.path());
        cluster::prepare(&server);
        what(&server);
    }
}

#[test]
fn each_port_of_a_service_of_kubernetes_is_served() {
    with_both(follows_several_ports);
}

#[test]
fn gateways_and_routes_of_kubernetes_are_followed() {
    with_both(follows_routes);
}

#[test]
fn nodes_of_kubernetes_say_one_thing_together() {
    with_both(merges_nodes);
}

#[test]
fn objects_of_a_kubernetes_that_is_a_fake_are_followed() {
    let folder = tempfile::tempdir().unwrap();
    follows_objects(&FakeServer::start(folder.path()));
}

#[test]
fn an_object_whose_status_is_not_taken_holds_up_no_other_one() {
    let folder = tempfile::tempdir().unwrap();
    let server = FakeServer::start(folder.path());
    let node = Node::start(&server, "n1");
    server.make(FUNCTIONS, &function(TOO_LARGE, &json!({ "image": "a" })));
    server.make(FUNCTIONS, &function("firewall", &json!({ "image": "a" })));
    becomes(&server, &format!("{FUNCTIONS}/firewall"), "Ready", "True");
    assert_eq!(node.services(), [TOO_LARGE, "firewall", "own"]);
    node.end();
}

#[test]
fn an_object_that_is_refused_in_two_forms_holds_up_no_other_one() {
    let folder = tempfile::tempdir().unwrap();
    let server = FakeServer::start(folder.path());
    let node = Node::start(&server, "n1");
    let path = format!("{FUNCTIONS}/wrong");
    server.make(FUNCTIONS, &function("wrong", &json!({ "image": "missing" })));
    becomes(&server, &path, "Accepted", "False");
    server.merge(&path, &json!({ "spec": { "min": 2 } }));
    eventually("the operator has tried that", || {
        let seen = server.get(&path)?;
        let of = condition(&seen, "Accepted")?;
        let is_of_this = of["observedGeneration"] == 2 && seen["metadata"]["generation"] == 2;
        (is_of_this && of["status"] == "False").then_some(())
    });
    let since = Instant::now();
    server.make(FUNCTIONS, &function("firewall", &json!({ "image": "a" })));
    becomes(&server, &format!("{FUNCTIONS}/firewall"), "Ready", "True");
    assert!(since.elapsed() < Duration::from_secs(30), "{:?}", since.elapsed());
    node.end();
}

/// A refusal that names no service keeps no other object from being accepted, and a file that was tried is not left behind.
#[test]
fn a_refusal_without_a_name_holds_up_no_other_object() {
    let folder = tempfile::tempdir().unwrap();
    let server = FakeServer::start(folder.path());
    for (name, image) in [("a", "a"), ("b", "slow"), ("c", "a"), ("d", "a")] {
        server.make(FUNCTIONS, &function(name, &json!({ "image": image })));
    }
    let since = Instant::now();
    let node = Node::start(&server, "n1");
    for name in ["a", "c", "d"] {
        becomes(&server, &format!("{FUNCTIONS}/{name}"), "Ready", "True");
    }
    becomes(&server, &format!("{FUNCTIONS}/b"), "Accepted", "False");
    assert!(since.elapsed() < Duration::from_secs(30), "{:?}", since.elapsed());
    assert_eq!(node.services(), ["a", "c", "d", "own"]);
    assert!(!node.text().contains("slow"), "{}", node.text());
    node.end();
}

/// After a change that inco refuses for none of its services, the operator rests. What waits meanwhile is not accepted.
#[test]
fn what_inco_does_not_have_is_not_accepted_while_the_operator_rests() {
    let folder = tempfile::tempdir().unwrap();
    let server = FakeServer::start(folder.path());
    let node = Node::start(&server, "n1");
    let path = format!("{FUNCTIONS}/firewall");
    server.make(
        FUNCTIONS,
        &function("firewall", &json!({ "image": "a", "min": 1 })),
    );
    becomes(&server, &path, "Ready", "True");
    node.spoil();
    server.merge(&path, &json!({ "spec": { "min": 2 } }));
    becomes(&server, &path, "Accepted", "False");
    // It looks twice in that time.
    for _ in 0..23 {
        std::thread::sleep(Duration::from_secs(1));
        let seen = server.get(&path).unwrap();
        assert_eq!(condition(&seen, "Accepted").unwrap()["status"], "False", "{seen}");
        assert_eq!(seen["status"]["active"], 1);
    }
    node.end();
}

#[test]
fn objects_of_kubernetes_are_followed_while_the_api_server_comes_and_goes() {
    if !has_kubernetes() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let server = ApiServer::start(folder.path());
    cluster::prepare(&server);
    follows_objects(&server);
}

/// What the schema alone refuses.
#[test]
fn the_schema_of_kubernetes_refuses_what_cannot_be() {
    if !has_kubernetes() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let server = ApiServer::start(folder.path());
    cluster::prepare(&server);
    for (spec, said) in [
        (
            json!({ "image": "a", "min": 3, "max": 2 }),
            "min is more than max",
        ),
        (json!({ "min": 3 }), "nothing serves"),
        (json!({ "image": "a", "endpoints": "web" }), "remove one"),
        (
            json!({ "image": "a", "match": {}, "vip": {} }),
            "vip takes the place of match",
        ),
        (json!({ "image": "a", "service": "A b" }), "spec.service"),
        (json!({ "image": "a", "min": 0 }), "spec.min"),
    ] {
        let refused = server.ask("POST", FUNCTIONS, &function("x", &spec)).unwrap_err();
        assert!(refused.contains(said), "{spec}: {refused}");
    }
    let fits = json!({ "image": "a", "min": 1, "max": 2, "endpointPort": "http", "cpus": 0.5,
        "policy": { "scheduler": "best-fit", "autoscaler": { "policy": "ladder" } }, "settings": { "fit": 0.7 } });
    server.ask("POST", FUNCTIONS, &function("x", &fits)).unwrap();
    let seen: Value =
        serde_json::from_str(&server.ask("GET", &format!("{FUNCTIONS}/x"), "").unwrap()).unwrap();
    assert_eq!(seen["spec"], fits);
}
