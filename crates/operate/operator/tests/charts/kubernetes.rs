//! The chart for Kubernetes, and the manifests that are rendered from it.

use std::collections::BTreeSet;

use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Service, ServiceAccount};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use kube::core::GroupVersionKind;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::template::{Context, documents, read};

const CHART: &str = include_str!("../../../../../deploy/kubernetes/chart/Chart.yaml");
const VALUES: &str = include_str!("../../../../../deploy/kubernetes/chart/values.yaml");
const SCHEMA: &str = include_str!("../../../../../deploy/kubernetes/chart/values.schema.json");
const BASE: &str = include_str!("../../../../../deploy/kubernetes/chart/base.toml");
const NOTES: &str = include_str!("../../../../../deploy/kubernetes/chart/templates/NOTES.txt");
const TEMPLATES: [(&str, &str); 5] = [
    (
        "account",
        include_str!("../../../../../deploy/kubernetes/chart/templates/account.yaml"),
    ),
    (
        "base",
        include_str!("../../../../../deploy/kubernetes/chart/templates/base.yaml"),
    ),
    (
        "daemonset",
        include_str!("../../../../../deploy/kubernetes/chart/templates/daemonset.yaml"),
    ),
    (
        "gateway",
        include_str!("../../../../../deploy/kubernetes/chart/templates/gateway.yaml"),
    ),
    (
        "metrics",
        include_str!("../../../../../deploy/kubernetes/chart/templates/metrics.yaml"),
    ),
];
const REFERENCE: &str = include_str!("../../../../../docs/reference/cli.md");

/// The manifests for `kubectl apply`: what stands before them, the values that are set, and the templates.
const PLAIN: [(&str, &str, &[&str], &[&str]); 3] = [
    (
        "operator.yaml",
        "# inco and its operator on each node that has the label inco=true (docs/tasks/kubernetes.md). Before it:\n\
         # chart/crds. All that the operator may do is in the ClusterRole.\n\
         # Rendered from the chart by a test: change it there.\n\
         apiVersion: v1\nkind: Namespace\nmetadata: {name: inco}\n---\n",
        &[],
        &["account", "base", "daemonset"],
    ),
    (
        "gateway.yaml",
        "# Rendered from the chart by a test, with gateway.enabled: change it there.\n",
        &["gateway"],
        &["gateway"],
    ),
    (
        "metrics.yaml",
        "# Rendered from the chart by a test, with metrics.enabled: change it there. Beside it, the operator gets arguments\n\
         # and a volume, as in templates/daemonset.yaml.\n",
        &["metrics"],
        &["metrics"],
    ),
];

/// The chart's own values, with these parts.
fn values(enabled: &[&str]) -> Value {
    let mut values = read(VALUES);
    for part in enabled {
        values[*part]["enabled"] = json!(true);
    }
    values
}

fn context<'a>(release: &'a str, values: &'a Value) -> Context<'a> {
    Context {
        release,
        namespace: "inco",
        chart: CHART,
        values,
        files: &[("base.toml", BASE)],
    }
}

/// These templates, as one text.
fn text_of(context: &Context<'_>, names: &[&str]) -> String {
    let of = |name: &&str| {
        let (_, template) = TEMPLATES.iter().find(|(of, _)| of == name).unwrap();
        context.render(template).trim().to_owned()
    };
    let all: Vec<String> = names.iter().map(of).filter(|of| !of.is_empty()).collect();
    all.join("\n---\n") + "\n"
}

fn rendered(release: &str, values: &Value) -> Vec<Value> {
    documents(&text_of(
        &context(release, values),
        &TEMPLATES.map(|(name, _)| name),
    ))
}

fn kinds(all: &[Value]) -> Vec<&str> {
    all.iter().map(|of| of["kind"].as_str().unwrap()).collect()
}

fn find<'a>(all: &'a [Value], kind: &str, name: &str) -> &'a Value {
    let mut all = all.iter();
    let is_it = |of: &&Value| of["kind"] == kind && of["metadata"]["name"] == name;
    all.find(is_it)
        .unwrap_or_else(|| panic!("there is no {kind} {name}"))
}

fn container<'a>(all: &'a [Value], name: &str) -> &'a Value {
    let of = find(all, "DaemonSet", "inco").pointer("/spec/template/spec/containers");
    let mut of = of.unwrap().as_array().unwrap().iter();
    of.find(|of| of["name"] == name).unwrap()
}

