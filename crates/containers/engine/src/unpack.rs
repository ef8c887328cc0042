//! Fills a folder with untrusted files: members of an archive, layers of an image, another folder. Nothing is created
//! outside the folder: the kernel resolves each path beneath it (`openat2`), and no link is followed.
//!
//! Set-user-id and set-group-id bits and file capabilities are removed, since the files are on the host. Device
//! files, pipes and sockets are left out. [`Limits`] bound everything.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{
    AtFlags, Dir, FileType, Gid, Mode, OFlags, ResolveFlags, Uid, chownat, fchmod, fchown, linkat, mkdirat,
    openat2, symlinkat, unlinkat,
};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use tar::{Entries, Entry, EntryType, PaxExtensions};

use crate::EngineError;
use crate::stage::IDS;

/// Members that an image may have: files, folders and links. A distribution's full installation has a third of it.
pub(crate) const MAX_MEMBERS: u64 = 1_000_000;
/// Bytes in a member's path: what the kernel takes (`PATH_MAX` without its NUL).
pub(crate) const MAX_PATH_BYTES: usize = 4_095;
/// Parts of a member's path. The deepest trees of real images have about 40.
pub(crate) const MAX_PATH_PARTS: usize = 128;
/// Bytes of all files of an image.
pub(crate) const MAX_UNPACKED_BYTES: u64 = 16 << 30;
/// Bytes of a header that extends another one (long names, PAX records): these are read into memory.
const MAX_EXTENSION_BYTES: u64 = 64 << 10;
/// Headers that extend one member. Writers use up to three.
const MAX_EXTENSIONS: u32 = 8;
/// Bytes of a file that is read as text: the users of an image.
const MAX_TEXT_BYTES: u64 = 1 << 20;
/// What a layer names a file by that it takes away from the layers below.
const WHITEOUT: &[u8] = b".wh.";
/// What it names all of a folder by.
const OPAQUE: &[u8] = b".wh..wh..opq";
/// What its writer names its own notes by.
const NOTES: &[u8] = b".wh..wh.";

/// How much may be unpacked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    pub(crate) members: u64,
    pub(crate) bytes: u64,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            members: MAX_MEMBERS,
            bytes: MAX_UNPACKED_BYTES,
        }
    }
}

/// What was not taken over as it was.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeftOut {
    /// Device files, pipes, sockets and what else is no file, folder or link.
    pub special_files: u64,
    /// Set-user-id and set-group-id bits, and files with capabilities.
    pub privileged_bits: u64,
}

/// Whose a file is, by number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

impl Owner {
    /// The container's root.
    pub const ROOT: Owner = Owner { uid: 0, gid: 0 };

    /// The same one on the host, for a container whose first id is this there; without one, ids are the host's.
    pub(crate) fn on_host(self, first_id: Option<u32>) -> Owner {
        let first_id = first_id.unwrap_or(0);
        Owner {
            uid: first_id + self.uid,
            gid: first_id + self.gid,
        }
    }

    /// Whether every container has these ids.
    pub(crate) fn is_mapped(self) -> bool {
        self.uid < IDS && self.gid < IDS
    }
}

/// A folder that is being filled.
#[derive(Debug)]
pub(crate) struct Tree<'a> {
    root: OwnedFd,
    /// What it is filled from, for errors.
    source: &'a Path,
    limits: Limits,
    members: u64,
    bytes: u64,
    left_out: LeftOut,
    /// Whether files may be given to others.
    is_root: bool,
    /// The folder of the last member: the next one is mostly in the same.
    last: Option<(PathBuf, OwnedFd)>,
}

impl<'a> Tree<'a> {
    /// Fills this folder, which exists, from `source`.
    ///
    /// # Errors
    /// [`EngineError::Io`] where it cannot be opened.
    pub(crate) fn open(dir: &Path, source: &'a Path, limits: Limits) -> Result<Tree<'a>, EngineError> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let root = rustix::fs::open(dir, flags, Mode::empty()).map_err(|errno| EngineError::Io {
            action: "open",
            path: dir.to_owned(),
            errno,
        })?;
        Ok(Tree {
            root,
            source,
            limits,
            members: 0,
            bytes: 0,
            left_out: LeftOut::default(),
            is_root: rustix::process::geteuid().is_root(),
            last: None,
        })
    }

    /// The size of the files that were made, in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// What was left out so far.
    pub(crate) fn left_out(&self) -> &LeftOut {
        &self.left_out
    }

    /// A folder; one that is there gets the mode and the owner.
    pub(crate) fn add_dir(&mut self, path: &Path, mode: u32, owner: Owner) -> Result<(), EngineError> {
        self.count(path)?;
        let parts = self.parts(path)?;
        let dir = self.dir(&parts)?;
        // To be filled, its owner must get into it.
        let mode = self.permissions(mode, 0o1777) | Mode::RWXU;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        rustix::fs::openat(&dir, ".", flags, Mode::empty())
            .and_then(|dir| {
                self.give(&dir, owner)?;
                fchmod(dir, mode)
            })
            .map_err(|errno| self.failed("make", path, errno))
    }

