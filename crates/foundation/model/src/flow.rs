use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use serde::{Deserialize, Serialize};

/// Known IP protocol numbers.
pub mod protocol {
    /// ICMP for IPv4.
    pub const ICMP: u8 = 1;
    /// TCP.
    pub const TCP: u8 = 6;
    /// UDP.
    pub const UDP: u8 = 17;
    /// ICMP for IPv6.
    pub const ICMPV6: u8 = 58;
    /// SCTP.
    pub const SCTP: u8 = 132;
    /// Encapsulating Security Payload.
    pub const ESP: u8 = 50;
}

/// The upper bits of a key's VLAN. They are set where a service knows its flows by what their packets carry, so that no
/// such flow has the key of another service's. In a key without [`OF_CONTENT`](key_bits::OF_CONTENT) the others are the
/// flow's [hop](key_bits::hop): a flow that passes several services has a key at each of them.
pub mod key_bits {
    /// The flow is of a service with such keys.
    pub const OF_CONTENT: u16 = 0x8000;
    /// The source address is a number that packets carry (an SPI, a TEID), and ports are 0.
    pub const LABEL: u16 = 0x4000;
    /// The lower bits are not a VLAN but [stand for](super::key_bits::network) a VXLAN network.
    pub const NETWORK: u16 = 0x2000;
    /// The bits of a VLAN.
    pub const VLAN: u16 = 0x0fff;
    /// The bits of a hop: the place of a service in its chain, at most 7; 0 for the first and for a service without one.
    pub const fn hop(place: u8) -> u16 {
        (place as u16 & 7) << 12
    }

    /// The bits that stand for a VXLAN network: the lower 12 of its identifier, with the upper 12 mixed in.
    pub const fn network(vni: u32) -> u16 {
        NETWORK | ((vni ^ vni >> 12) as u16 & VLAN)
    }
}

/// A packet's direction within its flow. `Forward` is from the key's first endpoint to its second one. The
/// key does not say which of the two opened the flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum Direction {
    /// From `a` to `b`.
    Forward = 0,
    /// From `b` to `a`.
    Reverse = 1,
}

impl Direction {
    /// 0 or 1.
    pub const fn index(self) -> usize {
        self as usize
    }

    /// The opposite direction.
    pub const fn flipped(self) -> Direction {
        match self {
            Direction::Forward => Direction::Reverse,
            Direction::Reverse => Direction::Forward,
        }
    }
}

/// A packet's addresses in packet order: source and destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Tuple {
    /// Source address.
    pub src: IpAddr,
    /// Destination address.
    pub dst: IpAddr,
    /// Source port; for ICMP echo the identifier, else 0.
    pub src_port: u16,
    /// Destination port; for ICMP echo the identifier again, else 0.
    pub dst_port: u16,
    /// IP protocol number.
    pub protocol: u8,
    /// Outermost VLAN id, 0 if untagged; above it [`key_bits`].
    pub vlan: u16,
}

impl Tuple {
    /// The addresses of a packet in the opposite direction.
    #[must_use]
    pub fn reversed(&self) -> Tuple {
        Tuple {
            src: self.dst,
            dst: self.src,
            src_port: self.dst_port,
            dst_port: self.src_port,
            ..*self
        }
    }
}

/// The key of an IPv4 flow. The lower endpoint comes first, so that both directions have the same key. 16
/// bytes without padding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(C)]
pub struct FlowKeyV4 {
    /// The lower endpoint's address.
    pub a: [u8; 4],
    /// The higher endpoint's address.
    pub b: [u8; 4],
    /// The lower endpoint's port.
    pub a_port: u16,
    /// The higher endpoint's port.
    pub b_port: u16,
    /// Outermost VLAN id, 0 if untagged; above it [`key_bits`].
    pub vlan: u16,
    /// IP protocol number.
    pub protocol: u8,
    /// Always 0.
    pub zero: u8,
}

/// The key of an IPv6 flow, ordered as [`FlowKeyV4`]. 40 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(C)]
pub struct FlowKeyV6 {
    /// The lower endpoint's address.
    pub a: [u8; 16],
    /// The higher endpoint's address.
    pub b: [u8; 16],
    /// The lower endpoint's port.
    pub a_port: u16,
    /// The higher endpoint's port.
    pub b_port: u16,
    /// Outermost VLAN id, 0 if untagged; above it [`key_bits`].
    pub vlan: u16,
    /// IP protocol number.
    pub protocol: u8,
    /// Always 0.
    pub zero: u8,
}

const _: () = assert!(size_of::<FlowKeyV4>() == 16 && size_of::<FlowKeyV6>() == 40);

