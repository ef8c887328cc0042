//! The driver `openflow`: Open vSwitch forwards, inco decides.

#[cfg(feature = "dpdk")]
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use api::types::InstanceRow;
use model::{EventKind, InstanceState};
use rustix::process::Signal;

use crate::restart::{End, no_flow_notices_behind};
use crate::support::{
    Engine, IMAGE, Inco, Ovs, PATIENCE, Place, Traffic, assert_clean, changes, eventually, kill, program,
};

/// As in the test of the soft switch: instances of a tenth of a CPU each.
pub(crate) fn configuration(ovs: &Ovs, instances: &str, more: &str) -> String {
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
settle = "10s"
[[phase]]
duration = "9s"
flows = 20
ramp = "50ms"
keep = 4
keep_from = "4s"
rate_per_flow = "500pps"
"#;

/// What is short: its peer leaves before inco has read all counters, and comes back.
const SHORT: &str = r#"
uplink_wait = "5s"
[[phase]]
duration = "300ms"
flows = 4
rate_per_flow = "500pps"
"#;

impl Inco {
    /// All of these packets were offered and came back; nothing else did.
    fn has_counted(&self, packets: u64) {
        let mut told = (0, 0, 0);
        let counted = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            eventually("all packets are counted", PATIENCE, || {
                let of = self.at_rest().accounting;
                told = (of.offered, of.returned, of.dropped);
                (told == (packets, packets, 0)).then_some(())
            });
        }));
        assert!(counted.is_ok(), "{told:?} of {packets}");
    }
}

#[test]
fn instances_come_and_go_and_no_packet_notices() {
    if !Engine::Oci.is_here() {
        return;
    }
    let place = Place::with_a_cpu();
    let Some(ovs) = Ovs::start() else { return };
    let inco = place.run(&configuration(&ovs, "{ min = 3, max = 8, standby = 1 }", ""));
    inco.settled(3, 1);
    let ports = ovs.watch_ports();
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
    assert_eq!(peak, 8, "{}", inco.told());
    assert!(installed >= 20, "{installed} flows had rules\n{}", inco.told());
    // Every packet is in the sum, also those that came just before the network's end of the uplink left.
    let mut sent = report.counts.offered_packets;
    inco.has_counted(sent);
    for _ in 0..3 {
        let report = place.traffic(SHORT).report();
        assert_clean(&report);
        sent += report.counts.offered_packets;
        inco.has_counted(sent);
    }
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
    ports.assert_as_before();
    inco.stop(&place);
    assert_eq!(ovs.bridges(), "", "the bridge is removed");
    assert_eq!(ovs.complaints(), "");
}

/// So many seconds of 30 flows.
pub(crate) fn thirty_flows(place: &Place, seconds: u32) -> Traffic {
    place.traffic(&format!(
        r#"
tick = "500us"
uplink_wait = "5s"
settle = "10s"
[[phase]]
duration = "{seconds}s"
flows = 30
ramp = "10ms"
rate_per_flow = "50pps"
"#
    ))
}

/// Waits until each of them has its rule.
pub(crate) fn has_rules(place: &Place) {
    eventually("all flows have their rules", PATIENCE, || {
        let table = place.must(&["flows", "--limit", "100"]);
        let installed = table.lines().filter(|line| line.contains("installed"));
        (installed.count() == 30).then_some(())
    });
}