#[test]
fn the_plain_manifests_are_the_chart_with_its_own_values() {
    for (file, head, enabled, names) in PLAIN {
        let now = format!("{head}{}", text_of(&context("inco", &values(enabled)), names));
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../deploy/kubernetes");
        let path = std::path::Path::new(path).join(file);
        if std::env::var_os("INCO_WRITE_REFERENCE").is_some() {
            std::fs::write(&path, &now).unwrap();
        }
        assert!(
            std::fs::read_to_string(&path).unwrap() == now,
            "deploy/kubernetes/{file} is old: INCO_WRITE_REFERENCE=1 cargo test -p operator --test charts"
        );
    }
    // Nothing is in no manifest.
    let plain: Vec<&str> = PLAIN
        .iter()
        .flat_map(|(.., names)| names.iter().copied())
        .collect();
    assert_eq!(plain, TEMPLATES.map(|(name, _)| name));
}

/// An object as its type in Kubernetes has it: a field that the type does not know gets lost.
fn as_known<T: Serialize + DeserializeOwned>(of: &Value) -> Value {
    let known: T = serde_json::from_value(of.clone()).unwrap_or_else(|error| panic!("{error}: {of}"));
    serde_json::to_value(known).unwrap()
}

#[test]
fn objects_have_fields_that_kubernetes_knows() {
    let mut all = rendered("inco", &values(&["gateway", "metrics"]));
    all.extend(documents(PLAIN[0].1));
    for of in &all {
        let known = match of["kind"].as_str().unwrap() {
            "Namespace" => as_known::<Namespace>(of),
            "ServiceAccount" => as_known::<ServiceAccount>(of),
            "ClusterRole" => as_known::<ClusterRole>(of),
            "ClusterRoleBinding" => as_known::<ClusterRoleBinding>(of),
            "ConfigMap" => as_known::<ConfigMap>(of),
            "DaemonSet" => as_known::<DaemonSet>(of),
            "Service" => as_known::<Service>(of),
            "APIService" => as_known::<APIService>(of),
            "GatewayClass" => continue,
            other => panic!("{other} is not expected"),
        };
        assert_eq!(known, *of);
    }
}

