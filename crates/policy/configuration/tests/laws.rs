//! Properties that hold for every text.

#![allow(clippy::panic, reason = "a test fails by it")]

use configuration::{KEYS, KeyDefault, Problem, reference};
use drivers::parse;
use proptest::prelude::*;

mod drivers;

const FULL: &str = r#"[switch]
driver = "soft"
workers = [0, 1]
poll = "busy"
flows = "1M"
timeouts = { tcp = "5m", tcp_linger = "1s" }
unmatched = "wan"
hugepages = "off"
[[uplink]]
name = "wan"
device = "memif:wan.sock"
queues = 2
max_frame = 1522
[[uplink]]
name = "lan"
device = "veth:eth1"
[service.firewall]
match = { proto = "tcp", src = "0.0.0.0/0", dst = "10.128.0.0/16", dst_port = "80-443", vlan = 3 }
uplinks = ["wan", "lan"]
image = "inco/firewall:latest"
command = ["inco-nf", "firewall"]
env = { A = "b" }
mounts = ["/etc/rules:/etc/rules:ro"]
memory = "64MiB"
cpuset = "0-1"
capabilities = ["CHOWN", "KILL"]
ready = { exec = ["/bin/check"] }
instances = { min = 3, max = 8, standby = 1, standby_mode = "paused" }
cpus = 0.5
capacity = "10Mpps"
autoscaler = { policy = "smartinco", target = 0.7, window = "1s" }
ring = { slots = 512, buffer_bytes = 2048 }
[engine]
driver = "docker"
[api]
socket = "/run/inco/api.sock"
"#;

fn sound(text: &str, problems: &[Problem]) -> Result<(), TestCaseError> {
    let lines = text.split('\n').count();
    prop_assert!(!problems.is_empty());
    prop_assert!(problems.is_sorted_by_key(|problem| problem.line));
    for problem in problems {
        prop_assert!(
            problem.line >= 1 && problem.line <= lines,
            "{problem} of {lines} lines"
        );
        prop_assert!(problem.column >= 1);
        prop_assert!(
            !problem.what.is_empty() && !problem.write.is_empty(),
            "{problem:?}"
        );
    }
    Ok(())
}

proptest! {
    #[test]
    fn no_text_panics(text in "\\PC{0,200}") {
        if let Err(problems) = parse(&text, "f") {
            sound(&text, &problems)?;
        }
    }

    #[test]
    fn no_change_to_a_valid_file_panics(
        cuts in proptest::collection::vec((any::<prop::sample::Index>(), 0usize..12,
        "[\\[\\]{}=\",.\n0-9a-z_\u{e9} -]{0,6}"), 1..5),
    ) {
        let mut text = FULL.to_owned();
        for (at, length, with) in cuts {
            let characters: Vec<usize> = text.char_indices().map(|(at, _)| at).collect();
            let first = at.index(characters.len());
            let start = characters[first];
            let end = characters.get(first + length).copied().unwrap_or(text.len());
            text.replace_range(start..end, &with);
            if text.is_empty() {
                break;
            }
        }
        if let Err(problems) = parse(&text, "f") {
            sound(&text, &problems)?;
        }
    }

    #[test]
    fn no_value_of_a_known_key_panics(
        key in 0..KEYS.len(),
        value in prop_oneof![
            Just("[]".to_owned()), Just("{}".to_owned()), Just("true".to_owned()), Just("1979-05-27".to_owned()),
            Just("\"\"".to_owned()), Just("nan".to_owned()), Just("-inf".to_owned()), Just("[[1], {a = 2}]".to_owned()),
            Just("'\u{0}'".to_owned()), any::<i64>().prop_map(|n| n.to_string()), any::<f64>().prop_map(|n| format!("{n:e}")),
            "[a-z0-9:/.,-]{0,12}".prop_map(|text| format!("{text:?}")),
            (0usize..KEYS.len()).prop_map(|other| KEYS[other].example.to_owned()),
        ],
    ) {
        let key = &KEYS[key];
        let text = with_key(key.table, key.name, &value);
        if let Err(problems) = parse(&text, "f") {
            sound(&text, &problems)?;
        }
    }
}

