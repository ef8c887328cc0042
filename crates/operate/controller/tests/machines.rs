//! incos of several machines at one engine: each has its own instances, although their run directories are the same.
#![allow(clippy::unwrap_used, reason = "what goes wrong here fails the test")]

use std::collections::BTreeSet;

use autoscaling::Autoscaler;
use collector::Collector;
use controller::{Controller, Inputs, Outputs, ServiceSettings, Settings};
use engine::{ContainerSpec, Engine, EngineEvent, FakeConfig, FakeEngine, Request};
use model::Nanos;
use switch::{Resumed, SwitchReading};

const INSTANCES: u32 = 2;

/// A run of the inco of a machine, which ends without a stop: it adopts what it finds, and asks the engine for what it lacks.
fn run(engine: &mut FakeEngine, machine: &str, until: Nanos) -> Controller {
    let scaler = Autoscaler::from_name("fixed").unwrap();
    let service = ServiceSettings {
        min: INSTANCES,
        max: INSTANCES,
        ..ServiceSettings::new("web", Some(ContainerSpec::new("", "image")), scaler)
    };
    let settings = Settings {
        machine: Some(machine.to_owned()),
        ..Settings::default()
    };
    let mut controller = Controller::new(settings, vec![service]);
    let found = engine.list(&controller.settings().label()).unwrap();
    controller.adopt(&found, &Resumed::default(), Nanos::ZERO);
    let mut collector = Collector::new();
    collector.add_service(Nanos::from_secs(1));
    let mut raw = SwitchReading::new(1, 0, 0);
    raw.at = Nanos::from_millis(1);
    collector.sample(&raw);
    let mut out = Outputs::default();
    controller.step(Inputs::default(), &mut collector, Nanos::from_millis(1), &mut out);
    let mut asked = 0;
    for (ticket, request) in out.engine {
        assert!(!matches!(request, Request::Remove { .. }), "{request:?}");
        asked += usize::from(matches!(request, Request::Create(_)));
        engine.submit(ticket, request);
    }
    engine.advance(until);
    let mut events = Vec::new();
    engine.poll(&mut events);
    let created = |event: &&EngineEvent| matches!(event, EngineEvent::Created { .. });
    let answered = events.iter().filter(created).count();
    assert_eq!(answered, asked, "of {machine}");
    controller
}

#[test]
fn incos_of_two_machines_at_one_engine_leave_each_others_instances_alone() {
    let mut engine = FakeEngine::new(FakeConfig::default());
    let mut names = BTreeSet::new();
    // The second time each finds its own, and needs no more.
    for (seconds, (machine, all)) in (1..).zip([("n1", 2), ("n2", 4), ("n1", 4), ("n2", 4)]) {
        let controller = run(&mut engine, machine, Nanos::from_secs(seconds));
        let own = engine.list(&controller.settings().label()).unwrap();
        assert_eq!(own.len(), 2, "of {machine}");
        names.extend(own.into_iter().map(|of| of.name));
        assert_eq!(names.len(), all, "{names:?}");
    }
}