    /// A file with this content; one that is there is replaced.
    pub(crate) fn add_file(
        &mut self,
        path: &Path,
        mode: u32,
        owner: Owner,
        content: &mut dyn Read,
    ) -> Result<(), EngineError> {
        self.count(path)?;
        let mode = self.permissions(mode, 0o777);
        let file = self.place(path, |dir, name| {
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            rustix::fs::openat(dir, name, flags, Mode::RUSR | Mode::WUSR)
        })?;
        let mut file = File::from(file);
        let room = self.limits.bytes.saturating_sub(self.bytes);
        let written = io::copy(&mut content.take(room.saturating_add(1)), &mut file)
            .and_then(|written| file.flush().map(|()| written))
            .map_err(|error| EngineError::io("unpack", &self.source.join(path), &error))?;
        if written > room {
            let limit = self.limits.bytes;
            return Err(self.refused(format!("it has more than {limit} bytes of files")));
        }
        self.bytes += written;
        self.give(&file, owner)
            .and_then(|()| fchmod(&file, mode))
            .map_err(|errno| self.failed("set the permissions of", path, errno))
    }

    /// Gives a file to its owner in the container.
    fn give(&self, file: impl AsFd, owner: Owner) -> Result<(), Errno> {
        match self.given(owner) {
            Some((uid, gid)) => fchown(file, Some(uid), Some(gid)),
            None => Ok(()),
        }
    }

    /// The owner that a file gets on disk; `None` to leave it to this process, which Docker and the mapping of owners
    /// treat as the container's root.
    fn given(&self, owner: Owner) -> Option<(Uid, Gid)> {
        let may = self.is_root && owner != Owner::ROOT && owner.is_mapped();
        may.then(|| (Uid::from_raw(owner.uid), Gid::from_raw(owner.gid)))
    }

    /// A symbolic link, wherever it points: nothing here follows it. What is there is replaced.
    pub(crate) fn add_symlink(
        &mut self,
        path: &Path,
        target: &Path,
        owner: Owner,
    ) -> Result<(), EngineError> {
        self.count(path)?;
        let owner = self.given(owner);
        self.place(path, |dir, name| {
            symlinkat(target, dir, name)?;
            match owner {
                Some((uid, gid)) => chownat(dir, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW),
                None => Ok(()),
            }
        })
    }

    /// Another name of a file that is there.
    pub(crate) fn add_hard_link(&mut self, path: &Path, target: &Path) -> Result<(), EngineError> {
        self.count(path)?;
        let parts = self.parts(target)?;
        let Some((name, parents)) = parts.split_last() else {
            return Err(self.refused(format!("{} is a link to its root", path.display())));
        };
        let from = self.dir(parents)?;
        self.place(path, |dir, new| linkat(&from, *name, dir, new, AtFlags::empty()))
    }

    /// A member of an archive, whatever it is.
    fn add(&mut self, member: &Member, content: &mut dyn Read) -> Result<(), EngineError> {
        self.left_out.privileged_bits += u64::from(member.has_capabilities);
        let Member {
            path,
            target,
            mode,
            owner,
            ..
        } = member;
        let leads_nowhere = target.as_os_str().is_empty();
        let no_mode = || self.refused(format!("{} has no permissions", path.display()));
        let mode = mode.ok_or_else(no_mode);
        match member.kind {
            EntryType::Regular | EntryType::Continuous => self.add_file(path, mode?, *owner, content),
            EntryType::Directory => self.add_dir(path, mode?, *owner),
            EntryType::Symlink | EntryType::Link if leads_nowhere => {
                Err(self.refused(format!("the link {} leads nowhere", path.display())))
            }
            EntryType::Symlink => self.add_symlink(path, target, *owner),
            EntryType::Link => self.add_hard_link(path, target),
            _ => self.leave_out(path),
        }
    }

    /// What is no file, folder or link.
    pub(crate) fn leave_out(&mut self, path: &Path) -> Result<(), EngineError> {
        self.left_out.special_files += 1;
        self.count(path)
    }

    /// Whether nothing is at that path, and something can be put there.
    pub(crate) fn is_free(&self, path: &Path) -> bool {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        openat2(&self.root, path, flags, Mode::empty(), BENEATH).map(drop) == Err(Errno::NOENT)
    }