/// A short configuration with that value for the key.
fn with_key(table: &str, name: &str, value: &str) -> String {
    let uplink = "name = \"wan\"\ndevice = \"memif:wan.sock\"\n";
    // A rule-based switch requires a match that distinguishes directions, or services that need no distinction.
    let for_rules = ["switch.openflow", "service.NAME.devices[]"].contains(&table)
        || (table, name) == ("switch", "openflow")
        || (table, name) == ("service.NAME", "devices") && value != "[]";
    let service = match for_rules {
        true if name == "devices" => {
            "image = \"inco/forward\"\nsymmetric = false\nport = \"device\"\ninstances = 1\n"
        }
        true => "image = \"inco/forward\"\nsymmetric = false\n",
        false => "image = \"inco/forward\"\n",
    };
    let without = |keys: &str| -> String {
        keys.lines()
            .filter(|line| !line.starts_with(&format!("{name} =")))
            .map(|line| format!("{line}\n"))
            .collect()
    };
    let line = format!("{name} = {value}\n");
    let mut text = String::new();
    if table.is_empty() {
        // A table's heading, or a value.
        if value.is_empty() {
            return format!("[[uplink]]\n{uplink}[service.a]\n{service}");
        }
        text.push_str(&line);
    }
    match table {
        "uplink[]" => text.push_str(&format!("[[uplink]]\n{}{line}", without(uplink))),
        _ if table.is_empty() && name == "uplink" => {}
        _ => text.push_str(&format!("[[uplink]]\n{uplink}")),
    }
    match table {
        "service.NAME" => text.push_str(&format!("[service.a]\n{}{line}", without(service))),
        _ if table.is_empty() && name == "service" => {}
        _ => text.push_str(&format!("[service.a]\n{service}")),
    }
    match table {
        "service.NAME" if name == "vip" => text = for_the_kernel(&text, ""),
        "service.NAME" if name == "affinity_key" => text = for_the_kernel(&format!("{text}{VIP}"), ""),
        "service.NAME.vip" => {
            let others = without("address = \"10.0.0.100\"\nports = 80\nmode = \"dnat\"\n");
            text = for_the_kernel(
                &format!("{text}[service.a.vip]\n{others}{line}"),
                "ebpf = { instance_addresses = [\"10.0.0.128/25\", \"2001:db8:1::/64\"] }\n",
            );
        }
        "service.NAME.at.PLACE" => {
            text.push_str(&format!(
                "[service.a.at.host]\n{line}[[place]]\nname = \"host\"\n"
            ));
        }
        "service.NAME" if ["health", "agent"].contains(&name) => {
            text = for_the_kernel(&format!("{text}{VIP}"), "");
        }
        "service.NAME" if name == "swarm" => text = in_swarm(&text, ""),
        "service.NAME.swarm" => text = in_swarm(&text, &format!("[service.a.swarm]\n{line}")),
        "service.NAME" if name == "kubernetes" => text = in_kubernetes(&text, ""),
        "service.NAME.kubernetes" => text = in_kubernetes(&text, &format!("[service.a.kubernetes]\n{line}")),
        "service.NAME" if name == "associations" => text.push_str("affinity_key = \"spi\"\n"),
        "service.NAME.associations[]" => {
            let others = without("spi = 4097\nto = \"192.0.2.2\"\n");
            text.push_str(&format!(
                "affinity_key = \"spi\"\n[[service.a.associations]]\n{others}{line}"
            ));
        }
        "service.NAME.external" => {
            let others = without("addresses = [\"203.0.113.0/30\"]\n");
            text.push_str(&format!("[service.a.external]\n{others}{line}"));
        }
        "service.NAME.health" => {
            let is_kind = ["tcp", "http", "dns", "command"].contains(&name);
            let kind = if is_kind { "" } else { "http = \"/\"\n" };
            text = for_the_kernel(&format!("{text}{VIP}[service.a.health]\n{kind}{line}"), "");
        }
        "service.NAME.instances" if ["from", "port"].contains(&name) => {
            let text_of_others = text.replace("image = \"inco/forward\"\n", "");
            let others = without("from = \"kubernetes:shop/web\"\n");
            text = for_the_kernel(
                &format!("{text_of_others}{VIP}mode = \"dnat\"\n[service.a.instances]\n{others}{line}"),
                "",
            );
        }
        "service.NAME.instances.from[]" => {
            let text_of_others = text.replace("image = \"inco/forward\"\n", "");
            let others = without("service = \"shop/web\"\n");
            text = for_the_kernel(
                &format!(
                    "{text_of_others}{VIP}mode = \"dnat\"\n[[service.a.instances.from]]\n{others}{line}"
                ),
                "",
            );
        }
        "service.NAME.agent" => {
            let others = without("port = 8080\n");
            text = for_the_kernel(&format!("{text}{VIP}[service.a.agent]\n{others}{line}"), "");
        }
        "service.NAME" if name == "kind" && value == "\"actors\"" => text.push_str(ACTORS),
        "service.NAME" if name == "actors" && value != "[]" => text.push_str("kind = \"actors\"\n"),
        "service.NAME" if name == "sides" => text.push_str(&format!("kind = \"actors\"\n{ACTORS}")),
        "service.NAME.actors[]" => {
            let others = without("name = \"filter\"\nkind = \"echo\"\n");
            text.push_str(&format!(
                "kind = \"actors\"\n[[service.a.actors]]\nname = \"ranker\"\nkind = \"echo\"\n[[service.a.actors]]\n{others}{line}"
            ));
        }
        "service.NAME.sides" => {
            text.push_str(&format!("kind = \"actors\"\n{ACTORS}[service.a.sides]\n{line}"));
        }
        "service.NAME" if for_rules => text.push_str("[switch]\ndriver = \"openflow\"\n"),
        "uplink[]" if name == "tunnel" => text = for_tunnels(&text),
        "service.NAME" if name == "replies" => {
            let end = "max_frame = 1572\n";
            let tunnel = "tunnel = { address = \"10.9.0.11\", network = 7, from = [\"10.9.0.1\"] }\n";
            text = for_tunnels(&text).replace(end, &format!("{end}{tunnel}"));
        }
        "uplink[].tunnel" => {
            let others = without("address = \"10.9.0.11\"\nnetwork = 7\n");
            text = for_tunnels(&format!("{text}[uplink.tunnel]\n{others}{line}"));
        }
        "reports" => {
            let machine = "machine = 1\nto = [\"192.0.2.1:4790\"]\nkey = \"/a\"\n";
            text = match name {
                "listen" => for_reports(&text, &line, REPORTING),
                "to" if value == "[]" => text,
                "machines" if value == "[]" => for_reports(&text, "", REPORTING),
                "machines" => format!("{text}[reports]\nlisten = \"192.0.2.1:4790\"\n{line}"),
                _ => format!("{text}[reports]\n{}{line}", without(machine)),
            };
        }
        "reports.machines[]" => {
            let others = without(REPORTING);
            text = for_reports(&text, "", &format!("{others}{line}"));
        }
        "" | "uplink[]" | "service.NAME" => {}
        "service.NAME.mounts[]" => {
            let others = without("source = \"/a\"\ntarget = \"/b\"\n");
            text.push_str(&format!("[[service.a.mounts]]\n{others}{line}"));
        }
        "service.NAME.devices[]" => {
            let function = if ["pci", "sf", "interface"].contains(&name) {
                ""
            } else {
                "pci = \"0000:03:00.2\"\n"
            };
            let others = without(&format!("representor = \"pf0vf0\"\n{function}"));
            text = text.replace("image", "port = \"device\"\ninstances = 1\nimage");
            text.push_str(&format!("[[service.a.devices]]\n{others}{line}"));
            text.push_str("[switch]\ndriver = \"openflow\"\n");
        }
        "service.NAME.match" => {
            let proto = if name.ends_with("_port") {
                "proto = \"tcp\"\n"
            } else {
                ""
            };
            text.push_str(&format!("[service.a.match]\n{proto}{line}"));
        }
        // TCP access requires all four keys.
        "api" if name != "socket" => {
            let others =
                without("listen = \"[::1]:8443\"\ncertificate = \"/a\"\nkey = \"/b\"\ntokens = \"/c\"\n");
            text.push_str(&format!("[api]\n{others}{line}"));
        }
        "switch" if name == "ebpf" => {
            text = for_the_kernel(&format!("{text}{VIP}"), &line);
        }
        "switch.ebpf" => {
            text = for_the_kernel(&format!("{text}{VIP}"), &format!("[switch.ebpf]\n{line}"));
        }
        "switch" if name == "hybrid" => text = for_two_paths(&text, &line),
        "switch.hybrid" => text = for_two_paths(&text, &format!("[switch.hybrid]\n{line}")),
        "switch" if for_rules => text.push_str(&format!("[switch]\ndriver = \"openflow\"\n{line}")),
        // The keys are valid only with TLS.
        "switch.openflow" if name == "tls" => text.push_str(&format!(
            "[switch]\ndriver = \"openflow\"\n[switch.openflow]\ncontrol = \"ssl:192.0.2.1:6653\"\n{line}"
        )),
        "switch.openflow" => text.push_str(&format!(
            "[switch]\ndriver = \"openflow\"\n[switch.openflow]\n{line}"
        )),
        "place[]" => {
            text = text.replace("image", "cpus = 1.0\nimage");
            text.push_str(&format!("[[place]]\n{}{line}", without("name = \"card\"\n")));
        }
        "engine" if name == "name" => {
            let driver = "driver = \"swarm\"\n";
            text = in_swarm(&text, "").replace(driver, &format!("{driver}{line}"));
        }
        "engine" if name != "driver" => text.push_str(&format!("[engine]\ndriver = \"docker\"\n{line}")),
        other => text.push_str(&format!("[{}]\n{line}", other.replace("NAME", "a"))),
    }
    text
}

