//! The status of a `NetworkFunction`: what this node says, and what all nodes together say.
//!
//! Each node writes its own entry, and the sums and conditions of all entries that it has seen. Whoever sees that the
//! sums are not those of the entries writes them again, so that they converge without anybody who is responsible.

use std::collections::BTreeSet;

use api::types::ServiceRow;
use serde_json::{Value, json};

use crate::plan::Verdict;
use crate::spec::shortened;

/// Most entries of nodes that are read.
const NODES_LIMIT: usize = 5000;
/// Longest message of a condition in characters; the API server takes 32768.
const MESSAGE_LIMIT: usize = 1024;

/// The figures of a service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Instances that take new flows.
    pub active: u64,
    /// Their desired number.
    pub desired: u64,
    /// Flows.
    pub flows: u64,
    /// Packets per second of its flows.
    pub offered_pps: u64,
    /// Packets per second that instances return.
    pub returned_pps: u64,
    /// Packets dropped so far.
    pub dropped: u64,
    /// The load of the busiest instance in percent of its capacity.
    pub load_percent: u64,
    /// How long 99 % of the packets wait at most in the ring of the instance where they wait longest, in microseconds.
    pub queueing_us: u64,
}

/// What a node says of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// The node.
    pub node: String,
    /// The generation of the object that it has seen.
    pub generation: i64,
    /// Whether it accepts that.
    pub is_accepted: bool,
    /// Whether as many instances are active as are desired.
    pub is_ready: bool,
    /// Why it does not accept it or is not ready; else the reason of the autoscaler.
    pub message: String,
    /// Whether its instances are being replaced by those of a changed object.
    pub is_rolling_out: bool,
    /// How far that is, or why it has failed; empty: neither.
    pub rollout: String,
    /// The figures.
    pub figures: Figures,
}

/// A condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// `Accepted`, `Ready` or `Progressing`.
    pub kind: &'static str,
    /// Whether it holds.
    pub holds: bool,
    /// A word.
    pub reason: &'static str,
    /// What, where, and what to do.
    pub message: String,
}

/// A rate as a whole number; what is no number is none.
fn whole(of: f64) -> u64 {
    // Beyond the range the nearest number is taken, and zero for what is none.
    of.round() as u64
}

/// What inco says of a service.
#[derive(Clone, Copy, Debug)]
pub struct Told<'a> {
    /// The service.
    pub row: &'a ServiceRow,
    /// Of each instance with a ring: its service, and how long 99 % of its packets wait there at most, in microseconds.
    pub waits: &'a [(String, f64)],
}

impl Told<'_> {
    fn figures(&self) -> Figures {
        let row = self.row;
        let own = self.waits.iter().filter(|(service, _)| *service == row.name);
        Figures {
            active: row.active.into(),
            desired: row.desired.into(),
            flows: row.live_flows,
            offered_pps: whole(row.offered_pps),
            returned_pps: whole(row.returned_pps),
            dropped: row.dropped_packets,
            load_percent: whole(row.highest_utilisation.unwrap_or_default() * 100.0),
            queueing_us: own.map(|(_, us)| whole(*us)).max().unwrap_or_default(),
        }
    }
}

/// The entry of a node, from the verdict and from what inco says of the service. `away`: why inco says nothing.
pub fn entry(
    node: &str,
    generation: i64,
    verdict: &Verdict,
    told: Option<Told<'_>>,
    away: Option<&str>,
) -> Entry {
    let mut entry = Entry {
        node: node.to_owned(),
        generation,
        is_accepted: verdict.refused.is_none(),
        ..Entry::default()
    };
    let row = told.map(|of| of.row);
    if let (Some(told), Some(row)) = (told, row) {
        entry.figures = told.figures();
        entry.is_ready = row.active >= row.desired.max(1) && row.failing.is_none();
    }
    let message = match (&verdict.refused, away, row) {
        (Some(refused), _, _) if verdict.is_in_force => {
            format!("{refused}; what was accepted before stays in force")
        }
        (Some(refused), _, _) => refused.clone(),
        (None, Some(away), _) => away.to_owned(),
        (None, None, None) => {
            "inco does not have the service yet; if this stays, see the operator's log".to_owned()
        }
        (None, None, Some(row)) => match &row.failing {
            Some(failing) => format!(
                "instances fail: {failing}; see `inco events` and `inco logs {}`",
                row.name
            ),
            None => row.reason.clone(),
        },
    };
    entry.message = shortened(&message, MESSAGE_LIMIT);
    entry
}

