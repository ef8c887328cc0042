//! Services of actors: what is read, and the messages for what cannot be.

#![allow(clippy::panic, clippy::unwrap_used, reason = "a test fails by it")]

use configuration::{Configuration, Moves, PlaceId, Placement};
use drivers::parse;
use model::{ActorSide, Nanos, PortKind, Ready};

mod drivers;

const FILE: &str = r#"[[uplink]]
name = "wan"
device = "memif:wan.sock"
[[place]]
name = "host"
[[place]]
name = "card"
[service.kv]
kind = "actors"
match = { proto = "udp", dst = "10.0.0.70" }
memory = "64MiB"
[[service.kv.actors]]
name = "count"
kind = "counter"
ports = "7000,7002"
[[service.kv.actors]]
name = "filter"
kind = "store"
side = "host"
group = "g"
options = { next = "@count,@filter,x", tick = 20 }
region = "64KiB"
[service.kv.sides]
entry = "filter"
host_cores = 2
overload = "250us"
backlog = "2k"
moves = "manual"
"#;

fn good(text: &str) -> Configuration {
    parse(text, "inco.toml").unwrap_or_else(|problems| panic!("{problems:?}"))
}

fn problems_of(text: &str) -> Vec<String> {
    match parse(text, "inco.toml") {
        Ok(configuration) => panic!("accepted: {configuration:#?}"),
        Err(problems) => problems.iter().map(ToString::to_string).collect(),
    }
}

#[test]
fn a_service_of_actors_is_two_services_of_the_switch() {
    let c = good(FILE);
    let names: Vec<&str> = c.services.iter().map(|of| of.name.as_str()).collect();
    assert_eq!(names, ["kv", "kv-host"]);
    let [card, host] = [&c.services[0], &c.services[1]];
    assert_eq!(card.placement, Placement::At(PlaceId(1)));
    assert_eq!(host.placement, Placement::At(PlaceId(0)));
    assert_eq!(card.all_matches().len(), 1);
    assert_eq!((host.all_matches(), host.written_name()), (Vec::new(), "kv"));
    assert_eq!(card.image.as_deref(), Some("inco/actors"));
    assert_eq!(
        (card.instances.min, card.instances.max, card.instances.standby),
        (1, 1, 0)
    );
    assert_eq!(card.autoscaler.name(), "fixed");
    let part = host.part.as_ref().unwrap();
    assert_eq!((part.side, part.service.as_str()), (ActorSide::Host, "kv"));
    let of = &part.of;
    assert_eq!(
        (of.entry(), of.members[0].ports.as_slice()),
        (1, &[7000, 7002][..])
    );
    assert_eq!(of.kind_of(&of.members[1]), "store next=0,1,x tick=20");
    assert_eq!(
        (of.members[1].side, of.members[1].region_bytes),
        (ActorSide::Host, 64 << 10)
    );
    assert_eq!((of.sides.cores, of.sides.moves), ([1, 2], Moves::Manual));
    assert_eq!(
        (of.sides.migration.overload_us, of.sides.budget),
        (250.0, Nanos::from_secs(5))
    );
    assert_eq!(of.sides.migration.backlog, Some(2_000));
    let unsaid = good(&FILE.replace("backlog = \"2k\"\n", ""));
    let of = &unsaid.services[1].part.as_ref().unwrap().of;
    assert_eq!(
        of.sides.migration.backlog,
        actor_scheduling::migration::Settings::default().backlog
    );
    // Without places both sides are where all instances are.
    let plain = FILE.replace("[[place]]\nname = \"host\"\n[[place]]\nname = \"card\"\n", "");
    assert!(
        good(&plain)
            .services
            .iter()
            .all(|of| of.placement == Placement::Auto)
    );
}

#[test]
fn what_cannot_be_is_told_with_its_place() {
    let wrong = |from: &str, to: &str| -> String {
        assert!(FILE.contains(from), "{from}");
        problems_of(&FILE.replacen(from, to, 1)).join("\n")
    };
    for (from, to, expected) in [
        (
            "name = \"filter\"",
            "name = \"count\"",
            "there is an actor \"count\" already",
        ),
        (
            "entry = \"filter\"",
            "entry = \"filtr\"",
            "there is no actor \"filtr\"",
        ),
        ("@count", "@cuont", "there is no actor \"cuont\""),
        (
            "region = \"64KiB\"",
            "ports = 7000",
            "port 7000 are messages of another actor",
        ),
        (
            "memory = \"64MiB\"",
            "instances = 3",
            "each side of a service of actors is one instance",
        ),
        (
            "memory = \"64MiB\"",
            "port = \"null\"",
            "ports of the kind \"memif\"",
        ),
        ("kind = \"actors\"", "kind = \"actor\"", "unknown value \"actor\""),
        (
            "kind = \"actors\"",
            "image = \"x\"",
            "this key is for a service of actors",
        ),
        ("host_cores = 2", "hostcores = 2", "write \"host_cores\""),
    ] {
        let said = wrong(from, to);
        assert!(said.contains(expected) && said.contains("inco.toml:"), "{said}");
    }
    let none = FILE.split("[[service.kv.actors]]").next().unwrap();
    assert!(problems_of(none).join("\n").contains("no actor is declared"));
    let taken = format!("{FILE}[service.kv-host]\nimage = \"x\"\n");
    let said = problems_of(&taken).join("\n");
    assert!(
        said.contains("kv-host is the host's side of the service of actors kv"),
        "{said}"
    );
    let kernel = FILE.replacen("[[uplink]]", "[switch]\ndriver = \"ebpf\"\n[[uplink]]", 1);
    assert!(
        problems_of(&kernel)
            .join("\n")
            .contains("has no ports by which actors answer")
    );
}

#[test]
fn both_sides_have_memif_ports_or_interfaces_of_the_kernel() {
    let frames = FILE.replacen("kind = \"actors\"", "kind = \"actors\"\nport = \"frames\"", 1);
    for (text, port, ready) in [
        (FILE, PortKind::Memif, Ready::Connected),
        (frames.as_str(), PortKind::Frames, Ready::Listens),
    ] {
        let c = good(text);
        let of_sides: Vec<_> = c.services.iter().map(|of| (of.port, of.ready.clone())).collect();
        assert_eq!(of_sides, [(port, ready.clone()), (port, ready)]);
    }
}

#[test]
fn a_reload_changes_when_actors_move_and_what_both_sides_are() {
    let old = good(FILE);
    let changed = |from: &str, to: &str| {
        let new = good(&FILE.replacen(from, to, 1));
        let changes = old.changes_to(&new);
        let both = ["kv", "kv-host"].map(|name| old.changes_service(&new, name, ""));
        (changes, both)
    };
    let (changes, both) = changed("overload = \"250us\"", "overload = \"1ms\"");
    assert_eq!(changes.len(), 1, "{changes:?}");
    assert!(
        changes[0].key == "service.kv.sides.overload" && !changes[0].needs_restart && both == [true, true]
    );
    let (changes, both) = changed("memory = \"64MiB\"", "memory = \"65MiB\"");
    assert!(!changes[0].needs_restart && both == [true, true]);
    let (changes, _) = changed("kind = \"counter\"", "kind = \"echo\"");
    assert!(changes.iter().all(|of| of.needs_restart), "{changes:?}");
}
