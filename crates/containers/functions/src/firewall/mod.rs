//! The function `firewall`: rules over addresses, protocols and ports, with connections or without.

pub mod classbench;
pub mod classifier;
mod configuration;
mod connections;
pub mod synthetic;
#[cfg(test)]
mod tests;
mod verdicts;

use std::fmt::Write as _;
use std::net::IpAddr;

use model::{DropReason, FlowKey, Nanos, Tuple, key_bits, protocol};
use packet::{Fragment, FragmentTracker, Offer, PacketInfo, Parsed};
use state_moves::NotMoved;

use crate::about::{About, Metric, Reason};
use crate::burst::{Burst, CAPACITY};
use crate::configuration::Error;
use crate::function::{Function, Setup, Summary};

pub use classifier::{Address, Classifier, Fields, Header, NO_RULE, TooComplex};
pub use configuration::{Action, CONNECTIONS_LIMIT, RULES_LIMIT, Rule, Settings};
use connections::Connections;
pub use verdicts::Verdicts;

const DENIED: Reason = Reason(0);
const UNMATCHED: Reason = Reason(1);
const NO_CONNECTION: Reason = Reason(2);
const CONNECTIONS_FULL: Reason = Reason(3);
const FRAGMENT: Reason = Reason(4);
const MALFORMED: Reason = Reason(5);
const OTHER: Reason = Reason(6);

/// Packets and bytes of a rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Packets on which it decided. With connections those that belong to one are counted there, not here.
    pub packets: u64,
    /// Their frames' bytes.
    pub bytes: u64,
}

/// Rules as they are compiled, with their counters and what is remembered of their verdicts.
#[derive(Debug)]
pub struct Rules {
    settings: Settings,
    v4: Classifier<u32>,
    v6: Classifier<u128>,
    verdicts: Verdicts,
    counts: Box<[Count]>,
    /// The counts as they were in the records that were written last.
    recorded: Box<[Count]>,
    connections: Option<Connections>,
}

/// Passes or drops packets by rules. See docs/functions/firewall.md.
#[derive(Debug)]
pub struct Firewall {
    rules: Rules,
    /// The ports of datagrams whose first fragment came. Later ones that come before it are not kept.
    fragments: FragmentTracker<()>,
    /// Packets that may belong to a connection.
    asked: Vec<Packet>,
    /// Those among them that do not, unless an earlier packet of this burst opens it.
    late: Vec<Packet>,
    open: Open,
    due: Option<Nanos>,
    records: Records,
    passed: Passed,
    opened: u64,
}

/// When the counts of rules are written.
#[derive(Clone, Copy, Debug)]
struct Records {
    /// The next time; none without records.
    due: Option<Nanos>,
    /// The time that is being written, and the rule that is looked at next.
    now: Option<(Nanos, usize)>,
}

impl Records {
    fn new(settings: &Settings) -> Records {
        Records {
            due: settings.count_interval.map(|_| Nanos::ZERO),
            now: None,
        }
    }
}

/// What passed because a rule had allowed its connection.
#[derive(Clone, Copy, Debug, Default)]
struct Passed {
    established: Count,
    /// ICMP errors.
    related: u64,
}

impl Passed {
    fn count(&mut self, info: &PacketInfo) {
        if info.is_icmp_error {
            self.related += 1;
        } else {
            self.established.packets += 1;
            self.established.bytes += u64::from(info.frame_len);
        }
    }
}

/// The packets of a burst on which rules decide, by family.
#[derive(Debug)]
struct Open {
    v4: Vec<Header<u32>>,
    v6: Vec<Header<u128>>,
    of_v4: Vec<Packet>,
    of_v6: Vec<Packet>,
}

/// A packet whose verdict is open.
#[derive(Clone, Copy, Debug)]
struct Packet {
    index: usize,
    info: PacketInfo,
    icmp_type: u8,
    hash: u64,
}

impl Function for Firewall {
    type Configuration = Rules;

