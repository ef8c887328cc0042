//! Tests of Gateways and routes.
#![allow(clippy::unwrap_used, reason = "a test fails by it")]

mod backends;

use serde_json::json;
use toml::Table;

use super::*;
use crate::addresses::Pool;
use crate::objects::{SERVICE, Wishes, wishes};
use crate::plan::Verdict;
use crate::status::Writer;

/// Objects are made in the order of their numbers.
fn object(kind: &'static str, number: u32, name: &str, spec: Value) -> Object {
    Object {
        id: Id {
            kind,
            namespace: if kind == GATEWAY_CLASS {
                String::new()
            } else {
                "shop".to_owned()
            },
            name: name.to_owned(),
        },
        uid: format!("u{number}"),
        generation: 2,
        version: "1".to_owned(),
        created: format!("2026-01-01T00:00:{number:02}Z"),
        annotations: BTreeMap::new(),
        spec,
        status: Value::Null,
    }
}

fn class() -> Object {
    object(GATEWAY_CLASS, 1, "inco", json!({ "controllerName": CONTROLLER }))
}

fn edge(listeners: Value) -> Object {
    object(
        GATEWAY,
        2,
        "edge",
        json!({ "gatewayClassName": "inco", "listeners": listeners }),
    )
}

fn both() -> Value {
    json!([{ "name": "web", "port": 80, "protocol": "TCP" }, { "name": "dns", "port": 53, "protocol": "UDP" }])
}

fn route(kind: &'static str, number: u32, name: &str, backends: Value) -> Object {
    let section = if kind == TCP_ROUTE { "web" } else { "dns" };
    let spec = json!({ "parentRefs": [{ "name": "edge", "sectionName": section }], "rules": [{ "backendRefs": backends }] });
    object(kind, number, name, spec)
}

fn to_web(number: u32, name: &str) -> Object {
    route(TCP_ROUTE, number, name, json!([{ "name": "web", "port": 8080 }]))
}

/// Services that routes name: `web` has a port without a name, `dns` has two.
fn services() -> Vec<Object> {
    let dns = json!([{ "name": "tcp", "port": 53, "protocol": "TCP" }, { "name": "udp", "port": 53, "protocol": "UDP" }]);
    vec![
        object(
            SERVICE,
            0,
            "web",
            json!({ "ports": [{ "port": 8080, "protocol": "TCP" }] }),
        ),
        object(SERVICE, 0, "dns", json!({ "ports": dns })),
    ]
}

fn wishes_at(objects: &[Object], labels: &[(&str, &str)]) -> Wishes {
    wishes_with(objects, &services(), labels)
}

/// What is wanted where there are these Services and grants.
fn wishes_with(objects: &[Object], others: &[Object], labels: &[(&str, &str)]) -> Wishes {
    let labels = labels
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
    wishes(
        objects,
        others,
        &labels.collect(),
        &Pool::parse("10.0.0.100-10.0.0.101").unwrap(),
    )
}

fn wishes_of(objects: &[Object]) -> Wishes {
    wishes_at(objects, &[])
}

/// What is said of an object by a node that has all that is wanted, apart from what is refused.
fn said_by(node: &str, wishes: &Wishes, object: &Object, refused: &[(&str, &str)]) -> Option<Value> {
    let verdict = |of: &Wanted| {
        let why = refused.iter().find(|(service, _)| *service == of.service);
        let why = why
            .map(|(_, why)| (*why).to_owned())
            .or_else(|| of.table.clone().err());
        let is_in_force = why.is_none();
        (
            of.part(),
            Verdict {
                refused: why,
                is_in_force,
            },
        )
    };
    let gone = BTreeSet::new();
    let writer = Writer {
        node,
        gone: &gone,
        now: "2026-01-01T00:01:00Z",
    };
    wishes
        .gateways
        .status(object, &wishes.wanted.iter().map(verdict).collect(), &writer)
}

fn said(wishes: &Wishes, object: &Object) -> Value {
    said_by("n1", wishes, object, &[]).unwrap()
}

/// Status and reason of a condition.
fn state(of: &Value, kind: &str) -> (String, String) {
    let it = list(of, "/conditions")
        .find(|of| text(of, "/type") == Some(kind))
        .unwrap();
    let at = |key: &str| text(it, key).unwrap().to_owned();
    (at("/status"), at("/reason"))
}

fn is(status: &str, reason: &str) -> (String, String) {
    (status.to_owned(), reason.to_owned())
}

fn parent(status: &Value) -> &Value {
    &status["parents"][0]
}