#[test]
fn a_mutated_key_table_is_a_valid_base() {
    parse(FULL, "f").unwrap();
}

/// An actor of a service of actors.
const ACTORS: &str = "[[service.a.actors]]\nname = \"filter\"\nkind = \"echo\"\n";

/// The address of a service, which the driver `ebpf` needs.
const VIP: &str = "[service.a.vip]\naddress = \"10.0.0.100\"\nports = 80\n";

/// The same with the driver `ebpf`, with the uplink that it takes, and these lines of the switch.
fn for_the_kernel(text: &str, lines: &str) -> String {
    let text = text.replace("memif:wan.sock", "kernel:eth0");
    format!("{text}[switch]\ndriver = \"ebpf\"\n{lines}")
}

/// The same for the driver with a fast path beside the slow one.
fn for_two_paths(text: &str, lines: &str) -> String {
    format!("{text}[switch]\ndriver = \"hybrid\"\nworkers = [1]\n{lines}")
}

/// A machine whose reports an edge takes.
const REPORTING: &str = "number = 1\naddress = \"10.9.0.2\"\nkey = \"/etc/inco/1.key\"\n";

/// The same at an edge that takes load reports: these lines of the table, if there are any, and of a machine.
fn for_reports(text: &str, lines: &str, machine: &str) -> String {
    let text = for_tunnels(text).replace(
        "image = \"inco/forward\"\n",
        "port = \"tunnel\"\nscheduler = \"machines\"\ninstances = { from = [\"10.9.0.2:4789\"] }\n",
    );
    let text = text.replace(
        "max_frame = 1572\n",
        "max_frame = 1572\ntunnel = { address = \"10.9.0.1\", network = 7 }\n",
    );
    let lines = if lines.starts_with("listen") {
        lines
    } else {
        "listen = \"192.0.2.1:4790\"\n"
    };
    format!("{text}[reports]\n{lines}[[reports.machines]]\n{machine}")
}

