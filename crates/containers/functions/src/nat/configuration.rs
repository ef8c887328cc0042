//! What a translator is told.

use std::net::Ipv4Addr;

use model::PortBlock;
use serde::Deserialize;

use super::mapping::{MAPPINGS_LIMIT, Timeouts};
use super::pool::{BLOCKS_PER_HOST_LIMIT, Range};
use super::records::Log;
use crate::configuration::{Error, from_toml};

/// Prefixes of the inside, at most: each packet is compared with all of them.
const INSIDE_LIMIT: usize = 32;
/// Ranges of external ports, at most.
const RANGES_LIMIT: usize = 1024;
/// External ports of all ranges, at most: 256 addresses. Each takes 12 bytes.
const PORTS_LIMIT: usize = 1 << 24;
/// Ports of a block, at most: bounds the search for a free one.
const BLOCK_PORTS_LIMIT: u16 = 4096;
/// Longest timeout, in seconds: a week.
const TIMEOUT_LIMIT: u32 = 604_800;
/// Records of the log that wait, at most. Each takes 40 bytes.
const RECORDS_LIMIT: usize = 1 << 20;

/// The text of a configuration.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Text {
    inside: Vec<String>,
    external: Option<Vec<String>>,
    #[serde(default = "block_ports")]
    block_ports: u16,
    #[serde(default = "blocks_per_host")]
    blocks_per_host: usize,
    #[serde(default = "mappings_limit")]
    mappings_limit: usize,
    #[serde(default = "udp")]
    udp_timeout_s: u32,
    #[serde(default = "tcp_established")]
    tcp_established_timeout_s: u32,
    #[serde(default = "tcp_transitory")]
    tcp_transitory_timeout_s: u32,
    #[serde(default = "icmp")]
    icmp_timeout_s: u32,
    #[serde(default = "yes")]
    inbound_refresh: bool,
    #[serde(default)]
    log: Log,
    #[serde(default = "log_records_limit")]
    log_records_limit: usize,
}

/// 1024 hosts behind the 64,512 ports of an address, as in the NAT profile of FD.io's CSIT.
const fn block_ports() -> u16 {
    63
}

/// 504 ports of each protocol.
const fn blocks_per_host() -> usize {
    8
}

/// 8 MiB, and as many for each of two indexes.
const fn mappings_limit() -> usize {
    262_144
}

/// RFC 4787, REQ-5: at least 2 minutes, 5 are recommended.
const fn udp() -> u32 {
    300
}

/// RFC 5382, REQ-5: at least 2 hours and 4 minutes.
const fn tcp_established() -> u32 {
    7440
}

/// RFC 5382, REQ-5: at least 4 minutes.
const fn tcp_transitory() -> u32 {
    240
}

/// RFC 5508, REQ-2: at least 60 seconds.
const fn icmp() -> u32 {
    60
}

const fn yes() -> bool {
    true
}

const fn log_records_limit() -> usize {
    8192
}

/// A configuration that has been checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Settings {
    /// Address and mask of each prefix.
    pub(super) inside: Vec<(u32, u32)>,
    pub(super) ranges: Vec<Range>,
    pub(super) block_ports: u16,
    pub(super) blocks_per_host: usize,
    pub(super) mappings_limit: usize,
    pub(super) timeouts: Timeouts,
    pub(super) inbound_refresh: bool,
    pub(super) log: Log,
    pub(super) log_records_limit: usize,
}

