//! Another scheduler while traffic runs, the decisions that are recorded, and the heaviest flows.

use std::io::Write as _;
use std::process::Stdio;

use model::EventKind;
use serde_json::Value;

use crate::support::{Engine, IMAGE, PATIENCE, Place, assert_clean, eventually};

const CONFIGURATION: &str = r#"
[[uplink]]
name = "wan"
device = "memif:wan.sock"

[service.forward]
image = "IMAGE"
command = ["/inco-nf", "forward", "--stamp"]
memory = "64MiB"
capacity = "100kpps"
instances = 3
scheduler = { policy = "best-fit", slow_start = "0s" }
ring = { slots = 8192 }
"#;

/// 12 flows, a new one each 300 ms; none ends before the end.
const RAMP: &str = r#"
tick = "500us"
uplink_wait = "5s"
settle = "2s"
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
    let inco = place.run(&CONFIGURATION.replace("IMAGE", IMAGE));
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
    assert!(place.must(&["flows", "--top", "3"]).contains("PACKETS/S"));
    while traffic.is_running() {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    assert_clean(&traffic.report());

    // What was asked for is in the log, and a recorded decision can be repeated: from the case alone and from the event.
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
