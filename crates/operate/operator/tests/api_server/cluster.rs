//! API servers: a real one, and a FAKE one with as much of the protocol as the operator uses. The fake one knows no schema,
//! no rights and no owners of fields; the real one has them all.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use real_parts::ApiServer;
use serde_json::{Value, json};

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const FUNCTIONS: &str = "/apis/inco.dev/v1alpha1/networkfunctions";
/// The group of Gateways.
const GATEWAYS: &str = "/apis/gateway.networking.k8s.io";
/// What the fake one lists, beside the kinds of that group.
const COLLECTIONS: [&str; 2] = [FUNCTIONS, "/api/v1/services"];
/// Where the kinds of deploy/kubernetes are made.
const KINDS: [(&str, &str); 7] = [
    ("CustomResourceDefinition", DEFINITIONS),
    ("Namespace", "/api/v1/namespaces"),
    ("ServiceAccount", "/api/v1/namespaces/inco/serviceaccounts"),
    ("ClusterRole", "/apis/rbac.authorization.k8s.io/v1/clusterroles"),
    (
        "ClusterRoleBinding",
        "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    ),
    ("ConfigMap", "/api/v1/namespaces/inco/configmaps"),
    ("DaemonSet", "/apis/apps/v1/namespaces/inco/daemonsets"),
];

/// The name of an object of which the fake one takes no status.
pub(crate) const TOO_LARGE: &str = "a-large-one";

/// What the tests do at an API server.
pub(crate) trait Server {
    fn kubeconfig(&self) -> PathBuf;
    fn get(&self, path: &str) -> Option<Value>;
    fn make(&self, path: &str, object: &str);
    fn merge(&self, path: &str, with: &Value);
    fn delete(&self, path: &str);
    fn kill(&self);
    fn up(&self);
    /// Deletes the definition of the functions.
    fn forget_functions(&self);
    /// Has it there again, without objects.
    fn know_functions(&self);
    /// Has the kinds of the Gateway API there, and the class of inco.
    fn know_gateways(&self);
}

const DEFINITION: &str = include_str!("../../../../../deploy/kubernetes/chart/crds/networkfunctions.yaml");

/// Has the definition, the operator's account with its rights, a namespace and a node there.
pub(crate) fn prepare(server: &ApiServer) {
    server.apply(DEFINITION, &KINDS, false);
    server.apply(
        include_str!("../../../../../deploy/kubernetes/operator.yaml"),
        &KINDS,
        false,
    );
    for name in ["edge", "other"] {
        let namespace = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name } });
        server.put("/api/v1/namespaces", name, &namespace.to_string());
    }
    let node = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": "n1", "labels": { "edge": "true" } } });
    server.put("/api/v1/nodes", "n1", &node.to_string());
}

impl Server for ApiServer {
    /// That of the operator's account: what its role does not have fails.
    fn kubeconfig(&self) -> PathBuf {
        self.kubeconfig_of("inco", "inco-operator")
    }
    fn get(&self, path: &str) -> Option<Value> {
        serde_json::from_str(&self.ask("GET", path, "").ok()?).ok()
    }
    fn make(&self, path: &str, object: &str) {
        self.ask("POST", path, object).unwrap();
    }
    fn merge(&self, path: &str, with: &Value) {
        for attempt in 1.. {
            let mut object = Server::get(self, path).unwrap();
            merged(&mut object, with);
            match self.ask("PUT", path, &object.to_string()) {
                Ok(_) => return,
                // The status has just been written.
                Err(said) => assert!(attempt < 20 && said.contains("409"), "{said}"),
            }
        }
    }
    fn delete(&self, path: &str) {
        self.ask("DELETE", path, "").unwrap();
    }
    fn kill(&self) {
        ApiServer::kill(self);
    }
    fn up(&self) {
        ApiServer::up(self);
    }
    fn forget_functions(&self) {
        self.ask("DELETE", &format!("{DEFINITIONS}/networkfunctions.inco.dev"), "")
            .unwrap();
    }
    fn know_functions(&self) {
        self.apply(DEFINITION, &KINDS, false);
    }
    fn know_gateways(&self) {
        let class = (
            "GatewayClass",
            "/apis/gateway.networking.k8s.io/v1/gatewayclasses",
        );
        self.apply(include_str!("gateway.yaml"), &KINDS, false);
        self.apply(GATEWAY, &[&KINDS[..], &[class]].concat(), false);
    }
}

/// The class of inco, and the operator's rights for Gateways.
const GATEWAY: &str = include_str!("../../../../../deploy/kubernetes/gateway.yaml");

/// A merge of JSON, which appends nothing to lists.
fn merged(into: &mut Value, with: &Value) {
    match (into, with) {
        (Value::Object(into), Value::Object(with)) => {
            for (key, value) in with {
                merged(into.entry(key.clone()).or_insert(Value::Null), value);
            }
        }
        (into, with) => *into = with.clone(),
    }
}

