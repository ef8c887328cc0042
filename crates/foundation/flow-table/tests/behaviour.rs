//! The table's contract, one test per sentence.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

use std::net::{Ipv4Addr, Ipv6Addr};

use flow_table::{
    Burst, DumpCursor, EntryIndex, FlowChange, FlowHasher, FlowTable, Full, Holder, Identity, InTurn, Lanes,
    Line, LookupOutcome, Ownership, Progress, TableConfig, TableError, TcpState, TimeoutClass, inspect,
    layout, tcp_flag,
};
use model::{Direction, FlowKey, Nanos, ServiceId, Slot, Timeouts, Tuple, protocol};
use packet::{BURST, PacketColumns, TcpFlags};
use proptest::prelude::*;

type Table = FlowTable<Vec<Line>>;

const HASHER: FlowHasher = FlowHasher::new([9, 8, 7, 6]);
const START: Nanos = Nanos::from_secs(1000);
const SIZE: TableConfig = TableConfig {
    ipv4_flows: 1000,
    ipv6_flows: 100,
    return_counters: false,
    pin_times: true,
};

const IDENTITY: Identity = Identity {
    boot: *b"0123456789abcdef",
    configuration: 77,
    worker: 0,
    workers: 1,
};

/// Lines of the storage before the first bucket.
const HEADER_LINES: usize = 9;

/// The times that these tests count by.
const TIMEOUTS: Timeouts = Timeouts {
    tcp_handshake: Nanos::from_secs(10),
    tcp: Nanos::from_secs(3600),
    tcp_linger: Nanos::from_secs(2),
    udp: Nanos::from_secs(60),
    sctp: Nanos::from_secs(300),
    icmp: Nanos::from_secs(10),
    other: Nanos::from_secs(60),
};

fn table_of(config: &TableConfig, timeouts: &Timeouts) -> Table {
    let storage = vec![Line::ZERO; config.lines_needed().unwrap()];
    FlowTable::new(storage, config, timeouts, HASHER, &IDENTITY, START).unwrap()
}

fn table() -> Table {
    table_of(&SIZE, &TIMEOUTS)
}

fn key(i: u32, protocol: u8) -> FlowKey {
    FlowKey::new(&Tuple {
        src: Ipv4Addr::from(0x0a00_0000 + i).into(),
        dst: Ipv4Addr::new(10, 128, 0, 1).into(),
        src_port: i as u16,
        dst_port: 80,
        protocol,
        vlan: 0,
    })
    .0
}

fn enter(table: &mut Table, key: &FlowKey, pins: [Slot; 2], now: Nanos) -> EntryIndex {
    table
        .insert(key, HASHER.hash(key), Direction::Forward, pins, ServiceId(3), now)
        .unwrap()
}

fn finish(table: &mut Table, mut step: impl FnMut(&mut Table) -> Progress) {
    for _ in 0..10_000 {
        if step(table) == Progress::Done {
            return;
        }
    }
    panic!("a purge has no end");
}

#[test]
fn a_connection_is_tracked_from_its_first_packet_to_its_end() {
    let mut table = table();
    let key = key(1, protocol::TCP);
    let entry = enter(&mut table, &key, [Slot(4); 2], START);
    let mut hit = |direction, flags| table.hit(entry, direction, 1, 60, START, flags).change;
    use Direction::{Forward, Reverse};
    assert_eq!(hit(Forward, tcp_flag::SYN), FlowChange::None);
    assert_eq!(hit(Reverse, tcp_flag::SYN | tcp_flag::ACK), FlowChange::None);
    assert_eq!(hit(Forward, tcp_flag::ACK), FlowChange::Established);
    assert_eq!(hit(Reverse, tcp_flag::ACK), FlowChange::None);
    assert_eq!(hit(Forward, tcp_flag::FIN | tcp_flag::ACK), FlowChange::None);
    assert_eq!(hit(Forward, tcp_flag::FIN | tcp_flag::ACK), FlowChange::None);
    assert_eq!(hit(Reverse, tcp_flag::FIN | tcp_flag::ACK), FlowChange::Closed);
    assert_eq!(hit(Forward, tcp_flag::ACK), FlowChange::None);
    assert_eq!(table.get(&key, START).unwrap().tcp, TcpState::Closed);
    assert_eq!(table.get(&key, START).unwrap().packets, [5, 3]);
    // It lingers with its pin, then it is gone.
    let linger = TIMEOUTS.tcp_linger;
    table.expire(START + linger, 100);
    assert_eq!(table.live(Slot(4)), 1);
    table.expire(START + linger + Nanos::from_millis(5), 100);
    assert_eq!((table.flows(), table.live(Slot(4))), (0, 0));
    assert_eq!(table.counters().expired[TimeoutClass::TcpLinger.index()], 1);
}

