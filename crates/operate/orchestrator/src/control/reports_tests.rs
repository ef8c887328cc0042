//! Tests of what a machine reports, and of what follows at an edge.
#![allow(clippy::unwrap_used, reason = "a test fails by it")]

use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use autoscaling::Autoscaler;
use clock::monotonic;
use configuration::ReportingMachine;
use controller::{Inputs, MadePort, Outputs, ServiceSettings};
use model::BackEnd;
use scheduling::Scheduler;
use switch::{PortKind, PortSpec, ServicePlan, SwitchEvent, SwitchReading, SwitchRequest};

use super::*;

/// Machines 1 and 2, with one instance each at the edge.
const MACHINES: [[u8; 4]; 2] = [[10, 1, 0, 11], [10, 1, 0, 12]];
/// What the edge takes for the capacity of an instance, in packets per second.
const CAPACITY: f64 = 1000.0;
/// Any port of this machine.
const ANY: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
/// When reports came.
const AT: Nanos = Nanos::from_secs(60);
/// How long something that threads do may take.
const PATIENCE: Duration = Duration::from_secs(20);

/// A controller with a switch that does what it is asked at once, and no engine.
struct Edge {
    controller: Controller,
    collector: Collector,
    now: Nanos,
}

impl Edge {
    fn new(scheduler: &str) -> Edge {
        let place = |slot: u16| MadePort {
            slot: Slot(slot),
            kind: PortKind::Routed,
            mounts: Vec::new(),
            env: Vec::new(),
            functions: Vec::new(),
        };
        let back_ends = MACHINES.map(|at| BackEnd::at(SocketAddr::from((at, 4789))));
        let settings = ServiceSettings {
            made_ports: (0..4).map(place).collect(),
            port: PortSpec::new(PortKind::Routed, ""),
            plan: ServicePlan::of_all(ServiceId(0), Scheduler::from_name(scheduler).unwrap()),
            min: 2,
            max: 2,
            capacity_pps: Some(CAPACITY),
            back_ends: Some(back_ends.to_vec()),
            ..ServiceSettings::new("web", None, Autoscaler::from_name("fixed").unwrap())
        };
        let mut collector = Collector::new();
        collector.add_service(Nanos::from_secs(1));
        let controller = Controller::new(controller::Settings::default(), vec![settings]);
        let mut edge = Edge {
            controller,
            collector,
            now: Nanos::ZERO,
        };
        edge.run();
        edge
    }

    /// Lets the controller bring up what it is to have.
    fn run(&mut self) {
        let mut events = Vec::new();
        for _ in 0..5 {
            let acknowledged = self.controller.plan().generation;
            self.sample(&[]);
            let inputs = Inputs {
                switch: &events,
                acknowledged,
                ..Inputs::default()
            };
            let mut out = Outputs::default();
            self.controller
                .step(inputs, &mut self.collector, self.now, &mut out);
            let attached = out.switch.into_iter().filter_map(|request| match request {
                SwitchRequest::Attach { slot, .. } => Some(SwitchEvent::Attached {
                    slot,
                    peer: String::new(),
                }),
                _ => None,
            });
            events = attached.collect();
        }
    }

    /// Reads counters: how many flows each slot has been given.
    fn sample(&mut self, given: &[(Slot, u64)]) {
        self.now = self.now + Nanos::from_millis(10);
        let mut raw = SwitchReading::new(1, 2, 0);
        raw.at = self.now;
        raw.acknowledged = self.controller.plan().generation;
        for (slot, flows) in given {
            raw.slots[slot.index()].new_flows = *flows;
        }
        self.collector.sample(&raw);
    }

    /// The slot of the instance at a machine.
    fn slot(&self, machine: usize) -> Slot {
        let address = IpAddr::from(MACHINES[machine - 1]);
        let is_it = |of: &&Instance| of.address().is_some_and(|at| at.ip() == address);
        self.controller.instances().iter().find(is_it).unwrap().slot()
    }

    /// The loads of both machines, and how far each is believed, where the edge had measured 7 for both; and what a flow
    /// is expected to add, where it had measured 3.
    fn loads(&self, reports: &mut Reports, now: Nanos) -> ([(f32, f32); 2], f32) {
        let slots = [self.slot(1), self.slot(2)];
        let (mut loads, mut expected) = (slots.map(|slot| (slot, 7.0)), [(ServiceId(0), 3.0)]);
        let trust = reports
            .replace(&self.controller, &self.collector, &mut loads, &mut expected, now)
            .to_vec();
        let of = |slot: Slot| {
            let load = loads.iter().find(|(of, _)| *of == slot).unwrap().1;
            let trust = trust.iter().find(|(of, _)| *of == slot);
            (load, trust.map_or(f32::NAN, |(_, trust)| *trust))
        };
        (slots.map(of), expected[0].1)
    }
}

