//! Instances come and go.

use model::{FlowSetup, Nanos, PlaceId, Slot};

use super::{Bucket, Link, Outgoing, Steering};
use crate::rules::{Rule, Tag, instance_rules, is_probe, marked_rules, probe_frame};

/// What of an instance counts for scheduling.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct InstanceTerms {
    /// Where it runs.
    pub place: PlaceId,
    /// Whether it takes new flows.
    pub takes_flows: bool,
    /// What it can process, in the unit of the service's metric.
    pub capacity: f32,
    /// What it is given, likewise.
    pub load: f32,
    /// Its weight out of 256.
    pub weight: u16,
    /// Since when it has taken new flows.
    pub active_since: Nanos,
}

pub(super) struct Instance {
    pub(super) service: usize,
    pub(super) ports: Vec<u32>,
    /// What the switch remembers of connections that are its: no other instance has or had it.
    pub(super) mark: u32,
    pub(super) terms: InstanceTerms,
    /// When its own rules are in force.
    pub(super) epoch: u64,
    /// Whether it was attached: else it is known from rules of an earlier run alone.
    pub(super) is_attached: bool,
    /// Until then one of an earlier run has time to be as it was: its buckets stay, and if it is not attached by then
    /// it is gone.
    pub(super) awaited_until: Nanos,
}

impl Steering {
    /// An instance of that service is at these ports of the switch, one per data port. It takes no flows yet.
    pub fn attach(&mut self, slot: Slot, service: model::ServiceId, ports: Vec<u32>) {
        let Some(service) = self.services.iter().position(|of| of.rules.id == service) else {
            return;
        };
        let epoch = self.prover.want();
        if let Some(instance) = self.instances.get_mut(&slot).filter(|of| !of.is_attached) {
            instance.is_attached = true;
            instance.epoch = epoch;
            return;
        }
        let instance = Instance {
            service,
            is_attached: true,
            awaited_until: Nanos::ZERO,
            ports,
            mark: self.fresh.mark,
            terms: InstanceTerms::default(),
            epoch,
        };
        // 0 is the mark of connections without one.
        self.fresh.mark = self.fresh.mark.checked_add(1).unwrap_or(1);
        self.instances.insert(slot, instance);
        for rule in self.rules_of(slot) {
            self.queue(Outgoing::Rule(rule));
        }
    }

    /// What of an instance counts from now on.
    pub fn set_terms(&mut self, slot: Slot, terms: InstanceTerms) {
        if let Some(instance) = self.instances.get_mut(&slot) {
            instance.terms = terms;
            if terms.takes_flows {
                instance.awaited_until = Nanos::ZERO;
            }
        }
    }

    /// Sends a probe to a data port of the instance. What the instance gives back of it is counted, and leaves by no
    /// uplink. Returns whether there was room for it.
    pub fn probe(&mut self, slot: Slot, data_port: u8) -> bool {
        self.inject(Tag::Instance(slot, data_port).put(&probe_frame()))
    }

    /// Probes for an instance that wait for the monitor port.
    pub(crate) fn queued_probes(&self, slot: Slot) -> u64 {
        let is_its = |frame: &&Vec<u8>| match Tag::take(frame) {
            Some((Tag::Instance(of, _), packet)) => of == slot && is_probe(&packet),
            _ => false,
        };
        self.injections.iter().filter(is_its).count() as u64
    }

    /// Whether the rules of an instance are in force: its frames go where they should.
    pub fn is_in_force(&self, slot: Slot) -> bool {
        let of = self.instances.get(&slot);
        matches!(self.link, Link::Up) && of.is_some_and(|of| self.prover.is_proven(of.epoch))
    }

    /// Whether new flows may still be given to the instance.
    pub fn may_get_flows(&self, slot: Slot) -> bool {
        let has = |bucket: &Bucket| bucket.slot == Some(slot) || self.moves_to(slot);
        self.instances
            .get(&slot)
            .and_then(|instance| self.services.get(instance.service))
            .is_some_and(|service| service.buckets.iter().any(has))
    }

    /// Whether the instance has no flow and gets none.
    pub fn is_drained(&self, slot: Slot) -> bool {
        self.slot_figures(slot).live_flows == 0 && !self.may_get_flows(slot)
    }

    /// The instance has failed, which does not say that it is dead: what it still gives is sent on no more. When that
    /// is in force it is gone, and not before: others may have its flows then.
    pub fn fail(&mut self, slot: Slot) {
        if !self.instances.contains_key(&slot) || self.failing.contains_key(&slot) {
            return;
        }
        let rules = self.rules_of(slot).into_iter();
        for rule in rules.filter(Rule::is_return) {
            self.queue(Outgoing::Delete(rule));
        }
        let silent = self.prover.want();
        self.failing.insert(slot, silent);
    }

    /// Whether it has failed and has not gone yet.
    pub fn is_failing(&self, slot: Slot) -> bool {
        self.failing.contains_key(&slot)
    }

    /// The instance is gone. Flows that it has left are given to others when they next show themselves. One that has
    /// failed goes by itself: see [`Steering::fail`].
    pub fn remove(&mut self, slot: Slot, now: Nanos) {
        if !self.failing.contains_key(&slot) {
            self.forget(slot, now);
        }
    }

    /// The instance is gone, also one that has failed while the switch could not be told.
    pub(crate) fn forget(&mut self, slot: Slot, now: Nanos) {
        let rules = self.rules_of(slot);
        self.failing.remove(&slot);
        let lost = self.book.those(|_, flow| flow.slot == slot);
        self.counted.figures.failed_flows += lost.len() as u64;
        lost.into_iter().for_each(|id| self.end(id));
        self.leave_moves(slot, now);
        let Some(instance) = self.instances.remove(&slot) else {
            return;
        };
        let mut changed = Vec::new();
        if let Some(service) = self.services.get_mut(instance.service) {
            for (index, bucket) in service.buckets.iter_mut().enumerate() {
                if bucket.slot == Some(slot) {
                    bucket.slot = None;
                    changed.push(index);
                }
            }
        }
        changed
            .into_iter()
            .for_each(|bucket| self.queue_bucket(instance.service, bucket));
        rules
            .into_iter()
            .for_each(|rule| self.queue(Outgoing::Delete(rule)));
        self.due.rebalance_at = now;
    }

    /// The rules of an instance that do not change while it is there.
    pub(super) fn rules_of(&self, slot: Slot) -> Vec<Rule> {
        let Some(instance) = self.instances.get(&slot) else {
            return Vec::new();
        };
        let Some(service) = self.services.get(instance.service) else {
            return Vec::new();
        };
        let (of, ports) = (&service.rules, &instance.ports);
        let mut rules = instance_rules(slot, ports, &of.uplinks, self.monitor);
        if self.failing.contains_key(&slot) {
            rules.retain(|rule| !rule.is_return());
        }
        if self.settings.setup == FlowSetup::Proactive {
            rules.extend(marked_rules(slot, instance.mark, ports, &of.sides, self.monitor));
        }
        rules
    }
}