#[test]
fn a_syn_after_the_end_is_a_new_flow_without_pins() {
    let mut table = table();
    let key = key(1, protocol::TCP);
    let entry = enter(&mut table, &key, [Slot(4); 2], START);
    table.hit(entry, Direction::Forward, 70_000, 1 << 30, START, tcp_flag::RST);
    let hit = table.hit(entry, Direction::Reverse, 1, 60, START, tcp_flag::SYN);
    assert_eq!((hit.change, hit.pin), (FlowChange::Reopened, Slot::NONE));
    assert_eq!((table.live(Slot(4)), table.flows()), (0, 1));
    let row = table.get(&key, START).unwrap();
    assert_eq!(
        (row.packets, row.bytes, row.opener),
        ([0, 1], [0, 60], Direction::Reverse)
    );
    assert!(!table.set_pins(entry, [Slot(5); 2], START));
    assert_eq!(table.live(Slot(5)), 1);
    // A SYN on a live connection changes nothing.
    table.hit(entry, Direction::Reverse, 1, 60, START, tcp_flag::ACK);
    let hit = table.hit(entry, Direction::Forward, 1, 60, START, tcp_flag::SYN);
    assert_eq!((hit.change, hit.pin), (FlowChange::None, Slot(5)));
}

/// With 5 ms between calls, a flow is gone at most 10 ms after its timeout and never before it.
#[test]
fn a_flow_leaves_within_10_ms_of_its_timeout_and_not_before() {
    let timeouts = Timeouts {
        udp: Nanos::from_micros(123_457),
        tcp_handshake: Nanos::from_millis(2500),
        icmp: Nanos::from_secs(200),
        ..TIMEOUTS
    };
    let mut table = table_of(
        &TableConfig {
            ipv4_flows: 20_000,
            ..SIZE
        },
        &timeouts,
    );
    let mut ends: Vec<(FlowKey, Nanos)> = Vec::new();
    let mut now = START;
    for i in 0..20_000_u32 {
        let protocol = [protocol::UDP, protocol::TCP, protocol::ICMP][i as usize % 3];
        let key = key(i, protocol);
        now = now + Nanos(7_919);
        enter(&mut table, &key, [Slot(i as u16 % 7); 2], now);
        let class = [TimeoutClass::Udp, TimeoutClass::TcpHandshake, TimeoutClass::Icmp][i as usize % 3];
        ends.push((key, now + class.timeout(&timeouts)));
    }
    ends.sort_by_key(|end| end.1);
    let mut left = ends.len();
    let mut from = 0;
    while left > 0 {
        // Nothing expires between the short and the long timeouts.
        now = now + Nanos::from_millis(5);
        let expiry = table.expire(now, 1 << 20);
        assert!(!expiry.behind);
        left -= expiry.flows as usize;
        assert_eq!(table.flows(), left);
        let due = ends.partition_point(|end| end.1 <= now);
        let overdue = ends.partition_point(|end| end.1 + Nanos::from_millis(10) <= now);
        assert!(ends.len() - left <= due, "a flow ended before its time");
        assert!(ends.len() - left >= overdue, "a flow outlived its time");
        for (key, _) in &ends[from..overdue.max(from)] {
            assert!(table.get(key, now).is_none());
        }
        from = overdue.max(from);
        assert_eq!(
            (0..7).map(|slot| table.live(Slot(slot)) as usize).sum::<usize>(),
            left
        );
    }
}

