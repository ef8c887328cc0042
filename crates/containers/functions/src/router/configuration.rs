//! The router's configuration.

use std::collections::{BTreeMap, HashMap};
use std::net::{Ipv4Addr, Ipv6Addr};

use serde::Deserialize;

use crate::configuration::{Error, from_toml};
use crate::lpm::Prefix;

/// Routes of both families, at most.
pub const ROUTES_LIMIT: usize = 1 << 21;
/// Next hops, at most.
pub const NEXT_HOPS_LIMIT: usize = 4096;
/// ICMP errors in a second, at most.
pub const ERRORS_LIMIT: u32 = 1_000_000;

/// A MAC address.
pub(super) type Mac = [u8; 6];

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Text {
    mac: Option<String>,
    address: Option<Ipv4Addr>,
    address_v6: Option<Ipv6Addr>,
    icmp_errors_per_s: u32,
    other: Other,
    next_hop: Vec<NextHopText>,
    route: Vec<RouteText>,
    routes: String,
}

impl Default for Text {
    fn default() -> Text {
        Text {
            mac: None,
            address: None,
            address_v6: None,
            icmp_errors_per_s: 100,
            other: Other::default(),
            next_hop: Vec::new(),
            route: Vec::new(),
            routes: String::new(),
        }
    }
}

/// What happens to packets that are not IP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Other {
    /// They pass unchanged.
    #[default]
    Pass,
    /// They are dropped.
    Drop,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct NextHopText {
    name: String,
    mac: Option<String>,
    port: Option<u8>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RouteText {
    prefix: String,
    next_hop: String,
}

/// Where packets of a route go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// To a next hop.
    NextHop(NextHop),
    /// Nowhere: their senders learn of it.
    Unreachable,
    /// Nowhere.
    Blackhole,
}

/// A next hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NextHop {
    /// The destination of frames to it; none leaves that of the received frame.
    pub(super) mac: Option<Mac>,
    /// The port by which they leave; none is the opposite one.
    pub(super) port: Option<u8>,
}

/// A checked configuration.
#[derive(Debug)]
pub(super) struct Settings {
    pub(super) mac: Option<Mac>,
    pub(super) address: Option<Ipv4Addr>,
    pub(super) address_v6: Option<Ipv6Addr>,
    pub(super) icmp_errors_per_s: u32,
    pub(super) other: Other,
    pub(super) targets: Vec<Target>,
    /// For each prefix the number of its target.
    pub(super) routes: BTreeMap<Prefix, u32>,
}

impl Settings {
    /// Reads a configuration for an instance with so many ports.
    pub(super) fn read(text: &str, ports: u8) -> Result<Settings, Error> {
        let text: Text = from_toml(text)?;
        if text.icmp_errors_per_s > ERRORS_LIMIT {
            return Err(Error::whole(format!("icmp_errors_per_s is 0 to {ERRORS_LIMIT}")));
        }
        if text.next_hop.len() > NEXT_HOPS_LIMIT {
            return Err(Error::whole(format!("at most {NEXT_HOPS_LIMIT} next hops")));
        }
        let mut targets = vec![Target::Unreachable, Target::Blackhole];
        let mut names = HashMap::from([("unreachable".to_owned(), 0), ("blackhole".to_owned(), 1)]);
        for hop in &text.next_hop {
            let wrong = |what: String| Error::whole(format!("next_hop {}: {what}", hop.name));
            if hop.port.is_some_and(|port| port >= ports) {
                return Err(wrong(format!("the instance has {ports} ports, counted from 0")));
            }
            let is_word = !hop.name.is_empty() && !hop.name.contains(char::is_whitespace);
            if !is_word || names.insert(hop.name.clone(), targets.len() as u32).is_some() {
                return Err(wrong("its name is taken, empty or has blanks".to_owned()));
            }
            targets.push(Target::NextHop(NextHop {
                mac: hop.mac.as_deref().map(mac).transpose().map_err(wrong)?,
                port: hop.port,
            }));
        }
        let mut settings = Settings {
            mac: text.mac.as_deref().map(mac).transpose().map_err(Error::whole)?,
            address: text.address,
            address_v6: text.address_v6,
            icmp_errors_per_s: text.icmp_errors_per_s,
            other: text.other,
            targets,
            routes: BTreeMap::new(),
        };
        for route in &text.route {
            let added = settings.add(&route.prefix, &route.next_hop, &names);
            added.map_err(|what| Error::whole(format!("route {}: {what}", route.prefix)))?;
        }
        for (number, line) in (1..).zip(text.routes.lines()) {
            let mut words = line.split_whitespace();
            let added = match (words.next(), words.next(), words.next()) {
                (None, _, _) => continue,
                (Some(prefix), Some(name), None) => settings.add(prefix, name, &names),
                _ => Err("a line has a prefix and the name of a next hop".to_owned()),
            };
            added.map_err(|what| Error::whole(format!("routes, line {number}: {what}")))?;
        }
        Ok(settings)
    }

