//! Searches of modelled devices.
#![allow(clippy::unwrap_used, reason = "a test fails by it")]

use std::time::Duration;

use proptest::prelude::*;
use rate_search::{Config, Counted, Error, Found, Goal, Search, Step, Trial};

/// More trials than any search of these tests needs.
const TRIALS_LIMIT: usize = 400;

fn config(goals: &[Goal]) -> Config {
    Config {
        goals: goals.to_vec(),
        min_pps: 1_000,
        max_pps: 100_000_000,
        duration_limit: Duration::from_secs(100_000),
    }
}

fn goals(width: f64) -> [Goal; 2] {
    let ndr = Goal {
        relative_width: width,
        initial_trial: Duration::from_millis(100),
        duration_sum: Duration::from_secs(3),
        preceding_targets: 2,
        ..Goal::ndr(Duration::from_secs(1))
    };
    [
        ndr,
        Goal {
            loss_ratio: 0.005,
            ..ndr
        },
    ]
}

/// Runs a search to its end. Returns what it found and its number of trials.
fn search(config: &Config, mut device: impl FnMut(Trial) -> Counted) -> (Vec<Found>, usize) {
    let mut search = Search::new(config.clone()).unwrap();
    loop {
        match search.step() {
            Step::Done(found) => return (found, search.trials()),
            Step::Measure(trial) => {
                assert!(
                    (config.min_pps..=config.max_pps).contains(&trial.pps),
                    "{trial:?}"
                );
                assert_eq!(
                    search.step(),
                    Step::Measure(trial),
                    "it is named until it is recorded"
                );
                search.record(device(trial)).unwrap();
                assert!(search.trials() < TRIALS_LIMIT, "no end: {trial:?}");
            }
        }
    }
}

/// Forwards up to `capacity` packets per second.
fn sharp(capacity: f64) -> impl Fn(Trial) -> Counted {
    move |trial| {
        let offered = (trial.pps as f64 * trial.duration.as_secs_f64()) as u64;
        let most = (capacity * trial.duration.as_secs_f64()) as u64;
        Counted {
            offered,
            forwarded: offered.min(most),
        }
    }
}

#[test]
fn the_ends_of_the_range_are_answers() {
    let config = config(&goals(0.01));
    let (found, trials) = search(&config, sharp(1e9));
    for of in &found {
        assert_eq!(
            (of.lower_pps, of.upper_pps, of.complete),
            (Some(100_000_000), None, true)
        );
    }
    assert!(trials <= 8, "{trials}");
    let (found, _) = search(&config, sharp(10.0));
    for of in &found {
        assert_eq!(
            (of.lower_pps, of.upper_pps, of.complete),
            (None, Some(1_000), true)
        );
        assert_eq!(of.throughput_pps, None);
    }
}

#[test]
fn a_device_that_collapses_above_its_threshold_is_found() {
    // Receive livelock: above its threshold it forwards next to nothing.
    let device = |trial: Trial| {
        let offered = (trial.pps as f64 * trial.duration.as_secs_f64()) as u64;
        let forwarded = if trial.pps <= 2_000_000 {
            offered
        } else {
            offered / 1000
        };
        Counted { offered, forwarded }
    };
    let (found, trials) = search(&config(&goals(0.01)), device);
    for of in found {
        let (lower, upper) = (of.lower_pps.unwrap(), of.upper_pps.unwrap());
        assert!(lower <= 2_000_000 && upper > 2_000_000 && of.complete, "{of:?}");
    }
    assert!(trials < 60, "{trials}");
}

#[test]
fn a_search_ends_with_its_time() {
    let mut config = config(&goals(0.001));
    config.duration_limit = Duration::from_secs(1);
    let (found, trials) = search(&config, sharp(3e6));
    assert!(found.iter().all(|of| !of.complete), "{found:?}");
    assert!(trials < 12, "{trials}");
}

