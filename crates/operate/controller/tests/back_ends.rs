//! Instances that others run: as many as are listed, none is replaced, and one that is drained stays.
#![allow(clippy::unwrap_used, reason = "what goes wrong here fails the test")]

use std::collections::BTreeMap;
use std::net::SocketAddr;

use autoscaling::Autoscaler;
use collector::Collector;
use controller::{
    Command, CommandError, CommandId, Controller, Inputs, MadePort, Outputs, Report, ReportKind,
    ServiceSettings, Settings,
};
use model::{Action, HealthCheck, InstanceId, InstanceState, Nanos, Probe, ServiceId, Slot};
use switch::{PortKind, PortSpec, Resumed, SwitchEvent, SwitchReading, SwitchRequest};

const FIRST: &str = "10.1.0.11:80";
const SECOND: &str = "10.1.0.12:80";
const THIRD: &str = "10.1.0.13:80";
const STEP: Nanos = Nanos::from_millis(10);

fn service(from: &[&str], is_checked: bool) -> ServiceSettings {
    let place = |slot: u16| MadePort {
        slot: Slot(slot),
        mounts: Vec::new(),
        env: Vec::new(),
        functions: Vec::new(),
    };
    let back_ends: Vec<SocketAddr> = from.iter().map(|at| at.parse().unwrap()).collect();
    let check = HealthCheck {
        probe: Probe::Tcp(80),
        every: Nanos::from_secs(1),
        timeout: Nanos::from_millis(500),
        fall: 2,
        rise: 2,
        panic: 0.1,
    };
    let scaler = Autoscaler::from_name("fixed").unwrap();
    ServiceSettings {
        made_ports: Some((0..6).map(place).collect()),
        port: PortSpec::new(PortKind::Routed, ""),
        min: back_ends.len() as u32,
        max: back_ends.len() as u32,
        back_ends: Some(back_ends),
        health: is_checked.then_some(check),
        drain_deadline: Nanos::from_secs(5),
        ..ServiceSettings::new("web", None, scaler)
    }
}

/// A controller with a switch that does what it is asked at once.
struct Bed {
    controller: Controller,
    collector: Collector,
    now: Nanos,
    events: Vec<SwitchEvent>,
    /// Where the instance of each slot was said to be.
    attached: BTreeMap<Slot, SocketAddr>,
    purged: Vec<Slot>,
    answer: Option<Result<String, CommandError>>,
}

impl Bed {
    fn new(settings: ServiceSettings, resumed: &Resumed) -> Bed {
        let mut collector = Collector::new();
        collector.add_service(Nanos::from_secs(1));
        let mut controller = Controller::new(Settings::default(), vec![settings]);
        controller.adopt(&[], resumed, Nanos::ZERO);
        let mut bed = Bed {
            controller,
            collector,
            now: Nanos::ZERO,
            events: Vec::new(),
            attached: BTreeMap::new(),
            purged: Vec::new(),
            answer: None,
        };
        bed.steps(5);
        bed
    }

    fn step(&mut self, commands: &[(CommandId, Command)], reports: &[Report]) {
        self.now = self.now + STEP;
        let mut raw = SwitchReading::new(1, 6, 0);
        raw.at = self.now;
        let acknowledged = self.controller.plan().generation;
        raw.acknowledged = acknowledged;
        self.collector.sample(&raw);
        let mut out = Outputs::default();
        let events = std::mem::take(&mut self.events);
        let inputs = Inputs {
            switch: &events,
            acknowledged,
            commands,
            reports,
            ..Inputs::default()
        };
        self.controller
            .step(inputs, &mut self.collector, self.now, &mut out);
        assert!(
            out.engine.is_empty(),
            "an engine has nothing to do with them: {:?}",
            out.engine
        );
        for request in out.switch {
            match request {
                SwitchRequest::Attach { slot, port, .. } => {
                    self.attached.insert(slot, port.back_end.unwrap());
                    let peer = String::new();
                    self.events.push(SwitchEvent::Attached { slot, peer });
                }
                SwitchRequest::Detach(slot) => {
                    self.attached.remove(&slot);
                    self.events.push(SwitchEvent::Detached { slot, outstanding: 0 });
                }
                SwitchRequest::PurgeSlot(slot) => self.purged.push(slot),
                _ => {}
            }
        }
        self.answer = out.answers.pop().map(|(_, answer)| answer);
    }

    fn steps(&mut self, count: usize) {
        (0..count).for_each(|_| self.step(&[], &[]));
    }

    fn command(&mut self, command: Command) -> Result<String, CommandError> {
        self.step(&[(CommandId(1), command)], &[]);
        let answer = self.answer.take().unwrap();
        self.steps(5);
        answer
    }

    fn act(&mut self, action: Action) -> Result<String, CommandError> {
        self.command(Command::Action(action))
    }

    fn list(&mut self, from: &[&str], is_checked: bool) {
        let command = Command::Reconfigure {
            service: ServiceId(0),
            settings: Box::new(service(from, is_checked)),
            autoscaler: false,
            scheduler: false,
        };
        self.command(command).unwrap();
    }