#[test]
fn a_listener_with_a_route_is_a_service_with_the_endpoints_of_its_backend() {
    let udp = route(UDP_ROUTE, 4, "names", json!([{ "name": "dns", "port": 53 }]));
    let objects = [class(), edge(both()), to_web(3, "site"), udp];
    let wishes = wishes_of(&objects);
    let of = |service: &str| {
        let wanted = wishes.wanted.iter().find(|of| of.service == service).unwrap();
        wanted.table.clone().unwrap()
    };
    let expected = |text: &str| -> Table { toml::from_str(text).unwrap() };
    assert_eq!(
        of("edge-web"),
        expected(
            "instances = { from = \"kubernetes:shop/web\" }\n\
             vip = { address = \"10.0.0.100\", ports = 80, mode = \"dnat\" }"
        )
    );
    assert_eq!(
        of("edge-dns"),
        expected(
            "instances = { from = \"kubernetes:shop/dns\", port = \"udp\" }\n\
             vip = { address = \"10.0.0.100\", ports = 53, mode = \"dnat\" }"
        )
    );
    assert_eq!(wishes.wanted.len(), 2);

    let status = said(&wishes, &objects[0]);
    assert_eq!(state(&status, "Accepted"), is("True", "Accepted"));
    let status = said(&wishes, &objects[1]);
    assert_eq!(
        status["addresses"],
        json!([{ "type": "IPAddress", "value": "10.0.0.100" }])
    );
    assert_eq!(state(&status, "Programmed"), is("True", "Programmed"));
    let web = &status["listeners"][0];
    assert_eq!((&web["name"], &web["attachedRoutes"]), (&json!("web"), &json!(1)));
    assert_eq!(
        web["supportedKinds"],
        json!([{ "group": GROUP, "kind": "TCPRoute" }])
    );
    for kind in ["Accepted", "ResolvedRefs", "Programmed"] {
        assert_eq!(state(web, kind).0, "True", "{kind}");
    }
    let status = said(&wishes, &objects[2]);
    let parent = parent(&status);
    assert_eq!(
        parent["parentRef"],
        json!({ "name": "edge", "sectionName": "web" })
    );
    assert_eq!(parent["controllerName"], CONTROLLER);
    assert_eq!(state(parent, "Accepted"), is("True", "Accepted"));
    assert_eq!(state(parent, "ResolvedRefs"), is("True", "ResolvedRefs"));
}

#[test]
fn what_is_said_again_is_the_same() {
    let mut objects = [class(), edge(both()), to_web(3, "site")];
    for index in 0..objects.len() {
        let status = said(&wishes_of(&objects), &objects[index]);
        objects[index].status = status.clone();
        assert_eq!(said(&wishes_of(&objects), &objects[index]), status);
    }
}

#[test]
fn classes_gateways_and_routes_of_others_are_left_alone() {
    let mut other = class();
    other.spec["controllerName"] = json!("example.org/other");
    let all = vec![other, edge(both()), to_web(3, "site")];
    assert_eq!(wishes_of(&all).wanted, []);
    assert_eq!(relevant(all), []);
    let service = object(SERVICE, 4, "web", json!({}));
    assert_eq!(relevant(vec![service.clone()]), [service]);
    // A route of two controllers keeps what the other one says.
    let own = [class(), edge(both()), to_web(3, "site")];
    assert_eq!(relevant(own.to_vec()), own);
    let theirs =
        json!({ "parentRef": { "name": "x" }, "controllerName": "example.org/other", "conditions": [] });
    let mut route = to_web(3, "site");
    route.status = json!({ "parents": [theirs] });
    let status = said(&wishes_of(&own), &route);
    assert_eq!(status["parents"][0], theirs);
    assert_eq!(status["parents"].as_array().unwrap().len(), 2);
    // So does a Gateway with conditions of others.
    let mut gateway = edge(both());
    gateway.status = json!({ "conditions": [{ "type": "example.org/Seen", "status": "True" }] });
    let status = said(&wishes_of(&own), &gateway);
    assert_eq!(state_of_any(&status, "example.org/Seen"), "True");
}

fn state_of_any(of: &Value, kind: &str) -> String {
    let it = list(of, "/conditions")
        .find(|of| text(of, "/type") == Some(kind))
        .unwrap();
    text(it, "/status").unwrap().to_owned()
}

