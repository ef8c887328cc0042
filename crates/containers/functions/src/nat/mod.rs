//! The function `nat`: translates between internal IPv4 endpoints and external ones (NAT44 with ports). See
//! docs/functions/nat.md.

mod configuration;
mod fragments;
mod mapping;
mod moving;
mod pool;
mod records;
mod tcp;
mod translator;

use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddrV4};

use model::{Direction, FlowKey, Nanos, PortBlock, Tuple, key_bits, mix, protocol};
use packet::{PacketInfo, Parsed, Part, Rewrite, parse};
use state_moves::NotMoved;

use crate::about::{About, Metric, Reason};
use crate::burst::{Burst, Packet, RECEIVED_LIMIT};
use crate::configuration::Error;
use crate::function::{Function, Setup, Summary};

use configuration::Settings;
use fragments::{Fragments, Outcome};
use translator::{Refused, Sent, Translator};

pub use mapping::Class;
use moving::{MOVED_BYTES, MovedMapping};
pub use records::{Event, Log, Record};

/// Between two looks at what has ended, while there are mappings.
const TICK: Nanos = Nanos::from_secs(1);
/// The port of the inside, where an instance has two.
const INSIDE_PORT: u8 = 0;

const MALFORMED: Reason = Reason(0);
const FRAGMENT: Reason = Reason(1);
const PROTOCOL: Reason = Reason(2);
const NO_REALM: Reason = Reason(3);
const SPOOFED: Reason = Reason(4);
const NO_MAPPING: Reason = Reason(5);
const UNRELATED: Reason = Reason(6);
const HOST_LIMIT: Reason = Reason(7);
const NO_BLOCK: Reason = Reason(8);
const MAPPING_LIMIT: Reason = Reason(9);

const REASONS: &[Metric] = &[
    Metric::counter(
        "malformed",
        "Truncated or inconsistent headers, or a wrong IPv4 header checksum",
    ),
    Metric::counter(
        "fragment",
        "A fragment that contradicts others, is too long to wait, or found no room",
    ),
    Metric::counter(
        "protocol",
        "IPv4, but not TCP, UDP, an ICMP echo or an ICMP error",
    ),
    Metric::counter(
        "no_realm",
        "Neither from the inside to the outside, nor to an external address",
    ),
    Metric::counter(
        "spoofed",
        "With an address of the inside, but from the port of the outside",
    ),
    Metric::counter("no_mapping", "To an external endpoint that stands for nothing"),
    Metric::counter(
        "unrelated",
        "An ICMP error that does not fit the packet that it quotes, or is about no mapping",
    ),
    Metric::counter(
        "host_limit",
        "The host has as many mappings as its blocks have ports",
    ),
    Metric::counter(
        "no_block",
        "There is no free block of ports on the host's external address",
    ),
    Metric::counter(
        "mapping_limit",
        "There are as many mappings as mappings_limit says",
    ),
];

const METRICS: &[Metric] = &[
    Metric::counter("mappings_begun", "Mappings made for a new internal endpoint"),
    Metric::counter("mappings_ended", "Mappings ended because they were idle"),
    Metric::counter("mappings_imported", "Mappings taken over from other instances"),
    Metric::counter(
        "mappings_withdrawn",
        "Mappings ended because a reload took their external port away",
    ),
    Metric::gauge("hosts", "Internal hosts that have blocks of ports"),
    Metric::gauge("blocks", "Blocks of ports that this instance owns"),
    Metric::gauge("blocks_assigned", "Blocks of ports that hosts have"),
    Metric::gauge(
        "ports_lent",
        "Ports that stay taken after their mappings, because another instance has these, too",
    ),
    Metric::counter(
        "hairpinned",
        "Packets from one internal host to another's external endpoint",
    ),
    Metric::counter("passed", "Packets that are not IPv4, which leave unchanged"),
    Metric::gauge(
        "fragments_waiting",
        "Fragments that wait for the one with the ports",
    ),
    Metric::counter(
        "fragments_lost",
        "Fragments that waited, and whose first one or whose room did not come",
    ),
    Metric::gauge(
        "log_records_waiting",
        "Records of the log that have not been taken",
    ),
    Metric::counter("log_records_lost", "Records of the log beyond log_records_limit"),
];

