//! The function `ipsec`: a gateway of ESP tunnels (RFC 4301, RFC 4303) with keys from its configuration.
//!
//! A packet for one of the gateway's own addresses that carries ESP, alone or in UDP, leaves its tunnel. The policies
//! decide about every other IP packet: it enters a tunnel, passes, or is dropped. The Ethernet header with its tags
//! stays as it is. What is not IP passes.
//!
//! - `suite`: what protects payloads. `replay`: which sequence numbers have come.
//! - `tunnel`: associations. `policy`: which packets they are for. `configuration`: both from a text.
//! - `too_big`, `fragment`: packets that are too long. `state`: associations as bytes.

mod configuration;
mod fragment;
mod headers;
mod hex;
mod policy;
mod replay;
mod state;
mod suite;
#[cfg(test)]
mod tests;
mod too_big;
mod tunnel;

use std::net::IpAddr;

use model::protocol::UDP as UDP_NUMBER;
use model::{Nanos, Tuple};
use ring::digest;
use state_moves::NotMoved;

use crate::about::{About, Metric, Reason};
use crate::burst::{Burst, FRAME_BYTES_LIMIT, Packet, RECEIVED_LIMIT, Verdict};
use crate::configuration::Error;
use crate::function::{Function, Setup, Summary};
use headers::{Content, ESP, Ip, UDP, be16, be32, number};
use policy::{Action, Decision};
use tunnel::{KEEPALIVE, NoEntry, NoExit};

pub use configuration::{
    ASSOCIATIONS_LIMIT, Configuration, KEEPALIVE_LIMIT_S, MTU_LIMIT, MTU_MIN, POLICIES_LIMIT, PREFIXES_LIMIT,
};
pub use replay::{WINDOW_LIMIT, WINDOW_MIN};
pub use state::BadState;
pub use suite::Suite;
pub use too_big::ANSWERS_PER_S;

/// The port of the key exchange, whose packets to and from the gateway pass.
const IKE_PORT: u16 = 500;
/// Keepalives that one tick sends, at most.
const KEEPALIVES_PER_TICK: usize = 16;
/// When the rest of them is sent.
const NEXT_PART: Nanos = Nanos::from_millis(1);

macro_rules! reasons {
    ($($constant:ident = $name:literal, $help:literal;)*) => {
        #[repr(u8)]
        #[derive(Clone, Copy)]
        enum Why { $($constant),* }
        const REASONS: &[Metric] = &[$(Metric::counter($name, $help)),*];
    };
}

reasons! {
    Malformed = "malformed", "IP packets and payloads of tunnels whose lengths or headers are wrong";
    Fragment = "fragment", "Fragments of ESP packets: they are not reassembled";
    UnknownSpi = "unknown_spi", "ESP packets of no association";
    Replay = "replay", "ESP packets whose sequence number has come before";
    TooOld = "too_old", "ESP packets whose sequence number lies before the window";
    Authentication = "authentication", "ESP packets that were changed, or made with another key";
    Unsupported = "unsupported", "Payloads of tunnels that are no IP packets";
    Congestion = "congestion", "Packets that met congestion in a tunnel, and whose ends do not understand that";
    Selector = "selector", "Packets from tunnels that no policy of their association has";
    Unprotected = "unprotected", "Packets that should have come out of a tunnel";
    Discarded = "discarded", "Packets that a policy discards, or that no policy has";
    NoAssociation = "no_association", "Packets that a policy protects without an outbound association";
    Exhausted = "exhausted", "Packets for tunnels whose sequence numbers are used up";
    TooBig = "too_big", "Packets that are too long for their tunnel and were neither divided nor answered";
    NoRoom = "no_room", "Packets whose frame has no room for the headers of a tunnel";
}

const METRICS: &[Metric] = &[
    Metric::counter("entered", "Packets that entered a tunnel"),
    Metric::counter("entered_bytes", "Bytes of layer 3 that entered a tunnel"),
    Metric::counter("left", "Packets that left a tunnel"),
    Metric::counter("left_bytes", "Bytes of layer 3 that left a tunnel"),
    Metric::counter("passed", "Packets that passed without protection"),
    Metric::counter(
        "divided",
        "Packets that were divided because they were too long for their tunnel",
    ),
    Metric::counter(
        "too_big_answered",
        "Answers that a packet is too long for its tunnel",
    ),
    Metric::counter(
        "answers_over_limit",
        "Answers that were not given because of their limit",
    ),
    Metric::counter(
        "dummies",
        "Packets from tunnels that hide that there is nothing to send",
    ),
    Metric::counter("keepalives_received", "Keepalives that came"),
    Metric::counter("keepalives_sent", "Keepalives that were sent"),
    Metric::counter("key_exchange", "Packets of the key exchange that passed"),
    Metric::gauge(
        "sequence_numbers_left",
        "Packets that the outbound association with the fewest sequence numbers can still protect",
    ),
];

