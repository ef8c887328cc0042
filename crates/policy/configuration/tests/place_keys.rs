//! Places: what a file may say of them, and the messages for what it may not.

#![allow(clippy::panic, reason = "a test fails by it")]

use configuration::{Configuration, EngineDriver, PlaceId, Placement, PortKind};
use drivers::parse;

mod drivers;

const TWO: &str = r#"[[uplink]]
name = "wan"
device = "memif:wan.sock"
[[place]]
name = "card"
cpus = "0-1"
share = 0.4
instances = 2
capacity = "36Mpps"
[[place]]
name = "host"
engine = "docker"
host = "unix:///run/other.sock"
cpus = "2,4-5"
[service.a]
image = "inco/forward"
cpus = 1.0
"#;

fn good(text: &str) -> Configuration {
    parse(text, "inco.toml").unwrap_or_else(|problems| panic!("{problems:?}\n{text}"))
}

fn problems(text: &str) -> Vec<String> {
    match parse(text, "inco.toml") {
        Ok(configuration) => panic!("accepted: {configuration:#?}"),
        Err(problems) => problems.iter().map(ToString::to_string).collect(),
    }
}

/// The problems after `from` is replaced by `to`.
fn with(from: &str, to: &str) -> Vec<String> {
    assert!(TWO.contains(from), "{from}");
    problems(&TWO.replace(from, to))
}

#[test]
fn places_are_read_with_their_engines() {
    let c = good(TWO);
    let [card, host] = &c.places[..] else {
        panic!("{:?}", c.places);
    };
    assert_eq!(
        (card.name.as_str(), card.share, card.instances),
        ("card", 0.4, Some(2))
    );
    assert_eq!((card.capacity_pps, card.cpu_list()), (Some(36e6), vec![0, 1]));
    assert_eq!(
        (host.share, host.is_unlimited(), host.cpu_list()),
        (1.0, true, vec![2, 4, 5])
    );
    assert_eq!(c.services[0].placement, Placement::Auto);
    let engines = [0, 1].map(|place| c.engine_at(PlaceId(place)));
    assert_eq!(engines[0].driver, EngineDriver::Oci);
    assert_eq!(
        (engines[1].driver, engines[1].host.as_str()),
        (EngineDriver::Docker, "unix:///run/other.sock")
    );
    assert_eq!((c.engines().len(), c.engines_of(&c.services[0]).len()), (2, 2));
    let at = |placement: &str| {
        let c = good(&format!("{TWO}placement = {placement:?}\n"));
        (c.services[0].placement, c.engines_of(&c.services[0]).len())
    };
    assert_eq!(at("host"), (Placement::At(PlaceId(1)), 1));
    assert_eq!(at("auto"), (Placement::Auto, 2));
    // An address alone says that it is Docker.
    let c = good(&TWO.replace("engine = \"docker\"\n", ""));
    assert_eq!(c.engine_at(PlaceId(1)).driver, EngineDriver::Docker);
    // Without places all is as it was.
    let c =
        good("[[uplink]]\nname = 'wan'\ndevice = 'memif:wan.sock'\n[service.a]\nimage = 'inco/forward'\n");
    assert_eq!((c.places.len(), c.engines().len()), (0, 1));
}

#[test]
fn a_place_has_figures_of_its_cores_its_link_and_its_power() {
    let figures = "collapse = \"40Mpps\"\ncore_capacity = \"5Mpps\"\nports = [\"memif\", \"kernel\"]\nlatency = \"2us\"\n\
                   bandwidth = \"100Gbps\"\nidle_watts = 42\nwatts_per_core = 11.5\n";
    let c = good(&TWO.replace("instances = 2\n", figures));
    let card = &c.places[0];
    // The written capacity and 0.9 of the cliff are the same.
    assert_eq!((card.collapse_pps, card.limit_pps()), (Some(40e6), Some(36e6)));
    assert_eq!(card.instance_pps(1e6, 2.0), 0.4 * 10e6, "the cores say it");
    assert_eq!(c.places[1].instance_pps(1e6, 2.0), 1e6, "the service says it");
    assert!(card.has_ports(PortKind::Memif) && !card.has_ports(PortKind::Device));
    assert!(c.places[1].has_ports(PortKind::Device));
    assert_eq!(
        (card.latency.0, card.bandwidth_bytes_per_s),
        (2_000, Some(12.5e9))
    );
    assert_eq!((card.idle_watts, card.watts_per_core), (Some(42.0), Some(11.5)));
    // The cliff alone is a limit, too.
    let c = good(&TWO.replace(
        "instances = 2\ncapacity = \"36Mpps\"\n",
        "collapse = \"10Mpps\"\n",
    ));
    assert_eq!(
        (c.places[0].limit_pps(), c.places[0].is_unlimited()),
        (Some(9e6), false)
    );
}

