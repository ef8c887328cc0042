//! The stage: what a container is made from, laid out where its first process can reach it.
//!
//! That process is root in its user namespace and an ordinary user of the host: it cannot enter directories that are
//! closed to others, nor mount what only the host's root may. So the process that makes a container takes a mount
//! namespace of its own and covers one directory with a file system in memory ([`Stage::place`]). There it puts,
//! under fixed names, the root file system of the image and all other mounts of the container, device files and the
//! user namespace. No other process sees them, and they end with the container.
//!
//! Each container has [`IDS`] ids of the host for itself. Owners are mapped: files of the host's root belong to the
//! container's root, and vice versa.

use std::ffi::CString;
use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use libcontainer::syscall::linux::{
    AT_EMPTY_PATH, MOUNT_ATTR_NODEV, MOUNT_ATTR_NOSUID, MOUNT_ATTR_RDONLY, MountAttr,
};
use libcontainer::syscall::syscall::create_syscall;
use model::InterfaceSetup;
use rustix::fs::{
    CWD, FileType, Gid, Mode, OFlags, ResolveFlags, Uid, chown, fchown, makedev, mknodat, openat2,
};
use rustix::io::Errno;
use rustix::mount::{
    MountFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags, mount, mount_bind, mount_change,
    move_mount, open_tree,
};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, WaitOptions, waitpid};
use rustix::thread::{UnshareFlags, unshare_unsafe};
use serde::{Deserialize, Serialize};

use crate::seccomp::Calls;
use crate::{EngineError, Owner, users};

/// Ids of the host that a container has to itself: as many as images use.
pub(crate) const IDS: u32 = 65_536;
/// The first id of all containers. Ids of users are lower (below 60,000), so are those of users' and systemd's
/// containers (100,000 to 0x6fff_ffff); systemd's foreign ids are higher (0x7ffe_0000).
const FIRST_ID: u32 = 0x7000_0000;
/// Containers that have ids at the same time.
pub(crate) const MAX_CONTAINERS: u32 = (0x7ffe_0000 - FIRST_ID) / IDS;

/// Directories that every Linux has, of which one is covered. What lies there on the host stays as it is.
const PLACES: [&str; 7] = ["/mnt", "/srv", "/media", "/opt", "/home", "/root", "/boot"];
/// The kernel's attribute for a mount whose owners are mapped (`mount_setattr(2)`), which libcontainer does not name.
const MOUNT_ATTR_IDMAP: u64 = 0x0010_0000;
/// Names on the stage.
const ROOTFS: &str = "rootfs";
const USER: &str = "user";
const HUGEPAGES: &str = "hugepages";
const IMAGE: &str = "image";
const CHANGES: &str = "changes";
/// What an ordinary program may change of its image's files and write beside them, in MiB and in files. It counts as
/// memory of the container.
const CHANGES_MIB: u32 = 256;
const CHANGES_FILES: u32 = 65_536;

/// Something of the machine that is shown to a container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Shown {
    /// On this machine.
    pub(crate) source: PathBuf,
    pub(crate) read_only: bool,
    /// Whether owners are mapped. What belongs to the container's ids already is shown as it is.
    pub(crate) mapped: bool,
}

/// What is laid out for one container. Written by the engine into its bundle, and carried out by the launcher.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Stage {
    /// The directory that is covered.
    pub(crate) place: PathBuf,
    /// What the container's root is on the host; `None` for one that has the host's ids.
    pub(crate) first_id: Option<u32>,
    /// Who runs its program, by the container's own ids.
    pub(crate) user: Owner,
    /// Where its program starts, and commands beside it.
    pub(crate) directory: PathBuf,
    /// The root file system of its image.
    pub(crate) rootfs: PathBuf,
    /// What it is shown beside that, each by its number.
    pub(crate) shown: Vec<Shown>,
    /// Character devices, each by its number: major and minor.
    pub(crate) devices: Vec<(u32, u32)>,
    /// Whether it sees the machine's hugepages.
    pub(crate) hugepages: bool,
    /// The system calls that it may make.
    #[serde(default)]
    pub(crate) calls: Calls,
    /// What an ordinary program gets beside that.
    #[serde(default)]
    pub(crate) ordinary: Option<Ordinary>,
    /// Interfaces for whole frames, which are set up for it.
    #[serde(default)]
    pub(crate) frames: Vec<InterfaceSetup>,
}