/// A load of the service `web`: 10 flows use `used` of `capacity`.
fn load(used: u64, capacity: u64) -> ServiceLoad {
    ServiceLoad {
        service: service_number("web"),
        state: Serving::Serving,
        instances: 3,
        capacity,
        capacity_left: capacity - used,
        live_flows: 10,
    }
}

/// An address that nobody has.
fn free() -> SocketAddr {
    UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

/// What an edge takes there.
fn taken(listen: SocketAddr) -> TakenReports {
    let machine = |(index, address): (usize, [u8; 4])| ReportingMachine {
        number: index as u16 + 1,
        address: Some(Ipv4Addr::from(address)),
        ..ReportingMachine::default()
    };
    TakenReports {
        listen,
        machines: MACHINES.into_iter().enumerate().map(machine).collect(),
    }
}

fn keys() -> Vec<Key> {
    [1, 2].map(|byte| Key::of_random([byte; 24])).to_vec()
}

/// An edge's reports, with what its machines have said last.
fn said(loads: [Option<ServiceLoad>; 2]) -> Reports {
    let mut reports = Reports::default();
    reports.take(&taken(ANY), keys()).unwrap();
    for (machine, load) in reports.machines.iter_mut().zip(loads) {
        say(machine, load, AT);
    }
    reports
}

fn say(machine: &mut Machine, load: Option<ServiceLoad>, at: Nanos) {
    machine.last.at = load.is_some().then_some(at);
    machine.last.loads = load.into_iter().collect();
}

fn eventually<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let since = Instant::now();
    loop {
        if let Some(found) = ask() {
            return found;
        }
        assert!(since.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn fresh_reports_take_the_place_of_what_the_edge_has_measured() {
    let edge = Edge::new("machines");
    // Shares of what the edge takes for the capacity: machines differ in size.
    let mut reports = said([Some(load(750, 1000)), Some(load(400, 4000))]);
    let (loads, expected) = edge.loads(&mut reports, AT);
    assert_eq!(loads, [(750.0, 1.0), (100.0, 1.0)]);
    // 20 flows use 1150 of machines with 2500 each, on average.
    assert!((expected - 23.0).abs() < 0.001, "{expected}");
}

#[test]
fn only_services_that_go_by_reports_do() {
    let mut reports = said([Some(load(750, 1000)), None]);
    let (loads, expected) = Edge::new("worst-fit").loads(&mut reports, AT);
    assert_eq!((loads, expected), ([(7.0, 1.0); 2], 3.0));
    // Nor does an edge that takes none.
    let (loads, expected) = Edge::new("machines").loads(&mut Reports::default(), AT);
    assert_eq!((loads.map(|of| of.0), expected), ([7.0; 2], 3.0));
    assert!(loads.iter().all(|of| of.1.is_nan()));
}

#[test]
fn a_machine_that_has_not_reported_is_not_believed() {
    let edge = Edge::new("machines");
    let mut reports = said([Some(load(500, 1000)), None]);
    assert_eq!(edge.loads(&mut reports, AT).0, [(500.0, 1.0), (0.0, 0.0)]);
    // Nor one that has reported of other services.
    let other = ServiceLoad {
        service: service_number("dns"),
        ..load(500, 1000)
    };
    say(&mut reports.machines[1], Some(other), AT);
    assert_eq!(edge.loads(&mut reports, AT).0[1], (0.0, 0.0));
}

#[test]
fn reports_are_believed_less_with_their_age() {
    let edge = Edge::new("machines");
    let mut reports = said([Some(load(500, 1000)), Some(load(500, 1000))]);
    let mut at = |ms: u64| edge.loads(&mut reports, AT + Nanos::from_millis(ms));
    assert_eq!(at(30).0[0], (500.0, 1.0));
    let (loads, expected) = at(80);
    assert_eq!(loads[0], (500.0, 0.5));
    // What a flow adds is taken from fresh ones alone.
    assert_eq!(expected, 0.0);
    assert!(at(5_000).0[0].1 < 1e-6);
}

#[test]
fn a_machine_that_takes_no_flows_says_so_for_a_while_only() {
    let edge = Edge::new("machines");
    for state in [Serving::Draining, Serving::Leaving] {
        let withdrawn = ServiceLoad {
            state,
            ..load(100, 1000)
        };
        let mut reports = said([Some(withdrawn), Some(load(100, 1000))]);
        let (loads, _) = edge.loads(&mut reports, AT + Nanos::from_millis(199));
        assert!(
            loads[0].0 >= Machines::WITHDRAWN && loads[0].1 == 1.0,
            "{loads:?}"
        );
        let (loads, _) = edge.loads(&mut reports, AT + Nanos::from_millis(200));
        assert_eq!(loads[0].0, 100.0);
        assert!(loads[0].1 < 0.1, "{loads:?}");
    }
}

#[test]
fn flows_since_a_report_are_added_to_it() {
    let mut edge = Edge::new("machines");
    let slot = edge.slot(1);
    let mut reports = said([Some(load(500, 1000)), Some(load(500, 1000))]);
    edge.sample(&[(slot, 40)]);
    // Flows of before the report are in it.
    assert_eq!(edge.loads(&mut reports, AT).0[0].0, 500.0);
    edge.sample(&[(slot, 44)]);
    // A flow uses 50 of 1000.
    assert_eq!(edge.loads(&mut reports, AT).0, [(700.0, 1.0), (500.0, 1.0)]);
    // The next report has them.
    let later = AT + Nanos::from_millis(10);
    say(&mut reports.machines[0], Some(load(700, 1000)), later);
    assert_eq!(edge.loads(&mut reports, later).0[0].0, 700.0);
    // Counters that begin anew add nothing.
    edge.sample(&[(slot, 1)]);
    assert_eq!(edge.loads(&mut reports, later).0[0].0, 700.0);
}

#[test]
fn no_report_makes_a_load_that_is_none() {
    let edge = Edge::new("machines");
    // Without a capacity a machine is full.
    let mut reports = said([Some(load(0, 0)), Some(load(0, 0))]);
    let (loads, expected) = edge.loads(&mut reports, AT);
    assert_eq!((loads, expected), ([(CAPACITY as f32, 1.0); 2], 0.0));
    // A tiny one beside a huge flow stays below a machine that takes none.
    let mut edge = edge;
    let slot = edge.slot(1);
    let huge = ServiceLoad {
        live_flows: 1,
        ..load(u64::MAX, u64::MAX)
    };
    let mut reports = said([Some(load(1, 1)), Some(huge)]);
    edge.loads(&mut reports, AT);
    edge.sample(&[(slot, u64::from(u32::MAX))]);
    let (loads, expected) = edge.loads(&mut reports, AT);
    assert!(loads[0].0 < Machines::WITHDRAWN / 2.0, "{loads:?}");
    assert!(
        loads.iter().all(|of| of.0.is_finite()) && expected.is_finite(),
        "{loads:?} {expected}"
    );
}

#[test]
fn a_row_says_what_the_machine_has_said() {
    let edge = Edge::new("machines");
    let draining = ServiceLoad {
        state: Serving::Draining,
        ..load(250, 1000)
    };
    let reports = said([Some(draining), None]);
    let is_at = |machine: usize| {
        let slot = edge.slot(machine);
        edge.controller
            .instances()
            .iter()
            .find(|of| of.slot() == slot)
            .unwrap()
    };
    let row = reports.row(is_at(1), "web", AT + Nanos::from_millis(30)).unwrap();
    let expected = ReportRow {
        state: "draining".to_owned(),
        utilisation: 0.25,
        instances: 3,
        live_flows: 10,
        age_ms: 30,
        trust: 1.0,
    };
    assert_eq!(row, expected);
    assert_eq!(reports.row(is_at(1), "dns", AT), None);
    assert_eq!(reports.row(is_at(2), "web", AT), None);
    let status = reports.status(AT + Nanos::from_millis(30)).unwrap();
    let ages: Vec<_> = status.machines.iter().map(|of| (of.number, of.age_ms)).collect();
    assert_eq!(ages, [(1, Some(30)), (2, None)]);
    assert_eq!(Reports::default().status(AT), None);
}

#[test]
fn a_machine_reports_what_its_active_instances_have_left() {
    let edge = Edge::new("worst-fit");
    let of = |instances: &[Instance], metric| {
        own_load(&edge.controller, &edge.collector, instances.iter(), metric)
    };
    let both = of(edge.controller.instances(), Metric::Packets);
    assert_eq!((both.state, both.instances), (Serving::Serving, 2));
    assert_eq!((both.capacity, both.capacity_left), (2000, 2000));
    // A share of time is told in parts of a million.
    let parts = of(edge.controller.instances(), Metric::Busy);
    assert_eq!(parts.capacity, 2000 * 1_000_000);
    // Without an instance that takes flows, it drains.
    let none = of(&[], Metric::Packets);
    assert_eq!(
        (none.state, none.instances, none.capacity),
        (Serving::Draining, 0, 0)
    );
}

/// Two machines' ends of reports, over sockets: what one tells, the other one hears.
#[test]
fn what_is_told_is_heard_and_its_end_is_noticed_once() {
    let machine = Edge::new("worst-fit");
    let mut edge = Reports::default();
    let of_edge = taken(free());
    edge.take(&of_edge, keys()).unwrap();
    let sent = SentReports {
        machine: 1,
        to: vec![of_edge.listen],
        key: "key".into(),
    };
    let mut reports = Reports::default();
    reports.send(Some((&sent, keys()[0].clone()))).unwrap();
    let heard = |reports: &Reports, edge: &mut Reports, state: Serving| {
        eventually("a report is heard", || {
            let is_stopping = state == Serving::Leaving;
            reports.tell(&machine.controller, &machine.collector, is_stopping, monotonic());
            let events = edge.hear(monotonic());
            let load = edge.machines[0].last.loads.first()?;
            (load.state == state && load.service == service_number("web")).then_some(events)
        })
    };
    heard(&reports, &mut edge, Serving::Serving);
    let load = edge.machines[0].last.loads[0];
    assert_eq!((load.instances, load.capacity), (2, 2000));
    heard(&reports, &mut edge, Serving::Leaving);
    // The same settings do not begin anew, which would cost reports.
    let before = reports.status(AT).unwrap().edges[0].sent;
    reports.send(Some((&sent, keys()[0].clone()))).unwrap();
    assert!(reports.status(AT).unwrap().edges[0].sent >= before);

    reports.send(None).unwrap();
    assert!(reports.status(AT).is_none());
    // What was on its way.
    std::thread::sleep(Duration::from_millis(20));
    let last = |edge: &Reports| edge.machines[0].last.at.unwrap();
    edge.hear(last(&edge));
    let at = last(&edge);
    assert!(edge.hear(at + Nanos::from_millis(999)).is_empty());
    let late = at + Nanos::from_secs(1);
    let is_about = |what: &str| what == "reports of machine 1 (10.1.0.11)";
    let events: [EventKind; 1] = edge.hear(late).try_into().unwrap();
    assert!(
        matches!(&events, [EventKind::Failure { what, .. }] if is_about(what)),
        "{events:?}"
    );
    assert!(edge.hear(late).is_empty(), "it is told once");

    let mut again = Reports::default();
    again.send(Some((&sent, keys()[0].clone()))).unwrap();
    let events = heard(&again, &mut edge, Serving::Serving);
    let recovered = |of: &EventKind| matches!(of, EventKind::Recovered { what, .. } if is_about(what));
    assert!(events.iter().any(recovered), "{events:?}");
    let counters = edge.counters(monotonic());
    assert!(counters.accepted["1"] > 0 && counters.accepted["2"] == 0);
    assert!(counters.age_s.contains_key("1") && !counters.age_s.contains_key("2"));
}

#[test]
fn machines_that_stay_keep_what_they_have_said() {
    let mut reports = said([Some(load(1, 2)), Some(load(1, 2))]);
    let mut fewer = taken(ANY);
    fewer.machines.remove(0);
    let moved = ReportingMachine {
        number: 3,
        address: Some(Ipv4Addr::from([10, 1, 0, 13])),
        ..ReportingMachine::default()
    };
    fewer.machines.push(moved);
    reports.take(&fewer, keys()).unwrap();
    let known: Vec<_> = reports
        .machines
        .iter()
        .map(|of| (of.number, of.last.at))
        .collect();
    assert_eq!(known, [(2, Some(AT)), (3, None)]);
}

#[test]
fn refused_datagrams_are_told_now_and_then() {
    let mut reports = Reports::default();
    let of_edge = taken(free());
    reports.take(&of_edge, keys()).unwrap();
    let stranger = UdpSocket::bind("127.0.0.1:0").unwrap();
    let refused =
        |reports: &Reports| -> u64 { reports.receiver.as_ref().unwrap().taken().refused.values().sum() };
    let more = |reports: &Reports| {
        let before = refused(reports);
        stranger.send_to(b"no report", of_edge.listen).unwrap();
        eventually("it is refused", || (refused(reports) > before).then_some(()));
    };
    assert!(reports.hear(AT).is_empty());
    more(&reports);
    assert!(
        reports.hear(AT + Nanos::from_secs(9)).is_empty(),
        "nothing is told so soon"
    );
    more(&reports);
    let events = reports.hear(AT + Nanos::from_secs(10));
    let expected = EventKind::Failure {
        what: "reports".to_owned(),
        reason: "refused, without any effect: malformed 2".to_owned(),
    };
    assert_eq!(events, [expected]);
    assert!(
        reports.hear(AT + Nanos::from_secs(30)).is_empty(),
        "there is nothing new"
    );
}
