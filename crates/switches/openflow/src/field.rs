//! Match fields of packets (OXM, section 7.2.3 of the specification).

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::wire::{DecodeError, Reader, Result, Write};

const CLASS_NICIRA: u16 = 0x0001;
const CLASS_BASIC: u16 = 0x8000;
const CLASS_EXPERIMENTER: u16 = 0xffff;
/// The longest value here: an IPv6 address.
const VALUE_BYTES: usize = 16;
/// Fields per match; the specification defines 45.
const FIELD_LIMIT: usize = 64;
/// `OFPMT_OXM`.
const MATCH_TYPE: u16 = 1;
/// Set in the VLAN id of a tagged packet (`OFPVID_PRESENT`).
const VLAN_PRESENT: u16 = 0x1000;

/// A field's class and number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FieldKind {
    class: u16,
    number: u8,
}

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident = $class:ident $number:literal $text:literal;)*) => {
        impl FieldKind {
            $($(#[$doc])* pub const $name: FieldKind = FieldKind { class: $class, number: $number };)*

            /// Its name in Open vSwitch's documentation, if known here.
            pub const fn name(self) -> Option<&'static str> {
                match (self.class, self.number) {
                    $(($class, $number) => Some($text),)*
                    _ => None,
                }
            }
        }
    };
}

kinds! {
    /// Ingress port, 4 bytes.
    IN_PORT = CLASS_BASIC 0 "in_port";
    /// Metadata between tables, 8 bytes.
    METADATA = CLASS_BASIC 2 "metadata";
    /// Destination MAC address, 6 bytes.
    ETH_DST = CLASS_BASIC 3 "eth_dst";
    /// Source MAC address, 6 bytes.
    ETH_SRC = CLASS_BASIC 4 "eth_src";
    /// EtherType, 2 bytes.
    ETH_TYPE = CLASS_BASIC 5 "eth_type";
    /// VLAN id with 0x1000 set if there is a tag, 2 bytes.
    VLAN_VID = CLASS_BASIC 6 "vlan_vid";
    /// VLAN priority, 1 byte: 0 to 7.
    VLAN_PCP = CLASS_BASIC 7 "vlan_pcp";
    /// DSCP, 1 byte.
    IP_DSCP = CLASS_BASIC 8 "ip_dscp";
    /// Protocol, 1 byte.
    IP_PROTO = CLASS_BASIC 10 "ip_proto";
    /// IPv4 source, 4 bytes.
    IPV4_SRC = CLASS_BASIC 11 "ipv4_src";
    /// IPv4 destination, 4 bytes.
    IPV4_DST = CLASS_BASIC 12 "ipv4_dst";
    /// TCP source port, 2 bytes.
    TCP_SRC = CLASS_BASIC 13 "tcp_src";
    /// TCP destination port, 2 bytes.
    TCP_DST = CLASS_BASIC 14 "tcp_dst";
    /// UDP source port, 2 bytes.
    UDP_SRC = CLASS_BASIC 15 "udp_src";
    /// UDP destination port, 2 bytes.
    UDP_DST = CLASS_BASIC 16 "udp_dst";
    /// SCTP source port, 2 bytes.
    SCTP_SRC = CLASS_BASIC 17 "sctp_src";
    /// SCTP destination port, 2 bytes.
    SCTP_DST = CLASS_BASIC 18 "sctp_dst";
    /// ICMP type, 1 byte.
    ICMPV4_TYPE = CLASS_BASIC 19 "icmpv4_type";
    /// ICMP code, 1 byte.
    ICMPV4_CODE = CLASS_BASIC 20 "icmpv4_code";
    /// IPv6 source, 16 bytes.
    IPV6_SRC = CLASS_BASIC 26 "ipv6_src";
    /// IPv6 destination, 16 bytes.
    IPV6_DST = CLASS_BASIC 27 "ipv6_dst";
    /// ICMPv6 type, 1 byte.
    ICMPV6_TYPE = CLASS_BASIC 29 "icmpv6_type";
    /// ICMPv6 code, 1 byte.
    ICMPV6_CODE = CLASS_BASIC 30 "icmpv6_code";
    /// State of the tracked connection, 4 bytes (Open vSwitch).
    CT_STATE = CLASS_NICIRA 105 "ct_state";
    /// Zone of the tracked connection, 2 bytes (Open vSwitch).
    CT_ZONE = CLASS_NICIRA 106 "ct_zone";
    /// Mark of the tracked connection, 4 bytes (Open vSwitch).
    CT_MARK = CLASS_NICIRA 107 "ct_mark";
    /// Fragment type, 1 byte (Open vSwitch): 0 not a fragment, 1 first, 3 later.
    IP_FRAG = CLASS_NICIRA 26 "ip_frag";
}

