//! The chart for cards of NVIDIA DPF, rendered and compared with what DPF wants of a chart. Nothing here runs on a card.

use serde_json::Value;

use crate::template::{Context, documents, read};

const CHART: &str = include_str!("../../../../../deploy/dpf/chart/Chart.yaml");
const VALUES: &str = include_str!("../../../../../deploy/dpf/chart/values.yaml");
const CONFIGURATION: &str = include_str!("../../../../../deploy/dpf/chart/inco.toml");
const TEMPLATES: [&str; 2] = [
    include_str!("../../../../../deploy/dpf/chart/templates/configmap.yaml"),
    include_str!("../../../../../deploy/dpf/chart/templates/daemonset.yaml"),
];
const OBJECTS: &str = include_str!("../../../../../deploy/dpf/dpuservice.yaml");

const FUNCTIONS: &str = "nvidia.com/bf_sf";

/// The values with those of a DPUService, as DPF sets them.
fn values(service: &Value) -> Value {
    let mut values = read(VALUES);
    let spec = &service["spec"];
    for (key, of) in spec["helmChart"]["values"].as_object().unwrap() {
        values[key] = of.clone();
    }
    for (key, of) in spec["serviceDaemonSet"].as_object().unwrap() {
        values["serviceDaemonSet"][key] = of.clone();
    }
    values
}

fn rendered(release: &str, values: &Value) -> Vec<Value> {
    let context = Context {
        release,
        namespace: "dpf",
        chart: CHART,
        values,
        files: &[("inco.toml", CONFIGURATION)],
    };
    TEMPLATES.iter().map(|of| read(&context.render(of))).collect()
}

/// The objects of a kind.
fn of_kind<'a>(all: &'a [Value], kind: &str) -> Vec<&'a Value> {
    all.iter().filter(|of| of["kind"] == kind).collect()
}

fn objects() -> Vec<Value> {
    documents(OBJECTS)
}

/// That a table has these keys, and no others but those.
fn has_keys(of: &Value, needed: &[&str], possible: &[&str]) {
    let table = of.as_object().unwrap();
    for key in needed {
        assert!(table.contains_key(*key), "{key} is missing: {of}");
    }
    for key in table.keys() {
        assert!(
            needed.contains(&key.as_str()) || possible.contains(&key.as_str()),
            "{key} is unknown: {of}"
        );
    }
}

fn texts(of: &Value) -> Vec<&str> {
    of.as_array()
        .unwrap()
        .iter()
        .map(|of| of.as_str().unwrap())
        .collect()
}

#[test]
fn the_chart_has_one_daemon_set_that_has_a_function_for_each_interface() {
    let all = objects();
    let service = of_kind(&all, "DPUService")[0];
    let manifests = rendered("inco-1", &values(service));
    let [daemon_set] = of_kind(&manifests, "DaemonSet")[..] else {
        panic!("one DaemonSet: {manifests:?}");
    };
    let interfaces = texts(&service["spec"]["interfaces"]).len();
    let pod = &daemon_set["spec"]["template"];
    let [container] = &pod["spec"]["containers"].as_array().unwrap()[..] else {
        panic!("one container: {pod}");
    };
    for of in ["requests", "limits"] {
        assert_eq!(container["resources"][of][FUNCTIONS], interfaces, "{of}");
    }
    // Without a DPUService, too.
    let own = rendered("x", &read(VALUES));
    assert_eq!(of_kind(&own, "DaemonSet").len(), 1);
}

#[test]
fn the_chart_takes_what_dpf_sets() {
    let all = objects();
    let mut values = values(of_kind(&all, "DPUService")[0]);
    let set = &mut values["serviceDaemonSet"];
    set["annotations"] = serde_json::json!({ "k8s.v1.cni.cncf.io/networks": "mybrsfc,mybrsfc" });
    set["labels"] = serde_json::json!({ "svc.dpu.nvidia.com/service": "inco", "a": "true" });
    set["nodeSelector"] = serde_json::json!({ "nodeSelectorTerms": [{ "matchExpressions": [] }] });
    set["updateStrategy"] = serde_json::json!({ "type": "OnDelete" });
    let manifests = rendered("inco-1", &values);
    let daemon_set = of_kind(&manifests, "DaemonSet")[0];
    let (set, pod) = (&values["serviceDaemonSet"], &daemon_set["spec"]["template"]);
    assert_eq!(daemon_set["spec"]["updateStrategy"], set["updateStrategy"]);
    assert_eq!(pod["metadata"]["annotations"], set["annotations"]);
    assert_eq!(pod["metadata"]["labels"]["svc.dpu.nvidia.com/service"], "inco");
    assert_eq!(pod["metadata"]["labels"]["a"], "true");
    let affinity = &pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
    assert_eq!(*affinity, set["nodeSelector"]);
    // The Pods are those that it selects, and objects of two releases have two names.
    let selected = daemon_set["spec"]["selector"]["matchLabels"].as_object().unwrap();
    assert!(
        selected
            .iter()
            .all(|(key, value)| pod["metadata"]["labels"][key] == *value)
    );
    for of in &manifests {
        assert!(
            of["metadata"]["name"].as_str().unwrap().contains("inco-1"),
            "{of}"
        );
    }
}

