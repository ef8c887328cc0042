//! The packets of a fake switch, and the flows that they are of.

use std::sync::Arc;

use flow_table::TcpState;
use model::{Direction, DropReason, FlowKey, Nanos, ServiceId, Slot, Tuple, UplinkId};
use scheduling::{Candidate, Candidates, NewFlow, PRIORITIES, Terms};

use super::{FakeSwitch, Phase, hash_of};
use crate::{BlockOwners, ExternalPacket, FlowFilter, FlowRow, SwitchEvent};

#[derive(Clone, Copy, Debug)]
pub(super) struct Flow {
    service: ServiceId,
    pub(super) slot: Slot,
    opener: Direction,
    pinned_at: Nanos,
    packets: [u64; 2],
    seen: Nanos,
}

impl FakeSwitch {
    /// A packet comes in by that uplink.
    pub fn offer(&mut self, uplink: UplinkId, tuple: &Tuple) {
        let (key, direction) = FlowKey::new(tuple);
        if let Some(counters) = self.reading.uplinks.get_mut(uplink.index()) {
            counters.received_packets += 1;
        }
        if !self.flows.contains_key(&key) && !self.open(uplink, tuple, key, direction) {
            return;
        }
        let Some(flow) = self.flows.get_mut(&key) else {
            return;
        };
        flow.packets[direction.index()] += 1;
        flow.seen = self.now;
        let (slot, service) = (flow.slot, flow.service);
        self.reading.services[service.index()].offered_packets += 1;
        let counters = &mut self.reading.slots[slot.index()];
        let room = self.config.ring_slots;
        let attachment = self.attachments.get_mut(&slot);
        match attachment.filter(|attachment| attachment.ring.len() < room) {
            Some(attachment) => {
                attachment.ring.push_back(*tuple);
                counters.to_packets += 1;
                counters.ring_used = attachment.ring.len() as u64;
                counters.ring_slots = room as u64;
            }
            None => {
                counters.ring_drops += 1;
                self.reading.drops[DropReason::InstanceRingFull.index()] += 1;
            }
        }
    }

    /// Pins a new flow by the plan of the worker that owns it. Whether an instance took it.
    fn open(&mut self, uplink: UplinkId, tuple: &Tuple, key: FlowKey, direction: Direction) -> bool {
        let hash = hash_of(&key);
        let place = hash as usize % self.workers.len().max(1);
        let Some(worker) = self.workers.get_mut(place) else {
            return false;
        };
        let plan = Arc::clone(&worker.plan);
        match BlockOwners::of(&plan).find(tuple, uplink) {
            Some(ExternalPacket::Owned { service, slot }) => {
                self.pin(key, service, slot);
                if let Some(flow) = self.flows.get_mut(&key) {
                    flow.opener = direction;
                }
                return true;
            }
            Some(ExternalPacket::Unowned { service }) => return self.refuse(service, DropReason::PortBlock),
            Some(ExternalPacket::Spoofed { service }) => return self.refuse(service, DropReason::Spoofed),
            None => {}
        }
        let Some(service) = plan
            .classify(|| *tuple, uplink)
            .and_then(|at| plan.services.get(at))
        else {
            self.reading.drops[DropReason::Unmatched.index()] += 1;
            return false;
        };
        let mut candidates = Candidates::new();
        candidates.begin(Terms {
            at: self.now,
            fit: service.fit,
            ..Terms::default()
        });
        for (slot, row) in plan.instances() {
            let attachment = self.attachments.get(&slot);
            if row.service == service.id
                && row.state.takes_new_flows()
                && attachment.is_some_and(|of| of.phase == Phase::Up && !of.failed)
            {
                let live = self.flows.values().filter(|flow| flow.slot == slot).count();
                candidates.push(Candidate {
                    slot,
                    place: row.place,
                    capacity: plan.capacity(row),
                    load: self.loads.get(&slot).copied().unwrap_or_default(),
                    trust: 1.0,
                    weight: row.weight,
                    live_flows: live as u32,
                    active_for: self.now.since(row.active_since),
                    queues: [0.0; PRIORITIES],
                });
            }
        }
        let scheduler = worker
            .schedulers
            .entry(service.id)
            .or_insert_with(|| service.scheduler.clone());
        let flow = NewFlow {
            key: &key,
            direction,
            hash,
            expected: 0.0,
            dscp: 0,
            among: &[],
        };
        let pick = scheduler.pick(&flow, &candidates);
        let Some(picked) = pick.index().and_then(|index| candidates.get(index)) else {
            let counters = &mut self.reading.services[service.id.index()];
            counters.offered_packets += 1;
            counters.unserved += 1;
            self.reading.drops[DropReason::NoInstance.index()] += 1;
            return false;
        };
        let slot = picked.slot;
        if self.moved.remove(&key) {
            self.reading.slots[slot.index()].expected_moves += 1;
        }
        self.pin(key, service.id, slot);
        if let Some(flow) = self.flows.get_mut(&key) {
            flow.opener = direction;
        }
        true
    }