#[test]
fn expiry_respects_its_budget_and_reports_being_behind() {
    let mut table = table();
    for i in 0..1000 {
        enter(&mut table, &key(i, protocol::UDP), [Slot(1); 2], START);
    }
    let late = START + Nanos::from_secs(3600);
    let mut calls = 0;
    loop {
        let expiry = table.expire(late, 10);
        assert!(expiry.visited <= 10);
        calls += 1;
        if !expiry.behind {
            break;
        }
    }
    assert_eq!(table.flows(), 0);
    assert!(calls >= 100);
    // No due flows: no visits.
    assert_eq!(table.expire(late, 10).visited, 0);
    assert_eq!(table.expire(Nanos::ZERO, 10).visited, 0);
}

/// The caller's times may differ by a burst between calls: a packet later than `expire`'s time keeps its
/// flow.
#[test]
fn a_packet_after_the_time_of_expiry_keeps_its_flow() {
    let mut table = table();
    let entry = enter(&mut table, &key(1, protocol::UDP), [Slot(1); 2], START);
    table.hit(entry, Direction::Forward, 1, 60, START + Nanos::from_secs(62), 0);
    while table.expire(START + Nanos::from_secs(61), 100).behind {}
    assert_eq!(table.flows(), 1);
    while table.expire(START + Nanos::from_secs(123), 100).behind {}
    assert_eq!(table.flows(), 0);
}

#[test]
fn a_clock_jump_ends_due_flows_only() {
    let mut table = table();
    let flow = enter(&mut table, &key(1, protocol::TCP), [Slot(1); 2], START);
    table.hit(flow, Direction::Forward, 1, 60, START, tcp_flag::ACK);
    enter(&mut table, &key(2, protocol::UDP), [Slot(2); 2], START);
    let mut now = START + Nanos::from_secs(3000);
    while table.expire(now, 1000).behind {}
    assert_eq!((table.live(Slot(1)), table.live(Slot(2))), (1, 0));
    now = now + Nanos::from_secs(610);
    while table.expire(now, 1000).behind {}
    assert_eq!(table.flows(), 0);
}

/// A flood of new flows into a full table does not affect existing flows.
#[test]
fn a_flood_evicts_no_flow() {
    let mut table = table();
    for i in 0..1000 {
        let entry = enter(&mut table, &key(i, protocol::TCP), [Slot(i as u16 % 5); 2], START);
        table.hit(entry, Direction::Forward, 1, 60, START, tcp_flag::ACK);
    }
    for i in 1000..100_000 {
        let key = key(i, protocol::TCP);
        let full = table.insert(
            &key,
            HASHER.hash(&key),
            Direction::Forward,
            [Slot(9); 2],
            ServiceId(3),
            START,
        );
        assert_eq!(full, Err(Full::Entries));
    }
    assert_eq!(
        (table.counters().full_entries, table.flows(), table.live(Slot(9))),
        (99_000, 1000, 0)
    );
    for i in 0..1000 {
        assert_eq!(
            table.get(&key(i, protocol::TCP), START).unwrap().pins,
            [Slot(i as u16 % 5); 2]
        );
    }
    // IPv6 has a region of its own.
    let tuple = Tuple {
        src: Ipv6Addr::LOCALHOST.into(),
        dst: Ipv6Addr::from(7).into(),
        src_port: 1,
        dst_port: 2,
        protocol: protocol::UDP,
        vlan: 0,
    };
    enter(&mut table, &FlowKey::new(&tuple).0, [Slot(9); 2], START);
}

