//! The changes that a reload may make.

#![allow(clippy::panic, reason = "a test fails by it")]

use std::collections::BTreeSet;

use configuration::{Configuration, KEYS, Reload};
use drivers::parse;
use model::KeyChange;

mod drivers;

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

/// The changes after `from` is replaced by `to`.
fn changes(text: &str, from: &str, to: &str) -> Vec<KeyChange> {
    assert!(text.contains(from), "{from}");
    good(text).changes_to(&good(&text.replace(from, to)))
}

/// The refusals after `from` is replaced by `to`.
fn refused(text: &str, from: &str, to: &str) -> Vec<String> {
    let fixed = changes(text, from, to)
        .into_iter()
        .filter(|change| change.needs_restart);
    fixed.map(|change| change.key).collect()
}

#[test]
fn each_key_is_reported_with_its_old_and_new_value() {
    for (from, to, told) in [
        (
            "instances = 2",
            "instances = { min = 2, max = 0x4 }\nfit = 0.7",
            &[
                "service.a.fit: 0.8 (default) -> 0.7",
                "service.a.instances: 2 -> { max = 0x4, min = 2 }",
            ][..],
        ),
        // Another notation, or the default written out: no change.
        ("instances = 2", "instances = 0b10\nfit = \"80%\"", &[]),
        (
            "instances = 2",
            "command = [\"/a\", \"-b\"]\nenv = { LEVEL = \"info\" }\nready_deadline = \"1m\"",
            &[
                "service.a.command: [] (default) -> [\"/a\", \"-b\"]",
                "service.a.env: {} (default) -> { LEVEL = \"info\" }",
                "service.a.instances: 2 -> the defaults of its keys (default)",
                "service.a.ready_deadline: \"10s\" (default) -> \"1m\"",
            ],
        ),
        // A default that depends on another key is reported with its value.
        (
            "\"64k\"",
            "\"128k\"",
            &[
                "switch.flows: \"64k\" -> \"128k\"",
                "switch.flows_ipv6: 16000 -> 32000",
            ],
        ),
        (
            "[service.a]",
            "[service.b]\nimage = \"b\"\nmatch = { dst = \"11.0.0.0/8\" }\n[service.a]",
            &[
                "service.b: absent -> a service",
                "service.b.image: absent -> \"b\"",
                "service.b.match.dst: absent -> \"11.0.0.0/8\"",
            ],
        ),
        (
            "[service.a]",
            "[service.a]\nmemory = \"1GiB\"",
            &["service.a.memory: \"512MiB\" (default) -> \"1GiB\""],
        ),
    ] {
        let changes: Vec<String> = changes(SOFT, from, to).iter().map(ToString::to_string).collect();
        assert_eq!(changes, told, "{to}");
    }
}

#[test]
fn the_settings_of_a_service_are_shown_without_its_secrets() {
    let text = format!("{SOFT}env = {{ TOKEN = \"s3cret\", LEVEL = \"info\" }}\n")
        .replace("match = { dst = \"10.0.0.0/8\" }\n", "");
    let configuration = good(&text.replace(
        "[service.a]",
        "[service.ab]\nimage = \"x\"\nmatch = { vlan = 7 }\n[service.a]",
    ));
    let (_, service) = configuration.service("a").unwrap_or_else(|| panic!("no a"));
    let settings = configuration.settings_of(service);
    let of = |key: &str| {
        let found = settings.iter().find(|setting| setting.key == key);
        found.map(|setting| (setting.value.as_str(), setting.is_written))
    };
    assert_eq!(of("instances"), Some(("2", true)));
    assert_eq!(of("fit"), Some(("0.8", false)));
    assert_eq!(of("match.vlan"), Some(("any", false)));
    assert_eq!(of("env"), Some(("LEVEL, TOKEN (values are not shown)", true)));
    assert!(settings.iter().all(|setting| !setting.value.contains("s3cret")));
}

#[test]
fn keys_that_need_a_restart_are_reported_by_name() {
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
        ("[service.a]", "[service.b]", &["service.a"]),
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
        // Writing a default changes nothing.
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
    assert_eq!(refused(&rules, "[service.a]", more), ["service.b"]);
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
fn a_changed_service_lists_its_changed_keys() {
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
    // The limit belongs to its scheduler.
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

#[test]
fn a_chain_begins_and_ends_by_a_reload() {
    let text = format!("{SOFT}[service.b]\nimage = \"x\"\nmatch = {{ dst = \"11.0.0.0/8\" }}\n");
    let matches = "[service.b]\nimage = \"x\"\nmatch = { dst = \"11.0.0.0/8\" }\n";
    let chained = "next = \"b\"\n[service.b]\nimage = \"x\"\n";
    assert_eq!(refused(&text, matches, chained), Vec::<String>::new());
    let keys: Vec<String> = changes(&text, matches, chained)
        .into_iter()
        .map(|of| of.key)
        .collect();
    assert!(keys.contains(&"service.a.next".to_owned()), "{keys:?}");
    let chain = text.replace(matches, chained);
    assert_eq!(refused(&chain, chained, matches), Vec::<String>::new());
}

/// The services of which other instances are made, after `from` is replaced by `to`.
fn rolled_out(text: &str, from: &str, to: &str) -> Vec<String> {
    assert!(text.contains(from), "{from}");
    let new = good(&text.replace(from, to));
    let services = good(text);
    let services = services.services_to_roll_out(&new);
    services.into_iter().map(str::to_owned).collect()
}

#[test]
fn instances_that_are_there_are_others_than_new_ones_after_some_changes_only() {
    let text = format!("{SOFT}[service.b]\nimage = \"x\"\nmatch = {{ dst = \"11.0.0.0/8\" }}\n");
    for (from, to, expected) in [
        ("inco/forward", "inco/forward:2", &["a"][..]),
        (
            "image = \"x\"",
            "image = \"x\"\nenv = { LEVEL = \"info\" }\ncpus = 0.5",
            &["b"],
        ),
        ("image = \"x\"", "image = \"x\"\nring = { slots = 2048 }", &["b"]),
        ("image = \"x\"", "image = \"x\"\nport = \"frames\"", &["b"]),
        // The default, written out.
        ("image = \"x\"", "image = \"x\"\nmemory = \"512MiB\"", &[]),
        (
            "instances = 2",
            "instances = 3\nfit = 0.5\ndrain_deadline = \"1s\"",
            &[],
        ),
        // A new service, and one that goes.
        ("[service.b]", "[service.c]", &[]),
    ] {
        assert_eq!(rolled_out(&text, from, to), expected, "{to}");
    }
}

/// docs/operating.md lists the keys that hold for new instances.
#[test]
fn the_keys_of_new_instances_are_those_that_the_page_lists() {
    let page = include_str!("../../../../docs/operating.md");
    let row = page
        .lines()
        .find_map(|line| line.strip_prefix("| for new instances: "));
    let row = row.unwrap_or_else(|| panic!("docs/operating.md has no row of new instances"));
    let listed: BTreeSet<&str> = row.split('`').skip(1).step_by(2).collect();
    let of_instances = KEYS.iter().filter(|key| key.reload == Reload::Instances);
    let named = of_instances.map(|key| match key.table {
        "service.NAME" => key.name,
        table => table.trim_start_matches("service.NAME."),
    });
    assert_eq!(named.collect::<BTreeSet<_>>(), listed);
}
