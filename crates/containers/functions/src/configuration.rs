//! Texts of configurations, and what is wrong with them.

use serde::Deserialize;
use serde::de::DeserializeOwned;
use thiserror::Error;

/// Why there is no such function, or no such configuration.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Error {
    /// No function has that name.
    #[error("there is no function {name:?}; there are: {known}")]
    Unknown {
        /// The name.
        name: String,
        /// The names that there are.
        known: String,
    },
    /// The configuration is wrong in a line.
    #[error("line {line}: {what}")]
    Line {
        /// The line, from 1 on.
        line: usize,
        /// What is wrong, and what to write instead.
        what: String,
    },
    /// The configuration is wrong as a whole.
    #[error("{what}")]
    Whole {
        /// What is wrong, and what to write instead.
        what: String,
    },
    /// A chain has no functions or too many of them.
    #[error("a chain has 1 to {limit} functions, not {count}", limit = crate::STAGES_LIMIT)]
    Length {
        /// How many there were.
        count: usize,
    },
    /// The configuration was compiled for another function, or there is no such stage.
    #[error("this configuration is not one of stage {stage}")]
    Stage {
        /// The stage, from 0 on.
        stage: usize,
    },
}

impl Error {
    /// The configuration is wrong in a line, counted from 1.
    pub fn in_line(line: usize, what: impl Into<String>) -> Error {
        Error::Line {
            line,
            what: what.into(),
        }
    }

    /// The configuration is wrong as a whole.
    pub fn whole(what: impl Into<String>) -> Error {
        Error::Whole { what: what.into() }
    }
}

/// Reads a configuration in TOML into a type with `#[serde(deny_unknown_fields)]`.
///
/// # Errors
/// [`Error::Line`], with the words of the TOML parser.
pub fn from_toml<T: DeserializeOwned>(text: &str) -> Result<T, Error> {
    toml::from_str(text).map_err(|error: toml::de::Error| {
        let what = error.message().to_owned();
        match error.span() {
            // A missing key concerns the whole text.
            Some(span) if !span.is_empty() => {
                let before = text.get(..span.start).unwrap_or_default();
                Error::in_line(before.matches('\n').count() + 1, what)
            }
            _ => Error::whole(what),
        }
    })
}

/// A MAC address, for `#[serde(deserialize_with)]`.
pub(crate) fn mac<'de, D: serde::Deserializer<'de>>(from: D) -> Result<[u8; 6], D::Error> {
    let word = String::deserialize(from)?;
    let mut parts = word.split(':');
    let mut next = || u8::from_str_radix(parts.next()?, 16).ok();
    let mac = (|| Some([next()?, next()?, next()?, next()?, next()?, next()?]))();
    match (mac, parts.next()) {
        (Some(mac), None) => Ok(mac),
        _ => Err(serde::de::Error::custom(format!(
            "{word:?} is no MAC address such as \"02:00:00:00:00:01\""
        ))),
    }
}

/// Whether the value of a key is within its limits; `of` says what it counts.
///
/// # Errors
/// It is not.
pub(crate) fn within(key: &str, value: usize, least: usize, most: usize, of: &str) -> Result<(), Error> {
    if (least..=most).contains(&value) {
        Ok(())
    } else {
        Err(Error::whole(format!(
            "{key}: {value} {of}; there are {least} to {most}"
        )))
    }
}

/// A rate of bits or of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rate {
    /// Bits or packets in a second, from 1 to 10^13.
    pub(crate) amount: u64,
    pub(crate) counts_bytes: bool,
}

/// A rate such as `10Mbit/s` or `5kpps`.
pub(crate) fn rate(word: &str) -> Option<Rate> {
    let digits = word.find(|c: char| !c.is_ascii_digit())?;
    let (number, unit) = word.split_at(digits);
    let (factor, counts_bytes) = match unit {
        "bit/s" => (1, true),
        "kbit/s" => (1_000, true),
        "Mbit/s" => (1_000_000, true),
        "Gbit/s" => (1_000_000_000, true),
        "pps" => (1, false),
        "kpps" => (1_000, false),
        "Mpps" => (1_000_000, false),
        _ => return None,
    };
    let amount = number.parse::<u64>().ok()?.checked_mul(factor)?;
    (1..=10_000_000_000_000)
        .contains(&amount)
        .then_some(Rate { amount, counts_bytes })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, serde::Deserialize, PartialEq)]
    #[serde(deny_unknown_fields)]
    struct Two {
        first: u32,
        #[serde(default)]
        second: bool,
    }

    #[test]
    fn an_error_says_the_line() {
        assert_eq!(
            from_toml::<Two>("first = 1\n").unwrap(),
            Two {
                first: 1,
                second: false
            }
        );
        let error = from_toml::<Two>("first = 1\n\nsecond = 3\n").unwrap_err();
        assert!(error.to_string().starts_with("line 3: "), "{error}");
        let error = from_toml::<Two>("first = 1\nthird = 3\n").unwrap_err();
        assert!(error.to_string().starts_with("line 2: unknown field"), "{error}");
        let error = from_toml::<Two>("").unwrap_err();
        assert_eq!(error.to_string(), "missing field `first`");
    }
}
