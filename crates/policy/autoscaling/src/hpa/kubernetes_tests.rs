//! The test tables of Kubernetes (`replica_calculator_test.go`, `horizontal_test.go`): same inputs, same
//! results.

use super::calculator::propose_one;
use super::limits::{limit, limit_legacy, scale_down_limit, scale_up_limit, stabilize, stabilize_legacy};
use super::*;

/// One pod per letter (r ready, u unready, p pending, t terminating, f failed), and samples for the first
/// ones.
fn pods(states: &str, levels: &[i64], requests: &[i64]) -> Vec<Instance> {
    let instance = |(index, state): (usize, char)| Instance {
        state: match state {
            'r' => State::Ready,
            'u' => State::Unready,
            'p' => State::Pending,
            't' => State::Terminating,
            'f' => State::Failed,
            _ => panic!("{state}"),
        },
        usage: levels.get(index).copied(),
        request: requests.get(index).copied(),
    };
    states.chars().enumerate().map(instance).collect()
}

/// A case without any limit.
fn case(replicas: i32, metrics: Vec<Metric>, instances: Vec<Instance>) -> Case {
    Case {
        replicas,
        spec: Spec {
            min: 0,
            max: i32::MAX,
            metrics,
            behavior: None,
            ..Spec::default()
        },
        desired: None,
        instances: Some(instances),
        history: History::default(),
    }
}

#[track_caller]
fn check_proposal(name: &str, case: &Case, replicas: i32, usage: i64) {
    let proposal =
        propose_one(case, &case.spec.metrics[0]).unwrap_or_else(|failure| panic!("{name}: {failure}"));
    assert_eq!((proposal.replicas, proposal.usage), (replicas, usage), "{name}");
}

const ONE: &[i64] = &[1000; 8];
const MIXED: &[i64] = &[900, 1000, 1100];

/// Name, replicas, pods, samples, requests, target, tolerance (down, up), replicas and percent expected.
type Utilization = (
    &'static str,
    i32,
    &'static str,
    &'static [i64],
    &'static [i64],
    i64,
    (f64, f64),
    i32,
    i64,
);

#[test]
fn resource_utilization() {
    const T: (f64, f64) = (0.1, 0.1);
    let rows: &[Utilization] = &[
        ("scale up", 3, "rrr", &[300, 500, 700], ONE, 30, T, 5, 50),
        (
            "unready pod scales less",
            3,
            "urr",
            &[300, 500, 700],
            ONE,
            30,
            T,
            4,
            60,
        ),
        (
            "hot pod scales less",
            3,
            "urr",
            &[300, 500, 700],
            ONE,
            30,
            T,
            4,
            60,
        ),
        (
            "unready pods, no scale",
            3,
            "ruu",
            &[400, 500, 700],
            ONE,
            30,
            T,
            3,
            40,
        ),
        (
            "hot pods, no scale",
            3,
            "ruu",
            &[400, 500, 700],
            ONE,
            30,
            T,
            3,
            40,
        ),
        ("failed pods ignored", 2, "rrff", &[500, 700], ONE, 30, T, 4, 60),
        ("deleted pods ignored", 2, "rrtt", &[500, 700], ONE, 30, T, 4, 60),
        (
            "scale down",
            5,
            "rrrrr",
            &[100, 300, 500, 250, 250],
            ONE,
            50,
            T,
            3,
            28,
        ),
        (
            "scale down, unready apart",
            5,
            "rrruu",
            &[100, 300, 500, 250, 250],
            ONE,
            50,
            T,
            2,
            30,
        ),
        (
            "scale down, unscheduled apart",
            5,
            "rpppp",
            &[100],
            ONE,
            50,
            T,
            1,
            10,
        ),
        (
            "scale down, hot apart",
            5,
            "rrruu",
            &[100, 300, 500, 250, 250],
            ONE,
            50,
            T,
            2,
            30,
        ),
        (
            "scale down, hot containers apart",
            5,
            "rrruu",
            &[100, 300, 500, 1000, 1000],
            ONE,
            50,
            T,
            2,
            30,
        ),
        (
            "scale down, failed ignored",
            5,
            "rrrrrff",
            &[100, 300, 500, 250, 250],
            ONE,
            50,
            T,
            3,
            28,
        ),
        (
            "scale down, deleted ignored",
            5,
            "rrrrrtt",
            &[100, 300, 500, 250, 250],
            ONE,
            50,
            T,
            3,
            28,
        ),
        (
            "within tolerance",
            3,
            "rrr",
            &[1010, 1030, 1020],
            MIXED,
            100,
            T,
            3,
            102,
        ),
        (
            "outside of none",
            3,
            "rrr",
            &[909, 1010, 1111],
            MIXED,
            100,
            (0.0, 0.0),
            4,
            101,
        ),
        (
            "within 200 % up",
            3,
            "rrr",
            &[1890, 1910, 1900],
            MIXED,
            100,
            (0.1, 2.0),
            3,
            190,
        ),
        (
            "outside 8 % up",
            3,
            "rrr",
            &[1100, 1080, 1090],
            MIXED,
            100,
            (2.0, 0.08),
            4,
            109,
        ),
        (
            "within 36 % down",
            3,
            "rrr",
            &[660, 640, 650],
            MIXED,
            100,
            (0.36, 0.1),
            3,
            65,
        ),
        (
            "outside 34 % down",
            3,
            "rrr",
            &[660, 640, 650],
            MIXED,
            100,
            (0.34, 0.1),
            2,
            65,
        ),
        (
            "superfluous samples",
            4,
            "rrrr",
            &[4000, 9500, 3000, 7000],
            ONE,
            100,
            T,
            24,
            587,
        ),
        ("missing, scales down", 4, "rrrr", &[400, 95], ONE, 100, T, 3, 24),
        ("missing, at target", 2, "rr", &[1000], ONE, 100, T, 2, 100),
        ("missing, above", 2, "rr", &[1900], ONE, 100, T, 2, 190),
        ("missing, below", 2, "rr", &[600], ONE, 100, T, 2, 60),
        (
            "missing and unready, no change",
            3,
            "urr",
            &[100, 450],
            ONE,
            50,
            T,
            3,
            45,
        ),
        (
            "missing and hot, no change",
            3,
            "urr",
            &[100, 450],
            ONE,
            50,
            T,
            3,
            45,
        ),
        (
            "missing and unready, up",
            3,
            "urr",
            &[100, 2000],
            ONE,
            50,
            T,
            4,
            200,
        ),
        ("missing and hot, up", 3, "urr", &[100, 2000], ONE, 50, T, 4, 200),
        (
            "missing and unready, down",
            4,
            "urrr",
            &[100, 100, 100],
            ONE,
            50,
            T,
            3,
            10,
        ),
        (
            "target over 100",
            4,
            "urrr",
            &[200, 100, 100],
            &[1000, 1000, 2000, 2000],
            300,
            T,
            2,
            6,
        ),
        (
            "rolling update, extra pod missing",
            2,
            "rrr",
            &[100, 100],
            ONE,
            50,
            T,
            2,
            10,
        ),
    ];
    for (name, replicas, states, levels, requests, target_percent, (down, up), expected, percent) in rows {
        let metric = Metric::Utilization {
            target_percent: *target_percent,
        };
        // Each pod in the original has two containers with equal usage and request.
        let both = |values: &[i64]| values.iter().map(|value| 2 * value).collect::<Vec<_>>();
        let mut case = case(
            *replicas,
            vec![metric],
            pods(states, &both(levels), &both(requests)),
        );
        case.spec.tolerance = Tolerance { up: *up, down: *down };
        check_proposal(name, &case, *expected, *percent);
        let outcome = decide(&case).unwrap();
        assert_eq!(
            (outcome.replicas, outcome.utilization_percent, outcome.reason),
            (*expected, Some(*percent), "DesiredWithinRange"),
            "{name}"
        );
    }
}

