//! The function `ids`: finds known attacks in packets by rules, and drops them if a rule says so.
//!
//! 1. `parse` reads the rules, `matcher` makes an automaton of their contents.
//! 2. A packet belongs to a flow (`flows`); the bytes of TCP are put in order (`stream`).
//! 3. Rules whose fast pattern is in the payload are compared in full (`rule`, `matcher`).
//! 4. A match becomes a record (`alert`), unless `threshold` says that there were enough.

mod alert;
mod configuration;
mod engine;
mod flows;
mod matcher;
mod parse;
mod rule;
mod stream;
#[cfg(test)]
mod tests;
mod threshold;
mod windows;

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use model::{Nanos, protocol};
use packet::{PacketInfo, Parsed, checksum};
use simd::Level;

use crate::about::{About, Metric, Reason};
use crate::burst::Burst;
use crate::configuration::Error;
use crate::function::{Function, Setup, Summary};
use engine::{Candidates, Counters, Engine};
use flows::{Fate, Flow, Flows};
use rule::Header;
use threshold::Thresholds;

pub use alert::Alert;
pub use configuration::{
    Configuration, FLOWS_LIMIT, IDLE_LIMIT_S, MEMORY_LIMIT_MIB, WAITING_LIMIT, WINDOW_LIMIT, WINDOW_MIN,
};
pub use engine::ALERTS_LIMIT;
pub use matcher::PLACES_LIMIT;
pub use parse::{CONTENT_BYTES_LIMIT, FLOWBITS_LIMIT, LIST_LIMIT, PARTS_LIMIT, RULES_LIMIT};
pub use stream::{ACTIVE_RULES_LIMIT, WAITING_SEGMENTS_LIMIT};
pub use threshold::THRESHOLDS_LIMIT;

/// Streams whose memory is kept for others.
const SPARE_LIMIT: usize = 1_024;
/// Bytes of a stream's memory besides what it must keep: for the segment in hand.
const SEGMENT_ROOM: usize = 2_048;
/// How often idle flows are looked for.
const SWEEP: Nanos = Nanos::from_millis(10);

const DROPPED_BY_RULE: Reason = Reason(0);
const DROPPED_FLOW: Reason = Reason(1);
const REASONS: &[Metric] = &[
    Metric::counter("rule", "Packets that a rule with the action drop matches"),
    Metric::counter("flow", "Packets of flows that such a rule has matched before"),
];

const METRICS: &[Metric] = &[
    Metric::counter("inspected", "Packets that were inspected"),
    Metric::counter("payload_bytes", "Bytes of payloads that were inspected"),
    Metric::counter(
        "uninspected",
        "Frames without an IP packet, and packets with wrong headers",
    ),
    Metric::counter("fragments", "Fragments, which are not inspected"),
    Metric::counter(
        "bad_checksums",
        "TCP segments that no receiver takes, and that are not inspected",
    ),
    Metric::counter("candidates", "Rules that were compared in full with a payload"),
    Metric::counter("matches", "Matches of rules"),
    Metric::counter("alerts", "Records that were written"),
    Metric::counter(
        "alerts_lost",
        "Records that were not written, because too many waited",
    ),
    Metric::counter("alerts_suppressed", "Records that a threshold held back"),
    Metric::counter("passed", "Packets of flows that a rule has let pass"),
    Metric::counter("gaps", "Gaps in streams that were skipped"),
    Metric::counter(
        "repeated_bytes",
        "Bytes of streams that had come before, and were not looked at again",
    ),
    Metric::counter(
        "flows_over_limit",
        "Packets of flows that found no room for their state",
    ),
    Metric::counter(
        "memory_over_limit",
        "Segments whose stream found no memory; inspected by themselves",
    ),
    Metric::counter(
        "active_over_limit",
        "Rules that could not be kept for the next segment of a stream",
    ),
    Metric::counter(
        "places_over_limit",
        "Comparisons that ended early, because a payload was too repetitive",
    ),
    Metric::counter(
        "thresholds_over_limit",
        "Matches that found no room to be counted for a threshold",
    ),
    Metric::gauge("stream_bytes", "Memory that streams take, in bytes"),
];

/// What becomes of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Forward,
    Drop(Reason),
}

/// Finds known attacks.
#[derive(Debug)]
pub struct Ids {
    engine: Engine,
    flows: Flows,
    events: stream::Events,
    /// Bytes that all streams take.
    memory: usize,
    spare: Vec<Vec<u8>>,
    due: Option<Nanos>,
    level: Level,
}

impl Ids {
    /// Takes the next record, in the order of the matches.
    pub fn next_alert(&mut self) -> Option<Alert> {
        self.engine.alerts.pop_front()
    }

