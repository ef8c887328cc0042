//! Instances with ports made in advance: each gets one of its service's slots, and an adopted one keeps its slot.
#![allow(clippy::unwrap_used, reason = "what goes wrong here fails the test")]

use std::collections::BTreeMap;

use autoscaling::Autoscaler;
use collector::Collector;
use controller::{
    AtPlace, CommandId, Controller, Inputs, LABEL_INSTANCE, LABEL_PLACE, LABEL_PORT, LABEL_SERVICE,
    LABEL_SLOT, MadePort, Outputs, Place, Report, ReportKind, ServiceSettings, Settings,
};
use engine::{Container, ContainerSpec, ContainerState, Request};
use model::{Action, EventKind, InstanceState, Mount, Nanos, PortKind, Ready, Slot};
use placement::PlaceId;
use switch::{PortSpec, Resumed, SwitchEvent, SwitchReading};

/// A service with `instances` instances and the slots 4 and 5.
fn controller(instances: u32) -> Controller {
    let place = |slot: u16| MadePort {
        slot: Slot(slot),
        kind: PortKind::Null,
        mounts: vec![Mount {
            source: format!("/ports/{slot}").into(),
            target: "/run/inco-port".into(),
            read_only: true,
        }],
        env: vec![("INCO_ROLE".to_owned(), "client".to_owned())],
        functions: Vec::new(),
    };
    let scaler = Autoscaler::from_name("fixed").unwrap();
    let service = ServiceSettings {
        made_ports: vec![place(4), place(5)],
        min: instances,
        max: instances,
        ..ServiceSettings::new("nf", Some(ContainerSpec::new("", "image")), scaler)
    };
    Controller::new(Settings::default(), vec![service])
}

/// Its requests and events in one step.
fn step(controller: &mut Controller, at: Nanos) -> Outputs {
    step_with(controller, &[], at)
}

/// The same after events of the switch.
fn step_with(controller: &mut Controller, switch: &[SwitchEvent], at: Nanos) -> Outputs {
    let inputs = Inputs {
        switch,
        ..Inputs::default()
    };
    step_by(controller, inputs, at)
}

fn step_by(controller: &mut Controller, inputs: Inputs<'_>, at: Nanos) -> Outputs {
    let mut collector = Collector::new();
    collector.add_service(Nanos::from_secs(1));
    let mut raw = SwitchReading::new(1, 0, 0);
    raw.at = at;
    collector.sample(&raw);
    let mut out = Outputs::default();
    controller.step(inputs, &mut collector, at, &mut out);
    out
}

fn created(out: &Outputs) -> Vec<&ContainerSpec> {
    let requests = out.engine.iter().filter_map(|(_, request)| match request {
        Request::Create(spec) => Some(&**spec),
        _ => None,
    });
    requests.collect()
}

fn told(out: &Outputs) -> usize {
    let of = |kind: &EventKind| {
        matches!(kind, EventKind::Failure { what, reason }
            if what == "switch" && reason.contains("all 2 ports"))
    };
    out.events.iter().filter(|event| of(&event.kind)).count()
}

#[test]
fn there_are_as_many_instances_as_places_and_it_is_said_once() {
    let mut controller = controller(3);
    controller.adopt(&[], &Resumed::default(), Nanos::ZERO);
    let out = step(&mut controller, Nanos::from_millis(1));
    let specs = created(&out);
    let slots: Vec<&str> = specs
        .iter()
        .map(|spec| spec.labels[LABEL_SLOT].as_str())
        .collect();
    assert_eq!(slots, ["4", "5"]);
    let sources: Vec<String> = specs[1]
        .mounts
        .iter()
        .map(|mount| mount.source.display().to_string())
        .collect();
    assert_eq!(sources[0], "/ports/5");
    assert!(
        specs[1]
            .env
            .contains(&("INCO_ROLE".to_owned(), "client".to_owned()))
    );
    assert_eq!(controller.made_ports(), Some((2, 2)));
    let again = step(&mut controller, Nanos::from_millis(2));
    assert_eq!((told(&out), created(&again).len(), told(&again)), (1, 0, 0));
}

