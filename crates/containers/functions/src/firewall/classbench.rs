//! Rules in the format of ClassBench (Taylor and Turner, "ClassBench: A Packet Classification Benchmark", INFOCOM 2005).

use std::net::{IpAddr, Ipv4Addr};

use crate::lpm::Prefix;

use super::Fields;

/// A line that is not a rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {text:?} is not a rule of ClassBench: {what}")]
pub struct NotARule {
    /// Its number, from 1.
    pub line: usize,
    /// The line.
    pub text: String,
    /// What is wrong.
    pub what: &'static str,
}

/// Reads rules, one in a line: `@source/len destination/len from : to from : to protocol/mask flags/mask`, with IPv4
/// prefixes, source and destination ports. The flags of TCP are not matched: ClassBench's own traces have none. Bits
/// of an address beyond its length are ignored, as in its files. Empty lines are skipped.
///
/// # Errors
/// [`NotARule`] with the first line that is none.
pub fn read(text: &str) -> Result<Vec<Fields>, NotARule> {
    let mut rules = Vec::new();
    for (line, text) in (1..).zip(text.lines()) {
        if text.trim().is_empty() {
            continue;
        }
        let rule = rule(text).map_err(|what| NotARule {
            line,
            text: text.to_owned(),
            what,
        })?;
        rules.push(rule);
    }
    Ok(rules)
}

fn rule(text: &str) -> Result<Fields, &'static str> {
    let text = text.trim().strip_prefix('@').ok_or("it does not start with @")?;
    let mut words = text.split_whitespace();
    let src = prefix(words.next())?;
    let dst = prefix(words.next())?;
    let src_ports = ports(&mut words)?;
    let dst_ports = ports(&mut words)?;
    let protocol = words
        .next()
        .and_then(masked)
        .ok_or("its protocol is not like 0x06/0xFF")?;
    let protocol = match protocol {
        (_, 0) => None,
        (protocol, 0xff) => Some(u8::try_from(protocol).map_err(|_| "its protocol exceeds 0xFF")?),
        _ => return Err("the mask of its protocol is neither 0x00 nor 0xFF"),
    };
    if let Some(flags) = words.next() {
        masked(flags).ok_or("its flags are not like 0x0000/0x0200")?;
    }
    match words.next() {
        None => Ok(Fields {
            src,
            dst,
            src_ports,
            dst_ports,
            protocol,
            icmp_type: None,
        }),
        Some(_) => Err("there is more after its flags"),
    }
}

fn prefix(word: Option<&str>) -> Result<Prefix, &'static str> {
    const WHAT: &str = "an address is not like 10.0.0.0/8";
    let (address, len) = word.and_then(|word| word.split_once('/')).ok_or(WHAT)?;
    let address: Ipv4Addr = address.parse().map_err(|_| WHAT)?;
    let len = len.parse::<u8>().ok().filter(|&len| len <= 32).ok_or(WHAT)?;
    Ok(Prefix::of(IpAddr::V4(address), len))
}

fn ports<'a>(words: &mut impl Iterator<Item = &'a str>) -> Result<(u16, u16), &'static str> {
    const WHAT: &str = "its ports are not like 0 : 65535";
    let first = words.next().and_then(|word| word.parse().ok());
    let colon = words.next();
    let last = words.next().and_then(|word| word.parse().ok());
    match (first, colon, last) {
        (Some(first), Some(":"), Some(last)) if first <= last => Ok((first, last)),
        _ => Err(WHAT),
    }
}

fn masked(word: &str) -> Option<(u16, u16)> {
    let (value, mask) = word.split_once('/')?;
    let number = |text: &str| u16::from_str_radix(text.strip_prefix("0x")?, 16).ok();
    Some((number(value)?, number(mask)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_becomes_a_rule() {
        let text = "@176.19.181.33/24\t90.145.23.162/32\t0 : 65535\t1550 : 1551\t0x06/0xFF\t0x0000/0x0200\t\n\n\
                    @0.0.0.0/0 0.0.0.0/0 0 : 65535 0 : 65535 0x00/0x00 0x0000/0x0000\n";
        let rules = read(text).unwrap();
        assert_eq!(rules.len(), 2);
        assert_eq!(rules[0].src.to_string(), "176.19.181.0/24");
        assert_eq!(rules[0].dst.to_string(), "90.145.23.162/32");
        assert_eq!(
            (rules[0].src_ports, rules[0].dst_ports),
            ((0, 65535), (1550, 1551))
        );
        assert_eq!((rules[0].protocol, rules[1].protocol), (Some(6), None));
    }

    #[test]
    fn a_line_that_is_no_rule_is_named() {
        let good = "@1.0.0.0/8 2.0.0.0/8 0 : 65535 0 : 65535 0x06/0xFF 0x0000/0x0000";
        for (from, to) in [
            ("@", ""),
            ("1.0.0.0/8", "1.0.0.0"),
            ("1.0.0.0/8", "1.0.0.0/33"),
            ("0 : 65535", "0 - 65535"),
            ("0 : 65535", "2 : 1"),
            ("0x06/0xFF", "0x06/0x0F"),
            ("0x06/0xFF", "6"),
            ("0x0000/0x0000", "0x0000/0x0000 x"),
        ] {
            let text = format!("{good}\n{}", good.replacen(from, to, 1));
            assert_eq!(read(&text).unwrap_err().line, 2, "{text}");
        }
    }
}
