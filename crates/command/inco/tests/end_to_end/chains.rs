//! Chains of services: what one returns goes on to the next, while services scale, inco is killed, and the file changes.

use std::collections::BTreeMap;

use model::InstanceState;

use crate::support::{
    Engine, IMAGE, Inco, Network, PATIENCE, Place, Traffic, assert_clean, assert_nothing_moved, eventually,
};

const UPLINKS: &str = r#"
[switch.timeouts]
udp = "1s"

[[uplink]]
name = "wan"
device = "memif:wan.sock"

[[uplink]]
name = "lan"
device = "memif:lan.sock"
"#;
const BOTH: [&str; 4] = ["--uplink", "memif:wan.sock", "--second-uplink", "memif:lan.sock"];

/// A service between both uplinks, with these arguments of `inco-nf` and these keys.
fn service(name: &str, arguments: &[&str], keys: &str) -> String {
    format!(
        r#"
[service.{name}]
uplinks = ["wan", "lan"]
image = "{IMAGE}"
command = {:?}
memory = "128MiB"
instances = {{ min = 1, max = 4, standby = 0 }}
autoscaler = "fixed"
scheduler = {{ policy = "round-robin", slow_start = "0s" }}
ring = {{ slots = 8192 }}
{keys}
"#,
        [&["/inco-nf"], arguments].concat(),
    )
}

/// A firewall, a function that stamps, and a monitor, with ports of that kind.
fn three(engine: Engine, port: &str) -> String {
    let firewall = ["firewall", "--cross", "--config-text", "default = \"allow\""];
    let port = format!("port = \"{port}\"\n");
    [
        UPLINKS.to_owned(),
        service(
            "firewall",
            &firewall,
            &format!("{port}next = \"middle\"\nmatch = {{ proto = \"udp\", dst_port = 7 }}"),
        ),
        service(
            "middle",
            &["forward", "--cross", "--stamp"],
            &format!("{port}next = \"monitor\""),
        ),
        service("monitor", &["monitor", "--cross"], &port),
        engine.toml(),
    ]
    .concat()
}

/// Flows of wan, one more each 100 ms, of which four go on after 9 seconds; and the opposite direction of these.
fn load(seconds: u32) -> String {
    let common = "rate_per_flow = \"100pps\"\nsize = 128\n";
    let mut profile = format!(
        "tick = \"500us\"\nuplink_wait = \"5s\"\nsettle = \"10s\"\ncatch_up = \"50ms\"\n[[phase]]\nduration = \"{seconds}s\"\nflows = 60\n\
         ramp = \"100ms\"\nkeep = 4\nkeep_from = \"9s\"\n{common}src = \"10.0.0.1\"\ndst = \"10.128.0.1\"\nsrc_port = 1024\n\
         dst_port = 7\nuplink = 0\nreturns = 1\n"
    );
    for flow in 1..=4 {
        profile += &format!(
            "[[phase]]\nstart = \"1s\"\nduration = \"{}s\"\nflows = 1\n{common}src = \"10.128.0.1\"\ndst = \"10.0.0.{flow}\"\n\
             src_port = 7\ndst_port = 1024\nuplink = 1\nreturns = 0\n",
            seconds - 1
        );
    }
    profile
}

fn begin(place: &Place, seconds: u32) -> Traffic {
    place.traffic_by(&load(seconds), &BOTH)
}

/// Active instances of a service.
fn active(inco: &Inco, service: &str) -> usize {
    let rows = inco.instances();
    let is_its =
        |row: &&api::types::InstanceRow| row.service == service && row.state == InstanceState::Active;
    rows.iter().filter(is_its).count()
}

/// Packets that each service was offered.
fn offered(inco: &Inco) -> BTreeMap<String, u64> {
    let rows = inco.client().services().unwrap();
    rows.into_iter()
        .map(|row| (row.name, row.offered_packets))
        .collect()
}

