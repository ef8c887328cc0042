//! A CPU quota that cannot be set.

use std::fs;
use std::time::Instant;

use anyhow::{Context as _, Result, bail, ensure};
use engine::CpuQuota;
use engine::cgroup::{Hierarchy, ROOT, Version};
use model::{Action, Random};

use super::{Fault, Injected};
use crate::bed::{Bed, BedName, CPUS, RECOVERY_LIMIT, SERVICE};
use crate::guard::Guard;
use crate::plan::milliseconds;

/// What is asked for, in CPUs, and what the kernel permits meanwhile: more than an instance has.
const WANTED_CPUS: f64 = CPUS + 0.5;
const PERMITTED_CPUS: f64 = CPUS + 0.25;

/// The kernel refuses a quota, and later accepts it.
pub(super) struct Refused;

impl Fault for Refused {
    fn name(&self) -> &'static str {
        "quota-refused"
    }

    fn about(&self) -> &'static str {
        "has the kernel refuse a larger CPU quota for up to 2.5 s, and waits until inco has set it and the old one again"
    }

    fn suits(&self, bed: BedName) -> bool {
        // Version 2 of control groups refuses no quota because of a parent's.
        bed.has_quotas()
            && Hierarchy::at(ROOT).is_ok_and(|hierarchy| matches!(hierarchy.version(), Version::V1))
    }

    fn inject(&self, bed: &mut Bed, random: &mut Random, _guard: &mut Guard) -> Result<Injected> {
        let parent = bed.container_group(&Hierarchy::at(ROOT)?)?;
        let permit = move |cpus: Option<f64>| -> Result<()> {
            let quota = cpus.map(CpuQuota::of_cpus);
            let group = Hierarchy::at(ROOT)?.group(&parent);
            group.set_quota(quota).context("cannot limit all containers")
        };
        permit(Some(PERMITTED_CPUS))?;
        let asked = ask(bed, Some(WANTED_CPUS));
        if asked.is_err() {
            permit(None)?;
        }
        asked?;
        let time = milliseconds(random, 500, 2500);
        let what = format!("had quotas refused for {} ms", time.as_millis());
        Ok(Injected::alone(what).healed(time, move |bed, _| {
            let during = quotas(bed);
            permit(None)?;
            let is_larger = |cpus: &f64| *cpus > PERMITTED_CPUS;
            ensure!(!during?.iter().any(is_larger), "the kernel refused no quota");
            wait_for(bed, WANTED_CPUS)?;
            ask(bed, None)?;
            wait_for(bed, CPUS)
        }))
    }
}

fn ask(bed: &mut Bed, cpus: Option<f64>) -> Result<()> {
    let service = SERVICE.to_owned();
    bed.client()?.act(&Action::Resize { service, cpus })?;
    Ok(())
}

/// The quotas that the kernel has for the active instances, in CPUs.
fn quotas(bed: &mut Bed) -> Result<Vec<f64>> {
    let hierarchy = Hierarchy::at(ROOT)?;
    let pids: Vec<u32> = bed.active()?.iter().filter_map(|row| row.pid).collect();
    let mut all = Vec::new();
    for pid in pids {
        // One that has ended meanwhile is replaced.
        let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
        let group = hierarchy.group_of(&text);
        let quota = group.and_then(|group| group.quota().ok().flatten());
        all.extend(quota.map(|quota| quota.cpus()));
    }
    Ok(all)
}

/// Waits until all active instances have that quota.
fn wait_for(bed: &mut Bed, cpus: f64) -> Result<()> {
    let since = Instant::now();
    loop {
        // Right after a restart of inco none may be active.
        let all = quotas(bed).unwrap_or_default();
        if !all.is_empty() && all.iter().all(|of| (of - cpus).abs() < 1e-2) {
            return Ok(());
        }
        if since.elapsed() > RECOVERY_LIMIT {
            bail!("quotas are {all:?} and not {cpus} CPUs");
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}
