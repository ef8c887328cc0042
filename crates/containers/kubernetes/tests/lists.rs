//! From slices to lists of servers: the pure part.
#![allow(clippy::unwrap_used, reason = "what goes wrong here fails the test")]

use std::collections::BTreeSet;

use k8s_openapi::api::discovery::v1::EndpointSlice;
use kubernetes::{PortChoice, Slices};
use model::BackEndState;
use proptest::prelude::*;
use serde_json::{Value, json};

/// An endpoint: address, Pod, and its conditions ready and terminating.
fn endpoint(address: &str, pod: &str, ready: Option<bool>, terminating: Option<bool>) -> Value {
    json!({
        "addresses": [address],
        "conditions": { "ready": ready, "serving": ready, "terminating": terminating },
        "targetRef": { "kind": "Pod", "name": format!("web-{pod}"), "uid": pod },
    })
}

fn serving(address: &str, pod: &str) -> Value {
    endpoint(address, pod, Some(true), Some(false))
}

fn slice_of(kind: &str, name: &str, ports: &Value, endpoints: &[Value]) -> EndpointSlice {
    serde_json::from_value(json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": { "name": name, "labels": { "kubernetes.io/service-name": "web" } },
        "addressType": kind,
        "ports": ports,
        "endpoints": endpoints,
    }))
    .unwrap()
}

fn slice(name: &str, endpoints: &[Value]) -> EndpointSlice {
    slice_of(
        "IPv4",
        name,
        &json!([{ "name": "http", "port": 8080, "protocol": "TCP" }]),
        endpoints,
    )
}

fn shown(slices: &Slices) -> Vec<String> {
    let word = |state| match state {
        BackEndState::Serving => "serving",
        BackEndState::Draining => "draining",
        BackEndState::NotReady => "not ready",
    };
    let list = slices.list().iter();
    list.map(|of| format!("{} {} {}", of.at, of.id.as_deref().unwrap_or("-"), word(of.state)))
        .collect()
}

#[test]
fn conditions_become_states() {
    let mut slices = Slices::new(PortChoice::Only, true);
    slices.apply(slice(
        "a",
        &[
            serving("10.1.0.1", "a"),
            // Nothing is said: ready.
            json!({ "addresses": ["10.1.0.2"] }),
            endpoint("10.1.0.3", "c", Some(false), Some(false)),
            endpoint("10.1.0.4", "d", Some(false), Some(true)),
            // `publishNotReadyAddresses` says ready of all.
            endpoint("10.1.0.5", "e", Some(true), Some(true)),
        ],
    ));
    assert_eq!(
        shown(&slices),
        [
            "10.1.0.1:8080 a serving",
            "10.1.0.2:8080 - serving",
            "10.1.0.3:8080 c not ready",
            "10.1.0.4:8080 d draining",
            "10.1.0.5:8080 e draining",
        ]
    );
    assert_eq!(slices.list()[0].name.as_deref(), Some("web-a"));
}

#[test]
fn several_slices_are_one_list_in_a_stable_order() {
    let mut slices = Slices::new(PortChoice::Only, true);
    slices.apply(slice("b", &[serving("10.1.0.9", "x")]));
    slices.apply(slice("a", &[serving("10.1.0.1", "a"), serving("10.1.0.2", "b")]));
    let ports = json!([{ "name": "http", "port": 8080 }]);
    slices.apply(slice_of("IPv6", "v6", &ports, &[serving("2001:db8::1", "a")]));
    slices.apply(slice_of(
        "FQDN",
        "names",
        &ports,
        &[json!({ "addresses": ["web.example"] })],
    ));
    let expected = [
        "10.1.0.9:8080 x serving",
        "10.1.0.1:8080 a serving",
        "10.1.0.2:8080 b serving",
    ];
    assert_eq!(shown(&slices), expected);
    // Everything again, in other slices.
    slices.replace([
        slice("c", &[serving("10.1.0.2", "b"), serving("10.1.0.9", "x")]),
        slice("d", &[serving("10.1.0.1", "a"), serving("10.1.0.0", "new")]),
    ]);
    assert_eq!(shown(&slices)[..3], expected);
    assert_eq!(shown(&slices)[3], "10.1.0.0:8080 new serving");
    slices.delete("d");
    slices.delete("nobody");
    assert_eq!(
        shown(&slices),
        ["10.1.0.9:8080 x serving", "10.1.0.2:8080 b serving"]
    );
    let mut v6 = Slices::new(PortChoice::Only, false);
    v6.apply(slice_of("IPv6", "v6", &ports, &[serving("2001:db8::1", "a")]));
    assert_eq!(shown(&v6), ["[2001:db8::1]:8080 a serving"]);
}

