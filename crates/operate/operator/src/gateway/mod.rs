//! Gateways and routes of the Gateway API, as services of inco.
//!
//! A listener is a port of a Gateway's address. The oldest route that is attached to it says which Service its flows go
//! to; so a listener is one service, with the endpoints of that Service as instances. What is said here of objects
//! depends on objects alone and is the same on each node, apart from verdicts: these name their node.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use serde_json::Value;

use crate::addresses::Claim;
use crate::objects::{GATEWAY, GATEWAY_CLASS, Object, TCP_ROUTE, UDP_ROUTE, table};
use crate::plan::{Id, Part, Wanted};
use crate::spec::is_service_name;

mod backend;
mod status;

pub use backend::backends;
use backend::{Backends, backends_of};

/// The name of this controller in a `GatewayClass`.
pub const CONTROLLER: &str = "inco.dev/gateway";
const GROUP: &str = "gateway.networking.k8s.io";

/// Whether a node has these labels, each with its value.
pub type HasLabels<'a> = &'a dyn Fn(&[(String, String)]) -> bool;

/// Why something does not hold: the reason of its condition, and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Obstacle {
    reason: &'static str,
    message: String,
}

type Outcome<T> = Result<T, Obstacle>;

fn obstacle<T>(reason: &'static str, message: impl Into<String>) -> Outcome<T> {
    let message = message.into();
    Err(Obstacle { reason, message })
}

/// What is to be said of the Gateways that this node serves, and of their routes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Gateways {
    gateways: BTreeMap<Id, Gateway>,
    routes: BTreeMap<Id, Vec<Parent>>,
}

#[derive(Clone, Debug, PartialEq)]
struct Gateway {
    /// Whether this node serves it.
    is_here: bool,
    address: Outcome<IpAddr>,
    listeners: Vec<Listener>,
}

#[derive(Clone, Debug, PartialEq)]
struct Listener {
    name: String,
    port: i64,
    /// The kind of its routes.
    kind: Outcome<&'static str>,
    /// Whether routes of other namespaces may be attached.
    takes: Namespaces,
    /// The route that has it, and whether that is accepted.
    route: Option<(Id, bool)>,
    part: Option<Part>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Namespaces {
    Same,
    All,
    /// By labels of namespaces, which this operator does not read.
    Unknown,
}

/// A route at a Gateway.
#[derive(Clone, Debug, PartialEq)]
struct Parent {
    /// As the route names it.
    reference: Value,
    /// Whether this node serves the Gateway.
    is_here: bool,
    accepted: Outcome<()>,
    resolved: Outcome<()>,
    parts: Vec<Part>,
}

fn text<'a>(of: &'a Value, at: &str) -> Option<&'a str> {
    of.pointer(at).and_then(Value::as_str)
}

fn list<'a>(of: &'a Value, at: &str) -> impl Iterator<Item = &'a Value> + use<'a> {
    of.pointer(at).and_then(Value::as_array).into_iter().flatten()
}

fn is_route(object: &Object) -> bool {
    [TCP_ROUTE, UDP_ROUTE].contains(&object.id.kind)
}

/// The classes of inco, by their names.
fn classes(objects: &[Object]) -> BTreeSet<&str> {
    let all = objects.iter().filter(|of| of.id.kind == GATEWAY_CLASS);
    let own = all.filter(|of| text(&of.spec, "/controllerName") == Some(CONTROLLER));
    own.map(|of| of.id.name.as_str()).collect()
}

/// The Gateways of the classes of inco.
fn own<'a>(objects: &'a [Object]) -> impl Iterator<Item = &'a Object> + use<'a> {
    let classes = classes(objects);
    let all = objects.iter().filter(|of| of.id.kind == GATEWAY);
    all.filter(move |of| text(&of.spec, "/gatewayClassName").is_some_and(|name| classes.contains(name)))
}

/// The Gateway that a route names.
fn gateway_of(route: &Object, reference: &Value) -> Option<Id> {
    let is = |at: &str, value: &str| text(reference, at).is_none_or(|of| of == value);
    let namespace = text(reference, "/namespace").unwrap_or(&route.id.namespace);
    (is("/group", GROUP) && is("/kind", GATEWAY)).then_some(Id {
        kind: GATEWAY,
        namespace: namespace.to_owned(),
        name: text(reference, "/name")?.to_owned(),
    })
}

/// Leaves out classes of others, their Gateways, and the routes of these.
pub fn relevant(objects: Vec<Object>) -> Vec<Object> {
    let classes: BTreeSet<String> = classes(&objects).into_iter().map(str::to_owned).collect();
    let gateways: BTreeSet<Id> = own(&objects).map(|of| of.id.clone()).collect();
    let is_it = |object: &Object| match object.id.kind {
        GATEWAY_CLASS => classes.contains(&object.id.name),
        GATEWAY => gateways.contains(&object.id),
        TCP_ROUTE | UDP_ROUTE => list(&object.spec, "/parentRefs")
            .filter_map(|of| gateway_of(object, of))
            .any(|of| gateways.contains(&of)),
        _ => true,
    };
    objects.into_iter().filter(is_it).collect()
}