/// The datapath is in the switch: what is under way is lost with it, and nothing else is wrong afterwards.
#[test]
fn a_switch_that_is_killed_has_its_rules_again_when_it_is_back() {
    if !Engine::Oci.is_here() {
        return;
    }
    let place = Place::with_a_cpu();
    let Some(mut ovs) = Ovs::start() else { return };
    // No flow ends while the switch is away.
    let text = configuration(&ovs, "3", "").replace("udp = \"1s\"", "udp = \"30s\"");
    let inco = place.run(&text);
    inco.settled(3, 0);
    let mut traffic = thirty_flows(&place, 20);
    has_rules(&place);
    ovs.kill_switch();
    let killed = Instant::now();
    ovs.start_switch();
    println!(
        "Open vSwitch answers again {:?} after it was killed",
        killed.elapsed()
    );
    let restarted = Instant::now();
    let before = inco.status().accounting.returned;
    eventually("packets come back again", PATIENCE, || {
        (inco.status().accounting.returned > before + 1000).then_some(())
    });
    println!("packets come back {:?} later", restarted.elapsed());
    if real_parts::is_full_length() {
        assert!(restarted.elapsed() < Duration::from_secs(2));
    }
    assert!(
        traffic.is_running(),
        "it has to go on until after the switch is back"
    );
    let report = traffic.report();
    let counts = &report.counts;
    assert_eq!((counts.mis_steered, counts.expected_moves), (0, 0), "{counts:?}");
    assert!(counts.missing() > 0, "{counts:?}");
    has_rules(&place);
    // What was in the switch is counted as lost with it, and what came before instances were connected again found
    // their rings full: no packet is uncounted. And it was told that the switch was away.
    let accounting = inco.at_rest().accounting;
    // What inco counts as lost is what the generator misses, but for what was never in the switch's counters: packets that
    // found the uplink closed, and those in its ring when the switch ended.
    let missing = counts.missing();
    let at_uplink = counts.lost_at_uplink + counts.lost_in_restarts;
    assert!(
        accounting.dropped <= missing && missing <= accounting.dropped + at_uplink,
        "{accounting:#?} {counts:#?}"
    );
    let events = inco.events();
    let is_told = |wanted: fn(&EventKind) -> bool| events.iter().any(|event| wanted(&event.kind));
    assert!(
        is_told(|kind| matches!(kind, EventKind::Failure { what, .. } if what == "switch"))
            && is_told(|kind| matches!(kind, EventKind::Recovered { what, .. } if what == "switch")),
        "{}",
        inco.told()
    );
    inco.stop(&place);
}

/// inco ends in each way that leaves everything to the next run, while packets flow. The switch goes on by its rules,
/// and the next run goes on with them. After the last end no run comes: nothing stays, not even the bridge.
fn no_flow_notices_that_inco_was_away(engine: Engine) {
    if !engine.is_here() {
        return;
    }
    let place = Place::with_a_cpu();
    let Some(ovs) = Ovs::start() else { return };
    let ends = [
        End::Killed,
        End::KilledAfterItsLauncher,
        End::Kept,
        End::Lingering,
    ];
    let inco = no_flow_notices_behind(Some(&ovs), &place, engine, &ends, &program());
    // What was in a function when a run began to count is counted as if the function had made it.
    let of = inco.at_rest().accounting;
    assert!(of.originated < 100, "{of:?}");
    assert_eq!(
        (of.offered + of.originated, of.dropped),
        (of.returned, 0),
        "{of:?}"
    );
    let traces = inco.terminated();
    assert_eq!(
        traces.processes_alive().len(),
        3,
        "containers wait for the next run"
    );
    assert_eq!(ovs.bridges().trim(), "br-inco", "the bridge waits for it");
    place.is_left_clean();
    traces.assert_nothing_left();
    assert_eq!(ovs.bridges(), "", "the bridge is removed");
    assert_eq!(ovs.complaints(), "");
}

#[test]
fn no_flow_notices_that_inco_was_away_oci() {
    no_flow_notices_that_inco_was_away(Engine::Oci);
}

#[test]
fn no_flow_notices_that_inco_was_away_docker() {
    no_flow_notices_that_inco_was_away(Engine::Docker);
}

/// Harms an instance that was given so many packets, and waits until it has failed: which one it was, and why it is
/// said to have failed.
fn noticed_harm(inco: &Inco, packets: u64, harm: Signal) -> (InstanceRow, String) {
    let victim = eventually("an instance has flows", PATIENCE, || {
        let rows = inco.instances();
        let mut serving = rows
            .iter()
            .filter(|row| row.live_flows > 0 && row.to_packets > packets);
        serving.next().cloned()
    });
    kill(victim.pid.unwrap(), harm);
    let why = eventually("it is noticed", PATIENCE, || {
        let changes = changes(&inco.events(), victim.id).into_iter();
        let mut failed = changes.filter(|(_, to, _)| *to == InstanceState::Failed);
        Some(failed.next()?.2)
    });
    (victim, why)
}

