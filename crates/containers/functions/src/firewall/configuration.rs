//! The firewall's configuration.

use std::ops::RangeInclusive;

use model::{Nanos, Timeouts, protocol};
use serde::Deserialize;

use crate::configuration::{Error, from_toml};
use crate::lpm::Prefix;

use super::{Fields, classbench};

/// Rules of a configuration, at most, where each source, destination and port range of a list counts for itself.
pub const RULES_LIMIT: usize = 1 << 15;
/// Connections of each family, at most: 1 GB of memory for both.
pub const CONNECTIONS_LIMIT: usize = 8 << 20;

/// Seconds between two records of a rule's counts, at most: a day.
const COUNT_INTERVAL_S_LIMIT: u64 = 86_400;

/// What happens to a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Action {
    /// It goes on.
    Allow,
    /// It is dropped.
    #[default]
    Deny,
}

/// The text of a configuration.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Text {
    default: Action,
    other: Action,
    connections: usize,
    midstream: bool,
    count_interval_s: u64,
    timeouts: TimeoutsText,
    rule: Vec<RuleText>,
    classbench: String,
    classbench_action: Action,
}

impl Default for Text {
    fn default() -> Text {
        Text {
            default: Action::Deny,
            other: Action::Allow,
            connections: 1 << 18,
            midstream: false,
            count_interval_s: 0,
            timeouts: TimeoutsText::default(),
            rule: Vec::new(),
            classbench: String::new(),
            classbench_action: Action::Allow,
        }
    }
}

/// Seconds without a packet after which a connection ends.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct TimeoutsText {
    tcp_handshake_s: u64,
    tcp_s: u64,
    tcp_closed_s: u64,
    udp_s: u64,
    icmp_s: u64,
    other_s: u64,
}

impl Default for TimeoutsText {
    fn default() -> TimeoutsText {
        TimeoutsText {
            tcp_handshake_s: 10,
            // RFC 5382, REQ-5.
            tcp_s: 7440,
            tcp_closed_s: 10,
            // RFC 4787, REQ-5.
            udp_s: 300,
            // RFC 5508, REQ-2.
            icmp_s: 60,
            other_s: 300,
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleText {
    #[serde(default)]
    name: String,
    action: Action,
    #[serde(default)]
    protocol: Option<ProtocolText>,
    #[serde(default)]
    source: OneOrMore<String>,
    #[serde(default)]
    destination: OneOrMore<String>,
    #[serde(default)]
    source_ports: OneOrMore<PortsText>,
    #[serde(default)]
    destination_ports: OneOrMore<PortsText>,
    #[serde(default)]
    icmp_type: OneOrMore<u8>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "a name such as \"tcp\", or a number from 0 to 255")]
enum ProtocolText {
    Number(u8),
    Name(String),
}

#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "a port such as 443, or a range such as \"8000-8999\"")]
enum PortsText {
    One(u16),
    Range(String),
}

#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "one value, or a list of them")]
enum OneOrMore<T> {
    One(T),
    More(Vec<T>),
}

impl<T> Default for OneOrMore<T> {
    fn default() -> OneOrMore<T> {
        OneOrMore::More(Vec::new())
    }
}

impl<T> OneOrMore<T> {
    fn as_slice(&self) -> &[T] {
        match self {
            OneOrMore::One(one) => std::slice::from_ref(one),
            OneOrMore::More(more) => more,
        }
    }
}

/// A rule as it is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Its name, or its number from 1.
    pub name: String,
    /// What happens to its packets.
    pub action: Action,
}

/// A checked configuration.
#[derive(Clone, Debug)]
pub struct Settings {
    /// What happens to packets that no rule matches.
    pub default: Action,
    /// What happens to packets that are neither IPv4 nor IPv6.
    pub other: Action,
    /// Connections of each family; 0 without.
    pub connections: usize,
    /// Whether a TCP packet without SYN can open a connection.
    pub midstream: bool,
    /// After how long the counts of rules are written again; none: never.
    pub count_interval: Option<Nanos>,
    /// When connections end.
    pub timeouts: Timeouts,
    /// The rules.
    pub rules: Vec<Rule>,
    /// What they match, and the number of the rule.
    pub fields: Vec<(Fields, u32)>,
}

impl Settings {
    /// Reads a configuration.
    ///
    /// # Errors
    /// What is wrong, where, and what to write instead.
    pub fn read(text: &str) -> Result<Settings, Error> {
        let text: Text = from_toml(text)?;
        if text.connections > CONNECTIONS_LIMIT {
            return Err(Error::whole(format!(
                "connections = {} is too many: at most {CONNECTIONS_LIMIT} of each family",
                text.connections
            )));
        }
        if text.count_interval_s > COUNT_INTERVAL_S_LIMIT {
            return Err(Error::whole(format!(
                "count_interval_s = {} is too long: at most {COUNT_INTERVAL_S_LIMIT}, a day; 0: never",
                text.count_interval_s
            )));
        }
        let mut settings = Settings {
            default: text.default,
            other: text.other,
            connections: text.connections,
            midstream: text.midstream,
            count_interval: (text.count_interval_s > 0).then(|| Nanos::from_secs(text.count_interval_s)),
            timeouts: timeouts(&text.timeouts)?,
            rules: Vec::new(),
            fields: Vec::new(),
        };
        for (number, rule) in (1..).zip(&text.rule) {
            settings.add(number, rule)?;
        }
        let lines = classbench::read(&text.classbench)
            .map_err(|error| Error::whole(format!("classbench: {error}")))?;
        for (number, fields) in (1..).zip(lines) {
            settings.fields.push((fields, settings.rules.len() as u32));
            settings.rules.push(Rule {
                name: format!("classbench {number}"),
                action: text.classbench_action,
            });
        }
        if settings.fields.len() > RULES_LIMIT {
            return Err(Error::whole(format!(
                "{} rules are too many: at most {RULES_LIMIT}, where each source, destination and port range of a list \
                 counts for itself",
                settings.fields.len()
            )));
        }
        Ok(settings)
    }

