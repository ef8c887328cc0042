//! Instances: killed, frozen, out of memory.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result};
use engine::cgroup::{Hierarchy, ROOT, Version};
use model::Random;
use rustix::process::Signal;

use super::{Fault, Injected};
use crate::bed::{Bed, CONTAINER_MIB};
use crate::guard::Guard;
use crate::plan::{below, milliseconds};
use crate::process::Process;

/// An active instance and its process.
pub(super) fn pick(bed: &mut Bed, random: &mut Random) -> Result<(u32, Process)> {
    let active = bed.active()?;
    let row = &active[below(random, active.len())];
    let process = row.pid.and_then(Process::of).context("its process has ended")?;
    Ok((row.id.0, process))
}

/// An instance is killed.
pub(super) struct Kill;

impl Fault for Kill {
    fn name(&self) -> &'static str {
        "instance-kill"
    }

    fn about(&self) -> &'static str {
        "kills the program of an active instance"
    }

    fn inject(&self, bed: &mut Bed, random: &mut Random, _guard: &mut Guard) -> Result<Injected> {
        let (id, process) = pick(bed, random)?;
        process.signal(Signal::KILL);
        Ok(Injected::alone(format!("killed instance {id}")).of_instance(id))
    }
}

/// An instance hangs, and goes on if it still may.
pub(super) struct Freeze;

impl Fault for Freeze {
    fn name(&self) -> &'static str {
        "instance-freeze"
    }

    fn about(&self) -> &'static str {
        "stops the program of an active instance for 20 ms to 1.5 s"
    }

    fn inject(&self, bed: &mut Bed, random: &mut Random, _guard: &mut Guard) -> Result<Injected> {
        let (id, process) = pick(bed, random)?;
        let time = milliseconds(random, 20, 1500);
        process.signal(Signal::STOP);
        let injected =
            Injected::alone(format!("froze instance {id} for {} ms", time.as_millis())).of_instance(id);
        Ok(injected.healed(time, move |_, _| {
            process.signal(Signal::CONT);
            Ok(())
        }))
    }
}

/// A container reaches its memory limit, and the kernel kills the function.
pub(super) struct Memory;

impl Fault for Memory {
    fn name(&self) -> &'static str {
        "instance-memory"
    }

    fn about(&self) -> &'static str {
        "fills the memory limit of an active instance's container until the kernel kills its program"
    }

    fn inject(&self, bed: &mut Bed, random: &mut Random, _guard: &mut Guard) -> Result<Injected> {
        let (id, process) = pick(bed, random)?;
        let procs = memory_group(process)?.join("cgroup.procs");
        // Another process of the container takes all of its memory, and the kernel chooses the function to be killed
        // for it.
        let chosen = format!("/proc/{}/oom_score_adj", process.pid);
        fs::write(&chosen, "1000").with_context(|| format!("cannot write {chosen}"))?;
        let script = "echo $$ > \"$1\" && exec dd if=/dev/zero of=/dev/null bs=\"$2\" count=20";
        let mut hog = Command::new("sh")
            .args(["-c", script, "sh"])
            .arg(&procs)
            .arg(format!("{CONTAINER_MIB}M"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("cannot run sh")?;
        let injected = Injected::alone(format!("filled the memory of instance {id}")).of_instance(id);
        Ok(injected.healed(milliseconds(random, 300, 1000), move |_, _| {
            // It may have ended.
            let _gone = hog.kill();
            hog.wait()
                .context("cannot wait for what fills the memory")
                .map(drop)
        }))
    }
}

/// The directory of the control group that limits a process' memory.
fn memory_group(process: Process) -> Result<PathBuf> {
    let text =
        fs::read_to_string(format!("/proc/{}/cgroup", process.pid)).context("its process has ended")?;
    let group = |controller: &str| {
        text.lines().find_map(|line| {
            let mut parts = line.splitn(3, ':').skip(1);
            let (controllers, path) = (parts.next()?, parts.next()?);
            controllers
                .split(',')
                .any(|name| name == controller)
                .then(|| path.trim_start_matches('/').to_owned())
        })
    };
    let (tree, path) = match Hierarchy::at(ROOT)?.version() {
        Version::V1 => (Path::new(ROOT).join("memory"), group("memory")),
        Version::V2 => (PathBuf::from(ROOT), group("")),
    };
    Ok(tree.join(path.context("its memory is not limited")?))
}