/// Totals, in the order of the metrics.
#[derive(Clone, Copy, Debug, Default)]
struct Counters {
    entered: u64,
    entered_bytes: u64,
    left: u64,
    left_bytes: u64,
    passed: u64,
    divided: u64,
    answered: u64,
    answers_over_limit: u64,
    dummies: u64,
    keepalives_received: u64,
    keepalives_sent: u64,
    key_exchange: u64,
}

/// What becomes of a packet.
enum Outcome {
    /// It leaves by the opposite port.
    Forward,
    Answer,
    Consume,
    Drop(Why),
    /// It enters that tunnel in parts, of at most so many bytes.
    Divide(Ip, usize, usize),
}

/// A gateway of ESP tunnels.
pub struct Ipsec {
    configuration: Configuration,
    seed: u64,
    /// How many configurations there were.
    generation: u64,
    counters: Counters,
    budget: too_big::Budget,
    due: Option<Nanos>,
    /// Packets of the burst that are to be divided.
    oversized: Vec<(usize, Ip, usize, usize)>,
    /// A packet that is being divided.
    whole: Vec<u8>,
}

impl Ipsec {
    fn own(&self, is_v6: bool, address: u128) -> bool {
        let of = |address: &IpAddr| (address.is_ipv6(), number(*address));
        self.configuration
            .own
            .binary_search_by_key(&(is_v6, address), of)
            .is_ok()
    }

    /// Gives each outbound association that begins here initialisation vectors that no other process uses: an
    /// association may be used again after a restart, where its sequence numbers begin again.
    fn mask(&mut self) {
        for of in self.configuration.outbound.iter_mut().filter(|of| of.mask == 0) {
            let mut context = digest::Context::new(&digest::SHA256);
            context.update(&self.seed.to_be_bytes());
            context.update(&self.generation.to_be_bytes());
            context.update(&of.identity);
            let digest = context.finish();
            let first = digest.as_ref().first_chunk().copied().unwrap_or_default();
            of.mask = u64::from_be_bytes(first).max(1);
        }
    }

    #[inline]
    fn handle(&mut self, packet: &mut Packet<'_>, now: Nanos, port: u8) -> Outcome {
        let content = headers::frame(packet.frame());
        // Not moved out: its fields would be copied in larger pieces than they were just written in.
        let ip = match &content {
            Content::Ip(ip) => ip,
            Content::Other => {
                self.counters.passed += 1;
                return Outcome::Forward;
            }
            Content::Malformed => return Outcome::Drop(Why::Malformed),
        };
        match ip.protocol {
            ESP if self.own(ip.is_v6, ip.dst) => {
                if ip.is_fragment {
                    return Outcome::Drop(Why::Fragment);
                }
                let len = ip.at + ip.len - ip.transport;
                return self.out_of_tunnel(packet, ip, ip.transport, len);
            }
            UDP_NUMBER if !ip.is_fragment && (self.own(ip.is_v6, ip.dst) || self.own(ip.is_v6, ip.src)) => {
                if let Some(outcome) = self.own_udp(packet, ip) {
                    return outcome;
                }
            }
            _ => {}
        }
        self.by_policy(packet, ip, now, port)
    }

    /// UDP packets to and from the gateway itself; [`None`] for those that the policies decide about.
    fn own_udp(&mut self, packet: &mut Packet<'_>, ip: &Ip) -> Option<Outcome> {
        let udp = packet.frame().get(ip.transport..ip.at + ip.len)?;
        let ports = [be16(udp, 0)?, be16(udp, 2)?];
        let len = usize::from(be16(udp, 4)?);
        let port = self.configuration.udp_port;
        if ports[1] == port && self.own(ip.is_v6, ip.dst) {
            let payload = udp.get(UDP..len)?;
            if payload == [KEEPALIVE] {
                self.counters.keepalives_received += 1;
                return Some(Outcome::Consume);
            }
            // Four zero bytes mark the key exchange (RFC 3948, section 2.2).
            if be32(payload, 0).is_some_and(|spi| spi != 0) {
                return Some(self.out_of_tunnel(packet, ip, ip.transport + UDP, len - UDP));
            }
        }
        let is_exchange = ports.contains(&port) || ports.contains(&IKE_PORT);
        self.counters.key_exchange += u64::from(is_exchange);
        is_exchange.then_some(Outcome::Forward)
    }