    /// The text of a file, if there is one at that path, and no link on the way.
    ///
    /// # Errors
    /// [`EngineError::BadImage`] where it is longer than a mebibyte; [`EngineError::Io`].
    pub(crate) fn text(&self, path: &Path) -> Result<Option<String>, EngineError> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match openat2(&self.root, path, flags, Mode::empty(), BENEATH) {
            Ok(file) => File::from(file),
            Err(Errno::NOENT | Errno::LOOP | Errno::NOTDIR) => return Ok(None),
            Err(errno) => return Err(self.failed("read", path, errno)),
        };
        let mut bytes = Vec::new();
        file.take(MAX_TEXT_BYTES + 1)
            .read_to_end(&mut bytes)
            .map_err(|error| EngineError::io("read", &self.source.join(path), &error))?;
        if bytes.len() as u64 > MAX_TEXT_BYTES {
            return Err(self.refused(format!(
                "its {} has more than {MAX_TEXT_BYTES} bytes",
                path.display()
            )));
        }
        Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
    }

    /// Removes what is at that path, with all below it; nothing where nothing is.
    pub(crate) fn remove(&mut self, path: &Path) -> Result<(), EngineError> {
        let parts = self.parts(path)?;
        let Some((name, parents)) = parts.split_last() else {
            return Err(self.refused("it takes its own root away".to_owned()));
        };
        let Some(dir) = self.dir_there(parents)? else {
            return Ok(());
        };
        // The folder that is remembered may be below.
        self.last = None;
        remove_at(&dir, name).map_err(|errno| self.failed("remove", path, errno))
    }

    /// Empties the folder at that path; nothing where there is none.
    pub(crate) fn clear(&mut self, path: &Path) -> Result<(), EngineError> {
        let parts = self.parts(path)?;
        let Some(dir) = self.dir_there(&parts)? else {
            return Ok(());
        };
        self.last = None;
        clear(&dir).map_err(|errno| self.failed("empty", path, errno))
    }

    /// Removes what a member of a layer cannot be put over: a folder where it is none, anything else where it is one.
    fn make_way(&mut self, path: &Path, is_dir: bool) -> Result<(), EngineError> {
        let parts = self.parts(path)?;
        let Some((name, parents)) = parts.split_last() else {
            return Ok(());
        };
        let Some(dir) = self.dir_there(parents)? else {
            return Ok(());
        };
        let there = match rustix::fs::statat(&dir, *name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(there) => FileType::from_raw_mode(there.st_mode),
            Err(Errno::NOENT) => return Ok(()),
            Err(errno) => return Err(self.failed("look at", path, errno)),
        };
        if (there == FileType::Directory) == is_dir {
            return Ok(());
        }
        self.last = None;
        remove_at(&dir, name).map_err(|errno| self.failed("replace", path, errno))
    }

    fn count(&mut self, path: &Path) -> Result<(), EngineError> {
        self.members += 1;
        if self.members > self.limits.members {
            let limit = self.limits.members;
            return Err(self.refused(format!(
                "it has more than {limit} members ({} is one more)",
                path.display()
            )));
        }
        Ok(())
    }

    fn permissions(&mut self, mode: u32, kept: u32) -> Mode {
        let bits = u64::from((mode & 0o6000).count_ones());
        self.left_out.privileged_bits += bits;
        Mode::from_raw_mode(mode & kept)
    }

    /// The parts of a path, as one relative to the root.
    fn parts<'p>(&self, path: &'p Path) -> Result<Vec<&'p OsStr>, EngineError> {
        let length = path.as_os_str().len();
        if length > MAX_PATH_BYTES {
            return Err(self.refused(format!(
                "the path of a member has {length} bytes, {MAX_PATH_BYTES} may be"
            )));
        }
        let mut parts = Vec::new();
        for part in path.components() {
            match part {
                Component::RootDir | Component::CurDir => {}
                Component::Normal(name) => parts.push(name),
                Component::ParentDir | Component::Prefix(_) => {
                    return Err(self.refused(format!("the path {} contains \"..\"", path.display())));
                }
            }
        }
        if parts.len() > MAX_PATH_PARTS {
            let count = parts.len();
            return Err(self.refused(format!(
                "the path of a member has {count} parts, {MAX_PATH_PARTS} may be"
            )));
        }
        Ok(parts)
    }

    /// The folder at this path; it and those above it are made where they are missing.
    fn dir(&mut self, parts: &[&OsStr]) -> Result<OwnedFd, EngineError> {
        let path: PathBuf = parts.iter().collect();
        if let Some((last, dir)) = &self.last
            && *last == path
        {
            return copy_of(dir).map_err(|errno| self.failed("open", &path, errno));
        }
        let dir = match step(&self.root, if parts.is_empty() { Path::new(".") } else { &path }) {
            Err(Errno::NOENT) => self.make_dirs(parts),
            other => other,
        };
        let dir = dir.map_err(|errno| self.in_the_way(&path, errno))?;
        let copy = copy_of(&dir).map_err(|errno| self.failed("open", &path, errno))?;
        self.last = Some((path, copy));
        Ok(dir)
    }

    /// The folder at this path, if it is there.
    fn dir_there(&self, parts: &[&OsStr]) -> Result<Option<OwnedFd>, EngineError> {
        let path: PathBuf = parts.iter().collect();
        match step(&self.root, if parts.is_empty() { Path::new(".") } else { &path }) {
            Ok(dir) => Ok(Some(dir)),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(self.in_the_way(&path, errno)),
        }
    }

    fn in_the_way(&self, path: &Path, errno: Errno) -> EngineError {
        match errno {
            Errno::LOOP | Errno::NOTDIR => {
                let path = path.display();
                self.refused(format!(
                    "it has members below {path}, where a link or a file is in the way"
                ))
            }
            other => self.failed("make", path, other),
        }
    }

    fn make_dirs(&self, parts: &[&OsStr]) -> Result<OwnedFd, Errno> {
        let mut dir = copy_of(&self.root)?;
        for part in parts {
            match mkdirat(&dir, *part, Mode::RWXU) {
                // Not by the mask of this process.
                Ok(()) => rustix::fs::chmodat(&dir, *part, Mode::from_raw_mode(0o755), AtFlags::empty())?,
                Err(Errno::EXIST) => {}
                Err(errno) => return Err(errno),
            }
            dir = step(&dir, Path::new(part))?;
        }
        Ok(dir)
    }

    /// Makes something of that name in its folder, in place of what is there.
    fn place<T>(
        &mut self,
        path: &Path,
        make: impl Fn(&OwnedFd, &OsStr) -> Result<T, Errno>,
    ) -> Result<T, EngineError> {
        let parts = self.parts(path)?;
        let Some((name, parents)) = parts.split_last() else {
            return Err(self.refused("a member that is no folder is in the place of its root".to_owned()));
        };
        let dir = self.dir(parents)?;
        let made = match make(&dir, name) {
            Err(Errno::EXIST) => {
                // The folder that is remembered may be the one that goes.
                self.last = None;
                unlinkat(&dir, *name, AtFlags::empty())
                    .or_else(|errno| match errno {
                        Errno::ISDIR | Errno::PERM => unlinkat(&dir, *name, AtFlags::REMOVEDIR),
                        other => Err(other),
                    })
                    .and_then(|()| make(&dir, name))
            }
            other => other,
        };
        made.map_err(|errno| self.failed("make", path, errno))
    }

    fn failed(&self, action: &'static str, path: &Path, errno: Errno) -> EngineError {
        EngineError::Io {
            action,
            path: self.source.join(path.strip_prefix("/").unwrap_or(path)),
            errno,
        }
    }

    pub(crate) fn refused(&self, reason: String) -> EngineError {
        EngineError::BadImage {
            path: self.source.to_owned(),
            reason,
        }
    }
}

