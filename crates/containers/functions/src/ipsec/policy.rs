//! Which packets a tunnel takes: the policies of RFC 4301, section 4.4.1, by addresses and protocol.

use std::net::IpAddr;
use std::str::FromStr;

use super::headers::{Ip, number};

/// The addresses that begin with the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Prefix {
    is_v6: bool,
    address: u128,
    mask: u128,
}

/// The text is no prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NoPrefix;

impl FromStr for Prefix {
    type Err = NoPrefix;

    /// An address, or one with the number of its bits that count.
    fn from_str(text: &str) -> Result<Prefix, NoPrefix> {
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits.parse::<u32>().map_err(|_| NoPrefix)?)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| NoPrefix)?;
        let width = if address.is_ipv6() { 128 } else { 32 };
        let ignored = width - bits.unwrap_or(width).min(width);
        if bits.is_some_and(|bits| bits > width) {
            return Err(NoPrefix);
        }
        let mask = u128::MAX.checked_shl(ignored).unwrap_or(0);
        Ok(Prefix {
            is_v6: address.is_ipv6(),
            address: number(address) & mask,
            mask,
        })
    }
}

impl Prefix {
    fn has(&self, is_v6: bool, address: u128) -> bool {
        self.is_v6 == is_v6 && address & self.mask == self.address
    }
}

/// What becomes of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// It goes into the tunnel with that index; without one, it may only come out of one.
    Protect(Option<usize>),
    /// It goes on as it is.
    Pass,
    /// It is dropped.
    Discard,
}

/// A policy. An empty list stands for all addresses.
#[derive(Clone, Debug)]
pub(super) struct Policy {
    pub(super) sources: Vec<Prefix>,
    pub(super) destinations: Vec<Prefix>,
    pub(super) protocol: Option<u8>,
    pub(super) action: Action,
    /// Packets of the opposite direction must come out of a tunnel.
    pub(super) is_expected: bool,
}

impl Policy {
    fn has(&self, is_v6: bool, src: u128, dst: u128, protocol: u8) -> bool {
        let has = |list: &[Prefix], address| list.is_empty() || list.iter().any(|of| of.has(is_v6, address));
        self.protocol.is_none_or(|of| of == protocol)
            && has(&self.sources, src)
            && has(&self.destinations, dst)
    }
}

/// What the policies say about a packet that comes without protection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    /// The action of the first policy that has the packet.
    Do(Action),
    /// It is of a kind that comes out of a tunnel only.
    Unprotected,
}

/// Policies in their order: the first that has a packet decides.
#[derive(Clone, Debug)]
pub(super) struct Policies {
    all: Vec<Policy>,
    otherwise: Action,
}

impl Policies {
    pub(super) fn new(all: Vec<Policy>, otherwise: Action) -> Policies {
        Policies { all, otherwise }
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    /// What becomes of a packet that comes without protection.
    #[inline]
    pub(super) fn decide(&self, ip: &Ip) -> Decision {
        self.decide_ends(ip.is_v6, [ip.src, ip.dst], ip.protocol)
    }

    /// The same of a packet from and to these addresses.
    #[inline]
    pub(super) fn decide_ends(&self, is_v6: bool, [src, dst]: [u128; 2], protocol: u8) -> Decision {
        for policy in &self.all {
            if policy.has(is_v6, src, dst, protocol) {
                return Decision::Do(policy.action);
            }
            if policy.is_expected && policy.has(is_v6, dst, src, protocol) {
                return Decision::Unprotected;
            }
        }
        Decision::Do(self.otherwise)
    }

    /// Whether a packet may come out of a tunnel that these policies name.
    #[inline]
    pub(super) fn admits(&self, policies: &[usize], ip: &Ip) -> bool {
        let has = |at: &usize| {
            let policy = self.all.get(*at);
            policy.is_some_and(|policy| policy.has(ip.is_v6, ip.dst, ip.src, ip.protocol))
        };
        policies.iter().any(has)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_prefix_has_the_addresses_with_its_first_bits(address: u32, other: u32, bits in 0_u32..=32) {
            let text = format!("{}/{bits}", std::net::Ipv4Addr::from(address));
            let prefix: Prefix = text.parse().unwrap();
            let same = (0..bits).all(|bit| (address ^ other) >> (31 - bit) & 1 == 0);
            prop_assert_eq!(prefix.has(false, other.into()), same);
            prop_assert!(prefix.has(false, address.into()));
            prop_assert!(!prefix.has(true, address.into()));
        }

        #[test]
        fn a_prefix_of_ipv6_too(address: u128, flip in 0_u32..128, bits in 0_u32..=128) {
            let text = format!("{}/{bits}", std::net::Ipv6Addr::from(address));
            let prefix: Prefix = text.parse().unwrap();
            prop_assert_eq!(prefix.has(true, address ^ 1 << (127 - flip)), flip >= bits);
        }
    }

    #[test]
    fn other_texts_are_no_prefixes() {
        for text in [
            "",
            "10.0.0.0/33",
            "::/129",
            "10.0.0/8",
            "10.0.0.0/",
            "10.0.0.0/-1",
            "10.0.0.0/8/8",
        ] {
            assert_eq!(text.parse::<Prefix>(), Err(NoPrefix), "{text}");
        }
    }
}
