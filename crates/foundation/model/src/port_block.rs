//! Blocks of external ports: what an instance that translates addresses owns, so that packets that come back find it.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::str::FromStr;

use thiserror::Error;

use crate::flow::{Tuple, protocol};
use crate::service::Prefix;

/// Ports of one external address, which one instance owns. As text: `203.0.113.0:1024-5055`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortBlock {
    /// The external address.
    pub address: Ipv4Addr,
    /// The first port.
    pub first: u16,
    /// The last port, at least `first`.
    pub last: u16,
}

impl PortBlock {
    /// Whether they have a port in common.
    pub fn overlaps(&self, other: &PortBlock) -> bool {
        self.address == other.address && self.first <= other.last && other.first <= self.last
    }
}

impl fmt::Display for PortBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}-{}", self.address, self.first, self.last)
    }
}

/// A text that is no block of ports.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0:?} is no block of ports such as \"203.0.113.0:1024-5055\"")]
pub struct NoPortBlock(String);

impl FromStr for PortBlock {
    type Err = NoPortBlock;

    fn from_str(text: &str) -> Result<PortBlock, NoPortBlock> {
        let parsed = text.split_once(':').and_then(|(address, ports)| {
            let (first, last) = ports.split_once('-')?;
            let block = PortBlock {
                address: address.parse().ok()?,
                first: first.parse().ok()?,
                last: last.parse().ok()?,
            };
            (block.first > 0 && block.first <= block.last).then_some(block)
        });
        parsed.ok_or_else(|| NoPortBlock(text.to_owned()))
    }
}

/// The external addresses of a service, and the division of their ports into blocks of one size. Blocks are numbered
/// from 0, by address and then by port. Ports below [`External::FIRST_PORT`] belong to none, nor do those at the end of an
/// address that are fewer than a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct External {
    /// The first address and how many there are, of each prefix.
    ranges: Vec<(u32, u32)>,
    block_ports: u16,
}

/// Why there are no such external addresses.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ExternalError {
    /// A prefix of IPv6.
    #[error("{0:?} is not of IPv4: only IPv4 is translated")]
    NotV4(IpAddr),
    /// An address is there twice.
    #[error("{0} is in two of the prefixes")]
    Twice(Ipv4Addr),
    /// None, or too many.
    #[error("{0} addresses; there are 1 to {limit}", limit = External::ADDRESS_LIMIT)]
    Count(u64),
    /// A block has too few ports or too many.
    #[error("{0} ports; a block has {least} to {most}", least = External::BLOCK_PORTS_MIN, most = External::PORTS)]
    BlockPorts(u16),
}

impl External {
    /// The first port of a block: those below it are of well-known services.
    pub const FIRST_PORT: u16 = 1024;
    /// Ports of an address that can be in blocks.
    pub const PORTS: u16 = u16::MAX - Self::FIRST_PORT + 1;
    /// Ports of a block, at least: with [`External::ADDRESS_LIMIT`] it bounds the number of blocks.
    pub const BLOCK_PORTS_MIN: u16 = 256;
    /// Addresses at most: as many as the function `nat` can have, and few enough that blocks have numbers of 16 bits.
    pub const ADDRESS_LIMIT: u32 = 256;

    /// The addresses of these prefixes, in blocks of that many ports.
    ///
    /// # Errors
    /// [`ExternalError`].
    pub fn new(prefixes: &[Prefix], block_ports: u16) -> Result<External, ExternalError> {
        let mut ranges = Vec::with_capacity(prefixes.len());
        let mut count = 0_u64;
        for prefix in prefixes {
            let IpAddr::V4(first) = prefix.first() else {
                return Err(ExternalError::NotV4(prefix.address));
            };
            let addresses = 1_u64 << 32_u32.saturating_sub(prefix.bits.into());
            count += addresses;
            ranges.push((u32::from(first), addresses));
        }
        if !(1..=u64::from(Self::ADDRESS_LIMIT)).contains(&count) {
            return Err(ExternalError::Count(count));
        }
        let mut sorted = ranges.clone();
        sorted.sort_unstable();
        for pair in sorted.windows(2) {
            if let [(first, addresses), (next, _)] = *pair
                && u64::from(first) + addresses > u64::from(next)
            {
                return Err(ExternalError::Twice(next.into()));
            }
        }
        if !(Self::BLOCK_PORTS_MIN..=Self::PORTS).contains(&block_ports) {
            return Err(ExternalError::BlockPorts(block_ports));
        }
        let ranges = ranges.into_iter().map(|(first, count)| (first, count as u32));
        Ok(External {
            ranges: ranges.collect(),
            block_ports,
        })
    }