/// The same with an uplink that carries tunnels.
fn for_tunnels(text: &str) -> String {
    let device = "device = \"memif:wan.sock\"\n";
    text.replace(device, "device = \"kernel:eth0\"\nmax_frame = 1572\n")
}

/// The same with instances that a swarm places, with a check that speaks what they do.
fn in_swarm(text: &str, lines: &str) -> String {
    let check = if lines.contains("udp") {
        "dns = \"a.b\""
    } else {
        "http = \"/\""
    };
    let service = format!("image = \"inco/forward\"\nport = \"routed\"\nhealth = {{ {check} }}\n");
    let text = text.replace("image = \"inco/forward\"\n", &service);
    for_the_kernel(
        &format!("{text}{VIP}mode = \"dnat\"\n{lines}[engine]\ndriver = \"swarm\"\n"),
        "",
    )
}

/// The same with Pods.
fn in_kubernetes(text: &str, lines: &str) -> String {
    in_swarm(text, lines).replace("driver = \"swarm\"", "driver = \"kubernetes\"")
}

/// The example of each key in the reference is accepted, so no key is listed that is not read.
#[test]
fn the_example_of_every_key_is_accepted() {
    for key in KEYS.iter().filter(|key| !key.table.is_empty()) {
        let mut text = with_key(key.table, key.name, key.example);
        // The objects that some examples refer to.
        if key.example.contains("lan") || key.example.contains("opposite") {
            text.push_str("[[uplink]]\nname = \"lan\"\ndevice = \"veth:eth1\"\n");
        }
        if (key.table, key.name) == ("uplink[]", "queues") {
            text = format!("[switch]\nworkers = [0, 1]\n{text}");
        }
        if (key.table, key.name) == ("service.NAME.scheduler", "limit") {
            text.push_str("metric = \"bytes\"\n");
        }
        if (key.table, key.name) == ("service.NAME", "next") {
            text.push_str("[service.ids]\nimage = \"inco/ids\"\n");
        }
        if (key.table, key.name) == ("service.NAME", "signals") {
            text = text.replace("signals = true\n", "signals = true\nautoscaler = \"fixed\"\n");
        }
        if (key.table, key.name) == ("service.NAME", "move_state") {
            text = text.replace(
                "move_state = true\n",
                "move_state = true\naffinity = \"relaxed\"\n",
            );
        }
        if key.table == "service.NAME" && ["placement", "at", "subnets"].contains(&key.name) {
            text.push_str(
                "[[place]]\nname = \"card\"\ninstances = 2\n[[place]]\nname = \"host\"\ninstances = 4\n",
            );
        }
        if key.name == "host" {
            text = text.replace("image = \"inco/forward\"", "port = \"null\"") + "tls = \"/tls\"\n";
        }
        if let Err(problems) = parse(&text, "f") {
            panic!("{}.{}: {problems:?}\n{text}", key.table, key.name);
        }
    }
}

