//! The rules that are written: what they match, what they do, and how they are told apart.

mod meaning;
mod spread;
mod tag;

use std::collections::BTreeMap;

pub(crate) use meaning::{Meaning, meaning};
use model::{ServiceId, Slot, Tuple};
use openflow::{
    Action, ConnectionTracking, Field, FieldKind, FlowCommand, FlowFlags, FlowMod, Instruction, Match,
    Message, port,
};
pub use spread::{Part, Side, Spread};
pub(crate) use spread::{has_ports, ports_of};
use tag::LOCAL_TYPE;
pub(crate) use tag::{ROUNDS, Tag, is_probe, marker_frame, probe_frame};

/// The table that packets meet: each further one costs a card a look-up, and its rules are exact or prefixes.
pub const TABLE: u8 = 0;
/// The table in which packets go on whose connection was looked up. Only those of buckets that change their instance
/// do.
pub const HANDOVER_TABLE: u8 = 1;
/// Connections of ours among those that the switch tracks have zones from this one on. Each move of a bucket has its
/// own: where a service is not symmetric, a connection is two flows, whose buckets move each for itself.
const FIRST_ZONE: u16 = 0x1000;
/// Zones of moves, more than there are moves at a time.
pub(crate) const ZONES: u16 = 4096;
/// The header's kind of messages that one maker understands, and what asks Open vSwitch to forget the connections of
/// a zone (`NXT_CT_FLUSH_ZONE`).
const EXPERIMENTER: u8 = 4;
const NICIRA: u32 = 0x0000_2320;
const FLUSH_ZONE: u32 = 29;
/// Packets that come from the monitor port: ours, with the tag that says where to.
pub(crate) const INJECT_PRIORITY: u16 = 400;
/// One flow, exactly.
pub(crate) const PIN_PRIORITY: u16 = 300;
/// New flows, by some bits of their header.
pub(crate) const BUCKET_PRIORITY: u16 = 250;
/// What comes back from an instance.
pub(crate) const RETURN_PRIORITY: u16 = 100;
/// A probe that comes back from an instance.
pub(crate) const PROBE_PRIORITY: u16 = 110;
/// IP packets of an uplink that are of no service.
pub(crate) const UNMATCHED_PRIORITY: u16 = 2;
/// Packets of an uplink that are not IP.
pub(crate) const OTHER_PRIORITY: u16 = 1;
// Buckets of each service have two priorities of their own, above what comes back from instances.
const _: () = assert!(BUCKET_PRIORITY as usize - 2 * ServiceId::LIMIT > PROBE_PRIORITY as usize);

/// The upper 16 bits of every cookie of ours.
pub(crate) const OWNER: u64 = 0x1ac0 << 48;
/// The bits by which our rules are told from those of others.
pub const OWNER_MASK: u64 = 0xffff << 48;
const KIND_SHIFT: u32 = 40;
const VALUE_MASK: u64 = (1 << KIND_SHIFT) - 1;

/// What a rule is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RuleKind {
    /// Of the switch's own working: injection, return, marker.
    Fixed = 1,
    /// Of a bucket.
    Bucket = 2,
    /// Of a flow.
    Pin = 3,
    /// Of packets of no service.
    Fallback = 4,
}

/// Makes what Open vSwitch decides by a bucket's rule rest on all addresses and ports, as what it decides by a flow's
/// own does. An entry of its cache that rests on less would be removed when the flow gets a rule of its own, amidst
/// its packets: one that finds no entry leaves before those of its burst that found the old one. One that rests on as
/// much is given other actions where it is. The hash itself is always 0.
const READ_ALL: Action = Action::Multipath { highest: 0 };

/// The cookie of a rule.
pub(crate) const fn cookie(kind: RuleKind, value: u64) -> u64 {
    OWNER | (kind as u64) << KIND_SHIFT | value & VALUE_MASK
}

