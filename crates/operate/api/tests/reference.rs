//! What others build on is written down, and what is written down is true: the OpenAPI description, the list of
//! metrics, alert rules and dashboard. `INCO_WRITE_REFERENCE=1` writes the references anew.

#![allow(clippy::panic, clippy::unwrap_used, reason = "a test fails by it")]

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use api::counters::{
    ActionCount, ActorCounters, ActorSideCounters, ApiCounters, Counters, EngineCounters, FunctionCounters,
    InstanceCounters, ResumedCounters, ServiceCounters, SpanCounts, UplinkCounters, WorkerCounters,
};
use api::{Format, encode, openapi};
use model::{DropReason, EventKind, Histogram, Nanos};
use real_parts::available;
use serde_json::Value;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..")
}

fn is_written(file: &str, text: &str) {
    let path = root().join("docs/reference").join(file);
    if std::env::var_os("INCO_WRITE_REFERENCE").is_some() {
        std::fs::write(&path, text).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        written == text,
        "docs/reference/{file} is out of date: INCO_WRITE_REFERENCE=1 cargo test -p api --test reference"
    );
}

/// Whether that program is here; where it is not and must be, this fails.
fn has(program: &str) -> bool {
    if Command::new(program)
        .arg("--version")
        .output()
        .is_ok_and(|output| output.status.success())
    {
        return true;
    }
    available("prometheus", Some(format!("there is no {program}")))
}

fn spans() -> SpanCounts {
    let mut histogram = Histogram::default();
    histogram.note(Nanos::from_millis(3));
    SpanCounts::from(&histogram)
}

/// Counters in which every family has a sample.
fn full() -> Counters {
    let named = |names: &[&str]| {
        names
            .iter()
            .map(|name| ((*name).to_owned(), 1))
            .collect::<BTreeMap<_, u64>>()
    };
    Counters {
        version: "0.1.0".to_owned(),
        start_unix_s: 1.7e9,
        uplinks: vec![UplinkCounters {
            name: "wan".to_owned(),
            up: true,
            received_packets: 12,
            ..UplinkCounters::default()
        }],
        services: vec![ServiceCounters {
            name: "web\"\\\n".to_owned(),
            states: [("active".to_owned(), 3)].into(),
            utilisation: Some(0.5),
            capacity_pps: Some(1e6),
            jain: Some(0.9),
            max_min: Some(1.5),
            held_back: [("pause_in".to_owned(), true)].into(),
            decisions: named(&["out"]),
            scheduler: "best-fit".to_owned(),
            autoscaler: "ladder".to_owned(),
            ..ServiceCounters::default()
        }],
        instances: vec![InstanceCounters {
            id: 3,
            service: "web".to_owned(),
            state: "active".to_owned(),
            drops: named(&["ring_full"]),
            cpu_s: Some(2.5),
            busy_s: Some(1.5),
            gap_s: Some(1e-4),
            ring_wait_p50_s: Some(1e-5),
            ring_wait_p99_s: Some(1e-3),
            function_p50_s: Some(1e-6),
            function_p99_s: Some(1e-5),
            watts: Some(3.5),
            model_watts: Some(3.0),
            model_watts_low: Some(1.0),
            model_watts_high: Some(5.0),
            memory_bytes: Some(1 << 20),
            cpu_quota: Some(0.1),
            utilisation: Some(0.25),
            ..InstanceCounters::default()
        }],
        functions: vec![FunctionCounters {
            instance: 3,
            service: "web".to_owned(),
            name: "firewall".to_owned(),
            drops: named(&["denied"]),
            totals: named(&["cache_hits"]),
            gauges: named(&["cached_flows"]),
            ..FunctionCounters::default()
        }],
        actors: vec![ActorCounters {
            service: "kv".to_owned(),
            actor: "counter".to_owned(),
            ..ActorCounters::default()
        }],
        actor_sides: vec![ActorSideCounters {
            service: "kv".to_owned(),
            side: "card".to_owned(),
            ..ActorSideCounters::default()
        }],
        workers: vec![WorkerCounters::default()],
        drops: DropReason::ALL
            .iter()
            .map(|reason| (reason.name().to_owned(), 1))
            .collect(),
        reactions: [("detect".to_owned(), spans())].into(),
        engine: EngineCounters {
            driver: "oci".to_owned(),
            up: true,
            calls: [("create".to_owned(), spans())].into(),
            failures: named(&["create"]),
        },
        signals: api::counters::SignalCounters {
            accepted: named(&["wake"]),
            refused: named(&["replayed"]),
        },
        reports: api::counters::ReportCounters {
            sent: named(&["192.0.2.1:4790"]),
            failed: named(&["192.0.2.1:4790"]),
            accepted: named(&["1"]),
            age_s: [("1".to_owned(), 0.005)].into(),
            refused: named(&["wrong_tag"]),
            answered: 1,
        },
        events: named(EventKind::NAMES),
        actions: vec![ActionCount {
            action: "drain".to_owned(),
            refused: true,
            count: 1,
        }],
        resumed: ResumedCounters {
            repaired: named(&["redone"]),
            rejected: named(&["malformed"]),
            ..ResumedCounters::default()
        },
        api: ApiCounters {
            requests: [(200, 7)].into(),
            connections: named(&["unix"]),
            dropped_connections: 0,
        },
        control: api::counters::ControlCounters {
            lag: spans(),
            ..Default::default()
        },
        ..Counters::default()
    }
}

