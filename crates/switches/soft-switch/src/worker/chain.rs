//! Chains of services: what an instance of one service returns is steered to an instance of the next one.
//!
//! A flow has an entry in the table for each service of its chain, each with the service's [hop](model::key_bits::hop) in its key. The
//! first service's hop is 0, so uplinks find its entry. That entry has one pin: for packets that leave the first
//! service for the next. Packets of the other direction find no pin at the uplink, so they come here, and enter the
//! last service. An entry of hop 0 with both pins is that of a flow which the service had before it got a next one:
//! that flow goes on without the next one. The entries of the other services have both pins.
//!
//! All entries of a flow have one owner, because a hop does not count for that. A returned packet goes to the owner of
//! its addresses first, and from there to its next instance, as a packet from an uplink does: so a flow's packets keep
//! their order.

use flow_table::EntryIndex;
use model::{DropReason, FlowKey, ServiceId, Slot, UplinkId, protocol};
use packet::{Offer, PacketInfo, Parsed, TcpFlags};
use switch::Plan;

use crate::frame::{Frame as _, FrameMemory};
use crate::id_map::ServiceMap;
use crate::message::{Destination, Passed};
use crate::worker::context::{Context, View};
use crate::worker::egress::Decision;
use crate::worker::ends;
use crate::worker::ingress::Origin;
use crate::worker::lookup::{Lookup, Missed};
use crate::worker::returns::Onward;
use crate::worker::set_up::Opening;
use crate::worker::unknown::TcpPart;

/// A service at its place in a chain.
#[derive(Clone, Copy)]
pub(crate) struct Hop {
    /// Which service.
    service: ServiceId,
    /// Its place in the plan.
    index: usize,
    /// Its place in the chain.
    place: u8,
    previous: Option<ServiceId>,
    next: Option<ServiceId>,
    /// The last service of the chain.
    last: ServiceId,
    /// The uplink of the chain's beginning, and that of its end: the same one where there is one.
    uplinks: [UplinkId; 2],
}

/// The chains of a plan.
pub(crate) struct Chains {
    hops: ServiceMap<Option<Hop>>,
    /// Whether there is one.
    pub(crate) are_there: bool,
}

/// Which way along its chain a packet goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Course {
    /// From the first service to the last one.
    Out,
    /// From the last one to the first.
    Back,
}

impl Chains {
    pub(crate) fn new() -> Chains {
        Chains {
            hops: ServiceMap::from_fn(|| None),
            are_there: false,
        }
    }

    /// Takes over the chains of a plan, which has been [checked](Plan::validate). Nothing is allocated.
    pub(crate) fn follow(&mut self, plan: &Plan) {
        self.are_there = plan.services.iter().any(|service| service.next.is_some());
        self.hops.iter_mut().for_each(|hop| *hop = None);
        if !self.are_there {
            return;
        }
        let firsts = plan.services.iter().filter(|of| plan.previous(of.id).is_none());
        for first in firsts.filter(|of| of.next.is_some()) {
            let last = plan.chain(first.id).last().map_or(first.id, |of| of.id);
            let begins = first.uplinks.first().copied().unwrap_or_default();
            let uplinks = [begins, first.uplinks.get(1).copied().unwrap_or(begins)];
            let mut previous = None;
            for (place, of) in (0..).zip(plan.chain(first.id)) {
                self.hops[of.id] = Some(Hop {
                    service: of.id,
                    index: plan
                        .services
                        .iter()
                        .position(|s| s.id == of.id)
                        .unwrap_or_default(),
                    place,
                    previous: previous.replace(of.id),
                    next: of.next,
                    last,
                    uplinks,
                });
            }
        }
    }

    /// Whether a service is in a chain.
    pub(crate) fn has(&self, service: ServiceId) -> bool {
        self.hops[service].is_some()
    }

    /// The service at its place, if it is in a chain.
    #[inline]
    fn hop(&self, service: ServiceId) -> Option<Hop> {
        self.hops[service]
    }
}

impl Hop {
    fn has_one_uplink(&self) -> bool {
        self.uplinks[0] == self.uplinks[1]
    }

