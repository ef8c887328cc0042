//! What a fuzzer does with a persisted table: `run` takes an input. `tests/fuzz.rs` replays `fuzz/corpora/table` with
//! it, and `fuzz/fuzz_targets/table.rs` gives it new inputs.

use std::net::{Ipv4Addr, Ipv6Addr};

use flow_table::{
    DumpCursor, FlowHasher, FlowTable, Identity, InTurn, Line, Numbers, Progress, TableConfig, inspect,
    tcp_flag,
};
use model::{Direction, FlowKey, Nanos, ServiceId, Slot, Timeouts, Tuple, protocol};
use zerocopy::IntoBytes as _;

const HASHER: FlowHasher = FlowHasher::new([41, 42, 43, 44]);
const SIZE: TableConfig = TableConfig {
    ipv4_flows: 40,
    ipv6_flows: 10,
    return_counters: true,
    pin_times: true,
};
const IDENTITY: Identity = Identity {
    boot: [3; 16],
    configuration: 3,
    worker: 0,
    workers: 1,
};
const LEFT_AT: Nanos = Nanos::from_secs(3000);
const NOW: Nanos = Nanos::from_secs(3001);

/// Bytes of a change: the line and the word that are changed, how, and by which value.
const CHANGE: usize = 12;

/// The longest input: a table of some hundred lines, or as many changes.
pub(crate) const INPUT_LIMIT: usize = 1 << 16;

fn key(i: u32) -> FlowKey {
    let tuple = if i.is_multiple_of(5) {
        Tuple {
            src: Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, i as u16).into(),
            dst: Ipv6Addr::LOCALHOST.into(),
            src_port: 1,
            dst_port: 2,
            protocol: protocol::UDP,
            vlan: 0,
        }
    } else {
        Tuple {
            src: Ipv4Addr::from(0x0a00_0000 + i).into(),
            dst: Ipv4Addr::BROADCAST.into(),
            src_port: 1,
            dst_port: 2,
            protocol: protocol::TCP,
            vlan: 0,
        }
    };
    FlowKey::new(&tuple).0
}

/// A table with flows, a carry, a hole, and a purge under way.
fn base() -> Vec<Line> {
    let mut storage = vec![Line::ZERO; SIZE.lines_needed().unwrap_or(0)];
    let timeouts = Timeouts::default();
    let Ok(mut table) = FlowTable::new(&mut storage[..], &SIZE, &timeouts, HASHER, &IDENTITY, LEFT_AT) else {
        return storage;
    };
    for i in 0..40 {
        let (key, pins) = (key(i), [Slot(i as u16 % 6), Slot(7)]);
        let hash = HASHER.hash(&key);
        if let Ok(entry) = table.insert(
            &key,
            hash,
            Direction::Forward,
            pins,
            ServiceId(i as u16 % 4),
            LEFT_AT,
        ) {
            table.hit(
                entry,
                Direction::Forward,
                10_000 * i,
                1 << 20,
                LEFT_AT,
                tcp_flag::ACK,
            );
        }
    }
    table.purge(&key(3), HASHER.hash(&key(3)));
    let _ = table.fail_slot(Slot(2), 5);
    table.expire(LEFT_AT, 10);
    storage
}

/// An input: if its first byte is even, the rest is the storage; else it is changes of a good table.
fn storage(input: &[u8]) -> Vec<Line> {
    let Some((&kind, rest)) = input.split_first() else {
        return Vec::new();
    };
    let rest = &rest[..rest.len().min(INPUT_LIMIT)];
    if kind % 2 == 0 {
        let mut lines = vec![Line::ZERO; rest.len().div_ceil(Line::BYTES)];
        lines.as_mut_bytes()[..rest.len()].copy_from_slice(rest);
        return lines;
    }
    let mut lines = base();
    for change in rest.chunks_exact(CHANGE) {
        let [l0, l1, word, how, value @ ..] = change else {
            continue;
        };
        let line = usize::from(u16::from_le_bytes([*l0, *l1])) % lines.len();
        let value = value
            .iter()
            .rev()
            .fold(0, |value, &byte| value << 8 | u64::from(byte));
        let place = &mut lines[line].0[usize::from(*word) % 8];
        *place = match how % 3 {
            0 => value,
            1 => *place ^ value,
            _ => place.wrapping_add(value),
        };
    }
    lines
}

