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
use model::{
    Action, BackEnd, BackEndState, EventKind, HealthCheck, InstanceId, InstanceState, Nanos, Probe,
    ServiceId, Slot,
};
use switch::{PortKind, PortSpec, Resumed, SwitchEvent, SwitchReading, SwitchRequest};

const FIRST: &str = "10.1.0.11:80";
const SECOND: &str = "10.1.0.12:80";
const THIRD: &str = "10.1.0.13:80";
const STEP: Nanos = Nanos::from_millis(10);

fn service(from: &[&str], is_checked: bool) -> ServiceSettings {
    let place = |slot: u16| MadePort {
        slot: Slot(slot),
        kind: PortKind::Routed,
        mounts: Vec::new(),
        env: Vec::new(),
        functions: Vec::new(),
    };
    let back_ends: Vec<BackEnd> = from.iter().map(|at| BackEnd::at(at.parse().unwrap())).collect();
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
        made_ports: (0..6).map(place).collect(),
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
    kinds: Vec<EventKind>,
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
            kinds: Vec::new(),
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
        self.kinds.extend(out.events.into_iter().map(|event| event.kind));
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
        let mut at_it = instances.filter(|of| of.address().is_some_and(|of| of.to_string() == at));
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

/// A service whose servers others tell at run time: there is room for `most` of them.
fn followed(most: u32, is_checked: bool) -> ServiceSettings {
    ServiceSettings {
        followed: Some(most),
        ..service(&[], is_checked)
    }
}

/// A Pod at an address.
fn pod(at: &str, id: &str, state: BackEndState) -> BackEnd {
    BackEnd {
        at: at.parse().unwrap(),
        id: Some(id.to_owned()),
        name: Some(format!("pod-{id}")),
        state,
        weight: BackEnd::WEIGHT,
    }
}

impl Bed {
    fn tell(&mut self, list: &[BackEnd]) {
        let command = Command::BackEnds {
            service: ServiceId(0),
            list: list.to_vec(),
        };
        self.command(command).unwrap();
        self.steps(5);
    }
}

use BackEndState::{Draining, NotReady, Serving};

#[test]
fn those_who_run_them_say_their_weights() {
    let mut bed = Bed::new(followed(4, false), &Resumed::default());
    let weighed = |at: &str, id: &str, weight: u16| BackEnd {
        weight,
        ..pod(at, id, Serving)
    };
    bed.tell(&[weighed(FIRST, "a", 9_000), weighed(SECOND, "b", 1_000)]);
    let weights = |bed: &Bed| -> Vec<u16> {
        let rows = bed.controller.plan().slots.iter().flatten();
        rows.map(|row| row.weight).collect()
    };
    assert_eq!(weights(&bed), [9_000, 1_000]);
    let generation = bed.controller.plan().generation;
    // Another weight alone makes another plan; the same weight makes none.
    bed.tell(&[weighed(FIRST, "a", 9_000), weighed(SECOND, "b", 3_000)]);
    assert_eq!(weights(&bed), [9_000, 3_000]);
    assert!(bed.controller.plan().generation > generation);
    let generation = bed.controller.plan().generation;
    bed.tell(&[weighed(SECOND, "b", 3_000), weighed(FIRST, "a", 9_000)]);
    assert_eq!(bed.controller.plan().generation, generation);
    // A server that comes has the one of the list at once.
    bed.tell(&[
        weighed(SECOND, "b", 3_000),
        weighed(FIRST, "a", 9_000),
        weighed(THIRD, "c", 7),
    ]);
    assert_eq!(weights(&bed), [9_000, 3_000, 7]);
}

#[test]
fn those_who_run_them_say_which_there_are() {
    let mut bed = Bed::new(followed(4, false), &Resumed::default());
    assert!(bed.controller.instances().is_empty() && bed.controller.is_settled());
    bed.tell(&[
        pod(FIRST, "a", Serving),
        pod(SECOND, "b", Serving),
        pod(THIRD, "c", NotReady),
    ]);
    assert!(bed.takes(FIRST) && bed.takes(SECOND));
    assert_eq!(bed.id(THIRD), None, "it has never been ready");
    let names: Vec<_> = bed
        .controller
        .instances()
        .iter()
        .map(|of| of.back_end_name())
        .collect();
    assert_eq!(names, [Some("pod-a"), Some("pod-b")]);
    let first = bed.id(FIRST);

    // Repeated, and in another order: nothing happens.
    bed.kinds.clear();
    bed.tell(&[
        pod(THIRD, "c", NotReady),
        pod(SECOND, "b", Serving),
        pod(FIRST, "a", Serving),
    ]);
    assert_eq!(bed.kinds, []);
    assert_eq!(bed.id(FIRST), first);

    // Not ready: as a failed check. Its flows stay for the deadline of a drain.
    bed.tell(&[
        pod(FIRST, "a", NotReady),
        pod(SECOND, "b", Serving),
        pod(THIRD, "c", Serving),
    ]);
    assert!(!bed.takes(FIRST) && bed.takes(SECOND) && bed.takes(THIRD));
    assert_eq!(bed.state(FIRST), Some(InstanceState::Active));
    assert!(bed.purged.is_empty());
    bed.steps(700);
    assert_eq!(bed.purged.len(), 1);
    bed.tell(&[
        pod(FIRST, "a", Serving),
        pod(SECOND, "b", Serving),
        pod(THIRD, "c", Serving),
    ]);
    assert!(bed.takes(FIRST));
    assert_eq!(bed.id(FIRST), first, "it is the same one");

    // It ends: it keeps its flows, which the fake switch says are none.
    bed.tell(&[
        pod(FIRST, "a", Draining),
        pod(SECOND, "b", Serving),
        pod(THIRD, "c", Serving),
    ]);
    bed.steps(700);
    assert_eq!(bed.id(FIRST), None, "its drain has ended");
    assert_eq!(bed.controller.instances().len(), 2, "and it does not come again");
    assert!(bed.controller.is_settled());

    // One that is gone without a word leaves at once, and its flows move.
    bed.purged.clear();
    bed.tell(&[pod(SECOND, "b", Serving)]);
    assert_eq!((bed.id(THIRD), bed.purged.len()), (None, 1));
    bed.tell(&[]);
    assert!(bed.controller.instances().is_empty() && bed.attached.is_empty());
    assert!(bed.controller.is_settled());
}

#[test]
fn another_pod_at_the_same_address_is_another_instance() {
    let mut bed = Bed::new(followed(4, true), &Resumed::default());
    bed.tell(&[pod(FIRST, "a", Serving)]);
    bed.check(FIRST, Ok(()));
    assert!(bed.takes(FIRST));
    let before = bed.id(FIRST).unwrap();
    bed.tell(&[pod(FIRST, "z", Serving)]);
    let after = bed.id(FIRST).unwrap();
    assert_ne!(before, after);
    assert_eq!(bed.controller.instances().len(), 1);
    assert_eq!(
        bed.state(FIRST),
        Some(InstanceState::Starting),
        "it has to pass a check of its own"
    );
    assert_eq!(
        bed.purged.len(),
        1,
        "its predecessor's flows do not become its own"
    );
}

#[test]
fn more_than_there_is_room_for_wait_and_that_is_said_once() {
    let mut bed = Bed::new(followed(2, false), &Resumed::default());
    let three = [
        pod(FIRST, "a", Serving),
        pod(SECOND, "b", Serving),
        pod(THIRD, "c", Serving),
    ];
    bed.tell(&three);
    bed.tell(&three);
    assert_eq!(bed.controller.instances().len(), 2);
    let told = |kinds: &[EventKind]| {
        let is_it = |kind: &&EventKind| matches!(kind, EventKind::Failure { reason, .. } if reason.contains("places for 2"));
        kinds.iter().filter(is_it).count()
    };
    assert_eq!(told(&bed.kinds), 1);
    bed.tell(&[pod(FIRST, "a", Serving), pod(THIRD, "c", Serving)]);
    assert!(bed.takes(FIRST) && bed.takes(THIRD));
}

#[test]
fn an_operator_drains_one_and_those_who_run_it_do_not_undo_that() {
    let mut bed = Bed::new(followed(4, false), &Resumed::default());
    let both = [pod(FIRST, "a", Serving), pod(SECOND, "b", Serving)];
    bed.tell(&both);
    let instance = bed.id(FIRST).unwrap();
    bed.act(Action::Drain { instance }).unwrap();
    bed.tell(&both);
    bed.steps(50);
    assert_eq!(bed.state(FIRST), Some(InstanceState::Draining));
    bed.act(Action::Undrain { instance }).unwrap();
    assert!(bed.takes(FIRST));
    // A new file changes nothing about which there are.
    bed.command(Command::Reconfigure {
        service: ServiceId(0),
        settings: Box::new(followed(4, false)),
        autoscaler: false,
        scheduler: false,
    })
    .unwrap();
    assert!(bed.takes(FIRST) && bed.takes(SECOND));
    assert_eq!(bed.id(FIRST), Some(instance));
}

#[test]
fn the_next_run_serves_what_there_was_before_anybody_says_what_there_is() {
    let at = |text: &str| -> SocketAddr { text.parse().unwrap() };
    let resumed = Resumed {
        back_ends: BTreeMap::from([(Slot(0), at(SECOND)), (Slot(3), at(FIRST)), (Slot(4), at(THIRD))]),
        ..Resumed::default()
    };
    let mut bed = Bed::new(followed(4, true), &resumed);
    // The API server is away: all go on where they were.
    assert_eq!(bed.attached, resumed.back_ends);
    assert!(bed.takes(FIRST) && bed.takes(SECOND) && bed.takes(THIRD));
    let first = bed.id(FIRST);
    bed.tell(&[pod(FIRST, "a", Serving), pod(SECOND, "b", Draining)]);
    assert!(bed.takes(FIRST));
    assert_eq!(bed.id(FIRST), first);
    let name = bed.controller.instances()[0].back_end_name();
    assert!(name.is_some_and(|name| name.starts_with("pod-")));
    assert_eq!(bed.id(THIRD), None, "it has gone meanwhile");
    bed.steps(700);
    assert_eq!(bed.id(SECOND), None);
    assert_eq!(bed.controller.instances().len(), 1);
}

mod orders {
    use proptest::prelude::*;

    use super::*;

    /// What is said at one time: of some of six addresses, which of two Pods is there, and its state.
    fn lists() -> impl Strategy<Value = Vec<Vec<BackEnd>>> {
        let one = (
            0..6_u8,
            0..2_u8,
            prop_oneof![Just(Serving), Just(Draining), Just(NotReady)],
        );
        let list = prop::collection::vec(one, 0..8).prop_map(|all| {
            let mut list: Vec<BackEnd> = Vec::new();
            for (at, id, state) in all {
                let of = pod(&format!("10.1.0.{}:80", 11 + at), &format!("{at}-{id}"), state);
                if !list.iter().any(|other| other.at == of.at) {
                    list.push(of);
                }
            }
            list
        });
        prop::collection::vec(list, 1..12)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Whatever is said in which order: nothing is doubled or orphaned, and in the end those that serve are
        /// instances, each once, with nobody beside them but such as are not ready.
        #[test]
        fn the_state_converges(lists in lists(), pauses in prop::collection::vec(0..4_usize, 12)) {
            let mut bed = Bed::new(followed(6, false), &Resumed::default());
            for (list, pause) in lists.iter().zip(pauses) {
                let service = ServiceId(0);
                bed.step(&[(CommandId(1), Command::BackEnds { service, list: list.clone() })], &[]);
                bed.steps(pause);
                let mut there: Vec<_> = bed.controller.instances().iter().map(|of| of.address()).collect();
                there.sort_unstable();
                let all = there.len();
                there.dedup();
                prop_assert_eq!(there.len(), all, "an address is there twice");
            }
            bed.steps(600);
            let last = lists.last().unwrap();
            let serves = last.iter().any(|of| of.state == Serving);
            for of in last {
                let at = of.at.to_string();
                match of.state {
                    Serving => prop_assert!(bed.takes(&at), "{at} does not serve"),
                    NotReady => prop_assert!(bed.id(&at).is_none() || !bed.takes(&at)),
                    // Where nobody else serves, it goes on.
                    Draining => prop_assert!(!serves || bed.id(&at).is_none()),
                }
            }
            for instance in bed.controller.instances() {
                prop_assert!(last.iter().any(|of| Some(of.at) == instance.address()));
            }
            prop_assert_eq!(bed.attached.len(), bed.controller.instances().len());
            prop_assert!(!serves || bed.controller.is_settled());
        }
    }
}
