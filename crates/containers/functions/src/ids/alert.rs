//! Records of matches, in the form of Suricata's EVE.

use std::fmt::Write;
use std::net::IpAddr;
use std::sync::Arc;

use model::Nanos;
use serde::Serialize;

/// What a record says of its rule.
#[derive(Debug)]
pub(super) struct Signature {
    pub(super) sid: u32,
    pub(super) revision: u32,
    pub(super) message: String,
    pub(super) class: String,
    pub(super) priority: u8,
}

/// A match.
#[derive(Clone, Debug)]
pub struct Alert {
    pub(super) at: Nanos,
    pub(super) signature: Arc<Signature>,
    pub(super) is_blocked: bool,
    pub(super) src: IpAddr,
    pub(super) dst: IpAddr,
    pub(super) src_port: u16,
    pub(super) dst_port: u16,
    pub(super) protocol: u8,
}

#[derive(Serialize)]
struct Record<'a> {
    timestamp: String,
    event_type: &'a str,
    src_ip: IpAddr,
    #[serde(skip_serializing_if = "Option::is_none")]
    src_port: Option<u16>,
    dest_ip: IpAddr,
    #[serde(skip_serializing_if = "Option::is_none")]
    dest_port: Option<u16>,
    proto: &'a str,
    alert: Matched<'a>,
}

#[derive(Serialize)]
struct Matched<'a> {
    action: &'a str,
    gid: u32,
    signature_id: u32,
    rev: u32,
    signature: &'a str,
    category: &'a str,
    severity: u8,
}

impl Alert {
    /// The rule's number.
    pub fn sid(&self) -> u32 {
        self.signature.sid
    }

    /// The record as a line of JSON, without its line break. `since_1970` is what must be added to the monotonic
    /// clock to get the wall clock.
    pub fn to_json(&self, since_1970: Nanos) -> String {
        let has_ports = matches!(self.protocol, 6 | 17 | 132);
        let number;
        let proto = match self.protocol {
            1 => "ICMP",
            6 => "TCP",
            17 => "UDP",
            58 => "IPv6-ICMP",
            132 => "SCTP",
            other => {
                number = format!("{other:03}");
                &number
            }
        };
        let record = Record {
            timestamp: timestamp(Nanos(self.at.0.saturating_add(since_1970.0))),
            event_type: "alert",
            src_ip: self.src,
            src_port: has_ports.then_some(self.src_port),
            dest_ip: self.dst,
            dest_port: has_ports.then_some(self.dst_port),
            proto,
            alert: Matched {
                action: if self.is_blocked { "blocked" } else { "allowed" },
                gid: 1,
                signature_id: self.signature.sid,
                rev: self.signature.revision,
                signature: &self.signature.message,
                category: &self.signature.class,
                severity: self.signature.priority,
            },
        };
        serde_json::to_string(&record).unwrap_or_default()
    }
}

/// A time since 1970 as EVE writes it: `2026-01-31T12:00:00.000000+0000`. The date is Howard Hinnant's
/// `civil_from_days`.
fn timestamp(since_1970: Nanos) -> String {
    let seconds = since_1970.0 / 1_000_000_000;
    let days = seconds / 86_400 + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 {
        month_from_march + 3
    } else {
        month_from_march - 9
    };
    let year = 400 * era + year_of_era + u64::from(month <= 2);
    let (hour, minute, second) = (seconds / 3_600 % 24, seconds / 60 % 60, seconds % 60);
    let micros = since_1970.0 / 1_000 % 1_000_000;
    let mut text = String::with_capacity(31);
    let _ = write!(
        text,
        "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{micros:06}+0000"
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_the_calendar() {
        for (seconds, expected) in [
            (0, "1970-01-01T00:00:00.000000+0000"),
            (951_782_400, "2000-02-29T00:00:00.000000+0000"),
            (1_709_251_199, "2024-02-29T23:59:59.000000+0000"),
            (4_102_444_800, "2100-01-01T00:00:00.000000+0000"),
        ] {
            assert_eq!(timestamp(Nanos::from_secs(seconds)), expected);
        }
        assert_eq!(timestamp(Nanos(1_999)), "1970-01-01T00:00:00.000001+0000");
    }
}