/// The number of the pin that has this cookie.
pub(crate) const fn pin_number(of: u64) -> Option<u64> {
    if of & !VALUE_MASK == cookie(RuleKind::Pin, 0) {
        Some(of & VALUE_MASK)
    } else {
        None
    }
}

/// The number of the fallback that has this cookie.
pub(crate) fn fallback_number(of: u64) -> Option<usize> {
    if of & !VALUE_MASK == cookie(RuleKind::Fallback, 0) {
        usize::try_from(of & VALUE_MASK).ok()
    } else {
        None
    }
}

/// Whether a cookie is one of ours.
pub(crate) const fn is_ours(of: u64) -> bool {
    of & OWNER_MASK == OWNER
}

/// A service, as its rules need it.
#[derive(Clone, Debug, PartialEq)]
pub struct ServiceRules {
    /// Which.
    pub id: ServiceId,
    /// Where its packets come in.
    pub sides: Vec<Side>,
    /// What chooses a bucket.
    pub spread: Spread,
    /// The ports of its uplinks: what an instance gives back on data port k leaves by the k-th.
    pub uplinks: Vec<u32>,
    /// Share of an instance's capacity that scheduling may use, above 0 and at most 1.
    pub fit: f32,
}

/// Packets of which family a fallback is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// IPv4.
    Ipv4,
    /// IPv6.
    Ipv6,
    /// Everything else.
    Other,
}

/// A rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rule {
    pub(crate) table: u8,
    pub(crate) priority: u16,
    pub(crate) cookie: u64,
    pub(crate) matches: Match,
    pub(crate) actions: Vec<Action>,
}

impl Rule {
    /// Whether it sends to an uplink what an instance gives back.
    pub(crate) const fn is_return(&self) -> bool {
        self.priority == RETURN_PRIORITY
    }

    /// The message that writes it.
    pub(crate) fn add(&self) -> Message {
        Message::FlowMod(FlowMod {
            table: self.table,
            priority: self.priority,
            cookie: self.cookie,
            // That a flow has lost its rule must be known at once; others are looked at when a connection is made.
            flags: match pin_number(self.cookie) {
                Some(_) => FlowFlags::SEND_REMOVED,
                None => FlowFlags::default(),
            },
            matches: self.matches.clone(),
            instructions: vec![Instruction::ApplyActions(self.actions.clone())],
            ..FlowMod::default()
        })
    }

    /// The message that deletes it, and no other that has come in its place.
    pub(crate) fn delete(&self) -> Message {
        Message::FlowMod(FlowMod {
            command: FlowCommand::DeleteStrict,
            table: self.table,
            priority: self.priority,
            cookie: self.cookie,
            cookie_mask: u64::MAX,
            matches: self.matches.clone(),
            ..FlowMod::default()
        })
    }
}

/// What a bucket's rule does beside what its instance's rules say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BucketWay {
    /// Sends to the instance.
    Plain,
    /// What the switch remembers of a connection decides. One of which it remembers nothing comes to the instance,
    /// and that is remembered from its first packet on.
    Tracked {
        /// Where it is remembered: one of [`ZONES`].
        zone: u16,
        /// The instance's mark, where the bucket has one.
        mark: Option<u32>,
    },
}

/// The port of an instance's data port.
pub(crate) fn data_port(ports: &[u32], number: u8) -> u32 {
    // One-arm functions have one port for all uplinks.
    let of = ports.get(usize::from(number)).or(ports.first());
    of.copied().unwrap_or(port::ANY)
}

/// The priority of the bucket rules of a side, of the service at that place: the first service that takes a packet
/// has it, and a packet that could travel either way begins a flow.
fn bucket_priority(place: usize, side: &Side) -> u16 {
    BUCKET_PRIORITY - 2 * place.min(ServiceId::LIMIT - 1) as u16 - u16::from(side.is_answering)
}