#[test]
fn each_part_is_there_only_where_it_is_wanted() {
    let all = rendered("inco", &values(&[]));
    let plain = [
        "ServiceAccount",
        "ClusterRole",
        "ClusterRoleBinding",
        "ConfigMap",
        "DaemonSet",
    ];
    assert_eq!(kinds(&all), plain);
    let flags = |all: &[Value]| -> Vec<String> {
        let args = container(all, "operator")["args"].as_array().unwrap().clone();
        args.iter().map(|of| of.as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(
        flags(&all),
        [
            "operator",
            "--base=/etc/inco/base.toml",
            "--file=/run/inco/inco.toml"
        ]
    );

    let all = rendered("inco", &values(&["gateway"]));
    let class = find(&all, "GatewayClass", "inco");
    assert_eq!(class["spec"]["controllerName"], operator::gateway::CONTROLLER);
    assert_eq!(all.len(), plain.len() + 3);

    let mut with_metrics = values(&["metrics"]);
    let all = rendered("inco", &with_metrics);
    assert_eq!(all.len(), plain.len() + 4);
    let port = &find(&all, "Service", "inco-metrics")["spec"]["ports"][0]["targetPort"];
    assert!(flags(&all).contains(&format!("--metrics=0.0.0.0:{port}")));
    // The operator has what its arguments name.
    let mounts = container(&all, "operator")["volumeMounts"].as_array().unwrap();
    let files = flags(&all);
    for file in files.iter().filter_map(|of| of.split_once("=/")) {
        let is_in = |mount: &Value| format!("/{}", file.1).starts_with(mount["mountPath"].as_str().unwrap());
        assert!(mounts.iter().any(is_in), "{file:?}");
    }
    with_metrics["metrics"]["apiService"] = json!(false);
    let all = rendered("inco", &with_metrics);
    assert_eq!(kinds(&all).last(), Some(&"Service"));
    assert_eq!(all.len(), plain.len() + 1);
}

#[test]
fn values_have_their_effect() {
    let mut values = values(&["metrics"]);
    values["image"] = json!({ "repository": "r.example/i", "tag": "7", "pullPolicy": "Never" });
    values["imagePullSecrets"] = json!([{ "name": "pull" }]);
    values["nodeSelector"] = json!({ "edge": "yes" });
    values["tolerations"] = json!([{ "key": "edge", "operator": "Exists" }]);
    values["base"] = json!("[switch]\n");
    values["logLevel"] = json!("debug");
    values["operator"]["addresses"] = json!("10.0.0.100-10.0.0.120,10.1.0.0/28");
    values["operator"]["namespace"] = json!("edge");
    values["operator"]["resources"] = json!({ "limits": { "memory": "1Gi" } });
    let all = rendered("inco", &values);
    let pod = find(&all, "DaemonSet", "inco")["spec"]["template"]["spec"].clone();
    for key in ["imagePullSecrets", "nodeSelector", "tolerations"] {
        assert_eq!(pod[key], values[key], "{key}");
    }
    let containers = [
        &pod["initContainers"][0],
        &pod["containers"][0],
        &pod["containers"][1],
    ];
    for of in containers {
        assert_eq!(
            (&of["image"], &of["imagePullPolicy"]),
            (&json!("r.example/i:7"), &json!("Never"))
        );
    }
    let log = json!({ "name": "INCO_LOG", "value": "debug" });
    for name in ["inco", "operator"] {
        assert!(
            container(&all, name)["env"].as_array().unwrap().contains(&log),
            "{name}"
        );
    }
    let operator = container(&all, "operator");
    assert_eq!(operator["resources"], values["operator"]["resources"]);
    let args = operator["args"].as_array().unwrap();
    assert!(args.contains(&json!("--addresses=10.0.0.100-10.0.0.120,10.1.0.0/28")));
    assert!(args.contains(&json!("--namespace=edge")));
    assert_eq!(
        find(&all, "ConfigMap", "inco-base")["data"]["base.toml"],
        "[switch]\n"
    );
    // Each option is one of the program.
    let (_, own) = REFERENCE.split_once("inco operator").unwrap();
    for of in args.iter().filter_map(|of| of.as_str()?.split_once('=')) {
        assert!(own.contains(of.0), "{of:?}");
    }
    // Objects of two releases have two names, apart from what a cluster has once.
    for of in rendered("other", &values) {
        let name = of["metadata"]["name"].as_str().unwrap();
        assert!(name.starts_with("other") || of["kind"] == "APIService", "{of}");
    }
}

/// Without a tag the image is that of the version of these programs.
#[test]
fn the_chart_has_the_version_of_the_programs() {
    assert_eq!(read(CHART)["appVersion"], env!("CARGO_PKG_VERSION"));
    let all = rendered("inco", &values(&[]));
    let image = container(&all, "inco")["image"].as_str().unwrap();
    assert!(
        image.ends_with(concat!(":", env!("CARGO_PKG_VERSION"))),
        "{image}"
    );
}

/// Rules as group, resource and verb.
fn rules(role: &Value) -> BTreeSet<(String, String, String)> {
    let texts = |of: &Value| -> Vec<String> {
        let all = of.as_array().unwrap().iter();
        all.map(|of| of.as_str().unwrap().to_owned()).collect()
    };
    let mut all = BTreeSet::new();
    for rule in role["rules"].as_array().unwrap() {
        for group in texts(&rule["apiGroups"]) {
            for resource in texts(&rule["resources"]) {
                for verb in texts(&rule["verbs"]) {
                    all.insert((group.clone(), resource.clone(), verb));
                }
            }
        }
    }
    all
}

/// The operator may do what it does with its kinds, and nothing else; without Gateways nothing of theirs.
#[test]
fn rights_are_those_that_the_operator_uses() {
    let all = rendered("inco", &values(&["gateway"]));
    let mut expected = [BTreeSet::new(), BTreeSet::new()];
    let right =
        |group: &str, resource: &str, verb: &str| (group.to_owned(), resource.to_owned(), verb.to_owned());
    expected[0].extend([
        right("", "nodes", "get"),
        right("", "events", "create"),
        right("apiextensions.k8s.io", "customresourcedefinitions", "get"),
        right("discovery.k8s.io", "endpointslices", "list"),
        right("discovery.k8s.io", "endpointslices", "watch"),
    ]);
    for kind in operator::objects::KINDS {
        let (group, version) = operator::objects::api_version(kind)
            .split_once('/')
            .unwrap_or(("", "v1"));
        let plural = kube::core::ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind)).plural;
        let of = &mut expected[usize::from(group == "gateway.networking.k8s.io")];
        of.extend(["list", "watch"].map(|verb| right(group, &plural, verb)));
        // Nothing is said of a grant.
        if kind != operator::objects::REFERENCE_GRANT {
            of.insert(right(group, &format!("{plural}/status"), "patch"));
        }
    }
    let role = find(&all, "ClusterRole", "inco-operator");
    assert_eq!(rules(role), expected[0]);
    // Of its own definition alone.
    let named = role["rules"].as_array().unwrap().iter();
    let named: Vec<_> = named.filter_map(|of| of.get("resourceNames")).collect();
    assert_eq!(named, [&json!(["networkfunctions.inco.dev"])]);
    assert_eq!(rules(find(&all, "ClusterRole", "inco-gateway")), expected[1]);
    // Each role is given to the account of the Pods.
    let account = &find(&all, "DaemonSet", "inco")["spec"]["template"]["spec"]["serviceAccountName"];
    for of in all.iter().filter(|of| of["kind"] == "ClusterRoleBinding") {
        assert_eq!(of["subjects"][0]["name"], *account);
        find(&all, "ClusterRole", of["roleRef"]["name"].as_str().unwrap());
    }
}

