//! What the switch tells the network of its services' addresses by itself.

use switch::{Switch as _, SwitchEvent};

use crate::bed::{Bed, World, available};
use crate::steering::service;

/// The announcements of both addresses come to the network.
fn until_announced(bed: &mut Bed) {
    let mut came = Vec::new();
    bed.until("both are announced", |bed| {
        came.extend(bed.received());
        let arp = came
            .iter()
            .any(|frame| frame[12..14] == [8, 6] && frame[28..32] == [10, 0, 0, 100]);
        let advertised = came
            .iter()
            .any(|frame| frame[12..14] == [0x86, 0xdd] && frame[54] == 136);
        arp && advertised
    });
}

#[test]
fn addresses_are_announced_when_neighbours_may_not_know_them() {
    if !available() {
        return;
    }
    // A plan brings them.
    let mut bed = Bed::new(World::new(1), service());
    until_announced(&mut bed);
    // The uplink comes back.
    bed.world.host.ip("link set up0 down");
    bed.until("the uplink is down", |bed| {
        bed.events
            .iter()
            .any(|e| matches!(e, SwitchEvent::UplinkDown { .. }))
    });
    bed.received();
    bed.world.host.ip("link set up0 up");
    until_announced(&mut bed);
    // Another run takes over.
    bed.switch.leave();
    bed.received();
    bed.switch = bed.world.start_switch();
    bed.publish();
    until_announced(&mut bed);
    bed.switch.stop();
}