    #[inline]
    fn out_of_tunnel(&mut self, packet: &mut Packet<'_>, ip: &Ip, at: usize, len: usize) -> Outcome {
        let inbound = &mut self.configuration.inbound;
        let Some(spi) = be32(packet.frame(), at) else {
            return Outcome::Drop(Why::Malformed);
        };
        let found = inbound.binary_search_by_key(&spi, |of| of.spi).ok();
        let Some(association) = found.and_then(|at| inbound.get_mut(at)) else {
            return Outcome::Drop(Why::UnknownSpi);
        };
        match association.leave(packet, ip, at, len) {
            Ok(()) => {}
            Err(NoExit::Dummy) => {
                self.counters.dummies += 1;
                return Outcome::Consume;
            }
            Err(no_exit) => {
                return Outcome::Drop(match no_exit {
                    NoExit::Malformed | NoExit::Dummy => Why::Malformed,
                    NoExit::Replay(replay::Refused::Duplicate) => Why::Replay,
                    NoExit::Replay(replay::Refused::Old) => Why::TooOld,
                    NoExit::Authentication => Why::Authentication,
                    NoExit::Unsupported => Why::Unsupported,
                    NoExit::Congestion => Why::Congestion,
                });
            }
        }
        let Content::Ip(inner) = headers::frame(packet.frame()) else {
            return Outcome::Drop(Why::Malformed);
        };
        if !self.configuration.policies.admits(&association.policies, &inner) {
            return Outcome::Drop(Why::Selector);
        }
        self.counters.left += 1;
        self.counters.left_bytes += inner.len as u64;
        Outcome::Forward
    }

    #[inline]
    fn by_policy(&mut self, packet: &mut Packet<'_>, ip: &Ip, now: Nanos, port: u8) -> Outcome {
        let at = match self.configuration.policies.decide(ip) {
            Decision::Unprotected => return Outcome::Drop(Why::Unprotected),
            Decision::Do(Action::Discard) => return Outcome::Drop(Why::Discarded),
            Decision::Do(Action::Pass) => {
                self.counters.passed += 1;
                return Outcome::Forward;
            }
            Decision::Do(Action::Protect(None)) => return Outcome::Drop(Why::NoAssociation),
            Decision::Do(Action::Protect(Some(at))) => at,
        };
        let Some(association) = self.configuration.outbound.get_mut(at) else {
            return Outcome::Drop(Why::NoAssociation);
        };
        match association.enter(packet, ip, self.configuration.mtu, now, port) {
            Ok(()) => {
                self.counters.entered += 1;
                self.counters.entered_bytes += ip.len as u64;
                Outcome::Forward
            }
            Err(NoEntry::Exhausted) => Outcome::Drop(Why::Exhausted),
            Err(NoEntry::NoRoom) => Outcome::Drop(Why::NoRoom),
            Err(NoEntry::TooBig(limit)) if ip.dont_fragment => {
                if !self.budget.take(now) {
                    self.counters.answers_over_limit += 1;
                    return Outcome::Drop(Why::TooBig);
                }
                if !too_big::answer(packet, ip, limit) {
                    return Outcome::Drop(Why::TooBig);
                }
                self.counters.answered += 1;
                Outcome::Answer
            }
            Err(NoEntry::TooBig(limit)) => Outcome::Divide(*ip, at, limit),
        }
    }

    /// Sends the parts of packets that are too long for their tunnels.
    #[cold]
    fn divide(&mut self, burst: &mut Burst, now: Nanos) {
        let port = burst.opposite();
        let mut oversized = std::mem::take(&mut self.oversized);
        for (index, ip, at, limit) in oversized.drain(..) {
            self.whole.clear();
            self.whole.extend_from_slice(burst.frame(index));
            let parts = fragment::Parts::new(&self.whole, &ip, limit);
            let mut is_complete = parts.is_some();
            for part in parts.into_iter().flatten() {
                let association = self.configuration.outbound.get_mut(at);
                let packet = burst.originate(part.len());
                let (Some(association), Some(mut packet)) = (association, packet) else {
                    is_complete = false;
                    break;
                };
                part.write(packet.frame_mut());
                let entered = match headers::frame(packet.frame()) {
                    Content::Ip(ip) => association
                        .enter(&mut packet, &ip, self.configuration.mtu, now, port)
                        .ok()
                        .map(|()| ip),
                    Content::Other | Content::Malformed => None,
                };
                match entered {
                    Some(ip) => {
                        self.counters.entered += 1;
                        self.counters.entered_bytes += ip.len as u64;
                    }
                    None => {
                        packet.drop(Reason(Why::TooBig as u8));
                        is_complete = false;
                        break;
                    }
                }
            }
            self.counters.divided += u64::from(is_complete);
            if let Some(mut packet) = burst.packet(index) {
                if is_complete {
                    packet.consume();
                } else {
                    packet.drop(Reason(Why::TooBig as u8));
                }
            }
        }
        self.oversized = oversized;
    }

