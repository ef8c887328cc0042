//! The API server: lists, statuses, events, and a thread that says when something has changed.

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash as _, Hasher as _};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use futures_util::{StreamExt as _, pin_mut};
use kube::api::{
    Api, ApiResource, DynamicObject, ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams,
};
use kube::core::GroupVersionKind;
use kube::{Client, ResourceExt as _};
use kubernetes::said;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::objects::{
    CUSTOM_DEFINITION, FUNCTION, GATEWAY_CLASS, KINDS, Object, REFERENCE_GRANT, SERVICE, api_version,
    is_optional,
};
use crate::plan::Id;
use crate::spec::shortened;
use crate::{Error, gateway};

/// Objects per page of a list.
const PAGE: u32 = 500;
/// Most objects of a kind. A node has at most 64 services; the others are of other nodes, or of other classes.
const OBJECTS_LIMIT: usize = 20_000;
/// How long an answer may take.
const ANSWER_LIMIT: Duration = Duration::from_secs(15);
/// For how long the API server is asked to let a watch live, in seconds.
const WATCH_SECONDS: u32 = 60;
/// How much later than that a watch counts as dead.
const WATCH_GRACE: Duration = Duration::from_secs(10);
/// The first and the longest pause after a failure of a watch.
const PAUSE: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(10));
/// Longest name of a manager of fields in bytes.
const MANAGER_LIMIT: usize = 128;
/// Longest text of the API server about an object, in characters.
const MESSAGE_LIMIT: usize = 512;
/// For how long a definition is young: what its objects want may not be there again.
const YOUNG: Duration = Duration::from_secs(60);
/// The definition of the functions.
const DEFINITION: &str = "networkfunctions.inco.dev";
/// The code of what is not there.
const NOT_FOUND: u16 = 404;
/// The code of what this account may not do.
const FORBIDDEN: u16 = 403;
/// The code of a change of something that has changed meanwhile.
const CONFLICT: u16 = 409;
/// The codes of an answer that has nothing to do with the object: who asks is not known, or the server has no time.
const OF_NO_OBJECT: [u16; 5] = [401, 429, 502, 503, 504];

/// The objects of a list, what routes name, and the labels of the node.
#[derive(Clone, Debug, Default)]
pub(crate) struct Listed {
    pub(crate) objects: Vec<Object>,
    /// The Services that routes name, and the grants of namespaces.
    pub(crate) others: Vec<Object>,
    pub(crate) labels: BTreeMap<String, String>,
}

/// The API server, as this operator uses it. Calls block.
pub(crate) struct Cluster {
    access: kubernetes::Cluster,
    namespace: Option<String>,
    runtime: Runtime,
    client: Option<Client>,
    /// The objects of the kinds that the cluster has had. One that is away later is no reason to remove what it wanted.
    known: BTreeMap<&'static str, Vec<Object>>,
    /// The kinds that it did not know last.
    is_away: BTreeSet<&'static str>,
    /// When a kind was away last.
    away: BTreeMap<&'static str, Instant>,
}

fn resource(kind: &str) -> ApiResource {
    let (group, version) = api_version(kind).split_once('/').unwrap_or(("", "v1"));
    ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind))
}

fn api(client: &Client, namespace: Option<&str>, kind: &str) -> Api<DynamicObject> {
    match namespace.filter(|of| kind != GATEWAY_CLASS && !of.is_empty()) {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource(kind)),
        None => Api::all_with(client.clone(), &resource(kind)),
    }
}

fn object(kind: &'static str, mut of: DynamicObject) -> Object {
    Object {
        id: Id {
            kind,
            namespace: of.namespace().unwrap_or_default(),
            name: of.name_any(),
        },
        uid: of.uid().unwrap_or_default(),
        generation: of.metadata.generation.unwrap_or_default(),
        version: of.resource_version().unwrap_or_default(),
        created: of
            .creation_timestamp()
            .map(|of| of.0.to_string())
            .unwrap_or_default(),
        annotations: of.metadata.annotations.take().unwrap_or_default(),
        spec: of.data.get_mut("spec").map(Value::take).unwrap_or_default(),
        status: of.data.get_mut("status").map(Value::take).unwrap_or_default(),
    }
}

/// The manager of what a node says.
fn manager(node: &str) -> String {
    let mut name = format!("inco-{node}");
    name.truncate(
        (0..=MANAGER_LIMIT)
            .rev()
            .find(|at| name.is_char_boundary(*at))
            .unwrap_or(0),
    );
    name
}