impl Settings {
    /// `given`: the ports that inco has given to the instance, which take the place of `external`.
    pub(super) fn parse(text: &str, given: Option<PortBlock>) -> Result<Settings, Error> {
        let text: Text = from_toml(text)?;
        let inside = text
            .inside
            .iter()
            .map(|word| prefix(word))
            .collect::<Result<Vec<_>, _>>()?;
        let mut ranges = match (&text.external, given) {
            (Some(words), None) => words.iter().map(|word| range(word)).collect::<Result<_, _>>()?,
            (None, Some(PortBlock { address, first, last })) => vec![Range { address, first, last }],
            (Some(_), Some(given)) => {
                return Err(Error::whole(format!(
                    "external: inco has given {given} to this instance; remove this key"
                )));
            }
            (None, None) => {
                return Err(Error::whole(
                    "external is missing; write external = [\"192.0.2.1:1024-65535\"], or external in inco's own \
                     configuration of the service",
                ));
            }
        };
        ranges.sort_by_key(|range| (range.address, range.first));
        within("inside", inside.len(), 1, INSIDE_LIMIT, "prefixes")?;
        within("external", ranges.len(), 1, RANGES_LIMIT, "ranges")?;
        within(
            "block_ports",
            text.block_ports.into(),
            1,
            BLOCK_PORTS_LIMIT.into(),
            "ports",
        )?;
        within(
            "blocks_per_host",
            text.blocks_per_host,
            1,
            BLOCKS_PER_HOST_LIMIT,
            "blocks",
        )?;
        within(
            "mappings_limit",
            text.mappings_limit,
            1,
            MAPPINGS_LIMIT,
            "mappings",
        )?;
        within(
            "log_records_limit",
            text.log_records_limit,
            1,
            RECORDS_LIMIT,
            "records",
        )?;
        for (key, seconds) in [
            ("udp_timeout_s", text.udp_timeout_s),
            ("tcp_established_timeout_s", text.tcp_established_timeout_s),
            ("tcp_transitory_timeout_s", text.tcp_transitory_timeout_s),
            ("icmp_timeout_s", text.icmp_timeout_s),
        ] {
            within(key, seconds as usize, 1, TIMEOUT_LIMIT as usize, "seconds")?;
        }
        for pair in ranges.windows(2) {
            if pair[0].address == pair[1].address && pair[0].last >= pair[1].first {
                let [of, and] = [&pair[0], &pair[1]]
                    .map(|range| format!("{}:{}-{}", range.address, range.first, range.last));
                return Err(Error::whole(format!(
                    "external: {of} and {and} overlap; write each port once"
                )));
            }
        }
        let ports: usize = ranges
            .iter()
            .map(|range| usize::from(range.last - range.first) + 1)
            .sum();
        within(
            "external",
            ports,
            text.block_ports.into(),
            PORTS_LIMIT,
            "ports in all ranges",
        )?;
        let smallest = ranges
            .iter()
            .map(|range| u32::from(range.last - range.first) + 1)
            .min();
        if smallest.is_some_and(|ports| ports < text.block_ports.into()) {
            return Err(Error::whole(format!(
                "external: a range has fewer ports than a block, {}; make it longer, or block_ports smaller",
                text.block_ports
            )));
        }
        let settings = Settings {
            inside,
            ranges,
            block_ports: text.block_ports,
            blocks_per_host: text.blocks_per_host,
            mappings_limit: text.mappings_limit,
            timeouts: Timeouts {
                udp: text.udp_timeout_s,
                tcp_established: text.tcp_established_timeout_s,
                tcp_transitory: text.tcp_transitory_timeout_s,
                icmp: text.icmp_timeout_s,
            },
            inbound_refresh: text.inbound_refresh,
            log: text.log,
            log_records_limit: text.log_records_limit,
        };
        if let Some(range) = settings
            .ranges
            .iter()
            .find(|range| settings.is_inside(range.address))
        {
            return Err(Error::whole(format!(
                "external: {} is one of the inside; an address is on one side only",
                range.address
            )));
        }
        Ok(settings)
    }

    #[inline]
    pub(super) fn is_inside(&self, address: Ipv4Addr) -> bool {
        let address = u32::from(address);
        self.inside.iter().any(|&(of, mask)| address & mask == of)
    }

    /// Whether tables that were made for these settings serve the other ones.
    pub(super) fn has_tables_of(&self, other: &Settings) -> bool {
        self.ranges == other.ranges
            && self.block_ports == other.block_ports
            && self.mappings_limit == other.mappings_limit
    }
}

fn within(key: &str, value: usize, least: usize, most: usize, of: &str) -> Result<(), Error> {
    if (least..=most).contains(&value) {
        Ok(())
    } else {
        Err(Error::whole(format!(
            "{key}: {value} {of}; there are {least} to {most}"
        )))
    }
}

fn prefix(word: &str) -> Result<(u32, u32), Error> {
    let parsed = word.split_once('/').and_then(|(address, bits)| {
        let (address, bits) = (address.parse::<Ipv4Addr>().ok()?, bits.parse::<u32>().ok()?);
        let mask = u32::MAX.checked_shl(32_u32.checked_sub(bits)?).unwrap_or(0);
        Some((u32::from(address) & mask, mask))
    });
    parsed.ok_or_else(|| {
        Error::whole(format!(
            "inside: {word:?} is no IPv4 prefix such as \"10.0.0.0/8\""
        ))
    })
}

