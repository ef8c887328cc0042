//! A recording of a live run: its traffic and its decisions.

use std::path::Path;

use model::Nanos;
use serde::{Deserialize, Serialize};

use crate::Error;

/// A live run of one service. Times are in seconds since its start.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recording {
    /// How it was recorded.
    pub about: String,
    /// `[at_s, packets offered so far, live flows]`, in ascending order of time.
    pub samples: Vec<(f64, f64, f64)>,
    /// Its decisions: the `scaled` events.
    pub decisions: Vec<RecordedDecision>,
}

/// A decision of a live run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecordedDecision {
    /// Time in seconds.
    pub at_s: f64,
    /// Wanted Active instances before.
    pub from: u32,
    /// Wanted Active instances after.
    pub to: u32,
}

impl Recording {
    /// Reads a recording.
    ///
    /// # Errors
    /// Returns [`Error::Read`] if the file cannot be read, and [`Error::Data`] if it is invalid.
    pub fn load(path: &Path) -> Result<Recording, Error> {
        let text = std::fs::read_to_string(path).map_err(|source| Error::Read {
            path: path.to_owned(),
            source,
        })?;
        let data = |problem: String| Error::Data {
            path: path.to_owned(),
            problem,
        };
        let recording: Recording = serde_json::from_str(&text).map_err(|error| data(error.to_string()))?;
        let rises = |pair: &[(f64, f64, f64)]| pair[0].0 < pair[1].0 && pair[0].1 <= pair[1].1;
        if recording.samples.len() < 2 || !recording.samples.windows(2).all(rises) {
            return Err(data(
                "a recording needs at least two samples with increasing times and packets".to_owned(),
            ));
        }
        Ok(recording)
    }

    /// The start, new flows per second and packets per second of each interval between samples.
    pub(crate) fn rates(&self) -> impl Iterator<Item = (Nanos, f64, f64)> {
        self.samples.windows(2).map(|pair| {
            let dt_s = pair[1].0 - pair[0].0;
            let new_flows = (pair[1].2 - pair[0].2).max(0.0) / dt_s;
            (
                crate::time::seconds(pair[0].0),
                new_flows,
                (pair[1].1 - pair[0].1) / dt_s,
            )
        })
    }
}
