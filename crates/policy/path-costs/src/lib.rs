//! What packets cost on each path of a machine: the file that `inco bench paths --costs` writes, for policies
//! to read. The crate reads and writes text; it opens no file and measures nothing.
//!
//! ```toml
//! version = 1
//! cpus = 2                     # of the machine
//! kernel = "6.12.0"
//!
//! [[cost]]
//! path = "bridge"
//! scope = "local"              # two containers of one host; "across": of two hosts
//! work = "tcp"                 # or "requests", "tiers", "packets", "mix-large", "mix-half", "mix-small"
//! streams = 4                  # connections or flows at a time
//! gbps = { median = 31.2, low = 30.1, high = 31.9 }
//! cpu_s_per_gbit = { median = 0.06, low = 0.058, high = 0.063 }
//! ```
//! Each figure is the median of the rounds, with the least and the greatest value. Policies compare paths of one
//! file: figures of two machines, or of two runs, say little about each other.
#![forbid(unsafe_code)]

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// The version of the file's format.
pub const VERSION: u32 = 1;
/// Rows of a file, at most.
pub const ROWS_LIMIT: usize = 4096;
/// Bytes of a path's name, at most.
pub const NAME_LIMIT: usize = 64;

/// Where the ends of a path are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scope {
    /// Two containers of one host.
    Local,
    /// Two containers of two hosts.
    Across,
}

/// What was carried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Work {
    /// Bulk data over TCP.
    Tcp,
    /// HTTP requests.
    Requests,
    /// HTTP requests through three tiers.
    Tiers,
    /// UDP packets at a rate.
    Packets,
    /// UDP packets of large flows alone.
    #[serde(rename = "mix-large")]
    MixLarge,
    /// UDP packets, half of them of large flows and half of small ones.
    #[serde(rename = "mix-half")]
    MixHalf,
    /// UDP packets of small flows alone.
    #[serde(rename = "mix-small")]
    MixSmall,
}

/// A figure of several rounds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Figure {
    /// The median.
    pub median: f64,
    /// The least.
    pub low: f64,
    /// The greatest.
    pub high: f64,
}

impl Figure {
    /// The figure of these rounds; none without a round.
    #[must_use]
    pub fn of(rounds: &[f64]) -> Option<Figure> {
        let mut sorted = rounds.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (low, high) = (*sorted.first()?, *sorted.last()?);
        let middle = sorted.len() / 2;
        let median = match sorted.len() % 2 {
            1 => *sorted.get(middle)?,
            _ => (sorted.get(middle - 1)? + sorted.get(middle)?) / 2.0,
        };
        Some(Figure { median, low, high })
    }

    fn is_valid(&self) -> bool {
        let all = [self.low, self.median, self.high];
        all.iter().all(|value| value.is_finite() && *value >= 0.0) && all.is_sorted()
    }
}

/// What a path carries of some work, and what that costs. What does not apply is absent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cost {
    /// The path's name, as `inco bench paths` has it.
    pub path: String,
    /// Where its ends are.
    pub scope: Scope,
    /// What was carried.
    pub work: Work,
    /// Connections or flows at a time.
    pub streams: u32,
    /// Gigabits per second: of data with TCP, of frames with packets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gbps: Option<Figure>,
    /// CPU time of the whole machine for a gigabit, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_s_per_gbit: Option<Figure>,
    /// Requests per second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests_per_s: Option<Figure>,
    /// CPU time of the whole machine for a request, in microseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_us_per_request: Option<Figure>,
    /// Packets per second without loss.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ndr_pps: Option<Figure>,
    /// Packets per second with a loss of at most 0.5 %.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pdr_pps: Option<Figure>,
    /// CPU time of the whole machine for a packet, in nanoseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_ns_per_packet: Option<Figure>,
    /// Latency: the median, in microseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p50_us: Option<Figure>,
    /// Latency: 99 % are faster, in microseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p99_us: Option<Figure>,
}