/// Below the root, and through no link of any kind.
const BENEATH: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_SYMLINKS)
    .union(ResolveFlags::NO_MAGICLINKS);

fn step(dir: &OwnedFd, path: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    openat2(dir, path, flags, Mode::empty(), BENEATH)
}

fn copy_of(dir: &OwnedFd) -> Result<OwnedFd, Errno> {
    rustix::io::fcntl_dupfd_cloexec(dir, 3)
}

/// Removes an entry of a folder with all below it. The recursion is as deep as a path has parts, [`MAX_PATH_PARTS`]
/// at most.
fn remove_at(dir: &OwnedFd, name: &OsStr) -> Result<(), Errno> {
    match unlinkat(dir, name, AtFlags::empty()) {
        Err(Errno::ISDIR | Errno::PERM) => {}
        Err(Errno::NOENT) => return Ok(()),
        other => return other,
    }
    clear(&step(dir, Path::new(name))?)?;
    unlinkat(dir, name, AtFlags::REMOVEDIR)
}

fn clear(dir: &OwnedFd) -> Result<(), Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let entries = Dir::new(rustix::fs::openat(dir, ".", flags, Mode::empty())?)?;
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name();
        if name != c"." && name != c".." {
            remove_at(dir, OsStr::from_bytes(name.to_bytes()))?;
        }
    }
    Ok(())
}

/// A path as it stands in a header.
fn path_of(bytes: &[u8]) -> PathBuf {
    // Some writers end it with the NUL of their language.
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    PathBuf::from(OsStr::from_bytes(bytes.get(..end).unwrap_or_default()))
}

/// What headers of their own say of the next member.
#[derive(Debug, Default)]
struct Extension {
    path: Option<PathBuf>,
    target: Option<PathBuf>,
    size: Option<u64>,
    uid: Option<u64>,
    gid: Option<u64>,
    has_capabilities: bool,
}

