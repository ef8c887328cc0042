//! Times the flow table: insertions per second by fill, lookups by number of flows, expiry, bytes per flow.
//!
//! `cargo run --release -p flow-table --example table_bench [FLOWS]` (default 16,000,000 flows of capacity: 1
//! GB). Times one thread in processor time and reports the median of rounds. Use it to compare two commits in
//! one session, not to rate a processor.

#![allow(clippy::unwrap_used, reason = "a bench")]

use std::hint::black_box;
use std::io::{self, Write};
use std::net::Ipv4Addr;

use flow_table::{Burst, FlowHasher, FlowTable, Identity, InTurn, Lanes, Line, TableConfig};
use model::{Direction, FlowKey, FlowKeyV4, Nanos, ServiceId, Slot, Timeouts};
use packet::{BURST, PacketColumns, TcpFlags};
use zerocopy::FromBytes;

/// Processor time of this thread: other load on the machine then only adds cache misses.
#[derive(Clone, Copy)]
struct Timer(f64);

impl Timer {
    fn now() -> f64 {
        clock::thread_cpu().0 as f64 / 1e9
    }

    fn start() -> Timer {
        Timer(Timer::now())
    }

    fn seconds(self) -> f64 {
        Timer::now() - self.0
    }
}

const HASHER: FlowHasher = FlowHasher::new([0x1234, 0x5678, 0x9abc, 0xdef0]);

fn key(i: u32) -> FlowKey {
    FlowKey::V4(key_v4(i))
}

fn key_v4(i: u32) -> FlowKeyV4 {
    FlowKeyV4 {
        a: Ipv4Addr::from(0x0a00_0000 + (i >> 8)).octets(),
        b: [192, 0, 2, 1],
        a_port: (i & 0xff) as u16 + 1024,
        b_port: 80,
        vlan: 0,
        protocol: 17,
        zero: 0,
    }
}

type Table = FlowTable<&'static mut [Line]>;

/// Storage in huge pages if available, unless `PAGES=small`. Its pages are populated, as in a populated
/// mapping.
fn storage(config: &TableConfig) -> &'static mut [Line] {
    let mut mapping = memmap2::MmapMut::map_anon(config.lines_needed().unwrap() * Line::BYTES).unwrap();
    if std::env::var_os("PAGES").is_none_or(|pages| pages != "small") {
        let _ = mapping.advise(memmap2::Advice::HugePage);
    }
    mapping.fill(1);
    let mapping: &'static mut memmap2::MmapMut = Box::leak(Box::new(mapping));
    <[Line]>::mut_from_bytes(&mut mapping[..]).unwrap()
}

/// Inserts flows `from..to` as a worker does for a burst of new packets: prefetch, lookup, insert, count.
fn set_up(table: &mut Table, from: u32, to: u32, now: Nanos) {
    let mut keys = [key(0); BURST];
    let mut hashes = [0; BURST];
    let mut next = from;
    while next < to {
        let n = BURST.min((to - next) as usize);
        for (i, place) in (next..).zip(&mut keys[..n]) {
            *place = key(i);
        }
        for (key, hash) in keys[..n].iter().zip(&mut hashes) {
            *hash = HASHER.hash(key);
        }
        for (key, &hash) in keys[..n].iter().zip(&hashes) {
            table.prefetch(key, hash);
        }
        for (key, &hash) in keys[..n].iter().zip(&hashes) {
            assert!(table.lookup(key, hash).is_none());
            let slot = Slot(hash as u16 & 3);
            let entry = table
                .insert(key, hash, Direction::Forward, [slot; 2], ServiceId(0), now)
                .unwrap();
            table.hit(entry, Direction::Forward, 1, 60, now, 0);
        }
        next += n as u32;
    }
}

