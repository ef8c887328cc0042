//! The cost of a pick does not depend on the number of instances: compared in one run, so that the machine
//! does not matter.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::hint::black_box;
use std::time::{Duration, Instant};

use model::{Direction, FlowKey, FlowKeyV4, Nanos, PlaceId, Slot};
use scheduling::{Candidate, Candidates, NewFlow, PRIORITIES, Scheduler, Terms};

/// Short enough that many runs complete without preemption on a busy machine; the minimum counts.
const PICKS: u32 = 200;
const RUNS: u32 = 300;

/// The minimum time of [`PICKS`] picks and pins.
fn cost(name: &str, count: u16) -> Duration {
    let mut scheduler = Scheduler::from_name(name).unwrap();
    let mut candidates = Candidates::new();
    candidates.begin(Terms::default());
    for n in 0..count {
        candidates.push(Candidate {
            slot: Slot(n),
            place: PlaceId::default(),
            capacity: 1e9,
            load: f32::from(n.wrapping_mul(7919) % 997),
            trust: 1.0,
            weight: 256,
            live_flows: 1,
            active_for: Nanos::from_secs(10),
            queues: [0.0; PRIORITIES],
        });
    }
    scheduler.settle(&candidates);
    let key = FlowKey::V4(FlowKeyV4::default());
    let run = |run: u32| {
        let began = Instant::now();
        for n in 0..PICKS {
            let flow = NewFlow {
                key: &key,
                direction: Direction::Forward,
                hash: u64::from(run * PICKS + n).wrapping_mul(0x9e37_79b9_7f4a_7c15),
                expected: 1.0,
                dscp: (n % 64) as u8,
                among: &[],
            };
            let index = scheduler.pick(black_box(&flow), &candidates).index().unwrap();
            candidates.pin(black_box(index), &flow);
        }
        began.elapsed()
    };
    (0..RUNS).map(run).min().unwrap()
}

#[test]
fn a_pick_does_not_visit_every_instance() {
    for name in Scheduler::NAMES {
        let few = cost(name, 8);
        // Visiting each would be a factor of 128.
        let many = cost(name, 1024);
        assert!(
            many <= few * 6,
            "{name}: {PICKS} picks take {few:?} with 8 instances and {many:?} with 1024"
        );
    }
}