/// What a program gets that knows nothing of inco: it finds the kernel's network, and a root file system that it can
/// write to. Nothing that it writes outlives its container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Ordinary {
    /// The interfaces of its network.
    pub(crate) ports: Vec<InterfaceSetup>,
    /// Files that are written for it: where, and what.
    pub(crate) files: Vec<(PathBuf, String)>,
}

/// The ids of the container with this number, from 0: the first of [`IDS`].
pub(crate) const fn first_id(number: u32) -> u32 {
    FIRST_ID + number * IDS
}

/// A directory that may be covered: one that leads to nothing that is needed while a container is made.
pub(crate) fn place(run_dir: &Path) -> Result<PathBuf, EngineError> {
    let leads_elsewhere = |place: &Path| {
        fs::symlink_metadata(place).is_ok_and(|data| data.is_dir())
            && !fs::canonicalize(run_dir).is_ok_and(|dir| dir.starts_with(place))
    };
    let mut places = PLACES.iter().map(PathBuf::from);
    places
        .find(|place| leads_elsewhere(place))
        .ok_or_else(|| EngineError::BadSpec {
            what: "a stage",
            reason: format!(
                "none of the directories {} is there: make /mnt",
                PLACES.join(", ")
            ),
        })
}

impl Stage {
    /// The interfaces that are moved into its network and set up there.
    pub(crate) fn ports(&self) -> Vec<InterfaceSetup> {
        let ordinary = self.ordinary.iter().flat_map(|of| &of.ports);
        ordinary.chain(&self.frames).cloned().collect()
    }

    /// Where the root file system is once it is laid out.
    pub(crate) fn rootfs_path(&self) -> PathBuf {
        self.place.join(ROOTFS)
    }

    /// Where what is shown is.
    pub(crate) fn shown_path(&self, number: usize) -> PathBuf {
        self.place.join(format!("shown{number}"))
    }

    /// Where a device file is.
    pub(crate) fn device_path(&self, number: usize) -> PathBuf {
        self.place.join(format!("device{number}"))
    }

    /// Where hugepages are.
    pub(crate) fn hugepages_path(&self) -> PathBuf {
        self.place.join(HUGEPAGES)
    }

    /// Where the container's user namespace is, if it has one.
    pub(crate) fn user_path(&self) -> Option<PathBuf> {
        self.first_id.map(|_| self.place.join(USER))
    }

    /// Who runs its program, by the ids of the host.
    pub(crate) fn owner(&self) -> Owner {
        self.user.on_host(self.first_id)
    }

