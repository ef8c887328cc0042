//! An instance is killed or hangs under load.

use std::time::Duration;

use model::{InstanceId, InstanceState};
use rustix::process::Signal;

use crate::support::{
    Engine, IMAGE, Inco, PATIENCE, Place, assert_clean, assert_undisturbed, changes, eventually, kill,
};

fn configuration(engine: Engine) -> String {
    format!(
        r#"
[[uplink]]
name = "wan"
device = "memif:wan.sock"

[service.forward]
image = "{IMAGE}"
command = ["/inco-nf", "forward", "--stamp", "--pace-cpus", "0.1"]
cpus = 0.1
memory = "64MiB"
capacity = "10kpps"
instances = {{ min = 3, max = 3, standby = 1 }}
scheduler = {{ policy = "round-robin", slow_start = "0s" }}
autoscaler = "fixed"
ready = "consumes"
ring = {{ slots = 8192 }}
{}"#,
        engine.toml()
    )
}

const FLOWS: u32 = 30;
const LOAD: &str = r#"
tick = "500us"
uplink_wait = "5s"
settle = "1s"
[[phase]]
duration = "3s"
flows = 30
rate_per_flow = "200pps"
"#;

/// The process or its socket: whichever is seen first.
const DEAD: [&str; 2] = ["its program", "its data port went down"];

/// Does `harm` to an instance under load. It must be noticed within `promised`, with a reason that starts
/// with one of `reasons`.
fn is_noticed_and_replaced(engine: Engine, harm: Signal, promised: Duration, reasons: &[&str]) {
    if !engine.is_here() {
        return;
    }
    let place = Place::quiet();
    let inco = place.run(&configuration(engine));
    let before = inco.settled(3, 1);
    let traffic = place.traffic(LOAD);
    let victim = eventually("each instance has its flows", PATIENCE, || {
        let rows = inco.instances();
        let serving: Vec<_> = rows
            .iter()
            .filter(|i| i.live_flows > 0 && i.to_packets > 500)
            .collect();
        (serving.len() == 3).then(|| serving[1].clone())
    });
    assert_eq!(victim.live_flows, u64::from(FLOWS / 3));
    let since = clock::unix_ms();
    kill(victim.pid.unwrap(), harm);
    let (noticed, why) = eventually("the failure is noticed", PATIENCE, || failure(&inco, victim.id));
    let took = Duration::from_millis(noticed.saturating_sub(since));
    println!(
        "{}, signal {}: noticed after {took:?} ({why})",
        engine.name(),
        harm.as_raw()
    );
    assert!(reasons.iter().any(|reason| why.starts_with(reason)), "{why}");
    assert!(took <= promised, "noticed after {took:?}: {}", inco.told());
    // One from the pool serves at once, and a new container fills the pool.
    let after = inco.settled(3, 1);
    assert!(after.iter().all(|i| i.id != victim.id));
    let new: Vec<_> = after
        .iter()
        .filter(|i| before.iter().all(|b| b.id != i.id))
        .collect();
    assert_eq!(new.len(), 1, "{after:#?}");

    let report = traffic.report_with_moves();
    assert_undisturbed(&report);
    assert_eq!(
        report.counts.expected_moves,
        u64::from(FLOWS / 3),
        "{:#?}",
        report.counts
    );
    let status = inco.at_rest();
    // The flows of the victim moved, once each, and other instances serve them. All other flows are unaffected.
    assert_eq!(
        status.accounting.expected_moves,
        u64::from(FLOWS / 3),
        "{}",
        inco.told()
    );
    let moved = report
        .flows
        .iter()
        .filter(|flow| flow.expected_moves == 1)
        .count();
    assert_eq!(moved as u32, FLOWS / 3);
    for flow in &report.flows {
        assert_ne!(
            flow.instance, victim.id.0,
            "still served by the victim: {flow:#?}"
        );
        assert!(flow.expected_moves == 1 || flow.lost == 0, "{flow:#?}");
    }
    // What is missing, a counter saw: what the victim had when it was given up.
    assert_eq!(report.lost, status.accounting.dropped, "{:#?}", status.drops);
    let lost: u64 = ["instance_lost", "instance_ring_full"]
        .iter()
        .filter_map(|reason| status.drops.get(*reason))
        .sum();
    assert_eq!(report.lost, lost, "{:#?}", status.drops);
    // No more than came for it meanwhile: a third of 6,000 packets/s, and what it had.
    let came = 2000.0 * (took.as_secs_f64() + 0.5);
    assert!((lost as f64) < came, "{lost} packets lost in {took:?}");
    inco.stop(&place);
}

