//! A container as a Pod, and what a Pod's status says of it. Asks nobody.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodStatus};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use model::{CAPABILITIES, Nanos, PodOptions, TaskFile};
use serde_json::{Map, Value, json};

use crate::container::{Task, TaskAsk};
use crate::fate::{Fate, exit_of};
use crate::{ContainerSpec, CpuQuota, EngineError, Exit};

/// The longest name of a Pod that is also the name of its host, in bytes.
const NAME_LIMIT: usize = 63;
/// The longest value of a label, in bytes.
const LABEL_LIMIT: usize = 63;
/// The label of all Pods that inco makes, with [`MANAGER`].
pub(crate) const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// The value of [`MANAGED_BY`].
pub(crate) const MANAGER: &str = "inco";
/// On Pods: all labels of the container as JSON. Kubernetes' own take neither paths nor long texts.
const LABELS: &str = "inco/labels";
/// The name of the only container of a Pod.
pub(crate) const CONTAINER: &str = "instance";
/// What is kept of CPUs for a Pod that has neither a limit nor a reservation, in thousandths. Without any, Kubernetes takes
/// it for one of its lowest class, which cannot be given a limit later.
const LEAST_MILLI_CPUS: u64 = 1;
/// What begins the reason of a Pod that never ran, where its node did not get its image.
pub(crate) const NO_IMAGE: &str = "no image: ";
/// Why a container waits where its node did not get the image.
const NO_IMAGE_REASONS: [&str; 4] = [
    "ErrImageNeverPull",
    "ErrImagePull",
    "ImagePullBackOff",
    "InvalidImageName",
];
/// Why a container waits that cannot be made.
const NOT_MADE_REASONS: [&str; 3] = [
    "CreateContainerConfigError",
    "CreateContainerError",
    "RunContainerError",
];
/// How a container has ended whose program could not be started.
const NOT_STARTED_REASONS: [&str; 2] = ["StartError", "ContainerCannotRun"];

/// What Kubernetes is asked beside, if it can have such a container.
pub(crate) fn check(spec: &ContainerSpec) -> Result<(&Task, &PodOptions), EngineError> {
    let bad = |what: &'static str, reason: String| Err(EngineError::BadSpec { what, reason });
    let Some((task, TaskAsk::Kubernetes(options))) = spec.task.as_ref().map(|task| (task, &task.ask)) else {
        return bad(
            "no port",
            "a Pod is reached over the network, at a port".to_owned(),
        );
    };
    let is_taken = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    if spec.name.len() > NAME_LIMIT || !spec.name.bytes().all(is_taken) || spec.name.ends_with('-') {
        let reason = format!(
            "{:?} cannot name a Pod, which takes up to {NAME_LIMIT} of a-z, 0-9 and '-': give the service such a name",
            spec.name
        );
        return bad("this name", reason);
    }
    if !spec.functions.is_empty() || spec.exchange.is_some() {
        return bad(
            "ports of this machine",
            "Kubernetes may place it on another one".to_owned(),
        );
    }
    if spec.cpuset.is_some() || spec.hugepages {
        let reason = "they are a setting of each node's kubelet".to_owned();
        return bad("CPUs or hugepages of its own", reason);
    }
    if let Some(mount) = spec.mounts.first() {
        let reason = format!(
            "{} would be a path of whichever node it is on: take a ConfigMap or a Secret (`configs`, `secrets`)",
            mount.source.display()
        );
        return bad("a mount of a path", reason);
    }
    Ok((task, options))
}

/// CPUs in thousandths, as Kubernetes writes them.
fn milli_cpus(cpus: f64) -> u64 {
    (cpus * 1_000.0).round().max(1.0) as u64
}

fn cpu_text(milli: u64) -> String {
    format!("{milli}m")
}

/// Thousandths of a CPU of a quantity such as `500m` or `2`; [`None`]: it is written in another way.
pub(crate) fn milli_of(quantity: &Quantity) -> Option<u64> {
    match quantity.0.strip_suffix('m') {
        Some(milli) => milli.parse().ok(),
        None => Some(milli_cpus(quantity.0.parse().ok()?)),
    }
}

