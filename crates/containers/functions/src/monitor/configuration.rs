//! What a monitor is told.

use std::net::SocketAddr;

use serde::Deserialize;

use super::ipfix::MESSAGE_BYTES_MIN;
use super::sketch::DEPTH_LIMIT;
use crate::configuration::{Error, from_toml, mac, within};

/// Counters in a row of the sketch, at most: 8 rows of them take 1 GiB.
const WIDTH_LIMIT: usize = 1 << 24;
/// Heaviest flows, at most.
const HEAVY_LIMIT: usize = 1 << 20;
/// Flows that are recorded at once, at most. Each takes 130 bytes.
const FLOWS_LIMIT: usize = 1 << 24;
/// Bytes of a message, at most: what fits a UDP datagram.
const MESSAGE_BYTES_LIMIT: usize = 65_000;
/// Longest timeout and interval, in seconds: a day.
const TIMEOUT_LIMIT: u64 = 86_400;

/// The text of a configuration.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Settings {
    pub(super) sketch_width: usize,
    pub(super) sketch_depth: usize,
    pub(super) heavy_limit: usize,
    pub(super) flows_limit: usize,
    pub(super) idle_timeout_s: u64,
    pub(super) active_timeout_s: u64,
    pub(super) export: Option<Export>,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            // 2 MiB, and an error of at most 4 bytes in 10^5 of all with a probability of 98 %.
            sketch_width: 65_536,
            sketch_depth: 4,
            heavy_limit: 1024,
            flows_limit: 65_536,
            idle_timeout_s: 15,
            active_timeout_s: 60,
            export: None,
        }
    }
}

/// Where records go.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Export {
    pub(super) collector: SocketAddr,
    pub(super) source: SocketAddr,
    #[serde(deserialize_with = "mac")]
    pub(super) collector_mac: [u8; 6],
    #[serde(deserialize_with = "mac")]
    pub(super) source_mac: [u8; 6],
    #[serde(default)]
    pub(super) port: u8,
    #[serde(default)]
    pub(super) domain: u32,
    #[serde(default = "message_bytes")]
    pub(super) message_bytes: usize,
    #[serde(default = "template_interval")]
    pub(super) template_interval_s: u64,
    #[serde(default)]
    pub(super) boot_unix_s: u64,
}

/// With the headers of Ethernet, IPv6 and UDP less than 1514.
const fn message_bytes() -> usize {
    1400
}

/// Templates may be lost: RFC 7011 (section 8.1) wants them again and again over UDP.
const fn template_interval() -> u64 {
    60
}

impl Settings {
    pub(super) fn parse(text: &str, ports: u8) -> Result<Settings, Error> {
        let settings: Settings = from_toml(text)?;
        within("sketch_width", settings.sketch_width, 1, WIDTH_LIMIT, "counters")?;
        within("sketch_depth", settings.sketch_depth, 1, DEPTH_LIMIT, "rows")?;
        within("heavy_limit", settings.heavy_limit, 1, HEAVY_LIMIT, "flows")?;
        within("flows_limit", settings.flows_limit, 1, FLOWS_LIMIT, "flows")?;
        let seconds = |key, value: u64| within(key, value as usize, 1, TIMEOUT_LIMIT as usize, "seconds");
        seconds("idle_timeout_s", settings.idle_timeout_s)?;
        seconds("active_timeout_s", settings.active_timeout_s)?;
        if let Some(export) = &settings.export {
            seconds("export.template_interval_s", export.template_interval_s)?;
            let bytes = export.message_bytes;
            within(
                "export.message_bytes",
                bytes,
                MESSAGE_BYTES_MIN,
                MESSAGE_BYTES_LIMIT,
                "bytes",
            )?;
            if export.source.is_ipv4() != export.collector.is_ipv4() {
                return Err(Error::whole(
                    "export: source and collector are of two IP versions; write two of one",
                ));
            }
            if export.port >= ports {
                return Err(Error::whole(format!(
                    "export.port: {}; the instance has {ports} ports, from 0 on",
                    export.port
                )));
            }
        }
        Ok(settings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mistakes_are_said() {
        let export = "[export]\ncollector = \"192.0.2.9:4739\"\nsource = \"192.0.2.1:4739\"\n\
                      collector_mac = \"02:00:00:00:00:01\"\nsource_mac = \"02:00:00:00:00:02\"\n";
        assert!(Settings::parse(export, 1).unwrap().export.is_some());
        for (text, says) in [
            ("sketch_width = 0", "sketch_width: 0 counters; there are 1 to"),
            ("sketch_depth = 9", "1 to 8"),
            ("idle_timeout_s = 0", "idle_timeout_s: 0 seconds"),
            ("flows = 1", "line 1: unknown field"),
            (&format!("{export}port = 1"), "the instance has 1 ports"),
            (
                &format!("{export}message_bytes = 100"),
                "export.message_bytes: 100 bytes",
            ),
            (
                &export.replace("\"192.0.2.1:4739\"", "\"[2001:db8::1]:1\""),
                "two IP versions",
            ),
            (
                &export.replace("02:00:00:00:00:01", "02:00:00:00:01"),
                "is no MAC address",
            ),
        ] {
            let error = Settings::parse(text, 1).unwrap_err().to_string();
            assert!(error.contains(says), "{text:?}: {error}");
        }
    }
}