#[test]
fn the_smallest_change_outside_the_tolerance() {
    let requests = [400, 200, 310, 290, 302, 298, 301, 299, 300, 300];
    // abs(1 / (2 × 0.9)) + 0.01 and + 0.004, in whole percents.
    for (target_percent, expected) in [(56, 9), (55, 10)] {
        let metric = Metric::Utilization { target_percent };
        let case = case(10, vec![metric], pods("rrrrrrrrrr", &[150; 10], &requests));
        check_proposal("computed tolerance", &case, expected, 50);
    }
}

#[test]
fn resource_errors() {
    let metric = || vec![Metric::Utilization { target_percent: 100 }];
    for (name, replicas, instances, message) in [
        ("no pods", 1, Vec::new(), "no pods returned by selector"),
        ("no samples", 4, pods("rrrr", &[], ONE), "did not receive metrics"),
        (
            "disjoint names",
            1,
            pods("r", &[], ONE),
            "did not receive metrics",
        ),
        ("no request", 1, pods("r", &[200], &[]), "missing request for"),
        (
            "a request of nothing",
            1,
            pods("r", &[200], &[0]),
            "no metrics returned matched known pods",
        ),
    ] {
        let failure = decide(&case(replicas, metric(), instances)).unwrap_err();
        assert_eq!(failure.reason, "FailedGetResourceMetric", "{name}");
        assert!(failure.message.contains(message), "{name}: {failure}");
    }
}

#[test]
fn pods_metrics() {
    for (name, replicas, states, levels, target_average, tolerance_up, expected, usage) in [
        ("up", 3, "rrr", &[20000, 10000, 30000][..], 15000, 0.1, 4, 20000),
        (
            "unready counts",
            3,
            "rru",
            &[50000, 10000, 30000],
            15000,
            0.1,
            6,
            30000,
        ),
        (
            "unready would turn it",
            3,
            "uru",
            &[50000, 15000, 30000],
            15000,
            0.1,
            7,
            31666,
        ),
        ("external as pods", 1, "r", &[8600], 4400, 0.1, 2, 8600),
        ("down", 5, "rrrrr", &[12000; 5], 20000, 0.1, 3, 12000),
        (
            "within tolerance",
            3,
            "rrr",
            &[20000, 21000, 21000],
            20000,
            0.1,
            3,
            20666,
        ),
        (
            "outside 1 %",
            3,
            "rrr",
            &[20000, 21000, 21000],
            20000,
            0.01,
            4,
            20666,
        ),
        (
            "missing, no change",
            5,
            "rrrrr",
            &[20000, 19000, 21000],
            20000,
            0.1,
            5,
            20000,
        ),
        (
            "rolling update, extra pod missing",
            2,
            "rrr",
            &[10000, 10000],
            17000,
            0.1,
            2,
            10000,
        ),
    ] {
        let mut case = case(
            replicas,
            vec![Metric::InstancesAverage { target_average }],
            pods(states, levels, &[]),
        );
        case.spec.tolerance.up = tolerance_up;
        check_proposal(name, &case, expected, usage);
    }
    let failure = decide(&case(
        2,
        vec![Metric::InstancesAverage { target_average: 1 }],
        pods("rr", &[], &[]),
    ))
    .unwrap_err();
    assert_eq!(failure.reason, "FailedGetPodsMetric");
}

