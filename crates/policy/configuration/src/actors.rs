//! Services of actors: what they consist of, and their two sides as services of the switch.

use std::collections::BTreeSet;
use std::sync::Arc;

use actor_scheduling::{PolicyName, Queues, migration};
use autoscaling::Autoscaler;
use model::{ActorSide, Match, Nanos, PortKind, StandbyMode};
use placement::Placement;

use crate::keys;
use crate::read::{At, Reader, Section};
use crate::types::{Affinity, Configuration, Instances, Origin, Service, SwitchDriver};
use crate::units::ValueError;
use crate::values::name;

/// Actors of a service, at most.
pub const ACTORS_LIMIT: usize = 256;
/// Bytes of an actor's kind with all of its options, at most.
pub const KIND_LIMIT_BYTES: usize = 256;
/// The image of a service of actors that names none.
pub const ACTORS_IMAGE: &str = "inco/actors";
/// What is appended to the name of a service of actors for its host's side.
const HOST_SUFFIX: &str = "-host";
/// Keys that say how instances come and go, of which each side has one.
const NOT_FOR_ACTORS: [&str; 14] = [
    "instances",
    "at",
    "subnets",
    "autoscaler",
    "scheduler",
    "capacity",
    "next",
    "queues",
    "devices",
    "external",
    "health",
    "agent",
    "signals",
    "move_state",
];

model::words! {
    /// What the instances of a service are.
    pub enum ServiceKind {
        /// Containers that packets are given to.
        Containers = "containers",
        /// Two sides that run actors.
        Actors = "actors",
    }

    /// Who decides when an actor moves.
    pub enum Moves {
        /// inco, by load.
        Auto = "auto",
        /// An operator.
        Manual = "manual",
    }
}

/// The words of the scheduling policies of a side.
pub(crate) const POLICIES: &[(&str, PolicyName)] = &[
    ("fcfs", PolicyName::Fcfs),
    ("drr", PolicyName::Drr),
    ("hybrid", PolicyName::Hybrid),
    ("preemptive", PolicyName::Preemptive),
];

/// The words of how a side's cores share its line.
pub(crate) const QUEUES: &[(&str, Queues)] = &[("per-core", Queues::PerCore), ("shared", Queues::Shared)];

/// An actor of a service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ActorMember {
    /// Its name, by which operators know it.
    pub name: String,
    /// What it is made from: a kind that the image's program knows.
    pub kind: String,
    /// Options of that kind, by name. `@NAME` in a value is the number of another actor.
    pub options: Vec<(String, String)>,
    /// Where it begins.
    pub side: ActorSide,
    /// Actors with the same group move together.
    pub group: Option<String>,
    /// Ports of the service whose packets are its messages.
    pub ports: Vec<u16>,
    /// Messages that wait for it, at most.
    pub mailbox: u32,
    /// Messages that are held while it moves, at most.
    pub held: u32,
    /// Bytes for its objects, on each side.
    pub region_bytes: u32,
    /// Objects at a time.
    pub objects: u32,
}

/// How the two sides run their actors.
#[derive(Clone, Debug, PartialEq)]
pub struct Sides {
    /// Which core runs which actor next.
    pub policy: PolicyName,
    /// Cores of card and host.
    pub cores: [u16; 2],
    /// How these cores share what is served first come, first served.
    pub queues: [Queues; 2],
    /// What an actor may run in each round.
    pub quantum: Nanos,
    /// The tail of response times above which the line loses an actor.
    pub tail_threshold: Nanos,
    /// Margin below the threshold at which it returns.
    pub hysteresis: f64,
    /// How long a core without a message sleeps.
    pub rest: Nanos,
    /// How long a message may run.
    pub budget: Nanos,
    /// The actor that gets what comes for no other one.
    pub entry: Option<String>,
    /// Who decides when an actor moves.
    pub moves: Moves,
    /// By which figures, if inco does.
    pub migration: migration::Settings,
}

/// What a service of actors consists of.
#[derive(Clone, Debug, PartialEq)]
pub struct Actors {
    /// The actors; their numbers are their places.
    pub members: Vec<ActorMember>,
    /// The sides.
    pub sides: Sides,
}

impl Actors {
    /// The number of the actor that gets what comes for no other one.
    pub fn entry(&self) -> usize {
        let named = self.sides.entry.as_deref();
        named.and_then(|name| self.number(name)).unwrap_or(0)
    }

    /// The number of an actor.
    pub fn number(&self, name: &str) -> Option<usize> {
        self.members.iter().position(|of| of.name == name)
    }

