//! Rules of a fast path as the worker and the writer of rules name them, which flows may have one, and where they are.

use flow_table::FlowTable;
use model::{Direction, FlowKey, FlowKeyV4, InstanceId, InstanceState, Nanos, Slot, UplinkId, VipMode};
use switch::{Edits, ServicePlan};

use crate::frame::FrameMemory;
use crate::port::Port;
use crate::table_memory::TableMemory;
use crate::worker::context::{Ports, View};
use crate::{Ends, WorkerCounters};

/// The entrance of an uplink.
pub(crate) fn entrance_of_uplink(uplink: UplinkId) -> u32 {
    uplink.index() as u32
}

/// The entrance of the instance in a slot.
pub(crate) fn entrance_of_slot(slot: Slot) -> u32 {
    (UplinkId::LIMIT + slot.index()) as u32
}

/// Of which pair of passages they are: towards the instance, and back.
pub(crate) fn passages_of(pair: u16) -> [u32; 2] {
    [2 * u32::from(pair), 2 * u32::from(pair) + 1]
}

/// A flow that has a rule in each direction, under the number of a pair of passages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rule {
    pub(crate) pair: u16,
    pub(crate) key: FlowKey,
    pub(crate) hash: u64,
    /// The direction of packets to the instance.
    pub(crate) inward: Direction,
    pub(crate) slot: Slot,
    pub(crate) instance: InstanceId,
    pub(crate) uplink: UplinkId,
}

/// What the writer of rules has the worker do.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Order {
    /// The rule is written, shut.
    Open(Rule),
    /// It is to be shut.
    Shut(u16),
    /// It is removed, and takes nothing any more: it is counted for the last time.
    Close(u16),
}

/// A flow that was drawn, or has begun.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Drawn {
    pub(crate) key: FlowKey,
    pub(crate) hash: u64,
    pub(crate) inward: Direction,
    pub(crate) slot: Slot,
    pub(crate) instance: InstanceId,
    pub(crate) uplink: UplinkId,
    /// Of both directions.
    pub(crate) packets: u64,
    pub(crate) bytes: u64,
    /// It has just begun.
    pub(crate) is_new: bool,
    pub(crate) is_open: bool,
    pub(crate) is_flooded: bool,
}

/// What the worker tells the writer of rules.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Note {
    /// A flow without a rule that may have one.
    Drawn(Drawn),
    /// What a flow has brought a while after it began, in both directions and on both paths.
    Brought {
        uplink: UplinkId,
        packets: u64,
        bytes: u64,
    },
    /// A rule is shut: it is to be removed.
    Shut(u16),
    /// The pair is free.
    Closed(u16),
}

/// The entrances of a rule's passages.
pub(crate) fn entrances(rule: &Rule) -> [u32; 2] {
    [entrance_of_uplink(rule.uplink), entrance_of_slot(rule.slot)]
}

/// Whether the flow is pinned as its rule says, and may have one.
pub(crate) fn is_pinned<M: FrameMemory>(
    rule: &Rule,
    table: &mut FlowTable<TableMemory>,
    cx: &PathContext<'_, M>,
) -> bool {
    let entry = table.lookup(&rule.key, rule.hash);
    entry.is_some_and(|entry| table.pins(entry) == [rule.slot; 2])
        && cx.eligible(rule.slot, rule.uplink) == Some(rule.instance)
}

/// What rules are looked at with.
pub(crate) struct PathContext<'a, M: FrameMemory> {
    pub(crate) now: Nanos,
    pub(crate) counters: &'a WorkerCounters,
    pub(crate) ends: &'a Ends,
    pub(crate) view: &'a View,
    pub(crate) ports: &'a Ports<M>,
    pub(crate) is_captured: bool,
}

