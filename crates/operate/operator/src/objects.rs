//! Objects of the cluster, and what they want of a node.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde_json::Value;
use toml::Table;

use crate::addresses::{Claim, Pool, assign};
use crate::gateway::{self, Gateways};
use crate::plan::{Id, Wanted};
use crate::spec::{self, is_service_name};

/// The kind of the objects that describe functions.
pub const FUNCTION: &str = "NetworkFunction";
/// The kind of Services.
pub const SERVICE: &str = "Service";
/// The kinds of the Gateway API.
pub const GATEWAY_CLASS: &str = "GatewayClass";
/// An address with listeners.
pub const GATEWAY: &str = "Gateway";
/// What becomes of the connections of a listener of TCP.
pub const TCP_ROUTE: &str = "TCPRoute";
/// The same for datagrams of UDP.
pub const UDP_ROUTE: &str = "UDPRoute";
/// What a namespace permits routes of others to name.
pub const REFERENCE_GRANT: &str = "ReferenceGrant";
/// What defines kinds.
pub const CUSTOM_DEFINITION: &str = "CustomResourceDefinition";
/// All kinds that are listed and watched.
pub const KINDS: [&str; 7] = [
    FUNCTION,
    SERVICE,
    GATEWAY_CLASS,
    GATEWAY,
    TCP_ROUTE,
    UDP_ROUTE,
    REFERENCE_GRANT,
];
/// The classes of Services that inco serves: with a domain, as Kubernetes advises, and short.
pub const CLASSES: [&str; 2] = ["inco.dev/inco", "inco"];
/// The annotation with the address of a Service.
const ADDRESS: &str = "inco.dev/address";
/// The annotation with the labels of the nodes that serve a Service: `edge=true,rack=1`.
const NODES: &str = "inco.dev/node-selector";

/// An object, as far as it matters here.
#[derive(Clone, Debug, PartialEq)]
pub struct Object {
    /// Which.
    pub id: Id,
    /// Which of those that had this name.
    pub uid: String,
    /// The generation of its specification; 0 of what has none.
    pub generation: i64,
    /// The version of the whole of it, for a change of that and no other one.
    pub version: String,
    /// When it was made, in a form that sorts.
    pub created: String,
    /// Its annotations.
    pub annotations: BTreeMap<String, String>,
    /// What is wanted.
    pub spec: Value,
    /// What was said of it.
    pub status: Value,
}

/// What all objects want of this node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Wishes {
    /// The services of this node.
    pub wanted: Vec<Wanted>,
    /// Objects that cannot be read so far that a node could be told: no node has a service of them.
    pub unreadable: BTreeMap<Id, String>,
    /// The addresses of Services.
    pub addresses: BTreeMap<Id, IpAddr>,
    /// What is to be said of Gateways and routes.
    pub gateways: Gateways,
}

/// A port of a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServicePort {
    /// Its number.
    pub number: i64,
    /// Its protocol.
    pub protocol: String,
    /// Its name; empty: it has none.
    pub name: String,
    /// The service of inco that serves it.
    pub service: String,
    /// Why none does.
    problem: Option<String>,
}

/// The group and version of a kind.
pub fn api_version(kind: &str) -> &'static str {
    match kind {
        FUNCTION => "inco.dev/v1alpha1",
        GATEWAY_CLASS | GATEWAY => "gateway.networking.k8s.io/v1",
        TCP_ROUTE | UDP_ROUTE => "gateway.networking.k8s.io/v1alpha2",
        REFERENCE_GRANT => "gateway.networking.k8s.io/v1beta1",
        CUSTOM_DEFINITION => "apiextensions.k8s.io/v1",
        _ => "v1",
    }
}

/// Whether a cluster need not know the kind.
pub fn is_optional(kind: &str) -> bool {
    ![FUNCTION, SERVICE].contains(&kind)
}

impl Object {
    /// Whether inco may be to serve it: of Gateways and routes, the classes say that.
    pub fn is_of_inco(&self) -> bool {
        let text = |key: &str| self.spec.get(key).and_then(Value::as_str);
        let is_of_class = || text("loadBalancerClass").is_some_and(|of| CLASSES.contains(&of));
        self.id.kind != SERVICE || text("type") == Some("LoadBalancer") && is_of_class()
    }

    fn annotation(&self, key: &str) -> Option<&str> {
        self.annotations.get(key).map(String::as_str)
    }