/// What is done to new flows: they go to the instance, if there is one, and a copy to us.
fn to_instance(of: &Side, to: Option<(Slot, &[u32])>, monitor: u32) -> Vec<Action> {
    match to {
        Some((slot, ports)) => {
            let mut actions = vec![Action::output(data_port(ports, of.data_port))];
            actions.extend(Tag::Instance(slot, of.uplink).to_monitor(monitor));
            actions
        }
        None => Tag::Held(of.uplink).to_monitor(monitor),
    }
}

/// The rules of a bucket on a side: the one that packets meet, and the one in [`HANDOVER_TABLE`]. `place`: the
/// service's among all.
pub(crate) fn bucket_rules(
    service: &ServiceRules,
    place: usize,
    side: usize,
    bucket: usize,
    to: Option<(Slot, &[u32])>,
    way: BucketWay,
    monitor: u32,
) -> Option<[Rule; 2]> {
    let of = service.sides.get(side)?;
    let mut fields = service.spread.fields(of, bucket);
    fields.push(Field::in_port(of.port));
    let number = (service.id.index() as u64) << 24 | (side as u64) << 16 | bucket as u64;
    let track = |commit, zone, table, actions| {
        Action::ConnectionTracking(ConnectionTracking {
            commit,
            zone: FIRST_ZONE + zone,
            table,
            actions,
        })
    };
    let plain = to_instance(of, to, monitor);
    let (then, unmarked) = match way {
        BucketWay::Plain => (plain.clone(), plain),
        BucketWay::Tracked { zone, mark } => {
            let remember = mark.map(|mark| {
                let mark = Action::SetField(Field::u32(FieldKind::CT_MARK, mark));
                track(true, zone, None, vec![mark])
            });
            let ask = track(false, zone, Some(HANDOVER_TABLE), Vec::new());
            (vec![ask], remember.into_iter().chain(plain).collect())
        }
    };
    let met = [READ_ALL].into_iter().chain(then).collect();
    let handover = Rule {
        table: HANDOVER_TABLE,
        priority: bucket_priority(place, of),
        cookie: cookie(RuleKind::Bucket, 1 << 32 | number),
        matches: Match::new(fields),
        actions: unmarked,
    };
    let first = Rule {
        table: TABLE,
        cookie: cookie(RuleKind::Bucket, number),
        actions: met,
        ..handover.clone()
    };
    Some([first, handover])
}

/// The rules by which connections with an instance's mark stay with it.
pub(crate) fn marked_rules(slot: Slot, mark: u32, ports: &[u32], sides: &[Side], monitor: u32) -> Vec<Rule> {
    // Sides of one port differ in what they match.
    let by_port: BTreeMap<u32, &Side> = sides.iter().map(|side| (side.port, side)).collect();
    let rule = |of: &Side| Rule {
        table: HANDOVER_TABLE,
        priority: PIN_PRIORITY,
        cookie: cookie(
            RuleKind::Fixed,
            4 << 32 | u64::from(slot.0) << 8 | u64::from(of.uplink),
        ),
        matches: Match::new([Field::in_port(of.port), Field::u32(FieldKind::CT_MARK, mark)]),
        actions: to_instance(of, Some((slot, ports)), monitor),
    };
    by_port.into_values().map(rule).collect()
}

/// Asks Open vSwitch to forget which instances connections in that zone had.
pub(crate) fn forget_marks(zone: u16) -> Message {
    let mut body = Vec::with_capacity(16);
    body.extend(NICIRA.to_be_bytes());
    body.extend(FLUSH_ZONE.to_be_bytes());
    body.extend([0; 6]);
    body.extend((FIRST_ZONE + zone).to_be_bytes());
    Message::Other {
        kind: EXPERIMENTER,
        body,
    }
}