/// Whole seconds, at least one: Kubernetes takes none for "do not wait for the node".
pub(crate) fn grace_seconds(grace: Nanos) -> u32 {
    u32::try_from(grace.0.div_ceil(1_000_000_000))
        .unwrap_or(u32::MAX)
        .max(1)
}

/// Whether a text may be the value of a label.
fn is_label_value(text: &str) -> bool {
    let is_inner = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    let ends = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric());
    text.len() <= LABEL_LIMIT
        && text.bytes().all(is_inner)
        && (text.is_empty() || ends(text.bytes().next()) && ends(text.bytes().next_back()))
}

/// The Pod of a container, as JSON: what the configuration says in Kubernetes' own words is passed on as it is.
pub(crate) fn pod(
    spec: &ContainerSpec,
    task: &Task,
    options: &PodOptions,
    may_pull: bool,
) -> Result<Value, EngineError> {
    // All fields by name: the compiler asks what this engine does with a new one.
    let ContainerSpec {
        name,
        labels,
        image,
        command,
        env,
        cpu,
        memory_bytes,
        capabilities,
        // In `check`.
        mounts: _,
        exchange: _,
        cpuset: _,
        hugepages: _,
        functions: _,
        task: _,
        // It is there already.
        place: _,
        // The nodes' own settings.
        user_namespace: _,
        pids_limit: _,
    } = spec;
    let PodOptions {
        node_selector,
        tolerations,
        affinity,
        pull_secrets,
        service_account,
        reserved_cpus,
        reserved_memory_bytes,
        secrets,
        configs,
    } = options;
    let own = labels.iter().filter(|(_, value)| is_label_value(value));
    let mut own: BTreeMap<&str, &str> = own.map(|(key, value)| (key.as_str(), value.as_str())).collect();
    own.insert(MANAGED_BY, MANAGER);
    let noted = serde_json::to_string(labels).unwrap_or_default();

    let limit = cpu.map(|quota| milli_cpus(quota.cpus()));
    let reserved = reserved_cpus
        .map(milli_cpus)
        .or(limit)
        .unwrap_or(LEAST_MILLI_CPUS);
    let mut limits = Map::new();
    let mut requests = Map::new();
    limits.extend(limit.map(|milli| ("cpu".to_owned(), cpu_text(milli).into())));
    requests.insert("cpu".to_owned(), cpu_text(reserved).into());
    limits.extend(memory_bytes.map(|bytes| ("memory".to_owned(), bytes.to_string().into())));
    let memory = reserved_memory_bytes.or(*memory_bytes);
    requests.extend(memory.map(|bytes| ("memory".to_owned(), bytes.to_string().into())));

    let (mut volumes, mut mounted) = (Vec::new(), Vec::new());
    let mut add = |files: &[TaskFile], folder: &str, source: &dyn Fn(&str) -> (&'static str, Value)| {
        for file in files {
            let volume = format!("v{}", volumes.len());
            let (kind, from) = source(&file.name);
            let usual = || format!("/run/{folder}/{}", file.name);
            let path = file
                .target
                .as_ref()
                .map_or_else(usual, |path| path.display().to_string());
            mounted.push(json!({ "name": volume, "mountPath": path, "readOnly": true }));
            volumes.push(json!({ "name": volume, kind: from }));
        }
    };
    add(secrets, "secrets", &|name| {
        ("secret", json!({ "secretName": name }))
    });
    add(configs, "configs", &|name| ("configMap", json!({ "name": name })));

    let usual = || CAPABILITIES.map(str::to_owned).to_vec();
    let mut container = json!({
        "name": CONTAINER,
        "image": image.with_tag(),
        "imagePullPolicy": if may_pull { "IfNotPresent" } else { "Never" },
        "env": env.iter().map(|(key, value)| json!({ "name": key, "value": value })).collect::<Vec<_>>(),
        "ports": [{ "containerPort": task.port }],
        "resources": { "limits": limits, "requests": requests },
        "volumeMounts": mounted,
        "securityContext": { "capabilities": { "drop": ["ALL"], "add": capabilities.clone().unwrap_or_else(usual) } },
        // The end of what it wrote, for the event of its end.
        "terminationMessagePolicy": "FallbackToLogsOnError",
    });
    let mut body = json!({
        // The caller decides what follows an end.
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": grace_seconds(task.grace),
        "enableServiceLinks": false,
        "automountServiceAccountToken": service_account.is_some(),
        "volumes": volumes,
        "imagePullSecrets": pull_secrets.iter().map(|name| json!({ "name": name })).collect::<Vec<_>>(),
        "nodeSelector": node_selector.iter().cloned().collect::<BTreeMap<String, String>>(),
    });
    // The image's own, where nothing is said.
    if !command.is_empty() {
        container["command"] = json!(command);
    }
    if !task.args.is_empty() {
        container["args"] = json!(task.args);
    }
    body["containers"] = json!([container]);
    if let Some(account) = service_account {
        body["serviceAccountName"] = json!(account);
    }
    for (key, text) in [("tolerations", tolerations), ("affinity", affinity)] {
        let Some(text) = text else { continue };
        body[key] = serde_json::from_str(text).map_err(|error| EngineError::BadSpec {
            what: key,
            reason: error.to_string(),
        })?;
    }
    Ok(json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "name": name, "labels": own, "annotations": { LABELS: noted } },
        "spec": body,
    }))
}

