//! Functions with state: a drain under load moves their flows with it.

use std::time::{Duration, Instant};

use api::counters::FunctionCounters;
use model::{InstanceId, InstanceState};

use crate::support::{Engine, IMAGE, Inco, PATIENCE, Place, changes, eventually};

/// Flows that never end: a drain that moves none would last until its deadline.
const FLOWS: u64 = 16;

const CONFIGURATION: &str = r#"
[[uplink]]
name = "wan"
device = "memif:wan.sock"

[service.function]
image = "IMAGE"
command = ["/inco-nf", "forward", "--stamp", "--", FUNCTION]
MOUNTS
memory = "64MiB"
capacity = "100kpps"
instances = { min = 1, max = 4, standby = 0 }
scheduler = { policy = "round-robin", slow_start = "0s" }
autoscaler = "fixed"
affinity = "relaxed"
move_state = true
drain_deadline = "60s"
ring = { slots = 8192 }
"#;

fn load(seconds: u64) -> String {
    format!(
        "tick = \"200us\"\nuplink_wait = \"5s\"\nsettle = \"10s\"\ncatch_up = \"50ms\"\n[[phase]]\nduration = \"{seconds}s\"\nflows = {FLOWS}\n\
         rate_per_flow = \"500pps\"\n"
    )
}

fn configuration(function: &str, mounts: &str) -> String {
    CONFIGURATION
        .replace("IMAGE", IMAGE)
        .replace("FUNCTION", function)
        .replace("MOUNTS", mounts)
}

/// Drains an instance, and waits until it has gone because its flows have moved.
pub(crate) fn drain(place: &Place, inco: &Inco, drained: InstanceId) {
    place.must(&["drain", &drained.0.to_string()]);
    let since = Instant::now();
    while inco.instance(drained).is_some() {
        let workers = || inco.status().workers;
        assert!(
            since.elapsed() < PATIENCE,
            "the drained instance stays\n{}\n{:#?}",
            inco.told(),
            workers()
        );
        std::thread::sleep(Duration::from_millis(10));
    }
    let end = changes(&inco.events(), drained)
        .into_iter()
        .find(|(_, to, _)| *to == InstanceState::Stopping);
    assert_eq!(end.unwrap().2, "its flows have moved");
}

fn all_flows_are_there(inco: &Inco) {
    eventually("all flows", PATIENCE, || {
        (inco.status().workers[0].live_flows == FLOWS).then_some(())
    });
}

/// The counters of each instance's firewall.
fn firewalls(place: &Place) -> Vec<FunctionCounters> {
    let json = place.must(&["instances", "--functions", "--json"]);
    let mut of: Vec<FunctionCounters> = serde_json::from_str(&json).unwrap();
    of.retain(|of| of.name == "firewall");
    of
}

/// Moved with state, and not. A move that ends at its limit of 50 ms, or finds no room, does not count: the flow
/// is tried again.
fn moves(inco: &Inco) -> (u64, u64) {
    let of = &inco.status().workers[0];
    let cancelled = [of.state_moves_refused, of.state_moves_gone];
    (of.state_moves, cancelled.iter().sum())
}

/// The rules of a firewall allow nothing any more: only connections that it knows pass. A flow that moved without its
/// connection would lose each packet from then on.
#[test]
fn a_drain_moves_connections_of_a_firewall() {
    if !Engine::Oci.is_here() {
        return;
    }
    const ALLOW: &str = "default = \"allow\"\nconnections = 1024\n";
    const DENY: &str = "default = \"deny\"\nconnections = 1024\n";
    let place = Place::new();
    let rules = place.file("rules.toml", ALLOW);
    let mounts = format!("mounts = [\"{}:/rules.toml:ro\"]", rules.display());
    let function = "\"firewall\", \"--config\", \"/rules.toml\"";
    let inco = place.run(&configuration(function, &mounts));
    inco.settled(1, 0);
    place.must(&["scale", "function", "2"]);
    inco.settled(2, 0);
    let traffic = place.traffic(&load(60));
    all_flows_are_there(&inco);
    eventually("the firewalls know all connections", PATIENCE, || {
        let known: u64 = firewalls(&place).iter().map(|of| of.gauges["connections"]).sum();
        (known == FLOWS).then_some(())
    });
    std::fs::write(&rules, DENY).unwrap();
    eventually("both firewalls have read the rules", PATIENCE, || {
        let reloads = firewalls(&place).iter().filter(|of| of.reloads > 0).count();
        (reloads == 2).then_some(())
    });
    drain(&place, &inco, InstanceId(1));
    inco.settled(2, 0);
    traffic.interrupt();
    let report = traffic.report_with_moves();
    let (moved, cancelled) = moves(&inco);
    println!(
        "{moved} flows moved with their state, {cancelled} did not; {:#?}",
        report.counts
    );
    let c = &report.counts;
    assert_eq!(
        (c.mis_steered, c.duplicated, c.reordered, report.lost),
        (0, 0, 0, 0),
        "{c:#?}"
    );
    assert_eq!((moved, cancelled), (FLOWS / 2, 0));
    let status = inco.at_rest();
    assert_eq!(status.accounting.dropped, 0, "{:#?}", status.drops);
    inco.stop(&place);
}

/// A flow has its burst once, however often it moves.
#[test]
fn a_drain_moves_what_flows_owe_a_limiter() {
    if !Engine::Oci.is_here() {
        return;
    }
    const BURST: u64 = 500;
    let place = Place::new();
    let text = format!("\"\"\"[[rule]]\nkey = \"flow\"\nrate = \"10pps\"\nburst_packets = {BURST}\n\"\"\"");
    let function = format!("\"limiter\", \"--config-text\", {text}");
    let inco = place.run(&configuration(&function, ""));
    inco.settled(1, 0);
    place.must(&["scale", "function", "2"]);
    inco.settled(2, 0);
    let began = std::time::Instant::now();
    let traffic = place.traffic(&load(60));
    all_flows_are_there(&inco);
    let dropped = || -> u64 {
        let json = place.must(&["instances", "--functions", "--json"]);
        let of: Vec<FunctionCounters> = serde_json::from_str(&json).unwrap();
        of.iter()
            .filter(|of| of.name == "limiter")
            .map(|of| of.drops.values().sum::<u64>())
            .sum()
    };
    eventually("flows are over their rate", PATIENCE, || {
        (dropped() > FLOWS * 100).then_some(())
    });
    drain(&place, &inco, InstanceId(1));
    let drops = dropped();
    eventually("they still are", PATIENCE, || {
        (dropped() > drops + FLOWS * 600).then_some(())
    });
    traffic.interrupt();
    let report = traffic.report_with_moves();
    let seconds = began.elapsed().as_secs() + 1;
    let (moved, cancelled) = moves(&inco);
    let c = &report.counts;
    println!("{moved} flows moved with their state, {cancelled} did not; {c:#?}");
    assert_eq!((c.mis_steered, c.duplicated, c.reordered), (0, 0, 0), "{c:#?}");
    assert_eq!((moved, cancelled), (FLOWS / 2, 0));
    let most = FLOWS * (BURST + 10 * seconds);
    assert!(c.returned_packets <= most, "{} of {most}", c.returned_packets);
    inco.stop(&place);
}
