//! Places: where instances are created, which leave first, and what an engine that is away takes with it.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "what goes wrong here fails the test"
)]

use std::collections::BTreeMap;

use autoscaling::Autoscaler;
use collector::Collector;
use controller::{
    Command, CommandId, Controller, Core, Inputs, LABEL_CORE, LABEL_PLACE, Outputs, Place, ServiceSettings,
    Settings,
};
use engine::{Container, ContainerSpec, CpuQuota, Engine, EngineEvent, FakeConfig, FakeEngine, PlacesEngine};
use model::{Action, EventKind, Generation, InstanceState, Nanos};
use placement::{PlaceId, Placement};
use switch::{Resumed, SwitchEvent, SwitchReading, SwitchRequest};

/// The places `card` and `host`, each with an engine, and one service of at most 8 instances.
struct Bed {
    controller: Controller,
    collector: Collector,
    reading: SwitchReading,
    engine: PlacesEngine,
    card: FakeEngine,
    host: FakeEngine,
    containers: Option<Vec<Container>>,
    now: Nanos,
    acknowledged: Generation,
    switch: Vec<SwitchEvent>,
    events: Vec<EventKind>,
    /// Packets that an Active instance at each place gets in a millisecond.
    packets: [u64; 2],
    /// Bytes of each.
    frame_bytes: u64,
}

fn place(name: &str, instances: Option<u32>) -> Place {
    Place {
        instances,
        ..Place::new(name)
    }
}

fn service(placement: Placement) -> ServiceSettings {
    let mut container = ContainerSpec::new("", "image");
    container.cpu = Some(CpuQuota::of_cpus(1.0));
    ServiceSettings {
        placement,
        min: 1,
        max: 8,
        capacity_pps: Some(1000.0),
        ..ServiceSettings::new("nf", Some(container), Autoscaler::from_name("fixed").unwrap())
    }
}

impl Bed {
    fn new(card: Place, host: Place, service: ServiceSettings) -> Bed {
        let fakes = [(); 2].map(|()| FakeEngine::new(FakeConfig::default()));
        Bed::over(card, host, service, fakes)
    }

    /// One over engines that may have containers.
    fn over(card: Place, host: Place, service: ServiceSettings, fakes: [FakeEngine; 2]) -> Bed {
        let names = [card.name.clone(), host.name.clone()];
        let settings = Settings {
            places: vec![card, host],
            ..Settings::default()
        };
        let boxed = |fake: &FakeEngine| Box::new(fake.clone()) as Box<dyn Engine>;
        let engines = names.into_iter().zip(&fakes);
        let engines = engines.map(|(name, fake)| (vec![name], boxed(fake)));
        let mut engine = PlacesEngine::new(engines);
        let mut controller = Controller::new(settings, vec![service]);
        let containers = engine.list(&controller.settings().label()).unwrap();
        controller.adopt(&containers, &Resumed::default(), Nanos::ZERO);
        let mut collector = Collector::new();
        collector.add_service(Nanos::from_secs(1));
        let [card, host] = fakes;
        Bed {
            controller,
            collector,
            reading: SwitchReading::new(1, 0, 1),
            engine,
            card,
            host,
            containers: None,
            now: Nanos::ZERO,
            acknowledged: Generation(0),
            switch: Vec::new(),
            events: Vec::new(),
            packets: [0, 0],
            frame_bytes: 60,
        }
    }

