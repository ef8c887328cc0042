//! Addresses for Services and Gateways: the pool, and who has which.
//!
//! Each node computes the same: an address that an object has in its status stays, the older object wins, whether the
//! other one asks for its address or has it, and what is free is given from the lowest address on. Two nodes that give the
//! same address to two objects at once see both in the next list, and the younger one gets another.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};

use crate::plan::Id;

/// Most addresses of a pool: a network of 16 bits.
const POOL_LIMIT: u32 = 1 << 16;
const NONE_FREE: &str = "no address is free; set the annotation inco.dev/address of a Service, or spec.addresses of a \
                         Gateway, or give the operator more with --addresses";

/// IPv4 addresses to be given to Services and Gateways.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pool(Vec<(u32, u32)>);

impl Pool {
    /// Reads `10.0.0.100-10.0.0.120,10.1.0.0/28`.
    ///
    /// # Errors
    /// It is no list of addresses.
    pub fn parse(text: &str) -> Result<Pool, String> {
        let wrong = |part: &str| {
            format!("{part:?} is no range of IPv4 addresses; write 10.0.0.100-10.0.0.120 or 10.1.0.0/28")
        };
        let mut pool = Pool::default();
        let mut count = 0_u32;
        for part in text.split(',').map(str::trim) {
            let address = |of: &str| of.trim().parse::<Ipv4Addr>().map(u32::from).ok();
            let range = if let Some((first, last)) = part.split_once('-') {
                address(first).zip(address(last))
            } else if let Some((network, bits)) = part.split_once('/') {
                let bits: Option<u32> = bits.parse().ok().filter(|bits| *bits <= 32);
                address(network).zip(bits).map(|(network, bits)| {
                    let hosts = u32::MAX.checked_shr(bits).unwrap_or(0);
                    (network & !hosts, network | hosts)
                })
            } else {
                address(part).map(|of| (of, of))
            };
            let (first, last) = range
                .filter(|(first, last)| first <= last)
                .ok_or_else(|| wrong(part))?;
            count = count.saturating_add((last - first).saturating_add(1));
            if count > POOL_LIMIT {
                return Err(format!(
                    "{text:?} has too many addresses; write at most {POOL_LIMIT}"
                ));
            }
            pool.0.push((first, last));
        }
        Ok(pool)
    }

    fn contains(&self, address: IpAddr) -> bool {
        let IpAddr::V4(address) = address else {
            return false;
        };
        let number = u32::from(address);
        self.0
            .iter()
            .any(|(first, last)| (*first..=*last).contains(&number))
    }

    fn all(&self) -> impl Iterator<Item = IpAddr> + '_ {
        let each = self.0.iter().flat_map(|(first, last)| *first..=*last);
        each.map(|number| IpAddr::V4(Ipv4Addr::from(number)))
    }
}

/// A Service or a Gateway that is to have an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Which.
    pub id: Id,
    /// When it was made, in a form that sorts.
    pub created: String,
    /// The address that it asks for.
    pub asked: Option<IpAddr>,
    /// The address in its status.
    pub has: Option<IpAddr>,
}