#[test]
fn a_slot_purge_is_effective_at_once_and_the_slot_reusable_at_its_end() {
    let mut table = table();
    let entries: Vec<EntryIndex> = (0..1000)
        .map(|i| enter(&mut table, &key(i, protocol::UDP), [Slot(1), Slot(2)], START))
        .collect();
    assert_eq!((table.live(Slot(1)), table.live(Slot(2))), (1000, 1000));
    assert_eq!(table.purge_slot(Slot(1), 0), Progress::Pending);
    assert_eq!((table.live(Slot(1)), table.live(Slot(2))), (0, 1000));
    assert_eq!(table.pins(entries[999]), [Slot::NONE, Slot(2)]);
    assert_eq!(
        table.hit(entries[0], Direction::Forward, 1, 60, START, 0).pin,
        Slot::NONE
    );
    // Not usable yet, and reported so.
    assert!(!table.set_pin(entries[0], Direction::Forward, Slot(1), START));
    assert_eq!((table.counters().refused_pins, table.live(Slot(1))), (1, 0));
    finish(&mut table, |table| table.purge_slot(Slot(1), 100));
    assert!(!table.set_pin(entries[0], Direction::Forward, Slot(1), START));
    assert_eq!((table.live(Slot(1)), table.live(Slot(2))), (1, 1000));
    assert_eq!(
        (table.counters().purged_pins, table.counters().expected_moves),
        (1000, 0)
    );
    assert_eq!(table.pins(entries[999]), [Slot::NONE, Slot(2)]);
}

#[test]
fn flows_of_a_failed_instance_move_once_and_are_counted_separately() {
    let mut table = table();
    let entries: Vec<EntryIndex> = (0..10)
        .map(|i| enter(&mut table, &key(i, protocol::UDP), [Slot(1), Slot(1)], START))
        .collect();
    assert_eq!(table.fail_slot(Slot(1), 0), Progress::Pending);
    // One before the sweep reaches it, one after, one that never gets a new pin.
    assert!(table.set_pins(entries[0], [Slot(2); 2], START));
    finish(&mut table, |table| table.fail_slot(Slot(1), 3));
    assert!(table.set_pins(entries[1], [Slot(2); 2], START));
    assert!(!table.set_pins(entries[1], [Slot(3); 2], START));
    assert!(!table.set_pins(entries[2], [Slot::NONE; 2], START));
    assert_eq!(
        (table.counters().failed_pins, table.counters().expected_moves),
        (10, 2)
    );
    assert_eq!(
        (table.live(Slot(1)), table.live(Slot(2)), table.live(Slot(3))),
        (0, 1, 1)
    );
    // The slot's next instance is unaffected.
    assert!(table.set_pins(entries[2], [Slot(1); 2], START));
    assert_eq!(table.live(Slot(1)), 1);
}

/// An instance that fails during its slot's purge: from then on its flows' moves are expected.
#[test]
fn a_purge_can_become_a_failure() {
    let mut table = table();
    let entries: Vec<EntryIndex> = (0..10)
        .map(|i| enter(&mut table, &key(i, protocol::UDP), [Slot(1), Slot(1)], START))
        .collect();
    assert_eq!(table.purge_slot(Slot(1), 5), Progress::Pending);
    finish(&mut table, |table| table.fail_slot(Slot(1), 2));
    assert_eq!(
        (table.counters().purged_pins, table.counters().failed_pins),
        (10, 0)
    );
    let moved = entries
        .iter()
        .filter(|&&entry| table.set_pins(entry, [Slot(2); 2], START))
        .count();
    assert_eq!(moved, 5);
}

/// Pin times: per direction, exact to a tick, also after attaching.
#[test]
fn pin_times_survive_attaching() {
    let at = |ms| START + Nanos::from_millis(ms);
    let tick = |now: Nanos| Some(Nanos(now.0 >> 21 << 21));
    let mut table = table();
    let (moved, one_way, failed) = (
        key(1, protocol::UDP),
        key(2, protocol::UDP),
        key(3, protocol::TCP),
    );
    let entry = enter(&mut table, &moved, [Slot(1); 2], START);
    table.hit(entry, Direction::Forward, 70_000, 1 << 30, at(50), 0);
    table.set_pins(entry, [Slot::NONE; 2], at(60));
    assert_eq!(table.get(&moved, at(60)).unwrap().pinned_at, [None; 2]);
    table.set_pins(entry, [Slot(2); 2], at(100));
    let entry = enter(&mut table, &one_way, [Slot(3), Slot::NONE], at(10));
    assert_eq!(
        table.get(&one_way, at(20)).unwrap().pinned_at,
        [tick(at(10)), None]
    );
    table.set_pin(entry, Direction::Reverse, Slot(4), at(200));
    enter(&mut table, &failed, [Slot(5); 2], at(30));
    finish(&mut table, |table| table.fail_slot(Slot(5), 100));
    let table = FlowTable::attach(table.into_storage(), &IDENTITY, &TIMEOUTS, at(300), &InTurn(3)).unwrap();
    let pinned_at = |key| table.get(key, at(900)).unwrap().pinned_at;
    assert_eq!(pinned_at(&moved), [tick(at(100)); 2]);
    assert_eq!(pinned_at(&one_way), [tick(at(10)), tick(at(200))]);
    assert_eq!(pinned_at(&failed), [None; 2]);
}

