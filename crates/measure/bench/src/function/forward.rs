//! `forward`, which does nothing with a packet: what a burst costs around a function.

use anyhow::Result;
use functions::Chain;

use super::frames::{SIZES, flows};
use super::service::Served;
use super::session::{Case, Session};
use super::through::{Through, stage};

/// What was measured.
pub(super) const NOTE: &str = "the copy of each frame into the burst, no function, one, and three in a chain";

/// Flows of the packets. The function does not distinguish them.
const FLOWS: usize = 1_000;

/// Measures it.
pub(super) fn measure(session: &mut Session) -> Result<()> {
    for size in SIZES {
        let frames = flows(FLOWS, size)?;
        for (name, count) in [("no function", 0), ("one function", 1), ("three in a chain", 3)] {
            let stages = (0..count)
                .map(|_| stage("forward", ""))
                .collect::<Result<Vec<_>>>()?;
            // A chain of no function is none.
            let mut ours = Through::new(Chain::new(stages).ok(), &frames)?;
            session.case(&Case::new(name, count, size), &mut ours, None)?;
        }
    }
    Ok(())
}

/// As the instance of a service.
pub(super) fn served() -> Result<Served> {
    Ok(Served::of("", FLOWS, flows(FLOWS, SIZES[0])?))
}