#[test]
fn object_and_external_metrics() {
    let max = i64::from(i32::MAX);
    for (name, replicas, states, value, target, tolerance_up, expected) in [
        ("up", 3, "rrr", 20000, 15000, 0.1, 4),
        ("saturates", 3, "rrr", i64::MAX, 1, 0.1, max),
        ("unready ignored", 3, "uru", 50000, 10000, 0.1, 5),
        ("down", 5, "rrrrr", 12000, 20000, 0.1, 3),
        ("within tolerance", 3, "rrr", 20666, 20000, 0.1, 3),
        ("outside 1 %", 3, "rrr", 20666, 20000, 0.01, 4),
        ("external, unready ignored", 3, "uru", 8600, 4400, 0.1, 2),
        ("external down", 5, "rrrrr", 8600, 14334, 0.1, 3),
        ("external within tolerance", 3, "rrr", 8600, 8888, 0.1, 3),
        ("external outside 1 %", 3, "rrr", 8900, 8800, 0.01, 4),
        (
            "external at the end of numbers",
            3,
            "rrr",
            i64::MAX,
            i64::MAX,
            0.1,
            3,
        ),
        ("controller: external up", 3, "rrr", 8600, 6666, 0.1, 4),
        ("controller: external down", 5, "rrrrr", 8600, 14400, 0.1, 3),
        (
            "controller: external within tolerance",
            4,
            "rrrr",
            8600,
            8666,
            0.1,
            4,
        ),
        (
            "controller: object within tolerance",
            3,
            "rrr",
            20050,
            20000,
            0.1,
            3,
        ),
        ("from zero", 0, "", 20000, 15000, 0.1, 2),
        ("from zero, no tolerance", 0, "", 1000, 1000, 0.1, 1),
        ("to zero", 5, "rrrrr", 0, 20000, 0.1, 0),
        ("external to zero", 5, "rrrrr", 0, 14400, 0.1, 0),
    ] {
        let mut case = case(
            replicas,
            vec![Metric::Value { value, target }],
            pods(states, &[], &[]),
        );
        case.spec.tolerance.up = tolerance_up;
        check_proposal(name, &case, i32::try_from(expected).unwrap(), value);
        assert_eq!(i64::from(decide(&case).unwrap().replicas), expected, "{name}");
    }
    let empty = decide(&case(3, vec![Metric::Value { value: 1, target: 9 }], Vec::new()));
    assert_eq!(empty.unwrap_err().reason, "FailedGetObjectMetric");
}

#[test]
fn object_and_external_metrics_per_pod() {
    for (name, replicas, value, target_average, tolerance_up, expected, usage) in [
        ("up", 3, 20000, 5000, 0.1, 4, 6667),
        ("down", 5, 6000, 2000, 0.1, 3, 1200),
        ("within tolerance", 4, 20166, 5000, 0.1, 4, 5042),
        ("outside 1 %", 4, 20208, 5000, 0.01, 5, 5052),
        ("saturates", 1, i64::MAX, 1, 0.1, i32::MAX, i64::MAX),
        ("huge target", 1, i64::MAX, i64::MAX, 0.1, 1, i64::MAX),
        ("external up", 3, 8600, 2150, 0.1, 4, 2867),
        ("external down", 5, 8600, 2867, 0.1, 3, 1720),
        ("external within tolerance", 3, 8600, 2900, 0.1, 3, 2867),
        ("external outside 1 %", 3, 8600, 2800, 0.01, 4, 2867),
        ("controller: object up", 3, 40000, 10000, 0.1, 4, 13334),
        ("controller: object down", 5, 60000, 20000, 0.1, 3, 12000),
        ("controller: external up", 3, 8600, 2222, 0.1, 4, 2867),
        ("controller: external down", 5, 8600, 3000, 0.1, 3, 1720),
        ("controller: within tolerance", 4, 8600, 2200, 0.1, 4, 2150),
    ] {
        let metric = Metric::AverageValue {
            value,
            target_average,
        };
        let mut case = case(replicas, vec![metric], pods("r", &[], &[]));
        case.spec.tolerance.up = tolerance_up;
        check_proposal(name, &case, expected, usage);
    }
}

#[test]
fn pods_are_grouped() {
    // The original tests' timing.
    let timing = Timing {
        initialization_s: 120.0,
        readiness_delay_s: 10.0,
    };
    let sample = |age_s: f64, window_s: f64| Some(Sample { age_s, window_s });
    let ready = |ready: bool, since_s: f64| Some(Readiness { ready, since_s });
    // A sample without a time is old.
    let old = sample(1e9, 0.0);
    let pod = |started_s: Option<f64>, readiness, sample| Pod {
        started_s,
        readiness,
        sample,
        ..Pod::default()
    };
    for (name, pod, is_cpu, expected) in [
        (
            "ready, memory",
            pod(None, None, sample(0.0, 60.0)),
            false,
            State::Ready,
        ),
        (
            "no ready condition",
            pod(Some(0.0), None, old),
            true,
            State::Unready,
        ),
        (
            "fresh sample",
            pod(Some(60.0), ready(true, 30.0), sample(0.0, 30.0)),
            true,
            State::Ready,
        ),
        (
            "no fresh sample",
            pod(Some(60.0), ready(true, 30.0), sample(0.0, 60.0)),
            true,
            State::Unready,
        ),
        (
            "unready in the beginning",
            pod(Some(600.0), ready(false, 594.0), old),
            true,
            State::Unready,
        ),
        (
            "old sample later",
            pod(Some(180.0), ready(true, 180.0), sample(120.0, 60.0)),
            true,
            State::Ready,
        ),
        (
            "unready after it was ready",
            pod(Some(600.0), ready(false, 540.0), old),
            true,
            State::Ready,
        ),
        (
            "last unready at the delay's end",
            pod(Some(600.0), ready(false, 590.0), old),
            true,
            State::Ready,
        ),
        ("missing", pod(Some(180.0), None, None), true, State::Missing),
        (
            "pending",
            Pod {
                pending: true,
                ..Pod::default()
            },
            true,
            State::Pending,
        ),
        (
            "deleted while pending",
            Pod {
                terminating: true,
                pending: true,
                sample: old,
                ..Pod::default()
            },
            true,
            State::Terminating,
        ),
        (
            "failed",
            Pod {
                failed: true,
                sample: old,
                ..Pod::default()
            },
            true,
            State::Failed,
        ),
    ] {
        assert_eq!(group(&pod, is_cpu, timing), expected, "{name}");
    }
}