/// Translates addresses and ports of IPv4.
///
/// ```toml
/// inside = ["10.0.0.0/8"]                  # whose packets are translated; at most 32 prefixes
/// external = ["192.0.2.1:1024-65535"]      # ports of this instance, of no other one; at most 1024 ranges
/// block_ports = 63                         # ports of a block; each host has blocks of its own
/// blocks_per_host = 8                      # at most 16
/// mappings_limit = 262144                  # 80 bytes each
/// udp_timeout_s = 300
/// tcp_established_timeout_s = 7440
/// tcp_transitory_timeout_s = 240           # while a connection opens and closes
/// icmp_timeout_s = 60
/// inbound_refresh = true                   # packets of the last remote endpoint keep a mapping of UDP and ICMP alive
/// log = "blocks"                           # or "off", "mappings"
/// log_records_limit = 8192                 # records that wait to be taken
/// ```
#[derive(Debug)]
pub struct Nat {
    translator: Translator,
    fragments: Fragments,
    has_two_ports: bool,
    /// Whether inco has given it its ports, and so brings packets to the instance that takes its mappings over.
    moves: bool,
    due: Option<Nanos>,
    hairpinned: u64,
    passed: u64,
    fragments_lost: u64,
}

/// The configuration of [`Nat`], with empty tables of its size.
#[derive(Debug)]
pub struct Configuration(Box<Translator>);

/// A packet as translation sees it.
#[derive(Clone, Copy, Debug)]
struct Subject {
    info: PacketInfo,
    class: Class,
    /// For an ICMP error, of the packet that it quotes, seen from the error's sender.
    source: SocketAddrV4,
    destination: SocketAddrV4,
    part: Part,
}

/// What a frame is.
#[derive(Clone, Copy, Debug)]
enum Seen {
    /// Leaves as it is.
    Other,
    Dropped(Reason),
    Fragment(packet::Fragment),
    Subject(Subject),
}

/// Where a packet goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// From one side to the other.
    Across,
    /// Back to the inside.
    Hairpin,
}

impl From<Refused> for Reason {
    fn from(refused: Refused) -> Reason {
        match refused {
            Refused::NoMapping => NO_MAPPING,
            Refused::HostLimit => HOST_LIMIT,
            Refused::NoBlock => NO_BLOCK,
            Refused::MappingLimit => MAPPING_LIMIT,
        }
    }
}

impl Subject {
    #[inline(always)]
    fn seen(info: PacketInfo, frame: &[u8], part: Part) -> Seen {
        let FlowKey::V4(key) = info.key else {
            return Seen::Other;
        };
        let class = match key.protocol {
            protocol::TCP => Class::Tcp,
            protocol::UDP => Class::Udp,
            protocol::ICMP if info.is_icmp_error || part == Part::Later => Class::Icmp,
            // Of other messages, identifiers are not known.
            protocol::ICMP if matches!(frame.get(usize::from(info.l4_offset)), Some(0 | 8)) => Class::Icmp,
            _ => return Seen::Dropped(PROTOCOL),
        };
        let ends = [
            SocketAddrV4::new(key.a.into(), key.a_port),
            SocketAddrV4::new(key.b.into(), key.b_port),
        ];
        let [source, destination] = match info.direction {
            Direction::Forward => ends,
            Direction::Reverse => [ends[1], ends[0]],
        };
        Seen::Subject(Subject {
            info,
            class,
            source,
            destination,
            part,
        })
    }

    /// Whether the addresses of an ICMP error fit the packet that it quotes. Routers on the way send errors too, so
    /// its source only has to be on the same side.
    fn is_consistent(&self, frame: &[u8], translator: &Translator) -> bool {
        let address = |at: usize| {
            let bytes = frame
                .get(usize::from(self.info.l3_offset) + at..)?
                .first_chunk::<4>()?;
            Some(std::net::Ipv4Addr::from(*bytes))
        };
        let (Some(source), Some(destination)) = (address(12), address(16)) else {
            return false;
        };
        destination == *self.destination.ip()
            && translator.is_inside(source) == translator.is_inside(*self.source.ip())
    }
}

#[inline(always)]
fn look(frame: &[u8]) -> Seen {
    match parse(frame) {
        Parsed::Flow(info) => Subject::seen(info, frame, Part::Headed),
        Parsed::Fragment(fragment) if matches!(fragment.info.key, FlowKey::V4(_)) => Seen::Fragment(fragment),
        Parsed::Fragment(_) | Parsed::Other { .. } => Seen::Other,
        Parsed::Invalid(_) => Seen::Dropped(MALFORMED),
    }
}

