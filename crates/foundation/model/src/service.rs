//! What a service is made of, in the same words from the configuration down to the worker.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::{Nanos, Tuple, UplinkId, protocol};

/// Declares an enum whose values each have a word in the configuration and in messages.
#[macro_export]
macro_rules! words {
    ($(
        $(#[$outer:meta])*
        pub enum $name:ident { $($(#[$inner:meta])* $value:ident = $word:literal,)* }
    )*) => {$(
        $(#[$outer])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name { $($(#[$inner])* $value,)* }

        impl $name {
            /// Every value with the word for it.
            pub const WORDS: &'static [(&'static str, $name)] = &[$(($word, $name::$value),)*];

            /// The word for it.
            pub const fn name(self) -> &'static str {
                match self { $($name::$value => $word,)* }
            }
        }
    )*};
}

words! {
    /// What happens to a new flow that finds the flow table full.
    #[derive(Default)]
    pub enum TableFull {
        /// Its packets are sent by hash, without a pin: an instance added or removed may move it.
        #[default]
        Hash = "hash",
        /// Its packets are dropped and counted.
        Drop = "drop",
    }

    /// How a standby instance waits.
    pub enum StandbyMode {
        /// Running: activating it costs microseconds.
        Warm = "warm",
        /// Frozen: it uses no CPU; activating it costs a resume.
        Paused = "paused",
    }

    /// How instances serve a service's address.
    #[derive(Default)]
    pub enum VipMode {
        /// Each instance has the address, and nothing is rewritten.
        #[default]
        L2 = "l2",
        /// Each instance has an address of its own, and the switch translates.
        Dnat = "dnat",
    }
}

words! {
    /// Which flows of a service share an instance.
    #[derive(Default)]
    pub enum AffinityKey {
        /// None: each flow is picked for itself.
        #[default]
        Flow = "flow",
        /// Those between the same two addresses.
        Addresses = "addresses",
        /// Those of the same client's address.
        Source = "source",
        /// None. Of a packet in a tunnel the flow is that of the packet inside.
        Inner = "inner",
        /// None. The flow of an ESP packet is its security association.
        Spi = "spi",
    }
}

impl AffinityKey {
    /// Whether flows with a common address share an instance.
    pub const fn shares_addresses(self) -> bool {
        matches!(self, AffinityKey::Addresses | AffinityKey::Source)
    }

    /// Whether flows are known by what their packets carry, not by the packets' own addresses and ports.
    pub const fn reads_content(self) -> bool {
        matches!(self, AffinityKey::Inner | AffinityKey::Spi)
    }
}

/// What happens to packets that are no flow of a service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fallback {
    /// They are dropped and counted.
    #[default]
    Drop,
    /// They leave by that uplink, unchanged.
    Pass(UplinkId),
    /// They leave by the other one of two uplinks, unchanged.
    Opposite,
    /// They go on into this machine's own network.
    Host,
}

impl Fallback {
    /// The uplink by which a packet leaves that came in by `from`; `None` where it leaves by none. `Opposite` is only for
    /// switches with two uplinks.
    pub const fn exit(self, from: UplinkId) -> Option<UplinkId> {
        match self {
            Fallback::Drop | Fallback::Host => None,
            Fallback::Pass(uplink) => Some(uplink),
            Fallback::Opposite => Some(UplinkId(from.0 ^ 1)),
        }
    }
}

/// The address of a service, which clients connect to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vip {
    /// One address, or one of IPv4 and one of IPv6.
    pub addresses: Vec<IpAddr>,
    /// The ports that are served there, of TCP and of UDP.
    pub ports: Vec<RangeInclusive<u16>>,
    /// How instances serve it.
    pub mode: VipMode,
    /// The port that instances serve, where addresses are translated and it is another than the one in `ports`.
    pub target_port: Option<u16>,
}

impl Vip {
    /// The ports that instances serve.
    pub fn instance_ports(&self) -> Vec<RangeInclusive<u16>> {
        self.target_port
            .map_or_else(|| self.ports.clone(), |port| vec![port..=port])
    }

    /// Whether a packet is to it.
    pub fn takes(&self, of: &Tuple) -> bool {
        [protocol::TCP, protocol::UDP].contains(&of.protocol)
            && self.addresses.contains(&of.dst)
            && self.ports.iter().any(|ports| ports.contains(&of.dst_port))
    }

