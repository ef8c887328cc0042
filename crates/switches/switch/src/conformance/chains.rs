//! Chains of services, where a driver has such: what one returns goes on to the next.

use std::collections::BTreeMap;

use model::{FlowKey, InstanceState, ServiceId, Slot, Tuple};

use super::{Conforming, FLOWS, SLOTS, packet_of};
use crate::{ServicePlan, SwitchReading};

/// Sends packets through the instances of one service and then through those of another one, until they are at the
/// network again. Gives where each flow was, in order.
fn pass(of: &mut Conforming<'_>, packets: &[Tuple], stations: [&[Slot]; 2]) -> BTreeMap<FlowKey, Vec<Slot>> {
    of.given.clear();
    of.bed.offer(packets);
    let mut found: BTreeMap<FlowKey, Vec<Slot>> = BTreeMap::new();
    for (place, station) in stations.into_iter().enumerate() {
        of.until("every packet is at an instance", |of| {
            let at = |slot: &Slot| of.given.get(slot).map_or(0, Vec::len);
            station.iter().map(at).sum::<usize>() == packets.len()
        });
        let given = std::mem::take(&mut of.given);
        for (slot, packets) in &given {
            assert!(
                packets.is_empty() || station.contains(slot),
                "{slot}: {packets:?}"
            );
            for packet in packets {
                found.entry(FlowKey::new(packet).0).or_default().push(*slot);
            }
        }
        if place == 0 {
            for (slot, packets) in &given {
                of.bed.give_back(*slot, packets);
            }
        } else {
            of.given = given;
            of.give_all_back();
        }
    }
    assert!(found.values().all(|slots| slots.len() == 2), "{found:?}");
    found
}

pub(super) fn flows_pass_each_service(of: &mut Conforming<'_>) {
    if !of.bed.switch().capabilities().chains {
        return;
    }
    let next = ServiceId(1);
    of.reading = SwitchReading::new(2, 1, of.reading.workers.len());
    let behind = ServicePlan {
        id: next,
        ..of.plan.services[0].clone()
    };
    of.plan.services[0].next = Some(next);
    of.plan.services.push(behind);
    of.publish();
    for slot in SLOTS {
        of.add(slot);
    }
    let (first, second) = SLOTS.split_at(1);
    let there: Vec<Tuple> = (0..FLOWS).map(packet_of).collect();
    let back: Vec<Tuple> = there
        .iter()
        .map(|of| Tuple {
            src: of.dst,
            dst: of.src,
            src_port: of.dst_port,
            dst_port: of.src_port,
            ..*of
        })
        .collect();
    let found = pass(of, &there, [first, second]);
    for slot in second {
        assert!(
            found.values().any(|slots| slots[1] == *slot),
            "{slot} has no flow"
        );
    }
    let reversed = |mut found: BTreeMap<FlowKey, Vec<Slot>>| {
        found.values_mut().for_each(|slots| slots.reverse());
        found
    };
    assert_eq!(reversed(pass(of, &back, [second, first])), found);
    // One that drains keeps its flows.
    of.set_state(second[0], Some(InstanceState::Draining));
    assert_eq!(pass(of, &there, [first, second]), found);
    let packets = 3 * u64::from(FLOWS);
    of.until("all is counted", |of| {
        of.reading.sent() >= packets && of.reading.in_flight() == 0
    });
    let offered: Vec<u64> = of.reading.services.iter().map(|of| of.offered_packets).collect();
    assert_eq!(offered, [packets; 2]);
    let sums = (
        of.reading.offered(),
        of.reading.sent(),
        of.reading.dropped(),
        of.reading.in_flight(),
    );
    assert_eq!(sums, (packets, packets, 0, 0));
}
