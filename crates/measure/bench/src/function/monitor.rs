//! `monitor`, which has no peer.

use anyhow::Result;

use super::frames::{SIZES, flows};
use super::service::Served;
use super::session::{Case, Session};
use super::through::{Through, chain};

/// What was measured.
pub(super) const NOTE: &str =
    "each flow has a record, with the copy into the burst, and the looks for flows that have ended";

/// Flows and packet sizes.
const CASES: [(usize, usize); 5] = [
    (1_000, SIZES[0]),
    (1_000, SIZES[1]),
    (1_000, SIZES[2]),
    (60_000, SIZES[0]),
    (1_000_000, SIZES[0]),
];

/// Measures it.
pub(super) fn measure(session: &mut Session) -> Result<()> {
    for (count, size) in CASES {
        let frames = flows(count, size)?;
        let configuration = format!("flows_limit = {}\n", 2 * count);
        let mut ours = Through::new(Some(chain("monitor", &configuration)?), &frames)?;
        session.case(&Case::new("flows", count, size), &mut ours, None)?;
    }
    Ok(())
}

/// As the instance of a service.
pub(super) fn served() -> Result<Served> {
    let (count, size) = CASES[0];
    let configuration = format!("flows_limit = {}\n", 2 * count);
    Ok(Served::of(configuration, count, flows(count, size)?))
}
