//! Durations in policy parameters: a number of seconds, or text with a unit.

use std::fmt;

use serde::de::{Error, Visitor};
use serde::{Deserializer, Serializer};

use crate::Nanos;

/// The longest duration of a parameter: a day. A longer one is a wrong unit.
const LONGEST_S: f64 = 86_400.0;

/// Serialises a duration as seconds, for `#[serde(serialize_with)]`; [`deserialize`] reads it back.
///
/// # Errors
/// The serialiser's.
pub fn serialize<S: Serializer>(span: &Nanos, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(span.as_secs_f64())
}

/// Parses a duration above 0, for `#[serde(deserialize_with)]`.
///
/// # Errors
/// As [`deserialize`], and for 0.
pub fn positive<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Nanos, D::Error> {
    match deserialize(deserializer)? {
        Nanos::ZERO => Err(Error::custom("0 is not a span above 0")),
        span => Ok(span),
    }
}

/// Parses a duration, for `#[serde(deserialize_with)]`: seconds as a number, or text such as `"250ms"`,
/// `"1s"`, `"5m"`.
///
/// # Errors
/// The deserialiser's, for anything else and for more than a day.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Nanos, D::Error> {
    #[derive(Clone, Copy)]
    struct Span;
    impl Visitor<'_> for Span {
        type Value = Nanos;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("seconds from 0 to 86400, or text such as \"250ms\", \"1s\", \"5m\"")
        }

        fn visit_f64<E: Error>(self, seconds: f64) -> Result<Nanos, E> {
            if (0.0..=LONGEST_S).contains(&seconds) {
                Ok(Nanos((seconds * 1e9).round() as u64))
            } else {
                Err(E::invalid_value(serde::de::Unexpected::Float(seconds), &self))
            }
        }

        fn visit_u64<E: Error>(self, seconds: u64) -> Result<Nanos, E> {
            self.visit_f64(seconds as f64)
        }

        fn visit_i64<E: Error>(self, seconds: i64) -> Result<Nanos, E> {
            self.visit_f64(seconds as f64)
        }

        fn visit_str<E: Error>(self, text: &str) -> Result<Nanos, E> {
            let wrong = || E::invalid_value(serde::de::Unexpected::Str(text), &Span);
            let split = text.find(|c: char| c.is_ascii_alphabetic()).ok_or_else(wrong)?;
            let (number, unit) = text.split_at(split);
            let scale = match unit {
                "us" => 1e-6,
                "ms" => 1e-3,
                "s" => 1.0,
                "m" => 60.0,
                "h" => 3_600.0,
                _ => return Err(wrong()),
            };
            let number: f64 = number.trim().parse().map_err(|_| wrong())?;
            self.visit_f64(number * scale).map_err(|_: E| wrong())
        }
    }
    deserializer.deserialize_any(Span)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_and_text_are_parsed_and_the_rest_is_rejected() {
        let read = |json: &str| deserialize(&mut serde_json::Deserializer::from_str(json)).ok();
        assert_eq!(read("1"), Some(Nanos::from_secs(1)));
        assert_eq!(read("0.25"), Some(Nanos::from_millis(250)));
        assert_eq!(read("\"250ms\""), Some(Nanos::from_millis(250)));
        assert_eq!(read("\"5 m\""), Some(Nanos::from_secs(300)));
        assert_eq!(read("\"10us\""), Some(Nanos::from_micros(10)));
        for wrong in [
            "-1",
            "\"-1s\"",
            "\"5\"",
            "\"s\"",
            "\"5 parsecs\"",
            "1e9",
            "\"1e9h\"",
            "true",
            "\"nans\"",
        ] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }
}
