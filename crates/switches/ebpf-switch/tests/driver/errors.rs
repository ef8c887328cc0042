//! ICMP errors: to the instance whose packet they quote.

use model::{InstanceState, Slot};
use switch::Switch;

use crate::bed::{Bed, available};
use crate::frames::{ACK, SYN, icmp_error, icmp6_error, tcp};

const VIP: &str = "10.0.0.100";
const VIP6: &str = "2001:db8::100";

#[test]
fn icmp_errors_reach_the_instance_whose_packet_they_quote() {
    if !available() {
        return;
    }
    let mut bed = Bed::with_two(|_, _| {});
    let server = "10.0.0.100:80";
    for port in 4000..4008 {
        let client = format!("198.51.100.7:{port}");
        let (slot, _) = bed.sent(&tcp(&client, server, SYN));
        let answer = tcp(server, &client, SYN | ACK);
        let (other, _) = bed.sent(&icmp_error("203.0.113.1", VIP, &answer));
        assert_eq!(other, slot);
    }
    // One about a packet that no service sends is no instance's.
    let unknown = tcp("10.0.0.100:81", "198.51.100.7:9", ACK);
    bed.turn();
    let before = bed.reading.offered();
    bed.world.wire.send(&icmp_error("203.0.113.1", VIP, &unknown));
    bed.sent(&tcp("198.51.100.7:5000", server, SYN));
    bed.turn();
    assert_eq!(bed.reading.offered(), before + 1);
    assert!(bed.taken().is_empty());
    bed.switch.stop();
}

/// An error quotes eight bytes after the IP header. It finds its flow while the next run takes over, too; and if nobody
/// knows the flow any more, it goes where the flow's next packet goes.
#[test]
fn icmp_errors_find_their_flow_after_a_restart() {
    if !available() {
        return;
    }
    let mut bed = Bed::with_two(|_, _| {});
    let flow = |at: u16| {
        if at.is_multiple_of(2) {
            (format!("198.51.100.7:{}", 4000 + at), "10.0.0.100:80")
        } else {
            (format!("[2001:db8:1::7]:{}", 4000 + at), "[2001:db8::100]:443")
        }
    };
    let error = |at: u16| {
        let (client, server) = flow(at);
        let answer = tcp(server, &client, SYN | ACK);
        if at.is_multiple_of(2) {
            icmp_error("203.0.113.1", VIP, &answer)
        } else {
            icmp6_error("2001:db8:9::1", VIP6, &answer)
        }
    };
    let slots: Vec<Slot> = (0..12)
        .map(|at| {
            let (client, server) = flow(at);
            bed.sent(&tcp(&client, server, SYN)).0
        })
        .collect();
    assert!(slots.contains(&Slot(0)) && slots.contains(&Slot(1)));
    let all_arrive = |bed: &mut Bed, when: &str| {
        for (at, slot) in (0..).zip(&slots) {
            assert_eq!(bed.sent(&error(at)).0, *slot, "{when}: flow {at}");
        }
    };
    all_arrive(&mut bed, "at first");
    bed.switch.leave();
    all_arrive(&mut bed, "while nobody is there");
    bed.switch = bed.world.start_switch();
    all_arrive(&mut bed, "before the next run has a plan");
    for slot in [Slot(0), Slot(1)] {
        bed.attach(slot);
        bed.set_state(slot, Some(InstanceState::Active));
    }
    all_arrive(&mut bed, "once it has one");
    // Of these, nobody knows the flow.
    for at in 100..112 {
        let (slot, _) = bed.sent(&error(at));
        let (client, server) = flow(at);
        assert_eq!(bed.sent(&tcp(&client, server, ACK)).0, slot, "flow {at}");
    }
    bed.switch.stop();
}