impl Cluster {
    pub(crate) fn new(access: kubernetes::Cluster, namespace: Option<String>) -> Result<Cluster, Error> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(Error::Start)?;
        Ok(Cluster {
            access,
            namespace,
            runtime,
            client: None,
            known: BTreeMap::new(),
            is_away: BTreeSet::new(),
            away: BTreeMap::new(),
        })
    }

    /// Asks, within the limit. After a failure the next one begins with a new client: credentials may have changed.
    fn ask<T>(&mut self, what: impl AsyncFnOnce(&Client) -> Result<T, kube::Error>) -> Result<T, Error> {
        let (known, access) = (self.client.take(), &self.access);
        let asked = async {
            let client = match known {
                Some(client) => client,
                None => access
                    .client()
                    .await
                    .map_err(|error| Error::Cluster(error.to_string()))?,
            };
            let answer = what(&client).await.map_err(Error::from)?;
            Ok((client, answer))
        };
        let limit = async { tokio::time::timeout(ANSWER_LIMIT, asked).await };
        let answer = self.runtime.block_on(limit).unwrap_or_else(|_| {
            let seconds = ANSWER_LIMIT.as_secs();
            Err(Error::Cluster(format!(
                "the API server does not answer within {seconds} s"
            )))
        });
        let (client, answer) = answer?;
        self.client = Some(client);
        Ok(answer)
    }

    /// All objects that are of inco, and the labels of this node. A kind that the cluster does not know any more keeps the
    /// objects that it had.
    pub(crate) fn list(&mut self, node: &str) -> Result<Listed, Error> {
        let (namespace, before) = (self.namespace.clone(), std::mem::take(&mut self.known));
        let asked = self.ask(async |client| {
            let (mut listed, mut known) = (Listed::default(), BTreeMap::new());
            let (mut services, mut away) = (Vec::new(), BTreeSet::new());
            for kind in KINDS {
                let api = api(client, namespace.as_deref(), kind);
                let had = before.get(kind);
                let all = match listed_all(&api, kind).await {
                    Err(kube::Error::Api(said))
                        if said.code == NOT_FOUND && is_defined(kind, had.is_some()) =>
                    {
                        away.insert(kind);
                        Some(had.cloned().unwrap_or_default())
                    }
                    Err(kube::Error::Api(said))
                        if is_optional(kind)
                            && had.is_none()
                            && [NOT_FOUND, FORBIDDEN].contains(&said.code) =>
                    {
                        tracing::debug!(kind, said = said.message, "it is not there for this account");
                        continue;
                    }
                    all => all?,
                };
                // A part of the list would have all others look deleted.
                let Some(all) = all else {
                    return Ok(Err(too_many(kind)));
                };
                known.insert(kind, all.clone());
                match kind {
                    SERVICE => services = all,
                    REFERENCE_GRANT => listed.others = all,
                    _ => listed.objects.extend(all),
                }
            }
            listed.objects = gateway::relevant(listed.objects);
            let named = gateway::backends(&listed.objects);
            for of in services {
                if named.contains(&(of.id.namespace.clone(), of.id.name.clone())) {
                    listed.others.push(of.clone());
                }
                if of.is_of_inco() {
                    listed.objects.push(of);
                }
            }
            let found = api(client, None, "Node").get(node).await?;
            listed.labels = found.metadata.labels.unwrap_or_default();
            Ok(Ok((listed, known, away)))
        });
        let (listed, known, is_away) = match asked.and_then(|of| of) {
            Ok(of) => of,
            Err(error) => {
                self.known = before;
                return Err(error);
            }
        };
        self.known = known;
        for kind in &is_away {
            self.away.insert(kind, Instant::now());
            if !self.is_away.contains(kind) {
                tracing::warn!(
                    kind,
                    "the cluster does not know this kind of objects; what it wanted stays"
                );
            }
        }
        self.is_away = is_away;
        Ok(listed)
    }

    /// Whether the cluster did not know this kind when it was listed last.
    pub(crate) fn is_away(&self, kind: &str) -> bool {
        self.is_away.contains(kind)
    }

    /// Whether objects of this kind may lack in a list although nobody has deleted them: its definition was away a short
    /// while ago, is new, or is being deleted.
    pub(crate) fn is_young(&mut self, kind: &'static str) -> bool {
        if self.away.get(kind).is_some_and(|at| at.elapsed() < YOUNG) {
            return true;
        }
        if kind != FUNCTION {
            return false;
        }
        let made = self.ask(async |client| {
            let found = api(client, None, CUSTOM_DEFINITION).get_opt(DEFINITION).await?;
            Ok(found.map(|of| (of.creation_timestamp(), of.metadata.deletion_timestamp)))
        });
        match made {
            // It is being deleted, and its objects before it.
            Ok(Some((_, Some(_)))) => true,
            Ok(Some((Some(made), None))) => {
                let seconds = k8s_openapi::jiff::Timestamp::now().as_second() - made.0.as_second();
                seconds.unsigned_abs() < YOUNG.as_secs()
            }
            // Without the right to ask for it, there is what this operator has seen.
            _ => false,
        }
    }

    /// Whether the cluster has such a node.
    pub(crate) fn has_node(&mut self, node: &str) -> Result<bool, Error> {
        self.ask(async |client| Ok(api(client, None, "Node").get_opt(node).await?.is_some()))
    }

    /// Applies a status as that node, and gives the object that is there then; [`None`]: it is gone.
    pub(crate) fn apply_status(
        &mut self,
        id: &Id,
        node: &str,
        status: &Value,
    ) -> Result<Option<Object>, Error> {
        let version = api_version(id.kind);
        let whole = json!({ "apiVersion": version, "kind": id.kind, "metadata": { "name": id.name }, "status": status });
        let params = PatchParams::apply(&manager(node)).force();
        self.patch_status(id, &params, &Patch::Apply(&whole))
    }

    /// Replaces lists of a status that others write, too, where it is as it was listed; [`None`]: it is not, or is gone.
    pub(crate) fn change_status(&mut self, of: &Object, status: &Value) -> Result<Option<Object>, Error> {
        let whole = json!({ "metadata": { "resourceVersion": of.version }, "status": status });
        self.patch_status(&of.id, &PatchParams::default(), &Patch::Merge(&whole))
    }

    fn patch_status(
        &mut self,
        id: &Id,
        params: &PatchParams,
        patch: &Patch<&Value>,
    ) -> Result<Option<Object>, Error> {
        self.ask(async |client| {
            let api = api(client, Some(&id.namespace), id.kind);
            match api.patch_status(&id.name, params, patch).await {
                Ok(of) => Ok(Ok(Some(object(id.kind, of)))),
                Err(kube::Error::Api(said)) if [NOT_FOUND, CONFLICT].contains(&said.code) => Ok(Ok(None)),
                // As of an object that is too large with it.
                Err(kube::Error::Api(said)) if !OF_NO_OBJECT.contains(&said.code) => {
                    Ok(Err(Error::Refused(shortened(&said.message, MESSAGE_LIMIT))))
                }
                Err(error) => Err(error),
            }
        })?
    }

    /// Tells an event of an object.
    pub(crate) fn tell(
        &mut self,
        object: &Object,
        node: &str,
        (reason, message): (&str, &str),
        is_warning: bool,
    ) -> Result<(), Error> {
        let now = now();
        let id = &object.id;
        let version = api_version(id.kind);
        let event = json!({
            "apiVersion": "v1", "kind": "Event",
            "metadata": { "generateName": format!("{}.", id.name), "namespace": id.namespace },
            "involvedObject": { "apiVersion": version, "kind": id.kind, "namespace": id.namespace, "name": id.name, "uid": object.uid },
            "reason": reason, "message": message, "type": if is_warning { "Warning" } else { "Normal" },
            "firstTimestamp": now, "lastTimestamp": now, "count": 1,
            "source": { "component": "inco", "host": node }, "reportingComponent": "inco.dev/operator", "reportingInstance": node,
        });
        self.ask(async |client| {
            let event: DynamicObject = serde_json::from_value(event).map_err(kube::Error::SerdeError)?;
            let api = api(client, Some(&id.namespace), "Event");
            api.create(&PostParams::default(), &event).await.map(drop)
        })
    }
}

