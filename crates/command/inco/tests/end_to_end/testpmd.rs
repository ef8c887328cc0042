//! DPDK's own test program, unmodified, as network function.

use std::collections::BTreeMap;

use api::types::FlowFilter;
use model::InstanceId;

use crate::restart::pids;
use crate::support::{
    Engine, Inco, PATIENCE, Place, assert_clean_without_stamps, available, eventually, example,
};
use crate::upgrade::copy_of_inco;

const LOAD: &str = r#"
tick = "500us"
uplink_wait = "5s"
settle = "10s"
verify = "payload"
[[phase]]
duration = "1s"
flows = 20
rate_per_flow = "400pps"
size = "imix"
"#;

/// The example, with two instances and rings that outlast a machine busy with other things. On two CPUs two programs
/// that poll leave none for inco, so one may wait long for its turn. [`None`] where a part is not here.
fn configuration(place: &Place, engine: Engine, mode: &str) -> Option<String> {
    let installed = std::process::Command::new("dpdk-testpmd")
        .arg("-v")
        .output()
        .is_ok();
    let missing = (!installed).then(|| "dpdk-testpmd is not installed".to_owned());
    if !available("dpdk", missing) || !engine.is_here() {
        return None;
    }
    place.must(&["image", "import", "testpmd"]);
    let text = std::fs::read_to_string(example("testpmd.toml")).unwrap();
    let with = |text: &str, of: &str, by: &str| {
        assert!(text.contains(of), "the example has no {of}");
        text.replace(of, by)
    };
    let text = with(&text, "--forward-mode=macswap", &format!("--forward-mode={mode}"));
    let text = with(&text, "min = 1, max = 2", "min = 2, max = 2");
    Some(format!(
        "{text}scheduler = {{ policy = \"round-robin\", slow_start = \"0s\" }}\nautoscaler = \"fixed\"\n\
         stop_grace = \"200ms\"\nstall_after = \"1s\"\nring = {{ slots = 8192 }}\n{}",
        engine.toml()
    ))
}

fn sends_every_packet_back(engine: Engine, mode: &str) {
    let place = Place::quiet();
    let Some(text) = configuration(&place, engine, mode) else {
        return;
    };
    let inco = place.run(&text);
    inco.settled(2, 0);
    let report = place.traffic(LOAD).report();
    // It rewrites both addresses and nothing else.
    assert_clean_without_stamps(&report);
    let status = inco.at_rest();
    assert_eq!(status.accounting.dropped, 0, "{:#?}", status.drops);
    assert_eq!(status.accounting.returned, report.counts.returned_packets);
    // It does not stamp, so mis-steers show in the counts: each instance had the packets of its flows and no others.
    let page = inco.client().flows(&FlowFilter::default()).unwrap();
    assert!(page.complete);
    assert_eq!(page.flows.len(), 20);
    let mut given: BTreeMap<InstanceId, u64> = BTreeMap::new();
    for flow in &page.flows {
        *given.entry(flow.forward.unwrap()).or_default() += flow.packets[0] + flow.packets[1];
    }
    let rows = inco.instances();
    assert_eq!(given.len(), 2, "{given:?}");
    for row in &rows {
        // Beyond them the probe that `ready = "consumes"` asks for.
        assert!(
            [given[&row.id], given[&row.id] + 1].contains(&row.to_packets),
            "{given:?} {rows:#?}"
        );
        assert_eq!(row.live_flows, 10);
    }
    inco.stop(&place);
}

/// DPDK's memif driver notices neither a kill nor an upgrade of inco: its rings and its socket stay.
#[test]
fn testpmd_notices_no_kill_9_and_no_upgrade_of_inco() {
    let place = Place::quiet();
    let Some(text) = configuration(&place, Engine::Oci, "macswap") else {
        return;
    };
    let mut inco = place.run(&text);
    inco.settled(2, 0);
    let before = pids(&inco);
    let mut traffic = place.traffic(&LOAD.replace("duration = \"1s\"", "duration = \"120s\""));
    let many_return = |inco: &Inco| {
        let returned = inco.status().accounting.returned;
        eventually("many packets return", PATIENCE, || {
            (inco.status().accounting.returned > returned + 5_000).then_some(())
        });
    };
    let pins = |inco: &Inco| {
        let rows = inco.client().flows(&FlowFilter::default()).unwrap().flows;
        let pins: BTreeMap<_, _> = rows.into_iter().map(|row| (row.flow, row.forward)).collect();
        assert_eq!(pins.len(), 20);
        pins
    };
    many_return(&inco);
    let placed = pins(&inco);
    for is_upgrade in [false, true] {
        if is_upgrade {
            let next = copy_of_inco(&place, "next");
            place.must(&["upgrade", "--program", next.to_str().unwrap()]);
        } else {
            drop(inco.kill());
            inco = place.run(&text);
        }
        inco.settled(2, 0);
        many_return(&inco);
        assert_eq!((pids(&inco), pins(&inco)), (before.clone(), placed.clone()));
        let status = inco.status();
        let resumed = status.resumed.expect("there was an earlier run");
        assert!(
            resumed.instances == 2 && resumed.unusable.is_empty(),
            "{resumed:?}"
        );
        assert_eq!(status.accounting.dropped, 0, "{:#?}", status.drops);
    }
    assert!(traffic.is_running(), "it has to go on until after that");
    traffic.interrupt();
    let report = traffic.report();
    assert_eq!(report.counts.lost_in_restarts, 0, "{:#?}", report.counts);
    assert_clean_without_stamps(&report);
    inco.stop(&place);
}

#[test]
fn testpmd_with_macswap_sends_every_packet_back_oci() {
    sends_every_packet_back(Engine::Oci, "macswap");
}

#[test]
fn testpmd_with_macswap_sends_every_packet_back_docker() {
    sends_every_packet_back(Engine::Docker, "macswap");
}

#[test]
fn testpmd_with_mac_sends_every_packet_back_oci() {
    sends_every_packet_back(Engine::Oci, "mac");
}

#[test]
fn testpmd_with_mac_sends_every_packet_back_docker() {
    sends_every_packet_back(Engine::Docker, "mac");
}