    fn blocks_per_address(&self) -> u16 {
        Self::PORTS / self.block_ports
    }

    /// The number of blocks.
    pub fn blocks(&self) -> u16 {
        let addresses: u32 = self.ranges.iter().map(|(_, count)| count).sum();
        (addresses * u32::from(self.blocks_per_address())) as u16
    }

    /// The place of an address among all of them.
    #[inline]
    fn place_of(&self, address: IpAddr) -> Option<u32> {
        let IpAddr::V4(address) = address else {
            return None;
        };
        let mut before = 0;
        for &(first, count) in &self.ranges {
            let offset = u32::from(address).wrapping_sub(first);
            if offset < count {
                return Some(before + offset);
            }
            before += count;
        }
        None
    }

    /// Whether that is one of the addresses.
    #[inline]
    pub fn has(&self, address: IpAddr) -> bool {
        self.place_of(address).is_some()
    }

    /// Whether they have an address in common.
    pub fn shares_addresses(&self, other: &External) -> bool {
        let meets = |(a, count): (u32, u32), (b, others): (u32, u32)| {
            u64::from(a) < u64::from(b) + u64::from(others) && u64::from(b) < u64::from(a) + u64::from(count)
        };
        let mut own = self.ranges.iter();
        own.any(|of| other.ranges.iter().any(|theirs| meets(*of, *theirs)))
    }

    /// The block with that port of that address.
    #[inline]
    pub fn block_of(&self, address: IpAddr, port: u16) -> Option<u16> {
        let place = self.place_of(address)?;
        let per_address = self.blocks_per_address();
        let block = port.checked_sub(Self::FIRST_PORT)? / self.block_ports;
        (block < per_address).then(|| (place * u32::from(per_address)) as u16 + block)
    }

    /// The ports of that block.
    pub fn ports_of(&self, block: u16) -> Option<PortBlock> {
        let per_address = self.blocks_per_address();
        let mut place = u32::from(block / per_address);
        let first = Self::FIRST_PORT + block % per_address * self.block_ports;
        for &(address, count) in &self.ranges {
            if place < count {
                return Some(PortBlock {
                    address: Ipv4Addr::from(address + place),
                    first,
                    last: first + (self.block_ports - 1),
                });
            }
            place -= count;
        }
        None
    }

    /// The blocks that have a port of this one, which may be of another division.
    pub fn overlapping(&self, with: &PortBlock) -> impl Iterator<Item = u16> + use<> {
        let (of, with) = (self.clone(), *with);
        (0..self.blocks()).filter(move |block| of.ports_of(*block).is_some_and(|own| own.overlaps(&with)))
    }

    /// What a packet is to the addresses. An ICMP error counts as a packet of the flow that it quotes, in the opposite
    /// direction.
    #[inline]
    pub fn look_up(&self, tuple: &Tuple) -> Sought {
        if self.has(tuple.dst) {
            let is_translated = matches!(tuple.protocol, protocol::TCP | protocol::UDP | protocol::ICMP);
            return match self.block_of(tuple.dst, tuple.dst_port) {
                Some(block) if is_translated => Sought::Block(block),
                _ => Sought::NoBlock,
            };
        }
        if self.has(tuple.src) {
            Sought::FromThem
        } else {
            Sought::Other
        }
    }
}