impl Entry {
    /// As the API server has it.
    pub fn json(&self) -> Value {
        let of = &self.figures;
        json!({
            "node": self.node, "generation": self.generation, "accepted": self.is_accepted, "ready": self.is_ready,
            "message": self.message, "active": of.active, "desired": of.desired, "flows": of.flows,
            "offeredPps": of.offered_pps, "returnedPps": of.returned_pps, "dropped": of.dropped,
            "loadPercent": of.load_percent, "queueingUs": of.queueing_us,
            "rollingOut": self.is_rolling_out, "rollout": self.rollout,
        })
    }

    fn read(of: &Value) -> Option<Entry> {
        let number = |key: &str| of.get(key).and_then(Value::as_u64).unwrap_or_default();
        let flag = |key: &str| of.get(key).and_then(Value::as_bool).unwrap_or_default();
        let text = |key: &str| of.get(key).and_then(Value::as_str);
        Some(Entry {
            node: text("node")?.to_owned(),
            generation: of.get("generation").and_then(Value::as_i64).unwrap_or_default(),
            is_accepted: flag("accepted"),
            is_ready: flag("ready"),
            message: shortened(text("message").unwrap_or_default(), MESSAGE_LIMIT),
            is_rolling_out: flag("rollingOut"),
            rollout: shortened(text("rollout").unwrap_or_default(), MESSAGE_LIMIT),
            figures: Figures {
                active: number("active"),
                desired: number("desired"),
                flows: number("flows"),
                offered_pps: number("offeredPps"),
                returned_pps: number("returnedPps"),
                dropped: number("dropped"),
                load_percent: number("loadPercent"),
                queueing_us: number("queueingUs"),
            },
        })
    }
}

/// The entries of a status.
pub fn entries(status: &Value) -> Vec<Entry> {
    let all = status.get("nodes").and_then(Value::as_array);
    all.into_iter()
        .flatten()
        .take(NODES_LIMIT)
        .filter_map(Entry::read)
        .collect()
}

/// The entries with this node's own in place of the one that is there; [`None`]: it has none.
pub fn with_own(mut all: Vec<Entry>, node: &str, own: Option<Entry>) -> Vec<Entry> {
    all.retain(|of| of.node != node);
    all.extend(own);
    all.sort_by(|a, b| a.node.cmp(&b.node));
    all
}

/// The entry of a node for an object out of those for all its services; [`None`]: there are none.
pub fn merged(parts: &[Entry]) -> Option<Entry> {
    let first = parts.first()?;
    let blamed = parts.iter().find(|of| !of.is_accepted);
    let blamed = blamed.or_else(|| parts.iter().find(|of| !of.is_ready));
    let rolling = parts.iter().find(|of| of.is_rolling_out);
    let rolling = rolling.or_else(|| parts.iter().find(|of| !of.rollout.is_empty()));
    Some(Entry {
        node: first.node.clone(),
        generation: first.generation,
        is_accepted: parts.iter().all(|of| of.is_accepted),
        is_ready: parts.iter().all(|of| of.is_ready),
        message: blamed.unwrap_or(first).message.clone(),
        is_rolling_out: parts.iter().any(|of| of.is_rolling_out),
        rollout: rolling.unwrap_or(first).rollout.clone(),
        figures: total(parts),
    })
}