#[test]
fn an_address_in_two_slices_is_one_server() {
    let mut slices = Slices::new(PortChoice::Only, true);
    slices.apply(slice("a", &[serving("10.1.0.1", "a")]));
    // The same Pod is moved to another slice, where it already ends.
    slices.apply(slice("b", &[endpoint("10.1.0.1", "a", Some(true), Some(true))]));
    assert_eq!(shown(&slices), ["10.1.0.1:8080 a draining"]);
    // Its address is another Pod's.
    slices.apply(slice("c", &[serving("10.1.0.1", "b")]));
    assert_eq!(shown(&slices), ["10.1.0.1:8080 b serving"]);
    slices.delete("c");
    slices.delete("b");
    assert_eq!(shown(&slices), ["10.1.0.1:8080 a serving"]);
}

#[test]
fn the_port_is_the_only_one_or_the_named_one() {
    let two = json!([{ "name": "http", "port": 8080 }, { "name": "metrics", "port": 9090 },
        { "name": "other", "port": 1, "protocol": "SCTP" }]);
    let endpoints = [serving("10.1.0.1", "a")];
    for (choice, ports, expected) in [
        (
            PortChoice::Only,
            json!([{ "name": "", "port": 80 }]),
            Ok("10.1.0.1:80 a serving"),
        ),
        (
            PortChoice::Only,
            two.clone(),
            Err("does not say which port: they have http (8080), metrics (9090)"),
        ),
        (
            PortChoice::Named("metrics".to_owned()),
            two.clone(),
            Ok("10.1.0.1:9090 a serving"),
        ),
        (
            PortChoice::Number(8080),
            two.clone(),
            Ok("10.1.0.1:8080 a serving"),
        ),
        (
            PortChoice::Named("web".to_owned()),
            two,
            Err("no port \"web\": they have http (8080)"),
        ),
        (
            PortChoice::Number(81),
            json!([]),
            Err("no port 81: they have none"),
        ),
        (PortChoice::Only, Value::Null, Err("the endpoints have no port")),
    ] {
        let mut slices = Slices::new(choice, true);
        slices.apply(slice_of("IPv4", "a", &ports, &endpoints));
        match expected {
            Ok(server) => assert_eq!(
                (shown(&slices), slices.problem()),
                (vec![server.to_owned()], None)
            ),
            Err(said) => {
                assert!(slices.list().is_empty());
                assert!(slices.problem().unwrap().contains(said), "{:?}", slices.problem());
            }
        }
    }
    // A Service without endpoints has a slice without ports: no problem.
    let mut slices = Slices::new(PortChoice::Named("http".to_owned()), true);
    slices.apply(slice_of("IPv4", "a", &Value::Null, &[]));
    assert_eq!((slices.list(), slices.problem()), (&[][..], None));
}

#[test]
fn addresses_that_no_server_can_have_are_left_out() {
    let mut slices = Slices::new(PortChoice::Only, true);
    let wrong = ["127.0.0.1", "0.0.0.0", "224.0.0.1", "::1", "web", ""];
    let mut endpoints: Vec<Value> = wrong.iter().map(|at| serving(at, at)).collect();
    endpoints.push(json!({ "addresses": [] }));
    endpoints.push(serving("10.1.0.1", "a"));
    slices.apply(slice("a", &endpoints));
    assert_eq!(shown(&slices), ["10.1.0.1:8080 a serving"]);
}

