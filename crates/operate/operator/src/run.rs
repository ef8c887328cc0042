//! The loop of the operator on a node.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use api::types::{ServiceRow, Snapshot};
use api::{Client, Endpoint};
use serde_json::{Value, json};
use toml::Table;

use crate::Error;
use crate::addresses::Pool;
use crate::cluster::{Cluster, now, watch};
use crate::files::{self, Files};
use crate::force::{Applied, bring_in_force};
use crate::metrics::{Board, Listen, Row, serve};
use crate::objects::{FUNCTION, Object, SERVICE, Wishes, wishes};
use crate::plan::{Fault, Id, Input, Part, Plan, Verdict, named, plan};
use crate::rollouts::{Differ, Rollouts};
use crate::status::{
    Condition, Entry, Told, Writer, agreed, blamed, entries, entry, gist, merged, released, status, total,
    with_own,
};

/// How often inco is asked for its services.
const TICK: Duration = Duration::from_secs(1);
/// How long after a hint more of them may come, so that changes of one moment take effect at once.
const SETTLE: Duration = Duration::from_millis(200);
/// How often the objects are listed without a hint, and figures of traffic are written.
const RESYNC: Duration = Duration::from_secs(10);
/// How long a service stays that no object wants any more. Where the definition of the objects is deleted, the API server
/// deletes them first and then does not know them, which is not answered by stopping functions. Where the definition is
/// new, they stay until it is a minute old ([`Cluster::is_young`]): its objects may come again.
const GONE_AFTER: Duration = Duration::from_secs(5);
/// After how long something that inco has refused is tried again: an image may have come.
const RETRY: Duration = Duration::from_secs(60);
/// How often one change is split into what inco takes and what it refuses.
const ATTEMPTS: usize = 8;
/// Most events of one turn. The others are in the log only.
const EVENTS_LIMIT: usize = 20;
/// The condition of a Service.
const ACCEPTED: &str = "inco.dev/Accepted";
/// What is said of a port of a Service that is refused: the API server takes a word with a domain.
const REFUSED: &str = "inco.dev/Refused";

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
    /// Addresses for Services and Gateways.
    pub pool: Pool,
    /// Where external metrics are to be had; [`None`]: nowhere.
    pub metrics: Option<Listen>,
    /// The program that takes over where inco has to start again: the path that it has for inco.
    pub program: PathBuf,
}

/// Says what is wrong with the text of a configuration.
pub type Check<'a> = &'a dyn Fn(&str) -> Vec<Fault>;

/// Something that inco has refused: the table, why, and when.
type Refused = BTreeMap<Part, (Table, String, Instant)>;

/// What of that is tried again now: what has waited longest. It is one part, since inco may refuse all that it gets together
/// for one of them, and would again.
fn due(refused: &Refused, now: Instant) -> Option<Part> {
    let waiting = refused.iter().map(|(part, (_, _, at))| (at, part));
    let (at, part) = waiting.min()?;
    (now.saturating_duration_since(*at) >= RETRY).then(|| part.clone())
}

/// What keeps a change from being tried.
#[derive(Default)]
struct Standstill {
    /// Until when nothing is tried, after a take-over that failed.
    until: Option<Instant>,
    /// Why nothing can be changed.
    problem: Option<String>,
}

/// What was written of an object, and when.
struct Written {
    status: Value,
    at: Instant,
    /// Whether the API server has not taken it.
    is_refused: bool,
}

struct Operator<'a> {
    settings: &'a Settings,
    check: Check<'a>,
    cluster: Cluster,
    objects: Vec<Object>,
    wishes: Wishes,
    verdicts: BTreeMap<Part, Verdict>,
    refused: Refused,
    /// Services that no object wants any more: since when, and the kind of what wanted them, as far as this process knows.
    unwanted: BTreeMap<String, (Instant, &'static str)>,
    /// Whether inco may not have the accepted configuration.
    is_open: bool,
    standstill: Standstill,
    rollouts: Rollouts<'a>,
    written: BTreeMap<Id, Written>,
    told: BTreeMap<Id, Entry>,
    /// Nodes that the cluster does not have any more, although a status names them.
    gone: BTreeSet<String>,
    /// What the log has said last of the cluster, and of inco.
    logged: [Option<String>; 2],
}