#[derive(Default)]
struct Store {
    /// By path.
    objects: BTreeMap<String, Value>,
    /// Of the functions whose conditions only one node has applied as they are: that node, by path.
    owners: BTreeMap<String, String>,
    version: u64,
    is_away: bool,
    is_forgotten: bool,
    knows_gateways: bool,
}

pub(crate) struct FakeServer {
    store: Arc<Mutex<Store>>,
    kubeconfig: PathBuf,
}

impl Store {
    fn set(&mut self, path: &str, mut object: Value, has_new_spec: bool) -> Value {
        self.version += 1;
        let metadata = &mut object["metadata"];
        metadata["resourceVersion"] = json!(self.version.to_string());
        if metadata.get("uid").is_none() {
            metadata["uid"] = json!(format!("uid-{}", self.version));
            metadata["creationTimestamp"] = json!(format!("2026-01-01T00:00:{:02}Z", self.version % 60));
        }
        if has_new_spec {
            metadata["generation"] = json!(metadata["generation"].as_i64().unwrap_or(0) + 1);
        }
        self.objects.insert(path.to_owned(), object.clone());
        object
    }

    /// The objects of a path of all namespaces.
    fn of(&self, path: &str) -> Vec<Value> {
        let (group, plural) = path.rsplit_once('/').unwrap();
        let is_it = |at: &&String| at.starts_with(group) && at.rsplit('/').nth(1) == Some(plural);
        let paths = self.objects.keys().filter(is_it);
        paths.map(|path| self.objects[path].clone()).collect()
    }
}

fn head(status: u16) -> String {
    format!("HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n")
}

fn failure(code: u16) -> Value {
    json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": "not found", "reason": "NotFound", "code": code })
}

