//! Reads rules: a subset of the language of Suricata and Snort. What is not in the subset is an error, not ignored.

use std::collections::BTreeMap;
use std::net::IpAddr;

use regex::bytes::RegexBuilder;

use super::rule::{
    Action, Addresses, Content, Flow, Flowbit, Part, Pcre, Ports, Protocol, Rule, Size, Threshold,
    ThresholdKind,
};
use crate::configuration::Error;

/// Rules, at most.
pub const RULES_LIMIT: usize = 10_000;
/// Contents and regular expressions of a rule, at most.
pub const PARTS_LIMIT: usize = 16;
/// Bytes of a content, at most.
pub const CONTENT_BYTES_LIMIT: usize = 255;
/// Names of flowbits in all rules, at most.
pub const FLOWBITS_LIMIT: usize = 64;
/// Entries of a list of addresses or ports, at most, with those of variables.
pub const LIST_LIMIT: usize = 256;
/// How deep lists may lie in one another.
const DEPTH_LIMIT: usize = 8;
/// Bytes of a compiled regular expression, at most.
const REGEX_BYTES_LIMIT: usize = 1 << 20;
/// Priority of a rule that gives none.
const PRIORITY: u8 = 3;

/// Names that stand for lists of addresses or ports, without their dollar sign.
pub(super) type Variables = BTreeMap<String, String>;

/// Reads all rules of a text: a rule is a line; one that ends with a backslash goes on in the next.
pub(super) fn rules(text: &str, variables: &Variables) -> Result<Vec<Rule>, Error> {
    let mut rules = Vec::new();
    let mut bits = Vec::new();
    let mut sids = BTreeMap::new();
    let mut lines = (1..).zip(text.lines());
    while let Some((number, line)) = lines.next() {
        let mut rule = line.trim().to_owned();
        while rule.ends_with('\\') {
            rule.pop();
            match lines.next() {
                Some((_, next)) => rule.push_str(next.trim()),
                None => break,
            }
        }
        if rule.is_empty() || rule.starts_with('#') {
            continue;
        }
        let wrong = |what: String| Error::whole(format!("rules, line {number}: {what}"));
        let rule = self::rule(&rule, variables, &mut bits).map_err(wrong)?;
        if let Some(first) = sids.insert(rule.sid, number) {
            return Err(wrong(format!("sid {} is that of line {first}", rule.sid)));
        }
        if rules.len() == RULES_LIMIT {
            return Err(wrong(format!("at most {RULES_LIMIT} rules are possible")));
        }
        rules.push(rule);
    }
    Ok(rules)
}

fn rule(text: &str, variables: &Variables, bits: &mut Vec<String>) -> Result<Rule, String> {
    let (header, options) = text
        .split_once('(')
        .and_then(|(header, options)| Some((header, options.trim_end().strip_suffix(')')?)))
        .ok_or("a rule is `action protocol source port -> destination port (options)`")?;
    let words = words(header);
    let [action, protocol, src, src_ports, direction, dst, dst_ports] = &words[..] else {
        return Err(format!(
            "before the options stand seven words (action protocol source port -> destination port), not {}",
            words.len()
        ));
    };
    let mut rule = Rule {
        action: match action.as_str() {
            "alert" => Action::Alert,
            "drop" => Action::Drop,
            "pass" => Action::Pass,
            other => {
                return Err(format!(
                    "there is no action {other:?}; there are: alert, drop, pass"
                ));
            }
        },
        protocol: match protocol.as_str() {
            "ip" => Protocol::Ip,
            "tcp" => Protocol::Tcp,
            "udp" => Protocol::Udp,
            "icmp" => Protocol::Icmp,
            other => {
                return Err(format!(
                    "there is no protocol {other:?}; there are: ip, tcp, udp, icmp"
                ));
            }
        },
        src: addresses(src, variables)?,
        src_ports: ports(src_ports, variables)?,
        dst: addresses(dst, variables)?,
        dst_ports: ports(dst_ports, variables)?,
        is_bidirectional: match direction.as_str() {
            "->" => false,
            "<>" => true,
            other => return Err(format!("there is no direction {other:?}; there are: ->, <>")),
        },
        message: String::new(),
        sid: 0,
        revision: 0,
        class: String::new(),
        priority: PRIORITY,
        flow: Flow::default(),
        parts: Vec::new(),
        bits: Vec::new(),
        is_silent: false,
        threshold: None,
        size: None,
    };
    for option in split(options, ';') {
        let option = option.trim();
        if option.is_empty() {
            continue;
        }
        let (name, value) = option
            .split_once(':')
            .map_or((option, ""), |(name, value)| (name.trim(), value.trim()));
        self::option(&mut rule, name, value, bits).map_err(|what| format!("{name}: {what}"))?;
    }
    if rule.sid == 0 {
        return Err("sid is missing; each rule has its own, of 1 or more".to_owned());
    }
    check(&rule)?;
    Ok(rule)
}

