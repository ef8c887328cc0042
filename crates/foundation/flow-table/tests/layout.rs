//! Memory per flow, the reachable fill, and the layout of each version.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;

use flow_table::{
    AttachCounts, DumpCursor, FlowHasher, FlowRow, FlowTable, Full, Identity, InTurn, Line, Numbers,
    Ownership, TableConfig, TableError, layout, tcp_flag,
};
use model::{Direction, FlowKey, Nanos, ServiceId, Slot, Timeouts, Tuple, protocol};
use zerocopy::IntoBytes as _;

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

// The layout of each version.

const REFERENCE: TableConfig = TableConfig {
    ipv4_flows: 24,
    ipv6_flows: 8,
    return_counters: true,
    pin_times: true,
};
const REFERENCE_HASHER: FlowHasher = FlowHasher::new([31, 32, 33, 34]).owning(Ownership::Card);
const REFERENCE_IDENTITY: Identity = Identity {
    boot: *b"a boot of a host",
    configuration: 0x1234_5678_9abc_def0,
    worker: 0,
    workers: 2,
};
const MADE_AT: Nanos = Nanos::from_secs(5000);
const LEFT_AT: Nanos = Nanos::from_secs(5040);

fn reference_key(i: u32) -> FlowKey {
    let (src, dst): (IpAddr, IpAddr) = if i.is_multiple_of(3) {
        (
            Ipv6Addr::new(0x2001, 0xdb8, 1, 2, 3, 4, 5, i as u16).into(),
            Ipv6Addr::new(0x2001, 0xdb8, 6, 7, 8, 9, 10, 11).into(),
        )
    } else {
        (
            Ipv4Addr::new(10, 1, 2, i as u8).into(),
            Ipv4Addr::new(192, 0, 2, 200).into(),
        )
    };
    let tuple = Tuple {
        src,
        dst,
        src_port: 40_000 + i as u16,
        dst_port: 443,
        protocol: if i.is_multiple_of(2) {
            protocol::TCP
        } else {
            protocol::UDP
        },
        vlan: i as u16 % 5,
    };
    FlowKey::new(&tuple).0
}

/// A table with something in each column: left by a process that was killed while it purged a slot.
fn reference_table() -> Vec<Line> {
    let mut storage = vec![Line::ZERO; REFERENCE.lines_needed().unwrap()];
    let mut table = FlowTable::new(
        &mut storage[..],
        &REFERENCE,
        &Timeouts::default(),
        REFERENCE_HASHER,
        &REFERENCE_IDENTITY,
        MADE_AT,
    )
    .unwrap();
    for i in 0..40 {
        let key = reference_key(i);
        if REFERENCE_HASHER.owner(&key, 2) != 0 {
            continue;
        }
        let now = MADE_AT + Nanos::from_secs(u64::from(i));
        let pins = [Slot(i as u16 % 7), Slot(100 + i as u16 % 3)];
        let (hash, opener) = (
            REFERENCE_HASHER.hash(&key),
            [Direction::Forward, Direction::Reverse][i as usize % 2],
        );
        let Ok(entry) = table.insert(&key, hash, opener, pins, ServiceId(i as u16 % 9), now) else {
            continue;
        };
        table.hit(
            entry,
            Direction::Forward,
            70_000 * i,
            1 << i.min(30),
            now,
            tcp_flag::ACK,
        );
        table.hit(
            entry,
            Direction::Reverse,
            3,
            1000,
            now,
            if i.is_multiple_of(4) { tcp_flag::FIN } else { 0 },
        );
        table.count_returned(entry, u64::from(i));
        table.count_dropped(entry, 1);
    }
    table.expire(LEFT_AT, 100);
    let _ = table.fail_slot(Slot(3), 1);
    storage
}

