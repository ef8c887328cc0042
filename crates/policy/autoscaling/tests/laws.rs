//! The guarantees of every autoscaler, and the particular ones of SmartINCO's.

use autoscaling::{Autoscaler, Decision, SmartInco};
use model::{
    InstanceId, InstanceObservation, InstanceSignals, InstanceState, Nanos, Observation, ServiceId, Slot,
};
use proptest::prelude::*;

const CAPACITY: f64 = 10e6;

fn observation(wanted: u32, min: u32, max: u32, offered: f64) -> Observation {
    Observation {
        service: ServiceId(0),
        at: Nanos::ZERO,
        counter_age: Nanos::ZERO,
        min,
        max,
        wanted,
        offered_fast_pps: offered,
        offered_stable_pps: offered,
        unserved_fast_pps: 0.0,
        hot: false,
        places: Vec::new(),
        instances: (0..wanted)
            .map(|n| InstanceObservation {
                id: InstanceId(n + 1),
                slot: Slot(n as u16),
                state: InstanceState::Active,
                capacity_pps: CAPACITY,
                arrivals_fast_pps: offered / f64::from(wanted),
                arrivals_stable_pps: offered / f64::from(wanted),
                ring_drops_fast_pps: 0.0,
                ring_occupancy: 0.0,
                signals: InstanceSignals {
                    live_flows: 1,
                    ..InstanceSignals::default()
                },
                busy: None,
                memory: None,
                cpu_quota: None,
                place: 0,
            })
            .collect(),
    }
}

fn smartinco(target: f64) -> Autoscaler {
    let mut policy = SmartInco::default(); // its state is private, so no update syntax
    policy.target = target;
    Autoscaler::SmartInco(policy)
}

/// Applies its decisions, a millisecond apart, until they settle.
fn settle(scaler: &mut Autoscaler, seen: &mut Observation, from: Nanos, steps: u64) -> Decision {
    let mut decision = scaler.step(seen, from);
    for step in 1..steps {
        seen.wanted = decision.desired;
        decision = scaler.step(seen, from + Nanos::from_millis(step));
    }
    seen.wanted = decision.desired;
    decision
}

#[test]
fn the_equations_example_doubles() {
    // Desired 100m, current 200m: twice as many.
    let seen = observation(3, 1, 100, 2.0 * 0.5 * 3.0 * CAPACITY);
    let decision = smartinco(0.5).step(&seen, Nanos::ZERO);
    assert_eq!((decision.desired, decision.reason.rule), (6, "above_target"));
}

#[test]
fn line_rate_of_512_bytes_needs_five_instances_at_a_half_and_three_at_eight_tenths() {
    for (target, expected) in [(0.5, 5), (0.8, 3)] {
        let mut seen = observation(3, 3, 8, 23.5e6);
        assert_eq!(
            settle(&mut smartinco(target), &mut seen, Nanos::ZERO, 5).desired,
            expected
        );
    }
}

#[test]
fn starting_instances_are_not_requested_again() {
    let mut scaler = smartinco(0.5);
    let mut seen = observation(3, 1, 50, 40e6);
    // Eight are wanted, of which three work.
    for step in 0..5_000 {
        let decision = scaler.step(&seen, Nanos::from_millis(step));
        assert_eq!(decision.desired, 8);
        seen.wanted = decision.desired;
    }
}

#[test]
fn a_hot_ring_makes_the_fast_rate_count_upward_at_once() {
    let mut seen = observation(3, 1, 50, 15e6);
    seen.offered_fast_pps = 40e6;
    assert_eq!(smartinco(0.5).step(&seen, Nanos::ZERO).desired, 3);
    seen.hot = true;
    let decision = smartinco(0.5).step(&seen, Nanos::ZERO);
    assert_eq!((decision.desired, decision.reason.rule), (8, "above_target_hot"));
    seen.offered_fast_pps = 0.0;
    assert_eq!(smartinco(0.5).step(&seen, Nanos::ZERO).desired, 3);
}

