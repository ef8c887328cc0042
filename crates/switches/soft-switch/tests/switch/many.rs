//! As many instances as the promise says.

use std::collections::HashMap;

use model::{InstanceState, Match, Nanos, Slot};
use switch::{PortKind, PortSpec, SwitchEvent, SwitchRequest};

use crate::bed::{Bed, Function, echo, service, stamp, udp_flows, unstamped};

#[test]
fn two_hundred_and_fifty_six_instances_are_attached_at_once_and_all_serve() {
    const COUNT: u16 = 256;
    let mut bed = Bed::with(2, 1, vec![service(0, &[0], Match::default())], |_| {});
    let functions = Function::start_many(bed.directory.path(), 0..COUNT.into(), 1, echo);
    bed.functions.push(functions);
    for slot in 0..COUNT {
        bed.set_state(slot, 0, InstanceState::Standby);
    }
    bed.publish();
    for slot in 0..COUNT {
        let port = PortSpec {
            ring_slots: 64,
            deadline: Nanos::from_secs(20),
            ..PortSpec::new(
                PortKind::Memif,
                Function::socket(bed.directory.path(), slot.into()),
            )
        };
        bed.ask(crate::bed::attach(slot, 0, port));
    }
    bed.until("all are attached", |bed| {
        assert!(
            !bed.saw(|e| matches!(e, SwitchEvent::AttachFailed { .. })),
            "{:?}",
            bed.events
        );
        bed.events
            .iter()
            .filter(|e| matches!(e, SwitchEvent::Attached { .. }))
            .count()
            == usize::from(COUNT)
    });
    for slot in 0..COUNT {
        bed.set_state(slot, 0, InstanceState::Active);
    }
    bed.publish();
    let frames = udp_flows(1024);
    let mut instance_of: HashMap<Vec<u8>, u8> = HashMap::new();
    for _ in 0..3 {
        for burst in frames.chunks(512) {
            bed.send(0, burst.iter().map(Vec::as_slice));
            for frame in bed.take_all(0, burst.len()) {
                let before = *instance_of.entry(unstamped(&frame)).or_insert(stamp(&frame));
                assert_eq!(before, stamp(&frame));
            }
        }
    }
    for number in 0..=255 {
        let flows = instance_of.values().filter(|n| **n == number).count();
        // Round-robin, each worker by itself.
        assert!((2..=6).contains(&flows), "{flows} of 1024 flows on {number}");
    }
    // All leave together.
    bed.plan.slots.fill(None);
    bed.publish();
    bed.events.clear();
    for slot in 0..COUNT {
        bed.ask(SwitchRequest::Detach(Slot(slot)));
    }
    bed.until("all are removed", |bed| {
        bed.events
            .iter()
            .filter(|e| matches!(e, SwitchEvent::Detached { outstanding: 0, .. }))
            .count()
            == usize::from(COUNT)
    });
    bed.assert_accounts_close();
    assert_eq!(bed.reading.dropped(), 0);
    bed.finish();
}
