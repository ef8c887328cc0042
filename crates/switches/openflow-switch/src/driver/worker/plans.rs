//! The plan: what is written of it, and when it is in force.

use std::collections::BTreeMap;
use std::sync::Arc;

use model::{InstanceState, Nanos, Slot, UplinkId};
use switch::Plan;

use super::Worker;
use crate::Family;
use crate::driver::{FIRST_UPLINK, lock};
use crate::steering::{Fallback, InstanceTerms, Steering};

/// How long a plan may take to be in force: buckets move a few at a time.
pub(super) const PLAN_PATIENCE: Nanos = Nanos::from_secs(10);
/// The same without a switch: it is not in force before there is one.
pub(super) const NO_SWITCH_PATIENCE: Nanos = Nanos::from_secs(1);

/// Something that was asked of the switch and is not in force yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Settling {
    pub(super) since: Nanos,
    /// [`None`] before all of its rules are written.
    pub(super) proof: Option<u64>,
}

impl Settling {
    pub(super) fn from(now: Nanos) -> Settling {
        Settling {
            since: now,
            proof: None,
        }
    }

    /// Whether it is in force, where its rules `are_written`, or will not be within `patience`.
    pub(super) fn is_over(
        &mut self,
        are_written: bool,
        steering: &mut Steering,
        patience: Nanos,
        now: Nanos,
    ) -> bool {
        if self.proof.is_none() && are_written {
            self.proof = Some(steering.want_proof());
        }
        let is_proven = self.proof.is_some_and(|proof| steering.is_proven(proof));
        is_proven || now.since(self.since) > patience
    }
}

/// The wanted state of the control plane.
pub(super) struct Wanted {
    pub(super) plan: Arc<Plan>,
    /// While the plan is not acknowledged.
    pub(super) settling: Option<Settling>,
    /// Instances whose flows were purged, until that is in force.
    pub(super) purged: BTreeMap<Slot, Settling>,
    /// Instances that failed since the last plan.
    pub(super) failing: Vec<Slot>,
    pub(super) loads: BTreeMap<Slot, f32>,
}

impl Worker {
    pub(super) fn publish(&mut self, plan: Arc<Plan>, now: Nanos) {
        // That they failed is known before they leave the plan.
        for slot in std::mem::take(&mut self.wanted.failing) {
            if let Some(attachment) = self.attachments.get_mut(&slot) {
                attachment.failed = true;
            }
            self.steering.fail(slot);
        }
        // Who is not in the table any more has no flows.
        for slot in (0..self.wanted.plan.slots.len() as u16).map(Slot) {
            if self.wanted.plan.slot(slot).is_some() && plan.slot(slot).is_none() {
                self.steering.remove(slot, now);
            }
        }
        if (self.wanted.plan.unmatched, self.wanted.plan.other) != (plan.unmatched, plan.other)
            || self.wanted.plan.generation.0 == 0
        {
            let port_of = |uplink: UplinkId| FIRST_UPLINK + u32::from(uplink.0);
            let mut fallbacks = Vec::new();
            for uplink in (0..self.ports.uplinks.len() as u8).map(UplinkId) {
                for family in [Family::Ipv4, Family::Ipv6, Family::Other] {
                    let of = match family {
                        Family::Other => plan.other,
                        Family::Ipv4 | Family::Ipv6 => plan.unmatched,
                    };
                    fallbacks.push(Fallback {
                        port: port_of(uplink),
                        family,
                        to: of.exit(uplink).map(port_of),
                    });
                }
            }
            self.steering.set_fallbacks(&fallbacks);
        }
        self.wanted.plan = plan;
        if self
            .adoption
            .as_mut()
            .is_some_and(|waiting| std::mem::take(&mut waiting.is_up))
        {
            self.steering.connected();
        }
        self.set_terms();
        // One that was not in force yet has waited for its part of the patience.
        let since = self.wanted.settling.map_or(now, |before| before.since);
        self.wanted.settling = Some(Settling::from(since));
        self.count_flows();
    }

    /// Acknowledges the plan once it is in force: no instance that it gives no new flows may be given any, and where
    /// it has one for new flows they come to one.
    pub(super) fn settle(&mut self, now: Nanos) {
        let patience = match self.switch.connection.connection() {
            Some(_) => PLAN_PATIENCE,
            None => NO_SWITCH_PATIENCE,
        };
        self.wanted
            .purged
            .retain(|_, purge| !purge.is_over(true, &mut self.steering, patience, now));
        let Some(settling) = &mut self.wanted.settling else {
            return;
        };
        let plan = &self.wanted.plan;
        let are_written = self.attachments.iter().all(|(slot, attachment)| {
            let takes = plan.slot(*slot).is_some_and(|row| row.state.takes_new_flows());
            match takes {
                true => self.steering.is_spread(attachment.service),
                false => !self.steering.is_failing(*slot) && !self.steering.may_get_flows(*slot),
            }
        });
        if self.attachments.is_empty() || settling.is_over(are_written, &mut self.steering, patience, now) {
            self.wanted.settling = None;
            lock(&self.above.shared).reading.acknowledged = self.wanted.plan.generation;
        }
    }

    /// Gives the core what the table and the loads say of each instance.
    pub(super) fn set_terms(&mut self) {
        let shared = lock(&self.above.shared);
        for (slot, load) in &shared.loads {
            self.wanted.loads.insert(*slot, *load);
        }
        for (service, load) in &shared.flow_loads {
            self.steering.set_flow_load(*service, *load);
        }
        drop(shared);
        for (index, row) in self.wanted.plan.slots.iter().enumerate() {
            let slot = Slot(index as u16);
            let Some(row) = row else { continue };
            self.steering.set_terms(
                slot,
                InstanceTerms {
                    place: row.place,
                    takes_flows: row.state == InstanceState::Active,
                    capacity: self.wanted.plan.capacity(row),
                    load: self.wanted.loads.get(&slot).copied().unwrap_or_default(),
                    weight: row.weight,
                    active_since: row.active_since,
                },
            );
        }
    }
}
