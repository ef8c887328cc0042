//! Packets to external addresses go to the owner of their port's block, whatever else the switch knows.

use std::collections::HashMap;
use std::net::SocketAddr;

use model::{DropReason, External, InstanceState, Match, Prefix};
use packet::TcpFlags;
use packet::build::{Frame, fragment};
use switch::{FlowFilter, ServicePlan};

use crate::bed::{Bed, cross, service, stamp};

const BLOCK_PORTS: u16 = 4032;
const EXTERNAL: &str = "203.0.113.4";
/// The blocks of the instances in slots 0, 1 and 2.
const BLOCKS: [u16; 3] = [3, 0, 9];

fn external() -> External {
    let prefix = Prefix {
        address: EXTERNAL.parse().unwrap(),
        bits: 31,
    };
    External::new(&[prefix], BLOCK_PORTS).unwrap()
}

/// A service of the inside on uplink 0, and of the outside on uplink 1.
fn translating() -> ServicePlan {
    let inside = Prefix {
        address: "10.0.0.0".parse().unwrap(),
        bits: 8,
    };
    let matches = Match {
        src: Some(inside),
        ..Match::default()
    };
    ServicePlan {
        external: Some(external()),
        ..service(0, &[0, 1], matches)
    }
}

fn bed(workers: usize) -> Bed {
    let mut bed = Bed::new(workers, 2, vec![translating()]);
    for (slot, block) in (0..).zip(BLOCKS) {
        bed.add(slot, 0, 2, cross);
        own(&mut bed, slot, Some(block));
    }
    bed
}

fn own(bed: &mut Bed, slot: u16, block: Option<u16>) {
    bed.plan.slots[usize::from(slot)].as_mut().unwrap().block = block;
    bed.publish();
}

fn to_block(block: u16, of: u16) -> SocketAddr {
    let ports = external().ports_of(block).unwrap();
    SocketAddr::new(ports.address.into(), ports.first + of)
}

fn remote(host: u8) -> SocketAddr {
    SocketAddr::from(([198, 51, 100, host], 443))
}

fn udp(src: SocketAddr, dst: SocketAddr) -> Vec<u8> {
    Frame::udp(src, dst, &[7; 30]).unwrap().to_vec().unwrap()
}

fn slices(frames: &[Vec<u8>]) -> impl Iterator<Item = &[u8]> {
    frames.iter().map(Vec::as_slice)
}

/// Sends the frames from the outside. Gives the instance that each was at.
fn from_outside(bed: &mut Bed, frames: &[Vec<u8>]) -> HashMap<Vec<u8>, u8> {
    bed.send(1, slices(frames));
    let out = bed.take_all(0, frames.len());
    out.iter()
        .map(|frame| (frame[14..].to_vec(), stamp(frame)))
        .collect()
}

#[test]
fn whoever_sends_reaches_the_owner_of_the_port() {
    for workers in [1, 2] {
        let mut bed = bed(workers);
        let mut expected = HashMap::new();
        let mut frames = Vec::new();
        for (slot, block) in (0..).zip(BLOCKS) {
            for host in 0..20 {
                for of in [0, 1 + u16::from(host), BLOCK_PORTS - 1] {
                    let (src, dst) = (remote(host), to_block(block, of));
                    frames.push(udp(src, dst));
                    let flags = [TcpFlags::SYN, TcpFlags::SYN | TcpFlags::ACK, TcpFlags::ACK];
                    let flags = TcpFlags(flags[usize::from(host) % 3]);
                    frames.push(Frame::tcp(src, dst, flags, &[1]).unwrap().to_vec().unwrap());
                    let echo = [dst.port().to_be_bytes(), [0, 1]].concat();
                    let echo: [u8; 4] = echo.try_into().unwrap();
                    for kind in [0, 8] {
                        let ping = Frame::icmp(src.ip(), dst.ip(), kind, 0, echo, &[7; 8]).unwrap();
                        frames.push(ping.to_vec().unwrap());
                    }
                    for frame in frames.iter().rev().take(4) {
                        expected.insert(frame[14..].to_vec(), slot);
                    }
                }
            }
        }
        for round in 0..3 {
            assert_eq!(from_outside(&mut bed, &frames), expected, "round {round}");
        }
        bed.assert_accounts_close();
        assert_eq!(bed.reading.dropped(), 0);
        bed.finish();
    }
}

