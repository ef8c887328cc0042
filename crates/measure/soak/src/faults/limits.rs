//! Resources of inco's process that run out: descriptors, memory. Limits of that process alone.

use anyhow::{Context as _, Result};
use model::Random;
use rustix::process::{Pid, Resource, Rlimit, Signal, prlimit};

use super::{Fault, Injected, instance};
use crate::bed::Bed;
use crate::guard::Guard;
use crate::plan::milliseconds;
use crate::process::Process;

/// Address space that inco may still take, in kB: less than the stack of a thread.
const KILOBYTES_LEFT: u64 = 256;

fn limit(process: Process, resource: Resource, to: Rlimit) -> Result<Rlimit> {
    let pid = i32::try_from(process.pid).ok().and_then(Pid::from_raw);
    prlimit(pid, resource, to).context("cannot set a limit of inco")
}

/// Sets the soft limit of a resource, and later the old one. An instance is killed meanwhile, so that inco needs
/// some.
fn with_limit(
    bed: &mut Bed,
    random: &mut Random,
    resource: Resource,
    current: u64,
    what: &str,
) -> Result<Injected> {
    let (id, instance) = instance::pick(bed, random)?;
    let process = bed.process()?;
    // The only way to read it is to set another one: ours, for a moment.
    let old = limit(process, resource, rustix::process::getrlimit(resource))?;
    limit(
        process,
        resource,
        Rlimit {
            current: Some(current),
            maximum: old.maximum,
        },
    )?;
    instance.signal(Signal::KILL);
    let time = milliseconds(random, 500, 2500);
    let what = format!("{what} for {} ms and killed instance {id}", time.as_millis());
    let injected = Injected::alone(what).of_instance(id);
    Ok(injected.healed(time, move |_, _| match process.is_alive() {
        true => limit(process, resource, old).map(drop),
        false => Ok(()),
    }))
}

/// inco can open no file.
pub(super) struct Descriptors;

impl Fault for Descriptors {
    fn name(&self) -> &'static str {
        "descriptors"
    }

    fn about(&self) -> &'static str {
        "lets inco open no file for up to 2.5 s and kills an instance"
    }

    fn inject(&self, bed: &mut Bed, random: &mut Random, _guard: &mut Guard) -> Result<Injected> {
        let open = bed.process()?.descriptors();
        with_limit(bed, random, Resource::Nofile, open, "no descriptors")
    }
}

/// inco gets no memory. It may end by that, and the next one goes on.
pub(super) struct Memory;

impl Fault for Memory {
    fn name(&self) -> &'static str {
        "memory"
    }

    fn about(&self) -> &'static str {
        "lets inco take no more memory for up to 2.5 s and kills an instance; inco may end and is started again"
    }

    fn inject(&self, bed: &mut Bed, random: &mut Random, _guard: &mut Guard) -> Result<Injected> {
        let has = bed
            .process()?
            .address_space_kilobytes()
            .context("inco has ended")?;
        let bytes = (has + KILOBYTES_LEFT) << 10;
        let mut injected = with_limit(bed, random, Resource::As, bytes, "no memory")?;
        injected.excuse.inco_ends = true;
        Ok(injected)
    }
}