#[test]
fn an_adopted_container_has_the_place_that_it_was_made_for() {
    let container = |id: u32, slot: &str| Container {
        name: format!("inco-nf-{id}"),
        labels: BTreeMap::from(
            [
                (LABEL_SERVICE, "nf"),
                (LABEL_INSTANCE, &id.to_string()),
                (LABEL_SLOT, slot),
            ]
            .map(|(key, value)| (key.to_owned(), value.to_owned())),
        ),
        pid: 0,
        state: ContainerState::Running,
        started_unix_ms: 0,
        address: None,
    };
    let mut controller = controller(2);
    // Containers with a slot of another service, or with a slot that is taken, are removed.
    let containers = [container(1, "5"), container(2, "9"), container(3, "5")];
    controller.adopt(&containers, &Resumed::default(), Nanos::ZERO);
    let adopted: Vec<(u32, Slot)> = controller
        .instances()
        .iter()
        .map(|i| (i.id().0, i.slot()))
        .collect();
    assert_eq!(adopted, [(1, Slot(5))]);
    let out = step(&mut controller, Nanos::from_millis(1));
    let mut removed: Vec<&str> = Vec::new();
    for (_, request) in &out.engine {
        if let Request::Remove { name } = request {
            removed.push(name);
        }
    }
    assert_eq!(removed, ["inco-nf-2", "inco-nf-3"]);
    let slots: Vec<&str> = created(&out)
        .iter()
        .map(|spec| spec.labels[LABEL_SLOT].as_str())
        .collect();
    assert_eq!(slots, ["4"]);
}

/// One that an orchestrator placed on another machine is attached at its address, and is ready at its first check.
#[test]
fn an_instance_on_another_machine_is_attached_at_its_address() {
    let at: std::net::SocketAddr = "10.1.0.12:32768".parse().unwrap();
    let mut controller = controller(1);
    controller.adopt(&[], &Resumed::default(), Nanos::ZERO);
    let out = step(&mut controller, Nanos::from_millis(1));
    let (ticket, request) = out.engine[0].clone();
    let event = engine::EngineEvent::Created {
        ticket,
        name: request.name().to_owned(),
        pid: 0,
        address: Some(at),
        at: Nanos::from_millis(1),
        took: Nanos::ZERO,
    };
    let mut collector = Collector::new();
    collector.add_service(Nanos::from_secs(1));
    let mut out = Outputs::default();
    let inputs = Inputs {
        engine: &[event],
        ..Inputs::default()
    };
    controller.step(inputs, &mut collector, Nanos::from_millis(2), &mut out);
    let attached = |out: &Outputs| {
        out.switch.iter().find_map(|request| match request {
            switch::SwitchRequest::Attach { port, .. } => Some(port.back_end),
            _ => None,
        })
    };
    assert_eq!(attached(&out), Some(Some(at)));
    assert_eq!(controller.instances()[0].address(), Some(at));
    // So is one that an earlier run had.
    let mut controller = self::controller(1);
    let adopted = Container {
        address: Some(at),
        ..container(7, 4)
    };
    controller.adopt(&[adopted], &Resumed::default(), Nanos::ZERO);
    assert_eq!(
        attached(&step(&mut controller, Nanos::from_millis(1))),
        Some(Some(at))
    );
}

/// A running container of an earlier run.
fn container(id: u32, slot: u16) -> Container {
    Container {
        name: format!("inco-nf-{id}"),
        labels: BTreeMap::from(
            [
                (LABEL_SERVICE, "nf".to_owned()),
                (LABEL_INSTANCE, id.to_string()),
                (LABEL_SLOT, slot.to_string()),
            ]
            .map(|(key, value)| (key.to_owned(), value)),
        ),
        pid: 0,
        state: ContainerState::Running,
        started_unix_ms: 0,
        address: None,
    }
}

/// Those whose flows were taken over are Active again, with the slots that the flows name.
#[test]
fn adopted_containers_keep_their_slots_and_those_with_flows_are_active_first() {
    let scaler = Autoscaler::from_name("fixed").unwrap();
    let service = ServiceSettings {
        min: 2,
        max: 2,
        standby: 1,
        ..ServiceSettings::new("nf", Some(ContainerSpec::new("", "image")), scaler)
    };
    let mut controller = Controller::new(Settings::default(), vec![service]);
    let containers = [container(3, 900), container(4, 0), container(7, 1)];
    let resumed = Resumed {
        live: BTreeMap::from([(Slot(0), 10), (Slot(1), 1)]),
        ..Resumed::default()
    };
    controller.adopt(&containers, &resumed, Nanos::ZERO);
    let adopted: Vec<(u32, Slot, bool)> = controller
        .instances()
        .iter()
        .map(|i| (i.id().0, i.slot(), i.comes_back()))
        .collect();
    assert_eq!(
        adopted,
        [(3, Slot(900), false), (4, Slot(0), true), (7, Slot(1), true)]
    );
}

