//! Answers from zones: RFC 1034, 4.3.2; wildcards: RFC 4592; negative answers: RFC 2308.

use super::message::{ANSWER_LIMIT, Code, Question, Section, Writer, name_len};
use super::zone::{NAME_BYTES_LIMIT, Node, Set, Zones, rtype};

/// Aliases that are followed in one answer, at most.
const ALIASES_LIMIT: usize = 16;

/// What an answer says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Records, or aliases that lead out of the zone.
    Data,
    /// The name is there, and has no records of the type.
    NoData,
    /// There is no such name.
    NxDomain,
    /// Another server is responsible.
    Referral,
    /// The name is in no zone.
    Refused,
    /// The answer is too long.
    Truncated,
}

/// A name in lower case that an alias leads to.
struct Alias {
    bytes: [u8; NAME_BYTES_LIMIT],
    len: usize,
}

impl Alias {
    fn of(data: &[u8]) -> Option<Alias> {
        let name = data.get(..name_len(data)?)?;
        let mut alias = Alias {
            bytes: [0; NAME_BYTES_LIMIT],
            len: name.len(),
        };
        alias.bytes.get_mut(..name.len())?.copy_from_slice(name);
        alias.bytes.make_ascii_lowercase();
        Some(alias)
    }

    fn name(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// Writes the answer to a question of class IN. Gives its length.
pub(super) fn answer(zones: &Zones, question: &Question, out: &mut [u8; ANSWER_LIMIT]) -> (usize, Kind) {
    let mut writer = Writer::new(out, question);
    let kind = fill(zones, question, &mut writer).unwrap_or_else(|| {
        writer.truncate(question);
        Kind::Truncated
    });
    let code = match kind {
        Kind::NxDomain => Code::NxDomain,
        Kind::Refused => Code::Refused,
        Kind::Data | Kind::NoData | Kind::Referral | Kind::Truncated => Code::NoError,
    };
    (writer.finish(code), kind)
}

/// [`None`]: there is no room.
fn fill(zones: &Zones, question: &Question, writer: &mut Writer<'_>) -> Option<Kind> {
    let Some((mut node, mut is_there)) = zones.closest(question.name()) else {
        return Some(Kind::Refused);
    };
    let apex = zones.apex(node);
    let mut alias: Option<Alias> = None;
    // The names whose alias the answer has.
    let mut owners: [&[u8]; ALIASES_LIMIT] = [&[]; ALIASES_LIMIT];
    let mut owner = question.name();
    for place in 0..ALIASES_LIMIT {
        let name = alias.as_ref().map_or(question.name(), Alias::name);
        if let Some(cut) = zones.cut(node, is_there, question.rtype) {
            refer(zones, cut, apex, writer)?;
            return Some(Kind::Referral);
        }
        writer.set_authoritative();
        let source = if is_there {
            Some(node)
        } else {
            zones.wildcard(node)
        };
        let Some(source) = source else {
            deny(zones, apex, writer)?;
            return Some(Kind::NxDomain);
        };
        // Of all types, one is enough (RFC 8482, 4.1).
        let set = match question.rtype {
            rtype::ANY => zones.sets(source).first(),
            rtype => zones.set(source, rtype),
        };
        if let Some(set) = set {
            write(zones, Section::Answer, name, set, writer)?;
            if set.rtype == rtype::NS {
                add_addresses(zones, set, apex, None, writer)?;
            }
            return Some(Kind::Data);
        }
        let Some(set) = zones.set(source, rtype::CNAME) else {
            deny(zones, apex, writer)?;
            return Some(Kind::NoData);
        };
        // Aliases that lead to each other have been answered once.
        if owners[..place].iter().any(|of| of.eq_ignore_ascii_case(owner)) {
            break;
        }
        owners[place] = owner;
        write(zones, Section::Answer, name, set, writer)?;
        owner = zones.data(set).next()?;
        let next = Alias::of(owner)?;
        match zones.closest(next.name()) {
            Some((target, exists)) if zones.apex(target) == apex => (node, is_there) = (target, exists),
            _ => break,
        }
        alias = Some(next);
    }
    Some(Kind::Data)
}

fn write(zones: &Zones, section: Section, owner: &[u8], set: &Set, writer: &mut Writer<'_>) -> Option<()> {
    for data in zones.data(set) {
        writer.record(section, owner, set.rtype, set.ttl, data)?;
    }
    Some(())
}

/// Says for how long it holds that there is nothing.
fn deny(zones: &Zones, apex: Node, writer: &mut Writer<'_>) -> Option<()> {
    let Some(set) = zones.set(apex, rtype::SOA) else {
        return Some(());
    };
    let data = zones.data(set).next()?;
    let least = data.last_chunk().map_or(0, |last| u32::from_be_bytes(*last));
    writer.record(
        Section::Authority,
        zones.name(apex),
        rtype::SOA,
        set.ttl.min(least),
        data,
    )
}

/// Says which servers are responsible, with their addresses as far as the zone has them.
fn refer(zones: &Zones, cut: Node, apex: Node, writer: &mut Writer<'_>) -> Option<()> {
    let set = zones.set(cut, rtype::NS)?;
    write(zones, Section::Authority, zones.name(cut), set, writer)?;
    add_addresses(zones, set, apex, Some(cut), writer)
}

/// Adds the addresses of servers as far as the zone has them, and as they fit. Those of servers below `cut` must.
fn add_addresses(
    zones: &Zones,
    servers: &Set,
    apex: Node,
    cut: Option<Node>,
    writer: &mut Writer<'_>,
) -> Option<()> {
    for data in zones.data(servers) {
        let server = Alias::of(data)?;
        let node = zones.find(server.name());
        let Some(node) = node.filter(|node| zones.apex(*node) == apex) else {
            continue;
        };
        // Without the addresses of those that are in the zone itself, nobody finds them (RFC 9471).
        let is_needed = cut.is_some() && zones.cut(node, true, rtype::A) == cut;
        for rtype in [rtype::A, rtype::AAAA] {
            let Some(set) = zones.set(node, rtype) else {
                continue;
            };
            let written = write(zones, Section::Additional, server.name(), set, writer);
            if is_needed {
                written?;
            }
        }
    }
    Some(())
}