    /// A step of a millisecond, with what engines and switch do in it.
    fn step(&mut self, command: Option<Command>) {
        self.now = self.now + Nanos::from_millis(1);
        self.card.advance(self.now);
        self.host.advance(self.now);
        let mut engine: Vec<EngineEvent> = Vec::new();
        self.engine.poll(&mut engine);
        self.reading.at = self.now;
        for instance in self.controller.instances() {
            if instance.state() == InstanceState::Active {
                let packets = self.packets[instance.place().index()];
                let of_slot = &mut self.reading.slots[instance.slot().index()];
                of_slot.to_packets += packets;
                of_slot.consumed += packets;
                self.reading.services[0].offered_packets += packets;
                self.reading.services[0].offered_bytes += packets * self.frame_bytes;
            }
        }
        self.collector.sample(&self.reading);
        let commands: Vec<_> = command.into_iter().map(|of| (CommandId(1), of)).collect();
        let switch = std::mem::take(&mut self.switch);
        let containers = self.containers.take();
        let inputs = Inputs {
            engine: &engine,
            containers: containers.as_deref(),
            switch: &switch,
            acknowledged: self.acknowledged,
            commands: &commands,
            ..Inputs::default()
        };
        let mut out = Outputs::default();
        self.controller
            .step(inputs, &mut self.collector, self.now, &mut out);
        for (ticket, request) in out.engine.drain(..) {
            self.engine.submit(ticket, request);
        }
        if out.list_containers {
            self.containers = self.engine.list(&self.controller.settings().label()).ok();
        }
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
                _ => {}
            }
        }
        for (_, answer) in out.answers {
            answer.unwrap();
        }
        self.events.extend(out.events.into_iter().map(|event| event.kind));
    }

    /// Steps until it holds, for at most 20 s.
    fn until(&mut self, what: &str, holds: impl Fn(&Bed) -> bool) {
        for _ in 0..20_000 {
            if holds(self) {
                return;
            }
            self.step(None);
        }
        panic!("{what}: {:?}; {:#?}", self.active(), self.controller.instances());
    }

    fn scale(&mut self, instances: u32) {
        let service = "nf".to_owned();
        let instances = Some(instances);
        self.step(Some(Action::Scale { service, instances }.into()));
    }

    fn act(&mut self, action: Action) {
        self.step(Some(action.into()));
    }

    /// Active instances at `card` and `host`.
    fn active(&self) -> (usize, usize) {
        let at = |place| {
            let instances = self.controller.instances().iter();
            let active = instances.filter(|of| of.state() == InstanceState::Active);
            active.filter(|of| of.place() == place).count()
        };
        (at(PlaceId(0)), at(PlaceId(1)))
    }

    fn settles(&mut self, active: (usize, usize)) {
        self.until(&format!("{active:?} active"), |bed| {
            bed.active() == active && bed.controller.is_settled()
        });
        // What the controller says is where the containers are.
        let have = |fake: &FakeEngine| fake.containers().len();
        assert_eq!((have(&self.card), have(&self.host)), active);
    }

    fn failures(&self, of: &str) -> Vec<&str> {
        let failures = self.events.iter().filter_map(|kind| match kind {
            EventKind::Failure { what, reason } if what == of => Some(reason.as_str()),
            _ => None,
        });
        failures.collect()
    }

    /// Sorted: containers are made at the same time.
    fn reasons(&self, state: InstanceState) -> Vec<&str> {
        let mut reasons: Vec<&str> = self
            .events
            .iter()
            .filter_map(|kind| match kind {
                EventKind::State { to, reason, .. } if *to == state => Some(reason.as_str()),
                _ => None,
            })
            .collect();
        reasons.sort_unstable();
        reasons
    }
}

#[test]
fn auto_fills_the_card_first_and_leaves_the_host_first() {
    let mut bed = Bed::new(
        place("card", Some(2)),
        place("host", None),
        service(Placement::Auto),
    );
    bed.settles((1, 0));
    bed.scale(5);
    bed.settles((2, 3));
    let labels: Vec<String> = bed
        .host
        .containers()
        .iter()
        .map(|of| of.labels[LABEL_PLACE].clone())
        .collect();
    assert_eq!(labels, ["host"; 3]);
    // What is there before the new one, and why the card does not get it.
    let first = |have| format!("its program runs at card; the first place has room (card {have} of 2)");
    let host = "its program runs at host; the first place with room: card has 2 of 2 instances";
    assert_eq!(
        bed.reasons(InstanceState::Starting),
        [first(0).as_str(), first(1).as_str(), host, host, host]
    );
    bed.scale(2);
    bed.settles((2, 0));
    bed.scale(1);
    bed.settles((1, 0));
    let reasons = bed.reasons(InstanceState::Draining);
    let drained = |place: &str| {
        let at = format!("scale-in at {place}; it has the fewest flows there (0)");
        reasons.iter().filter(|reason| **reason == at).count()
    };
    assert_eq!((drained("host"), drained("card")), (3, 1), "{reasons:?}");
}

