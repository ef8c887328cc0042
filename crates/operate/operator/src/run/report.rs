//! What an operator says: the status of each object, and events.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Instant;

use api::Client;
use api::types::{ServiceRow, Snapshot};
use serde_json::{Value, json};
use toml::Table;

use super::{Operator, RESYNC, Written};
use crate::Error;
use crate::cluster::now;
use crate::objects::{FUNCTION, Object, SERVICE};
use crate::plan::{Id, Part, Verdict};
use crate::status::{
    Condition, Entry, Told, Writer, agreed, blamed, entries, entry, gist, merged, released, status, with_own,
};

/// Most events of one turn. The others are in the log only.
const EVENTS_LIMIT: usize = 20;
/// The condition of a Service.
const ACCEPTED: &str = "inco.dev/Accepted";
/// What is said of a port of a Service that is refused: the API server takes a word with a domain.
const REFUSED: &str = "inco.dev/Refused";

impl Operator<'_> {
    /// Writes what has changed of the status of the objects.
    pub(super) fn report(&mut self) {
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
        let settled = self.settled();
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
                SERVICE => self.service_status(object, of_node.as_ref(), &settled),
                _ => self.gateway_status(object, &settled),
            };
            let id = object.id.clone();
            match of_node {
                Some(entry) => self.told.insert(id.clone(), entry),
                None => self.told.remove(&id),
            };
            // There is nothing to write to.
            let written = written.filter(|_| !self.cluster.is_away(id.kind));
            if let Some(status) = written
                && !self.rests(&id)
                && let Err(error) = self.write(index, &id, status)
            {
                return self.log(0, Some(error.to_string()));
            }
        }
        self.tell(events);
        self.forget_a_node();
    }

    /// The verdicts that are those of what is wanted now. While inco is away, others are of a list of before.
    fn settled(&self) -> BTreeMap<Part, Verdict> {
        let wanted = self.wishes.wanted.iter();
        let tables = wanted.filter_map(|of| Some((of.part(), of.table.as_ref().ok()?)));
        let tables: BTreeMap<Part, &Table> = tables.collect();
        let is_settled = |(part, verdict): &(&Part, &Verdict)| {
            let table = tables.get(part).copied();
            verdict.refused.is_some() || table.is_some() && table == self.accepted.get(&part.1)
        };
        let settled = self.verdicts.iter().filter(is_settled);
        settled.map(|(part, of)| (part.clone(), of.clone())).collect()
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
    fn service_status(
        &self,
        object: &Object,
        own: Option<&Entry>,
        settled: &BTreeMap<Part, Verdict>,
    ) -> Option<Value> {
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
        let part = |service: &str| (object.id.clone(), service.to_owned());
        let verdict = |service: &str| settled.get(&part(service));
        let ports = object.ports();
        let is_in_force = ports
            .iter()
            .any(|of| verdict(&of.service).is_some_and(|of| of.is_in_force));
        // The address of what was accepted before stays with that.
        let served = ports.iter().find_map(|of| {
            let verdict = self.verdicts.get(&part(&of.service));
            verdict.filter(|of| of.is_in_force)?;
            let vip = self.accepted.get(&of.service)?.get("vip")?;
            vip.get("address")?.as_str()?.parse::<IpAddr>().ok()
        });
        // Another node may serve it meanwhile.
        let is_there = |of: &IpAddr| {
            let ip = there
                .pointer("/loadBalancer/ingress/0/ip")
                .and_then(Value::as_str);
            ip == Some(of.to_string().as_str())
        };
        let wished = self.wishes.addresses.get(&object.id).copied();
        let address = served.or_else(|| wished.filter(is_there));
        let (holds, reason) = match own.is_accepted {
            true if is_in_force && served.is_some() && served == wished => (true, "Accepted"),
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
    fn gateway_status(&self, object: &Object, settled: &BTreeMap<Part, Verdict>) -> Option<Value> {
        let (node, now) = (&self.settings.node, now());
        let writer = Writer {
            node,
            gone: &self.gone,
            now: &now,
        };
        let said = self.wishes.gateways.status(object, settled, &writer);
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
        let Some(object) = self.objects.get(index) else {
            return Ok(());
        };
        let answer = match id.kind {
            FUNCTION | SERVICE => self.cluster.apply_status(id, &self.settings.node, &status),
            _ => self.cluster.change_status(object, &status),
        };
        self.took(index, status, answer)
    }

    /// Notes how the API server has answered to a status of an object.
    fn took(
        &mut self,
        index: usize,
        status: Value,
        answer: Result<Option<Object>, Error>,
    ) -> Result<(), Error> {
        let Some(object) = self.objects.get_mut(index) else {
            return Ok(());
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
                if !self.written.get(&object.id).is_some_and(|of| of.is_refused) {
                    let (kind, name) = (
                        object.id.kind,
                        format!("{}/{}", object.id.namespace, object.id.name),
                    );
                    tracing::warn!(
                        kind,
                        object = name,
                        why,
                        "the API server does not take its status"
                    );
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
        self.written.insert(object.id.clone(), written);
        Ok(())
    }

    /// Whether the API server has not taken a status of it a short while ago.
    fn rests(&self, id: &Id) -> bool {
        let written = self.written.get(id);
        written.is_some_and(|of| of.is_refused && of.at.elapsed() < RESYNC)
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
        let asked = self.objects.iter().filter(|object| !self.rests(&object.id));
        let named = asked.flat_map(|object| {
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
            Err(error) => self.log(0, Some(error.to_string())),
            Ok(()) if self.rests(&id) => {}
            Ok(()) => tracing::info!(
                node,
                "the cluster does not have this node any more; its entry is removed"
            ),
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
        let answer = self.cluster.apply_status(id, node, &json!({}));
        self.took(index, json!({}), answer)
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