/// An endpoint: address, Pod, whether it is ready, whether it ends.
type Made = (u8, u8, bool, bool);

/// What happens to three slices: each time one of them gets other endpoints, or is deleted.
fn changes() -> impl Strategy<Value = Vec<(u8, Option<Vec<Made>>)>> {
    let endpoint = (0..5_u8, 0..3_u8, any::<bool>(), any::<bool>());
    let slice = prop::option::weighted(0.8, prop::collection::vec(endpoint, 0..5));
    prop::collection::vec((0..3_u8, slice), 1..20)
}

fn made(number: u8, endpoints: &[Made]) -> EndpointSlice {
    let endpoints: Vec<Value> = endpoints
        .iter()
        .map(|(at, pod, ready, ends)| {
            endpoint(
                &format!("10.1.0.{}", at + 1),
                &format!("{at}-{pod}"),
                Some(*ready),
                Some(*ends),
            )
        })
        .collect();
    slice(&format!("slice-{number}"), &endpoints)
}

proptest! {
    /// However events come, repeated or out of a new list: an address is there once, whatever is in a slice is there,
    /// nothing else is, and those that stay keep their order.
    #[test]
    fn the_list_is_what_the_slices_say(changes in changes(), again in any::<[bool; 20]>()) {
        let mut slices = Slices::new(PortChoice::Only, true);
        let mut there: std::collections::BTreeMap<u8, EndpointSlice> = Default::default();
        let mut before: Vec<std::net::SocketAddr> = Vec::new();
        for ((number, endpoints), again) in changes.iter().zip(again) {
            match endpoints {
                Some(endpoints) => {
                    let slice = made(*number, endpoints);
                    there.insert(*number, slice.clone());
                    slices.apply(slice);
                }
                None => {
                    there.remove(number);
                    slices.delete(&format!("slice-{number}"));
                }
            }
            let list = slices.list().to_vec();
            if again {
                // The watch begins again, and tells everything again.
                slices.replace(there.values().cloned());
                for slice in there.values().rev() {
                    slices.apply(slice.clone());
                }
                prop_assert_eq!(slices.list(), &list[..]);
            }
            let now: Vec<_> = list.iter().map(|of| of.at).collect();
            let expected: BTreeSet<String> = there
                .values()
                .flat_map(|slice| &slice.endpoints)
                .map(|of| format!("{}:8080", of.addresses[0]))
                .collect();
            prop_assert_eq!(now.iter().map(ToString::to_string).collect::<BTreeSet<_>>(), expected);
            prop_assert_eq!(now.iter().collect::<BTreeSet<_>>().len(), now.len());
            let stayed: Vec<_> = before.iter().filter(|at| now.contains(at)).collect();
            let first: Vec<_> = now.iter().take(stayed.len()).collect();
            prop_assert_eq!(first, stayed);
            // Of each the state is one that a slice says of that Pod.
            for of in &list {
                let says = |endpoint: &&k8s_openapi::api::discovery::v1::Endpoint| {
                    let uid = endpoint.target_ref.as_ref().and_then(|of| of.uid.as_deref());
                    let is = |of: Option<bool>| of == Some(true);
                    let conditions = endpoint.conditions.as_ref().unwrap();
                    let state = match (is(conditions.terminating), is(conditions.ready)) {
                        (true, _) => BackEndState::Draining,
                        (false, true) => BackEndState::Serving,
                        (false, false) => BackEndState::NotReady,
                    };
                    endpoint.addresses[0] == of.at.ip().to_string() && uid == of.id.as_deref() && state == of.state
                };
                prop_assert!(there.values().flat_map(|slice| &slice.endpoints).any(|of| says(&of)));
            }
            before = now;
        }
    }
}
