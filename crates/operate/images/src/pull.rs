//! Gets images from registries into the store. Attempts at one image, of any process, share the work: one downloads,
//! and the others wait for it.

use std::fs::{self, File};
use std::io::IsTerminal as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant, SystemTime};

use anyhow::Context as _;
use configuration::show_size;
use engine::ImageRef;
use engine::image::{Image, Imported, Store};
use registry::{Options, Progress, Reference, Remote};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::{TESTPMD_IMAGE, in_store, remarks, store};

/// How long files of a broken download wait for the next attempt.
const LEFTOVERS_AGE: Duration = Duration::from_secs(24 * 3600);
/// How often a terminal shows how far a download is.
const SHOW_EVERY: Duration = Duration::from_millis(200);
/// What built-in images are named by: no registry is asked for them.
const OWN_PREFIX: &str = "inco/";

/// An image that was asked for.
#[derive(Clone, Debug)]
pub struct Pulled {
    /// What it is.
    pub image: Image,
    /// Whether it was in the store as the registry has it.
    pub is_current: bool,
}

/// Whether an image of that name may come from a registry: not one that `inco image build` or `import` makes.
pub fn may_be_pulled(name: &str) -> bool {
    let name = ImageRef::from(name).with_tag();
    !name.starts_with(OWN_PREFIX)
        && name.trim_end_matches(":latest") != TESTPMD_IMAGE
        && Reference::parse(&name).is_ok()
}

/// Where an image of that name would come from.
pub fn registry_of(name: &str) -> Option<String> {
    Reference::parse(name)
        .ok()
        .map(|reference| reference.registry().to_owned())
}

/// Downloads an image into the store, or replaces the one that is there. `say` gets a line for each step.
///
/// # Errors
/// The registry does not give it, it is no image for this machine, or the store cannot be written.
pub fn pull(name: &ImageRef, options: &Options, say: &(dyn Fn(&str) + Sync)) -> anyhow::Result<Pulled> {
    pull_into(&store(), &downloads(), name, options, say)
}

/// Where downloads are until they are images.
fn downloads() -> PathBuf {
    Store::state_dir().join("downloads")
}

fn pull_into(
    store: &Store,
    downloads: &Path,
    name: &ImageRef,
    options: &Options,
    say: &(dyn Fn(&str) + Sync),
) -> anyhow::Result<Pulled> {
    let reference = Reference::parse(&name.0)?;
    let started_unix_ms = clock::unix_ms();
    let of_store = |error: std::io::Error| in_store(error.into());
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(downloads)
        .map_err(of_store)?;
    remove_leftovers(downloads);
    let name = ImageRef(name.with_tag());
    let place = downloads.join(name.0.replace('/', "%2F"));
    let (_lock, has_waited) = lock(&place, || {
        say(&format!("{name}: another inco downloads it; waiting for it"));
    })
    .map_err(of_store)?;
    let there = store.resolve(&name).ok().map(|(_, image)| image);
    if let Some(image) = there
        .clone()
        .filter(|image| has_waited && image.created_unix_ms >= started_unix_ms)
    {
        return Ok(Pulled {
            image,
            is_current: false,
        });
    }
    let remote = Remote::find(&reference, options)?;
    if let Some(image) = there.filter(|image| image.digest.as_deref() == Some(remote.digest())) {
        let _ = fs::remove_dir_all(&place);
        return Ok(Pulled {
            image,
            is_current: true,
        });
    }
    let size = show_size(remote.bytes());
    say(&format!(
        "{name}: downloading {size} from {}",
        reference.registry()
    ));
    let shown = Shown::new(&name.0);
    let downloaded = remote.download(&place, &|progress| shown.show(progress));
    shown.end();
    downloaded
        .with_context(|| format!("cannot download {name}; what has arrived is used by the next attempt"))?;
    let Imported { image, left_out } =
        store
            .import_download(&name, &place, remote.digest())
            .map_err(|error| {
                // It would fail again in the same way.
                let _ = fs::remove_dir_all(&place);
                match error {
                    engine::EngineError::NoProgram => anyhow::anyhow!("{name} names no program to run"),
                    engine::EngineError::BadImage { reason, .. } => {
                        anyhow::anyhow!("{name} cannot be used: {reason}")
                    }
                    other => in_store(other.into()),
                }
            })?;
    remarks(&left_out)
        .iter()
        .for_each(|remark| say(&format!("{name}: {remark}")));
    let _ = fs::remove_dir_all(&place);
    Ok(Pulled {
        image,
        is_current: false,
    })
}