    fn about() -> About {
        const REASONS: &[Metric] = &[
            Metric::counter("denied", "Packets that a rule denies"),
            Metric::counter(
                "unmatched",
                "Packets that no rule matches, where the default is deny",
            ),
            Metric::counter(
                "no_connection",
                "Packets that belong to no connection and cannot open one",
            ),
            Metric::counter(
                "connections_full",
                "Packets that would open a connection beyond the limit",
            ),
            Metric::counter(
                "fragment",
                "Fragments that overlap, or came before the one with the ports",
            ),
            Metric::counter(
                "malformed",
                "Packets with a header that is cut off, wrong or too long",
            ),
            Metric::counter("other", "Packets that are not IP, where other is deny"),
        ];
        const METRICS: &[Metric] = &[
            Metric::counter(
                "established_packets",
                "Packets of connections that a rule had allowed",
            ),
            Metric::counter("established_bytes", "Bytes of those packets' frames"),
            Metric::counter("related_packets", "ICMP errors about such connections"),
            Metric::counter("connections_opened", "Connections that a rule has allowed"),
            Metric::counter(
                "connections_expired",
                "Connections that ended because their time had passed",
            ),
            Metric::gauge("connections", "Connections now"),
            Metric::counter("verdicts_known", "Headers whose verdict was remembered"),
            Metric::counter(
                "verdicts_unknown",
                "Headers whose verdict was looked for and not remembered",
            ),
        ];
        About {
            name: "firewall",
            help: "Passes or drops packets by rules, and passes what belongs to connections",
            reasons: REASONS,
            metrics: METRICS,
        }
    }

    fn compile(text: &str, setup: &Setup) -> Result<Rules, Error> {
        let settings = Settings::read(text)?;
        let fields: Vec<Fields> = settings.fields.iter().map(|&(fields, _)| fields).collect();
        let complex = |error: TooComplex| Error::whole(error.to_string());
        let connections = (settings.connections > 0)
            .then(|| Connections::new(settings.connections, &settings.timeouts, setup.seed))
            .transpose()
            .map_err(|error| Error::whole(error.to_string()))?;
        Ok(Rules {
            v4: Classifier::new(&fields).map_err(complex)?,
            v6: Classifier::new(&fields).map_err(complex)?,
            verdicts: Verdicts::default(),
            counts: vec![Count::default(); settings.rules.len()].into_boxed_slice(),
            recorded: vec![Count::default(); settings.rules.len()].into_boxed_slice(),
            connections,
            settings,
        })
    }

    fn new(rules: Rules, setup: &Setup) -> Firewall {
        Firewall {
            due: rules.connections.is_some().then_some(Nanos::ZERO),
            records: Records::new(&rules.settings),
            rules,
            fragments: FragmentTracker::new([setup.seed, setup.seed.rotate_left(32) ^ 0x6669_7265_7761_6c6c]),
            asked: Vec::with_capacity(CAPACITY),
            late: Vec::with_capacity(CAPACITY),
            open: Open::new(),
            passed: Passed::default(),
            opened: 0,
        }
    }

    fn reload(&mut self, mut rules: Rules) -> Rules {
        // Connections outlive the rules that allowed them.
        if let (Some(connections), new @ Some(_)) = (&mut self.rules.connections, &mut rules.connections) {
            connections.set_timeouts(&rules.settings.timeouts);
            std::mem::swap(&mut self.rules.connections, new);
        }
        self.due = rules.connections.is_some().then_some(Nanos::ZERO);
        self.records = Records::new(&rules.settings);
        std::mem::replace(&mut self.rules, rules)
    }

