//! After inco itself was started again: where flows and buckets are is read out of the rules that the switch goes on
//! by.
//!
//! Flows that began while no inco ran have no exact rules, and nothing is known of them: they are on their
//! buckets, which therefore stay where they are until such flows have shown themselves or ended.

use std::collections::{BTreeMap, BTreeSet};

use model::{Nanos, ServiceId, Slot};
use openflow::FlowStats;

use super::moves::BucketPhase;
use super::{Instance, InstanceTerms, Steering};
use crate::flows::{Flow, FlowId, FlowRule, RuleState};
use crate::rules::{Meaning, ZONES, fallback_number, meaning};

/// What an earlier run may have left in the switch.
#[derive(Clone, Debug)]
pub(super) struct Adoption {
    /// The ports of instances, and whose they are.
    places: BTreeMap<Slot, (ServiceId, Vec<u32>)>,
    /// How long instances have to come back.
    patience: Nanos,
}

impl Steering {
    /// The switch may have rules of an earlier run, with the same ports and services: what they say of instances,
    /// buckets and flows is taken over with the first connection, and nothing that agrees is touched. `places`: the
    /// ports that instances can have. An instance that is not attached within `patience` is gone. To be called before
    /// anything else.
    pub fn adopt(&mut self, places: impl IntoIterator<Item = (Slot, ServiceId, Vec<u32>)>, patience: Nanos) {
        let places = places
            .into_iter()
            .map(|(slot, service, ports)| (slot, (service, ports)));
        self.adoption = Some(Adoption {
            places: places.collect(),
            patience,
        });
    }

    /// Whether the instance is known from rules of an earlier run and has not been attached.
    pub fn is_awaited(&self, slot: Slot) -> bool {
        self.instances.get(&slot).is_some_and(|of| !of.is_attached)
    }

    pub(super) fn take_over(&mut self, adoption: &Adoption, found: &[FlowStats], now: Nanos) {
        let slot_of: BTreeMap<u32, Slot> = (adoption.places.iter())
            .flat_map(|(slot, (_, ports))| ports.iter().map(|port| (*port, *slot)))
            .collect();
        let meanings = || found.iter().filter_map(|rule| Some((rule, meaning(rule)?)));
        for (_, meaning) in meanings() {
            // One whose packets do not leave any more had failed.
            if let Meaning::Return { port } = meaning
                && let Some(slot) = slot_of.get(&port)
            {
                self.await_instance(*slot, adoption, now);
            }
        }
        for (_, meaning) in meanings() {
            if let Meaning::Mark { slot, mark } = meaning
                && let Some(instance) = self.instances.get_mut(&slot)
            {
                instance.mark = mark;
                self.fresh.mark = self.fresh.mark.max(mark.saturating_add(1));
            }
        }
        let is_there = |steering: &Steering, port: u32| {
            let slot = slot_of.get(&port).copied();
            slot.filter(|slot| steering.instances.contains_key(slot))
        };
        let mut asking = BTreeSet::new();
        let mut unmarked = BTreeMap::new();
        for (_, meaning) in meanings() {
            let Meaning::Bucket {
                service,
                bucket,
                zone,
                to,
                is_handover,
            } = meaning
            else {
                continue;
            };
            let slot = to.and_then(|port| is_there(self, port));
            let Some(index) = self.services.iter().position(|of| of.rules.id == service) else {
                continue;
            };
            let unknown_until = now + self.settings.idle.longest_in_use();
            let Some(of) = self.bucket_mut((index, bucket)) else {
                continue;
            };
            of.unknown_until = unknown_until;
            match zone {
                _ if is_handover => drop(unmarked.insert((index, bucket), slot)),
                // Which instance the bucket has is in the other table.
                Some(zone) => {
                    of.zone = zone;
                    asking.insert((index, bucket));
                }
                None => of.slot = slot,
            }
        }
        let mut zones = 0;
        // On one side it may have been written already who has new connections, and not on the other: each of them
        // has a mark.
        asking.retain(|place| {
            let slot = unmarked.get(place).copied().flatten();
            let Some(of) = self.bucket_mut(*place).filter(|_| slot.is_some()) else {
                return false;
            };
            of.slot = slot;
            of.phase = BucketPhase::Asking;
            zones = zones.max(of.zone + 1);
            true
        });
        self.fresh.zone = zones % ZONES;
        self.go_on_asking(&asking, now);
        for (rule, meaning) in meanings() {
            if let Meaning::Pin {
                number,
                in_port,
                tuple,
                to,
            } = meaning
            {
                self.book.next_number = self.book.next_number.max(number + 1);
                let slot = is_there(self, to);
                let place = self.find_tuple(|side| side.port == in_port, &tuple);
                if let Some((slot, (service, side, id, bucket))) = slot.zip(place) {
                    let rule = FlowRule {
                        number,
                        side,
                        is_written: true,
                        packets: rule.packets,
                        bytes: rule.bytes,
                    };
                    self.take_over_rule(id, (service, bucket), slot, rule, now);
                }
            }
        }
        for rule in found {
            // It goes on counting.
            if let Some(fallback) =
                fallback_number(rule.cookie).and_then(|at| self.counted.fallbacks.get_mut(at))
            {
                fallback.last = rule.packets;
            }
        }
        let ids: Vec<FlowId> = self.book.flows.keys().copied().collect();
        ids.into_iter().for_each(|id| self.pin_the_rest(id));
    }

