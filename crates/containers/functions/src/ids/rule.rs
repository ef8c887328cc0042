//! A rule as the function uses it.

use std::net::IpAddr;

use regex::bytes::Regex;

/// What a rule does with a packet that it matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// A record.
    Alert,
    /// A record; the packet and the rest of its flow are dropped.
    Drop,
    /// The rest of the flow is not inspected.
    Pass,
}

/// Which packets a rule is for, by their protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protocol {
    Ip,
    Tcp,
    Udp,
    Icmp,
}

/// A list of addresses: those that are in one of `only` (all if that is empty) and in none of `except`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Addresses {
    pub(super) only: Vec<(IpAddr, u32)>,
    pub(super) except: Vec<(IpAddr, u32)>,
}

impl Addresses {
    pub(super) fn has(&self, address: IpAddr) -> bool {
        let has = |list: &[(IpAddr, u32)]| list.iter().any(|of| is_in(address, *of));
        (self.only.is_empty() || has(&self.only)) && !has(&self.except)
    }
}

/// Whether an address begins as a prefix does.
fn is_in(address: IpAddr, (prefix, bits): (IpAddr, u32)) -> bool {
    match (address, prefix) {
        (IpAddr::V4(address), IpAddr::V4(prefix)) => {
            let differ = address.to_bits() ^ prefix.to_bits();
            bits == 0 || differ >> (32 - bits.min(32)) == 0
        }
        (IpAddr::V6(address), IpAddr::V6(prefix)) => {
            let differ = address.to_bits() ^ prefix.to_bits();
            bits == 0 || differ >> (128 - bits.min(128)) == 0
        }
        _ => false,
    }
}

/// A list of ports, as [`Addresses`]. Each is a range with both ends.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Ports {
    pub(super) only: Vec<(u16, u16)>,
    pub(super) except: Vec<(u16, u16)>,
}

impl Ports {
    pub(super) fn has(&self, port: u16) -> bool {
        let has = |list: &[(u16, u16)]| list.iter().any(|(first, last)| (*first..=*last).contains(&port));
        (self.only.is_empty() || has(&self.only)) && !has(&self.except)
    }
}

/// What must be in the payload.
#[derive(Clone, Debug)]
pub(super) enum Part {
    Content(Content),
    Pcre(Pcre),
}

/// Bytes, and where they must be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Content {
    /// In lower case if the case does not count.
    pub(super) bytes: Vec<u8>,
    pub(super) is_negated: bool,
    pub(super) any_case: bool,
    /// Where the search begins, from the start of the payload.
    pub(super) offset: Option<usize>,
    /// Bytes that are searched, from `offset` on.
    pub(super) depth: Option<usize>,
    /// Where the search begins, from the end of the part before.
    pub(super) distance: Option<i64>,
    /// Bytes that are searched, from there on.
    pub(super) within: Option<usize>,
    /// It ends where the payload of a packet ends.
    pub(super) at_end: bool,
    pub(super) is_fast_pattern: bool,
}

impl Content {
    pub(super) fn is_relative(&self) -> bool {
        self.distance.is_some() || self.within.is_some()
    }
}

/// A regular expression.
#[derive(Clone, Debug)]
pub(super) struct Pcre {
    pub(super) regex: Regex,
    pub(super) is_negated: bool,
    /// It is searched from the end of the part before.
    pub(super) is_relative: bool,
}

/// The state of the connection, and the direction in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Flow {
    pub(super) is_established: Option<bool>,
    pub(super) to_server: Option<bool>,
}

/// What a rule does with the marks of its flow. Each is a bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flowbit {
    Set(u64),
    Unset(u64),
    Toggle(u64),
    IsSet(u64),
    IsNotSet(u64),
}

/// How many records a rule may write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Threshold {
    pub(super) kind: ThresholdKind,
    /// By the source's address, or else the destination's.
    pub(super) by_source: bool,
    pub(super) count: u32,
    pub(super) seconds: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ThresholdKind {
    /// The first `count` matches of an interval.
    Limit,
    /// Each `count`-th match of an interval.
    Threshold,
    /// The `count`-th match of an interval, and no other one.
    Both,
}

/// Lengths of payloads, with both ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Size {
    pub(super) least: usize,
    pub(super) most: usize,
}

/// A rule.
#[derive(Clone, Debug)]
pub(super) struct Rule {
    pub(super) action: Action,
    pub(super) protocol: Protocol,
    pub(super) src: Addresses,
    pub(super) src_ports: Ports,
    pub(super) dst: Addresses,
    pub(super) dst_ports: Ports,
    pub(super) is_bidirectional: bool,
    pub(super) message: String,
    pub(super) sid: u32,
    pub(super) revision: u32,
    pub(super) class: String,
    pub(super) priority: u8,
    pub(super) flow: Flow,
    pub(super) parts: Vec<Part>,
    pub(super) bits: Vec<Flowbit>,
    pub(super) is_silent: bool,
    pub(super) threshold: Option<Threshold>,
    pub(super) size: Option<Size>,
}

/// What a rule asks of a packet besides its payload.
#[derive(Clone, Copy, Debug)]
pub(super) struct Header {
    pub(super) protocol: u8,
    pub(super) src: IpAddr,
    pub(super) dst: IpAddr,
    pub(super) src_port: u16,
    pub(super) dst_port: u16,
    pub(super) is_established: bool,
    /// [`None`] if nobody knows which end is the server.
    pub(super) to_server: Option<bool>,
    /// Bytes of the packet's own payload.
    pub(super) payload_len: usize,
}

impl Rule {
    /// Whether a packet's headers and the state of its flow fit.
    pub(super) fn has(&self, of: &Header) -> bool {
        let protocol = match self.protocol {
            Protocol::Ip => true,
            Protocol::Tcp => of.protocol == 6,
            Protocol::Udp => of.protocol == 17,
            Protocol::Icmp => matches!(of.protocol, 1 | 58),
        };
        protocol
            && self.flow.is_established.is_none_or(|is| is == of.is_established)
            && self.flow.to_server.is_none_or(|to| of.to_server == Some(to))
            && self
                .size
                .is_none_or(|size| (size.least..=size.most).contains(&of.payload_len))
            && (self.has_ends((of.src, of.src_port), (of.dst, of.dst_port))
                || self.is_bidirectional && self.has_ends((of.dst, of.dst_port), (of.src, of.src_port)))
    }

    fn has_ends(&self, src: (IpAddr, u16), dst: (IpAddr, u16)) -> bool {
        self.src.has(src.0) && self.dst.has(dst.0) && self.src_ports.has(src.1) && self.dst_ports.has(dst.1)
    }

    /// Whether the payload is looked at a packet at a time, although the rule is for TCP.
    pub(super) fn is_per_packet(&self) -> bool {
        self.size.is_some()
            || self
                .parts
                .iter()
                .any(|part| matches!(part, Part::Content(of) if of.at_end))
    }

    /// The content that is searched for in all payloads: the one that says so, or else the longest.
    pub(super) fn fast_pattern(&self) -> Option<&Content> {
        fn positive(part: &Part) -> Option<&Content> {
            match part {
                Part::Content(content) if !content.is_negated => Some(content),
                Part::Content(_) | Part::Pcre(_) => None,
            }
        }
        let contents = || self.parts.iter().filter_map(positive);
        contents()
            .find(|of| of.is_fast_pattern)
            .or_else(|| contents().rev().max_by_key(|of| of.bytes.len()))
    }
}
