//! What a pick costs: nanoseconds per new flow for each policy and number of instances, all in one run.
//! `cargo run --release -p scheduling --example pick_cost`

use std::hint::black_box;
use std::io::Write;
use std::time::Instant;

use model::{FlowKey, FlowKeyV4, Slot};
use scheduling::{Candidate, NewFlow, Scheduler, UnknownScheduler};

const ROUNDS: u32 = 200_000;

fn main() -> Result<(), UnknownScheduler> {
    let key = FlowKey::V4(FlowKeyV4::default());
    let mut out = std::io::stdout().lock();
    for name in Scheduler::NAMES {
        for count in [8u16, 64, 256] {
            let mut scheduler = Scheduler::from_name(name)?;
            let mut candidates: Vec<Candidate> = (0..count)
                .map(|n| Candidate {
                    slot: Slot(n),
                    capacity_pps: 1e6,
                    load_pps: f32::from(n.wrapping_mul(7919) % 997) * 100.0,
                    weight: 256,
                    live_flows: 0,
                })
                .collect();
            let mut best = f64::INFINITY;
            for _ in 0..5 {
                let began = Instant::now();
                for n in 0..ROUNDS {
                    let flow = NewFlow {
                        key: &key,
                        hash: u64::from(n),
                        expected_pps: 1.0,
                        dscp: 0,
                    };
                    if let Some(index) = black_box(scheduler.pick(&flow, black_box(&candidates), 0.9)).index()
                        && let Some(chosen) = candidates.get_mut(index)
                    {
                        chosen.load_pps += 0.01;
                    }
                }
                best = best.min(began.elapsed().as_nanos() as f64 / f64::from(ROUNDS));
            }
            // A closed pipe ends the listing and nothing else.
            let _closed = writeln!(out, "{name:12} {count:4} instances {best:7.1} ns");
        }
    }
    Ok(())
}
