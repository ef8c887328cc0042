//! Messages of IPFIX (RFC 7011): templates and records of flows.

use std::net::IpAddr;

use super::flows::{EndReason, Flow};

/// Bytes of a message's header, and of a set's.
const MESSAGE_HEADER: usize = 16;
const SET_HEADER: usize = 4;
const VERSION: u16 = 10;
/// The id of a set of templates.
const TEMPLATES: u16 = 2;

/// An information element (IANA's registry "IPFIX Entities") and the bytes of its value.
type Element = (u16, u16);

/// All but the addresses.
const COMMON: [Element; 10] = [
    (7, 2),   // sourceTransportPort
    (11, 2),  // destinationTransportPort
    (4, 1),   // protocolIdentifier
    (136, 1), // flowEndReason
    (6, 2),   // tcpControlBits
    (58, 2),  // vlanId
    (2, 8),   // packetDeltaCount
    (1, 8),   // octetDeltaCount
    (152, 8), // flowStartMilliseconds
    (153, 8), // flowEndMilliseconds
];
/// sourceIPv4Address, destinationIPv4Address.
const ADDRESSES_V4: [Element; 2] = [(8, 4), (12, 4)];
/// sourceIPv6Address, destinationIPv6Address.
const ADDRESSES_V6: [Element; 2] = [(27, 16), (28, 16)];

/// Bytes of the longest record.
const RECORD_BYTES: usize = 32 + 42;
/// Bytes of both templates with their set.
const TEMPLATES_BYTES: usize = SET_HEADER + 2 * (4 + 4 * (2 + COMMON.len()));
/// Bytes of a message that holds the templates and a record.
pub(super) const MESSAGE_BYTES_MIN: usize = MESSAGE_HEADER + TEMPLATES_BYTES + SET_HEADER + RECORD_BYTES;

/// The template of a record, and the id of its sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Template {
    V4 = 256,
    V6 = 257,
}

/// A message that is being written, and what the messages of a stream have in common.
#[derive(Debug)]
pub(super) struct Messages {
    bytes: Vec<u8>,
    limit: usize,
    /// Where the set that is being written begins, and its template.
    set: Option<(usize, Template)>,
    /// Records of this message, and of all earlier ones.
    records: u32,
    sequence: u32,
    domain: u32,
    /// Milliseconds from 1970 to the start of the monotonic clock.
    epoch_ms: u64,
}

impl Messages {
    /// Messages of at most `limit` bytes, at least [`MESSAGE_BYTES_MIN`].
    pub(super) fn new(limit: usize, domain: u32, epoch_ms: u64) -> Messages {
        let limit = limit.max(MESSAGE_BYTES_MIN);
        let mut messages = Messages {
            bytes: Vec::with_capacity(limit),
            limit,
            set: None,
            records: 0,
            sequence: 0,
            domain,
            epoch_ms,
        };
        messages.begin();
        messages
    }

    fn begin(&mut self) {
        self.bytes.clear();
        self.bytes.resize(MESSAGE_HEADER, 0);
        self.set = None;
        self.sequence = self.sequence.wrapping_add(self.records);
        self.records = 0;
    }

    /// Messages go on with the number that those of another stream would have had.
    pub(super) fn continue_after(&mut self, other: &Messages) {
        self.sequence = other.sequence;
    }

    fn put16(&mut self, value: u16) {
        self.bytes.extend_from_slice(&value.to_be_bytes());
    }

    fn put64(&mut self, value: u64) {
        self.bytes.extend_from_slice(&value.to_be_bytes());
    }

    /// Writes the templates; only at the start of a message.
    pub(super) fn add_templates(&mut self) {
        self.put16(TEMPLATES);
        self.put16(TEMPLATES_BYTES as u16);
        for (template, addresses) in [(Template::V4, ADDRESSES_V4), (Template::V6, ADDRESSES_V6)] {
            self.put16(template as u16);
            self.put16((addresses.len() + COMMON.len()) as u16);
            for (element, bytes) in addresses.into_iter().chain(COMMON) {
                self.put16(element);
                self.put16(bytes);
            }
        }
    }

    /// Writes a record. False, and no change, if the message has no room for it.
    pub(super) fn add(&mut self, flow: &Flow, reason: EndReason) -> bool {
        let template = match flow.id.source {
            IpAddr::V4(_) => Template::V4,
            IpAddr::V6(_) => Template::V6,
        };
        if self.bytes.len() + SET_HEADER + RECORD_BYTES > self.limit {
            return false;
        }
        if self.set.is_none_or(|(_, of)| of != template) {
            self.end_set();
            self.set = Some((self.bytes.len(), template));
            self.put16(template as u16);
            self.put16(0);
        }
        for address in [flow.id.source, flow.id.destination] {
            match address {
                IpAddr::V4(of) => self.bytes.extend_from_slice(&of.octets()),
                IpAddr::V6(of) => self.bytes.extend_from_slice(&of.octets()),
            }
        }
        self.put16(flow.id.source_port);
        self.put16(flow.id.destination_port);
        self.bytes.extend_from_slice(&[flow.id.protocol, reason as u8]);
        self.put16(flow.tcp_flags.into());
        self.put16(flow.id.vlan);
        self.put64(flow.packets);
        self.put64(flow.bytes);
        self.put64(self.epoch_ms + flow.first.as_millis());
        self.put64(self.epoch_ms + flow.last.as_millis());
        self.records += 1;
        true
    }

    fn end_set(&mut self) {
        if let Some((begin, _)) = self.set.take() {
            let len = (self.bytes.len() - begin) as u16;
            self.bytes[begin + 2..begin + 4].copy_from_slice(&len.to_be_bytes());
        }
    }