/// What flows wait for may not wait for a command of the engine: they would move to the instances that are ready.
#[test]
fn an_adopted_container_with_flows_serves_as_soon_as_its_ports_are_up() {
    let scaler = Autoscaler::from_name("fixed").unwrap();
    let service = ServiceSettings {
        min: 2,
        max: 2,
        ready: Ready::Exec(vec!["/bin/ready".to_owned()]),
        ..ServiceSettings::new("nf", Some(ContainerSpec::new("", "image")), scaler)
    };
    let mut controller = Controller::new(Settings::default(), vec![service]);
    let resumed = Resumed {
        live: BTreeMap::from([(Slot(0), 10)]),
        ..Resumed::default()
    };
    controller.adopt(&[container(3, 0), container(4, 1)], &resumed, Nanos::ZERO);
    step(&mut controller, Nanos::from_millis(1));
    let attached = [0, 1].map(|slot| SwitchEvent::Attached {
        slot: Slot(slot),
        peer: String::new(),
    });
    let out = step_with(&mut controller, &attached, Nanos::from_millis(2));
    let states: Vec<InstanceState> = controller.instances().iter().map(|i| i.state()).collect();
    assert_eq!(states, [InstanceState::Active, InstanceState::Starting]);
    let mut asked = out.engine.iter().filter_map(|(_, request)| match request {
        Request::Exec { name, .. } => Some(name.as_str()),
        _ => None,
    });
    assert_eq!((asked.next(), asked.next()), (Some("inco-nf-4"), None));
}

/// An operator asks for fewer before the ports of those that flows wait for are up: they drain, and are not removed.
#[test]
fn an_adopted_container_with_flows_drains_where_fewer_are_wanted() {
    let scaler = Autoscaler::from_name("fixed").unwrap();
    let service = ServiceSettings {
        min: 1,
        max: 3,
        ..ServiceSettings::new("nf", Some(ContainerSpec::new("", "image")), scaler)
    };
    let mut controller = Controller::new(Settings::default(), vec![service]);
    let resumed = Resumed {
        live: BTreeMap::from([(Slot(0), 10), (Slot(1), 5)]),
        ..Resumed::default()
    };
    let containers = [container(3, 0), container(4, 1), container(5, 2)];
    controller.adopt(&containers, &resumed, Nanos::ZERO);
    let fewer = Action::Scale {
        service: "nf".to_owned(),
        instances: Some(1),
    };
    let commands = [(CommandId(1), fewer.into())];
    let inputs = Inputs {
        commands: &commands,
        ..Inputs::default()
    };
    step_by(&mut controller, inputs, Nanos::from_millis(1));
    let states = |controller: &Controller| -> Vec<(u32, InstanceState)> {
        let all = controller.instances().iter();
        all.map(|i| (i.id().0, i.state())).collect()
    };
    assert_eq!(
        states(&controller),
        [
            (3, InstanceState::Starting),
            (4, InstanceState::Starting),
            (5, InstanceState::Stopping)
        ]
    );
    let attached = [0, 1].map(|slot| SwitchEvent::Attached {
        slot: Slot(slot),
        peer: String::new(),
    });
    step_with(&mut controller, &attached, Nanos::from_millis(2));
    step(&mut controller, Nanos::from_millis(3));
    let now = states(&controller);
    assert_eq!(
        now[..2],
        [(3, InstanceState::Active), (4, InstanceState::Draining)]
    );
}