/// The card is first in the file, and the way to it is longer. Its cores take fewer watts.
#[test]
fn the_goal_of_the_autoscaler_gives_the_order_of_the_places() {
    let first = |autoscaler: &str, parameters: serde_json::Value| {
        let card = Place {
            latency: Nanos::from_micros(5),
            watts_per_core: Some(2.0),
            ..place("card", Some(2))
        };
        let host = Place {
            watts_per_core: Some(11.0),
            ..place("host", Some(2))
        };
        let autoscaler = Autoscaler::with_parameters(autoscaler, parameters).unwrap();
        let settings = ServiceSettings {
            autoscaler,
            ..service(Placement::Auto)
        };
        let mut bed = Bed::new(card, host, settings);
        bed.until("one is active", |bed| bed.active().0 + bed.active().1 == 1);
        let first = bed.active();
        bed.scale(3);
        bed.settles(if first == (1, 0) { (2, 1) } else { (1, 2) });
        bed.scale(2);
        bed.settles(if first == (1, 0) { (2, 0) } else { (0, 2) });
        first
    };
    assert_eq!(first("fixed", serde_json::json!({})), (0, 1));
    let goal = |goal: &str| first("inreal", serde_json::json!({"goal": goal}));
    assert_eq!(
        (goal("performance"), goal("cpu"), goal("power")),
        ((0, 1), (1, 0), (1, 0))
    );
}

/// A link of 2,500 packets a second of 976 bytes and 24 of Ethernet: it carries what two instances process, or half of what
/// one does that is ten times as large.
#[test]
fn a_place_behind_a_link_has_what_the_link_carries() {
    let run = |capacity_pps: f64| {
        let card = Place {
            link_bytes_per_s: Some(2.5e6),
            ..Place::new("card")
        };
        let settings = ServiceSettings {
            capacity_pps: Some(capacity_pps),
            ..service(Placement::Auto)
        };
        let mut bed = Bed::new(card, place("host", None), settings);
        bed.frame_bytes = 976;
        bed.packets = [1, 1];
        bed.until("one is active", |bed| bed.active() == (1, 0));
        for _ in 0..100 {
            bed.step(None);
        }
        bed.scale(4);
        bed.until("all are active", |bed| bed.active().0 + bed.active().1 == 4);
        let plan = bed.controller.plan();
        let capacities = plan.slots.iter().flatten().map(|of| of.capacity_pps);
        (bed.active(), capacities.collect::<Vec<f32>>())
    };
    assert_eq!(run(1000.0), ((2, 2), vec![1000.0; 4]));
    let (active, capacities) = run(10_000.0);
    assert_eq!(active, (1, 3));
    assert!((capacities[0] - 2500.0).abs() < 50.0, "{capacities:?}");
    assert_eq!(capacities[1..], [10_000.0; 3]);
}

#[test]
fn a_place_takes_packets_up_to_its_limit() {
    let card = Place {
        capacity_pps: Some(2500.0),
        ..Place::new("card")
    };
    let mut bed = Bed::new(card, place("host", None), service(Placement::Auto));
    bed.scale(4);
    bed.settles((2, 2));
    let rooms: Vec<f64> = bed.controller.place_statuses().map(|of| of.room.pps).collect();
    assert_eq!(rooms, [2000.0, 2000.0]);
    let host = "its program runs at host; the first place with room: card has 2000 of 2500 packets/s";
    assert_eq!(bed.reasons(InstanceState::Starting)[2..], [host, host]);
}

#[test]
fn split_spreads_by_the_limits_in_both_directions() {
    let mut bed = Bed::new(
        place("card", Some(2)),
        place("host", Some(4)),
        service(Placement::Split),
    );
    bed.scale(3);
    bed.settles((1, 2));
    // The host would be a quarter full with the first one, the card half; with the third one, half and all.
    let least = |at, card, host| {
        format!("its program runs at {at}; the least full place with it (card {card} of 2; host {host} of 4)")
    };
    assert_eq!(
        bed.reasons(InstanceState::Starting),
        [least("card", 0, 1), least("host", 0, 0), least("host", 1, 1)]
    );
    bed.scale(6);
    bed.settles((2, 4));
    bed.scale(3);
    bed.settles((1, 2));
}

#[test]
fn full_places_are_told_once_and_used_when_there_is_room() {
    let mut bed = Bed::new(
        place("card", Some(1)),
        place("host", Some(2)),
        service(Placement::Auto),
    );
    bed.scale(5);
    bed.until("three are active", |bed| bed.active() == (1, 2));
    for _ in 0..100 {
        bed.step(None);
    }
    let told = "its places are full (card 1 of 1; host 2 of 2); a new instance waits";
    assert_eq!(bed.failures("place"), [told]);
    bed.scale(3);
    bed.settles((1, 2));
    bed.scale(4);
    bed.until("it is told again", |bed| bed.failures("place").len() == 2);
}