/// The sums. Load and queueing are those of the busiest one.
pub fn total(all: &[Entry]) -> Figures {
    all.iter().fold(Figures::default(), |sum, entry| {
        let of = &entry.figures;
        Figures {
            active: sum.active.saturating_add(of.active),
            desired: sum.desired.saturating_add(of.desired),
            flows: sum.flows.saturating_add(of.flows),
            offered_pps: sum.offered_pps.saturating_add(of.offered_pps),
            returned_pps: sum.returned_pps.saturating_add(of.returned_pps),
            dropped: sum.dropped.saturating_add(of.dropped),
            load_percent: sum.load_percent.max(of.load_percent),
            queueing_us: sum.queueing_us.max(of.queueing_us),
        }
    })
}

/// The conditions of an object of that generation.
pub fn conditions(generation: i64, all: &[Entry]) -> [Condition; 3] {
    let of = |kind, holds, reason, message: String| Condition {
        kind,
        holds,
        reason,
        message: shortened(&message, MESSAGE_LIMIT),
    };
    let accepted = |holds, reason, message| of("Accepted", holds, reason, message);
    let ready = |holds, reason, message| of("Ready", holds, reason, message);
    let progressing = |holds, reason, message| of("Progressing", holds, reason, message);
    let nobody =
        "no node with an operator has the labels of spec.nodeSelector; label one, or change the selector";
    if all.is_empty() {
        let message = nobody.to_owned();
        return [
            accepted(false, "NoNode", message.clone()),
            ready(false, "NoNode", message.clone()),
            progressing(false, "NoNode", message),
        ];
    }
    let first = |is: &dyn Fn(&&Entry) -> bool| all.iter().find(is);
    let accepted = if let Some(entry) = first(&|of| !of.is_accepted) {
        accepted(
            false,
            "Refused",
            format!("node {}: {}", entry.node, entry.message),
        )
    } else if let Some(entry) = first(&|of| of.generation != generation) {
        let message = format!("node {} has not seen generation {generation} yet", entry.node);
        accepted(false, "Pending", message)
    } else {
        accepted(true, "Accepted", format!("{} accept it", nodes(all.len())))
    };
    let ready = match first(&|of| !of.is_ready) {
        Some(entry) => {
            let Figures { active, desired, .. } = entry.figures;
            let message = format!(
                "node {}: {active} of {desired} instances are active: {}",
                entry.node, entry.message
            );
            ready(false, "InstancesMissing", message)
        }
        None => ready(
            true,
            "Ready",
            format!("all instances of {} are active", nodes(all.len())),
        ),
    };
    let progressing = match (
        first(&|of| of.is_rolling_out),
        first(&|of| !of.rollout.is_empty()),
    ) {
        (Some(of), _) => progressing(true, "RollingOut", format!("node {}: {}", of.node, of.rollout)),
        (None, Some(of)) => progressing(false, "Aborted", format!("node {}: {}", of.node, of.rollout)),
        (None, None) => {
            let message = "no instance is being replaced by one of a changed object".to_owned();
            progressing(false, "Complete", message)
        }
    };
    [accepted, ready, progressing]
}

fn nodes(count: usize) -> String {
    match count {
        1 => "1 node".to_owned(),
        count => format!("{count} nodes"),
    }
}

/// A condition as the API server has it: since when it is so is taken from the status of before.
pub fn condition_json(condition: &Condition, generation: i64, before: &Value, now: &str) -> Value {
    let status = if condition.holds { "True" } else { "False" };
    let text = |of: &'_ Value, key: &str| of.get(key).and_then(Value::as_str).map(str::to_owned);
    let known = before.get("conditions").and_then(Value::as_array);
    let known = known
        .into_iter()
        .flatten()
        .find(|of| text(of, "type").as_deref() == Some(condition.kind));
    let since = known
        .filter(|of| text(of, "status").as_deref() == Some(status))
        .and_then(|of| text(of, "lastTransitionTime"));
    json!({
        "type": condition.kind, "status": status, "reason": condition.reason, "message": condition.message,
        "observedGeneration": generation, "lastTransitionTime": since.unwrap_or_else(|| now.to_owned()),
    })
}