    /// The packets to it, in a VLAN: a match for each address, range of ports and protocol.
    pub fn matches(&self, vlan: Option<u16>) -> Vec<Match> {
        let mut all = Vec::new();
        for address in &self.addresses {
            for ports in &self.ports {
                all.extend([protocol::TCP, protocol::UDP].map(|protocol| Match {
                    protocol: Some(protocol),
                    dst: Some(Prefix::of(*address)),
                    dst_port: Some(ports.clone()),
                    vlan,
                    ..Match::default()
                }));
            }
        }
        all
    }
}

/// When an instance counts as ready.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ready {
    /// Its data ports are up.
    Connected,
    /// It took a probe packet out of its ring.
    Consumes,
    /// Its program listens on the ports of the service's address, or takes whole frames from its interfaces.
    Listens,
    /// This command, run in the container, exits with 0.
    Exec(Vec<String>),
}

/// The capabilities that an ordinary program has unless something else is said, and all that one may have: those of
/// Docker without `NET_RAW`, with which it could answer for another's address. They hold in its user namespace.
pub const CAPABILITIES: [&str; 13] = [
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "MKNOD",
    "NET_BIND_SERVICE",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
];

/// A file or directory of this machine that a container sees.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mount {
    /// On this machine; must exist. Absolute, once its configuration is loaded.
    pub source: PathBuf,
    /// In the container; absolute.
    pub target: PathBuf,
    /// Whether the container may only read it.
    pub read_only: bool,
}

/// A network interface of the machine or what one belongs to: the data port of a container.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum NetFunction {
    /// A function at a PCI address, as `0000:03:00.2`.
    Pci {
        /// The address.
        address: String,
        /// The device file of its group, where the engine is on another machine and cannot be asked.
        vfio: Option<PathBuf>,
    },
    /// A scalable function, by its number.
    Sf(u32),
    /// The interface of that name.
    Interface(String),
    /// The container's end of a pair of interfaces, with its settings.
    Port(InterfaceSetup),
    /// The container's end of a pair of interfaces that carries whole frames. It has no addresses.
    Frames(InterfaceSetup),
}

/// An interface of this machine that a container gets, and how it is set up there before the program starts.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct InterfaceSetup {
    /// Its name on this machine.
    pub host: String,
    /// Its name in the container.
    pub name: String,
    /// Its MAC address.
    pub mac: [u8; 6],
    /// The longest packet in bytes, without the Ethernet header.
    pub mtu: u16,
    /// Its addresses, each with the length of its prefix.
    pub addresses: Vec<(IpAddr, u8)>,
    /// The next hop of everything in IPv4.
    pub gateway_v4: Ipv4Addr,
    /// The next hop of everything in IPv6.
    pub gateway_v6: Ipv6Addr,
    /// The MAC address of both: a permanent neighbour, which is never asked for.
    pub gateway_mac: [u8; 6],
    /// The ports of connections that the program opens, first and last; `None`: those of the kernel.
    pub local_ports: Option<(u16, u16)>,
}

impl fmt::Display for NetFunction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NetFunction::Pci { address, .. } => write!(f, "the function at {address}"),
            NetFunction::Sf(number) => write!(f, "scalable function {number}"),
            NetFunction::Interface(name) => write!(f, "the interface {name}"),
            NetFunction::Port(setup) | NetFunction::Frames(setup) => write!(f, "the port {}", setup.host),
        }
    }
}

/// Timeouts after a flow's last packet. Each at most [`Timeouts::LIMIT`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// A TCP flow that was opened and not yet acknowledged.
    pub tcp_handshake: Nanos,
    /// A TCP flow in use, or closed by one side.
    pub tcp: Nanos,
    /// A TCP flow that was reset, or closed by both sides: time for what is still on its way.
    pub tcp_linger: Nanos,
    /// UDP.
    pub udp: Nanos,
    /// SCTP.
    pub sctp: Nanos,
    /// ICMP of both families.
    pub icmp: Nanos,
    /// Every other protocol.
    pub other: Nanos,
}

impl Timeouts {
    /// The longest timeout: 18 h, just below half of the span after which the coarse time in a flow table's entry
    /// repeats.
    pub const LIMIT: Nanos = Nanos::from_secs(18 * 3600);