#[test]
fn slots_beyond_the_limit_are_refused() {
    let mut table = table();
    let entry = enter(
        &mut table,
        &key(1, protocol::UDP),
        [Slot(1024), Slot(u16::MAX - 1)],
        START,
    );
    assert_eq!(
        (table.pins(entry), table.counters().refused_pins),
        ([Slot::NONE; 2], 2)
    );
    assert_eq!(table.purge_slot(Slot(1024), 1), Progress::Done);
    assert_eq!(table.fail_slot(Slot::NONE, 1), Progress::Done);
    assert_eq!((table.live(Slot(1024)), table.live(Slot::NONE)), (0, 0));
    assert!(!table.is_slot_usable(Slot::NONE) && !table.is_slot_usable(Slot(1024)));
}

#[test]
fn counters_are_exact_beyond_their_lower_parts() {
    let mut table = table();
    let key = key(1, protocol::UDP);
    let entry = enter(&mut table, &key, [Slot(1); 2], START);
    let (mut packets, mut bytes) = (0_u64, 0_u64);
    for i in 0..200_000_u64 {
        table.hit(entry, Direction::Reverse, 1, 40 + i % 1500, START, 0);
        packets += 1;
        bytes += 40 + i % 1500;
    }
    let row = table.get(&key, START).unwrap();
    assert_eq!((row.packets, row.bytes), ([0, packets], [0, bytes]));
    // Past their wrap at 2^40 packets and 2^48 bytes, each on its own.
    for _ in 0..700 {
        table.hit(entry, Direction::Reverse, u32::MAX, (1 << 40) + 77, START, 0);
        packets = (packets + u64::from(u32::MAX)) % (1 << 40);
        bytes = (bytes + (1 << 40) + 77) % (1 << 48);
        let row = table.get(&key, START).unwrap();
        assert_eq!((row.packets, row.bytes), ([0, packets], [0, bytes]));
    }
}

#[test]
fn impossible_tables_are_rejected_with_the_reason() {
    let config = TableConfig {
        ipv4_flows: TableConfig::LIMIT + 1,
        ..SIZE
    };
    let limit = TableConfig::LIMIT;
    assert_eq!(
        config.lines_needed(),
        Err(TableError::Capacity {
            flows: limit + 1,
            limit
        })
    );
    assert!(
        TableConfig {
            ipv4_flows: limit,
            ipv6_flows: limit,
            return_counters: true,
            pin_times: true,
        }
        .lines_needed()
        .is_ok()
    );
    let needed = SIZE.lines_needed().unwrap();
    let storage = vec![Line::ZERO; needed - 1];
    let error = FlowTable::new(storage, &SIZE, &TIMEOUTS, HASHER, &IDENTITY, START).unwrap_err();
    assert_eq!(
        error,
        TableError::StorageTooSmall {
            needed,
            given: needed - 1
        }
    );
}