    /// The kind of an actor as its program is told: `KIND NAME=VALUE ...`, with numbers in the place of names.
    pub fn kind_of(&self, member: &ActorMember) -> String {
        let mut kind = member.kind.clone();
        for (name, value) in &member.options {
            let value: Vec<String> = (value.split(','))
                .map(|part| {
                    let number = part.strip_prefix('@').and_then(|name| self.number(name));
                    number.map_or_else(|| part.to_owned(), |number| number.to_string())
                })
                .collect();
            kind.push_str(&format!(" {name}={}", value.join(",")));
        }
        kind
    }
}

/// Which part of a service of actors a service of the switch is.
#[derive(Clone, Debug, PartialEq)]
pub struct ActorsPart {
    /// The side. That of the card has the service's name and its packets.
    pub side: ActorSide,
    /// The name of the service in the file.
    pub service: String,
    /// What the service consists of.
    pub of: Arc<Actors>,
}

impl Service {
    /// The name under which its keys are in the file.
    pub fn written_name(&self) -> &str {
        self.part.as_ref().map_or(&self.name, |part| &part.service)
    }

    /// Whether it is in the file, and not the second side of a service of actors.
    pub fn is_written(&self) -> bool {
        self.part.as_ref().is_none_or(|part| part.side == ActorSide::Card)
    }

    /// Whether packets are given to it by its match or address.
    pub fn takes_packets(&self) -> bool {
        self.is_written()
    }
}

/// Makes a service the card's side of one of actors.
pub(crate) fn make_card(
    reader: &mut Reader,
    section: &Section<'_>,
    service: &mut Service,
    members: Vec<ActorMember>,
    sides: Sides,
) {
    for key in NOT_FOR_ACTORS {
        if section.get(key).is_some() {
            let what =
                "each side of a service of actors is one instance, to which inco gives no flows by load";
            reader.report(
                &section.key(key),
                ValueError::new(what, "remove it, or write kind = \"containers\""),
            );
        }
    }
    let is_frames = service.port == PortKind::Frames;
    if section.get("port").is_some() && !is_frames && service.port != PortKind::Memif {
        let what = "the sides of a service of actors have ports of the kind \"memif\" or \"frames\"";
        reader.report(&section.key("port"), ValueError::new(what, "remove it"));
    }
    if service.affinity != Affinity::Strict {
        let what = "a service of actors has one network, so that no flow can move";
        reader.report(&section.key("affinity"), ValueError::new(what, "remove it"));
    }
    if !is_frames {
        service.port = PortKind::Memif;
    }
    service.image.get_or_insert_with(|| ACTORS_IMAGE.to_owned());
    service.instances = Instances {
        from: Origin::Inco,
        min: 1,
        max: 1,
        standby: 0,
        standby_mode: StandbyMode::Warm,
        sleep: false,
    };
    if let Ok(fixed) = Autoscaler::from_name("fixed") {
        service.autoscaler = fixed;
    }
    check_members(reader, section, &members, &sides);
    let of = Arc::new(Actors { members, sides });
    for (index, member) in of.members.iter().enumerate() {
        let bytes = of.kind_of(member).len();
        if bytes > KIND_LIMIT_BYTES {
            let what =
                format!("kind and options have {bytes} bytes, more than the limit of {KIND_LIMIT_BYTES}");
            let key = format!("{}[{index}].options", section.key("actors"));
            reader.report(&key, ValueError::new(what, "write shorter ones"));
        }
    }
    service.part = Some(ActorsPart {
        side: ActorSide::Card,
        service: service.name.clone(),
        of,
    });
    place(reader, service);
}

/// Puts a side at the place of its name, if there is one.
fn place(reader: &Reader, service: &mut Service) {
    let side = service.part.as_ref().map(|part| part.side.name());
    let index = reader
        .places
        .iter()
        .position(|place| Some(place.as_str()) == side);
    if let Some(index) = index.and_then(|index| u8::try_from(index).ok()) {
        service.placement = Placement::At(placement::PlaceId(index));
    }
}