/// The flows of a purged instance move once. The event, the counters and the generator agree on their number.
#[test]
fn flows_of_a_purged_instance_move_and_are_expected_to() {
    if !Engine::Oci.is_here() {
        return;
    }
    let place = Place::with_a_cpu();
    let inco = place.run(&configuration(Engine::Oci));
    let rows = inco.settled(3, 1);
    let traffic = place.traffic(LOAD);
    eventually("each instance has its flows", PATIENCE, || {
        let rows = inco.instances();
        (rows
            .iter()
            .filter(|i| i.live_flows == u64::from(FLOWS / 3))
            .count()
            == 3)
            .then_some(())
    });
    place.must(&["purge", &rows[0].id.0.to_string()]);
    let told = inco.told();
    assert!(told.contains("Unpinned"), "{told}");
    let report = traffic.report_with_moves();
    assert_clean(&report);
    let moved = report.counts.expected_moves;
    assert!((1..=u64::from(FLOWS / 3)).contains(&moved), "{moved} flows moved");
    inco.at_rest();
    inco.stop(&place);
}

fn failure(inco: &Inco, id: InstanceId) -> Option<(u64, String)> {
    let changes = changes(&inco.events(), id);
    let (at, _, reason) = changes
        .into_iter()
        .find(|(_, to, _)| *to == InstanceState::Failed)?;
    Some((at, reason))
}

#[test]
fn a_killed_instance_is_noticed_within_100_ms_and_replaced_oci() {
    let promised = Duration::from_millis(100);
    is_noticed_and_replaced(Engine::Oci, Signal::KILL, promised, &DEAD);
}

#[test]
fn a_killed_instance_is_noticed_within_100_ms_and_replaced_docker() {
    let promised = Duration::from_millis(100);
    is_noticed_and_replaced(Engine::Docker, Signal::KILL, promised, &DEAD);
}

/// It hangs: 100 ms without taking a packet, and 50 ms until that is seen.
#[test]
fn an_instance_that_hangs_is_noticed_and_replaced_oci() {
    let promised = Duration::from_millis(150);
    is_noticed_and_replaced(Engine::Oci, Signal::STOP, promised, &["it stalled"]);
}

#[test]
fn an_instance_that_hangs_is_noticed_and_replaced_docker() {
    let promised = Duration::from_millis(150);
    is_noticed_and_replaced(Engine::Docker, Signal::STOP, promised, &["it stalled"]);
}

#[test]
fn a_service_says_for_how_long_an_instance_may_hang() {
    if !Engine::Oci.is_here() {
        return;
    }
    let place = Place::new();
    let text = configuration(Engine::Oci).replace("ready =", "stall_after = \"2s\"\nready =");
    let inco = place.run(&text);
    let rows = inco.settled(3, 1);
    let victim = rows
        .iter()
        .find(|row| row.state == InstanceState::Active)
        .unwrap();
    let traffic = place.traffic(LOAD);
    kill(victim.pid.unwrap(), Signal::STOP);
    let (_, why) = eventually("it is given up", PATIENCE, || failure(&inco, victim.id));
    let waited = why
        .strip_prefix("it stalled: its ring is not empty and it consumed nothing for ")
        .and_then(|rest| rest.split_once(" ms")?.0.parse::<u64>().ok());
    assert!(waited.is_some_and(|ms| ms >= 2_000), "{why}");
    assert_undisturbed(&traffic.report_with_moves());
    inco.at_rest();
    inco.stop(&place);
}