/// The node that writes a condition, and when.
#[derive(Clone, Copy, Debug)]
pub struct Writer<'a> {
    /// The node.
    pub node: &'a str,
    /// Nodes that the cluster does not have any more.
    pub gone: &'a BTreeSet<String>,
    /// Now.
    pub now: &'a str,
}

/// The node that a condition blames: its message begins with it.
pub fn blamed(condition: &Value) -> Option<&str> {
    let text = |key: &str| condition.get(key).and_then(Value::as_str);
    if text("status") == Some("True") {
        return None;
    }
    let (node, _) = text("message")?.strip_prefix("node ")?.split_once(": ")?;
    Some(node)
}

/// A condition that several nodes write: what another node has against this generation stays until that node takes it back.
pub fn agreed(condition: &Condition, generation: i64, before: &Value, writer: &Writer<'_>) -> Value {
    let known = before.get("conditions").and_then(Value::as_array);
    let mut known = known.into_iter().flatten();
    let known = known.find(|of| of.get("type").and_then(Value::as_str) == Some(condition.kind));
    let is_binding = |of: &&Value| {
        let is_other = |node: &str| node != writer.node && !writer.gone.contains(node);
        // The API server leaves a zero out, as of a Service, which has no generation.
        let of_generation = of.get("observedGeneration").and_then(Value::as_i64);
        let is_of_now = of_generation.unwrap_or_default() == generation;
        let is_false = of.get("status").and_then(Value::as_str) == Some("False");
        is_false && is_of_now && blamed(of).is_some_and(is_other)
    };
    match known.filter(is_binding) {
        Some(of) => of.clone(),
        None => condition_json(condition, generation, before, writer.now),
    }
}

/// A status in which a node takes back what it had against an object; [`None`]: it had nothing against it.
pub fn released(status: &Value, node: &str) -> Option<Value> {
    fn release(value: &mut Value, node: &str) -> bool {
        if value.get("lastTransitionTime").is_some() {
            let is_own =
                value.get("status").and_then(Value::as_str) == Some("False") && blamed(value) == Some(node);
            if is_own {
                value["status"] = json!("Unknown");
                value["message"] = json!(format!("node {node}: it has no part in this any more"));
            }
            return is_own;
        }
        // All of them, and not only the first one.
        match value {
            Value::Array(all) => {
                all.iter_mut()
                    .filter_map(|of| release(of, node).then_some(()))
                    .count()
                    > 0
            }
            Value::Object(all) => {
                all.values_mut()
                    .filter_map(|of| release(of, node).then_some(()))
                    .count()
                    > 0
            }
            _ => false,
        }
    }
    let mut new = status.clone();
    release(&mut new, node).then_some(new)
}

/// The status that a node applies: its entry, and what all say together.
pub fn status(generation: i64, all: &[Entry], own: Option<&Entry>, before: &Value, now: &str) -> Value {
    let sum = total(all);
    let conditions = conditions(generation, all);
    let [accepted, ready, progressing] = &conditions;
    let is_told = progressing.holds || all.iter().any(|of| !of.rollout.is_empty());
    let blamed = [accepted, ready].into_iter().find(|of| !of.holds);
    let blamed = blamed.or_else(|| is_told.then_some(progressing));
    let summary = match (blamed, all) {
        (Some(of), _) => of.message.clone(),
        (None, [only]) => only.message.clone(),
        (None, _) => ready.message.clone(),
    };
    json!({
        "observedGeneration": generation,
        "active": sum.active, "desired": sum.desired, "flows": sum.flows, "offeredPps": sum.offered_pps,
        "returnedPps": sum.returned_pps, "dropped": sum.dropped, "loadPercent": sum.load_percent,
        "queueingUs": sum.queueing_us, "message": shortened(&summary, MESSAGE_LIMIT),
        "conditions": conditions.iter().map(|of| condition_json(of, generation, before, now)).collect::<Vec<_>>(),
        "nodes": own.map(Entry::json).into_iter().collect::<Vec<_>>(),
    })
}

