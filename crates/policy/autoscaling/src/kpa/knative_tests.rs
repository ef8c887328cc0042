//! The test tables of Knative (`autoscaler_test.go` unless another file is named): same inputs, same results.
//! The tests of windows are in `window.rs`.

use std::collections::VecDeque;

use super::decider::{TICK_S, highest_delayed};
use super::*;

const UTILIZATION: f64 = 0.75;

fn decider(target: f64, target_burst_capacity: f64) -> Decider {
    Decider {
        spec: Spec {
            target,
            total: target / UTILIZATION,
            target_burst_capacity,
            panic_threshold: 2.0,
            max_scale_up_rate: 10.0,
            max_scale_down_rate: 10.0,
            stable_window_s: 60.0,
            ..Spec::default()
        },
        state: State::default(),
    }
}

fn reading(at_s: f64, ready: u32, stable: f64, panic: f64) -> Reading {
    Reading {
        at_s,
        ready: Some(ready),
        stable: Some(stable),
        panic: Some(panic),
    }
}

/// As Knative's `expectedEBC`.
fn excess(target: f64, burst: f64, panic: f64, ready: u32) -> i32 {
    (target / UTILIZATION * f64::from(ready) - burst - panic).floor() as i32
}

#[track_caller]
fn expect(decider: &mut Decider, reading: Reading, replicas: i32, excess: i32) {
    let verdict = decider.step(&reading);
    assert_eq!(verdict.replicas, Some(replicas));
    // The original allows for one as well: a difference of rounded values.
    assert!(
        (verdict.excess_burst_capacity.unwrap() - excess).abs() <= 1,
        "{verdict:?} {excess}"
    );
}

fn delayed(scale_down_delay_s: f64, reachable: bool) -> Decider {
    Decider {
        spec: Spec {
            target: 10.0,
            total: 0.0,
            target_burst_capacity: 0.0,
            panic_threshold: 100.0,
            max_scale_up_rate: 10.0,
            max_scale_down_rate: 10.0,
            stable_window_s: 0.0,
            scale_down_delay_s,
            reachable,
            ..Spec::default()
        },
        state: State::default(),
    }
}

#[test]
fn scale_down_delay() {
    let mut simple = delayed(300.0, true);
    for (at_s, value, replicas) in [
        (2.0, 40.0, 4),
        (300.0, 0.0, 4),
        (302.0, 0.0, 0),
        // gradual
        (540.0, 40.0, 4),
        (600.0, 30.0, 4),
        (660.0, 0.0, 4),
        (840.0, 0.0, 3),
        (900.0, 0.0, 0),
    ] {
        expect(&mut simple, reading(at_s, 0, value, value), replicas, 0);
    }
}

