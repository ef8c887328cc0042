//! What a limiter is told.

use model::Prefix;
use serde::Deserialize;

use super::gcra::Limit;
use crate::configuration::{Error, from_toml, rate};

/// Rules, at most: they are tried in order for each packet.
const RULES_LIMIT: usize = 64;
/// Buckets, at most: 2 GiB.
const BUCKETS_LIMIT: usize = 1 << 26;
/// Smallest burst of bytes: a frame of the usual longest length passes.
const BURST_BYTES_MIN: u64 = 1514;

/// The text of a configuration.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Text {
    #[serde(default = "buckets_limit")]
    buckets_limit: usize,
    rule: Vec<TextRule>,
}

/// A million: 32 MiB.
const fn buckets_limit() -> usize {
    1 << 20
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct TextRule {
    from: Option<String>,
    #[serde(default)]
    key: Key,
    prefix_v4: Option<u8>,
    prefix_v6: Option<u8>,
    rate: String,
    burst_bytes: Option<u64>,
    burst_packets: Option<u64>,
}

/// Which packets share a bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Key {
    /// Those from one source address, or one prefix of them.
    #[default]
    Source,
    /// Those to one destination address, or one prefix of them.
    Destination,
    /// Those of one flow, in both directions.
    Flow,
}

/// A rule that has been checked.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Rule {
    /// Packets from there only.
    pub(super) from: Option<Prefix>,
    pub(super) key: Key,
    /// The bits of an address that tell buckets apart.
    pub(super) mask_v4: u32,
    pub(super) mask_v6: u128,
    pub(super) counts_bytes: bool,
    pub(super) limit: Limit,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Settings {
    pub(super) buckets_limit: usize,
    pub(super) rules: Vec<Rule>,
}

impl Settings {
    pub(super) fn parse(text: &str) -> Result<Settings, Error> {
        let text: Text = from_toml(text)?;
        if text.rule.is_empty() || text.rule.len() > RULES_LIMIT {
            let count = text.rule.len();
            return Err(Error::whole(format!(
                "rule: {count} rules; there are 1 to {RULES_LIMIT}"
            )));
        }
        if text.buckets_limit == 0 || text.buckets_limit > BUCKETS_LIMIT {
            let count = text.buckets_limit;
            return Err(Error::whole(format!(
                "buckets_limit: {count} buckets; there are 1 to {BUCKETS_LIMIT}"
            )));
        }
        let rules = text.rule.iter().enumerate().map(|(at, rule)| {
            rule.checked()
                .map_err(|what| Error::whole(format!("rule {}: {what}", at + 1)))
        });
        Ok(Settings {
            buckets_limit: text.buckets_limit,
            rules: rules.collect::<Result<_, _>>()?,
        })
    }
}

impl TextRule {
    fn checked(&self) -> Result<Rule, String> {
        let from = match &self.from {
            Some(word) => Some(prefix(word).ok_or_else(|| {
                format!("from: {word:?} is no prefix such as \"10.0.0.0/8\" or \"2001:db8::/32\"")
            })?),
            None => None,
        };
        if self.key == Key::Flow && (self.prefix_v4.is_some() || self.prefix_v6.is_some()) {
            return Err("a flow has whole addresses; leave prefix_v4 and prefix_v6 out".to_owned());
        }
        let (bits_v4, bits_v6) = (self.prefix_v4.unwrap_or(32), self.prefix_v6.unwrap_or(64));
        if bits_v4 > 32 || bits_v6 > 128 {
            return Err("prefix_v4 is 0 to 32 bits, prefix_v6 0 to 128".to_owned());
        }
        let rate = rate(&self.rate).ok_or_else(|| {
            format!(
                "rate: {:?} is no rate such as \"10Mbit/s\" or \"5kpps\", from 1 to 10^13",
                self.rate
            )
        })?;
        let (burst, per_ns) = match (rate.counts_bytes, self.burst_bytes, self.burst_packets) {
            (true, Some(bytes), None) if bytes >= BURST_BYTES_MIN => (bytes, 8_000_000_000),
            (true, Some(_), None) => {
                return Err(format!(
                    "burst_bytes: longer frames than it never pass; at least {BURST_BYTES_MIN} bytes"
                ));
            }
            (false, None, Some(packets)) if packets > 0 => (packets, 1_000_000_000),
            (true, ..) => return Err("a rate in bits needs burst_bytes, and no burst_packets".to_owned()),
            (false, ..) => {
                return Err("a rate in packets needs burst_packets above 0, and no burst_bytes".to_owned());
            }
        };
        Ok(Rule {
            from,
            key: self.key,
            mask_v4: u32::MAX.checked_shl(32 - u32::from(bits_v4)).unwrap_or(0),
            mask_v6: u128::MAX.checked_shl(128 - u32::from(bits_v6)).unwrap_or(0),
            counts_bytes: rate.counts_bytes,
            limit: Limit::new(rate.amount, per_ns, burst),
        })
    }
}

