//! A place: away with all that runs there, and back.

use anyhow::{Context as _, Result, bail};
use model::Random;
use rustix::process::Signal;

use super::{Fault, Injected};
use crate::bed::{Bed, BedName, CARD};
use crate::guard::Guard;
use crate::plan::milliseconds;
use crate::process::Process;

/// A place disappears and returns.
pub(super) struct Away;

impl Fault for Away {
    fn name(&self) -> &'static str {
        "place-away"
    }

    fn about(&self) -> &'static str {
        "kills the engine of a place and all programs there, and starts the engine again after up to 4 s"
    }

    fn suits(&self, bed: BedName) -> bool {
        bed.has_places()
    }

    fn inject(&self, bed: &mut Bed, random: &mut Random, _guard: &mut Guard) -> Result<Injected> {
        let rows = bed.client()?.instances()?.into_iter();
        let there: Vec<_> = rows.filter(|row| row.place.as_deref() == Some(CARD)).collect();
        if there.is_empty() {
            bail!("no instance is at place {CARD}");
        }
        bed.dockerd().context("there is no Docker engine")?.kill();
        let time = milliseconds(random, 500, 4000);
        let ids: Vec<String> = there.iter().map(|row| row.id.0.to_string()).collect();
        let mut injected = Injected::alone(format!(
            "killed place {CARD} with instances {}, started it after {} ms",
            ids.join(", "),
            time.as_millis()
        ));
        for row in &there {
            if let Some(process) = row.pid.and_then(Process::of) {
                process.signal(Signal::KILL);
            }
            injected = injected.of_instance(row.id.0);
        }
        Ok(injected.healed(time, |bed, _| {
            bed.dockerd().map_or(Ok(()), |dockerd| dockerd.go_on())
        }))
    }
}