#[test]
fn the_notes_say_what_is_there() {
    let text = |enabled: &[&str]| context("inco", &values(enabled)).render(NOTES);
    assert!(text(&[]).contains("--set gateway.enabled=true"));
    assert!(text(&["gateway"]).contains("kubectl get gatewayclass inco"));
    assert!(!text(&["gateway"]).contains("inco-metrics"));
    assert!(text(&["metrics"]).contains("inco-metrics.inco.svc"));
}

/// What a schema has against a value: as much of JSON Schema as the chart has. The rest is refused.
fn faults(schema: &Value, value: &Value, at: &str, out: &mut Vec<String>) {
    let is_of = match schema["type"].as_str().unwrap() {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64(),
        other => panic!("{other} is not known"),
    };
    if !is_of {
        return out.push(format!("{at}: {value}"));
    }
    let length = || value.as_str().unwrap().chars().count() as u64;
    for (key, of) in schema.as_object().unwrap() {
        let fits = match key.as_str() {
            "type" | "description" | "$schema" | "properties" | "additionalProperties" | "items" => true,
            "required" => of
                .as_array()
                .unwrap()
                .iter()
                .all(|key| value.get(key.as_str().unwrap()).is_some()),
            "enum" => of.as_array().unwrap().contains(value),
            "minimum" => value.as_i64() >= of.as_i64(),
            "maximum" => value.as_i64() <= of.as_i64(),
            "minLength" => length() >= of.as_u64().unwrap(),
            "maxLength" => length() <= of.as_u64().unwrap(),
            other => panic!("{other} is not known"),
        };
        if !fits {
            out.push(format!("{at}: {value} does not fit {key}"));
        }
    }
    for of in value.as_array().into_iter().flatten() {
        faults(&schema["items"], of, at, out);
    }
    for (key, of) in value.as_object().into_iter().flatten() {
        let at = format!("{at}.{key}");
        let other = schema.get("additionalProperties");
        match (schema.pointer(&format!("/properties/{key}")), other) {
            (Some(schema), _) => faults(schema, of, &at, out),
            (None, Some(Value::Bool(false))) => out.push(format!("{at} is not known")),
            (None, Some(schema)) => faults(schema, of, &at, out),
            (None, None) => {}
        }
    }
}

#[test]
fn the_schema_has_each_value_and_refuses_others() {
    let schema: Value = serde_json::from_str(SCHEMA).unwrap();
    let faults_of = |values: &Value| {
        let mut out = Vec::new();
        faults(&schema, values, "", &mut out);
        out
    };
    assert_eq!(faults_of(&values(&[])), [""; 0]);
    // All tables and values are described, and there; `global` is Helm's.
    let mut tables = vec![("", &schema)];
    while let Some((name, of)) = tables.pop() {
        assert!(
            of["description"].as_str().is_some_and(|of| of.ends_with('.')),
            "{name}"
        );
        tables.extend(
            of["properties"]
                .as_object()
                .into_iter()
                .flatten()
                .map(|(name, of)| (name.as_str(), of)),
        );
    }
    let mut without = values(&[]);
    without.as_object_mut().unwrap().remove("metrics");
    assert!(!faults_of(&without).is_empty());
    for (at, wrong) in [
        ("/gateway/enabled", json!("true")),
        ("/gateway/className", json!("")),
        ("/metrics/port", json!(70_000)),
        ("/metrics/port", json!("9443")),
        ("/image/pullPolicy", json!("Sometimes")),
        ("/logLevel", json!("loud")),
        ("/tolerations", json!({})),
        ("/tolerations", json!(["edge"])),
        ("/nodeSelector", json!({ "inco": true })),
        (
            "/operator",
            json!({ "resources": {}, "addresses": "", "namespace": "", "replicas": 2 }),
        ),
    ] {
        let mut values = values(&[]);
        *values.pointer_mut(at).unwrap() = wrong;
        assert_eq!(faults_of(&values).len(), 1, "{at}: {:?}", faults_of(&values));
    }
}