impl Nat {
    /// The next record of the log, oldest first.
    pub fn take_record(&mut self) -> Option<Record> {
        self.translator.records().take()
    }

    /// The endpoints that a packet gets. `is_of_inside`: the port's side, where ports have one.
    #[inline(always)]
    fn endpoints(
        &mut self,
        of: &Subject,
        frame: &[u8],
        is_of_inside: Option<bool>,
    ) -> Result<(Rewrite, Way), Reason> {
        let translator = &mut self.translator;
        let is_from_inside = translator.is_inside(*of.source.ip());
        let is_to_external = translator.is_external(of.class, of.destination);
        match is_of_inside {
            Some(false) if is_from_inside => return Err(SPOOFED),
            Some(true) if !is_from_inside => return Err(NO_REALM),
            _ => {}
        }
        let is_to_inside = translator.is_inside(*of.destination.ip());
        if (!is_from_inside && !is_to_external) || is_to_inside {
            return Err(NO_REALM);
        }
        let way = if is_from_inside && is_to_external {
            Way::Hairpin
        } else {
            Way::Across
        };
        let mut rewrite = Rewrite::default();
        if of.info.is_icmp_error {
            if !of.is_consistent(frame, translator) {
                return Err(UNRELATED);
            }
            if is_from_inside {
                let external = translator.external_of(of.class, of.source, of.destination);
                rewrite.source = Some(external.ok_or(UNRELATED)?);
            }
            if is_to_external {
                rewrite.destination = Some(
                    translator
                        .internal_of(of.class, of.destination)
                        .ok_or(UNRELATED)?,
                );
            }
            return Ok((rewrite, way));
        }
        let flags = of.info.tcp_flags;
        let mut remote = of.source;
        if is_from_inside {
            if way == Way::Hairpin {
                // An echo has one identifier for two endpoints, so that it cannot reach another host's.
                if of.class == Class::Icmp || translator.internal_of(of.class, of.destination).is_none() {
                    return Err(NO_MAPPING);
                }
            }
            remote = translator.outbound(of.class, of.source, of.destination, flags)?;
            rewrite.source = Some(remote);
        }
        if is_to_external {
            rewrite.destination = Some(translator.inbound(of.class, of.destination, remote, flags)?);
        }
        Ok((rewrite, way))
    }

    /// Translates a packet, or drops it.
    #[inline(always)]
    fn translate(&mut self, packet: &mut Packet<'_>, of: &Subject, is_of_inside: Option<bool>) {
        match self.endpoints(of, packet.frame(), is_of_inside) {
            Ok((rewrite, way)) => {
                if !rewrite.apply(packet.frame_mut(), &of.info, of.part) {
                    packet.drop(MALFORMED);
                } else if way == Way::Hairpin {
                    self.hairpinned += 1;
                    // Back to the router or host that sent it.
                    if let Some((macs, _)) = packet.frame_mut().split_first_chunk_mut::<12>() {
                        let (to, from) = macs.split_at_mut(6);
                        to.swap_with_slice(from);
                    }
                    packet.answer();
                }
            }
            Err(reason) => packet.drop(reason),
        }
    }

    fn fragment(
        &mut self,
        burst: &mut Burst,
        index: usize,
        fragment: &packet::Fragment,
        side: Option<bool>,
        now: Nanos,
    ) {
        let outcome = self.fragments.offer(fragment, burst.frame(index), now);
        let Some(mut packet) = burst.packet(index) else {
            return;
        };
        match outcome {
            Outcome::Waits => packet.consume(),
            Outcome::Refused => packet.drop(FRAGMENT),
            Outcome::Known(info) => {
                let part = if fragment.is_first() {
                    Part::Headed
                } else {
                    Part::Later
                };
                self.headless(&mut packet, info, part, side);
                self.release(burst, side);
            }
        }
    }

    /// A fragment whose flow is known.
    fn headless(&mut self, packet: &mut Packet<'_>, info: PacketInfo, part: Part, side: Option<bool>) {
        match Subject::seen(info, packet.frame(), part) {
            Seen::Subject(subject) => self.translate(packet, &subject, side),
            Seen::Dropped(reason) => packet.drop(reason),
            Seen::Other | Seen::Fragment(_) => packet.drop(FRAGMENT),
        }
    }

