//! Instances that speak for somebody else.

use model::{DropReason, Slot, protocol};
use switch::Switch;

use crate::bed::{Bed, available};
use crate::frames::{discovery, fragment, icmp_error, udp};

const VIP: &str = "10.0.0.100";
const VIP6: &str = "2001:db8::100";

#[test]
fn a_source_that_is_not_its_own_is_dropped() {
    if !available() {
        return;
    }
    let mut bed = Bed::with_two(|_, _| {});
    let (client, server) = ("198.51.100.7:4000", "10.0.0.100:80");
    let (slot, _) = bed.sent(&udp(client, server, b"question"));
    let other = Slot(1 - slot.0);
    let mut expected = 0;
    for (from, frame) in [
        (slot, udp("10.0.0.101:80", client, b"another address")),
        (slot, udp(client, server, b"as the client")),
        (other, udp(server, client, b"in the other's flow")),
        (
            other,
            udp(
                "10.0.0.100:999",
                client,
                b"a connection of its own, which it may not open",
            ),
        ),
    ] {
        bed.world.instances[&from].tap.send(&frame);
        expected += 1;
        bed.dropped(DropReason::Spoofed, expected);
    }
    bed.world.instances[&slot].tap.send(&{
        let mut arp = udp(server, client, b"");
        arp[12..14].copy_from_slice(&[8, 6]);
        arp
    });
    bed.dropped(DropReason::Other, 1);
    assert!(bed.received().is_empty());
    bed.switch.stop();
}

/// What a program could send that had broken out of its container: frames as it likes, from addresses of its own.
#[test]
fn an_instance_breaks_nothing_of_another_one() {
    if !available() {
        return;
    }
    let mut bed = Bed::with_two(|world, _| {
        for port in &mut world.config.ports {
            port.egress = true;
        }
    });
    let (client, server) = ("198.51.100.7:4000", "10.0.0.100:80");
    let question = udp(client, server, b"question");
    let (slot, _) = bed.sent(&question);
    let other = Slot(1 - slot.0);
    let all = [
        udp(server, client, b"answer"),
        fragment(server, client, 7, 0, true, &[7; 16]),
        icmp_error(VIP, "198.51.100.7", &question),
    ];
    for (count, frame) in (1..).zip(&all) {
        bed.world.instances[&other].tap.send(frame);
        bed.dropped(DropReason::Spoofed, count);
    }
    // It says that it has the address of another host; also behind options for the receiver.
    let advertisement = discovery(136, VIP6, "2001:db8::9", "2001:db8::77");
    let mut behind = advertisement.clone();
    behind[20] = 60;
    behind.splice(54..54, [protocol::ICMPV6, 0, 1, 4, 0, 0, 0, 0]);
    let payload = (behind.len() - 54) as u16;
    behind[18..20].copy_from_slice(&payload.to_be_bytes());
    let redirect = discovery(137, VIP6, "2001:db8::9", "2001:db8::77");
    for (count, frame) in (1..).zip([advertisement, behind, redirect]) {
        bed.world.instances[&other].tap.send(&frame);
        bed.dropped(DropReason::Other, count);
    }
    assert!(bed.received().is_empty());
    // The one whose flow it is may do all that is of its flow.
    for frame in &all {
        bed.world.instances[&slot].tap.send(frame);
        let mut came = Vec::new();
        bed.until("its own leaves", |bed| {
            came.extend(bed.received());
            !came.is_empty()
        });
    }
    bed.switch.stop();
}

/// Fragments after the first one have no ports. What an instance sends with ports of its choice decides neither where a
/// client's fragments go nor whether another instance's leave.
#[test]
fn an_instance_changes_no_datagram_of_a_client_or_of_another_one() {
    if !available() {
        return;
    }
    let mut bed = Bed::with_two(|_, _| {});
    let server = "10.0.0.100:80";
    let client = |port: u16| format!("198.51.100.7:{port}");
    let (its, _) = bed.sent(&udp(&client(4000), server, b"question"));
    let (port, other) = (4001..4100)
        .map(|port| (port, bed.sent(&udp(&client(port), server, b"question")).0))
        .find(|(_, slot)| *slot != its)
        .unwrap();
    let (ours, theirs) = (client(4000), client(port));
    let first = |src: &str, dst: &str, id: u16| fragment(src, dst, id, 0, true, &[1; 16]);
    let last = |src: &str, dst: &str, id: u16| fragment(src, dst, id, 24, false, &[2; 8]);
    let leaves = |bed: &mut Bed, slot: Slot, frame: &[u8]| {
        bed.world.instances[&slot].tap.send(frame);
        bed.until("it leaves", |bed| {
            bed.received().iter().any(|got| got[14..] == frame[14..])
        });
    };

    // As the client, in a flow of its own.
    assert_eq!(bed.sent(&first(&ours, server, 7)).0, its);
    bed.world.instances[&other].tap.send(&first(&theirs, server, 7));
    bed.dropped(DropReason::Spoofed, 1);
    assert_eq!(bed.sent(&last(&ours, server, 7)).0, its);

    // With the address that all instances have, in a flow of its own.
    leaves(&mut bed, its, &first(server, &ours, 9));
    leaves(&mut bed, other, &first(server, &theirs, 9));
    leaves(&mut bed, its, &last(server, &ours, 9));
    leaves(&mut bed, other, &last(server, &theirs, 9));

    // The end of what another one has begun.
    leaves(&mut bed, its, &first(server, &ours, 11));
    bed.world.instances[&other].tap.send(&last(server, &ours, 11));
    bed.dropped(DropReason::FragmentTimeout, 1);
    assert!(bed.received().is_empty());
    leaves(&mut bed, its, &last(server, &ours, 11));

    // As many datagrams as are known at a time, and more.
    assert_eq!(bed.sent(&first(&ours, server, 13)).0, its);
    for id in 0..6000 {
        bed.world.instances[&other].tap.send(&first(server, &theirs, id));
        bed.received();
    }
    assert_eq!(bed.sent(&last(&ours, server, 13)).0, its);
    bed.switch.stop();
}