/// Answers one request.
fn answer(mut connection: TcpStream, store: &Mutex<Store>) -> std::io::Result<()> {
    let mut reader = BufReader::new(connection.try_clone()?);
    let (mut request, mut length) = (String::new(), 0);
    reader.read_line(&mut request)?;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        if line.trim().is_empty() {
            break;
        }
        if let Some(of) = line.to_lowercase().strip_prefix("content-length:") {
            length = of.trim().parse().unwrap();
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    if store.lock().unwrap().is_away {
        return Ok(());
    }
    let mut words = request.split(' ');
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    if method == "GET" && query.contains("watch=") {
        return watched(connection, store, path);
    }
    let answer = asked(&mut store.lock().unwrap(), (method, path, query), &body);
    match answer {
        Ok(of) => write!(connection, "{}{of}", head(200)),
        Err(code) => write!(connection, "{}{}", head(code), failure(code)),
    }
}

fn asked(store: &mut Store, (method, path, query): (&str, &str, &str), body: &[u8]) -> Result<Value, u16> {
    let is_of_gateways = path.starts_with(GATEWAYS);
    let is_collection = COLLECTIONS.contains(&path) || is_of_gateways && path.split('/').count() == 5;
    if path == FUNCTIONS && store.is_forgotten || is_of_gateways && !store.knows_gateways {
        return Err(404);
    }
    match method {
        "GET" if is_collection => Ok(json!({ "kind": "List", "apiVersion": "v1",
            "metadata": { "resourceVersion": store.version.to_string() }, "items": store.of(path) })),
        "GET" => store.objects.get(path).cloned().ok_or(404),
        "PATCH" => {
            let path = path.strip_suffix("/status").ok_or(404_u16)?;
            let mut object = store.objects.get(path).ok_or(404_u16)?.clone();
            // As the store of a real one says that an object is too large with its status.
            if object["metadata"]["name"] == TOO_LARGE {
                return Err(500);
            }
            let patch: Value = serde_json::from_slice(body).unwrap();
            let version = &patch["metadata"]["resourceVersion"];
            if !version.is_null() && *version != object["metadata"]["resourceVersion"] {
                return Err(409);
            }
            let manager = query
                .split('&')
                .find_map(|of| of.strip_prefix("fieldManager=inco-"));
            let others = manager.map(|node| others(&object, node)).unwrap_or_default();
            if let Some(manager) = manager {
                let new = &patch["status"]["conditions"];
                match store.owners.get(path).is_some_and(|of| of == manager) {
                    // What only this one has applied is removed, and a condition is not taken without it.
                    true if new.is_null() => return Err(422),
                    _ if new.is_null() => {}
                    true if *new == object["status"]["conditions"] => {}
                    false if *new == object["status"]["conditions"] => {
                        store.owners.remove(path);
                    }
                    _ => {
                        store.owners.insert(path.to_owned(), manager.to_owned());
                    }
                }
            }
            merged(&mut object, &json!({ "status": patch["status"] }));
            if manager.is_some() && object["kind"] == "NetworkFunction" {
                let own = patch["status"]["nodes"].as_array().cloned().unwrap_or_default();
                object["status"]["nodes"] = others.into_iter().chain(own).collect();
            }
            Ok(store.set(path, object, false))
        }
        "POST" => {
            let mut object: Value = serde_json::from_slice(body).unwrap();
            let generated = object["metadata"]["generateName"].as_str().ok_or(404_u16)?;
            let name = format!("{generated}{}", store.version);
            object["metadata"]["name"] = json!(name);
            Ok(store.set(&format!("{path}/{name}"), object, false))
        }
        _ => Err(404),
    }
}

/// The entries of other nodes, which a node that applies its own does not touch.
fn others(object: &Value, node: &str) -> Vec<Value> {
    let all = object["status"]["nodes"].as_array().into_iter().flatten();
    all.filter(|of| of["node"] != node).cloned().collect()
}

/// Says each object that has changed, twice.
fn watched(mut connection: TcpStream, store: &Mutex<Store>, path: &str) -> std::io::Result<()> {
    write!(connection, "{}", head(200))?;
    let mut seen: BTreeMap<String, Value> = BTreeMap::new();
    loop {
        let (all, is_away) = {
            let store = store.lock().unwrap();
            (store.of(path), store.is_away)
        };
        if is_away {
            return Ok(());
        }
        let uid = |of: &Value| of["metadata"]["uid"].as_str().unwrap().to_owned();
        let gone = seen.keys().filter(|of| !all.iter().any(|it| uid(it) == **of));
        for key in gone.cloned().collect::<Vec<_>>() {
            let object = seen.remove(&key);
            writeln!(connection, "{}", json!({ "type": "DELETED", "object": object }))?;
        }
        for object in all {
            let kind = match seen.insert(uid(&object), object.clone()) {
                Some(before) if before == object => continue,
                Some(_) => "MODIFIED",
                None => "ADDED",
            };
            for _ in 0..2 {
                writeln!(connection, "{}", json!({ "type": kind, "object": object }))?;
            }
        }
        connection.flush()?;
        std::thread::sleep(Duration::from_millis(50));
    }
}

impl FakeServer {
    pub(crate) fn start(folder: &Path) -> FakeServer {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let store: Arc<Mutex<Store>> = Arc::default();
        let node = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": "n1", "labels": { "edge": "true" } } });
        store.lock().unwrap().set("/api/v1/nodes/n1", node, false);
        let shared = Arc::clone(&store);
        std::thread::spawn(move || {
            for connection in listener.incoming() {
                let (connection, store) = (connection.unwrap(), Arc::clone(&shared));
                // Who asked may have gone.
                std::thread::spawn(move || drop(answer(connection, &store)));
            }
        });
        let kubeconfig = folder.join("kubeconfig");
        let text = json!({ "apiVersion": "v1", "kind": "Config", "current-context": "x",
            "clusters": [{ "name": "c", "cluster": { "server": url } }], "users": [{ "name": "u", "user": {} }],
            "contexts": [{ "name": "x", "context": { "cluster": "c", "user": "u" } }] });
        std::fs::write(&kubeconfig, text.to_string()).unwrap();
        FakeServer { store, kubeconfig }
    }
}

impl Server for FakeServer {
    fn kubeconfig(&self) -> PathBuf {
        self.kubeconfig.clone()
    }
    fn get(&self, path: &str) -> Option<Value> {
        let store = self.store.lock().unwrap();
        match path.ends_with("/events") {
            true => Some(json!({ "items": store.of("/api/v1/events") })),
            false => store.objects.get(path).cloned(),
        }
    }
    fn make(&self, path: &str, object: &str) {
        let mut object: Value = serde_json::from_str(object).unwrap();
        let (_, namespace) = path.split_once("/namespaces/").unwrap_or_default();
        object["metadata"]["namespace"] = json!(namespace.split('/').next());
        let path = format!("{path}/{}", object["metadata"]["name"].as_str().unwrap());
        self.store.lock().unwrap().set(&path, object, true);
    }
    fn merge(&self, path: &str, with: &Value) {
        let mut store = self.store.lock().unwrap();
        let mut object = store.objects[path].clone();
        merged(&mut object, with);
        store.set(path, object, true);
    }
    fn delete(&self, path: &str) {
        self.store.lock().unwrap().objects.remove(path);
    }
    fn kill(&self) {
        self.store.lock().unwrap().is_away = true;
    }
    fn up(&self) {
        self.store.lock().unwrap().is_away = false;
    }
    fn forget_functions(&self) {
        // The objects go first, and the path a moment later.
        self.store
            .lock()
            .unwrap()
            .objects
            .retain(|path, _| !path.contains("networkfunctions"));
        std::thread::sleep(Duration::from_secs(1));
        self.store.lock().unwrap().is_forgotten = true;
    }
    fn know_functions(&self) {
        self.store.lock().unwrap().is_forgotten = false;
    }
    fn know_gateways(&self) {
        self.store.lock().unwrap().knows_gateways = true;
        let mut all = GATEWAY.split("\n---\n");
        let class = all.find(|of| of.contains("kind: GatewayClass\n")).unwrap();
        let class: Value = serde_saphyr::from_str(class).unwrap();
        self.make(&format!("{GATEWAYS}/v1/gatewayclasses"), &class.to_string());
    }
}
