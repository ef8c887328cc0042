//! What a packet costs a worker between memif ports, there and back: from the network's ring to an instance's, and
//! from there to the network's again. Network, worker and functions take turns on one thread, and only the worker's
//! turns are timed.
//!
//! `cargo run --release -p soft-switch --example chain_cost -- [FLOWS...]` (default 32 1000 10000). Use it to compare
//! two commits in one session; with two CPUs, the rings' lines go from one cache to another on top. `COUNTED=1`
//! counts what comes back for each flow, `INSTANCES=n` takes n functions instead of 4. `TURNS=n` makes n turns and
//! prints nothing: `TURNS=2000 valgrind --tool=callgrind --toggle-collect='*Worker*::turn'
//! target/release/examples/chain_cost 1000` says where the instructions go.

#![allow(clippy::unwrap_used, reason = "a bench")]

use std::time::{Duration, Instant};

#[path = "../tests/bare/mod.rs"]
mod bare;

use bare::chain::Chain;

const ROUNDS: usize = 7;
const WINDOW: Duration = Duration::from_millis(150);

fn main() {
    let flows: Vec<u32> = std::env::args().skip(1).filter_map(|n| n.parse().ok()).collect();
    let flows = if flows.is_empty() {
        vec![32, 1_000, 10_000]
    } else {
        flows
    };
    let number = |name: &str| -> Option<u64> { std::env::var(name).ok()?.parse().ok() };
    let functions = number("INSTANCES").unwrap_or(4) as usize;
    let is_counted = number("COUNTED").is_some_and(|n| n > 0);
    for count in flows {
        let mut chain = Chain::new(count, functions, is_counted);
        if let Some(turns) = number("TURNS") {
            for _ in 0..turns {
                chain.send();
                chain.turn();
                chain.take();
            }
            continue;
        }
        let mut rounds: Vec<f64> = (0..ROUNDS).map(|_| ns_per_packet(&mut chain)).collect();
        rounds.sort_by(f64::total_cmp);
        println!(
            "{count:>8} flows: {:5.1} ns there and back, {:5.1} ns in the fastest of {ROUNDS} rounds",
            rounds[ROUNDS / 2],
            rounds[0]
        );
    }
}

/// Processor time of the worker's turns per packet that came back.
fn ns_per_packet(chain: &mut Chain) -> f64 {
    let thread_ns = || clock::thread_cpu().0 as f64;
    let (started, mut inside, mut back) = (Instant::now(), 0.0, 0);
    while started.elapsed() < WINDOW {
        chain.send();
        let before = thread_ns();
        chain.turn();
        inside += thread_ns() - before;
        back += chain.take();
    }
    inside / back as f64
}