#[test]
fn the_api_is_described_as_it_is() {
    let text = openapi();
    let description: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(description["openapi"], "3.1.0");
    // What is referred to is there.
    let mut pending = vec![&description];
    while let Some(value) = pending.pop() {
        match value {
            Value::Object(fields) => {
                if let Some(name) = fields.get("$ref").and_then(Value::as_str) {
                    let path = name.strip_prefix('#').unwrap();
                    assert!(description.pointer(path).is_some(), "{name} is not there");
                }
                pending.extend(fields.values());
            }
            Value::Array(items) => pending.extend(items),
            _ => {}
        }
    }
    is_written("openapi.json", &format!("{text}\n"));
}

/// A family as the text has it: name, type, help and the names of its labels.
type Family = (String, String, String, BTreeSet<String>);

fn families(text: &str) -> Vec<Family> {
    let mut all: Vec<Family> = Vec::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').unwrap();
            all.push((name.to_owned(), String::new(), help.to_owned(), BTreeSet::new()));
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let family = all.last_mut().unwrap();
            family.1 = rest.split_once(' ').unwrap().1.to_owned();
        } else if let Some((_, labels)) = line.split_once('{') {
            let family = all.last_mut().unwrap();
            let names = labels
                .split("=\"")
                .filter_map(|part| part.rsplit(['"', ',']).next());
            let names = names.filter(|name| name.chars().all(|c| c.is_ascii_lowercase() || c == '_'));
            family
                .3
                .extend(names.filter(|name| !name.is_empty()).map(str::to_owned));
        }
    }
    all
}

#[test]
fn metrics_are_listed_as_they_are() {
    let mut text = String::from(
        "# Metrics\n\nWhat `/metrics` tells, in the text formats of Prometheus and OpenMetrics. Written by a test \
         from the code: change it there. Each scrape reads counters that the control loop has anyway; no worker \
         notices. How to scrape it: [deploy/prometheus](../../deploy/prometheus/scrape.yml); alerts and a dashboard \
         are beside it.\n\n`instance_id` is the id of an instance; `instance` is Prometheus' word for the target \
         that it scrapes. Counters of an instance end with it; those of its service go on. With `[[place]]`, the \
         counters and gauges of an instance have the label `place`, too.\n\n\
         | metric | type | labels | |\n| --- | --- | --- | --- |\n",
    );
    for (name, kind, help, labels) in families(&encode(full(), Format::Prometheus)) {
        let labels: Vec<String> = labels.iter().map(|label| format!("`{label}`")).collect();
        writeln!(text, "| `{name}` | {kind} | {} | {help} |", labels.join(", ")).unwrap();
    }
    is_written("metrics.md", &text);
}

#[test]
fn names_follow_the_conventions() {
    for (name, kind, help, labels) in families(&encode(full(), Format::Prometheus)) {
        assert!(name.starts_with("inco_"), "{name}");
        assert!(!help.is_empty(), "{name} has no help");
        assert_eq!(name.ends_with("_total"), kind == "counter", "{name} is a {kind}");
        for unit in ["ms", "us", "ns", "milliseconds", "kb", "percent"] {
            assert!(
                !name.split('_').any(|word| word == unit),
                "{name} is not in a base unit"
            );
        }
        for label in ["flow", "src", "dst", "address", "container", "pid"] {
            assert!(!labels.contains(label), "{name} has a label without bound");
        }
    }
}

#[test]
fn both_formats_say_the_same() {
    let samples = |format| {
        let text = encode(full(), format);
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(samples(Format::Prometheus), samples(Format::OpenMetrics));
    assert!(encode(full(), Format::OpenMetrics).ends_with("# EOF\n"));
    // A name is escaped, so that it cannot add metrics.
    let text = encode(full(), Format::Prometheus);
    assert!(text.contains("service=\"web\\\"\\\\\\n\""), "{text}");
    // A histogram's buckets add up.
    assert!(
        text.contains("inco_reaction_seconds_bucket{le=\"0.0025\",reaction=\"detect\"} 0"),
        "{text}"
    );
    assert!(
        text.contains("inco_reaction_seconds_bucket{le=\"0.005\",reaction=\"detect\"} 1"),
        "{text}"
    );
    assert!(
        text.contains("inco_reaction_seconds_bucket{le=\"+Inf\",reaction=\"detect\"} 1"),
        "{text}"
    );
}

#[test]
fn promtool_accepts_metrics_and_alerts() {
    if !has("promtool") {
        return;
    }
    let mut check = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let text = encode(full(), Format::Prometheus);
    check.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = check.wait_with_output().unwrap();
    let said =
        String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.trim().is_empty(), "{said}");
    for arguments in [
        ["check", "rules", "inco.rules.yml"],
        ["test", "rules", "inco.rules.test.yml"],
    ] {
        let output = Command::new("promtool")
            .args(arguments)
            .current_dir(root().join("deploy/prometheus"))
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "{arguments:?}: {}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
    }
}

