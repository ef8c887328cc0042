//! From the specification of a `NetworkFunction` to the table `[service.NAME]` of a configuration.
//!
//! Whoever writes such an object may be nobody who may do everything on a node. So only the keys of [`SPEC`] and
//! [`SETTINGS`] pass: none that mounts a path of the node, gives it a device, or takes a confinement away.

use serde_json::Value;
use toml::Table;

/// What a field may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Text.
    Text,
    /// A list of text.
    Texts,
    /// Text by name.
    TextMap,
    /// A whole number from zero on.
    Count,
    /// A number.
    Number,
    /// A whole number or text.
    CountOrText,
    /// A table with keys of the configuration.
    Table,
}

/// A field of `spec`: its name, what it may be, and the key of the service that it becomes; [`None`]: it is treated apart.
pub type Field = (&'static str, Shape, Option<&'static str>);

/// All fields of `spec`, in the order of the page about them.
pub const SPEC: &[Field] = &[
    ("service", Shape::Text, None),
    ("nodeSelector", Shape::TextMap, None),
    ("image", Shape::Text, Some("image")),
    ("command", Shape::Texts, Some("command")),
    ("args", Shape::Texts, Some("args")),
    ("env", Shape::TextMap, Some("env")),
    ("cpus", Shape::Number, Some("cpus")),
    ("memory", Shape::Text, Some("memory")),
    ("uplinks", Shape::Texts, Some("uplinks")),
    ("port", Shape::Text, Some("port")),
    ("match", Shape::Table, Some("match")),
    ("vip", Shape::Table, Some("vip")),
    ("next", Shape::Text, Some("next")),
    ("min", Shape::Count, Some("instances.min")),
    ("max", Shape::Count, Some("instances.max")),
    ("standby", Shape::Count, Some("instances.standby")),
    ("endpoints", Shape::Text, None),
    ("endpointPort", Shape::CountOrText, Some("instances.port")),
    ("policy", Shape::Table, None),
    ("placement", Shape::Text, Some("placement")),
    ("health", Shape::Table, Some("health")),
    ("settings", Shape::Table, None),
];

/// The keys of `policy`.
const POLICY: &[&str] = &["scheduler", "autoscaler"];

/// The keys of `settings`: further keys of a service that take nothing of the node.
pub const SETTINGS: &[&str] = &[
    "affinity",
    "affinity_key",
    "agent",
    "capacity",
    "drain_deadline",
    "egress",
    "fit",
    "flow_counters",
    "move_state",
    "processes",
    "queues",
    "ready",
    "ready_deadline",
    "ring",
    "stall_after",
    "stop_grace",
    "symmetric",
    "table_full",
];

/// Longest specification in bytes of JSON. A configuration of 64 services has 1 MiB.
const SPEC_LIMIT: usize = 16 << 10;
/// Deepest nesting. The configuration has at most five levels in a service.
const DEPTH_LIMIT: usize = 8;

/// Where an object runs and what it is called: what is asked before its service is made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// The name of the service.
    pub service: String,
    /// The labels that a node must have.
    pub nodes: Vec<(String, String)>,
}

/// Whether a service can have that name.
pub(crate) fn is_service_name(name: &str) -> bool {
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    !name.is_empty() && name.len() <= 32 && !name.starts_with('-') && name.chars().all(allowed)
}

/// The name and the nodes of a `NetworkFunction`.
///
/// # Errors
/// What is wrong with them, and what to write.
pub fn place(name: &str, spec: &Value) -> Result<Place, String> {
    let service = match spec.get("service") {
        None => name.to_owned(),
        Some(Value::String(service)) => service.clone(),
        Some(_) => return Err("spec.service: this is no text; write the name of a service".to_owned()),
    };
    if !is_service_name(&service) {
        return Err(format!(
            "spec.service: {:?} is no name of a service; write 1 to 32 characters of a-z, 0-9 and -",
            shortened(&service, 64)
        ));
    }
    let nodes = match spec.get("nodeSelector") {
        None => Vec::new(),
        Some(Value::Object(labels)) => {
            let each = labels.iter().map(|(key, value)| {
                let text = value
                    .as_str()
                    .ok_or("spec.nodeSelector: write text for each label")?;
                Ok((key.clone(), text.to_owned()))
            });
            each.collect::<Result<_, &str>>()?
        }
        Some(_) => return Err("spec.nodeSelector: write labels with their values".to_owned()),
    };
    Ok(Place { service, nodes })
}