/// The rule by which all packets of a side that have no pin come to the controller.
pub(crate) fn packet_in_rule(service: &ServiceRules, place: usize, side: usize) -> Option<Rule> {
    let of = service.sides.get(side)?;
    let fields = of.fields.iter().copied().chain([Field::in_port(of.port)]);
    Some(Rule {
        table: TABLE,
        priority: bucket_priority(place, of),
        cookie: cookie(
            RuleKind::Bucket,
            (service.id.index() as u64) << 24 | (side as u64) << 16,
        ),
        matches: Match::new(fields),
        actions: vec![Action::output(port::CONTROLLER)],
    })
}

/// The exact rule of a flow on a side. `tuple`: as its packets travel there.
pub(crate) fn pin_rule(side: &Side, tuple: &Tuple, number: u64, ports: &[u32]) -> Rule {
    let mut fields = vec![
        Field::in_port(side.port),
        Field::eth_type(if tuple.dst.is_ipv6() { 0x86dd } else { 0x0800 }),
        Field::ip_proto(tuple.protocol),
        Field::source(tuple.src),
        Field::destination(tuple.dst),
        match tuple.vlan {
            0 => Field::no_vlan(),
            id => Field::vlan(id),
        },
    ];
    if let Some((source, destination)) = ports_of(tuple.protocol) {
        fields.push(Field::u16(source, tuple.src_port));
        fields.push(Field::u16(destination, tuple.dst_port));
    }
    Rule {
        table: TABLE,
        priority: PIN_PRIORITY,
        cookie: cookie(RuleKind::Pin, number),
        matches: Match::new(fields),
        actions: vec![Action::output(data_port(ports, side.data_port))],
    }
}

/// The rules of an instance: frames of ours to its ports, and what comes back to the uplinks.
pub(crate) fn instance_rules(slot: Slot, ports: &[u32], uplinks: &[u32], monitor: u32) -> Vec<Rule> {
    let mut rules = Vec::new();
    for number in 0..uplinks.len().max(ports.len()) as u8 {
        let to = data_port(ports, number);
        let fields = Tag::Instance(slot, number).fields().into_iter();
        rules.push(Rule {
            table: TABLE,
            priority: INJECT_PRIORITY,
            cookie: cookie(RuleKind::Fixed, u64::from(slot.0) << 8 | u64::from(number)),
            matches: Match::new(fields.chain([Field::in_port(monitor)])),
            actions: vec![Action::PopVlan, Action::output(to)],
        });
    }
    for (number, own) in ports.iter().enumerate() {
        let Some(uplink) = uplinks.get(number).or(uplinks.first()) else {
            continue;
        };
        // Where it came in by the same port, the switch would not send it out again.
        rules.push(Rule {
            table: TABLE,
            priority: RETURN_PRIORITY,
            cookie: cookie(RuleKind::Fixed, 1 << 32 | u64::from(slot.0) << 8 | number as u64),
            matches: Match::new([Field::in_port(*own)]),
            actions: vec![Action::output(*uplink)],
        });
        rules.push(Rule {
            table: TABLE,
            priority: PROBE_PRIORITY,
            cookie: cookie(RuleKind::Fixed, 3 << 32 | u64::from(slot.0) << 8 | number as u64),
            matches: Match::new([Field::in_port(*own), Field::eth_type(LOCAL_TYPE)]),
            actions: Tag::Instance(slot, number as u8).to_monitor(monitor),
        });
    }
    rules
}

/// The rule of packets that are of no service. Without actions a switch drops.
pub(crate) fn fallback_rule(number: usize, from: u32, family: Family, to: Option<u32>) -> Rule {
    let in_port = Field::in_port(from);
    let (priority, matches) = match family {
        Family::Ipv4 => (UNMATCHED_PRIORITY, Match::new([in_port, Field::eth_type(0x0800)])),
        Family::Ipv6 => (UNMATCHED_PRIORITY, Match::new([in_port, Field::eth_type(0x86dd)])),
        Family::Other => (OTHER_PRIORITY, Match::new([in_port])),
    };
    // To the port by which it came in only if told so.
    let out = |to: u32| Action::output(if to == from { port::IN_PORT } else { to });
    Rule {
        table: TABLE,
        priority,
        cookie: cookie(RuleKind::Fallback, number as u64),
        matches,
        actions: to.map(out).into_iter().collect(),
    }
}

