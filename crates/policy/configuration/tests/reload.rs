//! What a reload may change.

#![allow(clippy::panic, reason = "a test fails by it")]

use configuration::{Configuration, parse};

const SOFT: &str = r#"[switch]
flows = "64k"
[[uplink]]
name = "wan"
device = "memif:wan.sock"
[service.a]
image = "inco/forward"
scheduler = { policy = "rss", metric = "flows", limit = 10 }
instances = 2
match = { dst = "10.0.0.0/8" }
"#;

fn good(text: &str) -> Configuration {
    parse(text, "f").unwrap_or_else(|problems| panic!("{problems:?}\n{text}"))
}

/// What is refused of the configuration with `from` replaced by `to`.
fn refused(text: &str, from: &str, to: &str) -> Vec<String> {
    assert!(text.contains(from), "{from}");
    good(text).fixed_in(&good(&text.replace(from, to)))
}

#[test]
fn keys_that_need_a_restart_are_told_by_name() {
    for (from, to, keys) in [
        (
            "flows = \"64k\"",
            "flows = \"1M\"\nflows_ipv6 = \"16k\"",
            &["switch.flows"][..],
        ),
        (
            "[[uplink]]",
            "timeouts = { udp = \"3s\", other = \"2m\" }\n[[uplink]]",
            &["switch.timeouts.udp"],
        ),
        ("wan.sock", "lan.sock", &["uplink"]),
        ("image", "symmetric = false\nimage", &["service.a.symmetric"]),
        (
            "image",
            "flow_counters = true\nimage",
            &["service.a.flow_counters"],
        ),
        ("image", "affinity = \"relaxed\"\nimage", &["service.a.affinity"]),
        (
            "[service.a]",
            "[service.b]",
            &["service.a (it is not there any more)"],
        ),
        (
            "[service.a]",
            "[api]\nsocket = \"/tmp/s\"\n[event_log]\nfiles = 9\n[service.a]",
            &["api.socket", "event_log.files"],
        ),
        (
            "[service.a]",
            "[service.b]\nimage = \"b\"\nflow_counters = true\nmatch = { dst = \"11.0.0.0/8\" }\n[service.a]",
            &["service.b.flow_counters"],
        ),
        // A default that is written changes nothing.
        ("image", "port = \"memif\"\nqueues = 1\nimage", &[]),
        ("10.0.0.0/8", "10.1.0.0/16", &[]),
        ("[switch]", "[switch]\nother = \"wan\"", &[]),
        (
            "[service.a]",
            "[service.b]\nimage = \"b\"\nmatch = { dst = \"11.0.0.0/8\" }\n[service.a]",
            &[],
        ),
    ] {
        assert_eq!(refused(SOFT, from, to), keys, "{to}");
    }
}

#[test]
fn a_switch_of_rules_keeps_what_its_rules_were_made_of() {
    let rules = SOFT
        .replace("[switch]", "[switch]\ndriver = \"openflow\"")
        .replace("image", "symmetric = false\nimage");
    assert_eq!(
        refused(&rules, "10.0.0.0/8", "10.1.0.0/16"),
        ["service.a.match.dst"]
    );
    assert_eq!(refused(&rules, "image", "fit = 0.5\nimage"), ["service.a.fit"]);
    let more = "[service.b]\nsymmetric = false\nimage = \"b\"\nmatch = { dst = \"11.0.0.0/8\" }\n[service.a]";
    assert_eq!(refused(&rules, "[service.a]", more), ["service.b (it is new)"]);
}

#[test]
fn once_the_table_counts_returns_other_services_may_ask_for_it() {
    let two = format!(
        "{SOFT}[service.b]\nflow_counters = true\nimage = \"b\"\nmatch = {{ dst = \"11.0.0.0/8\" }}\n"
    );
    let none: [&str; 0] = [];
    assert_eq!(
        refused(&two, "[service.a]", "[service.a]\nflow_counters = true"),
        none
    );
}

#[test]
fn a_service_that_changed_says_what_did() {
    let old = good(SOFT);
    let changes =
        |from: &str, to: &str, key: &str| old.changes_service(&good(&SOFT.replace(from, to)), "a", key);
    assert!(!changes(
        "instances = 2",
        "instances = { min = 2, max = 2, standby = 0 }",
        ""
    ));
    assert!(changes("instances = 2", "instances = 3", ""));
    assert!(!changes("instances = 2", "instances = 3", "scheduler"));
    // A limit belongs to its scheduler.
    assert!(changes("limit = 10", "limit = 11", "scheduler"));
    assert!(!changes(
        "policy = \"rss\"",
        "policy = \"rss\", spill = true",
        "scheduler"
    ));
    assert!(changes(
        "image",
        "autoscaler = { target = 0.5 }\nimage",
        "autoscaler"
    ));
    assert!(!changes("image", "autoscaler = \"ladder\"\nimage", ""));
}