fn prefix(word: &str) -> Option<Prefix> {
    let (address, bits) = word.split_once('/')?;
    let prefix = Prefix {
        address: address.parse().ok()?,
        bits: bits.parse().ok()?,
    };
    (prefix.bits <= Prefix::of(prefix.address).bits).then_some(prefix)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mistakes_are_said() {
        for (text, says) in [
            ("", "missing field `rule`"),
            ("rule = []", "rule: 0 rules"),
            (
                "[[rule]]\nrate = \"10\"\nburst_bytes = 2000",
                "rule 1: rate: \"10\" is no rate",
            ),
            ("[[rule]]\nrate = \"0pps\"\nburst_packets = 2", "is no rate"),
            (
                "[[rule]]\nrate = \"10Mbit/s\"",
                "a rate in bits needs burst_bytes",
            ),
            (
                "[[rule]]\nrate = \"10Mbit/s\"\nburst_packets = 3",
                "a rate in bits needs burst_bytes",
            ),
            (
                "[[rule]]\nrate = \"10Mbit/s\"\nburst_bytes = 1500",
                "at least 1514",
            ),
            (
                "[[rule]]\nrate = \"10pps\"\nburst_packets = 0",
                "burst_packets above 0",
            ),
            (
                "[[rule]]\nrate = \"10pps\"\nburst_packets = 1\nfrom = \"10.0.0.0\"",
                "is no prefix",
            ),
            (
                "[[rule]]\nrate = \"10pps\"\nburst_packets = 1\nprefix_v4 = 33",
                "0 to 32 bits",
            ),
            (
                "[[rule]]\nrate = \"10pps\"\nburst_packets = 1\nkey = \"flow\"\nprefix_v4 = 24",
                "whole addresses",
            ),
            (
                "buckets_limit = 0\n[[rule]]\nrate = \"10pps\"\nburst_packets = 1",
                "buckets_limit: 0",
            ),
            ("[[rule]]\nrates = \"10pps\"", "line 2: unknown field"),
        ] {
            let error = Settings::parse(text).unwrap_err().to_string();
            assert!(error.contains(says), "{text:?}: {error}");
        }
    }

    #[test]
    fn the_usual_rules_are_read() {
        let text = "[[rule]]\nfrom = \"10.0.0.0/8\"\nrate = \"10Mbit/s\"\nburst_bytes = 65536\n\
                    [[rule]]\nkey = \"flow\"\nrate = \"5kpps\"\nburst_packets = 100\n";
        let settings = Settings::parse(text).unwrap();
        assert_eq!(settings.buckets_limit, 1 << 20);
        let [first, second] = settings.rules[..] else {
            panic!()
        };
        assert_eq!((first.mask_v4, first.mask_v6), (u32::MAX, u128::MAX << 64));
        assert!(first.counts_bytes && !second.counts_bytes);
        assert_eq!(second.key, Key::Flow);
    }
}