#[test]
fn what_a_route_may_not_be_is_said_in_its_conditions() {
    let web = json!({ "name": "web", "port": 8080 });
    let accepted_of = |change: &dyn Fn(&mut Object)| {
        let mut route = to_web(3, "site");
        change(&mut route);
        let wishes = wishes_of(&[class(), edge(both()), route.clone()]);
        let status = said(&wishes, &route);
        let is_wanted = wishes.wanted.iter().any(|of| of.table.is_ok());
        let parent = parent(&status);
        (
            state(parent, "Accepted"),
            state(parent, "ResolvedRefs"),
            is_wanted,
        )
    };
    let backends = |all: Value| move |of: &mut Object| of.spec["rules"][0]["backendRefs"] = all.clone();
    let fine = (is("True", "Accepted"), is("True", "ResolvedRefs"), true);
    assert_eq!(accepted_of(&|_| {}), fine);
    // A backend without weight gets nothing, and asks for nothing.
    let light = json!([{ "name": "absent", "port": 1, "weight": 0 }, web]);
    assert_eq!(accepted_of(&backends(light)), fine);

    let unsupported = (is("False", "UnsupportedValue"), is("True", "ResolvedRefs"), false);
    let many: Vec<Value> = (1..18)
        .map(|number| json!({ "name": "web", "port": number }))
        .collect();
    assert_eq!(accepted_of(&backends(json!(many))), unsupported);
    assert_eq!(accepted_of(&backends(json!([]))), unsupported);
    assert_eq!(accepted_of(&|of| of.spec["rules"] = json!([{}, {}])), unsupported);

    for (backend, reason) in [
        (json!({ "name": "absent", "port": 80 }), "BackendNotFound"),
        (json!({ "name": "web", "port": 80 }), "BackendNotFound"),
        (json!({ "name": "web" }), "BackendNotFound"),
        (
            json!({ "name": "web", "port": 8080, "namespace": "other" }),
            "RefNotPermitted",
        ),
        (
            json!({ "name": "web", "port": 8080, "kind": "Secret" }),
            "InvalidKind",
        ),
    ] {
        let (accepted, resolved, is_wanted) = accepted_of(&backends(json!([backend])));
        assert_eq!(
            (accepted, resolved),
            (is("True", "Accepted"), is("False", reason)),
            "{backend}"
        );
        assert!(!is_wanted, "{backend}");
    }
    let udp_only = route(UDP_ROUTE, 3, "names", json!([{ "name": "web", "port": 8080 }]));
    let wishes = wishes_of(&[class(), edge(both()), udp_only.clone()]);
    let status = said(&wishes, &udp_only);
    assert_eq!(
        state(parent(&status), "ResolvedRefs"),
        is("False", "UnsupportedProtocol")
    );

    let absent = accepted_of(&|of| of.spec["parentRefs"][0]["sectionName"] = json!("absent"));
    assert_eq!(absent.0, is("False", "NoMatchingParent"));
    let other_kind = accepted_of(&|of| of.spec["parentRefs"][0]["sectionName"] = json!("dns"));
    assert_eq!(other_kind.0, is("False", "NotAllowedByListeners"));
    let other_port = accepted_of(&|of| of.spec["parentRefs"][0] = json!({ "name": "edge", "port": 53 }));
    assert_eq!(other_port.0, is("False", "NotAllowedByListeners"));
    let by_port = accepted_of(&|of| of.spec["parentRefs"][0] = json!({ "name": "edge", "port": 80 }));
    assert_eq!(by_port, fine);
}

#[test]
fn routes_of_other_namespaces_need_a_listener_that_takes_them() {
    let accepted = |from: Option<&str>| {
        let mut gateway = edge(both());
        if let Some(from) = from {
            gateway.spec["listeners"][0]["allowedRoutes"] = json!({ "namespaces": { "from": from } });
        }
        let mut route = to_web(3, "site");
        route.id.namespace = "elsewhere".to_owned();
        route.spec["parentRefs"][0]["namespace"] = json!("shop");
        let status = said(&wishes_of(&[class(), gateway, route.clone()]), &route);
        state(parent(&status), "Accepted").1
    };
    assert_eq!(accepted(None), "NotAllowedByListeners");
    assert_eq!(accepted(Some("Same")), "NotAllowedByListeners");
    assert_eq!(accepted(Some("Selector")), "NotAllowedByListeners");
    assert_eq!(accepted(Some("All")), "Accepted");
}