    fn inspect(&mut self, frame: &[u8], now: Nanos) -> Outcome {
        self.memory = self.memory.saturating_sub(self.flows.take_freed());
        let counters = &mut self.engine.counters;
        let info = match packet::parse(frame) {
            Parsed::Flow(info) => info,
            Parsed::Fragment(_) => {
                counters.fragments += 1;
                return Outcome::Forward;
            }
            Parsed::Other { .. } | Parsed::Invalid(_) => {
                counters.uninspected += 1;
                return Outcome::Forward;
            }
        };
        let Some((header, payload)) = header(frame, &info) else {
            counters.uninspected += 1;
            return Outcome::Forward;
        };
        let is_tcp = header.protocol == protocol::TCP;
        if is_tcp
            && self.engine.configuration.verify_checksums
            && !has_good_checksum(self.level, frame, &info)
        {
            counters.bad_checksums += 1;
            return Outcome::Forward;
        }
        counters.inspected += 1;
        counters.payload_bytes += payload.len() as u64;
        // An error belongs to the flow that it quotes, but it is no packet of it.
        let flow = match info.is_icmp_error {
            true => None,
            false => {
                let flow = self.flows.get(info.key, info.tcp_flags, now);
                counters.flows_over_limit += u64::from(flow.is_none());
                flow
            }
        };
        let Some(flow) = flow else {
            return self.engine.by_itself(header, payload, None, now);
        };
        match flow.marks.fate {
            Fate::Inspect => {}
            Fate::Pass => {
                counters.passed += 1;
                return Outcome::Forward;
            }
            Fate::Drop => return Outcome::Drop(DROPPED_FLOW),
        }
        flow.learn(
            info.direction,
            info.tcp_flags,
            is_tcp,
            self.engine.configuration.midstream,
        );
        let header = Header {
            is_established: flow.is_established,
            to_server: flow.client.map(|client| client == info.direction),
            ..header
        };
        if !is_tcp {
            return self.engine.by_itself(header, payload, Some(&mut flow.marks), now);
        }
        let Some(sequence) = be32(frame, usize::from(info.l4_offset) + 4) else {
            return Outcome::Forward;
        };
        let Flow { streams, marks, .. } = flow;
        let stream = &mut streams[info.direction.index()];
        let sequence = sequence.wrapping_add(u32::from(info.tcp_flags.syn()));
        if info.tcp_flags.syn() {
            stream.begin(sequence);
        }
        if payload.is_empty()
            || may_keep(
                stream,
                payload.len(),
                &self.engine.configuration,
                &mut self.memory,
                &mut self.spare,
            )
        {
            let before = stream.memory();
            let limits = self.engine.configuration.limits;
            let fresh = stream.push(sequence, payload, limits, &mut self.events);
            self.memory = self.memory + stream.memory() - before;
            self.engine.in_stream(header, payload, stream, fresh, marks, now)
        } else {
            self.engine.counters.memory_over_limit += 1;
            self.engine.by_itself(header, payload, Some(marks), now)
        }
    }
}

/// Whether a stream may take a segment; lends it memory.
fn may_keep(
    stream: &mut stream::Stream,
    len: usize,
    configuration: &Configuration,
    memory: &mut usize,
    spare: &mut Vec<Vec<u8>>,
) -> bool {
    let capacity = 2 * configuration.limits.window + SEGMENT_ROOM;
    let needed = if stream.has_memory() { len } else { len + capacity };
    if *memory + needed > configuration.memory {
        return false;
    }
    if !stream.has_memory() {
        let bytes = spare.pop().unwrap_or_else(|| Vec::with_capacity(capacity));
        *memory += bytes.capacity();
        stream.lend(bytes);
    }
    true
}

/// What rules ask of a packet's headers, and its payload.
fn header<'f>(frame: &'f [u8], info: &PacketInfo) -> Option<(Header, &'f [u8])> {
    let (l3, l4) = (usize::from(info.l3_offset), usize::from(info.l4_offset));
    let packet = frame.get(l3..l3 + info.l3_len as usize)?;
    let transport = packet.get(l4 - l3..)?;
    let (src, dst) = if packet.first()? >> 4 == 4 {
        let address = |at: usize| Some(IpAddr::V4(Ipv4Addr::from(*packet.get(at..)?.first_chunk::<4>()?)));
        (address(12)?, address(16)?)
    } else {
        let address = |at: usize| {
            Some(IpAddr::V6(Ipv6Addr::from(
                *packet.get(at..)?.first_chunk::<16>()?,
            )))
        };
        (address(8)?, address(24)?)
    };
    let has_ports = matches!(info.protocol, protocol::TCP | protocol::UDP | protocol::SCTP);
    let port = |at: usize| {
        transport
            .get(at..)?
            .first_chunk()
            .map(|port| u16::from_be_bytes(*port))
    };
    let begin = match info.protocol {
        protocol::TCP => usize::from(transport.get(12)? >> 4) * 4,
        protocol::UDP | protocol::ICMP | protocol::ICMPV6 => 8,
        protocol::SCTP => 12,
        _ => 0,
    };
    let payload = transport.get(begin..)?;
    let header = Header {
        protocol: info.protocol,
        src,
        dst,
        src_port: if has_ports { port(0)? } else { 0 },
        dst_port: if has_ports { port(2)? } else { 0 },
        is_established: false,
        to_server: None,
        payload_len: payload.len(),
    };
    Some((header, payload))
}