fn legacy() -> Option<Behavior> {
    Some(Behavior {
        legacy: true,
        ..Behavior::default()
    })
}

/// Recommendations as (replicas, age in seconds).
fn recommended(values: &[(i32, f64)]) -> Vec<Recommendation> {
    values
        .iter()
        .map(|(value, age_s)| Recommendation {
            value: *value,
            age_s: *age_s,
        })
        .collect()
}

#[test]
fn the_controller() {
    let u = |target_percent| Metric::Utilization { target_percent };
    let bad = || Metric::Error {
        message: "something went wrong".to_owned(),
    };
    let tenths: &[i64] = &[100; 8];
    struct Row(
        &'static str,
        /// min, max, replicas
        (i32, i32, i32),
        Vec<Metric>,
        (&'static str, &'static [i64], &'static [i64]),
        /// recommendations; none: a fresh HPA, which starts with the current count
        Option<&'static [(i32, f64)]>,
        (i32, &'static str),
    );
    let none: Option<&'static [(i32, f64)]> = Some(&[]);
    let rows = [
        Row(
            "up",
            (2, 6, 3),
            vec![u(30)],
            ("rrr", &[300, 500, 700], ONE),
            None,
            (5, "DesiredWithinRange"),
        ),
        Row(
            "up, unready",
            (2, 6, 3),
            vec![u(30)],
            ("urr", &[300, 500, 700], ONE),
            None,
            (4, "DesiredWithinRange"),
        ),
        Row(
            "no scale, unready",
            (2, 6, 3),
            vec![u(30)],
            ("ruu", &[400, 500, 700], ONE),
            None,
            (3, "DesiredWithinRange"),
        ),
        Row(
            "up, failed ignored",
            (2, 6, 2),
            vec![u(30)],
            ("rrff", &[500, 700], ONE),
            None,
            (4, "DesiredWithinRange"),
        ),
        Row(
            "up, deleted ignored",
            (2, 6, 2),
            vec![u(30)],
            ("rrtt", &[500, 700], ONE),
            None,
            (4, "DesiredWithinRange"),
        ),
        Row(
            "up, a metric of pods",
            (2, 6, 3),
            vec![Metric::InstancesAverage {
                target_average: 15000,
            }],
            ("rrr", &[20000, 10000, 30000], ONE),
            None,
            (4, "DesiredWithinRange"),
        ),
        Row(
            "up, a metric of pods, unready counts",
            (2, 6, 3),
            vec![Metric::InstancesAverage {
                target_average: 15000,
            }],
            ("rru", &[50000, 10000, 30000], ONE),
            None,
            (6, "DesiredWithinRange"),
        ),
        Row(
            "up at once after a change, a metric of pods",
            (1, 5, 3),
            vec![Metric::InstancesAverage {
                target_average: 15000,
            }],
            ("rrr", &[20000, 10000, 30000], ONE),
            None,
            (4, "DesiredWithinRange"),
        ),
        Row(
            "within tolerance",
            (1, 5, 3),
            vec![u(100)],
            ("rrr", &[1010, 1030, 1020], MIXED),
            None,
            (3, "DesiredWithinRange"),
        ),
        Row(
            "within tolerance, a metric of pods",
            (1, 5, 3),
            vec![Metric::InstancesAverage {
                target_average: 20000,
            }],
            ("rrr", &[20000, 20001, 21000], MIXED),
            None,
            (3, "DesiredWithinRange"),
        ),
        Row(
            "down, unready apart",
            (2, 6, 5),
            vec![u(50)],
            ("rrruu", &[100, 300, 500, 250, 250], ONE),
            none,
            (2, "DesiredWithinRange"),
        ),
        Row(
            "down, failed ignored",
            (2, 6, 5),
            vec![u(50)],
            ("rrrrrff", &[100, 300, 500, 250, 250], ONE),
            none,
            (3, "DesiredWithinRange"),
        ),
        Row(
            "down, deleted ignored",
            (2, 6, 5),
            vec![u(50)],
            ("rrrrrtt", &[100, 300, 500, 250, 250], ONE),
            none,
            (3, "DesiredWithinRange"),
        ),
        Row(
            "too many",
            (2, 6, 3),
            vec![Metric::InstancesAverage {
                target_average: 15000,
            }],
            ("uru", &[50000, 15000, 30000], ONE),
            None,
            (6, "TooManyReplicas"),
        ),
        Row(
            "down",
            (2, 6, 5),
            vec![u(50)],
            ("rrrrr", &[100, 300, 500, 250, 250], ONE),
            none,
            (3, "DesiredWithinRange"),
        ),
        Row(
            "down, held in the beginning",
            (2, 6, 5),
            vec![u(50)],
            ("rrrrr", &[100, 300, 500, 250, 250], ONE),
            None,
            (5, "ScaleDownStabilized"),
        ),
        Row(
            "up, one metric fails",
            (2, 6, 3),
            vec![bad(), u(30)],
            ("rrr", &[300, 400, 500], ONE),
            None,
            (4, "DesiredWithinRange"),
        ),
        Row(
            "up from zero, one metric fails",
            (0, 6, 0),
            vec![bad(), u(30)],
            ("rrr", &[300, 400, 500], ONE),
            none,
            (4, "DesiredWithinRange"),
        ),
        Row(
            "two metrics, the higher counts",
            (1, 5, 3),
            vec![
                u(10),
                Metric::InstancesAverage {
                    target_average: 15000,
                },
            ],
            ("rrr", &[20000, 10000, 30000], ONE),
            None,
            (5, "TooManyReplicas"),
        ),
        Row(
            "at least",
            (2, 5, 3),
            vec![u(90)],
            ("rrr", &[10, 95, 10], MIXED),
            none,
            (2, "TooFewReplicas"),
        ),
        Row(
            "to zero",
            (0, 5, 3),
            vec![u(90)],
            ("rrr", &[0, 0, 0], MIXED),
            none,
            (0, "DesiredWithinRange"),
        ),
        Row(
            "zero wanted, two at least",
            (2, 5, 3),
            vec![u(90)],
            ("rrr", &[0, 0, 0], MIXED),
            none,
            (2, "TooFewReplicas"),
        ),
        Row(
            "none: disabled",
            (3, 5, 0),
            vec![u(90)],
            ("", &[], &[]),
            None,
            (0, "ScalingDisabled"),
        ),
        Row(
            "below the least",
            (3, 5, 2),
            vec![u(90)],
            ("", &[], &[]),
            None,
            (3, "TooFewReplicas"),
        ),
        Row(
            "above the most",
            (3, 5, 10),
            vec![u(90)],
            ("", &[], &[]),
            None,
            (5, "TooManyReplicas"),
        ),
        Row(
            "at most",
            (2, 5, 3),
            vec![u(90)],
            ("rrr", &[8000, 9500, 1000], MIXED),
            None,
            (5, "TooManyReplicas"),
        ),
        Row(
            "superfluous samples",
            (2, 6, 4),
            vec![u(100)],
            ("rrrr", &[4000, 9500, 3000, 7000], ONE),
            None,
            (6, "TooManyReplicas"),
        ),
        Row(
            "missing samples",
            (2, 6, 4),
            vec![u(100)],
            ("rrrr", &[400, 95], ONE),
            none,
            (3, "DesiredWithinRange"),
        ),
        Row(
            "doubles",
            (1, 5, 1),
            vec![u(50)],
            ("r", &[200], &[200]),
            None,
            (2, "DesiredWithinRange"),
        ),
        Row(
            "stays",
            (1, 5, 2),
            vec![u(50)],
            ("rr", &[200, 200], &[400, 400]),
            None,
            (2, "DesiredWithinRange"),
        ),
        Row(
            "fewer pods than replicas",
            (1, 5, 4),
            vec![u(50)],
            ("r", &[200], &[200]),
            none,
            (2, "DesiredWithinRange"),
        ),
        Row(
            "more pods than replicas",
            (1, 8, 4),
            vec![u(50)],
            ("rrrrr", &[500; 5], ONE),
            None,
            (4, "DesiredWithinRange"),
        ),
        Row(
            "held by an old one",
            (1, 5, 4),
            vec![u(100)],
            ("rrr", &[50; 3], tenths),
            Some(&[(10, 600.0), (4, 60.0)]),
            (4, "ScaleDownStabilized"),
        ),
        Row(
            "up at once from below the least",
            (2, 6, 1),
            vec![u(80)],
            ("rrrr", &[0; 4], ONE),
            None,
            (2, "TooFewReplicas"),
        ),
        Row(
            "down at once from above the most",
            (2, 5, 6),
            vec![u(50)],
            ("rrr", &[8000, 9500, 1000], MIXED),
            None,
            (5, "TooManyReplicas"),
        ),
        Row(
            "nothing to do at the least",
            (2, 6, 2),
            vec![u(30)],
            ("ruu", &[400, 500, 700], ONE),
            none,
            (2, "DesiredWithinRange"),
        ),
    ];
    for Row(name, (min, max, replicas), metrics, (states, levels, requests), recommendations, expected) in
        rows
    {
        let mut case = case(replicas, metrics, pods(states, levels, requests));
        (case.spec.min, case.spec.max, case.spec.behavior) = (min, max, legacy());
        case.history.recommendations = recommended(recommendations.unwrap_or(&[(replicas, 0.0)]));
        let outcome = decide(&case).unwrap_or_else(|failure| panic!("{name}: {failure}"));
        assert_eq!((outcome.replicas, outcome.reason), expected, "{name}");
    }
}

/// The original tests of releases 1.16 to 1.20 expect a scale-down from 5 to 3 here: a bug that pull request
/// 99514 removed, with those tests.
#[test]
fn the_controller_does_not_scale_down_if_a_metric_fails() {
    let bad = || Metric::Error {
        message: "something went wrong".to_owned(),
    };
    let u = Metric::Utilization { target_percent: 50 };
    for (name, metrics) in [
        ("one of two", vec![bad(), u]),
        ("both", vec![bad(), bad()]),
        ("none that is known", Vec::new()),
    ] {
        let case = case(5, metrics, pods("rrrrr", &[100, 300, 500, 250, 250], ONE));
        assert!(decide(&case).is_err(), "{name}");
    }
}

/// As Kubernetes' `generateScalingRules`.
fn rules(pods: i32, pods_period_s: u32, percent: i32, percent_period_s: u32, window_s: u32) -> Rules {
    let mut policies = Vec::new();
    if pods != 0 {
        policies.push(RatePolicy::new(RateType::Pods, pods, pods_period_s));
    }
    if percent != 0 {
        policies.push(RatePolicy::new(RateType::Percent, percent, percent_period_s));
    }
    Rules {
        window_s,
        select: Select::Max,
        policies,
    }
}

/// As Kubernetes' `generateEventsUniformDistribution`: each in the middle of its interval, a whole number of
/// seconds ago.
fn events(changes: &[i32], sign: i32, span_s: f64) -> Vec<Change> {
    let part = span_s / changes.len() as f64;
    let age = |index: usize| (span_s - part * (index + 1) as f64 + part / 2.0).trunc();
    let change = |(index, change): (usize, &i32)| Change {
        change: sign * change,
        age_s: age(index),
    };
    changes.iter().enumerate().map(change).collect()
}

#[test]
fn limits_without_rules() {
    for (current, desired, min, max, expected) in [
        (5, 7, 3, 8, (7, "DesiredWithinRange")),
        (3, 1, 2, 8, (2, "TooFewReplicas")),
        (1, 0, 0, 10, (0, "DesiredWithinRange")),
        (20, 1000, 1, 10, (10, "TooManyReplicas")),
        (3, 1000, 1, 2000, (6, "ScaleUpLimit")),
    ] {
        assert_eq!(limit_legacy(current, desired, min, max), expected);
    }
}

#[test]
fn the_smaller_change_of_two_policies() {
    let select_min = || Rules {
        select: Select::Min,
        ..rules(2, 60, 50, 60, 300)
    };
    let at = |replicas| case(replicas, Vec::new(), Vec::new());
    assert_eq!(scale_up_limit(&at(1), &select_min()), 2);
    assert_eq!(scale_down_limit(&at(5), &select_min()), 3);
    let disabled = Rules {
        select: Select::Disabled,
        ..select_min()
    };
    assert_eq!(scale_up_limit(&at(5), &disabled), 5);
    assert_eq!(scale_down_limit(&at(5), &disabled), 5);
}

/// Changes of the last minute are subtracted from the count, in either direction.
#[test]
fn changes_within_a_period() {
    for (name, changes, within) in [
        ("none", &[][..], 0),
        ("an old one", &[(7, 61.0)], 0),
        ("one", &[(7, 58.0)], 7),
        ("an old one and one", &[(7, 61.0), (6, 59.0)], 6),
        (
            "two old ones and two",
            &[(8, 29.0), (6, 59.0), (7, 61.0), (9, 61.0)],
            14,
        ),
        ("two", &[(7, 58.0), (6, 59.0)], 13),
    ] {
        for sign in [1, -1] {
            let mut case = case(100, Vec::new(), Vec::new());
            let change = |(change, age_s): &(i32, f64)| Change {
                change: sign * change,
                age_s: *age_s,
            };
            case.history.changes = changes.iter().map(change).collect();
            // One pod more than a minute ago, and one fewer.
            let one = rules(1, 60, 0, 0, 0);
            let before = 100 - sign * within;
            assert_eq!(scale_up_limit(&case, &one), before + 1, "{name}");
            assert_eq!(scale_down_limit(&case, &one), before - 1, "{name}");
        }
    }
}

#[test]
fn scaling_with_rules() {
    let d = Behavior::default;
    struct Row(
        &'static str,
        /// min, max, current, desired
        (i32, i32, i32, i32),
        Option<Rules>,
        Option<Rules>,
        Vec<Change>,
        (i32, &'static str),
    );
    let up = |changes: &[i32]| events(changes, 1, 120.0);
    let down = |changes: &[i32]| events(changes, -1, 120.0);
    let both = |added: &[i32], removed: &[i32]| [up(added), down(removed)].concat();
    const OK: &str = "DesiredWithinRange";
    const UP: &str = "ScaleUpLimit";
    const DOWN: &str = "ScaleDownLimit";
    const MANY: &str = "TooManyReplicas";
    const FEW: &str = "TooFewReplicas";
    let r = |a, b, c, d, e| Some(rules(a, b, c, d, e));
    let rows = [
        Row("within range", (3, 8, 5, 7), None, None, vec![], (7, OK)),
        Row("below min", (2, 8, 3, 1), None, None, vec![], (2, FEW)),
        Row("zero", (0, 10, 1, 0), None, None, vec![], (0, OK)),
        Row(
            "max below the rate",
            (1, 10, 20, 1000),
            None,
            None,
            vec![],
            (10, MANY),
        ),
        Row(
            "above max",
            (100, 150, 100, 1000),
            None,
            None,
            vec![],
            (150, MANY),
        ),
        Row(
            "rate below max",
            (1, 2000, 3, 1000),
            r(0, 0, 1, 60, 0),
            None,
            vec![],
            (4, UP),
        ),
        Row(
            "rate above min",
            (3, 2000, 1000, 3),
            None,
            r(20, 60, 0, 0, 0),
            vec![],
            (980, DOWN),
        ),
        Row("default up", (1, 1000, 10, 50), None, None, vec![], (20, UP)),
        Row(
            "pods above percent",
            (1, 1000, 10, 500),
            r(100, 60, 100, 60, 0),
            None,
            vec![],
            (110, UP),
        ),
        Row(
            "percent above pods",
            (1, 1000, 10, 500),
            r(2, 60, 100, 60, 0),
            None,
            vec![],
            (20, UP),
        ),
        Row(
            "large pods",
            (1, 1000, 10, 50),
            r(100, 60, 0, 0, 0),
            None,
            vec![],
            (50, OK),
        ),
        Row(
            "larger pods",
            (1, 1000, 10, 50),
            r(10000, 60, 0, 0, 0),
            None,
            vec![],
            (50, OK),
        ),
        Row(
            "pods limit",
            (1, 1000, 10, 50),
            r(30, 60, 0, 0, 0),
            None,
            vec![],
            (40, UP),
        ),
        Row(
            "percent limit",
            (1, 1000, 10, 50),
            r(0, 0, 200, 60, 0),
            None,
            vec![],
            (30, UP),
        ),
        Row(
            "down, pods above percent",
            (1, 1000, 100, 2),
            None,
            r(20, 60, 1, 60, 300),
            vec![],
            (80, DOWN),
        ),
        Row(
            "down, pods and percent",
            (1, 1000, 100, 2),
            None,
            r(2, 60, 1, 60, 300),
            vec![],
            (98, DOWN),
        ),
        Row(
            "down to min, pods",
            (1, 1000, 10, 0),
            None,
            r(100, 60, 0, 0, 300),
            vec![],
            (1, FEW),
        ),
        Row(
            "down to min, percent",
            (5, 1000, 10, 2),
            None,
            r(0, 0, 100, 60, 300),
            vec![],
            (5, FEW),
        ),
        Row(
            "down, pods limit",
            (1, 1000, 10, 2),
            None,
            r(5, 60, 0, 0, 300),
            vec![],
            (5, DOWN),
        ),
        Row(
            "down, percent limit",
            (1, 1000, 10, 5),
            None,
            r(0, 0, 50, 60, 300),
            vec![],
            (5, OK),
        ),
        Row(
            "max, pods and events",
            (1, 200, 100, 500),
            r(300, 60, 0, 0, 0),
            None,
            up(&[1, 5, 9]),
            (200, MANY),
        ),
        Row(
            "max, percent and events",
            (1, 200, 100, 500),
            r(0, 0, 10000, 60, 0),
            None,
            up(&[1, 5, 9]),
            (200, MANY),
        ),
        Row(
            "many recent changes",
            (1, 1000, 100, 500),
            r(5, 120, 0, 0, 0),
            None,
            up(&[1, 5, 9]),
            (100, UP),
        ),
        Row(
            "pods and events",
            (1, 1000, 100, 500),
            r(150, 120, 0, 0, 0),
            None,
            up(&[1, 5, 9]),
            (235, UP),
        ),
        Row(
            "percent and events",
            (1, 1000, 100, 500),
            r(0, 0, 200, 120, 0),
            None,
            up(&[1, 5, 9]),
            (255, UP),
        ),
        Row(
            "percent, both directions",
            (1, 1000, 6, 24),
            r(0, 0, 300, 300, 0),
            None,
            both(&[4], &[2]),
            (16, UP),
        ),
        Row(
            "down, default and events",
            (1, 1000, 10, 5),
            None,
            None,
            down(&[1, 5, 9]),
            (5, OK),
        ),
        Row(
            "down to min, pods and events",
            (1, 1000, 100, 0),
            None,
            r(115, 120, 0, 0, 300),
            down(&[1, 5, 9]),
            (1, FEW),
        ),
        Row(
            "down to 5, pods and events",
            (5, 1000, 100, 0),
            None,
            r(130, 120, 0, 0, 300),
            down(&[1, 5, 9]),
            (5, FEW),
        ),
        Row(
            "down to 5, percent and events",
            (5, 1000, 100, 2),
            None,
            r(0, 0, 100, 120, 300),
            down(&[1, 5, 9]),
            (5, FEW),
        ),
        Row(
            "down, pods and events",
            (1, 1000, 100, 2),
            None,
            r(5, 120, 0, 0, 300),
            down(&[1, 5, 9]),
            (100, DOWN),
        ),
        Row(
            "down, percent and events",
            (1, 1000, 100, 0),
            None,
            r(0, 0, 50, 120, 300),
            down(&[2, 4, 6]),
            (56, DOWN),
        ),
        Row(
            "down, both directions",
            (1, 1000, 10, 1),
            None,
            r(0, 0, 50, 180, 0),
            both(&[2], &[4]),
            (6, DOWN),
        ),
        Row(
            "down, held by events",
            (1, 1000, 100, 0),
            None,
            r(0, 0, 10, 120, 300),
            down(&[10, 10, 10]),
            (100, DOWN),
        ),
        Row(
            "down, below zero",
            (1, 1000, 10, 5),
            None,
            r(0, 0, 1000, 120, 300),
            down(&[10, 10, 10]),
            (5, OK),
        ),
        Row(
            "old events, up",
            (1, 1000, 100, 200),
            r(1000, 60, 0, 0, 0),
            None,
            up(&[8, 12, 9, 11]),
            (200, OK),
        ),
        Row(
            "two periods, up",
            (1, 1000, 100, 200),
            r(1000, 120, 100, 60, 0),
            None,
            up(&[8, 12, 9, 11]),
            (200, OK),
        ),
        Row(
            "a short period, up",
            (1, 1000, 100, 200),
            r(1000, 30, 100, 60, 0),
            None,
            up(&[8, 12, 9, 11]),
            (200, OK),
        ),
        Row(
            "old events, down",
            (1, 1000, 100, 5),
            None,
            r(1000, 60, 0, 0, 300),
            down(&[8, 12, 9, 11]),
            (5, OK),
        ),
        Row(
            "two periods, down",
            (1, 1000, 100, 5),
            None,
            r(1000, 120, 100, 60, 300),
            down(&[8, 12, 9, 11]),
            (5, OK),
        ),
        Row(
            "a short period, down",
            (1, 1000, 100, 5),
            None,
            r(1000, 30, 100, 60, 300),
            down(&[8, 12, 9, 11]),
            (5, OK),
        ),
    ];
    for Row(name, (min, max, current, desired), up, down, changes, expected) in rows {
        let mut case = case(current, Vec::new(), Vec::new());
        (case.spec.min, case.spec.max, case.desired) = (min, max, Some(desired));
        case.history.changes = changes;
        let behavior = Behavior {
            up: up.unwrap_or(d().up),
            down: down.unwrap_or(d().down),
            legacy: false,
        };
        assert_eq!(limit(&case, &behavior, desired), expected, "{name}");
        // The same through `decide`; without stored recommendations nothing is stabilised.
        case.spec.behavior = Some(behavior);
        let outcome = decide(&case).unwrap();
        assert_eq!((outcome.replicas, outcome.reason), expected, "{name}");
    }
}

#[test]
fn upscale_cap() {
    for (max, expected) in [(100, (24, "ScaleUpLimit")), (20, (20, "TooManyReplicas"))] {
        let metric = Metric::Utilization { target_percent: 10 };
        let mut case = case(3, vec![metric], pods("rrr", &[100, 200, 300], &[100; 3]));
        case.spec.min = 1;
        case.spec.max = max;
        case.spec.behavior = Some(Behavior {
            up: rules(0, 0, 700, 60, 0),
            ..Behavior::default()
        });
        let outcome = decide(&case).unwrap();
        assert_eq!((outcome.replicas, outcome.reason), expected);
        assert_eq!((outcome.proposal, outcome.utilization_percent), (60, Some(200)));
    }
}

#[test]
fn recommendations_are_stabilised_without_rules() {
    for (name, recommendations, desired, expected) in [
        ("empty", &[][..], 5, 5),
        ("stabilise", &[(4, 120.0), (5, 60.0)], 3, 5),
        ("no need", &[(1, 120.0), (2, 60.0)], 3, 3),
        ("old ones", &[(10, 600.0), (9, 540.0)], 3, 3),
        (
            "old and new ones",
            &[(10, 600.0), (4, 60.0), (5, 120.0), (9, 540.0)],
            3,
            5,
        ),
    ] {
        let mut case = case(3, Vec::new(), Vec::new());
        case.history.recommendations = recommended(recommendations);
        assert_eq!(
            stabilize_legacy(&case, &Behavior::default(), desired),
            expected,
            "{name}"
        );
    }
}

#[test]
fn recommendations_are_stabilised_with_rules() {
    for (name, recommendations, current, desired, (up, down), expected) in [
        ("empty, down", &[][..], 100, 5, (0, 0), 5),
        ("down", &[(4, 120.0), (5, 60.0)], 100, 3, (0, 180), 5),
        ("up", &[(4, 120.0), (5, 60.0)], 1, 7, (300, 0), 4),
        ("no need down", &[(1, 120.0), (2, 60.0)], 100, 3, (300, 0), 3),
        ("no need up", &[(4, 120.0), (5, 60.0)], 1, 3, (0, 300), 3),
        ("old, down", &[(10, 600.0), (9, 540.0)], 100, 3, (0, 0), 3),
        ("old, up", &[(10, 600.0), (9, 540.0)], 1, 100, (0, 0), 100),
        (
            "old and new, down",
            &[(10, 600.0), (4, 60.0), (5, 120.0), (9, 540.0)],
            100,
            3,
            (0, 180),
            5,
        ),
        (
            "old and new, up",
            &[(10, 6000.0), (6, 60.0), (5, 120.0), (9, 180.0)],
            1,
            100,
            (300, 0),
            5,
        ),
        (
            "not up when it goes down",
            &[(2, 6000.0), (3, 180.0)],
            2,
            1,
            (300, 300),
            2,
        ),
        (
            "not down when it goes up",
            &[(2, 6000.0), (1, 180.0)],
            2,
            3,
            (300, 300),
            2,
        ),
    ] {
        let mut case = case(current, Vec::new(), Vec::new());
        case.history.recommendations = recommended(recommendations);
        let behavior = Behavior {
            up: Rules {
                window_s: up,
                ..rules(1000, 1, 0, 0, 0)
            },
            down: Rules {
                window_s: down,
                ..rules(1000, 1, 0, 0, 0)
            },
            legacy: false,
        };
        assert_eq!(stabilize(&case, &behavior, desired), expected, "{name}");
        (case.desired, case.spec.behavior) = (Some(desired), Some(behavior));
        let outcome = decide(&case).unwrap();
        let reason = match (expected == desired, desired >= current) {
            (true, _) => "DesiredWithinRange",
            (false, true) => "ScaleUpStabilized",
            (false, false) => "ScaleDownStabilized",
        };
        assert_eq!((outcome.replicas, outcome.reason), (expected, reason), "{name}");
    }
}
