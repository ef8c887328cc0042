//! Pairs of interfaces whose instance, or that themselves, go away.

use interfaces::{Links, container_end, host_end};
use model::{DropReason, InstanceState, ServiceId, Slot};
use switch::{PortKind, PortSpec, Switch as _, SwitchEvent, SwitchRequest};

use crate::bed::{Bed, available};
use crate::frames::udp;

/// Whether both ends of the pair are in the namespace of the switch.
fn is_whole(bed: &Bed) -> bool {
    let prefix = &bed.world.config.prefix;
    let ends = [host_end(prefix, Slot(0)), container_end(prefix, Slot(0))];
    let mut links = Links::new().unwrap();
    ends.iter().all(|end| links.find(end).is_ok())
}

/// An instance can come and take flows as soon as the switch knows of the pair.
fn takes_an_instance(bed: &mut Bed) {
    bed.world.start_instance(Slot(0), &["10.0.0.100/32"]);
    bed.until("an instance is taken", |bed| {
        let attach = SwitchRequest::Attach {
            slot: Slot(0),
            service: ServiceId(0),
            port: PortSpec::new(PortKind::Kernel, ""),
        };
        bed.switch.request(attach).is_ok()
    });
    bed.until("it is attached", |bed| {
        let is_attached = |event: &SwitchEvent| matches!(event, SwitchEvent::Attached { slot: Slot(0), .. });
        bed.events.iter().any(is_attached)
    });
    bed.set_state(Slot(0), Some(InstanceState::Active));
    bed.switch.stop();
}

/// A container that ends before the switch has seen its interface come.
#[test]
fn the_pair_of_an_instance_that_ends_at_once_is_made_again() {
    if !available() {
        return;
    }
    let mut bed = Bed::with_two(|_, _| {});
    bed.ask(SwitchRequest::Detach(Slot(0)));
    bed.world.instances.clear();
    bed.until("it is there again", |bed| is_whole(bed));
    for _ in 0..5 {
        bed.events.clear();
        bed.world.start_instance(Slot(0), &["10.0.0.100/32"]);
        bed.world.instances.clear();
        // No turn in between.
        bed.ask(SwitchRequest::Detach(Slot(0)));
        bed.until("it is detached", |bed| {
            bed.events
                .iter()
                .any(|event| matches!(event, SwitchEvent::Detached { slot: Slot(0), .. }))
        });
        bed.until("it is there again", |bed| is_whole(bed));
    }
    takes_an_instance(&mut bed);
}

/// Somebody removes a pair that no instance has.
#[test]
fn a_pair_that_goes_without_an_instance_is_made_again() {
    if !available() {
        return;
    }
    let mut bed = Bed::new(crate::bed::World::new(1), crate::steering::service());
    bed.turn();
    bed.world.host.ip(&format!(
        "link delete {}",
        host_end(&bed.world.config.prefix, Slot(0))
    ));
    bed.until("it is there again", |bed| is_whole(bed));
    takes_an_instance(&mut bed);
    let is_detached = |event: &SwitchEvent| matches!(event, SwitchEvent::Detached { .. });
    assert!(!bed.events.iter().any(is_detached), "{:?}", bed.events);
}

/// The kernel drops what is redirected to an interface that is down, or to none, and counts it nowhere.
#[test]
fn packets_for_an_interface_that_is_down_are_dropped_and_counted() {
    if !available() {
        return;
    }
    let mut bed = Bed::with_two(|_, _| {});
    let packet = udp("198.51.100.7:4000", "10.0.0.100:80", b"x");
    let (slot, _) = bed.sent(&packet);
    for (what, is_up) in [("down", false), ("up", true)] {
        let namespace = &bed.world.instances[&slot].namespace;
        namespace.ip(&format!("link set eth0 {what}"));
        bed.until("the interface is seen", |bed| {
            let seen = bed
                .events
                .iter()
                .filter(|e| matches!(e, SwitchEvent::PortDown { .. }));
            seen.count() == 1
        });
        (0..20).for_each(|_| bed.turn());
        bed.taken();
        let before = (bed.reading.delivered(), bed.reading.dropped());
        (0..50).for_each(|_| bed.world.wire.send(&packet));
        bed.until("all are counted", |bed| {
            bed.reading.delivered() + bed.reading.dropped() == before.0 + before.1 + 50
        });
        let delivered = bed.reading.delivered() - before.0;
        let came: usize = bed.taken().values().map(Vec::len).sum();
        assert_eq!((delivered, came), if is_up { (50, 50) } else { (0, 0) });
    }
    // Its namespace ends under load.
    drop(bed.world.instances.remove(&slot));
    bed.until("its interface is gone", |bed| {
        bed.world.wire.send(&packet);
        let seen = bed
            .events
            .iter()
            .filter(|e| matches!(e, SwitchEvent::PortDown { .. }));
        seen.count() == 2
    });
    bed.turn();
    let (delivered, lost) = (
        bed.reading.delivered(),
        bed.reading.drops[DropReason::InstanceLost.index()],
    );
    (0..50).for_each(|_| bed.world.wire.send(&packet));
    bed.until("all are counted", |bed| {
        bed.reading.drops[DropReason::InstanceLost.index()] == lost + 50
    });
    assert_eq!(bed.reading.delivered(), delivered);
    let reading = &bed.reading;
    assert_eq!(
        reading.offered() + reading.originated(),
        reading.sent() + reading.delivered() + reading.dropped()
    );
    bed.switch.stop();
}
