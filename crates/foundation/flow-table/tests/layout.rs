//! Memory per flow, and the reachable fill.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::net::Ipv4Addr;

use flow_table::{FlowHasher, FlowTable, Full, Identity, Line, TableConfig};
use model::{Direction, FlowKey, Nanos, ServiceId, Slot, Timeouts, Tuple};

fn key(i: u32) -> FlowKey {
    FlowKey::new(&Tuple {
        src: Ipv4Addr::from(0x0a00_0000 + i).into(),
        dst: Ipv4Addr::new(192, 0, 2, 1).into(),
        src_port: (i % 50_000) as u16,
        dst_port: 443,
        protocol: 17,
        vlan: 0,
    })
    .0
}

fn table(config: &TableConfig, key: [u64; 4]) -> FlowTable<Vec<Line>> {
    let storage = vec![Line::ZERO; config.lines_needed().unwrap()];
    FlowTable::new(
        storage,
        config,
        &Timeouts::default(),
        FlowHasher::new(key),
        &Identity::default(),
        Nanos::ZERO,
    )
    .unwrap()
}

/// Filled to 90 %: index, entries, counters, timers, free list and header are all in the storage.
#[test]
fn an_ipv4_flow_takes_at_most_64_bytes_at_90_percent_fill() {
    for flows in [100_000_usize, 1 << 18] {
        let config = TableConfig {
            ipv4_flows: flows,
            ipv6_flows: 0,
            return_counters: false,
            pin_times: false,
        };
        let mut table = table(&config, [5, 6, 7, 8]);
        let fill = flows * 9 / 10;
        for i in 0..fill as u32 {
            let hash = table.hasher().hash(&key(i));
            table
                .insert(
                    &key(i),
                    hash,
                    Direction::Forward,
                    [Slot(1); 2],
                    ServiceId(0),
                    Nanos::ZERO,
                )
                .unwrap();
        }
        assert_eq!(table.flows(), fill);
        let bytes = config.lines_needed().unwrap() * Line::BYTES;
        let per_flow = bytes as f64 / fill as f64;
        assert!(per_flow <= 64.0, "{per_flow}");
    }
    let config = TableConfig {
        ipv4_flows: 16_000_000,
        ipv6_flows: 0,
        return_counters: false,
        pin_times: false,
    };
    let bytes = config.lines_needed().unwrap() * Line::BYTES;
    assert!(bytes as f64 / 14_400_000.0 <= 64.0);
}

/// Every entry can be used, for any hash key.
#[test]
fn a_table_fills_to_its_last_entry() {
    const FLOWS: u32 = 50_000;
    for seed in 0..8 {
        let config = TableConfig {
            ipv4_flows: FLOWS as usize,
            ipv6_flows: 0,
            return_counters: false,
            pin_times: false,
        };
        let mut table = table(&config, [seed, 1, 2, 3]);
        for i in 0..FLOWS {
            let hash = table.hasher().hash(&key(i));
            table
                .insert(
                    &key(i),
                    hash,
                    Direction::Forward,
                    [Slot(1); 2],
                    ServiceId(0),
                    Nanos::ZERO,
                )
                .unwrap();
        }
        let hash = table.hasher().hash(&key(FLOWS));
        let more = table.insert(
            &key(FLOWS),
            hash,
            Direction::Forward,
            [Slot(1); 2],
            ServiceId(0),
            Nanos::ZERO,
        );
        assert_eq!(more, Err(Full::Entries));
        assert_eq!(table.counters().full_entries, 1);
        for i in 0..FLOWS {
            let hash = table.hasher().hash(&key(i));
            assert!(table.lookup(&key(i), hash).is_some());
        }
        // Relocations stay rare: fewer than 3 per 100 insertions over the whole fill.
        assert!(
            table.counters().relocations < u64::from(FLOWS) * 3 / 100,
            "{}",
            table.counters().relocations
        );
    }
}
