//! The loop of the operator on a node.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use api::types::ServiceRow;
use api::{Client, Endpoint};
use serde_json::{Value, json};
use toml::Table;

use crate::Error;
use crate::addresses::Pool;
use crate::cluster::{Cluster, now, watch};
use crate::files::{self, Files};
use crate::force::{Applied, bring_in_force};
use crate::objects::{FUNCTION, Object, Wishes, wishes};
use crate::plan::{Fault, Id, Input, Plan, Verdict, named, plan};
use crate::status::{Condition, Entry, condition_json, entries, entry, gist, status, with_own};

/// How often inco is asked for its services.
const TICK: Duration = Duration::from_secs(1);
/// How long after a hint more of them may come, so that changes of one moment take effect at once.
const SETTLE: Duration = Duration::from_millis(200);
/// How often the objects are listed without a hint, and figures of traffic are written.
const RESYNC: Duration = Duration::from_secs(10);
/// How long a service stays that no object wants any more. Where the definition of the objects is deleted, the API server
/// deletes them first and then does not know them, which is not answered by stopping functions.
const GONE_AFTER: Duration = Duration::from_secs(5);
/// After how long something that inco has refused is tried again: an image may have come.
const RETRY: Duration = Duration::from_secs(60);
/// How often one change is split into what inco takes and what it refuses.
const ATTEMPTS: usize = 8;
/// Most events of one turn. The others are in the log only.
const EVENTS_LIMIT: usize = 20;

/// What an operator is told.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The base file, and the configuration file of inco.
    pub files: Files,
    /// The name of this node in the cluster.
    pub node: String,
    /// The namespace of the objects; [`None`]: all.
    pub namespace: Option<String>,
    /// The cluster.
    pub cluster: kubernetes::Cluster,
    /// The API of inco.
    pub endpoint: Endpoint,
    /// Addresses for Services.
    pub pool: Pool,
    /// The program that takes over where inco has to start again: the path that it has for inco.
    pub program: PathBuf,
}

/// Says what is wrong with the text of a configuration.
pub type Check<'a> = &'a dyn Fn(&str) -> Vec<Fault>;

/// Something that inco has refused: the table, why, and when.
type Refused = BTreeMap<Id, (Table, String, Instant)>;

/// What was written of an object: its uid, the status, and when.
struct Written {
    status: Value,
    at: Instant,
}

struct Operator<'a> {
    settings: &'a Settings,
    check: Check<'a>,
    cluster: Cluster,
    objects: Vec<Object>,
    wishes: Wishes,
    verdicts: BTreeMap<Id, Verdict>,
    refused: Refused,
    unwanted: BTreeMap<String, Instant>,
    /// Whether inco may not have the accepted configuration.
    is_open: bool,
    /// Until when nothing is tried, after a take-over that failed.
    rests_until: Option<Instant>,
    /// Why nothing can be changed.
    problem: Option<String>,
    written: BTreeMap<Id, Written>,
    told: BTreeMap<Id, Entry>,
    /// What the log has said last of the cluster, and of inco.
    logged: [Option<String>; 2],
}

