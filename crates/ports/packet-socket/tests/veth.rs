//! Packet sockets on real pairs of interfaces.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::net::UdpSocket;
use std::ops::ControlFlow;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use packet::offload::{Division, Offload, Transport};
use packet_socket::{Config, PacketSocket, SendError, Tag};
use real_parts::Namespace;

const CONFIG: Config = Config {
    slots: 64,
    frame_bytes: 1514,
};
const A_MAC: &str = "02:00:00:00:00:0a";
const B_MAC: &str = "02:00:00:00:00:0b";
const PATIENCE: Duration = Duration::from_secs(10);

/// Whether pairs of interfaces can be made here.
fn can_be_tested() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    real_parts::available("veth", (!is_root).then(|| "this is not root".to_owned()))
}

/// A pair of interfaces, `a` and `b`, each in a namespace.
fn pair() -> (Namespace, Namespace) {
    let (a, b) = (Namespace::new("a"), Namespace::new("b"));
    for of in [&a, &b] {
        // No frame but those of the test.
        of.set("ipv6/conf/default/disable_ipv6", "1");
    }
    a.ip(&format!(
        "link add name a0 address {A_MAC} type veth peer name b0 address {B_MAC} netns {}",
        b.name
    ));
    a.ip("link set a0 up");
    b.ip("link set b0 up");
    (a, b)
}

fn open(namespace: &Namespace, interface: &str) -> PacketSocket {
    namespace.within(|| PacketSocket::open(interface, CONFIG).unwrap())
}

/// A frame as it was received.
#[derive(Debug, PartialEq, Eq)]
struct Frame {
    bytes: Vec<u8>,
    tag: Option<Tag>,
    offload: Offload,
}

/// The next frames of a socket, and how many of them were left out.
fn receive(socket: &mut PacketSocket, wanted: usize) -> (Vec<Frame>, u32) {
    let (mut all, mut too_large) = (Vec::new(), 0);
    let began = Instant::now();
    while all.len() + (too_large as usize) < wanted && began.elapsed() < PATIENCE {
        let (receiver, _) = socket.rings();
        let taken = receiver.take(wanted, |frame| {
            all.push(Frame {
                bytes: frame.bytes.to_vec(),
                tag: frame.tag,
                offload: frame.offload,
            });
            ControlFlow::Continue(())
        });
        too_large += taken.too_large;
        receiver.release();
        std::thread::sleep(Duration::from_micros(100));
    }
    (all, too_large)
}

fn numbered(number: u32, len: usize) -> Vec<u8> {
    let mut frame = vec![0; len];
    frame[..6].copy_from_slice(&[2, 0, 0, 0, 0, 0xb]);
    frame[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 0xa]);
    frame[12..14].copy_from_slice(&[0x88, 0xb5]);
    frame[14..18].copy_from_slice(&number.to_be_bytes());
    frame
}

#[test]
fn frames_go_both_ways_in_order_many_times_around_the_ring() {
    if !can_be_tested() {
        return;
    }
    let (a, b) = pair();
    let (mut a, mut b) = (open(&a, "a0"), open(&b, "b0"));
    let mut number = 0;
    for _ in 0..40 {
        let burst: Vec<Vec<u8>> = (0..50)
            .map(|at| numbered(number + at, 60 + (number + at) as usize % 1455))
            .collect();
        number += 50;
        for _ in 0..2 {
            std::mem::swap(&mut a, &mut b);
            let (from, to) = (&mut a, &mut b);
            let (_, sender) = from.rings();
            burst.iter().for_each(|frame| sender.put(frame).unwrap());
            assert_eq!(sender.used(), 50);
            sender.send().unwrap();
            assert_eq!(sender.used(), 0);
            let (received, too_large) = receive(to, 50);
            let bytes: Vec<Vec<u8>> = received.into_iter().map(|frame| frame.bytes).collect();
            assert_eq!((&bytes, too_large), (&burst, 0));
        }
    }
    // Nobody receives what it has sent itself.
    for socket in [&mut a, &mut b] {
        assert!(!socket.rings().0.has_frames());
        assert_eq!(socket.monitor().take_statistics().unwrap().dropped, 0);
    }
    let (_, sender) = a.rings();
    assert_eq!(sender.put(&[0; 1515]), Err(SendError::TooLarge));
    assert_eq!(sender.put(&[]), Err(SendError::TooLarge));
    for number in 0..64 {
        sender.put(&numbered(number, 60)).unwrap();
    }
    assert_eq!(sender.put(&[0; 60]), Err(SendError::Full));
}

