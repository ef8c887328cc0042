//! Making containers does not hold up a worker, however much memory the process has.

use crate::support::{Engine, IMAGE, Place, assert_clean, load_per_cpu};

const LOAD: &str = r#"
tick = "500us"
uplink_wait = "5s"
settle = "2s"
[[phase]]
duration = "3s"
flows = 100
rate_per_flow = "100pps"
"#;

#[test]
fn a_worker_with_16_million_flows_goes_on_while_containers_are_made() {
    if !Engine::Oci.is_here() {
        return;
    }
    let place = Place::alone();
    let text = format!(
        r#"
[switch]
flows = "16M"

[[uplink]]
name = "wan"
device = "memif:wan.sock"

[service.forward]
image = "{IMAGE}"
command = ["/inco-nf", "forward", "--stamp"]
memory = "64MiB"
capacity = "100kpps"
instances = {{ min = 1, max = 5, standby = 0 }}
autoscaler = "fixed"
ring = {{ slots = 8192 }}
"#
    );
    let inco = place.run(&text);
    inco.settled(1, 0);
    assert!(inco.status().flow_limit >= 16_000_000, "{:#?}", inco.status());
    let traffic = place.traffic(LOAD);
    crate::support::eventually("packets flow", crate::support::PATIENCE, || {
        (inco.status().accounting.returned > 100).then_some(())
    });
    let before = inco.status().workers[0].longest_gap_us;
    place.must(&["scale", "forward", "5"]);
    inco.settled(5, 0);
    let after = inco.status().workers[0].longest_gap_us;
    assert_clean(&traffic.report());
    let load = load_per_cpu();
    println!(
        "longest gap: {before:.0} us before, {after:.0} us with 4 containers made; load {load:.1} per CPU"
    );
    assert!(after > 0.0, "no gap is reported");
    // On a CPU of its own. Where others use it, a worker's gaps are theirs.
    if load < 0.5 {
        assert!(after < 1000.0, "{after} us");
    }
    inco.stop(&place);
}