/// `window_test.go` and `timewindow_test.go`: the maximum of five buckets, one per tick.
#[test]
fn the_maximum_of_the_delay_window() {
    fn at(index: usize) -> f64 {
        index as f64
    }
    let held = |index: usize| if index < 3 { at(index) } else { at(index + 3) };
    let same = |_: usize| 1.0;
    /// Name, the tick of each value, the values, the result after each.
    type Row = (&'static str, fn(usize) -> f64, &'static [i32], &'static [i32]);
    let rows: [Row; 19] = [
        ("one", at, &[1], &[1]),
        ("up", at, &[1, 2], &[1, 2]),
        ("down", at, &[2, 1], &[2, 2]),
        ("up, down, up", at, &[1, 2, 1], &[1, 2, 2]),
        ("out", at, &[5, 6, 5, 5, 5, 5, 5], &[5, 6, 6, 6, 6, 6, 5]),
        ("out with a gap", held, &[6, 5, 2, 1], &[6, 6, 6, 2]),
        ("out 2", at, &[5, 6, 5, 7, 5, 5, 1], &[5, 6, 6, 7, 7, 7, 7]),
        ("out 3", at, &[5, 8, 5, 7, 5, 5], &[5, 8, 8, 8, 8, 8]),
        ("out 4", at, &[5, 8, 5, 7, 5, 5, 1], &[5, 8, 8, 8, 8, 8, 7]),
        (
            "out 5",
            at,
            &[5, 8, 5, 7, 5, 5, 1, 4, 4, 4],
            &[5, 8, 8, 8, 8, 8, 7, 7, 5, 5],
        ),
        (
            "out 6",
            at,
            &[5, 8, 5, 7, 5, 5, 1, 4, 4, 4, 4],
            &[5, 8, 8, 8, 8, 8, 7, 7, 5, 5, 4],
        ),
        (
            "out 7",
            at,
            &[5, 8, 5, 7, 5, 5, 1, 4, 4, 4, 4, 9],
            &[5, 8, 8, 8, 8, 8, 7, 7, 5, 5, 4, 9],
        ),
        (
            "out 8",
            at,
            &[5, 8, 5, 7, 5, 5, 1, 4, 4, 4, 4, 9, 3, 4, 2, 1, 0],
            &[5, 8, 8, 8, 8, 8, 7, 7, 5, 5, 4, 9, 9, 9, 9, 9, 4],
        ),
        (
            "one place, up",
            same,
            &[1, 2, 3, 4, 5, 6, 7],
            &[1, 2, 3, 4, 5, 6, 7],
        ),
        ("one place, down", same, &[7, 6, 5, 4, 3, 2, 1], &[7; 7]),
        ("times: one", at, &[5], &[5]),
        ("times: within a tick", |index| at(index) / 2.0, &[6, 5], &[6, 6]),
        ("times: two", at, &[5, 8], &[5, 8]),
        ("times: a gap", |index| at(6 * index), &[5, 4], &[5, 4]),
    ];
    for (name, tick, values, expected) in rows {
        let mut window = VecDeque::new();
        let record = |(index, value): (usize, &i32)| {
            highest_delayed(&mut window, 5.0 * TICK_S, tick(index) * TICK_S, *value)
        };
        let held: Vec<i32> = values.iter().enumerate().map(record).collect();
        assert_eq!(held, expected, "{name}");
    }
}

#[test]
fn scale_down_delay_does_not_apply_if_unreachable() {
    let mut decider = delayed(300.0, true);
    expect(&mut decider, reading(2.0, 0, 40.0, 40.0), 4, 0);
    expect(&mut decider, reading(60.0, 0, 0.0, 0.0), 4, 0);
    decider.spec.reachable = false;
    expect(&mut decider, reading(62.0, 0, 0.0, 0.0), 0, 0);
}

#[test]
fn no_scale_down_delay() {
    let mut decider = delayed(0.0, false);
    expect(&mut decider, reading(0.0, 0, 40.0, 40.0), 4, 0);
    expect(&mut decider, reading(0.5, 0, 20.0, 20.0), 2, 0);
}

#[test]
fn no_data_no_decision() {
    let mut decider = decider(10.0, 100.0);
    for nothing in [
        Reading {
            stable: None,
            panic: None,
            ..reading(0.0, 1, 0.0, 0.0)
        },
        // The pods could not be counted.
        Reading {
            ready: None,
            ..reading(0.0, 1, 1000.0, 888.0)
        },
    ] {
        let verdict = decider.step(&nothing);
        assert_eq!((verdict.replicas, verdict.excess_burst_capacity), (None, None));
    }
    assert_eq!(decider.state, State::default());
}

#[test]
fn one_step() {
    let panicking = |decider: &mut Decider| {
        decider.state.panicking_since_s = Some(-5.0);
        decider.state.max_panic = 5;
    };
    let nothing = |_: &mut Decider| {};
    type Prepare = fn(&mut Decider);
    /// Name, target, burst, stable, panic, ready, preparation, replicas.
    type Row = (&'static str, f64, f64, f64, f64, u32, Prepare, i32);
    let rows: [Row; 16] = [
        ("no traffic", 10.0, 100.0, 0.0, 0.0, 1, nothing, 0),
        ("metrics", 10.0, 100.0, 50.0, 50.0, 1, nothing, 5),
        ("requests per second", 10.0, 100.0, 100.0, 99.0, 1, nothing, 10),
        ("any burst", 181.0, -1.0, 21.0, 26.0, 1, nothing, 1),
        ("no burst", 10.0, 0.0, 50.0, 49.0, 1, nothing, 5),
        ("from one", 10.0, 100.0, 50.0, 50.0, 1, nothing, 5),
        (
            "panic, stable is larger",
            1.0,
            100.0,
            50.0,
            30.0,
            5,
            panicking,
            50,
        ),
        (
            "panic, stable is smaller",
            1.0,
            100.0,
            20.0,
            30.0,
            5,
            panicking,
            30,
        ),
        ("already there", 10.0, 100.0, 50.0, 50.0, 5, nothing, 5),
        (
            "small rate up",
            1.0,
            1982.0,
            3.0,
            3.1,
            2,
            |d| d.spec.max_scale_up_rate = 1.1,
            3,
        ),
        (
            "small rate down",
            10.0,
            1982.0,
            1.0,
            1.0,
            100,
            |d| d.spec.max_scale_down_rate = 1.1,
            90,
        ),
        (
            "not reachable",
            10.0,
            1982.0,
            1.0,
            1.0,
            100,
            |d| (d.spec.max_scale_down_rate, d.spec.reachable) = (1.1, false),
            1,
        ),
        ("panic doubles", 10.0, 84.0, 50.0, 100.0, 1, nothing, 10),
        (
            "no endpoints: one at least",
            10.0,
            81.0,
            1000.0,
            888.0,
            0,
            nothing,
            10,
        ),
        (
            "activation scale, no traffic",
            10.0,
            75.0,
            0.0,
            0.0,
            1,
            |d| d.spec.activation_scale = 2,
            0,
        ),
        (
            "activation scale",
            10.0,
            75.0,
            1.0,
            0.0,
            1,
            |d| d.spec.activation_scale = 2,
            2,
        ),
    ];
    for (name, target, burst, stable, panic, ready, prepare, replicas) in rows {
        let mut decider = decider(target, burst);
        prepare(&mut decider);
        let verdict = decider.step(&reading(0.0, ready, stable, panic));
        assert_eq!(verdict.replicas, Some(replicas), "{name}");
        let expected = match burst {
            0.0 => 0,
            -1.0 => -1,
            burst => excess(target, burst, panic, ready),
        };
        assert!(
            (verdict.excess_burst_capacity.unwrap() - expected).abs() <= 1,
            "{name}"
        );
    }
}

#[test]
fn stable_mode_goes_up_and_down() {
    let mut up = decider(10.0, 101.0);
    expect(
        &mut up,
        reading(0.0, 1, 50.0, 10.0),
        5,
        excess(10.0, 101.0, 10.0, 1),
    );
    expect(
        &mut up,
        reading(0.0, 1, 100.0, 10.0),
        10,
        excess(10.0, 101.0, 10.0, 1),
    );
    let mut per_second = decider(10.0, 101.0);
    expect(
        &mut per_second,
        reading(0.0, 1, 50.0, 50.0),
        5,
        excess(10.0, 101.0, 50.0, 1),
    );
    expect(
        &mut per_second,
        reading(0.0, 1, 100.0, 99.0),
        10,
        excess(10.0, 101.0, 99.0, 1),
    );
    let mut down = decider(10.0, 98.0);
    expect(
        &mut down,
        reading(0.0, 8, 100.0, 100.0),
        10,
        excess(10.0, 98.0, 100.0, 8),
    );
    expect(
        &mut down,
        reading(0.0, 8, 50.0, 50.0),
        5,
        excess(10.0, 98.0, 50.0, 8),
    );
    let mut to_zero = decider(10.0, 75.0);
    expect(
        &mut to_zero,
        reading(0.0, 1, 1.0, 0.0),
        1,
        excess(10.0, 75.0, 0.0, 1),
    );
    expect(
        &mut to_zero,
        reading(0.0, 1, 0.0, 0.0),
        0,
        excess(10.0, 75.0, 0.0, 1),
    );
}

#[test]
fn a_panic_ends_after_a_slow_increase() {
    let mut decider = decider(1.0, 98.0);
    expect(
        &mut decider,
        reading(0.0, 10, 11.0, 25.0),
        25,
        excess(1.0, 98.0, 25.0, 10),
    );
    assert_eq!(decider.state.panicking_since_s, Some(0.0));
    expect(
        &mut decider,
        reading(30.0, 40, 30.0, 41.0),
        41,
        excess(1.0, 98.0, 41.0, 40),
    );
    assert_eq!(decider.state.panicking_since_s, Some(0.0));
    expect(
        &mut decider,
        reading(62.0, 55, 50.0, 56.0),
        50,
        excess(1.0, 98.0, 56.0, 55),
    );
    assert_eq!(decider.state.panicking_since_s, None);
}

#[test]
fn a_panic_is_extended() {
    let mut decider = decider(1.0, 98.0);
    expect(
        &mut decider,
        reading(0.0, 10, 11.0, 25.0),
        25,
        excess(1.0, 98.0, 25.0, 10),
    );
    expect(
        &mut decider,
        reading(30.0, 40, 30.0, 80.0),
        80,
        excess(1.0, 98.0, 80.0, 40),
    );
    assert_eq!(decider.state.panicking_since_s, Some(30.0));
}

#[test]
fn a_panic_tracks_exponential_growth() {
    let mut decider = decider(1.0, 101.0);
    for (at_s, ready, value, since_s) in [
        (0.0, 1, 6.0, 0.0),
        (0.0, 6, 36.0, 0.0),
        (1.0, 36, 216.0, 1.0),
        (1.0, 216, 1296.0, 1.0),
        (2.0, 1296, 1296.0, 1.0),
    ] {
        let expected = excess(1.0, 101.0, value, ready);
        expect(
            &mut decider,
            reading(at_s, ready, value, value),
            value as i32,
            expected,
        );
        assert_eq!(decider.state.panicking_since_s, Some(since_s));
    }
}

#[test]
fn a_panic_then_none_then_down() {
    let mut decider = decider(10.0, 93.0);
    expect(
        &mut decider,
        reading(0.0, 1, 100.0, 100.0),
        10,
        excess(10.0, 93.0, 100.0, 1),
    );
    expect(
        &mut decider,
        reading(0.0, 10, 100.0, 1000.0),
        100,
        excess(10.0, 93.0, 1000.0, 10),
    );
    expect(
        &mut decider,
        reading(30.0, 10, 1.0, 1.0),
        100,
        excess(10.0, 93.0, 1.0, 10),
    );
    expect(
        &mut decider,
        reading(61.0, 10, 1.0, 1.0),
        1,
        excess(10.0, 93.0, 1.0, 10),
    );
}

#[test]
fn rates_are_limited() {
    let mut up = decider(10.0, 61.0);
    expect(
        &mut up,
        reading(0.0, 1, 1000.0, 1001.0),
        10,
        excess(10.0, 61.0, 1001.0, 1),
    );
    expect(
        &mut up,
        reading(0.0, 10, 1000.0, 1001.0),
        100,
        excess(10.0, 61.0, 1001.0, 10),
    );
    let mut down = decider(10.0, 61.0);
    expect(
        &mut down,
        reading(0.0, 100, 1.0, 1.0),
        10,
        excess(10.0, 61.0, 1.0, 100),
    );
    expect(
        &mut down,
        reading(0.0, 10, 1.0, 1.0),
        1,
        excess(10.0, 61.0, 1.0, 10),
    );
}

#[test]
fn a_new_target_applies_at_once() {
    let mut decider = decider(10.0, 77.0);
    expect(
        &mut decider,
        reading(0.0, 1, 100.0, 101.0),
        10,
        excess(10.0, 77.0, 101.0, 1),
    );
    decider.spec = Spec {
        target: 1.0,
        total: 1.0 / UTILIZATION,
        target_burst_capacity: 71.0,
        reachable: false,
        ..decider.spec
    };
    expect(
        &mut decider,
        reading(0.0, 10, 100.0, 101.0),
        100,
        excess(1.0, 71.0, 101.0, 10),
    );
}

#[test]
fn it_starts_in_panic_mode_beside_several_instances() {
    for (ready, since_s) in [(0, None), (1, None), (2, Some(7.0))] {
        let state = State::starting(ready, 7.0);
        assert_eq!(
            (state.panicking_since_s, state.max_panic),
            (since_s, ready as i32)
        );
    }
}

/// `scaler_test.go`: `TestScaler` and `TestDisableScaleToZero`, as far as they test bounds. The reconciler
/// applies bounds to the decider's result. Disabled scale-to-zero is a `min` of 1 here.
#[test]
fn the_reconcilers_bounds() {
    /// Name, ready, the load in targets, min, max, reachable, replicas.
    type Row = (&'static str, u32, f64, i32, i32, bool, i32);
    let rows: [Row; 9] = [
        ("scales up", 1, 10.0, 0, 0, true, 10),
        ("scales up to maxScale", 1, 10.0, 0, 8, true, 8),
        ("scales up from zero to desired one", 0, 1.0, 0, 0, true, 1),
        (
            "scales up from zero to desired high scale",
            0,
            10.0,
            0,
            0,
            true,
            10,
        ),
        ("scale down to minScale", 10, 0.0, 2, 0, true, 2),
        ("ignore minScale if unreachable", 10, 0.0, 2, 0, false, 0),
        (
            "EnableScaleToZero == false and minScale == 0",
            10,
            0.0,
            1,
            0,
            true,
            1,
        ),
        (
            "EnableScaleToZero == false and minScale == 2",
            10,
            0.0,
            2,
            0,
            true,
            2,
        ),
        ("both bounds, from below", 1, 0.0, 3, 7, true, 3),
    ];
    for (name, ready, load, min, max, reachable, replicas) in rows {
        let mut decider = decider(1.0, 0.0);
        let rate = f64::from(ready.max(1));
        (decider.spec.min, decider.spec.max, decider.spec.reachable) = (min, max, reachable);
        // Down to zero at once: the rate limit is not part of these tests.
        decider.spec.max_scale_down_rate = 2.0 * rate;
        let verdict = decider.step(&reading(0.0, ready, load, 0.0));
        assert_eq!(verdict.replicas, Some(replicas), "{name}");
    }
}

/// `multiscaler_test.go`: before any load, the excess burst capacity is that of one idle instance.
#[test]
fn excess_burst_capacity_before_any_load() {
    for (name, burst, excess) in [
        ("TestMultiscalerCreateTBC42", 42.0, 25 - 42),
        ("TestMultiscalerCreateTBCMinus1", -1.0, -1),
        ("0, as TestMultiScalerScaling starts", 0.0, 0),
    ] {
        let mut decider = decider(25.0 * UTILIZATION, burst);
        let verdict = decider.step(&reading(0.0, 1, 0.0, 0.0));
        assert_eq!(verdict.excess_burst_capacity, Some(excess), "{name}");
    }
}

/// `libkpa_autoscaler_test.go`: the same algorithm as a library, starting beside existing instances.
#[test]
fn starting_beside_existing_instances() {
    let starting = |ready, panic_threshold| Decider {
        spec: Spec {
            target: 10.0,
            total: 100.0,
            target_burst_capacity: 50.0,
            panic_threshold,
            max_scale_up_rate: 10.0,
            max_scale_down_rate: 2.0,
            ..Spec::default()
        },
        state: State::starting(ready, 0.0),
    };
    /// Name, ready, activation scale, the load, replicas.
    type Row = (&'static str, u32, i32, f64, i32);
    let rows: [Row; 4] = [
        ("scale up based on concurrency", 5, 1, 100.0, 10),
        ("scale down prevented by panic mode", 10, 1, 20.0, 10),
        ("scale down from 1 pod", 1, 1, 0.0, 0),
        ("activation scale applied", 0, 3, 5.0, 3),
    ];
    for (name, ready, activation_scale, load, replicas) in rows {
        let mut decider = starting(ready, 2.0);
        decider.spec.activation_scale = activation_scale;
        let verdict = decider.step(&reading(0.0, ready, load, load));
        assert_eq!(verdict.replicas, Some(replicas), "{name}");
    }
    let mut update = starting(1, 3.0);
    assert_eq!(update.step(&reading(0.0, 1, 50.0, 50.0)).replicas, Some(5));
    update.spec.target = 5.0;
    assert_eq!(
        update.step(&reading(0.0, 5, 50.0, 50.0)).replicas,
        Some(10),
        "Update"
    );
    let mut update = starting(1, 3.0);
    assert_eq!(update.step(&reading(0.0, 1, 10.0, 10.0)).replicas, Some(1));
    update.spec.target = 20.0;
    assert_eq!(
        update.step(&reading(0.0, 1, 10.0, 10.0)).replicas,
        Some(1),
        "UpdateScaleDown"
    );
    let mut panic = starting(5, 2.0);
    for (load, replicas) in [(20.0, 5), (40.0, 5), (100.0, 10)] {
        let verdict = panic.step(&reading(0.0, 5, load, load));
        assert_eq!(
            (verdict.replicas, verdict.panicking),
            (Some(replicas), true),
            "PanicMode"
        );
    }
}

/// `TestPanicThresholdUsesReadyDenominator` of `autoscaler_effective_capacity_test.go`: starting instances do
/// not postpone a panic.
#[test]
fn the_panic_threshold_uses_ready_instances() {
    let mut decider = decider(1.0, 0.0);
    assert!(decider.step(&reading(0.0, 1, 0.0, 3.0)).panicking);
}