    /// Whether packets between these ends, in either direction, enter a tunnel.
    fn enters(&self, flow: &Tuple) -> bool {
        let [src, dst] = [flow.src, flow.dst].map(number);
        [[src, dst], [dst, src]].into_iter().any(|ends| {
            let of = &self.configuration.policies;
            let decision = of.decide_ends(flow.src.is_ipv6(), ends, flow.protocol);
            matches!(decision, Decision::Do(Action::Protect(Some(_))))
        })
    }

    /// The associations with that index and destination, of each direction.
    fn associations(
        &self,
        (spi, to): (u32, IpAddr),
    ) -> (
        impl Iterator<Item = &tunnel::Outbound>,
        impl Iterator<Item = &tunnel::Inbound>,
    ) {
        let of = &self.configuration;
        (
            of.outbound
                .iter()
                .filter(move |of| of.spi == spi && of.ends.dst == to),
            of.inbound.iter().filter(move |of| of.spi == spi && of.dst == to),
        )
    }

    /// When the next keepalive may be due.
    fn plan_keepalives(&mut self, now: Nanos) {
        let outbound = &self.configuration.outbound;
        self.due = self.configuration.keepalive.and_then(|interval| {
            let in_udp = outbound.iter().filter(|of| of.ends.udp.is_some());
            in_udp
                .map(|of| of.sent.map_or(now, |sent| sent.at) + interval)
                .min()
        });
    }

    /// Appends the sequence numbers and windows of all associations to `into`, for [`Ipsec::import_all`] in another
    /// instance with the same configuration. After it this instance must not protect packets any more.
    pub fn export_all(&self, into: &mut Vec<u8>) {
        state::write(&self.configuration.outbound, &self.configuration.inbound, into);
    }

    /// Goes on where another instance has stopped. Returns of how many associations it knew.
    ///
    /// # Errors
    /// The bytes are no export; nothing has changed.
    pub fn import_all(&mut self, bytes: &[u8]) -> Result<usize, BadState> {
        state::take(
            &mut self.configuration.outbound,
            &mut self.configuration.inbound,
            bytes,
        )
    }
}

impl Function for Ipsec {
    type Configuration = Configuration;

    fn about() -> About {
        About {
            name: "ipsec",
            help: "Protects packets in ESP tunnels",
            reasons: REASONS,
            metrics: METRICS,
        }
    }

    fn compile(text: &str, _setup: &Setup) -> Result<Configuration, Error> {
        Configuration::read(text)
    }

    fn new(configuration: Configuration, setup: &Setup) -> Ipsec {
        let mut function = Ipsec {
            configuration,
            seed: setup.seed,
            generation: 0,
            counters: Counters::default(),
            budget: too_big::Budget::default(),
            due: None,
            oversized: Vec::with_capacity(RECEIVED_LIMIT),
            whole: Vec::with_capacity(FRAME_BYTES_LIMIT),
        };
        function.mask();
        function.plan_keepalives(Nanos::ZERO);
        function
    }

    /// Associations that stay the same keep their sequence numbers and windows.
    fn reload(&mut self, mut configuration: Configuration) -> Configuration {
        for of in &mut configuration.outbound {
            if let Some(old) = self
                .configuration
                .outbound
                .iter()
                .find(|old| old.identity == of.identity)
            {
                of.sequence = old.sequence;
                of.mask = old.mask;
                of.sent = old.sent;
            }
        }
        for of in &mut configuration.inbound {
            if let Some(old) = self
                .configuration
                .inbound
                .iter()
                .find(|old| old.identity == of.identity)
            {
                of.window.take(&old.window);
            }
        }
        let old = std::mem::replace(&mut self.configuration, configuration);
        self.generation += 1;
        self.mask();
        self.plan_keepalives(Nanos::ZERO);
        old
    }