    fn process(&mut self, burst: &mut Burst, now: Nanos) {
        self.open.clear();
        self.asked.clear();
        self.late.clear();
        while self.fragments.expire(now).is_some() {}
        for index in 0..burst.len().min(CAPACITY) {
            let frame = burst.frame(index);
            let reason = match packet::parse(frame) {
                Parsed::Flow(info) => {
                    self.ask(index, info, frame);
                    continue;
                }
                Parsed::Fragment(fragment) => match self.resolve(&fragment, now) {
                    Some(info) => {
                        self.ask(index, info, frame);
                        continue;
                    }
                    None => FRAGMENT,
                },
                Parsed::Other { .. } if self.rules.settings.other == Action::Allow => continue,
                Parsed::Other { .. } => OTHER,
                Parsed::Invalid(DropReason::FragmentInvalid) => FRAGMENT,
                Parsed::Invalid(_) => MALFORMED,
            };
            if let Some(mut packet) = burst.packet(index) {
                packet.drop(reason);
            }
        }
        self.follow(burst, now);
        self.decide(burst, now);
        self.follow_late(burst, now);
    }

    fn due(&self) -> Option<Nanos> {
        match (self.due, self.records.due) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        }
    }

    fn tick(&mut self, _burst: &mut Burst, now: Nanos) {
        if let (Some(due), Some(interval)) = (self.records.due, self.rules.settings.count_interval)
            && due <= now
        {
            self.records = Records {
                due: Some(now + interval),
                now: Some((now, 0)),
            };
        }
        if let Some(connections) = &mut self.rules.connections {
            let is_behind = connections.expire(now);
            self.due = Some(if is_behind {
                now
            } else {
                now + connections::INTERVAL
            });
        }
    }

    fn metrics(&self, values: &mut [u64]) {
        let connections = self.rules.connections.as_ref();
        let [known, unknown] = self.rules.verdicts.counts();
        values.copy_from_slice(&[
            self.passed.established.packets,
            self.passed.established.bytes,
            self.passed.related,
            self.opened,
            connections.map_or(0, Connections::expired),
            connections.map_or(0, |of| of.live() as u64),
            known,
            unknown,
        ]);
    }

    /// What a rule has decided, if that has changed since its last record.
    fn record(&mut self, since_1970: Nanos, line: &mut String) -> bool {
        let Some((at, first)) = self.records.now else {
            return false;
        };
        let Rules {
            settings,
            counts,
            recorded,
            ..
        } = &mut self.rules;
        let mut rules = counts.iter().zip(recorded.iter_mut()).enumerate().skip(first);
        let Some((number, (count, last))) = rules.find(|(_, (count, last))| **count != **last) else {
            self.records.now = None;
            return false;
        };
        *last = *count;
        self.records.now = Some((at, number + 1));
        let rule = &settings.rules[number];
        let action = match rule.action {
            Action::Allow => "allow",
            Action::Deny => "deny",
        };
        let at = Nanos(at.0.saturating_add(since_1970.0)).as_secs_f64();
        // Text always has room.
        let _ = write!(
            line,
            "{at:.3} rule {action} {} packets {} bytes {:?}",
            count.packets, count.bytes, rule.name
        );
        true
    }

    fn summary(&self) -> Summary {
        let connections = self.rules.connections.as_ref();
        Summary {
            entries: self.rules.settings.rules.len() as u64,
            flows: connections.map_or(0, |of| of.live() as u64),
            flows_limit: connections.map_or(0, |of| of.limit() as u64),
        }
    }

    /// The connection.
    fn export(&self, flow: &Tuple, state: &mut [u8], now: Nanos) -> Result<usize, NotMoved> {
        if flow.vlan & key_bits::OF_CONTENT != 0 {
            // One by what packets carry: what is known here are the packets' own.
            return Err(NotMoved::Unsupported);
        }
        let connections = self.rules.connections.as_ref();
        let Some(moved) = connections.and_then(|of| of.export(&FlowKey::new(flow).0, now)) else {
            return Ok(0);
        };
        let room = state.get_mut(..moved.len()).ok_or(NotMoved::TooLong)?;
        room.copy_from_slice(&moved);
        Ok(moved.len())
    }

    fn import(&mut self, flow: &Tuple, state: &[u8], now: Nanos) -> Result<(), NotMoved> {
        if flow.vlan & key_bits::OF_CONTENT != 0 {
            return Err(NotMoved::Unsupported);
        }
        let key = FlowKey::new(flow).0;
        match &mut self.rules.connections {
            Some(connections) if state.is_empty() => connections.forget(&key),
            Some(connections) => connections.import(&key, state, now)?,
            None if state.is_empty() => {}
            None => return Err(NotMoved::Conflict),
        }
        Ok(())
    }

    fn forget(&mut self, flow: &Tuple, _now: Nanos) {
        if let Some(connections) = &mut self.rules.connections {
            connections.forget(&FlowKey::new(flow).0);
        }
    }
}

