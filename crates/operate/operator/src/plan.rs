//! The configuration of a node out of its base file and of what the cluster wants.
//!
//! An object that cannot be accepted changes nothing for the others, and what was accepted of it before stays. So there
//! are two steps. The first one takes all changes at once. Where the checker has a problem with that, the second one
//! begins with what is in force, and takes each change that fits, in the order in which the objects were made.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use toml::{Table, Value};

use crate::files::{owners, services};
use crate::objects::FUNCTION;
use crate::spec::shortened;

/// Longest message in a status, in characters.
const MESSAGE_LIMIT: usize = 1024;
/// How often the changes that did not fit are tried again, since one can need another: a service names its next one.
const ROUNDS: usize = 3;
/// The first line of the file.
const HEAD: &str =
    "# Written by `inco operator`, from its base file and objects of Kubernetes. Changes here are lost.\n";

/// Which object: its kind, namespace and name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Id {
    /// `NetworkFunction`, `Service`, or a kind of the Gateway API.
    pub kind: &'static str,
    /// Its namespace; empty where its kind has none.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}/{}", self.kind, self.namespace, self.name)
    }
}

/// One service of an object, which can have several: the object, and the name of the service.
pub type Part = (Id, String);

/// A service that an object wants of this node.
#[derive(Clone, Debug, PartialEq)]
pub struct Wanted {
    /// Which object.
    pub id: Id,
    /// When it was made, in a form that sorts.
    pub created: String,
    /// The name of its service.
    pub service: String,
    /// The table of its service, or why there is none.
    pub table: Result<Table, String>,
    /// The Services of other namespaces that it may give flows to: what was accepted before does not stay with others.
    /// [`None`]: nothing of other namespaces can be in its table.
    pub grants: Option<Grants>,
}

/// Services of other namespaces that an object may name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Grants(
    /// Each a namespace and the name of a Service; without a name: all of the namespace.
    pub Vec<(String, Option<String>)>,
);

impl Grants {
    /// Whether that Service is among them.
    pub fn permit(&self, (namespace, name): (&str, &str)) -> bool {
        let mut of_namespace = self.0.iter().filter(|(of, _)| of == namespace);
        of_namespace.any(|(_, of)| of.as_deref().is_none_or(|of| of == name))
    }
}

impl Wanted {
    /// Which part of its object it is.
    pub fn part(&self) -> Part {
        (self.id.clone(), self.service.clone())
    }

    /// Whether its table of before may stay.
    fn may_keep(&self, table: &Table) -> bool {
        let Some(grants) = &self.grants else {
            return true;
        };
        backends_of(table).all(|of| of.0 == self.id.namespace || grants.permit(of))
    }
}

/// The Services whose endpoints a table has as instances: namespace and name.
fn backends_of(table: &Table) -> impl Iterator<Item = (&str, &str)> {
    let from = table.get("instances").and_then(|of| of.get("from"));
    let only = from
        .and_then(Value::as_str)
        .and_then(|of| of.strip_prefix("kubernetes:"));
    let several = from.and_then(Value::as_array).into_iter().flatten();
    let several = several.filter_map(|of| of.get("service")?.as_str());
    only.into_iter()
        .chain(several)
        .filter_map(|of| of.split_once('/'))
}

/// A problem that the checker has with a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The key, such as `service.web.vip`.
    pub key: String,
    /// The problem, and what to write.
    pub text: String,
}

/// What becomes of a part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Why it is not accepted.
    pub refused: Option<String>,
    /// Whether its service is in the configuration, of now or of before.
    pub is_in_force: bool,
}

/// What a plan is made of.
pub struct Input<'a> {
    /// The text of the base file.
    pub base: &'a str,
    /// The text of the configuration of before; empty: there is none.
    pub before: &'a str,
    /// What is wanted.
    pub wanted: &'a [Wanted],
    /// What inco itself has refused on this node: the table, and why.
    pub refused: &'a BTreeMap<Part, (Table, String)>,
    /// What stays as it is until others were tried.
    pub waiting: &'a BTreeSet<Part>,
    /// Services of before that stay although nobody wants them.
    pub kept: &'a dyn Fn(&str) -> bool,
}

/// The configuration, and what becomes of each part.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// The text.
    pub text: String,
    /// For each part.
    pub verdicts: BTreeMap<Part, Verdict>,
    /// The services that nobody wants any more, whether they are kept or not.
    pub unwanted: Vec<String>,
}

/// The base file cannot be used: nothing changes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the base file: {0}; correct it: it is a configuration by itself, with at least one service")]
pub struct WrongBase(pub String);

