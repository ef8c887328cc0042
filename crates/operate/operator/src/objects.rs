//! Objects of the cluster, and what they want of a node.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde_json::Value;
use toml::Table;

use crate::addresses::{Claim, Pool, assign};
use crate::plan::{Id, Wanted};
use crate::spec;

/// The kind of the objects that describe functions.
pub const FUNCTION: &str = "NetworkFunction";
/// The kind of Services.
pub const SERVICE: &str = "Service";
/// The class of Services that inco serves. Kubernetes wants a name with a domain for it.
pub const CLASS: &str = "inco.dev/inco";
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
}

impl Object {
    /// Whether inco is to serve it.
    pub fn is_of_inco(&self) -> bool {
        let is = |key: &str, value: &str| self.spec.get(key).and_then(Value::as_str) == Some(value);
        self.id.kind == FUNCTION || is("type", "LoadBalancer") && is("loadBalancerClass", CLASS)
    }

    fn annotation(&self, key: &str) -> Option<&str> {
        self.annotations.get(key).map(String::as_str)
    }

    /// The name of its service, and the nodes that have it.
    fn place(&self) -> Result<spec::Place, String> {
        if self.id.kind == FUNCTION {
            return spec::place(&self.id.name, &self.spec);
        }
        let mut place = spec::place(&self.id.name, &Value::Null)?;
        for pair in self
            .annotation(NODES)
            .unwrap_or_default()
            .split(',')
            .filter(|of| !of.is_empty())
        {
            let (key, value) = pair
                .split_once('=')
                .ok_or_else(|| format!("the annotation {NODES}: {pair:?} is no label; write KEY=VALUE"))?;
            place.nodes.push((key.trim().to_owned(), value.trim().to_owned()));
        }
        Ok(place)
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

    /// The table of a Service with that address.
    fn table_at(&self, address: IpAddr) -> Result<Table, String> {
        let ports = self.spec.get("ports").and_then(Value::as_array);
        let [port] = ports.map(Vec::as_slice).unwrap_or_default() else {
            return Err("spec.ports: inco serves one port of a Service; write a Service for each".to_owned());
        };
        let text = |key: &str| port.get(key).and_then(Value::as_str);
        if !matches!(text("protocol"), None | Some("TCP" | "UDP")) {
            return Err("spec.ports[0].protocol: inco serves TCP and UDP; write one of these".to_owned());
        }
        let number = port.get("port").and_then(Value::as_i64).unwrap_or_default();
        let mut instances = Table::new();
        let from = format!("kubernetes:{}/{}", self.id.namespace, self.id.name);
        instances.insert("from".to_owned(), from.into());
        if let Some(name) = text("name").filter(|of| !of.is_empty()) {
            instances.insert("port".to_owned(), name.into());
        }
        let mut vip = Table::new();
        vip.insert("address".to_owned(), address.to_string().into());
        vip.insert("ports".to_owned(), number.into());
        vip.insert("mode".to_owned(), "dnat".into());
        Ok(Table::from_iter([
            ("instances".to_owned(), toml::Value::Table(instances)),
            ("vip".to_owned(), toml::Value::Table(vip)),
        ]))
    }
}

/// What the objects want of a node with these labels.
pub fn wishes(objects: &[Object], labels: &BTreeMap<String, String>, pool: &Pool) -> Wishes {
    let mut wishes = Wishes::default();
    let services = || objects.iter().filter(|of| of.id.kind == SERVICE);
    let claims: Vec<Claim> = services().filter_map(|of| of.claim().ok()).collect();
    let addresses = assign(&claims, pool);
    for object in objects {
        let place = match object.place() {
            Ok(place) => place,
            Err(reason) => {
                wishes.unreadable.insert(object.id.clone(), reason);
                continue;
            }
        };
        if !place
            .nodes
            .iter()
            .all(|(key, value)| labels.get(key) == Some(value))
        {
            continue;
        }
        let table = if object.id.kind == FUNCTION {
            spec::table(&object.id.namespace, &object.spec)
        } else {
            object.claim().and_then(|_| {
                let none = || Err("it has no address".to_owned());
                let address = addresses.get(&object.id).cloned().unwrap_or_else(none)?;
                wishes.addresses.insert(object.id.clone(), address);
                object.table_at(address)
            })
        };
        wishes.wanted.push(Wanted {
            id: object.id.clone(),
            created: object.created.clone(),
            service: place.service,
            table,
        });
    }
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
            json!({ "type": "LoadBalancer", "loadBalancerClass": CLASS,
            "ports": [{ "name": "http", "port": 80, "targetPort": 8080, "protocol": "TCP" }] }),
        )
    }

    fn wishes_of(objects: &[Object], labels: &[(&str, &str)]) -> Wishes {
        let labels = labels
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        wishes(
            objects,
            &labels.collect(),
            &Pool::parse("10.0.0.100-10.0.0.101").unwrap(),
        )
    }

    #[test]
    fn only_services_of_the_class_are_of_inco() {
        assert!(balanced("web").is_of_inco());
        for (key, value) in [
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
        assert!(of(&|of| of.spec["ports"] = json!([1, 2])).contains("one port"));
        assert!(of(&|of| of.spec["ports"] = json!(null)).contains("one port"));
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