/// What the reference calls a default is the default: writing it changes nothing.
#[test]
fn writing_a_default_changes_nothing() {
    let shown = |text: &str| {
        let shown = format!(
            "{:?}",
            parse(text, "f").unwrap_or_else(|p| panic!("{p:?}\n{text}"))
        );
        // The positions of keys are part of it and differ.
        shown.split(", positions:").next().unwrap().to_owned()
    };
    for key in KEYS.iter().filter(|key| !key.table.is_empty()) {
        let KeyDefault::Value(value) = key.default else {
            continue;
        };
        let with = with_key(key.table, key.name, value);
        let without: String = with
            .lines()
            .filter(|line| !line.starts_with(&format!("{} =", key.name)))
            .map(|line| format!("{line}\n"))
            .collect();
        let without = without.replace("[service.a.ready]\n", "");
        assert_eq!(
            shown(&with),
            shown(&without),
            "{}.{} = {value}",
            key.table,
            key.name
        );
    }
}

#[test]
fn the_reference_is_the_one_that_is_checked_in() {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../../docs/reference/configuration.md"
    );
    let now = reference();
    for key in KEYS.iter().filter(|key| !key.table.is_empty()) {
        assert!(
            now.contains(&format!("\n| `{}` |", key.name)),
            "{} is not in the reference",
            key.name
        );
    }
    if std::env::var_os("INCO_WRITE_REFERENCE").is_some() {
        std::fs::create_dir_all(std::path::Path::new(path).parent().unwrap()).unwrap();
        std::fs::write(path, &now).unwrap();
    }
    let checked_in = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        checked_in == now,
        "docs/reference/configuration.md is old: run `INCO_WRITE_REFERENCE=1 cargo test -p configuration`"
    );
}
