//! Open vSwitch: killed, frozen.

use anyhow::{Context as _, Result};
use model::Random;
use rustix::process::Signal;

use super::{Fault, Injected};
use crate::bed::{Bed, BedName};
use crate::check::Losses;
use crate::guard::Guard;
use crate::plan::milliseconds;
use crate::process::Process;

fn has_it(bed: BedName) -> bool {
    bed == BedName::OpenflowOci
}

/// Open vSwitch is killed and started again: what is in it is lost.
pub(super) struct Kill;

impl Fault for Kill {
    fn name(&self) -> &'static str {
        "switch-kill"
    }

    fn about(&self) -> &'static str {
        "kills Open vSwitch, its database excepted, and starts it again"
    }

    fn suits(&self, bed: BedName) -> bool {
        has_it(bed)
    }

    fn inject(&self, bed: &mut Bed, _random: &mut Random, _guard: &mut Guard) -> Result<Injected> {
        let open_vswitch = bed.open_vswitch().context("there is no Open vSwitch")?;
        let (killed, started) = open_vswitch.kill_and_start()?;
        let away = started.duration_since(killed);
        let mut injected =
            Injected::alone(format!("killed Open vSwitch, back after {} ms", away.as_millis()));
        injected.excuse.losses = Losses::All;
        Ok(injected)
    }
}

/// Open vSwitch hangs.
pub(super) struct Freeze;

impl Fault for Freeze {
    fn name(&self) -> &'static str {
        "switch-freeze"
    }

    fn about(&self) -> &'static str {
        "stops Open vSwitch for 20 ms to 1.5 s"
    }

    fn suits(&self, bed: BedName) -> bool {
        has_it(bed)
    }

    fn inject(&self, bed: &mut Bed, random: &mut Random, _guard: &mut Guard) -> Result<Injected> {
        let pid = bed.open_vswitch().and_then(|open_vswitch| open_vswitch.process());
        let process = pid.and_then(Process::of).context("Open vSwitch does not run")?;
        let time = milliseconds(random, 20, 1500);
        process.signal(Signal::STOP);
        let what = format!("froze Open vSwitch for {} ms", time.as_millis());
        Ok(Injected::alone(what).healed(time, move |_, _| {
            process.signal(Signal::CONT);
            Ok(())
        }))
    }
}
