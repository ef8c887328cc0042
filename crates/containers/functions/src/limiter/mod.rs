//! The function `limiter`: limits the rate of each source, destination, prefix or flow. See docs/functions/limiter.md.

mod buckets;
mod configuration;
mod gcra;

use std::net::IpAddr;

use model::{FlowKey, Nanos, Tuple, key_bits, mix};
use packet::{PacketInfo, Parsed, parse};
use state_moves::NotMoved;

use crate::about::{About, Metric, Reason};
use crate::addresses::addresses;
use crate::burst::{Burst, RECEIVED_LIMIT};
use crate::configuration::Error;
use crate::function::{Function, Setup, Summary};
use crate::keyed::Keyed;

use buckets::{Buckets, Taken};
use configuration::{Key, Rule, Settings};

/// Between two looks at how many buckets are in use.
const TICK: Nanos = Nanos::from_secs(1);
/// Lines of buckets looked at in one: 128 KiB.
const LINES_PER_TICK: usize = 2048;

const MALFORMED: Reason = Reason(0);
const OVER_RATE: Reason = Reason(1);

const REASONS: &[Metric] = &[
    Metric::counter(
        "malformed",
        "Truncated or inconsistent headers, or a wrong IPv4 header checksum",
    ),
    Metric::counter("over_rate", "Over the rate of its bucket"),
];

const METRICS: &[Metric] = &[
    Metric::counter(
        "unlimited",
        "Packets that no rule is about, and packets that are not IP",
    ),
    Metric::counter(
        "shared",
        "Packets whose bucket found no place, and that took from the common one of their rule",
    ),
    Metric::counter("buckets_begun", "Times that a bucket that was full took a place"),
];

/// Limits rates with token buckets.
///
/// ```toml
/// buckets_limit = 1048576       # buckets that are not full, at once; 32 bytes each
///
/// [[rule]]                      # at most 64; the first one that fits a packet limits it
/// from = "10.0.0.0/8"           # packets from there; without it, all
/// key = "source"                # which packets share a bucket: "source", "destination" or "flow"
/// prefix_v4 = 32                # leading bits of the address that count
/// prefix_v6 = 64
/// rate = "10Mbit/s"             # bit/s, kbit/s, Mbit/s, Gbit/s of frames, or pps, kpps, Mpps
/// burst_bytes = 65536           # with a rate in packets: burst_packets
/// ```
#[derive(Debug)]
pub struct Limiter {
    state: State,
    keyed: Keyed,
    unlimited: u64,
    shared: u64,
    /// Where the next look at buckets begins, and the estimate of the last ones.
    line: usize,
    in_use: u64,
    due: Nanos,
}

#[derive(Debug)]
struct State {
    settings: Settings,
    buckets: Buckets,
    /// When the common bucket of each rule is full.
    common: Vec<u64>,
}

/// The configuration of [`Limiter`], with empty buckets.
#[derive(Debug)]
pub struct Configuration(Box<State>);

/// Bytes of what the bucket of one direction owes: version, direction, rule, and the nanoseconds until it is full, in the
/// byte order of networks.
pub const MOVED_BYTES: usize = 11;
/// Of their layout.
const VERSION: u8 = 1;

/// What of a packet chooses its bucket.
#[derive(Clone, Copy, Debug)]
struct Subject {
    source: IpAddr,
    destination: IpAddr,
    /// The flow; of a later fragment without ports, of an ICMP error that which it quotes.
    flow: FlowKey,
}

/// A packet with its rule and its bucket.
#[derive(Clone, Copy, Debug)]
enum Seen {
    Unlimited,
    Malformed,
    Limited { rule: u8, tag: u64 },
}

impl Subject {
    /// The addresses are those of the packet itself: an ICMP error cannot take from the bucket of a host by quoting it.
    #[inline(always)]
    fn new(info: &PacketInfo, frame: &[u8]) -> Option<Subject> {
        let (source, destination) = addresses(info, frame)?;
        Some(Subject {
            source,
            destination,
            flow: info.key,
        })
    }
}

impl Rule {
    /// The words that stand for a packet's bucket.
    #[inline(always)]
    fn words(&self, rule: u64, of: &Subject) -> [u64; 6] {
        let address = |of: IpAddr| match of {
            IpAddr::V4(of) => [rule << 8 | 4, u64::from(u32::from(of) & self.mask_v4), 0, 0, 0, 0],
            IpAddr::V6(of) => {
                let of = u128::from(of) & self.mask_v6;
                [rule << 8 | 6, (of >> 64) as u64, of as u64, 0, 0, 0]
            }
        };
        match self.key {
            Key::Source => address(of.source),
            Key::Destination => address(of.destination),
            Key::Flow => match of.flow {
                FlowKey::V4(key) => {
                    let ends =
                        u64::from(u32::from_be_bytes(key.a)) << 32 | u64::from(u32::from_be_bytes(key.b));
                    [
                        rule << 8 | 14,
                        ends,
                        ports(key.a_port, key.b_port, key.vlan, key.protocol),
                        0,
                        0,
                        0,
                    ]
                }
                FlowKey::V6(key) => {
                    let (a, b) = (u128::from_be_bytes(key.a), u128::from_be_bytes(key.b));
                    let ports = ports(key.a_port, key.b_port, key.vlan, key.protocol);
                    [
                        rule << 8 | 16,
                        (a >> 64) as u64,
                        a as u64,
                        (b >> 64) as u64,
                        b as u64,
                        ports,
                    ]
                }
            },
        }
    }
}