    /// The uplink on whose side packets of that course enter its services.
    fn entered_from(&self, course: Course) -> UplinkId {
        match course {
            Course::Out => self.uplinks[0],
            Course::Back => self.uplinks[1],
        }
    }

    /// The uplink by which packets of that course leave the chain.
    fn left_by(&self, course: Course) -> UplinkId {
        match course {
            Course::Out => self.uplinks[1],
            Course::Back => self.uplinks[0],
        }
    }

    /// The course of packets that come from that uplink, where that tells it.
    fn course_from(&self, uplink: UplinkId) -> Option<Course> {
        match uplink {
            _ if self.has_one_uplink() => None,
            uplink if uplink == self.uplinks[1] => Some(Course::Back),
            _ => Some(Course::Out),
        }
    }
}

/// The course of a packet in a chain with one uplink, by the entry of its flow.
fn course_by_opener(info: &PacketInfo, entry: EntryIndex, lookup: &Lookup) -> Course {
    if lookup.table.opener(entry) == info.direction {
        Course::Out
    } else {
        Course::Back
    }
}

/// The course of a packet in a chain with one uplink, of whose flow nothing is known. It is taken for the first one.
fn course_of_unknown(info: &PacketInfo) -> Course {
    let both = TcpFlags::SYN | TcpFlags::ACK;
    let answers = info.key.protocol() == protocol::TCP && info.tcp_flags.0 & both == both;
    if info.is_icmp_error || answers {
        Course::Back
    } else {
        Course::Out
    }
}

/// Steers a packet that came in on that uplink into its chain, if it has one, and its flow is unknown there, or has no
/// pin for it. Gives it back otherwise.
#[cold]
pub(crate) fn take_in<M: FrameMemory>(
    frame: M::Frame,
    info: &PacketInfo,
    missed: &Missed,
    uplink: UplinkId,
    to: &mut Onward<'_, M>,
) -> Option<M::Frame> {
    match entrance(info, missed, uplink, to) {
        Some((hop, course)) => enter(frame, info, &hop, course, to),
        None => return Some(frame),
    }
    None
}

/// Whether a service of a chain has the flow: `has` says whether the table has a key.
pub(crate) fn knows(key: &FlowKey, view: &View, mut has: impl FnMut(&FlowKey) -> bool) -> bool {
    let hops = view.plan.services.iter().filter_map(|of| view.chains.hop(of.id));
    hops.into_iter().any(|hop| has(&key.at_hop(hop.place)))
}

/// The service that such a packet enters, and its course.
fn entrance<M: FrameMemory>(
    info: &PacketInfo,
    missed: &Missed,
    uplink: UplinkId,
    to: &mut Onward<'_, M>,
) -> Option<(Hop, Course)> {
    let (cx, lookup) = (&*to.cx, &mut *to.lookup);
    let (chains, plan) = (&cx.view.chains, &cx.view.plan);
    let (first, course) = match missed.entry {
        Some(entry) => {
            let first = chains
                .hop(lookup.table.service(entry))
                .filter(|hop| hop.place == 0)?;
            let course = first.course_from(uplink);
            (
                first,
                course.unwrap_or_else(|| course_by_opener(info, entry, lookup)),
            )
        }
        None => {
            let firsts = plan.services.iter().filter_map(|of| chains.hop(of.id));
            let mut firsts = firsts.filter(|hop| hop.place == 0 && hop.uplinks.contains(&uplink));
            // A service of the chain may have changed the addresses: then the last one alone knows them.
            let known = firsts.find_map(|first| {
                let last = chains.hop(first.last)?;
                let entry = find(&info.key, &last, lookup, cx)?;
                let course = first.course_from(uplink);
                Some((
                    first,
                    course.unwrap_or_else(|| course_by_opener(info, entry, lookup)),
                ))
            });
            let by_match = || {
                let of = plan.classify(|| info.key.tuple(info.direction), uplink)?;
                let first = chains.hop(plan.services.get(of)?.id)?;
                let course = first.course_from(uplink);
                Some((first, course.unwrap_or_else(|| course_of_unknown(info))))
            };
            known.or_else(by_match)?
        }
    };
    let hop = match course {
        Course::Out => first,
        Course::Back => chains.hop(first.last)?,
    };
    Some((hop, course))
}

