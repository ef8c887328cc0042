//! Packets to external addresses, where a driver sends them to the owner of their port's block.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use model::{DropReason, External, InstanceState, Prefix, Slot, Tuple, protocol};

use super::{Conforming, PORT, SLOTS};

/// Ports of a block, and packets to each in a round.
const BLOCK_PORTS: u16 = 4032;
const PACKETS: u16 = 20;
/// The block that nobody has.
const NOBODY: u16 = 7;

/// A packet of a remote host to a port of that block.
fn packet(external: &External, block: u16, of: u16) -> Tuple {
    let to = external.ports_of(block).unwrap();
    let [_, host] = of.to_be_bytes();
    Tuple {
        src: IpAddr::V4(Ipv4Addr::new(198, 51, 100, host)),
        dst: to.address.into(),
        src_port: PORT,
        dst_port: to.first + of,
        protocol: protocol::UDP,
        vlan: 0,
    }
}

/// Sends packets to these blocks from the hosts of that round. Gives how many of each block came to which slot.
fn send(
    of: &mut Conforming<'_>,
    external: &External,
    blocks: &[u16],
    round: u16,
) -> BTreeMap<(u16, Slot), usize> {
    of.given.clear();
    let hosts = round * PACKETS..(round + 1) * PACKETS;
    let packets = blocks
        .iter()
        .flat_map(|block| hosts.clone().map(|host| packet(external, *block, host)));
    let packets: Vec<Tuple> = packets.collect();
    of.bed.offer(&packets);
    of.until("every packet is at an instance", |of| {
        of.given.values().map(Vec::len).sum::<usize>() >= packets.len()
    });
    let mut came = BTreeMap::new();
    for (slot, given) in &of.given {
        for tuple in given {
            let block = external.block_of(tuple.dst, tuple.dst_port).unwrap();
            *came.entry((block, *slot)).or_default() += 1;
        }
    }
    of.give_all_back();
    came
}

pub(super) fn packets_go_to_the_owner_of_their_port(of: &mut Conforming<'_>) {
    if !of.bed.switch().capabilities().port_blocks {
        return;
    }
    let prefix = Prefix {
        address: IpAddr::V4(Ipv4Addr::new(203, 0, 113, 4)),
        bits: 31,
    };
    let external = External::new(&[prefix], BLOCK_PORTS).unwrap();
    of.plan.services[0].external = Some(external.clone());
    // Of the second address, of the first, and again of the second.
    let blocks = [17, 0, 16];
    let all = usize::from(PACKETS);
    for (slot, block) in SLOTS.into_iter().zip(blocks) {
        of.attach(slot);
        of.set_state_with(slot, Some(InstanceState::Active), Some(block));
    }
    let own: BTreeMap<(u16, Slot), usize> = blocks.into_iter().zip(SLOTS).map(|at| (at, all)).collect();
    assert_eq!(send(of, &external, &blocks, 0), own);
    // A draining owner gets those of known hosts and of new ones.
    of.set_state_with(SLOTS[0], Some(InstanceState::Draining), Some(blocks[0]));
    assert_eq!(send(of, &external, &blocks, 0), own);
    assert_eq!(send(of, &external, &blocks, 1), own);
    // Nobody has the block, the port or the protocol; or somebody speaks for the address.
    let before = of.reading.drops;
    let to = packet(&external, NOBODY, 0);
    let wrong = [
        to,
        Tuple { dst_port: 80, ..to },
        Tuple {
            src: to.dst,
            src_port: to.dst_port,
            dst: to.src,
            dst_port: PORT,
            ..to
        },
    ];
    of.given.clear();
    of.bed.offer(&wrong);
    let dropped =
        |of: &Conforming<'_>, reason: DropReason| of.reading.drops[reason.index()] - before[reason.index()];
    of.until("they are dropped", |of| {
        dropped(of, DropReason::PortBlock) == 2 && dropped(of, DropReason::Spoofed) == 1
    });
    assert!(of.given.values().all(Vec::is_empty), "{:?}", of.given);
    // The block of an owner that is gone is nobody's, and another one's once the plan says so.
    let before = of.reading.drops[DropReason::PortBlock.index()];
    of.remove(SLOTS[0]);
    of.bed.offer(&[packet(&external, blocks[0], 0)]);
    of.until("it is dropped", |of| {
        of.reading.drops[DropReason::PortBlock.index()] == before + 1
    });
    of.set_state_with(SLOTS[1], Some(InstanceState::Active), Some(blocks[0]));
    let came = send(of, &external, &[blocks[0]], 0);
    assert_eq!(came, BTreeMap::from([((blocks[0], SLOTS[1]), all)]));
}
