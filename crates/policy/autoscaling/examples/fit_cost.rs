//! Times `predictive`'s model fit and forecast on a full history, by the steps of its season. `cargo run
//! --release -p autoscaling --example fit_cost`
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "an example")]

use std::time::{Duration, Instant};

use autoscaling::Autoscaler;
use model::{
    InstanceId, InstanceObservation, InstanceSignals, InstanceState, Nanos, Observation, ServiceId, Slot,
};

/// Seconds of load that fill the history of the longest season.
const SECONDS: u64 = 3 * 1_440 + 60;

/// A noisy load that oscillates twice in 40 minutes.
fn load_pps(second: u64) -> f64 {
    let wave = (second as f64 / 1_200.0 * std::f64::consts::TAU).sin();
    // Roughly SplitMix64's finaliser: noise without a library.
    let noise = (second.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as f64 / f64::from(1 << 24);
    1e6 * (2.0 + wave + 0.2 * noise)
}

fn main() {
    for season_s in [0, 60, 300, 1_440] {
        let parameters = serde_json::json!({ "season": season_s });
        let mut policy = Autoscaler::with_parameters("predictive", parameters).unwrap();
        let mut observation = Observation {
            service: ServiceId(0),
            at: Nanos::ZERO,
            counter_age: Nanos::ZERO,
            min: 1,
            max: 64,
            wanted: 4,
            offered_fast_pps: 0.0,
            offered_stable_pps: 0.0,
            unserved_fast_pps: 0.0,
            hot: false,
            places: Vec::new(),
            instances: vec![InstanceObservation {
                id: InstanceId(1),
                slot: Slot(0),
                state: InstanceState::Active,
                capacity_pps: 1e6,
                arrivals_fast_pps: 0.0,
                arrivals_stable_pps: 0.0,
                ring_drops_fast_pps: 0.0,
                ring_occupancy: 0.0,
                signals: InstanceSignals::default(),
                busy: None,
                memory: None,
                cpu_quota: None,
                place: 0,
            }],
        };
        let mut last = None;
        for second in 1..=SECONDS {
            observation.at = Nanos::from_secs(second);
            observation.offered_fast_pps = load_pps(second);
            observation.offered_stable_pps = observation.offered_fast_pps;
            policy.step(&observation, observation.at);
            // Only the last fit, which has the whole history, is run.
            last = policy.take_fit().or(last);
        }
        let fit = last.unwrap();
        let times: Vec<Duration> = (0..5)
            .map(|_| {
                let began = Instant::now();
                let _fitted = std::hint::black_box(fit.clone().run());
                began.elapsed()
            })
            .collect();
        let (least, most) = (times.iter().min().unwrap(), times.iter().max().unwrap());
        println!("season of {season_s:4} steps: {least:.1?} to {most:.1?}");
    }
}
