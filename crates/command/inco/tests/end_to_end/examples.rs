//! The examples run as they are, and the service between two networks in depth.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::support::{Engine, Place, assert_clean, assert_clean_without_stamps, available, example};

const BOTH: [&str; 4] = ["--uplink", "memif:wan.sock", "--second-uplink", "memif:lan.sock"];

#[test]
fn the_forward_example_runs_as_it_is() {
    if !Engine::Oci.is_here() {
        return;
    }
    let place = Place::new();
    let file = example("forward.toml");
    place.must(&["check", "-f", file.to_str().unwrap()]);
    let inco = place.run_file(&file);
    inco.settled(3, 1);
    let load = "tick = \"500us\"\nuplink_wait = \"5s\"\nsettle = \"10s\"\n[[phase]]\nduration = \"1s\"\nflows = 12\n\
                rate_per_flow = \"200pps\"\n";
    assert_clean(&place.traffic(load).report());
    for command in ["status", "services", "instances", "flows", "events"] {
        assert!(
            place.must(&[command]).lines().count() > 1,
            "{command} says nothing"
        );
        let json = place.must(&[command, "--json"]);
        for value in serde_json::Deserializer::from_str(&json).into_iter::<serde_json::Value>() {
            value.unwrap();
        }
    }
    inco.at_rest();
    inco.stop(&place);
}

#[test]
fn the_profile_of_the_examples_is_right() {
    traffic::Profile::load(&example("profiles/ramp.toml")).unwrap();
}

#[test]
fn the_testpmd_example_runs_as_it_is() {
    let installed = std::process::Command::new("dpdk-testpmd")
        .arg("-v")
        .output()
        .is_ok();
    let missing = (!installed).then(|| "dpdk-testpmd is not installed".to_owned());
    if !available("dpdk", missing) || !Engine::Oci.is_here() {
        return;
    }
    let place = Place::new();
    place.must(&["image", "import", "testpmd"]);
    let file = example("testpmd.toml");
    place.must(&["check", "-f", file.to_str().unwrap()]);
    let inco = place.run_file(&file);
    inco.settled(1, 0);
    inco.stop(&place);
}

/// Flows from wan, and for each its opposite direction from lan: of TCP to port 80 and UDP to port 53.
fn both_ways(flows: u32) -> String {
    let mut profile = "tick = \"500us\"\nuplink_wait = \"5s\"\nsettle = \"10s\"\n".to_owned();
    for (protocol, port) in [("tcp", 80), ("udp", 53)] {
        let common = format!("protocol = \"{protocol}\"\nrate_per_flow = \"100pps\"\nsize = 128\n");
        let _ = write!(
            profile,
            "[[phase]]\nduration = \"2s\"\nflows = {flows}\n{common}src = \"10.0.0.1\"\ndst = \"10.128.0.1\"\n\
             src_port = 1024\ndst_port = {port}\nuplink = 0\nreturns = 1\n"
        );
        for flow in 1..=flows {
            let _ = write!(
                profile,
                "[[phase]]\nstart = \"500ms\"\nduration = \"1s\"\nflows = 1\n{common}src = \"10.128.0.1\"\n\
                 dst = \"10.0.0.{flow}\"\nsrc_port = {port}\ndst_port = 1024\nuplink = 1\nreturns = 0\n"
            );
        }
    }
    profile
}

#[test]
fn the_chain_example_runs_as_it_is() {
    if !Engine::Oci.is_here() {
        return;
    }
    let place = Place::new();
    let file = example("chain.toml");
    for function in ["firewall", "ids", "monitor"] {
        place.must(&["image", "build", function]);
    }
    place.must(&["check", "-f", file.to_str().unwrap()]);
    let inco = place.run_file(&file);
    inco.settled(3, 0);
    let load = "tick = \"500us\"\nuplink_wait = \"5s\"\nsettle = \"10s\"\n[[phase]]\nduration = \"2s\"\nflows = 12\n\
                rate_per_flow = \"100pps\"\ndst = \"10.128.0.1\"\nuplink = 0\nreturns = 1\n";
    assert_clean_without_stamps(&place.traffic_by(load, &BOTH).report());
    let status = inco.at_rest();
    assert_eq!(status.accounting.dropped, 0, "{:#?}", status.drops);
    inco.stop(&place);
}