impl<M: FrameMemory> PathContext<'_, M> {
    pub(crate) fn service_of(&self, slot: Slot) -> Option<&ServicePlan> {
        let row = self.view.plan.slot(slot)?;
        self.view.plan.service(row.service)
    }

    /// Whether an address is one that the instance there has for itself.
    pub(crate) fn is_of_slot(&self, slot: Slot, address: &std::net::IpAddr) -> bool {
        let vip = self.service_of(slot).and_then(|service| service.vip.as_ref());
        vip.is_some_and(|vip| vip.addresses.contains(address)) || self.ends.own(slot).contains(address)
    }

    /// The instance of a slot, where its flows that come by that uplink may have rules.
    pub(crate) fn eligible(&self, slot: Slot, uplink: UplinkId) -> Option<InstanceId> {
        if !slot.is_some() || self.is_captured {
            return None;
        }
        let plan = &self.view.plan;
        let row = plan.slot(slot)?;
        let service = plan.service(row.service)?;
        let is_plain = service.symmetric
            && !service.relaxed
            && !service.moves_state
            && service.external.is_none()
            && service.next.is_none()
            && plan.previous(service.id).is_none()
            && !service.affinity_key.reads_content()
            && service.vip.as_ref().is_none_or(|vip| vip.mode == VipMode::L2)
            && service.uplinks.first() == Some(&uplink)
            && row.edits == Edits::default();
        let instance = self.ports.instances[slot].as_ref()?;
        let is_here = instance.id == Some(row.instance) && instance.end.is_some();
        let is_kernels = matches!(self.ports.uplinks[uplink].as_deref(), Some(Port::Kernel(_)));
        (is_plain && is_here && is_kernels && row.state == InstanceState::Active).then_some(row.instance)
    }
}

/// Pairs by their flow, with open addressing.
#[derive(Debug)]
pub(crate) struct ByFlow {
    /// The pair's number and one, 0 for none, and its flow.
    places: Vec<(u16, u64, FlowKey)>,
}

impl ByFlow {
    const NONE: (u16, u64, FlowKey) = (
        0,
        0,
        FlowKey::V4(FlowKeyV4 {
            a: [0; 4],
            b: [0; 4],
            a_port: 0,
            b_port: 0,
            vlan: 0,
            protocol: 0,
            zero: 0,
        }),
    );

    /// For so many pairs, at most.
    pub(crate) fn new(pairs: usize) -> ByFlow {
        ByFlow {
            places: vec![ByFlow::NONE; (2 * pairs.max(1)).next_power_of_two()],
        }
    }

    fn mask(&self) -> usize {
        self.places.len() - 1
    }

    pub(crate) fn find(&self, key: &FlowKey, hash: u64) -> Option<u16> {
        let mut at = hash as usize & self.mask();
        loop {
            let (pair, _, of) = self.places.get(at)?;
            let pair = pair.checked_sub(1)?;
            if of == key {
                return Some(pair);
            }
            at = (at + 1) & self.mask();
        }
    }

    /// Puts a pair in, whose flow has none.
    pub(crate) fn put(&mut self, pair: u16, key: &FlowKey, hash: u64) {
        let mut at = hash as usize & self.mask();
        while self.places[at].0 != 0 {
            at = (at + 1) & self.mask();
        }
        self.places[at] = (pair + 1, hash, *key);
    }

    /// Takes a pair out, and moves up those behind it that it has kept from their place.
    pub(crate) fn take_out(&mut self, pair: u16, hash: u64) {
        let mask = self.mask();
        let mut hole = hash as usize & mask;
        while self.places[hole].0 != pair + 1 {
            if self.places[hole].0 == 0 {
                return;
            }
            hole = (hole + 1) & mask;
        }
        let mut at = hole;
        loop {
            at = (at + 1) & mask;
            let (next, home, _) = self.places[at];
            if next == 0 {
                self.places[hole] = ByFlow::NONE;
                return;
            }
            let home = home as usize & mask;
            if at.wrapping_sub(home) & mask >= at.wrapping_sub(hole) & mask {
                self.places[hole] = self.places[at];
                hole = at;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn key(number: u16) -> FlowKey {
        FlowKey::V4(FlowKeyV4 {
            a_port: number,
            ..FlowKeyV4::default()
        })
    }

    proptest! {
        /// Against a map, with hashes that collide.
        #[test]
        fn a_pair_is_found_until_it_is_taken_out(
            steps in proptest::collection::vec((0..24_u16, 0..2_u8), 0..400),
            spread in 1..40_u64,
        ) {
            let mut all = ByFlow::new(24);
            let mut model = BTreeMap::new();
            let hash = |flow: u16| u64::from(flow) % spread * 7;
            for (flow, what) in steps {
                if what == 0 && !model.contains_key(&flow) {
                    all.put(flow, &key(flow), hash(flow));
                    model.insert(flow, flow);
                } else if what == 1 && model.remove(&flow).is_some() {
                    all.take_out(flow, hash(flow));
                }
                for flow in 0..24 {
                    prop_assert_eq!(all.find(&key(flow), hash(flow)), model.get(&flow).copied());
                }
            }
        }
    }
}