    /// An instance is there whose container may come back.
    fn await_instance(&mut self, slot: Slot, adoption: &Adoption, now: Nanos) {
        let awaited_until = now + adoption.patience;
        if let Some(instance) = self.instances.get_mut(&slot) {
            instance.awaited_until = awaited_until;
            return;
        }
        let Some((id, ports)) = adoption.places.get(&slot) else {
            return;
        };
        let Some(service) = self.services.iter().position(|of| of.rules.id == *id) else {
            return;
        };
        let instance = Instance {
            service,
            ports: ports.clone(),
            mark: self.fresh.mark,
            terms: InstanceTerms::default(),
            epoch: self.prover.want(),
            is_attached: false,
            awaited_until,
        };
        self.fresh.mark = self.fresh.mark.saturating_add(1);
        self.instances.insert(slot, instance);
    }

    /// A rule of a flow, and with it where the flow is.
    fn take_over_rule(&mut self, id: FlowId, place: (usize, usize), slot: Slot, rule: FlowRule, now: Nanos) {
        let is_new = !self.book.flows.contains_key(&id);
        if is_new && self.book.flows.len() >= self.settings.flow_limit {
            return;
        }
        // It has long been in force: there is no proof to wait for.
        let flow = self.book.flows.entry(id).or_insert_with(|| Flow {
            state: RuleState::Installed,
            ..Flow::on_bucket(place, slot, now)
        });
        if flow.slot == slot {
            flow.rules.push(rule);
            self.book.numbers.insert(rule.number, id);
        }
        self.counted.slots.entry(slot).or_default().live_flows += u64::from(is_new);
    }

    /// A flow that lacks a rule on one of its sides is on its bucket there.
    fn pin_the_rest(&mut self, id: FlowId) {
        let Some(flow) = self.book.flows.get_mut(&id) else {
            return;
        };
        let Some(service) = self.services.get_mut(flow.service) else {
            return;
        };
        let sides = service.rules.sides.iter();
        let wanted = sides
            .filter(|side| side.takes(&id.tuple(side.is_answering)))
            .count();
        if flow.rules.len() < wanted {
            flow.state = RuleState::OnBucket;
            self.book.waiting.insert((flow.packets, id));
            if let Some(bucket) = service.buckets.get_mut(flow.bucket) {
                bucket.on_bucket.insert(id);
            }
        }
    }
}