    /// The labels of the nodes that serve it, by its annotation.
    ///
    /// # Errors
    /// What is wrong with that.
    pub fn nodes(&self) -> Result<Vec<(String, String)>, String> {
        let pairs = self.annotation(NODES).unwrap_or_default().split(',');
        let read = |pair: &str| {
            let (key, value) = pair
                .split_once('=')
                .ok_or_else(|| format!("the annotation {NODES}: {pair:?} is no label; write KEY=VALUE"))?;
            Ok((key.trim().to_owned(), value.trim().to_owned()))
        };
        pairs.filter(|of| !of.is_empty()).map(read).collect()
    }

    fn claim(&self) -> Result<Claim, String> {
        let of_spec = self.spec.get("loadBalancerIP").and_then(Value::as_str);
        let asked = self.annotation(ADDRESS).or(of_spec).filter(|of| !of.is_empty());
        let read = |of: &str| {
            of.parse::<IpAddr>()
                .map_err(|_| format!("the annotation {ADDRESS}: {of:?} is no address; write an IP address"))
        };
        let has = self
            .status
            .pointer("/loadBalancer/ingress/0/ip")
            .and_then(Value::as_str);
        Ok(Claim {
            id: self.id.clone(),
            created: self.created.clone(),
            asked: asked.map(read).transpose()?,
            has: has.and_then(|of| of.parse().ok()),
        })
    }

    /// The ports of a Service. The first one has the service with the name of the object, so that a further port renames
    /// nothing. An address of inco takes TCP and UDP of a port, so a number has one service.
    pub fn ports(&self) -> Vec<ServicePort> {
        let all = self.spec.get("ports").and_then(Value::as_array);
        let mut targets: BTreeMap<i64, (Option<&Value>, String)> = BTreeMap::new();
        let mut ports = Vec::new();
        for (index, port) in all.into_iter().flatten().enumerate() {
            let text = |key: &str| port.get(key).and_then(Value::as_str).unwrap_or_default();
            let number = port.get("port").and_then(Value::as_i64).unwrap_or_default();
            let (name, target) = (text("name"), port.get("targetPort"));
            let protocol = if text("protocol").is_empty() {
                "TCP"
            } else {
                text("protocol")
            };
            let mut service = match index {
                0 => self.id.name.clone(),
                _ => format!("{}-{name}", self.id.name),
            };
            let at = format!("spec.ports[{index}]");
            let mut problem = None;
            match targets.get(&number) {
                _ if !["TCP", "UDP"].contains(&protocol) => {
                    problem = Some(format!(
                        "{at}.protocol: inco serves TCP and UDP; write one of these"
                    ));
                }
                Some((of, serves)) if *of == target => service.clone_from(serves),
                Some(_) => {
                    problem = Some(format!(
                        "{at}.targetPort: inco serves TCP and UDP of port {number} alike; write the same for both"
                    ));
                }
                None if !is_service_name(&service) => {
                    problem = Some(format!(
                        "{at}.name: {service:?} would be its service, which is no name of one; write shorter names"
                    ));
                }
                None => drop(targets.insert(number, (target, service.clone()))),
            }
            let (protocol, name) = (protocol.to_owned(), name.to_owned());
            ports.push(ServicePort {
                number,
                protocol,
                name,
                service,
                problem,
            });
        }
        ports
    }

    /// What a Service wants: a service for each number among its ports.
    fn wanted(&self, address: Result<IpAddr, String>) -> Vec<Wanted> {
        let mut all: Vec<Wanted> = Vec::new();
        let of = |service: &str, table: Result<Table, String>| Wanted {
            id: self.id.clone(),
            created: self.created.clone(),
            service: service.to_owned(),
            table,
            grants: None,
        };
        for port in self.ports() {
            if all.iter().any(|of| of.service == port.service) {
                continue;
            }
            let table = match port.problem {
                Some(problem) => Err(problem),
                None => address.clone().map(|address| {
                    let target = Target {
                        namespace: self.id.namespace.clone(),
                        service: self.id.name.clone(),
                        port: port.name,
                        weight: 1,
                    };
                    table(&[target], (address, port.number))
                }),
            };
            all.push(of(&port.service, table));
        }
        if all.is_empty() {
            let none = Err("spec.ports: there is none; write one".to_owned());
            all.push(of(&self.id.name, none));
        }
        all
    }
}