#[test]
fn subnets_make_a_service_for_each_place() {
    let c = good(&format!(
        "{TWO}subnets = {{ host = '10.1.0.0/16', card = '10.2.0.0/16' }}\n"
    ));
    let of = |service: &configuration::Service| {
        let dst = service.matches.dst.map(|dst| dst.address.to_string());
        (service.name.clone(), service.placement, dst, service.cpus)
    };
    let expected = [("a-card", 0, "10.2.0.0"), ("a-host", 1, "10.1.0.0")];
    let expected = expected.map(|(name, place, dst)| {
        let at = Placement::At(PlaceId(place));
        (name.to_owned(), at, Some(dst.to_owned()), Some(1.0))
    });
    assert_eq!(c.services.iter().map(of).collect::<Vec<_>>(), expected);
    let wrong = |keys: &str| problems(&format!("{TWO}{keys}\n")).join("\n");
    let of_card = "subnets = { card = '10.2.0.0/16' }";
    let twice = "`subnets` says that for each place; remove it, or `subnets`";
    for (keys, expected) in [
        (
            "subnets = { crad = '10.2.0.0/16' }",
            "there is no place \"crad\"; write \"card\"",
        ),
        ("subnets = { card = '10.2.0.0/33' }", "service.a.subnets.card: "),
        ("subnets = {}", "a table of places with a prefix each"),
        (&format!("{of_card}\nplacement = 'card'"), twice),
        (&format!("{of_card}\nmatch = {{ dst = '10.0.0.0/8' }}"), twice),
        (
            &format!("{of_card}\n[service.a-card]\nimage = 'inco/forward'\ncpus = 1.0"),
            "there are two services a-card: one is by `subnets`; give the other one another name",
        ),
    ] {
        let said = wrong(keys);
        assert!(said.contains(expected), "{keys}: {said}");
    }
}

#[test]
fn two_places_may_share_an_engine() {
    let c = good(&TWO.replace("engine = \"docker\"\nhost = \"unix:///run/other.sock\"\n", ""));
    assert_eq!((c.engines().len(), c.engines_of(&c.services[0]).len()), (1, 1));
}

#[test]
fn each_problem_is_reported() {
    for (found, expected) in [
        (
            with("name = \"host\"", "name = \"card\""),
            "inco.toml:11: place[1].name: line 5 already has a place \"card\"; write another name",
        ),
        (
            with("name = \"host\"", "name = \"split\""),
            "inco.toml:11: place[1].name: \"split\" is a rule of `placement`; write another name",
        ),
        (
            with("\"2,4-5\"", "\"1-5\""),
            "inco.toml:14: place[1].cpus: CPU 1 is already one of \"card\" (line 6); write other CPUs",
        ),
        (
            with(
                "capacity = \"36Mpps\"",
                "capacity = \"36Mpps\"\ncollapse = \"4Mpps\"\ncore_capacity = \"10Mpps\"",
            ),
            "inco.toml:10: place[0].collapse: 0.9 of it, 3.6Mpps, is less than the 4Mpps of one instance of a; write a larger \
             collapse, or smaller instances of the service",
        ),
        (
            with("share = 0.4", "share = 0.4\nports = [\"kernel\"]"),
            "inco.toml:16: service.a.placement: place \"card\" has no ports of the kind \"memif\", and placement permits it; \
             write placement = NAME of another place, or add the kind to its ports",
        ),
        (
            with("share = 0.4", "share = 0.4\nwatts_per_core = -1"),
            "inco.toml:8: place[0].watts_per_core: -1 W is out of range; write a number from 0 to 100000",
        ),
        (
            with("share = 0.4", "share = 1.4"),
            "inco.toml:7: place[0].share: 1.4 is out of range; write a number above 0 and at most 1",
        ),
        (
            with("cpus = 1.0", "placement = \"crad\"\ncpus = 1.0"),
            "inco.toml:17: service.a.placement: unknown place \"crad\"; write \"card\"",
        ),
        (
            with("cpus = 1.0", ""),
            "inco.toml:15: service.a.cpus: place \"card\" gives an instance a share of its `cpus`, and the service has \
             none; write cpus, for example 1.0",
        ),
        (
            with("cpus = 1.0", "cpus = 1.0\ncpuset = \"1\""),
            "inco.toml:18: service.a.cpuset: place \"card\" says on which CPUs its containers run; remove it, or cpus \
             of the place",
        ),
        (
            with("instances = 2\ncapacity = \"36Mpps\"", ""),
            "inco.toml:5: place[0].name: it has no limit, so that placement = \"auto\" of a never uses the places after \
             it; write instances = N, capacity = \"N Mpps\" or collapse = \"N Mpps\"",
        ),
        (
            with("cpus = 1.0", "cpus = 1.0\nplacement = \"split\""),
            "inco.toml:11: place[1].name: it has no limit, and placement = \"split\" of a spreads by limits; write \
             instances = N, capacity = \"N Mpps\" or collapse = \"N Mpps\"",
        ),
        (
            with("cpus = 1.0", "cpus = 1.0\ncapacity = \"100Mpps\""),
            "inco.toml:9: place[0].capacity: it is less than the 40Mpps of one instance of a; write a larger capacity, \
             or smaller instances of the service",
        ),
        (
            with(
                "cpus = 1.0",
                "cpus = 1.0\nplacement = \"card\"\ninstances = { min = 2, standby = 1 }",
            ),
            "inco.toml:19: service.a.instances: min and standby are 3 instances, and its places take 2; write a smaller \
             min or standby, or a larger `instances` of a place",
        ),
        (
            with(
                "host = \"unix:///run/other.sock\"",
                "host = \"tcp://192.0.2.1:2376\"\ntls = \"/tls\"",
            ),
            "inco.toml:16: service.a.port: a memif port shares memory, and the containers of tcp://192.0.2.1:2376 are \
             on another machine",
        ),
        (
            with("engine = \"docker\"", "engine = \"oci\""),
            "inco.toml:13: place[1].host: the oci engine is embedded and has no such key; remove it, or write engine = \
             \"docker\"",
        ),
    ] {
        assert!(
            found.iter().any(|problem| problem.starts_with(expected)),
            "{expected}\n{found:#?}"
        );
    }
}