impl Cost {
    /// A row without figures.
    #[must_use]
    pub fn new(path: impl Into<String>, scope: Scope, work: Work, streams: u32) -> Cost {
        Cost {
            path: path.into(),
            scope,
            work,
            streams,
            gbps: None,
            cpu_s_per_gbit: None,
            requests_per_s: None,
            cpu_us_per_request: None,
            ndr_pps: None,
            pdr_pps: None,
            cpu_ns_per_packet: None,
            p50_us: None,
            p99_us: None,
        }
    }

    /// The figures with their names.
    #[must_use]
    pub fn figures(&self) -> [(&'static str, Option<Figure>); 9] {
        [
            ("gbps", self.gbps),
            ("cpu_s_per_gbit", self.cpu_s_per_gbit),
            ("requests_per_s", self.requests_per_s),
            ("cpu_us_per_request", self.cpu_us_per_request),
            ("ndr_pps", self.ndr_pps),
            ("pdr_pps", self.pdr_pps),
            ("cpu_ns_per_packet", self.cpu_ns_per_packet),
            ("p50_us", self.p50_us),
            ("p99_us", self.p99_us),
        ]
    }
}

/// The file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Costs {
    /// [`VERSION`].
    pub version: u32,
    /// CPUs of the machine.
    pub cpus: u32,
    /// The machine's kernel.
    pub kernel: String,
    /// The rows.
    #[serde(default, rename = "cost")]
    pub costs: Vec<Cost>,
}

/// Why a file is refused.
#[derive(Debug, Error)]
pub enum Error {
    /// It is not TOML, or a key is missing or unknown.
    #[error("line {line}: {what}")]
    Toml {
        /// The line, counted from 1.
        line: usize,
        /// What is wrong.
        what: String,
    },
    /// It has another format.
    #[error(
        "the file has version {0}, and this inco reads version {VERSION}: run `inco bench paths --costs FILE`"
    )]
    Version(u32),
    /// It has too many rows.
    #[error("the file has {0} rows, at most {ROWS_LIMIT} are read")]
    Rows(usize),
    /// A row is wrong.
    #[error("cost {number} ({path:?}): {what}")]
    Row {
        /// Its number in the file, from 1.
        number: usize,
        /// Its path.
        path: String,
        /// What is wrong, and what would be right.
        what: String,
    },
    /// It cannot be written as TOML.
    #[error("{0}")]
    Write(#[from] Box<toml::ser::Error>),
}

impl Costs {
    /// A file of this machine.
    #[must_use]
    pub fn new(cpus: u32, kernel: impl Into<String>, costs: Vec<Cost>) -> Costs {
        Costs {
            version: VERSION,
            cpus,
            kernel: kernel.into(),
            costs,
        }
    }

    /// Reads and checks a file.
    ///
    /// # Errors
    /// The text is no file of this version, or a row is wrong.
    pub fn parse(text: &str) -> Result<Costs, Error> {
        // The version first: other versions may have other keys.
        #[derive(Deserialize)]
        struct Versioned {
            version: u32,
        }
        let wrong = |error: toml::de::Error| toml_error(text, &error);
        let Versioned { version } = toml::from_str(text).map_err(wrong)?;
        if version != VERSION {
            return Err(Error::Version(version));
        }
        let costs: Costs = toml::from_str(text).map_err(wrong)?;
        costs.check()?;
        Ok(costs)
    }

    /// The file's text.
    ///
    /// # Errors
    /// A row is wrong.
    pub fn text(&self) -> Result<String, Error> {
        self.check()?;
        let body = toml::to_string(self).map_err(Box::new)?;
        Ok(format!(
            "# Written by `inco bench paths`: what packets cost on each path of this machine.\n{body}"
        ))
    }

