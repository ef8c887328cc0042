//! Instances with kernel ports that speak for somebody else.

use std::net::{Ipv6Addr, SocketAddr};

use model::{DropReason, InstanceState};
use packet::build::Frame;

use crate::bed::Bed;
use crate::kernel::{VIP, VIP_V6, World, attach, available, service, switch_changed};
use crate::kernel_contract::{send_all, tap};

/// What a program could send that had broken out of its container: frames as it likes, from addresses of its own.
#[test]
fn an_instance_breaks_nothing_of_another_one() {
    if !available() {
        return;
    }
    let client: SocketAddr = "10.0.0.9:4000".parse().unwrap();
    let far: SocketAddr = "10.0.0.9:5000".parse().unwrap();
    let vip: SocketAddr = format!("{VIP}:80").parse().unwrap();
    let other_port: SocketAddr = format!("{VIP}:81").parse().unwrap();
    let packet = |from: SocketAddr, to: SocketAddr| {
        let mut frame = Frame::udp(from, to, &[7; 32]).unwrap();
        frame.dst_mac = [0x42, 0, 0, 0, 0, 2];
        frame.to_vec().unwrap()
    };
    let error = |about: &[u8]| {
        let quoted = &about[14..42];
        let frame = Frame::icmp(vip.ip(), client.ip(), 3, 3, [0; 4], quoted).unwrap();
        frame.to_vec().unwrap()
    };
    let first_fragment = |mut frame: Vec<u8>| {
        frame[20] |= 0x20;
        frame[24..26].fill(0);
        frame
    };
    // What follows that one.
    let later_fragment = |mut frame: Vec<u8>| {
        frame[21] = 5;
        frame[24..26].fill(0);
        frame
    };
    // It says that it has the address of another host.
    let advertisement = || {
        let target: [u8; 16] = "2001:db8::77".parse::<Ipv6Addr>().unwrap().octets();
        let body = [&target[..], &[2, 1, 2, 0, 0, 0, 0, 0x66]].concat();
        let (from, to) = (VIP_V6.parse().unwrap(), "2001:db8::9".parse().unwrap());
        let frame = Frame::icmp(from, to, 136, 0, [0x20, 0, 0, 0], &body).unwrap();
        frame.to_vec().unwrap()
    };
    for egress in [true, false] {
        let mut world = World::quiet();
        let mut bed = switch_changed(1, 2, service(), |config| {
            let places = config.kernel_ports.places.iter_mut();
            places.for_each(|place| place.egress = egress);
        });
        let mut wire = tap(&world.net, "net0");
        for slot in 0..2 {
            world.start_instance(slot, &[]);
            attach(&mut bed, slot);
            bed.set_state(slot, 0, InstanceState::Active);
            bed.publish();
        }
        let question = packet(client, vip);
        send_all(&mut wire, std::iter::once(question.clone()));
        bed.until("the flow is pinned", |bed| {
            bed.reading.slots.iter().map(|of| of.new_flows).sum::<u64>() == 1
        });
        let its = u16::from(bed.reading.slots[1].new_flows == 1);
        let [mut own, mut strange] = [its, 1 - its].map(|slot| tap(&world.instances[&slot], "eth0"));
        let (answer, opening) = (packet(vip, client), packet(other_port, far));
        let mut spoofed = 0;
        for frame in [answer.clone(), first_fragment(answer.clone()), error(&question)] {
            send_all(&mut strange, std::iter::once(frame));
            spoofed += 1;
            bed.until("what is of another one's flow is dropped", |bed| {
                bed.drops(DropReason::Spoofed) == spoofed
            });
        }
        send_all(&mut own, std::iter::once(first_fragment(answer.clone())));
        let sent = |bed: &Bed| bed.reading.uplinks[0].sent_packets;
        bed.until("the first fragment leaves", |bed| sent(bed) == 1);
        // A datagram would be made from what both have sent.
        send_all(&mut strange, std::iter::once(later_fragment(answer.clone())));
        spoofed += 1;
        bed.until("what would end another one's datagram is dropped", |bed| {
            bed.drops(DropReason::Spoofed) == spoofed
        });
        send_all(&mut own, std::iter::once(later_fragment(answer.clone())));
        bed.until("its own end leaves", |bed| sent(bed) == 2);
        send_all(&mut strange, std::iter::once(advertisement()));
        bed.until("what speaks for another host is dropped", |bed| {
            bed.drops(DropReason::Other) == 1
        });
        let before = sent(&bed);
        // The one whose flow it is may do all that.
        for (count, frame) in (1..).zip([answer.clone(), first_fragment(answer), error(&question)]) {
            send_all(&mut own, std::iter::once(frame));
            bed.until("its own leaves", |bed| sent(bed) == before + count);
        }
        // A connection of its own it may open only where that is not forbidden.
        for frame in [opening.clone(), first_fragment(opening)] {
            let before = sent(&bed);
            send_all(&mut strange, std::iter::once(frame));
            spoofed += u64::from(!egress);
            bed.until("it leaves, or is dropped", |bed| {
                let left = sent(bed) - before;
                left == u64::from(egress) && bed.drops(DropReason::Spoofed) == spoofed
            });
        }
    }
}
