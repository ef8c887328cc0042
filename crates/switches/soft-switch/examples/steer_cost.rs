//! What steering adds to receiving and sending, on one thread: a worker that is driven turn by turn, and beside it
//! the same packets received from a like device and sent at once to a like sink, or dealt to as many sinks as the
//! worker has, in alternating rounds. Dealing looks at no packet: no steering can be cheaper.
//!
//! `cargo run --release -p soft-switch --features dpdk --example steer_cost -- [FLOWS...]` (default 32 1000 10000
//! 100000). It needs no peers and no root; use it to compare two commits in one session. `TURNS=n` makes n turns and
//! nothing else: `TURNS=2000 valgrind --tool=callgrind target/release/examples/steer_cost 1000` says where the
//! instructions go. `SINK=null` sends to the switch's own sinks, `INSTANCES=n` to n of them instead of 4, `SIZE=n`
//! makes frames of n bytes instead of 64, `HUGE=1` takes hugepages.

#![allow(clippy::unwrap_used, reason = "a bench")]

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use dpdk::device::from_shorthand;
use dpdk::{DeviceArgs, Eal, EalConfig, Mempool, MempoolConfig};
use model::Nanos;
use packet::build::Frame;
use packet::capture::{CaptureWriter, Captured};
use soft_switch::{Device, DpdkQueue, MbufMemory, Port, Sizes};

#[path = "../tests/bare/mod.rs"]
mod bare;

const MAX_FRAME: usize = 1522;
const ROUNDS: usize = 7;
const WINDOW: Duration = Duration::from_millis(150);
const BURST: usize = 64;
/// Sinks that packets are dealt to at most: DPDK has no more than 32 devices.
const DEALT_LIMIT: u64 = 8;

