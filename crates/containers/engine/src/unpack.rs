//! Fills a folder with files that others wrote: the members of an archive, another folder. Whatever names they have, nothing is made
//! outside of the folder: each path is resolved beneath it by the kernel (`openat2`), and no link is followed, neither one that the
//! archive brought nor any other.
//!
//! Set-user-id and set-group-id bits are taken away, since the files lie on the host. Device files, pipes and sockets are left out.
//! Everything is bounded by [`Limits`].

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{
    AtFlags, Mode, OFlags, ResolveFlags, fchmod, linkat, mkdirat, openat2, symlinkat, unlinkat,
};
use rustix::io::Errno;
use tar::{Archive, EntryType, PaxExtensions};

use crate::EngineError;

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
    /// Set-user-id and set-group-id bits.
    pub privileged_bits: u64,
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

    /// A folder; one that is there gets the mode.
    pub(crate) fn add_dir(&mut self, path: &Path, mode: u32) -> Result<(), EngineError> {
        self.count(path)?;
        let parts = self.parts(path)?;
        let dir = self.dir(&parts)?;
        // To be filled, its owner must get into it.
        let mode = self.permissions(mode, 0o1777) | Mode::RWXU;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        rustix::fs::openat(&dir, ".", flags, Mode::empty())
            .and_then(|dir| fchmod(dir, mode))
            .map_err(|errno| self.failed("make", path, errno))
    }

    /// A file with this content; one that is there is replaced.
    pub(crate) fn add_file(
        &mut self,
        path: &Path,
        mode: u32,
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
        fchmod(&file, mode).map_err(|errno| self.failed("set the permissions of", path, errno))
    }

    /// A symbolic link, wherever it points: nothing here follows it. What is there is replaced.
    pub(crate) fn add_symlink(&mut self, path: &Path, target: &Path) -> Result<(), EngineError> {
        self.count(path)?;
        self.place(path, |dir, name| symlinkat(target, dir, name))
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
        let dir = dir.map_err(|errno| match errno {
            Errno::LOOP | Errno::NOTDIR => {
                let path = path.display();
                self.refused(format!(
                    "it has members below {path}, where a link or a file is in the way"
                ))
            }
            other => self.failed("make", &path, other),
        })?;
        let copy = copy_of(&dir).map_err(|errno| self.failed("open", &path, errno))?;
        self.last = Some((path, copy));
        Ok(dir)
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
}

impl Extension {
    fn read(&mut self, tree: &Tree<'_>, kind: EntryType, bytes: &[u8]) -> Result<(), EngineError> {
        match kind {
            EntryType::GNULongName => self.path = Some(path_of(bytes)),
            EntryType::GNULongLink => self.target = Some(path_of(bytes)),
            _ => {
                for record in PaxExtensions::new(bytes) {
                    let record = record.map_err(|error| tree.refused(format!("a PAX record: {error}")))?;
                    match record.key_bytes() {
                        b"path" => self.path = Some(path_of(record.value_bytes())),
                        b"linkpath" => self.target = Some(path_of(record.value_bytes())),
                        b"size" => self.size = record.value().ok().and_then(|text| text.parse().ok()),
                        key if key.starts_with(b"GNU.sparse") => return Err(sparse(tree)),
                        _ => {}
                    }
                }
            }
        }
        Ok(())
    }
}

fn sparse(tree: &Tree<'_>) -> EngineError {
    tree.refused("it has a sparse file: pack it again without --sparse".to_owned())
}