fn rows(table: &FlowTable<Vec<Line>>, now: Nanos) -> Vec<FlowRow> {
    let mut rows = Vec::new();
    let end = table.dump(DumpCursor::default(), 10_000, now, |row| rows.push(row));
    assert_eq!(end, None);
    rows.sort_by_key(|row| row.key);
    rows
}

fn attach(storage: Vec<Line>, now: Nanos) -> FlowTable<Vec<Line>> {
    FlowTable::attach(
        storage,
        &REFERENCE_IDENTITY,
        &Timeouts::default(),
        now,
        &InTurn(3),
    )
    .unwrap()
}

fn convert(
    size: &TableConfig,
    identity: &Identity,
    now: Nanos,
    sources: &[&[Line]],
    numbers: &Numbers<'_>,
) -> Result<FlowTable<Vec<Line>>, TableError> {
    FlowTable::convert(
        vec![Line::ZERO; size.lines_needed().unwrap()],
        size,
        &Timeouts::default(),
        REFERENCE_HASHER,
        identity,
        now,
        sources,
        numbers,
        &InTurn(3),
    )
}

fn file_of(version: u64) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("tests/layouts/v{version}.table"))
}

/// The reference table as a program of that layout version left it.
fn released(version: u64) -> Vec<Line> {
    let bytes = std::fs::read(file_of(version)).unwrap();
    let mut lines = vec![Line::ZERO; bytes.len() / Line::BYTES];
    lines.as_mut_bytes().copy_from_slice(&bytes);
    lines
}

/// A changed layout without a new version is found here: see `layout` for the steps.
#[test]
fn the_layout_of_this_version_is_as_it_was_released() {
    let table = reference_table();
    if std::env::var_os("INCO_WRITE_REFERENCE").is_some() {
        std::fs::create_dir_all(file_of(0).parent().unwrap()).unwrap();
        std::fs::write(file_of(layout::VERSION), table.as_bytes()).unwrap();
    }
    let released = released(layout::VERSION);
    let changed: Vec<usize> = (0..table.len().max(released.len()))
        .filter(|&line| table.get(line) != released.get(line))
        .collect();
    assert!(
        changed.is_empty(),
        "lines {changed:?} of the storage are not as layout version {} has them: raise it, and follow the steps in \
         src/layout.rs",
        layout::VERSION
    );
}

/// The layout of the release before, where there is one, and this one.
#[test]
fn flows_of_the_release_before_are_taken_over() {
    let now = LEFT_AT + Nanos::from_secs(9);
    let expected = rows(&attach(reference_table(), now), now);
    assert!(expected.len() > 12);
    for version in [layout::VERSION - 1, layout::VERSION] {
        if version == 0 {
            // No release has had a table that outlives it before version 1.
            continue;
        }
        let released = released(version);
        let table = convert(&REFERENCE, &REFERENCE_IDENTITY, now, &[&released], &Numbers::SAME).unwrap();
        assert_eq!(rows(&table, now), expected, "layout version {version}");
        assert_eq!(
            (
                table.attach_counts().flows as usize,
                table.attach_counts().rejected_entries()
            ),
            (expected.len(), 0)
        );
    }
    let mut later = reference_table();
    later[0].0[1] += 1;
    let error = convert(&REFERENCE, &REFERENCE_IDENTITY, now, &[&later], &Numbers::SAME).err();
    let (found, supported) = (layout::VERSION + 1, layout::VERSION);
    assert_eq!(error, Some(TableError::LayoutVersion { found, supported }));
}

