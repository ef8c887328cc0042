//! What the flows of a route go to.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{Outcome, is_route, list, obstacle, text};
use crate::objects::{Object, UDP_ROUTE};

/// The Services that routes name: namespace and name.
pub fn backends(objects: &[Object]) -> BTreeSet<(String, String)> {
    let routes = objects.iter().filter(|of| is_route(of));
    let each = routes.flat_map(|route| {
        let rules = list(&route.spec, "/rules").flat_map(|rule| list(rule, "/backendRefs"));
        rules.filter_map(move |of| Some((route.id.namespace.clone(), text(of, "/name")?.to_owned())))
    });
    each.collect()
}

/// What a route's flows go to: a Service of its namespace, and the name of a port there.
pub(super) struct Backend {
    pub(super) accepted: Outcome<()>,
    pub(super) resolved: Outcome<(String, String)>,
}

pub(super) fn backend(route: &Object, services: &[Object]) -> Backend {
    match chosen(route) {
        Err(why) => Backend {
            accepted: Err(why),
            resolved: Ok(Default::default()),
        },
        Ok(of) => Backend {
            accepted: Ok(()),
            resolved: resolved(route, of, services),
        },
    }
}

/// The one backend of a route that gets flows.
fn chosen(route: &Object) -> Outcome<&Value> {
    let unsupported = |message: &str| obstacle("UnsupportedValue", message);
    let rules: Vec<&Value> = list(&route.spec, "/rules").collect();
    let [rule] = rules.as_slice() else {
        return unsupported("spec.rules: inco takes one rule of a route; write one");
    };
    let is_used = |of: &&Value| of.get("weight").and_then(Value::as_i64) != Some(0);
    let used: Vec<&Value> = list(rule, "/backendRefs").filter(is_used).collect();
    match used.as_slice() {
        [of] => Ok(of),
        [] => unsupported("spec.rules[0].backendRefs: none has a weight; write one that has"),
        _ => unsupported(
            "spec.rules[0].backendRefs: inco gives the flows of a listener to one Service; write one, and let it \
             select the Pods of both",
        ),
    }
}

fn resolved(route: &Object, of: &Value, services: &[Object]) -> Outcome<(String, String)> {
    let at = "spec.rules[0].backendRefs[0]";
    let is = |key: &str, value: &str| text(of, key).is_none_or(|of| of == value);
    let name = text(of, "/name").unwrap_or_default();
    if !is("/group", "") || !is("/kind", "Service") {
        return obstacle(
            "InvalidKind",
            format!("{at}: inco gives flows to Services; write one"),
        );
    }
    if !is("/namespace", &route.id.namespace) {
        let said =
            format!("{at}.namespace: inco follows Services of the route's own namespace; write one of these");
        return obstacle("RefNotPermitted", said);
    }
    let is_it = |of: &&Object| of.id.namespace == route.id.namespace && of.id.name == name;
    let Some(service) = services.iter().find(is_it) else {
        return obstacle(
            "BackendNotFound",
            format!("{at}: there is no Service {name}; make it"),
        );
    };
    let number = of.get("port").and_then(Value::as_i64);
    let protocol = if route.id.kind == UDP_ROUTE { "UDP" } else { "TCP" };
    let ports = service.ports();
    let mut with_number = ports.iter().filter(|of| Some(of.number) == number).peekable();
    if with_number.peek().is_none() {
        let said = format!("{at}.port: the Service {name} has no such port; write one of its ports");
        return obstacle("BackendNotFound", said);
    }
    match with_number.find(|of| of.protocol == protocol) {
        Some(port) => Ok((name.to_owned(), port.name.clone())),
        None => {
            let said =
                format!("{at}.port: the Service {name} does not have it for {protocol}; write one that is");
            obstacle("UnsupportedProtocol", said)
        }
    }
}
