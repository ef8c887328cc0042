//! Services whose instances sleep: all of them run, a signal wakes one or sends it back, and a range bounds how many are
//! awake.
#![allow(clippy::unwrap_used, reason = "what goes wrong here fails the test")]

use autoscaling::Autoscaler;
use collector::Collector;
use controller::{Command, CommandError, CommandId, Controller, Inputs, Outputs, ServiceSettings, Settings};
use model::{Action, EventKind, Generation, InstanceId, InstanceState, Nanos, ServiceId};
use scheduling::Scheduler;
use signal::Wish;
use switch::{Resumed, ServicePlan, SwitchEvent, SwitchReading, SwitchRequest};

/// A service without containers: an instance is there as soon as its port is.
struct Bed {
    controller: Controller,
    collector: Collector,
    reading: SwitchReading,
    now: Nanos,
    acknowledged: Generation,
    switch: Vec<SwitchEvent>,
    events: Vec<EventKind>,
    purged: bool,
}

impl Bed {
    fn new(min: u32, max: u32) -> Bed {
        let plan = ServicePlan {
            signals: true,
            relaxed: true,
            ..ServicePlan::of_all(ServiceId(0), Scheduler::default())
        };
        let service = ServiceSettings {
            min,
            max,
            sleep: true,
            plan,
            drain_deadline: Nanos::from_millis(5),
            ..ServiceSettings::new("nf", None, Autoscaler::from_name("fixed").unwrap())
        };
        let mut controller = Controller::new(Settings::default(), vec![service]);
        controller.adopt(&[], &Resumed::default(), Nanos::ZERO);
        let mut collector = Collector::new();
        collector.add_service(Nanos::from_secs(1));
        let mut bed = Bed {
            controller,
            collector,
            reading: SwitchReading::new(1, 0, 1),
            now: Nanos::ZERO,
            acknowledged: Generation(0),
            switch: Vec::new(),
            events: Vec::new(),
            purged: false,
        };
        bed.run(20);
        bed
    }

    /// Steps of a millisecond; gives the answer to the command.
    fn step(&mut self, command: Option<Command>) -> Option<Result<String, CommandError>> {
        self.now = self.now + Nanos::from_millis(1);
        self.reading.at = self.now;
        self.collector.sample(&self.reading);
        let commands: Vec<_> = command.into_iter().map(|of| (CommandId(1), of)).collect();
        let switch = std::mem::take(&mut self.switch);
        let inputs = Inputs {
            switch: &switch,
            acknowledged: self.acknowledged,
            commands: &commands,
            ..Inputs::default()
        };
        let mut out = Outputs::default();
        self.controller
            .step(inputs, &mut self.collector, self.now, &mut out);
        for request in &out.switch {
            match request {
                SwitchRequest::Publish(plan) => self.acknowledged = plan.generation,
                SwitchRequest::Attach { slot, .. } => self.switch.push(SwitchEvent::Attached {
                    slot: *slot,
                    peer: String::new(),
                }),
                SwitchRequest::Detach(slot) => self.switch.push(SwitchEvent::Detached {
                    slot: *slot,
                    outstanding: 0,
                }),
                SwitchRequest::PurgeSlot(_) => self.purged = true,
                _ => {}
            }
        }
        self.events.extend(out.events.into_iter().map(|event| event.kind));
        out.answers.pop().map(|(_, answer)| answer)
    }

    fn run(&mut self, steps: u32) {
        for _ in 0..steps {
            self.step(None);
        }
    }

    fn ids(&self, state: InstanceState) -> Vec<InstanceId> {
        let instances = self.controller.instances().iter();
        instances
            .filter(|of| of.state() == state)
            .map(|of| of.id())
            .collect()
    }

    /// How many are awake, go to sleep, and sleep.
    fn counts(&self) -> (usize, usize, usize) {
        let count = |state| self.ids(state).len();
        (
            count(InstanceState::Active),
            count(InstanceState::Draining),
            count(InstanceState::Standby),
        )
    }

    fn signal(&mut self, instance: InstanceId, wish: Wish) -> Result<String, CommandError> {
        self.step(Some(Command::Signal { instance, wish })).unwrap()
    }

    fn set_flows(&mut self, instance: InstanceId, flows: u64) {
        let mut instances = self.controller.instances().iter();
        let slot = instances.find(|of| of.id() == instance).unwrap().slot();
        self.reading.slots[slot.index()].live_flows = flows;
    }

    fn range(&mut self, min: Option<u32>, max: Option<u32>) -> Result<String, CommandError> {
        let service = "nf".to_owned();
        self.step(Some(Action::Range { service, min, max }.into()))
            .unwrap()
    }
}

