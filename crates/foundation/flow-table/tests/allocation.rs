//! No call of a worker allocates after the table is made.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::hint::black_box;
use std::net::Ipv4Addr;

use counting_allocator::{Counting, allocations};
use flow_table::{
    Burst, DumpCursor, FlowHasher, FlowTable, Identity, Lanes, Line, Progress, TableConfig, tcp_flag,
};
use model::{Direction, FlowKey, Nanos, ServiceId, Slot, Timeouts, Tuple, protocol};
use packet::{PacketColumns, TcpFlags};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn key(i: u32) -> FlowKey {
    FlowKey::new(&Tuple {
        src: Ipv4Addr::from(0x0a00_0000 + i).into(),
        dst: Ipv4Addr::new(10, 128, 0, 1).into(),
        src_port: i as u16,
        dst_port: 80,
        protocol: if i.is_multiple_of(2) {
            protocol::TCP
        } else {
            protocol::UDP
        },
        vlan: 0,
    })
    .0
}

#[test]
fn no_call_allocates_after_construction() {
    let config = TableConfig {
        ipv4_flows: 20_000,
        ipv6_flows: 1000,
        return_counters: true,
        pin_times: true,
    };
    let storage = vec![Line::ZERO; config.lines_needed().unwrap()];
    let hasher = FlowHasher::new([1, 2, 3, 4]);
    let before = allocations();
    let mut table = FlowTable::new(
        storage,
        &config,
        &Timeouts::default(),
        hasher,
        &Identity::default(),
        Nanos::ZERO,
    )
    .unwrap();
    assert!(allocations() > before, "the allocator is not counted");

    let mut burst = Burst::default();
    let mut packets = PacketColumns::default();
    let mut found = [0; packet::BURST];
    let lanes = Lanes::default();
    let before = allocations();
    let mut now = Nanos::ZERO;
    let mut shown = 0_u32;
    for round in 0..20_u32 {
        // More new flows than fit, so that the table fills up, relocates and refuses.
        for i in 0..25_000 {
            let key = key(i + round % 3 * 10_000);
            let hash = hasher.hash(&key);
            let entry = match table.lookup(&key, hash) {
                Some(entry) => Some(entry),
                None => {
                    let pins = [Slot(i as u16 % 64); 2];
                    table
                        .insert(&key, hash, Direction::Forward, pins, ServiceId(0), now)
                        .ok()
                }
            };
            if let Some(entry) = entry {
                let flags = if i % 11 == 0 { tcp_flag::RST } else { tcp_flag::ACK };
                black_box(table.hit(entry, Direction::Forward, 40_000, 1 << 24, now, flags));
                table.count_returned(entry, 1);
            }
            if i % 64 == 0 {
                packets.len = 0;
                for i in i..i + 64 {
                    let key = match self::key(i) {
                        FlowKey::V4(key) => Some(key),
                        FlowKey::V6(_) => None,
                    };
                    packets.push(key, Direction::Forward, TcpFlags(0), 60);
                }
                burst.fill::<simd::scalar::Words>(&packets);
                table.prefetch_buckets(&mut burst, &packets);
                table.resolve_candidates(&mut burst);
                let until = table.hit_burst::<simd::scalar::Words>(&burst, 0, now, &lanes, &mut found);
                shown += table.count_returned_burst(&burst, Slot(3)).count_ones();
                shown += found.iter().take(until).map(|&lane| u32::from(lane)).sum::<u32>();
                now = now + Nanos::from_micros(50);
                table.expire(now, 64);
            }
        }
        while table.purge_slot(Slot(round as u16), 500) == Progress::Pending {}
        while table.fail_slot(Slot(round as u16 + 1), 500) == Progress::Pending {}
        let mut cursor = Some(DumpCursor::default());
        while let Some(from) = cursor {
            cursor = table.dump(from, 1000, now, |_| shown += 1);
        }
        now = now + Nanos::from_secs(30);
        while table.expire(now, 256).behind {}
    }
    assert_eq!(allocations(), before);
    assert!(shown > 0 && table.counters().full() > 0 && table.counters().expired_flows() > 0);
}