/// The table of a service, as text.
pub fn section(name: &str, table: &Table) -> String {
    let named = Table::from_iter([(name.to_owned(), Value::Table(table.clone()))]);
    let all = Table::from_iter([("service".to_owned(), Value::Table(named))]);
    // A table of text, numbers and tables can always be written.
    toml::to_string(&all).unwrap_or_default()
}

type Chosen = BTreeMap<String, Table>;

/// The text of a configuration, with the object that wants each service (see [`owners`]).
fn text_of(base: &str, chosen: &Chosen, owners: &BTreeMap<String, String>) -> String {
    let mut text = format!("{HEAD}{base}");
    for (name, table) in chosen {
        text.push('\n');
        if let Some(owner) = owners.get(name) {
            text.push_str(&format!("# service {name}: {owner}\n"));
        }
        text.push_str(&section(name, table));
    }
    text
}

/// What the checker says of a service, without the lines of a file that nobody has written.
fn message(faults: &[Fault], service: &str) -> Option<String> {
    let of_service = format!("service.{service}");
    let is_own = |fault: &&Fault| {
        let rest = fault.key.strip_prefix(&of_service);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
    };
    let mut own: Vec<&Fault> = faults.iter().filter(is_own).collect();
    if own.is_empty() {
        own = faults.iter().collect();
    }
    let lines: Vec<String> = own
        .iter()
        .map(|fault| match fault.key.is_empty() {
            true => fault.text.clone(),
            false => format!("{}: {}", fault.key, fault.text),
        })
        .collect();
    (!lines.is_empty()).then(|| shortened(&lines.join("; "), MESSAGE_LIMIT))
}

/// An object's service, as it is in force and as it is wanted.
struct Candidate<'a> {
    id: &'a Id,
    service: &'a str,
    old: Option<Table>,
    new: Option<Table>,
    refused: Option<String>,
    /// Whether what was accepted of it before must not stay.
    is_withdrawn: bool,
}

impl Candidate<'_> {
    /// Whether there is something that can be in force.
    fn has_any(&self) -> bool {
        self.old.is_some() || self.new.is_some()
    }

    fn is_changed(&self) -> bool {
        self.new.is_some() && self.new != self.old
    }
}

/// Makes the configuration. `check` says what is wrong with a text.
///
/// # Errors
/// The base file itself is wrong.
pub fn plan(input: &Input<'_>, check: &dyn Fn(&str) -> Vec<Fault>) -> Result<Plan, WrongBase> {
    let faults = check(input.base);
    if let Some(first) = faults.first() {
        return Err(WrongBase(shortened(
            &format!("{}: {}", first.key, first.text),
            MESSAGE_LIMIT,
        )));
    }
    let of_base = services(input.base);
    let mut before = services(input.before);
    before.retain(|name, _| !of_base.contains_key(name));
    let mut owners = owners(input.before);
    let mut plan = Plan::default();
    let mut candidates = candidates(input, &of_base, (&before, &owners), &mut plan);
    // The service of an object that is gone is not that of the next one with this name.
    let is_wanted = |name: &str| {
        let mut of_name = candidates.iter().filter(|of| of.service == name);
        of_name.any(|of| of.has_any() || of.is_withdrawn)
    };
    plan.unwanted = before.keys().filter(|name| !is_wanted(name)).cloned().collect();
    let kept = plan.unwanted.iter().filter(|name| (input.kept)(name));
    let kept: Chosen = kept
        .filter_map(|name| Some((name.clone(), before.get(name)?.clone())))
        .collect();
    let faults_of = |chosen: &Chosen| check(&text_of(input.base, chosen, &BTreeMap::new()));

    let all_new = candidates.iter().filter_map(|of| {
        let table = of.new.as_ref().or(of.old.as_ref())?;
        Some((of.service.to_owned(), table.clone()))
    });
    let mut chosen: Chosen = kept
        .iter()
        .map(|(name, of)| (name.clone(), of.clone()))
        .chain(all_new)
        .collect();
    if !faults_of(&chosen).is_empty() {
        chosen = what_holds(&candidates, kept, &faults_of);
        one_by_one(&mut candidates, &mut chosen, &faults_of);
    }
    for of in candidates {
        let is_in_force = of.has_any() && chosen.contains_key(of.service);
        if is_in_force {
            owners.insert(of.service.to_owned(), of.id.to_string());
        }
        let verdict = Verdict {
            refused: of.refused,
            is_in_force,
        };
        let part = (of.id.clone(), of.service.to_owned());
        plan.verdicts.insert(part, verdict);
    }
    plan.text = text_of(input.base, &chosen, &owners);
    Ok(plan)
}