    /// Sends the fragments that waited for one.
    #[cold]
    fn release(&mut self, burst: &mut Burst, side: Option<bool>) {
        while let Some((frame, info)) = self.fragments.release() {
            let Some(mut packet) = burst.originate(frame.len()) else {
                self.fragments_lost += 1;
                continue;
            };
            packet.frame_mut().copy_from_slice(frame);
            self.headless(&mut packet, info, Part::Later, side);
        }
    }

    /// Ends what is over. Sets when that is to be done again.
    fn turn(&mut self, now: Nanos) {
        let has_more = self.translator.turn(now);
        self.fragments.expire(now);
        let ends = match self.translator.mappings() {
            0 => None,
            _ if has_more => Some(now),
            _ => Some(now + TICK),
        };
        let fragments = self.fragments.deadline();
        self.due = ends.into_iter().chain(fragments).min();
    }
}

impl Function for Nat {
    type Configuration = Configuration;

    fn about() -> About {
        About {
            name: "nat",
            help: "Translates IPv4 addresses and ports, with blocks of ports for each host",
            reasons: REASONS,
            metrics: METRICS,
        }
    }

    fn compile(text: &str, setup: &Setup) -> Result<Configuration, Error> {
        let settings = Settings::parse(text, setup.external)?;
        Ok(Configuration(Box::new(Translator::new(settings, setup.seed))))
    }

    fn new(configuration: Configuration, setup: &Setup) -> Nat {
        Nat {
            translator: *configuration.0,
            fragments: Fragments::new([mix(setup.seed), mix(setup.seed ^ 4)]),
            has_two_ports: setup.ports > 1,
            moves: setup.external.is_some(),
            due: None,
            hairpinned: 0,
            passed: 0,
            fragments_lost: 0,
        }
    }

    /// With the same ranges and limits only settings change. Otherwise mappings move to new tables, some 100 ns each;
    /// those whose external port is gone end.
    fn reload(&mut self, mut configuration: Configuration) -> Configuration {
        self.translator.reload(&mut configuration.0);
        configuration
    }

    fn process(&mut self, burst: &mut Burst, now: Nanos) {
        self.turn(now);
        let side = self.has_two_ports.then_some(burst.port() == INSIDE_PORT);
        let mut seen = [Seen::Other; RECEIVED_LIMIT];
        // Three passes, so that the memory of one packet is fetched while others are worked on.
        for (packet, seen) in burst.packets().zip(&mut seen) {
            *seen = look(packet.frame());
            if let Seen::Subject(subject) = seen {
                self.translator.prefetch_internal(subject.class, subject.source);
            }
        }
        let given = burst.len().min(RECEIVED_LIMIT);
        for seen in &seen[..given] {
            if let Seen::Subject(subject) = seen {
                self.translator
                    .prefetch_mapping(subject.class, [subject.source, subject.destination]);
            }
        }
        for (index, seen) in seen[..given].iter().enumerate() {
            if let Seen::Fragment(fragment) = seen {
                self.fragment(burst, index, fragment, side, now);
                continue;
            }
            let Some(mut packet) = burst.packet(index) else {
                continue;
            };
            match seen {
                Seen::Subject(subject) => self.translate(&mut packet, subject, side),
                Seen::Dropped(reason) => packet.drop(*reason),
                Seen::Other | Seen::Fragment(_) => self.passed += 1,
            }
        }
        if self.due.is_none() && self.translator.mappings() > 0 {
            self.due = Some(now + TICK);
        }
        if let Some(deadline) = self.fragments.deadline() {
            self.due = Some(self.due.map_or(deadline, |due| due.min(deadline)));
        }
    }

    fn due(&self) -> Option<Nanos> {
        self.due
    }

    fn tick(&mut self, _burst: &mut Burst, now: Nanos) {
        self.turn(now);
    }

    fn metrics(&self, values: &mut [u64]) {
        let of = self.translator.counters();
        let pool = self.translator.pool();
        let log = self.translator.log();
        let all = [
            of.begun,
            of.ended,
            of.imported,
            of.withdrawn,
            pool.hosts() as u64,
            pool.blocks() as u64,
            pool.blocks_assigned() as u64,
            self.translator.lent() as u64,
            self.hairpinned,
            self.passed,
            self.fragments.waiting() as u64,
            self.fragments_lost + self.fragments.timed_out(),
            log.waiting() as u64,
            log.lost(),
        ];
        for (value, of) in values.iter_mut().zip(all) {
            *value = of;
        }
    }