/// The table of the service of a `NetworkFunction` of that namespace.
///
/// # Errors
/// What is wrong with it, and what to write.
pub fn table(namespace: &str, spec: &Value) -> Result<Table, String> {
    let Value::Object(fields) = spec else {
        return Err("spec: there is none; write at least an image".to_owned());
    };
    let length = spec.to_string().len();
    if length > SPEC_LIMIT {
        return Err(format!("spec: it has {length} bytes; write at most {SPEC_LIMIT}"));
    }
    let mut table = Table::new();
    for (name, value) in fields {
        let Some((_, shape, key)) = SPEC.iter().find(|(of, _, _)| of == name) else {
            return Err(format!(
                "spec.{}: this operator does not know the field; remove it, or use an operator of the version of the CRD",
                shortened(name, 64)
            ));
        };
        let path = format!("spec.{name}");
        has_shape(&path, *shape, value)?;
        match (name.as_str(), key) {
            (_, Some(key)) => set(&mut table, key, converted(&path, value, 0)?),
            ("endpoints", None) => {
                let service = value.as_str().unwrap_or_default();
                let from = format!("kubernetes:{namespace}/{service}");
                set(&mut table, "instances.from", toml::Value::String(from));
            }
            ("policy", None) => copy(&mut table, &path, value, POLICY)?,
            ("settings", None) => copy(&mut table, &path, value, SETTINGS)?,
            _ => {}
        }
    }
    Ok(table)
}

fn copy(table: &mut Table, path: &str, value: &Value, known: &[&str]) -> Result<(), String> {
    for (key, value) in value.as_object().into_iter().flatten() {
        let path = format!("{path}.{}", shortened(key, 64));
        if !known.contains(&key.as_str()) {
            return Err(format!(
                "{path}: an object of Kubernetes may not set this; write one of {}",
                known.join(", ")
            ));
        }
        set(table, key, converted(&path, value, 1)?);
    }
    Ok(())
}

/// Sets a key of the table, or of a table in it.
fn set(table: &mut Table, key: &str, value: toml::Value) {
    match key.split_once('.') {
        None => {
            table.insert(key.to_owned(), value);
        }
        Some((outer, inner)) => {
            let entry = table
                .entry(outer)
                .or_insert_with(|| toml::Value::Table(Table::new()));
            if let toml::Value::Table(of) = entry {
                of.insert(inner.to_owned(), value);
            }
        }
    }
}

fn has_shape(path: &str, shape: Shape, value: &Value) -> Result<(), String> {
    let is_text = |value: &Value| value.is_string();
    let (fits, write) = match shape {
        Shape::Text => (is_text(value), "write text"),
        Shape::Texts => (
            value.as_array().is_some_and(|of| of.iter().all(is_text)),
            "write a list of text",
        ),
        Shape::TextMap => (
            value.as_object().is_some_and(|of| of.values().all(is_text)),
            "write names with text",
        ),
        Shape::Count => (value.is_u64(), "write a whole number from 0 on"),
        Shape::Number => (value.is_number(), "write a number"),
        Shape::CountOrText => (value.is_u64() || is_text(value), "write a number or text"),
        Shape::Table => (value.is_object(), "write a table"),
    };
    if fits {
        return Ok(());
    }
    Err(format!("{path}: the value does not fit; {write}"))
}

