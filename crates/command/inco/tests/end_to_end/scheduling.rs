//! Another scheduler while traffic runs, the decisions that are recorded, and the heaviest flows.

use std::io::Write as _;
use std::process::Stdio;

use model::EventKind;
use serde_json::Value;

use crate::support::{Engine, FORWARD, PATIENCE, Place, assert_clean, eventually};

const CONFIGURATION: &str = r#"
FORWARD
capacity = "100kpps"
instances = 3
scheduler = { policy = "best-fit", slow_start = "0s" }
ring = { slots = 8192 }
"#;

/// 12 flows, a new one each 300 ms; none ends before the end.
const RAMP: &str = r#"
tick = "500us"
uplink_wait = "5s"
settle = "10s"
[[phase]]
duration = "6s"
flows = 12
ramp = "300ms"
rate_per_flow = "200pps"
"#;

/// What `inco explain scheduler` says of an input.
fn explained(place: &Place, input: &str) -> Value {
    let mut explain = place
        .inco(&["explain", "scheduler", "--input", "-", "--json"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    explain.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = explain.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn a_scheduler_is_switched_without_moving_a_flow() {
    if !Engine::Oci.is_here() {
        return;
    }
    let place = Place::new();
    let inco = place.run(&CONFIGURATION.replace("FORWARD\n", FORWARD));
    inco.settled(3, 0);
    place.must(&["policy", "forward", "--record", "2"]);
    let mut traffic = place.traffic(RAMP);
    let pins = || -> Vec<(String, Option<model::InstanceId>)> {
        let page = inco.client().flows(&api::types::FlowFilter::default()).unwrap();
        page.flows
            .into_iter()
            .map(|flow| (flow.flow, flow.forward))
            .collect()
    };
    let before = eventually("four flows", PATIENCE, || {
        Some(pins()).filter(|pins| pins.len() >= 4)
    });
    // Best-fit has filled one instance.
    assert!(
        before.iter().all(|(_, instance)| *instance == before[0].1),
        "{before:?}"
    );
    let said = place.must(&[
        "policy",
        "forward",
        "--scheduler",
        "round-robin",
        "--set",
        "slow_start=0s",
    ]);
    assert!(said.contains("forward: best-fit -> "), "{said}");
    assert_eq!(inco.client().services().unwrap()[0].scheduler, "round-robin");
    let after = eventually("all flows", PATIENCE, || {
        Some(pins()).filter(|pins| pins.len() == 12)
    });
    for pin in &before {
        assert!(after.contains(pin), "{pin:?} has moved: {after:?}");
    }
    let mut used: Vec<_> = after.iter().map(|(_, instance)| *instance).collect();
    used.sort_unstable();
    used.dedup();
    assert_eq!(used.len(), 3, "round-robin gives everyone a turn: {after:?}");

    // The heaviest flows, with rates.
    let top = eventually("rates of flows", PATIENCE, || {
        let filter = api::types::FlowFilter {
            top: Some(5),
            ..Default::default()
        };
        Some(inco.client().flows(&filter).unwrap().flows).filter(|flows| flows.len() == 5)
    });
    assert!(top.windows(2).all(|pair| pair[0].pps >= pair[1].pps), "{top:?}");
    assert!(
        top.iter().all(|flow| flow.pps.is_some_and(|pps| pps > 20.0)),
        "{top:?}"
    );
    assert!(place.must(&["flows", "--top", "3"]).contains("PPS"));
    while traffic.is_running() {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    assert_clean(&traffic.report());

    // What was asked for is in the log, and a recorded decision can be repeated: from the case alone and from the
    // event.
    let events = inco.events();
    assert!(events.iter().any(|event| matches!(&event.kind,
        EventKind::Action { action, result, .. } if action == "policy" && result.contains("round-robin"))));
    let picked: Vec<_> = events
        .iter()
        .filter_map(|event| match &event.kind {
            EventKind::Picked { case, policy, .. } => Some((event, case, policy)),
            _ => None,
        })
        .collect();
    assert_eq!(picked.len(), 2, "{}", inco.told());
    for (event, case, policy) in picked {
        assert_eq!(policy, "best-fit");
        for input in [case.to_string(), serde_json::to_string(event).unwrap()] {
            let explanation = explained(&place, &input);
            let instance = event.instance.map(|id| id.0);
            assert_eq!(
                explanation["picks"][0]["instance"].as_u64(),
                instance.map(u64::from),
                "{input}"
            );
        }
    }

    // What is wrong is told, and nothing changes.
    let refused = place.output(&[
        "policy",
        "forward",
        "--scheduler",
        "maglev",
        "--set",
        "table=1000",
    ]);
    assert_eq!(refused.status.code(), Some(1));
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains("for example 1009"), "{said}");
    assert_eq!(inco.client().services().unwrap()[0].scheduler, "round-robin");
    inco.stop(&place);
}

/// A new flow every 20 ms, for as long as the test goes on.
const ALWAYS_NEW: &str = r#"
tick = "1ms"
uplink_wait = "5s"
settle = "10s"
[[phase]]
duration = "120s"
flows = 6000
ramp = "20ms"
rate_per_flow = "1pps"
"#;

/// Decisions that are recorded at once.
const RECORDS: usize = 3;

/// Each scheduler, and one that goes by load with each metric, decides for live flows; what it decided is what it
/// decides again from its own record.
#[test]
fn every_scheduler_and_every_metric_decides_live_as_it_is_explained() {
    if !Engine::Oci.is_here() {
        return;
    }
    let place = Place::new();
    let inco = place.run(&CONFIGURATION.replace("FORWARD\n", FORWARD));
    inco.settled(3, 0);
    let traffic = place.traffic(ALWAYS_NEW);
    let schedulers = inco.client().policies().unwrap().schedulers;
    assert!(schedulers.len() >= 10, "{schedulers:?}");
    let by_name = schedulers.iter().map(|row| (row.name.as_str(), "packets", None));
    let by_metric = [
        ("worst-fit", "bytes", Some("limit=1Gbps")),
        ("worst-fit", "flows", Some("limit=1000")),
        ("worst-fit", "busy", None),
    ];
    for (name, metric, limit) in by_name.chain(by_metric) {
        let metric_is = format!("metric={metric}");
        let mut arguments = vec!["policy", "forward", "--scheduler", name];
        arguments.extend(["--set", "slow_start=0s", "--set", &metric_is]);
        if let Some(limit) = limit {
            arguments.extend(["--set", limit]);
        }
        if ["maglev", "machines", "source-hash"].contains(&name) {
            // So small a table is made at once. A larger one takes some of the new flows' time, and they go by what
            // there is.
            arguments.extend(["--set", "table=1009"]);
        }
        place.must(&arguments);
        let from = inco.events().last().unwrap().sequence;
        place.must(&["policy", "forward", "--record", &RECORDS.to_string()]);
        let picks = eventually(&format!("flows are given by {name} ({metric})"), PATIENCE, || {
            let mut events = inco.events();
            events.retain(|event| event.sequence > from && matches!(event.kind, EventKind::Picked { .. }));
            (events.len() >= RECORDS).then_some(events)
        });
        for event in &picks {
            let EventKind::Picked { policy, case, .. } = &event.kind else {
                continue;
            };
            assert_eq!((policy.as_str(), case["metric"].as_str()), (name, Some(metric)));
            let line = serde_json::to_string(event).unwrap();
            let again = explained(&place, &line)["picks"][0]["instance"].as_u64();
            let then = event.instance.map(|id| u64::from(id.0));
            assert_eq!(again, then, "{name} by {metric}: {line}");
        }
    }
    traffic.interrupt();
    assert_clean(&traffic.report());
    inco.stop(&place);
}
