//! Durations and rates in text form: `"500ms"`, `"10kpps"`. A bare number is seconds or packets per second.

use std::fmt;
use std::time::Duration;

use serde::de::{self, Deserializer, Visitor};
use serde::{Deserialize, Serialize, Serializer};

/// Packets per second.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd)]
pub struct Rate(pub f64);

/// A duration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span(pub Duration);

impl Span {
    /// The duration in ns.
    pub fn as_nanos(self) -> u64 {
        u64::try_from(self.0.as_nanos()).unwrap_or(u64::MAX)
    }

    /// A duration of `ms` milliseconds.
    pub const fn from_millis(ms: u64) -> Span {
        Span(Duration::from_millis(ms))
    }
}

/// The number and the unit of `text`.
fn split(text: &str) -> Option<(f64, &str)> {
    let text = text.trim();
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let number: f64 = text[..end].parse().ok()?;
    Some((number, text[end..].trim()))
}

fn span(number: f64, unit: &str) -> Option<Span> {
    let seconds = match unit {
        "ns" => 1e-9,
        "us" | "µs" => 1e-6,
        "ms" => 1e-3,
        "s" | "" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        _ => return None,
    } * number;
    // Above 78 hours the stamp's clock would wrap.
    (seconds.is_finite() && (0.0..=280_000.0).contains(&seconds))
        .then(|| Span(Duration::from_secs_f64(seconds)))
}

fn rate(number: f64, unit: &str) -> Option<Rate> {
    let factor = match unit {
        "pps" | "" => 1.0,
        "kpps" => 1e3,
        "Mpps" => 1e6,
        "Gpps" => 1e9,
        _ => return None,
    };
    let pps = number * factor;
    (pps.is_finite() && pps > 0.0).then_some(Rate(pps))
}

impl std::str::FromStr for Rate {
    type Err = crate::Error;
    fn from_str(text: &str) -> Result<Rate, crate::Error> {
        split(text)
            .and_then(|(n, unit)| rate(n, unit))
            .ok_or_else(|| crate::Error::Unit {
                value: text.into(),
                example: "\"10kpps\"",
            })
    }
}

impl std::str::FromStr for Span {
    type Err = crate::Error;
    fn from_str(text: &str) -> Result<Span, crate::Error> {
        split(text)
            .and_then(|(n, unit)| span(n, unit))
            .ok_or_else(|| crate::Error::Unit {
                value: text.into(),
                example: "\"500ms\"",
            })
    }
}

macro_rules! quantity {
    ($type:ident, $convert:ident, $expecting:literal) => {
        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<$type, D::Error> {
                struct Read;
                impl Visitor<'_> for Read {
                    type Value = $type;
                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        f.write_str($expecting)
                    }
                    fn visit_str<E: de::Error>(self, text: &str) -> Result<$type, E> {
                        split(text)
                            .and_then(|(n, unit)| $convert(n, unit))
                            .ok_or_else(|| E::invalid_value(de::Unexpected::Str(text), &self))
                    }
                    fn visit_f64<E: de::Error>(self, n: f64) -> Result<$type, E> {
                        $convert(n, "").ok_or_else(|| E::invalid_value(de::Unexpected::Float(n), &self))
                    }
                    fn visit_u64<E: de::Error>(self, n: u64) -> Result<$type, E> {
                        self.visit_f64(n as f64)
                    }
                    fn visit_i64<E: de::Error>(self, n: i64) -> Result<$type, E> {
                        self.visit_f64(n as f64)
                    }
                }
                deserializer.deserialize_any(Read)
            }
        }
    };
}

quantity!(
    Rate,
    rate,
    "a rate above 0 such as \"10kpps\", \"1.5Mpps\" or a number of packets per second"
);
quantity!(
    Span,
    span,
    "a duration up to 77h such as \"500ms\", \"10s\" or a number of seconds"
);

impl Serialize for Rate {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(self.0)
    }
}

impl Serialize for Span {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(self.0.as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_read() {
        assert_eq!("10kpps".parse::<Rate>().unwrap(), Rate(10_000.0));
        assert_eq!("1.5 Mpps".parse::<Rate>().unwrap(), Rate(1_500_000.0));
        assert_eq!("250ms".parse::<Span>().unwrap(), Span::from_millis(250));
        assert_eq!("2".parse::<Span>().unwrap(), Span::from_millis(2000));
        for bad in ["", "fast", "10kb", "-1pps", "0pps", "1e400pps"] {
            assert!(bad.parse::<Rate>().is_err(), "{bad}");
        }
        for bad in ["-1s", "1 fortnight", "100h"] {
            assert!(bad.parse::<Span>().is_err(), "{bad}");
        }
    }
}