#[test]
fn errors_and_fragments_follow_the_port_that_only_some_of_them_show() {
    for workers in [1, 2] {
        let mut bed = bed(workers);
        for (slot, block) in (0..).zip(BLOCKS) {
            for host in 0..10 {
                let (inner, far) = (to_block(block, 5 + u16::from(host)), remote(host));
                // An instance sent this; a router on the way has something to say of it.
                let sent = udp(inner, far);
                let error =
                    Frame::icmp([192, 0, 2, 99].into(), inner.ip(), 3, 1, [0; 4], &sent[14..]).unwrap();
                let frame = error.to_vec().unwrap();
                assert_eq!(
                    from_outside(&mut bed, std::slice::from_ref(&frame))[&frame[14..]],
                    slot
                );
                let big = Frame::udp(far, inner, &[host; 1200]).unwrap().to_vec().unwrap();
                let mut pieces = fragment(&big, 500, u32::from(host) + 1).unwrap();
                // The first one comes last.
                pieces.reverse();
                let came = from_outside(&mut bed, &pieces);
                assert!(came.values().all(|at| *at == slot), "{came:?}");
            }
        }
        let flows: u64 = bed.reading.workers.iter().map(|w| w.live_flows).sum();
        assert!(flows <= 30, "{flows}: an error opened a flow");
        bed.assert_accounts_close();
        assert_eq!(bed.reading.dropped(), 0);
        bed.finish();
    }
}

#[test]
fn what_nobody_owns_reaches_nobody_and_is_counted() {
    let mut bed = bed(1);
    let low = SocketAddr::new(EXTERNAL.parse().unwrap(), 80);
    let chunks = Frame::sctp(remote(1), to_block(BLOCKS[0], 1), &[0; 8]).unwrap();
    let later = {
        // An error about a fragment that shows no ports.
        let big = Frame::udp(low, remote(1), &[3; 1200]).unwrap().to_vec().unwrap();
        let pieces = fragment(&big, 500, 77).unwrap();
        let error = Frame::icmp([192, 0, 2, 99].into(), low.ip(), 3, 1, [0; 4], &pieces[1][14..60]).unwrap();
        error.to_vec().unwrap()
    };
    let unowned = [
        udp(remote(1), to_block(1, 0)),
        udp(remote(1), low),
        udp(remote(1), to_block(31, 7)),
        chunks.to_vec().unwrap(),
        Frame::icmp(remote(1).ip(), low.ip(), 13, 0, [0; 4], &[0; 12])
            .unwrap()
            .to_vec()
            .unwrap(),
        later,
        // From the inside, too.
        udp("10.0.0.1:5000".parse().unwrap(), to_block(1, 0)),
    ];
    bed.send(1, slices(&unowned[..6]));
    bed.send(0, slices(&unowned[6..]));
    // Somebody outside, or inside, speaks for the address.
    let spoofed = udp(to_block(BLOCKS[0], 1), remote(1));
    bed.send(1, [spoofed.as_slice()]);
    bed.send(0, [spoofed.as_slice()]);
    bed.until("all are dropped", |bed| {
        bed.drops(DropReason::PortBlock) == 7 && bed.drops(DropReason::Spoofed) == 2
    });
    // The one that was spoofed does not pin what answers it.
    let back = udp(remote(1), to_block(BLOCKS[0], 1));
    assert_eq!(
        from_outside(&mut bed, std::slice::from_ref(&back))[&back[14..]],
        0
    );
    bed.assert_accounts_close();
    assert_eq!(bed.reading.services[0].offered_packets, 10);
    bed.finish();
}