#[test]
fn a_service_stays_at_its_place() {
    let mut bed = Bed::new(
        place("card", None),
        place("host", None),
        service(Placement::At(PlaceId(1))),
    );
    bed.scale(3);
    bed.settles((0, 3));
    // It could be nowhere else.
    assert_eq!(
        bed.reasons(InstanceState::Starting),
        ["its program runs at host"; 3]
    );
}

#[test]
fn an_instance_has_its_share_of_the_quota_and_of_the_capacity() {
    let card = Place {
        share: 0.4,
        cpuset: Some("0-3".to_owned()),
        ..place("card", Some(1))
    };
    let mut bed = Bed::new(card, place("host", None), service(Placement::Auto));
    bed.scale(2);
    bed.settles((1, 1));
    let cpus: Vec<Option<f64>> = bed.controller.instances().iter().map(|of| of.cpus()).collect();
    assert_eq!(cpus, [Some(0.4), Some(1.0)]);
    let capacity: Vec<f32> = bed
        .controller
        .plan()
        .slots
        .iter()
        .flatten()
        .map(|of| of.capacity_pps)
        .collect();
    assert_eq!(capacity, [400.0, 1000.0]);
    bed.act(Action::Resize {
        service: "nf".to_owned(),
        cpus: Some(0.5),
    });
    bed.until("both have the quota", |bed| {
        let cpus: Vec<Option<f64>> = bed.controller.instances().iter().map(|of| of.cpus()).collect();
        cpus == [Some(0.2), Some(0.5)]
    });
}

#[test]
fn quotas_of_an_autoscaler_are_shares_of_the_place() {
    let card = Place {
        share: 0.4,
        ..place("card", Some(1))
    };
    let goal = serde_json::json!({"goal": "cpu"});
    let service = ServiceSettings {
        min: 2,
        autoscaler: Autoscaler::with_parameters("inreal", goal).unwrap(),
        ..service(Placement::Auto)
    };
    let mut bed = Bed::new(card, place("host", None), service);
    // A tenth of what each has at its place, as nothing comes.
    bed.until("both have the smallest quota", |bed| {
        let instances = bed.controller.instances().iter();
        let cpus: Vec<f64> = instances.filter_map(|of| of.cpus()).collect();
        let is = |index: usize, wanted: f64| cpus.get(index).is_some_and(|cpus| (cpus - wanted).abs() < 1e-3);
        is(0, 0.04) && is(1, 0.1)
    });
}

#[test]
fn an_instance_leaves_a_place_above_its_limit_and_comes_back() {
    let card = Place {
        capacity_pps: Some(2500.0),
        ..Place::new("card")
    };
    let calm = serde_json::json!({"calm": "1s"});
    let service = ServiceSettings {
        min: 3,
        max: 3,
        autoscaler: Autoscaler::with_parameters("inreal", calm).unwrap(),
        ..service(Placement::Auto)
    };
    let mut bed = Bed::new(card, place("host", None), service);
    bed.settles((2, 1));
    // 4,000 packets per second for the two at the card.
    bed.packets = [2, 0];
    bed.settles((1, 2));
    let wanted = |bed: &Bed| -> Vec<(String, String, String)> {
        let wanted = bed.events.iter().filter_map(|kind| match kind {
            EventKind::Relocated {
                from_place,
                to_place,
                reason,
                ..
            } => {
                let rule = reason.split(':').next().unwrap_or_default();
                Some((from_place.clone(), to_place.clone(), rule.to_owned()))
            }
            _ => None,
        });
        wanted.collect()
    };
    let of = |from: &str, to: &str, rule: &str| (from.to_owned(), to.to_owned(), rule.to_owned());
    let away = of("card", "host", "above_limit_of_place");
    assert_eq!(wanted(&bed), std::slice::from_ref(&away));
    let drained = "relocated to host; its replacement is ready";
    assert!(bed.reasons(InstanceState::Draining).contains(&drained));
    // It was never short of an instance.
    for _ in 0..2_000 {
        bed.step(None);
    }
    assert_eq!(
        (bed.active(), wanted(&bed).len()),
        ((1, 2), 1),
        "2,000 for the one at the card fit"
    );
    bed.packets = [0, 0];
    bed.settles((2, 1));
    assert_eq!(wanted(&bed), [away, of("host", "card", "earlier_place_has_room")]);
    for _ in 0..5_000 {
        bed.step(None);
    }
    assert_eq!(
        (bed.active(), wanted(&bed).len()),
        ((2, 1), 2),
        "the card is full"
    );
}