/// What a packet is to external addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sought {
    /// To a port of that block.
    Block(u16),
    /// To one of the addresses, and to no block.
    NoBlock,
    /// From one of the addresses, to another one.
    FromThem,
    /// Something else.
    Other,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn prefix(text: &str) -> Prefix {
        let (address, bits) = text.split_once('/').unwrap();
        Prefix {
            address: address.parse().unwrap(),
            bits: bits.parse().unwrap(),
        }
    }

    fn external(prefixes: &[&str], block_ports: u16) -> Result<External, ExternalError> {
        let prefixes: Vec<Prefix> = prefixes.iter().map(|text| prefix(text)).collect();
        External::new(&prefixes, block_ports)
    }

    #[test]
    fn blocks_are_numbered_by_address_and_port() {
        let of = external(&["203.0.113.4/31", "198.51.100.9/32"], 4032).unwrap();
        assert_eq!(of.blocks(), 48);
        let said = |block| of.ports_of(block).map(|ports| ports.to_string());
        assert_eq!(said(0).as_deref(), Some("203.0.113.4:1024-5055"));
        assert_eq!(said(15).as_deref(), Some("203.0.113.4:61504-65535"));
        assert_eq!(said(16).as_deref(), Some("203.0.113.5:1024-5055"));
        assert_eq!(said(47).as_deref(), Some("198.51.100.9:61504-65535"));
        assert_eq!(said(48), None);
        let first: IpAddr = "203.0.113.4".parse().unwrap();
        assert_eq!(of.block_of(first, 1023), None);
        assert_eq!(of.block_of(first, 5056), Some(1));
        assert_eq!(of.block_of("203.0.113.6".parse().unwrap(), 5056), None);
        // 64,512 is not a multiple of 5000: the last ports are in no block.
        let of = external(&["203.0.113.4/32"], 5000).unwrap();
        assert_eq!((of.blocks(), of.block_of(first, 61_023)), (12, Some(11)));
        assert_eq!(of.block_of(first, 61_024), None);
        let all = external(&["203.0.113.0/24"], External::BLOCK_PORTS_MIN).unwrap();
        assert_eq!(all.blocks(), 64_512);
        assert_eq!(
            all.block_of("203.0.113.255".parse().unwrap(), 65_535),
            Some(64_511)
        );
    }

    #[test]
    fn wrong_addresses_are_refused() {
        use ExternalError::*;
        let twice = external(&["203.0.113.0/24", "203.0.113.7/32"], 512);
        assert_eq!(twice, Err(Count(257)));
        assert_eq!(
            external(&["203.0.113.0/30", "203.0.113.3/32"], 512),
            Err(Twice("203.0.113.3".parse().unwrap()))
        );
        assert_eq!(external(&[], 512), Err(Count(0)));
        assert_eq!(external(&["0.0.0.0/0"], 512), Err(Count(1 << 32)));
        assert_eq!(external(&["203.0.113.0/30"], 255), Err(BlockPorts(255)));
        assert!(matches!(external(&["2001:db8::/128"], 512), Err(NotV4(_))));
        for text in ["", "203.0.113.0", "203.0.113.0:9-8", "203.0.113.0:0-8", "a:1-2"] {
            assert!(text.parse::<PortBlock>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_packet_is_known_by_its_destination_first() {
        let of = external(&["203.0.113.4/32"], 4032).unwrap();
        let tuple = |src: &str, dst: &str, dst_port, protocol| Tuple {
            src: src.parse().unwrap(),
            dst: dst.parse().unwrap(),
            src_port: 9,
            dst_port,
            protocol,
            vlan: 0,
        };
        let to = |port, protocol| of.look_up(&tuple("192.0.2.1", "203.0.113.4", port, protocol));
        for protocol in [protocol::TCP, protocol::UDP, protocol::ICMP] {
            assert_eq!(to(5056, protocol), Sought::Block(1));
        }
        assert_eq!(to(5056, 132), Sought::NoBlock);
        assert_eq!(to(80, protocol::TCP), Sought::NoBlock);
        let from = tuple("203.0.113.4", "192.0.2.1", 80, protocol::TCP);
        assert_eq!(of.look_up(&from), Sought::FromThem);
        let hairpin = tuple("203.0.113.4", "203.0.113.4", 1024, protocol::UDP);
        assert_eq!(of.look_up(&hairpin), Sought::Block(0));
        let other = tuple("10.0.0.1", "192.0.2.1", 80, protocol::TCP);
        assert_eq!(of.look_up(&other), Sought::Other);
    }

    proptest! {
        #[test]
        fn each_port_is_in_at_most_one_block(
            bits in 28_u8..=32, block_ports in External::BLOCK_PORTS_MIN..=External::PORTS, port: u16, at in 0_u32..20,
        ) {
            let of = external(&[&format!("203.0.113.16/{bits}")], block_ports).unwrap();
            let address = Ipv4Addr::from(u32::from(Ipv4Addr::new(203, 0, 113, 14)) + at);
            let having: Vec<u16> = (0..of.blocks())
                .filter(|block| {
                    let own = of.ports_of(*block).unwrap();
                    own.address == address && (own.first..=own.last).contains(&port)
                })
                .collect();
            prop_assert_eq!(having.first().copied(), of.block_of(address.into(), port));
            prop_assert!(having.len() <= 1);
            for block in 0..of.blocks() {
                let ports = of.ports_of(block).unwrap();
                prop_assert_eq!(ports.to_string().parse::<PortBlock>().unwrap(), ports);
                prop_assert_eq!(of.overlapping(&ports).collect::<Vec<_>>(), [block]);
                prop_assert_eq!(usize::from(ports.last - ports.first) + 1, usize::from(block_ports));
            }
        }
    }
}
