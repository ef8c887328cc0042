//! The engine does not answer for a while, under load.

use std::time::Duration;

use model::{EventKind, InstanceState};
use real_parts::is_full_length;
use rustix::process::Signal;

use crate::support::{
    Engine, IMAGE, Inco, PATIENCE, Place, PrivateDockerd, SwarmManager, assert_clean, eventually, kill,
    launcher_of,
};

fn configuration(engine: &str) -> String {
    format!(
        r#"
[[uplink]]
name = "wan"
device = "memif:wan.sock"

[service.forward]
image = "{IMAGE}"
command = ["/inco-nf", "forward", "--stamp", "--pace-cpus", "0.1"]
cpus = 0.1
memory = "64MiB"
capacity = "10kpps"
instances = {{ min = 2, max = 4, standby = 0 }}
scheduler = "round-robin"
autoscaler = "fixed"
ring = {{ slots = 8192 }}
{engine}"#
    )
}

/// Until it is interrupted.
const LOAD: &str = r#"
tick = "500us"
uplink_wait = "5s"
settle = "1s"
[[phase]]
duration = "10m"
flows = 20
rate_per_flow = "200pps"
"#;

/// How long it is away.
fn away() -> Duration {
    Duration::from_secs(if is_full_length() { 30 } else { 2 })
}

fn failures(inco: &Inco) -> Vec<String> {
    let events = inco.events().into_iter();
    events
        .filter_map(|event| match event.kind {
            EventKind::Failure { what, reason } if what == "engine" => Some(reason),
            _ => None,
        })
        .collect()
}

fn recoveries(inco: &Inco) -> usize {
    let events = inco.events().into_iter();
    events
        .filter(|event| matches!(&event.kind, EventKind::Recovered { what, .. } if what == "engine"))
        .count()
}

/// Steering goes on, scaling waits and says so once, and then recovers.
fn scaling_waits_and_steering_continues(
    place: &Place,
    engine: &str,
    go: impl FnOnce(),
    come_back: impl FnOnce(),
) {
    let inco = place.run(&configuration(engine));
    inco.settled(2, 0);
    let traffic = place.traffic(LOAD);
    eventually("packets flow", PATIENCE, || {
        (inco.status().accounting.returned > 1000).then_some(())
    });
    go();
    eventually("it is noticed that the engine is away", PATIENCE, || {
        (!inco.status().engine.up).then_some(())
    });
    place.must(&["scale", "forward", "4"]);
    let before = inco.status();
    std::thread::sleep(away());
    let after = inco.status();
    assert!(
        after.accounting.returned > before.accounting.returned + 1000,
        "steering does not go on: {before:#?} {after:#?}"
    );
    assert!(
        after.engine.down_ms >= away().as_millis() as u64,
        "{:?}",
        after.engine
    );
    assert_eq!(inco.instances().len(), 2, "{:#?}", inco.instances());
    let said = failures(&inco);
    assert_eq!(said.len(), 1, "{said:#?}");
    assert!(
        said[0].contains("scaling waits until the engine answers"),
        "{said:#?}"
    );
    assert_eq!(recoveries(&inco), 0);

    come_back();
    let rows = inco.settled(4, 0);
    assert!(rows.iter().all(|i| i.state == InstanceState::Active));
    assert_eq!(
        (failures(&inco).len(), recoveries(&inco)),
        (1, 1),
        "{}",
        inco.told()
    );
    assert!(inco.status().engine.up);
    traffic.interrupt();
    let report = traffic.report();
    assert!(report.stopped_early);
    assert_clean(&report);
    let status = inco.at_rest();
    assert_eq!(status.accounting.dropped, 0, "{:#?}", status.drops);
    inco.stop(place);
}

#[test]
fn with_a_hung_launcher_steering_continues_and_scaling_waits() {
    if !Engine::Oci.is_here() {
        return;
    }
    let place = Place::new();
    let signal = |signal| {
        let launcher = launcher_of(&place);
        assert_eq!(launcher.len(), 1, "{launcher:?}");
        kill(launcher[0], signal);
    };
    scaling_waits_and_steering_continues(
        &place,
        &Engine::Oci.toml(),
        || signal(Signal::STOP),
        || signal(Signal::CONT),
    );
}

