use std::path::PathBuf;

use thiserror::Error;

/// Why a scenario cannot be run.
#[derive(Debug, Error)]
pub enum Error {
    /// A file cannot be read.
    #[error("{}: cannot read it ({source})", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// A trace, mixture or capture of the scenario is absent from the data folder.
    #[error("{}: the file does not exist; set the data folder with INCO_DATA or --data", path.display())]
    NoData {
        /// The expected path.
        path: PathBuf,
    },
    /// Not TOML, or not a scenario.
    #[error("{}: {problem}", path.display())]
    Scenario {
        /// The file.
        path: PathBuf,
        /// The problem; TOML errors include line and column.
        problem: String,
    },
    /// A value out of range.
    #[error("{key}: {problem}")]
    Value {
        /// The key.
        key: String,
        /// The problem and the correction.
        problem: String,
    },
    /// An invalid data file.
    #[error("{}: {problem}", path.display())]
    Data {
        /// The file.
        path: PathBuf,
        /// The problem.
        problem: String,
    },
}

/// Checks that a value is a number from `low` to `high`.
pub(crate) fn within(key: &str, value: f64, low: f64, high: f64) -> Result<(), Error> {
    if value.is_finite() && (low..=high).contains(&value) {
        return Ok(());
    }
    Err(Error::value(
        key,
        format!("{value} is not within {low} to {high}"),
    ))
}

impl Error {
    /// A value out of range.
    pub(crate) fn value(key: impl Into<String>, problem: impl Into<String>) -> Error {
        Error::Value {
            key: key.into(),
            problem: problem.into(),
        }
    }

    /// Whether the only problem is a missing data file.
    pub fn is_absent_data(&self) -> bool {
        matches!(self, Error::NoData { .. })
    }
}