#[test]
fn the_oldest_route_has_the_listener() {
    let (young, old) = (to_web(9, "a-young"), to_web(3, "old"));
    let objects = [class(), edge(both()), young.clone(), old.clone()];
    let wishes = wishes_of(&objects);
    assert_eq!(
        wishes
            .wanted
            .iter()
            .map(|of| of.id.name.as_str())
            .collect::<Vec<_>>(),
        ["old"]
    );
    assert_eq!(
        state(parent(&said(&wishes, &young)), "Accepted"),
        is("False", "Conflicted")
    );
    assert_eq!(
        state(parent(&said(&wishes, &old)), "Accepted"),
        is("True", "Accepted")
    );
    assert_eq!(said(&wishes, &objects[1])["listeners"][0]["attachedRoutes"], 1);
}

#[test]
fn what_a_gateway_may_not_be_is_said_in_its_conditions() {
    let of = |change: &dyn Fn(&mut Value)| {
        let mut gateway = edge(both());
        change(&mut gateway.spec);
        let wishes = wishes_of(&[class(), gateway.clone(), to_web(3, "site")]);
        (said(&wishes, &gateway), wishes)
    };
    for addresses in [
        json!([{ "value": "10.0.0.1" }, { "value": "10.0.0.2" }]),
        json!([{ "type": "Hostname", "value": "a.example" }]),
        json!([{ "type": "IPAddress", "value": "a.example" }]),
    ] {
        let (status, wishes) = of(&|spec| spec["addresses"] = addresses.clone());
        assert_eq!(
            state(&status, "Accepted"),
            is("False", "UnsupportedAddress"),
            "{addresses}"
        );
        assert_eq!(state(&status, "Programmed").0, "False");
        // The service is wanted, so that it keeps what it had.
        assert!(wishes.wanted[0].table.is_err());
    }
    let (status, _) = of(&|spec| spec["addresses"] = json!([{ "value": "192.0.2.7" }]));
    assert_eq!(status["addresses"][0]["value"], "192.0.2.7");

    let (status, wishes) = of(&|spec| spec["listeners"][1]["protocol"] = json!("HTTP"));
    assert_eq!(
        state(&status["listeners"][1], "Accepted"),
        is("False", "UnsupportedProtocol")
    );
    assert_eq!(state(&status["listeners"][0], "Programmed").0, "True");
    assert_eq!(state(&status, "Programmed").0, "True");
    assert_eq!(wishes.wanted.len(), 1);
    let (status, _) =
        of(&|spec| spec["listeners"][0]["allowedRoutes"] = json!({ "kinds": [{ "kind": "HTTPRoute" }] }));
    assert_eq!(
        state(&status["listeners"][0], "ResolvedRefs"),
        is("False", "InvalidRouteKinds")
    );
    assert_eq!(status["listeners"][0]["supportedKinds"], json!([]));

    // There are two addresses.
    let more: Vec<Object> = (3..6)
        .map(|number| Object {
            id: Id {
                name: format!("g{number}"),
                ..edge(both()).id
            },
            ..edge(both())
        })
        .collect();
    let objects: Vec<Object> = [class()].into_iter().chain(more).collect();
    let status = said(&wishes_of(&objects), &objects[3]);
    assert_eq!(state(&status, "Accepted"), is("True", "Accepted"));
    assert_eq!(state(&status, "Programmed"), is("False", "AddressNotAssigned"));
    assert_eq!(status["addresses"], json!([]));
}

#[test]
fn what_a_node_refuses_is_said_with_its_name() {
    let objects = [class(), edge(both()), to_web(3, "site")];
    let wishes = wishes_of(&objects);
    let refused = [("edge-web", "there is no uplink")];
    let mut route = objects[2].clone();
    let status = said_by("n2", &wishes, &route, &refused).unwrap();
    assert_eq!(
        state(parent(&status), "Accepted"),
        is("False", "UnsupportedValue")
    );
    let message = &parent(&status)["conditions"][0]["message"];
    assert_eq!(message, "node n2: there is no uplink");
    // Another node that has it does not write over that; the node itself does.
    route.status = status.clone();
    assert_eq!(said_by("n1", &wishes, &route, &[]), Some(status));
    let again = said_by("n2", &wishes, &route, &[]).unwrap();
    assert_eq!(state(parent(&again), "Accepted"), is("True", "Accepted"));
    let status = said_by("n2", &wishes, &objects[1], &refused).unwrap();
    assert_eq!(state(&status, "Programmed"), is("False", "Invalid"));
    assert_eq!(
        state(&status["listeners"][0], "Programmed"),
        is("False", "Invalid")
    );
    assert_eq!(
        state(&status["listeners"][1], "Programmed"),
        is("True", "Programmed")
    );
    assert_eq!(state(&status, "Accepted"), is("True", "Accepted"));
}