/// An instance fails beside traffic: others have its flows, and what it had is counted, also what its port had taken
/// since it was last read. Other instances are unaffected. Returns the reason of the failure.
fn no_packet_is_uncounted(place: &Place, ovs: &Ovs, harm: Signal) -> String {
    let text =
        configuration(ovs, "{ min = 3, max = 3, standby = 1 }", "").replace("udp = \"1s\"", "udp = \"30s\"");
    let inco = place.run(&text);
    inco.settled(3, 1);
    let traffic = place.traffic(
        r#"
tick = "500us"
uplink_wait = "5s"
settle = "10s"
[[phase]]
duration = "6s"
flows = 30
rate_per_flow = "100pps"
"#,
    );
    let (victim, why) = noticed_harm(&inco, 100, harm);
    inco.settled(3, 1);
    let report = traffic.report_with_moves();
    let counts = &report.counts;
    assert_eq!((counts.mis_steered, counts.duplicated), (0, 0), "{counts:?}");
    assert!(
        (1..=victim.live_flows).contains(&counts.expected_moves),
        "{counts:?} {victim:?}"
    );
    let status = inco.at_rest();
    let accounting = &status.accounting;
    assert_eq!(
        (accounting.offered, accounting.dropped),
        (counts.offered_packets, counts.missing()),
        "{status:#?}"
    );
    inco.stop(place);
    why
}

#[test]
fn an_instance_that_is_killed_leaves_no_packet_uncounted() {
    if !Engine::Oci.is_here() {
        return;
    }
    let place = Place::with_a_cpu();
    let Some(ovs) = Ovs::start() else { return };
    no_packet_is_uncounted(&place, &ovs, Signal::KILL);
}

/// Its ring is not seen: it gives nothing back.
#[test]
fn an_instance_that_hangs_is_noticed_and_leaves_no_packet_uncounted() {
    if !Engine::Oci.is_here() {
        return;
    }
    let place = Place::with_a_cpu();
    let Some(ovs) = Ovs::start() else { return };
    let why = no_packet_is_uncounted(&place, &ovs, Signal::STOP);
    assert!(why.starts_with("it stalled"), "{why}");
}

/// The next run has not attached it, and asks it nonetheless.
#[test]
fn an_instance_that_hangs_after_kill_9_is_noticed() {
    if !Engine::Oci.is_here() {
        return;
    }
    let place = Place::with_a_cpu();
    let Some(ovs) = Ovs::start() else { return };
    let text = configuration(&ovs, "3", "").replace("udp = \"1s\"", "udp = \"30s\"");
    let inco = place.run(&text);
    inco.settled(3, 0);
    let mut traffic = thirty_flows(&place, 60);
    has_rules(&place);
    inco.kill();
    let inco = place.run(&text);
    inco.settled(3, 0);
    assert!(inco.instances().iter().all(|row| row.adopted), "{}", inco.told());
    has_rules(&place);
    // As many as it gets while it is asked: one that hangs before it has answered is not judged.
    let (victim, why) = noticed_harm(&inco, 1_000, Signal::STOP);
    assert!(victim.adopted && why.starts_with("it stalled"), "{why}");
    inco.settled(3, 0);
    assert!(traffic.is_running(), "it has to go on until after that");
    traffic.interrupt();
    let report = traffic.report_with_moves();
    // Flows of no other instance have moved.
    let counts = &report.counts;
    assert_eq!(counts.mis_steered, 0, "{counts:?}");
    assert!(
        (1..=victim.live_flows).contains(&counts.expected_moves),
        "{counts:?} {victim:?}"
    );
    // Killed again, it leaves everything to `inco stop`.
    inco.note_traces();
    let traces = inco.kill();
    place.must(&["stop"]);
    place.is_left_clean();
    traces.assert_nothing_left();
    assert_eq!(ovs.bridges(), "", "the bridge is removed");
}