    /// The stage of a bundle.
    pub(crate) fn of_bundle(bundle: &Path) -> Result<Stage, String> {
        let path = bundle.join(FILE);
        let text = fs::read(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        serde_json::from_slice(&text).map_err(|error| format!("{}: {error}", path.display()))
    }

    /// Covers the place, with an empty directory for the root file system: enough to run a command in a container.
    /// The calling process must have one thread; it stays in its own mount namespace.
    pub(crate) fn cover(&self) -> Result<(), String> {
        own_mounts()?;
        self.raise()
    }

    /// Lays everything out for the container of that bundle. As [`Stage::cover`].
    pub(crate) fn set_up(&self, bundle: &Path) -> Result<(), String> {
        let user = self.first_id.map(user_namespace).transpose()?;
        own_mounts()?;
        // All of it before the place is covered: it may lie there.
        let cannot = |why: &dyn std::fmt::Display| format!("show {}: {why}", self.rootfs.display());
        let (Some(image), Some(root)) = (self.rootfs.parent(), self.rootfs.file_name()) else {
            return Err(cannot(&"it is no image's"));
        };
        // Held until the end: the note is what keeps its files from then on.
        let image = users::take(image, bundle).map_err(|error| cannot(&error))?;
        let root = Path::new(root);
        let rootfs = show(image.as_fd(), root, false, user.as_ref())
            // Not every file system can map owners. World-readable files can be read without that.
            .or_else(|_| show(image.as_fd(), root, false, None))
            .map_err(|errno| cannot(&errno))?;
        let mut shown = Vec::new();
        for of in &self.shown {
            let path = of.source.display();
            let tree = show(CWD, &of.source, of.read_only, user.as_ref().filter(|_| of.mapped)).map_err(
                |errno| match errno {
                    Errno::INVAL if of.mapped => format!(
                        "show {path}: its file system cannot map owners (it takes Linux 5.12, for memory 6.3); write \
                         user_namespace = false, or take another file system"
                    ),
                    errno => format!("show {path}: {errno}"),
                },
            )?;
            let is_dir = of
                .source
                .metadata()
                .map_err(|error| format!("{path}: {error}"))?
                .is_dir();
            shown.push((tree, is_dir));
        }
        self.raise()?;
        match &self.ordinary {
            None => put(&rootfs, &self.rootfs_path(), true)?,
            Some(ordinary) => self.put_writable(&rootfs, &ordinary.files)?,
        }
        for (number, (tree, is_dir)) in shown.iter().enumerate() {
            put(tree, &self.shown_path(number), *is_dir)?;
        }
        let owner = self.owner();
        for (number, &(major, minor)) in self.devices.iter().enumerate() {
            let path = self.device_path(number);
            let mode = Mode::RUSR | Mode::WUSR;
            mknodat(CWD, &path, FileType::CharacterDevice, mode, makedev(major, minor))
                .and_then(|()| {
                    chown(
                        &path,
                        Some(Uid::from_raw(owner.uid)),
                        Some(Gid::from_raw(owner.gid)),
                    )
                })
                .map_err(|errno| format!("make device file {major}:{minor}: {errno}"))?;
        }
        let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
        if self.hugepages {
            let options = format!("uid={},gid={},mode=0700", owner.uid, owner.gid);
            mount_at(&self.hugepages_path(), "hugetlbfs", flags, &options)?;
        }
        if let (Some(user), Some(path)) = (&user, self.user_path()) {
            File::create(&path).map_err(|error| format!("{}: {error}", path.display()))?;
            mount_bind(format!("/proc/self/fd/{}", user.as_raw_fd()), &path)
                .map_err(|errno| format!("keep the user namespace: {errno}"))?;
            // A user namespace may mount these only where they are fully visible. A service manager may have covered
            // parts of the host's.
            for system in ["proc", "sysfs"] {
                mount_at(&self.place.join(system), system, flags, "")?;
            }
        }
        Ok(())
    }

    /// Puts the root file system under one in memory that takes what is changed, and writes files there.
    fn put_writable(&self, rootfs: &OwnedFd, files: &[(PathBuf, String)]) -> Result<(), String> {
        let [image, changes] = [IMAGE, CHANGES].map(|name| self.place.join(name));
        put(rootfs, &image, true)?;
        let options = format!("size={CHANGES_MIB}m,nr_inodes={CHANGES_FILES},mode=0755");
        let flags = MountFlags::NOSUID | MountFlags::NODEV;
        mount_at(&changes, "tmpfs", flags, &options)?;
        let root = Owner::ROOT.on_host(self.first_id);
        let root = (Some(Uid::from_raw(root.uid)), Some(Gid::from_raw(root.gid)));
        let [upper, work] = ["upper", "work"].map(|name| changes.join(name));
        for dir in [&upper, &work] {
            fs::create_dir(dir).map_err(|error| format!("{}: {error}", dir.display()))?;
        }
        // The root directory itself is the upper one.
        let mode = fs::metadata(&image).map(|data| data.permissions());
        mode.and_then(|mode| fs::set_permissions(&upper, mode))
            .and_then(|()| chown(&upper, root.0, root.1).map_err(Into::into))
            .map_err(|error| format!("{}: {error}", upper.display()))?;
        let [lower, upper, work] = [&image, &upper, &work].map(|path| path.display());
        let options = format!("lowerdir={lower},upperdir={upper},workdir={work}");
        let writable = self.rootfs_path();
        mount("overlay", &writable, "overlay", flags, text(&options)?.as_c_str())
            .map_err(|errno| format!("mount an overlay, for a writable root file system: {errno}"))?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let writable =
            rustix::fs::open(&writable, flags, Mode::empty()).map_err(|errno| errno.to_string())?;
        for (path, text) in files {
            // Links of the image lead where they would in the container, and a pipe of it keeps nobody waiting.
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NONBLOCK | OFlags::CLOEXEC;
            let mode = Mode::from_raw_mode(0o644);
            openat2(&writable, path, flags, mode, ResolveFlags::IN_ROOT)
                .and_then(|file| fchown(&file, root.0, root.1).map(|()| File::from(file)))
                .map_err(Into::into)
                .and_then(|mut file| file.write_all(text.as_bytes()))
                .map_err(|error| format!("write {} of the container: {error}", path.display()))?;
        }
        Ok(())
    }

    fn raise(&self) -> Result<(), String> {
        let flags = MountFlags::NOSUID | MountFlags::NOEXEC;
        // Every user may enter it, none may list it.
        let options = c"mode=0711,size=64k,nr_inodes=1024";
        mount("tmpfs", &self.place, "tmpfs", flags, options)
            .map_err(|errno| format!("cover {}: {errno}", self.place.display()))?;
        let rootfs = self.rootfs_path();
        fs::create_dir(&rootfs).map_err(|error| format!("{}: {error}", rootfs.display()))
    }
}

/// Mounts a file system on a directory that it makes.
fn mount_at(at: &Path, kind: &str, flags: MountFlags, options: &str) -> Result<(), String> {
    let words = |error: &dyn std::fmt::Display| format!("mount {kind} at {}: {error}", at.display());
    fs::create_dir(at).map_err(|error| words(&error))?;
    mount(kind, at, kind, flags, text(options)?.as_c_str()).map_err(|errno| words(&errno))
}

fn text(options: &str) -> Result<CString, String> {
    CString::new(options).map_err(|error| error.to_string())
}

/// Its file in a bundle.
pub(crate) const FILE: &str = "stage.json";

/// Gives this process a mount namespace of its own, from which nothing is seen elsewhere.
fn own_mounts() -> Result<(), String> {
    // SAFETY: only the table of mounts is unshared; descriptors stay as they are.
    #[expect(unsafe_code)]
    unsafe { unshare_unsafe(UnshareFlags::NEWNS) }
        .and_then(|()| mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC))
        .map_err(|errno| format!("a mount namespace: {errno}"))
}

