use std::path::PathBuf;

use thiserror::Error;

/// Why a scenario cannot be played.
#[derive(Debug, Error)]
pub enum Error {
    /// A file cannot be read.
    #[error("{}: it cannot be read ({source})", path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A trace, mixture or capture that a scenario names is not in the folder of data.
    #[error("{}: there is no such file; say where the data is with INCO_DATA or --data", path.display())]
    NoData {
        /// Where it was looked for.
        path: PathBuf,
    },
    /// The scenario's text is not TOML, or not a scenario.
    #[error("{}: {problem}", path.display())]
    Scenario {
        /// Which file.
        path: PathBuf,
        /// What is wrong and where; TOML's own words carry line and column.
        problem: String,
    },
    /// A value is out of its range.
    #[error("{key}: {problem}")]
    Value {
        /// Which key.
        key: String,
        /// What is wrong with it and what to write.
        problem: String,
    },
    /// A file of data is not what it should be.
    #[error("{}: {problem}", path.display())]
    Data {
        /// Which.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
}

impl Error {
    /// A value out of its range.
    pub(crate) fn value(key: impl Into<String>, problem: impl Into<String>) -> Error {
        Error::Value {
            key: key.into(),
            problem: problem.into(),
        }
    }

    /// Whether it is only that a file of data is not on this machine.
    pub fn is_absent_data(&self) -> bool {
        matches!(self, Error::NoData { .. })
    }
}
