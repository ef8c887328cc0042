//! What a DNS server is told.

use std::net::IpAddr;

use serde::Deserialize;

use super::zone::Zones;
use crate::configuration::{Error, from_toml};
use crate::router::configuration::mac;
use crate::serve::{Others, Service};

/// Answers in the cache, at most: 1.3 GiB.
const CACHE_LIMIT: usize = 1 << 20;

/// The text of a configuration.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Text {
    #[serde(default = "port")]
    port: u16,
    #[serde(default)]
    addresses: Vec<IpAddr>,
    mac: Option<String>,
    #[serde(default)]
    others: Others,
    #[serde(default = "cache_answers")]
    cache_answers: usize,
    zones: String,
}

const fn port() -> u16 {
    53
}

/// 5 MiB.
const fn cache_answers() -> usize {
    4096
}

#[derive(Debug)]
pub(super) struct Settings {
    pub(super) service: Service,
    pub(super) cache_answers: usize,
    pub(super) zones: Zones,
}

impl Settings {
    /// Reads TOML, or a master file itself, which begins with a directive or a comment of its own.
    pub(super) fn parse(text: &str, seed: u64) -> Result<Settings, Error> {
        let is_master_file = text.trim_start().starts_with(['$', ';']);
        let text = if is_master_file {
            Text {
                port: port(),
                addresses: Vec::new(),
                mac: None,
                others: Others::default(),
                cache_answers: cache_answers(),
                zones: text.to_owned(),
            }
        } else {
            from_toml(text)?
        };
        if text.cache_answers > CACHE_LIMIT {
            let count = text.cache_answers;
            return Err(Error::whole(format!(
                "cache_answers: {count} answers; there are at most {CACHE_LIMIT}"
            )));
        }
        let mac = text.mac.as_deref().map(mac).transpose();
        let mac = mac.map_err(|what| Error::whole(format!("mac: {what}")))?;
        let service = Service::new(text.port, text.addresses, mac, text.others).map_err(Error::whole)?;
        let zones = Zones::parse(&text.zones, seed).map_err(|what| Error::whole(format!("zones: {what}")))?;
        Ok(Settings {
            service,
            cache_answers: text.cache_answers,
            zones,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const APEX: &str = "$ORIGIN a.test.\n$TTL 60\n@ SOA ns h 1 2 3 4 5\n@ NS ns\n";

    fn mistake(text: &str) -> String {
        Settings::parse(text, 1).unwrap_err().to_string()
    }

    #[test]
    fn mistakes_are_said() {
        for (text, says) in [
            ("", "missing field `zones`"),
            ("zones = ''", "there are no records"),
            ("port = 0\nzones = '''\n$TTL 1\n'''", "port: 0 is none"),
            ("zones = ''\ncache_answers = 2000000", "cache_answers: 2000000"),
            ("zones = ''\nmac = \"02:00:00:00:00:01\"", "needs addresses"),
            ("zones = ''\nmac = \"02\"", "mac: \"02\" is not"),
            ("zones = ''\nport = 70000", "line 2"),
            ("zone = ''", "unknown field"),
        ] {
            let error = mistake(text);
            assert!(error.contains(says), "{text:?}: {error}");
        }
    }

    #[test]
    fn mistakes_in_zones_are_said() {
        for (records, says) in [
            ("b A 1.2.3", "expected IPv4 address"),
            ("b.test. A 192.0.2.1", "b.test. is in no zone"),
            (
                "b CNAME c\nb A 192.0.2.1",
                "b.a.test. has a CNAME and other records",
            ),
            ("b CNAME c\nb CNAME d", "has a CNAME and other records"),
            ("@ SOA ns h 2 2 3 4 5", "has two SOA records"),
            ("b SOA ns h 2 2 3 4 5", "b.a.test. has no NS record"),
            ("* NS ns.b.test.", "a wildcard cannot be delegated"),
            ("b DNAME c", "DNAME is not supported"),
            ("b NSEC c.a.test. A", "signed zones are not supported"),
            ("b CH A 192.0.2.1", "zones: "),
            ("$INCLUDE b.zone", "a function reads no files"),
        ] {
            let error = mistake(&format!("{APEX}{records}\n"));
            assert!(error.contains(says), "{records:?}: {error}");
        }
    }

    #[test]
    fn a_master_file_is_a_configuration() {
        let settings = Settings::parse(&format!("; of a test\n{APEX}b A 192.0.2.1"), 1).unwrap();
        assert_eq!((settings.zones.records(), settings.zones.len()), (3, 1));
        assert_eq!(settings.cache_answers, 4096);
        let two = format!("zones = '''\n{APEX}$ORIGIN b.a.test.\n@ SOA ns h 1 2 3 4 5\n@ NS ns\n'''");
        assert_eq!(Settings::parse(&two, 1).unwrap().zones.len(), 2);
    }
}