#[test]
fn a_hairpin_packet_goes_to_the_owner_and_so_does_its_answer() {
    let mut bed = bed(1);
    // Pinned to some instance by its flow.
    let host: SocketAddr = "10.0.0.1:5000".parse().unwrap();
    bed.send(0, [udp(host, remote(1)).as_slice()]);
    bed.take_all(1, 1);
    for (slot, block) in (0..).zip(BLOCKS) {
        let frame = udp(host, to_block(block, 9));
        bed.send(0, [frame.as_slice()]);
        assert_eq!(stamp(&bed.take_all(1, 1)[0]), slot);
    }
    // Between two external endpoints each direction has an owner of its own.
    let (a, b) = (to_block(BLOCKS[0], 1), to_block(BLOCKS[1], 1));
    for _ in 0..3 {
        let both = [udp(a, b), udp(b, a)];
        let came = from_outside(&mut bed, &both);
        assert_eq!((came[&both[0][14..]], came[&both[1][14..]]), (1, 0));
    }
    bed.assert_accounts_close();
    bed.finish();
}

#[test]
fn an_owner_that_drains_keeps_its_ports_and_one_that_is_gone_leaves_none() {
    let mut bed = bed(1);
    let frames: Vec<Vec<u8>> = (0..10)
        .map(|host| udp(remote(host), to_block(BLOCKS[0], 1)))
        .collect();
    let all_at = |came: HashMap<Vec<u8>, u8>, slot| came.values().all(|at| *at == slot);
    assert!(all_at(from_outside(&mut bed, &frames[..5]), 0));
    for state in [InstanceState::Draining, InstanceState::Standby] {
        bed.set_state(0, 0, state);
        own(&mut bed, 0, Some(BLOCKS[0]));
        assert!(all_at(from_outside(&mut bed, &frames), 0), "{state:?}");
    }
    // New flows of the inside go elsewhere.
    let inside: Vec<Vec<u8>> = (0..10)
        .map(|host| udp(SocketAddr::from(([10, 0, 0, host], 99)), remote(1)))
        .collect();
    bed.send(0, slices(&inside));
    assert!(bed.take_all(1, 10).iter().all(|frame| stamp(frame) != 0));
    bed.remove(0);
    bed.send(1, slices(&frames));
    bed.until("nobody gets them", |bed| bed.drops(DropReason::PortBlock) == 10);
    // Its block is another one's now.
    own(&mut bed, 1, Some(BLOCKS[0]));
    assert!(all_at(from_outside(&mut bed, &frames), 1));
    let (rows, _) = bed.flows(FlowFilter::default(), 100);
    assert!(!rows.is_empty());
    bed.assert_accounts_close();
    bed.finish();
}

#[test]
fn a_full_table_sends_to_the_owner_all_the_same() {
    let mut bed = Bed::with(1, 2, vec![translating()], |config| {
        config.table.ipv4_flows = 1024;
    });
    for (slot, block) in (0..).zip(BLOCKS) {
        bed.add(slot, 0, 2, cross);
        own(&mut bed, slot, Some(block));
    }
    for round in 0..8 {
        let frames: Vec<Vec<u8>> = (0..500_u16)
            .map(|n| {
                udp(
                    remote((n % 250) as u8),
                    to_block(BLOCKS[usize::from(n % 3)], round * 500 + n),
                )
            })
            .collect();
        let came = from_outside(&mut bed, &frames);
        for (n, frame) in (0..500_u16).zip(&frames) {
            assert_eq!(u16::from(came[&frame[14..]]), n % 3);
        }
    }
    assert!(bed.reading.services[0].unpinned > 0);
    assert_eq!(bed.reading.dropped(), 0);
    bed.assert_accounts_close();
    bed.finish();
}