fn ports(a: u16, b: u16, vlan: u16, protocol: u8) -> u64 {
    u64::from(a) << 48 | u64::from(b) << 32 | u64::from(vlan) << 8 | u64::from(protocol)
}

impl State {
    /// The rule and the tag of a packet's bucket; [`None`] if no rule is about it.
    #[inline(always)]
    fn bucket_of(&self, keyed: &Keyed, of: &Subject) -> Option<(u8, u64)> {
        let fits = |rule: &Rule| rule.from.is_none_or(|from| from.contains(of.source));
        let at = self.settings.rules.iter().position(fits)?;
        let words = self.settings.rules[at].words(at as u64, of);
        // Of most packets three words say all.
        let tag = match words {
            [first, second, third, 0, 0, 0] => Buckets::tag(keyed, [first, second, third]),
            words => Buckets::tag(keyed, words),
        };
        Some((at as u8, tag))
    }
}

impl Limiter {
    /// Rules and tags of the buckets of a flow, by direction; the same one only once.
    fn buckets_of(&self, flow: &Tuple) -> [Option<(u8, u64)>; 2] {
        let back = Tuple {
            src: flow.dst,
            dst: flow.src,
            src_port: flow.dst_port,
            dst_port: flow.src_port,
            ..*flow
        };
        let [first, second] = [flow, &back].map(|of| self.state.bucket_of(&self.keyed, &Subject::of(of)));
        [first, second.filter(|_| second != first)]
    }
}

impl Subject {
    fn of(tuple: &Tuple) -> Subject {
        Subject {
            source: tuple.src,
            destination: tuple.dst,
            flow: FlowKey::new(tuple).0,
        }
    }
}

impl Function for Limiter {
    type Configuration = Configuration;

    fn about() -> About {
        About {
            name: "limiter",
            help: "Limits the rate of each source, destination, prefix or flow",
            reasons: REASONS,
            metrics: METRICS,
        }
    }

    fn compile(text: &str, _setup: &Setup) -> Result<Configuration, Error> {
        let settings = Settings::parse(text)?;
        Ok(Configuration(Box::new(State {
            buckets: Buckets::new(settings.buckets_limit),
            common: vec![0; settings.rules.len()],
            settings,
        })))
    }

    fn new(configuration: Configuration, setup: &Setup) -> Limiter {
        Limiter {
            state: *configuration.0,
            keyed: Keyed::new(mix(setup.seed)),
            unlimited: 0,
            shared: 0,
            line: 0,
            in_use: 0,
            due: Nanos::ZERO,
        }
    }

    /// Buckets keep what they owe if `buckets_limit` is the same: a bucket belongs to the place of its rule in the list.
    /// Otherwise all are full.
    fn reload(&mut self, mut configuration: Configuration) -> Configuration {
        let other = &mut *configuration.0;
        if other.buckets.limit() == self.state.buckets.limit() {
            std::mem::swap(&mut other.settings, &mut self.state.settings);
            std::mem::swap(&mut other.common, &mut self.state.common);
        } else {
            std::mem::swap(other, &mut self.state);
        }
        configuration
    }

    fn process(&mut self, burst: &mut Burst, now: Nanos) {
        let now = gcra::parts(now.0);
        let mut seen = [Seen::Unlimited; RECEIVED_LIMIT];
        for (packet, seen) in burst.packets().zip(&mut seen) {
            let frame = packet.frame();
            let info = match parse(frame) {
                Parsed::Flow(info) => info,
                Parsed::Fragment(fragment) => fragment.info,
                Parsed::Other { .. } => continue,
                Parsed::Invalid(_) => {
                    *seen = Seen::Malformed;
                    continue;
                }
            };
            let subject = Subject::new(&info, frame);
            if let Some((rule, tag)) = subject.and_then(|of| self.state.bucket_of(&self.keyed, &of)) {
                self.state.buckets.prefetch(tag);
                *seen = Seen::Limited { rule, tag };
            }
        }
        for (mut packet, seen) in burst.packets().zip(seen) {
            let (rule, tag) = match seen {
                Seen::Limited { rule, tag } => (usize::from(rule), tag),
                Seen::Malformed => {
                    packet.drop(MALFORMED);
                    continue;
                }
                Seen::Unlimited => {
                    self.unlimited += 1;
                    continue;
                }
            };
            let of = &self.state.settings.rules[rule];
            let units = if of.counts_bytes { packet.len() as u64 } else { 1 };
            match self.state.buckets.take(tag, &of.limit, now, units) {
                Taken::Yes => {}
                Taken::No => packet.drop(OVER_RATE),
                Taken::NoPlace => {
                    self.shared += 1;
                    let common = &mut self.state.common[rule];
                    match of.limit.take(*common, now, units) {
                        Some(after) => *common = after,
                        None => packet.drop(OVER_RATE),
                    }
                }
            }
        }
    }