#[test]
fn what_is_out_of_range_is_refused() {
    let good = config(&goals(0.01));
    let refused = |change: fn(&mut Config)| {
        let mut config = good.clone();
        change(&mut config);
        Search::new(config).err()
    };
    assert_eq!(refused(|_| {}), None);
    assert_eq!(refused(|of| of.goals.clear()), Some(Error::NoGoal));
    assert!(matches!(refused(|of| of.min_pps = 0), Some(Error::Rates { .. })));
    assert!(matches!(refused(|of| of.max_pps = 5), Some(Error::Rates { .. })));
    assert!(matches!(
        refused(|of| of.goals[0].loss_ratio = 1.0),
        Some(Error::Goal(_))
    ));
    assert!(matches!(
        refused(|of| of.goals[1].exceed_ratio = -0.1),
        Some(Error::Goal(_))
    ));
    assert!(matches!(
        refused(|of| of.goals[1].relative_width = 0.0),
        Some(Error::Goal(_))
    ));
    assert!(matches!(
        refused(|of| of.goals[0].initial_trial = Duration::ZERO),
        Some(Error::Goal(_))
    ));
    assert!(matches!(
        refused(|of| of.goals[0].duration_sum = Duration::ZERO),
        Some(Error::Goal(_))
    ));
    assert!(matches!(
        refused(|of| of.goals[0].preceding_targets = 99),
        Some(Error::Goal(_))
    ));
    let mut search = Search::new(good.clone()).unwrap();
    let counted = Counted {
        offered: 1,
        forwarded: 1,
    };
    assert_eq!(search.record(counted), Err(Error::NoTrial));
}

proptest! {
    #[test]
    fn bounds_enclose_the_threshold(capacity in 2e3..9e7_f64, width in 0.002..0.2_f64) {
        let (found, trials) = search(&config(&goals(width)), sharp(capacity));
        for of in &found {
            let (lower, upper) = (of.lower_pps.unwrap(), of.upper_pps.unwrap());
            // A device may lose a share; packets and rates are whole numbers.
            let limit = capacity / (1.0 - of.goal.loss_ratio);
            prop_assert!(lower as f64 <= limit + 2.0 && upper as f64 > limit - 2.0, "{capacity}: {of:?}");
            prop_assert!(of.complete);
            prop_assert!(upper - lower <= 1 || (upper - lower) as f64 <= width * upper as f64);
            let throughput = of.throughput_pps.unwrap();
            prop_assert!(throughput <= lower as f64 && throughput >= lower as f64 * (1.0 - of.goal.loss_ratio));
        }
        prop_assert!(trials < 80, "{trials}");
    }

    #[test]
    fn a_noisy_device_has_an_answer_and_a_looser_goal_a_higher_one(
        capacity in 2e3..9e7_f64,
        noise in 0.0..0.6_f64,
        seed in any::<u64>(),
    ) {
        // Each trial is disturbed with this probability, and loses up to a twentieth of its packets.
        let mut state = seed | 1;
        let mut random = move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 11) as f64 / (1_u64 << 53) as f64
        };
        let device = sharp(capacity);
        let noisy = |trial: Trial| {
            let mut counted = device(trial);
            if random() < noise {
                counted.forwarded = (counted.forwarded as f64 * (1.0 - random() * 0.05)) as u64;
            }
            counted
        };
        let (found, _) = search(&config(&goals(0.02)), noisy);
        let [ndr, pdr] = found.as_slice() else { panic!("{found:?}") };
        prop_assert!(ndr.lower_pps.unwrap_or(0) <= pdr.lower_pps.unwrap_or(0), "{found:?}");
        prop_assert!(ndr.upper_pps.unwrap_or(u64::MAX) <= pdr.upper_pps.unwrap_or(u64::MAX), "{found:?}");
        // It never answers with more than the device can.
        prop_assert!(ndr.lower_pps.unwrap_or(0) as f64 <= capacity + 2.0);
    }
}
