//! A prefix of addresses of either family.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// The leading bits of addresses of one family. Its host bits are 0.
///
/// Ordered by address, a shorter prefix before the longer ones that it contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Prefix {
    is_v6: bool,
    /// The address from the highest bit on; an IPv4 address takes the upper 32 bits.
    bits: u128,
    len: u8,
}

/// Why a text is not a prefix.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PrefixError {
    /// Not an address with an optional length.
    #[error(
        "{0:?} is not a prefix: write an address, or one with a length, such as 10.0.0.0/8 or 2001:db8::/32"
    )]
    Syntax(String),
    /// The length exceeds the family's.
    #[error("{given:?} has more than {limit} bits")]
    Length {
        /// The text.
        given: String,
        /// The bits of an address.
        limit: u8,
    },
    /// Bits beyond the length are set.
    #[error("{given:?} has bits beyond its length: write {meant}")]
    HostBits {
        /// The text.
        given: String,
        /// The prefix without them.
        meant: Prefix,
    },
}

/// An address from the highest bit on: an IPv4 address takes the upper 32 bits.
pub(crate) fn left_aligned(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(u32::from(address)) << 96,
        IpAddr::V6(address) => u128::from(address),
    }
}

/// The bits beyond a prefix's length.
const fn host_mask(len: u8) -> u128 {
    match len {
        128.. => 0,
        len => u128::MAX >> len,
    }
}

impl Prefix {
    /// All IPv4 addresses.
    pub const ALL_V4: Prefix = Prefix {
        is_v6: false,
        bits: 0,
        len: 0,
    };
    /// All IPv6 addresses.
    pub const ALL_V6: Prefix = Prefix {
        is_v6: true,
        bits: 0,
        len: 0,
    };

    /// The first `len` bits of an address, at most all of them; its host bits are cleared.
    pub fn of(address: IpAddr, len: u8) -> Prefix {
        let is_v6 = address.is_ipv6();
        let len = len.min(if is_v6 { 128 } else { 32 });
        Prefix {
            is_v6,
            bits: left_aligned(address) & !host_mask(len),
            len,
        }
    }

    /// Whether it holds IPv6 addresses.
    pub const fn is_v6(&self) -> bool {
        self.is_v6
    }

    /// Its length in bits.
    pub const fn len(&self) -> u8 {
        self.len
    }

    /// Whether it holds every address of its family.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Its first address from the highest bit on.
    pub(crate) const fn first_bits(&self) -> u128 {
        self.bits
    }

    /// The bits beyond its length; those beyond an IPv4 address, too.
    pub(crate) const fn host_bits(&self) -> u128 {
        host_mask(self.len)
    }

    /// Its last address from the highest bit on; the bits beyond an IPv4 address are set.
    pub(crate) const fn last_bits(&self) -> u128 {
        self.bits | host_mask(self.len)
    }

    /// Its first address.
    pub fn address(&self) -> IpAddr {
        if self.is_v6 {
            IpAddr::V6(Ipv6Addr::from(self.bits))
        } else {
            IpAddr::V4(Ipv4Addr::from((self.bits >> 96) as u32))
        }
    }

    /// Whether it holds an address.
    pub fn contains(&self, address: IpAddr) -> bool {
        address.is_ipv6() == self.is_v6 && (left_aligned(address) ^ self.bits) & !host_mask(self.len) == 0
    }

    /// Whether it holds every address of another prefix.
    pub const fn contains_prefix(&self, other: &Prefix) -> bool {
        self.is_v6 == other.is_v6
            && self.len <= other.len
            && (other.bits ^ self.bits) & !host_mask(self.len) == 0
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address(), self.len)
    }
}

impl FromStr for Prefix {
    type Err = PrefixError;

    fn from_str(text: &str) -> Result<Prefix, PrefixError> {
        let syntax = || PrefixError::Syntax(text.to_owned());
        let (address, len) = match text.split_once('/') {
            Some((address, len)) => (address, Some(len)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| syntax())?;
        let limit = if address.is_ipv6() { 128 } else { 32 };
        let len = match len {
            Some(len) => len.parse::<u8>().map_err(|_| syntax())?,
            None => limit,
        };
        if len > limit {
            return Err(PrefixError::Length {
                given: text.to_owned(),
                limit,
            });
        }
        let meant = Prefix::of(address, len);
        if meant.address() != address {
            return Err(PrefixError::HostBits {
                given: text.to_owned(),
                meant,
            });
        }
        Ok(meant)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_becomes_a_prefix_and_back() {
        for text in [
            "0.0.0.0/0",
            "10.0.0.0/8",
            "192.0.2.1/32",
            "::/0",
            "2001:db8::/32",
            "2001:db8::1/128",
        ] {
            assert_eq!(text.parse::<Prefix>().unwrap().to_string(), text);
        }
        assert_eq!("10.1.2.3".parse::<Prefix>().unwrap().len(), 32);
        assert_eq!("::1".parse::<Prefix>().unwrap().len(), 128);
    }

    #[test]
    fn what_is_no_prefix_is_refused_with_what_to_write() {
        for text in [
            "",
            "/8",
            "10.0.0.0/",
            "10.0.0/8",
            "10.0.0.0/-1",
            "x",
            "10.0.0.0/8/8",
        ] {
            assert!(
                matches!(text.parse::<Prefix>(), Err(PrefixError::Syntax(_))),
                "{text}"
            );
        }
        assert!(matches!(
            "10.0.0.0/33".parse::<Prefix>(),
            Err(PrefixError::Length { limit: 32, .. })
        ));
        assert!(matches!(
            "::/129".parse::<Prefix>(),
            Err(PrefixError::Length { limit: 128, .. })
        ));
        let error = "10.1.2.3/8".parse::<Prefix>().unwrap_err();
        assert!(error.to_string().ends_with("write 10.0.0.0/8"), "{error}");
    }

    #[test]
    fn a_family_contains_only_its_own_addresses() {
        let v4 = IpAddr::V4(Ipv4Addr::new(10, 1, 2, 3));
        let v6 = IpAddr::V6(Ipv6Addr::LOCALHOST);
        assert!(Prefix::ALL_V4.contains(v4) && !Prefix::ALL_V4.contains(v6));
        assert!(Prefix::ALL_V6.contains(v6) && !Prefix::ALL_V6.contains(v4));
        assert!(Prefix::of(v4, 8).contains_prefix(&Prefix::of(v4, 32)));
        assert!(!Prefix::of(v4, 32).contains_prefix(&Prefix::of(v4, 8)));
    }
}