/// What no single option shows.
fn check(rule: &Rule) -> Result<(), String> {
    if rule.parts.len() > PARTS_LIMIT {
        return Err(format!(
            "{} contents and pcre; at most {PARTS_LIMIT} are possible",
            rule.parts.len()
        ));
    }
    for part in &rule.parts {
        let Part::Content(content) = part else { continue };
        if content.is_relative() && (content.offset.is_some() || content.depth.is_some()) {
            return Err("a content has offset and depth, or distance and within, not both".to_owned());
        }
        if content
            .depth
            .or(content.within)
            .is_some_and(|most| most < content.bytes.len())
        {
            return Err("depth or within is less than the content's length: it never matches".to_owned());
        }
        if content.is_fast_pattern && content.is_negated {
            return Err("a negated content is no fast_pattern".to_owned());
        }
    }
    Ok(())
}

/// Words between spaces; what stands in brackets is one.
fn words(text: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut depth = 0_usize;
    for letter in text.chars() {
        match letter {
            '[' => depth += 1,
            ']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        match words.last_mut() {
            Some(last) if !letter.is_whitespace() => last.push(letter),
            Some(last) if depth == 0 && !last.is_empty() => words.push(String::new()),
            _ => {}
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

/// Parts between separators that do not stand in quotes or behind a backslash.
fn split(text: &str, separator: char) -> Vec<&str> {
    let mut parts = Vec::new();
    let (mut start, mut quoted, mut escaped) = (0, false, false);
    for (at, letter) in text.char_indices() {
        match letter {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => quoted = !quoted,
            _ if letter == separator && !quoted => {
                parts.push(&text[start..at]);
                start = at + letter.len_utf8();
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    parts
}

fn option(rule: &mut Rule, name: &str, value: &str, bits: &mut Vec<String>) -> Result<(), String> {
    match name {
        "msg" => rule.message = unescape(quoted(value)?),
        "sid" => rule.sid = number(value)?,
        "rev" => rule.revision = number(value)?,
        "classtype" => rule.class = value.to_owned(),
        "priority" => rule.priority = number(value)?,
        // For people only.
        "reference" | "metadata" | "gid" => {}
        "flow" => rule.flow = flow(value)?,
        "flowbits" => flowbits(rule, value, bits)?,
        "noalert" => rule.is_silent = true,
        "threshold" => rule.threshold = Some(threshold(value)?),
        "dsize" => rule.size = Some(size(value)?),
        "content" => rule.parts.push(Part::Content(content(value)?)),
        "pcre" => rule.parts.push(Part::Pcre(pcre(value)?)),
        "nocase" | "offset" | "depth" | "distance" | "within" | "startswith" | "endswith"
        | "fast_pattern" => {
            let Some(Part::Content(last)) = rule.parts.last_mut() else {
                return Err("it stands behind a content".to_owned());
            };
            modifier(last, name, value)?;
        }
        _ => {
            return Err("not in the subset; there are: msg, sid, rev, classtype, priority, reference, metadata, gid, \
                        flow, flowbits, noalert, threshold, dsize, content, nocase, offset, depth, distance, within, \
                        startswith, endswith, fast_pattern, pcre"
                .to_owned());
        }
    }
    Ok(())
}

fn modifier(content: &mut Content, name: &str, value: &str) -> Result<(), String> {
    match name {
        "nocase" => {
            content.any_case = true;
            content.bytes.make_ascii_lowercase();
        }
        "offset" => content.offset = Some(number(value)?),
        "depth" => content.depth = Some(number(value)?),
        "distance" => content.distance = Some(number::<i32>(value)?.into()),
        "within" => content.within = Some(number(value)?),
        "startswith" => {
            content.offset = Some(0);
            content.depth = Some(content.bytes.len());
        }
        "endswith" => content.at_end = true,
        // `fast_pattern:only` and `fast_pattern:1,5` are older forms, which change nothing in what matches.
        _ => content.is_fast_pattern = true,
    }
    Ok(())
}

fn number<T: std::str::FromStr>(text: &str) -> Result<T, String> {
    text.parse()
        .map_err(|_| format!("{text:?} is no number that it takes"))
}

fn quoted(value: &str) -> Result<&str, String> {
    let inside = value.strip_prefix('"').and_then(|value| value.strip_suffix('"'));
    inside.ok_or_else(|| format!("{value} is not in double quotes"))
}

fn unescape(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        match letter {
            '\\' => plain.extend(letters.next()),
            _ => plain.push(letter),
        }
    }
    plain
}

fn negation(value: &str) -> (bool, &str) {
    match value.strip_prefix('!') {
        Some(rest) => (true, rest.trim()),
        None => (false, value),
    }
}

/// `"text|0d 0a|text"`: between bars stand bytes as pairs of hexadecimal digits.
fn content(value: &str) -> Result<Content, String> {
    let (is_negated, value) = negation(value);
    let mut bytes = Vec::new();
    let mut letters = quoted(value)?.chars();
    while let Some(letter) = letters.next() {
        match letter {
            '|' => {
                let digits: String = letters.by_ref().take_while(|letter| *letter != '|').collect();
                let digits: Vec<u32> = digits
                    .chars()
                    .filter(|letter| !letter.is_whitespace())
                    .map(|letter| {
                        letter
                            .to_digit(16)
                            .ok_or_else(|| format!("{letter:?} is no hexadecimal digit"))
                    })
                    .collect::<Result<_, _>>()?;
                let (pairs, rest) = digits.as_chunks::<2>();
                if !rest.is_empty() {
                    return Err("between bars stand pairs of hexadecimal digits".to_owned());
                }
                bytes.extend(pairs.iter().map(|[high, low]| (high << 4 | low) as u8));
            }
            '\\' => bytes.extend(
                letters
                    .next()
                    .into_iter()
                    .flat_map(|of| of.to_string().into_bytes()),
            ),
            _ => bytes.extend(letter.to_string().into_bytes()),
        }
    }
    if bytes.is_empty() || bytes.len() > CONTENT_BYTES_LIMIT {
        return Err(format!(
            "it has {} bytes; 1 to {CONTENT_BYTES_LIMIT} are possible",
            bytes.len()
        ));
    }
    Ok(Content {
        bytes,
        is_negated,
        ..Content::default()
    })
}

/// `"/expression/flags"`.
fn pcre(value: &str) -> Result<Pcre, String> {
    let (is_negated, value) = negation(value);
    let text = quoted(value)?;
    let (expression, flags) = text
        .strip_prefix('/')
        .and_then(|text| text.rsplit_once('/'))
        .ok_or("an expression stands between slashes, as in \"/expression/i\"")?;
    // Slashes and semicolons are escaped in rules only.
    let expression = expression
        .replace("\\/", "/")
        .replace("\\;", ";")
        .replace("\\\"", "\"");
    let mut builder = RegexBuilder::new(&expression);
    builder
        .unicode(false)
        .size_limit(REGEX_BYTES_LIMIT)
        .dfa_size_limit(REGEX_BYTES_LIMIT);
    let mut is_relative = false;
    for flag in flags.chars() {
        match flag {
            'i' => builder.case_insensitive(true),
            's' => builder.dot_matches_new_line(true),
            'm' => builder.multi_line(true),
            'x' => builder.ignore_whitespace(true),
            'R' => {
                is_relative = true;
                &mut builder
            }
            other => return Err(format!("there is no flag {other:?}; there are: i, s, m, x, R")),
        };
    }
    let regex = builder.build().map_err(|error| {
        format!("{error}; expressions without lookaround and references back are possible (crate regex)")
    })?;
    Ok(Pcre {
        regex,
        is_negated,
        is_relative,
    })
}

fn flow(value: &str) -> Result<Flow, String> {
    let mut flow = Flow::default();
    for word in value.split(',').map(str::trim) {
        match word {
            "established" => flow.is_established = Some(true),
            "not_established" => flow.is_established = Some(false),
            "stateless" => flow.is_established = None,
            "to_server" | "from_client" => flow.to_server = Some(true),
            "to_client" | "from_server" => flow.to_server = Some(false),
            other => {
                return Err(format!(
                    "there is no {other:?}; there are: established, not_established, stateless, to_server, to_client, \
                     from_server, from_client"
                ));
            }
        }
    }
    Ok(flow)
}

fn flowbits(rule: &mut Rule, value: &str, bits: &mut Vec<String>) -> Result<(), String> {
    let (what, name) = value
        .split_once(',')
        .map_or((value, ""), |(what, name)| (what.trim(), name.trim()));
    if what == "noalert" {
        rule.is_silent = true;
        return Ok(());
    }
    if name.is_empty() {
        return Err(format!(
            "{what} needs the name of a mark, as in flowbits:{what},name"
        ));
    }
    let at = match bits.iter().position(|of| of == name) {
        Some(at) => at,
        None if bits.len() == FLOWBITS_LIMIT => {
            return Err(format!(
                "{name:?} is one more than the {FLOWBITS_LIMIT} names that all rules may have"
            ));
        }
        None => {
            bits.push(name.to_owned());
            bits.len() - 1
        }
    };
    let bit = 1 << at;
    rule.bits.push(match what {
        "set" => Flowbit::Set(bit),
        "unset" => Flowbit::Unset(bit),
        "toggle" => Flowbit::Toggle(bit),
        "isset" => Flowbit::IsSet(bit),
        "isnotset" => Flowbit::IsNotSet(bit),
        other => {
            return Err(format!(
                "there is no {other:?}; there are: set, unset, toggle, isset, isnotset, noalert"
            ));
        }
    });
    Ok(())
}

fn threshold(value: &str) -> Result<Threshold, String> {
    let (mut kind, mut by_source, mut count, mut seconds) = (None, None, None, None);
    for part in value.split(',') {
        let mut words = part.split_whitespace();
        match (words.next().unwrap_or_default(), words.next().unwrap_or_default()) {
            ("type", "limit") => kind = Some(ThresholdKind::Limit),
            ("type", "threshold") => kind = Some(ThresholdKind::Threshold),
            ("type", "both") => kind = Some(ThresholdKind::Both),
            ("track", "by_src") => by_source = Some(true),
            ("track", "by_dst") => by_source = Some(false),
            ("count", text) => count = Some(number::<u32>(text)?.max(1)),
            ("seconds", text) => seconds = Some(number::<u32>(text)?.max(1)),
            (name, value) => return Err(format!("there is no \"{name} {value}\"")),
        }
    }
    match (kind, by_source, count, seconds) {
        (Some(kind), Some(by_source), Some(count), Some(seconds)) => Ok(Threshold {
            kind,
            by_source,
            count,
            seconds,
        }),
        _ => Err("it is `type limit|threshold|both, track by_src|by_dst, count N, seconds S`".to_owned()),
    }
}

fn size(value: &str) -> Result<Size, String> {
    let size = |least, most| Ok(Size { least, most });
    if let Some(most) = value.strip_prefix('<') {
        let most: usize = number(most.trim())?;
        return size(
            0,
            most.checked_sub(1).ok_or("no payload is shorter than 0 bytes")?,
        );
    }
    if let Some(least) = value.strip_prefix('>') {
        return size(number::<u32>(least.trim())? as usize + 1, usize::MAX);
    }
    if let Some((least, most)) = value.split_once("<>") {
        // Both ends are outside.
        let (least, most): (u32, u32) = (number(least.trim())?, number(most.trim())?);
        return size(least as usize + 1, (most as usize).saturating_sub(1));
    }
    let exactly = number(value)?;
    size(exactly, exactly)
}

/// The entries of a list, each with whether it is negated.
fn list(
    text: &str,
    variables: &Variables,
    depth: usize,
    not: bool,
    into: &mut Vec<(bool, String)>,
) -> Result<(), String> {
    let (is_negated, text) = negation(text.trim());
    if not && is_negated {
        return Err("what is negated has no negated entries".to_owned());
    }
    let not = not || is_negated;
    if depth > DEPTH_LIMIT {
        return Err(format!("lists and variables lie more than {DEPTH_LIMIT} deep"));
    }
    if let Some(name) = text.strip_prefix('$') {
        let value = variables.get(name);
        let value = value.ok_or_else(|| format!("there is no variable {text}; give it in [variables]"))?;
        return list(value, variables, depth + 1, not, into);
    }
    if let Some(inside) = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')) {
        let (mut start, mut open) = (0, 0_usize);
        for (at, letter) in inside.char_indices() {
            match letter {
                '[' => open += 1,
                ']' => open = open.saturating_sub(1),
                ',' if open == 0 => {
                    list(&inside[start..at], variables, depth + 1, not, into)?;
                    start = at + 1;
                }
                _ => {}
            }
        }
        return list(&inside[start..], variables, depth + 1, not, into);
    }
    if into.len() == LIST_LIMIT {
        return Err(format!("a list has more than {LIST_LIMIT} entries"));
    }
    into.push((not, text.to_owned()));
    Ok(())
}

fn addresses(text: &str, variables: &Variables) -> Result<Addresses, String> {
    let mut entries = Vec::new();
    list(text, variables, 0, false, &mut entries)?;
    let mut addresses = Addresses::default();
    for (not, entry) in entries {
        if entry == "any" && !not {
            continue;
        }
        let (address, bits) = entry
            .split_once('/')
            .map_or((entry.as_str(), None), |(address, bits)| (address, Some(bits)));
        let wrong =
            || format!("{entry:?} is no address or prefix; write it as in 10.1.0.0/16, fd00::/8 or any");
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let width = if address.is_ipv4() { 32 } else { 128 };
        let bits = bits.map_or(Ok(width), |bits| bits.parse::<u32>().map_err(|_| wrong()))?;
        if bits > width {
            return Err(wrong());
        }
        let list = if not {
            &mut addresses.except
        } else {
            &mut addresses.only
        };
        list.push((address, bits));
    }
    Ok(addresses)
}

fn ports(text: &str, variables: &Variables) -> Result<Ports, String> {
    let mut entries = Vec::new();
    list(text, variables, 0, false, &mut entries)?;
    let mut ports = Ports::default();
    for (not, entry) in entries {
        if entry == "any" && !not {
            continue;
        }
        let wrong = || format!("{entry:?} is no port; write it as in 80, 1024:2048, :1023 or any");
        let port = |text: &str, otherwise| match text.trim() {
            "" => Ok(otherwise),
            text => text.parse::<u16>().map_err(|_| wrong()),
        };
        let range = match entry.split_once(':') {
            Some((first, last)) => (port(first, 0)?, port(last, u16::MAX)?),
            None => (
                entry.parse().map_err(|_| wrong())?,
                entry.parse().map_err(|_| wrong())?,
            ),
        };
        if range.0 > range.1 {
            return Err(wrong());
        }
        let list = if not { &mut ports.except } else { &mut ports.only };
        list.push(range);
    }
    Ok(ports)
}