fn check_members(reader: &mut Reader, section: &Section<'_>, members: &[ActorMember], sides: &Sides) {
    if members.is_empty() {
        reader.missing(section, "actors", || {
            let write = "write [[service.NAME.actors]] with name = \"counter\" and kind = \"counter\"";
            ValueError::new("no actor is declared", write)
        });
    }
    if members.len() > ACTORS_LIMIT {
        let what = format!("{} actors, more than the limit of {ACTORS_LIMIT}", members.len());
        reader.report(
            &section.key("actors"),
            ValueError::new(what, "divide them over two services"),
        );
    }
    let names: Vec<&str> = members.iter().map(|of| of.name.as_str()).collect();
    let mut known = BTreeSet::new();
    let mut ports = BTreeSet::new();
    for (index, member) in members.iter().enumerate() {
        let key = |name: &str| format!("{}[{index}].{name}", section.key("actors"));
        if !known.insert(member.name.as_str()) && !member.name.is_empty() {
            let what = format!("there is an actor {:?} already", member.name);
            reader.report(&key("name"), ValueError::new(what, "write another name"));
        }
        for port in &member.ports {
            if !ports.insert(*port) {
                let what = format!("packets to port {port} are messages of another actor already");
                reader.report(&key("ports"), ValueError::new(what, "write another port"));
            }
        }
        let parts = member.options.iter().flat_map(|(_, value)| value.split(','));
        for other in parts.filter_map(|part| part.strip_prefix('@')) {
            if !names.contains(&other) {
                let what = format!("there is no actor {other:?}");
                let write = crate::nearest::write_one_of(other, names.clone());
                reader.report(&key("options"), ValueError::new(what, write));
            }
        }
        let has_blank = |text: &str| text.contains(char::is_whitespace);
        if member
            .options
            .iter()
            .any(|(name, value)| has_blank(name) || has_blank(value))
        {
            let what = "options have no spaces";
            reader.report(&key("options"), ValueError::new(what, "write commas"));
        }
    }
    if let Some(entry) = &sides.entry
        && !names.contains(&entry.as_str())
        && !names.is_empty()
    {
        let what = format!("there is no actor {entry:?}");
        let write = crate::nearest::write_one_of(entry, names);
        reader.report(&section.key("sides.entry"), ValueError::new(what, write));
    }
}

/// The host's side of a service of actors, made from the card's: it takes no packets.
pub(crate) fn host_of(reader: &Reader, card: &Service) -> Option<Service> {
    let part = card.part.as_ref()?;
    let mut host = card.clone();
    host.name = format!("{}{HOST_SUFFIX}", card.name);
    host.matches = Match::default();
    host.vip = None;
    host.part = Some(ActorsPart {
        side: ActorSide::Host,
        ..part.clone()
    });
    place(reader, &mut host);
    Some(host)
}

/// Checks what a service of actors needs of the rest.
pub(crate) fn check(reader: &mut Reader, configuration: &Configuration) {
    for service in &configuration.services {
        let Some(part) = service.part.as_ref() else {
            continue;
        };
        let same = |of: &&Service| of.name == service.name;
        if part.side == ActorSide::Host && configuration.services.iter().filter(same).count() > 1 {
            let what = format!(
                "{} is the host's side of the service of actors {}",
                service.name, part.service
            );
            let key = format!("service.{}", service.name);
            reader.report(&key, ValueError::new(what, "write another name"));
        }
        let switch = &configuration.switch;
        if part.side == ActorSide::Card && !switch.can.returns {
            let mut others = SwitchDriver::WORDS.iter();
            let other = others.find(|(_, driver)| {
                let can = (reader.drivers)(*driver);
                can.returns && can.connects(PortKind::Memif)
            });
            let other = other.map_or("", |(word, _)| *word);
            let what = format!(
                "the driver {} has no ports by which actors answer",
                switch.driver.name()
            );
            let key = format!("service.{}.kind", service.name);
            reader.report(
                &key,
                ValueError::new(what, format!("write driver = \"{other}\" in [switch]")),
            );
        }
    }
}

/// Reads the actors of a service.
pub(crate) fn actor_tables(at: At<'_>) -> Result<Vec<ActorMember>, ValueError> {
    let example = "[[service.NAME.actors]], name = \"counter\", kind = \"counter\"";
    if at.value.as_array().is_none() {
        return Err(at.wrong_kind("a list of actors", example));
    }
    let member = |at: At<'_>| match at.value.as_table() {
        Some(_) => at.table(keys::actor),
        None => Err(at.wrong_kind("an actor", example)),
    };
    Ok(at.items(member)?.0)
}

/// Parses the kind of an actor.
pub(crate) fn kind(text: &str) -> Result<String, ValueError> {
    let is_right = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic());
    is_right.then(|| text.to_owned()).ok_or_else(|| {
        ValueError::new(
            format!("{text:?} is not a kind of actors"),
            "write one that the image's program knows, for example \"counter\"",
        )
    })
}

/// Parses the name of an actor or of a group.
pub(crate) fn actor_name(text: &str) -> Result<String, ValueError> {
    name(text)
}

/// Reads the ports of the service that belong to an actor.
pub(crate) fn actor_ports(at: At<'_>) -> Result<Vec<u16>, ValueError> {
    let ranges = crate::values::ports(at)?;
    let all: Vec<u16> = ranges.into_iter().flatten().collect();
    if all.len() > 64 {
        let what = format!("{} ports, more than the limit of 64", all.len());
        return Err(ValueError::new(
            what,
            "write fewer; what comes for no actor goes to `entry`",
        ));
    }
    Ok(all)
}
