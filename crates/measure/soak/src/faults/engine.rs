//! The Docker engine: killed, frozen.

use anyhow::{Context as _, Result};
use model::Random;
use rustix::process::Signal;

use super::{Fault, Injected};
use crate::bed::{Bed, BedName};
use crate::guard::Guard;
use crate::plan::milliseconds;

/// The engine is killed and started again.
pub(super) struct Kill;

impl Fault for Kill {
    fn name(&self) -> &'static str {
        "engine-kill"
    }

    fn about(&self) -> &'static str {
        "kills the Docker engine and starts it again after up to 3 s"
    }

    fn suits(&self, bed: BedName) -> bool {
        bed.docker_group().is_some()
    }

    fn inject(&self, bed: &mut Bed, random: &mut Random, _guard: &mut Guard) -> Result<Injected> {
        bed.dockerd().context("there is no Docker engine")?.kill();
        let time = milliseconds(random, 0, 3000);
        let what = format!("killed dockerd, started it after {} ms", time.as_millis());
        Ok(Injected::alone(what).healed(time, |bed, _| {
            bed.dockerd().map_or(Ok(()), |dockerd| dockerd.go_on())
        }))
    }
}

/// The engine hangs.
pub(super) struct Freeze;

impl Fault for Freeze {
    fn name(&self) -> &'static str {
        "engine-freeze"
    }

    fn about(&self) -> &'static str {
        "stops the Docker engine for 0.1 s to 4 s"
    }

    fn suits(&self, bed: BedName) -> bool {
        bed.docker_group().is_some()
    }

    fn inject(&self, bed: &mut Bed, random: &mut Random, _guard: &mut Guard) -> Result<Injected> {
        bed.dockerd()
            .context("there is no Docker engine")?
            .signal(Signal::STOP);
        let time = milliseconds(random, 100, 4000);
        let what = format!("froze dockerd for {} ms", time.as_millis());
        Ok(Injected::alone(what).healed(time, |bed, _| {
            if let Some(dockerd) = bed.dockerd() {
                dockerd.signal(Signal::CONT);
            }
            Ok(())
        }))
    }
}
