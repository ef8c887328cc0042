//! How the flows of a service are spread over buckets: by bits of their headers.

use std::collections::BTreeMap;
use std::net::IpAddr;

use model::{Tuple, protocol};
use openflow::{Field, FieldKind};

/// A part of a header, of a packet in the direction that opens a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Source address.
    SourceAddress,
    /// Destination address.
    DestinationAddress,
    /// Source port; only where the service has one protocol with ports.
    SourcePort,
    /// Destination port, likewise.
    DestinationPort,
}

impl Part {
    pub(super) const fn mirrored(self) -> Part {
        match self {
            Part::SourceAddress => Part::DestinationAddress,
            Part::DestinationAddress => Part::SourceAddress,
            Part::SourcePort => Part::DestinationPort,
            Part::DestinationPort => Part::SourcePort,
        }
    }

    pub(super) fn low_bits(self, tuple: &Tuple) -> u32 {
        let of = |address: IpAddr| match address {
            IpAddr::V4(v4) => u32::from(v4),
            IpAddr::V6(v6) => (u128::from(v6) & u128::from(u32::MAX)) as u32,
        };
        match self {
            Part::SourceAddress => of(tuple.src),
            Part::DestinationAddress => of(tuple.dst),
            Part::SourcePort => tuple.src_port.into(),
            Part::DestinationPort => tuple.dst_port.into(),
        }
    }

    pub(super) fn kind(self, is_v6: bool, ip_proto: Option<u8>) -> Option<FieldKind> {
        match (self, is_v6, ip_proto) {
            (Part::SourceAddress, false, _) => Some(FieldKind::IPV4_SRC),
            (Part::SourceAddress, true, _) => Some(FieldKind::IPV6_SRC),
            (Part::DestinationAddress, false, _) => Some(FieldKind::IPV4_DST),
            (Part::DestinationAddress, true, _) => Some(FieldKind::IPV6_DST),
            (Part::SourcePort, _, Some(of)) => ports_of(of).map(|(source, _)| source),
            (Part::DestinationPort, _, Some(of)) => ports_of(of).map(|(_, destination)| destination),
            _ => None,
        }
    }
}

/// The fields of a protocol's ports, source and destination.
pub(crate) fn ports_of(ip_proto: u8) -> Option<(FieldKind, FieldKind)> {
    match ip_proto {
        protocol::TCP => Some((FieldKind::TCP_SRC, FieldKind::TCP_DST)),
        protocol::UDP => Some((FieldKind::UDP_SRC, FieldKind::UDP_DST)),
        protocol::SCTP => Some((FieldKind::SCTP_SRC, FieldKind::SCTP_DST)),
        _ => None,
    }
}

/// Whether a protocol has ports that a rule can match. Flows of the others are told apart by their addresses alone.
pub(crate) fn has_ports(ip_proto: u8) -> bool {
    ports_of(ip_proto).is_some()
}

/// Where packets of a service come in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Side {
    /// The uplink's number, below 8: copies carry it in three bits.
    pub uplink: u8,
    /// The switch's port.
    pub port: u32,
    /// The data port of the instance that its packets go to, below 8.
    pub data_port: u8,
    /// Whether packets travel against the direction in which flows are opened: the service is symmetric, and its
    /// match is mirrored in `fields`.
    pub is_answering: bool,
    /// What else is matched: the EtherType at least.
    pub fields: Vec<Field>,
}

impl Side {
    pub(super) fn number(&self, kind: FieldKind) -> Option<u64> {
        self.fields.iter().find(|field| field.kind() == kind)?.number()
    }

    pub(super) fn ip_proto(&self) -> Option<u8> {
        u8::try_from(self.number(FieldKind::IP_PROTO)?).ok()
    }

    pub(super) fn is_v6(&self) -> bool {
        self.number(FieldKind::ETH_TYPE) == Some(0x86dd)
    }

    /// Whether a packet with these addresses, as it travels, is meant.
    pub(crate) fn takes(&self, tuple: &Tuple) -> bool {
        let header = Header::of(tuple);
        self.fields.iter().all(|field| header.has(field))
    }
}

/// A packet's addresses as a switch sees them.
pub(super) struct Header<'a>(&'a Tuple);