/// A Service whose endpoints get flows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) namespace: String,
    pub(crate) service: String,
    /// The name of its port; empty: it has none.
    pub(crate) port: String,
    /// Its share of new flows against that of the others.
    pub(crate) weight: i64,
}

impl Target {
    /// Whether both are the same port of the same Service.
    pub(crate) fn is_same(&self, other: &Target) -> bool {
        (&self.namespace, &self.service, &self.port) == (&other.namespace, &other.service, &other.port)
    }
}

/// The table of a service at that address and port, whose instances are the endpoints of Services, each at one of its
/// ports. Several have weights, which not each scheduler has.
pub(crate) fn table(targets: &[Target], at: (IpAddr, i64)) -> Table {
    let mut table = Table::new();
    let mut instances = Table::new();
    match targets {
        [only] => {
            let from = format!("kubernetes:{}/{}", only.namespace, only.service);
            instances.insert("from".to_owned(), from.into());
            if !only.port.is_empty() {
                instances.insert("port".to_owned(), only.port.clone().into());
            }
        }
        several => {
            let each = several.iter().map(|of| {
                let service = format!("{}/{}", of.namespace, of.service);
                let mut row = Table::from_iter([
                    ("service".to_owned(), service.into()),
                    ("weight".to_owned(), of.weight.into()),
                ]);
                if !of.port.is_empty() {
                    row.insert("port".to_owned(), of.port.clone().into());
                }
                toml::Value::Table(row)
            });
            instances.insert("from".to_owned(), toml::Value::Array(each.collect()));
            table.insert("scheduler".to_owned(), "maglev".into());
        }
    }
    let mut vip = Table::new();
    vip.insert("address".to_owned(), at.0.to_string().into());
    vip.insert("ports".to_owned(), at.1.into());
    vip.insert("mode".to_owned(), "dnat".into());
    table.insert("instances".to_owned(), toml::Value::Table(instances));
    table.insert("vip".to_owned(), toml::Value::Table(vip));
    table
}