/// Nanoseconds per packet of known flows in random order: build the key, hash, look up in bursts, count.
fn steer(table: &mut Table, flows: u32, packets: usize, now: Nanos) -> f64 {
    // The order is generated outside the measurement.
    let mut state = 0x9e37_79b9_u64;
    let order: Vec<u32> = (0..packets.min(1 << 21))
        .map(|_| {
            state = state
                .wrapping_mul(0x5851_f42d_4c95_7f2d)
                .wrapping_add(0x1405_7b7e_f767_814f);
            (((state >> 33) * u64::from(flows)) >> 31) as u32
        })
        .collect();
    let mut burst = Burst::default();
    let mut columns = PacketColumns::default();
    let mut found = [0; BURST];
    let mut lanes = Lanes::default();
    (0..4).for_each(|slot| lanes.set(Slot(slot), slot));
    let mut times: Vec<f64> = (0..5)
        .map(|_| {
            let start = Timer::start();
            let mut done = 0;
            while done < packets {
                for numbers in order.chunks_exact(BURST) {
                    columns.len = 0;
                    for &i in numbers {
                        columns.push(Some(key_v4(i)), Direction::Forward, TcpFlags(0), 60);
                    }
                    burst.fill::<simd::scalar::Words>(&columns);
                    table.prefetch_buckets(&mut burst, &columns);
                    table.resolve_candidates(&mut burst);
                    let until = table.hit_burst::<simd::scalar::Words>(&burst, 0, now, &lanes, &mut found);
                    black_box((until, &found));
                    done += BURST;
                }
            }
            start.seconds() * 1e9 / done as f64
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times[2]
}

fn main() -> io::Result<()> {
    let mut out = io::stdout().lock();
    let capacity: u32 = std::env::args()
        .nth(1)
        .and_then(|n| n.parse().ok())
        .unwrap_or(16_000_000);
    let config = TableConfig {
        ipv4_flows: capacity as usize,
        ipv6_flows: 0,
        return_counters: false,
        pin_times: false,
    };
    let bytes = config.lines_needed().unwrap() * Line::BYTES;
    writeln!(out, "capacity {capacity} flows, storage {} MiB", bytes >> 20)?;

    let now = Nanos::from_secs(1);
    let mut table = FlowTable::new(
        storage(&config),
        &config,
        &Timeouts::default(),
        HASHER,
        &Identity::default(),
        now,
    )
    .unwrap();
    let mut steps: Vec<u32> = vec![0, 5, 10, 45, 50, 85, 90, 94, 95, 99, 100];
    for pair in steps.windows(2) {
        let [from, to] =
            [pair[0], pair[1]].map(|percent| (u64::from(capacity) * u64::from(percent) / 100) as u32);
        let start = Timer::start();
        set_up(&mut table, from, to, now);
        let seconds = start.seconds();
        writeln!(
            out,
            "set-up {:3}-{:3} %: {:6.2} M flows/s, {:.1} bytes/flow, {} relocations",
            pair[0],
            pair[1],
            f64::from(to - from) / seconds / 1e6,
            bytes as f64 / f64::from(to),
            table.counters().relocations
        )?;
    }
    steps.clear();
    for flows in [32, 1_000, 10_000, 100_000, 1_000_000, capacity] {
        if flows <= capacity {
            let ns = steer(&mut table, flows, 4 << 20, now);
            writeln!(
                out,
                "hash + look up + count, {flows:8} flows of a full table: {ns:6.2} ns"
            )?;
        }
    }

    let start = Timer::start();
    let image = table.into_storage();
    let mut table =
        FlowTable::attach(image, &Identity::default(), &Timeouts::default(), now, &InTurn(1)).unwrap();
    writeln!(
        out,
        "attach: {} flows in {:.0} ms",
        table.flows(),
        start.seconds() * 1e3
    )?;

    let slot = Slot(1);
    let before = table.live(slot);
    let start = Timer::start();
    let mut longest = 0.0_f64;
    loop {
        let call = Timer::start();
        let progress = table.purge_slot(slot, 4096);
        longest = longest.max(call.seconds());
        if progress == flow_table::Progress::Done {
            break;
        }
    }
    writeln!(
        out,
        "purge of a slot with {before} flows: {:.1} ms, longest call of 4096 entries {:.1} us",
        start.seconds() * 1e3,
        longest * 1e6
    )?;

    let late = now + Nanos::from_secs(62);
    let start = Timer::start();
    let mut longest = 0.0_f64;
    let mut ended = 0_u64;
    while table.flows() > 0 {
        let call = Timer::start();
        ended += u64::from(table.expire(late, 256).flows);
        longest = longest.max(call.seconds());
    }
    let seconds = start.seconds();
    writeln!(
        out,
        "expiry of {ended} flows due at once: {:.2} M flows/s, longest call of 256 flows {:.1} us",
        ended as f64 / seconds / 1e6,
        longest * 1e6
    )?;

    let later = late + Nanos::from_secs(1);
    let half = capacity / 2;
    let start = Timer::start();
    set_up(&mut table, 0, half, later);
    writeln!(
        out,
        "set-up 0-50 % of entries used before: {:.2} M flows/s",
        f64::from(half) / start.seconds() / 1e6
    )?;
    for flows in [32, 1_000, 100_000] {
        if flows > capacity {
            continue;
        }
        let mut table = FlowTable::new(
            storage(&config),
            &config,
            &Timeouts::default(),
            HASHER,
            &Identity::default(),
            later,
        )
        .unwrap();
        set_up(&mut table, 0, flows, later);
        let ns = steer(&mut table, flows, 4 << 20, later);
        writeln!(
            out,
            "hash + look up + count, {flows:8} flows alone in the table: {ns:6.2} ns"
        )?;
    }
    Ok(())
}