/// A detached copy of an existing mount, file or directory, with nosuid and nodev; owners are mapped by that
/// namespace.
fn show(
    from: BorrowedFd<'_>,
    source: &Path,
    read_only: bool,
    user: Option<&OwnedFd>,
) -> Result<OwnedFd, Errno> {
    let tree = open_tree(
        from,
        source,
        OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC,
    )?;
    let mut set = MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV;
    if read_only {
        set |= MOUNT_ATTR_RDONLY;
    }
    if user.is_some() {
        set |= MOUNT_ATTR_IDMAP;
    }
    let attributes = MountAttr {
        attr_set: set,
        attr_clr: 0,
        propagation: 0,
        userns_fd: user.map_or(0, |user| user.as_raw_fd() as u64),
    };
    create_syscall()
        .mount_setattr(
            tree.as_fd(),
            Path::new(""),
            AT_EMPTY_PATH,
            &attributes,
            size_of::<MountAttr>(),
        )
        .map_err(|error| errno_of(&error))?;
    Ok(tree)
}

fn errno_of(error: &libcontainer::syscall::SyscallError) -> Errno {
    let errno = match error {
        libcontainer::syscall::SyscallError::Nix(errno) => *errno as i32,
        _ => libc::EIO,
    };
    Errno::from_raw_os_error(errno)
}