/// What the objects want of a node with these labels. `others`: the Services that routes name, and the grants of
/// namespaces.
pub fn wishes(
    objects: &[Object],
    others: &[Object],
    labels: &BTreeMap<String, String>,
    pool: &Pool,
) -> Wishes {
    let mut wishes = Wishes::default();
    let of_kind = |kind: &'static str| objects.iter().filter(move |of| of.id.kind == kind);
    let claims = of_kind(SERVICE).filter_map(|of| of.claim().ok());
    let claims: Vec<Claim> = claims.chain(gateway::claims(objects)).collect();
    let addresses = assign(&claims, pool);
    let has = |nodes: &[(String, String)]| nodes.iter().all(|(key, value)| labels.get(key) == Some(value));
    for object in of_kind(FUNCTION) {
        match spec::place(&object.id.name, &object.spec) {
            Ok(place) if has(&place.nodes) => wishes.wanted.push(Wanted {
                id: object.id.clone(),
                created: object.created.clone(),
                service: place.service,
                table: spec::table(&object.id.namespace, &object.spec),
                grants: None,
            }),
            Ok(_) => {}
            Err(reason) => drop(wishes.unreadable.insert(object.id.clone(), reason)),
        }
    }
    for object in of_kind(SERVICE) {
        match spec::place(&object.id.name, &Value::Null).and_then(|_| object.nodes()) {
            Ok(nodes) if has(&nodes) => {
                let none = || Err("it has no address".to_owned());
                let given = || addresses.get(&object.id).cloned().unwrap_or_else(none);
                let address = object.claim().and_then(|_| given());
                if let Ok(address) = &address {
                    wishes.addresses.insert(object.id.clone(), *address);
                }
                wishes.wanted.extend(object.wanted(address));
            }
            Ok(_) => {}
            Err(reason) => drop(wishes.unreadable.insert(object.id.clone(), reason)),
        }
    }
    let (gateways, wanted) = gateway::resolve(objects, others, &addresses, &has);
    wishes.gateways = gateways;
    wishes.wanted.extend(wanted);
    wishes
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by it")]
    use super::*;
    use serde_json::json;

    fn object(kind: &'static str, name: &str, spec: Value) -> Object {
        Object {
            id: Id {
                kind,
                namespace: "shop".to_owned(),
                name: name.to_owned(),
            },
            uid: "u".to_owned(),
            generation: 1,
            version: "1".to_owned(),
            created: "2026-01-01T00:00:00Z".to_owned(),
            annotations: BTreeMap::new(),
            spec,
            status: Value::Null,
        }
    }

    fn balanced(name: &str) -> Object {
        object(
            SERVICE,
            name,
            json!({ "type": "LoadBalancer", "loadBalancerClass": CLASSES[0],
            "ports": [{ "name": "http", "port": 80, "targetPort": 8080, "protocol": "TCP" }] }),
        )
    }

    fn wishes_of(objects: &[Object], labels: &[(&str, &str)]) -> Wishes {
        let labels = labels
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        wishes(
            objects,
            &[],
            &labels.collect(),
            &Pool::parse("10.0.0.100-10.0.0.101").unwrap(),
        )
    }

    #[test]
    fn only_services_of_the_class_are_of_inco() {
        for class in CLASSES {
            let mut of = balanced("web");
            of.spec["loadBalancerClass"] = json!(class);
            assert!(of.is_of_inco(), "{class}");
        }
        for (key, value) in [
            ("loadBalancerClass", json!("inco.dev")),
            ("type", json!("ClusterIP")),
            ("loadBalancerClass", json!("other/class")),
            ("loadBalancerClass", Value::Null),
        ] {
            let mut other = balanced("web");
            other.spec[key] = value;
            assert!(!other.is_of_inco(), "{key}");
        }
        assert!(object(FUNCTION, "a", Value::Null).is_of_inco());
    }

    #[test]
    fn a_service_gets_an_address_and_follows_its_endpoints() {
        let wishes = wishes_of(&[balanced("web")], &[]);
        let expected: Table = toml::from_str(
            "instances = { from = \"kubernetes:shop/web\", port = \"http\" }\n\
             vip = { address = \"10.0.0.100\", ports = 80, mode = \"dnat\" }",
        )
        .unwrap();
        assert_eq!(wishes.wanted[0].table, Ok(expected));
        let mut asks = balanced("web");
        asks.annotations
            .insert(ADDRESS.to_owned(), "192.0.2.1".to_owned());
        asks.spec["loadBalancerIP"] = json!("192.0.2.2");
        let wishes = wishes_of(&[asks], &[]);
        assert_eq!(wishes.addresses.values().next().unwrap().to_string(), "192.0.2.1");
    }

    #[test]
    fn what_a_service_may_not_be_is_said() {
        let of = |change: &dyn Fn(&mut Object)| {
            let mut service = balanced("web");
            change(&mut service);
            let wishes = wishes_of(&[service], &[]);
            wishes.wanted[0].table.clone().unwrap_err()
        };
        assert!(of(&|of| of.spec["ports"] = json!([])).contains("there is none"));
        assert!(of(&|of| of.spec["ports"] = json!(null)).contains("there is none"));
        assert!(of(&|of| of.spec["ports"][0]["protocol"] = json!("SCTP")).contains("TCP and UDP"));
        let wrong = |of: &mut Object| {
            of.annotations.insert(ADDRESS.to_owned(), "x".to_owned());
        };
        assert!(of(&wrong).contains("is no address"));
        let third = [balanced("a"), balanced("b"), balanced("c")];
        assert!(
            wishes_of(&third, &[]).wanted[2]
                .table
                .clone()
                .unwrap_err()
                .contains("no address is free")
        );
    }

    /// The ports of `vip` and of the endpoints, or the problem.
    type Seen = Result<(i64, Option<String>), String>;

    /// The services that a Service with these ports wants.
    fn of_ports(ports: Value) -> Vec<(String, Seen)> {
        let mut service = balanced("web");
        service.spec["ports"] = ports;
        let of = |wanted: Wanted| {
            let read = |table: Table| {
                let port = table["instances"].get("port");
                let port = port.map(|of| of.as_str().unwrap().to_owned());
                (table["vip"]["ports"].as_integer().unwrap(), port)
            };
            (wanted.service, wanted.table.map(read))
        };
        wishes_of(&[service], &[]).wanted.into_iter().map(of).collect()
    }

    #[test]
    fn each_port_of_a_service_is_a_service_at_the_same_address() {
        let http = json!({ "name": "http", "port": 80, "targetPort": 8080 });
        let sip = json!({ "name": "sip", "port": 5060, "protocol": "UDP" });
        let of =
            |service: &str, port: i64, name: &str| (service.to_owned(), Ok((port, Some(name.to_owned()))));
        assert_eq!(of_ports(json!([http])), [of("web", 80, "http")]);
        // A further port renames nothing.
        let both = [of("web", 80, "http"), of("web-sip", 5060, "sip")];
        assert_eq!(of_ports(json!([http, sip])), both);
        let mut service = balanced("web");
        service.spec["ports"] = json!([http, sip]);
        let wishes = wishes_of(&[service.clone(), balanced("late")], &[]);
        let addresses = wishes
            .wanted
            .iter()
            .map(|of| of.table.as_ref().unwrap()["vip"]["address"].clone());
        let addresses: Vec<String> = addresses.map(|of| of.as_str().unwrap().to_owned()).collect();
        assert_eq!(addresses, ["10.0.0.101", "10.0.0.101", "10.0.0.100"]);
        let ports: Vec<_> = service
            .ports()
            .into_iter()
            .map(|of| (of.number, of.protocol))
            .collect();
        assert_eq!(ports, [(80, "TCP".to_owned()), (5060, "UDP".to_owned())]);
    }

    #[test]
    fn tcp_and_udp_of_a_port_are_one_service_or_refused() {
        let dns = |name: &str, protocol: &str, target: i64| json!({ "name": name, "port": 53, "targetPort": target, "protocol": protocol });
        let one = of_ports(json!([dns("tcp", "TCP", 5353), dns("udp", "UDP", 5353)]));
        assert_eq!(one, [("web".to_owned(), Ok((53, Some("tcp".to_owned()))))]);
        let two = of_ports(json!([dns("tcp", "TCP", 5353), dns("udp", "UDP", 53)]));
        assert_eq!(two[0].1, Ok((53, Some("tcp".to_owned()))));
        assert!(
            two[1]
                .1
                .as_ref()
                .is_err_and(|said| said.starts_with("spec.ports[1].targetPort: "))
        );
    }

    #[test]
    fn one_port_that_cannot_be_served_leaves_the_others() {
        let all = of_ports(json!([
            { "name": "http", "port": 80 },
            { "name": "old", "port": 81, "protocol": "SCTP" },
            { "name": "a-name-that-is-far-too-long-for-a-service", "port": 82 },
            { "name": "last", "port": 83 },
        ]));
        let said: Vec<_> = all
            .iter()
            .map(|(_, of)| of.as_ref().err().map(String::as_str))
            .collect();
        assert_eq!((said[0], said[3]), (None, None));
        assert!(
            said[1].is_some_and(|of| of.starts_with("spec.ports[1].protocol: ")),
            "{said:?}"
        );
        assert!(
            said[2].is_some_and(|of| of.starts_with("spec.ports[2].name: ")),
            "{said:?}"
        );
        // Without an address no port is served, and each keeps what it had.
        let mut wrong = balanced("web");
        wrong.spec["ports"] = json!([{ "name": "a", "port": 1 }, { "name": "b", "port": 2 }]);
        wrong.annotations.insert(ADDRESS.to_owned(), "x".to_owned());
        let wanted = wishes_of(&[wrong], &[]).wanted;
        assert_eq!(
            wanted.iter().map(|of| of.service.as_str()).collect::<Vec<_>>(),
            ["web", "web-b"]
        );
        assert!(wanted.iter().all(|of| of.table.is_err()));
    }

    #[test]
    fn only_the_objects_of_this_node_are_wanted() {
        let mut service = balanced("web");
        service
            .annotations
            .insert(NODES.to_owned(), "edge=true, rack=1".to_owned());
        let all = [
            object(
                FUNCTION,
                "a",
                json!({ "image": "x", "nodeSelector": { "edge": "true" } }),
            ),
            object(
                FUNCTION,
                "b",
                json!({ "image": "x", "nodeSelector": { "edge": "false" } }),
            ),
            object(FUNCTION, "c", json!({ "image": "x" })),
            object(FUNCTION, "d.e", json!({ "image": "x" })),
            service,
        ];
        let names =
            |wishes: &Wishes| -> Vec<String> { wishes.wanted.iter().map(|of| of.id.name.clone()).collect() };
        let on = wishes_of(&all, &[("edge", "true"), ("rack", "1"), ("more", "")]);
        assert_eq!(names(&on), ["a", "c", "web"]);
        assert_eq!(names(&wishes_of(&all, &[("edge", "true")])), ["a", "c"]);
        assert!(
            on.unreadable
                .values()
                .next()
                .unwrap()
                .starts_with("spec.service: \"d.e\"")
        );
    }
}