#[test]
fn it_scales_down_to_the_highest_count_of_the_window() {
    let mut scaler = smartinco(0.5);
    let mut seen = observation(8, 3, 8, 40e6);
    let end = Nanos::from_secs(10);
    let ms = Nanos::from_millis(1);
    assert_eq!(scaler.step(&seen, Nanos::ZERO).desired, 8);
    // One instance suffices from here on, except for a while in which six are needed.
    seen.offered_stable_pps = 5e6;
    assert_eq!(scaler.step(&seen, ms).desired, 8);
    seen.offered_stable_pps = 30e6;
    assert_eq!(scaler.step(&seen, Nanos::from_secs(4)).desired, 8);
    seen.offered_stable_pps = 5e6;
    let held = scaler.step(&seen, end);
    assert_eq!((held.desired, held.reason.rule), (8, "scale_down_held"));
    let part = scaler.step(&seen, end + ms);
    assert_eq!((part.desired, part.reason.rule), (6, "scale_down_held_in_part"));
    seen.wanted = 6;
    assert_eq!(scaler.step(&seen, Nanos::from_secs(14)).desired, 6);
    let low = scaler.step(&seen, Nanos::from_secs(14) + ms);
    assert_eq!((low.desired, low.reason.rule), (3, "limited_to_min"));
}

#[test]
fn without_instances_the_decision_is_the_minimum() {
    let mut seen = observation(0, 2, 8, 40e6);
    assert_eq!(smartinco(0.5).step(&seen, Nanos::ZERO).desired, 2);
    // All have failed: the last known capacity still applies.
    let mut scaler = smartinco(0.5);
    seen = observation(4, 2, 8, 20e6);
    scaler.step(&seen, Nanos::ZERO);
    for instance in &mut seen.instances {
        instance.state = InstanceState::Failed;
        instance.capacity_pps = 0.0;
    }
    seen.offered_stable_pps = 40e6;
    assert_eq!(scaler.step(&seen, Nanos::from_millis(1)).desired, 8);
}