#[test]
fn alerts_and_dashboard_use_metrics_that_there_are() {
    let known: BTreeSet<String> = families(&encode(full(), Format::Prometheus))
        .into_iter()
        .flat_map(|(name, kind, ..)| match kind.as_str() {
            "histogram" => ["_bucket", "_sum", "_count"]
                .map(|suffix| format!("{name}{suffix}"))
                .to_vec(),
            _ => vec![name],
        })
        .collect();
    let mut used = 0;
    let mut check = |file: &str, text: &str| {
        let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
        for word in words.filter(|word| word.starts_with("inco_")) {
            assert!(known.contains(word), "{file}: there is no metric {word}");
            used += 1;
        }
    };
    let rules = std::fs::read_to_string(root().join("deploy/prometheus/inco.rules.yml")).unwrap();
    check("inco.rules.yml", &rules);
    let alerts: Vec<&str> = rules
        .lines()
        .filter_map(|line| line.trim().strip_prefix("- alert: "))
        .collect();
    assert!(alerts.len() > 10, "{alerts:?}");
    let operating = std::fs::read_to_string(root().join("docs/operating.md")).unwrap();
    for alert in alerts {
        let row = format!("| `{alert}` | ");
        assert!(
            operating.contains(&row),
            "docs/operating.md does not say what to do about {alert}"
        );
    }
    let dashboard = std::fs::read_to_string(root().join("deploy/grafana/inco.json")).unwrap();
    let dashboard: Value = serde_json::from_str(&dashboard).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    assert!(panels.len() > 10);
    for target in panels
        .iter()
        .flat_map(|panel| panel["targets"].as_array().unwrap())
    {
        check("inco.json", target["expr"].as_str().unwrap());
    }
    check("inco.json", &dashboard["templating"].to_string());
    check("inco.json", &dashboard["annotations"].to_string());
    assert!(used > 30, "{used}");
}

/// The first lines of a description in one.
fn described(schema: &Value) -> String {
    schema["description"]
        .as_str()
        .unwrap_or_default()
        .replace('\n', " ")
}

#[test]
fn events_are_listed_as_they_are() {
    let description: Value = serde_json::from_str(&openapi()).unwrap();
    let kinds = description["components"]["schemas"]["EventKind"]["oneOf"]
        .as_array()
        .unwrap();
    let mut text = String::from(
        "# Events\n\nWhat `inco events`, `/v1/events`, `/v1/stream` and the files of the event log tell: an object \
         of JSON for each event. Written by a test from the code: change it there. Each has `sequence` (counts \
         from 1; the next run goes on after the last one in the files), `at` (monotonic time, in nanoseconds), \
         `unix_ms` (milliseconds since 1970), `service` and `instance` where it is about one, and `event` with what \
         follows.\n",
    );
    let mut names = Vec::new();
    for kind in kinds {
        let fields = kind["properties"].as_object().unwrap();
        let name = fields["event"]["enum"][0].as_str().unwrap();
        names.push(name);
        writeln!(text, "\n## `{name}`\n{}\n", described(kind)).unwrap();
        for (field, schema) in fields.iter().filter(|(field, _)| *field != "event") {
            writeln!(text, "- `{field}`: {}", described(schema)).unwrap();
        }
    }
    assert_eq!(names, EventKind::NAMES);
    is_written("events.md", &text);
}

#[test]
fn drop_reasons_are_listed_as_they_are() {
    let mut text = String::from(
        "# Drop reasons\n\nThe `reason` of `inco_dropped_packets_total`, and of `drops` in `inco status` and the \
         API. Written by a test from the code: change it there. Each dropped packet has one.\n\n\
         | reason | the packet |\n| --- | --- |\n",
    );
    for reason in DropReason::ALL {
        writeln!(text, "| `{}` | {} |", reason.name(), reason.text()).unwrap();
    }
    is_written("drops.md", &text);
}

#[test]
fn the_page_has_a_sentence_for_each_event() {
    let page = include_str!("../page/page.js");
    let has_none = |kind: &&&str| !page.contains(&format!("case \"{kind}\":"));
    let missing: Vec<_> = EventKind::NAMES.iter().filter(has_none).collect();
    assert!(missing.is_empty(), "page.js has no case for {missing:?}");
}
