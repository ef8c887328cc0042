//! A function without state of its own: a drain moves its flows at once, and in order.

use model::{Action, InstanceId, InstanceState};

use crate::support::{Engine, IMAGE, PATIENCE, Place, changes, eventually};

/// Each packet costs 20 µs, so that some are under way now and then.
const CONFIGURATION: &str = r#"
[[uplink]]
name = "wan"
device = "memif:wan.sock"

[service.forward]
image = "IMAGE"
command = ["/inco-nf", "forward", "--stamp", "--cost-ns", "20000"]
memory = "64MiB"
capacity = "100kpps"
instances = { min = 1, max = 4, standby = 0 }
scheduler = { policy = "round-robin", slow_start = "0s" }
autoscaler = "fixed"
affinity = "relaxed"
ring = { slots = 8192 }
"#;

/// Flows that never end: a strict drain of their instance would last until its deadline, a minute.
const FLOWS: u64 = 8;
const LOAD: &str = r#"
tick = "200us"
uplink_wait = "5s"
settle = "10s"
catch_up = "50ms"
[[phase]]
duration = "60s"
flows = 8
rate_per_flow = "1kpps"
"#;
/// Purges that are made at most until some flows had packets under way. Where a packet waits for those before it is
/// tested packet by packet in `crates/switches/soft-switch/tests/worker/moves.rs`: here it is a matter of luck.
const ROUNDS: u32 = 20;

#[test]
fn a_drain_of_a_relaxed_service_moves_its_flows_in_order() {
    if !Engine::Oci.is_here() {
        return;
    }
    let place = Place::with_a_cpu();
    let inco = place.run(&CONFIGURATION.replace("IMAGE", IMAGE));
    inco.settled(1, 0);
    place.must(&["scale", "forward", "2"]);
    inco.settled(2, 0);
    let traffic = place.traffic(LOAD);
    let held = || -> (u64, u64) {
        let worker = &inco.status().workers[0];
        (worker.held_moves, worker.early_moves)
    };
    eventually("all flows", PATIENCE, || {
        (inco.status().workers[0].live_flows == FLOWS).then_some(())
    });

    let drained = InstanceId(1);
    place.must(&["drain", "1"]);
    eventually("the drained instance goes", PATIENCE, || {
        inco.instance(drained).is_none().then_some(())
    });
    let rows = inco.settled(2, 0);
    let end = changes(&inco.events(), drained)
        .into_iter()
        .find(|(_, to, _)| *to == InstanceState::Stopping);
    assert_eq!(end.unwrap().2, "its flows have moved");
    assert_eq!(
        rows.iter().map(|row| row.live_flows).sum::<u64>(),
        FLOWS,
        "{rows:#?}"
    );

    // To and fro, until flows were moved with packets of theirs under way.
    for round in 0..ROUNDS {
        let instance = rows[round as usize % rows.len()].id;
        inco.client()
            .act(&Action::Purge {
                instance: Some(instance),
                flow: None,
            })
            .unwrap();
        eventually("its flows have a place", PATIENCE, || {
            let flows: u64 = inco.instances().iter().map(|row| row.live_flows).sum();
            (flows == FLOWS).then_some(())
        });
        let (all, early) = held();
        if all - early >= 3 {
            break;
        }
    }
    traffic.interrupt();
    let report = traffic.report_with_moves();
    let (all, early) = held();
    println!(
        "{all} moves waited, {early} of them in vain; {} moves in all, {} packets reordered",
        report.counts.expected_moves, report.counts.reordered
    );
    let c = &report.counts;
    assert_eq!((c.mis_steered, c.duplicated, report.lost), (0, 0, 0), "{c:#?}");
    // A container that has to wait for a CPU holds packets for longer than a flow is held; such a move is told.
    assert!(early > 0 || c.reordered == 0, "{c:#?}");
    assert!(c.expected_moves >= FLOWS / 2, "{c:#?}");
    let status = inco.at_rest();
    assert_eq!(status.accounting.dropped, 0, "{:#?}", status.drops);
    inco.stop(&place);
}
