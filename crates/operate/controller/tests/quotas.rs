//! CPU quotas that an operator sets.
#![allow(clippy::unwrap_used, reason = "what goes wrong here fails the test")]

use autoscaling::Autoscaler;
use collector::Collector;
use controller::{CommandError, CommandId, Controller, Inputs, Outputs, ServiceSettings, Settings};
use engine::{ContainerSpec, CpuQuota, Request};
use model::{Action, EventKind, Nanos};
use switch::{Resumed, SwitchReading};

fn controller(cpus: Option<f64>) -> Controller {
    let mut spec = ContainerSpec::new("", "image");
    spec.cpu = cpus.map(CpuQuota::of_cpus);
    let service = ServiceSettings {
        min: 1,
        max: 4,
        ..ServiceSettings::new("nf", Some(spec), Autoscaler::from_name("fixed").unwrap())
    };
    let mut controller = Controller::new(Settings::default(), vec![service]);
    controller.adopt(&[], &Resumed::default(), Nanos::ZERO);
    controller
}

fn step(controller: &mut Controller, action: Option<Action>, at: u64) -> Outputs {
    let at = Nanos::from_millis(at);
    let mut collector = Collector::new();
    collector.add_service(Nanos::from_secs(1));
    let mut raw = SwitchReading::new(1, 0, 0);
    raw.at = at;
    collector.sample(&raw);
    let commands: Vec<_> = action
        .into_iter()
        .map(|action| (CommandId(1), action.into()))
        .collect();
    let inputs = Inputs {
        commands: &commands,
        ..Inputs::default()
    };
    let mut out = Outputs::default();
    controller.step(inputs, &mut collector, at, &mut out);
    out
}

fn resize(cpus: Option<f64>) -> Option<Action> {
    let service = "nf".to_owned();
    Some(Action::Resize { service, cpus })
}

/// Quotas of the containers that it has made.
fn created(out: &Outputs) -> Vec<f64> {
    let cpus = out.engine.iter().filter_map(|(_, request)| match request {
        Request::Create(spec) => spec.cpu.map(|quota| quota.cpus()),
        _ => None,
    });
    cpus.collect()
}

#[test]
fn new_instances_get_the_quota_that_an_operator_has_set() {
    let mut controller = controller(Some(1.0));
    assert_eq!(created(&step(&mut controller, None, 1)), [1.0]);
    let out = step(&mut controller, resize(Some(0.6)), 2);
    let resized = |event: &model::Event| {
        matches!(&event.kind, EventKind::Resized { from_cpus, to_cpus, policy, .. }
            if (*from_cpus, *to_cpus, policy.as_str()) == (Some(1.0), 0.6, "manual"))
    };
    assert_eq!(out.events.iter().filter(|event| resized(event)).count(), 1);
    let scale = |instances| {
        let (service, instances) = ("nf".to_owned(), Some(instances));
        Some(Action::Scale { service, instances })
    };
    assert_eq!(created(&step(&mut controller, scale(2), 3)), [0.6]);
    step(&mut controller, resize(None), 4);
    assert_eq!(created(&step(&mut controller, scale(3), 5)), [1.0]);
}

#[test]
fn quotas_that_cannot_be_are_refused() {
    let refusal = |controller: &mut Controller, cpus| {
        let mut out = step(controller, resize(Some(cpus)), 1);
        out.answers.pop().unwrap().1.unwrap_err()
    };
    for cpus in [0.0, -1.0, 1e6, f64::NAN] {
        let refused = refusal(&mut controller(Some(1.0)), cpus);
        assert!(matches!(refused, CommandError::BadQuota { .. }), "{refused}");
    }
    let refused = refusal(&mut controller(None), 0.5);
    assert!(matches!(refused, CommandError::NoQuota { .. }), "{refused}");
}