const CORES: &str = r#"[switch]
workers = [0]
[[uplink]]
name = "wan"
device = "memif:wan.sock"
[[place]]
name = "card"
cpus = "1-3"
[service.a]
image = "inco/forward"
cpus = "exclusive"
instances = { min = 2, standby = 1 }
"#;

#[test]
fn an_instance_may_have_a_core_to_itself() {
    let service = &good(CORES).services[0];
    assert_eq!((service.exclusive, service.cpus), (true, None));
    let service = &good(&CORES.replace("\"exclusive\"", "0.5")).services[0];
    assert_eq!((service.exclusive, service.cpus), (false, Some(0.5)));
    let other = format!("{CORES}[service.b]\nmatch = {{ dst = \"10.0.0.1\" }}\nimage = \"inco/forward\"\n");
    for (text, expected) in [
        (
            CORES.replace("cpus = \"1-3\"", "share = 1.0"),
            "inco.toml:7: place[0].name: instances of a are to have cores of their own, and it has no list of them; write \
             cpus = \"0-3\"",
        ),
        (
            CORES.replace("\"1-3\"", "\"0-3\""),
            "inco.toml:8: place[0].cpus: CPU 0 is that of a worker, and an instance is to have it to itself; write other \
             CPUs",
        ),
        (
            CORES.replace("cpus = \"1-3\"", "cpus = \"1-3\"\nshare = 0.5"),
            "inco.toml:9: place[0].share: an instance of a has a whole core; remove it",
        ),
        (
            CORES.replace("\"1-3\"", "\"1-2\""),
            "inco.toml:12: service.a.instances: min and standby are 3 instances, and its places take 2; write",
        ),
        (
            CORES.replace("[[place]]\nname = \"card\"\ncpus = \"1-3\"\n", ""),
            "inco.toml:8: service.a.cpus: cores of their own are of a place, and no place is configured; add a [[place]] \
             with cpus, or write a number",
        ),
        (
            other,
            "inco.toml:13: service.b.placement: the cores of place \"card\" are for one instance of a each, and these \
             would use them, too; write the name of another place, or cpus = \"exclusive\"",
        ),
    ] {
        let found = problems(&text);
        assert!(
            found.iter().any(|problem| problem.starts_with(expected)),
            "{expected}\n{found:#?}"
        );
    }
}

#[test]
fn a_rule_for_places_needs_some() {
    let short = "[[uplink]]\nname = 'wan'\ndevice = 'memif:wan.sock'\n[service.a]\nimage = 'inco/forward'\n";
    let with = |placement: &str| problems(&format!("{short}placement = {placement:?}\n"));
    assert_eq!(
        with("split"),
        [
            "inco.toml:6: service.a.placement: no place is configured to spread instances over; add two [[place]], or \
          remove it"
        ]
    );
    let unknown = &with("card")[0];
    assert!(
        unknown.starts_with(
            "inco.toml:6: service.a.placement: unknown place \"card\"; add a [[place]] with that name"
        ),
        "{unknown}"
    );
    good(&format!("{short}placement = 'auto'\n"));
}

#[test]
fn places_need_a_restart_and_a_placement_does_not() {
    let changes = |from: &str, to: &str| {
        assert!(TWO.contains(from), "{from}");
        let changes = good(TWO).changes_to(&good(&TWO.replace(from, to)));
        let shown = changes
            .into_iter()
            .map(|change| (change.key, change.needs_restart));
        shown.collect::<Vec<_>>()
    };
    assert_eq!(
        changes("instances = 2", "instances = 3"),
        [("place".to_owned(), true)]
    );
    assert_eq!(
        changes("cpus = 1.0", "cpus = 1.0\nplacement = \"host\""),
        [("service.a.placement".to_owned(), false)]
    );
}