/// The address of each, or why it has none.
pub fn assign(claims: &[Claim], pool: &Pool) -> BTreeMap<Id, Result<IpAddr, String>> {
    let mut claims: Vec<&Claim> = claims.iter().collect();
    claims.sort_by(|a, b| (&a.created, &a.id).cmp(&(&b.created, &b.id)));
    let mut taken = BTreeSet::new();
    let mut given = BTreeMap::new();
    for claim in &claims {
        let Some(address) = claim.asked.or(claim.has.filter(|of| pool.contains(*of))) else {
            continue;
        };
        let answer = match (taken.insert(address), claim.asked) {
            (true, _) => Ok(address),
            (false, Some(_)) => Err(format!(
                "an older object has the address {address}; ask for another one"
            )),
            (false, None) => continue,
        };
        given.insert(claim.id.clone(), answer);
    }
    let mut free = pool.all();
    for claim in claims {
        if given.contains_key(&claim.id) {
            continue;
        }
        let answer = match free.find(|of| taken.insert(*of)) {
            Some(address) => Ok(address),
            None => Err(NONE_FREE.to_owned()),
        };
        given.insert(claim.id.clone(), answer);
    }
    given
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by it")]
    use super::*;

    fn claim(number: u32, asked: Option<&str>, has: Option<&str>) -> Claim {
        Claim {
            id: Id {
                kind: "Service",
                namespace: "shop".to_owned(),
                name: format!("s{number}"),
            },
            created: format!("2026-01-{number:02}"),
            asked: asked.map(|of| of.parse().unwrap()),
            has: has.map(|of| of.parse().unwrap()),
        }
    }

    fn given(claims: &[Claim], pool: &str) -> Vec<String> {
        let pool = Pool::parse(pool).unwrap();
        let text = |of: Result<IpAddr, String>| of.map_or_else(|why| why, |of| of.to_string());
        assign(claims, &pool).into_values().map(text).collect()
    }

    #[test]
    fn addresses_stay_and_free_ones_are_given_from_the_lowest_on() {
        let all = [
            claim(1, None, None),
            claim(2, None, Some("10.0.0.1")),
            claim(3, Some("192.0.2.9"), None),
            claim(4, None, Some("10.9.9.9")),
        ];
        assert_eq!(
            given(&all, "10.0.0.1-10.0.0.3"),
            ["10.0.0.2", "10.0.0.1", "192.0.2.9", "10.0.0.3"]
        );
    }

    #[test]
    fn of_two_with_one_address_the_older_keeps_it() {
        let all = [claim(2, None, Some("10.0.0.1")), claim(1, None, Some("10.0.0.1"))];
        assert_eq!(given(&all, "10.0.0.0/30"), ["10.0.0.1", "10.0.0.0"]);
        let asked = [claim(1, Some("10.0.0.1"), None), claim(2, Some("10.0.0.1"), None)];
        let said = given(&asked, "10.0.0.0/30");
        assert!(
            said[0] == "10.0.0.1" && said[1].contains("an older object has the address 10.0.0.1"),
            "{said:?}"
        );
    }

    /// Whoever writes a Service may be somebody else than who has the address.
    #[test]
    fn nobody_takes_the_address_of_an_older_one_by_asking_for_it() {
        let all = [claim(1, None, Some("10.0.0.1")), claim(2, Some("10.0.0.1"), None)];
        let said = given(&all, "10.0.0.0/30");
        assert!(
            said[0] == "10.0.0.1" && said[1].contains("an older object has the address 10.0.0.1"),
            "{said:?}"
        );
        // An older one gets what it asks for, and the other one another address.
        let all = [claim(1, Some("10.0.0.1"), None), claim(2, None, Some("10.0.0.1"))];
        assert_eq!(given(&all, "10.0.0.0/30"), ["10.0.0.1", "10.0.0.0"]);
        // What is asked for later is not given to one without an address before.
        let all = [claim(1, None, None), claim(2, Some("10.0.0.0"), None)];
        assert_eq!(given(&all, "10.0.0.0/30"), ["10.0.0.1", "10.0.0.0"]);
    }

    #[test]
    fn an_empty_pool_says_what_to_do() {
        let said = given(&[claim(1, None, None), claim(2, None, None)], "10.0.0.1");
        assert!(said[1].starts_with("no address is free; set"), "{said:?}");
        let none = assign(&[claim(1, None, Some("10.0.0.1"))], &Pool::default());
        assert!(none.into_values().all(|of| of.is_err()));
    }

    #[test]
    fn a_pool_is_checked() {
        for text in ["", "10.0.0.9-10.0.0.1", "10.0.0.1/33", "x", "10.0.0.1-", "::1"] {
            assert!(Pool::parse(text).unwrap_err().contains("is no range"), "{text}");
        }
        for text in [
            "10.0.0.0/15",
            "0.0.0.0/0",
            "0.0.0.0-255.255.255.255",
            "10.0.0.0/16,10.9.0.1",
        ] {
            assert!(Pool::parse(text).unwrap_err().contains("too many"), "{text}");
        }
        assert!(Pool::parse("10.0.0.0/16").is_ok());
        assert_eq!(Pool::parse("10.0.0.7/32").unwrap().all().count(), 1);
    }
}