/// A rule table smaller than configured. Flows without exact rules stay with their buckets, and the refusal is
/// reported.
#[test]
fn refused_rules_are_reported_and_move_no_flow() {
    if !Engine::Oci.is_here() {
        return;
    }
    let place = Place::with_a_cpu();
    let Some(ovs) = Ovs::start() else { return };
    let inco = place.run(&configuration(&ovs, "3", ""));
    inco.settled(3, 0);
    // Nothing is written any more but the marker of proofs.
    let mut before = 0;
    eventually("all fixed rules are there", PATIENCE, || {
        let now = ovs.rules("br-inco");
        (std::mem::replace(&mut before, now) == now && now > 64).then_some(())
    });
    ovs.limit_rules("br-inco", before + 10);
    let mut traffic = place.traffic(
        r#"
tick = "500us"
uplink_wait = "5s"
settle = "10s"
[[phase]]
duration = "3s"
flows = 40
rate_per_flow = "50pps"
"#,
    );
    let mut without = 0;
    while traffic.is_running() {
        let table = place.must(&["flows", "--limit", "100"]);
        let has_none =
            |line: &&str| line.contains("refused (its table is full)") || line.contains("on_bucket");
        without = without.max(table.lines().filter(has_none).count());
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_clean(&traffic.report());
    assert!(without > 0, "every flow had a rule");
    let refused = eventually("the refusal is reported", PATIENCE, || {
        inco.events().into_iter().find_map(|event| match event.kind {
            EventKind::Failure { what, reason } if what == "switch" => Some(reason),
            _ => None,
        })
    });
    assert!(
        refused.contains("rules of flows, which stay on their buckets"),
        "{refused}"
    );
    inco.stop(&place);
}

/// The paper's way: the first packets of a flow come by inco, and may be lost or lose their order while its rule is
/// written. None reaches another instance than its flow's.
#[test]
fn a_reactive_switch_sends_each_flow_to_one_instance() {
    if !Engine::Oci.is_here() {
        return;
    }
    let place = Place::with_a_cpu();
    let Some(ovs) = Ovs::start() else { return };
    // As on a card: the switch is told to hand its flows to the hardware, and the hardware here takes none.
    ovs.set("hw-offload=true");
    let text = configuration(&ovs, "{ min = 2, max = 5, standby = 1 }", "");
    let text = text.replace("[switch.openflow]\n", "[switch.openflow]\nsetup = \"reactive\"\n");
    let inco = place.run(&text);
    inco.settled(2, 1);
    // Flows of a hundred packets, one after the other, and a load that needs more instances for a while.
    let mut traffic = place.traffic(
        r#"
tick = "500us"
uplink_wait = "5s"
settle = "10s"
[[phase]]
duration = "5s"
flows = 16
ramp = "50ms"
keep = 4
keep_from = "3s"
rate_per_flow = "500pps"
"#,
    );
    let (mut peak, mut in_software) = (0, 0);
    while traffic.is_running() {
        inco.note_traces();
        peak = peak.max(inco.count(InstanceState::Active));
        let table = place.must(&["flows", "--limit", "100"]);
        let told = table
            .lines()
            .filter(|line| line.contains("installed, not offloaded"));
        in_software = in_software.max(told.count());
        std::thread::sleep(Duration::from_millis(50));
    }
    let report = traffic.report();
    let counts = &report.counts;
    println!(
        "reactive, {peak} instances: {} packets, {} lost, {} out of order, {} twice, {} on the wrong instance",
        counts.offered_packets,
        counts.missing(),
        counts.reordered,
        counts.duplicated,
        counts.mis_steered
    );
    assert_eq!(counts.mis_steered, 0, "{counts:?}");
    assert!(counts.returned_packets > 0, "{counts:?}");
    assert!(peak > 2, "{}", inco.told());
    assert!(
        in_software > 0,
        "no flow was told to be in software\n{}",
        inco.told()
    );
    inco.settled(2, 1);
    inco.stop(&place);
}

/// What the bench says of a case.
#[cfg(feature = "dpdk")]
#[derive(Debug, serde::Deserialize)]
struct Case {
    case: String,
    flows: u64,
    offered: u64,
    lost: u64,
    lost_at_uplink: u64,
    lost_in_restarts: u64,
    dropped: BTreeMap<String, u64>,
    dropped_by_switch: BTreeMap<String, u64>,
    unaccounted: i64,
    duplicated: u64,
    reordered: u64,
    mis_steered: u64,
    moved_buckets: u64,
    promotions: u64,
    demotions: u64,
    rules_per_s: Option<f64>,
}

/// `inco bench openflow`, short: bursts of new flows while instances come and go, flows that get and lose rules, too few
/// rules, rules at full speed, and a controller that is away. What is lost is not asked: that is how much time this machine has.
#[cfg(feature = "dpdk")]
#[test]
fn the_bench_reports_no_packet_on_a_wrong_instance() {
    if !Engine::Oci.is_here() {
        return;
    }
    let place = Place::with_a_cpu();
    if !Ovs::is_here() {
        return;
    }
    std::fs::create_dir(place.run_dir()).unwrap();
    let csv = place.path("bench.csv").display().to_string();
    let arguments =
        "bench openflow bursts changes rules limit cut --json --seconds 3 --new-flows 100 --rules 3000 --csv";
    let arguments: Vec<&str> = arguments.split(' ').chain([csv.as_str()]).collect();
    let told = place.must(&arguments);
    let cases: Vec<Case> = serde_json::from_str(&told).unwrap();
    for case in &cases {
        assert_eq!((case.mis_steered, case.duplicated), (0, 0), "{case:?}");
        assert!(case.offered > 0, "{case:?}");
    }
    let of = |name: &str| cases.iter().find(|case| case.case == name).unwrap();
    assert!(
        of("bursts").moved_buckets > 0 && of("bursts").flows > 100,
        "{cases:?}"
    );
    assert!(
        of("changes").promotions > 100 && of("changes").demotions > 0,
        "{cases:?}"
    );
    assert!(
        of("rules").rules_per_s.is_some_and(|rate| rate > 0.0),
        "{cases:?}"
    );
    assert!(of("limit").flows == 10_000, "{cases:?}");
    assert!(of("cut").flows > 100, "{cases:?}");
}

/// 1,000 new flows/s in bursts for 60 s while buckets move, and flows that get 1,000 rules/s and lose as many: every packet
/// in order. And the switch is restarted: what inco counts as lost is what the generator misses.
#[cfg(feature = "dpdk")]
#[test]
fn bursts_of_new_flows_keep_their_order_and_a_restart_loses_what_is_counted() {
    if !real_parts::is_full_length() || !Engine::Oci.is_here() {
        return;
    }
    let place = Place::with_a_cpu();
    if !Ovs::is_here() {
        return;
    }
    std::fs::create_dir(place.run_dir()).unwrap();
    let csv = place.path("bench.csv").display().to_string();
    let arguments = "bench openflow bursts changes restart --json --seconds 60 --new-flows 1000 --csv";
    let arguments: Vec<&str> = arguments.split(' ').chain([csv.as_str()]).collect();
    let told = place.must(&arguments);
    println!("{told}");
    let cases: Vec<Case> = serde_json::from_str(&told).unwrap();
    for case in &cases {
        assert_eq!((case.mis_steered, case.duplicated), (0, 0), "{case:?}");
        assert_eq!((case.reordered, case.unaccounted), (0, 0), "{case:?}");
        // What inco counts as lost is what the generator misses, but for what came to no counter of inco.
        let dropped: u64 = case.dropped.values().sum();
        let by_switch: u64 = case.dropped_by_switch.values().sum();
        let elsewhere = by_switch + case.lost_at_uplink + case.lost_in_restarts;
        assert!(
            dropped <= case.lost && case.lost <= dropped + elsewhere,
            "{case:?}"
        );
    }
    let of = |name: &str| cases.iter().find(|case| case.case == name).unwrap();
    let bursts = of("bursts");
    assert!(bursts.flows >= 59_000 && bursts.moved_buckets > 0, "{bursts:?}");
    assert_eq!(bursts.lost, 0, "{bursts:?}");
    let changes = of("changes");
    // The first rules are lost after 1 s.
    assert!(
        changes.promotions >= 59_000 && changes.demotions >= 57_000,
        "{changes:?}"
    );
    assert_eq!(changes.lost, 0, "{changes:?}");
}