impl Header<'_> {
    pub(super) fn of(tuple: &Tuple) -> Header<'_> {
        Header(tuple)
    }

    pub(super) fn has(&self, field: &Field) -> bool {
        let tuple = self.0;
        let octets = |address: IpAddr| match address {
            IpAddr::V4(v4) => v4.octets().to_vec(),
            IpAddr::V6(v6) => v6.octets().to_vec(),
        };
        let is_v6 = tuple.dst.is_ipv6();
        let value = match field.kind() {
            FieldKind::ETH_TYPE => if is_v6 { 0x86dd_u16 } else { 0x0800 }.to_be_bytes().to_vec(),
            FieldKind::IP_PROTO => vec![tuple.protocol],
            FieldKind::IPV4_SRC if !is_v6 => octets(tuple.src),
            FieldKind::IPV4_DST if !is_v6 => octets(tuple.dst),
            FieldKind::IPV6_SRC if is_v6 => octets(tuple.src),
            FieldKind::IPV6_DST if is_v6 => octets(tuple.dst),
            FieldKind::VLAN_VID if tuple.vlan == 0 => vec![0, 0],
            FieldKind::VLAN_VID => (tuple.vlan | 0x1000).to_be_bytes().to_vec(),
            kind => match ports_of(tuple.protocol) {
                Some((source, _)) if source == kind => tuple.src_port.to_be_bytes().to_vec(),
                Some((_, destination)) if destination == kind => tuple.dst_port.to_be_bytes().to_vec(),
                _ => return false,
            },
        };
        let all = [0xff; 16];
        let mask = field.mask().unwrap_or(&all);
        let counting = value.iter().zip(mask).map(|(value, mask)| value & mask);
        value.len() == field.value().len() && counting.eq(field.value().iter().copied())
    }
}

/// Which bits of a header choose the bucket of a new flow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spread {
    /// Parts and how many of their low bits count; the first part's are the lowest of the bucket's number.
    pub parts: Vec<(Part, u8)>,
}

impl Spread {
    /// Bits of a bucket's number at most: a bucket has a rule on each side.
    pub const LIMIT_BITS: u8 = 12;

    /// How many buckets there are.
    pub fn buckets(&self) -> usize {
        let bits: u8 = self.parts.iter().map(|(_, bits)| bits).sum();
        1 << bits.min(Spread::LIMIT_BITS)
    }

    /// The bucket of a packet with these addresses.
    pub fn bucket(&self, tuple: &Tuple, is_answering: bool) -> usize {
        let mut bucket = 0;
        let mut place = 0;
        for &(part, bits) in &self.parts {
            let part = if is_answering { part.mirrored() } else { part };
            bucket |= (part.low_bits(tuple) as usize & ((1 << bits) - 1)) << place;
            place += bits;
        }
        bucket & (self.buckets() - 1)
    }

    /// The fields of a bucket's rule on a side.
    pub(super) fn fields(&self, side: &Side, bucket: usize) -> Vec<Field> {
        let mut fields: BTreeMap<FieldKind, Field> =
            side.fields.iter().map(|field| (field.kind(), *field)).collect();
        let mut place = 0;
        for &(part, bits) in &self.parts {
            let part = if side.is_answering { part.mirrored() } else { part };
            let mask = (1_u128 << bits) - 1;
            let value = (bucket as u128 >> place) & mask;
            place += bits;
            let Some(kind) = part.kind(side.is_v6(), side.ip_proto()) else {
                continue;
            };
            let bytes = match kind {
                FieldKind::IPV4_SRC | FieldKind::IPV4_DST => 4,
                FieldKind::IPV6_SRC | FieldKind::IPV6_DST => 16,
                _ => 2,
            };
            let (mut value, mut mask) = (last_bytes(value, bytes), last_bytes(mask, bytes));
            if let Some(service) = fields.get(&kind) {
                let whole = [0xff; 16];
                let theirs = service.mask().unwrap_or(&whole);
                for (index, (value, mask)) in value.iter_mut().zip(&mut mask).enumerate() {
                    *value |= service.value().get(index).copied().unwrap_or_default();
                    *mask |= theirs.get(index).copied().unwrap_or_default();
                }
            }
            fields.insert(kind, Field::new(kind, &value).masked(&mask));
        }
        fields.into_values().collect()
    }
}

/// The last bytes of a number, in network order.
pub(super) fn last_bytes(number: u128, bytes: usize) -> Vec<u8> {
    number.to_be_bytes().into_iter().skip(16 - bytes).collect()
}