    fn add(&mut self, prefix: &str, name: &str, names: &HashMap<String, u32>) -> Result<(), String> {
        let prefix: Prefix = prefix
            .parse()
            .map_err(|error: crate::lpm::PrefixError| error.to_string())?;
        let target = names.get(name).ok_or_else(|| {
            format!("there is no next hop {name:?}: add [[next_hop]], or write unreachable or blackhole")
        })?;
        if self.routes.len() == ROUTES_LIMIT {
            return Err(format!("more than {ROUTES_LIMIT} routes"));
        }
        match self.routes.insert(prefix, *target) {
            None => Ok(()),
            Some(_) => Err("there is a route for this prefix already".to_owned()),
        }
    }
}

pub(crate) fn mac(text: &str) -> Result<Mac, String> {
    let wrong = || format!("{text:?} is not a MAC address: write one such as 02:00:00:00:00:01");
    let mut bytes = [0; 6];
    let mut words = text.split(':');
    for byte in &mut bytes {
        let word = words.next().filter(|word| word.len() == 2).ok_or_else(wrong)?;
        *byte = u8::from_str_radix(word, 16).map_err(|_| wrong())?;
    }
    if words.next().is_some() || bytes[0] & 1 == 1 {
        return Err(wrong());
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_come_from_tables_and_from_lines() {
        let settings = Settings::read(
            "mac = \"02:00:00:00:00:09\"\n[[next_hop]]\nname = \"a\"\nmac = \"02:00:00:00:00:01\"\nport = 1\n\
             [[route]]\nprefix = \"10.0.0.0/8\"\nnext_hop = \"a\"\n",
            2,
        )
        .unwrap();
        let hop = NextHop {
            mac: Some([2, 0, 0, 0, 0, 1]),
            port: Some(1),
        };
        assert_eq!(settings.targets[2], Target::NextHop(hop));
        let lines = "routes = \"\"\"\n::/0 unreachable\n\n10.0.0.0/8 blackhole\n\"\"\"\n";
        assert_eq!(Settings::read(lines, 1).unwrap().routes.len(), 2);
    }

    #[test]
    fn an_error_says_which_route_and_what_to_write() {
        let hop = "[[next_hop]]\nname = \"a\"\n";
        for (text, expected) in [
            (
                "[[route]]\nprefix = \"10.0.0.0/8\"\nnext_hop = \"b\"".to_owned(),
                "no next hop \"b\"",
            ),
            (
                "[[route]]\nprefix = \"10.0.0.1/8\"\nnext_hop = \"a\"".to_owned(),
                "write 10.0.0.0/8",
            ),
            (
                format!("routes = \"10.0.0.0/8 blackhole\\n10.0.0.0/8 blackhole\"\n{hop}"),
                "line 2: there is a route",
            ),
            (format!("routes = \"10.0.0.0/8\"\n{hop}"), "line 1: a line has"),
            (format!("{hop}port = 2"), "next_hop a: the instance has 2 ports"),
            (format!("{hop}{hop}"), "its name is taken"),
            (
                format!("{hop}mac = \"ff:ff:ff:ff:ff:ff\""),
                "is not a MAC address",
            ),
            ("mac = \"2:0:0:0:0:1\"".to_owned(), "is not a MAC address"),
            ("icmp_errors_per_s = 2000000".to_owned(), "0 to 1000000"),
            ("metric = 1".to_owned(), "unknown field"),
        ] {
            let error = Settings::read(&text, 2).unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