/// What gives a Pod another limit of CPUs, as a patch of its resources; `None`: no limit. What is kept for it goes with the
/// limit where it was as much as the limit, since a Pod may not change its class.
pub(crate) fn resize(pod: &Pod, quota: Option<CpuQuota>) -> Value {
    let resources = container_of(pod).and_then(|of| of.resources.as_ref());
    let cpu = |of: Option<&BTreeMap<String, Quantity>>| of?.get("cpu").and_then(milli_of);
    let limit = cpu(resources.and_then(|of| of.limits.as_ref()));
    let request = cpu(resources.and_then(|of| of.requests.as_ref()));
    let asked = quota.map(|quota| milli_cpus(quota.cpus()));
    let request = match (asked, limit, request) {
        (Some(asked), limit, request) if limit.is_some() && limit == request => Some(asked),
        (Some(asked), _, request) => request.map(|request| request.min(asked)),
        (None, _, request) => request,
    };
    json!({ "spec": { "containers": [{
        "name": CONTAINER,
        "resources": {
            "limits": { "cpu": asked.map(cpu_text) },
            "requests": { "cpu": request.map(cpu_text) },
        },
    }] } })
}

/// Whether the node has given a Pod that limit of CPUs; an error: why it does not.
pub(crate) fn is_resized(pod: &Pod, quota: Option<CpuQuota>) -> Result<bool, String> {
    let status = pod.status.as_ref();
    let mut conditions = status.iter().flat_map(|of| of.conditions.iter().flatten());
    if let Some(pending) = conditions.find(|of| of.type_ == "PodResizePending" && of.status == "True") {
        return Err(pending
            .message
            .clone()
            .or(pending.reason.clone())
            .unwrap_or_default());
    }
    let given = status
        .and_then(status_of)
        .and_then(|of| of.resources.as_ref()?.limits.as_ref()?.get("cpu"))
        .and_then(milli_of);
    Ok(given == quota.map(|quota| milli_cpus(quota.cpus())))
}

fn container_of(pod: &Pod) -> Option<&k8s_openapi::api::core::v1::Container> {
    pod.spec.as_ref()?.containers.first()
}

fn status_of(status: &PodStatus) -> Option<&ContainerStatus> {
    status.container_statuses.as_ref()?.first()
}

/// The labels of a Pod's container, and its port; [`None`]: it is none of ours.
pub(crate) fn read_back(pod: &Pod) -> Option<(BTreeMap<String, String>, u16)> {
    let labels = pod.metadata.annotations.as_ref()?.get(LABELS)?;
    let port = container_of(pod)?.ports.as_ref()?.first()?.container_port;
    Some((serde_json::from_str(labels).ok()?, u16::try_from(port).ok()?))
}