/// Puts a mount where its name on the stage is.
fn put(tree: &OwnedFd, at: &Path, is_dir: bool) -> Result<(), String> {
    let words = |error: &dyn std::fmt::Display| format!("put {}: {error}", at.display());
    if !at.exists() {
        let made = if is_dir {
            fs::create_dir(at)
        } else {
            File::create(at).map(drop)
        };
        made.map_err(|error| words(&error))?;
    }
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    move_mount(tree, "", CWD, at, flags).map_err(|errno| words(&errno))
}

/// A new user namespace in which the host's ids from `first` on are those from 0 on.
fn user_namespace(first: u32) -> Result<OwnedFd, String> {
    let words = |what: &str, error: &dyn std::fmt::Display| {
        format!("a user namespace: {what}: {error} (/proc/sys/user/max_user_namespaces may be 0)")
    };
    let pipe = || pipe_with(PipeFlags::CLOEXEC).map_err(|errno| words("pipe", &errno));
    let ((entered, tells), (waits, goes)) = (pipe()?, pipe()?);
    // SAFETY: this process has one thread, so that the child's copy of memory is whole; the child never
    // returns from this branch.
    #[expect(unsafe_code)]
    let forked = unsafe { libc::fork() };
    if forked == 0 {
        drop(goes);
        // SAFETY: only who one is is unshared; descriptors stay as they are.
        #[expect(unsafe_code)]
        let unshared = unsafe { unshare_unsafe(UnshareFlags::NEWUSER) };
        let errno = unshared.map_or_else(Errno::raw_os_error, |()| 0);
        let _ = rustix::io::write(&tells, &errno.to_ne_bytes());
        drop(tells);
        // Until the other end is closed.
        let _ = rustix::io::read(&waits, &mut [0_u8; 1]);
        std::process::exit(0);
    }
    drop((tells, waits));
    let child = Pid::from_raw(forked).filter(|_| forked > 0);
    let child = child.ok_or_else(|| words("fork", &std::io::Error::last_os_error()))?;
    let taken = || -> Result<OwnedFd, String> {
        let mut errno = [0; 4];
        File::from(entered)
            .read_exact(&mut errno)
            .map_err(|error| words("it died", &error))?;
        match i32::from_ne_bytes(errno) {
            0 => {}
            errno => return Err(words("unshare", &Errno::from_raw_os_error(errno))),
        }
        let of = |file: &str| format!("/proc/{}/{file}", child.as_raw_nonzero());
        for map in ["uid_map", "gid_map"] {
            fs::write(of(map), format!("0 {first} {IDS}\n")).map_err(|error| words(map, &error))?;
        }
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        rustix::fs::open(of("ns/user"), flags, Mode::empty()).map_err(|errno| words("open", &errno))
    };
    let taken = taken();
    drop(goes);
    let _ = waitpid(Some(child), WaitOptions::empty());
    taken
}

/// Major and minor number of a character device.
pub(crate) fn device(path: &Path) -> Result<(u32, u32), EngineError> {
    use std::os::unix::fs::FileTypeExt as _;
    let of = fs::metadata(path).map_err(|error| EngineError::io("look at", path, &error))?;
    if !of.file_type().is_char_device() {
        return Err(EngineError::BadSpec {
            what: "this device",
            reason: format!("{} is no character device", path.display()),
        });
    }
    Ok((rustix::fs::major(of.rdev()), rustix::fs::minor(of.rdev())))
}