#[test]
fn all_instances_run_and_those_that_are_not_active_sleep() {
    let bed = Bed::new(3, 5);
    assert_eq!(bed.counts(), (3, 0, 2));
}

#[test]
fn the_instance_that_the_signal_names_wakes() {
    let mut bed = Bed::new(1, 4);
    let asleep = bed.ids(InstanceState::Standby);
    bed.signal(asleep[1], Wish::Wake).unwrap();
    // In the same step, and no other one.
    assert_eq!(bed.counts(), (2, 0, 2));
    assert!(bed.ids(InstanceState::Active).contains(&asleep[1]));
    let is_told =
        |of: &EventKind| matches!(of, EventKind::Scaled { from: 1, to: 2, policy, .. } if policy == "signal");
    assert!(bed.events.iter().any(is_told));
    assert!(matches!(
        bed.signal(asleep[1], Wish::Wake),
        Err(CommandError::WrongState { .. })
    ));
    bed.run(50);
    assert_eq!(bed.counts(), (2, 0, 2));
}

#[test]
fn an_instance_that_goes_to_sleep_keeps_its_flows_until_they_end() {
    let mut bed = Bed::new(1, 3);
    let id = bed.ids(InstanceState::Standby)[0];
    bed.signal(id, Wish::Wake).unwrap();
    bed.set_flows(id, 2);
    bed.run(5);
    bed.signal(id, Wish::Sleep).unwrap();
    // Far beyond the deadline of a drain, and the service would let flows move.
    bed.run(200);
    assert_eq!(bed.counts(), (1, 1, 1));
    assert!(!bed.purged, "flows were moved");
    // It wakes again as it is.
    bed.signal(id, Wish::Wake).unwrap();
    assert_eq!(bed.counts(), (2, 0, 1));
    bed.signal(id, Wish::Sleep).unwrap();
    bed.set_flows(id, 0);
    bed.run(5);
    assert_eq!(bed.counts(), (1, 0, 2));
    assert!(bed.ids(InstanceState::Standby).contains(&id), "it was removed");
    assert!(!bed.purged);
}

#[test]
fn a_range_and_restrictions_bound_what_signals_do() {
    let mut bed = Bed::new(1, 4);
    let asleep = bed.ids(InstanceState::Standby);
    bed.range(None, Some(2)).unwrap();
    bed.signal(asleep[0], Wish::Wake).unwrap();
    let out_of_limits =
        |of: Result<String, CommandError>| matches!(of, Err(CommandError::OutOfLimits { .. }));
    assert!(out_of_limits(bed.signal(asleep[1], Wish::Wake)));
    bed.range(Some(2), Some(3)).unwrap();
    assert!(out_of_limits(bed.signal(asleep[0], Wish::Sleep)));
    // The range itself brings the count inside.
    bed.range(Some(3), None).unwrap();
    bed.run(5);
    assert_eq!(bed.counts(), (3, 0, 1));
    bed.range(None, Some(1)).unwrap();
    bed.run(10);
    assert_eq!(bed.counts(), (1, 0, 3));
    // Beyond the file, or empty: nothing changes.
    for (min, max) in [(None, Some(5)), (Some(0), None)] {
        assert!(out_of_limits(bed.range(min, max)));
    }
    assert_eq!(
        bed.range(Some(3), Some(2)),
        Err(CommandError::EmptyRange { min: 3, max: 2 })
    );
    let limits = |bed: &Bed| {
        bed.controller
            .services()
            .map(|of| (of.min, of.max))
            .next()
            .unwrap()
    };
    assert_eq!(limits(&bed), (1, 1));
    bed.range(None, None).unwrap();
    assert_eq!(limits(&bed), (1, 4));
    let service = || "nf".to_owned();
    let asleep = bed.ids(InstanceState::Standby);
    bed.step(Some(
        Action::PauseOut {
            service: service(),
            on: true,
        }
        .into(),
    ))
    .unwrap()
    .unwrap();
    assert!(matches!(
        bed.signal(asleep[0], Wish::Wake),
        Err(CommandError::HeldBack { .. })
    ));
    bed.step(Some(
        Action::PauseOut {
            service: service(),
            on: false,
        }
        .into(),
    ))
    .unwrap()
    .unwrap();
    let instances = Some(1);
    bed.step(Some(
        Action::Scale {
            service: service(),
            instances,
        }
        .into(),
    ))
    .unwrap()
    .unwrap();
    assert!(matches!(
        bed.signal(asleep[0], Wish::Wake),
        Err(CommandError::Manual { .. })
    ));
    assert_eq!(bed.counts(), (1, 0, 3));
}