/// The rule that sends markers back with the round's number.
pub(crate) fn marker_rule(monitor: u32, round: u8) -> Rule {
    let fields = Tag::Marker.fields().into_iter();
    Rule {
        table: TABLE,
        priority: INJECT_PRIORITY,
        cookie: cookie(RuleKind::Fixed, 2 << 32),
        matches: Match::new(fields.chain([Field::in_port(monitor)])),
        actions: vec![
            Action::SetField(Field::vlan(Tag::Marked(round).id())),
            Action::output(port::IN_PORT),
        ],
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use model::protocol;
    use proptest::prelude::*;

    use super::spread::Header;
    use super::*;

    fn side(is_answering: bool) -> Side {
        let base: IpAddr = "10.128.0.0".parse().unwrap();
        let own = if is_answering {
            Field::source(base)
        } else {
            Field::destination(base)
        };
        Side {
            uplink: u8::from(is_answering),
            port: 1 + u32::from(is_answering),
            data_port: 0,
            is_answering,
            fields: vec![
                Field::eth_type(0x0800),
                Field::ip_proto(protocol::UDP),
                own.masked(&[255, 255, 0, 0]),
            ],
        }
    }

    proptest! {
        #[test]
        fn a_packet_matches_the_rule_of_its_bucket_and_of_no_other(
            src: [u8; 4], low: [u8; 2], src_port: u16, dst_port: u16, answering: bool, dst_bits in 0_u8..5,
        ) {
            let spread = Spread { parts: vec![
                (Part::SourcePort, 2), (Part::SourceAddress, 1), (Part::DestinationAddress, dst_bits),
            ] };
            let service = ServiceRules {
                id: ServiceId(0), sides: vec![side(false), side(true)], spread, uplinks: vec![1, 2], fit: 1.0,
            };
            let opening = Tuple {
                src: src.into(), dst: [10, 128, low[0], low[1]].into(),
                src_port, dst_port, protocol: protocol::UDP, vlan: 0,
            };
            let answer = Tuple {
                src: opening.dst, dst: opening.src, src_port: dst_port, dst_port: src_port, ..opening
            };
            let (tuple, place) = if answering { (answer, 1) } else { (opening, 0) };
            let own = service.spread.bucket(&tuple, answering);
            prop_assert_eq!(own, service.spread.bucket(&opening, false), "both directions have one bucket");
            prop_assert!(service.sides[place].takes(&tuple));
            for bucket in 0..service.spread.buckets() {
                let [rule, _] = bucket_rules(&service, 0, place, bucket, None, BucketWay::Plain, 9).unwrap();
                let header = Header::of(&tuple);
                let mut others = rule.matches.fields().iter().filter(|f| f.kind() != FieldKind::IN_PORT);
                prop_assert_eq!(others.all(|field| header.has(field)), bucket == own);
            }
            let pin = pin_rule(&service.sides[place], &tuple, 7, &[5]);
            prop_assert_eq!(pin_number(pin.cookie), Some(7));
        }

        #[test]
        fn the_same_holds_for_ipv6_without_a_protocol(
            src: [u8; 16], dst: [u8; 16], src_port: u16, protocol in prop::sample::select(vec![6_u8, 17, 58, 132]),
        ) {
            let sides = [false, true].map(|is_answering| Side {
                is_answering, fields: vec![Field::eth_type(0x86dd), Field::no_vlan()], ..side(is_answering)
            });
            let spread = Spread { parts: vec![(Part::SourceAddress, 2), (Part::DestinationAddress, 2)] };
            let service = ServiceRules { id: ServiceId(3), sides: sides.into(), spread, uplinks: vec![1, 2], fit: 1.0 };
            let tuple = Tuple {
                src: src.into(), dst: dst.into(), src_port, dst_port: 80, protocol, vlan: 0,
            };
            let own = service.spread.bucket(&tuple, false);
            let header = Header::of(&tuple);
            for bucket in 0..service.spread.buckets() {
                let [rule, _] = bucket_rules(&service, 0, 0, bucket, None, BucketWay::Plain, 9).unwrap();
                let mut others = rule.matches.fields().iter().filter(|f| f.kind() != FieldKind::IN_PORT);
                prop_assert_eq!(others.all(|field| header.has(field)), bucket == own);
            }
            let pin = pin_rule(&service.sides[0], &tuple, 1, &[5]);
            let mut fields = pin.matches.fields().iter().filter(|f| f.kind() != FieldKind::IN_PORT);
            prop_assert!(fields.all(|field| header.has(field)));
            let tagged = Tuple { vlan: 7, ..tuple };
            prop_assert!(!service.sides[0].takes(&tagged));
        }

        #[test]
        fn tags_come_back_as_they_were_put(slot in 0..Slot::LIMIT as u16, number in 0_u8..8, round in 0..ROUNDS) {
            let frame = [7; 64];
            for tag in [Tag::Instance(Slot(slot), number), Tag::Held(number), Tag::Marker, Tag::Marked(round)] {
                prop_assert_eq!(Tag::take(&tag.put(&frame)), Some((tag, frame.to_vec())));
            }
        }
    }

    #[test]
    fn on_its_way_a_bucket_sends_where_it_did_or_by_marks() {
        let service = ServiceRules {
            id: ServiceId(0),
            sides: vec![side(false), side(true)],
            spread: Spread {
                parts: vec![(Part::SourcePort, 2)],
            },
            uplinks: vec![1, 2],
            fit: 1.0,
        };
        let to = (Slot(3), [22].as_slice());
        let rules = |way| bucket_rules(&service, 0, 0, 1, Some(to), way, 9).unwrap();
        let [plain, handover] = rules(BucketWay::Plain);
        assert_eq!((plain.table, handover.table), (TABLE, HANDOVER_TABLE));
        assert_eq!(plain.matches, handover.matches);
        let (first, sent) = plain.actions.split_first().unwrap();
        assert_eq!((first, sent), (&READ_ALL, handover.actions.as_slice()));
        let [asking, handover] = rules(BucketWay::Tracked {
            zone: 5,
            mark: Some(7),
        });
        let (track, rest) = handover.actions.split_first().unwrap();
        assert_eq!(rest, sent, "packets go where they went");
        let marks = Action::SetField(Field::u32(FieldKind::CT_MARK, 7));
        let tracking = |commit, table, actions| {
            Action::ConnectionTracking(ConnectionTracking {
                commit,
                zone: FIRST_ZONE + 5,
                table,
                actions,
            })
        };
        assert_eq!(*track, tracking(true, None, vec![marks]));
        assert_eq!(
            asking.actions,
            [READ_ALL, tracking(false, Some(HANDOVER_TABLE), Vec::new())]
        );
        assert_eq!(asking.matches, plain.matches, "each takes the other's place");
        // What has a mark comes to its instance on each side, before the bucket's own rule.
        let marked = marked_rules(Slot(3), 7, &[22], &service.sides, 9);
        assert_eq!(marked.len(), 2);
        assert!(marked.iter().all(|rule| rule.priority > handover.priority));
        assert_eq!(marked.first().map(|rule| rule.actions.as_slice()), Some(sent));
    }

    #[test]
    fn what_is_too_short_or_has_no_tag_is_nothing() {
        assert_eq!(Tag::take(&[0; 15]), None);
        assert_eq!(Tag::take(&[0; 64]), None);
        assert_eq!(Tag::take(&marker_frame()).map(|(tag, _)| tag), Some(Tag::Marker));
    }
}