/// A value of JSON as one of TOML.
fn converted(path: &str, value: &Value, depth: usize) -> Result<toml::Value, String> {
    if depth > DEPTH_LIMIT {
        return Err(format!(
            "{path}: it is nested too deep; write at most {DEPTH_LIMIT} levels"
        ));
    }
    Ok(match value {
        Value::Null => {
            return Err(format!(
                "{path}: null is no value; write one, or remove the field"
            ));
        }
        Value::Bool(of) => toml::Value::Boolean(*of),
        Value::String(of) => toml::Value::String(of.clone()),
        Value::Number(of) => match (of.as_i64(), of.as_f64()) {
            (Some(whole), _) => toml::Value::Integer(whole),
            (None, Some(part)) if part.is_finite() && !of.is_u64() => toml::Value::Float(part),
            _ => return Err(format!("{path}: the number is too large; write a smaller one")),
        },
        Value::Array(all) => {
            let each = all.iter().map(|of| converted(path, of, depth + 1));
            toml::Value::Array(each.collect::<Result<_, _>>()?)
        }
        Value::Object(all) => {
            let each = all
                .iter()
                .map(|(key, of)| Ok((key.clone(), converted(path, of, depth + 1)?)));
            toml::Value::Table(each.collect::<Result<_, String>>()?)
        }
    })
}