    fn check(&self) -> Result<(), Error> {
        if self.costs.len() > ROWS_LIMIT {
            return Err(Error::Rows(self.costs.len()));
        }
        let mut seen = BTreeSet::new();
        for (number, cost) in (1..).zip(&self.costs) {
            let wrong = |what: String| {
                Err(Error::Row {
                    number,
                    path: cost.path.chars().take(NAME_LIMIT).collect(),
                    what,
                })
            };
            let is_part = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
            if cost.path.is_empty() || cost.path.len() > NAME_LIMIT || !cost.path.chars().all(is_part) {
                return wrong("a path's name has 1 to 64 lower-case letters, digits and hyphens".to_owned());
            }
            if cost.streams == 0 {
                return wrong("streams must be at least 1".to_owned());
            }
            if !seen.insert((&cost.path, cost.scope, cost.work, cost.streams)) {
                return wrong("there is a row with the same path, scope, work and streams".to_owned());
            }
            for (name, figure) in cost.figures() {
                if figure.is_some_and(|figure| !figure.is_valid()) {
                    return wrong(format!("{name}: 0 ≤ low ≤ median ≤ high must hold"));
                }
            }
        }
        Ok(())
    }
}

/// In one line, with its place in the text.
fn toml_error(text: &str, error: &toml::de::Error) -> Error {
    let before = error.span().and_then(|span| text.get(..span.start));
    Error::Toml {
        line: before.unwrap_or_default().matches('\n').count() + 1,
        what: error.message().replace('\n', ", "),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by it")]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn costs() -> Costs {
        let mut tcp = Cost::new("veth-bridge", Scope::Local, Work::Tcp, 4);
        tcp.gbps = Figure::of(&[30.0, 32.0, 31.0]);
        let packets = Cost::new("veth-bridge", Scope::Across, Work::Packets, 4);
        let mix = Cost::new("veth-bridge", Scope::Across, Work::MixHalf, 4);
        Costs::new(2, "6.12", vec![tcp, packets, mix])
    }

    #[test]
    fn what_is_written_is_read() {
        let text = costs().text().unwrap();
        assert_eq!(Costs::parse(&text).unwrap(), costs());
        assert!(text.starts_with("# Written by"), "{text}");
    }

    #[test]
    fn figures_are_medians_with_their_range() {
        let of = |rounds: &[f64]| Figure::of(rounds).map(|of| (of.low, of.median, of.high));
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[2.0]), Some((2.0, 2.0, 2.0)));
        assert_eq!(of(&[4.0, 1.0, 2.0, 3.0]), Some((1.0, 2.5, 4.0)));
    }

    #[test]
    fn wrong_files_are_refused() {
        let text = costs().text().unwrap();
        let refused = |from: &str, to: &str| {
            assert!(text.contains(from), "{from} is in {text}");
            Costs::parse(&text.replacen(from, to, 1)).unwrap_err().to_string()
        };
        assert!(refused("version = 1", "version = 2").contains("reads version 1"));
        assert!(refused("version = 1", "versions = 1").contains("version"));
        assert!(refused("cpus = 2", "cpus = 2\nmore = 3").contains("more"));
        // The first line is a comment.
        assert!(refused("cpus = 2", "cpus = \"two\"").starts_with("line 3: "));
        assert!(refused("cpus = 2", "cpus = ").starts_with("line 3: "));
        assert!(refused("veth-bridge", "Veth bridge").contains("cost 1"));
        assert!(refused("streams = 4", "streams = 0").contains("at least 1"));
        assert!(refused("median = 31.0", "median = 29.0").contains("gbps"));
        assert!(refused("high = 32.0", "high = nan").contains("gbps"));
        assert!(refused("\"across\"", "\"far\"").contains("far"));
        let same = text
            .replace("\"across\"", "\"local\"")
            .replace("\"packets\"", "\"tcp\"");
        assert!(Costs::parse(&same).unwrap_err().to_string().contains("cost 2"));
        let mut many = costs();
        many.costs = vec![many.costs[0].clone(); ROWS_LIMIT + 1];
        assert!(matches!(many.text(), Err(Error::Rows(_))));
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "\\PC{0,200}") {
            let _ = Costs::parse(&text);
        }

        #[test]
        fn any_rounds_are_valid(rounds in proptest::collection::vec(0.0..1e12_f64, 1..9)) {
            let mut costs = costs();
            costs.costs[0].p99_us = Figure::of(&rounds);
            prop_assert_eq!(Costs::parse(&costs.text().unwrap()).unwrap(), costs);
        }
    }
}