    fn add(&mut self, number: usize, rule: &RuleText) -> Result<(), Error> {
        let name = match rule.name.as_str() {
            "" => number.to_string(),
            name => name.to_owned(),
        };
        let wrong = |what: String| Error::whole(format!("rule {name}: {what}"));
        let protocol = rule
            .protocol
            .as_ref()
            .map(number_of_protocol)
            .transpose()
            .map_err(wrong)?;
        let prefixes = |of: &OneOrMore<String>| {
            let prefixes = of.as_slice().iter().map(|text| text.parse::<Prefix>());
            prefixes
                .collect::<Result<Vec<_>, _>>()
                .map_err(|error| wrong(error.to_string()))
        };
        let ports = |of: &OneOrMore<PortsText>| {
            let ports = of
                .as_slice()
                .iter()
                .map(range_of_ports)
                .collect::<Result<Vec<_>, _>>();
            ports.map_err(wrong)
        };
        let (sources, destinations) = (prefixes(&rule.source)?, prefixes(&rule.destination)?);
        let (src_ports, dst_ports) = (ports(&rule.source_ports)?, ports(&rule.destination_ports)?);
        let has_ports = matches!(protocol, Some(protocol::TCP | protocol::UDP | protocol::SCTP));
        if !(has_ports || src_ports.is_empty() && dst_ports.is_empty()) {
            return Err(wrong(
                "ports need protocol = \"tcp\", \"udp\" or \"sctp\"".to_owned(),
            ));
        }
        let is_icmp = matches!(protocol, Some(protocol::ICMP | protocol::ICMPV6));
        if !is_icmp && !rule.icmp_type.as_slice().is_empty() {
            return Err(wrong(
                "icmp_type needs protocol = \"icmp\" or \"icmpv6\"".to_owned(),
            ));
        }
        let before = self.fields.len();
        let rule_number = self.rules.len() as u32;
        for all in [Prefix::ALL_V4, Prefix::ALL_V6] {
            let of_family = |prefixes: &[Prefix]| match prefixes {
                [] => vec![all],
                some => some
                    .iter()
                    .copied()
                    .filter(|prefix| prefix.is_v6() == all.is_v6())
                    .collect(),
            };
            let (sources, destinations) = (of_family(&sources), of_family(&destinations));
            let more = [
                sources.len(),
                destinations.len(),
                src_ports.len().max(1),
                dst_ports.len().max(1),
            ];
            let more = more
                .iter()
                .fold(1_usize, |product, &len| product.saturating_mul(len));
            if self.fields.len().saturating_add(more) > RULES_LIMIT {
                return Err(wrong(format!(
                    "with its lists there are more than {RULES_LIMIT} rules: use shorter lists, or prefixes that hold \
                     several of their entries"
                )));
            }
            for &src in &sources {
                for &dst in &destinations {
                    for &src_ports in or_all(&src_ports, &[(0, u16::MAX)]) {
                        for &dst_ports in or_all(&dst_ports, &[(0, u16::MAX)]) {
                            let types = rule.icmp_type.as_slice();
                            let types = types
                                .iter()
                                .copied()
                                .map(Some)
                                .chain(types.is_empty().then_some(None));
                            self.fields.extend(types.map(|icmp_type| {
                                let fields = Fields {
                                    src,
                                    dst,
                                    src_ports,
                                    dst_ports,
                                    protocol,
                                    icmp_type,
                                };
                                (fields, rule_number)
                            }));
                        }
                    }
                }
            }
        }
        if self.fields.len() == before {
            return Err(wrong(
                "its sources and destinations are of different families, so that it matches nothing"
                    .to_owned(),
            ));
        }
        self.rules.push(Rule {
            name,
            action: rule.action,
        });
        Ok(())
    }
}

fn or_all<'a, T>(some: &'a [T], all: &'a [T]) -> &'a [T] {
    if some.is_empty() { all } else { some }
}

fn timeouts(text: &TimeoutsText) -> Result<Timeouts, Error> {
    const LIMIT: RangeInclusive<u64> = 1..=Timeouts::LIMIT.0 / 1_000_000_000;
    let seconds = |name: &str, value: u64| {
        if LIMIT.contains(&value) {
            Ok(Nanos::from_secs(value))
        } else {
            let (first, last) = (LIMIT.start(), LIMIT.end());
            Err(Error::whole(format!(
                "timeouts.{name} = {value}: {first} to {last} seconds"
            )))
        }
    };
    Ok(Timeouts {
        tcp_handshake: seconds("tcp_handshake_s", text.tcp_handshake_s)?,
        tcp: seconds("tcp_s", text.tcp_s)?,
        tcp_linger: seconds("tcp_closed_s", text.tcp_closed_s)?,
        udp: seconds("udp_s", text.udp_s)?,
        sctp: seconds("tcp_s", text.tcp_s)?,
        icmp: seconds("icmp_s", text.icmp_s)?,
        other: seconds("other_s", text.other_s)?,
    })
}

fn number_of_protocol(text: &ProtocolText) -> Result<u8, String> {
    let name = match text {
        ProtocolText::Number(number) => return Ok(*number),
        ProtocolText::Name(name) => name.as_str(),
    };
    match name {
        "icmp" => Ok(protocol::ICMP),
        "icmpv6" => Ok(protocol::ICMPV6),
        "tcp" => Ok(protocol::TCP),
        "udp" => Ok(protocol::UDP),
        "sctp" => Ok(protocol::SCTP),
        "gre" => Ok(47),
        "esp" => Ok(50),
        "ah" => Ok(51),
        _ => Err(format!(
            "protocol = {name:?} is not known: write tcp, udp, sctp, icmp, icmpv6, gre, esp, ah or a number"
        )),
    }
}

fn range_of_ports(text: &PortsText) -> Result<(u16, u16), String> {
    let text = match text {
        PortsText::One(port) => return Ok((*port, *port)),
        PortsText::Range(text) => text,
    };
    let range = text.split_once('-').and_then(|(first, last)| {
        let (first, last) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        (first <= last).then_some((first, last))
    });
    range.ok_or_else(|| format!("{text:?} is not a range of ports: write one such as \"8000-8999\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_rules_of_each_family() {
        let settings = Settings::read(
            "[[rule]]\naction = \"allow\"\nprotocol = \"tcp\"\nsource = [\"10.0.0.0/8\", \"2001:db8::/32\"]\n\
             destination_ports = [80, \"8000-8999\"]\n[[rule]]\naction = \"deny\"\nname = \"last\"\n",
        )
        .unwrap();
        let names: Vec<&str> = settings.rules.iter().map(|rule| rule.name.as_str()).collect();
        assert_eq!(names, ["1", "last"]);
        // Two ranges for a source of each family, and one rule for each family.
        assert_eq!(settings.fields.iter().filter(|(_, rule)| *rule == 0).count(), 4);
        assert_eq!(settings.fields.iter().filter(|(_, rule)| *rule == 1).count(), 2);
        assert_eq!(settings.fields[0].0.dst, Prefix::ALL_V4);
    }

    #[test]
    fn an_error_says_which_rule_and_what_to_write() {
        let rule = |more: &str| format!("[[rule]]\nname = \"web\"\naction = \"allow\"\n{more}\n");
        for (text, expected) in [
            (
                rule("source = \"10.1.2.3/8\""),
                "rule web: \"10.1.2.3/8\" has bits beyond its length: write 10.0.0.0/8",
            ),
            (rule("destination_ports = 80"), "rule web: ports need protocol"),
            (rule("protocol = \"tpc\""), "write tcp, udp"),
            (rule("protocol = 256"), "line 4: a name such as \"tcp\""),
            (
                rule("protocol = \"tcp\"\nsource_ports = \"9-8\""),
                "\"9-8\" is not a range of ports",
            ),
            (rule("icmp_type = 8"), "rule web: icmp_type needs"),
            (
                rule("source = \"10.0.0.0/8\"\ndestination = \"::/0\""),
                "of different families",
            ),
            (rule("sources = \"10.0.0.0/8\""), "unknown field `sources`"),
            (
                "connections = 1000000000".to_owned(),
                "at most 8388608 of each family",
            ),
            ("[timeouts]\nudp_s = 0".to_owned(), "timeouts.udp_s = 0: 1 to"),
            ("classbench = \"x\"".to_owned(), "classbench: line 1"),
        ] {
            let error = Settings::read(&text).unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn lists_that_multiply_to_too_many_rules_are_refused() {
        let many: Vec<String> = (0..200).map(|n| format!("\"10.0.{n}.0/24\"")).collect();
        let many = many.join(",");
        let text = format!("[[rule]]\naction = \"deny\"\nsource = [{many}]\ndestination = [{many}]\n");
        assert!(
            Settings::read(&text)
                .unwrap_err()
                .to_string()
                .contains("more than 32768 rules")
        );
    }
}