impl Extension {
    fn read(&mut self, source: &Path, kind: EntryType, bytes: &[u8]) -> Result<(), EngineError> {
        match kind {
            EntryType::GNULongName => self.path = Some(path_of(bytes)),
            EntryType::GNULongLink => self.target = Some(path_of(bytes)),
            _ => {
                for record in PaxExtensions::new(bytes) {
                    let record = record.map_err(|error| bad(source, format!("a PAX record: {error}")))?;
                    let number = || record.value().ok().and_then(|text| text.parse().ok());
                    match record.key_bytes() {
                        b"path" => self.path = Some(path_of(record.value_bytes())),
                        b"linkpath" => self.target = Some(path_of(record.value_bytes())),
                        b"size" => self.size = number(),
                        b"uid" => self.uid = number(),
                        b"gid" => self.gid = number(),
                        b"SCHILY.xattr.security.capability" => self.has_capabilities = true,
                        key if key.starts_with(b"GNU.sparse") => return Err(sparse(source)),
                        _ => {}
                    }
                }
            }
        }
        Ok(())
    }
}

fn bad(source: &Path, reason: String) -> EngineError {
    EngineError::BadImage {
        path: source.to_owned(),
        reason,
    }
}

fn sparse(source: &Path) -> EngineError {
    bad(
        source,
        "it has a sparse file: pack it again without --sparse".to_owned(),
    )
}

/// A member of an archive, as its headers describe it.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) path: PathBuf,
    /// What a link leads to; empty where its header does not say.
    pub(crate) target: PathBuf,
    pub(crate) kind: EntryType,
    mode: Option<u32>,
    owner: Owner,
    has_capabilities: bool,
    /// Where its content is in the archive, and how long it is, in bytes.
    pub(crate) at: u64,
    pub(crate) size: u64,
}

