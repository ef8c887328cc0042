//! Runs are reproducible to the byte, account for every packet, and give every policy the same traffic.
#![allow(clippy::unwrap_used, reason = "what goes wrong here fails the test")]

use std::path::Path;

use proptest::prelude::*;
use simulation::{Outcome, ScenarioFile, play};

fn outcome(text: &str, seed: u64) -> Outcome {
    let file = ScenarioFile::parse(Path::new("test.toml"), text).unwrap();
    let scenario = file.variant("").unwrap();
    play(&scenario, seed, Path::new("."), Path::new(".")).unwrap()
}

fn scenario(model: &str, scheduler: &str, pps: f64, ring: u32, cpus: f64) -> String {
    format!(
        r#"
name = "test"
model = "{model}"
duration_s = 6

[service]
scheduler = "{scheduler}"
autoscaler = {{ policy = "smartinco", target = 0.6, scale_down_window = 1 }}
capacity_pps = 1e4
min = 1
max = 4
standby = 1
drain_deadline_s = 1

[instances]
capacity_pps = 1e4
ring_slots = {ring}
cpus = {cpus}
create_ms = [20, 200]

[[traffic]]
kind = "aggregate"
points = [[0, 50, {pps}], [2, 200, {twice}], [4, 10, {pps}]]
flows = {{ classes = [[0.8, 0.2, 1], [0.2, 2, 3]] }}
burst = [{{ every_s = [0.5, 1], length_ms = [10, 200], factor = [1.2, 3], of = "flows" }}]
noise = {{ every_s = 0.1, share = 0.2 }}

[[traffic]]
kind = "flows"
count = 20
pps = 200
interval_s = 0.1
lasts_s = 1.5

[[action]]
at_s = 3
kill = 0
"#,
        twice = 2.0 * pps
    )
}

#[test]
fn a_seed_determines_every_byte() {
    for model in ["fluid", "event"] {
        let text = scenario(model, "best-fit", 1e4, 256, 0.8);
        let json = |seed| serde_json::to_string(&outcome(&text, seed)).unwrap();
        assert_eq!(json(7), json(7), "{model}");
        assert_ne!(json(7), json(8), "{model}");
    }
}

#[test]
fn the_event_model_matches_the_m_m_1_latency() {
    // M/M/1 at a load of 0.8: the sojourn time is exponential with mean 1 / (service rate - arrival rate).
    let text = r#"
name = "mm1"
model = "event"
duration_s = 60
warm_up_s = 5
[service]
scheduler = "round-robin"
autoscaler = { policy = "fixed", count = 1 }
capacity_pps = 1e4
min = 1
max = 1
[instances]
capacity_pps = 1e4
ring_slots = 1000000
[queue]
service = { kind = "capacity_exponential" }
[[traffic]]
kind = "aggregate"
points = [[0, 100, 8000]]
"#;
    let metrics = outcome(text, 1).metrics;
    let (mean, p99) = (metrics["latency_us_mean"], metrics["latency_us_p99"]);
    assert!((mean / 500.0 - 1.0).abs() < 0.05, "{mean}");
    assert!((p99 / (500.0 * 100f64.ln()) - 1.0).abs() < 0.1, "{p99}");
}

