//! DPDK's own test program, unmodified, as network function.

use std::collections::BTreeMap;

use api::types::FlowFilter;
use model::InstanceId;

use crate::support::{Engine, Place, assert_clean_without_stamps, available, example};

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

fn sends_every_packet_back(engine: Engine, mode: &str) {
    let installed = std::process::Command::new("dpdk-testpmd")
        .arg("-v")
        .output()
        .is_ok();
    let missing = (!installed).then(|| "dpdk-testpmd is not installed".to_owned());
    if !available("dpdk", missing) || !engine.is_here() {
        return;
    }
    let place = Place::quiet();
    place.must(&["image", "import", "testpmd"]);
    // The example, with two instances and rings that outlast a machine busy with other things. On two CPUs two programs
    // that poll leave none for inco, so one may wait long for its turn.
    let text = std::fs::read_to_string(example("testpmd.toml")).unwrap();
    let with = |text: &str, of: &str, by: &str| {
        assert!(text.contains(of), "the example has no {of}");
        text.replace(of, by)
    };
    let text = with(&text, "--forward-mode=macswap", &format!("--forward-mode={mode}"));
    let text = with(&text, "min = 1, max = 2", "min = 2, max = 2");
    let text = format!(
        "{text}scheduler = {{ policy = \"round-robin\", slow_start = \"0s\" }}\nautoscaler = \"fixed\"\n\
         stop_grace = \"200ms\"\nstall_after = \"1s\"\nring = {{ slots = 8192 }}\n{}",
        engine.toml()
    );
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
