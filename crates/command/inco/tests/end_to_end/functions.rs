//! A chain of functions in each instance, while instances come and go, and what the functions say of themselves.

use api::counters::FunctionCounters;
use model::{EventKind, FunctionChange};

use crate::support::{Engine, IMAGE, PATIENCE, Place, assert_clean, eventually};

const CONFIGURATION: &str = r#"
[[uplink]]
name = "wan"
device = "memif:wan.sock"

[service.chain]
image = "inco-test/forward"
command = ["/inco-nf", "forward", "--", "forward", "--stamp", "--", "forward"]
memory = "64MiB"
instances = { min = 1, max = 3, standby = 0 }
autoscaler = "fixed"
scheduler = { policy = "round-robin", slow_start = "0s" }
drain_deadline = "1s"
"#;

fn a_chain_scales_and_counts(engine: Engine) {
    if !engine.is_here() {
        return;
    }
    let place = Place::new();
    let inco = place.run(&(engine.toml() + CONFIGURATION));
    inco.settled(1, 0);
    let traffic = place.traffic(
        "uplink_wait = \"5s\"\nsettle = \"10s\"\n[[phase]]\nduration = \"2s\"\nflows = 12\n\
         rate_per_flow = \"100pps\"\n[[phase]]\nduration = \"2s\"\nflows = 30\nrate_per_flow = \"100pps\"\n",
    );
    place.must(&["scale", "chain", "3"]);
    inco.settled(3, 0);
    let report = traffic.report();
    assert_clean(&report);
    let offered = report.counts.offered_packets;
    let functions = eventually("all packets are counted", PATIENCE, || {
        let json = place.must(&["instances", "--functions", "--json"]);
        let functions: Vec<FunctionCounters> = serde_json::from_str(&json).unwrap();
        let packets = |stage| {
            let of_stage = functions.iter().filter(|of| of.stage == stage);
            of_stage.map(|of| of.packets).sum::<u64>()
        };
        ((0..3).all(|stage| packets(stage) == offered)).then_some(functions)
    });
    assert_eq!(functions.len(), 9);
    for of in &functions {
        assert_eq!((of.name.as_str(), of.service.as_str()), ("forward", "chain"));
        assert_eq!((of.packets, of.originated), (of.forwarded, 0));
        let stamped = if of.stage == 1 { of.packets } else { 0 };
        assert_eq!(of.totals["stamped"], stamped);
    }
    // What they had done stays in the events.
    place.must(&["scale", "chain", "1"]);
    let ended = eventually("two instances have ended", PATIENCE, || {
        let events = inco.events().into_iter();
        let ended = events.filter_map(|event| match event.kind {
            EventKind::Function {
                stage,
                change: FunctionChange::Ended,
                packets,
                ..
            } => Some((event.instance?.0, stage, packets)),
            _ => None,
        });
        let ended: Vec<(u32, u32, u64)> = ended.collect();
        (ended.len() == 6).then_some(ended)
    });
    for (instance, stage, packets) in ended {
        let is_it = |of: &&FunctionCounters| of.instance == instance && of.stage == stage;
        assert_eq!(functions.iter().find(is_it).map(|of| of.packets), Some(packets));
    }
    inco.stop(&place);
}

#[test]
fn a_chain_scales_and_counts_with_oci() {
    a_chain_scales_and_counts(Engine::Oci);
}

#[test]
fn a_chain_scales_and_counts_with_docker() {
    a_chain_scales_and_counts(Engine::Docker);
}

#[test]
fn records_of_functions_are_in_the_output_of_their_instance() {
    if !Engine::Oci.is_here() {
        return;
    }
    let place = Place::new();
    let rules = "alert udp any any -> any any (msg:\"seen\"; threshold:type limit, track by_src, count 1, seconds \
                 60; sid:7;)";
    let command = [
        "/inco-nf",
        "firewall",
        "--config-text",
        "default = \"deny\"\ncount_interval_s = 1\n[[rule]]\nname = \"all of UDP\"\naction = \"allow\"\nprotocol = \"udp\"\n",
        "--",
        "ids",
        "--config-text",
        &format!("rules = '''\n{rules}\n'''\n"),
    ];
    let inco = place.run(&format!(
        "{}[[uplink]]\nname = \"wan\"\ndevice = \"memif:wan.sock\"\n[service.guard]\nimage = \"{IMAGE}\"\ncommand = \
         {command:?}\nmemory = \"128MiB\"\ninstances = 1\n",
        Engine::Oci.toml()
    ));
    inco.settled(1, 0);
    let traffic = place.traffic(
        "uplink_wait = \"5s\"\nsettle = \"10s\"\n[[phase]]\nduration = \"1s\"\nflows = 4\nrate_per_flow = \"100pps\"\n",
    );
    let lines = eventually("an alert and the counts of the rule", PATIENCE, || {
        let said = place.must(&["logs", "guard"]);
        let has = |what: &str| said.lines().any(|line| line.contains(what));
        (has("\"event_type\":\"alert\"") && has(" rule allow ")).then_some(said)
    });
    let alert = lines.lines().find(|line| line.contains("event_type")).unwrap();
    let alert = &alert[alert.find('{').unwrap()..];
    let alert: serde_json::Value = serde_json::from_str(alert).unwrap();
    assert_eq!(
        (&alert["alert"]["signature_id"], &alert["proto"]),
        (&7.into(), &"UDP".into())
    );
    let report = traffic.report();
    assert_eq!(report.lost, 0);
    // In the end the counts are those of all packets: the first of each flow, since the others belong to connections.
    let counted = eventually("all flows are counted", PATIENCE, || {
        let said = place.must(&["logs", "guard"]);
        let last = said.lines().rev().find(|line| line.contains(" rule allow "))?;
        let count = last.split(" rule allow ").nth(1)?.split(' ').next()?;
        count.parse::<u64>().ok().filter(|count| *count >= 4)
    });
    assert_eq!(counted, 4);
    inco.stop(&place);
}