#[test]
fn parameters_are_parsed_and_wrong_ones_rejected() {
    let read = |name: &str, json: &str| {
        Autoscaler::with_parameters(name, &mut serde_json::Deserializer::from_str(json))
    };
    let Ok(Autoscaler::SmartInco(policy)) = read(
        "smartinco",
        r#"{"target":0.7,"window":"500ms","scale_down_window":3}"#,
    ) else {
        panic!("not smartinco");
    };
    assert_eq!((policy.target, policy.tolerance), (0.7, 0.1));
    assert_eq!(policy.scale_down_window, Nanos::from_secs(3));
    assert_eq!(
        Autoscaler::SmartInco(policy).stable_window(),
        Nanos::from_millis(500)
    );
    for (name, json, word) in [
        ("smartinco", r#"{"target":0}"#, "share"),
        ("smartinco", r#"{"target":1.5}"#, "share"),
        ("smartinco", r#"{"tolerance":-1}"#, "share"),
        ("smartinco", r#"{"targt":0.5}"#, "targt"),
        ("smartinco", r#"{"recent":[]}"#, "recent"),
        ("fixed", r#"{"count":-1}"#, "-1"),
        (
            "hpaa",
            "{}",
            "smartinco, fixed, hpa, kpa, threshold, predictive, ladder",
        ),
    ] {
        let error = read(name, json).unwrap_err().to_string();
        assert!(error.contains(word), "{error}");
    }
    for name in Autoscaler::NAMES {
        assert!(Autoscaler::parameters_of(name).is_some());
        assert_eq!(Autoscaler::from_name(name).unwrap().name(), *name);
    }
}

#[test]
fn fixed_keeps_its_count_within_the_limits() {
    let mut seen = observation(5, 2, 8, 1e9);
    assert_eq!(
        Autoscaler::from_name("fixed")
            .unwrap()
            .step(&seen, Nanos::ZERO)
            .desired,
        5
    );
    seen.wanted = 20;
    assert_eq!(
        Autoscaler::from_name("fixed")
            .unwrap()
            .step(&seen, Nanos::ZERO)
            .desired,
        8
    );
}

proptest! {
    #[test]
    fn every_policy_stays_within_the_limits(
        steps in proptest::collection::vec(
            (0u32..30, any::<f64>(), any::<f64>(), any::<bool>(), any::<f64>(), 0u64..3_000,
                proptest::option::of(any::<f64>())), 1..50),
        min in 0u32..5, more in 0u32..20,
    ) {
        let by_memory = Autoscaler::with_parameters("inreal", serde_json::json!({"memory_high": 0.5})).unwrap();
        let defaults = Autoscaler::NAMES.iter().map(|name| Autoscaler::from_name(name).unwrap());
        for mut scaler in defaults.chain([by_memory]) {
            let name = scaler.name();
            let mut now = Nanos::ZERO;
            for (wanted, stable, fast, hot, capacity, later_ms, memory) in &steps {
                let mut seen = observation(*wanted, min, min + more, *stable);
                seen.offered_fast_pps = *fast;
                seen.hot = *hot;
                for instance in &mut seen.instances {
                    instance.capacity_pps = *capacity;
                    instance.memory = *memory;
                }
                now = now + Nanos::from_millis(*later_ms);
                let desired = scaler.step(&seen, now).desired;
                prop_assert!((min..=min + more).contains(&desired), "{name}: {desired}");
            }
        }
    }

    #[test]
    fn more_load_never_gives_fewer_instances(wanted in 1u32..20, load in 0f64..400e6, more in 0f64..100e6, hot: bool) {
        let ask = |load: f64| {
            let mut seen = observation(wanted, 1, 30, load);
            seen.hot = hot;
            let mut scaler = smartinco(0.5);
            // Past the scale-down window, so that both directions are tested.
            scaler.step(&seen, Nanos::ZERO);
            scaler.step(&seen, Nanos::from_secs(11)).desired
        };
        prop_assert!(ask(load) <= ask(load + more));
    }

    #[test]
    fn nothing_changes_within_the_tolerance(wanted in 1u32..20, off in -0.0999f64..0.0999) {
        let load = f64::from(wanted) * CAPACITY * 0.5 * (1.0 + off);
        let seen = observation(wanted, 1, 30, load);
        let mut scaler = smartinco(0.5);
        for at in [0, 5, 20, 60] {
            let decision = scaler.step(&seen, Nanos::from_secs(at));
            prop_assert_eq!(decision.desired, wanted);
            prop_assert_eq!(decision.reason.rule, "within_tolerance");
        }
    }

    #[test]
    fn outside_the_tolerance_the_equation_applies(wanted in 1u32..20, load in 1f64..200e6) {
        let needed = load / (CAPACITY * 0.5);
        prop_assume!((needed / f64::from(wanted) - 1.0).abs() > 0.1001);
        prop_assume!((needed - needed.round()).abs() > 1e-6);
        let seen = observation(wanted, 0, 1_000, load);
        let mut scaler = smartinco(0.5);
        scaler.step(&seen, Nanos::ZERO);
        prop_assert_eq!(scaler.step(&seen, Nanos::from_secs(11)).desired, needed.ceil() as u32);
    }

    #[test]
    fn it_settles_and_stays(wanted in 1u32..20, load in 0f64..100e6) {
        let mut scaler = smartinco(0.5);
        let mut seen = observation(wanted, 1, 30, load);
        let settled = settle(&mut scaler, &mut seen, Nanos::ZERO, 25_000).desired;
        prop_assert_eq!(settle(&mut scaler, &mut seen, Nanos::from_secs(60), 100).desired, settled);
        // The settled count is at the target within the tolerance.
        let needed = load / (CAPACITY * 0.5);
        prop_assert!(f64::from(settled) >= (needed / 1.1).floor().max(1.0));
        prop_assert!(f64::from(settled) <= (needed / 0.9).ceil().max(1.0));
    }

    #[test]
    fn it_does_not_scale_down_within_the_window(
        loads in proptest::collection::vec(0f64..100e6, 1..80), every_ms in 1u64..500,
    ) {
        let mut scaler = smartinco(0.5);
        let mut seen = observation(10, 1, 30, 0.0);
        let mut history: Vec<(Nanos, u32)> = vec![(Nanos::ZERO, 10)];
        let mut now = Nanos::ZERO;
        for load in loads {
            seen.offered_stable_pps = load;
            let decision = scaler.step(&seen, now);
            let needed = (load / (CAPACITY * 0.5) * (1.0 - 1e-9)).ceil() as u32;
            let within = ((load / (CAPACITY * 0.5)) / f64::from(seen.wanted) - 1.0).abs() <= 0.1;
            history.push((now, if within { seen.wanted } else { needed.clamp(1, 30) }));
            if decision.desired < seen.wanted {
                let high = history.iter().filter(|(at, _)| now.since(*at) <= Nanos::from_secs(10));
                prop_assert_eq!(decision.desired, high.map(|(_, n)| *n).max().unwrap());
            }
            seen.wanted = decision.desired;
            now = now + Nanos::from_millis(every_ms);
        }
    }
}