/// Runs the operator of this node until `stop`. `differ` says of which services a change makes other instances.
///
/// # Errors
/// It cannot be started. What goes wrong later is told, and tried again.
pub fn run(
    settings: &Settings,
    check: Check<'_>,
    differ: Differ<'_>,
    stop: &Arc<AtomicBool>,
) -> Result<(), Error> {
    settings.files.prepare(check)?;
    let hints = watch(settings.cluster.clone(), settings.namespace.clone())?;
    let mut operator = Operator::new(settings, check, differ)?;
    let board = Board::default();
    let _server = settings
        .metrics
        .as_ref()
        .map(|listen| serve(listen, &board))
        .transpose()?;
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
                board.show(operator.rows());
                operator.apply();
            }
            let is_going = |(since, _): &(Instant, _)| since.elapsed() < GONE_AFTER + TICK;
            let is_going = operator.unwanted.values().any(is_going);
            let is_waiting = is_listed && is_going || operator.is_open;
            list_at = Instant::now() + if is_waiting { TICK } else { RESYNC };
        }
        operator.roll_out();
        operator.report();
    }
    tracing::info!("the operator ends; inco goes on with what it has");
    Ok(())
}

impl<'a> Operator<'a> {
    fn new(settings: &'a Settings, check: Check<'a>, differ: Differ<'a>) -> Result<Operator<'a>, Error> {
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
            standstill: Standstill::default(),
            rollouts: Rollouts::new(&settings.files, differ),
            written: BTreeMap::new(),
            told: BTreeMap::new(),
            gone: BTreeSet::new(),
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
                self.gone.clear();
                self.wishes = wishes(&self.objects, &listed.others, &listed.labels, &self.settings.pool);
                let is_there = |id: &Id| self.objects.iter().any(|of| of.id == *id);
                self.written.retain(|id, _| is_there(id));
                self.told.retain(|id, _| is_there(id));
                let again = due(&self.refused, Instant::now());
                self.refused
                    .retain(|part, _| is_there(&part.0) && Some(part) != again.as_ref());
                true
            }
            Err(error) => {
                self.log(0, Some(error.to_string()));
                false
            }
        }
    }

    /// What the statuses say of all nodes.
    fn rows(&self) -> Vec<Row> {
        let functions = self.objects.iter().filter(|of| of.id.kind == FUNCTION);
        let row = |of: &Object| Row {
            namespace: of.id.namespace.clone(),
            name: of.id.name.clone(),
            figures: total(&entries(&of.status)),
        };
        functions.map(row).collect()
    }

    fn planned(&mut self, base: &str, before: &str) -> Result<Plan, String> {
        // Asked only where something is to go. A kind that nobody knows any more may be any.
        let is_due = |since: &Instant| since.elapsed() >= GONE_AFTER;
        let due = self.unwanted.values().filter(|(since, _)| is_due(since));
        let kinds: BTreeSet<&'static str> = due.map(|(_, kind)| *kind).collect();
        let mut young = kinds;
        young.retain(|kind| self.cluster.is_young(kind));
        let refused = self.refused.iter();
        let refused = refused.map(|(part, (table, why, _))| (part.clone(), (table.clone(), why.clone())));
        let is_kept = |name: &str| {
            self.unwanted
                .get(name)
                .is_none_or(|(since, kind)| !is_due(since) || young.contains(kind))
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
        self.standstill.problem = self.tried().err();
        if self.standstill.problem.is_some() {
            self.log(1, self.standstill.problem.clone());
        }
    }

    /// The same; why it is not in force.
    fn tried(&mut self) -> Result<(), String> {
        for _ in 0..ATTEMPTS {
            let (base, before) = self.settings.files.read()?;
            let plan = self.planned(&base, &before)?;
            self.unwanted.retain(|name, _| plan.unwanted.contains(name));
            for name in &plan.unwanted {
                let owner = self.verdicts.keys().find(|(_, service)| service == name);
                let kind = owner.map_or(FUNCTION, |(id, _)| id.kind);
                let gone = (Instant::now(), kind);
                self.unwanted.entry(name.clone()).or_insert(gone);
            }
            if plan.text == before && !self.is_open {
                self.verdicts = plan.verdicts;
                return Ok(());
            }
            if self.standstill.until.is_some_and(|until| Instant::now() < until) {
                return self.standstill.problem.clone().map_or(Ok(()), Err);
            }
            match self.attempt(&plan, &before) {
                Attempt::Done => {
                    self.verdicts = plan.verdicts;
                    return Ok(());
                }
                Attempt::Later(problem) => return Err(problem),
                Attempt::Again => {}
            }
        }
        Err(format!(
            "inco refuses {ATTEMPTS} changes; the others are tried soon"
        ))
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
                self.log(1, None);
                if let Some(said) = said {
                    tracing::info!("{said}");
                }
                // Once the text is accepted, nothing says any more what it has changed.
                let noted = self.rollouts.note(before, &plan.text);
                return match noted.and_then(|()| self.settings.files.accept(&plan.text)) {
                    Ok(()) => {
                        self.is_open = false;
                        Attempt::Done
                    }
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
                self.standstill.until = Some(Instant::now() + RETRY);
                Attempt::Later(format!("inco refuses the configuration: {refusal}"))
            }
        }
    }

    /// Notes whose change inco has refused: of the services that it names, else of all. Whether there is one.
    fn blame(&mut self, refusal: &str, before: &str) -> bool {
        let had = files::services(before);
        let changed = self.wishes.wanted.iter().filter_map(|of| {
            let table = of.table.as_ref().ok()?;
            // What was refused of it before may have been another table.
            let is_known = self.refused.get(&of.part()).is_some_and(|(it, ..)| it == table);
            let is_new = had.get(&of.service) != Some(table) && !is_known;
            is_new.then_some((of, table))
        });
        let changed: Vec<_> = changed.collect();
        let blamed = named(refusal, changed.iter().map(|(of, _)| of.service.as_str()));
        let is_blamed = |service: &str| blamed.is_empty() || blamed.contains(&service);
        let mut refused = Refused::new();
        for (of, table) in &changed {
            if is_blamed(&of.service) {
                let entry = ((*table).clone(), refusal.to_owned(), Instant::now());
                refused.insert(of.part(), entry);
            }
        }
        let is_any = !refused.is_empty();
        self.refused.extend(refused);
        is_any
    }

    /// Has inco replace the instances of services of which it makes others now.
    fn roll_out(&mut self) {
        // Until it is known whether inco has the configuration, new instances may be those of before.
        if self.is_open {
            return;
        }
        if let Ok(client) = Client::connect_to(self.settings.endpoint.clone()) {
            self.rollouts.advance(&client);
        }
    }

    /// Writes what has changed of the status of the objects.
    fn report(&mut self) {
        if self.objects.is_empty() || self.logged.first().is_some_and(Option::is_some) {
            return;
        }
        let asked = Client::connect_to(self.settings.endpoint.clone()).and_then(|client| client.snapshot());
        let (rows, waits, away): (_, Vec<(String, f64)>, _) = match asked {
            Ok(Snapshot {
                services, instances, ..
            }) => {
                let waits = instances
                    .into_iter()
                    .filter_map(|of| Some((of.service, of.ring_wait_us?.p99)));
                (services, waits.collect(), self.standstill.problem.clone())
            }
            Err(error) => (Vec::new(), Vec::new(), Some(error.to_string())),
        };
        let mut events = Vec::new();
        for index in 0..self.objects.len() {
            let Some(object) = self.objects.get(index) else {
                continue;
            };
            let of_node = self.own(object, (&rows, &waits), away.as_deref());
            let changes = self.changes(object, of_node.as_ref());
            events.extend(changes.into_iter().map(|of| (index, of)));
            let written = match object.id.kind {
                FUNCTION => self.status_of(object, of_node.as_ref()),
                SERVICE => self.service_status(object, of_node.as_ref()),
                _ => self.gateway_status(object),
            };
            let id = object.id.clone();
            match of_node {
                Some(entry) => self.told.insert(id.clone(), entry),
                None => self.told.remove(&id),
            };
            // There is nothing to write to.
            let written = written.filter(|_| !self.cluster.is_away(id.kind));
            let rests = |of: &Written| of.is_refused && of.at.elapsed() < RESYNC;
            if let Some(status) = written
                && !self.written.get(&id).is_some_and(rests)
                && let Err(error) = self.write(index, &id, status)
            {
                return self.log(0, Some(error.to_string()));
            }
        }
        self.tell(events);
        self.forget_a_node();
    }

    /// What this node says of an object; [`None`]: it has no part in it.
    fn own(
        &self,
        object: &Object,
        (rows, waits): (&[ServiceRow], &[(String, f64)]),
        away: Option<&str>,
    ) -> Option<Entry> {
        let node = &self.settings.node;
        if let Some(reason) = self.wishes.unreadable.get(&object.id) {
            let verdict = Verdict {
                refused: Some(reason.clone()),
                is_in_force: false,
            };
            return Some(entry(node, object.generation, &verdict, None, None));
        }
        let unknown = Verdict {
            refused: None,
            is_in_force: false,
        };
        let parts = self.wishes.wanted.iter().filter(|of| of.id == object.id);
        let parts = parts.map(|wanted| {
            let verdict = self.verdicts.get(&wanted.part()).unwrap_or(&unknown);
            let row = rows.iter().find(|row| row.name == wanted.service);
            let told = row.filter(|_| verdict.is_in_force).map(|row| Told { row, waits });
            let there = row.and_then(|row| row.rollout.as_ref());
            let (is_rolling_out, rollout) =
                self.rollouts.progress(&wanted.service, there).unwrap_or_default();
            Entry {
                is_rolling_out,
                rollout,
                ..entry(node, object.generation, verdict, told, away)
            }
        });
        let mut own = merged(&parts.collect::<Vec<_>>())?;
        // Until the verdict is that of this generation, the generation of before stands.
        if away.is_some() && own.is_accepted {
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
        let (node, there, now) = (&self.settings.node, &object.status, now());
        let is_own = |of: &&Value| of.get("type").and_then(Value::as_str) == Some(ACCEPTED);
        let conditions = |of: &Value| -> Vec<Value> {
            let all = of
                .get("conditions")
                .and_then(Value::as_array)
                .into_iter()
                .flatten();
            all.filter(is_own).cloned().collect()
        };
        let Some(own) = own else {
            let new = released(there, node)?;
            return Some(json!({ "conditions": conditions(&new) }));
        };
        let verdict = |service: &str| self.verdicts.get(&(object.id.clone(), service.to_owned()));
        let ports = object.ports();
        let is_in_force = ports
            .iter()
            .any(|of| verdict(&of.service).is_some_and(|of| of.is_in_force));
        // Another node may serve it meanwhile.
        let is_there = |of: &&IpAddr| {
            let ip = there
                .pointer("/loadBalancer/ingress/0/ip")
                .and_then(Value::as_str);
            ip == Some(of.to_string().as_str())
        };
        let address = self.wishes.addresses.get(&object.id);
        let address = address.filter(|of| is_in_force || is_there(of));
        let (holds, reason) = match own.is_accepted {
            true if is_in_force && address.is_some() => (true, "Accepted"),
            true => (false, "Pending"),
            false => (false, "Refused"),
        };
        let message = match holds {
            true => own.message.clone(),
            false => format!("node {node}: {}", own.message),
        };
        let condition = Condition {
            kind: ACCEPTED,
            holds,
            reason,
            message,
        };
        let writer = Writer {
            node,
            gone: &self.gone,
            now: &now,
        };
        let condition = agreed(&condition, 0, there, &writer);
        let own_ports = ports.iter().map(|of| {
            let mut port = json!({ "port": of.number, "protocol": of.protocol });
            if verdict(&of.service).is_some_and(|of| of.refused.is_some()) {
                port["error"] = json!(REFUSED);
            }
            port
        });
        // Whose refusal the condition tells says it of ports as well.
        let others = there.pointer("/loadBalancer/ingress/0/ports");
        let others = others.filter(|_| blamed(&condition).is_some_and(|of| of != node));
        let ports = others.cloned().unwrap_or_else(|| own_ports.collect());
        let ingress = address.map(|of| json!({ "ip": of.to_string(), "ipMode": "VIP", "ports": ports }));
        let ingress: Vec<Value> = ingress.into_iter().collect();
        let new = json!({ "loadBalancer": { "ingress": ingress }, "conditions": [condition] });
        let kept = |status: &Value| {
            let state = conditions(status)
                .into_iter()
                .map(|of| (of["status"].clone(), of["reason"].clone()));
            let ingress = status.pointer("/loadBalancer/ingress/0");
            let ingress = ingress.map(|of| (of.get("ip").cloned(), of.get("ports").cloned()));
            (ingress, state.collect::<Vec<_>>())
        };
        (kept(&new) != kept(there)).then_some(new)
    }

    /// The status to be written of an object of the Gateway API, if it has to be.
    fn gateway_status(&self, object: &Object) -> Option<Value> {
        let (node, now) = (&self.settings.node, now());
        let writer = Writer {
            node,
            gone: &self.gone,
            now: &now,
        };
        let said = self.wishes.gateways.status(object, &self.verdicts, &writer);
        let new = said.or_else(|| released(&object.status, node))?;
        let is_other = new
            .as_object()?
            .iter()
            .any(|(key, of)| object.status.get(key) != Some(of));
        // Where the API server makes something else of it, it is not written again and again.
        let is_due = self
            .written
            .get(&object.id)
            .is_none_or(|of| of.status != new || of.at.elapsed() >= RESYNC);
        (is_other && is_due).then_some(new)
    }

    fn write(&mut self, index: usize, id: &Id, status: Value) -> Result<(), Error> {
        let Some(object) = self.objects.get_mut(index) else {
            return Ok(());
        };
        let answer = match id.kind {
            FUNCTION | SERVICE => self.cluster.apply_status(id, &self.settings.node, &status),
            _ => self.cluster.change_status(object, &status),
        };
        let is_refused = match answer {
            Ok(Some(there)) => {
                (object.status, object.version) = (there.status, there.version);
                false
            }
            // The next list says what else has become of it.
            Ok(None) => return Ok(()),
            // What is wrong with one object holds up no other one.
            Err(Error::Refused(why)) => {
                if !self.written.get(id).is_some_and(|of| of.is_refused) {
                    let (kind, object) = (id.kind, format!("{}/{}", id.namespace, id.name));
                    tracing::warn!(kind, object, why, "the API server does not take its status");
                }
                true
            }
            Err(error) => return Err(error),
        };
        let written = Written {
            status,
            at: Instant::now(),
            is_refused,
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
                events.push(("Left", format!("node {node} has no part in it any more"), false));
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
        if before.is_rolling_out != own.is_rolling_out {
            let (word, text) = match (own.is_rolling_out, own.rollout.as_str()) {
                (true, text) => ("RollingOut", text),
                (false, "") => ("RolledOut", "all instances are replaced"),
                (false, text) => ("RolloutAborted", text),
            };
            events.push((word, format!("node {node}: {text}"), word == "RolloutAborted"));
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

    /// Takes the entry of a node away that the cluster does not have any more: at most one at a time. What such a node had
    /// against a Service or an object of the Gateway API has no effect any more.
    fn forget_a_node(&mut self) {
        let own = &self.settings.node;
        let named = self.objects.iter().flat_map(|object| {
            let nodes = match object.id.kind {
                FUNCTION => entries(&object.status).into_iter().map(|of| of.node).collect(),
                _ => blamed_in(&object.status),
            };
            let is_known = |of: &String| object.id.kind != FUNCTION && self.gone.contains(of);
            let others = nodes.into_iter().filter(move |of| of != own && !is_known(of));
            others.map(|node| (object.id.clone(), node))
        });
        let named: Vec<(Id, String)> = named.collect();
        // Which one is looked at changes with time.
        let turn = usize::try_from(k8s_openapi::jiff::Timestamp::now().as_second()).unwrap_or_default();
        let Some((id, node)) = named.get(turn % named.len().max(1)).cloned() else {
            return;
        };
        if !matches!(self.cluster.has_node(&node), Ok(false)) {
            return;
        }
        if id.kind != FUNCTION {
            self.gone.insert(node);
            return;
        }
        match self.without(&id, &node) {
            Ok(()) => tracing::info!(
                node,
                "the cluster does not have this node any more; its entry is removed"
            ),
            Err(error) => self.log(0, Some(format!("the entry of node {node} stays: {error}"))),
        }
    }

    /// Removes the entry of a node from a function.
    fn without(&mut self, id: &Id, node: &str) -> Result<(), Error> {
        let Some(index) = self.objects.iter().position(|of| of.id == *id) else {
            return Ok(());
        };
        let Some(object) = self.objects.get(index) else {
            return Ok(());
        };
        // What a node applies no more is removed as far as no other one has applied it. That would be parts of conditions,
        // and the API server takes none without them. So they are applied by this node first.
        let own = self.told.get(id);
        let mut others = entries(&object.status);
        others.retain(|of| of.node != node);
        let all = with_own(others, &self.settings.node, own.cloned());
        let new = status(object.generation, &all, own, &object.status, &now());
        self.write(index, id, new)?;
        if let (Some(there), Some(object)) = (
            self.cluster.apply_status(id, node, &json!({}))?,
            self.objects.get_mut(index),
        ) {
            (object.status, object.version) = (there.status, there.version);
        }
        Ok(())
    }
}

/// The nodes that conditions of a status blame.
fn blamed_in(status: &Value) -> Vec<String> {
    match status {
        Value::Array(all) => all.iter().flat_map(blamed_in).collect(),
        Value::Object(all) => match blamed(status) {
            Some(node) => vec![node.to_owned()],
            None => all.values().flat_map(blamed_in).collect(),
        },
        _ => Vec::new(),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_refused_together_is_tried_again_apart() {
        let part = |name: &str| {
            let id = Id {
                kind: FUNCTION,
                namespace: "edge".to_owned(),
                name: name.to_owned(),
            };
            (id, name.to_owned())
        };
        let since = Instant::now();
        let of = |name: &str, after_ms: u64| {
            let at = since + Duration::from_millis(after_ms);
            (part(name), (Table::new(), "no".to_owned(), at))
        };
        let mut refused = Refused::from([of("a", 1), of("b", 0), of("c", 2)]);
        assert_eq!(due(&refused, since), None);
        let later = since + RETRY + Duration::from_millis(5);
        for name in ["b", "a", "c"] {
            assert_eq!(due(&refused, later), Some(part(name)));
            refused.remove(&part(name));
        }
        assert_eq!(due(&refused, later), None);
    }
}