    /// A line of the log.
    fn record(&mut self, since_1970: Nanos, line: &mut String) -> bool {
        let record = self.take_record();
        if let Some(record) = record {
            let at = Nanos(record.at.0.saturating_add(since_1970.0));
            // Text always has room.
            let _ = write!(line, "{}", Record { at, ..record });
        }
        record.is_some()
    }

    fn summary(&self) -> Summary {
        Summary {
            entries: self.translator.pool().blocks() as u64,
            flows: self.translator.mappings() as u64,
            flows_limit: self.translator.limit() as u64,
        }
    }

    /// The flow's mapping, which may be one of several flows: it stays here as well. Where inco has not given the external
    /// ports, the network goes on sending here, and only what is not translated leaves.
    fn export(&self, flow: &Tuple, state: &mut [u8], _now: Nanos) -> Result<usize, NotMoved> {
        if flow.vlan & key_bits::OF_CONTENT != 0 {
            // One by what packets carry: what is known here are the packets' own.
            return Err(NotMoved::Unsupported);
        }
        let (IpAddr::V4(source), IpAddr::V4(destination)) = (flow.src, flow.dst) else {
            return Ok(0);
        };
        let class = match flow.protocol {
            protocol::TCP => Class::Tcp,
            protocol::UDP => Class::Udp,
            protocol::ICMP => Class::Icmp,
            _ => return Ok(0),
        };
        let ends = [
            SocketAddrV4::new(source, flow.src_port),
            SocketAddrV4::new(destination, flow.dst_port),
        ];
        if !self.translator.has(class, ends) {
            return Ok(0);
        }
        if !self.moves {
            return Err(NotMoved::Unsupported);
        }
        let room = state.get_mut(..MOVED_BYTES).ok_or(NotMoved::TooLong)?;
        match self.translator.give(class, ends) {
            Some(moved) => room.copy_from_slice(&moved.to_bytes()),
            None => return Ok(0),
        }
        Ok(MOVED_BYTES)
    }

    fn import(&mut self, flow: &Tuple, state: &[u8], now: Nanos) -> Result<(), NotMoved> {
        if state.is_empty() {
            return Ok(());
        }
        let moved = MovedMapping::from_bytes(state).filter(|_| self.moves);
        let moved = moved.ok_or(NotMoved::Malformed)?;
        let (IpAddr::V4(source), IpAddr::V4(destination)) = (flow.src, flow.dst) else {
            return Err(NotMoved::Malformed);
        };
        let source = SocketAddrV4::new(source, flow.src_port);
        let destination = SocketAddrV4::new(destination, flow.dst_port);
        let (remote, of) = match source {
            _ if source == moved.internal => (destination, Sent::There),
            _ if source == moved.external => (destination, Sent::PerhapsHere),
            _ => (source, Sent::PerhapsHere),
        };
        self.turn(now);
        self.translator.take_over(&moved, remote, of)?;
        self.due = self.due.or(Some(now + TICK));
        Ok(())
    }

    fn hand_over(
        &mut self,
        from: u32,
        room: &mut [u8],
        now: Nanos,
    ) -> Result<(usize, Option<u32>), NotMoved> {
        if !self.moves {
            return Err(NotMoved::Unsupported);
        }
        self.turn(now);
        Ok(self.translator.give_all(from, room))
    }

    fn take_over(&mut self, mappings: &[u8], now: Nanos) -> Result<(), NotMoved> {
        if !self.moves {
            return Err(NotMoved::Unsupported);
        }
        let (all, rest) = mappings.as_chunks::<MOVED_BYTES>();
        let read = |bytes: &[u8; MOVED_BYTES]| MovedMapping::from_bytes(bytes);
        if !rest.is_empty() || !all.iter().all(|bytes| read(bytes).is_some()) {
            return Err(NotMoved::Malformed);
        }
        self.turn(now);
        let mut taken = Ok(());
        for moved in all.iter().filter_map(read) {
            taken = taken.and(self.translator.take_over(&moved, moved.remote, Sent::PerhapsHere));
        }
        self.due = self.due.or(Some(now + TICK));
        taken
    }

    fn mappings_in(&mut self, ports: &PortBlock, now: Nanos) -> Option<u32> {
        self.turn(now);
        Some(self.translator.count(ports))
    }
}

#[cfg(test)]
mod compared;
#[cfg(test)]
mod moves;
#[cfg(test)]
mod tests;