    /// The same for all.
    pub const fn all(timeout: Nanos) -> Timeouts {
        Timeouts {
            tcp_handshake: timeout,
            tcp: timeout,
            tcp_linger: timeout,
            udp: timeout,
            sctp: timeout,
            icmp: timeout,
            other: timeout,
        }
    }

    /// The longest of flows in use.
    pub fn longest_in_use(&self) -> Nanos {
        let others = [self.udp, self.sctp, self.icmp, self.other];
        others.into_iter().fold(self.tcp, Nanos::max)
    }

    /// That of a flow in use of an IP protocol.
    pub const fn of_protocol(&self, ip_proto: u8) -> Nanos {
        match ip_proto {
            protocol::TCP => self.tcp,
            protocol::UDP => self.udp,
            protocol::SCTP => self.sctp,
            protocol::ICMP | protocol::ICMPV6 => self.icmp,
            _ => self.other,
        }
    }
}

impl Default for Timeouts {
    /// Those of the configuration.
    fn default() -> Timeouts {
        Timeouts {
            tcp_handshake: Nanos::from_secs(10),
            tcp: Nanos::from_secs(900),
            tcp_linger: Nanos::from_secs(2),
            udp: Nanos::from_secs(120),
            sctp: Nanos::from_secs(900),
            icmp: Nanos::from_secs(60),
            other: Nanos::from_secs(120),
        }
    }
}

/// A parameter of a policy, for the reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// The key.
    pub name: &'static str,
    /// What may be written, with its unit.
    pub kind: &'static str,
    /// What holds where it is not written, as TOML or in words.
    pub default: &'static str,
    /// What it does.
    pub meaning: &'static str,
}

impl Parameter {
    /// A parameter.
    pub const fn new(
        name: &'static str,
        kind: &'static str,
        default: &'static str,
        meaning: &'static str,
    ) -> Parameter {
        Parameter {
            name,
            kind,
            default,
            meaning,
        }
    }
}

/// Addresses that share their first bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    /// Any address of it.
    pub address: IpAddr,
    /// How many leading bits count.
    pub bits: u8,
}

impl Prefix {
    /// That one address.
    pub const fn of(address: IpAddr) -> Prefix {
        let bits = if address.is_ipv4() { 32 } else { 128 };
        Prefix { address, bits }
    }

    /// Its first address: all bits after the first `bits` are 0.
    pub fn first(&self) -> IpAddr {
        let bits = u32::from(self.bits);
        match self.address {
            IpAddr::V4(v4) => {
                let mask = u32::MAX.checked_shl(32u32.saturating_sub(bits)).unwrap_or(0);
                IpAddr::V4((u32::from(v4) & mask).into())
            }
            IpAddr::V6(v6) => {
                let mask = u128::MAX.checked_shl(128u32.saturating_sub(bits)).unwrap_or(0);
                IpAddr::V6((u128::from(v6) & mask).into())
            }
        }
    }

    /// Whether the address is in it. Addresses of the other family never are.
    #[inline]
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.address, address) {
            (IpAddr::V4(a), IpAddr::V4(b)) => {
                let shift = 32u32.saturating_sub(u32::from(self.bits));
                (u64::from(u32::from(a)) >> shift) == (u64::from(u32::from(b)) >> shift)
            }
            (IpAddr::V6(a), IpAddr::V6(b)) => {
                let shift = 128u32.saturating_sub(u32::from(self.bits));
                u128::from(a).checked_shr(shift) == u128::from(b).checked_shr(shift)
            }
            _ => false,
        }
    }

    /// Whether every address of it is in `other`.
    pub fn is_within(&self, other: &Prefix) -> bool {
        self.bits >= other.bits && other.contains(self.address)
    }
}

/// A security association that has one instance for as long as it is listed, also while it has no packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Association {
    /// Its index, as its packets carry it.
    pub spi: u32,
    /// The destination of its packets.
    pub to: IpAddr,
    /// The packets without protection that enter it; [`None`] where the other end protects.
    pub protects: Option<Selector>,
}