impl Firewall {
    /// The rules with what each has decided since they were loaded, in their order.
    pub fn rules(&self) -> impl Iterator<Item = (&Rule, Count)> {
        self.rules
            .settings
            .rules
            .iter()
            .zip(self.rules.counts.iter().copied())
    }

    /// Notes a packet whose verdict connections or rules decide.
    #[inline]
    fn ask(&mut self, index: usize, info: PacketInfo, frame: &[u8]) {
        let is_icmp = matches!(info.protocol, model::protocol::ICMP | model::protocol::ICMPV6);
        let icmp_type = match frame.get(usize::from(info.l4_offset)) {
            Some(&first) if is_icmp => first,
            _ => 0,
        };
        let mut packet = Packet {
            index,
            info,
            icmp_type,
            hash: 0,
        };
        match &self.rules.connections {
            Some(connections) if !connections::stands_alone(&info, icmp_type) => {
                packet.hash = connections.hash(&info.key);
                connections.prefetch(&info.key, packet.hash);
                self.asked.push(packet);
            }
            _ => self.open.ask_rules(packet, frame),
        }
    }

    /// The flow of a fragment, if the one with its ports came before it.
    fn resolve(&mut self, fragment: &Fragment, now: Nanos) -> Option<PacketInfo> {
        let offer = self.fragments.offer(fragment, (), now);
        while self.fragments.release().is_some() {}
        match offer {
            Offer::Resolved { info, .. } => Some(info),
            Offer::Waiting | Offer::Refused { .. } => None,
        }
    }

    /// Passes packets of known connections; rules are asked about those that can open one.
    fn follow(&mut self, burst: &mut Burst, now: Nanos) {
        let Some(connections) = &mut self.rules.connections else {
            return;
        };
        for packet in &self.asked {
            connections.prefetch_entry(&packet.info.key, packet.hash);
        }
        for packet in &self.asked {
            let info = &packet.info;
            if connections.follow(info, packet.hash, now) {
                self.passed.count(info);
            } else if !info.is_icmp_error
                && connections::opens(info, packet.icmp_type, self.rules.settings.midstream)
            {
                self.open.ask_rules(*packet, burst.frame(packet.index));
            } else {
                self.late.push(*packet);
            }
        }
    }

    /// Passes packets of connections that this burst has opened.
    fn follow_late(&mut self, burst: &mut Burst, now: Nanos) {
        let Some(connections) = &mut self.rules.connections else {
            return;
        };
        for packet in &self.late {
            if connections.follow(&packet.info, packet.hash, now) {
                self.passed.count(&packet.info);
            } else {
                drop_packet(burst, packet.index, NO_CONNECTION);
            }
        }
    }

    /// Asks the rules, and opens connections.
    fn decide(&mut self, burst: &mut Burst, now: Nanos) {
        let mut found = [NO_RULE; CAPACITY];
        let Firewall {
            rules,
            open,
            passed,
            opened,
            ..
        } = self;
        if !open.v4.is_empty() {
            rules.verdicts.classify(&rules.v4, &open.v4, &mut found);
            *opened += rules.apply(burst, &open.of_v4, &found, passed, now);
        }
        if !open.v6.is_empty() {
            rules.v6.classify(&open.v6, &mut found[..open.v6.len()]);
            *opened += rules.apply(burst, &open.of_v6, &found, passed, now);
        }
    }
}

