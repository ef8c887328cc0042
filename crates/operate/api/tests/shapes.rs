//! The JSON that others rely on.

use api::types::{Accounting, FlowFilter, Outcome, Refusal, Status, drops_by_reason};
use model::{Action, ActorSide, DropReason, InstanceId, KeyChange};
use serde_json::json;

#[test]
fn actions_have_these_shapes() {
    let shapes = [
        (
            Action::Scale {
                service: "web".to_owned(),
                instances: Some(5),
            },
            json!({"action": "scale", "service": "web", "instances": 5}),
        ),
        (
            Action::Scale {
                service: "web".to_owned(),
                instances: None,
            },
            json!({"action": "scale", "service": "web", "instances": null}),
        ),
        (
            Action::Range {
                service: "web".to_owned(),
                min: Some(2),
                max: None,
            },
            json!({"action": "range", "service": "web", "min": 2}),
        ),
        (
            Action::Resize {
                service: "web".to_owned(),
                cpus: Some(0.6),
            },
            json!({"action": "resize", "service": "web", "cpus": 0.6}),
        ),
        (
            Action::Drain {
                instance: InstanceId(3),
            },
            json!({"action": "drain", "instance": 3}),
        ),
        (
            Action::Undrain {
                instance: InstanceId(3),
            },
            json!({"action": "undrain", "instance": 3}),
        ),
        (
            Action::Purge {
                instance: Some(InstanceId(3)),
                flow: None,
            },
            json!({"action": "purge", "instance": 3}),
        ),
        (
            Action::Purge {
                instance: None,
                flow: Some("x".to_owned()),
            },
            json!({"action": "purge", "flow": "x"}),
        ),
        (
            Action::Move {
                flow: "x".to_owned(),
                instance: InstanceId(3),
            },
            json!({"action": "move", "flow": "x", "instance": 3}),
        ),
        (
            Action::ActorMove {
                service: "kv".to_owned(),
                actor: "counter".to_owned(),
                to: ActorSide::Host,
            },
            json!({"action": "actor_move", "service": "kv", "actor": "counter", "to": "host"}),
        ),
        (
            Action::ActorStop {
                service: "kv".to_owned(),
                actor: "counter".to_owned(),
            },
            json!({"action": "actor_stop", "service": "kv", "actor": "counter"}),
        ),
        (
            Action::PauseIn {
                service: "web".to_owned(),
                on: true,
            },
            json!({"action": "pause_in", "service": "web", "on": true}),
        ),
        (
            Action::PauseOut {
                service: "web".to_owned(),
                on: false,
            },
            json!({"action": "pause_out", "service": "web", "on": false}),
        ),
        (
            Action::DryRun {
                service: "web".to_owned(),
                on: true,
            },
            json!({"action": "dry_run", "service": "web", "on": true}),
        ),
        (
            Action::Rollout {
                service: "web".to_owned(),
                cancel: false,
            },
            json!({"action": "rollout", "service": "web"}),
        ),
        (Action::Reload { check: false }, json!({"action": "reload"})),
        (
            Action::Reload { check: true },
            json!({"action": "reload", "check": true}),
        ),
        (
            Action::Exec {
                instance: InstanceId(3),
                command: vec!["/bin/ls".to_owned(), "/".to_owned()],
            },
            json!({"action": "exec", "instance": 3, "command": ["/bin/ls", "/"]}),
        ),
        (
            Action::Upgrade {
                binary: "/usr/bin/inco".to_owned(),
                deadline_s: 10,
            },
            json!({"action": "upgrade", "binary": "/usr/bin/inco", "deadline_s": 10}),
        ),
        (
            Action::Stop { keep: true },
            json!({"action": "stop", "keep": true}),
        ),
    ];
    for (action, shape) in shapes {
        assert_eq!(serde_json::to_value(&action).unwrap(), shape);
        assert_eq!(shape["action"], action.name());
        assert_eq!(serde_json::from_value::<Action>(shape).unwrap(), action);
    }
    let absent: Action = serde_json::from_value(json!({"action": "scale", "service": "web"})).unwrap();
    assert_eq!(
        absent,
        Action::Scale {
            service: "web".to_owned(),
            instances: None
        }
    );
}

#[test]
fn a_status_has_these_fields() {
    let status = serde_json::to_value(Status::default()).unwrap();
    let mut fields: Vec<&str> = status.as_object().unwrap().keys().map(String::as_str).collect();
    fields.sort_unstable();
    assert_eq!(
        fields,
        [
            "accounting",
            "collector",
            "drops",
            "engine",
            "events",
            "file",
            "flow_limit",
            "live_flows",
            "pid",
            "reactions",
            "uplinks",
            "uptime_s",
            "version",
            "workers"
        ]
    );
    assert_eq!(
        status["accounting"],
        json!({"offered": 0, "returned": 0, "originated": 0, "delivered": 0, "dropped": 0, "in_flight": 0, "expected_moves": 0})
    );
}

#[test]
fn the_gap_is_what_no_counter_saw() {
    let closed = Accounting {
        offered: 100,
        originated: 5,
        delivered: 7,
        returned: 83,
        dropped: 12,
        in_flight: 3,
        expected_moves: 0,
    };
    assert_eq!(closed.gap(), 0);
    assert_eq!(
        Accounting {
            returned: 73,
            ..closed.clone()
        }
        .gap(),
        10
    );
    assert_eq!(
        Accounting {
            returned: 84,
            ..closed
        }
        .gap(),
        -1
    );
}

#[test]
fn only_reasons_with_packets_are_listed() {
    let mut counts = [0; DropReason::COUNT];
    counts[DropReason::Unmatched.index()] = 7;
    assert_eq!(
        serde_json::to_value(drops_by_reason(&counts)).unwrap(),
        json!({"unmatched": 7})
    );
}

#[test]
fn outcomes_are_short() {
    assert_eq!(
        serde_json::to_value(Outcome::new("a")).unwrap(),
        json!({"result": "a"})
    );
    let changed = Outcome {
        changes: vec![KeyChange {
            key: "service.web.fit".to_owned(),
            old: Some("0.9 (default)".to_owned()),
            new: None,
            needs_restart: false,
        }],
        ..Outcome::new("a")
    };
    assert_eq!(
        serde_json::to_value(changed).unwrap()["changes"],
        json!([{"key": "service.web.fit", "old": "0.9 (default)", "new": null, "needs_restart": false}])
    );
    assert_eq!(Refusal::new("a", "").to_string(), "a");
}

#[test]
fn a_filter_has_bounds() {
    assert_eq!(FlowFilter::default().limit(), FlowFilter::DEFAULT_LIMIT);
    assert_eq!(
        FlowFilter {
            limit: Some(u32::MAX),
            ..FlowFilter::default()
        }
        .limit(),
        FlowFilter::LIMIT
    );
}
