//! Flows that are known by what their packets carry, where a driver has such.

use std::collections::{BTreeMap, BTreeSet};

use model::{AffinityKey, InstanceState, Slot, Tuple};

use super::{Conforming, SLOTS, packet_of};

/// The ports whose packets carry something: see [`frame_of`](super::frame_of).
pub(super) const GTP_U: u16 = 2152;
pub(super) const ESP_IN_UDP: u16 = 4500;

/// Flows of the case, and how many pairs of addresses and ports carry each.
const FLOWS: u8 = 30;
const CARRIERS: u8 = 4;

/// Sends a packet of each flow by each carrier. Gives the slots that each flow came to.
fn send(of: &mut Conforming<'_>, port: u16, flows: std::ops::Range<u8>) -> BTreeMap<u8, BTreeSet<Slot>> {
    of.given.clear();
    let packet = |flow: u8, carrier: u8| Tuple {
        src_port: u16::from_be_bytes([flow, carrier]),
        dst_port: port,
        ..packet_of(carrier.into())
    };
    let packets = flows.flat_map(|flow| (0..CARRIERS).map(move |carrier| packet(flow, carrier)));
    let packets: Vec<Tuple> = packets.collect();
    of.bed.offer(&packets);
    of.until("every packet is at an instance", |of| {
        of.given.values().map(Vec::len).sum::<usize>() >= packets.len()
    });
    let mut slots: BTreeMap<u8, BTreeSet<Slot>> = BTreeMap::new();
    for (slot, given) in &of.given {
        for tuple in given {
            let [flow, _] = tuple.src_port.to_be_bytes();
            slots.entry(flow).or_default().insert(*slot);
        }
    }
    of.give_all_back();
    slots
}

pub(super) fn flows_inside_are_pinned(of: &mut Conforming<'_>) {
    are_pinned(of, AffinityKey::Inner, GTP_U);
}

pub(super) fn associations_are_pinned(of: &mut Conforming<'_>) {
    are_pinned(of, AffinityKey::Spi, ESP_IN_UDP);
}

fn are_pinned(of: &mut Conforming<'_>, key: AffinityKey, port: u16) {
    if !of.bed.switch().capabilities().affinity_keys.contains(&key) {
        return;
    }
    of.plan.services[0].affinity_key = key;
    of.plan.services[0].matches.dst_port = Some(port..=port);
    for slot in SLOTS {
        of.add(slot);
    }
    let first = send(of, port, 1..FLOWS);
    assert!(first.values().all(|slots| slots.len() == 1), "{first:?}");
    let used: BTreeSet<Slot> = first.values().flatten().copied().collect();
    assert_eq!(used.len(), SLOTS.len(), "{first:?}");
    // While one drains, its flows stay, and new ones go elsewhere.
    of.set_state(SLOTS[0], Some(InstanceState::Draining));
    assert_eq!(send(of, port, 1..FLOWS), first);
    let second = send(of, port, FLOWS..2 * FLOWS);
    let is_elsewhere = |slots: &BTreeSet<Slot>| slots.len() == 1 && !slots.contains(&SLOTS[0]);
    assert!(second.values().all(is_elsewhere), "{second:?}");
}