fn the_middle_scales_without_a_trace(engine: Engine, port: &str) {
    if !engine.is_here() {
        return;
    }
    let (place, network) = (Place::with_a_cpu(), Network::new());
    let inco = network.run(&place, &three(engine, port));
    inco.settled(3, 0);
    assert!(
        place
            .must(&["services"])
            .contains("chain: firewall > middle > monitor")
    );
    let traffic = begin(&place, 120);
    // The four that go on are at the instance that stays.
    eventually("the first flows are there", PATIENCE, || {
        let rows = inco.instances();
        let mut middle = rows.iter().filter(|row| row.service == "middle");
        middle.any(|row| row.live_flows > 4).then_some(())
    });
    place.must(&["scale", "middle", "4"]);
    eventually("four in the middle", PATIENCE, || {
        (active(&inco, "middle") == 4).then_some(())
    });
    eventually("new flows are at several of them", PATIENCE, || {
        let rows = inco.instances();
        let used = rows
            .iter()
            .filter(|row| row.service == "middle" && row.live_flows > 0);
        (used.count() > 1).then_some(())
    });
    place.must(&["scale", "middle", "1"]);
    // Three of them end once their flows have.
    inco.settled(3, 0);
    traffic.interrupt();
    let report = traffic.report();
    assert_clean(&report);
    assert_nothing_moved(&report);
    let status = inco.at_rest();
    assert_eq!(status.accounting.dropped, 0, "{:#?}", status.drops);
    let packets = report.counts.offered_packets;
    let offered = offered(&inco);
    assert!(
        offered.values().all(|of| *of == packets),
        "{packets}: {offered:?}"
    );
    assert_eq!(
        (status.accounting.offered, status.accounting.returned),
        (packets, packets)
    );
    inco.stop(&place);
}

#[test]
fn the_middle_of_a_chain_scales_without_a_trace_with_oci() {
    the_middle_scales_without_a_trace(Engine::Oci, "memif");
}

#[test]
fn the_middle_of_a_chain_scales_without_a_trace_with_docker() {
    the_middle_scales_without_a_trace(Engine::Docker, "memif");
}

#[test]
fn the_middle_of_a_chain_scales_without_a_trace_on_interfaces() {
    the_middle_scales_without_a_trace(Engine::Oci, "frames");
}

fn a_chain_holds_while_inco_is_killed(port: &str) {
    if !Engine::Oci.is_here() {
        return;
    }
    let (place, network) = (Place::with_a_cpu(), Network::new());
    let text = three(Engine::Oci, port);
    let mut inco = network.run(&place, &text);
    let rows = inco.settled(3, 0);
    if port == "frames" {
        // What waits during a restart comes at once: its own rings are as large as the service says.
        for row in rows {
            let environment = std::fs::read(format!("/proc/{}/environ", row.pid.unwrap())).unwrap();
            assert!(String::from_utf8_lossy(&environment).contains("INCO_RING_SLOTS=8192\0"));
        }
    }
    let traffic = begin(&place, 120);
    for _ in 0..8 {
        eventually("packets pass the chain", PATIENCE, || {
            (offered(&inco)["monitor"] > 100).then_some(())
        });
        let _traces = inco.kill();
        inco = network.run(&place, &text);
        inco.settled(3, 0);
    }
    eventually("packets pass the chain again", PATIENCE, || {
        (offered(&inco)["monitor"] > 100).then_some(())
    });
    traffic.interrupt();
    let report = traffic.report();
    assert_clean(&report);
    assert_nothing_moved(&report);
    inco.at_rest();
    inco.stop(&place);
}

#[test]
fn a_chain_holds_while_inco_is_killed_and_starts_again() {
    a_chain_holds_while_inco_is_killed("memif");
}

#[test]
fn a_chain_on_interfaces_holds_while_inco_is_killed_and_starts_again() {
    a_chain_holds_while_inco_is_killed("frames");
}

#[test]
fn a_reload_begins_and_ends_a_chain_and_moves_no_flow() {
    if !Engine::Oci.is_here() {
        return;
    }
    let place = Place::with_a_cpu();
    let stamping = ["forward", "--cross", "--stamp"];
    let first = |next: &str| {
        service(
            "first",
            &stamping,
            &format!("match = {{ proto = \"udp\", dst_port = 7 }}\n{next}"),
        )
    };
    let second = |keys: &str| service("second", &["monitor", "--cross"], keys);
    let alone = [
        UPLINKS,
        &first(""),
        &second("match = { proto = \"udp\", dst_port = 9 }"),
    ]
    .concat();
    let chained = [UPLINKS, &first("next = \"second\""), &second("")].concat();
    let file = place.file("inco.toml", &alone);
    let inco = place.run_file(&file);
    inco.settled(2, 0);
    let traffic = begin(&place, 120);
    eventually("packets pass", PATIENCE, || {
        (offered(&inco)["first"] > 100).then_some(())
    });
    assert_eq!(offered(&inco)["second"], 0);
    place.file("inco.toml", &chained);
    place.must(&["reload"]);
    // New flows pass both services.
    eventually("packets pass the second service", PATIENCE, || {
        (offered(&inco)["second"] > 100).then_some(())
    });
    place.file("inco.toml", &alone);
    place.must(&["reload"]);
    let before = offered(&inco);
    eventually("packets pass the first service alone", PATIENCE, || {
        let now = offered(&inco);
        (now["first"] > before["first"] + 200).then_some(())
    });
    traffic.interrupt();
    let report = traffic.report();
    assert_clean(&report);
    assert_nothing_moved(&report);
    inco.at_rest();
    inco.stop(&place);
}
