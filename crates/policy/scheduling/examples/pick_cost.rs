//! The cost of a pick, in nanoseconds per new flow including its pin, by policy and number of instances, and
//! of rebuilding the candidate list, all in one run.
//! `cargo run --release -p scheduling --example pick_cost`

use std::hint::black_box;
use std::io::Write;
use std::time::Instant;

use model::{Direction, FlowKey, FlowKeyV4, Nanos, PlaceId, Slot};
use scheduling::{Candidate, Candidates, NewFlow, PRIORITIES, Scheduler, Terms, UnknownScheduler};

const ROUNDS: u32 = 20_000;
/// Flows between two lists: a millisecond at a million new flows per second.
const FLOWS_PER_LIST: u32 = 1000;
/// Runs per figure. The minimum counts: anything above it is other load on the machine.
const RUNS: usize = 40;

fn fill(candidates: &mut Candidates, count: u16, at: Nanos) {
    candidates.begin(Terms {
        at,
        ..Terms::default()
    });
    for n in 0..count {
        candidates.push(Candidate {
            slot: Slot(n),
            place: PlaceId::default(),
            capacity: 1e6,
            load: f32::from(n.wrapping_mul(7919) % 997) * 100.0,
            trust: 1.0,
            weight: 256,
            live_flows: 1,
            active_for: Nanos::from_secs(10),
            queues: [0.0; PRIORITIES],
        });
    }
}

fn main() -> Result<(), UnknownScheduler> {
    let mut out = std::io::stdout().lock();
    for name in Scheduler::NAMES {
        for count in [8u16, 64, 256, 1024] {
            let mut scheduler = Scheduler::from_name(name)?;
            let mut candidates = Candidates::new();
            fill(&mut candidates, count, Nanos::ZERO);
            scheduler.settle(&candidates);
            let (mut pick, mut list) = (f64::INFINITY, f64::INFINITY);
            for run in 0..RUNS {
                let began = Instant::now();
                for n in 0..ROUNDS {
                    let key = FlowKey::V4(FlowKeyV4 {
                        a: n.to_be_bytes(),
                        b: [10, 0, 0, 1],
                        a_port: 1000,
                        b_port: 80,
                        protocol: 6,
                        ..FlowKeyV4::default()
                    });
                    let flow = NewFlow {
                        key: &key,
                        direction: Direction::Forward,
                        hash: u64::from(n).wrapping_mul(0x9e37_79b9_7f4a_7c15),
                        expected: 1.0,
                        dscp: (n % 64) as u8,
                        among: &[],
                    };
                    let picked = scheduler.pick(black_box(&flow), &candidates);
                    if let Some(index) = black_box(picked).index() {
                        candidates.pin(index, &flow);
                    }
                }
                pick = pick.min(began.elapsed().as_nanos() as f64 / f64::from(ROUNDS));
                let lists = ROUNDS / FLOWS_PER_LIST;
                let began = Instant::now();
                for n in 0..lists {
                    let at = Nanos::from_millis(u64::from(n) + 1 + run as u64 * u64::from(lists));
                    fill(&mut candidates, count, at);
                    scheduler.follow(black_box(&candidates));
                }
                list = list.min(began.elapsed().as_nanos() as f64 / f64::from(lists));
            }
            // A closed pipe only ends the listing.
            let _closed = writeln!(
                out,
                "{name:18} {count:4} instances {pick:6.1} ns a flow {list:8.0} ns a list"
            );
        }
    }
    Ok(())
}