#[test]
fn memory_counts_as_a_share_of_the_containers_limit() {
    let mut service = service(Placement::Auto);
    service.container.as_mut().unwrap().memory_bytes = Some(1_000);
    let memory_high = serde_json::json!({"memory_high": 0.8});
    service.autoscaler = Autoscaler::with_parameters("inreal", memory_high).unwrap();
    let mut bed = Bed::new(place("card", None), place("host", None), service);
    bed.settles((1, 0));
    let slot = bed.controller.instances()[0].slot().index();
    bed.reading.slots[slot].live_flows = 10;
    for (bytes, active) in [(700, (1, 0)), (801, (2, 0))] {
        bed.reading.slots[slot].container_memory_bytes = Some(bytes);
        for _ in 0..2_000 {
            bed.step(None);
        }
        assert_eq!(bed.active(), active, "{bytes} bytes");
    }
    let reasons: Vec<_> = bed
        .events
        .iter()
        .filter_map(|kind| match kind {
            EventKind::Scaled { reason, .. } => Some(reason.as_str()),
            _ => None,
        })
        .collect();
    assert!(
        matches!(reasons[..], [reason] if reason.starts_with("memory_high: ") && reason.contains("memory 0.801")),
        "{reasons:?}"
    );
}

#[test]
fn an_engine_that_is_away_stops_changes_at_its_place_only() {
    let mut bed = Bed::new(
        place("card", Some(2)),
        place("host", None),
        service(Placement::Auto),
    );
    bed.settles((1, 0));
    bed.card.set_down(true);
    bed.step(None);
    bed.step(None);
    bed.scale(3);
    bed.until("others are made at the host", |bed| bed.active() == (1, 2));
    let told = bed.failures("engine of card");
    assert!(
        matches!(told[..], [reason] if reason.contains("packets are still steered; nothing changes at this place")),
        "{told:?}"
    );
    assert_eq!(bed.failures("engine of host"), Vec::<&str>::new());
    // An end at the other place is seen meanwhile, and replaced there.
    let name = bed.host.containers()[0].name.clone();
    bed.host.kill(&name, 9);
    bed.until("it is replaced", |bed| {
        bed.active() == (1, 2) && bed.host.containers().iter().all(|of| of.name != name)
    });
    bed.card.set_down(false);
    bed.settles((1, 2));
    let is_back =
        |kind: &EventKind| matches!(kind, EventKind::Recovered { what, .. } if what == "engine of card");
    assert_eq!(bed.events.iter().filter(|kind| is_back(kind)).count(), 1);
    bed.scale(4);
    bed.settles((2, 2));
}

#[test]
fn a_lost_place_is_the_failure_of_its_instances() {
    let card = Place {
        lost_after: Some(Nanos::from_secs(2)),
        ..place("card", Some(2))
    };
    let mut bed = Bed::new(card, place("host", None), service(Placement::Auto));
    bed.scale(3);
    bed.settles((2, 1));
    bed.card.set_down(true);
    for _ in 0..1_900 {
        bed.step(None);
    }
    assert_eq!(bed.active(), (2, 1), "it may come back");
    bed.until("the host has all", |bed| bed.active() == (0, 3));
    let lost = "place card is lost: its engine has not answered for 2 s";
    assert_eq!(bed.reasons(InstanceState::Failed), [lost; 2]);
    // Back again: what was lost is removed there, and the place is used again.
    bed.card.set_down(false);
    bed.settles((0, 3));
    bed.scale(5);
    bed.settles((2, 3));
}

#[test]
fn on_this_machine_instances_go_on_without_their_engine() {
    let mut bed = Bed::new(
        place("card", Some(2)),
        place("host", None),
        service(Placement::Auto),
    );
    bed.scale(3);
    bed.settles((2, 1));
    bed.card.set_down(true);
    for _ in 0..15_000 {
        bed.step(None);
    }
    assert_eq!(bed.active(), (2, 1));
    bed.card.set_down(false);
    bed.settles((2, 1));
}

