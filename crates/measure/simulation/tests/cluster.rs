//! Clusters: reproducible, every flow accounted for, and mistakes of a scenario named.
#![allow(clippy::unwrap_used, reason = "what goes wrong here fails the test")]

use std::path::Path;

use simulation::{Outcome, ScenarioFile, play};

/// A small cluster with these keys of `[cluster]`, and this traffic.
fn text(cluster: &str, traffic: &str) -> String {
    format!(
        r#"
name = "test"
model = "cluster"
duration_s = 12
warm_up_s = 0
[service]
scheduler = "worst-fit"
autoscaler = {{ policy = "fixed", count = 5 }}
capacity_pps = 1e4
min = 5
max = 5
[instances]
capacity_pps = 1e4
[[traffic]]
{traffic}
[cluster]
machines = 12
{cluster}
"#
    )
}

const TRAFFIC: &str = r#"kind = "aggregate"
points = [[0, 500, 3e5]]
flows = { classes = [[0.5, 1, 1], [0.5, 2, 3]] }"#;

fn outcome(cluster: &str, seed: u64) -> Outcome {
    let file = ScenarioFile::parse(Path::new("test.toml"), &text(cluster, TRAFFIC)).unwrap();
    let scenario = file.variant("").unwrap();
    play(&scenario, seed, Path::new("."), Path::new(".")).unwrap()
}

fn error(cluster: &str, traffic: &str) -> String {
    let parsed = ScenarioFile::parse(Path::new("test.toml"), &text(cluster, traffic));
    match parsed {
        Err(error) => error.to_string(),
        Ok(file) => play(&file.variant("").unwrap(), 1, Path::new("."), Path::new("."))
            .unwrap_err()
            .to_string(),
    }
}

const ALL: &str = r#"
edges = 3
event = [
    { kind = "machine_fails", at_s = 2, machine = 3, back_after_s = 0.4 },
    { kind = "machine_fails", at_s = 2, machine = 4, back_after_s = 3 },
    { kind = "machine_joins", at_s = 2.5 },
    { kind = "machine_leaves", at_s = 3, machine = 0 },
    { kind = "rolling_update", at_s = 4, at_a_time = 3, restart_s = 0.5 },
    { kind = "edge_joins", at_s = 5 },
    { kind = "edge_leaves", at_s = 6, edge = 0 },
    { kind = "edge_fails", at_s = 7, edge = 1, back_after_s = 2 },
    { kind = "reports_cut", at_s = 8, lasts_s = 1, machines = [1, 4], edges = [2], packets = true },
]"#;

#[test]
fn a_seed_determines_every_byte() {
    for agreement in ["second_look", "hash", "announce", "forward", "alone"] {
        let keys = format!("agreement = \"{agreement}\"\n{ALL}");
        let first = outcome(&keys, 7);
        assert_eq!(first, outcome(&keys, 7), "{agreement}");
        assert_ne!(first.metrics, outcome(&keys, 8).metrics, "{agreement}");
        assert_eq!(first.metrics["refused_reports"], 0.0, "{agreement}");
    }
}

#[test]
fn without_events_nothing_moves_and_the_rate_is_the_one_offered() {
    let outcome = outcome("edges = 3", 1);
    for name in [
        "broken_flows",
        "failed_over_flows",
        "drain_moved_flows",
        "edge_moved_flows",
        "misdirected_packets",
        "extra_hops",
        "cluster_lost_packets",
        "beyond_picks",
    ] {
        assert_eq!(outcome.metrics[name], 0.0, "{name}");
    }
    // 3e5 packets/s in 12 s; in the first second, the flows that live at the beginning arrive.
    let offered = outcome.metrics["cluster_offered_packets"];
    assert!((3.2e6..3.7e6).contains(&offered), "{offered}");
    assert!(outcome.metrics["live_flows_max"] < 2_000.0);
    assert_eq!(outcome.metrics["edge_reports_per_s"], 1_200.0);
}

#[test]
fn a_machine_that_fails_takes_its_own_flows_alone() {
    let kill = |back: &str| {
        format!("edges = 2\nevent = [{{ kind = \"machine_fails\", at_s = 4, machine = 5 {back} }}]")
    };
    for back in ["", ", back_after_s = 0.1", ", back_after_s = 3"] {
        let outcome = outcome(&kill(back), 3);
        assert_eq!(outcome.metrics["broken_flows"], 0.0, "{back:?}");
        // 750 flows live on 12 machines.
        let moved = outcome.metrics["failed_over_flows"];
        assert!((40.0..120.0).contains(&moved), "{back:?}: {moved}");
    }
}

#[test]
fn a_machine_that_leaves_moves_nothing() {
    let outcome = outcome(
        "event = [{ kind = \"machine_leaves\", at_s = 2, machine = 5 }]",
        3,
    );
    for name in ["broken_flows", "failed_over_flows", "drain_moved_flows"] {
        assert_eq!(outcome.metrics[name], 0.0, "{name}");
    }
    assert_eq!(outcome.metrics["drains"], 1.0);
}

#[test]
fn mistakes_are_named() {
    let flows = "kind = \"flows\"\ncount = 1\npps = 1";
    assert!(error("", flows).contains("traffic: a cluster's traffic"));
    let event = |event: &str| error(&format!("event = [{event}]"), TRAFFIC);
    let wrong = event("{ kind = \"machine_fails\", at_s = 1, machine = 12 }");
    assert!(
        wrong.contains("cluster.event.0.machine: 12 is not within 0 to 11"),
        "{wrong}"
    );
    let wrong = event("{ kind = \"edge_fails\", at_s = 1, edge = 4 }");
    assert!(wrong.contains("cluster.event.0.edge"), "{wrong}");
    let wrong = event("{ kind = \"edge_fails\", at_s = 100, edge = 1 }");
    assert!(wrong.contains("cluster.event.0.at_s"), "{wrong}");
    assert!(event("{ kind = \"edge_sleeps\", at_s = 1 }").contains("edge_sleeps"));
    assert!(error("edges = 17", TRAFFIC).contains("cluster.edges"));
    assert!(error("report_ms = 0", TRAFFIC).contains("cluster.report_ms"));
    let fluid = text("", TRAFFIC).replace("model = \"cluster\"", "");
    let wrong = ScenarioFile::parse(Path::new("test.toml"), &fluid)
        .unwrap_err()
        .to_string();
    assert!(wrong.contains("set model = \"cluster\""), "{wrong}");
    let action = text("", TRAFFIC).replace("[[traffic]]", "[[action]]\nat_s = 1\nkill = 0\n[[traffic]]");
    let wrong = ScenarioFile::parse(Path::new("test.toml"), &action)
        .unwrap_err()
        .to_string();
    assert!(wrong.contains("[[cluster.event]]"), "{wrong}");
}

#[test]
fn a_variant_alone_has_no_check_of_others() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../scenarios/cluster-steady.toml");
    let mut file = ScenarioFile::load(&path).unwrap();
    assert!(!file.expectation().calibration.is_empty());
    file.keep(&["hash".to_owned()]).unwrap();
    let expectation = file.expectation();
    assert!(expectation.checks.is_empty() && expectation.calibration.is_empty());
}