/// The objects in the order in which they were made, each with a name of its own. The others are refused.
fn candidates<'a>(
    input: &'a Input<'_>,
    of_base: &BTreeMap<String, Table>,
    (before, owner_of): (&BTreeMap<String, Table>, &BTreeMap<String, String>),
    plan: &mut Plan,
) -> Vec<Candidate<'a>> {
    let mut wanted: Vec<&Wanted> = input.wanted.iter().collect();
    wanted.sort_by(|a, b| (&a.created, &a.id).cmp(&(&b.created, &b.id)));
    let mut owners: BTreeMap<&str, &Id> = BTreeMap::new();
    let mut all = Vec::new();
    for of in wanted {
        let name = of.service.as_str();
        let taken = match owners.get(name) {
            _ if of_base.contains_key(name) => Some("the base file of this node".to_owned()),
            Some(owner) if **owner == of.id => continue,
            Some(owner) => Some(format!("the {owner}")),
            None => None,
        };
        if let Some(taken) = taken {
            let refused = match of.id.kind {
                FUNCTION => format!("spec.service: {taken} has a service {name:?}; write another name"),
                _ => format!(
                    "{taken} has a service {name:?}, which this object would have; give it another name"
                ),
            };
            let verdict = Verdict {
                refused: Some(refused),
                is_in_force: false,
            };
            plan.verdicts.entry(of.part()).or_insert(verdict);
            continue;
        }
        owners.insert(name, &of.id);
        let (mut new, mut refused) = match &of.table {
            Ok(table) => (Some(table.clone()), None),
            Err(reason) => (None, Some(shortened(reason, MESSAGE_LIMIT))),
        };
        if let Some((table, reason)) = input.refused.get(&of.part())
            && new.as_ref() == Some(table)
        {
            new = None;
            refused = Some(shortened(reason, MESSAGE_LIMIT));
        }
        if input.waiting.contains(&of.part()) {
            new = None;
        }
        // A configuration of an earlier operator does not say whose a service is.
        let is_own = |_: &&Table| owner_of.get(name).is_none_or(|of_it| *of_it == of.id.to_string());
        let own = before.get(name).filter(is_own);
        let old = own.filter(|table| of.may_keep(table));
        all.push(Candidate {
            id: &of.id,
            service: name,
            old: old.cloned(),
            new,
            refused,
            is_withdrawn: own.is_some() && old.is_none(),
        });
    }
    all
}

/// What is in force, as far as it still fits: the base file may have changed.
fn what_holds(
    candidates: &[Candidate<'_>],
    kept: Chosen,
    faults_of: &dyn Fn(&Chosen) -> Vec<Fault>,
) -> Chosen {
    let old = candidates
        .iter()
        .filter_map(|of| Some((of.service.to_owned(), of.old.clone()?)));
    let old: Vec<(String, Table)> = kept.into_iter().chain(old).collect();
    let all: Chosen = old.iter().cloned().collect();
    if faults_of(&all).is_empty() {
        return all;
    }
    let mut chosen = Chosen::new();
    let mut left = old;
    for _ in 0..ROUNDS {
        left.retain(|(name, table)| {
            chosen.insert(name.clone(), table.clone());
            let fits = faults_of(&chosen).is_empty();
            if !fits {
                chosen.remove(name);
            }
            !fits
        });
    }
    chosen
}

/// Takes each change that fits, and says of the others why not.
fn one_by_one(
    candidates: &mut [Candidate<'_>],
    chosen: &mut Chosen,
    faults_of: &dyn Fn(&Chosen) -> Vec<Fault>,
) {
    let is_missing =
        |of: &Candidate<'_>, chosen: &Chosen| of.new.is_some() && chosen.get(of.service) != of.new.as_ref();
    for _ in 0..ROUNDS {
        let mut has_changed = false;
        for of in candidates
            .iter_mut()
            .filter(|of| of.is_changed() || of.new.is_some())
        {
            if !is_missing(of, chosen) {
                continue;
            }
            let Some(new) = of.new.clone() else { continue };
            let before = chosen.insert(of.service.to_owned(), new);
            let faults = faults_of(chosen);
            of.refused = message(&faults, of.service);
            if of.refused.is_none() {
                has_changed = true;
                continue;
            }
            match before {
                Some(before) => chosen.insert(of.service.to_owned(), before),
                None => chosen.remove(of.service),
            };
        }
        if !has_changed {
            break;
        }
    }
}

/// The services that a refusal of inco names, out of these.
pub fn named<'a>(refusal: &str, services: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let is_named = |name: &&str| {
        ["service.", "service \""].iter().any(|start| {
            let key = format!("{start}{name}");
            refusal.match_indices(&key).any(|(at, _)| {
                let rest = refusal.get(at + key.len()..).unwrap_or_default();
                !rest.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '-')
            })
        })
    };
    services.filter(is_named).collect()
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