/// Whether the node of a Pod has been lost, as the cluster says: it sets the condition of a Pod whose node does not report.
/// Nodes give a reason where they set it.
pub(crate) fn is_lost(pod: &Pod) -> bool {
    let status = pod.status.as_ref();
    let mut conditions = status.iter().flat_map(|of| of.conditions.iter().flatten());
    conditions.any(|of| {
        of.type_ == "Ready" && of.status == "False" && of.reason.as_deref().unwrap_or_default().is_empty()
    })
}

/// What has become of a Pod, whose node may be lost.
pub(crate) fn fate(pod: &Pod, port: u16, is_lost: bool) -> Fate {
    let Some(status) = &pod.status else {
        return Fate::Begins("nothing is said of it".to_owned());
    };
    let words = |reason: Option<&str>, message: Option<&str>| match (reason, message) {
        (Some(reason), Some(message)) => format!("{reason}: {}", message.trim()),
        (one, other) => one.or(other).unwrap_or_default().to_owned(),
    };
    let state = status_of(status).and_then(|of| of.state.as_ref());
    if let Some(ended) = state.and_then(|of| of.terminated.as_ref()) {
        let reason = ended.reason.as_deref().unwrap_or_default();
        let message = ended.message.as_deref().unwrap_or_default();
        if NOT_STARTED_REASONS.contains(&reason) {
            return Fate::NeverRan(words(Some(reason), Some(message)));
        }
        // The kubelet cannot say how it ended, and says 137.
        if reason == "ContainerStatusUnknown" {
            return Fate::Ended(Exit::default(), message.to_owned());
        }
        return Fate::Ended(
            exit_of(ended.exit_code.into(), reason == "OOMKilled"),
            message.to_owned(),
        );
    }
    let said = words(status.reason.as_deref(), status.message.as_deref());
    match status.phase.as_deref() {
        // As of one that its node has evicted, or does not admit.
        Some("Failed") => return Fate::NeverRan(said),
        Some("Succeeded") => return Fate::Ended(exit_of(0, false), said),
        _ => {}
    }
    if state.is_some_and(|of| of.running.is_some()) {
        if is_lost {
            return Fate::Ended(Exit::default(), "its node does not answer".to_owned());
        }
        let address: Option<IpAddr> = status.pod_ip.as_ref().and_then(|ip| ip.parse().ok());
        return match address {
            Some(ip) => Fate::Runs(SocketAddr::new(ip, port)),
            None => Fate::Begins("its address is not known".to_owned()),
        };
    }
    if let Some(waiting) = state.and_then(|of| of.waiting.as_ref()) {
        let reason = waiting.reason.as_deref().unwrap_or_default();
        let said = words(waiting.reason.as_deref(), waiting.message.as_deref());
        if NO_IMAGE_REASONS.contains(&reason) {
            return Fate::NeverRan(format!("{NO_IMAGE}{said}"));
        }
        if NOT_MADE_REASONS.contains(&reason) {
            return Fate::NeverRan(said);
        }
        return Fate::Begins(said);
    }
    let mut conditions = status.conditions.iter().flatten();
    let unplaced = conditions.find(|of| of.type_ == "PodScheduled" && of.status != "True");
    Fate::Begins(match unplaced {
        Some(of) => words(of.reason.as_deref(), of.message.as_deref()),
        None => "it is not placed yet".to_owned(),
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by it")]
mod tests {
    use super::*;

    fn read(json: Value) -> Pod {
        serde_json::from_value(json).unwrap()
    }

    fn status(json: Value) -> Fate {
        let pod = read(json!({ "metadata": {}, "status": json }));
        fate(&pod, 80, is_lost(&pod))
    }

    fn spec(options: PodOptions) -> ContainerSpec {
        let mut spec = ContainerSpec::new("inco-web-1", "nginx");
        spec.labels = BTreeMap::from([
            ("inco.run-dir".to_owned(), "/run/inco".to_owned()),
            ("inco.service".to_owned(), "web".to_owned()),
        ]);
        spec.memory_bytes = Some(1 << 20);
        spec.task = Some(Box::new(Task {
            args: vec!["-g".to_owned()],
            port: 8080,
            grace: Nanos::from_millis(1_500),
            ask: TaskAsk::Kubernetes(options),
        }));
        spec
    }

    fn made(spec: &ContainerSpec) -> Value {
        let (task, options) = check(spec).unwrap();
        pod(spec, task, options, true).unwrap()
    }

    #[test]
    fn what_is_asked_can_be_read_back_and_words_of_kubernetes_are_passed_on() {
        let options = PodOptions {
            node_selector: vec![("disk".to_owned(), "fast".to_owned())],
            tolerations: Some(r#"[{ "key": "a", "operator": "Exists" }]"#.to_owned()),
            affinity: Some(r#"{ "podAntiAffinity": { "anything": 1 } }"#.to_owned()),
            pull_secrets: vec!["login".to_owned()],
            secrets: vec![TaskFile {
                name: "key".to_owned(),
                target: None,
            }],
            configs: vec![TaskFile {
                name: "site".to_owned(),
                target: Some("/etc/site".into()),
            }],
            ..PodOptions::default()
        };
        let spec = spec(options);
        let json = made(&spec);
        let (labels, port) = read_back(&read(json.clone())).unwrap();
        assert_eq!((labels, port), (spec.labels.clone(), 8080));
        assert_eq!(
            json["metadata"]["labels"],
            json!({ MANAGED_BY: "inco", "inco.service": "web" })
        );
        let body = &json["spec"];
        assert_eq!(body["restartPolicy"], "Never");
        assert_eq!(body["terminationGracePeriodSeconds"], 2);
        assert_eq!(body["affinity"]["podAntiAffinity"]["anything"], 1);
        assert_eq!(body["tolerations"][0]["operator"], "Exists");
        assert_eq!(body["nodeSelector"]["disk"], "fast");
        assert_eq!(body["imagePullSecrets"][0]["name"], "login");
        assert_eq!(body["automountServiceAccountToken"], false);
        let container = &body["containers"][0];
        assert_eq!(container["args"][0], "-g");
        assert_eq!(container.get("command"), None);
        assert_eq!(container["volumeMounts"][0]["mountPath"], "/run/secrets/key");
        assert_eq!(container["volumeMounts"][1]["mountPath"], "/etc/site");
        assert_eq!(body["volumes"][1]["configMap"]["name"], "site");
        assert_eq!(container["resources"]["limits"], json!({ "memory": "1048576" }));
        assert_eq!(
            container["resources"]["requests"],
            json!({ "cpu": "1m", "memory": "1048576" })
        );
    }

    #[test]
    fn a_new_limit_keeps_the_class_of_a_pod() {
        let with = |limits: Value, requests: Value| {
            read(
                json!({ "metadata": {}, "spec": { "containers": [{ "name": CONTAINER, "resources": { "limits": limits, "requests": requests } }] } }),
            )
        };
        let asked = |pod: &Pod, cpus: Option<f64>| {
            let patch = resize(pod, cpus.map(CpuQuota::of_cpus));
            let resources = &patch["spec"]["containers"][0]["resources"];
            (
                resources["limits"]["cpu"].clone(),
                resources["requests"]["cpu"].clone(),
            )
        };
        let guaranteed = with(json!({ "cpu": "1" }), json!({ "cpu": "1000m" }));
        assert_eq!(asked(&guaranteed, Some(2.0)), (json!("2000m"), json!("2000m")));
        let reserved = with(json!({ "cpu": "1" }), json!({ "cpu": "500m" }));
        assert_eq!(asked(&reserved, Some(0.25)), (json!("250m"), json!("250m")));
        let unlimited = with(json!({}), json!({ "cpu": "1m" }));
        assert_eq!(asked(&unlimited, Some(0.5)), (json!("500m"), json!("1m")));
        assert_eq!(asked(&unlimited, None), (Value::Null, json!("1m")));
    }

    #[test]
    fn a_status_says_what_has_become_of_a_pod() {
        let ready =
            |status: &str, reason: Value| json!([{ "type": "Ready", "status": status, "reason": reason }]);
        let running = |conditions: Value| {
            json!({ "phase": "Running", "podIP": "10.1.0.5", "conditions": conditions,
                "containerStatuses": [{ "name": CONTAINER, "image": "", "imageID": "", "ready": true, "restartCount": 0, "state": { "running": {} } }] })
        };
        let runs = Fate::Runs("10.1.0.5:80".parse().unwrap());
        assert_eq!(status(running(ready("True", Value::Null))), runs);
        // Its node says so of one that ends.
        assert_eq!(status(running(ready("False", json!("ContainersNotReady")))), runs);
        let lost = status(running(ready("False", Value::Null)));
        assert_eq!(
            lost,
            Fate::Ended(Exit::default(), "its node does not answer".to_owned())
        );
        let state = |state: Value| {
            status(json!({ "phase": "Pending",
                "containerStatuses": [{ "name": CONTAINER, "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": state }] }))
        };
        let ended = state(json!({ "terminated": { "exitCode": 137, "reason": "OOMKilled" } }));
        assert_eq!(
            ended,
            Fate::Ended(
                Exit {
                    status: None,
                    signal: Some(9),
                    out_of_memory: true
                },
                String::new()
            )
        );
        let ended =
            state(json!({ "terminated": { "exitCode": 3, "reason": "Error", "message": "last words" } }));
        assert_eq!(ended, Fate::Ended(exit_of(3, false), "last words".to_owned()));
        let ended = state(json!({ "terminated": { "exitCode": 137, "reason": "ContainerStatusUnknown" } }));
        assert_eq!(ended, Fate::Ended(Exit::default(), String::new()));
        for (never, said) in [
            (
                json!({ "terminated": { "exitCode": 128, "reason": "StartError", "message": "no such file" } }),
                "no such file",
            ),
            (
                json!({ "waiting": { "reason": "ErrImageNeverPull", "message": "x" } }),
                NO_IMAGE,
            ),
            (
                json!({ "waiting": { "reason": "CreateContainerConfigError", "message": "x" } }),
                "x",
            ),
        ] {
            assert!(
                matches!(state(never), Fate::NeverRan(why) if why.contains(said)),
                "{said}"
            );
        }
        let creating = state(json!({ "waiting": { "reason": "ContainerCreating" } }));
        assert_eq!(creating, Fate::Begins("ContainerCreating".to_owned()));
        let evicted = status(
            json!({ "phase": "Failed", "reason": "Evicted", "message": "The node was low on memory" }),
        );
        assert_eq!(
            evicted,
            Fate::NeverRan("Evicted: The node was low on memory".to_owned())
        );
        let unplaced = status(json!({ "phase": "Pending",
            "conditions": [{ "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes" }] }));
        assert_eq!(unplaced, Fate::Begins("Unschedulable: 0/1 nodes".to_owned()));
    }

    #[test]
    fn what_kubernetes_does_not_have_is_refused() {
        type Change = fn(&mut ContainerSpec);
        let changes: [(&str, Change); 5] = [
            ("over the network", |spec| spec.task = None),
            ("a-z", |spec| spec.name = "inco-My_web-1".to_owned()),
            ("kubelet", |spec| spec.cpuset = Some("0".to_owned())),
            ("/etc/a would be", |spec| {
                spec.mounts = vec![model::Mount {
                    source: "/etc/a".into(),
                    target: "/b".into(),
                    read_only: true,
                }];
            }),
            ("another one", |spec| {
                spec.exchange = Some(crate::Exchange {
                    source: "/a".into(),
                    target: "/b".into(),
                });
            }),
        ];
        for (said, change) in changes {
            let mut spec = spec(PodOptions::default());
            change(&mut spec);
            let error = check(&spec).unwrap_err().to_string();
            assert!(error.contains(said), "{said}: {error}");
        }
    }
}