    /// Whether the message holds anything.
    pub(super) fn is_empty(&self) -> bool {
        self.bytes.len() == MESSAGE_HEADER
    }

    /// Records of the message.
    pub(super) fn records(&self) -> u32 {
        self.records
    }

    /// Completes the message, gives it to `send`, and begins the next one.
    pub(super) fn finish(&mut self, now: model::Nanos, send: impl FnOnce(&[u8])) {
        self.end_set();
        let len = self.bytes.len() as u16;
        let seconds = ((self.epoch_ms + now.as_millis()) / 1000) as u32;
        let mut header = [0; MESSAGE_HEADER];
        header[..2].copy_from_slice(&VERSION.to_be_bytes());
        header[2..4].copy_from_slice(&len.to_be_bytes());
        header[4..8].copy_from_slice(&seconds.to_be_bytes());
        header[8..12].copy_from_slice(&self.sequence.to_be_bytes());
        header[12..].copy_from_slice(&self.domain.to_be_bytes());
        self.bytes[..MESSAGE_HEADER].copy_from_slice(&header);
        send(&self.bytes);
        self.begin();
    }
}

/// A collector for tests: reads messages with the templates that it has got, as RFC 7011 says, not as [`Messages`]
/// writes them.
#[cfg(test)]
pub(super) mod collector {
    use std::collections::HashMap;

    /// A record: the value of each information element as a number.
    pub(crate) type Record = HashMap<u16, u128>;

    #[derive(Debug, Default)]
    pub(crate) struct Collector {
        templates: HashMap<u16, Vec<(u16, usize)>>,
        pub(crate) records: Vec<Record>,
        /// Export time of the last message.
        pub(crate) time: u32,
        pub(crate) messages: u32,
    }

    fn number(bytes: &[u8]) -> u128 {
        bytes.iter().fold(0, |sum, byte| sum << 8 | u128::from(*byte))
    }

    impl Collector {
        pub(crate) fn take(&mut self, message: &[u8]) {
            let at = |from: usize, to: usize| number(&message[from..to]);
            assert_eq!((at(0, 2), at(2, 4)), (10, message.len() as u128));
            self.time = at(4, 8) as u32;
            assert_eq!(at(8, 12), self.records.len() as u128, "no record is missing");
            self.messages += 1;
            let mut sets = &message[16..];
            while !sets.is_empty() {
                let (id, len) = (number(&sets[..2]) as u16, number(&sets[2..4]) as usize);
                let (set, rest) = sets.split_at(len);
                sets = rest;
                let mut body = &set[4..];
                if id == 2 {
                    while !body.is_empty() {
                        let (template, count) = (number(&body[..2]) as u16, number(&body[2..4]) as usize);
                        let fields = body[4..4 + 4 * count].chunks(4);
                        let fields = fields.map(|of| (number(&of[..2]) as u16, number(&of[2..]) as usize));
                        self.templates.insert(template, fields.collect());
                        body = &body[4 + 4 * count..];
                    }
                    continue;
                }
                let template = &self.templates[&id];
                let len: usize = template.iter().map(|(_, len)| len).sum();
                assert_eq!(body.len() % len, 0);
                for mut record in body.chunks(len) {
                    let values = template.iter().map(|&(element, len)| {
                        let (value, rest) = record.split_at(len);
                        record = rest;
                        (element, number(value))
                    });
                    self.records.push(values.collect());
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use model::Nanos;

    use super::super::flows::FlowId;
    use super::collector::Collector;
    use super::*;

    fn flow(source: &str, destination: &str, packets: u64) -> Flow {
        let id = FlowId {
            source: source.parse().unwrap(),
            destination: destination.parse().unwrap(),
            source_port: 4000,
            destination_port: 443,
            protocol: 6,
            vlan: 7,
        };
        Flow {
            id,
            packets,
            bytes: packets * 100,
            first: Nanos::from_millis(5),
            last: Nanos::from_millis(6001),
            tcp_flags: 0x12,
        }
    }

    #[test]
    fn a_collector_reads_what_was_written() {
        let mut messages = Messages::new(600, 9, 1_700_000_000_000);
        let mut collector = Collector::default();
        messages.add_templates();
        let mut written = 0;
        for packets in 1..=40 {
            let flow = match packets % 3 {
                0 => flow("2001:db8::1", "2001:db8::2", packets),
                _ => flow("10.0.0.1", "192.0.2.1", packets),
            };
            while !messages.add(&flow, EndReason::Idle) {
                messages.finish(Nanos::from_secs(7), |message| {
                    assert!(message.len() <= 600);
                    collector.take(message);
                });
            }
            written += 1;
        }
        assert!(!messages.is_empty() && messages.records() > 0);
        messages.finish(Nanos::from_secs(8), |message| collector.take(message));
        assert!(messages.is_empty());
        assert_eq!(
            (collector.records.len(), collector.time),
            (written, 1_700_000_008)
        );
        assert!(collector.messages > 4);
        for (record, packets) in collector.records.iter().zip(1..) {
            assert_eq!((record[&2], record[&1]), (packets, packets * 100));
            assert_eq!(
                (record[&7], record[&11], record[&4], record[&136]),
                (4000, 443, 6, 1)
            );
            assert_eq!((record[&6], record[&58]), (0x12, 7));
            assert_eq!(
                (record[&152], record[&153]),
                (1_700_000_000_005, 1_700_000_006_001)
            );
            if packets % 3 == 0 {
                assert_eq!(
                    record[&27],
                    u128::from("2001:db8::1".parse::<std::net::Ipv6Addr>().unwrap())
                );
            } else {
                assert_eq!((record[&8], record[&12]), (0x0a00_0001, 0xc000_0201));
            }
        }
    }
}
