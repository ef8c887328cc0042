//! Flows that share an instance, where a driver has such.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use model::{AffinityKey, InstanceState, Slot, Tuple};

use super::{Conforming, SLOTS, packet_of};

/// Clients of the case, and flows of each.
const CLIENTS: u32 = 24;
const FLOWS: u16 = 4;

/// A packet of a client's flow.
fn packet(client: u32, flow: u16) -> Tuple {
    Tuple {
        src_port: 2000 + flow,
        ..packet_of(client)
    }
}

/// Sends a packet of each of these flows of all clients. Gives the slots that each client's came to.
fn send(of: &mut Conforming<'_>, flows: std::ops::Range<u16>) -> BTreeMap<IpAddr, BTreeSet<Slot>> {
    of.given.clear();
    let packets = (0..CLIENTS).flat_map(|client| flows.clone().map(move |flow| packet(client, flow)));
    let packets: Vec<Tuple> = packets.collect();
    of.bed.offer(&packets);
    of.until("every packet is at an instance", |of| {
        of.given.values().map(Vec::len).sum::<usize>() >= packets.len()
    });
    let mut slots: BTreeMap<IpAddr, BTreeSet<Slot>> = BTreeMap::new();
    for (slot, given) in &of.given {
        for tuple in given {
            slots.entry(tuple.src).or_default().insert(*slot);
        }
    }
    of.give_all_back();
    slots
}

pub(super) fn flows_of_a_client_share_an_instance(of: &mut Conforming<'_>) {
    let keys = of.bed.switch().capabilities().affinity_keys;
    let Some(key) = keys.iter().find(|key| **key != AffinityKey::Flow) else {
        return;
    };
    of.plan.services[0].affinity_key = *key;
    for slot in SLOTS {
        of.add(slot);
    }
    let first = send(of, 0..FLOWS);
    assert!(first.values().all(|slots| slots.len() == 1), "{first:?}");
    let used: BTreeSet<Slot> = first.values().flatten().copied().collect();
    assert_eq!(used.len(), SLOTS.len(), "{first:?}");
    // While one drains, its flows stay, and its clients' new ones go elsewhere together.
    of.set_state(SLOTS[0], Some(InstanceState::Draining));
    assert_eq!(send(of, 0..FLOWS), first);
    let second = send(of, FLOWS..2 * FLOWS);
    for (client, slots) in &first {
        let later = &second[client];
        if slots.contains(&SLOTS[0]) {
            assert!(
                later.len() == 1 && !later.contains(&SLOTS[0]),
                "{client}: {later:?}"
            );
        } else {
            assert_eq!(later, slots, "{client}");
        }
    }
}