    fn process(&mut self, burst: &mut Burst, now: Nanos) {
        let port = burst.opposite();
        for index in 0..burst.len() {
            let Some(mut packet) = burst.packet(index) else {
                break;
            };
            match self.handle(&mut packet, now, port) {
                Outcome::Forward => {}
                Outcome::Answer => packet.decide(Verdict::Answer),
                Outcome::Consume => packet.consume(),
                Outcome::Drop(why) => packet.drop(Reason(why as u8)),
                Outcome::Divide(ip, at, limit) => self.oversized.push((index, ip, at, limit)),
            }
        }
        if !self.oversized.is_empty() {
            self.divide(burst, now);
        }
    }

    fn due(&self) -> Option<Nanos> {
        self.due
    }

    fn tick(&mut self, burst: &mut Burst, now: Nanos) {
        let Some(interval) = self.configuration.keepalive else {
            self.due = None;
            return;
        };
        let mut sent = 0;
        for of in self
            .configuration
            .outbound
            .iter_mut()
            .filter(|of| of.ends.udp.is_some())
        {
            let Some(last) = of.sent.filter(|last| last.at + interval <= now) else {
                continue;
            };
            if sent == KEEPALIVES_PER_TICK {
                self.due = Some(now + NEXT_PART);
                return;
            }
            let packet = of.keepalive_len().and_then(|len| burst.originate(len));
            let Some(mut packet) = packet else { break };
            if of.write_keepalive(packet.frame_mut()).is_some() {
                packet.decide(Verdict::Forward(last.port));
                self.counters.keepalives_sent += 1;
                sent += 1;
            } else {
                packet.drop(Reason(Why::NoRoom as u8));
            }
            of.sent = Some(tunnel::Sent { at: now, ..last });
        }
        self.plan_keepalives(now);
    }

    fn metrics(&self, values: &mut [u64]) {
        let of = &self.counters;
        let left = self
            .configuration
            .outbound
            .iter()
            .map(tunnel::Outbound::left)
            .min();
        let all = [
            of.entered,
            of.entered_bytes,
            of.left,
            of.left_bytes,
            of.passed,
            of.divided,
            of.answered,
            of.answers_over_limit,
            of.dummies,
            of.keepalives_received,
            of.keepalives_sent,
            of.key_exchange,
            left.unwrap_or(0),
        ];
        values.copy_from_slice(&all);
    }

    /// Of a flow that is an association: its sequence number or its window. Packets that enter a tunnel are counted with
    /// their association, so a flow of theirs cannot leave alone.
    fn export(&self, flow: &Tuple, state: &mut [u8], _now: Nanos) -> Result<usize, NotMoved> {
        let Some(of) = packet::association_of(flow) else {
            return if self.enters(flow) {
                Err(NotMoved::Unsupported)
            } else {
                Ok(0)
            };
        };
        let (outbound, inbound) = self.associations(of);
        let mut bytes = Vec::new();
        state::write(outbound, inbound, &mut bytes);
        let room = state.get_mut(..bytes.len()).ok_or(NotMoved::TooLong)?;
        room.copy_from_slice(&bytes);
        Ok(bytes.len())
    }

    /// Sequence numbers only rise, and no number that has come is taken again: whatever the bytes say of an association,
    /// and of that one alone.
    fn import(&mut self, flow: &Tuple, moved: &[u8], _now: Nanos) -> Result<(), NotMoved> {
        let Some(of) = packet::association_of(flow) else {
            return match moved {
                [] => Ok(()),
                _ => Err(NotMoved::Malformed),
            };
        };
        let is_here = |is_outbound: bool, identity: &[u8; 32]| {
            let (mut outbound, mut inbound) = self.associations(of);
            match is_outbound {
                true => outbound.any(|of| of.identity == *identity),
                false => inbound.any(|of| of.identity == *identity),
            }
        };
        match state::is_only_of(moved, is_here) {
            Ok(true) => {}
            Ok(false) => return Err(NotMoved::Conflict),
            Err(_) => return Err(NotMoved::Malformed),
        }
        self.import_all(moved)
            .map(|_| ())
            .map_err(|_| NotMoved::Malformed)
    }

    /// Numbers and windows stay, so that none is used or taken twice. Keepalives are sent where the association is.
    fn forget(&mut self, flow: &Tuple, now: Nanos) {
        let Some((spi, to)) = packet::association_of(flow) else {
            return;
        };
        for of in &mut self.configuration.outbound {
            if of.spi == spi && of.ends.dst == to {
                of.sent = None;
            }
        }
        self.plan_keepalives(now);
    }

    fn summary(&self) -> Summary {
        let of = &self.configuration;
        let associations = (of.outbound.len() + of.inbound.len()) as u64;
        Summary {
            entries: of.policies.len() as u64,
            flows: associations,
            flows_limit: 2 * ASSOCIATIONS_LIMIT as u64,
        }
    }
}
