//! Which containers have an image: it may be replaced or removed meanwhile, and its files go once none has it.
//!
//! A container notes its bundle in the directory of the image whose files it is shown. A bundle goes with its
//! container, so nobody takes a note back: one whose bundle has gone counts no more.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::{self, Write as _};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use rustix::fs::{Dir, FlockOperation, Mode, OFlags, flock, mkdirat, openat, unlinkat};
use rustix::io::Errno;

/// The directory with the notes, in that of an image.
const NOTES: &str = "users";

/// Opens the directory of an image, and notes that the container of `bundle` has it. What is shown must come from this
/// very directory: another one may be in its place by then.
///
/// # Errors
/// The directory is not there. A note that cannot be written is none: the disk may be full.
pub(crate) fn take(image: &Path, bundle: &Path) -> io::Result<File> {
    loop {
        let held = File::open(image)?;
        // Waits for one that is just removing it.
        flock(&held, FlockOperation::LockShared)?;
        if held.metadata()?.nlink() > 0 {
            if let Err(error) = note(&held, bundle) {
                tracing::warn!(image = %image.display(), %error, "what replaces this image takes its files away");
            }
            return Ok(held);
        }
    }
}

fn note(held: &File, bundle: &Path) -> io::Result<()> {
    match mkdirat(held, NOTES, Mode::RWXU) {
        Err(Errno::EXIST) | Ok(()) => {}
        Err(errno) => return Err(errno.into()),
    }
    let directory = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let notes = openat(held, NOTES, directory, Mode::empty())?;
    for (name, of) in notes_in(&notes)? {
        if !of.exists() {
            match unlinkat(&notes, name, rustix::fs::AtFlags::empty()) {
                // Another container does the same.
                Err(Errno::NOENT) | Ok(()) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }
    let mut hash = DefaultHasher::new();
    bundle.hash(&mut hash);
    let name = format!("{:016x}", hash.finish());
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC;
    let mut file = File::from(openat(&notes, name, flags, Mode::RUSR | Mode::WUSR)?);
    file.write_all(bundle.as_os_str().as_bytes())
}

/// The notes, each with its name and the bundle that it names.
fn notes_in(notes: impl AsFd) -> io::Result<Vec<(std::ffi::CString, std::path::PathBuf)>> {
    let mut found = Vec::new();
    for entry in Dir::read_from(&notes)? {
        let name = entry?.file_name().to_owned();
        if name.to_bytes().starts_with(b".") {
            continue;
        }
        let opened = openat(
            &notes,
            name.as_c_str(),
            OFlags::RDONLY | OFlags::CLOEXEC,
            Mode::empty(),
        );
        // It may just have gone.
        let Ok(file) = opened else { continue };
        let bundle = io::read_to_string(File::from(file)).unwrap_or_default();
        found.push((name, Path::new(OsStr::from_bytes(bundle.as_bytes())).to_owned()));
    }
    Ok(found)
}

/// Removes the directory of an image that nobody finds by its name any more, unless a container has it, or a build
/// fills it. A later build tries again.
///
/// # Errors
/// It cannot be removed.
pub(crate) fn discard(image: &Path) -> io::Result<()> {
    let is_gone = |error: &io::Error| error.kind() == io::ErrorKind::NotFound;
    let held = match File::open(image) {
        Err(error) if is_gone(&error) => return Ok(()),
        other => other?,
    };
    if flock(&held, FlockOperation::NonBlockingLockExclusive).is_err() {
        return Ok(());
    }
    let notes = File::open(image.join(NOTES));
    if notes.is_ok_and(|notes| notes_in(notes).is_ok_and(|all| all.iter().any(|(_, of)| of.exists()))) {
        return Ok(());
    }
    match fs::remove_dir_all(image) {
        // Somebody else does the same.
        Err(error) if !is_gone(&error) => Err(error),
        _ => Ok(()),
    }
}
