//! Services whose instances differ by place: what a file may say of them, and the messages for what it may not.

#![allow(clippy::panic, reason = "a test fails by it")]

use configuration::{Configuration, PlaceId, PortKind, Service};
use drivers::parse;
use model::Ready;

mod drivers;

const CARD: PlaceId = PlaceId(0);
const HOST: PlaceId = PlaceId(1);

/// A function over memif, and at the host an ordinary program.
const TWO_KINDS: &str = r#"[switch]
driver = "hybrid"
workers = [0]
[[uplink]]
name = "wan"
device = "kernel:eth1"
[[place]]
name = "card"
instances = 2
[[place]]
name = "host"
[service.dns]
vip = { address = "10.0.0.53", ports = "53" }
image = "inco/forward"
command = ["/inco-nf", "dns", "--config", "/zone"]
instances = { min = 2, max = 4 }
[service.dns.at.host]
port = "kernel"
image = "dnsmasq"
args = ["--no-hosts"]
"#;

fn good(text: &str) -> Configuration {
    parse(text, "inco.toml").unwrap_or_else(|problems| panic!("{problems:?}\n{text}"))
}

/// The problems after `from` is replaced by `to`.
fn with(from: &str, to: &str) -> Vec<String> {
    assert!(TWO_KINDS.contains(from), "{from}");
    match parse(&TWO_KINDS.replace(from, to), "inco.toml") {
        Ok(configuration) => panic!("accepted: {configuration:#?}"),
        Err(problems) => problems.iter().map(ToString::to_string).collect(),
    }
}

#[test]
fn a_place_has_keys_of_its_own_and_the_rest_is_the_services() {
    let c = good(TWO_KINDS);
    let service = &c.services[0];
    assert_eq!(
        (service.port_at(CARD), service.port_at(HOST)),
        (PortKind::Memif, PortKind::Kernel)
    );
    assert_eq!(service.port_kinds(), [PortKind::Memif, PortKind::Kernel]);
    // What is usual for the kind of port.
    assert_eq!(
        (service.ready_at(CARD), service.ready_at(HOST)),
        (&Ready::Connected, &Ready::Listens)
    );
    let all: Vec<_> = service.variants().collect();
    let of = |index: usize| {
        let of: &Service = &all[index].service;
        (of.image.clone().unwrap(), of.command.len(), of.args.len())
    };
    assert_eq!(all.len(), 2);
    assert_eq!(of(0), ("inco/forward".to_owned(), 4, 0));
    // A command belongs to its image.
    assert_eq!(of(1), ("dnsmasq".to_owned(), 0, 1));
    assert_eq!(all[1].key("image"), "service.dns.at.host.image");
    assert_eq!(all[1].key("vip"), "service.dns.vip");
    assert_eq!(all[0].key("image"), "service.dns.image");
    // The program alone is another one.
    let c = good(&TWO_KINDS.replace(
        "port = \"kernel\"\nimage = \"dnsmasq\"\nargs = [\"--no-hosts\"]\n",
        "args = [\"--verbose\"]\n",
    ));
    let service = &c.services[0];
    let at_host = service.variants().nth(1).unwrap();
    assert_eq!(
        (at_host.service.command.len(), at_host.service.args.len()),
        (4, 1)
    );
    assert_eq!(service.port_kinds(), [PortKind::Memif]);
    assert_eq!(service.ready_at(HOST), &Ready::Connected);
}

#[test]
fn each_problem_is_reported_where_it_is() {
    for (found, expected) in [
        (
            with("at.host", "at.hots"),
            "inco.toml:17: service.dns.at.hots: there is no place \"hots\"; write \"host\"",
        ),
        (
            with("port = \"kernel\"", "port = \"device\""),
            "inco.toml:18: service.dns.at.host.port: ports of the kind \"device\" are those of all instances of a service, \
             or of none; write \"memif\", \"kernel\" or \"frames\"",
        ),
        (
            with("args = [\"--no-hosts\"]", "memory = \"1GiB\""),
            "inco.toml:20: service.dns.at.host.memory: this key belongs to [service.NAME]; move it there, or remove it",
        ),
        (
            with(
                "port = \"kernel\"\nimage = \"dnsmasq\"\nargs = [\"--no-hosts\"]\n",
                "",
            ),
            "inco.toml:17: service.dns.at.host: it says nothing of its own; write port, image, command, args or ready, or \
             remove it",
        ),
        (
            with(
                "at.host]\nport = \"kernel\"",
                "at]\nhost = 7\n[service.dns.sides]",
            ),
            "inco.toml:18: service.dns.at.host: the number 7 is not a table",
        ),
        (
            with(
                "vip = { address = \"10.0.0.53\", ports = \"53\" }",
                "match = { dst_port = 53, proto = 'udp' }",
            ),
            "inco.toml:12: service.dns.vip: the driver hybrid is the next hop of instances with kernel ports, which needs an \
             address",
        ),
        (
            with("port = \"kernel\"", "port = \"kernel\"\nready = \"consumes\""),
            "inco.toml:19: service.dns.at.host.ready: the driver hybrid cannot see whether an instance takes packets; write",
        ),
        (
            with(
                "image = \"inco/forward\"",
                "image = \"inco/forward\"\nnext = \"ids\"",
            ),
            "service.dns.port: a service of a chain gives packets back, and a program with a kernel port ends connections",
        ),
        (
            with(
                "\"10.0.0.53\", ports = \"53\" }",
                "\"10.0.0.53\", ports = \"53\", mode = \"dnat\" }",
            ),
            "service.dns.vip.mode: the driver hybrid translates to the addresses of instances that have a network of their own",
        ),
        (
            with("name = \"host\"\n", "name = \"host\"\nports = [\"memif\"]\n"),
            "service.dns.placement: place \"host\" has no ports of the kind \"kernel\", and placement permits it",
        ),
        (
            with(
                "instances = { min = 2, max = 4 }",
                "instances = { min = 2, max = 600 }",
            ),
            "service.dns.instances: the services need 1202 slots, one for each instance and kind of port, standby included, \
             more than the switch's limit of 1024",
        ),
    ] {
        let is_it = |problem: &String| problem.contains(expected);
        assert!(found.iter().any(is_it), "{expected}\n{found:#?}");
    }
}