#[test]
fn a_table_without_capacity_for_a_family_is_full() {
    let mut table = table_of(
        &TableConfig {
            ipv4_flows: 0,
            ipv6_flows: 0,
            return_counters: true,
            pin_times: true,
        },
        &TIMEOUTS,
    );
    let key = key(1, protocol::UDP);
    let hash = HASHER.hash(&key);
    let full = table.insert(&key, hash, Direction::Forward, [Slot(1); 2], ServiceId(0), START);
    assert_eq!(full, Err(Full::Entries));
    assert!(table.lookup(&key, hash).is_none());
    assert!(!table.purge(&key, hash));
}

// Storage left by another process.

fn filled() -> Vec<Line> {
    let mut table = table();
    for i in 0..700 {
        let protocol = if i % 2 == 0 { protocol::TCP } else { protocol::UDP };
        let entry = enter(
            &mut table,
            &key(i, protocol),
            [Slot(i as u16 % 9), Slot(3)],
            START,
        );
        table.hit(
            entry,
            Direction::Forward,
            100_000,
            9_000_000_000,
            START,
            tcp_flag::ACK,
        );
    }
    for i in (0..700).step_by(7) {
        let protocol = if i % 2 == 0 { protocol::TCP } else { protocol::UDP };
        table.purge(&key(i, protocol), HASHER.hash(&key(i, protocol)));
    }
    table.into_storage()
}

fn attach(storage: Vec<Line>) -> Result<Table, TableError> {
    FlowTable::attach(
        storage,
        &IDENTITY,
        &TIMEOUTS,
        START + Nanos::from_secs(1),
        &InTurn(3),
    )
}

#[test]
fn an_attached_table_is_the_same_table() {
    let mut table = attach(filled()).unwrap();
    assert_eq!(
        (
            table.flows(),
            table.attach_counts().flows,
            table.attach_counts().rejected_entries()
        ),
        (600, 600, 0)
    );
    assert_eq!(table.live(Slot(3)), 600);
    for i in 0..700 {
        let protocol = if i % 2 == 0 { protocol::TCP } else { protocol::UDP };
        let row = table.get(&key(i, protocol), START);
        assert_eq!(row.is_some(), i % 7 != 0);
        if let Some(row) = row {
            assert_eq!((row.packets, row.bytes), ([100_000, 0], [9_000_000_000, 0]));
            assert_eq!(
                (row.pins, row.service),
                ([Slot(i as u16 % 9), Slot(3)], ServiceId(3))
            );
        }
    }
    // Timers are restored: UDP first, TCP an hour after its last packet.
    // The second in which nobody held the table does not count.
    while table.expire(START + Nanos::from_secs(60), 1000).behind {}
    assert_eq!(table.counters().expired_flows(), 0);
    while table.expire(START + Nanos::from_secs(62), 1000).behind {}
    assert_eq!(table.counters().expired[TimeoutClass::Udp.index()], 300);
    while table.expire(START + Nanos::from_secs(3602), 1000).behind {}
    assert_eq!(table.flows(), 0);
    // Every entry can be reused.
    for i in 0..1000 {
        enter(
            &mut table,
            &key(i, protocol::UDP),
            [Slot(1); 2],
            START + Nanos::from_secs(3602),
        );
    }
}

#[test]
fn storage_that_is_no_table_is_refused_with_the_reason() {
    let error = |change: &dyn Fn(&mut Vec<Line>)| {
        let mut storage = filled();
        change(&mut storage);
        attach(storage).err()
    };
    let needed = SIZE.lines_needed().unwrap();
    assert_eq!(
        error(&|lines| lines.clear()),
        Some(TableError::StorageTooSmall {
            needed: HEADER_LINES,
            given: 0
        })
    );
    assert_eq!(
        error(&|lines| lines.truncate(HEADER_LINES)),
        Some(TableError::StorageTooSmall {
            needed,
            given: HEADER_LINES
        })
    );
    assert_eq!(
        error(&|lines| lines.fill(Line::ZERO)),
        Some(TableError::NotATable)
    );
    assert_eq!(
        error(&|lines| lines[0].0[1] += 1),
        Some(TableError::LayoutVersion {
            found: layout::VERSION + 1,
            supported: layout::VERSION
        })
    );
    for word in 2..8 {
        assert_eq!(
            error(&|lines| lines[0].0[word] ^= 1 << 40),
            Some(TableError::HeaderDamaged),
            "word {word}"
        );
    }
    for (line, word) in [1, 2]
        .into_iter()
        .flat_map(|line| (0..8).map(move |word| (line, word)))
    {
        assert_eq!(
            error(&|lines| lines[line].0[word] ^= 1),
            Some(TableError::HeaderDamaged),
            "line {line} word {word}"
        );
    }
    assert_eq!(
        error(&|lines| lines[0].0[0] = lines[0].0[0].swap_bytes()),
        Some(TableError::ByteOrder)
    );
    assert_eq!(
        error(&|lines| lines[3].0[2] = 1001),
        Some(TableError::HighWater {
            found: 1001,
            limit: 1000
        })
    );
}