/// Whether a kind is one with a definition that can be deleted, and that this operator needs or has seen.
fn is_defined(kind: &str, is_known: bool) -> bool {
    kind == FUNCTION || is_known && is_optional(kind)
}

fn too_many(kind: &str) -> Error {
    Error::Cluster(format!(
        "there are more than {OBJECTS_LIMIT} objects of the kind {kind}; have the operator follow one namespace, by --namespace"
    ))
}

/// All objects of a kind, a page after the other; [`None`]: there are too many.
async fn listed_all(
    api: &Api<DynamicObject>,
    kind: &'static str,
) -> Result<Option<Vec<Object>>, kube::Error> {
    let mut params = ListParams::default().limit(PAGE);
    let mut all = Vec::new();
    loop {
        let page = api.list(&params).await?;
        let next = page.metadata.continue_.clone().filter(|of| !of.is_empty());
        all.extend(page.items.into_iter().map(|of| object(kind, of)));
        match next {
            Some(token) if all.len() < OBJECTS_LIMIT => params = params.continue_token(&token),
            Some(_) => return Ok(None),
            None => return Ok(Some(all)),
        }
    }
}

impl From<kube::Error> for Error {
    fn from(error: kube::Error) -> Error {
        Error::Cluster(said(&error).to_string())
    }
}

/// Now, as the API server writes times.
pub(crate) fn now() -> String {
    let now = k8s_openapi::jiff::Timestamp::now();
    let whole = k8s_openapi::jiff::Timestamp::from_second(now.as_second());
    whole.unwrap_or(now).to_string()
}

