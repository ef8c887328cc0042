//! Containers replaced one after the other, and commands that wait for what they asked for.

use api::types::InstanceRow;
use model::{EventKind, InstanceId, InstanceState, RolloutState};

use crate::support::{Engine, FORWARD, Inco, PATIENCE, Place, assert_clean, eventually, text};

// The count is at its limit: a replacement comes beside it. Drains move the flows in order.
const CONFIGURATION: &str = r#"
FORWARD
capacity = "100kpps"
instances = { min = 2, max = 2, standby = 1 }
autoscaler = "fixed"
affinity = "relaxed"
scheduler = { policy = "round-robin", slow_start = "0s" }
ring = { slots = 8192 }
ready_deadline = "3s"
"#;

pub(crate) const TRAFFIC: &str = r#"
tick = "500us"
uplink_wait = "5s"
settle = "10s"
[[phase]]
duration = "120s"
flows = 12
ramp = "100ms"
rate_per_flow = "200pps"
"#;

fn ids(rows: &[InstanceRow]) -> Vec<InstanceId> {
    rows.iter().map(|row| row.id).collect()
}

fn active(inco: &Inco) -> Vec<InstanceId> {
    let rows = inco.instances();
    ids(&rows)
        .into_iter()
        .zip(rows)
        .filter(|(_, row)| row.state == InstanceState::Active)
        .map(|(id, _)| id)
        .collect()
}

#[test]
fn a_rollout_replaces_containers_while_packets_flow_and_ends_with_a_bad_one() {
    if !Engine::Oci.is_here() {
        return;
    }
    let place = Place::new();
    let text_of = |command: &str| {
        CONFIGURATION
            .replace("FORWARD\n", FORWARD)
            .replace("\"--stamp\"", command)
    };
    let inco = place.run(&text_of("\"--stamp\""));
    let before = ids(&inco.settled(2, 1));
    let traffic = place.traffic(TRAFFIC);
    eventually("all flows", PATIENCE, || {
        (inco.status().live_flows == 12).then_some(())
    });
    let said = place.must(&["rollout", "forward", "--wait", "--timeout", "60"]);
    assert!(
        said.contains("forward: the rollout of 3 instances has begun"),
        "{said}"
    );
    let after = ids(&inco.settled(2, 1));
    assert!(
        after.iter().all(|id| !before.contains(id)),
        "{before:?} {after:?}"
    );
    let said = place.must(&["rollout", "forward", "--status"]);
    assert!(said.contains("forward: finished, 3 of 3 replaced"), "{said}");

    // A replacement whose program does not run.
    place.file("inco.toml", &text_of("\"--no-such-option\""));
    place.must(&["reload"]);
    let output = place.output(&["rollout", "forward", "--wait", "--timeout", "60"]);
    assert_eq!(output.status.code(), Some(1));
    let error = text(&output.stderr);
    // An end is told within 100 ms, also if its status is not known by then.
    assert!(
        error.contains("forward: the rollout was aborted, 1 of 3 are replaced: replacement")
            && error.contains("no-such-option"),
        "{error}"
    );
    let kept: Vec<_> = active(&inco);
    assert_eq!(
        kept,
        after
            .iter()
            .copied()
            .filter(|id| kept.contains(id))
            .collect::<Vec<_>>()
    );
    assert_eq!(kept.len(), 2);
    let described = place.must(&["describe", "forward"]);
    for said in [
        "aborted: 1 of 3 replaced (replacement",
        "failing ",
        "no-such-option",
        "\"relaxed\"\n",
    ] {
        assert!(described.contains(said), "{described}\nhas no\n{said}");
    }

    // With a file that is right again it goes on.
    place.file("inco.toml", &text_of("\"--stamp\""));
    place.must(&["reload"]);
    place.must(&["rollout", "forward", "--wait", "--timeout", "120"]);
    let last = ids(&inco.settled(2, 1));
    assert!(last.iter().all(|id| !after.contains(id)), "{after:?} {last:?}");
    let states: Vec<RolloutState> = inco
        .events()
        .iter()
        .filter_map(|event| match &event.kind {
            EventKind::Rollout { state, .. } if *state != RolloutState::Running => Some(*state),
            _ => None,
        })
        .collect();
    assert_eq!(
        states,
        [
            RolloutState::Finished,
            RolloutState::Aborted,
            RolloutState::Finished
        ]
    );

    // A drain that is waited for, and one that may not take so long.
    let output = place.output(&["drain", &last[0].to_string(), "--wait", "--timeout", "30"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let gone = inco
        .instance(last[0])
        .is_none_or(|row| !matches!(row.state, InstanceState::Active | InstanceState::Draining));
    assert!(gone, "{:?}", inco.instances());

    traffic.interrupt();
    // The service is relaxed: its rollout moves flows, in order. A container that has to wait for a CPU holds packets for
    // longer than a flow is held; such a move is told.
    let mut report = traffic.report_with_moves();
    let early: u64 = inco.status().workers.iter().map(|of| of.early_moves).sum();
    if early > 0 {
        println!(
            "{} packets reordered by {early} early moves",
            report.counts.reordered
        );
        report.counts.reordered = 0;
    }
    assert_clean(&report);
    inco.at_rest();
    inco.stop(&place);
}

/// Without containers: a count that is waited for, also by a reload.
#[test]
fn a_count_is_waited_for() {
    let place = Place::new();
    let text_of = |max: u32| {
        format!(
            "[[uplink]]\nname = \"wan\"\ndevice = \"memif:wan.sock\"\n[service.sink]\nport = \"null\"\n\
             autoscaler = \"fixed\"\ninstances = {{ min = {max}, max = 9, standby = 0 }}\n"
        )
    };
    let inco = place.run(&text_of(1));
    place.must(&["scale", "sink", "3", "--wait", "--timeout", "20"]);
    assert_eq!(active(&inco).len(), 3);
    place.must(&["scale", "sink", "2", "--wait", "--timeout", "20"]);
    assert_eq!(active(&inco).len(), 2);
    place.file("inco.toml", &text_of(5));
    place.must(&["reload", "--wait", "--timeout", "20"]);
    assert_eq!(active(&inco).len(), 5);
    let before = active(&inco);
    place.must(&["rollout", "sink", "--wait", "--timeout", "20"]);
    assert_eq!(active(&inco).len(), 5);
    assert!(active(&inco).iter().all(|id| !before.contains(id)));
    let id = active(&inco)[0].to_string();
    place.must(&["purge", &id, "--wait", "--timeout", "20"]);
    place.must(&["stop"]);
    inco.ended();
}
