//! `inco explain autoscaler` and `placement`: the shapes of input and output, and what is said to a wrong one.

#![allow(clippy::panic, clippy::unwrap_used, reason = "a test fails by it")]

use std::io::Write as _;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

fn explain(arguments: &[&str], input: &str) -> Output {
    run("autoscaler", arguments, input)
}

fn run(what: &str, arguments: &[&str], input: &str) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_inco"))
        .args(["explain", what])
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

fn answer(case: &Value) -> Value {
    let output = explain(&["--input", "-", "--json"], &case.to_string());
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(
        output.status.success(),
        "{case}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    serde_json::from_str(&said).unwrap()
}

fn hpa() -> Value {
    json!({"policy":"hpa","replicas":3,
     "spec":{"min":1,"max":100,"tolerance":{"up":0.1,"down":0.1},
       "metrics":[{"kind":"utilization","target_percent":30}],
       "behavior":{"up":{"window_s":0,"select":"max",
       "policies":[{"type":"pods","value":4,"period_s":15},{"type":"percent","value":100,"period_s":15}]},
                   "down":{"window_s":300,"select":"max","policies":[{"type":"percent","value":100,"period_s":15}]}}},
     "instances":[{"state":"ready","usage":300,"request":1000},
       {"state":"unready","usage":500,"request":1000},{"state":"missing","request":1000}],
     "history":{"recommendations":[{"value":5,"age_s":60}],"changes":[{"change":4,"age_s":30}]}})
}

const HOST_AND_CARD: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../../examples/host-and-card.toml"
);

/// The example of host and card at a load.
fn placement(arguments: &[&str]) -> Output {
    let mut all = vec!["-f", HOST_AND_CARD];
    all.extend(arguments);
    run("placement", &all, "")
}