/// Starts a thread that says when an object is new, gone, or has another specification. What it says is a hint: the list
/// is what holds. It lives as long as the process.
pub(crate) fn watch(access: kubernetes::Cluster, namespace: Option<String>) -> Result<Receiver<()>, Error> {
    // One hint is as good as many.
    let (sender, hints) = sync_channel(1);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(Error::Start)?;
    let thread = std::thread::Builder::new().name("inco-watch".to_owned());
    let each = move || {
        let namespace = namespace.as_deref();
        runtime.block_on(async {
            let each = KINDS.map(|kind| follow(&access, namespace, kind, &sender));
            futures_util::future::join_all(each).await;
        });
    };
    thread.spawn(each).map_err(Error::Start)?;
    Ok(hints)
}

async fn follow(
    access: &kubernetes::Cluster,
    namespace: Option<&str>,
    kind: &'static str,
    hints: &SyncSender<()>,
) {
    let mut pause = PAUSE.0;
    let mut known = BTreeMap::new();
    loop {
        match watched(access, namespace, kind, (hints, &mut known)).await {
            Ok(()) => pause = PAUSE.0,
            Err(error) => {
                tracing::debug!(kind, error = error.to_string(), "the watch has ended");
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(PAUSE.1);
            }
        }
    }
}

/// Watches until the watch ends. Without a version to begin at, the first events are all objects that there are.
async fn watched(
    access: &kubernetes::Cluster,
    namespace: Option<&str>,
    kind: &'static str,
    (hints, known): (&SyncSender<()>, &mut BTreeMap<Id, u64>),
) -> Result<(), Error> {
    let client = access
        .client()
        .await
        .map_err(|error| Error::Cluster(error.to_string()))?;
    let params = WatchParams::default().timeout(WATCH_SECONDS).disable_bookmarks();
    let api = api(&client, namespace, kind);
    let events = tokio::time::timeout(ANSWER_LIMIT, api.watch(&params, "0")).await;
    let events = events.map_err(|_| Error::Cluster("the watch does not begin".to_owned()))??;
    pin_mut!(events);
    let limit = Duration::from_secs(WATCH_SECONDS.into()) + WATCH_GRACE;
    while let Ok(Some(event)) = tokio::time::timeout(limit, events.next()).await {
        let is_new = match event? {
            WatchEvent::Added(of) | WatchEvent::Modified(of) => {
                let of = object(kind, of);
                let mut hasher = DefaultHasher::new();
                (&of.uid, of.spec.to_string(), &of.annotations).hash(&mut hasher);
                let hash = hasher.finish();
                of.is_of_inco() && known.insert(of.id, hash) != Some(hash)
            }
            WatchEvent::Deleted(of) => {
                let of = object(kind, of);
                known.remove(&of.id);
                of.is_of_inco()
            }
            WatchEvent::Bookmark(_) => false,
            WatchEvent::Error(status) => return Err(kube::Error::Api(status.boxed()).into()),
        };
        if known.len() > OBJECTS_LIMIT {
            known.clear();
        }
        if is_new {
            let _ = hints.try_send(());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by it")]
    use std::io::{BufRead as _, BufReader, Write as _};
    use std::net::TcpListener;

    use super::*;

    /// Whoever makes many objects must not have those of others look deleted.
    #[test]
    fn a_list_that_is_too_long_is_none() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let item = json!({ "metadata": { "name": "x", "namespace": "edge" } });
        let page = json!({ "kind": "List", "apiVersion": "v1", "metadata": { "continue": "more" },
            "items": vec![item; PAGE as usize] });
        // It ends with the test's process.
        std::thread::spawn(move || {
            for connection in listener.incoming() {
                let mut connection = connection.unwrap();
                let mut head = BufReader::new(connection.try_clone().unwrap()).lines();
                while head.next().is_some_and(|line| !line.unwrap().is_empty()) {}
                let answer = format!(
                    "HTTP/1.1 200 X\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n{page}"
                );
                connection.write_all(answer.as_bytes()).unwrap();
            }
        });
        let folder = tempfile::tempdir().unwrap();
        let kubeconfig = folder.path().join("kubeconfig");
        let text = json!({ "apiVersion": "v1", "kind": "Config", "current-context": "x",
            "clusters": [{ "name": "c", "cluster": { "server": url } }], "users": [{ "name": "u", "user": {} }],
            "contexts": [{ "name": "x", "context": { "cluster": "c", "user": "u" } }] });
        std::fs::write(&kubeconfig, text.to_string()).unwrap();
        let access = kubernetes::Cluster {
            kubeconfig: Some(kubeconfig),
            context: None,
        };
        let said = Cluster::new(access, None).unwrap().list("n1").unwrap_err();
        let said = said.to_string();
        assert!(
            said.starts_with("there are more than 20000 objects of the kind"),
            "{said}"
        );
    }
}