#[test]
fn frames_that_are_held_stay_in_the_ring_and_those_beyond_it_are_counted() {
    if !can_be_tested() {
        return;
    }
    let (a, b) = pair();
    let (mut a, mut b) = (open(&a, "a0"), open(&b, "b0"));
    let send = |a: &mut PacketSocket, numbers: std::ops::Range<u32>| {
        let (_, sender) = a.rings();
        numbers.for_each(|number| sender.put(&numbered(number, 100)).unwrap());
        sender.send().unwrap();
    };
    send(&mut a, 0..60);
    let (receiver, _) = b.rings();
    assert_eq!(receiver.available(100), 60);
    let mut count = 0;
    let taken = receiver.take(100, |_| {
        count += 1;
        if count == 30 {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    });
    assert_eq!((taken.frames, receiver.available(100)), (30, 30));
    // 60 of 64 slots are not the kernel's.
    send(&mut a, 60..80);
    let (receiver, _) = b.rings();
    assert_eq!(receiver.available(100), 34);
    let taken = receiver.take(100, |_| ControlFlow::Continue(()));
    assert_eq!(taken.frames, 34);
    assert!(!receiver.has_frames(), "slots that are held are not new");
    receiver.release();
    assert_eq!(b.monitor().take_statistics().unwrap().dropped, 16);
    assert_eq!(b.monitor().take_statistics().unwrap().dropped, 0);
    send(&mut a, 80..90);
    let (received, _) = receive(&mut b, 10);
    assert_eq!(received[0].bytes, numbered(80, 100));
}

#[test]
fn a_tag_that_the_kernel_takes_off_is_told() {
    if !can_be_tested() {
        return;
    }
    let (a, b) = pair();
    let (mut a, mut b) = (open(&a, "a0"), open(&b, "b0"));
    let plain = numbered(1, 100);
    let (_, sender) = a.rings();
    for ethertype in [0x8100_u16, 0x88a8] {
        let mut frame = plain[..12].to_vec();
        frame.extend_from_slice(&ethertype.to_be_bytes());
        frame.extend_from_slice(&0x6007_u16.to_be_bytes());
        frame.extend_from_slice(&plain[12..]);
        sender.put(&frame).unwrap();
    }
    sender.send().unwrap();
    let (received, _) = receive(&mut b, 2);
    for (frame, ethertype) in received.iter().zip([0x8100, 0x88a8]) {
        let control = 0x6007;
        assert_eq!(frame.tag, Some(Tag { ethertype, control }));
        assert_eq!(frame.bytes, plain);
    }
    assert_eq!(received.len(), 2);
}

/// Sends a datagram, or several in one packet, from the kernel's network at `b` to `a`.
fn send_datagram(b: &Namespace, bytes: usize, each: Option<i32>) {
    b.ip("addr add 10.9.0.2/24 dev b0");
    b.ip(&format!("neigh add 10.9.0.1 lladdr {A_MAC} dev b0"));
    b.within(|| {
        let socket = UdpSocket::bind("10.9.0.2:1000").unwrap();
        if let Some(each) = each {
            // SAFETY: the kernel reads a number that outlives the call.
            #[expect(unsafe_code)]
            let set = unsafe {
                libc::setsockopt(
                    socket.as_raw_fd(),
                    libc::SOL_UDP,
                    libc::UDP_SEGMENT,
                    (&raw const each).cast(),
                    size_of::<i32>() as u32,
                )
            };
            assert_eq!(set, 0);
        }
        let payload: Vec<u8> = (0..bytes).map(|at| (at % 251) as u8).collect();
        socket.send_to(&payload, "10.9.0.1:2000").unwrap();
    });
}

/// Whether the UDP checksum of a frame over IPv4 holds.
fn is_whole(frame: &[u8]) -> bool {
    let (src, dst) = (
        frame[26..30].try_into().unwrap(),
        frame[30..34].try_into().unwrap(),
    );
    let pseudo = packet::checksum::pseudo_v4(src, dst, 17, frame.len() - 34);
    packet::checksum::add(pseudo, packet::checksum::sum(&frame[34..])) == 0xffff
}

#[test]
fn a_checksum_that_the_kernel_leaves_to_a_card_can_be_completed() {
    if !can_be_tested() {
        return;
    }
    let (a, b) = pair();
    let mut a = open(&a, "a0");
    send_datagram(&b, 700, None);
    let (mut received, _) = receive(&mut a, 1);
    let frame = &mut received[0];
    assert!(!is_whole(&frame.bytes), "the kernel leaves it");
    assert!(frame.offload.partial.unwrap().complete(&mut frame.bytes));
    assert!(is_whole(&frame.bytes));
}

#[test]
fn a_packet_that_is_longer_than_a_slot_comes_whole_and_in_its_place() {
    if !can_be_tested() {
        return;
    }
    let (a, b) = pair();
    let mut a = open(&a, "a0");
    let mut other = open(&b, "b0");
    let between = |other: &mut PacketSocket, number| {
        let (_, sender) = other.rings();
        sender.put(&numbered(number, 60)).unwrap();
        sender.send().unwrap();
    };
    between(&mut other, 1);
    send_datagram(&b, 50_000, Some(1400));
    between(&mut other, 2);
    let (received, too_large) = receive(&mut a, 3);
    assert_eq!((received.len(), too_large), (3, 0));
    assert_eq!(received[0].bytes, numbered(1, 60));
    assert_eq!(received[2].bytes, numbered(2, 60));
    let Frame { bytes, offload, .. } = &received[1];
    assert_eq!(bytes.len(), 14 + 20 + 8 + 50_000);
    assert_eq!(offload.divide, Some((Transport::Udp, 1400)));
    let mut division = Division::new(bytes, *offload).unwrap();
    let (mut data, mut room) = (Vec::new(), vec![0; 1514]);
    while let Some(len) = division.next(bytes, &mut room) {
        assert!(is_whole(&room[..len]));
        data.extend_from_slice(&room[42..len]);
    }
    let expected: Vec<u8> = (0..50_000).map(|at| (at % 251) as u8).collect();
    assert_eq!(data, expected);
}

#[test]
fn the_kernel_ignores_what_is_for_a_second_mac_address() {
    if !can_be_tested() {
        return;
    }
    let (a, b) = pair();
    let mut at_a = open(&a, "a0");
    at_a.also_for([2, 0, 0, 0, 1, 0xa]).unwrap();
    a.ip("addr add 10.9.0.1/24 dev a0");
    b.ip("addr add 10.9.0.2/24 dev b0");
    let answers = |mac: &str| {
        b.ip(&format!(
            "neigh replace 10.9.0.1 lladdr {mac} dev b0 nud permanent"
        ));
        let ping = b.command("ping").args(["-c1", "-W1", "-q", "10.9.0.1"]).output();
        ping.unwrap().status.success()
    };
    assert!(answers(A_MAC), "the interface is its own");
    assert!(!answers("02:00:00:00:01:0a"));
    // Behind the first ping, and what the two ask each other before it.
    let is_for_it = |frame: &Frame| frame.bytes.starts_with(&[2, 0, 0, 0, 1, 0xa]);
    assert!((0..10).any(|_| receive(&mut at_a, 1).0.iter().any(is_for_it)));
}

#[test]
fn an_interface_that_goes_is_told() {
    if !can_be_tested() {
        return;
    }
    let (a, b) = pair();
    let mut socket = open(&a, "a0");
    assert!(socket.monitor().trouble().is_none());
    b.ip("link del b0");
    assert!(socket.monitor().trouble().is_some());
    let (_, sender) = socket.rings();
    sender.put(&numbered(1, 60)).unwrap();
    assert!(sender.send().is_err());
    let error = a
        .within(|| PacketSocket::open("a0", CONFIG).map(drop))
        .unwrap_err();
    assert!(error.to_string().contains("finding it"), "{error}");
}

/// A turn that was noted is finished, and any other did not happen. What came meanwhile is there.
#[test]
fn the_next_process_goes_on_with_what_is_in_the_rings() {
    const TURN: u64 = (3 << 32) + 7;
    if !can_be_tested() {
        return;
    }
    for unfinished in [None, Some(TURN), Some(TURN + 1)] {
        let (a, b) = pair();
        let (mut there, mut first) = (open(&a, "a0"), open(&b, "b0"));
        let kept = first.keep().unwrap();
        let numbers = |all: &[Frame]| -> Vec<u32> {
            let number = |frame: &Frame| u32::from_be_bytes(*frame.bytes[14..].first_chunk().unwrap());
            all.iter().map(number).collect()
        };
        let send = |by: &mut PacketSocket, of: std::ops::Range<u32>| {
            let (_, sender) = by.rings();
            of.for_each(|number| sender.put(&numbered(number, 60)).unwrap());
            sender.send().unwrap();
        };
        // Around the ring, in both directions.
        for round in 0..10 {
            send(&mut there, 10 * round..10 * round + 10);
            assert_eq!(receive(&mut first, 10).0.len(), 10);
            send(&mut first, 10 * round..10 * round + 10);
            assert_eq!(receive(&mut there, 10).0.len(), 10);
        }
        send(&mut there, 100..110);
        let (receiver, sender) = first.rings();
        let began = Instant::now();
        while receiver.available(10) < 10 && began.elapsed() < PATIENCE {
            std::thread::yield_now();
        }
        receiver.take(3, |_| ControlFlow::Continue(()));
        sender.put(&numbered(200, 60)).unwrap();
        sender.put(&numbered(201, 60)).unwrap();
        receiver.intend(TURN);
        sender.intend(TURN);
        drop(first);
        send(&mut there, 110..130);
        let again = b.within(|| PacketSocket::resume("b0", CONFIG, kept, unfinished));
        let mut again = again.unwrap();
        let is_noted = unfinished == Some(TURN);
        let expected: Vec<u32> = (if is_noted { 103 } else { 100 }..130).collect();
        let (got, too_large) = receive(&mut again, expected.len());
        assert_eq!((numbers(&got), too_large), (expected, 0));
        send(&mut again, 300..302);
        let expected = if is_noted {
            vec![200, 201, 300, 301]
        } else {
            vec![300, 301]
        };
        assert_eq!(numbers(&receive(&mut there, expected.len()).0), expected);
        // It goes on.
        for round in 0..10 {
            send(&mut there, 10 * round..10 * round + 10);
            assert_eq!(receive(&mut again, 10).0.len(), 10);
            send(&mut again, 10 * round..10 * round + 10);
            assert_eq!(receive(&mut there, 10).0.len(), 10);
        }
    }
}

#[test]
fn a_socket_of_another_interface_is_not_gone_on_with() {
    if !can_be_tested() {
        return;
    }
    let (a, b) = pair();
    let mut first = open(&a, "a0");
    let kept = first.keep().unwrap();
    drop(first);
    // Another one of that name.
    b.ip("link del b0");
    a.ip("link add name a0 type veth peer name c0");
    let again = a.within(|| PacketSocket::resume("a0", CONFIG, kept, None));
    assert!(
        again
            .unwrap_err()
            .to_string()
            .contains("going on with its socket")
    );
}