    /// Drops a packet of the service. No instance took it.
    fn refuse(&mut self, service: ServiceId, reason: DropReason) -> bool {
        self.reading.services[service.index()].offered_packets += 1;
        self.reading.drops[reason.index()] += 1;
        false
    }

    /// Pins a flow to an instance, whatever a scheduler would say.
    pub fn pin(&mut self, key: FlowKey, service: ServiceId, slot: Slot) {
        self.reading.slots[slot.index()].new_flows += 1;
        let flow = Flow {
            service,
            slot,
            opener: Direction::Forward,
            pinned_at: self.now,
            packets: [0; 2],
            seen: self.now,
        };
        self.flows.insert(key, flow);
    }

    /// A flow ends.
    pub fn end(&mut self, key: &FlowKey) {
        self.flows.remove(key);
    }

    /// The flows in the table, and where they are pinned.
    pub fn pins(&self) -> impl Iterator<Item = (FlowKey, Slot)> {
        self.flows.iter().map(|(key, flow)| (*key, flow.slot))
    }

    /// Where that flow is pinned.
    pub fn pin_of(&self, key: &FlowKey) -> Option<Slot> {
        self.flows.get(key).map(|flow| flow.slot)
    }

    /// The instance takes at most so many packets out of its ring; a probe is one that it keeps.
    pub fn take(&mut self, slot: Slot, limit: usize) -> Vec<Tuple> {
        let Some(attachment) = self.attachments.get_mut(&slot) else {
            return Vec::new();
        };
        let limit = attachment.ring.len().min(limit);
        let taken: Vec<Tuple> = attachment.ring.drain(..limit).collect();
        let counters = &mut self.reading.slots[slot.index()];
        counters.consumed += taken.len() as u64 + std::mem::take(&mut attachment.probes);
        counters.ring_used = attachment.ring.len() as u64;
        attachment.taken += taken.len() as u64;
        taken
    }

    /// The instance gives packets back.
    pub fn give_back(&mut self, slot: Slot, packets: &[Tuple]) {
        let Some(attachment) = self.attachments.get_mut(&slot) else {
            return;
        };
        if attachment.failed || attachment.phase != Phase::Up {
            return;
        }
        let count = packets.len() as u64;
        let counters = &mut self.reading.slots[slot.index()];
        counters.back_packets += count;
        counters.originated += count.saturating_sub(attachment.taken);
        attachment.taken = attachment.taken.saturating_sub(count);
        if let Some(uplink) = self.reading.uplinks.first_mut() {
            uplink.sent_packets += count;
        }
        self.sent.extend_from_slice(packets);
    }

    /// What has left by the first uplink since the last call.
    pub fn take_sent(&mut self) -> Vec<Tuple> {
        std::mem::take(&mut self.sent)
    }

    pub(super) fn list(&self, id: u64, filter: &FlowFilter, limit: usize) -> SwitchEvent {
        let rows = self.flows.iter().map(|(key, flow)| FlowRow {
            key: *key,
            opener: flow.opener,
            service: flow.service,
            pins: [flow.slot; 2],
            pinned_at: [Some(flow.pinned_at); 2],
            packets: flow.packets,
            bytes: [0; 2],
            idle: self.now.since(flow.seen),
            tcp: TcpState::None,
            returned: None,
            dropped: None,
        });
        let mut rows: Vec<FlowRow> = rows.filter(|row| filter.matches(row)).collect();
        let complete = rows.len() <= limit;
        rows.truncate(limit);
        SwitchEvent::Flows {
            id,
            rows,
            rules: Vec::new(),
            complete,
        }
    }
}
