//! Times how long a table takes to attach, and to convert.
//!
//! `cargo run --release -p flow-table --example attach_bench [FLOWS]...` (default 1,000,000 and 16,000,000, which
//! takes 2.4 GB). Flows are TCP and UDP, of random keys, last seen at random times. Prints the processor time of one
//! thread, the median of five. `PAGES=small` takes no huge pages.

#![allow(clippy::unwrap_used, reason = "a bench")]

use std::io::{self, Write};

use flow_table::{FlowHasher, FlowTable, Identity, InTurn, Line, Numbers, TableConfig, tcp_flag};
use model::{Direction, FlowKey, FlowKeyV4, Nanos, ServiceId, Slot, Timeouts, protocol};
use zerocopy::FromBytes;

const HASHER: FlowHasher = FlowHasher::new([0x1234, 0x5678, 0x9abc, 0xdef0]);
const ROUNDS: usize = 5;

fn key(i: u32) -> FlowKey {
    let random = (u64::from(i) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    FlowKey::V4(FlowKeyV4 {
        a: i.to_be_bytes(),
        b: [203, 0, 113, (random >> 40) as u8],
        a_port: (random >> 48) as u16,
        b_port: 443,
        vlan: 0,
        protocol: if random >> 32 & 3 == 0 {
            protocol::UDP
        } else {
            protocol::TCP
        },
        zero: 0,
    })
}

/// Lines of a mapping whose pages are all there.
fn storage(lines: usize) -> &'static mut [Line] {
    let mut mapping = memmap2::MmapMut::map_anon(lines * Line::BYTES).unwrap();
    if std::env::var_os("PAGES").is_none_or(|pages| pages != "small") {
        let _ = mapping.advise(memmap2::Advice::HugePage);
    }
    mapping.fill(1);
    let mapping: &'static mut memmap2::MmapMut = Box::leak(Box::new(mapping));
    <[Line]>::mut_from_bytes(&mut mapping[..]).unwrap()
}

/// The median processor time of some rounds, in milliseconds.
fn median(mut round: impl FnMut()) -> f64 {
    let mut times: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let start = clock::thread_cpu();
            round();
            (clock::thread_cpu() - start).0 as f64 / 1e6
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times[ROUNDS / 2]
}

fn main() -> io::Result<()> {
    let mut out = io::stdout().lock();
    let mut sizes: Vec<u32> = std::env::args().skip(1).filter_map(|n| n.parse().ok()).collect();
    if sizes.is_empty() {
        sizes = vec![1_000_000, 16_000_000];
    }
    let (identity, timeouts) = (Identity::default(), Timeouts::default());
    for flows in sizes {
        let config = TableConfig {
            ipv4_flows: flows as usize,
            ipv6_flows: 0,
            return_counters: false,
            pin_times: true,
        };
        let lines = config.lines_needed().unwrap();
        let storage_of = storage(lines);
        let start = Nanos::from_secs(1000);
        let mut table =
            FlowTable::new(&mut *storage_of, &config, &timeouts, HASHER, &identity, start).unwrap();
        for i in 0..flows {
            // The flows were last seen in the 20 s before the end, in an order of their own.
            let seen = start + Nanos((u64::from(i.wrapping_mul(0x9e37_79b1)) * 20_000_000_000) >> 32);
            let (key, slot) = (key(i), Slot((i >> 3) as u16 % 64));
            let hash = HASHER.hash(&key);
            let entry = table
                .insert(&key, hash, Direction::Forward, [slot; 2], ServiceId(0), seen)
                .unwrap();
            table.hit(entry, Direction::Forward, 1, 60, seen, tcp_flag::ACK);
        }
        let left_at = start + Nanos::from_secs(20);
        table.expire(left_at, 0);
        drop(table);
        let now = left_at + Nanos::from_millis(100);
        let ms = median(|| {
            let table = FlowTable::attach(&mut *storage_of, &identity, &timeouts, now, &InTurn(1)).unwrap();
            assert_eq!(table.flows(), flows as usize);
            assert_eq!(table.attach_counts().rejected_entries(), 0);
        });
        let per_flow = ms * 1e6 / f64::from(flows);
        writeln!(
            out,
            "attach  {flows:9} flows: {ms:7.1} ms, {per_flow:5.1} ns a flow"
        )?;
        let other = storage(lines);
        let ms = median(|| {
            let sources = [&*storage_of];
            let numbers = Numbers::SAME;
            let table = FlowTable::convert(
                &mut *other,
                &config,
                &timeouts,
                HASHER,
                &identity,
                now,
                &sources,
                &numbers,
                &InTurn(1),
            );
            assert_eq!(table.unwrap().flows(), flows as usize);
        });
        let per_flow = ms * 1e6 / f64::from(flows);
        writeln!(
            out,
            "convert {flows:9} flows: {ms:7.1} ms, {per_flow:5.1} ns a flow"
        )?;
    }
    Ok(())
}