/// The address that a Gateway asks for.
fn asked(gateway: &Object) -> Outcome<Option<IpAddr>> {
    const UNSUPPORTED: &str = "UnsupportedAddress";
    let all: Vec<&Value> = list(&gateway.spec, "/addresses").collect();
    let of = match all.as_slice() {
        [] => return Ok(None),
        [of] => of,
        _ => {
            return obstacle(
                UNSUPPORTED,
                "spec.addresses: inco serves one address of a Gateway; write one",
            );
        }
    };
    let is_address = text(of, "/type").is_none_or(|of| of == "IPAddress");
    match text(of, "/value") {
        None | Some("") if is_address => Ok(None),
        Some(value) if is_address => match value.parse() {
            Ok(address) => Ok(Some(address)),
            Err(_) => obstacle(
                UNSUPPORTED,
                format!("spec.addresses[0]: {value:?} is no address; write an IP address"),
            ),
        },
        _ => obstacle(
            UNSUPPORTED,
            "spec.addresses[0]: write an address of the type IPAddress",
        ),
    }
}

/// The claims of Gateways of inco to addresses.
pub fn claims(objects: &[Object]) -> impl Iterator<Item = Claim> + use<'_> {
    own(objects).filter_map(|gateway| {
        let has = text(&gateway.status, "/addresses/0/value");
        Some(Claim {
            id: gateway.id.clone(),
            created: gateway.created.clone(),
            asked: asked(gateway).ok()?,
            has: has.and_then(|of| of.parse().ok()),
        })
    })
}

fn listener(of: &Value) -> Listener {
    let kind = match text(of, "/protocol") {
        Some("TCP") => Ok(TCP_ROUTE),
        Some("UDP") => Ok(UDP_ROUTE),
        _ => obstacle(
            "UnsupportedProtocol",
            "inco serves listeners of TCP and UDP; write one of these as protocol",
        ),
    };
    let kind = kind.and_then(|kind| {
        let mut all = list(of, "/allowedRoutes/kinds").peekable();
        let is_it =
            |of: &Value| text(of, "/group").is_none_or(|of| of == GROUP) && text(of, "/kind") == Some(kind);
        if all.peek().is_none() || all.any(is_it) {
            return Ok(kind);
        }
        obstacle(
            "InvalidRouteKinds",
            format!("allowedRoutes.kinds: a listener of this protocol takes {kind}; write that"),
        )
    });
    Listener {
        name: text(of, "/name").unwrap_or_default().to_owned(),
        port: of.get("port").and_then(Value::as_i64).unwrap_or_default(),
        kind,
        takes: match text(of, "/allowedRoutes/namespaces/from") {
            None | Some("Same") => Namespaces::Same,
            Some("All") => Namespaces::All,
            Some(_) => Namespaces::Unknown,
        },
        route: None,
        part: None,
    }
}

fn gateway(of: &Object, addresses: &BTreeMap<Id, Result<IpAddr, String>>, has: HasLabels<'_>) -> Gateway {
    let nodes = of.nodes();
    let given = || match addresses.get(&of.id) {
        Some(Ok(address)) => Ok(*address),
        Some(Err(why)) => obstacle("AddressNotAssigned", why.clone()),
        None => obstacle("AddressNotAssigned", "it has no address"),
    };
    let address = match &nodes {
        Ok(_) => asked(of).and_then(|_| given()),
        Err(why) => obstacle("Invalid", why.clone()),
    };
    Gateway {
        // What no node could be told, each tells.
        is_here: nodes.is_err() || nodes.is_ok_and(|of| has(&of)),
        address,
        listeners: list(&of.spec, "/listeners").map(listener).collect(),
    }
}

/// What Gateways and routes want of a node, and what is to be said of them. `others`: the Services that routes name, and
/// the grants of namespaces. `has`: whether the node has these labels.
pub fn resolve(
    objects: &[Object],
    others: &[Object],
    addresses: &BTreeMap<Id, Result<IpAddr, String>>,
    has: HasLabels<'_>,
) -> (Gateways, Vec<Wanted>) {
    let each = own(objects).map(|of| (of.id.clone(), gateway(of, addresses, has)));
    let mut all = Gateways {
        gateways: each.collect(),
        routes: BTreeMap::new(),
    };
    let mut routes: Vec<&Object> = objects.iter().filter(|of| is_route(of)).collect();
    routes.sort_by(|a, b| (&a.created, &a.id).cmp(&(&b.created, &b.id)));
    let (mut wanted, mut names) = (Vec::new(), BTreeMap::new());
    for route in routes {
        let backends = backends_of(route, others);
        let mut parents = Vec::new();
        for reference in list(&route.spec, "/parentRefs") {
            let Some(id) = gateway_of(route, reference) else {
                continue;
            };
            let Some(gateway) = all.gateways.get_mut(&id) else {
                continue;
            };
            let (parent, of_it) = attached(route, reference, &backends, (&id, gateway), &mut names);
            parents.push(parent);
            wanted.extend(of_it);
        }
        if !parents.is_empty() {
            all.routes.insert(route.id.clone(), parents);
        }
    }
    (all, wanted)
}

