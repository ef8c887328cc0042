//! Long computations of an autoscaler run off the loop.
#![allow(clippy::unwrap_used, reason = "what goes wrong here fails the test")]

use std::time::{Duration, Instant};

use autoscaling::{Autoscaler, Policy as _};
use collector::Collector;
use controller::{Controller, ServiceSettings, Settings, Shell};
use engine::{FakeConfig, FakeEngine};
use model::{Generation, Nanos};
use switch::{Resumed, SwitchReading};

/// The number of steps that the fitted forecast covers.
fn forecast_steps(shell: &Shell) -> usize {
    let service = shell.controller().services().next().unwrap();
    let Autoscaler::Predictive(policy) = service.autoscaler else {
        unreachable!("{}", service.autoscaler)
    };
    let state = serde_json::to_value(policy.state()).unwrap();
    state["path"].as_array().unwrap().len()
}

#[test]
fn a_fit_never_ends_in_the_turn_that_starts_it() {
    let scaler = Autoscaler::from_name("predictive").unwrap();
    let mut collector = Collector::new();
    collector.add_service(scaler.stable_window());
    let service = ServiceSettings::new("sink", None, scaler);
    let controller = Controller::new(Settings::default(), vec![service]);
    let engine = Box::new(FakeEngine::new(FakeConfig::default()));
    let mut shell = Shell::new(controller, engine, &Resumed::default(), Nanos::ZERO).unwrap();
    let mut raw = SwitchReading::new(1, 0, 0);
    let mut turn = |shell: &mut Shell, at: Nanos| {
        raw.at = at;
        raw.services[0].offered_packets += 1_000;
        collector.sample(&raw);
        shell.turn((&[], Generation(0)), &[], &[], &mut collector, at);
        shell.carry_out(at);
    };
    // A value each second; the first fit is due with the twentieth.
    for second in 1..=21 {
        turn(&mut shell, Nanos::from_secs(second));
        assert_eq!(forecast_steps(&shell), 0, "at {second} s");
    }
    let began = Instant::now();
    let mut at = Nanos::from_secs(21);
    while forecast_steps(&shell) == 0 {
        assert!(began.elapsed() < Duration::from_secs(20), "no fit has come back");
        std::thread::sleep(Duration::from_millis(1));
        at = at + Nanos::from_millis(1);
        turn(&mut shell, at);
    }
    // Two seconds of lead, and thirty until the next fit.
    assert_eq!(forecast_steps(&shell), 32);
}