impl fmt::Debug for FieldKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "{:#06x}/{}", self.class, self.number),
        }
    }
}

/// A field with a value, and a mask unless all bits matter.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Field {
    kind: FieldKind,
    length: u8,
    value: [u8; VALUE_BYTES],
    mask: Option<[u8; VALUE_BYTES]>,
}

impl Field {
    /// An exact field. `value` is in network order; bytes after the sixteenth are ignored.
    pub fn new(kind: FieldKind, value: &[u8]) -> Field {
        let length = value.len().min(VALUE_BYTES);
        let mut own = [0; VALUE_BYTES];
        own.iter_mut().zip(value).for_each(|(to, from)| *to = *from);
        Field {
            kind,
            length: length as u8,
            value: own,
            mask: None,
        }
    }

    /// The same field with a mask. Bits outside the mask become 0, as the specification requires.
    #[must_use]
    pub fn masked(mut self, mask: &[u8]) -> Field {
        let length = usize::from(self.length);
        let mut own = [0; VALUE_BYTES];
        own.iter_mut()
            .zip(mask)
            .take(length)
            .for_each(|(to, from)| *to = *from);
        self.value
            .iter_mut()
            .zip(&own)
            .for_each(|(value, mask)| *value &= mask);
        // A mask of all ones is redundant.
        let says = own.iter().take(length).any(|byte| *byte != 0xff);
        self.mask = says.then_some(own);
        self
    }

    /// Packets received on that port.
    pub fn in_port(port: u32) -> Field {
        Field::new(FieldKind::IN_PORT, &port.to_be_bytes())
    }

    /// Packets of that EtherType.
    pub fn eth_type(eth_type: u16) -> Field {
        Field::new(FieldKind::ETH_TYPE, &eth_type.to_be_bytes())
    }

    /// Packets with that VLAN id.
    pub fn vlan(id: u16) -> Field {
        Field::new(FieldKind::VLAN_VID, &(id & 0xfff | VLAN_PRESENT).to_be_bytes())
    }

    /// Packets without a VLAN tag.
    pub fn no_vlan() -> Field {
        Field::new(FieldKind::VLAN_VID, &[0, 0])
    }

    /// Packets of that protocol.
    pub fn ip_proto(protocol: u8) -> Field {
        Field::new(FieldKind::IP_PROTO, &[protocol])
    }

    /// Packets from an address.
    pub fn source(address: IpAddr) -> Field {
        match address {
            IpAddr::V4(address) => Field::new(FieldKind::IPV4_SRC, &address.octets()),
            IpAddr::V6(address) => Field::new(FieldKind::IPV6_SRC, &address.octets()),
        }
    }

    /// Packets to an address.
    pub fn destination(address: IpAddr) -> Field {
        match address {
            IpAddr::V4(address) => Field::new(FieldKind::IPV4_DST, &address.octets()),
            IpAddr::V6(address) => Field::new(FieldKind::IPV6_DST, &address.octets()),
        }
    }

    /// A field of two bytes.
    pub fn u16(kind: FieldKind, value: u16) -> Field {
        Field::new(kind, &value.to_be_bytes())
    }

    /// A field of four bytes.
    pub fn u32(kind: FieldKind, value: u32) -> Field {
        Field::new(kind, &value.to_be_bytes())
    }

    /// Its kind.
    pub fn kind(&self) -> FieldKind {
        self.kind
    }

    /// Its value, in network order.
    pub fn value(&self) -> &[u8] {
        self.value.get(..self.length.into()).unwrap_or_default()
    }

    /// The mask; [`None`] if all bits matter.
    pub fn mask(&self) -> Option<&[u8]> {
        self.mask.as_ref().and_then(|mask| mask.get(..self.length.into()))
    }

    /// Its value as a number, if it has at most eight bytes.
    pub fn number(&self) -> Option<u64> {
        (self.length <= 8).then(|| {
            self.value()
                .iter()
                .fold(0, |number, byte| number << 8 | u64::from(*byte))
        })
    }