/// The key of a flow: an IPv4 or IPv6 5-tuple with VLAN, the same in both directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FlowKey {
    /// IPv4.
    V4(FlowKeyV4),
    /// IPv6.
    V6(FlowKeyV6),
}

impl FlowKey {
    /// The key of a packet with these addresses, and the packet's direction. If the address families differ,
    /// the IPv4 address counts as IPv4-mapped.
    pub fn new(tuple: &Tuple) -> (FlowKey, Direction) {
        let swap = (tuple.src, tuple.src_port) > (tuple.dst, tuple.dst_port);
        let (low, low_port, high, high_port) = if swap {
            (tuple.dst, tuple.dst_port, tuple.src, tuple.src_port)
        } else {
            (tuple.src, tuple.src_port, tuple.dst, tuple.dst_port)
        };
        let key = match (low, high) {
            (IpAddr::V4(a), IpAddr::V4(b)) => FlowKey::V4(FlowKeyV4 {
                a: a.octets(),
                b: b.octets(),
                a_port: low_port,
                b_port: high_port,
                vlan: tuple.vlan,
                protocol: tuple.protocol,
                zero: 0,
            }),
            (a, b) => FlowKey::V6(FlowKeyV6 {
                a: v6(a).octets(),
                b: v6(b).octets(),
                a_port: low_port,
                b_port: high_port,
                vlan: tuple.vlan,
                protocol: tuple.protocol,
                zero: 0,
            }),
        };
        (
            key,
            if swap {
                Direction::Reverse
            } else {
                Direction::Forward
            },
        )
    }

    /// The addresses of this flow's packets in a direction: the inverse of [`FlowKey::new`].
    pub fn tuple(&self, direction: Direction) -> Tuple {
        let (a, b, a_port, b_port, vlan, protocol) = match self {
            FlowKey::V4(k) => (
                IpAddr::V4(Ipv4Addr::from(k.a)),
                IpAddr::V4(Ipv4Addr::from(k.b)),
                k.a_port,
                k.b_port,
                k.vlan,
                k.protocol,
            ),
            FlowKey::V6(k) => (
                IpAddr::V6(Ipv6Addr::from(k.a)),
                IpAddr::V6(Ipv6Addr::from(k.b)),
                k.a_port,
                k.b_port,
                k.vlan,
                k.protocol,
            ),
        };
        match direction {
            Direction::Forward => Tuple {
                src: a,
                dst: b,
                src_port: a_port,
                dst_port: b_port,
                protocol,
                vlan,
            },
            Direction::Reverse => Tuple {
                src: b,
                dst: a,
                src_port: b_port,
                dst_port: a_port,
                protocol,
                vlan,
            },
        }
    }

    /// The key of the same flow at that place of a chain of services: see [`key_bits::hop`]. The key of a flow that is
    /// known by what packets carry stays.
    #[must_use]
    pub const fn at_hop(mut self, place: u8) -> FlowKey {
        let vlan = match &mut self {
            FlowKey::V4(k) => &mut k.vlan,
            FlowKey::V6(k) => &mut k.vlan,
        };
        if *vlan & key_bits::OF_CONTENT == 0 {
            *vlan = *vlan & key_bits::VLAN | key_bits::hop(place);
        }
        self
    }

    /// The IP protocol number.
    pub const fn protocol(&self) -> u8 {
        match self {
            FlowKey::V4(k) => k.protocol,
            FlowKey::V6(k) => k.protocol,
        }
    }
}

fn v6(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    }
}

impl fmt::Display for Tuple {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.protocol {
            protocol::ICMP => "icmp",
            protocol::TCP => "tcp",
            protocol::UDP => "udp",
            protocol::ICMPV6 => "icmpv6",
            protocol::SCTP => "sctp",
            _ => "",
        };
        match (self.src, self.dst) {
            (src, dst) if name.is_empty() => write!(f, "ip-{} {src} > {dst}", self.protocol)?,
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                write!(f, "{name} [{src}]:{} > [{dst}]:{}", self.src_port, self.dst_port)?;
            }
            (src, dst) => write!(f, "{name} {src}:{} > {dst}:{}", self.src_port, self.dst_port)?,
        }
        let vlan = self.vlan & key_bits::VLAN;
        // A hop is not shown: a flow's service tells it.
        let bits = match self.vlan & key_bits::OF_CONTENT {
            0 => 0,
            _ => self.vlan & !key_bits::VLAN,
        };
        if bits & key_bits::NETWORK != 0 {
            write!(f, " network {vlan}")?;
        } else if vlan != 0 {
            write!(f, " vlan {vlan}")?;
        }
        match bits {
            0 => Ok(()),
            bits if bits & key_bits::LABEL != 0 => write!(f, " label"),
            _ => write!(f, " inner"),
        }
    }
}