/// The driver `ebpf` connects kernel ports only: the place with the other kind is named.
#[test]
fn a_driver_without_a_kind_of_port_says_at_which_place() {
    let text = TWO_KINDS
        .replace("driver = \"hybrid\"\nworkers = [0]", "driver = \"ebpf\"")
        .replace("port = \"kernel\"\n", "port = \"memif\"\n");
    let problems = parse(&text, "inco.toml").unwrap_err();
    let [problem] = &problems[..] else {
        panic!("{problems:#?}");
    };
    assert_eq!(
        (problem.line, problem.key.as_str()),
        (17, "service.dns.at.host.port")
    );
    assert!(
        problem.what.contains("does not support this kind of port"),
        "{problem}"
    );
}

#[test]
fn instances_that_others_run_and_actors_are_the_same_everywhere() {
    let text = TWO_KINDS.replace("image = \"inco/forward\"", "port = \"null\"");
    let text = text.replace("vip = ", "#").replace("command", "#command");
    let problems = parse(&text, "inco.toml").unwrap_err();
    let said = "instances with ports of the kind \"null\" are the same at all places; remove it, or write";
    assert!(
        problems.iter().any(|of| of.to_string().contains(said)),
        "{problems:#?}"
    );
}

/// What is asked of instances over their network is asked of those that have one; a stall is seen of those with rings.
#[test]
fn checks_need_one_kind_that_can_be_checked() {
    let text = TWO_KINDS.replace(
        "[service.dns.at.host]",
        "health = { dns = 'www.example.test' }\nstall_after = '1s'\n[service.dns.at.host]",
    );
    good(&text);
    let without = text.replace("port = \"kernel\"\n", "");
    let problems = parse(&without, "inco.toml").unwrap_err();
    assert!(problems[0].key.ends_with("dns.health"), "{problems:#?}");
}

#[test]
fn another_program_is_taken_at_run_time_and_another_kind_of_port_is_not() {
    let changes = |from: &str, to: &str| {
        assert!(TWO_KINDS.contains(from), "{from}");
        let (old, new) = (good(TWO_KINDS), good(&TWO_KINDS.replace(from, to)));
        let changes = old.changes_to(&new);
        assert_eq!(old.changes_service(&new, "dns", ""), !changes.is_empty());
        changes
            .into_iter()
            .map(|change| (change.key, change.needs_restart))
            .collect::<Vec<_>>()
    };
    let at = |needs_restart| [("service.dns.at".to_owned(), needs_restart)];
    assert_eq!(changes("--no-hosts", "--no-resolv"), at(false));
    assert_eq!(changes("port = \"kernel\"", "port = \"frames\""), at(true));
    let whole = &TWO_KINDS[TWO_KINDS.find("[service.dns.at.host]").unwrap()..];
    assert_eq!(changes(whole, ""), at(true), "its ports are others then");
    let program = whole.replace("port = \"kernel\"\n", "");
    assert_eq!(changes(whole, &program), at(true));
    let (old, new) = (
        good(&TWO_KINDS.replace(whole, "")),
        good(&TWO_KINDS.replace(whole, &program)),
    );
    assert!(!old.changes_to(&new)[0].needs_restart);
    assert!(!new.changes_to(&old)[0].needs_restart, "removed again");
    // Another notation.
    let inline = "[service.dns.at]\nhost = { args = ['--no-hosts'], image = 'dnsmasq', port = 'kernel' }\n";
    assert!(changes(whole, inline).is_empty());
}