impl Association {
    /// Entries of a service's list, at most: a packet is compared with one after the other.
    pub const LIMIT: usize = 256;
    /// Prefixes of each list of a [`Selector`], at most.
    pub const PREFIXES_LIMIT: usize = 64;
    /// Smaller indices are reserved (RFC 4303, section 2.1).
    pub const SPI_MIN: u32 = 256;
}

/// Packets by their addresses and protocol. An empty list stands for all addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selector {
    /// Sources.
    pub sources: Vec<Prefix>,
    /// Destinations.
    pub destinations: Vec<Prefix>,
    /// IP protocol number.
    pub protocol: Option<u8>,
}

impl Selector {
    /// Whether a packet with these addresses and that protocol is meant.
    pub fn has(&self, src: IpAddr, dst: IpAddr, protocol: u8) -> bool {
        let has = |list: &[Prefix], address| list.is_empty() || list.iter().any(|of| of.contains(address));
        self.protocol.is_none_or(|of| of == protocol)
            && has(&self.sources, src)
            && has(&self.destinations, dst)
    }
}

/// Which packets are a service's. An empty match is all IP packets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Match {
    /// IP protocol number.
    pub protocol: Option<u8>,
    /// Source addresses.
    pub src: Option<Prefix>,
    /// Destination addresses.
    pub dst: Option<Prefix>,
    /// Source ports.
    pub src_port: Option<RangeInclusive<u16>>,
    /// Destination ports.
    pub dst_port: Option<RangeInclusive<u16>>,
    /// Outermost VLAN id; 0 for packets without a tag.
    pub vlan: Option<u16>,
}

impl Match {
    /// The same of packets in the opposite direction.
    pub fn reversed(&self) -> Match {
        Match {
            src: self.dst,
            dst: self.src,
            src_port: self.dst_port.clone(),
            dst_port: self.src_port.clone(),
            ..self.clone()
        }
    }

    /// Whether all IP packets are meant.
    #[inline]
    pub fn is_any(&self) -> bool {
        let Match {
            protocol,
            src,
            dst,
            src_port,
            dst_port,
            vlan,
        } = self;
        protocol.is_none()
            && vlan.is_none()
            && src.is_none()
            && dst.is_none()
            && src_port.is_none()
            && dst_port.is_none()
    }

    /// Whether a packet with these addresses is meant.
    #[inline]
    pub fn matches(&self, tuple: &Tuple) -> bool {
        self.protocol.is_none_or(|p| p == tuple.protocol)
            && self.vlan.is_none_or(|v| v == tuple.vlan)
            && self.src.is_none_or(|p| p.contains(tuple.src))
            && self.dst.is_none_or(|p| p.contains(tuple.dst))
            && self.src_port.as_ref().is_none_or(|r| r.contains(&tuple.src_port))
            && self.dst_port.as_ref().is_none_or(|r| r.contains(&tuple.dst_port))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_of_every_length_hold_their_own_address() {
        for bits in 0..=32 {
            let p = Prefix {
                address: "10.128.3.4".parse().unwrap(),
                bits,
            };
            assert!(p.contains("10.128.3.4".parse().unwrap()));
            assert_eq!(p.contains("138.0.0.0".parse().unwrap()), bits == 0);
            assert!(!p.contains("::1".parse().unwrap()));
        }
        for bits in 0..=128 {
            let p = Prefix {
                address: "2001:db8::1".parse().unwrap(),
                bits,
            };
            assert!(p.contains("2001:db8::1".parse().unwrap()));
            assert_eq!(p.contains("a001:db8::1".parse().unwrap()), bits == 0);
        }
    }

    #[test]
    fn a_prefix_is_within_itself_and_shorter_ones() {
        let prefix = |text: &str, bits| Prefix {
            address: text.parse().unwrap(),
            bits,
        };
        let (net, part) = (prefix("10.0.0.0", 8), prefix("10.128.0.0", 16));
        assert!(part.is_within(&net) && net.is_within(&net) && !net.is_within(&part));
        assert!(!prefix("11.0.0.0", 16).is_within(&net));
        assert!(!prefix("::", 0).is_within(&prefix("0.0.0.0", 0)));
        assert_eq!(prefix("10.128.3.4", 9).first(), prefix("10.128.0.0", 9).address);
        assert_eq!(prefix("2001:db8::1", 0).first(), prefix("::", 0).address);
    }
}
