//! Instances come and go while traffic runs, and no packet notices.

use model::{EventKind, InstanceState};

use crate::support::{Engine, IMAGE, PATIENCE, Place, assert_clean, changes, eventually};

/// Instances of a tenth of a CPU each. Long rings: on a machine that is busy with other things a container may wait
/// for its turn, and that is not what is tested.
fn configuration(engine: Engine) -> String {
    format!(
        r#"
[[uplink]]
name = "wan"
device = "memif:wan.sock"

[switch.timeouts]
udp = "1s"

[service.forward]
image = "{IMAGE}"
command = ["/inco-nf", "forward", "--stamp", "--pace-cpus", "0.1"]
cpus = 0.1
memory = "64MiB"
capacity = "2.5kpps"
instances = {{ min = 3, max = 8, standby = 1 }}
scheduler = "best-fit"
autoscaler = {{ policy = "smartinco", target = 0.5, scale_down_window = "1s" }}
ring = {{ slots = 8192 }}
{}"#,
        engine.toml()
    )
}

/// 20 flows, one more each 50 ms, then all but 4 end: 3 instances, 8, 3.
const RAMP: &str = r#"
tick = "500us"
uplink_wait = "5s"
settle = "10s"
[[phase]]
duration = "7s"
flows = 20
ramp = "50ms"
keep = 4
keep_from = "3s"
rate_per_flow = "500pps"
"#;

fn scales_out_and_in_without_a_trace(engine: Engine) {
    if !engine.is_here() {
        return;
    }
    let place = Place::quiet();
    let inco = place.run(&configuration(engine));
    inco.settled(3, 1);
    let mut traffic = place.traffic(RAMP);
    let mut peak = 0;
    while traffic.is_running() {
        inco.note_traces();
        peak = peak.max(inco.count(InstanceState::Active));
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let report = traffic.report();
    assert_clean(&report);
    assert_eq!(peak, 8, "{}", inco.told());
    let status = inco.at_rest();
    assert_eq!(status.accounting.offered, report.counts.offered_packets);
    assert_eq!(status.accounting.returned, report.counts.returned_packets);
    assert_eq!(status.accounting.dropped, 0, "{:#?}", status.drops);
    assert_eq!(status.accounting.expected_moves, 0);
    inco.settled(3, 1);

    // Each that was drained ended because its last flow had, and nothing was lost with it.
    let events = inco.events();
    let mut drained = 0;
    for id in 1..=u32::try_from(events.len()).unwrap() {
        let changes = changes(&events, model::InstanceId(id));
        for pair in changes.windows(2) {
            let [(_, from, _), (_, to, reason)] = pair else {
                unreachable!()
            };
            if *from == InstanceState::Draining && *to != InstanceState::Active {
                drained += 1;
                assert_eq!(reason, "its last flow has ended", "instance {id}");
            }
        }
    }
    assert!(drained >= 5, "{}", inco.told());
    assert!(!inco.told().contains("were lost with it"), "{}", inco.told());
    inco.stop(&place);
}

#[test]
fn scaling_out_and_in_under_load_loses_nothing_oci() {
    scales_out_and_in_without_a_trace(Engine::Oci);
}

#[test]
fn scaling_out_and_in_under_load_loses_nothing_docker() {
    scales_out_and_in_without_a_trace(Engine::Docker);
}

/// Each packet costs a millisecond, of which the capacity knows nothing: packets per second show no load at all.
const COSTLY: &str = r#"
[[uplink]]
name = "wan"
device = "memif:wan.sock"

[service.forward]
image = "IMAGE"
command = ["/inco-nf", "forward", "--cost-ns", "1000000"]
memory = "64MiB"
capacity = "1Mpps"
instances = { min = 1, max = 2, standby = 0 }
scheduler = { policy = "round-robin", slow_start = "0s" }
autoscaler = { policy = "ladder", busy_high = 0.3, calm = "60s" }
ring = { slots = 8192 }
"#;

#[test]
fn a_costly_function_scales_out_by_its_busy_time() {
    if !Engine::Oci.is_here() {
        return;
    }
    let place = Place::quiet();
    let inco = place.run(&COSTLY.replace("IMAGE", IMAGE));
    inco.settled(1, 0);
    // Busy for half of its time, by a two-thousandth of its capacity.
    let traffic = place.traffic(
        "tick = \"500us\"\nuplink_wait = \"5s\"\nsettle = \"10s\"\n[[phase]]\nduration = \"60s\"\nflows = 10\n\
         rate_per_flow = \"50pps\"\n",
    );
    let reason = eventually("it scales out", PATIENCE, || {
        inco.events().into_iter().find_map(|event| match event.kind {
            EventKind::Scaled {
                from: 1,
                to: 2,
                reason,
                ..
            } => Some(reason),
            _ => None,
        })
    });
    assert!(reason.contains("above_busy_high"), "{reason}");
    inco.settled(2, 0);
    drop(traffic);
    inco.stop(&place);
}