#[test]
fn only_the_same_table_is_attached() {
    let attach_as =
        |identity: &Identity| FlowTable::attach(filled(), identity, &TIMEOUTS, START, &InTurn(3)).err();
    assert_eq!(attach_as(&IDENTITY), None);
    let boot = *b"fedcba9876543210";
    assert_eq!(
        attach_as(&Identity { boot, ..IDENTITY }),
        Some(TableError::OtherBoot)
    );
    assert_eq!(
        attach_as(&Identity {
            workers: 2,
            ..IDENTITY
        }),
        Some(TableError::OtherWorker {
            found: (0, 1),
            expected: (0, 2)
        })
    );
    assert_eq!(
        attach_as(&Identity {
            configuration: 78,
            ..IDENTITY
        }),
        Some(TableError::OtherConfiguration {
            found: 77,
            expected: 78
        })
    );
}

#[test]
fn the_header_of_a_table_is_readable_before_it_is_attached() {
    let hasher = HASHER.owning(Ownership::Card);
    let storage = vec![Line::ZERO; SIZE.lines_needed().unwrap()];
    let table = FlowTable::new(storage, &SIZE, &TIMEOUTS, hasher, &IDENTITY, START).unwrap();
    // Its holder is killed.
    let mut storage = table.into_storage();
    assert_eq!(inspect(&storage).unwrap().holder, Holder::Nobody);
    let table = FlowTable::attach(&mut storage[..], &IDENTITY, &TIMEOUTS, START, &InTurn(3)).unwrap();
    assert_eq!(*table.hasher(), hasher);
    drop(table);
    let found = inspect(&storage).unwrap();
    assert_eq!(
        (found.config, found.hasher, found.identity),
        (SIZE, hasher, IDENTITY)
    );
    assert_eq!(
        (found.holder, found.attached, found.made_at),
        (Holder::Running, 1, START)
    );
    assert_eq!(inspect(&vec![Line::ZERO; 100]), Err(TableError::NotATable));
}