fn range(word: &str) -> Result<Range, Error> {
    let parsed = word.split_once(':').and_then(|(address, ports)| {
        let (first, last) = ports.split_once('-')?;
        let range = Range {
            address: address.parse().ok()?,
            first: first.parse().ok()?,
            last: last.parse().ok()?,
        };
        (range.first > 0 && range.first <= range.last).then_some(range)
    });
    parsed.ok_or_else(|| {
        Error::whole(format!(
            "external: {word:?} is no range of ports such as \"192.0.2.1:1024-65535\""
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEAST: &str = "inside = [\"10.0.0.0/8\"]\nexternal = [\"192.0.2.1:1024-65535\"]\n";

    #[test]
    fn the_defaults_are_those_of_the_rfcs() {
        let settings = Settings::parse(LEAST, None).unwrap();
        assert!(settings.is_inside([10, 255, 0, 1].into()) && !settings.is_inside([11, 0, 0, 0].into()));
        let of = settings.timeouts;
        assert_eq!(
            (of.udp, of.tcp_established, of.tcp_transitory, of.icmp),
            (300, 7440, 240, 60)
        );
        assert_eq!(settings.log, Log::Blocks);
    }

    #[test]
    fn the_ports_that_inco_gives_take_the_place_of_the_key() {
        let given = "203.0.113.2:5056-9087".parse().unwrap();
        let settings = Settings::parse("inside = [\"10.0.0.0/8\"]", Some(given)).unwrap();
        let [Range { address, first, last }] = settings.ranges[..] else {
            panic!("{:?}", settings.ranges)
        };
        assert_eq!((address, first, last), (given.address, given.first, given.last));
        let both = Settings::parse(LEAST, Some(given)).unwrap_err().to_string();
        assert!(
            both.contains("203.0.113.2:5056-9087") && both.contains("remove this key"),
            "{both}"
        );
        let none = Settings::parse("inside = [\"10.0.0.0/8\"]", None)
            .unwrap_err()
            .to_string();
        assert!(none.contains("external is missing"), "{none}");
    }

    #[test]
    fn mistakes_are_said() {
        for (text, says) in [
            ("", "missing field `inside`"),
            ("inside = [\"10.0.0.0\"]\nexternal = []", "no IPv4 prefix"),
            ("inside = [\"10.0.0.0/33\"]\nexternal = []", "no IPv4 prefix"),
            (
                "inside = []\nexternal = [\"192.0.2.1:1-2\"]",
                "inside: 0 prefixes",
            ),
            (
                "inside = [\"10.0.0.0/8\"]\nexternal = [\"192.0.2.1:9-2\"]",
                "no range of ports",
            ),
            (
                "inside = [\"10.0.0.0/8\"]\nexternal = [\"10.0.2.1:1024-2000\"]",
                "on one side only",
            ),
            (
                "inside = [\"10.0.0.0/8\"]\nexternal = [\"192.0.2.1:1-62\"]",
                "external: 62 ports",
            ),
            (
                "inside = [\"10.0.0.0/8\"]\nexternal = [\"192.0.2.1:1-62\", \"192.0.2.2:1-65535\"]",
                "fewer ports than",
            ),
            (
                "inside = [\"10.0.0.0/8\"]\nexternal = [\"192.0.2.1:1-99\", \"192.0.2.1:99-500\"]",
                "overlap",
            ),
            (
                &format!("{LEAST}udp_timeout_s = 0"),
                "udp_timeout_s: 0 seconds; there are 1 to",
            ),
            (&format!("{LEAST}block_ports = 0"), "block_ports: 0"),
            (&format!("{LEAST}blocks_per_host = 17"), "1 to 16"),
            (&format!("{LEAST}ports = 1"), "line 3: unknown field"),
            (&format!("{LEAST}log = \"all\""), "line 3: unknown variant"),
        ] {
            let error = Settings::parse(text, None).unwrap_err().to_string();
            assert!(error.contains(says), "{text:?}: {error}");
        }
    }
}