fn main() {
    let flows: Vec<u32> = std::env::args().skip(1).filter_map(|n| n.parse().ok()).collect();
    let flows = if flows.is_empty() {
        vec![32, 1_000, 10_000, 100_000]
    } else {
        flows
    };
    let is_set = |name: &str| std::env::var_os(name).is_some();
    let number = |name: &str| -> Option<u64> { std::env::var(name).ok()?.parse().ok() };
    let instances = number("INSTANCES").unwrap_or(4);
    let size = number("SIZE").unwrap_or(64) as usize;
    let turns = number("TURNS");
    // Each source keeps its capture in mbufs.
    let mbufs = 3 * flows.iter().sum::<u32>() + 32_768;
    let config = MempoolConfig {
        mbufs,
        ..MempoolConfig::default()
    };
    let hugepages = is_set("HUGE");
    let eal = EalConfig {
        memory_mib: (config.memory_bytes(hugepages) >> 20) as u32 + 128,
        hugepages,
        ..EalConfig::new(format!("steer-cost-{}", std::process::id()))
    };
    let eal = Eal::init(&eal.args()).unwrap();
    let pool = Mempool::create(&eal, &config).unwrap();
    let _registered = eal.register_thread().unwrap();
    let memory = || MbufMemory::shares(1, pool).remove(0);
    let open = |device: &DeviceArgs| {
        let opened = DpdkQueue::open(&eal, device, pool, 1, 0, MAX_FRAME).unwrap();
        opened.queues.into_iter().next().unwrap()
    };
    let folder = tempfile::tempdir().unwrap();
    let sizes = Sizes {
        shortest: size as u32,
        longest: size as u32,
    };
    for (case, &count) in flows.iter().enumerate() {
        let capture = folder.path().join(format!("{case}.pcap"));
        write_capture(&capture, count, size);
        let source = || open(&from_shorthand(&format!("pcap:{},loop", capture.display())).unwrap());
        let sink = |n: u64| open(&DeviceArgs::named(format!("net_null{case}{n},no-rx=1")));
        let sinks = (0..instances).map(|n| match is_set("SINK") {
            true => Port::null(),
            false => Port::device(sink(n), Arc::new(AtomicBool::new(true))),
        });
        let mut bare = bare::bare(count as usize + 10_000, memory(), sinks.collect());
        bare.attach_uplink(Port::device(source(), Arc::new(AtomicBool::new(true))));
        let worker = &mut bare.worker;
        if let Some(turns) = turns {
            for turn in 0..turns {
                worker.turn(Nanos(1_000_000_000 + turn * 5_000));
            }
            continue;
        }
        let (mut limit_in, mut limit_out) = (source(), sink(instances));
        let mut frames = Vec::with_capacity(BURST);
        let mut limit = || {
            limit_in.receive(&mut frames, BURST);
            let moved = frames.len();
            limit_out.send(&mut frames, MAX_FRAME, Some(sizes));
            moved
        };
        let mut dealt_in = source();
        let mut dealt_out: Vec<_> = (0..instances.min(DEALT_LIMIT))
            .map(|n| (sink(instances + 1 + n), Vec::with_capacity(BURST)))
            .collect();
        let (mut received, mut next) = (Vec::with_capacity(BURST), 0);
        let mut deal = || {
            dealt_in.receive(&mut received, BURST);
            let moved = received.len();
            for frame in received.drain(..) {
                dealt_out[next].1.push(frame);
                next = (next + 1) % dealt_out.len();
            }
            for (sink, frames) in &mut dealt_out {
                sink.send(frames, MAX_FRAME, Some(sizes));
            }
            moved
        };
        let started = Instant::now();
        let mut steer = || worker.turn(Nanos(1_000_000_000 + started.elapsed().as_nanos() as u64));
        let rounds: Vec<[f64; 3]> = (0..ROUNDS)
            .map(|_| {
                [
                    ns_per_packet(&mut limit),
                    ns_per_packet(&mut deal),
                    ns_per_packet(&mut steer),
                ]
            })
            .collect();
        let median = |of: &dyn Fn(&[f64; 3]) -> f64| {
            let mut all: Vec<f64> = rounds.iter().map(of).collect();
            all.sort_by(f64::total_cmp);
            all[ROUNDS / 2]
        };
        println!(
            "{count:>8} flows: {:5.1} ns in and out, {:5.1} ns dealt, {:5.1} ns with steering: {:.3} and {:.3} of the limit",
            median(&|round| round[0]),
            median(&|round| round[1]),
            median(&|round| round[2]),
            median(&|round| round[0] / round[1]),
            median(&|round| round[0] / round[2]),
        );
    }
}

/// Processor time per packet that `step` moves.
fn ns_per_packet(step: &mut impl FnMut() -> usize) -> f64 {
    let warm_up = Instant::now();
    while warm_up.elapsed() < WINDOW / 5 {
        step();
    }
    let thread_ns = || clock::thread_cpu().0 as f64;
    let (started, before) = (Instant::now(), thread_ns());
    let mut moved = 0;
    while started.elapsed() < WINDOW {
        for _ in 0..16 {
            moved += step();
        }
    }
    (thread_ns() - before) / moved as f64
}

/// A capture with a UDP frame of so many bytes for each flow.
fn write_capture(path: &Path, flows: u32, size: usize) {
    /// Ethernet, IPv4 and UDP.
    const HEADERS: usize = 42;
    let payload = vec![0; size.saturating_sub(HEADERS)];
    let mut writer = CaptureWriter::new();
    for flow in 0..flows {
        let [_, a, b, c] = (flow.wrapping_mul(0x9e_37b1) & 0xff_ffff).to_be_bytes();
        let src = SocketAddr::from(([10, a, b, c], 1024 + (flow % 50_000) as u16));
        let dst = SocketAddr::from(([192, 168, 1, flow as u8 & 15], 80));
        let frame = Frame::udp(src, dst, &payload).unwrap().to_vec().unwrap();
        writer.push(&Captured {
            timestamp_ns: u64::from(flow),
            frame: &frame,
            original_len: frame.len() as u32,
        });
    }
    std::fs::write(path, writer.written()).unwrap();
}