#[test]
fn the_two_arm_example_runs_as_it_is() {
    if !Engine::Oci.is_here() {
        return;
    }
    let place = Place::new();
    let file = example("two-arm.toml");
    place.must(&["check", "-f", file.to_str().unwrap()]);
    let inco = place.run_file(&file);
    inco.settled(2, 1);
    let report = place.traffic_by(&both_ways(4), &BOTH).report();
    let c = &report.counts;
    // It does not stamp.
    assert_eq!((report.lost, c.unstamped), (0, c.offered_packets), "{c:#?}");
    assert_eq!(
        (c.altered, c.reordered, c.duplicated, c.wrong_uplink),
        (0, 0, 0, 0),
        "{c:#?}"
    );
    inco.at_rest();
    inco.stop(&place);
}

/// The same services with stamps and three instances each. Without slow start, which would give few flows to an
/// instance that is ready later than the first.
fn both_directions_meet_one_instance(engine: Engine) {
    if !engine.is_here() {
        return;
    }
    let place = Place::new();
    let text = std::fs::read_to_string(example("two-arm.toml")).unwrap();
    let text = text
        .replace("\"--cross\"]", "\"--cross\", \"--stamp\"]")
        .replace(
            "{ min = 1, max = 4, standby = 1, standby_mode = \"paused\" }",
            "3",
        )
        .replace("instances = 1\n", "instances = 3\n")
        .replace("scheduler = \"round-robin\"\n", "")
        .replace(
            "image = ",
            "scheduler = { policy = \"round-robin\", slow_start = \"0s\" }\nimage = ",
        );
    let inco = place.run(&format!("{text}ring = {{ slots = 8192 }}\n{}", engine.toml()));
    inco.settled(6, 0);
    let flows = 6;
    let profile = both_ways(flows)
        // Of no service: it passes through to lan, by no instance.
        + "[[phase]]\nduration = \"1s\"\nflows = 3\nrate_per_flow = \"100pps\"\ndst_port = 9999\nuplink = 0\n\
           returns = 1\n";
    let report = place.traffic_by(&profile, &BOTH).report();
    crate::support::assert_undisturbed_but(&report, 300);
    assert_eq!(report.lost, 0, "{:#?}", report.counts);
    // Phases: one with all flows from wan, then one for each of them from lan; twice, then the one of no service.
    let at: BTreeMap<(u16, u32), u32> = report
        .flows
        .iter()
        .map(|flow| ((flow.source, flow.index), flow.instance))
        .collect();
    for (first, of) in [(0, "web"), (flows as u16 + 1, "dns")] {
        let rows = inco.instances();
        let ids: Vec<u32> = rows.iter().filter(|i| i.service == of).map(|i| i.id.0).collect();
        let mut used = Vec::new();
        for flow in 0..flows {
            let from_wan = at[&(first, flow)];
            let from_lan = at[&(first + 1 + flow as u16, 0)];
            assert_eq!(from_wan, from_lan, "{of}: flow {flow} has two instances");
            assert!(
                ids.contains(&from_wan),
                "{of}: flow {flow} is served by {from_wan}"
            );
            used.push(from_wan);
        }
        used.sort_unstable();
        used.dedup();
        assert!(used.len() > 1, "{of}: all flows on {used:?}");
    }
    let status = inco.at_rest();
    assert_eq!(status.accounting.dropped, 0, "{:#?}", status.drops);
    inco.stop(&place);
}

#[test]
fn both_directions_of_a_flow_between_two_uplinks_meet_one_instance_oci() {
    both_directions_meet_one_instance(Engine::Oci);
}

#[test]
fn both_directions_of_a_flow_between_two_uplinks_meet_one_instance_docker() {
    both_directions_meet_one_instance(Engine::Docker);
}
