//! The driver `openflow`: Open vSwitch forwards, inco decides.

use std::time::Duration;

use model::InstanceState;

use crate::support::{Engine, IMAGE, Ovs, Place, assert_clean, changes, eventually};

/// As in the test of the soft switch: instances of a tenth of a CPU each.
fn configuration(ovs: &Ovs, instances: &str, more: &str) -> String {
    format!(
        r#"
{}
{more}
[switch.timeouts]
udp = "1s"
[[uplink]]
name = "wan"
device = "memif:wan.sock"
[service.forward]
image = "{IMAGE}"
command = ["/inco-nf", "forward", "--stamp", "--pace-cpus", "0.1"]
cpus = 0.1
memory = "64MiB"
capacity = "2.5kpps"
symmetric = false
instances = {instances}
scheduler = "best-fit"
autoscaler = {{ policy = "smartinco", target = 0.5, scale_down_window = "1s" }}
ring = {{ slots = 4096 }}
{}"#,
        ovs.toml(),
        Engine::Oci.toml()
    )
}

/// 20 flows, one more each 50 ms, then all but 4 end: 3 instances, 8, 3.
const RAMP: &str = r#"
tick = "500us"
uplink_wait = "5s"
settle = "1s"
[[phase]]
duration = "9s"
flows = 20
ramp = "50ms"
keep = 4
keep_from = "4s"
rate_per_flow = "500pps"
"#;

/// Packets that inco may have missed while ports came and went.
const UNCOUNTED: u64 = 40;

#[test]
fn instances_come_and_go_and_no_packet_notices() {
    if !Engine::Oci.is_here() {
        return;
    }
    let place = Place::alone();
    let Some(ovs) = Ovs::start() else { return };
    let inco = place.run(&configuration(&ovs, "{ min = 3, max = 8, standby = 1 }", ""));
    inco.settled(3, 1);
    let mut traffic = place.traffic(RAMP);
    let (mut peak, mut installed) = (0, 0);
    while traffic.is_running() {
        inco.note_traces();
        peak = peak.max(inco.count(InstanceState::Active));
        let table = place.must(&["flows", "--limit", "100"]);
        installed = installed.max(table.lines().filter(|line| line.contains("installed")).count());
        std::thread::sleep(Duration::from_millis(50));
    }
    let report = traffic.report();
    assert_clean(&report);
    assert_eq!(report.counts.expected_moves, 0);
    assert_eq!(peak, 8, "{}", inco.told());
    assert!(installed >= 20, "{installed} flows had rules\n{}", inco.told());
    // The sum closes. Some packets may be in no counter of the switch's ports: see docs/smartnic.md.
    let accounting = inco.at_rest().accounting;
    let counted = accounting.offered;
    assert_eq!(
        (accounting.returned, accounting.dropped),
        (counted, 0),
        "{accounting:#?}"
    );
    let sent = report.counts.offered_packets;
    assert!(
        (sent - UNCOUNTED..=sent).contains(&counted),
        "{counted} of {sent}"
    );
    inco.settled(3, 1);
    // Those that were drained ended because their last flow had.
    let events = inco.events();
    let mut drained = 0;
    for id in 1..=u32::try_from(events.len()).unwrap() {
        for pair in changes(&events, model::InstanceId(id)).windows(2) {
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
    inco.stop(&place);
    assert_eq!(ovs.bridges(), "", "the bridge is removed");
    assert_eq!(ovs.complaints(), "");
}

/// The datapath is in the switch: what is under way is lost with it, and nothing else is wrong afterwards.
#[test]
fn a_switch_that_is_killed_has_its_rules_again_when_it_is_back() {
    if !Engine::Oci.is_here() {
        return;
    }
    let place = Place::alone();
    let Some(mut ovs) = Ovs::start() else { return };
    // No flow ends while the switch is away.
    let text = configuration(&ovs, "3", "").replace("udp = \"1s\"", "udp = \"30s\"");
    let inco = place.run(&text);
    inco.settled(3, 0);
    let mut traffic = place.traffic(
        r#"
tick = "500us"
uplink_wait = "5s"
settle = "1s"
[[phase]]
duration = "20s"
flows = 30
ramp = "10ms"
rate_per_flow = "50pps"
"#,
    );
    let rules = || {
        let table = place.must(&["flows", "--limit", "100"]);
        table.lines().filter(|line| line.contains("installed")).count()
    };
    eventually("all flows have rules", Duration::from_secs(10), || {
        (rules() == 30).then_some(())
    });
    ovs.kill_switch();
    ovs.start_switch();
    let sent = inco.status().accounting.returned;
    eventually("packets come back again", Duration::from_secs(15), || {
        (inco.status().accounting.returned > sent + 1000).then_some(())
    });
    assert!(
        traffic.is_running(),
        "it has to go on until after the switch is back"
    );
    let report = traffic.report();
    assert_eq!(report.counts.mis_steered, 0, "{:?}", report.counts);
    assert!(report.counts.missing() > 0, "{:?}", report.counts);
    assert_eq!(rules(), 30);
    inco.stop(&place);
}