/// Two places: instances at the first have memif ports, those at the second have interfaces of the slots 4 and 5.
fn two_kinds(instances: u32) -> Controller {
    let port = |slot: u16| MadePort {
        slot: Slot(slot),
        kind: PortKind::Kernel,
        mounts: Vec::new(),
        env: vec![("PORT".to_owned(), slot.to_string())],
        functions: Vec::new(),
    };
    let scaler = Autoscaler::from_name("fixed").unwrap();
    let service = ServiceSettings {
        port: PortSpec::new(PortKind::Memif, "port.sock"),
        at: vec![AtPlace {
            place: PlaceId(1),
            container: ContainerSpec::new("", "server"),
            port: PortKind::Kernel,
            ready: Ready::Listens,
        }],
        made_ports: vec![port(4), port(5)],
        min: instances,
        max: instances,
        ..ServiceSettings::new("nf", Some(ContainerSpec::new("", "function")), scaler)
    };
    let card = Place {
        instances: Some(1),
        ..Place::new("card")
    };
    let settings = Settings {
        places: vec![card, Place::new("host")],
        ..Settings::default()
    };
    Controller::new(settings, vec![service])
}

#[test]
fn each_place_has_its_container_and_its_kind_of_port() {
    let mut controller = two_kinds(4);
    controller.adopt(&[], &Resumed::default(), Nanos::ZERO);
    let out = step(&mut controller, Nanos::from_millis(1));
    let made = created(&out).into_iter().map(|spec| {
        let label = |key: &str| spec.labels[key].clone();
        let port = spec.env.iter().find(|(key, _)| key == "PORT");
        (
            label(LABEL_PLACE),
            spec.image.with_tag(),
            label(LABEL_PORT),
            label(LABEL_SLOT),
            port.map(|(_, slot)| slot.clone()),
        )
    });
    let of = |place: &str, image: &str, kind: &str, slot: &str, port: Option<&str>| {
        let image = format!("{image}:latest");
        let text = str::to_owned;
        (
            text(place),
            image,
            text(kind),
            text(slot),
            port.map(str::to_owned),
        )
    };
    assert_eq!(
        made.collect::<Vec<_>>(),
        [
            of("card", "function", "memif", "0", None),
            of("host", "server", "kernel", "4", Some("4")),
            of("host", "server", "kernel", "5", Some("5")),
        ]
    );
    assert_eq!((told(&out), controller.made_ports()), (1, Some((2, 2))));
}

/// Each is ready when what its own kind of port asks for is there.
#[test]
fn an_instance_is_ready_as_its_place_says() {
    let mut controller = two_kinds(2);
    controller.adopt(
        &[at("card", container(1, 0)), at("host", container(2, 4))],
        &Resumed::default(),
        Nanos::ZERO,
    );
    step(&mut controller, Nanos::from_millis(1));
    let attached = [0, 4].map(|slot| SwitchEvent::Attached {
        slot: Slot(slot),
        peer: String::new(),
    });
    step_with(&mut controller, &attached, Nanos::from_millis(2));
    let states = |controller: &Controller| -> Vec<InstanceState> {
        controller.instances().iter().map(|i| i.state()).collect()
    };
    assert_eq!(
        states(&controller),
        [InstanceState::Active, InstanceState::Starting]
    );
    let listens = [Report {
        instance: controller.instances()[1].id(),
        kind: ReportKind::Listens(Ok(())),
    }];
    let inputs = Inputs {
        reports: &listens,
        ..Inputs::default()
    };
    step_by(&mut controller, inputs, Nanos::from_millis(3));
    assert_eq!(states(&controller), [InstanceState::Active; 2]);
}

/// The container at that place.
fn at(place: &str, mut container: Container) -> Container {
    container.labels.insert(LABEL_PLACE.to_owned(), place.to_owned());
    container
}

/// One with an interface needs that of its slot; one with a socket has any other slot.
#[test]
fn adopted_containers_have_the_ports_of_their_places() {
    let mut controller = two_kinds(4);
    let mut older = at("host", container(4, 2));
    older.labels.insert(LABEL_PORT.to_owned(), "memif".to_owned());
    let containers = [
        at("card", container(1, 9)),
        at("host", container(2, 5)),
        at("host", container(3, 9)),
        older,
    ];
    controller.adopt(&containers, &Resumed::default(), Nanos::ZERO);
    let adopted: Vec<_> = controller
        .instances()
        .iter()
        .map(|i| (i.id().0, i.slot(), i.port_kind()))
        .collect();
    assert_eq!(
        adopted,
        [
            (1, Slot(9), PortKind::Memif),
            (2, Slot(5), PortKind::Kernel),
            // From before its place had another kind.
            (4, Slot(2), PortKind::Memif),
        ]
    );
    assert_eq!(controller.made_ports(), Some((2, 1)));
}