/// Calls everything; afterwards the counts must agree with each other.
fn exercise(mut table: Table) {
    let now = START + Nanos::from_secs(2);
    let mut flows = 0;
    let mut pins = vec![0_u32; Slot::LIMIT];
    let mut cursor = Some(DumpCursor::default());
    let mut keys = Vec::new();
    while let Some(from) = cursor {
        cursor = table.dump(from, 100, now, |row| {
            flows += 1;
            keys.push(row.key);
            for (direction, pin) in row.pins.iter().enumerate() {
                if pin.is_some() && (direction == 0 || row.pins[0] != *pin) {
                    pins[pin.index()] += 1;
                }
            }
        });
    }
    assert_eq!(table.flows(), flows);
    assert_eq!(table.live_all()[..], pins[..]);
    for key in &keys {
        let entry = table.lookup(key, table.hasher().hash(key)).unwrap();
        table.hit(entry, Direction::Reverse, 1 << 20, 1 << 30, now, tcp_flag::FIN);
        table.set_pin(entry, Direction::Forward, Slot(8), START);
    }
    for i in 5000..5100 {
        let key = key(i, protocol::SCTP);
        let hash = table.hasher().hash(&key);
        let _ = table.insert(&key, hash, Direction::Forward, [Slot(1); 2], ServiceId(1), now);
    }
    finish(&mut table, |table| table.fail_slot(Slot(3), 50));
    for key in keys.iter().take(20) {
        let hash = table.hasher().hash(key);
        assert!(table.purge(key, hash));
    }
    for hours in 1..40 {
        while table.expire(now + Nanos::from_secs(hours * 3600), 1000).behind {}
    }
    assert_eq!((table.flows(), table.live_all().iter().sum::<u32>()), (0, 0));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn damaged_storage_never_panics(
        changes in prop::collection::vec((any::<prop::sample::Index>(), 0_usize..8, any::<u64>(), any::<bool>()), 1..400),
        header: bool,
    ) {
        let mut storage = filled();
        let first = if header { 0 } else { HEADER_LINES };
        for (line, word, value, flip) in changes {
            let line = first + line.index(storage.len() - first);
            let place = &mut storage[line].0[word];
            *place = if flip { *place ^ value } else { value };
        }
        if let Ok(table) = attach(storage) {
            prop_assert!(table.attach_counts().flows as usize == table.flows());
            exercise(table);
        } else {
            prop_assert!(header);
        }
    }

    #[test]
    fn random_entries_under_a_good_header_never_panic(seed: u64) {
        let mut storage = filled();
        let mut state = seed | 1;
        for line in &mut storage[HEADER_LINES..] {
            for word in &mut line.0 {
                state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
                *word = state ^ state >> 29;
            }
        }
        exercise(attach(storage).unwrap());
    }

    #[test]
    fn random_storage_is_no_table(words in prop::collection::vec(any::<[u64; 8]>(), 0..64)) {
        prop_assert!(attach(words.into_iter().map(Line).collect()).is_err());
    }
}

/// More active flows than the flow cache has slots: it warms up, is bypassed, and is tried again.
#[test]
fn every_packet_is_counted_with_more_flows_than_the_cache_holds() {
    const FLOWS: u32 = 150_000;
    const PASSES: u64 = 20;
    let config = TableConfig {
        ipv4_flows: FLOWS as usize,
        ..SIZE
    };
    let mut table = table_of(&config, &TIMEOUTS);
    let mut lanes = Lanes::default();
    for slot in 0..7 {
        lanes.set(Slot(slot), 100 + slot);
    }
    for i in 0..FLOWS {
        enter(
            &mut table,
            &key(i, protocol::UDP),
            [Slot((i % 7) as u16); 2],
            START,
        );
    }
    let (mut burst, mut found) = (Burst::default(), [0; BURST]);
    let (mut packets, mut known_late) = (PacketColumns::default(), 0);
    for _ in 0..PASSES {
        for first in (0..FLOWS).step_by(BURST) {
            packets.len = 0;
            for i in first..FLOWS.min(first + BURST as u32) {
                let FlowKey::V4(key) = key(i, protocol::UDP) else {
                    panic!("an IPv4 flow")
                };
                packets.push(Some(key), Direction::Forward, TcpFlags(0), 60);
            }
            burst.fill::<simd::scalar::Words>(&packets);
            table.prefetch_buckets(&mut burst, &packets);
            table.resolve_candidates(&mut burst);
            let mut at = 0;
            while at < packets.len {
                let until = table.hit_burst::<simd::scalar::Words>(&burst, at, START, &lanes, &mut found);
                for (place, &lane) in found.iter().enumerate().take(until).skip(at) {
                    assert_eq!(u32::from(lane), 100 + (first + place as u32) % 7);
                }
                at = until;
                if at < packets.len {
                    assert_eq!(table.lookup_in_burst(&mut burst, at), LookupOutcome::Hit);
                    known_late += 1;
                }
            }
        }
    }
    let all = u64::from(FLOWS) * PASSES;
    assert_eq!((table.counters().hits, table.counters().misses), (all, 0));
    assert!(
        known_late < all / 10,
        "{known_late} of {all} packets were found late"
    );
    for i in (0..FLOWS).step_by(997) {
        let row = table.get(&key(i, protocol::UDP), START).unwrap();
        assert_eq!(row.packets, [PASSES, 0]);
    }
}