#[test]
fn with_docker_stopped_steering_continues_and_scaling_waits() {
    if !Engine::Docker.is_here() {
        return;
    }
    let place = Place::new();
    let Some(dockerd) = PrivateDockerd::start(&place.path("docker")) else {
        return;
    };
    let engine = format!("[engine]\ndriver = \"docker\"\nhost = \"{}\"\n", dockerd.host());
    let dockerd = std::cell::RefCell::new(dockerd);
    scaling_waits_and_steering_continues(
        &place,
        &engine,
        || dockerd.borrow_mut().pause(),
        || dockerd.borrow_mut().go_on(),
    );
}

/// Each instance is a service of one replica, and none is left in the end.
#[test]
fn with_a_hung_manager_of_a_swarm_steering_continues_and_scaling_waits() {
    if !Engine::Docker.is_here() {
        return;
    }
    let place = Place::new();
    let Some(manager) = SwarmManager::start(&place.path("swarm")) else {
        return;
    };
    let two_services = || {
        let services = manager.services();
        let is_one = |of: &String| of.contains("forward-") && of.ends_with(" 1/1");
        assert!(services.len() == 2 && services.iter().all(is_one), "{services:?}");
    };
    scaling_waits_and_steering_continues(
        &place,
        &manager.toml(),
        || {
            two_services();
            manager.signal(Signal::STOP);
        },
        || manager.signal(Signal::CONT),
    );
    assert_eq!(manager.services(), Vec::<String>::new());
}

/// The next inco finds the services by their labels.
#[test]
fn services_of_a_swarm_are_adopted_after_a_kill_9_of_inco() {
    if !Engine::Docker.is_here() {
        return;
    }
    let place = Place::new();
    let Some(manager) = SwarmManager::start(&place.path("swarm")) else {
        return;
    };
    let inco = place.run(&configuration(&manager.toml()));
    let before: Vec<_> = inco.settled(2, 0).iter().map(|row| (row.id, row.pid)).collect();
    let services = manager.services();
    drop(inco.kill());
    let inco = place.run(&configuration(&manager.toml()));
    let after: Vec<_> = inco.settled(2, 0).iter().map(|row| (row.id, row.pid)).collect();
    assert_eq!((after, manager.services()), (before, services));
    place.must(&["scale", "forward", "3"]);
    inco.settled(3, 0);
    place.must(&["scale", "forward", "2"]);
    inco.settled(2, 0);
    assert_eq!(manager.services().len(), 2);
    inco.stop(&place);
    assert_eq!(manager.services(), Vec::<String>::new());
}

/// The launcher is killed: its containers run on, and the next launcher adopts them.
#[test]
fn a_killed_launcher_is_started_again() {
    if !Engine::Oci.is_here() {
        return;
    }
    let place = Place::new();
    let inco = place.run(&configuration(&Engine::Oci.toml()));
    let before = inco.settled(2, 0);
    let traffic = place.traffic(LOAD);
    eventually("packets flow", PATIENCE, || {
        (inco.status().accounting.returned > 1000).then_some(())
    });
    let launcher = launcher_of(&place);
    assert_eq!(launcher.len(), 1, "{launcher:?}");
    kill(launcher[0], Signal::KILL);
    place.must(&["scale", "forward", "3"]);
    let after = inco.settled(3, 0);
    for row in before {
        let same = after.iter().find(|i| i.id == row.id).expect("it goes on");
        assert_eq!(same.pid, row.pid);
    }
    assert_ne!(launcher_of(&place), launcher);
    // What the first launcher started can still be looked after.
    place.must(&["scale", "forward", "2"]);
    traffic.interrupt();
    assert_clean(&traffic.report());
    inco.settled(2, 0);
    inco.stop(&place);
}
