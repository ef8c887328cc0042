//! What the flows of a route go to: Services, as far as their namespaces permit it.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{GROUP, Obstacle, Outcome, is_route, list, obstacle, text};
use crate::objects::{Object, REFERENCE_GRANT, SERVICE, Target, UDP_ROUTE};
use crate::plan::Grants;

/// Most backends of a route: as many as the Gateway API permits.
const BACKENDS_LIMIT: usize = 16;
/// The largest weight of the Gateway API.
const WEIGHT_LIMIT: i64 = 1_000_000;
/// The reason where the owner of a backend has not permitted it.
const NOT_PERMITTED: &str = "RefNotPermitted";

/// A Service that a route names: its namespace and its name.
fn named(route: &Object, of: &Value) -> Option<(String, String)> {
    let namespace = text(of, "/namespace").unwrap_or(&route.id.namespace);
    Some((namespace.to_owned(), text(of, "/name")?.to_owned()))
}

/// The Services that routes name: namespace and name.
pub fn backends(objects: &[Object]) -> BTreeSet<(String, String)> {
    let routes = objects.iter().filter(|of| is_route(of));
    let each = routes.flat_map(|route| {
        let rules = list(&route.spec, "/rules").flat_map(|rule| list(rule, "/backendRefs"));
        rules.filter_map(move |of| named(route, of))
    });
    each.collect()
}

/// The backends of a route.
pub(super) struct Backends {
    /// Whether inco can have such a route.
    pub(super) accepted: Outcome<()>,
    /// What is wrong with the first one that cannot be used.
    pub(super) resolved: Outcome<()>,
    /// Those that can be used, each once.
    pub(super) targets: Vec<Target>,
    /// The Services of other namespaces that it may name.
    pub(super) grants: Grants,
}

impl Backends {
    /// Whether the owner of a backend does not permit it, and no other one can be used. What was in force before must not
    /// stay then.
    pub(super) fn are_withdrawn(&self) -> bool {
        let is_it = |of: &Obstacle| of.reason == NOT_PERMITTED;
        self.targets.is_empty() && self.resolved.as_ref().is_err_and(is_it)
    }
}

/// The backends of a route. `others`: the Services that routes name, and the grants of namespaces.
pub(super) fn backends_of(route: &Object, others: &[Object]) -> Backends {
    let mut all = Backends {
        accepted: Ok(()),
        resolved: Ok(()),
        targets: Vec::new(),
        grants: grants(route, others),
    };
    let used = match used(route) {
        Ok(used) => used,
        Err(why) => {
            all.accepted = Err(why);
            return all;
        }
    };
    let mut problems: Vec<Obstacle> = Vec::new();
    for (index, of) in used {
        let at = format!("spec.rules[0].backendRefs[{index}]");
        match resolved(route, of, (others, &all.grants), &at) {
            Err(problem) => problems.push(problem),
            Ok(target) => {
                let mut there = all.targets.iter_mut();
                match there.find(|of| of.is_same(&target)) {
                    Some(same) => same.weight = (same.weight + target.weight).min(WEIGHT_LIMIT),
                    None => all.targets.push(target),
                }
            }
        }
    }
    // What an owner has not permitted is said first.
    problems.sort_by_key(|of| of.reason != NOT_PERMITTED);
    all.resolved = problems.into_iter().next().map_or(Ok(()), Err);
    all
}

fn weight(of: &Value) -> i64 {
    let weight = of.get("weight").and_then(Value::as_i64).unwrap_or(1);
    weight.clamp(0, WEIGHT_LIMIT)
}

/// The backends of a route that get flows, each with its place in the list.
fn used(route: &Object) -> Outcome<Vec<(usize, &Value)>> {
    let unsupported = |message: String| obstacle("UnsupportedValue", message);
    let rules: Vec<&Value> = list(&route.spec, "/rules").collect();
    let [rule] = rules.as_slice() else {
        return unsupported("spec.rules: inco takes one rule of a route; write one".to_owned());
    };
    let all = list(rule, "/backendRefs").enumerate();
    let used: Vec<(usize, &Value)> = all.filter(|(_, of)| weight(of) > 0).collect();
    match used.len() {
        0 => unsupported("spec.rules[0].backendRefs: none has a weight; write one that has".to_owned()),
        1..=BACKENDS_LIMIT => Ok(used),
        count => unsupported(format!(
            "spec.rules[0].backendRefs: {count} have a weight; write at most {BACKENDS_LIMIT} of them"
        )),
    }
}

/// The Services of other namespaces that routes of this kind and namespace may name (`ReferenceGrant`).
fn grants(route: &Object, others: &[Object]) -> Grants {
    let is = |of: &Value, at: &str, value: &str| text(of, at).unwrap_or_default() == value;
    let is_from = |of: &&Value| {
        is(of, "/group", GROUP) && is(of, "/kind", route.id.kind) && is(of, "/namespace", &route.id.namespace)
    };
    let grants = others.iter().filter(|of| of.id.kind == REFERENCE_GRANT);
    let grants = grants.filter(|of| list(&of.spec, "/from").any(|of| is_from(&of)));
    let each = grants.flat_map(|of| list(&of.spec, "/to").map(move |to| (&of.id.namespace, to)));
    let services = each.filter(|(_, to)| is(to, "/group", "") && is(to, "/kind", SERVICE));
    let of = |(namespace, to): (&String, &Value)| {
        let name = text(to, "/name").filter(|of| !of.is_empty());
        (namespace.clone(), name.map(str::to_owned))
    };
    Grants(services.map(of).collect())
}

fn resolved(route: &Object, of: &Value, (others, grants): (&[Object], &Grants), at: &str) -> Outcome<Target> {
    let is = |key: &str, value: &str| text(of, key).is_none_or(|of| of == value);
    let name = text(of, "/name").unwrap_or_default();
    let namespace = text(of, "/namespace").unwrap_or(&route.id.namespace);
    if !is("/group", "") || !is("/kind", SERVICE) {
        let said = format!("{at}: inco gives flows to Services; write one");
        return obstacle("InvalidKind", said);
    }
    if namespace != route.id.namespace && !grants.permit((namespace, name)) {
        let (kind, own) = (route.id.kind, &route.id.namespace);
        let said = format!(
            "{at}: the namespace {namespace} does not permit it; make a ReferenceGrant there, from {kind}s of {own} to \
             the Service {name}"
        );
        return obstacle(NOT_PERMITTED, said);
    }
    let is_it = |of: &&Object| of.id.kind == SERVICE && of.id.namespace == namespace && of.id.name == name;
    let Some(service) = others.iter().find(is_it) else {
        let said = format!("{at}: there is no Service {namespace}/{name}; make it");
        return obstacle("BackendNotFound", said);
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
        Some(port) => Ok(Target {
            namespace: namespace.to_owned(),
            service: name.to_owned(),
            port: port.name.clone(),
            weight: weight(of),
        }),
        None => {
            let said =
                format!("{at}.port: the Service {name} does not have it for {protocol}; write one that is");
            obstacle("UnsupportedProtocol", said)
        }
    }
}
