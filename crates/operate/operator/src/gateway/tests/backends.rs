//! Tests of what the flows of routes go to.

use super::*;
use crate::objects::REFERENCE_GRANT;

/// Of the only service that is wanted, or why it has no table; [`None`]: none is wanted.
fn table_of(wishes: &Wishes) -> Option<Result<Table, String>> {
    assert!(wishes.wanted.len() < 2);
    wishes.wanted.first().map(|of| of.table.clone())
}

#[test]
fn several_backends_get_flows_by_their_weights() {
    let backends = json!([
        { "name": "web", "port": 8080, "weight": 90 },
        { "name": "dns", "port": 53, "weight": 9 },
        { "name": "web", "port": 8080 },
        { "name": "absent", "port": 1, "weight": 0 },
    ]);
    let route = route(TCP_ROUTE, 3, "site", backends);
    let wishes = wishes_of(&[class(), edge(both()), route.clone()]);
    let expected: Table = toml::from_str(
        "scheduler = \"maglev\"\n\
         instances = { from = [{ service = \"shop/web\", weight = 91 }, { service = \"shop/dns\", port = \"tcp\", weight = 9 }] }\n\
         vip = { address = \"10.0.0.100\", ports = 80, mode = \"dnat\" }",
    )
    .unwrap();
    assert_eq!(table_of(&wishes), Some(Ok(expected)));
    let status = said(&wishes, &route);
    assert_eq!(state(parent(&status), "Accepted"), is("True", "Accepted"));
    assert_eq!(state(parent(&status), "ResolvedRefs"), is("True", "ResolvedRefs"));
}

#[test]
fn a_backend_that_cannot_be_used_leaves_the_others() {
    let backends = |first: Value| json!([first, { "name": "web", "port": 8080, "weight": 9 }]);
    for (first, reason) in [
        (json!({ "name": "absent", "port": 80 }), "BackendNotFound"),
        (
            json!({ "name": "web", "port": 8080, "namespace": "other" }),
            "RefNotPermitted",
        ),
        (
            json!({ "name": "web", "port": 8080, "kind": "Secret" }),
            "InvalidKind",
        ),
    ] {
        let route = route(TCP_ROUTE, 3, "site", backends(first));
        let wishes = wishes_of(&[class(), edge(both()), route.clone()]);
        // It alone is as if the route had no other one.
        let table = table_of(&wishes).unwrap().unwrap();
        assert_eq!(table["instances"]["from"].as_str(), Some("kubernetes:shop/web"));
        let status = said(&wishes, &route);
        assert_eq!(state(parent(&status), "Accepted"), is("True", "Accepted"));
        assert_eq!(state(parent(&status), "ResolvedRefs"), is("False", reason));
    }
    // What an owner does not permit is said before what is missing.
    let two = json!([{ "name": "absent", "port": 1 }, { "name": "web", "port": 8080, "namespace": "other" }]);
    let route = route(TCP_ROUTE, 3, "site", two);
    let status = said(&wishes_of(&[class(), edge(both()), route.clone()]), &route);
    assert_eq!(
        state(parent(&status), "ResolvedRefs"),
        is("False", "RefNotPermitted")
    );
    let message = &parent(&status)["conditions"][1]["message"];
    assert!(
        message
            .as_str()
            .unwrap()
            .starts_with("spec.rules[0].backendRefs[1]: "),
        "{message}"
    );
}

fn grant(from: Value, to: Value) -> Object {
    let mut grant = object(REFERENCE_GRANT, 0, "grant", json!({ "from": [from], "to": [to] }));
    grant.id.namespace = "other".to_owned();
    grant
}

/// The Service `web` of another namespace, and a grant there.
fn granted(grant: Option<Object>) -> (Wishes, Object) {
    let mut others = services();
    let mut web = others[0].clone();
    web.id.namespace = "other".to_owned();
    others.push(web);
    others.extend(grant);
    let route = route(
        TCP_ROUTE,
        3,
        "site",
        json!([{ "name": "web", "port": 8080, "namespace": "other" }]),
    );
    (
        wishes_with(&[class(), edge(both()), route.clone()], &others, &[]),
        route,
    )
}

#[test]
fn a_backend_of_another_namespace_needs_a_grant_there() {
    let from = json!({ "group": GROUP, "kind": "TCPRoute", "namespace": "shop" });
    let to = json!({ "group": "", "kind": "Service" });
    let named = json!({ "group": "", "kind": "Service", "name": "web" });
    for to in [&to, &named] {
        let (wishes, route) = granted(Some(grant(from.clone(), to.clone())));
        let table = table_of(&wishes).unwrap().unwrap();
        assert_eq!(table["instances"]["from"].as_str(), Some("kubernetes:other/web"));
        assert_eq!(
            state(parent(&said(&wishes, &route)), "ResolvedRefs"),
            is("True", "ResolvedRefs")
        );
    }
    let mut elsewhere = grant(from.clone(), to.clone());
    elsewhere.id.namespace = "shop".to_owned();
    let with = |of: &Value, key: &str, value: Value| {
        let mut of = of.clone();
        of[key] = value;
        of
    };
    for grant in [
        None,
        Some(elsewhere),
        Some(grant(with(&from, "kind", json!("UDPRoute")), to.clone())),
        Some(grant(with(&from, "namespace", json!("shops")), to.clone())),
        Some(grant(with(&from, "group", json!("")), to.clone())),
        Some(grant(from.clone(), with(&to, "name", json!("dns")))),
        Some(grant(from.clone(), with(&to, "kind", json!("Secret")))),
        Some(grant(from.clone(), with(&to, "group", json!("example.org")))),
        Some(grant(Value::Null, json!(7))),
    ] {
        let (wishes, route) = granted(grant.clone());
        let status = said(&wishes, &route);
        let parent = parent(&status);
        assert_eq!(state(parent, "Accepted"), is("True", "Accepted"));
        assert_eq!(
            state(parent, "ResolvedRefs"),
            is("False", "RefNotPermitted"),
            "{grant:?}"
        );
        // What was in force does not stay: the owner may have taken the grant back.
        assert_eq!(table_of(&wishes), None, "{grant:?}");
    }
    // A Service that is absent is told apart only where it may be named.
    let absent = route(
        TCP_ROUTE,
        3,
        "site",
        json!([{ "name": "absent", "port": 1, "namespace": "other" }]),
    );
    let reason = |others: &[Object]| {
        let wishes = wishes_with(&[class(), edge(both()), absent.clone()], others, &[]);
        state(parent(&said(&wishes, &absent)), "ResolvedRefs").1
    };
    assert_eq!(reason(&services()), "RefNotPermitted");
    assert_eq!(reason(&[grant(from, to)]), "BackendNotFound");
}

#[test]
fn the_services_that_routes_name_are_those_of_their_namespaces() {
    let backends_of =
        json!([{ "name": "a", "port": 1 }, { "name": "b", "port": 1, "namespace": "other" }, { "port": 1 }]);
    let all = backends(&[class(), route(TCP_ROUTE, 3, "site", backends_of)]);
    let pair = |namespace: &str, name: &str| (namespace.to_owned(), name.to_owned());
    assert_eq!(all, BTreeSet::from([pair("shop", "a"), pair("other", "b")]));
}
