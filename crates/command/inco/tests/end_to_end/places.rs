//! Two places with an engine each: instances fill the first and go on at the second, and an engine that is away takes
//! only its own place with it.

use model::{EventKind, InstanceState};

use crate::support::{
    Engine, IMAGE, Inco, PATIENCE, Place, PrivateDockerd, assert_clean, assert_undisturbed, eventually,
    example,
};

/// The places `card` and `host` with these engines; the card takes so many instances.
fn configuration(card: (&str, u32), host: &str, instances: &str, autoscaler: &str) -> String {
    let (card, limit) = card;
    format!(
        r#"
[[uplink]]
name = "wan"
device = "memif:wan.sock"

[switch.timeouts]
udp = "1s"

[[place]]
name = "card"
{card}
cpus = "0"
instances = {limit}
[[place]]
name = "host"
{host}
cpus = "1"

[service.forward]
image = "{IMAGE}"
command = ["/inco-nf", "forward", "--stamp", "--pace-cpus", "0.1"]
cpus = 0.1
memory = "64MiB"
capacity = "2.5kpps"
instances = {instances}
scheduler = "best-fit"
autoscaler = {autoscaler}
ring = {{ slots = 8192 }}
"#
    )
}

const OCI: &str = "engine = \"oci\"";

/// Active instances at the card and at the host.
fn active(inco: &Inco) -> (usize, usize) {
    let rows = inco.instances();
    let at = |place: &str| {
        let active = rows.iter().filter(|row| row.state == InstanceState::Active);
        active.filter(|row| row.place.as_deref() == Some(place)).count()
    };
    (at("card"), at("host"))
}

fn becomes(inco: &Inco, wanted: (usize, usize)) {
    inco.settled(wanted.0 + wanted.1, 0);
    assert_eq!(active(inco), wanted, "{}", inco.told());
}

/// The CPUs that the kernel lets the program of each instance use, by place.
fn cpus_are_those_of_the_places(inco: &Inco) {
    for row in inco.instances() {
        let status = std::fs::read_to_string(format!("/proc/{}/status", row.pid.unwrap())).unwrap();
        let allowed = status
            .lines()
            .find_map(|line| line.strip_prefix("Cpus_allowed_list:"))
            .unwrap();
        let expected = if row.place.as_deref() == Some("card") {
            "0"
        } else {
            "1"
        };
        assert_eq!(allowed.trim(), expected, "{row:?}");
    }
}

/// 20 flows, one more each 50 ms, then all but 4 end.
const RAMP: &str = r#"
tick = "500us"
uplink_wait = "5s"
settle = "10s"
[[phase]]
duration = "7s"
flows = 20
ramp = "50ms"
keep = 4
keep_from = "3s"
rate_per_flow = "500pps"
"#;