/// Takes over what an input holds, and uses it. Panics if the table contradicts itself.
pub(crate) fn run(input: &[u8]) {
    let lines = storage(input);
    let timeouts = Timeouts::default();
    let converted = SIZE.lines_needed().ok().and_then(|needed| {
        let storage = vec![Line::ZERO; needed];
        FlowTable::convert(
            storage,
            &SIZE,
            &timeouts,
            HASHER,
            &IDENTITY,
            NOW,
            &[&lines],
            &Numbers::SAME,
            &InTurn(3),
        )
        .ok()
    });
    let identity = inspect(&lines).map_or(IDENTITY, |found| found.identity);
    let attach = |parts| FlowTable::attach(lines.clone(), &identity, &timeouts, NOW, &InTurn(parts)).ok();
    let attached = attach(1);
    // In how many parts it was attached cannot be seen.
    let of = |table: FlowTable<_>| (*table.attach_counts(), *table.live_all(), table.into_storage());
    assert_eq!(attach(1).map(of), attach(3).map(of));
    for table in [converted, attached].into_iter().flatten() {
        exercise(table);
    }
}

/// Calls everything that a worker calls. What the table says of itself must agree.
fn exercise(mut table: FlowTable<Vec<Line>>) {
    let mut keys = Vec::new();
    let mut pins = vec![0_u32; Slot::LIMIT];
    let mut cursor = Some(DumpCursor::default());
    while let Some(from) = cursor {
        cursor = table.dump(from, 64, NOW, |row| {
            keys.push(row.key);
            for (direction, pin) in row.pins.iter().enumerate() {
                if pin.is_some() && (direction == 0 || row.pins[0] != *pin) {
                    pins[pin.index()] += 1;
                }
            }
        });
    }
    assert_eq!(
        (table.flows(), table.attach_counts().flows as usize),
        (keys.len(), keys.len())
    );
    assert_eq!(table.live_all()[..], pins[..]);
    for (i, key) in keys.iter().enumerate() {
        let hash = table.hasher().hash(key);
        let Some(entry) = table.lookup(key, hash) else {
            panic!("a flow that is not found by its key: {key:?}");
        };
        assert_eq!(table.key(entry), *key);
        let flags = [tcp_flag::SYN, tcp_flag::ACK, tcp_flag::FIN, tcp_flag::RST][i % 4];
        table.hit(entry, Direction::Reverse, 1 << 20, 1 << 30, NOW, flags);
        table.set_pins(entry, [Slot(8), Slot(9)], NOW);
        table.count_returned(entry, 1);
    }
    for i in 1000..1100 {
        let key = key(i);
        let hash = table.hasher().hash(&key);
        if table.lookup(&key, hash).is_none() {
            let _ = table.insert(&key, hash, Direction::Forward, [Slot(8); 2], ServiceId(0), NOW);
        }
    }
    while table.fail_slot(Slot(8), 64) == Progress::Pending {}
    for key in keys.iter().step_by(2) {
        let hash = table.hasher().hash(key);
        assert!(table.purge(key, hash));
    }
    // Some flows end, others are looked at again; in the end none is left. Each step passes all slots of the wheels.
    for seconds in [1, 60, 3600, 7200, 40 * 3600] {
        while table.expire(NOW + Nanos::from_secs(seconds), 1000).behind {}
    }
    assert_eq!((table.flows(), table.live_all().iter().sum::<u32>()), (0, 0));
}