    fn due(&self) -> Option<Nanos> {
        Some(self.due)
    }

    /// Looks at a part of the buckets. A table of a million is looked at once in four minutes.
    fn tick(&mut self, _burst: &mut Burst, now: Nanos) {
        let buckets = &self.state.buckets;
        let lines = LINES_PER_TICK.min(buckets.lines());
        let in_use = buckets.in_use(self.line, lines, gcra::parts(now.0));
        self.in_use = (in_use * buckets.lines() / lines) as u64;
        self.line = (self.line + lines) % buckets.lines();
        self.due = now + TICK;
    }

    fn metrics(&self, values: &mut [u64]) {
        let all = [self.unlimited, self.shared, self.state.buckets.begun()];
        for (value, of) in values.iter_mut().zip(all) {
            *value = of;
        }
    }

    /// `flows` are buckets that are not full, estimated from a part of them each second.
    fn summary(&self) -> Summary {
        Summary {
            entries: self.state.settings.rules.len() as u64,
            flows: self.in_use,
            flows_limit: self.state.buckets.limit() as u64,
        }
    }

    /// What the buckets of both directions owe. The bucket of a source or destination may have other flows; the other
    /// instance lets its own owe at least as much.
    fn export(&self, flow: &Tuple, state: &mut [u8], now: Nanos) -> Result<usize, NotMoved> {
        if flow.vlan & key_bits::OF_CONTENT != 0 {
            // One by what packets carry: what is known here are the packets' own.
            return Err(NotMoved::Unsupported);
        }
        let now = gcra::parts(now.0);
        let mut room = state;
        let mut written = 0;
        for (direction, bucket) in (0..).zip(self.buckets_of(flow)) {
            let Some((rule, tag)) = bucket else { continue };
            let Some(full_at) = self.state.buckets.full_at(tag, now) else {
                continue;
            };
            let (to, rest) = std::mem::take(&mut room)
                .split_first_chunk_mut::<MOVED_BYTES>()
                .ok_or(NotMoved::TooLong)?;
            to[..3].copy_from_slice(&[VERSION, direction, rule]);
            to[3..].copy_from_slice(&gcra::ns(full_at - now).to_be_bytes());
            room = rest;
            written += MOVED_BYTES;
        }
        Ok(written)
    }

    /// No bucket can owe more than its whole burst, so that no instance takes a source's budget away for longer.
    fn import(&mut self, flow: &Tuple, state: &[u8], now: Nanos) -> Result<(), NotMoved> {
        if flow.vlan & key_bits::OF_CONTENT != 0 {
            return Err(NotMoved::Unsupported);
        }
        let now = gcra::parts(now.0);
        let buckets = self.buckets_of(flow);
        let (moved, []) = state.as_chunks::<MOVED_BYTES>() else {
            return Err(NotMoved::Malformed);
        };
        let mut owed = [None; 2];
        for &[version, direction, rule, ref full_in @ ..] in moved {
            let place = owed.get_mut(usize::from(direction)).ok_or(NotMoved::Malformed)?;
            if version != VERSION || place.is_some() {
                return Err(NotMoved::Malformed);
            }
            let Some((own, tag)) = buckets.get(usize::from(direction)).copied().flatten() else {
                return Err(NotMoved::Conflict);
            };
            if own != rule {
                return Err(NotMoved::Conflict);
            }
            let full_in = gcra::parts(u64::from_be_bytes(*full_in));
            if full_in > self.state.settings.rules[usize::from(own)].limit.most() {
                return Err(NotMoved::Malformed);
            }
            *place = Some((tag, now.saturating_add(full_in)));
        }
        self.fill_own(&buckets);
        let mut has_room = true;
        for (tag, full_at) in owed.into_iter().flatten() {
            has_room &= self.state.buckets.drain(tag, full_at, now);
        }
        if !has_room {
            self.fill_own(&buckets);
            return Err(NotMoved::Full);
        }
        Ok(())
    }

    fn forget(&mut self, flow: &Tuple, _now: Nanos) {
        let buckets = self.buckets_of(flow);
        self.fill_own(&buckets);
    }
}

impl Limiter {
    /// Fills those of these buckets that no other flow has.
    fn fill_own(&mut self, buckets: &[Option<(u8, u64)>; 2]) {
        for &(rule, tag) in buckets.iter().flatten() {
            if self.state.settings.rules[usize::from(rule)].key == Key::Flow {
                self.state.buckets.fill(tag);
            }
        }
    }
}

#[cfg(test)]
mod tests;
