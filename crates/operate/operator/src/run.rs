//! The loop of the operator on a node.

mod report;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use api::{Client, Endpoint};
use serde_json::Value;
use toml::Table;

use crate::Error;
use crate::addresses::Pool;
use crate::cluster::{Cluster, watch};
use crate::files::{self, Files};
use crate::force::{Applied, bring_in_force};
use crate::metrics::{Board, Listen, Row, serve};
use crate::objects::{FUNCTION, Object, Wishes, wishes};
use crate::plan::{Fault, Id, Input, Part, Plan, Verdict, named, plan};
use crate::rollouts::{Differ, Rollouts};
use crate::status::{Entry, entries, total};

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
    /// What waits while other changes are tried one by one, after a refusal that has named none of them.
    waiting: BTreeSet<Part>,
    /// The tables of the services that inco has.
    accepted: BTreeMap<String, Table>,
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
            let is_waiting = is_listed && is_going || operator.is_open || !operator.waiting.is_empty();
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
            waiting: BTreeSet::new(),
            accepted: BTreeMap::new(),
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
                self.waiting.retain(|(id, _)| is_there(id));
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
            waiting: &self.waiting,
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
            self.accepted = files::services(&before);
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
                match self.waiting.pop_first() {
                    Some(_) => continue,
                    None => return Ok(()),
                }
            }
            if self.standstill.until.is_some_and(|until| Instant::now() < until) {
                return self.standstill.problem.clone().map_or(Ok(()), Err);
            }
            match self.attempt(&plan, (&base, &before)) {
                Attempt::Done => {
                    self.accepted = files::services(&plan.text);
                    self.verdicts = plan.verdicts;
                    if self.waiting.pop_first().is_none() {
                        return Ok(());
                    }
                }
                Attempt::Later(problem) => return Err(problem),
                Attempt::Again => {}
            }
        }
        Err(format!(
            "{ATTEMPTS} changes were tried; the others are tried soon"
        ))
    }

    fn attempt(&mut self, plan: &Plan, (base, before): (&str, &str)) -> Attempt {
        let last = if before.is_empty() { base } else { before };
        let client = match Client::connect_to(self.settings.endpoint.clone()) {
            Ok(client) => client,
            // What this machine may refuse is not left to the next start of inco.
            Err(error) => {
                let restored = self.settings.files.restore(last);
                let problem = restored.err().unwrap_or_else(|| error.to_string());
                return Attempt::Later(format!("node {}: {problem}", self.settings.node));
            }
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
        if let Err(problem) = self.settings.files.restore(last) {
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

    /// Notes whose change inco has refused. If that names none of several, they are tried one by one. Whether there is
    /// something else to try.
    fn blame(&mut self, refusal: &str, before: &str) -> bool {
        let had = files::services(before);
        let changed = self.wishes.wanted.iter().filter_map(|of| {
            let table = of.table.as_ref().ok()?;
            // What was refused of it before may have been another table.
            let is_known = self.refused.get(&of.part()).is_some_and(|(it, ..)| it == table);
            let is_tried = !is_known && !self.waiting.contains(&of.part());
            let is_new = had.get(&of.service) != Some(table) && is_tried;
            is_new.then_some((of, table))
        });
        let changed: Vec<_> = changed.collect();
        let blamed = named(refusal, changed.iter().map(|(of, _)| of.service.as_str()));
        if let ([_, others @ ..], true) = (changed.as_slice(), blamed.is_empty())
            && !others.is_empty()
        {
            let others: Vec<Part> = others.iter().map(|(of, _)| of.part()).collect();
            self.waiting.extend(others);
            return true;
        }
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
        is_any || self.waiting.pop_first().is_some()
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