#[test]
fn quota_stalls_lose_what_the_ring_cannot_hold() {
    // Half a CPU in periods of 10 ms: 5 ms without service, in which 5e4 packets/s bring 250.
    let text = |model: &str, ring: u32| {
        format!(
            r#"
name = "stall"
model = "{model}"
duration_s = 5
[service]
scheduler = "round-robin"
autoscaler = {{ policy = "fixed", count = 1 }}
capacity_pps = 2e5
min = 1
max = 1
[instances]
capacity_pps = 2e5
ring_slots = {ring}
cpus = 0.5
[[traffic]]
kind = "flows"
count = 1
pps = 5e4
"#
        )
    };
    for model in ["fluid", "event"] {
        let lost = |ring| outcome(&text(model, ring), 1).metrics["lost_share"];
        // 150 of a period's 500 packets do not fit.
        assert!((lost(100) - 0.3).abs() < 0.03, "{model}: {}", lost(100));
        assert!(lost(400) < 1e-3, "{model}: {}", lost(400));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn every_packet_is_accounted_for(
        is_event: bool,
        scheduler in prop::sample::select(scheduling::Scheduler::NAMES),
        pps in 1e2..3e4_f64,
        ring in 16u32..2048,
        cpus in 0.2..1.0_f64,
        seed in 1u64..1_000,
    ) {
        let model = if is_event { "event" } else { "fluid" };
        let outcome = outcome(&scenario(model, scheduler, pps, ring, cpus), seed);
        let of = |name: &str| outcome.metrics[name];
        let queued = of("offered_packets") - of("served_packets") - of("lost_packets");
        let places = f64::from(ring) + 1.0;
        prop_assert!(queued > -1e-3 * of("offered_packets") - 1.0, "{queued}");
        prop_assert!(queued <= 12.0 * places, "{queued} of {places} each");
        prop_assert!(of("active_max") <= 4.0);
        for point in &outcome.series {
            prop_assert!(point.offered_pps >= 0.0 && point.served_pps >= 0.0 && point.lost_pps >= 0.0);
        }
    }
}

/// Eight flows of many small packets and eight of few large ones, alternating, on two instances: the least
/// loaded instance differs by metric.
#[test]
fn worst_fit_balances_the_metric() {
    for model in ["fluid", "event"] {
        for (metric, limit) in [
            ("packets", ""),
            ("bytes", ", limit = \"100Mbps\""),
            ("flows", ", limit = 100"),
            ("busy", ", limit = 1.0"),
        ] {
            let text = format!(
                r#"
name = "test"
model = "{model}"
duration_s = 4

[service]
scheduler = {{ policy = "worst-fit", metric = "{metric}"{limit}, slow_start = "0s" }}
autoscaler = {{ policy = "fixed", count = 2 }}
capacity_pps = 1e4
min = 2
max = 2

[instances]
capacity_pps = 1e4

[[traffic]]
kind = "flows"
count = 8
pps = 1000
interval_s = 0.2
bytes = 64

[[traffic]]
kind = "flows"
count = 8
pps = 100
start_s = 0.1
interval_s = 0.2
bytes = 1500
"#
            );
            let outcome = outcome(&text, 1);
            let end = outcome.series.last().unwrap();
            let shares: Vec<(f64, f64, f64)> = end
                .instances
                .iter()
                .map(|instance| {
                    // The number of flows of each kind, from the arrival rate.
                    let small = ((instance.arrivals_pps - 100.0 * instance.flows) / 900.0).round();
                    let large = instance.flows - small;
                    let bytes = small * 64e3 + large * 150e3;
                    (instance.flows, 1000.0 * small + 100.0 * large, bytes)
                })
                .collect();
            let [a, b] = shares.as_slice() else {
                unreachable!("{model} {metric}: {shares:?}")
            };
            let (off, most) = match metric {
                "flows" => (a.0 - b.0, 0.0),
                "bytes" => (a.2 - b.2, 150e3),
                _ => (a.1 - b.1, 1000.0),
            };
            assert!(off.abs() <= most, "{model} {metric}: {shares:?}");
        }
    }
}

/// A key set on the command line applies to every variant, also if a variant sets one of its parents.
#[test]
fn a_set_key_reaches_a_variants_policy() {
    let text = scenario("fluid", "best-fit", 5e3, 512, 1.0)
        + "[variant.named.service]\nautoscaler = \"ladder\"\n\
           [variant.written.service]\nautoscaler = { policy = \"hpa\", target_percent = 50 }\n\
           [variant.as-before.service]\nmax = 5\n";
    let file = ScenarioFile::parse(Path::new("test.toml"), &text).unwrap();
    let set_in = |variant: &str, assignment: &str| {
        let mut file = file.clone();
        file.keep(&[variant.to_owned()]).unwrap();
        file.set(assignment).map(|()| file.variant(variant).unwrap())
    };
    for (variant, key) in [
        ("named", "target"),
        ("written", "target_percent"),
        ("written", "period"),
        ("as-before", "target"),
    ] {
        let value = if key == "target" { "0.7" } else { "45" };
        let value = if key == "period" { "1s" } else { value };
        let scenario = set_in(variant, &format!("service.autoscaler.{key}={value}")).unwrap();
        let found = scenario.service.autoscaler.get(key).unwrap().to_string();
        assert_eq!(found.trim_matches('"'), value, "{variant}");
    }
    // A parameter unknown to its policy is rejected.
    let scenario = set_in("named", "service.autoscaler.target_percent=45").unwrap();
    let error = play(&scenario, 1, Path::new("."), Path::new(".")).unwrap_err();
    assert!(error.to_string().contains("target_percent"), "{error}");
}