    /// Its value as an address, if it is one.
    pub fn address(&self) -> Option<IpAddr> {
        match self.kind {
            FieldKind::IPV4_SRC | FieldKind::IPV4_DST => <[u8; 4]>::try_from(self.value())
                .ok()
                .map(|octets| Ipv4Addr::from(octets).into()),
            FieldKind::IPV6_SRC | FieldKind::IPV6_DST => <[u8; 16]>::try_from(self.value())
                .ok()
                .map(|octets| Ipv6Addr::from(octets).into()),
            _ => None,
        }
    }

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.put_u16(self.kind.class);
        out.put_u8(self.kind.number << 1 | u8::from(self.mask.is_some()));
        out.put_u8(self.length * if self.mask.is_some() { 2 } else { 1 });
        out.put(self.value());
        if let Some(mask) = self.mask() {
            out.put(mask);
        }
    }

    pub(crate) fn decode(reader: &mut Reader<'_>) -> Result<Field> {
        let class = reader.u16()?;
        let number = reader.u8()?;
        let length = usize::from(reader.u8()?);
        let has_mask = number & 1 == 1;
        let of_value = if has_mask { length / 2 } else { length };
        let wrong = DecodeError::Length {
            what: "a field's value",
            length,
        };
        // A field with an experimenter id is not one of ours.
        if of_value > VALUE_BYTES || has_mask && length % 2 == 1 || class == CLASS_EXPERIMENTER {
            return Err(wrong);
        }
        let kind = FieldKind {
            class,
            number: number >> 1,
        };
        let field = Field::new(kind, reader.take(of_value)?);
        Ok(if has_mask {
            field.masked(reader.take(of_value)?)
        } else {
            field
        })
    }
}

impl fmt::Debug for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}=", self.kind)?;
        match (self.address(), self.number()) {
            (Some(address), _) => write!(f, "{address}")?,
            (None, Some(number)) => write!(f, "{number:#x}")?,
            (None, None) => write!(f, "{:02x?}", self.value())?,
        }
        match self.mask() {
            Some(mask) => write!(f, "/{mask:02x?}"),
            None => Ok(()),
        }
    }
}

/// The match of a rule: a packet matches if all fields match. Without fields it matches every packet. Fields
/// are kept sorted, so that equal matches compare equal.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Match {
    fields: Vec<Field>,
}

impl Match {
    /// A match on those fields. The switch requires a field's prerequisites too: the EtherType for an
    /// address, the protocol for a port.
    pub fn new(fields: impl IntoIterator<Item = Field>) -> Match {
        let mut fields: Vec<Field> = fields.into_iter().take(FIELD_LIMIT).collect();
        // Sorted by number, prerequisites come first, as the specification requires.
        fields.sort_unstable();
        Match { fields }
    }

    /// Its fields.
    pub fn fields(&self) -> &[Field] {
        &self.fields
    }

    /// The field of that kind, if present.
    pub fn get(&self, kind: FieldKind) -> Option<&Field> {
        self.fields.iter().find(|field| field.kind == kind)
    }

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.put_u16(MATCH_TYPE);
        out.put_u16(0);
        // Standard fields precede those of Open vSwitch, which depend on them.
        let is_basic = |field: &&Field| field.kind.class == CLASS_BASIC;
        let basic = self.fields.iter().filter(is_basic);
        let others = self.fields.iter().filter(|field| !is_basic(field));
        basic.chain(others).for_each(|field| field.encode(out));
        out.set_length(start, 2);
        out.pad_to_8(start);
    }

    pub(crate) fn decode(reader: &mut Reader<'_>) -> Result<Match> {
        let kind = reader.u16()?;
        if kind != MATCH_TYPE {
            return Err(DecodeError::Value {
                what: "the type of a match",
                value: kind.into(),
            });
        }
        let length = usize::from(reader.u16()?);
        let own = length.checked_sub(4).ok_or(DecodeError::Length {
            what: "a match",
            length,
        })?;
        let mut part = reader.part(own, "a match")?;
        reader.skip(length.next_multiple_of(8) - length)?;
        let mut fields = Vec::new();
        while !part.is_empty() {
            if fields.len() >= FIELD_LIMIT {
                return Err(DecodeError::Length {
                    what: "a match",
                    length,
                });
            }
            fields.push(Field::decode(&mut part)?);
        }
        Ok(Match::new(fields))
    }
}