/// The entry of a flow at a service of a chain.
fn find<M: FrameMemory>(
    key: &FlowKey,
    hop: &Hop,
    lookup: &mut Lookup,
    cx: &Context<M>,
) -> Option<EntryIndex> {
    let key = key.at_hop(hop.place);
    let entry = lookup.table.lookup(&key, cx.hasher.hash(&key))?;
    (lookup.table.service(entry) == hop.service).then_some(entry)
}

/// Passes a packet on that an instance of a chain has returned.
pub(crate) fn pass_on<M: FrameMemory>(frame: M::Frame, from: Passed, to: &mut Onward<'_, M>) {
    match packet::parse(frame.bytes()) {
        Parsed::Flow(info) => match to.cx.other_owner(&info.key) {
            Some(owner) => to.egress.hand_off(owner, frame, Destination::Passed(from), to.cx),
            None => go_on(frame, &info, from, to),
        },
        Parsed::Fragment(mut fragment) => {
            if let Some(owner) = to.cx.other_owner(&fragment.info.key) {
                return to.egress.hand_off(owner, frame, Destination::Passed(from), to.cx);
            }
            // Each service may change it, so it is another datagram behind each.
            let place = to.cx.view.chains.hop(from.service).map_or(0, |hop| hop.place);
            fragment.info.key = fragment.info.key.at_hop(place + 1);
            let offered = to
                .ingress
                .fragments
                .offer(&fragment, (frame, Origin::Chain(from)), to.cx.now);
            match offered {
                Offer::Resolved { frame, info } => {
                    let mut next = Some((frame, info));
                    while let Some(((frame, origin), info)) = next {
                        match origin {
                            Origin::Chain(from) => go_on(frame, &info, from, to),
                            Origin::Uplink(_) | Origin::Instance(_) => {
                                to.cx.discard(frame, DropReason::Spoofed);
                            }
                        }
                        next = to.ingress.fragments.release();
                    }
                }
                Offer::Waiting => {}
                Offer::Refused {
                    frame: (frame, _),
                    reason,
                } => to.cx.discard(frame, reason),
            }
        }
        // It has no flow, and no service takes such packets.
        Parsed::Other { .. } => to.egress.send_to_uplink(frame, from.uplink, to.cx),
        Parsed::Invalid(reason) => to.cx.discard(frame, reason),
    }
}

/// Steers a returned packet, whose flow this worker owns, to the service that is next on its course, or out.
fn go_on<M: FrameMemory>(frame: M::Frame, info: &PacketInfo, from: Passed, to: &mut Onward<'_, M>) {
    let Some(hop) = to.cx.view.chains.hop(from.service) else {
        // The plan has changed meanwhile.
        return to.egress.send_to_uplink(frame, from.uplink, to.cx);
    };
    let own = find(&info.key, &hop, to.lookup, to.cx);
    let course = match own {
        // What it returns at one end of the chain goes to that end.
        _ if !hop.has_one_uplink() && from.uplink == hop.uplinks[0] => Course::Back,
        _ if !hop.has_one_uplink() => Course::Out,
        Some(entry) => course_by_opener(info, entry, to.lookup),
        None => course_of_unknown(info),
    };
    let table = &mut to.lookup.table;
    match own {
        Some(entry) if hop.place == 0 && table.pins(entry).iter().all(|pin| pin.is_some()) => {
            return to.egress.send_to_uplink(frame, from.uplink, to.cx);
        }
        Some(entry) if !info.is_icmp_error => {
            // Where an instance changes addresses, what it returns keeps the other key alive.
            table.hit(entry, info.direction, 0, 0, to.cx.now, 0);
        }
        None if course == Course::Out => learn(info, &hop, from.slot, to),
        _ => {}
    }
    let next = match course {
        Course::Out => hop.next,
        Course::Back => hop.previous,
    };
    match next.and_then(|next| to.cx.view.chains.hop(next)) {
        Some(next) => enter(frame, info, &next, course, to),
        None => to.egress.send_to_uplink(frame, hop.left_by(course), to.cx),
    }
}

