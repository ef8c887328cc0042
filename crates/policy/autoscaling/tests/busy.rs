//! Busy time of functions as a reason to scale, where packets per second show nothing.
#![allow(clippy::unwrap_used, reason = "a test fails by it")]

use autoscaling::{Autoscaler, Decision, explain};
use model::{
    InstanceId, InstanceObservation, InstanceSignals, InstanceState, Nanos, Observation, ServiceId, Slot,
};
use serde_json::json;

const MS: u64 = 1_000_000;

/// A service whose instances are offered a tenth of their capacity and are busy for that share of their time.
fn observation(at: Nanos, wanted: u32, busy: &[Option<f64>]) -> Observation {
    let instances = (0..).zip(busy).map(|(id, busy)| InstanceObservation {
        id: InstanceId(id),
        slot: Slot(id as u16),
        state: InstanceState::Active,
        capacity_pps: 10_000.0,
        arrivals_fast_pps: 1000.0,
        arrivals_stable_pps: 1000.0,
        ring_drops_fast_pps: 0.0,
        ring_occupancy: 0.0,
        signals: InstanceSignals::default(),
        busy: *busy,
        memory: None,
        cpu_quota: None,
        place: 0,
    });
    Observation {
        service: ServiceId(0),
        at,
        counter_age: Nanos::ZERO,
        min: 1,
        max: 10,
        wanted,
        offered_fast_pps: 1000.0 * busy.len() as f64,
        offered_stable_pps: 1000.0 * busy.len() as f64,
        unserved_fast_pps: 0.0,
        hot: false,
        places: Vec::new(),
        instances: instances.collect(),
    }
}

/// Steps a policy each 10 ms, and does at once what it decides. `busy` is the work, in whole instances, and how much of
/// it instances tell.
struct Run {
    policy: Autoscaler,
    now: u64,
    count: u32,
    decisions: Vec<Decision>,
}

impl Run {
    fn new(policy: &str, parameters: serde_json::Value, count: u32) -> Run {
        Run {
            policy: Autoscaler::with_parameters(policy, parameters).unwrap(),
            now: MS,
            count,
            decisions: Vec::new(),
        }
    }

    fn go_on(&mut self, seconds: u64, work: Option<f64>) -> u32 {
        for _ in 0..seconds * 100 {
            self.now += 10 * MS;
            let busy = work.map(|work| (work / f64::from(self.count)).min(1.0));
            let busy = vec![busy; self.count as usize];
            let observation = observation(Nanos(self.now), self.count, &busy);
            let decision = self.policy.step(&observation, Nanos(self.now));
            if decision.desired != self.count {
                self.count = decision.desired;
                self.decisions.push(decision);
            }
        }
        self.count
    }
}

#[test]
fn without_the_parameter_busy_time_changes_nothing() {
    for policy in ["ladder", "threshold"] {
        let mut run = Run::new(policy, json!({}), 1);
        assert_eq!(run.go_on(60, Some(1.0)), 1, "{policy}");
    }
}

#[test]
fn work_that_the_rate_does_not_show_adds_instances_and_its_end_removes_them() {
    for (policy, parameters) in [
        ("ladder", json!({"busy_high": 0.8, "calm": "10s"})),
        ("threshold", json!({"busy_high": 0.8})),
    ] {
        let mut run = Run::new(policy, parameters, 1);
        // The work of 2.4 instances: three at 0.8, four at 0.6.
        let count = run.go_on(30, Some(2.4));
        assert!((3..=4).contains(&count), "{policy}: {count}");
        let reason = &run.decisions[0].reason;
        assert!(
            reason.to_string().contains("above_busy_high"),
            "{policy}: {reason}"
        );
        // Neither up nor down between the two thresholds.
        let before = run.decisions.len();
        assert_eq!(run.go_on(60, Some(2.4)), count, "{policy}");
        assert_eq!(run.decisions.len(), before, "{policy}");
        assert_eq!(run.go_on(60, Some(0.1)), 1, "{policy}");
    }
}

#[test]
fn busy_instances_are_kept_although_the_rate_is_low() {
    // Four at 0.6: three would be at 0.8, above `busy_low`.
    let mut run = Run::new("ladder", json!({"busy_high": 0.8, "calm": "5s"}), 4);
    assert_eq!(run.go_on(60, Some(2.4)), 4);
    // The rate alone would leave one.
    assert_eq!(
        Run::new("ladder", json!({"calm": "5s"}), 4).go_on(60, Some(2.4)),
        1
    );
}

#[test]
fn what_is_not_told_has_no_effect() {
    let mut run = Run::new("ladder", json!({"busy_high": 0.8, "calm": "5s"}), 1);
    assert_eq!(run.go_on(30, None), 1);
    assert_eq!(run.go_on(10, Some(1.6)), 2);
    // The functions have fallen silent: the rate decides.
    assert_eq!(run.go_on(30, None), 1);
}

#[test]
fn one_that_lies_costs_a_service_one_instance() {
    let parameters = json!({"busy_high": 0.8});
    let mut policy = Autoscaler::with_parameters("ladder", parameters).unwrap();
    let mut wanted = 4;
    for step in 1..3000 {
        let now = Nanos(step * 10 * MS);
        let mut busy = vec![Some(0.6); wanted as usize];
        busy[0] = Some(1e9);
        wanted = policy.step(&observation(now, wanted, &busy), now).desired;
        assert!(wanted <= 5, "{wanted}");
    }
}

#[test]
fn a_decision_by_busy_time_is_explained_by_its_case() {
    let mut run = Run::new("ladder", json!({"busy_high": 0.8}), 1);
    run.go_on(10, Some(1.0));
    let decision = &run.decisions[0];
    let case = decision.case.as_ref().unwrap().to_string();
    let answer = serde_json::to_value(explain::explain(&case).unwrap()).unwrap();
    assert_eq!(answer["steps"][0]["replicas"], 2);
    assert!(
        answer["steps"][0]["reason"]
            .to_string()
            .contains("above_busy_high"),
        "{answer}"
    );
}

#[test]
fn shares_that_are_none_are_refused() {
    for (policy, name) in [
        ("ladder", "busy_high"),
        ("ladder", "busy_low"),
        ("threshold", "busy_high"),
    ] {
        for value in [0.0, -0.1, 1.1] {
            let parameters = json!({ name: value });
            let error = Autoscaler::with_parameters(policy, parameters)
                .unwrap_err()
                .to_string();
            assert!(error.contains("share above 0"), "{error}");
        }
    }
}

#[test]
fn inreal_sizes_instances_by_busy_time_before_a_capacity_is_known() {
    let mut run = Run::new("inreal", json!({"busy_high": 0.8}), 1);
    run.go_on(10, Some(1.0));
    assert_eq!(run.decisions[0].desired, 2, "{}", run.decisions[0].reason);
}
