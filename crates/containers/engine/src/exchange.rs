//! The directory that a container shares with inco: the container creates its sockets there, and inco connects to
//! them.
//!
//! It is a small file system of its own in memory, so that a container that fills it affects no other. It is mounted
//! where both a container engine in the first mount namespace and the next run of inco can see it. Only root of the
//! host may enter it.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;

use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};

use crate::{EngineError, Owner};

/// Its size limit, in bytes. Sockets take no space.
pub const EXCHANGE_BYTES: u64 = 1 << 20;
/// Its limit of files, including itself: two sockets of a function and some more.
pub const EXCHANGE_FILES: u64 = 64;

/// Creates the directory for a container whose program runs as this user of the host. Replaces a directory that an
/// earlier container of that name left. Without the right to mount, it is a plain directory.
///
/// # Errors
/// [`EngineError::Io`].
pub(crate) fn make(dir: &Path, owner: Owner) -> Result<(), EngineError> {
    remove(dir)?;
    let failed = |error: &io::Error| EngineError::io("make directory", dir, error);
    let private = fs::Permissions::from_mode(0o700);
    fs::create_dir_all(dir).map_err(|error| failed(&error))?;
    // Those of all containers lie in one directory.
    for dir in [dir.parent(), Some(dir)].into_iter().flatten() {
        fs::set_permissions(dir, private.clone()).map_err(|error| failed(&error))?;
    }
    if !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    let Owner { uid, gid } = owner;
    let options = format!("size={EXCHANGE_BYTES},nr_inodes={EXCHANGE_FILES},mode=0700,uid={uid},gid={gid}");
    let options = std::ffi::CString::new(options).unwrap_or_default();
    let mounted = || {
        let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
        mount("inco", dir, "tmpfs", flags, options.as_c_str())
    };
    let at = |errno: Errno| EngineError::io("mount", dir, &errno.into());
    // The directory may be in this namespace only, as where inco has a private /run.
    let found_there = in_first_namespace(mounted).is_ok();
    if !is_mount(dir) {
        if found_there {
            // Nothing comes from that namespace to this one.
            let _ = in_first_namespace(|| unmount(dir, UnmountFlags::DETACH));
        }
        mounted().map_err(at)?;
    }
    Ok(())
}

/// Removes the directory and its content. A missing one is no error.
///
/// # Errors
/// [`EngineError::Io`].
pub fn remove(dir: &Path) -> Result<(), EngineError> {
    if is_mount(dir) {
        let away = || unmount(dir, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW);
        let gone = in_first_namespace(away);
        if is_mount(dir) {
            gone.or_else(|_| away())
                .map_err(|errno| EngineError::io("unmount", dir, &errno.into()))?;
        }
    }
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(EngineError::io("remove", dir, &error)),
        _ => Ok(()),
    }
}

/// Removes a directory that contains such directories.
///
/// # Errors
/// As [`remove`].
pub fn remove_all(instances: &Path) -> Result<(), EngineError> {
    for entry in fs::read_dir(instances).into_iter().flatten().flatten() {
        remove(&entry.path())?;
    }
    remove(instances)
}

/// Whether the directory is a mount point.
fn is_mount(dir: &Path) -> bool {
    let device = |path: &Path| fs::symlink_metadata(path).map(|data| data.dev()).ok();
    let above = dir.parent().and_then(device);
    above.is_some() && device(dir).is_some_and(|own| Some(own) != above)
}

/// Runs `work` in the mount namespace of process 1 if this process has another one and may enter it.
fn in_first_namespace(work: impl Fn() -> Result<(), Errno> + Send + Sync) -> Result<(), Errno> {
    let name = |of: &str| fs::read_link(format!("/proc/{of}/ns/mnt")).ok();
    let first = File::open("/proc/1/ns/mnt");
    let (Ok(first), false) = (first, name("1") == name("self")) else {
        return work();
    };
    // On a thread of its own, which ends there.
    std::thread::scope(|scope| {
        let there = || {
            // SAFETY: only the working directory and the root are unshared; descriptors stay as they are.
            #[expect(unsafe_code)]
            unsafe { unshare_unsafe(UnshareFlags::FS) }?;
            move_into_link_name_space(first.as_fd(), Some(LinkNameSpaceType::Mount))?;
            work()
        };
        let thread = std::thread::Builder::new().spawn_scoped(scope, there);
        let thread = thread.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::AGAIN))?;
        thread.join().unwrap_or(Err(Errno::IO))
    })
}