/// Pins a flow that an instance has made, by other addresses or by itself, to that instance: what comes back gets
/// there.
#[cold]
fn learn<M: FrameMemory>(info: &PacketInfo, hop: &Hop, slot: Slot, to: &mut Onward<'_, M>) {
    let (cx, table) = (&mut *to.cx, &mut to.lookup.table);
    let route = &cx.view.routes[slot];
    let is_its = route.serves && route.service == hop.service && table.is_slot_usable(slot);
    let is_tcp = info.key.protocol() == protocol::TCP;
    // In a flood, first packets have no entry.
    let is_flooded = is_tcp && to.set_up.goes_by_hash(hop.index, cx.now);
    if !is_its || is_flooded || info.is_icmp_error || ends::ends(info) {
        return;
    }
    let key = info.key.at_hop(hop.place);
    let hash = cx.hasher.hash(&key);
    // Another service may have had the flow under this key.
    table.purge(&key, hash);
    let mut pins = [slot; 2];
    if hop.place == 0 {
        pins[info.direction.flipped().index()] = Slot::NONE;
    }
    match table.insert(&key, hash, info.direction, pins, hop.service, cx.now) {
        Ok(_) => cx.counters.slots[slot].new_flows.add(1),
        Err(_) => cx.counters.figures.table_full.add(1),
    }
}

/// Steers a packet to its instance of that service.
fn enter<M: FrameMemory>(
    frame: M::Frame,
    info: &PacketInfo,
    hop: &Hop,
    course: Course,
    to: &mut Onward<'_, M>,
) {
    let cx = &mut *to.cx;
    let table = &mut to.lookup.table;
    let key = info.key.at_hop(hop.place);
    let hash = cx.hasher.hash(&key);
    let uplink = hop.entered_from(course);
    // The direction of the packets that go out.
    let out = match course {
        Course::Out => info.direction,
        Course::Back => info.direction.flipped(),
    };
    let mut entry = table.lookup(&key, hash);
    if entry.is_some_and(|entry| table.service(entry) != hop.service) {
        // The chain was another one.
        table.purge(&key, hash);
        entry = None;
    }
    let (now, bytes, flags) = (cx.now, u64::from(info.frame_len), info.tcp_flags.0);
    let mut lost = Slot::NONE;
    if let Some(entry) = entry {
        if !info.is_icmp_error {
            // Those of the first service were counted at the uplink.
            let (packets, bytes, flags) = if hop.place == 0 {
                (0, 0, 0)
            } else {
                (1, bytes, flags)
            };
            table.hit(entry, info.direction, packets, bytes, now, flags);
        }
        let pin = table.pin(entry, out);
        let route = &cx.view.routes[pin];
        if route.serves {
            let service = route.service;
            let decision = Decision::Instance { slot: pin, service };
            return to.egress.send(frame, decision, uplink, cx);
        }
        lost = pin;
    }
    let is_unknown_tcp = entry.is_none() && key.protocol() == protocol::TCP;
    let opening = Opening {
        key: &key,
        direction: out,
        hash,
        dscp: info.dscp,
        uplink,
        is_icmp_error: info.is_icmp_error,
        part: if is_unknown_tcp {
            TcpPart::of(info.tcp_flags)
        } else {
            TcpPart::None
        },
        of: Some(hop.index),
    };
    // With two uplinks the chain's end may open flows, too; with one, who opens a flow is its beginning.
    let opener = if hop.has_one_uplink() { out } else { info.direction };
    let decision = to.set_up.open(&opening, None, table, cx, |table, place| {
        let slot = place.slot;
        let moved = match entry {
            Some(entry) if hop.place == 0 => table.set_pin(entry, out, slot, now),
            Some(entry) => table.set_pins(entry, [slot; 2], now),
            None => {
                let pins = if hop.place == 0 { place.pins } else { [slot; 2] };
                let entry = table.insert(&key, hash, opener, pins, hop.service, now)?;
                table.hit(entry, info.direction, 1, bytes, now, flags);
                false
            }
        };
        Ok(moved | lost.is_some())
    });
    to.egress.send(frame, decision, uplink, cx);
}
