//! What a cache is told.

use std::net::IpAddr;

use serde::Deserialize;

use crate::configuration::{Error, from_toml};
use crate::router::configuration::mac;
use crate::serve::{Others, Service};

/// Memory, at most: 64 GiB.
const MEMORY_MIB_LIMIT: usize = 64 << 10;
/// Bytes of a value, at most: an answer with it has a dozen datagrams.
pub(super) const VALUE_BYTES_LIMIT: usize = 16 << 10;

/// The text of a configuration.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Text {
    port: u16,
    addresses: Vec<IpAddr>,
    mac: Option<String>,
    others: Others,
    memory_mib: usize,
    value_bytes_limit: usize,
    boot_unix_s: u64,
}

impl Default for Text {
    fn default() -> Text {
        Text {
            port: 11211,
            addresses: Vec::new(),
            mac: None,
            others: Others::default(),
            memory_mib: 64,
            value_bytes_limit: VALUE_BYTES_LIMIT,
            boot_unix_s: 0,
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Settings {
    pub(super) service: Service,
    pub(super) port: u16,
    pub(super) memory_mib: usize,
    pub(super) value_bytes_limit: usize,
    /// Unix time at the start of the monotonic clock; 0: not known.
    pub(super) boot_unix_s: u64,
}

impl Settings {
    pub(super) fn parse(text: &str) -> Result<Settings, Error> {
        let text: Text = from_toml(text)?;
        for (key, value, limit, unit) in [
            ("memory_mib", text.memory_mib, MEMORY_MIB_LIMIT, "MiB"),
            (
                "value_bytes_limit",
                text.value_bytes_limit,
                VALUE_BYTES_LIMIT,
                "bytes",
            ),
        ] {
            if value == 0 || value > limit {
                return Err(Error::whole(format!("{key}: {value}; it is 1 to {limit} {unit}")));
            }
        }
        let mac = text.mac.as_deref().map(mac).transpose();
        let mac = mac.map_err(|what| Error::whole(format!("mac: {what}")))?;
        Ok(Settings {
            service: Service::new(text.port, text.addresses, mac, text.others).map_err(Error::whole)?,
            port: text.port,
            memory_mib: text.memory_mib,
            value_bytes_limit: text.value_bytes_limit,
            boot_unix_s: text.boot_unix_s,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mistakes_are_said() {
        for (text, says) in [
            ("memory_mib = 0", "memory_mib: 0; it is 1 to 65536 MiB"),
            ("value_bytes_limit = 20000", "value_bytes_limit: 20000"),
            ("port = 0", "port: 0 is none"),
            ("mac = \"02:00:00:00:00:01\"", "needs addresses"),
            ("addresses = [\"192.0.2\"]", "line 1"),
            ("memory = 1", "unknown field"),
        ] {
            let error = Settings::parse(text).unwrap_err().to_string();
            assert!(error.contains(says), "{text:?}: {error}");
        }
        let settings = Settings::parse("").unwrap();
        assert_eq!((settings.port, settings.memory_mib), (11211, 64));
    }
}