#[test]
fn placement_compares_host_card_and_both_by_a_model() {
    let at = |load: &str, goal: &str| -> Value {
        let output = placement(&["--load", load, "--goal", goal, "--json"]);
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let names = |answer: &Value| -> Vec<String> {
        let rows = answer["placements"].as_array().unwrap().iter();
        rows.map(|row| row["placement"].as_str().unwrap().to_owned())
            .collect()
    };
    let little = at("2kpps", "cpu");
    assert_eq!(little["model"], json!(true));
    assert_eq!(names(&little), ["auto", "split", "card", "host"]);
    // The first place has room: nothing is needed elsewhere.
    assert_eq!(little["choice"], "auto");
    assert_eq!(
        little["placements"][0]["parts"],
        json!([{"place":"card","pps":2000.0,"instances":1}])
    );
    // Beyond its cliff the card loses packets.
    let much = at("12kpps", "performance");
    let loss = |row: usize| much["placements"][row]["loss"][1].as_f64().unwrap();
    assert!(loss(2) > 0.4 && loss(0) == 0.0 && loss(3) == 0.0, "{much:#}");
    assert_ne!(much["choice"], "card");
    for row in much["placements"].as_array().unwrap() {
        for figure in ["throughput_pps", "loss", "latency_us", "watts"] {
            let [low, expected, high] = [0, 1, 2].map(|index| row[figure][index].as_f64().unwrap());
            assert!(low <= expected && expected <= high, "{figure}: {row}");
        }
    }
    let said = String::from_utf8(placement(&["--load", "12kpps"]).stdout).unwrap();
    assert!(
        said.starts_with("MODEL, not measured: forward with 12kpps"),
        "{said}"
    );
    assert!(said.contains("placement = \""), "{said}");
}

/// A line of the event log, or the case in it: the same decision.
#[test]
fn a_move_of_an_actor_is_decided_again() {
    let case = json!({
        "settings": {"overload_us": 1000.0, "busy": 0.9, "spare": 0.5, "hysteresis": 0.2,
                     "patience": 200_000_000, "settle": 2_000_000_000_u64, "pause": 500_000_000},
        "memory": {"over_since": 1_000_000_000},
        "observation": {"now": 1_300_000_000, "both_run": true, "card_cores": 1, "actors": [
            {"actor": "counter", "side": "card", "can_move": true, "load": 0.6, "rate": 100.0, "mean_us": 5000.0,
             "tail_us": 9000.0, "waiting": 3}]},
    });
    let event = json!({"sequence": 1, "at": 0, "unix_ms": 0, "service": "kv", "event": "actor", "actor": "counter",
                       "side": "card", "change": "move_begun", "reason": "", "case": case});
    for input in [&case, &event] {
        let output = run("actors", &["--input", "-", "--json"], &input.to_string());
        assert!(output.status.success(), "{output:?}");
        let said: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(
            (&said["move"]["actors"], &said["move"]["to"]),
            (&json!(["counter"]), &json!("host"))
        );
    }
    let said = run("actors", &["--input", "-"], &case.to_string());
    assert!(
        String::from_utf8_lossy(&said.stdout)
            .starts_with("counter to the host: push: the card's messages take 5000")
    );
    // The case above is one of before the length of mailboxes counted.
    let mut long = case.clone();
    long["settings"]["backlog"] = json!(2);
    long["memory"]["long_since"] = json!(1_000_000_000);
    let said = run("actors", &["--input", "-"], &long.to_string());
    assert!(
        String::from_utf8_lossy(&said.stdout)
            .starts_with("counter to the host: push: 3 messages wait for this one")
    );
    for (input, expected) in [
        ("{", "EOF"),
        (r#"{"event":"actor"}"#, "this event has no case"),
        (r#"{"settings":{}}"#, "missing field"),
    ] {
        let wrong = run("actors", &["--input", "-"], input);
        assert_eq!(wrong.status.code(), Some(2));
        let said = String::from_utf8_lossy(&wrong.stderr).into_owned();
        assert!(
            said.contains("standard input") && said.contains(expected),
            "{said}"
        );
    }
}

#[test]
fn a_change_of_groups_is_decided_again() {
    let seen = |actor: u32, name: &str, tails_us: [u64; 2], load_ppm: u64| {
        json!({"actor": actor, "name": name, "group": "fcfs", "samples": 100, "response_tail_ns": tails_us[0] * 1000,
               "service_tail_ns": tails_us[1] * 1000, "load_ppm": load_ppm})
    };
    let actors = [
        seen(0, "ranker", [4000, 2000], 500_000),
        seen(1, "counter", [900, 20], 200_000),
    ];
    let case = json!({"tail_threshold_ns": 200_000, "returns_below_ns": 180_000, "line_tail_ns": 900_000, "cores": 2,
                      "round_cores": 0, "actors": actors});
    let event = json!({"sequence": 1, "at": 0, "unix_ms": 0, "service": "kv", "event": "actor_side", "side": "card",
                       "change": "core_to_round", "reason": "", "case": case});
    for input in [&case, &event] {
        let output = run("actors", &["--input", "-", "--json"], &input.to_string());
        assert!(output.status.success(), "{output:?}");
        let said: Value = serde_json::from_slice(&output.stdout).unwrap();
        let changes = said["changes"].as_array().unwrap();
        assert_eq!(changes.len(), 2, "{said:#}");
        assert_eq!(
            (&changes[0]["actor"], &changes[0]["group"]),
            (&json!("ranker"), &json!("drr"))
        );
        assert_eq!(
            (&changes[1]["core"], &changes[1]["group"]),
            (&json!(1), &json!("drr"))
        );
    }
    let said = String::from_utf8(run("actors", &["--input", "-"], &case.to_string()).stdout).unwrap();
    let lines: Vec<&str> = said.lines().collect();
    assert!(
        lines.len() == 2
            && lines[0]
                .starts_with("ranker is served in turns: response times of the line have a tail of 900")
            && lines[1].starts_with("core 1 serves in turns: the 1 actors served in turns need 0.50 cores"),
        "{said}"
    );
    let mut calm = case.clone();
    calm["line_tail_ns"] = json!(100_000);
    let said = run("actors", &["--input", "-"], &calm.to_string());
    assert_eq!(
        String::from_utf8_lossy(&said.stdout),
        "no actor and no core changes\n"
    );
}

#[test]
fn a_line_of_the_event_log_gives_the_load_of_its_decision() {
    let event = json!({"sequence": 1, "at": 0, "unix_ms": 0, "service": "forward", "event": "relocated",
                       "from_place": "card", "to_place": "host", "policy": "inreal", "reason": "",
                       "case": {"policy": "inreal", "steps": [
                           {"now_ns": 1, "observation": {"offered_fast_pps": 1.0}},
                           {"now_ns": 2, "observation": {"offered_fast_pps": 12000.0}}]}});
    let at = |event: &Value| {
        run(
            "placement",
            &["-f", HOST_AND_CARD, "--event", "-"],
            &event.to_string(),
        )
    };
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let from_event = at(&event);
    assert!(from_event.status.success(), "{from_event:?}");
    let by_hand = placement(&["--load", "12kpps", "--service", "forward"]);
    assert_eq!(text(&from_event.stdout), text(&by_hand.stdout));
    for (event, expected) in [
        (
            json!({"service": "other", "case": event["case"]}),
            "write --service with one of forward",
        ),
        (
            json!({"service": "forward", "case": {"policy": "hpa"}}),
            "this event has no case with a load",
        ),
        (json!([]), "this is not one line of the event log"),
    ] {
        let wrong = at(&event);
        assert_eq!(wrong.status.code(), Some(2), "{wrong:?}");
        assert!(text(&wrong.stderr).contains(expected), "{wrong:?}");
    }
    assert_eq!(
        placement(&[]).status.code(),
        Some(2),
        "neither a load nor an event"
    );
}

#[test]
fn placement_says_what_is_missing() {
    let wrong = |arguments: &[&str]| {
        let output = placement(arguments);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let said = wrong(&["--load", "12kpps", "--service", "other"]);
    assert!(said.contains("write --service with one of forward"), "{said}");
    let said = wrong(&["--load", "much"]);
    assert!(said.contains("packet rate"), "{said}");
    let said = wrong(&["--load", "1kpps", "--goal", "beauty"]);
    assert!(said.contains("write performance, cpu or power"), "{said}");
}

#[test]
fn hpa_answers_with_its_own_names() {
    assert_eq!(
        answer(&hpa()),
        json!({"replicas":3,"proposal":3,"utilization_percent":30,"reason":"DesiredWithinRange"})
    );
    let mut case = hpa();
    case["instances"] = json!([{"state":"ready","usage":900,"request":1000}, {"state":"pending"}]);
    case["spec"]["behavior"] = Value::Null;
    // 90 % of one, with a pending one that counts as idle: it needs a request, too.
    assert_eq!(answer(&case)["error"], "FailedGetResourceMetric");
    case["instances"][1]["request"] = json!(1000);
    assert_eq!(
        answer(&case),
        json!({"replicas":3,"proposal":3,"utilization_percent":90,"reason":"DesiredWithinRange"})
    );
    case["instances"] = json!([{"state":"ready","usage":900,"request":1000}]);
    assert_eq!(answer(&case)["proposal"], 3);
    let limits = json!({"policy":"hpa","replicas":10,"desired":50,"spec":{"min":1,"max":1000}});
    assert_eq!(
        answer(&limits),
        json!({"replicas":20,"proposal":50,"utilization_percent":null,"reason":"ScaleUpLimit"})
    );
    for (metric, expected) in [
        (json!({"kind":"value","value":20000,"target":15000}), 4),
        (
            json!({"kind":"average_value","value":8600,"target_average":2150}),
            4,
        ),
    ] {
        let case = json!({"policy":"hpa","replicas":3,"spec":{"metrics":[metric],"behavior":null}});
        assert_eq!(answer(&case)["replicas"], expected);
    }
    let average = json!({"policy":"hpa","replicas":3,
        "spec":{"metrics":[{"kind":"instances_average","target_average":15000}]},
        "instances":[{"state":"ready","usage":20000},{"state":"ready","usage":10000},
            {"state":"ready","usage":30000}]});
    assert_eq!(answer(&average)["replicas"], 4);
    let failed =
        json!({"policy":"hpa","replicas":3,"spec":{"metrics":[{"kind":"error","message":"no answer"}]}});
    assert_eq!(
        answer(&failed),
        json!({"error":"FailedGetExternalMetric","message":"no answer"})
    );
}

#[test]
fn kpa_answers_step_by_step() {
    let case = json!({"policy":"kpa","spec":{"target":10,"total":13.3333,"target_burst_capacity":100,
        "panic_threshold":2,
        "max_scale_up_rate":10,"max_scale_down_rate":10,"stable_window_s":60,
        "scale_down_delay_s":0,"activation_scale":1,
        "reachable":true,"min":0,"max":0},
      "state":{"panicking_since_s":null,"max_panic":0},
      "steps":[{"at_s":0,"ready":1,"stable":50,"panic":50},{"at_s":2,"ready":5}]});
    assert_eq!(
        answer(&case),
        json!({"steps":[
            {"replicas":5,"excess_burst_capacity":-137,"panicking":true},
            {"replicas":null,"excess_burst_capacity":null,"panicking":true}]})
    );
}

#[test]
fn every_policy_takes_observations() {
    for (policy, replicas) in [("smartinco", 6), ("fixed", 3)] {
        let instance = |id: u32| {
            json!({"id":id,"slot":id,"state":"active","capacity_pps":1e6,"arrivals_fast_pps":1e6,
                "arrivals_stable_pps":1e6,
                "returns_fast_pps":1e6,"ring_drops_fast_pps":0.0,"ring_occupancy":0.0,"live_flows":1,
                "new_flows_fast_per_s":0.0,
                "busy":null,"cpu_quota":null})
        };
        let observation = json!({"service":0,"at":0,"counter_age":0,"min":1,"max":8,"wanted":3,"offered_fast_pps":3e6,
            "offered_stable_pps":3e6,"unserved_fast_pps":0.0,"hot":false,
            "instances":[instance(1),instance(2),instance(3)]});
        let case = json!({"policy":policy,"steps":[{"now_ns":1_000_000_000,"observation":observation}]});
        assert_eq!(answer(&case)["steps"][0]["replicas"], replicas, "{policy}");
    }
}

#[test]
fn text_has_the_decision_and_its_reason() {
    let output = explain(&["--input", "-"], &hpa().to_string());
    assert_eq!(
        String::from_utf8(output.stdout).unwrap(),
        "3 replicas: DesiredWithinRange (the metrics ask for 3; utilisation 30 %)\n"
    );
}

#[test]
fn an_invalid_input_names_its_field_with_exit_status_2() {
    let with = |path: &str, value: Value| {
        let mut case = hpa();
        *case.pointer_mut(path).unwrap() = value;
        case.to_string()
    };
    for (input, words) in [
        ("{".to_owned(), &["input", "line 1"][..]),
        ("[]".to_owned(), &["input", "object"]),
        ("{}".to_owned(), &["policy", "missing", "hpa"]),
        (r#"{"policy":"hpaa"}"#.to_owned(), &["policy", "hpaa", "kpa"]),
        (r#"{"policy":"hpa"}"#.to_owned(), &["replicas"]),
        (with("/replicas", json!(-1)), &["replicas", "-1"]),
        (with("/spec/metrics", json!([])), &["spec.metrics", "desired"]),
        (
            with("/spec/metrics/0/target_percent", json!(0)),
            &["spec.metrics[0].target_percent"],
        ),
        (
            with("/spec/metrics/0/target_percent", json!("30")),
            &["spec.metrics[0].target_percent", "a whole number"],
        ),
        (
            with("/spec/metrics/0", json!({"kind":"value","value":5})),
            &["spec.metrics[0]: ", "missing field `target`"],
        ),
        (
            with(
                "/spec/metrics/0",
                json!({"kind":"error","message":"x","target":5}),
            ),
            &["spec.metrics[0]: ", "no field `target`"],
        ),
        (
            with("/spec/metrics/0/kind", json!("mean")),
            &["spec.metrics[0].kind", "mean", "instances_average"],
        ),
        (with("/spec/max", json!(0)), &["spec.max"]),
        (
            with("/spec/behavior/up/select", json!("most")),
            &["spec.behavior.up.select", "most"],
        ),
        (
            with("/instances/1/state", json!("ill")),
            &["instances[1].state", "ill"],
        ),
        (
            with("/instances/0", json!({"state":"ready","usagee":1})),
            &["instances[0]", "usagee"],
        ),
        (
            with("/history/changes/0/age_s", json!(-5)),
            &["history.changes[0].age_s", "-5"],
        ),
        (
            r#"{"policy":"kpa","spec":{"target":0},"steps":[]}"#.to_owned(),
            &["spec.target"],
        ),
        (
            r#"{"policy":"kpa","steps":[{"ready":1}]}"#.to_owned(),
            &["steps[0]", "at_s"],
        ),
        (
            r#"{"policy":"kpa","steps":[{"at_s":0,"ready":1,"stable":5}]}"#.to_owned(),
            &["steps[0].panic", "missing"],
        ),
        (
            r#"{"policy":"kpa","state":{"max_panic":-1},"steps":[]}"#.to_owned(),
            &["state.max_panic", "-1 is below 0"],
        ),
        (with("/spec/behavior", json!(5)), &["spec.behavior", "an object"]),
        (with("/replicas", json!(1e300)), &["replicas", "a whole number"]),
        (
            r#"{"policy":"smartinco","spec":{"target":2},"steps":[]}"#.to_owned(),
            &["spec.target", "share"],
        ),
        (
            r#"{"policy":"smartinco","steps":[{"now_ns":1}]}"#.to_owned(),
            &["steps[0]", "observation"],
        ),
        // A list is not an object without a field, nor its fields in some order.
        (with("/spec", json!([])), &["spec: ", "an object"]),
        (with("/history", json!([])), &["history: ", "an object"]),
        (
            with("/instances/0", json!(["ready", 300, 1000])),
            &["instances[0]: ", "an object"],
        ),
        (
            r#"{"policy":"kpa","spec":[],"steps":[]}"#.to_owned(),
            &["spec: ", "an object"],
        ),
        (
            r#"{"policy":"ladder","spec":[],"steps":[]}"#.to_owned(),
            &["spec: ", "an object"],
        ),
        (
            r#"{"policy":"ladder","steps":[[0,{}]]}"#.to_owned(),
            &["steps[0]: ", "an object"],
        ),
        (
            r#"{"policy":"hpa","replicas":3,"replicas":4}"#.to_owned(),
            &["`replicas` is given twice"],
        ),
        (
            r#"{"policy":"kpa","steps":[{"at_s":0},{"at_s":0,"at_s":1}]}"#.to_owned(),
            &["`steps[1].at_s` is given twice"],
        ),
    ] {
        let output = explain(&["--input", "-", "--json"], &input);
        assert_eq!(output.status.code(), Some(2), "{input}");
        let said = String::from_utf8(output.stderr).unwrap();
        for word in words {
            assert!(said.contains(word), "{input}: {said}");
        }
    }
    let missing = explain(&["--input", "/nonexistent/case.json"], "");
    assert_eq!(missing.status.code(), Some(2));
}

#[test]
fn an_invalid_input_for_a_scheduler_names_its_field_with_exit_status_2() {
    let case = || {
        json!({"policy":"jbsq","parameters":{"lambda":0.5},
            "instances":[{"capacity":10,"load":4,"queues":[4,0,0,0,0,0,0,0]}, {"load":5}],
            "flows":[{"flow":"tcp 10.0.0.7:1000 > 10.128.0.1:443","dscp":46,"hash":"0x00f3a1"},
                "udp 10.0.0.8:1 > 10.128.0.1:53"]})
    };
    let right = run("scheduler", &["--input", "-", "--json"], &case().to_string());
    assert!(right.status.success(), "{right:?}");
    let with = |path: &str, value: Value| {
        let mut case = case();
        *case.pointer_mut(path).unwrap() = value;
        case.to_string()
    };
    for (input, words) in [
        ("{".to_owned(), &["line 1"][..]),
        ("[]".to_owned(), &["an object"]),
        (with("/policy", json!("jbsqq")), &["policy", "jbsqq", "maglev"]),
        (
            with("/instances/0/load", json!(-4)),
            &["instances[0].load", "-4 is below 0"],
        ),
        (
            with("/instances/0/capacity", json!(1e300)),
            &["instances[0].capacity", "below 3.4"],
        ),
        (
            with("/instances/0/queues/2", json!(-1)),
            &["instances[0].queues[2]", "-1"],
        ),
        (
            with("/instances/1", json!({"slot":0})),
            &["instances[1].slot", "twice"],
        ),
        (
            with("/flows/0/dscp", json!(-1)),
            &["flows[0].dscp", "a whole number"],
        ),
        (with("/flows/0/dscp", json!(64)), &["flows[0].dscp", "64"]),
        (with("/flows/0/hash", json!(5)), &["flows[0].hash", "string"]),
        (
            with("/flows/0", json!({"flow":"x","colour":1})),
            &["flows[0].colour", "unknown"],
        ),
        (with("/flows/1", json!(7)), &["flows[1]", "a flow as text"]),
        (
            with("/flows/1", json!("x")),
            &["flows[1].flow", "tcp 10.0.0.1:1000"],
        ),
        (with("/instances/1", json!([])), &["instances[1]: ", "an object"]),
        (
            with("/parameters/lambda", json!("half")),
            &["parameters.lambda", "half", "a number"],
        ),
        (
            with("/parameters", json!({"bound":5,"lamda":1})),
            &["parameters.lamda", "lamda"],
        ),
        (
            r#"{"policy":"rss","instances":[{}],"flows":[],"policy":"jbsq"}"#.to_owned(),
            &["`policy` is given twice"],
        ),
    ] {
        let output = run("scheduler", &["--input", "-", "--json"], &input);
        assert_eq!(output.status.code(), Some(2), "{input}");
        let said = String::from_utf8(output.stderr).unwrap();
        for word in words {
            assert!(said.contains(word), "{input}: {said}");
        }
    }
}
