//! Full disks: file systems of the run's own.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use model::Random;
use rustix::process::Signal;

use super::{Fault, Injected, instance};
use crate::bed::Bed;
use crate::guard::Guard;
use crate::plan::milliseconds;

/// Fills the file system of a directory.
fn fill(directory: &Path) -> Result<PathBuf> {
    let path = directory.join("filled-by-soak");
    let mut file = File::create(&path).with_context(|| format!("cannot make {}", path.display()))?;
    let block = vec![0; 64 << 10];
    loop {
        match file.write(&block) {
            Ok(0) => return Ok(path),
            Ok(_) => {}
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::NOSPC.raw_os_error()) => {
                return Ok(path);
            }
            Err(error) => {
                let _removed = fs::remove_file(&path);
                bail!("cannot fill {}: {error}", directory.display());
            }
        }
    }
}

/// Kills an instance while there is no room, so that there are events to write and a container to make.
fn without_room(bed: &mut Bed, random: &mut Random, directory: &Path, of: &str) -> Result<Injected> {
    let (id, process) = instance::pick(bed, random)?;
    let filled = fill(directory)?;
    process.signal(Signal::KILL);
    let time = milliseconds(random, 500, 2500);
    let what = format!(
        "filled the disk of {of} for {} ms and killed instance {id}",
        time.as_millis()
    );
    Ok(Injected::alone(what).of_instance(id).healed(time, move |_, _| {
        fs::remove_file(&filled).with_context(|| format!("cannot remove {}", filled.display()))
    }))
}

/// No room for events.
pub(super) struct EventLog;

impl Fault for EventLog {
    fn name(&self) -> &'static str {
        "event-log-full"
    }

    fn about(&self) -> &'static str {
        "fills the disk of the event log for up to 2.5 s and kills an instance"
    }

    fn inject(&self, bed: &mut Bed, random: &mut Random, _guard: &mut Guard) -> Result<Injected> {
        let directory = bed.event_log();
        without_room(bed, random, &directory, "the event log")
    }
}

/// No room for images.
pub(super) struct ImageStore;

impl Fault for ImageStore {
    fn name(&self) -> &'static str {
        "image-store-full"
    }

    fn about(&self) -> &'static str {
        "fills the disk of the image store for up to 2.5 s and kills an instance"
    }

    fn inject(&self, bed: &mut Bed, random: &mut Random, _guard: &mut Guard) -> Result<Injected> {
        let directory = bed.state_dir();
        without_room(bed, random, &directory, "the image store")
    }
}