/// What of a status is worth being written at once: all but the figures of traffic and texts that change with these.
pub fn gist(status: &Value) -> Value {
    let of = |value: &Value, keys: &[&str]| -> Value {
        let each = keys.iter().map(|key| value.get(key).cloned().unwrap_or_default());
        each.collect()
    };
    let list = |key: &str, keys: &[&str]| -> Value {
        let all = status.get(key).and_then(Value::as_array);
        all.into_iter().flatten().map(|entry| of(entry, keys)).collect()
    };
    json!([
        of(status, &["active", "desired"]),
        list("conditions", &["type", "status", "reason", "observedGeneration"]),
        list(
            "nodes",
            &[
                "node",
                "generation",
                "accepted",
                "ready",
                "active",
                "desired",
                "rollingOut"
            ]
        ),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(refused: Option<&str>, is_in_force: bool) -> Verdict {
        Verdict {
            refused: refused.map(str::to_owned),
            is_in_force,
        }
    }

    fn row(active: u32, desired: u32) -> ServiceRow {
        ServiceRow {
            name: "web".to_owned(),
            active,
            desired,
            live_flows: 10,
            offered_pps: 1000.6,
            returned_pps: f64::NAN,
            dropped_packets: 3,
            highest_utilisation: Some(0.5),
            reason: "load 0.5".to_owned(),
            ..ServiceRow::default()
        }
    }

    fn said(name: &str, active: u32, desired: u32) -> Entry {
        of_row(&verdict(None, true), name, &row(active, desired))
    }

    fn of_row(verdict: &Verdict, name: &str, row: &ServiceRow) -> Entry {
        entry(name, 2, verdict, Some(Told { row, waits: &[] }), None)
    }

    fn writer<'a>(node: &'a str, gone: &'a BTreeSet<String>) -> Writer<'a> {
        Writer { node, gone, now: "T" }
    }

    #[test]
    fn an_entry_says_what_inco_says() {
        let of = said("n1", 2, 2);
        let figures = Figures {
            active: 2,
            desired: 2,
            flows: 10,
            offered_pps: 1001,
            returned_pps: 0,
            dropped: 3,
            load_percent: 50,
            queueing_us: 0,
        };
        assert_eq!((of.is_accepted, of.is_ready, of.figures), (true, true, figures));
        assert_eq!(of.message, "load 0.5");
        // What is written is read again.
        assert_eq!(entries(&json!({ "nodes": [of.json()] })), [of]);
        assert!(!said("n1", 1, 2).is_ready && !said("n1", 0, 0).is_ready);
    }

    #[test]
    fn an_entry_says_why_not() {
        let of = of_row(&verdict(Some("bad min"), true), "n1", &row(2, 2));
        assert!(!of.is_accepted && of.is_ready);
        assert_eq!(of.message, "bad min; what was accepted before stays in force");
        let of = entry("n1", 2, &verdict(Some("bad min"), false), None, None);
        assert_eq!((of.message.as_str(), of.is_ready), ("bad min", false));
        let of = entry("n1", 2, &verdict(None, true), None, Some("inco does not run"));
        assert_eq!(of.message, "inco does not run");
        let mut failing = row(2, 2);
        failing.failing = Some("crash loop".to_owned());
        let of = of_row(&verdict(None, true), "n1", &failing);
        assert!(
            !of.is_ready && of.message.starts_with("instances fail: crash loop; see"),
            "{}",
            of.message
        );
    }

    #[test]
    fn queueing_is_that_of_the_instance_where_packets_wait_longest() {
        let waits = [("web", 12.4), ("web", 99.6), ("dns", 5000.0)].map(|(of, us)| (of.to_owned(), us));
        let row = row(2, 2);
        let told = Told {
            row: &row,
            waits: &waits,
        };
        let of = entry("n1", 2, &verdict(None, true), Some(told), None);
        assert_eq!(of.figures.queueing_us, 100);
        let other = said("n2", 1, 1);
        assert_eq!(total(&[other, of]).queueing_us, 100);
    }

    #[test]
    fn the_services_of_an_object_are_one_entry() {
        assert_eq!(merged(&[]), None);
        let both = merged(&[said("n1", 2, 2), said("n1", 1, 3)]).unwrap_or_default();
        assert!(both.is_accepted && !both.is_ready);
        assert_eq!((both.figures.active, both.figures.desired), (3, 5));
        let refused = entry("n1", 2, &verdict(Some("no"), false), None, None);
        let all = merged(&[said("n1", 2, 2), said("n1", 1, 3), refused]).unwrap_or_default();
        assert_eq!((all.is_accepted, all.message.as_str()), (false, "no"));
    }

    #[test]
    fn what_a_node_has_against_an_object_stays_until_it_takes_it_back() {
        let of = |holds: bool, message: &str| Condition {
            kind: "Programmed",
            holds,
            reason: if holds { "Programmed" } else { "Invalid" },
            message: message.to_owned(),
        };
        let nobody = BTreeSet::new();
        let (first, second) = (writer("n1", &nobody), writer("n2", &nobody));
        let status_of = |condition: Value| json!({ "conditions": [condition] });
        let against = agreed(&of(false, "node n2: no room"), 3, &Value::Null, &second);
        let there = status_of(against.clone());
        // Neither a node that has it nor one with another problem writes over that.
        assert_eq!(agreed(&of(true, ""), 3, &there, &first), against);
        assert_eq!(
            agreed(&of(false, "node n1: no image"), 3, &there, &first),
            against
        );
        // The node itself does, and anybody for another generation.
        let is_true = |of: &Value| of["status"] == "True";
        assert!(is_true(&agreed(&of(true, ""), 3, &there, &second)));
        assert!(is_true(&agreed(&of(true, ""), 4, &there, &first)));
        // A node that is gone, or that has no part any more, holds nothing up.
        let gone = BTreeSet::from(["n2".to_owned()]);
        assert!(is_true(&agreed(&of(true, ""), 3, &there, &writer("n1", &gone))));
        assert_eq!(released(&there, "n1"), None);
        let released = released(&there, "n2").unwrap_or_default();
        assert_eq!(released["conditions"][0]["status"], "Unknown");
        assert!(is_true(&agreed(&of(true, ""), 3, &released, &first)));
        // A Service has no generation, and the API server leaves a zero out.
        let mut of_service = agreed(&of(false, "node n2: no room"), 0, &Value::Null, &second);
        of_service
            .as_object_mut()
            .map(|of| of.remove("observedGeneration"));
        assert!(!is_true(&agreed(
            &of(true, ""),
            0,
            &status_of(of_service),
            &first
        )));
        // What all say alike names no node.
        let alike = agreed(&of(false, "no address"), 3, &Value::Null, &second);
        assert!(is_true(&agreed(&of(true, ""), 3, &status_of(alike), &first)));
    }

    #[test]
    fn sums_and_conditions_are_those_of_all_nodes() {
        let all = with_own(
            vec![said("n2", 1, 3), said("n1", 9, 9)],
            "n1",
            Some(said("n1", 2, 2)),
        );
        assert_eq!(
            (total(&all).active, total(&all).desired, total(&all).flows),
            (3, 5, 20)
        );
        assert_eq!(total(&all).load_percent, 50);
        let [accepted, ready, _] = conditions(2, &all);
        assert!(accepted.holds && !ready.holds);
        assert_eq!(ready.message, "node n2: 1 of 3 instances are active: load 0.5");
        let [accepted, ..] = conditions(3, &all);
        assert_eq!((accepted.holds, accepted.reason), (false, "Pending"));
        let refused = entry("n3", 2, &verdict(Some("no image"), false), None, None);
        let [accepted, ..] = conditions(2, &with_own(all.clone(), "n3", Some(refused)));
        assert_eq!(
            (accepted.reason, accepted.message.as_str()),
            ("Refused", "node n3: no image")
        );
        let [accepted, ready, _] = conditions(2, &[]);
        assert_eq!((accepted.reason, ready.reason), ("NoNode", "NoNode"));
        // A node that has no part any more has no entry.
        assert_eq!(with_own(all, "n1", None).len(), 1);
    }

    #[test]
    fn a_condition_keeps_its_time_while_it_is_the_same() {
        let all = [said("n1", 2, 2)];
        let first = status(2, &all, all.first(), &Value::Null, "T1");
        assert_eq!(first["conditions"][0]["lastTransitionTime"], "T1");
        let second = status(2, &all, all.first(), &first, "T2");
        assert_eq!(second, first);
        let missing = [said("n1", 1, 2)];
        let third = status(2, &missing, missing.first(), &second, "T3");
        assert_eq!(third["conditions"][0]["lastTransitionTime"], "T1");
        assert_eq!(third["conditions"][1]["lastTransitionTime"], "T3");
        assert_eq!(third["message"], "node n1: 1 of 2 instances are active: load 0.5");
    }

    #[test]
    fn only_traffic_can_wait() {
        let of = |entry: Entry| status(2, std::slice::from_ref(&entry), Some(&entry), &Value::Null, "T");
        let mut busy = said("n1", 2, 2);
        busy.figures.flows = 99;
        busy.message = "load 0.9".to_owned();
        assert_eq!(gist(&of(busy)), gist(&of(said("n1", 2, 2))));
        assert_ne!(gist(&of(said("n1", 3, 3))), gist(&of(said("n1", 2, 2))));
        assert_ne!(gist(&of(said("n1", 2, 3))), gist(&of(said("n1", 2, 2))));
    }

    #[test]
    fn a_hostile_status_is_read_as_far_as_it_goes() {
        let status = json!({ "nodes": [3, {}, { "node": 1 }, { "node": "n1", "active": -3, "flows": "x", "dropped": u64::MAX },
            { "node": "n2", "dropped": 1, "generation": "y" }], "conditions": "z" });
        let all = entries(&status);
        assert_eq!(all.len(), 2);
        assert_eq!(total(&all).dropped, u64::MAX);
        assert!(entries(&json!({ "nodes": 7 })).is_empty());
        let [first, ..] = conditions(1, &all);
        assert_eq!(condition_json(&first, 1, &status, "T")["lastTransitionTime"], "T");
    }

    #[test]
    fn a_rollout_is_told_while_it_goes_on_and_when_it_has_failed() {
        let told = |rolls: &[(bool, &str)]| {
            let entry = |(is_rolling_out, text): &(bool, &str)| Entry {
                is_rolling_out: *is_rolling_out,
                rollout: (*text).to_owned(),
                ..said("n1", 2, 2)
            };
            let all: Vec<Entry> = rolls.iter().map(entry).collect();
            let [_, ready, of] = conditions(2, &all);
            assert!(ready.holds);
            let summary = status(2, &all, all.first(), &Value::Null, "t")["message"].clone();
            (of.holds, of.reason, summary)
        };
        let done = (false, "Complete", json!("load 0.5"));
        assert_eq!(told(&[(false, "")]), done);
        let going = (true, "RollingOut", json!("node n1: 1 of 2"));
        assert_eq!(told(&[(true, "1 of 2")]), going);
        // One that goes on is told before one that has failed.
        assert_eq!(told(&[(false, "it failed"), (true, "1 of 2")]), going);
        let failed = (false, "Aborted", json!("node n1: it failed"));
        assert_eq!(told(&[(false, "it failed"), (false, "")]), failed);
        // The next operator reads it of another node.
        let other = Entry {
            is_rolling_out: true,
            rollout: "1 of 2".to_owned(),
            ..said("n2", 2, 2)
        };
        assert_eq!(entries(&json!({ "nodes": [other.json()] })), [other]);
    }
}