impl Rules {
    /// Does with packets what the rules found for them say. Returns how many connections were opened.
    fn apply(
        &mut self,
        burst: &mut Burst,
        packets: &[Packet],
        found: &[u32],
        passed: &mut Passed,
        now: Nanos,
    ) -> u64 {
        let mut opened = 0;
        for (packet, &found) in packets.iter().zip(found) {
            let info = &packet.info;
            let rule = self
                .settings
                .fields
                .get(found as usize)
                .map(|&(_, rule)| rule as usize);
            let (action, reason) = match rule {
                Some(rule) => (self.settings.rules[rule].action, DENIED),
                None => (self.settings.default, UNMATCHED),
            };
            let connections = self.connections.as_mut();
            let mut connections = connections.filter(|_| !connections::stands_alone(info, packet.icmp_type));
            // An earlier packet of this burst may have opened it.
            if action == Action::Allow
                && let Some(connections) = &mut connections
                && connections.follow(info, packet.hash, now)
            {
                passed.count(info);
                continue;
            }
            if let Some(rule) = rule {
                self.counts[rule].packets += 1;
                self.counts[rule].bytes += u64::from(info.frame_len);
            }
            if action == Action::Deny {
                drop_packet(burst, packet.index, reason);
                continue;
            }
            if let Some(connections) = connections {
                if connections.open(info, packet.hash, now) {
                    opened += 1;
                } else {
                    drop_packet(burst, packet.index, CONNECTIONS_FULL);
                }
            }
        }
        opened
    }
}

fn drop_packet(burst: &mut Burst, index: usize, reason: Reason) {
    if let Some(mut packet) = burst.packet(index) {
        packet.drop(reason);
    }
}

impl Open {
    fn new() -> Open {
        Open {
            v4: Vec::with_capacity(CAPACITY),
            v6: Vec::with_capacity(CAPACITY),
            of_v4: Vec::with_capacity(CAPACITY),
            of_v6: Vec::with_capacity(CAPACITY),
        }
    }

    fn clear(&mut self) {
        self.v4.clear();
        self.v6.clear();
        self.of_v4.clear();
        self.of_v6.clear();
    }

    /// Adds a packet on which rules decide.
    #[inline]
    fn ask_rules(&mut self, packet: Packet, frame: &[u8]) {
        let info = &packet.info;
        let tuple = info.key.tuple(info.direction);
        let (mut src, mut dst, mut ports, mut protocol) = (
            tuple.src,
            tuple.dst,
            (tuple.src_port, tuple.dst_port),
            tuple.protocol,
        );
        if info.is_icmp_error {
            // The key is that of the packet that the error is about.
            protocol = info.protocol;
            (src, dst) = match addresses(info, frame) {
                Some(ends) => ends,
                None => return,
            };
        }
        if !matches!(protocol, protocol::TCP | protocol::UDP | protocol::SCTP) {
            ports = (0, 0);
        }
        match (src, dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                let (src, dst) = (u32::from(src), u32::from(dst));
                self.v4.push(Header::new(
                    src,
                    dst,
                    ports.0,
                    ports.1,
                    protocol,
                    packet.icmp_type,
                ));
                self.of_v4.push(packet);
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                let (src, dst) = (u128::from(src), u128::from(dst));
                self.v6.push(Header::new(
                    src,
                    dst,
                    ports.0,
                    ports.1,
                    protocol,
                    packet.icmp_type,
                ));
                self.of_v6.push(packet);
            }
            // No packet has addresses of both families.
            (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => {}
        }
    }
}

/// The addresses in a packet's own header.
fn addresses(info: &PacketInfo, frame: &[u8]) -> Option<(IpAddr, IpAddr)> {
    let header = frame.get(usize::from(info.l3_offset)..)?;
    if header.first()? >> 4 == 4 {
        let src: [u8; 4] = *header.get(12..)?.first_chunk()?;
        let dst: [u8; 4] = *header.get(16..)?.first_chunk()?;
        Some((src.into(), dst.into()))
    } else {
        let src: [u8; 16] = *header.get(8..)?.first_chunk()?;
        let dst: [u8; 16] = *header.get(24..)?.first_chunk()?;
        Some((src.into(), dst.into()))
    }
}