/// Attaches a route to the listeners of a Gateway that it may have. `names`: which Gateway of this node has a service.
fn attached(
    route: &Object,
    reference: &Value,
    backends: &Backends,
    (id, gateway): (&Id, &mut Gateway),
    names: &mut BTreeMap<String, Id>,
) -> (Parent, Vec<Wanted>) {
    let (mut parts, mut wanted) = (Vec::new(), Vec::new());
    let free = match free(route, reference, id, gateway) {
        Ok(free) => free,
        Err(why) => {
            let parent = Parent {
                reference: reference.clone(),
                is_here: gateway.is_here,
                accepted: Err(why),
                resolved: backends.resolved.clone(),
                parts,
            };
            return (parent, wanted);
        }
    };
    let mut accepted = backends.accepted.clone();
    for index in free {
        let Some(listener) = gateway.listeners.get_mut(index) else {
            continue;
        };
        let service = format!("{}-{}", id.name, listener.name);
        if accepted.is_ok() && !is_service_name(&service) {
            accepted = obstacle(
                "UnsupportedValue",
                format!(
                    "{service:?}, of the names of the Gateway and its listener, is no name of a service; write at most \
                     31 characters of a-z, 0-9 and - for both"
                ),
            );
        }
        listener.route = Some((route.id.clone(), accepted.is_ok()));
        if !gateway.is_here {
            continue;
        }
        // A Gateway of another namespace may have the same name.
        let owner = names.entry(service.clone()).or_insert_with(|| id.clone());
        let (service, is_free) = match owner == id {
            true => (service, Ok(())),
            false => {
                let said = format!(
                    "the {owner} has a service {service:?} on this node; give one of both Gateways, or its listener, another name"
                );
                (
                    format!("{}/{service}", id.namespace),
                    obstacle("Conflicted", said),
                )
            }
        };
        let address = gateway.address.clone();
        let made = accepted.clone().and(is_free).and_then(|()| {
            if backends.targets.is_empty() {
                backends.resolved.clone()?;
            }
            Ok(table(&backends.targets, (address?, listener.port)))
        });
        if made.is_err() && backends.are_withdrawn() {
            continue;
        }
        let part = (route.id.clone(), service.clone());
        listener.part = Some(part.clone());
        parts.push(part);
        wanted.push(Wanted {
            id: route.id.clone(),
            created: route.created.clone(),
            service,
            table: made.map_err(|of| of.message),
            grants: Some(backends.grants.clone()),
        });
    }
    let parent = Parent {
        reference: reference.clone(),
        is_here: gateway.is_here,
        accepted,
        resolved: backends.resolved.clone(),
        parts,
    };
    (parent, wanted)
}

/// The listeners that a route gets of a Gateway.
fn free(route: &Object, reference: &Value, id: &Id, gateway: &Gateway) -> Outcome<Vec<usize>> {
    let port = reference.get("port").and_then(Value::as_i64);
    let named: Vec<(usize, &Listener)> = gateway
        .listeners
        .iter()
        .enumerate()
        .filter(|(_, of)| text(reference, "/sectionName").is_none_or(|name| name == of.name))
        .filter(|(_, of)| port.is_none_or(|port| port == of.port))
        .collect();
    if named.is_empty() {
        let said = format!(
            "the Gateway {} has no such listener; write the name of one",
            id.name
        );
        return obstacle("NoMatchingParent", said);
    }
    let is_allowed = |of: &Listener| {
        let is_of_namespace = match of.takes {
            Namespaces::Same => route.id.namespace == id.namespace,
            Namespaces::All => true,
            Namespaces::Unknown => false,
        };
        of.kind == Ok(route.id.kind) && is_of_namespace
    };
    let allowed: Vec<(usize, &Listener)> = named.into_iter().filter(|(_, of)| is_allowed(of)).collect();
    if allowed.is_empty() {
        let said = "no listener takes routes of this kind and namespace; with allowedRoutes.namespaces.from write Same \
                    or All there";
        return obstacle("NotAllowedByListeners", said);
    }
    let is_free = |of: &&(usize, &Listener)| of.1.route.as_ref().is_none_or(|(of, _)| *of == route.id);
    let free: Vec<usize> = allowed.iter().filter(is_free).map(|(index, _)| *index).collect();
    match allowed.first().and_then(|(_, of)| of.route.as_ref()) {
        Some((older, _)) if free.is_empty() => obstacle(
            "Conflicted",
            format!(
                "the older route {}/{} has the listener; write another one as sectionName",
                older.namespace, older.name
            ),
        ),
        _ => Ok(free),
    }
}

#[cfg(test)]
mod tests;