/// Whether the checksum of a TCP segment is right, so that its receiver takes it.
fn has_good_checksum(level: Level, frame: &[u8], info: &PacketInfo) -> bool {
    let (l3, l4) = (usize::from(info.l3_offset), usize::from(info.l4_offset));
    let Some(packet) = frame.get(l3..l3 + info.l3_len as usize) else {
        return false;
    };
    let Some(segment) = packet.get(l4 - l3..) else {
        return false;
    };
    let addresses = match packet.first() {
        Some(first) if first >> 4 == 4 => packet.get(12..20),
        _ => packet.get(8..40),
    };
    let Some(addresses) = addresses else { return false };
    let pseudo = checksum::add(checksum::sum(addresses), u16::from(protocol::TCP));
    let Ok(len) = u16::try_from(segment.len()) else {
        return false;
    };
    let sum = checksum::add(checksum::add(pseudo, len), checksum::sum_with(level, segment));
    sum == u16::MAX
}

fn be32(bytes: &[u8], at: usize) -> Option<u32> {
    bytes
        .get(at..)?
        .first_chunk::<4>()
        .map(|b| u32::from_be_bytes(*b))
}

impl Function for Ids {
    type Configuration = Configuration;

    fn about() -> About {
        About {
            name: "ids",
            help: "Finds known attacks by rules, and drops them if a rule says so",
            reasons: REASONS,
            metrics: METRICS,
        }
    }

    fn compile(text: &str, _setup: &Setup) -> Result<Configuration, Error> {
        Configuration::read(text)
    }

    fn new(configuration: Configuration, setup: &Setup) -> Ids {
        let rules = configuration.rules.len();
        Ids {
            flows: Flows::new(configuration.flows, setup.seed),
            engine: Engine {
                configuration,
                generation: 1,
                counters: Counters::default(),
                thresholds: Thresholds::new(setup.seed),
                alerts: VecDeque::with_capacity(ALERTS_LIMIT),
                candidates: Candidates::new(rules),
            },
            events: stream::Events::default(),
            memory: 0,
            spare: Vec::with_capacity(SPARE_LIMIT),
            due: Some(Nanos::ZERO),
            level: Level::detect(),
        }
    }

    /// Flows and streams stay; their marks and half-found matches are those of other rules, and are forgotten.
    fn reload(&mut self, configuration: Configuration) -> Configuration {
        self.flows.set_limit(configuration.flows);
        self.engine.generation += 1;
        let rules = configuration.rules.len();
        self.engine.candidates = Candidates::new(rules);
        std::mem::replace(&mut self.engine.configuration, configuration)
    }

    fn process(&mut self, burst: &mut Burst, now: Nanos) {
        for mut packet in burst.packets() {
            if let Outcome::Drop(reason) = self.inspect(packet.frame(), now) {
                packet.drop(reason);
            }
        }
    }

    fn due(&self) -> Option<Nanos> {
        self.due
    }

    fn tick(&mut self, _burst: &mut Burst, now: Nanos) {
        let (memory, spare) = (&mut self.memory, &mut self.spare);
        self.flows.sweep(now, self.engine.configuration.idle, |flow| {
            for mut stream in flow.streams {
                *memory = memory.saturating_sub(stream.memory());
                let bytes = stream.clear();
                if bytes.capacity() > 0 && spare.len() < SPARE_LIMIT {
                    spare.push(bytes);
                }
            }
        });
        self.engine.thresholds.sweep(now);
        self.due = Some(now + SWEEP);
    }

    fn metrics(&self, values: &mut [u64]) {
        let of = &self.engine.counters;
        values.copy_from_slice(&[
            of.inspected,
            of.payload_bytes,
            of.uninspected,
            of.fragments,
            of.bad_checksums,
            of.candidates,
            of.matches,
            of.alerts,
            of.alerts_lost,
            of.alerts_suppressed,
            of.passed,
            self.events.gaps,
            self.events.repeated_bytes,
            of.flows_over_limit,
            of.memory_over_limit,
            of.active_over_limit,
            of.places_over_limit,
            self.engine.thresholds.over_limit,
            self.memory as u64,
        ]);
    }

    /// A line of EVE.
    fn record(&mut self, since_1970: Nanos, line: &mut String) -> bool {
        let alert = self.next_alert();
        if let Some(alert) = &alert {
            line.push_str(&alert.to_json(since_1970));
        }
        alert.is_some()
    }

    fn summary(&self) -> Summary {
        Summary {
            entries: self.engine.configuration.rules.len() as u64,
            flows: self.flows.len() as u64,
            flows_limit: self.engine.configuration.flows as u64,
        }
    }
}
