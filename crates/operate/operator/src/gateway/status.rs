//! What is said of Gateways and their routes: conditions, as the Gateway API has them.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{
    CONTROLLER, GROUP, Gateway, Gateways, Listener, Obstacle, Outcome, Parent, list, obstacle, text,
};
use crate::objects::{GATEWAY, GATEWAY_CLASS, Object};
use crate::plan::{Part, Verdict};
use crate::status::{Condition, Writer, agreed};

fn condition(kind: &'static str, outcome: &Outcome<()>) -> Condition {
    let (holds, reason, message) = match outcome {
        Ok(()) => (true, kind, String::new()),
        Err(of) => (false, of.reason, of.message.clone()),
    };
    Condition {
        kind,
        holds,
        reason,
        message,
    }
}

/// Why a part is not in force on a node.
fn hindrance(verdict: Option<&Verdict>, node: &str) -> Outcome<()> {
    match verdict {
        Some(Verdict {
            refused: Some(why), ..
        }) => obstacle("Invalid", format!("node {node}: {why}")),
        Some(Verdict {
            is_in_force: true, ..
        }) => Ok(()),
        _ => obstacle("Pending", format!("node {node}: inco does not have it yet")),
    }
}

/// These conditions, and those of others that are there.
fn conditions(own: &[Condition], generation: i64, before: &Value, writer: &Writer<'_>) -> Vec<Value> {
    let is_own = |of: &&Value| own.iter().any(|it| text(of, "/type") == Some(it.kind));
    let others = list(before, "/conditions").filter(|of| !is_own(of)).cloned();
    let of_own = own.iter().map(|of| agreed(of, generation, before, writer));
    of_own.chain(others).collect()
}

impl Gateways {
    /// The status of an object of the Gateway API; [`None`]: this node has nothing to say of it.
    pub fn status(
        &self,
        object: &Object,
        verdicts: &BTreeMap<Part, Verdict>,
        writer: &Writer<'_>,
    ) -> Option<Value> {
        match object.id.kind {
            GATEWAY_CLASS => {
                let own = [condition("Accepted", &Ok(()))];
                Some(json!({ "conditions": conditions(&own, object.generation, &object.status, writer) }))
            }
            GATEWAY => {
                let of = self.gateways.get(&object.id).filter(|of| of.is_here)?;
                Some(of.status(object, verdicts, writer))
            }
            _ => {
                let parents = self.routes.get(&object.id)?;
                parents
                    .iter()
                    .any(|of| of.is_here)
                    .then(|| route_status(parents, object, verdicts, writer))
            }
        }
    }
}

impl Gateway {
    fn status(&self, object: &Object, verdicts: &BTreeMap<Part, Verdict>, writer: &Writer<'_>) -> Value {
        let before = &object.status;
        let is_assigned = |of: &Obstacle| of.reason == "AddressNotAssigned";
        let accepted = match &self.address {
            Err(of) if !is_assigned(of) => Err(of.clone()),
            _ => Ok(()),
        };
        let programmed = |of: &Listener| -> Outcome<()> {
            self.address.clone()?;
            of.kind.clone()?;
            match &of.part {
                Some(part) => hindrance(verdicts.get(part), writer.node),
                None => Ok(()),
            }
        };
        let listeners = self.listeners.iter().map(|of| {
            let named = |it: &&Value| text(it, "/name") == Some(of.name.as_str());
            let was = list(before, "/listeners").find(named).unwrap_or(&Value::Null);
            let fails_by = |reason: &str| match &of.kind {
                Err(why) if why.reason == reason => Err(why.clone()),
                _ => Ok(()),
            };
            let own = [
                condition("Accepted", &fails_by("UnsupportedProtocol")),
                condition("ResolvedRefs", &fails_by("InvalidRouteKinds")),
                condition("Programmed", &programmed(of)),
            ];
            let kinds = of.kind.iter().map(|kind| json!({ "group": GROUP, "kind": kind }));
            json!({
                "name": of.name, "supportedKinds": kinds.collect::<Vec<_>>(),
                "attachedRoutes": u32::from(of.route.as_ref().is_some_and(|(_, is_accepted)| *is_accepted)),
                "conditions": conditions(&own, object.generation, was, writer),
            })
        });
        let listeners: Vec<Value> = listeners.collect();
        // A listener of another protocol leaves the others.
        let first = self.listeners.iter().filter(|of| of.kind.is_ok()).map(programmed);
        let whole = self.address.clone().map(drop).and_then(|()| first.collect());
        let own = [condition("Accepted", &accepted), condition("Programmed", &whole)];
        let address = self.address.iter();
        let addresses = address.map(|of| json!({ "type": "IPAddress", "value": of.to_string() }));
        json!({
            "addresses": addresses.collect::<Vec<_>>(),
            "conditions": conditions(&own, object.generation, before, writer),
            "listeners": listeners,
        })
    }
}

fn route_status(
    parents: &[Parent],
    object: &Object,
    verdicts: &BTreeMap<Part, Verdict>,
    writer: &Writer<'_>,
) -> Value {
    let is_own = |of: &&Value| text(of, "/controllerName") == Some(CONTROLLER);
    let there = || list(&object.status, "/parents");
    let others = there().filter(|of| !is_own(of)).cloned();
    let own = parents.iter().filter_map(|parent| {
        let was = there().find(|of| is_own(of) && of.get("parentRef") == Some(&parent.reference));
        if !parent.is_here {
            // Other nodes serve that Gateway.
            return was.cloned();
        }
        let refusal = |part: &Part| match hindrance(verdicts.get(part), writer.node) {
            Err(of) if of.reason == "Invalid" => obstacle("UnsupportedValue", of.message),
            _ => Ok(()),
        };
        // What is missing is said there, and is no reason against the route itself.
        let accepted = match &parent.resolved {
            Ok(()) => parent
                .accepted
                .clone()
                .and_then(|()| parent.parts.iter().try_for_each(refusal)),
            Err(_) => parent.accepted.clone(),
        };
        let own = [
            condition("Accepted", &accepted),
            condition("ResolvedRefs", &parent.resolved),
        ];
        let was = was.unwrap_or(&Value::Null);
        Some(json!({
            "parentRef": parent.reference, "controllerName": CONTROLLER,
            "conditions": conditions(&own, object.generation, was, writer),
        }))
    });
    json!({ "parents": others.chain(own).collect::<Vec<_>>() })
}