#[test]
fn uplinks_of_the_configuration_are_the_interfaces_of_the_service() {
    let all = objects();
    let service = &of_kind(&all, "DPUService")[0]["spec"];
    let interfaces = of_kind(&all, "DPUServiceInterface");
    let names: Vec<&str> = interfaces
        .iter()
        .map(|of| of["metadata"]["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, texts(&service["interfaces"]));
    let in_pod = interfaces
        .iter()
        .map(|of| &of["spec"]["template"]["spec"]["template"]["spec"]["service"]);
    let in_pod: Vec<&Value> = in_pod.collect();
    assert!(in_pod.iter().all(|of| of["serviceID"] == service["serviceID"]));

    let manifests = rendered("inco-1", &read(VALUES));
    let text = of_kind(&manifests, "ConfigMap")[0]["data"]["inco.toml"]
        .as_str()
        .unwrap();
    assert_eq!(text, CONFIGURATION);
    let configuration: toml::Table = toml::from_str(text).unwrap();
    let uplinks = configuration["uplink"].as_array().unwrap();
    let devices: Vec<&str> = uplinks.iter().map(|of| of["device"].as_str().unwrap()).collect();
    let expected: Vec<String> = in_pod
        .iter()
        .map(|of| format!("kernel:{}", of["interfaceName"].as_str().unwrap()))
        .collect();
    assert_eq!(devices, expected);
    // Another configuration takes the place of the chart's.
    let mut values = read(VALUES);
    values["configuration"] = Value::String("[switch]\n".to_owned());
    let manifests = rendered("inco-1", &values);
    assert_eq!(
        of_kind(&manifests, "ConfigMap")[0]["data"]["inco.toml"],
        "[switch]\n"
    );
}

/// The fields of `svc.dpu.nvidia.com/v1alpha1`, as the pages of DPF 25.7 describe them.
#[test]
fn objects_have_the_fields_that_dpf_knows() {
    let all = objects();
    for of in &all {
        has_keys(of, &["apiVersion", "kind", "metadata", "spec"], &[]);
        assert_eq!(of["apiVersion"], "svc.dpu.nvidia.com/v1alpha1");
    }
    let [service] = of_kind(&all, "DPUService")[..] else {
        panic!("one DPUService");
    };
    let spec = &service["spec"];
    has_keys(
        spec,
        &["helmChart", "serviceID", "interfaces"],
        &["serviceDaemonSet", "deployInCluster", "configPorts"],
    );
    has_keys(&spec["helmChart"], &["source"], &["values"]);
    has_keys(
        &spec["helmChart"]["source"],
        &["repoURL", "version"],
        &["chart", "path", "releaseName"],
    );
    let possible = [
        "labels",
        "annotations",
        "nodeSelector",
        "resources",
        "updateStrategy",
    ];
    has_keys(&spec["serviceDaemonSet"], &[], &possible);
    let chart = read(CHART);
    let source = &spec["helmChart"]["source"];
    assert_eq!(
        (&source["chart"], &source["version"]),
        (&chart["name"], &chart["version"])
    );
    assert!(chart["annotations"]["dpu.nvidia.com/doca-version"].is_string());

    let interfaces = of_kind(&all, "DPUServiceInterface");
    for of in &interfaces {
        let own = &of["spec"]["template"]["spec"]["template"];
        assert_eq!(own["spec"]["interfaceType"], "service");
        has_keys(&own["spec"], &["interfaceType", "service"], &[]);
        has_keys(
            &own["spec"]["service"],
            &["serviceID", "network", "interfaceName"],
            &[],
        );
    }
    // Each port of the chain selects at most one of them, and each is selected once.
    let labels = interfaces
        .iter()
        .map(|of| &of["spec"]["template"]["spec"]["template"]["metadata"]["labels"]);
    let labels: Vec<&Value> = labels.collect();
    let chain = &of_kind(&all, "DPUServiceChain")[0]["spec"]["template"]["spec"]["template"]["spec"];
    let mut selected = vec![0; labels.len()];
    for switch in chain["switches"].as_array().unwrap() {
        for port in switch["ports"].as_array().unwrap() {
            let wanted = port["serviceInterface"]["matchLabels"].as_object().unwrap();
            let is_it = |of: &&Value| wanted.iter().all(|(key, value)| of[key] == *value);
            let found: Vec<usize> = (0..labels.len()).filter(|index| is_it(&labels[*index])).collect();
            assert!(found.len() <= 1, "{port}");
            found.iter().for_each(|index| selected[*index] += 1);
        }
    }
    assert!(selected.iter().all(|count| *count == 1), "{selected:?}");
}