/// Visits the members of an archive, in their order.
///
/// # Errors
/// [`EngineError::BadImage`] for what no archive of an image has; those of `visit`.
pub(crate) fn walk<R: Read>(
    source: &Path,
    entries: Entries<'_, R>,
    mut visit: impl FnMut(Member, &mut Entry<'_, R>) -> Result<(), EngineError>,
) -> Result<(), EngineError> {
    let broken = |error: io::Error| bad(source, format!("the archive is broken: {error}"));
    let mut next = Extension::default();
    let mut extensions = 0;
    // Raw: what extends a header is read here, where it is bounded.
    for entry in entries.raw(true) {
        let mut entry = entry.map_err(broken)?;
        let kind = entry.header().entry_type();
        let size = entry.header().entry_size().map_err(broken)?;
        let is_global = kind == EntryType::XGlobalHeader;
        if is_global
            || matches!(
                kind,
                EntryType::GNULongName | EntryType::GNULongLink | EntryType::XHeader
            )
        {
            extensions += 1;
            if extensions > MAX_EXTENSIONS {
                let reason = format!("a member has more than {MAX_EXTENSIONS} headers");
                return Err(bad(source, reason));
            }
            if size > MAX_EXTENSION_BYTES {
                let reason = format!("a header has {size} bytes, {MAX_EXTENSION_BYTES} may be");
                return Err(bad(source, reason));
            }
            // A global one is about the archive.
            if !is_global {
                let mut bytes = Vec::new();
                entry.read_to_end(&mut bytes).map_err(broken)?;
                next.read(source, kind, &bytes)?;
            }
            continue;
        }
        extensions = 0;
        let said = std::mem::take(&mut next);
        if said.size.is_some_and(|said| said != size) {
            let reason = "the size of a member is said in two ways".to_owned();
            return Err(bad(source, reason));
        }
        if kind == EntryType::GNUSparse {
            return Err(sparse(source));
        }
        let header = entry.header();
        // Many leave out what does not matter to them.
        let id = |said: Option<u64>, own: io::Result<u64>| {
            let id = said.or(own.ok()).unwrap_or_default();
            u32::try_from(id).unwrap_or(u32::MAX)
        };
        let member = Member {
            path: said.path.unwrap_or_else(|| path_of(&header.path_bytes())),
            target: said
                .target
                .or_else(|| Some(path_of(&header.link_name_bytes()?)))
                .unwrap_or_default(),
            kind,
            mode: header.mode().ok(),
            owner: Owner {
                uid: id(said.uid, header.uid()),
                gid: id(said.gid, header.gid()),
            },
            has_capabilities: said.has_capabilities,
            at: entry.raw_file_position(),
            size,
        };
        visit(member, &mut entry)?;
    }
    Ok(())
}

/// Fills the tree with the members of an archive. All belong to the container's root.
///
/// # Errors
/// [`EngineError::BadImage`] for what no archive of an image has; [`EngineError::Io`].
pub(crate) fn unpack<R: Read>(tree: &mut Tree<'_>, entries: Entries<'_, R>) -> Result<(), EngineError> {
    let source = tree.source;
    walk(source, entries, |member, content| {
        let member = Member {
            owner: Owner::ROOT,
            ..member
        };
        tree.add(&member, content)
    })
}

/// Applies the whiteouts of a layer: the first half of its application. It never removes what the layer itself adds,
/// whatever the order in the archive.
///
/// # Errors
/// As [`unpack`].
pub(crate) fn remove_by_layer<R: Read>(
    tree: &mut Tree<'_>,
    entries: Entries<'_, R>,
) -> Result<(), EngineError> {
    let source = tree.source;
    walk(source, entries, |member, _| {
        let Some(name) = whiteout_of(&member.path) else {
            return Ok(());
        };
        tree.count(&member.path)?;
        let folder = member.path.parent().unwrap_or(Path::new(""));
        if name == OPAQUE {
            tree.clear(folder)
        } else if name.starts_with(NOTES) {
            Ok(())
        } else {
            let removed = OsStr::from_bytes(name.strip_prefix(WHITEOUT).unwrap_or_default());
            if removed.is_empty() || removed == "." || removed == ".." {
                return Err(tree.refused(format!("{} removes nothing", member.path.display())));
            }
            tree.remove(&folder.join(removed))
        }
    })
}

/// Fills the tree with what a layer brings: the second half. It replaces what is there, also a folder by a file.
///
/// # Errors
/// As [`unpack`].
pub(crate) fn add_by_layer<R: Read>(tree: &mut Tree<'_>, entries: Entries<'_, R>) -> Result<(), EngineError> {
    let source = tree.source;
    walk(source, entries, |member, content| {
        if whiteout_of(&member.path).is_some() {
            return Ok(());
        }
        tree.make_way(&member.path, member.kind == EntryType::Directory)?;
        tree.add(&member, content)
    })
}

/// The name of a member that takes something away.
fn whiteout_of(path: &Path) -> Option<&[u8]> {
    let name = path.file_name()?.as_bytes();
    name.starts_with(WHITEOUT).then_some(name)
}

/// Fills the tree with what a folder holds, below `at` in the tree.
///
/// # Errors
/// As [`unpack`].
pub(crate) fn copy(tree: &mut Tree<'_>, from: &Path, at: &Path) -> Result<(), EngineError> {
    let read = |path: &Path, error: &io::Error| EngineError::io("read", path, error);
    let data = fs::metadata(from).map_err(|e| read(from, &e))?;
    tree.add_dir(at, data.mode(), Owner::ROOT)?;
    for entry in fs::read_dir(from).map_err(|e| read(from, &e))? {
        let entry = entry.map_err(|e| read(from, &e))?;
        let (source, path) = (entry.path(), at.join(entry.file_name()));
        let kind = entry.file_type().map_err(|e| read(&source, &e))?;
        if kind.is_dir() {
            copy(tree, &source, &path)?;
        } else if kind.is_symlink() {
            let target = fs::read_link(&source).map_err(|e| read(&source, &e))?;
            tree.add_symlink(&path, &target, Owner::ROOT)?;
        } else if kind.is_file() {
            let no_link = OFlags::NOFOLLOW.bits() as i32;
            let mut options = fs::OpenOptions::new();
            let mut file = options
                .read(true)
                .custom_flags(no_link)
                .open(&source)
                .map_err(|e| read(&source, &e))?;
            let mode = file.metadata().map_err(|e| read(&source, &e))?.mode();
            tree.add_file(&path, mode, Owner::ROOT, &mut file)?;
        } else {
            tree.leave_out(&path)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use proptest::prelude::*;

    use super::*;

    /// A member of an archive: what it is, its path, its mode, and its content or what it points to.
    type Member<'a> = (EntryType, &'a str, u32, &'a str);

    fn archive(members: &[Member<'_>]) -> Vec<u8> {
        let mut builder = tar::Builder::new(Vec::new());
        for &(kind, path, mode, text) in members {
            let mut header = tar::Header::new_gnu();
            header.set_entry_type(kind);
            header.set_mode(mode);
            let is_link = matches!(kind, EntryType::Link | EntryType::Symlink);
            let content = if is_link { "" } else { text };
            header.set_size(content.len() as u64);
            // As bytes: the builder's own way refuses what an attacker would write.
            if path.len() > 100 {
                let mut long = tar::Header::new_gnu();
                long.set_entry_type(EntryType::GNULongName);
                long.set_size(path.len() as u64);
                long.set_cksum();
                builder.append(&long, path.as_bytes()).unwrap();
            }
            let name = path.as_bytes().get(..path.len().min(100)).unwrap();
            header.as_mut_bytes()[..name.len()].copy_from_slice(name);
            if is_link {
                header.as_mut_bytes()[157..157 + text.len()].copy_from_slice(text.as_bytes());
            }
            header.set_cksum();
            builder.append(&header, content.as_bytes()).unwrap();
        }
        builder.into_inner().unwrap()
    }

    fn unpack_bytes(tree: &mut Tree<'_>, bytes: &[u8]) -> Result<(), EngineError> {
        unpack(tree, tar::Archive::new(bytes).entries().unwrap())
    }

    fn fill_with(limits: Limits, bytes: &[u8]) -> (tempfile::TempDir, Result<(u64, LeftOut), EngineError>) {
        let dir = tempfile::tempdir().unwrap();
        let mut tree = Tree::open(dir.path(), Path::new("a.tar"), limits).unwrap();
        let filled = unpack_bytes(&mut tree, bytes).map(|()| (tree.bytes(), tree.left_out().clone()));
        (dir, filled)
    }

    fn fill(bytes: &[u8]) -> (tempfile::TempDir, Result<(u64, LeftOut), EngineError>) {
        fill_with(Limits::default(), bytes)
    }

    fn mode(path: &Path) -> u32 {
        fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777
    }

    #[test]
    fn files_folders_and_links_are_made_as_they_are_packed() {
        let (dir, filled) = fill(&archive(&[
            (EntryType::Directory, "./", 0o755, ""),
            (EntryType::Directory, "usr/bin/", 0o755, ""),
            (EntryType::Regular, "usr/bin/a", 0o750, "first"),
            (EntryType::Regular, "/usr/bin/a", 0o755, "program"),
            (EntryType::Symlink, "bin", 0o777, "usr/bin"),
            (EntryType::Symlink, "outside", 0o777, "/etc/passwd"),
            (EntryType::Link, "again", 0o755, "usr/bin/a"),
            (EntryType::Directory, "tmp", 0o1777, ""),
            (EntryType::Regular, "deep/er/file", 0o600, "x"),
            (EntryType::Directory, "empty", 0o755, ""),
            (EntryType::Symlink, "empty", 0o777, "tmp"),
        ]));
        assert_eq!(filled.unwrap(), (5 + 7 + 1, LeftOut::default()));
        let at = |path: &str| dir.path().join(path);
        assert_eq!(fs::read_to_string(at("usr/bin/a")).unwrap(), "program");
        assert_eq!(fs::read_link(at("bin")).unwrap(), Path::new("usr/bin"));
        assert_eq!(
            fs::metadata(at("again")).unwrap().ino(),
            fs::metadata(at("usr/bin/a")).unwrap().ino()
        );
        assert_eq!(
            (mode(&at("tmp")), mode(&at("usr/bin/a")), mode(&at("deep"))),
            (0o1777, 0o755, 0o755)
        );
        assert_eq!(fs::read_link(at("empty")).unwrap(), Path::new("tmp"));
        assert_eq!(fs::read_link(at("outside")).unwrap(), Path::new("/etc/passwd"));
    }

    #[test]
    fn no_link_leads_out_and_none_is_followed() {
        let outside = tempfile::tempdir().unwrap();
        fs::write(outside.path().join("secret"), "secret").unwrap();
        let there = outside.path().to_str().unwrap();
        let secret = format!("{there}/secret");
        let climbing = format!("../../../../../../..{secret}");
        let link = (EntryType::Symlink, "a", 0o777, there);
        let within = (EntryType::Symlink, "a", 0o777, "b");
        let folder = (EntryType::Directory, "b", 0o755, "");
        let file = |path| (EntryType::Regular, path, 0o644, "x");
        for (members, word) in [
            (vec![link, file("a/new")], "a link or a file is in the way"),
            (
                vec![link, (EntryType::Directory, "a/new", 0o755, "")],
                "in the way",
            ),
            (
                vec![link, (EntryType::Symlink, "a/new", 0o777, "x")],
                "in the way",
            ),
            (vec![link, (EntryType::Directory, "a", 0o700, "")], "in the way"),
            (vec![folder, within, file("a/new")], "in the way"),
            (vec![file("a"), file("a/new")], "in the way"),
            (
                vec![link, (EntryType::Link, "b", 0o644, "a/secret")],
                "in the way",
            ),
            (vec![(EntryType::Link, "b", 0o644, &climbing)], "\"..\""),
            (vec![(EntryType::Link, "b", 0o644, &secret)], "No such file"),
            (vec![file(&climbing)], "\"..\""),
            (vec![file("..")], "\"..\""),
            (vec![file("/")], "in the place of its root"),
            (vec![folder, file("b/x"), file("b")], "not empty"),
        ] {
            let (_dir, filled) = fill(&archive(&members));
            let error = filled.unwrap_err().to_string();
            assert!(error.contains(word), "{members:?}: {error}");
        }
        // A file in the place of a link is a file of its own.
        let link = (EntryType::Symlink, "a", 0o777, secret.as_str());
        let (dir, filled) = fill(&archive(&[link, file("a")]));
        filled.unwrap();
        assert_eq!(fs::read_to_string(dir.path().join("a")).unwrap(), "x");
        assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 1);
        assert_eq!(fs::read_to_string(secret).unwrap(), "secret");
    }

    #[test]
    fn what_is_too_much_is_refused_with_its_limit() {
        let deep = "d/".repeat(1_000) + "x";
        let long = "y".repeat(MAX_PATH_BYTES + 1);
        let of = |path| archive(&[(EntryType::Regular, path, 0o644, "")]);
        let file = |path: &'static str| (EntryType::Regular, path, 0o644, "12345678");
        let small = Limits {
            members: 3,
            bytes: 16,
        };
        let mut huge = tar::Header::new_gnu();
        huge.set_entry_type(EntryType::XHeader);
        huge.set_size(1 << 40);
        huge.set_cksum();
        let mut headers = Vec::new();
        for _ in 0..=MAX_EXTENSIONS {
            let mut header = tar::Header::new_ustar();
            header.set_entry_type(EntryType::XHeader);
            header.set_size(0);
            header.set_cksum();
            headers.extend_from_slice(header.as_bytes());
        }
        for (bytes, word) in [
            (headers, "more than 8 headers"),
            (of(&deep), "128 may be"),
            (of(&long), "4095 may be"),
            (archive(&[file("a"), file("b"), file("c")]), "more than 16 bytes"),
            (
                archive(&[(EntryType::Directory, "a", 0o755, ""); 4]),
                "more than 3 members",
            ),
            (
                archive(&[(EntryType::Char, "a", 0o755, ""); 4]),
                "more than 3 members",
            ),
            (huge.as_bytes().to_vec(), "65536 may be"),
            (archive(&[(EntryType::GNUSparse, "a", 0o644, "")]), "--sparse"),
        ] {
            let (_dir, filled) = fill_with(small, &bytes);
            let error = filled.unwrap_err().to_string();
            assert!(
                error.starts_with("cannot import a.tar: ") && error.contains(word),
                "{error}"
            );
        }
        let (_dir, filled) = fill_with(small, &archive(&[file("a"), file("b")]));
        assert_eq!(filled.unwrap().0, 16, "as much as may be");
    }

    #[test]
    fn privileged_bits_and_special_files_are_left_out_and_counted() {
        let (dir, filled) = fill(&archive(&[
            (EntryType::Regular, "su", 0o4755, "x"),
            (EntryType::Regular, "both", 0o6711, "x"),
            (EntryType::Directory, "mail", 0o2775, ""),
            (EntryType::Char, "dev/mem", 0o666, ""),
            (EntryType::Block, "dev/sda", 0o666, ""),
            (EntryType::Fifo, "pipe", 0o666, ""),
        ]));
        let left_out = LeftOut {
            special_files: 3,
            privileged_bits: 4,
        };
        assert_eq!(filled.unwrap().1, left_out);
        let at = |path: &str| dir.path().join(path);
        assert_eq!(
            (mode(&at("su")), mode(&at("both")), mode(&at("mail"))),
            (0o755, 0o711, 0o775)
        );
        assert!(!at("dev/mem").exists() && !at("pipe").exists());
    }

    #[test]
    fn a_folder_is_copied_by_the_same_rules() {
        let from = tempfile::tempdir().unwrap();
        fs::write(from.path().join("su"), "x").unwrap();
        fs::set_permissions(from.path().join("su"), fs::Permissions::from_mode(0o4755)).unwrap();
        std::os::unix::fs::symlink("/etc", from.path().join("link")).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, from.path().join("pipe"), Mode::RUSR).unwrap();
        let to = tempfile::tempdir().unwrap();
        let mut tree = Tree::open(to.path(), from.path(), Limits::default()).unwrap();
        copy(&mut tree, from.path(), Path::new("")).unwrap();
        let left_out = LeftOut {
            special_files: 1,
            privileged_bits: 1,
        };
        assert_eq!((tree.bytes(), tree.left_out()), (1, &left_out));
        assert_eq!(mode(&to.path().join("su")), 0o755);
        assert_eq!(fs::read_link(to.path().join("link")).unwrap(), Path::new("/etc"));
    }

    proptest! {
        /// Whatever an archive holds, it ends, and nothing is made beside the folder.
        #[test]
        fn any_archive_stays_in_its_folder(
            members in prop::collection::vec((0_usize..5, 0_usize..6, 0_usize..6), 0..12),
            cut in 0_usize..20_000,
        ) {
            let place = tempfile::tempdir().unwrap();
            fs::create_dir(place.path().join("in")).unwrap();
            fs::create_dir(place.path().join("out")).unwrap();
            let paths = ["a", "a/b", "../out/x", "a/../../out/x", "b/a", "./a/b/c"];
            let targets = ["../out", "/", "a", "../../out", "b", "."];
            let kinds = [
                EntryType::Regular, EntryType::Directory, EntryType::Symlink, EntryType::Link, EntryType::Char,
            ];
            let members: Vec<Member<'_>> = members
                .iter()
                .map(|&(kind, path, target)| (kinds[kind], paths[path], 0o777, targets[target]))
                .collect();
            let bytes = archive(&members);
            let root = place.path().join("in");
            let mut tree = Tree::open(&root, Path::new("a.tar"), Limits::default()).unwrap();
            let _ = unpack_bytes(&mut tree, bytes.get(..cut.min(bytes.len())).unwrap());
            prop_assert_eq!(fs::read_dir(place.path().join("out")).unwrap().count(), 0);
            prop_assert_eq!(fs::read_dir(place.path()).unwrap().count(), 2);
        }
    }
}
