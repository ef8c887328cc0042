//! The launcher: killed, frozen.

use anyhow::{Context as _, Result};
use model::Random;
use rustix::process::Signal;

use super::{Fault, Injected};
use crate::bed::{Bed, BedName};
use crate::guard::Guard;
use crate::plan::milliseconds;
use crate::process::Process;

fn launcher(bed: &Bed) -> Result<Process> {
    bed.launchers().into_iter().next().context("there is no launcher")
}

/// The launcher is killed; inco starts another one.
pub(super) struct Kill;

impl Fault for Kill {
    fn name(&self) -> &'static str {
        "launcher-kill"
    }

    fn about(&self) -> &'static str {
        "kills the launcher"
    }

    fn suits(&self, bed: BedName) -> bool {
        bed.docker_group().is_none() || bed.has_places()
    }

    fn inject(&self, bed: &mut Bed, _random: &mut Random, _guard: &mut Guard) -> Result<Injected> {
        launcher(bed)?.signal(Signal::KILL);
        Ok(Injected::alone("killed the launcher"))
    }
}

/// The launcher hangs.
pub(super) struct Freeze;

impl Fault for Freeze {
    fn name(&self) -> &'static str {
        "launcher-freeze"
    }

    fn about(&self) -> &'static str {
        "stops the launcher for 0.1 s to 4 s"
    }

    fn suits(&self, bed: BedName) -> bool {
        bed.docker_group().is_none() || bed.has_places()
    }

    fn inject(&self, bed: &mut Bed, random: &mut Random, _guard: &mut Guard) -> Result<Injected> {
        let process = launcher(bed)?;
        let time = milliseconds(random, 100, 4000);
        process.signal(Signal::STOP);
        let what = format!("froze the launcher for {} ms", time.as_millis());
        Ok(Injected::alone(what).healed(time, move |_, _| {
            process.signal(Signal::CONT);
            Ok(())
        }))
    }
}