    fn check(&mut self, at: &str, verdict: Result<(), &str>) {
        let report = Report {
            instance: self.id(at).unwrap(),
            kind: ReportKind::Check(verdict.map_err(str::to_owned)),
        };
        self.step(&[], &[report]);
        self.steps(2);
    }

    fn id(&self, at: &str) -> Option<InstanceId> {
        let instances = self.controller.instances().iter();
        let mut at_it = instances.filter(|of| of.back_end().is_some_and(|of| of.to_string() == at));
        at_it.next().map(controller::Instance::id)
    }

    fn state(&self, at: &str) -> Option<InstanceState> {
        let id = self.id(at)?;
        let mut instances = self.controller.instances().iter();
        instances
            .find(|of| of.id() == id)
            .map(controller::Instance::state)
    }

    /// Whether it takes new flows, as the plan says.
    fn takes(&self, at: &str) -> bool {
        let id = self.id(at).unwrap();
        let slots = self.controller.plan().slots.iter().flatten();
        slots
            .into_iter()
            .any(|of| of.instance == id && of.state == InstanceState::Active)
    }
}

#[test]
fn all_that_are_listed_are_there_and_no_more() {
    let mut bed = Bed::new(service(&[FIRST, SECOND], false), &Resumed::default());
    assert_eq!(bed.controller.instances().len(), 2);
    assert!(bed.takes(FIRST) && bed.takes(SECOND));
    let refused = |result| matches!(result, Err(CommandError::OthersRun { service }) if service == "web");
    for instances in [Some(1), Some(2), Some(5), None] {
        let service = "web".to_owned();
        assert!(refused(bed.act(Action::Scale { service, instances })));
    }
    let (service_name, cancel) = ("web".to_owned(), false);
    assert!(refused(bed.act(Action::Rollout {
        service: service_name,
        cancel
    })));
    bed.list(&[FIRST, SECOND, THIRD], false);
    assert!(bed.takes(THIRD));
    bed.list(&[THIRD], false);
    assert_eq!((bed.state(FIRST), bed.state(SECOND)), (None, None));
    assert_eq!(bed.attached.len(), 1);
    assert!(bed.takes(THIRD));
}

#[test]
fn one_that_an_operator_drains_stays_drained() {
    let mut bed = Bed::new(service(&[FIRST, SECOND], false), &Resumed::default());
    let instance = bed.id(FIRST).unwrap();
    bed.act(Action::Drain { instance }).unwrap();
    // Longer than its deadline.
    bed.steps(700);
    assert_eq!(bed.state(FIRST), Some(InstanceState::Draining));
    assert!(!bed.takes(FIRST) && bed.takes(SECOND));
    bed.act(Action::Undrain { instance }).unwrap();
    assert!(bed.takes(FIRST));
    // One that is drained leaves once it is not listed.
    bed.act(Action::Drain { instance }).unwrap();
    bed.list(&[SECOND], false);
    assert_eq!(bed.state(FIRST), None);
}

#[test]
fn one_that_fails_its_checks_gets_no_new_flows_and_nobody_comes_for_it() {
    let mut bed = Bed::new(service(&[FIRST, SECOND], true), &Resumed::default());
    // Neither has passed a check, however long that takes.
    bed.steps(2000);
    assert_eq!(bed.state(FIRST), Some(InstanceState::Starting));
    bed.check(FIRST, Ok(()));
    bed.check(SECOND, Ok(()));
    assert!(bed.takes(FIRST) && bed.takes(SECOND));
    let before = bed.id(SECOND);
    for _ in 0..2 {
        bed.check(SECOND, Err("port 80 refuses the connection"));
    }
    assert!(bed.takes(FIRST) && !bed.takes(SECOND));
    assert!(bed.purged.is_empty(), "its flows stay for now");
    bed.steps(700);
    assert_eq!(bed.purged.len(), 1, "they move, once");
    assert_eq!((bed.id(SECOND), bed.controller.instances().len()), (before, 2));
    for _ in 0..2 {
        bed.check(SECOND, Ok(()));
    }
    assert!(bed.takes(SECOND));
    for _ in 0..2 {
        bed.check(SECOND, Err("port 80 refuses the connection"));
    }
    bed.steps(700);
    assert_eq!(bed.purged.len(), 2, "and again");
}

#[test]
fn the_next_run_gives_each_its_slot_again() {
    let at = |text: &str| -> SocketAddr { text.parse().unwrap() };
    let resumed = Resumed {
        back_ends: BTreeMap::from([(Slot(0), at(SECOND)), (Slot(3), at(FIRST))]),
        ..Resumed::default()
    };
    let bed = Bed::new(service(&[THIRD, FIRST, SECOND], true), &resumed);
    let expected = BTreeMap::from([(Slot(0), at(SECOND)), (Slot(3), at(FIRST)), (Slot(1), at(THIRD))]);
    assert_eq!(bed.attached, expected);
    // Those that have served do so without a check.
    assert!(bed.takes(FIRST) && bed.takes(SECOND) && !bed.takes(THIRD));
}
