//! inco itself: killed, frozen.

use anyhow::Result;
use model::Random;
use rustix::process::Signal;

use super::{Fault, Injected};
use crate::bed::Bed;
use crate::guard::Guard;
use crate::plan::milliseconds;

/// inco is killed, and the next one is started a moment later.
pub(super) struct Kill;

impl Fault for Kill {
    fn name(&self) -> &'static str {
        "inco-kill"
    }

    fn about(&self) -> &'static str {
        "kills inco and starts it again after up to 0.5 s"
    }

    fn inject(&self, bed: &mut Bed, random: &mut Random, _guard: &mut Guard) -> Result<Injected> {
        bed.kill()?;
        let time = milliseconds(random, 0, 500);
        let what = format!("killed inco, started it after {} ms", time.as_millis());
        Ok(Injected::alone(what).healed(time, |bed, _| bed.run()))
    }
}

/// inco hangs.
pub(super) struct Freeze;

impl Fault for Freeze {
    fn name(&self) -> &'static str {
        "inco-freeze"
    }

    fn about(&self) -> &'static str {
        "stops inco for 20 ms to 1.5 s"
    }

    fn inject(&self, bed: &mut Bed, random: &mut Random, _guard: &mut Guard) -> Result<Injected> {
        let process = bed.process()?;
        let time = milliseconds(random, 20, 1500);
        process.signal(Signal::STOP);
        let what = format!("froze inco for {} ms", time.as_millis());
        Ok(Injected::alone(what).healed(time, move |_, _| {
            process.signal(Signal::CONT);
            Ok(())
        }))
    }
}