#[test]
fn only_the_nodes_of_a_gateway_serve_it_and_speak_of_it() {
    let mut gateway = edge(both());
    gateway
        .annotations
        .insert("inco.dev/node-selector".to_owned(), "edge=true".to_owned());
    let objects = [class(), gateway.clone(), to_web(3, "site")];
    let away = wishes_at(&objects, &[]);
    assert_eq!(
        (away.wanted.len(), said_by("n1", &away, &gateway, &[])),
        (0, None)
    );
    assert_eq!(said_by("n1", &away, &objects[2], &[]), None);
    let here = wishes_at(&objects, &[("edge", "true")]);
    assert_eq!(here.wanted.len(), 1);
    // The entry of a Gateway that others serve stays in the status of a route with two.
    let mut other = edge(both());
    other.id.name = "here".to_owned();
    let mut route = to_web(3, "site");
    route.status = said(&here, &route);
    route.spec["parentRefs"] = json!([route.spec["parentRefs"][0], { "name": "here", "sectionName": "web" }]);
    let status = said(&wishes_at(&[class(), gateway, other, route.clone()], &[]), &route);
    assert_eq!(status["parents"][0], route.status["parents"][0]);
    assert_eq!(status["parents"][1]["parentRef"]["name"], "here");
}

#[test]
fn names_that_are_none_of_a_service_are_refused() {
    let mut gateway = edge(both());
    gateway.spec["listeners"][0]["name"] = json!("web.of-a-name-that-is-too-long-for-it");
    let mut route = to_web(3, "site");
    route.spec["parentRefs"] = json!([{ "name": "edge" }]);
    let wishes = wishes_of(&[class(), gateway.clone(), route.clone()]);
    assert!(wishes.wanted.iter().all(|of| of.table.is_err()));
    assert_eq!(
        state(parent(&said(&wishes, &route)), "Accepted"),
        is("False", "UnsupportedValue")
    );
    assert_eq!(said(&wishes, &gateway)["listeners"][0]["attachedRoutes"], 0);
}

#[test]
fn hostile_objects_are_read_as_far_as_they_go() {
    let odd = [
        object(GATEWAY_CLASS, 1, "inco", json!({ "controllerName": CONTROLLER })),
        object(
            GATEWAY,
            2,
            "edge",
            json!({ "gatewayClassName": "inco", "listeners": [3, {}, null], "addresses": 4 }),
        ),
        object(
            TCP_ROUTE,
            3,
            "a",
            json!({ "parentRefs": [{ "name": "edge" }, 7, {}], "rules": "x" }),
        ),
        object(UDP_ROUTE, 4, "b", Value::Null),
    ];
    let wishes = wishes_of(&odd);
    assert_eq!(wishes.wanted, []);
    assert_eq!(
        state(parent(&said(&wishes, &odd[2])), "Accepted"),
        is("False", "NotAllowedByListeners")
    );
    assert_eq!(said(&wishes, &odd[1])["listeners"].as_array().unwrap().len(), 3);
}

#[test]
fn gateways_of_one_name_have_services_of_their_own_or_say_so() {
    let (mut other, mut site) = (edge(both()), to_web(3, "site"));
    other.id.namespace = "infra".to_owned();
    other.spec["listeners"][0]["allowedRoutes"] = json!({ "namespaces": { "from": "All" } });
    site.spec["parentRefs"] = json!([{ "name": "edge", "sectionName": "web" },
        { "name": "edge", "namespace": "infra", "sectionName": "web" }]);
    let all = [class(), edge(both()), other.clone(), site.clone()];
    let wishes = wishes_of(&all);
    let wanted: Vec<_> = wishes
        .wanted
        .iter()
        .map(|of| (of.service.as_str(), of.table.is_ok()))
        .collect();
    assert_eq!(wanted, [("edge-web", true), ("infra/edge-web", false)]);
    let of_web = |gateway: &Object| {
        let said = said(&wishes, gateway);
        let listener = list(&said, "/listeners").find(|of| text(of, "/name") == Some("web"));
        state(listener.unwrap(), "Programmed")
    };
    assert_eq!(of_web(&all[1]), is("True", "Programmed"));
    assert_eq!(of_web(&other), is("False", "Invalid"));
    let status = said(&wishes, &site);
    let accepted = list(&status, "/parents").map(|of| state(of, "Accepted"));
    assert_eq!(
        accepted.collect::<Vec<_>>(),
        [is("True", "Accepted"), is("False", "UnsupportedValue")]
    );
}