/// At most so many characters, without any that controls a terminal.
pub(crate) fn shortened(text: &str, limit: usize) -> String {
    let clean = |c: char| if c.is_control() { ' ' } else { c };
    if text.chars().count() <= limit {
        return text.chars().map(clean).collect();
    }
    let kept: String = text.chars().take(limit.saturating_sub(3)).map(clean).collect();
    kept + "..."
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by it")]
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    #[test]
    fn a_specification_becomes_the_table_of_a_service() {
        let spec = json!({
            "image": "inco/firewall", "min": 2, "max": 5, "cpus": 0.5, "args": ["--log"], "env": { "LEVEL": "info" },
            "match": { "proto": "udp", "dst_port": 53 }, "next": "ids", "placement": "card",
            "policy": { "scheduler": "worst-fit", "autoscaler": { "policy": "ladder", "target": 0.6 } },
            "settings": { "drain_deadline": "5s" }, "nodeSelector": { "edge": "true" },
        });
        let expected: Table = toml::from_str(
            "image = \"inco/firewall\"\ncpus = 0.5\nargs = [\"--log\"]\nnext = \"ids\"\nplacement = \"card\"\n\
             scheduler = \"worst-fit\"\ndrain_deadline = \"5s\"\ninstances = { min = 2, max = 5 }\n\
             match = { proto = \"udp\", dst_port = 53 }\nautoscaler = { policy = \"ladder\", target = 0.6 }\n\
             env = { LEVEL = \"info\" }",
        )
        .unwrap();
        assert_eq!(table("edge", &spec), Ok(expected));
        let place = place("firewall", &spec).unwrap();
        assert_eq!(place.service, "firewall");
        assert_eq!(place.nodes, [("edge".to_owned(), "true".to_owned())]);
    }

    #[test]
    fn endpoints_are_those_of_the_own_namespace() {
        let spec = json!({ "endpoints": "web", "endpointPort": "http", "max": 3 });
        let of = table("shop", &spec).unwrap();
        assert_eq!(of["instances"]["from"].as_str(), Some("kubernetes:shop/web"));
        assert_eq!(of["instances"]["port"].as_str(), Some("http"));
    }

    #[test]
    fn what_takes_something_of_the_node_is_refused() {
        for key in [
            "mounts",
            "devices",
            "user_namespace",
            "capabilities",
            "hugepages",
            "cpuset",
            "kubernetes",
            "instances",
        ] {
            let spec = json!({ "image": "a", "settings": { key: ["/:/host"] } });
            let said = table("edge", &spec).unwrap_err();
            assert!(
                said.starts_with(&format!("spec.settings.{key}: an object")),
                "{said}"
            );
        }
        let said = table("edge", &json!({ "image": "a", "mounts": ["/:/host"] })).unwrap_err();
        assert!(said.starts_with("spec.mounts: "), "{said}");
    }

    #[test]
    fn what_does_not_fit_is_told_with_its_field() {
        let mut deep = json!(1);
        for _ in 0..20 {
            deep = json!({ "a": deep });
        }
        for (spec, start) in [
            (json!(null), "spec: there is none"),
            (
                json!({ "min": -1 }),
                "spec.min: the value does not fit; write a whole",
            ),
            (json!({ "min": "3" }), "spec.min: "),
            (json!({ "image": 7 }), "spec.image: "),
            (json!({ "command": ["a", 1] }), "spec.command: "),
            (json!({ "match": null }), "spec.match: "),
            (json!({ "match": { "src": null } }), "spec.match: null"),
            (json!({ "match": { "src": u64::MAX } }), "spec.match: the number"),
            (json!({ "match": deep }), "spec.match: it is nested"),
            (json!({ "image": "a".repeat(20_000) }), "spec: it has"),
        ] {
            let said = table("edge", &spec).unwrap_err();
            assert!(said.starts_with(start), "{said}");
        }
        for name in ["", "-a", "A", "a.b", "a_b", &"a".repeat(33), "a\"]\n[engine"] {
            let said = place("x", &json!({ "service": name })).unwrap_err();
            assert!(said.starts_with("spec.service: "), "{said}");
        }
        assert!(place("x", &json!({ "nodeSelector": { "a": 1 } })).is_err());
        assert!(place("a.b", &json!({})).is_err());
    }

    /// The schema has each field, as the shape that is read here, and no other.
    #[test]
    fn the_schema_has_the_same_fields() {
        let text = include_str!("../../../../deploy/kubernetes/chart/crds/networkfunctions.yaml");
        let (_, spec) = text.split_once("\n              spec:\n").unwrap();
        let (spec, _) = spec.split_once("\n              status:\n").unwrap();
        let (_, spec) = spec.split_once("\n                properties:\n").unwrap();
        // A field is a line of 18 columns; its schema follows on the line, or deeper.
        let mut fields: Vec<(String, String)> = Vec::new();
        for line in spec.lines() {
            let depth = line.len() - line.trim_start().len();
            match line.trim_start().split_once(':') {
                Some((name, rest)) if depth == 18 => fields.push((name.to_owned(), rest.to_owned())),
                _ if depth > 18 => fields.last_mut().unwrap().1.push_str(line.trim_start()),
                _ => {}
            }
        }
        let words = |shape| match shape {
            Shape::Text => "type: string",
            Shape::Texts => "type: array",
            Shape::TextMap => "additionalProperties: {type: string",
            Shape::Count => "type: integer",
            Shape::Number => "type: number",
            Shape::CountOrText => "x-kubernetes-int-or-string: true",
            Shape::Table => "type: object",
        };
        let mut known: Vec<&str> = SPEC.iter().map(|(name, _, _)| *name).collect();
        let mut found: Vec<&str> = fields.iter().map(|(name, _)| name.as_str()).collect();
        known.sort_unstable();
        found.sort_unstable();
        assert_eq!(known, found);
        for (name, shape, _) in SPEC {
            let (_, schema) = fields.iter().find(|(of, _)| of == name).unwrap();
            assert!(schema.contains(words(*shape)), "{name}: {schema}");
        }
    }

    fn anything() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            ".*".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 32, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::hash_map(prop_oneof![".*", "match|image|settings|policy"], inner, 0..4)
                    .prop_map(|of| Value::Object(of.into_iter().collect())),
            ]
        })
    }

    proptest! {
        /// Whatever a specification is, its table can be written and read again, and is under its name alone.
        #[test]
        fn any_specification_stays_in_its_table(spec in anything(), name in ".*") {
            if let (Ok(place), Ok(table)) = (place(&name, &spec), table("edge", &spec)) {
                let text = crate::plan::section(&place.service, &table);
                let read: Table = toml::from_str(&text).unwrap();
                prop_assert_eq!(read.len(), 1);
                prop_assert_eq!(read["service"].as_table().unwrap().len(), 1);
                prop_assert_eq!(read["service"][&place.service].as_table(), Some(&table));
            }
        }
    }
}
