//! The operator at an API server: a real one, and a FAKE one that is always there. inco is a FAKE in both, with inco's own
//! server of its API: it takes a file, and refuses images that it does not have. What a real inco does is tested with it.
#![allow(clippy::panic, clippy::unwrap_used, reason = "a test fails by it")]

mod cluster;
mod node;

use std::time::{Duration, Instant};

use real_parts::{ApiServer, has_kubernetes};
use serde_json::{Value, json};

use cluster::{FakeServer, Server};
use node::Node;

const PATIENCE: Duration = Duration::from_secs(60);
const FUNCTIONS: &str = "/apis/inco.dev/v1alpha1/namespaces/edge/networkfunctions";
const SERVICES: &str = "/api/v1/namespaces/edge/services";

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
    server.make(
        FUNCTIONS,
        &function(
            "firewall",
            &json!({ "image": "a", "min": 2, "max": 4, "nodeSelector": { "edge": "true" } }),
        ),
    );
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
    node.end();
}

#[test]
fn objects_of_a_kubernetes_that_is_a_fake_are_followed() {
    let folder = tempfile::tempdir().unwrap();
    follows_objects(&FakeServer::start(folder.path()));
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