/// Fills the tree with the members of an archive, in their order.
///
/// # Errors
/// [`EngineError::BadImage`] for what no archive of an image has; [`EngineError::Io`].
pub(crate) fn unpack(tree: &mut Tree<'_>, archive: impl Read) -> Result<(), EngineError> {
    let source = tree.source;
    let broken = |error: io::Error| EngineError::BadImage {
        path: source.to_owned(),
        reason: format!("the archive is broken: {error}"),
    };
    let mut archive = Archive::new(archive);
    let mut next = Extension::default();
    // Raw: what extends a header is read here, where it is bounded.
    for entry in archive.entries().map_err(broken)?.raw(true) {
        let mut entry = entry.map_err(broken)?;
        let kind = entry.header().entry_type();
        let size = entry.header().entry_size().map_err(broken)?;
        if matches!(
            kind,
            EntryType::GNULongName | EntryType::GNULongLink | EntryType::XHeader
        ) {
            if size > MAX_EXTENSION_BYTES {
                return Err(tree.refused(format!("a header has {size} bytes, {MAX_EXTENSION_BYTES} may be")));
            }
            let mut bytes = Vec::new();
            entry.read_to_end(&mut bytes).map_err(broken)?;
            // Each counts: no archive is to consist of nothing else.
            tree.count(Path::new("a header"))?;
            next.read(tree, kind, &bytes)?;
            continue;
        }
        let said = std::mem::take(&mut next);
        if said.size.is_some_and(|said| said != size) {
            return Err(tree.refused("the size of a member is said in two ways".to_owned()));
        }
        let path = said.path.unwrap_or_else(|| path_of(&entry.header().path_bytes()));
        let target = || {
            let own = || Some(path_of(&entry.header().link_name_bytes()?));
            said.target.or_else(own).ok_or_else(|| tree_link(source, &path))
        };
        match kind {
            EntryType::Regular | EntryType::Continuous => {
                let mode = entry.header().mode().map_err(broken)?;
                tree.add_file(&path, mode, &mut entry)?;
            }
            EntryType::Directory => tree.add_dir(&path, entry.header().mode().map_err(broken)?)?,
            EntryType::Symlink => {
                let target = target()?;
                tree.add_symlink(&path, &target)?;
            }
            EntryType::Link => {
                let target = target()?;
                tree.add_hard_link(&path, &target)?;
            }
            EntryType::GNUSparse => return Err(sparse(tree)),
            // It is about the archive.
            EntryType::XGlobalHeader => tree.count(Path::new("a header"))?,
            _ => tree.leave_out(&path)?,
        }
    }
    Ok(())
}

fn tree_link(source: &Path, path: &Path) -> EngineError {
    EngineError::BadImage {
        path: source.to_owned(),
        reason: format!("the link {} leads nowhere", path.display()),
    }
}

/// Fills the tree with what a folder holds, below `at` in the tree.
///
/// # Errors
/// As [`unpack`].
pub(crate) fn copy(tree: &mut Tree<'_>, from: &Path, at: &Path) -> Result<(), EngineError> {
    let read = |path: &Path, error: &io::Error| EngineError::io("read", path, error);
    let data = fs::metadata(from).map_err(|e| read(from, &e))?;
    tree.add_dir(at, data.mode())?;
    for entry in fs::read_dir(from).map_err(|e| read(from, &e))? {
        let entry = entry.map_err(|e| read(from, &e))?;
        let (source, path) = (entry.path(), at.join(entry.file_name()));
        let kind = entry.file_type().map_err(|e| read(&source, &e))?;
        if kind.is_dir() {
            copy(tree, &source, &path)?;
        } else if kind.is_symlink() {
            let target = fs::read_link(&source).map_err(|e| read(&source, &e))?;
            tree.add_symlink(&path, &target)?;
        } else if kind.is_file() {
            let no_link = OFlags::NOFOLLOW.bits() as i32;
            let mut options = fs::OpenOptions::new();
            let mut file = options
                .read(true)
                .custom_flags(no_link)
                .open(&source)
                .map_err(|e| read(&source, &e))?;
            let mode = file.metadata().map_err(|e| read(&source, &e))?.mode();
            tree.add_file(&path, mode, &mut file)?;
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

    fn fill_with(limits: Limits, bytes: &[u8]) -> (tempfile::TempDir, Result<(u64, LeftOut), EngineError>) {
        let dir = tempfile::tempdir().unwrap();
        let mut tree = Tree::open(dir.path(), Path::new("a.tar"), limits).unwrap();
        let filled = unpack(&mut tree, bytes).map(|()| (tree.bytes(), tree.left_out().clone()));
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
        for (bytes, word) in [
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
            let _ = unpack(&mut tree, bytes.get(..cut.min(bytes.len())).unwrap());
            prop_assert_eq!(fs::read_dir(place.path().join("out")).unwrap().count(), 0);
            prop_assert_eq!(fs::read_dir(place.path()).unwrap().count(), 2);
        }
    }
}