/// Runs the operator of this node until `stop`.
///
/// # Errors
/// It cannot be started. What goes wrong later is told, and tried again.
pub fn run(settings: &Settings, check: Check<'_>, stop: &Arc<AtomicBool>) -> Result<(), Error> {
    settings.files.prepare(check)?;
    let hints = watch(settings.cluster.clone(), settings.namespace.clone())?;
    let mut operator = Operator::new(settings, check)?;
    let mut list_at = Instant::now();
    tracing::info!(node = settings.node, "the operator runs");
    while !stop.load(Ordering::Relaxed) {
        match hints.recv_timeout(TICK) {
            Ok(()) => {
                std::thread::sleep(SETTLE);
                while hints.try_recv().is_ok() {}
                list_at = Instant::now();
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => std::thread::sleep(TICK),
        }
        if Instant::now() >= list_at {
            let is_listed = operator.list();
            if is_listed {
                operator.apply();
            }
            let is_waiting = is_listed && !operator.unwanted.is_empty() || operator.is_open;
            list_at = Instant::now() + if is_waiting { TICK } else { RESYNC };
        }
        operator.report();
    }
    tracing::info!("the operator ends; inco goes on with what it has");
    Ok(())
}

impl<'a> Operator<'a> {
    fn new(settings: &'a Settings, check: Check<'a>) -> Result<Operator<'a>, Error> {
        Ok(Operator {
            settings,
            check,
            cluster: Cluster::new(settings.cluster.clone(), settings.namespace.clone())?,
            objects: Vec::new(),
            wishes: Wishes::default(),
            verdicts: BTreeMap::new(),
            refused: BTreeMap::new(),
            unwanted: BTreeMap::new(),
            is_open: true,
            rests_until: None,
            problem: None,
            written: BTreeMap::new(),
            told: BTreeMap::new(),
            logged: [None, None],
        })
    }

    /// Logs what has changed about the cluster (0) or inco (1), once.
    fn log(&mut self, which: usize, what: Option<String>) {
        let Some(slot) = self.logged.get_mut(which) else {
            return;
        };
        if *slot != what {
            match &what {
                Some(what) => tracing::warn!("{what}; what is in force stays"),
                None => tracing::info!("it answers again"),
            }
            *slot = what;
        }
    }

    /// Whether the list is new.
    fn list(&mut self) -> bool {
        match self.cluster.list(&self.settings.node) {
            Ok(listed) => {
                self.log(0, None);
                self.objects = listed.objects;
                self.wishes = wishes(&self.objects, &listed.labels, &self.settings.pool);
                let is_there = |id: &Id| self.objects.iter().any(|of| of.id == *id);
                self.written.retain(|id, _| is_there(id));
                self.told.retain(|id, _| is_there(id));
                self.refused
                    .retain(|id, (_, _, at)| is_there(id) && at.elapsed() < RETRY);
                true
            }
            Err(error) => {
                self.log(0, Some(error.to_string()));
                false
            }
        }
    }

    fn planned(&self, base: &str, before: &str) -> Result<Plan, String> {
        let refused = self.refused.iter();
        let refused = refused.map(|(id, (table, why, _))| (id.clone(), (table.clone(), why.clone())));
        let is_kept = |name: &str| {
            self.unwanted
                .get(name)
                .is_none_or(|since| since.elapsed() < GONE_AFTER)
        };
        let input = Input {
            base,
            before,
            wanted: &self.wishes.wanted,
            refused: &refused.collect(),
            kept: &is_kept,
        };
        plan(&input, self.check).map_err(|error| error.to_string())
    }

    /// Brings what is wanted in force, as far as it is accepted.
    fn apply(&mut self) {
        self.problem = None;
        for _ in 0..ATTEMPTS {
            let planned = self.settings.files.read().and_then(|(base, before)| {
                let plan = self.planned(&base, &before)?;
                Ok((plan, before))
            });
            let (plan, before) = match planned {
                Ok(planned) => planned,
                Err(problem) => return self.cannot(problem),
            };
            self.unwanted.retain(|name, _| plan.unwanted.contains(name));
            for name in &plan.unwanted {
                self.unwanted.entry(name.clone()).or_insert_with(Instant::now);
            }
            if plan.text == before && !self.is_open {
                self.verdicts = plan.verdicts;
                return;
            }
            if self.rests_until.is_some_and(|until| Instant::now() < until) {
                return;
            }
            match self.attempt(&plan, &before) {
                Attempt::Done => {
                    self.verdicts = plan.verdicts;
                    return;
                }
                Attempt::Later(problem) => return self.cannot(problem),
                Attempt::Again => {}
            }
        }
    }

    fn cannot(&mut self, problem: String) {
        self.log(1, Some(problem.clone()));
        self.problem = Some(problem);
    }

    fn attempt(&mut self, plan: &Plan, before: &str) -> Attempt {
        let client = match Client::connect_to(self.settings.endpoint.clone()) {
            Ok(client) => client,
            // A file that this machine may refuse is not left to the next start of inco.
            Err(error) => return Attempt::Later(format!("node {}: {error}", self.settings.node)),
        };
        if let Err(problem) = self.settings.files.write(&plan.text) {
            return Attempt::Later(problem);
        }
        self.is_open = true;
        let refusal = match bring_in_force(&client, &self.settings.program) {
            Applied::Done(said) => {
                self.is_open = false;
                self.log(1, None);
                if let Some(said) = said {
                    tracing::info!("{said}");
                }
                return match self.settings.files.accept(&plan.text) {
                    Ok(()) => Attempt::Done,
                    Err(problem) => Attempt::Later(problem),
                };
            }
            Applied::Unknown(problem) => return Attempt::Later(problem),
            Applied::Refused(refusal) => refusal,
        };
        let restored = self
            .settings
            .files
            .write(if before.is_empty() { &plan.text } else { before });
        if let Err(problem) = restored {
            return Attempt::Later(problem);
        }
        self.is_open = before.is_empty();
        match self.blame(&refusal, before) {
            true => Attempt::Again,
            false => {
                self.rests_until = Some(Instant::now() + RETRY);
                Attempt::Later(format!("inco refuses the configuration: {refusal}"))
            }
        }
    }

    /// Notes whose change inco has refused: of the services that it names, else of all. Whether there is one.
    fn blame(&mut self, refusal: &str, before: &str) -> bool {
        let had = files::services(before);
        let changed = self.wishes.wanted.iter().filter_map(|of| {
            let table = of.table.as_ref().ok()?;
            let is_new = had.get(&of.service) != Some(table) && !self.refused.contains_key(&of.id);
            is_new.then_some((&of.id, &of.service, table))
        });
        let changed: Vec<_> = changed.collect();
        let blamed = named(refusal, changed.iter().map(|(_, service, _)| service.as_str()));
        let is_blamed = |service: &str| blamed.is_empty() || blamed.contains(&service);
        let mut refused = Refused::new();
        for (id, service, table) in &changed {
            if is_blamed(service) {
                let entry = ((*table).clone(), refusal.to_owned(), Instant::now());
                refused.insert((*id).clone(), entry);
            }
        }
        let is_any = !refused.is_empty();
        self.refused.extend(refused);
        is_any
    }

    /// Writes what has changed of the status of the objects.
    fn report(&mut self) {
        if self.objects.is_empty() || self.logged.first().is_some_and(Option::is_some) {
            return;
        }
        let rows = Client::connect_to(self.settings.endpoint.clone()).and_then(|client| client.services());
        let (rows, away) = match rows {
            Ok(rows) => (rows, self.problem.clone()),
            Err(error) => (Vec::new(), Some(error.to_string())),
        };
        let mut events = Vec::new();
        for index in 0..self.objects.len() {
            let Some(object) = self.objects.get(index) else {
                continue;
            };
            let of_node = self.own(object, &rows, away.as_deref());
            let changes = self.changes(object, of_node.as_ref());
            events.extend(changes.into_iter().map(|of| (index, of)));
            let written = if object.id.kind == FUNCTION {
                self.status_of(object, of_node.as_ref())
            } else {
                self.service_status(object, of_node.as_ref())
            };
            let id = object.id.clone();
            match of_node {
                Some(entry) => self.told.insert(id.clone(), entry),
                None => self.told.remove(&id),
            };
            if let Some(status) = written
                && let Err(error) = self.write(index, &id, status)
            {
                return self.log(0, Some(error.to_string()));
            }
        }
        self.tell(events);
        self.forget_a_node();
    }

    /// What this node says of an object; [`None`]: it has no part in it.
    fn own(&self, object: &Object, rows: &[ServiceRow], away: Option<&str>) -> Option<Entry> {
        let node = &self.settings.node;
        if let Some(reason) = self.wishes.unreadable.get(&object.id) {
            let verdict = Verdict {
                refused: Some(reason.clone()),
                is_in_force: false,
            };
            return Some(entry(node, object.generation, &verdict, None, None));
        }
        let wanted = self.wishes.wanted.iter().find(|of| of.id == object.id)?;
        let unknown = Verdict {
            refused: None,
            is_in_force: false,
        };
        let verdict = self.verdicts.get(&object.id).unwrap_or(&unknown);
        let row = rows.iter().find(|row| row.name == wanted.service);
        let row = row.filter(|_| verdict.is_in_force);
        let mut own = entry(node, object.generation, verdict, row, away);
        // Until the verdict is that of this generation, the generation of before stands.
        if away.is_some() && verdict.refused.is_none() {
            let before = self.told.get(&object.id);
            own.generation = before.map_or(0, |of| of.generation);
        }
        Some(own)
    }

    /// The status to be written of a function, if it has to be.
    fn status_of(&self, object: &Object, own: Option<&Entry>) -> Option<Value> {
        let node = &self.settings.node;
        let known = entries(&object.status);
        if own.is_none() && !known.iter().any(|of| of.node == *node) {
            return None;
        }
        let all = with_own(known, node, own.cloned());
        let new = status(object.generation, &all, own, &object.status, &now());
        let mut there = object.status.clone();
        if let Some(nodes) = there.get_mut("nodes").and_then(Value::as_array_mut) {
            nodes.retain(|of| of.get("node").and_then(Value::as_str) == Some(node));
        }
        let is_urgent = gist(&new) != gist(&there);
        let is_due = self
            .written
            .get(&object.id)
            .is_none_or(|of| of.at.elapsed() >= RESYNC && of.status != new);
        (is_urgent || is_due && there != new).then_some(new)
    }

    /// The status to be written of a Service, if it has to be.
    fn service_status(&self, object: &Object, own: Option<&Entry>) -> Option<Value> {
        let own = own?;
        let verdict = self.verdicts.get(&object.id);
        let address = self.wishes.addresses.get(&object.id);
        let address = address.filter(|_| verdict.is_some_and(|of| of.is_in_force));
        let condition = Condition {
            kind: "inco.dev/Accepted",
            holds: own.is_accepted && address.is_some(),
            reason: if own.is_accepted { "Accepted" } else { "Refused" },
            message: own.message.clone(),
        };
        let there = &object.status;
        let condition = condition_json(&condition, 0, there, &now());
        let ingress = address.map(|of| json!([{ "ip": of.to_string(), "ipMode": "VIP" }]));
        let new = json!({ "loadBalancer": { "ingress": ingress.unwrap_or_else(|| json!([])) }, "conditions": [condition] });
        let of = |status: &Value, at: &str| status.pointer(at).cloned();
        let kept = |status: &Value| {
            let conditions = status
                .get("conditions")
                .and_then(Value::as_array)
                .into_iter()
                .flatten();
            let own =
                conditions.filter(|of| of.get("type").and_then(Value::as_str) == Some("inco.dev/Accepted"));
            let state: Vec<_> = own.map(|it| (of(it, "/status"), of(it, "/reason"))).collect();
            (of(status, "/loadBalancer/ingress/0/ip"), state)
        };
        (kept(&new) != kept(there)).then_some(new)
    }

    fn write(&mut self, index: usize, id: &Id, status: Value) -> Result<(), Error> {
        let answer = self.cluster.apply_status(id, &self.settings.node, &status)?;
        if let (Some(there), Some(object)) = (answer, self.objects.get_mut(index)) {
            object.status = there;
        }
        let written = Written {
            status,
            at: Instant::now(),
        };
        self.written.insert(id.clone(), written);
        Ok(())
    }

    /// What has changed of an object on this node, as events: word, text, and whether it is a warning.
    fn changes(&self, object: &Object, own: Option<&Entry>) -> Vec<(&'static str, String, bool)> {
        let node = &self.settings.node;
        let of_status = || entries(&object.status).into_iter().find(|of| of.node == *node);
        let before = self.told.get(&object.id).cloned().or_else(of_status);
        let mut events = Vec::new();
        let Some(own) = own else {
            if before.is_some() {
                events.push((
                    "Left",
                    format!("node {node} does not have the labels any more"),
                    false,
                ));
            }
            return events;
        };
        let is_new = before.is_none();
        let before = before.unwrap_or_default();
        if own.is_accepted
            && own.generation != 0
            && (is_new || !before.is_accepted || own.generation != before.generation)
        {
            events.push((
                "Accepted",
                format!("node {node} accepts generation {}", own.generation),
                false,
            ));
        }
        let is_other =
            before.is_accepted || own.generation != before.generation || before.message != own.message;
        if !own.is_accepted && (is_new || is_other) {
            events.push(("Refused", format!("node {node}: {}", own.message), true));
        }
        let (was, is) = (&before.figures, &own.figures);
        if was.desired != is.desired && is.desired > 0 {
            let why = &own.message;
            events.push((
                "Scaled",
                format!("node {node}: {} -> {} instances: {why}", was.desired, is.desired),
                false,
            ));
        }
        if before.is_ready != own.is_ready {
            let text = format!(
                "node {node}: {} of {} instances are active: {}",
                is.active, is.desired, own.message
            );
            events.push((
                if own.is_ready { "Ready" } else { "NotReady" },
                text,
                !own.is_ready,
            ));
        }
        events
    }

    fn tell(&mut self, events: Vec<(usize, (&'static str, String, bool))>) {
        for (index, (word, text, is_warning)) in events.into_iter().take(EVENTS_LIMIT) {
            let Some(object) = self.objects.get(index) else {
                continue;
            };
            tracing::info!(object = %format!("{}/{}", object.id.namespace, object.id.name), "{word}: {text}");
            // The status has it, too; an event that is lost changes nothing.
            if let Err(error) = self
                .cluster
                .tell(object, &self.settings.node, (word, &text), is_warning)
            {
                tracing::debug!(error = error.to_string(), "an event is not told");
            }
        }
    }

    /// Takes the entry of a node away that the cluster does not have any more: at most one at a time.
    fn forget_a_node(&mut self) {
        let own = &self.settings.node;
        let others = self
            .objects
            .iter()
            .filter(|of| of.id.kind == FUNCTION)
            .flat_map(|object| {
                let foreign = entries(&object.status)
                    .into_iter()
                    .map(|of| of.node)
                    .filter(|of| of != own);
                foreign.map(|node| (object.id.clone(), node))
            });
        let others: Vec<(Id, String)> = others.collect();
        // Which one is looked at changes with time.
        let turn = usize::try_from(k8s_openapi::jiff::Timestamp::now().as_second()).unwrap_or_default();
        let Some((id, node)) = others.get(turn % others.len().max(1)) else {
            return;
        };
        if matches!(self.cluster.has_node(node), Ok(false))
            && self.cluster.apply_status(id, node, &json!({})).is_ok()
        {
            tracing::info!(
                node,
                "the cluster does not have this node any more; its entry is removed"
            );
            if let Some(object) = self.objects.iter_mut().find(|of| of.id == *id)
                && let Some(nodes) = object.status.get_mut("nodes").and_then(Value::as_array_mut)
            {
                nodes.retain(|of| of.get("node").and_then(Value::as_str) != Some(node));
            }
            self.written.remove(id);
        }
    }
}

/// How an attempt has ended.
enum Attempt {
    /// What is planned is in force.
    Done,
    /// Some change is refused: a plan without it is tried.
    Again,
    /// Nothing can be done now.
    Later(String),
}