/// `oci` at the card, Docker at the host.
#[test]
fn load_fills_the_card_goes_on_at_the_host_and_leaves_it_first() {
    if !Engine::Oci.is_here() || !Engine::Docker.is_here() {
        return;
    }
    let place = Place::quiet();
    let text = configuration(
        (OCI, 3),
        "engine = \"docker\"",
        "{ min = 2, max = 6, standby = 0 }",
        "{ policy = \"smartinco\", target = 0.5, scale_down_window = \"1s\" }",
    );
    let file = place.file("inco.toml", &text);
    let plan = place.must(&["check", "-f", file.to_str().unwrap()]);
    assert!(plan.contains("docker at unix:///run/docker.sock"), "{plan}");
    assert!(plan.contains("forward: placement auto"), "{plan}");
    let inco = place.run_file(&file);
    becomes(&inco, (2, 0));
    let mut traffic = place.traffic(RAMP);
    let mut peak = (0, 0);
    while traffic.is_running() {
        inco.note_traces();
        let (card, host) = active(&inco);
        peak = (peak.0.max(card), peak.1.max(host));
        if peak == (3, 3) && (card, host) == peak {
            cpus_are_those_of_the_places(&inco);
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let report = traffic.report();
    assert_clean(&report);
    assert_eq!(peak, (3, 3), "{}", inco.told());
    let status = inco.at_rest();
    assert_eq!(status.accounting.returned, report.counts.returned_packets);
    assert_eq!(status.accounting.dropped, 0, "{:#?}", status.drops);
    assert_eq!(status.accounting.expected_moves, 0);
    becomes(&inco, (2, 0));

    // All at the host have left before one at the card did.
    let drained: Vec<String> = inco
        .events()
        .into_iter()
        .filter_map(|event| match event.kind {
            EventKind::State {
                to: InstanceState::Draining,
                reason,
                ..
            } => Some(reason),
            _ => None,
        })
        .collect();
    let first_of_card = drained
        .iter()
        .position(|reason| reason.starts_with("scale-in at card"));
    let of_host = drained
        .iter()
        .filter(|reason| reason.starts_with("scale-in at host"));
    assert!(of_host.count() >= 3, "{drained:#?}");
    assert!(first_of_card.is_none_or(|at| at >= 3), "{drained:#?}");

    // Everything names the place.
    for (command, words) in [
        ("status", "card"),
        ("instances", "card"),
        ("services", "2 at card"),
    ] {
        let said = place.must(&[command]);
        assert!(said.contains(words), "{command}: {said}");
    }
    let counters = inco.client().counters().unwrap();
    let at_card = |of: &api::counters::InstanceCounters| of.place.as_deref() == Some("card");
    assert!(
        counters.instances.iter().all(at_card),
        "{:#?}",
        counters.instances
    );
    inco.stop(&place);
}

/// Until it is interrupted.
const LOAD: &str = r#"
tick = "500us"
uplink_wait = "5s"
settle = "10s"
[[phase]]
duration = "10m"
flows = 20
rate_per_flow = "100pps"
"#;

/// An inco with at least so many instances. The card has a Docker of its own, and takes two of them.
fn with_docker_at_the_card(min: u32) -> Option<(Place, PrivateDockerd, Inco)> {
    if !Engine::Oci.is_here() || !Engine::Docker.is_here() {
        return None;
    }
    let place = Place::new();
    let dockerd = PrivateDockerd::start(&place.path("docker"))?;
    let card = format!("engine = \"docker\"\nhost = \"{}\"", dockerd.host());
    let instances = format!("{{ min = {min}, max = 6, standby = 0 }}");
    let inco = place.run(&configuration((&card, 2), OCI, &instances, "\"fixed\""));
    Some((place, dockerd, inco))
}

/// Docker at the card is stopped under load: the host goes on, and takes what the card does not.
#[test]
fn an_engine_that_is_away_takes_only_its_place_with_it() {
    let Some((place, mut dockerd, inco)) = with_docker_at_the_card(1) else {
        return;
    };
    becomes(&inco, (1, 0));
    let traffic = place.traffic(LOAD);
    eventually("packets flow", PATIENCE, || {
        (inco.status().accounting.returned > 500).then_some(())
    });
    dockerd.pause();
    eventually("it is noticed that the card's engine is away", PATIENCE, || {
        let places = inco.status().places;
        (!places[0].engine.up && places[1].engine.up).then_some(())
    });
    place.must(&["scale", "forward", "3"]);
    becomes(&inco, (1, 2));
    place.must(&["scale", "forward", "2"]);
    becomes(&inco, (1, 1));
    let failures = |of: &str| {
        let events = inco.events().into_iter();
        let failures =
            events.filter(|event| matches!(&event.kind, EventKind::Failure { what, .. } if what == of));
        failures.count()
    };
    assert_eq!(
        (
            failures("engine of card"),
            failures("engine of host"),
            failures("engine")
        ),
        (1, 0, 0),
        "{}",
        inco.told()
    );
    dockerd.go_on();
    eventually("the card's engine is back", PATIENCE, || {
        inco.status().places[0].engine.up.then_some(())
    });
    place.must(&["scale", "forward", "3"]);
    becomes(&inco, (2, 1));
    place.must(&["scale", "forward", "1"]);
    becomes(&inco, (1, 0));
    traffic.interrupt();
    assert_clean(&traffic.report());
    let status = inco.at_rest();
    assert_eq!(status.accounting.dropped, 0, "{:#?}", status.drops);
    inco.stop(&place);
}

/// The card's engine and its instances are gone at once: its flows move to the host, which has the others.
#[test]
fn a_place_that_is_lost_with_its_instances_is_replaced_elsewhere() {
    let Some((place, mut dockerd, inco)) = with_docker_at_the_card(3) else {
        return;
    };
    becomes(&inco, (2, 1));
    let traffic = place.traffic(LOAD);
    eventually("instances of the card have flows", PATIENCE, || {
        let rows = inco.instances().into_iter();
        let mut card = rows.filter(|row| row.place.as_deref() == Some("card"));
        (card.any(|row| row.live_flows > 0) && inco.status().accounting.returned > 500).then_some(())
    });
    let rows = inco.instances();
    let lost: Vec<_> = rows
        .iter()
        .filter(|row| row.place.as_deref() == Some("card"))
        .collect();
    let flows: u64 = lost.iter().map(|row| row.live_flows).sum();
    dockerd.pause();
    for row in &lost {
        crate::support::kill(row.pid.unwrap(), rustix::process::Signal::KILL);
    }
    eventually("the host has all", PATIENCE, || {
        (active(&inco) == (0, 3)).then_some(())
    });
    let before = inco.status().accounting.returned;
    eventually("packets flow", PATIENCE, || {
        (inco.status().accounting.returned > before + 1000).then_some(())
    });
    traffic.interrupt();
    let report = traffic.report_with_moves();
    assert_undisturbed(&report);
    let status = inco.at_rest();
    // Each flow of the card moved once; what was on its way there is counted as lost.
    assert_eq!(report.counts.expected_moves, flows, "{}", inco.told());
    // inco notices one death after the other: in between, a flow can move to the other dead instance, and from there on.
    // The generator sees the second move alone, since nothing returns from there.
    let moves = status.accounting.expected_moves;
    assert!(
        (flows..=2 * flows).contains(&moves),
        "{moves} moves of {flows} flows"
    );
    assert_eq!(report.lost, status.accounting.dropped, "{:#?}", status.drops);
    let failed = inco.events().into_iter().filter(|event| {
        let is_failed = matches!(&event.kind, EventKind::State { to, .. } if *to == InstanceState::Failed);
        is_failed && lost.iter().any(|row| Some(row.id) == event.instance)
    });
    assert_eq!(failed.count(), 2, "{}", inco.told());
    dockerd.go_on();
    eventually("the card's engine is back", PATIENCE, || {
        inco.status().places[0].engine.up.then_some(())
    });
    // It is used again.
    place.must(&["scale", "forward", "4"]);
    becomes(&inco, (1, 3));
    inco.stop(&place);
}

/// 9,000 packets per second on three instances: the two of the card get more than its limit. The policy has one replaced at
/// the host, and brings it back when the load is over; both, where one has so many of the flows that it alone is too much.
fn one_leaves_the_card_above_its_limit_and_comes_back(policy: &str) {
    if !Engine::Oci.is_here() {
        return;
    }
    let place = Place::new();
    let card = ("capacity = \"5kpps\"", 2);
    let instances = "{ min = 3, max = 3, standby = 0 }";
    let autoscaler = format!("{{ policy = \"{policy}\", calm = \"1s\" }}");
    let inco = place.run(&configuration(card, "", instances, &autoscaler));
    becomes(&inco, (2, 1));
    let load = LOAD
        .replace("flows = 20", "flows = 18")
        .replace("100pps", "500pps");
    let traffic = place.traffic(&load);
    eventually("one is replaced at the host", PATIENCE, || {
        (active(&inco).1 > 1).then_some(())
    });
    traffic.interrupt();
    assert_undisturbed(&traffic.report());
    eventually("it is back at the card", PATIENCE, || {
        (active(&inco) == (2, 1)).then_some(())
    });
    inco.at_rest();
    let relocations: Vec<(String, String, String)> = inco
        .events()
        .into_iter()
        .filter_map(|event| match event.kind {
            EventKind::Relocated {
                from_place,
                to_place,
                reason,
                ..
            } => Some((from_place, to_place, reason)),
            _ => None,
        })
        .collect();
    let (away, back) = relocations.split_at(relocations.len() / 2);
    assert!(
        (1..=2).contains(&away.len()) && away.len() == back.len(),
        "{relocations:#?}\n{}",
        inco.told()
    );
    for (from, to, above) in away {
        assert_eq!([from, to], ["card", "host"]);
        assert!(above.starts_with("above_limit_of_place: place_pps "), "{above}");
        assert!(above.contains("limit_pps 5000"), "{above}");
    }
    for (from, to, room) in back {
        assert_eq!([from, to], ["host", "card"]);
        assert!(room.starts_with("earlier_place_has_room: "), "{room}");
    }
    let words = format!("card -> host wanted by {policy}");
    assert!(place.must(&["events"]).contains(&words));
    inco.stop(&place);
}

#[test]
fn inreal_leaves_the_card_above_its_limit_and_comes_back() {
    one_leaves_the_card_above_its_limit_and_comes_back("inreal");
}

#[test]
fn ladder_leaves_the_card_above_its_limit_and_comes_back() {
    one_leaves_the_card_above_its_limit_and_comes_back("ladder");
}

/// The host is nearer, the card takes fewer watts: each goal fills another place first. Watts are a MODEL here, unless the
/// machine has a meter.
#[test]
fn distance_and_watts_of_a_place_decide_where_an_instance_goes() {
    if !Engine::Oci.is_here() {
        return;
    }
    let place = Place::new();
    let card = ("latency = \"5us\"\nwatts_per_core = 2", 4);
    let host = "watts_per_core = 11\ninstances = 4";
    let instances = "{ min = 1, max = 1, standby = 0 }";
    let start = |autoscaler: &str| place.run(&configuration(card, host, instances, autoscaler));
    // The default is performance, with any autoscaler.
    let inco = start("\"fixed\"");
    becomes(&inco, (0, 1));
    inco.stop(&place);
    let inco = start("{ policy = \"inreal\", goal = \"cpu\" }");
    becomes(&inco, (1, 0));
    inco.stop(&place);
    let inco = start("{ policy = \"inreal\", goal = \"power\", cpus_min = 0.1 }");
    becomes(&inco, (1, 0));
    let traffic = place.traffic(LOAD);
    let watts = eventually("watts are known", PATIENCE, || inco.instances()[0].watts);
    assert!(
        watts.low <= watts.expected && watts.expected <= watts.high,
        "{watts:?}"
    );
    let counters = inco.client().counters().unwrap().instances.remove(0);
    let id = inco.instances()[0].id.0.to_string();
    let described = place.must(&["describe", &format!("forward/{id}")]);
    if watts.source == api::types::WattsSource::Model {
        // A core takes 2 W, and 15 W of error are this one instance's.
        assert!(watts.expected <= 2.0 * 0.2 && watts.high > 14.9, "{watts:?}");
        assert!(described.contains("MODEL"), "{described}");
        assert!(
            counters.model_watts.is_some() && counters.watts.is_none(),
            "{counters:?}"
        );
    } else {
        assert!(
            counters.model_watts.is_none() && counters.watts.is_some(),
            "{counters:?}"
        );
    }
    traffic.interrupt();
    assert_clean(&traffic.report());
    inco.stop(&place);
}

/// One service with a subnet at the card and one at the host.
#[test]
fn subnets_are_bound_to_places() {
    if !Engine::Oci.is_here() {
        return;
    }
    let place = Place::new();
    let inco = place.run(&format!(
        r#"
[[uplink]]
name = "wan"
device = "memif:wan.sock"
[[place]]
name = "card"
cpus = "0"
[[place]]
name = "host"
cpus = "1"
[service.forward]
image = "{IMAGE}"
command = ["/inco-nf", "forward", "--stamp", "--pace-cpus", "0.1"]
cpus = 0.1
memory = "64MiB"
instances = 1
subnets = {{ card = "10.128.0.0/24", host = "10.128.1.0/24" }}
"#
    ));
    becomes(&inco, (1, 1));
    cpus_are_those_of_the_places(&inco);
    for row in inco.instances() {
        let at = row.place.unwrap();
        assert_eq!(row.service, format!("forward-{at}"));
    }
    let phase = |dst: &str, flows: u32| {
        format!("[[phase]]\nduration = \"1s\"\nflows = {flows}\nrate_per_flow = \"50pps\"\ndst = \"{dst}\"\n")
    };
    let (card, host) = (phase("10.128.0.1", 8), phase("10.128.1.1", 4));
    let load = format!(
        "tick = \"500us\"\nuplink_wait = \"5s\"\nsettle = \"10s\"\n{card}src = \"10.0.0.1\"\n{host}src = \"10.1.0.1\"\n"
    );
    let report = place.traffic(&load).report();
    assert_clean(&report);
    inco.at_rest();
    for row in inco.instances() {
        let flows = report.flows.iter().filter(|flow| flow.instance == row.id.0);
        let expected = if row.place.as_deref() == Some("card") {
            8
        } else {
            4
        };
        assert_eq!(flows.count(), expected, "{row:#?}");
    }
    inco.stop(&place);
}

/// After `kill -9` the next run finds the containers of both engines where they are, and `inco stop` removes those of
/// both.
#[test]
fn a_killed_inco_finds_and_removes_the_containers_of_all_places() {
    if !Engine::Oci.is_here() || !Engine::Docker.is_here() {
        return;
    }
    let place = Place::new();
    let instances = "{ min = 3, max = 6, standby = 0 }";
    let text = configuration((OCI, 2), "engine = \"docker\"", instances, "\"fixed\"");
    let inco = place.run(&text);
    becomes(&inco, (2, 1));
    let before: Vec<_> = inco
        .instances()
        .into_iter()
        .map(|row| (row.id, row.pid, row.place))
        .collect();
    inco.kill();
    let inco = place.run(&text);
    becomes(&inco, (2, 1));
    let after: Vec<_> = inco
        .instances()
        .into_iter()
        .map(|row| (row.id, row.pid, row.place))
        .collect();
    assert_eq!(before, after);
    let traces = inco.kill();
    let said = place.must(&["stop"]);
    assert!(said.contains('3'), "{said}");
    traces.assert_nothing_left();
}

#[test]
fn the_host_and_card_example_runs_as_it_is() {
    if !Engine::Oci.is_here() {
        return;
    }
    let place = Place::new();
    let file = example("host-and-card.toml");
    place.must(&["check", "-f", file.to_str().unwrap()]);
    let inco = place.run_file(&file);
    becomes(&inco, (1, 0));
    place.must(&["scale", "forward", "4"]);
    becomes(&inco, (2, 2));
    cpus_are_those_of_the_places(&inco);
    let at = |place: &str| {
        let rows = inco.instances();
        let row = rows
            .iter()
            .find(|row| row.place.as_deref() == Some(place))
            .unwrap();
        (row.cpu_quota.unwrap(), row.capacity_pps.unwrap())
    };
    let (cpus, pps) = at("card");
    assert!((cpus - 0.035).abs() < 1e-3, "{cpus}");
    assert!((pps - 3500.0).abs() < 1.0, "{pps}");
    assert_eq!(at("host"), (0.1, 10_000.0));
    let load = "tick = \"500us\"\nuplink_wait = \"5s\"\nsettle = \"10s\"\n[[phase]]\nduration = \"1s\"\nflows = 12\n\
                rate_per_flow = \"50pps\"\n";
    assert_clean(&place.traffic(load).report());
    inco.at_rest();
    place.must(&["scale", "forward", "1"]);
    becomes(&inco, (1, 0));
    inco.stop(&place);
}

/// Each instance has a CPU of the place, and no two have the same; one more waits, and gets that of one that ends.
#[test]
fn an_instance_has_a_core_to_itself_and_gives_it_back() {
    if !Engine::Oci.is_here() {
        return;
    }
    let place = Place::new();
    let inco = place.run(&format!(
        r#"
[[uplink]]
name = "wan"
device = "memif:wan.sock"
[[place]]
name = "host"
cpus = "0-1"
[service.forward]
image = "{IMAGE}"
command = ["/inco-nf", "forward", "--stamp"]
cpus = "exclusive"
memory = "64MiB"
instances = {{ min = 1, max = 3, standby = 0 }}
autoscaler = "fixed"
"#
    ));
    inco.settled(1, 0);
    place.must(&["scale", "forward", "3"]);
    inco.settled(2, 0);
    let allowed = |pid: u32| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        line.unwrap().trim().to_owned()
    };
    let cores = || {
        let rows = inco.instances();
        let active = rows.iter().filter(|row| row.state == InstanceState::Active);
        let mut cores: Vec<String> = active
            .map(|row| {
                let cpu = allowed(row.pid.unwrap());
                assert_eq!(
                    row.core.map(|core| core.to_string()),
                    Some(cpu.clone()),
                    "{row:?}"
                );
                cpu
            })
            .collect();
        cores.sort();
        cores
    };
    assert_eq!(cores(), ["0", "1"]);
    let waits = |inco: &Inco| {
        let events = inco.events().into_iter();
        let waits = events.filter(|event| {
            matches!(&event.kind, EventKind::Failure { what, reason }
                if what == "place" && reason.contains("0 of 2 cores free"))
        });
        waits.count()
    };
    eventually("the third waits", PATIENCE, || (waits(&inco) == 1).then_some(()));
    let first = inco.instances()[0].clone();
    crate::support::kill(first.pid.unwrap(), rustix::process::Signal::KILL);
    eventually("it is replaced", PATIENCE, || {
        let rows = inco.instances();
        let is_active =
            |row: &&api::types::InstanceRow| row.state == InstanceState::Active && row.id != first.id;
        (rows.iter().filter(is_active).count() == 2).then_some(())
    });
    assert_eq!(cores(), ["0", "1"]);
    inco.stop(&place);
}