#[test]
fn adopted_containers_keep_their_places() {
    let both = || (place("card", Some(2)), place("host", None));
    let (card, host) = both();
    let mut bed = Bed::new(card, host, service(Placement::Auto));
    bed.scale(3);
    bed.settles((2, 1));
    let fakes = [bed.card.clone(), bed.host.clone()];
    let (card, host) = both();
    let mut next = Bed::over(card, host, service(Placement::Auto), fakes);
    next.now = bed.now;
    let adopted: BTreeMap<u32, PlaceId> = next
        .controller
        .instances()
        .iter()
        .map(|of| (of.id().0, of.place()))
        .collect();
    assert_eq!(
        adopted.values().map(|place| place.0).collect::<Vec<_>>(),
        [0, 0, 1]
    );
    next.scale(2);
    next.settles((2, 0));
}

#[test]
fn a_service_that_moves_leaves_its_former_place_first() {
    let mut bed = Bed::new(
        place("card", None),
        place("host", None),
        service(Placement::At(PlaceId(0))),
    );
    bed.scale(3);
    bed.settles((3, 0));
    bed.step(Some(Command::Reconfigure {
        service: model::ServiceId(0),
        settings: Box::new(service(Placement::At(PlaceId(1)))),
        autoscaler: false,
        scheduler: false,
    }));
    bed.settles((3, 0));
    bed.scale(5);
    bed.settles((3, 2));
    bed.scale(3);
    bed.settles((1, 2));
}

/// Two cores at the card, one of each node; one at the host.
fn with_cores() -> (Place, Place, ServiceSettings) {
    let core = |cpu, node| Core {
        cpu,
        node: Some(node),
    };
    let card = Place {
        cores: vec![core(2, 0), core(3, 1)],
        ..place("card", Some(4))
    };
    let host = Place {
        cores: vec![core(5, 0)],
        ..place("host", None)
    };
    let mut service = service(Placement::Auto);
    service.container = Some(ContainerSpec::new("", "image"));
    (service.exclusive, service.node) = (true, Some(1));
    (card, host, service)
}

/// The core of each instance, in the order of their ids.
fn cores(bed: &Bed) -> Vec<Option<u16>> {
    bed.controller.instances().iter().map(|of| of.core()).collect()
}

#[test]
fn each_instance_has_a_core_to_itself_near_its_uplink_first() {
    let (card, host, service) = with_cores();
    let mut bed = Bed::new(card, host, service);
    bed.settles((1, 0));
    assert_eq!(cores(&bed), [Some(3)]);
    bed.scale(5);
    bed.until("as many as cores", |bed| bed.active() == (2, 1));
    assert_eq!(cores(&bed), [Some(3), Some(2), Some(5)]);
    for _ in 0..100 {
        bed.step(None);
    }
    let told = "too few cores are free at its places (card 2 of 4, 0 of 2 cores free; host 1, 0 of 1 cores free); a new \
                instance waits";
    assert_eq!(bed.failures("place"), [told]);
    let labels: Vec<String> = bed
        .card
        .containers()
        .iter()
        .map(|of| of.labels[LABEL_CORE].clone())
        .collect();
    assert_eq!(labels, ["3", "2"]);
    // One that ends gives its core to the one that replaces it.
    let name = bed.card.containers()[0].name.clone();
    bed.card.kill(&name, 9);
    bed.until("it is replaced", |bed| {
        bed.active() == (2, 1) && bed.card.containers().iter().all(|of| of.name != name)
    });
    let mut taken = cores(&bed);
    taken.sort_unstable();
    assert_eq!(taken, [Some(2), Some(3), Some(5)]);
    bed.scale(1);
    bed.settles((1, 0));
    bed.scale(2);
    bed.settles((2, 0));
}

#[test]
fn adopted_containers_keep_their_cores() {
    let (card, host, service) = with_cores();
    let mut bed = Bed::new(card.clone(), host.clone(), service.clone());
    bed.scale(2);
    bed.settles((2, 0));
    let fakes = [bed.card.clone(), bed.host.clone()];
    let mut next = Bed::over(card, host, service, fakes);
    next.now = bed.now;
    assert_eq!(cores(&next), [Some(3), Some(2)]);
    next.scale(3);
    next.settles((2, 1));
    assert_eq!(cores(&next), [Some(3), Some(2), Some(5)]);
}