/// Two workers become one, then three; a slot and a service get other numbers, another slot and service are gone.
#[test]
fn flows_go_to_tables_of_other_sizes_workers_and_numbers() {
    let other_worker = Identity {
        worker: 1,
        ..REFERENCE_IDENTITY
    };
    let mut second = FlowTable::new(
        vec![Line::ZERO; REFERENCE.lines_needed().unwrap()],
        &REFERENCE,
        &Timeouts::default(),
        REFERENCE_HASHER,
        &other_worker,
        MADE_AT,
    )
    .unwrap();
    for i in 0..40 {
        let key = reference_key(i);
        if REFERENCE_HASHER.owner(&key, 2) == 1 {
            let hash = REFERENCE_HASHER.hash(&key);
            let pins = [Slot(1), Slot(2)];
            let _ = second.insert(&key, hash, Direction::Forward, pins, ServiceId(1), LEFT_AT);
        }
    }
    second.expire(LEFT_AT, 100);
    let (first, second) = (reference_table(), second.into_storage());
    let sources = [&first[..], &second[..]];
    let large = TableConfig {
        ipv4_flows: 100,
        ipv6_flows: 50,
        return_counters: false,
        pin_times: true,
    };
    let numbers = Numbers {
        service: &|ServiceId(service)| (service != 5).then_some(ServiceId(service + 1)),
        slot: &|Slot(slot)| (slot != 101).then_some(Slot(slot + 10)),
    };
    let one = Identity {
        configuration: 99,
        workers: 1,
        ..REFERENCE_IDENTITY
    };
    let mut expected = rows(&attach(first.clone(), LEFT_AT), LEFT_AT);
    let theirs = FlowTable::attach(
        second.clone(),
        &other_worker,
        &Timeouts::default(),
        LEFT_AT,
        &InTurn(3),
    )
    .unwrap();
    expected.extend(rows(&theirs, LEFT_AT));
    let gone = expected.iter().filter(|row| row.service == ServiceId(5)).count() as u64;
    expected.retain(|row| row.service != ServiceId(5));
    expected.sort_by_key(|row| row.key);
    for row in &mut expected {
        row.service.0 += 1;
        (row.returned, row.dropped) = (None, None);
        for (pin, pinned_at) in row.pins.iter_mut().zip(&mut row.pinned_at) {
            if *pin == Slot(101) {
                (*pin, *pinned_at) = (Slot::NONE, None);
            } else if pin.is_some() {
                pin.0 += 10;
            }
        }
    }
    let table = convert(&large, &one, LEFT_AT, &sources, &numbers).unwrap();
    let counts = *table.attach_counts();
    assert!(gone > 0 && counts.unpinned > 0);
    assert_eq!(
        (counts.flows as usize, counts.unknown_services),
        (expected.len(), gone)
    );
    assert_eq!(counts.rejected_entries(), gone);
    assert_eq!(rows(&table, LEFT_AT), expected);
    // The converted table is one to attach, and to convert again.
    let source = table.into_storage();
    let same = FlowTable::attach(source.clone(), &one, &Timeouts::default(), LEFT_AT, &InTurn(3)).unwrap();
    assert_eq!(rows(&same, LEFT_AT), expected);
    let mut of_three = Vec::new();
    for worker in 0..3 {
        let identity = Identity {
            worker,
            workers: 3,
            ..one
        };
        let table = convert(&large, &identity, LEFT_AT, &[&source], &Numbers::SAME).unwrap();
        assert_eq!(table.attach_counts().rejected_entries(), 0);
        of_three.extend(rows(&table, LEFT_AT));
    }
    of_three.sort_by_key(|row| row.key);
    assert_eq!(of_three, expected);
    // What does not fit is counted, and another boot's times mean nothing.
    let small = TableConfig {
        ipv4_flows: 3,
        ipv6_flows: 2,
        ..large
    };
    let table = convert(&small, &one, LEFT_AT, &[&source], &Numbers::SAME).unwrap();
    let no_room = expected.len() as u64 - 5;
    assert_eq!(
        *table.attach_counts(),
        AttachCounts {
            flows: 5,
            no_room,
            ..AttachCounts::default()
        }
    );
    let boot = *b"another boot....";
    let error = convert(
        &large,
        &Identity { boot, ..one },
        LEFT_AT,
        &[&source],
        &Numbers::SAME,
    )
    .err();
    assert_eq!(error, Some(TableError::OtherBoot));
}
