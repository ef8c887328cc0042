//! What the switch tells the network of addresses by itself.

use std::net::IpAddr;
use std::ops::ControlFlow;

use model::UplinkId;
use packet_socket::PacketSocket;
use switch::{Switch as _, SwitchEvent, SwitchRequest};

use crate::bed::Bed;
use crate::kept::Kept;
use crate::kernel::{World, attach, available, service, switch_with};
use crate::kernel_contract::tap;

/// An address of the instance's own.
const OWN: [u8; 4] = [10, 0, 1, 1];

/// Whether frames say where an address is: of IPv4 by a gratuitous ARP, of IPv6 by an unsolicited advertisement.
fn tells(frame: &[u8], address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => {
            frame[12..14] == [8, 6] && frame[28..32] == v4.octets() && frame[38..42] == v4.octets()
        }
        IpAddr::V6(v6) => frame[12..14] == [0x86, 0xdd] && frame[54] == 136 && frame[62..78] == v6.octets(),
    }
}

/// The announcements of all these addresses come to the network.
fn until_announced(bed: &mut Bed, wire: &mut PacketSocket, addresses: &[IpAddr]) {
    let mut missing = addresses.to_vec();
    bed.until("all are announced", |_| {
        let (receiver, _) = wire.rings();
        receiver.take(usize::MAX, |frame| {
            missing.retain(|address| !tells(frame.bytes, *address));
            ControlFlow::Continue(())
        });
        receiver.release();
        missing.is_empty()
    });
}

/// What came to the network before is no announcement of what follows.
fn discard(wire: &mut PacketSocket) {
    let (receiver, _) = wire.rings();
    receiver.take(usize::MAX, |_| ControlFlow::Continue(()));
    receiver.release();
}

#[test]
fn addresses_are_announced_when_neighbours_may_not_know_them() {
    if !available() {
        return;
    }
    let mut world = World::new();
    let mut wire = tap(&world.net, "net0");
    let kept = Kept::start();
    let of_service = service().vip.unwrap().addresses;
    let all = [of_service.clone(), vec![OWN.into()]].concat();
    // The uplink is there with a plan.
    let mut bed = switch_with(1, 1, service(), kept.run(), |_| vec![OWN.into()]);
    until_announced(&mut bed, &mut wire, &of_service);
    // An instance comes.
    world.start_instance(0, &["10.0.1.1/32"]);
    attach(&mut bed, 0);
    until_announced(&mut bed, &mut wire, &[OWN.into()]);
    // The uplink comes back.
    world.host.ip("link set up0 down");
    bed.until("the uplink is down", |bed| {
        bed.saw(|e| matches!(e, SwitchEvent::UplinkDown { .. }))
    });
    discard(&mut wire);
    world.host.ip("link set up0 up");
    until_announced(&mut bed, &mut wire, &all);
    // Another run takes over.
    bed.switch.leave();
    discard(&mut wire);
    bed.run_again(|config| config.keep = kept.run());
    bed.ask(SwitchRequest::OpenUplink(UplinkId(0)));
    until_announced(&mut bed, &mut wire, &all);
}
