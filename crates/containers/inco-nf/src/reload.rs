//! Reads configurations again when their files change, and compiles them, on a thread of its own: packets go on
//! meanwhile.

use std::fs;
use std::io::{self, Read as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use anyhow::{Context as _, Result};
use functions::{Chain, Compiled, Entry, Setup};

use crate::options::{Configuration, Named};
use crate::say;

/// How often files are looked at. One that has just changed is read when it has stayed the same for as long, because its
/// writer may not be done.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// The longest file of a configuration, in bytes: a million routes have less than half of it.
const FILE_BYTES_LIMIT: u64 = 64 << 20;

/// Reads the text of a configuration.
pub(crate) fn read(configuration: &Configuration) -> Result<String> {
    match configuration {
        Configuration::Text(text) => Ok(text.clone()),
        Configuration::File(path) => read_file(path),
    }
}

fn read_file(path: &Path) -> Result<String> {
    let read = || -> io::Result<String> {
        let mut text = String::new();
        let file = fs::File::open(path)?;
        if file.take(FILE_BYTES_LIMIT + 1).read_to_string(&mut text)? as u64 > FILE_BYTES_LIMIT {
            return Err(io::Error::other(format!(
                "it is longer than {} MiB",
                FILE_BYTES_LIMIT >> 20
            )));
        }
        Ok(text)
    };
    read().with_context(|| format!("cannot read {}", path.display()))
}

/// What tells that a file has changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Version {
    inode: u64,
    bytes: u64,
    modified: (i64, i64),
}

impl Version {
    /// That of a file; the same for all that are not there.
    fn of(path: &Path) -> Version {
        fs::metadata(path).map_or_else(
            |_| Version::default(),
            |file| Version {
                inode: file.ino(),
                bytes: file.size(),
                modified: (file.mtime(), file.mtime_nsec()),
            },
        )
    }
}

/// A file of a configuration.
struct Watched {
    stage: usize,
    entry: &'static Entry,
    path: PathBuf,
    /// As it was when it was read last, and when it was looked at last.
    read: Version,
    seen: Version,
}

impl Watched {
    /// Whether it is to be read: it has changed, and is not being written.
    fn has_changed(&mut self) -> bool {
        let version = Version::of(&self.path);
        let is_stable = version == self.seen;
        self.seen = version;
        is_stable && version != self.read && version != Version::default()
    }

    fn compile(&mut self, setup: &Setup) -> Result<Compiled> {
        // Before it is read: a change meanwhile is another one.
        self.read = Version::of(&self.path);
        let text = read_file(&self.path)?;
        let compiled = self.entry.compile(&text, setup);
        compiled.with_context(|| self.path.display().to_string())
    }
}

/// What the thread has made of a changed file: of which stage, and its configuration if it is right.
type Reread = (usize, Option<Compiled>);

/// The loop's end of the thread.
pub(crate) struct Reloads {
    made: Receiver<Reread>,
    /// To the thread, which frees them.
    retired: Sender<Compiled>,
    /// Readable when there is something.
    wake: UnixStream,
    /// Changed files that were wrong.
    pub(crate) failed: u64,
}

impl Reloads {
    /// Starts the thread, if a function has a file.
    pub(crate) fn start(stages: &[Named], setup: Setup) -> Result<Option<Reloads>> {
        let files = stages
            .iter()
            .enumerate()
            .filter_map(|(stage, of)| match &of.configuration {
                Configuration::File(path) => Some(Watched {
                    stage,
                    entry: of.entry,
                    path: path.clone(),
                    read: Version::of(path),
                    seen: Version::of(path),
                }),
                Configuration::Text(_) => None,
            });
        let files: Vec<Watched> = files.collect();
        if files.is_empty() {
            return Ok(None);
        }
        let (asked, ask) = UnixStream::pair()?;
        asked.set_read_timeout(Some(LOOK_EVERY))?;
        signal_hook::low_level::pipe::register(signal_hook::consts::SIGHUP, ask)?;
        let (wake, waker) = UnixStream::pair()?;
        wake.set_nonblocking(true)?;
        waker.set_nonblocking(true)?;
        let (make, made) = channel();
        let (retired, retire) = channel();
        std::thread::Builder::new()
            .name("inco-nf-reload".to_owned())
            .spawn(move || watch(files, setup, &asked, &make, &waker, &retire))?;
        Ok(Some(Reloads {
            made,
            retired,
            wake,
            failed: 0,
        }))
    }

    /// Puts in place what the thread has made.
    pub(crate) fn apply(&mut self, chain: &mut Chain) {
        let mut bytes = [0; 64];
        while matches!((&self.wake).read(&mut bytes), Ok(1..)) {}
        while let Ok((stage, compiled)) = self.made.try_recv() {
            match compiled.map(|compiled| chain.reload(stage, compiled)) {
                Some(Ok(old)) => {
                    // The thread lives as long as this process.
                    let _ = self.retired.send(old);
                }
                Some(Err(_)) | None => self.failed += 1,
            }
        }
    }
}

impl AsFd for Reloads {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

/// Looks at the files until the loop has ended.
fn watch(
    mut files: Vec<Watched>,
    setup: Setup,
    asked: &UnixStream,
    make: &Sender<Reread>,
    waker: &UnixStream,
    retire: &Receiver<Compiled>,
) {
    loop {
        let mut byte = [0; 64];
        let mut asked = asked;
        let is_asked = matches!(asked.read(&mut byte), Ok(1..));
        retire.try_iter().for_each(drop);
        for file in &mut files {
            if !file.has_changed() && !is_asked {
                continue;
            }
            let name = file.entry.about().name;
            let made = match file.compile(&setup) {
                Ok(compiled) => {
                    say(format_args!("{name}: reads {} again", file.path.display()));
                    Some(compiled)
                }
                Err(error) => {
                    say(format_args!("{name}: keeps its configuration: {error:#}"));
                    None
                }
            };
            if make.send((file.stage, made)).is_err() {
                return;
            }
            // A full pipe wakes the loop as well.
            let _ = io::Write::write(&mut &*waker, b".");
        }
    }
}