/// Makes and locks the directory of a download. Calls `waits` if another one has it; tells that, too.
fn lock(place: &Path, waits: impl Fn()) -> std::io::Result<(File, bool)> {
    let mut has_waited = false;
    loop {
        match fs::DirBuilder::new().mode(0o700).create(place) {
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        let opened = match File::open(place) {
            // It ended just now.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            other => other?,
        };
        match flock(&opened, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => {
                if !has_waited {
                    waits();
                }
                has_waited = true;
                flock(&opened, FlockOperation::LockExclusive)?;
            }
            other => other?,
        }
        // One that is done removes its directory.
        let is_there = fs::metadata(place).is_ok_and(|now| {
            opened
                .metadata()
                .is_ok_and(|locked| (now.dev(), now.ino()) == (locked.dev(), locked.ino()))
        });
        if is_there {
            return Ok((opened, has_waited));
        }
    }
}

/// Removes what broken downloads left a day ago.
fn remove_leftovers(downloads: &Path) {
    for entry in fs::read_dir(downloads).into_iter().flatten().flatten() {
        let place = entry.path();
        let is_old = fs::metadata(&place).and_then(|of| of.modified()).is_ok_and(|at| {
            SystemTime::now()
                .duration_since(at)
                .is_ok_and(|age| age > LEFTOVERS_AGE)
        });
        let is_free = || {
            File::open(&place).is_ok_and(|of| flock(&of, FlockOperation::NonBlockingLockExclusive).is_ok())
        };
        if is_old && is_free() {
            let _ = fs::remove_dir_all(&place);
        }
    }
}

/// A line on a terminal that tells how far a download is.
struct Shown<'a> {
    name: &'a str,
    is_terminal: bool,
    last: Mutex<Option<Instant>>,
}

impl Shown<'_> {
    fn new(name: &str) -> Shown<'_> {
        Shown {
            name,
            is_terminal: std::io::stderr().is_terminal(),
            last: Mutex::new(None),
        }
    }

    fn show(&self, progress: Progress) {
        if !self.is_terminal {
            return;
        }
        let mut last = self
            .last
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        let is_due = last.is_none_or(|at| at.elapsed() >= SHOW_EVERY) || progress.done == progress.bytes;
        if is_due {
            *last = Some(Instant::now());
            display::output::rewrite(&line(self.name, progress));
        }
    }

    fn end(&self) {
        if self.is_terminal {
            display::output::rewrite("");
        }
    }
}

fn line(name: &str, Progress { done, bytes }: Progress) -> String {
    let percent = done.saturating_mul(100).checked_div(bytes).unwrap_or(100);
    format!("{name}: {percent:>3} % of {}", show_size(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_of_inco_come_from_no_registry() {
        for name in [
            "inco/forward",
            "inco/forward:2",
            "testpmd",
            "testpmd:latest",
            "Bad Name",
            "a//b",
        ] {
            assert!(!may_be_pulled(name), "{name}");
        }
        for name in [
            "nginx",
            "nginx:1.27",
            "docker.io/library/nginx",
            "localhost:5000/inco/forward",
            "testpmd:2",
        ] {
            assert!(may_be_pulled(name), "{name}");
        }
        assert_eq!(registry_of("nginx").as_deref(), Some("docker.io"));
        assert_eq!(registry_of("localhost:5000/a").as_deref(), Some("localhost:5000"));
    }

    #[test]
    fn the_share_of_a_download_is_shown() {
        let of = |done, bytes| line("nginx:1", Progress { done, bytes });
        assert_eq!(of(0, 1 << 20), "nginx:1:   0 % of 1MiB");
        assert_eq!(of(1 << 19, 1 << 20), "nginx:1:  50 % of 1MiB");
        assert!(of(0, 0).contains("100 %"));
    }

    #[test]
    fn one_at_a_time_has_the_directory_and_the_next_one_a_new_one() {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path().join("a");
        let (first, has_waited) = lock(&place, || {}).unwrap();
        assert!(!has_waited);
        fs::write(place.join("file"), "x").unwrap();
        std::thread::scope(|scope| {
            let (tell, told) = std::sync::mpsc::channel();
            let second = scope.spawn(|| lock(&place, move || tell.send(()).unwrap()).unwrap());
            // It waits.
            told.recv().unwrap();
            fs::remove_dir_all(&place).unwrap();
            drop(first);
            let (_second, has_waited) = second.join().unwrap();
            assert!(has_waited);
            assert_eq!(fs::read_dir(&place).unwrap().count(), 0);
        });
    }

    #[test]
    fn old_leftovers_go_and_those_in_use_stay() {
        let directory = tempfile::tempdir().unwrap();
        let old = SystemTime::now() - LEFTOVERS_AGE - Duration::from_secs(1);
        let mut held = Vec::new();
        for (name, is_old, is_held) in [("old", true, false), ("new", false, false), ("held", true, true)] {
            let place = directory.path().join(name);
            fs::create_dir(&place).unwrap();
            fs::write(place.join("part"), "x").unwrap();
            let opened = File::open(&place).unwrap();
            if is_old {
                opened.set_times(fs::FileTimes::new().set_modified(old)).unwrap();
            }
            if is_held {
                flock(&opened, FlockOperation::LockExclusive).unwrap();
                held.push(opened);
            }
        }
        remove_leftovers(directory.path());
        let mut left: Vec<_> = fs::read_dir(directory.path())
            .unwrap()
            .map(|of| of.unwrap().file_name())
            .collect();
        left.sort();
        assert_eq!(left, ["held", "new"]);
    }
}
